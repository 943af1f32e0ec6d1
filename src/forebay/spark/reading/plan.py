"""Plans of scans: what a query pushes down, the plan of a scan, and the distribution of splits to tasks.

Nouns: a `Pushdown` has the columns, filters and limit of a query. A `ScanPlan` determines what is read; it pins and
sends nothing. `open` creates the input partitions of Spark's tasks, which are pickled; its `OpenedScan` also holds the
resources that the tasks need.

A part of a scan may be Parquet files that Spark can read directly (`NativeFiles`). A plan with such a part can be
opened with Python tasks for all rows, or only for the rows that are not in these files. The scan that opens the plan
decides, so a plan works in any Spark.

Spark takes 50 to 65 ms to start a Python task (docs/design/0009-spark-without-a-jar.md), so a scan has few tasks:
enough for its number of rows, and at most `TASKS_PER_CORE` for each core. Logs can be cut anywhere, so their tasks have
the same size. A bucket of a primary-key table is read in one session and cannot be cut, so buckets are distributed to
tasks, the largest first.

Each side plans in a module of its own: forebay.spark.reading.live_plan and forebay.spark.reading.lake_plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from forebay.client.reading.table_snapshot import TableSnapshot
from forebay.metadata.predicate import Predicate, all_of
from forebay.unionread.overridden import OverriddenRows


@dataclass(frozen=True)
class Pushdown:
    """The columns that a query pushes down to a table, in Spark's order, with filters on them and a limit."""

    columns: tuple[str, ...]
    partition_filters: tuple[Predicate, ...] = ()
    row_filter: Predicate | None = None
    limit: int | None = None

    @property
    def filter(self) -> Predicate | None:
        """All filters together, for a lake, which may have partitions that the stream lacks."""
        return all_of([*self.partition_filters, *([] if self.row_filter is None else [self.row_filter])])

    def with_filter(self, predicate: Predicate, partition_keys: Sequence[str]) -> Pushdown:
        """This pushdown with one more filter, which may refer to partition keys."""
        if predicate.columns() <= set(partition_keys):
            return replace(self, partition_filters=(*self.partition_filters, predicate))
        return replace(self, row_filter=predicate if self.row_filter is None else self.row_filter & predicate)


SYSTEM_SEPARATOR = "$"
"""The separator between the name of a table and that of its system table."""


@dataclass(frozen=True)
class ChangesRange:
    """The range of `CHANGES`: from `start` up to `stop`, which is exclusive (None: to the end).

    Versions, or milliseconds since the epoch (`is_of_times`).
    """

    start: int = 0
    stop: int | None = None
    is_of_times: bool = False


ReadTasks = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""The function that Python workers run. Picklable. A task's batch has one value, its pickled input partition."""


class TaskReader(Protocol):
    """`ReadTasks` for the tasks of a scan."""

    def __call__(self, tasks: Iterable[pa.RecordBatch], /) -> Iterator[pa.RecordBatch]: ...

    def read(self, partition: SplitsPartition) -> Iterator[pa.RecordBatch]: ...


class OverrideFinder(Protocol):
    """Finds the rows of files that are overridden. Picklable: a worker calls it."""

    @property
    def files(self) -> tuple[str, ...]: ...

    def __call__(self) -> Sequence[OverriddenRows]:
        """The overridden rows of `files`, in their order."""


Serves = Callable[[str], bool]
"""Returns whether Spark has a file system for the scheme of a URI, besides that of local files."""


def only_local(scheme: str) -> bool:
    """`Serves` for a Spark that reads local files alone."""
    return False


@dataclass(frozen=True)
class NativeFiles:
    """The part of a scan that Spark's own reader can read, with exactly the rows that Python tasks would return.

    `files` are paths of Parquet files. All of their rows belong to the scan, unless filters exclude them, which Spark
    evaluates. Columns have the same names as in the scan, and types that Spark converts to those of the scan; a missing
    column is null. Other files have overridden rows: the tasks of `marking` find them when the query runs. `is_all`:
    these files are the whole scan. `options` are the lake's options for its store (`s3.endpoint`, ...).
    """

    files: tuple[str, ...]
    marking: tuple[OverrideFinder, ...] = ()
    is_all: bool = False
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)


class SplitsPartition(InputPartition):
    """The splits of one task, and their table snapshot, if any.

    `reader` reads them; None: the read in Spark's reader factory.
    """

    def __init__(
        self, splits: tuple[Any, ...], snapshot: TableSnapshot | None = None, reader: TaskReader | None = None
    ) -> None:
        super().__init__(None)
        self.splits = splits
        self.snapshot = snapshot
        self.reader = reader

    def resumed(self, rest: bytes) -> SplitsPartition:
        """The rest of the task after the JVM has read a part. `rest` has a split's number and the position in it."""
        number, _, place = rest.decode().partition(" ")
        first, *others = self.splits[int(number) :]
        return SplitsPartition((first.resumed(place), *others), self.snapshot, self.reader)

    def __repr__(self) -> str:
        return f"SplitsPartition({', '.join(map(str, self.splits))})"


@dataclass(frozen=True)
class OpenedScan:
    """The input partitions of the tasks (picklable), and resources that live as long as the query's plan.

    `pinned` is referenced until the JVM has collected the plan. It is released when Python collects it.
    """

    partitions: Sequence[SplitsPartition]
    pinned: object | None = None


class DirectReading(Protocol):
    """How the JVM reads logs or buckets itself (forebay.spark.reading.direct)."""

    @property
    def source(self) -> bytes: ...

    def ranges(self, partitions: Sequence[SplitsPartition]) -> bytes: ...


@dataclass(frozen=True)
class ScanPlan:
    """The plan of a scan at one point in time: its tasks return the same rows each time they run.

    `read` yields batches of exactly Spark's schema for each of `tasks` (their splits). `rows` is the estimated number
    of rows before filters; None: unknown. `open_tasks` creates the input partitions of tasks. `open_current` also adds
    tasks for partitions that were created since; None if there cannot be any. `native` is the part that Spark can read
    directly, and `beside_native` are the tasks of the rest. `selection` describes the keys or buckets that the filters
    select, if any. `direct` is how the JVM reads logs or buckets, or the reason why Python reads them; None for scans
    without logs and buckets.
    """

    read: TaskReader
    tasks: Sequence[tuple[Any, ...]]
    rows: int | None
    open_tasks: Callable[[Sequence[tuple[Any, ...]]], OpenedScan]
    native: NativeFiles | None = None
    beside_native: Sequence[tuple[Any, ...]] = ()
    selection: str | None = None
    direct: DirectReading | str | None = None
    open_current: Callable[[Sequence[tuple[Any, ...]]], OpenedScan] | None = None

    def open(self, *, beside_native: bool = False) -> OpenedScan:
        """The tasks for all rows, or, with `beside_native`, for the rows that are not in `native`."""
        return (self.open_current or self.open_tasks)(self.beside_native if beside_native else self.tasks)


# ---- splits -> tasks ------------------------------------------------------------------------------------------------

TASKS_PER_CORE = 2
"""Maximum tasks per core. More tasks than cores compensate for wrong estimates."""

ROWS_PER_TASK_MIN = 250_000
"""The number of rows whose reading takes about as long as starting a task."""

DEFAULT_CORES = 2
"""The number of cores that a format assumes without the option `cores`: its reader cannot ask Spark."""

LIMIT_ONE_TASK_MAX = 100_000
"""Up to this row limit, one task reads the buckets one after the other and stops at the limit."""


def task_count(rows: int | None, cores: int, pieces: int | None = None) -> int:
    """The number of tasks for `rows` rows (None: unknown) in `pieces` pieces (None: can be cut anywhere)."""
    most = max(1, cores * TASKS_PER_CORE)
    count = most if rows is None else min(most, -(-rows // ROWS_PER_TASK_MIN))
    if pieces is not None:
        count = min(count, pieces)
    return max(1, count)


class HasRows(Protocol):
    """A piece of work with its number of `rows`; None if unknown."""

    @property
    def rows(self) -> int | None: ...


Work = TypeVar("Work", bound=HasRows)


def spread(splits: Sequence[Work], tasks: int) -> list[tuple[Work, ...]]:
    """`splits` dealt out to at most `tasks` tasks, so that the tasks have about the same number of rows.

    Splits are assigned from the largest to the smallest, each to the task with the fewest rows so far. A split of
    unknown size counts as the average of the others. Splits of a task keep their order. Empty tasks are left out.
    """
    counts = [split.rows for split in splits if split.rows is not None]
    average = sum(counts) // len(counts) if counts else 1
    weights = [average if split.rows is None else split.rows for split in splits]
    loads = [0] * min(tasks, len(splits))
    members: list[list[int]] = [[] for _ in loads]
    for index in sorted(range(len(splits)), key=lambda i: (-weights[i], i)):
        task = min(range(len(loads)), key=lambda t: (loads[t], len(members[t]), t))
        loads[task] += weights[index]
        members[task].append(index)
    return [tuple(splits[index] for index in sorted(group)) for group in members if group]


def keeping_limit(tasks: Sequence[tuple[Any, ...]], limit: int | None) -> Sequence[tuple[Any, ...]]:
    """`tasks`, or with a limit a single task, for readers whose combined output is not limited further."""
    if limit is None or len(tasks) < 2:
        return tasks
    return [tuple(split for task in tasks for split in task)]


def deal_out(pieces: Sequence[Work], cores: int) -> list[tuple[Work, ...]]:
    """Tasks for `pieces` that cannot be split: as many as their row counts justify."""
    if not pieces:
        return []
    counts = [piece.rows for piece in pieces if piece.rows is not None]
    total = sum(counts) if len(counts) == len(pieces) else None
    return spread(pieces, task_count(total, cores, len(pieces)))
