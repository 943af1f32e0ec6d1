"""The functions with which Spark's workers write a live table: a task's record batches -> the table.

Rows are appended to log tables, and upserted into primary-key tables. Data with a column `_change_type` also deletes.

A statement is one transaction (forebay.client.transaction), and so is each micro-batch of a stream: tasks stage
their rows and report their attempts, and the driver commits the attempts of successful tasks, in the order of Spark's
partitions. So rows of one key keep the order of the data frame. A failed statement adds nothing. A micro-batch that
Spark repeats after a failure adds nothing either: the name of its transaction has the query and the batch, which the
checkpoint stores.

On clusters without transactions (Apache Fluss), and with `write.atomic` = false, tasks write immediately: each waits
until the servers have acknowledged all of its rows before it reports success. A repeated task appends its rows again
(at least once); a repeated upsert has the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from forebay.api.changes import CHANGE_TYPE_COLUMN, CHANGE_TYPES, DELETE, UPDATE_BEFORE, change_numbers
from forebay.base.arguments import did_you_mean
from forebay.base.errors import Conflict, ErrorCode, InternalError, InvalidRequest, UnsupportedOperation
from forebay.client.connection import shared_connection
from forebay.client.settings import Settings
from forebay.codec.arrow.arrow_types import arrow_type, user_schema
from forebay.codec.casting.conform import cast_batch
from forebay.codec.filters import bind, mask
from forebay.codec.rows.keys import whole_key_encoder
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import TableBucket, TableInfo
from forebay.spark.jvm.spark_jobs import RunTasks, run_here
from forebay.spark.workers import CHANGELOG_EXTRAS, KIND_COLUMNS, TaskWrite, short_errors
from forebay.spark.writing.distinct_keys import DistinctKeys

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from forebay.client.table import Table
    from forebay.client.transaction import PlainWriter, StagedWriter, Transaction

_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""The local properties in which Spark passes the query and the micro-batch to tasks."""

DRIVER_KEYS_MAX = 1_000_000
"""Maximum number of keys that tasks report to the driver, which does not delete rows with these keys first."""

_PartitionValues = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class WrittenMessage(WriterCommitMessage):
    """The result of one task, for the driver. `attempt` is the attempt with its staged rows; None if it staged none."""

    rows: int = 0
    attempt: str | None = None
    application: str | None = None
    begun_id: int = 0
    """The transaction that the task has joined."""
    partitions: frozenset[_PartitionValues] = frozenset()
    """The partitions of its rows, if the write replaces the rows of these partitions."""
    keys: pa.BinaryArray | None = None
    """The keys of its rows, if they replace others and are few enough (`WriteFunction.keys_max`); else None."""


@dataclass(frozen=True)
class Replaced:
    """The rows of a primary-key table that a write replaces: those that match all `predicates`.

    With `is_dynamic` it replaces the rows of the partitions that it writes to, or all rows of an unpartitioned table.
    """

    predicates: tuple[Predicate, ...] = ()
    is_dynamic: bool = False


@dataclass(frozen=True)
class StagedWrite:
    """The transaction of a statement or a micro-batch."""

    settings: Settings
    application: str | None
    version: int | None
    begun_id: int
    """0 on a cluster without transactions."""
    is_committed: bool

    @classmethod
    def begin(
        cls, settings: Settings, application: str | None = None, version: int | None = None, *, join: bool = False
    ) -> StagedWrite:
        """Begin a transaction, or (`join`) join one that another process has begun. Raises as `Transaction.begin`."""
        begun = shared_connection(settings).transaction(application, version).begin(join)
        return cls(settings, application, version, begun.begun_id or 0, begun.committed is not None)

    @classmethod
    def of_task(cls, settings: Settings, info: TableInfo) -> StagedWrite:
        """The transaction of the micro-batch whose task this process runs."""
        task = TaskContext.get()
        query, batch = (None, None) if task is None else map(task.getLocalProperty, (_QUERY_ID, _BATCH_ID))
        if query is None or batch is None:
            raise InternalError(f"Spark did not tell tasks which query writes to {info.path}")
        return cls.begin(settings, application_of(query, info), int(batch), join=True)

    def _transaction(self) -> Transaction:
        transaction = shared_connection(self.settings).transaction(self.application, self.version)
        transaction.begun_id = self.begun_id
        return transaction

    def writer(self, attempt: str = "task") -> StagedWriter | PlainWriter:
        """A writer for one attempt of a task."""
        return self._transaction().staged_writer(attempt)

    def commit(
        self,
        messages: Iterable[WriterCommitMessage | None],
        info: TableInfo,
        replaced: Replaced | None = None,
        operation: str = "INSERT",
        *,
        run_tasks: RunTasks = run_here,
    ) -> None:
        """Commit deletes of the rows that are `replaced`, which `run_tasks` finds, and then the staged rows of tasks.

        Raises `Conflict` if another writer changes a row to be replaced before the commit.
        """
        if self.is_committed:
            return
        written = [m for m in messages if isinstance(m, WrittenMessage)]
        attempts = [m.attempt for m in written if m.attempt is not None]
        if replaced is None:
            self._transaction().commit(attempts, operation)
            return
        ends = shared_connection(self.settings).admin.list_offsets(info)
        deletes = self._stage_deletes(written, info, replaced, run_tasks)
        try:
            self.commit_unchanged([*deletes, *attempts], info, ends, f"{operation} OVERWRITE")
        except Conflict as e:
            raise Conflict(f"rows of table {info.path} were not replaced: {e.message}", e.code) from e

    def _stage_deletes(
        self, written: Sequence[WrittenMessage], info: TableInfo, replaced: Replaced, run_tasks: RunTasks
    ) -> list[str]:
        from forebay.spark.writing.live_deletes import stage_deletes

        partitions = None
        if replaced.is_dynamic and info.is_partitioned:
            partitions = [dict(values) for values in {values for m in written for values in m.partitions}]
            if not partitions:
                return []
        retained_keys = None
        if all(m.keys is not None for m in written):
            retained_keys = pa.chunked_array([m.keys for m in written], pa.binary()).combine_chunks()
        transaction, predicates = self._transaction(), replaced.predicates
        return stage_deletes(transaction, info, predicates, partitions, retained_keys, run_tasks=run_tasks)

    def commit_unchanged(
        self, attempts: Sequence[str], info: TableInfo, since: Mapping[TableBucket, int], operation: str
    ) -> None:
        """Commit these attempts, in this order, unless another writer has changed their rows since these log offsets.

        Raises `Conflict` if one has. Does nothing on a cluster without transactions.
        """
        if self.begun_id and not self.is_committed:
            transaction = self._transaction()
            transaction.watch(shared_connection(self.settings).table(info), since)
            transaction.commit(attempts, operation)

    def abort(self) -> None:
        """Abort the transaction, which drops the staged rows of tasks."""
        if not self.is_committed:
            self._transaction().abort()


def application_of(query: str, info: TableInfo) -> str:
    """The name under which a streaming query commits to a table. A query with a new checkpoint has another name."""
    return f"spark.{query}.{info.table_id}"


@dataclass(frozen=True)
class WriteFunction(TaskWrite):
    """Writes the rows of one statement or micro-batch. `columns` makes it a partial update."""

    settings: Settings
    info: TableInfo
    columns: tuple[str, ...] | None = None
    staged: StagedWrite | None = None
    """The transaction that the driver has begun."""
    in_stream: bool = False
    """Whether a task finds its transaction by its query and micro-batch."""
    replaces: bool = False
    """Whether the rows replace others, so that tasks report keys and partitions to the driver."""
    within: tuple[Predicate, ...] = ()
    """The condition whose rows are replaced. All new rows must match it."""
    keys_max: int = 0
    """Maximum number of keys that a task reports."""
    fills_new_rows: bool = False
    """Whether all columns of rows with new keys are written, because the data has DEFAULT values for them."""
    has_distinct_keys: bool = False
    """Whether a second row of a key is refused. The rows are then distributed by primary key."""

    def among(self, tasks: int) -> WriteFunction:
        """The function for each of a number of tasks."""
        return replace(self, keys_max=DRIVER_KEYS_MAX // max(tasks, 1)) if self.replaces else self

    def write(self, batches: Iterable[pa.RecordBatch]) -> WrittenMessage:
        """Write or stage all rows; returns the task's result. Raises `ForebayError` if any row was not written."""
        with short_errors(f"writing to table {self.info.path}"):
            staged = StagedWrite.of_task(self.settings, self.info) if self.in_stream else self.staged
            if staged is None:
                return self._write_at_once(batches)
            if staged.is_committed:
                return WrittenMessage()
            return self._stage(staged, batches)

    def _write_at_once(self, batches: Iterable[pa.RecordBatch]) -> WrittenMessage:
        if self.fills_new_rows:
            table = shared_connection(self.settings).table(self.info)
            written = [table.upsert(rows, columns).rows for rows, columns in self._parts(table, batches)]
            return WrittenMessage(sum(written))
        rows, writer = 0, None
        for incoming, ready in self._ready(batches):
            if writer is None:
                writer = shared_connection(self.settings).table(self.info).writer(columns=incoming.columns)
            if incoming.deletes_only:
                writer.delete(ready)
            elif incoming.kinds is not None:
                writer.write_changes(ready)
            elif self.info.has_primary_key:
                writer.upsert(ready)
            else:
                writer.append(ready)
            rows += ready.num_rows
        if writer is not None:
            writer.close()
        return WrittenMessage(rows)

    def _stage(self, staged: StagedWrite, batches: Iterable[pa.RecordBatch]) -> WrittenMessage:
        table, writer = shared_connection(self.settings).table(self.info), staged.writer()
        partitions: set[_PartitionValues] = set()
        keys: list[pa.BinaryArray] | None = [] if self.replaces else None
        if self.fills_new_rows:
            for rows, columns in self._parts(table, batches):
                writer.upsert(table, rows, columns)
            batches = ()
        for incoming, ready in self._ready(batches):
            self._check_within(ready)
            if incoming.deletes_only:
                writer.delete(table, ready)
            elif incoming.kinds is not None:
                writer.write_changes(table, ready, incoming.columns)
            elif self.info.has_primary_key:
                writer.upsert(table, ready, incoming.columns)
            else:
                writer.append(table, ready)
            if self.replaces:
                if self.info.is_partitioned:
                    partitions.update(_partitions_of(self.info, ready))
                if not incoming.sets_rows or writer.rows > self.keys_max:
                    keys = None
                if keys is not None:
                    keys.append(whole_key_encoder(self.info.descriptor).encode(ready))
        writer.finish()
        return WrittenMessage(
            writer.rows, writer.attempt, staged.application, staged.begun_id, frozenset(partitions),
            None if keys is None else pa.chunked_array(keys, pa.binary()).combine_chunks(),
        )  # fmt: skip

    def _parts(
        self, table: Table, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[pa.RecordBatch, Sequence[str] | None]]:
        """The rows to upsert, with the columns to write: all columns of new rows, and `columns` of existing rows."""
        for batch in batches:
            if batch.num_rows:
                part, whole = (IncomingRows(self.info, batch.schema.names, c) for c in (self.columns, None))
                key = list(self.info.schema.primary_key)
                is_new = table.lookup(part.ready(batch).select(key), key[:1]).column(0).is_null().combine_chunks()
                for rows, incoming in ((batch.filter(is_new), whole), (batch.filter(pc.invert(is_new)), part)):
                    if rows.num_rows:
                        yield incoming.ready(rows), incoming.columns

    def _ready(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[IncomingRows, pa.RecordBatch]]:
        """The batches that have rows, converted to rows of the table.

        After them, raises `InvalidRequest` if two rows have one key but must not (`has_distinct_keys`).
        """
        incoming = None
        keys = DistinctKeys(self.info.schema.primary_key)
        for batch in batches:
            if batch.num_rows:
                incoming = incoming or IncomingRows(self.info, batch.schema.names, self.columns)
                ready = incoming.ready(batch)
                if self.has_distinct_keys:
                    keys.add(ready)
                yield incoming, ready
        keys.check()

    def _check_within(self, ready: pa.RecordBatch) -> None:
        """Raise `InvalidRequest` for a row that does not match the condition whose rows the statement replaces.

        With such a row, repeating the statement would have another result.
        """
        if not self.within:
            return
        from forebay.spark.filters import to_text

        columns = self.info.schema.columns
        for column in columns:  # columns that the data lacks will be NULL
            if column.name not in ready.schema.names:
                ready = ready.append_column(column.name, pa.nulls(len(ready), arrow_type(column.data_type, "UTC")))
        for predicate in self.within:
            outside = pc.index(mask(bind(predicate, columns), ready), False).as_py()
            if outside >= 0:
                row = ready.slice(outside, 1).to_pylist()[0]
                key = ", ".join(f"{name} = {row[name]!r}" for name in self.info.schema.primary_key)
                raise InvalidRequest(
                    f"rows of table {self.info.path} where {to_text(predicate)} are to be replaced, and the new row "
                    f"with {key} is not one of them: select rows that match the condition, or widen it. Nothing is "
                    "replaced"
                )

    def check(self, schema: pa.Schema) -> IncomingRows:
        """Raise `InvalidRequest` for columns of the data that the table lacks, or whose type cannot be converted."""
        incoming = IncomingRows(self.info, schema.names, self.columns)
        incoming.ready(pa.RecordBatch.from_pylist([], schema=schema))
        return incoming


def _partitions_of(info: TableInfo, batch: pa.RecordBatch) -> Iterator[_PartitionValues]:
    keys = list(info.descriptor.partition_keys)
    for values in pa.Table.from_batches([batch.select(keys)]).group_by(keys).aggregate([]).to_pylist():
        yield tuple(values.items())


class IncomingRows:
    """Batches with one schema as rows of a table.

    Columns are matched by name, ignoring case. Columns of a primary-key table that the data lacks keep their values (a
    partial update). A column of `KIND_COLUMNS` that the table does not have holds the change type of each row. A delete
    with some of the columns clears these, as in Fluss; data that has only the key can only delete rows.
    """

    def __init__(self, info: TableInfo, data_columns: Sequence[str], columns: Sequence[str] | None = None) -> None:
        """`data_columns` are the columns of the data. Only `columns` of them are written, by default all.

        Raises `InvalidRequest` for unknown columns and for those that cannot be written alone.
        """
        self._info = info
        own = info.schema.names
        self.kinds = next((name for name in KIND_COLUMNS if name in data_columns and name not in own), None)
        """The column with the change types, if there is one."""
        if self.kinds is not None and not info.has_primary_key:
            raise InvalidRequest(
                f"the data has change types in column '{self.kinds}', and a table without primary key takes inserts "
                "only: leave the column out"
            )
        extras = CHANGELOG_EXTRAS if self.kinds is not None else ()
        by_case = {name.lower(): name for name in own}
        self._names: dict[str, str] = {}
        for name in data_columns:
            if name not in own and (name == self.kinds or name in extras):
                continue
            own_name = name if name in own else by_case.get(name.lower(), name)
            if own_name not in own or own_name in self._names:
                what = "twice" if own_name in self._names else "which the table does not have"
                raise InvalidRequest(f"the data has column '{name}', {what}{did_you_mean(name, set(own) - {name})}")
            self._names[own_name] = name
        requested = [name for name in self._names if columns is None or name in columns]
        written = [name for name in own if name in requested and name != info.schema.auto_increment_column]
        is_whole = len(written) == len(own) - (info.schema.auto_increment_column is not None)
        check_partial(info, None if is_whole else written)
        self.deletes_only = self.kinds is not None and not is_whole and set(written) == set(info.schema.primary_key)
        self.columns = None if self.deletes_only or len(written) == len(own) else written
        """The columns of a partial update; None for whole rows, and for deletes of these."""
        self._written = written
        self._may_ignore_deletes = self.kinds is not None and info.descriptor.merge_engine is not None
        self.sets_rows = is_whole and self.kinds is None and info.descriptor.merge_engine is None
        """Whether the table has exactly the written rows afterwards, whatever rows with their keys it had before."""

    @cached_property
    def _target(self) -> pa.Schema:
        target = user_schema([self._info.schema.column(name) for name in self._written])
        if self.kinds is None:
            return target
        key = self._info.schema.primary_key  # the other columns of a delete are ignored
        return pa.schema([field if field.name in key else field.with_nullable(True) for field in target])

    def ready(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """`batch` with the table's columns and types, followed by the change types if it has them."""
        self._check_numbered(batch)
        if self._may_ignore_deletes and self._deletes(batch).any():
            from forebay.spark.writing.live_deletes import check_heeds_deletes

            check_heeds_deletes(self._info)
        names = {data_name: own for own, data_name in self._names.items()}
        renamed = batch.rename_columns([names.get(name, name) for name in batch.schema.names])
        rows = cast_batch(renamed, self._target, truncate=True)
        if self.deletes_only:
            return rows.filter(pa.array(self._only_deletes(batch)))
        return rows if self.kinds is None else rows.append_column(CHANGE_TYPE_COLUMN, batch.column(self.kinds))

    def _deletes(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        is_delete: npt.NDArray[np.bool_] = change_numbers(batch.column(self.kinds)) == CHANGE_TYPES.index(DELETE)
        return is_delete

    def _only_deletes(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """The mask of deletes in data that has only the key. Other rows must be old images of updates."""
        kinds, is_delete = change_numbers(batch.column(self.kinds)), self._deletes(batch)
        if not (is_delete | (kinds == CHANGE_TYPES.index(UPDATE_BEFORE))).all():
            raise InvalidRequest(
                f"the data has no columns but the primary key of {self._info.path} and '{self.kinds}', so it can only "
                "delete rows: an insert or update needs a column to write"
            )
        return is_delete

    def _check_numbered(self, batch: pa.RecordBatch) -> None:
        name = self._info.schema.auto_increment_column
        data_name = None if name is None else self._names.get(name)
        if data_name is None:
            return
        column = batch.column(data_name)
        if column.null_count < len(column):
            raise InvalidRequest(
                f"column '{name}' of table {self._info.path} is numbered by the server; leave it out, or write NULL"
            )


def check_partial(info: TableInfo, columns: Sequence[str] | None) -> None:
    """Raise `InvalidRequest` for columns that cannot be written without the others. None means all columns."""
    if columns is None:
        return
    if not info.has_primary_key:
        raise InvalidRequest(
            f"only rows of tables with a primary key can be written in part, and {info.path} has none: write all of "
            f"{', '.join(info.schema.names)}",
            ErrorCode.INVALID_TARGET_COLUMN,
        )
    info.schema.indexes(columns)
    missing = [name for name in info.schema.primary_key if name not in columns]
    if missing:
        raise InvalidRequest(
            f"a partial update of {info.path} needs its whole primary key; {', '.join(missing)} is missing",
            ErrorCode.INVALID_TARGET_COLUMN,
        )


def write_function(info: TableInfo, settings: Settings, columns: tuple[str, ...] | None = None) -> WriteFunction:
    """The function that writes whole rows, or only `columns` of a primary-key table.

    Raises `InvalidRequest` for columns that cannot be written without the others.
    """
    check_partial(info, columns)
    return WriteFunction(settings, info, columns)


def check_replaceable(info: TableInfo) -> None:
    """Raise `UnsupportedOperation` for tables whose rows cannot be replaced."""
    if not info.has_primary_key:
        raise UnsupportedOperation(
            f"rows of log table {info.path} cannot be replaced: a log only grows, and its partitions can be dropped",
            ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
        )


def begin_statement(
    settings: Settings, transaction: tuple[str, int] | None, replaces: bool, info: TableInfo, is_atomic: bool = True
) -> StagedWrite | None:
    """The transaction of a statement; None where tasks write immediately. `transaction` is its application and version.

    Raises `UnsupportedOperation` if the statement replaces rows and the cluster has no transactions.
    """
    if transaction is None and not is_atomic and not replaces:
        return None
    staged = StagedWrite.begin(settings, *(transaction or ()))
    if staged.begun_id == 0 and not staged.is_committed:
        if replaces:
            raise _not_replaceable(info)
        return None
    return staged


def require_transactions(settings: Settings, info: TableInfo) -> None:
    """Raise `UnsupportedOperation` on clusters without transactions, where rows cannot be replaced."""
    try:
        shared_connection(settings).admin.transactions("")
    except UnsupportedOperation as e:
        raise _not_replaceable(info) from e


def _not_replaceable(info: TableInfo) -> UnsupportedOperation:
    return UnsupportedOperation(
        f"rows of table {info.path} cannot be replaced: this cluster has no transactions. Delete them first"
    )


def commit_batch(
    settings: Settings,
    info: TableInfo,
    batch: int,
    messages: Sequence[WriterCommitMessage | None],
    replaced: Replaced | None = None,
    *,
    run_tasks: RunTasks = run_here,
) -> None:
    """Commit a micro-batch of a stream, unless it is committed already."""
    staged = _of_batch(settings, batch, messages)
    if staged is not None:
        staged.commit(messages, info, replaced, "STREAM", run_tasks=run_tasks)


def abort_batch(settings: Settings, batch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Abort the transaction of a micro-batch, if a finished task has reported it."""
    staged = _of_batch(settings, batch, messages)
    if staged is not None:
        staged.abort()


def _of_batch(settings: Settings, batch: int, messages: Sequence[WriterCommitMessage | None]) -> StagedWrite | None:
    """The transaction that the tasks have joined; None if they have staged nothing."""
    for message in messages:
        if isinstance(message, WrittenMessage) and message.attempt is not None:
            return StagedWrite(settings, message.application, batch, message.begun_id, False)
    return None
