"""pypaimon and its Rust engine read the results of our compaction, and write on top of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.table import Table
from tests.paimon.compact.trees import TINY_FILES
from tests.paimon.lake import ALL_TYPES, all_types_rows, live_files, new_catalog, put
from tests.paimon.pypaimon_tables import read_by_pypaimon, write_by_pypaimon

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

SUM = {"merge-engine": "aggregation", "fields.whole.aggregate-function": "sum"}
TABLES: dict[str, dict[str, Any]] = {
    "append": {},
    "bucketed append": {"options": {"bucket": "2", "bucket-key": "id"}},
    "keyed": {"primary_key": ["id"], "options": {"bucket": "2"}},
    "moved up": {"primary_key": ["id"], "options": {"bucket": "2", **TINY_FILES}},
    "partial-update": {"primary_key": ["id"], "options": {"bucket": "1", "merge-engine": "partial-update"}},
    "aggregation": {"primary_key": ["id"], "options": {"bucket": "1", **SUM}},
    "first-row": {"primary_key": ["id"], "options": {"bucket": "1", "merge-engine": "first-row"}},
    "lookup": {"primary_key": ["id"], "options": {"bucket": "1", "changelog-producer": "lookup"}},
}


def ours(table: Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.scan().to_arrow().sort_by("id").to_pylist()
    return rows


def written(catalog: FileSystemCatalog, kind: str) -> Table:
    data = all_types_rows()
    table = catalog.create_table("db.t", ALL_TYPES, **TABLES[kind])
    for start in (0, 7, 3, 9):
        put(table, data.slice(start, 11) if table.schema.has_primary_key else data.slice(start % 7, 3))
    return table


@pytest.mark.parametrize("rust", ["python", "rust"])
@pytest.mark.parametrize("kind", TABLES)
def test_pypaimon_reads_compacted_tables(tmp_path: Path, kind: str, rust: str) -> None:
    catalog = new_catalog(tmp_path)
    table = written(catalog, kind)
    before = ours(table)
    table.compact(full=True)
    assert ours(table) == before
    assert len(before) > 10
    assert read_by_pypaimon(catalog, "db.t", tmp_path / "out", rust) == before


@pytest.mark.parametrize("rust", ["python", "rust"])
def test_pypaimon_reads_new_rows_over_compacted_ones_and_rescaled_buckets(tmp_path: Path, rust: str) -> None:
    catalog = new_catalog(tmp_path)
    table = written(catalog, "keyed")
    table.compact(full=True)
    table.delete([{"id": 3}])
    table = table.rescale(3)
    table.upsert(all_types_rows().slice(5, 1))
    table.delete([{"id": 4}])
    assert sorted({f.level for f in live_files(table)}) == [0, 5]
    assert not {3, 4} & {row["id"] for row in ours(table)}
    assert read_by_pypaimon(catalog, "db.t", tmp_path / "out", rust) == ours(table)


def test_we_compact_what_pypaimon_wrote(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path)
    data = all_types_rows()
    write_by_pypaimon(catalog, "db.t", tmp_path, TABLES["keyed"], "python", [data, data.slice(0, 5), data.slice(3, 9)])
    table = catalog.table("db.t")
    table.compact(full=True)
    assert {f.level for f in live_files(table)} == {5}
    assert ours(table) == data.to_pylist()
    assert read_by_pypaimon(catalog, "db.t", tmp_path / "out", "python") == data.to_pylist()
