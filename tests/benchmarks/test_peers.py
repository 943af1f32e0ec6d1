"""The section beside Java Fluss on a few rows: it runs, and both sides do all of the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report import Grid
from benchmarks.running import Run

pytestmark = [pytest.mark.slow, pytest.mark.foreign, pytest.mark.timeout(900)]


def test_both_sides_do_all_of_the_work(tmp_path: Path) -> None:
    from benchmarks import peers

    section = peers.run(Run(2000, 1, tmp_path, lambda _: None))
    grid, steps = section.tables
    assert isinstance(grid, Grid)
    assert isinstance(steps, Grid)
    assert [row[0] for row in steps.rows] == ["one append", "one upsert"]
    assert all(len(row) == len(steps.header) for row in steps.rows)
    assert all(len(row) == len(grid.header) for row in grid.rows)
    assert {row[1] for row in grid.rows} >= {"forebay", "frames"}
    assert all(float(row[4].removesuffix(" x")) > 0 for row in grid.rows)
    kinds = {kind.what: kind for kind in section.kinds}
    assert set(kinds) == {row[0] for row in grid.rows}
    assert all(kind.peers for kind in kinds.values())
    assert sum(kind.limit is not None for kind in kinds.values()) >= 8
