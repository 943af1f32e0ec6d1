"""Writing Paimon tables by SQL and data frames: INSERT, INSERT OVERWRITE, DELETE, TRUNCATE, tasks that fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.functions import col

from forebay.paimon import Catalog
from forebay.spark.writing import committing, lake_write_builder
from tests.paimon.lake import put
from tests.patience import until
from tests.spark.releases import needs

pytestmark = pytest.mark.spark
LEFT_OUT = needs(4, 1, "NULL for columns that an INSERT leaves out")

Sql = Callable[[str], list[tuple[Any, ...]]]
ALL = "SELECT * FROM {db}.t ORDER BY 1, 2"


@pytest.fixture
def fill(lake_catalog: Catalog, lake: str) -> Callable[..., Any]:
    """Make table `t` with these rows and options, without Spark."""

    def make(rows: list[dict[str, Any]], key: str = "", parts: str = "", **options: str) -> Any:
        given = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
        schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.string())])
        table = lake_catalog.create_table(
            f"{lake}.t", schema, primary_key=key.split(), partition_keys=parts.split(), options=given
        )
        if rows:
            put(table, rows)
        return table

    return make


def row(number: int, day: str = "d1", name: str | None = None) -> dict[str, Any]:
    return {"id": number, "name": name or f"n{number}", "day": day}


def kinds(table: Any) -> list[str]:
    ids = range(1, (table.context.snapshots.latest_id() or 0) + 1)
    return [table.context.snapshots.snapshot(i).commit_kind.value for i in ids]


# ---- INSERT ---------------------------------------------------------------------------------------------------------


@LEFT_OUT
def test_insert_appends_or_upserts_by_position_and_by_name(lake_sql: Sql) -> None:
    lake_sql("CREATE TABLE {db}.t (id BIGINT, name STRING)")
    lake_sql("INSERT INTO {db}.t VALUES (1, 'a'), (2, 'b')")
    lake_sql("INSERT INTO {db}.t (name) VALUES ('c')")
    assert lake_sql(ALL) == [(None, "c"), (1, "a"), (2, "b")]
    lake_sql(
        "CREATE TABLE {db}.k (id BIGINT NOT NULL, name STRING, n INT) TBLPROPERTIES ('primary-key'='id', 'bucket'='2', "
        "'merge-engine'='partial-update')"
    )
    lake_sql("INSERT INTO {db}.k VALUES (1, 'a', 10), (2, 'b', 20)")
    lake_sql("INSERT INTO {db}.k BY NAME SELECT 5 AS n, 2L AS id")
    lake_sql("INSERT INTO {db}.k SELECT id + 1, 'next', NULL FROM {db}.k")
    assert lake_sql("SELECT * FROM {db}.k ORDER BY id") == [(1, "a", 10), (2, "next", 5), (3, "next", None)]


def test_one_task_assigns_the_buckets_of_a_table_with_dynamic_ones(
    lake_sql: Sql, fill: Callable[..., Any], lake_session: Any, lake: str
) -> None:
    table = fill([], key="id", dynamic_bucket__target_row_num="30")
    for name in ("a", "b"):
        frame = lake_session.range(0, 100, 1, 3).selectExpr("id", f"'{name}' AS name", "'d' AS day")
        frame.writeTo(f"lake.{lake}.t").append()
    assert lake_sql("SELECT count(*), min(name), max(name) FROM {db}.t") == [(100, "b", "b")]
    assert {split.bucket for split in table.scan().plan()} == {0, 1, 2, 3}


@pytest.mark.slow
def test_many_tasks_write_the_same_buckets_without_losing_a_row(
    lake_sql: Sql, fill: Callable[..., Any], lake_session: Any, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Spark cannot run the table's bucket function."""
    monkeypatch.setattr(lake_write_builder, "runs_on_executors", lambda jvm: False)
    table = fill([row(i, name="old") for i in range(0, 300, 3)], key="id", bucket="2", sink__parallelism="5")
    frame = lake_session.range(0, 300, 1, 4).selectExpr("id", "'new' AS name", "'d' AS day")
    frame.writeTo(f"lake.{lake}.t").append()
    assert lake_sql("SELECT count(*), count(DISTINCT id), min(name) FROM {db}.t") == [(300, 300, "new")]
    written = [f for split in table.scan().plan() for f in split.files]
    assert len(written) >= 10 or "COMPACT" in kinds(table)


@pytest.mark.parametrize("rows_max", [0, 100], ids=["job", "driver"])
def test_precommit_compaction_makes_one_file_of_what_all_tasks_wrote(
    fill: Callable[..., Any], lake_session: Any, lake: str, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    monkeypatch.setattr(committing, "DRIVER_ROWS_MAX", rows_max)
    table = fill([])
    frame = lake_session.range(0, 100, 1, 4).selectExpr("id", "'n' AS name", "'d' AS day")
    frame.writeTo(f"lake.{lake}.t").option("precommit-compact", "true").append()
    assert [len(split.files) for split in table.scan().plan()] == [1]
    assert kinds(table) == ["APPEND"]


@needs(4, 3, "a catalog that is told the options of a write")
def test_changes_are_upserts_and_deletes(lake_sql: Sql, fill: Callable[..., Any], lake_session: Any, lake: str) -> None:
    fill([row(1), row(2)], key="id", bucket="1")
    lake_sql("INSERT INTO {db}.t WITH ('write.changes'='true') VALUES ('delete', 1, NULL, NULL), ('+I', 3, 'old', 'd')")
    pair = "('update_preimage', 3, 'old', 'd'), ('update_postimage', 3, 'new', 'd')"  # as CHANGES have it
    lake_sql(f"INSERT INTO {{db}}.t WITH ('write.changes'='true') VALUES {pair}")
    frame = lake_session.sql("SELECT 2L AS id, '-D' AS _change_type")
    frame.writeTo(f"lake.{lake}.t").option("write.changes", "true").append()
    assert lake_sql(ALL) == [(3, "new", "d")]
    lake_sql("CREATE TABLE {db}.l (id BIGINT, name STRING, day STRING)")
    with pytest.raises(Exception, match="has no primary key, so it takes inserts only"):
        lake_sql("INSERT INTO {db}.l WITH ('write.changes'='true') VALUES ('delete', 1, NULL, NULL)")


def test_misspelt_write_options_are_refused(fill: Callable[..., Any], lake_session: Any, lake: str) -> None:
    fill([])
    frame = lake_session.sql("SELECT 1L AS id, 'a' AS name, 'd' AS day")
    with pytest.raises(Exception, match="no write option 'wirte-only'; did you mean 'write-only'"):
        frame.writeTo(f"lake.{lake}.t").option("wirte-only", "true").append()
    with pytest.raises(Exception, match="'bucket' is a property of the table"):
        frame.writeTo(f"lake.{lake}.t").option("bucket", "3").append()


# ---- INSERT OVERWRITE -----------------------------------------------------------------------------------------------


def test_insert_overwrite_replaces_the_partition_that_it_names(lake_sql: Sql, fill: Callable[..., Any]) -> None:
    fill([row(1, "d1"), row(2, "d2")], parts="day")
    lake_sql("INSERT OVERWRITE {db}.t PARTITION (day = 'd1') VALUES (3, 'new')")
    assert lake_sql(ALL) == [(2, "n2", "d2"), (3, "new", "d1")]


def test_insert_overwrite_replaces_the_table_unless_partitions_are_dynamic(
    lake_sql: Sql, fill: Callable[..., Any], lake_session: Any
) -> None:
    fill([row(1, "d1"), row(2, "d2")], parts="day")
    lake_session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        lake_sql("INSERT OVERWRITE {db}.t VALUES (3, 'new', 'd1')")
    finally:
        lake_session.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert lake_sql(ALL) == [(2, "n2", "d2"), (3, "new", "d1")]
    lake_sql("INSERT OVERWRITE {db}.t WITH ('dynamic-partition-overwrite'='true') VALUES (4, 'newer', 'd1')")
    assert lake_sql(ALL) == [(2, "n2", "d2"), (4, "newer", "d1")]
    lake_sql("INSERT OVERWRITE {db}.t VALUES (5, 'only', 'd3')")
    assert lake_sql(ALL) == [(5, "only", "d3")]


def test_a_data_frame_overwrites_where_partitions_have_a_value(
    lake_sql: Sql, fill: Callable[..., Any], lake_session: Any, lake: str
) -> None:
    fill([row(1, "d1"), row(2, "d2")], parts="day")
    frame = lake_session.sql("SELECT 3L AS id, 'new' AS name, 'd2' AS day")
    frame.writeTo(f"lake.{lake}.t").overwrite(col("day") == "d2")
    assert lake_sql(ALL) == [(1, "n1", "d1"), (3, "new", "d2")]
    with pytest.raises(Exception, match=r"only partitions can be replaced, by equality with values of day"):
        frame.writeTo(f"lake.{lake}.t").overwrite(col("id") > 2)
    assert lake_sql(ALL) == [(1, "n1", "d1"), (3, "new", "d2")]


# ---- DELETE and TRUNCATE --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"key": "id day", "bucket": "2"}, {"bucket": "2", "bucket_key": "id"}],
    ids=["append", "key", "ordered"],
)
def test_delete_takes_rows_and_whole_partitions(
    lake_sql: Sql, fill: Callable[..., Any], options: dict[str, str]
) -> None:
    table = fill([row(i, f"d{i % 2}") for i in range(6)], parts="day", **options)
    put(table, [row(10, "d0"), row(11, "d1")])
    lake_sql("DELETE FROM {db}.t WHERE id >= 4 AND id < 11 AND name <> 'n10'")
    assert [r[0] for r in lake_sql(ALL)] == [0, 1, 2, 3, 10, 11]
    lake_sql("DELETE FROM {db}.t WHERE name IS NULL")
    files = set(Path(table.context.paths.root).rglob("data-*"))
    lake_sql("DELETE FROM {db}.t WHERE day = 'd1'")
    assert [r[0] for r in lake_sql(ALL)] == [0, 2, 10]
    assert set(Path(table.context.paths.root).rglob("data-*")) == files, "dropping a partition writes no data"
    lake_sql("TRUNCATE TABLE {db}.t")
    assert lake_sql(ALL) == []


def test_a_delete_keeps_the_order_of_a_bucketed_append_table(lake_sql: Sql, fill: Callable[..., Any]) -> None:
    table = fill([row(i) for i in range(5)], bucket="1", bucket_key="day")
    put(table, [row(i) for i in range(5, 9)])
    lake_sql("DELETE FROM {db}.t WHERE id IN (1, 6)")
    put(table, [row(9)])
    assert [r["id"] for r in table.scan().to_arrow().to_pylist()] == [0, 2, 3, 4, 5, 7, 8, 9]


def test_merge_engines_that_take_no_deletes_say_which_option_would(lake_sql: Sql, fill: Callable[..., Any]) -> None:
    fill([row(1), row(2)], key="id", bucket="1", merge_engine="partial-update")
    with pytest.raises(Exception, match=r"'partial-update.remove-record-on-delete' = 'true'"):
        lake_sql("DELETE FROM {db}.t WHERE id = 1")
    lake_sql("DROP TABLE {db}.t")
    merging = {"merge_engine": "partial-update", "partial_update__remove_record_on_delete": "true"}
    fill([row(1), row(2)], key="id", bucket="1", **merging)
    lake_sql("DELETE FROM {db}.t WHERE id = 1")
    assert lake_sql(ALL) == [(2, "n2", "d1")]


# ---- tasks that fail ------------------------------------------------------------------------------------------------


@pytest.fixture
def flaky(lake_session: Any) -> Callable[[int], Any]:
    """A frame of 200 rows whose second half fails in its first attempts, after some rows."""

    def frame(failures: int) -> Any:
        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            task = TaskContext.get()
            assert task is not None
            yield from batches
            if task.partitionId() == 1 and task.attemptNumber() < failures:
                raise ValueError("on purpose")

        made = lake_session.range(0, 200, 1, 2).mapInArrow(rows, "id long")
        return made.selectExpr("id", "'n' AS name", "'d' AS day")

    return frame


def test_a_task_that_is_run_again_writes_its_rows_once(
    flaky: Callable[[int], Any], fill: Callable[..., Any], lake: str, lake_sql: Sql
) -> None:
    fill([])
    flaky(1).writeTo(f"lake.{lake}.t").append()
    assert lake_sql("SELECT count(*), count(DISTINCT id) FROM {db}.t") == [(200, 200)]


def test_a_write_that_fails_shows_nothing_and_deletes_what_its_finished_tasks_wrote(
    lake_session: Any, fill: Callable[..., Any], lake: str, tmp_path: Path
) -> None:
    table = fill([])
    one_is_finished = tmp_path / "finished"
    tracker = lake_session.sparkContext.statusTracker()

    def is_finished() -> bool:
        found = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
        return any(stage is not None and (stage.numTasks, stage.numCompletedTasks) == (2, 1) for stage in found)

    def tell() -> None:
        try:
            until(is_finished, "the task that does not fail")
        finally:
            one_is_finished.touch()

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        yield from batches
        while task.partitionId() == 1:
            if one_is_finished.exists():
                raise ValueError("on purpose")
            time.sleep(0.01)

    frame = lake_session.range(0, 200, 1, 2).mapInArrow(rows, "id long").selectExpr("id", "'n' AS name", "'d' AS day")
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(tell)
        with pytest.raises(Exception, match="on purpose"):
            frame.writeTo(f"lake.{lake}.t").append()
    told.result()
    assert table.context.snapshots.latest_id() is None
    assert list(Path(table.context.paths.root).rglob("data-*")) == []
