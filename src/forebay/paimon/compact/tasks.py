"""Dedicated compaction in tasks: plan, run each task anywhere, commit all messages.

    planner = CompactPlanner(context)
    tasks = planner.plan(full=True)                      # pure planning; tasks can be pickled
    messages = [run_task(context, task) for task in tasks]
    commit.commit(messages)                              # one snapshot, of kind COMPACT

Writers may continue meanwhile: appended files are kept. If another commit removed a file that a task read, the whole
commit is rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.base.lake_events import LakeLevels, is_heard, table_of, tell
from forebay.paimon.commit.file_changes import DELETION_VECTORS
from forebay.paimon.commit.partition_filter import PartitionFilter, partition_filter
from forebay.paimon.compact.append import (
    AppendRules,
    in_order,
    pack,
    pick_all_neighbours,
    pick_neighbours,
    rewrite_files,
)
from forebay.paimon.compact.clustering import SortOrder, sorted_batches
from forebay.paimon.compact.rewrite import MergeTreeRewriter
from forebay.paimon.compact.tree import TreePolicy
from forebay.paimon.compact.universal import CompactUnit
from forebay.paimon.compact.vectors import load_vectors
from forebay.paimon.format.commit_message import CommitMessage, CompactIncrement
from forebay.paimon.format.file_meta import DataFileMeta, IndexFileMeta
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.store.context import TableContext

UNAWARE = -1

BucketKey = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class CompactTask:
    """The compaction of some files of one bucket. Can be pickled.

    In a primary-key table, `files` are all files of the bucket, and `unit` is what to compact of them. In an append
    table, `files` are rewritten in their order, or in that of `order`. `indexes` are the bucket's deletion vectors.
    """

    partition: bytes
    bucket: int
    total_buckets: int
    files: tuple[DataFileMeta, ...]
    unit: CompactUnit | None = None
    order: SortOrder | None = None
    indexes: tuple[IndexFileMeta, ...] = ()

    @property
    def input_files(self) -> tuple[DataFileMeta, ...]:
        """The files that are read and replaced."""
        return self.files if self.unit is None else self.unit.files


@dataclass
class _BucketFiles:
    total: int
    files: list[DataFileMeta]


class CompactPlanner:
    """Plans the compaction of a table. Reads metadata only."""

    def __init__(self, table: TableContext) -> None:
        table.options.check_supported()
        self._table = table

    def plan(
        self,
        *,
        full: bool = False,
        partitions: Sequence[Mapping[str, Any]] | PartitionFilter | None = None,
        order: SortOrder | None = None,
        snapshot: Snapshot | None = None,
        buckets: Collection[int] | None = None,
    ) -> list[CompactTask]:
        """The tasks for the latest snapshot (or `snapshot`); empty if there is nothing to do.

        Without `full`, the tasks that are due by the table's options; with it, all possible ones. `partitions`
        is a list of values by column, one of which a partition must match, or a filter. `order` rewrites all files of
        append tables without buckets, sorted. `buckets` limits compaction to these buckets.
        """
        base = snapshot or self._table.snapshots.latest()
        if order is not None:
            self._check_sortable(order)
        if base is None:
            return []
        vectors = self._index_files(base)
        tasks: list[CompactTask] = []
        for (partition, bucket), bucket_files in sorted(self._buckets(base, partitions).items()):
            indexes = tuple(vectors.get((partition, bucket), ()))
            if bucket >= 0 and (buckets is None or bucket in buckets):
                tasks += self._of_bucket(partition, bucket, bucket_files, indexes, full, order)
        return tasks

    def _of_bucket(
        self,
        partition: bytes,
        bucket: int,
        bucket_files: _BucketFiles,
        indexes: tuple[IndexFileMeta, ...],
        full: bool,
        order: SortOrder | None,
    ) -> Iterator[CompactTask]:
        def task(files: Sequence[DataFileMeta], unit: CompactUnit | None = None) -> CompactTask:
            return CompactTask(partition, bucket, bucket_files.total, tuple(files), unit, order, indexes)

        options = self._table.options
        if self._table.schema.has_primary_key:
            policy = TreePolicy.of(options)
            levels = policy.levels(bucket_files.files)
            unit = policy.pick(levels, self._table.clock, full=full, has_vectors=bool(indexes))
            if unit is not None:
                yield task(bucket_files.files, unit)
            return
        rules = AppendRules.of(options)
        if order is not None:
            yield task(bucket_files.files)
        elif indexes:
            # An index file has the vectors of many files, so all of these are rewritten together.
            deleted = {v.data_file_name for index in indexes for v in index.dv_ranges or ()}
            if full or any(f.file_name in deleted for f in bucket_files.files):
                yield task(
                    in_order(f for f in bucket_files.files if f.file_name in deleted or self._is_ordered(bucket_files))
                )
        elif not self._is_ordered(bucket_files):
            for files in pack(bucket_files.files, rules, full=full):
                yield task(files)
        else:
            rewrite_all = options.compaction_force_rewrite_all_files
            files = (
                pick_all_neighbours(bucket_files.files, rules, rewrite_all=rewrite_all)
                if full
                else pick_neighbours(bucket_files.files, rules)
            )
            if any(map(rules.is_small, files)) or (files and rewrite_all):
                yield task(files)

    def _is_ordered(self, bucket_files: _BucketFiles) -> bool:
        return bucket_files.total != UNAWARE

    def _check_sortable(self, order: SortOrder) -> None:
        schema = self._table.schema
        if schema.has_primary_key or self._table.options.bucket != UNAWARE:
            raise UnsupportedOperation(
                "only append tables without buckets can be sorted: others keep their rows in an order of their own"
            )
        for name in order.columns:
            schema.field_named(name)
        if not order.columns:
            raise InvalidRequest("name at least one column to sort by")

    def _buckets(
        self, snapshot: Snapshot, partitions: Sequence[Mapping[str, Any]] | PartitionFilter | None
    ) -> dict[BucketKey, _BucketFiles]:
        filters: list[PartitionFilter | None]
        if callable(partitions):
            filters = [partitions]
        elif partitions is not None and not partitions:
            return {}
        else:
            filters = [partition_filter(self._table.schema, p) for p in partitions or ()]
        verdicts: dict[bytes, bool] = {}
        buckets: dict[BucketKey, _BucketFiles] = {}
        for e in self._table.manifests.live_files(snapshot):
            fits = verdicts.get(e.partition)
            if fits is None:
                fits = not filters or any(f is None or f(e.partition) for f in filters)
                verdicts[e.partition] = fits
            if fits:
                buckets.setdefault((e.partition, e.bucket), _BucketFiles(e.total_buckets, [])).files.append(e.file)
        if not filters and is_heard():
            tell(_levels(self._table, buckets.values()))
        return buckets

    def _index_files(self, snapshot: Snapshot) -> dict[BucketKey, list[IndexFileMeta]]:
        index_files: dict[BucketKey, list[IndexFileMeta]] = {}
        if self._table.options.deletion_vectors_enabled:
            for e in self._table.manifests.read_index(snapshot.index_manifest):
                if e.index_file.index_type == DELETION_VECTORS:
                    index_files.setdefault((e.partition, e.bucket), []).append(e.index_file)
        return index_files


def _levels(table: TableContext, buckets: Iterable[_BucketFiles]) -> LakeLevels:
    levels: dict[int, tuple[int, int]] = {}
    for bucket in buckets:
        for f in bucket.files:
            count, size = levels.get(f.level, (0, 0))
            levels[f.level] = count + 1, size + f.file_size
    return LakeLevels(table_of(table.paths.root), levels)


def run_task(table: TableContext, task: CompactTask) -> CommitMessage:
    """Run one task; return its commit message. An error leaves no new files."""
    vectors = load_vectors(table, task.partition, task.bucket, task.indexes)
    if task.unit is not None:
        table = table.able_to_rewrite(task.files)
        rewriter = MergeTreeRewriter(table, task.partition, task.bucket, vectors=vectors)
        increment = rewriter.compact(task.unit, TreePolicy.of(table.options).levels(task.files))
        return _message(task, increment)
    order = task.order
    arrange = None if order is None else lambda batches: sorted_batches(batches, order, table.options.write_buffer_size)
    increment = rewrite_files(table, task.partition, task.bucket, task.files, vectors=vectors, arrange=arrange)
    return _message(task, increment)


def _message(task: CompactTask, increment: CompactIncrement) -> CommitMessage:
    return CommitMessage(task.partition, task.bucket, task.total_buckets, compact=increment)
