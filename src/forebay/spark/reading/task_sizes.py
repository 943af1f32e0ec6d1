"""Splits -> tasks: pure functions on counts and offsets.

A Python task costs Spark 50 to 65 ms before its first row (reference pyspark.md), so a scan has few tasks: as many as
its rows are worth, and at most `TASKS_PER_CORE` for each core. Logs can be cut anywhere, so their tasks are equal; a
bucket of a primary-key table is read by one session and cannot be cut, so those are spread, the largest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from forebay.metadata.table import TableBucket
from forebay.spark.reading.splits import KvBatchSplit, LogInput, Split

TASKS_PER_CORE = 2
"""More tasks than cores even out what the estimates got wrong."""

ROWS_PER_TASK_MIN = 250_000
"""Rows whose reading takes about as long as starting a task for them."""

DEFAULT_CORES = 2
"""Cores to plan for where the option `cores` of a format does not say: its reader cannot ask Spark."""

LIMIT_ONE_TASK_MAX = 100_000
"""Up to this limit one task reads bucket after bucket, and stops when it has enough."""


def task_count(rows: int | None, cores: int, pieces: int | None = None) -> int:
    """How many tasks read `rows` rows (None: unknown) that lie in `pieces` pieces (None: can be cut anywhere)."""
    most = max(1, cores * TASKS_PER_CORE)
    wanted = most if rows is None else min(most, -(-rows // ROWS_PER_TASK_MIN))
    if pieces is not None:
        wanted = min(wanted, pieces)
    return max(1, wanted)


class HasRows(Protocol):
    """A piece of work; `rows` is how many rows it has, None where that is not known."""

    @property
    def rows(self) -> int | None: ...


Work = TypeVar("Work", bound=HasRows)


def spread(splits: Sequence[Work], tasks: int) -> list[tuple[Work, ...]]:
    """`splits` dealt out to at most `tasks` tasks, so that the tasks have about the same number of rows.

    The largest is dealt first, each to the task that has the least so far. A split of unknown size counts as much as
    the average of the known ones. Within a task splits keep their order. Tasks without a split are left out.
    """
    known = [split.rows for split in splits if split.rows is not None]
    average = sum(known) // len(known) if known else 1
    weights = [average if split.rows is None else split.rows for split in splits]
    loads = [0] * min(tasks, len(splits))
    members: list[list[int]] = [[] for _ in loads]
    for index in sorted(range(len(splits)), key=lambda i: (-weights[i], i)):
        task = min(range(len(loads)), key=lambda t: (loads[t], len(members[t]), t))
        loads[task] += weights[index]
        members[task].append(index)
    return [tuple(splits[index] for index in sorted(group)) for group in members if group]


def keeping_limit(tasks: Sequence[tuple[Any, ...]], limit: int | None) -> Sequence[tuple[Any, ...]]:
    """`tasks`; with a limit one task that reads all, for readers whose combined output is not limited any further."""
    if limit is None or len(tasks) < 2:
        return tasks
    return [tuple(split for task in tasks for split in task)]


def cut_logs(
    offsets: Mapping[TableBucket, tuple[int, int]], cores: int, rows_per_task_max: int | None = None
) -> list[tuple[Split, ...]]:
    """The logs between (start, stop) offsets, cut into tasks of the same number of records, in order.

    `rows_per_task_max` (`scan.maxRecordsPerPartition`) makes more tasks where they would be larger.
    """
    total = sum(max(0, stop - start) for start, stop in offsets.values())
    tasks = task_count(total, cores)
    if rows_per_task_max is not None:
        tasks = max(tasks, -(-total // rows_per_task_max))
    share = max(1, -(-total // tasks))
    planned: list[tuple[Split, ...]] = []
    current: list[Split] = []
    room = share
    for bucket, (first, stop) in offsets.items():
        start = first
        while start < stop:
            end = min(stop, start + room)
            current.append(LogInput(bucket, start, end))
            room -= end - start
            start = end
            if room == 0:
                planned.append(tuple(current))
                current, room = [], share
    if current:
        planned.append(tuple(current))
    return planned


def cut_logs_for_limit(offsets: Mapping[TableBucket, tuple[int, int]], limit: int) -> list[tuple[Split, ...]]:
    """The first records of as many logs as `limit` rows take, for one task. Every record is a row here."""
    splits: list[Split] = []
    left = limit
    for bucket, (start, stop) in offsets.items():
        if left <= 0:
            break
        if start < stop:
            end = min(stop, start + left)
            splits.append(LogInput(bucket, start, end))
            left -= end - start
    return [tuple(splits)] if splits else []


def plan_kv(counts: Mapping[TableBucket, int | None], cores: int, limit: int | None = None) -> list[tuple[Split, ...]]:
    """Scans of buckets with these row counts (None: unknown), as tasks.

    Buckets that were empty when they were counted are read too, because rows may have come since.
    """
    splits: list[Split] = [KvBatchSplit(bucket, rows) for bucket, rows in counts.items()]
    if not splits:
        return []
    if limit is not None and limit <= LIMIT_ONE_TASK_MAX:
        return [tuple(splits)]
    known = [rows for rows in counts.values() if rows is not None]
    total = sum(known) if len(known) == len(splits) else None
    return spread(splits, task_count(total, cores, len(splits)))


def estimated_rows(tasks: Sequence[Sequence[Split]], limit: int | None = None) -> int | None:
    """Rows that the tasks will yield, before filters; None where a bucket is not counted."""
    total = 0
    for split in (split for task in tasks for split in task):
        if split.rows is None:
            return None
        total += split.rows
    return total if limit is None else min(total, limit)
