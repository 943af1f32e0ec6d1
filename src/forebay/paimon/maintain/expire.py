"""Snapshot expiry: deletes old snapshots and the files that no snapshot, tag, branch or changelog needs any longer.

The order makes expiry crash-safe: first data files (readers of expiring snapshots get an error; others are not
affected), then manifests, then the snapshot files, oldest first. The next run finds the same snapshots and finishes the
job.

If options let changelogs live longer than snapshots (`changelog.*` above `snapshot.*`), an expired snapshot leaves
`changelog/changelog-<id>` and the files of its changes, which `expire_changelogs` deletes later.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forebay.base.errors import InvalidRequest
from forebay.base.lake_events import LakeRemoval, table_of, tell
from forebay.base.progress import OnProgress, no_progress
from forebay.paimon.format.file_meta import FileSource, ManifestEntry
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.maintain.deletion import Deleted, Deletion
from forebay.paimon.maintain.references import References, changelogs_of, other_branches
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.paths import EARLIEST, LATEST


@dataclass(frozen=True)
class Retention:
    """The retention: between `least` and `most` are kept, and those younger than `time_ms`; at most `limit` expire."""

    least: int
    most: int
    time_ms: int
    limit: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise InvalidRequest(
                f"at least 1 is kept, and the most to keep is not below the least: got at least {self.least} and at "
                f"most {self.most}"
            )

    @classmethod
    def of_snapshots(cls, o: CoreOptions) -> Retention:
        limit = o.snapshot_expire_limit
        return cls(o.snapshot_num_retained_min, o.snapshot_num_retained_max, o.snapshot_time_retained_ms, limit)

    @classmethod
    def of_changelogs(cls, o: CoreOptions) -> Retention:
        limit = o.snapshot_expire_limit
        return cls(o.changelog_num_retained_min, o.changelog_num_retained_max, o.changelog_time_retained_ms, limit)


@dataclass(frozen=True)
class Expired:
    """The result of an expiry: the number of expired snapshots (or changelogs) and of deleted files."""

    count: int = 0
    files: Deleted = field(default_factory=Deleted)


class SnapshotExpiry:
    """Expires the snapshots of one branch. Not thread-safe, but several processes may run it at the same time."""

    def __init__(self, table: TableContext, progress: OnProgress = no_progress) -> None:
        """`progress` is in snapshots."""
        self._table, self._progress = table, progress
        self._options, self._snapshots = table.options, table.snapshots
        self._references = References(table.manifests)
        self._decoupled = self._options.changelog_decoupled
        self._logs_changes = self._options.changelog_producer != "none"

    def expire(self, retention: Retention | None = None, keep_from: int | None = None) -> Expired:
        """Expire what `retention` (default: the table's options) allows, but no snapshot from `keep_from` on."""
        consumers_ms = self._options.consumer_expiration_time_ms
        if consumers_ms is not None:
            self._table.consumers.expire(self._table.clock.now_ms() - consumers_ms)
        due = self.due(retention, keep_from)
        return Expired() if due is None else self.expire_until(due.start, due.stop)

    def due(self, retention: Retention | None = None, keep_from: int | None = None) -> range | None:
        """The ids of the snapshots that `expire` would delete; None for a table without snapshots."""
        retain = retention or Retention.of_snapshots(self._options)
        latest, earliest = self._snapshots.latest_id(), self._snapshots.earliest_id()
        if latest is None or earliest is None:
            return None
        end = latest - retain.least + 1 if keep_from is None else min(latest - retain.least + 1, keep_from)
        if not self._options.consumer_changelog_only:
            consumed_from = self._table.consumers.least_next_snapshot()
            end = end if consumed_from is None else min(end, consumed_from)
        end = min(end, earliest + retain.limit)
        old = self._table.clock.now_ms() - retain.time_ms
        for snapshot_id in range(max(latest - retain.most + 1, earliest), end):
            following = self._snapshots.find(snapshot_id + 1)
            # A snapshot expires only when the next one, which replaced it, is old enough.
            if following is not None and following.time_millis >= old:
                end = snapshot_id
                break
        return range(earliest, end)

    def expire_until(self, earliest: int, end: int) -> Expired:
        """Expire the snapshots from `earliest` up to `end` (exclusive). Does nothing if `end` does not exist."""
        snapshots = [s for s in map(self._snapshots.find, range(earliest, end + 1)) if s is not None]
        going = snapshots[:-1]
        if not going or snapshots[-1].id != end:
            return Expired()
        first_kept = snapshots[-1]
        histories = [self._references.of_history(other) for other in other_branches(self._table)]
        elsewhere: set[str] = set().union(*(data for data, _ in histories))
        deletion = Deletion(self._table, self._references)
        tags = self._table.tags.tagged_snapshots()  # last: to read other branches may take long
        live_in_tag: dict[int, set[str]] = {}
        # Files that a snapshot removed are needed only by earlier ones: skip the first, but include the first kept.
        for done, snapshot in enumerate(snapshots[1:]):
            self._progress(done, len(going))
            earlier = _before(tags, snapshot.id)
            if earlier is not None and earlier.id not in live_in_tag:
                live_in_tag = {earlier.id: elsewhere | self._references.live(earlier)}
            protected = live_in_tag[earlier.id] if earlier is not None else elsewhere
            deletion.data_files(self._unneeded(snapshot), protected)
        if not self._decoupled:
            for snapshot in going:
                deletion.data_files(self._references.changelog_of(snapshot), elsewhere)
        if self._options.snapshot_clean_empty_directories:
            deletion.empty_directories()
        names: set[str] = set().union(*(names for _, names in histories))
        for tag in _needed_tags(tags, earliest, end):
            names |= self._references.metadata(tag, with_changelog=False)
        names |= self._references.metadata(first_kept)
        for snapshot in going:
            deletion.metadata(
                snapshot,
                names,
                data_lists=not self._decoupled or self._logs_changes,
                changelog=not self._decoupled,
            )
        self._drop(going, end)
        self._progress(len(going), len(going))
        files = deletion.deleted.data_files + deletion.deleted.metadata_files
        tell(LakeRemoval(table_of(self._table.paths.root), len(going), files))
        return Expired(len(going), deletion.deleted)

    def _unneeded(self, snapshot: Snapshot) -> list[ManifestEntry]:
        """The data files that `snapshot` removed, except those that are still needed as changelog."""
        removed = self._references.deleted_by(snapshot)
        if not self._decoupled or self._logs_changes:
            return removed
        return [e for e in removed if e.file.file_source is FileSource.COMPACT]

    def _drop(self, going: list[Snapshot], end: int) -> None:
        for snapshot in going:
            if self._decoupled:
                self._snapshots.write_changelog(snapshot)
                self._snapshots.changelogs.write_hint(LATEST, snapshot.id)
            self._snapshots.delete(snapshot.id)
        self._snapshots.write_earliest_hint(end)


class ChangelogExpiry:
    """Expires the long-lived changelogs of one branch. Not thread-safe."""

    def __init__(self, table: TableContext) -> None:
        self._table, self._options, self._snapshots = table, table.options, table.snapshots
        self._references = References(table.manifests)

    def expire(self, retention: Retention | None = None) -> Expired:
        """Expire what `retention` (default: the table's options) allows. Its counts include snapshots."""
        retain = retention or Retention.of_changelogs(self._options)
        logs = self._snapshots.changelogs
        latest, earliest_snapshot = self._snapshots.latest_id(), self._snapshots.earliest_id()
        first, last = logs.earliest(), logs.latest()
        if latest is None or earliest_snapshot is None or first is None or last is None:
            return Expired()
        end = min(latest - retain.least + 1, first + retain.limit, last)
        consumed_from = self._table.consumers.least_next_snapshot()
        end = end if consumed_from is None else min(end, consumed_from)
        old = self._table.clock.now_ms() - retain.time_ms
        by_id = {c.id: c for c in changelogs_of(self._table)}
        for changelog_id in range(max(latest - retain.most + 1, first), end + 1):
            changelog = by_id.get(changelog_id)
            if changelog is not None and changelog.time_millis >= old:
                end = changelog_id
                break
        going = [by_id[i] for i in range(first, end) if i in by_id]
        if not going or end not in by_id:
            return Expired()
        return self._delete(going, [c for c in by_id.values() if c.id >= end], earliest_snapshot, end)

    def _delete(self, going: list[Snapshot], staying: list[Snapshot], earliest_snapshot: int, end: int) -> Expired:
        histories = [self._references.of_history(other) for other in other_branches(self._table)]
        elsewhere: set[str] = set().union(*(data for data, _ in histories))
        names: set[str] = set().union(*(names for _, names in histories))
        tags = self._table.tags.tagged_snapshots()  # last: to read other branches may take long
        for tag in _needed_tags(tags, going[0].id, end):
            names |= self._references.metadata(tag, with_changelog=False)
        names |= self._references.metadata(self._snapshots.snapshot(earliest_snapshot))
        for changelog in staying:
            names |= self._references.changelog_metadata(changelog)
        deletion = Deletion(self._table, self._references)
        for changelog in going:
            if changelog.changelog_manifest_list is not None:
                deletion.data_files(self._references.changelog_of(changelog), elsewhere)
                deletion.manifest_list(changelog.changelog_manifest_list, names)
            else:
                earlier = _before(tags, changelog.id)
                protected = elsewhere if earlier is None else elsewhere | self._references.live(earlier)
                deletion.data_files(self._references.deleted_by(changelog), protected)
                for name in (changelog.base_manifest_list, changelog.delta_manifest_list):
                    deletion.manifest_list(name, names)
            self._table.io.delete(self._snapshots.changelogs.path(changelog.id))
        self._snapshots.changelogs.write_hint(EARLIEST, end)
        if self._options.snapshot_clean_empty_directories:
            deletion.empty_directories()
        return Expired(len(going), deletion.deleted)


def _before(tags: list[Snapshot], snapshot_id: int) -> Snapshot | None:
    """The last tagged snapshot before `snapshot_id`; `tags` are ordered by id."""
    return next((tag for tag in reversed(tags) if tag.id < snapshot_id), None)


def _needed_tags(tags: list[Snapshot], start: int, end: int) -> list[Snapshot]:
    """The tagged snapshots that may share manifests with snapshots from `start` up to `end` (exclusive)."""
    earlier = [tag for tag in tags if tag.id <= start]
    return [*earlier[-1:], *(tag for tag in tags if start < tag.id < end)]
