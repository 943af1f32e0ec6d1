"""Rollback: make an older snapshot, or a tagged one, the latest again.

Later snapshots are deleted from the last to the first, so that concurrent readers, and readers after a crash, see a
history without gaps. Repeating an interrupted rollback completes it. The data files of deleted snapshots become
orphans. There must be no concurrent commit.
"""

from __future__ import annotations

from dataclasses import replace

from forebay.base.errors import NotFound
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.format.snapshot_json import format_snapshot
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.paths import EARLIEST, LATEST


class Rollback:
    """Rolls back one branch. Not thread-safe."""

    def __init__(self, table: TableContext, *, dry_run: bool = False) -> None:
        """With `dry_run`, nothing is deleted; the snapshot that would be the latest is returned."""
        self._table, self._dry_run = table, dry_run
        self._snapshots = table.snapshots

    def to_snapshot(self, snapshot_id: int) -> Snapshot:
        """Delete everything after snapshot `snapshot_id`. Raises `NotFound`."""
        target = self._snapshots.snapshot(snapshot_id)
        self._drop_behind(target)
        return target

    def to_tag(self, name: str) -> Snapshot:
        """Delete everything after the snapshot of tag `name`, restoring that if it had expired. Raises `NotFound`."""
        target = self._table.tags.tag(name).snapshot
        if not self._dry_run and not self._snapshots.exists(target.id):
            if not self._snapshots.changelogs.exists(target.id):  # a tag keeps only the rows; the changelog has expired
                target = replace(
                    target, changelog_manifest_list=None, changelog_manifest_list_size=None, changelog_record_count=None
                )
            self._table.io.write(self._table.paths.snapshot(target.id), format_snapshot(target))
            self._snapshots.write_earliest_hint(target.id)
        self._drop_behind(target)
        return target

    def to_timestamp(self, millis: int) -> Snapshot:
        """Drop all snapshots made after `millis` (since the epoch). Raises `NotFound` if that means all of them."""
        target = self._snapshots.at_or_before(millis)
        if target is None:
            raise NotFound(f"{self._table.paths.root} has no snapshot as old as {millis} ms since 1970")
        return self.to_snapshot(target.id)

    def _drop_behind(self, target: Snapshot) -> None:
        if self._dry_run:
            return
        # The hint is written last: a restored tag snapshot is followed by a gap, which hides later snapshots from
        # readers of the hint. Their commits would meet the old snapshots again.
        for snapshot_id in sorted((i for i in self._snapshots.ids() if i > target.id), reverse=True):
            self._snapshots.delete(snapshot_id)
        self._snapshots.write_latest_hint(target.id)
        logs = self._snapshots.changelogs
        dropped = sorted((i for i in logs.ids() if i > target.id), reverse=True)
        for changelog_id in dropped:
            self._table.io.delete(logs.path(changelog_id))
        log_ids = logs.ids() if dropped else []
        if log_ids:
            logs.write_hint(LATEST, log_ids[-1])
        elif dropped:
            logs.delete_hint(LATEST)
            logs.delete_hint(EARLIEST)
        for tag in self._table.tags.tags():
            if tag.snapshot.id > target.id:
                self._table.tags.delete(tag.name)
