"""Appending the bytes of a request: check them, then assign offsets, without copying them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest
from forebay.codec.log_batch import CRC_OFFSETS, MAGIC_V2, LogBatchHeader, iter_headers, verify_crc
from forebay.log.config import SEGMENT_BYTES_LIMIT
from forebay.log.segment import BatchToAppend

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PREFIX = struct.Struct("<qiBq").pack
_PREFIX_V2 = struct.Struct("<qiBqi").pack


class AppendInfo(NamedTuple):
    """The answer to an append: the offsets that its records have, and their commit timestamp.

    `duplicate` says that nothing was appended, because the request repeats a batch, which the other fields describe.
    """

    base_offset: int
    last_offset: int
    commit_timestamp_ms: int
    duplicate: bool

    @property
    def next_offset(self) -> int:
        """The end of the log after the appended records."""
        return self.last_offset + 1


def parse_request(records: Buffer, batch_bytes_max: int) -> list[LogBatchHeader]:
    """The headers of the batches in `records`, which must be one or more whole batches with right checksums.

    Raises `CorruptData`, and `InvalidRequest` with RECORD_TOO_LARGE_EXCEPTION for a batch above `batch_bytes_max`.
    """
    headers = []
    for position, header in iter_headers(records):
        if header.size_bytes > batch_bytes_max:
            raise InvalidRequest(
                f"a log batch of {header.size_bytes} bytes is larger than the limit of {batch_bytes_max}: "
                "send smaller batches",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        verify_crc(records, position, header)
        headers.append(header)
    if not headers:
        raise CorruptData("a request to append holds no log batch", ErrorCode.CORRUPT_RECORD_EXCEPTION)
    if len(headers) > 1 and memoryview(records).nbytes > SEGMENT_BYTES_LIMIT:
        raise InvalidRequest(
            f"a request to append holds {memoryview(records).nbytes} bytes, more than a segment can",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )
    return headers


def stamped(
    records: memoryview, headers: list[LogBatchHeader], base_offset: int, timestamp_ms: int, leader_epoch: int
) -> tuple[list[Buffer], list[BatchToAppend], int]:
    """Return buffers that together are `records` with offsets from `base_offset` on, each batch's position, and the
    next offset.

    Only the part of each header before the checksum is rewritten; the checksum does not cover it.
    """
    buffers: list[Buffer] = []
    batches = []
    position = 0
    for header in headers:
        size = header.size_bytes
        if header.magic == MAGIC_V2:
            buffers.append(_PREFIX_V2(base_offset, header.length, header.magic, timestamp_ms, leader_epoch))
        else:
            buffers.append(_PREFIX(base_offset, header.length, header.magic, timestamp_ms))
        buffers.append(records[position + CRC_OFFSETS[header.magic] : position + size])
        batches.append(BatchToAppend(base_offset, position))
        position += size
        base_offset += header.last_offset_delta + 1
    return buffers, batches, base_offset
