"""Databases, tables and partitions through Spark SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.base.errors import InvalidRequest
from forebay.client.connection import Connection
from forebay.metadata import types
from tests.every_run import every_run
from tests.patience import PATIENCE
from tests.spark.releases import SPARK, needs
from tests.spark.tables import make_table

pytestmark = pytest.mark.spark
LIKE = needs(4, 2, "CREATE TABLE LIKE for tables of catalogs")

Sql = Callable[[str], list[tuple[Any, ...]]]

PK_TABLE = """CREATE TABLE {db}.t (id BIGINT NOT NULL COMMENT 'the key', name STRING, amount DECIMAL(10, 2))
              COMMENT 'what it is' TBLPROPERTIES ('primary.key'='id', 'bucket.num'='2', 'team'='blue')"""


def described(rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    """The rows of a DESCRIBE that have a name."""
    return {row[0]: row[1] for row in rows if row[0]}


def test_databases_are_made_shown_described_changed_and_dropped(
    sql: Sql, connection: Connection, database: str
) -> None:
    name = f"forebay.{database}_x"
    sql(f"CREATE DATABASE {name} COMMENT 'first' WITH DBPROPERTIES (team = 'blue')")
    sql(f"CREATE DATABASE IF NOT EXISTS {name}")
    assert (f"{database}_x",) in sql("SHOW DATABASES IN forebay")
    found = described(sql(f"DESCRIBE DATABASE EXTENDED {name}"))
    assert found["Comment"] == "first"
    assert "team" in found["Properties"]
    sql(f"ALTER DATABASE {name} SET DBPROPERTIES (team = 'red')")
    assert connection.admin.database_info(f"{database}_x").custom_properties == {"team": "red"}
    sql(f"COMMENT ON DATABASE {name} IS 'second'")
    assert connection.admin.database_info(f"{database}_x").comment == "second"
    sql(f"CREATE TABLE {name}.t (id INT)")
    sql(f"DROP DATABASE {name} CASCADE")
    assert not connection.database_exists(f"{database}_x")
    sql(f"DROP DATABASE IF EXISTS {name}")


def test_a_table_is_what_its_clauses_and_properties_say(sql: Sql, connection: Connection, database: str) -> None:
    sql(PK_TABLE)
    info = connection.admin.table_info(f"{database}.t")
    assert info.schema.primary_key == ("id",)
    assert info.bucket_count == 2
    assert info.schema.column("id").comment == "the key"
    assert info.schema.column("amount").data_type == types.decimal(10, 2)
    assert info.descriptor.comment == "what it is"
    assert info.descriptor.custom_properties == {"team": "blue"}
    assert sql("SHOW TABLES IN {db}") == [(database, "t", False)]
    found = sql("DESCRIBE {db}.t")
    assert found == [("id", "bigint", "the key"), ("name", "string", None), ("amount", "decimal(10,2)", None)]
    extended = described(sql("DESCRIBE EXTENDED {db}.t"))
    assert extended["Comment"] == "what it is"
    assert extended["Provider"] == "forebay"
    assert dict(sql("SHOW TBLPROPERTIES {db}.t"))["primary.key"] == "id"


@needs(4, 1, "clause PRIMARY KEY")
def test_primary_key_and_clustered_by_clauses_are_understood(sql: Sql, connection: Connection, database: str) -> None:
    sql("CREATE TABLE {db}.t (id INT NOT NULL, v INT, PRIMARY KEY (id) NOT ENFORCED) CLUSTERED BY (id) INTO 3 BUCKETS")
    info = connection.admin.table_info(f"{database}.t")
    assert (info.schema.primary_key, info.descriptor.bucket_keys, info.bucket_count) == (("id",), ("id",), 3)


def test_show_create_table_makes_the_same_table_again(sql: Sql, connection: Connection, database: str) -> None:
    sql(
        "CREATE TABLE {db}.t (id BIGINT NOT NULL, dt STRING NOT NULL, a ARRAY<INT> COMMENT 'list') PARTITIONED BY (dt) "
        "COMMENT 'it' TBLPROPERTIES ('primary.key'='id,dt', 'bucket.num'='2', 'table.log.format'='ARROW')"
    )
    [(statement,)] = sql("SHOW CREATE TABLE {db}.t")
    said = {"'primary.key'", "'bucket.num'", "'table.log.format'"}
    assert set(re.findall(r"^  ('[^']+') = ", statement, re.MULTILINE)) == said
    first = connection.admin.table_info(f"{database}.t")
    sql("DROP TABLE {db}.t")
    sql(statement)
    assert connection.admin.table_info(f"{database}.t").descriptor == first.descriptor


@LIKE
def test_lengths_of_texts_are_kept_and_checked(sql: Sql, spark: Any, connection: Connection, database: str) -> None:
    sql(
        "CREATE TABLE {db}.t (id BIGINT NOT NULL, c CHAR(4), v VARCHAR(3) NOT NULL, l ARRAY<VARCHAR(2)>) "
        "TBLPROPERTIES ('primary.key'='id')"
    )
    sql("INSERT INTO {db}.t VALUES (1, 'ab', 'abc  ', array('x')), (2, 'äöüä', 'y', NULL)")
    sql("INSERT INTO {db}.t (id, v) VALUES (1, 'z')")
    for values in ("3, 'abcde', 'x', NULL", "3, 'a', 'abcd', NULL"):
        with pytest.raises(Exception, match="EXCEED_LIMIT_LENGTH"):
            sql(f"INSERT INTO {{db}}.t VALUES ({values})")
    with pytest.raises(Exception, match=r"column 'l.element', row 0: 'abc' has 3 characters") as raised:
        sql("INSERT INTO {db}.t VALUES (3, 'a', 'x', array('abc'))")
    assert "Traceback" not in str(raised.value)
    table = connection.table(f"{database}.t")
    with pytest.raises(InvalidRequest, match=r"'abcd' has 4 characters, which do not fit VARCHAR\(3\)"):
        table.upsert([{"id": 1, "c": "a", "v": "abcd", "l": None}])
    sql("UPDATE {db}.t SET v = 'u' WHERE c = 'ab'")
    with pytest.raises(Exception, match="EXCEED_LIMIT_LENGTH"):
        sql("UPDATE {db}.t SET v = 'long' WHERE id = 1")
    assert sql("SELECT id, c, v, length(c) FROM {db}.t ORDER BY id") == [(1, "ab", "u", 2), (2, "äöüä", "y", 4)]
    sql("CREATE TABLE {db}.same LIKE {db}.t")
    sql("CREATE TABLE {db}.copy AS SELECT * FROM {db}.t")
    for name in ("same", "copy"):
        assert "v VARCHAR(3)" in sql(f"SHOW CREATE TABLE {{db}}.{name}")[0][0]
    if SPARK >= (4, 2):
        found: list[Any] = []
        stream = spark.readStream.table(f"forebay.{database}.copy").writeStream
        query = stream.foreachBatch(lambda batch, _: found.extend(batch.collect())).trigger(availableNow=True).start()
        query.awaitTermination(PATIENCE)
        assert sorted(row["v"] for row in found) == ["u", "y"]


@LIKE
def test_a_table_like_another_is_the_same_but_for_what_the_statement_says(
    sql: Sql, connection: Connection, database: str
) -> None:
    sql(
        "CREATE TABLE {db}.t (id BIGINT NOT NULL COMMENT 'key', dt STRING NOT NULL) PARTITIONED BY (dt) COMMENT 'it' "
        "TBLPROPERTIES ('primary.key'='id,dt', 'bucket.num'='2', 'team'='blue')"
    )
    sql("CREATE TABLE {db}.same LIKE {db}.t")
    sql("CREATE TABLE {db}.other LIKE {db}.t TBLPROPERTIES ('bucket.num'='5')")
    first = connection.admin.table_info(f"{database}.t")
    assert connection.admin.table_info(f"{database}.same").descriptor == first.descriptor
    other = connection.admin.table_info(f"{database}.other")
    assert (other.bucket_count, other.schema.primary_key) == (5, ("id", "dt"))


def test_tables_made_by_other_clients_are_visible_at_once(sql: Sql, connection: Connection, database: str) -> None:
    make_table(connection, f"{database}.theirs", ["id"])
    assert sql("SHOW TABLES IN {db}") == [(database, "theirs", False)]
    assert sql("SELECT count(*) FROM {db}.theirs") == [(0,)]
    connection.drop_table(f"{database}.theirs")
    assert sql("SHOW TABLES IN {db}") == []


def test_properties_are_set_and_unset_and_columns_added(sql: Sql, connection: Connection, database: str) -> None:
    sql(PK_TABLE)
    sql("INSERT INTO {db}.t VALUES (1, 'a', 1.5)")
    sql("ALTER TABLE {db}.t SET TBLPROPERTIES ('team'='red', 'other'='1')")
    sql("ALTER TABLE {db}.t UNSET TBLPROPERTIES ('other')")
    assert connection.admin.table_info(f"{database}.t").descriptor.custom_properties == {"team": "red"}
    sql("ALTER TABLE {db}.t ADD COLUMNS (extra STRING COMMENT 'more', n INT)")
    assert sql("DESCRIBE {db}.t")[3:] == [("extra", "string", "more"), ("n", "int", None)]
    sql("INSERT INTO {db}.t VALUES (2, 'b', 2.5, 'x', 7)")
    assert sorted((row[0], *row[3:]) for row in sql("SELECT * FROM {db}.t")) == [(1, None, None), (2, "x", 7)]


def test_partitions_are_shown_added_and_dropped(sql: Sql, connection: Connection, database: str) -> None:
    sql("CREATE TABLE {db}.p (id INT, dt DATE, n INT) PARTITIONED BY (dt, n) TBLPROPERTIES ('bucket.num'='2')")
    sql("ALTER TABLE {db}.p ADD PARTITION (dt='2024-01-01', n=1) PARTITION (dt='2024-01-01', n=2)")
    sql("ALTER TABLE {db}.p ADD IF NOT EXISTS PARTITION (dt='2024-01-01', n=1)")
    sql("ALTER TABLE {db}.p ADD PARTITION (dt='2024-01-02', n=1)")
    first = [("dt=2024-01-01/n=1",), ("dt=2024-01-01/n=2",)]
    assert sql("SHOW PARTITIONS {db}.p PARTITION (dt='2024-01-01')") == first
    sql("ALTER TABLE {db}.p DROP PARTITION (dt='2024-01-01', n=2)")
    sql("ALTER TABLE {db}.p DROP IF EXISTS PARTITION (dt='2030-01-01', n=2)")
    assert sql("SHOW PARTITIONS {db}.p") == [("dt=2024-01-01/n=1",), ("dt=2024-01-02/n=1",)]
    assert [p.name for p in connection.table(f"{database}.p").partitions()] == ["2024-01-01$1", "2024-01-02$1"]


def test_all_or_none_of_several_partitions_are_added(sql: Sql, connection: Connection, database: str) -> None:
    sql("CREATE TABLE {db}.p (id INT, dt STRING) PARTITIONED BY (dt)")
    with pytest.raises(Exception, match=r"__internal|not allowed"):
        sql("ALTER TABLE {db}.p ADD PARTITION (dt='a') PARTITION (dt='b') PARTITION (dt='__internal')")
    assert connection.table(f"{database}.p").partitions() == []


PARTITION_VALUES = {
    "STRING": ("'a'", "'b'"),
    "BOOLEAN": ("true", "false"),
    "TINYINT": ("1Y", "2Y"),
    "SMALLINT": ("-1S", "2S"),
    "INT": ("1", "-2"),
    "BIGINT": ("10000000000", "2"),
    "FLOAT": ("0.5F", "1.5F"),
    "DOUBLE": ("0.25D", "-1.5D"),
    "BINARY": ("X'0061'", "X'0a'"),  # Spark reads values of PARTITION (...) as text, so bytes must be UTF-8 there
    "DATE": ("DATE'2024-01-01'", "DATE'2024-12-31'"),
    "TIMESTAMP": ("TIMESTAMP'2024-01-01 10:00:00.5'", "TIMESTAMP'2024-01-01 10:00:01'"),
    "TIMESTAMP_NTZ": ("TIMESTAMP_NTZ'2024-01-01 10:00:00.123456'", "TIMESTAMP_NTZ'2024-01-01 10:00:01'"),
}


@pytest.mark.parametrize(
    "t", every_run(PARTITION_VALUES, {"STRING", "BOOLEAN", "INT", "DOUBLE", "BINARY", "DATE", "TIMESTAMP"}.__contains__)
)
@pytest.mark.one_in(2)
def test_partitions_of_every_key_type_are_written_shown_pruned_and_dropped(sql: Sql, spark: Any, t: str) -> None:
    sql(f"CREATE TABLE {{db}}.p (id INT, k {t} NOT NULL) PARTITIONED BY (k) TBLPROPERTIES ('bucket.num'='1')")
    one, two = PARTITION_VALUES[t]
    sql(f"INSERT INTO {{db}}.p VALUES (1, {one}), (2, {two})")
    assert sql(f"SELECT id FROM {{db}}.p WHERE k = {two}") == [(2,)]
    assert sql("SELECT count(*), count(DISTINCT k) FROM {db}.p") == [(2, 2)]
    assert len(sql("SHOW PARTITIONS {db}.p")) == 2
    assert sorted(sql(f"SELECT k = {one}, k = {two} FROM {{db}}.`p$partitions`")) == [(False, True), (True, False)]
    sql(f"ALTER TABLE {{db}}.p DROP PARTITION (k = {one})")
    assert sql("SELECT id FROM {db}.p") == [(2,)]


def test_filters_on_partition_keys_leave_no_filter_behind(sql: Sql, spark: Any, database: str) -> None:
    sql("CREATE TABLE {db}.p (id INT, k INT NOT NULL) PARTITIONED BY (k)")
    sql("INSERT INTO {db}.p VALUES (1, 1), (2, 2), (3, 3)")
    frame = spark.sql(f"SELECT id FROM forebay.{database}.p WHERE k IN (1, 3) AND k < 3")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan
    assert "partitions where k IN (1, 3), partitions where k < 3" in plan
    assert frame.collect()[0].id == 1


# ---- what is refused ------------------------------------------------------------------------------------------------


def refused(sql: Sql, statement: str) -> str:
    """The message of the error that `statement` ends with."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        sql(statement)
    message = str(caught.value)
    assert "\tat org.apache" not in message, message  # no stack of the JVM
    return message


@pytest.fixture(scope="module")
def unchanging(spark: Any, connection: Connection) -> Iterator[Sql]:
    """Runs a statement that is refused: all of them share one database with tables t, l and p."""
    connection.create_database("unchanging")

    def run(statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(statement.replace("{db}", "forebay.unchanging")).collect()]

    for statement in (
        PK_TABLE,
        "CREATE TABLE {db}.l (id BIGINT)",
        "CREATE TABLE {db}.p (id INT, dt STRING) PARTITIONED BY (dt)",
        "ALTER TABLE {db}.p ADD PARTITION (dt='a')",
    ):
        run(statement)
    tables = connection.list_tables("unchanging")
    yield run
    assert connection.list_tables("unchanging") == tables
    connection.drop_database("unchanging", cascade=True)


@pytest.mark.parametrize(
    ("statement", "parts"),
    [
        ("SELECT * FROM {db}.nope", ["TABLE_OR_VIEW_NOT_FOUND", "nope"]),
        ("SELECT * FROM forebay.nowhere.t", ["TABLE_OR_VIEW_NOT_FOUND", "nowhere"]),
        ("SELECT * FROM {db}.`t$nope`", ["t$nope", "$changelog, $binlog, $history, $lake, $partitions and $buckets"]),
        ("SELECT * FROM {db}.`t$partitions`", ["is not partitioned"]),
        ("SELECT nope FROM {db}.t", ["UNRESOLVED_COLUMN", "nope"]),
        ("SELECT * FROM {db}.t VERSION AS OF 1", ["has no commit 1: its history has none"]),
        (
            "SELECT * FROM {db}.t TIMESTAMP AS OF '2999-01-01'",
            ["cannot be read as of 2999-01-01 00:00:00+00:00", " now"],
        ),
        ("SELECT * FROM {db}.t WITH ('scan.nope'='1')", ["no read option 'scan.nope'"]),
        ("INSERT INTO {db}.t WITH (nope='1') VALUES (1, 'a', 1)", ["no write option 'nope'"]),
        ("CREATE TABLE {db}.t (id INT)", ["TABLE_OR_VIEW_ALREADY_EXISTS"]),
        ("CREATE TABLE forebay.nowhere.t (id INT)", ["SCHEMA_NOT_FOUND", "nowhere"]),
        ("CREATE TABLE {db}.x (id INTERVAL DAY)", ["column 'id' has type interval day"]),
        ("CREATE TABLE {db}.x (id INT) TBLPROPERTIES ('table.nope'='1')", ["table.nope"]),
        ("CREATE TABLE {db}.x (id INT) TBLPROPERTIES ('table.log.ttl'='soon')", ["table.log.ttl"]),
        ("CREATE TABLE {db}.x (id INT) TBLPROPERTIES ('primary_key'='id')", ["did you mean 'primary.key'"]),
        (
            "CREATE TABLE {db}.x (id INT) TBLPROPERTIES ('primary.key'='no')",
            ["primary key column 'no' is not a column"],
        ),
        ("CREATE TABLE {db}.x (id INT) TBLPROPERTIES ('bucket.num'='0')", ["'bucket.num': '0' is not a positive"]),
        ("CREATE TABLE {db}.x (id INT) USING parquet", ["cannot be USING parquet"]),
        ("CREATE TABLE {db}.x (id INT) LOCATION '/x'", ["'location'"]),
        ("CREATE TABLE {db}.x (id INT) STORED AS ORC", ["leave STORED AS"]),
        ("CREATE TABLE {db}.nope.x (id INT)", ["SCHEMA_NOT_FOUND", "nope"]),
        ("CREATE TABLE {db}.nope.x AS SELECT 1 AS id", ["SCHEMA_NOT_FOUND", "nope"]),
        ("CREATE OR REPLACE TABLE {db}.nope.x AS SELECT 1 AS id", ["SCHEMA_NOT_FOUND", "nope"]),
        pytest.param("CREATE TABLE {db}.x LIKE {db}.nope", ["TABLE_OR_VIEW_NOT_FOUND", "nope"], marks=LIKE),
        pytest.param("CREATE TABLE {db}.t LIKE {db}.l", ["TABLE_OR_VIEW_ALREADY_EXISTS"], marks=LIKE),
        ("REPLACE TABLE {db}.nope (id INT)", ["TABLE_OR_VIEW_NOT_FOUND", "nope"]),
        ("CREATE VIEW {db}.v AS SELECT 1", ["does not support views"]),
        ("CREATE TABLE {db}.x (id INT, ts TIMESTAMP) PARTITIONED BY (days(ts))", ["PARTITIONED BY days(ts)"]),
        ("CREATE TABLE {db}.x (id INT DEFAULT 'five')", ["DEFAULT", "id"]),
        ("CREATE TABLE {db}.x (id INT) TBLPROPERTIES ('fields.id.default-value'='5')", ["say DEFAULT in CREATE TABLE"]),
        ("ALTER TABLE {db}.t ADD COLUMN x INT DEFAULT 5", ["it cannot come with a DEFAULT", "SET DEFAULT"]),
        pytest.param("CREATE TABLE {db}.x (id INT, CHECK (id > 0))", ["PRIMARY KEY"], marks=needs(4, 1, "constraints")),
        ("ALTER TABLE {db}.t SET TBLPROPERTIES ('bucket.num'='5')", ["'bucket.num' is fixed when a table is created"]),
        (
            "ALTER TABLE {db}.t SET TBLPROPERTIES ('table.log.format'='ARROW')",
            ["table.log.format", "cannot be altered"],
        ),
        ("ALTER TABLE {db}.t SET LOCATION '/x'", ["'location' = '/x' cannot be"]),
        ("ALTER TABLE {db}.t RENAME COLUMN name TO x", ["column 'name': columns cannot be renamed"]),
        ("ALTER TABLE {db}.t DROP COLUMN name", ["column 'name': columns cannot be dropped"]),
        ("ALTER TABLE {db}.t ALTER COLUMN id TYPE STRING", ["id"]),
        (
            "ALTER TABLE {db}.t ALTER COLUMN name COMMENT 'x'",
            ["column 'name': the comment of a column cannot be changed"],
        ),
        ("ALTER TABLE {db}.t ADD COLUMN x INT FIRST", ["new columns come last, not FIRST"]),
        ("ALTER TABLE {db}.t ADD COLUMN x INT NOT NULL", ["a new column must be nullable"]),
        ("ALTER TABLE {db}.t RENAME TO {db}.u", ["cannot be renamed"]),
        ("SHOW PARTITIONS {db}.t", ["t"]),
        ("ALTER TABLE {db}.p ADD PARTITION (dt='a')", ["dt"]),
        ("ALTER TABLE {db}.p DROP PARTITION (dt='zzz')", ["dt", "zzz"]),
        ("DROP TABLE {db}.nope", ["TABLE_OR_VIEW_NOT_FOUND", "nope"]),
        ("DROP DATABASE {db}", ["SCHEMA_NOT_EMPTY"]),
        ("CREATE DATABASE {db}", ["SCHEMA_ALREADY_EXISTS"]),
        ("DROP DATABASE forebay.nowhere", ["SCHEMA_NOT_FOUND", "nowhere"]),
        ("CREATE DATABASE forebay.a.b", ["a.b"]),
        ("TRUNCATE TABLE {db}.l", ["TRUNCATE TABLE", "a log table cannot lose rows"]),
        ("DELETE FROM {db}.l WHERE id = 1", ["DELETE FROM", "a log table cannot lose rows"]),
        ("UPDATE {db}.l SET id = 2", ["UPDATE", "rows of a log table stay as they are"]),
        (
            "MERGE INTO {db}.l USING {db}.t ON t.id = l.id WHEN MATCHED THEN DELETE",
            ["MERGE", "rows of a log table stay as they are"],
        ),
        ("INSERT OVERWRITE {db}.l SELECT * FROM {db}.l", ["rows of log table", "cannot be replaced"]),
        (
            "INSERT INTO {db}.`t$changelog` SELECT * FROM {db}.`t$changelog`",
            ["t$changelog can only be read: write into"],
        ),
        ("DROP TABLE {db}.`t$changelog`", ["t$changelog can only be read: write into"]),
        ("ALTER TABLE {db}.`t$buckets` ADD COLUMN x INT", ["t$buckets can only be read: write into"]),
        ("DROP TABLE {db}.`t$nope`", ["TABLE_OR_VIEW_NOT_FOUND"]),
        ("INSERT INTO {db}.t VALUES (1, 'a')", ["INSERT_COLUMN_ARITY_MISMATCH"]),
        ("INSERT INTO {db}.t SELECT 1L, 'a', array(1)", ["amount"]),
        ("INSERT INTO {db}.t (id, nope) VALUES (1, 'a')", ["nope"]),
        ("CALL forebay.sys.nope()", ["nope"]),
        ("CALL forebay.sys.drop_partition(table => '{db}.p')", ["partitions"]),
    ],
)
def test_bad_statements_fail_with_a_message_that_names_what_is_wrong(
    unchanging: Sql, statement: str, parts: list[str]
) -> None:
    message = refused(unchanging, statement)
    for part in parts:
        assert part in message


def test_a_stream_into_what_stands_beside_a_table_says_where_to_write(
    sql: Sql, spark: Any, database: str, tmp_path: Path
) -> None:
    sql("CREATE TABLE {db}.t (id BIGINT NOT NULL) TBLPROPERTIES ('primary.key' = 'id')")
    beside = f"forebay.{database}.`t$changelog`"
    assert spark.catalog.tableExists(beside)
    assert not spark.catalog.tableExists(f"forebay.{database}.`nope$changelog`")
    rows = spark.readStream.format("rate").load().selectExpr("value AS id")
    writer = rows.writeStream.option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match=r"t\$changelog can only be read: write into forebay\.\w+\.t"):
        writer.toTable(beside).awaitTermination(PATIENCE)


# ---- procedures -----------------------------------------------------------------------------------------------------


def test_procedures_are_listed_and_return_rows(sql: Sql) -> None:
    if SPARK >= (4, 1):
        shown = {row[3] for row in sql("SHOW PROCEDURES IN forebay.sys")}
        assert {"get_cluster_configs", "drop_partition"} <= shown
    everything = sql("CALL forebay.sys.get_cluster_configs()")
    assert len(everything) > 3
    one = sql("CALL forebay.sys.get_cluster_configs(config_keys => array('kv.scanner.ttl', 'no.such.key'))")
    assert one == [row for row in everything if row[0] == "kv.scanner.ttl"]


def test_drop_partition_drops_what_a_partial_spec_means(sql: Sql, database: str) -> None:
    sql("CREATE TABLE {db}.p (id INT, dt STRING, r STRING) PARTITIONED BY (dt, r)")
    for dt, region in (("a", "x"), ("a", "y"), ("b", "x")):
        sql(f"ALTER TABLE {{db}}.p ADD PARTITION (dt='{dt}', r='{region}')")
    dropped = sql(f"CALL forebay.sys.drop_partition('{database}.p', array('dt=a'))")
    assert sorted(dropped) == [("a$x",), ("a$y",)]
    assert sql("SHOW PARTITIONS {db}.p") == [("dt=b/r=x",)]
    assert sql(f"CALL forebay.sys.drop_partition('{database}.p', array('dt=zzz'))") == []


@pytest.mark.parametrize(
    ("statement", "answer"),
    [
        ("DESCRIBE HISTORY {t}", "TABLE_OR_VIEW_NOT_FOUND.*`HISTORY`"),
        ("DESC HISTORY t", "TABLE_OR_VIEW_NOT_FOUND.*`HISTORY`"),
        ("DESCRIBE DETAIL {t}", "TABLE_OR_VIEW_NOT_FOUND.*`DETAIL`"),
        ("OPTIMIZE {t}", "PARSE_SYNTAX_ERROR"), ("VACUUM {t}", "PARSE_SYNTAX_ERROR"),
        ("RESTORE TABLE {t} TO VERSION AS OF 1", "PARSE_SYNTAX_ERROR"),
        ("CREATE TABLE {t}2 SHALLOW CLONE {t}", "PARSE_SYNTAX_ERROR"),
        ("ANALYZE TABLE {t} COMPUTE STATISTICS", "NOT_SUPPORTED_COMMAND_FOR_V2_TABLE"),
    ],
)  # fmt: skip
def test_statements_of_delta_are_none_of_spark(sql: Sql, database: str, statement: str, answer: str) -> None:
    """As docs/how-to/from-delta.md says: if a release of Spark parses one, we can answer it."""
    name = f"forebay.{database}.t"
    sql(f"CREATE TABLE {name} (id BIGINT NOT NULL) TBLPROPERTIES ('primary.key'='id')")
    with pytest.raises(Exception, match=answer):
        sql(statement.replace("{t}", name))
