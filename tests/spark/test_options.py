"""Options of catalogs, reads and writes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from forebay.base.errors import ForebayError, InvalidRequest, UnsupportedOperation
from forebay.client.settings import Settings, make_settings
from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableDescriptor
from forebay.spark.options import (
    END,
    OWN_SESSION_PREFIX,
    READ_OPTIMIZED,
    SERVER_SCAN,
    SESSION_PREFIX,
    SESSION_ZONE,
    SNAPSHOT_MERGE,
    START,
    STARTUP_MODE,
    read_options,
    write_options,
)

STRATEGY = "client.scanner.kv.batch-strategy"
SERVER_SIDE = "client.scanner.kv.server-side.enabled"


@pytest.fixture
def settings() -> Settings:
    return make_settings("localhost:9123", "alice", "secret", {"client.id": "one"})


def descriptor(properties: Mapping[str, str]) -> TableDescriptor:
    return TableDescriptor(Schema.of([Column("id", types.int_())], ["id"]), custom_properties=properties)


@pytest.mark.parametrize(
    ("table", "session", "read", "strategy"),
    [
        ({}, {}, {}, SERVER_SCAN),
        ({STRATEGY: "snapshot-merge"}, {}, {}, SNAPSHOT_MERGE),
        ({STRATEGY: "snapshot-merge"}, {SESSION_PREFIX + STRATEGY: "server-scan"}, {}, SERVER_SCAN),
        ({}, {SESSION_PREFIX + SERVER_SIDE: "false"}, {}, SNAPSHOT_MERGE),
        ({}, {SESSION_PREFIX + SERVER_SIDE: "false"}, {SERVER_SIDE: "true"}, SERVER_SCAN),
        ({SERVER_SIDE: "true"}, {}, {STRATEGY: "SNAPSHOT_MERGE"}, SNAPSHOT_MERGE),
        ({}, {}, {STRATEGY.upper(): "snapshot-merge"}, SNAPSHOT_MERGE),
    ],
)
def test_the_scan_strategy_is_read_from_table_session_and_read_in_this_order(
    settings: Settings, table: dict[str, str], session: dict[str, str], read: dict[str, str], strategy: str
) -> None:
    assert read_options(settings, descriptor(table), read, session).strategy == strategy


def test_without_any_other_word_the_connection_decides_the_strategy() -> None:
    settings = make_settings("localhost", options={SERVER_SIDE: "false"})
    assert read_options(settings, None, {}).strategy == SNAPSHOT_MERGE


def test_client_options_of_a_read_override_those_of_the_connection(settings: Settings) -> None:
    chosen = read_options(settings, None, {"client.scanner.kv.fetch.max-bytes": "1mb"}).settings
    assert chosen["client.scanner.kv.fetch.max-bytes"] == 1 << 20
    assert (chosen["client.id"], chosen.credentials) == ("one", ("alice", "secret"))
    assert chosen.bootstrap_servers == settings.bootstrap_servers


def test_names_of_options_do_not_depend_on_case(settings: Settings) -> None:
    assert read_options(settings, None, {"SCAN.MAXRECORDSPERPARTITION": "5"}).records_per_partition == 5


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"scan.maxRecordPerPartition": "5"}, InvalidRequest, "did you mean 'scan.maxRecordsPerPartition'"),
        ({"foo": "5"}, InvalidRequest, "no read option 'foo'; there are scan"),
        ({"client.scanner.kv.fetch.max-byte": "5"}, InvalidRequest, "no client option"),
        (
            {"scan.maxRecordsPerPartition": "many"},
            InvalidRequest,
            "Partition': 'many' is not a positive whole",
        ),
        ({"scan.maxRecordsPerPartition": "0"}, InvalidRequest, "'0' is not a positive whole number"),
        ({"scan.startup.mode": "latest"}, UnsupportedOperation, "batch reads begin at the beginning"),
        ({"scan.startup.timestamp": "1"}, UnsupportedOperation, "is for streams"),
        ({"maxRowsPerTrigger": "1"}, UnsupportedOperation, "is for streams"),
        ({STRATEGY: "fast"}, InvalidRequest, "it can be server-scan or snapshot-merge"),
        ({SERVER_SIDE: "perhaps"}, InvalidRequest, SERVER_SIDE),
    ],
)
def test_unknown_or_unreadable_options_are_refused_by_name(
    settings: Settings, options: dict[str, str], kind: type[ForebayError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        read_options(settings, None, options)


def test_a_write_knows_its_columns_and_nothing_of_reads(settings: Settings) -> None:
    assert write_options(settings, {"columns": "id, name"}).columns == ("id", "name")
    assert write_options(settings, {}).columns is None
    assert write_options(settings, {"client.writer.acks": "1"}).settings["client.writer.acks"] == 1
    with pytest.raises(InvalidRequest, match=r"no write option 'scan.startup.mode'"):
        write_options(settings, {"scan.startup.mode": "full"})


@pytest.mark.parametrize(
    ("start", "end", "window"),
    [
        ("5", None, (5, None)),
        ("5", "7", (5, 7)),
        ("2026-01-31 12:00:00", None, (1769857200000, None)),
        ("2026-01-31T12:00:00+00:00", "2026-01-31 13:00:01", (1769860800000, 1769860801000)),
    ],
)
def test_a_time_range_is_in_milliseconds_or_in_the_zone_of_the_session(
    settings: Settings, start: str, end: str | None, window: tuple[int, int | None]
) -> None:
    given = {START: start} | ({} if end is None else {END: end})
    assert read_options(settings, None, given, {SESSION_ZONE: "Europe/Berlin"}).window == window


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({END: "5"}, "beside it"),
        ({START: "5", END: "5"}, "must be after"),
        ({START: ""}, "neither"),
        ({START: "yesterday"}, "neither"),
        ({START: "2026-01-31 12:00:00"}, "needs its zone"),
        ({START: "5", READ_OPTIMIZED: "true"}, "give one of them"),
        ({READ_OPTIMIZED: "maybe"}, "maybe"),
    ],
)
def test_a_time_range_that_is_none_is_refused(settings: Settings, given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        read_options(settings, None, given)


def test_what_a_lake_table_reads_is_chosen_by_the_read_before_the_session(settings: Settings) -> None:
    session = {OWN_SESSION_PREFIX + READ_OPTIMIZED: "true"}
    assert read_options(settings, None, {}, session).read_optimized
    assert not read_options(settings, None, {READ_OPTIMIZED: "false"}, session).read_optimized
    assert not read_options(settings, None, {STARTUP_MODE: "earliest"}).from_the_lake_on
