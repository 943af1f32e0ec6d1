"""Bucket functions in Spark: files and time of an INSERT into buckets, and joins of tables with the same buckets.

    python -m benchmarks.spark_buckets --rows 1000000 --buckets 8

An INSERT is shuffled by the table's bucket function, or by the columns of its key, as where Spark cannot run the
function. A join is read by bucket, which needs no shuffle, or as other queries are.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import forebay.spark
from forebay.spark.writing import lake_write_builder

KINDS = {"append": "'bucket-key' = 'k'", "primary key": "'primary-key' = 'k'"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--buckets", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        conf = {
            "spark.ui.enabled": False,
            "spark.ui.showConsoleProgress": False,
            "spark.sql.shuffle.partitions": 8,
            "spark.log.level": "ERROR",
        }
        spark = forebay.spark.session("buckets", "local[2]", conf, catalog="lake", warehouse=folder)
        try:
            spark.sql("CREATE DATABASE lake.db")
            for kind in KINDS:
                inserts(spark, Path(folder), kind, options)
            joins(spark, options)
        finally:
            spark.stop()


def inserts(spark: Any, folder: Path, kind: str, options: argparse.Namespace) -> None:
    """INSERTs into new tables, in turns."""
    frame = spark.range(0, options.rows, 1, options.tasks).selectExpr("id AS k", "concat('v', id) AS v")

    def insert(by_function: bool) -> tuple[float, int]:
        make(spark, "t", kind, options.buckets)
        with mock.patch.object(lake_write_builder, "runs_on_executors", return_value=by_function):
            seconds = timed(frame.writeTo("lake.db.t").option("sink.parallelism", str(options.tasks)).append)
        files = len(list(folder.rglob("t/bucket-*/data-*")))
        spark.sql("DROP TABLE lake.db.t")
        return seconds, files

    found = [(insert(False), insert(True)) for _ in range(options.turns)]
    for place, name in ((0, "by columns"), (1, "by bucket function")):
        seconds = statistics.median(turn[place][0] for turn in found)
        files = found[0][place][1]
        what = f"INSERT of {options.rows:,} rows, {kind}, {options.tasks} tasks, {options.buckets} buckets, {name}"
        print(f"{what:95} {seconds:6.2f} s  {files:4} files")


def joins(spark: Any, options: argparse.Namespace) -> None:
    """A join of both kinds of table, in turns."""
    for number, kind in enumerate(KINDS):
        make(spark, f"j{number}", kind, options.buckets)
        spark.range(0, options.rows).selectExpr("id AS k", "concat('v', id) AS v").writeTo(
            f"lake.db.j{number}"
        ).append()
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    join = "SELECT sum(hash(a.v, b.v)) FROM lake.db.j0 a JOIN lake.db.j1 b ON a.k = b.k"

    def run(by_bucket: bool) -> float:
        spark.conf.set("spark.sql.forebay.read.by-bucket", by_bucket)
        return timed(spark.sql(join).collect)

    found = [(run(False), run(True)) for _ in range(options.turns)]
    for place, name in ((0, "with a shuffle"), (1, "by bucket")):
        what = f"join of two tables of {options.rows:,} rows, {options.buckets} buckets, {name}"
        print(f"{what:95} {statistics.median(turn[place] for turn in found):6.2f} s")


def make(spark: Any, name: str, kind: str, buckets: int) -> None:
    properties = f"{KINDS[kind]}, 'bucket' = '{buckets}'"
    spark.sql(f"CREATE TABLE lake.db.{name} (k BIGINT NOT NULL, v STRING) TBLPROPERTIES ({properties})")


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
