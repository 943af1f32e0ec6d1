"""A data directory that repeats a journal: the state of another server, object by object.

It is what a standby keeps warm, and what a fresh machine builds before it serves. Between two objects the directory is
what the other server's was at that place of the journal, except for files that follow from the others: key-value state,
indexes, checkpoints. `finish` makes a directory of it that a server opens.

After a crash it goes on at its last `save`. Logs and files may be further, and what they have is skipped; the metadata
store says itself how far it is, in one transaction with the statements of an object.
"""

from __future__ import annotations

import json
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import Conflict, CorruptData, StorageFailure
from forebay.codec.log.header import iter_headers
from forebay.fs import names
from forebay.fs.interface import FileMissing, FileSystem
from forebay.log.checkpoints import DataDirectory
from forebay.log.config import LogConfig
from forebay.log.remote import RemoteLogSegment
from forebay.log.tablet import LogTablet
from forebay.metadata.table import PhysicalTablePath, TableBucket, TablePath
from forebay.server.metadata_store import (
    FOLDER_REMOVED,
    METADATA_FILE,
    SELECT_REMOTE_LOGS,
    SELECT_STATE_SNAPSHOTS,
    DatabaseFile,
    LocalDatabaseFile,
    StateSnapshot,
    bucket_columns,
    bucket_of,
    checked_rows,
    metadata_failure,
    state_snapshots_of,
)
from forebay.server.remote_log.manifest import tablet_name
from forebay.server.remote_log.remote_log import read_writers
from forebay.server.storage.log_epochs import mark_restored
from forebay.store.journal import JournalCursor, JournalObject, newest_checkpoint
from forebay.store.journal_format import (
    EpochBegan,
    FileWritten,
    IndexedEntry,
    JournalCheckpoint,
    LogCut,
    LogGrew,
    MetadataChanged,
    MetadataImage,
    Removed,
    Statement,
    decode_statements,
)
from forebay.store.objects import ObjectStore

_POSITION_FILE = "journal-position"
"""Where the follower goes on: JSON of the store's id, the cursor, and what was read up to there. A server's data
directory has no such file."""

_METADATA_POSITION = "journal-number"
"""The key of the table `settings` with the number of the object up to which the metadata store is."""

_OPEN_LOGS_MAX = 256

_LOCAL_SEGMENTS = 2
"""The newest segments of a log, which `JournalFollower.trim` leaves."""


class JournalFollower:
    """A data directory that repeats the journal of one store. One thread."""

    def __init__(
        self, fs: FileSystem, directory: DataDirectory, store: ObjectStore, store_id: bytes,
        *, log_config: LogConfig | None = None, clock: Clock = SYSTEM_CLOCK,
        database_file: Callable[[str], DatabaseFile] = LocalDatabaseFile,
    ) -> None:  # fmt: skip
        """`directory` is new, or was made by an earlier follower of this journal, who goes on there.

        Raises `Conflict` for the directory of a server, or of another journal.
        """
        folder = directory.path
        self._fs, self._folder, self._clock = fs, folder, clock
        self._config = log_config or LogConfig()
        self._directory, self._store = directory, store
        self._logs: OrderedDict[TableBucket, LogTablet] = OrderedDict()
        self._ends: dict[TableBucket, int] = self._directory.recovery_points.read()
        self._database = database_file(names.join(folder, METADATA_FILE))
        self._position_file = names.join(folder, _POSITION_FILE)
        self.fences: list[int] = []
        """The numbers of the fences that were read since the last image of the metadata, which has those before."""
        self._trimmed: dict[TableBucket, int] = {}
        """Up to which offset logs were trimmed."""
        self._state_folders: dict[TableBucket, str] = {}
        """Of buckets whose state was asked for."""
        self.needed_from = self.deleted_until = 1
        """What the last checkpoint says that was read."""
        self.cursor = JournalCursor(store, store_id)
        if self._read_position():
            self.cursor.require_place()
            if self.cursor.number == 0:
                self._clear()
        self._save_position()  # before anything else: a directory without a position is a server's
        self._metadata_number = self._stored_metadata_number()
        if self.cursor.number == 0:
            self._begin_at_checkpoint(store, store_id)

    def _clear(self) -> None:
        """Remove what was made before the first `save`: a checkpoint may be newer now, and logs may begin later."""
        for entry in self._fs.list_directory(self._folder):
            path = names.join(self._folder, entry.name)
            if entry.is_directory:
                self._fs.remove_tree(path)
            elif entry.name not in (names.LOCK_FILE, _POSITION_FILE):
                self._fs.remove(path)
        self._ends.clear()

    def _begin_at_checkpoint(self, store: ObjectStore, store_id: bytes) -> None:
        """Take the metadata of the newest checkpoint, and what its logs need from before."""
        checkpoint = newest_checkpoint(store)
        if checkpoint is None:
            return
        self._see_checkpoint(checkpoint)
        image = JournalObject(store, checkpoint.image)
        self._apply_metadata(image)
        for number in range(checkpoint.needed_from, checkpoint.image):
            found = JournalObject(store, number)
            for each in found.index.entries:
                if isinstance(each.entry, EpochBegan):
                    self.fences.append(number)
                self._apply_to_log(found, each)
        self.cursor = JournalCursor.behind(image, store, store_id)
        self._apply(image)
        self.save()

    def _see_checkpoint(self, checkpoint: JournalCheckpoint) -> None:
        self.needed_from, self.deleted_until = checkpoint.needed_from, checkpoint.deleted_until

    def _read_position(self) -> bool:
        """Go to the object that was saved last; return False in a new directory."""
        try:
            document = json.loads(self._fs.read_bytes(self._position_file))
        except FileMissing:
            if self._fs.exists(self._database.path):
                raise Conflict(f"{self._folder} is the data directory of a server; a copy needs a new one") from None
            return False
        at = self.cursor
        if document["store"] != at.store_id.hex():
            raise Conflict(f"{self._folder} follows the journal of another store, {document['store']}")
        at.number, at.seal, at.epoch = document["number"], document["seal"], document["epoch"]
        self.needed_from, self.deleted_until = document["needed_from"], document["deleted_until"]
        self.fences = document["fences"]
        return True

    def _stored_metadata_number(self) -> int:
        if not self._fs.exists(self._database.path):
            return 0
        with self._connected() as sql:
            row = sql.execute("SELECT value FROM settings WHERE key = ?", (_METADATA_POSITION,)).fetchone()
        return int(row[0])

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(self._database.connect()) as sql:
                sql.execute("PRAGMA journal_mode=TRUNCATE")
                yield sql
        except (UnicodeDecodeError, sqlite3.Error) as e:
            raise metadata_failure(e, self._database.path, "use") from e

    @property
    def ends(self) -> dict[TableBucket, int]:
        """The end of each log that the journal has."""
        return self._ends

    def all_fences(self) -> set[int]:
        """The numbers of the objects with which the epochs up to the cursor began."""
        numbers = set(self.fences)
        if self._fs.exists(self._database.path):
            with self._connected() as sql:
                numbers.update(number for (number,) in sql.execute("SELECT number FROM journal_fences").fetchall())
        return numbers

    def state_snapshots(self) -> dict[str, StateSnapshot]:
        """The snapshots of key-value state, by the folder of the state, relative to the data directory."""
        if not self._fs.exists(self._database.path):
            return {}
        with self._connected() as sql:
            rows = checked_rows(sql.execute(SELECT_STATE_SNAPSHOTS).fetchall(), self._database.path)
        found, folders = {}, self._state_folders
        for bucket, snapshot in state_snapshots_of(rows).items():
            if bucket not in folders and (path := self._path(bucket)) is not None:
                folders[bucket] = names.tablet_folder("kv", path, bucket)
            if bucket in folders:
                found[folders[bucket]] = snapshot
        return found

    def follow(self) -> int:
        """Repeat all objects that are there; return how many. Raises `CorruptData` and `StorageFailure`."""
        count = 0
        while self.follow_one() is not None:
            count += 1
        return count

    def follow_one(self) -> JournalObject | None:
        """Repeat the next object, and return it; None if there is none yet.

        Raises `CorruptData` and `StorageFailure`: the next call repeats the same object.
        """
        at = self.cursor
        before = at.number, at.seal, at.epoch
        found = at.next()
        if found is not None:
            try:
                self._apply(found)
            except BaseException:
                at.number, at.seal, at.epoch = before
                raise
        return found

    def _apply(self, found: JournalObject) -> None:
        self._apply_metadata(found)  # before the logs, whose tables it may create
        for each in found.index.entries:
            match each.entry:
                case LogGrew() | LogCut():
                    self._apply_to_log(found, each)
                case FileWritten(name, position):
                    self._write_file(name, position, found.payload(each))
                case Removed(name):
                    self._remove(name)
                case EpochBegan():
                    self.fences.append(found.footer.identity.number)
                case JournalCheckpoint():
                    self._see_checkpoint(each.entry)
                case MetadataImage():
                    self.fences.clear()
                case MetadataChanged():
                    pass

    def _apply_to_log(self, found: JournalObject, each: IndexedEntry) -> None:
        match each.entry:
            case LogGrew(bucket, first, _):
                self._grow(bucket, first, found, each)
            case LogCut(bucket, end):
                self._cut(bucket, end)

    # ---- metadata ---------------------------------------------------------------------------------------------------

    def _apply_metadata(self, found: JournalObject) -> None:
        number = found.footer.identity.number
        if number <= self._metadata_number:
            return
        image: bytes | None = None
        statements: list[Statement] = []
        for each in found.index.entries:
            if isinstance(each.entry, MetadataImage):
                image, statements = found.payload(each), []
            elif isinstance(each.entry, MetadataChanged):
                statements += decode_statements(found.payload(each))
        if image is None and not statements:
            return
        for text, values in statements:
            if text == FOLDER_REMOVED:
                self._remove_folder(*values)
        statements.append(("INSERT OR REPLACE INTO settings VALUES (?, ?)", (_METADATA_POSITION, str(number))))
        if image is None:
            with self._connected() as sql:
                _execute(sql, statements)
        else:
            with closing(sqlite3.connect(":memory:", isolation_level=None)) as sql:
                sql.deserialize(image)
                _execute(sql, statements)
                self._fs.write_atomic(self._database.path, sql.serialize())
        self._metadata_number = number

    # ---- logs -------------------------------------------------------------------------------------------------------

    def _grow(self, bucket: TableBucket, first: int, found: JournalObject, entry: IndexedEntry) -> None:
        log = self._log(bucket, first)
        if log is None:
            return
        batches = memoryview(found.payload(entry))
        for position, header in iter_headers(batches):
            if header.base_offset >= log.log_end_offset:
                log.append_as_follower(batches[position:])
                break
        self._ends[bucket] = log.log_end_offset

    def _cut(self, bucket: TableBucket, end: int) -> None:
        log = self._log(bucket, 0)
        if log is None or log.log_end_offset <= end:
            return
        self._ends[bucket] = min(end, self._ends.get(bucket, 0))
        self._save_ends()  # a log that ends below its recovery point would look damaged after a crash
        self._ends[bucket] = log.truncate_to(end)

    def _log(self, bucket: TableBucket, start: int) -> LogTablet | None:
        """The log of a bucket, new from offset `start`; None if its table was dropped by now."""
        log = self._logs.get(bucket)
        if log is None:
            path = self._path(bucket)
            if path is None:
                self._ends.pop(bucket, None)
                return None
            folder = names.join(self._folder, names.tablet_folder("log", path, bucket))
            copied = self._copied_end(bucket)
            log = self._logs[bucket] = LogTablet.open(
                self._fs, folder, config=self._config, clock=self._clock, start_offset=max(start, copied),
                start_writers=lambda: self._writers_at(bucket, copied) if copied >= start else None,
                recovery_point=self._ends.get(bucket),
            )  # fmt: skip
            if len(self._logs) > _OPEN_LOGS_MAX:
                _, oldest = self._logs.popitem(last=False)
                oldest.sync()
                oldest.close()
        self._logs.move_to_end(bucket)
        return log

    def _copied_end(self, bucket: TableBucket) -> int:
        """Where the remote log of a bucket ends: a new log begins there."""
        with self._connected() as sql:
            query = "SELECT end_offset FROM remote_logs WHERE table_id = ? AND partition_id = ? AND bucket = ?"
            row = sql.execute(query, bucket_columns(bucket)).fetchone()
        return 0 if row is None else row[0]

    def _writers_at(self, bucket: TableBucket, offset: int) -> bytes | None:
        """What writers had done before the end of the remote log."""
        path = self._path(bucket)
        with self._connected() as sql:
            row = sql.execute(
                "SELECT segment_id, start_offset, end_offset, max_timestamp_ms, size_bytes FROM remote_segments "
                "WHERE table_id = ? AND partition_id = ? AND bucket = ? AND end_offset = ?",
                (*bucket_columns(bucket), offset),
            ).fetchone()
        if row is None or path is None:
            return None
        return read_writers(self._store, tablet_name(path, bucket), RemoteLogSegment(*row))

    def _path(self, bucket: TableBucket) -> PhysicalTablePath | None:
        with self._connected() as sql:
            table = sql.execute("SELECT database, name FROM tables WHERE table_id = ?", (bucket.table_id,)).fetchone()
            if table is None:
                return None
            if bucket.partition_id is None:
                return PhysicalTablePath(TablePath(*table))
            partition = sql.execute(
                "SELECT name FROM partitions WHERE partition_id = ?", (bucket.partition_id,)
            ).fetchone()
            return None if partition is None else PhysicalTablePath(TablePath(*table), partition[0])

    def trim(self) -> int:
        """Delete segments that the remote logs have; return how many.

        Those stay that bring a snapshot of key-value state up to date, and the newest: after a takeover they are read
        from the disk, and all others from the store.
        """
        count = 0
        self._forget_dropped()
        for bucket, until in self._copied_ends().items():
            if self._trimmed.get(bucket) == until or bucket not in self._ends:
                continue
            log = self._log(bucket, 0)
            if log is not None:
                newest = log.segments()[-_LOCAL_SEGMENTS:]
                count += log.delete_segments_before(min(until, newest[0].base_offset))
                self._trimmed[bucket] = until
        return count

    def _forget_dropped(self) -> None:
        """Forget the ends of logs whose table or partition is gone."""
        if not self._fs.exists(self._database.path):
            return
        with self._connected() as sql:
            tables = {table_id for (table_id,) in sql.execute("SELECT table_id FROM tables").fetchall()}
            partitions = {None, *(each for (each,) in sql.execute("SELECT partition_id FROM partitions").fetchall())}
        for bucket in list(self._ends):
            if bucket.table_id not in tables or bucket.partition_id not in partitions:
                for forgotten in (self._ends, self._trimmed, self._state_folders):
                    forgotten.pop(bucket, None)

    def _copied_ends(self) -> dict[TableBucket, int]:
        """Up to which offset the store has logs, or the key-value state that they lead to."""
        if not self._fs.exists(self._database.path):
            return {}
        with self._connected() as sql:
            logs = checked_rows(sql.execute(SELECT_REMOTE_LOGS).fetchall(), self._database.path)
            states = checked_rows(sql.execute(SELECT_STATE_SNAPSHOTS).fetchall(), self._database.path)
        ends = {bucket_of(*columns): end for *columns, end, _ in logs}
        for bucket, snapshot in state_snapshots_of(states).items():
            ends[bucket] = min(ends.get(bucket, 0), snapshot.log_offset)
        return ends

    # ---- files ------------------------------------------------------------------------------------------------------

    def _remove_folder(self, folder: str) -> None:
        """Remove the folder of a dropped table or partition, with its logs and states."""
        path = names.join(self._folder, folder)
        for bucket in [bucket for bucket, log in self._logs.items() if log.folder.startswith(f"{path}/")]:
            with suppress(StorageFailure):
                self._logs.pop(bucket).close()
        self._fs.remove_tree(path)

    def _write_file(self, name: str, position: int, content: bytes) -> None:
        path = names.join(self._folder, name)
        self._fs.make_directories(path.rpartition("/")[0])
        with closing(self._fs.open_append(path)) as file:
            if file.size < position:
                raise CorruptData(f"{path} has {file.size} bytes, and the journal goes on at byte {position}")
            file.truncate(position)
            file.append([content])
            file.sync()

    def _remove(self, name: str) -> None:
        path = names.join(self._folder, name)
        try:
            self._fs.remove(path)
        except FileMissing:
            return
        self._fs.sync_directory(path.rpartition("/")[0])

    # ---- ends -------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Sync all logs, and note how far they are: there a follower goes on after a crash."""
        self._save_ends()
        self._save_position()

    def _save_ends(self) -> None:
        for log in self._logs.values():
            log.sync()
        self._directory.recovery_points.write(self._ends)

    def _save_position(self) -> None:
        at = self.cursor
        document = {
            "store": at.store_id.hex(), "number": at.number, "seal": at.seal, "epoch": at.epoch,
            "needed_from": self.needed_from, "deleted_until": self.deleted_until, "fences": self.fences,
        }  # fmt: skip
        self._fs.write_atomic(self._position_file, json.dumps(document).encode())

    def close(self) -> None:
        """Save, and close all files; another follower may go on."""
        self.save()
        for log in self._logs.values():
            log.close()
        self._logs.clear()

    def finish(self, reason: str) -> None:
        """Close, so that a server opens the directory as its own, in a new epoch of its logs for this `reason`."""
        mark_restored(self._fs, self._folder, reason)
        self.save()
        self._directory.high_watermarks.write(self._ends)
        for log in self._logs.values():
            log.close()
        self._logs.clear()
        self._directory.mark_clean_shutdown()

    def forget(self) -> None:
        """Remove what tells the directory apart from a server's."""
        self._fs.remove(self._position_file)


def _execute(sql: sqlite3.Connection, statements: Sequence[Statement]) -> None:
    """Execute all statements in one transaction."""
    sql.execute("BEGIN IMMEDIATE")
    for text, values in statements:
        sql.execute(text, values)
    sql.execute("COMMIT")
