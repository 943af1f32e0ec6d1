"""Tiering as Spark jobs: rounds, failures, services, procedures."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay.spark
from forebay.base.errors import Conflict, InvalidRequest, NotFound, Unavailable
from forebay.client.table import Table
from forebay.lake.tiering import CommitterContext, LakeCommitter, LakeTieringFactory, LakeWriter, WriterContext
from forebay.lakes.paimon import PaimonLakeStorage
from forebay.metadata.table import TableInfo
from forebay.spark.jvm.spark_jobs import active_context, grouped
from forebay.spark.tiering import SparkRunner, start_tiering
from forebay.tiering.control import RoundControl
from forebay.tiering.round import TieringLake
from tests.patience import PATIENCE, until
from tests.tiering.running import LakeCluster, lake_cluster, paimon_storage

pytestmark = pytest.mark.spark

SCHEMA = {"k": pa.int32(), "v": pa.string()}
CATALOG = "laked"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Iterator[LakeCluster]:
    with lake_cluster(tmp_path_factory.mktemp("lake"), paimon_storage) as running:
        forebay.spark.attach(spark, CATALOG, running.server.bootstrap_servers)
        yield running


@pytest.fixture
def table(cluster: LakeCluster) -> Iterator[Table]:
    made = cluster.create(f"t{next(_numbers)}", SCHEMA, primary_key=["k"], buckets=3)
    yield made
    cluster.connection.drop_table(made.path, ignore_if_not_exists=True)


def fill(table: Table, *keys: int) -> None:
    table.upsert([{"k": k, "v": f"value {k}"} for k in keys])


def is_tiered(cluster: LakeCluster, table: Table) -> bool:
    admin = cluster.connection.admin
    try:
        known = admin.lake_snapshot(table.path).log_offsets
    except NotFound:
        return False
    return all(known.get(bucket, 0) == end for bucket, end in admin.list_offsets(table.path, "latest").items())


def test_splits_are_written_by_tasks_of_spark_and_progress_is_told(
    cluster: LakeCluster, table: Table, spark: Any
) -> None:
    fill(table, *range(50))
    told: list[tuple[int, int]] = []
    control = RoundControl(on_progress=lambda done, total: told.append((done, total)))
    report = cluster.tier(table, control, SparkRunner(spark.sparkContext))
    assert (report.rows, report.splits, report.lag_records) == (50, 3, 0)
    assert told[0] == (0, 3)
    assert told[-1] == (3, 3)
    table.delete([{"k": 0}])
    fill(table, 1, 99)
    assert cluster.tier(table, None, SparkRunner(spark.sparkContext)).rows > 0
    assert len(cluster.check_complete(table)) == 50


@dataclass(frozen=True)
class BreakingFactory(LakeTieringFactory):
    """A factory of writers of which that of bucket 0 breaks."""

    inner: LakeTieringFactory
    error: Exception

    def validate(self, info: TableInfo) -> None:
        self.inner.validate(info)

    def create_writer(self, context: WriterContext) -> LakeWriter:
        if context.bucket == 0:
            raise self.error
        return self.inner.create_writer(context)

    def create_committer(self, context: CommitterContext) -> LakeCommitter:
        return self.inner.create_committer(context)


class BreakingStorage(PaimonLakeStorage):
    """A Paimon lake with such writers."""

    error: Exception = Conflict("the bucket is broken")

    def create_tiering_factory(self) -> LakeTieringFactory:
        return BreakingFactory(super().create_tiering_factory(), self.error)


@pytest.mark.parametrize(
    ("error", "message"), [(Conflict("broken bucket"), "broken bucket"), (OSError("no space"), "OSError: no space")]
)
def test_an_error_of_one_task_reaches_the_driver_and_the_files_of_the_others_are_removed(
    cluster: LakeCluster, table: Table, spark: Any, error: Exception, message: str
) -> None:
    fill(table, *range(50))

    def create(_name: str, options: Any) -> BreakingStorage:
        storage = BreakingStorage(options)
        storage.error = error
        return storage

    breaking = LakeCluster(cluster.server, cluster.connection, TieringLake(create_storage=create), cluster.lake_options)
    with pytest.raises(Exception, match=message) as failed:
        breaking.tier(table, None, SparkRunner(spark.sparkContext))
    assert isinstance(pickle.loads(pickle.dumps(failed.value)), type(failed.value))
    folder = Path(cluster.lake_options["warehouse"]) / "fluss.db" / table.path.table
    assert list(folder.rglob("data-*")) == []
    cluster.tier(table, None, SparkRunner(spark.sparkContext))
    assert len(cluster.check_complete(table)) == 50


def test_a_round_that_is_given_up_ends_its_job(cluster: LakeCluster, table: Table, spark: Any) -> None:
    fill(table, *range(50))
    control = RoundControl(on_phase=lambda phase: control.cancel(Unavailable("stop")) if phase == "writing" else None)
    with pytest.raises(Unavailable, match="stop"):
        cluster.tier(table, control, SparkRunner(spark.sparkContext))
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
    assert not is_tiered(cluster, table)


def test_a_service_tiers_on_spark_until_it_is_stopped(cluster: LakeCluster, table: Table, spark: Any) -> None:
    table.alter(set={"table.datalake.freshness": "50 ms"})
    fill(table, 1, 2)
    service = start_tiering(spark, cluster.server.bootstrap_servers, poll_seconds=0.05)
    until(lambda: is_tiered(cluster, table), "the table is tiered")
    fill(table, 2, 3)
    until(lambda: is_tiered(cluster, table), "the table is tiered again")
    service.stop()
    assert service.status().failures == 0
    assert len(cluster.check_complete(table)) == 3


def test_tables_are_tiered_once_by_sql(cluster: LakeCluster, table: Table, spark: Any) -> None:
    fill(table, 1, 2)
    call = f"CALL {CATALOG}.sys.start_tiering(once => true, tables => array('{table.path}'))"
    rows = spark.sql(call).collect()
    assert [(r.table_name, r.state, r.row_count, r.records_behind, r.error) for r in rows] == [
        (str(table.path), "done", 2, 0, None)
    ]
    assert len(cluster.check_complete(table)) == 2
    missing = spark.sql(call.replace(str(table.path), "fluss.missing")).collect()
    assert missing[0].state == "failed"
    assert "fluss.missing" in missing[0].error


def test_a_service_is_started_and_stopped_by_sql(cluster: LakeCluster, table: Table, spark: Any) -> None:
    table.alter(set={"table.datalake.freshness": "50 ms"})
    fill(table, 1, 2)
    for _ in range(2):  # the second call finds the service running
        first = spark.sql(f"CALL {CATALOG}.sys.start_tiering()").collect()[0]
        assert (first.table_name, first.state) == (None, "running")
    until(lambda: is_tiered(cluster, table), "the table is tiered")
    stopped = {row.table_name: row for row in spark.sql(f"CALL {CATALOG}.sys.stop_tiering()").collect()}
    assert stopped[None].state == "stopped"
    assert stopped[str(table.path)].row_count == 2
    with pytest.raises(Exception, match="no tiering of this cluster"):
        spark.sql(f"CALL {CATALOG}.sys.stop_tiering()").collect()
    with pytest.raises(Exception, match="once => true"):
        spark.sql(f"CALL {CATALOG}.sys.start_tiering(tables => array('a.b'))").collect()
    with pytest.raises(Exception, match="key=value"):
        spark.sql(f"CALL {CATALOG}.sys.start_tiering(lake_options => array('secret'))").collect()


def test_very_many_splits_share_tasks_and_the_largest_are_spread() -> None:
    pickled = [bytes([i]) for i in range(10)]
    assert grouped(pickled, 100) == [[data] for data in pickled]
    assert grouped(pickled, 3) == [pickled[0::3], pickled[1::3], pickled[2::3]]


def test_a_context_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(InvalidRequest, match="no Spark context"):
        active_context()


def test_three_engines_write_one_table_at_once(cluster: LakeCluster, spark: Any, tmp_path: Path) -> None:
    """A Spark stream, pyfluss and transactions of ours, each with keys of its own, while the tables are tiered."""
    fluss = pytest.importorskip("fluss", reason="pyfluss has no wheel for this Python")
    keyed = cluster.create(f"t{next(_numbers)}", SCHEMA, primary_key=["k"], buckets=2)
    log = cluster.create(f"t{next(_numbers)}", SCHEMA, buckets=2)
    versions, keys = range(5), 6
    writers = ("spark", "pyfluss", "transaction")
    servers, may_begin = cluster.server.bootstrap_servers, threading.Barrier(len(writers) + 1)

    def rows(writer: str, version: int) -> list[dict[str, Any]]:
        first = writers.index(writer) * keys
        return [{"k": k, "v": f"{writer} {version}"} for k in range(first, first + keys)]

    def by_spark() -> None:
        for version in versions:
            path = tmp_path / f"{version}.json"
            path.write_text("\n".join(map(json.dumps, rows("spark", version))))
            os.utime(path, (version, version))
        stream = spark.readStream.schema("k INT, v STRING").option("maxFilesPerTrigger", 1).json(str(tmp_path))
        may_begin.wait(PATIENCE)
        queries = [
            stream.writeStream.trigger(availableNow=True)
            .option("checkpointLocation", f"{tmp_path}/checkpoints/{table.path}")
            .toTable(f"{CATALOG}.{table.path}")
            for table in (keyed, log)
        ]
        for query in queries:
            query.awaitTermination()

    async def by_pyfluss() -> None:
        connection = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": servers}))
        tables = [await connection.get_table(fluss.TablePath(t.path.database, t.path.table)) for t in (keyed, log)]
        upsert, append = tables[0].new_upsert().create_writer(), tables[1].new_append().create_writer()
        may_begin.wait(PATIENCE)
        for version in versions:
            for row in rows("pyfluss", version):
                upsert.upsert(row)
                append.append(row)
            await upsert.flush()
            await append.flush()
        await connection.close()

    def by_transactions() -> None:
        may_begin.wait(PATIENCE)
        for version in versions:
            with cluster.connection.transaction("three engines", version) as tx:
                tx.upsert(keyed, rows("transaction", version))
                tx.append(log, rows("transaction", version))

    with ThreadPoolExecutor(len(writers)) as pool:
        work = [pool.submit(by_spark), pool.submit(asyncio.run, by_pyfluss()), pool.submit(by_transactions)]
        may_begin.wait(PATIENCE)
        while not all(each.done() for each in work):
            for table in (keyed, log):
                if any(cluster.connection.admin.list_offsets(table.path, "latest").values()):
                    cluster.tier(table)
        for each in work:
            each.result()

    expected = {row["k"]: [rows(writer, v)[0]["v"] for v in versions] for writer in writers for row in rows(writer, 0)}
    assert {row["k"]: row["v"] for row in keyed.scan(source="union").to_arrow().to_pylist()} == {
        key: values[-1] for key, values in expected.items()
    }
    appended = [(key, value) for key, values in expected.items() for value in values]
    found = log.scan(source="union").to_arrow().to_pylist()
    assert sorted((row["k"], row["v"]) for row in found) == sorted(appended)
    changelog: dict[int, list[str]] = {}
    for change in keyed.changes(stop="latest").to_arrow().to_pylist():
        if change["_change_type"] == "update_before":
            assert change["v"] == changelog[change["k"]][-1]
        else:
            changelog.setdefault(change["k"], []).append(change["v"])
    assert changelog == expected
