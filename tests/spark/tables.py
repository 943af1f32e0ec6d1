"""Tables and rows for the tests of this directory."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from forebay.client.connection import Connection
from forebay.client.table import Table

ROWS_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("amount", pa.float64())])


def rows(start: int, stop: int) -> pa.Table:
    """Rows whose columns all follow from the id."""
    ids = range(start, stop)
    return pa.table(
        [pa.array(ids, pa.int64()), pa.array([f"n{i}" for i in ids]), pa.array([i / 2 for i in ids])],
        schema=ROWS_SCHEMA,
    )


def make_table(
    connection: Connection, path: str, primary_key: list[str] | None = None, buckets: int = 3, **more: Any
) -> Table:
    """An empty table of `ROWS_SCHEMA` rows."""
    connection.create_table(path, ROWS_SCHEMA, primary_key=primary_key or (), buckets=buckets, **more)
    return connection.table(path)


def ids_of(batches: Any) -> list[int]:
    """The sorted ids in batches."""
    return sorted(i for batch in batches for i in batch.column(batch.schema.get_field_index("id")).to_pylist())
