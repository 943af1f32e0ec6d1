"""Values as Kafka Connect's JSON converter writes them, as values that Arrow takes for the type of a column.

Source: Debezium's documentation of its connectors ("Data type mappings"). A *described* type is the one of the schema
part of a message (`value.converter.schemas.enable`): it names the units of times and the scale of decimals, which the
value alone does not have.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np

from forebay.base.errors import InvalidRequest
from forebay.codec.arrow.arrow_types import time_unit
from forebay.codec.casting.arrays import text_fault, time_fits
from forebay.metadata import types
from forebay.metadata.types import DataType, TypeRoot

Described = Mapping[str, Any] | None
Convert = Callable[[Any], Any]

BAD_VALUE = (ValueError, TypeError, ArithmeticError, KeyError, AttributeError, RecursionError)
"""What a `Convert`, or Arrow, raises for a value that is not of the type."""

_INTEGERS = frozenset({int, type(None)})
NATIVE: Mapping[TypeRoot, frozenset[type]] = {
    TypeRoot.BOOLEAN: frozenset({bool, type(None)}),
    **dict.fromkeys((TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INT, TypeRoot.BIGINT), _INTEGERS),
}
"""The types of values that Arrow takes as they are, if a column has no others: no `Convert` need see them."""

TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

_DECIMAL, _VARIABLE = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"
_UNITS = {
    "io.debezium.time.Timestamp": "ms",
    "org.apache.kafka.connect.data.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
    "io.debezium.time.Time": "ms",
    "org.apache.kafka.connect.data.Time": "ms",
    "io.debezium.time.MicroTime": "us",
    "io.debezium.time.NanoTime": "ns",
}
_DATES = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
_ZONED = "io.debezium.time.ZonedTimestamp"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MOMENT = re.compile(
    r"(?P<whole>\d{4,}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?)(\.(?P<fraction>\d{1,9}))?(?P<zone>Z|[+-].+)?", re.ASCII
)
_TIME = re.compile(
    r"(?P<hours>\d\d):(?P<minutes>[0-5]\d)(:(?P<seconds>[0-5]\d)(\.(?P<fraction>\d{1,9}))?)?Z?", re.ASCII
)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_DIGITS_MAX = 400
"""Numbers with an exponent beyond this fit no column: they are wrong before anything is computed with them."""


def mismatch(t: DataType, described: Described) -> str | None:
    """Why no value of a column of type `t` can be what a schema part describes; None if values may fit."""
    if not described:
        return None
    kind, name = described.get("type"), _name_of(described)
    logical = _logical(name)
    fits = logical is _LOGICAL_OF.get(t.root) if logical else kind is None or kind in _KINDS[t.root]
    return None if fits else f"the source's type is {name if logical else kind}"


def _name_of(described: Described) -> str | None:
    name = described.get("name") if described else None
    return name if isinstance(name, str) else None


def _logical(name: str | None) -> str | None:
    """What a number of the named type means: a date, a time, a timestamp or a decimal; None for a plain value."""
    if name in _DATES:
        return "date"
    if name is not None and name in _UNITS:
        return "timestamp" if "Timestamp" in name else "time"
    return "decimal" if name in (_DECIMAL, _VARIABLE) else None


_LOGICAL_OF = {
    TypeRoot.DATE: "date",
    TypeRoot.TIME: "time",
    TypeRoot.TIMESTAMP: "timestamp",
    TypeRoot.TIMESTAMP_LTZ: "timestamp",
    TypeRoot.DECIMAL: "decimal",
}
_WHOLE_KINDS = ("int8", "int16", "int32", "int64")
_FLOAT_KINDS = ("float", "float32", "double", "float64")
_KINDS: Mapping[TypeRoot, tuple[str, ...]] = {
    TypeRoot.BOOLEAN: ("boolean", *_WHOLE_KINDS, "string"),
    **dict.fromkeys((TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INT, TypeRoot.BIGINT), (*_WHOLE_KINDS, "string")),
    **dict.fromkeys((TypeRoot.FLOAT, TypeRoot.DOUBLE, TypeRoot.DECIMAL), (*_WHOLE_KINDS, *_FLOAT_KINDS, "string")),
    **dict.fromkeys(
        (TypeRoot.CHAR, TypeRoot.STRING, TypeRoot.DATE, TypeRoot.TIME, TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ),
        ("string",),
    ),
    **dict.fromkeys((TypeRoot.BINARY, TypeRoot.BYTES), ("bytes",)),
    TypeRoot.ARRAY: ("array",),
    TypeRoot.MAP: ("map",),
    TypeRoot.ROW: ("struct",),
}
"""The plain types of a schema part whose values the columns take; texts that are no such value are wrong later."""


def converter(t: DataType, described: Described, unit: str | None) -> Convert | None:
    """How values become those of type `t`; None if they are them already. `unit` is that of times without a schema."""
    fault = mismatch(t, described)
    if fault is not None:
        return _always_wrong(fault)
    name = _name_of(described)
    match t.root:
        case TypeRoot.BOOLEAN:
            return _boolean
        case TypeRoot.TINYINT | TypeRoot.SMALLINT | TypeRoot.INT | TypeRoot.BIGINT:
            return _integer
        case TypeRoot.FLOAT | TypeRoot.DOUBLE:
            return partial(_float, is_narrow=t.root is TypeRoot.FLOAT)
        case TypeRoot.DECIMAL:
            return partial(_described_decimal, described) if name == _DECIMAL else _decimal
        case TypeRoot.BYTES | TypeRoot.BINARY:
            return _bytes
        case TypeRoot.DATE:
            return _date
        case TypeRoot.TIME | TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            return _moment_of(t, _UNITS.get(name or "", None if described else unit))
        case TypeRoot.ARRAY | TypeRoot.MAP | TypeRoot.ROW:
            return _nested(t, described, unit)
        case TypeRoot.CHAR | TypeRoot.STRING if t.length is not None:
            return partial(_text, t)
        case _:
            return None


def _always_wrong(fault: str) -> Convert:
    def convert(value: Any) -> Any:
        raise ValueError(fault)

    return convert


def type_of(described: Mapping[str, Any]) -> DataType:
    """The type of a column for what a schema part describes. Raises `InvalidRequest` where there is none."""
    try:
        return _type_of(described)
    except BAD_VALUE as e:
        raise InvalidRequest(f"the schema part describes column '{described.get('field')}' wrongly: {e}") from None


def _type_of(described: Mapping[str, Any]) -> DataType:
    kind, name = described.get("type"), described.get("name")
    parameters = described.get("parameters") or {}
    optional = described.get("optional", False)
    if name == _DECIMAL:
        data_type = types.decimal(int(parameters.get("connect.decimal.precision", 38)), int(parameters.get("scale", 0)))
    elif name in _DATES:
        data_type = types.date()
    elif name == _ZONED:
        data_type = types.timestamp_ltz(6)
    elif name in _UNITS:
        make = types.timestamp if "Timestamp" in name else types.time
        data_type = make({"ms": 3, "us": 6, "ns": 9}[_UNITS[name]])
    elif kind == "array":
        data_type = types.array(type_of(described["items"]))
    elif kind == "map":
        data_type = types.map_(type_of(described["keys"]).not_null(), type_of(described["values"]))
    elif kind in _PLAIN:
        data_type = _PLAIN[kind]()
    else:
        raise InvalidRequest(
            f"column '{described.get('field')}' is {name or kind} in the messages, for which no type is known: create "
            "the table, or add the column, with the type that it is to have"
        )
    return data_type if optional else data_type.not_null()


_PLAIN: dict[Any, Callable[[], DataType]] = {
    "boolean": types.boolean,
    "int8": types.tinyint,
    "int16": types.smallint,
    "int32": types.int_,
    "int64": types.bigint,
    "float": types.float_,
    "float32": types.float_,
    "double": types.double,
    "float64": types.double,
    "string": types.string,
    "bytes": types.bytes_,
}


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in (0, 1, "true", "false"):
        return value in (1, "true")
    raise ValueError(value)


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(value)
    if isinstance(value, str) and not _WHOLE.fullmatch(value):
        raise ValueError(value)
    return int(value)


def _float(value: Any, *, is_narrow: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise ValueError(value)
    if isinstance(value, str) and value not in _NOT_FINITE and not _NUMBER.fullmatch(value):
        raise ValueError(value)
    number = float(value)
    with np.errstate(over="ignore"):
        stored = float(np.float32(number)) if is_narrow else number
    if math.isinf(stored) and str(value) not in (*_NOT_FINITE, "inf", "-inf"):
        raise ValueError(f"{value}, which is out of range")
    is_whole = isinstance(value, int) or (isinstance(value, str) and _WHOLE.fullmatch(value) is not None)
    if is_whole and stored != int(value):
        raise ValueError(f"{value}, which would be rounded")
    return number


def _text(t: DataType, value: Any) -> Any:
    if isinstance(value, str) and value[t.length :].strip(" "):
        raise ValueError(text_fault(value, t))
    return value


def _bytes(value: Any) -> bytes:
    return base64.b64decode(value, validate=True)


def _date(value: Any) -> int:
    if isinstance(value, str):
        if not _DAY.fullmatch(value):
            raise ValueError(value)
        return dt.date.fromisoformat(value).toordinal() - _EPOCH.toordinal()
    return _integer(value)


def _described_decimal(described: Described, value: Any) -> Decimal:
    return _scaled(value, int(_mapping((described or {}).get("parameters")).get("scale", 0)))


def _decimal(value: Any) -> Decimal:
    if isinstance(value, Mapping):  # a VariableScaleDecimal
        return _scaled(value["value"], _integer(value["scale"]))
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise ValueError(value)
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        raise ValueError(value)
    return _bounded(Decimal(repr(value) if isinstance(value, float) else value))


def _bounded(number: Decimal) -> Decimal:
    if not number.is_finite() or (number and abs(int(number.as_tuple().exponent)) > _DIGITS_MAX):
        raise ValueError(f"{number}, which no DECIMAL holds")
    return number if number else Decimal(0)


def _scaled(value: Any, scale: int) -> Decimal:
    unscaled = int.from_bytes(_bytes(value), "big", signed=True)
    digits = Decimal(unscaled).as_tuple()
    return _bounded(Decimal((digits.sign, digits.digits, -scale)))  # arithmetic would round it to 28 digits


def _moment_of(t: DataType, unit: str | None) -> Convert:
    target = time_unit(t.precision)
    is_time, is_local = t.root == TypeRoot.TIME, t.root == TypeRoot.TIMESTAMP

    def convert(value: Any) -> int:
        if isinstance(value, str):
            nanoseconds = _time_of_day(value) if is_time else _instant(value, is_local)
            return _in_unit(nanoseconds, "ns", target)
        if unit is None:
            raise ValueError(f"a number of an unknown unit ({value}): say --time-unit, or send the schema part along")
        return _in_unit(_integer(value), unit, target)

    def time_of_day(value: Any) -> int:
        ticks = convert(value)
        if not time_fits(ticks, t):
            raise ValueError("not a time of day below 24:00 in whole milliseconds")
        return ticks

    return time_of_day if is_time else convert


def _in_unit(value: int, unit: str, target: str) -> int:
    scaled, rest = divmod(value * TICKS[target], TICKS[unit])
    if rest:
        raise ValueError(f"{value} {unit}, which has more digits than the type")
    return scaled


def _instant(text: str, is_local: bool) -> int:
    """Nanoseconds since 1970; local time is written as if it were UTC."""
    match = _MOMENT.fullmatch(text)
    if match is None or (match["zone"] is not None) == is_local:
        raise ValueError(text)
    zone = "+00:00" if is_local or match["zone"] == "Z" else match["zone"]
    since = dt.datetime.fromisoformat(match["whole"] + zone) - _EPOCH
    return (since.days * 86_400 + since.seconds) * TICKS["ns"] + _fraction(match["fraction"])


def _time_of_day(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(text)
    seconds = int(match["hours"]) * 3600 + int(match["minutes"]) * 60 + int(match["seconds"] or 0)
    return seconds * TICKS["ns"] + _fraction(match["fraction"])


def _fraction(digits: str | None) -> int:
    return int((digits or "").ljust(9, "0"))


def _nested(t: DataType, described: Described, unit: str | None) -> Convert:
    of = _mapping(described)
    if t.root == TypeRoot.ARRAY:
        element = _inner(types.child(t.element), _mapping(of.get("items")), unit)
        return lambda value: [element(each) for each in _is_a(value, list)]
    if t.root == TypeRoot.MAP:
        key = _inner(types.child(t.key), _mapping(of.get("keys")), unit)
        item = _inner(types.child(t.value), _mapping(of.get("values")), unit)
        return lambda value: _distinct([(key(k), item(v)) for k, v in _is_a(value, dict).items()])
    fields = fields_of(of)
    parts = {f.name: _inner(f.data_type, fields.get(f.name), unit) for f in t.fields}
    return lambda value: {name: convert(_is_a(value, dict).get(name)) for name, convert in parts.items()}


def _distinct(entries: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The entries of a map, which come from texts: '1' and '+1' are one number."""
    if len({key for key, _ in entries}) < len(entries):
        raise ValueError("two of its keys are equal")
    return entries


def new_field(t: DataType, value: Any) -> str | None:
    """A field inside of a value for a column of type `t` that its ROW types lack, such as `address.zip`, if any."""
    if isinstance(value, dict) and t.root == TypeRoot.ROW:
        parts = {f.name: f.data_type for f in t.fields}
        for name, each in value.items():
            if name not in parts:
                return str(name)
            if (inner := new_field(parts[name], each)) is not None:
                return f"{name}.{inner}"
    elif isinstance(value, list | dict) and t.root in (TypeRoot.ARRAY, TypeRoot.MAP):
        child, items = (t.element, value) if isinstance(value, list) else (t.value, list(value.values()))
        if child is not None:
            return next((new for each in items if (new := new_field(types.child(child), each)) is not None), None)
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    """A part of a schema part, which may be anything: without what it should have, it describes nothing."""
    return value if isinstance(value, Mapping) else {}


def fields_of(described: Any) -> dict[str, Mapping[str, Any]]:
    """The fields that a schema part describes, by name."""
    fields = _mapping(described).get("fields")
    return (
        {str(each.get("field")): each for each in fields if isinstance(each, Mapping)}
        if isinstance(fields, list)
        else {}
    )


def _is_a(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(value)
    return value


def _inner(t: DataType, described: Described, unit: str | None) -> Convert:
    """How values inside of others become those of type `t`, nulls included."""
    convert = converter(t, described, unit)

    def inner(value: Any) -> Any:
        if value is None:
            if not t.nullable:
                raise ValueError(f"a null inside, which {t} does not take")
            return None
        return value if convert is None else convert(value)

    return inner
