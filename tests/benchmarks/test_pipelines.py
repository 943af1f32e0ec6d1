"""The benchmark of lake tables in Spark, on a few rows: it runs and measures what it claims."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import pipelines_hour
from benchmarks.paimon_work import Lake
from benchmarks.pipelines_hour import BEFORE, BESIDE, HOUR_WAYS, JOB, NONE, TASK_ROWS, TASKS, WITHIN, Way, hour

BATCHES = 20


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake", sync=False)


@pytest.mark.parametrize("keyed", [False, True], ids=["append", "keyed"])
@pytest.mark.parametrize("way", [*HOUR_WAYS, WITHIN], ids=lambda way: way.name)
@pytest.mark.one_in(2)
def test_micro_batches_leave_all_rows_and_as_many_files_as_their_compaction_says(
    lake: Lake, way: Way, keyed: bool
) -> None:
    left = hour(lake, "t", keyed, way, BATCHES, 1)
    rows = left.table.scan().to_arrow()
    assert rows.num_rows == left.rows == len(rows["id"].unique())
    assert left.rows < BATCHES * TASKS * TASK_ROWS if keyed else left.rows == BATCHES * TASKS * TASK_ROWS
    assert left.files <= left.files_max
    users = {s.commit_user for s in left.table.context.snapshots.snapshots()}
    if way is NONE:
        assert left.files == BATCHES * TASKS
        assert len(users) == 1
    elif way is BEFORE:
        assert left.files == BATCHES
        assert len(users) == 1
    elif way in (BESIDE, JOB) or keyed:
        assert left.files < BATCHES / 2
        assert len(users) > 1, "compaction has a user of its own"


def test_a_dedicated_job_has_a_turn_every_so_many_micro_batches(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines_hour, "JOB_EVERY", 7)
    left = hour(lake, "t", False, JOB, 15, 1)
    kinds = [s.commit_kind.value for s in left.table.context.snapshots.snapshots()]
    assert [at for at, kind in enumerate(kinds) if kind == "COMPACT"] == [7, 15]
    assert left.files == 1 + TASKS


@pytest.mark.spark
@pytest.mark.slow
def test_streams_hours_scans_inserts_and_growth_are_measured_and_written(tmp_path: Path) -> None:
    # A process of its own: the session of the other Spark tests must not be stopped.
    out = tmp_path / "pipelines.md"
    command = [sys.executable, "-m", "benchmarks", "pipelines", "--rows", "2000", "--batches", "3", "--repeat", "1"]
    done = subprocess.run(
        [*command, "--out", str(out)], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    written = out.read_text()
    assert "<!-- part pipelines: begin -->" in written
    for title in (
        "Streaming ingest by the clock", "Streaming ingest per core", "After 3 micro-batches: append table",
        "After 3 micro-batches: primary-key table", "Scan of a lake table", "INSERT into a lake table",
        "SELECT over many small files, in Spark", "Growth with files, in Spark", "Growth with buckets, in Spark",
    ):  # fmt: skip
        assert f"### {title}" in written
    for target in ("<= 1.3 x", "<= 1.5 x", "<= 2 x"):
        assert target in written
