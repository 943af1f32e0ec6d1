"""The lake snapshots of each table that the server knows, and how much of the log they hold.

A tiering round calls twice: before its lake commit for an offset file (`prepare`), whose path goes into the lake
snapshot; after it, to register the snapshot (`commit`). The files are in the table's directory, one for each `prepare`;
the metadata store names those that count, with their checksums. Paths are stored relative to the data directory, and
paths kept in lake snapshots are resolved after the directory has moved.

Order: a table's snapshots are in the order of their offsets, newest last. Snapshot ids carry no order (Iceberg's are
random). A commit whose offsets are behind those of the newest one comes from a worker that was overtaken, and is
refused, with one exception: a snapshot that has become readable later (Paimon with deletion vectors) is inserted before
the newest one. A repeated commit changes nothing.

A lake table may be rolled back by others. Then a worker registers the snapshot that is the newest of the lake now, and
names the undone one by the name of its offset file (`LakeSnapshotCommit.replaces`): ids are used again after a
rollback. So that its offsets are still there, the last `HISTORY_KEPT` snapshots stay known, even if no worker asks.

Files of rounds that never committed are removed by later ones: a commit of a new snapshot removes the unreferenced
files that already existed at the previous commit. They cannot be needed any more: a worker prepares its file after it
has seen the newest snapshot, and the lake accepts its commit only while that is still the newest. A worker whose file
is gone was therefore overtaken, and gets an error that says so.

Prior art: LakeTableHelper of Apache Fluss; there, overtaken commits become the newest ones, whether their files are
there or not, and files of rounds that failed stay until the table is dropped.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from forebay.base import threads
from forebay.base.ambient import Clock, IdSource
from forebay.base.errors import Conflict, CorruptData, ErrorCode, ForebayError, InvalidRequest, NotFound
from forebay.codec.crc import crc32c
from forebay.fs import names
from forebay.fs.interface import FileMissing, FileSystem
from forebay.lake.offsets import BucketOffsets
from forebay.metadata.table import TableBucket, TableInfo
from forebay.server.metadata_store import MetadataStore, OffsetsFile, StoredLakeSnapshot

_LOGGER = logging.getLogger(__name__)

StoredSnapshots = tuple[StoredLakeSnapshot, ...]

SNAPSHOTS_MAX = 1000
"""Maximum number of known snapshots per table, whatever workers ask to keep: each has an offset file, and every commit
stores all of them. A worker needs an earlier one to mark it readable later (Paimon with deletion vectors)."""

PREPARED_MAX = 1000
"""Maximum number of a table's offset files from rounds without a commit of a new snapshot in between; the oldest are
removed. (A lake that refuses every commit would fill the disk.)"""


HISTORY_KEPT = 64
"""The number of snapshots before the newest one that stay known, whatever workers ask to keep: the lake table may be
rolled back to one of them."""


class KnownSnapshot(NamedTuple):
    """A lake snapshot, its log offsets, and the name of their file, which the snapshot in the lake records."""

    snapshot_id: int
    offsets: BucketOffsets
    offsets_name: str


@dataclass(frozen=True, slots=True)
class LakeSnapshotCommit:
    """A lake snapshot that a worker committed, with the paths that `prepare` gave it.

    `earliest_to_keep`: the earlier snapshots from this one on stay known. None: none do;
    `forebay.lake.tiering.KEEP_ALL_PREVIOUS`: all do. `replaces`: the lake table was rolled back behind the newest known
    snapshot, whose offsets have this name, and does not have that any more.
    """

    snapshot_id: int
    tiered_path: str
    readable_path: str | None = None
    earliest_to_keep: int | None = None
    replaces: str | None = None


class LakeSnapshots:
    """The lake snapshots of all tables. Safe to call from any thread; all methods but `last_rounds_ms` read files."""

    def __init__(
        self, fs: FileSystem, data_dir: str, store: MetadataStore, clock: Clock, ids: IdSource,
        grew: Callable[[str, int, int], None] | None = None, removed: Callable[[str], None] | None = None,
        when_stored: Callable[[Callable[[], None]], None] = lambda call: call(),
    ) -> None:  # fmt: skip
        """`grew` is called with each new file of offsets: its path relative to `data_dir`, 0 and its size; before a
        snapshot refers to it. `removed` is called with the path of each file that was removed.
        `when_stored` makes a call when the journal has all that was written before."""
        self._grew, self._removed, self._when_stored = grew, removed, when_stored
        self._fs = fs
        self._data_dir = data_dir
        self._store = store
        self._clock = clock
        self._ids = ids
        self._lock = threads.lock()
        self._snapshots: Mapping[int, StoredSnapshots] = store.lake_snapshots()
        self._in_lake: dict[int, tuple[OffsetsFile, BucketOffsets]] = {}
        self._unclaimed: dict[int, frozenset[str]] = {}
        """By table id, the files that were unreferenced at the last commit of a new snapshot."""
        self._prepared: dict[int, deque[str]] = {}
        """By table id, the files prepared since the server's start, oldest first."""

    def reload(self) -> None:
        """Show what the store has, whose content was replaced."""
        with self._lock:
            self._snapshots = self._store.lake_snapshots()

    def last_rounds_ms(self) -> dict[int, int]:
        """Return the commit time of each table's newest snapshot, by table id."""
        return {table_id: snapshots[-1].committed_ms for table_id, snapshots in self._snapshots.items()}

    def paths(self) -> list[str]:
        """Return the paths of all files of snapshots, and of those that a snapshot may name soon."""
        with self._lock:
            named = {file.path for of in self._snapshots.values() for snapshot in of for file in snapshot.files}
            return sorted(named.union(*self._prepared.values()))

    # ---- a round's two steps ----------------------------------------------------------------------------------------

    def prepare(self, info: TableInfo, offsets: Mapping[TableBucket, int], *, merge: bool = True) -> str:
        """Write the offsets of a future lake snapshot to a durable file; return its absolute path.

        With `merge`, buckets missing in `offsets` get those of the newest known snapshot. Raises `InvalidRequest` for
        buckets that the table does not have: the file has a slot for each number up to the greatest.
        """
        for bucket in offsets:
            if not 0 <= bucket.bucket < info.bucket_count:
                raise InvalidRequest(
                    f"table {info.path} has no bucket {bucket.bucket}: its buckets are 0 to {info.bucket_count - 1}"
                )
        complete = BucketOffsets(info.table_id, dict(offsets))
        with self._lock:
            snapshots = self._snapshots.get(info.table_id)
            if merge and snapshots:
                complete = self._read(info, snapshots[-1].tiered).merged(complete)
            folder = names.lake_offsets_folder(info.path, info.table_id)
            self._fs.make_directories(names.join(self._data_dir, folder))
            file = names.lake_offsets_file(folder, self._ids.token_hex())
            path = names.join(self._data_dir, file)
            content = complete.to_json()
            self._fs.write_atomic(path, content)
            if self._grew is not None:
                self._grew(file, 0, len(content))
            self._remove_oldest_prepared(info.table_id, file)
            return path

    def _remove_oldest_prepared(self, table_id: int, newest: str) -> None:
        prepared = self._prepared.setdefault(table_id, deque())
        prepared.append(newest)
        if len(prepared) > PREPARED_MAX:
            referenced = {file.path for snapshot in self._snapshots.get(table_id, ()) for file in snapshot.files}
            self._remove({prepared.popleft()} - referenced)

    def commit(self, info: TableInfo, commit: LakeSnapshotCommit) -> None:
        """Register a lake snapshot, durably, and forget the earlier ones that it does not keep.

        Raises `Conflict` (FENCED_TIERING_EPOCH) for the late commit of an overtaken worker, also for one that replaces
        another snapshot than the newest one, and `InvalidRequest` for paths that `prepare` did not return for this
        table.
        """
        with self._lock:
            snapshots = self._snapshots.get(info.table_id, ())
            snapshot = StoredLakeSnapshot(
                commit.snapshot_id,
                self._clock.now_ms(),
                self._file(info, commit.tiered_path, snapshots),
                None if commit.readable_path is None else self._file(info, commit.readable_path, snapshots),
            )
            there = snapshots
            if commit.replaces is not None:
                there = self._rolled_back(info, snapshots, snapshot, commit.replaces)
            retained = _bounded(self._with(info, there, snapshot, commit.earliest_to_keep))
            self._store.put_lake_snapshots(info.table_id, retained)
            self._snapshots = {**self._snapshots, info.table_id: retained}
            unneeded = {file.path for s in snapshots for file in s.files} - {
                file.path for s in retained for file in s.files
            }
            if commit.snapshot_id not in {s.snapshot_id for s in snapshots}:
                unneeded |= self._never_claimed(info, retained)
            self._remove(unneeded)

    def _with(
        self, info: TableInfo, snapshots: StoredSnapshots, new: StoredLakeSnapshot, earliest_to_keep: int | None
    ) -> StoredSnapshots:
        ids = [snapshot.snapshot_id for snapshot in snapshots]
        if new.snapshot_id in ids:
            place = ids.index(new.snapshot_id)
            again = replace(new, readable=new.readable or snapshots[place].readable)
            if new.tiered.crc == snapshots[place].tiered.crc:
                again = replace(again, tiered=snapshots[place].tiered)  # the file that the lake snapshot names
            before, after = snapshots[:place], snapshots[place + 1 :]
            return (*(before if after else _retained(before, earliest_to_keep)), again, *after)
        if snapshots and self._goes_back(info, snapshots[-1], new):
            if new.readable is None or new.readable.path == new.tiered.path:
                raise Conflict(
                    f"lake snapshot {new.snapshot_id} of table {info.path} holds less of the log than snapshot "
                    f"{ids[-1]}, which is known already: its worker was overtaken by another one",
                    ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION,
                )
            return (*_retained(snapshots[:-1], earliest_to_keep), new, snapshots[-1])
        return (*_retained(snapshots, earliest_to_keep), new)

    def _rolled_back(
        self, info: TableInfo, snapshots: StoredSnapshots, new: StoredLakeSnapshot, replaces: str
    ) -> StoredSnapshots:
        """Return what is known of the history that `new` ends, after the lake table was rolled back."""
        newest = snapshots[-1] if snapshots else None
        if newest is not None and newest.offsets_name == new.offsets_name != replaces:
            return snapshots  # this was registered before
        if newest is None or newest.offsets_name != replaces:
            raise Conflict(
                f"lake snapshot {new.snapshot_id} of table {info.path} shall replace one with the offsets {replaces!r},"
                f" and the newest one that is known is {newest and newest.snapshot_id}: its worker was overtaken by "
                "another one",
                ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION,
            )
        _LOGGER.warning(
            "table %s: the lake table was rolled back behind snapshot %d; snapshot %d is its newest one now",
            info.path,
            newest.snapshot_id,
            new.snapshot_id,
        )
        names_of = [snapshot.offsets_name for snapshot in snapshots]
        if new.offsets_name in names_of:
            place = names_of.index(new.offsets_name)
            return (*snapshots[:place], replace(snapshots[place], snapshot_id=new.snapshot_id))
        return tuple(
            s for s in snapshots[:-1] if s.snapshot_id != new.snapshot_id and not self._goes_back(info, s, new)
        )

    def _goes_back(self, info: TableInfo, newest: StoredLakeSnapshot, new: StoredLakeSnapshot) -> bool:
        before, after = self._read(info, newest.tiered).offsets, self._read(info, new.tiered).offsets
        return any(after.get(bucket, -1) < offset for bucket, offset in before.items())

    def _never_claimed(self, info: TableInfo, retained: StoredSnapshots) -> frozenset[str]:
        """Return the files of rounds that can no longer commit: see the module."""
        folder = names.lake_offsets_folder(info.path, info.table_id)
        referenced = {file.path for snapshot in retained for file in snapshot.files}
        try:
            entries = self._fs.list_directory(names.join(self._data_dir, folder))
        except ForebayError as e:
            _LOGGER.warning("cannot look for unreferenced offset files in %s: %s", folder, e)
            return frozenset()
        there = frozenset(f"{folder}/{e.name}" for e in entries if names.is_lake_offsets_file(e.name)) - referenced
        abandoned = there & self._unclaimed.get(info.table_id, frozenset())
        self._unclaimed[info.table_id] = there - abandoned
        return abandoned

    def _remove(self, paths: Iterable[str]) -> None:
        """Remove unreferenced files, once the journal has them; failures are left to the removal of the table."""
        self._when_stored(partial(self._remove_now, list(paths)))

    def _remove_now(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                self._fs.remove(names.join(self._data_dir, path))
            except FileMissing:
                continue
            except ForebayError as e:
                _LOGGER.warning("cannot remove %s: %s", path, e)
                continue
            if self._removed is not None:
                self._removed(path)

    # ---- asking -----------------------------------------------------------------------------------------------------

    def newest(self, info: TableInfo) -> KnownSnapshot:
        """Return the newest snapshot. Raises `NotFound` (LAKE_SNAPSHOT_NOT_EXIST)."""
        with self._lock:
            snapshots = self._snapshots.get(info.table_id)
            if not snapshots:
                raise _missing(f"table {info.path} has no lake snapshot")
            return self._found(info, snapshots[-1])

    def newest_readable(self, info: TableInfo) -> KnownSnapshot:
        """Return the newest snapshot from which a union read may start, and the log offsets where it continues."""
        with self._lock:
            for snapshot in reversed(self._snapshots.get(info.table_id, ())):
                if snapshot.readable is not None:
                    offsets = self._readable_offsets(info, snapshot.readable)
                    return KnownSnapshot(snapshot.snapshot_id, offsets, snapshot.offsets_name)
        raise _missing(f"table {info.path} has no readable lake snapshot")

    def by_id(self, info: TableInfo, snapshot_id: int) -> KnownSnapshot:
        """Return a snapshot that is still known, and how much of the log it holds."""
        with self._lock:
            for snapshot in self._snapshots.get(info.table_id, ()):
                if snapshot.snapshot_id == snapshot_id:
                    return self._found(info, snapshot)
        raise _missing(f"table {info.path} has no lake snapshot {snapshot_id}, or it is no longer known")

    def _found(self, info: TableInfo, snapshot: StoredLakeSnapshot) -> KnownSnapshot:
        return KnownSnapshot(snapshot.snapshot_id, self._read(info, snapshot.tiered), snapshot.offsets_name)

    def log_needed_from(self, info: TableInfo, bucket: TableBucket) -> int:
        """Return the first log offset of a lake table's bucket that the stream must keep: the lake cannot serve it yet.

        Raises `CorruptData` and `StorageFailure` if that cannot be determined.
        """
        with self._lock:
            for snapshot in reversed(self._snapshots.get(info.table_id, ())):
                if snapshot.readable is not None:
                    return self._readable_offsets(info, snapshot.readable).offsets.get(bucket, 0)
        return 0

    def _readable_offsets(self, info: TableInfo, file: OffsetsFile) -> BucketOffsets:
        """The offsets of the newest readable snapshot, read once: each union read and each retention asks for them."""
        cached = self._in_lake.get(info.table_id)
        if cached is None or cached[0] != file:
            cached = self._in_lake[info.table_id] = (file, self._read(info, file))
        return cached[1]

    # ---- files ------------------------------------------------------------------------------------------------------

    def forget(self, table_id: int) -> None:
        """Forget a dropped table, whose metadata and files are already removed."""
        with self._lock:
            self._snapshots = {key: snapshots for key, snapshots in self._snapshots.items() if key != table_id}
            self._in_lake.pop(table_id, None)
            self._unclaimed.pop(table_id, None)
            self._prepared.pop(table_id, None)

    def _file(self, info: TableInfo, path: str, snapshots: StoredSnapshots) -> OffsetsFile:
        folder = names.lake_offsets_folder(info.path, info.table_id)
        parent, _, name = path.rpartition("/")
        if not f"/{parent}".endswith(f"/{folder}") or not names.is_lake_offsets_file(name):
            raise InvalidRequest(
                f"{path!r} is no file of offsets that this server has prepared for table {info.path} "
                "(PrepareLakeTableSnapshot)"
            )
        file = f"{folder}/{name}"
        try:
            data = self._fs.read_bytes(names.join(self._data_dir, file))
        except FileMissing as e:
            if not snapshots:
                raise InvalidRequest(f"there is no file of offsets {path!r} of table {info.path}") from e
            raise Conflict(
                f"the file of offsets {path!r} of table {info.path} does not exist any more: later rounds have been "
                f"committed since, the last one as lake snapshot {snapshots[-1].snapshot_id}, so this worker was "
                "overtaken. If no other worker runs, others have made another snapshot of the lake table the newest "
                "one: roll it back to that one",
                ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION,
            ) from e
        _parse(data, info, names.join(self._data_dir, file))
        if self._grew is not None and file not in self._prepared.get(info.table_id, ()):
            self._grew(file, 0, len(data))  # an earlier process wrote it, and may have ended before it told
        return OffsetsFile(file, crc32c(data))

    def _read(self, info: TableInfo, file: OffsetsFile) -> BucketOffsets:
        """Raises `CorruptData`, `StorageFailure`, `FileMissing`."""
        path = names.join(self._data_dir, file.path)
        data = self._fs.read_bytes(path)
        if crc32c(data) != file.crc:
            raise CorruptData(
                f"the lake offsets in {path} are damaged: they do not have their checksum. Restore the file from a copy"
            )
        return _parse(data, info, path)


def _parse(data: bytes, info: TableInfo, path: str) -> BucketOffsets:
    offsets = BucketOffsets.from_json(data)
    if offsets.table_id != info.table_id:
        raise CorruptData(f"the lake offsets in {path} are those of table {offsets.table_id}, not {info.table_id}")
    return offsets


def _retained(earlier: StoredSnapshots, earliest_to_keep: int | None) -> StoredSnapshots:
    """Return the earlier snapshots to keep: those that are asked for (an id that is not among them means all, as in
    Fluss), and the last `HISTORY_KEPT`."""
    first = len(earlier)
    if earliest_to_keep is not None:
        ids = [snapshot.snapshot_id for snapshot in earlier]
        first = ids.index(earliest_to_keep) if earliest_to_keep in ids else 0
    return earlier[min(first, max(len(earlier) - HISTORY_KEPT, 0)) :]


def _bounded(snapshots: StoredSnapshots) -> StoredSnapshots:
    """Return the newest snapshots, and the one from which readers start."""
    if len(snapshots) <= SNAPSHOTS_MAX:
        return snapshots
    older, newer = snapshots[:-SNAPSHOTS_MAX], snapshots[-SNAPSHOTS_MAX:]
    readable = [snapshot for snapshot in older if snapshot.readable is not None]
    if readable and all(snapshot.readable is None for snapshot in newer):
        return (readable[-1], *newer[1:])
    return newer


def _missing(message: str) -> NotFound:
    return NotFound(message, ErrorCode.LAKE_SNAPSHOT_NOT_EXIST)
