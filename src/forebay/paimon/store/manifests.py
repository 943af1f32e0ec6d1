"""Manifests and manifest lists of a table: cached reads, and writes in files of the target size."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from forebay.base.errors import Conflict, ForebayError
from forebay.lake.lru_cache import LruCache
from forebay.paimon.format.binary_row import RowLayout, row_layout
from forebay.paimon.format.file_meta import FileKind, IndexManifestEntry, ManifestEntry, ManifestFileMeta
from forebay.paimon.format.index_manifest import read_index_manifest, write_index_manifest
from forebay.paimon.format.manifest_codec import (
    Arities,
    describe_manifest,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from forebay.paimon.format.manifest_rows import ManifestRows, Rows, live_rows, read_manifest_rows
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.options import MB, CoreOptions
from forebay.paimon.store.paths import PathFactory

T = TypeVar("T", bound=Sized)
Identity = tuple[Any, ...]

CACHE_BYTES = 64 * MB
"""The approximate memory limit for decoded manifests and plans."""

_ENTRY_BYTES = 2_000
"""The approximate memory of a decoded entry, or of a file in a plan, measured with statistics of eight columns."""

_PROBE_ENTRIES = 1024
"""The number of entries that are encoded first, to estimate how many fit into a file."""


class ManifestCache:
    """An LRU cache of decoded files by path, and of plans. Files never change, so entries never become stale.

    An item larger than the cache is not kept. The size of lists is estimated as items times `_ENTRY_BYTES`.
    """

    def __init__(self, bytes_max: int = CACHE_BYTES) -> None:
        self._entries: LruCache[Hashable, Any] = LruCache(size=bytes_max)

    def get(self, path: Hashable, make: Callable[[], T]) -> T:
        """The entry under `path`; if there is none, the one that `make` returns, which is then kept."""
        cached: T | None = self._entries.get(path)
        if cached is not None:
            return cached
        entry = make()
        self.put(path, entry)
        return entry

    def put(self, path: Hashable, entry: Sized) -> None:
        """Add an entry that will be requested soon. A long key counts, too: a filter may have thousands of values."""
        size = entry.nbytes if isinstance(entry, ManifestRows) else (len(entry) + 1) * _ENTRY_BYTES
        self._entries.put(path, entry, size + (0 if isinstance(path, str) else len(repr(path))))

    def forget(self, path: str) -> None:
        self._entries.pop(path)
        self._entries.pop(_rows_key(path))


def _rows_key(path: str) -> str:
    return f"{path}/rows"


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """Some rows of the manifest `name`: their indexes in `rows`, as int64."""

    name: str
    rows: ManifestRows
    positions: Rows

    @classmethod
    def of_all(cls, name: str, rows: ManifestRows) -> SelectedRows:
        return cls(name, rows, rows.all)


def live_of(parts: Sequence[SelectedRows], *, with_deletions: bool = False) -> list[SelectedRows]:
    """Of the selected entries, in order, the additions that were not deleted.

    `with_deletions`: also deletions of files that were added earlier. Raises `Conflict` if a file is added or deleted
    twice.
    """
    live = live_rows([(part.rows, part.positions) for part in parts], with_deletions=with_deletions)
    return [SelectedRows(part.name, part.rows, rows) for part, rows in zip(parts, live, strict=True)]


class ManifestStore:
    """Reads and writes the manifests of a table. Thread-safe. Results are shared and must not be modified."""

    def __init__(self, io: FileIO, paths: PathFactory, schema: TableSchema, cache: ManifestCache | None = None) -> None:
        """`cache` may be shared by tables; without one the table has its own."""
        self._io, self.paths, self.schema = io, paths, schema
        self.options = CoreOptions(schema.options)
        self.partitions = row_layout(schema.partition_fields)
        self._arities = Arities(len(schema.partition_keys), len(schema.trimmed_primary_keys))
        self._cache = cache or ManifestCache()
        self._plans = object()
        """Plans of this table, in a cache of several."""

    # ---- reading ---------------------------------------------------------------------------------------------------

    def read_list(self, name: str) -> list[ManifestFileMeta]:
        """The manifests that a manifest list names."""
        path = self.paths.manifest(name)
        return self._cache.get(path, lambda: read_manifest_list(self._io.read(path)))

    def read(self, name: str) -> list[ManifestEntry]:
        """The entries of a manifest."""
        return self._cache.get(self.paths.manifest(name), lambda: self.rows(name).entries())

    def rows(self, name: str) -> ManifestRows:
        """The entries of a manifest, as columns."""
        path = self.paths.manifest(name)
        return self._cache.get(_rows_key(path), lambda: read_manifest_rows(self._io.read(path)))

    def read_index(self, name: str | None) -> list[IndexManifestEntry]:
        """The entries of an index manifest; empty if there is no index manifest."""
        if name is None:
            return []
        path = self.paths.manifest(name)
        return self._cache.get(path, lambda: read_index_manifest(self._io.read(path)))

    def data_manifests(self, snapshot: Snapshot) -> list[ManifestFileMeta]:
        """The manifests whose entries, merged in order, are the data files of `snapshot`."""
        return [*self.read_list(snapshot.base_manifest_list), *self.delta_manifests(snapshot)]

    def delta_manifests(self, snapshot: Snapshot) -> list[ManifestFileMeta]:
        """The manifests of the changes made by `snapshot` itself."""
        return self.read_list(snapshot.delta_manifest_list)

    def changelog_manifests(self, snapshot: Snapshot) -> list[ManifestFileMeta]:
        """The manifests of the changelog files of `snapshot`."""
        name = snapshot.changelog_manifest_list
        return [] if name is None else self.read_list(name)

    def entries(
        self, manifests: Iterable[ManifestFileMeta], partitions: set[bytes] | None = None
    ) -> Iterable[ManifestEntry]:
        """The entries of `manifests`, in order, optionally only of some partitions."""
        pruner = None if partitions is None else PartitionPruner(self.partitions, partitions)
        for manifest in manifests:
            if pruner is None:
                yield from self.read(manifest.file_name)
            elif pruner.may_be_in(manifest):
                yield from (e for e in self.read(manifest.file_name) if e.partition in pruner.partitions)

    def live_files(self, snapshot: Snapshot, partitions: set[bytes] | None = None) -> list[ManifestEntry]:
        """The data files of `snapshot`, optionally only of some partitions."""
        pruner = None if partitions is None else PartitionPruner(self.partitions, partitions)
        parts = []
        for manifest in self.data_manifests(snapshot):
            if pruner is None:
                parts.append(SelectedRows.of_all(manifest.file_name, self.rows(manifest.file_name)))
            elif pruner.may_be_in(manifest):
                rows = self.rows(manifest.file_name)
                mask = rows.of_partitions([p in pruner.partitions for p in rows.partitions])
                parts.append(SelectedRows(manifest.file_name, rows, np.flatnonzero(mask)))
        return self.pick(live_of(parts))

    def pick(self, parts: Iterable[SelectedRows]) -> list[ManifestEntry]:
        """The entries at the selected rows. A few are decoded again; many are taken from the decoded manifest."""
        picks: list[ManifestEntry] = []
        for part in parts:
            if len(part.positions) == len(part.rows):
                picks.extend(self.read(part.name))
            elif len(part.positions) > len(part.rows) // 2:
                entries = self.read(part.name)
                picks.extend(entries[i] for i in part.positions.tolist())
            else:
                picks.extend(part.rows.entries(part.positions))
        return picks

    def planned(self, snapshot: Snapshot, schema: TableSchema, request: Hashable, make: Callable[[], T]) -> T:
        """The plan that `make` gives for `request` of a snapshot under a schema and its options; `len` says how many
        files it has.

        It is kept by the names of the snapshot's manifest lists: they are unique, where the number of a snapshot comes
        again after a rollback. The number is part of splits, and so of the key.
        """
        lists = snapshot.id, snapshot.base_manifest_list, snapshot.delta_manifest_list, snapshot.index_manifest
        key = self._plans, lists, schema.id, frozenset(schema.options.items()), request
        return self._cache.get(key, make)

    # ---- writing ---------------------------------------------------------------------------------------------------

    def write(self, entries: Sequence[ManifestEntry]) -> list[ManifestFileMeta]:
        """Write `entries` into new manifests of about `manifest.target-file-size`; none if there are no entries.

        If a write fails, the manifests written before are deleted.
        """
        manifests: list[ManifestFileMeta] = []
        try:
            start, step = 0, min(len(entries), _PROBE_ENTRIES)
            probing = True
            while start < len(entries):
                chunk = entries[start : start + step]
                data = write_manifest(chunk, self._arities, self.options.manifest_compression)
                fitting = max(1, self.options.manifest_target_file_size * len(chunk) // len(data))
                fills = start + step >= len(entries) and fitting >= len(chunk)
                if probing and not fills and fitting != step:
                    probing, step = False, fitting
                    continue
                name = self.paths.new_manifest_name()
                manifests.append(describe_manifest(name, len(data), chunk, self.partitions, self.schema.id))
                self._io.write(self.paths.manifest(name), data)
                start += len(chunk)
        except BaseException:
            self.delete(m.file_name for m in manifests)
            raise
        return manifests

    def write_list(self, manifests: Sequence[ManifestFileMeta]) -> tuple[str, int]:
        """Write a manifest list; return its name and size."""
        name = self.paths.new_manifest_list_name()
        data = write_manifest_list(manifests, len(self.schema.partition_keys), self.options.manifest_compression)
        self._write_file(name, data)
        self._cache.put(self.paths.manifest(name), list(manifests))  # the next commit follows on this one
        return name, len(data)

    def write_index(self, entries: Sequence[IndexManifestEntry]) -> str:
        """Write an index manifest; return its name."""
        name = self.paths.new_index_manifest_name()
        data = write_index_manifest(entries, len(self.schema.partition_keys), self.options.manifest_compression)
        self._write_file(name, data)
        return name

    def _write_file(self, name: str, data: bytes) -> None:
        """Write a file; on an error, real or apparent, delete it."""
        try:
            self._io.write(self.paths.manifest(name), data)
        except BaseException:
            self.delete([name])
            raise

    def delete(self, names: Iterable[str]) -> None:
        """Delete unreferenced manifests, lists or index manifests; those that cannot be deleted become orphans."""
        for name in names:
            path = self.paths.manifest(name)
            self._cache.forget(path)
            delete_quietly(self._io, path)


class PartitionPruner:
    """Decides which manifests may have entries of some partitions, by the manifests' partition statistics."""

    def __init__(self, layout: RowLayout, partitions: Iterable[bytes]) -> None:
        self.partitions = frozenset(partitions)
        self._layout = layout
        self._values = [layout.decode(partition) for partition in self.partitions] if layout.fields else []

    def may_be_in(self, manifest: ManifestFileMeta) -> bool:
        """Whether the bounds of `manifest` admit one of the partitions."""
        stats = manifest.partition_stats
        width = len(self._layout.fields)
        if width == 0 or len(stats.null_counts) != width:
            return True
        lows, highs = self._layout.decode(stats.min_values), self._layout.decode(stats.max_values)
        return any(all(map(_within, values, lows, highs, stats.null_counts)) for values in self._values)


def _within(value: Any, low: Any, high: Any, nulls: int | None) -> bool:
    if value is None:
        return nulls is None or nulls > 0
    if low is None or high is None:
        return nulls is None  # only nulls, or unknown
    return value != value or bool(low <= value <= high)


def delete_quietly(io: FileIO, path: str) -> None:
    """Delete an unneeded file; on failure it remains as an orphan, which orphan removal finds."""
    with contextlib.suppress(ForebayError):
        io.delete(path)


def merge_entries(entries: Iterable[ManifestEntry]) -> list[ManifestEntry]:
    """The net effect of `entries` in order: additions that were not deleted, deletions of files added earlier.

    Raises `Conflict` if a file is added or deleted twice.
    """
    merged: dict[Identity, ManifestEntry] = {}
    for entry in entries:
        identity = entry.identity
        earlier = merged.get(identity)
        if earlier is None:
            merged[identity] = entry
        elif earlier.kind is not entry.kind:
            del merged[identity]
        else:
            action = "added" if entry.kind is FileKind.ADD else "deleted"
            raise Conflict(f"file {entry.file.file_name} of bucket {entry.bucket} is {action} twice")
    return list(merged.values())
