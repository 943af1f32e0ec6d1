"""The tiering service: gets tables from the cluster and runs a round of each, several at a time.

    with TieringService(connection) as service:
        ...
        service.status()

A separate thread sends heartbeats whatever the rounds do, so a long round is not considered dead. It reports finished
and failed rounds, and requests tables while there is capacity. Each round has a thread.

Failures: a table whose round has failed is kept for a pause that doubles with each failure, and only then returned, so
that the others have their turn in between. A table that the cluster has taken away (assigned to another worker,
forgotten in a restart, dropped) is abandoned immediately, and its files are removed. A round is cut when the table's
freshness has passed: the rows read so far are committed, and the table queues again for the rest.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from forebay.base import threads
from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import ForebayError, InvalidRequest, Unavailable
from forebay.base.retrying import backoff
from forebay.client.admin.lake import Heartbeat, LakeTieringClient, TieringDone, TieringTable
from forebay.client.connection import Connection
from forebay.metadata.table import TablePath
from forebay.tiering.control import Reached, RoundControl, nothing_happens
from forebay.tiering.report import RoundReport
from forebay.tiering.round import TieringLake, run_round
from forebay.tiering.runner import SplitRunner, ThreadRunner
from forebay.tiering.status import ServiceStatus, TableStatus, status_html
from forebay.tiering.steps import RoundStep

if TYPE_CHECKING:
    from forebay.base.tracing import Steps

_LOGGER = logging.getLogger(__name__)

TABLES_MAX = 4
"""Tables that a service tiers at a time."""
POLL_SECONDS = 1.0
"""How often a service sends a heartbeat and asks for tables."""
HEARTBEAT_RETRY_SECONDS = 2.0
"""How long one heartbeat is retried: the next one follows soon, and `status` should report the outage."""
OVERDUE_SECONDS = 5.0
"""How long a heartbeat may wait for its answer before `status` reports it."""
PAUSE_FIRST_SECONDS = 1.0
PAUSE_MAX_SECONDS = 60.0
"""The pause of a table after its first failed round; it doubles with each further one, up to the maximum."""
TABLES_REMEMBERED = 10_000
"""Maximum number of tables in `status`; those whose last round began the longest ago are forgotten."""


@dataclass
class _TableJob:
    """A table assigned to this service, until its result is reported."""

    table: TieringTable
    control: RoundControl
    done: TieringDone | None = None
    paused_until: float | None = None
    running: bool = True
    steps: Steps | None = None
    """The spans of its round, if there are any."""


@dataclass
class _History:
    """The memory of a table between its rounds."""

    status: TableStatus
    failures_in_a_row: int = 0


class TieringService:
    """Runs rounds until it is stopped. Use it as a context manager, or call `start` and `stop`."""

    def __init__(
        self,
        connection: Connection,
        runner: SplitRunner | None = None,
        *,
        tables_max: int = TABLES_MAX,
        poll_seconds: float = POLL_SECONDS,
        lake: TieringLake | None = None,
        reached: Reached = nothing_happens,
        on_round: Callable[[RoundReport], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`runner` writes splits (default: threads of this process); at most `tables_max` tables have rounds at a time.

        `poll_seconds` is the time between heartbeats, and thus the maximum delay of a table's turn. `on_round` is
        called after each round, in the round's thread; `reached` after each of its steps.
        """
        if tables_max < 1 or poll_seconds <= 0:
            raise InvalidRequest(f"tables_max={tables_max} and poll_seconds={poll_seconds:g} must be positive")
        self._connection = connection
        self._tiering = LakeTieringClient(connection)
        self._runner = runner or ThreadRunner()
        self._tables_max = tables_max
        self._poll_seconds = poll_seconds
        self._lake = lake or TieringLake()
        self._reached = reached
        self._on_round = on_round
        self._clock = clock
        self._lock = threads.lock()
        self._news = threads.event()
        self._stopping = threads.event()
        self._abandoning = False
        self._jobs: dict[int, _TableJob] = {}
        self._records: OrderedDict[TablePath, _History] = OrderedDict()
        self._cluster_error: str | None = None
        self._sent_at: float | None = None
        """When the heartbeat was sent that waits for its answer."""
        self._thread: threads.Thread | None = None
        self._rounds = threads.executor(tables_max, "forebay-round")

    # ---- for users --------------------------------------------------------------------------------------------------

    def start(self) -> TieringService:
        """Start requesting tables; return the service. A stopped service cannot be restarted."""
        if self._thread is not None:
            raise InvalidRequest("this tiering service was started before; create another one")
        self._thread = threads.thread(self._beat, name="forebay-tiering-heartbeat")
        self._thread.start()
        return self

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def stop(self, *, now: bool = False) -> None:
        """Request no more tables, cut the running rounds, and wait until they are committed and reported.

        With `now` they are abandoned instead: nothing of them is committed. A second call does nothing.
        """
        self._stopping.set()
        with self._lock:
            self._abandoning |= now
            jobs = list(self._jobs.values())
        for job in jobs:
            self._end(job)
        self._news.set()
        if self._thread is not None:
            self._thread.join()
        self._rounds.shutdown()

    def _end(self, job: _TableJob) -> None:
        """End a round because the service stops."""
        if self._abandoning:
            job.control.cancel(Unavailable("the tiering service was stopped"))
        else:
            job.control.cut()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until another thread stops the service, or for `seconds`."""
        if self._thread is not None:
            self._thread.join(seconds)

    def status(self) -> ServiceStatus:
        """Return the service's current work and its totals."""
        with self._lock:
            tables = tuple(record.status for _, record in sorted(self._records.items()))
            return ServiceStatus(self.running, tables, self._cluster_error or self._unanswered(OVERDUE_SECONDS))

    def _unanswered(self, seconds_min: float = 0.0) -> str | None:
        """How long the heartbeat under way has no answer, if that is `seconds_min`."""
        sent_at = self._sent_at
        waited = -1.0 if sent_at is None else self._clock.monotonic() - sent_at
        return f"no answer for {waited:.0f} s" if waited >= seconds_min else None

    def __enter__(self) -> TieringService:
        """Start the service unless it runs already: `forebay.spark.tiering.start_tiering` returns a running one."""
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(now=kind is not None)

    def __repr__(self) -> str:
        return f"<forebay.TieringService {self.status().title}>"

    def _repr_html_(self) -> str:
        return status_html(self.status())

    # ---- heartbeats -------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        while True:
            self._news.clear()
            if self._stopping.is_set() and not self._jobs:
                return  # nothing to report
            got_one = self._heartbeat()
            if self._stopping.is_set() and self._cluster_error is not None and not self._any_running():
                return
            if not got_one:
                self._news.wait(self._poll_seconds)

    def _any_running(self) -> bool:
        with self._lock:
            return any(job.running for job in self._jobs.values())

    def _heartbeat(self) -> bool:
        """Exchange one heartbeat with the cluster; return whether it assigned a table."""
        stopping, now = self._stopping.is_set(), self._clock.monotonic()
        with self._lock:
            jobs = list(self._jobs.values())
        finished = [job.done for job in jobs if job.done is not None]
        failed = [
            job.table
            for job in jobs
            if job.done is None and job.paused_until is not None and (stopping or now >= job.paused_until)
        ]
        ended = {done.table.table_id for done in finished} | {table.table_id for table in failed}
        working = [job.table for job in jobs if job.table.table_id not in ended]
        # A pausing table takes no slot; a limit keeps broken tables from taking all assignments.
        busy = sum(job.running for job in jobs)
        request = not stopping and busy < self._tables_max and len(working) < 16 * self._tables_max
        try:
            self._sent_at = now
            heartbeat = self._tiering.heartbeat(
                working, finished, failed, request=request, retry_seconds=HEARTBEAT_RETRY_SECONDS
            )
        except Exception as e:  # noqa: BLE001 - rounds continue, and the next heartbeat may succeed
            if self._connection.closed:  # to stop without the cluster: what is wrong was known before
                self._cluster_error = self._cluster_error or self._unanswered()
                return False
            if self._cluster_error is None:
                _LOGGER.warning("no heartbeat: %s", e)
            self._cluster_error = str(e)
            return False
        finally:
            self._sent_at = None
        if self._cluster_error is not None:
            _LOGGER.warning("the cluster answers heartbeats again")
        self._cluster_error = None
        with self._lock:
            for table_id in ended:
                self._jobs.pop(table_id, None)
        self._take_away(heartbeat, ended)
        if heartbeat.table is not None:
            self._begin(heartbeat.table)
        return heartbeat.table is not None

    def _take_away(self, heartbeat: Heartbeat, ended: Iterable[int]) -> None:
        """Abandon the tables that the cluster no longer assigns to this worker."""
        for table_id, error in heartbeat.errors.items():
            with self._lock:
                job = self._jobs.pop(table_id, None)
            if job is not None:
                _LOGGER.warning("table %s was taken away from this worker: %s", job.table.path, error)
                job.control.cancel(error)
            elif table_id in ended:
                _LOGGER.warning("the end of a round of the table with id %d came too late: %s", table_id, error)

    # ---- rounds -----------------------------------------------------------------------------------------------------

    def _begin(self, table: TieringTable) -> None:
        with self._lock:
            before = self._jobs.get(table.table_id)
            if before is not None:
                before.control.cancel(Unavailable("the cluster has reassigned the table"))
            record = self._records.setdefault(table.path, _History(TableStatus(table.path, RoundStep.PLAN.phase)))
            self._records.move_to_end(table.path)
            if len(self._records) > TABLES_REMEMBERED:
                self._forget_one()
            job = _TableJob(table, self._control(table))
            job.control.on_phase = partial(self._enter_phase, job)
            if self._stopping.is_set():  # since the table was asked for
                self._end(job)
            self._jobs[table.table_id] = job
            record.status = replace(record.status, phase=RoundStep.PLAN.phase, splits_done=0, splits=0)
        self._rounds.submit(self._run, job)

    def _forget_one(self) -> None:
        """Forget the idle table whose last round began the longest ago. With the lock held."""
        over = (path for path, record in self._records.items() if record.status.phase in ("waiting", "pausing"))
        path = next(over, None)
        if path is not None:
            del self._records[path]

    def _control(self, table: TieringTable) -> RoundControl:
        def check_still_mine() -> None:
            error = self._tiering.heartbeat([table]).errors.get(table.table_id)
            if error is not None:
                raise error

        def show(**changes: object) -> None:
            with self._lock:
                record = self._records[table.path]
                record.status = replace(record.status, **changes)  # type: ignore[arg-type]

        return RoundControl(
            limit_to_freshness=True,
            clock=self._clock,
            reached=self._reached,
            check_still_mine=check_still_mine,
            on_progress=lambda done, total: show(splits_done=done, splits=total),
        )

    def _enter_phase(self, job: _TableJob, phase: str) -> None:
        """Called by the thread of the round."""
        with self._lock:
            record = self._records[job.table.path]
            record.status = replace(record.status, phase=phase)
        if job.steps is not None:
            job.steps.begin(f"tiering.{phase}")

    def _run(self, job: _TableJob) -> None:
        """Run a round, in its thread."""
        tracing = self._connection.cluster.tracing
        if tracing is not None:
            from forebay.base.tracing import Steps

            job.steps = Steps(tracing, "tiering.round", db_collection_name=str(job.table.path))
        error: BaseException | None = None
        try:
            report = run_round(self._connection, job.table, self._runner, job.control, self._lake, self._clock)
        except BaseException as e:
            error = e
            # Whatever a lake raises, the other tables continue, and this one's failure is reported.
            self._failed(job, e)
            if not isinstance(e, Exception):
                raise
        else:
            self._succeeded(job, report)
        finally:
            if job.steps is not None:
                job.steps.end(error)
            self._news.set()

    def _succeeded(self, job: _TableJob, report: RoundReport) -> None:
        with self._lock:
            record = self._records[job.table.path]
            before = record.status
            record.failures_in_a_row = 0
            record.status = replace(
                before,
                phase="waiting",
                rounds=before.rounds + 1,
                rows=before.rows + report.rows,
                read_bytes=before.read_bytes + report.read_bytes,
                last_report=report,
                last_error=report.maintenance_error,
            )
            job.done = TieringDone(job.table, report.was_cut, report.lake_bytes, report.lake_rows)
            job.running = False
        _LOGGER.info("%s", report)
        if self._on_round is not None:
            try:
                self._on_round(report)
            except Exception:
                _LOGGER.exception("the callback after a round of table %s failed", job.table.path)

    def _failed(self, job: _TableJob, error: BaseException) -> None:
        path = job.table.path
        if isinstance(error, ForebayError):
            _LOGGER.warning("a round of table %s failed: %s", path, error)
        else:
            _LOGGER.exception("a round of table %s failed", path, exc_info=error)
        with self._lock:
            is_current = self._jobs.get(job.table.table_id) is job
            record = self._records[path]
            record.failures_in_a_row += 1
            pause = backoff(record.failures_in_a_row, PAUSE_FIRST_SECONDS, PAUSE_MAX_SECONDS)
            record.status = replace(
                record.status,
                phase="pausing" if is_current else "waiting",
                failures=record.status.failures + 1,
                last_error=str(error),
            )
            job.running = False
            job.paused_until = self._clock.monotonic() + pause
