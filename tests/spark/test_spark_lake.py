"""Tables with a lake in Spark: lake and stream as one, the lake alone, filters, limits, partitions, the format."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from forebay.client.table import Table
from tests.spark.releases import SPARK
from tests.spark.tables import ROWS_SCHEMA, rows
from tests.unionread.world import ICEBERG, PAIMON, SAME_IN_EACH_LAKE, World, world

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", params=[PAIMON, ICEBERG])
def lake(request: pytest.FixtureRequest, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server with a lake, attached to the session as catalog `lakehouse`."""
    import forebay.spark

    with world(tmp_path_factory.mktemp("lakehouse"), request.param) as running:
        server = running.connection.settings.bootstrap_servers[0]
        forebay.spark.attach(spark, "lakehouse", bootstrap_servers=f"{server.host}:{server.port}")
        yield running


Query = Callable[[str, Table], list[tuple[Any, ...]]]


@pytest.fixture
def query(spark: Any, lake: World) -> Query:
    """Run a statement, in which `{t}` is the table; rows as a sorted list of tuples."""

    def run(statement: str, table: Table) -> list[tuple[Any, ...]]:
        found = spark.sql(statement.replace("{t}", f"lakehouse.{table.path}")).collect()
        return sorted((tuple(row) for row in found), key=repr)

    return run


def plain(table: Table, start: int, stop: int) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in rows(start, stop).to_pylist()), key=repr)


def tiered(lake: World, *, keyed: bool) -> Table:
    """Rows 0 to 29 in the lake, of which 20 to 29 were changed since, and 30 to 39 are new; 0 is deleted."""
    table = lake.create(ROWS_SCHEMA, buckets=3, **({"primary_key": ["id"]} if keyed else {}))
    if not keyed:
        table.append(rows(0, 30))
        lake.tier(table)
        table.append(rows(30, 40))
        return table
    old = rows(0, 30).to_pylist()
    table.upsert([{**row, "name": "old"} if row["id"] >= 20 else row for row in old])
    lake.tier(table)
    table.upsert(rows(20, 40))
    table.delete([{"id": 0}])
    return table


def test_a_primary_key_table_is_lake_and_changelog_as_one(lake: World, query: Query) -> None:
    table = tiered(lake, keyed=True)
    assert query("SELECT * FROM {t}", table) == plain(table, 1, 40)
    assert query("SELECT count(*) FROM {t}", table) == [(39,)]
    assert query("SELECT count(*), sum(id) FROM {t} WHERE name = 'old'", table) == [(0, None)]
    assert query("SELECT name FROM {t} WHERE amount >= 19", table) == [("n38",), ("n39",)]
    assert query("SELECT name FROM {t} WHERE id = 0 OR id = 25", table) == [("n25",)]


def test_tables_with_the_same_buckets_are_joined_without_a_shuffle(
    spark: Any, lake: World, query: Query, database: str
) -> None:
    """Also where a bucket is lake and changelog; but not tables of a server without one, whose writers may be old."""
    left, right = tiered(lake, keyed=True), lake.create(ROWS_SCHEMA, buckets=3, primary_key=["id"])
    right.upsert(rows(10, 60))
    joined = f"SELECT l.id, l.name, r.name, r.amount FROM {{t}} l LEFT JOIN lakehouse.{right.path} r ON l.id = r.id"
    wanted = query(joined, left)
    on = ("spark.sql.forebay.read.by-bucket", "spark.sql.sources.v2.bucketing.enabled")
    settings = *((name, "true") for name in on), ("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        for name, value in settings:
            spark.conf.set(name, value)
        assert query(joined, left) == wanted
        assert len(wanted) == 39
        plan = query(f"EXPLAIN {joined}", left)[0][0]
        assert "hashpartitioning" not in plan
        assert plan.count("by bucket of id") == 2
        spark.sql(f"CREATE TABLE forebay.{database}.t (id INT) TBLPROPERTIES ('primary.key'='id', 'bucket.num'='3')")
        assert "by bucket" not in query(f"EXPLAIN SELECT id FROM forebay.{database}.t", left)[0][0]
    finally:
        for name, _ in settings:
            spark.conf.unset(name)


def test_rows_of_lake_and_stream_are_changed_as_one_table(spark: Any, lake: World, query: Query) -> None:
    table = tiered(lake, keyed=True)
    spark.conf.set("spark.sql.forebay.read.optimized", "true")  # rows are changed as they are now
    try:
        query("UPDATE {t} SET name = concat(name, '!') WHERE id % 10 < 2", table)
        query("DELETE FROM {t} WHERE id * 2 IN (SELECT id FROM {t} WHERE id < 9) OR name = 'n35'", table)
    finally:
        spark.conf.unset("spark.sql.forebay.read.optimized")
    gone = {i for i in range(1, 40) if i * 2 in range(9)} | {35}
    expected = [
        (i, name + ("!" if i % 10 < 2 else ""), amount) for i, name, amount in plain(table, 1, 40) if i not in gone
    ]
    assert query("SELECT * FROM {t}", table) == sorted(expected, key=repr)
    lake.tier(table)
    assert query("SELECT * FROM {t}", table) == sorted(expected, key=repr)


def test_a_log_table_is_lake_and_log_as_one(lake: World, query: Query) -> None:
    table = tiered(lake, keyed=False)
    assert query("SELECT * FROM {t}", table) == plain(table, 0, 40)
    assert query("SELECT count(*) FROM {t}", table) == [(40,)]
    assert query("SELECT id FROM {t} WHERE id IN (3, 33)", table) == [(3,), (33,)]
    assert len(query("SELECT * FROM {t} LIMIT 35", table)) == 35


def test_rows_of_the_lake_have_no_place_in_the_log(spark: Any, lake: World, query: Query) -> None:
    table = tiered(lake, keyed=False)
    with pytest.raises(Exception, match=r"whose rows have no _log_offset: set .*'earliest', or read"):
        query("SELECT id, _log_offset FROM {t}", table)
    told = query("SELECT id, _log_offset FROM {t} WITH (`scan.startup.mode` = 'earliest')", table)
    changelog = f"lakehouse.{table.path.database}.`{table.path.table}$changelog`"
    assert told == query(f"SELECT id, _log_offset FROM {changelog}", table)
    assert len(told) == 40


def test_rows_of_a_primary_key_table_tell_their_bucket_wherever_they_are(lake: World, query: Query) -> None:
    table = tiered(lake, keyed=True)
    told = query("SELECT id, __bucket FROM {t}", table)
    changes = table.changes("earliest", "latest", columns=["id"], include=("bucket",)).to_arrow().to_pylist()
    buckets = {row["id"]: row["__bucket"] for row in changes}
    assert told == sorted(((i, buckets[i]) for i in range(1, 40)), key=repr)
    assert query("SELECT __bucket FROM {t} WHERE id IN (3, 25, 35)", table) == sorted(
        (buckets[i],) for i in (3, 25, 35)
    )
    assert query("SELECT id, __bucket FROM {t} WITH ('read.optimized' = 'true') WHERE id < 2", table) == [
        (0, buckets[0]),
        (1, buckets[1]),
    ]


def test_the_lake_alone_by_its_name_by_an_option_and_by_the_session(spark: Any, lake: World, query: Query) -> None:
    table = tiered(lake, keyed=True)
    name = f"lakehouse.{table.path}"
    old = query("SELECT * FROM lakehouse." + f"{table.path.database}.`{table.path.table}$lake`", table)
    assert len(old) == 30
    assert [row for row in old if row[1] == "old"] == [row for row in old if row[0] >= 20]
    assert query("SELECT count(*) FROM {t} WITH ('read.optimized' = 'true')", table) == [(30,)]
    for prefix in ("spark.sql.forebay.", "spark.sql.fluss."):
        spark.conf.set(prefix + "read.optimized", "true")
        try:
            assert spark.table(name).count() == 30
        finally:
            spark.conf.unset(prefix + "read.optimized")
    assert spark.table(name).count() == 39


@SAME_IN_EACH_LAKE
def test_a_table_whose_lake_is_empty_is_read_from_the_stream(lake: World, query: Query) -> None:
    table = lake.create(ROWS_SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(rows(0, 10))
    assert query("SELECT * FROM {t}", table) == plain(table, 0, 10)
    virtual = f"SELECT * FROM lakehouse.{table.path.database}.`{table.path.table}$lake`"
    assert query(virtual, table) == []


@SAME_IN_EACH_LAKE
def test_buckets_that_the_lake_does_not_have_yet_come_from_the_servers(lake: World, query: Query) -> None:
    table = lake.create(ROWS_SCHEMA, primary_key=["id"], buckets=4)
    table.upsert(rows(0, 30))
    lake.tier(table, table.buckets()[:2])
    table.upsert(rows(30, 40))
    assert query("SELECT * FROM {t}", table) == plain(table, 0, 40)


@SAME_IN_EACH_LAKE
@pytest.mark.parametrize("keyed", [True, False], ids=["primary key", "log"])
def test_filters_on_partitions_choose_those_of_both_sides(lake: World, query: Query, keyed: bool) -> None:
    schema = pa.schema([pa.field("day", pa.date32(), nullable=False), pa.field("id", pa.int64(), nullable=False)])
    table = lake.create(schema, partition_keys=["day"], buckets=2, **({"primary_key": ["day", "id"]} if keyed else {}))
    days = [dt.date(2026, 1, d) for d in (1, 2, 3)]
    for day in days:
        table.create_partition({"day": day.isoformat()})
    write = table.upsert if keyed else table.append
    write([{"day": day, "id": i} for day in days for i in range(4)])
    lake.tier(table)
    table.drop_partition({"day": "2026-01-01"})
    write([{"day": days[2], "id": i} for i in range(4, 6)])
    assert query("SELECT count(*) FROM {t}", table) == [(14,)]
    assert query("SELECT id FROM {t} WHERE day = DATE'2026-01-01'", table) == [(i,) for i in range(4)]
    assert query("SELECT id FROM {t} WHERE day >= DATE'2026-01-03' AND id > 3", table) == [(4,), (5,)]
    assert query("SELECT day, count(*) FROM {t} GROUP BY day", table) == [(days[0], 4), (days[1], 4), (days[2], 6)]


@SAME_IN_EACH_LAKE
def test_the_plan_says_that_lake_and_stream_are_read(spark: Any, lake: World) -> None:
    table = tiered(lake, keyed=True)
    name = f"lakehouse.{table.path}"
    text = spark.sql(f"SELECT id FROM {name}")._jdf.queryExecution().executedPlan().toString()
    assert "by lake and stream" in text
    alone = f"SELECT id FROM lakehouse.fluss.`{table.path.table}$lake`"
    assert "ParquetScan" in spark.sql(alone)._jdf.queryExecution().executedPlan().toString()
    by_tasks = spark.sql(alone + " WITH ('read.native' = 'false')")
    assert "by lake alone" in by_tasks._jdf.queryExecution().executedPlan().toString()


@SAME_IN_EACH_LAKE
def test_a_table_without_a_lake_has_no_lake_table_beside_it(spark: Any, lake: World) -> None:
    table = lake.create(ROWS_SCHEMA, options={"table.datalake.enabled": "false"})
    with pytest.raises(Exception, match="has no lake"):
        spark.table(f"lakehouse.{table.path.database}.`{table.path.table}$lake`").collect()


def test_what_show_create_table_says_of_a_lake_table_makes_one(spark: Any, lake: World) -> None:
    table = tiered(lake, keyed=True)
    old, new = f"lakehouse.{table.path}", f"lakehouse.{table.path}_again"
    [(statement,)] = spark.sql(f"SHOW CREATE TABLE {old}").collect()
    spark.sql(statement.replace(old, new))
    assert lake.connection.table(f"{table.path}_again").info.descriptor == table.info.descriptor
    if SPARK >= (4, 2):
        spark.sql(f"CREATE TABLE {old}_like LIKE {old}")
        assert lake.connection.table(f"{table.path}_like").info.descriptor == table.info.descriptor


@pytest.mark.parametrize("clause", ["", "IF NOT EXISTS "], ids=["plain", "if not exists"])
def test_a_lake_table_that_is_in_the_way_is_named_and_not_taken_for_the_table(
    spark: Any, lake: World, clause: str
) -> None:
    table = tiered(lake, keyed=False)
    name = f"lakehouse.{table.path}"
    spark.sql(f"DROP TABLE {name}")
    with pytest.raises(Exception, match="LAKE_TABLE_ALREADY_EXIST") as refusal:
        spark.sql(f"CREATE TABLE {clause}{name} (id BIGINT) TBLPROPERTIES ('table.datalake.enabled' = 'true')")
    assert str(table.path) in str(refusal.value)
    assert not spark.catalog.tableExists(name)


@SAME_IN_EACH_LAKE
def test_the_format_reads_lake_and_stream_too(spark: Any, lake: World) -> None:
    table = tiered(lake, keyed=True)
    server = lake.connection.settings.bootstrap_servers[0]
    reader = spark.read.format("forebay").option("bootstrap.servers", f"{server.host}:{server.port}")
    assert reader.option("table", str(table.path)).load().count() == 39
    only = reader.option("table", str(table.path)).option("filter", "id >= 20").option("columns", "name").load()
    assert sorted(row[0] for row in only.collect()) == sorted(f"n{i}" for i in range(20, 40))
    assert reader.option("table", str(table.path)).option("limit", "7").load().count() == 7


@pytest.mark.one_in(2)
def test_counts_of_a_table_that_is_written_and_tiered_meanwhile_are_exact(spark: Any, lake: World) -> None:
    table = lake.create(ROWS_SCHEMA, primary_key=["id"], buckets=2)
    name = f"lakehouse.{table.path}"
    for step in range(6):
        table.upsert(rows(10 * step, 10 * step + 15))
        table.delete([{"id": 10 * step}])
        if step % 2:
            lake.tier(table)
        model = {i for s in range(step + 1) for i in range(10 * s, 10 * s + 15)} - {10 * s for s in range(step + 1)}
        assert {row[0] for row in spark.sql(f"SELECT id FROM {name}").collect()} == model
        assert spark.table(name).count() == len(model)


@SAME_IN_EACH_LAKE
def test_a_time_range_is_read_from_the_log_alone(spark: Any, lake: World, query: Query) -> None:
    table = tiered(lake, keyed=True)
    log = table.changes("earliest", "latest", include=("timestamp",)).to_arrow()
    last = round(max(log["_commit_timestamp"].to_pylist()).timestamp() * 1000)
    everything = "SELECT * FROM {t} WITH ('scan.incremental.start.timestamp' = '0')"
    assert query(everything, table) == plain(table, 1, 40)
    newest = f"SELECT * FROM {{t}} WITH ('scan.incremental.start.timestamp' = '{last + 1}')"
    assert query(newest, table) == []
    before = (
        "SELECT * FROM {t} WITH ('scan.incremental.start.timestamp' = '2020-01-01 00:00:00', "
        "'scan.incremental.end.timestamp' = '2020-01-02 00:00:00')"
    )
    assert query(before, table) == []
    frame = spark.sql(everything.replace("{t}", f"lakehouse.{table.path}"))
    assert "by log alone" in frame._jdf.queryExecution().executedPlan().toString()
    with pytest.raises(Exception, match="give one of them"):
        query("SELECT * FROM {t} WITH ('scan.incremental.start.timestamp' = '0', 'read.optimized' = 'true')", table)
