"""Upserting into a primary-key table with a full changelog: our client, pyfluss, and the server's CPU time by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from benchmarks import data, peer, put_steps
from benchmarks.report import Figure, FigureTable, Section
from benchmarks.running import BUCKETS, SHARED_BUCKETS, Bench, Run, bench, in_turns, scratch, seconds_of
from forebay.client.table import Table
from forebay.kv.engines import ENGINES
from forebay.kv.hlog.hlog_engine import HlogEngine
from forebay.metadata.table import TableInfo

ROWS = 500_000
OURS_MIN = 3.0
SERVER_ROWS_MIN = 900_000

_OURS, _WRITER, _THEIRS = "forebay table.upsert(table)", "forebay table.writer()", "pyfluss upsert(row) + flush"
_SPREAD = f"forebay table.upsert(table), {BUCKETS} buckets"
_NETWORK = "protocol, network, event loop, lanes"


def run(options: Run) -> Section:
    rows = options.rows_or(ROWS)
    load, changes = list(data.batches(rows)), data.half_updates(rows, rows)
    cpu: dict[str, list[float]] = {}
    client: dict[str, list[float]] = {}
    with bench(options, "upsert") as server:
        seconds = in_turns(_contenders(server, load, changes, cpu, client), options.repeat, options.say)
        info = server.create("steps", primary_key=True, buckets=1).info
    server_seconds = {name: median(taken) for name, taken in cpu.items()}
    client_seconds = {name: median(taken) for name, taken in client.items()}
    with scratch(options, "upsert-steps") as folder:
        times = _steps(info, folder / "steps", load, changes)
        ways = _in_steps(info, folder, load, changes)
    options.say(f"  put in one process: {times.total:.0f} ns of CPU a row")
    tables = [
        _rates(rows, seconds, server_seconds[_OURS]),
        _client(rows, client_seconds),
        _server(rows, server_seconds),
        _by_step(times, server_seconds[_OURS] / rows * 1e9),
        ways,
    ]
    return Section("upsert", "Upserting into a primary-key table", tables)


def _contenders(
    server: Bench,
    load: Sequence[pa.RecordBatch],
    changes: Sequence[pa.RecordBatch],
    cpu: dict[str, list[float]],
    client: dict[str, list[float]],
) -> dict[str, Callable[[], float]]:
    """The contenders, each with a separate table that is loaded before with the rows that it updates."""
    before, whole = pa.Table.from_batches(load), pa.Table.from_batches(changes)
    expected = before.num_rows + whole.num_rows // 2
    turns = 0

    def into(name: str, work: Callable[[Table], float], buckets: int = SHARED_BUCKETS) -> Callable[[], float]:
        def once() -> float:
            nonlocal turns
            turns += 1
            table = server.create(f"upsert_{turns}", primary_key=True, buckets=buckets)
            table.upsert(before)
            began, client_began = server.cpu_seconds(), time.process_time()
            seconds = work(table)
            client.setdefault(name, []).append(time.process_time() - client_began)
            cpu.setdefault(name, []).append(server.cpu_seconds() - began)
            found = server.connection.admin.table_stats(table.path).row_count
            if found != expected:
                raise AssertionError(f"{name}: {found} rows instead of {expected}")
            server.connection.drop_table(table.path)
            return seconds

        return once

    contenders = {
        _OURS: into(_OURS, lambda table: seconds_of(lambda: table.upsert(whole))),
        _WRITER: into(_WRITER, lambda table: _through_writer(table, changes)),
        _SPREAD: into(_SPREAD, lambda table: seconds_of(lambda: table.upsert(whole)), BUCKETS),
    }
    if peer.available():
        python_rows: list[list[Any]] = peer.python_rows(changes)
        contenders[_THEIRS] = into(_THEIRS, lambda table: peer.upsert_seconds(server.bootstrap, table, python_rows))
    return contenders


def _through_writer(table: Table, batches: Sequence[pa.RecordBatch]) -> float:
    def work() -> None:
        with table.writer() as writer:
            for batch in batches:
                writer.upsert(batch)

    return seconds_of(work)


def _steps(
    info: TableInfo, folder: Path, load: Sequence[pa.RecordBatch], changes: Sequence[pa.RecordBatch]
) -> put_steps.StepTimes:
    bucket = put_steps.LocalBucket(info, folder, HlogEngine)
    try:
        for records, _ in put_steps.encoded(info, load):
            bucket.put(records)
        return put_steps.measure(bucket, put_steps.encoded(info, changes))
    finally:
        bucket.close()


def _in_steps(
    info: TableInfo, folder: Path, load: Sequence[pa.RecordBatch], changes: Sequence[pa.RecordBatch]
) -> FigureTable:
    """Puts of whole rows and of some columns, with an engine that puts in one piece, and one that does not."""
    table = FigureTable(
        "Puts in one piece, and in steps",
        "Taken once, in one process, as the steps above. A put goes in one piece with the engine hlog, also a partial "
        "update, here of the key and four more columns, and one into a table with a merge engine; with LMDB it goes in "
        "steps. Ratios are the time against the first row.",
    )
    whole, changed = put_steps.encoded(info, load), put_steps.encoded(info, changes)
    base = None
    for engine in ("hlog", "lmdb"):
        for what, columns in (("whole rows", ()), ("five of eight columns", (0, 1, 2, 3, 4))):
            bucket = put_steps.LocalBucket(info, folder / f"{engine}-{len(columns)}", ENGINES[engine])
            try:
                for records, _ in whole:
                    bucket.put(records)
                total = put_steps.measure(bucket, changed, columns).total
            finally:
                bucket.close()
            base = base or total
            table.add(Figure(f"{what}, {engine}", total, "ns/row", ratio=total / base))
    return table


def _rates(rows: int, seconds: dict[str, float], server_seconds: float) -> FigureTable:
    base = seconds.get(_THEIRS)
    busy = server_seconds / seconds[_OURS]
    table = FigureTable(
        "Upserts by the client's clock (acks=all)",
        f"{rows:,} rows into a table of {rows:,} rows in one bucket; every second row updates one of them, which makes "
        "two changelog records. Ratios are against pyfluss, which takes rows one by one as Python lists; making "
        "the lists is not counted. Our client takes Arrow data.",
    )
    for name, taken in seconds.items():
        ours = base is not None and name == _OURS
        table.add(
            Figure(
                name,
                rows / taken,
                ratio=None if base is None else base / taken,
                ratio_min=OURS_MIN if ours else None,
                reason=f"for {100 * busy:.0f} % of our client's time the server used a core; its work is the same "
                "for both clients, and one thread writes a bucket, so it bounds the ratio. The rest is our client "
                "and waiting",
            )
        )
    return table


def _client(rows: int, client_seconds: dict[str, float]) -> FigureTable:
    table = FigureTable(
        "Upserts by the client's CPU time",
        "The same upserts: rows for each second of CPU that the client used, all threads. The server bounds both "
        "clients' speed; this is what each takes away from the program around it. Ratios are against pyfluss.",
    )
    base = client_seconds.get(_THEIRS)
    for name, taken in client_seconds.items():
        table.add(
            Figure(
                name,
                rows / max(taken, 1e-9),
                "rows/CPU s",
                ratio=None if base is None else base / max(taken, 1e-9),
                ratio_min=OURS_MIN if base is not None and name == _OURS else None,
                reason="the client's own work is not as much lighter as it should be",
            )
        )
    return table


def _server(rows: int, server_seconds: dict[str, float]) -> FigureTable:
    table = FigureTable(
        "Upserts by the server's CPU time (hlog, the default)",
        "The same upserts: rows for each second of CPU that the server's process used, all threads, kernel included. "
        "Ratios are against the first row.",
    )
    base = server_seconds[_OURS]
    for name, taken in server_seconds.items():
        table.add(
            Figure(
                f"sent by {name}",
                rows / max(taken, 1e-9),
                "rows/CPU s",
                ratio=base / max(taken, 1e-9),
                value_min=SERVER_ROWS_MIN if name == _OURS else None,
                reason="small or scattered batches cost the engine more for each row",
            )
        )
    return table


def _by_step(times: put_steps.StepTimes, server_nanoseconds: float) -> FigureTable:
    table = FigureTable(
        "The server's CPU time for a row, by step",
        "Taken once, in one process: the server's own code for one bucket, fed with the batches that the client "
        "sends, with a CPU stopwatch around every step (benchmarks/put_steps.py). The last row is what the server's "
        "process used more than that for the same rows above, so it also contains what shared caches "
        "and other load cost, and may come out below zero. "
        f"The sync waits for the disk besides: {times.sync_wall:.0f} ns a row by the clock. Ratios are shares of the "
        "server's whole CPU time.",
    )
    inside = dict(times.steps)
    inside["between these steps"] = times.total - sum(times.steps.values())
    inside[_NETWORK] = server_nanoseconds - times.total
    for step, nanoseconds in inside.items():
        table.add(Figure(step, nanoseconds, "ns/row", ratio=nanoseconds / max(server_nanoseconds, 1e-9)))
    return table
