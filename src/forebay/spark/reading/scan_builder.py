"""Scans: what a query wants of a table -> tasks for Spark's Python workers.

Flow: Spark makes a `ScanBuilder` for every reference to a table in every query, tells it columns, filters and limit,
and builds a `ScanProxy`. The scan plans when it is first asked for statistics or partitions, once, and keeps the plan:
buckets and offsets are those of that moment however often Spark runs its tasks. A primary-key table is pinned by a
table snapshot when its tasks are made (`forebay.spark.reading.live_plan.open_for_query`).

Filters on partition keys choose partitions and are done with. All others go to the readers, which drop what they can
(whole log batches on the server, rows in the worker), and to Spark again, which has the last word.
"""

from __future__ import annotations

import pickle
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql.types import StructType

from forebay.base.errors import UnsupportedOperation
from forebay.metadata.predicate import Predicate, all_of
from forebay.metadata.table import Column
from forebay.spark.context import SessionContext
from forebay.spark.filters import may_skip_by, to_predicate, to_text
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.releases import counts_rows_without_columns
from forebay.spark.options import FORMAT_NAME
from forebay.spark.reading.native import MixedScan, parquet_scan, reads_files
from forebay.spark.reading.plan import OpenedScan, Pushdown, ScanPlan

_READ = CONNECTOR + "read."
_PREDICATE = CONNECTOR + "expressions.filter.Predicate"

DEFAULT_VALUE_BYTES = 20
"""What Spark takes a string for, in estimates."""


Planner = Callable[[Pushdown, StructType], ScanPlan]
StreamSource = Callable[[], Mapping[str, str]]
"""The options by which a format in Python reads the same as a stream."""


@dataclass(frozen=True)
class Readable:
    """A thing that can be scanned: its name, Spark schema, the columns that filters may be about, and its planner.

    `strategy` says how the rows of a primary-key table, or of one with a lake, are found. As a stream the thing is read
    by the format `stream_format`, with the options that `stream` gives; None: it cannot be read as a stream.
    """

    name: str
    schema: StructType
    columns: tuple[Column, ...]
    plan: Planner
    partition_keys: tuple[str, ...] = ()
    strategy: str | None = None
    stream: StreamSource | None = None
    stream_format: str = FORMAT_NAME


class ScanBuilder(JavaProxy):
    """Collects what Spark pushes down, for one reference to a table in one query."""

    interfaces = (
        _READ + "SupportsPushDownRequiredColumns",
        _READ + "SupportsPushDownV2Filters",
        _READ + "SupportsPushDownLimit",
    )

    def __init__(self, context: SessionContext, readable: Readable) -> None:
        super().__init__(context.jvm)
        self._context = context
        self._readable = readable
        self._schema = readable.schema
        self._partition_filters: list[Predicate] = []
        self._row_filters: list[Predicate] = []
        self._pushed: list[JavaObject] = []
        self._of_parquet: list[JavaObject] = []
        self._limit: int | None = None
        self._is_batch = False

    def pruneColumns(self, schema: JavaObject) -> None:
        """Spark asks for no column at all to count rows. Where it cannot count those, the narrowest one is read.

        It asks this of every batch, and from Spark 4.3 on of streams, too.
        """
        self._is_batch = True
        wanted = self.jvm.python_schema(schema)
        if not wanted.fields and not counts_rows_without_columns():
            wanted = StructType([min(self._readable.schema.fields, key=lambda field: value_bytes(field.dataType))])
        self._schema = wanted

    def pushPredicates(self, predicates: JavaObject) -> JavaObject:
        """The filters that Spark still has to evaluate: all except those on partition keys."""
        left = []
        keys = set(self._readable.partition_keys)
        for java in predicates:
            expression = self.jvm.expression(java)
            predicate = to_predicate(expression, self._readable.columns)
            if predicate is None:
                left.append(java)
                continue
            self._pushed.append(java)
            if predicate.columns() <= keys:
                self._partition_filters.append(predicate)
            else:
                self._row_filters.append(predicate)
                left.append(java)
                if may_skip_by(expression, self._readable.columns):
                    self._of_parquet.append(java)
        return self.jvm.array(_PREDICATE, left)

    def pushedPredicates(self) -> JavaObject:
        return self.jvm.array(_PREDICATE, self._pushed)

    def pushLimit(self, limit: int) -> bool:
        """Accept the limit: Spark only asks if it has no filter left to evaluate. Every task applies the limit."""
        self._limit = limit
        return True

    def isPartiallyPushed(self) -> bool:
        return True

    def build(self) -> JavaObject:
        """A scan by Python tasks, Spark's own scan of Parquet files, or a union of both."""
        wanted = Pushdown(
            tuple(self._schema.fieldNames()),
            tuple(self._partition_filters),
            all_of(self._row_filters),
            self._limit,
        )
        scan = ScanProxy(self._context, self._readable, wanted, self._schema)
        if not self._is_batch or self.jvm.plans_a_stream():
            return scan
        # Without those on partition keys: Parquet takes a column that is filtered and not read for one that the file
        # lacks, so that no row would match. And without those by which it would leave out rows that match.
        return scan.native(self.jvm.array(_PREDICATE, self._of_parquet)) or scan


class ScanProxy(JavaProxy):
    """A scan and its tasks, planned once on first use."""

    interfaces: ClassVar[tuple[str, ...]] = (_READ + "SupportsReportStatistics", _READ + "Batch")

    def __init__(self, context: SessionContext, readable: Readable, wanted: Pushdown, schema: StructType) -> None:
        super().__init__(context.jvm)
        self._context = context
        self._readable = readable
        self._wanted = wanted
        self._schema = schema
        self._lock = threading.Lock()
        self._made: dict[str, Any] = {}
        self._pinned: object | None = None
        self._is_stream = False

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        """`make()`, called once for all threads of the JVM."""
        with self._lock:
            if name not in self._made:
                self._made[name] = make()
            return self._made[name]

    def _plan(self) -> ScanPlan:
        plan: ScanPlan = self._once("plan", lambda: self._readable.plan(self._wanted, self._schema))
        return plan

    def native(self, filters: JavaObject) -> JavaObject | None:
        """What to scan instead: files, by Spark itself; None where Python tasks read all.

        `filters` are those that Spark evaluates itself, too, so that it reads their columns.
        """
        plan = self._plan()
        if plan.native is None or not reads_files(self.jvm):
            return None
        if plan.native.is_all and not plan.native.marking:
            return parquet_scan(self._context, plan.native.files, self._schema, filters)
        opened = self._opened(plan.open(beside_native=True))
        parts = (plan.native, plan.read, opened)
        return MixedScan(self._context, self.description(), self._schema, parts, filters)

    def _opened(self, opened: OpenedScan) -> OpenedScan:
        if opened.pinned is not None:
            open_snapshots.add(opened.pinned, self.jvm.collect_garbage)
        return opened

    # ---- Scan -------------------------------------------------------------------------------------------------------

    def readSchema(self) -> JavaObject:
        return self._once("schema", lambda: self.jvm.struct_type(self._schema))

    def description(self) -> str:
        wanted = self._wanted
        parts = [f"forebay {self._readable.name} ({', '.join(wanted.columns)})"]
        parts += [f"partitions where {to_text(predicate)}" for predicate in wanted.partition_filters]
        if wanted.row_filter is not None:
            parts.append(f"rows where {to_text(wanted.row_filter)}")
        if wanted.limit is not None:
            parts.append(f"limit {wanted.limit}")
        plan = self._made.get("plan")
        chosen = None if plan is None else plan.chosen
        if chosen is not None:
            parts.append(chosen)
        if self._readable.strategy is not None:
            parts.append(f"by {self._readable.strategy.replace('_', '-')}")
        return ", ".join(parts)

    def toBatch(self) -> JavaProxy:
        return self

    def toMicroBatchStream(self, checkpoint: str) -> JavaObject:
        """Spark asks for all columns of a stream, and evaluates filters itself: so this is the format's stream."""
        if self._readable.stream is None:
            raise UnsupportedOperation(f"{self._readable.name} cannot be read as a stream")
        self._is_stream = True
        return self.jvm.python_stream(self._readable.stream_format, self._schema, self._readable.stream(), checkpoint)

    def supportedCustomMetrics(self) -> JavaObject:
        return self._once("metrics", self.jvm.python_metrics)

    # ---- SupportsReportStatistics -----------------------------------------------------------------------------------

    def estimateStatistics(self) -> JavaProxy:
        rows = None if self._is_stream else self._plan().rows
        width = 8 + sum(value_bytes(field.dataType) for field in self._schema.fields)
        return StatisticsProxy(self._context, rows, None if rows is None else rows * width)

    # ---- Batch ------------------------------------------------------------------------------------------------------

    def planInputPartitions(self) -> JavaObject:
        plan = self._plan()
        return self._once("partitions", lambda: self._partitions(plan))

    def _partitions(self, plan: ScanPlan) -> JavaObject:
        # Kept as long as this scan, and so as long as the query's plan.
        opened = self._opened(plan.open())
        self._pinned = opened.pinned
        return self.jvm.input_partitions(opened.partitions)

    def createReaderFactory(self) -> JavaObject:
        command = (self._plan().read, self._schema)
        return self._once("factory", lambda: self.jvm.reader_factory(pickle.dumps(command), self._schema))


OPEN_BEFORE_COLLECTING = 64
"""Snapshots of one driver beyond which the JVM is asked to collect the plans of old queries."""


class OpenSnapshots:
    """The snapshots and other resources that a driver keeps open for its queries. Thread-safe.

    The JVM may take its time to collect plans. So a driver that has many snapshots open asks it to.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[object] = weakref.WeakSet()
        self._collect_at = OPEN_BEFORE_COLLECTING

    def __len__(self) -> int:
        with self._lock:
            return len(self._open)

    def add(self, snapshot: object, collect: Callable[[], object]) -> None:
        """Remember one; `collect` makes the JVM collect garbage, if there are many.

        Plans that are in use after all do not make every further query collect: then more have to come first.
        """
        with self._lock:
            self._open.add(snapshot)
            is_due = len(self._open) >= self._collect_at
            if is_due:
                self._collect_at = len(self._open) * 2
        if is_due:
            collect()
        else:
            with self._lock:
                if len(self._open) < OPEN_BEFORE_COLLECTING // 2:
                    self._collect_at = OPEN_BEFORE_COLLECTING


open_snapshots = OpenSnapshots()
"""Those of this process."""


class StatisticsProxy(JavaProxy):
    """The size of a scan, for Spark's choice of joins."""

    interfaces = (_READ + "Statistics",)

    def __init__(self, context: SessionContext, rows: int | None, size: int | None) -> None:
        super().__init__(context.jvm)
        self._rows = self.jvm.optional_long(rows)
        self._size = self.jvm.optional_long(size)
        self._columns = self.jvm.map({})

    def numRows(self) -> JavaObject:
        return self._rows

    def sizeInBytes(self) -> JavaObject:
        return self._size

    def columnStats(self) -> JavaObject:
        return self._columns


def value_bytes(t: Any) -> int:
    """The estimated size in bytes of a value of Spark type `t`."""
    return _VALUE_BYTES.get(type(t).__name__, DEFAULT_VALUE_BYTES)


_VALUE_BYTES = {
    "BooleanType": 1,
    "ByteType": 1,
    "ShortType": 2,
    "IntegerType": 4,
    "DateType": 4,
    "FloatType": 4,
    "LongType": 8,
    "DoubleType": 8,
    "TimestampType": 8,
    "TimestampNTZType": 8,
    "TimeType": 8,
    "DecimalType": 16,
}
