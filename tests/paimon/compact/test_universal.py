"""The runs that universal compaction picks."""

from __future__ import annotations

import pickle
import random

import pytest

from forebay.paimon.compact.levels import KeyRanges, LevelRun, Levels
from forebay.paimon.compact.universal import UniversalRules, pick, pick_full
from forebay.paimon.options import CoreOptions
from tests.paimon.compact.trees import KEYS, data_file, runs_of

TRIGGER3 = UniversalRules(run_trigger=3, size_amplification_percent=200, size_ratio=1)
LAZY = UniversalRules(run_trigger=3, size_amplification_percent=100_000, size_ratio=1)


# (runs as level and size, newest first) -> (how many runs are picked, output level), with 6 levels
@pytest.mark.parametrize(
    ("rules", "runs", "expected"),
    [
        pytest.param(TRIGGER3, [], None, id="nothing there"),
        pytest.param(TRIGGER3, [(0, 1), (0, 1)], None, id="fewer runs than the trigger"),
        pytest.param(TRIGGER3, [(0, 10), (0, 10), (5, 9)], (3, 5), id="new runs are over twice the oldest"),
        pytest.param(TRIGGER3, [(0, 1), (0, 199), (5, 100)], None, id="new runs are just twice the oldest"),
        pytest.param(TRIGGER3, [(0, 1), (0, 1), (5, 1)], (3, 5), id="alike runs are taken by ratio, to the top"),
        pytest.param(TRIGGER3, [(0, 1), (0, 1), (5, 100)], (2, 4), id="a large run at the top stays"),
        pytest.param(LAZY, [(0, 1), (0, 2), (0, 300)], None, id="nothing alike, and not more runs than the trigger"),
        pytest.param(LAZY, [(0, 100), (0, 101), (5, 9999)], (2, 4), id="one percent more is still alike"),
        pytest.param(LAZY, [(0, 100), (0, 102), (5, 9999)], None, id="two percent more is not"),
        pytest.param(LAZY, [(0, 1), (0, 9), (0, 99), (5, 9999)], (3, 4), id="above the trigger: level 0 is emptied"),
        pytest.param(LAZY, [(0, 1), (1, 9), (4, 99), (5, 9999)], (2, 3), id="output below the next run"),
        pytest.param(LAZY, [(0, 1), (0, 1), (1, 50), (5, 9999)], (3, 4), id="output is never level 0"),
        pytest.param(LAZY, [(0, 1), (0, 1), (2, 99), (5, 9999)], (2, 1), id="level 1 is free"),
        pytest.param(LAZY, [(2, 1), (3, 1), (4, 1)], (3, 5), id="all runs go to the top"),
    ],
)  # fmt: skip
def test_runs_are_picked_by_the_first_rule_that_applies(
    rules: UniversalRules, runs: list[tuple[int, int]], expected: tuple[int, int] | None
) -> None:
    unit = pick(runs_of(*runs), 6, rules)
    assert (None if unit is None else (len(unit.files), unit.output_level)) == expected


def test_level_0_is_emptied_when_it_must_be_however_few_runs_there_are() -> None:
    forced = UniversalRules(level0_runs_max=1)
    unit = pick(runs_of((0, 1), (5, 999)), 6, forced)
    assert unit is not None
    assert (unit.output_level, [f.file_name for f in unit.files]) == (4, ["f0"])
    assert pick(runs_of((3, 1), (5, 999)), 6, forced) is None
    gentle = UniversalRules(level0_runs_max=3)
    assert pick(runs_of((0, 1), (0, 99), (5, 9999)), 6, gentle) is None
    assert pick(runs_of((0, 1), (0, 99), (0, 999), (5, 99999)), 6, gentle) is not None


def test_full_compactions_come_early_when_an_option_says_so() -> None:
    runs = runs_of((0, 10), (5, 1000))
    every = UniversalRules(full_interval_ms=100)
    assert pick(runs, 6, every, since_full_ms=None) is not None
    assert pick(runs, 6, every, since_full_ms=101) is not None
    assert pick(runs, 6, every, since_full_ms=100) is None
    assert pick(runs, 6, UniversalRules(total_size_threshold=1011)) is not None
    assert pick(runs, 6, UniversalRules(total_size_threshold=1010)) is None
    assert pick(runs, 6, UniversalRules(incremental_size_threshold=9)) is not None
    assert pick(runs, 6, UniversalRules(incremental_size_threshold=10)) is None
    assert pick(runs_of((5, 1)), 6, every) is None
    assert pick(runs_of((0, 1)), 6, every) is None, "a run alone waits for others"


def test_the_ratio_is_larger_in_quiet_hours() -> None:
    rules = UniversalRules(run_trigger=3, size_amplification_percent=10**6, offpeak_hours=(22, 6), offpeak_ratio=100)
    runs = runs_of((0, 100), (0, 190), (5, 99999))
    assert pick(runs, 6, rules, hour=12) is None
    assert pick(runs, 6, rules, hour=23) is not None
    assert pick(runs, 6, rules, hour=5) is not None
    assert pick(runs, 6, rules, hour=6) is None


@pytest.mark.parametrize(
    ("hours", "quiet"),
    [
        ((6, 22), (6, 21)),
        ((22, 6), (22, 23, 0, 5)),
        ((0, 2), (0, 1)),
        ((23, 0), (23,)),
        ((5, 5), ()),
        ((-1, 3), ()),
        ((3, -1), ()),
    ],
)
def test_quiet_hours_begin_with_the_first_and_end_before_the_last(
    hours: tuple[int, int], quiet: tuple[int, ...]
) -> None:
    rules = UniversalRules(size_ratio=1, offpeak_hours=hours, offpeak_ratio=100)
    ratios = {hour: rules.ratio_at(hour) for hour in range(24)}
    assert set(ratios.values()) <= {1, 101}
    assert {hour for hour, ratio in ratios.items() if ratio == 101} >= set(quiet)
    assert ratios[hours[1] % 24] == 1
    assert (101 in ratios.values()) == bool(quiet)


def test_a_file_alone_is_not_compacted_to_where_it_is() -> None:
    rules = UniversalRules(level0_runs_max=1)
    assert pick(runs_of((5, 1)), 6, rules) is None
    moved = pick(runs_of((0, 1)), 6, rules)
    assert moved is not None
    assert moved.output_level == 5


def test_a_full_compaction_takes_all_but_what_is_at_the_top_already() -> None:
    assert pick_full([], 6) is None
    assert pick_full(runs_of((5, 1)), 6) is None
    alone = pick_full(runs_of((0, 1)), 6)
    assert alone is not None
    assert (len(alone.files), alone.output_level) == (1, 5)
    forced = pick_full(runs_of((5, 1)), 6, rewrite_all=True)
    assert forced is not None
    assert forced.rewrite_all
    unit = pick_full(runs_of((0, 1), (5, 1)), 6)
    assert unit is not None
    assert (len(unit.files), unit.output_level, unit.rewrite_all) == (2, 5, False)


def test_options_become_rules_with_the_defaults_of_paimon() -> None:
    rules = UniversalRules.of(CoreOptions({}))
    assert (rules.run_trigger, rules.size_amplification_percent, rules.size_ratio) == (5, 200, 1)
    assert rules.level0_runs_max is None
    assert UniversalRules.of(CoreOptions({"changelog-producer": "lookup"})).level0_runs_max == 1
    assert UniversalRules.of(CoreOptions({"compaction.force-up-level-0": "true"})).level0_runs_max == 1
    gentle = {"merge-engine": "first-row", "lookup-compact": "gentle"}
    assert UniversalRules.of(CoreOptions(gentle)).level0_runs_max == 10
    assert UniversalRules.of(CoreOptions({**gentle, "lookup-compact.max-interval": "7"})).level0_runs_max == 7
    assert UniversalRules.of(CoreOptions({**gentle, "lookup-compact.max-interval": "2"})).level0_runs_max == 5


@pytest.mark.parametrize("seed", range(20))
def test_picked_runs_are_the_newest_and_leave_the_levels_in_order(seed: int) -> None:
    rng = random.Random(seed)
    rules = UniversalRules(
        run_trigger=rng.randint(1, 6),
        size_amplification_percent=rng.choice([0, 50, 200]),
        size_ratio=rng.randint(0, 50),
    )
    levels = Levels([], 6)
    for step in range(60):
        new = data_file(f"w{step}", rng.randint(1, 50), sequence=step)
        levels.update([], [new])
        runs = levels.runs()
        unit = pick(runs, levels.num_levels, rules)
        if unit is None:
            assert len(runs) <= rules.run_trigger
            continue
        picked = {f.file_name for f in unit.files}
        count = sum(run.files[0].file_name in picked for run in runs)
        assert picked == {f.file_name for run in runs[:count] for f in run.files}
        assert 0 < unit.output_level <= levels.top
        assert all(run.level > unit.output_level for run in runs[count:])
        size = sum(f.file_size for f in unit.files)
        levels.update(unit.files, [data_file(f"c{step}", size, unit.output_level, sequence=step)])
        assert pickle.loads(pickle.dumps(unit)) == unit


def test_levels_order_runs_from_new_to_old() -> None:
    files = [data_file("old", sequence=1), data_file("new", sequence=9), data_file("top", level=3, sequence=5)]
    levels = Levels(files, 3)
    assert [[f.file_name for f in run.files] for run in levels.runs()] == [["new"], ["old"], ["top"]]
    assert (levels.num_levels, levels.top, levels.highest_filled) == (4, 3, 3)
    levels.update([files[0], files[2]], [data_file("merged", level=1)])
    assert [run.level for run in levels.runs()] == [0, 1]
    assert isinstance(levels.runs()[0], LevelRun)


def test_files_of_other_levels_that_overlap_a_section_are_found() -> None:
    here = [data_file("a", low=10, high=19), data_file("b", low=15, high=29)]
    above = [data_file(f"t{i}", level=5, low=10 * i, high=10 * i + 9) for i in (3, 2, 1, 0)]
    ranges = KeyRanges([*here, *above], KEYS)
    (section,) = ranges.sections(here)
    assert len(section) == 2
    assert [f.file_name for f in ranges.overlapping(above, section)] == ["t1", "t2"]
