"""Writing Paimon tables: the proxies between INSERT, `writeTo`, `writeStream` and the workers' `LakeWriteFunction`.

A statement is one commit, which the driver makes from the messages of all tasks. An overwrite replaces the rows that
the table has at the time of the commit. For a streaming query Spark makes a new builder for every micro-batch; the
state of the query is in forebay.spark.writing.stream_commits.

The distribution of rows to tasks:

| table | tasks |
|---|---|
| append table without buckets | those of the query, each with files of its own |
| the same, `partition.sink-strategy` = hash | rows of a partition together |
| fixed buckets, with or without primary key | rows of a bucket of a partition together, in few tasks |
| dynamic buckets | one: keys have one assigner |

Rows are shuffled by the table's bucket function (forebay.spark.bucket_functions), so a commit has one file for each
partition and bucket, or a few if it is large. All versions of a key keep their order. Where Spark cannot run the
function, rows are shuffled by the columns of the bucket key: all tasks then have rows of a bucket, and one task has all
rows of a key. In both cases tasks are independent of each other (forebay.spark.writing.lake_write says how they number
rows). The number of tasks is `sink.parallelism`, or the number of tasks that run at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from pyspark.sql.types import StructField

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.metadata.predicate import Leaf, LeafFunction, Predicate, conjuncts
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.table import Table
from forebay.paimon.write.bucketing import UNAWARE
from forebay.spark.bucket_functions import lake_bucketing, letter, runs_on_executors
from forebay.spark.context import LakeContext, SessionContext
from forebay.spark.filters import to_predicate
from forebay.spark.jvm.expressions import ALWAYS_TRUE, read_expression
from forebay.spark.jvm.gateway import JavaObject, Jvm
from forebay.spark.jvm.planning import is_insert_only_merge
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.python_tasks import python_metrics, stream_writer_factory
from forebay.spark.jvm.spark_values import python_schema
from forebay.spark.lake_jobs import SparkTasks
from forebay.spark.lake_options import (
    SINK_PARALLELISM,
    SINK_STRATEGY,
    dynamic_overwrite,
    value_in,
    with_write_options,
    write_options,
)
from forebay.spark.options import TRANSACTION_OPTIONS
from forebay.spark.schemas import columns_of, to_spark_schema
from forebay.spark.workers import short_errors
from forebay.spark.writing.committing import Overwrite, commit_batch
from forebay.spark.writing.lake_write import OVERRIDING, Incoming, LakeWriteFunction, messages_of
from forebay.spark.writing.stream_commits import Epoch, stream_commits
from forebay.spark.writing.write_builder import (
    EXPRESSIONS,
    UPDATES_AS_APPENDS,
    WRITE,
    BatchTasks,
    StreamingTasks,
    WriteBuilder,
    WriteProxy,
    WriteTasks,
    clustered,
    write_text,
)


class LakeWriteBuilder(WriteBuilder):
    """Builds the write of one statement, or of one micro-batch, into a lake table."""

    def __init__(
        self, context: LakeContext, name: str, table: Table, options: dict[str, str], info: JavaObject
    ) -> None:
        """`info` is Spark's LogicalWriteInfo. Raises `InvalidRequest` for unknown options."""
        super().__init__(context.jvm)
        self._context, self._name = context, name
        self._options = write_options(name, table, options)
        self._proxied, self._table = table, with_write_options(table, self._options)
        self._schema, self._query = info.schema(), str(info.queryId())
        self._overwrite: Overwrite | None = None
        self.has_distinct_keys = False
        """Whether a second row of a key is refused."""
        with short_errors(f"writing to table {name}"):  # before any task runs
            Incoming(self._table.schema, [str(column) for column in self._schema.fieldNames()])

    # ---- what is replaced -------------------------------------------------------------------------------------------

    def truncate(self) -> JavaProxy:
        self._overwrite = Overwrite(dynamic=dynamic_overwrite(self._options, self._table))
        return self

    def overwriteDynamicPartitions(self) -> JavaProxy:
        self._overwrite = Overwrite(dynamic=bool(self._table.schema.partition_keys))
        return self

    def overwrite(self, predicates: JavaObject) -> JavaProxy:
        """Replace the partition that `predicates` name. Raises `UnsupportedOperation` for other conditions."""
        partition = self._partition(predicates)
        if partition is None:
            shown = " AND ".join(str(p.toString()) for p in predicates)
            keys = ", ".join(self._table.schema.partition_keys)
            why = f"partitions can be replaced, by equality with values of {keys}" if keys else "the whole table can be"
            raise UnsupportedOperation(
                f"{self._name} cannot be overwritten where {shown}: only {why}. DELETE these rows, then INSERT others"
            )
        if not partition:
            return self.truncate()
        self._overwrite = Overwrite(partition)
        return self

    def _partition(self, predicates: JavaObject) -> dict[str, Any] | None:
        """The partition values named by the predicates; None if they contain anything else."""
        schema = self._table.schema
        values: dict[str, Any] = {}
        for java in predicates:
            expression = read_expression(java)
            if expression == ALWAYS_TRUE:
                continue
            predicate = to_predicate(expression, columns_of(schema))
            for part in [None] if predicate is None else conjuncts(predicate):
                item = _named_value(part)
                if item is None or item[0] not in schema.partition_keys or item[0] in values:
                    return None
                values[item[0]] = item[1]
        return values

    # ---- the write --------------------------------------------------------------------------------------------------

    def build(self) -> JavaProxy:
        is_overriding = self._table.schema.has_primary_key and self._table.context.options.merge_engine in OVERRIDING
        self.has_distinct_keys = is_overriding and is_insert_only_merge(self.jvm)
        return LakeWrite(self)


class LakeUpsertBuilder(LakeWriteBuilder):
    """The builder of a table with primary key."""

    interfaces: ClassVar[tuple[str, ...]] = (UPDATES_AS_APPENDS,)


def write_builder(
    context: LakeContext, name: str, table: Table, options: dict[str, str], info: JavaObject
) -> LakeWriteBuilder:
    """The builder for a write to `table`."""
    kind = LakeUpsertBuilder if table.schema.has_primary_key else LakeWriteBuilder
    return kind(context, name, table, options, info)


class _LakeTasks(WriteTasks):
    """The tasks of a write, shared by batches and streams."""

    def __init__(self, builder: LakeWriteBuilder) -> None:
        super().__init__(builder.jvm)
        self._builder = builder
        self._table, self._name = builder._table, builder._name
        self._schema, self._overwrite = builder._schema, builder._overwrite
        self._is_settled = False
        """Whether a commit was attempted. A failed commit deletes its files, or its outcome is unknown."""

    def _task(self, physical: JavaObject) -> LakeWriteFunction:
        tasks = max(int(physical.numPartitions()), 1)
        replaces, distinct = self._overwrite is not None, self._builder.has_distinct_keys
        return LakeWriteFunction(self._table.context, self._name, replaces, tasks, distinct)

    def _discard(self, messages: JavaObject) -> None:
        """Delete the files of finished tasks, unless a commit was attempted."""
        if not self._is_settled:
            self._table.new_commit().abort(messages_of(self._written(messages)))


class LakeWrite(_LakeTasks, WriteProxy, BatchTasks):
    """A write: the distribution of its rows to tasks, its batch and its commit, or its stream."""

    interfaces: ClassVar[tuple[str, ...]] = (WRITE + "RequiresDistributionAndOrdering",)

    def __init__(self, builder: LakeWriteBuilder) -> None:
        super().__init__(builder)
        self._distribution = row_distribution(builder._table, builder._context)
        if self._distribution.function is not None and not self._has_types_of_table(builder):
            self._distribution = replace(self._distribution, function=None)

    def _has_types_of_table(self, builder: LakeWriteBuilder) -> bool:
        """Whether the columns of the distribution have the table's types: Spark does not cast the data of a stream."""
        names = set(self._distribution.columns)
        data, table = python_schema(builder._schema), to_spark_schema(columns_of(builder._table.schema))
        return {f.name: _type_of(f) for f in table if f.name in names}.items() <= {
            f.name: _type_of(f) for f in data
        }.items()

    def description(self) -> str:
        """The write in words, as plans show it."""
        overwrite = self._overwrite
        what = write_text(self._name, has_key=self._table.schema.has_primary_key, replaces=overwrite is not None)
        partition = "" if overwrite is None or not overwrite.partition else f" {dict(overwrite.partition)}"
        return what + partition

    def requiredDistribution(self) -> JavaObject:
        return self._distribution.to_java(self.jvm)

    def requiredNumPartitions(self) -> int:
        return self._distribution.tasks

    def requiredOrdering(self) -> JavaObject:
        return self.jvm.array(EXPRESSIONS + "SortOrder", [])

    def supportedCustomMetrics(self) -> JavaObject:
        return python_metrics(self.jvm)

    def toBatch(self) -> JavaProxy:
        return self

    def toStreaming(self) -> JavaProxy:
        return LakeStreamingWrite(self._builder)

    def commit(self, messages: JavaObject, *summary: Any) -> None:
        self._is_settled = True
        runner = partial(SparkTasks, self.jvm.context)
        files, transaction = messages_of(self._written(messages)), self._builder._options.transaction
        commit_batch(self._table, files, self._overwrite, runner, transaction)

    def abort(self, messages: JavaObject) -> None:
        self._discard(messages)


class LakeStreamingWrite(_LakeTasks, StreamingTasks):
    """The tasks of one micro-batch, and its commit."""

    def __init__(self, builder: LakeWriteBuilder) -> None:
        super().__init__(builder)
        if builder._options.transaction is not None:
            raise InvalidRequest(
                f"writing to {self._name}: a stream has no option '{TRANSACTION_OPTIONS[0].name}': each of its "
                "micro-batches is committed once"
            )
        self._commits = stream_commits(builder._context, self._name, builder._proxied, builder._query, builder._options)

    def createStreamingWriterFactory(self, physical: JavaObject) -> JavaObject:
        return stream_writer_factory(self.jvm, self._command(physical), self._schema)

    def commit(self, epoch: int, messages: JavaObject) -> None:
        self._is_settled = True
        written = self._written(messages)
        rows = sum(w.rows for w in written)
        self._commits.commit(Epoch(int(epoch), messages_of(written), rows, self._overwrite))

    def abort(self, epoch: int, messages: JavaObject) -> None:
        self._discard(messages)


def _named_value(predicate: Predicate | None) -> tuple[str, Any] | None:
    """The column and value of `column = value` or `column IS NULL`; None for anything else."""
    if not isinstance(predicate, Leaf):
        return None
    if predicate.function is LeafFunction.IS_NULL:
        return predicate.column, None
    if predicate.function is LeafFunction.EQUAL and len(predicate.literals) == 1:
        return predicate.column, predicate.literals[0]
    return None


@dataclass(frozen=True)
class RowDistribution:
    """Rows with equal `columns` go to the same one of `tasks` tasks (0: Spark chooses the number of tasks).

    Without columns rows are not shuffled. `function` is the name of the catalog's function that maps the columns to
    tasks, if there is one.
    """

    columns: tuple[str, ...] = ()
    tasks: int = 0
    function: str | None = None

    def to_java(self, jvm: Jvm) -> JavaObject:
        return clustered(jvm, self.columns, self.function)


def _type_of(field: StructField) -> str:
    """The type of a column's values in Spark, where text has no length."""
    name = field.dataType.simpleString()
    return "string" if name.startswith(("char(", "varchar(")) else name


def row_distribution(table: Table, context: SessionContext) -> RowDistribution:
    """The distribution of the rows of a write."""
    schema = table.schema
    parallelism = value_in(table.schema.options, SINK_PARALLELISM)
    buckets = table.context.options.bucket
    if buckets != UNAWARE:
        tasks_max = context.cores if schema.partition_keys else min(context.cores, buckets)
        return _by_bucket(schema, parallelism or tasks_max, context.jvm)
    if schema.has_primary_key:
        if (parallelism or 1) > 1:
            raise InvalidRequest(
                f"{table.name} has dynamic buckets, whose keys one task assigns: 'sink.parallelism' can only be 1"
            )
        return RowDistribution(tuple(schema.primary_keys), 1)
    strategy = schema.options.get(SINK_STRATEGY, "none").lower()
    if strategy not in ("none", "hash"):
        raise InvalidRequest(f"option '{SINK_STRATEGY}' is '{strategy}': write none or hash")
    if strategy == "hash" and schema.partition_keys:
        return RowDistribution(tuple(schema.partition_keys), parallelism or 0)
    return RowDistribution()


def _by_bucket(schema: TableSchema, tasks: int, jvm: Jvm) -> RowDistribution:
    """The distribution by bucket and partition or, where Spark cannot run the bucket function, by bucket key."""
    function = lake_bucketing(schema) if tasks > 1 else None
    letters = [letter(f.type) for f in schema.partition_fields]
    supported = [t for t in letters if t is not None]
    if function is None or len(supported) < len(letters) or not runs_on_executors(jvm):
        return RowDistribution(tuple(dict.fromkeys((*schema.partition_keys, *schema.bucket_keys))), tasks)
    return RowDistribution((*function.columns, *schema.partition_keys), tasks, function.dealt(supported, tasks))
