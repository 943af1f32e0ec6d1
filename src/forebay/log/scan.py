"""Iterating over the batches of a segment file, with the checks that detect a damaged log.

Rule: each batch begins where the previous one ends, with the offset that follows the previous one's last. A scan reads
the file in windows, so its memory does not grow with the file. A scan of headers uses small windows if batches are
large.
"""

from __future__ import annotations

from collections.abc import Iterator

from forebay.base.errors import CorruptData, ErrorCode
from forebay.codec.log.header import HEADER_SIZE_MAX, LogBatchHeader, compute_crc, parse_header
from forebay.fs.interface import PositionalReader

_HEADER_WINDOW_BYTES = 64 * 1024
_SMALL_WINDOW_BYTES = 4 * 1024
"""How many bytes one read takes while only headers are wanted: the smaller number where batches are so large that a
larger read would mostly load bodies."""


class CorruptBatch(CorruptData):
    """The bytes at `position` of a segment file are not the batch that begins with offset `offset`."""

    default_code = ErrorCode.CORRUPT_RECORD_EXCEPTION
    position: int = 0
    offset: int = 0


def corrupt_batch(path: str, position: int, offset: int, reason: str) -> CorruptBatch:
    """The error for a damaged batch; it names file, position and offset."""
    error = CorruptBatch(f"{path} is damaged at byte {position}, where offset {offset} should begin: {reason}")
    error.position = position
    error.offset = offset
    return error


def parse_at(path: str, window: bytes | memoryview, at: int, position: int, end: int, offset: int) -> LogBatchHeader:
    """The header at `at` of `window`, which is at `position` of the file `path` and must begin with `offset`.

    `end` is where the file's batches end. Raises `CorruptBatch`.
    """
    try:
        header = parse_header(window, at, end - position)
    except CorruptData as error:
        raise corrupt_batch(path, position, offset, error.message.partition(": ")[2]) from error
    if header.base_offset != offset:
        raise corrupt_batch(path, position, offset, f"the batch there says that it begins with {header.base_offset}")
    return header


def scan_headers(
    reader: PositionalReader, position: int, end: int, offset: int
) -> Iterator[tuple[int, LogBatchHeader]]:
    """Yield (position, header) of each batch from `position` to `end` of the file; the first begins with `offset`.

    Bodies are not read. Raises `CorruptBatch` at the first batch that is not as it should be, `StorageFailure` when
    reading fails.
    """
    window = b""
    window_start = window_end = position
    window_bytes = _HEADER_WINDOW_BYTES
    while position < end:
        if position + HEADER_SIZE_MAX > window_end:
            window = reader.pread(position, min(window_bytes, end - position))
            window_start, window_end = position, position + len(window)
        header = parse_at(reader.path, window, position - window_start, position, end, offset)
        yield position, header
        size = header.size_bytes
        window_bytes = _SMALL_WINDOW_BYTES if size > _HEADER_WINDOW_BYTES // 2 else _HEADER_WINDOW_BYTES
        position += size
        offset = header.next_offset


def scan_batches(
    reader: PositionalReader, position: int, end: int, offset: int, window_bytes: int
) -> Iterator[tuple[int, LogBatchHeader]]:
    """Yield the header of every batch with its position, after verifying the batch's checksum; see `scan_headers`."""
    window = b""
    window_start = window_end = position
    while position < end:
        if position + HEADER_SIZE_MAX > window_end:
            window = reader.pread(position, min(window_bytes, end - position))
            window_start, window_end = position, position + len(window)
        header = parse_at(reader.path, window, position - window_start, position, end, offset)
        size = header.size_bytes
        if position + size > window_end:
            window = reader.pread(position, min(max(size, window_bytes), end - position))
            window_start, window_end = position, position + len(window)
            if size > len(window):
                raise corrupt_batch(reader.path, position, offset, f"the file ends {size - len(window)} bytes too soon")
        crc = compute_crc(window, position - window_start, header)
        if crc != header.crc:
            reason = f"its checksum is {crc:#010x} and should be {header.crc:#010x}"
            raise corrupt_batch(reader.path, position, offset, reason)
        yield position, header
        position += size
        offset = header.next_offset
