"""Pipelines that end in live tables: the queries of each, its source, and what must come of it.

    Sums       JSON files -> a log -> sums by minute and key in Spark's state -> a primary-key table
                                   -> the same sums by a table that aggregates
                                   -> the last state of each key, by changes with deletes
    Capture    Debezium's events -> a primary-key table -> its changelog -> a lake table by partial update
                                                                         -> sums in the lake -> their changes, copied
    Dimension  JSON files, each row joined with a live table -> a log, and a lake table

One table of each is tiered meanwhile.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

import forebay
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.paimon import Catalog

KEYS, ROWS_PER_FILE = 40, 60
TIERED = {"table.datalake.enabled": "true", "table.datalake.freshness": "1 s"}

Queries = dict[str, tuple[Any, str]]
"""By name: a writer, and the table that it fills."""
Rows = list[dict[str, Any]]


class Pipeline:
    """Its source is files of JSON rows; `rows` are all that were written so far."""

    tiered: str
    """The live table that has a lake."""
    readers: tuple[str, ...]
    """The queries that read the files."""

    def __init__(
        self, connection: Connection, folder: Path, rng: random.Random, lake: Mapping[str, str] | None = None
    ) -> None:
        """`lake` is what opens its catalog in the lake; by default in `folder`."""
        self.connection, self.folder, self.rng = connection, folder, rng
        self.lake_options = dict(lake or {"warehouse": str(folder / "lake")})
        self.rows: Rows = []
        (folder / "in").mkdir()
        self.catalog = Catalog.open(self.lake_options)
        self.catalog.create_database("p")
        self.make_tables()

    def make_tables(self) -> None:
        raise NotImplementedError

    @staticmethod
    def queries(spark: Any, servers: str, folder: Path) -> Queries:
        raise NotImplementedError

    def row(self, number: int) -> dict[str, Any]:
        raise NotImplementedError

    def check(self, *, is_once: bool = True) -> None:
        """Compare every table with the rows of the source. Without `is_once`, what is written to live tables may come
        again, as on clusters without transactions."""
        raise NotImplementedError

    def add_file(self) -> None:
        rows = [self.row(len(self.rows) + i) for i in range(ROWS_PER_FILE)]
        self.rows += rows
        written = self.folder / "next.json"
        written.write_text("\n".join(json.dumps(row) for row in rows))
        os.utime(written, (len(self.rows), len(self.rows)))  # Spark takes files in the order of their times
        written.rename(self.folder / "in" / f"{len(self.rows):08}.json")

    def live(self, name: str) -> Table:
        return self.connection.table(f"fluss.{name}")

    def lake(self, name: str) -> Rows:
        return self.catalog.table(f"p.{name}").scan().to_arrow().to_pylist()

    def changes(self, name: str) -> Rows:
        return self.live(name).changes(stop="latest").to_arrow().to_pylist()


def bigints(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "BIGINT")


def json_files(spark: Any, folder: Path, schema: str) -> Any:
    """One file in each batch: Spark reads several in an order of its own."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder / "in"))


class Sums(Pipeline):
    tiered, readers = "sums", ("events",)

    def make_tables(self) -> None:
        make = self.connection.create_table
        # A key's rows are in one bucket of the log, so they keep their order.
        make("fluss.events", bigints("n", "key", "amount") | {"is_end": "BOOLEAN"}, buckets=2, bucket_keys=["key"])
        make(
            "fluss.sums", bigints("minute", "key", "total", "events"), primary_key=["minute", "key"], buckets=2,
            bucket_keys=["key"], options=TIERED,
        )  # fmt: skip
        added = {"table.merge-engine": "aggregation", "fields.total.agg": "sum", "fields.events.agg": "sum"}
        make("fluss.totals", bigints("key", "total", "events"), primary_key="key", buckets=2, options=added)
        make("fluss.states", bigints("key", "n"), primary_key="key", buckets=2)

    @staticmethod
    def queries(spark: Any, servers: str, folder: Path) -> Queries:
        from pyspark.sql import functions as f

        files = json_files(spark, folder, "n BIGINT, key BIGINT, amount BIGINT, is_end BOOLEAN")
        log = spark.readStream.option("maxRowsPerTrigger", 300).table("forebay.fluss.events")
        at = f.timestamp_seconds("n")
        windows = log.withColumn("at", at).withWatermark("at", "1 hour").groupBy(f.window("at", "1 minute"), "key")
        sums = windows.agg(f.sum("amount").alias("total"), f.count("n").alias("events"))
        minute = f.unix_seconds("window.start").alias("minute")
        kind = f.when(log.is_end, "delete").otherwise("update_after").alias("_change_type")
        states = log.select(kind, "key", "n").writeStream.option("write.sequence.field", "n")
        return {
            "events": (files.writeStream, "forebay.fluss.events"),
            "sums": (
                sums.select(minute, "key", "total", "events").writeStream.outputMode("update"),
                "forebay.fluss.sums",
            ),
            "totals": (log.selectExpr("key", "amount AS total", "1L AS events").writeStream, "forebay.fluss.totals"),
            "states": (states, "forebay.fluss.states"),
        }

    def row(self, number: int) -> dict[str, Any]:
        return {
            "n": number,
            "key": self.rng.randrange(KEYS),
            "amount": self.rng.randrange(1000),
            "is_end": self.rng.random() < 0.2,
        }

    def check(self, *, is_once: bool = True) -> None:
        events = sorted(self.live("events").scan().to_arrow().to_pylist(), key=lambda row: row["n"])
        assert (events if is_once else without_repeats(events)) == self.rows
        for by_minute in (True, False) if is_once else (True,):
            totals, counts = Counter[Any](), Counter[Any]()
            for row in events:
                key = (row["n"] // 60 * 60, row["key"]) if by_minute else row["key"]
                totals[key] += row["amount"]
                counts[key] += 1
            expected = {key: (totals[key], counts[key]) for key in counts}
            for source in ("live", "union") if by_minute else ("live",):
                found = self.live("sums" if by_minute else "totals").scan(source=source).to_arrow().to_pylist()
                assert (
                    unique(
                        ((row["minute"], row["key"]) if by_minute else row["key"], (row["total"], row["events"]))
                        for row in found
                    )
                    == expected
                )
        steps = [(row["key"], None if row["is_end"] else row["n"]) for row in self.rows]
        changes = [(row["_change_type"], row["key"], row["n"]) for row in self.changes("states")]
        assert_each_key_in_order(changes, steps, is_once)


class Capture(Pipeline):
    tiered, readers = "orders", ("orders",)

    def make_tables(self) -> None:
        self._orders: dict[int, dict[str, int]] = {}
        make, make_in_lake = self.connection.create_table, self.catalog.create_table
        make("fluss.orders", bigints("id", "customer", "cents", "n"), primary_key="id", buckets=2, options=TIERED)
        make("fluss.copied", bigints("customer", "orders", "cents"), primary_key="customer", buckets=2)
        groups = {"fields.placed_at.sequence-group": "customer", "fields.priced_at.sequence-group": "cents,n"}
        make_in_lake(
            "p.newest", bigints("id", "placed_at", "customer", "priced_at", "cents", "n"), primary_key="id",
            options={"bucket": "2", "merge-engine": "partial-update", **groups},
        )  # fmt: skip
        added = {"merge-engine": "aggregation", "fields.default-aggregate-function": "sum"}
        make_in_lake(
            "p.by_customer", bigints("customer", "orders", "cents"), primary_key="customer",
            options={"bucket": "1", "changelog-producer": "lookup", **added},
        )  # fmt: skip

    @staticmethod
    def queries(spark: Any, servers: str, folder: Path) -> Queries:
        from forebay.spark import from_debezium

        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))
        orders = from_debezium(lines, "id BIGINT NOT NULL, customer BIGINT, cents BIGINT, n BIGINT")
        changes = spark.readStream.option("maxRowsPerTrigger", 300).table("forebay.fluss.`orders$changelog`")
        placed = changes.selectExpr("_change_type", "id", "_log_offset AS placed_at", "customer")
        priced = changes.selectExpr("_change_type", "id", "_log_offset AS priced_at", "cents", "n")
        sums = changes.selectExpr("_change_type", "customer", "1L AS orders", "cents")
        lake = spark.readStream.option("scan.mode", "from-snapshot").option("scan.snapshot-id", 1)
        copied = lake.table("lake.p.`by_customer$changelog`")
        return {
            "orders": (orders.writeStream, "forebay.fluss.orders"),
            "placed": (placed.writeStream, "lake.p.newest"),
            "priced": (priced.writeStream, "lake.p.newest"),
            "by_customer": (sums.writeStream, "lake.p.by_customer"),
            "copied": (
                copied.select("_change_type", "customer", "orders", "cents").writeStream,
                "forebay.fluss.copied",
            ),
        }

    def row(self, number: int) -> dict[str, Any]:
        key = self.rng.randrange(KEYS)
        before = self._orders.pop(key, None)
        if before is not None and self.rng.random() < 0.3:
            return {"before": before, "after": None, "op": "d"}
        after = {"id": key, "customer": self.rng.randrange(5), "cents": self.rng.randrange(1000), "n": number}
        self._orders[key] = after
        return {"before": before, "after": after, "op": "u" if before else "c"}

    def check(self, *, is_once: bool = True) -> None:
        orders = self._orders
        for source in ("live", "union"):
            found = self.live("orders").scan(source=source).to_arrow().to_pylist()
            assert unique((row["id"], row) for row in found) == orders
        steps = [
            (row["before"]["id"], None) if row["op"] == "d" else (row["after"]["id"], row["after"]["n"])
            for row in self.rows
        ]
        changes = [(row["_change_type"], row["id"], row["n"]) for row in self.changes("orders")]
        assert_each_key_in_order(changes, steps, is_once)
        newest = [row for row in self.lake("newest") if row["customer"] is not None]
        names = ("id", "customer", "cents", "n")
        assert unique((row["id"], {name: row[name] for name in names}) for row in newest) == orders
        sums, counts = Counter[int](), Counter[int]()
        for order in orders.values():
            sums[order["customer"]] += order["cents"]
            counts[order["customer"]] += 1
        for found in (self.lake("by_customer"), self.live("copied").scan().to_arrow().to_pylist()):
            # A customer whose orders are all gone has sums of 0.
            rows = unique((row["customer"], (row["orders"], row["cents"])) for row in found if row["orders"])
            assert rows == {customer: (counts[customer], sums[customer]) for customer in counts}


class Dimension(Pipeline):
    tiered, readers = "joined", ("joined", "joined_in_lake")

    def make_tables(self) -> None:
        make, joined = self.connection.create_table, bigints("n", "key", "least", "version") | {"name": "STRING"}
        make("fluss.joined", joined, buckets=2, bucket_keys=["key"], options=TIERED)
        make("fluss.customers", bigints("key", "version") | {"name": "STRING"}, primary_key="key", buckets=2)
        self.catalog.create_table("p.joined", joined)
        self._versions: dict[int, int] = {}
        self._change(dict.fromkeys(range(KEYS), 0))

    def _change(self, versions: dict[int, int]) -> None:
        self._versions.update(versions)
        self.live("customers").upsert(
            [{"key": key, "version": version, "name": f"{key}/{version}"} for key, version in versions.items()]
        )

    @staticmethod
    def queries(spark: Any, servers: str, folder: Path) -> Queries:
        def join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with forebay.connect(servers) as connection:
                customers = connection.table("fluss.customers").lookup_table(["version", "name"])
                for batch in batches:
                    yield from customers.join(batch, on=["key"]).to_batches()

        orders = json_files(spark, folder, "n BIGINT, key BIGINT, least BIGINT")
        joined = orders.mapInArrow(join, "n BIGINT, key BIGINT, least BIGINT, version BIGINT, name STRING")
        return {
            "joined": (joined.writeStream, "forebay.fluss.joined"),
            "joined_in_lake": (joined.writeStream, "lake.p.joined"),
        }

    def add_file(self) -> None:
        self._change({key: self._versions[key] + 1 for key in self.rng.sample(range(KEYS), 5)})
        super().add_file()

    def row(self, number: int) -> dict[str, Any]:
        key = self.rng.randrange(KEYS)
        return {"n": number, "key": key, "least": self._versions[key]}

    def check(self, *, is_once: bool = True) -> None:
        live, lake = self.changes("joined"), self.lake("joined")
        union = self.live("joined").scan(source="union").to_arrow().to_pylist()
        for found in (live, lake, union):
            rows = sorted(found, key=lambda row: row["n"])
            orders = [{name: row[name] for name in ("n", "key", "least")} for row in rows]
            assert (orders if is_once or found is lake else without_repeats(orders)) == self.rows
            newest: dict[int, int] = {}
            for row in rows:
                assert row["name"] == f"{row['key']}/{row['version']}"
                # No older than when its file was written, nor than what an earlier row of the customer has met.
                at_least = max(row["least"], newest.get(row["key"], 0)) if is_once else row["least"]
                assert at_least <= row["version"] <= self._versions[row["key"]]
                newest[row["key"]] = row["version"]
        last: dict[int, int] = {}
        for row in live if is_once else ():
            assert last.get(row["key"], -1) < row["n"], "the orders of a customer came in another order"
            last[row["key"]] = row["n"]


PIPELINES: dict[str, type[Pipeline]] = {each.__name__: each for each in (Sums, Capture, Dimension)}


def unique(rows: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Rows by their keys; no key comes twice."""
    found: dict[Any, Any] = {}
    for key, row in rows:
        assert key not in found, f"key {key} has two rows: {found[key]} and {row}"
        found[key] = row
    return found


def without_repeats(rows: Rows) -> Rows:
    return [row for at, row in enumerate(rows) if not at or row != rows[at - 1]]


def assert_each_key_in_order(
    changes: list[tuple[str, int, int]], steps: list[tuple[int, int | None]], is_once: bool
) -> None:
    """Each upsert of a key, and each delete (None) of one that is there, is in the changelog once, in order.

    Without `is_once`, the changelog must still end in the last step of each key.
    """
    expected: dict[int, list[tuple[str, int]]] = {}
    there: dict[int, int] = {}
    for key, n in steps:
        known = expected.setdefault(key, [])
        if n is None:
            if key in there:
                known.append(("delete", there.pop(key)))
        else:
            known += [("update_before", there[key]), ("update_after", n)] if key in there else [("insert", n)]
            there[key] = n
    found: dict[int, list[tuple[str, int]]] = {}
    for kind, key, n in changes:
        found.setdefault(key, []).append((kind, n))
    if is_once:
        assert found == {key: known for key, known in expected.items() if known}
    else:
        left = {key: known[-1][1] for key, known in found.items() if known[-1][0] != "delete"}
        assert left == there
