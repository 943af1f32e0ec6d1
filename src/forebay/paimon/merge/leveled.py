"""Merging runs whose rows know their level, and reporting the previous row of each key.

`merge_runs` ignores levels: the newest row wins, or all rows are folded. Two cases need them. Compaction that produces
a changelog must know the row that readers saw before. And if rows were written by a compaction that looked up older
values (changelog producer `lookup`, deletion vectors), a row above level 0 already includes all older rows, so that
only the row on the lowest such level counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.paimon.format.schema import VALUE_KIND
from forebay.paimon.io.closing import closed_after
from forebay.paimon.merge._order import group_starts
from forebay.paimon.merge.engines import SortedRows, merge_sorted_rows, winning_rows
from forebay.paimon.merge.order import fixed_values
from forebay.paimon.merge.spec import MergeEngine, MergeSpec
from forebay.paimon.merge.spilling import few_runs
from forebay.paimon.merge.windows import Window, concatenated, kinds, ordered, windows

LEVEL = "_FOREBAY_LEVEL"
"""The column (int32, no nulls) that batches need besides those of the table."""

_LEVEL_FIELD = pa.field(LEVEL, pa.int32(), nullable=False)
_FAR = np.int32((1 << 31) - 1)
"""A level above all others."""

_Ints = npt.NDArray[np.int64]
_Levels = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class LevelRules:
    """The meaning of levels in a merge.

    `lowest_only`: of a key's rows above level 0, only the lowest counts. Keys that only have rows above `input_max` are
    left out: those levels are looked up, not merged. `before_level` is the level whose rows readers saw before; None
    means the lowest above 0.
    """

    lowest_only: bool = False
    input_max: int = int(_FAR)
    before_level: int | None = None


@dataclass(frozen=True, slots=True)
class MergedWindow:
    """Merged rows (including deletes), one per key, ascending, and the previous state of their keys.

    `before[i]` is the index in `source` of the row that readers saw for the key of `rows[i]`, or -1; `changed[i]`
    is true if anything newer than that row took part.
    """

    rows: pa.RecordBatch
    source: pa.RecordBatch
    before: _Ints
    changed: npt.NDArray[np.bool_]


def merge_leveled(
    runs: Sequence[Iterable[pa.RecordBatch]], spec: MergeSpec, names: Sequence[str], rules: LevelRules
) -> Iterator[MergedWindow]:
    """Merge runs, each sorted by key without duplicates, into rows with the columns `names`.

    Batches have all columns that `merge_runs` requires, and `LEVEL`. Runs that have a `close` are closed at the end.
    """
    with few_runs(runs, spec) as (few, unique), closed_after(windows(few, spec.key_columns, unique)) as merge_windows:
        for window in merge_windows:
            merged = _merge_window(window, spec, names, rules, unique)
            if merged.rows.num_rows:
                yield merged


def _merge_window(
    window: Window, spec: MergeSpec, names: Sequence[str], rules: LevelRules, unique_keys: bool
) -> MergedWindow:
    batches, keys = window
    source = concatenated(batches)
    columns = dict(zip(source.schema.names, source.columns, strict=True))
    if len(batches) == 1 and unique_keys:
        order = np.arange(batches[0].num_rows, dtype=np.int64)
        starts = np.arange(batches[0].num_rows + 1, dtype=np.int64)
    else:
        order, key = ordered(columns, keys, [b.num_rows for b in batches], spec)
        starts = group_starts(key, order)
    levels = fixed_values(columns[LEVEL], np.dtype(np.int32)).astype(np.int32, copy=False)
    order, starts = _counting(order, starts, levels[order], rules, spec)
    return _described(source, columns, order, starts, levels, spec, names, rules)


def _counting(order: _Ints, starts: _Ints, levels: _Levels, rules: LevelRules, spec: MergeSpec) -> tuple[_Ints, _Ints]:
    """The order and starts of the rows that count. `levels` are in order."""
    first, sizes = starts[:-1], np.diff(starts)
    live_groups = np.minimum.reduceat(levels, first) <= rules.input_max
    if spec.engine is MergeEngine.FIRST_ROW:  # a key on a higher level already has its first row there
        live_groups &= np.maximum.reduceat(levels, first) <= rules.input_max
    mask = np.repeat(live_groups, sizes)
    if rules.lowest_only:
        lowest = np.minimum.reduceat(np.where(levels > 0, levels, _FAR), first)
        mask &= (levels <= 0) | (levels == np.repeat(lowest, sizes))
    if mask.all():
        return order, starts
    counts = np.add.reduceat(mask.astype(np.int64), first)[live_groups]
    return order[mask], np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _described(
    source: pa.RecordBatch,
    columns: dict[str, pa.Array],
    order: _Ints,
    starts: _Ints,
    levels: _Levels,
    spec: MergeSpec,
    names: Sequence[str],
    rules: LevelRules,
) -> MergedWindow:
    if not len(order):
        return MergedWindow(source.select(names).slice(0, 0), source, order, np.empty(0, np.bool_))
    sizes = np.diff(starts)
    in_order = levels[order]
    is_older = in_order > 0 if rules.before_level is None else in_order == rules.before_level
    in_kinds = kinds(columns)[order]
    group_of = np.repeat(np.arange(len(sizes)), sizes)
    before = np.full(len(sizes), -1, np.int64)
    visible = np.flatnonzero(is_older & ((in_kinds & 1) == 0))
    before[group_of[visible]] = order[visible]
    newer = (in_order <= 0) if rules.before_level is None else ~is_older
    changed = np.logical_or.reduceat(newer, starts[:-1])
    stored = source.select(names)
    rows = SortedRows(columns, order, starts)
    winners = winning_rows(rows, spec)
    if winners is None:
        merged = pa.RecordBatch.from_arrays(merge_sorted_rows(rows, spec, names), schema=stored.schema)
        return MergedWindow(merged, source, before, changed)
    group_at = np.empty(source.num_rows, np.int64)
    group_at[order] = group_of
    groups = group_at[winners]  # engines that select rows may omit keys
    return MergedWindow(stored.take(pa.array(winners)), source, before[groups], changed[groups])


def with_level(batches: Iterable[pa.RecordBatch], level: int) -> Iterator[pa.RecordBatch]:
    """Batches with the column `LEVEL` added."""
    value = pa.scalar(level, pa.int32())
    with closed_after(batches):
        for batch in batches:
            yield batch.append_column(_LEVEL_FIELD, pa.repeat(value, batch.num_rows))


def without_deletes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that are neither -U nor -D."""
    kinds = fixed_values(batch.column(VALUE_KIND), np.dtype(np.int8)).astype(np.int8, copy=False)
    is_delete = (kinds & 1) == 1
    return batch.filter(pa.array(~is_delete)) if is_delete.any() else batch
