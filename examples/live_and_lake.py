"""Real-time warehouse enhancement: log and lake in one table. Back-fill first, then live rows.

A warehouse has years of history in files, but not the last minutes. Here one table has both: history is loaded once,
tiering moves it into the lake, live changes follow through the log, and tiering continues. A query reads lake and log
as one table and is exact at any time; a stream begins with all rows and continues with every change.

    python examples/live_and_lake.py [--rows N] [--directory DIR]
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import forebay
import forebay.spark as fb
from forebay.spark.tiering import start_tiering
from story import TELL_SECONDS, Story, keyed, play

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from forebay.inprocess import EmbeddedConnection

TITLE = "Real-time warehouse enhancement: log and lake in one table"
TABLE = "shop.stock"
CHANGES_PER_ROUND = 40
ROUNDS_MIN = 12
SNAPSHOTS_MIN = 4
"""Live changes continue until reads have started from this many snapshots of the lake."""
PAUSE_SECONDS = 0.1
PATIENCE_SECONDS = 300

Stock = dict[int, tuple[Any, ...]]
"""By item: the item, pieces, and the number of its last change."""


class Shop:
    """Generates changes of the stock, and records them: the model."""

    def __init__(self, items: int) -> None:
        self._generator = np.random.default_rng(6)
        self.stock: Stock = {n: (n, n % 100, 0) for n in range(items)}
        self.records = items
        """The number of records of the changes so far in the table's log: an insert 1, an update 2, a deletion 1."""
        self._changes = 0

    def change(self) -> tuple[pa.Table, pa.Table]:
        """The rows to upsert (new items and known ones), and the keys of items that are sold out."""
        known = self._generator.permutation(list(self.stock))[: CHANGES_PER_ROUND * 3 // 4].tolist()
        gone, counted = known[:5], known[5:]
        self._changes += 1
        new = [max(self.stock) + 1 + n for n in range(CHANGES_PER_ROUND // 4)]
        upserted = {n: (n, int(self._generator.integers(0, 100)), self._changes) for n in counted + new}
        self.records += 2 * len(counted) + len(new) + len(gone)
        self.stock.update(upserted)
        for item in gone:
            del self.stock[item]
        return rows_of(upserted), pa.table({"item": pa.array(gone, pa.int64())})


class Follower:
    """The state that a reader builds from the stream of changes: the rows, and the log offsets in order."""

    def __init__(self) -> None:
        self.stock: Stock = {}
        self.from_start = 0
        self.offsets: list[int] = []

    def __call__(self, batch: DataFrame, number: int) -> None:
        for change in sorted(batch.toArrow().to_pylist(), key=lambda row: row["_log_offset"]):
            if change["_log_offset"] < 0:  # a row that existed when the stream began
                self.from_start += 1
            else:
                self.offsets.append(change["_log_offset"])
            row = (change["item"], change["pieces"], change["change"])
            if change["_change_type"] in ("insert", "update_after"):
                self.stock[row[0]] = row
            elif self.stock.pop(row[0]) != row:
                raise ValueError(f"{change['_change_type']} of {row}, which is not what was there before")


def rows_of(stock: Stock) -> pa.Table:
    columns = list(zip(*stock.values(), strict=True))
    return pa.table([pa.array(c, pa.int64()) for c in columns], names=["item", "pieces", "change"])


def tell(story: Story) -> None:
    settings = {"datalake.format": "paimon", "datalake.paimon.warehouse": str(story.folder / "server-lake")}
    with forebay.embedded(story.folder / "server", settings=settings) as connection:
        fb.attach(story.spark, "live", bootstrap_servers=connection.bootstrap_servers)
        tell_with(story, connection)


def tell_with(story: Story, connection: EmbeddedConnection) -> None:
    shop, table = Shop(story.rows), None

    with story.step("Make a table with a lake behind it, and load the history"):
        story.sql("CREATE DATABASE live.shop")
        story.sql(
            f"""CREATE TABLE live.{TABLE} (item BIGINT NOT NULL, pieces BIGINT, change BIGINT)
            TBLPROPERTIES ('primary.key' = 'item', 'bucket.num' = '1',
            'table.datalake.enabled' = 'true', 'table.datalake.freshness' = '1 s')"""
        )
        table = connection.table(TABLE)
        story.sql(f"INSERT INTO live.{TABLE} SELECT id, id % 100, 0 FROM range({story.rows})")
        story.check(f"{story.rows:,} rows are in the table", union(table), shop.stock)

    with story.step("Tier it once: the history is in the lake"):
        story.sql(f"CALL live.sys.start_tiering(once => true, tables => array('{TABLE}'))").collect()
        in_lake = story.sql("SELECT count(*) FROM live.shop.`stock$lake`").collect()[0][0]
        story.check("the lake has all of it", in_lake, story.rows)

    follower = Follower()
    changes = story.spark.readStream.option("scan.startup.mode", "full").table("live.shop.`stock$changelog`")
    query = (
        changes.writeStream.foreachBatch(follower)
        .option("checkpointLocation", str(story.folder / "checkpoint"))
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    try:
        with story.step("A stream begins: first all rows there are"):
            query.processAllAvailable()
            story.check(
                "it has the history, each row once", (follower.from_start, follower.stock), (story.rows, shop.stock)
            )

        with story.step("Live changes; meanwhile tiering moves them into the lake, and every moment is queried"):
            with start_tiering(story.spark, connection.bootstrap_servers, poll_seconds=0.5):
                live(story, connection, shop)
            query.processAllAvailable()
            story.say(f"the table has {len(shop.stock):,} rows now")
    finally:
        query.stop()

    with story.step("What the stream has seen"):
        story.check("it holds what the table holds", follower.stock, shop.stock)
        story.check(
            f"of {shop.records - story.rows:,} live records it has seen each once, in order, none left out",
            follower.offsets,
            list(range(story.rows, shop.records)),
        )
        story.check("Spark SQL agrees", keyed(story.spark.table(f"live.{TABLE}").toArrow(), "item"), shop.stock)


def live(story: Story, connection: EmbeddedConnection, shop: Shop) -> None:
    """Change the stock repeatedly, and read the table after every change, until tiering has moved on often enough."""
    table = connection.table(TABLE)
    rounds = exact = 0
    snapshots: set[int] = set()
    began = told = time.monotonic()
    while rounds < ROUNDS_MIN or len(snapshots) < SNAPSHOTS_MIN:
        upserts, deletes = shop.change()
        table.upsert(upserts)
        table.delete(deletes)
        rounds += 1
        exact += union(table) == shop.stock
        lake = connection.admin.lake_snapshot(TABLE)
        now = time.monotonic()
        if lake.snapshot_id not in snapshots or now - told >= TELL_SECONDS:
            offset = max(lake.log_offsets.values())
            story.say(f"round {rounds}: {shop.records:,} records so far, {offset:,} of them in the lake")
            told = now
        snapshots.add(lake.snapshot_id)
        if now - began > PATIENCE_SECONDS:
            raise TimeoutError(f"in {PATIENCE_SECONDS} s tiering made {len(snapshots) - 1} snapshots of the lake")
        time.sleep(PAUSE_SECONDS)
    story.check(f"lake and log, read as one {rounds} times, were exact every time", exact, rounds)
    story.say(f"the reads began at {len(snapshots)} different snapshots of the lake")


def union(table: Any) -> Stock:
    """All rows, from lake and log."""
    return keyed(table.scan(source="union").to_arrow(), "item")


def main(arguments: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    return play(tell, TITLE, 20_000, arguments, spark)


if __name__ == "__main__":
    raise SystemExit(main())
