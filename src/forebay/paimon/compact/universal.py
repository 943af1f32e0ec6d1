"""Universal compaction: picking the sorted runs of a bucket to compact, as a pure function.

The first rule that applies decides:

1. an early full compaction is due (`compaction.optimization-interval`, `compaction.total-size-threshold`,
`compaction.incremental-size-threshold`); 2. the number of runs reaches the trigger, and all but the oldest together are
too large compared with the oldest (`compaction.max-size-amplification-percent`): everything is compacted; 3. the number
of runs reaches the trigger, and the newest runs are of similar size (`compaction.size-ratio`); 4. the number of runs
exceeds the trigger (`num-sorted-run.compaction-trigger`): enough of the newest runs; 5. level 0 must be emptied
(lookup, first-row, `compaction.force-up-level-0`).

The output goes to the level below the next run, never to level 0, and to the top level if all runs take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay.paimon.compact.levels import LevelRun
from forebay.paimon.format.file_meta import LEVEL_0, DataFileMeta
from forebay.paimon.options import CoreOptions


@dataclass(frozen=True, slots=True)
class CompactUnit:
    """Files to compact, and their output level. `rewrite_all`: no file may merely move up a level."""

    output_level: int
    files: tuple[DataFileMeta, ...]
    rewrite_all: bool = False

    @classmethod
    def of(cls, output_level: int, runs: Sequence[LevelRun]) -> CompactUnit:
        return cls(output_level, tuple(f for run in runs for f in run.files))


@dataclass(frozen=True, slots=True)
class UniversalRules:
    """The options of universal compaction. `level0_runs_max`: the number of runs at which level 0 is emptied."""

    run_trigger: int = 5
    size_amplification_percent: int = 200
    size_ratio: int = 1
    level0_runs_max: int | None = None
    full_interval_ms: int | None = None
    total_size_threshold: int | None = None
    incremental_size_threshold: int | None = None
    offpeak_hours: tuple[int, int] = (-1, -1)
    offpeak_ratio: int = 0

    @classmethod
    def of(cls, options: CoreOptions) -> UniversalRules:
        """The rules that a table's options set."""
        return cls(
            run_trigger=options.num_sorted_run_compaction_trigger,
            size_amplification_percent=options.compaction_max_size_amplification_percent,
            size_ratio=options.compaction_size_ratio,
            level0_runs_max=_level0_runs_max(options),
            full_interval_ms=options.compaction_optimization_interval_ms,
            total_size_threshold=options.compaction_total_size_threshold,
            incremental_size_threshold=options.compaction_incremental_size_threshold,
            offpeak_hours=(options.compaction_offpeak_start_hour, options.compaction_offpeak_end_hour),
            offpeak_ratio=options.compaction_offpeak_ratio,
        )

    def ratio_at(self, hour: int) -> int:
        """The size ratio in percent at an hour of the day (raised by `compaction.offpeak.*`)."""
        start, end = self.offpeak_hours
        if start < 0 or end < 0 or start == end:
            return self.size_ratio
        quiet = start <= hour < end if start < end else hour >= start or hour < end
        return self.size_ratio + (self.offpeak_ratio if quiet else 0)


def _level0_runs_max(options: CoreOptions) -> int | None:
    if options.needs_lookup:
        if options.lookup_compact != "gentle":
            return 1
        trigger = options.num_sorted_run_compaction_trigger
        interval = options.lookup_compact_max_interval
        return max(trigger, 2 * trigger if interval is None else interval)
    return 1 if options.compaction_force_up_level_0 else None


def pick(
    runs: Sequence[LevelRun],
    num_levels: int,
    rules: UniversalRules,
    since_full_ms: int | None = None,
    hour: int = 12,
) -> CompactUnit | None:
    """The part of `runs` (newest first) to compact, or None.

    `since_full_ms` is the time since the last full compaction (None: never), `hour` the local hour of the day.
    """
    top = num_levels - 1
    unit = (
        _early_full(runs, top, rules, since_full_ms)
        or _by_amplification(runs, top, rules)
        or _by_ratio(runs, top, rules, hour)
        or _by_count(runs, top, rules, hour)
        or _of_level0(runs, top, rules, hour)
    )
    if unit is None or not unit.files:
        return None
    return None if len(unit.files) == 1 and unit.files[0].level == unit.output_level else unit


def pick_full(runs: Sequence[LevelRun], num_levels: int, *, rewrite_all: bool = False) -> CompactUnit | None:
    """All runs, into the top level; None if everything is there already, unless `rewrite_all`."""
    top = num_levels - 1
    if not runs:
        return None
    if len(runs) == 1 and runs[0].level == top:
        return CompactUnit(top, runs[0].files, rewrite_all=True) if rewrite_all else None
    return CompactUnit.of(top, runs)


def _early_full(runs: Sequence[LevelRun], top: int, rules: UniversalRules, since: int | None) -> CompactUnit | None:
    if len(runs) <= 1:
        return None
    total = sum(run.size for run in runs)
    new = sum(run.size for run in runs if run.level != top)
    due = rules.full_interval_ms is not None and (since is None or since > rules.full_interval_ms)
    small = rules.total_size_threshold is not None and total < rules.total_size_threshold
    grown = rules.incremental_size_threshold is not None and new > rules.incremental_size_threshold
    return CompactUnit.of(top, runs) if due or small or grown else None


def _by_amplification(runs: Sequence[LevelRun], top: int, rules: UniversalRules) -> CompactUnit | None:
    if not runs or len(runs) < rules.run_trigger:
        return None
    newer = sum(run.size for run in runs[:-1])
    exceeded = newer * 100 > rules.size_amplification_percent * runs[-1].size
    return CompactUnit.of(top, runs) if exceeded else None


def _by_ratio(runs: Sequence[LevelRun], top: int, rules: UniversalRules, hour: int) -> CompactUnit | None:
    if not runs or len(runs) < rules.run_trigger:
        return None
    return _grown(runs, top, 1, rules.ratio_at(hour), forced=False)


def _by_count(runs: Sequence[LevelRun], top: int, rules: UniversalRules, hour: int) -> CompactUnit | None:
    if len(runs) <= rules.run_trigger:
        return None
    return _grown(runs, top, len(runs) - rules.run_trigger + 1, rules.ratio_at(hour), forced=True)


def _of_level0(runs: Sequence[LevelRun], top: int, rules: UniversalRules, hour: int) -> CompactUnit | None:
    count = sum(run.level == LEVEL_0 for run in runs)
    if rules.level0_runs_max is None or count < max(1, rules.level0_runs_max):
        return None
    return _grown(runs, top, count, rules.ratio_at(hour), forced=True)


def _grown(runs: Sequence[LevelRun], top: int, count: int, ratio: int, *, forced: bool) -> CompactUnit | None:
    """The `count` newest runs, and following ones that are not much larger than all runs before them together.

    A larger run ends the selection. But if something is compacted anyway and the run is on level 0 or 1, it is still
    included; otherwise there would be no level for the output, or soon none.
    """
    size = sum(run.size for run in runs[:count])
    picked = forced
    for run in runs[count:]:
        if size * (100.0 + ratio) / 100.0 < run.size and (not picked or run.level > 1):
            break
        size += run.size
        count += 1
        picked = True
    return _unit(runs, top, count) if picked else None


def _unit(runs: Sequence[LevelRun], top: int, count: int) -> CompactUnit:
    output = top if count == len(runs) else max(LEVEL_0, runs[count].level - 1)
    while output == LEVEL_0 and count < len(runs):
        output = runs[count].level
        count += 1
    if count == len(runs):
        output = top
    return CompactUnit.of(output, runs[:count])
