"""The filters that Spark's own Parquet reader gets."""

from __future__ import annotations

import pytest

from forebay.metadata import types
from forebay.metadata.table import Column
from forebay.spark.filters import may_skip_by
from forebay.spark.jvm.expressions import Expression, Function, Literal, Literals, Reference

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
        Function("=", (INT, ONE)),
        Function("NOT", (Function("=", (INT, ONE)),)),
        Function("IS_NOT_NULL", (D,)),
        Function("NOT", (Function("IS_NULL", (F,)),)),
        Function("=", (D, double("1.5"))),
        Function("<=>", (F, Literal("-1.5", '"float"'))),
        Function("<", (D, double("Infinity"))),
        Function("<=", (D, double("-1.0E300"))),
        Function("IN", (D, Literals("1.5, -2.0", '"double"'))),
        Function("<", (MS, moment(123_000))),
        Function("<", (US, Literal("123456", '"timestamp"'))),
        Function("AND", (Function("=", (INT, ONE)), Function("<", (D, double("1.0"))))),
    ],
)
def test_what_parquet_understands_as_spark_does_is_handed_over(filter_: Expression) -> None:
    assert may_skip_by(filter_, COLUMNS)


@pytest.mark.parametrize(
    "filter_",
    [
        *(Function(sign, (D, double(zero))) for sign in ("=", "<=>", "<", "<=") for zero in ("0.0", "-0.0", "NaN")),
        *(Function(sign, (F, Literal("1.5", '"float"'))) for sign in (">", ">=", "<>")),
        Function("NOT", (Function("=", (D, double("1.5"))),)),
        Function("NOT", (Function("IN", (D, Literals("1.5", '"double"'))),)),
        Function("IN", (D, Literals("1.5, 0.0", '"double"'))),
        Function("IN", (D, Literals("1.5, null", '"double"'))),
        Function("<", (double("0.5"), D)),
        Function("OR", (Function("=", (INT, ONE)), Function(">", (D, double("1.0"))))),
        Function("NOT", (Function("AND", (Function("=", (INT, ONE)), Function("<", (D, double("1.0"))))),)),
        Function("<", (MS, moment(123_456))),
        Function("NOT", (Function("=", (MS, moment(-1))),)),
        Function("=", (Reference(("row", "x")), ONE)),
        Function("RLIKE", (Reference(("missing",)), ONE)),
    ],
)
def test_what_parquet_understands_otherwise_is_kept_from_it(filter_: Expression) -> None:
    assert not may_skip_by(filter_, COLUMNS)
