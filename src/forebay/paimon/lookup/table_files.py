"""The data files of a table by bucket, kept up to date incrementally from new snapshots."""

from __future__ import annotations

from collections.abc import Iterable

from forebay.base.errors import Conflict, NotFound
from forebay.paimon.format.file_meta import LEVEL_0, FileKind, ManifestEntry
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.format.split import DataSplit, DeletionFile
from forebay.paimon.lookup.local_files import copy_name
from forebay.paimon.merge.spec import merge_function
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.snapshot_planner import BucketKey, SnapshotPlanner
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import merge_entries

_FOLLOWED_MAX = 50
"""With more new snapshots than this, the latest one is planned from scratch."""

_Buckets = dict[int, dict[str, ManifestEntry]]


class TableFiles(SnapshotPlanner):
    """The files of the latest snapshot found by `refresh`. Not thread-safe."""

    def __init__(self, table: TableContext) -> None:
        super().__init__(table)
        self._reads_level0 = merge_function(table.schema).reads_level0
        self._snapshot: Snapshot | None = None
        self._files: dict[bytes, _Buckets] = {}
        self._vectors_of: dict[BucketKey, dict[str, DeletionFile]] = {}

    @property
    def snapshot_id(self) -> int | None:
        return None if self._snapshot is None else self._snapshot.id

    def refresh(self) -> bool:
        """Advance to the latest snapshot; return whether it is a new one."""
        latest = self._table.snapshots.latest()
        before = self._snapshot
        if latest == before:
            return False
        self._snapshot = None  # if this fails half-way, the state is unusable
        steps = self._steps(before, latest)
        if steps is None or not self._follow(steps):
            self._replan(latest)
        self._snapshot = latest
        return True

    def total_buckets(self, partition: bytes) -> int | None:
        """The number of buckets of a partition; -1 if they are dynamic, None if it has no files."""
        for files in self._files.get(partition, {}).values():
            for entry in files.values():
                return entry.total_buckets
        return None

    def splits(self, partition: bytes, bucket: int | None) -> list[DataSplit]:
        """One split with the visible files of the bucket, or of each bucket of the partition (None), if it has any."""
        buckets = self._files.get(partition, {})
        bucket_splits = []
        for number in buckets if bucket is None else [bucket]:
            entries = [e for e in buckets.get(number, {}).values() if self._reads_level0 or e.file.level != LEVEL_0]
            if not entries:
                continue
            vectors = self._vectors_of.get((partition, number), {})
            deletions = tuple(vectors.get(e.file.file_name) for e in entries)
            bucket_splits.append(
                DataSplit(
                    self.snapshot_id or 0,
                    partition,
                    number,
                    entries[0].total_buckets,
                    tuple(e.file for e in entries),
                    False,
                    deletion_files=deletions if any(deletions) else None,
                )
            )
        return bucket_splits

    def names(self) -> set[str]:
        """The names of the copies of all files."""
        return {
            copy_name(e.file, self._vectors_of.get((partition, bucket), {}).get(e.file.file_name))
            for partition, buckets in self._files.items()
            for bucket, files in buckets.items()
            for e in files.values()
        }

    # -- following ----------------------------------------------------------------------------------------------------

    def _steps(self, before: Snapshot | None, latest: Snapshot | None) -> list[Snapshot] | None:
        """The snapshots after `before`, up to `latest`; None if the changes between them cannot be followed."""
        if before is None or latest is None or not 0 < latest.id - before.id <= _FOLLOWED_MAX:
            return None
        if self._vectors or self._table.snapshots.find(before.id) != before:  # rolled back, or expired
            return None
        between = [self._table.snapshots.find(i) for i in range(before.id + 1, latest.id)]
        snapshots = [s for s in between if s is not None]
        return [*snapshots, latest] if len(snapshots) == len(between) else None

    def _follow(self, steps: Iterable[Snapshot]) -> bool:
        """Apply the additions and deletions of `steps`; False if they do not fit the known state."""
        try:
            for snapshot in steps:
                for e in merge_entries(self._table.manifests.entries(self._table.manifests.delta_manifests(snapshot))):
                    if e.bucket < 0:  # postponed: no row of the table yet
                        continue
                    files = self._files.setdefault(e.partition, {}).setdefault(e.bucket, {})
                    # A file that only moved to another level is deleted and added under the same name.
                    if e.kind is FileKind.ADD:
                        files[e.file.file_name] = e
                    elif files.get(e.file.file_name, e).identity == e.identity:
                        files.pop(e.file.file_name, None)
        except (Conflict, NotFound):  # a concurrent rollback or expiry
            return False
        self._files = {p: {b: f for b, f in buckets.items() if f} for p, buckets in self._files.items()}
        return True

    def _replan(self, latest: Snapshot | None) -> None:
        self._files, self._vectors_of = {}, {}
        if latest is None:
            return
        for e in self.entries(latest, ScanFilter.of(self._table.schema, None)):
            self._files.setdefault(e.partition, {}).setdefault(e.bucket, {})[e.file.file_name] = e
        if self._vectors:
            buckets = {(p, b): list(files.values()) for p, bs in self._files.items() for b, files in bs.items()}
            self._vectors_of = self._deletions(latest, buckets)
