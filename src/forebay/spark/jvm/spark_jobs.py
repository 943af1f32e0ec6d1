"""Python functions as Spark jobs: workers apply a function to the items of a list and return the results.

Every call is one Spark job, in a job group and a scheduler pool of its own: with `spark.scheduler.mode=FAIR` several of
them share the cores evenly. Errors of items are returned as values, so that the driver gets the results of all
other items and can remove the files that they have written. Spark retries a task only if its process is lost.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from forebay.base.ambient import SYSTEM_IDS
from forebay.base.errors import ForebayError, InternalError, InvalidRequest

if TYPE_CHECKING:
    from pyspark import SparkContext

_WATCH_SECONDS = 0.2
_TASKS_PER_CORE = 8
_POOL = "spark.scheduler.pool"

Work = Callable[[Any, int], Any]
"""Processes one item on a worker. The second argument is the id of the task attempt, unique in the Spark context."""

RunTasks = Callable[[Work, Sequence[Any], str], list[Any]]
"""Applies work to each item, under a description: `run_job` of a Spark context, or `run_here`."""


def run_here(work: Work, items: Sequence[Any], _description: str) -> list[Any]:
    """The results of `work` for each item, computed in this thread, for processes without a Spark context."""
    return [work(item, 0) for item in items]


def active_context() -> SparkContext:
    """The Spark context of this process. Raises `InvalidRequest` if there is none."""
    from pyspark import SparkContext

    context: SparkContext | None = SparkContext._active_spark_context
    if context is None:
        raise InvalidRequest("there is no Spark context in this process")
    return context


def run_job(
    context: SparkContext,
    work: Work,
    items: Sequence[Any],
    description: str,
    *,
    cancelled: threading.Event | None = None,
    on_progress: Callable[[float], None] = lambda _done: None,
) -> list[Any]:
    """The results of `work` for each item, in the order of `items`. An error that it raised is the item's result.

    `work`, items and results must be picklable. The largest items should come first: items are dealt to tasks in turn.
    `on_progress` gets the share of finished tasks, from 0 to 1, in the caller's thread. Once `cancelled` is set, or
    `on_progress` raises, running tasks are killed, and Spark's error or that of `on_progress` is raised.
    """
    group = f"forebay {description} {SYSTEM_IDS.token_hex()[:8]}"
    with ThreadPoolExecutor(1, thread_name_prefix="forebay-spark-job") as thread:
        job = thread.submit(_collect, context, items, _Tasks(pickle.dumps(work)), group, description)
        try:
            _watch(context, job, group, cancelled or threading.Event(), on_progress)
        except BaseException:  # such as the user's interrupt
            while not job.done():  # repeatedly: the job may not have reached Spark yet
                context.cancelJobGroup(group)
                wait([job], timeout=_WATCH_SECONDS)
            raise
    outcomes = dict(job.result())
    return [pickle.loads(outcomes[index]) for index in range(len(items))]


def _collect(
    context: SparkContext, items: Sequence[Any], tasks: _Tasks, group: str, pool: str
) -> list[tuple[int, bytes]]:
    """The index and pickled result of each item. Job groups and pools belong to threads, so each job has a thread."""
    context.setJobGroup(group, pool, interruptOnCancel=True)
    context.setLocalProperty(_POOL, pool)
    pickled = [(index, pickle.dumps(item)) for index, item in enumerate(items)]
    groups = grouped(pickled, _TASKS_PER_CORE * context.defaultParallelism)
    collected: list[tuple[int, bytes]] = context.parallelize(groups, len(groups)).mapPartitions(tasks).collect()
    return collected


def _watch(
    context: SparkContext,
    job: Future[list[tuple[int, bytes]]],
    group: str,
    cancelled: threading.Event,
    on_progress: Callable[[float], None],
) -> None:
    """Report the progress of the job until it ends, and cancel it if `cancelled` is set."""
    tracker = context.statusTracker()
    while not job.done():
        wait([job], timeout=_WATCH_SECONDS)
        if cancelled.is_set():
            context.cancelJobGroup(group)
            continue
        stages = [
            stage
            for job_id in tracker.getJobIdsForGroup(group)
            if (info := tracker.getJobInfo(job_id)) is not None
            for stage_id in info.stageIds
            if (stage := tracker.getStageInfo(stage_id)) is not None
        ]
        tasks = sum(stage.numTasks for stage in stages)
        if tasks:
            on_progress(sum(stage.numCompletedTasks for stage in stages) / tasks)


@dataclass(frozen=True)
class _Tasks:
    """The function that workers run on their partitions: pickled `work` on each item."""

    work: bytes

    def __call__(self, groups: Iterable[Sequence[tuple[int, bytes]]]) -> Iterator[tuple[int, bytes]]:
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = 0 if context is None else context.taskAttemptId()
        work: Work = pickle.loads(self.work)
        for index, item in chain.from_iterable(groups):
            try:
                yield index, pickle.dumps(work(pickle.loads(item), attempt))
            except Exception as e:  # noqa: BLE001 - the driver raises it
                yield index, pickle.dumps(_portable(e))


def grouped(items: Sequence[Any], groups_max: int) -> list[list[Any]]:
    """The items of each task: one item, or several where there are more than `groups_max` items, dealt in turn."""
    count = min(len(items), max(groups_max, 1))
    return [list(items[i::count]) for i in range(count)]


def _portable(error: Exception) -> Exception:
    """The error without cause and traceback; an `InternalError` unless the driver can unpickle its class."""
    if isinstance(error, ForebayError):
        return type(error)(error.message, error.code)
    return InternalError(f"{type(error).__name__}: {error}")
