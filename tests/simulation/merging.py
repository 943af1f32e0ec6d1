"""A table with a merge engine in a history: what is written is merged once, whatever fails, and the invariants."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay.client.connection import Connection
from tests.simulation.world import Damage

if TYPE_CHECKING:
    from tests.simulation.workload import Workload

MERGED = "sim.merged"
KEYS = 4
ENGINES: dict[str, dict[str, str]] = {
    "aggregation": {"fields.n.agg": "sum", "fields.top.agg": "max", "fields.names.agg": "listagg"},
    "first_row": {},
    "versioned": {"table.merge-engine.versioned.ver-column": "top"},
}

Row = dict[str, Any]


@dataclass
class Given:
    """A row that was given to the table, by its number; of a transaction its writer's name."""

    key: int
    staged_by: str | None = None
    is_acked: bool = False


@dataclass
class Merging:
    """What clients gave to the table. A row has its number in all columns, so that a merged row shows its parts."""

    load: Workload
    engine: str
    given: dict[int, Given] = field(default_factory=dict)

    def make_table(self, connection: Connection, options: dict[str, str]) -> None:
        connection.create_table(
            MERGED, {"id": pa.int32(), "n": pa.int64(), "top": pa.int64(), "names": pa.string()}, primary_key=["id"],
            buckets=2, options={**options, **ENGINES[self.engine], "table.merge-engine": self.engine},
            ignore_if_exists=True,
        )  # fmt: skip

    # ---- what clients do --------------------------------------------------------------------------------------------

    def rows(self, count: int, staged_by: str | None = None) -> list[Row]:
        """New rows, which are noted as given. A key may repeat."""
        made = []
        for _ in range(count):
            n, key = self.load.number(), self.load.rng.randrange(KEYS)
            self.given[n] = Given(key, staged_by)
            made.append({"id": key, "n": n, "top": n, "names": str(n)})
        return made

    def write(self, connection: Connection, who: str) -> None:
        """Upsert some rows, or delete one, which the engine ignores."""
        load = self.load
        table = connection.table(MERGED)
        if load.rng.random() < 0.1:
            table.delete([{"id": load.rng.randrange(KEYS)}])
            return
        rows = self.rows(load.rng.randint(1, 4))
        table.upsert(rows)
        load.world.count("acknowledged")
        for row in rows:
            self.given[row["n"]].is_acked = True
        load.world.note(f"{who} merged {rows}")

    # ---- what must hold ---------------------------------------------------------------------------------------------

    def check(self, connection: Connection) -> None:
        """Rows are what the engine makes of rows that were given, each of them once. Raises `Damage`."""
        table = connection.table(MERGED)
        folded = self._fold([row for batch in table.changes("earliest", "latest") for row in batch.to_pylist()])
        for source in ("live", "union") if self.load.lake else ("live",):
            scanned = {row["id"]: _values(row) for row in table.scan(source=source).to_arrow().to_pylist()}
            if scanned != folded:
                raise Damage(f"{source} scan of {MERGED} differs from its changelog: {scanned} against {folded}")
        parts = {key: [int(name) for name in names.split(",")] for key, (_, _, names) in folded.items()}
        for key, numbers in parts.items():
            strange = [n for n in numbers if n not in self.given or self.given[n].key != key]
            if strange or max(Counter(numbers).values()) > 1:
                raise Damage(f"key {key} of {MERGED} is merged of {numbers}: {strange} were not given, or some twice")
        outcomes = {staged.who: staged.outcome for staged in self.load.seen.transactions}
        must = {n for n, given in self.given.items() if self._must_count(given, outcomes)}
        if self.engine == "aggregation":
            self._check_sums(folded, parts, must, outcomes)
        for n in must:
            kept = parts.get(self.given[n].key)
            if kept is None or (self.engine == "versioned" and kept[0] < n):
                raise Damage(f"row {n} was acknowledged, and {MERGED} has {kept} of key {self.given[n].key}")
        dropped = [n for of in parts.values() for n in of if outcomes.get(self.given[n].staged_by or "") == "dropped"]
        if dropped:
            raise Damage(f"rows of transactions that were dropped are in {MERGED}: {dropped}")

    def _must_count(self, given: Given, outcomes: dict[str, str]) -> bool:
        return given.is_acked or outcomes.get(given.staged_by or "") == "committed"

    def _check_sums(
        self, folded: dict[int, Any], parts: dict[int, list[int]], must: set[int], outcomes: dict[str, str]
    ) -> None:
        there = {n for numbers in parts.values() for n in numbers}
        for key, (total, top, _) in folded.items():
            if (total, top) != (sum(parts[key]), max(parts[key])):
                raise Damage(f"key {key} of {MERGED}: sum {total} and maximum {top} of {parts[key]}")
        if not must <= there:
            raise Damage(f"acknowledged rows are not in {MERGED}: {sorted(must - there)}")
        for who in outcomes:
            of = {n for n, given in self.given.items() if given.staged_by == who}
            if of & there and not of <= there:
                raise Damage(f"{MERGED} has {sorted(of & there)} of transaction {who}, which has {sorted(of)}")

    def _fold(self, changes: list[Row]) -> dict[int, Any]:
        """The rows after the changes, each of which must fit what was before it."""
        state: dict[int, Any] = {}
        for row in changes:
            kind, key = row["_change_type"], row["id"]
            before = state.get(key)
            fits = {
                "insert": before is None,
                "update_before": before == _values(row),
                "update_after": before is not None,
            }
            if not fits.get(kind) or (self.engine == "first_row" and kind != "insert"):
                raise Damage(f"changelog of {MERGED}: {row} after {before}")
            if kind != "update_before":
                state[key] = _values(row)
        return state


def _values(row: Row) -> tuple[int, int, str]:
    return row["n"], row["top"], row["names"]
