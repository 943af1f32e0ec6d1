"""Partial update: three streams write one wide table, each its own columns, in any order.

An order, its payment and its shipment come from three independent systems. Joining three streams needs state for as
long as a payment may be late. Here nothing is joined: each stream writes its own columns, and the table merges the rows
of a key. A sequence group for each stream determines which of its rows is the newest, so rows may arrive late, twice
and out of order.

    python examples/partial_update.py [--rows N] [--directory DIR]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from story import Feed, Story, fill, follow, keyed, play

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TITLE = "Partial update of a wide table"
TABLE = "lake.shop.wide_orders"
BATCHES = 3
VERSIONS_MAX = 3


@dataclass(frozen=True)
class Source:
    """A system that reports a `share` of the orders, in rows with a version and two columns."""

    name: str
    share: float
    version: str
    columns: dict[str, pa.DataType]

    @property
    def sql(self) -> str:
        types = {pa.int64(): "BIGINT", pa.string(): "STRING"}
        return ", ".join(f"{name} {types[kind]}" for name, kind in self.columns.items())

    def events(self, orders: int, generator: np.random.Generator) -> list[dict[str, Any]]:
        """One to three versions of each order that the source knows, shuffled; some of them twice."""
        made = []
        for order in np.flatnonzero(generator.random(orders) < self.share).tolist():
            for version in range(1, int(generator.integers(1, VERSIONS_MAX + 1)) + 1):
                made.append({"order_id": order, self.version: version, **self._values(generator)})
        twice = [made[at] for at in generator.integers(0, len(made), len(made) // 10).tolist()]
        all_events = made + twice
        return [all_events[at] for at in generator.permutation(len(all_events)).tolist()]

    def _values(self, generator: np.random.Generator) -> dict[str, Any]:
        """The two values of a row. Texts may be missing: a newer null overrides an older value."""
        values: dict[str, Any] = {}
        for name, kind in self.columns.items():
            number = int(generator.integers(0, 1000))
            values[name] = number if kind == pa.int64() else None if number < 100 else f"{name} {number}"
        return values

    def rows(self, events: list[dict[str, Any]]) -> pa.Table:
        schema = pa.schema([("order_id", pa.int64()), (self.version, pa.int64()), *self.columns.items()])
        return pa.Table.from_pylist(events, schema)


SOURCES = (
    Source("orders", 1.0, "order_version", {"customer": pa.string(), "cents": pa.int64()}),
    Source("payments", 0.8, "payment_version", {"method": pa.string(), "paid_cents": pa.int64()}),
    Source("shipments", 0.6, "shipment_version", {"carrier": pa.string(), "parcels": pa.int64()}),
)


def joined(orders: int, events: dict[str, list[dict[str, Any]]]) -> dict[int, tuple[Any, ...]]:
    """The model: the newest version that each source has of an order, side by side."""
    wide: dict[int, dict[str, Any]] = {order: {"order_id": order} for order in range(orders)}
    for source in SOURCES:
        newest: dict[int, dict[str, Any]] = {}
        for event in events[source.name]:
            known = newest.get(event["order_id"])
            if known is None or event[source.version] > known[source.version]:
                newest[event["order_id"]] = event
        for order, row in wide.items():
            found = newest.get(order, {})
            row.update({name: found.get(name) for name in (source.version, *source.columns)})
    return {order: tuple(row.values()) for order, row in wide.items()}


def tell(story: Story) -> None:
    generator = np.random.default_rng(2)
    events = {source.name: source.events(story.rows, generator) for source in SOURCES}

    with story.step("Make the wide table: a sequence group for the columns of each source"):
        story.sql("CREATE DATABASE lake.shop")
        columns = ",\n".join(f"{source.version} BIGINT, {source.sql}" for source in SOURCES)
        groups = ",\n".join(f"'fields.{s.version}.sequence-group' = '{','.join(s.columns)}'" for s in SOURCES)
        story.sql(
            f"""CREATE TABLE {TABLE} (order_id BIGINT NOT NULL,
            {columns})
            TBLPROPERTIES ('primary-key' = 'order_id', 'bucket' = '2', 'merge-engine' = 'partial-update',
            {groups})"""
        )

    with story.step("Three streams write it at the same time; rows are late, out of order, and some come twice"):
        queries = []
        for source in SOURCES:
            feed = Feed(story.folder / source.name, f"order_id BIGINT, {source.version} BIGINT, {source.sql}")
            told = events[source.name]
            story.say(f"{source.name}: {len(told):,} rows of {len({e['order_id'] for e in told}):,} orders")
            for at in range(BATCHES):
                feed.add(source.rows(told[at::BATCHES]))
            queries.append(fill(feed.stream(story.spark), TABLE, story.folder / "checkpoints" / source.name))
        follow(story, *queries)

    with story.step("Compare with the join of what the three systems know"):
        expected = joined(story.rows, events)
        story.check(f"all {len(expected):,} orders are as the join has them, every column", read(story), expected)
        waiting = story.sql(f"SELECT count(*) FROM {TABLE} WHERE payment_version IS NULL").collect()[0][0]
        story.check(
            f"{waiting:,} orders wait for their payment", waiting, sum(row[4] is None for row in expected.values())
        )

    with story.step("A row that is too late, and a compaction"):
        payments = SOURCES[1]
        paid = next(order for order, row in expected.items() if row[4] is not None)
        late = payments.rows([{"order_id": paid, payments.version: 0, "method": "too late", "paid_cents": -1}])
        story.spark.createDataFrame(late).writeTo(TABLE).append()
        story.check("a row older than what is there changes nothing", read(story), expected)
        story.sql(f"CALL lake.sys.compact(table => '{TABLE.removeprefix('lake.')}')").collect()
        story.check("nor does compaction", read(story), expected)


def read(story: Story) -> dict[int, tuple[Any, ...]]:
    return keyed(story.spark.table(TABLE).toArrow(), "order_id")


def main(arguments: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    return play(tell, TITLE, 20_000, arguments, spark)


if __name__ == "__main__":
    raise SystemExit(main())
