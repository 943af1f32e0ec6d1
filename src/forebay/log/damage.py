"""Damaged logs: where sound batches follow a damaged part, and whether a power failure can have torn a batch.

Nouns: a *gap* is a part of a segment whose batches are unreadable; their offsets are lost. Sound batches may follow it.

Rules:
- Nothing marks the beginning of a batch, so the batch after a gap is searched for: where the length in the damaged
  header leads, at the entries of the index, and then at every byte. A candidate must match its checksum and have a
  later offset, and the batches that follow it must lead to a place that is certain: an entry of the index, or the end
  of the segment. Bytes that a user has stored in a row may look like a batch, but do not lead there.
- **A torn write leaves zeros or a short file.** An append grows the file, and the file systems that we know show zeros
  where a page of it did not reach the disk before the power failed. Pages are written in sectors of 512 bytes. So a
  batch that has its full length, and no sector of zeros, was written completely and damaged later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from forebay.base.errors import CorruptData
from forebay.codec.crc import crc32c
from forebay.codec.log.header import (
    HEADER_SIZE_MAX,
    HEADER_SIZES,
    LENGTH_OFFSET,
    LENGTH_OVERHEAD,
    MAGIC_OFFSET,
    SCHEMA_ID_OFFSETS,
    LogBatchHeader,
    parse_header,
)
from forebay.fs.interface import PositionalReader
from forebay.log.scan import CorruptBatch, scan_batches

SECTOR_BYTES = 512
"""Disks write this much whole or not at all."""

_WINDOW_BYTES = 1 << 20
"""How many bytes of a segment are searched at a time."""

_OFFSETS_AT_ONCE_MAX = 2**31
"""The maximum distance from the last known record to the next one. A larger offset is taken for garbage."""


class Gap(NamedTuple):
    """Damage in the segment file `path`, from byte `position` to `end_position`.

    The offsets from `offset` to `next_offset` are lost; `next_offset` is None where nothing tells: at the end of a log.
    """

    path: str
    position: int
    end_position: int
    offset: int
    next_offset: int | None
    reason: str
    file_size: int

    def description(self, end: int) -> str:
        """In words, which offsets are lost of a log that should have all below `end`."""
        lost = self.lost(end)
        if not lost:
            return f"offset {self.offset} is lost, if not more"
        return f"offset {lost[0]} is lost" if len(lost) == 1 else f"offsets {lost[0]} to {lost[-1]} are lost"

    def lost(self, end: int) -> range:
        """The lost offsets, of a log that should have all below `end`."""
        return range(self.offset, max(end, self.offset) if self.next_offset is None else self.next_offset)


class Segment(NamedTuple):
    """An open segment file, as it should be: batches from offset `base` to `next_base` (None: not known) in `size`
    bytes; `hints` are positions of batches according to its index, in order."""

    reader: PositionalReader
    size: int
    base: int
    next_base: int | None = None
    hints: Sequence[int] = ()


def read_segment(segment: Segment, window_bytes: int) -> Iterator[tuple[int, LogBatchHeader] | Gap]:
    """Yield (position, header) of each sound batch, and the gaps between them."""
    position, offset = 0, segment.base
    while True:
        try:
            for at, header in scan_batches(segment.reader, position, segment.size, offset, window_bytes):
                yield at, header
                position, offset = at + header.size_bytes, header.next_offset
        except CorruptBatch as problem:
            gap = find_gap(segment, problem)
            yield gap
            if gap.end_position >= segment.size or gap.next_offset is None:
                return
            position, offset = gap.end_position, gap.next_offset
            continue
        if segment.next_base is not None and offset != segment.next_base:
            reason = f"{segment.reader.path} ends with offset {offset}, and the next segment begins at"
            yield Gap(segment.reader.path, position, segment.size, offset, segment.next_base,
                      f"{reason} {segment.next_base}", segment.size)  # fmt: skip
        return


def find_gap(segment: Segment, problem: CorruptBatch) -> Gap:
    """The gap that begins with the damaged batch that `problem` describes."""
    batch = _sound_batch_behind(segment, problem.position, problem.offset)
    reader, size = segment.reader, segment.size
    if batch is None:
        return Gap(reader.path, problem.position, size, problem.offset, segment.next_base, problem.message, size)
    return Gap(reader.path, problem.position, batch[0], problem.offset, batch[1].base_offset, problem.message, size)


def may_be_torn(segment: Segment, gap: Gap) -> bool:
    """Whether a power failure can have left the batch at the beginning of the gap so: see the module's rules."""
    if gap.end_position < segment.size:
        return _has_zero_sector(segment.reader, gap.position, gap.end_position, segment.size)
    return (
        _has_zero_sector(segment.reader, gap.position, segment.size, segment.size)
        or not _is_of_offset(segment.reader, gap.position, gap.offset)
        or _ends_too_soon(segment, gap)
    )


def _is_of_offset(reader: PositionalReader, position: int, offset: int) -> bool:
    return reader.pread(position, 8) == offset.to_bytes(8, "little")


def _ends_too_soon(segment: Segment, gap: Gap) -> bool:
    """Whether the file ends inside the batch, unless its length is all that is wrong with it."""
    left = segment.size - gap.position
    data = segment.reader.pread(gap.position, min(left, HEADER_SIZE_MAX))
    try:
        header = parse_header(data.ljust(HEADER_SIZE_MAX, b"\0"), 0, 1 << 62)
    except CorruptData:
        return left < HEADER_SIZE_MAX
    if header.size_bytes <= left:
        return False
    whole = segment.reader.pread(gap.position, left)
    start = SCHEMA_ID_OFFSETS[header.magic]
    return left < HEADER_SIZES[header.magic] or crc32c(whole, start, left) != header.crc


def _has_zero_sector(reader: PositionalReader, start: int, end: int, size: int) -> bool:
    """Whether, in some sector, all is zero from `start`, or its beginning, to its end or that of the file."""
    position = start - start % SECTOR_BYTES
    while position < end:
        data = reader.pread(position, min(_WINDOW_BYTES, size - position))
        for at in range(0, len(data), SECTOR_BYTES):
            if position + at >= end:
                return False
            first = max(at, start - position)
            if not any(data[first : at + SECTOR_BYTES]):
                return True
        if not data:
            return False
        position += len(data)
    return False


# ---- the batch behind a gap


def _sound_batch_behind(segment: Segment, position: int, offset: int) -> tuple[int, LogBatchHeader] | None:
    """(position, header) of the first sound batch behind the damaged one at `position`, which should hold `offset`."""
    next_batch = _batch_at_header_end(segment, position, offset)
    if next_batch is not None:
        return next_batch
    certain = [hint for hint in segment.hints if hint > position and _batch_at(segment, hint, offset) is not None]
    doubtful = None
    for at in _candidates(segment, position + 1, certain[0] if certain else segment.size, offset):
        header = _batch_at(segment, at, offset)
        if header is None:
            continue
        if _leads_to(segment, at, header, certain[0] if certain else segment.size):
            return at, header
        doubtful = doubtful or (at, header)
    if certain:
        header = _batch_at(segment, certain[0], offset)
        return None if header is None else (certain[0], header)
    return doubtful if doubtful is not None and _is_followed(segment, *doubtful) else None


def _batch_at_header_end(segment: Segment, position: int, offset: int) -> tuple[int, LogBatchHeader] | None:
    try:
        header = parse_header(segment.reader.pread(position, HEADER_SIZE_MAX), 0, segment.size - position)
    except CorruptData:
        return None
    at = position + header.size_bytes
    next_header = _batch_at(segment, at, offset)
    if next_header is None or next_header.base_offset != offset + header.last_offset_delta + 1:
        return None
    return at, next_header


def _batch_at(segment: Segment, position: int, after: int) -> LogBatchHeader | None:
    """The header of the sound batch at `position`, with an offset behind `after`."""
    size = segment.size
    if position + LENGTH_OVERHEAD >= size:
        return None
    base = int.from_bytes(segment.reader.pread(position, 8), "little", signed=True)
    limit = after + _OFFSETS_AT_ONCE_MAX if segment.next_base is None else segment.next_base
    if not after < base < limit:
        return None
    try:
        return next(scan_batches(segment.reader, position, size, base, _WINDOW_BYTES))[1]
    except (CorruptBatch, StopIteration):
        return None


def _leads_to(segment: Segment, position: int, header: LogBatchHeader, place: int) -> bool:
    """Whether sound batches follow one another from `position` to exactly `place`."""
    end, next_offset = position, header.base_offset
    try:
        for at, batch in scan_batches(segment.reader, position, place, header.base_offset, _WINDOW_BYTES):
            end, next_offset = at + batch.size_bytes, batch.next_offset
    except CorruptBatch:
        return False
    return end == place and (place < segment.size or segment.next_base in (None, next_offset))


def _is_followed(segment: Segment, position: int, header: LogBatchHeader) -> bool:
    """Whether what follows a batch begins with the offset that it should: a batch that is damaged, too."""
    return _is_of_offset(segment.reader, position + header.size_bytes, header.next_offset)


def _candidates(segment: Segment, start: int, end: int, after: int) -> Iterator[int]:
    """The positions from `start` to `end` at which something looks like the head of a batch behind `after`."""
    limit = after + _OFFSETS_AT_ONCE_MAX if segment.next_base is None else segment.next_base
    while start + MAGIC_OFFSET < end:
        data = segment.reader.pread(start, min(_WINDOW_BYTES, end + MAGIC_OFFSET - start))
        count = len(data) - MAGIC_OFFSET
        if count <= 0:
            return
        likely = np.flatnonzero(np.frombuffer(data, np.uint8, count, MAGIC_OFFSET) <= 2)
        bases = np.ndarray((count,), "<i8", data, strides=(1,))[likely]
        lengths = np.ndarray((count,), "<i4", data, LENGTH_OFFSET, strides=(1,))[likely]
        good = (bases > after) & (bases < limit) & (lengths > 0) & (lengths <= segment.size - start - likely)
        yield from (start + likely[good]).tolist()
        start += count
