"""A scan is lazy, can be read repeatedly, and can be passed to other libraries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from forebay.api import scan as scans
from forebay.api.scan import RowReader, Scan, ScanRequest
from forebay.base.errors import InvalidRequest, UnsupportedOperation

ROWS = pa.table({"a": list(range(6)), "b": list("uvwxyz")})


class Readings:
    """How many readers were opened, and how many are open."""

    def __init__(self) -> None:
        self.begun = self.open = 0


class _Reader(RowReader):
    def __init__(self, rows: pa.Table, limit: int | None, readings: Readings) -> None:
        super().__init__(rows.schema, limit)
        self._rows, self._readings = rows, readings

    def _read(self) -> Iterator[tuple[None, pa.RecordBatch]]:
        self._readings.begun += 1
        self._readings.open += 1
        try:
            for batch in self._rows.to_batches(max_chunksize=2):
                yield None, batch
        finally:
            self._readings.open -= 1


class _Rows(Scan):
    """A scan of rows in memory."""

    def __init__(self, request: ScanRequest, readings: Readings) -> None:
        super().__init__(request)
        self._readings = readings

    @property
    def schema(self) -> pa.Schema:
        return self._chosen().schema

    def _chosen(self) -> pa.Table:
        return ROWS if self._request.columns is None else ROWS.select(list(self._request.columns))

    def reader(self) -> RowReader:
        return _Reader(self._chosen(), self._request.limit, self._readings)

    def explain(self) -> str:
        return "rows in memory"

    def plan(self) -> Sequence[Any]:
        return [0]

    def read_split(self, split: Any) -> RowReader:
        return self.reader()

    def _with(self, request: ScanRequest) -> Self:
        return type(self)(request, self._readings)


@pytest.fixture
def readings() -> Readings:
    return Readings()


def scan(readings: Readings, **request: Any) -> Scan:
    return _Rows(ScanRequest(**request), readings)


def test_nothing_is_read_before_it_is_requested_and_it_may_be_read_again(readings: Readings) -> None:
    rows = scan(readings, columns=["a"])
    assert (rows.schema.names, repr(rows), readings.begun) == (["a"], "<forebay._Rows, columns a>", 0)
    assert "a</td>" in rows._repr_html_()
    assert readings.begun == 0
    assert rows.to_arrow() == rows.to_arrow() == ROWS.select(["a"])
    assert [batch.num_rows for batch in rows] == [2, 2, 2]
    assert (readings.begun, readings.open) == (3, 0)


def test_a_reading_that_is_broken_off_is_closed(readings: Readings) -> None:
    for _ in scan(readings):
        break
    assert (readings.begun, readings.open) == (1, 0)
    with scan(readings).reader() as reader:
        next(iter(reader))
        assert readings.open == 1
    assert readings.open == 0


def test_a_reader_reads_once(readings: Readings) -> None:
    reader = scan(readings, limit=3).reader()
    assert "not begun" in repr(reader)
    batches = iter(reader)
    next(batches)
    assert "under way" in repr(reader)
    assert pa.Table.from_batches(batches).num_rows == 1
    assert "read>" in repr(reader)
    with pytest.raises(InvalidRequest, match="a reader reads once"):
        reader.read_all()


def test_counts_and_heads_read_no_more_than_they_need(readings: Readings) -> None:
    rows = scan(readings)
    assert (rows.count(), scan(readings, limit=4).count()) == (6, 4)
    assert rows.head(2)["a"].to_pylist() == [0, 1]
    assert rows.head().num_rows == 6
    assert scan(readings, limit=1).head(5).num_rows == 1
    assert rows.head(0).num_rows == 0
    assert rows.head(np.int64(3)).num_rows == 3
    assert readings.open == 0


@pytest.mark.parametrize("limit", [-1, 1.5, "3", True, [1]])
def test_limits_that_are_no_numbers_of_rows_are_refused(readings: Readings, limit: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"limit=.* is not a number of rows"):
        scan(readings, limit=limit)
    with pytest.raises(InvalidRequest, match=r"n=.* is not a number of rows"):
        scan(readings).head(limit)


def test_columns_are_a_list_of_names() -> None:
    assert ScanRequest(columns=["a", "b"]).columns == ("a", "b")
    assert replace(ScanRequest(columns=["a"]), columns=()).columns == ()
    with pytest.raises(InvalidRequest, match=r"columns is a list of names, got the text 'ab': write \['ab'\]"):
        ScanRequest(columns="ab")


def test_other_libraries_take_a_scan_as_it_is(readings: Readings) -> None:
    rows = scan(readings)
    assert pa.table(rows) == ROWS
    assert pa.RecordBatchReader.from_stream(rows).read_all() == ROWS
    assert pa.table(rows.reader()) == ROWS
    relation = rows.to_duckdb()
    assert relation.filter("a > 3").fetchall() == relation.filter("a > 3").fetchall() == [(4, "y"), (5, "z")]
    own = duckdb.connect()
    assert rows.to_duckdb(own).aggregate("sum(a)").fetchall() == [(15,)]
    assert list(rows.to_pandas(types_mapper=pd.ArrowDtype)["a"]) == list(range(6))
    assert readings.open == 0


def test_what_would_make_one_column_of_objects_is_refused(readings: Readings) -> None:
    for rows in (scan(readings), scan(readings).reader()):
        for library in (np.asarray, pd.DataFrame):
            with pytest.raises(InvalidRequest, match="Call to_pandas"):
                library(rows)
    assert readings.begun == 0


def test_a_library_that_is_not_there_is_named(readings: Readings, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(scans, "import_module", missing)
    with pytest.raises(UnsupportedOperation, match=r"to_polars\(\) needs the package polars: pip install polars"):
        scan(readings).to_polars()
    with pytest.raises(UnsupportedOperation, match=r"to_duckdb\(\) needs the package duckdb"):
        scan(readings).to_duckdb()


def test_a_duckdb_that_takes_a_stream_only_once_is_refused(readings: Readings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb, "__version__", "1.4.9")
    with pytest.raises(UnsupportedOperation, match=r"needs DuckDB 1\.5 or later, and this is 1\.4\.9"):
        scan(readings).to_duckdb()


def test_polars_is_given_the_rows(readings: Readings, monkeypatch: pytest.MonkeyPatch) -> None:
    class Polars:
        @staticmethod
        def from_arrow(rows: pa.Table) -> list[Any]:
            return rows.to_pylist()

    monkeypatch.setattr(scans, "import_module", {"polars": Polars}.__getitem__)
    assert scan(readings, limit=1).to_polars() == [{"a": 0, "b": "u"}]
