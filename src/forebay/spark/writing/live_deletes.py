"""DELETE FROM and TRUNCATE on primary-key tables, carried out by the driver.

The protocol deletes by key. Where the filters say the whole primary key (`id = 5`, `id IN (...)`), these keys are
deleted without reading anything. Otherwise a live scan finds the keys, and they are deleted batch by batch while it
goes on; each bucket is scanned at one instant, and a row that another writer changes between scan and delete goes too.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.client.connection import Connection
from forebay.codec.arrow_types import arrow_type
from forebay.codec.literals import is_floating
from forebay.metadata.predicate import Predicate, all_of
from forebay.metadata.table import TableInfo
from forebay.spark.filters import key_values

DIRECT_KEYS_MAX = 100_000
"""Keys that a DELETE may name; beyond that the table is scanned."""


def delete_where(connection: Connection, info: TableInfo, predicates: Sequence[Predicate]) -> int:
    """Delete the rows that match all `predicates`; returns how many keys were deleted, with or without a row.

    Raises `InvalidRequest` where the table does not allow deletes.
    """
    behaviour = info.descriptor.property_or("table.delete.behavior", "allow").lower()
    if behaviour == "disable":
        raise InvalidRequest(
            f"rows of table {info.path} cannot be deleted: 'table.delete.behavior' is {behaviour}",
            ErrorCode.DELETION_DISABLED_EXCEPTION,
        )
    table = connection.table(info)
    keys = named_keys(info, predicates)
    if keys is not None:
        return table.delete(keys).rows if keys.num_rows else 0
    names = list(info.schema.primary_key)
    deleted = 0
    with table.writer() as writer, table.scan(names, all_of(predicates)).reader() as rows:
        for batch in rows:
            writer.delete(batch)
            deleted += batch.num_rows
    return deleted


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
