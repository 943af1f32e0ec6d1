"""Schema changes by either side; both read old files with new schemas."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import ForebayError
from forebay.metadata import types
from forebay.metadata.types import DataType, RowField
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.format.types_json import format_type
from forebay.paimon.store.schema_changes import AddColumn, DropColumn, RenameColumn, SchemaChange, UpdateColumnType
from tests.paimon.foreign.both_sides import (
    KEYED,
    agree,
    data_of,
    write_by,
)
from tests.paimon.foreign.conftest import JavaTableOf
from tests.paimon.foreign.java_paimon import JavaError
from tests.paimon.lake import altered, new_catalog

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

_WIDENED: list[tuple[DataType, DataType, list[Any]]] = [
    (types.tinyint(), types.bigint(), [-128, 127, None]),
    (types.int_(), types.double(), [-(2**31), 7, None]),
    (types.int_(), types.decimal(20, 3), [-5, 2**31 - 1]),
    (types.int_(), types.string(), [-5, 0]),
    (types.bigint(), types.float_(), [2**40, -1]),
    (types.float_(), types.double(), [0.1, -2.5, float("inf")]),
    (types.float_(), types.string(), [0.1, 1e10, 1.5e-7, float("nan")]),
    (types.double(), types.string(), [0.1, 1e21, 1e-5, 100.0, float("-inf")]),
    (types.double(), types.decimal(12, 2), [1.005, -2.675, 3.0]),
    (types.decimal(10, 2), types.decimal(20, 4), [Decimal("1.25"), Decimal("-99999999.99")]),
    (types.decimal(10, 2), types.string(), [Decimal("1.20"), Decimal("-0.05")]),
    (types.decimal(10, 2), types.double(), [Decimal("1.20"), Decimal("-0.05")]),
    (types.string(), types.int_(), ["12", "-7", "+3", "12.9", "-1.5", ".5", None]),
    (types.string(), types.bigint(), ["9223372036854775807", "-9223372036854775808.99", None]),
    (types.string(), types.decimal(10, 2), ["1.5", "-2.345", "1e3", None]),
    (types.string(), types.double(), ["1.5", "-1e3", " 2 "]),
    (types.string(), types.time(3), ["01:02:03", "23:59:59.5"]),
    (types.string(), types.timestamp_ltz(3), ["2024-02-29 12:34:56"]),
    (types.bigint(), types.int_(), [2**40 + 5, -1]),
    (types.double(), types.int_(), [1e20, -2.9, float("nan")]),
    (types.bigint(), types.boolean(), [0, 5]),
    (types.bigint(), types.timestamp(3), [0, 86400]),
    (types.decimal(20, 4), types.decimal(6, 1), [Decimal("1.25"), Decimal("12345.67"), Decimal("-0.05")]),
    (types.decimal(20, 4), types.int_(), [Decimal("1.99"), Decimal("-1.99")]),
    (types.bytes_(), types.string(), [b"abc", "é".encode()]),
    (types.array(types.int_()), types.string(), [[1, None, 3], []]),
    (types.map_(types.string().not_null(), types.int_()), types.string(), [[("a", 1)], []]),
    (types.timestamp_ltz(6), types.string(), [datetime.datetime(2024, 1, 2, 3, 4, 5, 60, datetime.UTC)]),
    (types.timestamp(6), types.timestamp_ltz(3), [datetime.datetime(2024, 1, 2, 3, 4, 5, 60)]),
    (types.timestamp(6), types.timestamp(9), [datetime.datetime(2024, 1, 2, 3, 4, 5, 60)]),
    (types.timestamp(9), types.timestamp(3), [datetime.datetime(2024, 1, 2, 3, 4, 5, 60)]),
    (types.string(), types.char(3), ["abcdef", "x"]),
    (types.bytes_(), types.binary(3), [b"abcdef", b"x"]),
    (types.string(), types.date(), ["2024-02-29", None]),
    (types.string(), types.timestamp(3), ["2024-02-29 12:34:56.789", "2024-02-29"]),
    (types.string(), types.boolean(), ["true", "n", "1"]),
    (types.string(), types.bytes_(), ["é", ""]),
    (types.boolean(), types.string(), [True, False]),
    (types.boolean(), types.int_(), [True, False]),
    (types.date(), types.timestamp(6), [datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]),
    (types.date(), types.string(), [datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]),
    (types.time(3), types.string(), [datetime.time(1, 2, 3), datetime.time(1, 2, 3, 40_000)]),
    (types.timestamp(3), types.timestamp(6), [datetime.datetime(1969, 1, 1, 0, 0, 0, 1000)]),
    (types.timestamp(6), types.string(), [datetime.datetime(2024, 1, 2, 3, 4, 5, 60), datetime.datetime(2024, 1, 2)]),
    # Java 1.4 rounds timestamps before 1970 up to the next day; later releases take the day, and so do we.
    (types.timestamp(3), types.date(), [datetime.datetime(1970, 1, 1, 23, 59), datetime.datetime(2024, 1, 2, 3)]),
    (types.timestamp(3), types.string(), [datetime.datetime(1969, 12, 31, 23, 59), datetime.datetime(2024, 1, 2, 3)]),
]


@pytest.mark.parametrize("pair", _WIDENED, ids=lambda p: f"{p[0]} to {p[1]}")
@pytest.mark.parametrize("by", ["ours", "theirs"])
def test_old_files_are_read_under_a_new_type_as_java_does(
    tmp_path: Path, java_table: JavaTableOf, pair: tuple[DataType, DataType, list[Any]], by: str
) -> None:
    old, new, values = pair
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", {"id": types.int_(), "v": old})
    java = java_table(catalog, "db.t")
    write_by(by, table, java, data_of(table, *enumerate(values)))
    options = {"disable-explicit-type-casting": "false"}
    try:
        java.ask("alter", changes=[["type", "v", format_type(new)]], options=options)
    except JavaError as refused:
        with pytest.raises(ForebayError):
            altered(table, [UpdateColumnType(("v",), new)])
        pytest.skip(f"Java refuses this change, and so do we: {refused.message}")
    assert len(agree(table, java)) == len(values)


_NESTED = {
    "id": types.int_(),
    "a": types.int_(),
    "b": types.string(),
    "n": types.row(RowField("x", types.int_(), None, 0), RowField("y", types.string(), None, 0)),
    "list": types.array(types.row(RowField("p", types.int_(), None, 0), RowField("q", types.string(), None, 0))),
    "map": types.map_(types.string().not_null(), types.row(RowField("s", types.int_(), None, 0))),
}


def _nested_row(i: int) -> tuple[Any, ...]:
    return (i, i, f"b{i}", {"x": i, "y": f"y{i}"}, [{"p": i, "q": "q"}, None], [("k", {"s": i}), ("none", None)])


@pytest.mark.parametrize("changed_by", ["ours", "theirs"])
@pytest.mark.parametrize("written_by", ["ours", "theirs"])
@pytest.mark.parametrize("definition", [{}, KEYED], ids=["append", "keyed"])
def test_columns_come_go_and_are_renamed_at_all_depths(
    tmp_path: Path, java_table: JavaTableOf, changed_by: str, written_by: str, definition: dict[str, Any]
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", _NESTED, **definition)
    java = java_table(catalog, "db.t")
    write_by(written_by, table, java, data_of(table, *(_nested_row(i) for i in range(5))))
    steps: list[list[tuple[list[Any], SchemaChange]]] = [
        [
            (["add", "c", "DOUBLE"], AddColumn(("c",), types.double())),
            (["rename", "a", "aa"], RenameColumn(("a",), "aa")),
            (["drop", "b"], DropColumn(("b",))),
        ],
        [
            (["add", "n/z", "BIGINT"], AddColumn(("n", "z"), types.bigint())),
            (["rename", "n/x", "xx"], RenameColumn(("n", "x"), "xx")),
            (["drop", "n/y"], DropColumn(("n", "y"))),
            (["add", "list/element/r", "INT"], AddColumn(("list", "element", "r"), types.int_())),
            (["drop", "map/value/s"], DropColumn(("map", "value", "s"))),
        ][:4],
        [
            (["add", "a", "STRING"], AddColumn(("a",), types.string())),  # an old name for a new column
            (["type", "aa", "BIGINT"], UpdateColumnType(("aa",), types.bigint())),
        ],
    ]
    for number, step in enumerate(steps, 1):
        if changed_by == "ours":
            table = altered(table, [change for _, change in step])
        else:
            java.ask("alter", changes=[change for change, _ in step])
            table = table.refresh()
        agree(table, java)
        first = pa.Table.from_pylist([{"id": 10 * number}], schema=arrow_schema(table.schema.fields))
        write_by(written_by, table, java, first)
        assert len(agree(table, java)) == 5 + number
    if definition:
        java.ask("compact", full=True)
        assert len(agree(table, java)) == 8
