"""Snapshots of key-value state in RocksDB's files, which Java clients of Apache Fluss download and open themselves.

A table asks for them by a custom property (`SNAPSHOT_FILES_PROPERTY`), and the server makes them if its clients read
the store (`store.client-access` = `direct`). Each is made of a checkpoint that has been stored, and has all rows again:
it costs as much as the state is large. It is listed, and its objects stay, until `store.retention` after the next one
was made, or longer while a client has a lease on it. Objects are doomed before they are created, and when they leave
the list (`forebay.server.remote_log.remote_logs`).

Prior art: `CompletedSnapshot` and `KvSnapshotLeaseManager` of Apache Fluss.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from forebay.base.ambient import Clock, IdSource
from forebay.base.errors import StorageFailure
from forebay.base.thread_rules import any_thread
from forebay.codec.kv.value_batch import LENGTH_PREFIX_BYTES
from forebay.fs import names
from forebay.kv.checkpoint import Checkpoint, KvFolder
from forebay.kv.engines import ENGINES, engine_in
from forebay.kv.rocksdb_state import write_database
from forebay.metadata.table import PhysicalTablePath, TableBucket
from forebay.server.flow.disk_reserve import DiskReserve
from forebay.server.remote_log.manifest import new_id
from forebay.server.remote_log.planned_objects import PlannedObjects
from forebay.server.remote_state.kv_snapshot_list import KvSnapshotFile, KvSnapshotList, StoredKvSnapshot
from forebay.server.remote_state.state_snapshots import state_folder
from forebay.store.objects import ObjectStore

_LOGGER = logging.getLogger(__name__)

LEASE_MS_MAX = 7 * 24 * 3600 * 1000
"""A lease ends after this time at the latest, unless it is renewed."""
LEASES_MAX = 10_000

_READ_BYTES = 8 << 20


class KvSnapshots:
    """The snapshots of one server that clients download. `put` and `sweep` are for one thread, the rest for any."""

    def __init__(
        self,
        listed: KvSnapshotList,
        store: ObjectStore,
        planned: PlannedObjects,
        clock: Clock,
        ids: IdSource,
        retention_ms: int,
        scratch: str,
        reserve: DiskReserve,
    ) -> None:
        """`retention_ms`: how long a snapshot stays after the next one. `scratch`: a folder for the files while they
        are made, of which the disk has room for a state twice, beside its `reserve`."""
        self._list, self._store, self._planned, self._clock, self._ids = listed, store, planned, clock, ids
        self._retention_ms, self._scratch, self._reserve = retention_ms, scratch, reserve

    # ---- making -----------------------------------------------------------------------------------------------------

    def put(self, bucket: TableBucket, table: PhysicalTablePath, folder: KvFolder) -> bool:
        """Make a snapshot of the newest checkpoint, unless there is one; return whether it was made.

        Raises `UnsupportedOperation` without the package rocksdict, and `StorageFailure`.
        """
        newest = next(iter(self._list.snapshots(bucket)), None)
        with folder.pinned_checkpoint() as checkpoint:
            if checkpoint is None or (newest is not None and newest.log_offset >= checkpoint.offset):
                return False
            number = 1 if newest is None else newest.snapshot_id + 1
            self._reserve.require(2 * sum(file.size_bytes for file in checkpoint.files))
            try:
                Path(self._scratch).mkdir(names.FOLDER_MODE, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=self._scratch) as scratch:
                    files = _files(checkpoint, Path(scratch))
                    self._upload(bucket, table, number, checkpoint.offset, files)
            except OSError as e:
                raise StorageFailure(f"its files cannot be made in {self._scratch}: {e.strerror or e}") from e
        return True

    def _upload(self, bucket: TableBucket, table: PhysicalTablePath, number: int, offset: int, folder: Path) -> None:
        prefix = f"{state_folder(table, bucket)}/rocksdb"
        files = [
            KvSnapshotFile(path.name, f"{prefix}/{new_id(self._ids)}", path.stat().st_size)
            for path in sorted(folder.iterdir())
        ]
        self._planned.plan(file.object for file in files)
        for file in files:
            self._store.upload(file.object, _content(folder / file.name))
        snapshot = StoredKvSnapshot(bucket, number, offset, tuple(files), 0)
        self._list.put(snapshot, self._clock.now_ms())

    # ---- removing ---------------------------------------------------------------------------------------------------

    def sweep(self, exists: Callable[[TableBucket], bool]) -> None:
        """Remove snapshots that are not needed any more from the list, and doom their objects."""
        now_ms = self._clock.now_ms()
        self._list.end_leases(now_ms)
        due_ms = now_ms + self._retention_ms  # earlier states of the journal name the objects, as those of backups do
        for snapshot in self._list.snapshots():
            if not exists(snapshot.bucket):
                self._list.forget(snapshot, due_ms)
            elif snapshot.replaced_ms and snapshot.replaced_ms + self._retention_ms <= now_ms:
                self._list.forget(snapshot, due_ms, unless_leased_ms=now_ms)

    # ---- clients ----------------------------------------------------------------------------------------------------

    @any_thread
    def latest(self, bucket: TableBucket) -> StoredKvSnapshot | None:
        """The newest snapshot of a bucket."""
        return next(iter(self._list.snapshots(bucket)), None)

    @any_thread
    def all(self) -> list[StoredKvSnapshot]:
        """All that are listed, the newest of each bucket first."""
        return self._list.snapshots()

    @any_thread
    def find(self, bucket: TableBucket, snapshot_id: int) -> StoredKvSnapshot | None:
        """A snapshot that is still listed."""
        return next((s for s in self._list.snapshots(bucket) if s.snapshot_id == snapshot_id), None)

    def location_of(self, file: KvSnapshotFile) -> str:
        """The path or URI of a file."""
        return f"{self._store.location}/{file.object}"

    @any_thread
    def lease(self, lease_id: str, wanted: Mapping[TableBucket, int], duration_ms: int) -> set[TableBucket]:
        """Keep snapshots for this long, or for longer than so far; return the buckets whose snapshots are gone.

        Raises `LimitExceeded` where there are `LEASES_MAX` already.
        """
        now_ms = self._clock.now_ms()
        until_ms = now_ms + min(max(duration_ms, 0), LEASE_MS_MAX)
        return self._list.lease(lease_id, wanted, until_ms, now_ms, LEASES_MAX)

    @any_thread
    def release(self, lease_id: str, buckets: Iterable[TableBucket] | None = None) -> None:
        """End a lease, or its part for some buckets."""
        self._list.release(lease_id, buckets)


def _files(checkpoint: Checkpoint, scratch: Path) -> Path:
    """The folder of a database that is made of a checkpoint. Raises `OSError`."""
    state, files = scratch / "state", scratch / "files"
    state.mkdir()
    for each in checkpoint.files:
        shutil.copyfile(Path(checkpoint.path, each.name), state / each.name)
    write_database(str(files), _rows(state))
    shutil.rmtree(state)
    return files


def _rows(folder: Path) -> Iterator[tuple[bytes, bytes]]:
    """(key, schema id and row) of all rows of a state: what Apache Fluss keeps under these keys."""
    name = engine_in(folder)
    assert name is not None, "a checkpoint has the files of an engine"
    with closing(ENGINES[name](folder)) as engine:
        for key, value in engine.items():
            yield key, value[LENGTH_PREFIX_BYTES:]


def _content(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            yield chunk
