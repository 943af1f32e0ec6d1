"""Column statistics of a data file, from the Parquet footer, reduced according to the table's options.

Parquet's writer computes the minimum and maximum of each column chunk anyway, so nothing is computed twice. Columns
that contain NaN get no bounds: Parquet ignores NaN, and filters treat it as the largest value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from forebay.metadata.types import DataType, TypeRoot
from forebay.paimon.format.file_meta import SimpleStats
from forebay.paimon.format.schema import DataField
from forebay.paimon.format.stats import ColumnStats, StatsMode, pack_stats, upper_bound

FLOATS = (TypeRoot.FLOAT, TypeRoot.DOUBLE)
_STAMPS = (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)
_TICKS = (TypeRoot.DATE, TypeRoot.TIME, *_STAMPS)


UNKNOWN = ColumnStats()


def in_mode(stats: ColumnStats, mode: StatsMode) -> ColumnStats:
    """`stats`, reduced to a statistics mode. A truncated bound is still a bound."""
    if not mode.counts:
        return UNKNOWN
    if not mode.bounds or stats.min is None:
        return ColumnStats(null_count=stats.null_count)
    if mode.length is None or not isinstance(stats.max, str | bytes):
        return stats
    high = upper_bound(stats.max, mode.length)
    if high is None:
        return ColumnStats(null_count=stats.null_count)
    return ColumnStats(stats.min[: mode.length], high, stats.null_count)


def columns_with_nan(data: pa.Table | pa.RecordBatch, fields: Iterable[DataField]) -> set[str]:
    """The names of the floating-point columns of `data` that contain NaN."""
    return {
        f.name for f in fields if f.type.root in FLOATS and pc.any(pc.is_nan(data.column(f.name)), min_count=0).as_py()
    }


def stamp_ranges(
    data: pa.Table | pa.RecordBatch, fields: Iterable[DataField], earlier: Mapping[str, ColumnStats]
) -> dict[str, ColumnStats]:
    """Ranges of the timestamps of more than six digits in `data`, merged with `earlier`.

    Such columns are INT96, for which Parquet's footer has no ranges.
    """
    ranges: dict[str, ColumnStats] = {}
    for f in fields:
        if f.type.root not in _STAMPS or (f.type.precision or 0) <= 6:
            continue
        column = data.column(f.name)
        ends = pc.min_max(column.cast(pa.int64()))
        low, high, nulls = ends["min"].as_py(), ends["max"].as_py(), column.null_count
        if (before := earlier.get(f.name)) is not None:
            low = before.min if low is None else low if before.min is None else min(low, before.min)
            high = before.max if high is None else high if before.max is None else max(high, before.max)
            nulls += before.null_count or 0
        ranges[f.name] = ColumnStats(low, high, nulls)
    return ranges


def footer_ranges(
    footer: pq.FileMetaData,
    fields: Sequence[DataField],
    nan: set[str],
    row_groups: Iterable[int] | None = None,
    leaves: Mapping[str, int] | None = None,
) -> dict[str, ColumnStats]:
    """The ranges of the columns `fields` over the given row groups of a file, or all.

    `leaves` are the positions of the columns in the file, if they are known.
    """
    ranges: dict[str, ColumnStats] = {}
    groups = [footer.row_group(i) for i in (range(footer.num_row_groups) if row_groups is None else row_groups)]
    if leaves is None:
        leaves = {footer.schema.column(j).path: j for j in range(footer.num_columns)}
    for f in fields:
        position = leaves.get(f.name)
        if position is None:  # nested: Paimon keeps no statistics
            ranges[f.name] = UNKNOWN
            continue
        merged = _merged([g.column(position).statistics for g in groups], f.type)
        ranges[f.name] = ColumnStats(null_count=merged.null_count) if f.name in nan else merged
    return ranges


def leaf_positions(schema: pa.Schema) -> dict[str, int]:
    """The positions in a Parquet file with this schema of the columns that are not nested."""
    positions, position = {}, 0
    for f in schema:
        if not pa.types.is_nested(f.type):
            positions[f.name] = position
        position += _leaf_count(f.type)
    return positions


def _leaf_count(t: pa.DataType) -> int:
    return sum(_leaf_count(t.field(i).type) for i in range(t.num_fields)) if pa.types.is_nested(t) else 1


def _merged(parts: Sequence[Any], t: DataType) -> ColumnStats:
    nulls, lows, highs, is_bounded = 0, [], [], bool(parts)
    for p in parts:
        if p is None or not p.has_null_count:
            return UNKNOWN
        nulls += p.null_count
        if p.num_values > 0:
            is_bounded = is_bounded and p.has_min_max
            if is_bounded:
                lows.append(p.min_raw if t.root in _TICKS else p.min)
                highs.append(p.max_raw if t.root in _TICKS else p.max)
    if not parts:
        return UNKNOWN
    if not (lows and is_bounded):
        return ColumnStats(null_count=nulls)
    low, high = min(lows), max(highs)
    if t.root in FLOATS:  # the sign of a zero is unknown
        low, high = -0.0 if low == 0 else low, 0.0 if high == 0 else high
    return ColumnStats(low, high, nulls)


def dense_stats(
    fields: Sequence[DataField], stats: Mapping[str, ColumnStats], dense: bool
) -> tuple[SimpleStats, tuple[str, ...] | None]:
    """Value statistics, and the names of their columns; None if these are all columns."""
    dense_fields = [f for f in fields if not dense or stats.get(f.name, UNKNOWN) != UNKNOWN]
    names = None if len(dense_fields) == len(fields) else tuple(f.name for f in dense_fields)
    return pack_stats(dense_fields, [stats.get(f.name, UNKNOWN) for f in dense_fields]), names
