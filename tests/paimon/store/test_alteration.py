"""`table.alter()`: all kinds of changes, by names, in one schema change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import InvalidRequest
from forebay.metadata import types
from forebay.metadata.table import Column
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.table import Table
from tests.paimon.lake import new_catalog, rows_of

COLUMNS = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("n", pa.int32()), ("home", pa.struct([("city", pa.string())]))]
)


@pytest.fixture
def catalog(tmp_path: Path) -> FileSystemCatalog:
    return new_catalog(tmp_path)


@pytest.fixture
def table(catalog: FileSystemCatalog) -> Table:
    made = catalog.create_table("db.t", COLUMNS, options={"write-only": True})
    made.append([{"id": 1, "name": "one", "n": 7, "home": {"city": "Rome"}}])
    return made


def test_all_kinds_of_changes_are_one_change(table: Table) -> None:
    new = table.alter(
        add_columns={"note": "STRING", "size": pa.float64()},
        drop_columns="home",
        rename_columns={"name": "label"},
        change_types={"n": "BIGINT"},
        comment="what it is",
        set={"snapshot.num-retained.min": 3},
        reset="write-only",
    )
    assert [(f.name, f.type) for f in new.schema.fields] == [
        ("id", types.bigint()),
        ("label", types.string()),
        ("n", types.bigint()),
        ("note", types.string()),
        ("size", types.double()),
    ]
    assert (new.schema.comment, new.schema.options) == ("what it is", {"snapshot.num-retained.min": "3"})
    assert new.context.schemas.ids() == [0, 1]
    assert rows_of(new) == [(1, "one", 7, None, None)]


def test_columns_are_called_by_the_names_that_they_had(table: Table) -> None:
    new = table.alter(drop_columns=["n"], rename_columns={"name": "n"}, add_columns=[("name", "INT")])
    assert [(f.name, str(f.type)) for f in new.schema.fields if f.name in ("n", "name")] == [
        ("n", "STRING"),
        ("name", "INT"),
    ]
    assert rows_of(new, ["id", "n", "name"]) == [(1, "one", None)]


def test_fields_of_rows_have_names_with_dots(table: Table) -> None:
    new = table.alter(add_columns=[("home.zip", "INT")], rename_columns={"home.city": "home.town"})
    assert new.scan(["home"]).to_arrow().to_pylist() == [{"home": {"town": "Rome", "zip": None}}]
    again = new.alter(drop_columns=["home.zip"], rename_columns={"home.town": "city"}, change_types={"n": pa.int64()})
    assert again.scan(["home", "n"]).to_arrow().to_pylist() == [{"home": {"city": "Rome"}, "n": 7}]


def test_a_type_says_not_null_only_if_it_is_written(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.k", {"id": "INT", "n": "INT NOT NULL"}, primary_key="id", buckets=1)
    new = table.alter(change_types={"n": "BIGINT"})
    assert new.schema.field_named("n").type == types.bigint().not_null()


def test_comments_of_new_columns_are_kept(table: Table) -> None:
    assert table.alter(add_columns=[Column("x", types.int_(), "why")]).schema.field_named("x").description == "why"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "has nothing to change"),
        ({"drop_columns": "nme"}, "nme"),
        ({"rename_columns": {"home.city": "town.x"}}, "it stays where it is"),
        ({"change_types": {"n": "NUMBER"}}, "column 'n'"),
        ({"change_types": {"name": "ROW<x INT>"}}, "name"),
        ({"set": {"bukket": 2}}, "did you mean 'bucket'"),
        ({"add_columns": [("id", "INT")]}, "id"),
    ],
)
def test_changes_that_cannot_be_change_nothing(table: Table, change: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        table.alter(**change)
    assert table.context.schemas.ids() == [0]


def test_a_table_sees_a_new_schema_when_it_is_refreshed(catalog: FileSystemCatalog, table: Table) -> None:
    catalog.table("db.t").alter(add_columns={"x": "INT"})
    assert "x" not in table.schema.names
    assert "x" in table.refresh().schema.names
