"""Partition directories: `dt=2024-01-01/h=1`.

Values are column values as defined by `forebay.codec.casting.literals`: what `to_pylist()` returns, but dates as days,
and times and timestamps as integers in the unit of the storage type.

Paimon has two textual forms. The legacy form (`partition.legacy-name`, the default) is Java's `toString`: a DATE is its
number of days. The other is SQL's cast to a string. A null or blank value gets `partition.default-name`.
"""

from __future__ import annotations

import datetime
import math
import re
import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from forebay.base.errors import CorruptData, InvalidRequest
from forebay.metadata.types import DataType, TypeRoot
from forebay.paimon.format.schema import DataField

DEFAULT_PARTITION_NAME = "__DEFAULT_PARTITION__"

_ESCAPED = frozenset(map(chr, range(32))) | frozenset("\"#%'*/:=?\\\x7f{}[]^")
_TO_ESCAPE = re.compile("[" + re.escape("".join(sorted(_ESCAPED))) + "]")
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_DATE = datetime.date(1970, 1, 1)


def escape(text: str) -> str:
    """`text` with characters that are not allowed in paths written as %XX."""
    return _TO_ESCAPE.sub(lambda match: f"%{ord(match[0]):02X}", text)


def partition_spec(
    fields: Sequence[DataField],
    values: Sequence[Any],
    default_name: str = DEFAULT_PARTITION_NAME,
    legacy: bool = True,
    zone: str = "UTC",
) -> dict[str, str]:
    """The names and textual values of a partition, in the order of `fields`. `zone` is the time zone of LTZ values."""
    spec = {}
    for f, value in zip(fields, values, strict=True):
        text = None if value is None else value_text(f.type, value, legacy, zone)
        spec[f.name] = default_name if text is None or not text.strip() else text
    return spec


def partition_path(spec: Mapping[str, str]) -> str:
    """The relative directory of a partition, without a trailing slash; empty if there are no partition keys."""
    for name, value in spec.items():
        if not value:
            raise InvalidRequest(f"the partition column '{name}' has an empty value, which no directory can be named")
    return "/".join(f"{escape(name)}={escape(value)}" for name, value in spec.items())


def value_text(t: DataType, value: Any, legacy: bool, zone: str = "UTC") -> str:
    """`value` as text in a partition name."""
    match t.root:
        case TypeRoot.BOOLEAN:
            return "true" if value else "false"
        case TypeRoot.FLOAT | TypeRoot.DOUBLE:
            return java_float_text(value, single=t.root is TypeRoot.FLOAT)
        case TypeRoot.DECIMAL:
            return format(value, "f")
        case TypeRoot.BINARY | TypeRoot.BYTES:
            return bytes(value).decode("utf-8", "replace")
        case TypeRoot.DATE if not legacy:
            return _date(value)
        case TypeRoot.TIME if not legacy:
            return _time(value, t.precision or 0)
        case TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            return _timestamp(t, value, legacy, zone)
        case TypeRoot.ARRAY | TypeRoot.MAP | TypeRoot.ROW:
            raise InvalidRequest(f"a column of type {t} cannot be a partition key")
    return str(value)


def java_float_text(value: float, single: bool) -> str:
    """`value` as Java prints a float (`single`) or double: 1.0, 1.0E10, 1.0E-5, NaN, Infinity."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    sign, digits, exponent = Decimal(_shortest(value, single)).as_tuple()
    numerals = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + int(exponent)  # digits before the decimal point
    if -3 < point <= 7:
        whole = (numerals[:point] or "0").ljust(point, "0") if point > 0 else "0"
        fraction = (numerals[point:] if point > 0 else "0" * -point + numerals) or "0"
        text = f"{whole}.{fraction}"
    else:
        text = f"{numerals[0]}.{numerals[1:] or '0'}E{point - 1}"
    return "-" + text if sign else text


def _shortest(value: float, single: bool) -> str:
    """The shortest decimal that parses back to `value`."""
    if not single:
        return repr(float(value))
    target = struct.pack("<f", value)
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        try:
            if struct.pack("<f", float(text)) == target:
                return text
        except OverflowError:  # rounded up beyond the largest float
            continue
    return repr(float(value))


def _date(days: int) -> str:
    try:
        return (_EPOCH_DATE + datetime.timedelta(days=days)).isoformat()
    except OverflowError as e:
        raise InvalidRequest(f"day {days} is outside the years 1 to 9999") from e


def _time(millis: int, precision: int) -> str:
    seconds, rest = divmod(millis, 1000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if precision == 0:
        return text
    return f"{text}.{(f'{rest:03}'[:precision]).rstrip('0') or '0'}"


def ticks_per_second(precision: int | None) -> int:
    """Units of the storage type per second: ms up to precision 3, us up to 6, otherwise ns."""
    digits = 6 if precision is None else precision
    return 1_000 if digits <= 3 else 1_000_000 if digits <= 6 else 1_000_000_000


def _timestamp(t: DataType, value: int, legacy: bool, zone: str) -> str:
    per_second = ticks_per_second(t.precision)
    seconds, rest = divmod(value, per_second)
    nanos = rest * (1_000_000_000 // per_second)
    try:
        moment = _EPOCH + datetime.timedelta(seconds=seconds)
        if t.root is TypeRoot.TIMESTAMP_LTZ and not legacy:
            moment = moment.replace(tzinfo=datetime.UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    except OverflowError as e:
        raise InvalidRequest(f"the timestamp {value} is outside the years 1 to 9999") from e
    if legacy:
        return moment.strftime("%Y-%m-%dT%H:%M").rjust(16, "0") + _iso_seconds(moment.second, nanos)
    fraction = f"{nanos:09}"
    least = t.precision if t.precision is not None else 6
    while len(fraction) > least and fraction.endswith("0"):
        fraction = fraction[:-1]
    return f"{moment:%Y-%m-%d %H:%M:%S}" + (f".{fraction}" if fraction else "")


def _iso_seconds(seconds: int, nanos: int) -> str:
    """The end of Java's `LocalDateTime.toString`: nothing, seconds, or seconds and 3, 6 or 9 digits."""
    if nanos == 0:
        return f":{seconds:02}" if seconds else ""
    text = f"{nanos:09}"
    for digits in (3, 6):
        if text[digits:].strip("0") == "":
            return f":{seconds:02}.{text[:digits]}"
    return f":{seconds:02}.{text}"


def parse_value(t: DataType, text: str, default_name: str = DEFAULT_PARTITION_NAME) -> Any:
    """The column value of `text`, in either form; None for the default name.

    Raises `InvalidRequest` if `text` is not a value of type `t`.
    """
    if text == default_name:
        return None
    try:
        return _parse(t, text)
    except (ValueError, ArithmeticError, CorruptData) as e:
        raise InvalidRequest(f"{text!r} is not a value of type {t}: {e}") from e


def _parse(t: DataType, text: str) -> Any:
    match t.root:
        case TypeRoot.STRING | TypeRoot.CHAR:
            return text
        case TypeRoot.BOOLEAN:
            lowered = text.lower()
            if lowered not in ("true", "false"):
                raise ValueError("write 'true' or 'false'")
            return lowered == "true"
        case TypeRoot.TINYINT | TypeRoot.SMALLINT | TypeRoot.INT | TypeRoot.BIGINT:
            return int(text)
        case TypeRoot.FLOAT | TypeRoot.DOUBLE:
            return float(text)
        case TypeRoot.DECIMAL:
            return Decimal(text).quantize(Decimal(1).scaleb(-(t.scale or 0)))
        case TypeRoot.BINARY | TypeRoot.BYTES:
            return text.encode()
        case TypeRoot.DATE:
            return int(text) if _is_integer(text) else (datetime.date.fromisoformat(text) - _EPOCH_DATE).days
        case TypeRoot.TIME:
            return int(text) if _is_integer(text) else _parse_time(text)
        case TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            return _parse_timestamp(t, text)
    raise ValueError(f"a column of type {t} cannot be a partition key")


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdigit()


def _parse_time(text: str) -> int:
    moment = datetime.time.fromisoformat(text)
    return ((moment.hour * 60 + moment.minute) * 60 + moment.second) * 1000 + moment.microsecond // 1000


def _parse_timestamp(t: DataType, text: str) -> int:
    head, _, fraction = text.partition(".")
    if fraction and not (fraction.isdigit() and len(fraction) <= 9):
        raise ValueError("a fraction has up to nine digits")
    since = datetime.datetime.fromisoformat(head).replace(tzinfo=None) - _EPOCH
    nanos = (since.days * 86_400 + since.seconds) * 1_000_000_000 + int(fraction.ljust(9, "0") or "0")
    return nanos * ticks_per_second(t.precision) // 1_000_000_000
