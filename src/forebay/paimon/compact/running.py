"""Running the tasks of a compaction or a rescale: in threads of this process, or on the workers of an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeVar

from forebay.base.progress import OnProgress, no_progress
from forebay.paimon.store.context import TableContext

T = TypeVar("T")
R = TypeVar("R")

_TICK_S = 0.5
"""The maximum time between two calls of `progress`, in seconds."""


class TaskRunner(Protocol):
    """Runs tasks, several at a time."""

    @property
    def parallelism(self) -> int:
        """The number of tasks that run at the same time."""

    @property
    def process_parallelism(self) -> int:
        """The number of tasks that run at the same time in one process, and share its memory."""

    def run(
        self,
        function: Callable[[T], R],
        tasks: Sequence[T],
        *,
        rows: Sequence[int],
        progress: OnProgress = no_progress,
        discard: Callable[[list[R]], object] = lambda results: None,
    ) -> list[R]:
        """The results of `function` for `tasks`, in order. All arguments and results must pickle.

        `rows` has the number of rows that each task reads, `progress` is in rows. If a task fails, or `progress`
        raises, the results so far are passed to `discard`, and the error is raised.
        """


class TaskThreads:
    """Runs tasks in threads of this process."""

    def __init__(self, threads: int | None = None) -> None:
        """`threads`: by default the number of cores."""
        self._threads = threads or os.cpu_count() or 1

    def __repr__(self) -> str:
        return f"ThreadRunner({self._threads})"

    @property
    def parallelism(self) -> int:
        return self._threads

    @property
    def process_parallelism(self) -> int:
        return self._threads

    def run(
        self,
        function: Callable[[T], R],
        tasks: Sequence[T],
        *,
        rows: Sequence[int],
        progress: OnProgress = no_progress,
        discard: Callable[[list[R]], object] = lambda results: None,
    ) -> list[R]:
        """See `TaskRunner.run`. A failed task cancels the tasks that have not started; running tasks finish first."""
        if not tasks:
            return []
        done, total = 0, sum(rows)
        progress(done, total)
        with ThreadPoolExecutor(min(len(tasks), self._threads), "forebay-task") as pool:
            futures = [pool.submit(function, task) for task in tasks]
            rows_of = dict(zip(futures, rows, strict=True))
            failure: BaseException | None = None
            try:
                waiting = set(futures)
                while waiting and failure is None:
                    ended, waiting = wait(waiting, _TICK_S, FIRST_COMPLETED)
                    done += sum(rows_of[f] for f in ended)
                    progress(done, total)
                    failure = next((e for f in ended if (e := f.exception()) is not None), None)
            except BaseException as e:  # noqa: BLE001 - of `progress`, or the user's interrupt: results are discarded
                failure = e
            if failure is not None:
                for future in futures:
                    future.cancel()
        if failure is not None:
            discard([f.result() for f in futures if not f.cancelled() and f.exception() is None])
            raise failure
        return [f.result() for f in futures]


def rows_read(files: Sequence[Any]) -> int:
    """The number of rows in data files, as `TaskRunner.run` counts them."""
    return sum(f.row_count for f in files)


def within_budget(table: TableContext, runner: TaskRunner, tasks: int) -> TableContext:
    """The table for `tasks` tasks. Tasks that run at the same time in one process share the memory that the table's
    options allow for one merge and one write buffer."""
    return table.with_memory_share(min(tasks, runner.process_parallelism))
