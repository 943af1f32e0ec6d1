"""Frames of the pipes between a process that serves clients and one that runs their statements.

A frame is a kind, a length and that many bytes. Rows cross as an Arrow IPC stream in frames of some megabytes; a pipe
that is full makes its writer wait. What comes from the process that runs statements of others is never unpickled.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import IO, Any

import pyarrow as pa

from forebay.base.errors import CorruptData, LimitExceeded

_HEAD = struct.Struct("<BI")
_PART_BYTES, _PART_ROWS = 4 << 20, 64 << 10
_ROW_BYTES_MAX = 64 << 20
PAYLOAD_MAX = 256 << 20
"""The most bytes of a frame: a row, or a dictionary that many rows share."""

CANCELLED = "the statement was cancelled"

PARAMETERS = "__forebay_parameters"
"""The name of rows of parameters among the rows that a statement is given."""


class Kind(IntEnum):
    """What a frame is. To the process that runs statements: RUN to STOP; from it: READY to FAILED."""

    RUN = 1
    """A statement, and where its tables are."""
    ROWS = 2
    """A part of the rows that were asked for by WANT."""
    ROWS_END = 3
    STOP = 4
    """End the statement that runs."""
    READY = 5
    WANT = 6
    """The next part of the rows that the statement was given, by their name."""
    COMMITTING = 7
    """What the statement writes is about to be committed: it should not be ended now."""
    HEAD = 8
    """Facts about the result, before its rows."""
    DATA = 9
    END = 10
    FAILED = 11


def send(out: IO[bytes], kind: Kind, payload: bytes | memoryview = b"") -> None:
    """Write a frame; wait until the pipe has taken all of it."""
    for part in (_HEAD.pack(kind, len(payload)), payload):
        rest = memoryview(part)
        while rest.nbytes:
            rest = rest[out.write(rest) :]


def receive(source: IO[bytes]) -> tuple[Kind, bytes | bytearray] | None:
    """The next frame; None if the other process has gone. Raises `CorruptData` for bytes that are no frame."""
    head = _exactly(source, _HEAD.size)
    if head is None:
        return None
    kind, length = _HEAD.unpack(head)
    if kind not in list(Kind) or length > PAYLOAD_MAX:
        raise CorruptData(f"a process that runs statements sent a frame of kind {kind} with {length:,} bytes")
    payload = _exactly(source, length)
    return None if payload is None else (Kind(kind), payload)


def _exactly(source: IO[bytes], length: int) -> bytearray | None:
    data = bytearray(length)
    rest = memoryview(data)
    while rest.nbytes:
        count = source.readinto(rest)  # type: ignore[attr-defined]  # of a raw file
        if not count:
            return None
        rest = rest[count:]
    return data


class ArrivingStream:
    """A file of an Arrow IPC stream whose parts `next_part` returns, None at the end."""

    def __init__(self, next_part: Callable[[], bytes | bytearray | None]) -> None:
        self._next_part = next_part
        self._part = memoryview(b"")
        self.closed = False

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer only at the end."""
        pieces, wanted = list[memoryview](), size
        while wanted:
            if not self._part.nbytes:
                part = self._next_part()
                if part is None:
                    break
                self._part = memoryview(part)
            pieces.append(self._part[:wanted])
            wanted -= pieces[-1].nbytes
            self._part = self._part[pieces[-1].nbytes :]
        return b"".join(pieces)

    def close(self) -> None:
        self.closed = True


class _Collected:
    """A file that keeps what is written until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._pieces = list[bytes]()

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        return

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def leaving_parts(schema: pa.Schema, batches: Any) -> Iterator[bytes]:
    """The parts of the Arrow IPC stream of batches, each small unless one row is large. Raises `LimitExceeded`."""
    collected = _Collected()
    with pa.ipc.new_stream(pa.PythonFile(collected, "w"), schema) as writer:
        yield collected.take()
        for batch in batches:
            for part in _small_parts(batch):
                if part.num_rows == 1 and part.nbytes > _ROW_BYTES_MAX:
                    raise LimitExceeded(
                        f"a row of the result has more than {_ROW_BYTES_MAX >> 20} MiB: ask for parts of its values, "
                        "such as left(text, 1000)"
                    )
                writer.write_batch(part)
                yield collected.take()
    yield collected.take()


def _small_parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts; whole if its rows share what is large (a dictionary)."""
    half = batch.num_rows // 2
    if half and (batch.nbytes > _PART_BYTES or batch.num_rows > _PART_ROWS):
        parts = [batch.slice(0, half), batch.slice(half)]
        if batch.num_rows > _PART_ROWS or sum(part.nbytes for part in parts) < 1.5 * batch.nbytes:
            for part in parts:
                yield from _small_parts(part)
            return
    yield batch
