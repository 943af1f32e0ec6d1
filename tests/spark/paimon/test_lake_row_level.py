"""UPDATE, MERGE, and DELETE with any condition on lake tables, compared with what plain Python makes of the rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from forebay.paimon import Catalog
from forebay.spark.writing import lake_deletes
from forebay.spark.writing.lake_deltas import LakeDeltaWrite
from forebay.spark.writing.lake_rewrites import RewriteWrite
from tests.every_run import every_run
from tests.paimon.compact.deleted_rows import COLUMNS, commit_marked, index_files
from tests.paimon.lake import live_files, put
from tests.spark.merge_sources import source
from tests.spark.paimon.table_kinds import KINDS

pytestmark = pytest.mark.spark

Sql = Callable[[str], list[tuple[Any, ...]]]
Row = tuple[Any, ...]

USUAL = ("append",)

FILLED: list[Row] = [(1, "a", 1.0), (2, "b", 2.0), (3, "c", math.nan), (4, None, None), (11, "k", 5.0), (12, "l", 6.0)]
ALL = "SELECT * FROM {db}.t ORDER BY id"


def fill(sql: Sql, kind: str) -> None:
    """Create table `t` and write `FILLED` in two commits, so that it has several files."""
    properties = f"TBLPROPERTIES ({KINDS[kind]})" if KINDS[kind] else ""
    sql(f"CREATE TABLE {{db}}.t (id BIGINT NOT NULL, name STRING, amount DOUBLE) {properties}")
    sql("INSERT INTO {db}.t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', CAST('NaN' AS DOUBLE)), (4, NULL, NULL)")
    sql("INSERT INTO {db}.t VALUES (11, 'k', 5), (12, 'l', 6)")


def same(found: list[Row], expected: list[Row]) -> bool:
    """Whether rows are the same; NaN is NaN."""
    return repr(found) == repr(sorted(expected, key=lambda row: row[0]))


def commits(sql: Sql) -> list[str]:
    """The kinds of all commits but compactions."""
    found = sql("SELECT commit_kind FROM {db}.`t$snapshots` ORDER BY snapshot_id")
    return [kind for (kind,) in found if kind != "COMPACT"]


@pytest.mark.parametrize("statement", every_run(["UPDATE", "DELETE"], lambda statement: statement == "UPDATE"))
@pytest.mark.parametrize("bucket", every_run(["-1", "1"], lambda bucket: bucket == "-1"))
def test_rows_of_append_tables_with_deletion_vectors_change(
    lake_sql: Sql, lake_catalog: Catalog, lake: str, statement: str, bucket: str
) -> None:
    """Other software has marked two rows of each of two files, in one index file; a third file has none."""
    options = {"deletion-vectors.enabled": "true", "bucket": bucket} | ({"bucket-key": "id"} if bucket == "1" else {})
    table = lake_catalog.create_table(f"{lake}.t", COLUMNS, options=options)
    commit_marked(table, [(range(10), [0, 1]), (range(10, 20), [4, 5])], level=0)
    marked = {f.file_name for f in live_files(table)}
    put(table, [{"id": n, "v": 0} for n in range(20, 30)])
    untouched = {f.file_name for f in live_files(table)} - marked
    rows = [(n, 0) for n in range(30) if n not in (0, 1, 14, 15)]
    if statement == "UPDATE":
        lake_sql("UPDATE {db}.t SET v = id WHERE id BETWEEN 1 AND 3")
        rows = [(n, n if n < 4 else 0) for n, _ in rows]
    else:
        lake_sql("DELETE FROM {db}.t WHERE id IN (13, 14)")
        rows.remove((13, 0))
    assert sorted(lake_sql("SELECT * FROM {db}.t")) == rows
    assert index_files(table) == []
    assert untouched == {f.file_name for f in live_files(table)} & (marked | untouched)


@pytest.mark.parametrize("kind", every_run(KINDS, USUAL.__contains__))
def test_statements_with_any_condition_are_one_commit_each(lake_sql: Sql, kind: str) -> None:
    fill(lake_sql, kind)
    rows = {row[0]: row for row in FILLED}
    lake_sql("UPDATE {db}.t SET name = concat(name, id), amount = amount + 10 WHERE id % 2 = 0 AND amount IS NOT NULL")
    for i in (2, 12):
        rows[i] = (i, f"{rows[i][1]}{i}", rows[i][2] + 10)
    assert same(lake_sql(ALL), list(rows.values()))
    lake_sql("DELETE FROM {db}.t WHERE id IN (SELECT max(id) FROM {db}.t) OR isnan(amount)")
    del rows[12], rows[3]
    assert same(lake_sql(ALL), list(rows.values()))
    given = source((1, "one", 100.0), (2, "gone", 0.0), (7, "new", 70.0), (8, "no", None))
    lake_sql(
        f"""MERGE INTO {{db}}.t USING {given} ON t.id = s.id
            WHEN MATCHED AND s.name = 'gone' THEN DELETE
            WHEN MATCHED THEN UPDATE SET name = s.name, amount = t.amount + s.amount
            WHEN NOT MATCHED AND s.amount IS NOT NULL THEN INSERT *
            WHEN NOT MATCHED BY SOURCE AND t.name IS NULL THEN DELETE
            WHEN NOT MATCHED BY SOURCE THEN UPDATE SET amount = t.amount + 1"""
    )
    assert same(lake_sql(ALL), [(1, "one", 101.0), (7, "new", 70.0), (11, "k", 6.0)])
    change = "OVERWRITE" if kind in ("append", "buckets") else "APPEND"
    assert commits(lake_sql) == ["APPEND", "APPEND", change, change, change]


@pytest.mark.parametrize(
    "clauses", ["WHEN NOT MATCHED THEN INSERT *", "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *"]
)
def test_two_rows_that_merge_inserts_are_not_given_one_primary_key(lake_sql: Sql, clauses: str) -> None:
    fill(lake_sql, "key")
    given = source((7, "x", 1.0), (8, "y", 2.0), (7, "z", 3.0), (9, "y", 4.0))
    with pytest.raises(Exception, match=r"1 primary keys would each get more than one row, such as id = 7") as raised:
        lake_sql(f"MERGE INTO {{db}}.t USING {given} ON t.id = s.id {clauses}")
    assert "Traceback" not in str(raised.value)
    assert same(lake_sql(ALL), FILLED)
    given = source((7, "x", 1.0), (8, "y", 2.0))
    lake_sql(f"MERGE INTO {{db}}.t USING {given} ON t.id = s.id {clauses}")
    assert same(lake_sql(ALL), [*FILLED, (7, "x", 1.0), (8, "y", 2.0)])


def test_only_files_with_rows_that_change_are_written_again(lake_sql: Sql) -> None:
    fill(lake_sql, "append")
    files = "SELECT file_path FROM {db}.`t$files`"
    before = set(lake_sql(files))
    lake_sql("UPDATE {db}.t SET name = 'x' WHERE length(name) = 1 AND id + 0 = 12")
    after = set(lake_sql(files))
    assert (len(before - after), len(after - before)) == (1, 1)
    assert len(before) > 1
    lake_sql("UPDATE {db}.t SET name = 'x' WHERE length(name) = 77")
    lake_sql(f"MERGE INTO {{db}}.t USING {source((99, 'x', 1.0))} ON t.id = s.id WHEN MATCHED THEN DELETE")
    assert set(lake_sql(files)) == after
    assert len(commits(lake_sql)) == 3


@pytest.mark.slow
def test_rows_move_between_partitions_of_an_append_table(lake_sql: Sql) -> None:
    lake_sql("CREATE TABLE {db}.t (id INT, d DECIMAL(10, 2), day STRING) PARTITIONED BY (day)")
    lake_sql("INSERT INTO {db}.t SELECT cast(id AS INT), id / 4, concat('d', id % 3) FROM range(9)")
    lake_sql("UPDATE {db}.t SET day = 'd9', d = -d WHERE day = 'd1' AND id + 0 > 3")
    expected = [(i, i / 4, f"d{i % 3}") for i in range(9)]
    for i in (4, 7):
        expected[i] = (i, -i / 4, "d9")
    assert lake_sql("SELECT id, cast(d AS DOUBLE), day FROM {db}.t ORDER BY id") == expected
    lake_sql("DELETE FROM {db}.t WHERE day = 'd9' AND id % 2 = 0 OR day = 'd2'")
    assert lake_sql("SELECT id FROM {db}.t ORDER BY id") == [(0,), (1,), (3,), (6,), (7,)]


def test_a_deleted_row_of_merge_stays_deleted_whatever_its_sequence_field_says(lake_sql: Sql) -> None:
    fill(lake_sql, "sequence")
    lake_sql(f"MERGE INTO {{db}}.t USING {source((12, 'x', 0.0))} ON t.id = s.id WHEN MATCHED THEN DELETE")
    assert same(lake_sql(ALL), FILLED[:-1])
    lake_sql("UPDATE {db}.t SET amount = 0.5, name = 'older' WHERE id = 11")  # as Paimon: the newer version stays
    assert same(lake_sql(ALL), FILLED[:-1])


def test_what_paimon_refuses_is_refused_by_name(lake_sql: Sql) -> None:
    fill(lake_sql, "key")
    with pytest.raises(Exception, match="the primary key of a lake table's row cannot be changed"):
        lake_sql("UPDATE {db}.t SET id = id + 1")
    assert same(lake_sql(ALL), FILLED)
    for engine, more in (("first-row", ""), ("aggregation", ", 'fields.amount.aggregate-function'='sum'")):
        lake_sql("DROP TABLE {db}.t")
        lake_sql(
            f"""CREATE TABLE {{db}}.t (id BIGINT NOT NULL, name STRING, amount DOUBLE)
                TBLPROPERTIES ('primary-key'='id', 'bucket'='1', 'merge-engine'='{engine}'{more})"""
        )
        with pytest.raises(Exception, match=f"tables with merge engine {engine} take no changed rows"):
            lake_sql("UPDATE {db}.t SET name = 'x'")
        with pytest.raises(Exception, match=f"merge engine {engine}"):
            lake_sql("DELETE FROM {db}.t WHERE length(name) = 1")


# ---- other writers --------------------------------------------------------------------------------------------------


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Has something done once, between the scan of the next statement and its commit."""

    def arrange(act: Callable[[], object]) -> None:
        left = [act]
        for kind in (LakeDeltaWrite, RewriteWrite):

            def task(self: Any, physical: Any, original: Any = kind._task) -> Any:
                if left:
                    left.pop()()
                return original(self, physical)

            monkeypatch.setattr(kind, "_task", task)

    return arrange


STATEMENTS = (
    "UPDATE {db}.t SET amount = 9 WHERE id + 0 = 2",
    "DELETE FROM {db}.t WHERE id * 2 = 4",
    f"MERGE INTO {{db}}.t USING {source((2, 'x', 9.0))} ON t.id = s.id WHEN MATCHED THEN UPDATE SET *",
)


@pytest.mark.parametrize("statement", every_run(STATEMENTS, STATEMENTS[0].__eq__))
def test_a_row_that_another_commit_changes_meanwhile_is_a_conflict(
    lake_sql: Sql, lake_catalog: Catalog, lake: str, meanwhile: Any, statement: str
) -> None:
    fill(lake_sql, "key")
    table = lake_catalog.table(f"{lake}.t")
    meanwhile(lambda: table.upsert([{"id": 2, "name": "theirs", "amount": 5.0}]))
    with pytest.raises(Exception, match=r"not carried out: snapshot \d+ .* has changed 1 of its rows, such as id = 2"):
        lake_sql(statement)
    assert (2, "theirs", 5.0) in lake_sql(ALL)
    lake_sql(statement)
    assert (2, "theirs", 5.0) not in lake_sql(ALL)


def test_a_delete_by_filters_finds_its_rows_again_after_a_conflict(
    lake_sql: Sql, lake_catalog: Catalog, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(lake_sql, "key")
    table = lake_catalog.table(f"{lake}.t")
    original, left = lake_deletes.commit_and_compact, [True]

    def after_another(*args: Any) -> Any:
        if left:
            left.pop()
            table.upsert([{"id": 2, "name": "theirs", "amount": 5.0}, {"id": 3, "name": "x", "amount": 0.0}])
        return original(*args)

    monkeypatch.setattr(lake_deletes, "commit_and_compact", after_another)
    lake_sql("DELETE FROM {db}.t WHERE amount < 3")
    assert [row[0] for row in lake_sql(ALL)] == [2, 4, 11, 12]


def test_other_rows_of_the_same_buckets_and_compactions_are_no_conflict(
    lake_sql: Sql, lake_catalog: Catalog, lake: str, meanwhile: Any
) -> None:
    fill(lake_sql, "key")
    table = lake_catalog.table(f"{lake}.t")

    def act() -> None:
        table.upsert([{"id": i, "name": "theirs", "amount": 5.0} for i in (1, 3, 20)])
        table.compact(full=True)

    meanwhile(act)
    lake_sql(STATEMENTS[0])
    expected = [(2, "b", 9.0), *((i, "theirs", 5.0) for i in (1, 3, 20)), FILLED[3], *FILLED[4:]]
    assert same(lake_sql(ALL), expected)


def test_a_partition_that_is_replaced_meanwhile_is_a_conflict(
    lake_sql: Sql, lake_catalog: Catalog, lake: str, meanwhile: Any
) -> None:
    fill(lake_sql, "key")
    meanwhile(lambda: lake_catalog.table(f"{lake}.t").new_commit().truncate())
    with pytest.raises(Exception, match="has replaced files that have rows of its buckets; run it again"):
        lake_sql(STATEMENTS[0])
    assert lake_sql(ALL) == []


@pytest.mark.slow
def test_a_file_that_is_gone_is_a_conflict_and_appended_rows_are_not(
    lake_sql: Sql, lake_catalog: Catalog, lake: str, meanwhile: Any
) -> None:
    fill(lake_sql, "append")
    table = lake_catalog.table(f"{lake}.t")
    meanwhile(lambda: table.append([{"id": 2, "name": "theirs", "amount": 5.0}]))
    lake_sql(STATEMENTS[0])
    assert sorted(row for row in lake_sql(ALL) if row[0] == 2) == [(2, "b", 9.0), (2, "theirs", 5.0)]
    meanwhile(lambda: table.compact(full=True))
    with pytest.raises(Exception, match="other writers have replaced files that it read; run it again"):
        lake_sql(STATEMENTS[1])
    assert len([row for row in lake_sql(ALL) if row[0] == 2]) == 2
    lake_sql(STATEMENTS[1])
    assert [row for row in lake_sql(ALL) if row[0] == 2] == []
