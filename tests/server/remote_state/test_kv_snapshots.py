"""Snapshots that clients download: how long they stay, leases on them, and who gets none."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import Table
from forebay.base.ambient import ManualClock
from forebay.base.errors import ForebayError, InvalidRequest, LimitExceeded, NotFound, StorageFailure
from forebay.fs.interface import DiskFull
from forebay.inprocess import EmbeddedConnection
from forebay.kv import rocksdb_state
from forebay.metadata.table import TableBucket
from forebay.server.flow.disk_reserve import DiskReserve
from forebay.server.flow.request_limits import RequestLimits
from forebay.server.journal.store_copy import copy_store
from forebay.server.remote_state import kv_snapshots
from forebay.server.remote_state.kv_snapshot_list import KvSnapshotList, StoredKvSnapshot
from forebay.server.remote_state.kv_snapshots import KvSnapshots
from forebay.store.opening import open_store
from tests.patience import PATIENCE

pytest.importorskip("rocksdict")

Start = Callable[..., EmbeddedConnection]
ASKS = {"forebay.kv.snapshot-files": "rocksdb"}
RETENTION_MS = 3_600_000


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[EmbeddedConnection] = []

    def started(name: str = "data", access: str = "direct") -> EmbeddedConnection:
        settings = {
            "store": str(tmp_path / "store"),
            "store.client-access": access,
            "store.interval": "20 ms",
            "remote.log.task-interval-duration": "1 d",
        }
        running.append(forebay.embedded(tmp_path / name, settings=settings))
        return running[-1]

    yield started
    for connection in running:
        connection.close()


def made(conn: EmbeddedConnection, table: Table, number: int) -> None:
    """Write a row and a checkpoint, and let the server make a snapshot of it."""
    table.upsert([{"id": number}])
    with conn.server.server.context.replicas.using(TableBucket(table.info.table_id, 0)) as replica:
        replica.checkpoint_if_grown(1)
    tier(conn)


def tier(conn: EmbeddedConnection) -> None:
    server = conn.server.server
    assert server._journal is not None
    assert server._tiering is not None
    assert server._journal.wait_until_stored(PATIENCE)
    server._tiering.run()
    assert server._journal.wait_until_stored(PATIENCE)


def create(conn: EmbeddedConnection, name: str = "fluss.kv", **options: str) -> Table:
    return conn.create_table(name, {"id": "BIGINT"}, primary_key="id", buckets=1, options={**ASKS, **options})


def snapshots_of(conn: EmbeddedConnection) -> KvSnapshots:
    snapshots = conn.server.server.context.kv_snapshots
    assert snapshots is not None
    return snapshots


def listed(conn: EmbeddedConnection) -> list[int]:
    return [snapshot.snapshot_id for snapshot in snapshots_of(conn).all()]


def clock_of(conn: EmbeddedConnection) -> ManualClock:
    """A clock that stands still from now on, for the snapshots."""
    snapshots = snapshots_of(conn)
    clock = snapshots._clock = ManualClock(now_ms=snapshots._clock.now_ms())
    return clock


def files(tmp_path: Path) -> int:
    return sum(path.is_file() for path in (tmp_path / "store" / "kv").rglob("rocksdb/*"))


def test_a_snapshot_stays_for_a_while_after_the_next_one(start: Start, tmp_path: Path) -> None:
    conn = start()
    table = create(conn)
    made(conn, table, 1)
    bucket = TableBucket(table.info.table_id, 0)
    latest = conn.admin.latest_kv_snapshots("fluss.kv")[bucket]
    assert latest is not None
    assert (latest.snapshot_id, latest.log_offset) == (1, 1)
    (found,) = {name for _, name in conn.admin.kv_snapshot_files(bucket, 1).files if name.endswith(".sst")}
    assert found
    tier(conn)
    assert listed(conn) == [1], "there is no new checkpoint"
    clock = clock_of(conn)
    made(conn, table, 2)
    assert listed(conn) == [2, 1]
    old = conn.admin.kv_snapshot_files(bucket, 1).files
    clock.jump_wall_clock(RETENTION_MS - 1)
    tier(conn)
    assert listed(conn) == [2, 1]
    clock.jump_wall_clock(1)
    tier(conn)
    assert listed(conn) == [2]
    with pytest.raises(NotFound, match="no KV snapshot 1 of bucket"):
        conn.admin.kv_snapshot_files(bucket, 1)
    objects = {path.removeprefix(f"{tmp_path}/store/") for path, _ in old}
    metadata = conn.server.server.context.store
    assert not objects & set(metadata.doomed_objects(clock.now_ms() + RETENTION_MS - 1, 100)), "a backup may need them"
    assert objects <= set(metadata.doomed_objects(clock.now_ms() + RETENTION_MS, 100))
    made(conn, table, 3)
    assert listed(conn) == [3, 2]


def test_a_lease_keeps_a_snapshot_until_it_ends(start: Start) -> None:
    conn = start()
    table, bucket = create(conn), TableBucket(1, 0)
    bucket = TableBucket(table.info.table_id, 0)
    made(conn, table, 1)
    clock = clock_of(conn)
    assert conn.admin.acquire_kv_snapshot_lease("job", {bucket: 1}, "3 h") == {}
    assert conn.admin.acquire_kv_snapshot_lease("job", {bucket: 7}, "3 h") == {bucket: 7}
    made(conn, table, 2)
    clock.jump_wall_clock(2 * RETENTION_MS)
    tier(conn)
    assert listed(conn) == [2, 1]
    conn.admin.acquire_kv_snapshot_lease("job", {bucket: 1}, "1 min")  # ends no earlier than it would have
    clock.jump_wall_clock(RETENTION_MS - 1)
    tier(conn)
    assert listed(conn) == [2, 1]
    clock.jump_wall_clock(1)
    tier(conn)
    assert listed(conn) == [2]


@pytest.mark.parametrize("whole", [False, True])
def test_a_released_lease_keeps_nothing(start: Start, whole: bool) -> None:
    conn = start()
    table = create(conn)
    bucket = TableBucket(table.info.table_id, 0)
    made(conn, table, 1)
    clock = clock_of(conn)
    conn.admin.acquire_kv_snapshot_lease("job", {bucket: 1}, "3 h")
    conn.admin.acquire_kv_snapshot_lease("other", {bucket: 1}, "2 h")
    made(conn, table, 2)
    conn.admin.release_kv_snapshot_lease("job", None if whole else [bucket])
    clock.jump_wall_clock(RETENTION_MS)
    tier(conn)
    assert listed(conn) == [2, 1], "the other lease"
    conn.admin.release_kv_snapshot_lease("other", None if whole else [bucket])
    tier(conn)
    assert listed(conn) == [2]


def test_leases_are_counted(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_snapshots, "LEASES_MAX", 1)
    conn = start()
    table = create(conn)
    bucket = TableBucket(table.info.table_id, 0)
    made(conn, table, 1)
    clock = clock_of(conn)
    conn.admin.acquire_kv_snapshot_lease("one", {bucket: 1}, "1 min")
    with pytest.raises(LimitExceeded, match="there are 1 leases on KV snapshots, and at most 1 may be held"):
        conn.admin.acquire_kv_snapshot_lease("two", {bucket: 1}, "1 min")
    clock.jump_wall_clock(60_000)
    conn.admin.acquire_kv_snapshot_lease("two", {bucket: 1}, "1 min")


def test_a_lease_that_is_renewed_is_one_lease(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_snapshots, "LEASES_MAX", 1)
    conn = start()
    table = create(conn)
    bucket = TableBucket(table.info.table_id, 0)
    made(conn, table, 1)
    for _ in range(3):
        assert conn.admin.acquire_kv_snapshot_lease("one", {bucket: 1}, "1 min") == {}


def test_a_lease_that_is_acquired_during_a_sweep_keeps_its_snapshot(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn = start()
    table = create(conn)
    bucket = TableBucket(table.info.table_id, 0)
    made(conn, table, 1)
    clock = clock_of(conn)
    made(conn, table, 2)
    clock.jump_wall_clock(RETENTION_MS)
    snapshots = KvSnapshotList.snapshots

    def leases(listed: KvSnapshotList, of: TableBucket | None = None) -> list[StoredKvSnapshot]:
        if of is None:  # the sweep looks for those to remove
            assert snapshots_of(conn).lease("job", {bucket: 1}, 60_000) == set()
        return snapshots(listed, of)

    with monkeypatch.context() as patch:
        patch.setattr(KvSnapshotList, "snapshots", leases)
        tier(conn)
    assert listed(conn) == [2, 1]
    clock.jump_wall_clock(60_000)
    tier(conn)
    assert listed(conn) == [2]
    assert snapshots_of(conn).lease("job", {bucket: 1}, 60_000) == {bucket}


@pytest.mark.parametrize("access", ["direct", "server"])
def test_a_lease_request_names_no_more_buckets_than_others(start: Start, access: str) -> None:
    conn = start(access=access)
    conn.server.server.context.limits.items_max = 2
    two, three = ({TableBucket(table, 0): 1 for table in range(count)} for count in (2, 3))
    assert conn.admin.acquire_kv_snapshot_lease("job", two, "1 min") == two
    conn.admin.release_kv_snapshot_lease("job", two)
    with pytest.raises(LimitExceeded, match="the request names 3 buckets"):
        conn.admin.acquire_kv_snapshot_lease("job", three, "1 min")
    with pytest.raises(LimitExceeded, match="the request names 3 buckets"):
        conn.admin.release_kv_snapshot_lease("job", three)


def test_a_long_lease_request_lets_others_in_between(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    conn = start()
    table = create(conn)
    made(conn, table, 1)
    work: list[int] = []
    each = RequestLimits.each

    async def noted(limits: RequestLimits, items: Any, count: int, do: Any) -> None:
        work.append(count)
        await each(limits, items, count, do)

    monkeypatch.setattr(RequestLimits, "each", noted)
    wanted = {TableBucket(table.info.table_id, bucket): 1 for bucket in range(1000)}
    gone = conn.admin.acquire_kv_snapshot_lease("job", wanted, "1 min")
    assert gone == {bucket: 1 for bucket in wanted if bucket.bucket}
    assert work == [1000, 1000]
    conn.admin.release_kv_snapshot_lease("job", wanted)
    assert work == [1000, 1000, 1000]


def test_a_dropped_table_has_no_snapshots(start: Start) -> None:
    conn = start()
    table = create(conn)
    made(conn, table, 1)
    objects = {file.object for file in snapshots_of(conn).all()[0].files}
    conn.drop_table("fluss.kv")
    tier(conn)
    assert listed(conn) == []
    store, now_ms = conn.server.server.context.store, conn.server.server.context.clock.now_ms()
    assert objects.isdisjoint(store.doomed_objects(now_ms, 100)), "for readers"
    assert objects <= set(store.doomed_objects(now_ms + RETENTION_MS, 100))


def test_a_new_machine_has_the_snapshots(start: Start) -> None:
    old = start("old")
    table = create(old)
    made(old, table, 1)
    bucket = TableBucket(table.info.table_id, 0)
    expected = old.admin.kv_snapshot_files(bucket, 1)
    old.close()
    new = start("new")
    assert new.admin.kv_snapshot_files(bucket, 1) == expected


def test_a_backup_has_the_files(start: Start, tmp_path: Path) -> None:
    conn = start()
    table = create(conn)
    made(conn, table, 1)
    made(conn, table, 2)
    store = str(tmp_path / "store")
    copy_store(open_store(store, {}), open_store(str(tmp_path / "copy"), {}))
    for snapshot_id in (1, 2):
        files = conn.admin.kv_snapshot_files(TableBucket(table.info.table_id, 0), snapshot_id).files
        for path, _ in files:
            assert (tmp_path / "copy" / Path(path).relative_to(store)).read_bytes() == Path(path).read_bytes()


def test_who_cannot_read_the_store_or_does_not_ask_gets_no_snapshots(start: Start, tmp_path: Path) -> None:
    conn = start("data", "server")
    table = create(conn)
    made(conn, table, 1)
    bucket = TableBucket(table.info.table_id, 0)
    assert conn.admin.latest_kv_snapshots("fluss.kv") == {bucket: None}
    assert conn.admin.acquire_kv_snapshot_lease("job", {bucket: 1}, "1 min") == {bucket: 1}
    conn.close()
    conn = start("data", "direct")
    plain = create(conn, "fluss.plain", **{"forebay.kv.snapshot-files": "none"})
    made(conn, plain, 1)
    assert conn.admin.latest_kv_snapshots("fluss.plain") == {TableBucket(plain.info.table_id, 0): None}
    assert conn.admin.latest_kv_snapshots("fluss.kv")[bucket] is not None, "it had a checkpoint already"


def test_unknown_files_are_refused(start: Start) -> None:
    conn = start()
    with pytest.raises(InvalidRequest, match="is 'none' or 'rocksdb', and not 'sst'"):
        create(conn, **{"forebay.kv.snapshot-files": "sst"})
    create(conn, **{"forebay.kv.snapshot-files": "none"})
    with pytest.raises(ForebayError, match="and not 'sst'"):
        conn.table("fluss.kv").alter(set={"forebay.kv.snapshot-files": "sst"})


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (StorageFailure("the disk is full"), "the disk is full"),
        (OSError(errno.ENOSPC, "No space left on device"), "its files cannot be made in "),
    ],
)
def test_a_snapshot_that_cannot_be_made_is_told_and_keeps_nothing_else_from_the_store(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, message: str
) -> None:
    conn = start()

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(kv_snapshots, "write_database", fails)
    table = create(conn)
    made(conn, table, 1)
    assert listed(conn) == []
    assert "no snapshot of fluss.kv" in caplog.text
    assert f"is made for clients for now: {message}" in caplog.text
    monkeypatch.undo()
    tier(conn)
    assert listed(conn) == [1]


def test_a_snapshot_leaves_the_reserve_of_the_disk_free(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    conn = start()
    table = create(conn)
    sizes: list[int] = []

    def require(reserve: DiskReserve, size: int) -> None:
        sizes.append(size)
        raise DiskFull("its disk has a reserve")

    table.upsert([{"id": 1}])
    with conn.server.server.context.replicas.using(TableBucket(table.info.table_id, 0)) as replica:
        replica.checkpoint_if_grown(1)
        assert replica.kv_folder is not None
        with replica.kv_folder.pinned_checkpoint() as checkpoint:
            assert checkpoint is not None
            needed = 2 * sum(file.size_bytes for file in checkpoint.files)
    with monkeypatch.context() as patch:
        patch.setattr(DiskReserve, "require", require)
        tier(conn)
    assert sizes == [needed]
    assert listed(conn) == []
    assert "is made for clients for now: its disk has a reserve" in caplog.text
    tier(conn)
    assert listed(conn) == [1]


def test_a_snapshot_behind_which_the_changelog_has_expired_is_not_the_latest(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that begins with it finds no place in the changelog from which to go on."""
    conn = start()
    table = create(conn, **{"table.log.ttl": "1 ms", "table.log.tiered.local-segments": "1"})
    bucket = TableBucket(table.info.table_id, 0)
    made(conn, table, 1)

    def fails(*_: object) -> None:
        raise StorageFailure("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(kv_snapshots, "write_database", fails)
        with conn.server.server.context.replicas.using(bucket) as replica:
            log = replica.log
        for number in (2, 3, 4):
            made(conn, table, number)
            log.roll()
            tier(conn)
            tier(conn)
        assert log.log_start_offset > 1
        assert listed(conn) == [1]
        with pytest.raises(NotFound, match="there is no KV snapshot to download that goes so far"):
            conn.admin.latest_kv_snapshots("fluss.kv")
    tier(conn)
    latest = conn.admin.latest_kv_snapshots("fluss.kv")[bucket]
    assert latest is not None
    assert (latest.snapshot_id, latest.log_offset) == (2, log.log_end_offset)


@pytest.mark.parametrize("access", ["direct", "server"])
def test_what_a_killed_server_was_making_is_removed(start: Start, tmp_path: Path, access: str) -> None:
    conn = start()
    made_in: list[Path] = []
    write = rocksdb_state.write_database

    def copied(folder: str, rows: Any) -> None:
        write(folder, rows)
        made_in.append(Path(folder))
        shutil.copytree(folder, tmp_path / "copy")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_snapshots, "write_database", copied)
        made(conn, create(conn), 1)
    conn.close()
    [folder] = made_in
    assert not folder.exists()
    shutil.copytree(tmp_path / "copy", folder)  # as if the server had not come to removing it
    start(access=access)
    assert not folder.exists()
