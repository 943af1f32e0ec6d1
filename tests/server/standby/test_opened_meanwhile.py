"""Buckets of a standby that are opened, or wait, while it goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import StorageFailure, Unavailable
from forebay.inprocess import EmbeddedConnection
from forebay.metadata.table import TableBucket
from forebay.server.standby import standby as standby_module
from forebay.server.storage.replica import BucketReplica
from forebay.server.storage.replicas import ReplicaManager
from tests.patience import PATIENCE, until
from tests.server.standby.reading_standby import ReadingStandby, reading


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby_module, "POLL_SECONDS", 0.01)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    return {"store": str(tmp_path / "store"), "store.interval": "10 ms", "store.lease": "1 h"}


@pytest.fixture
def primary(tmp_path: Path, settings: dict[str, str]) -> Iterator[EmbeddedConnection]:
    with forebay.embedded(tmp_path / "primary", settings=settings) as conn:
        yield conn


@pytest.fixture
def standby(tmp_path: Path, primary: EmbeddedConnection, settings: dict[str, str]) -> Iterator[ReadingStandby]:
    with reading(tmp_path / "standby", settings) as standby:
        yield standby


def rows(first: int, count: int = 20) -> pa.Table:
    return pa.table({"id": range(first, first + count), "v": [f"row {first}"] * count})


def test_a_bucket_has_what_was_repeated_while_it_was_opened(
    primary: EmbeddedConnection, standby: ReadingStandby, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = primary.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id")
    log = primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
    for table in (kv, log):
        table.append(rows(0)) if table is log else table.upsert(rows(0))
    standby.await_all(primary)
    open_replica = ReplicaManager._open_replica

    def slowly(manager: ReplicaManager, bucket: TableBucket, *arguments: Any) -> Any:
        opened = open_replica(manager, bucket, *arguments)
        if manager is standby.reads.server.context.replicas:
            kv.upsert(rows(50)) if bucket.table_id == kv.info.table_id else log.append(rows(50))
            standby.await_all(primary)
        return opened

    monkeypatch.setattr(ReplicaManager, "_open_replica", slowly)
    there_kv, there_log = standby.conn.table("fluss.kv"), standby.conn.table("fluss.log")
    assert there_kv.lookup(pa.table({"id": [3, 53]}), missing="drop").num_rows == 2
    assert there_kv.changes(start="earliest", stop="latest").to_arrow().num_rows == 40
    assert there_kv.scan().to_arrow().num_rows == there_log.scan().to_arrow().num_rows == 40


def test_a_bucket_whose_state_cannot_be_brought_up_while_it_is_opened_is_opened_again(
    primary: EmbeddedConnection, standby: ReadingStandby, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = primary.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id")
    kv.upsert(rows(0))
    standby.await_all(primary)
    failures = [StorageFailure("the disk does not read")]
    follow = BucketReplica.follow

    def fail(replica: BucketReplica, end: int) -> None:
        if failures:
            raise failures.pop()
        follow(replica, end)

    monkeypatch.setattr(BucketReplica, "follow", fail)
    replicas, bucket = standby.reads.server.context.replicas, TableBucket(kv.info.table_id, 0)
    with pytest.raises(StorageFailure, match="the disk does not read"), replicas.using(bucket):
        pass
    assert replicas.replicas() == []
    assert standby.conn.table("fluss.kv").lookup([{"id": 3}])["v"].to_pylist() == ["row 0"]


def test_a_snapshot_that_waits_for_a_standby_to_go_on_looks_again_for_transactions(
    primary: EmbeddedConnection, standby: ReadingStandby
) -> None:
    kv = primary.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id")
    kv.upsert(rows(0))
    standby.await_all(primary)
    server = standby.reads.server
    replicas, table_id = server.context.replicas, kv.info.table_id
    errors: list[BaseException] = []

    def pin() -> None:
        with replicas.using(TableBucket(table_id, 0)) as replica:
            try:
                replicas.pin([replica])
            except Unavailable as e:
                errors.append(e)

    table = server.context.catalog.table_by_id(table_id)
    assert table is not None
    thread = threading.Thread(target=pin)
    with table.write_gate.passing():  # as `StandbyServer.advance` does
        thread.start()
        until(lambda: table.write_gate._is_closed, "the snapshot waits")
        server._decisions.unfinished = frozenset({table_id})
    thread.join(PATIENCE)
    assert len(errors) == 1
    assert "the rows of a transaction are being written" in str(errors[0])
