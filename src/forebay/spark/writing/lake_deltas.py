"""UPDATE, MERGE and DELETE on lake tables with a primary key: deltas by key, one commit for a statement.

A changed row is written again under its key, and a deleted row is written as a delete; the table's merge engine merges
them. Statements that the merge engine does not support are refused, as in Paimon:

| merge engine | UPDATE, MERGE | DELETE |
|---|---|---|
| deduplicate | yes | yes |
| partial-update | yes; a column that becomes null keeps its value | with `partial-update.remove-record-on-delete` |
| aggregation | no | with `aggregation.remove-record-on-delete` |
| first-row | no | no |

A primary key cannot be changed. If another commit changed a row of the statement after it began, or replaced files of
its buckets, nothing is committed (`Conflict`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from forebay.api.changes import CHANGE_TYPE_COLUMN, CHANGE_TYPES, change_numbers
from forebay.base.errors import UnsupportedOperation
from forebay.paimon.commit.row_conflicts import RowConflicts
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.table import Table
from forebay.paimon.write.incoming import DELETE, Intake
from forebay.paimon.write.table_write import WriterShard
from forebay.spark.context import LakeContext
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.lake_jobs import SparkTasks
from forebay.spark.reading.lake_metadata import OLD_PREFIX, sequence_columns
from forebay.spark.schemas import columns_of, to_spark_schema
from forebay.spark.workers import short_errors
from forebay.spark.writing import row_level
from forebay.spark.writing.committing import commit_and_compact, with_precommit_compaction
from forebay.spark.writing.distinct_keys import DistinctKeys
from forebay.spark.writing.lake_deletes import check_spark_deletes
from forebay.spark.writing.lake_write import OVERRIDING, LakeWriteFunction, WrittenFiles, messages_of, new_write
from forebay.spark.writing.lake_write_builder import RowDistribution, row_distribution
from forebay.spark.writing.row_level import DeltaOperation, DeltaRows, DeltaWrite, OpenRelation
from forebay.spark.writing.write_builder import WRITE

_OPERATION_COLUMN = "__row_operation"
"""The column with Spark's number for the kind of a row. Rows must be written in the order of the numbers."""


class LakeDelta(DeltaOperation):
    """A statement on one lake table with a primary key."""

    _context: LakeContext

    def __init__(
        self,
        context: LakeContext,
        name: str,
        table: Table,
        base: Snapshot | None,
        command: JavaObject,
        open_relation: OpenRelation,
    ) -> None:
        """`open_relation` reads snapshot `base`. Raises `UnsupportedOperation` where rows cannot be changed."""
        super().__init__(context, name, command, open_relation)
        self._table = table
        self._base = base
        engine = table.context.options.merge_engine
        if self.statement != row_level.DELETE and engine not in OVERRIDING:
            raise UnsupportedOperation(
                f"{self.statement} {name}: tables with merge engine {engine} take no changed rows, only those with "
                f"{' and '.join(OVERRIDING)} do"
            )
        if CHANGE_TYPE_COLUMN in table.schema.names:
            raise UnsupportedOperation(f"{self.statement} {name}: the table has a column '{CHANGE_TYPE_COLUMN}'")

    def _key(self) -> tuple[str, ...]:
        return tuple(self._table.schema.primary_keys)

    def requiredMetadataAttributes(self) -> JavaObject:
        return self._references([OLD_PREFIX + name for name in sequence_columns(self._table.schema)])

    def _write(self, options: dict[str, str]) -> DeltaWrite:
        if self.statement == row_level.DELETE:
            check_spark_deletes(self._table.context, f"DELETE FROM {self._table.name}")
        return LakeDeltaWrite(self, self._table, self._base)


class LakeDeltaWrite(DeltaWrite):
    """The write of one statement, and its commit."""

    interfaces: ClassVar[tuple[str, ...]] = (WRITE + "RequiresDistributionAndOrdering",)

    def __init__(self, operation: LakeDelta, table: Table, base: Snapshot | None) -> None:
        super().__init__(operation.jvm, operation.description())
        self._what = f"{operation.statement} {operation._name}"
        self._is_merge = operation.statement == row_level.MERGE
        self._name, self._table, self._base = operation._name, table, base
        self._distribution: RowDistribution = row_distribution(table, operation._context)
        self._is_settled = False

    # ---- distribution: all rows of a key go to one task, in order ----------------------------------------------------

    def requiredDistribution(self) -> JavaObject:
        return self._distribution.to_java(self.jvm)

    def requiredNumPartitions(self) -> int:
        return self._distribution.tasks

    def requiredOrdering(self) -> JavaObject:
        """The order of a MERGE's rows in a task: deletes before other rows. Other statements need no order."""
        expressions = CONNECTOR + "expressions."
        orders = []
        if self._is_merge:
            make = self.jvm.class_(expressions + "Expressions")
            ascending = self.jvm.class_(expressions + "SortDirection").ASCENDING
            orders = [make.sort(make.column(_OPERATION_COLUMN), ascending)]
        return self.jvm.array(expressions + "SortOrder", orders)

    # ---- the write ---------------------------------------------------------------------------------------------------

    def _rows(self) -> DeltaRows:
        schema = self._table.schema
        moved = f"{self._what}: the primary key of a lake table's row cannot be changed; delete it, and insert another"
        return DeltaRows(
            to_spark_schema(columns_of(schema)), tuple(schema.primary_keys), sequence_columns(schema), moved
        )

    def _task(self, physical: JavaObject) -> LakeDeltaFunction:
        tasks = max(int(physical.numPartitions()), 1)
        return LakeDeltaFunction(self._table.context, self._name, tasks=tasks, has_distinct_keys=self._is_merge)

    def commit(self, messages: JavaObject, *summary: Any) -> None:
        self._is_settled = True
        runner = partial(SparkTasks, self.jvm.context)
        merged = with_precommit_compaction(self._table, messages_of(self._written(messages)), runner)
        may_follow = RowConflicts(self._table.context, self._base, merged, self._what)
        commit_and_compact(self._table, merged, None, runner, may_follow)

    def abort(self, messages: JavaObject) -> None:
        if not self._is_settled:
            self._table.new_commit().abort(messages_of(self._written(messages)))


@dataclass(frozen=True)
class LakeDeltaFunction(LakeWriteFunction):
    """The function with which tasks write changed rows: first the deletes of each batch, then its other rows."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> WrittenFiles:
        """Write the changed rows of a task; returns its files. Raises `ForebayError`, after deleting them."""
        task = TaskContext.get()
        lane = WriterShard(0 if task is None else task.partitionId() % self.tasks, self.tasks)
        rows, keys = 0, DistinctKeys(self.table.schema.primary_keys)
        with short_errors(f"writing to table {self.name}"), new_write(self.table, lane) as write:
            for ready, kinds in self._changes(batches):
                if self.has_distinct_keys and (kinds != DELETE).any():  # all rows of a batch are deletes, or none is
                    keys.add(ready)
                write.write_batch(ready, kinds)
                rows += ready.num_rows
            keys.check()
            messages = tuple(write.prepare_commit())
        return WrittenFiles(messages, rows)

    def _changes(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Any]]:
        schema = self.table.schema
        intake = Intake(schema)
        delete_columns = [*schema.primary_keys, *(n for n in sequence_columns(schema) if n not in schema.primary_keys)]
        for batch in batches:
            kinds = change_numbers(batch.column(CHANGE_TYPE_COLUMN))
            rows = batch.drop_columns([CHANGE_TYPE_COLUMN])
            is_delete = kinds == CHANGE_TYPES.index("delete")
            if is_delete.any():
                check_spark_deletes(self.table, f"deleting rows of table {self.name}")
                for ready in intake.batches(rows.filter(pa.array(is_delete)).select(delete_columns), deletes=True):
                    yield ready, np.full(ready.num_rows, DELETE, np.int8)
            others, done = kinds[~is_delete], 0
            for ready in intake.batches(rows.filter(pa.array(~is_delete))) if len(others) else ():
                yield ready, others[done : done + ready.num_rows]
                done += ready.num_rows
