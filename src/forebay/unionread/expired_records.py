"""Records that have expired in the log of a table without a primary key: the lake has them, with their offsets.

A stream that was stopped for longer than the log retains records goes on with those of the lake. Its rows there have
the columns `__bucket` and `__offset`, unless the table was created without them. Lake tables with a primary key have
only the newest row of each key, so they cannot stand in for a changelog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from forebay.base.errors import ErrorCode, NotFound
from forebay.client.row_view import RowView
from forebay.lake.source import BUCKET_COLUMN, OFFSET_COLUMN, LakeSource, LakeSplit
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import TableBucket
from forebay.unionread.lake_side import RecordSide, in_range
from forebay.unionread.open_lakes import lake_of
from forebay.unionread.partitions import PartitionMatch
from forebay.unionread.reading import UnionReader
from forebay.unionread.splits import LakeRecordsSplit
from forebay.unionread.streaming import lake_snapshot_to_begin_with

if TYPE_CHECKING:
    from forebay.client.table import Table

SPLIT_RECORDS = 1 << 18
"""The records of a split are in memory together, to be put in order."""


def lake_records(
    table: Table,
    expired: Mapping[TableBucket, tuple[int, int]],
    earliest: Mapping[TableBucket, int],
    columns: Sequence[str] | None = None,
    predicate: Predicate | None = None,
) -> tuple[UnionReader, list[LakeRecordsSplit]]:
    """Return how the records of `expired`, offsets (from, to) by bucket, are read from the lake, and the splits.

    `earliest` is where the logs of all these buckets begin. Reading a split raises `NotFound` if the lake does not have
    each of its records. Raises `NotFound` if the lake has none, or does not reach as far.
    """
    info = table.info
    if info.has_primary_key or not info.lake_enabled:
        raise _missing("the table has a primary key" if info.has_primary_key else "the table has no lake")
    found = lake_snapshot_to_begin_with(table, list(expired), lambda buckets: {b: earliest[b] for b in buckets})
    if found is None:
        raise _missing("the lake has no snapshot of the table")
    snapshot = found[0]
    for bucket, (_, stop) in expired.items():
        if snapshot.log_offsets.get(bucket, 0) < stop:
            raise _missing(f"the lake has bucket {bucket.bucket} only to offset {snapshot.log_offsets.get(bucket, 0)}")
    source = lake_of(table).create_source(info.path)
    if not {BUCKET_COLUMN, OFFSET_COLUMN} <= set(source.schema.names):
        raise _missing(f"the lake table has no columns {BUCKET_COLUMN} and {OFFSET_COLUMN}")
    view = RowView(info, columns, predicate)
    side = RecordSide.of_records(source, view.read)
    partitions = PartitionMatch(info, table.partitions()) if info.is_partitioned else None
    splits = []
    for bucket, (first, stop) in expired.items():
        for start in range(first, stop, SPLIT_RECORDS):
            end = min(start + SPLIT_RECORDS, stop)
            lake = _splits_of(side.source, snapshot.snapshot_id, bucket, partitions, start, end)
            splits.append(LakeRecordsSplit(bucket, tuple(lake), start, end))
    return UnionReader(table.connection.settings, view, None, side), splits


def _splits_of(
    source: LakeSource, snapshot_id: int, bucket: TableBucket, partitions: PartitionMatch | None, start: int, stop: int
) -> list[LakeSplit]:
    splits = source.with_filters(in_range(bucket.bucket, start, stop)).source.create_planner(snapshot_id).plan()
    if partitions is None:
        return splits
    return [split for split in splits if partitions.find(split.partition()) == bucket.partition_id]


def _missing(why: str) -> NotFound:
    return NotFound(f"its lake cannot stand in: {why}", ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION)
