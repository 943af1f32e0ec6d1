"""Compaction during writing (disabled by option `write-only`)."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.paimon.compact.append import AppendCompaction
from forebay.paimon.compact.rewrite import BucketVectors
from forebay.paimon.compact.tree import TreeCompaction, TreePolicy
from forebay.paimon.compact.vectors import bucket_vectors
from forebay.paimon.format.file_meta import DataFileMeta, FileKind
from forebay.paimon.format.snapshot import CommitKind
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.context import TableContext
from forebay.paimon.write.compaction import BucketCompaction

UNAWARE = -1


class TableWriteCompaction:
    """The compaction of the buckets that one `TableWrite` writes."""

    def __init__(self, table: TableContext) -> None:
        self._table = table
        self._full_every = full_compaction_interval(table.options) if table.schema.has_primary_key else None
        self._commits: int | None = None

    def of_bucket(
        self, partition: bytes, bucket: int, files: Sequence[DataFileMeta], new_bucket: bool
    ) -> BucketCompaction | None:
        """The compaction that runs with the writes of a bucket; None if its writers do not compact."""
        options = self._table.options
        if not self._table.schema.has_primary_key:
            if options.bucket == UNAWARE or new_bucket or options.deletion_vectors_enabled:
                return None
            return AppendCompaction(self._table, partition, bucket, files)
        if new_bucket and not options.needs_lookup:
            return None
        vectors = BucketVectors()
        if options.deletion_vectors_enabled and not new_bucket:
            vectors = bucket_vectors(self._table, self._table.snapshots.latest(), partition, bucket)
        return TreeCompaction(self._table, partition, bucket, files, vectors, new_bucket)

    def full_is_due(self) -> bool:
        """Whether `full-compaction.delta-commits` commits have passed, including those of previous writers."""
        if self._full_every is None:
            return False
        if self._commits is None:
            self._commits = self._commits_since_full(self._full_every)
        self._commits += 1
        if self._commits < self._full_every:
            return False
        self._commits = 0
        return True

    def _commits_since_full(self, enough: int) -> int:
        """The number of row commits since the last compaction to the top level; counting stops at `enough`."""
        top = TreePolicy.of(self._table.options).num_levels - 1
        snapshot = self._table.snapshots.latest()
        commits = 0
        while snapshot is not None and commits < enough:
            if snapshot.commit_kind is not CommitKind.COMPACT:
                commits += 1
            elif any(
                e.kind is FileKind.ADD and e.file.level >= top
                for manifest in self._table.manifests.delta_manifests(snapshot)
                for e in self._table.manifests.read(manifest.file_name)
            ):
                break
            snapshot = self._table.snapshots.find(snapshot.id - 1)
        return commits


def full_compaction_interval(options: CoreOptions) -> int | None:
    """The number of commits between full compactions; None if there is no such rule."""
    commits = options.full_compaction_delta_commits
    if options.changelog_producer == "full-compaction":
        return max(1, commits or 1)
    return commits if commits is not None and commits > 0 else None
