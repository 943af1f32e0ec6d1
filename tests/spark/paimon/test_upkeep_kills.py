"""A driver that dies while it compacts or rescales on Spark: the table is intact, left-over files can be removed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.store.schema_changes import SetOption
from forebay.paimon.table import Table
from forebay.spark.lake_jobs import SparkTasks
from tests.paimon.kills import KillingFileIO
from tests.paimon.lake import altered, new_catalog, put, rows_of
from tests.patience import PATIENCE

pytestmark = pytest.mark.spark

T = TypeVar("T")
COLUMNS = pa.schema([("id", pa.int64()), ("dt", pa.string()), ("v", pa.int64())])


class Died(BaseException):
    """The driver is dead: nothing that it still does reaches the disk."""


def plain_disk() -> LocalFileIO:
    return LocalFileIO(sync=False)


class DriversFileIO(KillingFileIO):
    """The driver's disk, which kills it. Workers get the disk as it is."""

    def __reduce__(self) -> Any:
        return plain_disk, ()


class DyingFileIO(DriversFileIO):
    """From the step `kill_at` on everything fails, as if the driver were dead."""

    dead = False

    def step(self, operation: str, path: str, act: Callable[[], T]) -> T:
        if self.dead:
            raise Died
        return super().step(operation, path, act)

    def _perhaps_die(self, step: str) -> None:
        if step == self.kill_at:
            self.dead = True
            raise Died


def new_table(folder: Path) -> Table:
    table = new_catalog(folder).create_table(
        "db.t", COLUMNS, primary_key=["id", "dt"], partition_keys=["dt"], options={"bucket": "2", "write-only": "true"}
    )
    for version in range(3):
        put(table, [{"id": i, "dt": day, "v": version} for day in "ab" for i in range(20)])
    return table


def compact(table: Table, spark_context: Any) -> None:
    table.compact(full=True, runner=SparkTasks(spark_context, "compacting"))


def rescale(table: Table, spark_context: Any) -> None:
    table.rescale(4, runner=SparkTasks(spark_context, "rescaling"))


ACTS = {"compact": compact, "rescale": rescale}


def check_aftermath(table: Table, rows: list[Any], act: Callable[[Table], None]) -> None:
    """`table` is reopened after a crash; `act` is what the dead driver was doing."""
    assert rows_of(table) == rows
    on_disk = {str(p) for p in Path(table.context.paths.root).rglob("data-*.parquet")}
    referenced = {
        table.context.paths.data_file(e.partition, e.bucket, e.file)
        for snapshot in table.context.snapshots.snapshots()
        for e in table.context.manifests.live_files(snapshot)
    }
    told = table.remove_orphan_files(dry_run=True)
    assert told.files == [], "files of a commit that may still run are left alone for a day"
    for path in Path(table.context.paths.root).rglob("*-*"):
        os.utime(path, (1, 1))
    told = table.remove_orphan_files(dry_run=True)
    assert {p for p in told.files if "/data-" in p} == on_disk - referenced
    assert table.remove_orphan_files().files == told.files
    assert {str(p) for p in Path(table.context.paths.root).rglob("data-*.parquet")} == referenced
    act(table)
    assert rows_of(table) == rows


@pytest.mark.parametrize("step", ["between tasks and commit", "before create snapshot 1", "after create snapshot 1"])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.one_in(2)
def test_a_driver_that_dies_leaves_the_table_as_it_was_or_done(spark: Any, tmp_path: Path, act: str, step: str) -> None:
    table = new_table(tmp_path)
    rows = rows_of(table)
    if act == "rescale":
        table = altered(table, [SetOption("bucket", "4")])
    io = DyingFileIO("before write manifest-list 1" if step.startswith("between") else step)
    with pytest.raises(Died):
        ACTS[act](Table(io, table.context.paths.root), spark.sparkContext)
    committed = table.context.snapshots.latest_id() == 4
    assert committed == step.startswith("after")
    check_aftermath(table.refresh(), rows, lambda again: ACTS[act](again, spark.sparkContext))


def _driver(root: str, act: str) -> None:
    """A driver of its own, which kills itself before it commits."""
    import forebay.spark

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    made = forebay.spark.session("dying", "local[2]", {"spark.ui.enabled": False, "spark.log.level": "OFF"})
    ACTS[act](Table(DriversFileIO("before create snapshot 1"), root), made.sparkContext)


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
def test_a_driver_that_is_killed_leaves_the_table_as_it_was(spark: Any, tmp_path: Path, act: str) -> None:
    table = new_table(tmp_path)
    rows = rows_of(table)
    driver = multiprocessing.get_context("spawn").Process(target=_driver, args=(table.context.paths.root, act))
    driver.start()
    driver.join(PATIENCE)
    assert driver.exitcode == -signal.SIGKILL
    assert table.context.snapshots.latest_id() == 3
    check_aftermath(table.refresh(), rows, lambda again: ACTS[act](again, spark.sparkContext))
