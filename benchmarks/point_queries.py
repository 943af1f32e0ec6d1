"""Queries by key, in Python and Spark: as lookups, and as the scans with a filter that they were before.

    python -m benchmarks.point_queries --rows 1000000 --no-spark

The scan has the same filter as a range (`id BETWEEN 7 AND 7`), which fixes no key. Both return the same row. The joins
are with one row of a table of 1,000; scans are joins of which Spark sends no values to the other side.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import forebay
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.tiering.now import tier_now

BUCKETS = 16
CHUNK = 250_000

Query = Callable[[int], int]
"""Runs a query for one key; returns the number of rows."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--no-spark", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"datalake.format": "paimon", "datalake.paimon.warehouse": str(Path(folder, "lake"))}
        with forebay.embedded(Path(folder, "server"), settings=settings) as conn:
            conn.create_database("bench")
            live, tiered = (made(conn, name, options.rows) for name in ("live", "tiered"))
            tier_now(conn, [str(tiered.path)])
            tiered.upsert(rows_of(0, options.rows // 100))
            title = f"one key of {options.rows:,} rows"
            print(f"{title:40} {'scan ms':>9} {'key ms':>9} {'ratio':>7}")
            for name, table, source in (("Python, live", live, "live"), ("Python, lake and stream", tiered, "union")):
                report(name, scanned(table, source), looked_up(table, source), options)
            log = conn.table("bench.live_log")
            report("Python, log by bucket key", log_query(log, False), log_query(log, True), options)
            if not options.no_spark:
                _spark(conn, options)


def made(conn: Connection, name: str, rows: int) -> Table:
    """A table of `rows` rows, in a lake if it is called so; and a log of the same rows."""
    lake = {"table.datalake.enabled": "true"} if name == "tiered" else {}
    columns = {"id": "BIGINT NOT NULL", "item": "STRING", "x": "DOUBLE"}
    table = conn.create_table(f"bench.{name}", columns, primary_key="id", buckets=BUCKETS, options=lake)
    log = conn.create_table(f"bench.{name}_log", columns, bucket_keys="id", buckets=BUCKETS)
    for first in range(0, rows, CHUNK):
        some = rows_of(first, min(first + CHUNK, rows))
        table.upsert(some)
        if not lake:
            log.append(some)
    return table


def rows_of(first: int, stop: int) -> pa.Table:
    ids = np.arange(first, stop)
    return pa.table({"id": ids, "item": [f"item {i}" for i in ids.tolist()], "x": ids / 2})


def scanned(table: Table, source: str) -> Query:
    return lambda key: table.scan(filter=f"id BETWEEN {key} AND {key}", source=source).to_arrow().num_rows


def looked_up(table: Table, source: str) -> Query:
    return lambda key: table.scan(filter=f"id = {key}", source=source).to_arrow().num_rows


def log_query(table: Table, by_key: bool) -> Query:
    return looked_up(table, "log") if by_key else scanned(table, "log")


def report(name: str, before: Query, after: Query, options: Any) -> None:
    """Print the medians of both queries, which take turns, and their ratio."""
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(options.turns + 1):
        key = (turn * 7919 + 13) % options.rows
        for query, times in zip((before, after), taken, strict=True):
            began = time.perf_counter()
            if query(key) != 1:
                raise AssertionError(f"{name}: key {key} has not one row")
            if turn:  # the first turn warms up
                times.append((time.perf_counter() - began) * 1000)
    scan, lookup = map(statistics.median, taken)
    print(f"{name:40} {scan:9.1f} {lookup:9.1f} {scan / lookup:6.1f}x", flush=True)


def _spark(conn: Connection, options: Any) -> None:
    import forebay.spark

    conf = {"spark.ui.enabled": False, "spark.log.level": "OFF", "spark.driver.memory": "2g"}
    spark = forebay.spark.session("point queries", "local[2]", conf, bootstrap_servers=conn.bootstrap_servers)
    try:
        for name, table in (("Spark, live", "live"), ("Spark, lake and stream", "tiered")):
            query = f"SELECT * FROM forebay.bench.{table} WHERE id"
            report(
                name,
                lambda key, query=query: len(spark.sql(f"{query} BETWEEN {key} AND {key}").collect()),  # type: ignore[misc]
                lambda key, query=query: len(spark.sql(f"{query} = {key}").collect()),  # type: ignore[misc]
                options,
            )
        some = [(turn * 7919 + 13) % options.rows for turn in range(1000)]
        few = conn.create_table("bench.few", {"k": "BIGINT NOT NULL", "name": "STRING"}, primary_key="k", buckets=1)
        few.upsert(pa.table({"k": some, "name": [f"item {key}" for key in some]}))
        for name, table in (("live", "live"), ("log by bucket key", "live_log"), ("lake and stream", "tiered")):
            join = f"SELECT t.* FROM forebay.bench.{table} t JOIN forebay.bench.few ON id = k WHERE few.name = 'item "
            report(
                f"Spark, join with {name}",
                lambda key, join=join: joined(spark, f"{join}{key}'", False),  # type: ignore[misc]
                lambda key, join=join: joined(spark, f"{join}{key}'", True),  # type: ignore[misc]
                options,
            )
    finally:
        spark.stop()


def joined(spark: Any, query: str, filtered: bool) -> int:
    spark.conf.set("spark.sql.optimizer.dynamicPartitionPruning.enabled", filtered)
    return len(spark.sql(query).collect())


if __name__ == "__main__":
    main()
