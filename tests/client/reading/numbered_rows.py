"""A table of numbered rows, read from snapshots and replayed from changes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from forebay.client.table import Table
from tests.client.conftest import MakeTable


def numbered(make_table: MakeTable, rows: int = 1000, buckets: int = 4, value: int = 0) -> Table:
    table = make_table({"id": pa.int64(), "v": pa.int64()}, primary_key=["id"], buckets=buckets)
    if rows:
        upsert(table, range(rows), value)
    return table


def upsert(table: Table, ids: Any, value: int) -> None:
    table.upsert(pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([value] * len(ids), pa.int64())}))


def rows_of(batches: Any) -> dict[int, int]:
    found: dict[int, int] = {}
    for batch in batches:
        rows = dict(zip(batch["id"].to_pylist(), batch["v"].to_pylist(), strict=True))
        assert not rows.keys() & found.keys(), "a row came twice"
        found.update(rows)
    return found


def replayed(table: Table, rows: dict[int, int], offsets: Any) -> dict[int, int]:
    """`rows` after the changes from `offsets` up to now."""
    rows = dict(rows)
    for batch in table.changes(dict(offsets), "latest", include=["change_type"]):
        for change in batch.to_pylist():
            if change["_change_type"] in ("insert", "update_after"):
                rows[change["id"]] = change["v"]
            elif change["_change_type"] == "delete":
                del rows[change["id"]]
    return rows
