"""Lake tables in Spark: streams that write them under every kind of compaction, scans and INSERT, against Parquet."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from benchmarks import data, limits, pipelines_growth
from benchmarks.paimon_turns import Contender, Turns, take_turns
from benchmarks.paimon_work import CODEC, LEVEL, Lake, put
from benchmarks.pipelines_hour import (
    BATCHES,
    BEFORE,
    BESIDE,
    HOUR_WAYS,
    JOB,
    JOB_EVERY,
    NONE,
    TASK_ROWS,
    TASKS,
    WITHIN,
    Way,
    definition,
    hour,
)
from benchmarks.pipelines_work import WARM_BATCHES, Pipelines
from benchmarks.report import Figure, FigureTable, Grid, Kind, Section
from benchmarks.running import BUCKETS, Run, scratch
from benchmarks.spark import CORES, PEER, session_with
from benchmarks.union_work import write_files

ROWS = 2_000_000
_INSERT_PART, _STREAM_PART, _GROWTH_PART = 2, 100, 10
"""Other sections than scans use one row in this many; for streams it is a micro-batch."""

STREAM_BATCHES = 20
HOUR_BUCKETS = 1
KEYED_BATCHES = 900
"""A quarter of an hour for primary-key tables: without compaction, each micro-batch takes longer than the last."""

INSERT_MAX = {False: 1.5, True: 2.0}
"""The maximum time of INSERT, relative to Spark's writing of Parquet files, by whether there is a primary key."""

SCAN_MAX = 1.3
"""The maximum time of a scan of a compacted table, relative to Spark's read of Parquet files."""

APPEND_WAYS = (NONE, BESIDE, BEFORE, JOB)
KEYED_WAYS = (NONE, WITHIN, BESIDE, BEFORE, JOB)
FILES = "Spark, Parquet files"


def run(options: Run) -> Section:
    rows = options.rows_or(ROWS)
    with scratch(options, "pipelines") as folder:
        lake = Lake(folder / "lake")
        session = session_with(folder, catalog="lake", warehouse=str(lake.folder))
        try:
            made = _Comparison(options, Pipelines(session, lake, folder))
            parts: dict[str, Callable[[], Sequence[FigureTable | Grid]]] = {
                "ingest": lambda: made.ingest(max(rows // _STREAM_PART, 10)),
                "hours": lambda: [made.hours(False), made.hours(True)],
                "scans": lambda: [made.scans(rows)],
                "inserts": lambda: [made.inserts(max(rows // _INSERT_PART, 100))],
                "growth": lambda: pipelines_growth.tables(options, made.pipelines, max(rows // _GROWTH_PART, 100)),
            }
            tables = [table for name, part in parts.items() if options.only in (None, name) for table in part()]
        finally:
            session.stop()
    notes = [
        f"Parquet files that are compared with are compressed as the tables are: {CODEC}, level {LEVEL}. Spark is "
        f"local[{CORES}]; tables with a primary key have {BUCKETS} buckets unless it says otherwise. Our files are "
        "synced to the disk, Spark's own are not.",
        "CPU time is that of the driver, Spark's JVM, Python workers and the compaction job.",
    ]
    return Section("pipelines", "Lake tables in Spark", tables, notes, [*made.kinds, *pipelines_growth.kinds(tables)])


class _Comparison:
    """All comparisons in one Spark session."""

    def __init__(self, options: Run, pipelines: Pipelines) -> None:
        self._options, self.pipelines = options, pipelines
        self.kinds: list[Kind] = []

    def _turns(self, contenders: Mapping[str, Contender], *, rehearsals: int = 1) -> dict[str, Turns]:
        return take_turns(contenders, self._options.repeat, self._options.say, rehearsals=rehearsals)

    # ---- streams ----------------------------------------------------------------------------------------------------

    def ingest(self, rows: int) -> list[FigureTable]:
        """Streams run once: each consists of many micro-batches."""
        batches = STREAM_BATCHES if self._options.batches is None else min(STREAM_BATCHES, self._options.batches)
        contenders: dict[str, Contender] = {FILES: lambda: self.pipelines.into_files(rows, batches)}
        for keyed, ways in ((False, APPEND_WAYS), (True, KEYED_WAYS)):
            kind = "primary-key table" if keyed else "append table"
            contenders |= {f"{kind}, compaction {way.name}": self._stream(keyed, way, rows, batches) for way in ways}
        self.pipelines.into_files(rows, 1)  # these two do not count
        self.pipelines.into_table(True, BESIDE, rows, 1, BUCKETS)
        found = take_turns(contenders, 1, self._options.say, rehearsals=0)
        what = (
            f"{batches} micro-batches of {rows:,} rows, one after the other as fast as they can, after {WARM_BATCHES} "
            "that do not count. Rows are made by Spark (rate-micro-batch); every second one of a primary-key table is "
            "an update. Ratios are speeds against Spark's sink of Parquet files. Taken once."
        )
        by_clock = FigureTable("Streaming ingest by the clock", f"{what} On {os.cpu_count()} cores.")
        by_cpu = FigureTable(
            "Streaming ingest per core", "The same streams: rows for a second of CPU time, compaction included."
        )
        base = found[FILES]
        for name, turns in found.items():
            total = rows * batches
            by_clock.add(Figure(name, total / turns.wall, ratio=base.wall / turns.wall))
            by_cpu.add(Figure(name, total / turns.cpu, "rows/CPU s", ratio=base.cpu / turns.cpu))
        for kind in ("append", "primary-key"):
            row = f"{kind} table, compaction beside the query"
            self.kinds.append(Kind.of(f"Spark: stream into a lake, {row}", by_clock, row, {FILES: PEER}))
        return [by_clock, by_cpu]

    def _stream(self, keyed: bool, way: Way, rows: int, batches: int) -> Contender:
        return lambda: self.pipelines.into_table(keyed, way, rows, batches, BUCKETS)

    def hours(self, keyed: bool) -> FigureTable:
        batches = (KEYED_BATCHES if keyed else BATCHES) if self._options.batches is None else self._options.batches
        unsynced = Lake(self.pipelines.lake.folder, sync=False)
        left = {}
        for way in HOUR_WAYS:
            name = self.pipelines.new_name()
            left[name] = way, hour(unsynced, name, keyed, way, batches, HOUR_BUCKETS)
            self._options.say(f"  {batches} micro-batches, {way.name}: {left[name][1].seconds:.1f} s")
        kind = f"primary-key table, {HOUR_BUCKETS} bucket" if keyed else "append table"
        table = FigureTable(
            f"After {batches:,} micro-batches: {kind}",
            f"{batches / 60:.3g} minutes of micro-batches of a second, {TASKS} tasks with {TASK_ROWS} rows each, and "
            "the compaction named at the left; then SELECT of all columns and rows into Spark's noop sink. Ratios are "
            "times against the uncompacted table; below 1 is faster. Files are data files of the last "
            f"snapshot, in brackets the most that any had (sampled). The dedicated job has a turn every {JOB_EVERY} s. "
            "The micro-batches are written and committed as by a query, one after the other and without Spark; the "
            "next one waits for compaction, for which a second would be enough.",
        )
        for name, (_, after) in left.items():
            self.pipelines.check_count(name, after.rows)
        selects: dict[str, Contender] = {name: (lambda n=name: self.pipelines.select(n)) for name in left}  # type: ignore[misc]
        found = self._turns(selects)
        base = next(iter(found.values()))
        for name, (way, after) in left.items():
            turns = found[name]
            low, high = turns.spread
            files = f"{after.files:,} files ({after.files_max:,})"
            table.add(
                Figure(
                    f"{way.name}: {files}", turns.wall * 1000, "ms",
                    ratio=turns.wall / base.wall, spread=(low * 1000, high * 1000),
                )
            )  # fmt: skip
            self.pipelines.lake.drop(name)
        return table

    # ---- scans ------------------------------------------------------------------------------------------------------

    def scans(self, rows: int) -> FigureTable:
        files = write_files(self.pipelines.folder / "files", data.batches(rows))
        lake = self.pipelines.lake
        contenders: dict[str, Contender] = {"spark.read.parquet": lambda: self.pipelines.select_files(files)}
        targets: dict[str, float | None] = {"spark.read.parquet": None}
        for what, keyed, compacted in (
            ("append table, compacted", False, True),
            ("primary-key table, compacted", True, True),
            ("primary-key table, not compacted", True, False),
        ):
            name = self.pipelines.new_name()
            table = lake.create(name, definition(keyed, NONE, BUCKETS))
            halves = [list(data.batches(rows - rows // 2)), list(data.batches(rows // 2, first=rows - rows // 2))]
            changed = [data.batch_of(batch.column(0).to_numpy()[::100].copy(), 5) for batch in halves[0]]
            for part in (*halves, changed) if keyed else halves:
                put(table, _table_of(part))
            if compacted:
                table.compact(full=True)
            self.pipelines.check_count(name, rows)
            contenders[what] = lambda n=name: self.pipelines.select(n)  # type: ignore[misc]
            targets[what] = SCAN_MAX if compacted else None
        found = self._turns(contenders)
        base = found["spark.read.parquet"]
        table_of = FigureTable(
            "Scan of a lake table",
            f"{rows:,} rows, all columns, into Spark's noop sink. Primary-key tables were written in three commits, "
            "the last of which updates one row of 200. Ratios are times against Spark's read of Parquet files of as "
            "many rows; below 1 is faster.",
        )
        for name, turns in found.items():
            table_of.add(_times(name, turns, base, targets[name]))
        limit = limits.as_time(limits.parquet_read(files, rows, self._options), rows)
        for what in list(contenders)[1:]:
            self.kinds.append(
                Kind.of(f"Spark: scan a lake's {what}", table_of, what, {"spark.read.parquet": PEER}, limit)
            )
        return table_of

    def inserts(self, rows: int) -> FigureTable:
        source = write_files(self.pipelines.folder / "source", data.batches(rows))
        view = "source"
        self.pipelines.session.read.parquet(str(source)).repartition(CORES).cache().createOrReplaceTempView(view)
        self.pipelines.session.table(view).count()
        contenders: dict[str, Contender] = {"df.write.parquet": lambda: self.pipelines.write_files(view)}
        targets: dict[str, float | None] = {"df.write.parquet": None}
        for what, keyed, way in (
            ("INSERT INTO an append table", False, BESIDE),
            ("INSERT INTO a primary-key table", True, BESIDE),
            ("INSERT INTO a primary-key table, precommit-compact", True, BEFORE),
        ):
            contenders[what] = lambda k=keyed, w=way: self.pipelines.insert(view, rows, k, w, BUCKETS)  # type: ignore[misc]
            targets[what] = None if way is BEFORE else INSERT_MAX[keyed]
        found = self._turns(contenders)
        self.pipelines.session.table(view).unpersist()
        targets["INSERT INTO a primary-key table, precommit-compact"] = (
            2 * found["INSERT INTO a primary-key table"].wall / found["df.write.parquet"].wall
        )
        table = FigureTable(
            "INSERT into a lake table",
            f"{rows:,} rows that Spark has in memory, in {CORES} partitions. Those of a primary-key table are shuffled "
            "and sorted by key on the way. Ratios are times against Spark's writing of Parquet files; below 1 is "
            "faster. With precommit-compact, the target is twice the INSERT without: a commit has one file of each "
            "bucket, so there is little to put together.",
        )
        for name, turns in found.items():
            table.add(_times(name, turns, found["df.write.parquet"], targets[name]))
        limit = limits.as_time(limits.parquet_write(source, self.pipelines.folder / "written", self._options), rows)
        for what in list(contenders)[1:3]:
            self.kinds.append(Kind.of(f"Spark: {what} of a lake", table, what, {"df.write.parquet": PEER}, limit))
        return table


def _table_of(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches, data.SCHEMA)


def _times(name: str, turns: Turns, base: Turns, ratio_max: float | None) -> Figure:
    low, high = turns.spread
    return Figure(
        name, turns.wall * 1000, "ms",
        ratio=turns.wall / base.wall, ratio_max=ratio_max, spread=(low * 1000, high * 1000),
        reason=f"of CPU time it uses {turns.cpu:.2f} s and Parquet {base.cpu:.2f} s, on {os.cpu_count()} cores",
    )  # fmt: skip
