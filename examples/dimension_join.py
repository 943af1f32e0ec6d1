"""Dimension lookup join: a stream of orders is joined with a table of customers that changes meanwhile.

A broadcast join in Spark reads all customers for each micro-batch. A lookup table keeps a copy of them, finds the
requested ones by key, and follows the table: only new files are copied. Each order is joined with the customers of one
snapshot, and records its id, so the result can be checked against the customers of that time.

    python examples/dimension_join.py [--rows N] [--directory DIR]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from forebay.paimon import Catalog
from forebay.spark import shared_lookup
from story import Feed, Story, fill, follow, keyed, play, repeating

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from forebay.api.results import WriteResult
    from forebay.paimon.lookup.lake_lookup import LakeLookupTable
    from forebay.paimon.table import Table

TITLE = "Dimension lookup join"
BATCHES = 4
JOINED = "id BIGINT, customer BIGINT, name STRING, level BIGINT, snapshot BIGINT"

Versions = list[tuple[int, dict[int, str]]]
"""Snapshot ids, ascending, each with the customers' names that it wrote."""


class Customers:
    """The dimension table, the program that changes it, and a model of every version."""

    def __init__(self, table: Table, number: int) -> None:
        self.table = table
        self._generator = np.random.default_rng(4)
        self._now = {n: f"customer {n}" for n in range(number)}
        self.versions: Versions = []
        self._written(table.upsert(rows_of(self._now, 0)))

    def change(self) -> None:
        """Rename one customer in twenty, remove one, and add one."""
        change = len(self.versions)
        gone, *others = self._generator.permutation(list(self._now))[: max(len(self._now) // 20, 2)].tolist()
        changed = {n: f"customer {n} after change {change}" for n in others}
        changed[max(self._now) + 1] = f"customer new with change {change}"
        del self._now[gone]
        self._now.update(changed)
        # One commit for all, so that no snapshot has half a change.
        rows = pa.concat_tables([rows_of(changed, change), rows_of({gone: ""}, change)])
        kinds = pa.array(["insert"] * len(changed) + ["delete"])
        self._written(self.table.write_changes(rows.append_column("_change_type", kinds)))

    def _written(self, result: WriteResult) -> None:
        self.versions.append((result.snapshot.id, dict(self._now)))

    def at(self, snapshot: int) -> dict[int, str]:
        """The customers as of a snapshot. Snapshots of compactions have those of the previous one."""
        return next(names for made, names in reversed(self.versions) if made <= snapshot)


class Joining:
    """Joins a micro-batch on the driver, and stores the result in a lake table, each batch once.

    `customers` is the lookup table. Batch numbers are Spark's: a batch that is repeated after a crash is already
    committed.
    """

    def __init__(self, customers: LakeLookupTable, target: Table) -> None:
        self._customers, self._target = customers, target
        self.seconds = 0.0

    def __call__(self, batch: DataFrame, number: int) -> None:
        orders = batch.toArrow()
        began = time.monotonic()
        self._customers.refresh()  # otherwise it checks for a snapshot once per `continuous.discovery-interval`, 10 s
        joined = with_snapshot(self._customers, orders)
        self.seconds += time.monotonic() - began
        with self._target.stream_writer(user="dimension-join") as writer:
            if writer.last_committed is None or number > writer.last_committed:
                writer.append(joined)
                writer.commit(number)


def with_snapshot(customers: LakeLookupTable, orders: pa.Table) -> pa.Table:
    """`orders` with name and level of their customers, and the snapshot that these are from."""
    joined = customers.join(orders, on=["customer"])
    return joined.append_column("snapshot", pa.array([customers.snapshot_id] * joined.num_rows, pa.int64()))


def in_workers(table: Table) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow: each worker has its own lookup table, and keeps it from task to task."""

    def join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        customers = shared_lookup(table, ["name", "level"])
        customers.refresh()
        for batch in batches:
            joined = customers.join(batch, on=["customer"])
            snapshot = pa.array([customers.snapshot_id] * joined.num_rows, pa.int64())
            yield from joined.append_column("snapshot", snapshot).to_batches()

    return join


def tell(story: Story) -> None:
    number = max(story.rows // 10, 50)
    lake = Catalog.open(story.warehouse)
    generator = np.random.default_rng(5)

    with story.step(f"A table of {number:,} customers, and orders by them"):
        story.sql("CREATE DATABASE lake.shop")
        story.sql(
            """CREATE TABLE lake.shop.customers (customer BIGINT NOT NULL, name STRING, level BIGINT)
            TBLPROPERTIES ('primary-key' = 'customer', 'bucket' = '2')"""
        )
        for way in ("memory", "disk", "workers"):
            story.spark.sql(f"CREATE TABLE lake.shop.joined_{way} ({JOINED})")
        customers = Customers(lake.table("shop.customers"), number)
        feed = Feed(story.folder / "orders", "id BIGINT, customer BIGINT")
        size = max(story.rows // BATCHES, 1)
        for at in range(BATCHES):
            # One in ten customers does not exist.
            who = generator.integers(0, number + number // 10, size)
            feed.add(pa.table({"id": np.arange(at * size, (at + 1) * size), "customer": who}))
        story.say(f"{BATCHES * size:,} orders in {BATCHES} micro-batches")

    for way, options in (("memory", {}), ("disk", {"lookup.cache-max-memory-size": "1 kb"})):
        with story.step(f"The stream meets customers who are kept {WHERE[way]}, while a program changes them"):
            dimension = customers.table.with_options(options)
            with dimension.lookup_table(["name", "level"]) as lookup, repeating(customers.change, 0.3):
                joining = Joining(lookup, lake.table(f"shop.joined_{way}"))
                run(story, feed, joining, way)
            story.say(f"{BATCHES * size:,} customers looked up in {joining.seconds:.2f} s")
            compare(story, customers, feed, way)

    with story.step("The same in Spark's workers, which divide the orders among them"):
        with repeating(customers.change, 0.3):
            orders = feed.stream(story.spark).repartition(2)
            joined = orders.mapInArrow(in_workers(customers.table), JOINED)
            follow(story, fill(joined, "lake.shop.joined_workers", story.folder / "checkpoints" / "workers"))
        compare(story, customers, feed, "workers")


WHERE = {"memory": "in memory", "disk": "on the local disk"}


def run(story: Story, feed: Feed, joining: Joining, name: str) -> None:
    writer = feed.stream(story.spark).writeStream.foreachBatch(joining).trigger(availableNow=True).queryName(name)
    follow(story, writer.option("checkpointLocation", str(story.folder / "checkpoints" / name)).start())


def compare(story: Story, customers: Customers, feed: Feed, way: str) -> None:
    """Check that each order is there once, joined with its customer as of the snapshot that it names."""
    joined = story.spark.table(f"lake.shop.joined_{way}").toArrow()
    orders = story.spark.read.parquet(str(feed.folder)).toArrow()
    found = keyed(joined.select(["id", "customer", "name", "snapshot"]), "id")
    expected = {}
    for order in orders.to_pylist():
        snapshot = found[order["id"]][-1] if order["id"] in found else 1
        expected[order["id"]] = (*order.values(), customers.at(snapshot).get(order["customer"]), snapshot)
    met = sorted({snapshot for *_, snapshot in found.values()})
    story.check(f"{len(found):,} orders met the customers of their moment (snapshots {met})", found, expected)
    story.check("the customers changed meanwhile", len(met) > 1, True)


def rows_of(names: dict[int, str], level: int) -> pa.Table:
    return pa.table(
        {
            "customer": pa.array(names, pa.int64()),
            "name": pa.array(names.values(), pa.string()),
            "level": pa.array([level] * len(names), pa.int64()),
        }
    )


def main(arguments: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    return play(tell, TITLE, 40_000, arguments, spark)


if __name__ == "__main__":
    raise SystemExit(main())
