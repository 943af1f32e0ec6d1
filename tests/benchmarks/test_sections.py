"""Each section on a few rows: it runs, and reports what the document needs. Speed is not tested here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import SECTIONS, main, run_section
from benchmarks.peer import available
from benchmarks.running import Run
from tests.benchmarks.section_checks import check, whats

ROWS = 2000


@pytest.fixture
def small(tmp_path: Path) -> Run:
    return Run(ROWS, 1, tmp_path, lambda _: None)


@pytest.mark.foreign
def test_append_compares_both_clients_with_the_disk(small: Run) -> None:
    section = run_section("append", small)
    check(section, "append")
    assert sum(what.startswith("forebay") for what in whats(section)) == 2
    assert sum(what.startswith("pyfluss") for what in whats(section)) == (2 if available() else 0)


@pytest.mark.foreign
def test_upsert_reports_client_server_and_every_step(small: Run) -> None:
    section = run_section("upsert", small)
    check(section, "upsert")
    assert [table.title.split("'s ")[1] for table in section.tables[:3]] == [
        "clock (acks=all)",
        "CPU time",
        "CPU time (hlog, the default)",
    ]
    assert section.tables[3].title == "The server's CPU time for a row, by step"
    assert {"fetch old values", "merge", "encode the changelog", "sync the log", "apply to the engine"} <= set(
        whats(section)
    )
    assert any(figure.value_min for figure in section.figures)


def test_transactions_are_compared_with_plain_writes(small: Run) -> None:
    section = run_section("transactions", small)
    check(section, "transactions")
    *writes, commit, watching, full = (what.rpartition(": ")[2] for what in whats(section))
    assert writes == ["plain", "transaction"] * 4
    assert [commit, watching, full] == ["a plain commit", "watching", "watching, 100 changes"]


def test_engines_are_compared_figure_by_figure(small: Run) -> None:
    section = run_section("engines", small)
    check(section, "engines")
    engines = [what.rpartition(", ")[2] for what in whats(section)]
    assert engines == ["hlog", "LMDB"] * (len(engines) // 2)


@pytest.mark.slow
def test_scan_reports_rates_and_memory_at_three_sizes(small: Run) -> None:
    section = run_section("scan", small)
    check(section, "scan")
    memory = [figure.what for figure in section.tables[1].figures]
    assert memory == [f"{side}, {rows} rows" for side in ("client", "server") for rows in ("500", "1,000", "2,000")]


@pytest.mark.slow
@pytest.mark.foreign
def test_lookup_reports_rate_and_latencies_of_each_client(small: Run) -> None:
    section = run_section("lookup", small)
    check(section, "lookup")
    assert [figure.unit for figure in section.figures] == ["rows/s", "ms", "ms"] * (4 if available() else 2)


@pytest.mark.slow  # 9 s; the section runs with `make bench`
def test_recovery_reports_openings_by_size_and_both_replays(small: Run) -> None:
    section = run_section("recovery", small)
    check(section, "recovery")
    assert len(section.tables[0].figures) == 5
    assert whats(section)[-2:] == ["hlog", "LMDB"]


@pytest.mark.spark
@pytest.mark.slow  # 40 s; the section runs with `make bench`
def test_spark_reports_scans_and_inserts_against_parquet(small: Run) -> None:
    # A process of its own: the session of the other Spark tests must not be stopped.
    out = small.directory / "spark.md"
    command = [sys.executable, "-m", "benchmarks", "spark", "--rows", str(ROWS), "--repeat", "1", "--out", str(out)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    written = out.read_text()
    assert written.count("spark.read.parquet") >= 2
    for what in ("INSERT INTO a log table", "INSERT INTO a primary-key table", 'format("forebay")', "df.write.parquet"):
        assert what in written


def test_an_unknown_section_is_refused_with_the_names_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["apend"])
    assert refused.value.code == 2
    told = capsys.readouterr().err
    assert "apend" in told
    assert all(name in told for name in SECTIONS)


def test_a_part_of_a_section_is_never_written_as_its_report(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["scan", "--only", "reads"], ["union", "--only", "reads", "--out", "report.md"]):
        with pytest.raises(SystemExit):
            main(arguments)
    assert "--only" in capsys.readouterr().err
