"""Writing through Spark: INSERT, DELETE, TRUNCATE, CREATE TABLE AS, DataFrame writers, and tasks that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import StorageFailure
from forebay.client.connection import Connection
from forebay.server.storage.replica import BucketReplica
from forebay.spark.writing import live_deletes, live_write
from tests.every_run import every_run
from tests.spark.releases import SPARK, needs
from tests.spark.tables import make_table, rows

pytestmark = pytest.mark.spark
LEFT_OUT = needs(4, 1, "NULL for columns that an INSERT leaves out")

Sql = Callable[[str], list[tuple[Any, ...]]]

KEY_TABLE = """CREATE TABLE {db}.t (id BIGINT NOT NULL, name STRING, amount DOUBLE)
               TBLPROPERTIES ('primary.key'='id', 'bucket.num'='2')"""
ALL = "SELECT * FROM {db}.t ORDER BY id"


# ---- INSERT ---------------------------------------------------------------------------------------------------------


def test_insert_appends_to_a_log_and_upserts_by_key(sql: Sql) -> None:
    sql("CREATE TABLE {db}.l (id BIGINT, name STRING)")
    sql("INSERT INTO {db}.l VALUES (1, 'a'), (2, 'b')")
    sql("INSERT INTO {db}.l SELECT id + 1, name FROM {db}.l")
    assert sorted(sql("SELECT * FROM {db}.l")) == [(1, "a"), (2, "a"), (2, "b"), (3, "b")]
    sql(KEY_TABLE)
    sql("INSERT INTO {db}.t VALUES (1, 'a', 1), (2, 'b', 2)")
    sql("INSERT INTO {db}.t BY NAME SELECT 2.5 AS amount, 'new' AS name, 2L AS id")
    assert sql(ALL) == [(1, "a", 1.0), (2, "new", 2.5)]


@LEFT_OUT
def test_insert_with_a_list_of_columns_is_a_partial_update(sql: Sql, spark: Any) -> None:
    sql(KEY_TABLE)
    sql("INSERT INTO {db}.t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3), (4, 'd', 4)")
    sql("INSERT INTO {db}.t WITH ('write.partial-update'='false') (id, name) VALUES (1, 'whole')")
    sql("INSERT INTO {db}.t WITH (columns='id,name') VALUES (2, 'part', 9)")
    sql("INSERT INTO {db}.t (NAME, `id`) VALUES ('part', 3), ('new', 5)")
    sql("WITH q AS (SELECT 4L AS id) INSERT INTO {db}.t (id, amount) SELECT id, NULL FROM q")
    assert sql(ALL) == [
        (1, "whole", None), (2, "part", 2.0), (3, "part", 3.0), (4, "d", None), (5, "new", None)
    ]  # fmt: skip


LACKING: dict[str, Callable[[Any, str], Any]] = {
    "by name": lambda frame, name: frame.sparkSession.sql(f"INSERT INTO {name} BY NAME SELECT * FROM some"),
    "writeTo": lambda frame, name: frame.writeTo(name).append(),
    "saveAsTable": lambda frame, name: frame.write.format("forebay").mode("append").saveAsTable(name),
    "option": lambda frame, name: frame.writeTo(name).option("columns", "id, amount").append(),
    "two at once": lambda frame, name: frame.sparkSession.sql(
        f"FROM some INSERT INTO {name} (id, amount) SELECT * WHERE id < 2 "
        f"INSERT INTO {name} (id, Name) SELECT id, 'ä' WHERE id = 2"
    ),
}


@LEFT_OUT
@pytest.mark.parametrize("way", every_run(LACKING, lambda way: way in ("by name", "writeTo", "two at once")))
def test_columns_that_the_data_lacks_are_left_as_they_are_whatever_writes_it(
    sql: Sql, spark: Any, database: str, way: str
) -> None:
    sql(KEY_TABLE)
    sql("INSERT INTO {db}.t VALUES (1, 'a', 1), (2, 'b', 2)")
    frame = spark.sql("SELECT 1L + id AS id, CAST(NULL AS DOUBLE) AS amount FROM range(2)")
    frame.createOrReplaceTempView("some")
    LACKING[way](frame, f"forebay.{database}.t")
    assert sql(ALL) == [(1, "a", None), (2, "ä", 2.0) if way == "two at once" else (2, "b", None)]


@LEFT_OUT
@pytest.mark.slow
def test_what_is_no_lack_of_columns_writes_whole_rows(sql: Sql, spark: Any, database: str) -> None:
    """NULLs that the user has written, in any order of columns; the old behaviour, if asked for; new rows only."""
    sql(KEY_TABLE)
    name = f"forebay.{database}.t"
    rows_before = "INSERT INTO {db}.t VALUES (1, 'a', 1)"
    some = spark.sql("SELECT 1L AS id, 9D AS amount")
    for write in (
        lambda: spark.sql("SELECT 1L AS id, CAST(NULL AS STRING) AS name, 9D AS amount").writeTo(name).append(),
        lambda: spark.sql("SELECT 9D AS amount, NULL AS Name, 1L AS id").writeTo(name).append(),
        lambda: sql("INSERT INTO {db}.t (id, amount, name) VALUES (1, 9, NULL)"),
        lambda: some.writeTo(name).option("write.partial-update", "false").append(),
        lambda: sql("MERGE INTO {db}.t USING (SELECT 2L AS id) s ON t.id = s.id WHEN NOT MATCHED THEN "
                    "INSERT (id, amount) VALUES (1, 9)"),
    ):  # fmt: skip
        sql(rows_before)
        write()
        assert sql(ALL) == [(1, None, 9.0)]
    sql("CREATE TABLE {db}.first (id BIGINT NOT NULL, name STRING, amount DOUBLE) "
        "TBLPROPERTIES ('primary.key'='id', 'table.merge-engine'='first_row')")  # fmt: skip
    some.writeTo(f"forebay.{database}.first").append()
    assert sql("SELECT * FROM {db}.first") == [(1, None, 9.0)]


@LEFT_OUT
def test_a_dataframe_that_lacks_columns_is_refused_where_spark_is_told_so(sql: Sql, spark: Any, database: str) -> None:
    sql(KEY_TABLE)
    some = spark.sql("SELECT 1L AS id, 9D AS amount")
    with pytest.raises(Exception, match=r"needs its whole primary key; id is missing"):
        some.writeTo(f"forebay.{database}.t").option("columns", "amount").append()
    spark.conf.set("spark.sql.defaultColumn.useNullsForMissingDefaultValues", "false")
    try:
        for write in (
            lambda: some.writeTo(f"forebay.{database}.t").append(),
            lambda: sql("INSERT INTO {db}.t (id, amount) VALUES (1, 9)"),
        ):
            with pytest.raises(Exception, match="Cannot find data for the output column `name`"):
                write()
    finally:
        spark.conf.unset("spark.sql.defaultColumn.useNullsForMissingDefaultValues")
    assert sql(ALL) == []


def test_a_partial_write_may_give_nulls_for_the_columns_that_it_leaves_alone(sql: Sql) -> None:
    """The way for Spark 4.0, which wants every column."""
    sql(KEY_TABLE)
    sql("INSERT INTO {db}.t VALUES (1, 'a', 1)")
    sql("INSERT INTO {db}.t WITH (columns='id,name') VALUES (1, 'part', NULL)")
    assert sql(ALL) == [(1, "part", 1.0)]


def test_partitions_come_into_being_with_their_rows(sql: Sql) -> None:
    sql("CREATE TABLE {db}.p (id INT, dt STRING) PARTITIONED BY (dt)")
    sql("INSERT INTO {db}.p SELECT cast(id AS INT), concat('d', id % 3) FROM range(9)")
    sql("INSERT INTO {db}.p PARTITION (dt = 'd9') SELECT 90")
    assert sql("SHOW PARTITIONS {db}.p") == [("dt=d0",), ("dt=d1",), ("dt=d2",), ("dt=d9",)]
    assert sql("SELECT id FROM {db}.p WHERE dt = 'd9'") == [(90,)]


@pytest.mark.parametrize(
    ("statement", "part"),
    [
        ("INSERT INTO {db}.t VALUES (NULL, 'a', 1)", "NULL value appeared in non-nullable field"),
        ("INSERT INTO {db}.t VALUES ('x', 'a', 1)", "Cannot safely cast `id`"),
        ("INSERT INTO {db}.t SELECT 1L, 'a', DATE'2024-01-01'", "Cannot safely cast `amount`"),
        ("INSERT INTO {db}.t (name) VALUES ('a')", "id"),
        ("INSERT INTO {db}.t REPLACE WHERE id + 1 = 2 VALUES (1, 'a', 1)", "overwriting forebay.*cannot find the rows"),
    ],
)
def test_rows_that_cannot_be_are_refused_and_nothing_is_written(sql: Sql, statement: str, part: str) -> None:
    sql(KEY_TABLE)
    with pytest.raises(Exception, match=part):
        sql(statement)
    assert sql("SELECT count(*) FROM {db}.`t$changelog`") == [(0,)]


# ---- DEFAULT --------------------------------------------------------------------------------------------------------


@LEFT_OUT
@pytest.mark.parametrize("atomic", every_run(["true", "false"], lambda atomic: atomic == "true"))
def test_defaults_fill_new_rows_and_leave_those_that_are_there_alone(sql: Sql, atomic: str) -> None:
    sql(
        """CREATE TABLE {db}.t (id BIGINT NOT NULL, day STRING NOT NULL, name STRING DEFAULT 'it''s',
           n INT DEFAULT 2 + 3, free INT)
           PARTITIONED BY (day) TBLPROPERTIES ('primary.key'='id,day', 'bucket.num'='2')"""
    )
    insert = f"INSERT INTO {{db}}.t WITH ('write.atomic'='{atomic}') "
    sql(insert + "(id, day) VALUES (1, 'd')")
    sql(insert + "VALUES (2, 'd', 'b', 7, 9), (3, 'd', DEFAULT, NULL, DEFAULT)")
    assert sql(ALL) == [(1, "d", "it's", 5, None), (2, "d", "b", 7, 9), (3, "d", "it's", None, None)]
    sql(insert + "BY NAME SELECT id, 'd' AS day, concat('x', id) AS name FROM range(2, 5)")
    assert sql(ALL) == [
        (1, "d", "it's", 5, None), (2, "d", "x2", 7, 9), (3, "d", "x3", None, None), (4, "d", "x4", 5, None)
    ]  # fmt: skip
    sql(insert.replace(")", ", 'write.partial-update'='false')") + "(id, day, name) VALUES (2, 'd', 'y')")
    sql("UPDATE {db}.t SET name = DEFAULT, n = id WHERE id > 2")
    assert sql(ALL)[1:] == [(2, "d", "y", 5, None), (3, "d", "it's", 3, None), (4, "d", "it's", 4, None)]


@LEFT_OUT
def test_defaults_are_a_part_of_the_table(sql: Sql, connection: Connection, database: str) -> None:
    sql("CREATE TABLE {db}.l (id BIGINT, n INT DEFAULT 5, at TIMESTAMP DEFAULT current_timestamp())")
    sql("INSERT INTO {db}.l (id) VALUES (1)")
    sql("ALTER TABLE {db}.l ALTER COLUMN n SET DEFAULT 6")
    sql("ALTER TABLE {db}.l ALTER COLUMN id SET DEFAULT 0")
    sql("INSERT INTO {db}.l (at) VALUES (NULL)")
    shown = sql("SHOW CREATE TABLE {db}.l")[0][0]
    assert ("n INT DEFAULT 6" in shown, "default-value" in shown, "current_timestamp()" in shown) == (True, False, True)
    assert connection.table(f"{database}.l").info.descriptor.custom_properties == {
        "fields.id.default-value": "0", "fields.n.default-value": "6", "fields.at.default-value": "current_timestamp()"
    }  # fmt: skip
    assert "default-value" not in str(sql("SHOW TBLPROPERTIES {db}.l"))
    assert "6" in {text for row in sql("DESCRIBE EXTENDED {db}.l") for text in row}
    sql("ALTER TABLE {db}.l ALTER COLUMN n DROP DEFAULT")
    sql("INSERT INTO {db}.l (id) VALUES (2)")
    assert sql("SELECT id, n, at IS NULL FROM {db}.l ORDER BY id") == [(0, 6, True), (1, 5, False), (2, None, False)]
    sql("DROP TABLE {db}.l")
    sql(shown)
    sql("INSERT INTO {db}.l (at) VALUES (NULL)")
    assert sql("SELECT * FROM {db}.l") == [(0, 6, None)]


# ---- changes --------------------------------------------------------------------------------------------------------

CHANGING: dict[str, Callable[[Any, str], Any]] = {
    "by position": lambda frame, name: frame.sparkSession.sql(
        f"INSERT INTO {name} WITH ('write.changes'='true') SELECT _change_type, id, name, amount FROM changes"
    ),
    "by name": lambda frame, name: frame.sparkSession.sql(
        f"INSERT INTO {name} WITH ('write.changes'='true') BY NAME SELECT * FROM changes"
    ),
    "writeTo": lambda frame, name: frame.writeTo(name).option("write.changes", "true").append(),
    "insertInto": lambda frame, name: (
        frame.select("_change_type", "id", "name", "amount").write.option("write.changes", "true").insertInto(name)
    ),
    "saveAsTable": lambda frame, name: (
        frame.write.format("forebay").option("write.changes", "true").mode("append").saveAsTable(name)
    ),
}
CHANGED = """SELECT * FROM VALUES (3, 'update_postimage', 'c', 3D), (1, 'delete', NULL, NULL),
             (2, 'update_preimage', 'b', 2D), (2, '+U', 'B', 20D), (3, '-D', NULL, NULL), (3, '+I', 'C', 30D)
             AS v(id, _change_type, name, amount)"""


@needs(4, 3, "a catalog that is told the options of a write")
@pytest.mark.parametrize("way", every_run(CHANGING, lambda way: way in ("by position", "writeTo")))
def test_changes_are_upserts_and_deletes_in_order(sql: Sql, spark: Any, database: str, way: str) -> None:
    sql(KEY_TABLE.replace("name STRING", "name STRING NOT NULL"))
    sql("INSERT INTO {db}.t VALUES (1, 'a', 1), (2, 'b', 2)")
    frame = spark.sql(CHANGED).coalesce(1)
    frame.createOrReplaceTempView("changes")
    CHANGING[way](frame, f"forebay.{database}.t")
    assert sql(ALL) == [(2, "B", 20.0), (3, "C", 30.0)]
    assert sql("SELECT _change_type FROM {db}.`t$changelog` WHERE id = 3 ORDER BY _log_offset") == [
        ("insert",), ("delete",), ("insert",)
    ]  # fmt: skip


@needs(4, 3, "a catalog that is told the options of a write")
def test_changes_of_some_columns_in_the_order_of_a_column(sql: Sql, spark: Any, database: str) -> None:
    sql(KEY_TABLE)
    sql("INSERT INTO {db}.t VALUES (1, 'a', 1), (2, 'b', 2)")
    some = "INSERT INTO {db}.t WITH ('write.changes'='true') (id, _change_type%s) VALUES (1, '+U'%s), (2, '-D'%s)"
    sql(some % (", name", ", 'A'", ", ''"))
    assert sql(ALL) == [(1, "A", 1.0), (2, None, 2.0)]
    keys = spark.sql("SELECT id, element_at(array('-D', '-U'), id::int) AS _change_type FROM range(1, 3)")
    keys.writeTo(f"forebay.{database}.t").option("write.changes", "true").append()
    assert sql(ALL) == [(2, None, 2.0)]
    with pytest.raises(Exception, match="it can only delete rows: an insert or update needs a column to write"):
        sql(some % ("", "", ""))
    assert sql(ALL) == [(2, None, 2.0)]
    sql("TRUNCATE TABLE {db}.t")
    frame = spark.sql(
        "SELECT IF(id < 99, '-D', '+I') AS _change_type, 1L AS id, 'x' AS name, CAST(id AS DOUBLE) AS amount "
        "FROM range(100) ORDER BY id DESC"
    )
    writer = frame.writeTo(f"forebay.{database}.t").option("write.changes", "true")
    writer.option("write.sequence.field", "amount").append()
    assert sql(ALL) == [(1, "x", 99.0)]


@needs(4, 3, "a catalog that is told the options of a write")
def test_changes_that_cannot_be_are_refused_and_nothing_is_written(sql: Sql) -> None:
    sql(KEY_TABLE)
    sql("CREATE TABLE {db}.l (id BIGINT)")
    option = "WITH ('write.changes'='true')"
    for statement, part in (
        (f"INSERT INTO {{db}}.l {option} VALUES ('-D', 1)", "has no primary key, so it takes inserts only"),
        (f"INSERT INTO {{db}}.t {option} VALUES (1, 'a', 1)", "not enough data columns"),
        (
            f"INSERT INTO {{db}}.t {option} VALUES ('gone', 1, 'a', 1)",
            "row 0 has _change_type='gone', which is none of",
        ),
        (f"INSERT INTO {{db}}.t {option} VALUES ('-D', NULL, 'a', 1)", "NULL value appeared in non-nullable field"),
        (f"INSERT OVERWRITE {{db}}.t {option} VALUES ('-D', 1, 'a', 1)", "replaced by rows, not by changes"),
        ("INSERT INTO {db}.t VALUES ('-D', 1, 'a', 1)", "too many data columns"),
        ("SELECT * FROM {db}.t WITH ('write.changes'='true')", "no read option 'write.changes'"),
    ):
        with pytest.raises(Exception, match=part) as error:
            sql(statement)
        assert "Traceback" not in str(error.value)
    assert sql("SELECT count(*) FROM {db}.`t$changelog`") == [(0,)]


# ---- DELETE and TRUNCATE --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ("id = 3", {0, 1, 2, 4, 5}),
        ("id IN (1, 2, 99)", {0, 3, 4, 5}),
        ("id > 1 AND name < 'n4'", {0, 1, 4, 5}),
        ("amount IS NULL OR id = 0", {1, 2, 3, 4, 5}),
        ("id = NULL", {0, 1, 2, 3, 4, 5}),
        ("false", {0, 1, 2, 3, 4, 5}),
        ("true", set()),
    ],
)
def test_delete_takes_the_rows_that_match_and_no_others(
    sql: Sql, connection: Connection, database: str, condition: str, left: set[int]
) -> None:
    make_table(connection, f"{database}.t", ["id"]).upsert(rows(0, 6))
    sql(f"DELETE FROM {{db}}.t WHERE {condition}")
    assert {row[0] for row in sql("SELECT id FROM {db}.t")} == left


def test_delete_without_a_filter_and_truncate_empty_a_table(sql: Sql, connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t", ["id"])
    for statement in ("DELETE FROM {db}.t", "TRUNCATE TABLE {db}.t"):
        table.upsert(rows(0, 500))
        assert sql("SELECT count(*) FROM {db}.t") == [(500,)]
        sql(statement)
        assert sql("SELECT count(*) FROM {db}.t") == [(0,)]
    assert sql("SELECT count(*) FROM {db}.`t$changelog` WHERE _change_type = 'delete'") == [(1000,)]


def test_tables_with_merge_engines_merge_what_is_inserted(sql: Sql, connection: Connection, database: str) -> None:
    sql(
        """CREATE TABLE {db}.sums (id INT NOT NULL, total BIGINT, names STRING)
           TBLPROPERTIES ('primary.key'='id', 'bucket.num'='1', 'table.merge-engine'='aggregation',
           'fields.total.agg'='sum', 'fields.names.agg'='listagg', 'fields.names.listagg.delimiter'='+')"""
    )
    assert str(connection.table(f"{database}.sums").info.schema.column("names").aggregate) == "listagg(delimiter='+')"
    sql("INSERT INTO {db}.sums VALUES (1, 2, 'a'), (2, 5, 'x')")
    sql("INSERT INTO {db}.sums VALUES (1, 3, 'b')")
    # Spark 4.0 wants all columns.
    sql("INSERT INTO {db}.sums " + ("(id, total) VALUES (1, 10)" if SPARK >= (4, 1) else "VALUES (1, 10, NULL)"))
    assert sql("SELECT * FROM {db}.sums ORDER BY id") == [(1, 15, "a+b"), (2, 5, "x")]
    changes = "SELECT _change_type, total FROM {db}.`sums$changelog` WHERE id = 1 ORDER BY _log_offset"
    assert [total for _, total in sql(changes)] == [2, 2, 5, 5, 15]
    assert ("fields.total.agg", "sum") in sql("SHOW TBLPROPERTIES {db}.sums")
    for statement in ("DELETE FROM {db}.sums WHERE id = 1", "TRUNCATE TABLE {db}.sums"):
        with pytest.raises(
            Exception, match=r"merge engine 'aggregation' ignores deletes|'table.merge-engine' = 'aggregation'"
        ):
            sql(statement)
    sql(
        """CREATE TABLE {db}.newest (id INT NOT NULL, at TIMESTAMP) TBLPROPERTIES ('primary.key'='id',
           'table.merge-engine'='versioned', 'table.merge-engine.versioned.ver-column'='at')"""
    )
    sql("INSERT INTO {db}.newest VALUES (1, TIMESTAMP '2026-01-02 00:00:00'), (2, NULL)")
    sql("INSERT INTO {db}.newest VALUES (1, TIMESTAMP '2026-01-01 00:00:00'), (2, TIMESTAMP '1960-01-01 00:00:00')")
    assert sql("SELECT id, year(at), day(at) FROM {db}.newest ORDER BY id") == [(1, 2026, 2), (2, 1960, 1)]
    with pytest.raises(Exception, match="'total' has type BIGINT, but aggregate function 'listagg' takes STRING"):
        sql(
            """CREATE TABLE {db}.wrong (id INT NOT NULL, total BIGINT) TBLPROPERTIES ('primary.key'='id',
               'table.merge-engine'='aggregation', 'fields.total.agg'='listagg')"""
        )


def test_a_table_whose_rows_must_stay_refuses_deletes(sql: Sql) -> None:
    sql("CREATE TABLE {db}.t (id INT NOT NULL) TBLPROPERTIES ('primary.key'='id', 'table.delete.behavior'='disable')")
    sql("INSERT INTO {db}.t VALUES (1)")
    with pytest.raises(Exception, match=r"'table\.delete\.behavior' is disable"):
        sql("DELETE FROM {db}.t WHERE id = 1")
    assert sql("SELECT * FROM {db}.t") == [(1,)]


# ---- CREATE TABLE AS, REPLACE TABLE ---------------------------------------------------------------------------------


def test_a_table_is_made_from_a_query_or_a_file(
    sql: Sql, spark: Any, connection: Connection, database: str, tmp_path: Path
) -> None:
    spark.range(20).selectExpr("id", "id % 2 AS p").write.parquet(str(tmp_path / "rows"))
    sql(
        "CREATE TABLE {db}.t PARTITIONED BY (p) TBLPROPERTIES ('primary.key'='id,p', 'bucket.num'='2') "
        f"AS SELECT * FROM parquet.`{tmp_path / 'rows'}`"
    )
    assert sql("SELECT p, count(*), sum(id) FROM {db}.t GROUP BY p ORDER BY p") == [(0, 10, 90), (1, 10, 100)]
    info = connection.admin.table_info(f"{database}.t")
    assert (info.schema.primary_key, info.bucket_count, info.schema.column("id").data_type.nullable) == (
        ("id", "p"),
        2,
        False,
    )
    sql("CREATE TABLE IF NOT EXISTS {db}.t AS SELECT 1 AS x")
    sql("CREATE TABLE {db}.o OPTIONS ('team'='blue') AS SELECT 1 AS x")
    assert sql("SELECT * FROM {db}.o") == [(1,)]


def test_a_table_whose_first_rows_fail_is_gone_again(sql: Sql) -> None:
    with pytest.raises(Exception, match=r"NULL value appeared|must not be null"):
        sql("CREATE TABLE {db}.t TBLPROPERTIES ('primary.key'='id') AS SELECT nullif(id, 3) AS id FROM range(9)")
    assert sql("SHOW TABLES IN {db}") == []


@pytest.mark.parametrize(
    "replace",
    [
        lambda frame, name: frame.sparkSession.sql(f"CREATE OR REPLACE TABLE {name} AS SELECT 1 AS x"),
        lambda frame, name: frame.sparkSession.sql(f"REPLACE TABLE {name} (x INT)"),
        lambda frame, name: frame.drop("name").writeTo(name).createOrReplace(),
        lambda frame, name: frame.writeTo(name).tableProperty("bucket.num", "3").replace(),
        lambda frame, name: (
            frame.withColumn("name", frame.id).write.format("forebay").mode("overwrite").saveAsTable(name)
        ),
    ],
    ids=["sql as", "sql", "createOrReplace", "replace", "saveAsTable"],
)
def test_no_way_to_replace_a_table_loses_its_rows(
    sql: Sql, spark: Any, database: str, replace: Callable[[Any, str], Any]
) -> None:
    """Spark drops a table before it replaces it, where the catalog does not know better."""
    sql(KEY_TABLE)
    sql("INSERT INTO {db}.t VALUES (1, 'a', 1)")
    with pytest.raises(Exception, match=r"cannot be replaced in one step: its .*DROP TABLE it first"):
        replace(spark.sql("SELECT 2L AS id, 'b' AS name, 2D AS amount"), f"forebay.{database}.t")
    assert sql(ALL) == [(1, "a", 1.0)]


REPLACING: dict[str, Callable[[Any, str], Any]] = {
    "sql as": lambda frame, name: frame.sparkSession.sql(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM new"),
    "createOrReplace": lambda frame, name: frame.writeTo(name).createOrReplace(),
    "saveAsTable": lambda frame, name: frame.write.format("forebay").mode("overwrite").saveAsTable(name),
    "insertInto": lambda frame, name: frame.write.mode("overwrite").insertInto(name),
    "overwritePartitions": lambda frame, name: frame.writeTo(name).overwritePartitions(),
    "insert": lambda frame, name: frame.sparkSession.sql(f"INSERT OVERWRITE {name} SELECT * FROM new"),
    "where": lambda frame, name: frame.sparkSession.sql(f"INSERT INTO {name} REPLACE WHERE id < 9 SELECT * FROM new"),
}


@pytest.mark.parametrize("way", every_run(REPLACING, lambda way: way in ("sql as", "where")))
def test_a_statement_replaces_all_rows_or_none(sql: Sql, spark: Any, database: str, way: str) -> None:
    replace = REPLACING[way]
    sql(KEY_TABLE)
    sql("INSERT INTO {db}.t VALUES (1, 'a', 1), (2, 'b', 2)")
    failing = spark.sql("SELECT if(id = 7, raise_error('no'), id) AS id, 'x' AS name, 2D AS amount FROM range(8)")
    failing.createOrReplaceTempView("new")
    with pytest.raises(Exception, match="no"):
        replace(failing, f"forebay.{database}.t")
    assert sql(ALL) == [(1, "a", 1.0), (2, "b", 2.0)]
    frame = spark.sql("SELECT id + 2 AS id, 'x' AS name, 2D AS amount FROM range(2)")
    frame.createOrReplaceTempView("new")
    replace(frame, f"forebay.{database}.t")
    assert sql(ALL) == [(2, "x", 2.0), (3, "x", 2.0)]


@pytest.mark.parametrize("by", every_run(["driver", "tasks", "tasks without keys"], lambda by: by == "tasks"))
def test_rows_that_are_replaced_are_updated_and_only_those_without_a_new_one_deleted(
    sql: Sql, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    sql(KEY_TABLE)
    sql("INSERT INTO {db}.t SELECT id, concat('n', id), 1 FROM range(6)")
    if by != "driver":
        monkeypatch.setattr(live_deletes, "DRIVER_ROWS_MAX", 0)
    if by == "tasks without keys":
        monkeypatch.setattr(live_write, "DRIVER_KEYS_MAX", 0)
    sql("INSERT INTO {db}.t REPLACE WHERE amount < 5 AND id > 1 SELECT id, 'new', 2 FROM range(4, 8)")
    assert [row[0] for row in sql(ALL)] == [0, 1, 4, 5, 6, 7]
    changes = "SELECT id, _change_type FROM {db}.`t$changelog` WHERE id > 1 ORDER BY id, _log_offset"
    replaced = ["update_before", "update_after"] if by != "tasks without keys" else ["delete", "insert"]
    expected = {2: ["delete"], 3: ["delete"], 4: replaced, 5: replaced, 6: [], 7: []}
    assert sql(changes) == [(key, kind) for key in expected for kind in ("insert", *expected[key])]
    sql("TRUNCATE TABLE {db}.t")
    assert sql(ALL) == []


def test_rows_that_another_writer_changes_meanwhile_are_not_replaced(
    sql: Sql, connection: Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql(KEY_TABLE)
    sql("INSERT INTO {db}.t VALUES (1, 'a', 1), (2, 'b', 2)")
    stage_deletes = live_deletes.stage_deletes

    def late(*args: Any, **options: Any) -> list[str]:
        staged = stage_deletes(*args, **options)
        connection.table(f"{database}.t").upsert([{"id": 1, "name": "theirs", "amount": 5.0}])
        return staged

    monkeypatch.setattr(live_deletes, "stage_deletes", late)
    with pytest.raises(Exception, match=r"were not replaced: other writers have changed 1 .* such as id = 1"):
        sql("INSERT OVERWRITE {db}.t VALUES (2, 'c', 3)")
    assert sql(ALL) == [(1, "theirs", 5.0), (2, "b", 2.0)]


@pytest.mark.parametrize(
    ("statement", "part"),
    [
        ("REPLACE WHERE amount < 5 VALUES (1, 'x', 4), (7, 'y', 5)", "where amount < 5.0 .* with id = 7 is not one of"),
        ("REPLACE WHERE name = 'b' AND id > 1 SELECT id, 'b', 1D FROM range(1, 4)", "where id > 1 .* id = 1 is not"),
        ("WITH (columns = 'id,amount') REPLACE WHERE name = 'a' VALUES (8, 'a', 1)", "name = 'a' .* id = 8 is not one"),
        ("REPLACE WHERE id = 1 AND false VALUES (1, 'x', 1)", "no row can match the condition.* INSERT INTO"),
    ],
)
def test_rows_that_the_condition_does_not_match_replace_none(sql: Sql, statement: str, part: str) -> None:
    sql(KEY_TABLE)
    sql("INSERT INTO {db}.t VALUES (1, 'a', 1), (2, 'b', 2)")
    with pytest.raises(Exception, match=part):
        sql(f"INSERT INTO {{db}}.t {statement}")
    assert sql(ALL) == [(1, "a", 1.0), (2, "b", 2.0)]
    ((plan,),) = sql("EXPLAIN INSERT INTO {db}.t REPLACE WHERE id < 9 AND name = 'a' VALUES (1, 'a', 1)")
    assert "where id < 9 and name = 'a'" in plan
    assert sql("SELECT count(*) FROM {db}.`t$changelog`") == [(2,)]


def test_partitions_are_overwritten_and_emptied_in_one_transaction(sql: Sql, spark: Any, database: str) -> None:
    sql("CREATE TABLE {db}.p (id BIGINT NOT NULL, v BIGINT, dt STRING) PARTITIONED BY (dt) "
        "TBLPROPERTIES ('primary.key'='id,dt')")  # fmt: skip
    fill = "INSERT INTO {db}.p SELECT id, 0, concat('d', id % 3) FROM range(9)"
    every = "SELECT id, v FROM {db}.p ORDER BY id"
    kept = {n: [(i, 0) for i in range(9) if i % 3 != n] for n in range(3)}
    sql(fill)
    sql("INSERT OVERWRITE {db}.p PARTITION (dt = 'd1') SELECT 100, 1")
    assert sql(every) == [*kept[1], (100, 1)]
    sql("TRUNCATE TABLE {db}.p PARTITION (dt = 'd1')")
    assert sql(every) == kept[1]
    sql(fill)
    spark.sql("SELECT 200L AS id, 2L AS v, 'd2' AS dt").writeTo(f"forebay.{database}.p").overwritePartitions()
    assert sql(every) == [*kept[2], (200, 2)]
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        sql("INSERT OVERWRITE {db}.p SELECT 201, 3, 'd2'")
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert sql(every) == [*kept[2], (201, 3)]


def test_rows_of_a_log_are_never_replaced(sql: Sql, spark: Any, database: str) -> None:
    sql("CREATE TABLE {db}.l (id BIGINT)")
    sql("INSERT INTO {db}.l VALUES (1)")
    for statement in (
        "INSERT OVERWRITE {db}.l SELECT 2L",
        "INSERT INTO {db}.l REPLACE WHERE id = 1 SELECT 2L",
        "CREATE OR REPLACE TABLE {db}.l AS SELECT 2L AS id",
        "TRUNCATE TABLE {db}.l",
    ):
        with pytest.raises(Exception, match=r"log.* cannot (lose rows|be replaced)"):
            sql(statement)
    assert sql("SELECT id FROM {db}.l") == [(1,)]


def test_create_or_replace_makes_a_table_where_there_is_none(sql: Sql, spark: Any, database: str) -> None:
    sql("CREATE OR REPLACE TABLE {db}.t AS SELECT 1L AS id")
    spark.range(3).writeTo(f"forebay.{database}.u").using("forebay").createOrReplace()
    spark.range(4).write.format("forebay").mode("overwrite").saveAsTable(f"forebay.{database}.v")
    counted = "SELECT (SELECT count(*) FROM {db}.t), (SELECT count(*) FROM {db}.u), (SELECT count(*) FROM {db}.v)"
    assert sql(counted) == [(1, 3, 4)]


def test_tables_are_made_and_filled_by_dataframes(sql: Sql, spark: Any, connection: Connection, database: str) -> None:
    name = f"forebay.{database}.t"
    frame = spark.range(10).selectExpr("id", "concat('d', id % 2) AS dt")
    maker = frame.writeTo(name).partitionedBy("dt").tableProperty("primary.key", "id,dt")
    maker.tableProperty("bucket.num", "3").create()
    info = connection.admin.table_info(f"{database}.t")
    assert (info.schema.primary_key, info.bucket_count, info.descriptor.partition_keys) == (("id", "dt"), 3, ("dt",))
    frame.write.format("forebay").mode("append").saveAsTable(name)
    frame.write.insertInto(name)
    assert spark.table(name).count() == 10
    with pytest.raises(Exception, match=r"cannot be USING parquet.*df.write.format"):
        frame.write.saveAsTable(f"forebay.{database}.u")
    with pytest.raises(Exception, match=r"there is no write option 'primary.key'.*tableProperty"):
        frame.write.format("forebay").option("primary.key", "id").saveAsTable(f"forebay.{database}.u")
    assert sql("SHOW TABLES IN {db}") == [(database, "t", False)]


# ---- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "seen"), [("", {10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}), ("id", {10})])
def test_a_task_that_is_run_again_writes_again_which_only_logs_show(
    sql: Sql, spark: Any, database: str, tmp_path: Path, key: str, seen: set[int]
) -> None:
    """Spark runs a failed task again. Logs may then have rows twice (at least once); upserts come out the same."""
    properties = f"TBLPROPERTIES ('primary.key'='{key}')" if key else ""
    sql(f"CREATE TABLE {{db}}.t (id BIGINT NOT NULL) {properties}")
    marker = str(tmp_path / "failed")

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        yield from batches
        if not os.path.exists(marker):
            with open(marker, "w"):
                raise RuntimeError("the first attempt fails at its end")

    spark.range(0, 10, 1, 1).mapInArrow(fails_once, "id long").writeTo(f"forebay.{database}.t").append()
    assert Path(marker).exists()
    found = sorted(row[0] for row in sql("SELECT id FROM {db}.t"))
    assert sorted(set(found)) == list(range(10))
    assert len(found) in seen


def test_a_write_that_the_server_refuses_fails_the_query(
    sql: Sql, connection: Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(connection, f"{database}.t", buckets=1)

    def refuse(self: BucketReplica, requests: Any) -> Any:
        raise StorageFailure("the disk is on fire")

    with monkeypatch.context() as patched:
        patched.setattr(BucketReplica, "_append_locked", refuse)
        with pytest.raises(Exception, match=r"writing to table .*the disk is on fire"):
            sql("INSERT INTO {db}.t WITH ('write.atomic'='false', 'client.writer.retries'='0') VALUES (1, 'a', 1)")
    assert sql("SELECT count(*) FROM {db}.t") == [(0,)]
