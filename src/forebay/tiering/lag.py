"""How far the lake side of a table lags behind its log, measured now, whichever service tiers it."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.base.errors import ErrorCode, NotFound
from forebay.client.admin.admin import Admin
from forebay.client.cluster.buckets import plan_buckets
from forebay.client.cluster.offsets import EARLIEST, LATEST, list_offsets
from forebay.client.connection import Connection
from forebay.client.results import LakeSnapshot
from forebay.metadata.table import TableBucket, TableInfo, TablePath


@dataclass(frozen=True, slots=True)
class TableLag:
    """The part of a table's log that the lake does not have.

    `snapshot_id` is the newest lake snapshot that the cluster knows, None without one. `records` counts log offsets,
    `seconds` is the age of the oldest record among them; both are 0 if the lake has everything. `seconds` is None if it
    was not measured, because too many buckets are behind.
    """

    path: TablePath
    snapshot_id: int | None
    records: int
    seconds: float | None


def table_lag(connection: Connection, path: str | TablePath, buckets_max: int | None = None) -> TableLag:
    """Return the lag of one table, by reading the first record of each bucket that the lake does not have.

    If more than `buckets_max` buckets are behind, none is read.
    """
    info = connection.cluster.table_info(TablePath.parse(path))
    buckets = plan_buckets(connection.cluster, info)
    latest = list_offsets(connection.cluster, info, buckets, LATEST)
    snapshot = newest_lake_snapshot(connection.admin, info)
    tiered = {} if snapshot is None else snapshot.log_offsets
    behind = {bucket: end for bucket, end in latest.items() if end > tiered.get(bucket, 0)}
    snapshot_id = None if snapshot is None else snapshot.snapshot_id
    records = sum(end - tiered.get(bucket, 0) for bucket, end in behind.items())
    if buckets_max is not None and len(behind) > buckets_max:
        return TableLag(info.path, snapshot_id, records, None)
    earliest = list_offsets(connection.cluster, info, list(behind), EARLIEST) if behind else {}
    starts = {bucket: max(tiered.get(bucket, 0), earliest[bucket]) for bucket in behind}
    first = [_first_ms(connection, info, bucket, starts[bucket], end) for bucket, end in behind.items()]
    oldest = [ms for ms in first if ms is not None]
    return TableLag(
        info.path,
        snapshot_id,
        records,
        max(connection.clock.now_ms() - min(oldest), 0) / 1000 if oldest else 0.0,
    )


def newest_lake_snapshot(admin: Admin, info: TableInfo) -> LakeSnapshot | None:
    """Return the newest lake snapshot that the cluster knows; None if it knows none."""
    try:
        return admin.lake_snapshot(info.path)
    except NotFound as e:
        if e.code != ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
            raise
        return None


def _first_ms(connection: Connection, info: TableInfo, bucket: TableBucket, start: int, end: int) -> int | None:
    """Return when the first record of a log range was written; None if it has no records."""
    columns = info.schema.names[:1]
    with connection.table(info).changes(
        {bucket: start}, {bucket: end}, columns=columns, include=("timestamp",)
    ) as reader:
        first = next(iter(reader), None)
    return None if first is None else first.column(0)[0].value
