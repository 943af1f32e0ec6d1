"""Python values as the array that a column of a table stores: exact, or refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.codec.arrow.arrow_types import arrow_type
from forebay.codec.casting.arrays import (
    FLOAT_TYPES,
    INTEGER_TYPES,
    TEXT_TYPES,
    TIME_RANGE,
    CastError,
    check_names,
    require_no_nulls,
    text_fault,
    time_fits,
)
from forebay.codec.casting.literals import exact, within, wrong_kind
from forebay.codec.casting.value_arrays import array_of_column_values, validity_of_values
from forebay.codec.storage_values import DECIMAL_CONTEXT
from forebay.metadata.types import DataType, TypeRoot, child

# ---- Python values -> column ----------------------------------------------------------------------------------------


def array_of_values(values: Sequence[Any], t: DataType, path: str, *, nan_is_null: bool = False) -> pa.Array:
    """Python values as an array of `arrow_type(t)`; None is null, and with `nan_is_null` NaN is too.

    Dates, times and datetimes are those of the standard library, numpy or pandas; an ARRAY is any sequence but text,
    a MAP a dict or a list of pairs, a ROW a dict. Raises `CastError` for a value that is something else.
    """
    plain = [None if _is_missing(value, nan_is_null) else value for value in values]
    if t.is_nested:
        return _NESTED_VALUES[t.root](plain, t, path)
    converted = []
    for index, value in enumerate(plain):
        try:
            converted.append(None if value is None else _column_value(value, t))
        except InvalidRequest as e:
            raise CastError(path, e.message, index) from e
    try:
        return array_of_column_values(converted, arrow_type(t))
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as e:
        raise CastError(path, f"does not fit {t}: {e}", 0) from e


def _is_missing(value: Any, nan_is_null: bool) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return nan_is_null and isinstance(value, float) and math.isnan(value)


def _column_value(value: Any, t: DataType) -> Any:
    """`value` as a column value, with the concessions of `forebay.codec.casting.arrays`.

    Stricter than for filters, where a number may stand for a date.
    """
    if t.root in FLOAT_TYPES:
        return _float_value(value, t)
    if t.root in INTEGER_TYPES and not isinstance(value, int | np.integer | Decimal):
        raise wrong_kind(value, t, "an int")
    if t.root in (TypeRoot.DATE, TypeRoot.TIME) and isinstance(value, int | np.integer):
        raise wrong_kind(value, t, f"a datetime.{t.root.name.lower()}")
    if t.root is TypeRoot.DECIMAL and isinstance(value, float | np.floating):
        value = _nearest_decimal(float(value), t)
    converted = within(value, t) if t.root in _CUT_OFF else exact(value, t)
    if t.root is TypeRoot.TIME and not time_fits(converted, t):
        raise InvalidRequest(f"{value!r} does not fit {t}{TIME_RANGE}")
    if t.root is TypeRoot.BINARY and len(converted) != t.length:
        raise wrong_kind(value, t, f"exactly {t.length} bytes")
    if t.root in TEXT_TYPES and t.length is not None and len(converted) > t.length:
        if converted[t.length :].strip(" "):
            raise InvalidRequest(text_fault(converted, t))
        return converted[: t.length]
    return converted


_CUT_OFF = (TypeRoot.TIME, TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)
"""Types whose values lose the digits that a column does not have."""


def _nearest_decimal(value: float, t: DataType) -> Decimal:
    if not math.isfinite(value):
        raise wrong_kind(value, t, "a finite number")
    number = Decimal(value)
    if abs(number) >= 10**38:  # in no column's range
        return number
    return number.quantize(Decimal((0, (1,), -(t.scale or 0))), ROUND_HALF_EVEN, DECIMAL_CONTEXT)


def _float_value(value: Any, t: DataType) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number | Decimal):
        raise wrong_kind(value, t, "a float or int")
    if isinstance(value, int | np.integer):
        return float(exact(value, t))
    number = float(value)
    if t.root is TypeRoot.FLOAT and math.isinf(_to_float32(number)) and value not in (math.inf, -math.inf):
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


def _require_kind(values: Sequence[Any], kinds: tuple[type, ...], t: DataType, path: str) -> None:
    for index, value in enumerate(values):
        if value is not None and (not isinstance(value, kinds) or isinstance(value, str | bytes)):
            raise CastError(path, f"{value!r} ({type(value).__name__}) does not fit {t}", index)


def _list_of_values(values: Sequence[Any], t: DataType, path: str) -> pa.Array:
    _require_kind(values, (Sequence, np.ndarray), t, path)
    inner = child(t.element)
    elements, offsets = _flat([None if v is None else list(v) for v in values])
    array = array_of_values(elements, inner, f"{path}.element")
    require_no_nulls(array, inner, f"{path}.element")
    validity, nulls = validity_of_values(values)
    return pa.Array.from_buffers(arrow_type(t), len(values), [validity, offsets], nulls, 0, [array])


def _map_of_values(values: Sequence[Any], t: DataType, path: str) -> pa.Array:
    _require_kind(values, (Mapping, Sequence), t, path)
    lists = [None if v is None else list(v.items() if isinstance(v, Mapping) else v) for v in values]
    pairs, offsets = _flat(lists)
    for pair in pairs:
        if not isinstance(pair, Sequence) or isinstance(pair, str | bytes) or len(pair) != 2:
            raise CastError(path, f"{pair!r} is not a pair of key and value", 0)
    key_type, value_type = child(t.key), child(t.value)
    keys = array_of_values([pair[0] for pair in pairs], key_type, f"{path}.key")
    items = array_of_values([pair[1] for pair in pairs], value_type, f"{path}.value")
    require_no_nulls(keys, key_type, f"{path}.key")
    require_no_nulls(items, value_type, f"{path}.value")
    target = arrow_type(t)
    struct = pa.StructArray.from_arrays([keys, items], fields=[target.key_field, target.item_field])
    validity, nulls = validity_of_values(values)
    return pa.Array.from_buffers(target, len(values), [validity, offsets], nulls, 0, [struct])


def _row_of_values(values: Sequence[Any], t: DataType, path: str) -> pa.Array:
    _require_kind(values, (Mapping,), t, path)
    field_names = [f.name for f in t.fields]
    for value in values:
        check_names([] if value is None else list(value), field_names, f"row '{path}'", "field")
    validity, nulls = validity_of_values(values)
    parents = array_of_column_values([None if value is None else True for value in values], pa.bool_())
    children = []
    for f in t.fields:
        array = array_of_values(
            [None if value is None else value.get(f.name) for value in values], f.data_type, f"{path}.{f.name}"
        )
        require_no_nulls(array, f.data_type, f"{path}.{f.name}", parents)
        children.append(array)
    return pa.Array.from_buffers(arrow_type(t), len(values), [validity], nulls, 0, children)


_NESTED_VALUES: dict[TypeRoot, Callable[[Sequence[Any], DataType, str], pa.Array]] = {
    TypeRoot.ARRAY: _list_of_values,
    TypeRoot.MAP: _map_of_values,
    TypeRoot.ROW: _row_of_values,
}
