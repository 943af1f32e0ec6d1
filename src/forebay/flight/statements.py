"""Statements by handles: kept for a while after they are described, run in turns, cancelled.

A described statement is text and parameters; it costs little, and expires. While its rows are read it runs: it has a
process, pins its tables, and is one of the few that run at a time; others wait. It ends with its rows, with the
client's call, by `cancel`, or when its time is over.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import pyarrow as pa

from forebay.api.sql_result import Result
from forebay.base import threads
from forebay.base.ambient import Clock, IdSource
from forebay.base.errors import Conflict, LimitExceeded, NotFound, Unavailable, UnsupportedOperation
from forebay.flight.sessions import ClientSession, Expiring
from forebay.query.isolated import IsolatedExecution, StatementProcesses
from forebay.query.run import CLOSED_IN, Description

RunStatement: TypeAlias = Callable[[IsolatedExecution], Result]
"""What runs a statement in a given process."""


@dataclass(frozen=True)
class Limits:
    """The maximum numbers that an endpoint holds at a time."""

    queries_max: int = 8
    query_seconds: float = 3600.0
    wait_seconds: float = 30.0
    """So long a query waits for one that runs to end."""
    query_memory_bytes: int = 1 << 30
    handles_max: int = 10_000
    handle_seconds: float = 900.0
    """So long a statement that was described, or prepared, is kept without being used."""
    sessions_max: int = 1_000
    session_seconds: float = 8 * 3600.0


@dataclass
class StoredStatement:
    """A statement that was described, for one user. `parameters` are one row; for an INSERT, some."""

    owner: str
    text: str
    description: Description
    described_at: float
    parameters: pa.Table | None = None

    @property
    def values(self) -> Sequence[Any]:
        """The values of the first row of parameters."""
        if self.parameters is None:
            return ()
        return [column[0].as_py() for column in self.parameters.columns]


@dataclass(eq=False)
class _WaitingStatement:
    """A statement before it runs: it waits for its turn, or is about to begin. `stopped` says why it must not."""

    owner: str
    handle: str
    stopped: str | None = None


class Running:
    """The rows of a statement that runs, as an iterator. Thread-safe: `stop` is for other threads."""

    def __init__(
        self, owner: str, handle: str, execution: IsolatedExecution, on_end: Callable[[Running], None], deadline: float
    ) -> None:
        self.owner, self.handle, self.deadline = owner, handle, deadline
        self._execution, self._on_end = execution, on_end
        self._lock = threads.lock()
        self._result: Result | None = None
        self._rows: Iterator[pa.RecordBatch] = iter(())
        self._stopped: str | None = None
        self._is_open = True

    def start(self, run: RunStatement) -> Result:
        """Run the statement, up to its first rows."""
        with self._lock:
            if self._stopped is not None:
                self._close()
                raise Conflict(self._stopped)
            try:
                self._result = run(self._execution)
            except BaseException:
                self._close()
                if self._stopped is not None:
                    raise Conflict(self._stopped) from None
                raise
            self._rows = iter(self._result)
            return self._result

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._lock:
            if self._stopped is not None:
                raise Conflict(self._stopped)
            try:
                return next(self._rows)
            except BaseException:
                self._close()
                if self._stopped is not None:
                    raise Conflict(self._stopped) from None
                raise

    def stop(self, why: str) -> None:
        """Have the statement fail with this message."""
        self._stopped = why
        self.stop_again()

    def stop_again(self) -> None:
        """Have a stopped statement fail: what stops DuckDB is lost on one that does not compute yet."""
        if self._stopped is None:
            return
        self._execution.cancel()
        if self._lock.acquire(blocking=False):  # nothing is being read: a client waits, or is gone
            try:
                self._close()
            finally:
                self._lock.release()

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            try:
                if self._result is not None:
                    self._result.close()
                self._execution.close()
            finally:
                self._on_end(self)

    def close(self) -> None:
        """Release everything. Idempotent."""
        with self._lock:
            self._close()


class Statements:
    """All statements of an endpoint."""

    def __init__(
        self,
        limits: Limits,
        processes: StatementProcesses,
        allows_changes: bool,
        directory: Path,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        """Statements run in `processes`; `directory` is for what memory cannot hold."""
        self._processes, self._allows_changes = processes, allows_changes
        self._limits, self._directory, self._clock, self._ids = limits, directory, clock, ids
        self._turn = threads.condition()
        self._waiting = list[_WaitingStatement]()
        self._running = list[Running]()
        self._begun = 0
        self._is_ended = False
        self._handles = Expiring[StoredStatement](
            clock, limits.handle_seconds, limits.handles_max, "statements that wait to be read", "--handles-max"
        )

    @property
    def running(self) -> int:
        """How many statements run now."""
        with self._turn:
            return self._begun

    def __len__(self) -> int:
        return len(self._handles)

    # ---- handles ----------------------------------------------------------------------------------------------------

    def described(self, session: ClientSession, text: str, parameters: pa.Table | None = None) -> StoredStatement:
        """A statement. Raises the errors of its text, `UnsupportedOperation` for a change where none is allowed."""
        if len(text) > _TEXT_LENGTH_MAX:
            raise LimitExceeded(f"a statement has at most {_TEXT_LENGTH_MAX:,} characters, and this one {len(text):,}")
        statement = StoredStatement(session.owner, text, _NOTHING, self._clock.monotonic(), parameters)
        execution, _ = self._execution(session)
        statement.description = execution.describe(text, statement.values)
        if statement.description.is_insert:
            self.check_changes("INSERT")
        return statement

    def check_changes(self, what: str) -> None:
        """Raise `UnsupportedOperation` if this endpoint only reads."""
        if not self._allows_changes:
            raise UnsupportedOperation(f"{what} is refused: this endpoint is read-only; start it with --allow-changes")

    def keep(self, statement: StoredStatement) -> str:
        """Its new handle. Raises `LimitExceeded`."""
        handle = self._ids.token_hex()
        self._handles.put(handle, statement)
        return handle

    def statement(self, session: ClientSession, handle: str, *, once: bool = False) -> StoredStatement:
        """The statement of a handle, which is forgotten if it runs only `once`. Raises `NotFound`."""
        statement = self._handles.get(handle)
        if statement is not None and statement.owner == session.owner and once:
            statement = self._handles.pop(handle)
        if statement is None or statement.owner != session.owner:
            raise NotFound(
                "this statement is unknown: it was closed, was run, or was unused for "
                f"{self._limits.handle_seconds:g} seconds, or the endpoint was restarted. Run it again"
            )
        return statement

    def forget(self, session: ClientSession, handle: str) -> None:
        """Close a prepared statement, if it is open."""
        statement = self._handles.get(handle)
        if statement is not None and statement.owner == session.owner:
            self._handles.pop(handle)

    # ---- running ----------------------------------------------------------------------------------------------------

    def run(self, session: ClientSession, handle: str, run: RunStatement, **data: Any) -> Running:
        """Run a statement when it is its turn. Raises `Unavailable` if it is not for long.

        Raises `Conflict` if it is stopped before its first rows.
        """
        waiting = _WaitingStatement(session.owner, handle)
        with self._turn:
            self._waiting.append(waiting)
        try:
            self._wait_for_turn(waiting)
            try:
                running = self._new_running(session, handle, data)
            except BaseException:
                self._leave()
                raise
            with self._turn:  # in one step: who stops it finds it in one of the lists
                self._waiting.remove(waiting)
                self._running.append(running)
        except BaseException:
            with self._turn:
                self._waiting.remove(waiting)
            raise
        if waiting.stopped is not None:
            running.stop(waiting.stopped)
        running.start(run)
        return running

    def _wait_for_turn(self, waiting: _WaitingStatement) -> None:
        def is_over() -> bool:
            return self._is_ended or waiting.stopped is not None or self._begun < self._limits.queries_max

        with self._turn:
            is_due = self._turn.wait_for(is_over, self._limits.wait_seconds)
            if self._is_ended:
                raise Unavailable("the endpoint is stopping")
            if waiting.stopped is not None:
                raise Conflict(waiting.stopped)
            if not is_due:
                raise Unavailable(
                    f"{self._limits.queries_max} statements are running, and none has ended in "
                    f"{self._limits.wait_seconds:g} seconds: try later, or start the endpoint with more --queries-max"
                )
            self._begun += 1

    def _new_running(self, session: ClientSession, handle: str, data: dict[str, Any]) -> Running:
        execution, directory = self._execution(session, **data)

        def on_end(running: Running) -> None:
            with self._turn:
                self._running = [each for each in self._running if each is not running]
            self._leave()
            with suppress(FileNotFoundError):
                shutil.rmtree(directory)

        deadline = self._clock.monotonic() + self._limits.query_seconds
        return Running(session.owner, handle, execution, on_end, deadline)

    def _leave(self) -> None:
        with self._turn:
            self._begun -= 1
            self._turn.notify_all()

    def cancel(self, session: ClientSession, handle: str) -> bool:
        """Stop a statement of this user, or have it never run; False if there is none."""
        statement = self._handles.get(handle)
        is_stored = statement is not None and statement.owner == session.owner
        if is_stored:
            self._handles.pop(handle)
        why, place = "the statement was cancelled", (session.owner, handle)
        with self._turn:
            waiting = [each for each in self._waiting if (each.owner, each.handle) == place]
            for each in waiting:
                each.stopped = why
            self._turn.notify_all()
            matches = [each for each in self._running if (each.owner, each.handle) == place]
        for running in matches:
            running.stop(why)
        return is_stored or bool(waiting or matches)

    def stop_expired(self) -> None:
        """Stop the statements whose time is over, and forget handles that were not used."""
        self._handles.expired()
        now = self._clock.monotonic()
        with self._turn:
            late = [each for each in self._running if each.deadline < now]
            current = [each for each in self._running if each.deadline >= now]
        for running in current:
            running.stop_again()
        for running in late:
            running.stop(
                f"the statement has taken more than {self._limits.query_seconds:g} seconds (--query-timeout), or its "
                "rows were not read in that time"
            )

    def stop_all(self) -> None:
        """Stop all that runs, and let nothing begin any more."""
        with self._turn:
            self._is_ended = True
            for waiting in self._waiting:
                waiting.stopped = "the endpoint is stopping"
            self._turn.notify_all()
            statements = list(self._running)
        for each in statements:
            each.stop("the endpoint is stopping")

    def _execution(self, session: ClientSession, **data: Any) -> tuple[IsolatedExecution, Path]:
        directory = self._directory / self._ids.token_hex()
        settings = {
            "temp_directory": str(directory).replace("'", "''"),
            **CLOSED_IN,
        }
        return self._processes.execution(session.database, data, settings, session.namespace), directory


_TEXT_LENGTH_MAX = 1 << 20
"""The longest statement, in characters: thousands of them are kept."""

_NOTHING = Description(pa.schema([]), pa.schema([]), False)
