"""SELECT with filters that fix keys: what EXPLAIN says, what is read, and that the rows are those of a full scan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from forebay import col
from forebay.client.cluster.cluster import ClusterClient
from forebay.client.connection import Connection
from forebay.client.reading import key_cursor
from forebay.spark.context import LiveContext
from forebay.spark.jvm.spark_values import column_reference
from forebay.spark.options import ReadOptions
from forebay.spark.reading import scan as scans
from forebay.spark.reading.live_plan import ClusterScan
from forebay.spark.reading.live_read import InlineRows
from forebay.spark.reading.plan import Pushdown, SplitsPartition
from forebay.spark.reading.scan import ScanProxy
from forebay.spark.sql.live_relation import LiveRelation
from forebay.unionread.splits import KvBucketSplit
from tests.unionread.world import PAIMON, World, world

pytestmark = pytest.mark.spark

Sql = Callable[[str], list[tuple[Any, ...]]]
Read = Callable[[str], tuple[str, list[tuple[Any, ...]]]]


@pytest.fixture
def orders(connection: Connection, database: str) -> str:
    table = connection.create_table(
        f"{database}.orders",
        {"id": "BIGINT NOT NULL", "item": "STRING", "x": "DOUBLE"},
        primary_key="id",
        buckets=16,
    )
    table.upsert([{"id": i, "item": f"item {i}", "x": i / 2} for i in range(200)])
    return f"forebay.{database}.orders"


def explained(spark: Any, query: str) -> str:
    [[text]] = spark.sql(f"EXPLAIN {query}").collect()
    return str(text)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The requests of the driver."""
    counted, send = Counter[str](), ClusterClient.send

    def counting(self: ClusterClient, node: Any, key: Any, *rest: Any, **more: Any) -> Any:
        counted[key.name] += 1
        return send(self, node, key, *rest, **more)

    monkeypatch.setattr(ClusterClient, "send", counting)
    return counted


def test_a_select_by_key_is_a_lookup_of_the_driver(spark: Any, sql: Sql, orders: str, sent: Counter[str]) -> None:
    def rows(where: str) -> list[tuple[Any, ...]]:
        sent.clear()
        return sorted(tuple(row) for row in spark.sql(f"SELECT ID, item FROM {orders} WHERE {where}").collect())

    assert rows("Id = 7") == [(7, "item 7")]
    assert (sent["LOOKUP"], sent["LIST_OFFSETS"]) == (1, 0)
    assert rows("id IN (1, 2, 3) AND upper(item) <> 'ITEM 2'") == [(1, "item 1"), (3, "item 3")]
    assert (sent["LOOKUP"], sent["LIST_OFFSETS"]) == (1, 1)  # compared with the offsets of a table snapshot
    assert rows("id = 7 OR id = 9") == [(7, "item 7"), (9, "item 9")]
    assert rows("id = 7 AND item = 'item 8'") == rows("id IN (1000, NULL)") == []
    assert spark.sql(f"SELECT count(*) FROM {orders} WHERE id IN (1, 2, 5000)").collect()[0][0] == 2
    assert spark.sql(f"SELECT item FROM {orders} WHERE id IN (1, 2) LIMIT 1").count() == 1
    joined = f"SELECT a.id FROM {orders} a JOIN {orders} b ON a.id = b.id WHERE a.id = 5 AND b.x > 0"
    assert spark.sql(joined).collect()[0][0] == 5


def test_explain_names_keys_and_buckets(spark: Any, sql: Sql, orders: str) -> None:
    assert "lookup of 1 key in 1 of 16 buckets" in explained(spark, f"SELECT * FROM {orders} WHERE id = 7")
    text = explained(spark, f"SELECT * FROM {orders} WHERE id IN (1, 2, 3)")
    assert "lookup of 3 keys in 3 of 16 buckets" in text
    assert "rows where id IN (1, 2, 3)" in text
    assert "lookup" not in explained(spark, f"SELECT * FROM {orders} WHERE id > 7")
    changes = f"SELECT * FROM {orders[:-6]}`orders$changelog` WHERE id = 7"
    assert "1 of 16 buckets" in explained(spark, changes)
    assert [row.item for row in spark.sql(changes).collect()] == ["item 7"]
    merged = f"SELECT * FROM {orders} WITH ('client.scanner.kv.batch-strategy' = 'snapshot-merge') WHERE id = 7"
    assert "1 of 16 buckets, by snapshot-merge" in explained(spark, merged)
    assert spark.sql(merged).count() == 1


def test_the_bucket_key_of_a_log_and_partitions_choose_what_is_read(spark: Any, sql: Sql) -> None:
    sql("CREATE TABLE {db}.log (user STRING NOT NULL, v INT) TBLPROPERTIES ('bucket.key' = 'user', 'bucket.num' = '8')")
    sql("INSERT INTO {db}.log SELECT concat('u', id % 10), id FROM range(100)")
    assert "1 of 8 buckets" in sql("EXPLAIN SELECT * FROM {db}.log WHERE user = 'u3'")[0][0]
    assert sql("SELECT count(*) FROM {db}.log WHERE user = 'u3'") == [(10,)]
    sql(
        "CREATE TABLE {db}.p (id BIGINT NOT NULL, day DATE NOT NULL) PARTITIONED BY (day) "
        "TBLPROPERTIES ('primary.key' = 'id,day', 'bucket.num' = '4')"
    )
    sql("INSERT INTO {db}.p SELECT id, DATE'2026-01-01' + INT(id % 4) FROM range(40)")
    for where, how, count in (
        ("id = 7 AND day = DATE'2026-01-04'", "lookup of 1 key in 1 of 16 buckets", 1),
        ("id = 7", "lookup of 4 keys in 4 of 16 buckets", 1),
        ("id = 7 AND day < DATE'2026-01-03'", "lookup of 2 keys in 2 of 16 buckets", 0),
    ):
        assert how in sql(f"EXPLAIN SELECT * FROM {{db}}.p WHERE {where}")[0][0]
        assert sql(f"SELECT count(*) FROM {{db}}.p WHERE {where}") == [(count,)]


def test_a_frame_keeps_the_rows_that_were_looked_up(spark: Any, connection: Connection, orders: str) -> None:
    frame = spark.sql(f"SELECT item FROM {orders} WHERE id IN (7, 8)")
    before = frame.collect()
    connection.table(orders.removeprefix("forebay.")).upsert([{"id": 7, "item": "changed", "x": 0.0}])
    assert frame.collect() == before


def test_a_bucket_that_changes_after_the_snapshot_is_scanned_as_of_it(
    connection: Connection, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, ask = connection.table(orders.removeprefix("forebay.")), key_cursor.Lookups.ask

    def changed_meanwhile(self: Any, *rest: Any) -> Any:
        table.upsert([{"id": 7, "item": "too late", "x": 0.0}])
        return ask(self, *rest)

    monkeypatch.setattr(key_cursor.Lookups, "ask", changed_meanwhile)
    scan = ClusterScan(table.info, ReadOptions(connection.settings))
    wanted = Pushdown(("id", "item", "x"), (), col("id").is_in([7, 8, 9]))
    opened = scan.plan(connection, 2, wanted, scan.schema).open()
    [partition] = opened.partitions
    assert isinstance(partition, SplitsPartition)
    assert [type(split) for split in partition.splits] == [InlineRows, KvBucketSplit]
    rows = [row for batch in scan.read_function(wanted, scan.schema).read(partition) for row in batch.to_pylist()]
    assert sorted(row["item"] for row in rows) == ["item 7", "item 8", "item 9"]


@pytest.mark.slow
def test_the_format_looks_keys_up_when_a_task_reads(spark: Any, connection: Connection, orders: str) -> None:
    name = orders.removeprefix("forebay.")
    servers = ",".join(map(str, connection.settings.bootstrap_servers))
    source = {"bootstrap.servers": servers, "table": name, "filter": "id IN (7, 8)"}
    frame = spark.read.format("forebay").options(**source).load()
    assert sorted(row.id for row in frame.collect()) == [7, 8]
    connection.table(name).delete([7])
    assert [row.id for row in frame.collect()] == [8]
    pinned = spark.read.format("forebay").options(**source).option("scan.kv.snapshot.lease.duration", "1 min").load()
    assert [row.id for row in pinned.collect()] == [8]


@pytest.fixture(scope="module")
def tiered(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    import forebay.spark

    with world(tmp_path_factory.mktemp("keys"), PAIMON) as running:
        server = running.connection.settings.bootstrap_servers[0]
        forebay.spark.attach(spark, "keys", bootstrap_servers=f"{server.host}:{server.port}")
        yield running


def test_tables_with_a_lake_are_looked_up_in_the_stream(spark: Any, tiered: World) -> None:
    table = tiered.create({"id": "BIGINT NOT NULL", "v": "STRING"}, primary_key=["id"], buckets=8)
    table.upsert([{"id": i, "v": "lake"} for i in range(30)])
    tiered.tier(table)
    table.upsert([{"id": 1, "v": "stream"}])
    table.delete([2])
    query = f"SELECT id, v FROM keys.{table.path} WHERE id IN (1, 2, 3)"
    assert "lookup of 3 keys in 3 of 8 buckets, by lake and stream" in explained(spark, query)
    assert sorted(map(tuple, spark.sql(query).collect())) == [(1, "stream"), (3, "lake")]
    tiered.connection.drop_table(table.path)


# ---- joins with a small side ----------------------------------------------------------------------------------------


@pytest.fixture
def read(spark: Any, sql: Sql, database: str) -> Read:
    """Run a query, with {db} for the database: how it was read, and its rows in order."""
    sql("CREATE TABLE {db}.chosen (k BIGINT, name STRING, day DATE, why STRING)")
    sql(
        "INSERT INTO {db}.chosen VALUES (7, 'item 7', DATE'2026-01-02', 'a'), (9, 'item 9', DATE'2026-01-02', 'a'), "
        "(8, 'x', DATE'2026-01-01', 'b'), (NULL, NULL, NULL, 'a')"
    )

    def run(query: str) -> tuple[str, list[tuple[Any, ...]]]:
        frame = spark.sql(query.replace("{db}", f"forebay.{database}"))
        rows = sorted(map(tuple, frame.collect()))
        return str(frame._jdf.queryExecution().executedPlan().toString()), rows

    return run


def test_a_join_with_a_small_side_is_a_lookup(orders: str, read: Read, sent: Counter[str]) -> None:
    sent.clear()
    plan, rows = read(f"SELECT o.id, o.item FROM {orders} o JOIN {{db}}.chosen c ON o.id = c.k WHERE c.why = 'a'")
    assert rows == [(7, "item 7"), (9, "item 9")]
    assert "SubqueryBroadcast" in plan
    assert "filtered by a join: rows where id IN (7, 9), lookup of 2 keys in 2 of 16 buckets" in plan
    assert sent["LOOKUP"] == 1
    plan, rows = read(f"SELECT id FROM {orders} WHERE x > 4 AND id IN (SELECT k FROM {{db}}.chosen WHERE why = 'a')")
    assert rows == [(9,)]
    assert "lookup of 2 keys in 2 of 16 buckets" in plan
    outer = f"SELECT c.why, o.item FROM {orders} o RIGHT JOIN {{db}}.chosen c ON o.id = c.k + 1000 WHERE c.why > ''"
    assert read(f"SELECT why, coalesce(item, '') FROM ({outer})")[1] == [("a", ""), ("a", ""), ("a", ""), ("b", "")]


def test_a_join_with_an_empty_or_a_large_side_has_the_same_rows(
    orders: str, read: Read, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    joined = f"SELECT o.id FROM {orders} o JOIN {{db}}.chosen c ON o.id = c.k WHERE c.why = "
    assert read(joined + "'nothing'")[1] == []
    spark.conf.set("spark.sql.adaptive.enabled", "false")  # which would leave the join out
    try:
        plan, rows = read(joined + "'nothing'")
        assert rows == []
        assert "filtered by a join: rows where id IN ()" in plan
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
    monkeypatch.setattr(scans, "RUNTIME_VALUES_MAX", 1)
    plan, rows = read(joined + "'a'")
    assert rows == [(7,), (9,)]
    assert "dynamicpruning" in plan
    assert "filtered by a join" not in plan


def test_values_of_a_join_choose_partitions_and_buckets(read: Read, sql: Sql) -> None:
    sql(
        "CREATE TABLE {db}.p (id BIGINT NOT NULL, day DATE NOT NULL, v INT) PARTITIONED BY (day) "
        "TBLPROPERTIES ('primary.key' = 'id,day', 'bucket.num' = '4')"
    )
    sql("INSERT INTO {db}.p SELECT id, DATE'2026-01-01' + INT(id % 4), id FROM range(40)")
    by_day = (
        "SELECT count(*) FROM {db}.p p JOIN (SELECT DISTINCT day FROM {db}.chosen WHERE why = 'b') c ON p.day = c.day"
    )
    plan, rows = read(by_day)
    assert rows == [(10,)]
    assert "filtered by a join: partitions where day IN (2026-01-01)" in plan
    plan, rows = read("SELECT p.v FROM {db}.p p JOIN {db}.chosen c ON p.day = c.day AND p.id = c.k WHERE c.why = 'a'")
    assert rows == [(9,)]
    assert "lookup of 2 keys in 2 of 16 buckets" in plan
    sql("CREATE TABLE {db}.log (item STRING NOT NULL, v INT) TBLPROPERTIES ('bucket.key' = 'item', 'bucket.num' = '8')")
    sql("INSERT INTO {db}.log SELECT concat('item ', id % 10), id FROM range(100)")
    plan, rows = read("SELECT count(*) FROM {db}.log l JOIN {db}.chosen c ON l.item = c.name WHERE c.why = 'a'")
    assert rows == [(20,)]
    assert "rows where item IN ('item 7', 'item 9'), 2 of 8 buckets" in plan


def test_a_scan_that_a_join_filters_stays_whole_for_others(spark: Any, connection: Connection, orders: str) -> None:
    """A plan may have a scan twice, and values of a join for one of them alone."""
    info = connection.table(orders.removeprefix("forebay.")).info
    context = LiveContext.of(spark, "forebay", connection.settings)
    table = LiveRelation(context, orders, info, {})
    scan = ScanProxy(context, table, Pushdown(tuple(table.schema.names)), table.schema)
    jvm, connector = context.jvm, "org.apache.spark.sql.connector.expressions."
    seven = jvm.class_(connector + "Expressions").literal(7)
    column_and_value = jvm.array(connector + "Expression", [column_reference(jvm, "id"), seven])
    predicate = jvm.class_(connector + "filter.Predicate")("IN", column_and_value)
    scan.filter(jvm.array(connector + "filter.Predicate", [predicate]))
    filtered = scan.toBatch()
    assert filtered is not scan
    assert scan.toBatch() is scan
    assert (len(filtered.planInputPartitions()), len(scan.planInputPartitions())) == (1, 1)
    assert filtered.estimateStatistics().numRows().getAsLong() == 1
    assert scan.estimateStatistics().numRows().getAsLong() == 200
    assert "lookup of 1 key in 1 of 16 buckets" in scan.description()
