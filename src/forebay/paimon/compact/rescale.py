"""Rescaling: rewriting the rows of existing partitions with another number of buckets.

For future partitions, only the schema changes. In an existing partition, every row must move to the new bucket of its
key; until then, writers refuse to write to the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import gcd
from typing import Any

from forebay.base.errors import Conflict, InvalidRequest, NotFound, check
from forebay.base.progress import OnProgress, no_progress
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.commit.partition_filter import PartitionFilter, partition_filter
from forebay.paimon.compact.running import TaskRunner, rows_read, within_budget
from forebay.paimon.compact.vectors import bucket_vectors
from forebay.paimon.compact.writing import TableWriteCompaction
from forebay.paimon.format.commit_message import CommitMessage, DataIncrement
from forebay.paimon.format.file_meta import DataFileMeta, ManifestEntry
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.format.split import DataSplit, DeletionFile
from forebay.paimon.read.split_reader import SplitReader
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import delete_quietly
from forebay.paimon.write.table_write import TableWrite

TRIES = 5

# Moved rows are not changes, and go to the top level of their new bucket.
_QUIET = {"changelog-producer": "none", "force-lookup": "true", "write-only": "false"}


@dataclass(frozen=True, slots=True)
class RescaleTask:
    """Some buckets of a partition whose rows move to separate new buckets. Can be pickled.

    `remainder` modulo `divisor` is the number of every bucket that is read or written.
    """

    splits: tuple[DataSplit, ...]
    buckets: int
    divisor: int
    remainder: int

    @property
    def partition(self) -> bytes:
        return self.splits[0].partition

    @property
    def rows(self) -> int:
        """The number of rows to read."""
        return sum(rows_read(split.files) for split in self.splits)


def rescale_partitions(
    table: TableContext,
    commit: FileStoreCommit,
    buckets: int,
    partition: Mapping[str, Any] | PartitionFilter | None = None,
    progress: OnProgress = no_progress,
    runner: TaskRunner | None = None,
) -> list[Snapshot]:
    """Rewrite partitions with another bucket count than `buckets`; return one snapshot for each.

    `partition` (values by column, or a filter) selects some; None means all. If a partition is written to meanwhile, it
    is rewritten again; after `TRIES` times `Conflict` is raised, and the partition is unchanged. `progress` is in rows.
    With a `runner`, as many partitions are rewritten at a time as it has parallelism, and large ones in several tasks;
    without one, sequentially in this thread.
    """
    if buckets <= 0:
        raise InvalidRequest(f"a table has at least one bucket, got {buckets}")
    if table.options.bucket <= 0:
        raise InvalidRequest("only tables with a fixed number of buckets can be rescaled")
    rows = partitions_to_rescale(table, commit, buckets, partition)
    work = _Rescaling(table, commit, buckets, progress, sum(rows.values()), runner)
    progress(0, sum(rows.values()))
    waiting, wave = sorted(rows), 1 if runner is None else max(runner.parallelism, 1)
    while waiting:
        names, waiting = waiting[:wave], waiting[wave:]
        work.rescale(names, sum(rows[name] for name in names))
    return work.snapshots


def partitions_to_rescale(
    table: TableContext,
    commit: FileStoreCommit,
    buckets: int,
    partition: Mapping[str, Any] | PartitionFilter | None = None,
) -> dict[bytes, int]:
    """The selected partitions with another bucket count than `buckets`, and the number of rows to read of each."""
    latest = commit.snapshots.latest()
    if latest is None:
        return {}
    selection = partition if callable(partition) else partition_filter(table.schema, partition)
    rows: dict[bytes, int] = {}
    for e in commit.manifests.live_files(latest):
        if e.total_buckets != buckets and (selection is None or selection(e.partition)):
            rows[e.partition] = rows.get(e.partition, 0) + e.file.row_count
    return rows


@dataclass
class _Rescaling:
    """The state of one call: the created snapshots, the number of rewritten rows and the total."""

    table: TableContext
    commit: FileStoreCommit
    buckets: int
    progress: OnProgress
    total: int
    runner: TaskRunner | None
    done: int = 0
    snapshots: list[Snapshot] = field(default_factory=list)

    def rescale(self, partitions: Sequence[bytes], rows: int) -> None:
        """Rewrite some partitions together, and commit each; retry those that were written to meanwhile."""
        waiting = list(partitions)
        for retries in reversed(range(TRIES)):
            base = self.commit.snapshots.latest()
            tasks = {} if base is None else {name: self._planned(base, name) for name in waiting}
            tasks = {name: work for name, work in tasks.items() if work}
            if base is None or not tasks:
                break
            try:
                messages = self._messages(tasks)
            except NotFound:  # the files being read were compacted and have expired
                if not retries:
                    raise
                continue
            waiting = self._committed(base, messages, retries)
            if not waiting:
                break
        self.done += rows
        self.progress(self.done, self.total)

    def _committed(self, base: Snapshot, messages: dict[bytes, list[CommitMessage]], retries: int) -> list[bytes]:
        """Commit partition by partition; return those that other commits have written to since `base`."""
        lost = []
        names = list(messages)
        for at, name in enumerate(names):
            try:
                self.snapshots.append(self.commit.replace_exactly(base, {name}, messages[name]))
            except Conflict:
                self.commit.abort(messages[name])
                lost.append(name)
                if not retries:
                    for other in names[at + 1 :]:
                        self.commit.abort(messages[other])
                    raise
        return lost

    def _planned(self, base: Snapshot, partition: bytes) -> list[RescaleTask]:
        """The tasks for a partition; empty if its bucket count is right already.

        Bucket numbers are hashes modulo the bucket count. With a common divisor of both counts, rows stay among the
        buckets with the same remainder, so each such group is a separate task.
        """
        entries = self.commit.manifests.live_files(base, {partition})
        if all(e.total_buckets == self.buckets for e in entries):
            return []
        divisor = 1 if self.runner is None else gcd(self.buckets, *{e.total_buckets for e in entries})
        groups: dict[int, list[DataSplit]] = {}
        for split in _splits(self.table, self.commit, base, entries):
            groups.setdefault(split.bucket % divisor, []).append(split)
        return [
            RescaleTask(tuple(splits), self.buckets, divisor, remainder) for remainder, splits in sorted(groups.items())
        ]

    def _messages(self, tasks: dict[bytes, list[RescaleTask]]) -> dict[bytes, list[CommitMessage]]:
        """The commit messages of each partition."""
        flat = [task for work in tasks.values() for task in work]

        def progress(done: int, _: int = 0) -> None:
            self.progress(min(self.done + done, self.total), self.total)

        if self.runner is None:
            results = [run_rescale(self.table, task, progress) for task in flat]
        else:
            results = self.runner.run(
                partial(run_rescale, within_budget(self.table, self.runner, len(flat))),
                flat,
                rows=[task.rows for task in flat],
                progress=progress,
                discard=lambda done: self.commit.abort(chain.from_iterable(done)),
            )
        remaining = iter(results)
        return {name: [m for _ in work for m in next(remaining)] for name, work in tasks.items()}


def run_rescale(
    table: TableContext,
    task: RescaleTask,
    progress: Callable[[int], None] = lambda rows: None,
) -> list[CommitMessage]:
    """Run one task; return its commit messages. An error leaves no files.

    `progress` is called with the number of rows written so far.
    """
    options = {**table.schema.options, **_QUIET, "bucket": str(task.buckets)}
    target = table.with_schema(table.schema.with_options(options))
    reader = SplitReader(table)
    compaction = TableWriteCompaction(target)
    keyed = table.schema.has_primary_key
    rows = 0
    with TableWrite(target, ignore_existing=True, compaction=compaction) as writer:
        for split in task.splits:
            for batch in reader.read_sorted(split):
                writer.write(batch)
                rows += batch.num_rows
                progress(rows)
        messages = [_settled(target, m) if keyed else m for m in writer.prepare_commit()]
    strays = {m.bucket for m in messages if m.bucket % task.divisor != task.remainder}
    check(not strays, f"rows of buckets {task.remainder} modulo {task.divisor} moved to buckets {strays}")
    return messages


def _splits(
    table: TableContext, commit: FileStoreCommit, base: Snapshot, entries: list[ManifestEntry]
) -> list[DataSplit]:
    """All files of each bucket as one split, including those of level 0 that batch readers do not see yet."""
    by_bucket: dict[int, list[ManifestEntry]] = {}
    for e in entries:
        by_bucket.setdefault(e.bucket, []).append(e)
    splits = []
    for bucket, own in sorted(by_bucket.items()):
        partition = own[0].partition
        files = tuple(sorted((e.file for e in own), key=lambda f: f.min_sequence_number))
        deletions = _deletions(table, commit, base, partition, bucket)
        splits.append(
            DataSplit(
                snapshot_id=base.id,
                partition=partition,
                bucket=bucket,
                total_buckets=own[0].total_buckets,
                files=files,
                raw_convertible=not table.schema.has_primary_key,
                deletion_files=tuple(deletions.get(f.file_name) for f in files) if deletions else None,
            )
        )
    return splits


def _deletions(
    table: TableContext, commit: FileStoreCommit, base: Snapshot, partition: bytes, bucket: int
) -> dict[str, DeletionFile]:
    vectors = bucket_vectors(table, base, partition, bucket)
    return {
        v.data_file_name: DeletionFile(table.paths.index_file(index, partition, bucket), v.offset, v.length)
        for index in vectors.index_files
        for v in index.dv_ranges or ()
    }


def _settled(table: TableContext, message: CommitMessage) -> CommitMessage:
    """New files and their compaction, as new files only. Files that were compacted away are deleted."""
    before = {f.file_name for f in message.compact.compact_before}
    after = {f.file_name: f for f in message.compact.compact_after}
    files: list[DataFileMeta] = [f for f in message.data.new_files if f.file_name not in before]
    for f in message.data.new_files:
        if f.file_name in before and f.file_name not in after:
            delete_quietly(table.io, table.paths.data_file(message.partition, message.bucket, f))
    return CommitMessage(
        message.partition,
        message.bucket,
        message.total_buckets,
        DataIncrement(new_files=(*files, *after.values())),
    )
