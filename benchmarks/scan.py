"""Scanning a whole primary-key table into Arrow: rate, and memory of client and server."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import data
from benchmarks.report import Figure, FigureTable, Section
from benchmarks.running import BUCKETS, Bench, Run, bench, highest_memory, in_turns, seconds_of
from forebay.cli.output import Progress
from forebay.client.table import Table

ROWS = 2_000_000
SCAN_ROWS_MIN = 2_000_000
MEMORY_RATIO_MAX = 1.5
MEMORY_NOISE_BYTES = 16 << 20
"""Allocators keep pages for later; smaller differences are noise."""

_PARTS = (0.25, 0.5, 1.0)


def run(options: Run) -> Section:
    rows = options.rows_or(ROWS)
    with bench(options, "scan") as server:
        tables = {size: _loaded(server, size) for size in sorted({max(1, int(rows * part)) for part in _PARTS})}
        whole = tables[max(tables)]
        seconds = in_turns(_contenders(whole, max(tables)), options.repeat, options.say)
        share = statistics.median(server.cpu_seconds_of(lambda: whole.scan().to_arrow()) for _ in range(options.repeat))
        memory = {size: _memory(server, table, options.say) for size, table in tables.items()}
    rates = _rates(max(tables), seconds)
    rates.add(Figure("the server's share of a scan, CPU time", 1e9 * share / max(tables), "ns/row"))
    return Section("scan", "Scanning a whole primary-key table", [rates, _growth(memory)])


def _loaded(server: Bench, rows: int) -> Table:
    table = server.create(f"scan_{rows}", primary_key=True)
    with Progress(f"loading {rows:,} rows:", rows) as progress:
        for batch in data.batches(rows):
            table.upsert(batch)
            progress.advance(batch.num_rows)
    return table


def _contenders(table: Table, rows: int) -> dict[str, Callable[[], float]]:
    def counted(read: Callable[[], int]) -> Callable[[], float]:
        def once() -> float:
            found = 0

            def work() -> None:
                nonlocal found
                found = read()

            seconds = seconds_of(work)
            if found != rows:
                raise AssertionError(f"a scan of {rows} rows found {found}")
            return seconds

        return once

    return {
        "table.scan().to_arrow()": counted(lambda: table.scan().to_arrow().num_rows),
        "for batch in table.scan()": counted(lambda: sum(batch.num_rows for batch in table.scan())),
        "the same, 2 of 8 columns": counted(
            lambda: sum(batch.num_rows for batch in table.scan(columns=["id", "price"]))
        ),
    }


def _rates(rows: int, seconds: dict[str, float]) -> FigureTable:
    table = FigureTable(
        "Full scan (ScanKv)",
        f"{rows:,} rows in {BUCKETS} buckets, from the request to Arrow data in the client. Ratios are against the "
        "first row.",
    )
    base = next(iter(seconds.values()))
    for name, taken in seconds.items():
        table.add(
            Figure(
                name,
                rows / taken,
                ratio=base / taken,
                value_min=SCAN_ROWS_MIN,
                reason="not explained by this run: compare the server's share, in the last row, with the time of a row",
            )
        )
    return table


def _memory(server: Bench, table: Table, say: Callable[[str], None]) -> dict[str, int]:
    """Growth in bytes of a fresh client process and of the server while the table streams through."""
    command = [sys.executable, "-m", "benchmarks.scan_client", server.bootstrap, str(table.path)]
    root = Path(__file__).resolve().parents[1]
    with highest_memory(server.server.pid) as growth:
        out = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=600).stdout
    found = json.loads(out.splitlines()[-1])
    memory = {"client": int(found["bytes"]), "server": growth[0]}
    say(f"  {found['rows']:,} rows streamed: " + ", ".join(f"{k} {v / (1 << 20):.1f} MiB" for k, v in memory.items()))
    return memory


def _growth(memory: dict[int, dict[str, int]]) -> FigureTable:
    table = FigureTable(
        "Memory of a scan that is consumed as a stream",
        "Taken once. Highest growth of each process's own memory while the table streams through, sampled every 5 ms; "
        "pages of mapped files (LMDB's) belong to the kernel's cache and are not counted. The client is a fresh "
        f"process. The target is flatness: at most {MEMORY_RATIO_MAX:g} times the growth of the smallest table plus "
        f"{MEMORY_NOISE_BYTES >> 20} MiB. Ratios are against the smallest table.",
    )
    smallest = memory[min(memory)]
    for side in ("client", "server"):
        for size, growth in memory.items():
            first = smallest[side]
            limit = None if size == min(memory) else (first * MEMORY_RATIO_MAX + MEMORY_NOISE_BYTES) / (1 << 20)
            table.add(
                Figure(
                    f"{side}, {size:,} rows",
                    growth[side] / (1 << 20),
                    "MiB",
                    ratio=growth[side] / first if first else None,
                    value_max=limit,
                    reason="memory grows with the table, which it must not",
                )
            )
    return table
