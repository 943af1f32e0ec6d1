"""Compacting many tables: each once, or all of them for as long as the service runs.

It is the job that `write-only` writers leave to others. Each table's turns run in a thread of the service, so that a
slow or broken table does not block the others; a failed table is retried after increasing delays. Tables are reopened
for each turn, because their options and columns may change, and they may be dropped and recreated.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import ForebayError, InvalidRequest, NotFound
from forebay.base.retrying import backoff
from forebay.paimon.compact.running import TaskRunner
from forebay.paimon.format.file_meta import FileKind
from forebay.paimon.table import Table

_LOGGER = logging.getLogger(__name__)

TABLES_MAX = 4
INTERVAL_SECONDS = 10.0
_PAUSE_MAX_SECONDS = 300.0

WAITING, COMPACTING, GONE, DONE, FAILED = "waiting", "compacting", "gone", "done", "failed"


@dataclass(frozen=True)
class CompactionSettings:
    """How tables are compacted; see `Table.compact`. `partitions` returns the partition filter for a table."""

    full: bool = False
    order_by: Sequence[str] = ()
    strategy: str = "order"
    partitions: Callable[[Table], Sequence[Mapping[str, Any]] | None] = lambda table: None


@dataclass(frozen=True)
class CompactionRun:
    """The result of a table's turn. `snapshot_id` is None if there was nothing to do, or `error` says why it failed."""

    table: str
    snapshot_id: int | None = None
    files_before: int = 0
    files_after: int = 0
    seconds: float = 0.0
    error: str | None = None


@dataclass(frozen=True)
class TableState:
    """The state and the totals of a table's compaction. Row counts are those of the current round."""

    table: str
    phase: str = WAITING
    rows_done: int = 0
    rows: int = 0
    compactions: int = 0
    failures: int = 0
    files_before: int = 0
    files_after: int = 0
    last_error: str | None = None


class TurnCancelled(Exception):
    """Raised within a turn when the service stops at once."""


class CompactionService:
    """Compacts tables until it is stopped. Its methods may be called from any thread."""

    def __init__(
        self,
        names: Callable[[], Sequence[str]],
        open_table: Callable[[str], Table],
        runner: Callable[[str], TaskRunner],
        how: CompactionSettings | None = None,
        *,
        tables_max: int = TABLES_MAX,
        interval_seconds: float = INTERVAL_SECONDS,
        on_turn: Callable[[CompactionRun], None] = lambda turn: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`names` returns the current tables to compact; `runner` returns the runner for the tasks of a table.

        At most `tables_max` tables have their turns at the same time, each `interval_seconds` after its last one.
        `on_turn` is called from a thread of the service.
        """
        if tables_max < 1:
            raise InvalidRequest(f"at least 1 table is compacted at a time, got {tables_max}")
        if interval_seconds < 0:
            raise InvalidRequest(f"there is no interval of {interval_seconds} seconds")
        self._names, self._open, self._runner, self._how = names, open_table, runner, how or CompactionSettings()
        self._interval, self._on_turn, self._clock = interval_seconds, on_turn, clock
        self._pool = ThreadPoolExecutor(tables_max, "forebay-compaction")
        self._ending, self._at_once = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._states: dict[str, TableState] = {}
        self._turns: dict[str, Future[None]] = {}
        self._due: dict[str, float] = {}
        self._seen: dict[str, int | None] = {}
        self._listing_error: str | None = None

    def states(self) -> list[TableState]:
        """The state of each table, ordered by name."""
        with self._lock:
            return [self._states[name] for name in sorted(self._states)]

    # ---- running ----------------------------------------------------------------------------------------------------

    def run_once(self, tick: Callable[[], None] = lambda: None) -> list[TableState]:
        """Give each table one turn; return their states. `tick` is called periodically in this thread.

        If `tick` raises, all turns are abandoned.
        """
        names = list(self._names())
        try:
            for name in names:
                self._start(name)
            self._wait(tick)
        finally:
            self.stop(now=True)
        return self.states()

    def watch(self, tick: Callable[[], None] = lambda: None, tick_seconds: float = 0.5) -> None:
        """Give tables their turns until `stop` is called; then finish the turns under way.

        Tables are listed again once per interval. The first listing must succeed; later ones may fail.
        """
        try:
            listed, names = self._clock.monotonic(), list(self._names())
            while not self._ending.is_set():
                now = self._clock.monotonic()
                if now - listed >= self._interval:
                    listed, names = now, self._listed(names)
                self._give_turns(names)
                tick()
                self._ending.wait(tick_seconds)
            self._wait(tick)
        finally:
            self.stop(now=True)

    def stop(self, *, now: bool = False) -> None:
        """Stop: turns under way are finished, or abandoned with `now`. Returns immediately, unless `now`."""
        self._ending.set()
        if now:
            self._at_once.set()
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _wait(self, tick: Callable[[], None]) -> None:
        waiting = set(self._turns.values())
        while waiting:
            _, waiting = wait(waiting, timeout=0.2)
            tick()

    def _listed(self, last_names: list[str]) -> list[str]:
        """The tables to compact now; the known ones while the catalog is unavailable."""
        try:
            names = list(self._names())
        except ForebayError as e:
            if self._listing_error != e.message:
                _LOGGER.warning("the tables to compact cannot be listed: %s", e.message)
            self._listing_error = e.message
            return last_names
        self._listing_error = None
        return names

    def _give_turns(self, names: Sequence[str]) -> None:
        now = self._clock.monotonic()
        for name in names:
            turn = self._turns.get(name)
            if (turn is None or turn.done()) and self._due.get(name, now) <= now:
                self._start(name)
        with self._lock:
            for name in [n for n in self._states if n not in names and self._turns[n].done()]:
                del self._states[name], self._turns[name]

    def _start(self, name: str) -> None:
        with self._lock:
            self._states.setdefault(name, TableState(name))
        self._turns[name] = self._pool.submit(self._turn, name)

    # ---- a turn, in a thread of the pool ----------------------------------------------------------------------------

    def _turn(self, name: str) -> None:
        if self._ending.is_set():
            return
        began = self._clock.monotonic()
        try:
            table = self._open(name)
        except NotFound as e:
            self._failed(name, GONE, e.message, began)
            return
        except ForebayError as e:
            self._failed(name, FAILED, e.message, began)
            return
        try:
            turn = self._compact(name, table)
        except TurnCancelled:
            self._change(name, phase=FAILED, last_error="given up")
            return
        except Exception as e:  # reported for its table, which is retried
            if not isinstance(e, ForebayError):
                _LOGGER.warning("compacting %s failed", name, exc_info=e)
            message = e.message if isinstance(e, ForebayError) else f"{type(e).__name__}: {e}"
            self._failed(name, FAILED, message, began)
            return
        self._due[name] = self._clock.monotonic() + self._interval
        state = self._states[name]
        self._change(
            name, phase=DONE, failures=0, last_error=None,
            compactions=state.compactions + (turn.snapshot_id is not None),
            files_before=state.files_before + turn.files_before, files_after=state.files_after + turn.files_after,
        )  # fmt: skip
        self._on_turn(replace(turn, seconds=self._clock.monotonic() - began))

    def _compact(self, name: str, table: Table) -> CompactionRun:
        latest = table.context.snapshots.latest_id()
        if latest is None or self._seen.get(name) == latest:
            return CompactionRun(name)
        self._change(name, phase=COMPACTING, rows_done=0, rows=0)
        how = self._how
        snapshot = table.compact(
            how.full, how.partitions(table), order_by=how.order_by, strategy=how.strategy,
            progress=lambda done, total: self._progress(name, done, total), runner=self._runner(name),
        )  # fmt: skip
        if snapshot is None:
            self._seen[name] = latest  # nothing is due until the next commit
            return CompactionRun(name)
        kinds = [e.kind for e in table.context.manifests.entries(table.context.manifests.delta_manifests(snapshot))]
        return CompactionRun(name, snapshot.id, kinds.count(FileKind.DELETE), kinds.count(FileKind.ADD))

    def _progress(self, name: str, done: int, total: int) -> None:
        if self._at_once.is_set():
            raise TurnCancelled
        self._change(name, rows_done=done, rows=total)

    def _failed(self, name: str, phase: str, message: str, began: float) -> None:
        failures = self._states[name].failures + 1
        pause = backoff(failures, max(self._interval, 1.0), _PAUSE_MAX_SECONDS)
        if phase == GONE:  # the table may be recreated; checking is cheap
            pause = self._interval
        self._due[name] = self._clock.monotonic() + pause
        is_repeated = self._states[name].last_error == message
        self._seen.pop(name, None)
        self._change(name, phase=phase, failures=failures, last_error=message)
        if not is_repeated:
            self._on_turn(CompactionRun(name, seconds=self._clock.monotonic() - began, error=message))

    def _change(self, name: str, **values: Any) -> None:
        with self._lock:
            self._states[name] = replace(self._states[name], **values)
