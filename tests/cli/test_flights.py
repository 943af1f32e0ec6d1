"""The quickstart's data: a year as a stream of changes."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from forebay.cli.quickstart import flights as flight_data
from tests.every_run import every_run


@pytest.fixture(scope="module")
def year() -> pa.Table:
    return flight_data.load_flights()


def test_the_source_is_whole_and_its_key_is_one(year):
    assert year.num_rows == 336_776
    keys = year.select(flight_data.KEY).group_by(flight_data.KEY).aggregate([])
    assert keys.num_rows == year.num_rows
    assert all(year[name].null_count == 0 for name in (*flight_data.KEY, "scheduled"))


@pytest.mark.parametrize("days", every_run([60, 365], lambda days: days == 60))
def test_the_moments_hold_every_change_once(year, days):
    flights = flight_data.first_days(year, days)
    counts = dict.fromkeys(flight_data.KINDS, 0)
    for moment in flight_data.moments(flights, seconds=7 * 86_400):
        for kind in flight_data.KINDS:
            counts[kind] += getattr(moment, kind).num_rows
        assert moment.change_count == sum(getattr(moment, kind).num_rows for kind in flight_data.KINDS)
        assert moment.events["at"].to_pylist() == sorted(moment.events["at"].to_pylist())
    assert counts == flight_data.expected_events(flights)


def test_replaying_the_moments_with_a_dict_gives_the_expected_state(year):
    flights = flight_data.first_days(year, 4)
    rows: dict[tuple, dict] = {}

    def key(row):
        return tuple(row[name] for name in flight_data.KEY)

    for moment in flight_data.moments(flights, seconds=3600):
        for kind in ("announced", "departed", "arrived"):
            for row in getattr(moment, kind).to_pylist():
                rows.setdefault(key(row), dict.fromkeys(flight_data.COLUMNS)).update(row)
        for row in moment.cancelled.to_pylist():
            del rows[key(row)]
    state = flight_data.comparable(pa.Table.from_pylist(list(rows.values()), _schema(flights)))
    expected = flight_data.expected_state(flights)
    assert state.equals(expected)
    assert len(expected) == flights.num_rows - flights["dep_delay"].null_count


def _schema(flights):
    return pa.schema(
        [(name, pa.string() if name == "status" else flights.schema.field(name).type) for name in flight_data.COLUMNS]
    )


def test_the_first_days_are_the_first_days(year):
    days = set(flight_data.first_days(year, 2)["day"].to_pylist())
    assert days == {dt.date(2013, 1, 1), dt.date(2013, 1, 2)}
