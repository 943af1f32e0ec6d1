"""Merge engines through whole tables: written in several commits, read with projections and filters."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay.base.errors import InvalidRequest
from forebay.metadata.predicate import Predicate, col
from forebay.paimon.table import Table
from tests.paimon.lake import new_catalog, planned_files, put, rows_of

COLUMNS = pa.schema([("id", pa.int64()), ("a", pa.int32()), ("b", pa.string()), ("seq", pa.int32())])


def table_with(folder: Path, **options: str) -> Table:
    named = {key.replace("__", ".").replace("_", "-"): value for key, value in options.items()}
    return new_catalog(folder).create_table("db.t", COLUMNS, primary_key=["id"], options={"bucket": "1", **named})


def write(table: Table, *rows: tuple[Any, ...]) -> None:
    put(table, [dict(zip(COLUMNS.names, row, strict=False)) for row in rows])


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


def test_a_sequence_field_decides_even_if_it_is_not_read(tmp_path: Path) -> None:
    table = table_with(tmp_path, sequence__field="seq")
    write(table, (1, 1, "late", 9))
    write(table, (1, 2, "early", 3))
    assert rows_of(table, ["b"]) == [("late",)]
    assert rows_of(table, ["a"], col("b") == "early") == []


NANS = [struct.unpack(">d", bytes.fromhex(bits))[0] for bits in ("7ff8000000000000", "fff8000000000001")]


def float_table(folder: Path, key: pa.DataType, **options: str) -> Table:
    schema = pa.schema([pa.field("k", key, nullable=False), ("v", pa.string())])
    given = {"bucket": "1", "write-only": "true", **options}
    return new_catalog(folder).create_table("db.f", schema, primary_key=["k"], options=given)


def write_floats(table: Table, *rows: tuple[float, str]) -> None:
    keys = np.array([row[0] for row in rows], table.scan(["k"]).schema.field("k").type.to_pandas_dtype())
    put(table, pa.table({"k": pa.array(keys), "v": [row[1] for row in rows]}))


@pytest.mark.parametrize("key", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize(("first", "second"), [(0.0, -0.0), (-0.0, 0.0), (NANS[0], NANS[1])], ids=repr)
def test_zeros_of_both_signs_are_one_key_and_so_are_all_nans(
    tmp_path: Path, key: pa.DataType, first: float, second: float
) -> None:
    table = float_table(tmp_path, key)
    write_floats(table, (first, "old"), (1.0, "one"))
    write_floats(table, (second, "new"))
    assert {row[1] for row in rows_of(table, ["k", "v"])} == {"one", "new"}
    with table.lookup_table() as lookup:
        for asked in (first, second):
            keys = pa.table({"k": pa.array(np.array([asked], key.to_pandas_dtype()))})
            assert lookup.lookup(keys, missing="drop")["v"].to_pylist() == ["new"]
    table.compact(full=True)
    assert {row[1] for row in rows_of(table, ["k", "v"])} == {"one", "new"}
    table.delete(pa.table({"k": pa.array(np.array([first], key.to_pandas_dtype()))}))
    assert [row[1] for row in rows_of(table, ["k", "v"])] == ["one"]


@pytest.mark.parametrize("rows", [[(0.0, "first"), (-0.0, "second")], [(-0.0, "first"), (0.0, "second")]], ids=str)
def test_of_both_zeros_in_one_write_the_positive_one_stays_as_in_java(
    tmp_path: Path, rows: list[tuple[float, str]]
) -> None:
    table = float_table(tmp_path, pa.float64())
    write_floats(table, *rows)
    assert rows_of(table, ["k", "v"]) == [(0.0, {str(k): v for k, v in rows}["0.0"])]


def test_a_table_whose_sum_overflows_stays_readable(tmp_path: Path) -> None:
    table = table_with(tmp_path, merge_engine="aggregation", fields__a__aggregate_function="sum", write_only="true")
    write(table, (1, 5, "x", None), (2, 2**31 - 1, "x", None))
    write(table, (1, 6, "y", None), (2, 1, "y", None))
    for settled in (False, True):
        with pytest.raises(
            InvalidRequest, match=rf"table {table.context.paths.root}, key id = 2: column 'a'"
        ) as raised:
            table.compact(full=True) if settled else table.scan().to_arrow()
        assert "forebay.integer-overflow" in raised.value.message
    wrapping = table.with_options({"forebay.integer-overflow": "wrap"})
    assert rows_of(wrapping, ["id", "a"]) == [(1, 11), (2, -(2**31))]
    wrapping.compact(full=True)
    assert rows_of(table, ["id", "a"]) == [(1, 11), (2, -(2**31))]
