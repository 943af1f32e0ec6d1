"""How the costs of tiering and union reads grow with rows and buckets, and whether their memory grows with the lake."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import data, union_memory
from benchmarks.paimon_turns import Contender, Cost, Turns, take_turns
from benchmarks.report import Figure, FigureTable, Grid, number
from benchmarks.running import BUCKETS, Run
from benchmarks.union_work import LakeBench, Tail, put, read_union

ROW_PARTS = (0.25, 0.5, 1.0)
BUCKET_COUNTS = (1, 4, 16)
TAIL = 0.01
"""The share of the rows whose newest version is only in the stream."""

MEMORY_ROWS_FACTOR = 8
"""The factor by which tables for memory measurements are larger.

It makes a bucket of the smallest table have several batches, so that its read needs all the memory that a read ever
does.
"""

MEMORY_TAIL_ROWS = 10_000
MEMORY_RATIO_MAX = 1.5
MEMORY_NOISE_BYTES = 16 << 20
"""Allocators keep pages for later; smaller differences are noise."""


def tables(options: Run, server: LakeBench, rows: int) -> list[FigureTable | Grid]:
    """`rows` is the largest table."""
    sizes = sorted({max(100, int(rows * part)) for part in ROW_PARTS})
    return [
        _memory(options, server, [MEMORY_ROWS_FACTOR * size for size in sizes]),
        _grid(
            f"Growth with rows, {server.lake}",
            f"Primary-key tables of so many rows in {BUCKETS} buckets.",
            [f"{size:,} rows" for size in sizes],
            _measure(options, [_Sized(server, size, BUCKETS) for size in sizes], [f"{size:,} rows" for size in sizes]),
        ),
        _grid(
            f"Growth with buckets, {server.lake}",
            f"Primary-key tables of {sizes[-1]:,} rows in so many buckets.",
            [f"{buckets} buckets" for buckets in BUCKET_COUNTS],
            _measure(
                options,
                [_Sized(server, sizes[-1], buckets) for buckets in BUCKET_COUNTS],
                [f"{buckets} buckets" for buckets in BUCKET_COUNTS],
            ),
        ),
    ]


class _Sized:
    """A table of one size, in its lake, with a tail in the stream; and the work on it."""

    def __init__(self, server: LakeBench, rows: int, buckets: int) -> None:
        self.server, self.rows = server, rows
        self.changes = max(1, int(rows * TAIL))
        self.table = server.filled(True, rows, buckets=buckets, tiered=False)
        self.first_cost = server.cost(lambda: server.tier(self.table, rows))
        Tail(self.table, rows).grow(self.changes)
        self._turn = 0

    def read(self) -> Cost:
        return self.server.cost(lambda: read_union(self.table, self.rows))

    def round(self) -> Cost:
        """Run a round of as many changes as the tail has."""
        self._turn += 1
        keys = np.random.default_rng(self._turn).choice(self.rows, self.changes, replace=False)
        put(self.table, [data.batch_of(np.sort(keys).astype(np.int64), self._turn)])
        return self.server.cost(lambda: self.server.tier(self.table))


def _measure(options: Run, sized: Sequence[_Sized], labels: Sequence[str]) -> dict[str, list[Turns]]:
    """The turns of all sizes, which alternate, so that a busy machine is not mistaken for growth."""

    def turns(do: Callable[[_Sized], Contender]) -> list[Turns]:
        contenders = {label: do(each) for label, each in zip(labels, sized, strict=True)}
        return list(take_turns(contenders, options.repeat, options.say).values())

    return {
        "the first round (once)": [Turns([each.first_cost]) for each in sized],
        f"union read, {TAIL:.0%} of the rows changed": turns(lambda each: each.read),
        f"a round of changes to {TAIL:.0%} of the rows": turns(lambda each: each.round),
    }


def _grid(title: str, explanation: str, sizes: list[str], found: dict[str, list[Turns]]) -> Grid:
    rows = [
        [
            name,
            *(f"{number(t.wall * 1000)} ms, CPU {number(t.cpu * 1000)} ms" for t in turns),
            f"{turns[-1].cpu / turns[0].cpu:.2f} x" if turns[0].cpu else "",
        ]
        for name, turns in found.items()
    ]
    explanation += (
        ' Tiering in one thread of a process, reads by `scan(source="union")`. Time by the clock, and CPU time of that '
        "process and the server. The last column says how many times as much CPU time the last column of sizes takes "
        "as the first."
    )
    return Grid(title, explanation, ["what", *sizes, "growth"], rows)


def _memory(options: Run, server: LakeBench, sizes: Sequence[int]) -> FigureTable:
    table = FigureTable(
        f"Memory of a union read by the size of the lake, {server.lake}",
        "Taken once. Highest growth of the memory of a fresh process that reads a primary-key table by "
        '`scan(source="union")`, batch by batch, sampled every 5 ms. '
        f"Up to {MEMORY_TAIL_ROWS:,} of the rows are changed in the stream, the "
        "same number at all sizes. The target is flatness: at most "
        f"{MEMORY_RATIO_MAX:g} times the growth with the smallest table plus {MEMORY_NOISE_BYTES >> 20} MiB. Ratios "
        "are against the smallest table.",
    )
    first = 0
    for size in sizes:
        read = server.filled(True, size)
        Tail(read, size).grow(min(MEMORY_TAIL_ROWS, sizes[0]))
        growth = union_memory.peak_bytes(server.bootstrap, read, size)
        options.say(f"  memory: {size:,} rows: {growth / (1 << 20):.1f} MiB")
        limit = (first * MEMORY_RATIO_MAX + MEMORY_NOISE_BYTES) / (1 << 20) if size != sizes[0] else None
        first = first or growth
        table.add(
            Figure(
                f"{size:,} rows in the lake",
                growth / (1 << 20),
                "MiB",
                ratio=growth / first if first else None,
                value_max=limit,
                reason="memory grows with the lake, which it must not",
            )
        )
    return table
