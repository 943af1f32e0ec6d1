"""The lake engine's benchmark on a few rows: it runs, and measures what it claims. Speed is not tested here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks import data, paimon_growth, paimon_metadata, paimon_peer, paimon_work
from benchmarks.__main__ import run_section
from benchmarks.paimon_peer import JAVA, PYTHON, RUST, PeerFailure, peers
from benchmarks.paimon_turns import Cost, Turns, take_turns
from benchmarks.paimon_work import Lake
from benchmarks.report import Section
from benchmarks.running import Run
from forebay.metadata.predicate import col
from tests.benchmarks.section_checks import check, whats
from tests.java_programs import ExamUnavailable

ROWS = 2000
ALL = (PYTHON, RUST, JAVA)
WITH_TARGETS = {
    "Appending to an append table": "<= 1.3 x",
    "Reading an append table": "<= 1.2 x",
    "Reading a primary-key table after full compaction": "<= 1.2 x",
    "Primary-key table: one row by a filter on its key": "<= 25.0",
    "Memory by size of the table": "<= ",
}


@pytest.fixture
def small(tmp_path: Path) -> Run:
    return Run(ROWS, 1, tmp_path, lambda _: None)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake", sync=False)


def targets(section: Section) -> dict[str, set[str]]:
    return {table.title: {f.target for f in table.figures if f.target} for table in section.tables}


def check_lake(section: Section) -> None:
    check(Section(section.name, section.title, [t for t in section.tables if t.figures], section.notes), "paimon")
    found = targets(section)
    for title, target in WITH_TARGETS.items():
        assert found[title], title
        assert all(t.startswith(target) for t in found[title])
    assert {">= 1,000,000", ">= 2,500,000", ">= 1,500,000"} in found.values()
    assert {"<= 200", "<= 300"} in found.values()
    growth = [table.title for table in section.tables if table.title.startswith("How ")]
    assert [title.rpartition(" ")[2] for title in growth] == ["rows", "files", "snapshots"]


@pytest.mark.slow
def test_without_peers_all_of_ours_is_measured_and_their_absence_is_told(
    small: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_java(_: Path) -> list[str]:
        raise ExamUnavailable("there is no Java")

    monkeypatch.setattr(paimon_peer, "find_python", lambda: (None, "there is no network"))
    monkeypatch.setattr(paimon_peer, "java_command", no_java)
    monkeypatch.setattr(paimon_growth, "MEMORY_PARTS", (0.5, 1.0))  # each size is six processes
    monkeypatch.setattr(paimon_growth, "ROW_PARTS", (0.5, 1.0))
    section = run_section("paimon", small)
    check_lake(section)
    assert {"Not measured: there is no network", "Not measured: Java Paimon: there is no Java"} <= set(section.notes)
    assert not any(name in what for what in whats(section) for name in ("pypaimon", JAVA))
    assert all(not kind.peers for kind in section.kinds)


@pytest.mark.foreign
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_peers_are_measured_beside_us(small: Run) -> None:
    section = run_section("paimon", small)
    check_lake(section)
    if not any(note.startswith("Not measured: pypaimon cannot be installed") for note in section.notes):
        assert not any(note.startswith("Not measured") for note in section.notes)
        for table in section.tables[:6]:
            assert {name for name in ALL for f in table.figures if name in f.what} == set(ALL)
        assert all(kind.peers for kind in section.kinds)


@pytest.mark.foreign
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_a_peer_cannot_do_is_an_error_and_it_continues(tmp_path: Path) -> None:
    with peers(tmp_path) as (others, reasons):
        if not others:
            pytest.skip("; ".join(reasons))
        for who in {PYTHON, JAVA} & set(others):
            other, rust = others[who], {} if who == JAVA else {"rust": False}
            with pytest.raises(PeerFailure, match="no_such_table"):
                other.ask("read", warehouse=str(tmp_path), table="db.no_such_table", **rust)
            other.load("rows", [data.table(10)])
            where = {"warehouse": str(tmp_path / who), "table": "db.t", **rust}
            assert other.ask("write", 10, **where, data="rows", definition={}).wall > 0
            with pytest.raises(PeerFailure, match="10 rows where there are 11"):
                other.ask("read", 11, **where)


@pytest.mark.parametrize("rows", [1000, 1003])
def test_three_in_ten_of_later_changes_update_an_earlier_row(rows: int) -> None:
    parts = paimon_work.changes(rows)
    assert sum(part.num_rows for part in parts) == rows
    known: set[int] = set()
    for number, part in enumerate(parts):
        ids = part["id"].to_pylist()
        assert len(set(ids)) == len(ids)
        assert ids != sorted(ids)
        assert len(known & set(ids)) == (int(len(ids) * 0.3) if number else 0)
        known |= set(ids)
    assert paimon_work.distinct_rows(parts) == len(known)
    assert parts[1].equals(paimon_work.changes(rows)[1])


def test_a_contender_rehearses_once_and_keeps_all_its_turns() -> None:
    costs = iter([Cost(9, 9), Cost(3, 1), Cost(1, 1), Cost(2, 4)])
    turns = take_turns({"it": lambda: next(costs)}, 3, lambda _: None)["it"]
    assert (turns.wall, turns.cpu, turns.spread) == (2, 1, (1, 3))


def test_what_is_done_to_a_copy_of_a_table_leaves_the_table_alone(lake: Lake) -> None:
    parts = paimon_work.changes(ROWS)
    table = lake.filled("t", paimon_work.KEYED, parts)
    before = paimon_work.data_paths(lake, "t")
    lake.copy("t", "copy").compact(full=True)
    assert paimon_work.data_paths(lake, "t") == before
    assert len(paimon_work.data_paths(lake, "copy")) == paimon_work.BUCKETS < len(before)
    left = paimon_work.distinct_rows(parts)
    assert table.scan().to_arrow().num_rows == lake.open("copy").scan().to_arrow().num_rows == left


def test_files_of_a_table_with_many_files_are_there_and_hold_what_their_statistics_say(lake: Lake) -> None:
    measured = paimon_metadata.by_files(lake, "t", 300, 1)
    table = lake.open("t")
    assert measured.files == 300
    assert len(set(paimon_work.data_paths(lake, "t"))) == 320  # with those of the two commits that were measured
    rows: pa.Table = table.scan().to_arrow()
    assert rows.num_rows == 32 * paimon_metadata.ROWS_PER_COMMIT
    times = Counter(rows["id"].to_pylist())
    assert table.scan(filter=col("id") == 1500).to_arrow().num_rows == times[1500] > 1


def test_a_table_with_many_snapshots_has_each_of_them(lake: Lake) -> None:
    measured = paimon_metadata.by_snapshots(lake, "t", 12, 1)
    assert (measured.snapshots, measured.files) == (12, paimon_metadata.FILES_PER_COMMIT)
    measured = paimon_metadata.many_commits(lake, "u", 12, 1)
    assert (measured.snapshots, measured.files) == (12, 12 * paimon_metadata.FILES_PER_COMMIT)
    assert len(measured.last_commits.costs) == 12
    assert isinstance(measured.plan_cold, Turns)
