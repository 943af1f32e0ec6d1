"""Queries whose filters fix keys (forebay.client.reading.key_filter): the driver looks the rows up.

The driver looks keys up when it creates the query's tasks, and sends the rows with a task, so a repeated task has the
same rows. Several buckets are pinned by a table snapshot first, as for a scan. A lookup is valid for that snapshot if
nothing has been appended to the bucket's log since. A bucket that has changed is scanned at the snapshot instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forebay.client.cluster.offsets import LATEST, list_offsets
from forebay.client.connection import Connection
from forebay.client.reading.key_cursor import AT_ONCE_MAX, knows_log_ends, look_up
from forebay.client.reading.key_filter import KeyFilter
from forebay.client.reading.key_plan import KeyPlan, choose
from forebay.client.reading.table_snapshot import TableSnapshot
from forebay.client.row_view import RowView
from forebay.metadata.table import TableBucket
from forebay.spark.filters import matching_partitions
from forebay.spark.reading.live_read import InlineRows, Split
from forebay.spark.reading.plan import Pushdown
from forebay.unionread.splits import KeyLookupSplit, KvBucketSplit

Tasks = Sequence[tuple[Split, ...]]
Pin = Callable[[Sequence[TableBucket]], TableSnapshot | None]


def selected_buckets(connection: Connection, view: RowView, pushdown: Pushdown) -> KeyPlan | None:
    """The buckets and keys that the filters leave; None if they do not restrict keys or buckets."""
    info, key_filter = view.info, KeyFilter.of(view)
    if key_filter is None:
        return None
    if key_filter.is_empty:
        return KeyPlan((), info.bucket_count, {})
    if not info.is_partitioned:
        return choose(key_filter, [TableBucket(info.table_id, number) for number in range(info.bucket_count)], ())
    keys = [info.schema.column(name) for name in info.descriptor.partition_keys]
    existing = connection.table(info).partitions()
    partitions = matching_partitions(existing, keys, pushdown.partition_filters)
    buckets = [TableBucket(info.table_id, n, p.partition_id) for p in partitions for n in range(info.bucket_count)]
    plan = choose(key_filter, buckets, partitions)
    return KeyPlan(plan.buckets, info.bucket_count * len(existing), plan.keys)


def with_inline_rows(
    connection: Connection, view: RowView, tasks: Tasks, pin: Pin
) -> tuple[Tasks, TableSnapshot | None]:
    """`tasks` with rows in place of their keys, and the snapshot that their other splits read.

    `pin` opens a snapshot of buckets; it returns None if the cluster has no snapshots of several servers.
    """
    info = view.info
    keys = {
        bucket: of_bucket
        for task in tasks
        for split in task
        if isinstance(split, KeyLookupSplit)
        for bucket, of_bucket in split.keys
    }
    scanned = [split.bucket for task in tasks for split in task if isinstance(split, KvBucketSplit)]
    snapshot: TableSnapshot | None = None
    offsets: dict[TableBucket, int] | None = None
    at_once = len(keys) == 1 and not scanned and max(map(len, keys.values())) <= AT_ONCE_MAX
    if not at_once and knows_log_ends(connection.cluster, info, next(iter(keys))):
        snapshot = pin([*keys, *scanned])
        if snapshot is None:  # several servers have no common point in time
            offsets = list_offsets(connection.cluster, info, list(keys), LATEST)
        else:
            offsets = snapshot.log_offsets
    lookup = look_up(connection, view, keys, offsets)
    rows = InlineRows.of(list(lookup.rows.values()))
    resolved: list[tuple[Split, ...]] = []
    for task in tasks:
        if any(isinstance(split, KeyLookupSplit) for split in task):
            others = [split for split in task if not isinstance(split, KeyLookupSplit)]
            task = (rows, *others, *(KvBucketSplit(bucket) for bucket in lookup.changed))
        resolved.append(task)
    if snapshot is not None and not lookup.changed and not scanned:
        snapshot.release()
        snapshot = None
    return resolved, snapshot
