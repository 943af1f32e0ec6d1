"""Planning a batch read: returns the splits for a snapshot and a filter. Data files are not opened.

The filter prunes manifests, partitions, buckets and files, in this order. In primary-key tables a file may be pruned by
its values only together with all files whose keys overlap its own; otherwise a row that it replaces would reappear. By
key, any file may be pruned.

Files in the postponed bucket (option `bucket` = -2) hold changes in the order of their arrival. They become rows of the
table when a compaction moves them into its buckets; until then, no read of the state includes them, as in Java Paimon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from forebay.base.errors import InvalidRequest, NotFound
from forebay.codec.filters import BoundPredicate, columns_of
from forebay.metadata.predicate import Predicate
from forebay.paimon.files.pruning import filter_columns, may_match
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import LEVEL_0, DataFileMeta, ManifestEntry, ManifestFileMeta
from forebay.paimon.format.manifest_rows import ManifestRows, Rows
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.format.split import DataSplit, DeletionFile
from forebay.paimon.format.stats import ColumnStats
from forebay.paimon.merge.spec import MergeEngine, MergeSpec, merge_function
from forebay.paimon.read.file_statistics import FileStatistics
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.splits import SplitGroup, SplitRules, append_splits, merge_tree_splits
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import SelectedRows, live_of

DELETION_VECTORS = "DELETION_VECTORS"
_MERGING_ENGINES = (MergeEngine.PARTIAL_UPDATE, MergeEngine.AGGREGATION)

BucketKey = tuple[bytes, int]


@dataclass(frozen=True)
class Plan:
    """The plan for reading one snapshot. `snapshot` is None for a table without snapshots.

    `accepted` are the parts of the filter that pruning has applied exactly; `remaining` must still be applied to rows
    (a `SplitReader` with the same filter does so).
    """

    snapshot: Snapshot | None
    splits: tuple[DataSplit, ...]
    accepted: tuple[Predicate, ...] = ()
    remaining: tuple[Predicate, ...] = ()


class SnapshotPlanner:
    """Plans batch reads of one table. Thread-safe."""

    _reads_postponed = False

    def __init__(self, table: TableContext) -> None:
        self._table = table
        self._spec: MergeSpec | None = merge_function(table.schema) if table.schema.has_primary_key else None
        options = table.options
        self._rules = SplitRules(options.source_split_target_size, options.source_split_open_file_cost)
        self._vectors = options.deletion_vectors_enabled
        self._reads_level0 = self._spec is None or self._spec.reads_level0

    def plan(
        self,
        snapshot: Snapshot | None,
        scan_filter: ScanFilter | None = None,
        limit: int | None = None,
        bucket_filter: Callable[[int], bool] | None = None,
        partition_test: Callable[[bytes], bool] | None = None,
    ) -> Plan:
        """The splits of `snapshot` that may contain matching rows; with `limit`, only as many as it needs."""
        check_limit(limit)
        pruning = scan_filter or ScanFilter.of(self._table.schema, None)
        if snapshot is None:
            return Plan(None, (), pruning.accepted, pruning.remaining)
        buckets: dict[BucketKey, list[ManifestEntry]] = {}
        for entry in self.entries(snapshot, pruning, bucket_filter, partition_test):
            buckets.setdefault((entry.partition, entry.bucket), []).append(entry)
        deletions = self._deletions(snapshot, buckets) if self._vectors else {}
        splits = [
            split
            for key, entries in buckets.items()
            for split in self._bucket_splits(snapshot, key, entries, pruning, deletions.get(key, {}))
        ]
        return Plan(snapshot, tuple(self._limited(splits, pruning, limit)), pruning.accepted, pruning.remaining)

    def entries(
        self,
        snapshot: Snapshot,
        scan_filter: ScanFilter,
        bucket_filter: Callable[[int], bool] | None = None,
        partition_test: Callable[[bytes], bool] | None = None,
    ) -> list[ManifestEntry]:
        """The live files in partitions and buckets of `snapshot` that may match, pruned by keys and (append) values."""
        parts = []
        for manifest in self._table.manifests.data_manifests(snapshot):
            if self._manifest_may_match(manifest, scan_filter):
                rows = self._table.manifests.rows(manifest.file_name)
                places = _places(rows, scan_filter, self._readable(bucket_filter), partition_test)
                if len(places):
                    parts.append(SelectedRows(manifest.file_name, rows, places))
        live = live_of(parts)
        by_key = self._spec is not None
        bound = scan_filter.key if by_key else scan_filter.rows
        if bound is not None:
            statistics = self._statistics(bound, by_key=by_key)
            hits = statistics.matching_rows([(part.rows, part.positions) for part in live], bound)
            live = [replace(part, positions=rows) for part, rows in zip(live, hits, strict=True)]
        return self._table.manifests.pick(live)

    def _readable(self, bucket_filter: Callable[[int], bool] | None) -> Callable[[int], bool] | None:
        """`bucket_filter`, without the postponed bucket unless this planner reads it."""
        if self._reads_postponed or self._spec is None:
            return bucket_filter
        return lambda bucket: bucket >= 0 and (bucket_filter is None or bucket_filter(bucket))

    def _matching(self, entries: Sequence[ManifestEntry], bound: BoundPredicate | None, *, by_key: bool) -> list[bool]:
        """For each file, whether it may contain a matching row."""
        if bound is None:
            return [True] * len(entries)
        hits: list[bool] = self._statistics(bound, by_key=by_key).matching([e.file for e in entries], bound).tolist()
        return hits

    def _statistics(self, bound: BoundPredicate, *, by_key: bool) -> FileStatistics:
        names = columns_of(bound)
        columns = [c for c in filter_columns(self._table.schema.fields) if c.name in names]
        return FileStatistics(self._table.schemas.schema, columns, use_keys=by_key)

    def _manifest_may_match(self, manifest: ManifestFileMeta, scan_filter: ScanFilter) -> bool:
        stats, fields = manifest.partition_stats, self._table.schema.partition_fields
        if scan_filter.partition is None or len(stats.null_counts) != len(fields):
            return True
        layout = row_layout(fields)
        low, high = layout.decode(stats.min_values), layout.decode(stats.max_values)
        ranges = {f.name: ColumnStats(low[i], high[i], stats.null_counts[i]) for i, f in enumerate(fields)}
        # The number of entries is not comparable with null counts, so a huge count keeps "all null" from being
        # concluded.
        return may_match(scan_filter.partition, lambda column: ranges.get(column.name), 1 << 62)

    # -- splits -------------------------------------------------------------------------------------------------------

    def _bucket_splits(
        self,
        snapshot: Snapshot,
        key: BucketKey,
        entries: Sequence[ManifestEntry],
        scan_filter: ScanFilter,
        deletions: dict[str, DeletionFile],
    ) -> Iterable[DataSplit]:
        total = max(e.total_buckets for e in entries)
        for group in self._groups(entries, scan_filter):
            files = tuple(deletions.get(f.file_name) for f in group.files)
            yield DataSplit(
                snapshot_id=snapshot.id,
                partition=key[0],
                bucket=key[1],
                total_buckets=total,
                files=group.files,
                raw_convertible=group.raw_convertible,
                deletion_files=files if any(files) else None,
            )

    def _groups(self, entries: Sequence[ManifestEntry], scan_filter: ScanFilter) -> list[SplitGroup]:
        spec = self._spec
        if spec is None:
            return append_splits([e.file for e in entries], self._rules)
        if not self._reads_level0:
            entries = [e for e in entries if e.file.level != LEVEL_0]
        hits = dict(zip((e.file.file_name for e in entries), self._value_hits(entries, scan_filter, spec), strict=True))

        def may_hold(section: Sequence[DataFileMeta]) -> bool:
            return any(hits[f.file_name] for f in section)

        fields = self._table.schema.fields_named(self._table.schema.trimmed_primary_keys)
        return merge_tree_splits(
            [e.file for e in entries],
            self._rules,
            row_layout(fields),
            one_file_is_enough=self._vectors or spec.engine is MergeEngine.FIRST_ROW,
            may_hold=may_hold,
        )

    def _value_hits(self, entries: Sequence[ManifestEntry], scan_filter: ScanFilter, spec: MergeSpec) -> list[bool]:
        """For each file, whether its own rows may match; always true where rows are merged from several files."""
        if scan_filter.rows is None or (spec.engine in _MERGING_ENGINES and (self._reads_level0 or not self._vectors)):
            return [True] * len(entries)
        return self._matching(entries, scan_filter.rows, by_key=False)

    def _limited(self, splits: list[DataSplit], scan_filter: ScanFilter, limit: int | None) -> list[DataSplit]:
        if limit is None or scan_filter.rows is not None or not all(s.raw_convertible for s in splits):
            return splits
        selected: list[DataSplit] = []
        rows = 0
        for split in splits:
            if rows >= limit:
                break
            selected.append(split)
            rows += _sure_rows(self._table.schema, split)
        return selected

    def _deletions(
        self, snapshot: Snapshot, buckets: dict[BucketKey, list[ManifestEntry]]
    ) -> dict[BucketKey, dict[str, DeletionFile]]:
        deletions: dict[BucketKey, dict[str, DeletionFile]] = {}
        for entry in self._table.manifests.read_index(snapshot.index_manifest):
            index = entry.index_file
            key = (entry.partition, entry.bucket)
            if index.index_type != DELETION_VECTORS or key not in buckets:
                continue
            path = self._table.paths.index_file(index, entry.partition, entry.bucket)
            for vector in index.dv_ranges or ():
                deletions.setdefault(key, {})[vector.data_file_name] = DeletionFile(
                    path, vector.offset, vector.length, vector.cardinality
                )
        return deletions

    # -- time travel --------------------------------------------------------------------------------------------------

    def latest(self) -> Snapshot | None:
        return self._table.snapshots.latest()

    def at_timestamp(self, millis: int) -> Snapshot:
        """The latest snapshot at time `millis`. Raises `NotFound` if the table's history begins later."""
        snapshot = self._table.snapshots.at_or_before(millis)
        if snapshot is None:
            raise NotFound(f"{self._table.paths.root} has no snapshot as old as {millis} ms since 1970")
        return snapshot

    def at_watermark(self, watermark: int) -> Snapshot:
        """The first snapshot whose watermark is at least `watermark`. Raises `NotFound` if there is none yet."""
        snapshot = self._table.snapshots.at_watermark(watermark)
        if snapshot is None:
            raise NotFound(f"{self._table.paths.root} has no snapshot with a watermark of {watermark} or later")
        return snapshot


def check_limit(limit: int | None) -> None:
    """Raise `InvalidRequest` unless `limit` is None or a number of rows, 0 or more."""
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise InvalidRequest(f"limit is a number of rows, 0 or more; got {limit!r}")


def _places(
    rows: ManifestRows,
    scan_filter: ScanFilter,
    bucket_filter: Callable[[int], bool] | None,
    partition_test: Callable[[bytes], bool] | None,
) -> Rows:
    """The entries in partitions and buckets that may match."""
    mask = np.ones(len(rows), np.bool_)
    if scan_filter.partition is not None:
        matching = scan_filter.partitions_matching(rows.partitions)
        mask = rows.of_partitions([p in matching for p in rows.partitions])
    if partition_test is not None:
        mask = mask & rows.of_partitions([partition_test(p) for p in rows.partitions])
    if bucket_filter is not None or scan_filter.fixes_buckets:
        allowed = [
            (bucket_filter is None or bucket_filter(bucket)) and scan_filter.bucket_may_match(bucket, total)
            for bucket, total in rows.buckets_of_totals
        ]
        mask = mask & rows.of_buckets(allowed)
    return np.flatnonzero(mask)


def exact_rows(schema: TableSchema, split: DataSplit) -> int | None:
    """The number of rows that an unfiltered read of `split` returns, if metadata alone determine it."""
    if not split.raw_convertible:
        return None
    deletions = [d for d in split.deletion_files or () if d is not None]
    if any(d.cardinality is None for d in deletions):
        return None
    if any(_may_hold_deletes(schema, f) for f in split.files):
        return None
    return _sure_rows(schema, split)


def _may_hold_deletes(schema: TableSchema, file: DataFileMeta) -> bool:
    """Whether a file of a raw split may hold deletes, because their count is unknown or unreliable.

    The reader then looks for deletes itself (SplitReader.read).
    """
    return schema.has_primary_key and (file.level == LEVEL_0 or file.delete_row_count is None)


def _sure_rows(schema: TableSchema, split: DataSplit) -> int:
    """The minimum number of rows of a raw split."""
    rows = sum(f.row_count - (f.delete_row_count or 0) for f in split.files if not _may_hold_deletes(schema, f))
    for deletion in split.deletion_files or ():
        if deletion is not None:
            if deletion.cardinality is None:
                return 0
            rows -= deletion.cardinality
    return max(0, rows)
