"""The retry loop of one commit, from the first attempt to success or failure (`CommitLoop`).

`forebay.paimon.commit.committer` has the rule that each attempt follows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from forebay.base.errors import (
    Conflict,
    ForebayError,
    NotFound,
    OutcomeUnknown,
    StorageFailure,
    Unavailable,
    UnsupportedOperation,
)
from forebay.base.lake_events import LakeCommit, is_heard, table_of, tell
from forebay.base.retrying import backoff
from forebay.paimon.commit.conflicts import ConflictChecker
from forebay.paimon.commit.file_changes import Changes, record_count
from forebay.paimon.commit.index_files import combine_index_files
from forebay.paimon.format.file_meta import FileKind, ManifestEntry, ManifestFileMeta
from forebay.paimon.format.schema_json import parse_schema
from forebay.paimon.format.snapshot import FIRST_SNAPSHOT_ID, CommitKind, Snapshot
from forebay.paimon.format.snapshot_json import format_snapshot
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.lock import CommitGuard, create_exclusively
from forebay.paimon.store.manifest_merge import ManifestMerge, merge_manifests
from forebay.paimon.store.manifests import PartitionPruner, merge_entries
from forebay.paimon.store.paths import new_uuid
from forebay.paimon.store.schemas import SchemaManager

WRITER_VERSION = "forebay"

_JITTER = 0.2
"""The maximum share by which the wait before another try is extended at random."""

_NOTHING_MERGED = ManifestMerge((), ())

ChangesProvider = Callable[[Snapshot | None], Changes]


class _Dropped(Conflict):
    """Raised if the table of the commit was dropped."""


class _Overtaken(Exception):
    """Raised if the snapshot that a commit builds on was rolled back; the commit starts again."""


@dataclass(frozen=True)
class CommitRequest:
    """The contents of the snapshot besides the changes.

    `fixed_changes`: the changes do not depend on the latest snapshot. `merge_manifests`: merge all manifests that can
    be merged.
    """

    kind: CommitKind
    identifier: int
    watermark: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    check_conflicts: bool = False
    fixed_changes: bool = True
    merge_manifests: bool = False
    statistics: str | None = None


@dataclass
class _Delta:
    """The manifests of the changes themselves, reused by later attempts while the changes stay the same."""

    files: tuple[str, int] | None = None
    changelog: tuple[str, int] | None = None
    manifests: list[ManifestFileMeta] = field(default_factory=list)
    entries: list[ManifestEntry] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        lists = [pair[0] for pair in (self.files, self.changelog) if pair is not None]
        return [*lists, *(m.file_name for m in self.manifests)]


@dataclass
class _Base:
    """The base manifests written for one commit attempt."""

    merge: ManifestMerge = _NOTHING_MERGED
    manifest_list: tuple[str, int] | None = None
    index: str | None = None

    @property
    def names(self) -> list[str]:
        return [name for name in (self.manifest_list and self.manifest_list[0], self.index) if name is not None]


class CommitContext:
    """State that all commits of one user to a table share: its files, the lock, and the check for conflicts."""

    def __init__(self, table: TableContext, user: str, lock: CommitGuard | None) -> None:
        self.snapshots, self.manifests = table.snapshots, table.manifests
        self.schemas = SchemaManager(table.io, table.paths)  # the table's manager caches schemas
        self.user, self.lock, self.clock, self.ids = user, lock, table.clock, table.paths.ids
        self.checker = ConflictChecker(table.schema, user)


class CommitLoop:
    """Tries one commit until it succeeds, conflicts, or reaches `commit.max-retries` or `commit.timeout`."""

    def __init__(self, context: CommitContext, request: CommitRequest, provider: ChangesProvider) -> None:
        """`provider` returns the changes to apply to the latest snapshot; every attempt calls it."""
        self._context, self._request, self._provider = context, request, provider
        self._snapshots, self._manifests = context.snapshots, context.manifests
        self._delta: _Delta | None = None
        self._merge: ManifestMerge | None = None  # of a lost attempt; the next one may reuse it
        self._merge_again = True
        self._retries = 0
        self._files_before = 0

    def run(self) -> Snapshot:
        """Commit the request and return its snapshot.

        Raises `Conflict` (nothing committed, manifests deleted), `OutcomeUnknown` (nothing deleted) or `StorageFailure`
        (nothing committed).
        """
        if not is_heard():
            return self._attempt_until_committed()
        began, outcome = self._context.clock.monotonic(), "committed"
        try:
            return self._attempt_until_committed()
        except BaseException as e:
            outcome = type(e).__name__
            raise
        finally:
            tell(self._event(outcome, self._context.clock.monotonic() - began))

    def _attempt_until_committed(self) -> Snapshot:
        """The snapshot of the first attempt that succeeds. Raises like `run`."""
        options = self._manifests.options
        started = self._context.clock.monotonic()
        while True:
            snapshot = self._attempt()
            if snapshot is not None:
                return snapshot
            waited_ms = (self._context.clock.monotonic() - started) * 1000
            timeout_ms = options.commit_timeout_ms
            if self._retries >= options.commit_max_retries or (timeout_ms is not None and waited_ms > timeout_ms):
                self._clean_up()
                raise Conflict(
                    f"gave up committing to {self._manifests.paths.root} after {self._retries + 1} tries in "
                    f"{waited_ms:.0f} ms: other commits were always faster; raise 'commit.max-retries', or commit less "
                    "often"
                )
            self._wait(self._retries)
            self._retries += 1

    def _event(self, outcome: str, seconds: float) -> LakeCommit:
        """The metrics event of this commit, with the time it took in seconds."""
        table, kind = table_of(self._manifests.paths.root), self._request.kind.value.lower()
        if outcome != "committed" or self._delta is None:
            return LakeCommit(table, kind, outcome, self._retries, seconds)
        added = {e.file.file_name: e.file.file_size for e in self._delta.entries if e.kind is FileKind.ADD}
        removed = {e.file.file_name: e.file.file_size for e in self._delta.entries if e.kind is FileKind.DELETE}
        files = self._files_before + len(added) - len(removed)
        moved = added.keys() & removed.keys()
        return LakeCommit(
            table,
            kind,
            outcome,
            self._retries,
            seconds,
            len(added) - len(moved),
            sum(added.values()) - sum(added[name] for name in moved),
            len(removed) - len(moved),
            sum(removed.values()) - sum(removed[name] for name in moved),
            files,
        )

    def _wait(self, retries: int) -> None:
        options = self._manifests.options
        wait_ms = backoff(retries + 1, options.commit_min_retry_wait_ms, options.commit_max_retry_wait_ms)
        self._context.clock.sleep(wait_ms * (1 + self._context.ids.uniform(0, _JITTER)) / 1000)

    def _attempt(self) -> Snapshot | None:
        """Try once; return the new snapshot, or None if another commit was faster."""
        base = _Base()
        latest: Snapshot | None = None
        try:
            latest = self._snapshots.latest()
            changes = self._provider(latest)
            changes = self._checked(latest, changes)
            if self._delta is not None and self._delta.entries is not changes.files:
                self._drop_delta()  # the changes differ from those of the last attempt
            snapshot = self._prepare(latest, changes, base)
        except BaseException as e:
            self._drop(base)
            if isinstance(e, NotFound) and latest is not None and not self._snapshots.exists(latest.id):
                self._drop_delta()
                return None  # other commits have been so fast that the snapshot has already expired
            self._clean_up()
            raise
        try:
            ours = self._create(snapshot, latest)
        # The store does not support commits at all, or the table is gone: nothing was created.
        except (UnsupportedOperation, _Dropped):
            self._drop(base)
            self._clean_up()
            raise
        if ours:
            self._snapshots.write_latest_hint(snapshot.id)
            return snapshot
        self._manifests.delete(base.names)
        self._merge, self._merge_again = (base.merge if base.merge.written else None), False
        if not self._request.fixed_changes:
            self._drop_delta()
        return None

    # ---- checking --------------------------------------------------------------------------------------------------

    def _checked(self, latest: Snapshot | None, changes: Changes) -> Changes:
        """Return `changes` if they can be applied to `latest`. Raises `Conflict` if not."""
        if latest is None:
            if any(e.kind is FileKind.DELETE for e in changes.files):
                self._context.checker.check([], changes, "no user", (), is_overwrite=True)
            return changes
        discard = self._manifests.options.commit_discard_duplicate_files and self._request.kind is CommitKind.APPEND
        if not (self._request.check_conflicts or discard):
            self._check_bucket_counts(latest, changes)
            return changes
        base = self._manifests.live_files(latest, changes.partitions)
        if discard:
            live = {e.identity for e in base}
            changes = Changes([e for e in changes.files if e.identity not in live], changes.changelog, changes.index)
        index = self._manifests.read_index(latest.index_manifest) if changes.index else []
        is_overwrite = self._request.kind is CommitKind.OVERWRITE
        self._context.checker.check(base, changes, latest.commit_user, index, is_overwrite)
        return changes

    def _check_bucket_counts(self, latest: Snapshot, changes: Changes) -> None:
        """Raise `Conflict` if appended files have another bucket count than their partitions.

        The most recently added files of a partition have its current bucket count. Manifests are read from the newest
        to the oldest until every partition is found; all are read only if the counts seem to differ.
        """
        partitions = {e.partition for e in changes.files if e.kind is FileKind.ADD and e.total_buckets > 0}
        if not partitions:
            return
        counts: dict[bytes, int] = {}
        pruner = PartitionPruner(self._manifests.partitions, partitions)
        for manifest in reversed(self._manifests.data_manifests(latest)):
            if len(counts) == len(partitions):
                break
            if not pruner.may_be_in(manifest):
                continue
            for partition, count in self._manifests.rows(manifest.file_name).bucket_counts().items():
                if partition in partitions:
                    counts.setdefault(partition, count)
        try:
            self._context.checker.check_bucket_counts(changes.files, counts)
        except Conflict:
            live = self._manifests.live_files(latest, partitions)
            self._context.checker.check_bucket_counts([*live, *changes.files])

    # ---- preparing -------------------------------------------------------------------------------------------------

    def _prepare(self, latest: Snapshot | None, changes: Changes, base: _Base) -> Snapshot:
        """Write all manifests of an attempt, record them in `base` and `_delta`, and return the snapshot to create."""
        request = self._request
        before = [] if latest is None else self._manifests.data_manifests(latest)
        manifests = self._merged(before, base)
        self._files_before = sum(m.num_added_files - m.num_deleted_files for m in manifests)
        base.manifest_list = self._manifests.write_list(manifests)
        delta = self._write_delta(changes)
        index = None if latest is None else latest.index_manifest
        if changes.index:
            entries = combine_index_files(self._manifests.schema, self._manifests.read_index(index), changes.index)
            index = base.index = self._manifests.write_index(entries)
        self._check_same_table()
        schema_id = self._context.schemas.latest().id
        delta_count = record_count(changes.files)
        if delta.files is None:
            raise StorageFailure("internal: a commit without a delta manifest list")
        return Snapshot(
            id=FIRST_SNAPSHOT_ID if latest is None else latest.id + 1,
            schema_id=schema_id,
            base_manifest_list=base.manifest_list[0],
            base_manifest_list_size=base.manifest_list[1],
            delta_manifest_list=delta.files[0],
            delta_manifest_list_size=delta.files[1],
            changelog_manifest_list=delta.changelog and delta.changelog[0],
            changelog_manifest_list_size=delta.changelog and delta.changelog[1],
            changelog_record_count=record_count(changes.changelog) if changes.changelog else None,
            index_manifest=index,
            commit_user=self._context.user,
            commit_identifier=request.identifier,
            commit_kind=request.kind,
            time_millis=self._context.clock.now_ms(),
            total_record_count=(0 if latest is None else latest.total_record_count) + delta_count,
            delta_record_count=delta_count,
            watermark=_later(request.watermark, None if latest is None else latest.watermark),
            statistics=request.statistics or self._inherited_statistics(latest, schema_id),
            properties=dict(request.properties) or None,
            next_row_id=None if latest is None else latest.next_row_id,
            uuid=new_uuid(self._context.ids),
            writer_version=WRITER_VERSION,
        )

    def _check_same_table(self) -> None:
        """Raise `_Dropped` if the table was dropped, even if it was recreated. Caches are bypassed."""
        schema, paths = self._manifests.schema, self._manifests.paths
        try:
            current = parse_schema(self._snapshots.io.read(paths.schema(schema.id)))
        except NotFound:
            current = None
        if current is None or current.time_millis != schema.time_millis:
            raise _Dropped(
                f"the table that was written to is no longer at {paths.root}: it was dropped, and perhaps recreated; "
                "reopen it and repeat the work"
            )

    def _merged(self, before: list[ManifestFileMeta], base: _Base) -> list[ManifestFileMeta]:
        """`before`, merged if due. After a lost race, the earlier merge is reused only if it still applies."""
        if self._merge_again:
            base.merge = merge_manifests(self._manifests, before, force=self._request.merge_manifests)
            return list(base.merge.after)
        if self._merge is None:
            return before
        merge, self._merge = self._merge, None
        reused = merge.applied_to(before)
        if reused is None:
            self._manifests.delete(m.file_name for m in merge.written)
            return before
        base.merge = ManifestMerge(tuple(before), reused, merge.written)
        return list(reused)

    def _write_delta(self, changes: Changes) -> _Delta:
        if self._delta is None:
            self._delta = _Delta()
        delta = self._delta
        if delta.files is None:
            delta.entries = changes.files
            delta.files = self._write_list_of(delta, changes.files)
        if delta.changelog is None and changes.changelog:
            delta.changelog = self._write_list_of(delta, changes.changelog)
        return delta

    def _write_list_of(self, delta: _Delta, entries: list[ManifestEntry]) -> tuple[str, int]:
        manifests = self._manifests.write(entries)
        delta.manifests.extend(manifests)
        return self._manifests.write_list(manifests)

    def _inherited_statistics(self, latest: Snapshot | None, schema_id: int) -> str | None:
        """The statistics file of `latest`, unless it was computed for an older schema."""
        if latest is None or latest.statistics is None:
            return None
        try:
            node = json.loads(self._snapshots.io.read(self._manifests.paths.statistics(latest.statistics)))
        except (ForebayError, ValueError):
            return None  # statistics only help planning; a commit must not fail because of them
        return latest.statistics if node.get("schemaId") == schema_id else None

    # ---- publishing ------------------------------------------------------------------------------------------------

    def _check_base(self, latest: Snapshot | None) -> None:
        """Raise `_Overtaken` if the snapshot that the commit builds on was rolled back, and its id used again."""
        if latest is None:
            return
        current = self._snapshots.find(latest.id)
        if current is not None and (current.uuid, current.delta_manifest_list) != (
            latest.uuid,
            latest.delta_manifest_list,
        ):
            raise _Overtaken

    def _create(self, snapshot: Snapshot, latest: Snapshot | None) -> bool:
        """Create the snapshot file; return True if it is ours, False if it is another commit's."""

        def check() -> None:
            self._check_same_table()
            if is_first:
                self._check_base(latest)

        path = self._snapshots.files.path(snapshot.id)
        data = format_snapshot(snapshot)
        tries = self._manifests.options.commit_max_retries + 1
        failure: Exception | None = None
        is_there = is_first = False
        for retry in range(tries):
            try:
                if not is_there:
                    is_first = failure is None
                    # The checked state may have changed during the wait for another try or for the lock.
                    has_waited = retry > 0 or self._context.lock is not None
                    checked = check if has_waited else None
                    is_there = create_exclusively(self._snapshots.io, path, data, self._context.lock, checked)
                if not is_there:
                    existing = self._snapshots.find(snapshot.id)
                    if existing is not None and existing.uuid != snapshot.uuid:
                        return False
                    is_there = existing is not None
                if is_there:
                    stale = self._is_stale(snapshot, is_first)
                    if stale is not None:
                        return not stale
                    failure = StorageFailure("snapshots around it expired, so later ones may or may not include it")
                    break
                if is_first:
                    return False  # it existed and has expired since: not ours, for our attempt had just begun
            except _Overtaken:
                return False
            except (StorageFailure, Unavailable, OutcomeUnknown, NotFound) as e:
                failure = e
            if retry + 1 < tries:
                self._wait(retry)
        raise OutcomeUnknown(
            f"the outcome of committing snapshot {snapshot.id} to {self._manifests.paths.root} is unknown: {failure}; "
            "read the table, or repeat the commit by filter_and_commit, before you delete or repeat anything"
        ) from failure

    def _is_stale(self, snapshot: Snapshot, is_first: bool) -> bool | None:
        """Whether `snapshot`, just created, reused the id of a snapshot that has already expired; None if unknown.

        If so, its file is deleted. The sign is that a later snapshot exists while the previous one is gone. But other
        commits may also have followed this one and expired it: after a lost response (not `is_first`), or
        just now.
        """
        if snapshot.id == FIRST_SNAPSHOT_ID or self._snapshots.exists(snapshot.id - 1):
            return False
        later = [i for i in self._snapshots.ids() if i > snapshot.id]
        if not later:
            return False
        is_next = later[0] == snapshot.id + 1
        if is_next or not is_first or not self._snapshots.exists(snapshot.id):
            follows = self._is_followed_by(self._snapshots.snapshot(later[0]))
            if follows or follows is None or not is_next:  # later snapshots may have compacted our files away
                return False if follows else None
        self._snapshots.delete(snapshot.id)
        return True

    def _is_followed_by(self, following: Snapshot) -> bool | None:
        """Whether snapshot `following` includes our changes; None if unknown because we changed no files."""
        changes = [] if self._delta is None else merge_entries(self._delta.entries)
        if not changes:
            return None
        base = self._manifests.entries(self._manifests.read_list(following.base_manifest_list))
        live = {e.identity for e in merge_entries(base) if e.kind is FileKind.ADD}
        return all((e.identity in live) == (e.kind is FileKind.ADD) for e in changes)

    # ---- cleaning up -----------------------------------------------------------------------------------------------

    def _drop(self, base: _Base) -> None:
        self._manifests.delete([*base.names, *(m.file_name for m in base.merge.written)])

    def _drop_delta(self) -> None:
        if self._delta is not None:
            self._manifests.delete(self._delta.names)
            self._delta = None

    def _clean_up(self) -> None:
        """Delete the manifests that lost attempts kept for later attempts."""
        self._drop_delta()
        if self._merge is not None:
            self._manifests.delete(m.file_name for m in self._merge.written)
            self._merge = None


def _later(a: int | None, b: int | None) -> int | None:
    """The later of two watermarks."""
    return b if a is None else a if b is None else max(a, b)
