"""The journal of one running server: it uploads what happens, and notices another server.

The server has taken the store over (`forebay.server.journal.taking_over`). Its data directory remembers where the
journal is (`forebay.server.journal.journal_state`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple, NoReturn

from forebay.base import threads
from forebay.base.ambient import Clock
from forebay.base.errors import (
    Conflict,
    CorruptData,
    ErrorCode,
    ForebayError,
    InternalError,
    InvalidRequest,
    StorageFailure,
    Unavailable,
)
from forebay.base.thread_rules import any_thread
from forebay.fs import names
from forebay.fs.interface import FileMissing, FileSystem
from forebay.log.tablet import LogTablet
from forebay.metadata.table import TableBucket
from forebay.server.journal.checkpoints import JournalCheckpoints
from forebay.server.journal.feed import JournalFeed
from forebay.server.journal.journal_state import write_journal_state
from forebay.server.journal.store_gate import AnswerGate, LeaseGate, StoreGate
from forebay.server.journal.taking_over import TakenStore
from forebay.server.journal.uploader import JournalUploader
from forebay.server.metadata_store import MetadataStore
from forebay.server.storage.replicas import ReplicaManager
from forebay.store.journal import Fenced, JournalWriter
from forebay.store.journal_format import EpochEnded, JournalCheckpoint, MetadataImage
from forebay.store.objects import ObjectStore

_LOGGER = logging.getLogger(__name__)

_STATE_SECONDS = 5.0
"""How often the state is saved: what a start has to read of the journal."""

_RETRY_SECONDS = 0.5
_DELETION_SECONDS = 60.0
"""When a deletion has failed, the next one is tried after this time."""
_RENEWAL_SHARE, _LEASE_SHARE = 0.25, 0.9
"""Parts of the lease: after the first it is renewed, after the second nothing is acknowledged any more."""
_READ_BYTES = 1 << 20

_GATHER_SHARE, _GATHER_SECONDS_MAX = 0.2, 5e-3
"""How long the next object waits for clients that were just answered: a part of what the last object took."""

_ASKED_SECONDS, _ASKED_OBJECTS = 1.0, 4
"""A server looks whether it is asked to end when it renews its lease, and after this time if it has created so many
objects meanwhile: one that creates fewer can be fenced without."""

_IDLE_LOOK_SECONDS = 10.0
"""How often a server without a lease looks, for `forebay takeover`."""


class StoreSettings(NamedTuple):
    """How a server uses its store."""

    interval_seconds: float
    """How far the journal may be behind."""
    lease_seconds: float = 0.0
    """After this time without an object, a standby may take over, and nothing is acknowledged; 0: never."""
    retention_seconds: float = 3600.0
    """How long objects stay that are not needed any more."""
    is_awaited: bool = False
    """Whether answers wait for the store (`store.durability` = `store`)."""
    put_interval_seconds: float = 0.0
    """The shortest time between two objects for which answers wait."""


class ServerJournal:
    """The journal of one running server: `begin`, `start` and `stop` it, in this order."""

    def __init__(
        self,
        store: ObjectStore,
        taken: TakenStore,
        fs: FileSystem,
        data_dir: str,
        settings: StoreSettings,
        clock: Clock,
    ) -> None:
        self.feed = JournalFeed(clock)
        self.store = store
        self.is_fenced = False
        """Whether another server has taken over."""
        self._fs, self._data_dir = fs, data_dir
        self._settings, self._clock = settings, clock
        self._state, self._writer = taken.state, taken.writer
        self._uploader: JournalUploader | None = None
        self._wake = threads.event()
        self._thread: threads.Thread | None = None
        self._is_stopping = False
        self._next_save = self._next_deletion = 0.0
        self._on_fenced: Callable[[ForebayError], None] = lambda _: None
        self.gate: AnswerGate | None = None
        """Holds answers back until they are in the store, if that is wanted."""
        self._lease_end = self._next_renewal = float("inf")
        self._began = 0.0
        self._fences, self._commits = taken.fences, taken.commits
        self._image = 0
        """The number of the object with the image that this epoch began with."""
        self._metadata: MetadataStore | None = None
        self._renewal_seconds = _RENEWAL_SHARE * settings.lease_seconds or _IDLE_LOOK_SECONDS
        self._looked, self._looked_number = 0.0, 0
        """When it was looked whether this server is asked to end, and at which object."""

    # ---- starting ---------------------------------------------------------------------------------------------------

    def begin(self, metadata: MetadataStore) -> None:
        """Upload the metadata as it is now; from now on its changes are noted. Before anything else uses it.

        Raises `Conflict` for metadata that lacks what the store has, and `StorageFailure`.
        """
        writer = self._writer
        if metadata.journal_commits < self._commits:
            raise Conflict(
                f"the metadata in {self._data_dir} is older than the store's: it was put back from a copy. Start with "
                "a new data directory, which is made from the store"
            )
        metadata.add_journal_fences([*self._fences, writer.number])
        began = self._clock.monotonic()
        self._image = writer.write([(MetadataImage(self._clock.now_ms()), metadata.image())])
        self._metadata = metadata
        for bucket, (end, _) in metadata.remote_logs().items():
            # Where a checkpoint left out what remote logs have.
            self._state.ends[bucket] = max(end, self._state.ends.get(bucket, 0))
        self._renew(began)
        metadata.tell(self.feed.metadata_committed)

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
            self.feed.file_grew(name, 0, file.size())

    def note_files(self, folder: str) -> None:
        """Note all files below a folder of the data directory: what an earlier process has written may be missing."""
        with suppress(FileMissing):
            for entry in self._fs.list_directory(names.join(self._data_dir, folder)):
                if entry.is_directory:
                    self.note_files(f"{folder}/{entry.name}")
                elif not names.is_temporary(entry.name):
                    self.feed.file_grew(f"{folder}/{entry.name}", 0, entry.size_bytes)

    def start(
        self,
        replicas: ReplicaManager,
        on_fenced: Callable[[ForebayError], None],
        *,
        copied_ends: Callable[[], Mapping[TableBucket, int]],
        note_files: Callable[[], None],
    ) -> None:
        """Upload from now on, in a thread; `on_fenced` is called in it if another server takes over, or is to: when it
        returns, no client gets an answer any more. It may be called twice.

        `copied_ends`: the end of each remote log. `note_files`: notes all files that the journal has to have.
        """
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
        self._on_fenced = on_fenced
        self._thread = threads.thread(self._run, name="forebay-journal")
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
        if not uploader.is_unsure:
            # An object that is tried again may be there since the first attempt: the lease counts from that one.
            self._began = now
        number = writer.number
        more = uploader.upload(even_if_empty=now >= self._next_renewal)
        if writer.number > number:
            self._renew(self._began)
        self._look(uploader, writer, now)
        return more

    def _gather(self) -> bool:
        """Let changes gather for the next object; return whether it may be created before the interval has passed.

        If answers wait, it waits a moment for the clients that are answered now. Otherwise each half of the clients
        would wait for the objects of the other half.
        """
        if not self._settings.is_awaited:
            return False
        took = self._clock.monotonic() - self._began
        gathering = min(_GATHER_SHARE * took, _GATHER_SECONDS_MAX) if self.feed.first() is not None else 0.0
        pause = max(gathering, self._settings.put_interval_seconds - took)
        if pause > 0:
            self._clock.sleep(pause)
        return True

    def _look(self, uploader: JournalUploader, writer: JournalWriter, now: float) -> None:
        """End if another server waits to take over."""
        if now < self._looked + self._renewal_seconds and (
            now < self._looked + _ASKED_SECONDS or writer.number < self._looked_number + _ASKED_OBJECTS
        ):
            return
        self._looked, self._looked_number = now, writer.number
        try:
            is_asked = writer.is_asked_to_end()
        except StorageFailure:
            return  # looked for again
        if is_asked:
            self._give_up(uploader)

    def _give_up(self, uploader: JournalUploader) -> NoReturn:
        """Let another server have the store, with all that was acknowledged. Raises `Fenced`."""
        why = Fenced(f"another server has asked for the store {self.store.location}")
        self._on_fenced(why)  # which no client has an answer after
        noted = self.feed.noted
        while uploader.stored_count < noted:
            uploader.upload()
        self._end_epoch("another server has asked for the store")
        raise why

    def _end_epoch(self, reason: str) -> None:
        """Tell a standby that it need not wait for the end of the lease."""
        try:
            self._writer.write([(EpochEnded(reason), None)])
        except StorageFailure as e:
            _LOGGER.info("a standby takes over when the lease ends: %s", e)

    def _run(self) -> None:
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
                    if not (is_last or uploader.was_full or self._gather()):
                        break
                if is_last:
                    self._end_epoch("the server was stopped")
                self._save_state_if_due(is_last=is_last)
                if not is_last and self._delete_due(uploader):
                    self._wake.set()
            except (Fenced, CorruptData) as e:
                _LOGGER.error("the journal ends here: %s", e)
                self.is_fenced = isinstance(e, Fenced)
                self._end(e, uploader)
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
            except Exception as e:  # a fault of ours, by which all who wait would wait for ever
                self._end(InternalError(f"the journal ended by a fault of the server: {e!r}"), uploader)
                raise
            if is_last:
                return

    def _end(self, error: ForebayError, uploader: JournalUploader) -> None:
        """Let all who wait for the store fail, and the server stop."""
        uploader.fail(error)
        if self.gate is not None:
            self.gate.fail(error)
        self._on_fenced(error)

    def _delete_due(self, uploader: JournalUploader) -> bool:
        """Delete objects that are not needed any more; return whether there may be more.

        A store that refuses it, as by its policy, does not slow the uploads down.
        """
        now = self._clock.monotonic()
        if uploader.checkpoints is None or now < self._next_deletion:
            return False
        try:
            return uploader.checkpoints.delete_due()
        except StorageFailure as e:
            self._next_deletion = now + _DELETION_SECONDS
            _LOGGER.warning("objects of the journal stay, and are deleted later: %s", e)
            return False

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
        write_journal_state(self._fs, self._data_dir, state)
        self._next_save = now + _STATE_SECONDS


class _ServerFiles:
    """What notes are about, in the files of a server."""

    def __init__(self, replicas: ReplicaManager, fs: FileSystem, data_dir: str) -> None:
        self._replicas, self._fs, self._data_dir = replicas, fs, data_dir

    def log_batches(self, bucket: TableBucket, first: int, end: int) -> Iterator[memoryview] | None:
        with self._log(bucket) as log:
            if log is None:
                return None
            pieces = []
            while first < end:
                piece = log.read(first, _READ_BYTES, end)
                if piece.base_offset != first or piece.next_offset == first:
                    raise InvalidRequest(f"the log of bucket {bucket} has no batch from offset {first} to {end}")
                pieces.append(piece.data)
                first = piece.next_offset
            return iter(pieces)

    @contextmanager
    def _log(self, bucket: TableBucket) -> Iterator[LogTablet | None]:
        """The log of a bucket; None if it was dropped."""
        try:
            replica = self._replicas.begin(bucket, counts=False)
        except Unavailable as e:
            if e.code != ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION:
                raise
            yield None
            return
        try:
            yield replica.log
        finally:
            self._replicas.end(replica)

    def log_bytes(self, bucket: TableBucket, first: int, end: int) -> int:
        replica = self._replicas.opened(bucket)
        if replica is not None:
            return replica.log.bytes_between(first, end)
        with self._log(bucket) as log:
            return 0 if log is None else log.bytes_between(first, end)

    def part_end(self, bucket: TableBucket, first: int, end: int, size_bytes: int) -> int:
        with self._log(bucket) as log:
            while log is not None and size_bytes > 0 and first < end:
                piece = log.read(first, min(_READ_BYTES, size_bytes), end)
                if piece.next_offset <= first:
                    break
                first, size_bytes = piece.next_offset, size_bytes - piece.data.nbytes
        return first

    def file_part(self, name: str, position: int, end: int) -> bytes | None:
        try:
            with closing(self._fs.open_reader(names.join(self._data_dir, name))) as file:
                return file.pread(position, end - position)
        except FileMissing:
            return None
