"""Literals of filters: Python values <-> `PbLiteralValue`, typed by the column they are compared with.

The rule: a literal travels in the type of its column and means exactly the same there, or it is refused with
`InvalidRequest`. Rounding is never right: servers drop whole batches by comparing their statistics with the literal,
so a bound that moved by one loses rows.

Python values are those that pyarrow's `as_py()` gives. Timestamps finer than a microsecond, which `datetime` cannot
hold, are `numpy.datetime64[ns]` (in UTC for TIMESTAMP_LTZ); `pandas.Timestamp` is understood too.

Sources: PredicateMessageUtils of Fluss and `predicate/pb.rs` of fluss-rs 1.0.0 for the fields; the refusals follow the
latter.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from numbers import Integral, Rational
from typing import Any

import numpy as np

from forebay.base.errors import InvalidRequest
from forebay.metadata.types import DECIMAL_COMPACT_PRECISION_MAX, DataType, TypeRoot
from forebay.protocol import fluss_pb2 as pb

LITERAL_TYPES: dict[TypeRoot, int] = {
    TypeRoot.BOOLEAN: 0,
    TypeRoot.TINYINT: 1,
    TypeRoot.SMALLINT: 2,
    TypeRoot.INT: 3,
    TypeRoot.BIGINT: 4,
    TypeRoot.FLOAT: 5,
    TypeRoot.DOUBLE: 6,
    TypeRoot.CHAR: 7,
    TypeRoot.STRING: 8,
    TypeRoot.DECIMAL: 9,
    TypeRoot.DATE: 10,
    TypeRoot.TIME: 11,
    TypeRoot.TIMESTAMP: 12,
    TypeRoot.TIMESTAMP_LTZ: 13,
    TypeRoot.BINARY: 14,
    TypeRoot.BYTES: 15,
}
"""`literal_type` of the types that a filter can compare."""

_INTEGER_BITS = {TypeRoot.TINYINT: 8, TypeRoot.SMALLINT: 16, TypeRoot.INT: 32, TypeRoot.BIGINT: 64}
_TEXTS = frozenset({TypeRoot.CHAR, TypeRoot.STRING})
_BINARIES = frozenset({TypeRoot.BINARY, TypeRoot.BYTES})
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=dt.UTC)
_MS_PER_DAY = 86_400_000
_INT64_MAX = (1 << 63) - 1


class _Misfit(Exception):
    """The reason why a literal cannot be used; becomes an `InvalidRequest` that names the column."""


def literal_to_pb(value: Any, data_type: DataType, column: str) -> pb.PbLiteralValue:
    """`value` as it is compared with a column of `data_type`. None is a null literal.

    Raises `InvalidRequest` where the column's type cannot hold exactly this value, or has no literals.
    """
    literal_type = LITERAL_TYPES.get(data_type.root)
    if literal_type is None:
        raise _invalid(column, data_type, "such columns cannot be compared with values")
    literal = pb.PbLiteralValue(literal_type=literal_type, is_null=value is None)
    if value is not None:
        try:
            _ENCODERS[data_type.root](literal, value, data_type)
        except _Misfit as misfit:
            raise _invalid(column, data_type, f"{value!r} {misfit}") from None
    return literal


def literal_from_pb(literal: pb.PbLiteralValue, data_type: DataType, column: str) -> Any:
    """The Python value of a literal that a peer sent for a column of `data_type`; None for a null literal.

    Raises `InvalidRequest` where the literal's type is not that of the column (any text fits any text, any binary any
    binary), its field is missing, or its value is outside the type or what Python can hold.
    """
    expected = LITERAL_TYPES.get(data_type.root)
    if expected is None:
        raise _invalid(column, data_type, "such columns cannot be compared with values")
    if literal.is_null:
        return None
    group = next((g for g in (_TEXTS, _BINARIES) if data_type.root in g), frozenset({data_type.root}))
    if literal.literal_type not in {LITERAL_TYPES[root] for root in group}:
        raise _invalid(column, data_type, f"the literal is of type {literal.literal_type} instead of {expected}")
    try:
        return _DECODERS[data_type.root](literal, data_type)
    except _Misfit as misfit:
        raise _invalid(column, data_type, f"the literal {misfit}") from None


# --- to the wire -----------------------------------------------------------------------------------------------


def _encode_boolean(literal: pb.PbLiteralValue, value: Any, _: DataType) -> None:
    if not isinstance(value, bool | np.bool_):
        raise _Misfit("is not a bool")
    literal.boolean_value = bool(value)


def _encode_integer(literal: pb.PbLiteralValue, value: Any, data_type: DataType) -> None:
    number = _integer(value)
    _require_bits(number, data_type.root)
    if data_type.root is TypeRoot.BIGINT:
        literal.bigint_value = number
    else:
        literal.int_value = number


def _encode_float(literal: pb.PbLiteralValue, value: Any, _: DataType) -> None:
    number = _float(value)
    if math.isfinite(number):
        try:
            exact = struct.unpack("<f", struct.pack("<f", number))[0] == number
        except OverflowError:
            exact = False
        if not exact:
            raise _Misfit("is not exactly a 32-bit float")
    literal.float_value = number


def _encode_double(literal: pb.PbLiteralValue, value: Any, _: DataType) -> None:
    literal.double_value = _float(value)


def _encode_text(literal: pb.PbLiteralValue, value: Any, _: DataType) -> None:
    if not isinstance(value, str):
        raise _Misfit("is not a str")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise _Misfit("is not a text that UTF-8 can hold") from None
    literal.string_value = value


def _encode_binary(literal: pb.PbLiteralValue, value: Any, _: DataType) -> None:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _Misfit("is not bytes")
    literal.binary_value = bytes(value)


def _encode_decimal(literal: pb.PbLiteralValue, value: Any, data_type: DataType) -> None:
    precision, scale = data_type.precision or 0, data_type.scale or 0
    if not isinstance(value, Decimal):
        value = Decimal(_integer(value))
    unscaled = _unscaled(value, scale)
    if unscaled is None or abs(unscaled) >= 10**precision:
        raise _Misfit("does not fit")
    if precision <= DECIMAL_COMPACT_PRECISION_MAX:
        literal.decimal_value = unscaled
    else:
        magnitude = unscaled if unscaled >= 0 else ~unscaled
        literal.decimal_bytes = unscaled.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def _encode_date(literal: pb.PbLiteralValue, value: Any, _: DataType) -> None:
    if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
        raise _Misfit("is not a datetime.date")
    literal.bigint_value = (value - _EPOCH.date()).days


def _encode_time(literal: pb.PbLiteralValue, value: Any, _: DataType) -> None:
    if not isinstance(value, dt.time) or value.tzinfo is not None:
        raise _Misfit("is not a datetime.time without a zone")
    if value.microsecond % 1000:
        raise _Misfit("is finer than a millisecond, and columns of this type are not")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    literal.int_value = seconds * 1000 + value.microsecond // 1000


def _encode_timestamp(literal: pb.PbLiteralValue, value: Any, data_type: DataType) -> None:
    nanos = _epoch_nanos(value, zoned=data_type.root is TypeRoot.TIMESTAMP_LTZ)
    literal.timestamp_millis_value, literal.timestamp_nano_of_millis_value = divmod(nanos, 1_000_000)


def _epoch_nanos(value: Any, zoned: bool) -> int:
    if isinstance(value, np.datetime64):
        if np.isnat(value):
            raise _Misfit("is not a time")
        try:
            in_nanos = value.astype("datetime64[ns]")
            exact = bool(in_nanos.astype(value.dtype) == value)
        except OverflowError:  # since NumPy 2.5; older ones wrap around
            exact = False
        if not exact:
            raise _Misfit("is not a whole number of nanoseconds, or too far from 1970 for them")
        return int(in_nanos.astype("int64"))
    if not isinstance(value, dt.datetime) or value != value:
        raise _Misfit("is not a datetime.datetime")
    if (value.utcoffset() is not None) != zoned:
        raise _Misfit("must have a zone" if zoned else "must not have a zone")
    since = value.to_pydatetime(warn=False) if hasattr(value, "to_pydatetime") else value
    delta = since - (_EPOCH_UTC if zoned else _EPOCH)
    micros = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    return micros * 1000 + int(getattr(value, "nanosecond", 0))


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _Misfit("is not a whole number")
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, Rational):
        raise _Misfit("is not a number")
    try:
        number = float(value)
    except OverflowError:
        raise _Misfit("is too large for a float") from None
    if number != value:
        raise _Misfit("is not exactly a float")
    return number


def _unscaled(value: Decimal, scale: int) -> int | None:
    """`value` * 10**`scale` if that is a whole number of at most 60 digits or so, else None."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return None
    number = int("".join(map(str, digits)))
    shift = exponent + scale
    if number == 0:
        return 0
    if shift > 60 or shift < -len(digits):
        return None
    number, rest = (number * 10**shift, 0) if shift >= 0 else divmod(number, 10**-shift)
    return None if rest else (-number if sign else number)


# --- from the wire ---------------------------------------------------------------------------------------------


def _decode_integer(literal: pb.PbLiteralValue, data_type: DataType) -> int:
    number = int(_field(literal, "bigint_value" if data_type.root is TypeRoot.BIGINT else "int_value"))
    _require_bits(number, data_type.root)
    return number


def _decode_decimal(literal: pb.PbLiteralValue, data_type: DataType) -> Decimal:
    if literal.HasField("decimal_bytes"):
        if not 1 <= len(literal.decimal_bytes) <= 16:
            raise _Misfit(f"has {len(literal.decimal_bytes)} bytes; a decimal has 1 to 16")
        unscaled = int.from_bytes(literal.decimal_bytes, "big", signed=True)
    else:
        unscaled = int(_field(literal, "decimal_value"))
    if abs(unscaled) >= 10 ** (data_type.precision or 0):
        raise _Misfit("has too many digits")
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -(data_type.scale or 0)))


def _decode_date(literal: pb.PbLiteralValue, _: DataType) -> dt.date:
    days = int(_field(literal, "bigint_value"))
    try:
        return _EPOCH.date() + dt.timedelta(days=days)
    except OverflowError:
        raise _Misfit(f"is {days} days from 1970, outside the years 1 to 9999") from None


def _decode_time(literal: pb.PbLiteralValue, _: DataType) -> dt.time:
    millis = int(_field(literal, "int_value"))
    if not 0 <= millis < _MS_PER_DAY:
        raise _Misfit(f"is {millis} ms, which is no time of day")
    return (_EPOCH + dt.timedelta(milliseconds=millis)).time()


def _decode_timestamp(literal: pb.PbLiteralValue, data_type: DataType) -> dt.datetime | np.datetime64:
    millis, nanos = int(_field(literal, "timestamp_millis_value")), literal.timestamp_nano_of_millis_value
    if not 0 <= nanos < 1_000_000:
        raise _Misfit(f"has {nanos} ns within its millisecond")
    if nanos % 1000:
        total = millis * 1_000_000 + nanos
        if abs(total) > _INT64_MAX:
            raise _Misfit("is too far from 1970 for nanoseconds")
        return np.datetime64(total, "ns")
    epoch = _EPOCH_UTC if data_type.root is TypeRoot.TIMESTAMP_LTZ else _EPOCH
    try:
        return epoch + dt.timedelta(milliseconds=millis, microseconds=nanos // 1000)
    except OverflowError:
        raise _Misfit(f"is {millis} ms from 1970, outside the years 1 to 9999") from None


def _field(literal: pb.PbLiteralValue, name: str) -> Any:
    if not literal.HasField(name):
        raise _Misfit(f"has no {name}")
    return getattr(literal, name)


def _require_bits(number: int, root: TypeRoot) -> None:
    limit = 1 << (_INTEGER_BITS[root] - 1)
    if not -limit <= number < limit:
        raise _Misfit("is out of range")


def _invalid(column: str, data_type: DataType, reason: str) -> InvalidRequest:
    return InvalidRequest(f"cannot filter column '{column}' of type {data_type}: {reason}")


_ENCODERS: dict[TypeRoot, Callable[[pb.PbLiteralValue, Any, DataType], None]] = {
    TypeRoot.BOOLEAN: _encode_boolean,
    **dict.fromkeys(_INTEGER_BITS, _encode_integer),
    TypeRoot.FLOAT: _encode_float,
    TypeRoot.DOUBLE: _encode_double,
    **dict.fromkeys(_TEXTS, _encode_text),
    **dict.fromkeys(_BINARIES, _encode_binary),
    TypeRoot.DECIMAL: _encode_decimal,
    TypeRoot.DATE: _encode_date,
    TypeRoot.TIME: _encode_time,
    TypeRoot.TIMESTAMP: _encode_timestamp,
    TypeRoot.TIMESTAMP_LTZ: _encode_timestamp,
}

_DECODERS: dict[TypeRoot, Callable[[pb.PbLiteralValue, DataType], Any]] = {
    TypeRoot.BOOLEAN: lambda literal, _: bool(_field(literal, "boolean_value")),
    **dict.fromkeys(_INTEGER_BITS, _decode_integer),
    TypeRoot.FLOAT: lambda literal, _: float(_field(literal, "float_value")),
    TypeRoot.DOUBLE: lambda literal, _: float(_field(literal, "double_value")),
    **dict.fromkeys(_TEXTS, lambda literal, _: str(_field(literal, "string_value"))),
    **dict.fromkeys(_BINARIES, lambda literal, _: bytes(_field(literal, "binary_value"))),
    TypeRoot.DECIMAL: _decode_decimal,
    TypeRoot.DATE: _decode_date,
    TypeRoot.TIME: _decode_time,
    TypeRoot.TIMESTAMP: _decode_timestamp,
    TypeRoot.TIMESTAMP_LTZ: _decode_timestamp,
}
