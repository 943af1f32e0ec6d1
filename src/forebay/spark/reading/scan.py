"""Scans: from the pushdown of a query to tasks for Spark's Python workers.

A scan is planned once, when Spark first requests statistics or partitions, and keeps the plan: buckets and offsets stay
the same however often Spark runs its tasks. A primary-key table is pinned by a table snapshot when its tasks are
created (`forebay.spark.reading.live_plan.open_for_query`).

A join with a small, filtered side passes the values of its join keys to the scan of the other side when the query runs
(`ScanProxy.filter`). They are an additional filter, which prunes partitions, buckets and files, or becomes lookups.
Spark may use the same scan in several places of a plan and filter one of them. So a filter does not change the scan: it
creates another scan, which answers the next `toBatch` of the same thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from pyspark.sql.types import AtomicType, StructType

from forebay.base.errors import StorageFailure
from forebay.spark.context import SessionContext
from forebay.spark.filters import to_predicate, to_text
from forebay.spark.jvm.expressions import read_expression
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.planning import calling_thread_id, streamed_columns
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.scan_metrics import scan_metrics
from forebay.spark.jvm.spark_values import column_reference, struct_type
from forebay.spark.jvm.values import java_map, optional_long
from forebay.spark.read_modes import ReadMode
from forebay.spark.reading.native import empty_scan, file_scan, mixed_scan, parquet_scan, reads_files
from forebay.spark.reading.open_snapshots import open_snapshots
from forebay.spark.reading.plan import OpenedScan, Pushdown, ScanPlan
from forebay.spark.reading.relation import Relation
from forebay.spark.reading.task_readers import java_partitions, task_mode, task_readers

READ = CONNECTOR + "read."

RUNTIME_VALUES_MAX = 4096
"""Maximum number of join values that filter a scan, and of keys that are looked up
(`forebay.client.reading.key_filter.KEYS_MAX`). More values exclude little and cost time in the driver."""

DEFAULT_VALUE_BYTES = 20
"""The size that Spark assumes for a string in estimates."""


_LOGGER = logging.getLogger(__name__)


class ScanProxy(JavaProxy):
    """A scan and its tasks, planned once on first use."""

    interfaces: ClassVar[tuple[str, ...]] = (
        READ + "SupportsReportStatistics",
        READ + "SupportsRuntimeV2Filtering",
        READ + "Batch",
    )

    def __init__(self, context: SessionContext, relation: Relation, pushdown: Pushdown, schema: StructType) -> None:
        super().__init__(context.jvm)
        self._context = context
        self._relation = relation
        self._pushdown = pushdown
        self._schema = schema
        self._lock = threading.Lock()
        self._results: dict[str, Any] = {}
        self._pinned: object | None = None
        self._is_stream = False
        self._is_filtered = False
        self._to_answer: dict[int, ScanProxy] = {}
        self._filtered: ScanProxy | None = None

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        """`make()`, called once for all threads of the JVM."""
        with self._lock:
            if name not in self._results:
                self._results[name] = make()
            return self._results[name]

    def _plan(self) -> ScanPlan:
        plan: ScanPlan = self._once("plan", lambda: self._relation.plan(self._pushdown, self._schema))
        return plan

    def native(self, filters: JavaObject) -> JavaObject | None:
        """The scan of files by Spark itself that replaces this scan; None if Python tasks read all rows.

        Spark evaluates `filters` as well, so it reads their columns.
        """
        plan = self._plan()
        if plan.native is None or not reads_files(self.jvm):
            return None
        if not plan.native.is_all or plan.native.marking:
            return MixedScan(self, filters)
        try:
            files = parquet_scan(self._context, plan.native, self._schema, filters)
        except StorageFailure as e:
            self._warn_of(e)
            return None
        size = None if plan.rows is None else (plan.rows, plan.rows * self._row_bytes())
        tasks, key = FileScan(self, filters), self._relation.lookup_key
        return file_scan(self._context, files, tasks, self._filtered_columns(), size, key)

    def _warn_of(self, failure: StorageFailure) -> None:
        _LOGGER.warning("lake files of %s are read by Python: %s", self._relation.name, failure.message)

    def _opened(self, opened: OpenedScan) -> OpenedScan:
        if opened.pinned is not None:
            open_snapshots.add(opened.pinned, self.jvm.collect_garbage)
        return opened

    # ---- Scan -------------------------------------------------------------------------------------------------------

    def readSchema(self) -> JavaObject:
        return self._once("schema", lambda: struct_type(self.jvm, self._schema))

    def description(self) -> str:
        """The scan's line in EXPLAIN, with the mode of reading."""
        parts = [f"forebay {self._relation.name} ({', '.join(self._pushdown.columns)})", *self._filters_in_words()]
        if self._relation.strategy is not None:
            parts.append(f"by {self._relation.strategy.replace('_', '-')}")
        if self._filtered is not None:
            parts.append(f"filtered by a join: {', '.join(self._filtered._filters_in_words())}")
        if not self._is_stream:
            mode, reason = self._mode(self._results.get("plan"))
            parts.append(f"by rows: {reason}" if mode is ReadMode.ROWS else "by columns")
            if mode is ReadMode.DIRECT or (mode is ReadMode.COLUMNS and reason is not None):
                what = "logs" if self._relation.strategy is None else "buckets"
                parts.append(f"{what} by Python: {reason}" if reason is not None else f"{what} without Python")
        return ", ".join(parts)

    def _filters_in_words(self) -> list[str]:
        pushdown, plan = self._pushdown, self._results.get("plan")
        parts = [f"partitions where {to_text(predicate)}" for predicate in pushdown.partition_filters]
        if pushdown.row_filter is not None:
            parts.append(f"rows where {to_text(pushdown.row_filter)}")
        if pushdown.limit is not None:
            parts.append(f"limit {pushdown.limit}")
        if plan is not None and plan.selection is not None:
            parts.append(plan.selection)
        return parts

    def columnarSupportMode(self) -> JavaObject:
        """One mode for all partitions: otherwise Spark requests the partitions before it has the values of a join."""
        is_columnar = self._mode()[0] is not ReadMode.ROWS
        mode = self.jvm.class_(READ + "Scan$ColumnarSupportMode")
        return mode.SUPPORTED if is_columnar else mode.UNSUPPORTED

    def _mode(self, plan: ScanPlan | None = None) -> tuple[ReadMode, str | None]:
        """The mode of the tasks, and the reason why it is not a faster one. Without a plan: rows or columns."""
        name = "mode" if plan is None else "mode of plan"
        if name not in self._results:
            self._results[name] = task_mode(self.jvm, self._relation.modes, None if plan is None else plan.direct)
        mode: tuple[ReadMode, str | None] = self._results[name]
        return mode

    def toBatch(self) -> JavaProxy:
        return self._to_answer.pop(calling_thread_id(self.jvm), self) if self._to_answer else self

    def toMicroBatchStream(self, checkpoint: str) -> JavaProxy:
        """The stream of the table: Spark requests all columns of a stream and evaluates filters itself."""
        self._is_stream = True
        schema, relation = self._schema, self._relation
        if schema is relation.schema:  # Spark has not said which columns it requests
            schema = streamed_columns(self.jvm, relation.name)
        return relation.stream(schema, self._mode()[0])

    def supportedCustomMetrics(self) -> JavaObject:
        return self._once("metrics", lambda: scan_metrics(self.jvm)[0])

    # ---- SupportsRuntimeV2Filtering ---------------------------------------------------------------------------------

    def filterAttributes(self) -> JavaObject:
        columns = [column_reference(self.jvm, name) for name in self._filtered_columns()]
        return self.jvm.array(CONNECTOR + "expressions.NamedReference", columns)

    def _filtered_columns(self) -> list[str]:
        """The requested columns whose values Spark can compare.

        None with a limit, which counts rows before any join. None for UPDATE, MERGE and DELETE: Spark would compute the
        values in a separate query, which reads the table at another point in time and with the session's options.
        """
        pushdown, relation = self._pushdown, self._relation
        is_open = pushdown.limit is None and not relation.is_target
        names = {column.name for column in relation.columns if is_open}
        comparable = [field.name for field in self._schema.fields if isinstance(field.dataType, AtomicType)]
        return [name for name in comparable if name in names]

    def filter(self, predicates: JavaObject) -> None:
        """Restrict the next batch of this thread to rows that may match all `predicates`.

        Predicates with more than `RUNTIME_VALUES_MAX` values are ignored: the join drops other rows.
        """
        pushdown = self._narrowed(predicates)
        if pushdown is not self._pushdown:
            filtered = ScanProxy(self._context, self._relation, pushdown, self._schema)
            filtered._is_filtered = True
            self._filtered = self._to_answer[calling_thread_id(self.jvm)] = filtered

    def _narrowed(self, predicates: JavaObject) -> Pushdown:
        pushdown = self._pushdown
        for java in predicates:
            if len(java.children()) <= RUNTIME_VALUES_MAX + 1:
                predicate = to_predicate(read_expression(java), self._relation.columns)
                if predicate is not None:
                    pushdown = pushdown.with_filter(predicate, self._relation.partition_keys)
        return pushdown

    # ---- SupportsReportStatistics -----------------------------------------------------------------------------------

    def estimateStatistics(self) -> JavaProxy:
        return self._statistics(None if self._is_stream else self._plan().rows)

    def _statistics(self, rows: int | None) -> StatisticsProxy:
        return StatisticsProxy(self._context, rows, None if rows is None else rows * self._row_bytes())

    def _row_bytes(self) -> int:
        """The estimated size of a row."""
        return 8 + sum(value_bytes(field.dataType) for field in self._schema.fields)

    # ---- Batch ------------------------------------------------------------------------------------------------------

    def planInputPartitions(self) -> JavaObject:
        plan = self._plan()
        return self._once("partitions", lambda: self._partitions(plan))

    def _partitions(self, plan: ScanPlan) -> JavaObject:
        # Referenced as long as this scan, and so as long as the query's plan.
        opened = self._opened(plan.open())
        self._pinned = opened.pinned
        if self._is_filtered:  # Spark uses the reader factory of the scan that it has filtered
            for partition in opened.partitions:
                partition.reader = plan.read
        return java_partitions(self.jvm, opened.partitions, plan.direct, self._mode(plan)[0])

    def createReaderFactory(self) -> JavaObject:
        read, mode = self._plan().read, self._mode()[0]
        return self._once("factory", lambda: task_readers(self.jvm, read, self._schema, mode))


class PlannedScan(ScanProxy):
    """A scan that Spark's own Parquet reader may read in whole or in part; `filters` are for that reader."""

    def __init__(self, scan: ScanProxy, filters: JavaObject) -> None:
        super().__init__(scan._context, scan._relation, scan._pushdown, scan._schema)
        self._results["plan"] = scan._plan()
        self._filters = filters


class FileScan(PlannedScan):
    """A scan of files by Spark's own reader. Its `apply` selects files for the values of a join.

    If a join finds the rows by their keys, Python tasks look them up instead.
    """

    interfaces: ClassVar[tuple[str, ...]] = ("java.util.function.Function",)

    def apply(self, predicates: JavaObject) -> JavaObject | None:
        """Spark's scan of the files that may have rows that match all `predicates`; None: all files."""
        pushdown = self._narrowed(predicates)
        if pushdown is self._pushdown:
            return None
        plan = self._relation.plan(pushdown, self._schema)
        if not plan.tasks:
            return empty_scan(self._context, self._schema, self._statistics(0))
        if plan.native is None or not plan.native.is_all or plan.native.marking:  # the table has changed since
            return None
        return parquet_scan(self._context, plan.native, self._schema, self._filters)


class MixedScan(PlannedScan):
    """A scan by Python tasks that a scan of files and tasks may replace in a query's plan (`choose_scans`)."""

    interfaces: ClassVar[tuple[str, ...]] = ("java.util.function.BiFunction",)

    def apply(self, relation: JavaObject, filtered: JavaObject) -> JavaObject | None:
        """The scan that replaces this one in `relation`; None if a join will filter the columns `filtered`."""
        if filtered or self._mode()[0] is ReadMode.ROWS:
            return None
        plan = self._plan()
        try:
            return self._once("mixed", lambda: self._mixed(plan))
        except StorageFailure as e:
            self._warn_of(e)
            return None

    def _mixed(self, plan: ScanPlan) -> JavaObject | None:
        assert plan.native is not None
        opened = self._opened(plan.open(beside_native=True))
        partitions = java_partitions(self.jvm, opened.partitions, plan.direct, self._mode(plan)[0])
        statistics = self._statistics(plan.rows)
        statistics.pinned = opened.pinned  # the new scan references them in place of this one
        return mixed_scan(
            self._context,
            self.description(),
            self._schema,
            plan.native,
            plan.read,
            partitions,
            self._filters,
            statistics,
        )


class StatisticsProxy(JavaProxy):
    """The size of a scan, for Spark's choice of joins."""

    interfaces = (READ + "Statistics",)

    def __init__(self, context: SessionContext, rows: int | None, size: int | None) -> None:
        super().__init__(context.jvm)
        self.pinned: object | None = None
        """An object that lives as long as the plan of the query with these statistics."""
        self._rows = optional_long(self.jvm, rows)
        self._size = optional_long(self.jvm, size)
        self._columns = java_map(self.jvm, {})

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
