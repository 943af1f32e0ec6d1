"""Builds the scan of a table from the columns, filters and limit that Spark pushes down.

Spark creates a `ScanBuilder` for each reference to a table in a query, passes columns, filters and limit to it, and
builds a scan (forebay.spark.reading.scan).

Filters on partition keys only select partitions. All other filters go to the readers, which drop what they can (whole
log batches on the server, rows in the worker), and also to Spark, which evaluates them exactly.
"""

from __future__ import annotations

from pyspark.sql.types import StructType

from forebay.metadata.predicate import Predicate, all_of
from forebay.spark.context import SessionContext
from forebay.spark.filters import may_skip_by, to_predicate
from forebay.spark.jvm.expressions import read_expression
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.planning import is_planning_stream
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.releases import counts_rows_without_columns
from forebay.spark.jvm.spark_values import python_schema
from forebay.spark.read_modes import ReadMode
from forebay.spark.reading.plan import Pushdown
from forebay.spark.reading.relation import Relation
from forebay.spark.reading.scan import READ, ScanProxy, value_bytes

_PREDICATE = CONNECTOR + "expressions.filter.Predicate"


class ScanBuilder(JavaProxy):
    """Collects what Spark pushes down, for one reference to a table in one query."""

    interfaces = (
        READ + "SupportsPushDownRequiredColumns",
        READ + "SupportsPushDownV2Filters",
        READ + "SupportsPushDownLimit",
    )

    def __init__(self, context: SessionContext, relation: Relation) -> None:
        super().__init__(context.jvm)
        self._context = context
        self._relation = relation
        self._schema = relation.schema
        self._partition_filters: list[Predicate] = []
        self._row_filters: list[Predicate] = []
        self._pushed: list[JavaObject] = []
        self._of_parquet: list[JavaObject] = []
        self._limit: int | None = None
        self._is_batch = False

    def pruneColumns(self, schema: JavaObject) -> None:
        """Set the requested columns. To count rows Spark requests none; if it cannot count those, read the narrowest.

        Spark calls this for every batch, and from 4.3 on also for streams.
        """
        self._is_batch = True
        requested = python_schema(schema)
        if not requested.fields and not counts_rows_without_columns():
            requested = StructType([min(self._relation.schema.fields, key=lambda field: value_bytes(field.dataType))])
        self._schema = requested

    def pushPredicates(self, predicates: JavaObject) -> JavaObject:
        """The filters that Spark still has to evaluate: all except those on partition keys."""
        remaining = []
        keys = set(self._relation.partition_keys)
        for java in predicates:
            expression = read_expression(java)
            predicate = to_predicate(expression, self._relation.columns)
            if predicate is None:
                remaining.append(java)
                continue
            self._pushed.append(java)
            if predicate.columns() <= keys:
                self._partition_filters.append(predicate)
            else:
                self._row_filters.append(predicate)
                remaining.append(java)
                if may_skip_by(expression, self._relation.columns):
                    self._of_parquet.append(java)
        return self.jvm.array(_PREDICATE, remaining)

    def pushedPredicates(self) -> JavaObject:
        return self.jvm.array(_PREDICATE, self._pushed)

    def pushLimit(self, limit: int) -> bool:
        """Accept the limit, which Spark pushes down only if it evaluates no filter. Each task applies the limit."""
        self._limit = limit
        return True

    def isPartiallyPushed(self) -> bool:
        return True

    def build(self) -> JavaObject:
        """A scan by Python tasks, Spark's own scan of Parquet files, or one of both."""
        pushdown = Pushdown(
            tuple(self._schema.fieldNames()),
            tuple(self._partition_filters),
            all_of(self._row_filters),
            self._limit,
        )
        scan = ScanProxy(self._context, self._relation, pushdown, self._schema)
        if not self._is_batch or is_planning_stream(self.jvm):
            return scan
        # Filters on partition keys are excluded: Parquet treats a filtered column that is not read as missing in the
        # file, so no row would match. Filters by which Parquet would skip matching rows are excluded, too.
        of_parquet = self.jvm.array(_PREDICATE, self._of_parquet)
        return self._by_bucket(pushdown, of_parquet) or scan.native(of_parquet) or scan

    def _by_bucket(self, pushdown: Pushdown, filters: JavaObject) -> ScanProxy | None:
        """The scan of whole buckets; None if the options do not allow it, or the table has none."""
        relation = self._relation
        if ReadMode.BUCKETS not in relation.modes:
            return None
        from forebay.spark.reading.bucketed import bucket_scan

        bucket_plan = relation.buckets(relation.plan(pushdown, self._schema), pushdown)
        return bucket_scan(self._context, relation, pushdown, self._schema, bucket_plan, filters)
