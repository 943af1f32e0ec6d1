"""Which filters Spark's own Parquet reader is given."""

from __future__ import annotations

import pytest

from forebay.metadata import types
from forebay.metadata.table import Column
from forebay.spark.filters import Call, Expression, Literal, Literals, Reference
from forebay.spark.native_filters import may_skip_by

COLUMNS = [
    Column("i", types.int_()),
    Column("f", types.float_()),
    Column("d", types.double()),
    Column("ms", types.timestamp(3)),
    Column("us", types.timestamp_ltz(6)),
]
INT, F, D, MS, US = (Reference((column.name,)) for column in COLUMNS)


def double(text: str) -> Literal:
    return Literal(text, '"double"')


def moment(micros: int) -> Literal:
    return Literal(str(micros), '"timestamp_ntz"')


ONE = Literal("1", '"integer"')


@pytest.mark.parametrize(
    "filter_",
    [
        Call("=", (INT, ONE)),
        Call("NOT", (Call("=", (INT, ONE)),)),
        Call("IS_NOT_NULL", (D,)),
        Call("NOT", (Call("IS_NULL", (F,)),)),
        Call("=", (D, double("1.5"))),
        Call("<=>", (F, Literal("-1.5", '"float"'))),
        Call("<", (D, double("Infinity"))),
        Call("<=", (D, double("-1.0E300"))),
        Call("IN", (D, Literals("1.5, -2.0", '"double"'))),
        Call("<", (MS, moment(123_000))),
        Call("<", (US, Literal("123456", '"timestamp"'))),
        Call("AND", (Call("=", (INT, ONE)), Call("<", (D, double("1.0"))))),
    ],
)
def test_what_parquet_understands_as_spark_does_is_handed_over(filter_: Expression) -> None:
    assert may_skip_by(filter_, COLUMNS)


@pytest.mark.parametrize(
    "filter_",
    [
        *(Call(sign, (D, double(zero))) for sign in ("=", "<=>", "<", "<=") for zero in ("0.0", "-0.0", "NaN")),
        *(Call(sign, (F, Literal("1.5", '"float"'))) for sign in (">", ">=", "<>")),
        Call("NOT", (Call("=", (D, double("1.5"))),)),
        Call("NOT", (Call("IN", (D, Literals("1.5", '"double"'))),)),
        Call("IN", (D, Literals("1.5, 0.0", '"double"'))),
        Call("IN", (D, Literals("1.5, null", '"double"'))),
        Call("<", (double("0.5"), D)),
        Call("OR", (Call("=", (INT, ONE)), Call(">", (D, double("1.0"))))),
        Call("NOT", (Call("AND", (Call("=", (INT, ONE)), Call("<", (D, double("1.0"))))),)),
        Call("<", (MS, moment(123_456))),
        Call("NOT", (Call("=", (MS, moment(-1))),)),
        Call("=", (Reference(("row", "x")), ONE)),
        Call("RLIKE", (Reference(("missing",)), ONE)),
    ],
)
def test_what_parquet_understands_otherwise_is_kept_from_it(filter_: Expression) -> None:
    assert not may_skip_by(filter_, COLUMNS)
