"""The Arrow types that pyarrow, pandas, polars and DuckDB make by default: what each becomes in a table, or why not.

docs/client/writing.md has the rule; these tables are its evidence. `None` as the type of a table created from the data
means that the type is refused there, by name.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from forebay.api.joins import as_table
from forebay.api.schemas import columns_of
from forebay.base.errors import InvalidRequest
from forebay.codec.casting.batches import iter_record_batches
from forebay.metadata.type_text import parse_type
from tests.codec.log_batch_strategies import schema_of

NIGHT = dt.datetime(2020, 1, 1)
TEXT_VIEWS = pa.array(["a", None, "b"], pa.string_view())
BYTE_VIEWS = pa.array([b"a", None, b"b"], pa.binary_view())


def written(data: Any, type_text: str) -> list[Any]:
    schema = schema_of(parse_type(type_text))
    values = []
    for batch in iter_record_batches(data, schema):
        batch.validate(full=True)
        values += batch.column(0).to_pylist()
    return values


def dictionary(values: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([2, 0, None, 1], pa.int8()), values)


def in_lists(values: pa.Array) -> pa.Array:
    """Three lists: the first two values, the third one, null."""
    return pa.ListArray.from_arrays(pa.array([0, 2, None, 3], pa.int32()), values)


def runs(values: pa.Array) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 4], pa.int32()), values)


# ---- pyarrow --------------------------------------------------------------------------------------------------------

ARROW: dict[str, tuple[pa.Array, str, list[Any], str | None]] = {
    "uint8": (pa.array([1], pa.uint8()), "TINYINT", [1], "SMALLINT"),
    "uint64": (pa.array([2**63 - 1], pa.uint64()), "BIGINT", [2**63 - 1], None),
    "float16": (pa.array([1.5], pa.float16()), "DOUBLE", [1.5], "FLOAT"),
    "decimal32": (pa.array([Decimal("1.5")], pa.decimal32(3, 1)), "DECIMAL(5, 2)", [Decimal("1.50")], "DECIMAL(3, 1)"),
    "decimal64": (pa.array([Decimal("2.0")], pa.decimal64(9, 1)), "INT", [2], "DECIMAL(9, 1)"),
    "decimal128": (pa.array([Decimal(15)], pa.decimal128(38, 0)), "BIGINT", [15], "DECIMAL(38, 0)"),
    "decimal256": (pa.array([Decimal("1.1")], pa.decimal256(50, 1)), "DOUBLE", [1.1], None),
    "string_view": (TEXT_VIEWS, "STRING", ["a", None, "b"], "STRING"),
    "binary_view": (BYTE_VIEWS, "BYTES", [b"a", None, b"b"], "BYTES"),
    "dictionary": (dictionary(pa.array(["a", None, "b"])), "STRING", ["b", "a", None, None], "STRING"),
    "dictionary of views": (dictionary(TEXT_VIEWS), "STRING", ["b", "a", None, None], "STRING"),
    "dictionary of byte views": (dictionary(BYTE_VIEWS), "BYTES", [b"b", b"a", None, None], "BYTES"),
    "dictionary, sliced": (dictionary(TEXT_VIEWS).slice(1), "STRING", ["a", None, None], "STRING"),
    "dictionary of lists of views": (
        dictionary(pa.array([["a"], None, ["b", None]], pa.list_(pa.string_view()))), "ARRAY<STRING>",
        [["b", None], ["a"], None, None], "ARRAY<STRING>",
    ),
    "dictionary of rows with views": (
        dictionary(pa.array([{"x": "a"}, None, {"x": "b"}], pa.struct({"x": pa.string_view()}))), "ROW<x STRING>",
        [{"x": "b"}, {"x": "a"}, None, None], "ROW<`x` STRING>",
    ),
    "dictionary of maps with views": (
        dictionary(pa.array([[("a", 1)], None, []], pa.map_(pa.string_view(), pa.int32()))), "MAP<STRING, INT>",
        [[], [("a", 1)], None, None], "MAP<STRING NOT NULL, INT>",
    ),
    "list of dictionaries of views": (
        in_lists(dictionary(TEXT_VIEWS)), "ARRAY<STRING>", [["b", "a"], [None], None], "ARRAY<STRING>",
    ),
    "row with a dictionary of views": (
        pa.StructArray.from_arrays([dictionary(TEXT_VIEWS)], ["x"]).slice(1, 1), "ROW<x STRING>", [{"x": "a"}],
        "ROW<`x` STRING>",
    ),
    "map with dictionaries of views": (
        pa.MapArray.from_arrays([0, 1, 2], dictionary(TEXT_VIEWS).slice(0, 2), dictionary(TEXT_VIEWS).slice(0, 2)),
        "MAP<STRING, STRING>", [[("b", "b")], [("a", "a")]], "MAP<STRING NOT NULL, STRING>",
    ),
    "run ends": (runs(pa.array(["a", None, "b"])), "STRING", ["a", "a", None, "b"], "STRING"),
    "run ends of views": (runs(TEXT_VIEWS), "STRING", ["a", "a", None, "b"], "STRING"),
    "run ends, sliced": (runs(TEXT_VIEWS).slice(1, 2), "STRING", ["a", None], "STRING"),
    "run ends of decimals": (
        runs(pa.array([Decimal("1.5"), None, Decimal("2.5")])), "DECIMAL(5, 2)",
        [Decimal("1.50"), Decimal("1.50"), None, Decimal("2.50")], "DECIMAL(2, 1)",
    ),
    "list view": (
        pa.array([[1], None, [2, 3]], pa.list_view(pa.int64())).take(pa.array([2, 0, 1])), "ARRAY<INT>",
        [[2, 3], [1], None], "ARRAY<BIGINT>",
    ),
    "large list view of views": (
        pa.array([["a"], None], pa.large_list_view(pa.string_view())), "ARRAY<STRING>", [["a"], None], "ARRAY<STRING>",
    ),
    "list view of pairs": (
        pa.array([[{"k": "a", "v": 1}]], pa.list_view(pa.struct({"k": pa.string_view(), "v": pa.int64()}))),
        "MAP<STRING, BIGINT>", [[("a", 1)]], "ARRAY<ROW<`k` STRING, `v` BIGINT>>",
    ),
    "fixed-size list": (
        pa.array([None, [1, 2]], pa.list_(pa.int64(), 2)), "ARRAY<INT>", [None, [1, 2]], "ARRAY<BIGINT>",
    ),
    "date64": (pa.array([dt.date(2020, 1, 1)], pa.date64()), "DATE", [dt.date(2020, 1, 1)], "DATE"),
    "uuid": (
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)], pa.binary(16))), "BINARY(16)", [bytes(16)],
        "BINARY(16)",
    ),
    "json": (
        pa.ExtensionArray.from_storage(pa.json_(pa.string_view()), pa.array(["{}"], pa.string_view())), "STRING",
        ["{}"], "STRING",
    ),
    "bool8": (
        pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 5, None], pa.int8())), "BOOLEAN", [False, True, None],
        "BOOLEAN",
    ),
    "tensor": (
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int32(), [2]), pa.array([[1, 2]], pa.list_(pa.int32(), 2))
        ), "ARRAY<INT>", [[1, 2]], "ARRAY<INT>",
    ),
    "null": (pa.nulls(2), "BIGINT", [None, None], None),
    "list of nulls": (pa.array([[None], []]), "ARRAY<BIGINT>", [[None], []], None),
}  # fmt: skip


@pytest.mark.parametrize("name", ARROW)
def test_arrays_of_every_layout_are_written(name: str) -> None:
    array, type_text, expected, created_as = ARROW[name]
    data = pa.table({"c0": array})
    assert written(data, type_text) == expected
    assert written(pa.concat_tables([data, data]).slice(len(array)), type_text) == expected
    if created_as is None:
        with pytest.raises(InvalidRequest, match=r"cast the column first|DECIMAL needs"):
            columns_of(data)
    else:
        assert str(columns_of(data)[0].data_type) == created_as


@pytest.mark.parametrize(
    ("array", "type_text", "says"),
    [
        (pa.array([1], pa.duration("s")), "BIGINT", r"has duration\[s\]"),
        (pa.array([pa.MonthDayNano([1, 2, 3])]), "BIGINT", "has month_day_nano_interval"),
        (
            pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]),
            "BIGINT",
            "has dense_union",
        ),
        (pa.array([1.5]), "BIGINT", "has double"),
        (pa.array([Decimal("1.5")]), "BIGINT", r"row 0: decimal128\(2, 1\) .* 1.5 does not fit BIGINT"),
        (pa.array([Decimal(2**63)]), "BIGINT", "does not fit BIGINT"),
        (pa.array([Decimal(300)]), "TINYINT", "300 does not fit TINYINT"),
        (pa.array([Decimal("1.5")]), "STRING", "of type STRING"),
        (
            pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)], pa.binary(16))),
            "STRING",
            r"has extension<arrow.uuid> \(BINARY\(16\)\)",
        ),
        (dictionary(TEXT_VIEWS), "BIGINT", r"has dictionary<values=string_view.*STRING"),
    ],
)
def test_other_types_are_refused_by_name(array: pa.Array, type_text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as refusal:
        written(pa.table({"c0": array}), type_text)
    assert "c0" in str(refusal.value)


# ---- pandas ---------------------------------------------------------------------------------------------------------

PANDAS: dict[str, tuple[Any, str, list[Any]]] = {
    "category": (pd.Series(["a", None], dtype="category"), "STRING", ["a", None]),
    "category of numbers": (pd.Series([2, 1], dtype="category"), "INT", [2, 1]),
    "string": (pd.Series(["a", None], dtype="string"), "STRING", ["a", None]),
    "string[pyarrow]": (pd.Series(["a", None], dtype="string[pyarrow]"), "STRING", ["a", None]),
    "Int64": (pd.Series([1, None], dtype="Int64"), "BIGINT", [1, None]),
    "Float32": (pd.Series([1.5, None], dtype="Float32"), "DOUBLE", [1.5, None]),
    "float16": (pd.Series([1.5], dtype="float16"), "FLOAT", [1.5]),
    "boolean": (pd.Series([True, None], dtype="boolean"), "BOOLEAN", [True, None]),
    "datetime64[s]": (pd.Series(np.array(["2020-01-01"], "M8[s]")), "DATE", [dt.date(2020, 1, 1)]),
    "datetime64[ns]": (pd.Series(pd.to_datetime(["2020-01-01", None])), "TIMESTAMP(3)", [NIGHT, None]),
    "datetime64[ns, UTC]": (pd.Series(pd.to_datetime(["2020-01-01"], utc=True)), "TIMESTAMP_LTZ(3)", [NIGHT]),
    "interval": (
        pd.Series(pd.interval_range(0, 1)), "ROW<`left` BIGINT, `right` BIGINT>", [{"left": 0, "right": 1}],
    ),
    "arrow dictionary of views": (
        pd.Series(pd.arrays.ArrowExtensionArray(dictionary(TEXT_VIEWS))), "STRING", ["b", "a", None, None],
    ),
    "arrow list of views": (
        pd.Series(pd.arrays.ArrowExtensionArray(pa.array([["a"]], pa.list_(pa.string_view())))), "ARRAY<STRING>",
        [["a"]],
    ),
    "decimals": (pd.Series([Decimal("1.5"), None]), "DECIMAL(5, 2)", [Decimal("1.50"), None]),
    "arrays": (pd.Series([np.array([1, 2]), None]), "ARRAY<BIGINT>", [[1, 2], None]),
    "floats for a DECIMAL": (pd.Series([0.1, np.nan]), "DECIMAL(5, 2)", [Decimal("0.10"), None]),
}  # fmt: skip


@pytest.mark.parametrize("name", PANDAS)
def test_columns_of_pandas_are_written(name: str) -> None:
    series, type_text, expected = PANDAS[name]
    assert written(pd.DataFrame({"c0": series}), type_text) == expected


@pytest.mark.parametrize(
    ("series", "says"),
    [
        (pd.Series(pd.period_range("2020", periods=1, freq="D")), r"'c0' .* has extension<pandas.period"),
        (pd.Series(pd.arrays.SparseArray([0, 1])), r"'c0' has pandas type Sparse\[int64, 0\], which Arrow cannot take"),
        (pd.Series([1j]), "'c0' has pandas type complex128, which Arrow cannot take"),
        (pd.Series([pd.Timedelta(1)]), r"'c0' .* has duration\[ns\]"),
        (pd.Series([object()]), r"'c0', row 0: <object object at .* \(object\) is not a value for type DATE"),
    ],
)
def test_other_columns_of_pandas_are_refused_by_name(series: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        written(pd.DataFrame({"c0": series}), "DATE")


def test_a_class_derived_from_a_data_frame_is_one() -> None:
    class Frame(pd.DataFrame):
        pass

    assert written(Frame({"c0": [1]}, index=[7]), "BIGINT") == [1]


# ---- polars ---------------------------------------------------------------------------------------------------------

POLARS: dict[str, tuple[Any, list[Any], str, list[Any]]] = {
    "Categorical": (pl.Categorical, ["a", None, "b"], "STRING", ["a", None, "b"]),
    "Enum": (pl.Enum(["b", "a"]), ["a", None, "b"], "STRING", ["a", None, "b"]),
    "List(Categorical)": (pl.List(pl.Categorical), [["a", "b"], None, []], "ARRAY<STRING>", [["a", "b"], None, []]),
    "Array(Enum)": (pl.Array(pl.Enum(["a", "b"]), 1), [["a"], None], "ARRAY<STRING>", [["a"], None]),
    "Struct(Enum)": (pl.Struct({"x": pl.Enum(["a"])}), [{"x": "a"}], "ROW<x STRING>", [{"x": "a"}]),
    "String": (pl.String, ["a", None], "STRING", ["a", None]),
    "Binary": (pl.Binary, [b"a", None], "BYTES", [b"a", None]),
    "UInt64": (pl.UInt64, [1], "BIGINT", [1]),
    "Decimal": (pl.Decimal(10, 1), [Decimal("1.5")], "DECIMAL(5, 2)", [Decimal("1.50")]),
    "Time": (pl.Time, [dt.time(1, 2, 3, 4)], "TIME(3)", [dt.time(1, 2, 3)]),
    "Date": (pl.Date, [dt.date(2020, 1, 1)], "DATE", [dt.date(2020, 1, 1)]),
    "Datetime": (pl.Datetime, [NIGHT], "TIMESTAMP(3)", [NIGHT]),
    "Datetime(UTC)": (pl.Datetime("ns", "UTC"), [NIGHT.replace(tzinfo=dt.UTC)], "TIMESTAMP_LTZ(3)", [NIGHT]),
    "Null": (pl.Null, [None], "BIGINT", [None]),
}


@pytest.mark.parametrize("name", POLARS)
def test_columns_of_polars_are_written(name: str) -> None:
    kind, values, type_text, expected = POLARS[name]
    assert written(pl.DataFrame({"c0": pl.Series(values, dtype=kind)}), type_text) == expected


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        (pl.Object, [object()], "column 'c0' has polars type Object, which Arrow cannot carry"),
        (pl.Int128, [1], "column 'c0' has polars type Int128, which pyarrow cannot read"),
        (pl.Duration, [dt.timedelta(1)], r"column 'c0' .* has duration\[us\]"),
    ],
)
def test_other_columns_of_polars_are_refused_by_name(kind: Any, values: list[Any], says: str) -> None:
    frame = pl.DataFrame({"c0": pl.Series(values, dtype=kind)})
    for type_text in ("BYTES", "BINARY(8)", "BIGINT"):
        with pytest.raises(InvalidRequest, match=says):
            written(frame, type_text)


def test_rows_to_join_may_be_of_any_layout() -> None:
    frame = pl.DataFrame({"t": ["a", "b"], "l": [["x"], None], "e": ["a", "b"]}, schema_overrides={"e": pl.Categorical})
    table = as_table(frame)
    assert table.filter(pa.array([False, True])).to_pylist() == [{"t": "b", "l": None, "e": "b"}]
    assert pa.types.is_dictionary(table.schema.field("e").type)
    empty = as_table(frame.clear())
    assert (empty.num_rows, empty.schema.field("t").type) == (0, pa.large_string())


# ---- DuckDB ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "type_text", "expected"),
    [
        ("1.1", "DOUBLE", [1.1]),
        ("1.5", "DECIMAL(5, 2)", [Decimal("1.50")]),
        ("sum(x) FROM range(4) t(x)", "BIGINT", [6]),
        ("1::UBIGINT", "BIGINT", [1]),
        ("'a'::ENUM('a', 'b')", "STRING", ["a"]),
        ("['a'::ENUM('a', 'b'), NULL]", "ARRAY<STRING>", [["a", None]]),
        ("[1, 2]::INT[2]", "ARRAY<INT>", [[1, 2]]),
        ("MAP {'a': 1}", "MAP<STRING, INT>", [[("a", 1)]]),
        ("{'x': 1}", "ROW<x INT>", [{"x": 1}]),
        ("'{}'::JSON", "STRING", ["{}"]),
        ("TIME '12:00:00.5'", "TIME(3)", [dt.time(12, 0, 0, 500_000)]),
        ("TIMESTAMP '2020-01-01 00:00:00.0009'", "TIMESTAMP(3)", [NIGHT]),
        ("TIMESTAMPTZ '2020-01-01 00:00:00+00'", "TIMESTAMP_LTZ(3)", [NIGHT]),
        ("'x'::BLOB", "BYTES", [b"x"]),
        ("NULL", "BIGINT", [None]),
    ],
)
def test_results_of_duckdb_are_written(sql: str, type_text: str, expected: list[Any]) -> None:
    expression, *rest = sql.split(" FROM ")
    query = f"SELECT {expression} AS c0" + "".join(f" FROM {part}" for part in rest)
    with duckdb.connect() as connection:
        assert written(connection.sql(query), type_text) == expected


@pytest.mark.parametrize("make", [lambda v: f"INTERVAL {v} DAY", lambda v: f"union_value(k := {v})"])
def test_other_results_of_duckdb_are_refused_by_name(make: Callable[[int], str]) -> None:
    with duckdb.connect() as connection:
        data = connection.sql(f"SELECT {make(1)} AS c0")
        with pytest.raises(InvalidRequest, match=r"column 'c0' .* has (month_day_nano_interval|sparse_union)"):
            written(data, "BIGINT")
