"""The quickstart's checks during streaming and tiering, and its lake, without Spark."""

from __future__ import annotations

from functools import cache

import pyarrow as pa
import pytest

from forebay.base.errors import InvalidRequest
from forebay.cli.quickstart import flights as flight_data
from forebay.cli.quickstart.checks import Checker
from forebay.cli.quickstart.lake import TABLES, QuickstartLake
from forebay.cli.quickstart.stream import Stream
from forebay.inprocess import embedded
from forebay.tiering.now import tier_now
from forebay.tiering.service import TieringService


@cache
def flights() -> pa.Table:
    return flight_data.first_days(flight_data.load_flights(), 20)


TIERED = {"table.datalake.enabled": "true", "table.datalake.freshness": "200 ms"}


@pytest.fixture(params=["iceberg", "paimon"])
def lake(request, tmp_path):
    return QuickstartLake(request.param, tmp_path / "lake")


@pytest.fixture
def connection(lake, tmp_path):
    with embedded(tmp_path / "stream", settings=lake.settings) as connection:
        make_tables(connection)
        yield connection


def make_tables(connection) -> None:
    connection.create_database("nyc")
    types = {name: flights().schema.field(name).type for name in flight_data.COLUMNS if name != "status"}
    fields = [
        pa.field(name, types.get(name, pa.string()), nullable=name not in flight_data.KEY)
        for name in flight_data.COLUMNS
    ]
    connection.create_table(
        "nyc.flights", pa.schema(fields), primary_key=flight_data.KEY, bucket_keys=["flight"], buckets=2,
        options=TIERED,
    )  # fmt: skip
    events = next(flight_data.moments(flights())).events.schema
    connection.create_table("nyc.events", events, buckets=2, options=TIERED)


def test_checks_agree_at_every_instant_while_the_stream_and_its_tiering_continue(connection):
    stream = Stream(connection, flights())
    checker = Checker(connection.table("nyc.flights"), stream)
    with TieringService(connection, poll_seconds=0.05):
        stream.start()
        while stream.is_alive():
            checker.check()
    assert stream.error is None
    last = checker.check()
    assert checker.all_agree
    assert [check for check in checker.checks if check.in_log > 0 and check.in_lake > 0]
    assert last.model.flights == len(flight_data.expected_state(flights()))
    assert last.in_lake >= checker.checks[0].in_lake


def test_a_row_that_the_model_does_not_know_is_told(connection, capsys):
    stream = Stream(connection, flight_data.first_days(flights(), 1))
    stream.start()
    stream.join()
    table = connection.table("nyc.flights")
    checker = Checker(table, stream)
    assert checker.check().agrees
    key = {name: flights()[name][0].as_py() for name in flight_data.KEY}
    table.upsert([{**key, "carrier": "??", "dep_delay": 5}], columns=[*flight_data.KEY, "dep_delay"])
    assert not checker.check().agrees
    assert not checker.all_agree
    assert "DIFFERENT" in capsys.readouterr().out


def test_an_error_of_the_stream_reaches_its_watcher(connection):
    stream = Stream(connection, flights())
    connection.drop_table("nyc.flights")
    stream.start()
    stream.join()
    assert "nyc.flights" in str(stream.error)


def test_the_lake_is_read_by_a_process_of_its_own_and_can_be_emptied(connection, lake):
    stream = Stream(connection, flight_data.first_days(flights(), 2))
    stream.start()
    stream.join()
    assert [outcome.error for outcome in tier_now(connection, TABLES)] == [None, None]
    found, events = lake.read_alone()
    expected = flight_data.expected_state(flight_data.first_days(flights(), 2))
    assert flight_data.comparable(found).equals(expected)
    assert events.num_rows == stream.total
    connection.drop_database("nyc", cascade=True)
    lake.drop_tables()
    lake.drop_tables()  # nothing is left, which is no error
    make_tables(connection)  # a table with rows in the lake would be in the way


def test_the_lake_of_a_running_server_must_be_the_one_that_is_read_in_the_end(connection, lake, tmp_path):
    table = connection.admin.table_info(TABLES[0])
    lake.check_is_of(table)
    with pytest.raises(InvalidRequest, match=f"the lake of the server is {lake.format} in .*lake, not .* set --lake"):
        QuickstartLake(lake.format, tmp_path / "other").check_is_of(table)
