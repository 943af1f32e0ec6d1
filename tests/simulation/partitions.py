"""A partitioned table in a history: partitions are created and dropped while clients write, and the invariants."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay.client.connection import Connection
from tests.simulation.histories import NEVER
from tests.simulation.world import Damage

if TYPE_CHECKING:
    from tests.simulation.workload import Workload

PARTS = "sim.parts"
DAYS = ("d0", "d1", "d2", "d3")
"""Partitions; the first of them is never dropped."""


@dataclass
class Try:
    """Something that was asked for at one time and acknowledged at another, or never."""

    asked: float
    answered: float = NEVER


@dataclass
class Written(Try):
    """A row that was given to a partition."""

    day: str = ""


@dataclass
class Partitions:
    """What clients did to the table. It has a primary key by the seed."""

    load: Workload
    has_key: bool
    written: dict[int, Written] = field(default_factory=dict)
    drops: dict[str, list[Try]] = field(default_factory=dict)

    def make_table(self, connection: Connection) -> None:
        connection.create_table(
            PARTS, {"day": pa.string(), "n": pa.int64(), "who": pa.string()}, buckets=2, partition_keys=["day"],
            primary_key=["day", "n"] if self.has_key else (), ignore_if_exists=True,
        )  # fmt: skip

    # ---- what clients do --------------------------------------------------------------------------------------------

    def write(self, connection: Connection, who: str) -> None:
        """Write some rows to one or two partitions, which the writer creates if they are not there."""
        load, rng = self.load, self.load.rng
        days = rng.sample(DAYS, rng.randint(1, 2))
        rows = [{"day": rng.choice(days), "n": load.number(), "who": who} for _ in range(rng.randint(1, 4))]
        for row in rows:
            self.written[row["n"]] = Written(load.sched.now, day=row["day"])
        table = connection.table(PARTS)
        if self.has_key:
            table.upsert(rows)
        else:
            table.append(rows)
        load.world.count("acknowledged")
        for row in rows:
            self.written[row["n"]].answered = load.sched.now
        load.world.note(f"{who} wrote to partitions {rows}")

    def change(self, connection: Connection, who: str) -> None:
        """Create a partition, or drop one with all its rows."""
        load, rng = self.load, self.load.rng
        day = rng.choice(DAYS[1:])
        if rng.random() < 0.4:
            connection.table(PARTS).create_partition({"day": day}, ignore_if_exists=True)
            return
        drop = Try(load.sched.now)
        self.drops.setdefault(day, []).append(drop)
        connection.table(PARTS).drop_partition({"day": day}, ignore_if_not_exists=True)
        drop.answered = load.sched.now
        load.world.note(f"{who} dropped {day}")

    # ---- what must hold ---------------------------------------------------------------------------------------------

    def check(self, connection: Connection) -> None:
        """The rows that are there are those that must be, and may be. Raises `Damage`."""
        there = {info.name for info in connection.table(PARTS).partitions()}
        if not there <= set(DAYS):
            raise Damage(f"partitions that were never made: {sorted(there - set(DAYS))}")
        table = connection.table(PARTS)
        rows = [row for batch in table.changes("earliest", "latest") for row in batch.to_pylist()]
        seen = Counter(row["n"] for row in rows if row["_change_type"] in ("insert", "update_after"))
        twice = sorted(n for n, count in seen.items() if count > 1)
        if twice:
            raise Damage(f"rows of partitions come twice: {twice}")
        for row in rows:
            self._may_be_there(row, there)
        for n, written in self.written.items():
            if n not in seen and written.answered < NEVER and not self._may_be_dropped(written):
                raise Damage(f"acknowledged row {n} is not in partition {written.day}: {written}, {self.drops}")
        if self.has_key:
            scanned = {row["n"]: row["day"] for row in table.scan().to_arrow().to_pylist()}
            folded = {row["n"]: row["day"] for row in rows}
            if scanned != folded:
                raise Damage(f"full scan of partitions differs from the changelog: {scanned} against {folded}")

    def _may_be_there(self, row: dict[str, Any], there: set[str]) -> None:
        written = self.written.get(row["n"])
        if written is None or written.day != row["day"] or row["day"] not in there:
            raise Damage(f"{row} was not written to a partition that there is: {written}, {sorted(there)}")
        for drop in self.drops.get(written.day, ()):
            if written.answered < drop.asked and drop.answered < NEVER:
                raise Damage(f"{row} is there, and its partition was dropped: {written}, {drop}")

    def _may_be_dropped(self, written: Written) -> bool:
        """Whether a drop may have happened after the row was written: all but those that had ended before."""
        return any(drop.answered >= written.asked for drop in self.drops.get(written.day, ()))
