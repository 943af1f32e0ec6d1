"""Which tiering snapshots are in the history of an Iceberg table: the line of parents that ends at the head of `main`.

Others may set `main` to an earlier snapshot, to one of another branch, or to one that they cherry-picked, and replace
the table. What they undo remains in the metadata until it expires, and is not in the history any more. Snapshot ids are
random, so no other snapshot ever gets the same.

The newest tiering snapshot has a tag (`TIERED_TAG`), so it does not expire. Commits of others between it and the head
may: then there is no line of parents from the head to it, and the rows decide (`_has_rows_of`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import LongType

from forebay.lake.source import OFFSET_COLUMN
from forebay.lake.tiering import TIERING_USER, CommittedLakeSnapshot
from forebay.lakes.iceberg_layout import Places, live_files

USER_PROPERTY = "commit-user"
"""The snapshot property with the committing user."""

TIERED_TAG = "forebay-tiered"
"""The tag of the newest tiering snapshot. It moves in the step that makes the snapshot visible."""

Held: TypeAlias = dict[tuple[tuple[str, ...], int], int]
"""By partition values and bucket: the first log offset behind the newest row."""


def history(metadata: TableMetadata) -> Iterator[Snapshot]:
    """The snapshots of the table's history, the newest first, up to where one has expired."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    snapshot = None if metadata.current_snapshot_id is None else by_id.get(metadata.current_snapshot_id)
    while snapshot is not None:
        yield snapshot
        snapshot = None if snapshot.parent_snapshot_id is None else by_id.get(snapshot.parent_snapshot_id)


def newest_tiered(table: Table) -> CommittedLakeSnapshot | None:
    """The newest snapshot of the history that a tiering service committed, ours or Fluss's."""
    metadata = table.metadata
    for snapshot in history(metadata):
        if _is_tiered(snapshot):
            return CommittedLakeSnapshot(snapshot.snapshot_id, summary_of(snapshot))
    tag = metadata.refs.get(TIERED_TAG)
    tagged = None if tag is None else metadata.snapshot_by_id(tag.snapshot_id)
    if tagged is None or not _is_tiered(tagged) or not _precedes_head(table, tagged):
        return None
    return CommittedLakeSnapshot(tagged.snapshot_id, summary_of(tagged))


def was_undone(table: Table, snapshot_id: int) -> bool:
    """Whether a tiering snapshot is not in the history any more: see `LakeCommitter.was_undone`."""
    line = list(history(table.metadata))
    if not line:
        return True
    if any(snapshot.snapshot_id == snapshot_id for snapshot in line) or line[-1].parent_snapshot_id == snapshot_id:
        return False
    tiered = table.metadata.snapshot_by_id(snapshot_id)
    if tiered is None:  # it has expired, if the line of parents does not show that it is another one
        return any(_is_tiered(snapshot) for snapshot in line) or _is_first(line[-1])
    return not _precedes_head(table, tiered)


def _precedes_head(table: Table, snapshot: Snapshot) -> bool:
    """Whether a snapshot that is not on the line of parents is behind it all the same, where others have expired."""
    line = list(history(table.metadata))
    if not line or sequence_of(line[-1]) <= sequence_of(snapshot) or _is_first(line[-1]):
        return False
    return _has_rows_of(table, line[0], snapshot)


def _is_first(snapshot: Snapshot) -> bool:
    """Whether a snapshot begins a table, or a replaced one. (pyiceberg's expiry removes the ids of expired parents.)"""
    if snapshot.parent_snapshot_id is not None or snapshot.summary is None:
        return False
    if snapshot.sequence_number == 1:
        return True
    summary = summary_of(snapshot)
    is_append = snapshot.summary.operation is Operation.APPEND
    return is_append and summary.get("total-records") == summary.get("added-records")


def _has_rows_of(table: Table, head: Snapshot, snapshot: Snapshot) -> bool:
    """Whether `head` has rows that the tiering snapshot added, in its files or in those of a compaction.

    If it added none and deleted some, `head` has its files of deletes: where a compaction has applied these, they are
    taken for undone, and done again. If it changed nothing, `head` has as much of each log.
    """
    metadata, io = table.metadata, table.io
    live = live_files(metadata, head, io)
    current = _held_by(metadata, (f.file for f in live))
    added = _added_files(snapshot, io, ManifestContent.DATA)
    if added:
        before = _held_by(metadata, added)
        has_files = bool({f.file_path for f in added} & {f.file.file_path for f in live})
        return has_files or not before or any(current.get(place, 0) >= offset for place, offset in before.items())
    deletes = _added_files(snapshot, io, ManifestContent.DELETES)
    if deletes:
        return bool({f.file_path for f in deletes} & {delete.path for f in live for delete in f.deletes})
    before = _held_by(metadata, (f.file for f in live_files(metadata, snapshot, io)))
    return all(current.get(place, 0) >= offset for place, offset in before.items())


def _added_files(snapshot: Snapshot, io: FileIO, content: ManifestContent) -> list[DataFile]:
    return [
        entry.data_file
        for manifest in snapshot.manifests(io)
        if manifest.added_snapshot_id == snapshot.snapshot_id and manifest.content is content
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
        if entry.snapshot_id == snapshot.snapshot_id
    ]


def held_offsets(table: Table, snapshot: Snapshot) -> Held | None:
    """How much of each bucket's log a snapshot has at least, by the statistics of its files.

    None for a table without a key if the statistics do not say: with a lower number, rows would be added twice.
    """
    files = [f.file for f in live_files(table.metadata, snapshot, table.io)]
    if not table.metadata.schema().identifier_field_ids and not all(_tells_offset(table.metadata, f) for f in files):
        return None
    return _held_by(table.metadata, files)


def _tells_offset(metadata: TableMetadata, file: DataFile) -> bool:
    """Whether statistics of a file have the newest log offset of its rows. (Others may not write any, and Java writes
    those of the first 100 columns.) Rows of others have none."""
    field_id = _offset_field(metadata)
    without = (file.null_value_counts or {}).get(field_id, 0)
    return field_id in (file.upper_bounds or {}) or file.record_count == without


def _held_by(metadata: TableMetadata, files: Iterable[DataFile]) -> Held:
    places, offsets = Places(metadata), Held()
    field_id = _offset_field(metadata)
    for file in files:
        bound = (file.upper_bounds or {}).get(field_id)
        if bound is not None:
            bucket, values = places.of(file)
            newest = int(from_bytes(LongType(), bound))
            offsets[values, bucket] = max(offsets.get((values, bucket), 0), newest + 1)
    return offsets


def _offset_field(metadata: TableMetadata) -> int:
    return metadata.schema().find_field(OFFSET_COLUMN).field_id


def _is_tiered(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary[USER_PROPERTY] == TIERING_USER


def tiering_properties(snapshot: Snapshot) -> dict[str, str]:
    """The properties of a snapshot of a tiering service; none of another writer's."""
    return summary_of(snapshot) if _is_tiered(snapshot) else {}


def summary_of(snapshot: Snapshot) -> dict[str, str]:
    """The properties of a snapshot, none without a summary."""
    return {} if snapshot.summary is None else dict(snapshot.summary.additional_properties)


def sequence_of(snapshot: Snapshot) -> int:
    """The sequence number of a snapshot, 0 in tables of format version 1."""
    return snapshot.sequence_number or 0
