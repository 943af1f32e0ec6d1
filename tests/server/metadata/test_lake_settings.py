"""The catalog's rules for lakes: which tables may be in one, the calls to the lake, and the tables to tier.

Without a server, on a lake that only records its calls.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from forebay.base.errors import ErrorCode, InternalError, InvalidRequest, NotFound
from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableDescriptor, TableInfo, TablePath
from forebay.server.metadata.lake_tables import LakeSettings, LakeTables

PATH = TablePath("db", "t")
ENABLED, FORMAT = "table.datalake.enabled", "table.datalake.format"
ON = LakeSettings("paimon", True, {"name": "l", "token": "5ecret-token"})
OFF, NONE = LakeSettings("paimon", False), LakeSettings()
"""A server whose lake takes no tables, and one without a lake."""


class Lake:
    """What a server and its lake hear of tables."""

    def __init__(self, settings: LakeSettings, last_rounds: dict[int, int] | None = None) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.opened = 0
        self.fails: Exception | None = None
        self.rounds = last_rounds or {}
        self.tables = LakeTables(settings, self, self, self._create)  # type: ignore[arg-type]

    def _create(self, name: str, options: Any) -> Lake:
        self.opened += 1
        return self

    def create_catalog(self) -> Lake:
        if self.fails is not None:
            raise self.fails
        return self

    def create_table(self, path: TablePath, descriptor: TableDescriptor, *, creating: bool) -> None:
        self.heard.append(("create", creating))

    def alter_table(self, path: TablePath, current: TableDescriptor, expected: TableDescriptor) -> None:
        self.heard.append(("alter",))
        if self.fails is not None:
            raise self.fails

    def close(self) -> None:
        self.heard.append(("close",))

    # as the manager of tiering, and as the known snapshots

    def add(self, table_id: int, path: TablePath, freshness_ms: int, last_round_ms: int | None) -> None:
        self.heard.append(("add", table_id, freshness_ms, last_round_ms))

    def remove(self, table_id: int) -> None:
        self.heard.append(("remove", table_id))

    def set_freshness(self, table_id: int, freshness_ms: int) -> None:
        self.heard.append(("freshness", table_id, freshness_ms))

    def last_rounds_ms(self) -> dict[int, int]:
        return self.rounds

    def forget(self, table_id: int) -> None:
        self.heard.append(("forget", table_id))


def described(
    enabled: bool | None = None, lake: str | None = "paimon", *, key: bool = False, buckets: bool = False, **more: str
) -> TableDescriptor:
    """A table that is in a lake, is not, or (None) never was; with the lake's format recorded, if any."""
    properties = {**({} if enabled is None else {ENABLED: str(enabled).lower()}), **({FORMAT: lake} if lake else {})}
    columns = [Column("k", types.int_().not_null() if key else types.int_()), Column("v", types.int_())]
    return TableDescriptor(
        Schema.of(columns, ("k",) if key else ()),
        bucket_keys=("k",) if buckets else (),
        bucket_count=1,
        properties={**properties, **{name.replace("__", "."): value for name, value in more.items()}},
    )


def info(descriptor: TableDescriptor, table_id: int = 7) -> TableInfo:
    return TableInfo(PATH, table_id, 1, descriptor)


# ---- what a table may ask for ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "before", "after"), [(ON, None, "paimon"), (ON, "iceberg", "iceberg"), (NONE, None, None)]
)
def test_a_new_table_has_the_format_of_the_servers_lake_recorded_unless_it_names_one(
    settings: LakeSettings, before: str | None, after: str | None
) -> None:
    assert Lake(settings).tables.with_format(described(lake=before)).lake_format == after


@pytest.mark.parametrize(
    ("settings", "descriptor", "code"),
    [
        (ON, described(True), None),
        (ON, described(True, "iceberg"), ErrorCode.INVALID_CONFIG_EXCEPTION),
        (ON, described(False, "iceberg"), None),
        (OFF, described(True), ErrorCode.INVALID_TABLE_EXCEPTION),
        (OFF, described(False), None),
        (NONE, described(None, None), None),
    ],
)
def test_a_lake_table_needs_a_lake_of_its_format(
    settings: LakeSettings, descriptor: TableDescriptor, code: ErrorCode | None
) -> None:
    tables = Lake(settings).tables
    if code is None:
        tables.check(descriptor)
        return
    with pytest.raises(InvalidRequest) as refused:
        tables.check(descriptor)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("settings", "current", "reason"),
    [
        (ON, described(), None),
        (ON, described(False), None),
        (ON, described(lake=None), None),
        (ON, described(key=True), None),
        (ON, described(buckets=True), None),
        (ON, described(lake=None, key=True), "was created while the server had no lake"),
        (ON, described(lake=None, buckets=True), "was created while the server had no lake"),
        (ON, described(lake="iceberg"), "must be the same"),
        (OFF, described(), "this server has no lake"),
        (OFF, described(True), None),
    ],
)
def test_tiering_is_switched_on_where_the_rows_lie_in_the_buckets_of_the_lake(
    settings: LakeSettings, current: TableDescriptor, reason: str | None
) -> None:
    tables, wanted = Lake(settings).tables, replace(current, properties={**current.properties, ENABLED: "true"})
    if reason is None:
        altered = tables.for_alter(PATH, current, wanted)
        assert altered == replace(wanted, properties={**wanted.properties, FORMAT: "paimon"})
        return
    with pytest.raises(InvalidRequest, match=reason):
        tables.for_alter(PATH, current, wanted)


def test_what_does_not_switch_tiering_on_is_left_as_it_is() -> None:
    for current, wanted in ((described(True), described(False)), (described(lake=None), described(False, None))):
        assert Lake(NONE).tables.for_alter(PATH, current, wanted) is wanted


# ---- the lake's tables ----------------------------------------------------------------------------------------------


def test_a_lake_table_is_made_with_its_table() -> None:
    lake = Lake(ON)
    lake.tables.create(PATH, described(False))
    assert (lake.heard, lake.opened) == ([], 0)
    lake.tables.create(PATH, described(True))
    lake.tables.create(PATH, described(True))
    assert (lake.heard, lake.opened) == ([("create", True)] * 2, 1)
    with pytest.raises(InternalError):
        Lake(NONE).tables.create(PATH, described(True))


CREATE, ALTER = ("create", False), ("alter",)


@pytest.mark.parametrize(
    ("current", "expected", "heard"),
    [
        (described(True), described(True), []),
        (described(), described(more="x"), []),
        (described(), described(True), [CREATE]),
        (described(False), described(True), [CREATE, ALTER]),
        (described(True), described(True, more="x"), [ALTER]),
        (described(True), described(False), [ALTER]),
        (described(False), described(False, more="x"), [ALTER]),
    ],
)
def test_the_lake_table_follows_its_table_while_it_is_tiered_and_afterwards(
    current: TableDescriptor, expected: TableDescriptor, heard: list[tuple[Any, ...]]
) -> None:
    lake = Lake(ON)
    lake.tables.alter(PATH, current, expected)
    assert lake.heard == heard


def test_a_lake_table_that_is_gone_matters_only_while_it_is_tiered() -> None:
    lake = Lake(ON)
    lake.tables.load()
    lake.fails = NotFound("no such table")
    lake.tables.alter(PATH, described(True), described(False))
    with pytest.raises(NotFound, match=r"the lake table of db\.t is gone.*no such table") as refused:
        lake.tables.alter(PATH, described(True), described(True, more="x"))
    assert refused.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert lake.heard == [ALTER, ALTER]


def test_a_server_that_lost_its_lake_can_only_switch_tiering_off() -> None:
    lake = Lake(OFF)
    lake.tables.alter(PATH, described(True), described(False))
    lake.tables.alter(PATH, described(False), described(False, more="x"))
    with pytest.raises(InvalidRequest, match="has no lake any more") as refused:
        lake.tables.alter(PATH, described(True), described(True, more="x"))
    assert refused.value.code == ErrorCode.INVALID_ALTER_TABLE_EXCEPTION
    assert (lake.heard, lake.opened) == ([], 0)


def test_the_lake_is_opened_once_closed_once_and_its_failure_told_without_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lake = Lake(ON)
    lake.fails = NotFound("no lake for 5ecret-token")
    with caplog.at_level(logging.WARNING):
        lake.tables.load()
    assert "no lake for ******" in caplog.text
    assert "5ecret" not in caplog.text
    lake.tables.close()
    assert lake.heard == []
    lake.fails = None
    lake.tables.load()
    lake.tables.load()
    assert lake.opened == 2
    lake.tables.close()
    lake.tables.close()
    assert lake.heard == [("close",)]
    for settings in (OFF, NONE):
        unused = Lake(settings)
        unused.tables.load()
        assert unused.opened == 0


def test_clients_are_told_where_the_lake_of_a_lake_table_is() -> None:
    told = {**described(True).properties, "table.datalake.paimon.name": "l"}
    assert Lake(ON).tables.described(described(True)).properties == told
    for settings, descriptor in ((ON, described(False)), (NONE, described(True))):
        assert Lake(settings).tables.described(descriptor) is descriptor


# ---- whose turn it is -----------------------------------------------------------------------------------------------

MINUTE, HOUR = {"table__datalake__freshness": "1 min"}, {"table__datalake__freshness": "1 h"}


def test_lake_tables_that_are_there_at_the_start_are_scheduled_from_their_last_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    there = [info(described(True, **MINUTE), 1), info(described(False), 2), info(described(True, **HOUR), 3)]
    lake = Lake(ON, {1: 99})
    lake.tables.opened(there)
    assert lake.heard == [("add", 1, 60_000, 99), ("add", 3, 3_600_000, None)]
    lost = Lake(OFF)
    lost.tables.opened(there)
    assert lost.heard == []
    assert caplog.text.count("is not tiered: this server has no lake") == 2


def test_tables_that_come_change_and_go_are_scheduled_and_forgotten() -> None:
    lake = Lake(ON)
    lake.tables.created(info(described(False)))
    assert lake.heard == []
    lake.tables.created(info(described(True, **MINUTE)))
    assert lake.heard == [("add", 7, 60_000, None)]
    lake.heard.clear()
    for before, after, heard in (
        (described(True), described(False), [("remove", 7)]),
        (described(False), described(True, **MINUTE), [("add", 7, 60_000, None)]),
        (described(True, **MINUTE), described(True, **HOUR), [("freshness", 7, 3_600_000)]),
        (described(True, **MINUTE), described(True, more="x", **MINUTE), []),
        (described(False, **MINUTE), described(False, **HOUR), []),
    ):
        lake.tables.altered(info(before), info(after))
        assert lake.heard == heard
        lake.heard.clear()
    lake.tables.dropped(info(described(True)))
    assert lake.heard == [("remove", 7), ("forget", 7)]


def test_without_tiering_and_snapshots_nothing_is_scheduled() -> None:
    tables = LakeTables(ON)
    tables.opened([info(described(True))])
    tables.created(info(described(True)))
    tables.altered(info(described(True)), info(described(False)))
    tables.dropped(info(described(True)))
