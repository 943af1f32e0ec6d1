"""Lookups by key: 100 keys at once and one at a time, ours and pyfluss."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks import data, peer
from benchmarks.report import Figure, FigureTable, Section
from benchmarks.running import SHARED_BUCKETS, Bench, Run, bench, percentile
from forebay.client.table import Table

ROWS = 1_000_000
GROUP_KEYS = 100
CALLS = 500
"""Our calls for each figure and turn; pyfluss, whose calls wait longer, gets fewer."""

_THEIR_SINGLE_CALLS = 20
_THEIR_GROUP_CALLS = 20


def run(options: Run) -> Section:
    rows = options.rows_or(ROWS)
    with bench(options, "lookup") as server:
        table = server.create("lookups", primary_key=True, buckets=SHARED_BUCKETS)
        table.upsert(data.table(rows))
        timings = _timings(server, table, rows, options)
    report = FigureTable(
        "Lookups by primary key",
        f"Keys drawn at random from {rows:,} rows in one bucket; every call waits for its answer before the "
        f"next one begins. Our client takes {GROUP_KEYS} keys in one call and returns Arrow data; pyfluss takes one "
        "key a call, so it gets as many concurrent calls (asyncio.gather, each with a lookuper of its own, because the "
        "calls of one lookuper wait for each other), and returns Python dicts. Ratios are against pyfluss with as many "
        "keys.",
    )
    their_rates = {keys: _rate(keys, taken) for (name, keys), taken in timings.items() if name == "pyfluss"}
    for (name, keys), taken in timings.items():
        base = their_rates.get(keys)
        what = f"{name}, {keys} keys at once" if keys > 1 else f"{name}, one key at a time"
        report.add(Figure(what, _rate(keys, taken), ratio=None if base is None else _rate(keys, taken) / base))
        report.add(Figure("   median", percentile(taken, 50) * 1000, "ms"))
        report.add(Figure("   99 of 100 are faster than", percentile(taken, 99) * 1000, "ms"))
    notes = []
    if their_rates:
        notes.append(
            "A lookup of pyfluss takes about 100 ms here however many keys are asked for at the same time: it waits "
            "that long for more keys before it sends a request."
        )
    return Section("lookup", "Looking rows up by key", [report], notes)


def _rate(keys: int, taken: Sequence[float]) -> float:
    return keys * len(taken) / sum(taken)


def _timings(server: Bench, table: Table, rows: int, options: Run) -> dict[tuple[str, int], list[float]]:
    """Seconds of each call, by (client, keys in a call)."""
    rng = np.random.default_rng(7)
    timings: dict[tuple[str, int], list[float]] = {}

    def keep(name: str, keys: int, taken: list[float]) -> None:
        timings.setdefault((name, keys), []).extend(taken)
        options.say(f"  {name}, {keys} keys: median {percentile(taken, 50) * 1000:.2f} ms")

    for _ in range(options.repeat):
        for keys in (GROUP_KEYS, 1):
            groups = [rng.integers(0, rows, keys) for _ in range(CALLS)]
            keep("forebay", keys, _ours(table, groups))
            if peer.available():
                their_calls = _THEIR_GROUP_CALLS if keys > 1 else _THEIR_SINGLE_CALLS
                asked = [group.tolist() for group in groups[:their_calls]]
                keep("pyfluss", keys, peer.lookup_seconds(server.bootstrap, table, asked))
    return timings


def _ours(table: Table, groups: Sequence[npt.NDArray[np.int64]]) -> list[float]:
    table.lookup(pa.table({data.KEY: groups[0]}))
    taken = []
    for group in groups:
        keys = pa.table({data.KEY: group})
        began = time.perf_counter()
        found = table.lookup(keys, missing="error")
        taken.append(time.perf_counter() - began)
        if found.num_rows != len(group):
            raise AssertionError(f"{found.num_rows} rows for {len(group)} keys")
    return taken
