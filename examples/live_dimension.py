"""A stream joined with a live table: each order meets its customer as of that moment.

`orders.join(spark.table("live.shop.customers"))` reads all customers for each micro-batch. Here Spark's workers look up
the customers of their orders by key, once for each task: a change is seen by the next one. The result goes
into a live table and into the lake, each order once. A program changes customers all the while, and a query that is
killed between its table's commit and Spark's note of it does not join anything a second time.

    python examples/live_dimension.py [--rows N] [--directory DIR]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import forebay
import forebay.spark as fb
from forebay.spark import shared_lookup
from story import Feed, Story, fill, follow, forget_last_batch, keyed, play, repeating

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from forebay.inprocess import EmbeddedConnection

TITLE = "A stream looks up rows of a live table"
DELIVERIES = 4
JOINED = "id BIGINT, customer BIGINT, name STRING, version BIGINT"
TABLES = ("live.shop.joined", "lake.shop.joined")

Join = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Customers:
    """The live table, and the program that changes it. `versions` is the model: how often each was changed."""

    def __init__(self, connection: EmbeddedConnection, number: int) -> None:
        self.table = connection.table("shop.customers")
        self._generator = np.random.default_rng(8)
        self.versions = dict.fromkeys(range(number), 0)
        self.table.upsert(rows_of(self.versions))

    def change(self) -> None:
        """Change one customer in twenty, and add one."""
        chosen = self._generator.permutation(list(self.versions))[: max(len(self.versions) // 20, 1)].tolist()
        changed = {n: self.versions[n] + 1 for n in chosen} | {len(self.versions): 0}
        self.table.upsert(rows_of(changed))
        self.versions.update(changed)


def with_customers(table: forebay.Table) -> Join:
    """The function for mapInArrow: joins batches of orders with the customers as they are now."""

    def join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        customers = shared_lookup(table, ["name", "version"])
        customers.refresh()  # else it has rows of the last 10 s, which fewer questions to the servers may be worth
        for batch in batches:
            yield from customers.join(batch, on=["customer"]).to_batches()

    return join


def tell(story: Story) -> None:
    with forebay.embedded(story.folder / "server") as connection:
        fb.attach(story.spark, "live", bootstrap_servers=connection.bootstrap_servers)
        tell_with(story, connection)


def tell_with(story: Story, connection: EmbeddedConnection) -> None:
    number = max(story.rows // 20, 50)
    size = max(story.rows // DELIVERIES, 1)
    generator = np.random.default_rng(9)
    feed = Feed(story.folder / "orders", "id BIGINT, customer BIGINT")
    orders: dict[int, int] = {}
    bounds: list[tuple[dict[int, int], dict[int, int]]] = []

    with story.step(f"A live table of {number:,} customers, and tables for orders with what is known of them"):
        story.sql("CREATE DATABASE live.shop")
        story.sql("CREATE DATABASE lake.shop")
        story.sql(
            """CREATE TABLE live.shop.customers (customer BIGINT NOT NULL, name STRING, version BIGINT)
            TBLPROPERTIES ('primary.key' = 'customer', 'bucket.num' = '2')"""
        )
        for table in TABLES:
            story.sql(f"CREATE TABLE {table} ({JOINED})")
        customers = Customers(connection, number)

    for at in range(DELIVERIES):
        with story.step(f"Delivery {at + 1}: orders come, while a program changes customers"):
            customers.change()
            # Some customers are not in the table, or not yet.
            who = generator.integers(0, number + number // 4, size)
            ids = np.arange(at * size, (at + 1) * size)
            feed.add(pa.table({"id": ids, "customer": who}))
            orders.update(zip(ids.tolist(), who.tolist(), strict=True))
            before = dict(customers.versions)
            with repeating(customers.change, 0.2):
                run(story, feed, customers.table)
            bounds.append((before, dict(customers.versions)))
            compare(story, orders, bounds, size)

    with story.step("The drivers die after the tables' commits, before Spark has noted them, and start again"):
        known = [found(story.spark, table) for table in TABLES]
        customers.change()
        for table in TABLES:
            forget_last_batch(story.folder / "checkpoints" / table)
        run(story, feed, customers.table)
        again = [found(story.spark, table) for table in TABLES]
        story.check("no order is joined a second time", again, known)


def run(story: Story, feed: Feed, customers: forebay.Table) -> None:
    joined = feed.stream(story.spark).mapInArrow(with_customers(customers), JOINED)
    follow(story, *(fill(joined, table, story.folder / "checkpoints" / table) for table in TABLES))


def compare(
    story: Story, orders: dict[int, int], bounds: Sequence[tuple[dict[int, int], dict[int, int]]], size: int
) -> None:
    """Check that each order is there once, with its customer as of the time when its delivery was read."""
    for table in TABLES:
        rows = found(story.spark, table)
        story.check(f"{len(orders):,} orders are in {table}, each once", {n: row[1] for n, row in rows.items()}, orders)
        wrong = {n: row for n, row in rows.items() if not is_of_the_moment(row, *bounds[n // size])}
        story.check("each has its customer, no older than when it came", wrong, {})


def is_of_the_moment(row: tuple[Any, ...], before: dict[int, int], after: dict[int, int]) -> bool:
    """Whether a joined row has what was in the table between two moments."""
    _, customer, name, version = row
    if version is None:
        return name is None and customer not in before
    return name == name_of(customer, version) and before.get(customer, 0) <= version <= after.get(customer, -1)


def found(spark: SparkSession, table: str) -> dict[int, tuple[Any, ...]]:
    return keyed(spark.table(table).toArrow(), "id")


def name_of(customer: int, version: int) -> str:
    return f"customer {customer}, {version} times renamed"


def rows_of(versions: dict[int, int]) -> pa.Table:
    return pa.table(
        {
            "customer": pa.array(versions, pa.int64()),
            "name": pa.array([name_of(n, version) for n, version in versions.items()], pa.string()),
            "version": pa.array(versions.values(), pa.int64()),
        }
    )


def main(arguments: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    return play(tell, TITLE, 40_000, arguments, spark)


if __name__ == "__main__":
    raise SystemExit(main())
