"""Reads of live tables in Spark's workers: from splits to record batches with exactly Spark's schema.

A `LiveRead` is pickled once for a scan, an `InputPartition` for each task. They contain all that a worker needs. A
worker process opens one connection to a cluster and reuses it in later tasks. Batches have about `BATCH_ROWS` rows:
smaller batches cost time in the JVM, larger ones memory.

Spark runs a failed task again from its beginning. The task then reads the same rows: the log between two offsets never
changes, and buckets of a primary-key table belong to a table snapshot (`open_for_query`). Clusters without table
snapshots are the exception: there a bucket is read in its current state.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from forebay.api.changes import BUCKET_COLUMN, CHANGE_TYPE_COLUMN, COMMIT_TIMESTAMP_COLUMN, INSERT, LOG_OFFSET_COLUMN
from forebay.base.errors import InternalError, NotFound
from forebay.client.arrays import rows_without_columns
from forebay.client.connection import Connection, shared_connection
from forebay.client.reading.bucket_reader import BucketReader
from forebay.client.reading.live_cursor import live_reader
from forebay.client.reading.log_decode import NO_OFFSET
from forebay.client.reading.replay import ReplayCursor, rows_at
from forebay.client.reading.snapshot_cursor import GONE, snapshot_reader
from forebay.client.reading.table_snapshot import TableSnapshot
from forebay.client.row_view import RowView
from forebay.client.settings import Settings
from forebay.codec.casting.conform import cast_batch
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import TableBucket, TableInfo
from forebay.spark.options import SERVER_SCAN
from forebay.spark.reading.plan import OverrideFinder, SplitsPartition
from forebay.spark.workers import short_errors
from forebay.unionread.reading import UnionReader
from forebay.unionread.splits import (
    KeyLookupSplit,
    KvBucketSplit,
    LakeSnapshotSplit,
    LogSplit,
    UnionSplit,
)

BATCH_ROWS = 1 << 16
"""Rows of a batch for the JVM: 32 to 64 thousand are fastest."""

SESSIONS_PER_TASK = 2
"""The default number of buckets that one task scans at the same time."""

_SESSIONS = "client.scanner.kv.max-sessions"

_OF_SNAPSHOT_ROWS = {
    "change_type": (CHANGE_TYPE_COLUMN, INSERT, pa.string()),
    "offset": (LOG_OFFSET_COLUMN, NO_OFFSET, pa.int64()),
    "timestamp": (COMMIT_TIMESTAMP_COLUMN, None, pa.timestamp("ms", "UTC")),
}
"""The name, value and type of metadata columns for rows of a snapshot. (An Arrow scalar would import pandas.)"""


class TaskRead:
    """Reads the splits of one scan, of either side. Picklable."""

    def __call__(self, tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The entry point of a Python worker: `tasks` is one batch with one value, the pickled `SplitsPartition`."""
        for partition in sent_partitions(tasks, SplitsPartition):
            yield from (partition.reader or self).read(partition)

    def read(self, partition: SplitsPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task's splits. Raises `ForebayError`, which names the table."""
        raise NotImplementedError(f"{type(self).__name__} does not read")


@dataclass(frozen=True)
class LiveRead(TaskRead):
    """Reads the splits of one scan.

    `columns` are the requested columns of the table. `include` are metadata columns of the log before them
    (`change_type`, `offset`, `timestamp`); rows of snapshots are inserts there, without an offset and a timestamp.
    `schema` is the schema that Spark expects.
    """

    settings: Settings
    info: TableInfo
    columns: tuple[str, ...]
    schema: pa.Schema
    predicate: Predicate | None = None
    limit: int | None = None
    strategy: str = SERVER_SCAN
    include: tuple[str, ...] = ()

    @cached_property
    def view(self) -> RowView:
        """The columns and the filter, bound to the table's schema."""
        return RowView(self.info, self.columns, self.predicate)

    def read(self, partition: SplitsPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task's splits. Raises `ForebayError`, which names the table and, if known, the bucket."""
        with short_errors(f"reading table {self.info.path}"):
            options = {_SESSIONS: SESSIONS_PER_TASK, **dict(self.settings.user_options)}
            connection = shared_connection(replace(self.settings, user_options=tuple(sorted(options.items()))))
            yield from for_spark(self._rows(connection, partition), self.schema, self.limit)

    def _rows(self, connection: Connection, partition: SplitsPartition) -> Iterator[pa.RecordBatch]:
        logs = [split for split in partition.splits if isinstance(split, LogSplit)]
        buckets = [split.bucket for split in partition.splits if isinstance(split, KvBucketSplit)]
        lake = [part for part in partition.splits if isinstance(part, BoundUnionSplit)]
        for reader, parts in groupby(lake, attrgetter("reader")):
            for split, batch in reader.read_each([part.split for part in parts], connection):
                yield from snapshot_inserts([batch], self.include, _bucket_of(split))
        for part in partition.splits:
            if isinstance(part, InlineRows):
                yield from part.batches()
            elif isinstance(part, KeyLookupSplit):
                yield from self._rows_of_keys(connection, part)
        if logs:
            yield from self._log_rows(connection, logs)
        for together in [[bucket] for bucket in buckets] if "bucket" in self.include else [buckets]:
            if together:
                rows = self._bucket_rows(connection, partition, together)
                yield from snapshot_inserts(rows, self.include, together[0].bucket)

    def _rows_of_keys(self, connection: Connection, part: KeyLookupSplit) -> Iterator[pa.RecordBatch]:
        from forebay.client.reading.key_cursor import key_reader

        with key_reader(connection, self.view, dict(part.keys), self.limit, with_position=False) as rows:
            yield from rows

    def _bucket_rows(
        self, connection: Connection, partition: SplitsPartition, buckets: list[TableBucket]
    ) -> Iterator[pa.RecordBatch]:
        if partition.snapshot is not None:
            kv = [split for split in partition.splits if isinstance(split, KvBucketSplit)]
            after = {split.bucket: split.after for split in kv if split.after is not None}
            yield from self._snapshot_rows(connection, partition.snapshot.on(connection), buckets, after)
            return
        if self.strategy == SERVER_SCAN:
            with live_reader(connection, self.view, buckets, self.limit) as rows:
                yield from rows
            return
        for bucket in buckets:
            yield from BucketReader(connection, self.view, ReplayCursor(connection, self.view, bucket), self.limit)

    def _snapshot_rows(
        self,
        connection: Connection,
        snapshot: TableSnapshot,
        buckets: list[TableBucket],
        after: Mapping[TableBucket, bytes],
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a table snapshot. If the server no longer has it, they are rebuilt from the changelog.

        Rebuilding up to the snapshot's log offsets takes longer and needs memory for a bucket, but gives the same rows.
        It is needed when a server restarts during a query, and when an old plan is run again. It orders rows
        differently, so it cannot continue a bucket that was read in part: then the task fails, and its next attempt
        rebuilds all buckets.
        """
        reader = snapshot_reader(snapshot, self.view, buckets, self.limit, after)
        try:
            with reader:
                yield from reader
        except NotFound as e:
            if e.code not in GONE or reader.partly_read:
                raise
            for bucket in reader.unread:
                rows = rows_at(connection, self.view, bucket, snapshot.log_offsets[bucket])
                if rows is None:
                    raise
                yield from rows

    def _log_rows(self, connection: Connection, splits: list[LogSplit]) -> Iterator[pa.RecordBatch]:
        reader = connection.table(self.info).changes(
            {split.bucket: split.start for split in splits},
            {split.bucket: split.stop for split in splits},
            columns=self.columns,
            filter=self.predicate,
            include=self.include,
        )
        with closing(reader):
            yield from reader
            self._check_complete(splits, reader.position)

    def _check_complete(self, splits: list[LogSplit], positions: object) -> None:
        """A task must never be silently short: every split has to be read to its end."""
        if not isinstance(positions, dict):
            raise InternalError(f"the log reader of {self.info.path} has no positions")
        for split in splits:
            reached = positions.get(split.bucket, split.start)
            if reached < split.stop:
                raise InternalError(
                    f"the log of bucket {split.bucket} of table {self.info.path} ended at offset {reached} instead of "
                    f"{split.stop}"
                )


Sent = TypeVar("Sent", bound=InputPartition)


def sent_partitions(tasks: Iterable[pa.RecordBatch], kind: type[Sent]) -> Iterator[Sent]:
    """The input partitions of class `kind` that Spark has sent to a worker, each pickled in a row."""
    for batch in tasks:
        for stream in map(io.BytesIO, batch.column(0).to_pylist()):
            partition = pickle.load(stream)
            rest = stream.read()
            if isinstance(partition, SplitsPartition) and rest:
                partition = partition.resumed(rest)
            if isinstance(partition, kind):
                yield partition


def for_spark(batches: Iterator[pa.RecordBatch], schema: pa.Schema, limit: int | None) -> Iterator[pa.RecordBatch]:
    """The first `limit` rows (None: all) in batches of about `BATCH_ROWS`, with exactly Spark's `schema`."""
    if limit is not None:
        batches = first_rows(batches, limit)
    if not schema.names:
        yield from counted(batches)
        return
    for batch in gathered(batches, BATCH_ROWS):
        yield cast_batch(batch, schema, truncate=True)


def snapshot_inserts(
    batches: Iterable[pa.RecordBatch], include: Sequence[str], bucket: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows of a snapshot with the log's metadata columns `include` before them.

    `bucket` is the bucket of all rows; it is needed if "bucket" is in `include`.
    """
    by_name = {**_OF_SNAPSHOT_ROWS, "bucket": (BUCKET_COLUMN, bucket, pa.int32())}
    columns = [by_name[name] for name in include]
    for batch in batches:
        arrays = [pa.repeat(pa.scalar(value, t), batch.num_rows) for _, value, t in columns]
        names = [*(name for name, _, _ in columns), *batch.schema.names]
        yield pa.RecordBatch.from_arrays([*arrays, *batch.columns], names) if columns else batch


def _bucket_of(split: UnionSplit) -> int | None:
    """The bucket of all rows of a split; None for lookups, which may be in several."""
    if isinstance(split, LakeSnapshotSplit):
        return split.lake.bucket()
    return None if isinstance(split, KeyLookupSplit) else split.bucket.bucket


def first_rows(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """The first `limit` rows of `batches`, consuming no more batches than needed."""
    remaining = limit
    iterator = iter(batches)
    try:
        while remaining > 0:
            batch = next(iterator, None)
            if batch is None:
                return
            yield batch if batch.num_rows <= remaining else batch.slice(0, remaining)
            remaining -= batch.num_rows
    finally:
        close: Callable[[], None] | None = getattr(iterator, "close", None)
        if close is not None:
            close()


def gathered(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at most `rows` and, except the last one, at least `rows` // 2 rows."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if waiting and count + batch.num_rows > rows:
            yield joined(waiting)
            waiting, count = [], 0
        start = 0
        while batch.num_rows - start > rows:
            yield batch.slice(start, rows)
            start += rows
        waiting.append(batch.slice(start) if start else batch)
        count += batch.num_rows - start
        if count > rows // 2:
            yield joined(waiting)
            waiting, count = [], 0
    if waiting:
        yield joined(waiting)


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch with the rows of all `batches`."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same number of rows without columns, which is all that count(*) needs."""
    rows = sum(batch.num_rows for batch in batches)
    if rows:
        yield rows_without_columns(rows)


@dataclass(frozen=True, slots=True, repr=False)
class BoundUnionSplit:
    """A split of a union read, bound to its reader. `rows` is an estimate; None if the lake has none.

    The splits of one task share their reader when they are pickled together.
    """

    reader: UnionReader
    split: UnionSplit

    @property
    def rows(self) -> int | None:
        return self.split.rows

    def __repr__(self) -> str:
        return f"BoundUnionSplit({type(self.split).__name__}, rows={self.rows})"


@dataclass(frozen=True, slots=True, repr=False)
class InlineRows:
    """Rows that the driver has looked up and sends with a task, as an Arrow stream; None for rows without columns."""

    rows: int
    stream: bytes | None

    @classmethod
    def of(cls, batches: Sequence[pa.RecordBatch]) -> InlineRows:
        """The rows of `batches`, as one message stream of Arrow."""
        rows = sum(batch.num_rows for batch in batches)
        if not rows or not batches[0].num_columns:
            return cls(rows, None)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return cls(rows, sink.getvalue().to_pybytes())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows."""
        if self.stream is not None:
            yield from pa.ipc.open_stream(self.stream)
        elif self.rows:
            yield rows_without_columns(self.rows)

    def __repr__(self) -> str:
        return f"InlineRows({self.rows})"


Split = KvBucketSplit | LogSplit | BoundUnionSplit | KeyLookupSplit | InlineRows


MARKS_SCHEMA = StructType([StructField("marks", ArrayType(LongType(), False), False)])
"""One row with one array: for each file of a task the position of its words in the array, then the words of all files.
A word has 64 bits, one for each row of its file, least significant bit first."""

_WORDS = pa.list_(pa.field("element", pa.int64(), nullable=False))
_ARROW = pa.schema([pa.field("marks", _WORDS, nullable=False)])


class MarkPartition(InputPartition):
    """The markings that one task computes, in order."""

    def __init__(self, marking: tuple[OverrideFinder, ...]) -> None:
        super().__init__(None)
        self.marking = marking


@dataclass(frozen=True)
class MarkFunction:
    """A worker's function for a `MarkPartition`: returns one row of `MARKS_SCHEMA`. `name` is for messages."""

    name: str

    def __call__(self, tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for partition in sent_partitions(tasks, MarkPartition):
            with short_errors(f"looking for changed rows of {self.name}"):
                yield marks_batch(partition.marking)


def marks_batch(marking: Sequence[OverrideFinder]) -> pa.RecordBatch:
    """One row of `MARKS_SCHEMA` for the files of all of `marking`."""
    overridden = [rows for one in marking for rows in one()]
    paths, files = [rows.path for rows in overridden], [file for one in marking for file in one.files]
    if paths != files:
        raise InternalError(f"rows were marked in the files {paths} instead of {files}")
    words = [np.frombuffer(rows.words, np.int64) for rows in overridden]
    starts = np.cumsum([len(words), *map(len, words)], dtype=np.int64)[:-1]
    values = pa.array(np.concatenate([starts, *words]))
    row = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values, type=_WORDS)
    return pa.RecordBatch.from_arrays([row], schema=_ARROW)
