"""Deletes on primary-key tables of all rows that match: DELETE FROM, TRUNCATE, and what a write replaces.

The protocol deletes by key. Where the filters say the whole primary key (`id = 5`, `id IN (...)`), these keys are
deleted without reading anything. Otherwise live scans find the keys, in tasks of Spark if there are many rows, and each
task stages its deletes. Each bucket is scanned at one instant. All deletes of a statement are one transaction where the
cluster has transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.client.connection import Connection, shared_connection
from forebay.client.reading.planning import plan_buckets
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
"""Keys that a DELETE may name; beyond that the table is scanned."""

DRIVER_ROWS_MAX = 100_000
"""Rows that the driver scans itself, which takes less time than a job of Spark."""

TASKS_MAX = 64
"""Tasks that scan a table; each is an attempt of the transaction."""

_GATHERED_ROWS = 1 << 20


def check_takes_deletes(info: TableInfo) -> None:
    """Raise `InvalidRequest` where the table does not allow deletes, `UnsupportedOperation` where rows would stay."""
    if (numbered := info.schema.auto_increment_column) is not None:
        raise UnsupportedOperation(
            f"rows of table {info.path} cannot be deleted: the server numbers them in column '{numbered}', which no "
            "delete clears, so they would stay, with nulls in their other columns (as in Fluss)"
        )
    behavior, engine = info.descriptor.delete_behavior, info.descriptor.merge_engine
    if engine is not None and behavior == "ignore":
        raise UnsupportedOperation(
            f"rows of table {info.path} cannot be deleted: its merge engine '{engine}' ignores deletes"
        )
    if behavior == "disable":
        raise InvalidRequest(
            f"rows of table {info.path} cannot be deleted: 'table.delete.behavior' is {behavior}",
            ErrorCode.DELETION_DISABLED_EXCEPTION,
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
    transaction.commit(attempts)


def stage_deletes(
    transaction: Transaction,
    info: TableInfo,
    predicates: Sequence[Predicate],
    partitions: Sequence[Mapping[str, Any]] | None = None,
    kept: pa.BinaryArray | None = None,
    *,
    run_tasks: RunTasks,
) -> list[str]:
    """Stage deletes of the rows that match all `predicates`, in these partitions or in all, but for the keys `kept`.

    Returns the attempts. Raises as `delete_where` does.
    """
    check_takes_deletes(info)
    connection = shared_connection(transaction.connection.settings)
    work = DeleteFunction(transaction, info, tuple(predicates), kept)
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
    """Stages deletes of the rows of some buckets that match all `predicates`, but for the keys `kept`."""

    transaction: Transaction
    info: TableInfo
    predicates: tuple[Predicate, ...]
    kept: pa.BinaryArray | None = None

    def __call__(self, buckets: Sequence[TableBucket], _attempt: int) -> str:
        """The attempt in which the deletes are."""
        key = list(self.info.schema.primary_key)
        with self._table.scan(key, all_of(self.predicates), buckets=buckets).reader() as rows:
            return self.stage(rows)

    @property
    def _table(self) -> Table:
        return shared_connection(self.transaction.connection.settings).table(self.info)

    def stage(self, keys: Iterable[pa.RecordBatch]) -> str:
        """Stage deletes of `keys` but for those that are kept, and return the attempt."""
        writer = self.transaction.staged_writer("deletes")
        for found in self._gathered(keys):
            if self.kept is not None:
                encoded = pa.chunked_array(
                    [whole_key_encoder(self.info.descriptor).encode(b) for b in found.to_batches()]
                )
                found = found.filter(pc.invert(pc.is_in(encoded, value_set=self.kept)))
            if found.num_rows:
                writer.delete(self._table, found)
        writer.finish()
        return writer.attempt

    def _gathered(self, keys: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Batches in larger pieces: a set of keys takes a while to search, however few are looked for."""
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
    found = key_values(predicates, info.schema.primary_key, DIRECT_KEYS_MAX)
    if found is None or found[1]:
        return None
    columns = list(zip(*found[0], strict=True)) if found[0] else [()] * len(key)
    arrays = [
        pa.array(values, arrow_type(column.data_type, "UTC")) for column, values in zip(key, columns, strict=True)
    ]
    return pa.table(arrays, names=[column.name for column in key])
