"""The journal of one running server: it takes the store over, uploads what happens, and notices another server.

A server's data directory remembers where its journal is (`journal-state`), so that the server goes on after a stop or
a crash, and finds out whether another one has taken over meanwhile. A new data directory repeats the journal first.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from forebay.base import threads
from forebay.base.ambient import Clock, IdSource
from forebay.base.errors import (
    Conflict,
    CorruptData,
    ErrorCode,
    ForebayError,
    InvalidRequest,
    StorageFailure,
    Unavailable,
)
from forebay.base.thread_rules import any_thread
from forebay.codec.crc import crc32c
from forebay.fs import names
from forebay.fs.interface import FileMissing, FileSystem
from forebay.log.checkpoints import DataDirectory
from forebay.log.config import LogConfig
from forebay.metadata.table import TableBucket
from forebay.server.journal.checkpoints import JournalCheckpoints
from forebay.server.journal.feed import FilePart, JournalFeed
from forebay.server.journal.follower import JournalFollower
from forebay.server.journal.store_gate import AnswerGate, LeaseGate, StoreGate
from forebay.server.journal.uploader import JournalUploader
from forebay.server.metadata_store import DatabaseFile, LocalDatabaseFile, MetadataStore
from forebay.server.storage.replicas import ReplicaManager
from forebay.store.journal import Fenced, JournalCursor, JournalWriter, open_journal
from forebay.store.journal_format import EpochBegan, JournalCheckpoint, LogCut, LogGrew, MetadataImage
from forebay.store.objects import ObjectStore

_LOGGER = logging.getLogger(__name__)

_STATE_FILE = "journal-state"
_STATE_SECONDS = 5.0
"""How often the state is saved: what a start has to read of the journal."""

_RETRY_SECONDS = 0.5
_RENEWAL_SHARE, _LEASE_SHARE = 0.25, 0.9
"""Parts of the lease: after the first it is renewed, after the second nothing is acknowledged any more."""
_READ_BYTES = 1 << 20

_RACES_MAX = 3
"""After so many objects that were created before a fence could be, the other server is asked to end."""

_ASKED_SECONDS, _ASKED_OBJECTS = 1.0, 4
"""A server looks whether it is asked after this time, if it has created so many objects meanwhile: one that creates
fewer can be fenced without."""

_WRITERS_MAX = 1000
"""Starts without success, of which no more are remembered."""


class StoreSettings(NamedTuple):
    """How a server uses its store."""

    interval_seconds: float
    """How far the journal may be behind."""
    holder: str
    """The server, in words, for those who read the journal."""
    lease_seconds: float = 0.0
    """After this time without an object, a standby may take over, and nothing is acknowledged; 0: never."""
    retention_seconds: float = 3600.0
    """How long objects stay that are not needed any more."""
    is_awaited: bool = False
    """Whether answers wait for the store (`store.durability` = `store`)."""


@dataclass
class _State:
    """Where the journal is, as the data directory remembers it."""

    store: str
    number: int = 0
    seal: int = 0
    epoch: int = 0
    writers: list[str] = field(default_factory=list)
    """The writers that this directory has been since `number`, each of which may have written behind it: a creation
    that failed may happen later, until its number is taken."""
    ends: dict[TableBucket, int] = field(default_factory=dict)
    needed_from: int = 1
    """What a checkpoint says (`forebay.store.journal_format.JournalCheckpoint`)."""
    deleted_until: int = 1


def has_journal_state(fs: FileSystem, data_dir: str) -> bool:
    """Whether the data directory is that of a server with a store."""
    return fs.exists(names.join(data_dir, _STATE_FILE))


class ServerJournal:
    """The journal of one running server. Create one with `take_over`, then `begin`, `start` and `stop`."""

    def __init__(
        self, store: ObjectStore, fs: FileSystem, data_dir: str, settings: StoreSettings, clock: Clock, ids: IdSource
    ) -> None:
        """For `take_over` only."""
        self.feed = JournalFeed(clock)
        self.store = store
        self.is_fenced = False
        """Whether another server has taken over."""
        self._fs, self._data_dir = fs, data_dir
        self._settings, self._clock, self._ids = settings, clock, ids
        self._state_file = names.join(data_dir, _STATE_FILE)
        self._state = _State("")
        self._writer: JournalWriter | None = None
        self._uploader: JournalUploader | None = None
        self._wake = threads.event()
        self._thread: threads.Thread | None = None
        self._is_stopping = False
        self._next_save = 0.0
        self.gate: AnswerGate | None = None
        """Holds answers back until they are in the store, if that is wanted."""
        self._lease_end = self._next_renewal = float("inf")
        self._began = 0.0
        self._fences: list[int] = []
        """Numbers of fences that were read, or written, since the metadata were stored."""
        self._image = 0
        """The number of the object with the image that this epoch began with."""
        self._metadata: MetadataStore | None = None
        self._renewal_seconds = _RENEWAL_SHARE * settings.lease_seconds or float("inf")
        self._looked, self._looked_number = 0.0, 0
        """When it was looked whether this server is asked to end, and at which object."""

    # ---- starting ---------------------------------------------------------------------------------------------------

    @classmethod
    def take_over(
        cls, store: ObjectStore, fs: FileSystem, directory: DataDirectory, settings: StoreSettings,
        *, log_config: LogConfig, clock: Clock, ids: IdSource,
        database_file: Callable[[str], DatabaseFile] = LocalDatabaseFile,
    ) -> ServerJournal:  # fmt: skip
        """Make the data directory what the journal says, and become its writer.

        Raises `Conflict` if the directory is of a server without a store, of another store, or of a server from which
        another one has taken over; `CorruptData` and `StorageFailure`.
        """
        journal = cls(store, fs, directory.path, settings, clock, ids)
        store_id = open_journal(store, ids=ids)
        state = journal._read_state()
        if state is None:
            journal._begin_in(
                JournalFollower(
                    fs, directory, store, store_id, log_config=log_config, clock=clock, database_file=database_file
                )
            )
        elif state.store == store_id.hex():
            journal._go_on(state)
        else:
            raise Conflict(
                f"the data directory {directory.path} belongs to another store, {state.store}, and not to "
                f"{store.location}: give that one, or a new directory"
            )
        return journal

    def _begin_in(self, follower: JournalFollower) -> None:
        """Repeat the journal in a new data directory, up to the fence."""
        own, cursor, where = self._new_writer_id(), follower.cursor, self.store.location
        writer = self._writer = self._fence(cursor, own, follower.follow)
        self._fences += follower.fences
        if cursor.number:
            _LOGGER.info("the data directory is at object %d of the journal in %s", cursor.number, where)
            follower.finish(f"the data directory was made from the journal in {where}")
        self._state = _State(
            cursor.store_id.hex(), writer.number, writer.seal, writer.epoch, [own.hex()], dict(follower.ends),
            follower.needed_from, follower.deleted_until,
        )  # fmt: skip
        self._write_state(self._state)
        follower.forget()

    def _go_on(self, state: _State) -> None:
        """Become the writer again, unless another server has taken over."""
        self._state = state
        cursor = JournalCursor(self.store, bytes.fromhex(state.store), state.number, state.seal, state.epoch)
        own = self._new_writer_id()

        def catch_up() -> None:
            self._read_own(cursor)
            if own.hex() not in state.writers:
                # Remembered before it writes: its fence must not be taken for another server's after a crash.
                state.writers = [*state.writers[-_WRITERS_MAX:], own.hex()]
                self._write_state(state)

        self._writer = self._fence(cursor, own, catch_up)

    def _new_writer_id(self) -> bytes:
        return bytes.fromhex(self._ids.token_hex())

    def _fence(self, cursor: JournalCursor, own: bytes, catch_up: Callable[[], object]) -> JournalWriter:
        """Become the journal's writer. `catch_up` moves the cursor to the last object."""
        lease_ms = round(self._settings.lease_seconds * 1000)
        began = EpochBegan(self._settings.holder, "the server was started", lease_ms)
        for races_lost in itertools.count():
            catch_up()
            writer = cursor.fence(began, own, self._clock)
            if writer is not None:
                if races_lost >= _RACES_MAX:
                    cursor.forget_takeover()
                return writer
            if (races_lost + 1) % _RACES_MAX == 0:
                _LOGGER.info("asking the server that writes to %s to end", self.store.location)
                cursor.request_takeover()
        raise AssertionError("unreachable")

    def _read_own(self, cursor: JournalCursor) -> None:
        """Read what the store got since the state was saved, all by this data directory."""
        state = self._state
        while (found := cursor.next()) is not None:
            if found.footer.identity.writer.hex() not in state.writers:
                raise Conflict(
                    f"another server has taken over the store {self.store.location} (object {cursor.number} of "
                    f"its journal), and {self._data_dir} may have what the store lacks. Start with a new data "
                    "directory, which is made from the store"
                )
            for each in found.index.entries:
                if isinstance(each.entry, LogGrew | LogCut):
                    state.ends[each.entry.bucket] = each.entry.end
                elif isinstance(each.entry, EpochBegan):
                    self._fences.append(cursor.number)
                elif isinstance(each.entry, JournalCheckpoint):
                    state.needed_from, state.deleted_until = each.entry.needed_from, each.entry.deleted_until

    def begin(self, metadata: MetadataStore) -> None:
        """Upload the metadata as it is now; from now on its changes are noted. Before anything else uses it."""
        writer = self._writer
        assert writer is not None
        metadata.add_journal_fences([*self._fences, writer.number])
        began = self._clock.monotonic()
        self._image = writer.write([(MetadataImage(self._clock.now_ms()), metadata.image())])
        self._metadata = metadata
        for bucket, (end, _) in metadata.remote_logs().items():
            # Where a checkpoint left out what remote logs have.
            self._state.ends[bucket] = max(end, self._state.ends.get(bucket, 0))
        self._renew(began)
        metadata.on_commit = self.feed.metadata_committed

    def open_gate(self, loop: asyncio.AbstractEventLoop) -> AnswerGate | None:
        """Return what holds the answers of this server back, if anything does. Before `start`."""
        lease = lambda: self.has_lease, self._data_dir, loop
        if self._settings.is_awaited:
            self.gate = StoreGate(*lease, feed=self.feed, wake=self._wake.set)
        elif self._settings.lease_seconds:
            self.gate = LeaseGate(*lease)
        return self.gate

    def note_file(self, name: str) -> None:
        """Note a whole file of the data directory, if it is there."""
        with suppress(FileMissing), closing(self._fs.open_reader(names.join(self._data_dir, name))) as file:
            self.feed.add(FilePart(name, 0, file.size()))

    def note_files(self, folder: str) -> None:
        """Note all files below a folder of the data directory: what an earlier process has written may be missing."""
        with suppress(FileMissing):
            for entry in self._fs.list_directory(names.join(self._data_dir, folder)):
                if entry.is_directory:
                    self.note_files(f"{folder}/{entry.name}")
                elif not names.is_temporary(entry.name):
                    self.feed.add(FilePart(f"{folder}/{entry.name}", 0, entry.size_bytes))

    def start(
        self,
        replicas: ReplicaManager,
        on_fenced: Callable[[], None],
        *,
        copied_ends: Callable[[], Mapping[TableBucket, int]],
        note_files: Callable[[], None],
    ) -> None:
        """Upload from now on, in a thread; `on_fenced` is called in it if another server takes over.

        `copied_ends`: the end of each remote log. `note_files`: notes all files that the journal has to have.
        """
        assert self._writer is not None
        assert self._metadata is not None
        self._uploader = JournalUploader(
            self.feed, self._writer, _ServerFiles(replicas, self._fs, self._data_dir), self._state.ends,
            clock=self._clock, on_stored=replicas.stored,
        )  # fmt: skip
        checkpoints = self._uploader.checkpoints = JournalCheckpoints(
            self.store, self._metadata, self.feed,
            JournalCheckpoint(self._image, self._state.needed_from, self._state.deleted_until),
            retention_seconds=self._settings.retention_seconds, note_files=note_files, copied_ends=copied_ends,
            exists=lambda bucket: replicas.find_table(bucket) is not None, clock=self._clock,
        )  # fmt: skip
        checkpoints.begin(self._writer.number, self._state.ends)
        self._thread = threads.thread(self._run, (on_fenced,), name="forebay-journal")
        self._thread.start()

    # ---- running ----------------------------------------------------------------------------------------------------

    @any_thread
    def stored_end(self, bucket: TableBucket) -> int:
        """The offset up to which the journal has the log of a bucket."""
        uploader = self._uploader
        return (self._state.ends.get(bucket, 0)) if uploader is None else uploader.stored_end(bucket)

    def wait_until_stored(self, timeout: float | None = None) -> bool:
        """Wait until all that is noted by now is in the journal; return whether it is.

        Raises the error that ended the uploading.
        """
        assert self._uploader is not None
        noted = self.feed.noted
        self._wake.set()
        return self._uploader.wait(noted, timeout)

    @property
    @any_thread
    def behind_seconds(self) -> float:
        """How long ago the oldest change happened that the store does not have; 0 if it has all."""
        oldest_ms = None if self._uploader is None else self._uploader.oldest_ms()
        return 0.0 if oldest_ms is None else max(self._clock.now_ms() - oldest_ms, 0) / 1000

    @property
    @any_thread
    def objects(self) -> int:
        """How many objects of the journal this server has created, without its fence and first image."""
        return 0 if self._uploader is None else self._uploader.objects

    @property
    def is_awaited(self) -> bool:
        """Whether answers wait for the store."""
        return self._settings.is_awaited

    @property
    @any_thread
    def has_lease(self) -> bool:
        """Whether no standby can have taken over."""
        return self._clock.monotonic() < self._lease_end

    def _renew(self, began: float) -> None:
        """The creation of an object, which began then, has succeeded."""
        if self._settings.lease_seconds:
            self._lease_end = began + _LEASE_SHARE * self._settings.lease_seconds
            self._next_renewal = began + _RENEWAL_SHARE * self._settings.lease_seconds

    def _upload(self, uploader: JournalUploader) -> bool:
        """Upload an object, if there is something new or the lease is due; return whether there may be more."""
        writer, now = self._writer, self._clock.monotonic()
        assert writer is not None
        if not uploader.is_unsure:
            # An object that is tried again may be there since the first attempt: the lease counts from that one.
            self._began = now
        number = writer.number
        more = uploader.upload(even_if_empty=now >= self._next_renewal)
        if writer.number > number:
            self._renew(self._began)
            self._look(writer, now)
        return more

    def _look(self, writer: JournalWriter, now: float) -> None:
        """End if another server waits to take over."""
        if now < self._looked + _ASKED_SECONDS or writer.number < self._looked_number + _ASKED_OBJECTS:
            return
        self._looked, self._looked_number = now, writer.number
        try:
            is_asked = writer.is_asked_to_end()
        except StorageFailure:
            return  # looked for again
        if is_asked:
            raise Fenced(f"another server has asked for the store {self.store.location}")

    def _run(self, on_fenced: Callable[[], None]) -> None:
        uploader = self._uploader
        assert uploader is not None
        failing_since: float | None = None
        while True:
            is_last = self._is_stopping
            if not is_last:
                self._wake.wait(min(self._settings.interval_seconds, self._renewal_seconds))
                self._wake.clear()
            try:
                while self._upload(uploader):
                    failing_since = None
                    if self.gate is not None:
                        self.gate.stored(uploader.stored_count)
                self._save_state_if_due(is_last=is_last)
                if not is_last and uploader.checkpoints is not None and uploader.checkpoints.delete_due():
                    self._wake.set()
            except (Fenced, CorruptData) as e:
                _LOGGER.error("the journal ends here: %s", e)
                self.is_fenced = isinstance(e, Fenced)
                uploader.fail(e)
                if self.gate is not None:
                    self.gate.fail(e)
                on_fenced()
                return
            except ForebayError as e:
                now = self._clock.monotonic()
                if failing_since is None:
                    failing_since = now
                    _LOGGER.warning("the journal is behind, and is tried again: %s", e)
                if is_last:
                    _LOGGER.error("the journal lacks the last changes, which are only in %s: %s", self._data_dir, e)
                    uploader.fail(e)
                    return
                self._clock.sleep(_RETRY_SECONDS)
            if is_last:
                return

    def stop(self) -> None:
        """Upload what is left, once, and stop. Before the buckets are closed."""
        self._is_stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    # ---- the state --------------------------------------------------------------------------------------------------

    def _save_state_if_due(self, *, is_last: bool) -> None:
        now = self._clock.monotonic()
        writer, uploader = self._writer, self._uploader
        assert writer is not None
        assert uploader is not None
        if not is_last and (now < self._next_save or writer.number == self._state.number):
            return
        state = self._state
        state.writers = state.writers[-1:]
        state.number, state.seal, state.epoch = writer.number, writer.seal, writer.epoch
        state.ends = uploader.stored_ends()
        if uploader.checkpoints is not None:
            current = uploader.checkpoints.current
            state.needed_from, state.deleted_until = current.needed_from, current.deleted_until
        self._write_state(state)
        self._next_save = now + _STATE_SECONDS

    def _write_state(self, state: _State) -> None:
        document: dict[str, Any] = {
            "store": state.store, "number": state.number, "seal": state.seal, "epoch": state.epoch,
            "writers": state.writers, "needed_from": state.needed_from, "deleted_until": state.deleted_until,
            "ends": [[b.table_id, b.partition_id, b.bucket, end] for b, end in state.ends.items()],
        }  # fmt: skip
        body = json.dumps(document).encode() + b"\n"
        self._fs.write_atomic(self._state_file, body + b"crc32c %08x\n" % crc32c(body))

    def _read_state(self) -> _State | None:
        try:
            data = self._fs.read_bytes(self._state_file)
        except FileMissing:
            return None
        body, _, checksum = data.rpartition(b"crc32c ")
        if checksum != b"%08x\n" % crc32c(body):
            raise CorruptData(
                f"{self._state_file} is damaged: start with a new data directory, which is made from the store"
            )
        document: Mapping[str, Any] = json.loads(body)
        ends = {TableBucket(table, bucket, partition): end for table, partition, bucket, end in document["ends"]}
        return _State(
            document["store"], document["number"], document["seal"], document["epoch"], document["writers"], ends,
            document["needed_from"], document["deleted_until"],
        )  # fmt: skip


class _ServerFiles:
    """What notes are about, in the files of a server."""

    def __init__(self, replicas: ReplicaManager, fs: FileSystem, data_dir: str) -> None:
        self._replicas, self._fs, self._data_dir = replicas, fs, data_dir

    def log_batches(self, bucket: TableBucket, first: int, end: int) -> Iterator[memoryview] | None:
        try:
            replica = self._replicas.begin(bucket, counts=False)
        except Unavailable as e:
            if e.code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION:
                return None
            raise
        try:
            pieces = []
            while first < end:
                piece = replica.log.read(first, _READ_BYTES, end)
                if piece.base_offset != first or piece.next_offset == first:
                    raise InvalidRequest(f"the log of bucket {bucket} has no batch from offset {first} to {end}")
                pieces.append(piece.data)
                first = piece.next_offset
            return iter(pieces)
        finally:
            self._replicas.end(replica)

    def log_bytes(self, bucket: TableBucket, first: int, end: int) -> int:
        replica = self._replicas.opened(bucket)
        if replica is None:
            return 0
        log = replica.log
        return max(log.readable_bytes(first, end) - log.readable_bytes(end, log.log_end_offset), 0)

    def file_part(self, name: str, position: int, end: int) -> bytes | None:
        try:
            with closing(self._fs.open_reader(names.join(self._data_dir, name))) as file:
                return file.pread(position, end - position)
        except FileMissing:
            return None
