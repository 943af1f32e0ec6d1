"""The lake's part of a stream that begins with the whole table: a snapshot's splits, always in one order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forebay.base.errors import ErrorCode, NotFound
from forebay.client.views import RowView
from forebay.lake.storage import LakeStorage
from forebay.metadata.predicate import Predicate
from forebay.unionread.lake_side import LakeSide
from forebay.unionread.planning import lake_of
from forebay.unionread.reading import UnionReader
from forebay.unionread.splits import LakeSnapshotSplit

if TYPE_CHECKING:
    from forebay.client.table import Table


def lake_pieces(
    table: Table,
    snapshot_id: int,
    columns: Sequence[str] | None = None,
    predicate: Predicate | None = None,
    *,
    storage: LakeStorage | None = None,
) -> tuple[UnionReader, list[LakeSnapshotSplit]]:
    """How a lake snapshot is read, and its splits, in an order that depends on nothing but the snapshot.

    So a stream can say how many of them it has read. For the same reason a filter leaves out rows and never splits.
    Raises `NotFound` (LAKE_SNAPSHOT_NOT_EXIST) for a snapshot that has expired.
    """
    info = table.info
    view = RowView(info, columns, predicate)
    source = (storage or lake_of(info)).create_source(info.path)
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
            "it anew with another checkpoint, and keep lake snapshots for longer",
            e.code,
        ) from e
    serializer = source.split_serializer()
    return reader, [LakeSnapshotSplit(split) for split in sorted(splits, key=serializer.serialize)]
