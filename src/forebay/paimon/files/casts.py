"""Conversion of columns between types, by Paimon's rules for changing a column's type.

A file is read with the schema it was written with; `evolve` then converts its columns to the types of the reader's
schema: fields of rows by their ids, and plain values by Java Paimon's cast rules. Those are Java's own conversions:
narrower integers wrap around, floats are truncated and saturate, decimals that do not fit become null, invalid numbers
in text are errors. The time zone of TIMESTAMP_LTZ is UTC here (Java uses the zone of its process).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.metadata.types import NESTED_ROOTS, DataType, TypeRoot, child
from forebay.paimon.format.arrow import arrow_type
from forebay.paimon.format.partition_path import java_float_text, value_text

_R = TypeRoot
_INTEGERS = {_R.TINYINT: np.int8, _R.SMALLINT: np.int16, _R.INT: np.int32, _R.BIGINT: np.int64}
_FLOATS = {_R.FLOAT: np.float32, _R.DOUBLE: np.float64}
_NUMBERS = frozenset({*_INTEGERS, *_FLOATS, _R.DECIMAL})
_TEXTS = frozenset({_R.CHAR, _R.STRING})
_BINARIES = frozenset({_R.BINARY, _R.BYTES})
_TIMESTAMPS = frozenset({_R.TIMESTAMP, _R.TIMESTAMP_LTZ})


def same_type(a: DataType, b: DataType) -> bool:
    """Whether values of `a` are values of `b` without conversion (ignoring nullability at all depths)."""
    if a == b:
        return True
    if replace(a, nullable=True, fields=(), element=None, key=None, value=None) != replace(
        b, nullable=True, fields=(), element=None, key=None, value=None
    ):
        return False
    if a.root is _R.ROW:
        return [(f.field_id, f.name) for f in a.fields] == [(f.field_id, f.name) for f in b.fields] and all(
            same_type(x.data_type, y.data_type) for x, y in zip(a.fields, b.fields, strict=True)
        )
    return all(same_type(x, y) for x, y in zip(a.children(), b.children(), strict=True))


def evolve(array: pa.Array, source: DataType, target: DataType) -> pa.Array:
    """`array`, of type `source`, converted to type `target`. Raises `UnsupportedOperation` if there is no such cast."""
    storage = arrow_type(source)
    if not array.type.equals(storage):
        array = array.cast(storage, safe=False)
    if same_type(source, target):
        # Equal types may differ in the names or nullability of nested fields.
        target_arrow = arrow_type(target)
        return array if array.type.equals(target_arrow) else array.cast(target_arrow, safe=False)
    if source.root is not target.root or not source.is_nested:
        return _cast_plain(array, source, target)
    match source.root:
        case _R.ARRAY:
            values = evolve(array.values, child(source.element), child(target.element))
            return _with_children(array, arrow_type(target), values)
        case _R.MAP:
            keys = evolve(array.keys, child(source.key), child(target.key))
            items = evolve(array.items, child(source.value), child(target.value))
            target_arrow = arrow_type(target)
            entries = pa.StructArray.from_arrays(
                [keys, items], fields=[target_arrow.key_field, target_arrow.item_field]
            )
            return _with_children(array, target_arrow, entries)
        case _:
            return _evolve_row(array, source, target)


def evolve_exactly(array: pa.Array, source: DataType, target: DataType) -> pa.Array | None:
    """`evolve`; None if a value would be changed, or there is no such cast.

    For files that are newer than their reader: `evolve` silently changes values that are too large, which must not
    happen if the table itself has the original value.
    """
    if not (is_castable(source, target) and is_castable(target, source)):
        return None
    storage = arrow_type(source)
    array = array if array.type.equals(storage) else array.cast(storage, safe=False)
    converted = evolve(array, source, target)
    back = evolve(converted, target, source)
    if back.equals(array):
        return converted
    if pa.types.is_floating(storage) and back.is_null().equals(array.is_null()):  # NaN is not equal to itself
        same = np.array_equal(_plain(back), _plain(array), equal_nan=True)
        return converted if same else None
    return None


def _with_children(array: pa.Array, target_arrow: pa.DataType, values: pa.Array) -> pa.Array:
    validity, offsets = array.buffers()[:2]
    return pa.Array.from_buffers(target_arrow, len(array), [validity, offsets], offset=array.offset, children=[values])


def _evolve_row(array: pa.Array, source: DataType, target: DataType) -> pa.Array:
    by_id = {f.field_id: (i, f.data_type) for i, f in enumerate(source.fields)}
    target_arrow = arrow_type(target)
    children = []
    for position, f in enumerate(target.fields):
        place = by_id.get(f.field_id)
        if place is None:
            children.append(pa.nulls(len(array), target_arrow.field(position).type))
        else:
            children.append(evolve(array.field(place[0]), place[1], f.data_type))
    fields = [target_arrow.field(i).with_nullable(True) for i in range(target_arrow.num_fields)]
    struct = pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    return struct if struct.type.equals(target_arrow) else struct.cast(target_arrow, safe=False)


# ---- plain types ----------------------------------------------------------------------------------------------------


def is_castable(source: DataType, target: DataType) -> bool:
    """Whether `evolve` can convert values of `source` to `target`."""
    if source.root is target.root and source.is_nested:
        if source.root is _R.ROW:
            by_id = {f.field_id: f.data_type for f in source.fields}
            return all(is_castable(by_id[f.field_id], f.data_type) for f in target.fields if f.field_id in by_id)
        return all(is_castable(x, y) for x, y in zip(source.children(), target.children(), strict=True))
    return same_type(source, target) or _rule(source, target) is not None


_Cast = Callable[[pa.Array, DataType, DataType], pa.Array]


def _cast_plain(array: pa.Array, source: DataType, target: DataType) -> pa.Array:
    rule = _rule(source, target)
    if rule is None:
        raise UnsupportedOperation(f"a column of type {source} cannot be read as {target}: Paimon has no such cast")
    return rule(array, source, target)


def _rule(source: DataType, target: DataType) -> _Cast | None:
    a, b = source.root, target.root
    if a in _NUMBERS and b in _NUMBERS:
        return _number_to_number
    if a is _R.BOOLEAN and b in _NUMBERS:
        return lambda array, _, t: _number_to_number(array.cast(pa.int32()), DataType(_R.INT), t)
    if a in _INTEGERS and b is _R.BOOLEAN:
        return lambda array, _, t: pc.not_equal(array, pa.scalar(0, array.type))
    if b in _TEXTS:
        return _to_text(a)
    if a in _TEXTS:
        return _from_text(b)
    if a in _BINARIES and b in _BINARIES:
        return lambda array, _, t: _cut_bytes(array, t)
    return _temporal(a, b)


def _temporal(a: TypeRoot, b: TypeRoot) -> _Cast | None:
    if a in _TIMESTAMPS and (b in _TIMESTAMPS or b in (_R.DATE, _R.TIME)):
        return _from_timestamp
    if a is _R.DATE and b in _TIMESTAMPS:
        return lambda array, _, t: _in_unit_of(array.cast(pa.timestamp("ms")), t)
    if a is _R.TIME and b in _TIMESTAMPS:
        return lambda array, _, t: (
            array.cast(pa.int32()).cast(pa.int64()).cast(pa.timestamp("ms")).cast(arrow_type(t), safe=False)
        )
    if a in (_R.INT, _R.BIGINT) and b in _TIMESTAMPS:
        return lambda array, _, t: _in_unit_of(array.cast(pa.int64()).cast(pa.timestamp("s")), t)
    if a in _TIMESTAMPS and b in (_R.INT, _R.BIGINT):
        return lambda array, _, t: _wrap(_floor(array, "s").cast(pa.int64()), t)
    return None


def _in_unit_of(array: pa.Array, target: DataType) -> pa.Array:
    """Timestamps without a zone in the type of `target`. Raises `InvalidRequest` if they exceed its range."""
    target_arrow = arrow_type(target)
    try:
        finer = array.cast(pa.timestamp(target_arrow.unit))
    except pa.ArrowInvalid as e:
        raise InvalidRequest(f"a value of the column is beyond what {target} can hold in Arrow: {e}") from e
    return finer.cast(target_arrow, safe=False)


def _floor(array: pa.Array, unit: str) -> pa.Array:
    """Timestamps in `unit`, rounded down, without a zone."""
    plain = array.cast(pa.timestamp(array.type.unit), safe=False)
    return pc.floor_temporal(plain, unit={"s": "second", "ms": "millisecond", "D": "day"}[unit]).cast(
        pa.date32() if unit == "D" else pa.timestamp(unit), safe=False
    )


def _from_timestamp(array: pa.Array, source: DataType, target: DataType) -> pa.Array:
    if target.root is _R.DATE:
        return _floor(array, "D")
    if target.root is _R.TIME:
        millis = _floor(array, "ms").cast(pa.int64())
        day = 86_400_000
        return pa.array(np.mod(_plain(millis), day).astype(np.int32), mask=_nulls(array)).cast(arrow_type(target))
    return _cut_moments(array.cast(pa.timestamp(array.type.unit), safe=False), target)


_NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def _cut_moments(array: pa.Array, target: DataType) -> pa.Array:
    """Timestamps without a zone as `target`, truncated to its precision."""
    precision = min(9, target.precision if target.precision is not None else 6)
    ticks = 10 ** (9 - precision) // _NANOS[array.type.unit]
    if ticks > 1:
        values = _plain(array.cast(pa.int64()))
        array = pa.array(values - np.mod(values, ticks), mask=_nulls(array)).cast(array.type)
    return _in_unit_of(array, target)


# ---- numbers --------------------------------------------------------------------------------------------------------


def _plain(array: pa.Array) -> Any:
    """The values as NumPy, with zeros for nulls."""
    return pc.fill_null(array, pa.scalar(0, array.type)).to_numpy(zero_copy_only=False)


def _nulls(array: pa.Array) -> Any:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def _wrap(array: pa.Array, target: DataType) -> pa.Array:
    """Integers as a narrower (or wider) integer type, truncated to its bits as in Java."""
    return pa.array(_plain(array).astype(_INTEGERS[target.root]), mask=_nulls(array))


def _number_to_number(array: pa.Array, source: DataType, target: DataType) -> pa.Array:
    if target.root is _R.DECIMAL:
        return _to_decimal(array, source, target)
    if source.root is _R.DECIMAL:
        if target.root in _FLOATS:  # Arrow's own cast does not always round to nearest
            return _by_value(array, lambda v: v if v is None else float(v), pa.float64()).cast(arrow_type(target))
        integers = pc.trunc(array).cast(pa.decimal128(38, 0), safe=False)
        return _decimal_to_integer(integers, target)
    if target.root in _FLOATS:
        return array.cast(arrow_type(target), safe=False)
    if source.root in _FLOATS:
        return _float_to_integer(array, target)
    return _wrap(array, target)


def _decimal_to_integer(integers: pa.Array, target: DataType) -> pa.Array:
    """The low 64 bits, then those of the target, like `BigDecimal.longValue` and Java's narrowing."""
    buffers = integers.buffers()
    words = np.frombuffer(buffers[1], np.int64)[2 * integers.offset : 2 * (integers.offset + len(integers)) : 2]
    return pa.array(words.astype(_INTEGERS[target.root]), mask=_nulls(integers))


def _float_to_integer(array: pa.Array, target: DataType) -> pa.Array:
    values = np.nan_to_num(_plain(array).astype(np.float64), nan=0.0)
    bits = 64 if target.root is _R.BIGINT else 32
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    in_range = (values >= float(low)) & (values < float(2 ** (bits - 1)))
    integers = np.where(in_range, np.trunc(np.where(in_range, values, 0.0)), 0.0).astype(np.int64)
    integers = np.where(in_range, integers, np.where(values < 0, low, high))
    return pa.array(integers.astype(_INTEGERS[target.root]), mask=_nulls(array))


def _to_decimal(array: pa.Array, source: DataType, target: DataType) -> pa.Array:
    """Decimals of the target's scale, rounded half up; null if they exceed its precision."""
    precision, scale = target.precision or 38, target.scale or 0
    if source.root in _INTEGERS:
        wide = array.cast(pa.int64()).cast(pa.decimal256(19, 0)).cast(pa.decimal256(76, scale))
    elif source.root is _R.DECIMAL:
        spare = max(scale, source.scale or 0)
        wide = pc.round(array.cast(pa.decimal256(76, spare)), scale, "half_towards_infinity")
        wide = wide.cast(pa.decimal256(76, scale), safe=False)
    else:
        return _by_value(array, lambda v: _decimal_of(Decimal(str(v)), precision, scale), arrow_type(target))
    limit = Decimal(10 ** max(0, precision - scale))
    bound = pa.scalar(limit, pa.decimal256(76, scale))
    fits = pc.and_(pc.less(wide, bound), pc.greater(wide, pa.scalar(-limit, pa.decimal256(76, scale))))
    return pc.if_else(fits, wide, pa.scalar(None, wide.type)).cast(arrow_type(target), safe=False)


def _decimal_of(value: Decimal, precision: int, scale: int) -> Decimal | None:
    if not value.is_finite():
        raise InvalidRequest(f"{value} cannot be read as DECIMAL({precision}, {scale})")
    scaled = value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, Context(prec=400))
    return scaled if abs(scaled.scaleb(scale)) < 10**precision else None


# ---- texts ----------------------------------------------------------------------------------------------------------


def _by_value(array: pa.Array, convert: Callable[[Any], Any], target_arrow: pa.DataType) -> pa.Array:
    """`convert` applied to each distinct value, for casts that Arrow does not do like Java."""
    encoded = array.dictionary_encode()
    converted = pa.array([convert(v) for v in encoded.dictionary.to_pylist()], target_arrow)
    return converted.take(encoded.indices)


def _to_text(a: TypeRoot) -> _Cast | None:
    def through(make: Callable[[pa.Array, DataType], pa.Array]) -> _Cast:
        return lambda array, s, t: _cut_text(make(array, s), t)

    if a in _INTEGERS:
        return through(lambda array, _: array.cast(pa.string()))
    if a is _R.DECIMAL:
        return through(lambda array, _: _by_value(array, lambda v: format(v, "f"), pa.string()))
    if a in _FLOATS:
        single = a is _R.FLOAT
        return through(lambda array, _: _by_value(array, lambda v: java_float_text(v, single), pa.string()))
    if a is _R.BOOLEAN or a in _TEXTS:
        return through(lambda array, _: array.cast(pa.string()))
    if a in _BINARIES:
        return lambda array, _, t: array.cast(pa.binary()).cast(pa.string())
    if a is _R.DATE:
        return through(lambda array, _: pc.strftime(array, "%Y-%m-%d"))
    if a is _R.TIME or a in _TIMESTAMPS:
        return through(_moment_text)
    if a in NESTED_ROOTS:
        return lambda array, s, _: _nested_text(array, s)  # in full, even in CHAR and VARCHAR, as in Java
    return None


def _moment_text(array: pa.Array, source: DataType) -> pa.Array:
    """Times and timestamps as Java prints them: up to the digits of the precision, without trailing zeros."""
    ticks = array.cast(pa.int32()).cast(pa.int64()) if source.root is _R.TIME else array.cast(pa.int64())
    return _by_value(ticks, lambda v: value_text(source, v, legacy=False), pa.string())


def _nested_text(array: pa.Array, source: DataType) -> pa.Array:
    """[a, b], {key -> value} and {field, field}, with nested values as text, too. Row by row: it is rarely needed."""
    text = DataType(_R.STRING)
    if source.root is _R.ROW:
        parts = [evolve(array.field(i), f.data_type, text).to_pylist() for i, f in enumerate(source.fields)]
        rows = zip(*parts, strict=True) if parts else ((),) * len(array)
        valid = array.is_valid().to_pylist()
        texts = ["{" + ", ".join(map(_or_null, row)) + "}" if ok else None for ok, row in zip(valid, rows, strict=True)]
    elif source.root is _R.ARRAY:
        values = evolve(array, source, DataType(_R.ARRAY, element=text)).to_pylist()
        texts = [None if v is None else "[" + ", ".join(map(_or_null, v)) + "]" for v in values]
    else:
        values = evolve(array, source, DataType(_R.MAP, key=text.not_null(), value=text)).to_pylist()
        entries = [None if v is None else ", ".join(f"{k} -> {_or_null(i)}" for k, i in v) for v in values]
        texts = [None if e is None else "{" + e + "}" for e in entries]
    return pa.array(texts, pa.string())


def _or_null(text: str | None) -> str:
    return "null" if text is None else text


def _cut_text(array: pa.Array, target: DataType) -> pa.Array:
    if target.length is None:
        return array
    truncated = pc.utf8_slice_codeunits(array, 0, target.length)
    return pc.utf8_rpad(truncated, target.length, " ") if target.root is _R.CHAR else truncated


def _cut_bytes(array: pa.Array, target: DataType) -> pa.Array:
    plain = array.cast(pa.binary())
    if target.length is not None:
        plain = pc.binary_slice(plain, 0, target.length)
        if target.root is _R.BINARY:
            length = target.length
            plain = _by_value(plain, lambda v: v if v is None else v.ljust(length, b"\0"), pa.binary())
    return plain


_TRUE = {"t", "true", "y", "yes", "1"}
_FALSE = {"f", "false", "n", "no", "0"}


def _from_text(b: TypeRoot) -> _Cast | None:
    if b in _BINARIES:
        return lambda array, _, t: _cut_bytes(array, t)
    if b is _R.BOOLEAN:
        return lambda array, _, t: _by_value(array, _boolean_of, pa.bool_())
    if b in _INTEGERS or b in _FLOATS or b in (_R.DATE, _R.DECIMAL, _R.TIME) or b in _TIMESTAMPS:
        return _parse_text
    return None


def _boolean_of(text: str | None) -> bool | None:
    if text is None:
        return None
    lowered = text.lower()
    if lowered in _TRUE or lowered in _FALSE:
        return lowered in _TRUE
    raise InvalidRequest(f"the text '{text}' cannot be read as BOOLEAN")


def _integer_of(text: str | None) -> int | None:
    """The integer of a text; like Java, ignores the fraction: 12.9 is 12."""
    if text is None:
        return None
    match = re.fullmatch(r"([+-]?)([0-9]*)(?:\.[0-9]*)?", text)
    if match is None or text in ("", "+", "-"):
        raise InvalidRequest(f"the text '{text}' cannot be read as an integer")
    return int(f"{match[1]}{match[2] or 0}")


def _time_of(text: str | None) -> int | None:
    """Milliseconds of the day for `hour[:minute[:second[.fraction]]]`."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]+)(?::([0-9]+)(?::([0-9]+)(?:\.([0-9]*))?)?)?", text)
    if match is None:
        raise InvalidRequest(f"the text '{text}' cannot be read as TIME")
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    if hour > 23 or minute > 59 or second > 59:
        raise InvalidRequest(f"the text '{text}' cannot be read as TIME")
    return ((hour * 60 + minute) * 60 + second) * 1000 + int((match[4] or "").ljust(3, "0")[:3])


def _parse_text(array: pa.Array, source: DataType, target: DataType) -> pa.Array:
    trimmed = pc.utf8_trim_whitespace(array)
    precision, scale = target.precision or 38, target.scale or 0
    try:
        if target.root is _R.DECIMAL:
            parsed = _by_value(trimmed, lambda v: _decimal_of(Decimal(v), precision, scale), arrow_type(target))
        elif target.root in _INTEGERS:
            parsed = _by_value(trimmed, _integer_of, arrow_type(target))
        elif target.root is _R.TIME:
            parsed = _by_value(trimmed, _time_of, pa.int32()).cast(arrow_type(target))
        elif target.root in _TIMESTAMPS:
            unit = "ns" if arrow_type(target).unit == "ns" else "us"  # finer units have a smaller range
            digits = pc.replace_substring_regex(trimmed, r"(\.[0-9]{6})[0-9]+", r"\1") if unit == "us" else trimmed
            parsed = _cut_moments(digits.cast(pa.timestamp(unit)), target)
        else:
            parsed = trimmed.cast(arrow_type(target))
    except (pa.ArrowException, ArithmeticError, ValueError, OverflowError) as e:
        raise InvalidRequest(f"a text of the column cannot be read as {target}: {e}") from e
    return parsed
