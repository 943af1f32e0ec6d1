"""Filters as SQL text and as pyarrow expressions mean what the same filter built with `col` means."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import forebay.paimon
from forebay import col
from forebay.api.filters import SQL_LENGTH_MAX, as_predicate, negated
from forebay.base.errors import InvalidRequest
from forebay.codec.arrow.arrow_types import from_arrow_schema
from forebay.codec.filters import bind, filter_rows
from forebay.metadata.predicate import Predicate
from forebay.testing.server import EmbeddedServer

SCHEMA = pa.schema(
    [
        ("n", pa.int64()), ("s", pa.string()), ("d", pa.date32()), ("t", pa.timestamp("us")),
        ("z", pa.timestamp("us", "UTC")), ("f", pa.float64()), ("b", pa.bool_()), ("c", pa.decimal128(10, 2)),
        ("x", pa.binary()), ("tm", pa.time64("us")), ("odd name", pa.int32()),
    ]
)  # fmt: skip
DAY, MOMENT = dt.date(2026, 1, 31), dt.datetime(2026, 1, 31, 12, 30)
UTC = MOMENT.replace(tzinfo=dt.UTC)
f = pc.field


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("n > 5", col("n") > 5),
        ("5 < n", col("n") > 5),
        ("-5 >= n", col("n") <= -5),
        ("n == 1 and s <> 'x'", (col("n") == 1) & (col("s") != "x")),
        ("(n = 1) OR NOT (s = 'x' AND n < 2)", (col("n") == 1) | ((col("s") != "x") | (col("n") >= 2))),
        ("n IN (1, 2)", col("n").is_in([1, 2])),
        ("s NOT IN ('a')", col("s").not_in(["a"])),
        ("n BETWEEN 1 AND 2", (col("n") >= 1) & (col("n") <= 2)),
        ("s IS NULL", col("s").is_null()),
        ("s IS NOT NULL", col("s").is_not_null()),
        ("s <=> NULL", col("s").is_null()),
        ("s LIKE 'a%'", col("s").starts_with("a")),
        ("s LIKE '%a'", col("s").ends_with("a")),
        ("s LIKE '%a%'", col("s").contains("a")),
        ("s LIKE 'a'", col("s") == "a"),
        ("s LIKE ''", col("s") == ""),
        ("b", col("b") == True),  # noqa: E712 - a column, not a condition
        ("NOT b", col("b") != True),  # noqa: E712
        ("b = FALSE", col("b") == False),  # noqa: E712
        ("d >= DATE '2026-01-31'", col("d") >= DAY),
        ("d >= '2026-01-31'", col("d") >= DAY),
        ("CAST('2026-01-31' AS DATE) = d", col("d") == DAY),
        ("t < TIMESTAMP '2026-01-31 12:30:00'", col("t") < MOMENT),
        ("t < '2026-01-31T12:30:00'", col("t") < MOMENT),
        ("z < TIMESTAMP '2026-01-31 12:30:00'", col("z") < UTC),
        ("z < '2026-01-31 13:30:00+01:00'", col("z") < UTC),
        ("tm > TIME '10:00:00'", col("tm") > dt.time(10)),
        ("f > 1.5", col("f") > 1.5),
        ("f > 1", col("f") > 1),
        ("c = 1.10", col("c") == Decimal("1.10")),
        ("c = DECIMAL '1.10'", col("c") == Decimal("1.10")),
        ("x = X'00ff'", col("x") == b"\x00\xff"),
        ("`odd name` = 1", col("odd name") == 1),
        ("n = NULL", col("n") == None),  # noqa: E711 - a column, not a value
    ],
)  # fmt: skip
def test_sql_means_what_the_same_filter_in_python_means(text: str, meant: Predicate) -> None:
    assert as_predicate(text, SCHEMA) == meant


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not one condition"),
        ("n = 1; n = 2", "is not one condition|cannot be part of it"),
        ("n >", "is not SQL: a value is missing, at '>' in column 3$"),
        ("n BETWEN 1 AND 2", "is not SQL: .*, at '1' in column 10; 'BETWEN': did you mean 'BETWEEN'"),
        ("n = 1 ADN s = 'x'", "is not SQL: .*, at 's' in column 11; 'ADN': did you mean 'AND'"),
        ("n = 1; DROP TABLE t", "is not one condition|cannot be part of it"),
        ("n = f", "cannot be part of it"),
        ("n + 1 = 2", "cannot be part of it"),
        ("d >= 2026-01-31", "dates and times stand in single quotes"),
        ("upper(s) = 'X'", "cannot be part of it"),
        ("n IN (SELECT 1)", "cannot be part of it"),
        ("TRUE", "cannot be part of it"),
        ("s LIKE 'a_b'", "LIKE takes"),
        ("n BETWEEN SYMMETRIC 2 AND 1", "cannot be part of it"),
        ("s ILIKE 'a'", "cannot be part of it"),
        ("s LIKE ANY ('a')", "cannot be part of it"),
        ("x = X'0'", "column 'x' is BYTES"),
        ("n = 1 IS NULL", "cannot be part of it"),
        ("s LIKE n", "cannot be part of it"),
        ("s NOT LIKE 'a%'", "NOT STARTS_WITH on column 's'"),
        ("d = 'yesterday'", "column 'd' is DATE, and 'yesterday' is not"),
        ("n = 'one'", "column 'n' is BIGINT, and"),
        ("n = 1 OR " * (SQL_LENGTH_MAX // 9 + 1) + "n = 1", "characters is too long"),
        ("NOT " * 10_000 + "b", "nested too deeply"),
    ],
    ids=lambda value: value[:20],
)  # fmt: skip
def test_sql_that_is_no_filter_is_refused_with_the_part_at_fault(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        as_predicate(text, SCHEMA)


@pytest.mark.parametrize(
    ("expression", "meant"),
    [
        (f("n") > 5, col("n") > 5),
        (pc.scalar(5) < f("n"), col("n") > 5),
        ((f("n") >= 1) & (f("s") == "x") | ~(f("n") < 0),
         ((col("n") >= 1) & (col("s") == "x")) | (col("n") >= 0)),
        (f("n").isin([1, 2]), col("n").is_in([1, 2])),
        (f("n").isin([1, None]), col("n").is_in([1]) | col("n").is_null()),
        (f("s").is_null(), col("s").is_null()),
        (f("s").is_valid(), col("s").is_not_null()),
        (~f("s").is_null(), col("s").is_not_null()),
        (f("d") >= DAY, col("d") >= DAY),
        (f("t") < MOMENT, col("t") < MOMENT),
        (f("z") < UTC, col("z") < UTC),
        (f("c") == Decimal("1.10"), col("c") == Decimal("1.10")),
        (f("b"), col("b") == True),  # noqa: E712 - a column, not a condition
        (~f("b"), col("b") != True),  # noqa: E712
        (f("s") == "it's\n-- schema metadata --\nend: 'x'", col("s") == "it's\n-- schema metadata --\nend: 'x'"),
        (pc.starts_with(f("s"), "a"), col("s").starts_with("a")),
        (pc.ends_with(f("s"), "a"), col("s").ends_with("a")),
        (pc.match_substring(f("s"), "a"), col("s").contains("a")),
        (f("odd name") != 1, col("odd name") != 1),
        (f("x") == b"\x00", col("x") == b"\x00"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_pyarrow_expressions_mean_the_same_filter(expression: pc.Expression, meant: Predicate) -> None:
    assert as_predicate(expression, SCHEMA) == meant


@pytest.mark.parametrize(
    "expression",
    [
        f("n") > f("f"),
        f("n") + 1 == 2,
        f("n").cast(pa.string()) == "5",
        pc.starts_with(f("s"), "a", ignore_case=True),
        f("f").is_null(nan_is_null=True),
        pc.scalar(True),
        pc.scalar(True) & (f("n") > 1),
        f("s", "inner") == 1,
        f("a\nb") == 1,
        ~pc.starts_with(f("s"), "a"),
    ],
    ids=str,
)
def test_pyarrow_expressions_that_cannot_be_pushed_down_are_refused(expression: pc.Expression) -> None:
    with pytest.raises(InvalidRequest, match="filter"):
        as_predicate(expression, SCHEMA)


@pytest.mark.parametrize("given", [5, ["n > 5"], lambda row: True, {"n": 5}, True], ids=lambda v: type(v).__name__)
def test_other_things_are_no_filters(given: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"is not a filter: write forebay\.col"):
        as_predicate(given, SCHEMA)


def test_none_and_predicates_stay_as_they_are() -> None:
    assert as_predicate(None, SCHEMA) is None
    filter_ = col("n") > 5
    assert as_predicate(filter_, SCHEMA) is filter_


# ---- judged by DuckDB -----------------------------------------------------------------------------------------------

ROWS = pa.table(
    {
        "n": pa.array([None, -1, 0, 1, 2, 3, 1], pa.int64()),
        "s": pa.array(["a", "ab", None, "b", "", "ba", "xax"]),
        "b": pa.array([True, False, None, True, False, None, True]),
    }
)
_LEAVES = st.one_of(
    st.tuples(st.sampled_from(["n = {}", "n <> {}", "n < {}", "{} <= n", "n > {}", "n >= {}"]), st.integers(-2, 4)).map(
        lambda pair: pair[0].format(pair[1])
    ),
    st.sampled_from(
        ["n IS NULL", "s IS NOT NULL", "b", "n IN (1, 3)", "n NOT IN (1)", "n BETWEEN 0 AND 2", "s = 'a'", "s > 'a'",
         "s <> ''", "b = FALSE", "n = NULL"]
    ),
)  # fmt: skip
_CONDITIONS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        inner.map("NOT ({})".format),
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
    ),
    max_leaves=6,
)


@given(_CONDITIONS)
def test_the_rows_are_those_that_duckdb_finds(condition: str) -> None:
    predicate = as_predicate(condition, ROWS.schema)
    assert predicate is not None
    found = filter_rows(ROWS, bind(predicate, from_arrow_schema(ROWS.schema)))
    rows = ROWS
    expected = duckdb.sql(f"SELECT * FROM rows WHERE {condition}").fetchall()
    assert sorted((tuple(row.values()) for row in found.to_pylist()), key=repr) == sorted(expected, key=repr)
    assert rows.num_rows == 7


def test_text_searches_have_no_opposite() -> None:
    with pytest.raises(InvalidRequest, match="NOT CONTAINS on column 's'"):
        negated(col("s").contains("x"))


# ---- times that are finer than their column -------------------------------------------------------------------------

_TIMES = ["2026-01-31 12:30:00.123", "2026-01-31 12:30:00.124", "1969-12-31 23:59:59.999"]
_FINER = ["2026-01-31 12:30:00.1235", "2026-01-31 12:30:00.123000001", "1969-12-31 23:59:59.9985", _TIMES[0]]
_OPERATORS = ["<", "<=", ">", ">=", "=", "!="]


def _as_scalar(text: str, zone: str | None) -> pa.Scalar:
    return pa.scalar(text).cast(pa.timestamp("ns")).cast(pa.timestamp("ns", zone))


def _filters(column: str, text: str, zone: str | None) -> Iterator[tuple[str, Any]]:
    """The same conditions as texts, in Python and as expressions of Arrow, each with its name."""
    value = _as_scalar(text, zone)
    values: list[Any] = [value]
    if value.value % 1000 == 0:
        values.append(value.cast(pa.timestamp("us", zone)).as_py())
    for operator in _OPERATORS:
        yield operator, f"{column} {operator} TIMESTAMP '{text}{'Z' if zone else ''}'"
        yield operator, f"{column} {operator} '{text}'"
        for each in values:
            for one in (col(column), f(column)):
                yield operator, {
                    "<": one < each, "<=": one <= each, ">": one > each, ">=": one >= each, "=": one == each,
                    "!=": one != each,
                }[operator]  # fmt: skip
    yield "=", f"{column} IN ('{text}')"
    yield "!=", f"{column} NOT IN ('{text}')"
    yield "!=", f"NOT {column} = '{text}'"
    yield "BETWEEN", f"{column} BETWEEN '{text}' AND '2030-01-01 00:00:00.0000001'"
    yield "=", col(column).is_in(values)


@pytest.fixture(scope="module")
def timed_tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    """A live and a lake table with times in milliseconds."""
    place = tmp_path_factory.mktemp("times")
    types = {"a": pa.timestamp("ms"), "b": pa.timestamp("ms", "UTC")}
    rows = pa.table({name: pa.array(_TIMES).cast(pa.timestamp("ms")).cast(t) for name, t in types.items()})
    catalog = forebay.paimon.Catalog.open(place / "lake")
    catalog.create_database("d")
    with EmbeddedServer(place / "data") as server, forebay.connect(server.bootstrap_servers) as connection:
        tables = [connection.create_table("fluss.t", rows.schema), catalog.create_table("d.t", rows.schema)]
        for table in tables:
            table.append(rows)
        yield tables


@pytest.mark.parametrize("column", ["a", "b"])
@pytest.mark.parametrize("text", _FINER)
def test_times_finer_than_their_column_are_compared_exactly(timed_tables: list[Any], column: str, text: str) -> None:
    zone = "UTC" if column == "b" else None
    value = _as_scalar(text, zone).value
    at = {each: _as_scalar(each, zone).value for each in _TIMES}
    holds: dict[str, Callable[[int], bool]] = {
        "<": lambda t: t < value, "<=": lambda t: t <= value, ">": lambda t: t > value, ">=": lambda t: t >= value,
        "=": lambda t: t == value, "!=": lambda t: t != value, "BETWEEN": lambda t: t >= value,
    }  # fmt: skip
    for table in timed_tables:
        for operator, condition in _filters(column, text, zone):
            found = table.scan(filter=condition).to_arrow()[column].cast(pa.timestamp("ns", zone)).cast(pa.int64())
            assert sorted(found.to_pylist()) == sorted(t for t in at.values() if holds[operator](t)), condition


def test_a_text_that_is_no_time_is_refused_by_its_column(timed_tables: list[Any]) -> None:
    for table in timed_tables:
        with pytest.raises(InvalidRequest, match=r"column 'a' is TIMESTAMP\(3\), and '2026-13-01' is not"):
            table.scan(filter="a < '2026-13-01'").to_arrow()
