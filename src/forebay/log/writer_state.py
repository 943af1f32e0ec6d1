"""The state that a bucket keeps of its writers to recognise duplicate batches and detect missing ones.

Nouns: a *writer* is a client with an id from InitWriter; it numbers its batches per bucket from 0. The *state* of a
writer is its last five batches. A *writer snapshot* is a file with the states of all writers after the batches below
one offset.

Rules (those of Fluss):
- The next batch of a writer has the sequence of its last one plus 1; after 2^31-1 comes 0. Otherwise: error 31.
- A batch with the sequence of a remembered one is a duplicate. It is not appended; the answer is the remembered one.
- A writer without state must begin with 0, unless the batch's own commit timestamp is older than the writer expiry.
  (As the server sets that timestamp just before, only a clock that is far behind the log makes a difference.)
- Batches without a writer id are not checked.
- A writer silent for longer than the expiry is forgotten. So are, where a bucket has more writers than its limit, those
  that were silent the longest, but none that wrote in the last fifteen minutes: a client that is still trying its first
  batch again must not find its id forgotten, because that batch would then be stored twice. A later batch of a
  forgotten writer is refused (error 31), and its client continues with a new id.

Snapshots are taken on roll, on close and before retention removes segments. They only save time, except for the state
of writers whose batches retention has removed. Unlike Fluss's, they hold all five batches, so that a restart does not
forget which repeats are harmless.

Snapshot file, little-endian: "FBWS", version 2 bytes (1), end offset 8, number of writers 4; per writer: id 8, number
of batches 1; per batch: sequence 4, base offset 8, last offset delta 4, commit timestamp 8; CRC-32C of all before, 4.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import NamedTuple

from forebay.base.errors import Conflict, CorruptData, ErrorCode, check
from forebay.codec.crc import crc32c
from forebay.codec.log._plain_batches import PlainBatch
from forebay.codec.log.header import BATCH_SEQUENCE_MAX, NO_BATCH_SEQUENCE, LogBatchHeader

BATCHES_REMEMBERED = 5
"""The number of batches that a client may have in flight per bucket."""

_MAGIC = b"FBWS"
_VERSION = 1
_HEAD = struct.Struct("<4sHqi")
_WRITER = struct.Struct("<qB")
_BATCH = struct.Struct("<iqiq")
_CRC = struct.Struct("<I")


RETRY_HORIZON_MS = 15 * 60_000
"""Longer than clients repeat a batch (`client.writer.delivery-timeout`, five minutes unless set otherwise)."""


class WriterBatch(NamedTuple):
    """A batch that a writer has appended."""

    sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


_Header = LogBatchHeader | PlainBatch


class WriterStates:
    """The states of all writers of one bucket. Not thread-safe: the tablet's lock guards it."""

    def __init__(self, expiry_ms: int, count_max: int = 10_000) -> None:
        """`count_max`: number of remembered writers, beyond which only those that wrote recently are kept."""
        self._expiry_ms = expiry_ms
        self._count_max = count_max
        self.retained_ids: frozenset[int] = frozenset()
        """Writers that are not forgotten, however long they are silent: those of decided transactions."""
        self._writers: dict[int, tuple[WriterBatch, ...]] = {}

    def __len__(self) -> int:
        return len(self._writers)

    def as_mapping(self) -> Mapping[int, tuple[WriterBatch, ...]]:
        """Remembered batches, oldest first, by writer id."""
        return dict(self._writers)

    def find_duplicate(self, writer_id: int, sequence: int) -> WriterBatch | None:
        """The remembered batch with this sequence."""
        for batch in self._writers.get(writer_id, ()):
            if batch.sequence == sequence:
                return batch
        return None

    def last_sequence(self, writer_id: int) -> int:
        """The sequence of a writer's last batch; -1 if it has none here."""
        remembered = self._writers.get(writer_id)
        return remembered[-1].sequence if remembered else NO_BATCH_SEQUENCE

    def remembered(self, writer_id: int) -> tuple[WriterBatch, ...]:
        """The remembered batches of a writer, for `restore`."""
        return self._writers.get(writer_id, ())

    def restore(self, states: Mapping[int, tuple[WriterBatch, ...]]) -> None:
        """Undo all records since `remembered` returned these batches."""
        for writer_id, batches in states.items():
            if batches:
                self._writers[writer_id] = batches
            else:
                self._writers.pop(writer_id, None)

    def check(self, headers: Iterable[_Header], timestamp_ms: int, now_ms: int) -> WriterBatch | None:
        """Apply the rules to the batches of one request, which would get the commit timestamp `timestamp_ms`.

        Returns the remembered batch that the first duplicate repeats, or None when all may be appended. Raises
        `Conflict` with OUT_OF_ORDER_SEQUENCE_EXCEPTION. Changes nothing.
        """
        last_sequences: dict[int, int] = {}
        for header in headers:
            if not header.has_writer_id:
                continue
            writer_id, sequence = header.writer_id, header.batch_sequence
            duplicate = self.find_duplicate(writer_id, sequence)
            if duplicate is not None:
                return duplicate
            last = last_sequences.get(writer_id)
            if last is None:
                last = self.last_sequence(writer_id)
            is_expired = last == NO_BATCH_SEQUENCE and now_ms - timestamp_ms > self._expiry_ms
            if not is_expired and sequence != next_sequence(last):
                raise Conflict(
                    f"batch sequence {sequence} of writer {writer_id} is out of order: the last one here is {last}, "
                    f"so {next_sequence(last)} must follow",
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION,
                )
            last_sequences[writer_id] = sequence
        return None

    def record(self, header: _Header, base_offset: int, timestamp_ms: int) -> None:
        """Remember a batch that was appended, or is replayed from the log. Does not apply the rules.

        A batch out of order is from a writer that was forgotten in between, so nothing older counts any more. Replay
        thus comes to the same state as the appends did.
        """
        if not header.has_writer_id:
            return
        batch = WriterBatch(header.batch_sequence, base_offset, base_offset + header.last_offset_delta, timestamp_ms)
        remembered = self._writers.get(header.writer_id, ())
        if remembered and batch.sequence != next_sequence(remembered[-1].sequence):
            remembered = ()
        self._writers[header.writer_id] = (*remembered[1 - BATCHES_REMEMBERED :], batch)

    def expire(self, now_ms: int) -> int:
        """Forget writers that were inactive for too long or exceed the limit; return how many."""
        silent_since = {
            writer_id: batches[-1].timestamp_ms
            for writer_id, batches in self._writers.items()
            if writer_id not in self.retained_ids
        }
        gone = [writer_id for writer_id, last_ms in silent_since.items() if now_ms - last_ms > self._expiry_ms]
        if (excess := len(silent_since) - len(gone) - self._count_max) > 0:
            left = silent_since.keys() - set(gone)
            oldest = nsmallest(excess, left, key=lambda writer_id: (silent_since[writer_id], writer_id))
            gone += [writer_id for writer_id in oldest if now_ms - silent_since[writer_id] > RETRY_HORIZON_MS]
        for writer_id in gone:
            del self._writers[writer_id]
        return len(gone)

    def clear(self) -> None:
        """Forget all writers."""
        self._writers.clear()

    def to_snapshot(self, end_offset: int) -> bytes:
        """The bytes of a snapshot after the batches below `end_offset`. The states must have no others."""
        parts = [_HEAD.pack(_MAGIC, _VERSION, end_offset, len(self._writers))]
        for writer_id, batches in self._writers.items():
            parts.append(_WRITER.pack(writer_id, len(batches)))
            check(batches[-1].last_offset < end_offset, f"writer {writer_id} is ahead of the log's end, {end_offset}")
            for sequence, base, last, timestamp in batches:
                parts.append(_BATCH.pack(sequence, base, last - base, timestamp))
        body = b"".join(parts)
        return body + _CRC.pack(crc32c(body))

    def load_snapshot(self, data: bytes, end_offset: int) -> None:
        """Replace all states by those of a snapshot after the batches below `end_offset`.

        Raises `CorruptData`, with the states unchanged, for anything but the complete bytes of a snapshot.
        """
        body_size = len(data) - _CRC.size
        if body_size < _HEAD.size or _CRC.unpack_from(data, body_size)[0] != crc32c(data, 0, body_size):
            raise CorruptData(f"a writer snapshot of {len(data)} bytes has a wrong checksum")
        magic, version, stored_end, count = _HEAD.unpack_from(data)
        if magic != _MAGIC or version != _VERSION or stored_end != end_offset:
            raise CorruptData(f"a writer snapshot says {magic!r}, version {version}, end offset {stored_end}")
        try:
            writers = _parse_writers(data, body_size, count)
        except struct.error as error:
            raise CorruptData(f"a writer snapshot of {len(data)} bytes ends too soon") from error
        if any(batches[-1].last_offset >= end_offset for batches in writers.values()):
            raise CorruptData(f"a writer snapshot has batches behind its end, {end_offset}")
        self._writers = writers


def _parse_writers(data: bytes, end: int, count: int) -> dict[int, tuple[WriterBatch, ...]]:
    """Return the `count` writers of a snapshot; they must end exactly at `end`."""
    writers = {}
    position = _HEAD.size
    for _ in range(count):
        writer_id, batch_count = _WRITER.unpack_from(data, position)
        position += _WRITER.size
        batches = []
        for _ in range(batch_count):
            sequence, base, delta, timestamp = _BATCH.unpack_from(data, position)
            batches.append(WriterBatch(sequence, base, base + delta, timestamp))
            position += _BATCH.size
        writers[writer_id] = tuple(batches)
    if position != end or not all(writers.values()):
        raise CorruptData(f"a writer snapshot has {end} bytes for {count} writers that need {position}")
    return writers


def next_sequence(last: int) -> int:
    """The sequence that follows `last`; -1 stands for none yet."""
    return 0 if last == BATCH_SEQUENCE_MAX else last + 1
