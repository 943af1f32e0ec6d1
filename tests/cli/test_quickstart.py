"""The quickstart on the first days of the year, sessions in a program, and the proof's reaction to wrong rows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from forebay.cli.main import main
from forebay.cli.quickstart import flights as flight_data
from forebay.cli.quickstart.proof import Proof, Witness
from tests.every_run import every_run
from tests.jvm import with_another_python3
from tests.patience import PATIENCE

PROGRAM = """
import sys
import forebay
from forebay.cli.main import main

folder, days, *arguments = sys.argv[1:]
for number in days.split(","):
    if main(["quickstart", "--data-dir", f"{folder}/data", "--days", number, *arguments]) != 0:
        sys.exit(1)
    print("====", flush=True)

import forebay.spark as fb
with forebay.embedded(f"{folder}/stops-early") as live:
    table = live.create_table("fluss.t", {"id": "BIGINT"})
    table.append([{"id": i} for i in range(1000)])
    for turn in range(2):
        conf = {"spark.ui.enabled": False, "spark.log.level": "OFF"}
        spark = fb.session("stops-early", "local[1]", conf, bootstrap_servers=live.bootstrap_servers)
        few = spark.table("forebay.fluss.t").take(3)
        print(len(few), spark.sql("SELECT count(*) FROM forebay.fluss.t").first()[0])
        spark.stop()
"""
"""The quickstart, some times, and two sessions with a query that stops early: one process, as a JVM starts slowly."""


class Printed(NamedTuple):
    """What the program prints: each time of the quickstart, what comes after it, and its errors."""

    quickstarts: list[str]
    sessions: str
    errors: str


def run(folder: Path, days: str, *arguments: str) -> Printed:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), days, *arguments],
        capture_output=True, text=True, timeout=2 * PATIENCE, check=False, cwd=folder, env=with_another_python3(folder),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    *quickstarts, sessions = done.stdout.split("====\n")
    return Printed(quickstarts, sessions, done.stderr)


@pytest.fixture(scope="module", params=every_run(["1", "3,2"], lambda days: days == "1"))
def printed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Printed:
    """What one run prints; with `make nightly` two, of fewer days the second time: nothing of the first may be left
    in the lake."""
    done = run(tmp_path_factory.mktemp("quickstart"), request.param)
    assert len(done.quickstarts) == len(request.param.split(","))
    return done


@pytest.mark.spark
def test_the_quickstart_proves_its_result_also_on_the_directory_of_another_run(printed):
    for told in printed.quickstarts:
        assert "PROVEN: all agree, to the row." in told
        assert told.count("equal, every cell") == 6
        assert told.count("equal to the source") == 2
        assert re.search(r"lake alone: pyiceberg +\d", told)
        assert re.search(r"checks while the tables changed: [1-9]\d*, all equal", told)
        assert re.search(r"tiering on Spark: nyc.flights: \d+ rounds", told)
        assert "forebay.connect(" in told


@pytest.mark.spark
def test_sessions_of_a_program_leave_no_traceback_behind(printed):
    """Queries that stop early, the end of a session, and another session: nothing of it shows on the terminal."""
    assert printed.sessions.split() == ["3", "1000", "3", "1000"]
    assert "Traceback" not in printed.errors


@pytest.mark.slow
@pytest.mark.spark
def test_the_quickstart_proves_its_result_with_a_paimon_lake(tmp_path):
    [told] = run(tmp_path, "2", "--lake", "paimon").quickstarts
    assert "PROVEN: all agree, to the row." in told
    assert re.search(r"lake alone: DuckDB +\d", told)
    assert told.count("equal, every cell") == 6


@pytest.mark.parametrize(("package", "lake"), [("pyspark", "iceberg"), ("pyiceberg", "iceberg"), ("duckdb", "paimon")])
def test_without_a_package_it_says_what_to_install(package, lake, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["quickstart", "--data-dir", str(tmp_path), "--lake", lake]) == 1
    assert "pip install 'forebay[quickstart]'" in capsys.readouterr().err


# ---- the proof ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def state():
    return flight_data.expected_state(flight_data.first_days(flight_data.load_flights(), 1))


def verdict(capsys, state, other, spark_totals=None, events=None, checks=(3, 0)) -> tuple[bool, str]:
    referee = Witness.of("pandas", state)
    proof = Proof(
        [referee, Witness.of("other", other)],
        spark_totals or referee.totals,
        {"one": {"arrived": 1}, "two": events or {"arrived": 1}},
        {"arrived": 1},
    )
    good = proof.show(*checks)
    out = capsys.readouterr().out
    assert ("NOT PROVEN" in out) != good
    return good, out


def test_equal_rows_are_proven(capsys, state):
    good, out = verdict(capsys, state, state.copy())
    assert good
    assert "PROVEN: all agree" in out


def test_one_wrong_value_spoils_the_proof(capsys, state):
    other = state.copy()
    other.loc[7, "arr_delay"] += 1
    good, out = verdict(capsys, state, other)
    assert not good
    assert "DIFFERENT in 1 values of arr_delay" in out


def test_a_null_is_not_a_value(capsys, state):
    other = state.copy()
    other.loc[7, "tailnum"] = None
    assert "DIFFERENT in 1 values of tailnum" in verdict(capsys, state, other)[1]


def test_a_missing_row_spoils_the_proof(capsys, state):
    assert not verdict(capsys, state, state.iloc[1:].reset_index(drop=True))[0]


def test_wrong_sums_and_wrong_events_spoil_the_proof(capsys, state):
    assert not verdict(capsys, state, state, spark_totals=(1, 2, 3, 4, 5))[0]
    assert not verdict(capsys, state, state, events={"arrived": 2})[0]


def test_a_check_that_disagreed_and_checks_that_were_not_made_spoil_the_proof(capsys, state):
    assert "3, 1 DIFFERENT" in verdict(capsys, state, state, checks=(3, 1))[1]
    assert not verdict(capsys, state, state, checks=(3, 1))[0]
    assert not verdict(capsys, state, state, checks=(0, 0))[0]


def test_comparable_does_not_depend_on_order():
    flights = flight_data.first_days(flight_data.load_flights(), 1)
    rows = flights.append_column("status", pa.repeat(pa.scalar("arrived"), flights.num_rows))
    backwards = rows.take(list(reversed(range(rows.num_rows))))
    assert flight_data.comparable(rows).equals(flight_data.comparable(backwards))
