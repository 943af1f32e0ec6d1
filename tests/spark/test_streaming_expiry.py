"""Streams whose lake snapshot expires before they have read it: the right rows, or an error with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.base.errors import NotFound
from forebay.client.table import Table
from forebay.metadata.table import TableBucket
from forebay.server.embedded import EmbeddedServer
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
