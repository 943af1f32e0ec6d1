"""Random writes, deletes and compactions against a dict, for each merge engine and changelog producer.

Whatever is compacted when, a reader sees the state of the dict; a follower of a changelog made by compaction has the
same state, with every change matching the previous row.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.paimon.table import Table
from tests.every_run import every_run
from tests.paimon.compact.trees import TINY_FILES, changelog, replay
from tests.paimon.lake import live_files, new_catalog, put

COLUMNS = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.int32()))])
STEPS = 25

Row = dict[str, Any]
State = dict[int, Row]


def deduplicate(state: State, row: Row) -> None:
    state[row["id"]] = row


def by_sequence(state: State, row: Row) -> None:
    old = state.get(row["id"])
    if old is None or (row["a"] is not None, row["a"] or 0) >= (old["a"] is not None, old["a"] or 0):
        state[row["id"]] = row


def partial_update(state: State, row: Row) -> None:
    old = state.get(row["id"], {})
    state[row["id"]] = {name: old.get(name) if value is None else value for name, value in row.items()}


def aggregation(state: State, row: Row) -> None:
    old = state.get(row["id"], {})
    total = row["a"] if old.get("a") is None else old["a"] + (row["a"] or 0)
    later = max((v for v in (old.get("b"), row["b"]) if v is not None), default=None)
    state[row["id"]] = {"id": row["id"], "a": total, "b": later, "c": old.get("c") if row["c"] is None else row["c"]}


def first_row(state: State, row: Row) -> None:
    state.setdefault(row["id"], row)


AGGREGATES = {"fields.a.aggregate-function": "sum", "fields.b.aggregate-function": "max"}
ENGINES: dict[str, tuple[dict[str, str], Callable[[State, Row], None], bool]] = {
    "deduplicate": ({}, deduplicate, True),
    "sequence field": ({"sequence.field": "a"}, by_sequence, False),
    "partial-update": (
        {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"}, partial_update, True
    ),
    "aggregation": (
        {"merge-engine": "aggregation", "aggregation.remove-record-on-delete": "true", **AGGREGATES}, aggregation, True
    ),
    "first-row": ({"merge-engine": "first-row"}, first_row, False),
}  # fmt: skip
"""Options, what a row does to a state, and whether deletes are written."""

TABLES = [
    (engine, producer)
    for engine in ENGINES
    for producer in ("none", "full-compaction", "lookup")
    if engine != "first-row" or producer != "full-compaction"
]
WAYS = [(False, False), (True, True), (False, True), (True, False)]
"""Whether files are tiny, and whether writers leave compaction to others."""
CASES = [(*table, *way) for table in TABLES for way in WAYS]
IN_EVERY_RUN = {(*table, *WAYS[number % len(WAYS)]) for number, table in enumerate(TABLES) if number % 2}
"""Every other engine and producer in one of the ways; the others with `make nightly`."""


def some_rows(rng: random.Random) -> list[Row]:
    def value(low: int, high: int) -> int | None:
        return None if rng.random() < 0.2 else rng.randint(low, high)

    start = rng.choice([0, 0, 50])
    return [
        {
            "id": rng.randrange(start, start + 30),
            "a": value(0, 9),
            "b": rng.choice([None, "p", "q", "é"]),
            "c": rng.choice([None, [], [1], [1, None]]),
        }
        for _ in range(rng.randint(1, 25))
    ]


class Model:
    """A table, the dict that it must equal, and what can happen to both."""

    def __init__(self, table: Table, engine: str, rng: random.Random) -> None:
        self.table, self.rng, self.state = table, rng, dict[int, Row]()
        _, self._apply, self._deletes = ENGINES[engine]

    def write(self) -> None:
        rows = some_rows(self.rng)
        for row in rows:
            self._apply(self.state, row)
        put(self.table, pa.Table.from_pylist(rows, schema=COLUMNS))

    def delete(self) -> None:
        if not self._deletes:
            return
        keys = self.rng.sample(range(80), 8)
        for key in keys:
            self.state.pop(key, None)
        self.table.delete([{"id": key} for key in keys])

    def step(self) -> None:
        roll = self.rng.random()
        if roll < 0.6:
            self.write()
        elif roll < 0.8:
            self.delete()
        else:
            self.table.compact(full=self.rng.random() < 0.5)

    def rows(self) -> State:
        read = self.table.scan().to_arrow().to_pylist()
        found = {row["id"]: row for row in read}
        assert len(found) == len(read), "a key came twice"
        return found


@pytest.mark.parametrize(("engine", "producer", "tiny", "write_only"), every_run(CASES, IN_EVERY_RUN.__contains__))
def test_a_compacted_table_equals_its_model(
    tmp_path: Path, engine: str, producer: str, tiny: bool, write_only: bool
) -> None:
    options = {
        **ENGINES[engine][0],
        "bucket": "2",
        "changelog-producer": producer,
        **({} if producer == "lookup" else {"full-compaction.delta-commits": "3"}),
        "num-sorted-run.compaction-trigger": "3",
        "write-only": str(write_only).lower(),
        **(TINY_FILES if tiny else {}),
    }
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    rng = random.Random(f"{engine} {producer} {tiny} {write_only}")
    model = Model(table, engine, rng)
    for _ in range(STEPS):
        model.step()
        sees_all = not (engine == "first-row" and write_only)
        if sees_all:
            assert model.rows() == model.state
        if producer == "lookup" and not write_only:
            assert replay(changelog(table)) == model.state
    table.compact(full=True)
    assert model.rows() == model.state
    assert {f.level for f in live_files(table)} <= {table.context.options.num_levels - 1}
    assert not any(f.delete_row_count for f in live_files(table))
    if producer != "none":
        assert replay(changelog(table)) == model.state


@pytest.mark.parametrize("producer", ["full-compaction", "lookup"])
@pytest.mark.parametrize("engine", ["deduplicate", "partial-update", "aggregation"])
def test_equal_rows_are_no_change_if_the_table_says_so(tmp_path: Path, engine: str, producer: str) -> None:
    options = {
        **ENGINES[engine][0],
        "bucket": "1",
        "changelog-producer": producer,
        "changelog-producer.row-deduplicate": "true",
        "changelog-producer.row-deduplicate-ignore-fields": "b",
    }
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    put(table, [{"id": i, "a": 0, "b": "p", "c": [i, None]} for i in range(4)])
    before = len(changelog(table))
    assert before == 4
    put(table, [{"id": 0, "a": 0, "b": "q", "c": [0, None]}, {"id": 1, "a": 7, "b": "p", "c": [1, None]}])
    put(table, [{"id": 2, "a": 0, "b": "p", "c": [2]}])
    assert [(kind, row["id"]) for kind, row in changelog(table)[before:]] == [(1, 1), (2, 1), (1, 2), (2, 2)]


def test_the_input_is_the_changelog_where_the_table_says_so(tmp_path: Path) -> None:
    options = {"bucket": "1", "changelog-producer": "input", "num-sorted-run.compaction-trigger": "2"}
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    kinds = ["+I", "-U", "+U", "-D"]
    put(table, [{"id": 1, "a": i} for i in range(4)], kinds=kinds)
    put(table, [{"id": 1, "a": 9}])
    table.compact(full=True)
    assert [(kind, row["a"]) for kind, row in changelog(table)] == [(0, 0), (1, 1), (2, 2), (3, 3), (0, 9)]
