"""Handing over a lake table from one cluster to another.

A lake snapshot belongs to a stream table: it contains log offsets, which are those of one cluster. So the lake table is
handed over by an additional snapshot, without rows, with the offsets of the new cluster. It is created like a tiering
round (`forebay.tiering.round`): the new cluster stores the offsets, the lake commits a snapshot with their path, and it
is registered with the new cluster. From that commit on, rounds of the old cluster are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping

from forebay.base.errors import Conflict, ErrorCode, NotFound, UnsupportedOperation
from forebay.client.admin.lake import LakeTieringClient
from forebay.lake.storage import LakeStorage
from forebay.lake.tiering import OFFSETS_PROPERTY, TABLE_PROPERTY, CommittedLakeSnapshot, CommitterContext, belongs_to
from forebay.metadata.table import TableBucket
from forebay.moving.plan import Place, Side
from forebay.protocol.api import ApiKey


def check_readable(storage: LakeStorage, source: Side, target: Side) -> None:
    """Raise `UnsupportedOperation` if the target's release cannot read the lake table."""
    columns = storage.create_source(source.info.path).schema.names
    if "__timestamp" in columns or _is_newer_than_0_9(target):
        return
    raise UnsupportedOperation(
        f"the lake table of {source.info.path} has no system columns (__bucket, __offset, __timestamp), which the "
        "target's release of Fluss needs to read and tier it; new lake tables have them unless "
        "'paimon.forebay.system-columns' is false (docs/lake.md): copy the rows into a new table"
    )


def _is_newer_than_0_9(target: Side) -> bool:
    """Whether a cluster offers a feature later than 0.9.1, like Forebay's servers do: the scans of FIP-17."""
    cluster = target.connection.cluster
    return any(cluster.channel(n).versions.offers(ApiKey.SCAN_KV) for n in cluster.view.tablet_servers.values())


def newest_snapshot(storage: LakeStorage, side: Side) -> CommittedLakeSnapshot | None:
    """The newest tiering snapshot, from any cluster."""
    committer = storage.create_tiering_factory().create_committer(CommitterContext(side.info, 0, None))
    try:
        return committer.get_missing_lake_snapshot(None)
    finally:
        committer.close()


def belongs_to_side(snapshot: CommittedLakeSnapshot | None, side: Side) -> bool:
    """Whether Forebay created the snapshot for this side's table."""
    return snapshot is not None and TABLE_PROPERTY in snapshot.properties and belongs_to(snapshot.properties, side.info)


def hand_over(storage: LakeStorage, source: Side, target: Side, offsets: Mapping[Place, int]) -> int:
    """Commit the lake snapshot that hands the lake table over to the target, and return its id.

    `offsets`: the end offsets of the target's logs in the snapshot. Raises `Conflict`, without any change, if another
    worker committed a round meanwhile.
    """
    recorded, newest = source.lake_snapshot, newest_snapshot(storage, source)
    if (recorded is None) != (newest is None) or (recorded and newest and recorded.snapshot_id != newest.snapshot_id):
        raise Conflict(
            f"the newest snapshot of the lake table of {source.info.path} is {newest and newest.snapshot_id}, and its "
            f"cluster knows {recorded and recorded.snapshot_id}: bring it up to date first (forebay tiering --once)",
            ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION,
        )
    end_offsets: dict[TableBucket, int] = {target.buckets[place]: offset for place, offset in offsets.items()}
    tiering = LakeTieringClient(target.connection)
    path = tiering.prepare(target.info, end_offsets, merge=False)
    base = None if newest is None else newest.snapshot_id
    context = CommitterContext(target.info, 0, base, takes_over=True)
    committer = storage.create_tiering_factory().create_committer(context)
    try:
        result = committer.commit([], {OFFSETS_PROPERTY: path})
    finally:
        committer.close()
    _register(tiering, target, result.snapshot_id, path, end_offsets)
    return result.snapshot_id


def register_again(snapshot: CommittedLakeSnapshot, target: Side, offsets: Mapping[Place, int]) -> int:
    """Register a lake snapshot with the target if the move was interrupted before, and return its id."""
    path = snapshot.properties.get(OFFSETS_PROPERTY)
    if path is None:
        raise NotFound(f"lake snapshot {snapshot.snapshot_id} of {target.info.path} names no offsets")
    end_offsets = {target.buckets[place]: offset for place, offset in offsets.items()}
    _register(LakeTieringClient(target.connection), target, snapshot.snapshot_id, path, end_offsets)
    return snapshot.snapshot_id


def _register(
    tiering: LakeTieringClient, target: Side, snapshot_id: int, path: str, end_offsets: Mapping[TableBucket, int]
) -> None:
    tiering.commit(target.info, snapshot_id, path, readable_path=path, log_end_offsets=end_offsets)
