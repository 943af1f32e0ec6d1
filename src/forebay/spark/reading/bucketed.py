"""Scans whose tasks read whole buckets and report them (`read.by-bucket`).

Spark then joins tables with the same buckets of the join keys without a shuffle (a storage-partitioned join), and
groups by bucket keys without a shuffle. It compares buckets by the name of the table's bucket function
(forebay.spark.bucket_functions), and supports functions of one column only. A scan reports its buckets if

- the bucket key is one column, this column is read, and values that are equal in Spark are in one bucket,
- each split belongs to one bucket, and all splits have the table's bucket count, and
- every writer follows the bucket function. Fluss's Rust client (and so pyfluss) up to 1.0.0 does not for live tables
  without a lake, so these report no buckets.

Otherwise it is an ordinary scan. Spark reads lake tables itself if all files are plain, as in other scans. Python tasks
read live tables. A scan by bucket is not filtered by the values of a join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.types import IntegerType, StructField, StructType

from forebay.spark.bucket_functions import runs_on_executors
from forebay.spark.context import SessionContext
from forebay.spark.jvm.executor_classes import executor_class
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.python_tasks import input_partitions
from forebay.spark.jvm.spark_values import column_reference, internal_rows, quoted
from forebay.spark.jvm.values import int_array
from forebay.spark.read_modes import ReadMode, switch_of
from forebay.spark.reading.buckets import BucketPlan
from forebay.spark.reading.native import parquet_scan, reads_files
from forebay.spark.reading.plan import NativeFiles, Pushdown, ScanPlan
from forebay.spark.reading.relation import Relation
from forebay.spark.reading.scan import ScanProxy
from forebay.spark.schemas import spark_arrow_schema, to_spark_schema

_CLASS = "ForebayBucketPartitions"
_READ = CONNECTOR + "read."


class ScanByBucket(ScanProxy):
    """A scan by Python tasks. Each task reads one bucket of one partition."""

    interfaces: ClassVar[tuple[str, ...]] = (_READ + "SupportsReportPartitioning",)

    def __init__(
        self,
        context: SessionContext,
        relation: Relation,
        pushdown: Pushdown,
        schema: StructType,
        bucket_plan: BucketPlan,
    ) -> None:
        super().__init__(context, relation, pushdown, schema)
        by_python = None if bucket_plan.plan.direct is None else f"{switch_of(ReadMode.BUCKETS)} is true"
        self._results["plan"] = replace(bucket_plan.plan, direct=by_python)
        self._bucket_plan = bucket_plan
        self._reported = [key for key in bucket_plan.partition_keys if key.name in pushdown.columns]

    def description(self) -> str:
        return f"{super().description()}, by bucket of {self._bucket_plan.bucketing.columns[0]}"

    def filterAttributes(self) -> JavaObject:
        """No attributes: Spark requires that a filtered scan reports the same buckets."""
        return self.jvm.array(CONNECTOR + "expressions.NamedReference", [])

    def outputPartitioning(self) -> JavaObject:
        """The requested partition keys and the bucket function, with the number of tasks."""
        expressions = CONNECTOR + "expressions."
        make = self.jvm.class_(expressions + "Expressions")
        column = column_reference(self.jvm, self._bucket_plan.bucketing.columns[0])
        bucket = make.apply(self._bucket_plan.bucketing.name, self.jvm.array(expressions + "Expression", [column]))
        keys = [*(make.identity(quoted(key.name)) for key in self._reported), bucket]
        kind = self.jvm.class_(_READ + "partitioning.KeyGroupedPartitioning")
        return kind(self.jvm.array(expressions + "Expression", keys), len(self._bucket_plan.buckets))

    def _partitions(self, plan: ScanPlan) -> JavaObject:
        opened = self._opened(plan.open_tasks([bucket.splits for bucket in self._bucket_plan.buckets]))
        self._pinned = opened.pinned
        maker = executor_class(self.jvm, _CLASS)()
        return maker.tasks(input_partitions(self.jvm, opened.partitions), self._keys())

    def _keys(self) -> JavaObject:
        """An InternalRow[] with the reported partition values and the number of each bucket."""
        spark_schema = StructType(
            [*to_spark_schema(self._reported).fields, StructField("bucket", IntegerType(), False)]
        )
        arrow = spark_arrow_schema(spark_schema)
        places = [self._bucket_plan.partition_keys.index(key) for key in self._reported]
        rows = [(*(b.partition[place] for place in places), b.number) for b in self._bucket_plan.buckets]
        columns = zip(*rows, strict=True) if rows else ((),) * len(arrow)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, arrow, strict=True)]
        return internal_rows(self.jvm, self._context.session, spark_schema, pa.Table.from_arrays(arrays, schema=arrow))


class FileScanByBucket(ScanByBucket):
    """A scan by bucket whose files are read by Spark's own reader of Parquet files."""

    def __init__(self, scan: ScanByBucket, files: Sequence[Sequence[str]], filters: JavaObject) -> None:
        super().__init__(scan._context, scan._relation, scan._pushdown, scan._schema, scan._bucket_plan)
        self._paths = "\0".join(path for of_bucket in files for path in of_bucket)
        self._places = [place for place, of_bucket in enumerate(files) for _ in of_bucket]
        self._batch = parquet_scan(
            self._context, NativeFiles(tuple(self._paths.split("\0"))), self._schema, filters
        ).toBatch()

    def columnarSupportMode(self) -> JavaObject:
        """The mode that lets the reader of each partition decide."""
        return self.jvm.class_(_READ + "Scan$ColumnarSupportMode").PARTITION_DEFINED

    def supportedCustomMetrics(self) -> JavaObject:
        """No metrics: only Python tasks report any."""
        return self.jvm.array(CONNECTOR + "metric.CustomMetric", [])

    def createReaderFactory(self) -> JavaObject:
        return self._batch.createReaderFactory()

    def _partitions(self, plan: ScanPlan) -> JavaObject:
        places, maker = int_array(self.jvm, self._places), executor_class(self.jvm, _CLASS)()
        return maker.files(self._batch.planInputPartitions(), self._paths, places, self._keys())


def bucket_scan(
    context: SessionContext,
    relation: Relation,
    pushdown: Pushdown,
    schema: StructType,
    bucket_plan: BucketPlan | None,
    filters: JavaObject,
) -> ScanByBucket | None:
    """The scan of `bucket_plan`; None if there are no buckets. `filters` are for Spark's own reader."""
    if bucket_plan is None or not runs_on_executors(context.jvm):
        return None
    scan = ScanByBucket(context, relation, pushdown, schema, bucket_plan)
    files = bucket_plan.files
    return scan if files is None or not reads_files(context.jvm) else FileScanByBucket(scan, files, filters)
