"""A pipeline that ends in live tables: events, sums by minute in a query's state, and the same by the table itself.

Files of JSON become a log, exactly once. From there one query keeps sums of each minute and item in Spark's state, with
a watermark, and upserts what changed. Another one has no state at all: it sends what each batch adds, and a table with
the merge engine `aggregation` adds it up; that is exact because each micro-batch is a transaction. Both queries are
killed between the commit of a table and Spark's note of it. In the end tiering moves the sums into the lake, and lake
and log are read as one.

    python examples/live_pipeline.py [--rows N] [--directory DIR]
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

import forebay
import forebay.spark as fb
from story import Story, fill, follow, forget_last_batch, play

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TITLE = "A pipeline into live tables: sums by a query's state, and by the table"
FILES = 6
ITEMS = 20
START = dt.datetime(2026, 1, 31, 12)
SCHEMA = "n BIGINT, item BIGINT, pieces BIGINT, at TIMESTAMP"

Sums = dict[tuple[dt.datetime, int], tuple[int, int]]
"""Pieces and events by minute and item."""


class Till:
    """Writes files of sales, and adds them up: the model."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.per_file = folder, max(rows // FILES, 1)
        folder.mkdir(parents=True)
        self._random = random.Random(3)
        self.sales = 0
        self.sums: Sums = {}

    def add_file(self) -> None:
        lines = []
        for _ in range(self.per_file):
            late = self._random.randrange(120)
            at = START + dt.timedelta(seconds=max(self.sales * 300 // self.per_file - late, 0))
            item, pieces = self._random.randrange(ITEMS), self._random.randrange(1, 10)
            lines.append({"n": self.sales, "item": item, "pieces": pieces, "at": f"{at.isoformat()}Z"})
            key = at.replace(second=0), item
            total, events = self.sums.get(key, (0, 0))
            self.sums[key] = total + pieces, events + 1
            self.sales += 1
        path = self.folder / f"{self.sales:09}.json"
        hidden = path.with_name(f".{path.name}")  # a stream must not see an incomplete file
        hidden.write_text("\n".join(map(json.dumps, lines)))
        hidden.rename(path)


def tell(story: Story) -> None:
    settings = {"datalake.format": "paimon", "datalake.paimon.warehouse": str(story.folder / "server-lake")}
    with forebay.embedded(story.folder / "server", settings=settings) as connection:
        fb.attach(story.spark, "live", bootstrap_servers=connection.bootstrap_servers)
        tell_with(story, connection)


def tell_with(story: Story, connection: Any) -> None:
    till = Till(story.folder / "sales", story.rows)

    with story.step("Make a log, a table of sums with a lake behind it, and a table that adds up by itself"):
        story.sql("CREATE DATABASE live.shop")
        story.sql(f"CREATE TABLE live.shop.sales ({SCHEMA}) TBLPROPERTIES ('bucket.num' = '2')")
        key = "minute TIMESTAMP NOT NULL, item BIGINT NOT NULL, pieces BIGINT, events BIGINT"
        story.sql(
            f"""CREATE TABLE live.shop.by_query ({key})
            TBLPROPERTIES ('primary.key' = 'minute,item', 'bucket.num' = '2',
            'table.datalake.enabled' = 'true', 'table.datalake.freshness' = '1 s')"""
        )
        story.sql(
            f"""CREATE TABLE live.shop.by_table ({key})
            TBLPROPERTIES ('primary.key' = 'minute,item', 'bucket.num' = '2', 'table.merge-engine' = 'aggregation',
            'fields.pieces.agg' = 'sum', 'fields.events.agg' = 'sum')"""
        )

    for number in range(FILES):
        with story.step(f"Delivery {number + 1}: files become events, and events sums"):
            till.add_file()
            run(story, till)
            compare(story, connection, till)
        if number in (1, 3):
            with story.step("The drivers die after the tables' commits, before Spark has noted them, and start again"):
                for name in ("sales", "by_query", "by_table"):
                    forget_last_batch(story.folder / f"{name}-checkpoint")
                run(story, till)
                compare(story, connection, till)

    with story.step("Tier the sums, change some more, and read lake and log as one"):
        story.sql("CALL live.sys.start_tiering(once => true, tables => array('shop.by_query'))").collect()
        till.add_file()
        run(story, till)
        story.check("the union read has every sum", sums(connection, "by_query", "union"), till.sums)


def run(story: Story, till: Till) -> None:
    """Let the three queries take what is there."""
    files = story.spark.readStream.schema(SCHEMA).json(str(till.folder))
    follow(story, fill(files, "live.shop.sales", story.folder / "sales-checkpoint"))
    events = story.spark.readStream.table("live.shop.sales")
    of_minutes = events.withWatermark("at", "10 minutes")
    follow(
        story,
        fill(summed(of_minutes), "live.shop.by_query", story.folder / "by_query-checkpoint", mode="update"),
        fill(of_batches(events), "live.shop.by_table", story.folder / "by_table-checkpoint"),
    )


def summed(events: DataFrame) -> DataFrame:
    """The sums of each minute and item, as Spark keeps them."""
    sums = events.groupBy(f.window("at", "1 minute").alias("w"), "item")
    found = sums.agg(f.sum("pieces").alias("pieces"), f.count("n").alias("events"))
    return found.select(f.col("w.start").alias("minute"), "item", "pieces", "events")


def of_batches(events: DataFrame) -> DataFrame:
    """What each sale adds: the table sums it up."""
    return events.select(f.date_trunc("minute", "at").alias("minute"), "item", "pieces", f.lit(1).alias("events"))


def compare(story: Story, connection: Any, till: Till) -> None:
    story.check(f"{till.sales:,} events are in the log, each once", numbers(connection), list(range(till.sales)))
    story.check("the sums of the query", sums(connection, "by_query"), till.sums)
    story.check("the sums of the table", sums(connection, "by_table"), till.sums)


def numbers(connection: Any) -> list[int]:
    found: list[int] = sorted(connection.table("shop.sales").scan(["n"]).to_arrow()["n"].to_pylist())
    return found


def sums(connection: Any, name: str, source: str = "live") -> Sums:
    rows = connection.table(f"shop.{name}").scan(source=source).to_arrow().to_pylist()
    return {(row["minute"].replace(tzinfo=None), row["item"]): (row["pieces"], row["events"]) for row in rows}


def main(arguments: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    return play(tell, TITLE, 30_000, arguments, spark)


if __name__ == "__main__":
    raise SystemExit(main())
