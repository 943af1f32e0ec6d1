"""Upserts into tables with merge engines, beside the default engine."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import pyarrow as pa

from benchmarks import data
from benchmarks.report import Figure, FigureTable, Section
from benchmarks.running import SHARED_BUCKETS, Bench, Run, bench, in_turns, seconds_of

ROWS = 500_000
_AS_FAST_MAX, _AGGREGATION_MAX = 1.05, 1.5
_ENGINE, _VERSION = "table.merge-engine", "table.merge-engine.versioned.ver-column"
_DEFAULT = "no engine: the last row"
_AGGREGATES = {
    _ENGINE: "aggregation",
    "fields.quantity.agg": "sum",
    "fields.price.agg": "max",
    "fields.amount.agg": "sum",
    "fields.changed_at.agg": "min",
}
ENGINES: dict[str, tuple[dict[str, str], float | None]] = {
    _DEFAULT: ({}, None),
    "first_row": ({_ENGINE: "first_row"}, _AS_FAST_MAX),
    "versioned, each row newer": ({_ENGINE: "versioned", _VERSION: "changed_at"}, _AS_FAST_MAX),
    "aggregation of four columns": (_AGGREGATES, _AGGREGATION_MAX),
}
"""The options of each table, and how much more time than the default engine it may take."""


def run(options: Run) -> Section:
    rows = options.rows_or(ROWS)
    before = pa.Table.from_batches(list(data.batches(rows)))
    changes = _newer(pa.Table.from_batches(data.half_updates(rows, rows)))
    cpu: dict[str, list[float]] = {name: [] for name in ENGINES}
    with bench(options, "merging") as server:
        contenders = {name: _contender(server, name, before, changes, cpu[name]) for name in ENGINES}
        seconds = in_turns(contenders, options.repeat, options.say)
    server_seconds = {name: median(taken) for name, taken in cpu.items()}
    return Section("merging", "Merge engines of live tables", [_clock(rows, seconds), _server(rows, server_seconds)])


def _newer(rows: pa.Table) -> pa.Table:
    """The rows with times after those of all rows that are there, so that they win."""
    place = rows.schema.get_field_index("changed_at")
    later = pa.array(rows.column(place).cast(pa.int64()).to_numpy() + 10**13, pa.timestamp("us"))
    return rows.set_column(place, rows.schema.field(place), later)


def _contender(server: Bench, name: str, before: pa.Table, changes: pa.Table, cpu: list[float]) -> Callable[[], float]:
    given, _ = ENGINES[name]
    expected = before.num_rows + changes.num_rows // 2
    turns = 0

    def once() -> float:
        nonlocal turns
        turns += 1
        path = f"merging_{list(ENGINES).index(name)}_{turns}"
        table = server.create(path, primary_key=True, buckets=SHARED_BUCKETS, options=given)
        table.upsert(before)
        began = server.cpu_seconds()
        seconds = seconds_of(lambda: table.upsert(changes))
        cpu.append(server.cpu_seconds() - began)
        found = server.connection.admin.table_stats(table.path).row_count
        if found != expected:
            raise AssertionError(f"{name}: {found} rows instead of {expected}")
        server.connection.drop_table(table.path)
        return seconds

    return once


def _clock(rows: int, seconds: dict[str, float]) -> FigureTable:
    table = FigureTable(
        "Upserts by merge engine, by the client's clock (acks=all)",
        f"{rows:,} rows into a table of {rows:,} rows in one bucket; every second row meets one that is there. Ratios "
        "are the time against the default engine's, in turns. first_row drops the rows that meet another, so it "
        "writes less.",
    )
    for name, taken in seconds.items():
        table.add(Figure(name, rows / taken, ratio=taken / seconds[_DEFAULT]))
    return table


def _server(rows: int, cpu: dict[str, float]) -> FigureTable:
    table = FigureTable(
        "Upserts by merge engine, by the server's CPU time",
        "The same upserts: rows for each second of CPU that the server used, all threads, kernel included. Ratios are "
        "the time against the default engine's; targets: as fast, and 1.5 for an aggregation of four columns.",
    )
    for name, taken in cpu.items():
        _, ratio_max = ENGINES[name]
        table.add(
            Figure(
                name,
                rows / max(taken, 1e-9),
                "rows/CPU s",
                ratio=taken / max(cpu[_DEFAULT], 1e-9),
                ratio_max=ratio_max,
                reason="the merge takes both rows apart, field by field, and the default engine does not",
            )
        )
    return table
