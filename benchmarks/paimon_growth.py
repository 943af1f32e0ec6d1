"""How the lake engine's costs grow: with rows, with files, with snapshots; and its memory, which should not grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from benchmarks import data, paimon_memory, paimon_metadata
from benchmarks import paimon_work as work
from benchmarks.paimon_metadata import Measured
from benchmarks.paimon_turns import Contender, Turns, take_turns
from benchmarks.paimon_work import APPEND, BUCKETS, COMMITS, KEYED, Lake
from benchmarks.report import Figure, FigureTable, Grid, number
from benchmarks.running import Run, scratch

ROW_PARTS = (0.25, 0.5, 1.0, 2.0)
FILES = (100, 1_000, 10_000)
SNAPSHOTS = (10, 100, 1_000)
_FULL_ROWS = 2_000_000
"""With fewer rows than this, tables with many files and snapshots are smaller in proportion, too."""

MEMORY_PARTS = (0.5, 1.0, 2.0)
MEMORY_RATIO_MAX = 1.5
MEMORY_NOISE_BYTES = 16 << 20
"""Allocators keep pages for later; smaller differences are noise."""

_METADATA_TURNS = 3


def tables(options: Run, folder: Path, rows: int) -> list[FigureTable | Grid]:
    """All tables; `rows` is the size of the other tables of the section."""
    return [
        _memory(options, sorted({max(COMMITS, int(rows * part)) for part in MEMORY_PARTS})),
        _rows(options, folder, sorted({max(COMMITS, int(rows * part)) for part in ROW_PARTS})),
        _metadata(options, folder, "files", FILES, "They came with one commit."),
        _metadata(options, folder, "snapshots", SNAPSHOTS, "They all have the same ten files."),
    ]


def many_files(options: Run, lake: Lake, name: str) -> Measured:
    """The table of the target: 1,000 snapshots and 10,000 files, or fewer with fewer rows."""
    commits = _sized(options, SNAPSHOTS[-1:])[0]
    options.say(f"  making a table by {commits:,} commits")
    return paimon_metadata.many_commits(lake, name, commits, options.repeat * _METADATA_TURNS)


def _sized(options: Run, sizes: Sequence[int]) -> list[int]:
    share = min(1.0, options.rows_or(_FULL_ROWS) / _FULL_ROWS)
    return sorted({max(10, int(size * share)) for size in sizes})


# ---- rows -----------------------------------------------------------------------------------------------------------


def _rows(options: Run, folder: Path, sizes: Sequence[int]) -> Grid:
    found: dict[str, list[Turns]] = {}
    everything = data.table(sizes[-1])
    with scratch(options, "growth") as place:
        by_size = [_contenders(Lake(place / str(size)), everything.slice(0, size)) for size in sizes]
        for name in by_size[0]:  # sizes take turns, so that a busy machine is not mistaken for growth
            options.say(f"  growth with rows: {name}")
            turns = take_turns(
                {f"{size:,} rows": contenders[name] for size, contenders in zip(sizes, by_size)},
                options.repeat,
                options.say,
            )
            found[name] = list(turns.values())
    return _grid(
        "How costs grow with rows",
        "Time by the clock for the same work on tables of so many rows, made as the tables above are. The last "
        "column says how many times as much the largest table costs as the smallest.",
        [f"{size:,} rows" for size in sizes],
        found,
    )


def _contenders(lake: Lake, appended: pa.Table) -> dict[str, Contender]:
    rows = appended.num_rows
    parts = work.changes(rows)
    left = work.distinct_rows(parts)
    append = lake.filled("append", APPEND, [appended])
    keyed = lake.filled("keyed", KEYED, parts)
    compacted = lake.copy("keyed", "compacted")
    compacted.compact(full=True)
    return {
        "append: write": lambda: work.write_cost(lake, APPEND, [appended]),
        "append: read": lambda: work.read_cost(append, rows),
        f"primary key: write, {COMMITS} commits, {BUCKETS} buckets": lambda: work.write_cost(lake, KEYED, parts),
        "primary key: merge-on-read": lambda: work.read_cost(keyed, left),
        "primary key: full compaction": lambda: work.compact_cost(lake, "keyed"),
        "primary key: read after compaction": lambda: work.read_cost(compacted, left),
        "primary key: one row by its key": lambda: work.find_cost(keyed, left // 2),
        "primary key: the same after compaction": lambda: work.find_cost(compacted, left // 2),
    }


def _grid(title: str, explanation: str, sizes: list[str], found: Mapping[str, Sequence[Turns]]) -> Grid:
    rows = [
        [name, *(f"{number(t.wall * 1000)} ms" for t in turns), f"{turns[-1].wall / turns[0].wall:.2f} x"]
        for name, turns in found.items()
    ]
    return Grid(title, explanation, ["what", *sizes, "growth"], rows)


# ---- files and snapshots --------------------------------------------------------------------------------------------


def _metadata(options: Run, folder: Path, what: str, sizes: Sequence[int], how: str) -> Grid:
    make: Callable[[Lake, str, int, int], Measured] = paimon_metadata.GROWTH[what]
    turns = options.repeat * _METADATA_TURNS
    with scratch(options, "growth") as place:
        lake = Lake(place, sync=False)
        sizes = _sized(options, sizes)
        measured = [make(lake, f"t{size}", size, turns) for size in sizes]
    found = {
        "commit, cold": [m.commit_cold for m in measured],
        "commit, warm": [m.commit_warm for m in measured],
        "plan, cold": [m.plan_cold for m in measured],
        "plan, warm": [m.plan_warm for m in measured],
    }
    return _grid(
        f"How committing and planning grow with {what}",
        f"Tables with so many {what}. {how} Cold and warm mean what they mean above; files are not synced.",
        [f"{size:,} {what}" for size in sizes],
        found,
    )


# ---- memory ---------------------------------------------------------------------------------------------------------


def _memory(options: Run, sizes: Sequence[int]) -> FigureTable:
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for size in sizes:
        with scratch(options, "memory") as place:
            for name in (name for name in paimon_memory.WORK if name != "take"):
                found.setdefault(name, {})[size] = paimon_memory.peak_bytes(name, place, size)
                options.say(f"  memory: {name}, {size:,} rows: {found[name][size][0] / (1 << 20):.1f} MiB")
    table = FigureTable(
        "Memory by size of the table",
        "Taken once. Highest growth of the memory of a fresh process while it works on a table of so many rows, "
        "sampled every 5 ms; rows come and go in batches. The target is flatness: at most "
        f"{MEMORY_RATIO_MAX:g} times the growth with the smallest table plus {MEMORY_NOISE_BYTES >> 20} MiB. Ratios "
        "are against the smallest table.",
    )
    for name, label in paimon_memory.LABELS.items():
        first, _ = found[name][sizes[0]]
        for size, (growth, arrow) in found[name].items():
            limit = None if size == sizes[0] else (first * MEMORY_RATIO_MAX + MEMORY_NOISE_BYTES) / (1 << 20)
            table.add(
                Figure(
                    f"{label}, {size:,} rows",
                    growth / (1 << 20),
                    "MiB",
                    ratio=growth / first if first else None,
                    value_max=limit,
                    reason=f"Arrow had {arrow >> 20} MiB in use at most; the rest is kept by its allocator for reuse",
                )
            )
    return table
