"""Values as Kafka Connect's JSON converter writes them, as values that Arrow takes for the type of a column.

Source: Debezium's documentation of its connectors ("Data type mappings"). A *described* type is the one of the schema
part of a message (`value.converter.schemas.enable`): it names the units of times and the scale of decimals, which the
value alone does not have.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from forebay.base.errors import InvalidRequest
from forebay.codec.arrow.arrow_types import time_unit
from forebay.metadata import types
from forebay.metadata.types import DataType, TypeRoot

Described = Mapping[str, Any] | None
Convert = Callable[[Any], Any]

BAD_VALUE = (ValueError, TypeError, ArithmeticError, KeyError)
"""What a `Convert`, or Arrow, raises for a value that is not of the type."""

_INTEGERS = frozenset({int, type(None)})
NATIVE: Mapping[TypeRoot, frozenset[type]] = {
    TypeRoot.BOOLEAN: frozenset({bool, type(None)}),
    **dict.fromkeys((TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INT, TypeRoot.BIGINT), _INTEGERS),
    **dict.fromkeys((TypeRoot.FLOAT, TypeRoot.DOUBLE), _INTEGERS | {float}),
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
_MOMENT = re.compile(r"(?P<whole>\d{4,}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?)(\.(?P<fraction>\d{1,9}))?(?P<zone>Z|[+-].+)?")
_TIME = re.compile(r"(?P<hours>\d\d):(?P<minutes>\d\d)(:(?P<seconds>\d\d)(\.(?P<fraction>\d{1,9}))?)?Z?")


def converter(t: DataType, described: Described, unit: str | None) -> Convert | None:
    """How values become those of type `t`; None if they are them already. `unit` is that of times without a schema."""
    name = (described or {}).get("name")
    match t.root:
        case TypeRoot.BOOLEAN:
            return _boolean
        case TypeRoot.TINYINT | TypeRoot.SMALLINT | TypeRoot.INT | TypeRoot.BIGINT:
            return _integer
        case TypeRoot.FLOAT | TypeRoot.DOUBLE:
            return _float
        case TypeRoot.DECIMAL:
            return _decimal_of(described, name)
        case TypeRoot.BYTES | TypeRoot.BINARY:
            return _bytes
        case TypeRoot.DATE:
            return _date
        case TypeRoot.TIME | TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            return _moment_of(t, _UNITS.get(name or "", None if described else unit))
        case TypeRoot.ARRAY | TypeRoot.MAP | TypeRoot.ROW:
            return _nested(t, described, unit)
        case _:
            return None


def type_of(described: Mapping[str, Any]) -> DataType:
    """The type of a column for what a schema part describes. Raises `InvalidRequest` where there is none."""
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
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError(value)
    return float(value)


def _bytes(value: Any) -> bytes:
    return base64.b64decode(value, validate=True)


def _date(value: Any) -> int:
    if isinstance(value, str):
        return dt.date.fromisoformat(value[:10]).toordinal() - _EPOCH.toordinal()
    return _integer(value)


def _decimal_of(described: Described, name: str | None) -> Convert:
    if name == _DECIMAL:
        scale = int(((described or {}).get("parameters") or {}).get("scale", 0))
        return lambda value: _scaled(value, scale)
    return _decimal


def _decimal(value: Any) -> Decimal:
    if isinstance(value, Mapping):  # a VariableScaleDecimal
        return _scaled(value["value"], int(value["scale"]))
    if isinstance(value, bool):
        raise ValueError(value)
    return Decimal(repr(value) if isinstance(value, float) else value)


def _scaled(value: Any, scale: int) -> Decimal:
    unscaled = int.from_bytes(_bytes(value), "big", signed=True)
    digits = Decimal(unscaled).as_tuple()
    return Decimal((digits.sign, digits.digits, -scale))  # arithmetic would round it to 28 digits


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

    return convert


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
    of = described or {}
    if t.root == TypeRoot.ARRAY:
        element = _or_null(converter(types.child(t.element), of.get("items"), unit))
        return lambda value: [element(each) for each in _is_a(value, list)]
    if t.root == TypeRoot.MAP:
        key = _or_null(converter(types.child(t.key), of.get("keys"), unit))
        item = _or_null(converter(types.child(t.value), of.get("values"), unit))
        return lambda value: [(key(k), item(v)) for k, v in _is_a(value, dict).items()]
    fields = {each.get("field"): each for each in of.get("fields", ())}
    parts = {f.name: _or_null(converter(f.data_type, fields.get(f.name), unit)) for f in t.fields}
    return lambda value: {name: convert(_is_a(value, dict).get(name)) for name, convert in parts.items()}


def _is_a(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(value)
    return value


def _or_null(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)
