"""Tiering on a real Fluss cluster with a real lake: the cluster creates the tables, and our worker fills them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from exams_cache import ExamUnavailable
from fluss_cluster import RealFluss, paimon_lake

import forebay
from forebay.base.errors import AlreadyExists, ErrorCode
from forebay.client.admin.lake import Heartbeat, TieringTable
from forebay.client.connection import Connection
from tests.client.lake_worker import PATH, SCHEMA, Worker, lake_rows, rows
from tests.patience import PATIENCE

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

PROPERTIES = {"table.datalake.enabled": "true", "table.datalake.freshness": "1 s"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Connection]:
    real = RealFluss(lake=paimon_lake(tmp_path / "lake"))
    try:
        real.start()
    except ExamUnavailable as reason:
        pytest.skip(f"no real Fluss cluster with a lake here: {reason}")
    try:
        with forebay.connect(real.bootstrap_servers, request_timeout=f"{PATIENCE:g} s") as connection:
            yield connection
    finally:
        real.stop()


def worker_when_its_turn_comes(connection: Connection) -> Worker:
    deadline = time.monotonic() + 60
    while True:
        try:
            return Worker(connection)
        except AssertionError:
            assert time.monotonic() < deadline, "the cluster hands out no table"
            time.sleep(0.1)


def codes(heartbeat: Heartbeat) -> dict[int, int]:
    return {table_id: error.code for table_id, error in heartbeat.errors.items()}


def test_rounds_of_our_worker_on_a_real_cluster_and_its_lake(cluster: Connection, tmp_path: Path) -> None:
    cluster.create_database(PATH.database, ignore_if_exists=True)
    cluster.create_table(PATH, SCHEMA, primary_key=["id"], options=PROPERTIES)
    info = cluster.admin.table_info(PATH)
    assert info.lake_enabled
    assert info.lake_options() == {"metastore": "filesystem", "warehouse": str(tmp_path / "lake")}

    base = None
    for number in range(2):
        worker = worker_when_its_turn_comes(cluster)
        assert worker.table.tiering_epoch == number + 1
        written = worker.write(rows(2 * number, 2 * number + 1), 2 * number)
        result, path = worker.commit_in_lake([written], 2 * number + 2, base)
        worker.tell(result, path)
        worker.done()
        snapshot = cluster.admin.lake_snapshot(PATH, readable=True)
        assert snapshot.snapshot_id == result.snapshot_id
        assert list(snapshot.log_offsets.values()) == [2 * number + 2]
        assert [row["id"] for row in lake_rows(worker, snapshot.snapshot_id)] == list(range(2 * number + 2))
        base = result.snapshot_id

    worker = worker_when_its_turn_comes(cluster)
    table = worker.table
    stale = TieringTable(table.table_id, table.path, table.coordinator_epoch, table.tiering_epoch - 1)
    earlier_life = TieringTable(table.table_id, table.path, table.coordinator_epoch - 1, table.tiering_epoch)
    gone = TieringTable(999, table.path, table.coordinator_epoch, 1)
    assert codes(worker.calls.heartbeat([stale])) == {table.table_id: ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION}
    assert codes(worker.calls.heartbeat([earlier_life])) == {table.table_id: ErrorCode.INVALID_COORDINATOR_EXCEPTION}
    assert codes(worker.calls.heartbeat(failed=[gone])) == {999: ErrorCode.TABLE_NOT_EXIST}
    worker.done()

    cluster.table(PATH).alter(add_columns=pa.schema([("more", pa.int32())]))
    worker = worker_when_its_turn_comes(cluster)
    worker.storage.create_tiering_factory().validate(worker.info)
    wider = pa.RecordBatch.from_pylist(
        [{"id": 9, "name": "b", "more": 5}], schema=SCHEMA.append(pa.field("more", pa.int32()))
    )
    result, path = worker.commit_in_lake([worker.write(wider, 4)], 5, base)
    worker.tell(result, path)
    assert [row["more"] for row in lake_rows(worker, result.snapshot_id)] == [None] * 4 + [5]

    cluster.drop_table(PATH)
    with pytest.raises(AlreadyExists) as refused:
        cluster.create_table(PATH, SCHEMA, primary_key=["id"], options=PROPERTIES)
    assert refused.value.code == ErrorCode.LAKE_TABLE_ALREADY_EXIST
