"""Snapshots of key-value state in the store: the files of a checkpoint, each uploaded once while it does not change.

The newest snapshot of a bucket is listed in the metadata, with the changelog offset that it contains. A file of a
checkpoint that has the name, size and checksum of one in the snapshot before is shared with it: of an append-only
engine these are all but the newest ones. Objects are doomed before they are created, and when no snapshot lists them
(`forebay.server.remote_log.remote_logs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext

from forebay.base import threads
from forebay.base.ambient import Clock, IdSource
from forebay.base.errors import CorruptData
from forebay.fs import names
from forebay.fs.interface import FileSystem
from forebay.kv.checkpoint import Checkpoint, KvFolder, write_fetched_checkpoint
from forebay.kv.file_checksums import ListedFile
from forebay.metadata.table import PhysicalTablePath, TableBucket
from forebay.server.metadata_store import MetadataStore, StateSnapshot, StoredStateFile
from forebay.server.remote_log.manifest import new_id
from forebay.server.remote_log.planned_objects import PlannedObjects
from forebay.store.objects import ObjectStore

_READ_BYTES = 8 << 20


def state_folder(table: PhysicalTablePath, bucket: TableBucket) -> str:
    """The folder of a bucket's snapshots, relative to the store: where Apache Fluss has those of its engine."""
    return f"kv/{names.bucket_parent_folder(table, bucket)}/{bucket.bucket}"


class StateSnapshots:
    """The snapshots of a server's key-value state. `fetch` may be called in any thread, the rest in one."""

    def __init__(
        self,
        metadata: MetadataStore,
        store: ObjectStore,
        planned: PlannedObjects,
        fs: FileSystem,
        clock: Clock,
        ids: IdSource,
        retention_ms: int,
    ) -> None:
        """`retention_ms`: how long an object stays that is not needed any more."""
        self._metadata, self._store, self._fs = metadata, store, fs
        self._planned, self._clock, self._ids, self._retention_ms = planned, clock, ids, retention_ms
        self._lock = threads.lock()
        self._snapshots = metadata.state_snapshots()

    def known(self) -> dict[TableBucket, int]:
        """The changelog offset that the snapshot of each bucket contains (exclusive). Any thread."""
        with self._lock:
            return {bucket: snapshot.log_offset for bucket, snapshot in self._snapshots.items()}

    def end(self, bucket: TableBucket) -> int:
        """The changelog offset that the snapshot of a bucket contains (exclusive); 0 if there is none. Any thread."""
        with self._lock:
            snapshot = self._snapshots.get(bucket)
            return 0 if snapshot is None else snapshot.log_offset

    def put(self, bucket: TableBucket, table: PhysicalTablePath, folder: KvFolder) -> bool:
        """Store the newest checkpoint of a bucket, unless it is the one that is stored; return whether it was new.

        Raises `StorageFailure`, and `CorruptData` for a checkpoint that is damaged; nothing is changed then.
        """
        with folder.pinned_checkpoint() as checkpoint:
            before = self._snapshots.get(bucket)
            if checkpoint is None or (before is not None and checkpoint.offset < before.log_offset):
                return False
            if before is not None and is_made_of(before, checkpoint):
                return False
            shared = {} if before is None else {f.listed: f for f in before.files}
            prefix = state_folder(table, bucket)
            files = [
                shared.get(listed) or StoredStateFile(listed, f"{prefix}/shared/{new_id(self._ids)}")
                for listed in checkpoint.files
            ]
            new = [each for each in files if each.listed not in shared]
            self._planned.plan(each.object for each in new)
            for each in new:
                self._store.upload(each.object, _of_file(self._fs, checkpoint.path, each.listed))
        kept = {each.object for each in files}
        old = () if before is None else tuple(each.object for each in before.files if each.object not in kept)
        snapshot = StateSnapshot(checkpoint.offset, tuple(files))
        due_ms = self._clock.now_ms() + self._retention_ms
        self._metadata.put_state_snapshot(
            bucket, snapshot, doomed=dict.fromkeys(old, due_ms), kept=[each.object for each in new]
        )
        with self._lock:
            self._snapshots[bucket] = snapshot
        return True

    def forget(self, bucket: TableBucket) -> None:
        """Doom the objects of a bucket that was dropped."""
        snapshot = self._snapshots[bucket]
        due_ms = self._clock.now_ms() + self._retention_ms
        self._metadata.forget_state_snapshot(bucket, {each.object: due_ms for each in snapshot.files})
        with self._lock:
            del self._snapshots[bucket]

    def forget_dropped(self, exists: Callable[[TableBucket], bool]) -> None:
        """Doom the objects of buckets that do not exist any more."""
        for bucket in self.known():
            if not exists(bucket):
                self.forget(bucket)

    def fetch(self, bucket: TableBucket, path: str) -> bool:
        """Make the newest checkpoint in the folder `path` of a bucket's state from its snapshot; return False without.

        Raises `StorageFailure`, and `CorruptData` if an object is damaged.
        """
        with self._lock:
            snapshot = self._snapshots.get(bucket)
        if snapshot is None:
            return False
        fetch_state(self._store, self._fs, path, snapshot)
        return True


def is_made_of(snapshot: StateSnapshot, checkpoint: Checkpoint) -> bool:
    """Whether a snapshot has the files of a checkpoint: another one of the same offset may lack deleted rows."""
    return checkpoint.offset == snapshot.log_offset and set(checkpoint.files) == {f.listed for f in snapshot.files}


def fetch_state(
    store: ObjectStore,
    fs: FileSystem,
    path: str,
    snapshot: StateSnapshot,
    *,
    near: str | None = None,
    guard: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Make a snapshot the newest checkpoint in the folder `path` of a bucket's state.

    Files that the newest checkpoint there, or in the folder `near`, has are copied from it. Each change of the folder
    is made inside of a `guard`; the error that it raises ends the work. Raises `StorageFailure`, and `CorruptData` if
    an object or a file is damaged; the folder is as before then.
    """
    with KvFolder(fs, path if near is None else near).pinned_checkpoint() as before:
        there = set() if before is None else set(before.files)

        def content(file: StoredStateFile) -> Iterator[bytes]:
            if before is None or file.listed not in there:
                parts = _of_object(store, file)
            else:
                parts = _of_file(fs, before.path, file.listed)
            for part in parts:
                with guard():
                    yield part

        files = ((each.listed, content(each)) for each in snapshot.files)
        write_fetched_checkpoint(fs, path, snapshot.log_offset, files, guard=guard)


def _of_object(store: ObjectStore, file: StoredStateFile) -> Iterator[bytes]:
    """The bytes of an object, which must be those that were listed."""
    crc, position = 0, 0
    while position < file.listed.size_bytes:
        chunk = store.read(file.object, position, min(position + _READ_BYTES, file.listed.size_bytes))
        if not chunk:
            raise CorruptData(f"{store.location}/{file.object} has {position} bytes, and should have more")
        crc = file.listed.extend(crc, chunk)
        position += len(chunk)
        yield chunk
    file.listed.check(f"{store.location}/{file.object}", position, crc)


def _of_file(fs: FileSystem, folder: str, listed: ListedFile) -> Iterator[bytes]:
    """The bytes of a file, which must be those that were listed."""
    crc, position = 0, 0
    with closing(fs.open_reader(names.join(folder, listed.name))) as reader:
        while chunk := reader.pread(position, _READ_BYTES):
            crc = listed.extend(crc, chunk)
            position += len(chunk)
            yield chunk
    listed.check(folder, position, crc)
