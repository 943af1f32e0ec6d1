"""A server that stops and restarts while operations are running."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from forebay.base.errors import NotFound, OutcomeUnknown, Unavailable
from forebay.client.connection import Connection, connect
from forebay.client.table import Table
from forebay.testing.server import ServerProcess
from tests.client.conftest import own_server
from tests.patience import PATIENCE, until

pytestmark = own_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as each:
        yield each


@pytest.fixture
def conn(server: ServerProcess) -> Iterator[Connection]:
    with connect(server.bootstrap_servers, scanner_kv_fetch_max_bytes="2kb") as connection:
        yield connection


def crash(server: ServerProcess, away_seconds: float = 0.0) -> None:
    server.kill()
    time.sleep(away_seconds)
    server.start(keep_ports=True)


def test_writers_and_readers_live_through_kill_9(server: ServerProcess, conn: Connection) -> None:
    """failure-scenarios 1a and 1b: kill -9 and restart: every acknowledged row once, readers go on."""
    conn.create_table("fluss.log", {"a": pa.int64()}, buckets=2)
    conn.create_table("fluss.kv", {"id": pa.int64(), "v": pa.int64()}, primary_key=["id"], buckets=2)
    log, kv = conn.table("fluss.log"), conn.table("fluss.kv")
    stop = threading.Event()
    errors: list[BaseException] = []
    written = 0
    followed: list[int] = []

    def follow() -> None:
        try:
            reader = log.changes("earliest")
            while not (stop.is_set() and len(followed) >= written):
                batch = reader.poll(0.1)
                if batch is not None:
                    followed.extend(batch["a"].to_pylist())
        except BaseException as e:  # noqa: BLE001 - told below
            errors.append(e)

    reader = threading.Thread(target=follow)
    reader.start()
    state = {}
    with log.writer() as logs, kv.writer() as rows:
        for step in range(120):
            logs.append([{"a": written + n} for n in range(5)])
            written += 5
            rows.upsert([{"id": n, "v": step} for n in range(step % 5, 50, 5)])
            state.update(dict.fromkeys(range(step % 5, 50, 5), step))
            if step in (30, 80):
                crash(server, 0.1)
            time.sleep(0.002)
    stop.set()
    reader.join(PATIENCE)
    assert errors == []
    assert not reader.is_alive()
    assert sorted(log.scan().to_arrow()["a"].to_pylist()) == list(range(written))
    assert sorted(followed) == list(range(written))
    assert {row["id"]: row["v"] for row in kv.scan().to_arrow().to_pylist()} == state
    assert kv.lookup([7])["v"].to_pylist() == [state[7]]


def test_a_scan_under_way_fails_cleanly_or_is_complete(server: ServerProcess, conn: Connection) -> None:
    """failure-scenarios 1a: kill -9 server mid-scan: never silently short."""
    conn.create_table("fluss.t", {"id": pa.int64()}, primary_key=["id"])
    table = conn.table("fluss.t")
    table.upsert(pa.table({"id": np.arange(5000)}))
    scan = table.scan()
    batches = iter(scan)
    first = next(batches)
    assert first.num_rows < 5000
    crash(server)
    with pytest.raises((Unavailable, NotFound), match=r"[sS]can the bucket again"):
        list(batches)
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(5000))


def test_a_scan_begun_while_the_server_is_away_waits_for_it(server: ServerProcess, conn: Connection) -> None:
    conn.create_table("fluss.t", {"id": pa.int64()}, primary_key=["id"])
    table = conn.table("fluss.t")
    table.upsert(pa.table({"id": np.arange(100)}))
    server.kill()
    back = threading.Timer(0.3, server.start, kwargs={"keep_ports": True})
    back.start()
    try:
        assert table.scan().to_arrow().num_rows == 100
        assert table.lookup([5])["id"].to_pylist() == [5]
    finally:
        back.join()


def is_looked_up(table: Table) -> bool:
    try:
        return table.lookup([1]).num_rows == 1
    except Unavailable:
        return False


def test_a_server_that_stays_away_is_reported(server: ServerProcess) -> None:
    settings = {"retry_timeout": "500 ms", "writer_delivery_timeout": "500 ms"}
    with connect(server.bootstrap_servers, **settings) as conn:
        conn.create_table("fluss.t", {"id": pa.int64()}, primary_key=["id"])
        table = conn.table("fluss.t")
        table.upsert([{"id": 1}])
        writer = table.writer()
        writer.upsert({"id": 2})
        writer.flush()
        server.kill()
        # The batch may have been on its way to the server when it died.
        with pytest.raises(
            (Unavailable, OutcomeUnknown), match=r"no bootstrap server responds|cannot connect|delivery-timeout"
        ):
            table.upsert([{"id": 3}])
        with pytest.raises(Unavailable):
            table.lookup([1])
        with pytest.raises(Unavailable):
            conn.list_databases()
        server.start(keep_ports=True)
        until(lambda: is_looked_up(table), "the server is there again")
        writer.upsert({"id": 4})
        writer.close()
        assert table.lookup([4])["id"].to_pylist() == [4]


def test_a_missing_server_is_reported_at_once() -> None:
    with pytest.raises(Unavailable, match=r"no bootstrap server responds: cannot connect to 127\.0\.0\.1:1"):
        connect("127.0.0.1:1", retry_timeout="1 h")


def test_the_second_bootstrap_server_is_tried(server: ServerProcess) -> None:
    with connect(f"127.0.0.1:1,{server.bootstrap_servers}") as conn:
        assert conn.database_exists("fluss")
