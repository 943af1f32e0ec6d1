"""Conversion of users' data to batches that a table stores: exact types, NOT NULL checks, row kinds.

Conversion follows `forebay.codec.casting.batches`: columns are matched by name, values are cast as
`forebay.codec.casting.arrays` says, and errors name the column and the row. Omitted columns get their default value, or
null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.api.changes import ROW_KINDS
from forebay.base.arguments import did_you_mean
from forebay.base.errors import InvalidRequest
from forebay.codec.casting.batches import iter_record_batches
from forebay.codec.casting.conform import conform_array
from forebay.codec.casting.frames import check_index, is_pandas_frame
from forebay.metadata.table import Column, Schema
from forebay.metadata.types import DataType, TypeRoot, child
from forebay.paimon.files.casts import evolve
from forebay.paimon.format.arrow import arrow_schema, arrow_type, storage_type
from forebay.paimon.format.schema import DataField, TableSchema

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = 0, 1, 2, 3
BATCH_ROWS = 1 << 16


class Intake:
    """Converts data for one table. `columns` are those that the data may have; others get their default or null."""

    def __init__(
        self, schema: TableSchema, columns: Sequence[str] | None = None, *, leaves_others: bool = False
    ) -> None:
        """`leaves_others`: omitted columns are null, so that merging keeps their values, instead of their default."""
        self._fields = schema.fields
        self._columns = schema.fields_named(columns) if columns is not None else schema.fields
        self.arrow = arrow_schema(schema.fields)
        self._rowkind_field = schema.options.get("rowkind.field")
        self._leaves_others = leaves_others

    def batches(self, data: Any, *, deletes: bool = False, is_whole: bool = False) -> Iterator[pa.RecordBatch]:
        """`data` as batches with all columns of the table.

        With `deletes`, omitted NOT NULL columns get a neutral value instead of being rejected: they are never read from
        a deleted row. With `is_whole`, a column that would become null because the data lacks it is an error.
        """
        names = names_of(data)
        if is_pandas_frame(data):
            check_index(data, [f.name for f in self._columns])
        self._check_names(names)
        if is_whole and names is not None:
            self._check_whole(data, names)
        fields = [f for f in self._columns if names is None or f.name in names or _is_required(f, deletes)]
        columns = tuple(Column(f.name, _given_type(f.type)) for f in fields)
        target = pa.schema([self.arrow.field(f.name) for f in fields])
        for batch in iter_record_batches(data, Schema(columns), max_rows=BATCH_ROWS):
            stored = _zoned(batch, target)
            yield stored if len(fields) == len(self._fields) else self._completed(stored, deletes)

    def _check_names(self, names: set[str] | None) -> None:
        allowed = [f.name for f in self._columns]
        for name in sorted(names - set(allowed)) if names is not None else ():
            raise InvalidRequest(
                f"the data has column '{name}', which is none of {', '.join(allowed)}{did_you_mean(name, allowed)}"
            )

    def _check_whole(self, data: Any, names: set[str]) -> None:
        expected = [f.name for f in self._columns if f.type.nullable and f.default is None]
        rows = [row for row in data if isinstance(row, Mapping)] if isinstance(data, list | tuple) else [names]
        for row in rows:
            if missing := [name for name in expected if name not in row]:
                raise InvalidRequest(
                    f"the data lacks {', '.join(map(repr, missing))}, and a row replaces the whole row of its key: "
                    "missing='null' sets them to null; in a table with merge-engine 'partial-update' or 'aggregation' "
                    "columns that the data lacks stay as they are"
                )

    def _completed(self, batch: pa.RecordBatch, deletes: bool) -> pa.RecordBatch:
        columns = []
        for f in self._fields:
            index = batch.schema.get_field_index(f.name)
            field = replace(f, default=None) if self._leaves_others else f
            columns.append(batch.column(index) if index >= 0 else missing_column(field, batch.num_rows, deletes))
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    def kinds_of(self, batch: pa.RecordBatch, default: int) -> npt.NDArray[np.int8]:
        """The row kinds of a batch: those of column `rowkind.field` if the table has it set, otherwise `default`."""
        if self._rowkind_field is None:
            return np.full(batch.num_rows, default, np.int8)
        return parse_kinds(batch.column(self._rowkind_field), f"column '{self._rowkind_field}'")


def _is_required(f: DataField, deletes: bool) -> bool:
    """Whether a column missing from the data must be required, so that the error names it."""
    return not f.type.nullable and f.default is None and not deletes


def names_of(data: Any) -> set[str] | None:
    """The column names of Arrow data, data frames and dicts; None if they are unknown before conversion."""
    if isinstance(data, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
        return set(data.schema.names)
    if is_pandas_frame(data):
        return {str(name) for name in (*data.index.names, *data.columns) if name is not None}
    if hasattr(data, "columns"):  # of polars or DuckDB
        return {str(name) for name in data.columns}
    if isinstance(data, list | tuple) and data and all(isinstance(row, dict) for row in data):
        return {name for row in data for name in row}
    return None


def _given_type(t: DataType) -> DataType:
    """The storage type of `t`, but with the digits of a TIME and the length of a text.

    Storage lacks them, and values that do not fit are refused.
    """
    match t.root:
        case TypeRoot.TIME:
            return replace(t, precision=max(t.precision or 0, 3))
        case TypeRoot.CHAR | TypeRoot.STRING:
            return t
        case TypeRoot.ARRAY:
            return replace(t, element=_given_type(child(t.element)))
        case TypeRoot.MAP:
            key, value = _given_type(child(t.key)).not_null(), _given_type(child(t.value))
            return replace(t, key=key, value=value, length=None)
        case TypeRoot.ROW:
            return replace(t, fields=tuple(replace(f, data_type=_given_type(f.data_type)) for f in t.fields))
        case _:
            return storage_type(t)


def _zoned(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The batch with time zones on its TIMESTAMP_LTZ columns, which conversion omits, and with times as stored."""
    if batch.schema.equals(target):
        return batch
    columns = [
        conform_array(column, f.type, f.name, truncate=False) for column, f in zip(batch.columns, target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def missing_column(f: DataField, rows: int, deletes: bool) -> pa.Array:
    """The values of an omitted column: its default, else null, else (for deletes) a neutral value."""
    t = arrow_type(f.type)
    if f.default is not None and not deletes:
        text = pa.array([default_text(f.default)], pa.string())
        value = evolve(text, DataType(TypeRoot.STRING), replace(f.type, nullable=True))
        return pa.repeat(value[0], rows) if rows else pa.array([], t)
    if f.type.nullable:
        return pa.nulls(rows, t)
    if not deletes:
        raise InvalidRequest(f"column '{f.name}' is NOT NULL, but the data does not have it")
    return pa.repeat(_neutral(t), rows)


def default_text(default: str) -> str:
    """The text of a default value, without the SQL quotes that Java Paimon's Spark leaves around it."""
    quoted = len(default) > 1 and default.startswith("'") and default.endswith("'")
    return default[1:-1] if quoted else default


def _neutral(t: pa.DataType) -> pa.Scalar:
    """Zero, false, or an empty value."""
    if pa.types.is_struct(t):
        return pa.scalar({f.name: _neutral(f.type).as_py() for f in t}, t)
    if pa.types.is_nested(t):
        return pa.scalar([], t)
    if pa.types.is_string(t) or pa.types.is_binary(t):
        return pa.scalar(b"", pa.binary()).cast(t)
    if pa.types.is_decimal(t):
        return pa.scalar(Decimal(0), t)
    narrow = pa.int32() if pa.types.is_date32(t) or pa.types.is_time32(t) else pa.int64()
    return pa.scalar(0, narrow).cast(t)


def parse_kinds(column: pa.Array, where: str) -> npt.NDArray[np.int8]:
    """The row kinds given as text (+I, -U, +U, -D) or as numbers. Raises `InvalidRequest` for others, and nulls."""
    if pa.types.is_integer(column.type):
        codes = column.cast(pa.int64())
        if column.null_count or not pc.all(pc.is_in(codes, value_set=pa.array(range(4), pa.int64()))).as_py():
            raise InvalidRequest(f"{where}: a row kind is one of {', '.join(ROW_KINDS)}, or 0 to 3")
    else:
        codes = pc.index_in(column.cast(pa.string()), value_set=pa.array(ROW_KINDS))
        if codes.null_count:
            row = pc.index(pc.is_null(codes), True).as_py()
            raise InvalidRequest(f"{where}: row {row} has kind {column[row]}, which is none of {', '.join(ROW_KINDS)}")
    kinds: npt.NDArray[np.int8] = codes.to_numpy(zero_copy_only=False).astype(np.int8)
    return kinds
