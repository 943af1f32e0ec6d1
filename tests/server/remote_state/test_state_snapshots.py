"""Key-value state in the store: a new machine begins with it, and objects are shared and deleted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay import Table
from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import ForebayError, StorageFailure
from forebay.inprocess import EmbeddedConnection
from forebay.kv.hlog.hlog_engine import HlogEngine
from forebay.metadata.table import TableBucket
from forebay.server.maintenance.retention import LogRetention
from forebay.server.remote_log.remote_log import RemoteLogTablet
from forebay.server.remote_state import state_snapshots
from forebay.server.remote_state.state_snapshots import StateSnapshots
from forebay.server.storage import replicas
from forebay.server.storage.replica import BucketReplica
from forebay.store.directory import DirectoryStore
from tests.patience import PATIENCE
from tests.server.journal.copies import many_checkpoints

Start = Callable[..., EmbeddedConnection]
COLUMNS = {"id": "BIGINT", "v": "STRING"}


@pytest.fixture(params=["hlog", "lmdb"])
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts a server with tiny log segments, which moves log and state when it is told to."""
    running: list[EmbeddedConnection] = []

    def started(name: str, **more: str) -> EmbeddedConnection:
        settings = {
            "store": str(tmp_path / "store"),
            "store.interval": "20 ms",
            "kv.engine": request.param,
            "log.segment.file-size": "2kb",
            "remote.log.task-interval-duration": "1 d",
            "remote.log.task-max-upload-segments": "1000",
        }
        running.append(forebay.embedded(tmp_path / name, settings=settings | more))
        return running[-1]

    yield started
    for connection in running:
        connection.close()


def replica_of(conn: EmbeddedConnection, table: Table) -> BucketReplica:
    with conn.server.server.context.replicas.using(TableBucket(table.info.table_id, 0)) as replica:
        return replica


def tier(conn: EmbeddedConnection, table: Table | None = None) -> None:
    """Write a checkpoint, and move everything to the store."""
    if table is not None:
        replica_of(conn, table).checkpoint_if_grown(1)
    server = conn.server.server
    assert server._journal is not None
    assert server._tiering is not None
    assert server._journal.wait_until_stored(PATIENCE)
    server._tiering.run()
    assert server._journal.wait_until_stored(PATIENCE)


def fill(table: Table, first: int, count: int) -> None:
    for start in range(first, first + count, 50):
        rows = min(50, first + count - start)
        table.upsert(pa.table({"id": range(start, start + rows), "v": [f"row {start} " * 5] * rows}))


def rows(conn: EmbeddedConnection) -> pa.Table:
    return conn.table("fluss.kv").scan().to_arrow().sort_by("id")


def retain(conn: EmbeddedConnection) -> None:
    """Delete the local log segments that have expired."""
    server, context = conn.server.server, conn.server.server.context
    assert server._journal is not None
    LogRetention(
        context.replicas, context.catalog, context.lake.snapshots, SYSTEM_CLOCK, server._journal.stored_end
    ).run()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("retains_first", [False, True])
def test_the_changelog_behind_the_stored_state_does_not_expire(
    start: Start, monkeypatch: pytest.MonkeyPatch, fails: bool, retains_first: bool
) -> None:
    """A new machine brings the state up to date by it, also if the newest state could not be stored."""
    many_checkpoints(monkeypatch)  # so that the journal forgets
    old = start("old", **{"store.retention": "0 s"})
    table = old.create_table("fluss.kv", COLUMNS, primary_key="id", options={"table.log.ttl": "1 ms"})
    fill(table, 0, 300)
    tier(old, table)

    def put(*_: object) -> bool:
        raise StorageFailure("the store is full")

    fill(table, 300, 300)
    replica_of(old, table).checkpoint_if_grown(1)
    with monkeypatch.context() as patch:
        if fails:
            patch.setattr(StateSnapshots, "put", put)
        for _ in range(8):
            if retains_first:
                retain(old)
            tier(old)
            fill(table, 0, 50)
    server = old.server.server
    assert server._journal is not None
    assert server._journal.wait_until_stored(PATIENCE)
    expected = rows(old)
    new = start("new")
    assert rows(new) == expected


def states(tmp_path: Path) -> set[Path]:
    return {path for path in (tmp_path / "store" / "kv").rglob("*") if path.is_file()}


def test_a_new_machine_begins_with_the_state_of_the_store(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old = start("old")
    table = old.create_table("fluss.kv", COLUMNS, primary_key="id")
    fill(table, 0, 2000)
    table.delete([{"id": 7}])
    tier(old, table)
    fill(table, 1990, 20)
    tier(old)
    expected = rows(old)

    def refuses(*_: object) -> None:
        raise AssertionError("the whole changelog is read")

    monkeypatch.setattr(RemoteLogTablet, "iterate_batches", refuses)
    with caplog.at_level(logging.INFO):
        new = start("new")
        assert rows(new) == expected
    assert "from the store" in caplog.text
    assert new.table("fluss.kv").lookup(7).to_pylist() == [{"id": None, "v": None}]
    fill(new.table("fluss.kv"), 5000, 10)
    assert rows(new).num_rows == expected.num_rows + 10


def test_files_that_do_not_change_are_uploaded_once(start: Start, tmp_path: Path) -> None:
    conn = start("data")
    table = conn.create_table("fluss.kv", COLUMNS, primary_key="id")
    fill(table, 0, 100)
    tier(conn, table)
    first = states(tmp_path)
    assert first
    tier(conn, table)
    assert states(tmp_path) == first
    fill(table, 100, 100)
    tier(conn, table)
    snapshot = conn.server.server.context.store.state_snapshots()[TableBucket(table.info.table_id, 0)]
    assert snapshot.log_offset == 200
    listed = {tmp_path / "store" / file.object for file in snapshot.files}
    assert listed <= states(tmp_path)
    assert sum(path.stat().st_size for path in listed) == sum(file.listed.size_bytes for file in snapshot.files)


def test_a_state_that_was_cleaned_replaces_the_one_with_deleted_rows(start: Start, tmp_path: Path) -> None:
    conn = start("data", **{"store.retention": "0 s"})
    table = conn.create_table("fluss.kv", COLUMNS, primary_key="id")
    fill(table, 0, 100)
    table.upsert([{"id": 1000, "v": "not to be kept"}])
    table.delete([{"id": 1000}])

    def has_deleted_row() -> bool:
        return any(b"not to be kept" in path.read_bytes() for path in states(tmp_path))

    tier(conn, table)
    engine = replica_of(conn, table).kv.engine
    assert has_deleted_row() == isinstance(engine, HlogEngine), "LMDB copies its rows into a new file"
    before = conn.server.server.context.store.state_snapshots()
    assert replica_of(conn, table).clean_state()
    tier(conn)
    tier(conn)  # deletes the objects of the state before
    (after,) = conn.server.server.context.store.state_snapshots().values()
    assert [after.log_offset] == [each.log_offset for each in before.values()]
    assert not has_deleted_row()
    there = states(tmp_path)
    tier(conn)
    assert states(tmp_path) == there, "it is stored once"
    assert rows(start("new")) == rows(conn)


def test_objects_of_dropped_tables_are_deleted_later(start: Start, tmp_path: Path) -> None:
    conn = start("data", **{"store.retention": "0 s"})
    table = conn.create_table("fluss.kv", COLUMNS, primary_key="id")
    fill(table, 0, 100)
    tier(conn, table)
    conn.drop_table("fluss.kv")
    tier(conn)
    assert not states(tmp_path)
    assert not conn.server.server.context.store.state_snapshots()


def test_a_damaged_snapshot_is_no_state(start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old = start("old")
    table = old.create_table("fluss.kv", COLUMNS, primary_key="id")
    fill(table, 0, 300)
    tier(old, table)
    largest = max(states(tmp_path), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    expected = rows(old)
    assert rows(start("new")) == expected
    assert "restoring the state of bucket (table=1, bucket=0) from its changelog alone" in caplog.text


def test_a_state_that_is_not_fetched_once_is_fetched_the_next_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the bucket cannot be opened: the beginning of its changelog has expired."""
    many_checkpoints(monkeypatch)  # so that the journal forgets
    old = start("old", **{"store.retention": "0 s"})
    table = old.create_table("fluss.kv", COLUMNS, primary_key="id", options={"table.log.ttl": "1 ms"})
    for first in range(0, 800, 100):
        fill(table, first, 100)
        tier(old, table)
        retain(old)
    assert replica_of(old, table).log.log_start_offset > 0
    expected = rows(old)
    old.close()
    monkeypatch.setattr(replicas, "_DAMAGE_SECONDS", 0.0)  # look again at once
    read = DirectoryStore.read

    def cut_off(store: DirectoryStore, name: str, start: int = 0, end: int | None = None) -> bytes:
        return b"" if name.startswith("kv/") else read(store, name, start, end)

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "read", cut_off)
        new = start("new")
        with pytest.raises(ForebayError, match=r"state of table fluss\.kv is at changelog offset 0, and"):
            rows(new)
    assert rows(new) == expected


def test_a_checkpoint_is_not_removed_while_it_is_copied(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    conn = start("data")
    table = conn.create_table("fluss.kv", COLUMNS, primary_key="id")
    fill(table, 0, 100)
    content = state_snapshots._of_file

    def slow(*arguments: Any) -> Iterator[bytes]:
        fill(table, 100, 50)
        replica_of(conn, table).checkpoint_if_grown(1)
        return content(*arguments)

    monkeypatch.setattr(state_snapshots, "_of_file", slow)
    tier(conn, table)
    monkeypatch.undo()
    snapshots = conn.server.server.context.store.state_snapshots()
    assert snapshots[TableBucket(table.info.table_id, 0)].log_offset == 100
    assert rows(start("new")).num_rows == 150
