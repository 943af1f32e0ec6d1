"""Whose turn it is to be tiered: the state of every lake-enabled table, and who works on it.

    NEW, INITIALIZED -> SCHEDULED -> PENDING -> TIERING -> TIERED -> SCHEDULED
                                        ^          |          |
                                        |          v          | (its time was up before it was done)
                                        +------- FAILED       |
                                        +---------------------+

A table waits (SCHEDULED) until its freshness has passed since the last round, queues (PENDING) until a tiering worker
asks for a table, and is that worker's (TIERING) while heartbeats come. The tiering epoch goes up whenever the table
enters the queue, so whoever held it before is refused from then on.

A table whose logs have not grown since its last round began is not handed out when its time comes: it is as fresh as
can be, and waits for another freshness. Every `UNCHANGED_SECONDS` it has a round all the same, for what only a worker
sees: that the snapshot which readers use has gone from the lake.

Nothing runs in the background: what time has changed is worked out at the start of every call. Times are the clock's
monotonic ones, but for the last tiered time, which outlives the process. Prior art: LakeTableTieringManager of
Apache Fluss; unlike there, a worker that reports twice is told that it did, not ignored.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from forebay.base import threads
from forebay.base.clock import Clock
from forebay.base.errors import Conflict, ErrorCode, NotFound
from forebay.metadata.table import TablePath

WORKER_TIMEOUT_SECONDS = 120.0
"""A worker that is not heard of for so long has lost its table (as in Fluss)."""


UNCHANGED_SECONDS = 600.0
"""After so long a table has a round although nothing was written to it."""


class TieringState(Enum):
    """Where a table stands; the names are Fluss's."""

    NEW = "New"
    INITIALIZED = "Initialized"
    SCHEDULED = "Scheduled"
    PENDING = "Pending"
    TIERING = "Tiering"
    TIERED = "Tiered"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class TieringAssignment:
    """A table handed to a worker, with the epoch that the worker shows from then on."""

    table_id: int
    path: TablePath
    epoch: int


@dataclass(frozen=True, slots=True)
class TieringStatus:
    """A table's state for people and metrics; times in seconds, None for what has not happened."""

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
        self._queue: deque[int] = deque()
        self._changed: set[int] = set()

    # ---- tables come and go -----------------------------------------------------------------------------------------

    def add(self, table_id: int, path: TablePath, freshness_ms: int, last_round_ms: int | None = None) -> None:
        """Schedule a table: a new one after its freshness, one that was tiered at `last_round_ms` when that is over."""
        with self._lock:
            now = self._clock.monotonic()
            age = 0.0 if last_round_ms is None else max(self._clock.now_ms() - last_round_ms, 0) / 1000
            freshness = freshness_ms / 1000
            table = _Table(path, freshness, now - age + freshness, now - age, TieringState.NEW, now)
            if last_round_ms is not None:
                table.state = TieringState.INITIALIZED
            self._tables[table_id] = table
            self._changed.add(table_id)  # what the lake has of it is not known here
            self._enter(table_id, table, TieringState.SCHEDULED)

    def remove(self, table_id: int) -> None:
        """Forget a table that was dropped or is no lake table any more; its worker is refused from now on."""
        with self._lock:
            self._tables.pop(table_id, None)
            self._changed.discard(table_id)
            if table_id in self._queue:
                self._queue.remove(table_id)

    def set_freshness(self, table_id: int, freshness_ms: int) -> None:
        """Change how often a table is tiered; a waiting table waits anew, from its last round on."""
        with self._lock:
            table = self._tables.get(table_id)
            if table is not None:
                table.freshness = freshness_ms / 1000
                if table.state is TieringState.SCHEDULED:
                    table.due = table.last_round + table.freshness

    def changed(self, table_id: int) -> None:
        """Rows were written to a table, of any kind. Takes no lock: it is called with every group of writes."""
        if table_id in self._tables:
            self._changed.add(table_id)

    # ---- workers ----------------------------------------------------------------------------------------------------

    def request(self) -> TieringAssignment | None:
        """The table that has waited longest, for the worker that asks; None where none waits."""
        with self._lock:
            self._advance()
            if not self._queue:
                return None
            table_id = self._queue.popleft()
            table = self._tables[table_id]
            self._enter(table_id, table, TieringState.TIERING)
            # What is written from now on may be missed by the round, or not; the next one finds out.
            self._changed.discard(table_id)
            table.handed_out = self._clock.monotonic()
            return TieringAssignment(table_id, table.path, table.epoch)

    def heartbeat(self, table_id: int, epoch: int) -> None:
        """A worker is still at it. Raises `NotFound`, `Conflict` (FENCED_TIERING_EPOCH; -1 if nobody tiers it now)."""
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
        """A round is done. `forced`: its time was up and there is more, so the table queues again at once."""
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
        """A round has failed: the table queues again, for any worker."""
        with self._lock:
            self._failed(table_id, self._held(table_id, epoch))

    # ---- for people -------------------------------------------------------------------------------------------------

    def status(self, table_id: int) -> TieringStatus:
        """Raises `NotFound`."""
        with self._lock:
            self._advance()
            table = self._tables.get(table_id)
            if table is None:
                raise _unknown(table_id)
            now = self._clock.monotonic()
            return TieringStatus(
                table.state,
                table.epoch,
                table.freshness,
                now - table.last_round,
                now - table.entered,
                table.last_duration,
                table.failures,
                *table.stats,
            )

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
                f"table {table.path} is {table.state.value}, nobody tiers it now", ErrorCode.UNKNOWN_SERVER_ERROR
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
