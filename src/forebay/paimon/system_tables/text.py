"""Text formats of Java Paimon for values in its system tables."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.metadata.types import NESTED_ROOTS, DataType, TypeRoot
from forebay.paimon.format.partition_path import value_text
from forebay.paimon.format.schema import DataField


def row_text(fields: Sequence[DataField], values: Sequence[Any]) -> str:
    """A row cast to a string: `{a, 1, null}`."""
    texts = ("null" if v is None else value_text(f.type, v, legacy=False) for f, v in zip(fields, values, strict=True))
    return "{" + ", ".join(texts) + "}"


def array_text(fields: Sequence[DataField], values: Sequence[Any]) -> str:
    """Key values as Java prints an array: `[a, 1, null]`."""
    return "[" + ", ".join(object_text(f.type, v) for f, v in zip(fields, values, strict=True)) + "]"


def map_text(values: Mapping[str, str]) -> str:
    """A sorted map as Java prints it: `{a=1, b=null}`."""
    return "{" + ", ".join(f"{key}={values[key]}" for key in sorted(values)) + "}"


def object_text(t: DataType, value: Any) -> str:
    """A value as Java's `toString` of Paimon's internal objects: dates are days, times milliseconds."""
    if value is None or t.root in NESTED_ROOTS:
        return "null"
    if t.root in (TypeRoot.BINARY, TypeRoot.BYTES):
        return "[" + ", ".join(str(b - 256 if b > 127 else b) for b in bytes(value)) + "]"
    return value_text(t, value, legacy=True)


def duration_text(span: datetime.timedelta) -> str:
    """A duration as Java's `Duration.toString`: `PT26H3M0.5S`."""
    micros = round(span.total_seconds() * 1_000_000)
    seconds, fraction = divmod(micros, 1_000_000)
    hours, minutes, rest = seconds // 3600, seconds // 60 % 60, seconds % 60
    text = f"{hours}H" if hours else ""
    text += f"{minutes}M" if minutes else ""
    if rest or fraction:
        text += f"{rest}" + (f".{fraction:06}".rstrip("0") if fraction else "") + "S"
    return f"PT{text or '0S'}"
