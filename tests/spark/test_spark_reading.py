"""Reading through Spark: push-down, statistics, strategies, virtual tables, types, the format.

What servers really read is counted in their responses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from forebay.client.connection import Connection
from forebay.kv.scanner import ScannerManager
from forebay.kv.table_snapshots import TableSnapshotManager
from forebay.metadata.table import TableBucket
from forebay.server.embedded import EmbeddedServer
from forebay.server.handlers import fetch as fetch_handler
from tests.every_run import every_run
from tests.patience import PATIENCE
from tests.spark.releases import SPARK, needs
from tests.spark.tables import make_table, rows

pytestmark = pytest.mark.spark

Sql = Callable[[str], list[tuple[Any, ...]]]


class Reads:
    """What servers were asked for."""

    def __init__(self) -> None:
        self.scanned: list[TableBucket] = []
        self.fetched: dict[TableBucket, int] = {}

    @property
    def bytes(self) -> int:
        return sum(self.fetched.values())


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Counts the buckets that are scanned, and the bytes of logs that are fetched, by bucket."""
    seen = Reads()
    real_open, real_answer = ScannerManager.open, fetch_handler._answer

    def counted_open(self: ScannerManager, bucket: TableBucket, *more: Any) -> Any:
        seen.scanned.append(bucket)
        return real_open(self, bucket, *more)

    def counted_answer(request: Any, fetches: list[Any], *more: Any) -> Any:
        for fetch in fetches:
            size = sum(len(piece) for piece in fetch.data)
            seen.fetched[fetch.bucket] = seen.fetched.get(fetch.bucket, 0) + size
        return real_answer(request, fetches, *more)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def read(self: TableSnapshotManager, snapshot_id: bytes, bucket: TableBucket, *more: Any) -> Any:
            after, _, _ = more
            if after is None:
                seen.scanned.append(bucket)
            return real(self, snapshot_id, bucket, *more)

        return read

    monkeypatch.setattr(ScannerManager, "open", counted_open)
    for name in ("page", "rows"):  # to be sent as they are, and to be decoded
        monkeypatch.setattr(TableSnapshotManager, name, counted(getattr(TableSnapshotManager, name)))
    monkeypatch.setattr(fetch_handler, "_answer", counted_answer)
    return seen


def plan(spark: Any, statement: str) -> str:
    text: str = spark.sql(statement)._jdf.queryExecution().executedPlan().toString()
    return text


# ---- what is pushed down --------------------------------------------------------------------------------------------


def test_a_log_table_ships_only_the_columns_that_a_query_wants(
    sql: Sql, connection: Connection, database: str, reads: Reads
) -> None:
    make_table(connection, f"{database}.t").append(rows(0, 20_000))
    assert sql("SELECT count(id), count(name), count(amount) FROM {db}.t") == [(20_000, 20_000, 20_000)]
    everything = reads.bytes
    reads.fetched.clear()
    assert sql("SELECT sum(id) FROM {db}.t") == [(199_990_000,)]
    assert 0 < reads.bytes < everything / 2


def test_a_filter_keeps_batches_that_cannot_match_at_the_server(
    sql: Sql, spark: Any, connection: Connection, database: str, reads: Reads
) -> None:
    properties = {"table.statistics.columns": "*"}
    table = make_table(connection, f"{database}.t", buckets=1, options=properties)
    for start in range(0, 50_000, 10_000):
        table.append(rows(start, start + 10_000))
    query = "SELECT id FROM {db}.t WHERE id BETWEEN 20010 AND 20012 AND name LIKE 'n%'"
    assert sorted(sql(query)) == [(20_010,), (20_011,), (20_012,)]
    filtered = reads.bytes
    reads.fetched.clear()
    assert len(sql("SELECT id, name FROM {db}.t")) == 50_000
    assert 0 < filtered < reads.bytes / 3
    text = plan(spark, query.replace("{db}", f"forebay.{database}"))
    assert "id >= 20010 AND id <= 20012 AND name STARTS WITH 'n'" in text


@pytest.mark.parametrize("key", ["", "TBLPROPERTIES ('primary.key'='id,dt', 'bucket.num'='2')"], ids=["log", "key"])
def test_partitions_that_a_filter_rules_out_are_not_read(
    sql: Sql, connection: Connection, database: str, reads: Reads, key: str
) -> None:
    sql(f"CREATE TABLE {{db}}.t (id INT NOT NULL, dt STRING NOT NULL) PARTITIONED BY (dt) {key}")
    sql("INSERT INTO {db}.t SELECT cast(id AS INT), concat('d', id % 4) FROM range(40)")
    assert sql("SELECT count(*), min(dt), max(dt) FROM {db}.t WHERE dt IN ('d1', 'd2')") == [(20, "d1", "d2")]
    read = {bucket.partition_id for bucket in [*reads.scanned, *reads.fetched]}
    names = {p.name for p in connection.table(f"{database}.t").partitions() if p.partition_id in read}
    assert names == {"d1", "d2"}
    reads.scanned.clear()
    reads.fetched.clear()
    assert sql("SELECT * FROM {db}.t WHERE dt = 'nope'") == []
    assert not reads.scanned
    assert not reads.fetched


def test_a_limit_reads_as_many_buckets_as_it_needs(
    sql: Sql, spark: Any, connection: Connection, database: str, reads: Reads
) -> None:
    make_table(connection, f"{database}.l", buckets=8).append(rows(0, 8000))
    assert len(sql("SELECT id FROM {db}.l LIMIT 3")) == 3
    assert len(reads.fetched) == 1
    assert len(sql("SELECT id FROM {db}.l LIMIT 3 OFFSET 2")) == 3
    make_table(connection, f"{database}.k", ["id"], buckets=8).upsert(rows(0, 8000))
    assert len(sql("SELECT id FROM {db}.k LIMIT 3")) == 3
    assert len(reads.scanned) <= 2  # the session ahead may have been opened
    assert len(sql("SELECT id FROM {db}.k WHERE id >= 7990 LIMIT 100")) == 10
    assert ", limit 3" in plan(spark, f"SELECT id FROM forebay.{database}.k LIMIT 3")


@pytest.mark.slow
def test_every_filter_gives_what_spark_alone_would_give(sql: Sql, connection: Connection, database: str) -> None:
    for name, key in (("l", None), ("k", ["id"])):
        table = make_table(connection, f"{database}.{name}", key)
        (table.upsert if key else table.append)(rows(0, 200))
    sql("INSERT INTO {db}.l VALUES (200, NULL, NULL)")
    sql("INSERT INTO {db}.k VALUES (200, NULL, NULL)")
    sql(
        "CREATE OR REPLACE TEMP VIEW expected AS SELECT id, concat('n', id) AS name, id / 2 AS amount FROM range(200) "
        "UNION ALL SELECT 200, NULL, NULL"
    )
    for condition in (
        "id = 5",
        "5 > id OR id > 197",
        "NOT (id < 190 AND name <> 'n3')",
        "name IN ('n1', 'n''x', 'n7') OR name IS NULL",
        "name NOT IN ('n1', 'n2') AND id < 5",
        "name <=> NULL",
        "NOT name <=> 'n5' AND id < 10",
        "name LIKE '%9' AND amount > 40.5",
        "amount BETWEEN 3 AND 4.5",
        "name LIKE 'n1_5'",
        "id % 50 = 0",
        "upper(name) = 'N5'",
        "name > 'n95'",
        "amount = 'NaN'",
        "id = 3 AND id = 4",
    ):
        expected = sorted(sql(f"SELECT id FROM expected WHERE {condition}"))
        assert sorted(sql(f"SELECT id FROM {{db}}.l WHERE {condition}")) == expected, condition
        assert sorted(sql(f"SELECT id FROM {{db}}.k WHERE {condition}")) == expected, condition


def test_two_references_to_a_table_in_one_query_keep_their_own_filters(
    sql: Sql, connection: Connection, database: str
) -> None:
    make_table(connection, f"{database}.t", ["id"]).upsert(rows(0, 20))
    both = sql("SELECT id FROM {db}.t WHERE id = 1 UNION ALL SELECT id FROM {db}.t WHERE id > 17")
    assert sorted(both) == [(1,), (18,), (19,)]
    joined = sql("SELECT a.id, b.name FROM {db}.t a JOIN {db}.t b ON a.id = b.id - 1 WHERE a.id < 3 AND b.id > 1")
    assert sorted(joined) == [(1, "n2"), (2, "n3")]


def test_statistics_let_spark_broadcast_the_small_side_of_a_join(
    sql: Sql, spark: Any, connection: Connection, database: str
) -> None:
    make_table(connection, f"{database}.large").append(rows(0, 3000))
    make_table(connection, f"{database}.small", ["id"]).upsert(rows(0, 10))
    query = "SELECT l.name FROM {db}.large l JOIN {db}.small s ON l.id = s.id".replace("{db}", f"forebay.{database}")
    before = spark.conf.get("spark.sql.autoBroadcastJoinThreshold")
    try:
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "2000")
        text = plan(spark, query)
        assert "BroadcastHashJoin" in text
        assert "BuildRight" in text
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "20")
        assert "SortMergeJoin" in plan(spark, query)
    finally:
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", before)
    assert len(sql("SELECT l.name FROM {db}.large l JOIN {db}.small s ON l.id = s.id")) == 10


# ---- how primary-key tables are read --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_table_of_many_buckets_is_read_by_few_tasks_within_the_server_s_sessions(
    sql: Sql, spark: Any, connection: Connection, database: str, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(connection, f"{database}.t", ["id"], buckets=200)
    table.upsert(rows(0, 5000))
    most = [0]
    real_open = ScannerManager.open

    def counted_open(self: ScannerManager, bucket: TableBucket, *more: Any) -> Any:
        opened = real_open(self, bucket, *more)
        most[0] = max(most[0], self.session_count)
        return opened

    monkeypatch.setattr(ScannerManager, "open", counted_open)
    monkeypatch.setattr("forebay.spark.reading.plan.ROWS_PER_TASK_MIN", 100)
    frame = spark.table(f"forebay.{database}.t")
    assert frame.rdd.getNumPartitions() == 4  # two for each of the two cores
    assert sorted(row.id for row in frame.select("id").collect()) == list(range(5000))
    assert most[0] == 0  # a table snapshot needs no sessions
    frame = spark.read.format("forebay").load(f"{database}.t", **{"bootstrap.servers": server.bootstrap_servers})
    assert sorted(row.id for row in frame.select("id").collect()) == list(range(5000))
    assert 1 <= most[0] <= 4  # two tasks run at a time, with two sessions each
    assert server.server.context.scanners.session_count == 0


@pytest.mark.parametrize("how", ["session", "read", "table"])
def test_the_changelog_can_be_replayed_in_place_of_a_scan(
    sql: Sql, spark: Any, connection: Connection, database: str, reads: Reads, how: str
) -> None:
    make_table(connection, f"{database}.t", ["id"]).upsert(rows(0, 300))
    sql("DELETE FROM {db}.t WHERE id < 100")
    reads.scanned.clear()  # by the DELETE
    options = ""
    conf = "spark.sql.fluss.client.scanner.kv.server-side.enabled"
    if how == "session":
        spark.conf.set(conf, "false")
    elif how == "read":
        options = " WITH ('client.scanner.kv.batch-strategy'='snapshot-merge')"
    else:
        sql("ALTER TABLE {db}.t SET TBLPROPERTIES ('client.scanner.kv.server-side.enabled'='false')")
    try:
        assert sql(f"SELECT count(*), sum(id) FROM {{db}}.t{options}") == [(200, sum(range(100, 300)))]
        assert sql(f"SELECT name FROM {{db}}.t{options} WHERE id = 150") == [("n150",)]
        assert "by snapshot-merge" in plan(spark, f"SELECT * FROM forebay.{database}.t{options}")
    finally:
        spark.conf.unset(conf)
    assert not reads.scanned


def test_options_are_given_to_dataframe_reads_too(
    sql: Sql, spark: Any, connection: Connection, database: str, reads: Reads
) -> None:
    make_table(connection, f"{database}.t", ["id"]).upsert(rows(0, 30))
    name = f"forebay.{database}.t"
    assert spark.read.option("client.scanner.kv.server-side.enabled", "false").table(name).count() == 30
    assert not reads.scanned
    assert spark.read.option("client.scanner.kv.server-side.enabled", "true").table(name).count() == 30
    assert len(reads.scanned) == 3
    with pytest.raises(Exception, match=r"there is no read option 'scan\.nope'"):
        spark.read.option("scan.nope", "1").table(name).count()
    make_table(connection, f"{database}.l").append(rows(0, 100))
    split = spark.read.option("scan.maxRecordsPerPartition", "10").table(f"forebay.{database}.l")
    assert split.rdd.getNumPartitions() == 10


# ---- virtual tables -------------------------------------------------------------------------------------------------


def test_a_changelog_shows_every_change_of_a_primary_key_table(sql: Sql) -> None:
    sql("CREATE TABLE {db}.t (id INT NOT NULL, v INT) TBLPROPERTIES ('primary.key'='id', 'bucket.num'='1')")
    sql("INSERT INTO {db}.t VALUES (1, 10)")
    sql("INSERT INTO {db}.t VALUES (1, 11)")
    sql("DELETE FROM {db}.t WHERE id = 1")
    found = sql("SELECT _change_type, _log_offset, id, v FROM {db}.`t$changelog` ORDER BY _log_offset")
    assert found == [
        ("insert", 0, 1, 10),
        ("update_before", 1, 1, 10),
        ("update_after", 2, 1, 11),
        ("delete", 3, 1, 11),
    ]
    assert sql("SELECT v FROM {db}.`t$changelog` WHERE _change_type = 'update_after' AND id = 1") == [(11,)]
    assert sql("SELECT count(*) FROM {db}.`t$changelog` WHERE _commit_timestamp > now() - INTERVAL 1 HOUR") == [(4,)]
    assert sql("SELECT row_count, earliest_offset, latest_offset FROM {db}.`t$buckets`") == [(0, 0, 4)]


def test_a_log_has_the_places_of_its_records_in_metadata_columns(
    sql: Sql, spark: Any, connection: Connection, database: str
) -> None:
    table = make_table(connection, f"{database}.log", buckets=2)
    table.append(rows(0, 10))
    hidden = "__bucket, _log_offset, _commit_timestamp"
    want = sql("SELECT id, _log_offset, _commit_timestamp FROM {db}.`log$changelog` ORDER BY id")
    found = sql(f"SELECT id, {hidden} FROM {{db}}.log ORDER BY id")
    assert [(row[0], *row[2:]) for row in found] == want
    places = table.changes("earliest", "latest", columns=["id"], include=("bucket",)).to_arrow().to_pylist()
    assert {row[0]: row[1] for row in found} == {row["id"]: row["__bucket"] for row in places}
    assert dict(sql("SELECT id, __bucket FROM {db}.`log$changelog`")) == {row[0]: row[1] for row in found}
    assert len(sql("SELECT * FROM {db}.log LIMIT 1")[0]) == 3
    assert len(sql("SELECT * FROM {db}.`log$changelog` LIMIT 1")[0]) == 6
    bucket = found[0][1]
    last = f"SELECT max(_log_offset) FROM {{db}}.log WHERE _log_offset >= 1 AND __bucket = {bucket} AND id >= 0"
    assert sql(last) == [(max(row[2] for row in found if row[1] == bucket),)]
    frame = spark.readStream.table(f"forebay.{database}.log").selectExpr("id", *hidden.split(", "))
    streamed: list[tuple[Any, ...]] = []
    writer = frame.writeStream.foreachBatch(lambda batch, _: streamed.extend(map(tuple, batch.collect())))
    writer.trigger(availableNow=True).start().awaitTermination(PATIENCE)
    assert sorted(streamed) == found


def test_rows_of_primary_key_tables_tell_their_bucket(
    sql: Sql, spark: Any, connection: Connection, database: str
) -> None:
    table = make_table(connection, f"{database}.key", ["id"], buckets=3)
    table.upsert(rows(0, 30))
    table.delete(rows(5, 10).select(["id"]))
    places = table.changes("earliest", "latest", columns=["id"], include=("bucket",)).to_arrow().to_pylist()
    buckets = {row["id"]: row["__bucket"] for row in places if not 5 <= row["id"] < 10}
    assert dict(sql("SELECT id, __bucket FROM {db}.key")) == buckets
    assert dict(sql("SELECT id, __bucket FROM {db}.key WHERE id IN (3, 7, 11)")) == {i: buckets[i] for i in (3, 11)}
    counts = Counter(buckets.values())
    assert dict(sql("SELECT __bucket, count(*) FROM {db}.key GROUP BY __bucket")) == counts
    assert sql("SELECT count(*) FROM {db}.key WHERE __bucket = 1 AND name LIKE 'n%'") == [(counts[1],)]
    assert len(sql("SELECT *, __bucket FROM {db}.key LIMIT 7")) == 7
    frame = spark.readStream.table(f"forebay.{database}.key").selectExpr("id", "__bucket")
    streamed: list[tuple[Any, ...]] = []
    writer = frame.writeStream.foreachBatch(lambda batch, _: streamed.extend(map(tuple, batch.collect())))
    writer.trigger(availableNow=True).start().awaitTermination(PATIENCE)
    assert dict(streamed) == buckets
    with pytest.raises(Exception, match=r"UNRESOLVED_COLUMN.*_log_offset"):
        sql("SELECT _log_offset FROM {db}.key")


def test_partitions_and_buckets_of_a_table_are_tables(sql: Sql) -> None:
    sql("CREATE TABLE {db}.t (id INT, dt DATE) PARTITIONED BY (dt) TBLPROPERTIES ('bucket.num'='2')")
    sql("INSERT INTO {db}.t VALUES (1, DATE'2024-01-01'), (2, DATE'2024-01-02'), (3, DATE'2024-01-02')")
    found = sql("SELECT dt = DATE'2024-01-01', partition_name FROM {db}.`t$partitions` ORDER BY dt")
    assert found == [(True, "2024-01-01"), (False, "2024-01-02")]
    counted = sql("SELECT partition_name, sum(latest_offset), count(*) FROM {db}.`t$buckets` GROUP BY 1 ORDER BY 1")
    assert counted == [("2024-01-01", 1, 2), ("2024-01-02", 2, 2)]


# ---- types ----------------------------------------------------------------------------------------------------------

TYPES = {
    "BOOLEAN": "true",
    "TINYINT": "-128Y",
    "SMALLINT": "32767S",
    "INT": "-2147483648",
    "BIGINT": "9223372036854775807",
    "FLOAT": "float(1.5)",
    "DOUBLE": "double('-Infinity')",
    "DECIMAL(10, 2)": "-12345678.91BD",
    "DECIMAL(38, 10)": "1234567890123456789012345678.0123456789BD",
    "CHAR(5)": "'abc  '",
    "VARCHAR(10)": "'ünï'",
    "STRING": "''",
    "BINARY": "X'00ff'",
    "DATE": "DATE'0001-01-01'",
    "TIMESTAMP": "TIMESTAMP'2024-03-10 02:30:00.123456 UTC'",
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ'1900-01-01 00:00:00.000001'",
    "ARRAY<INT>": "array(1, NULL, 3)",
    "ARRAY<ARRAY<STRING>>": "array(array('a', NULL), NULL, array())",
    "MAP<STRING, INT>": "map('k', 1, 'n', NULL)",
    "STRUCT<x: INT, y: STRUCT<z: TIMESTAMP, w: DECIMAL(5, 1)>>": "named_struct('x', 1, 'y', named_struct('z', "
    "TIMESTAMP'2024-07-01 00:00:00', 'w', 1.5BD))",
    "ARRAY<STRUCT<p: TIMESTAMP_NTZ, q: BINARY>>": "array(named_struct('p', TIMESTAMP_NTZ'1900-01-01 00:00:00', 'q', "
    "X'01'))",
    "MAP<INT, ARRAY<DATE>>": "map(1, array(DATE'1582-10-15', DATE'9999-12-31'))",
}


@pytest.mark.parametrize("zone", every_run(["UTC", "America/New_York"], lambda zone: zone != "UTC"))
def test_values_of_every_type_come_back_as_they_went_whatever_the_session_s_time_zone(
    sql: Sql, spark: Any, zone: str
) -> None:
    columns = ", ".join(f"c{number} {t}" for number, t in enumerate(TYPES))
    sql(f"CREATE TABLE {{db}}.l ({columns})")
    sql(f"CREATE TABLE {{db}}.k (id INT NOT NULL, {columns}) TBLPROPERTIES ('primary.key'='id')")
    values = ", ".join(TYPES.values())
    nulls = ", ".join("NULL" for _ in TYPES)
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        sql(f"INSERT INTO {{db}}.l VALUES ({values}), ({nulls})")
        sql(f"INSERT INTO {{db}}.k VALUES (1, {values}), (2, {nulls})")
        [expected] = sql(f"SELECT {values}")
        nothing = tuple(None for _ in TYPES)
        assert sorted(sql("SELECT * FROM {db}.l"), key=str) == sorted([expected, nothing], key=str)
        assert sorted(sql("SELECT * FROM {db}.k")) == [(1, *expected), (2, *nothing)]
        for number, (t, value) in enumerate(TYPES.items()):
            if t.startswith(("MAP", "ARRAY", "STRUCT")):
                continue  # Spark compares no maps, and nothing is pushed down for the others
            assert sql(f"SELECT count(*) FROM {{db}}.l WHERE c{number} = {value}") == [(1,)], t
            assert sql(f"SELECT count(*) FROM {{db}}.k WHERE c{number} IS NULL") == [(1,)], t
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@needs(4, 1, "type TIME")
def test_time_columns_need_spark_s_setting_and_say_so(sql: Sql, spark: Any) -> None:
    conf = "spark.sql.timeType.enabled"
    spark.conf.set(conf, "true")
    try:
        sql("CREATE TABLE {db}.t (id INT, at TIME(6))")
        sql("INSERT INTO {db}.t VALUES (1, TIME'10:11:12.123'), (2, NULL)")
        assert sql("SELECT id FROM {db}.t WHERE at = TIME'10:11:12.123'") == [(1,)]
        # A table holds whole milliseconds, as Fluss does: nothing is cut off in silence.
        with pytest.raises(Exception, match=r"10:11:12\.123456.*milliseconds"):
            sql("INSERT INTO {db}.t VALUES (3, TIME'10:11:12.123456')")
    finally:
        spark.conf.set(conf, "false")
    with pytest.raises(Exception, match=r"column 'at' of table .* has type TIME.*spark.sql.timeType.enabled=true"):
        sql("SELECT * FROM {db}.t")


# ---- the format -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_format_reads_and_writes_the_same_tables(
    sql: Sql, spark: Any, server: EmbeddedServer, connection: Connection, database: str
) -> None:
    make_table(connection, f"{database}.t", ["id"])
    source = {"bootstrap.servers": server.bootstrap_servers}
    frame = spark.range(50).selectExpr("id", "concat('n', id) AS name", "id / 2 AS amount")
    frame.write.format("forebay").options(**source, table=f"{database}.t").mode("append").save()
    reader = spark.read.format("forebay").options(**source)
    chosen = reader.option("columns", "name, id").option("filter", "id BETWEEN 3 AND 4 OR name = 'n7'")
    loaded = chosen.load(f"{database}.t")
    assert loaded.columns == ["name", "id"]
    assert sorted(map(tuple, loaded.collect())) == [("n3", 3), ("n4", 4), ("n7", 7)]
    everything = spark.read.format("forebay").options(**source).load(f"{database}.t")
    # The plain data source has no push-down that two uses of one DataFrame could spoil for each other.
    assert everything.where("id = 1").union(everything.where("id = 2")).count() == 2
    assert everything.count() == 50
    partial = spark.range(1).selectExpr("id", "'new' AS name")
    partial.write.format("forebay").options(**source, table=f"{database}.t").mode("append").save()
    assert sql("SELECT name, amount FROM {db}.t WHERE id = 0") == [("new", 0.0)]


def test_the_format_refuses_by_name_what_it_cannot_do(
    spark: Any, server: EmbeddedServer, connection: Connection, database: str
) -> None:
    make_table(connection, f"{database}.t", ["id"])
    source = {"bootstrap.servers": server.bootstrap_servers, "table": f"{database}.t"}
    wrong = spark.sql("SELECT 1L AS id, array(1) AS name")
    with pytest.raises(Exception, match="column 'name'"):
        wrong.write.format("forebay").options(**source).mode("append").save()
    log = make_table(connection, f"{database}.log")
    whole = spark.sql("SELECT 1L AS id, 'a' AS name, 1D AS amount")
    with pytest.raises(Exception, match=r"rows of log table .*\.log cannot be replaced"):
        whole.write.format("forebay").options(**source | {"table": str(log.path)}).mode("overwrite").save()
    reader = spark.read.format("forebay").options(**source)
    for options, part in (({"table": f"{database}.nope"}, "there is no table"), ({"columns": "no"}, "no column 'no'")):
        with pytest.raises(Exception, match=part) as error:
            reader.options(**source | options).load().collect()
        assert "Traceback" not in str(error.value)
    reader = spark.readStream.format("forebay").options(**source, **{"scan.startup.mode": "sometimes"})
    with pytest.raises(Exception, match="sometimes" if SPARK >= (4, 2) else "needs Spark 4.2") as error:
        reader.load().writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
    assert "Traceback" not in str(error.value)
    with pytest.raises(Exception, match="does not support either micro-batch or continuous scan"):
        spark.readStream.table(f"forebay.{database}.`t$buckets`")
