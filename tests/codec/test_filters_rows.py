"""Filters on Arrow data: what they match, how literals are bound, and the same filter for datasets."""

from __future__ import annotations

import datetime as dt
import functools
import math
import operator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from forebay.base.errors import InvalidRequest
from forebay.codec.arrow.arrow_types import user_schema
from forebay.codec.casting.conform import cast_batch
from forebay.codec.casting.literals import exact, is_floating, place, sort_key, to_python
from forebay.codec.filters import BoundLeaf, bind, columns_of, filter_rows, leaves, mask, normalize
from forebay.metadata import types
from forebay.metadata.predicate import Compound, CompoundFunction, Leaf, LeafFunction, Predicate, col
from forebay.metadata.table import Column, Schema
from forebay.metadata.types import DataType
from tests.codec.log_batch_strategies import batch_of, filtered_batches, schema_of
from tests.every_run import examples

F = LeafFunction


# ---- against plain Python -------------------------------------------------------------------------------------------


def _compare(function: LeafFunction, value: Any, literals: list[Any]) -> bool:
    match function:
        case F.EQUAL:
            return value == literals[0]
        case F.NOT_EQUAL:
            return value != literals[0]
        case F.LESS_THAN:
            return value < literals[0]
        case F.LESS_OR_EQUAL:
            return value <= literals[0]
        case F.GREATER_THAN:
            return value > literals[0]
        case F.GREATER_OR_EQUAL:
            return value >= literals[0]
        case F.STARTS_WITH:
            return value.startswith(literals[0])
        case F.CONTAINS:
            return literals[0] in value
        case F.ENDS_WITH:
            return value.endswith(literals[0])
        case F.IN:
            return value in literals
        case _:
            return value not in literals


def _holds(predicate: Predicate, schema: Schema, row: list[Any]) -> bool:
    """SQL's meaning of a predicate for one row, by Python's own comparisons."""
    if isinstance(predicate, Compound):
        results = [_holds(child, schema, row) for child in predicate.children]
        return all(results) if predicate.function is CompoundFunction.AND else any(results)
    assert isinstance(predicate, Leaf)
    position = schema.index(predicate.column)
    value, t = row[position], schema.types[position]
    if predicate.function is F.IS_NULL:
        return value is None
    if value is None:
        return False
    if predicate.function is F.IS_NOT_NULL:
        return True
    literals = [_literal(literal, t) for literal in predicate.literals]
    if is_floating(t):
        return _compare(predicate.function, sort_key(value), [sort_key(literal) for literal in literals])
    return _compare(predicate.function, value, literals)


def _literal(literal: Any, t: DataType) -> Any:
    return literal if isinstance(literal, float | int) else exact(literal, t)


@settings(max_examples=examples(250))
@given(case=filtered_batches())
def test_masks_are_what_sql_says_of_each_row(case):
    schema, rows, predicate = case
    batch = batch_of(schema, rows)
    expected = [_holds(predicate, schema, row) for row in rows]
    bound = bind(predicate, schema)
    assert mask(bound, batch).to_pylist() == expected
    users = cast_batch(batch, user_schema(schema.columns))
    assert mask(bound, users).to_pylist() == expected
    assert str(filter_rows(batch, bound)) == str(batch.filter(pa.array(expected, pa.bool_())))
    assert mask(bind(normalize(predicate, schema), schema), batch).to_pylist() == expected


def test_masks_of_tables_are_chunked_like_them():
    schema = schema_of(types.int_())
    table = pa.table({"c0": pa.chunked_array([[1, None], [3]], pa.int32())})
    bound = bind(col("c0") > 1, schema)
    assert mask(bound, table).to_pylist() == [False, False, True]
    assert filter_rows(table, bound).to_pylist() == [{"c0": 3}]


# ---- floating points ------------------------------------------------------------------------------------------------

DOUBLES = schema_of(types.double())
VALUES = [[1.0], [math.nan], [-0.0], [None], [math.inf]]


@pytest.mark.parametrize(
    ("predicate", "matching"),
    [
        (col("c0") == math.nan, [1]), (col("c0") != math.nan, [0, 2, 4]), (col("c0") > math.inf, [1]),
        (col("c0") >= 1.0, [0, 1, 4]), (col("c0") < math.nan, [0, 2, 4]), (col("c0") <= math.nan, [0, 1, 2, 4]),
        (col("c0") > math.nan, []), (col("c0") >= math.nan, [1]), (col("c0") == 0.0, [2]), (col("c0") < 0.0, []),
        (col("c0").is_in([0.0, math.nan]), [1, 2]), (col("c0").not_in([0.0, math.nan]), [0, 4]),
    ],
)  # fmt: skip
def test_nan_is_greatest_and_equals_itself_and_zeros_are_one(predicate, matching):
    assert [i for i, m in enumerate(mask(bind(predicate, DOUBLES), batch_of(DOUBLES, VALUES)).to_pylist()) if m] == (
        matching
    )


def test_the_leaves_of_a_filter_are_its_conditions_however_they_are_joined() -> None:
    joined = (col("i") > 1) & ((col("s") == "x") | (col("i") != 5))
    bound = bind(joined, WIDE)
    assert columns_of(bound) == {"i", "s"}
    assert [leaf.column.name for leaf in leaves(bound)] == ["i", "s", "i"]
    (leaf,) = leaves(bind(col("i") > 1, WIDE))
    assert leaf.literals == (1,)


# ---- binding --------------------------------------------------------------------------------------------------------

WIDE = Schema.of(
    [
        Column("tiny", types.tinyint()), Column("i", types.int_()), Column("f", types.float_()),
        Column("s", types.string()), Column("dec", types.decimal(10, 2)), Column("d", types.date()),
        Column("t", types.time(3)), Column("ts", types.timestamp(3)), Column("tz", types.timestamp_ltz(6)),
        Column("ns", types.timestamp(9)), Column("flag", types.boolean()), Column("b", types.binary(2)),
        Column("a", types.array(types.int_())),
    ]
)  # fmt: skip


@pytest.mark.parametrize(
    ("predicate", "function", "literals"),
    [
        (col("i") < 3.5, F.LESS_OR_EQUAL, (3,)), (col("i") <= 3.5, F.LESS_OR_EQUAL, (3,)),
        (col("i") > 3.5, F.GREATER_THAN, (3,)), (col("i") >= 3.5, F.GREATER_THAN, (3,)),
        (col("i") == 3.5, F.IN, ()), (col("i") != 3.5, F.IS_NOT_NULL, ()), (col("i") == 3.0, F.EQUAL, (3,)),
        (col("i") > -3.5, F.GREATER_THAN, (-4,)), (col("i").is_in([1, 2.5, None]), F.IN, (1,)),
        (col("tiny") < 300, F.IS_NOT_NULL, ()), (col("tiny") > 300, F.IN, ()), (col("tiny") == 300, F.IN, ()),
        (col("tiny") != 300, F.IS_NOT_NULL, ()), (col("tiny") > -300, F.IS_NOT_NULL, ()),
        (col("tiny") <= -300, F.IN, ()), (col("tiny").not_in([300, 1]), F.NOT_IN, (1,)),
        (col("f") == 0.1, F.IN, ()), (col("f") == 0.5, F.EQUAL, (0.5,)),
        (col("f") > 1e300, F.GREATER_THAN, (float(np.finfo(np.float32).max),)),
        (col("dec") > Decimal("1.005"), F.GREATER_THAN, (Decimal("1.00"),)),
        (col("dec") == Decimal("1.5"), F.EQUAL, (Decimal("1.50"),)), (col("dec") < 10**40, F.IS_NOT_NULL, ()),
        (col("d") == dt.date(1970, 1, 3), F.EQUAL, (2,)), (col("d") == 2, F.EQUAL, (2,)),
        (col("d") == np.datetime64("1970-01-03"), F.EQUAL, (2,)),
        (col("f") > 10**400, F.GREATER_THAN, (float(np.finfo(np.float32).max),)),
        (col("f") < -(10**400), F.LESS_OR_EQUAL, (-math.inf,)),
        (col("t") < dt.time(0, 0, 1, 500), F.LESS_OR_EQUAL, (1000,)),
        (col("ts") == dt.datetime(1970, 1, 1, 0, 0, 1), F.EQUAL, (1000,)),
        (col("ts") >= dt.datetime(1970, 1, 1, 0, 0, 1, 500), F.GREATER_THAN, (1000,)),
        (col("ts") == np.datetime64("1970-01-01T00:00:01"), F.EQUAL, (1000,)),
        (col("tz") == dt.datetime(1970, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), F.EQUAL, (0,)),
        (col("tz") == pa.scalar(5, pa.timestamp("us", "Asia/Tokyo")), F.EQUAL, (5,)),
        (col("ns") > pa.scalar(7, pa.timestamp("ns")), F.GREATER_THAN, (7,)),
        (col("ns") > np.datetime64(7, "ns"), F.GREATER_THAN, (7,)),
        (col("i") == np.int16(4), F.EQUAL, (4,)), (col("i") == pa.scalar(4), F.EQUAL, (4,)),
        (col("i") == None, F.IN, ()), (col("i").not_in([1, None]), F.IN, ()),  # noqa: E711
        (col("i") == pa.scalar(None, pa.int32()), F.IN, ()), (col("flag") == np.bool_(True), F.EQUAL, (True,)),
        (col("b") == b"abc", F.EQUAL, (b"abc",)), (col("a").is_null(), F.IS_NULL, ()),
    ],
)  # fmt: skip
def test_literals_become_values_of_their_column(predicate, function, literals):
    bound = bind(predicate, WIDE)
    assert isinstance(bound, BoundLeaf)
    assert (bound.function, bound.literals) == (function, literals)


@pytest.mark.parametrize(
    ("predicate", "match"),
    [
        (col("nope") == 1, "no column 'nope' to filter on; the columns are"),
        (col("i") == "x", "column 'i': 'x' .* type INT: give an int"), (col("i") == True, "give an int"),  # noqa: E712
        (col("i") == math.nan, "finite number"), (col("s") == 1, "type STRING: give a str"),
        (col("flag") == 1, "True or False"), (col("dec") == 0.1, r"type DECIMAL\(10, 2\): give a decimal"),
        (col("d") == dt.datetime(2020, 1, 1), "datetime.date"),
        (col("d") == np.datetime64("2020-01-01", "s"), "datetime.date"),
        (col("f") == True, "type FLOAT: give a number"), (col("f") == "x", "give a number"),  # noqa: E712
        (col("f") == [1], "give a number"), (col("dec") == True, "give a decimal"),  # noqa: E712
        (col("d") == True, "give a datetime.date"),  # noqa: E712
        (col("t") == dt.time(1, tzinfo=dt.UTC), "datetime.time"),
        (col("ts") == dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "without a time zone"),
        (col("tz") == dt.datetime(2020, 1, 1), "with a time zone"), (col("ts") == 5, "datetime.datetime"),
        (col("ts") == pa.scalar(5, pa.timestamp("us", "UTC")), "without a time zone"),
        (col("a") == [1], "ARRAY column cannot be compared"), (col("i").starts_with("x"), "needs a text column"),
        (Leaf(F.EQUAL, "i", (1, 2)), "takes 1 value, got 2"), (Leaf(F.IS_NULL, "i", (1,)), "takes 0 values, got 1"),
        (Compound(CompoundFunction.AND, ()), "without any operand"), ("i > 3", "is not a filter"),
        (col("b") == "ab", "give bytes"),
    ],
)  # fmt: skip
def test_filters_that_cannot_be_are_refused_with_column_and_literal_named(predicate, match):
    with pytest.raises(InvalidRequest, match=match):
        bind(predicate, WIDE)


def test_normalized_filters_hold_python_values():
    predicate = (
        (col("d") == 2) & (col("dec") > Decimal("1.005")) & (col("tz") <= pa.scalar(1, pa.timestamp("us", "UTC")))
    )
    normal = normalize(predicate, WIDE)
    assert isinstance(normal, Compound)
    assert normal.children == (
        Leaf(F.EQUAL, "d", (dt.date(1970, 1, 3),)),
        Leaf(F.GREATER_THAN, "dec", (Decimal("1.00"),)),
        Leaf(F.LESS_OR_EQUAL, "tz", (dt.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC),)),
    )


@pytest.mark.parametrize(
    ("value", "t", "expected"),
    [
        (1_001, types.timestamp(9), np.datetime64(1_001, "ns")),
        (1_000, types.timestamp(9), dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
        (10**15, types.timestamp(0), np.datetime64(10**15, "s")),
        (-(10**12), types.timestamp_ltz(0), np.datetime64(-(10**12), "s")),
        (2**31 - 1, types.date(), pa.scalar(2**31 - 1).cast(pa.int32()).cast(pa.date32())),
        (-(2**31), types.date(), pa.scalar(-(2**31)).cast(pa.int32()).cast(pa.date32())),
        (1, types.time(9), pa.scalar(1).cast(pa.time64("ns"))),
        (5, types.time(0), dt.time(0, 0, 5)),
        (0, types.time(3), dt.time(0)),
        (86_399_999, types.time(3), dt.time(23, 59, 59, 999_000)),
        (86_400_000, types.time(3), pa.scalar(86_400_000).cast(pa.int32()).cast(pa.time32("ms"))),
        (None, types.date(), None),
    ],
)
def test_values_beyond_the_standard_library_come_as_numpy_or_arrow_and_go_back(value, t, expected):
    shown = to_python(value, t)
    assert shown == expected
    if value is not None:
        assert place(shown, t) == (value, True)


def test_data_without_the_column_is_refused():
    with pytest.raises(InvalidRequest, match="the data has no column 'c0'"):
        mask(bind(col("c0") == 1, schema_of(types.int_())), pa.record_batch({"x": [1]}))


def test_thousands_of_operands_are_no_thousands_of_levels():
    schema = schema_of(types.int_())
    predicate = functools.reduce(operator.or_, [col("c0") == i for i in range(3000)])
    bound = bind(predicate, schema)
    assert mask(bound, batch_of(schema, [[2999], [3000]])).to_pylist() == [True, False]
