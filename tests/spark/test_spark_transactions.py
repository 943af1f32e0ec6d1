"""Batches that are written as a transaction (`txnAppId`, `txnVersion`): once, whoever repeats them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.client.connection import Connection
from forebay.client.table import Table

pytestmark = pytest.mark.spark


@pytest.fixture
def log(connection: Connection, database: str) -> Table:
    return connection.create_table(f"{database}.log", {"n": "BIGINT", "batch": "BIGINT"}, buckets=2)


@pytest.fixture
def kv(connection: Connection, database: str) -> Table:
    schema = {"id": "BIGINT", "a": "STRING", "b": "STRING"}
    return connection.create_table(f"{database}.kv", schema, primary_key="id", buckets=2)


def numbers(table: Table) -> list[int]:
    return sorted(table.scan().to_arrow()["n"].to_pylist())


def as_transaction(writer: Any, application: str, version: int) -> Any:
    return writer.option("txnAppId", application).option("txnVersion", version)


def test_a_replayed_batch_of_foreach_batch_adds_nothing(
    spark: Any, connection: Connection, log: Table, tmp_path: Path
) -> None:
    """Spark repeats a batch whose end was not noted: the rows are the same, and so is its id."""
    from pyspark.sql import functions as f

    import forebay.spark

    servers = connection.settings.bootstrap_servers[0]
    application = f"foreach {log.path}"

    def write(frame: Any, batch: int) -> None:
        for attempt in range(3 if batch == 1 else 1):
            writer = frame.select(frame.value.alias("n"), f.lit(batch).cast("bigint").alias("batch")).write
            options = {"bootstrap.servers": f"{servers.host}:{servers.port}", "table": str(log.path)}
            forebay.spark.attach(frame.sparkSession, bootstrap_servers=options["bootstrap.servers"])
            if attempt % 2:
                as_transaction(writer.format("forebay").options(**options), application, batch).mode("append").save()
            else:
                as_transaction(writer, application, batch).mode("append").saveAsTable(f"forebay.{log.path}")

    for turn in range(3):
        folder = tmp_path / "in"
        spark.range(turn * 10, turn * 10 + 10, numPartitions=2).toDF("value").write.mode("append").parquet(str(folder))
        stream = spark.readStream.schema("value BIGINT").parquet(str(folder))
        query = stream.writeStream.foreachBatch(write).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert numbers(log) == list(range(30))
    assert set(log.scan().to_arrow()["batch"].to_pylist()) == {0, 1, 2}
    assert connection.admin.committed_version(application) == 2


def test_a_statement_is_all_or_nothing(spark: Any, connection: Connection, log: Table) -> None:
    spark.range(100, numPartitions=4).createOrReplaceTempView("hundred")
    insert = f"INSERT INTO forebay.{log.path} WITH ('txnAppId' = 'sql {log.path}', 'txnVersion' = '1')"
    failing = "SELECT if(id = 99, raise_error('too large'), id) AS n, 1L AS batch FROM hundred"
    with pytest.raises(Exception, match="too large"):
        spark.sql(f"{insert} {failing}")
    assert numbers(log) == []
    assert connection.admin.transactions(f"sql {log.path}") == []
    for _ in range(2):
        spark.sql(f"{insert} SELECT id AS n, 1L AS batch FROM hundred")
    assert numbers(log) == list(range(100))


def test_upserts_of_some_columns_are_transactions_too(spark: Any, kv: Table) -> None:
    kv.upsert([{"id": 1, "a": "a", "b": "b"}])
    frame = spark.createDataFrame([(1, "x"), (2, "y")], "id BIGINT, a STRING")
    options = {"table": str(kv.path), "bootstrap.servers": str(kv.connection.settings.bootstrap_servers[0])}
    part = as_transaction(frame.write.format("forebay").options(**options), f"part {kv.path}", 1)
    part.mode("append").save()
    assert kv.scan().to_arrow().sort_by("id").to_pylist() == [
        {"id": 1, "a": "x", "b": "b"}, {"id": 2, "a": "y", "b": None}
    ]  # fmt: skip


@pytest.mark.parametrize("given", [{"txnAppId": "a"}, {"txnVersion": "1"}, {"txnAppId": "a", "txnVersion": "one"}])
def test_wrong_options_are_named(spark: Any, log: Table, given: dict[str, str]) -> None:
    frame = spark.createDataFrame([(1, 1)], "n BIGINT, batch BIGINT")
    with pytest.raises(Exception, match=r"'txnAppId' and 'txnVersion' go together|'one' is not an integer"):
        frame.writeTo(f"forebay.{log.path}").options(**given).append()


def test_an_older_version_is_refused(spark: Any, log: Table) -> None:
    frame = spark.createDataFrame([(1, 1)], "n BIGINT, batch BIGINT")
    as_transaction(frame.writeTo(f"forebay.{log.path}"), f"old {log.path}", 2).append()
    with pytest.raises(Exception, match=r"version 1 of application .* is older than version 2"):
        as_transaction(frame.writeTo(f"forebay.{log.path}"), f"old {log.path}", 1).append()
    assert numbers(log) == [1]


def test_statements_are_in_the_history_of_their_table_and_can_be_read_and_restored(
    sql: Any, spark: Any, kv: Table
) -> None:
    sql("INSERT INTO {db}.kv VALUES (1, 'a', NULL), (2, 'b', NULL), (3, 'c', NULL)")
    sql("UPDATE {db}.kv SET a = upper(a) WHERE id + 0 < 3")
    sql("DELETE FROM {db}.kv WHERE length(a) = 1 AND id + 0 = 3")
    frame = spark.sql("SELECT 9L AS id, 'z' AS a, 'z' AS b")
    as_transaction(frame.write, f"history {kv.path}", 7).mode("append").saveAsTable(f"forebay.{kv.path}")
    found = sql("SELECT number, operation, rows, application, version FROM {db}.`kv$history` ORDER BY number")
    assert found == [
        (1, "INSERT", 3, None, None),
        (2, "UPDATE", 2, None, None),
        (3, "DELETE", 1, None, None),
        (4, "INSERT", 1, f"history {kv.path}", 7),
    ]
    assert sql("SELECT id, a FROM {db}.kv VERSION AS OF 2 ORDER BY id") == [(1, "A"), (2, "B"), (3, "c")]
    assert spark.read.option("versionAsOf", 3).table(f"forebay.{kv.path}").count() == 2
    sql("INSERT OVERWRITE {db}.kv SELECT * FROM {db}.kv VERSION AS OF 1")
    assert sql("SELECT id, a FROM {db}.kv ORDER BY id") == [(1, "a"), (2, "b"), (3, "c")]
    assert sql("SELECT max_by(operation, number), max(number) FROM {db}.`kv$history`") == [("INSERT OVERWRITE", 5)]
    with pytest.raises(Exception, match="has no commit 6: its history has 1 to 5"):
        sql("SELECT * FROM {db}.kv VERSION AS OF 6")
