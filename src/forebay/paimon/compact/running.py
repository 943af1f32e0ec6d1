"""Who does the tasks of a compaction or a rescaling: threads of this process, or the workers of an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeVar

from forebay.base.progress import OnProgress, no_progress

T = TypeVar("T")
R = TypeVar("R")

_TICK_S = 0.5
"""How long callers wait at most for a sign of life."""


class TaskRunner(Protocol):
    """Does tasks somewhere, several at a time."""

    @property
    def parallelism(self) -> int:
        """How many tasks are done at the same time."""

    def run(
        self,
        function: Callable[[T], R],
        tasks: Sequence[T],
        *,
        rows: Sequence[int],
        progress: OnProgress = no_progress,
        discard: Callable[[list[R]], object] = lambda results: None,
    ) -> list[R]:
        """What `function` makes of each task, in their order. All of it pickles. `rows` has what each task reads.

        `progress` is in rows. If a task fails, or `progress` raises, what was done is given to `discard`, and the error
        is raised.
        """


class TaskThreads:
    """Does tasks in threads of this process."""

    def __init__(self, threads: int | None = None) -> None:
        """`threads`: as many as the machine has cores, unless it is said."""
        self._threads = threads or os.cpu_count() or 1

    def __repr__(self) -> str:
        return f"ThreadRunner({self._threads})"

    @property
    def parallelism(self) -> int:
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
            except BaseException as e:  # noqa: BLE001 - of `progress`, or the user's interrupt: what was made must go
                failure = e
            if failure is not None:
                for future in futures:
                    future.cancel()
        if failure is not None:
            discard([f.result() for f in futures if not f.cancelled() and f.exception() is None])
            raise failure
        return [f.result() for f in futures]


def rows_read(files: Sequence[Any]) -> int:
    """The rows in data files, as `TaskRunner.run` counts them."""
    return sum(f.row_count for f in files)
