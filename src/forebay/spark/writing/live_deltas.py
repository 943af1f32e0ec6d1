"""UPDATE, MERGE and DELETE on primary-key tables of a cluster: deltas by key, all of a statement in one transaction.

Each task stages its deletes and its upserts as two attempts. The driver commits the deletes of all tasks, and then all
upserts. So a row may get the primary key of another row that is deleted or gets another key, even if two tasks write
these rows.

The statement sees each bucket as of its table snapshot. If another writer has changed one of the statement's rows since
the scan was planned, the server refuses the commit (`Transaction.watch`), and the statement has no effect.

On clusters without transactions (Apache Fluss) tasks write rows immediately, and conflicts are not detected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from forebay.api.changes import CHANGE_TYPE_COLUMN, CHANGE_TYPES, DELETE, INSERT, change_numbers
from forebay.base.errors import Conflict, ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.client.connection import shared_connection
from forebay.client.table import Table
from forebay.client.transaction import PlainWriter, StagedWriter
from forebay.codec.arrow.arrow_types import user_schema
from forebay.codec.casting.conform import cast_batch
from forebay.codec.rows.keys import whole_key_encoder
from forebay.metadata.merge_engines import AGGREGATION, FIRST_ROW, VERSIONED
from forebay.metadata.table import TableBucket, TableInfo
from forebay.spark.context import LiveContext
from forebay.spark.jvm.gateway import JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.spark_values import python_options
from forebay.spark.options import END, READ_OPTIMIZED, START, WriteOptions, write_options
from forebay.spark.reading.scan_builder import ScanBuilder
from forebay.spark.schemas import to_spark_schema
from forebay.spark.workers import TaskWrite, short_errors
from forebay.spark.writing import row_level
from forebay.spark.writing.distinct_keys import KEYS_SHOWN, shared_keys
from forebay.spark.writing.live_deletes import check_takes_deletes
from forebay.spark.writing.live_write import StagedWrite
from forebay.spark.writing.row_level import DeltaOperation, DeltaRows, DeltaWrite, OpenRelation

_DELETES, _UPSERTS = "deletes", "upserts"
"""The names of the attempts of a task."""


class LiveDelta(DeltaOperation):
    """A statement on one table of a cluster."""

    _context: LiveContext

    def __init__(
        self,
        context: LiveContext,
        name: str,
        info: TableInfo,
        command: JavaObject,
        open_relation: OpenRelation,
    ) -> None:
        """Raises `UnsupportedOperation` where its rows cannot be changed."""
        super().__init__(context, name, command, open_relation)
        self._info = info
        self._ends: dict[TableBucket, int] = {}
        _check_changeable(self.statement, name, info)

    def _key(self) -> tuple[str, ...]:
        return self._info.schema.primary_key

    def newScanBuilder(self, options: JavaObject) -> JavaProxy:
        """The builder of the statement's scan. Raises `InvalidRequest` for options that restrict the rows."""
        # Before the scan is planned, so that all rows that the scan misses are logged after these offsets.
        self._ends = self._context.connection.admin.list_offsets(self._info)
        read_options = python_options(options)
        windows = [name for name in (START, END) if name in read_options]
        if windows:
            raise InvalidRequest(f"{self.statement} {self._name}: all rows are read, so {windows} cannot be given")
        # Rows that the lake does not have yet, or has in an old form, would be missed or written back.
        return ScanBuilder(self._context, self._target({**read_options, READ_OPTIMIZED: "false"}))

    def _write(self, options: dict[str, str]) -> DeltaWrite:
        parsed = write_options(self._context.settings, options)
        if not parsed.is_atomic or parsed.columns is not None or parsed.sequence_field is not None:
            raise InvalidRequest(
                f"{self.statement} {self._name}: its rows are written whole, together, so 'write.atomic', 'columns' "
                "and 'write.sequence.field' cannot be given"
            )
        return LiveDeltaWrite(self, self._info, parsed, self._ends)


def _check_changeable(statement: str, name: str, info: TableInfo) -> None:
    schema = info.schema
    if not info.has_primary_key:
        raise UnsupportedOperation(
            f"{statement} {name}: rows of a log table stay as they are, only its partitions can be dropped; rows can "
            "be changed in tables with a primary key",
            ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
        )
    if CHANGE_TYPE_COLUMN in schema.names:
        raise UnsupportedOperation(f"{statement} {name}: the table has a column '{CHANGE_TYPE_COLUMN}'")
    if statement == row_level.DELETE:
        check_takes_deletes(info)
    elif (engine := info.descriptor.merge_engine) is not None:
        why = None
        if engine == AGGREGATION and info.descriptor.delete_behavior != "allow":
            why = (
                "would add the new row to the one that is there: it has to be deleted first, and "
                f"'table.delete.behavior' is '{info.descriptor.delete_behavior}'. INSERT rows with the difference"
            )
        elif engine == VERSIONED:
            why = "keeps the row with the latest version, whatever a statement says; INSERT rows with later versions"
        elif engine == FIRST_ROW:
            why = "keeps the first row of a key, whatever a statement says; rows change in tables without merge engine"
        if why is not None:
            raise UnsupportedOperation(f"{statement} {name}: 'table.merge-engine' = '{engine}' {why}")


class LiveDeltaWrite(DeltaWrite):
    """The write of one statement, in one transaction."""

    def __init__(
        self, operation: LiveDelta, info: TableInfo, options: WriteOptions, ends: Mapping[TableBucket, int]
    ) -> None:
        super().__init__(operation.jvm, operation.description())
        self._statement, self._name = operation.statement, operation._name
        self._info, self._options, self._ends = info, options, ends
        self._begun: StagedWrite | None = None

    @property
    def _staged(self) -> StagedWrite:
        if self._begun is None:
            self._begun = StagedWrite.begin(self._options.settings, *(self._options.transaction or ()))
        return self._begun

    def _task(self, physical: JavaObject) -> DeltaFunction:
        return DeltaFunction(self._info, self._staged)

    def _rows(self) -> DeltaRows:
        moved = None
        if not self._staged.begun_id and not self._staged.is_committed:
            moved = "which needs a transaction, and this cluster has none"
        elif (behavior := self._info.descriptor.delete_behavior) != "allow":
            moved = f"which deletes rows, and the table has 'table.delete.behavior' = '{behavior}'"
        elif (numbered := self._info.schema.auto_increment_column) is not None:
            moved = f"which deletes a row, and rows that the server numbers in column '{numbered}' cannot be deleted"
        error = None if moved is None else f"{self._statement} {self._name}: a primary key would change, {moved}"
        return DeltaRows(to_spark_schema(self._info.schema.columns), self._info.schema.primary_key, (), error)

    def commit(self, messages: JavaObject, *summary: object) -> None:
        """Commit the deletes and then the upserts of all tasks. Raises `Conflict` if a row was changed meanwhile."""
        changed: list[ChangedRows] = self._written(messages)
        self._refuse_shared_keys(changed)
        attempts = [a for a in [*(m.deletes for m in changed), *(m.upserts for m in changed)] if a]
        try:
            self._staged.commit_unchanged(attempts, self._info, self._ends, self._statement)
        except Conflict as e:
            raise Conflict(f"{self._statement} {self._name} was not carried out: {e.message}", e.code) from e

    def abort(self, messages: JavaObject) -> None:
        if self._begun is not None:
            self._begun.abort()

    def _refuse_shared_keys(self, changed: Sequence[ChangedRows]) -> None:
        """Raise `InvalidRequest` for two rows with one key."""
        counts = pc.value_counts(pa.chunked_array([m.upserted for m in changed], pa.binary()))
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
        if len(twice):
            some = whole_key_encoder(self._info.descriptor).decode(twice.slice(0, KEYS_SHOWN).to_pylist())
            raise shared_keys(len(twice), some, f"{self._statement} {self._name}: ")


# ---- tasks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChangedRows(WriterCommitMessage):
    """The result of a task: the attempts of its deletes and of its upserts, if any, and the keys of the upserts."""

    deletes: str | None = None
    upserts: str | None = None
    upserted: pa.BinaryArray = field(default_factory=lambda: pa.array([], pa.binary()))


@dataclass(frozen=True)
class DeltaFunction(TaskWrite):
    """Stages the changed rows of one task; on a cluster without transactions, writes them."""

    info: TableInfo
    staged: StagedWrite

    def write(self, batches: Iterable[pa.RecordBatch]) -> ChangedRows:
        """Stage the rows durably; returns the task's result. Raises `ForebayError` if any row was not staged."""
        info, staged = self.info, self.staged
        if staged.is_committed:
            return ChangedRows()
        writers: dict[str, StagedWriter | PlainWriter] = {}
        upserted: list[pa.BinaryArray] = []
        with short_errors(f"writing to table {info.path}"):
            table = shared_connection(staged.settings).table(info)
            for kind, batch in self._parts(table, batches):
                if kind not in writers:
                    writers[kind] = staged.writer(kind)
                if kind == _DELETES:
                    writers[kind].delete(table, batch)
                else:
                    writers[kind].upsert(table, batch, batch.schema.names)
                    if staged.begun_id:
                        upserted.append(whole_key_encoder(info.descriptor).encode(batch))
            for writer in writers.values():
                writer.finish()
        deletes, upserts = (writers[kind].attempt if kind in writers else None for kind in (_DELETES, _UPSERTS))
        return ChangedRows(deletes, upserts, pa.chunked_array(upserted, pa.binary()).combine_chunks())

    def _parts(self, table: Table, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The keys that each batch deletes, then its rows to upsert, without the column that the server numbers."""
        schema = self.info.schema
        keys = user_schema([schema.column(name) for name in schema.primary_key])
        written = user_schema([c for c in schema.columns if c.name != schema.auto_increment_column])
        for batch in batches:
            kinds = change_numbers(batch.column(CHANGE_TYPE_COLUMN))
            rows = batch.drop_columns([CHANGE_TYPE_COLUMN])
            is_delete = kinds == CHANGE_TYPES.index(DELETE)
            # Aggregated, a changed row would be added to the one that is there.
            goes = is_delete if self.info.descriptor.merge_engine is None else kinds != CHANGE_TYPES.index(INSERT)
            if goes.any():
                check_takes_deletes(self.info)  # a MERGE may turn out to have no deletes
                yield _DELETES, cast_batch(rows.filter(pa.array(goes)).select(keys.names), keys, truncate=True)
            if not is_delete.all():
                others = rows.filter(pa.array(~is_delete))
                if schema.auto_increment_column is not None:
                    self._check_numbers(table, others, kinds[~is_delete] == CHANGE_TYPES.index(INSERT))
                yield _UPSERTS, cast_batch(others.select(written.names), written, truncate=True)

    def _check_numbers(self, table: Table, rows: pa.RecordBatch, is_new: npt.NDArray[np.bool_]) -> None:
        """Raise `InvalidRequest` for numbers that the server has not assigned to these rows."""
        name = str(self.info.schema.auto_increment_column)
        keys = rows.select(list(self.info.schema.primary_key))
        stored = table.lookup(keys, [name]).column(0).combine_chunks()
        incoming = rows.column(name).cast(stored.type)
        is_same = pc.fill_null(pc.equal(incoming, stored), pc.is_null(stored))  # a deleted row fails the commit
        is_wrong = pc.if_else(pa.array(is_new), pc.is_valid(incoming), pc.invert(is_same))
        if pc.any(is_wrong).as_py():
            raise InvalidRequest(
                f"column '{name}' is numbered by the server: rows keep the number that they have, new ones get one, "
                "so nothing but NULL can be inserted into it"
            )
