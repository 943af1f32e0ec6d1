"""Deletes on primary-key tables, carried out by the driver: DELETE FROM, TRUNCATE, and what a write replaces.

The protocol deletes by key. Where the filters say the whole primary key (`id = 5`, `id IN (...)`), these keys are
deleted without reading anything. Otherwise a live scan finds the keys; each bucket is scanned at one instant, and a row
that another writer changes between scan and commit goes, too. All deletes of a statement are one transaction where the
cluster has transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.codec.arrow_types import arrow_type
from forebay.codec.literals import is_floating
from forebay.metadata.predicate import Predicate, all_of
from forebay.metadata.table import TableInfo
from forebay.spark.filters import key_values

DIRECT_KEYS_MAX = 100_000
"""Keys that a DELETE may name; beyond that the table is scanned."""


def check_takes_deletes(info: TableInfo) -> None:
    """Raise `InvalidRequest` where the table does not allow deletes, `UnsupportedOperation` where it ignores them."""
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
) -> None:
    """Delete the rows that match all `predicates`, in these partitions or in all: all of them or none.

    Raises `InvalidRequest` where the table does not allow deletes, and `UnsupportedOperation` where its merge engine
    ignores them.
    """
    table = connection.table(info)
    keys = named_keys(info, predicates) if partitions is None else None
    if keys is not None and keys.num_rows < 2:
        check_takes_deletes(info)
        if keys.num_rows:
            table.delete(keys)
        return
    with connection.transaction() as transaction:
        delete_rows(table, predicates, lambda found: transaction.delete(table, found), partitions)


def delete_rows(
    table: Table,
    predicates: Sequence[Predicate],
    delete: Callable[[pa.Table | pa.RecordBatch], object],
    partitions: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Call `delete` with the keys of the rows that match all `predicates`, in these partitions or in all.

    Raises as `delete_where` does.
    """
    info = table.info
    check_takes_deletes(info)
    keys = named_keys(info, predicates) if partitions is None else None
    if keys is not None:
        if keys.num_rows:
            delete(keys)
        return
    with table.scan(list(info.schema.primary_key), all_of(predicates), partitions=partitions).reader() as rows:
        for batch in rows:
            delete(batch)


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
