"""Which tiering snapshots are in the history of a Paimon table.

Snapshot ids are dense and a table has one line of them. A rollback deletes the last ones, and the commits after it use
their ids again. So a snapshot that is still there proves that all before it are of the same history, and an id alone
proves nothing: the name of a snapshot's offsets does.
"""

from __future__ import annotations

from forebay.lake.tiering import TIERING_USER, CommittedLakeSnapshot, offsets_name
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.snapshots import SnapshotManager


def newest_tiered(snapshots: SnapshotManager, from_id: int | None = None) -> CommittedLakeSnapshot | None:
    """The newest snapshot of a tiering service with an id of at least `from_id`."""
    snapshot = snapshots.latest_of_user(TIERING_USER, from_id)
    return None if snapshot is None else CommittedLakeSnapshot(snapshot.id, snapshot.properties or {})


def tiering_properties(snapshot: Snapshot) -> dict[str, str]:
    """The properties of a snapshot of a tiering service; none of another writer's."""
    return dict(snapshot.properties or {}) if snapshot.commit_user == TIERING_USER else {}


def was_undone(table: TableContext, snapshot_id: int, name: str | None) -> bool:
    """Whether a tiering snapshot, with this name of its offsets, was rolled back: see `LakeCommitter.was_undone`.

    Of a table with deletion vectors, Fluss registers compactions of other writers, too.
    """
    snapshots = table.snapshots
    snapshot = snapshots.find(snapshot_id)
    if snapshot is None:
        latest = snapshots.latest_id()
        return latest is None or latest < snapshot_id  # otherwise it has expired
    current_name = offsets_name(snapshot.properties or {})
    if current_name is None or snapshot.commit_user != TIERING_USER:
        return not table.options.deletion_vectors_enabled and snapshot.commit_user != TIERING_USER
    return name is not None and current_name != name
