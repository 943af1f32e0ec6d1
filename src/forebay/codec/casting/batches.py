"""User data as record batches with exactly the types that a table stores.

Flow: take the data apart into record batches (`pa.Table`, `pa.RecordBatch`, `pa.RecordBatchReader`, anything with the
Arrow PyCapsule interface such as polars, pandas DataFrames, lists of dicts) -> match its columns to the table's by
name -> cast each (codec.casting.arrays) -> check NOT NULL. The result has the storage schema; a batch
that has it already is passed on unchanged.

Every refusal is an `InvalidRequest` that names the column, its type, the required type, and the first row at fault,
counted from 0 over all of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import InvalidRequest
from forebay.codec.arrow.arrow_types import arrow_name, arrow_type, storage_schema
from forebay.codec.arrow.empty_offsets import with_offsets
from forebay.codec.casting.arrays import (
    CastError,
    cast_array,
    check_names,
    first_failure,
    has_ltz,
    has_time,
    is_stored_as_given,
    may_break_not_null,
)
from forebay.codec.casting.conform import conform_array
from forebay.codec.casting.frames import arrow_stream, check_index, is_pandas_frame, with_named_index
from forebay.codec.casting.values import array_of_values
from forebay.metadata.table import Column, Schema

ROWS_MAX_DEFAULT = 1 << 16
"""The default number of rows per batch: large enough for speed, small enough for memory."""

_CHUNK_ROWS_MIN = 4096
"""Tables with smaller chunks on average are combined into one chunk first."""


def iter_record_batches(
    data: Any,
    schema: Schema,
    *,
    columns: Sequence[str] | None = None,
    max_rows: int | None = None,
    is_whole: bool = False,
) -> Iterator[pa.RecordBatch]:
    """`data` as record batches of at most `max_rows` rows (None: 65,536) with the storage schema of `schema`.

    They are made one by one, so that a reader of any length can be consumed. `columns` restricts the result to these
    columns of the table (for partial updates), in the table's order. A column that the data lacks becomes null if it
    may, but with `is_whole` it is an error. Batches without rows are left out.
    """
    target_columns = schema.columns
    if columns is not None:
        positions = set(schema.indexes(columns))
        target_columns = tuple(column for position, column in enumerate(schema.columns) if position in positions)
    rows_max = ROWS_MAX_DEFAULT if max_rows is None else max_rows
    if rows_max < 1:
        raise InvalidRequest(f"max_rows must be at least 1, got {rows_max}")
    row = 0
    target, plain = _target(tuple(target_columns))
    expected = [column.name for column in target_columns if column.data_type.nullable] if is_whole else []
    for raw, converted in _batches(data, target_columns, schema):
        if expected:
            _check_columns(raw.schema.names, target_columns, schema)
            check_whole(raw.schema.names, expected)
            if isinstance(data, list | tuple):
                _check_whole_rows(data, expected)
        batch = raw if len(plain) == len(target_columns) else with_offsets(raw)
        for start in range(0, batch.num_rows, rows_max):
            part = batch.slice(start, rows_max)
            yield _cast(part, target_columns, target, plain, converted, row, schema)
            row += part.num_rows


@lru_cache(maxsize=1024)
def _target(columns: tuple[Column, ...]) -> tuple[pa.Schema, frozenset[str]]:
    """The storage schema of `columns`, and the names of those columns whose arrays are stored as they are once they
    have its type.
    """
    plain = (c.name for c in columns if not c.data_type.is_nested and is_stored_as_given(c.data_type))
    return storage_schema(columns), frozenset(plain)


# ---- taking data apart ----------------------------------------------------------------------------------------------

_Batches = Iterable[tuple[pa.RecordBatch, frozenset[str]]]
"""Record batches, each with the names of its columns that are in storage form already."""

_NONE: frozenset[str] = frozenset()


def _batches(data: Any, columns: tuple[Column, ...], schema: Schema) -> _Batches:
    """The record batches of `data`. Their columns are cast later, but for those that were Python values."""
    if isinstance(data, pa.RecordBatch):
        return [(data, _NONE)]
    if isinstance(data, pa.Table):
        return ((batch, _NONE) for batch in _table_batches(data))
    if isinstance(data, pa.RecordBatchReader):
        return ((batch, _NONE) for batch in data)
    if is_pandas_frame(data):
        return [_from_pandas(with_named_index(data), columns, schema)]
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return ((batch, _NONE) for batch in arrow_stream(data))
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return [_from_rows(data, columns, schema)] if data else []
    raise InvalidRequest(
        f"cannot write a {type(data).__name__}: give a pyarrow Table, RecordBatch or RecordBatchReader, a pandas or "
        "polars DataFrame, anything else with __arrow_c_stream__, or a list of dicts"
    )


def _table_batches(table: pa.Table) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = table.to_batches()
    if len(batches) > 1 and table.num_rows < _CHUNK_ROWS_MIN * len(batches):
        batches = table.combine_chunks().to_batches()
    return batches


def _from_pandas(frame: Any, columns: tuple[Column, ...], schema: Schema) -> tuple[pa.RecordBatch, frozenset[str]]:
    """The columns of a DataFrame. NaN and NaT are pandas' nulls."""
    names = list(frame.columns)
    if not all(isinstance(name, str) for name in names):
        raise InvalidRequest(f"DataFrame columns must be named by strings, got {names}")
    check_index(frame, schema.names)
    _check_columns(names, columns, schema)
    by_name = {column.name: column for column in columns}
    arrays = []
    converted = set()
    for name in names:
        series = frame[name]
        array = _infer(series) if series.dtype == object else _typed_series(series, name)
        if array is None:
            array = _from_values(series.tolist(), by_name[name], nan_is_null=True)
            converted.add(name)
        arrays.append(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)
    batch = pa.RecordBatch.from_arrays(arrays, names) if arrays else _no_columns(len(frame))
    return batch, frozenset(converted)


def _typed_series(series: Any, name: str) -> pa.Array:
    try:
        return pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as e:
        raise InvalidRequest(f"column '{name}' has pandas type {series.dtype}, which Arrow cannot take: {e}") from None


def _infer(series: Any) -> pa.Array | None:
    """An array of Python objects if Arrow's type inference is certainly right (strings, bytes, booleans), else None."""
    try:
        array = pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    t = array.type
    certain = pa.types.is_string(t) or pa.types.is_binary(t) or pa.types.is_boolean(t) or pa.types.is_null(t)
    return array if certain else None


def _from_rows(
    rows: Sequence[Any], target_columns: tuple[Column, ...], schema: Schema
) -> tuple[pa.RecordBatch, frozenset[str]]:
    """Batches of a list of dicts, converted value by value: slow, but with the clearest errors."""
    target_names = {column.name for column in target_columns}
    present: set[str] = set()
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidRequest(f"row {index} is a {type(row).__name__}, not a dict of column names and values")
        if not row.keys() <= target_names:
            _check_columns(list(row), target_columns, schema)
        present.update(row)
    columns = [column for column in target_columns if column.name in present]
    arrays = [_from_values([row.get(column.name) for row in rows], column) for column in columns]
    batch = pa.RecordBatch.from_arrays(arrays, [c.name for c in columns]) if arrays else _no_columns(len(rows))
    return batch, frozenset(present)


def _no_columns(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), rows, [None]))


def _from_values(values: Sequence[Any], column: Column, *, nan_is_null: bool = False) -> pa.Array:
    def convert(part: Sequence[Any]) -> pa.Array:
        return array_of_values(part, column.data_type, column.name, nan_is_null=nan_is_null)

    try:
        return convert(values)
    except CastError as e:
        row = next((index for index, value in enumerate(values) if not _succeeds(convert, [value])), e.index)
        raise _refusal(e, row) from None


def _succeeds(convert: Callable[[Sequence[Any]], pa.Array], values: Sequence[Any]) -> bool:
    try:
        convert(values)
    except CastError:
        return False
    return True


def not_written(name: str, schema: Schema, target_names: Sequence[str]) -> str:
    """Why rows may not have column `name` of the table, where only the columns `target_names` are written."""
    if name == schema.auto_increment_column:
        return f"column '{name}' is an auto-increment column, whose values the server gives: leave it out of the data"
    return f"the data has column '{name}', and only {', '.join(target_names)} are written: leave it out of the data"


# ---- casting --------------------------------------------------------------------------------------------------------


def check_whole(names: Collection[str], required_names: Sequence[str], where: str = "the data") -> None:
    """Raise `InvalidRequest` if some of `required_names` are not among `names`."""
    missing = [name for name in required_names if name not in names]
    if missing:
        raise InvalidRequest(
            f"{where} lacks {', '.join(map(repr, missing))}: columns=[...] writes only some columns and leaves the "
            "others as they are, and missing='null' sets those that the data lacks to null"
        )


def _check_whole_rows(rows: Sequence[Any], required_names: Sequence[str]) -> None:
    for index, row in enumerate(rows):
        if isinstance(row, Mapping):
            check_whole(row, required_names, f"row {index}")


def _check_columns(names: Sequence[str], columns: tuple[Column, ...], schema: Schema) -> None:
    target_names = [column.name for column in columns]
    left_out = next((name for name in names if name not in target_names and name in schema.names), None)
    if left_out is not None:
        raise InvalidRequest(not_written(left_out, schema, target_names))
    check_names(names, target_names, "the table", "column")


def _cast(
    batch: pa.RecordBatch,
    columns: tuple[Column, ...],
    target: pa.Schema,
    plain: frozenset[str],
    converted: frozenset[str],
    first_row: int,
    schema: Schema,
) -> pa.RecordBatch:
    """`batch` cast to `columns`; `first_row` is the position of its first row in all of the data."""
    _check_columns(batch.schema.names, columns, schema)
    arrays = []
    for column, field in zip(columns, target, strict=True):
        position = batch.schema.get_field_index(column.name)
        if position < 0 and not column.data_type.nullable:
            raise InvalidRequest(f"the data has no column '{column.name}', which is NOT NULL ({column.data_type})")
        if position < 0:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        array = batch.column(position)
        is_stored_so = column.name in converted or (column.name in plain and array.type.equals(field.type))
        if not is_stored_so:
            array = _cast_column(array, column, first_row)
        arrays.append(array)
    result = pa.RecordBatch.from_arrays(arrays, schema=target)
    check_not_null(result, columns, first_row)
    return result


def _cast_column(array: pa.Array, column: Column, first_row: int) -> pa.Array:
    t = column.data_type
    has_zones_only = t.is_nested and has_ltz(t) and not has_time(t) and array.type.equals(arrow_type(t, "UTC"))
    if has_zones_only and not may_break_not_null(array, t):
        return conform_array(array, arrow_type(t), column.name, truncate=False)
    try:
        return cast_array(array, column.data_type, column.name)
    except CastError as e:
        row = e.index
        if column.data_type.is_nested:
            row = first_failure(array, lambda part: cast_array(part, column.data_type, column.name))
        raise _refusal(e, first_row + row) from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        kind = arrow_name(array.type)
        raise InvalidRequest(
            f"column '{column.name}' of type {t} cannot take the data, which has {kind}: {e}"
        ) from None


def _refusal(error: CastError, row: int) -> InvalidRequest:
    return InvalidRequest(f"column '{error.path}', row {row}: {error.detail}")


def check_not_null(batch: pa.RecordBatch, columns: Sequence[Column], first_row: int = 0) -> None:
    """Raise `InvalidRequest` for a null in one of `columns` that is NOT NULL; nested values are not examined."""
    for array, column in zip(batch.columns, columns, strict=True):
        if array.null_count and not column.data_type.nullable:
            row = first_row + pc.index(pc.is_null(array), pa.scalar(True)).as_py()
            raise InvalidRequest(
                f"column '{column.name}' is NOT NULL, but {array.null_count} of {len(array)} values are null, the "
                f"first in row {row}"
            )
