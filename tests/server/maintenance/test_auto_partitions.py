"""Automatic partitions: which ones should exist, and the server that creates and drops them."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay import col
from forebay.base.ambient import ManualClock
from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest, StorageFailure
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.metadata import types
from forebay.metadata.auto_partition import AutoPartitioning, TimeFormat, time_zone
from forebay.metadata.table import Column, PartitionInfo, Schema, TableDescriptor, TableInfo, TablePath
from forebay.server.embedded import EmbeddedServer
from forebay.server.maintenance import auto_partitions
from forebay.server.metadata.catalog import CatalogTable, LiveTable
from forebay.server.server import Injected
from forebay.unionread.plan import UnionPlan
from forebay.unionread.planning import plan_union
from tests.patience import PATIENCE, until
from tests.tiering.running import LAKES, LakeCluster, lake_cluster

PREFIX = "table.auto-partition."
AUTO = {PREFIX + "enabled": "true"}
DAY_MS = 24 * 3600 * 1000


def at(text: str) -> int:
    """The milliseconds of a moment in UTC."""
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp() * 1000)


def rules(keys: tuple[str, ...] = ("p",), key_type: Any = None, **options: object) -> AutoPartitioning:
    columns = [Column("v", types.int_()), *(Column(k, key_type or types.string()) for k in keys)]
    properties = {**AUTO, **{PREFIX + name.replace("_", "-"): str(value) for name, value in options.items()}}
    made = AutoPartitioning.of(TableDescriptor(Schema.of(columns), keys, properties=properties))
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("unit", "now", "precreate", "expected"),
    [
        ("day", "2024-11-11T12:00", 3, ["20241111", "20241112", "20241113"]),
        ("DAY", "2024-12-31T23:59", 2, ["20241231", "20250101"]),
        ("day", "2024-02-28T00:00", 2, ["20240228", "20240229"]),
        ("hour", "2024-12-31T23:30", 2, ["2024123123", "2025010100"]),
        ("month", "2024-12-31T12:00", 3, ["202412", "202501", "202502"]),
        ("quarter", "2024-11-11T12:00", 2, ["20244", "20251"]),
        ("year", "2024-02-29T12:00", 2, ["2024", "2025"]),
        ("year", "2024-02-29T12:00", 0, []),
    ],
)
def test_partitions_are_made_for_the_present_unit_and_those_after_it(
    unit: str, now: str, precreate: int, expected: list[str]
) -> None:
    assert rules(time_unit=unit, num_precreate=precreate).values_to_create(at(now)) == expected


def test_days_and_hours_are_those_of_the_tables_zone_through_changes_of_summer_time() -> None:
    assert rules(time_zone="Asia/Shanghai").values_to_create(at("2024-11-11T16:30"))[0] == "20241112"
    assert rules(time_zone="GMT-05:30").values_to_create(at("2024-11-11T05:00"))[0] == "20241110"
    assert rules().values_to_create(at("2024-11-11T23:59"))[0] == "20241111"
    autumn = rules(time_zone="America/New_York", num_precreate=3)
    assert autumn.values_to_create(at("2024-11-03T04:30")) == ["20241103", "20241104", "20241105"]
    hours = rules(time_zone="America/New_York", time_unit="hour", num_precreate=4)
    assert hours.values_to_create(at("2024-03-10T05:30")) == ["2024031000", "2024031001", "2024031003", "2024031004"]


@pytest.mark.parametrize(
    ("unit", "retention", "oldest"),
    [
        ("day", 3, "20241108"),
        ("hour", 12, "2024111100"),
        ("month", 11, "202312"),
        ("quarter", 4, "20234"),
        ("year", 0, "2024"),
    ],
)
def test_past_partitions_are_kept_as_many_as_the_table_says(unit: str, retention: int, oldest: str) -> None:
    made, now = rules(time_unit=unit, num_retention=retention), at("2024-11-11T12:00")
    before = str(int(oldest) - 1)
    assert not made.has_expired(oldest, now)
    made.check_new(oldest, now)
    if made.format.matches(before):
        assert made.has_expired(before, now)
        with pytest.raises(InvalidRequest, match=f"out of date.*'{oldest}'") as refused:
            made.check_new(before, now)
        assert refused.value.code == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION


def test_a_negative_retention_keeps_everything_and_a_huge_one_does_not_overflow() -> None:
    now = at("2024-11-11T12:00")
    for retention in (-1, 10**9):
        made = rules(num_retention=retention)
        assert not made.has_expired("00010101", now)
        made.check_new("19700101", now)


def test_values_that_are_no_times_never_expire_and_cannot_be_made() -> None:
    made, now = rules(), at("2024-11-11T12:00")
    for value in ("2024111", "202411111", "20241311", "20240001", "abcdefgh", "", "2024-1-1"):
        assert not made.has_expired(value, now)
        with pytest.raises(InvalidRequest, match="is no day in the format 'yyyyMMdd'"):
            made.check_new(value, now)


@pytest.mark.parametrize(
    ("pattern", "unit", "text"),
    [
        ("yyyy-MM-dd", "day", "2024-11-09"),
        ("uuuu_LL", "month", "2024_11"),
        ("yyyy'w'q", "quarter", "2024w4"),
        ("'at-'yyyyMMdd-HH", "hour", "at-20241109-07"),
    ],
)
def test_formats_of_fixed_width_fields_from_large_to_small_are_taken(pattern: str, unit: str, text: str) -> None:
    made = TimeFormat.of(pattern, unit)
    assert made.text(dt.datetime(2024, 11, 9, 7)) == text
    assert made.matches(text)
    assert not made.matches(text + "0")


@pytest.mark.parametrize(
    ("pattern", "unit"),
    [
        ("MM-yyyy", "month"), ("yyyy-MM", "day"), ("yyyy-M-dd", "day"), ("yy-MM-dd", "day"), ("yyyyMMddHHmm", "hour"),
        ("yyyy[-MM]", "month"), ("yyyy'-MM", "month"), ("yyyy/MM", "month"), ("'__'yyyy", "year"), ("yyyy''", "year"),
        ("YYYY", "year"), ("", "year"),
    ],
)  # fmt: skip
def test_formats_that_do_not_sort_by_time_or_make_no_names_are_refused(pattern: str, unit: str) -> None:
    with pytest.raises(InvalidRequest, match="time format") as refused:
        TimeFormat.of(pattern, unit)
    assert refused.value.code == ErrorCode.INVALID_TABLE_EXCEPTION


@pytest.mark.parametrize("text", ["Nowhere/Town", "GMT+25", "../etc/passwd", ""])
def test_unknown_zones_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="time zone"):
        time_zone(text)


@pytest.mark.parametrize(
    ("keys", "key_type", "options", "match"),
    [
        (("p", "q"), None, {"num_precreate": 0}, "needs 'table.auto-partition.key'"),
        (("p", "q"), None, {"num_precreate": 0, "key": "v"}, "not one of the partition keys"),
        (("p", "q"), None, {"num_precreate": 1, "key": "q"}, "must be 0"),
        (("p",), types.date(), {}, "is a DATE"),
        (("p",), types.date(), {"time_format": "yyyy-MM", "time_unit": "month"}, "is a DATE"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    keys: tuple[str, ...], key_type: Any, options: dict[str, object], match: str
) -> None:
    with pytest.raises(InvalidRequest, match=match) as refused:
        rules(keys, key_type, **options)
    assert refused.value.code == ErrorCode.INVALID_TABLE_EXCEPTION


# ---- a server -------------------------------------------------------------------------------------------------------


class Timed:
    """A server on a clock of its own, which looks after partitions again and again."""

    def __init__(self, connection: Connection, clock: ManualClock) -> None:
        self.connection, self.clock = connection, clock

    def names(self, table: str | Table) -> list[str]:
        path = table if isinstance(table, str) else table.path
        return sorted(p.name for p in self.connection.table(path).partitions())

    def go_to(self, text: str) -> None:
        self.clock.advance((at(text) - self.clock.now_ms()) / 1000)

    def until(self, holds: Callable[[], bool]) -> None:
        until(holds)


OFTEN = {"auto-partition.check.interval": "20 ms"}


@pytest.fixture
def timed(tmp_path: Path) -> Iterator[Timed]:
    clock = ManualClock(at("2024-11-11T12:00"))
    with (
        EmbeddedServer(tmp_path / "data", settings=OFTEN, injected=Injected(clock=clock)) as server,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        yield Timed(connection, clock)


def test_partitions_are_there_with_the_table_and_follow_the_clock(timed: Timed) -> None:
    timed.connection.create_table(
        "fluss.t",
        {"v": pa.int32(), "p": pa.string()},
        partition_keys=["p"],
        options={**AUTO, PREFIX + "num-retention": 2},
    )
    assert timed.names("fluss.t") == ["20241111", "20241112"]
    table = timed.connection.table("fluss.t")
    table.append([{"v": day, "p": f"202411{day:02d}"} for day in (9, 10, 11)])
    assert timed.names(table) == ["20241109", "20241110", "20241111", "20241112"]
    with pytest.raises(InvalidRequest, match="out of date"):
        table.append([{"v": 1, "p": "20241108"}])
    with pytest.raises(InvalidRequest, match="is no day"):
        table.append([{"v": 1, "p": "today"}])
    timed.go_to("2024-11-12T00:00")
    timed.until(lambda: timed.names(table) == ["20241110", "20241111", "20241112", "20241113"])
    timed.go_to("2024-12-01T00:00")
    timed.until(lambda: timed.names(table) == ["20241201", "20241202"])
    assert table.scan().to_arrow().num_rows == 0


def test_tables_with_several_keys_lose_old_partitions_and_get_none(timed: Timed) -> None:
    timed.connection.create_table(
        "fluss.t",
        {"v": pa.int32(), "region": pa.string(), "p": pa.string()},
        partition_keys=["region", "p"],
        options={**AUTO, PREFIX + "key": "p", PREFIX + "num-retention": 1, PREFIX + "time-unit": "MONTH"},
    )
    table = timed.connection.table("fluss.t")
    table.append([{"v": 1, "region": r, "p": p} for r in ("eu", "us") for p in ("202410", "202411", "209901")])
    assert len(timed.names(table)) == 6
    timed.go_to("2024-12-01T00:00")
    timed.until(lambda: timed.names(table) == ["eu$202411", "eu$209901", "us$202411", "us$209901"])


def test_automatic_partitions_can_be_switched_on_and_off_and_changed(timed: Timed) -> None:
    timed.connection.create_table("fluss.t", {"v": pa.int32(), "p": pa.string()}, partition_keys=["p"])
    timed.connection.table("fluss.t").create_partition({"p": "20240101"})
    timed.connection.table("fluss.t").create_partition({"p": "other"})
    timed.connection.table("fluss.t").alter(set=AUTO)
    assert timed.names("fluss.t") == ["20241111", "20241112", "other"]
    timed.connection.table("fluss.t").alter(set={PREFIX + "num-precreate": "4"})
    assert timed.names("fluss.t") == ["20241111", "20241112", "20241113", "20241114", "other"]
    timed.connection.table("fluss.t").alter(set={PREFIX + "enabled": "false"})
    timed.go_to("2025-01-01T00:00")
    timed.connection.table("fluss.t").create_partition({"p": "anything"})
    timed.connection.table("fluss.t").alter(set=AUTO)
    assert timed.names("fluss.t") == ["20250101", "20250102", "20250103", "20250104", "anything", "other"]
    timed.connection.create_table("fluss.plain", {"v": pa.int32()})
    with pytest.raises(ForebayError, match="needs a partitioned table"):
        timed.connection.table("fluss.plain").alter(set=AUTO)


def test_a_table_that_has_all_the_partitions_it_may_have_gets_no_more(tmp_path: Path) -> None:
    settings = {**OFTEN, "max.partition.num": "2"}
    with (
        EmbeddedServer(tmp_path / "data", settings=settings) as server,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        connection.create_table(
            "fluss.t",
            {"v": pa.int32(), "p": pa.string()},
            partition_keys=["p"],
            options={**AUTO, PREFIX + "num-precreate": 5},
        )
        assert len(connection.table("fluss.t").partitions()) == 2


# ---- and a lake -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=LAKES)
def timed_lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[LakeCluster, Timed]]:
    clock = ManualClock(at("2024-11-11T12:00"))
    with lake_cluster(tmp_path, LAKES[request.param], clock=clock, settings=OFTEN) as running:
        yield running, Timed(running.connection, clock)


Rows = list[dict[str, Any]]


def planned(cluster: LakeCluster, table: Table, **options: Any) -> UnionPlan:
    return plan_union(table, storage=cluster.storage, **options)


def read(cluster: LakeCluster, table: Table, **options: Any) -> Rows:
    plan = planned(cluster, table, **options)
    return ordered(row for s in plan.splits for b in plan.reader.read(s, cluster.connection) for row in b.to_pylist())


def ordered(rows: Iterable[dict[str, Any]]) -> Rows:
    return sorted(rows, key=repr)


@pytest.mark.parametrize("keyed", [True, False], ids=["primary key", "log"])
def test_partitions_of_a_lake_table_expire_when_the_lake_has_them_and_stay_readable(
    timed_lake: tuple[LakeCluster, Timed], keyed: bool
) -> None:
    cluster, timed = timed_lake
    table = cluster.create(
        "t",
        {"k": pa.int32(), "p": pa.string(), "v": pa.int32()},
        primary_key=["k", "p"] if keyed else [],
        partition_keys=["p"],
        options={**AUTO, PREFIX + "num-retention": "1"},
    )
    write = table.upsert if keyed else table.append
    rows = [{"k": k, "p": p, "v": k} for p in ("20241110", "20241111", "20241112") for k in range(4)]
    write(rows)
    cluster.tier(table)
    write([{"k": 9, "p": "20241111", "v": 9}])
    rows.append({"k": 9, "p": "20241111", "v": 9})
    timed.go_to("2024-11-20T12:00")
    timed.until(lambda: timed.names(table) == ["20241111", "20241120", "20241121"])
    plan = planned(cluster, table)
    assert plan.facts.lake_only_partitions == ("20241110", "20241112")
    assert read(cluster, table) == ordered(rows)
    cluster.tier(table)
    timed.until(lambda: timed.names(table) == ["20241120", "20241121"])
    write([{"k": 1, "p": "20241120", "v": 100}])
    rows.append({"k": 1, "p": "20241120", "v": 100})
    assert read(cluster, table) == ordered(rows)
    cluster.tier(table)
    assert read(cluster, table) == ordered(rows)
    chosen = col("p") == "20241111"
    assert {s.lake.partition() for s in planned(cluster, table, filter=chosen).splits} == {("20241111",)}
    assert read(cluster, table, filter=chosen) == ordered(r for r in rows if r["p"] == "20241111")
    assert read(cluster, table, filter=(col("p") < "20241112") & (col("k") > 2)) == ordered(
        r for r in rows if r["p"] < "20241112" and r["k"] > 2
    )


def test_a_write_to_a_partition_that_is_being_dropped_is_refused_and_not_lost(
    timed_lake: tuple[LakeCluster, Timed], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, timed = timed_lake
    columns = {"k": pa.int32(), "p": pa.string(), "v": pa.int32()}
    table = cluster.create(
        "t", columns, primary_key=["k", "p"], partition_keys=["p"], options={**AUTO, PREFIX + "num-retention": "1"}
    )
    table.upsert([{"k": 1, "p": "20241110", "v": 1}])
    cluster.tier(table)
    outcome: list[str] = []

    def write_late() -> None:
        try:
            table.upsert([{"k": 2, "p": "20241110", "v": 2}])
            outcome.append("acknowledged")
        except ForebayError as e:
            outcome.append(str(e))

    late = threading.Thread(target=write_late)
    drop = auto_partitions._drop

    async def drop_slowly(context: Any, table: Any, info: Any, partition: Any) -> bool:
        if partition.name == "20241110":
            late.start()
            await asyncio.sleep(0.3)  # long enough for a write that is let in
        return await drop(context, table, info, partition)

    monkeypatch.setattr(auto_partitions, "_drop", drop_slowly)
    timed.go_to("2024-11-20T12:00")
    timed.until(lambda: "20241110" not in timed.names(table))
    late.join(PATIENCE)
    assert len(outcome) == 1
    assert outcome != ["acknowledged"]
    assert read(cluster, table) == [{"k": 1, "p": "20241110", "v": 1}]


# ---- what fails on the way ------------------------------------------------------------------------------------------

DROPPED = PartitionInfo(3, (("p", "20240101"),))


class FakeReplica:
    """A bucket that can be sealed."""

    def __init__(self) -> None:
        self.is_sealed, self.uses = True, 1

    def unseal(self) -> None:
        self.is_sealed = False


class FakeContext:
    """As much of a server as a partition needs to be dropped; `fails` is what dropping it raises.

    `meanwhile` is what another client changes while the drop waits for its turn.
    """

    def __init__(
        self,
        sealed: list[FakeReplica],
        fails: BaseException | None = None,
        meanwhile: Callable[[FakeContext], None] = lambda _: None,
    ) -> None:
        self.sealed, self.fails, self.meanwhile = sealed, fails, meanwhile
        self.created: list[str] = []
        self.dropped: list[str] = []
        self.removed: list[list[int]] = []
        self.replicas, self.catalog, self.clock = self, self, ManualClock(at("2024-11-11T12:00"))
        properties = {**AUTO, PREFIX + "num-precreate": "1"}
        columns = [Column("v", types.int_()), Column("p", types.string())]
        self.info = TableInfo(
            TablePath("fluss", "t"), 1, 1, TableDescriptor(Schema.of(columns), ("p",), properties=properties), 0, 0
        )
        self.table: LiveTable | None = self.new_table(self.info)

    @staticmethod
    def new_table(info: TableInfo) -> LiveTable:
        return LiveTable(CatalogTable(info, {1: info.schema}, {3: DROPPED}, {DROPPED.name: 3}))

    def table_by_id(self, table_id: int) -> LiveTable | None:
        return self.table if self.table is not None and self.table.info.table_id == table_id else None

    def end(self, replica: FakeReplica) -> None:
        replica.uses -= 1

    def create_partition(self, path: TablePath, spec: dict[str, str], ignore_if_exists: bool) -> None:
        self.created.append(spec["p"])

    def drop_partition(self, path: TablePath, spec: dict[str, str]) -> PartitionInfo:
        if self.fails is not None:
            raise self.fails
        self.dropped.append(spec["p"])
        return DROPPED

    async def in_store(self, *_: Any) -> list[FakeReplica]:
        return self.sealed

    async def in_coordinator(self, work: Callable[..., Any], *args: Any) -> Any:
        self.meanwhile(self)
        return work(*args)

    async def remove_data(self, info: TableInfo, partition_ids: list[int], folder: str) -> None:
        self.removed.append(partition_ids)


def follow_the_clock(context: FakeContext) -> None:
    assert context.table is not None
    asyncio.run(auto_partitions.follow_the_clock_for(context, context.table))  # type: ignore[arg-type]


def alter(context: FakeContext) -> None:
    assert context.table is not None
    context.table.show(replace(context.table.current, info=replace(context.info, modified_ms=1)))


def drop(context: FakeContext) -> None:
    context.table = None


def drop_and_create(context: FakeContext) -> None:
    context.table = context.new_table(replace(context.info, table_id=2))


def drop_partition(context: FakeContext) -> None:
    assert context.table is not None
    context.table.show(replace(context.table.current, partitions_by_id={}, partition_ids={}))


def drop_and_create_partition(context: FakeContext) -> None:
    assert context.table is not None
    again = replace(DROPPED, partition_id=4)
    context.table.show(replace(context.table.current, partitions_by_id={4: again}, partition_ids={again.name: 4}))


def test_an_expired_partition_is_dropped_and_the_one_of_the_day_created() -> None:
    context = FakeContext([FakeReplica()])
    follow_the_clock(context)
    assert (context.dropped, context.removed, context.created) == (["20240101"], [[3]], ["20241111"])


def test_a_partition_that_could_not_be_dropped_takes_writes_again() -> None:
    sealed = [FakeReplica(), FakeReplica()]
    context = FakeContext(sealed, StorageFailure("the disk is full"))
    follow_the_clock(context)
    assert [(each.is_sealed, each.uses) for each in sealed] == [(False, 0), (False, 0)]
    assert context.removed == []


@pytest.mark.parametrize("gone", [drop, drop_and_create, drop_partition, drop_and_create_partition])
def test_what_another_client_has_dropped_and_perhaps_created_again_is_left_alone(
    gone: Callable[[FakeContext], None],
) -> None:
    sealed = [FakeReplica()]
    context = FakeContext(sealed, meanwhile=gone)
    follow_the_clock(context)
    assert (sealed[0].is_sealed, sealed[0].uses) == (True, 0)
    assert (context.dropped, context.removed) == ([], [])
    is_there = gone in (drop_partition, drop_and_create_partition)
    assert context.created == (["20241111"] if is_there else [])


def test_a_table_that_was_altered_while_a_drop_waited_keeps_its_partition_and_takes_writes_again() -> None:
    sealed = [FakeReplica()]  # the client may have raised 'table.auto-partition.num-retention', or given it a lake
    context = FakeContext(sealed, meanwhile=alter)
    follow_the_clock(context)
    assert (sealed[0].is_sealed, sealed[0].uses) == (False, 0)
    assert (context.dropped, context.removed, context.created) == ([], [], [])
