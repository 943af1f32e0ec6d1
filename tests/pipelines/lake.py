"""The three tables of the invariant, the rows that are written into them, and what every reader must have seen.

Row number `id` is the same in all tables, and in a Spark writer and one without Spark: its key is `key_of(id)`.
Micro-batch b has the rows from b * `BATCH_ROWS` on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.table import Table

BATCH_ROWS = 40
KEYS, _STEP = 101, 7919
KEY_SQL = f"pmod(value * {_STEP}, {KEYS})"
DATABASE = "db"

COLUMNS = pa.schema([pa.field("k", pa.int64(), nullable=False), ("id", pa.int64())])
APPEND, ORDERED, KEYED = "append", "ordered", "keyed"
TABLES: dict[str, dict[str, Any]] = {
    APPEND: {"options": {"compaction.min.file-num": "4"}},
    ORDERED: {"options": {"bucket": "2", "bucket-key": "k", "compaction.min.file-num": "4"}},
    KEYED: {
        "primary_key": ["k"],
        "options": {"bucket": "2", "changelog-producer": "lookup", "num-sorted-run.compaction-trigger": "3"},
    },
}
SIDES = {APPEND: "", ORDERED: "", KEYED: "$changelog"}
"""What readers read of a table."""

INSERT, BEFORE, AFTER, DELETE = "insert", "update_before", "update_after", "delete"
KIND = "_change_type"

Change = tuple[str, int, int]
"""Kind, key and number of a row."""


def key_of(number: int) -> int:
    return number * _STEP % KEYS


def rows_of_batch(batch: int) -> list[dict[str, int]]:
    return [{"k": key_of(i), "id": i} for i in range(batch * BATCH_ROWS, (batch + 1) * BATCH_ROWS)]


def open_catalog(warehouse: Path) -> FileSystemCatalog:
    return FileSystemCatalog(LocalFileIO(sync=False), str(warehouse))


def open_table(warehouse: Path, name: str) -> Table:
    return open_catalog(warehouse).table(f"{DATABASE}.{name}")


def make_tables(warehouse: Path) -> None:
    catalog = open_catalog(warehouse)
    catalog.create_database(DATABASE)
    for name, definition in TABLES.items():
        catalog.create_table(f"{DATABASE}.{name}", COLUMNS, **definition)


def changes_of(rows: pa.Table | pa.RecordBatch) -> list[Change]:
    """Rows of a table, or of a changelog, in their order."""
    kinds = rows[KIND].to_pylist() if KIND in rows.schema.names else [INSERT] * rows.num_rows
    return list(zip(kinds, rows["k"].to_pylist(), rows["id"].to_pylist(), strict=True))


# ---- what must hold -------------------------------------------------------------------------------------------------


def check_table(name: str, rows: Sequence[Mapping[str, int]], least: int) -> int:
    """The table has the rows of its first micro-batches, `least` of them or more, each once; how many batches."""
    numbers = [row["id"] for row in rows]
    count = max(numbers, default=-1) + 1
    assert count % BATCH_ROWS == 0, f"{name}: a micro-batch is there in part, up to row {count}"
    assert count >= least * BATCH_ROWS, f"{name}: {least} micro-batches were committed, and {count} rows are there"
    if name == KEYED:
        assert {row["k"]: row["id"] for row in rows} == newest(count)
        assert len(rows) == len(newest(count)), f"{name}: a key is there twice"
    else:
        check_once(name, numbers, count)
    assert all(row["k"] == key_of(row["id"]) for row in rows)
    return count // BATCH_ROWS


def check_once(what: str, numbers: Sequence[int], count: int) -> None:
    """Each number below `count` is there once."""
    found = Counter(numbers)
    doubled = sorted(n for n, times in found.items() if times > 1)
    missing = sorted(set(range(count)) - set(found))
    assert not doubled, f"{what}: {len(doubled)} rows came more than once: {doubled[:10]}"
    assert not missing, f"{what}: {len(missing)} rows never came: {missing[:10]}"
    assert len(found) == count, f"{what}: rows came that nobody wrote: {sorted(found)[-10:]}"


def newest(count: int) -> dict[int, int]:
    """The newest row of each key when `count` rows were written."""
    return {key_of(number): number for number in range(count)}


def check_order(what: str, changes: Sequence[Change], bucket_of: Mapping[int, int]) -> None:
    """Within a bucket, micro-batches come one after the other; of a key, rows come in the order they were written."""
    batches: dict[int, int] = {}
    rows: dict[int, int] = {}
    for _, key, number in changes:
        bucket, batch = bucket_of[key], number // BATCH_ROWS
        assert batch >= batches.get(bucket, 0), f"{what}: bucket {bucket} has batch {batch} after {batches[bucket]}"
        assert number > rows.get(key, -1), f"{what}: key {key} has row {number} after {rows[key]}"
        batches[bucket], rows[key] = batch, number


def fold(what: str, changes: Sequence[Change]) -> dict[int, int]:
    """The table that a changelog leads to. Every change must be one of the row that is there."""
    state: dict[int, int] = {}
    replaced: dict[int, int] = {}
    for at, (kind, key, number) in enumerate(changes):
        there = state.get(key)
        told = f"{what}: change {at} is {kind} of key {key}, row {number}, and there is {there}"
        if kind in (BEFORE, DELETE):
            assert there == number, told
            del state[key]
            if kind == BEFORE:
                replaced[key] = number
        else:
            assert there is None, told
            assert (kind == AFTER) == (key in replaced), told
            assert replaced.pop(key, -1) < number, f"{told}; row numbers of a key only grow"
            state[key] = number
    assert not replaced, f"{what}: keys lost their old rows and got no new ones: {sorted(replaced)[:10]}"
    return state
