"""Partition values of every type as the text that partition names are made of, and back.

The text is Fluss's (`PartitionNameConverters`): names consist of letters, digits, '_' and '-' only, so that a date is
`2024-01-15`, a time `10-11-12_345`, a timestamp `2024-01-15-10-11-12_345678`, and a number's point is '_'.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.metadata.names import check_partition_value
from forebay.metadata.table import PartitionInfo, TableInfo
from forebay.metadata.types import DataType, TypeRoot

UNSUPPORTED_ROOTS = frozenset({TypeRoot.DECIMAL, TypeRoot.ARRAY, TypeRoot.MAP, TypeRoot.ROW})
"""Types not allowed for partition keys."""


def partition_text(t: DataType, value: Any) -> str:
    """The text of a partition value; `value` is as `pa.Scalar.as_py()` gives it and not None."""
    match t.root:
        case TypeRoot.STRING | TypeRoot.CHAR:
            return str(value)
        case TypeRoot.BOOLEAN:
            return "true" if value else "false"
        case TypeRoot.BYTES | TypeRoot.BINARY:
            return bytes(value).hex()
        case TypeRoot.FLOAT:
            return _float_text(float(np.float32(value)), repr_of=str(np.float32(value)))
        case TypeRoot.DOUBLE:
            return _float_text(float(value), repr_of=repr(float(value)))
        case TypeRoot.DATE:
            return str(value.isoformat())
        case TypeRoot.TIME:
            return f"{value:%H-%M-%S}_{value.microsecond // 1000:03d}"
        case TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            return _timestamp_text(value)
        case _:
            return str(int(value))


def _float_text(value: float, repr_of: str) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    text = repr_of if "e" not in repr_of else _java_exponent(repr_of)
    return text.replace(".", "_")


def _java_exponent(text: str) -> str:
    """1e+20 as Java writes it: 1.0E20."""
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"


def _timestamp_text(value: Any) -> str:
    nanos = getattr(value, "nanosecond", 0)
    if value.tzinfo is not None:
        value = value.astimezone(dt.UTC)
    fraction = f"{value.microsecond * 1000 + nanos:09d}".rstrip("0")
    return f"{value:%Y-%m-%d-%H-%M-%S}_{fraction}"


def partition_value(t: DataType, text: str) -> Any:
    """The Python value of a partition text. Raises `InvalidRequest` (PARTITION_SPEC_INVALID) where it has none."""
    try:
        return _parse(t, text)
    except (ValueError, IndexError) as e:
        raise InvalidRequest(
            f"partition value '{text}' is not a {t}: {e}", ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION
        ) from e


def _parse(t: DataType, text: str) -> Any:
    match t.root:
        case TypeRoot.STRING | TypeRoot.CHAR:
            return text
        case TypeRoot.BOOLEAN:
            return text.lower() == "true"
        case TypeRoot.BYTES | TypeRoot.BINARY:
            return bytes.fromhex(text)
        case TypeRoot.FLOAT | TypeRoot.DOUBLE:
            return float(text.replace("_", "."))
        case TypeRoot.DATE:
            return dt.date.fromisoformat(text)
        case TypeRoot.TIME:
            clock, _, millis = text.partition("_")
            hour, minute, second = (int(part) for part in clock.split("-"))
            return dt.time(hour, minute, second, int(millis or 0) * 1000)
        case TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            seconds, _, fraction = text.partition("_")
            year, month, day, hour, minute, second = (int(part) for part in seconds.split("-"))
            micros = int(fraction.ljust(6, "0")[:6]) if fraction else 0
            moment = dt.datetime(year, month, day, hour, minute, second, micros)
            return moment.replace(tzinfo=dt.UTC) if t.root is TypeRoot.TIMESTAMP_LTZ else moment
        case _:
            return int(text)


def resolve_spec(info: TableInfo, spec: Mapping[str, str], creating: bool) -> tuple[tuple[str, str], ...]:
    """A partition spec in the order of the table's partition keys.

    Raises `InvalidRequest` (PARTITION_SPEC_INVALID) unless it names exactly the partition keys, with valid values.
    """
    keys = info.descriptor.partition_keys
    if sorted(spec) != sorted(keys):
        raise InvalidRequest(
            f"table {info.path} is partitioned by {list(keys)}, but the partition spec has {sorted(spec)}",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )
    for key in keys:
        check_partition_value(key, spec[key], creating)
    return tuple((key, spec[key]) for key in keys)


def matches_partial(partition: PartitionInfo, partial: Mapping[str, str]) -> bool:
    """Whether a partition has all values of `partial`."""
    values = dict(partition.spec)
    return all(values.get(key) == value for key, value in partial.items())


def partition_name(values: Sequence[str]) -> str:
    """The name of the partition with these values, which are in key order."""
    return "$".join(values)
