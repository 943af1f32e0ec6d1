"""The files that snapshots, tags and changelogs refer to, which must not be deleted.

Data files are identified by path, all others by name (names of manifests, index files and statistics are unique).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from forebay.base.errors import NotFound
from forebay.paimon.format.file_meta import FileKind, ManifestEntry, ManifestFileMeta
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import ManifestStore, merge_entries
from forebay.paimon.store.paths import MAIN_BRANCH


def branches_of(table: TableContext) -> list[TableContext]:
    """All branches of the table, including the given one."""
    return [table.on_branch(name) for name in (MAIN_BRANCH, *table.branches.names())]


def other_branches(table: TableContext) -> list[TableContext]:
    """All branches except the given one."""
    return [b for b in branches_of(table) if b.paths.branch != table.paths.branch]


def changelogs_of(branch: TableContext) -> list[Snapshot]:
    """The long-lived changelogs, oldest first. Those that expire meanwhile are skipped."""
    changelogs = []
    for changelog_id in branch.snapshots.changelogs.ids():
        try:
            changelogs.append(branch.snapshots.changelog(changelog_id))
        except NotFound:
            continue
    return changelogs


class References:
    """Determines which files snapshots need. Only manifests are cached."""

    def __init__(self, manifests: ManifestStore) -> None:
        self._manifests = manifests
        self._paths = manifests.paths

    def data_path(self, entry: ManifestEntry) -> str:
        return self._paths.data_file(entry.partition, entry.bucket, entry.file)

    def data_paths(self, entry: ManifestEntry) -> list[str]:
        """The paths of a data file and its extra files."""
        return self._paths.data_file_and_companions(entry.partition, entry.bucket, entry.file)

    def live(self, snapshot: Snapshot) -> set[str]:
        """The paths of the data files of a snapshot (without extra files)."""
        return {self.data_path(e) for e in self._manifests.live_files(snapshot)}

    def list_or_none(self, name: str | None) -> list[ManifestFileMeta]:
        """The manifests in a manifest list; empty if an interrupted deletion has already deleted the list."""
        if name is None:
            return []
        try:
            return self._manifests.read_list(name)
        except NotFound:
            return []

    def entries_or_none(self, manifests: Iterable[ManifestFileMeta]) -> Iterator[ManifestEntry]:
        """The entries of those `manifests` that still exist."""
        for manifest in manifests:
            try:
                yield from self._manifests.read(manifest.file_name)
            except NotFound:
                continue

    def deleted_by(self, snapshot: Snapshot) -> list[ManifestEntry]:
        """The data files that `snapshot` removed, not counting files that only changed their level.

        Empty if a manifest is missing: an earlier run has already deleted these files then.
        """
        by_path: dict[str, ManifestEntry] = {}
        try:
            for e in self._manifests.entries(self._manifests.read_list(snapshot.delta_manifest_list)):
                if e.kind is FileKind.ADD:
                    by_path.pop(self.data_path(e), None)
                else:
                    by_path[self.data_path(e)] = e
        except NotFound:
            return []
        return list(by_path.values())

    def changelog_of(self, snapshot: Snapshot) -> list[ManifestEntry]:
        """The changelog files of `snapshot` whose manifests still exist."""
        entries = self.entries_or_none(self.list_or_none(snapshot.changelog_manifest_list))
        return [e for e in entries if e.kind is FileKind.ADD]

    def merged(self, snapshot: Snapshot) -> list[ManifestEntry]:
        """The data files of a snapshot, of which manifests may be missing."""
        lists = (*self.list_or_none(snapshot.base_manifest_list), *self.list_or_none(snapshot.delta_manifest_list))
        return [e for e in merge_entries(self.entries_or_none(lists)) if e.kind is FileKind.ADD]

    def metadata(self, snapshot: Snapshot, with_changelog: bool = True) -> set[str]:
        """The names of all manifests, lists, index files and statistics that `snapshot` needs. Raises `NotFound`.

        A tag does not need the changelog, which expires with the snapshot.
        """
        names = {snapshot.base_manifest_list, snapshot.delta_manifest_list}
        names |= {m.file_name for m in self._manifests.data_manifests(snapshot)}
        if snapshot.index_manifest is not None:
            names.add(snapshot.index_manifest)
            names |= {e.index_file.file_name for e in self._manifests.read_index(snapshot.index_manifest)}
        if snapshot.statistics is not None:
            names.add(snapshot.statistics)
        if with_changelog and snapshot.changelog_manifest_list is not None:
            names.add(snapshot.changelog_manifest_list)
            names |= {m.file_name for m in self.list_or_none(snapshot.changelog_manifest_list)}
        return names

    def of_history(self, branch: TableContext) -> tuple[set[str], set[str]]:
        """The data paths and metadata names that all snapshots, tags and changelogs of another branch need.

        Costs one listing of live files for each tag and for the earliest snapshot; other snapshots only need their
        deltas.
        """
        data: set[str] = set()
        names: set[str] = set()
        snapshots = list(branch.snapshots.snapshots())
        for snapshot in (*branch.tags.tagged_snapshots(), *snapshots[:1]):
            data |= self.live(snapshot)
            names |= self.metadata(snapshot, with_changelog=False)
        for snapshot in (*snapshots, *changelogs_of(branch)):
            for manifest_list in (snapshot.delta_manifest_list, snapshot.changelog_manifest_list):
                entries = self.entries_or_none(self.list_or_none(manifest_list))
                data |= {self.data_path(e) for e in entries}
            try:
                names |= self.metadata(snapshot)
            except NotFound:  # a changelog may lack some files of its snapshot
                names |= self.changelog_metadata(snapshot)
        return data, names

    def changelog_metadata(self, changelog: Snapshot) -> set[str]:
        """The names of the existing manifests and lists of a long-lived changelog."""
        names: set[str] = set()
        lists = changelog.base_manifest_list, changelog.delta_manifest_list, changelog.changelog_manifest_list
        for name in lists:
            manifests = self.list_or_none(name)
            if name is not None and manifests:
                names.add(name)
                names |= {m.file_name for m in manifests}
        return names
