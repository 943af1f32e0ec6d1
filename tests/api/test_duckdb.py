"""DuckDB pushes columns and filters into scans; what a scan cannot filter by is filtered exactly all the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Self

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from forebay.api.duckdb import check_version
from forebay.api.filters import implied_by
from forebay.api.scan import RowReader, Scan, ScanRequest
from forebay.base.errors import UnsupportedOperation
from forebay.codec.arrow.arrow_types import from_arrow_schema
from forebay.codec.filters import bind, filter_rows
from forebay.metadata.predicate import col

NAN = float("nan")
ROWS = pa.table(
    {
        "id": pa.array(range(6), pa.int64()),
        "x": pa.array([0.5, NAN, 7.0, None, -0.0, math.inf]),
        "s": ["a", "b", None, "ab", "", "z"],
        "z": pa.array([0, 1, 2, 3, None, 5], pa.timestamp("us", "UTC")),
        "st": pa.array([{"k": i} for i in range(5)] + [None], pa.struct([("k", pa.int64())])),
    }
)


class _Reader(RowReader):
    def __init__(self, rows: pa.Table) -> None:
        super().__init__(rows.schema)
        self._rows = rows

    def _read(self) -> Iterator[tuple[None, pa.RecordBatch]]:
        for batch in self._rows.to_batches(max_chunksize=2):
            yield None, batch


class _Rows(Scan):
    """A pinned scan of rows in memory, which notes what it is asked for."""

    def __init__(self, request: ScanRequest, asked: list[ScanRequest]) -> None:
        super().__init__(request)
        self._asked = asked
        self._bound = None
        if request.predicate is not None:
            self._bound = bind(request.predicate, from_arrow_schema(ROWS.drop_columns(["st"]).schema).columns)

    @property
    def schema(self) -> pa.Schema:
        return ROWS.schema if self._request.columns is None else ROWS.select(list(self._request.columns)).schema

    def reader(self) -> RowReader:
        self._asked.append(self._request)
        rows = ROWS if self._bound is None else filter_rows(ROWS, self._bound)
        return _Reader(rows.select(self.schema.names))

    def pinned(self) -> Scan:
        return self

    def explain(self) -> str:
        return "rows in memory"

    def plan(self) -> Sequence[Any]:
        return [0]

    def read_split(self, split: Any) -> RowReader:
        return self.reader()

    def _with(self, request: ScanRequest) -> Self:
        return type(self)(request, self._asked)


@pytest.fixture
def asked() -> list[ScanRequest]:
    return []


@pytest.fixture
def rows(asked: list[ScanRequest]) -> Iterator[Any]:
    with duckdb.connect() as connection:
        yield _Rows(ScanRequest(), asked).to_duckdb(connection)


def test_columns_and_filters_of_a_query_are_those_that_are_read(rows: Any, asked: list[ScanRequest]) -> None:
    assert rows.filter("id >= 4").select("s").fetchall() == [("",), ("z",)]
    assert asked[0].predicate == (col("id") >= 4)
    assert set(asked[0].columns or ()) <= {"id", "s"}
    assert rows.filter("id IN (1, 3)").select("id").fetchall() == [(1,), (3,)]
    assert asked[1].predicate == col("id").is_in([1, 3])


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("x > 1", [1, 2, 5]),
        ("x = 0", [4]),
        ("x = 'nan'::DOUBLE", [1]),
        ("x <> 7", [0, 1, 4, 5]),
        ("x < 1 OR x IS NULL", [0, 3, 4]),
        ("NOT (x <= 7)", [1, 5]),
        ("s LIKE 'a%'", [0, 3]),
        ("s IS NULL OR s = ''", [2, 4]),
        ("NOT (s IN ('a', 'b'))", [3, 4, 5]),
        ("st.k > 2", [3, 4]),
        ("st.k > 2 AND id < 4", [3]),
        ("id % 2 = 0 AND id > 1", [2, 4]),
        ("z >= '1970-01-01 00:00:00+00'::TIMESTAMPTZ AND z IS NOT NULL", [0, 1, 2, 3, 5]),
        ("id BETWEEN 2 AND 3 OR s = 'z'", [2, 3, 5]),
    ],
)
def test_each_filter_leaves_the_rows_that_it_means(rows: Any, condition: str, ids: list[int]) -> None:
    assert sorted(row[0] for row in rows.filter(condition).select("id").fetchall()) == ids


def test_an_order_with_a_limit_and_a_join_with_itself(rows: Any) -> None:
    assert rows.order("id DESC").limit(2).select("id").fetchall() == [(5,), (4,)]
    left, right = rows.set_alias("a"), rows.filter("id > 3").set_alias("b")
    assert left.join(right, "a.id = b.id").count("*").fetchall() == [(2,)]


def test_what_is_left_of_an_expression_is_filtered_afterwards() -> None:
    f = pc.field
    assert implied_by((f("a") == 1) & (f(("st", "k")) > 1)) == (col("a") == 1, False)
    assert implied_by((f("a") == 1) | (f(("st", "k")) > 1)) == (None, False)
    assert implied_by(pc.is_nan(f("a"))) == (None, False)
    unless = pc.if_else(f("a").is_valid(), f("a").isin([1]), pa.scalar(None, pa.bool_()))
    assert implied_by(unless) == (col("a").is_in([1]), True)
    assert implied_by(pc.if_else(f("b").is_valid(), f("a").isin([1]), pa.scalar(None, pa.bool_()))) == (None, False)
    nanosecond = pa.scalar(5, pa.timestamp("ns"))
    found, is_all = implied_by(f("t") == nanosecond)
    assert is_all
    assert found is not None
    assert found.literals == (nanosecond,)  # type: ignore[attr-defined]


def test_a_limited_scan_is_read_once(asked: list[ScanRequest]) -> None:
    limited = Scan.pinned(_Rows(ScanRequest(), asked))
    with duckdb.connect() as connection:
        relation = limited.to_duckdb(connection)
        assert relation.filter("id > 3").select("s").fetchall() == [("",), ("z",)]
        assert relation.filter("st.k = 1").select("id").fetchall() == [(1,)]
        assert relation.filter("x > 1").select("id").fetchall() == [(1,), (2,), (5,)]
    assert len(asked) == 1


def test_nanoseconds_with_a_zone_need_a_duckdb_that_has_them() -> None:
    class Old:
        __version__ = "1.5.4"

    nested = pa.schema([("a", pa.list_(pa.timestamp("ns", "UTC")))])
    with pytest.raises(UnsupportedOperation, match=r"column 'a' .* DuckDB 1\.5\.4 would drop the nanoseconds"):
        check_version(Old, nested)
    check_version(Old, pa.schema([("a", pa.timestamp("us", "UTC")), ("b", pa.timestamp("ns"))]))
