"""Compaction during writing, by Java and by us: the same levels, the same changelog, the same rows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.paimon.table import Table
from tests.paimon.compact.trees import changelog, replay
from tests.paimon.foreign.conftest import JavaTableOf
from tests.paimon.foreign.java_paimon import sorted_rows
from tests.paimon.lake import live_files, new_catalog, put

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

COLUMNS = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.string())])
SUM = {
    "merge-engine": "aggregation",
    "fields.a.aggregate-function": "sum",
    "aggregation.remove-record-on-delete": "true",
}
PARTIAL = {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"}
ENGINES: dict[str, dict[str, str]] = {
    "deduplicate": {},
    "sequence field": {"sequence.field": "a"},
    "aggregation": SUM,
    "partial-update": PARTIAL,
    "first-row": {"merge-engine": "first-row", "ignore-delete": "true"},
}
NEVER_ALIKE = {"compaction.size-ratio": "-99"}
CASES = [
    (engine, producer)
    for engine in ENGINES
    for producer in ("none", "input", "lookup", "full-compaction")
    if engine != "first-row" or producer in ("none", "lookup")
]


def commits(engine: str, producer: str, count: int = 9) -> list[tuple[pa.Table, list[str]]]:
    """Rows and kinds of some commits. No key comes twice in one, so that nothing depends on a writer's buffer.

    Java tells a first row by the kind that it was written with, and we always as +I: there, all are.
    """
    rng = random.Random(f"{engine} {producer}")
    possible = ["+I"] if engine == "first-row" else ["+I", "+U", "+I", "-D"]
    found = []
    for _ in range(count):
        keys = sorted(rng.sample(range(20), 7))
        rows = [{"id": k, "a": rng.choice([None, 1, 2, 5]), "b": rng.choice([None, "x", "y"])} for k in keys]
        kinds = [rng.choice(possible) for _ in keys]
        found.append((pa.Table.from_pylist(rows, schema=COLUMNS), kinds))
    return found


def levels(table: Table) -> list[int]:
    return sorted(f.level for f in live_files(table))


def definition(engine: str, producer: str, trigger: str = "3") -> dict[str, str]:
    more = {"full-compaction.delta-commits": "1000"} if producer == "full-compaction" else {}
    options = {"bucket": "1", "changelog-producer": producer, "num-sorted-run.compaction-trigger": trigger}
    # Files of both sides differ in size, which decides what is compacted: by these rules it is the number of runs.
    return {**options, **more, **ENGINES[engine], "compaction.max-size-amplification-percent": "0", **NEVER_ALIKE}


@pytest.mark.parametrize(("engine", "producer"), CASES)
def test_both_compact_at_the_same_times_and_tell_the_same_changes(
    tmp_path: Path, java_table: JavaTableOf, engine: str, producer: str
) -> None:
    catalog = new_catalog(tmp_path)
    options = definition(engine, producer)
    ours = catalog.create_table("db.ours", COLUMNS, primary_key=["id"], options=options)
    theirs = catalog.create_table("db.theirs", COLUMNS, primary_key=["id"], options=options)
    java = java_table(catalog, "db.theirs")
    for data, kinds in commits(engine, producer):
        put(ours, data, kinds)
        java.write(theirs.schema, data, kinds, wait_compaction=True)
        assert levels(ours) == levels(theirs)
        mine = sorted_rows(ours.schema, ours.scan().to_arrow())
        assert mine == java.rows()
        assert mine == java_table(catalog, "db.ours").rows()
    assert changelog(ours) == changelog(theirs)
    if producer != "none":
        assert changelog(ours)


@pytest.mark.parametrize(("engine", "producer"), [case for case in CASES if case[1] != "input"])
def test_both_write_and_compact_one_table_in_turn(
    tmp_path: Path, java_table: JavaTableOf, engine: str, producer: str
) -> None:
    catalog = new_catalog(tmp_path)
    options = definition(engine, producer, trigger="4") | {"compaction.max-size-amplification-percent": "200"}
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    java = java_table(catalog, "db.t")
    for i, (data, kinds) in enumerate(commits(engine, producer, 12)):
        if i % 3 == 1:
            java.write(table.schema, data, kinds, wait_compaction=True)
        else:
            put(table, data, kinds)
        assert sorted_rows(table.schema, table.scan().to_arrow()) == java.rows()
    table.compact(full=True)
    rows = table.scan().to_arrow()
    assert sorted_rows(table.schema, rows) == java.rows()
    if producer != "none":
        state: dict[Any, dict[str, Any]] = replay(changelog(table))
        assert sorted(state) == sorted(rows["id"].to_pylist())
        assert {row["id"]: row for row in rows.to_pylist()} == state


@pytest.mark.parametrize("by", ["ours", "theirs"])
@pytest.mark.parametrize("engine", ["deduplicate", "last value"])
def test_a_commit_of_ours_after_one_of_java_is_newer_for_both(
    tmp_path: Path, java_table: JavaTableOf, engine: str, by: str
) -> None:
    """The writer began before Java committed the same keys; whoever compacts, its rows stay what was read."""
    options = {"bucket": "1", "write-only": "true"}
    if engine == "last value":
        options |= {"merge-engine": "aggregation", "fields.default-aggregate-function": "last_value"}
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    java = java_table(catalog, "db.t")
    with table.new_write() as writer:
        writer.write(pa.table({"id": [1], "a": [9], "b": ["ours"]}))
        messages = writer.prepare_commit()
    theirs = pa.Table.from_pylist([{"id": i, "a": 8, "b": "theirs"} for i in (1, 2)], schema=COLUMNS)
    java.write(table.schema, theirs)
    table.new_commit().commit(messages)
    expected = [[1, 9, "ours"], [2, 8, "theirs"]]
    assert java.rows() == sorted_rows(table.schema, table.scan().to_arrow()) == expected
    if by == "ours":
        table.compact(full=True)
    else:
        table = table.alter(set={"write-only": "false"})
        java = java_table(catalog, "db.t")
        java.ask("compact", full=True)
    assert java.rows() == sorted_rows(table.schema, table.scan().to_arrow()) == expected
    assert levels(table) == [5]
