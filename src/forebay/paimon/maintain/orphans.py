"""Removing orphans: files that no snapshot, tag or changelog of any branch refers to.

They are left behind by crashed processes, failed commits, rollbacks, and incomplete deletions. Safety rules:

* Only files older than a day (by default) are deleted: younger ones may belong to a commit in progress.
* Files are listed before the references are read, so that a file that is committed meanwhile counts as needed.
* Snapshots, tags and changelogs are listed twice, before and after, and both listings count, so that a listing that is
  empty by mistake does no harm. If the history has gaps, or ends before its hint LATEST, nothing is deleted.
* An unreadable manifest also ends the run, unless its snapshot has expired meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from forebay.base.errors import InvalidRequest, NotFound, StorageFailure
from forebay.base.lake_events import LakeRemoval, table_of, tell
from forebay.base.progress import OnProgress, no_progress
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.io.file_io import FileStatus
from forebay.paimon.maintain.references import branches_of
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import ManifestStore
from forebay.paimon.store.paths import BUCKET_PREFIX, EARLIEST, LATEST, MAIN_BRANCH
from forebay.paimon.store.snapshots import CHANGELOG_PREFIX, SNAPSHOT_PREFIX, NumberedFiles

DAY_MS = 86_400_000


@dataclass
class Orphans:
    """The files that were, or with a dry run would be, deleted."""

    files: list[str] = field(default_factory=list)
    """Their paths, in order."""
    bytes: int = 0
    dry_run: bool = False


@dataclass
class _Roots:
    """The snapshots, tags and changelogs of one branch, as the union of all listings."""

    snapshots: dict[tuple[str, str, int], TableContext] = field(default_factory=dict)
    tags: dict[tuple[str, str], TableContext] = field(default_factory=dict)

    def add(self, branch: TableContext) -> None:
        name = branch.paths.branch
        for kind, files in (("snapshot", branch.snapshots.files), ("changelog", branch.snapshots.changelogs)):
            for file_id in files.ids():
                self.snapshots[(name, kind, file_id)] = branch
        for tag in branch.tags.names():
            self.tags[(name, tag)] = branch


class OrphanRemoval:
    """Finds and deletes the orphans of one table. Not thread-safe."""

    def __init__(self, table: TableContext, progress: OnProgress = no_progress) -> None:
        """`progress` is in scanned snapshots and tags, and files; the total is known after listing."""
        self._table, self._clock, self._progress = table, table.clock, progress
        self._io, self._paths = table.io, table.paths
        # Not the shared cache: everything relied on here must be on the disk.
        self._manifests = ManifestStore(table.io, table.paths, table.schema)

    def remove(self, *, older_than_ms: int | None = None, dry_run: bool = False) -> Orphans:
        """Delete all orphans last modified before `older_than_ms` (since the epoch; default: a day ago); return them.

        Raises `StorageFailure` if the files in use cannot be determined; then nothing has been deleted.
        """
        now = self._clock.now_ms()
        limit = now - DAY_MS if older_than_ms is None else older_than_ms
        if limit > now:
            raise InvalidRequest("orphans must be older than now: files that are being written look the same")
        roots = _Roots()
        branches = {b.paths.branch: b for b in branches_of(self._table)}
        for branch in branches.values():
            roots.add(branch)
        candidates: list[FileStatus] = []
        for listed, status in enumerate(self._candidates(list(branches.values()))):
            if status.modified_ms is not None and status.modified_ms < limit:
                candidates.append(status)
            self._progress(listed + 1, 0)
        for branch in branches_of(self._table):
            branches.setdefault(branch.paths.branch, branch)
        for branch in branches.values():
            roots.add(branch)
            self._check_history(branch, roots)
        candidates.sort(key=lambda status: status.path)  # a directory has no order of its own
        steps = len(roots.snapshots) + len(roots.tags) + len(candidates)
        references = self._needed(roots, steps)
        orphans = Orphans(dry_run=dry_run)
        for done, status in enumerate(candidates, steps - len(candidates)):
            self._progress(done, steps)
            name = status.path.rpartition("/")[2]
            if name in references:
                continue
            if not dry_run:
                self._io.delete(status.path)
            orphans.files.append(status.path)
            orphans.bytes += status.size
        if not dry_run:
            tell(LakeRemoval(table_of(self._paths.root), orphans=len(orphans.files), orphan_bytes=orphans.bytes))
        return orphans

    # -- files --------------------------------------------------------------------------------------------------------

    def _candidates(self, branches: list[TableContext]) -> Iterator[FileStatus]:
        """All files that could be orphans: those in directories in which every file must be referenced."""
        p = self._paths
        for directory in (p.manifest_directory, p.index_directory, p.statistics_directory):
            yield from (s for s in self._io.list(directory) if not s.is_directory)
        yield from self._data_files(p.data_root, len(self._table.schema.partition_keys))
        for branch in branches:
            for directory, prefix in (
                (branch.paths.snapshot_directory, SNAPSHOT_PREFIX),
                (branch.paths.changelog_directory, CHANGELOG_PREFIX),
            ):
                for status in self._io.list(directory):
                    name = status.path.rpartition("/")[2]
                    if not status.is_directory and name not in (EARLIEST, LATEST) and not name.startswith(prefix):
                        yield status

    def _data_files(self, directory: str, levels: int) -> Iterator[FileStatus]:
        for status in self._io.list(directory):
            name = status.path.rstrip("/").rpartition("/")[2]
            if not status.is_directory:
                continue
            if levels and "=" in name:
                yield from self._data_files(status.path.rstrip("/"), levels - 1)
            elif not levels and name.startswith(BUCKET_PREFIX):
                yield from (s for s in self._io.list(status.path.rstrip("/")) if not s.is_directory)

    # -- references ---------------------------------------------------------------------------------------------------

    def _check_history(self, branch: TableContext, roots: _Roots) -> None:
        """Raise `StorageFailure` if the listing of snapshots must be incomplete."""
        listed = sorted(i for name, kind, i in roots.snapshots if (name, kind) == (branch.paths.branch, "snapshot"))
        files: NumberedFiles = branch.snapshots.files
        hint = files.hinted_latest()
        if hint is not None and files.exists(hint) and hint not in listed:
            raise self._unsure(branch, f"snapshot {hint} is there, but was not listed")
        for low, high in itertools.pairwise(listed):
            missing = next((i for i in range(low + 1, high) if files.exists(i)), None)
            if missing is not None:
                raise self._unsure(branch, f"snapshot {missing} is there, but was not listed")
        if not listed and not branch.tags.names() and files.exists(1):
            raise self._unsure(branch, "snapshot 1 is there, but was not listed")

    def _needed(self, roots: _Roots, steps: int) -> set[str]:
        """The names of all referenced files."""
        names: set[str] = set()
        for done, ((_, kind, file_id), branch) in enumerate(roots.snapshots.items()):
            self._progress(done, steps)
            manager = branch.snapshots
            try:
                snapshot = manager.snapshot(file_id) if kind == "snapshot" else manager.changelog(file_id)
            except NotFound:
                continue  # expired since it was listed
            try:
                if branch.paths.branch != MAIN_BRANCH:
                    # Its first snapshot was created from a tag, perhaps without a changelog.
                    if snapshot.changelog_manifest_list is not None:
                        names |= self._of_lists([snapshot.changelog_manifest_list], partial=True)
                    snapshot = replace(snapshot, changelog_manifest_list=None)
                names |= self._of(snapshot, partial=kind == "changelog")
            except NotFound as e:
                still_there = manager.exists(file_id)
                if still_there and not self._is_expiring(branch, file_id):
                    raise self._unsure(branch, f"a manifest of {kind} {file_id} is missing ({e.message})") from e
                names |= self._of(snapshot, partial=True)
        for done, ((_, tag), branch) in enumerate(roots.tags.items(), len(roots.snapshots)):
            self._progress(done, steps)
            tag_entry = branch.tags.find(tag)
            if tag_entry is None:
                continue
            try:
                # A tag does not keep its snapshot's changelog.
                names |= self._of(replace(tag_entry.snapshot, changelog_manifest_list=None), partial=False)
            except NotFound as e:
                if branch.tags.find(tag) is not None:
                    raise self._unsure(branch, f"a manifest of tag '{tag}' is missing ({e.message})") from e
        return names

    @staticmethod
    def _is_expiring(branch: TableContext, snapshot_id: int) -> bool:
        """Whether the snapshot remains from an interrupted expiry: one of the earliest, never the latest."""
        latest = branch.snapshots.latest_id()
        return latest is not None and snapshot_id < latest

    def _of(self, snapshot: Snapshot, *, partial: bool) -> set[str]:
        """The names of all files of a snapshot. Raises `NotFound` if a manifest is missing, unless `partial`.

        Changelogs, and snapshots whose expiry was interrupted, are partial.
        """
        lists = [snapshot.base_manifest_list, snapshot.delta_manifest_list]
        if snapshot.changelog_manifest_list is not None:
            lists.append(snapshot.changelog_manifest_list)
        names = self._of_lists(lists, partial)
        if snapshot.index_manifest is not None:
            names.add(snapshot.index_manifest)
            try:
                names |= {e.index_file.file_name for e in self._manifests.read_index(snapshot.index_manifest)}
            except NotFound:
                if not partial:
                    raise
        if snapshot.statistics is not None:
            names.add(snapshot.statistics)
        return names

    def _of_lists(self, lists: list[str], partial: bool) -> set[str]:
        """The names of manifest lists, their manifests, and all files listed there, deleted ones included."""
        names: set[str] = set(lists)
        for name in lists:
            try:
                manifests = self._manifests.read_list(name)
                names |= {manifest.file_name for manifest in manifests}
            except NotFound:
                if not partial:
                    raise
                continue
            for manifest in manifests:
                try:
                    entries = self._manifests.read(manifest.file_name)
                except NotFound:
                    if not partial:
                        raise
                    continue
                for e in entries:
                    names.add(e.file.file_name)
                    names.update(e.file.extra_files)
        return names

    def _unsure(self, branch: TableContext, why: str) -> StorageFailure:
        return StorageFailure(
            f"cannot determine the orphans of {self._paths.root} (branch {branch.paths.branch}): {why}; "
            "nothing was deleted, retry"
        )
