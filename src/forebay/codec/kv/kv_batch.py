"""The batch of keys and rows with which a client puts and deletes (docs/format/kv_batch.md).

Header, little-endian: length i32 (of what follows it), magic i8 = 0, CRC-32C u32 (from the schema id on), schema id
i16, attributes i8 = 0, writer id i64, batch sequence i32, record count i32. Then the records: length i32, key length
varint, key, row (nothing: delete).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from forebay.base.errors import CorruptData, ErrorCode
from forebay.codec.crc import crc32c
from forebay.codec.kv._records import kv_record_sizes, parse_kv_records, write_kv_records
from forebay.codec.rows._slices import RowSlices

_HEADER = struct.Struct("<ibIhbqii")
HEADER_BYTES = _HEADER.size
_CRC_START = 9

NO_WRITER_ID = -1
NO_SEQUENCE = -1


class KvBatch(NamedTuple):
    """A parsed KV record batch: keys, and the rows as slices of the request's buffer (null: delete)."""

    schema_id: int
    writer_id: int
    sequence: int
    keys: list[bytes]
    rows: RowSlices


class KvHeader(NamedTuple):
    """The header of a KV record batch, without what only proves it; its records begin at `HEADER_BYTES`."""

    schema_id: int
    writer_id: int
    sequence: int
    record_count: int


def record_count_of_kv(first: bytes) -> int:
    """The number of records of a checked batch, of which `first` are the first bytes."""
    return int(_HEADER.unpack_from(first)[-1])


def kv_batch_header(data: bytes | memoryview, *, has_checksum: bool = True) -> KvHeader:
    """The header of the one batch that fills `data`. Raises `CorruptData` (code CORRUPT_RECORD) if it is not whole.

    `has_checksum`: False for a batch that was numbered and not sealed.
    """
    if len(data) < HEADER_BYTES:
        raise _corrupt(f"{len(data)} bytes are less than a header of {HEADER_BYTES}")
    length, magic, crc, schema_id, _attributes, writer_id, sequence, count = _HEADER.unpack_from(data)
    if length != len(data) - 4:
        raise _corrupt(f"its header says {length} bytes, but {len(data) - 4} follow")
    if magic != 0:
        raise _corrupt(f"magic byte {magic} is unknown")
    if has_checksum and (actual := crc32c(data, _CRC_START, len(data))) != crc:
        raise _corrupt(f"its checksum is {actual:08x}, its header says {crc:08x}")
    return KvHeader(schema_id, writer_id, sequence, count)


def parse_kv_batch(data: bytes | memoryview, header: KvHeader | None = None) -> KvBatch:
    """Parse the one batch that fills `data`. Raises `CorruptData` (code CORRUPT_RECORD) for anything else.

    `header`: what `kv_batch_header` has returned for it, if it was asked.
    """
    header = header or kv_batch_header(data)
    keys, rows = parse_kv_records(data, HEADER_BYTES, header.record_count)
    return KvBatch(header.schema_id, header.writer_id, header.sequence, keys, rows)


class KvRecordsBuilder:
    """Builds batches of bounded size from (keys, rows) arrays; writer id and sequence are set when sent."""

    def __init__(self, keys: pa.BinaryArray, rows: pa.BinaryArray, schema_id: int) -> None:
        """`rows` may hold nulls, which delete their keys. Both arrays have the same length."""
        self._keys = keys.__arrow_c_array__()[1]
        self._rows = rows.__arrow_c_array__()[1]
        self._schema_id = schema_id
        self._ends = np.cumsum(kv_record_sizes(self._keys, self._rows))

    def batches(self, bytes_max: int) -> Iterator[tuple[bytearray, int]]:
        """Unsealed batches of at most `bytes_max` bytes (but at least one record each), with their record counts."""
        first = 0
        count = len(self._ends)
        while first < count:
            start = int(self._ends[first - 1]) if first else 0
            limit = start + bytes_max - HEADER_BYTES
            last = max(int(np.searchsorted(self._ends, limit, side="right")), first + 1)
            yield self._build(first, last, int(self._ends[last - 1]) - start), last - first
            first = last

    def _build(self, first: int, last: int, body_bytes: int) -> bytearray:
        batch = bytearray(HEADER_BYTES + body_bytes)
        _HEADER.pack_into(batch, 0, len(batch) - 4, 0, 0, self._schema_id, 0, NO_WRITER_ID, NO_SEQUENCE, last - first)
        write_kv_records(self._keys, self._rows, first, last, batch, HEADER_BYTES)
        return batch


def number_kv_batch(batch: bytearray, writer_id: int, sequence: int) -> None:
    """Set writer id and sequence of a batch, whose checksum is wrong then."""
    struct.pack_into("<qi", batch, 12, writer_id, sequence)


def seal_kv_batch(batch: bytearray, writer_id: int, sequence: int) -> None:
    """Set writer id and sequence of a batch and compute its checksum."""
    number_kv_batch(batch, writer_id, sequence)
    struct.pack_into("<I", batch, 5, crc32c(batch, _CRC_START, len(batch)))


def encode_kv_batch(
    keys: pa.BinaryArray,
    rows: pa.BinaryArray,
    schema_id: int,
    writer_id: int = NO_WRITER_ID,
    sequence: int = NO_SEQUENCE,
) -> bytes:
    """One sealed batch of all records."""
    batch = bytearray(HEADER_BYTES)
    for built, _count in KvRecordsBuilder(keys, rows, schema_id).batches(1 << 31):
        batch = built
    if len(keys) == 0:
        _HEADER.pack_into(batch, 0, HEADER_BYTES - 4, 0, 0, schema_id, 0, NO_WRITER_ID, NO_SEQUENCE, 0)
    seal_kv_batch(batch, writer_id, sequence)
    return bytes(batch)


def halves_of_kv_batch(batch: bytes | memoryview) -> tuple[bytes, bytes] | None:
    """Two batches with the records of one, in their order; None for a single record.

    The first has no writer: with the second, the writer's batch is complete.
    """
    schema_id, writer_id, sequence, keys, rows = parse_kv_batch(batch, kv_batch_header(batch, has_checksum=False))
    middle = len(keys) // 2
    if not middle:
        return None
    key_array, row_array = RowSlices.from_values(keys).to_arrow(), rows.to_arrow()  # `pa.array` would import pandas
    return (
        encode_kv_batch(key_array.slice(0, middle), row_array.slice(0, middle), schema_id),
        encode_kv_batch(key_array.slice(middle), row_array.slice(middle), schema_id, writer_id, sequence),
    )


def _corrupt(reason: str) -> CorruptData:
    return CorruptData(f"the KV record batch is malformed: {reason}", ErrorCode.CORRUPT_RECORD_EXCEPTION)
