"""Hand-made record batches, so that they can be made wrong (reference, parts 2.1, 2.2 and 2.5).

Only what the script needs: Arrow log batches of format 0, key-value batches of compacted rows with an INT key and a
STRING column, and the header fields of batches that a server returned.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import google_crc32c
import pyarrow as pa

_LOG_HEADER = struct.Struct("<qibqIhbiqii")
_KV_HEADER = struct.Struct("<ibIhbqii")
LOG_SCHEMA = pa.schema([pa.field("id", pa.int32()), pa.field("name", pa.string())])


class LogHeader(NamedTuple):
    """The fields of a log batch header, format 0."""

    base_offset: int
    length: int
    magic: int
    timestamp: int
    crc: int
    schema_id: int
    attributes: int
    last_offset_delta: int
    writer_id: int
    sequence: int
    records: int


def log_batch(
    rows: Sequence[tuple[Any, ...]],
    *,
    schema: pa.Schema = LOG_SCHEMA,
    schema_id: int = 1,
    writer_id: int = -1,
    sequence: int = -1,
    magic: int = 0,
    crc_change: int = 0,
    records: int | None = None,
) -> bytes:
    """An append-only Arrow log batch; the keyword arguments make it wrong."""
    body = b""
    if rows:
        arrays = [pa.array(values, field.type) for values, field in zip(zip(*rows), schema)]
        body = pa.RecordBatch.from_arrays(arrays, schema=schema).serialize().to_pybytes()
    count = len(rows) if records is None else records
    tail = struct.pack("<hbiqii", schema_id, 1, max(count - 1, 0), writer_id, sequence, count) + body
    crc = (google_crc32c.value(tail) + crc_change) & 0xFFFFFFFF
    return struct.pack("<qibqI", 0, 1 + 8 + 4 + len(tail), magic, 0, crc) + tail


def log_headers(data: bytes) -> list[LogHeader]:
    """The headers of the whole batches in a fetch answer."""
    headers = []
    at = 0
    while at + _LOG_HEADER.size <= len(data):
        header = LogHeader(*_LOG_HEADER.unpack_from(data, at))
        at += 12 + header.length
        if at > len(data):
            break
        headers.append(header)
    return headers


def crc_is_right(data: bytes) -> bool:
    """Whether the checksum of the first batch (format 0) covers what it should."""
    header = log_headers(data)[0]
    return bool(header.crc == google_crc32c.value(data[25 : 12 + header.length]))


def varint(value: int) -> bytes:
    """An INT as compacted rows and keys write it: unsigned LEB128 of the 32-bit two's complement."""
    value &= 0xFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def key(number: int) -> bytes:
    """The encoded key of an INT primary key."""
    return varint(number)


def row(number: int, text: str | None) -> bytes:
    """A compacted row of (INT not null, STRING)."""
    encoded = b"" if text is None else varint(len(text.encode())) + text.encode()
    return bytes([2 if text is None else 0]) + varint(number) + encoded


def kv_batch(
    records: Sequence[tuple[bytes, bytes | None]],
    *,
    schema_id: int = 1,
    writer_id: int = -1,
    sequence: int = -1,
    magic: int = 0,
    crc_change: int = 0,
    count: int | None = None,
) -> bytes:
    """A key-value batch of (key, row or None for a delete)."""
    body = b""
    for record_key, record_row in records:
        record = varint(len(record_key)) + record_key + (record_row or b"")
        body += struct.pack("<i", len(record)) + record
    header = struct.pack("<hbqii", schema_id, 0, writer_id, sequence, len(records) if count is None else count)
    crc = (google_crc32c.value(header + body) + crc_change) & 0xFFFFFFFF
    return struct.pack("<ibI", 1 + 4 + len(header) + len(body), magic, crc) + header + body


def values_of(data: bytes) -> list[bytes]:
    """The values (schema id and row) of a value batch, as LimitScan and ScanKv answer them."""
    _, _, count = struct.unpack_from("<ibi", data, 0)
    at, values = 9, []
    for _ in range(count):
        (length,) = struct.unpack_from("<i", data, at)
        values.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return values
