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
    (grid,) = section.tables
    assert isinstance(grid, Grid)
    assert all(len(row) == len(grid.header) for row in grid.rows)
    assert {row[1] for row in grid.rows} >= {"forebay", "frames"}
    assert all(float(row[4].removesuffix(" x")) > 0 for row in grid.rows)
