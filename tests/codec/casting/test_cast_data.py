"""Users' data becomes exactly what a table stores, or an error that explains why not."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.base.errors import InvalidRequest
from forebay.codec.arrow.arrow_types import storage_schema, user_schema
from forebay.codec.casting.batches import iter_record_batches
from forebay.codec.casting.conform import cast_batch
from forebay.metadata import types
from forebay.metadata.table import Column, Schema
from tests.codec.log_batch_strategies import schema_of, tables
from tests.every_run import examples

UTC = dt.UTC
STRINGS = types.array(types.string())
WIDE = Schema.of(
    [
        Column("id", types.int_().not_null()), Column("tiny", types.tinyint()), Column("f", types.float_()),
        Column("d", types.double()), Column("s", types.string()), Column("bin", types.binary(2)),
        Column("by", types.bytes_()), Column("dec", types.decimal(10, 2)), Column("day", types.date()),
        Column("tm", types.time(3)), Column("ts", types.timestamp(6)), Column("tz", types.timestamp_ltz(3)),
        Column("flag", types.boolean()),
        Column("a", types.array(types.int_().not_null())),
        Column("m", types.map_(types.string(), types.timestamp_ltz(6))),
        Column("r", types.row(types.field("x", types.int_().not_null()), types.field("y", STRINGS))),
    ]
)  # fmt: skip
ROW: dict[str, Any] = {
    "id": 1, "tiny": 2, "f": 0.1, "d": 1.5, "s": "x", "bin": b"ab", "by": b"q", "dec": Decimal("1.10"),
    "day": dt.date(2020, 1, 2), "tm": dt.time(1, 2, 3, 4000), "ts": dt.datetime(2020, 1, 2, 3, 4, 5, 6),
    "tz": dt.datetime(2020, 1, 2, 3, tzinfo=UTC), "flag": True, "a": [1, 2],
    "m": [("k", dt.datetime(2020, 1, 1, tzinfo=UTC)), ("l", None)], "r": {"x": 1, "y": ["a", None]},
}  # fmt: skip


def to_record_batches(data: Any, schema: Schema, **kwargs: Any) -> list[pa.RecordBatch]:
    return list(iter_record_batches(data, schema, **kwargs))


def one(data: Any, schema: Schema = WIDE, **kwargs: Any) -> pa.RecordBatch:
    batches = to_record_batches(data, schema, **kwargs)
    assert len(batches) == 1
    batches[0].validate(full=True)
    return batches[0]


def users(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    return cast_batch(batch, user_schema(schema.columns))


def column(array: pa.Array, t: types.DataType) -> pa.Array:
    """`array` cast for a table of one column of type `t`."""
    return one(pa.table({"c0": array}), schema_of(t)).column(0)


# ---- carriers -------------------------------------------------------------------------------------------------------


class Stream:
    """An object of some other library that offers nothing but the Arrow C stream interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


class Array:
    """An object that offers nothing but the Arrow C array interface."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._batch.__arrow_c_array__(requested_schema)


@settings(max_examples=examples(50))
@given(table=tables(min_rows=1))
def test_every_carrier_of_every_type_gives_the_same_batch(table):
    schema, batch = table
    user = users(batch, schema)
    whole = pa.Table.from_batches([user])
    for data in (user, whole, whole.to_reader(), Stream(whole), Array(user), whole.select(schema.names[::-1])):
        assert one(data, schema).equals(batch)


@settings(max_examples=examples(50))
@given(table=tables(min_rows=1))
def test_lists_of_dicts_give_the_same_batch(table):
    schema, batch = table
    try:
        rows = users(batch, schema).to_pylist()
    except (ValueError, OverflowError, pa.ArrowException):  # Python's datetime cannot say the year
        return
    assert one(rows, schema).equals(batch)


def test_a_dict_of_each_type_is_stored():
    batch = one([ROW, {"id": 2}])
    assert batch.schema.equals(storage_schema(WIDE.columns))
    back = users(batch, WIDE).to_pylist()
    assert back[0] == {**ROW, "f": float(np.float32(0.1))}
    assert back[1] == {name: 2 if name == "id" else None for name in WIDE.names}
    assert one([{**ROW, "m": dict(ROW["m"]), "a": (1, 2)}]).equals(batch.slice(0, 1))
    assert one([{**ROW, "a": np.array([1, 2])}]).equals(batch.slice(0, 1))


def test_data_frames_of_pandas_are_stored_without_their_index():
    frame = pd.DataFrame(
        {
            "id": [1, 2],
            "s": ["a", None],
            "d": [1.0, math.nan],
            "tiny": pd.array([1, None], "Int64"),
            "ts": pd.to_datetime(["2020-01-01", None]),
            "tz": pd.to_datetime(["2020-01-01", "2020-01-02"], utc=True),
            "dec": [Decimal("1.5"), None],
            "day": [dt.date(2020, 1, 1), None],
            "flag": [True, None],
            "m": [{"a": dt.datetime(2020, 1, 1, tzinfo=UTC)}, None],
            "r": [{"x": 1}, math.nan],
        },
        index=[7, 8],
    )
    rows = users(one(frame), WIDE).select(list(frame.columns)).to_pylist()
    assert rows[0] == {
        "id": 1, "s": "a", "d": 1.0, "tiny": 1,
        "ts": dt.datetime(2020, 1, 1), "tz": dt.datetime(2020, 1, 1, tzinfo=UTC),
        "dec": Decimal("1.50"), "day": dt.date(2020, 1, 1), "flag": True,
        "m": [("a", dt.datetime(2020, 1, 1, tzinfo=UTC))], "r": {"x": 1, "y": None},
    }  # fmt: skip
    assert rows[1] == {**dict.fromkeys(frame.columns), "id": 2, "tz": dt.datetime(2020, 1, 2, tzinfo=UTC)}
    with pytest.raises(InvalidRequest, match=r"data has double .DOUBLE.; cast it yourself .* use Int64"):
        to_record_batches(pd.DataFrame({"id": [1, math.nan]}), WIDE)
    with pytest.raises(InvalidRequest, match=r"column 'dec', row 1: 'x' .* give a decimal"):
        to_record_batches(pd.DataFrame({"id": [1, 2], "dec": [Decimal(1), "x"]}), WIDE)
    with pytest.raises(InvalidRequest, match="column 'd' has pandas type complex128, which Arrow cannot take"):
        to_record_batches(pd.DataFrame({"id": [1], "d": [1j]}), WIDE)
    with pytest.raises(InvalidRequest, match="named by strings"):
        to_record_batches(pd.DataFrame([[1]]), WIDE)


def test_other_things_are_refused():
    for data in (5, "rows", {"id": [1]}, None):
        with pytest.raises(InvalidRequest, match="cannot write a"):
            to_record_batches(data, WIDE)
    with pytest.raises(InvalidRequest, match="row 1 is a int, not a dict"):
        to_record_batches([{"id": 1}, 5], WIDE)
    with pytest.raises(InvalidRequest, match="has no columns of a table"):
        list(to_record_batches(Array(pa.array([1])), WIDE))


def test_batches_are_cut_and_small_chunks_joined():
    schema = schema_of(types.bigint())
    table = pa.table({"c0": pa.array(range(10), pa.int64())})
    assert [b.num_rows for b in to_record_batches(table, schema, max_rows=4)] == [4, 4, 2]
    assert [b.num_rows for b in to_record_batches([{"c0": i} for i in range(3)], schema, max_rows=2)] == [2, 1]
    chunked = pa.concat_tables([table] * 100)
    assert [b.num_rows for b in to_record_batches(chunked, schema)] == [1000]
    large = pa.table({"c0": pa.array(range(5000), pa.int64())})
    assert [b.num_rows for b in to_record_batches(pa.concat_tables([large] * 2), schema)] == [5000, 5000]
    assert to_record_batches(table.slice(0, 0), schema) == to_record_batches([], schema) == []
    with pytest.raises(InvalidRequest, match="max_rows"):
        to_record_batches(table, schema, max_rows=0)


def test_a_reader_is_taken_batch_by_batch():
    schema = schema_of(types.bigint())
    taken = []

    def batches():
        for i in range(3):
            taken.append(i)
            yield pa.record_batch({"c0": pa.array([i], pa.int64())})

    reader = pa.RecordBatchReader.from_batches(pa.schema([("c0", pa.int64())]), batches())
    first = next(iter_record_batches(reader, schema))
    assert (first.to_pylist(), taken) == ([{"c0": 0}], [0])


# ---- columns --------------------------------------------------------------------------------------------------------


def test_columns_are_matched_by_name():
    schema = Schema.of([Column("a", types.int_().not_null()), Column("b", types.string())])
    assert one(pa.table({"b": ["x"], "a": [1]}), schema).to_pylist() == [{"a": 1, "b": "x"}]
    assert one(pa.table({"a": [1]}), schema).to_pylist() == [{"a": 1, "b": None}]
    with pytest.raises(InvalidRequest, match="the data has column 'c', but the table has the columns a, b"):
        to_record_batches(pa.table({"a": [1], "c": [1]}), schema)
    with pytest.raises(InvalidRequest, match="has no column 'a', which is NOT NULL"):
        to_record_batches(pa.table({"b": ["x"]}), schema)
    with pytest.raises(InvalidRequest, match="column 'a' more than once"):
        to_record_batches(pa.table([[1], [2]], names=["a", "a"]), schema)


def test_chosen_columns_only_in_the_order_of_the_table():
    schema = Schema.of([Column("k", types.int_().not_null()), Column("a", types.string()), Column("b", types.string())])
    batch = one(pa.table({"b": ["x"], "k": [1]}), schema, columns=["b", "k"])
    assert batch.to_pylist() == [{"k": 1, "b": "x"}]
    with pytest.raises(InvalidRequest, match="only k, b are written"):
        to_record_batches(pa.table({"a": ["x"], "k": [1]}), schema, columns=["b", "k"])
    with pytest.raises(InvalidRequest, match="no column 'z'"):
        to_record_batches(pa.table({"k": [1]}), schema, columns=["z"])


def test_a_batch_that_is_right_already_is_not_copied():
    user = users(one([ROW]), WIDE)
    batch = one(user)
    for mine, theirs in zip(batch.columns, user.columns, strict=True):
        assert [b and b.address for b in mine.buffers()] == [b and b.address for b in theirs.buffers()]


# ---- casts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "t", "expected"),
    [
        (pa.array([1, None], pa.uint64()), types.tinyint(), [1, None]),
        (pa.array([-128, 127], pa.int64()), types.tinyint(), [-128, 127]),
        (pa.array([1], pa.int8()), types.bigint(), [1]),
        (pa.array([1.5], pa.float64()), types.float_(), [1.5]),
        (pa.array([math.inf], pa.float64()), types.float_(), [math.inf]),
        (pa.array([1], pa.int32()), types.double(), [1.0]),
        (pa.array(["a", None], pa.large_string()), types.string(), ["a", None]),
        (pa.array(["a", None], pa.string_view()), types.char(1), ["a", None]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), types.string(), ["a", "b", "a"]),
        (pa.array([b"ab"], pa.large_binary()), types.binary(2), [b"ab"]),
        (pa.array([b"ab"], pa.binary(2)), types.bytes_(), [b"ab"]),
        (pa.array([b"a"], pa.binary_view()), types.bytes_(), [b"a"]),
        (pa.array([12, None]), types.decimal(10, 2), [Decimal("12.00"), None]),
        (pa.array([Decimal("1.50")], pa.decimal256(40, 2)), types.decimal(3, 1), [Decimal("1.5")]),
        (pa.array([86_400_000], pa.int64()).cast(pa.date64()), types.date(), [dt.date(1970, 1, 2)]),
        (pa.array([dt.datetime(1970, 1, 2)], pa.timestamp("ns")), types.date(), [dt.date(1970, 1, 2)]),
        (pa.array([1], pa.int32()).cast(pa.time32("s")), types.time(6), [dt.time(0, 0, 1)]),
        (pa.array([1_000_000]).cast(pa.time64("us")), types.time(0), [dt.time(0, 0, 1)]),
        (pa.array([1_000]).cast(pa.timestamp("ns")), types.timestamp(6), [dt.datetime(1970, 1, 1, 0, 0, 0, 1)]),
        (pa.array([0]).cast(pa.timestamp("s", "Asia/Tokyo")), types.timestamp_ltz(3), [dt.datetime(1970, 1, 1)]),
        (pa.nulls(2), types.array(types.int_()), [None, None]),
        (pa.array([[1, 2], None, []], pa.large_list(pa.int64())), types.array(types.int_()), [[1, 2], None, []]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)), types.array(types.int_()), [[1, 2], [3, 4]]),
        (pa.array([[1, 2], None, [3]], pa.list_view(pa.int64())), types.array(types.int_()), [[1, 2], None, [3]]),
        (
            pa.array([[{"k": "a", "v": 1}], None]),
            types.map_(types.string(), types.int_()),
            [[("a", 1)], None],
        ),
        (
            pa.array([[("a", 1)], None, []], pa.map_(pa.large_string(), pa.int64())).slice(1),
            types.map_(types.string(), types.int_()),
            [None, []],
        ),
        (
            pa.array([{"b": "x", "a": 5}, None]),
            types.row(
                types.field("a", types.tinyint()), types.field("b", types.string()), types.field("c", types.date())
            ),
            [{"a": 5, "b": "x", "c": None}, None],
        ),
        (
            pa.array([[{"a": ["x"]}, None], []], pa.list_(pa.struct([("a", pa.large_list(pa.large_string()))]))),
            types.array(types.row(types.field("a", types.array(types.string())))),
            [[{"a": ["x"]}, None], []],
        ),
    ],
)  # fmt: skip
def test_casts_that_lose_nothing(array, t, expected):
    assert column(array, t).to_pylist() == expected
    assert column(pa.concat_arrays([array, array]).slice(len(array)), t).to_pylist() == expected


@pytest.mark.parametrize(
    ("array", "t", "match"),
    [
        (pa.array([1, 2, 300]), types.tinyint(), "column 'c0', row 2: int64 .BIGINT. 300 does not fit TINYINT"),
        (pa.array([1.0, 2.0]), types.bigint(), "of type BIGINT, but the data has double .DOUBLE.; cast it yourself"),
        (pa.array([2**63], pa.uint64()), types.bigint(), "row 0: uint64 9223372036854775808 does not fit BIGINT"),
        (pa.array([1.0, 1e300]), types.float_(), "row 1: double .DOUBLE. 1e[+]300 does not fit FLOAT"),
        (pa.array([2**24 + 1]), types.float_(), "16777217 does not fit FLOAT"),
        (pa.array([2**53 + 1]), types.double(), "row 0: int64 .BIGINT. 9007199254740993 does not fit DOUBLE"),
        (pa.array([1]), types.string(), "of type STRING, but the data has int64"),
        (pa.array([b"\xff"]), types.string(), "of type STRING, but the data has binary"),
        (pa.array(["a"]), types.bytes_(), "of type BYTES, but the data has string"),
        (pa.array([b"ab", b"abc"]), types.binary(2), r"row 1: binary .BYTES. b'abc' does not fit BINARY\(2\)"),
        (pa.array([True]), types.int_(), "the data has bool"),
        (pa.array([1]), types.boolean(), "of type BOOLEAN, but the data has int64"),
        (pa.array([999.999]), types.decimal(5, 2), r"row 0: double .DOUBLE. 999.999 does not fit DECIMAL\(5, 2\)"),
        (pa.array([0.5, math.nan]), types.decimal(5, 2), "row 1: double .DOUBLE. nan does not fit DECIMAL"),
        (pa.array([Decimal("1.005")]), types.decimal(10, 2), r"row 0: .* 1.005 does not fit DECIMAL.*; if it may"),
        (pa.array([Decimal("123456.1")]), types.decimal(5, 1), "does not fit DECIMAL"),
        (pa.array([10**9]), types.decimal(10, 2), "int64 .BIGINT. 1000000000 does not fit"),
        (pa.array([dt.datetime(2020, 1, 1, 5)]), types.date(), "does not fit DATE"),
        (pa.array([dt.datetime(2020, 1, 1)]), types.timestamp_ltz(6), "say which zone the values are in"),
        (pa.array([dt.datetime(2020, 1, 1, tzinfo=UTC)]), types.timestamp(6), "drop the time zone first"),
        (pa.array([dt.datetime(2020, 1, 1, tzinfo=UTC)]), types.date(), "of type DATE, but the data has timestamp"),
        (pa.array([2**60]).cast(pa.timestamp("s")), types.timestamp(3), "row 0: .* does not fit TIMESTAMP"),
        (pa.array([[1, 2], [3, 400]]), types.array(types.tinyint()), "column 'c0.element', row 1: int64 .BIGINT. 400"),
        (pa.array([[1], [2, None]]), types.array(types.int_().not_null()), "'c0.element', row 1: is NOT NULL"),
        (
            pa.array([[("a", 1)], [("b", None)]], pa.map_(pa.string(), pa.int64())),
            types.map_(types.string(), types.int_().not_null()),
            "column 'c0.value', row 1: is NOT NULL",
        ),
        (
            pa.array([[{"k": "a", "v": 1}, {"k": None, "v": 1}]]),
            types.map_(types.string(), types.int_()),
            "column 'c0.key', row 0: is NOT NULL",
        ),
        (pa.array([1]), types.array(types.int_()), "of type ARRAY<INT>, but the data has int64"),
        (pa.array([1]), types.map_(types.string(), types.int_()), "of type MAP"),
        (pa.array([{"a": 1}]), types.map_(types.string(), types.int_()), "of type MAP"),
        (pa.array([1]), types.row(types.field("a", types.int_())), "of type ROW"),
        (pa.array([{"z": 1}]), types.row(types.field("a", types.int_())), "has field 'z', but row 'c0'"),
        (
            pa.array([None, {"b": 1}], pa.struct([("b", pa.int32())])),
            types.row(types.field("a", types.int_().not_null()), types.field("b", types.int_())),
            "column 'c0.a', row 1: is NOT NULL",
        ),
        (
            pa.array([[("a", 1)], [("b", 1), ("c", 2**40)]], pa.map_(pa.string(), pa.int64())),
            types.map_(types.string(), types.int_()),
            "column 'c0.value', row 1: int64 .BIGINT. 1099511627776 does not fit INT",
        ),
        (
            pa.array([[("a", dt.datetime(2020, 1, 1))]], pa.map_(pa.string(), pa.timestamp("us"))),
            types.map_(types.string(), types.timestamp_ltz(6)),
            "column 'c0.value' is of type TIMESTAMP_LTZ",
        ),
        (pa.array([pd.Timedelta(1, "s")]), types.bigint(), "the data has duration"),
    ],
)  # fmt: skip
def test_casts_that_would_lose_something_are_refused(array, t, match):
    with pytest.raises(InvalidRequest, match=match):
        column(array, t)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ({"id": None}, "'id' is NOT NULL, but 1 of 2 values are null, the first in row 1"),
        ({"tiny": 300}, "column 'tiny', row 1: 300 does not fit TINYINT"),
        ({"id": 1.0}, "'id', row 1: 1.0 .* give an int"), ({"id": True}, "give an int"), ({"id": "1"}, "give an int"),
        ({"f": 1e300}, "range of 32-bit floats"), ({"f": 2**24 + 1}, "does not fit FLOAT"),
        ({"f": 10**400}, "does not fit FLOAT"), ({"f": "x"}, "give a float or int"),
        ({"d": 2**60 + 1}, "does not fit DOUBLE"), ({"s": 1}, "give a str"), ({"bin": b"abc"}, "exactly 2 bytes"),
        ({"by": "x"}, "give bytes"), ({"dec": Decimal("1.005")}, "does not fit DECIMAL.*round it first"),
        ({"dec": "1"}, "give a decimal.Decimal or int"), ({"dec": math.nan}, "give a finite number"),
        ({"dec": 1e300}, "does not fit DECIMAL"), ({"dec": 99999999.999}, "does not fit DECIMAL"),
        ({"id": Decimal("1.5")}, "does not fit INT"), ({"d": "1"}, "give a float or int"),
        ({"day": dt.datetime(2020, 1, 1)}, "datetime.date"),
        ({"day": 5}, "datetime.date"), ({"tm": 5}, "datetime.time"), ({"flag": 1}, "True or False"),
        ({"ts": dt.datetime(2020, 1, 1, tzinfo=UTC)}, "without a time zone"),
        ({"tz": dt.datetime(2020, 1, 1)}, r"with a time zone, such as datetime.now\(datetime.UTC\); value.astimezone"),
        ({"a": [1, None]}, "column 'a.element', row 1: is NOT NULL"), ({"a": "ab"}, "'ab' .* does not fit ARRAY"),
        ({"a": [1, "x"]}, "column 'a.element', row 1: 'x'"), ({"m": [("a",)]}, "not a pair of key and value"),
        ({"m": {None: None}}, "column 'm.key', row 1: is NOT NULL"), ({"m": 5}, "does not fit MAP"),
        ({"r": {"x": None}}, "column 'r.x', row 1: is NOT NULL"), ({"r": {"q": 1}}, "has field 'q', but row 'r'"),
        ({"r": [1]}, "does not fit ROW"), ({"zz": 1}, "has column 'zz', but the table has the columns"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused_with_column_and_row(value, match):
    with pytest.raises(InvalidRequest, match=match):
        to_record_batches([ROW, {**ROW, **value}], WIDE)


def test_digits_that_a_column_does_not_have_are_cut_off_downwards_and_floats_become_the_nearest_decimal():
    """In all carriers alike: the clock has more digits than most columns, and 0.1 is no float."""
    schema = Schema.of(
        [
            Column("tz", types.timestamp_ltz(3)), Column("ts", types.timestamp(0)), Column("tm", types.time(3)),
            Column("dec", types.decimal(10, 2)), Column("d", types.double()), Column("n", types.int_()),
        ]
    )  # fmt: skip
    rows = [
        {
            "tz": dt.datetime(2020, 1, 1, 0, 0, 0, 123_456, UTC), "ts": dt.datetime(1969, 12, 31, 23, 59, 59, 1),
            "tm": dt.time(1, 2, 3, 4_999), "dec": 0.1 + 0.2, "d": Decimal("1.1"), "n": Decimal("3.0"),
        },
        {
            "tz": dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), "ts": dt.datetime(1970, 1, 1, 0, 0, 0, 999_999),
            "tm": dt.time(0, 0, 0, 999), "dec": -2.675, "d": Decimal("-0.3"), "n": Decimal(-1),
        },
    ]  # fmt: skip
    expected = [
        {
            "tz": dt.datetime(2020, 1, 1, 0, 0, 0, 123_000, UTC), "ts": dt.datetime(1969, 12, 31, 23, 59, 59),
            "tm": dt.time(1, 2, 3, 4_000), "dec": Decimal("0.30"), "d": 1.1, "n": 3,
        },
        {
            "tz": dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), "ts": dt.datetime(1970, 1, 1),
            "tm": dt.time(0), "dec": Decimal("-2.67"), "d": -0.3, "n": -1,
        },
    ]  # fmt: skip
    for data in (rows, pa.Table.from_pylist(rows), pd.DataFrame(rows)):
        assert users(one(data, schema), schema).to_pylist() == expected
    now = pd.DataFrame({"tz": [pd.Timestamp("2020-01-01 00:00:00.123456789", tz="Asia/Tokyo")]})
    assert one(now, schema).column(0).to_pylist() == [dt.datetime(2019, 12, 31, 15, 0, 0, 123_000)]


@settings(max_examples=examples(200))
@given(st.floats(-1e7, 1e7), st.integers(0, 9))
def test_a_float_becomes_the_same_decimal_as_a_value_and_as_an_array(value, scale):
    t = types.decimal(18, scale)
    as_array = column(pa.array([value]), t)
    assert one([{"c0": value}], schema_of(t)).column(0).equals(as_array)
    nearest = round(Fraction(value) * 10**scale)
    assert int(as_array[0].as_py().scaleb(scale)) == nearest


@settings(max_examples=examples(200))
@given(st.decimals(-(10**15), 10**15, places=3))
def test_a_decimal_becomes_the_nearest_float(value):
    array = pa.array([value], pa.decimal128(20, 3))
    assert column(array, types.double()).to_pylist() == [float(value)]
    assert one([{"c0": value}], schema_of(types.double())).column(0).to_pylist() == [float(value)]


def test_a_time_is_a_time_of_day_in_whole_milliseconds():
    """Rows of Fluss and files of Paimon have no more: finer digits would be lost, and others read another time."""

    def times(unit: str, *values: int | None) -> pa.Array:
        return pa.array(values, pa.int32() if unit in ("s", "ms") else pa.int64()).cast(
            pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
        )

    day = 86_400_000
    for t in (types.time(6), types.time(9), types.array(types.time(6)), types.row(types.field("x", types.time(6)))):
        for value in (dt.time(1, 2, 3, 4), dt.time(0, 0, 0, 999)):
            nested = [value] if t.element else {"x": value} if t.fields else value
            for data in ([{"c0": None}, {"c0": nested}], pa.table({"c0": pa.array([None, nested])})):
                with pytest.raises(InvalidRequest, match=r"column 'c0.*', row 1: .* does not fit TIME.*milliseconds"):
                    to_record_batches(data, schema_of(t))
    assert column(times("us", 1_000, None), types.time(6)).to_pylist() == [dt.time(0, 0, 0, 1_000), None]
    assert column(times("us", 1_999), types.time(3)).to_pylist() == [dt.time(0, 0, 0, 1_000)]
    for unit, ticks in (("s", 1), ("ms", 1_000), ("us", 10**6), ("ns", 10**9)):
        most = day // 1_000 * ticks
        whole = max(ticks // 1_000, 1)
        for t in (types.time(0), types.time(3), types.time(6), types.time(9)):
            assert len(column(times(unit, 0, None, most - whole), t)) == 3
            for wrong in (most, -whole, most * 2):
                match = rf"row 1: .* {wrong} {unit} does not fit TIME"
                with pytest.raises(InvalidRequest, match=match):
                    column(times(unit, 0, wrong), t)
                if t is types.time(3) and unit == "ms":
                    with pytest.raises(InvalidRequest, match=match):
                        column(
                            pa.array([[], [wrong]], pa.list_(pa.int32())).cast(pa.list_(pa.time32("ms"))),
                            types.array(t),
                        )


def test_a_mistake_is_one_exception():
    for data in ([{"id": 1, "tz": dt.datetime.now()}], pa.table({"id": [2**40]}), pd.DataFrame({"id": [1], "d": [1j]})):
        with pytest.raises(InvalidRequest) as mistake:
            to_record_batches(data, WIDE)
        assert mistake.value.__cause__ is None
        assert mistake.value.__suppress_context__


def test_named_levels_of_an_index_are_columns():
    schema = Schema.of([Column("id", types.bigint()), Column("day", types.date()), Column("s", types.string())])
    frame = pd.DataFrame({"s": ["x", "y"]}, index=pd.Index([7, 8], name="id"))
    assert one(frame, schema).column(0).to_pylist() == [7, 8]
    assert list(frame.columns) == ["s"]
    ranged = pd.DataFrame({"s": ["x"]}, index=pd.RangeIndex(3, 4, name="id"))
    assert one(ranged, schema).column(0).to_pylist() == [3]
    levels = pd.MultiIndex.from_tuples([(1, dt.date(2020, 1, 1), "q")], names=["id", "day", None])
    assert one(pd.DataFrame({"s": ["x"]}, index=levels), schema).to_pylist() == [
        {"id": 1, "day": dt.date(2020, 1, 1), "s": "x"}
    ]
    both = pd.DataFrame({"id": [1], "s": ["x"]}, index=pd.Index([9], name="id"))
    assert one(both, schema).column(0).to_pylist() == [1]  # as in Arrow, the column has precedence
    for kind in ("category", "Int64"):
        typed = pd.DataFrame({"s": ["x"]}, index=pd.Index([7], name="id", dtype=kind))
        assert one(typed, schema).column(0).to_pylist() == [7]
    with pytest.raises(InvalidRequest, match=r"index of the DataFrame is named 'row', but .* reset_index\(drop=True\)"):
        to_record_batches(frame.rename_axis("row"), schema)
    with pytest.raises(InvalidRequest, match="named by strings, got"):
        to_record_batches(frame.rename_axis(0), schema)


def test_a_null_value_of_a_map_whose_values_are_not_null_is_refused():
    schema = schema_of(types.map_(types.string(), types.int_().not_null()))
    assert one([{"c0": {"a": 1}}, {"c0": None}], schema).column(0).to_pylist() == [[("a", 1)], None]
    with pytest.raises(InvalidRequest, match=r"column 'c0.value', row 1: is NOT NULL"):
        to_record_batches([{"c0": {"a": 1}}, {"c0": {"b": None}}], schema)


def test_nulls_in_a_not_null_column_are_counted_from_the_first_row_of_all_data():
    schema = schema_of(types.int_().not_null())
    table = pa.table({"c0": pa.array([1, 2, 3, 4, None, None])})
    with pytest.raises(InvalidRequest, match="2 of 2 values are null, the first in row 4"):
        to_record_batches(table, schema, max_rows=2)


def test_nulls_below_a_null_row_are_no_error():
    t = types.row(types.field("x", types.int_().not_null()))
    assert column(pa.array([None, {"x": 1}], pa.struct([("x", pa.int64())])), t).to_pylist() == [None, {"x": 1}]


# ---- exact Arrow types ----------------------------------------------------------------------------------------------


@settings(max_examples=examples(50))
@given(table=tables(min_rows=1), start=st.integers(0, 3))
def test_labels_are_exchanged_without_a_copy(table, start):
    schema, batch = table
    batch = batch.slice(start)
    target = pa.schema([_renamed(f) for f in user_schema(schema.columns)])
    relabelled = cast_batch(batch, target)
    relabelled.validate(full=True)
    assert relabelled.schema.equals(target)
    again = cast_batch(relabelled, storage_schema(schema.columns))
    again.validate(full=True)
    assert again.equals(batch)
    for mine, theirs in zip(relabelled.columns, batch.columns, strict=True):
        if not theirs.type.num_fields:
            there = [b and b.address for b in theirs.buffers()]
            no_nulls = [None, *there[1:]] if not theirs.null_count else there  # which needs no bitmap
            assert [b and b.address for b in mine.buffers()] in (there, no_nulls)
    assert cast_batch(relabelled, target) is relabelled


def _renamed(f: pa.Field) -> pa.Field:
    """`f` as Spark would have it: list items called `item`, everything nullable."""
    t = f.type
    if pa.types.is_list(t):
        return pa.field(f.name, pa.list_(_renamed(t.value_field).with_name("item")))
    if pa.types.is_map(t):
        item = _renamed(t.item_field)
        return pa.field(f.name, pa.map_(_renamed(t.key_field).type, item.type))
    if pa.types.is_struct(t):
        return pa.field(f.name, pa.struct([_renamed(inner) for inner in t]))
    return pa.field(f.name, t)


def test_columns_are_selected_and_zones_and_units_brought_to_the_target():
    batch = pa.record_batch({"a": pa.array([1_500]).cast(pa.timestamp("us")), "b": [1], "c": pa.array(["x"])})
    target = pa.schema([("c", pa.large_string()), ("a", pa.timestamp("ns", "UTC"))])
    assert cast_batch(batch, target).to_pydict() == {"c": ["x"], "a": [pd.Timestamp(1_500_000, tz="UTC")]}
    coarse = pa.schema([("a", pa.timestamp("ms", "UTC"))])
    with pytest.raises(InvalidRequest, match=r"column 'a' of type timestamp.us. does not fit"):
        cast_batch(batch, coarse)
    assert cast_batch(batch, coarse, truncate=True).column(0).cast(pa.int64()).to_pylist() == [1]
    assert cast_batch(batch, pa.schema([])).num_rows == 1


def test_digits_are_cut_off_downwards_also_before_1970():
    nanos = [-(2**63), -1_500, -1_000, -1, None, 0, 999, 1_500]
    batch = pa.record_batch({"a": pa.array(nanos, pa.int64()).cast(pa.timestamp("ns"))})
    whole = [None if n is None else n // 1_000 for n in nanos]
    for zone in (None, "UTC"):
        cut = cast_batch(batch, pa.schema([("a", pa.timestamp("us", zone))]), truncate=True)
        assert cut.column(0).cast(pa.int64()).to_pylist() == whole
        sliced = cast_batch(batch.slice(1, 4), cut.schema, truncate=True)
        assert sliced.column(0).cast(pa.int64()).to_pylist() == whole[1:5]


def test_targets_that_cannot_be_reached_are_refused():
    maps = pa.array([[("k", 1)], [("l", None)]], pa.map_(pa.string(), pa.int64()))
    batch = pa.record_batch({"a": pa.array([1, None]), "l": pa.array([[1], [None]]), "s": ["x", "y"], "m": maps})
    for field, match in (
        (pa.field("z", pa.int64()), "0 columns 'z'"),
        (pa.field("a", pa.int64(), nullable=False), "'a' must not be null, but 1 values are, the first at 1"),
        (pa.field("l", pa.list_(pa.field("item", pa.int64(), nullable=False))), "'l.element' must not be null"),
        (pa.field("m", pa.map_(pa.string(), pa.field("value", pa.int64(), False))), "'m.value' must not be null"),
        (pa.field("s", pa.int64()), "'s' of type string cannot become int64"),
        (pa.field("s", pa.struct([("x", pa.int64())])), "cannot become"),
    ):
        with pytest.raises(InvalidRequest, match=match):
            cast_batch(batch, pa.schema([field]))


def test_nulls_are_found_in_data_whose_type_says_that_it_has_none():
    item = pa.field("item", pa.int64(), nullable=False)
    for kind, name, values in (
        (pa.list_(item), "c.element", [[1], [None]]),
        (pa.list_(pa.list_(item)), "c.element.element", [[[1]], [[None]]]),
        (pa.struct([item]), "c.item", [{"item": 1}, {"item": None}]),
        (pa.map_(pa.string(), pa.field("value", pa.int64(), False)), "c.value", [[("k", 1)], [("l", None)]]),
    ):
        batch = pa.record_batch({"c": pa.array(values, kind)})
        with pytest.raises(InvalidRequest, match=f"'{name}' must not be null, but 1 values are, the first at 1"):
            cast_batch(batch, pa.schema([pa.field("c", kind)], metadata={"other": "schema"}))


def test_a_column_that_the_server_numbers_is_refused_as_such_and_not_as_unknown():
    numbered = Schema.of(
        [Column("k", types.int_()), Column("id", types.bigint()), Column("v", types.string())], ("k",), "id"
    )
    for data in ([{"k": 1, "id": 2}], pa.table({"k": [1], "id": [2]}), pd.DataFrame({"k": [1], "id": [2]})):
        with pytest.raises(InvalidRequest, match="'id' is an auto-increment column, whose values the server gives"):
            to_record_batches(data, numbered, columns=["k", "v"])
        with pytest.raises(InvalidRequest, match="the data has column 'id', and only k are written"):
            to_record_batches(data, replace(numbered, auto_increment_column=None), columns=["k"])


@pytest.mark.parametrize(
    "encoding", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_texts_keep_to_the_length_of_their_column(encoding: pa.DataType) -> None:
    schema = Schema((Column("c", types.char(3)), Column("l", types.array(types.string(2)))))
    texts = pa.array(["äöü", "ab", "abc   ", None]).cast(encoding)
    lists = pa.array([["a", "b   "], None, [None], []])
    (batch,) = iter_record_batches(pa.table({"c": texts, "l": lists}), schema)
    assert batch.to_pydict() == {"c": ["äöü", "ab", "abc", None], "l": [["a", "b "], None, [None], []]}
    for name, column in (("c", pa.array(["abc", "abcd"])), ("l.element", pa.array([["ab"], ["abc"]]))):
        with pytest.raises(
            InvalidRequest, match=rf"column '{name}', row 1: 'abc.*' has \d characters, .* (CHAR|VARCHAR)"
        ):
            list(iter_record_batches(pa.table({name[0]: column}), schema))


def test_texts_of_python_values_keep_to_the_length_of_their_column() -> None:
    schema = Schema((Column("c", types.char(3)), Column("l", types.array(types.string(2)))))
    (batch,) = iter_record_batches([{"c": "äöü  ", "l": ["ab "]}, {"c": None, "l": None}], schema)
    assert batch.to_pydict() == {"c": ["äöü", None], "l": [["ab"], None]}
    for row in ({"c": "abcd"}, {"l": ["abc"]}):
        with pytest.raises(InvalidRequest, match=r"column '.*', row 0: 'abc.*' has \d characters, which do not fit"):
            list(iter_record_batches([row], schema))
    with pytest.raises(InvalidRequest, match=r"'x{60}\.\.\.' has 70000 characters, which do not fit CHAR\(3\)"):
        list(iter_record_batches([{"c": "x" * 70_000}], schema))
