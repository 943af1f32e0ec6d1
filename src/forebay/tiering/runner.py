"""Where the splits of a round are written: threads of this process, or another `SplitRunner` (Spark)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from forebay.base import threads
from forebay.base.errors import InvalidRequest, Unavailable
from forebay.base.threads import Future
from forebay.client.connection import Connection
from forebay.tiering.control import RoundControl
from forebay.tiering.splits import SplitResult, SplitTask, write_split

OnResult = Callable[[SplitResult], None]


class SplitRunner(Protocol):
    """Runs the tasks of one round. Several rounds may call `run` at the same time, each in its own thread."""

    def run(
        self, tasks: Sequence[SplitTask], connection: Connection, control: RoundControl, on_result: OnResult
    ) -> None:
        """Write all splits; `on_result` is called once for each, in the caller's thread.

        If one fails, or `control` is cancelled, the others are ended, and the error is raised when all have stopped.
        The caller then aborts the results that were passed to `on_result`.
        """
        ...


class ThreadRunner:
    """Threads of this process. Each round has its own, so a slow table takes none from the others."""

    def __init__(self, threads: int = 2) -> None:
        """`threads`: number of threads per round."""
        if threads < 1:
            raise InvalidRequest(f"a round needs at least one thread, not {threads}")
        self.threads = threads

    def run(
        self, tasks: Sequence[SplitTask], connection: Connection, control: RoundControl, on_result: OnResult
    ) -> None:
        """See `SplitRunner.run`. The first failure cancels all other splits."""
        group = RoundControl()
        control.when_cancelled(lambda: group.cancel(Unavailable("the round was abandoned")))

        def write(task: SplitTask) -> SplitResult:
            group.check()
            return write_split(task, connection, lambda: control.should_cut, group.check)

        error: BaseException | None = None
        with threads.executor(min(self.threads, max(len(tasks), 1)), "forebay-tiering") as pool:
            running: list[Future[SplitResult]] = [pool.submit(write, task) for task in tasks]
            while running:
                done, running = threads.first_completed(running)
                for future in done:
                    failure = future.exception()
                    if failure is None:
                        on_result(future.result())
                    elif error is None:
                        error = failure
                        group.cancel(Unavailable("another split of the round failed"))
        control.check()
        if error is not None:
            raise error

    def __repr__(self) -> str:
        return f"ThreadRunner({self.threads})"
