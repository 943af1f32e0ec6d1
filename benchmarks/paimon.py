"""The lake engine: ours, pypaimon, its Rust engine, Java Paimon, plain Parquet on the same rows; how our costs grow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import data, paimon_growth, paimon_memory
from benchmarks import paimon_work as work
from benchmarks.paimon_peer import JAVA, PYTHON, RUST, Peer, PeerFailure, named, peers, versions
from benchmarks.paimon_turns import Contender, Cost, Turns, take_turns
from benchmarks.paimon_work import APPEND, BUCKETS, COMMITS, KEYED, UPDATED, Lake
from benchmarks.report import Figure, FigureTable, Grid, Kind, Limit, Section
from benchmarks.running import Run, scratch
from forebay.base import allocator

ROWS = 2_000_000
APPEND_WRITE_MAX, READ_MAX = 1.3, 1.2
"""Maximum times, relative to plain Parquet."""

KEYED_WRITE_MIN, MERGE_MIN, COMPACT_MIN = 1_000_000, 2_500_000, 1_500_000
"""Minimum rows per second, of all commits together."""

FIND_MS_MAX, COMMIT_MS_MAX, PLAN_MS_MAX = 25, 200, 300

OURS, UNSYNCED = "forebay", "forebay, files not synced"
RAW, RAW_SYNCED = "pyarrow: one Parquet file", "pyarrow: one Parquet file, synced"
_ALLOCATORS = {
    "Arrow's own settings": {"MIMALLOC_ALLOW_THP": "1", "MIMALLOC_PURGE_DELAY": "1000"},
    "as forebay sets them": allocator.settle(),
}
_STREAM_COMMITS, _STREAM_SHARE = 50, 4
"""A stream writes one row in so many of the other tables."""

_PYTHON_SHARE = 10
"""pypaimon's own writes and merges of primary-key tables work row by row, so it gets one row in this many."""


def run(options: Run) -> Section:
    with scratch(options, "paimon") as folder:
        with peers(folder) as (others, reasons):
            made = _Comparison(options, folder, others, reasons)
            tables: list[FigureTable | Grid] = [*made.append(), *made.keyed(), *made.metadata()]
        tables += [made.first_reads(), *paimon_growth.tables(options, folder, options.rows_or(ROWS))]
    return Section("paimon", "The lake engine: tables in Paimon's format", tables, made.notes(), made.kinds)


class _Comparison:
    """All comparisons of one run, in one warehouse."""

    def __init__(self, options: Run, folder: Path, others: Mapping[str, Peer], troubles: list[str]) -> None:
        self._options, self._folder, self._others, self._troubles = options, folder, others, troubles
        self.kinds: list[Kind] = []
        self._rows = options.rows_or(ROWS)
        self._lake, self._unsynced = Lake(folder / "lake"), Lake(folder / "lake", sync=False)
        self._numbers = count()

    def notes(self) -> list[str]:
        notes = [
            f"Files are Parquet, {work.CODEC} level {work.LEVEL}, everywhere. pypaimon and pyarrow leave it to the "
            "kernel when files reach the disk; we sync them, unless the row says otherwise.",
            "Each contender does its work once before its turns count. In brackets: the least and the most of them.",
        ]
        if self._others:
            notes.append(
                f"Peers: {versions()}, in processes of their own; their start is not counted. pypaimon has the pyarrow "
                "that it asks for (below 20), and the Rust engine is switched on wherever pypaimon has it. Java Paimon "
                "writes rows that it has in memory as binary rows, by one writer, and reads and compacts with as many "
                "threads as there are cores; it counts the rows that it reads. Its time in the kernel is not known. "
                "INSERT, SELECT and CALL by its Spark connector are not measured: Maven Central does not have it."
            )
        return [*notes, *(f"Not measured: {trouble}" for trouble in dict.fromkeys(self._troubles))]

    def _turns(self, contenders: Mapping[str, Contender], times: int = 1) -> dict[str, Turns]:
        return take_turns(contenders, self._options.repeat * times, self._options.say)

    def _kind(self, what: str, found: Mapping[str, Turns], limit: Limit | None, rows: int | None = None) -> None:
        """A line of the first page: rates of so many rows, or times."""

        def value(turns: Turns) -> float:
            return turns.wall * 1000 if rows is None else rows / turns.wall

        # pypaimon in Python had fewer rows in some kinds of work; it is never the best.
        fair = (RUST, JAVA) if rows else (PYTHON, RUST, JAVA)
        theirs = {named(who): value(turns) for who, turns in found.items() if who in fair}
        self.kinds.append(Kind(what, "ms" if rows is None else "rows/s", value(found[OURS]), theirs, limit))

    # ---- peers ------------------------------------------------------------------------------------------------------

    def _peers(self, do: Callable[[str], Cost], *without: str) -> dict[str, Contender]:
        """The contenders that do it, of the peers that there are."""
        found: dict[str, Contender] = {}
        for who in self._others:
            if who in without:
                continue
            try:
                do(who)
            except PeerFailure as e:
                self._troubles.append(f"{who}: {e}")
                continue
            found[who] = partial(do, who)
        return found

    def _ask(self, do: str, name: str, who: str, rows: int | None = None, **arguments: object) -> Cost:
        if who != JAVA:
            arguments["rust"] = who == RUST
        return self._others[who].ask(do, rows, warehouse=str(self._lake.folder), table=f"db.{name}", **arguments)

    def _their_write(self, loaded: str, definition: Mapping[str, object], who: str, do: str = "write") -> Cost:
        name = f"theirs_{next(self._numbers)}"
        theirs = {("primary_keys" if key == "primary_key" else key): value for key, value in definition.items()}
        cost = self._ask(do, name, who, data=loaded, definition=theirs)
        self._lake.drop(name)
        return cost

    def _load(self, name: str, parts: list[pa.Table], alone: bool = True) -> None:
        for other in {id(other): other for other in self._others.values()}.values():
            other.load(name, parts, alone)

    # ---- append tables ----------------------------------------------------------------------------------------------

    def append(self) -> Iterator[FigureTable]:
        rows = data.table(self._rows)
        self._load("append", [rows])
        raw = self._folder / "raw.parquet"
        writers: dict[str, Contender] = {
            RAW: lambda: work.raw_write_cost(raw, rows, sync=False),
            UNSYNCED: lambda: work.write_cost(self._unsynced, APPEND, [rows]),
            RAW_SYNCED: lambda: work.raw_write_cost(raw, rows, sync=True),
            OURS: lambda: work.write_cost(self._lake, APPEND, [rows]),
            **self._peers(partial(self._their_write, "append", {})),
        }
        table = FigureTable(
            "Appending to an append table",
            f"{self._rows:,} rows in one commit, from Arrow data in memory. Ratios are times against pyarrow, which "
            "writes one Parquet file, synced or not as the row is; below 1 is faster.",
        )
        written = self._turns(writers)
        _compare_times(table, written, RAW, APPEND_WRITE_MAX, {OURS: RAW_SYNCED, RAW_SYNCED: RAW_SYNCED})
        limit = Limit("pyarrow writes a Parquet file, synced", self._rows / written[RAW_SYNCED].wall)
        self._kind("lake: append", written, limit, self._rows)
        yield table
        ours = self._lake.filled("append", APPEND, [rows])
        paths = work.data_paths(self._lake, "append")
        readers: dict[str, Contender] = {
            RAW: lambda: work.raw_read_cost([raw], self._rows),
            "pyarrow: our data files": lambda: work.raw_read_cost(paths, self._rows),
            OURS: lambda: work.read_cost(ours, self._rows),
            **self._peers(lambda who: self._ask("read", "append", who, self._rows)),
        }
        table = FigureTable(
            "Reading an append table",
            f"{self._rows:,} rows, all columns, into an Arrow table; all read the table that we wrote. Ratios are "
            "times against pyarrow reading the one file that it wrote itself; below 1 is faster.",
        )
        read = self._turns(readers, 3)
        _compare_times(table, read, RAW, READ_MAX)
        limit = Limit("pyarrow reads a Parquet file, all cores", self._rows / read[RAW].wall)
        self._kind("lake: read an append table", read, limit, self._rows)
        raw.unlink()
        yield table

    # ---- primary-key tables -----------------------------------------------------------------------------------------

    def keyed(self) -> Iterator[FigureTable]:
        parts = work.changes(self._rows)
        left = work.distinct_rows(parts)
        few_rows = max(self._rows // _PYTHON_SHARE, COMMITS)
        few = work.changes(few_rows)
        self._load("keyed", parts)
        self._load("few", few, alone=False)
        self._lake.filled("keyed", KEYED, parts)
        self._lake.filled("few", KEYED, few)
        yield self._keyed_rates(parts, left, few_rows, work.distinct_rows(few))
        self._lake.copy("keyed", "compacted").compact(full=True)
        yield self._compacted_reads(left)
        yield self._finds(left)

    def _keyed_rates(self, parts: list[pa.Table], left: int, few_rows: int, few_left: int) -> FigureTable:
        table = FigureTable(
            "Primary-key table: writing, merging, compacting",
            f"{self._rows:,} rows in {COMMITS} commits, in no order of keys, into {BUCKETS} buckets; {UPDATED:.0%} of "
            f"the rows of the later commits update an earlier one, so {left:,} rows are left. The table is write-only, "
            "that is, compaction is not part of the write (in one row it is). Merge-on-read reads the table of "
            f"{COMMITS} runs in each bucket, all columns, into an Arrow table; full compaction rewrites it as one run. "
            "Rows in a second are those of all commits together, also where fewer come out. Ratios are speeds against "
            f"the first row of each kind of work. pypaimon in Python takes rows one by one: it was given {few_rows:,} "
            "rows, once. pypaimon cannot compact. A stream writes a quarter of the rows, in more commits, with one "
            "writer that compacts when due.",
        )
        compacting = {**KEYED, "options": {"bucket": str(BUCKETS)}}
        writers: dict[str, Contender] = {
            OURS: lambda: work.write_cost(self._lake, KEYED, parts),
            UNSYNCED: lambda: work.write_cost(self._unsynced, KEYED, parts),
            "forebay, which compacts when due": lambda: work.write_cost(self._lake, compacting, parts),
            **self._peers(partial(self._their_write, "keyed", KEYED), PYTHON),
        }
        writes = self._turns(writers) | self._once(lambda who: self._their_write("few", KEYED, who))
        _compare_rates(table, "write", writes, self._rows, few_rows, {OURS: KEYED_WRITE_MIN})
        opened = self._lake.open("keyed")
        readers: dict[str, Contender] = {
            OURS: lambda: work.read_cost(opened, left),
            **self._peers(lambda who: self._ask("read", "keyed", who, left), PYTHON),
        }
        reads = self._turns(readers, 2) | self._once(lambda who: self._ask("read", "few", who, few_left))
        _compare_rates(table, "merge-on-read", reads, self._rows, few_rows, {OURS: MERGE_MIN})
        compactors: dict[str, Contender] = {OURS: lambda: work.compact_cost(self._lake, "keyed")}
        compactors |= self._peers(self._their_compaction, PYTHON, RUST)
        compactions = self._turns(compactors)
        _compare_rates(table, "full compaction", compactions, self._rows, few_rows, {OURS: COMPACT_MIN})
        streams = self._streams()
        streamed = self._rows // _STREAM_SHARE
        _compare_rates(table, f"{_STREAM_COMMITS} commits of one stream", streams, streamed, few_rows, {})
        paths, raw = work.data_paths(self._lake, "keyed"), self._folder / "sorted.parquet"
        bounds = self._turns(
            {
                "sort, write": lambda: work.raw_sorted_cost(raw, parts),
                "read": lambda: work.raw_read_cost(paths, self._rows),
                "read, sort, write": lambda: work.raw_compact_cost(paths, raw),
            }
        )
        raw.unlink()
        rates = {name: self._rows / turns.wall for name, turns in bounds.items()}
        sorts = Limit("pyarrow sorts each commit and writes a Parquet file, synced", rates["sort, write"])
        self._kind(f"lake: upsert, {COMMITS} commits", writes, sorts, self._rows)
        self._kind(f"lake: upsert, {_STREAM_COMMITS} commits of a stream", streams, sorts, streamed)
        self._kind(
            "lake: merge-on-read", reads, Limit("pyarrow reads these files, all cores", rates["read"]), self._rows
        )
        rewrites = Limit("pyarrow reads them, sorts, and writes one, synced", rates["read, sort, write"])
        self._kind("lake: full compaction", compactions, rewrites, self._rows)
        return table

    def _their_compaction(self, who: str) -> Cost:
        name = f"theirs_{next(self._numbers)}"
        self._lake.copy("keyed", name)
        cost = self._ask("compact", name, who)
        self._lake.drop(name)
        return cost

    def _streams(self) -> dict[str, Turns]:
        """One writer makes many small commits, and compacts when due."""
        parts = work.changes(self._rows // _STREAM_SHARE, _STREAM_COMMITS)
        self._load("stream", parts)
        definition = {**KEYED, "options": {"bucket": str(BUCKETS)}}
        streams: dict[str, Contender] = {OURS: lambda: work.stream_cost(self._lake, definition, parts)}
        streams |= self._peers(lambda who: self._their_write("stream", definition, who, "ingest"), PYTHON, RUST)
        return self._turns(streams)

    def _once(self, do: Callable[[str], Cost]) -> dict[str, Turns]:
        """One turn of pypaimon in Python, for work that takes it long."""
        if PYTHON not in self._others:
            return {}
        try:
            return {PYTHON: Turns([do(PYTHON)])}
        except PeerFailure as e:
            self._troubles.append(f"{PYTHON}: {e}")
            return {}

    def _compacted_reads(self, left: int) -> FigureTable:
        opened = self._lake.open("compacted")
        paths = work.data_paths(self._lake, "compacted")
        raw = "pyarrow: the same data files"
        readers: dict[str, Contender] = {
            raw: lambda: work.raw_read_cost(paths, left),
            OURS: lambda: work.read_cost(opened, left),
            **self._peers(lambda who: self._ask("read", "compacted", who, left)),
        }
        table = FigureTable(
            "Reading a primary-key table after full compaction",
            f"{left:,} rows, the table's columns, into an Arrow table. Ratios are times against pyarrow reading the "
            f"table's columns of its {len(paths)} data files; below 1 is faster.",
        )
        read = self._turns(readers, 3)
        _compare_times(table, read, raw, READ_MAX)
        limit = Limit("pyarrow reads these files, all cores", left / read[raw].wall)
        self._kind("lake: read after compaction", read, limit, left)
        return table

    def _finds(self, left: int) -> FigureTable:
        table = FigureTable(
            "Primary-key table: one row by a filter on its key",
            f"`read(filter=col('{data.KEY}') == x)` of the tables above, which are open; replanned for each of "
            "several keys. Ratios are times against our first row.",
        )
        base = None
        for name, state in (("keyed", f"{COMMITS} commits, not compacted"), ("compacted", "after full compaction")):
            opened = self._lake.open(name)
            keys = (n * 7919 % left for n in count(1))
            seekers: dict[str, Contender] = {
                OURS: lambda t=opened, k=keys: work.find_cost(t, next(k)),  # type: ignore[misc]
                **self._peers(lambda who, t=name, k=keys: self._ask("read", t, who, 1, key=next(k))),  # type: ignore[misc]
            }
            footers = _footers(work.data_paths(self._lake, name))
            found = self._turns(seekers, 5)
            self._kind(f"lake: one row by its key, {state}", found, Limit("the footers of a bucket's files", footers))
            base = base or found[OURS]
            for who, turns in found.items():
                most = FIND_MS_MAX if who == OURS else None
                table.add(_time(f"{who}, {state}", turns, ratio=turns.wall / base.wall, value_max=most))
        return table

    # ---- metadata ---------------------------------------------------------------------------------------------------

    def metadata(self) -> Iterator[FigureTable]:
        measured = paimon_growth.many_files(self._options, self._unsynced, "many")
        self._load("ten", [data.table(10)])
        table = FigureTable(
            f"Committing and planning with {measured.snapshots:,} snapshots and {measured.files:,} files",
            f"The table was made by {measured.snapshots:,} commits with {measured.files // measured.snapshots} files "
            "each. A commit takes messages of files that are there and makes a snapshot; planning gives the splits of "
            "a full scan. Cold: the table is opened first, and nothing of it is in memory; warm: it is in use. Every "
            "few commits one also merges manifests, which the slowest ones show. Ratios are times against our row of "
            "the same kind.",
        )
        last = measured.last_commits
        slowest = Turns([max(last.costs, key=lambda cost: cost.wall)])
        ours = {"commit, cold": measured.commit_cold, "plan, cold": measured.plan_cold}
        for what, turns in ours.items():
            most = COMMIT_MS_MAX if what.startswith("commit") else PLAN_MS_MAX
            table.add(_time(f"{OURS}: {what}", turns, ratio=1.0, value_max=most))
            do = what.partition(",")[0]
            extra = {"data": "ten"} if do == "commit" else {}
            found = {OURS: turns}
            for who, contender in self._peers(lambda who, d=do, e=extra: self._ask(d, "many", who, **e)).items():  # type: ignore[misc]
                found |= self._turns({who: contender}, 3)
                table.add(_time(f"{who}: {what}", found[who], ratio=found[who].wall / turns.wall))
            limit = (
                Limit("four small files, written, synced and renamed", _synced_files(self._folder)) if extra else None
            )
            self._kind(f"lake: {do}, {measured.files:,} files, cold", found, limit)
        table.add(_time(f"{OURS}: commit, warm", measured.commit_warm, value_max=COMMIT_MS_MAX))
        table.add(_time(f"{OURS}: the last {len(last.costs)} commits, each", last, value_max=COMMIT_MS_MAX))
        why = (
            f"it merges manifests: with a table of {measured.files:,} files that is reading and writing up to as many "
            f"entries, {slowest.cpu * 1000:.0f} ms of CPU time; so does one commit in about thirty"
        )
        table.add(_time(f"{OURS}: the slowest of these", slowest, value_max=COMMIT_MS_MAX, reason=why))
        table.add(_time(f"{OURS}: plan, warm", measured.plan_warm, value_max=PLAN_MS_MAX))
        yield table

    # ---- the allocator -----------------------------------------------------------------------------------------------

    def first_reads(self) -> FigureTable:
        table = FigureTable(
            "Reading an append table, first in a process",
            f"{self._rows:,} rows, all columns, into an Arrow table, each time in a fresh process that has read a few "
            "rows of another table. Arrow's own settings are those of its allocator, mimalloc: huge pages, and unused "
            "memory returned after a second; importing forebay sets others (docs/client.md). Ratios are times.",
        )
        lake = self._folder / "first"
        paimon_memory.peak_bytes("append", lake, self._rows)  # writes the tables
        readers: dict[str, Contender] = {
            name: partial(paimon_memory.first_cost, "take", lake, self._rows, environment)
            for name, environment in _ALLOCATORS.items()
        }
        found = self._turns(readers, 3)
        base = next(iter(found.values()))
        for name, turns in found.items():
            table.add(_time(name, turns, ratio=turns.wall / base.wall))
        return table


def _footers(paths: list[Path]) -> float:
    """Milliseconds in which one core reads the footers of the files of a bucket."""
    (bucket, *_) = sorted({path.parent for path in paths})
    some = [path for path in paths if path.parent == bucket]
    cost = work.cost_of(lambda: [pq.ParquetFile(path).metadata for path in some])
    return 1000 * cost.wall


def _synced_files(folder: Path) -> float:
    """Milliseconds for as many files as a commit makes, durably: three manifests and the snapshot."""

    def write() -> None:
        for number in range(4):
            with (folder / "unnamed").open("wb") as file:
                file.write(b"x" * 2000)
                file.flush()
                os.fsync(file.fileno())
            os.replace(folder / "unnamed", folder / f"named-{number}")

    return 1000 * Turns([work.cost_of(write) for _ in range(5)]).wall


# ---- figures --------------------------------------------------------------------------------------------------------


def _time(
    what: str, turns: Turns, *, ratio: float | None = None, value_max: float | None = None, reason: str = ""
) -> Figure:
    low, high = turns.spread
    return Figure(
        what,
        turns.wall * 1000,
        "ms",
        ratio=ratio,
        value_max=value_max,
        reason=reason or f"it uses {turns.cpu * 1000:.0f} ms of CPU time, on {os.cpu_count()} cores",
        spread=None if len(turns.costs) == 1 else (low * 1000, high * 1000),
        cpu=(turns.cpu * 1000, turns.kernel * 1000),
    )


def _compare_times(
    table: FigureTable,
    found: Mapping[str, Turns],
    base: str,
    most: float,
    bases: Mapping[str, str] | None = None,
) -> None:
    """A row for each contender, in milliseconds, relative to `base` or its own of `bases`; `most` is our target."""
    for name, turns in found.items():
        against = found[(bases or {}).get(name, base)]
        figure = _time(name, turns, ratio=turns.wall / against.wall)
        if name in (OURS, UNSYNCED):
            reason = (
                f"of CPU time it uses {turns.cpu * 1000:.0f} ms and pyarrow {against.cpu * 1000:.0f} ms, "
                f"on {os.cpu_count()} cores"
            )
            figure = replace(figure, ratio_max=most, reason=reason)
        table.add(figure)


def _compare_rates(
    table: FigureTable, what: str, found: Mapping[str, Turns], rows: int, few_rows: int, least: Mapping[str, float]
) -> None:
    """A row for each contender, in rows per second; pypaimon in Python had `few_rows`, the others `rows`."""
    base = rows / next(iter(found.values())).wall
    for name, turns in found.items():
        done = few_rows if name == PYTHON else rows
        fastest, slowest = turns.spread
        table.add(
            Figure(
                f"{what}: {name}",
                done / turns.wall,
                ratio=done / turns.wall / base,
                value_min=least.get(name),
                spread=None if len(turns.costs) == 1 else (done / slowest, done / fastest),
                reason=f"it uses {turns.cpu * 1e9 / done:.0f} ns of CPU time for a row, on {os.cpu_count()} cores",
            )
        )
