"""Values of DECIMAL, TIME and timestamps as the integers that row formats store.

A value comes in the unit of the storage type (s, ms, us or ns), so that nothing is rounded.
"""

from __future__ import annotations

from decimal import Context, Decimal

from forebay.codec.arrow.arrow_types import time_unit
from forebay.metadata.types import DataType

DECIMAL_CONTEXT = Context(prec=80)
"""Python rounds decimals to 28 digits unless told otherwise; DECIMAL has up to 38."""

_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def split_timestamp(t: DataType, value: int) -> tuple[int, int]:
    """(milliseconds, nanoseconds of the millisecond) of a timestamp in the unit of its storage type."""
    ticks = _TICKS[time_unit(t.precision)]
    nanos = value * (1_000_000_000 // ticks)
    return nanos // 1_000_000, nanos % 1_000_000


def time_millis(t: DataType, value: int) -> int:
    """Milliseconds of the day of a TIME in the unit of its storage type."""
    return value * 1_000 // _TICKS[time_unit(t.precision)]


def unscaled(t: DataType, value: Decimal) -> int:
    """Return the unscaled integer of a DECIMAL value."""
    return int(value.scaleb(t.scale or 0, DECIMAL_CONTEXT))


def big_endian(value: int) -> bytes:
    """The shortest big-endian two's complement."""
    return value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True)
