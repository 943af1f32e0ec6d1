"""Writing from Spark: the proxies between INSERT, `writeStream` and what workers run, as far as both sides share them.

A `WriteBuilder` collects what is written, and what it replaces, and builds a write. A write is distributed to tasks
(`WriteTasks`), of a statement (`BatchTasks`) or of a micro-batch (`StreamingTasks`), and commits what they report. Each
side has its own: forebay.spark.writing.live_write_builder, forebay.spark.writing.lake_write_builder.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.types import BinaryType, StructField, StructType

from forebay.spark.jvm.gateway import CONNECTOR, JavaObject, Jvm
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.python_tasks import pickled_message, stream_writer_factory, writer_factory
from forebay.spark.jvm.spark_values import column_reference
from forebay.spark.workers import MESSAGE_COLUMN, TaskWrite

WRITE = CONNECTOR + "write."
EXPRESSIONS = CONNECTOR + "expressions."
_MESSAGE_TYPE = StructType([StructField(MESSAGE_COLUMN, BinaryType())])


UPDATES_AS_APPENDS = "org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend"
"""The interface of builders of tables with a primary key: rows of a query in output mode update replace those with
their key."""


class WriteBuilder(JavaProxy):
    """Builds the write of one statement, or of one micro-batch. Subclasses say what an overwrite replaces."""

    interfaces: ClassVar[tuple[str, ...]] = (WRITE + "SupportsOverwriteV2", WRITE + "SupportsDynamicOverwrite")

    if TYPE_CHECKING:  # what subclasses answer

        def truncate(self) -> JavaProxy:
            """INSERT OVERWRITE of a table, CREATE OR REPLACE ... AS SELECT, or a stream in mode complete."""

        def overwriteDynamicPartitions(self) -> JavaProxy:
            """INSERT OVERWRITE of the partitions that rows are written to."""

        def overwrite(self, predicates: JavaObject) -> JavaProxy:
            """INSERT OVERWRITE ... PARTITION, and REPLACE WHERE. Raises for predicates that cannot be replaced."""

        def build(self) -> JavaProxy:
            """The write."""

    def canOverwrite(self, predicates: JavaObject) -> bool:
        """Always true: `overwrite` raises for what cannot be overwritten, with the reason."""
        return True


def write_text(name: str, *, has_key: bool, replaces: bool) -> str:
    """How a write into the table `name` is described in plans."""
    how = "overwrite" if replaces else "upsert into" if has_key else "append to"
    return f"forebay: {how} {name}"


class WriteProxy(JavaProxy):
    """A write, as shown in plans."""

    interfaces: ClassVar[tuple[str, ...]] = (WRITE + "Write",)

    def description(self) -> str:
        raise NotImplementedError(f"{type(self).__name__} does not say what it writes")

    def toString(self) -> str:
        return self.description()


def clustered(jvm: Jvm, columns: Sequence[str], function: str | None = None) -> JavaObject:
    """The Distribution that sends rows with equal `columns` to one task; unspecified without columns.

    With `function`, rows for whose columns the catalog's function of this name has the same value go to one task.
    """
    distributions = jvm.class_(CONNECTOR + "distributions.Distributions")
    if not columns:
        return distributions.unspecified()
    keys = jvm.array(EXPRESSIONS + "Expression", [column_reference(jvm, name) for name in columns])
    if function is not None:
        transform = jvm.class_(EXPRESSIONS + "Expressions").apply(function, keys)
        keys = jvm.array(EXPRESSIONS + "Expression", [transform])
    return distributions.clustered(keys)


class WriteTasks(JavaProxy):
    """The tasks of a statement or a micro-batch. Subclasses define the function that workers run."""

    if TYPE_CHECKING:  # what subclasses have
        _schema: JavaObject

        def _task(self, physical: JavaObject) -> TaskWrite: ...

    def _command(self, physical: JavaObject) -> bytes:
        """The command that Spark sends to each worker."""
        return pickle.dumps((self._task(physical), _MESSAGE_TYPE))

    def _written(self, messages: JavaObject) -> list[Any]:
        """The unpickled messages of the tasks."""
        pickled = (pickled_message(message) for message in messages)
        return [pickle.loads(data) for data in pickled if data is not None]

    def useCommitCoordinator(self) -> bool:
        return True


class StreamingTasks(WriteTasks):
    """The tasks of one micro-batch. Subclasses commit, and abort."""

    interfaces: ClassVar[tuple[str, ...]] = (WRITE + "streaming.StreamingWrite",)

    def createStreamingWriterFactory(self, physical: JavaObject) -> JavaObject:
        return stream_writer_factory(self.jvm, self._command(physical), self._schema)


class BatchTasks(WriteTasks):
    """The tasks of a statement. Subclasses may commit."""

    interfaces: ClassVar[tuple[str, ...]] = (WRITE + "BatchWrite",)

    def createBatchWriterFactory(self, physical: JavaObject) -> JavaObject:
        return writer_factory(self.jvm, self._command(physical), self._schema)

    def onDataWriterCommit(self, message: JavaObject) -> None:
        """Do nothing: `commit` receives all messages."""

    def commit(self, messages: JavaObject, *summary: Any) -> None:
        """Do nothing if rows are visible when their task ends. A task without a message has failed the query."""

    def abort(self, messages: JavaObject) -> None:
        """Do nothing: rows that tasks wrote immediately stay, as docs/spark.md says."""
