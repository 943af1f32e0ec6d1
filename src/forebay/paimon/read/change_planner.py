"""Planning reads of changes: added files, changelog files, or the difference between two snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from forebay.base.errors import InvalidRequest, NotFound
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import LEVEL_0, FileKind, ManifestEntry, ManifestFileMeta
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.format.split import DataSplit, DeletionFile
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.snapshot_planner import BucketKey, SnapshotPlanner
from forebay.paimon.read.splits import append_splits, sections_of
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import merge_entries

EntryFilter = Callable[[ManifestEntry], bool]
BucketFilter = Callable[[int], bool]
_Deletions = dict[BucketKey, dict[str, DeletionFile]]


@dataclass(frozen=True, slots=True)
class IncrementalSplit:
    """A bucket before and after an overwrite (`is_streaming`), or in two snapshots that are compared.

    Files that are in both states with the same rows are in neither half.
    """

    before: DataSplit
    after: DataSplit
    is_streaming: bool

    @property
    def snapshot_id(self) -> int:
        return self.after.snapshot_id

    @property
    def partition(self) -> bytes:
        return self.after.partition

    @property
    def bucket(self) -> int:
        return self.after.bucket

    @property
    def row_count(self) -> int:
        """The number of physical records in the files of both halves."""
        return self.before.row_count + self.after.row_count

    @property
    def file_names(self) -> list[str]:
        return [f.file_name for half in (self.before, self.after) for f in half.files]


ChangeSplit: TypeAlias = DataSplit | IncrementalSplit


def file_names(split: ChangeSplit) -> list[str]:
    """The names of the files of `split`, in order."""
    return split.file_names if isinstance(split, IncrementalSplit) else [f.file_name for f in split.files]


class ChangePlanner(SnapshotPlanner):
    """Plans reads of changes, and of snapshots filtered by `keep` (which entries to include). Thread-safe."""

    def __init__(
        self,
        table: TableContext,
        keep: EntryFilter | None = None,
        *,
        only_visible: bool = False,
        with_level0: bool = False,
        with_postponed: bool = False,
    ) -> None:
        """Create a planner.

        `only_visible`: changes are also limited to files that a read of the state includes. `with_level0`: snapshots
        include rows of level 0 even where a read of the state leaves them out. `with_postponed`: the changes of the
        postponed bucket are read as they were written.
        """
        super().__init__(table)
        self._reads_postponed = with_postponed
        self._reads_level0 = self._reads_level0 or with_level0
        self._keep, self._only_visible = keep, only_visible
        self._sorts_partitions = table.options.scan_plan_sort_partition
        self._unaware = not table.schema.has_primary_key and table.options.bucket == -1

    def entries(
        self,
        snapshot: Snapshot,
        scan_filter: ScanFilter,
        bucket_filter: BucketFilter | None = None,
        partition_test: Callable[[bytes], bool] | None = None,
    ) -> list[ManifestEntry]:
        candidates = super().entries(snapshot, scan_filter, bucket_filter, partition_test)
        return candidates if self._keep is None else [e for e in candidates if self._keep(e)]

    def _bucket_splits(
        self,
        snapshot: Snapshot,
        key: BucketKey,
        entries: Sequence[ManifestEntry],
        scan_filter: ScanFilter,
        deletions: dict[str, DeletionFile],
    ) -> Iterable[DataSplit]:
        if key[1] >= 0:
            return super()._bucket_splits(snapshot, key, entries, scan_filter, deletions)
        files = sorted((e.file for e in entries), key=lambda f: f.creation_time or 0)
        return [DataSplit(snapshot.id, *key, entries[0].total_buckets, tuple(files), True, is_streaming=True)]

    def full(
        self, snapshot: Snapshot, scan_filter: ScanFilter, bucket_filter: BucketFilter | None = None
    ) -> list[DataSplit]:
        """The splits of all rows of `snapshot`."""
        return self.in_order(self.plan(snapshot, scan_filter, bucket_filter=bucket_filter).splits)

    # -- changes ------------------------------------------------------------------------------------------------------

    def delta(
        self, snapshot: Snapshot, scan_filter: ScanFilter, bucket_filter: BucketFilter | None = None
    ) -> list[DataSplit]:
        """The files that `snapshot` added."""
        return self.added([snapshot], self._table.manifests.delta_manifests, snapshot.id, scan_filter, bucket_filter)

    def changelog(
        self, snapshot: Snapshot, scan_filter: ScanFilter, bucket_filter: BucketFilter | None = None
    ) -> list[DataSplit]:
        """The changelog files of `snapshot`."""
        return self.added(
            [snapshot], self._table.manifests.changelog_manifests, snapshot.id, scan_filter, bucket_filter
        )

    def added(
        self,
        snapshots: Iterable[Snapshot],
        manifests_of: Callable[[Snapshot], list[ManifestFileMeta]],
        snapshot_id: int,
        scan_filter: ScanFilter,
        bucket_filter: BucketFilter | None = None,
    ) -> list[DataSplit]:
        """The files added by the manifests of several snapshots, as splits that keep their order."""
        manifests = [m for s in snapshots for m in manifests_of(s) if self._manifest_may_match(m, scan_filter)]
        entries = [e for e in merge_entries(self._table.manifests.entries(manifests)) if e.kind is FileKind.ADD]
        visible = self._visible(entries) if self._only_visible else entries
        splits = []
        for (partition, bucket), group in self._grouped(visible, scan_filter, bucket_filter).items():
            files = [e.file for e in group]
            if self._spec is None:
                files.sort(key=lambda f: f.min_sequence_number)
            parts = [g.files for g in append_splits(files, self._rules)] if self._unaware else [tuple(files)]
            total = group[0].total_buckets
            splits += [
                DataSplit(snapshot_id, partition, bucket, total, part, True, is_streaming=True) for part in parts
            ]
        return self.in_order(splits)

    def overwritten(
        self, snapshot: Snapshot, scan_filter: ScanFilter, bucket_filter: BucketFilter | None = None
    ) -> list[IncrementalSplit]:
        """The rows an overwrite removed and added, by bucket. Raises `NotFound` if the removed rows have expired."""
        entries = merge_entries(self._table.manifests.entries(self._table.manifests.delta_manifests(snapshot)))
        before: Snapshot | None = None
        if self._vectors and any(e.kind is FileKind.DELETE for e in entries):
            before = self._table.snapshots.find(snapshot.id - 1)
            if before is None:
                raise NotFound(
                    f"snapshot {snapshot.id - 1} of {self._table.paths.root} has expired, so the rows that overwrite "
                    f"{snapshot.id} removed are no longer known; reread the table"
                )
        removed = self._grouped((e for e in entries if e.kind is FileKind.DELETE), scan_filter, bucket_filter)
        added = self._grouped((e for e in entries if e.kind is FileKind.ADD), scan_filter, bucket_filter)
        marked = self._marked(before, removed), self._marked(snapshot, added)
        return self._incremental(snapshot, removed, added, marked, is_streaming=True)

    def difference(
        self, start: Snapshot, end: Snapshot, scan_filter: ScanFilter, bucket_filter: BucketFilter | None = None
    ) -> list[IncrementalSplit]:
        """The buckets whose files differ between `start` and `end`, with the differing files.

        Raises `InvalidRequest` if a partition was rescaled in between, which moves rows to other buckets.
        """
        pruned = ScanFilter.of(self._table.schema, None)
        pruned.partition = scan_filter.partition
        before, after = (
            self._grouped(
                self._visible(self.entries(s, pruned, bucket_filter)), scan_filter, bucket_filter, prune=False
            )
            for s in (start, end)
        )
        if self._spec is not None:
            self._check_buckets(start, before, end, after)
        marked = self._marked(start, before), self._marked(end, after)
        for key in before.keys() & after.keys():
            old, new = (deletions.get(key, {}) for deletions in marked)
            same = self._same(
                before[key], after[key], {name for name in {*old, *new} if old.get(name) != new.get(name)}
            )
            before[key] = [e for e in before[key] if e.file.file_name not in same]
            after[key] = [e for e in after[key] if e.file.file_name not in same]
        return self._incremental(end, before, after, marked, is_streaming=False)

    def in_order(self, splits: Sequence[DataSplit]) -> list[DataSplit]:
        """`splits`, by ascending partition if option `scan.plan-sort-partition` is set."""
        if not self._sorts_partitions or not self._table.schema.partition_keys:
            return list(splits)
        layout = row_layout(self._table.schema.partition_fields)
        ranks = {p: [(v is not None, v) for v in layout.decode(p)] for p in {s.partition for s in splits}}
        return sorted(splits, key=lambda s: ranks[s.partition])

    # -- parts --------------------------------------------------------------------------------------------------------

    def _visible(self, entries: Sequence[ManifestEntry]) -> Sequence[ManifestEntry]:
        """The files that a read of the state includes: in some tables, all but those of level 0."""
        if self._reads_level0:
            return entries
        return [e for e in entries if e.file.level != LEVEL_0]

    def _grouped(
        self,
        entries: Iterable[ManifestEntry],
        scan_filter: ScanFilter,
        bucket_filter: BucketFilter | None,
        prune: bool = True,
    ) -> dict[BucketKey, list[ManifestEntry]]:
        """The entries that may match, grouped by bucket."""
        readable = self._readable(bucket_filter)
        in_buckets = [e for e in entries if readable is None or readable(e.bucket)]
        partitions = scan_filter.partitions_matching(e.partition for e in in_buckets)
        candidates = [
            e
            for e in in_buckets
            if e.partition in partitions and scan_filter.bucket_may_match(e.bucket, e.total_buckets)
        ]
        if prune:
            by_key = self._spec is not None
            hits = self._matching(candidates, scan_filter.key if by_key else scan_filter.rows, by_key=by_key)
            candidates = [e for e, hit in zip(candidates, hits, strict=True) if hit]
        grouped: dict[BucketKey, list[ManifestEntry]] = {}
        for e in candidates:
            grouped.setdefault((e.partition, e.bucket), []).append(e)
        return grouped

    def _marked(self, snapshot: Snapshot | None, buckets: dict[BucketKey, list[ManifestEntry]]) -> _Deletions:
        """The deletion vectors of a snapshot's files, if the table has any."""
        return self._deletions(snapshot, buckets) if self._vectors and snapshot is not None else {}

    @staticmethod
    def _incremental(
        end: Snapshot,
        before: dict[BucketKey, list[ManifestEntry]],
        after: dict[BucketKey, list[ManifestEntry]],
        marked: tuple[_Deletions, _Deletions],
        is_streaming: bool,
    ) -> list[IncrementalSplit]:
        """The files before and after, with their deletion vectors, `marked`."""
        splits = []
        for key in dict.fromkeys([*before, *after]):
            old, new = before.get(key, []), after.get(key, [])
            if not old and not new:
                continue
            plain = DataSplit(end.id, key[0], key[1], (new or old)[0].total_buckets, (), False)
            halves = []
            for entries, deletions in zip((old, new), marked, strict=True):
                vectors = tuple(deletions.get(key, {}).get(e.file.file_name) for e in entries)
                files = tuple(e.file for e in entries)
                halves.append(replace(plain, files=files, deletion_files=vectors if any(vectors) else None))
            splits.append(IncrementalSplit(halves[0], halves[1], is_streaming))
        return splits

    def _same(self, before: Sequence[ManifestEntry], after: Sequence[ManifestEntry], marked: set[str]) -> set[str]:
        """The names of files whose rows are the same before and after. `marked` have another deletion vector now.

        In a primary-key table, a file qualifies only if no other file overlaps its key range: a row of a file that is
        in both states may be replaced by a row of a file that is not.
        """
        shared = {e.identity for e in before} & {e.identity for e in after}
        names = {e.file.file_name for e in before if e.identity in shared} - marked
        if self._spec is None or not names:
            return names
        every = {e.identity: e.file for e in (*before, *after)}
        schema = self._table.schema
        same: set[str] = set()
        for section in sections_of(list(every.values()), row_layout(schema.fields_named(schema.trimmed_primary_keys))):
            inside = {f.file_name for run in section for f in run}
            if inside <= names:
                same |= inside
        return same

    def _check_buckets(
        self,
        start: Snapshot,
        before: dict[BucketKey, list[ManifestEntry]],
        end: Snapshot,
        after: dict[BucketKey, list[ManifestEntry]],
    ) -> None:
        counts = {key[0]: entries[0].total_buckets for key, entries in before.items()}
        for key, entries in after.items():
            old, new = counts.get(key[0], entries[0].total_buckets), entries[0].total_buckets
            if old != new:
                where = self._table.paths.partition_directory(key[0]) or "the table"
                raise InvalidRequest(
                    f"{where} has {old} buckets in snapshot {start.id} and {new} in snapshot {end.id}; "
                    "snapshots from before and after a rescale cannot be compared"
                )
