"""Column statistics: minimum, maximum and null count, by statistics mode.

Modes are those of `metadata.stats-mode`: none, counts (null counts only), truncate(n) (bounds of text and bytes are
truncated to n characters or bytes, the upper one rounded up) and full. Text is ordered by its UTF-8 bytes. Columns of
nested types only have null counts, and floating-point columns with a NaN have no bounds, as in Parquet.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.metadata.types import DataType, TypeRoot
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import SimpleStats
from forebay.paimon.format.schema import DataField

_TRUNCATE = re.compile(r"^truncate\((\d+)\)$")
_FLOATING = (TypeRoot.FLOAT, TypeRoot.DOUBLE)
_TEMPORAL = (TypeRoot.DATE, TypeRoot.TIME, TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)
_SURROGATES = range(0xD800, 0xE000)
_CODE_POINT_MAX = 0x10FFFF


@dataclass(frozen=True, slots=True)
class StatsMode:
    """The statistics kept for a column. `length` is the maximum length of bounds; None means no limit."""

    counts: bool
    bounds: bool
    length: int | None = None


@lru_cache(maxsize=256)
def parse_mode(text: str) -> StatsMode:
    """The mode named by an option's value. Raises `InvalidRequest`."""
    lowered = text.strip().lower()
    if lowered == "none":
        return StatsMode(counts=False, bounds=False)
    if lowered == "counts":
        return StatsMode(counts=True, bounds=False)
    if lowered == "full":
        return StatsMode(counts=True, bounds=True)
    match = _TRUNCATE.match(lowered)
    if match is None or int(match[1]) == 0:
        raise InvalidRequest(f"{text!r} is not a statistics mode: write none, counts, truncate(16) or full")
    return StatsMode(counts=True, bounds=True, length=int(match[1]))


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """Statistics of one column, as column values. None means unknown; bounds are also None if all values are null."""

    min: Any = None
    max: Any = None
    null_count: int | None = None


def column_value(scalar: pa.Scalar, t: DataType) -> Any:
    """The column value (see `forebay.codec.casting.literals`) of an Arrow scalar of type `t`."""
    if not scalar.is_valid:
        return None
    return scalar.value if t.root in _TEMPORAL else scalar.as_py()


def upper_bound(value: Any, length: int) -> Any:
    """The shortest value of up to `length` characters that is not below `value`; None if there is none."""
    if len(value) <= length:
        return value
    prefix = value[:length]
    for i in range(length - 1, -1, -1):
        if isinstance(prefix, bytes):
            if prefix[i] != 0xFF:
                return prefix[:i] + bytes([prefix[i] + 1])
            continue
        following = ord(prefix[i]) + 1
        if following in _SURROGATES:  # not characters: UTF-8 cannot encode them
            following = _SURROGATES.stop
        if following <= _CODE_POINT_MAX:
            return prefix[:i] + chr(following)
    return None


def pack_stats(fields: Sequence[DataField], columns: Sequence[ColumnStats]) -> SimpleStats:
    """`SimpleStats` of the statistics of `fields`."""
    layout = row_layout(fields)
    return SimpleStats(
        layout.encode_one([c.min for c in columns]),
        layout.encode_one([c.max for c in columns]),
        tuple(c.null_count for c in columns),
    )


def unpack_stats(
    stats: SimpleStats, fields: Sequence[DataField], stats_cols: Sequence[str] | None = None
) -> dict[str, ColumnStats]:
    """Statistics by column name. `fields` are the columns of the file's schema; `stats_cols` as in `DataFileMeta`.

    Columns without statistics are absent. Raises `CorruptData` for rows that do not fit these columns.
    """
    by_name: Mapping[str, DataField] = {f.name: f for f in fields}
    if stats_cols is not None:
        fields = [by_name[name] for name in stats_cols if name in by_name]
        if len(fields) != len(stats_cols):  # a column that this engine adds nothing to (a system column): no way in
            return {}
    if len(stats.null_counts) != len(fields):
        return {}
    layout = row_layout(fields)
    rows = layout.decode(stats.min_values), layout.decode(stats.max_values), stats.null_counts
    return {f.name: ColumnStats(*values) for f, values in zip(fields, zip(*rows, strict=True), strict=True)}


def bounds(values: Iterable[Any], t: DataType) -> tuple[Any, Any]:
    """The minimum and maximum of column values in Java's order; None, None if there are none."""
    ordered = list(values)
    if not ordered:
        return None, None
    if t.root in _FLOATING:
        return min(ordered, key=_java_order), max(ordered, key=_java_order)
    return min(ordered), max(ordered)


def _java_order(value: float) -> tuple[bool, float, bool]:
    """`Double.compare`: -0.0 before 0.0, NaN last."""
    if math.isnan(value):
        return True, 0.0, False
    return False, value, math.copysign(1.0, value) > 0
