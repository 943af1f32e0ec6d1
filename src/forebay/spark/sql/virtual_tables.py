"""Tables that exist beside every table: `t$changelog`, `t$lake`, `t$partitions`, `t$buckets`. For reading only.

- `t$changelog`: every change in the logs from their earliest to their latest offset, with `_change_type` (insert,
  update_before, update_after, delete), `_log_offset` and `_commit_timestamp` in front of the table's columns. A stream
  of it may begin with a snapshot, whose rows have the offset -1 and no timestamp.
- `t$lake`: what is in the table's lake, as of the newest snapshot that can be read.
- `t$partitions`: a row for each partition, with the values of its keys.
- `t$buckets`: a row for each bucket, with its row count and log offsets.

The last two are answered by the driver, without a task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from forebay.base.errors import ErrorCode, InvalidRequest, NotFound
from forebay.metadata.table import TableInfo
from forebay.spark.context import CatalogContext, SessionContext
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.options import ReadOptions, read_options
from forebay.spark.reading.live_plan import (
    CHANGELOG,
    LAKE,
    VIRTUAL_SEPARATOR,
    LiveScan,
    log_ranges,
    row_counts,
    wanted_buckets,
)
from forebay.spark.reading.live_readable import readable
from forebay.spark.reading.scan_builder import Readable
from forebay.spark.schemas import spark_arrow_schema, to_spark_schema
from forebay.spark.sql.live_tables import ClusterTable
from forebay.spark.sql.partition_proxies import partition_rows

_BUCKET_FIELDS = [
    StructField("bucket", IntegerType(), False),
    StructField("row_count", LongType(), True),
    StructField("earliest_offset", LongType(), False),
    StructField("latest_offset", LongType(), False),
]


class ChangelogTable(ClusterTable):
    """`t$changelog`."""

    capability_names: ClassVar[tuple[str, ...]] = ("BATCH_READ", "MICRO_BATCH_READ")

    def __init__(self, context: CatalogContext, info: TableInfo) -> None:
        schema = LiveScan(info, ReadOptions(context.settings), is_changelog=True).schema
        super().__init__(context, info, schema, VIRTUAL_SEPARATOR + CHANGELOG)

    def _partition_keys(self) -> tuple[str, ...]:
        return self._info.descriptor.partition_keys

    def _readable(self, options: dict[str, str]) -> Readable:
        return readable(self._context, self._name, self._info, options, is_changelog=True)


class LakeSideTable(ClusterTable):
    """`t$lake`."""

    def __init__(self, context: CatalogContext, info: TableInfo) -> None:
        super().__init__(context, info, to_spark_schema(info.schema.columns), VIRTUAL_SEPARATOR + LAKE)

    def _partition_keys(self) -> tuple[str, ...]:
        return self._info.descriptor.partition_keys

    def _readable(self, options: dict[str, str]) -> Readable:
        return readable(self._context, self._name, self._info, options, is_lake=True)


# ---- tables that the driver answers ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalTable:
    """A small table: its fields, and its rows for the partitions that filters leave."""

    name: str
    fields: tuple[StructField, ...]
    rows: Callable[[CatalogContext, TableInfo], pa.Table]


class MetadataTable(ClusterTable):
    """A virtual table whose rows the driver has."""

    def __init__(self, context: CatalogContext, info: TableInfo, local: LocalTable) -> None:
        super().__init__(context, info, StructType(list(local.fields)), VIRTUAL_SEPARATOR + local.name)
        self._local = local

    def newScanBuilder(self, options: JavaObject) -> JavaProxy:
        read_options(self._context.settings, None, self.jvm.options(options))
        return LocalScanProxy(self._context, self._name, self._spark_schema, self._rows)

    def _rows(self) -> pa.Table:
        return self._local.rows(self._context, self._info)


class LocalScanProxy(JavaProxy):
    """A scan that has its rows already, and its own builder."""

    interfaces = (CONNECTOR + "read.LocalScan", CONNECTOR + "read.ScanBuilder")

    def __init__(self, context: SessionContext, name: str, schema: StructType, rows: Callable[[], pa.Table]) -> None:
        super().__init__(context.jvm)
        self._context = context
        self._name = name
        self._schema = schema
        self._make_rows = rows

    def build(self) -> JavaProxy:
        return self

    def readSchema(self) -> JavaObject:
        return self.jvm.struct_type(self._schema)

    def description(self) -> str:
        return f"forebay {self._name}"

    def rows(self) -> JavaObject:
        table = self._make_rows().cast(spark_arrow_schema(self._schema))
        return self.jvm.rows(self._context.session, self._schema, table)


def _partitions(context: CatalogContext, info: TableInfo) -> pa.Table:
    keys = [info.schema.column(name) for name in info.descriptor.partition_keys]
    found = context.connection.table(info).partitions()
    table = partition_rows(keys, found)
    return table.append_column("partition_id", pa.array([p.partition_id for p in found], pa.int64())).append_column(
        "partition_name", pa.array([p.name for p in found], pa.string())
    )


def _buckets(context: CatalogContext, info: TableInfo) -> pa.Table:
    connection = context.connection
    buckets = wanted_buckets(connection, info)
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


def virtual_table(context: CatalogContext, info: TableInfo, view: str) -> JavaProxy:
    """The virtual table `view` beside the table `info`. Raises `NotFound` naming those there are."""
    match view:
        case _ if view == CHANGELOG:
            return ChangelogTable(context, info)
        case _ if view == LAKE:
            if not info.lake_enabled:
                raise InvalidRequest(
                    f"table {info.path} has no lake: its property 'table.datalake.enabled' is not true",
                    ErrorCode.CLIENT_ERROR,
                )
            return LakeSideTable(context, info)
        case "partitions":
            if not info.is_partitioned:
                raise InvalidRequest(f"table {info.path} is not partitioned", ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION)
            keys = to_spark_schema([info.schema.column(name) for name in info.descriptor.partition_keys]).fields
            ids = (StructField("partition_id", LongType(), False), StructField("partition_name", StringType(), False))
            return MetadataTable(context, info, LocalTable("partitions", (*keys, *ids), _partitions))
        case "buckets":
            first = [StructField("partition_name", StringType(), True)] if info.is_partitioned else []
            return MetadataTable(context, info, LocalTable("buckets", (*first, *_BUCKET_FIELDS), _buckets))
        case _:
            raise NotFound(
                f"there is no table {context.full_name(info.path)}{VIRTUAL_SEPARATOR}{view}; beside a table there are "
                "$changelog, $lake, $partitions and $buckets",
                ErrorCode.CLIENT_ERROR,
            )
