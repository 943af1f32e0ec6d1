"""Rescaling: the rows of existing partitions, rewritten under another number of buckets.

A new number is a matter of the schema alone for partitions to come. In a partition that was written before, every row
must move to the bucket that its key has now; until then writers refuse to write to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forebay.base.clock import SYSTEM_CLOCK, Clock
from forebay.base.errors import Conflict, InvalidRequest, NotFound
from forebay.base.progress import OnProgress, no_progress
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.commit.partitions import partition_filter
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

# Rows that are only moved are no change to anybody, and lie settled at the top level of their new bucket.
_QUIET = {"changelog-producer": "none", "force-lookup": "true", "write-only": "false"}


def rescale_partitions(
    table: TableContext,
    commit: FileStoreCommit,
    buckets: int,
    partition: Mapping[str, Any] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    progress: OnProgress = no_progress,
) -> list[Snapshot]:
    """Rewrite partitions that have another number of buckets than `buckets`: one snapshot for each.

    `partition` (values by column) chooses some; None means all. If somebody writes to a partition meanwhile, it is
    rewritten anew; after `TRIES` times `Conflict` is raised, and the partition is as it was. `progress` is in rows.
    """
    if buckets <= 0:
        raise InvalidRequest(f"a table has at least one bucket, got {buckets}")
    if table.options.bucket <= 0:
        raise InvalidRequest("only tables with a fixed number of buckets can be rescaled")
    made: list[Snapshot] = []
    latest = commit.snapshots.latest()
    if latest is None:
        return made
    chosen = partition_filter(table.schema, partition)
    rows: dict[bytes, int] = {}
    for e in commit.manifests.live_files(latest):
        if e.total_buckets != buckets and (chosen is None or chosen(e.partition)):
            rows[e.partition] = rows.get(e.partition, 0) + e.file.row_count
    done, total = 0, sum(rows.values())
    progress(done, total)
    for name in sorted(rows):
        written = _Written(progress, done, total)
        snapshot = _rescale(table, commit, name, buckets, clock, written.say)
        made += [] if snapshot is None else [snapshot]
        done += rows[name]
        progress(done, total)
    return made


class _Written:
    """Tells how many rows are written, the `before` of earlier partitions included."""

    def __init__(self, progress: OnProgress, before: int, total: int) -> None:
        self._progress, self._before, self._total = progress, before, total

    def say(self, rows: int) -> None:
        self._progress(self._before + rows, self._total)


def _rescale(
    table: TableContext,
    commit: FileStoreCommit,
    partition: bytes,
    buckets: int,
    clock: Clock,
    written: Callable[[int], None],
) -> Snapshot | None:
    for left in reversed(range(TRIES)):
        base = commit.snapshots.latest()
        if base is None:
            return None
        entries = commit.manifests.live_files(base, {partition})
        if all(e.total_buckets == buckets for e in entries):
            return None
        messages: list[CommitMessage] = []
        try:
            messages = _rewritten(table, commit, base, entries, buckets, clock, written)
            return commit.replace_exactly(base, {partition}, messages)
        except (Conflict, NotFound):  # the latter: what was read was compacted and has expired
            commit.abort(messages)
            if not left:
                raise
    return None


def _rewritten(
    table: TableContext,
    commit: FileStoreCommit,
    base: Snapshot,
    entries: list[ManifestEntry],
    buckets: int,
    clock: Clock,
    written: Callable[[int], None],
) -> list[CommitMessage]:
    """The rows of `entries`, written to `buckets` buckets; what to commit. `written` is told how many rows are done."""
    options = {**table.schema.options, **_QUIET, "bucket": str(buckets)}
    target = table.with_schema(table.schema.with_options(options))
    reader = SplitReader(table)
    compaction = TableWriteCompaction(target, commit.snapshots, commit.manifests, clock)
    keyed = table.schema.has_primary_key
    rows = 0
    with TableWrite(
        target, commit.snapshots, commit.manifests, clock, ignore_existing=True, compaction=compaction
    ) as writer:
        for split in _splits(table, commit, base, entries):
            for batch in reader.read_sorted(split):
                writer.write(batch)
                rows += batch.num_rows
                written(rows)
        return [_settled(target, m) if keyed else m for m in writer.prepare_commit()]


def _splits(
    table: TableContext, commit: FileStoreCommit, base: Snapshot, entries: list[ManifestEntry]
) -> list[DataSplit]:
    """All files of each bucket as one split: also those of level 0 that batch readers do not see yet."""
    found: dict[int, list[ManifestEntry]] = {}
    for e in entries:
        found.setdefault(e.bucket, []).append(e)
    splits = []
    for bucket, own in sorted(found.items()):
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
    found = bucket_vectors(table, commit.manifests, base, partition, bucket)
    return {
        v.data_file_name: DeletionFile(table.paths.index_file(index, partition, bucket), v.offset, v.length)
        for index in found.index_files
        for v in index.dv_ranges or ()
    }


def _settled(table: TableContext, message: CommitMessage) -> CommitMessage:
    """New files and their compaction as new files alone. What was compacted away is deleted."""
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
