"""A standby has the states of the store on its own disk."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay import Table
from forebay.fs.interface import FileMissing
from forebay.fs.local import LocalFileSystem
from forebay.inprocess import EmbeddedConnection
from forebay.kv.checkpoint import KvFolder
from forebay.metadata.table import TableBucket
from forebay.server.config import server_config
from forebay.server.remote_state.state_snapshots import StateSnapshots, is_made_of
from forebay.server.standby import standby as standby_module
from forebay.server.standby.standby import Standby
from forebay.store.directory import DirectoryStore
from tests.patience import PATIENCE, until

COLUMNS = {"id": "BIGINT", "v": "STRING"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(standby_module, "_STATES_SECONDS", 0.0)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    return {
        "store": str(tmp_path / "store"),
        "store.interval": "10 ms",
        "store.lease": "1 h",
        "log.segment.file-size": "2kb",
        "remote.log.task-interval-duration": "1 d",
        "remote.log.task-max-upload-segments": "1000",
    }


@pytest.fixture
def primary(tmp_path: Path, settings: dict[str, str]) -> Iterator[EmbeddedConnection]:
    with forebay.embedded(tmp_path / "primary", settings=settings) as conn:
        yield conn


@contextmanager
def standing_by(folder: Path, settings: dict[str, str]) -> Iterator[tuple[Standby, threading.Thread]]:
    standby = Standby.of(server_config(folder, settings=settings))
    thread = threading.Thread(target=standby.wait)
    thread.start()
    try:
        yield standby, thread
    finally:
        standby.stop()
        thread.join(PATIENCE)


def fill(conn: EmbeddedConnection, table: Table, first: int, count: int) -> int:
    """Upsert rows, and move checkpoint and log to the store; return the offset of the checkpoint."""
    for start in range(first, first + count, 50):
        table.upsert(pa.table({"id": range(start, start + 50), "v": [f"row {start} " * 50] * 50}))
    server = conn.server.server
    with server.context.replicas.using(TableBucket(table.info.table_id, 0)) as replica:
        replica.checkpoint_if_grown(1)
        end = replica.log.log_end_offset
    tier(conn)
    return end


def tier(conn: EmbeddedConnection) -> None:
    """Move checkpoint and log to the store."""
    server = conn.server.server
    assert server._journal is not None
    assert server._tiering is not None
    assert server._journal.wait_until_stored(PATIENCE)
    server._tiering.run()
    assert server._journal.wait_until_stored(PATIENCE)


def state_of(folder: Path, table: Table) -> KvFolder:
    path = folder / "fluss" / f"{table.info.path.table}-{table.info.table_id}" / "kv-0"
    return KvFolder(LocalFileSystem(), str(path))


def test_a_standby_follows_the_snapshots_and_takes_over_without_fetching(
    primary: EmbeddedConnection, tmp_path: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = primary.create_table("fluss.kv", COLUMNS, primary_key="id")
    gone = primary.create_table("fluss.gone", COLUMNS, primary_key="id")
    fill(primary, gone, 0, 50)
    first = fill(primary, table, 0, 500)
    read: list[str] = []
    read_object = DirectoryStore.read

    def noted(self: DirectoryStore, name: str, *arguments: Any) -> bytes:
        read.append(name)
        return read_object(self, name, *arguments)

    monkeypatch.setattr(DirectoryStore, "read", noted)
    folder = tmp_path / "standby"
    with standing_by(folder, settings) as (_, thread):
        state = state_of(folder, table)
        until(lambda: state.retained_offset == first, "the state is fetched")
        until(lambda: state_of(folder, gone).retained_offset, "the other one is fetched")
        known = {name for name in read if name.startswith("kv/")}
        read.clear()
        primary.drop_table("fluss.gone")
        second = fill(primary, table, 500, 100)
        until(lambda: state.retained_offset == second, "the next one is fetched")
        until(lambda: not Path(state_of(folder, gone)._path).exists(), "the state of the dropped table is removed")
        assert known & objects_of(primary, table), "snapshots share files"
        assert known.isdisjoint(read), "what is there is not fetched again"
        fill_more = pa.table({"id": range(40), "v": ["newer"] * 40})
        table.upsert(fill_more)
        expected = table.scan().to_arrow().sort_by("id")
        primary.close()
        thread.join(PATIENCE)

    def refuses(*_: object) -> bool:
        raise AssertionError("the state is fetched")

    monkeypatch.setattr(StateSnapshots, "fetch", refuses)
    with forebay.embedded(folder, settings=settings) as conn:
        assert conn.table("fluss.kv").scan().to_arrow().sort_by("id").equals(expected)


def test_a_standby_that_stops_waits_for_no_store(
    primary: EmbeddedConnection, tmp_path: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = primary.create_table("fluss.kv", COLUMNS, primary_key="id")
    fill(primary, table, 0, 100)
    begun, goes_on, read_object = threading.Event(), threading.Event(), DirectoryStore.read

    def slow(self: DirectoryStore, name: str, *arguments: Any) -> bytes:
        if name.startswith("kv/"):
            begun.set()
            assert goes_on.wait(PATIENCE)
        return read_object(self, name, *arguments)

    monkeypatch.setattr(DirectoryStore, "read", slow)
    folder = tmp_path / "standby"
    with standing_by(folder, settings):
        assert begun.wait(PATIENCE)
    threads = [thread for thread in threading.enumerate() if thread.name == "forebay-standby-states"]
    goes_on.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert state_of(folder, table).retained_offset == 0


def test_a_state_that_was_cleaned_replaces_its_copy(
    primary: EmbeddedConnection, tmp_path: Path, settings: dict[str, str]
) -> None:
    table = primary.create_table("fluss.kv", COLUMNS, primary_key="id", options={"forebay.kv.engine": "hlog"})
    table.upsert([{"id": 1000, "v": "not to be kept"}])
    table.delete([{"id": 1000}])
    end = fill(primary, table, 0, 100)
    folder = tmp_path / "standby"
    state = state_of(folder, table)

    def has_deleted_row() -> bool:
        return any(b"not to be kept" in path.read_bytes() for path in folder.rglob("checkpoint-*/*"))

    def is_copied() -> bool:
        try:
            with state.pinned_checkpoint() as checkpoint:
                return checkpoint is not None and is_made_of(snapshot_of(primary, table), checkpoint)
        except FileMissing:  # it is being replaced
            return False

    with standing_by(folder, settings):
        until(is_copied, "the state is fetched")
        assert has_deleted_row()
        with primary.server.server.context.replicas.using(TableBucket(table.info.table_id, 0)) as replica:
            assert replica.clean_state()
        tier(primary)
        assert snapshot_of(primary, table).log_offset == end
        until(is_copied, "the clean one is fetched")
    assert not has_deleted_row()
    objects = objects_of(primary, table)
    primary.close()
    with forebay.embedded(folder, settings=settings) as conn:
        assert conn.table("fluss.kv").scan().to_arrow().num_rows == 100
        tier(conn)
        assert objects_of(conn, table) == objects, "it is the one that is stored"


def test_a_damaged_copy_is_fetched_anew(
    primary: EmbeddedConnection, tmp_path: Path, settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    table = primary.create_table("fluss.kv", COLUMNS, primary_key="id")
    first = fill(primary, table, 0, 500)
    folder = tmp_path / "standby"
    state = state_of(folder, table)
    with standing_by(folder, settings):
        until(lambda: state.retained_offset == first, "the state is fetched")
    second = fill(primary, table, 500, 50)
    with state.pinned_checkpoint() as checkpoint:
        assert checkpoint is not None
        shared = {file.listed for file in snapshot_of(primary, table).files} & set(checkpoint.files)
        path = Path(checkpoint.path) / max(shared, key=lambda file: file.size_bytes).name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with standing_by(folder, settings):
        until(lambda: state.retained_offset == second, "the state is fetched")
    with state.pinned_checkpoint() as checkpoint:
        assert checkpoint is not None
        assert {file.listed for file in snapshot_of(primary, table).files} == set(checkpoint.files)
    assert "a state is not fetched from the store for now" in caplog.text


def test_a_copy_behind_which_the_changelog_has_expired_is_replaced(tmp_path: Path, settings: dict[str, str]) -> None:
    with forebay.embedded(tmp_path / "data", settings=settings) as conn:
        table = conn.create_table("fluss.kv", COLUMNS, primary_key="id", options={"table.log.ttl": "1 ms"})
        first = fill(conn, table, 0, 100)
        state = Path(state_of(tmp_path / "data", table)._path)
        shutil.copytree(state, tmp_path / "older", ignore=shutil.ignore_patterns("db", "trust"))
        for number in range(1, 5):
            fill(conn, table, 100 * number, 100)
        with conn.server.server.context.replicas.using(TableBucket(table.info.table_id, 0)) as replica:
            assert replica.log.log_start_offset > first
        expected = table.scan().to_arrow().sort_by("id")
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "older", state)
    with forebay.embedded(tmp_path / "data", settings=settings) as conn:
        assert conn.table("fluss.kv").scan().to_arrow().sort_by("id").equals(expected)


def objects_of(conn: EmbeddedConnection, table: Table) -> set[str]:
    return {file.object for file in snapshot_of(conn, table).files}


def snapshot_of(conn: EmbeddedConnection, table: Table) -> Any:
    return conn.server.server.context.catalog._store.state_snapshots()[TableBucket(table.info.table_id, 0)]
