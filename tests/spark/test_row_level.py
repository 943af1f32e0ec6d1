"""UPDATE, MERGE, and DELETE with any condition, compared with what plain Python makes of the same rows."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from forebay.client.connection import Connection
from forebay.server.embedded import EmbeddedServer
from forebay.spark import derived_sessions
from forebay.spark.derived_sessions import class_files
from forebay.spark.jvm.executor_classes import class_jar
from forebay.spark.jvm.gateway import Jvm
from forebay.spark.writing.live_deltas import LiveDeltaWrite
from forebay.spark.writing.live_write import StagedWrite
from tests.patience import PATIENCE, until
from tests.spark.merge_sources import source

pytestmark = pytest.mark.spark

Sql = Callable[[str], list[tuple[Any, ...]]]

TABLE = """CREATE TABLE {db}.t (id BIGINT NOT NULL, name STRING, amount DOUBLE)
           TBLPROPERTIES ('primary.key'='id', 'bucket.num'='2')"""
ROWS = "INSERT INTO {db}.t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', CAST('NaN' AS DOUBLE)), (4, NULL, NULL)"
ALL = "SELECT * FROM {db}.t ORDER BY id"
CHANGES = "SELECT _change_type, id FROM {db}.`t$changelog` WHERE _log_offset >= 0 ORDER BY id, _log_offset"


@pytest.fixture
def table(sql: Sql) -> Sql:
    """Runs statements; table `t` has four rows, with nulls and NaN."""
    sql(TABLE)
    sql(ROWS)
    return sql


def others(monkeypatch: pytest.MonkeyPatch, write: Callable[[], object]) -> None:
    """Have `write` done by another writer, once, between the scan of the next statement and its commit."""
    original = LiveDeltaWrite._task
    left = [write]

    def task(self: LiveDeltaWrite, physical: Any) -> Any:
        if left:
            left.pop()()
        return original(self, physical)

    monkeypatch.setattr(LiveDeltaWrite, "_task", task)


# ---- UPDATE ---------------------------------------------------------------------------------------------------------


def test_update_changes_the_rows_that_match_and_leaves_the_rest(table: Sql) -> None:
    table(
        "UPDATE {db}.t SET name = upper(coalesce(name, 'none')), amount = id * 1.5 WHERE amount IS NULL OR id % 3 = 2"
    )
    assert [r for r in table(ALL) if r[0] != 3] == [(1, "a", 1.0), (2, "B", 3.0), (4, "NONE", 6.0)]
    table("UPDATE {db}.t SET name = 'nan' WHERE isnan(amount)")
    assert [r[:2] for r in table(ALL)] == [(1, "a"), (2, "B"), (3, "nan"), (4, "NONE")]
    assert math.isnan(table("SELECT amount FROM {db}.t WHERE id = 3")[0][0])


def test_an_update_is_logged_as_updates_of_the_changed_rows_alone(table: Sql) -> None:
    before = len(table(CHANGES))
    table("UPDATE {db}.t SET amount = 0 WHERE id IN (SELECT max(id) - 2 FROM {db}.t)")
    kinds = [kind for kind, key in table(CHANGES) if key == 2]
    assert (len(table(CHANGES)) - before, kinds) == (2, ["insert", "update_before", "update_after"])


def test_an_update_of_a_table_with_nested_columns_may_ask_for_other_rows(sql: Sql) -> None:
    sql(
        "CREATE TABLE {db}.n (id INT NOT NULL, tags ARRAY<STRING>, m MAP<STRING, INT>) "
        "TBLPROPERTIES('primary.key'='id')"
    )
    sql("INSERT INTO {db}.n VALUES (1, array('a'), map('k', 1)), (2, NULL, NULL)")
    sql("UPDATE {db}.n SET m = map('k', 2) WHERE id IN (SELECT id FROM {db}.n WHERE size(tags) = 1)")
    assert sql("SELECT * FROM {db}.n ORDER BY id") == [(1, ["a"], {"k": 2}), (2, None, None)]


@pytest.mark.parametrize("condition", ["length(name) = 1 AND amount > 1", "length(name) = 1", "id % 2 = 0"])
def test_an_update_asks_for_its_rows_once(table: Sql, condition: str) -> None:
    (plan,) = table(f"EXPLAIN UPDATE {{db}}.t SET amount = 0 WHERE {condition}")
    assert plan[0].count("BatchScan") == 1


def test_rows_may_move_to_each_others_primary_keys(table: Sql) -> None:
    table("UPDATE {db}.t SET id = id + 1")
    assert [r[:2] for r in table(ALL)] == [(2, "a"), (3, "b"), (4, "c"), (5, None)]
    table("UPDATE {db}.t SET id = 7 - id WHERE id < 6")
    assert [r[:2] for r in table(ALL)] == [(2, None), (3, "c"), (4, "b"), (5, "a")]


def test_two_rows_are_not_given_one_primary_key(table: Sql) -> None:
    before = table("SELECT id, name FROM {db}.t ORDER BY id")
    with pytest.raises(Exception, match=r"1 primary keys would each get more than one row, such as id = 9"):
        table("UPDATE {db}.t SET id = 9 WHERE id < 3")
    assert table("SELECT id, name FROM {db}.t ORDER BY id") == before


# ---- DELETE ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        pytest.param("id * 2 = 4", [1, 3, 4], marks=pytest.mark.slow),
        pytest.param("name IN (SELECT min(name) FROM {db}.t)", [2, 3, 4], marks=pytest.mark.slow),
        ("EXISTS (SELECT 1 FROM {db}.t other WHERE other.id = t.id + 2)", [3, 4]),
        ("amount > 1", [1, 4]),  # NaN is greater than all numbers
        ("id NOT IN (SELECT id FROM {db}.t WHERE name IS NOT NULL)", [1, 2, 3]),
        pytest.param("length(name) > 7", [1, 2, 3, 4], marks=pytest.mark.slow),
    ],
)
def test_delete_takes_any_condition(table: Sql, condition: str, left: list[int]) -> None:
    table(f"DELETE FROM {{db}}.t WHERE {condition}")
    assert [r[0] for r in table(ALL)] == left


# ---- MERGE ----------------------------------------------------------------------------------------------------------


def test_merge_has_all_clauses(table: Sql) -> None:
    given = source((1, "one", 10.0), (2, "two", 20.0), (8, "eight", None), (9, "nine", 90.0))
    table(
        f"""MERGE INTO {{db}}.t USING {given} ON t.id = s.id
            WHEN MATCHED AND s.amount > 15 THEN DELETE
            WHEN MATCHED THEN UPDATE SET amount = t.amount + s.amount
            WHEN NOT MATCHED AND s.amount IS NULL THEN INSERT (id, name) VALUES (s.id, concat(s.name, '!'))
            WHEN NOT MATCHED THEN INSERT *
            WHEN NOT MATCHED BY SOURCE AND t.name IS NULL THEN DELETE
            WHEN NOT MATCHED BY SOURCE THEN UPDATE SET amount = -1"""
    )
    assert table(ALL) == [(1, "a", 11.0), (3, "c", -1.0), (8, "eight!", None), (9, "nine", 90.0)]


def test_a_row_of_merge_that_matches_twice_is_an_error_and_changes_nothing(table: Sql) -> None:
    before = table(CHANGES)
    with pytest.raises(Exception, match="MERGE_CARDINALITY_VIOLATION"):
        table(
            f"MERGE INTO {{db}}.t USING {source((1, 'x', 1.0), (1, 'y', 2.0))} ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET *"
        )
    assert table(CHANGES) == before


@pytest.mark.slow
def test_a_deleted_rows_key_can_be_inserted_by_the_same_statement(table: Sql) -> None:
    table(
        f"""MERGE INTO {{db}}.t USING {source((1, "new", 5.0), (77, "a", 6.0))} ON t.name = s.name
            WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *"""
    )
    assert [r[:2] for r in table(ALL)] == [(1, "new"), (2, "b"), (3, "c"), (4, None)]


@pytest.mark.parametrize(
    "clauses",
    [
        "WHEN NOT MATCHED THEN INSERT *",
        pytest.param(
            "WHEN NOT MATCHED AND s.amount > 5 THEN INSERT * WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_two_rows_that_merge_inserts_are_not_given_one_primary_key(table: Sql, clauses: str) -> None:
    before = table(CHANGES)
    given = "(SELECT 2 + id % 7 AS id, 'n' AS name, CAST(id AS DOUBLE) AS amount FROM range(0, 8, 1, 4)) s"
    with pytest.raises(Exception, match=r"1 primary keys would each get more than one row, such as id = 2") as raised:
        table(f"MERGE INTO {{db}}.t USING {given} ON t.id = s.id AND s.id <> 2 {clauses}")
    assert "Traceback" not in str(raised.value)
    assert table(CHANGES) == before
    table(f"MERGE INTO {{db}}.t USING {given} ON t.id = s.id {clauses}")
    assert [row[0] for row in table(ALL)] == [1, 2, 3, 4, 5, 6, 7, 8]
    table("INSERT INTO {db}.t SELECT s.* FROM VALUES (9L, 'x', 1D), (9L, 'x', 2D) AS s(id, name, amount) "
          "LEFT ANTI JOIN {db}.t t ON t.id = s.id")  # fmt: skip
    assert table("SELECT count(*) FROM {db}.t WHERE id = 9") == [(1,)]


@pytest.mark.slow
def test_a_merge_engine_decides_on_rows_of_one_key_that_merge_inserts(sql: Sql) -> None:
    sql(
        """CREATE TABLE {db}.t (id BIGINT NOT NULL, name STRING, amount DOUBLE)
           TBLPROPERTIES ('primary.key'='id', 'table.merge-engine'='aggregation', 'fields.amount.agg'='sum')"""
    )
    given = source((1, "x", 1.0), (1, "y", 2.0))
    sql(f"MERGE INTO {{db}}.t USING {given} ON t.id = s.id WHEN NOT MATCHED THEN INSERT *")
    assert sql("SELECT id, amount FROM {db}.t") == [(1, 3.0)]


def test_merge_adds_rows_to_a_log_table_that_it_does_not_have(sql: Sql) -> None:
    sql("CREATE TABLE {db}.t (id BIGINT NOT NULL, name STRING, amount DOUBLE)")
    sql(ROWS)
    given = source((1, "x", 1.0), (9, "y", 2.0))
    sql(f"MERGE INTO {{db}}.t USING {given} ON t.id = s.id WHEN NOT MATCHED THEN INSERT *")
    assert [r[:2] for r in sql(ALL)] == [(1, "a"), (2, "b"), (3, "c"), (4, None), (9, "y")]


# ---- partitions, refusals -------------------------------------------------------------------------------------------


def test_rows_move_between_partitions(sql: Sql) -> None:
    sql(
        """CREATE TABLE {db}.t (dt STRING NOT NULL, id INT NOT NULL, b BINARY, d DECIMAL(10, 2), at TIMESTAMP)
           PARTITIONED BY (dt) TBLPROPERTIES ('primary.key'='dt,id')"""
    )
    sql(
        """INSERT INTO {db}.t SELECT concat('d', id % 2), cast(id AS INT), cast(concat('b', id) AS BINARY), id / 4,
           TIMESTAMP'2026-01-01 00:00:00' FROM range(6)"""
    )
    sql("UPDATE {db}.t SET dt = 'd9', d = d + 1 WHERE dt = 'd1' AND id > 1")
    found = sql("SELECT dt, id, cast(b AS STRING), cast(d AS DOUBLE) FROM {db}.t ORDER BY id")
    expected = [(f"d{i % 2}", i, f"b{i}", i / 4) for i in range(6)]
    for i in (3, 5):
        expected[i] = ("d9", i, f"b{i}", i / 4 + 1)
    expected = [(p, i, b, round(d + 1e-9, 2)) for p, i, b, d in expected]
    assert found == expected


def test_what_cannot_be_changed_is_refused_by_name(sql: Sql) -> None:
    sql("CREATE TABLE {db}.l (id BIGINT, name STRING)")
    with pytest.raises(Exception, match="rows of a log table stay as they are, only its partitions can be dropped"):
        sql("UPDATE {db}.l SET name = 'x'")
    with pytest.raises(Exception, match="a log table cannot lose rows, only its partitions can be dropped"):
        sql("DELETE FROM {db}.l WHERE length(name) = 1")
    for engine, why in (
        ("aggregation", "it has to be deleted first.* INSERT rows with the difference"),
        ("first_row", "keeps the first row of a key"),
        ("versioned", "keeps the row with the latest version.* INSERT rows with later versions"),
    ):
        version = ", 'table.merge-engine.versioned.ver-column'='v'" if engine == "versioned" else ""
        sql(f"CREATE TABLE {{db}}.{engine} (id BIGINT NOT NULL, name STRING, v BIGINT) "
            f"TBLPROPERTIES ('primary.key'='id', 'table.merge-engine'='{engine}'{version})")  # fmt: skip
        with pytest.raises(Exception, match=f"'table.merge-engine' = '{engine}' .*{why}"):
            sql(f"UPDATE {{db}}.{engine} SET name = 'x'")
    sql(
        """CREATE TABLE {db}.k (id BIGINT NOT NULL, name STRING)
           TBLPROPERTIES ('primary.key'='id', 'table.delete.behavior'='disable')"""
    )
    sql("INSERT INTO {db}.k VALUES (1, 'a')")
    with pytest.raises(Exception, match=r"cannot be deleted: 'table.delete.behavior' is disable"):
        sql("DELETE FROM {db}.k WHERE length(name) = 1")
    with pytest.raises(Exception, match="a primary key would change, which deletes rows"):
        sql("UPDATE {db}.k SET id = 2")
    sql("UPDATE {db}.k SET name = 'b'")
    assert sql("SELECT * FROM {db}.k") == [(1, "b")]


@pytest.mark.slow
def test_rows_keep_the_numbers_that_the_server_gave_them(sql: Sql) -> None:
    sql(
        """CREATE TABLE {db}.t (id BIGINT NOT NULL, no BIGINT, name STRING)
           TBLPROPERTIES ('primary.key'='id', 'auto-increment.fields'='no', 'bucket.num'='1')"""
    )
    sql("INSERT INTO {db}.t VALUES (1, NULL, 'a'), (2, NULL, 'b')")
    before = dict(sql("SELECT id, no FROM {db}.t"))
    sql("UPDATE {db}.t SET name = upper(name) WHERE id > 1")
    sql(
        """MERGE INTO {db}.t USING (SELECT * FROM VALUES (1L, 'A'), (4L, 'new') AS v(id, name)) s
           ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name
           WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, s.name)"""
    )
    found = sql("SELECT id, name, no FROM {db}.t ORDER BY id")
    assert found[:2] == [(1, "A", before[1]), (2, "B", before[2])]
    assert [row[:2] for row in found[2:]] == [(4, "new")]
    assert found[2][2] not in (None, *before.values())
    merge = "MERGE INTO {db}.t USING (SELECT 1L AS id) s ON t.id = s.id WHEN MATCHED "
    for statement, part in (
        ("UPDATE {db}.t SET no = no + 1 WHERE id = 1", "column 'no' is numbered by the server: rows keep the number"),
        ("UPDATE {db}.t SET id = id + 5", "a primary key would change, which deletes a row"),
        (merge + "THEN DELETE", "cannot be deleted: the server numbers them in column 'no'"),
        ("DELETE FROM {db}.t WHERE id = 1", "cannot be deleted: the server numbers them in column 'no'"),
        ("TRUNCATE TABLE {db}.t", "cannot be deleted: the server numbers them in column 'no'"),
        ("INSERT OVERWRITE {db}.t VALUES (9, NULL, 'x')", "cannot be deleted: the server numbers them in column 'no'"),
    ):
        with pytest.raises(Exception, match=part):
            sql(statement)
    assert sql("SELECT id, name, no FROM {db}.t ORDER BY id") == found


def test_changed_rows_of_aggregations_replace_those_that_are_there(sql: Sql) -> None:
    sql(
        """CREATE TABLE {db}.t (id BIGINT NOT NULL, total BIGINT, name STRING)
           TBLPROPERTIES ('primary.key'='id', 'table.merge-engine'='aggregation', 'fields.total.agg'='sum',
           'table.delete.behavior'='allow', 'bucket.num'='1')"""
    )
    sql("INSERT INTO {db}.t VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c'), (1, 10, 'a')")
    sql("UPDATE {db}.t SET total = total * 2, name = NULL WHERE id = 1")
    sql("UPDATE {db}.t SET id = 4 WHERE id = 3")
    sql(
        """MERGE INTO {db}.t USING (SELECT * FROM VALUES (2L, 100L), (5L, 5L) AS v(id, n)) s ON t.id = s.id
           WHEN MATCHED THEN UPDATE SET total = s.n WHEN NOT MATCHED THEN INSERT (id, total) VALUES (s.id, s.n)"""
    )
    sql("INSERT INTO {db}.t VALUES (1, 1, NULL)")
    sql("DELETE FROM {db}.t WHERE total + 0 = 5")
    assert sql("SELECT * FROM {db}.t ORDER BY id") == [(1, 23, None), (2, 100, "b"), (4, 3, "c")]


# ---- other writers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "is_refused"),
    [
        ("UPDATE {db}.t SET amount = 0 WHERE id = 2 OR length(name) = 9", True),
        ("DELETE FROM {db}.t WHERE id * 2 = 4", True),
        pytest.param(
            f"MERGE INTO {{db}}.t USING {source((2, 'x', 1.0))} ON t.id = s.id WHEN MATCHED THEN DELETE",
            True,
            marks=pytest.mark.slow,
        ),
        pytest.param("UPDATE {db}.t SET id = 2 WHERE id + 0 = 1", True, marks=pytest.mark.slow),
        ("UPDATE {db}.t SET amount = 0 WHERE id + 0 = 1", False),
    ],
)
def test_a_row_that_another_writer_changes_meanwhile_is_a_conflict(
    table: Sql, connection: Connection, database: str, monkeypatch: pytest.MonkeyPatch, statement: str, is_refused: bool
) -> None:
    live = connection.table(f"{database}.t")
    others(monkeypatch, lambda: live.upsert([{"id": 2, "name": "theirs", "amount": 5.0}]))
    if not is_refused:
        table(statement)
        assert table(ALL)[:2] == [(1, "a", 0.0), (2, "theirs", 5.0)]
        return
    with pytest.raises(
        Exception, match=r"not carried out: other writers have changed 1 .* such as id = 2; run it again"
    ):
        table(statement)
    assert [r[:2] for r in table(ALL)] == [(1, "a"), (2, "theirs"), (3, "c"), (4, None)]
    table(statement)
    assert (2, "theirs", 5.0) not in table(ALL)


def test_a_row_in_a_partition_that_came_meanwhile_is_a_conflict(
    sql: Sql, connection: Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql(
        """CREATE TABLE {db}.t (dt STRING NOT NULL, id INT NOT NULL) PARTITIONED BY (dt)
           TBLPROPERTIES ('primary.key'='dt,id')"""
    )
    sql("INSERT INTO {db}.t VALUES ('d1', 1)")
    live = connection.table(f"{database}.t")
    others(monkeypatch, lambda: live.upsert([{"dt": "d2", "id": 1}]))
    with pytest.raises(Exception, match="such as id = 1 in partition d2"):
        sql("UPDATE {db}.t SET dt = 'd2'")
    assert sql("SELECT * FROM {db}.t ORDER BY dt") == [("d1", 1), ("d2", 1)]


# ---- the mechanism --------------------------------------------------------------------------------------------------


def test_a_failing_task_leaves_nothing_and_says_why(table: Sql, spark: Any) -> None:
    before = table(CHANGES)
    with pytest.raises(Exception, match="raised on purpose"):
        table("UPDATE {db}.t SET name = if(id = 4, raise_error('raised on purpose'), 'x')")
    with pytest.raises(Exception, match="NOT_NULL_ASSERT_VIOLATION"):
        table("UPDATE {db}.t SET id = nullif(id, 3)")
    assert table(CHANGES) == before
    until(lambda: row_writers(spark) == 0)


def test_an_attempt_that_failed_does_not_count(table: Sql, spark: Any, tmp_path: Path) -> None:
    """The query of the rows runs Python, too, in the same tasks as the writer."""
    failed = str(tmp_path / "failed")

    def fails_once(number: int) -> int:
        if number == 4 and not os.path.exists(failed):
            with open(failed, "w"):
                raise ValueError("once")
        return number * 100

    spark.udf.register("fails_once", fails_once, "BIGINT")
    table("UPDATE {db}.t SET amount = fails_once(id)")
    assert [r[2] for r in table(ALL)] == [100.0, 200.0, 300.0, 400.0]
    assert os.path.exists(failed)
    assert len(table(CHANGES)) == 4 + 2 * 4


def row_writers(spark: Any) -> int:
    """The threads of the JVM that feed Python writers."""
    names = [str(t.getName()) for t in spark._jvm.java.lang.Thread.getAllStackTraces().keySet()]
    return len([name for name in names if name.startswith("forebay row writer")])


@pytest.mark.slow
def test_a_statement_that_is_cancelled_ends_its_tasks_and_writes_nothing(sql: Sql, spark: Any) -> None:
    sql(TABLE)
    sql("INSERT INTO {db}.t SELECT id, 'n', 0 FROM range(30000)")
    errors: list[Exception] = []

    def update() -> None:
        try:
            sql("UPDATE {db}.t SET amount = length(java_method('java.lang.Thread', 'sleep', 1L))")
        except Exception as e:  # noqa: BLE001 - looked at below
            errors.append(e)

    thread = threading.Thread(target=update)
    thread.start()
    until(lambda: row_writers(spark) > 0)
    spark.sparkContext.cancelAllJobs()
    thread.join(PATIENCE)
    assert "cancelled" in str(errors[0])
    until(lambda: row_writers(spark) == 0)
    assert sql("SELECT count(*), sum(amount) FROM {db}.t") == [(30000, 0.0)]


@pytest.mark.slow
def test_nested_columns_are_changed(sql: Sql) -> None:
    sql(
        """CREATE TABLE {db}.t (id INT NOT NULL, s STRUCT<a: INT, b: STRING>, l ARRAY<INT>, m MAP<STRING, DOUBLE>)
           TBLPROPERTIES ('primary.key'='id')"""
    )
    sql("INSERT INTO {db}.t VALUES (1, struct(1, 'x'), array(1, NULL), map('k', 1.5)), (2, NULL, NULL, NULL)")
    sql("UPDATE {db}.t SET s.b = 'y', l = array_append(l, 7), m = map_concat(m, map('n', 2D)) WHERE s.a = 1")
    found = sql("SELECT id, s.a, s.b, l, m FROM {db}.t ORDER BY id")
    assert found == [(1, 1, "y", [1, None, 7], {"k": 1.5, "n": 2.0}), (2, None, None, None, None)]


def test_an_error_of_a_python_writer_is_the_statements(sql: Sql, connection: Connection, database: str) -> None:
    connection.create_table(f"{database}.b", {"id": "INT NOT NULL", "b": "BINARY(4)"}, primary_key="id")
    sql("INSERT INTO {db}.b VALUES (1, X'00000001'), (2, X'00000002')")
    with pytest.raises(Exception, match=rf"writing to table {database}.b: .*column 'b'"):
        sql("UPDATE {db}.b SET b = X'01' WHERE id = 2")
    assert sql("SELECT id, hex(b) FROM {db}.b ORDER BY id") == [(1, "00000001"), (2, "00000002")]


def test_a_cluster_without_transactions_writes_at_once_and_keeps_keys(
    table: Sql, connection: Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(settings: Any, application: str | None = None, version: int | None = None) -> StagedWrite:
        return StagedWrite(settings, application, version, 0, False)

    monkeypatch.setattr(StagedWrite, "begin", begin)
    table("UPDATE {db}.t SET name = 'x' WHERE id % 2 = 0")
    table("DELETE FROM {db}.t WHERE id * 2 = 2")
    assert [r[:2] for r in table(ALL)] == [(2, "x"), (3, "c"), (4, "x")]
    with pytest.raises(Exception, match="a primary key would change, which needs a transaction"):
        table("UPDATE {db}.t SET id = id + 1")


def test_data_frames_merge(table: Sql, spark: Any, database: str) -> None:
    table("UPDATE {db}.t SET amount = 1")
    source_frame = spark.sql("SELECT 1L AS id, 'merged' AS name, 5D AS amount")
    if not hasattr(source_frame, "mergeInto"):
        pytest.skip("this Spark has no mergeInto")
    merge = source_frame.alias("s").mergeInto(f"forebay.{database}.t", F.expr("t.id = s.id"))
    merge.whenMatched().update({"name": F.col("s.name")}).whenNotMatchedBySource(F.expr("t.id = 4")).delete().merge()
    assert table(ALL) == [(1, "merged", 1.0), (2, "b", 1.0), (3, "c", 1.0)]


def test_classes_of_catalogs_are_compiled_once_for_a_release_of_spark(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jvm = Jvm.of(spark)
    compiled: list[str] = []
    bytecodes = derived_sessions.bytecodes
    monkeypatch.setattr(
        derived_sessions, "bytecodes", lambda jvm, source: compiled.append(source) or bytecodes(jvm, source)
    )
    made = class_files(jvm)
    assert compiled
    compiled.clear()
    assert class_files(jvm) == made
    assert not compiled


def test_compiled_classes_are_kept_and_replaced_where_they_are_damaged(spark: Any, tmp_path: Path) -> None:
    jvm = Jvm.of(spark)
    jar = class_jar(jvm, "ForebayRowWriterFactory", tmp_path)
    made = jar.read_bytes()
    os_time = jar.stat().st_mtime_ns
    assert class_jar(jvm, "ForebayRowWriterFactory", tmp_path) == jar
    assert jar.stat().st_mtime_ns == os_time
    jar.write_bytes(made[: len(made) // 2])
    class_jar(jvm, "ForebayRowWriterFactory", tmp_path)
    assert jar.read_bytes() == made
    assert list(tmp_path.iterdir()) == [jar]


@pytest.mark.parametrize("rows", [5000, pytest.param(400_000, marks=pytest.mark.slow)])
def test_many_rows_pass_between_spark_and_python(sql: Sql, rows: int) -> None:
    sql(TABLE)
    sql(f"INSERT INTO {{db}}.t SELECT id, concat('n', id), id FROM range({rows})")
    sql("UPDATE {db}.t SET name = concat(name, '!'), amount = -amount WHERE id % 4 < 2")
    sql("DELETE FROM {db}.t WHERE id % 4 = 2")
    by_rest = sql("SELECT id % 4, count(*), sum(amount), max(name) FROM {db}.t GROUP BY 1 ORDER BY 1")
    expected = []
    for rest, sign, mark in ((0, -1, "!"), (1, -1, "!"), (3, 1, "")):
        ids = range(rest, rows, 4)
        expected.append((rest, len(ids), float(sign * sum(ids)), max(f"n{i}" for i in ids) + mark))
    assert by_rest == expected


ON_A_CLUSTER = """
import json, sys
import forebay
import forebay.spark as fb

servers = sys.argv[1]
conf = {"spark.ui.enabled": False, "spark.log.level": "OFF", "spark.sql.shuffle.partitions": 4}
conf["spark.executorEnv.PYTHONPATH"] = sys.argv[2]
spark = fb.session("rows", "local-cluster[2,1,1024]", conf, bootstrap_servers=servers)
run = spark.sql
with forebay.connect(servers) as conn:
    conn.create_database("cluster")
run('''CREATE TABLE forebay.cluster.t (id BIGINT NOT NULL, n BIGINT)
       TBLPROPERTIES ('primary.key'='id', 'bucket.num'='4')''')
run("INSERT INTO forebay.cluster.t SELECT id, id FROM range(0, 4000, 1, 4)")
run("UPDATE forebay.cluster.t SET n = -n WHERE id % 2 = 1")
run('''MERGE INTO forebay.cluster.t USING (SELECT id FROM range(0, 8000, 4, 4)) s ON t.id = s.id
       WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, 0)''')
executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
print(json.dumps([len(executors), [list(r) for r in run("SELECT count(*), sum(n) FROM forebay.cluster.t").collect()]]))
spark.stop()
"""


@pytest.mark.slow
def test_executors_of_their_own_get_the_classes(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data") as server:
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
        path = os.pathsep.join(p for p in sys.path if p)
        command = [sys.executable, "-c", ON_A_CLUSTER, server.bootstrap_servers, path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    rest = [i for i in range(4000) if i % 4]
    inserted = [i for i in range(0, 8000, 4) if i >= 4000]
    expected = [len(rest) + len(inserted), sum(-i if i % 2 else i for i in rest)]
    executors, found = json.loads(done.stdout.splitlines()[-1])
    assert (executors, found) == (3, [expected])  # the driver is counted, too
    assert {jar.suffix for jar in (tmp_path / "cache" / "forebay" / "spark").iterdir()} == {".jar"}
