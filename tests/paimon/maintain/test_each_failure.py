"""Every step of every operation that changes a table fails once, before or after its effect: no row is lost.

By default one step of each operation is tried; `PAIMON_KILLS=20` tries twenty (`make lake-trials`: 30), and
`PAIMON_KILLS=all` all of them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import ForebayError
from tests.paimon.aftermath import check
from tests.paimon.failing import FailingFileIO
from tests.paimon.kill_acts import ACTS
from tests.paimon.maintain.lakes import FAST, NOW, open_table, rows

TRIED = os.environ.get("PAIMON_KILLS", "1")


def chosen(operations: int) -> list[int]:
    if TRIED == "all":
        return list(range(operations))
    return sorted(np.random.default_rng(operations).permutation(operations)[: int(TRIED)].tolist())


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("act", "after"),
    [
        pytest.param(
            act,
            after,
            id=f"{act}-{'after' if after else 'before'} its effect",
            marks=() if after == bool(number % 2) else pytest.mark.slow,
        )
        for number, act in enumerate(ACTS)
        for after in (False, True)
    ],
)
def test_one_operation_that_fails_loses_nothing_and_leaves_only_orphans(tmp_path: Path, act: str, after: bool) -> None:
    root = tmp_path / "t"
    ACTS[act].build(root)
    before = {i: rows(open_table(root), as_of=i) for i in open_table(root).context.snapshots.ids()}
    done = tmp_path / "done"
    shutil.copytree(root, done)
    counting = FailingFileIO(FAST)
    ACTS[act].run(open_table(done, counting, ManualClock(NOW)))
    kept = set(before) & set(open_table(done).context.snapshots.ids())
    failed = 0
    for number in chosen(counting.count):
        copy = tmp_path / f"f{number}"
        shutil.copytree(root, copy)
        io = FailingFileIO(FAST, fail_number=number, fail_after=after)
        try:
            ACTS[act].run(open_table(copy, io, ManualClock(NOW)))
        except ForebayError:
            failed += 1
        else:
            assert rows(open_table(copy)) == rows(open_table(done)), f"{act}, {number}: it said that it was done"
        check(copy, act, f"operation {number}", {i: before[i] for i in kept})
        shutil.rmtree(copy)
    assert failed > 0 or TRIED != "all"
