"""Merge engines through whole tables: written in several commits, read with projections and filters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.metadata.predicate import Predicate, col
from forebay.paimon.table import Table
from tests.paimon.lake import new_catalog, planned_files, rows_of

COLUMNS = pa.schema([("id", pa.int64()), ("a", pa.int32()), ("b", pa.string()), ("seq", pa.int32())])


def table_with(folder: Path, **options: str) -> Table:
    named = {key.replace("__", ".").replace("_", "-"): value for key, value in options.items()}
    return new_catalog(folder).create_table("db.t", COLUMNS, primary_keys=["id"], options={"bucket": "1", **named})


def write(table: Table, *rows: tuple[Any, ...]) -> None:
    table.write([dict(zip(COLUMNS.names, row, strict=False)) for row in rows])


def test_partial_updates_fill_in_columns(tmp_path: Path) -> None:
    table = table_with(tmp_path, merge_engine="partial-update")
    write(table, (1, 10, None, None), (2, 20, "x", None))
    write(table, (1, None, "y", None))
    write(table, (2, 21, None, None), (3, None, None, 1))
    assert rows_of(table) == [(1, 10, "y", None), (2, 21, "x", None), (3, None, None, 1)]
    assert rows_of(table, ["b"], col("a") == 10) == [("y",)]
    assert rows_of(table, ["id"], col("a") == 20) == []


@pytest.mark.parametrize("where", [(col("a") == 10) & (col("b") == "y"), col("a") == 10])
def test_values_prune_nothing_where_rows_are_put_together(tmp_path: Path, where: Predicate) -> None:
    table = table_with(tmp_path, merge_engine="partial-update")
    write(table, (1, 10, "old", None))
    write(table, (1, None, "y", None))
    assert len(planned_files(table, where)) == 2
    assert rows_of(table, ["id"], where) == [(1,)]


def test_aggregations_add_up_over_commits(tmp_path: Path) -> None:
    table = table_with(
        tmp_path, merge_engine="aggregation", fields__a__aggregate_function="sum", fields__b__aggregate_function="max"
    )
    for a, b in ((1, "x"), (2, "z"), (3, "y")):
        write(table, (1, a, b, a))
    assert rows_of(table) == [(1, 6, "z", 3)]
    assert rows_of(table, ["a"], col("a") == 6) == [(6,)]


def test_a_sequence_field_decides_even_if_nobody_reads_it(tmp_path: Path) -> None:
    table = table_with(tmp_path, sequence__field="seq")
    write(table, (1, 1, "late", 9))
    write(table, (1, 2, "early", 3))
    assert rows_of(table, ["b"]) == [("late",)]
    assert rows_of(table, ["a"], col("b") == "early") == []
