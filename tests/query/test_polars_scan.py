"""A lazy frame over a table: what Polars pushes into it changes no result."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from polars import col

import forebay
import forebay.polars
from forebay.base.errors import InvalidRequest, NotFound, UnsupportedOperation
from forebay.inprocess import EmbeddedConnection
from forebay.metadata.predicate import predicate_text
from forebay.polars import implied_by

COLUMNS = {
    "id": "BIGINT", "s": "STRING", "d": "DATE", "t": "TIMESTAMP(9)", "c": "DECIMAL(10, 2)", "f": "DOUBLE",
    "b": "BOOLEAN", "z": "TIMESTAMP_LTZ(3)", "bin": "BINARY(1)", "tm": "TIME(3)", "arr": "ARRAY<INT>",
}  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {"id": 1, "s": "x", "d": dt.date(2026, 1, 1), "t": dt.datetime(2026, 1, 1), "c": Decimal("1.50"), "f": 1.0,
     "b": True, "z": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "bin": b"a", "tm": dt.time(1, 2), "arr": [1]},
    {**dict.fromkeys(COLUMNS), "id": 2, "s": "y", "f": float("nan"), "b": False, "bin": b"b"},
    {**dict.fromkeys(COLUMNS), "id": 3},
]  # fmt: skip


@pytest.fixture(scope="module")
def conn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedConnection]:
    with forebay.embedded(tmp_path_factory.mktemp("polars")) as opened:
        opened.create_table("fluss.t", COLUMNS, primary_key="id", buckets=2).upsert(ROWS)
        opened.create_table("fluss.log", {"id": "BIGINT"}, buckets=1).append([{"id": i} for i in range(100)])
        yield opened


@pytest.mark.parametrize(
    ("condition", "pushed"),
    [
        (col("id") > 1, "id > 1"),
        ((col("id") > 1) & (col("s") == "y"), "(id > 1 AND s = 'y')"),
        (col("id").is_in([1, 2, None]), "id IN 1, 2"),
        (col("s").is_null() | (col("id") > 2), "(s IS NULL OR id > 2)"),
        (~(col("id") == 1), "id != 1"),
        (col("s").str.starts_with("x"), "s STARTS WITH 'x'"),
        (col("s").str.contains("x", literal=True), "s CONTAINS 'x'"),
        (col("d") >= dt.date(2026, 1, 1), "d >= datetime.date(2026, 1, 1)"),
        (col("t") < dt.datetime(2027, 1, 1), "t < "),
        (col("c") > Decimal("1.1"), "c > Decimal('1.1')"),
        (col("f") > 1, "f > 1"),
        (col("b"), "b = True"),
        (~col("b"), "b != True"),
        (col("id").is_between(1, 2, closed="right"), "(id > 1 AND id <= 2)"),
        (col("z") >= dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "z >= "),
        (col("bin") == b"a", "bin = b'a'"),
        (col("tm") > dt.time(1), "tm > "),
        ((col("id") % 2 == 0) & (col("id") > 0), "id > 0"),
        ((col("id") % 2 == 0) | (col("id") > 0), None),
        (col("f") == float("nan"), None),
        (col("f").is_not_nan(), None),
        (col("id").eq_missing(1), None),
        (col("id").map_batches(lambda ids: ids == 2, return_dtype=pl.Boolean), None),
        (col("arr").list.len() > 0, None),
    ],
    ids=str,
)
def test_a_filter_gives_what_polars_alone_gives(
    conn: EmbeddedConnection, condition: pl.Expr, pushed: str | None
) -> None:
    predicate = implied_by(condition)
    if pushed is None:
        assert predicate is None
    elif pl.__version__ >= "2":  # others may write expressions in another way, and filter by these themselves
        assert predicate is not None
        assert predicate_text(predicate).startswith(pushed)
    frame = forebay.polars.scan(conn.table("fluss.t"))
    expected = frame.collect().filter(condition).sort("id")
    assert frame.filter(condition).sort("id").collect().equals(expected, null_equal=True)


def test_limits_count_rows_before_a_filter_or_after_it_as_they_are_written(conn: EmbeddedConnection) -> None:
    frame = forebay.polars.scan("fluss.log", conn)
    large = col("id") > 50
    assert frame.head(1).filter(large).collect().height == 0
    assert frame.head(60).filter(large).head(2).collect()["id"].to_list() == [51, 52]
    assert frame.filter(large).head(3).collect()["id"].to_list() == [51, 52, 53]
    assert frame.slice(50, 5).filter(large).collect()["id"].to_list() == [51, 52, 53, 54]
    assert frame.select(pl.len()).collect().item() == 100
    assert frame.collect(engine="streaming").height == 100


def test_a_frame_is_named_and_chosen_in_many_ways(conn: EmbeddedConnection, tmp_path: Any) -> None:
    catalog = forebay.paimon.Catalog.open(str(tmp_path))
    catalog.create_database("db")
    lake = catalog.create_table("db.t", {"id": "BIGINT", "v": "STRING"}, primary_key="id")
    empty = forebay.polars.scan(lake)
    lake.upsert([{"id": 1, "v": "a"}])
    lake.upsert([{"id": 1, "v": "b"}])
    assert empty.collect().height == 0
    assert forebay.polars.scan("lake.db.t", conn, str(tmp_path)).collect()["v"].to_list() == ["b"]
    assert forebay.polars.scan("db.t", warehouse=str(tmp_path), as_of=1).collect()["v"].to_list() == ["a"]
    assert (
        forebay.polars.scan("fluss.log", conn.bootstrap_servers, columns=["id"], filter="id = 7").collect().height == 1
    )
    assert forebay.polars.scan(conn.table("fluss.log").scan(filter="id < 7")).collect().height == 7


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (lambda conn: {"table": 5}, InvalidRequest, "5 is not a table"),
        (lambda conn: {"table": "fluss.nothing", "bootstrap_servers": conn}, NotFound, r"no table fluss\.nothing"),
        (lambda conn: {"table": "nothing", "bootstrap_servers": conn}, InvalidRequest, "names no table"),
        (lambda conn: {"table": conn.table("fluss.t"), "filter": "nothing > 1"}, InvalidRequest, "nothing"),
        (lambda conn: {"table": conn.table("fluss.t").scan(), "as_of": 1}, InvalidRequest, "already has a state"),
    ],
)
def test_what_is_no_table_is_said(conn: EmbeddedConnection, arguments: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        forebay.polars.scan(**arguments(conn))


def test_a_missing_polars_is_named(conn: EmbeddedConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "polars.io.plugins", None)
    with pytest.raises(UnsupportedOperation, match=r"pip install 'forebay\[polars\]'"):
        forebay.polars.scan(conn.table("fluss.t"))
