"""Writing from Spark: the proxies between INSERT, `writeStream` and what workers run, and those of clusters.

`WriteProxy` and `BatchTasks` are what both sides share; forebay.spark.writing.lake_write_builder has the lake's.

What can be checked is checked here, on the driver, before any task starts: options, columns of a partial update. The
rest (nulls, lengths) is checked by Spark and by the tasks. forebay.spark.writing.live_write says what a statement and a
micro-batch promise.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.types import BinaryType, StructField, StructType

from forebay.api.changes import CHANGE_TYPE_COLUMN
from forebay.base.errors import InternalError, InvalidRequest
from forebay.metadata.merge_engines import FIRST_ROW
from forebay.metadata.table import TableInfo
from forebay.spark.context import CatalogContext
from forebay.spark.filters import predicates_of, to_text
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject, Jvm
from forebay.spark.jvm.planning import omitted_columns
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.python_tasks import pickled_message, stream_writer_factory, writer_factory
from forebay.spark.jvm.spark_jobs import run_job
from forebay.spark.jvm.spark_values import column_reference, python_schema
from forebay.spark.options import (
    ATOMIC,
    CHANGES,
    PARTIAL_UPDATE,
    SEQUENCE_FIELD,
    TRANSACTION_OPTIONS,
    WRITE_COLUMNS,
    write_options,
)
from forebay.spark.schemas import default_values, spark_arrow_schema
from forebay.spark.workers import MESSAGE_COLUMN, TaskWrite, short_errors
from forebay.spark.writing.live_write import (
    Replaced,
    WriteFunction,
    abort_batch,
    begin_statement,
    check_replaceable,
    commit_batch,
    require_transactions,
    write_function,
)

WRITE = CONNECTOR + "write."
_EXPRESSIONS = CONNECTOR + "expressions."
_MESSAGE_TYPE = StructType([StructField(MESSAGE_COLUMN, BinaryType())])


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
    keys = jvm.array(_EXPRESSIONS + "Expression", [column_reference(jvm, name) for name in columns])
    if function is not None:
        transform = jvm.class_(_EXPRESSIONS + "Expressions").apply(function, keys)
        keys = jvm.array(_EXPRESSIONS + "Expression", [transform])
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


# ---- tables of a cluster --------------------------------------------------------------------------------------------


class WriteBuilder(JavaProxy):
    """Builds the write of one statement, or of one micro-batch."""

    interfaces: ClassVar[tuple[str, ...]] = (WRITE + "SupportsOverwriteV2", WRITE + "SupportsDynamicOverwrite")

    def __init__(
        self, context: CatalogContext, info: TableInfo, options: dict[str, str], write_info: JavaObject
    ) -> None:
        """`write_info` is Spark's LogicalWriteInfo. Raises `InvalidRequest` for unknown options."""
        super().__init__(context.jvm)
        self.context, self.info = context, info
        self.options = write_options(context.settings, options)
        self.schema, self.query = write_info.schema(), str(write_info.queryId())
        if self.options.has_changes and CHANGE_TYPE_COLUMN not in [str(name) for name in self.schema.fieldNames()]:
            raise InvalidRequest(
                f"write option '{CHANGES}' = 'true': the data has no column '{CHANGE_TYPE_COLUMN}' (a catalog's tables "
                "take it from Spark 4.3 on)"
            )
        self.replaced: Replaced | None = None
        self.is_understood = True
        """Whether the columns of the data are known. They are unknown for a statement that is only explained."""
        self.function = write_function(info, self.options.settings, self.options.columns)

    # ---- what is replaced -------------------------------------------------------------------------------------------

    def truncate(self) -> JavaProxy:
        """INSERT OVERWRITE of a table, CREATE OR REPLACE ... AS SELECT, or a stream in mode complete."""
        return self._replacing(Replaced())

    def overwriteDynamicPartitions(self) -> JavaProxy:
        return self._replacing(Replaced(is_dynamic=True))

    def canOverwrite(self, predicates: JavaObject) -> bool:
        """Always true: `overwrite` raises for what cannot be overwritten, with the reason."""
        return True

    def overwrite(self, predicates: JavaObject) -> JavaProxy:
        """INSERT OVERWRITE ... PARTITION, and REPLACE WHERE."""
        conditions, is_whole = predicates_of(predicates, self.info.schema.columns)
        if not is_whole:
            shown = " AND ".join(str(p.toString()) for p in predicates)
            raise InvalidRequest(
                f"overwriting {self.context.full_name(self.info.path)}: cannot find the rows where {shown}; compare "
                "columns with values, by =, <, IN, LIKE 'x%', IS NULL and the like"
            )
        if conditions is None:
            raise InvalidRequest(
                f"overwriting {self.context.full_name(self.info.path)}: no row can match the condition, so none can "
                "replace others: correct it, or use INSERT INTO without it"
            )
        return self._replacing(Replaced(tuple(conditions)))

    def _replacing(self, replaced: Replaced) -> JavaProxy:
        check_replaceable(self.info)
        if self.options.has_changes:
            raise InvalidRequest(
                f"rows of {self.context.full_name(self.info.path)} are replaced by rows, not by changes: leave the "
                f"option '{CHANGES}' out, or write the changes by INSERT INTO"
            )
        self.replaced = replaced
        self.function = replace(self.function, replaces=True, within=replaced.predicates)
        return self

    # ---- the write --------------------------------------------------------------------------------------------------

    def build(self) -> JavaProxy:
        """The write. Columns that the data lacks are read from Spark's plan here, if they keep their values."""
        if self.info.has_primary_key and self._leaves_out_columns():
            omitted = omitted_columns(self.jvm)
            self.is_understood = omitted is not None
            if omitted:
                columns = tuple(name for name in self.info.schema.names if name not in omitted)
                function = write_function(self.info, self.options.settings, columns)
                has_defaults = not default_values(self.info).keys().isdisjoint(omitted)
                self.function = replace(function, fills_new_rows=has_defaults and not self.options.has_changes)
        kind = LiveWrite if self.options.sequence_field is None else OrderedLiveWrite
        return kind(self)

    def _leaves_out_columns(self) -> bool:
        """Whether columns that the data lacks keep their values.

        With merge engine first_row no row has values to keep: it is new, or ignored.
        """
        is_partial = self.options.columns is None and self.options.is_partial
        return is_partial and self.replaced is None and self.info.descriptor.merge_engine != FIRST_ROW


class UpsertBuilder(WriteBuilder):
    """The builder of a table with primary key: rows of a query in output mode update replace those with their key."""

    interfaces: ClassVar[tuple[str, ...]] = ("org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend",)


class NewTableWriteBuilder(WriteBuilder):
    """Builds the write that fills a new table. Truncating it first, as Spark may request, does nothing."""

    def truncate(self) -> JavaProxy:
        return self

    def _leaves_out_columns(self) -> bool:
        return False


def write_builder(
    context: CatalogContext, info: TableInfo, options: dict[str, str], write_info: JavaObject
) -> WriteBuilder:
    """The builder for a write to an existing table."""
    return (UpsertBuilder if info.has_primary_key else WriteBuilder)(context, info, options, write_info)


class LiveWrite(WriteProxy, BatchTasks):
    """A write and its batch: one transaction of all tasks, or rows that tasks write immediately."""

    def __init__(self, builder: WriteBuilder) -> None:
        super().__init__(builder.jvm)
        self._builder = builder
        self._info, self._schema, self._function = builder.info, builder.schema, builder.function
        self._replaced, self._options = builder.replaced, builder.options

    def description(self) -> str:
        """The write in words, as plans show it."""
        how = "upsert into" if self._info.has_primary_key else "append to"
        if self._replaced is not None:
            how = "overwrite"
        columns = "" if self._function.columns is None else f" ({', '.join(self._function.columns)})"
        where = ""
        if self._replaced is not None and self._replaced.predicates:
            where = f" where {' and '.join(map(to_text, self._replaced.predicates))}"
        return f"forebay: {how} {self._builder.context.full_name(self._info.path)}{columns}{where}"

    def toBatch(self) -> JavaProxy:
        """Begin the transaction of the statement, if it has one; returns the batch."""
        options = self._options
        if not self._builder.is_understood:
            raise InternalError(
                f"writing to {self._builder.context.full_name(self._info.path)}: Spark does not show which columns the "
                f"data has; name them by the option '{WRITE_COLUMNS}', or set '{PARTIAL_UPDATE}' = 'false'"
            )
        staged = begin_statement(
            options.settings, options.transaction, self._replaced is not None, self._info, options.is_atomic
        )
        self._function = replace(self._function, staged=staged)
        return self

    def toStreaming(self) -> JavaProxy:
        return LiveStreamingWrite(self._builder)

    def commit(self, messages: JavaObject, *summary: Any) -> None:
        staged = self._function.staged
        if staged is not None:
            run_tasks = partial(run_job, self.jvm.context)
            staged.commit(self._written(messages), self._info, self._replaced, run_tasks=run_tasks)

    def abort(self, messages: JavaObject) -> None:
        if self._function.staged is not None:
            self._function.staged.abort()

    def _task(self, physical: JavaObject) -> WriteFunction:
        return self._function.among(int(physical.numPartitions()))


class OrderedLiveWrite(LiveWrite):
    """A write whose rows are distributed by primary key and sorted by a column (`write.sequence.field`)."""

    interfaces: ClassVar[tuple[str, ...]] = (WRITE + "RequiresDistributionAndOrdering",)

    def __init__(self, builder: WriteBuilder) -> None:
        super().__init__(builder)
        check_replaceable(self._info)
        data_columns = [str(name) for name in builder.schema.fieldNames()]
        for name in (*self._info.schema.primary_key, str(builder.options.sequence_field)):
            if name not in data_columns:
                raise InvalidRequest(
                    f"the rows of each key cannot be ordered ('{SEQUENCE_FIELD}'): the data has no column '{name}', "
                    f"only {', '.join(data_columns)}"
                )

    def requiredDistribution(self) -> JavaObject:
        return clustered(self.jvm, self._info.schema.primary_key)

    def requiredOrdering(self) -> JavaObject:
        ascending = self.jvm.class_(_EXPRESSIONS + "SortDirection").ASCENDING
        sort = self.jvm.class_(_EXPRESSIONS + "Expressions").sort
        column = column_reference(self.jvm, str(self._options.sequence_field))
        return self.jvm.array(_EXPRESSIONS + "SortOrder", [sort(column, ascending)])


class LiveStreamingWrite(WriteTasks):
    """The tasks of one micro-batch, and its commit. Tasks join the transaction of the query and the batch."""

    interfaces: ClassVar[tuple[str, ...]] = (WRITE + "streaming.StreamingWrite",)

    def __init__(self, builder: WriteBuilder) -> None:
        super().__init__(builder.jvm)
        self._info, self._schema, self._replaced = builder.info, builder.schema, builder.replaced
        self._settings, self._query = builder.options.settings, builder.query
        if builder.options.transaction is not None or not builder.options.is_atomic:
            raise InvalidRequest(
                f"a stream has no options '{TRANSACTION_OPTIONS[0].name}' and '{ATOMIC}': each of its micro-batches is "
                "a transaction, named by the query and the batch"
            )
        data_schema = spark_arrow_schema(python_schema(builder.schema))
        with short_errors(f"writing to table {self._info.path}"):
            builder.function.check(data_schema)
            if self._replaced is not None:
                require_transactions(self._settings, self._info)
        self._function = replace(builder.function, in_stream=True)
        self._may_abort = True

    def createStreamingWriterFactory(self, physical: JavaObject) -> JavaObject:
        return stream_writer_factory(self.jvm, self._command(physical), self._schema)

    def _task(self, physical: JavaObject) -> WriteFunction:
        return self._function.among(int(physical.numPartitions()))

    def commit(self, epoch: int, messages: JavaObject) -> None:
        self._may_abort = False
        run_tasks = partial(run_job, self.jvm.context)
        written = self._written(messages)
        commit_batch(self._settings, self._info, int(epoch), written, self._replaced, run_tasks=run_tasks)

    def abort(self, epoch: int, messages: JavaObject) -> None:
        """Drop the staged rows of finished tasks, unless a commit was attempted."""
        if self._may_abort:
            abort_batch(self._settings, int(epoch), self._written(messages))
