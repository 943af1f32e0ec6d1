"""Streams whose lake snapshot expires before they have read it: the right rows, or an error with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import NotFound
from forebay.client.table import Table
from forebay.lake.formats import create_lake_storage
from forebay.metadata.table import TableBucket
from forebay.paimon.catalog.catalog import Catalog
from forebay.server.embedded import EmbeddedServer
from forebay.unionread import expired_records
from tests.spark.streams import Stream
from tests.spark.tables import ROWS_SCHEMA, ids_of, rows
from tests.unionread.world import ICEBERG, PAIMON, World, compact, world

pytest.importorskip("pyspark.sql.streaming.datasource", reason="comes with Spark 4.2")

EXPIRED = "has not read all of lake snapshot .* has expired: start it with another checkpoint"


@pytest.fixture(scope="module", params=[PAIMON, ICEBERG])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("lakehouse"), request.param) as running:
        yield running


def tiered(lake: World, *, keyed: bool = True) -> Table:
    """Rows 0 to 29, of which 0 to 19 are in the lake."""
    table = lake.create(ROWS_SCHEMA, buckets=3, **({"primary_key": ["id"]} if keyed else {}))
    write = table.upsert if keyed else table.append
    write(rows(0, 20))
    lake.tier(table)
    write(rows(20, 30))
    return table


@pytest.mark.parametrize("keyed", [True, False], ids=["primary key", "log"])
@pytest.mark.parametrize("later", ["compacted", "changed"])
def test_a_stream_may_begin_although_another_process_has_expired_the_snapshot(
    lake: World, keyed: bool, later: str
) -> None:
    table = tiered(lake, keyed=keyed)
    if later == "changed":
        lake.commit_to_lake(table)  # by a worker that died before it told the server
    compact(lake, table, expire=True)
    for name in (str(table.path), f"{table.path}$changelog"):
        stream = Stream(lake.connection, name, scan_startup_mode="full")
        assert ids_of([batch for batches in stream.batches() for batch in batches]) == list(range(30))


@pytest.mark.parametrize("key", [(), "id"])
def test_a_stream_whose_log_has_expired_says_how_to_go_on(tmp_path: Path, key: str | tuple[str, ...]) -> None:
    settings = {"log.segment.file-size": "4kb"}
    with EmbeddedServer(tmp_path, settings=settings) as server, forebay.connect(server.bootstrap_servers) as connection:
        connection.create_database("db")
        table = connection.create_table("db.t", ROWS_SCHEMA, primary_key=key, buckets=1)
        write = table.upsert if key else table.append
        write(rows(0, 10))
        stream = Stream(connection, table)
        assert ids_of([batch for batches in stream.batches() for batch in batches]) == list(range(10))
        for first in range(10, 500, 10):
            write(rows(first, first + 10))
        (replica,) = server.server.context.replicas.replicas()
        assert replica.log.delete_segments_before(400)
        stream.restart()
        gone = r"goes on at offset 10 of bucket 0, but the records before offset \d+ have expired"
        with pytest.raises(NotFound, match=gone) as refused:
            stream.batch()
        assert "another checkpoint" in refused.value.message
        assert "admin" not in refused.value.message
        assert str(tmp_path) not in refused.value.message


@pytest.fixture(scope="module", params=[PAIMON, ICEBERG])
def segmented(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[World, EmbeddedServer]]:
    """A server whose logs are in small segments, which can be deleted."""
    folder, lake = tmp_path_factory.mktemp("segments"), request.param
    warehouse = {"warehouse": str(folder / "lake")}
    settings = {"log.segment.file-size": "4kb", "datalake.format": lake}
    settings |= {f"datalake.{lake}.{k}": v for k, v in warehouse.items()}
    with (
        EmbeddedServer(folder / "data", settings=settings) as server,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        yield World(connection, create_lake_storage(lake, warehouse), lake), server


def expire(server: EmbeddedServer, table: Table, percent: int = 98) -> list[int]:
    """Delete the old segments of a table's logs, up to this part of them; return where the logs begin then."""
    replicas = [r for r in server.server.context.replicas.replicas() if r.table.info.table_id == table.info.table_id]
    for replica in replicas:
        assert replica.log.delete_segments_before(replica.log.log_end_offset * percent // 100)
    return [replica.log.log_start_offset for replica in replicas]


def append(table: Table, first: int, stop: int) -> None:
    """Append rows by ten. In a partitioned table, every other one is in partition a."""
    for start in range(first, stop, 10):
        batch = rows(start, start + 10)
        if table.info.is_partitioned:
            batch = batch.set_column(1, batch.schema.field(1), pa.array(["a", "b"] * 5))
        table.append(batch)


def ids_left(stream: Stream) -> list[int]:
    return ids_of([batch for batches in stream.batches() for batch in batches])


@pytest.mark.parametrize("partitions", [[], ["name"]], ids=["", "partitioned"])
@pytest.mark.parametrize("limit", ["1000000", "70"])
def test_a_stream_whose_log_has_expired_goes_on_through_the_lake(
    segmented: tuple[World, EmbeddedServer], monkeypatch: pytest.MonkeyPatch, partitions: list[str], limit: str
) -> None:
    monkeypatch.setattr(expired_records, "SPLIT_RECORDS", 100)
    world, server = segmented
    table = world.create(ROWS_SCHEMA, buckets=2, partition_keys=partitions)
    stream = Stream(world.connection, table, maxRowsPerTrigger=limit)
    append(table, 0, 40)
    assert ids_left(stream) == list(range(40))
    append(table, 40, 900)
    world.tier(table)
    append(table, 900, 1000)
    assert min(expire(server, table, 60)) > 20, "records that the stream has not read are gone"
    stream.restart()
    start, end = stream.plan()
    assert stream.read(start, end) == stream.read(start, end)
    assert ids_left(stream) == list(range(40, 1000))


def test_records_that_the_lake_does_not_have_either_are_not_left_out(segmented: tuple[World, EmbeddedServer]) -> None:
    world, server = segmented
    table = world.create(ROWS_SCHEMA)
    stream = Stream(world.connection, table)
    append(table, 0, 10)
    assert ids_left(stream) == list(range(10))
    append(table, 10, 210)
    world.tier(table)
    append(table, 210, 500)
    expire(server, table)
    stream.restart()
    with pytest.raises(NotFound, match=r"the lake has bucket 0 only to offset 210\. Start it with another checkpoint"):
        stream.batch()


def test_rows_that_others_have_deleted_from_the_lake_are_not_left_out(tmp_path: Path) -> None:
    warehouse = str(tmp_path / "lake")
    settings = {"log.segment.file-size": "4kb", "datalake.format": PAIMON, "datalake.paimon.warehouse": warehouse}
    with EmbeddedServer(tmp_path / "d", settings=settings) as server, forebay.connect(server.bootstrap_servers) as live:
        world = World(live, create_lake_storage(PAIMON, {"warehouse": warehouse}), PAIMON)
        table = world.create(ROWS_SCHEMA)
        stream = Stream(live, table)
        append(table, 0, 10)
        assert ids_left(stream) == list(range(10))
        append(table, 10, 500)
        world.tier(table)
        lake = Catalog.open(warehouse).table(str(table.path))
        lake.overwrite(lake.scan(filter="id <> 77").to_arrow())
        world.tier(table)
        expire(server, table)
        stream.restart()
        with pytest.raises(NotFound, match=r"does not have each of them once, but \d+: rows were deleted there"):
            stream.batch()


def test_a_partition_that_is_dropped_while_a_batch_is_planned_ends_no_stream(lake: World) -> None:
    columns = [("id", "BIGINT"), ("p", "STRING")]
    table = lake.connection.create_table("fluss.dropped_while", columns, partition_keys=["p"], buckets=1)
    table.append([{"id": 1, "p": "a"}, {"id": 2, "p": "b"}])
    stream = Stream(lake.connection, table)
    start, end = stream.plan()
    planner: Any = stream.reader
    exists = planner._planner._exists

    def dropped_after(bucket: TableBucket) -> bool:
        """The drop comes after the look at the partitions."""
        found: bool = exists(bucket)
        table.drop_partition({"p": "b"}, ignore_if_not_exists=True)
        return found

    planner._planner._exists = dropped_after
    assert ids_of(stream.read(start, end)) == [1]
    lake.connection.drop_table(table.path)


@pytest.mark.parametrize("when", ["between two batches", "after a batch was logged"])
def test_a_snapshot_that_expires_before_a_stream_has_read_it_ends_the_stream(lake: World, when: str) -> None:
    table = tiered(lake)
    stream = Stream(lake.connection, table, maxRowsPerTrigger="7")
    if when == "between two batches":
        stream.batch()
    logged = stream.plan()
    lake.tier(table)
    compact(lake, table, expire=True)
    stream.restart()
    with pytest.raises(NotFound, match=EXPIRED):
        stream.read(*logged)
    if when == "between two batches":
        with pytest.raises(NotFound, match=EXPIRED):
            stream.batch()


def test_a_snapshot_that_expires_under_the_tasks_of_a_batch_is_read_in_full_or_not_at_all(lake: World) -> None:
    table = tiered(lake)
    stream = Stream(lake.connection, table)
    tasks = stream.reader.partitions(*stream.plan())
    lake.tier(table)
    compact(lake, table, expire=True)
    found, error = list[int](), ""
    try:
        found = ids_of(batch for task in tasks for batch in stream.reader.read(task))
    except NotFound as e:
        error = e.message
    assert found == list(range(20)) or "expired" in error, "the files are still there, or the error says what is wrong"
