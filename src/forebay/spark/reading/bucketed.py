"""Scans whose tasks read whole buckets and report them (`read.by-bucket`).

Spark then joins tables that have the same buckets of the join's keys without a shuffle (its storage-partitioned joins),
and groups by bucket keys without one. It compares buckets by the name of the table's function
(forebay.spark.bucket_functions), and knows functions of one column only. So a scan reports its buckets where

- the bucket key is one column, is read, and Spark takes no values for equal that are in different buckets,
- every split is of one bucket, and all have the table's number of buckets, and
- every writer puts rows into the buckets that the function says. Fluss's Rust client (and so pyfluss) up to 1.0.0 does
  not for live tables without a lake, so these report none.

Else it is an ordinary scan. Lake tables are read by Spark itself where all files are plain, as in other scans, and live
tables by Python tasks. Such a scan takes no values of joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.types import IntegerType, StructField, StructType

from forebay.client.connection import Connection
from forebay.lake.source import UNAWARE_BUCKET, LakeSplit
from forebay.metadata.partitions import partition_value
from forebay.metadata.table import Column, TableInfo
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.split import DataSplit
from forebay.paimon.read.pieces import joined
from forebay.paimon.read.plain_files import plain_files
from forebay.paimon.store.context import TableContext
from forebay.spark.bucket_functions import TableBucketing, lake_bucketing, live_bucketing, runs_on_executors
from forebay.spark.context import SessionContext
from forebay.spark.jvm.executor_classes import executor_class
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject, quoted
from forebay.spark.read_modes import ReadMode, switch_of
from forebay.spark.reading.lake_plan import PaimonScan
from forebay.spark.reading.live_read import KvBatchSplit, LakePart, LogInput, Split
from forebay.spark.reading.native import parquet_scan, reads_files
from forebay.spark.reading.native_files import is_local
from forebay.spark.reading.plan import NativeFiles, Pushdown, ScanPlan
from forebay.spark.reading.scan import Readable, ScanProxy
from forebay.spark.schemas import columns_of, spark_arrow_schema, to_spark_schema
from forebay.unionread.splits import LakeSnapshotAndLogSplit, LakeSnapshotSplit

_CLASS = "ForebayBucketPartitions"
_READ = CONNECTOR + "read."


@dataclass(frozen=True)
class Bucket:
    """A bucket of a partition, and its splits. `files` are these as Parquet files; None where they are not plain."""

    partition: tuple[Any, ...]
    number: int
    splits: tuple[Any, ...]
    files: tuple[str, ...] | None = None


@dataclass(frozen=True)
class BucketPlan:
    """A plan, and the buckets that its splits are of. `partition_keys` are the columns of their partitions."""

    plan: ScanPlan
    bucketing: TableBucketing
    partition_keys: tuple[Column, ...]
    buckets: tuple[Bucket, ...]

    @property
    def files(self) -> list[list[str]] | None:
        """The files of each bucket; None unless Spark can read all of them."""
        found = [list(bucket.files) for bucket in self.buckets if bucket.files is not None]
        return found if found and len(found) == len(self.buckets) else None


def _usable(bucketing: TableBucketing | None, wanted: Pushdown) -> TableBucketing | None:
    """`bucketing` if Spark can compare buckets by it."""
    if bucketing is None or len(bucketing.columns) > 1 or wanted.limit is not None:
        return None
    return bucketing if bucketing.columns[0] in wanted.columns and bucketing.keeps_equal_together() else None


def lake_buckets(scan: PaimonScan, plan: ScanPlan, wanted: Pushdown) -> BucketPlan | None:
    """`plan` of a lake table by bucket; None where its splits are not of single buckets that Spark may compare."""
    schema = scan.table.schema
    bucketing = _usable(lake_bucketing(schema), wanted)
    splits = [split for task in plan.tasks for split in task]
    of_state = [s for s in splits if isinstance(s, DataSplit) and not s.is_streaming]
    totals = {split.total_buckets for split in of_state}
    if bucketing is None or scan.side is not None or len(of_state) < len(splits) or len(totals) > 1:
        return None
    bucketing = replace(bucketing, total=min(totals, default=bucketing.total))
    if bucketing.total < 1:  # files from before the table had a number of buckets
        return None
    grouped: dict[tuple[bytes, int], list[DataSplit]] = {}
    for split in of_state:
        grouped.setdefault((split.partition, split.bucket), []).append(split)
    layout = row_layout(schema.partition_fields)
    values = layout.decode_all([partition for partition, _ in grouped]).to_pylist() if layout.fields else []
    buckets = []
    for place, ((_, number), of_bucket) in enumerate(grouped.items()):
        files = None if plan.native is None else _local_files(scan.table, of_bucket, wanted.columns)
        partition = tuple(values[place].values()) if values else ()
        buckets.append(Bucket(partition, number, tuple(joined(of_bucket)), files))
    keys = {column.name: column for column in columns_of(schema)}
    return BucketPlan(plan, bucketing, tuple(keys[name] for name in schema.partition_keys), tuple(buckets))


def _local_files(table: TableContext, splits: Iterable[DataSplit], names: Sequence[str]) -> tuple[str, ...] | None:
    """The files of `splits`, if Spark can read the columns `names` of all of them itself."""
    fields, found = table.schema.fields_named(names), list[str]()
    for split in splits:
        files = plain_files(table, split, fields)
        if files is None or not all(map(is_local, files)):
            return None
        found += files
    return tuple(found)


def live_buckets(connection: Connection, info: TableInfo, plan: ScanPlan, wanted: Pushdown) -> BucketPlan | None:
    """The same of a live table, or of a union read."""
    bucketing = _usable(live_bucketing(info), wanted)
    if bucketing is None or bucketing.kind == "fluss":
        return None
    keys = tuple(info.schema.column(name) for name in info.descriptor.partition_keys)
    names: dict[int | None, tuple[str, ...]] = {None: ()}
    if keys:
        names = {p.partition_id: tuple(text for _, text in p.spec) for p in connection.table(info).partitions()}
    grouped: dict[tuple[tuple[str, ...], int], list[Split]] = {}
    for split in (split for task in plan.tasks for split in task):
        found = _bucket_of(split, names, info.bucket_count)
        if found is None:
            return None
        grouped.setdefault(found, []).append(split)
    buckets = []
    for (texts, number), splits in grouped.items():
        values = tuple(partition_value(key.data_type, text) for key, text in zip(keys, texts, strict=True))
        buckets.append(Bucket(values, number, tuple(splits)))
    return BucketPlan(plan, bucketing, keys, tuple(buckets))


def _bucket_of(
    split: Split, names: Mapping[int | None, tuple[str, ...]], total: int
) -> tuple[tuple[str, ...], int] | None:
    """The partition and bucket of a split; None if it is not of one, or is one of another number of buckets."""
    partition: tuple[str, ...] | None
    lakes: Sequence[LakeSplit] = ()
    match split:
        case LakePart(split=LakeSnapshotSplit(lake)):
            partition, number, lakes = lake.partition(), lake.bucket(), (lake,)
        case LakePart(split=LakeSnapshotAndLogSplit(bucket, lakes)):
            partition, number = names.get(bucket.partition_id), bucket.bucket
        case LogInput(bucket) | KvBatchSplit(bucket):
            partition, number = names.get(bucket.partition_id), bucket.bucket
        case _:
            return None
    if partition is None or number == UNAWARE_BUCKET:
        return None
    return (partition, number) if all(lake.bucket_count() in (None, total) for lake in lakes) else None


class ScanByBucket(ScanProxy):
    """A scan by Python tasks, each of which reads one bucket of one partition."""

    interfaces: ClassVar[tuple[str, ...]] = (_READ + "SupportsReportPartitioning",)

    def __init__(
        self, context: SessionContext, readable: Readable, wanted: Pushdown, schema: StructType, found: BucketPlan
    ) -> None:
        super().__init__(context, readable, wanted, schema)
        by_python = None if found.plan.direct is None else f"{switch_of(ReadMode.BUCKETS)} is true"
        self._made["plan"] = replace(found.plan, direct=by_python)
        self._found = found
        self._reported = [key for key in found.partition_keys if key.name in wanted.columns]

    def description(self) -> str:
        return f"{super().description()}, by bucket of {self._found.bucketing.columns[0]}"

    def filterAttributes(self) -> JavaObject:
        """None: what is read after a filter must be of the same buckets."""
        return self.jvm.array(CONNECTOR + "expressions.NamedReference", [])

    def outputPartitioning(self) -> JavaObject:
        expressions = CONNECTOR + "expressions."
        make = self.jvm.class_(expressions + "Expressions")
        column = self.jvm.column(self._found.bucketing.columns[0])
        bucket = make.apply(self._found.bucketing.name, self.jvm.array(expressions + "Expression", [column]))
        keys = [*(make.identity(quoted(key.name)) for key in self._reported), bucket]
        kind = self.jvm.class_(_READ + "partitioning.KeyGroupedPartitioning")
        return kind(self.jvm.array(expressions + "Expression", keys), len(self._found.buckets))

    def _partitions(self, plan: ScanPlan) -> JavaObject:
        opened = self._opened(plan.opened([bucket.splits for bucket in self._found.buckets]))
        self._pinned = opened.pinned
        made = executor_class(self.jvm, _CLASS)()
        return made.tasks(self.jvm.input_partitions(opened.partitions), self._keys())

    def _keys(self) -> JavaObject:
        """The values of each bucket's partition, those that are reported, and its number: an InternalRow[]."""
        spark_schema = StructType(
            [*to_spark_schema(self._reported).fields, StructField("bucket", IntegerType(), False)]
        )
        arrow = spark_arrow_schema(spark_schema)
        places = [self._found.partition_keys.index(key) for key in self._reported]
        rows = [(*(b.partition[place] for place in places), b.number) for b in self._found.buckets]
        columns = zip(*rows, strict=True) if rows else ((),) * len(arrow)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, arrow, strict=True)]
        return self.jvm.rows(self._context.session, spark_schema, pa.Table.from_arrays(arrays, schema=arrow))


class FileScanByBucket(ScanByBucket):
    """The same by Spark's own reader of Parquet files."""

    def __init__(self, scan: ScanByBucket, files: Sequence[Sequence[str]], filters: JavaObject) -> None:
        super().__init__(scan._context, scan._readable, scan._wanted, scan._schema, scan._found)
        self._paths = "\0".join(path for of_bucket in files for path in of_bucket)
        self._places = [place for place, of_bucket in enumerate(files) for _ in of_bucket]
        self._batch = parquet_scan(
            self._context, NativeFiles(tuple(self._paths.split("\0"))), self._schema, filters
        ).toBatch()

    def columnarSupportMode(self) -> JavaObject:
        """What the reader of each partition says."""
        return self.jvm.class_(_READ + "Scan$ColumnarSupportMode").PARTITION_DEFINED

    def supportedCustomMetrics(self) -> JavaObject:
        """None: only Python tasks report any."""
        return self.jvm.array(CONNECTOR + "metric.CustomMetric", [])

    def createReaderFactory(self) -> JavaObject:
        return self._batch.createReaderFactory()

    def _partitions(self, plan: ScanPlan) -> JavaObject:
        places, made = self.jvm.int_array(self._places), executor_class(self.jvm, _CLASS)()
        return made.files(self._batch.planInputPartitions(), self._paths, places, self._keys())


def bucket_scan(
    context: SessionContext,
    readable: Readable,
    wanted: Pushdown,
    schema: StructType,
    found: BucketPlan | None,
    filters: JavaObject,
) -> ScanByBucket | None:
    """The scan of the buckets `found`; None where there are none. `filters` are those of Spark's own reader."""
    if found is None or not runs_on_executors(context.jvm):
        return None
    scan = ScanByBucket(context, readable, wanted, schema, found)
    files = found.files
    return scan if files is None or not reads_files(context.jvm) else FileScanByBucket(scan, files, filters)
