"""A data directory that repeats a journal: the state of another server, object by object.

It is what a standby keeps warm, and what a fresh machine builds before it serves. Between two objects the directory is
what the other server's was at that place of the journal, except for files that follow from the others (key-value state,
indexes, checkpoints), and for rows that remote logs have: a new directory begins without those that they had at the end
of the journal, and is whole when it has repeated the journal up to there. `finish` makes a directory of it for a server
to open.

After a crash it goes on at its last `save`. Logs and files may be further, and what they have is skipped; the metadata
store says itself how far it is, in one transaction with the statements of an object.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import Conflict, CorruptData
from forebay.fs import names
from forebay.fs.interface import FileMissing, FileSystem
from forebay.log.checkpoints import DataDirectory
from forebay.log.config import LogConfig
from forebay.metadata.table import TableBucket
from forebay.server.journal.followed_logs import FollowedLogs
from forebay.server.journal.followed_metadata import FollowedMetadata, removed_folders
from forebay.server.journal.skimming import newest_segments
from forebay.server.metadata_store import METADATA_FILE, DatabaseFile, LocalDatabaseFile, StateSnapshot
from forebay.server.storage.log_epochs import mark_restored
from forebay.store.journal import JournalCursor, JournalObject, last_number, newest_checkpoint, newest_object
from forebay.store.journal_ahead import ObjectsAhead
from forebay.store.journal_format import (
    Entry,
    EpochBegan,
    FileWritten,
    IndexedEntry,
    JournalCheckpoint,
    LogCut,
    LogGrew,
    MetadataChanged,
    MetadataImage,
    Removed,
)
from forebay.store.objects import ObjectStore

_POSITION_FILE = "journal-position"
"""Where the follower goes on: JSON of the store's id, the cursor, and what was read up to there. A server's data
directory has no such file."""


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
        self._fs, self._folder, self._directory = fs, folder, directory
        database = database_file(names.join(folder, METADATA_FILE))
        self._position_file = names.join(folder, _POSITION_FILE)
        self.fences: list[int] = []
        """The numbers of the fences that were read since the last image of the metadata, which has those before."""
        self._state_folders: dict[TableBucket, str] = {}
        """Of buckets whose state was asked for."""
        self.needed_from = self.deleted_until = 1
        """What the last checkpoint says that was read."""
        self._whole_from = 0
        """Up to which object of the journal logs may lack what remote logs got later."""
        self._ahead: ObjectsAhead | None = None
        self.cursor = JournalCursor(store, store_id)
        self._repeated_until = 0
        """Objects up to this one may have been repeated by an earlier process."""
        if self._read_position(database):
            self.cursor.require_place()
            self._repeated_until = last_number(store, self.cursor.number)
            if self.cursor.number == 0:
                self._clear()
        self._save_position()  # before anything else: a directory without a position is a server's
        self.metadata = FollowedMetadata(fs, database)
        self.logs = FollowedLogs(fs, directory, self.metadata, store, log_config or LogConfig(), clock)
        if self.cursor.number == 0:
            self._begin(store, store_id)

    def _clear(self) -> None:
        """Remove what was made before the first `save`: a checkpoint may be newer now, and logs may begin later."""
        for entry in self._fs.list_directory(self._folder):
            path = names.join(self._folder, entry.name)
            if entry.is_directory:
                self._fs.remove_tree(path)
            elif entry.name not in (names.LOCK_FILE, _POSITION_FILE):
                self._fs.remove(path)

    def _begin(self, store: ObjectStore, store_id: bytes) -> None:
        """Begin with the newest checkpoint, or the first object, and without rows that remote logs have by now."""
        newest = newest_object(store)
        if newest is None:
            return
        last, checkpoint = newest.footer.identity.number, newest_checkpoint(store)
        first = 1 if checkpoint is None else checkpoint.image
        self.logs.copied = newest_segments(store, first, last)
        if self.logs.copied:
            self._whole_from = last
        ahead = self._ahead = ObjectsAhead(
            store,
            first if checkpoint is None else min(first, checkpoint.needed_from),
            last,
            partial(self._wants, first),
        )
        self.cursor.read_object = ahead.take
        if checkpoint is not None:
            self._begin_at_checkpoint(checkpoint, store, store_id, ahead)

    def _wants(self, first: int, number: int, entry: Entry) -> bool:
        """Whether an entry's payload is needed; metadata from object `first` on."""
        if isinstance(entry, LogGrew):
            return not self.logs.is_copied(entry.bucket, entry.end)
        return number >= first

    def _begin_at_checkpoint(
        self, checkpoint: JournalCheckpoint, store: ObjectStore, store_id: bytes, ahead: ObjectsAhead
    ) -> None:
        """Take the metadata of the checkpoint, and what its logs need from before."""
        self._see_checkpoint(checkpoint)
        image = JournalObject(store, checkpoint.image)
        self._apply_metadata(image)
        for number in range(checkpoint.needed_from, checkpoint.image):
            found = ahead.take(number)
            for each in found.index.entries:
                if isinstance(each.entry, EpochBegan):
                    self.fences.append(number)
                self._apply_to_log(found, each)
        self.cursor = JournalCursor.behind(image, store, store_id)
        self.cursor.read_object = ahead.take
        self._apply(image)
        self.save()

    def _see_checkpoint(self, checkpoint: JournalCheckpoint) -> None:
        self.needed_from, self.deleted_until = checkpoint.needed_from, checkpoint.deleted_until

    def _read_position(self, database: DatabaseFile) -> bool:
        """Go to the object that was saved last; return False in a new directory."""
        try:
            document = json.loads(self._fs.read_bytes(self._position_file))
        except FileMissing:
            if self._fs.exists(database.path):
                raise Conflict(f"{self._folder} is the data directory of a server; a copy needs a new one") from None
            return False
        at = self.cursor
        if document["store"] != at.store_id.hex():
            raise Conflict(f"{self._folder} follows the journal of another store, {document['store']}")
        at.number, at.seal, at.epoch = document["number"], document["seal"], document["epoch"]
        self.needed_from, self.deleted_until = document["needed_from"], document["deleted_until"]
        self.fences = document["fences"]
        if at.number < document["whole_from"]:  # which rows it lacks is not known any more
            at.number = at.seal = at.epoch = 0
            self.fences = []
        return True

    @property
    def is_whole(self) -> bool:
        """Whether logs and remote logs have all rows together: not yet, while rows are left out that remote logs got
        later."""
        return self.cursor.number >= self._whole_from

    @property
    def ends(self) -> dict[TableBucket, int]:
        """The end of each log that the journal has."""
        return self.logs.ends

    def all_fences(self) -> set[int]:
        """The numbers of the objects with which the epochs up to the cursor began."""
        return {*self.fences, *self.metadata.fences()}

    def state_snapshots(self) -> dict[str, StateSnapshot]:
        """The snapshots of key-value state, by the folder of the state, relative to the data directory."""
        snapshots, known = self.metadata.state_snapshots(), self._state_folders
        for bucket in snapshots.keys() - known.keys():
            if (path := self.metadata.path(bucket)) is not None:
                known[bucket] = names.tablet_folder("kv", path, bucket)
        self._state_folders = {bucket: folder for bucket, folder in known.items() if bucket in snapshots}
        return {folder: snapshots[bucket] for bucket, folder in self._state_folders.items()}

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
        if self._ahead is not None and (found is None or (self.is_whole and not self._ahead.has_more)):
            self._end_ahead()
        return found

    def _end_ahead(self) -> None:
        """From now on each object is read when it is there."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
            self.cursor.read_object = partial(JournalObject, self.cursor.store)
            self.logs.copied = {}

    def _apply(self, found: JournalObject) -> None:
        self._apply_metadata(found)  # before the logs, whose tables it may create
        for each in found.index.entries:
            match each.entry:
                case LogGrew() | LogCut():
                    self._apply_to_log(found, each)
                case FileWritten(name, position):
                    self._write_file(found, name, position, found.payload(each))
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
            case LogGrew(bucket, first, end):
                if not self.logs.skip(bucket, end):
                    is_repeated = found.footer.identity.number <= self._repeated_until
                    self.logs.grow(bucket, first, memoryview(found.payload(each)), is_repeated=is_repeated)
            case LogCut(bucket, end):
                self.logs.cut(bucket, end)

    def _apply_metadata(self, found: JournalObject) -> None:
        image, statements = self.metadata.changes(found)
        if image is None and not statements:
            return
        for folder in removed_folders(statements):
            path = names.join(self._folder, folder)
            self.logs.close_in(path)
            self._fs.remove_tree(path)
        self.metadata.apply(found.footer.identity.number, image, statements)

    # ---- files ------------------------------------------------------------------------------------------------------

    def _write_file(self, found: JournalObject, name: str, position: int, content: bytes) -> None:
        path = names.join(self._folder, name)
        self._fs.make_directories(path.rpartition("/")[0])
        with closing(self._fs.open_append(path)) as file:
            if file.size < position:
                if found.footer.identity.number <= self._repeated_until:
                    return  # the file was removed by a later object, before a crash
                raise CorruptData(f"{path} has {file.size} bytes, and the journal goes on at byte {position}")
            # For checkpoints all files are written again, in parts: what is there is not cut back meanwhile.
            if not self._has(path, position, content):
                file.truncate(position)
                file.append([content])
                file.sync()

    def _has(self, path: str, position: int, content: bytes) -> bool:
        with closing(self._fs.open_reader(path)) as reader:
            return reader.size() > position and reader.pread(position, len(content)) == content

    def _remove(self, name: str) -> None:
        path = names.join(self._folder, name)
        folder, _, base = path.rpartition("/")
        with suppress(FileMissing):  # as after a crash, or where the table was dropped
            entries = {entry.name: entry for entry in self._fs.list_directory(folder)}
            if base in entries:
                (self._fs.remove_tree if entries[base].is_directory else self._fs.remove)(path)
                self._fs.sync_directory(folder)

    # ---- ends -------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Sync all logs, and note how far they are: there a follower goes on after a crash."""
        self.logs.sync()
        self._save_position()

    def _save_position(self) -> None:
        at = self.cursor
        document = {
            "store": at.store_id.hex(), "number": at.number, "seal": at.seal, "epoch": at.epoch,
            "needed_from": self.needed_from, "deleted_until": self.deleted_until, "fences": self.fences,
            "whole_from": self._whole_from,
        }  # fmt: skip
        self._fs.write_atomic(self._position_file, json.dumps(document).encode())

    def close(self) -> None:
        """Save, and close all files; another follower may go on."""
        self._end_ahead()
        self.save()
        self.logs.close()

    def finish(self, reason: str) -> None:
        """Close, so that a server opens the directory as its own, in a new epoch of its logs for this `reason`."""
        assert self.is_whole, "rows are missing here"
        self._end_ahead()
        mark_restored(self._fs, self._folder, reason)
        self.save()
        self._directory.high_watermarks.write(self.ends)
        self.logs.close()
        self._directory.mark_clean_shutdown()

    def forget(self) -> None:
        """Remove what tells the directory apart from a server's."""
        self._fs.remove(self._position_file)
