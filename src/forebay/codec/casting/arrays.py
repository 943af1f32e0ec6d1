"""Casts one Arrow array, or a list of Python values, to the array that a column of a table stores.

Casts lose nothing: integers into integers that hold them, text and bytes in any Arrow encoding, timestamps and times
into units that hold them. A timestamp with a zone fits TIMESTAMP_LTZ, one without fits TIMESTAMP, never the other way.
Four concessions, as in Arrow, Spark and Flink:

* Floats are rounded to the nearest FLOAT, and to the nearest DECIMAL of the column's scale (half to even): most decimal
  fractions have no exact float. Decimals become the nearest float. Decimals into DECIMAL are never rounded.
* Times and timestamps lose the digits beyond those of the column, downwards: clocks have more than most columns. Digits
  that the column has but storage has not are an error (`time_fits`).
* Decimals become integers if they are whole: sums in DuckDB are DECIMAL(38, 0).
* Texts lose trailing spaces beyond the length of a CHAR or VARCHAR.

A column is named by its path: `address.city`, `tags.element`, `attributes.value`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import InvalidRequest
from forebay.codec.arrow.arrow_types import arrow_name, arrow_type, is_list, time_unit
from forebay.codec.casting.encodings import decoded, without_view
from forebay.codec.casting.literals import TICKS_PER_SECOND
from forebay.metadata.types import DataType, TypeRoot, child, walk

INTEGER_TYPES = (TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INT, TypeRoot.BIGINT)
FLOAT_TYPES = (TypeRoot.FLOAT, TypeRoot.DOUBLE)
TEXT_TYPES = (TypeRoot.CHAR, TypeRoot.STRING)
_BYTES = (TypeRoot.BINARY, TypeRoot.BYTES)
_is = pa.types


class CastError(Exception):
    """A value cannot be cast: `detail` names it and says why; `index` is its position in the array."""

    def __init__(self, path: str, detail: str, index: int) -> None:
        super().__init__(detail)
        self.path = path
        self.detail = detail
        self.index = index


# ---- Arrow -> column ------------------------------------------------------------------------------------------------


def cast_array(array: pa.Array, t: DataType, path: str) -> pa.Array:
    """`array` as an array of `arrow_type(t)`; the same object when it is one.

    Raises `InvalidRequest` for a type that never fits, and `CastError` for a value that does not, or a null in a part
    that is NOT NULL. Nulls of the column itself are the caller's to check.
    """
    given = array.type
    array = decoded(array)
    target = arrow_type(t)
    if _is.is_null(array.type):
        return pa.nulls(len(array), target)
    is_there = array.type.equals(target) and is_stored_as_given(t)
    if t.is_nested:
        if is_there and not may_break_not_null(array, t):
            return array
        return _NESTED[t.root](array, t, path)
    return array if is_there else _cast_scalar(array, t, target, path, given)


def _is_text(t: pa.DataType) -> bool:
    return bool(_is.is_string(t) or _is.is_large_string(t) or _is.is_string_view(t))


def _is_bytes(t: pa.DataType) -> bool:
    return bool(_is.is_binary(t) or _is.is_large_binary(t) or _is.is_binary_view(t) or _is.is_fixed_size_binary(t))


def _accepts(t: DataType, source: pa.DataType) -> bool:
    """Whether arrays of type `source` may hold values for columns of type `t`."""
    if t.root in INTEGER_TYPES:
        return bool(_is.is_integer(source) or _is.is_decimal(source))
    if t.root in FLOAT_TYPES or t.root is TypeRoot.DECIMAL:
        return bool(_is.is_floating(source) or _is.is_integer(source) or _is.is_decimal(source))
    if t.root in TEXT_TYPES:
        return _is_text(source)
    if t.root in _BYTES:
        return _is_bytes(source)
    match t.root:
        case TypeRoot.BOOLEAN:
            return bool(_is.is_boolean(source))
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
    if _is.is_floating(source) and t.root in INTEGER_TYPES:
        return "; cast it yourself if the values are whole (pandas makes floats of integers with gaps: use Int64)"
    return ""


def wrong_type(path: str, data_type: pa.DataType, t: DataType, hint: str = "") -> InvalidRequest:
    """The error for a column whose type never fits."""
    return InvalidRequest(f"column '{path}' is of type {t}, but the data has {arrow_name(data_type)}{hint}")


_ROUND = "; if it may be rounded, do that first (pyarrow.compute.round, polars round, Decimal.quantize)"


def _cast_scalar(array: pa.Array, t: DataType, target: pa.DataType, path: str, given: pa.DataType) -> pa.Array:
    if not _accepts(t, array.type):
        raise wrong_type(path, given, t, _hint(t, array.type))

    def convert(part: pa.Array) -> pa.Array:
        return _convert(part, t, target)

    try:
        return convert(array)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        index = first_failure(array, convert)
        if t.root in TEXT_TYPES and t.length is not None:
            raise CastError(path, text_fault(array[index].as_py(), t), index) from e
        hint = TIME_RANGE if t.root is TypeRoot.TIME else ""
        if t.root is TypeRoot.DECIMAL and _is.is_decimal(array.type):
            hint = _ROUND
        raise CastError(path, f"{arrow_name(array.type)} {shown(array[index])} does not fit {t}{hint}", index) from e


def shown(value: pa.Scalar) -> str:
    """`value` for a message; a time or timestamp that Python's types cannot express as a number with its unit."""
    t = value.type
    if _is.is_time(t) and not 0 <= value.value < 86_400 * TICKS_PER_SECOND[t.unit]:  # Python would show another time
        return f"{value.value} {t.unit}"
    try:
        return str(value)
    except (OverflowError, ValueError):
        return f"{value.value} {t.unit}"


def first_failure(array: pa.Array, convert: Callable[[pa.Array], Any]) -> int:
    """The index of the first value that `convert` refuses, given that it refuses `array`."""
    good, bad = 0, len(array)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            convert(array.slice(good, middle - good))
            good = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, CastError):
            bad = middle
    return good


def _convert(array: pa.Array, t: DataType, target: pa.DataType) -> pa.Array:
    """Cast as the module says, or raise pa.ArrowInvalid. Arrow's own safe casts are not safe everywhere."""
    source = array.type
    if t.root is TypeRoot.DECIMAL:
        return _to_decimal(array, t, target)
    if _is.is_decimal(source):
        array = _from_decimal(array, t)
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
        return in_unit(array, pa.timestamp(target.unit, source.tz)).view(target)
    if t.root is TypeRoot.TIME:
        return require_times(in_unit(array, target), t)
    if t.root is TypeRoot.TIMESTAMP:
        return in_unit(array, target)
    result = (
        without_view(array, target) if _is.is_string_view(source) or _is.is_binary_view(source) else array.cast(target)
    )
    return fit_texts(result, t.length) if t.root in TEXT_TYPES and t.length is not None else result


def fit_texts(array: pa.Array, length: int) -> pa.Array:
    """Strings without the trailing spaces beyond `length` code points. Raises `pa.ArrowInvalid` for longer texts."""
    longest = pc.max(pc.binary_length(array)).as_py()  # no text has more code points than bytes
    if longest is None or longest <= length or pc.max(pc.utf8_length(array)).as_py() <= length:
        return array
    cut = pc.utf8_slice_codeunits(array, 0, length)
    if pc.any(pc.not_equal(pc.utf8_rtrim(array, " "), pc.utf8_rtrim(cut, " "))).as_py():
        raise pa.ArrowInvalid(f"longer than {length}")
    return cut


def _to_decimal(array: pa.Array, t: DataType, target: pa.DataType) -> pa.Array:
    if _is.is_integer(array.type):
        array = array.cast(pa.decimal128(38, t.scale))
    elif _is.is_floating(array.type):
        array = array.cast(pa.float64())
    return array.cast(target)


def _from_decimal(array: pa.Array, t: DataType) -> pa.Array:
    """Decimals as integers, which must be equal, or as the nearest floats."""
    if t.root in INTEGER_TYPES:
        return array.cast(pa.decimal128(38, array.type.scale)).cast(pa.int64())  # of decimal32 Arrow takes few values
    return array.cast(pa.string()).cast(pa.float64())  # Arrow's own cast does not find the nearest


def text_fault(text: str, t: DataType) -> str:
    """Why `text` does not fit the CHAR or VARCHAR `t`."""
    excerpt = text if len(text) <= _TEXT_SHOWN else f"{text[:_TEXT_SHOWN]}..."
    return f"{excerpt!r} has {len(text)} characters, which do not fit {t}"


_TEXT_SHOWN = 60
"""Maximum number of characters of a text in a message."""

TIME_RANGE = (
    "; a TIME is a time of day below 24:00 in whole milliseconds, which is what Fluss and Paimon store of each TIME(p) "
    "(a column of type TIME(3) cuts off further digits)"
)
"""What a TIME may be, for messages."""


def time_fits(ticks: int, t: DataType) -> bool:
    """Whether a TIME column of type `t` may have this value, in the unit of its storage type.

    Rows of Fluss, and all files of Paimon, store milliseconds, whatever the precision is.
    """
    return 0 <= ticks < _ticks_of_day(t) and ticks * 1_000 % TICKS_PER_SECOND[time_unit(t.precision)] == 0


def require_times(array: pa.Array, t: DataType) -> pa.Array:
    """`array`, of the storage type of the TIME `t`. Raises `pa.ArrowInvalid` if a value is not as `time_fits` says."""
    numbers = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    extremes = pc.min_max(numbers)
    if extremes["min"].is_valid and not all(0 <= extremes[end].as_py() < _ticks_of_day(t) for end in ("min", "max")):
        raise pa.ArrowInvalid("not a time of day")
    coarse = array.cast(pa.time32("ms"), safe=False) if pa.types.is_time64(array.type) else array
    if pc.any(pc.not_equal(coarse.cast(array.type), array)).as_py():
        raise pa.ArrowInvalid("not whole milliseconds")
    return array


def _ticks_of_day(t: DataType) -> int:
    return 86_400 * TICKS_PER_SECOND[time_unit(t.precision)]


_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def in_unit(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Times or timestamps as `target`, which may have another unit. Digits that a coarser one lacks are cut off.

    They are cut off as from the text of a timestamp, and as Java does: downwards. Arrow cuts towards 1970, which is
    upwards for what was before.
    """
    if _DIGITS[array.type.unit] <= _DIGITS[target.unit]:
        return array.cast(target)
    coarse = array.cast(target, safe=False)
    too_late = pc.greater(coarse.cast(array.type), array)
    if not pc.any(too_late).as_py():
        return coarse
    return pc.subtract(coarse.view(pa.int64()), too_late.cast(pa.int64())).view(target)


# ---- nested types ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _has_not_null(t: DataType) -> bool:
    return any(not inner.nullable or _has_not_null(inner) for inner in t.children())


@lru_cache(maxsize=1024)
def has_time(t: DataType) -> bool:
    """Return whether a type is or contains TIME."""
    return any(inner.root is TypeRoot.TIME for inner in walk(t))


def is_stored_as_given(t: DataType) -> bool:
    """Whether all arrays of `arrow_type(t)` may be stored: not TIMESTAMP_LTZ, which loses its zone, TIME, whose values
    have a range, and CHAR and VARCHAR, whose values have a length.
    """
    return not has_ltz(t) and not has_time(t) and not _has_length(t)


@lru_cache(maxsize=1024)
def _has_length(t: DataType) -> bool:
    return any(inner.root in TEXT_TYPES and inner.length is not None for inner in walk(t))


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


def require_no_nulls(array: pa.Array, t: DataType, path: str, parents: pa.Array | None = None) -> None:
    """Raise `CastError` for a null in `array` where `t` is NOT NULL, unless its parent is null too."""
    if t.nullable or not array.null_count:
        return
    nulls = pc.is_null(array)
    if parents is not None and parents.null_count:
        nulls = pc.and_(nulls, pc.is_valid(parents))
    index = pc.index(nulls, pa.scalar(True)).as_py()
    if index >= 0:
        raise CastError(path, "is NOT NULL, but null is inside the data", index)


def _cast_list(array: pa.Array, t: DataType, path: str) -> pa.Array:
    s = array.type
    if not is_list(s):
        raise wrong_type(path, s, t)
    inner = child(t.element)
    element_path = f"{path}.element"
    elements = cast_array(pc.list_flatten(array), inner, element_path)
    require_no_nulls(elements, inner, element_path)
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
    pairs = is_list(s) and _is.is_struct(s.value_type) and s.value_type.num_fields == 2
    if not pairs:
        raise wrong_type(path, array.type, t)
    keys, items = pc.list_flatten(lists).flatten()
    key_type, value_type = child(t.key), child(t.value)
    keys = cast_array(keys, key_type, f"{path}.key")
    items = cast_array(items, value_type, f"{path}.value")
    require_no_nulls(keys, key_type, f"{path}.key")
    require_no_nulls(items, value_type, f"{path}.value")
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
    fields = dict(zip(names, array.flatten(), strict=True))
    children = []
    for f in t.fields:
        field_path = f"{path}.{f.name}"
        if f.name in fields:
            field = cast_array(fields[f.name], f.data_type, field_path)
        else:
            field = pa.nulls(len(array), arrow_type(f.data_type))
        require_no_nulls(field, f.data_type, field_path, array)
        children.append(field)
    return pa.Array.from_buffers(arrow_type(t), len(array), [validity_of(array)], array.null_count, 0, children)


_NESTED: dict[TypeRoot, Callable[[pa.Array, DataType, str], pa.Array]] = {
    TypeRoot.ARRAY: _cast_list,
    TypeRoot.MAP: _cast_map,
    TypeRoot.ROW: _cast_row,
}


def check_names(names: Sequence[str], allowed_names: Sequence[str], where: str, what: str) -> None:
    """Raise `InvalidRequest` for a name that is given twice or not wanted."""
    distinct = set(names)
    if not distinct.issubset(allowed_names):
        extra = next(name for name in names if name not in allowed_names)
        raise InvalidRequest(f"the data has {what} '{extra}', but {where} has the {what}s {', '.join(allowed_names)}")
    if len(distinct) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"the data has {what} '{repeated}' more than once")
