"""VERSION AS OF and TIMESTAMP AS OF of live tables with a lake, in SQL and by options of DataFrames."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.client.connection import Connection
from forebay.paimon import Catalog
from tests.patience import PATIENCE
from tests.spark.releases import SPARK
from tests.spark.tables import make_table, rows
from tests.unionread.world import PAIMON, World, world

pytestmark = pytest.mark.spark

Sql = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def tiered(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    import forebay.spark

    with world(tmp_path_factory.mktemp("travel"), PAIMON) as running:
        server = running.connection.settings.bootstrap_servers[0]
        forebay.spark.attach(spark, "travel", bootstrap_servers=f"{server.host}:{server.port}")
        yield running


def test_earlier_states_are_read_in_sql_and_by_options(spark: Any, tiered: World) -> None:
    table = tiered.create({"id": "BIGINT NOT NULL", "v": "STRING"}, primary_key=["id"], buckets=2)
    name = f"travel.{table.path}"
    table.upsert([{"id": 1, "v": "a"}, {"id": 2, "v": "a"}])
    first = tiered.tier(table)
    table.upsert([{"id": 1, "v": "b"}])
    table.delete([2])
    time.sleep(0.005)
    then = dt.datetime.now(dt.UTC)
    time.sleep(0.005)
    table.upsert([{"id": 1, "v": "c"}, {"id": 3, "v": "c"}])
    tiered.tier(table)

    def rows(frame: Any) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in frame.collect())

    old, middle = [(1, "a"), (2, "a")], [(1, "b")]
    assert rows(spark.sql(f"SELECT * FROM {name} VERSION AS OF {first}")) == old
    assert rows(spark.sql(f"SELECT v FROM {name} VERSION AS OF {first} WHERE id = 2")) == [("a",)]
    text = then.strftime("%Y-%m-%d %H:%M:%S.%f")
    assert rows(spark.sql(f"SELECT * FROM {name} TIMESTAMP AS OF '{text}'")) == middle
    assert rows(spark.sql(f"SELECT count(*) FROM {name} TIMESTAMP AS OF '{text}'")) == [(1,)]
    assert rows(spark.read.option("timestampAsOf", text).table(name)) == middle
    assert rows(spark.read.option("versionAsOf", first).table(name)) == old
    joined = f"SELECT n.id FROM {name} n JOIN {name} VERSION AS OF {first} o ON n.id = o.id"
    assert rows(spark.sql(joined)) == [(1,)]
    assert "lake and stream as of" in spark.sql(f"EXPLAIN SELECT * FROM {name} TIMESTAMP AS OF '{text}'").first()[0]
    assert "ParquetScan" in spark.sql(f"EXPLAIN SELECT * FROM {name} VERSION AS OF {first}").first()[0]
    lake: Any = tiered.storage
    Catalog.open(lake.options).table(str(table.path)).create_tag("before", first)
    assert rows(spark.sql(f"SELECT * FROM {name} VERSION AS OF 'before'")) == old
    for query, message in (
        (f"SELECT * FROM {name} VERSION AS OF 'none'", "neither a tag of the lake"),
        (f"SELECT * FROM {name} VERSION AS OF 99999", "99999"),
        (f"SELECT * FROM {name} TIMESTAMP AS OF '2999-01-01'", "it is .* now"),
        (f"SELECT * FROM travel.fluss.`{table.path.table}$changelog` VERSION AS OF 1", "only the table"),
        (f"INSERT INTO {name} VERSION AS OF {first} VALUES (1, 'x')", "PARSE_SYNTAX_ERROR"),
    ):
        with pytest.raises(Exception, match=message) as error:
            spark.sql(query).collect()
        assert "Traceback" not in str(error.value)
    tiered.connection.drop_table(table.path)


CHANGES = pytest.mark.skipif(SPARK < (4, 3), reason="CHANGES comes with Spark 4.3")
_SEEN = "id, name, _change_type, _commit_version"


@CHANGES
def test_changes_of_a_key_table_by_versions_and_times_and_their_net(
    sql: Sql, spark: Any, connection: Connection, database: str
) -> None:
    table = make_table(connection, f"{database}.t", ["id"], buckets=1)
    table.upsert(rows(1, 3))
    table.upsert([{"id": 1, "name": "x", "amount": 0.0}, {"id": 3, "name": "y", "amount": 0.0}])
    table.delete([{"id": 2}, {"id": 3}])
    every = [
        (1, "n1", "insert", 0),
        (2, "n2", "insert", 1),
        (1, "n1", "update_preimage", 2),
        (1, "x", "update_postimage", 2),
        (3, "y", "insert", 4),
        (2, "n2", "delete", 5),
        (3, "y", "delete", 6),
    ]

    def changes(span: str) -> list[tuple[Any, ...]]:
        return sorted(sql(f"SELECT {_SEEN} FROM {{db}}.t CHANGES FROM {span}"), key=every.index)

    assert changes("VERSION 0") == changes("TIMESTAMP '2001-01-01'") == every
    assert changes("VERSION 2 TO VERSION 2") == every[2:4]
    assert changes("VERSION 3 TO VERSION 5") == every[4:6]
    assert changes("VERSION 2 EXCLUSIVE TO VERSION 5 EXCLUSIVE") == every[4:5]
    assert changes("TIMESTAMP '2001-01-01' TO TIMESTAMP '2002-01-01'") == []
    assert changes("TIMESTAMP '2101-01-01'") == []
    net = spark.read.option("startingVersion", 0).option("deduplicationMode", "netChanges")
    found = net.option("computeUpdates", "true").changes(f"forebay.{database}.t").select("id", "name", "_change_type")
    assert [tuple(row) for row in found.collect()] == [(1, "x", "insert")]
    for updates, kinds in (("false", ("delete", "insert")), ("true", ("update_preimage", "update_postimage"))):
        how = f"WITH (deduplicationMode = 'netChanges', computeUpdates = '{updates}')"
        found = sql(f"SELECT id, name, _change_type FROM {{db}}.t CHANGES FROM VERSION 2 TO VERSION 2 {how}")
        assert sorted(found) == [(1, "n1", kinds[0]), (1, "x", kinds[1])]
    ((first, last),) = sql("SELECT min(_commit_timestamp), max(_commit_timestamp) FROM {db}.`t$changelog`")
    assert changes(f"TIMESTAMP '{first}' TO TIMESTAMP '{last}'") == every
    assert sql("SELECT count(*) FROM {db}.t CHANGES FROM VERSION 0 WHERE id = 1 AND _change_type = 'insert'") == [(1,)]


@CHANGES
@pytest.mark.slow
def test_changes_that_are_not_there_are_refused(sql: Sql, spark: Any, connection: Connection, database: str) -> None:
    log = make_table(connection, f"{database}.log", buckets=2)
    log.append(rows(0, 4))
    columns, image = {"id": "INT", "v": "INT"}, {"table.changelog.image": "wal"}
    connection.create_table(f"{database}.wal", columns, primary_key="id", options=image)
    found = sql("SELECT id, _change_type FROM {db}.log CHANGES FROM TIMESTAMP '2001-01-01'")
    assert sorted(found) == [(i, "insert") for i in range(4)]
    for statement, reason in (
        ("SELECT * FROM {db}.log CHANGES FROM VERSION 0", "has several buckets.*Use CHANGES FROM TIMESTAMP"),
        ("SELECT * FROM {db}.`log$changelog` CHANGES FROM VERSION 0", "not for what stands beside them"),
        ("SELECT * FROM {db}.wal CHANGES FROM TIMESTAMP '2001-01-01'", "does not hold the rows before a change"),
        ("SELECT * FROM {db}.nope CHANGES FROM VERSION 0", "TABLE_OR_VIEW_NOT_FOUND"),
    ):
        with pytest.raises(Exception, match=reason):
            sql(statement)
    key = make_table(connection, f"{database}.key", ["id"], buckets=1)
    key.upsert(rows(0, 2))
    for options, reason in (
        ({"startingVersion": "0", "endingVersion": "1"}, "as a stream has no end"),
        ({"deduplicationMode": "netChanges"}, "has no deduplicationMode = netChanges"),
        ({"startingVersion": "3"}, "begin with version 3, and the next one of bucket 0 is 2"),
        ({"startingTimestamp": "2101-01-01"}, "a stream cannot begin in the future"),
        ({"scan.startup.mode": "latest"}, "leave 'scan.startup.mode' out"),
    ):
        stream = spark.readStream.options(**options).changes(f"forebay.{database}.key")
        with pytest.raises(Exception, match=reason):
            stream.writeStream.format("noop").start().awaitTermination(PATIENCE)


@CHANGES
@pytest.mark.slow
def test_changes_are_streamed_from_a_version_or_a_time_on(
    sql: Sql, spark: Any, connection: Connection, database: str, tmp_path: Path
) -> None:
    table = make_table(connection, f"{database}.t", ["id"], buckets=1)
    table.upsert(rows(1, 3))
    stream = spark.readStream.option("startingVersion", 1).option("maxRowsPerTrigger", 2)
    frame = stream.changes(f"forebay.{database}.t").select("_commit_version", "id", "_change_type")
    found: list[tuple[Any, ...]] = []

    def run() -> list[tuple[Any, ...]]:
        found.clear()
        writer = frame.writeStream.foreachBatch(lambda batch, _: found.extend(map(tuple, batch.collect())))
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination(PATIENCE)
        return sorted(found)

    assert run() == [(1, 2, "insert")]
    table.upsert([{"id": 1, "name": "x", "amount": 0.0}, {"id": 2, "name": "y", "amount": 0.0}])
    table.delete([{"id": 2}])
    assert run() == [
        (2, 1, "update_postimage"),
        (2, 1, "update_preimage"),
        (4, 2, "update_postimage"),
        (4, 2, "update_preimage"),
        (6, 2, "delete"),
    ]
