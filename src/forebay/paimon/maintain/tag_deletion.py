"""Deleting tags and the files that only they needed; expiry of tags by time."""

from __future__ import annotations

from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.maintain.deletion import Deleted, Deletion
from forebay.paimon.maintain.references import References, changelogs_of, other_branches
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.tags import Tag


class TagDeletion:
    """Deletes tags of one branch. Not thread-safe.

    The tag file is deleted first. If the process crashes after that, the files that only the tag needed become orphans.
    """

    def __init__(self, table: TableContext) -> None:
        self._table, self._tags = table, table.tags
        self._references = References(table.manifests)

    def delete(self, name: str) -> Deleted:
        """Delete tag `name`. Raises `NotFound`."""
        return self._delete(self._tags.tag(name))

    def delete_unchanged(self, expected: Tag) -> bool:
        """Delete a tag unless it differs from `expected` by now; return whether it was deleted."""
        if self._tags.find(expected.name) != expected:
            return False
        self._delete(expected)
        return True

    def _delete(self, tag: Tag) -> Deleted:
        name = tag.name
        others = [t.snapshot for t in self._tags.tags() if t.name != name]
        self._tags.delete(name)
        if any(other.id == tag.snapshot.id for other in others) or self._table.snapshots.exists(tag.snapshot.id):
            return Deleted()
        return self._clean(tag.snapshot, others)

    def expire(self, older_than_ms: int | None = None, *, dry_run: bool = False) -> list[str]:
        """Delete expired tags and those created before `older_than_ms` (since the epoch); return their names.

        With `dry_run` they are only returned.
        """
        by_name = {tag.name: tag for tag in self._tags.tags()}
        expired = [tag.name for tag in self._tags.expired()]
        if older_than_ms is not None:
            expired += [name for name in self._tags.created_before(older_than_ms) if name not in expired]
        if dry_run:
            return expired
        return [name for name in expired if name in by_name and self.delete_unchanged(by_name[name])]

    def _clean(self, deleted: Snapshot, others: list[Snapshot]) -> Deleted:
        """Delete the files that `deleted` needs and its neighbours (adjacent tags, the first snapshot) do not."""
        earliest_id = self._table.snapshots.earliest_id()
        neighbours = [s for s in others if s.id < deleted.id][-1:]
        behind = [s for s in others if s.id > deleted.id][:1]
        if earliest_id is not None and (not behind or earliest_id < behind[0].id):
            behind = [self._table.snapshots.snapshot(earliest_id)]
        neighbours += behind
        histories = [self._references.of_history(other) for other in other_branches(self._table)]
        data: set[str] = set().union(*(d for d, _ in histories))
        names: set[str] = set().union(*(n for _, n in histories))
        for snapshot in neighbours:
            data |= self._references.live(snapshot)
            names |= self._references.metadata(snapshot, with_changelog=False)
        for changelog in changelogs_of(self._table):
            names |= self._references.changelog_metadata(changelog)
            data |= {self._references.data_path(e) for e in self._references.deleted_by(changelog)}
        deletion = Deletion(self._table, self._references)
        deletion.data_files(self._references.merged(deleted), data)
        if CoreOptions(self._table.schema.options).snapshot_clean_empty_directories:
            deletion.empty_directories()
        deletion.metadata(deleted, names, data_lists=True, changelog=False)
        return deletion.deleted
