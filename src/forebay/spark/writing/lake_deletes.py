"""DELETE FROM and TRUNCATE on Paimon tables.

There are three ways, from the cheapest on:

- a condition on partition columns alone drops whole partitions, and reads no data;
- in a table with primary key, tasks find the rows and write a delete of each. If another job changes one of them before
  the commit, the statement is repeated;
- in an append table, tasks rewrite the files that have matching rows without these rows (copy on write). If another
  job compacts or overwrites one of the files before the commit, the statement is repeated on the current files.

Each is one commit. Rows that are written while a DELETE runs are not deleted. forebay.spark.writing.lake_deltas and
forebay.spark.writing.lake_rewrites handle conditions that only Spark can evaluate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import Conflict, ForebayError, NotFound, UnsupportedOperation
from forebay.codec.filters import columns_of, mask
from forebay.metadata.predicate import Predicate, all_of
from forebay.paimon.commit.row_conflicts import RowConflicts
from forebay.paimon.compact.append import rewrite_files
from forebay.paimon.compact.dedicated import TRIES
from forebay.paimon.compact.running import rows_read
from forebay.paimon.files.pruning import bind_filter
from forebay.paimon.files.reader import DataFileReader
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.commit_message import CommitMessage, DataIncrement
from forebay.paimon.format.file_meta import DataFileMeta
from forebay.paimon.format.split import DataSplit
from forebay.paimon.io.closing import closed_after
from forebay.paimon.merge.spec import merge_function
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.split_reader import SplitReader
from forebay.paimon.store.context import TableContext
from forebay.paimon.table import Table
from forebay.paimon.write.incoming import DELETE, Intake
from forebay.paimon.write.retractions import check_takes_deletes
from forebay.paimon.write.table_write import WriterShard
from forebay.spark.jvm.spark_jobs import active_context
from forebay.spark.lake_jobs import SparkTasks
from forebay.spark.writing.committing import commit_and_compact
from forebay.spark.writing.lake_write import new_write


def delete_where(table: Table, predicates: Sequence[Predicate]) -> None:
    """Delete the rows that match all `predicates`, in one commit. Needs a Spark context.

    Raises `UnsupportedOperation` for tables whose rows cannot be deleted, `Conflict` if other jobs always commit first.
    """
    predicate = all_of(predicates)
    if predicate is None:
        table.new_commit().truncate()
        table.maintenance().after_commit(batch=True)
    elif predicate.columns() <= set(table.schema.partition_keys):
        _drop_partitions(table, predicate)
    elif table.schema.has_primary_key:
        check_spark_deletes(table.context, f"DELETE FROM {table.name}")
        _retry(partial(_delete_keys, table, predicate), Conflict)
    else:
        assert not table.context.options.deletion_vectors_enabled  # LakeRewrite rewrites the files of such tables
        _retry(partial(_rewrite_files, table, predicate), Conflict, NotFound)


def _retry(delete: Callable[[], None], *errors: type[ForebayError]) -> None:
    """Call `delete` until it does not raise one of `errors`, at most `TRIES` times; the last error is raised."""
    for tries_left in reversed(range(TRIES)):
        try:
            delete()
            return
        except errors:
            if not tries_left:
                raise


def _drop_partitions(table: Table, predicate: Predicate) -> None:
    latest = table.context.snapshots.latest()
    if latest is None:
        return
    existing = {e.partition for e in table.context.manifests.live_files(latest)}
    layout = row_layout(table.schema.partition_fields)
    matching = ScanFilter.of(table.schema, predicate).partitions_matching(existing)
    values = [dict(zip(table.schema.partition_keys, layout.decode(p), strict=True)) for p in sorted(matching)]
    if values:
        table.new_commit().drop_partitions(values)
        table.maintenance().after_commit(batch=True)


# ---- tables with primary key ----------------------------------------------------------------------------------------


def _delete_keys(table: Table, predicate: Predicate) -> None:
    base = table.context.snapshots.latest()
    splits = table.scan(filter=predicate).plan()
    if not splits:
        return
    runner = partial(SparkTasks, active_context())
    committer = table.new_commit()
    done: list[list[CommitMessage]] = runner(f"DELETE FROM {table.name}").run(
        _DeleteRows(table.context, predicate, len(splits)),
        list(enumerate(splits)),
        rows=[rows_read(split.files) for split in splits],
        discard=lambda results: committer.abort(m for messages in results for m in messages),
    )
    messages = [m for each in done for m in each]
    may_follow = RowConflicts(table.context, base, messages, f"DELETE FROM {table.name}")
    commit_and_compact(table, messages, None, runner, may_follow)


def check_spark_deletes(table: TableContext, what: str) -> None:
    """Raise `UnsupportedOperation` where the merge engine of a table with primary key takes no deletes by statements.

    `what` is the statement. Its deletes have no values of sequence groups, whose rows are therefore kept.
    """
    spec = merge_function(table.schema, table.paths.root)
    check_takes_deletes(spec, what)
    if spec.sequence_groups:
        raise UnsupportedOperation(
            f"{what}: the table has sequence groups, which decide about a delete by their columns; use "
            "Table.delete or Table.write_changes of forebay.paimon, and give these"
        )


@dataclass(frozen=True)
class _DeleteRows:
    """A task: finds the matching rows of a split, and writes deletes of them. `tasks` is the number of tasks."""

    table: TableContext
    predicate: Predicate
    tasks: int

    def __call__(self, task: tuple[int, DataSplit]) -> list[CommitMessage]:
        index, split = task
        reader = SplitReader(self.table, None, ScanFilter.of(self.table.schema, self.predicate))
        intake = Intake(self.table.schema)
        with new_write(self.table, WriterShard(index, self.tasks)) as write:
            for batch in reader.read(split):
                for rows in intake.batches(batch):
                    write.write_batch(rows, np.full(rows.num_rows, DELETE, np.int8))
            return write.prepare_commit()


# ---- append tables --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _File:
    partition: bytes
    bucket: int
    total_buckets: int
    file: DataFileMeta


def _rewrite_files(table: Table, predicate: Predicate) -> None:
    files = [
        _File(split.partition, split.bucket, split.total_buckets, f)
        for split in table.scan(filter=predicate).plan()
        for f in split.files
    ]
    committer = table.new_commit()
    done: list[CommitMessage | None] = SparkTasks(active_context(), f"DELETE FROM {table.name}").run(
        _RewriteWithout(table.context, predicate),
        files,
        rows=[f.file.row_count for f in files],
        discard=lambda results: committer.abort(m for m in results if m is not None),
    )
    messages = [m for m in done if m is not None]
    if not messages:
        return
    try:
        committer.commit(messages, check_conflicts=True)
    except Conflict:
        committer.abort(messages)
        raise
    table.maintenance().after_commit(batch=True)


@dataclass(frozen=True)
class _RewriteWithout:
    """A task: rewrites a file without the matching rows; None if no row matches."""

    table: TableContext
    predicate: Predicate

    def __call__(self, task: _File) -> CommitMessage | None:
        bound = bind_filter(self.predicate, self.table.schema.fields)
        fields = self.table.schema.fields_named(sorted(columns_of(bound)))
        reader = DataFileReader(self.table.io, self.table.schemas.schema, fields)
        path = self.table.paths.data_file(task.partition, task.bucket, task.file)
        with closed_after(reader.read(task.file, path)) as batches:
            if not any(pc.any(mask(bound, batch)).as_py() for batch in batches):
                return None

        def remaining(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                rest = batch.filter(pc.invert(mask(bound, batch)))
                if rest.num_rows:
                    yield rest

        rewritten = rewrite_files(self.table, task.partition, task.bucket, [task.file], arrange=remaining)
        # Readers must treat the rows as written, and not as compacted.
        new_files = tuple(replace(f, file_source=task.file.file_source) for f in rewritten.compact_after)
        increment = DataIncrement(new_files, (task.file,))
        return CommitMessage(task.partition, task.bucket, task.total_buckets, increment)
