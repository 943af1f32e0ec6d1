"""Streams that end in live tables: every micro-batch once, in every output mode, and changes with deletes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.client.connection import Connection
from forebay.client.table import Table
from tests.checkpoints import forget_last_batch
from tests.every_run import every_run
from tests.spark.releases import needs

pytestmark = pytest.mark.spark

Sink = Callable[[Any], Any]


FORMAT = pytest.param("format", marks=needs(4, 1, "streams written by Python in Arrow"))
BOTH_DOORS = pytest.mark.parametrize("start", ["catalog", FORMAT], indirect=True)
ONE_DOOR = pytest.mark.parametrize("start", every_run(["catalog", "format"], lambda d: d == "catalog"), indirect=True)
"""By the catalog; by the format, too, with `make nightly`."""


@pytest.fixture
def start(request: pytest.FixtureRequest, connection: Connection) -> Callable[[Any, Table], Any]:
    """Starts a stream into a table, by either door."""
    servers = str(connection.settings.bootstrap_servers[0])

    def by_catalog(writer: Any, table: Table) -> Any:
        return writer.toTable(f"forebay.{table.path}")

    def by_format(writer: Any, table: Table) -> Any:
        return writer.format("forebay").option("bootstrap.servers", servers).option("table", str(table.path)).start()

    return by_catalog if request.param == "catalog" else by_format


def finish(query: Any) -> None:
    try:
        query.awaitTermination()
    finally:
        query.stop()


@BOTH_DOORS
@pytest.mark.parametrize("turns", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.one_in(2)
def test_a_log_gets_every_row_once_though_batches_are_repeated(
    spark: Any, connection: Connection, database: str, tmp_path: Path, start: Any, turns: int
) -> None:
    log = connection.create_table(f"{database}.log", {"n": "BIGINT"}, buckets=2)
    for turn in range(turns):
        spark.range(turn * 10, turn * 10 + 10, numPartitions=2).toDF("n").write.mode("append").parquet(
            str(tmp_path / "in")
        )
        for _ in range(2):
            stream = spark.readStream.schema("n BIGINT").parquet(str(tmp_path / "in"))
            writer = stream.writeStream.trigger(availableNow=True).queryName(f"into {log.path}")
            finish(start(writer.option("checkpointLocation", str(tmp_path / "checkpoint")), log))
            forget_last_batch(tmp_path / "checkpoint")
    assert sorted(log.scan().to_arrow()["n"].to_pylist()) == list(range(10 * turns))


@ONE_DOOR
def test_an_aggregation_ends_in_a_primary_key_table_in_modes_update_and_complete(
    spark: Any, connection: Connection, database: str, tmp_path: Path, start: Any
) -> None:
    from pyspark.sql import functions as f

    expected = dict[int, int]()
    tables = {
        mode: connection.create_table(
            f"{database}.{mode}", {"k": "BIGINT", "total": "BIGINT"}, primary_key="k", buckets=2
        )
        for mode in ("update", "complete")
    }
    tables["complete"].upsert([{"k": -1, "total": 0}])  # is gone after the first batch
    for turn in range(2):
        values = list(range(turn * 7, turn * 7 + 20))
        spark.createDataFrame([(v,) for v in values], "n BIGINT").write.mode("append").parquet(str(tmp_path / "in"))
        for value in values:
            expected[value % 5] = expected.get(value % 5, 0) + value
        for mode, table in tables.items():
            if mode == "update" and start.__name__ == "by_format":
                continue  # which Spark allows no format written in Python
            stream = spark.readStream.schema("n BIGINT").parquet(str(tmp_path / "in"))
            sums = stream.groupBy((f.col("n") % 5).alias("k")).agg(f.sum("n").alias("total"))
            writer = sums.writeStream.outputMode(mode).trigger(availableNow=True)
            finish(start(writer.option("checkpointLocation", str(tmp_path / mode)), table))
            assert {row["k"]: row["total"] for row in table.scan().to_arrow().to_pylist()} == expected, mode


@ONE_DOOR
def test_changes_are_upserts_and_deletes_in_the_order_of_their_rows(
    spark: Any, connection: Connection, database: str, tmp_path: Path, start: Any
) -> None:
    table = connection.create_table(
        f"{database}.kv", {"id": "BIGINT", "a": "STRING NOT NULL"}, primary_key="id", buckets=2
    )
    chance, model = random.Random(3), dict[int, str]()
    for turn in range(2):
        rows = []
        for n in range(60):
            kind = chance.choice(["insert", "+U", "delete", "update_before"])
            key, value = chance.randrange(8), f"{turn}.{n}"
            rows.append((kind, key, None if kind == "delete" else value))
            if kind == "delete":
                model.pop(key, None)
            elif kind != "update_before":
                model[key] = value
        frame = spark.createDataFrame(rows, "_change_type STRING, id BIGINT, a STRING").coalesce(1)
        frame.write.mode("append").parquet(str(tmp_path / "in"))
        stream = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "in"))
        writer = stream.writeStream.trigger(availableNow=True)
        finish(start(writer.option("checkpointLocation", str(tmp_path / "checkpoint")), table))
        assert {row["id"]: row["a"] for row in table.scan().to_arrow().to_pylist()} == model


def test_rows_of_a_key_are_written_in_the_order_of_a_column(
    spark: Any, connection: Connection, database: str, tmp_path: Path
) -> None:
    table = connection.create_table(f"{database}.kv", {"id": "BIGINT", "t": "BIGINT"}, primary_key="id", buckets=2)
    rows = [(n % 10, n) for n in range(500)]
    random.Random(1).shuffle(rows)
    frame = spark.createDataFrame(rows, "id BIGINT, t BIGINT").repartition(4)
    frame.writeTo(f"forebay.{table.path}").option("write.sequence.field", "t").append()
    assert {row["id"]: row["t"] for row in table.scan().to_arrow().to_pylist()} == {k: 490 + k for k in range(10)}
    frame.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "in"))
    table.delete(list(range(10)))
    writer = stream.writeStream.trigger(availableNow=True).option("write.sequence.field", "t")
    finish(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable(f"forebay.{table.path}"))
    assert {row["id"]: row["t"] for row in table.scan().to_arrow().to_pylist()} == {k: 490 + k for k in range(10)}
    with pytest.raises(Exception, match=r"'write\.sequence\.field'\): the data has no column 'when'"):
        frame.writeTo(f"forebay.{table.path}").option("write.sequence.field", "when").append()


@ONE_DOOR
def test_what_a_stream_cannot_write_is_refused_by_name(
    spark: Any, connection: Connection, database: str, tmp_path: Path, start: Any
) -> None:
    of_others = connection.admin.transactions("")  # the server is that of other tests, too
    log = connection.create_table(f"{database}.log", {"n": "BIGINT"})
    kv = connection.create_table(f"{database}.kv", {"id": "BIGINT", "a": "BIGINT"}, primary_key="id")
    spark.range(3).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id BIGINT").parquet(str(tmp_path / "in"))
    refused = [
        (
            stream.groupBy("id").count().selectExpr("id AS n"),
            "complete",
            log,
            "rows of log table .* cannot be replaced",
        ),
        (stream.selectExpr("id AS n", "'-D' AS _change_type"), "append", log, "without primary key takes inserts only"),
        (stream.selectExpr("id", "id AS b"), "append", kv, "column 'b', which the table does not have"),
        (stream.selectExpr("id AS a"), "append", kv, "needs its whole primary key; id is missing"),
        (stream.selectExpr("id", "'x' AS a"), "append", kv, "column 'a'"),
    ]
    for number, (frame, mode, table, message) in enumerate(refused):
        writer = frame.writeStream.outputMode(mode).trigger(availableNow=True)
        with pytest.raises(Exception, match=message):
            finish(start(writer.option("checkpointLocation", str(tmp_path / str(number))), table))
    assert (log.scan().count(), kv.scan().count()) == (0, 0)
    assert {t.transaction_id for t in connection.admin.transactions("")} <= {t.transaction_id for t in of_others}


def test_a_stream_in_continuous_mode_is_refused(
    spark: Any, connection: Connection, database: str, tmp_path: Path
) -> None:
    """Its tasks never end, so it would count epochs as committed, of which no row is in the table."""
    log = connection.create_table(f"{database}.log", {"n": "BIGINT"})
    writer = spark.readStream.format("rate").load().selectExpr("value AS n").writeStream.trigger(continuous="1 second")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable(f"forebay.{log.path}")
    with pytest.raises(Exception, match="continuous mode cannot be written to tables: use a trigger of micro-batches"):
        finish(query)
