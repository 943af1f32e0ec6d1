"""Batches for the tests of the log: any header that a client may send, with arbitrary bytes as a body."""

from __future__ import annotations

import errno
import random

from forebay.base.ambient import ManualClock
from forebay.codec.log.header import (
    APPEND_ONLY_FLAG,
    CRC_OFFSETS,
    HEADER_SIZES,
    LENGTH_OVERHEAD,
    LogBatchHeader,
    iter_headers,
    pack_header,
    seal,
)
from forebay.log.config import LogConfig
from forebay.log.tablet import LogTablet
from tests.fs.faulty_fs import FaultyFileSystem

FOLDER = "/data/db/t-1/log-0"
SMALL = LogConfig(segment_bytes=700, index_interval_bytes=120, scan_bytes=256, batch_bytes_max=4000)
"""Segments of a few batches, so that every path is met."""


def make_batch(
    records: int = 1,
    body: bytes = b"",
    *,
    magic: int = 0,
    writer_id: int = -1,
    sequence: int = -1,
    base_offset: int = 0,
    statistics: bytes = b"",
) -> bytes:
    """A batch as a client sends it."""
    size = HEADER_SIZES[magic] + len(statistics) + len(body)
    header = LogBatchHeader(
        base_offset=base_offset,
        length=size - LENGTH_OVERHEAD,
        magic=magic,
        commit_timestamp_ms=0,
        leader_epoch=-1,
        crc=0,
        schema_id=1,
        attributes=APPEND_ONLY_FLAG,
        last_offset_delta=max(records - 1, 0),
        writer_id=writer_id,
        batch_sequence=sequence,
        record_count=records,
        statistics_length=len(statistics),
    )
    batch = bytearray(pack_header(header) + statistics + body)
    seal(batch)
    return bytes(batch)


def payloads(data: bytes | memoryview) -> list[bytes]:
    """What the server may not change of each batch in `data`: all from the checksum on."""
    return [bytes(data[at + CRC_OFFSETS[header.magic] : at + header.size_bytes]) for at, header in iter_headers(data)]


def read_all(tablet: LogTablet, max_bytes: int = 300) -> bytes:
    """All batches of the log, read piece by piece."""
    parts = []
    offset = tablet.log_start_offset
    while True:
        piece = tablet.read(offset, max_bytes)
        if piece.next_offset == offset:
            return b"".join(parts)
        assert piece.base_offset == offset
        parts.append(bytes(piece.data))
        offset = piece.next_offset


def faulty_fs(seed: int = 1) -> FaultyFileSystem:
    return FaultyFileSystem(random.Random(seed), page_bytes=512)


def open_log(fs: FaultyFileSystem, recovery_point: int | None = None, **more: object) -> LogTablet:
    arguments: dict[str, object] = {"config": SMALL, "clock": ManualClock(), "recovery_point": recovery_point, **more}
    return LogTablet.open(fs, FOLDER, **arguments)  # type: ignore[arg-type]


def filled_log(fs: FaultyFileSystem, batches: int = 30, **more: object) -> LogTablet:
    """A log of `batches` batches of two records each, in several segments."""
    tablet = open_log(fs, **more)
    for number in range(batches):
        tablet.append_as_leader(
            make_batch(2, bytes([number % 256]) * 40, magic=number % 3, writer_id=9, sequence=number)
        )
    return tablet


DISK_ERRORS = [errno.EIO, errno.ENOSPC]
