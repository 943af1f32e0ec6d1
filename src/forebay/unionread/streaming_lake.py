"""The lake's part of a stream that begins with the whole table: a snapshot's splits, always in one order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from forebay.base.errors import ErrorCode, NotFound
from forebay.client.results import LakeSnapshot
from forebay.client.views import RowView
from forebay.lake.storage import LakeStorage
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import TableBucket
from forebay.unionread.expired import check_stream_is_complete, successor_of
from forebay.unionread.lake_side import LakeSide
from forebay.unionread.planning import lake_of, readable_snapshot
from forebay.unionread.reading import UnionReader
from forebay.unionread.splits import LakeSnapshotSplit

if TYPE_CHECKING:
    from forebay.client.table import Table


def lake_snapshot_to_begin_with(
    table: Table,
    buckets: Sequence[TableBucket],
    earliest: Callable[[Sequence[TableBucket]], Mapping[TableBucket, int]],
) -> LakeSnapshot | None:
    """Return the newest readable lake snapshot; None if there is none, or if the stream has all rows itself.

    `buckets` are the stream's, `earliest` says where logs begin. A snapshot that another process has expired is
    replaced by one with the same rows, if there is one: the log continues from exact offsets, so a snapshot with later
    changes will not do. Raises `NotFound` (LAKE_SNAPSHOT_NOT_EXIST) for rows that no longer exist anywhere.
    """
    info = table.info
    while True:
        known = readable_snapshot(table)
        if known is None:
            return None
        source = lake_of(info, table.connection.settings).create_source(info.path)
        try:
            source.create_planner(known.snapshot_id).plan()
        except NotFound as e:
            newest = readable_snapshot(table) if e.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST else None
            if newest is None:
                raise
            if newest.snapshot_id != known.snapshot_id:
                continue
        else:
            return known
        later = successor_of(info, source, known.snapshot_id, up_to_now=False)
        if later is not None:
            return replace(known, snapshot_id=later)
        partitions = frozenset(bucket.partition_id for bucket in buckets if bucket.partition_id is not None)
        check_stream_is_complete(info, known, buckets, partitions, lambda _: not info.has_primary_key, earliest)
        return None


def lake_pieces(
    table: Table,
    snapshot_id: int,
    columns: Sequence[str] | None = None,
    predicate: Predicate | None = None,
    *,
    storage: LakeStorage | None = None,
) -> tuple[UnionReader, list[LakeSnapshotSplit]]:
    """Return how a lake snapshot is read, and its splits, in an order that depends only on the snapshot.

    So a stream can record how many of them it has read. For the same reason a filter skips rows and never splits.
    Raises `NotFound` (LAKE_SNAPSHOT_NOT_EXIST) for a snapshot that has expired.
    """
    info = table.info
    view = RowView(info, columns, predicate)
    source = (storage or lake_of(info, table.connection.settings)).create_source(info.path)
    side = LakeSide.of(source, view.read, None)
    reader = UnionReader(
        table.connection.settings, info, None if columns is None else tuple(columns), predicate, None, side
    )
    try:
        splits = side.plan(snapshot_id)
    except NotFound as e:
        if e.code != ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
            raise
        raise NotFound(
            f"a stream of table {info.path} has not read all of lake snapshot {snapshot_id}, which has expired: start "
            "it with another checkpoint, and keep lake snapshots for longer",
            e.code,
        ) from e
    serializer = source.split_serializer()
    return reader, [LakeSnapshotSplit(split) for split in sorted(splits, key=serializer.serialize)]
