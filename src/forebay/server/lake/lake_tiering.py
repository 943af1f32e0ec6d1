"""Scheduling of tiering: the state of every lake-enabled table, and the worker that tiers it.

    NEW, INITIALIZED -> SCHEDULED -> PENDING -> TIERING -> TIERED -> SCHEDULED
                                        ^          |          |
                                        |          v          | (its time was up before it was done)
                                        +------- FAILED       |
                                        +---------------------+

A table waits (SCHEDULED) until its freshness has passed since the last round, queues (PENDING) until a tiering worker
asks for a table, and is assigned to that worker (TIERING) while heartbeats come. The tiering epoch is incremented
whenever the table enters the queue, so its previous worker is refused from then on.

A table whose logs have not grown since its last round began is not assigned when its time comes: it is up to date, and
waits for another freshness. Every `UNCHANGED_SECONDS` it has a round all the same, for a change that only a worker
sees: that the readers' snapshot has disappeared from the lake.

Nothing runs in the background: the effects of time are computed at the start of every call. Times are the clock's
monotonic ones, except the last tiered time, which outlives the process. Prior art: LakeTableTieringManager of Apache
Fluss; unlike there, a duplicate report is an error, not ignored.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from forebay.base import threads
from forebay.base.ambient import Clock
from forebay.base.errors import Conflict, ErrorCode, NotFound
from forebay.metadata.table import TablePath

WORKER_TIMEOUT_SECONDS = 120.0
"""A worker without a heartbeat for this long loses its table (as in Fluss)."""


UNCHANGED_SECONDS = 600.0
"""After this long a table has a round even if nothing was written to it."""


class TieringState(Enum):
    """The tiering state of a table; the names are Fluss's."""

    NEW = "New"
    INITIALIZED = "Initialized"
    SCHEDULED = "Scheduled"
    PENDING = "Pending"
    TIERING = "Tiering"
    TIERED = "Tiered"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class TieringAssignment:
    """A table assigned to a worker, with the epoch of the assignment."""

    table_id: int
    path: TablePath
    epoch: int


@dataclass(frozen=True, slots=True)
class TieringStatus:
    """A table's state for users and metrics; times in seconds, None if not applicable."""

    state: TieringState
    epoch: int
    freshness_seconds: float
    since_last_round_seconds: float
    in_state_seconds: float
    last_duration_seconds: float | None
    failures: int
    file_bytes: int | None
    rows: int | None


@dataclass
class _Table:
    path: TablePath
    freshness: float
    due: float
    last_round: float
    state: TieringState
    entered: float
    epoch: int = 0
    heard: float = 0.0
    started: float = 0.0
    last_duration: float | None = None
    failures: int = 0
    stats: tuple[int | None, int | None] = field(default=(None, None))
    handed_out: float = 0.0


class TieringManager:
    """All lake-enabled tables of a server. Safe to call from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threads.lock()
        self._tables: dict[int, _Table] = {}
        self.table_ids = self._tables.keys()
        """The ids of all lake-enabled tables, always those of now."""
        self._queue: deque[int] = deque()
        self._changed: set[int] = set()
        self._removed_epoch = 0
        """The highest epoch of any table that was removed: one that comes back begins above it."""

    # ---- tables come and go -----------------------------------------------------------------------------------------

    def add(self, table_id: int, path: TablePath, freshness_ms: int, last_round_ms: int | None = None) -> None:
        """Schedule a table: a new one after its freshness, one tiered at `last_round_ms` a freshness after that."""
        with self._lock:
            now = self._clock.monotonic()
            age = 0.0 if last_round_ms is None else max(self._clock.now_ms() - last_round_ms, 0) / 1000
            freshness = freshness_ms / 1000
            table = _Table(path, freshness, now - age + freshness, now - age, TieringState.NEW, now)
            table.epoch = self._removed_epoch
            if last_round_ms is not None:
                table.state = TieringState.INITIALIZED
            self._tables[table_id] = table
            self._changed.add(table_id)  # how much of it the lake has is not known here
            self._enter(table_id, table, TieringState.SCHEDULED)

    def remove(self, table_id: int) -> None:
        """Forget a table that was dropped or is no longer a lake table; its worker is refused from now on."""
        with self._lock:
            removed = self._tables.pop(table_id, None)
            if removed is not None:
                self._removed_epoch = max(self._removed_epoch, removed.epoch)
            self._changed.discard(table_id)
            if table_id in self._queue:
                self._queue.remove(table_id)

    def set_freshness(self, table_id: int, freshness_ms: int) -> None:
        """Change how often a table is tiered; a waiting table's time is recomputed from its last round."""
        with self._lock:
            table = self._tables.get(table_id)
            if table is not None:
                table.freshness = freshness_ms / 1000
                if table.state is TieringState.SCHEDULED:
                    table.due = table.last_round + table.freshness

    def changed(self, table_id: int) -> None:
        """Note that rows were written to any table. Takes no lock: it is called with every group of writes."""
        if table_id in self._tables:
            self._changed.add(table_id)

    # ---- workers ----------------------------------------------------------------------------------------------------

    def request(self) -> TieringAssignment | None:
        """Assign the table that has waited longest; None if none waits."""
        with self._lock:
            self._advance()
            if not self._queue:
                return None
            table_id = self._queue.popleft()
            table = self._tables[table_id]
            self._enter(table_id, table, TieringState.TIERING)
            # The round may or may not see later writes; the next one checks.
            self._changed.discard(table_id)
            table.handed_out = self._clock.monotonic()
            return TieringAssignment(table_id, table.path, table.epoch)

    def heartbeat(self, table_id: int, epoch: int) -> None:
        """Record a heartbeat. Raises `NotFound`, `Conflict` (FENCED_TIERING_EPOCH; -1 if it is not being tiered)."""
        with self._lock:
            self._held(table_id, epoch).heard = self._clock.monotonic()

    def finish(
        self,
        table_id: int,
        epoch: int,
        *,
        forced: bool = False,
        file_bytes: int | None = None,
        rows: int | None = None,
    ) -> None:
        """Record a finished round. `forced`: its time was up before the end of the log, so the table is requeued."""
        with self._lock:
            table = self._held(table_id, epoch)
            now = self._clock.monotonic()
            table.last_duration, table.last_round = now - table.started, now
            if file_bytes is not None or rows is not None:
                table.stats = (file_bytes, rows)
            self._enter(table_id, table, TieringState.TIERED)
            table.due = table.last_round + table.freshness
            self._enter(table_id, table, TieringState.PENDING if forced else TieringState.SCHEDULED)

    def fail(self, table_id: int, epoch: int) -> None:
        """Record a failed round: the table queues again, for any worker."""
        with self._lock:
            self._failed(table_id, self._held(table_id, epoch))

    # ---- for people -------------------------------------------------------------------------------------------------

    def status(self, table_id: int) -> TieringStatus:
        """Return a table's status. Raises `NotFound`."""
        statuses = self.statuses([table_id])
        if not statuses:
            raise _unknown(table_id)
        return statuses[table_id]

    def statuses(self, table_ids: Iterable[int]) -> dict[int, TieringStatus]:
        """Return the status of each of these tables that is lake-enabled: time advances once for all of them."""
        with self._lock:
            self._advance()
            now = self._clock.monotonic()
            return {
                table_id: TieringStatus(
                    table.state,
                    table.epoch,
                    table.freshness,
                    now - table.last_round,
                    now - table.entered,
                    table.last_duration,
                    table.failures,
                    *table.stats,
                )
                for table_id in table_ids
                if (table := self._tables.get(table_id)) is not None
            }

    def state_counts(self) -> Counter[TieringState]:
        """Return how many tables are in each state."""
        with self._lock:
            self._advance()
            return Counter(table.state for table in self._tables.values())

    # ---- the machine ------------------------------------------------------------------------------------------------

    def _held(self, table_id: int, epoch: int) -> _Table:
        table = self._tables.get(table_id)
        if table is None:
            raise _unknown(table_id)
        if self._must_advance(table, self._clock.monotonic()):
            self._advance()  # all of them, in their order; not for each table of a long report
        if epoch != table.epoch:
            raise Conflict(
                f"tiering epoch {epoch} of table {table.path} is not the current one, {table.epoch}: another worker "
                "has or will get the table",
                ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION,
            )
        if table.state is not TieringState.TIERING:
            raise Conflict(
                f"table {table.path} is {table.state.value}, no worker tiers it now", ErrorCode.UNKNOWN_SERVER_ERROR
            )
        return table

    def _must_advance(self, table: _Table, now: float) -> bool:
        if table.state is TieringState.SCHEDULED:
            return now >= table.due
        return table.state is TieringState.TIERING and now - table.heard >= WORKER_TIMEOUT_SECONDS

    def _advance(self) -> None:
        now = self._clock.monotonic()
        for table_id, table in sorted(self._tables.items(), key=lambda item: item[1].due):
            if table.state is TieringState.SCHEDULED and now >= table.due:
                if table_id in self._changed or now - table.handed_out >= UNCHANGED_SECONDS:
                    self._enter(table_id, table, TieringState.PENDING)
                else:
                    table.last_round, table.due = now, now + table.freshness
            elif table.state is TieringState.TIERING and now - table.heard >= WORKER_TIMEOUT_SECONDS:
                self._failed(table_id, table)

    def _failed(self, table_id: int, table: _Table) -> None:
        table.failures += 1
        self._enter(table_id, table, TieringState.FAILED)
        self._enter(table_id, table, TieringState.PENDING)

    def _enter(self, table_id: int, table: _Table, state: TieringState) -> None:
        now = self._clock.monotonic()
        table.state, table.entered = state, now
        if state is TieringState.PENDING:
            table.epoch += 1
            self._queue.append(table_id)
        elif state is TieringState.TIERING:
            table.heard = table.started = now


def _unknown(table_id: int) -> NotFound:
    return NotFound(f"there is no lake-enabled table with id {table_id}", ErrorCode.TABLE_NOT_EXIST)
