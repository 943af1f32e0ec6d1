"""Python values as values of a column: exact, or with the nearest column value below.

A *column value* is what comparing and encoding works with: Python's own bool, int, float, str, bytes and Decimal, and
integers for dates (days), times and timestamps, in the unit of the column's storage type. Any column value, and so
any bound of a column, compares with `<` and `==` to any other of the column (floats: see `sort_key`).

`place` finds where a literal lies among the values of a column. A literal between two of them (3.5 in an INT column,
a microsecond in a TIMESTAMP(3) column) is reported as the one below and not exact, so that a filter can be rewritten
without changing what it means (codec.filters).
"""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.codec.arrow.arrow_types import arrow_type, time_unit
from forebay.codec.casting.value_arrays import array_of_column_values
from forebay.codec.storage_values import DECIMAL_CONTEXT
from forebay.metadata.types import DataType, TypeRoot

TICKS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

_INTEGER_BITS = {TypeRoot.TINYINT: 8, TypeRoot.SMALLINT: 16, TypeRoot.INT: 32, TypeRoot.BIGINT: 64}
_TICK_BITS = {TypeRoot.DATE: 32, TypeRoot.TIMESTAMP: 64, TypeRoot.TIMESTAMP_LTZ: 64}
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_MICROSECOND = datetime.timedelta(microseconds=1)
_NUMPY_UNIT_NANOS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "D": 86_400_000_000_000,
}


def is_floating(t: DataType) -> bool:
    return t.root in (TypeRoot.FLOAT, TypeRoot.DOUBLE)


def sort_key(value: float) -> tuple[bool, float]:
    """The order of floating-point columns: -0.0 equals 0.0, NaN equals NaN and is greater than all others.

    This is the order of Spark SQL. Java's `Double.compare`, by which Fluss's statistics are made, differs only in
    putting -0.0 before 0.0, so a bound by that order is a bound by this one too.
    """
    return (True, 0.0) if value != value else (False, value)


def value_range(t: DataType) -> tuple[Any, Any] | None:
    """The least and the greatest value that a column of type `t` can hold; None where there are no such."""
    bits = _INTEGER_BITS.get(t.root) or _TICK_BITS.get(t.root)
    if t.root is TypeRoot.TIME:
        bits = 32 if time_unit(t.precision) in ("s", "ms") else 64
    if bits is not None:
        return -(1 << bits - 1), (1 << bits - 1) - 1
    if t.root is TypeRoot.DECIMAL:
        greatest = Decimal(10 ** (t.precision or 0) - 1).scaleb(-(t.scale or 0), DECIMAL_CONTEXT)
        return -greatest, greatest
    return None


def place(value: Any, t: DataType) -> tuple[Any, bool]:
    """(the greatest column value of type `t` that is not above `value`, whether it equals `value`).

    The column value may exceed the range of the type. Raises `InvalidRequest`, which says what was given and what
    is wanted, for a value of another kind.
    """
    if isinstance(value, pa.Scalar):
        value = _from_scalar(value)
    elif isinstance(value, np.generic) and not isinstance(value, np.datetime64):
        value = value.item()
    if t.root in _INTEGER_BITS:
        return _place_integer(value, t)
    if is_floating(t):
        return _place_float(value, t)
    match t.root:
        case TypeRoot.BOOLEAN:
            _require(isinstance(value, bool), value, t, "True or False")
            return value, True
        case TypeRoot.CHAR | TypeRoot.STRING:
            _require(isinstance(value, str), value, t, "a str")
            return value, True
        case TypeRoot.BINARY | TypeRoot.BYTES:
            _require(isinstance(value, bytes | bytearray | memoryview), value, t, "bytes")
            return bytes(value), True
        case TypeRoot.DECIMAL:
            return _place_decimal(value, t)
        case TypeRoot.DATE:
            return _days(value, t), True
        case TypeRoot.TIME:
            return _ticks(_nanos_of_day(value, t), t)
        case TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            return _ticks(_nanos_since_epoch(value, t), t)
        case _:
            raise InvalidRequest(f"a {t.root.name} column cannot be compared with a value; only tested for null")


def exact(value: Any, t: DataType) -> Any:
    """The column value for `value`. Raises `InvalidRequest` where there is none, or it is out of range."""
    placed, is_exact = place(value, t)
    if not is_exact:
        hint = ": round it first (Decimal.quantize)" if t.root is TypeRoot.DECIMAL else ""
        raise InvalidRequest(f"{value!r} does not fit {t} without loss{hint}")
    return _in_range(placed, value, t)


def within(value: Any, t: DataType) -> Any:
    """The greatest column value that is not above `value`. Raises `InvalidRequest` if that is out of range."""
    return _in_range(place(value, t)[0], value, t)


def _in_range(placed: Any, value: Any, t: DataType) -> Any:
    limits = value_range(t)
    if limits is not None and not limits[0] <= placed <= limits[1]:
        raise InvalidRequest(f"{value!r} does not fit {t}")
    return placed


def to_python(value: Any, t: DataType) -> Any:
    """A column value as users know it: dates, times and datetimes (LTZ: in UTC).

    Timestamps that `datetime` cannot express (nanoseconds, years beyond 9999) come as `numpy.datetime64` (LTZ: in UTC),
    other such values as `pa.Scalar`.
    """
    if value is None or t.root not in (TypeRoot.DATE, TypeRoot.TIME, TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ):
        return value
    try:
        if t.root is TypeRoot.DATE:
            return datetime.date.fromordinal(value + _EPOCH_DAY)
        per_second = TICKS_PER_SECOND[time_unit(t.precision)]
        micros, rest = divmod(value * 1_000_000, per_second)
        if rest == 0 and t.root is TypeRoot.TIME:
            return (_EPOCH + micros * _MICROSECOND).time() if 0 <= micros < 86_400_000_000 else _scalar(value, t)
        if rest == 0:
            return (_EPOCH if t.root is TypeRoot.TIMESTAMP else _EPOCH_UTC) + micros * _MICROSECOND
    except (OverflowError, ValueError):  # beyond what the standard library can express
        pass
    if t.root is TypeRoot.TIMESTAMP or t.root is TypeRoot.TIMESTAMP_LTZ:
        unit: Any = time_unit(t.precision)
        return np.datetime64(value, unit)
    return _scalar(value, t)


def _scalar(value: Any, t: DataType) -> pa.Scalar:
    return to_scalar(value, arrow_type(t, "UTC"))


def to_scalar(value: Any, t: pa.DataType) -> pa.Scalar:
    """A column value as an Arrow scalar of type `t`, which must have the column's unit."""
    return array_of_column_values([value], t)[0]


def _from_scalar(scalar: pa.Scalar) -> Any:
    """A pa.Scalar as a Python value; times and timestamps as nanoseconds in a wrapper that keeps the zone."""
    t = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_timestamp(t) or pa.types.is_time(t):
        nanos = scalar.value * (1_000_000_000 // TICKS_PER_SECOND[t.unit])
        return _Nanos(nanos, pa.types.is_time(t), pa.types.is_timestamp(t) and t.tz is not None)
    if pa.types.is_date32(t):
        return scalar.value
    return scalar.as_py()


class _Nanos:
    """A time of day or a timestamp in nanoseconds."""

    __slots__ = ("has_zone", "is_time", "value")

    def __init__(self, value: int, is_time: bool, has_zone: bool) -> None:
        self.value = value
        self.is_time = is_time
        self.has_zone = has_zone

    def __repr__(self) -> str:
        return f"{self.value} ns" + (" UTC" if self.has_zone else "")


def _place_integer(value: Any, t: DataType) -> tuple[int, bool]:
    _require(isinstance(value, int | float | Decimal | Fraction) and not isinstance(value, bool), value, t, "an int")
    if not isinstance(value, int | Fraction):
        _require(math.isfinite(value), value, t, "a finite number")
    below = math.floor(value)
    return below, below == value


def _place_float(value: Any, t: DataType) -> tuple[float, bool]:
    _require(isinstance(value, int | float | Decimal) and not isinstance(value, bool), value, t, "a number")
    if value != value:
        return math.nan, True
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if t.root is TypeRoot.FLOAT:
        with np.errstate(over="ignore"):
            number = float(np.float32(number))
    if number > value:
        step = np.float32(-math.inf) if t.root is TypeRoot.FLOAT else np.float64(-math.inf)
        narrow = np.float32(number) if t.root is TypeRoot.FLOAT else np.float64(number)
        number = float(np.nextafter(narrow, step))
    return number, number == value


def _place_decimal(value: Any, t: DataType) -> tuple[Decimal, bool]:
    _require(isinstance(value, int | Decimal) and not isinstance(value, bool), value, t, "a decimal.Decimal or int")
    number = Decimal(value)
    _require(number.is_finite(), value, t, "a finite number")
    unscaled = math.floor(Fraction(number) * 10 ** (t.scale or 0))
    below = Decimal(unscaled).scaleb(-(t.scale or 0), DECIMAL_CONTEXT) if _fits(unscaled) else Decimal(unscaled)
    return below, below == number


def _fits(unscaled: int) -> bool:
    """Whether the digits survive in the decimal context; beyond, only the side of the range matters."""
    return abs(unscaled) < 10**78


def _days(value: Any, t: DataType) -> int:
    if isinstance(value, np.datetime64):
        value = value.astype(object) if np.datetime_data(value)[0] == "D" else value
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value.toordinal() - _EPOCH_DAY
    _require(isinstance(value, int) and not isinstance(value, bool), value, t, "a datetime.date, or an int of days")
    return int(value)


def _nanos_of_day(value: Any, t: DataType) -> int:
    if isinstance(value, _Nanos) and value.is_time:
        return value.value
    if isinstance(value, datetime.time) and value.tzinfo is None:
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return (seconds * 1_000_000 + value.microsecond) * 1_000
    _require(
        isinstance(value, int) and not isinstance(value, bool), value, t, "a datetime.time, or an int of milliseconds"
    )
    return int(value) * 1_000_000


def _nanos_since_epoch(value: Any, t: DataType) -> int:
    wants_zone = t.root is TypeRoot.TIMESTAMP_LTZ
    if isinstance(value, _Nanos):
        _require(not value.is_time and value.has_zone is wants_zone, value, t, _timestamp_form(wants_zone))
        return value.value
    if isinstance(value, np.datetime64):  # for LTZ: in UTC, as NumPy means it
        _require(not np.isnat(value), value, t, _timestamp_form(wants_zone))
        return _numpy_nanos(value)
    has_zone = isinstance(value, datetime.datetime) and value.tzinfo is not None
    _require(isinstance(value, datetime.datetime) and has_zone is wants_zone, value, t, _timestamp_form(wants_zone))
    elapsed = value - (_EPOCH_UTC if wants_zone else _EPOCH)
    # pandas.Timestamp is a datetime with nanoseconds on top; its differences are plain numbers of nanoseconds.
    if hasattr(elapsed, "value"):
        return int(elapsed.value)
    return int(elapsed // _MICROSECOND) * 1_000


def _numpy_nanos(value: np.datetime64) -> int:
    """Nanoseconds since the epoch, in Python's own integers, because NumPy's conversions overflow silently."""
    unit, step = np.datetime_data(value)
    if unit not in _NUMPY_UNIT_NANOS:
        value = value.astype("datetime64[D]")
        unit, step = "D", 1
    return int(value.astype(np.int64)) * step * _NUMPY_UNIT_NANOS[unit]


def _timestamp_form(wants_zone: bool) -> str:
    if wants_zone:
        return (
            "a datetime.datetime with a time zone, such as datetime.now(datetime.UTC); value.astimezone() adds the "
            "machine's own"
        )
    return "a datetime.datetime without a time zone; value.replace(tzinfo=None) drops it"


def _ticks(nanos: int, t: DataType) -> tuple[int, bool]:
    per_tick = 1_000_000_000 // TICKS_PER_SECOND[time_unit(t.precision)]
    return nanos // per_tick, nanos % per_tick == 0


def wrong_kind(value: Any, t: DataType, expected: str) -> InvalidRequest:
    """The error for a value of a kind that columns of type `t` do not take."""
    return InvalidRequest(f"{value!r} ({type(value).__name__}) is not a value for type {t}: give {expected}")


def _require(condition: bool, value: Any, t: DataType, expected: str) -> None:
    if not condition:
        raise wrong_kind(value, t, expected)
