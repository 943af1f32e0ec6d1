"""Recovery: opening a data directory after kill -9, and restoring the key-value state from the changelog."""

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path

import forebay
from benchmarks import data, put_steps
from benchmarks.engines import ENGINES
from benchmarks.report import Figure, FigureTable, Section
from benchmarks.running import Run, bench, disk_bytes, in_turns, scratch
from forebay.fs.local import LocalFileSystem
from forebay.log.tablet import LogTablet
from forebay.metadata.table import TableInfo
from forebay.testing.server import ServerProcess

ROWS = 2_000_000
_PARTS = (0.25, 0.5, 1.0)


def run(options: Run) -> Section:
    rows = options.rows_or(ROWS)
    with bench(options, "recovery-catalog") as server:
        info = server.create("replayed", primary_key=True, buckets=1).info
    load = data.batches(rows)
    return Section(
        "recovery",
        "Coming back after a crash",
        [
            _opening(options, sorted({max(1, int(rows * part)) for part in _PARTS})),
            _replay(options, put_steps.encoded(info, [*load, *data.half_updates(max(rows // 2, 2), rows)]), info),
        ],
    )


# ---- opening --------------------------------------------------------------------------------------------------------


def _opening(options: Run, sizes: list[int]) -> FigureTable:
    table = FigureTable(
        "Opening a data directory after kill -9",
        "A log table and a primary-key table with so many rows each, in one bucket each; the server is killed right "
        "after the last acknowledgement. Counted is the time from starting `forebay server` until both buckets have "
        "answered a request; the first row, an empty directory, is what starting Python and the server takes. The last "
        "row, taken once, is the check of a whole log alone (every checksum), as when no recovery point was saved.",
    )
    with scratch(options, "recovery") as folder:
        contenders = {"empty directory": partial(_start_empty, folder / "empty")}
        for size in sizes:
            contenders[f"{size:,} rows in each table"] = partial(_killed, folder / str(size), size)
        for name, taken in in_turns(contenders, options.repeat, options.say).items():
            table.add(Figure(name, taken * 1000, "ms"))
        table.add(_whole_check(folder / str(sizes[-1])))
    return table


def _start_empty(folder: Path) -> float:
    shutil.rmtree(folder, ignore_errors=True)
    return _start_seconds(ServerProcess(folder / "data"), [])


def _killed(folder: Path, rows: int) -> float:
    """Fill a server, kill it, and return the seconds until its successor serves both tables."""
    shutil.rmtree(folder / "data", ignore_errors=True)
    names = {"log": (), "state": (data.KEY,)}
    server = ServerProcess(folder / "data").start()
    try:
        with forebay.connect(server.bootstrap_servers) as connection:
            for name, key in names.items():
                connection.create_table(f"fluss.{name}", data.SCHEMA, primary_key=key, buckets=1)
                table = connection.table(f"fluss.{name}")
                (table.upsert if key else table.append)(data.table(rows))
    finally:
        server.kill()
    return _start_seconds(server, list(names))


def _start_seconds(server: ServerProcess, names: list[str]) -> float:
    """Seconds until the server has returned the end of the log of each table, which opens it."""
    began = time.perf_counter()
    with server, forebay.connect(server.bootstrap_servers) as connection:
        for name in names:
            connection.admin.list_offsets(f"fluss.{name}", "latest")
        return time.perf_counter() - began


def _whole_check(folder: Path) -> Figure:
    """The rate of checking a log without a recovery point."""
    log = next(path for path in (folder / "data").rglob("log-*") if path.is_dir() and "log-" in path.parent.name)
    size = disk_bytes(log)
    began = time.perf_counter()
    LogTablet.open(LocalFileSystem(), str(log), recovery_point=None).close()
    return Figure("check of a whole log", size / (time.perf_counter() - began) / (1 << 20), "MiB/s")


# ---- replaying ------------------------------------------------------------------------------------------------------


def _replay(options: Run, records: list[tuple[bytes, int]], info: TableInfo) -> FigureTable:
    with scratch(options, "replay") as folder:
        bucket = put_steps.LocalBucket(info, folder, ENGINES["hlog"])
        try:
            for kv_batch, _ in records:
                bucket.put(kv_batch)
            changes, turn = bucket.log.log_end_offset, 0

            def replayed(name: str) -> float:
                nonlocal turn
                turn += 1
                bucket.engine.close()
                bucket.factory = ENGINES[name]
                bucket.open_engine(f"replay-{turn}")
                began = time.perf_counter()
                bucket.tablet.recover()
                return time.perf_counter() - began

            contenders = {name: partial(replayed, name) for name in ENGINES}
            seconds = in_turns(contenders, options.repeat, options.say)
        finally:
            bucket.close()
    table = FigureTable(
        "Restoring the key-value state from its changelog",
        f"{changes:,} changelog records of one bucket, from the first one, into an empty engine: what a server does "
        "after a power cut when there is no checkpoint yet. Ratios are against LMDB.",
    )
    for name, taken in seconds.items():
        table.add(Figure(name, changes / taken, "records/s", ratio=seconds["LMDB"] / taken))
    return table
