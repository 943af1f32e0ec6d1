"""Offline warehouse acceleration: a stream fills a lake table, exactly once; four engines query it.

The classic warehouse is loaded at night. Here a stream loads it all day: each micro-batch is one commit, small files
are compacted beside the stream, and any engine that reads Parquet or Paimon can query it.

    python examples/warehouse_acceleration.py [--rows N] [--directory DIR]
"""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from forebay.paimon import Catalog
from story import Feed, Story, fill, follow, forget_last_batch, play

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TITLE = "Offline warehouse acceleration"
TABLE = "shop.orders"
BATCHES = 6
ITEMS = ("tea", "tin", "cup", "rum")
DAYS = (dt.date(2026, 1, 1), dt.date(2026, 1, 2))

Totals = dict[str, tuple[int, int]]
"""By item: the number of orders, and the sum of their amounts in cents."""


class Source:
    """Generates orders, and records their totals: the model."""

    def __init__(self, rows: int) -> None:
        self._generator = np.random.default_rng(1)
        self._size = max(rows // BATCHES, 1)
        self.rows = 0
        self._counts: Counter[str] = Counter()
        self._cents: Counter[str] = Counter()

    def batch(self) -> pa.Table:
        """The next orders."""
        ids = np.arange(self.rows, self.rows + self._size)
        items = self._generator.integers(0, len(ITEMS), self._size)
        cents = self._generator.integers(1, 10_000, self._size)
        for number, item in enumerate(ITEMS):
            self._counts[item] += int((items == number).sum())
            self._cents[item] += int(cents[items == number].sum())
        self.rows += self._size
        days = pa.array(DAYS, pa.date32()).take(pa.array(ids % len(DAYS)))
        return pa.table({"id": ids, "item": pa.array(ITEMS).take(pa.array(items)), "cents": cents, "day": days})

    @property
    def totals(self) -> Totals:
        return {item: (self._counts[item], self._cents[item]) for item in ITEMS if self._counts[item]}


def tell(story: Story) -> None:
    source = Source(story.rows)
    feed = Feed(story.folder / "feed", "id BIGINT, item STRING, cents BIGINT, day DATE")
    checkpoint = story.folder / "checkpoint" / "orders"

    with story.step("Make a table. It has no key, so rows are only added"):
        story.sql("CREATE DATABASE lake.shop")
        story.sql(
            f"""CREATE TABLE lake.{TABLE} (id BIGINT, item STRING, cents BIGINT, day DATE) PARTITIONED BY (day)
            TBLPROPERTIES ('compaction.min.file-num' = '3')"""
        )

    with story.step("A stream brings the first half of the orders"):
        for _ in range(BATCHES // 2):
            feed.add(source.batch())
        follow(story, fill(feed.stream(story.spark), f"lake.{TABLE}", checkpoint))
        story.check(f"{source.rows:,} orders are in the table", count(story.spark), source.rows)

    with story.step("The driver dies after the table's commit, before Spark has noted it; then it starts again"):
        note = forget_last_batch(checkpoint)
        story.say(f"Spark has forgotten micro-batch {note}, and will write it once more")
        for _ in range(BATCHES - BATCHES // 2):
            feed.add(source.batch())
        first = source.rows // BATCHES
        query = fill(feed.stream(story.spark), f"lake.{TABLE}", checkpoint)
        seen = count(story.spark)  # while the stream writes
        (progress,) = follow(story, query)
        repeated = progress["sink"]["metrics"]["repeatedBatches"]
        story.check("the table knew the batch that came twice, and left it out", repeated, "1")
        story.check("a query in the middle of it saw whole micro-batches", seen % first, 0)
        story.check(f"all {source.rows:,} orders are there, each once", count(story.spark), source.rows)

    with story.step("Small files are put together: beside the stream, and at the end"):
        story.say(f"so far: {commits(story.spark)}, {len(files(story.warehouse))} files")
        story.sql(f"CALL lake.sys.compact(table => '{TABLE}')").collect()
        story.say(f"now: {commits(story.spark)}, {len(files(story.warehouse))} files")
        story.check("compaction changed no row", count(story.spark), source.rows)

    with story.step("The same question to four engines: orders and turnover by item"):
        story.say(f"{'':<36}{'seconds':>8}")
        for name, ask in ENGINES.items():
            began = time.monotonic()
            try:
                answer = ask(story.spark, story.warehouse)
            except ModuleNotFoundError as e:
                story.say(f"{name:<36}{'-':>8}   left out: {e.name} is not installed")
                continue
            story.say(f"{name:<36}{time.monotonic() - began:>8.2f}")
            story.check(f"{name} agrees with the source", answer, source.totals)


def count(spark: SparkSession) -> int:
    return int(spark.sql(f"SELECT count(*) FROM lake.{TABLE}").collect()[0][0])


def commits(spark: SparkSession) -> str:
    """The number of commits of each kind."""
    found = spark.sql("SELECT commit_kind, count(*) FROM lake.shop.`orders$snapshots` GROUP BY commit_kind").collect()
    return ", ".join(f"{row[1]} commits of kind {row[0]}" for row in sorted(found))


def files(warehouse: str) -> list[str]:
    """The Parquet files of the newest snapshot."""
    listed = Catalog.open(warehouse).table(TABLE).system("files").read(["file_path"]).read_all()
    return [str(path) for path in listed["file_path"].to_pylist()]


# ---- engines --------------------------------------------------------------------------------------------------------

QUESTION = "SELECT item, count(*), sum(cents) FROM {orders} GROUP BY item"


def by_spark(spark: SparkSession, warehouse: str) -> Totals:
    return totals(spark.sql(QUESTION.format(orders=f"lake.{TABLE}")).collect())


def by_duckdb(spark: SparkSession, warehouse: str) -> Totals:
    """The totals by DuckDB: an append table's files hold its rows as they are, so any Parquet reader can read them."""
    import duckdb

    return totals(duckdb.execute(QUESTION.format(orders="read_parquet(?)"), [files(warehouse)]).fetchall())


def by_forebay(spark: SparkSession, warehouse: str) -> Totals:
    rows = Catalog.open(warehouse).table(TABLE).scan(["item", "cents"]).to_arrow()
    return by_item(rows)


def by_pypaimon(spark: SparkSession, warehouse: str) -> Totals:
    if find_spec("pypaimon") is None:
        raise ModuleNotFoundError("No module named 'pypaimon'", name="pypaimon")
    from pypaimon import CatalogFactory  # type: ignore[import-not-found]

    builder = CatalogFactory.create({"warehouse": warehouse}).get_table(TABLE).new_read_builder()
    rows = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    return by_item(rows)


def by_item(rows: pa.Table) -> Totals:
    found = rows.group_by("item").aggregate([("cents", "count"), ("cents", "sum")])
    return totals([tuple(row[name] for name in ("item", "cents_count", "cents_sum")) for row in found.to_pylist()])


def totals(rows: Sequence[Sequence[object]]) -> Totals:
    return {str(item): (int(str(orders)), int(str(cents))) for item, orders, cents in rows}


ENGINES: dict[str, Callable[[SparkSession, str], Totals]] = {
    "Spark SQL": by_spark,
    "DuckDB, on the files of the snapshot": by_duckdb,
    "forebay.paimon, in this process": by_forebay,
    "pypaimon": by_pypaimon,
}


def main(arguments: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    return play(tell, TITLE, 300_000, arguments, spark)


if __name__ == "__main__":
    raise SystemExit(main())
