"""Writing from Spark: the proxies between INSERT and the workers' `WriteFunction`.

What can be checked is checked here, on the driver, before any task starts: options, columns of a partial update. The
rest (nulls, lengths) is checked by Spark and by the tasks.
"""

from __future__ import annotations

import pickle
from typing import Any

from pyspark.sql.types import BinaryType, StructField, StructType

from forebay.metadata.table import TableInfo
from forebay.spark.context import CatalogContext
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.options import write_options
from forebay.spark.writing.live_write import MESSAGE_COLUMN, WriteFunction, write_function

_WRITE = CONNECTOR + "write."
_MESSAGE_TYPE = StructType([StructField(MESSAGE_COLUMN, BinaryType())])


class WriteBuilder(JavaProxy):
    """Makes the write of one statement."""

    interfaces = (_WRITE + "WriteBuilder",)

    def __init__(self, context: CatalogContext, info: TableInfo, options: dict[str, str], schema: JavaObject) -> None:
        super().__init__(context.jvm)
        self._context = context
        self._info = info
        chosen = write_options(context.settings, options)
        self._function = write_function(info, chosen.settings, chosen.columns)
        self._schema = schema

    def build(self) -> JavaProxy:
        return WriteProxy(self._context, self._info, self._function, self._schema)


class NewTableWriteBuilder(WriteBuilder):
    """Makes the write that fills a new table. Emptying it first, as Spark may ask, takes nothing."""

    interfaces = (_WRITE + "SupportsTruncate",)

    def truncate(self) -> JavaProxy:
        return self


class WriteProxy(JavaProxy):
    """A write, and its batch."""

    interfaces = (_WRITE + "Write", _WRITE + "BatchWrite")

    def __init__(self, context: CatalogContext, info: TableInfo, function: WriteFunction, schema: JavaObject) -> None:
        super().__init__(context.jvm)
        self._context = context
        self._info = info
        self._function = function
        self._schema = schema

    def description(self) -> str:
        how = "upsert into" if self._info.has_primary_key else "append to"
        columns = "" if self._function.columns is None else f" ({', '.join(self._function.columns)})"
        return f"forebay: {how} {self._context.full_name(self._info.path)}{columns}"

    def toString(self) -> str:
        return self.description()

    def toBatch(self) -> JavaProxy:
        return self

    # ---- BatchWrite -------------------------------------------------------------------------------------------------

    def createBatchWriterFactory(self, physical: JavaObject) -> JavaObject:
        return self.jvm.writer_factory(pickle.dumps((self._function, _MESSAGE_TYPE)), self._schema)

    def useCommitCoordinator(self) -> bool:
        return True

    def onDataWriterCommit(self, message: JavaObject) -> None:
        """Nothing to do: a task has its acknowledgements before it reports."""

    def commit(self, messages: JavaObject, *summary: Any) -> None:
        """Nothing to do: the rows are there. A task without a message would have failed the query."""

    def abort(self, messages: JavaObject) -> None:
        """Nothing to do: what was acknowledged stays, as docs/spark.md says."""
