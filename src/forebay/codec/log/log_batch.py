"""Whole log batches: built from Arrow data or encoded rows, and read back.

Nouns: a *batch* is header, statistics (optional), body. The body of an ARROW batch is the *change types* (one byte a
record; absent when the header says that all are appends) and one Arrow message; that of an INDEXED or COMPACTED batch
is one record after the other, each with its change type and an encoded row. An *empty batch* is a header alone, and
still takes one offset.

Flow of a write: `build_arrow_batch` -> (server) `parse_header`, `verify_crc`, `validate_arrow_body`, `stamp`.
Flow of a read: `iter_headers` -> `decode_arrow_batch` with the schema that the batch was written with ->
`align_batch` to the schema that the reader wants.

Rule: the bytes come from a stranger. Reading raises `CorruptData` or gives what the bytes say, nothing else.

Format: docs/format/log_batch.md. Prior art: Apache Fluss's MemoryLogRecords builders and DefaultLogRecordBatch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.codec.arrow.arrow_message import DECODED_BYTES_MAX, columns_of, encode_message, message_codec
from forebay.codec.crc import crc32c
from forebay.codec.log import _log_records
from forebay.codec.log.statistics import encode_statistics
from forebay.metadata.table import Column, Schema

if TYPE_CHECKING:
    from typing_extensions import Buffer


# The header of a log record batch, in the three versions ("magic") that Fluss defines.
#
# Nouns: a *batch* is the unit of the log, one checksummed append; its *header* has a fixed size per magic;
# *statistics* (magic 1 and 2, optional) follow the header and the *body* (records) follows those. All integers are
# little-endian.
#
#     magic 0: base offset 8, length 4, magic 1, commit timestamp 8,                 CRC 4, schema id 2, ...
#     magic 2: base offset 8, length 4, magic 1, commit timestamp 8, leader epoch 4, CRC 4, schema id 2, ...
#     then all: attributes 1, last offset delta 4, writer id 8, batch sequence 4, record count 4
#     magic 1 and 2: statistics length 4
#
# Rules: `length` counts the bytes after itself. The CRC-32C covers schema id to the end of the batch, so that the
# server may set base offset, commit timestamp and leader epoch (`stamp`) without recomputing it. A batch of n > 0
# records has last offset delta n - 1; an empty batch has delta 0 and still takes one offset, because a changelog
# without changes must remember its writer's sequence. Everything here treats its input as hostile: it raises
# `CorruptData` and reads nothing outside the buffer.
#
# Format: Apache Fluss 1.x, itself a descendant of the Kafka record batch.

MAGIC_V0 = 0
MAGIC_V1 = 1
"""V0 plus statistics."""
MAGIC_V2 = 2
"""V1 plus the leader epoch."""

NO_WRITER_ID = -1
NO_BATCH_SEQUENCE = -1
NO_LEADER_EPOCH = -1
BATCH_SEQUENCE_MAX = 2**31 - 1
"""The sequence after which a writer begins again at 0."""

BASE_OFFSET_OFFSET = 0
LENGTH_OFFSET = 8
MAGIC_OFFSET = 12
COMMIT_TIMESTAMP_OFFSET = 13
LEADER_EPOCH_OFFSET = 21
"""Magic 2 only; earlier versions have the CRC here."""

LENGTH_OVERHEAD = 12
"""Bytes up to and with the length field: a batch is `length` plus this long."""
MAGIC_END = MAGIC_OFFSET + 1

APPEND_ONLY_FLAG = 0x01
"""Attribute bit: every record is an append, and an Arrow body has no change-type vector."""

_STRUCTS = (struct.Struct("<qiBqIhBiqii"), struct.Struct("<qiBqIhBiqiii"), struct.Struct("<qiBqiIhBiqiii"))
HEADER_SIZES = tuple(layout.size for layout in _STRUCTS)
"""Bytes of the fixed header, by magic, without statistics: 48, 52, 56."""
HEADER_SIZE_MIN = min(HEADER_SIZES)
HEADER_SIZE_MAX = max(HEADER_SIZES)
CRC_OFFSETS = (21, 21, 25)
SCHEMA_ID_OFFSETS = (25, 25, 29)
"""Where the checksummed part begins, by magic."""

_WRITER_AFTER_SCHEMA_ID = 7
"""Where writer id and sequence are, counted from the schema id."""

_UNPACK = tuple(layout.unpack_from for layout in _STRUCTS)
_PACK_CRC = struct.Struct("<I").pack_into
_PACK_INT64 = struct.Struct("<q").pack_into
_PACK_INT32 = struct.Struct("<i").pack_into


class LogBatchHeader(NamedTuple):
    """The fields of a batch header, in the order of magic 2.

    `leader_epoch` is -1 before magic 2 and `statistics_length` 0 before magic 1. Positions (`statistics_start`,
    `body_start`) count from the beginning of the batch.
    """

    base_offset: int
    length: int
    magic: int
    commit_timestamp_ms: int
    leader_epoch: int
    crc: int
    schema_id: int
    attributes: int
    last_offset_delta: int
    writer_id: int
    batch_sequence: int
    record_count: int
    statistics_length: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def append_only(self) -> bool:
        """Whether every record is an append (+A)."""
        return self.attributes & APPEND_ONLY_FLAG != 0

    @property
    def has_writer_id(self) -> bool:
        """Whether the writer is idempotent, so that sequence rules apply."""
        return self.writer_id != NO_WRITER_ID

    @property
    def statistics_start(self) -> int:
        """The position of the statistics in the batch."""
        return HEADER_SIZES[self.magic]

    @property
    def body_start(self) -> int:
        """The position of the records in the batch."""
        return HEADER_SIZES[self.magic] + self.statistics_length


def parse_header(buffer: Buffer, position: int = 0, available: int | None = None) -> LogBatchHeader:
    """The header of the batch that begins at `position` of `buffer`.

    `available` says how many bytes the batch may take (None: all that `buffer` holds from `position` on). It may be
    larger than the buffer, when only the head of a batch was read. Raises `CorruptData` for a batch that does not fit
    into `available`, and for values that no correct writer can have made. Does not check the CRC: see `verify_crc`.
    """
    view = memoryview(buffer)
    held = view.nbytes - position
    if available is None:
        available = held
    if position < 0 or held < MAGIC_END:
        raise _corrupt(position, f"only {max(held, 0)} bytes, fewer than the {MAGIC_END} up to the magic byte")
    magic = view[position + MAGIC_OFFSET]
    if magic > MAGIC_V2:
        raise _corrupt(position, f"unknown magic {magic} (0, 1 and 2 exist)")
    header_size = HEADER_SIZES[magic]
    if held < header_size:
        raise _corrupt(position, f"only {held} bytes, fewer than the header of {header_size}")
    fields = _UNPACK[magic](view, position)
    if magic == MAGIC_V2:
        header = LogBatchHeader._make(fields)
    elif magic == MAGIC_V1:
        header = LogBatchHeader._make((*fields[:4], NO_LEADER_EPOCH, *fields[4:]))
    else:
        header = LogBatchHeader._make((*fields[:4], NO_LEADER_EPOCH, *fields[4:], 0))
    _check_values(header, header_size, position, available)
    return header


def iter_headers(
    buffer: Buffer, position: int = 0, *, allow_truncated: bool = False
) -> Iterator[tuple[int, LogBatchHeader]]:
    """Yield (position, header) of each of the batches that lie one after the other from `position` to the end.

    With `allow_truncated` a last batch that the end of the buffer cuts off is left out, as in an answer to a fetch;
    otherwise it raises `CorruptData`, as any impossible header does.
    """
    view = memoryview(buffer)
    end = view.nbytes
    while position < end:
        if allow_truncated and _is_truncated(view, position, end):
            return
        header = parse_header(view, position)
        yield position, header
        position += header.length + LENGTH_OVERHEAD


def stamp(
    buffer: bytearray | memoryview,
    position: int,
    base_offset: int,
    commit_timestamp_ms: int,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> None:
    """Set, in place, what the server decides about the batch at `position`. The CRC stays right.

    `leader_epoch` is written for magic 2 only; earlier versions have no room for it.
    """
    _PACK_INT64(buffer, position, base_offset)
    _PACK_INT64(buffer, position + COMMIT_TIMESTAMP_OFFSET, commit_timestamp_ms)
    if buffer[position + MAGIC_OFFSET] == MAGIC_V2:
        _PACK_INT32(buffer, position + LEADER_EPOCH_OFFSET, leader_epoch)


def compute_crc(buffer: Buffer, position: int, header: LogBatchHeader) -> int:
    """The CRC-32C of the batch at `position`, computed from its bytes."""
    return crc32c(buffer, position + SCHEMA_ID_OFFSETS[header.magic], position + header.length + LENGTH_OVERHEAD)


def verify_crc(buffer: Buffer, position: int, header: LogBatchHeader) -> None:
    """Raise `CorruptData` unless the batch at `position` has the checksum that its header says.

    The whole batch must lie in `buffer`.
    """
    computed = compute_crc(buffer, position, header)
    if computed != header.crc:
        raise _corrupt(position, f"stored CRC {header.crc:#010x}, computed {computed:#010x}")


def pack_header(header: LogBatchHeader) -> bytes:
    """The bytes of `header`: what `parse_header` reads back. The CRC is the header's own: see `seal`."""
    if not 0 <= header.magic <= MAGIC_V2:
        raise InvalidRequest(f"log batches of magic {header.magic} do not exist (0, 1 and 2 do)")
    fields = tuple(header)
    if header.magic == MAGIC_V1:
        fields = fields[:4] + fields[5:]
    elif header.magic == MAGIC_V0:
        fields = fields[:4] + fields[5:12]
    return _STRUCTS[header.magic].pack(*fields)


def seal(buffer: bytearray | memoryview, position: int = 0) -> int:
    """Compute the CRC of the complete batch at `position`, write it into its header, and return it."""
    header = parse_header(buffer, position)
    crc = compute_crc(buffer, position, header)
    _PACK_CRC(buffer, position + CRC_OFFSETS[header.magic], crc)
    return crc


def seal_as(batch: bytearray, writer_id: int, sequence: int) -> None:
    """Set writer id and sequence of a single batch, and compute its checksum."""
    struct.pack_into(
        "<qi", batch, SCHEMA_ID_OFFSETS[batch[MAGIC_OFFSET]] + _WRITER_AFTER_SCHEMA_ID, writer_id, sequence
    )
    seal(batch)


def _is_truncated(view: memoryview, position: int, end: int) -> bool:
    """Whether the end of the buffer cuts off the batch at `position`, as far as its length field can tell."""
    if end - position < LENGTH_OVERHEAD:
        return True
    length = int.from_bytes(view[position + LENGTH_OFFSET : position + LENGTH_OVERHEAD], "little", signed=True)
    return length > end - position - LENGTH_OVERHEAD


def _check_values(header: LogBatchHeader, header_size: int, position: int, available: int) -> None:
    """Raise `CorruptData` for values that contradict each other or the room that the batch has."""
    (_, length, _, _, _, _, _, _, last_offset_delta, writer_id, batch_sequence, record_count, statistics_length) = (
        header
    )
    size_bytes = length + LENGTH_OVERHEAD
    if size_bytes < header_size:
        raise _corrupt(position, f"a batch of {size_bytes} bytes, fewer than its header of {header_size}")
    if size_bytes > available:
        raise _corrupt(position, f"a batch of {size_bytes} bytes where only {available} remain")
    if last_offset_delta != (record_count - 1 if record_count else 0) or record_count < 0:
        raise _corrupt(position, f"{record_count} records with a last offset delta of {last_offset_delta}")
    if statistics_length and not 0 < statistics_length <= size_bytes - header_size:
        raise _corrupt(position, f"{statistics_length} bytes of statistics in a batch of {size_bytes} bytes")
    if writer_id < NO_WRITER_ID or batch_sequence < NO_BATCH_SEQUENCE:
        raise _corrupt(position, f"writer id {writer_id} with batch sequence {batch_sequence}")


def _corrupt(position: int, what: str) -> CorruptData:
    return CorruptData(f"log batch at byte {position}: {what}", ErrorCode.CORRUPT_RECORD_EXCEPTION)


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
