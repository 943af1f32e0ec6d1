"""The merge engines of one bucket against a model in plain Python: rows, changelog, and what a rebuild restores."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.metadata import types
from forebay.metadata.table import Column
from tests.every_run import every_run
from tests.kv.engine_model import Bucket, Model, first_row, versioned
from tests.kv.tables import FakeTable, Row
from tests.kv.version_columns import VERSIONS

ENGINE, VERSION = "table.merge-engine", "table.merge-engine.versioned.ver-column"
NAMES = st.none() | st.text(max_size=3)

FORMATS = {"COMPACTED": {}, "INDEXED": {"table.kv.format": "INDEXED", "table.log.format": "INDEXED"}}


def batches_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[bool, list[tuple[Row, bool]]]]]:
    """Batches: whether they overwrite, and rows with whether each is a delete."""
    row = st.fixed_dictionaries({"id": st.integers(0, 3), "name": NAMES, "v": values})
    one = st.tuples(row, st.booleans())
    return st.lists(st.tuples(st.booleans(), st.lists(one, min_size=1, max_size=5)), max_size=6)


def run(table: FakeTable, model: Model, batches: list[tuple[bool, list[tuple[Row, bool]]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bucket = Bucket(table, Path(folder))
        try:
            for overwrite, rows in batches:
                given_rows, deleted = [row for row, _ in rows], [gone for _, gone in rows]
                bucket.put(given_rows, deleted, overwrite=overwrite)
                model.put(given_rows, deleted, overwrite=overwrite)
            bucket.check(model)
        finally:
            bucket.close()


def table_of(engine: dict[str, str], data_type: types.DataType, image: str, row_format: str) -> FakeTable:
    columns = [Column("id", types.int_()), Column("name", types.string()), Column("v", data_type)]
    return FakeTable({**engine, **FORMATS[row_format], "table.changelog.image": image}, columns)


@pytest.mark.parametrize(
    ("image", "row_format"),
    every_run(
        [(image, row_format) for image in ("full", "wal") for row_format in FORMATS],
        lambda case: (case[0] == "full") == (case[1] == "COMPACTED"),
    ),
)
@given(data=st.data())
def test_first_row_keeps_the_first_row(image: str, row_format: str, data: st.DataObject) -> None:
    table = table_of({ENGINE: "first_row"}, types.bigint(), image, row_format)
    run(table, Model(first_row, image == "full"), data.draw(batches_of(st.none() | st.integers(0, 3))))


@pytest.mark.parametrize(
    ("kind", "row_format"),
    every_run(
        [(kind, row_format) for kind in VERSIONS for row_format in FORMATS],
        lambda case: (case[0] in ("bigint", "timestamp_ltz(6)")) == (case[1] == "INDEXED"),
    ),
)
@given(data=st.data(), image=st.sampled_from(["full", "wal"]))
def test_versioned_keeps_the_greatest_version_and_of_equal_ones_the_last(
    kind: str, row_format: str, image: str, data: st.DataObject
) -> None:
    data_type, values, least = VERSIONS[kind]
    table = table_of({ENGINE: "versioned", VERSION: "v"}, data_type, image, row_format)
    few = data.draw(st.lists(values, min_size=1, max_size=4))
    run(table, Model(versioned("v", least), image == "full"), data.draw(batches_of(st.sampled_from(few))))


def test_nanoseconds_of_versions_count(tmp_path: Path) -> None:
    import pandas as pd

    table = table_of({ENGINE: "versioned", VERSION: "v"}, types.timestamp(9), "full", "COMPACTED")
    bucket = Bucket(table, tmp_path)
    for name, nanoseconds in (("a", 1_000_000_005), ("b", 1_000_000_004), ("c", 1_000_000_005), ("d", None)):
        moment = None if nanoseconds is None else pd.Timestamp(nanoseconds)
        bucket.put([{"id": 1, "name": name, "v": moment}], [False])
    assert bucket.rows[1]["name"] == "c"
    bucket.close()


@pytest.mark.parametrize("engine", [{ENGINE: "first_row"}, {ENGINE: "versioned", VERSION: "score"}])
def test_partial_updates_are_refused_unless_they_overwrite(engine: dict[str, str], tmp_path: Path) -> None:
    table = FakeTable(engine)
    bucket = Bucket(table, tmp_path)
    bucket.put([{"id": 1, "name": "a", "score": 1}], [False])
    with pytest.raises(UnsupportedOperation, match=r"db\.t cannot be written in part: its merge engine"):
        bucket.put([{"id": 1, "name": "b"}], [False], targets=("id", "name"))
    bucket.put([{"id": 1, "name": "b", "score": 1}], [False], targets=("id", "name", "score"))  # a whole row after all
    bucket.put([{"id": 1, "name": "c"}], [False], targets=("id", "name"), overwrite=True)
    assert bucket.rows == {1: {"id": 1, "name": "c", "score": 1}}
    bucket.close()


def test_a_column_that_is_added_keeps_the_versions_of_older_rows(tmp_path: Path) -> None:
    table = FakeTable({ENGINE: "versioned", VERSION: "score"})
    bucket = Bucket(table, tmp_path)
    bucket.put([{"id": 1, "name": "a", "score": 5}], [False])
    table.add_column(Column("more", types.int_()))
    bucket.put([{"id": 1, "name": "b", "score": 4, "more": 1}], [False])
    bucket.put([{"id": 1, "name": "c", "score": 5}], [False], schema_id=1)
    assert bucket.rows == {1: {"id": 1, "name": "c", "score": 5, "more": None}}
    bucket.close()


def test_deletes_are_refused_where_the_table_says_so(tmp_path: Path) -> None:
    table = FakeTable({ENGINE: "first_row", "table.delete.behavior": "disable"})
    bucket = Bucket(table, tmp_path)
    bucket.put([{"id": 1, "name": "a", "score": 5}], [False])
    with pytest.raises(InvalidRequest) as refused:
        bucket.put([{"id": 1}], [True])
    assert refused.value.code == ErrorCode.DELETION_DISABLED_EXCEPTION
    bucket.put([{"id": 1}], [True], overwrite=True)
    assert bucket.rows == {}
    bucket.close()
