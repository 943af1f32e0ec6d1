"""What waits for the store has threads of its own: reads of what is on the machine do not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.inprocess import EmbeddedConnection
from forebay.metadata.table import TableBucket
from forebay.server.journal.server_journal import ServerJournal
from forebay.store.directory import DirectoryStore
from forebay.tiering.now import tier_table
from tests.patience import PATIENCE

Start = Callable[[str], EmbeddedConnection]
COLUMNS = {"id": "BIGINT", "v": "STRING"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[EmbeddedConnection] = []

    def started(name: str) -> EmbeddedConnection:
        settings = {
            "store": str(tmp_path / "store"),
            "store.interval": "20 ms",
            "log.segment.file-size": "2kb",
            "remote.log.task-interval-duration": "1 d",
            "datalake.format": "paimon",
            "datalake.paimon.warehouse": str(tmp_path / "lake"),
        }
        running.append(forebay.embedded(tmp_path / name, settings=settings))
        return running[-1]

    yield started
    for connection in running:
        connection.close()


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The kinds of threads that read the store, by the part of it."""
    kinds: dict[str, set[str]] = {"log": set(), "kv": set()}
    read = DirectoryStore.read

    def noted(store: DirectoryStore, name: str, *range_: Any) -> bytes:
        kinds.setdefault(name.split("/")[0], set()).add(threading.current_thread().name.rpartition("_")[0])
        return read(store, name, *range_)

    monkeypatch.setattr(DirectoryStore, "read", noted)
    return kinds


def tier(conn: EmbeddedConnection, bucket: TableBucket) -> None:
    """Write a checkpoint, and move everything to the store."""
    server = conn.server.server
    with server.context.replicas.using(bucket) as replica:
        replica.checkpoint_if_grown(1)
    assert server._journal is not None
    assert server._tiering is not None
    assert server._journal.wait_until_stored(PATIENCE)
    server._tiering.run()


def rows(first: int) -> pa.Table:
    return pa.table({"id": range(first, first + 20), "v": [f"row {i} " * 5 for i in range(first, first + 20)]})


def test_a_bucket_that_was_never_on_this_machine_is_opened_there(start: Start, reading: dict[str, set[str]]) -> None:
    old = start("old")
    table = old.create_table("fluss.kv", COLUMNS, primary_key="id", buckets=1)
    for first in range(0, 400, 20):
        table.upsert(rows(first))
    tier(old, TableBucket(table.info.table_id, 0))
    old.close()
    reading["kv"].clear()
    new = start("new")
    assert new.table("fluss.kv").lookup(7).to_pylist()[0]["id"] == 7
    assert reading["kv"] == {"forebay-store"}
    assert "forebay-io" not in reading["log"]
    new.close()
    reading["kv"].clear()
    again = start("new")
    beginning = threading.Event()
    begins = type(again.server.server.context).in_store

    async def noted(*arguments: Any) -> Any:
        beginning.set()
        return await begins(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(again.server.server.context), "in_store", noted)
        assert again.table("fluss.kv").lookup(7).to_pylist()[0]["id"] == 7
    assert not beginning.is_set(), "it is here"
    assert not reading["kv"]


def test_a_time_is_searched_there_where_the_store_has_it(start: Start, reading: dict[str, set[str]]) -> None:
    conn = start("data")
    table = conn.create_table("fluss.log", COLUMNS, buckets=1)
    for first in range(0, 400, 20):
        table.append(rows(first))
    bucket = TableBucket(table.info.table_id, 0)
    tier(conn, bucket)
    with conn.server.server.context.replicas.using(bucket) as replica:
        log = replica.log
    assert log.remote is not None
    assert log.local_start_offset > 0
    last_ms = log.remote.last_timestamp_ms
    assert log.has_remotely(last_ms)
    assert not log.has_remotely(last_ms + 1)
    assert conn.admin.list_offsets("fluss.log", datetime.fromtimestamp(1, UTC))[bucket] == 0
    assert reading["log"] == {"forebay-store"}


def test_who_is_about_to_change_the_lake_waits_there(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    conn = start("data")
    table = conn.create_table("fluss.log", COLUMNS, buckets=1, options={"table.datalake.enabled": True})
    table.append(rows(0))
    waiting: set[str] = set()
    wait = ServerJournal.wait_until_stored

    def noted(journal: ServerJournal, timeout: float | None = None) -> bool:
        waiting.add(threading.current_thread().name.rpartition("_")[0])
        return wait(journal, timeout)

    monkeypatch.setattr(ServerJournal, "wait_until_stored", noted)
    tier_table(conn, "fluss.log")
    assert waiting == {"forebay-store"}
