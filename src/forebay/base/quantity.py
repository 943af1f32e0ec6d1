"""Durations and memory sizes as people write them in options ("10 min", "4mb"), in the spelling that Fluss reads."""

from __future__ import annotations

import re

from forebay.base.errors import InvalidRequest

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
    """`size` for people: 1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
