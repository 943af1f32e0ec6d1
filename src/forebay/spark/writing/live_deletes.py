"""Deletes of matching rows in primary-key tables: DELETE FROM, TRUNCATE, and the rows that a write replaces.

The protocol deletes by key. Where the filters fix the whole primary key (`id = 5`, `id IN (...)`), these keys are
deleted without a scan. Otherwise live scans find the keys, in tasks of Spark if there are many rows, and each task
stages its deletes. Each bucket is scanned at one point in time. Where the cluster has transactions, all deletes of a
statement are one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.client.cluster.buckets import plan_buckets
from forebay.client.connection import Connection, shared_connection
from forebay.client.table import Table
from forebay.client.transaction import Transaction
from forebay.codec.arrow.arrow_types import arrow_type
from forebay.codec.casting.literals import is_floating
from forebay.codec.rows.keys import whole_key_encoder
from forebay.metadata.predicate import Predicate, all_of
from forebay.metadata.table import TableBucket, TableInfo
from forebay.spark.filters import key_values
from forebay.spark.jvm.spark_jobs import RunTasks
from forebay.spark.reading.live_plan import matching_buckets, row_counts

DIRECT_KEYS_MAX = 100_000
"""Maximum number of keys that filters may name; for more keys the table is scanned."""

DRIVER_ROWS_MAX = 100_000
"""Maximum number of rows that the driver scans. Starting a Spark job for them would take longer."""

TASKS_MAX = 64
"""Maximum number of tasks that scan a table. Each task is an attempt of the transaction."""

_GATHERED_ROWS = 1 << 20
"""Rows whose keys are compared with the retained keys at a time."""


def check_takes_deletes(info: TableInfo) -> None:
    """Raise `InvalidRequest` where the table does not allow deletes, `UnsupportedOperation` where rows would stay."""
    if (numbered := info.schema.auto_increment_column) is not None:
        raise UnsupportedOperation(
            f"rows of table {info.path} cannot be deleted: the server numbers them in column '{numbered}', which no "
            "delete clears, so they would stay, with nulls in their other columns (as in Fluss)"
        )
    check_heeds_deletes(info)
    behavior = info.descriptor.delete_behavior
    if behavior == "disable":
        raise InvalidRequest(
            f"rows of table {info.path} cannot be deleted: 'table.delete.behavior' is {behavior}",
            ErrorCode.DELETION_DISABLED_EXCEPTION,
        )


def check_heeds_deletes(info: TableInfo) -> None:
    """Raise `UnsupportedOperation` where a delete would have no effect."""
    engine = info.descriptor.merge_engine
    if engine is not None and info.descriptor.delete_behavior == "ignore":
        raise UnsupportedOperation(
            f"rows of table {info.path} cannot be deleted: its merge engine '{engine}' ignores deletes. "
            "Leave them out, or write rows that say that they are deleted (docs/live-merge-engines.md, "
            "from_debezium(deleted_column=...))"
        )


def delete_where(
    connection: Connection,
    info: TableInfo,
    predicates: Sequence[Predicate],
    partitions: Sequence[Mapping[str, Any]] | None = None,
    *,
    run_tasks: RunTasks,
) -> None:
    """Delete the rows that match all `predicates`, in these partitions or in all: all of them or none.

    Raises `InvalidRequest` where the table does not allow deletes, and `UnsupportedOperation` where its merge engine
    ignores them.
    """
    check_takes_deletes(info)
    keys = named_keys(info, predicates) if partitions is None else None
    if keys is not None and keys.num_rows < 2:
        if keys.num_rows:
            connection.table(info).delete(keys)
        return
    transaction = connection.transaction().begin()
    try:
        attempts = stage_deletes(transaction, info, predicates, partitions, run_tasks=run_tasks)
    except BaseException:
        transaction.abort()
        raise
    transaction.commit(attempts, "DELETE")


def stage_deletes(
    transaction: Transaction,
    info: TableInfo,
    predicates: Sequence[Predicate],
    partitions: Sequence[Mapping[str, Any]] | None = None,
    retained_keys: pa.BinaryArray | None = None,
    *,
    run_tasks: RunTasks,
) -> list[str]:
    """The attempts in which deletes are staged: of rows that match all `predicates`, without `retained_keys`.

    Rows are those of `partitions`, by default of all. Raises as `delete_where` does.
    """
    check_takes_deletes(info)
    connection = shared_connection(transaction.connection.settings)
    work = DeleteFunction(transaction, info, tuple(predicates), retained_keys)
    keys = named_keys(info, predicates) if partitions is None else None
    if keys is not None:
        return [work.stage(keys.to_batches())]
    if partitions is None:
        own = set(info.descriptor.partition_keys)
        buckets = matching_buckets(connection, info, [p for p in predicates if p.columns() <= own])
    else:
        buckets = plan_buckets(connection.cluster, info, partitions)
    counts = row_counts(connection, info, buckets)
    if sum(count or 0 for count in counts.values()) < DRIVER_ROWS_MAX:
        return [work(buckets, 0)] if buckets else []
    largest_first = sorted(buckets, key=lambda bucket: counts[bucket] or 0, reverse=True)
    tasks = [largest_first[i::TASKS_MAX] for i in range(min(TASKS_MAX, len(buckets)))]
    results = run_tasks(work, tasks, f"deleting rows of {info.path}")
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


@dataclass(frozen=True)
class DeleteFunction:
    """Stages deletes of the rows of buckets that match all `predicates`, except those with `retained_keys`."""

    transaction: Transaction
    info: TableInfo
    predicates: tuple[Predicate, ...]
    retained_keys: pa.BinaryArray | None = None

    def __call__(self, buckets: Sequence[TableBucket], _attempt: int) -> str:
        """Stage the deletes of rows in `buckets`; returns the attempt."""
        key = list(self.info.schema.primary_key)
        with self._table.scan(key, all_of(self.predicates), buckets=buckets).reader() as rows:
            return self.stage(rows)

    @property
    def _table(self) -> Table:
        return shared_connection(self.transaction.connection.settings).table(self.info)

    def stage(self, keys: Iterable[pa.RecordBatch]) -> str:
        """Stage deletes of these keys; returns the attempt."""
        writer = self.transaction.staged_writer("deletes")
        for chunk in self._gathered(keys):
            if self.retained_keys is not None:
                encoded = pa.chunked_array(
                    [whole_key_encoder(self.info.descriptor).encode(b) for b in chunk.to_batches()]
                )
                chunk = chunk.filter(pc.invert(pc.is_in(encoded, value_set=self.retained_keys)))
            if chunk.num_rows:
                writer.delete(self._table, chunk)
        writer.finish()
        return writer.attempt

    def _gathered(self, keys: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """The batches joined into larger tables: each search in `retained_keys` builds a hash table of all of them."""
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in keys:
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= _GATHERED_ROWS:
                yield pa.Table.from_batches(waiting)
                waiting, rows = [], 0
        if rows:
            yield pa.Table.from_batches(waiting)


def named_keys(info: TableInfo, predicates: Sequence[Predicate]) -> pa.Table | None:
    """The keys named by the predicates; None if they contain any other condition."""
    key = [info.schema.column(name) for name in info.schema.primary_key]
    if any(is_floating(column.data_type) for column in key):
        return None  # 0.0 equals -0.0, but they are two keys
    values = key_values(predicates, info.schema.primary_key, DIRECT_KEYS_MAX)
    if values is None or values[1]:
        return None
    columns = list(zip(*values[0], strict=True)) if values[0] else [()] * len(key)
    arrays = [pa.array(items, arrow_type(column.data_type, "UTC")) for column, items in zip(key, columns, strict=True)]
    return pa.table(arrays, names=[column.name for column in key])
