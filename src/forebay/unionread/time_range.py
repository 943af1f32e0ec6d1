"""The records written between two times, read from the log alone, without the lake.

For a log table these are the rows that were appended; for a primary-key table the newest row of each key that was
written and not deleted then. If the log has lost the beginning of the range, the rest of it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest, UnsupportedOperation
from forebay.base.quantity import moment_ms
from forebay.client.admin.admin import Admin
from forebay.client.cluster.offsets import EARLIEST, LATEST, list_offsets
from forebay.client.cluster.partitions import PartitionSelector, list_partitions
from forebay.client.row_view import RowView
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import TableBucket
from forebay.unionread.partitions import PartitionFilter
from forebay.unionread.plan import PlanFacts, UnionPlan
from forebay.unionread.reading import UnionReader
from forebay.unionread.splits import LakeSnapshotAndLogSplit, LogSplit, UnionSplit

if TYPE_CHECKING:
    from forebay.client.table import Table

_CLOCK_SECONDS = 1.0
"""How long the server's clock may take to go on by a millisecond: it may be set back meanwhile."""


def plan_time_range(
    table: Table,
    start_ms: int,
    end_ms: int | None = None,
    columns: Sequence[str] | None = None,
    filter: Predicate | None = None,  # noqa: A002 - the word of pyarrow
    limit: int | None = None,
    *,
    partitions: Sequence[PartitionSelector] | PartitionSelector | None = None,
) -> UnionPlan:
    """Return the plan of the records from `start_ms` to before `end_ms` (None: to now), in milliseconds since the
    epoch.

    The time of a record is its commit timestamp, assigned by the log's server. Raises `InvalidRequest` for a range that
    ends before it begins.
    """
    if end_ms is not None and end_ms <= start_ms:
        raise InvalidRequest(f"the range from {start_ms} to {end_ms} ms is empty: its end has to be after its start")
    info, cluster = table.info, table.connection.cluster
    view = RowView(info, columns, filter)
    partition_filter = PartitionFilter(view, partitions)
    buckets = [TableBucket(info.table_id, number) for number in range(info.bucket_count)]
    if info.is_partitioned:
        covered = [
            p for p in list_partitions(cluster, info.path) if partition_filter.covers(tuple(v for _, v in p.spec))
        ]
        ids = sorted(p.partition_id for p in covered)
        buckets = [TableBucket(info.table_id, number, i) for i in ids for number in range(info.bucket_count)]
    splits: list[UnionSplit] = []
    stops: dict[TableBucket, int] = {}
    if buckets:
        starts = offsets_at(table, buckets, start_ms)
        stops = offsets_now(table, buckets) if end_ms is None else offsets_at(table, buckets, end_ms)
        earliest = list_offsets(cluster, info, buckets, EARLIEST)
        for bucket in buckets:
            start, stop = max(starts[bucket], earliest[bucket]), stops[bucket]
            if start >= stop:
                continue
            if info.has_primary_key:
                splits.append(LakeSnapshotAndLogSplit(bucket, (), start, stop))
            else:
                splits.append(LogSplit(bucket, start, stop))
    reader = UnionReader(table.connection.settings, view, limit)
    return UnionPlan(reader, tuple(splits), stops, PlanFacts(partition_filter=partition_filter.predicate))


def offsets_at(table: Table, buckets: Sequence[TableBucket], time_ms: int) -> dict[TableBucket, int]:
    """Return the first offsets written at `time_ms` or later; for a time in the server's future, as `offsets_now`.

    Of each transaction all rows are before them, or none.
    """
    try:
        return list_offsets(table.connection.cluster, table.info, buckets, time_ms)
    except ForebayError as e:
        if e.code != ErrorCode.INVALID_TIMESTAMP_EXCEPTION:
            raise
        return offsets_now(table, buckets)


def offsets_now(table: Table, buckets: Sequence[TableBucket]) -> dict[TableBucket, int]:
    """Return the ends of the logs at one moment. Of each transaction all rows are before them, or none."""
    connection = table.connection
    try:
        now_ms = moment_ms(Admin(connection).describe_server().now, "now")
    except UnsupportedOperation:  # a Fluss cluster, which has no transactions
        return list_offsets(connection.cluster, table.info, buckets, LATEST)
    deadline = connection.clock.monotonic() + _CLOCK_SECONDS
    while True:  # what is written in this very millisecond is to be there, too
        try:
            return list_offsets(connection.cluster, table.info, buckets, now_ms + 1)
        except ForebayError as e:
            if e.code != ErrorCode.INVALID_TIMESTAMP_EXCEPTION or connection.clock.monotonic() >= deadline:
                raise
        connection.clock.sleep(0.001)
