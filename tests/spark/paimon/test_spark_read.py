"""Reads and streams of Paimon tables in Spark itself: push-down, time travel, the format, triggers, restarts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import JavaClient

from forebay.metadata import types
from forebay.paimon import Catalog
from forebay.paimon.store.schema_changes import AddColumn, UpdateColumnType
from forebay.paimon.table import Table
from tests.paimon.lake import altered, put
from tests.paimon.stream.model import COLUMNS
from tests.patience import PATIENCE
from tests.spark.releases import SPARK

pytestmark = pytest.mark.spark

needs_streams = pytest.mark.skipif(SPARK < (4, 2), reason="streams written in Python have limits from Spark 4.2 on")

Sql = Callable[[str], list[tuple[Any, ...]]]
Batches = list[list[tuple[Any, ...]]]


@pytest.fixture
def parts(lake_catalog: Catalog, lake: str) -> Table:
    """Partitions a, b and c, each with two files of three rows."""
    table = lake_catalog.create_table(f"{lake}.parts", COLUMNS, partition_keys=["name"])
    for n, name in enumerate("abcabc"):
        put(table, [{"id": 10 * n + i, "name": name, "v": i} for i in range(3)])
    return table


@pytest.fixture
def keyed(lake_catalog: Catalog, lake: str) -> Table:
    """A primary-key table with a changelog: 1 is inserted, updated and deleted; 2 stays."""
    options = {"bucket": "1", "changelog-producer": "input"}
    table = lake_catalog.create_table(f"{lake}.keyed", COLUMNS, primary_key=["id"], options=options)
    put(table, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    put(table, [{"id": 1, "name": "c"}])
    table.delete([{"id": 1}])
    return table


def plan_of(spark: Any, query: str) -> str:
    (row,) = spark.sql(f"EXPLAIN {query}").collect()
    return str(row[0])


CALLS_MAX = 50
"""Calls of one query from Python to the JVM, each of about 0.1 ms; they were 300."""


def test_a_query_of_plain_files_is_planned_by_few_calls(
    lake_session: Any, lake: str, parts: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = f"SELECT * FROM lake.{lake}.parts"
    assert len(lake_session.sql(query).collect()) == 18  # whatever is looked up once
    put(parts, [{"id": 60 + i, "name": "d", "v": i} for i in range(3)])
    called: list[str] = []
    send = JavaClient.send_command

    def counted(client: Any, command: str, *rest: Any) -> Any:
        if not command.startswith("m\nd\n"):  # Python lets go of an object, in a thread of its own
            called.append(command)
        return send(client, command, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(JavaClient, "send_command", counted)
        found = lake_session.sql(query)._jdf.queryExecution().executedPlan()
    assert "ParquetScan" in str(found.toString())
    assert 0 < len(called) <= CALLS_MAX, called
    assert len(lake_session.sql(query).collect()) == 21, "of the new snapshot"


# ---- batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", ["false", "true"])
def test_values_of_a_join_choose_partitions_and_files(lake_session: Any, lake: str, parts: Table, native: str) -> None:
    lake_session.range(40, 44).selectExpr("id", "char(id + 56) AS name").createOrReplaceTempView("chosen")
    lake_session.conf.set("spark.sql.forebay.read.native", native)
    try:
        for key, ids in (("name", [10, 11, 12, 40, 41, 42]), ("id", [42])):
            joined = f"lake.{lake}.parts p JOIN chosen c ON p.{key} = c.{key} WHERE c.id % 4 = 2"
            frame = lake_session.sql(f"SELECT /*+ BROADCAST(c) */ p.id FROM {joined}")
            assert sorted(row.id for row in frame.collect()) == ids
            plan = str(frame._jdf.queryExecution().executedPlan().toString())
            assert "SubqueryBroadcast" in plan
            if native == "true":
                assert "ParquetScan" in plan
            else:
                said = {"name": "partitions where name IN ('b')", "id": "id IN (42)"}
                assert said[key] in plan.partition("filtered by a join: ")[2]
    finally:
        lake_session.conf.unset("spark.sql.forebay.read.native")


def test_metadata_columns_are_those_of_paimon(lake_sql: Sql, parts: Table, keyed: Table) -> None:
    hidden = "__paimon_partition.name, __paimon_bucket, __paimon_file_path"
    found = sorted(lake_sql(f"SELECT DISTINCT name, {hidden} FROM {{db}}.parts WHERE v > 0"))
    assert [row[:3] for row in found] == [(name, name, 0) for name in "aabbcc"]
    files = {file.file_name for split in parts.scan().plan() for file in split.files}
    assert {row[3].rpartition("/")[2] for row in found} == files
    assert lake_sql("SELECT count(*) FROM {db}.parts WHERE __paimon_partition.name = 'b'") == [(6,)]
    assert lake_sql("SELECT * FROM {db}.keyed") == [(2, "b", None)]
    assert lake_sql("SELECT __paimon_bucket, id FROM {db}.keyed") == [(0, 2)]
    of_file = "__paimon_row_index, id % 10, count(*) OVER (PARTITION BY __paimon_file_path)"
    found = sorted(lake_sql(f"SELECT {of_file} FROM {{db}}.parts WHERE id % 10 > 0"))
    assert found == [(1, 1, 2)] * 6 + [(2, 2, 2)] * 6
    assert sorted(lake_sql("SELECT __paimon_row_index AS i FROM {db}.parts WHERE id < 2")) == [(0,), (1,)]
    with pytest.raises(Exception, match="__paimon_row_index"):
        lake_sql("SELECT __paimon_row_index FROM {db}.keyed")


def test_a_column_of_the_name_of_a_metadata_column_is_the_tables(lake_sql: Sql) -> None:
    lake_sql("CREATE TABLE {db}.own (id INT, __paimon_bucket STRING)")
    lake_sql("INSERT INTO {db}.own VALUES (1, 'mine')")
    assert lake_sql("SELECT __paimon_bucket, __paimon_file_path IS NULL FROM {db}.own") == [("mine", False)]


def test_columns_filters_and_limits_are_pushed_down(lake_session: Any, lake: str, lake_sql: Sql, parts: Table) -> None:
    query = "SELECT v FROM {db}.parts WHERE name = 'b' AND id > 40 ORDER BY id"
    assert lake_sql(query) == [(1,), (2,)]
    lake_session.conf.set("spark.sql.forebay.read.native", "false")
    try:
        text = plan_of(lake_session, query.replace("{db}", f"lake.{lake}"))
        assert "partitions where name = 'b'" in text
        assert "rows where (id IS NOT NULL AND id > 40)" in text
        assert "Filter (isnotnull(name" not in text, "filters on partitions are done with"
        assert lake_sql(query) == [(1,), (2,)]
        assert "limit 2" in plan_of(lake_session, f"SELECT id FROM lake.{lake}.parts LIMIT 2")
        assert len(lake_sql("SELECT id FROM {db}.parts LIMIT 2")) == 2
    finally:
        lake_session.conf.unset("spark.sql.forebay.read.native")
    assert lake_sql("SELECT count(*), sum(v) FROM {db}.parts") == [(18, 18)]
    assert lake_sql("SELECT count(*) FROM {db}.parts") == [(18,)]


def test_two_uses_of_a_table_in_one_query_have_filters_of_their_own(lake_sql: Sql, parts: Table) -> None:
    assert lake_sql(
        "SELECT a.id, b.id FROM {db}.parts a JOIN {db}.parts b ON a.v = b.v "
        "WHERE a.name = 'a' AND b.name = 'b' AND a.id = 1 AND b.id < 20"
    ) == [(1, 11)]


def test_plain_files_are_read_by_spark_and_merged_ones_by_tasks(
    lake_session: Any, lake: str, lake_sql: Sql, parts: Table, keyed: Table
) -> None:
    assert "parquet" in plan_of(lake_session, f"SELECT v FROM lake.{lake}.parts").lower()
    merged = plan_of(lake_session, f"SELECT name FROM lake.{lake}.keyed")
    assert "parquet" not in merged.lower()
    assert lake_sql("SELECT * FROM {db}.keyed") == [(2, "b", None)]
    keyed.compact(full=True)
    assert "parquet" in plan_of(lake_session, f"SELECT name FROM lake.{lake}.keyed").lower()
    assert lake_sql("SELECT * FROM {db}.keyed") == [(2, "b", None)]


def test_parts_of_nested_rows_are_read_alone(lake_catalog: Catalog, lake: str, lake_sql: Sql) -> None:
    inner = types.row(types.field("city", types.string()), types.field("zip", types.int_()))
    table = lake_catalog.create_table(
        f"{lake}.nested",
        {"id": types.bigint().not_null(), "home": inner, "l": types.array(inner)},
        primary_key=["id"],
        options={"bucket": "1"},
    )
    home = {"city": "Rome", "zip": 7}
    put(table, [{"id": 1, "home": home, "l": [home, home]}])
    put(table, [{"id": 2, "home": None, "l": None}])
    found = lake_sql("SELECT id, home.city, l.zip FROM {db}.nested ORDER BY id")
    assert found == [(1, "Rome", [7, 7]), (2, None, None)]
    assert lake_sql("SELECT id FROM {db}.nested WHERE home.zip = 7") == [(1,)]


def test_nested_and_widened_columns_are_read_by_spark_as_by_python(
    lake_session: Any, lake_catalog: Catalog, lake: str
) -> None:
    inner = types.row(types.field("city", types.string()), types.field("zip", types.int_()))
    columns = {
        "id": types.int_(), "tiny": types.tinyint(), "f": types.float_(), "home": inner, "l": types.array(inner),
        "m": types.map_(types.string(), types.array(types.bigint())), "deep": types.row(types.field("home", inner)),
    }  # fmt: skip
    table = lake_catalog.create_table(f"{lake}.alike", columns)
    home, empty = {"city": "Rome", "zip": 7}, {"city": None, "zip": None}
    old = {"id": 1, "tiny": -5, "f": 0.1, "home": home, "l": [home, None, empty], "m": {"a": [1, None]}, "deep": None}
    put(table, [old, dict.fromkeys(columns), {**old, "home": empty, "l": [], "m": {}, "deep": {"home": None}}])
    for name, wider in (("id", types.bigint()), ("tiny", types.int_()), ("f", types.double())):
        table = altered(table, [UpdateColumnType((name,), wider)])
    put(table, [{**old, "id": 1 << 40, "tiny": 70_000, "f": 1e300, "deep": {"home": home}}])
    for query in (
        "SELECT * FROM lake.{db}.alike",
        "SELECT id, home.city, l.zip, m['a'][0], deep.home.zip FROM lake.{db}.alike",
        "SELECT tiny FROM lake.{db}.alike WHERE id = 1099511627776 OR home.zip = 7",
        "SELECT home FROM lake.{db}.alike WHERE f > 1e200 OR f IS NULL OR tiny < -4",
    ):
        query = query.format(db=lake)
        by_spark = sorted(map(repr, lake_session.sql(query).collect()))
        assert "parquet" in plan_of(lake_session, query).lower()
        lake_session.conf.set("spark.sql.forebay.read.native", "false")
        try:
            assert "parquet" not in plan_of(lake_session, query).lower()
            assert by_spark == sorted(map(repr, lake_session.sql(query).collect()))
        finally:
            lake_session.conf.unset("spark.sql.forebay.read.native")
    assert any("city='Rome', zip=7" in row for row in by_spark)


@pytest.mark.slow
def test_filters_on_every_type_give_what_spark_s_own_evaluation_gives(
    lake_catalog: Catalog, lake: str, lake_session: Any
) -> None:
    columns = {
        "id": types.bigint().not_null(),
        "tiny": types.tinyint(),
        "real": types.float_(),
        "amount": types.decimal(9, 2),
        "day": types.date(),
        "ms": types.timestamp(3),
        "instant": types.timestamp_ltz(6),
        "fixed": types.char(3),
        "raw": types.bytes_(),
        "flag": types.boolean(),
    }
    table = lake_catalog.create_table(f"{lake}.types", columns, primary_key=["id"], options={"bucket": "1"})
    rows: list[dict[str, Any]] = [{"id": 0}]
    for i in range(1, 9):
        moment = dt.datetime(2024, 1, i, 1, 2, 3, 123_000)
        rows.append(
            {
                "id": i, "tiny": i, "real": i / 3, "amount": Decimal(i).scaleb(-1), "day": moment.date(), "ms": moment,
                "instant": moment.replace(tzinfo=dt.UTC), "fixed": f"a{i} ", "raw": bytes([i]), "flag": i % 2 == 0,
            }
        )  # fmt: skip
    for row in rows:
        put(table, [row])
    frame = lake_session.table(f"lake.{lake}.types")
    whole = lake_session.createDataFrame(frame.collect(), frame.schema)
    for condition in (
        "tiny > 300", "tiny = 3", "real > 1", "real = 1", "amount = 0.35", "amount >= 0.3", "day < DATE '2024-01-03'",
        "ms = TIMESTAMP_NTZ '2024-01-03 01:02:03.123456'", "ms >= TIMESTAMP_NTZ '2024-01-03 01:02:03.123'",
        "instant > TIMESTAMP '2024-01-05 01:02:03 UTC'", "fixed = 'a3 '", "fixed LIKE 'a%'", "raw > X'05'", "flag",
        "NOT flag", "tiny IS NULL", "tiny IN (1, 5, 1000)", "tiny <=> NULL", "tiny + 1 = 4", "id > 3 OR flag",
        "id = 3 AND real < 1",
    ):  # fmt: skip
        found = sorted(row.id for row in frame.where(condition).select("id").collect())
        assert found == sorted(row.id for row in whole.where(condition).select("id").collect()), condition


def test_options_and_the_session_choose_what_is_read(lake_session: Any, lake: str, lake_sql: Sql, keyed: Table) -> None:
    name = f"lake.{lake}.keyed"
    assert [tuple(row) for row in lake_session.read.option("scan.snapshot-id", 1).table(name).collect()] == [
        (1, "a", None),
        (2, "b", None),
    ]
    assert lake_sql("SELECT id, name FROM {db}.keyed WITH (`incremental-between` = '1,2')") == [(1, "c")]
    for prefix in ("spark.paimon.", "spark.sql.forebay.paimon."):
        lake_session.conf.set(prefix + "scan.snapshot-id", "2")
        try:
            assert lake_sql("SELECT name FROM {db}.keyed ORDER BY id") == [("c",), ("b",)]
        finally:
            lake_session.conf.unset(prefix + "scan.snapshot-id")
    assert lake_sql("SELECT rowkind, id FROM {db}.`keyed$audit_log` WITH (`incremental-between` = '1,3')") == [
        ("+I", 1),
        ("-D", 1),
    ]
    with pytest.raises(Exception, match=r"did you mean 'scan\.snapshot-id'"):
        lake_session.read.option("scan.snapshotid", 1).table(name).collect()
    with pytest.raises(Exception, match="is for streams"):
        lake_session.read.option("maxFilesPerTrigger", 1).table(name).collect()


def test_time_travel_shows_the_columns_of_then(lake_sql: Sql, parts: Table) -> None:
    later = altered(parts, [AddColumn(("w",), types.int_())])
    put(later, [{"id": 99, "name": "z", "v": 1, "w": 1}])
    assert lake_sql("SELECT * FROM {db}.parts VERSION AS OF 1 ORDER BY id LIMIT 1") == [(0, "a", 0)]
    assert lake_sql("SELECT * FROM {db}.parts WHERE id IN (0, 99) ORDER BY id") == [(0, "a", 0, None), (99, "z", 1, 1)]


@pytest.mark.skipif(SPARK < (4, 3), reason="CHANGES comes with Spark 4.3")
def test_changes_are_those_of_the_snapshots_in_a_range(lake_session: Any, lake_sql: Sql, lake: str) -> None:
    seen = "id, name, _change_type, _commit_version"
    lake_sql("CREATE TABLE {db}.a (id INT, name STRING)")
    lake_sql("INSERT INTO {db}.a VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    lake_sql("UPDATE {db}.a SET name = 'B' WHERE id = 2")
    lake_sql(f"CALL lake.sys.create_tag(table => '{lake}.a', tag => 'then')")
    lake_sql(f"CALL lake.sys.compact(table => '{lake}.a')")
    lake_sql("DELETE FROM {db}.a WHERE id = 1")
    every = [(1, "a", "insert", 1), (2, "b", "insert", 1), (3, "c", "insert", 1), (2, "B", "insert", 2),
             (2, "b", "delete", 2), (1, "a", "delete", 4)]  # fmt: skip
    assert sorted(lake_sql(f"SELECT {seen} FROM {{db}}.a CHANGES FROM VERSION 0"), key=every.index) == every
    assert lake_sql("SELECT id FROM {db}.a CHANGES FROM VERSION 'then' EXCLUSIVE TO VERSION 99") == [(1,)]
    ((time,),) = lake_sql("SELECT commit_time FROM {db}.`a$snapshots` WHERE snapshot_id = 2")
    after = (
        f"SELECT count(*), min(_commit_timestamp) > '{time}' FROM {{db}}.a CHANGES FROM TIMESTAMP '{time}' EXCLUSIVE"
    )
    assert lake_sql(after) == [(1, True)]


@pytest.mark.slow
@pytest.mark.skipif(SPARK < (4, 3), reason="CHANGES comes with Spark 4.3")
def test_changes_are_streamed_snapshot_by_snapshot(lake_session: Any, lake_sql: Sql, lake: str) -> None:
    lake_sql("CREATE TABLE {db}.a (id INT)")
    lake_sql("INSERT INTO {db}.a VALUES (1), (2)")
    lake_sql("UPDATE {db}.a SET id = 3 WHERE id = 2")
    lake_sql(f"CALL lake.sys.compact(table => '{lake}.a')")
    lake_sql("DELETE FROM {db}.a WHERE id = 1")
    reader = lake_session.readStream.option("startingVersion", 2).option("maxFilesPerTrigger", 1)
    found: list[tuple[Any, ...]] = []
    writer = reader.changes(f"lake.{lake}.a").select("id", "_change_type").writeStream
    query = writer.foreachBatch(lambda batch, _: found.extend(map(tuple, batch.collect())))
    query.trigger(availableNow=True).start().awaitTermination(PATIENCE)
    assert found == [(2, "delete"), (3, "insert"), (1, "delete")]


@pytest.mark.skipif(SPARK < (4, 3), reason="CHANGES comes with Spark 4.3")
def test_changes_of_a_key_table_and_those_that_nothing_tells(lake_session: Any, lake_sql: Sql, lake: str) -> None:
    properties = "TBLPROPERTIES ('bucket' = '1', 'changelog-producer' = 'lookup')"
    lake_sql(f"CREATE TABLE {{db}}.p (id INT NOT NULL, name STRING, PRIMARY KEY (id)) {properties}")
    lake_sql("INSERT INTO {db}.p VALUES (1, 'a'), (2, 'b')")
    lake_sql("INSERT INTO {db}.p VALUES (1, 'A'), (3, 'c')")
    lake_sql("DELETE FROM {db}.p WHERE id IN (2, 3)")
    changes = "SELECT id, name, _change_type FROM {db}.p CHANGES FROM VERSION "
    assert sorted(lake_sql(changes + "3 TO VERSION 4")) == [
        (1, "A", "update_postimage"), (1, "a", "update_preimage"), (3, "c", "insert")
    ]  # fmt: skip
    net = "WITH (deduplicationMode = 'netChanges', computeUpdates = 'true')"
    assert sorted(lake_sql(changes + f"1 {net}")) == [(1, "A", "insert")]
    assert sorted(lake_sql(changes + f"3 {net}")) == [
        (1, "A", "update_postimage"), (1, "a", "update_preimage"), (2, "b", "delete")
    ]  # fmt: skip
    lake_sql("INSERT OVERWRITE {db}.p VALUES (9, 'z')")
    lake_sql("CREATE TABLE {db}.n (id INT NOT NULL, PRIMARY KEY (id))")
    for statement, reason in (
        (changes + "1", "snapshot 7 of .* is an overwrite, and the table does not record the rows that it removed"),
        (changes + "1 WITH (`scan.mode` = 'latest')", "have no option 'scan.mode': the range says what is read"),
        (changes + "'x'", "'x' is no version .*: neither a snapshot's number nor a tag"),
        ("SELECT * FROM {db}.n CHANGES FROM VERSION 1", "n has no CHANGES: .*set 'changelog-producer' to 'lookup'"),
        ("SELECT * FROM {db}.`p$files` CHANGES FROM VERSION 1", "not for what stands beside them"),
    ):
        with pytest.raises(Exception, match=reason):
            lake_sql(statement)
    lake_sql(f"CALL lake.sys.expire_snapshots(table => '{lake}.p', retain_max => 1)")
    with pytest.raises(Exception, match="changes of this range may have expired: the earliest snapshot"):
        lake_sql(changes + "1")


@pytest.mark.slow
def test_the_format_reads_without_a_catalog(lake_session: Any, warehouse: Path, lake: str, parts: Table) -> None:
    reader = lake_session.read.format("forebay-paimon")
    frame = reader.option("columns", "id, v").option("filter", "name = 'c' AND v > 0").load(parts.context.paths.root)
    assert sorted(tuple(row) for row in frame.collect()) == [(21, 1), (22, 2), (51, 1), (52, 2)]
    assert frame.where("id > 50").count() == 2
    assert frame.count() == 4
    table = lake_session.read.format("forebay-paimon").option("catalog.warehouse", str(warehouse))
    assert table.option("table", f"{lake}.parts").load().count() == 18


# ---- streams --------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Batches]:
    """Run a stream over all that is there, and return its micro-batches; a second run goes on behind the first."""

    def run_once(frame: Any, checkpoint: str = "checkpoint") -> Batches:
        found: dict[int, list[tuple[Any, ...]]] = {}

        def keep(batch: Any, number: int) -> None:
            found[number] = [tuple(row) for row in batch.collect()]

        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(PATIENCE)
        assert not query.isActive
        return [found[number] for number in sorted(found)]

    return run_once


@pytest.mark.slow
def test_a_table_of_the_catalog_is_streamed_in_batches_and_continues_after_a_restart(
    lake_session: Any, lake: str, run: Callable[..., Batches], parts: Table
) -> None:
    stream = lake_session.readStream.option("maxFilesPerTrigger", 4).table(f"lake.{lake}.parts")
    batches = run(stream)
    assert [len(batch) for batch in batches] == [12, 6]
    assert len({row[0] for batch in batches for row in batch}) == 18
    later = altered(parts, [AddColumn(("w",), types.int_())])
    put(later, [{"id": 99, "name": "z", "v": 1, "w": 5}])
    assert run(lake_session.readStream.table(f"lake.{lake}.parts")) == [[(99, "z", 1, 5)]]


@needs_streams
@pytest.mark.slow
def test_changes_are_streamed_with_their_kinds(
    lake_session: Any, lake: str, run: Callable[..., Batches], keyed: Table
) -> None:
    reader = lake_session.readStream.option("scan.snapshot-id", 1)
    audit = run(reader.table(f"lake.{lake}.`keyed$audit_log`").select("rowkind", "id"), "audit")
    assert audit == [[("+I", 1), ("+I", 2), ("+I", 1), ("-D", 1)]]
    source = lake_session.readStream.format("forebay-paimon").option("scan.snapshot-id", 1)
    changes = source.option("read.changelog", "true").load(keyed.context.paths.root).select("_change_type", "id")
    assert run(changes, "changes")[0][-1] == ("delete", 1)
    changelog = run(reader.table(f"lake.{lake}.`keyed$changelog`").select("_change_type", "id"), "changelog")
    assert changelog == [[("insert", 1), ("insert", 2), ("insert", 1), ("delete", 1)]]
    rows = run(reader.table(f"lake.{lake}.keyed").where("id = 1").select("name"), "rows")
    assert rows == [[("a",), ("c",)]]
    with pytest.raises(Exception, match=r"keyed\$changelog or \$audit_log"):
        run(lake_session.readStream.option("read.changelog", "true").table(f"lake.{lake}.keyed"), "wrong")


@needs_streams
@pytest.mark.slow
def test_a_stream_that_cannot_be_says_why(
    lake_session: Any, lake: str, lake_catalog: Catalog, run: Callable[..., Batches]
) -> None:
    options = {"bucket": "1", "merge-engine": "partial-update"}
    merged = lake_catalog.create_table(f"{lake}.merged", COLUMNS, primary_key=["id"], options=options)
    with pytest.raises(Exception, match="records its input"):
        run(lake_session.readStream.table(f"lake.{lake}.merged"), "by the catalog")
    # What only the format's process finds out is told, too.
    with pytest.raises(Exception, match="records its input"):
        run(lake_session.readStream.format("forebay-paimon").load(merged.context.paths.root), "by the format")


@pytest.mark.slow
def test_a_query_that_runs_reads_what_is_committed_meanwhile_and_records_its_consumer(
    lake_session: Any, lake: str, lake_sql: Sql, tmp_path: Path, parts: Table
) -> None:
    stream = lake_session.readStream.option("scan.mode", "latest").option("consumer-id", "me")
    name = f"latest_{lake}"
    writer = stream.table(f"lake.{lake}.parts").writeStream.format("memory").queryName(name)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        for number in (1000, 1001):
            put(parts, [{"id": number, "name": "n", "v": 1}])
            query.processAllAvailable()
        parts.compact(full=True)
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(row.id for row in lake_session.table(name).collect()) == [1000, 1001]
    assert lake_sql("SELECT consumer_id, next_snapshot_id FROM {db}.`parts$consumers`") == [("me", 10)]


@pytest.mark.slow
def test_a_query_that_fails_in_a_batch_reads_the_same_batch_again(
    lake_session: Any, lake: str, run: Callable[..., Batches], tmp_path: Path, parts: Table
) -> None:
    stream = lake_session.readStream.option("maxFilesPerTrigger", 4).table(f"lake.{lake}.parts")

    def fail(batch: Any, number: int) -> None:
        raise RuntimeError("the sink is away")

    query = stream.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(Exception, match="the sink is away"):
        query.awaitTermination(PATIENCE)
    put(parts, [{"id": 99, "name": "z", "v": 1}])
    parts.compact(full=True)
    first, second, third = run(stream)
    assert [len(first), len(second)] == [12, 6], "as the table was when the query was first started"
    assert len({row[0] for row in first + second}) == 18
    assert third == [(99, "z", 1)]


@pytest.mark.slow
def test_a_stream_whose_next_snapshot_has_expired_says_so(
    lake_session: Any, lake: str, run: Callable[..., Batches], parts: Table
) -> None:
    stream = lake_session.readStream.table(f"lake.{lake}.parts")
    run(stream)
    for number in range(3):
        put(parts, [{"id": number, "name": "n", "v": 1}])
    parts.expire_snapshots(retain_max=1, retain_min=1)
    with pytest.raises(Exception, match=r"snapshot 7 .* has expired .*consumer-id"):
        run(stream)
