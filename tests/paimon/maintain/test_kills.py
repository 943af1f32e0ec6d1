"""`kill -9` at every named step of every operation that changes a table: it stays readable, usable and clean.

By default a few steps of each operation are tried, always the same ones; `PAIMON_KILLS=20` tries twenty of each
(`make lake-trials`: 30), and `PAIMON_KILLS=all` all of them (470).
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.every_run import every_run
from tests.paimon.aftermath import check
from tests.paimon.kill_acts import ACTS, perform, steps_of
from tests.paimon.kills import run_in_process
from tests.paimon.maintain.lakes import open_table, rows

LIKE_OTHERS = ("analyze", "dedicated compaction", "dynamic buckets", "overwrite", "sort compaction", "stream")
"""What commits as another act does, with other files: these are killed by `make nightly`."""

KILLS = os.environ.get("PAIMON_KILLS", "1")


def chosen(steps: list[str]) -> list[str]:
    """The steps to try: both sides of every snapshot's creation, and some others."""
    if KILLS == "all":
        return steps
    snapshots = [s for s in steps if "create snapshot" in s]
    others = [s for s in steps if s not in snapshots]
    few = np.random.default_rng(len(steps)).permutation(len(others))[: int(KILLS)]
    return [*snapshots, *(others[i] for i in sorted(few))]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("act", every_run(ACTS, lambda act: act not in LIKE_OTHERS))
@pytest.mark.one_in(3)
def test_a_kill_at_any_step_loses_nothing_and_leaves_only_orphans(tmp_path: Path, act: str) -> None:
    root = tmp_path / "t"
    ACTS[act].build(root)
    assert rows(open_table(root)) in ACTS[act].states
    before = {i: rows(open_table(root), as_of=i) for i in open_table(root).context.snapshots.ids()}
    done = tmp_path / "done"
    shutil.copytree(root, done)
    steps = steps_of(done, act)
    assert rows(open_table(done)) in ACTS[act].states
    kept = set(before) & set(open_table(done).context.snapshots.ids())
    for number, step in enumerate(chosen(steps)):
        copy = tmp_path / f"k{number}"
        shutil.copytree(root, copy)
        code = run_in_process(perform, str(copy), act, step)
        assert code == -signal.SIGKILL, f"{act}, {step}: the process ended with {code}"
        check(copy, act, step, {i: before[i] for i in kept})
        shutil.rmtree(copy)


def test_steps_have_names_that_tell_what_happens(tmp_path: Path) -> None:
    ACTS["append"].build(tmp_path / "t")
    steps: Iterator[str] = iter(steps_of(tmp_path / "t", "append"))
    assert [s for s in steps if s.startswith("before")] == [
        "before begin data 1",
        "before finish data 1",
        "before write manifest-list 1",
        "before write manifest 1",
        "before write manifest-list 2",
        "before create snapshot 1",
        "before write LATEST 1",
    ]
