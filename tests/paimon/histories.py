"""Random histories of one table beside a simple model of it in plain Python.

A `Life` applies one operation after the other to a table and to the model: writes with every kind of row, compactions,
expiry, tags, rollback, rescale, overwrites, restarts, schema changes. After each, readers, time travel and a stream
with restarts must agree with the model. Rows of the model are dicts by field id, so renamed columns stay, dropped ones
vanish, and new ones are null.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.metadata import types
from forebay.metadata.types import TypeRoot
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.store.schema_changes import (
    AddColumn,
    DropColumn,
    MoveColumn,
    Position,
    RenameColumn,
    SchemaChange,
    SetOption,
    UpdateColumnType,
)
from forebay.paimon.table import Table
from tests.paimon.lake import altered, at_ms, put, stream_of

COLUMNS = {"p": types.string(), "k": types.int_(), "g": types.int_(), "a": types.bigint(), "b": types.string()}
P, K, G, A, B = range(5)
"""Field ids of `COLUMNS`; those that are added later count on from here."""

Row = dict[int, Any]
Key = tuple[Any, ...]
State = dict[Key, Row]


def replace(old: Row | None, row: Row) -> Row:
    """deduplicate"""
    return row


def replace_newer(old: Row | None, row: Row) -> Row:
    """deduplicate, with a sequence field"""
    return row if old is None or _order(row[G]) >= _order(old[G]) else old


def _order(value: Any) -> tuple[bool, Any]:
    return (value is not None, value or 0)


def fill(old: Row | None, row: Row) -> Row:
    """partial-update"""
    return {**(old or {}), **{i: v for i, v in row.items() if v is not None}}


def fill_group(old: Row | None, row: Row) -> Row:
    """partial-update, with `a` and `b` in the sequence group of `g` (which is never null)"""
    filled = fill(old, row)
    newer = old is None or row[G] >= old[G]
    return {**filled, **{i: (row if newer else old or {}).get(i) for i in (G, A, B)}}


def aggregate(old: Row | None, row: Row) -> Row:
    """aggregation: `g` min, `a` sum, `b` max, the others last_non_null_value"""
    filled = fill(old, row)
    for i, together in ((G, min), (A, sum), (B, max)):
        known: list[Any] = [v for v in ((old or {}).get(i), row.get(i)) if v is not None]
        filled[i] = together(known) if known else None
    return filled


def keep(old: Row | None, row: Row) -> Row:
    """first-row"""
    return row if old is None else old


Engine = tuple[dict[str, str], Callable[[Row | None, Row], Row], bool]
ENGINES: dict[str, Engine] = {
    "deduplicate": ({}, replace, True),
    "sequence": ({"sequence.field": "g"}, replace_newer, False),
    "partial-update": (
        {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"}, fill, True
    ),
    "sequence group": ({"merge-engine": "partial-update", "fields.g.sequence-group": "a,b"}, fill_group, False),
    "aggregation": (
        {
            "merge-engine": "aggregation",
            "aggregation.remove-record-on-delete": "true",
            "fields.g.aggregate-function": "min",
            "fields.a.aggregate-function": "sum",
            "fields.b.aggregate-function": "max",
        },
        aggregate,
        True,
    ),
    "first-row": ({"merge-engine": "first-row"}, keep, False),
}  # fmt: skip
"""Options, what a row does to the row of its key that was there, and whether rows are deleted."""


class Life:
    """A primary-key table and its model."""

    primary_keys: tuple[str, ...] = ("p", "k")

    def __init__(
        self, catalog: FileSystemCatalog, engine: str, options: dict[str, str], dice: random.Random, name: str = "db.t"
    ) -> None:
        """`options` come on top of those of the engine; with changelog-producer lookup or none a stream follows."""
        self.catalog, self.dice, self.name = catalog, dice, name
        more, self._merge, self._deletes = ENGINES[engine]
        options = {"manifest.merge-min-count": "6", "num-sorted-run.compaction-trigger": "3", **more, **options}
        self.table = catalog.create_table(
            name, COLUMNS, primary_key=self.primary_keys, partition_keys=["p"], options=options
        )
        self.state: State = {}
        self.then: dict[int, tuple[State, TableSchema]] = {}
        producer = options.get("changelog-producer", "none")
        replayable = producer == "lookup" or (engine == "deduplicate" and producer in ("none", "input"))
        self.follower = Follower(catalog, name) if replayable else None
        self.done: list[str] = []
        self._columns = 0

    def step(self) -> None:
        """One thing that happens."""
        what = self.dice.choices(
            ["write", "compact", "expire", "change", "rescale", "overwrite", "rollback", "orphans", "restart"],
            [40, 12, 6, 8, 3, 3, 3, 2, 6],
        )[0]
        self.done.append(what)
        getattr(self, what)()
        self.table = self.table.refresh()
        latest = self.table.context.snapshots.latest_id()
        if latest is not None:
            self.then[latest] = copy.deepcopy(self.state), self.table.schema

    # -- what happens -------------------------------------------------------------------------------------------------

    def write(self) -> None:
        rows, kinds = self.rows_to_write()
        self.put(self.as_arrow(rows), kinds)
        for row, kind in zip(rows, kinds, strict=True):
            key = (row[P], row[K])
            if kind == "-D":
                self.state.pop(key, None)
            else:
                self.state[key] = self._merge(self.state.get(key), row)

    def put(self, data: pa.Table, kinds: list[str]) -> None:
        """Write `data` in one commit."""
        put(self.table, data, kinds)

    def compact(self) -> None:
        self.table.compact(full=self.dice.random() < 0.5)

    def expire(self) -> None:
        self.table.maintenance().expire_snapshots(1, self.dice.randint(1, 4), at_ms(1 << 60))

    def change(self) -> None:
        self.table = altered(self.table, [self.schema_change()])

    def rescale(self) -> None:
        if int(self.table.schema.options["bucket"]) > 0:
            self.table.rescale(self.dice.randint(1, 4))

    def overwrite(self) -> None:
        """Replace a partition. Streams are not told, so the follower is told by hand."""
        part = self.dice.choice(["x", "y"])
        rows = [{**self.row(), P: part} for _ in range(4)]
        self.table.overwrite(self.as_arrow(rows), {"p": part})
        for key in [key for key in self.state if key[0] == part]:
            del self.state[key]
        for row in rows:
            key = (part, row[K])
            self.state[key] = self._merge(self.state.get(key), row)
        self._begin_again()

    def rollback(self) -> None:
        there = [i for i in self.table.context.snapshots.ids() if i in self.then]
        if not there:
            return
        chosen = self.dice.choice(there)
        self.roll_back(chosen)
        then = self.table.context.schemas.schema(
            self.table.context.snapshots.snapshot(chosen).schema_id
        )  # schemas are not rolled back
        altered(self.table, [SetOption("bucket", then.options["bucket"])])
        self.state = copy.deepcopy(self.then[chosen][0])
        self.then = {i: found for i, found in self.then.items() if i <= chosen}
        self._begin_again()

    def roll_back(self, snapshot: int) -> None:
        """Make `snapshot` the latest again."""
        self.table.rollback_to(snapshot)

    def orphans(self) -> None:
        self.table.remove_orphan_files(older_than=at_ms(SYSTEM_CLOCK.now_ms() - 1))

    def restart(self) -> None:
        self.catalog = FileSystemCatalog(self.table.context.io, self.catalog.warehouse)
        self.table = self.catalog.table(self.name)

    def _begin_again(self) -> None:
        if self.follower is not None:
            self.follower = Follower(self.catalog, self.name, self.follower.number + 1)

    # -- the dice -----------------------------------------------------------------------------------------------------

    def rows_to_write(self) -> tuple[list[Row], list[str]]:
        rows = [self.row() for _ in range(self.dice.randint(1, 25))]
        kinds = [self.dice.choice(["+I", "+U", "+I", "-D" if self._deletes else "+I"]) for _ in rows]
        if self._merge is replace or not self._deletes:
            return rows, kinds
        # In other engines a -D row leaves its values to later rows until it is compacted away, and is itself lost if
        # one comes in the same commit: so it has no values here, and no key comes twice.
        once = {(r[P], r[K]): ({P: r[P], K: r[K]} if k == "-D" else r, k) for r, k in zip(rows, kinds, strict=True)}
        return [r for r, _ in once.values()], [k for _, k in once.values()]

    def row(self) -> Row:
        grouped = "fields.g.sequence-group" in self.table.schema.options
        row: Row = {P: self.dice.choice("xy"), K: self.dice.randint(0, 30)}
        row[G] = self.dice.choice([1, 2, 3, 3] if grouped else [None, 1, 2, 3])
        row |= {A: self.dice.choice([None, *range(-3, 9)]), B: self.dice.choice([None, "s", "t", "é"])}
        for f in self.table.schema.fields:
            if f.id > B:
                value = self.dice.choice([None, 0, 7, -100])
                row[f.id] = str(value) if value is not None and f.type.root is TypeRoot.STRING else value
        return row

    def schema_change(self) -> SchemaChange:
        added = [f for f in self.table.schema.fields if f.id > B]
        what = self.dice.choice(["add", "rename", "drop", "type", "move"] if added else ["add"])
        self._columns += 1
        if what == "add":
            return AddColumn((f"c{self._columns}",), types.int_())
        chosen = self.dice.choice(added)
        if what == "rename":
            return RenameColumn((chosen.name,), f"r{self._columns}")
        if what == "drop":
            return DropColumn((chosen.name,))
        if what == "move":
            return MoveColumn(chosen.name, Position("first"))
        wider = {TypeRoot.INT: types.bigint(), TypeRoot.BIGINT: types.string()}
        return UpdateColumnType((chosen.name,), wider.get(chosen.type.root, types.string()))

    def as_arrow(self, rows: list[Row]) -> pa.Table:
        fields = self.table.schema.fields
        return pa.Table.from_pylist([{f.name: row.get(f.id) for f in fields} for row in rows], arrow_schema(fields))

    # -- what must be so ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Everybody sees what the model says."""
        assert self.read(self.table) == shown(self.state.values(), self.table.schema), self.done
        for snapshot_id in self.table.context.snapshots.ids():
            if snapshot_id in self.then and self.dice.random() < 0.3:
                state, _ = self.then[snapshot_id]
                schema = self.table.context.schemas.schema(self.table.context.snapshots.snapshot(snapshot_id).schema_id)
                assert self.read(self.table, snapshot_id, schema) == shown(state.values(), schema), self.done
        if self.follower is not None and self.dice.random() < 0.5:
            self.follower.follow()
            assert shown(self.follower.state.values(), self.table.schema) == shown(
                self.state.values(), self.table.schema
            ), self.done
            if not self.primary_keys:
                assert self.follower.told == len(self.state), self.done

    @staticmethod
    def read(table: Table, snapshot: int | None = None, schema: TableSchema | None = None) -> list[str]:
        schema = schema or table.schema
        ids = {f.name: f.id for f in schema.fields}
        rows = table.scan(as_of=snapshot).to_arrow().to_pylist()
        return shown([{ids[n]: v for n, v in row.items()} for row in rows], schema)


class AppendLife(Life):
    """A table without a primary key, whose rows are told apart by a number in `k`; and its model."""

    primary_keys = ()

    def __init__(self, catalog: FileSystemCatalog, options: dict[str, str], dice: random.Random) -> None:
        self._rows = 0
        super().__init__(catalog, "deduplicate", options, dice)

    def rows_to_write(self) -> tuple[list[Row], list[str]]:
        rows = [self.row() for _ in range(self.dice.randint(1, 25))]
        return rows, ["+I"] * len(rows)

    def row(self) -> Row:
        self._rows += 1
        return {**super().row(), K: self._rows}

    def put(self, data: pa.Table, kinds: list[str]) -> None:
        put(self.table, data)

    def compact(self) -> None:
        sorts = self.table.context.options.bucket == -1 and self.dice.random() < 0.3
        self.table.compact(full=self.dice.random() < 0.5 or sorts, order_by=["g", "k"] if sorts else ())


class Follower:
    """A stream that is closed and goes on from its state each time."""

    def __init__(self, catalog: FileSystemCatalog, name: str, number: int = 0) -> None:
        self._catalog, self._name, self.number = catalog, name, number
        self._at: Any = None
        self.state: State = {}
        self.told = 0
        self.follow()

    def follow(self) -> None:
        """Take what is new."""
        table = self._catalog.table(self._name).with_options({"consumer-id": f"follower {self.number}"})
        ids = {f.name: f.id for f in table.schema.fields}
        stream = stream_of(table, state=self._at, follow=False)
        for batch in stream:
            for row in batch.to_pylist():
                kind = row.pop("_row_kind")
                self.told += 1
                values = {ids[n]: v for n, v in row.items()}
                key = (values[P], values[K])
                if kind in ("+I", "+U"):
                    self.state[key] = values
                else:
                    self.state.pop(key, None)
        self._at = stream.state()


def shown(rows: Any, schema: TableSchema) -> list[str]:
    """Rows as a schema shows them, in one order."""
    return sorted(repr([_as(f.type.root, row.get(f.id)) for f in schema.fields]) for row in rows)


def _as(root: TypeRoot, value: Any) -> Any:
    return str(value) if root is TypeRoot.STRING and value is not None else value
