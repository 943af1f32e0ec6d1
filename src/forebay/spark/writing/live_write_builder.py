"""Writing live tables: the proxies between INSERT, `writeTo`, `writeStream` and the workers' `WriteFunction`.

What can be checked is checked here, on the driver, before any task starts: options, columns of a partial update. The
rest (nulls, lengths) is checked by Spark and by the tasks. forebay.spark.writing.live_write says what a statement and a
micro-batch promise.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from forebay.api.changes import CHANGE_TYPE_COLUMN
from forebay.base.errors import InternalError, InvalidRequest
from forebay.metadata.merge_engines import FIRST_ROW
from forebay.metadata.table import TableInfo
from forebay.spark.context import LiveContext
from forebay.spark.filters import predicates_of, to_text
from forebay.spark.jvm.gateway import JavaObject
from forebay.spark.jvm.planning import is_insert_only_merge, omitted_columns
from forebay.spark.jvm.proxy import JavaProxy
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
from forebay.spark.workers import short_errors
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
from forebay.spark.writing.write_builder import (
    EXPRESSIONS,
    UPDATES_AS_APPENDS,
    WRITE,
    BatchTasks,
    StreamingTasks,
    WriteBuilder,
    WriteProxy,
    clustered,
    write_text,
)


class LiveWriteBuilder(WriteBuilder):
    """Builds the write of one statement, or of one micro-batch, into a table of a cluster."""

    def __init__(self, context: LiveContext, info: TableInfo, options: dict[str, str], write_info: JavaObject) -> None:
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
        return self._replacing(Replaced())

    def overwriteDynamicPartitions(self) -> JavaProxy:
        return self._replacing(Replaced(is_dynamic=True))

    def overwrite(self, predicates: JavaObject) -> JavaProxy:
        """Raises `InvalidRequest` for conditions that cannot be evaluated, or that no row matches."""
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
        if self.options.sequence_field is not None:
            return OrderedLiveWrite(self)
        if self.info.has_primary_key and self.info.descriptor.merge_engine is None and is_insert_only_merge(self.jvm):
            self.function = replace(self.function, has_distinct_keys=True)
            return KeyedLiveWrite(self)
        return LiveWrite(self)

    def _leaves_out_columns(self) -> bool:
        """Whether columns that the data lacks keep their values.

        With merge engine first_row no row has values to keep: it is new, or ignored.
        """
        is_partial = self.options.columns is None and self.options.is_partial
        return is_partial and self.replaced is None and self.info.descriptor.merge_engine != FIRST_ROW


class LiveUpsertBuilder(LiveWriteBuilder):
    """The builder of a table with primary key."""

    interfaces: ClassVar[tuple[str, ...]] = (UPDATES_AS_APPENDS,)


class NewTableWriteBuilder(LiveWriteBuilder):
    """Builds the write that fills a new table. Truncating it first, as Spark may request, does nothing."""

    def truncate(self) -> JavaProxy:
        return self

    def _leaves_out_columns(self) -> bool:
        return False


def write_builder(
    context: LiveContext, info: TableInfo, options: dict[str, str], write_info: JavaObject
) -> LiveWriteBuilder:
    """The builder for a write to an existing table."""
    return (LiveUpsertBuilder if info.has_primary_key else LiveWriteBuilder)(context, info, options, write_info)


class LiveWrite(WriteProxy, BatchTasks):
    """A write and its batch: one transaction of all tasks, or rows that tasks write immediately."""

    def __init__(self, builder: LiveWriteBuilder) -> None:
        super().__init__(builder.jvm)
        self._builder = builder
        self._info, self._schema, self._function = builder.info, builder.schema, builder.function
        self._replaced, self._options = builder.replaced, builder.options

    def description(self) -> str:
        """The line of the write in EXPLAIN."""
        name = self._builder.context.full_name(self._info.path)
        what = write_text(name, has_key=self._info.has_primary_key, replaces=self._replaced is not None)
        columns = "" if self._function.columns is None else f" ({', '.join(self._function.columns)})"
        where = ""
        if self._replaced is not None and self._replaced.predicates:
            where = f" where {' and '.join(map(to_text, self._replaced.predicates))}"
        return f"{what}{columns}{where}"

    def toBatch(self) -> JavaProxy:
        """Begin the transaction of the statement. Raises `InternalError` if the columns of the data are unknown."""
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


class KeyedLiveWrite(LiveWrite):
    """A write whose rows are distributed by primary key, so that one task has all rows of a key."""

    interfaces: ClassVar[tuple[str, ...]] = (WRITE + "RequiresDistributionAndOrdering",)

    def requiredDistribution(self) -> JavaObject:
        return clustered(self.jvm, self._info.schema.primary_key)

    def requiredOrdering(self) -> JavaObject:
        return self.jvm.array(EXPRESSIONS + "SortOrder", [])


class OrderedLiveWrite(KeyedLiveWrite):
    """The same, with the rows of each task sorted by a column (`write.sequence.field`)."""

    def __init__(self, builder: LiveWriteBuilder) -> None:
        super().__init__(builder)
        check_replaceable(self._info)
        data_columns = [str(name) for name in builder.schema.fieldNames()]
        for name in (*self._info.schema.primary_key, str(builder.options.sequence_field)):
            if name not in data_columns:
                raise InvalidRequest(
                    f"the rows of each key cannot be ordered ('{SEQUENCE_FIELD}'): the data has no column '{name}', "
                    f"only {', '.join(data_columns)}"
                )

    def requiredOrdering(self) -> JavaObject:
        ascending = self.jvm.class_(EXPRESSIONS + "SortDirection").ASCENDING
        sort = self.jvm.class_(EXPRESSIONS + "Expressions").sort
        column = column_reference(self.jvm, str(self._options.sequence_field))
        return self.jvm.array(EXPRESSIONS + "SortOrder", [sort(column, ascending)])


class LiveStreamingWrite(StreamingTasks):
    """The tasks of one micro-batch, and its commit. Tasks join the transaction of the query and the batch."""

    def __init__(self, builder: LiveWriteBuilder) -> None:
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
