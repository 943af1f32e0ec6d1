"""The benchmark of lake and stream, on a few rows: it runs, and measures what it claims. Speed is not tested here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks import data, union, union_growth, union_work
from benchmarks.__main__ import run_section
from benchmarks.report import Grid, Section, document, section_text
from benchmarks.running import Run
from benchmarks.union_work import LakeBench, Tail, lake_bench, read_files, read_union, write_files
from tests.every_run import every_run

ROWS = 2000


@pytest.fixture
def small(tmp_path: Path) -> Run:
    return Run(ROWS, 1, tmp_path, lambda _: None)


@pytest.fixture
def server(small: Run) -> Iterator[LakeBench]:
    with lake_bench(small, "paimon") as running:
        yield running


def targets(section: Section) -> set[str]:
    return {figure.target for figure in section.figures if figure.target}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_tiering_freshness_reads_memory_and_growth_are_measured_over_a_lake(
    small: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(union, "LAKES", ("iceberg",))
    monkeypatch.setattr(union_growth, "ROW_PARTS", (0.5, 1.0))  # each size is a process
    monkeypatch.setattr(union_growth, "BUCKET_COUNTS", (1, 2))
    section = run_section("union", small)
    assert [table.title.partition(",")[0] for table in section.tables] == [
        "Tiering per core",
        "Tiering by the clock",
        "From an upsert to a read that has it",
        "Union read of a primary-key table",
        "Union read of a log table",
        "Memory of a union read by the size of the lake",
        "Growth with rows",
        "Growth with buckets",
    ]
    assert {"<= 0.9 x", "<= 1 x", "<= 1.3 x", "<= 300"} <= targets(section)
    assert all(figure.value >= 0 for figure in section.figures if figure.unit != "MiB")  # CPU time comes in ticks
    assert all(figure.reason for figure in section.misses)
    text, written = section_text(section), document([section], [("date", "today")])
    for figure in section.figures:
        assert figure.what in text
        assert f"| {' | '.join(figure.cells())} |" in written
    assert all(table.rows for table in section.tables if isinstance(table, Grid))


@pytest.mark.parametrize("primary_key", every_run([True, False], lambda primary_key: not primary_key))
def test_a_tail_changes_other_rows_each_time_it_grows_and_is_not_in_the_lake(
    server: LakeBench, primary_key: bool
) -> None:
    table = server.filled(primary_key, ROWS)
    tail = Tail(table, ROWS)
    parts = [tail.grow(length) for length in (0, 20, 200)]
    assert [sum(batch.num_rows for batch in part) for part in parts] == [0, 20, 180]
    keys = [key for part in parts for batch in part for key in batch.column(data.KEY).to_pylist()]
    assert len(set(keys)) == 200
    assert all(key < ROWS for key in keys) if primary_key else keys == list(range(ROWS, ROWS + 200))
    read_union(table, ROWS if primary_key else ROWS + 200)
    with pytest.raises(AssertionError, match="found"):
        read_union(table, ROWS - 1)
    assert server.tier(table).rows == (400 if primary_key else 200)  # an update is the old and the new row


def test_a_round_that_did_less_than_it_should_is_no_figure(server: LakeBench) -> None:
    table = server.filled(True, 100, tiered=False)
    with pytest.raises(AssertionError, match="wrote 100 rows, not 101"):
        server.tier(table, 101)


def test_cpu_time_of_all_who_take_part_counts(server: LakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(_server: LakeBench, work: Callable[[], object]) -> dict[str, float]:
        work()
        return {"server": 2.0, "JVM": 1.0}

    monkeypatch.setattr(union_work, "cpu_by_part", measured)
    began = time.process_time()
    cost = server.cost(lambda: sum(range(300_000)))
    assert 3.0 < cost.cpu <= 3.0 + time.process_time() - began


def test_parquet_files_hold_the_rows_that_were_given_and_more_can_be_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(union_work, "_FILE_ROWS", 60_000)
    folder = write_files(tmp_path / "files", data.batches(120_000))
    assert [pq.read_metadata(path).num_rows for path in sorted(folder.iterdir())] == [100_000, 20_000]
    write_files(folder, data.batches(10, first=120_000))
    write_files(folder, [])
    read_files(folder, 120_010)
    with pytest.raises(AssertionError, match="has 120010 rows"):
        read_files(folder, 120_000)
