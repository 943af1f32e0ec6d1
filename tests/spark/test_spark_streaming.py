"""Streams of tables in Spark: the catalog and the format, triggers, limits, restarts, partitions, lakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.client.connection import Connection
from forebay.server.embedded import EmbeddedServer
from tests.every_run import every_run
from tests.patience import PATIENCE
from tests.spark.releases import SPARK
from tests.spark.tables import ROWS_SCHEMA, make_table, rows
from tests.unionread.world import PAIMON, World, world

pytestmark = pytest.mark.spark

Batches = list[list[dict[str, Any]]]
Run = Callable[..., Batches]


@pytest.fixture
def run(spark: Any, tmp_path: Path) -> Run:
    """Run a stream over all that is there, and return its micro-batches; a second run goes on behind the first."""

    def run_once(reader: Any, checkpoint: str = "checkpoint", **trigger: Any) -> Batches:
        found: dict[int, list[dict[str, Any]]] = {}

        def keep(batch: Any, number: int) -> None:
            found[number] = [row.asDict() for row in batch.collect()]

        writer = reader.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / checkpoint))
        query = writer.trigger(**(trigger or {"availableNow": True})).start()
        query.awaitTermination(PATIENCE)
        assert not query.isActive
        return [found[number] for number in sorted(found)]

    return run_once


def ids(batches: Batches) -> list[int]:
    return sorted(row["id"] for batch in batches for row in batch)


@pytest.mark.slow
def test_a_table_of_the_catalog_is_streamed_and_continues_after_a_restart(
    spark: Any, connection: Connection, database: str, run: Run
) -> None:
    table = make_table(connection, f"{database}.t")
    table.append(rows(0, 100))
    stream = spark.readStream.option("maxRowsPerTrigger", 50).table(f"forebay.{database}.t")
    batches = run(stream)
    assert ids(batches) == list(range(100))
    assert len(batches) >= 2
    assert all(len(batch) <= 50 for batch in batches)
    plain = {row["id"]: row for row in rows(0, 100).to_pylist()}
    assert all(row == plain[row["id"]] for batch in batches for row in batch)
    table.append(rows(100, 120))
    assert ids(run(stream)) == list(range(100, 120))


def test_a_key_table_begins_with_a_table_snapshot_and_continues_exactly_after_it(
    spark: Any, connection: Connection, database: str, run: Run
) -> None:
    table = make_table(connection, f"{database}.t", ["id"])
    table.upsert(rows(0, 50))
    table.delete([{"id": 7}])
    stream = spark.readStream.table(f"forebay.{database}.t").where("id <> 9").select("id", "name")
    assert ids(run(stream)) == [i for i in range(50) if i not in (7, 9)]
    table.upsert([{"id": 3, "name": "x", "amount": 0.0}, {"id": 60, "name": "y", "amount": 0.0}])
    table.upsert([{"id": 3, "name": "z", "amount": 0.0}])
    table.delete([{"id": 4}])
    (batch,) = run(stream)
    assert sorted((row["id"], row["name"]) for row in batch) == [(3, "z"), (60, "y")]


@pytest.mark.slow
def test_a_changelog_streams_every_change(spark: Any, connection: Connection, database: str, run: Run) -> None:
    table = make_table(connection, f"{database}.t", ["id"], buckets=1)
    table.upsert(rows(1, 3))
    stream = spark.readStream.table(f"forebay.{database}.`t$changelog`")
    assert [row["_change_type"] for batch in run(stream) for row in batch] == ["insert", "insert"]
    table.upsert([{"id": 1, "name": "x", "amount": 0.0}])
    table.delete([{"id": 2}])
    found = [(row["_change_type"], row["_log_offset"], row["id"], row["name"]) for b in run(stream) for row in b]
    assert found == [("update_before", 2, 1, "n1"), ("update_after", 3, 1, "x"), ("delete", 4, 2, "n2")]


@pytest.mark.slow
@pytest.mark.skipif(SPARK < (4, 3), reason="a catalog hears of options that add columns from Spark 4.3 on")
def test_a_stream_of_a_key_table_with_its_deletes_keeps_another_table_the_same(
    spark: Any, connection: Connection, database: str, tmp_path: Path, run: Run
) -> None:
    source, copy = (make_table(connection, f"{database}.{name}", ["id"]) for name in ("source", "copy"))
    stream = spark.readStream.option("scan.delete.behavior", "include").table(f"forebay.{database}.source")
    assert stream.columns == ["_change_type", "id", "name", "amount"]
    for step in range(2):
        source.upsert(rows(step * 10, step * 10 + 20))
        source.delete([{"id": 5 + step}, {"id": 15 + step}])
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "copy")).trigger(availableNow=True)
        writer.toTable(f"forebay.{database}.copy").awaitTermination(PATIENCE)
        assert copy.scan().to_arrow().sort_by("id").equals(source.scan().to_arrow().sort_by("id"))
    # A batch of the same name in the same session has its own columns.
    assert spark.table(f"forebay.{database}.source").columns == ["id", "name", "amount"]
    with pytest.raises(Exception, match=r"'scan.delete.behavior' is for streams"):
        spark.read.option("scan.delete.behavior", "include").table(f"forebay.{database}.source").collect()
    source.delete([{"id": 0}])
    failing = spark.readStream.options(**{"scan.delete.behavior": "fail", "scan.startup.mode": "earliest"})
    with pytest.raises(Exception, match="were deleted between the log offsets"):
        run(failing.table(f"forebay.{database}.source"), checkpoint="failing")


@pytest.mark.slow
def test_a_binlog_shows_updates_in_one_row_to_queries_and_streams(
    spark: Any, connection: Connection, database: str, run: Run
) -> None:
    table = make_table(connection, f"{database}.t", ["id"], buckets=1)
    table.upsert(rows(1, 3))
    table.upsert([{"id": 1, "name": "x", "amount": 0.0}])
    table.delete([{"id": 2}])
    names = "_change_type", "_log_offset", "before.name", "after.name"
    expected = [
        ("insert", 0, None, "n1"),
        ("insert", 1, None, "n2"),
        ("update", 2, "n1", "x"),
        ("delete", 4, "n2", None),
    ]
    binlog = spark.table(f"forebay.{database}.`t$binlog`")
    assert binlog.columns == ["_change_type", "_log_offset", "_commit_timestamp", "before", "after"]
    assert [tuple(row) for row in binlog.select(*names).orderBy("_log_offset").collect()] == expected
    assert binlog.where("after IS NULL").select("before.id").collect() == [(2,)]
    assert binlog.count() == 4
    stream = spark.readStream.option("maxOffsetsPerTrigger", 3).table(f"forebay.{database}.`t$binlog`")
    batches = run(stream)
    assert len(batches) == 2
    found = [(r["_change_type"], r["_log_offset"], r["before"], r["after"]) for b in batches for r in b]
    assert [(t, o, b and b.name, a and a.name) for t, o, b, a in found] == expected


@pytest.mark.slow
def test_a_changelog_may_begin_with_all_rows_and_continues_exactly_after_them(
    spark: Any, connection: Connection, database: str, run: Run
) -> None:
    table = make_table(connection, f"{database}.t", ["id"], buckets=1)
    table.upsert(rows(1, 4))
    table.delete([{"id": 3}])
    stream = spark.readStream.option("scan.startup.mode", "full").table(f"forebay.{database}.`t$changelog`")
    (batch,) = run(stream)
    assert sorted((row["_change_type"], row["_log_offset"], row["id"]) for row in batch) == [
        ("insert", -1, 1),
        ("insert", -1, 2),
    ]
    assert {row["_commit_timestamp"] for row in batch} == {None}
    table.delete([{"id": 2}])
    found = [(row["_change_type"], row["_log_offset"], row["id"], row["name"]) for b in run(stream) for row in b]
    assert found == [("delete", 4, 2, "n2")]


@pytest.mark.slow
def test_a_timestamp_is_a_time_in_the_sessions_zone(
    spark: Any, connection: Connection, database: str, run: Run
) -> None:
    table = make_table(connection, f"{database}.t")
    table.append(rows(0, 5))
    for time, expected in (("1999-12-31 23:59:59", list(range(5))), ("2999-12-31 23:59:59", [])):
        options = {"scan.startup.mode": "timestamp", "scan.startup.timestamp": time}
        stream = spark.readStream.options(**options).table(f"forebay.{database}.t")
        assert ids(run(stream, checkpoint=time[:4])) == expected


@pytest.mark.skipif(SPARK < (4, 2), reason="streams written in Python have limits from Spark 4.2 on")
def test_the_format_streams_with_its_options(
    spark: Any, server: EmbeddedServer, connection: Connection, database: str, run: Run
) -> None:
    table = make_table(connection, f"{database}.t")
    table.append(rows(0, 10))
    source = {"bootstrap.servers": server.bootstrap_servers, "table": f"{database}.t", "scan.startup.mode": "earliest"}
    reader = spark.readStream.format("forebay").options(**source).option("columns", "id").option("filter", "id > 6")
    (batch,) = run(reader.load())
    assert sorted(map(repr, batch)) == ["{'id': 7}", "{'id': 8}", "{'id': 9}"]


@pytest.mark.slow
def test_latest_delivers_what_is_written_while_the_query_runs(
    spark: Any, connection: Connection, database: str, tmp_path: Path
) -> None:
    table = make_table(connection, f"{database}.t")
    table.append(rows(0, 10))
    stream = spark.readStream.option("scan.startup.mode", "latest").table(f"forebay.{database}.t")
    name = f"latest_{database}"
    query = stream.writeStream.format("memory").queryName(name).option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        table.append(rows(10, 13))
        query.processAllAvailable()
        table.append(rows(13, 15))
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(row["id"] for row in spark.table(name).collect()) == list(range(10, 15))


@pytest.mark.slow
def test_a_query_that_fails_in_a_batch_reads_the_same_batch_again(
    spark: Any, connection: Connection, database: str, run: Run, tmp_path: Path
) -> None:
    table = make_table(connection, f"{database}.t", ["id"])
    table.upsert(rows(0, 20))
    stream = spark.readStream.table(f"forebay.{database}.t")

    def fail(batch: Any, number: int) -> None:
        raise RuntimeError("the sink is away")

    query = stream.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(Exception, match="the sink is away"):
        query.awaitTermination(PATIENCE)
    table.upsert(rows(10, 30))
    first, second = run(stream)
    assert ids([first]) == list(range(20)), "as the table was when the query was first started"
    assert ids([second]) == list(range(10, 30))


@pytest.mark.slow
def test_partitions_that_come_and_go_between_runs(spark: Any, connection: Connection, database: str, run: Run) -> None:
    connection.create_table(f"{database}.t", ROWS_SCHEMA, partition_keys=["name"], buckets=1)
    table = connection.table(f"{database}.t")
    table.append([{"id": 1, "name": "a", "amount": 0.0}])
    stream = spark.readStream.option("scan.startup.mode", "earliest").table(f"forebay.{database}.t")
    assert ids(run(stream)) == [1]
    table.drop_partition({"name": "a"})
    table.append([{"id": 2, "name": "b", "amount": 0.0}])
    assert ids(run(stream)) == [2]


@pytest.mark.slow
def test_partitions_come_and_go_while_a_query_runs(
    spark: Any, connection: Connection, database: str, tmp_path: Path
) -> None:
    connection.create_table(f"{database}.t", ROWS_SCHEMA, partition_keys=["name"], buckets=1)
    table = connection.table(f"{database}.t")
    stream = spark.readStream.option("scan.partition.discovery.interval", "1 ms").table(f"forebay.{database}.t")
    name = f"partitions_{database}"
    query = stream.writeStream.format("memory").queryName(name).option("checkpointLocation", str(tmp_path)).start()
    try:
        for number, part in enumerate("abca"):
            table.append([{"id": number, "name": part, "amount": 0.0}])
            query.processAllAvailable()
            if part == "a":
                table.drop_partition({"name": "a"})
    finally:
        query.stop()
    assert sorted(row["id"] for row in spark.table(name).collect()) == [0, 1, 2, 3]


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    import forebay.spark

    with world(tmp_path_factory.mktemp("lakehouse"), PAIMON) as running:
        server = running.connection.settings.bootstrap_servers[0]
        forebay.spark.attach(spark, "streamhouse", bootstrap_servers=f"{server.host}:{server.port}")
        yield running


@pytest.mark.parametrize("keyed", every_run([True, False], lambda keyed: not keyed), ids=["primary key", "log"])
def test_a_lake_table_streams_its_lake_snapshot_and_then_the_log(
    spark: Any, lake: World, run: Run, keyed: bool
) -> None:
    table = lake.create(ROWS_SCHEMA, buckets=2, **({"primary_key": ["id"]} if keyed else {}))
    write = table.upsert if keyed else table.append
    write(rows(0, 30))
    lake.tier(table)
    write(rows(25 if keyed else 30, 40))
    stream = spark.readStream.table(f"streamhouse.{table.path}")
    first, second = run(stream)
    assert ids([first]) == list(range(30))
    assert ids([second]) == list(range(25 if keyed else 30, 40))
    lake.tier(table)
    write(rows(40, 45))
    assert ids(run(stream)) == list(range(40, 45))


def test_options_that_do_not_fit_are_refused_by_name(
    spark: Any, connection: Connection, database: str, run: Run
) -> None:
    make_table(connection, f"{database}.t")
    with pytest.raises(Exception, match="batch reads begin at the beginning"):
        spark.read.option("scan.startup.mode", "latest").table(f"forebay.{database}.t").collect()
    with pytest.raises(Exception, match="it can be full, earliest, latest, timestamp"):
        run(spark.readStream.option("scan.startup.mode", "sometimes").table(f"forebay.{database}.t"))
    with pytest.raises(Exception, match="is for batch reads"):
        run(spark.readStream.option("read.optimized", "true").table(f"forebay.{database}.t"))
