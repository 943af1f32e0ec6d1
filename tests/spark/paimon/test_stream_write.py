"""Streaming queries that write Paimon tables, through the catalog and through the format: every micro-batch once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.paimon import Catalog
from forebay.paimon.table import Table
from tests.checkpoints import forget_last_batch
from tests.paimon.lake import put
from tests.patience import PATIENCE
from tests.spark.releases import needs

pytestmark = pytest.mark.spark

Sql = Callable[[str], list[tuple[Any, ...]]]
SCHEMA = "id BIGINT, name STRING"


class Feed:
    """A directory of Parquet files, each a micro-batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._files = 0

    def add(self, *ids: int, name: str = "n") -> None:
        rows = pa.table({"id": pa.array(ids, pa.int64()), "name": pa.array([name] * len(ids), pa.string())})
        path = self.folder / f"{self._files:04}.parquet"
        pq.write_table(rows, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
        os.utime(path, (self._files, self._files))  # files are taken in the order of their times
        self._files += 1

    def frame(self, session: Any) -> Any:
        return session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self.folder))


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path / "feed")


@pytest.fixture
def table(lake_catalog: Catalog, lake: str) -> Callable[..., Table]:
    """Make table `t`, without Spark; options as in test_write."""

    def make(key: str = "", columns: pa.Schema | None = None, **options: str) -> Table:
        given = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
        fields = columns or pa.schema([("id", pa.int64()), ("name", pa.string())])
        return lake_catalog.create_table(f"{lake}.t", fields, primary_key=key.split(), options=given)

    return make


def run(writer: Any, start: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """Have a query do all that is there, and end; its progress."""
    query = start(writer.trigger(availableNow=True))
    query.awaitTermination()
    return [json.loads(p.json) for p in query.recentProgress]


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(r.values()) for r in table.refresh().scan().to_arrow().to_pylist())


STREAM_FORMAT = needs(4, 1, "stream writers that take Arrow batches")
DOORS = ["catalog", pytest.param("format", marks=STREAM_FORMAT)]


def starter(door: str, lake: str, table: Table) -> Callable[[Any], Any]:
    """How a query is started to write `table`."""
    if door == "catalog":
        return lambda writer: writer.toTable(f"lake.{lake}.t")
    return lambda writer: writer.format("forebay-paimon").start(table.context.paths.root)


# ---- once -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", ["catalog", pytest.param("format", marks=[STREAM_FORMAT, pytest.mark.slow])])
@pytest.mark.one_in(2)
def test_a_micro_batch_that_spark_repeats_after_a_restart_adds_nothing(
    lake_session: Any, lake: str, feed: Feed, table: Callable[..., Table], tmp_path: Path, door: str
) -> None:
    made = table()
    start, checkpoint = starter(door, lake, made), tmp_path / "checkpoint"

    def writer() -> Any:
        return feed.frame(lake_session).writeStream.option("checkpointLocation", str(checkpoint))

    feed.add(1, 2)
    feed.add(3)
    run(writer(), start)
    assert [r[0] for r in rows_of(made)] == [1, 2, 3]
    assert forget_last_batch(checkpoint) == 1
    feed.add(4)
    run(writer(), start)
    assert [r[0] for r in rows_of(made)] == [1, 2, 3, 4]
    snapshots = [made.context.snapshots.snapshot(i) for i in range(1, (made.context.snapshots.latest_id() or 0) + 1)]
    assert [s.commit_identifier for s in snapshots] == [0, 1, 2]
    assert len({s.commit_user for s in snapshots}) == 1
    assert len(list(Path(made.context.paths.root).rglob("data-*"))) == 3, "the files of the repeated batch are deleted"


def test_a_branch_is_written_like_a_table(
    lake_session: Any, lake: str, lake_sql: Sql, feed: Feed, table: Callable[..., Table], tmp_path: Path
) -> None:
    made = table()
    lake_sql("INSERT INTO {db}.t VALUES (1, 'main')")
    lake_sql("CALL lake.sys.create_branch(table => '{db}.t', branch => 'dev')")
    feed.add(2)
    writer = feed.frame(lake_session).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    run(writer, lambda writer: writer.toTable(f"lake.{lake}.`t$branch_dev`"))
    assert [r[0] for r in rows_of(made.on_branch("dev"))] == [2]
    assert [r[0] for r in rows_of(made)] == [1]


def test_a_query_with_a_new_checkpoint_writes_all_again(
    lake_session: Any, lake: str, feed: Feed, table: Callable[..., Table], tmp_path: Path
) -> None:
    made = table()
    feed.add(1)
    for number in range(2):
        frame = feed.frame(lake_session)
        run(frame.writeStream.option("checkpointLocation", str(tmp_path / f"{number}")), starter("catalog", lake, made))
    assert [r[0] for r in rows_of(made)] == [1, 1]


@pytest.mark.parametrize("door", DOORS)
def test_tasks_that_are_run_again_in_a_micro_batch_write_once(
    lake_session: Any, lake: str, feed: Feed, table: Callable[..., Table], tmp_path: Path, door: str
) -> None:
    made = table()
    feed.add(*range(50))

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        yield from batches
        if task is not None and task.attemptNumber() == 0:
            raise ValueError("on purpose")

    frame = feed.frame(lake_session).mapInArrow(rows, SCHEMA)
    run(frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")), starter(door, lake, made))
    assert [r[0] for r in rows_of(made)] == list(range(50))


KILLED = """
import os, signal, sys
from pathlib import Path
import forebay.spark
from forebay.spark.writing.stream_commits import StreamCommits

warehouse, feed, checkpoint, target, die_after = sys.argv[1:]
commit = StreamCommits.commit

def commit_and_die(self, epoch):
    made = commit(self, epoch)
    if epoch.number == int(die_after):
        os.killpg(0, signal.SIGKILL)
    return made

StreamCommits.commit = commit_and_die
conf = {"spark.ui.enabled": False, "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": 2,
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1", "spark.log.level": "OFF"}
spark = forebay.spark.session("killed", "local[2]", conf, catalog="lake", warehouse=warehouse)
frame = spark.readStream.schema("id BIGINT, name STRING").option("maxFilesPerTrigger", 1).parquet(feed)
writer = frame.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
writer.toTable(target).awaitTermination()
"""


@pytest.mark.slow
def test_a_driver_that_is_killed_between_the_commits_of_table_and_spark_loses_and_repeats_nothing(
    lake_session: Any, lake: str, feed: Feed, table: Callable[..., Table], tmp_path: Path, warehouse: Path
) -> None:
    made = table(key="id", bucket="2")
    for number in range(4):
        feed.add(number, number + 1, name=f"n{number}")
    checkpoint = tmp_path / "checkpoint"
    arguments = [str(warehouse), str(feed.folder), str(checkpoint), f"lake.{lake}.t", "2"]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], start_new_session=True, timeout=PATIENCE * 3, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert {f.name for f in (checkpoint / "commits").iterdir() if f.name.isdigit()} == {"0", "1"}
    assert [r[0] for r in rows_of(made)] == [0, 1, 2, 3], "batch 2 is in the table"
    writer = feed.frame(lake_session).writeStream.option("checkpointLocation", str(checkpoint))
    run(writer, starter("catalog", lake, made))
    assert rows_of(made) == [(0, "n0"), (1, "n1"), (2, "n2"), (3, "n3"), (4, "n3")]
    appends = [
        s.commit_identifier
        for i in range(1, (made.context.snapshots.latest_id() or 0) + 1)
        if (s := made.context.snapshots.snapshot(i)).commit_kind.value == "APPEND"
    ]
    assert appends == [0, 1, 2, 3]


# ---- keys -----------------------------------------------------------------------------------------------------------


def test_output_mode_update_upserts_by_key_and_is_refused_without_one(
    lake_session: Any, lake: str, lake_sql: Sql, feed: Feed, tmp_path: Path
) -> None:
    lake_sql("CREATE TABLE {db}.t (name STRING NOT NULL, n BIGINT) TBLPROPERTIES ('primary-key'='name', 'bucket'='1')")
    feed.add(1, 2, name="a")
    feed.add(3, name="b")
    feed.add(4, name="a")
    counts = feed.frame(lake_session).groupBy("name").count().withColumnRenamed("count", "n")
    writer = counts.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
    run(writer, lambda w: w.toTable(f"lake.{lake}.t"))
    assert lake_sql("SELECT * FROM {db}.t ORDER BY name") == [("a", 3), ("b", 1)]
    lake_sql("CREATE TABLE {db}.u (name STRING, n BIGINT)")
    refused = counts.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "other"))
    with pytest.raises(Exception, match=r"(?i)update"):
        run(refused, lambda w: w.toTable(f"lake.{lake}.u"))


def test_columns_that_a_stream_lacks_keep_their_values_by_partial_update(
    lake_session: Any, lake: str, feed: Feed, table: Callable[..., Table], tmp_path: Path
) -> None:
    columns = pa.schema([("id", pa.int64()), ("name", pa.string()), ("other", pa.int32())])
    made = table("id", columns, bucket="1", merge_engine="partial-update")
    put(made, [{"id": 1, "name": "old", "other": 10}])
    feed.add(1, name="new")
    writer = feed.frame(lake_session).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    run(writer, starter("catalog", lake, made))
    assert rows_of(made) == [(1, "new", 10)]


def test_a_stream_whose_keys_have_another_type_is_cast_or_refused_by_name(
    lake_session: Any, lake: str, table: Callable[..., Table], tmp_path: Path
) -> None:
    """Spark casts no stream, and the catalog's bucket function takes keys of the table's type only."""
    made = table("id", bucket="4")
    lake_session.range(9).selectExpr("id", "'n' AS name").write.parquet(str(tmp_path / "in"))
    stream = lake_session.readStream.schema("id BIGINT, name STRING").parquet(str(tmp_path / "in"))

    def write(columns: str) -> None:
        writer = stream.selectExpr(columns, "name").writeStream
        run(writer.option("checkpointLocation", str(tmp_path / columns[:3])), starter("catalog", lake, made))

    write("int(id) AS id")
    assert rows_of(made) == [(number, "n") for number in range(9)]
    with pytest.raises(Exception, match="column 'id'"):
        write("string(id) AS id")


def test_a_stream_with_a_column_that_the_table_lacks_is_refused(
    lake_session: Any, lake: str, feed: Feed, table: Callable[..., Table], tmp_path: Path
) -> None:
    made = table()
    feed.add(1)
    frame = feed.frame(lake_session).withColumnRenamed("name", "nmae")
    with pytest.raises(Exception, match="column 'nmae', which the table does not have; did you mean 'name'"):
        run(
            frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")), starter("catalog", lake, made)
        )


# ---- compaction and progress ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_small_files_are_packed_beside_the_stream_and_its_progress_tells(
    lake_session: Any, lake: str, feed: Feed, table: Callable[..., Table], tmp_path: Path
) -> None:
    made = table()
    for number in range(8):
        feed.add(number)
    writer = feed.frame(lake_session).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    progress = run(writer, starter("catalog", lake, made))
    assert rows_of(made) == [(i, "n") for i in range(8)]
    metrics = progress[-1]["sink"]["metrics"]
    assert (metrics["rowsWritten"], metrics["commits"], metrics["repeatedBatches"]) == ("8", "8", "0")
    # What is under way when the query ends is finished.
    give_up = time.monotonic() + PATIENCE
    while "COMPACT" not in kinds_of(made) and time.monotonic() < give_up:
        time.sleep(0.2)
    assert "COMPACT" in kinds_of(made)
    assert rows_of(made) == [(i, "n") for i in range(8)]


def test_precommit_compaction_leaves_one_file_of_a_micro_batch(
    lake_session: Any, lake: str, feed: Feed, table: Callable[..., Table], tmp_path: Path
) -> None:
    made = table(write_only="true")
    feed.add(*range(100))
    frame = feed.frame(lake_session).repartition(4)
    writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    run(writer.option("precommit-compact", "true"), starter("catalog", lake, made))
    assert [len(split.files) for split in made.scan().plan()] == [1]
    assert kinds_of(made) == ["APPEND"]


def kinds_of(table: Table) -> list[str]:
    ids = range(1, (table.context.snapshots.latest_id() or 0) + 1)
    return [table.context.snapshots.snapshot(i).commit_kind.value for i in ids]


# ---- the format -----------------------------------------------------------------------------------------------------


def test_the_format_appends_and_overwrites(lake_session: Any, lake: str, table: Callable[..., Table]) -> None:
    made = table("id", bucket="2")
    frame = lake_session.range(0, 10, 1, 2).selectExpr("id", "'a' AS name")
    frame.write.format("forebay-paimon").mode("append").save(made.context.paths.root)
    frame.limit(3).selectExpr("id", "'b' AS name").write.format("forebay-paimon").mode("append").save(
        made.context.paths.root
    )
    assert rows_of(made) == [(i, "b" if i < 3 else "a") for i in range(10)]
    lake_session.sql("SELECT 7L AS id, 'only' AS name").write.format("forebay-paimon").mode("overwrite").save(
        made.context.paths.root
    )
    assert rows_of(made) == [(7, "only")]


def test_the_format_refuses_dynamic_buckets_from_several_tasks_and_leaves_nothing(
    lake_session: Any, table: Callable[..., Table]
) -> None:
    made = table("id")
    frame = lake_session.range(0, 10, 1, 2).selectExpr("id", "'a' AS name")
    with pytest.raises(Exception, match="it has dynamic buckets, whose keys one task must assign"):
        frame.write.format("forebay-paimon").mode("append").save(made.context.paths.root)
    assert list(Path(made.context.paths.root).rglob("data-*")) == []
    frame.coalesce(1).write.format("forebay-paimon").mode("append").save(made.context.paths.root)
    assert len(rows_of(made)) == 10
