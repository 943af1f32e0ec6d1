"""Casts user data to exactly what a table stores.

Flow: take the data apart into record batches (`pa.Table`, `pa.RecordBatch`, `pa.RecordBatchReader`, anything with the
Arrow PyCapsule interface such as polars, pandas DataFrames, lists of dicts) -> match its columns to the table's by
name -> cast each without loss (codec.cast_arrays) -> check NOT NULL. The result has the storage schema; a batch that
has it already is passed on as it is.

Every refusal is an `InvalidRequest` that names the column, what was given and what is wanted, and the first row at
fault, counted from 0 over all of the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import InvalidRequest
from forebay.codec.arrow.arrow_types import arrow_name, arrow_type, storage_schema, with_offsets
from forebay.codec.casting.literals import exact, to_array, wrong_kind
from forebay.metadata.table import Column, Schema
from forebay.metadata.types import DataType, TypeRoot, child, walk

# Casts one Arrow array, or a list of Python values, to the array that a column of a table stores.
#
# Only casts that lose nothing: integers into integers that hold them, text and bytes in any Arrow encoding, timestamps
# and times into units that hold them, decimals without rounding. A timestamp with a zone fits TIMESTAMP_LTZ, one
# without fits TIMESTAMP, never the other way. One concession: DOUBLE values are rounded to the nearest FLOAT, because
# Python and pandas know no other floats.
#
# A column is named by its path: `address.city`, `tags.element`, `attributes.value`.

_INTEGERS = (TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INT, TypeRoot.BIGINT)
_FLOATS = (TypeRoot.FLOAT, TypeRoot.DOUBLE)
_TEXTS = (TypeRoot.CHAR, TypeRoot.STRING)
_BYTES = (TypeRoot.BINARY, TypeRoot.BYTES)
_is = pa.types


class Unfit(Exception):
    """A value does not fit: `detail` says which and why, `index` is its place in the array that was cast."""

    def __init__(self, path: str, detail: str, index: int) -> None:
        super().__init__(detail)
        self.path = path
        self.detail = detail
        self.index = index


# ---- Arrow -> column ------------------------------------------------------------------------------------------------


def cast_array(array: pa.Array, t: DataType, path: str) -> pa.Array:
    """`array` as an array of `arrow_type(t)`; the same object when it is one.

    Raises `InvalidRequest` for a type that never fits, and `Unfit` for a value that does not, or a null in a part
    that is NOT NULL. Nulls of the column itself are the caller's to check.
    """
    array = decoded(array)
    target = arrow_type(t)
    if _is.is_null(array.type):
        return pa.nulls(len(array), target)
    is_there = array.type.equals(target) and not has_ltz(t)  # stored without its zone, which user data may have
    if t.is_nested:
        if is_there and not may_break_not_null(array, t):
            return array
        return _NESTED[t.root](array, t, path)
    return array if is_there else _cast_scalar(array, t, target, path)


def decoded(array: pa.Array) -> pa.Array:
    """`array` without an encoding (dictionary, run ends, extension type) around its values."""
    if isinstance(array, pa.ExtensionArray):
        return decoded(array.storage)
    if _is.is_dictionary(array.type):
        return decoded(array.dictionary_decode())
    return decoded(pc.run_end_decode(array)) if _is.is_run_end_encoded(array.type) else array


def _is_text(t: pa.DataType) -> bool:
    return bool(_is.is_string(t) or _is.is_large_string(t) or _is.is_string_view(t))


def _is_bytes(t: pa.DataType) -> bool:
    return bool(_is.is_binary(t) or _is.is_large_binary(t) or _is.is_binary_view(t) or _is.is_fixed_size_binary(t))


def _accepts(t: DataType, source: pa.DataType) -> bool:
    """Whether arrays of type `source` may hold values for columns of type `t`."""
    if t.root in _INTEGERS:
        return bool(_is.is_integer(source))
    if t.root in _FLOATS:
        return bool(_is.is_floating(source) or _is.is_integer(source))
    if t.root in _TEXTS:
        return _is_text(source)
    if t.root in _BYTES:
        return _is_bytes(source)
    match t.root:
        case TypeRoot.BOOLEAN:
            return bool(_is.is_boolean(source))
        case TypeRoot.DECIMAL:
            return bool(_is.is_decimal(source) or _is.is_integer(source))
        case TypeRoot.DATE:
            return bool(_is.is_date(source) or (_is.is_timestamp(source) and source.tz is None))
        case TypeRoot.TIME:
            return bool(_is.is_time(source))
        case _:
            return bool(_is.is_timestamp(source)) and (source.tz is not None) is (t.root is TypeRoot.TIMESTAMP_LTZ)


def _hint(t: DataType, source: pa.DataType) -> str:
    if _is.is_timestamp(source) and t.root is TypeRoot.TIMESTAMP:
        return "; drop the time zone first, in the zone that the column means"
    if _is.is_timestamp(source) and t.root is TypeRoot.TIMESTAMP_LTZ:
        return "; say which zone the values are in (pyarrow.compute.assume_timezone, pandas tz_localize)"
    if _is.is_floating(source) and t.root in _INTEGERS:
        return "; cast it yourself if the values are whole (pandas makes floats of integers with gaps: use Int64)"
    return ""


def wrong_type(path: str, given: pa.DataType, t: DataType, hint: str = "") -> InvalidRequest:
    """The error for a column whose type never fits."""
    return InvalidRequest(f"column '{path}' is of type {t}, but the data has {arrow_name(given)}{hint}")


def _cast_scalar(array: pa.Array, t: DataType, target: pa.DataType, path: str) -> pa.Array:
    if not _accepts(t, array.type):
        raise wrong_type(path, array.type, t, _hint(t, array.type))

    def convert(part: pa.Array) -> pa.Array:
        return _convert(part, t, target)

    try:
        return convert(array)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        index = first_failure(array, convert)
        raise Unfit(path, f"{arrow_name(array.type)} {array[index]} does not fit {t}", index) from e


def first_failure(array: pa.Array, convert: Callable[[pa.Array], Any]) -> int:
    """The index of the first value that `convert` refuses, given that it refuses `array`."""
    good, bad = 0, len(array)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            convert(array.slice(good, middle - good))
            good = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, Unfit):
            bad = middle
    return good


def _convert(array: pa.Array, t: DataType, target: pa.DataType) -> pa.Array:
    """Cast without loss, or raise pa.ArrowInvalid. Arrow's own safe casts are not safe everywhere."""
    source = array.type
    if t.root is TypeRoot.DECIMAL and _is.is_integer(source):
        return array.cast(pa.decimal128(38, t.scale)).cast(target)
    if t.root is TypeRoot.FLOAT:
        result = array.cast(target)
        if pc.any(pc.not_equal(pc.is_finite(array), pc.is_finite(result))).as_py():
            raise pa.ArrowInvalid("beyond the range of a 32-bit float")
        return result
    if t.root is TypeRoot.DATE and _is.is_timestamp(source):
        result = array.cast(target)
        if not result.cast(source).equals(array):
            raise pa.ArrowInvalid("not midnight")
        return result
    if t.root is TypeRoot.TIMESTAMP_LTZ:
        return array.cast(pa.timestamp(target.unit, source.tz)).view(target)
    if _is.is_string_view(source) or _is.is_binary_view(source):
        return _without_view(array, target)
    return array.cast(target)


def _without_view(array: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return array.cast(target)
    except pa.ArrowNotImplementedError:  # older versions of pyarrow
        return pa.array(array.to_pylist(), target)


# ---- nested types ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _has_not_null(t: DataType) -> bool:
    return any(not inner.nullable or _has_not_null(inner) for inner in t.children())


@lru_cache(maxsize=1024)
def has_ltz(t: DataType) -> bool:
    """Return whether a type is or contains TIMESTAMP_LTZ."""
    return any(inner.root is TypeRoot.TIMESTAMP_LTZ for inner in walk(t))


def may_break_not_null(array: pa.Array, t: DataType) -> bool:
    """Whether `array`, of the right Arrow type, might hold a null in a part of `t` that is NOT NULL."""
    if not t.is_nested or not _has_not_null(t):
        return False
    if t.root is TypeRoot.ROW:
        parts = [array.field(i) for i in range(array.type.num_fields)]
    elif t.root is TypeRoot.MAP:
        parts = [array.keys, array.items]
    else:
        parts = [array.values]
    return any(
        (part.null_count > 0 and not inner.nullable) or may_break_not_null(part, inner)
        for part, inner in zip(parts, t.children(), strict=True)
    )


def validity_of(array: pa.Array) -> pa.Buffer | None:
    """The validity bits of `array`, from its own first value on."""
    return pc.is_valid(array).buffers()[1] if array.null_count else None


def _offsets_of(lists: pa.Array) -> pa.Buffer:
    """Offsets that begin at 0 and give null lists no elements, for the flattened elements of `lists`."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise pa.ArrowInvalid("more than 2 billion elements in one batch")
    return pa.py_buffer(offsets.astype(np.int32))


def _require_no_nulls(array: pa.Array, t: DataType, path: str, parents: pa.Array | None = None) -> None:
    """Raise `Unfit` for a null in `array` where `t` is NOT NULL, unless its parent is null too."""
    if t.nullable or not array.null_count:
        return
    nulls = pc.is_null(array)
    if parents is not None and parents.null_count:
        nulls = pc.and_(nulls, pc.is_valid(parents))
    index = pc.index(nulls, pa.scalar(True)).as_py()
    if index >= 0:
        raise Unfit(path, "is NOT NULL, but null is inside the data", index)


def _cast_list(array: pa.Array, t: DataType, path: str) -> pa.Array:
    s = array.type
    if not (
        _is.is_list(s) or _is.is_large_list(s) or _is.is_fixed_size_list(s) or _is.is_list_view(s)
        or _is.is_large_list_view(s)
    ):  # fmt: skip
        raise wrong_type(path, s, t)
    inner = child(t.element)
    element_path = f"{path}.element"
    elements = cast_array(pc.list_flatten(array), inner, element_path)
    _require_no_nulls(elements, inner, element_path)
    return pa.Array.from_buffers(
        arrow_type(t), len(array), [validity_of(array), _offsets_of(array)], array.null_count, 0, [elements]
    )


def _cast_map(array: pa.Array, t: DataType, path: str) -> pa.Array:
    lists = array
    if _is.is_map(array.type):
        entries = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        lists = pa.Array.from_buffers(
            pa.list_(entries.type), len(array), array.buffers()[:2], array.null_count, array.offset, [entries]
        )
    s = lists.type
    pairs = (_is.is_list(s) or _is.is_large_list(s)) and _is.is_struct(s.value_type) and s.value_type.num_fields == 2
    if not pairs:
        raise wrong_type(path, array.type, t)
    keys, items = pc.list_flatten(lists).flatten()
    key_type, value_type = child(t.key), child(t.value)
    keys = cast_array(keys, key_type, f"{path}.key")
    items = cast_array(items, value_type, f"{path}.value")
    _require_no_nulls(keys, key_type, f"{path}.key")
    _require_no_nulls(items, value_type, f"{path}.value")
    target = arrow_type(t)
    struct = pa.StructArray.from_arrays([keys, items], fields=[target.key_field, target.item_field])
    return pa.Array.from_buffers(
        target, len(array), [validity_of(lists), _offsets_of(lists)], array.null_count, 0, [struct]
    )


def _cast_row(array: pa.Array, t: DataType, path: str) -> pa.Array:
    if not _is.is_struct(array.type):
        raise wrong_type(path, array.type, t)
    names = [array.type.field(i).name for i in range(array.type.num_fields)]
    check_names(names, [f.name for f in t.fields], f"row '{path}'", "field")
    given = dict(zip(names, array.flatten(), strict=True))
    children = []
    for f in t.fields:
        field_path = f"{path}.{f.name}"
        if f.name in given:
            field = cast_array(given[f.name], f.data_type, field_path)
        else:
            field = pa.nulls(len(array), arrow_type(f.data_type))
        _require_no_nulls(field, f.data_type, field_path, array)
        children.append(field)
    return pa.Array.from_buffers(arrow_type(t), len(array), [validity_of(array)], array.null_count, 0, children)


_NESTED: dict[TypeRoot, Callable[[pa.Array, DataType, str], pa.Array]] = {
    TypeRoot.ARRAY: _cast_list,
    TypeRoot.MAP: _cast_map,
    TypeRoot.ROW: _cast_row,
}


def check_names(given: Sequence[str], wanted: Sequence[str], where: str, what: str) -> None:
    """Raise `InvalidRequest` for a name that is given twice or not wanted."""
    distinct = set(given)
    if not distinct.issubset(wanted):
        extra = next(name for name in given if name not in wanted)
        raise InvalidRequest(f"the data has {what} '{extra}', but {where} has the {what}s {', '.join(wanted)}")
    if len(distinct) < len(given):
        repeated = next(name for name in given if given.count(name) > 1)
        raise InvalidRequest(f"the data has {what} '{repeated}' more than once")


# ---- Python values -> column ----------------------------------------------------------------------------------------


def array_of_values(values: Sequence[Any], t: DataType, path: str, *, nan_is_null: bool = False) -> pa.Array:
    """Python values as an array of `arrow_type(t)`; None is null, and with `nan_is_null` NaN is too.

    Dates, times and datetimes are those of the standard library, numpy or pandas; an ARRAY is any sequence but text,
    a MAP a dict or a list of pairs, a ROW a dict. Raises `Unfit` for a value that is something else.
    """
    plain = [None if _is_missing(value, nan_is_null) else value for value in values]
    if t.is_nested:
        return _NESTED_VALUES[t.root](plain, t, path)
    converted = []
    for index, value in enumerate(plain):
        try:
            converted.append(None if value is None else _column_value(value, t))
        except InvalidRequest as e:
            raise Unfit(path, e.message, index) from e
    try:
        return to_array(converted, arrow_type(t))
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as e:
        raise Unfit(path, f"does not fit {t}: {e}", 0) from e


def _is_missing(value: Any, nan_is_null: bool) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return nan_is_null and isinstance(value, float) and math.isnan(value)


def _column_value(value: Any, t: DataType) -> Any:
    """`value` as a column value; stricter than for filters, where a number may stand for a date."""
    if t.root in _FLOATS:
        return _float_value(value, t)
    if t.root in _INTEGERS and not isinstance(value, int | np.integer):
        raise wrong_kind(value, t, "an int")
    if t.root in (TypeRoot.DATE, TypeRoot.TIME) and isinstance(value, int | np.integer):
        raise wrong_kind(value, t, f"a datetime.{t.root.name.lower()}")
    converted = exact(value, t)
    if t.root is TypeRoot.BINARY and len(converted) != t.length:
        raise wrong_kind(value, t, f"exactly {t.length} bytes")
    return converted


def _float_value(value: Any, t: DataType) -> float:
    if isinstance(value, bool | np.bool_ | Decimal) or not isinstance(value, int | float | np.number):
        raise wrong_kind(value, t, "a float or int")
    if t.root is TypeRoot.DOUBLE:
        return float(value) if isinstance(value, float) else float(exact(value, t))
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isinf(_to_float32(number)) and value not in (math.inf, -math.inf):
        raise wrong_kind(value, t, "a number within the range of 32-bit floats")
    return number


def _to_float32(number: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def _flat(values: Iterable[Any | None]) -> tuple[list[Any], pa.Buffer]:
    """The elements of all lists, one after the other, and the offsets of the lists."""
    elements: list[Any] = []
    offsets = [0]
    for value in values:
        elements.extend(value or ())
        offsets.append(len(elements))
    return elements, pa.py_buffer(np.asarray(offsets, np.int32))


def _nulls_of(values: Sequence[Any]) -> tuple[pa.Buffer | None, int]:
    valid = pa.array([value is not None for value in values], pa.bool_())
    count = len(values) - valid.true_count
    return (valid.buffers()[1] if count else None), count


def _require_kind(values: Sequence[Any], kinds: tuple[type, ...], t: DataType, path: str) -> None:
    for index, value in enumerate(values):
        if value is not None and (not isinstance(value, kinds) or isinstance(value, str | bytes)):
            raise Unfit(path, f"{value!r} ({type(value).__name__}) does not fit {t}", index)


def _list_of_values(values: Sequence[Any], t: DataType, path: str) -> pa.Array:
    _require_kind(values, (Sequence, np.ndarray), t, path)
    inner = child(t.element)
    elements, offsets = _flat([None if v is None else list(v) for v in values])
    array = array_of_values(elements, inner, f"{path}.element")
    _require_no_nulls(array, inner, f"{path}.element")
    validity, nulls = _nulls_of(values)
    return pa.Array.from_buffers(arrow_type(t), len(values), [validity, offsets], nulls, 0, [array])


def _map_of_values(values: Sequence[Any], t: DataType, path: str) -> pa.Array:
    _require_kind(values, (Mapping, Sequence), t, path)
    lists = [None if v is None else list(v.items() if isinstance(v, Mapping) else v) for v in values]
    pairs, offsets = _flat(lists)
    for pair in pairs:
        if not isinstance(pair, Sequence) or isinstance(pair, str | bytes) or len(pair) != 2:
            raise Unfit(path, f"{pair!r} is not a pair of key and value", 0)
    key_type, value_type = child(t.key), child(t.value)
    keys = array_of_values([pair[0] for pair in pairs], key_type, f"{path}.key")
    items = array_of_values([pair[1] for pair in pairs], value_type, f"{path}.value")
    _require_no_nulls(keys, key_type, f"{path}.key")
    _require_no_nulls(items, value_type, f"{path}.value")
    target = arrow_type(t)
    struct = pa.StructArray.from_arrays([keys, items], fields=[target.key_field, target.item_field])
    validity, nulls = _nulls_of(values)
    return pa.Array.from_buffers(target, len(values), [validity, offsets], nulls, 0, [struct])


def _row_of_values(values: Sequence[Any], t: DataType, path: str) -> pa.Array:
    _require_kind(values, (Mapping,), t, path)
    wanted = [f.name for f in t.fields]
    for value in values:
        check_names([] if value is None else list(value), wanted, f"row '{path}'", "field")
    validity, nulls = _nulls_of(values)
    parents = pa.array([None if value is None else True for value in values], pa.bool_())
    children = []
    for f in t.fields:
        array = array_of_values(
            [None if value is None else value.get(f.name) for value in values], f.data_type, f"{path}.{f.name}"
        )
        _require_no_nulls(array, f.data_type, f"{path}.{f.name}", parents)
        children.append(array)
    return pa.Array.from_buffers(arrow_type(t), len(values), [validity], nulls, 0, children)


_NESTED_VALUES: dict[TypeRoot, Callable[[Sequence[Any], DataType, str], pa.Array]] = {
    TypeRoot.ARRAY: _list_of_values,
    TypeRoot.MAP: _map_of_values,
    TypeRoot.ROW: _row_of_values,
}


__all__ = ["cast_batch", "check_not_null", "iter_record_batches", "to_record_batches"]

ROWS_MAX_DEFAULT = 1 << 16
"""The default number of rows per batch: large enough for speed, small enough for memory."""

_CHUNK_ROWS_MIN = 4096
"""Tables with smaller chunks on average are combined into one chunk first."""


def to_record_batches(
    data: Any,
    schema: Schema,
    *,
    columns: Sequence[str] | None = None,
    max_rows: int | None = None,
    is_whole: bool = False,
) -> list[pa.RecordBatch]:
    """`data` as record batches of at most `max_rows` rows (None: 65,536) with the storage schema of `schema`.

    `columns` restricts the result to these columns of the table (for partial updates), in the table's order. A column
    that the data lacks becomes null if it may, but with `is_whole` it is an error. Batches without rows are left out.
    """
    return list(iter_record_batches(data, schema, columns=columns, max_rows=max_rows, is_whole=is_whole))


def iter_record_batches(
    data: Any,
    schema: Schema,
    *,
    columns: Sequence[str] | None = None,
    max_rows: int | None = None,
    is_whole: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Like `to_record_batches`, but lazily, so that a reader of any length can be consumed."""
    wanted = schema.columns
    if columns is not None:
        positions = set(schema.indexes(columns))
        wanted = tuple(column for position, column in enumerate(schema.columns) if position in positions)
    rows_max = ROWS_MAX_DEFAULT if max_rows is None else max_rows
    if rows_max < 1:
        raise InvalidRequest(f"max_rows must be at least 1, got {rows_max}")
    row = 0
    target, plain = _target(tuple(wanted))
    expected = [column.name for column in wanted if column.data_type.nullable] if is_whole else []
    for raw, converted in _batches(data, wanted, schema):
        if expected:
            _check_columns(raw.schema.names, wanted, schema)
            check_whole(raw.schema.names, expected)
            if isinstance(data, list | tuple):
                _check_whole_rows(data, expected)
        batch = raw if len(plain) == len(wanted) else with_offsets(raw)
        for start in range(0, batch.num_rows, rows_max):
            part = batch.slice(start, rows_max)
            yield _cast(part, wanted, target, plain, converted, row, schema)
            row += part.num_rows


@lru_cache(maxsize=1024)
def _target(wanted: tuple[Column, ...]) -> tuple[pa.Schema, frozenset[str]]:
    """The storage schema of `wanted`, and the names of those columns whose arrays are stored as they are once they
    have its type.
    """
    plain = (c.name for c in wanted if not c.data_type.is_nested and not has_ltz(c.data_type))
    return storage_schema(wanted), frozenset(plain)


# ---- taking data apart ----------------------------------------------------------------------------------------------

_Batches = Iterable[tuple[pa.RecordBatch, frozenset[str]]]
"""Record batches, each with the names of its columns that are in storage form already."""

_NONE: frozenset[str] = frozenset()


def _batches(data: Any, wanted: tuple[Column, ...], schema: Schema) -> _Batches:
    """The record batches of `data`. Their columns are cast later, but for those that were Python values."""
    if isinstance(data, pa.RecordBatch):
        return [(data, _NONE)]
    if isinstance(data, pa.Table):
        return ((batch, _NONE) for batch in _table_batches(data))
    if isinstance(data, pa.RecordBatchReader):
        return ((batch, _NONE) for batch in data)
    if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"):
        return [_from_pandas(data, wanted, schema)]
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return ((batch, _NONE) for batch in _from_capsules(data))
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return [_from_rows(data, wanted, schema)] if data else []
    raise InvalidRequest(
        f"cannot write a {type(data).__name__}: give a pyarrow Table, RecordBatch or RecordBatchReader, a pandas or "
        "polars DataFrame, anything else with __arrow_c_stream__, or a list of dicts"
    )


def _table_batches(table: pa.Table) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = table.to_batches()
    if len(batches) > 1 and table.num_rows < _CHUNK_ROWS_MIN * len(batches):
        batches = table.combine_chunks().to_batches()
    return batches


def _from_capsules(data: Any) -> Iterable[pa.RecordBatch]:
    try:
        if hasattr(data, "__arrow_c_stream__"):
            reader: Iterable[pa.RecordBatch] = pa.RecordBatchReader.from_stream(data)
            return reader
        return [pa.record_batch(data)]
    except (pa.ArrowException, TypeError, ValueError) as e:
        raise InvalidRequest(f"the Arrow data of a {type(data).__name__} has no columns of a table: {e}") from e


def _from_pandas(frame: Any, wanted: tuple[Column, ...], schema: Schema) -> tuple[pa.RecordBatch, frozenset[str]]:
    """The columns of a DataFrame, without its index. NaN and NaT are pandas' nulls."""
    names = list(frame.columns)
    if not all(isinstance(name, str) for name in names):
        raise InvalidRequest(f"DataFrame columns must be named by strings, got {names}")
    _check_columns(names, wanted, schema)
    by_name = {column.name: column for column in wanted}
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
        raise InvalidRequest(f"column '{name}' has pandas type {series.dtype}, which Arrow cannot take: {e}") from e


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
    rows: Sequence[Any], wanted: tuple[Column, ...], schema: Schema
) -> tuple[pa.RecordBatch, frozenset[str]]:
    """Batches of a list of dicts, converted value by value: slow, but with the clearest errors."""
    known = {column.name for column in wanted}
    present: set[str] = set()
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidRequest(f"row {index} is a {type(row).__name__}, not a dict of column names and values")
        if not row.keys() <= known:
            _check_columns(list(row), wanted, schema)
        present.update(row)
    columns = [column for column in wanted if column.name in present]
    arrays = [_from_values([row.get(column.name) for row in rows], column) for column in columns]
    batch = pa.RecordBatch.from_arrays(arrays, [c.name for c in columns]) if arrays else _no_columns(len(rows))
    return batch, frozenset(present)


def _no_columns(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


def _from_values(values: Sequence[Any], column: Column, *, nan_is_null: bool = False) -> pa.Array:
    def convert(part: Sequence[Any]) -> pa.Array:
        return array_of_values(part, column.data_type, column.name, nan_is_null=nan_is_null)

    try:
        return convert(values)
    except Unfit as e:
        row = next((index for index, value in enumerate(values) if not _succeeds(convert, [value])), e.index)
        raise _refusal(e, row) from e


def _succeeds(convert: Callable[[Sequence[Any]], pa.Array], values: Sequence[Any]) -> bool:
    try:
        convert(values)
    except Unfit:
        return False
    return True


def not_written(name: str, schema: Schema, wanted: Sequence[str]) -> str:
    """Why rows may not have column `name` of the table, where only the columns `wanted` are written."""
    if name == schema.auto_increment_column:
        return f"column '{name}' is an auto-increment column, whose values the server gives: leave it out of the data"
    return f"the data has column '{name}', and only {', '.join(wanted)} are written: leave it out of the data"


# ---- casting --------------------------------------------------------------------------------------------------------


def check_whole(names: Collection[str], wanted: Sequence[str], where: str = "the data") -> None:
    """Raise `InvalidRequest` for columns that are `wanted` and not among `names`."""
    missing = [name for name in wanted if name not in names]
    if missing:
        raise InvalidRequest(
            f"{where} lacks {', '.join(map(repr, missing))}: columns=[...] writes only some columns and leaves the "
            "others as they are, and missing='null' sets those that the data lacks to null"
        )


def _check_whole_rows(rows: Sequence[Any], wanted: Sequence[str]) -> None:
    for index, row in enumerate(rows):
        if isinstance(row, Mapping):
            check_whole(row, wanted, f"row {index}")


def _check_columns(names: Sequence[str], wanted: tuple[Column, ...], schema: Schema) -> None:
    chosen = [column.name for column in wanted]
    left_out = next((name for name in names if name not in chosen and name in schema.names), None)
    if left_out is not None:
        raise InvalidRequest(not_written(left_out, schema, chosen))
    check_names(names, chosen, "the table", "column")


def _cast(
    batch: pa.RecordBatch,
    wanted: tuple[Column, ...],
    target: pa.Schema,
    plain: frozenset[str],
    converted: frozenset[str],
    first_row: int,
    schema: Schema,
) -> pa.RecordBatch:
    """`batch` with the columns `wanted`; `first_row` is its place in all of the data."""
    _check_columns(batch.schema.names, wanted, schema)
    arrays = []
    for column, field in zip(wanted, target, strict=True):
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
    check_not_null(result, wanted, first_row)
    return result


def _cast_column(array: pa.Array, column: Column, first_row: int) -> pa.Array:
    t = column.data_type
    if t.is_nested and has_ltz(t) and array.type.equals(arrow_type(t, "UTC")) and not may_break_not_null(array, t):
        return conform_array(array, arrow_type(t), column.name, truncate=False)
    try:
        return cast_array(array, column.data_type, column.name)
    except Unfit as e:
        row = e.index
        if column.data_type.is_nested:
            row = first_failure(array, lambda part: cast_array(part, column.data_type, column.name))
        raise _refusal(e, first_row + row) from e
    except pa.ArrowInvalid as e:
        raise InvalidRequest(f"column '{column.name}': {e}") from e


def _refusal(unfit: Unfit, row: int) -> InvalidRequest:
    return InvalidRequest(f"column '{unfit.path}', row {row}: {unfit.detail}")


def check_not_null(batch: pa.RecordBatch, wanted: Sequence[Column], first_row: int = 0) -> None:
    """Raise `InvalidRequest` for a null in a column of `wanted` that is NOT NULL; nested values are not examined."""
    for array, column in zip(batch.columns, wanted, strict=True):
        if array.null_count and not column.data_type.nullable:
            row = first_row + pc.index(pc.is_null(array), pa.scalar(True)).as_py()
            raise InvalidRequest(
                f"column '{column.name}' is NOT NULL, but {array.null_count} of {len(array)} values are null, the "
                f"first in row {row}"
            )


# Arrow data with exactly the types that a reader wants, without a copy where only labels differ.
#
# Spark accepts an Arrow batch only if its schema is its own to the last label: names of list items, nullability inside
# nested types, time zones, units. `cast_batch` brings a batch there: buffers are shared, labels exchanged, and only
# leaves of another width or unit are cast.

_is = pa.types
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def cast_batch(batch: pa.RecordBatch, target: pa.Schema, *, truncate: bool = False) -> pa.RecordBatch:
    """`batch` with exactly the schema `target`; columns are matched by name, and others left out.

    Names inside nested types, nullability and zones are relabelled without a copy; a zone is attached, dropped or
    exchanged with the instant kept. Leaves of another type are cast without loss, except that `truncate` allows
    timestamps and times to lose digits. Raises `InvalidRequest` for a column that is missing, of another kind, or has
    nulls where the target is not nullable.
    """
    if batch.schema.equals(target, check_metadata=True):
        return batch
    arrays = []
    for field in target:
        positions = batch.schema.get_all_field_indices(field.name)
        if len(positions) != 1:
            raise InvalidRequest(
                f"the batch has {len(positions)} columns '{field.name}', but one is wanted; it has {batch.schema.names}"
            )
        array = conform_array(batch.column(positions[0]), field.type, field.name, truncate)
        _check_nullable(array, field, field.name)
        arrays.append(array)
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def conform_array(array: pa.Array, target: pa.DataType, path: str, truncate: bool) -> pa.Array:
    """`array` with exactly the type `target`: names, nullability and zones relabelled without a copy, leaves cast.

    A zone is attached, dropped or exchanged with the instant kept. `truncate` allows timestamps and times to lose
    digits. Raises `InvalidRequest` where a null stands in a non-nullable part, or a type differs in kind.
    """
    source = array.type
    if source.equals(target) and not _has_non_nullable(target):
        return array
    if (_is.is_list(target) and _is.is_list(source)) or (_is.is_map(target) and _is.is_map(source)):
        return _conform_list(array, target, path, truncate)
    if _is.is_struct(target) and _is.is_struct(source):
        return _conform_struct(array, target, path, truncate)
    if _is.is_timestamp(target) and _is.is_timestamp(source):
        return _conform_temporal(array, pa.timestamp(target.unit, source.tz), target, path, truncate)
    if _is.is_time(target) and _is.is_time(source):
        return _conform_temporal(array, target, target, path, truncate)
    if source.equals(target):
        return array
    try:
        return decoded(array).cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise InvalidRequest(f"column '{path}' of type {source} cannot become {target}: {e}") from e


def _conform_temporal(
    array: pa.Array, cast_to: pa.DataType, target: pa.DataType, path: str, truncate: bool
) -> pa.Array:
    try:
        cut = truncate and _DIGITS[array.type.unit] > _DIGITS[target.unit]
        return (_without_digits(array, cast_to) if cut else array.cast(cast_to)).view(target)
    except pa.ArrowInvalid as e:
        raise InvalidRequest(f"column '{path}' of type {array.type} does not fit {target}: {e}") from e


def _without_digits(array: pa.Array, coarser: pa.DataType) -> pa.Array:
    """`array` in a coarser unit. Digits are cut off as from the text of a timestamp, and as Java does: downwards.

    Arrow cuts towards 1970, which is upwards for what was before.
    """
    made = array.cast(coarser, safe=False)
    too_late = pc.greater(made.cast(array.type), array)
    if not pc.any(too_late).as_py():
        return made
    return pc.subtract(made.view(pa.int64()), too_late.cast(pa.int64())).view(coarser)


@lru_cache(maxsize=1024)
def _has_non_nullable(t: pa.DataType) -> bool:
    fields = [t.field(i) for i in range(t.num_fields)] if t.num_fields else []
    if _is.is_map(t):
        fields = [t.key_field, t.item_field]
    return any(not f.nullable or _has_non_nullable(f.type) for f in fields)


def _check_nullable(array: pa.Array, field: pa.Field, path: str, parents: pa.Array | None = None) -> None:
    """Raise `InvalidRequest` for a null in `array` where `field` is not nullable, unless its parent is null."""
    if field.nullable or not array.null_count:
        return
    nulls = pc.is_null(array)
    if parents is not None and parents.null_count:
        nulls = pc.and_(nulls, pc.is_valid(parents))
    count = nulls.true_count
    if count:
        first = pc.index(nulls, pa.scalar(True)).as_py()
        raise InvalidRequest(f"column '{path}' must not be null, but {count} values are, the first at {first}")


def _conform_list(array: pa.Array, target: pa.DataType, path: str, truncate: bool) -> pa.Array:
    if _is.is_map(target):
        keys = conform_array(array.keys, target.key_type, f"{path}.key", truncate)
        items = conform_array(array.items, target.item_type, f"{path}.value", truncate)
        _check_nullable(items, target.item_field, f"{path}.value")
        values = pa.StructArray.from_arrays([keys, items], fields=[target.key_field, target.item_field])
    else:
        values = conform_array(array.values, target.value_type, f"{path}.element", truncate)
        _check_nullable(values, target.value_field, f"{path}.element")
    return pa.Array.from_buffers(target, len(array), array.buffers()[:2], array.null_count, array.offset, [values])


def _conform_struct(array: pa.Array, target: pa.DataType, path: str, truncate: bool) -> pa.Array:
    children = []
    for i in range(target.num_fields):
        field = target.field(i)
        position = array.type.get_field_index(field.name)
        if position < 0:
            raise InvalidRequest(f"row '{path}' has no field '{field.name}'; it is {array.type}")
        values = conform_array(array.field(position), field.type, f"{path}.{field.name}", truncate)
        _check_nullable(values, field, f"{path}.{field.name}", array)
        children.append(values)
    return pa.Array.from_buffers(target, len(array), [validity_of(array)], array.null_count, 0, children)
