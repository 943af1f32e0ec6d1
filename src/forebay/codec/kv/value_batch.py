"""Value batches and stored values: how rows travel in the answers of ScanKv, LimitScan and lookups.

`ArrowRows` makes record batch messages of stored rows, for answers in Arrow.

A value is `schema id i16 | row`. A value batch is `length i32 | magic i8 = 0 | record count i32 | records`, each record
`length i32 | value`. Our key-value state stores values *with* that length, so that the records of a scan page are
plain concatenation (docs/format/value_batch.md).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest
from forebay.codec.arrow._arrow_encode import encode_message
from forebay.codec.arrow.arrow_message import compressor
from forebay.codec.filters import BoundPredicate, filter_rows, leaves
from forebay.codec.kv._records import parse_value_records
from forebay.codec.rows._slices import RowSlices
from forebay.codec.rows.row_codec import row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.metadata.table import Column, Schema

_HEADER = struct.Struct("<ibi")
HEADER_BYTES = _HEADER.size
_SCHEMA_ID_BYTES = 2
STORED_PREFIX_BYTES = 6
"""Bytes before the row in a stored value: its length (i32) and schema id (i16)."""

LENGTH_PREFIX_BYTES = 4
"""Bytes before the value, as lookups return it, in a stored value."""

SchemaById = Callable[[int], Schema]


def stored_value(schema_id: int, row: bytes) -> bytes:
    """`length | schema id | row`."""
    return struct.pack("<ih", len(row) + 2, schema_id) + row


def stored_schema_id(stored: bytes) -> int:
    """The schema id of a stored value."""
    schema_id: int = struct.unpack_from("<h", stored, LENGTH_PREFIX_BYTES)[0]
    return schema_id


def encode_value_batch(stored_values: Sequence[bytes | bytearray | memoryview]) -> bytes:
    """A value batch of stored values (which carry their length already)."""
    size = sum(map(len, stored_values)) + HEADER_BYTES - 4
    return b"".join([_HEADER.pack(size, 0, len(stored_values)), *stored_values])


EMPTY_VALUE_BATCH = encode_value_batch([])


def parse_value_batch(data: bytes | memoryview) -> tuple[npt.NDArray[np.int16], RowSlices]:
    """Schema ids and rows of a value batch. Raises `CorruptData` for anything else."""
    if len(data) < HEADER_BYTES:
        raise _corrupt(f"{len(data)} bytes are less than a header of {HEADER_BYTES}")
    length, magic, count = _HEADER.unpack_from(data)
    if length != len(data) - 4:
        raise _corrupt(f"its header says {length} bytes, but {len(data) - 4} follow")
    if magic != 0:
        raise _corrupt(f"magic byte {magic} is unknown")
    result: tuple[npt.NDArray[np.int16], RowSlices] = parse_value_records(data, HEADER_BYTES, count)
    return result


def parse_values(values: Sequence[bytes]) -> tuple[npt.NDArray[np.int16], RowSlices]:
    """Schema ids and rows of values as lookups return them (`schema id | row`)."""
    prefixes = b"".join([value[:_SCHEMA_ID_BYTES] for value in values])
    if len(prefixes) != _SCHEMA_ID_BYTES * len(values):
        raise _corrupt("a value is shorter than its schema id")
    return np.frombuffer(prefixes, "<i2"), RowSlices.from_values(list(values), _SCHEMA_ID_BYTES)


class ValueDecoder:
    """Decodes rows that may have been written under any version of a table's schema to one target schema.

    Columns are matched by id: one that the row's schema lacks is null, one that the target lacks is not decoded.
    """

    def __init__(self, target: Sequence[Column], row_format: RowFormat, schema_by_id: SchemaById) -> None:
        self._target = tuple(target)
        self._format = row_format
        self._schema_by_id = schema_by_id
        self._plans: dict[int, tuple[Any, list[int | None]]] = {}
        self.schema: pa.Schema = row_codec(self._target, row_format).schema

    def _plan(self, schema_id: int) -> tuple[Any, list[int | None]]:
        """The codec for one schema version, and the position of each target column in its output."""
        plan = self._plans.get(schema_id)
        if plan is None:
            columns = self._schema_by_id(schema_id).columns
            by_id = {column.column_id: position for position, column in enumerate(columns)}
            positions = [by_id.get(column.column_id) for column in self._target]
            source_positions = tuple(sorted({p for p in positions if p is not None}))
            places = {position: place for place, position in enumerate(source_positions)}
            codec = row_codec(
                columns, self._format, None if len(source_positions) == len(columns) else source_positions
            )
            plan = codec, [None if p is None else places[p] for p in positions]
            self._plans[schema_id] = plan
        return plan

    def decode(self, schema_ids: npt.NDArray[np.int16], rows: RowSlices) -> pa.RecordBatch:
        """The target columns of `rows`, in order. Raises `CorruptData` for malformed rows."""
        if not len(rows):
            return _empty(self.schema)
        if (schema_ids == schema_ids[0]).all():
            return self._decode_version(int(schema_ids[0]), rows)
        versions = np.unique(schema_ids)
        parts, positions = [], []
        for version in versions:
            where = np.flatnonzero(schema_ids == version)
            positions.append(where)
            parts.append(self._decode_version(int(version), rows.take(where)))
        order = np.argsort(np.concatenate(positions), kind="stable")
        return pa.concat_batches(parts).take(pa.array(order))

    def _decode_version(self, schema_id: int, rows: RowSlices) -> pa.RecordBatch:
        codec, places = self._plan(schema_id)
        decoded = codec.decode(rows)
        if places == list(range(decoded.num_columns)) and decoded.schema.equals(self.schema):
            return decoded
        columns = [
            pa.nulls(len(rows), field.type) if place is None else decoded.column(place)
            for place, field in zip(places, self.schema)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class ArrowRows:
    """Makes record batch messages of stored rows: some columns of a schema, without rows that a filter excludes."""

    def __init__(
        self,
        schema: Schema,
        positions: Sequence[int],
        row_format: RowFormat,
        schema_by_id: SchemaById,
        bound: BoundPredicate | None = None,
        compression: str = "none",
    ) -> None:
        """`positions` of the wanted columns ascend; without any, messages have rows and no columns.

        Raises `InvalidRequest` (INVALID_COLUMN_PROJECTION).
        """
        count = len(schema.columns)
        if list(positions) != sorted(set(positions)) or not all(0 <= position < count for position in positions):
            position_text = f"{list(positions[:20])}{' ...' if len(positions) > 20 else ''}"
            raise InvalidRequest(
                f"{position_text} are no ascending positions of {count} columns", ErrorCode.INVALID_COLUMN_PROJECTION
            )
        self._names = [schema.columns[position].name for position in positions]
        self._bound = bound
        self._compressor = compressor(compression)
        needed = {*self._names, *(() if bound is None else (leaf.column.name for leaf in leaves(bound)))}
        columns = [column for column in schema.columns if column.name in needed]
        self._decoder = ValueDecoder(columns, row_format, schema_by_id) if columns else None
        types = [] if self._decoder is None else self._decoder.schema.types
        self._row_bytes = max(1, sum(map(_bytes_of, types)))
        self._growth = max(map(_growth, types), default=1)

    def limits(self, bytes_max: int) -> tuple[int, int]:
        """How many bytes of values, and how many rows, may be read so that their columns have few more bytes.

        Stored rows take a bit for a NULL, and columns a whole value.
        """
        return max(1, bytes_max // self._growth), max(1, bytes_max // self._row_bytes)

    def message(self, schema_ids: npt.NDArray[np.int16], rows: RowSlices) -> tuple[bytearray, int]:
        """The message of `rows`, and how many it has. Raises `CorruptData` for malformed ones."""
        if self._decoder is None:
            structs = pa.StructArray.from_buffers(pa.struct([]), len(rows), [None])
            return encode_message(pa.RecordBatch.from_struct_array(structs), b""), len(rows)
        batch = self._decoder.decode(schema_ids, rows)
        if self._bound is not None:
            batch = filter_rows(batch, self._bound)
        if len(self._names) < batch.num_columns:
            batch = batch.select(self._names)
        return encode_message(batch, b"", *self._compressor), batch.num_rows


def _bytes_of(t: pa.DataType) -> int:
    """The bytes of a column for one value, NULL or not, without those that lists and texts have beside."""
    if pa.types.is_struct(t):
        return sum(_bytes_of(field.type) for field in t.fields)
    if pa.types.is_nested(t) or pa.types.is_string(t) or pa.types.is_binary(t):
        return 4
    bits: int = t.bit_width
    return max(1, bits // 8)


def _growth(t: pa.DataType) -> int:
    """How many times as many bytes as elements of lists are stored in, their columns may have."""
    if pa.types.is_struct(t):
        return max((_growth(field.type) for field in t.fields), default=1)
    if pa.types.is_map(t):
        return max(_growth(pa.list_(t.key_type)), _growth(pa.list_(t.item_type)))
    if not pa.types.is_list(t):
        return 1
    element = t.value_type
    return max(-(-_bytes_of(element) // _slot_bytes(element)), _growth(element))


def _slot_bytes(t: pa.DataType) -> int:
    """The bytes in which an element of this type is stored at least."""
    if pa.types.is_time(t):
        return 4
    return min(8, _bytes_of(t)) if pa.types.is_primitive(t) else 8


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _corrupt(reason: str) -> CorruptData:
    return CorruptData(f"the value batch is malformed: {reason}", ErrorCode.CORRUPT_RECORD_EXCEPTION)
