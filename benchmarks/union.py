"""Lake and stream as one table: tiering against copying files, how fresh reads are, union reads against Parquet."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data, union_growth
from benchmarks.paimon_turns import Contender, Cost, Turns, take_turns
from benchmarks.report import Figure, FigureTable, Grid, Kind, Limit, Section
from benchmarks.running import BUCKETS, Run, percentile, scratch
from benchmarks.spark import CORES, PEER, session_of
from benchmarks.union_work import (
    CODEC,
    LAKES,
    LEVEL,
    LakeBench,
    Tail,
    check,
    lake_bench,
    put,
    read_files,
    read_union,
    write_files,
)
from forebay.client.table import Table
from forebay.metadata.predicate import col
from forebay.spark.tiering import SparkRunner
from forebay.tiering.runner import ThreadRunner
from forebay.tiering.service import POLL_SECONDS, TieringService

ROWS = 5_000_000
_TIERED_PART, _GROWTH_PART, _FRESH_PART = 20, 10, 50
"""Tables for other purposes than union reads have one row in this many."""

TAILS = {0.0: 0.9, 0.01: 1.0, 0.1: 1.3}
"""The maximum time of a union read relative to Spark's read of Parquet files, by share of the rows in the stream."""

_SHOWN_TAIL = 0.01
"""The first page has all tails of the first lake, and this one of the others."""

_READ_REHEARSALS = 4
"""Turns of reads that do not count: for about so long half of what the JVM does is to compile."""

VISIBLE_MS_MAX = 300
SAMPLES, SPARK_SAMPLES, LAKE_SAMPLES = 100, 40, 8
FRESHNESS = "1 s"

COPY = "Spark copies Parquet files"
FILES = "spark.read.parquet"
WAYS = {
    ("ParquetScan", "by lake and stream"): "files by Spark, the rest by Python",
    ("ParquetScan",): "files by Spark",
}
"""How Spark reads our table, by the markers in its plan; otherwise Python reads everything."""

_WAIT_SECONDS_MAX = 120.0
_POLL_SECONDS = 0.01


def run(options: Run) -> Section:
    rows = options.rows_or(ROWS)
    tables: list[FigureTable | Grid] = []
    kinds: list[Kind] = []
    for lake in LAKES:
        with lake_bench(options, lake) as server, scratch(options, "spark") as folder:
            if options.only != "growth":
                session = session_of(server, folder)
                try:
                    made = _Comparison(options, server, session, folder)
                    tables += _compared(made, options.only, rows)
                    kinds += made.kinds
                finally:
                    session.stop()
            if options.only in (None, "growth"):
                tables += union_growth.tables(options, server, max(rows // _GROWTH_PART, 100))
    notes = [
        f"Parquet files that are compared with are compressed by {CODEC}, level {LEVEL}. Spark is local[{CORES}]; a "
        f"table has {BUCKETS} buckets unless it says otherwise. Everything runs on the one machine.",
        "CPU time is that of all who take part: server, client, Spark's JVM and Python workers.",
        "What bounds Spark's union read of a primary-key table with a tail of 1 %, by step (5,000,000 rows): tasks of "
        "Python find the changed rows in the files' key columns before the scan begins, 0.1 s by the clock; the scan "
        "looks up each value that is kept through a list of places, 0.3 s of CPU; the tail comes last, 0.06 s. Times "
        "of Parquet's own read differ by as much from run to run.",
    ]
    return Section("union", "Lake and stream as one table", tables, notes, kinds)


def _compared(made: _Comparison, only: str | None, rows: int) -> list[FigureTable | Grid]:
    tables: list[FigureTable | Grid] = []
    if only in (None, "tiering"):
        tables += made.tiering(max(rows // _TIERED_PART, 100))
    if only in (None, "freshness"):
        tables.append(made.freshness(max(rows // _FRESH_PART, 100)))
    if only in (None, "reads"):
        tables += [made.reads(True, rows), made.reads(False, rows)]
    return tables


class _Comparison:
    """All comparisons over one lake, in one Spark session."""

    def __init__(self, options: Run, server: LakeBench, session: Any, folder: Path) -> None:
        self._options, self._server, self._session, self._folder = options, server, session, folder
        self.kinds: list[Kind] = []

    def _turns(self, contenders: Mapping[str, Contender], rehearsals: int = 1) -> dict[str, Turns]:
        return take_turns(contenders, self._options.repeat, self._options.say, rehearsals=rehearsals)

    # ---- tiering ----------------------------------------------------------------------------------------------------

    def tiering(self, rows: int) -> list[FigureTable | Grid]:
        source = write_files(self._folder / "source", data.batches(rows))
        contenders: dict[str, Contender] = {COPY: lambda: self._copy(source, rows)}
        for how, spark in ((f"on Spark, local[{CORES}]", True), ("in one thread", False)):
            contenders |= {
                f"log table, {how}": lambda s=spark: self._tier(False, rows, s),  # type: ignore[misc]
                f"primary-key table, first round, {how}": lambda s=spark: self._tier(True, rows, s),  # type: ignore[misc]
                f"primary-key table, changes, {how}": lambda s=spark: self._tier_changes(rows, s),  # type: ignore[misc]
            }
        found = take_turns(contenders, self._options.repeat, self._options.say, rehearsals=0)
        shutil.rmtree(source)
        what = (
            f"{rows:,} rows. A round of tiering reads them from the server, with their checksums and through the "
            "network, writes the lake's files, durably, and commits them; the copy reads and writes Parquet files, "
            "and leaves it to the kernel when they reach the disk. Changes: every second row updates one that the "
            "lake has. Ratios are against the copy."
        )
        by_cpu = FigureTable(f"Tiering per core, {self._server.lake}", f"Rows for a second of CPU time. {what}")
        by_clock = FigureTable(f"Tiering by the clock, {self._server.lake}", f"The same on {os.cpu_count()} cores.")
        base = found[COPY]
        for name, turns in found.items():
            by_cpu.add(Figure(name, rows / turns.cpu, "rows/CPU s", ratio=base.cpu / turns.cpu))
            fastest, slowest = turns.spread
            by_clock.add(
                Figure(name, rows / turns.wall, ratio=base.wall / turns.wall, spread=(rows / slowest, rows / fastest))
            )
        for what in ("log table", "primary-key table, changes"):
            row = f"{what}, on Spark, local[{CORES}]"
            peers = {COPY: f"{PEER}, copied"}
            self.kinds.append(Kind.of(f"tier into {self._server.lake}, {what}", by_clock, row, peers))
        return [by_cpu, by_clock]

    def _copy(self, source: Path, rows: int) -> Cost:
        target = self._folder / "copy"
        cost = self._server.cost(
            lambda: (
                self._session.read.parquet(str(source))
                .write.option("compression", CODEC)
                .option("parquet.compression.codec.zstd.level", str(LEVEL))
                .parquet(str(target))
            )
        )
        check(self._session.read.parquet(str(target)).count() == rows, "the copy has not all rows")
        shutil.rmtree(target)
        return cost

    def _tier(self, primary_key: bool, rows: int, spark: bool) -> Cost:
        table = self._server.filled(primary_key, rows, tiered=False)
        return self._round(table, rows, spark)

    def _tier_changes(self, rows: int, spark: bool) -> Cost:
        table = self._server.filled(True, rows)
        put(table, data.half_updates(rows, rows))
        return self._round(table, None, spark)

    def _round(self, table: Table, rows: int | None, spark: bool) -> Cost:
        runner = SparkRunner(self._session.sparkContext) if spark else ThreadRunner(1)
        cost = self._server.cost(lambda: self._server.tier(table, rows, runner))
        self._server.connection.drop_table(table.path)
        return cost

    # ---- freshness --------------------------------------------------------------------------------------------------

    def freshness(self, rows: int) -> FigureTable:
        share = min(1.0, self._options.rows_or(ROWS) / ROWS)
        table = self._server.filled(True, rows)
        name = f"forebay.{table.path}"
        by_client = self._samples(table, rows, share, SAMPLES, lambda key: self._find(table, key))
        by_spark = self._samples(
            table, rows, share, 2 * SPARK_SAMPLES,
            lambda key: self._session.sql(f"SELECT quantity FROM {name} WHERE {data.KEY} = {key}").collect()[0][0],
        )  # fmt: skip
        cold, by_spark = by_spark[: len(by_spark) // 2], by_spark[len(by_spark) // 2 :]
        figures = FigureTable(
            f"From an upsert to a read that has it, {self._server.lake}",
            f"A table of {rows:,} rows in the lake. A row of it is upserted (acks=all), and read by a filter on its "
            "key; the time is from the call of upsert until the union read that has the new value has ended. In the "
            f"lake: from the call until the new row is in a lake snapshot that can be read, with a tiering service in "
            f"threads that asks every {POLL_SECONDS:g} s for work and table.datalake.freshness={FRESHNESS}. p50 and "
            "p99 of so many upserts. A JVM is slower while it still compiles what it runs, so the first queries of "
            "the session are listed separately from those that follow.",
        )
        in_lake = self._lake_samples(max(2, int(LAKE_SAMPLES * share)))
        for what, samples, most in (
            ('scan(source="union")', by_client, VISIBLE_MS_MAX),
            ("Spark SQL, the first queries", cold, None),
            ("Spark SQL", by_spark, VISIBLE_MS_MAX),
            ("in the lake", in_lake, None),
        ):
            for percent in (50, 99):
                reason = f"the fastest of {len(samples)} took {min(samples) * 1000:.0f} ms, on {os.cpu_count()} cores"
                value = percentile(samples, percent) * 1000
                label = f"{what}, p{percent} of {len(samples)}"
                figures.add(Figure(label, value, "ms", value_max=most, reason=reason))
            if what == "Spark SQL":
                kind = f"upsert one row until Spark reads it, {self._server.lake}, p50"
                self.kinds.append(Kind(kind, "ms", percentile(samples, 50) * 1000))
        return figures

    def _samples(
        self, table: Table, rows: int, share: float, count: int, find: Callable[[int], int | None]
    ) -> list[float]:
        found = []
        keys = np.random.default_rng(13).integers(0, rows, max(3, int(count * share)))
        for number, key in enumerate([*keys[:2], *keys]):  # two do not count
            change = [{data.KEY: int(key), "quantity": 1_000_000 + number}]
            began = time.perf_counter()
            table.upsert(change, columns=[data.KEY, "quantity"])
            while find(int(key)) != 1_000_000 + number:
                check(time.perf_counter() - began < _WAIT_SECONDS_MAX, f"key {key} is not seen to have changed")
            found.append(time.perf_counter() - began)
        return found[2:]

    @staticmethod
    def _find(table: Table, key: int) -> int | None:
        rows = table.scan(["quantity"], col(data.KEY) == key, source="union").to_arrow()
        value: int | None = rows["quantity"][0].as_py()
        return value

    def _lake_samples(self, count: int) -> list[float]:
        server, found = self._server, []
        table = server.lake_table(True, buckets=1, freshness=FRESHNESS)
        bucket = table.buckets()[0]
        put(table, data.batches(100))
        server.tier(table, 100)
        with TieringService(server.connection):
            for number in range(count):
                began = time.perf_counter()
                table.upsert([{data.KEY: number, "quantity": number}], columns=[data.KEY, "quantity"])
                end = server.connection.admin.list_offsets(table.path, "latest")[bucket]
                while server.connection.admin.lake_snapshot(table.path, readable=True).log_offsets[bucket] < end:
                    check(time.perf_counter() - began < _WAIT_SECONDS_MAX, "the lake does not get the row")
                    time.sleep(_POLL_SECONDS)
                found.append(time.perf_counter() - began)
        return found

    # ---- union reads ------------------------------------------------------------------------------------------------

    def reads(self, primary_key: bool, rows: int) -> FigureTable:
        kind = "primary-key table" if primary_key else "log table"
        change = "changed in the stream since" if primary_key else "appended to the stream since"
        figures = FigureTable(
            f"Union read of a {kind}, {self._server.lake}",
            f"A table of {rows:,} rows in the lake, and a share of them {change}; all columns, into Spark's noop sink. "
            "Ratios are times: Spark's against its own read of Parquet files of "
            f"{'as many rows' if primary_key else 'the same rows'}, "
            'scan(source="union") against pyarrow\'s read of these, '
            "batch by batch, in one process, taken once; below 1 is faster. In brackets: who reads the lake's files. "
            f"Each of Spark's queries ran {_READ_REHEARSALS} times before.",
        )
        table = self._server.filled(primary_key, rows)
        files = write_files(self._folder / f"files-{primary_key}", data.batches(rows))
        tail = Tail(table, rows)
        for share, ratio_max in TAILS.items():
            written = tail.grow(int(rows * share))
            if not primary_key:
                write_files(files, written)
            self._compare(figures, table, files, rows if primary_key else rows + tail.length, share, ratio_max)
        self._server.connection.drop_table(table.path)
        shutil.rmtree(files)
        return figures

    def _compare(
        self, figures: FigureTable, table: Table, files: Path, rows: int, share: float, ratio_max: float
    ) -> None:
        found = self._session.table(f"forebay.{table.path}").count()
        check(found == rows, f"{table.path} has {found} rows, not {rows}")
        ours, python, arrow = f"SELECT * ({self._way(table)})", 'scan(source="union")', "pyarrow"
        cost = self._server.cost
        turns = self._turns(
            {
                FILES: lambda: cost(lambda: _consume(self._session.read.parquet(str(files)))),
                ours: lambda: cost(lambda: _consume(self._session.table(f"forebay.{table.path}"))),
            },
            _READ_REHEARSALS,
        )
        turns |= take_turns(
            {
                arrow: lambda: cost(lambda: read_files(files, rows)),
                python: lambda: cost(lambda: read_union(table, rows)),
            },
            1, self._options.say, rehearsals=0,
        )  # fmt: skip
        targets = {FILES: (FILES, None), ours: (FILES, ratio_max), arrow: (arrow, None), python: (arrow, None)}
        for name, (base, most) in targets.items():
            spent, against = turns[name], turns[base]
            low, high = spent.spread
            figures.add(
                Figure(
                    f"{name}, tail of {share:.0%}",
                    spent.wall * 1000,
                    "ms",
                    ratio=spent.wall / against.wall,
                    ratio_max=most,
                    spread=(low * 1000, high * 1000),
                    reason=f"of CPU time it uses {spent.cpu:.2f} s and Parquet {against.cpu:.2f} s, "
                    f"on {os.cpu_count()} cores",
                )
            )
        if self._server.lake != LAKES[0] and share != _SHOWN_TAIL:
            return
        kind = "primary-key" if table.has_primary_key else "log"
        what = f"Spark: union read of a {kind} table, {self._server.lake}, tail of {share:.0%}"
        limit = Limit("pyarrow reads the Parquet files, one core", turns[arrow].wall * 1000)
        self.kinds.append(Kind(what, "ms", turns[ours].wall * 1000, {PEER: turns[FILES].wall * 1000}, limit))

    def _way(self, table: Table) -> str:
        """The reader of a table's lake files, according to Spark's plan."""
        plan = self._session.table(f"forebay.{table.path}")._jdf.queryExecution().executedPlan().toString()
        return next((way for marks, way in WAYS.items() if all(mark in plan for mark in marks)), "Python")


def _consume(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()
