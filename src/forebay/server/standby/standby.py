"""A standby: it repeats the journal of a running server in its own data directory, until that one's lease ends.

While it stands by it may serve reads (`forebay.server.standby.standby_server`): they see what it has repeated.

The lease ends when the server says so, as it does when it is stopped, or when the journal has got no object for its
time, as this process's clock counts it from the moment at which it saw the last one. No clocks are compared. The server
counts from the moment at which it began to create that object, which is earlier; so it stops acknowledging before a
standby takes over. Of several standbys one creates the next object, and the others stand by for that one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

from forebay.base import threads
from forebay.base.ambient import SYSTEM_CLOCK, SYSTEM_IDS, Clock, IdSource
from forebay.base.errors import Conflict, InvalidRequest, StorageFailure
from forebay.fs.interface import FileSystem
from forebay.fs.local import LocalFileSystem
from forebay.log.checkpoints import DataDirectory
from forebay.log.config import LogConfig
from forebay.metadata.table import TableBucket
from forebay.server.config import ServerConfig
from forebay.server.journal.followed_logs import FollowedLogs
from forebay.server.journal.follower import JournalFollower
from forebay.server.journal.journal_state import has_journal_state
from forebay.server.journal.taking_over import fence_once
from forebay.server.metadata_store import DatabaseFile, LocalDatabaseFile
from forebay.server.remote_state.warm_states import WarmStates
from forebay.server.standby.boundary import Boundary
from forebay.store.journal import JournalGone, JournalObject, last_number, open_journal
from forebay.store.journal_format import EpochBegan, EpochEnded, LogCut
from forebay.store.objects import ObjectMissing, ObjectStore
from forebay.store.opening import open_store

_LOGGER = logging.getLogger(__name__)

POLL_SECONDS = 0.2
"""How often a standby asks for the next object: a request each time."""

_FOLLOW_SECONDS = 1.0
"""How long objects are repeated before it is looked after everything else: there may always be a next one."""
_SAVE_SECONDS = 5.0
_STATES_SECONDS = 5.0
"""How often it is looked for new snapshots of key-value state."""


class Reads(Protocol):
    """Those who serve reads of what a standby repeats. Called in the standby's thread."""

    def offer(self, boundary: Boundary | None, current_at: float) -> None:
        """Go on to a later boundary, soon; None: to the one that was offered last. It has all that the journal had at
        `current_at` (monotonic seconds)."""
        ...

    @property
    def number(self) -> int:
        """The last object of the journal that is read; 0: none."""
        ...

    def stop(self) -> None:
        """Begin to end, and do not wait: a takeover does not. A second call does nothing."""
        ...


R = TypeVar("R", bound=Reads)


class _SeenEnd(NamedTuple):
    """The end of the journal at some moment: who has repeated it is as current as that."""

    number: int
    at: float


class Standby:
    """A data directory that follows the journal of a store, ready to become its server's."""

    def __init__(
        self, fs: FileSystem, data_dir: str, store: ObjectStore, began: EpochBegan,
        *, log_config: LogConfig | None = None, clock: Clock = SYSTEM_CLOCK, ids: IdSource = SYSTEM_IDS,
        database_file: Callable[[str], DatabaseFile] = LocalDatabaseFile, trim_seconds: float = 60.0,
    ) -> None:  # fmt: skip
        """`began`: how the epoch begins in which it takes over. `trim_seconds`: how often log segments are deleted that
        the store has.

        Raises `Conflict` if another process has the directory, or it is a server's or of another store.
        """
        self._fs, self._data_dir, self._began, self._clock, self._ids = fs, data_dir, began, clock, ids
        self._directory = DataDirectory.open(fs, data_dir)
        self._lease_ms = 0
        self._has_ended = False
        self._seen = self.looked_at = clock.monotonic()
        self.current_at = -math.inf
        """All that the journal had then was repeated (monotonic seconds)."""
        self._is_behind = True
        """Whether the end of the journal was not seen when it was read last."""
        self._seen_end: _SeenEnd | None = None
        """Where to it goes on, while it is behind."""
        self._offers_from = math.inf
        """The end of the journal as of the start. A directory in which a standby was killed may have some of what comes
        up to there, and reads see nothing before."""
        self.store, self._trim_seconds = store, trim_seconds
        self._next_save = self._next_states = self._next_trim = 0.0
        self._stops = threads.event()
        self._reads: Reads | None = None
        self._offered_number = 0
        self._metadata_number = -1
        """Of the metadata that reads were offered last."""
        self._copied: tuple[int, dict[TableBucket, int]] | None = None
        """Up to which offset logs are trimmed next, when reads are at this object of the journal."""
        self._cut: set[TableBucket] = set()
        """Buckets whose logs have become shorter since reads were offered a boundary."""
        self.as_of_ms = 0
        """When the last object was created that was repeated, in ms since 1970, by the clock of its server."""
        self.holder = ""
        """The server that writes to the store, as it calls itself; empty if none has yet."""
        self._follower: JournalFollower | None = None
        try:
            # The directory of a server that was stopped may go on as one; it follows no other server.
            if not has_journal_state(fs, data_dir):
                store_id = open_journal(store, ids=ids)
                follower = self._follower = JournalFollower(
                    fs,
                    self._directory,
                    store,
                    store_id,
                    log_config=log_config,
                    clock=clock,
                    database_file=database_file,
                )
                for number in (max(follower.all_fences(), default=0), self.number):  # which are not read again
                    with suppress(ObjectMissing):  # fences stay, others are deleted
                        if number:
                            self._see(JournalObject(store, number))
        except BaseException:
            self._directory.close()
            raise

    @classmethod
    def of(cls, config: ServerConfig) -> Standby:
        """The standby that a server's settings describe. Raises `InvalidRequest` without a store."""
        where = config.value("store")
        if where is None:
            raise InvalidRequest("a standby follows the server that writes to a store: name it by -D store=...")
        store = open_store(where, config.store_options)
        began = config.epoch_began("a standby takes over")
        trim_seconds = config.seconds("remote.log.task-interval-duration")
        return cls(
            LocalFileSystem(), str(config.data_dir), store, began,
            log_config=config.log_config, trim_seconds=trim_seconds,
        )  # fmt: skip

    @property
    def lease_seconds(self) -> float:
        """After this time without an object it takes over; 0: only when the server ends or is asked to."""
        return self._lease_ms / 1000

    @property
    def staleness_seconds(self) -> float:
        """For how long it has not seen the end of the journal; infinite if it never has."""
        return self._clock.monotonic() - self.current_at

    @property
    def stuck_seconds(self) -> float:
        """For how long it has been at the same step."""
        return self._clock.monotonic() - self.looked_at

    @property
    def number(self) -> int:
        """The number of the last object that was repeated."""
        return 0 if self._follower is None else self._follower.cursor.number

    def serve_reads(self, start: Callable[[FollowedLogs], R]) -> R | None:
        """Serve reads until `wait` returns, by what `start` makes of the logs. Call it before `wait`.

        Return None for the directory of a server that was stopped, which goes on as one.
        """
        if self._follower is None:
            return None
        self._reads = reads = start(self._follower.logs)
        return reads

    def stop(self) -> None:
        """Let `wait` return. May be called in any thread."""
        self._stops.set()

    def wait(self, on_progress: Callable[[], None] = lambda: None) -> bool:
        """Follow the journal until this directory is its writer's; return whether it is, or `stop` was called.

        The directory is released then, and a server has to be started on it within its lease.
        """
        states = WarmStates(self._fs, self._data_dir, self.store)
        try:
            while not self._stops.is_set():
                self.looked_at = self._clock.monotonic()
                if self._follow():
                    on_progress()
                elif self._lease_has_ended() and self._fence():
                    return True
                self._name_states(states)
                self._stops.wait(POLL_SECONDS)
            return False
        finally:
            states.stop()
            if self._reads is not None:
                self._reads.stop()
            self._close()

    def _offer(self) -> None:
        """Let reads go on to where the journal was repeated."""
        follower, reads = self._follower, self._reads
        if follower is None or reads is None or not follower.is_whole or self.number < self._offers_from:
            return
        boundary, metadata = None, None
        if self.number != self._offered_number:
            if follower.metadata.number != self._metadata_number:
                metadata = follower.metadata.content()
            boundary = Boundary(self.number, self.as_of_ms, dict(follower.ends), metadata, frozenset(self._cut))
            self._offered_number, self._metadata_number = self.number, follower.metadata.number
            self._cut.clear()
        reads.offer(boundary, self.current_at)

    def _follow(self) -> bool:
        """Repeat what is new; return whether there was something."""
        follower = self._follower
        if follower is None:
            return False
        before = self.number
        try:
            self._follow_for(_FOLLOW_SECONDS, follower)
        except JournalGone:
            raise
        except StorageFailure as e:
            # An object that cannot be read may be there: the lease counts from its next sight.
            _LOGGER.warning("the journal cannot be repeated, and is tried again: %s", e)
            self._is_behind = True
            self._seen = self._clock.monotonic()
        has_found = self.number > before
        if has_found:
            self._seen = self._clock.monotonic()
        try:
            self._offer()
            if has_found:
                self._save(follower)
        except StorageFailure as e:
            _LOGGER.warning("what was repeated is shown and saved later: %s", e)
        return has_found

    def _save(self, follower: JournalFollower) -> None:
        now = self._clock.monotonic()
        if now >= self._next_save:
            follower.save()
            self._next_save = now + _SAVE_SECONDS
        if now >= self._next_trim and self._trim(follower):
            self._next_trim = now + self._trim_seconds

    def _trim(self, follower: JournalFollower) -> bool:
        """Delete segments that the store has, once reads know it; return whether they did."""
        if self._copied is None:
            self._copied = follower.metadata.number, follower.metadata.copied_ends()
        number, ends = self._copied
        if self._reads is not None and self._reads.number < number:
            return False
        follower.logs.trim(ends)
        self._copied = None
        return True

    def _follow_for(self, seconds: float, follower: JournalFollower) -> None:
        """Repeat what is there, until the end of the journal or for so long."""
        began = polled_at = self._clock.monotonic()
        if self._is_behind and self._seen_end is None:
            # There may be a next object always: so it is known how current the place is that is reached.
            self._seen_end = _SeenEnd(last_number(self.store, self.number), began)
            self._offers_from = min(self._offers_from, self._seen_end.number)
        while polled_at < began + seconds:
            found = follower.follow_one()
            if found is None:
                self.current_at, self._is_behind, self._seen_end = polled_at, False, None
                return
            self._see(found)
            if self._seen_end is not None and self.number >= self._seen_end.number:
                self.current_at, self._seen_end = max(self.current_at, self._seen_end.at), None
            polled_at = self._clock.monotonic()
        self._is_behind = True

    def _name_states(self, states: WarmStates) -> None:
        """Let the snapshots be fetched that the journal has by now."""
        now = self._clock.monotonic()
        if self._follower is None or now < self._next_states:
            return
        self._next_states = now + _STATES_SECONDS
        try:
            states.want(self._follower.state_snapshots())
        except StorageFailure as e:
            _LOGGER.warning("snapshots of key-value state are fetched later: %s", e)

    def _see(self, found: JournalObject) -> None:
        self.as_of_ms = found.index.last_ms
        for each in found.index.entries:
            if isinstance(each.entry, EpochBegan):
                self._lease_ms, self.holder = each.entry.lease_ms, each.entry.holder
                self._has_ended = False
                _LOGGER.info("standing by for %s (%s)", self.holder, each.entry.reason)
            elif isinstance(each.entry, LogCut):
                self._cut.add(each.entry.bucket)
            elif isinstance(each.entry, EpochEnded):
                _LOGGER.info("%s ended: %s", self.holder, each.entry.reason)
                self._has_ended = True

    def _lease_has_ended(self) -> bool:
        if self._follower is None or self._has_ended:
            return True
        idle_ms = (self._clock.monotonic() - self._seen) * 1000
        return self._lease_ms > 0 and idle_ms > self._lease_ms

    def _fence(self) -> bool:
        """Become the writer, unless another standby was faster; return whether the directory is a writer's."""
        follower = self._follower
        if follower is None:
            return True  # the server takes the store over or learns that it may not
        self._seen = self._clock.monotonic()
        try:
            # In the place of a directory that is not mounted now there may be an empty one.
            follower.cursor.require_place()
            if not fence_once(follower, self._fs, self._data_dir, self._began, self._clock, self._ids):
                return False
        except JournalGone:
            raise
        except Conflict as e:
            _LOGGER.warning("no takeover for now: %s", e)
            return False
        except StorageFailure as e:
            _LOGGER.warning("it is not known who has taken over: %s", e)
            return False
        self._follower = None
        return True

    def _close(self) -> None:
        try:
            if self._follower is not None:
                self._follower.close()
        finally:
            self._directory.close()
