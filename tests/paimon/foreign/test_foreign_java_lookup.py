"""Single rows by key: Java's lookup and ours find the same, after every kind of write and compaction."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.metadata import types
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.store.schema_changes import AddColumn, RenameColumn, UpdateColumnType
from forebay.paimon.table import Table
from tests.paimon.foreign.both_sides import WRITE_ONLY
from tests.paimon.foreign.conftest import JavaTableOf
from tests.paimon.foreign.java_paimon import JavaTable, Plain, plain_rows
from tests.paimon.foreign.rows import every_row, every_type
from tests.paimon.lake import altered, new_catalog, put

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

_COLUMNS = {"p": types.string(), "k": types.bigint(), "a": types.int_(), "b": types.string()}
TABLES: dict[str, dict[str, str]] = {
    "deduplicate": {"bucket": "2"},
    "lookup changelog": {"bucket": "1", "changelog-producer": "lookup"},
    "sequence field": {"bucket": "2", "sequence.field": "a"},
    "partial-update": {"bucket": "2", "merge-engine": "partial-update", "ignore-delete": "true"},
    "aggregation": {
        "bucket": "1",
        "merge-engine": "aggregation",
        "fields.a.aggregate-function": "sum",
        "fields.b.aggregate-function": "listagg",
        "fields.b.ignore-retract": "true",
    },
    "first-row": {"bucket": "1", "merge-engine": "first-row", "ignore-delete": "true"},
    "vectors": {"bucket": "2", "deletion-vectors.enabled": "true"},
}
# Java's lookup takes the newest file's row of a key, merges nothing and knows no deletion vectors: it finds what Java
# reads after full compactions only.
UNMERGED = ("sequence field", "partial-update", "aggregation", "vectors")


def _ours(table: Table, keys: list[dict[str, Any]]) -> dict[str, list[Plain]]:
    """The rows that our lookup finds, by the plain values of their keys."""
    with table.refresh().lookup_table() as lookup:
        found = lookup.lookup(keys, missing="drop")
    rows = plain_rows(table.schema, found.select(table.schema.names))
    positions = [table.schema.names.index(name) for name in table.schema.primary_keys]
    return {repr([row[i] for i in positions]): row for row in rows}


def _theirs(table: Table, java: JavaTable, keys: list[dict[str, Any]], **more: Any) -> dict[str, list[Plain]]:
    wanted = arrow_schema(table.schema.fields)
    wanted = pa.schema([wanted.field(name) for name in table.schema.primary_keys])
    plain = plain_rows(table.schema, pa.Table.from_pylist(keys, schema=wanted))
    found = java.ask("lookup", keys=plain, **more)
    return {repr(key): row for key, row in zip(plain, found, strict=True) if row is not None}


@pytest.mark.parametrize("by", ["ours", "theirs", "both"])
@pytest.mark.parametrize("name", TABLES)
def test_both_look_up_the_same_rows(tmp_path: Path, java_table: JavaTableOf, name: str, by: str) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table(
        "db.t", _COLUMNS, primary_key=["p", "k"], partition_keys=["p"],
        options={"num-sorted-run.compaction-trigger": "3", **TABLES[name]},
    )  # fmt: skip
    java = java_table(catalog, "db.t")
    dice = random.Random(f"{name} {by}")
    every = [{"p": p, "k": k} for p in ("x", "y", "nowhere") for k in range(30)]
    sizes = set()
    for step in range(8):
        keys = dice.sample(range(25), 6)
        values = [{"p": dice.choice("xy"), "k": k, "a": dice.randint(0, 9), "b": f"s{step}"} for k in keys]
        kinds = [dice.choice(["+I", "+I", "-D"]) for _ in keys]
        writer = ("ours", "theirs")[step % 2] if by == "both" else by
        data = pa.Table.from_pylist(values, schema=arrow_schema(table.schema.fields))
        if writer == "ours":
            put(table, data, kinds)
        else:
            java.write(table.schema, data, kinds, wait_compaction=True)
        if step % 4 == 3:
            java.ask("compact", full=True)
        ours = _ours(table, every)
        assert ours == {repr(row[:2]): row for row in java.rows()}
        if name not in UNMERGED or step % 4 == 3:
            assert ours == _theirs(table, java, every)
        sizes.add(len(ours))
    assert max(sizes) > 8


def test_both_look_up_rows_of_every_type_under_a_changed_schema(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", every_type(), primary_key=["id"], options={"bucket": "2"})
    java = java_table(catalog, "db.t")
    data = every_row(table.schema)
    put(table.with_options(WRITE_ONLY), data)
    java.write(table.schema, data.slice(3, 9))
    keys = [{"id": i} for i in range(-1, 30)]
    assert len(_theirs(table, java, keys)) == 24
    assert _ours(table, keys) == _theirs(table, java, keys)
    table = altered(
        table,
        [
            AddColumn(("extra",), types.int_()),
            RenameColumn(("text",), "words_of_text"),
            UpdateColumnType(("tiny",), types.bigint()),
        ],
    )
    assert _ours(table, keys) == _theirs(table, java, keys)
