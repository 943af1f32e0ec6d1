"""Change data capture: a database's changes become live tables, and their changes a wide table and sums in the lake.

Debezium reports what happens to two tables of a shop's database: orders and payments. Spark makes two live tables of
that, rows that change and vanish included. The changelogs of these go on into the lake: into one wide table, whose
merge engine `partial-update` puts an order and its payment side by side, and into sums by customer, which `aggregation`
corrects when an order changes. Who has yesterday's sums reads the changes since then only. A query is killed at the
worst moment, and a line is no change event: it goes into a table of its own.

    python examples/change_capture.py [--rows N] [--directory DIR]
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forebay
import forebay.spark as fb
from story import Story, fill, follow, forget_last_batch, keyed, play

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TITLE = "Change data capture: Debezium, live tables, and a lake that follows"
DAYS = 4
CUSTOMERS = 50
EVENTS_PER_FILE = 10_000
"""Spark reads a file of this size in one task, in order, as it does a partition of Kafka."""

COLUMNS = {
    "orders": "id BIGINT NOT NULL, customer BIGINT, cents BIGINT",
    "payments": "id BIGINT NOT NULL, method STRING, paid BIGINT",
}
METHODS = ("card", "cash", "transfer")

Row = tuple[Any, ...]


class Database:
    """Two tables, and Debezium's reports of their changes as files of JSON. The tables are the model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._random = random.Random(11)
        self.tables: dict[str, dict[int, Row]] = {"orders": {}, "payments": {}}
        self.broken = 0
        self._events: dict[str, list[str]] = {"orders": [], "payments": []}
        self._files = self._next = 0
        for name in self.tables:
            (folder / name).mkdir(parents=True)

    def day(self, orders: int) -> None:
        """New orders, most of them paid; older ones are changed, given to other customers, and cancelled."""
        for order in list(self.tables["orders"]):
            fate = self._random.random()
            if fate < 0.1:
                self._set("orders", order, None)
                self._set("payments", order, None)
            elif fate < 0.3:
                self._set("orders", order, self._order())
        for order in range(self._next, self._next + orders):
            self._set("orders", order, self._order())
            if self._random.random() < 0.7:
                self._set("payments", order, (self._random.choice(METHODS), self._random.randrange(10_000)))
        self._next += orders
        self._events["orders"].append("this line is no change event")
        self.broken += 1
        self._write()

    def _order(self) -> Row:
        return self._random.randrange(CUSTOMERS), self._random.randrange(1, 10_000)

    def _set(self, table: str, key: int, row: Row | None) -> None:
        rows = self.tables[table]
        before = rows.pop(key, None)
        if row is not None:
            rows[key] = row
        if before is None and row is None:
            return
        names = [column.split()[0] for column in COLUMNS[table].split(", ")]
        images = [None if each is None else dict(zip(names, (key, *each), strict=True)) for each in (before, row)]
        op = "c" if before is None else "d" if row is None else "u"
        self._events[table].append(json.dumps({"before": images[0], "after": images[1], "op": op}))

    def _write(self) -> None:
        for table, events in self._events.items():
            for start in range(0, len(events), EVENTS_PER_FILE):
                path = self.folder / table / f"{self._files:06}.json"
                hidden = path.with_name(f".{path.name}")  # a stream must not see an incomplete file
                hidden.write_text("\n".join(events[start : start + EVENTS_PER_FILE]))
                os.utime(hidden, (self._files, self._files))  # Spark takes files in the order of their times
                hidden.rename(path)
                self._files += 1
            events.clear()

    def wide(self) -> dict[int, Row]:
        """Each order with its payment, or nulls."""
        payments = self.tables["payments"]
        return {
            order: (order, *row, *payments.get(order, (None, None))) for order, row in self.tables["orders"].items()
        }

    def by_customer(self) -> dict[int, Row]:
        """The number of each customer's orders, and the sum of their prices."""
        found: dict[int, Row] = {}
        for customer, cents in self.tables["orders"].values():
            _, orders, total = found.get(customer, (customer, 0, 0))
            found[customer] = customer, orders + 1, total + cents
        return found


def tell(story: Story) -> None:
    with forebay.embedded(story.folder / "server") as connection:
        fb.attach(story.spark, "live", bootstrap_servers=connection.bootstrap_servers)
        tell_with(story)


def tell_with(story: Story) -> None:
    shop = Database(story.folder / "debezium")

    with story.step("Make live tables like those of the database, and two tables in the lake that follow them"):
        story.sql("CREATE DATABASE live.shop")
        story.sql("CREATE DATABASE lake.shop")
        for name, columns in COLUMNS.items():
            story.sql(
                f"""CREATE TABLE live.shop.{name} ({columns})
                TBLPROPERTIES ('primary.key' = 'id', 'bucket.num' = '2')"""
            )
        story.sql("CREATE TABLE live.shop.no_events (value STRING, error STRING)")
        story.sql(
            """CREATE TABLE lake.shop.wide (id BIGINT NOT NULL, order_at BIGINT, customer BIGINT, cents BIGINT,
            payment_at BIGINT, method STRING, paid BIGINT)
            TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '2', 'merge-engine' = 'partial-update',
            'fields.order_at.sequence-group' = 'customer,cents',
            'fields.payment_at.sequence-group' = 'method,paid')"""
        )
        story.sql(
            """CREATE TABLE lake.shop.by_customer (customer BIGINT NOT NULL, orders BIGINT, cents BIGINT)
            TBLPROPERTIES ('primary-key' = 'customer', 'bucket' = '1', 'merge-engine' = 'aggregation',
            'fields.default-aggregate-function' = 'sum', 'changelog-producer' = 'lookup')"""
        )

    yesterday: tuple[int, dict[int, Row]] = (0, {})
    for number in range(DAYS):
        with story.step(f"Day {number + 1}: the database changes, and all tables follow"):
            shop.day(max(story.rows // DAYS, 1))
            run(story, shop)
            compare(story, shop)
        if number == 1:
            with story.step("The drivers die after the tables' commits, before Spark has noted them, and start again"):
                for checkpoint in (story.folder / "checkpoints").iterdir():
                    forget_last_batch(checkpoint)
                run(story, shop)
                compare(story, shop)
        with story.step("Whoever has the sums of the day before reads what has changed since"):
            yesterday = follow_sums(story, yesterday, shop)

    with story.step("What was no event"):
        found = story.sql("SELECT count(*) FROM live.shop.no_events WHERE value LIKE 'this line%'").collect()[0][0]
        story.check("each line that is no change event is kept, once", found, shop.broken)


def run(story: Story, shop: Database) -> None:
    """Let all queries take what is there: first those of the live tables, then those of the lake."""
    checkpoints, events = story.folder / "checkpoints", {}
    for name in COLUMNS:
        lines = story.spark.readStream.option("maxFilesPerTrigger", 1).text(str(shop.folder / name))
        events[name] = lines.where("value <> ''")
    follow(
        story,
        *(
            fill(fb.from_debezium(events[name], columns, wrong="drop"), f"live.shop.{name}", checkpoints / name)
            for name, columns in COLUMNS.items()
        ),
        fill(wrong_events(events["orders"]), "live.shop.no_events", checkpoints / "no_events"),
    )
    orders, payments = (story.spark.readStream.table(f"live.shop.`{name}$changelog`") for name in COLUMNS)
    follow(
        story,
        # A key is always in the same bucket, so its offsets grow: they say which of its rows is the newest.
        fill(
            orders.selectExpr("_change_type", "id", "_log_offset AS order_at", "customer", "cents"),
            "lake.shop.wide",
            checkpoints / "wide_orders",
        ),
        fill(
            payments.selectExpr("_change_type", "id", "_log_offset AS payment_at", "method", "paid"),
            "lake.shop.wide",
            checkpoints / "wide_payments",
        ),
        fill(
            orders.selectExpr("_change_type", "customer", "1L AS orders", "cents"),
            "lake.shop.by_customer",
            checkpoints / "by_customer",
        ),
    )


def wrong_events(lines: DataFrame) -> DataFrame:
    found = fb.from_debezium(lines, COLUMNS["orders"], wrong="only")
    return found.selectExpr("value", "_error AS error")


def compare(story: Story, shop: Database) -> None:
    for name, rows in shop.tables.items():
        found = keyed(story.spark.table(f"live.shop.{name}").toArrow(), "id")
        story.check(f"{len(rows):,} {name} are as in the database", found, {key: (key, *rows[key]) for key in rows})
    # What is left of a cancelled order is a row of nulls.
    wide = story.spark.sql("SELECT id, customer, cents, method, paid FROM lake.shop.wide WHERE customer IS NOT NULL")
    story.check("each order is beside its payment", keyed(wide.toArrow(), "id"), shop.wide())
    story.check("the sums are those of the orders", sums(story.spark), shop.by_customer())


def sums(spark: SparkSession) -> dict[int, Row]:
    # A customer whose orders are all cancelled has sums of 0.
    return keyed(spark.table("lake.shop.by_customer").where("orders > 0").toArrow(), "customer")


def follow_sums(story: Story, before: tuple[int, dict[int, Row]], shop: Database) -> tuple[int, dict[int, Row]]:
    """Apply the changes since a snapshot to the sums of then; return the newest snapshot and its sums."""
    snapshot, known = before
    newest = story.spark.sql("SELECT max(snapshot_id) FROM lake.shop.`by_customer$snapshots`").collect()[0][0]
    changes = story.sql(
        f"""SELECT _change_type, customer, orders, cents FROM lake.shop.`by_customer$changelog`
        WITH ('incremental-between' = '{snapshot},{newest}')"""
    )
    known = dict(known)
    taken = 0
    for kind, *row in map(tuple, changes.collect()):
        taken += 1
        if kind in ("insert", "update_after"):
            known[row[0]] = tuple(row)
        elif known.get(row[0]) == tuple(row):
            del known[row[0]]
    story.check(
        f"{taken:,} changes lead from snapshot {snapshot} to {newest}",
        {customer: row for customer, row in known.items() if row[1]},
        shop.by_customer(),
    )
    return newest, known


def main(arguments: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    return play(tell, TITLE, 20_000, arguments, spark)


if __name__ == "__main__":
    raise SystemExit(main())
