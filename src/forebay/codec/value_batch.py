"""Value batches and stored values: how rows travel in the answers of ScanKv, LimitScan and lookups.

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

from forebay.base.errors import CorruptData, ErrorCode
from forebay.codec._records import parse_value_records
from forebay.codec._slices import RowSlices
from forebay.codec.reference import RowFormat
from forebay.codec.rows import row_codec
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
            wanted = tuple(sorted({p for p in positions if p is not None}))
            places = {position: place for place, position in enumerate(wanted)}
            codec = row_codec(columns, self._format, None if len(wanted) == len(columns) else wanted)
            plan = codec, [None if p is None else places[p] for p in positions]
            self._plans[schema_id] = plan
        return plan

    def decode(self, schema_ids: npt.NDArray[np.int16], rows: RowSlices) -> pa.RecordBatch:
        """The target columns of `rows`, in order. Raises `CorruptData` for malformed rows."""
        versions = np.unique(schema_ids)
        if len(versions) <= 1:
            return self._decode_version(int(versions[0]), rows) if len(versions) else _empty(self.schema)
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


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _corrupt(reason: str) -> CorruptData:
    return CorruptData(f"the value batch is malformed: {reason}", ErrorCode.CORRUPT_RECORD_EXCEPTION)
