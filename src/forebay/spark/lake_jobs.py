"""Tasks of the lake engine as tasks of Spark: compaction, rescaling.

    table.compact(runner=SparkTasks(context, "compacting db.t"))     # plans, commits, and tries again where it lost

The driver plans and commits; workers do the tasks, and send back what is to be committed. A worker sees the table under
the very schema that the driver planned with: it is a part of `table.context`, which pickles (a `Table` does, too, but
is opened under the latest schema then).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from forebay.base.progress import OnProgress, no_progress
from forebay.spark.jvm.spark_jobs import run_job

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")
R = TypeVar("R")


class SparkTasks:
    """Has tasks done by the workers of Spark; a `forebay.paimon.compact.running.TaskRunner`."""

    def __init__(self, context: SparkContext, description: str) -> None:
        """`description` names the jobs in Spark's UI, and their scheduler pool."""
        self._context, self._description = context, description

    def __repr__(self) -> str:
        return f"SparkTasks({self._context.master}, {self._description!r})"

    @property
    def parallelism(self) -> int:
        return int(self._context.defaultParallelism)

    @property
    def process_parallelism(self) -> int:
        return 1  # each worker is a process

    def run(
        self,
        function: Callable[[T], R],
        tasks: Sequence[T],
        *,
        rows: Sequence[int],
        progress: OnProgress = no_progress,
        discard: Callable[[list[R]], object] = lambda results: None,
    ) -> list[R]:
        """See `TaskRunner.run`. Results come in the order of `tasks`, each done by some worker of Spark.

        If a task fails, the others are finished before `discard` gets their results. What `progress` raises, or an
        interrupt, kills tasks at once: what they wrote is orphaned then, and found by `remove_orphan_files`.
        """
        if not tasks:
            return []
        total = sum(rows)
        order = sorted(range(len(tasks)), key=rows.__getitem__, reverse=True)
        progress(0, total)
        outcomes = run_job(
            self._context, _Alone(function), [tasks[i] for i in order], self._description,
            on_progress=lambda done: progress(int(done * total), total),
        )  # fmt: skip
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if failures:
            discard([outcome for outcome in outcomes if not isinstance(outcome, Exception)])
            raise failures[0]
        progress(total, total)
        results = dict(zip(order, outcomes, strict=True))
        return [results[i] for i in range(len(tasks))]


@dataclass(frozen=True)
class _Alone:
    """`function` without Spark's number of the attempt: files of each attempt have names of their own anyway."""

    function: Callable[[Any], Any]

    def __call__(self, task: Any, _attempt: int) -> Any:
        return self.function(task)
