"""Whole primary-key tables are read at one point in time: by pickled tasks like Spark's, and through Spark."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from forebay.base.errors import InvalidRequest, NotFound
from forebay.client.connection import Connection, shared_connection
from forebay.client.reading import replay
from forebay.client.reading.table_snapshot import TableSnapshot, open_snapshot_of
from forebay.client.table import Table
from forebay.metadata.predicate import col
from forebay.protocol.api import ApiKey, NegotiatedVersions
from forebay.server.embedded import EmbeddedServer
from forebay.spark.datasource import ForebayDataSource
from forebay.spark.options import LEASE_DURATION, LEASE_ID, SESSION_PREFIX, ReadOptions, SnapshotLease, read_options
from forebay.spark.reading import open_snapshots, scan
from forebay.spark.reading.live_plan import LEASE_SECONDS, ClusterScan, task_partitions
from forebay.spark.reading.live_read import LiveRead
from forebay.spark.reading.open_snapshots import OPEN_BEFORE_COLLECTING, OpenSnapshots
from forebay.spark.reading.plan import Pushdown, ScanPlan, SplitsPartition
from tests.patience import until
from tests.spark.tables import ids_of, make_table, rows


def handles(server: EmbeddedServer) -> list[Any]:
    return list(server.server.context.table_snapshots.describe())


def wait_for_handles(server: EmbeddedServer, count: int, collect: Callable[[], object] = gc.collect) -> None:
    """Released from threads of their own, they need a moment."""
    until(lambda: (collect(), len(handles(server)) <= count)[1], "snapshots are released", 0.05)


@pytest.fixture
def table(connection: Connection, database: str) -> Table:
    """A table with the rows 0 to 999 in three buckets."""
    made = make_table(connection, f"{database}.t", ["id"])
    made.upsert(rows(0, 1000))
    return made


def planned(table: Table, wanted: Pushdown, lease: SnapshotLease = SnapshotLease()) -> ScanPlan:  # noqa: B008
    scan = ClusterScan(table.info, ReadOptions(table.connection.settings, lease=lease))
    schema = StructType([scan.schema[name] for name in wanted.columns])
    return scan.plan(table.connection, 2, wanted, schema)


def run(plan: ScanPlan, partitions: list[SplitsPartition]) -> list[pa.RecordBatch]:
    function: LiveRead = pickle.loads(pickle.dumps(plan.read))
    batches: list[pa.RecordBatch] = []
    for partition in partitions:
        batches += function(iter([pa.record_batch([pa.array([pickle.dumps(partition)])], ["value"])]))
    return batches


# ---- tasks as workers run them --------------------------------------------------------------------------------------


def test_tasks_that_are_run_again_or_late_read_the_rows_of_one_instant(table: Table) -> None:
    plan = planned(table, Pushdown(("id", "amount")))
    snapshot = plan.open().pinned
    assert snapshot is not None
    partitions = task_partitions(plan.tasks, snapshot)
    expected = rows(0, 1000)["amount"].to_pylist()
    for ids in (range(500), range(200, 900)):
        table.delete([{"id": i} for i in ids])
        read = pa.Table.from_batches(run(plan, partitions)).sort_by("id")
        assert read["id"].to_pylist() == list(range(1000))
        assert read["amount"].to_pylist() == expected
    snapshot.release()


@pytest.mark.parametrize(
    "wanted", [Pushdown(("id",)), Pushdown(("amount", "id")), Pushdown(("id",), (), col("amount") >= 0)]
)
def test_a_snapshot_that_has_ended_is_rebuilt_from_the_changelog(table: Table, wanted: Pushdown) -> None:
    table.upsert(rows(0, 300))
    table.delete([{"id": 3}])
    plan = planned(table, wanted)
    snapshot = plan.open().pinned
    assert snapshot is not None
    partitions = task_partitions(plan.tasks, snapshot)
    table.upsert(rows(1000, 1100))
    table.delete([{"id": i} for i in range(500)])
    snapshot.release()
    found = run(plan, partitions)
    assert ids_of(found) == [i for i in range(1000) if i != 3]
    assert all(batch.schema.equals(plan.read.schema) for batch in found)


def test_a_limit_holds_for_a_snapshot_that_is_rebuilt_too(table: Table) -> None:
    plan = planned(table, Pushdown(("id",), limit=7))
    snapshot = plan.open().pinned
    assert snapshot is not None
    partitions = task_partitions(plan.tasks, snapshot)
    snapshot.release()
    assert sum(batch.num_rows for batch in run(plan, partitions)) == 7


def test_without_the_beginning_of_the_changelog_an_ended_snapshot_is_an_error(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(table, Pushdown(("id",)))
    snapshot = plan.open().pinned
    assert snapshot is not None
    partitions = task_partitions(plan.tasks, snapshot)
    snapshot.release()
    offsets = replay.list_offsets
    monkeypatch.setattr(
        replay,
        "list_offsets",
        lambda cluster, info, buckets, spec: dict.fromkeys(buckets, 5) if spec == "earliest" else offsets,
    )
    with pytest.raises(NotFound, match="open another one"):
        run(plan, partitions)


def test_a_bucket_that_was_being_read_is_not_gone_on_with_in_another_order(table: Table) -> None:
    small = replace(table.connection.settings, user_options=(("client.scanner.kv.fetch.max-bytes", 1024),))
    scan = ClusterScan(table.info, ReadOptions(small))
    plan = scan.plan(table.connection, 2, Pushdown(("id",)), StructType([scan.schema["id"]]))
    snapshot = plan.open().pinned
    (partition,) = task_partitions(plan.tasks, snapshot)
    assert snapshot is not None
    assert partition.snapshot is not None
    buckets = partition.snapshot.buckets
    connection = shared_connection(small)
    batches = plan.read._snapshot_rows(connection, partition.snapshot.on(connection), buckets, {})
    next(batches)
    snapshot.release()
    with pytest.raises(NotFound, match="open another one"):
        list(batches)
    assert ids_of(plan.read.read(partition)) == list(range(1000)), "the next attempt"


def test_limits_filters_and_counts_are_those_of_the_instant(table: Table) -> None:
    for wanted, expected in (
        (Pushdown(("id",), (), col("id") >= 990), 10),
        (Pushdown(("id",), limit=7), 7),
        (Pushdown(()), 1000),
    ):
        plan = planned(table, wanted)
        snapshot = plan.open().pinned
        partitions = task_partitions(plan.tasks, snapshot)
        table.delete([{"id": 995}])
        assert sum(batch.num_rows for batch in run(plan, partitions)) == expected
        table.upsert(rows(995, 996))


def test_a_task_is_sent_only_what_it_needs_of_the_snapshot(table: Table) -> None:
    plan = planned(table, Pushdown(("id",)))
    snapshot = plan.open().pinned
    for partition in task_partitions([plan.tasks[0][:1]], snapshot):
        sent: SplitsPartition = pickle.loads(pickle.dumps(partition))
        assert sent.snapshot is not None
        assert sent.snapshot.buckets == [split.bucket for split in sent.splits]


def test_a_log_and_a_replayed_table_need_no_snapshot(table: Table, connection: Connection, database: str) -> None:
    log = make_table(connection, f"{database}.l")
    log.append(rows(0, 10))
    assert planned(log, Pushdown(("id",))).open().pinned is None
    replayed = ClusterScan(table.info, ReadOptions(connection.settings, "snapshot_merge"))
    plan = replayed.plan(connection, 2, Pushdown(("id",)), StructType([replayed.schema["id"]]))
    assert plan.open().pinned is None
    assert ids_of(run(plan, task_partitions(plan.tasks, None))) == list(range(1000))


def test_a_cluster_without_table_snapshots_is_read_as_its_buckets_are(
    table: Table, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers = NegotiatedVersions.offers
    monkeypatch.setattr(
        NegotiatedVersions, "offers", lambda self, key: key < ApiKey.OPEN_TABLE_SNAPSHOT and offers(self, key)
    )
    before = len(handles(server))
    plan = planned(table, Pushdown(("id",)))
    assert plan.open().pinned is None
    assert ids_of(run(plan, task_partitions(plan.tasks, None))) == list(range(1000))
    assert len(handles(server)) == before


# ---- leases ---------------------------------------------------------------------------------------------------------


def test_name_and_length_of_the_lease_are_options(table: Table, server: EmbeddedServer) -> None:
    plan = planned(table, Pushdown(("id",)), SnapshotLease("my query", 90.0))
    snapshot = plan.open().pinned
    assert snapshot is not None
    assert snapshot.lease_seconds == 90
    assert "my query" in [handle.name for handle in handles(server)]
    default = planned(table, Pushdown(("id",))).open().pinned
    assert default is not None
    assert default.lease_seconds == LEASE_SECONDS
    assert f"spark {table.path}" in [handle.name for handle in handles(server)]


def test_lease_options_are_read_from_the_read_and_from_the_session(connection: Connection) -> None:
    settings = connection.settings
    session = {SESSION_PREFIX + LEASE_ID: "s", SESSION_PREFIX + LEASE_DURATION: "10 min"}
    assert read_options(settings, None, {}).lease == SnapshotLease()
    assert read_options(settings, None, {}, session).lease == SnapshotLease("s", 600.0)
    chosen = read_options(settings, None, {LEASE_ID: "r", LEASE_DURATION: "2 h"}, session).lease
    assert chosen == SnapshotLease("r", 7200.0)
    for bad in ("soon", "0 s"):
        with pytest.raises(InvalidRequest, match=LEASE_DURATION):
            read_options(settings, None, {LEASE_DURATION: bad})


def test_a_snapshot_ends_with_the_scan_that_opened_it(table: Table, server: EmbeddedServer) -> None:
    gc.collect()
    before = len(handles(server))
    snapshot = planned(table, Pushdown(("id",))).open().pinned
    assert len(handles(server)) == before + 1
    del snapshot
    wait_for_handles(server, before)


def test_a_driver_with_many_snapshots_asks_for_a_collection_and_not_for_every_query(table: Table) -> None:
    opened = OpenSnapshots()
    kept: list[TableSnapshot] = []
    collected: list[int] = []
    for number in range(140):
        kept.append(open_snapshot_of(table.connection, table.info, [], None))
        opened.add(kept[-1], lambda number=number: collected.append(number))
    assert collected == [63, 127]
    kept.clear()
    gc.collect()
    assert len(opened) == 0
    for number in range(70):
        kept.append(open_snapshot_of(table.connection, table.info, [], None))
        opened.add(kept[-1], lambda number=number: collected.append(number))
    assert collected == [63, 127, 63]


def test_the_format_pins_the_table_where_a_lease_is_requested(table: Table, server: EmbeddedServer) -> None:
    """PySpark keeps the plan of a DataFrame for good, so without a word each bucket is read as it is."""
    options = {"bootstrap.servers": server.bootstrap_servers, "table": str(table.path)}

    def read(**more: str) -> list[int]:
        source = ForebayDataSource({**options, **more})
        reader = pickle.loads(pickle.dumps(source.reader(source.schema())))
        partitions = pickle.loads(pickle.dumps(reader.partitions()))
        gc.collect()
        table.delete([{"id": 5}])
        found = ids_of(batch for partition in partitions for batch in reader.read(partition))
        table.upsert(rows(5, 6))
        return found

    assert 5 not in read()
    before = len(handles(server))
    assert 5 in read(**{LEASE_DURATION: "1 min", LEASE_ID: "planned apart"})
    found = [handle for handle in handles(server) if handle.name == "planned apart"]
    assert len(handles(server)) == before + 1, "nobody but its lease ends it"
    assert found[0].lease_left_seconds <= 60
    server.server.context.table_snapshots.release(found[0].snapshot_id)


# ---- through Spark --------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_task_that_is_tried_again_gives_the_same_rows_although_they_have_changed(spark: Any, table: Table) -> None:
    def delete_and_fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The first attempt deletes every row when it has seen all of its own, and fails."""
        from pyspark import TaskContext

        yield from batches
        task = TaskContext.get()
        if task is not None and task.attemptNumber() == 0:
            table.delete([{"id": i} for i in range(1000)])
            raise RuntimeError("the first attempt fails at its end")

    frame = spark.table(f"forebay.{table.path}").select("id")
    found = frame.mapInArrow(delete_and_fail, frame.schema).collect()
    assert sorted(row.id for row in found) == list(range(1000))
    assert frame.count() == 0


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("most", [16, 64])
def test_queries_give_their_snapshots_back(
    spark: Any, table: Table, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """With fewer snapshots than a driver may have fewer queries show it; with as many, `make nightly` does."""
    assert OPEN_BEFORE_COLLECTING == 64
    monkeypatch.setattr(open_snapshots, "OPEN_BEFORE_COLLECTING", most)
    opened = OpenSnapshots()
    monkeypatch.setattr(scan, "open_snapshots", opened)
    for _ in range(most + most // 2):
        assert spark.sql(f"SELECT count(*) FROM forebay.{table.path}").collect()[0][0] == 1000
    assert len(opened) <= most + 6, "the JVM was not asked, or did not collect old plans"
    wait_for_handles(server, 8, lambda: (gc.collect(), spark._jvm.System.gc()))
