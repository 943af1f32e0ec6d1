"""Whole log batches: built from Arrow data or encoded rows, and read back.

Nouns: a *batch* is header, statistics (optional), body. The body of an ARROW batch is the *change types* (one byte a
record; absent when the header says that all are appends) and one Arrow message; that of an INDEXED or COMPACTED batch
is one record after the other, each with its change type and an encoded row. An *empty batch* is a header alone, and
still takes one offset.

Flow of a write: `build_arrow_batch` -> (server) `iter_headers`, `validate_arrow_body`, `verify_crc`, and new first
bytes of the header, which `forebay.log.tablet.stamped` writes.
Flow of a read: `iter_headers` -> `decode_arrow_batch` with the schema that the batch was written with ->
`align_batch` to the schema that the reader wants.

Rule: the bytes come from a stranger. Reading raises `CorruptData` or gives what the bytes say, nothing else.

Format: docs/format/log_batch.md. Prior art: Apache Fluss's MemoryLogRecords builders and DefaultLogRecordBatch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.codec.arrow.arrow_message import DECODED_BYTES_MAX, columns_of, encode_message, message_codec
from forebay.codec.crc import crc32c
from forebay.codec.log import _log_records
from forebay.codec.log.header import (
    APPEND_ONLY_FLAG,
    CRC_OFFSETS,
    LENGTH_OFFSET,
    LENGTH_OVERHEAD,
    MAGIC_V0,
    MAGIC_V1,
    NO_BATCH_SEQUENCE,
    NO_LEADER_EPOCH,
    NO_WRITER_ID,
    SCHEMA_ID_OFFSETS,
    LogBatchHeader,
    pack_header,
)
from forebay.codec.log.statistics import encode_statistics
from forebay.metadata.table import Column, Schema

if TYPE_CHECKING:
    from typing_extensions import Buffer

SCHEMA_ID_MAX = 2**15 - 1

_PACK_INT32 = struct.Struct("<i").pack_into
_PACK_UINT32 = struct.Struct("<I").pack_into


class ChangeType(IntEnum):
    """The change type of a log record; the numbers are those of the format."""

    APPEND_ONLY = 0
    INSERT = 1
    UPDATE_BEFORE = 2
    UPDATE_AFTER = 3
    DELETE = 4


# ---- building -------------------------------------------------------------------------------------------------------


class Rows(Protocol):
    """Rows of all columns of a schema: a `pa.RecordBatch`, or what exports one."""

    @property
    def num_rows(self) -> int: ...

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]: ...


def build_arrow_batch(
    record_batch: Rows,
    *,
    schema_id: int,
    change_types: Buffer | None = None,
    writer_id: int = NO_WRITER_ID,
    batch_sequence: int = NO_BATCH_SEQUENCE,
    compression: str = "none",
    level: int | None = None,
    statistics_columns: Sequence[int] | None = None,
) -> bytearray:
    """A complete batch with the rows of `record_batch`, base offset 0, timestamp 0 and the right CRC.

    `change_types` holds one byte (`ChangeType`) a row; None makes an append-only batch. `compression` is 'none',
    'lz4' or 'zstd' (`level` 1 to 22, default 1). `statistics_columns` are positions whose statistics are stored; None
    makes a batch of magic 0, anything else one of magic 1. No rows make an empty batch.
    Raises `InvalidRequest` for types that log batches do not hold, nulls in non-nullable columns, and over 2 GiB.
    """
    rows = record_batch.num_rows
    types = None if change_types is None else _checked_change_types(change_types, rows)
    magic = MAGIC_V0 if statistics_columns is None else MAGIC_V1
    if rows == 0:
        return build_empty_batch(
            schema_id=schema_id,
            append_only=types is None,
            writer_id=writer_id,
            batch_sequence=batch_sequence,
            magic=magic,
        )
    statistics = encode_statistics(record_batch, statistics_columns) if statistics_columns else b""
    header = _header(magic, schema_id, types is None, writer_id, batch_sequence, rows, len(statistics))
    prefix = pack_header(header) + statistics + (types or b"")
    return _finish(encode_message(record_batch, prefix, compression, level), magic)


def build_row_batch(
    rows: pa.BinaryArray,
    *,
    schema_id: int,
    change_types: Buffer | None = None,
    writer_id: int = NO_WRITER_ID,
    batch_sequence: int = NO_BATCH_SEQUENCE,
) -> bytearray:
    """A complete batch of encoded rows (INDEXED or COMPACTED, as the table's log format says), of magic 0.

    `change_types` and the result are as in `build_arrow_batch`. Raises `InvalidRequest` for null rows.
    """
    types = None if change_types is None else _checked_change_types(change_types, len(rows))
    if len(rows) == 0:
        return build_empty_batch(
            schema_id=schema_id, append_only=types is None, writer_id=writer_id, batch_sequence=batch_sequence
        )
    header = _header(MAGIC_V0, schema_id, types is None, writer_id, batch_sequence, len(rows), 0)
    return _finish(_log_records.join_records(pack_header(header), rows, types), MAGIC_V0)


def build_empty_batch(
    *,
    schema_id: int,
    append_only: bool = False,
    writer_id: int = NO_WRITER_ID,
    batch_sequence: int = NO_BATCH_SEQUENCE,
    magic: int = MAGIC_V0,
) -> bytearray:
    """A batch without records, which takes one offset: it remembers a writer's sequence when nothing changed."""
    header = _header(magic, schema_id, append_only, writer_id, batch_sequence, 0, 0)
    return _finish(bytearray(pack_header(header)), magic)


_CHANGE_TYPES = bytes(ChangeType)


def _checked_change_types(change_types: Buffer, rows: int) -> bytes:
    types = bytes(change_types)
    if len(types) != rows:
        raise InvalidRequest(f"{len(types)} change types for {rows} rows")
    if types.translate(None, _CHANGE_TYPES):
        raise InvalidRequest(f"change type {max(types)} does not exist; 0 to 4 do")
    return types


def _header(
    magic: int, schema_id: int, append_only: bool, writer_id: int, batch_sequence: int, rows: int, statistics: int
) -> LogBatchHeader:
    if not 0 <= schema_id <= SCHEMA_ID_MAX:
        raise InvalidRequest(f"schema id {schema_id} does not fit into a log batch (0 to {SCHEMA_ID_MAX})")
    return LogBatchHeader(
        base_offset=0,
        length=0,
        magic=magic,
        commit_timestamp_ms=0,
        leader_epoch=NO_LEADER_EPOCH,
        crc=0,
        schema_id=schema_id,
        attributes=APPEND_ONLY_FLAG if append_only else 0,
        last_offset_delta=max(rows - 1, 0),
        writer_id=writer_id,
        batch_sequence=batch_sequence,
        record_count=rows,
        statistics_length=statistics,
    )


def _finish(batch: bytearray, magic: int) -> bytearray:
    """Set length and CRC of a batch that is otherwise complete."""
    _PACK_INT32(batch, LENGTH_OFFSET, len(batch) - LENGTH_OVERHEAD)
    _PACK_UINT32(batch, CRC_OFFSETS[magic], crc32c(batch, SCHEMA_ID_OFFSETS[magic]))
    return batch


# ---- reading --------------------------------------------------------------------------------------------------------


def _body(position: int, header: LogBatchHeader) -> tuple[int, int]:
    """The start and end of the body of the batch at `position`."""
    return position + header.body_start, position + header.length + LENGTH_OVERHEAD


def _is_empty(start: int, end: int, header: LogBatchHeader) -> bool:
    return header.record_count == 0 and start == end


def _message_start(start: int, end: int, header: LogBatchHeader) -> int:
    """The start of the Arrow message, after the change types."""
    if header.append_only:
        return start
    if header.record_count > end - start:
        raise CorruptData(
            f"a log batch claims {header.record_count} change types in a body of {end - start} bytes",
            ErrorCode.CORRUPT_RECORD_EXCEPTION,
        )
    return start + header.record_count


def decode_arrow_batch(
    buffer: Buffer,
    position: int,
    header: LogBatchHeader,
    schema: Schema | Sequence[Column],
    *,
    decoded_bytes_max: int = DECODED_BYTES_MAX,
) -> pa.RecordBatch:
    """The rows of the ARROW batch at `position` of `buffer`, whose header is `header`.

    `schema` is the one that the batch was written with, or the columns that a projection left. The result has the
    storage schema (TIMESTAMP_LTZ without zone) and shares memory with `buffer` where it can; `buffer` must then not
    change. Raises `CorruptData` for anything that is not such a batch.
    """
    codec = message_codec(schema)
    start, end = _body(position, header)
    if _is_empty(start, end, header):
        return pa.RecordBatch.from_pylist([], schema=codec.schema)
    start = _message_start(start, end, header)
    return codec.decode(buffer, start, end, header.record_count, decoded_bytes_max)


def change_types(buffer: Buffer, position: int, header: LogBatchHeader) -> pa.UInt8Array | None:
    """The change types of the ARROW batch at `position`, sharing memory with `buffer`; None: all are appends.

    Raises `CorruptData` when there are too few, or one does not exist.
    """
    if header.append_only:
        return None
    start, end = _body(position, header)
    if not _is_empty(start, end, header):
        _message_start(start, end, header)
        _log_records.check_change_types(buffer, start, header.record_count)
    values = pa.py_buffer(buffer).slice(start, header.record_count)
    return pa.Array.from_buffers(pa.uint8(), header.record_count, [None, values], 0)


def decode_row_batch(buffer: Buffer, position: int, header: LogBatchHeader) -> tuple[pa.BinaryArray, pa.UInt8Array]:
    """(encoded rows, change types) of the INDEXED or COMPACTED batch at `position`; both are copies.

    Raises `CorruptData` unless its records fill the body exactly.
    """
    start, end = _body(position, header)
    return _log_records.split_records(buffer, start, end, header.record_count)


def validate_arrow_body(
    buffer: Buffer,
    position: int,
    header: LogBatchHeader,
    schema: Schema | Sequence[Column],
    *,
    decoded_bytes_max: int = DECODED_BYTES_MAX,
) -> None:
    """Check a client's ARROW batch before it is appended (besides header and CRC).

    Change types exist; the message has the rows that the header says and the nodes and buffers that `schema` says;
    NOT NULL columns have no nulls; buffers lie inside the body and are large enough; without compression also that
    validity bits agree with the null counts and offsets stay inside the values. Compressed buffers are not opened.
    Raises `CorruptData`.
    """
    start, end = _body(position, header)
    if _is_empty(start, end, header):
        return
    message_start = _message_start(start, end, header)
    if message_start > start:
        _log_records.check_change_types(buffer, start, header.record_count)
    message_codec(schema).check(buffer, message_start, end, header.record_count, decoded_bytes_max)


# ---- schema evolution -----------------------------------------------------------------------------------------------


def align_batch(
    batch: pa.RecordBatch, source: Schema | Sequence[Column], target: Schema | Sequence[Column]
) -> pa.RecordBatch:
    """`batch`, which has the columns of `source`, with the columns of `target`: matched by column id.

    A column that `source` lacks becomes null; one that `target` lacks is left out; names and order are the target's.
    Copies nothing but nulls. Raises `UnsupportedOperation` when a column changed its type.
    """
    from_columns, to_columns = columns_of(source), columns_of(target)
    if from_columns is to_columns or from_columns == to_columns:
        return batch
    by_id = {column.column_id: position for position, column in enumerate(from_columns)}
    schema = message_codec(to_columns).schema
    arrays = []
    for column, field in zip(to_columns, schema, strict=True):
        position = by_id.get(column.column_id)
        if position is None:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        array = batch.column(position)
        if not array.type.equals(field.type):
            raise UnsupportedOperation(
                f"column '{column.name}' changed from {from_columns[position].data_type} to {column.data_type}; rows "
                "written before cannot be read with the new schema"
            )
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
