"""System tables row by row, and the statistics of data files: ours equal Java's."""

from __future__ import annotations

import datetime
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from forebay.metadata import types
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.store.branches import BranchManager
from forebay.paimon.store.consumers import ConsumerManager
from forebay.paimon.store.schema_changes import AddColumn, RenameColumn, UpdateColumnType
from forebay.paimon.system_tables.registry import NAMES
from forebay.paimon.table import Table
from tests.paimon.foreign.both_sides import COLUMNS, KEYED, WRITE_ONLY, numbered, write_in_turn
from tests.paimon.foreign.conftest import JavaTableOf
from tests.paimon.foreign.java_paimon import JavaTable, Plain
from tests.paimon.foreign.rows import every_row, every_type
from tests.paimon.lake import altered, new_catalog, put

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

IO = LocalFileIO(sync=False)
# What Java 1.4 takes from a catalog that knows more than the files do.
NOT_COMPARED = {"partitions": {"created_at", "created_by", "updated_by", "options"}}


# ---- system tables --------------------------------------------------------------------------------------------------


def _written_in_turn(table: Table, java: JavaTable) -> None:
    write_in_turn(table, java, 5)
    java.write(table.schema, numbered(table, range(3)), ["-D", "-U", "+U"], options=WRITE_ONLY)
    table.with_options(WRITE_ONLY).delete([{"id": 7}])
    table.context.tags.create("a", table.context.snapshots.snapshot(2), retained_ms=1 << 40)
    java.ask("tag", tag="b", snapshot=3)
    BranchManager(IO, table.context.paths).create("one", "a")
    java.ask("branch", what="create", branch="two")
    java_branch = table.on_branch("one")
    put(java_branch, numbered(table, range(5)))
    ConsumerManager(IO, table.context.paths).record("ours", 3)
    java.ask("consumer", consumer="theirs", next=4)


def _compacted_by_both(table: Table, java: JavaTable) -> None:
    _written_in_turn(table, java)
    java.ask("compact", full=True)
    write_in_turn(table, java, 3)
    table.compact(full=True)
    write_in_turn(table, java, 2)
    table.analyze(["id", "v"])


def _append(table: Table, java: JavaTable) -> None:
    write_in_turn(table, java, 6)
    table.compact(full=True)
    write_in_turn(table, java, 3)
    table.overwrite(numbered(table, range(3)))


def _vectors(table: Table, java: JavaTable) -> None:
    for _ in range(3):
        java.write(table.schema, numbered(table, range(10)), wait_compaction=True)
        java.write(table.schema, numbered(table, range(3)), ["-D"] * 3, wait_compaction=True)


def _schema_changed(table: Table, java: JavaTable) -> None:
    write_in_turn(table, java, 2)
    changes = [AddColumn(("extra",), types.double()), RenameColumn(("v",), "w"), UpdateColumnType(("id",), _LONG)]
    changes = changes[:2] if table.schema.has_primary_key else changes
    changed = altered(table, changes)
    put(changed, [{"id": i, "w": f"w{i}", "extra": i / 4} for i in range(4)])
    java.ask("alter", changes=[["comment", "w", "words"], ["option", "snapshot.time-retained", "2 h"]])
    put(changed.refresh().alter(drop_columns="extra"), [{"id": 50, "w": None}])


def _dynamic(table: Table, java: JavaTable) -> None:
    write_in_turn(table, java, 5)


_LONG = types.bigint()
TABLES: dict[str, tuple[dict[str, Any], Callable[[Table, JavaTable], None]]] = {
    "keyed": (KEYED, _written_in_turn),
    "input": ({"primary_key": ["id"], "options": {"bucket": "1", "changelog-producer": "input"}}, _compacted_by_both),
    "compacted": (KEYED, _compacted_by_both),
    "append": ({}, _append),
    "bucketed append": ({"options": {"bucket": "2", "bucket-key": "id"}}, _append),
    "vectors": ({"primary_key": ["id"], "options": {"bucket": "1", "deletion-vectors.enabled": "true"}}, _vectors),
    "dynamic": ({"primary_key": ["id"], "options": {"bucket": "-1"}}, _dynamic),
    "schema changed": ({}, _schema_changed),
    "schema changed, keyed": (KEYED, _schema_changed),
    "empty": (KEYED, lambda table, java: None),
}


@pytest.mark.parametrize("kind", TABLES)
def test_every_system_table_shows_what_java_shows(tmp_path: Path, java_table: JavaTableOf, kind: str) -> None:
    definition, fill = TABLES[kind]
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, **definition)
    java = java_table(catalog, "db.t")
    fill(table, java)
    differing = {}
    for name in NAMES:
        found = _ours_and_theirs(table.refresh(), java, name)
        if found[0] != found[1]:
            differing[name] = found
    assert differing == {}, "\n".join(f"{name}:\n{a}\n{b}" for name, (a, b) in differing.items())


@pytest.mark.parametrize("name", ["audit_log", "binlog"])
@pytest.mark.parametrize("producer", ["none", "input", "lookup"])
def test_changes_between_snapshots_are_the_same_in_audit_logs(
    tmp_path: Path, java_table: JavaTableOf, name: str, producer: str
) -> None:
    catalog = new_catalog(tmp_path)
    options = {"bucket": "1", "changelog-producer": producer}
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    java = java_table(catalog, "db.t")
    for number in range(4):
        data = numbered(table, range(number, number + 4), f"c{number} ")
        if number % 2:
            java.write(table.schema, data, ["+I", "-D", "+U", "+I"], wait_compaction=True)
        else:
            put(table, data, ["+I", "+U", "-D", "+U"])
    latest = table.context.snapshots.latest_id()
    between = {"incremental-between": f"1,{latest}"}
    ours, theirs = _ours_and_theirs(table.with_options(between), java, name, options=between)
    assert ours == theirs
    assert ours


def _ours_and_theirs(table: Table, java: JavaTable, name: str, **more: Any) -> tuple[list[str], list[str]]:
    answer = java.java.ask("read", java.warehouse, f"{java.name}${name}", **more)
    columns = answer["columns"]  # ours are those of the newest Paimon, which may have more
    ours = table.system(name).read().read_all()
    assert ours.schema.names[: len(columns)] == columns
    left_out = NOT_COMPARED.get(name, set())
    theirs = [dict(zip(columns, row[1:], strict=True)) for row in answer["rows"]]
    return _comparable(ours.select(columns).to_pylist(), left_out), _comparable(theirs, left_out)


def _comparable(rows: list[dict[str, Any]], left_out: set[str]) -> list[str]:
    return sorted(repr([(k, _plain(v)) for k, v in row.items() if k not in left_out]) for row in rows)


def _plain(value: Any) -> Plain:
    if isinstance(value, str) and value.startswith("{") and '"colId"' in value:
        return sorted(json.loads(value).items())  # statistics; Java orders columns by their hashes
    if isinstance(value, datetime.datetime):
        return round((value - datetime.datetime(1970, 1, 1)) / datetime.timedelta(microseconds=1)) * 1000
    if isinstance(value, float):
        return struct.pack(">d", value).hex()
    return [_plain(v) for v in value] if isinstance(value, list) else value


# ---- statistics -----------------------------------------------------------------------------------------------------

_STATISTICS = (
    "record_count", "null_value_counts", "min_value_stats", "max_value_stats", "min_key", "max_key",
    "min_sequence_number", "max_sequence_number", "deleteRowCount", "level", "file_source", "write_cols",
)  # fmt: skip
MODES: dict[str, dict[str, str]] = {
    "default": {},
    "truncate(5)": {"metadata.stats-mode": "truncate(5)"},
    "full": {"metadata.stats-mode": "full"},
    "counts": {"metadata.stats-mode": "counts"},
    "none": {"metadata.stats-mode": "none"},
    "sparse": {"metadata.stats-mode": "full", "metadata.stats-dense-store": "false"},
    "columns": {
        "metadata.stats-mode": "none",
        "fields.text.stats-mode": "truncate(2)",
        "fields.d38_6.stats-mode": "full",
        "fields.ts9.stats-mode": "counts",
        "fields.numbers.stats-mode": "full",
        "fields.nested.stats-mode": "full",
        "fields.id.stats-mode": "none",
    },
    "columns of truncated": {"fields.text.stats-mode": "none", "fields.raw.stats-mode": "full"},
    "first columns": {"metadata.stats-keep-first-n-columns": "7"},
    "level statistics": {"metadata.stats-mode.per.level": "0:none,5:full"},
}


@pytest.mark.parametrize("keyed", [False, True], ids=["append", "keyed"])
@pytest.mark.parametrize("mode", MODES)
def test_both_write_the_same_statistics(tmp_path: Path, java_table: JavaTableOf, mode: str, keyed: bool) -> None:
    catalog = new_catalog(tmp_path)
    definition: dict[str, Any] = {"options": MODES[mode]}
    if keyed:
        definition = {"primary_key": ["id"], "options": {"bucket": "1", **MODES[mode]}}
    shown = {}
    for who in ("ours", "theirs"):
        table = catalog.create_table(f"db.{who}", every_type(), **definition)
        java = java_table(catalog, f"db.{who}")
        everything = _without_nans(every_row(table.schema))
        nothing = pa.Table.from_pylist([{"id": 100 + i} for i in range(3)], schema=arrow_schema(table.schema.fields))
        kinds = ["+I", "+U", "-U", "-D"] if keyed else ["+I"] * 4
        for data in (everything, everything.slice(3, 2), nothing):
            these = [kinds[i % 4] for i in range(data.num_rows)]
            if who == "ours":
                put(table.with_options(WRITE_ONLY), data, these if keyed else None)
            else:
                java.write(table.schema, data, these, options=WRITE_ONLY)
        if keyed:  # each compacts its own, and leaves one file at level 0
            if who == "ours":
                table.compact(full=True)
                put(table.with_options(WRITE_ONLY), nothing)
            else:
                java.ask("compact", full=True)
                java.write(table.schema, nothing, options=WRITE_ONLY)
        files = sorted(java.system("files"), key=lambda file: file["min_sequence_number"])
        shown[who] = [{c: _by_column(file[c]) for c in _STATISTICS} for file in files]
    assert len(shown["ours"]) == len(shown["theirs"])
    for ours, theirs in zip(shown["ours"], shown["theirs"], strict=True):
        assert ours == theirs


def _without_nans(data: pa.Table) -> pa.Table:
    """`data` with halves for NaNs, with which Java widens its ranges and we have none."""
    for name in ("single", "double"):
        column = data[name]
        half = pa.scalar(0.5, column.type)
        data = data.set_column(data.schema.get_field_index(name), name, pc.if_else(pc.is_nan(column), half, column))
    return data


# Java has ranges of these in ORC files only; we have them in Parquet files, too.
_OURS_ALONE = {"raw", "fixed", "bytes9", "ts7", "ts8", "ts9", "ltz9"}


def _by_column(text: Any) -> Any:
    """`{a=1, b=2}` by column, for a difference that can be read."""
    if not isinstance(text, str) or not text.startswith("{"):
        return text
    parts = re.split(rf"(?:^\{{|, )({'|'.join(every_type())})=", text.removesuffix("}"))
    return {name: value for name, value in zip(parts[1::2], parts[2::2], strict=True) if name not in _OURS_ALONE}
