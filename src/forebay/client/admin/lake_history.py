"""Whether a lake snapshot that a cluster has registered is the one that the lake has.

Other programs may roll a lake table back, and some formats then reuse snapshot ids. Snapshots are therefore compared by
the name of their offsets (`forebay.lake.tiering`), not by id.
"""

from __future__ import annotations

from forebay.base.errors import ErrorCode, NotFound
from forebay.client.admin.admin import Admin
from forebay.client.results import LakeSnapshot
from forebay.lake.tiering import CommittedLakeSnapshot, has_offsets, inline_offsets
from forebay.metadata.table import TablePath


def has_offsets_of(cluster_snapshot: LakeSnapshot, lake_snapshot: CommittedLakeSnapshot) -> bool:
    """Whether a tiering snapshot of the lake has the offsets that the cluster knows."""
    return has_offsets(lake_snapshot.properties, cluster_snapshot.offsets_name, cluster_snapshot.log_offsets)


def registered_snapshot(
    admin: Admin, path: TablePath, newest: LakeSnapshot, lake_snapshot: CommittedLakeSnapshot
) -> LakeSnapshot | None:
    """Return a tiering snapshot of the lake, older than the cluster's `newest` one, as the cluster registered it.

    None if the cluster never registered it, or has forgotten it.
    """
    if newest.offsets_name is not None and has_offsets_of(
        newest, lake_snapshot
    ):  # the same rows, before they were compacted
        return LakeSnapshot(
            newest.table_id, lake_snapshot.snapshot_id, newest.log_offsets, newest.partition_names, newest.offsets_name
        )
    inline = inline_offsets(lake_snapshot.properties)
    if inline is not None:
        return LakeSnapshot(newest.table_id, lake_snapshot.snapshot_id, inline.offsets, newest.partition_names)
    try:
        cluster_snapshot = admin.lake_snapshot(path, lake_snapshot.snapshot_id)
    except NotFound as e:
        if e.code != ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
            raise
        return None
    if cluster_snapshot.table_id != newest.table_id or not has_offsets_of(cluster_snapshot, lake_snapshot):
        return None
    return cluster_snapshot
