"""Union reads as Spark tasks: a plan of `forebay.unionread` -> splits, dealt out to tasks.

Log ranges and buckets that only the servers have are read as they are in tables without a lake: logs are cut into equal
tasks, and buckets belong to the query's table snapshot. What has lake rows in it goes to `forebay.unionread`, one split
for each piece of the lake, or for each bucket whose lake rows a log range overrides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from forebay.client.connection import Connection
from forebay.metadata.table import TableBucket, TableInfo
from forebay.spark.reading import task_sizes
from forebay.spark.reading.scan_plan import Pushdown
from forebay.spark.reading.splits import KvBatchSplit, LakePart, Split
from forebay.unionread.plan import UnionPlan
from forebay.unionread.planning import plan_union
from forebay.unionread.reading import KvSnapshotSplit, LakeSnapshotAndLogSplit, LogSplit, UnionSplit
from forebay.unionread.time_range import plan_time_range

RowCounts = Callable[[Sequence[TableBucket]], Mapping[TableBucket, int | None]]


def plan_lake_table(connection: Connection, info: TableInfo, wanted: Pushdown, *, lake_only: bool) -> UnionPlan | None:
    """The plan of a table with a lake; None where nothing is in its lake yet, so that it is read from the stream."""
    plan = plan_union(connection.table(info), wanted.columns, wanted.filter, wanted.limit, lake_only=lake_only)
    return None if plan.facts.snapshot_id is None and not lake_only else plan


def plan_window(connection: Connection, info: TableInfo, wanted: Pushdown, window: tuple[int, int | None]) -> UnionPlan:
    """The plan of what was written in a window (milliseconds since the epoch, the end excluded; None: now)."""
    return plan_time_range(connection.table(info), *window, wanted.columns, wanted.filter, wanted.limit)


def lake_tasks(
    plan: UnionPlan,
    covered: Collection[TableBucket],
    count_rows: RowCounts,
    cores: int,
    limit: int | None,
    rows_per_task_max: int | None,
) -> list[tuple[Split, ...]]:
    """The splits of each task. `covered` are the buckets that filters on partitions leave.

    A small limit is met by one task, which reads one split after the other.
    """
    logs = {s.bucket: (s.start, s.stop) for s in plan.splits if isinstance(s, LogSplit) and s.bucket in covered}
    kv = [s.bucket for s in plan.splits if isinstance(s, KvSnapshotSplit) and s.bucket in covered]
    counts = count_rows(kv)
    pieces: list[Split] = [
        LakePart(plan.reader, split, lake_rows(split))
        for split in plan.splits
        if not isinstance(split, LogSplit | KvSnapshotSplit)
    ]
    pieces += [KvBatchSplit(bucket, counts.get(bucket)) for bucket in kv]
    log_tasks = task_sizes.cut_logs(logs, cores, rows_per_task_max)
    if limit is not None and limit <= task_sizes.LIMIT_ONE_TASK_MAX:
        together = (*pieces, *(split for task in log_tasks for split in task))
        return [together] if together else []
    if not pieces:
        return log_tasks
    known = [piece.rows for piece in pieces if piece.rows is not None]
    total = sum(known) if len(known) == len(pieces) else None
    return [*task_sizes.spread(pieces, task_sizes.task_count(total, cores, len(pieces))), *log_tasks]


def lake_rows(split: UnionSplit) -> int | None:
    """About how many rows are read for a split; None where the lake does not tell."""
    if isinstance(split, LogSplit | KvSnapshotSplit):
        return None
    lakes = split.lake if isinstance(split, LakeSnapshotAndLogSplit) else (split.lake,)
    rows = split.stop - split.start if isinstance(split, LakeSnapshotAndLogSplit) else 0
    for lake in lakes:
        count = lake.rows()
        if count is None:
            return None
        rows += count
    return rows
