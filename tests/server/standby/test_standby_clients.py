"""Clients that name a standby for their reads: they go to the server for what the standby does not give them."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import CorruptData
from forebay.client.connection import Connection
from forebay.inprocess import EmbeddedConnection
from forebay.protocol.api import ApiKey
from forebay.server.standby import standby as standby_module
from forebay.server.standby.standby_server import StandbyServer
from forebay.server.storage.replica import BucketReplica
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
        conn.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id", buckets=2).upsert(rows(0))
        conn.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"}).append(rows(0))
        yield conn


@pytest.fixture
def standby(tmp_path: Path, primary: EmbeddedConnection, settings: dict[str, str]) -> Iterator[ReadingStandby]:
    with reading(tmp_path / "standby", settings) as standby:
        standby.await_all(primary)
        yield standby


@pytest.fixture
def conn(primary: EmbeddedConnection, standby: ReadingStandby) -> Iterator[Connection]:
    there = standby.reads.addresses.bootstrap_servers
    with forebay.connect(primary.server.bootstrap_servers, read_standby=there) as conn:
        yield conn


def rows(first: int, count: int = 20) -> pa.Table:
    return pa.table({"id": range(first, first + count), "v": [f"row {first}"] * count})


def asked(server: object, api: ApiKey) -> int:
    count = server.context.counters.requests.get(api)  # type: ignore[attr-defined]
    return 0 if count is None else sum(count.times.buckets)


def test_scans_that_were_made_before_the_standby_ended_read_at_the_server(
    conn: Connection, standby: ReadingStandby, primary: EmbeddedConnection
) -> None:
    kv, log = conn.table("fluss.kv"), conn.table("fluss.log")
    scans = [
        kv.scan(), kv.scan(filter="id = 3 or id > 3"), kv.scan(limit=7), log.scan(), log.scan(filter="id >= 3"),
        kv.scan(source="union"), log.scan(source="union"), log.scan().pinned(),
    ]  # fmt: skip
    expected = [20, 17, 7, 20, 17, 20, 20, 20]
    assert [scan.to_arrow().num_rows for scan in scans] == expected
    assert asked(primary.server.server, ApiKey.SCAN_KV) == asked(primary.server.server, ApiKey.FETCH_LOG) == 0
    readers = [scan.reader() for scan in scans]
    standby.reads.stop()
    standby.reads.join()
    assert [reader.read_all().num_rows for reader in readers] == expected, "opened before, and read after its end"
    assert [scan.to_arrow().num_rows for scan in scans] == expected
    assert [sum(scan.read_split(split).read_all().num_rows for split in scan.plan()) for scan in scans[:2]] == [20, 17]
    with kv.snapshot() as snapshot:
        assert snapshot.scan().to_arrow().num_rows == 20


def test_what_the_standby_cannot_give_is_asked_of_the_server(
    conn: Connection, standby: ReadingStandby, primary: EmbeddedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StandbyServer, "advance", lambda *_: None)
    table = primary.create_table("fluss.new", {"id": "BIGINT", "v": "STRING"}, primary_key="id")
    table.upsert(rows(0))
    new = conn.table("fluss.new")
    assert new.lookup([{"id": 3}])["v"].to_pylist() == ["row 0"]
    assert new.scan().to_arrow().num_rows == 20
    with new.snapshot() as snapshot:
        assert snapshot.scan().to_arrow().num_rows == 20
    # One that lacks a table is not left: the others are read there.
    before = asked(primary.server.server, ApiKey.SCAN_KV)
    assert conn.table("fluss.kv").scan().to_arrow().num_rows == 20
    assert asked(primary.server.server, ApiKey.SCAN_KV) == before


def test_what_is_damaged_at_the_standby_is_read_at_the_server(
    conn: Connection, standby: ReadingStandby, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow = BucketReplica.follow

    def fail(replica: BucketReplica, end: int) -> None:
        if replica.is_log_borrowed:
            raise CorruptData("the standby's disk has lost something")
        follow(replica, end)

    monkeypatch.setattr(BucketReplica, "follow", fail)
    assert conn.table("fluss.kv").scan().to_arrow().num_rows == 20
    assert conn.table("fluss.kv").lookup([{"id": 3}])["v"].to_pylist() == ["row 0"]


def test_scans_and_snapshots_of_a_standby_go_to_other_processes(
    conn: Connection, standby: ReadingStandby, primary: EmbeddedConnection
) -> None:
    kv, log = conn.table("fluss.kv"), conn.table("fluss.log")
    for scan in (kv.scan(), log.scan(), kv.scan(source="union")):
        there = pickle.loads(pickle.dumps(scan))
        assert there.to_arrow().num_rows == 20
    with kv.snapshot() as snapshot:
        there = pickle.loads(pickle.dumps(snapshot))
        kv.upsert(rows(100))
        standby.await_all(primary)
        assert there.scan().to_arrow().num_rows == 20
        assert pickle.loads(pickle.dumps(snapshot.scan())).to_arrow().num_rows == 20
    for api in (ApiKey.SCAN_KV, ApiKey.FETCH_LOG, ApiKey.OPEN_TABLE_SNAPSHOT):
        assert asked(primary.server.server, api) == 0


def test_a_table_is_restored_from_what_the_server_has(
    conn: Connection, standby: ReadingStandby, primary: EmbeddedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = dt.datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000 + 0.001, dt.UTC)
    SYSTEM_CLOCK.sleep(0.01)
    monkeypatch.setattr(StandbyServer, "advance", lambda *_: None)
    kv = conn.table("fluss.kv")
    kv.upsert(pa.table({"id": range(5), "v": ["wrong"] * 5}))
    kv.upsert(rows(100, 3))
    restored = conn.restore("fluss.kv", then)
    assert (restored.written, restored.deleted) == (5, 3)
    assert kv.at_server.scan().to_arrow().sort_by("id").to_pylist() == rows(0).to_pylist()
