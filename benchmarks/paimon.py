"""The lake engine: ours, pypaimon, its Rust engine and plain Parquet on the same rows; and how our costs grow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa

from benchmarks import data, paimon_growth, paimon_memory
from benchmarks import paimon_work as work
from benchmarks.paimon_peer import PYTHON, RUST, Peer, PeerFailure, peer, versions
from benchmarks.paimon_turns import Contender, Cost, Turns, take_turns
from benchmarks.paimon_work import APPEND, BUCKETS, COMMITS, KEYED, UPDATED, Lake
from benchmarks.report import Figure, FigureTable, Grid, Section
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
_PYTHON_SHARE = 10
"""pypaimon's own writes and merges of primary-key tables work row by row, so it gets one row in this many."""


def run(options: Run) -> Section:
    with scratch(options, "paimon") as folder, peer(folder) as (other, reason):
        made = _Comparison(options, folder, other, [reason] if other is None else [])
        tables: list[FigureTable | Grid] = [*made.append(), *made.keyed(), *made.metadata(), made.first_reads()]
        tables += paimon_growth.tables(options, folder, options.rows_or(ROWS))
    return Section("paimon", "The lake engine: tables in Paimon's format", tables, made.notes())


class _Comparison:
    """All comparisons of one run, in one warehouse."""

    def __init__(self, options: Run, folder: Path, other: Peer | None, troubles: list[str]) -> None:
        self._options, self._folder, self._peer, self._troubles = options, folder, other, troubles
        self._rows = options.rows_or(ROWS)
        self._lake, self._unsynced = Lake(folder / "lake"), Lake(folder / "lake", sync=False)
        self._numbers = count()

    def notes(self) -> list[str]:
        notes = [
            f"Files are Parquet, {work.CODEC} level {work.LEVEL}, everywhere. pypaimon and pyarrow leave it to the "
            "kernel when files reach the disk; we sync them, unless the row says otherwise.",
            "Each contender does its work once before its turns count. In brackets: the least and the most of them.",
        ]
        if self._peer is not None:
            notes.append(
                f"Peers: {versions()}, in a process of their own, with the pyarrow that pypaimon asks for (below 20); "
                "its start is not counted. The Rust engine is switched on wherever pypaimon has it."
            )
        return [*notes, *(f"Not measured: {trouble}" for trouble in dict.fromkeys(self._troubles))]

    def _turns(self, contenders: Mapping[str, Contender], times: int = 1) -> dict[str, Turns]:
        return take_turns(contenders, self._options.repeat * times, self._options.say)

    # ---- peers ------------------------------------------------------------------------------------------------------

    def _peers(self, do: Callable[[bool], Cost], *, python: bool = True) -> dict[str, Contender]:
        """The contenders that run in Python and in Rust, as far as available."""
        found: dict[str, Contender] = {}
        for name, rust in ((PYTHON, False), (RUST, True)):
            if self._peer is None or not (rust or python):
                continue
            try:
                do(rust)
            except PeerFailure as e:
                self._troubles.append(f"{name}: {e}")
                continue
            found[name] = partial(do, rust)
        return found

    def _ask(self, do: str, name: str, rust: bool, rows: int | None = None, **arguments: object) -> Cost:
        assert self._peer is not None
        where = {"warehouse": str(self._lake.folder), "table": f"db.{name}", "rust": rust}
        return self._peer.ask(do, rows, **where, **arguments)

    def _their_write(self, loaded: str, definition: Mapping[str, object], rust: bool) -> Cost:
        name = f"theirs_{next(self._numbers)}"
        theirs = {("primary_keys" if key == "primary_key" else key): value for key, value in definition.items()}
        cost = self._ask("write", name, rust, data=loaded, definition=theirs)
        self._lake.drop(name)
        return cost

    def _load(self, name: str, parts: list[pa.Table]) -> None:
        if self._peer is not None:
            self._peer.load(name, parts)

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
        _compare_times(table, self._turns(writers), RAW, APPEND_WRITE_MAX, {OURS: RAW_SYNCED, RAW_SYNCED: RAW_SYNCED})
        yield table
        ours = self._lake.filled("append", APPEND, [rows])
        paths = work.data_paths(self._lake, "append")
        readers: dict[str, Contender] = {
            RAW: lambda: work.raw_read_cost([raw], self._rows),
            "pyarrow: our data files": lambda: work.raw_read_cost(paths, self._rows),
            OURS: lambda: work.read_cost(ours, self._rows),
            **self._peers(lambda rust: self._ask("read", "append", rust, self._rows)),
        }
        table = FigureTable(
            "Reading an append table",
            f"{self._rows:,} rows, all columns, into an Arrow table; all read the table that we wrote. Ratios are "
            "times against pyarrow reading the one file that it wrote itself; below 1 is faster.",
        )
        _compare_times(table, self._turns(readers, 3), RAW, READ_MAX)
        raw.unlink()
        yield table

    # ---- primary-key tables -----------------------------------------------------------------------------------------

    def keyed(self) -> Iterator[FigureTable]:
        parts = work.changes(self._rows)
        left = work.distinct_rows(parts)
        few_rows = max(self._rows // _PYTHON_SHARE, COMMITS)
        few = work.changes(few_rows)
        self._load("keyed", parts)
        self._load("few", few)
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
            "rows, once. pypaimon cannot compact.",
        )
        compacting = {**KEYED, "options": {"bucket": str(BUCKETS)}}
        writers: dict[str, Contender] = {
            OURS: lambda: work.write_cost(self._lake, KEYED, parts),
            UNSYNCED: lambda: work.write_cost(self._unsynced, KEYED, parts),
            "forebay, which compacts when due": lambda: work.write_cost(self._lake, compacting, parts),
            **self._peers(partial(self._their_write, "keyed", KEYED), python=False),
        }
        writes = self._turns(writers) | self._once(lambda rust: self._their_write("few", KEYED, rust))
        _compare_rates(table, "write", writes, self._rows, few_rows, {OURS: KEYED_WRITE_MIN})
        opened = self._lake.open("keyed")
        readers: dict[str, Contender] = {
            OURS: lambda: work.read_cost(opened, left),
            **self._peers(lambda rust: self._ask("read", "keyed", rust, left), python=False),
        }
        reads = self._turns(readers, 2) | self._once(lambda rust: self._ask("read", "few", rust, few_left))
        _compare_rates(table, "merge-on-read", reads, self._rows, few_rows, {OURS: MERGE_MIN})
        compactions = self._turns({OURS: lambda: work.compact_cost(self._lake, "keyed")})
        _compare_rates(table, "full compaction", compactions, self._rows, few_rows, {OURS: COMPACT_MIN})
        return table

    def _once(self, do: Callable[[bool], Cost]) -> dict[str, Turns]:
        """One turn of pypaimon in Python, for work that takes it long."""
        if self._peer is None:
            return {}
        try:
            return {PYTHON: Turns([do(False)])}
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
            **self._peers(lambda rust: self._ask("read", "compacted", rust, left)),
        }
        table = FigureTable(
            "Reading a primary-key table after full compaction",
            f"{left:,} rows, the table's columns, into an Arrow table. Ratios are times against pyarrow reading the "
            f"table's columns of its {len(paths)} data files; below 1 is faster.",
        )
        _compare_times(table, self._turns(readers, 3), raw, READ_MAX)
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
                **self._peers(lambda rust, t=name, k=keys: self._ask("read", t, rust, 1, key=next(k))),  # type: ignore[misc]
            }
            found = self._turns(seekers, 5)
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
            for who, contender in self._peers(lambda rust, d=do, e=extra: self._ask(d, "many", rust, **e)).items():  # type: ignore[misc]
                theirs = self._turns({who: contender}, 3)[who]
                table.add(_time(f"{who}: {what}", theirs, ratio=theirs.wall / turns.wall))
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
