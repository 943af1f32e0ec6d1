"""Deletion vectors and index files written by Java, in tables that we then write, compact, expire and rescale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.base.ambient import SYSTEM_CLOCK
from tests.paimon.foreign.both_sides import COLUMNS, WRITE_ONLY, agree, numbered
from tests.paimon.foreign.conftest import JavaTableOf
from tests.paimon.lake import at_ms, live_files, new_catalog, put

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]


def _ids(rows: list[list[Any]]) -> list[int]:
    return sorted(row[0] for row in rows)


@pytest.mark.parametrize("wide", ["true", "false"])
def test_we_compact_append_tables_of_which_java_deleted_rows(
    tmp_path: Path, java_table: JavaTableOf, wide: str
) -> None:
    catalog = new_catalog(tmp_path)
    options = {"deletion-vectors.enabled": "true", "deletion-vectors.bitmap64": wide}
    table = catalog.create_table("db.t", COLUMNS, options=options)
    java = java_table(catalog, "db.t")
    left: list[int] = []
    for number in range(4):
        put(table, numbered(table, range(number * 20, number * 20 + 8)))
        java.ask("delete_rows", positions=[0, 2 + number])
    left = _ids(agree(table, java))
    assert len(left) < 32
    table.compact(full=True)
    assert _ids(agree(table, java)) == left
    assert sum(f.row_count for f in live_files(table)) == len(left), "the deleted rows are gone"
    java.ask("delete_rows", positions=[1, 3])
    put(table, numbered(table, range(500, 503)))
    again = _ids(agree(table, java))
    assert len(again) == len(left) - 2 + 3
    table.compact(full=True)
    table.maintenance().expire_snapshots(1, 1, at_ms(1 << 60))
    table.remove_orphan_files(older_than=at_ms(SYSTEM_CLOCK.now_ms()))
    assert _ids(agree(table, java)) == again
    java.ask("compact", full=True)
    assert _ids(agree(table, java)) == again


@pytest.mark.parametrize("wide", ["true", "false"])
@pytest.mark.parametrize("bucket", ["2", "-1"])
@pytest.mark.parametrize("engine", ["deduplicate", "partial-update", "aggregation"])
def test_we_compact_keyed_tables_with_vectors_of_java(
    tmp_path: Path, java_table: JavaTableOf, engine: str, bucket: str, wide: str
) -> None:
    catalog = new_catalog(tmp_path)
    options = {"bucket": bucket, "deletion-vectors.enabled": "true", "deletion-vectors.bitmap64": wide}
    options |= {"merge-engine": engine, "dynamic-bucket.target-row-num": "15"}
    if engine == "partial-update":
        options["partial-update.remove-record-on-delete"] = "true"
    if engine == "aggregation":
        options["aggregation.remove-record-on-delete"] = "true"
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    java = java_table(catalog, "db.t")
    for number in range(3):
        rows = range(number * 10, number * 10 + 20)
        java.write(table.schema, numbered(table, rows, f"j{number} "), wait_compaction=True)
        java.write(table.schema, numbered(table, rows[5:8], "x"), ["-D"] * 3, wait_compaction=True)
        put(table, numbered(table, range(number * 10 + 12, number * 10 + 25), f"o{number} "))
        agree(table, java)
        table.compact(full=number == 1)
        agree(table, java)
    table.compact(full=True)
    rows = agree(table, java)
    kept = set(range(45)) - {5, 6, 7, 15, 16, 17, 25, 26, 27}
    assert _ids(rows) == sorted(kept)
    assert {row[0]: row[1] for row in rows}[38] == "o2 38"
    table.maintenance().expire_snapshots(1, 1, at_ms(1 << 60))
    table.remove_orphan_files(older_than=at_ms(SYSTEM_CLOCK.now_ms()))
    java.write(table.schema, numbered(table, range(3), "last "), wait_compaction=True)
    java.ask("compact", full=True)
    assert _ids(agree(table, java)) == sorted(kept)


def test_dynamic_buckets_are_filled_in_turn_through_compaction_and_overwrite(
    tmp_path: Path, java_table: JavaTableOf
) -> None:
    catalog = new_catalog(tmp_path)
    options = {"bucket": "-1", "dynamic-bucket.target-row-num": "7", "num-sorted-run.compaction-trigger": "3"}
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    java = java_table(catalog, "db.t")
    for number in range(6):
        rows = numbered(table, range(number * 6, number * 6 + 18), f"c{number} ")
        if number % 2:
            java.write(table.schema, rows, options=WRITE_ONLY if number == 3 else {}, wait_compaction=True)
        else:
            put(table, rows)
        found = agree(table, java)
        assert len(found) == number * 6 + 18, "a key is in one bucket"
        if number == 2:
            table.compact(full=True)
    before = agree(table, java)
    java.ask("compact", full=True)
    assert agree(table, java) == before
    table.overwrite(numbered(table, range(10, 30), "over "))
    java.write(table.schema, numbered(table, range(20, 40), "java "))
    put(table, numbered(table, range(35, 50), "ours "))
    assert _ids(agree(table, java)) == list(range(10, 50))
