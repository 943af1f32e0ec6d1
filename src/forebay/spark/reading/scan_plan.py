"""What a query wants of a table, and what a planner answers: the words between `ScanBuilder` and the tables it scans.

Nouns: `Pushdown` is the question. A `ScanPlan` is the answer: what is read is decided, nothing is pinned or sent yet.
`open` makes the input partitions of Spark's tasks, pickled as they are; its `OpenedScan` keeps what the tasks need.

A part of a scan may be Parquet files that Spark can read directly (`NativeFiles`). A plan that has such a part can be
opened in two ways: with Python tasks for all rows, or for those alone that are not in these files. Whoever opens it
chooses, so a plan works in any Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from forebay.metadata.predicate import Predicate, all_of
from forebay.unionread.overridden import OverriddenRows


@dataclass(frozen=True)
class Pushdown:
    """What a query wants of a table: columns in Spark's order, filters on them, and a limit."""

    columns: tuple[str, ...]
    partition_filters: tuple[Predicate, ...] = ()
    row_filter: Predicate | None = None
    limit: int | None = None

    @property
    def filter(self) -> Predicate | None:
        """All filters together: a lake may have partitions that the stream has not, so it takes those on them, too."""
        return all_of([*self.partition_filters, *([] if self.row_filter is None else [self.row_filter])])


ReadTasks = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What Python workers run. Picklable. A task's batch has one value, its pickled input partition."""


class Marking(Protocol):
    """Finds out which rows of files do not count. Picklable: a worker calls it."""

    @property
    def files(self) -> tuple[str, ...]: ...

    def __call__(self) -> Sequence[OverriddenRows]:
        """What does not count of `files`, in their order."""


@dataclass(frozen=True)
class NativeFiles:
    """The part of a scan that Spark's own reader can read, with exactly the rows that Python tasks would give.

    `files` are paths of Parquet files every row of which is a row of the scan, but for filters on rows, which Spark
    evaluates anyhow. They have the wanted columns under their own names, with types that Spark reads as those of the
    scan; a column that a file lacks is null. Some rows of more such files do not count: `marking` are tasks that tell
    these files and rows when the query runs. `is_all`: nothing is beside all these files.
    """

    files: tuple[str, ...]
    marking: tuple[Marking, ...] = ()
    is_all: bool = False


@dataclass(frozen=True)
class OpenedScan:
    """Input partitions, each one for a task (picklable), and what must live as long as the query's plan.

    `pinned` is held until the JVM has collected the plan, and releases itself when it is collected.
    """

    partitions: Sequence[object]
    pinned: object | None = None


class ScanPlan(Protocol):
    """What is read, decided at one moment: its tasks read the same however often they run."""

    @property
    def read(self) -> ReadTasks:
        """How each task is read, as batches of exactly Spark's schema."""

    @property
    def rows(self) -> int | None:
        """About how many rows all have, before filters; None where that is not known."""

    @property
    def native(self) -> NativeFiles | None:
        """Return the part that Spark can read directly; None without one."""

    def open(self, *, beside_native: bool = False) -> OpenedScan:
        """The tasks of all rows, or (`beside_native`) of those that are not in `native`."""
