"""Pre-aggregation: a roll-up that is always up to date, even when sales are corrected and cancelled.

Dashboards query sums by shop all day. The roll-up keeps them ready: a table whose merge engine adds up the rows that
are written to it. It is fed by the changelog of the table of sales. For a corrected sale, the changelog retracts the
old row (update_before) before it adds the new one (update_after), and so do the sums.

    python examples/rollup.py [--rows N] [--directory DIR]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from story import Feed, Story, fill, follow, keyed, play

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TITLE = "Pre-aggregation roll-up"
SALES, BY_SHOP = "lake.shop.sales", "lake.shop.by_shop"
BATCHES = 4
SHOPS = tuple(f"shop {number}" for number in range(20))

GROUP_BY = f"""SELECT shop, count(*) AS sales, sum(quantity) AS sold, sum(quantity * price) AS cents
FROM {SALES} GROUP BY shop"""

Row = tuple[Any, ...]


class Till:
    """Generates sales and their later changes, and records them: the model."""

    def __init__(self) -> None:
        self._generator = np.random.default_rng(3)
        self.sales: dict[int, Row] = {}
        self.kinds: Counter[str] = Counter()
        self._dearest: dict[str, int] = {}
        self._next = 0

    def batch(self, rows: int) -> pa.Table:
        """New sales, and, of earlier ones, one in ten corrected and one in ten cancelled. A sale occurs once."""
        changes: list[tuple[str, int, Row]] = []
        for sale, fate in zip(list(self.sales), self._generator.random(len(self.sales)).tolist(), strict=True):
            if fate < 0.1:
                changes.append(("-D", sale, self.sales.pop(sale)))
                self.kinds["delete"] += 1
            elif fate < 0.2:
                changes.append(("+I", sale, self._sale()))
                self.kinds.update(["update_before", "update_after"])
        for _ in range(rows):
            changes.append(("+I", self._next, self._sale()))
            self._next += 1
            self.kinds["insert"] += 1
        for kind, sale, row in changes:
            if kind == "+I":
                self.sales[sale] = row
                shop, _, price = row
                self._dearest[shop] = max(price, self._dearest.get(shop, 0))
        columns = list(zip(*((kind, sale, *row) for kind, sale, row in changes), strict=True))
        return pa.table(dict(zip(("rowkind", "id", "shop", "quantity", "price"), map(list, columns), strict=True)))

    def _sale(self) -> Row:
        shop, quantity, price = self._generator.integers(0, (len(SHOPS), 9, 9_999)).tolist()
        return SHOPS[shop], quantity + 1, price + 1

    def by_shop(self) -> dict[str, Row]:
        """By shop: sales, pieces sold and turnover of sales that were not cancelled, and the highest price ever."""
        found: dict[str, Row] = {}
        for shop, quantity, price in self.sales.values():
            _, sales, sold, cents, dearest = found.get(shop, (shop, 0, 0, 0, self._dearest[shop]))
            found[shop] = (shop, sales + 1, sold + quantity, cents + quantity * price, dearest)
        return found


def tell(story: Story) -> None:
    till = Till()
    feed = Feed(story.folder / "till", "rowkind STRING, id BIGINT, shop STRING, quantity BIGINT, price BIGINT")

    with story.step("Make the table of sales, and the roll-up with a function for each column"):
        story.sql("CREATE DATABASE lake.shop")
        story.sql(
            f"""CREATE TABLE {SALES} (id BIGINT NOT NULL, shop STRING, quantity BIGINT, price BIGINT)
            TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '2', 'changelog-producer' = 'lookup')"""
        )
        story.sql(
            f"""CREATE TABLE {BY_SHOP} (shop STRING NOT NULL, sales BIGINT, sold BIGINT, cents BIGINT, dearest BIGINT)
            TBLPROPERTIES ('primary-key' = 'shop', 'bucket' = '1', 'merge-engine' = 'aggregation',
            'fields.default-aggregate-function' = 'sum',
            'fields.dearest.aggregate-function' = 'max', 'fields.dearest.ignore-retract' = 'true')"""
        )
        story.say("a maximum cannot be taken back: 'dearest' counts cancelled sales, too")

    for number in range(2):
        with story.step(["The first half of the day", "The second half: the roll-up goes on where it was"][number]):
            for _ in range(BATCHES // 2):
                feed.add(till.batch(max(story.rows // BATCHES, 1)))
            follow(story, fill(feed.stream(story.spark), SALES, story.folder / "checkpoints" / "sales"))
            follow(story, fill(changes(story.spark), BY_SHOP, story.folder / "checkpoints" / "roll-up"))
            compare(story, till)

    with story.step("What happened to the sales, and how much there is to read"):
        last = story.spark.sql("SELECT max(snapshot_id) FROM lake.shop.`sales$snapshots`").collect()[0][0]
        told = story.sql(
            f"""SELECT _change_type, count(*) AS rows FROM lake.shop.`sales$changelog`
            WITH ('incremental-between' = '0,{last}') GROUP BY _change_type ORDER BY _change_type"""
        )
        kinds = {row[0]: row[1] for row in told.collect()}
        for kind, rows in kinds.items():
            story.say(f"{kind:<14}{rows:>9,}")
        story.check("the changelog has each change once", kinds, dict(till.kinds))
        story.say(f"a dashboard reads {len(SHOPS)} rows, and not {len(till.sales):,}")


def changes(spark: SparkSession) -> DataFrame:
    """The changes of sales, from the first on, as rows of the roll-up. `_change_type` marks retractions."""
    stream = spark.readStream.option("scan.mode", "from-snapshot").option("scan.snapshot-id", 1)
    return stream.table("lake.shop.`sales$changelog`").selectExpr(
        "_change_type", "shop", "1L AS sales", "quantity AS sold", "quantity * price AS cents", "price AS dearest"
    )


def compare(story: Story, till: Till) -> None:
    expected = till.by_shop()
    # A shop whose sales are all cancelled keeps a row with sums of 0, which GROUP BY does not have.
    rolled_up = keyed(story.spark.table(BY_SHOP).where("sales > 0").toArrow(), "shop")
    story.check(f"the roll-up of {len(till.sales):,} sales is what the till knows", rolled_up, expected)
    grouped = keyed(story.spark.sql(GROUP_BY).toArrow(), "shop")
    story.check("and what GROUP BY over all sales says", {shop: row[:4] for shop, row in rolled_up.items()}, grouped)


def main(arguments: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    return play(tell, TITLE, 40_000, arguments, spark)


if __name__ == "__main__":
    raise SystemExit(main())
