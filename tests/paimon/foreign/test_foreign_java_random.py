"""Long random histories of one table, by both sides in turn: writes, deletes, compactions, expiry.

After every step both read the same rows, and for deduplicate they are those of a dict. `PAIMON_SEEDS` runs more.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.metadata import types
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.format.types_json import format_type
from forebay.paimon.store.schema_changes import (
    AddColumn,
    DropColumn,
    MoveColumn,
    RenameColumn,
    SchemaChange,
    UpdateColumnType,
)
from forebay.paimon.table import Table
from tests.paimon.foreign.conftest import JavaTableOf
from tests.paimon.foreign.java_paimon import JavaTable, Plain, sorted_rows
from tests.paimon.histories import ENGINES, Life
from tests.paimon.lake import at_ms, new_catalog, put

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(600)]

_SEEDS = int(os.environ.get("PAIMON_SEEDS", "2"))
_STEPS = 16
_COLUMNS = {"k": types.int_(), "p": types.string(), "g": types.int_(), "a": types.bigint(), "b": types.string()}
TABLES: dict[str, dict[str, str]] = {
    "deduplicate": {"bucket": "2"},
    "sequence": {"bucket": "2", "sequence.field": "g"},
    "input": {"bucket": "1", "changelog-producer": "input"},
    "lookup": {"bucket": "2", "changelog-producer": "lookup"},
    "full-compaction": {"bucket": "1", "changelog-producer": "full-compaction", "full-compaction.delta-commits": "2"},
    "vectors": {"bucket": "2", "deletion-vectors.enabled": "true"},
    "partial-update": {"bucket": "2", "merge-engine": "partial-update", "fields.g.sequence-group": "a,b"},
    "aggregation": {"bucket": "2", "merge-engine": "aggregation", "fields.a.aggregate-function": "sum",
                    "fields.b.aggregate-function": "listagg", "fields.g.aggregate-function": "max",
                    "fields.b.ignore-retract": "true", "fields.g.ignore-retract": "true"},
    "first-row": {"bucket": "2", "merge-engine": "first-row", "ignore-delete": "true"},
    "dynamic": {"bucket": "-1", "dynamic-bucket.target-row-num": "10"},
    "dynamic vectors": {"bucket": "-1", "dynamic-bucket.target-row-num": "10", "deletion-vectors.enabled": "true"},
}  # fmt: skip


class History:
    """One table and the dice."""

    def __init__(self, table: Table, java: JavaTable, dice: random.Random) -> None:
        self.table, self.java, self.dice = table, java, dice
        self.model: dict[tuple[int, str], tuple[Any, ...]] = {}

    def step(self) -> str:
        """One thing that happens to the table; what."""
        what = self.dice.choices(["write", "compact", "expire"], [10, 3, 1])[0]
        by = self.dice.choice(["ours", "theirs"])
        if what == "write":
            self._write(by)
        elif what == "compact":
            full = self.dice.random() < 0.4
            if by == "ours":
                self.table.compact(full=full)
            else:
                self.java.ask("compact", full=full)
        elif by == "ours":
            self.table.maintenance().expire_snapshots(1, 2, at_ms(1 << 60))
        else:
            self.java.ask("expire", retain=2)
        return f"{what} by {by}"

    def _write(self, by: str) -> None:
        rows, kinds = [], []
        deletes = self.table.schema.options.get("merge-engine") != "first-row"
        for _ in range(self.dice.randint(1, 25)):
            key = (self.dice.randint(0, 40), self.dice.choice(["x", "y"]))
            values = (
                self.dice.choice([None, 1, 2, 3, 4]),
                self.dice.randint(-9, 9),
                self.dice.choice([None, "s", "t"]),
            )
            kind = self.dice.choices(["+I", "-D"], [4, 1 if deletes else 0])[0]
            rows.append((*key, *values))
            kinds.append(kind)
            if kind == "+I":
                self.model[key] = values
            else:
                self.model.pop(key, None)
        schema = self.table.schema
        data = pa.Table.from_pylist(
            [dict(zip(schema.names, row, strict=True)) for row in rows], schema=arrow_schema(schema.fields)
        )
        options = {"write-only": "true"} if self.dice.random() < 0.3 else {}
        if by == "ours":
            put(self.table.with_options(options), data, kinds)
        else:
            self.java.write(schema, data, kinds, options=options, wait_compaction=self.dice.random() < 0.7)

    def rows(self) -> list[list[Plain]]:
        """The rows that both sides read."""
        ours = sorted_rows(self.table.schema, self.table.scan().to_arrow())
        assert ours == self.java.rows()
        return ours

    def expected(self) -> list[list[Plain]]:
        """The rows of the model."""
        return sorted(([*key, *values] for key, values in self.model.items()), key=repr)


@pytest.mark.parametrize("seed", range(_SEEDS))
@pytest.mark.parametrize("name", TABLES)
def test_both_read_the_same_after_every_step(tmp_path: Path, java_table: JavaTableOf, name: str, seed: int) -> None:
    catalog = new_catalog(tmp_path)
    options = {"num-sorted-run.compaction-trigger": "3", "manifest.merge-min-count": "5", **TABLES[name]}
    if name == "partial-update":
        options["partial-update.remove-record-on-sequence-group"] = "g"
    table = catalog.create_table("db.t", _COLUMNS, primary_key=["k", "p"], partition_keys=["p"], options=options)
    history = History(table, java_table(catalog, "db.t"), random.Random(f"{name} {seed}"))
    done = []
    for _ in range(_STEPS):
        done.append(history.step())
        rows = history.rows()
        if name in ("deduplicate", "input", "full-compaction", "dynamic"):
            assert rows == history.expected(), done
    table.compact(full=True)
    rows = history.rows()
    if name in ("deduplicate", "input", "lookup", "full-compaction", "vectors", "dynamic", "dynamic vectors"):
        assert rows == history.expected(), done


# ---- lives with everything that happens to tables -------------------------------------------------------------------


class SharedLife(Life):
    """A life in which Java does the half of everything."""

    java: JavaTable

    def _is_javas(self) -> bool:
        return self.dice.random() < 0.5

    def put(self, data: pa.Table, kinds: list[str]) -> None:
        if self._is_javas():
            self.done[-1] += " by Java"
            self.java.write(self.table.schema, data, kinds, wait_compaction=True)
        else:
            super().put(data, kinds)

    def compact(self) -> None:
        if self._is_javas():
            self.done[-1] += " by Java"
            self.java.ask("compact", full=self.dice.random() < 0.5)
        else:
            super().compact()

    def expire(self) -> None:
        if self._is_javas():
            self.done[-1] += " by Java"
            self.java.ask("expire", retain=self.dice.randint(1, 4))
        else:
            super().expire()

    def roll_back(self, snapshot: int) -> None:
        if self._is_javas():
            self.done[-1] += " by Java"
            self.java.ask("rollback", snapshot=snapshot)
        else:
            super().roll_back(snapshot)

    def change(self) -> None:
        if self._is_javas():
            self.done[-1] += " by Java"
            change = self.schema_change()
            if isinstance(change, MoveColumn) and change.name == self.table.schema.fields[0].name:
                return  # Java refuses to move the first column to the front; ours changes nothing then
            self.java.ask("alter", changes=[_for_java(change)])
        else:
            super().change()

    def check(self) -> None:
        super().check()
        schema = self.table.schema
        assert sorted_rows(schema, self.table.scan().to_arrow()) == self.java.rows(), self.done


def _for_java(change: SchemaChange) -> list[Any]:
    match change:
        case AddColumn(path=path):
            return ["add", "/".join(path), "INT"]
        case RenameColumn(path=path, new_name=name):
            return ["rename", "/".join(path), name]
        case DropColumn(path=path):
            return ["drop", "/".join(path)]
        case UpdateColumnType(path=path, type=t):
            return ["type", "/".join(path), format_type(t)]
        case MoveColumn(name=name):
            return ["first", name]
    raise AssertionError(change)


@pytest.mark.parametrize("seed", range(_SEEDS))
@pytest.mark.parametrize("producer", ["none", "lookup"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_table_that_both_look_after_equals_its_model(
    tmp_path: Path, java_table: JavaTableOf, engine: str, producer: str, seed: int
) -> None:
    dice = random.Random(f"{engine} {producer} {seed} with Java")
    options = {"changelog-producer": producer, "bucket": dice.choice(["1", "2", "-1"])}
    catalog = new_catalog(tmp_path)
    life = SharedLife(catalog, engine, options, dice)
    life.java = java_table(catalog, "db.t")
    for _ in range(_STEPS):
        life.step()
        life.check()
