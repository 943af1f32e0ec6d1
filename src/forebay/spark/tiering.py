"""Tiering on Spark: the splits of a round are the tasks of a Spark job. No jar; workers need Forebay and the lake.

    from forebay.spark.tiering import start_tiering
    service = start_tiering(spark, "127.0.0.1:9123")     # rounds from now on, as often as the tables ask
    service                                              # what it is at, as a table in a notebook
    service.stop()

The driver plans and commits, workers read logs and write lake files, and only the small results of the writers come
back. Each round is a job of its own, and each table has a scheduler pool of its own: with `spark.scheduler.mode=FAIR`
several tables share the cores evenly. A task that Spark runs twice (a lost executor, speculation) writes
files of its own names, and those of one attempt are committed; the others are left to the lake's clean-up.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from forebay.base.errors import ForebayError, InternalError, InvalidRequest
from forebay.base.ids import SYSTEM_IDS
from forebay.client.connection import Connection, shared_connection
from forebay.client.options import Settings, make_settings
from forebay.tiering.control import RoundControl
from forebay.tiering.now import TierOutcome, tier_now
from forebay.tiering.round import TieringLake
from forebay.tiering.runner import OnResult
from forebay.tiering.service import POLL_SECONDS, TABLES_MAX, TieringService
from forebay.tiering.splits import SplitResult, SplitTask, write_split

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_WATCH_SECONDS = 0.2
_TASKS_PER_CORE = 8
_POOL = "spark.scheduler.pool"


class SparkRunner:
    """Runs the splits of a round as tasks of Spark; a `forebay.tiering.runner.SplitRunner`."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    def run(
        self, tasks: Sequence[SplitTask], connection: Connection, control: RoundControl, on_result: OnResult
    ) -> None:
        table = tasks[0].info.path
        group = f"forebay tiering {table} {SYSTEM_IDS.token_hex()[:8]}"
        with ThreadPoolExecutor(1, thread_name_prefix="forebay-spark-job") as thread:
            job = thread.submit(self._collect, tasks, _WriteTasks(connection.settings), group, f"tiering {table}")
            self._watch(job, group, len(tasks), control)
        outcomes = [pickle.loads(outcome) for outcome in job.result()]
        for outcome in outcomes:
            if isinstance(outcome, SplitResult):
                on_result(outcome)
        control.check()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def _collect(self, tasks: Sequence[SplitTask], write: _WriteTasks, group: str, pool: str) -> list[bytes]:
        """The job, in a thread of its own: job groups and pools belong to threads."""
        context = self._context
        context.setJobGroup(group, pool, interruptOnCancel=True)
        context.setLocalProperty(_POOL, pool)
        groups = _groups([pickle.dumps(task) for task in tasks], _TASKS_PER_CORE * context.defaultParallelism)
        collected: list[bytes] = context.parallelize(groups, len(groups)).mapPartitions(write).collect()
        return collected

    def _watch(self, job: Future[list[bytes]], group: str, tasks: int, control: RoundControl) -> None:
        """Tell how far the job is, and end it where the round is given up."""
        given_up = threading.Event()
        control.when_cancelled(given_up.set)
        tracker = self._context.statusTracker()
        while not job.done():
            wait([job], timeout=_WATCH_SECONDS)
            if given_up.is_set():
                self._context.cancelJobGroup(group)
                continue
            stages = [
                stage
                for job_id in tracker.getJobIdsForGroup(group)
                if (info := tracker.getJobInfo(job_id)) is not None
                for stage_id in info.stageIds
                if (stage := tracker.getStageInfo(stage_id)) is not None
            ]
            if sum(stage.numTasks for stage in stages):
                done = sum(stage.numCompletedTasks for stage in stages) / sum(stage.numTasks for stage in stages)
                control.on_progress(int(done * tasks), tasks)
        if given_up.is_set() and job.exception() is not None:
            control.check()  # rather than Spark's words for a job that was cancelled

    def __repr__(self) -> str:
        return f"SparkRunner({self._context.master})"


@dataclass(frozen=True)
class _WriteTasks:
    """What a worker of Spark does with the splits of its partition. Errors come back as values.

    So the driver learns of every split that was written, and removes the files if another one has failed; Spark runs
    a task again only where its process is lost.
    """

    settings: Settings

    def __call__(self, groups: Iterable[Sequence[bytes]]) -> Iterator[bytes]:
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = 0 if context is None else context.taskAttemptId()
        for data in chain.from_iterable(groups):
            task: SplitTask = pickle.loads(data)
            task = replace(task, attempt=f"{task.attempt}-{attempt}")
            try:
                yield pickle.dumps(write_split(task, shared_connection(self.settings)))
            except Exception as e:  # noqa: BLE001 - the driver raises it
                yield pickle.dumps(_portable(e))


def _groups(pickled: Sequence[bytes], groups_max: int) -> list[list[bytes]]:
    """The splits of each task of Spark: one, unless there are very many. The largest, which come first, are spread."""
    count = min(len(pickled), max(groups_max, 1))
    return [list(pickled[i::count]) for i in range(count)]


def _portable(error: Exception) -> Exception:
    """The error without its history, in a form that the driver can read."""
    if isinstance(error, ForebayError):
        return type(error)(error.message, error.code)
    return InternalError(f"{type(error).__name__}: {error}")


# ---- services -------------------------------------------------------------------------------------------------------


def start_tiering(
    spark: SparkSession,
    bootstrap_servers: str | None = None,
    user: str | None = None,
    password: str | None = None,
    *,
    tables_max: int = TABLES_MAX,
    poll_seconds: float = POLL_SECONDS,
    lake_options: Mapping[str, str] | None = None,
    **options: Any,
) -> TieringService:
    """Tier the lake-enabled tables of a cluster from now on, on this Spark session; `stop()` ends it.

    At most `tables_max` tables have rounds at a time. `lake_options` are added to those of the lake that the cluster
    tells, for secrets, which it does not. `options` are `client.*` options as in `forebay.connect`. Raises
    `Unavailable` if no server answers.
    """
    connection = shared_connection(make_settings(bootstrap_servers, user, password, options))
    connection.cluster.bootstrap()
    lake = TieringLake(dict(lake_options or {}))
    runner = SparkRunner(spark.sparkContext)
    return TieringService(connection, runner, tables_max=tables_max, poll_seconds=poll_seconds, lake=lake).start()


class _Services:
    """The services of this process that SQL has started: one for each cluster."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Settings, TieringService] = {}

    def start(self, settings: Settings, lake_options: Mapping[str, str]) -> TieringService:
        """The cluster's service, started now unless it is running."""
        with self._lock:
            service = self._running.get(settings)
            if service is None or not service.running:
                connection = shared_connection(settings)
                lake = TieringLake(dict(lake_options))
                service = TieringService(connection, SparkRunner(active_context()), lake=lake).start()
                self._running[settings] = service
            return service

    def stop(self, settings: Settings) -> TieringService | None:
        """Stop the cluster's service, and return it; None if there is none."""
        with self._lock:
            service = self._running.pop(settings, None)
        if service is not None:
            service.stop()
        return service


services = _Services()
"""What `CALL ... sys.start_tiering()` and `stop_tiering()` share."""


def active_context() -> SparkContext:
    """The Spark context of this process. Raises `InvalidRequest` if there is none."""
    from pyspark import SparkContext

    context: SparkContext | None = SparkContext._active_spark_context
    if context is None:
        raise InvalidRequest("there is no Spark context in this process")
    return context


def tier_once(settings: Settings, tables: Sequence[str] | None, lake_options: Mapping[str, str]) -> list[TierOutcome]:
    """One round of each table (None: of all that are tiered) on the active Spark context."""
    lake = TieringLake(dict(lake_options))
    return tier_now(shared_connection(settings), tables, SparkRunner(active_context()), lake)
