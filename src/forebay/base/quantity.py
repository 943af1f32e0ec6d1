"""Durations, points in time and memory sizes in human-readable form ("10 min", "4mb"), in Fluss's syntax."""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import TypeAlias

from forebay.base.errors import InvalidRequest

Span: TypeAlias = dt.timedelta | float | str
"""A length of time: a timedelta, seconds, or text such as "10 min"."""

Moment: TypeAlias = dt.datetime | str
"""A point in time: a datetime or ISO text of one; both are in UTC if they have no time zone."""

Past: TypeAlias = Moment | dt.timedelta
"""A point in time, or a timedelta: that long ago."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EARLIEST_MS, _LATEST_MS = -62_135_596_800_000, 253_402_300_799_999

_NUMBER_AND_UNIT = re.compile(r"^\s*(\d+)\s*([a-zA-Zµ]*)\s*$")

_DURATION_MS: dict[str, float] = {
    unit: factor
    for factor, units in (
        (86_400_000.0, ("d", "day", "days")),
        (3_600_000.0, ("h", "hour", "hours")),
        (60_000.0, ("min", "m", "minute", "minutes")),
        (1000.0, ("s", "sec", "secs", "second", "seconds")),
        (1.0, ("", "ms", "milli", "millis", "millisecond", "milliseconds")),
        (1e-3, ("µs", "micro", "micros", "microsecond", "microseconds")),
        (1e-6, ("ns", "nano", "nanos", "nanosecond", "nanoseconds")),
    )
    for unit in units
}

_MEMORY_BYTES: dict[str, int] = {
    unit: 1 << shift
    for shift, units in (
        (0, ("", "b", "bytes")),
        (10, ("k", "kb", "kibibytes")),
        (20, ("m", "mb", "mebibytes")),
        (30, ("g", "gb", "gibibytes")),
        (40, ("t", "tb", "tebibytes")),
    )
    for unit in units
}


def parse_duration_ms(text: str) -> int:
    """Milliseconds of `text` such as "30 s", "10min" or "500" (no unit means milliseconds).

    Raises `InvalidRequest` for anything else. A value below one millisecond rounds down to 0.
    """
    match = _NUMBER_AND_UNIT.match(text)
    factor = _DURATION_MS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InvalidRequest(f"{text!r} is not a duration: write a number and a unit, such as '30 s' or '10 min'")
    return int(int(match[1]) * factor)


def span_ms(span: Span, what: str) -> int:
    """`span` in milliseconds. Raises `InvalidRequest` unless it is a non-negative length of time."""
    if isinstance(span, str):
        return parse_duration_ms(span)
    if isinstance(span, dt.timedelta):
        milliseconds = span / dt.timedelta(milliseconds=1)
    elif isinstance(span, int | float) and not isinstance(span, bool) and math.isfinite(span):
        milliseconds = span * 1000
    else:
        raise InvalidRequest(f"{what}={span!r} is not a length of time: {_SPANS}")
    if milliseconds < 0:
        raise InvalidRequest(f"{what}={span!r} is negative: {_SPANS}")
    return round(milliseconds)


def span_seconds(span: Span | None, what: str) -> float | None:
    """`span` in seconds; None for None. Raises `InvalidRequest` as `span_ms` does."""
    return None if span is None else span_ms(span, what) / 1000


_SPANS = "give a timedelta, a number of seconds, or text such as '10 min'"


def moment_ms(moment: Moment, what: str) -> int:
    """`moment` in milliseconds since 1970, rounded down. Raises `InvalidRequest` unless it is a point in time.

    Without a time zone it is in UTC, as times in filters, in SQL and in what is printed, whatever the machine's zone.
    """
    if isinstance(moment, str):
        try:
            moment = dt.datetime.fromisoformat(moment)
        except ValueError as e:
            raise InvalidRequest(f"{what}={moment!r} is not a time: {_MOMENTS}") from e
    if not isinstance(moment, dt.datetime):
        raise InvalidRequest(f"{what}={moment!r} is not a point in time: {_MOMENTS}")
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    return (zoned - _EPOCH) // dt.timedelta(milliseconds=1)


def moment_at(milliseconds: int) -> dt.datetime:
    """The datetime `milliseconds` after the start of 1970 in UTC, or the closest one that a datetime can express."""
    return _EPOCH + dt.timedelta(milliseconds=min(max(milliseconds, _EARLIEST_MS), _LATEST_MS))


def past_ms(past: Past, now_ms: int, what: str) -> int:
    """`past`, relative to `now_ms`, in milliseconds since 1970. Raises `InvalidRequest` unless it is a point in time or
    a timedelta.
    """
    return now_ms - span_ms(past, what) if isinstance(past, dt.timedelta) else moment_ms(past, what)


_MOMENTS = "give a datetime, or ISO text such as '2026-01-31T12:00:00+01:00' (UTC without a zone)"


def parse_memory_bytes(text: str) -> int:
    """Bytes of `text` such as "4mb", "64 kb" or "1024" (no unit means bytes; units are powers of 1024).

    Raises `InvalidRequest` for anything else.
    """
    match = _NUMBER_AND_UNIT.match(text)
    factor = _MEMORY_BYTES.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InvalidRequest(f"{text!r} is not a memory size: write a number and a unit, such as '4mb' or '64 kb'")
    return int(match[1]) * factor


def parse_bool(text: str) -> bool:
    """True or false from "true"/"false" in any case; `InvalidRequest` otherwise."""
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise InvalidRequest(f"{text!r} is not a boolean: write 'true' or 'false'")
    return lowered == "true"


def format_bytes(size: float) -> str:
    """`size` in human-readable form: 1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def parse_span(text: str) -> dt.timedelta:
    """A duration such as "3 d" as a timedelta. Raises `InvalidRequest` for a wrong one, and one that is too long."""
    try:
        return dt.timedelta(milliseconds=parse_duration_ms(text))
    except OverflowError as e:
        raise InvalidRequest(f"{text[:80]!r} is too long a time") from e
