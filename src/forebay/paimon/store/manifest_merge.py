"""Merging manifests, to keep their number per snapshot small.

Every commit adds a manifest. A commit therefore first merges those of the previous snapshot:

* Full, when the manifests that are small or contain deletions reach `manifest.full-compaction-threshold-size` in total:
  all these are rewritten with live files only. Large manifests without deletions are kept, unless one of their files
  was deleted.
* Minor otherwise: adjacent manifests are merged whenever they reach `manifest.target-file-size` together, and the rest
  if there are `manifest.merge-min-count` of them. Deletions of files added earlier are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay.paimon.format.file_meta import FileKind, ManifestEntry, ManifestFileMeta
from forebay.paimon.store.manifests import Identity, ManifestStore, SelectedRows, live_of


@dataclass(frozen=True, slots=True)
class ManifestMerge:
    """The manifests `before` were replaced with `after`, of which `written` are new."""

    before: tuple[ManifestFileMeta, ...]
    after: tuple[ManifestFileMeta, ...]
    written: tuple[ManifestFileMeta, ...] = ()

    def applied_to(self, current: Sequence[ManifestFileMeta]) -> tuple[ManifestFileMeta, ...] | None:
        """`current` with `before` replaced, if it still contains `before`; otherwise None.

        Lets a commit that lost a race keep its merge: the winner usually only added manifests at the end.
        """
        size = len(self.before)
        for start in range(len(current) - size + 1):
            if tuple(current[start : start + size]) == self.before:
                return (*current[:start], *self.after, *current[start + size :])
        return None


def merge_manifests(store: ManifestStore, manifests: Sequence[ManifestFileMeta], force: bool = False) -> ManifestMerge:
    """Merge `manifests` if due. New manifests are written, and old ones kept, as older snapshots need them.

    `force` merges everything that can be merged, for explicit maintenance. If this fails, the files it wrote are
    deleted.
    """
    options = store.options
    merger = _Merger(store, options.manifest_target_file_size)
    threshold = 1 if force else options.manifest_full_compaction_threshold_size
    least = 2 if force else options.manifest_merge_min_count
    try:
        after = merger.full(manifests, threshold)
        if after is None:
            after = merger.minor(manifests, least)
    except BaseException:
        store.delete(m.file_name for m in merger.written)
        raise
    return ManifestMerge(tuple(manifests), tuple(after), tuple(merger.written))


class _Merger:
    def __init__(self, store: ManifestStore, target_size: int) -> None:
        self._store, self._target_size = store, target_size
        self.written: list[ManifestFileMeta] = []

    def minor(self, manifests: Sequence[ManifestFileMeta], least: int) -> list[ManifestFileMeta]:
        result: list[ManifestFileMeta] = []
        group: list[ManifestFileMeta] = []
        size = 0
        for manifest in manifests:
            group.append(manifest)
            size += manifest.file_size
            if size >= self._target_size:
                result.extend(self._merge_group(group))
                group, size = [], 0
        result.extend(self._merge_group(group) if len(group) >= least else group)
        return result

    def _merge_group(self, group: list[ManifestFileMeta]) -> list[ManifestFileMeta]:
        if len(group) == 1:
            return group
        names = [m.file_name for m in group]
        parts = [SelectedRows.of_all(name, self._store.rows(name)) for name in names]
        return self._write(self._store.pick(live_of(parts, with_deletions=True)))

    def full(self, manifests: Sequence[ManifestFileMeta], threshold: int) -> list[ManifestFileMeta] | None:
        """The manifests after a full merge; None if none is due, or nothing would be gained."""
        must_change = [m.num_deleted_files > 0 or m.file_size < self._target_size for m in manifests]
        if sum(m.file_size for m, must in zip(manifests, must_change, strict=True) if must) < threshold:
            return None
        deleted = self._deleted_files(manifests)
        unchanged: list[ManifestFileMeta] = []
        parts: list[SelectedRows] = []
        for manifest, must in zip(manifests, must_change, strict=True):
            if not must and not (deleted and any(e.identity in deleted for e in self._store.read(manifest.file_name))):
                unchanged.append(manifest)
                continue
            parts.append(SelectedRows.of_all(manifest.file_name, self._store.rows(manifest.file_name)))
        if len(parts) <= 1 and not deleted:
            return None
        # A deletion without its addition would remain only in a damaged table; only live files count.
        return [*unchanged, *self._write(self._store.pick(live_of(parts)))]

    def _deleted_files(self, manifests: Sequence[ManifestFileMeta]) -> set[Identity]:
        with_deletions = [m for m in manifests if m.num_deleted_files > 0]
        return {e.identity for e in self._store.entries(with_deletions) if e.kind is FileKind.DELETE}

    def _write(self, entries: list[ManifestEntry]) -> list[ManifestFileMeta]:
        manifests = self._store.write(entries)
        self.written.extend(manifests)
        return manifests
