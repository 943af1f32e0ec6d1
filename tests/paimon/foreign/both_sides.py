"""Helpers of tests in which both sides write one table in turn."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from forebay.metadata import types
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.table import Table
from tests.paimon.foreign.java_paimon import JavaTable, Plain, sorted_rows
from tests.paimon.lake import put

COLUMNS = {"id": types.int_(), "v": types.string()}
KEYED: dict[str, Any] = {"primary_key": ["id"], "options": {"bucket": "2"}}
WRITE_ONLY = {"write-only": "true"}


def data_of(table: Table, *rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(table.schema.names, row, strict=True)) for row in rows], schema=arrow_schema(table.schema.fields)
    )


def numbered(table: Table, numbers: range, text: str = "v") -> pa.Table:
    return data_of(table, *((i, f"{text}{i}") for i in numbers))


def agree(table: Table, java: JavaTable) -> list[list[Plain]]:
    """The rows that both sides read."""
    table = table.refresh()
    ours = sorted_rows(table.schema, table.scan().to_arrow())
    assert ours == java.rows()
    return ours


def write_in_turn(table: Table, java: JavaTable, commits: int) -> None:
    for i in range(commits):
        data = numbered(table, range(i, i + 10), f"c{i} ")
        if i % 2:
            java.write(table.schema, data, options=WRITE_ONLY)
        else:
            put(table.with_options(WRITE_ONLY), data)


def write_by(who: str, table: Table, java: JavaTable, data: pa.Table, kinds: list[str] | None = None) -> None:
    if who == "ours":
        put(table, data, kinds)
    else:
        java.write(table.schema, data, kinds)
