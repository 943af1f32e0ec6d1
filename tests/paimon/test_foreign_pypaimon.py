"""pypaimon and its Rust engine read what we write, and we read what they write: every kind of table, all types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from forebay.metadata import types
from forebay.metadata.predicate import col
from forebay.paimon.store.schema_changes import AddColumn, DropColumn, RenameColumn, UpdateColumnType
from tests.paimon.lake import ALL_TYPES, all_types_rows, altered, new_catalog, put
from tests.paimon.pypaimon_tables import read_by_pypaimon, write_by_pypaimon

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]


KINDS: dict[str, dict[str, Any]] = {
    "append": {},
    "bucketed": {"options": {"bucket": "3", "bucket-key": "id,text"}},
    "keyed": {"primary_key": ["id"], "options": {"bucket": "2"}},
    "partitioned": {"primary_key": ["id", "day"], "partition_keys": ["day"], "options": {"bucket": "2"}},
    "dynamic": {"primary_key": ["id"], "options": {"bucket": "-1"}},
}
OURS = KINDS | {
    "thin": {"primary_key": ["id"], "options": {"bucket": "2", "data-file.thin-mode": "true"}},
    "full": {"options": {"metadata.stats-mode": "full", "metadata.stats-dense-store": "false"}},
    "none": {"primary_key": ["id"], "options": {"bucket": "1", "metadata.stats-mode": "none"}},
}
THEIRS = KINDS | {"orc": {"options": {"file.format": "orc"}}}


def rows_for(kind: str) -> pa.Table:
    """Rows without nulls in the partition column, where there is one."""
    data = all_types_rows()
    return data.filter(pc.is_valid(data["day"])) if kind == "partitioned" else data


@pytest.mark.parametrize("rust", ["python", "rust"])
@pytest.mark.parametrize("kind", OURS)
def test_pypaimon_reads_what_we_write(tmp_path: Path, kind: str, rust: str) -> None:
    catalog = new_catalog(tmp_path)
    definition, data = OURS[kind], rows_for(kind)
    table = catalog.create_table("db.t", ALL_TYPES, **definition)
    put(table, data)
    expected = data.to_pylist()
    if "primary_key" in definition:
        table.upsert(data.slice(0, 5))
        table.delete(data.slice(2, 1))
        expected = [row for row in expected if row["id"] != 2]
    assert read_by_pypaimon(catalog, "db.t", tmp_path / "out", rust) == expected
    assert [r["id"] for r in read_by_pypaimon(catalog, "db.t", tmp_path / "out", rust, "7")] == [7]


@pytest.mark.parametrize("rust", ["python", "rust"])
@pytest.mark.parametrize("kind", THEIRS)
def test_we_read_what_pypaimon_writes(tmp_path: Path, kind: str, rust: str) -> None:
    catalog = new_catalog(tmp_path)
    definition, data = THEIRS[kind], rows_for(kind)
    parts = [data, data.slice(0, 5)] if "primary_key" in definition else [data]
    write_by_pypaimon(catalog, "db.t", tmp_path, definition, rust, parts)
    table = catalog.table("db.t")
    assert table.scan().to_arrow().sort_by("id").to_pylist() == data.to_pylist()
    assert table.scan(["text"], col("id") == 7).to_arrow().to_pylist() == [{"text": "é" * 7 + "z"}]


@pytest.mark.parametrize("rust", ["python", "rust"])
def test_both_write_to_one_primary_key_table(tmp_path: Path, rust: str) -> None:
    catalog = new_catalog(tmp_path)
    definition, data = KINDS["keyed"], rows_for("keyed")
    write_by_pypaimon(catalog, "db.t", tmp_path, definition, rust, [data.slice(0, 10)])
    catalog.table("db.t").upsert(data.slice(5))
    catalog.table("db.t").delete(data.slice(0, 1))
    write_by_pypaimon(catalog, "db.t", tmp_path, definition, rust, [data.slice(2, 4)])
    expected = data.slice(1).to_pylist()
    assert catalog.table("db.t").scan().to_arrow().sort_by("id").to_pylist() == expected
    assert read_by_pypaimon(catalog, "db.t", tmp_path / "out", rust) == expected


def test_pypaimon_reads_files_of_several_schemas(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", ALL_TYPES)
    data = all_types_rows()
    put(table, data.slice(0, 10))
    table = altered(
        table,
        [
            RenameColumn(("text",), "words"),
            UpdateColumnType(("whole",), types.bigint()),
            DropColumn(("d9",)),
            AddColumn(("extra",), types.int_()),
        ],
    )
    names = ["words" if n == "text" else n for n in ALL_TYPES.names]
    put(table, data.slice(10).rename_columns(names).drop_columns(["d9"]))
    ours = table.scan().to_arrow().sort_by("id").to_pylist()
    assert read_by_pypaimon(catalog, "db.t", tmp_path / "out", "python") == ours
    assert ours[3]["words"] == data["text"][3].as_py()


KINDS_OF_ROWS = pa.schema([("id", pa.int64()), ("v", pa.string()), ("kind", pa.string())])
WITH_KINDS = {"primary_key": ["id"], "options": {"bucket": "1", "rowkind.field": "kind"}}


def kinds_of_rows(*rows: tuple[int, str, str]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(KINDS_OF_ROWS.names, row, strict=True)) for row in rows], KINDS_OF_ROWS)


@pytest.mark.parametrize("rust", ["python", "rust"])
@pytest.mark.parametrize("by", ["ours", "theirs"])
def test_rows_that_were_deleted_in_a_single_file_do_not_come_back(tmp_path: Path, by: str, rust: str) -> None:
    """pypaimon writes a count of deletes of 0 into such files, and so reads the deletes of its own files as rows."""
    catalog = new_catalog(tmp_path)
    rows = kinds_of_rows((0, "a", "+I"), (1, "b", "+I"), (2, "c", "+I"), (1, "b", "-D"))
    if by == "ours":
        table = catalog.create_table("db.t", KINDS_OF_ROWS, **WITH_KINDS)
        put(table, rows)
        assert [r["id"] for r in read_by_pypaimon(catalog, "db.t", tmp_path / "out", rust)] == [0, 2]
    else:
        write_by_pypaimon(catalog, "db.t", tmp_path, WITH_KINDS, rust, [rows])
    found = catalog.table("db.t")
    assert found.scan().to_arrow().sort_by("id")["id"].to_pylist() == [0, 2]
    found.compact(full=True)
    assert found.refresh().scan().to_arrow().sort_by("id")["id"].to_pylist() == [0, 2]
