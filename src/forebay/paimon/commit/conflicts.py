"""Conflict checks between a commit and concurrent commits: pure functions over manifest entries.

* A file may be deleted only if it exists, so two compactions of the same files exclude each other.
* All files of a partition have the same bucket count; only an overwrite may change it.
* In a primary-key table, key ranges within a level (above 0) of a bucket must not overlap.
* Deletion vectors belong to existing files, and each file has at most one.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from forebay.base.errors import Conflict
from forebay.paimon.commit.file_changes import DELETION_VECTORS, Changes
from forebay.paimon.format.binary_row import RowLayout, row_layout
from forebay.paimon.format.file_meta import FileKind, IndexManifestEntry, ManifestEntry
from forebay.paimon.format.partition_path import partition_path, partition_spec
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.merge.intervals import rank_keys
from forebay.paimon.store.manifests import merge_entries

_FILES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ConflictChecker:
    """The checks for one table. `user` is the committing user, for messages."""

    schema: TableSchema
    user: str

    def check(
        self,
        base: Sequence[ManifestEntry],
        changes: Changes,
        base_user: str,
        base_index: Sequence[IndexManifestEntry] = (),
        is_overwrite: bool = False,
    ) -> None:
        """Raise `Conflict` if `changes` cannot be applied to `base`, the live files of the affected partitions."""
        if not is_overwrite:
            self.check_bucket_counts([*base, *changes.files])
        try:
            merge_entries(changes.files)
            merged = merge_entries([*base, *changes.files])
        except Conflict as e:
            raise self._conflict(e.message, base_user) from e
        missing = [e.file.file_name for e in merged if e.kind is FileKind.DELETE]
        if missing:
            shown = ", ".join(missing[:_FILES_SHOWN]) + (", ..." if len(missing) > _FILES_SHOWN else "")
            raise self._conflict(f"{len(missing)} files to delete are gone already ({shown})", base_user)
        if self.schema.has_primary_key:
            self._check_levels(merged, base_user)
        self._check_deletion_vectors(merged, changes.index, base_index, base_user)

    def check_bucket_counts(self, entries: Iterable[ManifestEntry], earlier: Mapping[bytes, int] | None = None) -> None:
        """Raise `Conflict` if files of a partition were written under different bucket counts."""
        counts = dict(earlier or {})
        for e in entries:
            if e.kind is not FileKind.ADD or e.total_buckets <= 0:
                continue
            expected = counts.setdefault(e.partition, e.total_buckets)
            if expected != e.total_buckets:
                raise Conflict(
                    f"{self._partition_name(e.partition)} has {expected} buckets, and the new files were written for "
                    f"{e.total_buckets}; rescale it first (an overwrite of the partition with the new bucket count)"
                )

    def _check_levels(self, live: Sequence[ManifestEntry], base_user: str) -> None:
        levels: dict[tuple[bytes, int, int], list[ManifestEntry]] = defaultdict(list)
        for e in live:
            if e.file.level >= 1:
                levels[e.partition, e.bucket, e.file.level].append(e)
        layout = row_layout(self.schema.key_fields)
        for (partition, bucket, level), entries in levels.items():
            pair = overlapping(layout, entries)
            if pair is not None:
                raise self._conflict(
                    f"files {pair[0].file.file_name} and {pair[1].file.file_name} of level {level}, bucket {bucket} of "
                    f"{self._partition_name(partition)} would overlap in their keys",
                    base_user,
                )

    def _check_deletion_vectors(
        self,
        live: Sequence[ManifestEntry],
        changed: Sequence[IndexManifestEntry],
        base_index: Sequence[IndexManifestEntry],
        base_user: str,
    ) -> None:
        changed = [e for e in changed if e.index_file.index_type == DELETION_VECTORS]
        if not changed:
            return
        base_names = {e.index_file.file_name for e in base_index}
        missing = [e for e in changed if e.kind is FileKind.DELETE and e.index_file.file_name not in base_names]
        if missing:
            raise self._conflict(f"the index file {missing[0].index_file.file_name} is gone already", base_user)
        files = {e.file.file_name for e in live}
        removed = {e.index_file.file_name for e in changed if e.kind is FileKind.DELETE}
        with_vector = {
            r.data_file_name
            for e in base_index
            if e.index_file.index_type == DELETION_VECTORS and e.index_file.file_name not in removed
            for r in e.index_file.dv_ranges or ()
        }
        for e in changed:
            for r in (e.index_file.dv_ranges or ()) if e.kind is FileKind.ADD else ():
                if r.data_file_name not in files:
                    raise self._conflict(f"rows were deleted from {r.data_file_name}, which is gone", base_user)
                if r.data_file_name in with_vector:
                    raise self._conflict(f"{r.data_file_name} has got another deletion vector", base_user)

    def _partition_name(self, partition: bytes) -> str:
        fields = self.schema.partition_fields
        if not fields:
            return "the table"
        return "partition " + partition_path(partition_spec(fields, row_layout(fields).decode(partition), legacy=False))

    def _conflict(self, what: str, base_user: str) -> Conflict:
        return Conflict(
            f"commit conflict: {what}. The last snapshot is by user {base_user}, this commit by {self.user}. "
            "Usually two jobs compact or overwrite the same data, or an old job was started twice; reread the table "
            "and repeat the work"
        )


def overlapping(layout: RowLayout, entries: Sequence[ManifestEntry]) -> tuple[ManifestEntry, ManifestEntry] | None:
    """Two of `entries` with overlapping key ranges; None if there are none."""
    if len(entries) < 2:
        return None
    ends = layout.decode_all([e.file.min_key for e in entries] + [e.file.max_key for e in entries])
    ranks = rank_keys(ends.columns)
    least, greatest = ranks[: len(entries)], ranks[len(entries) :]
    order = sorted(range(len(entries)), key=least.__getitem__)
    for before, after in itertools.pairwise(order):
        if greatest[before] >= least[after]:
            return entries[before], entries[after]
    return None
