"""Writing from Spark: the proxies between INSERT and what workers run, and those of clusters.

`WriteProxy` and `BatchTasks` are what both sides share; forebay.spark.writing.lake_write_builder has the lake's.

What can be checked is checked here, on the driver, before any task starts: options, columns of a partial update. The
rest (nulls, lengths) is checked by Spark and by the tasks.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.types import BinaryType, StructField, StructType

from forebay.metadata.table import TableInfo
from forebay.spark.context import CatalogContext
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.options import write_options
from forebay.spark.workers import MESSAGE_COLUMN, TaskWrite
from forebay.spark.writing.live_write import StagedWrite, WriteFunction, write_function

WRITE = CONNECTOR + "write."
_MESSAGE_TYPE = StructType([StructField(MESSAGE_COLUMN, BinaryType())])


class WriteProxy(JavaProxy):
    """A write, as shown in plans."""

    interfaces: ClassVar[tuple[str, ...]] = (WRITE + "Write",)

    def description(self) -> str:
        raise NotImplementedError(f"{type(self).__name__} does not say what it writes")

    def toString(self) -> str:
        return self.description()


class WriteTasks(JavaProxy):
    """The tasks of a statement or a micro-batch. Subclasses define the function that workers run."""

    if TYPE_CHECKING:  # what subclasses have
        _schema: JavaObject

        def _task(self, physical: JavaObject) -> TaskWrite: ...

    def _command(self, physical: JavaObject) -> bytes:
        """The command that Spark sends to each worker."""
        return pickle.dumps((self._task(physical), _MESSAGE_TYPE))

    def useCommitCoordinator(self) -> bool:
        return True


class BatchTasks(WriteTasks):
    """The tasks of a statement. Subclasses may commit."""

    interfaces: ClassVar[tuple[str, ...]] = (WRITE + "BatchWrite",)

    def createBatchWriterFactory(self, physical: JavaObject) -> JavaObject:
        return self.jvm.writer_factory(self._command(physical), self._schema)

    def onDataWriterCommit(self, message: JavaObject) -> None:
        """Do nothing: `commit` receives all messages."""

    def commit(self, messages: JavaObject, *summary: Any) -> None:
        """Do nothing if rows are visible when their task ends. A task without a message has failed the query."""

    def abort(self, messages: JavaObject) -> None:
        """Do nothing: acknowledged rows stay, as documented in docs/spark.md."""


# ---- tables of a cluster --------------------------------------------------------------------------------------------


class WriteBuilder(JavaProxy):
    """Builds the write of one statement."""

    interfaces = (WRITE + "WriteBuilder",)

    def __init__(self, context: CatalogContext, info: TableInfo, options: dict[str, str], schema: JavaObject) -> None:
        super().__init__(context.jvm)
        self._context = context
        self._info = info
        chosen = write_options(context.settings, options)
        self._function = write_function(info, chosen.settings, chosen.columns)
        self._transaction = chosen.transaction
        self._schema = schema

    def build(self) -> JavaProxy:
        return LiveWrite(self._context, self._info, self._function, self._schema, self._transaction)


class NewTableWriteBuilder(WriteBuilder):
    """Builds the write that fills a new table. Truncating it first, as Spark may request, does nothing."""

    interfaces = (WRITE + "SupportsTruncate",)

    def truncate(self) -> JavaProxy:
        return self


class LiveWrite(WriteProxy, BatchTasks):
    """A write, and its batch: a task has its acknowledgements before it reports, or has staged rows to commit."""

    def __init__(
        self,
        context: CatalogContext,
        info: TableInfo,
        function: WriteFunction,
        schema: JavaObject,
        transaction: tuple[str, int] | None,
    ) -> None:
        super().__init__(context.jvm)
        self._transaction = transaction
        self._context = context
        self._info = info
        self._function = function
        self._schema = schema

    def description(self) -> str:
        how = "upsert into" if self._info.has_primary_key else "append to"
        columns = "" if self._function.columns is None else f" ({', '.join(self._function.columns)})"
        return f"forebay: {how} {self._context.full_name(self._info.path)}{columns}"

    def toBatch(self) -> JavaProxy:
        if self._transaction is not None:
            staged = StagedWrite.begin(self._function.settings, *self._transaction)
            self._function = replace(self._function, staged=staged)
        return self

    def commit(self, messages: JavaObject, *summary: Any) -> None:
        staged = self._function.staged
        if staged is not None:
            pickled = (self.jvm.commit_message(message) for message in messages)
            staged.commit(pickle.loads(found) for found in pickled if found is not None)

    def abort(self, messages: JavaObject) -> None:
        if self._function.staged is not None:
            self._function.staged.abort()

    def _task(self, physical: JavaObject) -> WriteFunction:
        return self._function
