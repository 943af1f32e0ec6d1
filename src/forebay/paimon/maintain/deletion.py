"""Deleting unneeded files of a table: data files, manifests, index files, statistics, directories.

A file that cannot be deleted remains as an orphan; that is not an error, as orphan removal deletes it later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forebay.base.errors import NotFound
from forebay.paimon.format.file_meta import ManifestEntry
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.maintain.references import References
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import delete_quietly


@dataclass
class Deleted:
    """The number of deleted files."""

    data_files: int = 0
    metadata_files: int = 0


class Deletion:
    """Deletes files, and records the affected buckets. Not thread-safe."""

    def __init__(self, table: TableContext, references: References) -> None:
        self._io, self._manifests, self._paths = table.io, table.manifests, table.paths
        self._references = references
        self._buckets: dict[tuple[bytes, int], None] = {}
        self.deleted = Deleted()

    def data_files(self, entries: Iterable[ManifestEntry], protected: set[str]) -> None:
        """Delete data or changelog files and their extra files, except those whose paths are `protected`."""
        for entry in entries:
            path, *companions = self._references.data_paths(entry)
            if path in protected:
                continue
            self._buckets[(entry.partition, entry.bucket)] = None
            for each in (path, *companions):
                delete_quietly(self._io, each)
            self.deleted.data_files += 1

    def metadata(self, snapshot: Snapshot, protected: set[str], *, data_lists: bool, changelog: bool) -> None:
        """Delete the metadata files of `snapshot` except names in `protected`, and add the deleted names to it.

        Manifests are deleted before the list that names them, so that an interrupted deletion can be resumed.
        """
        lists: list[str | None] = []
        if data_lists:
            lists += [snapshot.base_manifest_list, snapshot.delta_manifest_list]
        if changelog:
            lists.append(snapshot.changelog_manifest_list)
        for name in lists:
            if name is not None:
                self.manifest_list(name, protected)
        self._index(snapshot, protected)
        if snapshot.statistics is not None and snapshot.statistics not in protected:
            protected.add(snapshot.statistics)
            delete_quietly(self._io, self._paths.statistics(snapshot.statistics))
            self.deleted.metadata_files += 1

    def manifest_list(self, name: str, protected: set[str]) -> None:
        """Delete a manifest list and its manifests, except names in `protected`."""
        names = [m.file_name for m in self._references.list_or_none(name)]
        self._delete_manifests((*names, name), protected)

    def _delete_manifests(self, names: Iterable[str], protected: set[str]) -> None:
        unprotected = [name for name in dict.fromkeys(names) if name not in protected]
        protected.update(unprotected)
        self._manifests.delete(unprotected)
        self.deleted.metadata_files += len(unprotected)

    def _index(self, snapshot: Snapshot, protected: set[str]) -> None:
        if snapshot.index_manifest is None or snapshot.index_manifest in protected:
            return
        try:
            entries = self._manifests.read_index(snapshot.index_manifest)
        except NotFound:
            return
        for entry in entries:
            name = entry.index_file.file_name
            if name not in protected:
                protected.add(name)
                delete_quietly(self._io, self._paths.index_file(entry.index_file, entry.partition, entry.bucket))
                self.deleted.metadata_files += 1
        self._delete_manifests([snapshot.index_manifest], protected)

    def empty_directories(self) -> None:
        """Delete the directories of buckets and partitions that have become empty.

        A writer that is about to write a file there recreates the directory, and keeps one where it has begun to.
        """
        for partition, bucket in self._buckets:
            directory = self._paths.bucket_directory(partition, bucket)
            while directory != self._paths.data_root and self._io.delete_empty_directory(directory):
                directory = directory.rpartition("/")[0]
