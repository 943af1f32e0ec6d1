"""The main job, on the first days of the year, and what the proof does with wrong rows."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from forebay.cli import flights as flight_data
from forebay.cli.main import main
from forebay.cli.proof import Witness, check_witnesses


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_quickstart_runs_twice_on_one_directory_and_proves_its_result(tmp_path):
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "forebay", "quickstart", "--data-dir", str(tmp_path / "data"), "--days", "3"],
            capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "PROVEN: all agree, to the row." in done.stdout
        assert done.stdout.count("equal, every cell") == 4
        assert "forebay.connect(" in done.stdout


def test_without_pyspark_it_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert main(["quickstart", "--data-dir", str(tmp_path)]) == 1
    assert "pip install 'forebay[quickstart]'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def state():
    return flight_data.expected_state(flight_data.first_days(flight_data.load_flights(), 1))


def verdict(capsys, state, other, spark_totals=None, events=None) -> tuple[bool, str]:
    referee = Witness.of("pandas", state)
    good = check_witnesses(
        [referee, Witness.of("other", other)], spark_totals or referee.totals, events or {"arrived": 1}, {"arrived": 1}
    )
    return good, capsys.readouterr().out


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
    assert "NOT PROVEN" in out


def test_a_null_is_not_a_value(capsys, state):
    other = state.copy()
    other.loc[7, "tailnum"] = None
    assert "DIFFERENT in 1 values of tailnum" in verdict(capsys, state, other)[1]


def test_a_missing_row_spoils_the_proof(capsys, state):
    assert not verdict(capsys, state, state.iloc[1:].reset_index(drop=True))[0]


def test_wrong_sums_and_wrong_events_spoil_the_proof(capsys, state):
    assert not verdict(capsys, state, state, spark_totals=(1, 2, 3, 4, 5))[0]
    assert not verdict(capsys, state, state, events={"arrived": 2})[0]


def test_comparable_does_not_depend_on_order():
    flights = flight_data.first_days(flight_data.load_flights(), 1)
    rows = flights.append_column("status", pa.repeat(pa.scalar("arrived"), flights.num_rows))
    backwards = rows.take(list(reversed(range(rows.num_rows))))
    assert flight_data.comparable(rows).equals(flight_data.comparable(backwards))
