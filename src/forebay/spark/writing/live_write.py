"""What Spark's workers run to write: a task's record batches -> the table.

Log tables are appended to, primary-key tables are upserted into. A task buffers, sends and, before it reports success,
waits until the servers have acknowledged everything (`TableWriter.close`); a batch that fails makes the task fail, and
the query with it. (Fluss's own connector loses such errors.) The driver commits nothing: rows are there as soon as they
are acknowledged, so a task that is run again appends again (at least once); upserts come out the same.

With `txnAppId` and `txnVersion` a statement is a transaction: tasks stage, and the driver commits the attempts whose
messages it has. A version that is committed already takes no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.client.connection import shared_connection
from forebay.client.settings import Settings
from forebay.client.table import Table
from forebay.codec.arrow_types import user_schema
from forebay.codec.cast import cast_batch
from forebay.metadata.table import TableInfo
from forebay.spark.workers import TaskWrite, short_errors

if TYPE_CHECKING:
    from forebay.client.transaction import PlainWriter, StagedWriter, Transaction


@dataclass(frozen=True)
class WrittenMessage(WriterCommitMessage):
    """The result of one task, for the driver. `attempt` has the rows that it has staged, if it has."""

    rows: int = 0
    attempt: str | None = None


@dataclass(frozen=True)
class StagedWrite:
    """The transaction that a statement writes in, begun by its driver."""

    settings: Settings
    application: str
    version: int
    begun_id: int
    """0 on a cluster without transactions."""
    is_committed: bool

    @classmethod
    def begin(cls, settings: Settings, application: str, version: int) -> StagedWrite:
        """Raises as `Transaction.begin` does."""
        begun = shared_connection(settings).transaction(application, version).begin()
        return cls(settings, application, version, begun.begun_id or 0, begun.committed is not None)

    def _transaction(self) -> Transaction:
        transaction = shared_connection(self.settings).transaction(self.application, self.version)
        transaction.begun_id = self.begun_id
        return transaction

    def writer(self) -> StagedWriter | PlainWriter:
        """A writer for one attempt of a task."""
        return self._transaction().staged_writer("task")

    def commit(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Commit the attempts of these tasks."""
        attempts = [m.attempt for m in messages if isinstance(m, WrittenMessage) and m.attempt is not None]
        if not self.is_committed:
            self._transaction().commit(attempts)

    def abort(self) -> None:
        """Drop what tasks have staged."""
        if not self.is_committed:
            self._transaction().abort()


@dataclass(frozen=True)
class WriteFunction(TaskWrite):
    """Writes the rows of one statement. `columns` makes it a partial update."""

    settings: Settings
    info: TableInfo
    columns: tuple[str, ...] | None = None
    staged: StagedWrite | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> WrittenMessage:
        """Write and wait for the acknowledgements. Raises `ForebayError` if any row was not written."""
        info = self.info
        with short_errors(f"writing to table {info.path}"):
            names = self.written_columns()
            columns = None if len(names) == len(info.schema.names) else names
            table = shared_connection(self.settings).table(info)
            if self.staged is not None:
                return self._stage(self.staged, table, columns, batches)
            rows = 0
            with table.writer(columns=columns) as writer:
                write = writer.upsert if info.has_primary_key else writer.append
                for batch in self._cast(batches):
                    write(batch)
                    rows += batch.num_rows
        return WrittenMessage(rows)

    def _stage(
        self, staged: StagedWrite, table: Table, columns: list[str] | None, batches: Iterable[pa.RecordBatch]
    ) -> WrittenMessage:
        if staged.is_committed:
            return WrittenMessage()
        writer = staged.writer()
        for batch in self._cast(batches):
            if self.info.has_primary_key:
                writer.upsert(table, batch, columns)
            else:
                writer.append(table, batch)
        writer.finish()
        return WrittenMessage(writer.rows, writer.attempt)

    def _cast(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        target = self._target()
        for batch in batches:
            if batch.num_rows:
                self._check_numbered(batch)
                yield cast_batch(batch, target, truncate=True)

    def check(self, given: pa.Schema) -> None:
        """Raise `InvalidRequest` for columns whose type cannot be converted to the table's."""
        cast_batch(pa.RecordBatch.from_pylist([], schema=given), self._target(), truncate=True)

    def _target(self) -> pa.Schema:
        return user_schema([self.info.schema.column(name) for name in self.written_columns()])

    def written_columns(self) -> list[str]:
        """The columns sent to the server: all, or the requested ones, without the auto-increment column."""
        schema = self.info.schema
        wanted = schema.names if self.columns is None else self.columns
        return [name for name in schema.names if name in wanted and name != schema.auto_increment_column]

    def _check_numbered(self, batch: pa.RecordBatch) -> None:
        name = self.info.schema.auto_increment_column
        if name is None or name not in batch.schema.names:
            return
        column = batch.column(batch.schema.get_field_index(name))
        if column.null_count < len(column):
            raise InvalidRequest(
                f"column '{name}' of table {self.info.path} is numbered by the server; leave it out, or write NULL"
            )


def write_function(info: TableInfo, settings: Settings, columns: tuple[str, ...] | None = None) -> WriteFunction:
    """How to write whole rows, or of primary-key tables `columns` only.

    Raises `InvalidRequest` for columns that cannot be written alone.
    """
    if columns is None:
        return WriteFunction(settings, info)
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
    return WriteFunction(settings, info, columns)
