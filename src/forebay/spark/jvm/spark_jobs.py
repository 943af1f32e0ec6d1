"""Work of our own as tasks of Spark: each item of a list is done by some worker, and its result comes back.

Every call is one Spark job, in a job group and a scheduler pool of its own: with `spark.scheduler.mode=FAIR` several of
them share the cores evenly. Errors of items come back as values, so that the driver learns of all that was written, and
can remove it; Spark runs a task again only where its process is lost.
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
"""Does one item on a worker. The second argument is the number of Spark's attempt, which no other attempt has."""


RunTasks = Callable[[Work, Sequence[Any], str], list[Any]]
"""Has work done on each item, under a description: `run_job` of a Spark context, or `run_here`."""


def run_here(work: Work, items: Sequence[Any], _description: str) -> list[Any]:
    """The results of `work` on each item, in this thread: for processes without a Spark context."""
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
    """What `work` makes of each item, in their order; an error that it raised stands in its result's place.

    `work`, items and results pickle. The first items should be the largest: they are spread over the tasks.
    `on_progress` gets the share that is done, in the caller's thread. Once `cancelled` is set, or `on_progress` raises,
    running tasks are killed; Spark's error for that is raised, or that of `on_progress`.
    """
    group = f"forebay {description} {SYSTEM_IDS.token_hex()[:8]}"
    with ThreadPoolExecutor(1, thread_name_prefix="forebay-spark-job") as thread:
        job = thread.submit(_collect, context, items, _Tasks(pickle.dumps(work)), group, description)
        try:
            _watch(context, job, group, cancelled or threading.Event(), on_progress)
        except BaseException:  # the user's interrupt, too
            while not job.done():  # again and again: the job may not have reached Spark yet
                context.cancelJobGroup(group)
                wait([job], timeout=_WATCH_SECONDS)
            raise
    outcomes = dict(job.result())
    return [pickle.loads(outcomes[index]) for index in range(len(items))]


def _collect(
    context: SparkContext, items: Sequence[Any], tasks: _Tasks, group: str, pool: str
) -> list[tuple[int, bytes]]:
    """The job, in a thread of its own: job groups and pools belong to threads."""
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
    """Report the progress of the job, and end it if it is cancelled."""
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
    """What a worker of Spark does with the items of its partition."""

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
    """The items of each task of Spark: one, unless there are very many. The largest, which come first, are spread."""
    count = min(len(items), max(groups_max, 1))
    return [list(items[i::count]) for i in range(count)]


def _portable(error: Exception) -> Exception:
    """The error without its history, in a form that the driver can read."""
    if isinstance(error, ForebayError):
        return type(error)(error.message, error.code)
    return InternalError(f"{type(error).__name__}: {error}")
