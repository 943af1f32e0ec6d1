"""The functions with which Spark's workers write a Paimon table: record batches -> data files and commit messages.

Nothing is visible until the driver commits the messages of all tasks. Tasks do not compact: several of them may write
the same bucket, and only one task may compact it. To keep sequence numbers unique, each task numbers its rows in its
own lane (forebay.paimon.write.table_write.WriterShard).

Every attempt of a task uses new file names. A failed attempt deletes its files. A killed attempt leaves files that no
snapshot names, which `remove_orphan_files` finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from forebay.api.changes import SPARK_CHANGE_TYPES
from forebay.base.arguments import did_you_mean
from forebay.base.errors import InvalidRequest
from forebay.client.reading.log_decode import CHANGE_TYPES
from forebay.codec.arrow.small_arrays import text_array
from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.merge.windows import concatenated
from forebay.paimon.read.change_reader import KINDS
from forebay.paimon.store.context import TableContext
from forebay.paimon.write.bucketing import UNAWARE
from forebay.paimon.write.incoming import INSERT, Intake, parse_kinds
from forebay.paimon.write.table_write import TableWrite, WriterShard
from forebay.spark.workers import CHANGELOG_EXTRAS, KIND_COLUMNS, TaskWrite, short_errors
from forebay.spark.writing.distinct_keys import DistinctKeys

LANES_UNKNOWN = 4096
"""Number of lanes where the number of tasks is unknown: more than the tasks of any write that is not shuffled."""

GATHERED_ROWS, GATHERED_BYTES = 1 << 15, 16 << 20
"""A task divides rows among buckets once it has collected this many rows or bytes. Dividing a batch has a fixed cost,
and Spark's batches are small (`spark.sql.execution.arrow.maxRecordsPerBatch`)."""

OVERRIDING = ("deduplicate", "partial-update")
"""The merge engines in which values of a later row replace those of an earlier row with its key."""

_QUERY_ID = "sql.streaming.queryId"

_Ready = tuple[pa.RecordBatch, npt.NDArray[np.int8]]
"""Rows as the table stores them, and their kinds."""


@dataclass(frozen=True)
class WrittenFiles(WriterCommitMessage):
    """The files of one task, for the driver. `query` is the id of the streaming query, stable across restarts."""

    messages: tuple[CommitMessage, ...] = ()
    rows: int = 0
    query: str | None = None


def messages_of(files: Iterable[WrittenFiles]) -> list[CommitMessage]:
    """The messages of all tasks, to be committed together."""
    return [message for each in files for message in each.messages]


@dataclass(frozen=True)
class LakeWriteFunction(TaskWrite):
    """The function with which the tasks of a write write table `name`.

    `table` has the schema with which the driver planned; `replaces`: the write is an overwrite; `tasks` is the number
    of tasks.
    """

    table: TableContext
    name: str
    replaces: bool = False
    tasks: int = LANES_UNKNOWN
    has_distinct_keys: bool = False
    """Whether a second row of a key is refused. A task has all rows of a key (lake_write_builder.row_distribution)."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> WrittenFiles:
        """Write all rows of a task; returns its files. Raises `ForebayError`, after deleting what was written."""
        task = TaskContext.get()
        lane = WriterShard(0 if task is None else task.partitionId() % self.tasks, self.tasks)
        with short_errors(f"writing to table {self.name}"), new_write(self.table, lane, self.replaces) as write:
            rows, keys = 0, DistinctKeys(self.table.schema.primary_keys)
            for ready, kinds in self._gathered(batches):
                if self.has_distinct_keys:
                    keys.add(ready)
                write.write_batch(ready, kinds)
                rows += ready.num_rows
            keys.check()
            messages = tuple(write.prepare_commit())
        return WrittenFiles(messages, rows, None if task is None else task.getLocalProperty(_QUERY_ID))

    def _gathered(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_Ready]:
        """The rows of `batches`, joined into larger batches where they are divided among buckets or partitions."""
        schema, options = self.table.schema, self.table.options
        is_divided = options.bucket != UNAWARE or bool(schema.primary_keys or schema.partition_keys)
        rows_min, bytes_min = (GATHERED_ROWS, min(GATHERED_BYTES, options.write_buffer_size)) if is_divided else (1, 1)
        incoming = None
        waiting: list[_Ready] = []
        rows = size = 0
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if incoming is None:
                incoming = Incoming(schema, batch.schema.names)
            waiting += incoming.ready(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= rows_min or size >= bytes_min:
                yield from _joined(waiting)
                waiting, rows, size = [], 0, 0
        yield from _joined(waiting)


def new_write(table: TableContext, lane: WriterShard, replaces: bool = False) -> TableWrite:
    """The writer of a task, which does not compact."""
    return TableWrite(table, replaces, None, lane)


class Incoming:
    """Batches with one schema as a table's rows and their kinds.

    Columns are matched by name, ignoring case. Missing columns get their default, or null. A column of `KIND_COLUMNS`
    that the table does not have holds the kind of each row: +I, -U, +U, -D, or the words of a changelog.
    """

    def __init__(self, schema: TableSchema, columns: Sequence[str]) -> None:
        """`columns` are those of the data. Raises `InvalidRequest` for unknown and for missing NOT NULL columns."""
        own = schema.names
        self._intake = Intake(schema)
        self._kinds = next((n for n in KIND_COLUMNS if n in columns and n not in own), None)
        extras = CHANGELOG_EXTRAS if self._kinds is not None else ()
        if self._kinds is not None and not schema.has_primary_key:
            raise InvalidRequest(
                f"the data has row kinds in column '{self._kinds}', and a table without primary key takes inserts "
                "only: leave the column out"
            )
        self._columns = [n for n in columns if n in own or not (n == self._kinds or n in extras)]
        by_case = {name.lower(): name for name in own}
        self._names = [n if n in own else by_case.get(n.lower(), n) for n in self._columns]
        for name in self._names:
            if name not in own or self._names.count(name) > 1:
                what = "which the table does not have" if name not in own else "twice"
                raise InvalidRequest(f"the data has column '{name}', {what}{did_you_mean(name, set(own) - {name})}")
        for f in schema.fields:
            if not f.type.nullable and f.default is None and f.name not in self._names:
                raise InvalidRequest(f"column '{f.name}' is NOT NULL, but the data does not have it")

    def ready(self, batch: pa.RecordBatch) -> Iterator[_Ready]:
        """`batch` in the table's Arrow schema, in pieces, each with the kinds of its rows."""
        kinds = None if self._kinds is None else _kinds(batch.column(self._kinds), self._kinds)
        data = batch.select(self._columns).rename_columns(self._names)
        done = 0
        for piece in self._intake.batches(data):
            if kinds is None:
                yield piece, self._intake.kinds_of(piece, INSERT)
            else:
                yield piece, kinds[done : done + piece.num_rows]
            done += piece.num_rows


def _joined(parts: Sequence[_Ready]) -> Iterator[_Ready]:
    """All parts as one batch, if there are any."""
    if len(parts) == 1:
        yield parts[0]
    elif parts:
        yield concatenated([batch for batch, _ in parts]), np.concatenate([kinds for _, kinds in parts])


def _kinds(column: pa.Array, name: str) -> npt.NDArray[np.int8]:
    if pa.types.is_string(column.type):
        for words in (CHANGE_TYPES, text_array(*SPARK_CHANGE_TYPES)):
            column = pc.coalesce(KINDS.take(pc.index_in(column, value_set=words)), column)
    return parse_kinds(column, f"column '{name}'")
