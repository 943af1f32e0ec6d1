"""Tables as Spark sees them: the proxies that `loadTable` returns.

A log table reads and appends. A primary-key table reads, upserts, and deletes by `DELETE FROM` and `TRUNCATE TABLE`
(forebay.spark.writing.live_deletes). A partitioned table also has SHOW, ADD and DROP PARTITION
(forebay.spark.sql.partitions). A proxy shows the table as it was when the statement was analysed; Spark reloads
it for every statement.

Every table has system tables, which can only be read:

- `t$changelog`: every change in the logs from their earliest to their latest offset, with `_change_type` (insert,
  update_before, update_after, delete), `_log_offset` and `_commit_timestamp` in front of the table's columns. A stream
  of it may begin with a snapshot, whose rows have the offset -1 and no timestamp.
- `t$binlog`: the same of a primary-key table, with an update in one row: `_change_type` (insert, update, delete),
  `_log_offset`, `_commit_timestamp`, and the row `before` and `after`.
- `t$lake`: the rows in the table's lake, as of the newest readable snapshot.
- `t$partitions`: a row for each partition, with the values of its keys.
- `t$buckets`: a row for each bucket, with its row count and log offsets.

The driver answers the last two, without a task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from forebay.base.errors import ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.client.results import HISTORY_SCHEMA
from forebay.codec.arrow.arrow_types import from_arrow_type
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import Column, TableInfo
from forebay.spark.context import LiveContext
from forebay.spark.jvm.gateway import JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.spark_jobs import run_job
from forebay.spark.jvm.spark_values import python_options
from forebay.spark.jvm.values import java_map
from forebay.spark.options import (
    INCLUDE,
    ReadOptions,
    read_options,
)
from forebay.spark.reading.live_changes import scan_of
from forebay.spark.reading.live_plan import (
    BINLOG,
    CHANGELOG,
    LAKE,
    AsOf,
    log_ranges,
    matching_buckets,
    metadata_fields,
    row_counts,
)
from forebay.spark.reading.plan import SYSTEM_SEPARATOR
from forebay.spark.schemas import catalog_schema, default_values, to_spark_schema, to_spark_type
from forebay.spark.sql import live_ddl as ddl
from forebay.spark.sql.live_relation import LiveRelation
from forebay.spark.sql.partitions import Partitions, partition_rows
from forebay.spark.sql.requests import without_travel
from forebay.spark.sql.tables import (
    LocalSystemTable,
    MetadataTable,
    RowsSystemTable,
    StagedTable,
    StreamedSystemTable,
    TableProxy,
    WrittenTable,
)
from forebay.spark.writing.live_deletes import delete_where, named_keys
from forebay.spark.writing.live_deltas import LiveDelta
from forebay.spark.writing.live_write_builder import NewTableWriteBuilder, write_builder
from forebay.spark.writing.row_level import RowLevelOperation


class ClusterTable(TableProxy):
    """A table of a cluster, or of its rows as of another time."""

    _context: LiveContext

    def __init__(self, context: LiveContext, info: TableInfo, schema: StructType) -> None:
        super().__init__(context, context.full_name(info.path), schema, _version(info), str(info.table_id))
        self._info = info

    def _partition_keys(self) -> tuple[str, ...]:
        return self._info.descriptor.partition_keys


def _version(info: TableInfo) -> str:
    return f"{info.table_id}.{info.schema_id}"


class LiveTableProxy(ClusterTable, WrittenTable):
    """A table of the cluster."""

    def __init__(self, context: LiveContext, info: TableInfo) -> None:
        schema = catalog_schema(info.schema.columns, default_values(info))
        super().__init__(context, info, schema)

    def _table_properties(self) -> dict[str, str]:
        properties = ddl.table_properties(self._info, with_defaults=False)  # they are shown with the columns
        return {**properties, ddl.PROVIDER: ddl.PROVIDERS[0]}

    def properties(self) -> JavaObject:
        return java_map(self.jvm, {**ddl.shown_properties(self._info), ddl.PROVIDER: ddl.PROVIDERS[0]})

    def _relation(self, options: dict[str, str]) -> LiveRelation:
        return LiveRelation(self._context, self._name, self._info, options)

    def _metadata_fields(self) -> Sequence[StructField]:
        return metadata_fields(self._info)

    def newWriteBuilder(self, info: JavaObject) -> JavaProxy:
        return write_builder(self._context, self._info, python_options(info.options()), info)

    def _columns(self) -> tuple[Column, ...]:
        return self._info.schema.columns

    def _delete(self, filters: Sequence[Predicate]) -> None:
        delete_where(self._context.connection, self._info, filters, run_tasks=partial(run_job, self.jvm.context))

    def _deletes_directly(self, filters: Sequence[Predicate]) -> bool:
        return named_keys(self._info, filters) is not None

    def _operation(self, command: JavaObject) -> RowLevelOperation:
        return LiveDelta(self._context, self._name, self._info, command, self._relation)

    def _check_deletable(self, statement: str) -> None:
        if not self._info.has_primary_key:
            raise UnsupportedOperation(
                f"{statement} {self._name}: a log table cannot lose rows, only its partitions can be dropped; rows can "
                "be deleted from tables with a primary key",
                ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
            )


class PartitionedLiveTable(Partitions, LiveTableProxy):
    """A table of the cluster that has partitions."""


class StagedLiveTable(LiveTableProxy, StagedTable):
    """A table of the cluster that a statement has just created."""

    # CREATE OR REPLACE TABLE AS SELECT "overwrites" a new table, too.
    capability_names: ClassVar[tuple[str, ...]] = ("BATCH_READ", "BATCH_WRITE", "TRUNCATE")

    def newWriteBuilder(self, info: JavaObject) -> JavaProxy:
        """Raises `InvalidRequest` for write options that are properties of tables."""
        # Spark also passes OPTIONS of CREATE TABLE, which are properties of the table now.
        properties = self._table_properties()
        options = python_options(info.options())
        remaining = {name: value for name, value in options.items() if properties.get(name) != value}
        for name in remaining:
            if ddl.is_property(name):
                raise InvalidRequest(
                    f"there is no write option '{name}': it is a property of the new table {self._name}, which "
                    "df.writeTo(table).tableProperty(name, value).create() sets"
                )
        return NewTableWriteBuilder(self._context, self._info, remaining, info)

    def _drop_own(self) -> None:
        connection, path = self._context.connection, self._info.path
        if connection.admin.table_info(path).table_id == self._info.table_id:
            connection.drop_table(path)


class ReplacedLiveTable(LiveTableProxy, StagedTable):
    """A table of the cluster whose rows a statement replaces: CREATE OR REPLACE TABLE, with or without AS SELECT."""

    _is_filled = False

    def newWriteBuilder(self, info: JavaObject) -> JavaProxy:
        """The builder of a write that replaces all rows."""
        self._is_filled = True
        all_options = python_options(info.options())  # OPTIONS are properties of the table, which have not changed
        options = {name: value for name, value in all_options.items() if self._table_properties().get(name) != value}
        builder = write_builder(self._context, self._info, options, info)
        builder.truncate()
        return builder

    def commitStagedChanges(self) -> None:
        if not self._is_filled:
            self._delete([])

    def abortStagedChanges(self) -> None:
        """Nothing to do: the old rows are unchanged."""


def table_proxy(context: LiveContext, info: TableInfo) -> WrittenTable:
    """The proxy for a table of the cluster."""
    return (PartitionedLiveTable if info.is_partitioned else LiveTableProxy)(context, info)


_BUCKET_FIELDS = [
    StructField("bucket", IntegerType(), False),
    StructField("row_count", LongType(), True),
    StructField("earliest_offset", LongType(), False),
    StructField("latest_offset", LongType(), False),
]


_HISTORY_FIELDS = [StructField(f.name, to_spark_type(from_arrow_type(f.type)), f.nullable) for f in HISTORY_SCHEMA]


class ChangelogTable(MetadataTable, StreamedSystemTable):
    """The system table `$changelog`, with the bucket of each change as a metadata column."""

    def __init__(self, metadata: Sequence[StructField], *of_rows: Any) -> None:
        super().__init__(*of_rows)
        self._metadata = metadata

    def _metadata_fields(self) -> Sequence[StructField]:
        return self._metadata


class LiveTableAsOf(ClusterTable):
    """A table as of a lake snapshot or a time, which can only be read."""

    def __init__(self, context: LiveContext, info: TableInfo, as_of: AsOf) -> None:
        super().__init__(context, info, catalog_schema(info.schema.columns))
        self._version += f".{as_of}"
        self._as_of = as_of

    def _relation(self, options: dict[str, str]) -> LiveRelation:
        options = without_travel(options)
        read = read_options(self._context.settings, self._info.descriptor, options)
        if read.window is not None or read.read_optimized:
            raise InvalidRequest(
                f"{self._name} is read as of {self._as_of}: leave out the options of time ranges and of the lake alone"
            )
        return LiveRelation(self._context, self._name, self._info, options, as_of=self._as_of)


class LiveTableWithDeletes(ClusterTable):
    """A primary-key table for streams with deletes, which have a column `_change_type`.

    Spark uses the same table for batches; planning them raises an error.
    """

    capability_names: ClassVar[tuple[str, ...]] = ("BATCH_READ", "MICRO_BATCH_READ")

    def __init__(self, context: LiveContext, info: TableInfo) -> None:
        super().__init__(context, info, scan_of(info, ReadOptions(context.settings), deletes=INCLUDE).schema)

    def _relation(self, options: dict[str, str]) -> LiveRelation:
        return LiveRelation(self._context, self._name, self._info, options, has_deletes=True)


def _partitions(context: LiveContext, info: TableInfo) -> pa.Table:
    keys = [info.schema.column(name) for name in info.descriptor.partition_keys]
    partitions = context.connection.table(info).partitions()
    table = partition_rows(keys, partitions)
    return table.append_column(
        "partition_id", pa.array([p.partition_id for p in partitions], pa.int64())
    ).append_column("partition_name", pa.array([p.name for p in partitions], pa.string()))


def _buckets(context: LiveContext, info: TableInfo) -> pa.Table:
    connection = context.connection
    buckets = matching_buckets(connection, info)
    ranges = log_ranges(connection, info, buckets)
    counts = row_counts(connection, info, buckets)
    columns = [
        pa.array([bucket.bucket for bucket in buckets], pa.int32()),
        pa.array([counts[bucket] for bucket in buckets], pa.int64()),
        pa.array([ranges[bucket][0] for bucket in buckets], pa.int64()),
        pa.array([ranges[bucket][1] for bucket in buckets], pa.int64()),
    ]
    names = [field.name for field in _BUCKET_FIELDS]
    if info.is_partitioned:
        partitions = {p.partition_id: p.name for p in connection.table(info).partitions()}
        columns.insert(0, pa.array([partitions.get(bucket.partition_id or 0) for bucket in buckets], pa.string()))
        names.insert(0, "partition_name")
    return pa.table(columns, names=names)


def system_table(context: LiveContext, info: TableInfo, system: str) -> TableProxy:
    """The system table `system` of the table `info`. Raises `NotFound`, which names the existing system tables."""
    name = f"{context.full_name(info.path)}{SYSTEM_SEPARATOR}{system}"

    def of_rows(kind: Callable[..., RowsSystemTable], partition_keys: tuple[str, ...]) -> RowsSystemTable:
        def open_relation(options: dict[str, str]) -> LiveRelation:
            return LiveRelation(context, name, info, options, system)

        schema = scan_of(info, ReadOptions(context.settings), system).schema
        return kind(context, name, schema, _version(info), open_relation, partition_keys, str(info.table_id))

    def local(fields: Sequence[StructField], rows: Callable[[LiveContext, TableInfo], pa.Table]) -> LocalSystemTable:
        def checked(options: dict[str, str]) -> Callable[[], pa.Table]:
            read_options(context.settings, None, options)
            return lambda: rows(context, info)

        return LocalSystemTable(context, name, StructType(list(fields)), _version(info), checked, str(info.table_id))

    match system:
        case _ if system == CHANGELOG:
            fields = metadata_fields(info, CHANGELOG)
            return of_rows(partial(ChangelogTable, fields), info.descriptor.partition_keys)
        case _ if system == BINLOG:
            return of_rows(StreamedSystemTable, ())
        case _ if system == LAKE:
            if not info.lake_enabled:
                raise InvalidRequest(
                    f"table {info.path} has no lake: its property 'table.datalake.enabled' is not true",
                    ErrorCode.CLIENT_ERROR,
                )
            return of_rows(RowsSystemTable, info.descriptor.partition_keys)
        case "partitions":
            if not info.is_partitioned:
                raise InvalidRequest(f"table {info.path} is not partitioned", ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION)
            keys = to_spark_schema([info.schema.column(name) for name in info.descriptor.partition_keys]).fields
            ids = (StructField("partition_id", LongType(), False), StructField("partition_name", StringType(), False))
            return local((*keys, *ids), _partitions)
        case "history":
            return local(_HISTORY_FIELDS, lambda context, info: context.connection.admin.history(info))
        case "buckets":
            first = [StructField("partition_name", StringType(), True)] if info.is_partitioned else []
            return local((*first, *_BUCKET_FIELDS), _buckets)
        case _:
            raise NotFound(
                f"there is no table {name}; beside a table there are $changelog, $binlog, $history, $lake, "
                "$partitions and $buckets",
                ErrorCode.CLIENT_ERROR,
            )
