"""The contract of a key-value engine: an ordered map of bytes that a changelog is applied to.

The log is the source of truth and the engine is an index on it (design.md D5). An engine therefore needs no log of its
own: it stores, in one atomic step, the rows of a batch and the changelog offset up to which it has seen everything.
After a crash, whatever state it returns with is right for the offset that it reports, and the rest is replayed.

Stored values are `length i32 | schema id i16 | row` (codec.value_batch), so that a scan page is plain concatenation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from forebay.kv._digest import added

UNBOUNDED = (1 << 63) - 1

LARGE_VALUE_BYTES = 1500
"""Engines may store values from this size on separately."""

_STATE = struct.Struct("<BqqqqQ")
_STATE_VERSION = 2
_STATE_WITHOUT_DIGEST = struct.Struct("<Bqqqq")
_STATE_VERSION_WITHOUT_DIGEST = 1


@dataclass(frozen=True, slots=True)
class EngineState:
    """The metadata that an engine stores beside its rows, changed together with them.

    `applied_offset` is exclusive: the changelog below it is contained. `row_count` is -1 where rows are not counted.
    `next_id` up to `last_id` (inclusive) is the rest of the auto-increment segment; empty when next > last. `digest` is
    that of the rows (`kv._digest`), updated from the writes and not from the files, so that it reveals damage to these;
    None if it is not kept.
    """

    applied_offset: int = 0
    row_count: int = 0
    next_id: int = 1
    last_id: int = 0
    digest: int | None = None

    def to_bytes(self) -> bytes:
        """Return the state as bytes, to be stored under the engine's own key."""
        numbers = self.applied_offset, self.row_count, self.next_id, self.last_id
        if self.digest is None:
            return _STATE_WITHOUT_DIGEST.pack(_STATE_VERSION_WITHOUT_DIGEST, *numbers)
        return _STATE.pack(_STATE_VERSION, *numbers, self.digest)

    @classmethod
    def from_bytes(cls, data: bytes) -> EngineState:
        """Return the state from bytes. Raises `ValueError` for anything that `to_bytes` did not write."""
        if len(data) == _STATE.size and data[0] == _STATE_VERSION:
            return cls(*_STATE.unpack(data)[1:])
        if len(data) == _STATE_WITHOUT_DIGEST.size and data[0] == _STATE_VERSION_WITHOUT_DIGEST:
            return cls(*_STATE_WITHOUT_DIGEST.unpack(data)[1:])
        raise ValueError(f"{data!r} is not the state of a key-value engine")

    def advanced(self, applied_offset: int, rows: int, digest_change: int | None) -> EngineState:
        """Return this state `rows` rows later, at `applied_offset`; `digest_change` is None if unknown."""
        count = self.row_count if self.row_count < 0 else self.row_count + rows
        before = 0 if self.applied_offset == 0 else self.digest
        digest = None if before is None or digest_change is None else added(before, digest_change)
        return replace(self, applied_offset=applied_offset, row_count=count, digest=digest)


@dataclass(frozen=True, slots=True)
class KvCursor:
    """An iterator over the stored values of a snapshot that knows its position.

    `position` returns it, for `KvSnapshot.cursor(after=...)`: after the last returned value, or after the last one of
    all once `values` has ended. It is valid only after a value was returned.
    """

    values: Iterator[bytes]
    position: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class WriteSize:
    """How much one `apply` writes. Deletes are among the keys.

    `longest` is the longest key and value together, of values below `LARGE_VALUE_BYTES`; the others are counted by
    `large_values` and `large_bytes`. `longest_key` is that of all keys.
    """

    keys: int = 0
    deletes: int = 0
    total_bytes: int = 0
    longest: int = 0
    large_values: int = 0
    large_bytes: int = 0
    longest_key: int = 0

    def __add__(self, other: WriteSize) -> WriteSize:
        return WriteSize(
            self.keys + other.keys,
            self.deletes + other.deletes,
            self.total_bytes + other.total_bytes,
            max(self.longest, other.longest),
            self.large_values + other.large_values,
            self.large_bytes + other.large_bytes,
            max(self.longest_key, other.longest_key),
        )


def size_of(writes: Mapping[bytes, bytes | None]) -> WriteSize:
    """Return the size of an `apply` of these writes."""
    deletes = 0
    if None in writes.values():
        lengths = [-1 if value is None else len(value) for value in writes.values()]
        deletes = lengths.count(-1)
    else:
        lengths = list(map(len, cast("Iterable[bytes]", writes.values())))
    key_lengths = np.fromiter(map(len, writes), np.int64, len(writes))
    value_lengths = np.maximum(np.array(lengths, np.int64), 0)
    is_large = value_lengths >= LARGE_VALUE_BYTES
    large = value_lengths[is_large]
    pairs = key_lengths + value_lengths
    return WriteSize(
        len(pairs),
        deletes,
        int(pairs.sum()),
        int(pairs[~is_large].max(initial=0)),
        len(large),
        int(large.sum()),
        int(key_lengths.max(initial=0)),
    )


def just_longer_than(bytes_max: int, values: Iterable[bytes]) -> list[bytes]:
    """Return the first of `values` that together exceed `bytes_max`; all of them if they do not."""
    found: list[bytes] = []
    left = bytes_max
    for value in values:
        found.append(value)
        left -= len(value)
        if left < 0:
            break
    return found


class KvSnapshot(Protocol):
    """An immutable view of an engine. Not thread-safe; `close` releases its resources."""

    @property
    def state(self) -> EngineState:
        """Return the state that belongs to exactly these rows."""
        ...

    def values(self) -> Iterator[bytes]:
        """Return all stored values in the order of their keys' bytes."""
        ...

    def cursor(self, after: bytes | None = None) -> KvCursor:
        """Return a cursor over the stored values from the first one on, or after a position from a cursor of this
        snapshot.

        A cursor is valid until the next one is created. Raises `InvalidRequest` for an invalid position.
        """
        ...

    def close(self) -> None: ...


class KvEngine(Protocol):
    """An ordered, persistent map. One thread applies; any thread can read at any time, and sees whole batches only."""

    name: str

    @property
    def state(self) -> EngineState: ...

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the stored value of each key, None if there is none. Keys may repeat."""
        ...

    def apply(self, writes: Mapping[bytes, bytes | None], state: EngineState) -> None:
        """Put (value) and delete (None) all keys and set the state, in one atomic step.

        Raises `StorageFailure` without any effect when the engine cannot write.
        """
        ...

    def make_room(self, size: WriteSize) -> None:
        """Reserve disk space for an `apply` of this size, before anything is written for it.

        Raises `DiskFull` (DISK_WRITE_LOCKED).
        """
        ...

    def prefix(self, prefix: bytes, bytes_max: int = UNBOUNDED) -> list[bytes]:
        """Return the stored values of all keys that begin with `prefix`, in key order.

        If these together exceed `bytes_max`, only the first ones that do are returned.
        """
        ...

    def first(self, limit: int, bytes_max: int = UNBOUNDED) -> list[bytes]:
        """Return the stored values of the first `limit` keys; `bytes_max` as in `prefix`."""
        ...

    def snapshot(self) -> KvSnapshot: ...

    def checkpoint(self, directory: Path) -> None:
        """Write a complete copy into the new folder `directory`, durable when this returns."""
        ...

    def sync(self) -> None:
        """Make the engine's own files durable, as for a clean shutdown."""
        ...

    def close(self) -> None: ...


class EngineFactory(Protocol):
    """Opens (or creates) the engine whose files are in a folder."""

    def __call__(self, directory: Path) -> KvEngine: ...
