"""A process that opened a table before its schema changed compacts and reads it without losing later writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import Conflict
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.store.schema_changes import AddColumn, RenameColumn, UpdateColumnType
from forebay.paimon.table import Table
from tests.paimon.lake import altered, new_catalog, put, stream_of

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.int32())])
LARGE = 2**40

KINDS: dict[str, dict[str, Any]] = {
    "append": {},
    "append with buckets": {"options": {"bucket": "1", "bucket-key": "id"}},
    "primary key": {"primary_key": ["id"], "options": {"bucket": "1"}},
    "lookup": {"primary_key": ["id"], "options": {"bucket": "1", "changelog-producer": "lookup"}},
}


@pytest.fixture
def catalog(tmp_path: Path) -> FileSystemCatalog:
    return new_catalog(tmp_path)


def before_and_after(catalog: FileSystemCatalog, kind: str) -> tuple[Table, Table]:
    """A table as it was opened before its schema changed and rows of the new one came, and as it is now."""
    old = catalog.create_table("db.t", COLUMNS, **KINDS[kind])
    put(old, [{"id": 1, "v": 1}])
    changes = [
        AddColumn(("x",), forebay.types.string()),
        UpdateColumnType(("v",), forebay.types.bigint()),
        RenameColumn(("v",), "w"),
    ]
    new = altered(catalog.table("db.t"), changes)
    put(new, [{"id": 2, "w": LARGE, "x": "two"}])
    put(new, [{"id": 3, "w": 3, "x": "three"}])
    return old, new


EXPECTED = [{"id": 1, "w": 1, "x": None}, {"id": 2, "w": LARGE, "x": "two"}, {"id": 3, "w": 3, "x": "three"}]


def rows(table: Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_compaction_under_an_older_schema_keeps_newer_columns_and_wider_values(
    catalog: FileSystemCatalog, kind: str
) -> None:
    old, new = before_and_after(catalog, kind)
    assert old.compact(full=True) is not None
    assert rows(new) == EXPECTED
    assert new.system("files").read(["schema_id"]).read_all().column(0).to_pylist() == [new.schema.id]


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_under_an_older_schema_that_compacts_keeps_them_too(catalog: FileSystemCatalog, kind: str) -> None:
    old, new = before_and_after(catalog, kind)
    for i in range(10, 18):
        put(old, [{"id": i, "v": i}])
    if kind != "append":  # without buckets, writers do not compact
        kinds = new.system("snapshots").read(["commit_kind"]).read_all().column(0).to_pylist()
        assert "COMPACT" in kinds
    assert rows(new) == [*EXPECTED, *({"id": i, "w": i, "x": None} for i in range(10, 18))]


def test_rescaling_under_an_older_schema_keeps_them_too(catalog: FileSystemCatalog) -> None:
    old, new = before_and_after(catalog, "primary key")
    old.rescale(2)
    assert rows(new.refresh()) == EXPECTED


@pytest.mark.parametrize("kind", KINDS)
def test_values_that_do_not_fit_an_older_type_are_an_error_and_not_another_value(
    catalog: FileSystemCatalog, kind: str
) -> None:
    old, _ = before_and_after(catalog, kind)
    with pytest.raises(Conflict, match=r"column 'v' is BIGINT since the table was opened.*no INT: reopen the table"):
        old.scan().to_arrow()
    assert sorted(old.scan(["id"]).to_arrow().column("id").to_pylist()) == [1, 2, 3]


def test_values_that_fit_an_older_type_are_read(catalog: FileSystemCatalog) -> None:
    old = catalog.create_table("db.t", pa.schema([("id", pa.int32()), ("f", pa.float32())]))
    changes = [UpdateColumnType(("id",), forebay.types.bigint()), UpdateColumnType(("f",), forebay.types.double())]
    new = altered(catalog.table("db.t"), changes)
    put(new, pa.table({"id": [7, None], "f": [float("nan"), None]}))
    assert [str(row) for row in old.scan().to_arrow().to_pylist()] == ["{'id': 7, 'f': nan}", "{'id': None, 'f': None}"]
    put(new, pa.table({"id": [8], "f": [0.1]}))
    with pytest.raises(Conflict, match="column 'f' is DOUBLE"):
        old.scan().to_arrow()


def test_a_stream_ends_at_values_that_do_not_fit_and_continues_when_it_is_reopened(catalog: FileSystemCatalog) -> None:
    old = catalog.create_table("db.t", COLUMNS)
    put(old, [{"id": 1, "v": 1}])
    stream = stream_of(old, follow=False)
    assert sum(batch.num_rows for batch in iter(stream.poll, None)) == 1
    new = altered(catalog.table("db.t"), [UpdateColumnType(("v",), forebay.types.bigint())])
    put(new, [{"id": 2, "v": LARGE}])
    state = stream.state()
    with pytest.raises(Conflict, match="continues where it was"):
        stream.poll()
    again = stream_of(new, state=state, follow=False)
    assert [row["v"] for batch in iter(again.poll, None) for row in batch.to_pylist()] == [LARGE]
