"""The key-value engines side by side, with a state of many batches: CPU time, disk, scan."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import data, put_steps
from benchmarks.report import Figure, FigureTable, Section
from benchmarks.running import Run, bench, disk_bytes, scratch
from forebay.kv.engine import EngineFactory
from forebay.kv.hlog.hlog_engine import HlogEngine
from forebay.kv.lmdb.lmdb_engine import LmdbEngine
from forebay.metadata.table import TableInfo

ROWS = 2_000_000
_CHANGED = 4
"""One row in this many is written again."""

_PAGE_BYTES = 1 << 20
"""Bytes of a page of a scan."""

ENGINES: dict[str, EngineFactory] = {"hlog": HlogEngine, "LMDB": LmdbEngine}


def run(options: Run) -> Section:
    rows = options.rows_or(ROWS)
    with bench(options, "engines-catalog") as server:
        info = server.create("engines", primary_key=True, buckets=1).info
    load = put_steps.encoded(info, list(data.batches(rows)))
    changes = put_steps.encoded(info, data.half_updates(max(rows // _CHANGED, 2), rows))
    table = FigureTable(
        "hlog (the default) and LMDB",
        f"Taken once. One bucket in one process, without network: {rows:,} rows are inserted in the order of their "
        f"keys, then {rows // _CHANGED:,} rows are upserted, every second of which updates a row drawn at random. "
        "Figures are rows for each second of CPU (all threads), with the changelog written "
        "and synced. Ratios are against LMDB; for bytes and milliseconds below 1 is better.",
    )
    found = {}
    for name, factory in ENGINES.items():
        with scratch(options, f"engine-{name}") as folder:
            found[name] = _measure(info, folder, factory, load, changes)
        options.say(f"  {name}: " + ", ".join(f"{f.what} {f.cells()[1]}" for f in found[name]))
    for position, base in enumerate(found["LMDB"]):
        for name in ENGINES:
            figure = found[name][position]
            ratio = figure.value / base.value if base.value else None
            table.add(Figure(f"{figure.what}, {name}", figure.value, figure.unit, ratio=ratio))
    return Section("engines", "Key-value engines", [table])


def _measure(
    info: TableInfo,
    folder: Path,
    factory: EngineFactory,
    load: Sequence[tuple[bytes, int]],
    changes: Sequence[tuple[bytes, int]],
) -> list[Figure]:
    bucket = put_steps.LocalBucket(info, folder, factory)
    try:
        loading = put_steps.measure(bucket, load)
        changing = put_steps.measure(bucket, changes)
        rows = bucket.tablet.row_count or 0
        began = time.perf_counter()
        scanned = _scan(bucket)
        seconds = time.perf_counter() - began
        if scanned != rows:
            raise AssertionError(f"a scan found {scanned} of {rows} rows")
        began = time.perf_counter()
        bucket.engine.sync()
        synced = time.perf_counter() - began
        return [
            Figure("insert", 1e9 / loading.total, "rows/CPU s"),
            Figure("upsert, half updates", 1e9 / changing.total, "rows/CPU s"),
            Figure(
                "parse, find, merge and write the rows",
                sum(changing.steps[step] for step in put_steps.IN_THE_ENGINE),
                "ns/row",
            ),
            Figure("scan into 1 MiB pages", rows / seconds, "rows/s"),
            Figure("make durable, as at a clean stop", synced * 1000, "ms"),
            Figure("disk", disk_bytes(folder / "db") / rows, "bytes/row"),
            Figure("open again", _open_seconds(bucket) * 1000, "ms"),
        ]
    finally:
        bucket.close()


def _scan(bucket: put_steps.LocalBucket) -> int:
    """Read all pages, like the server's scan. Returns the number of rows."""
    snapshot = bucket.engine.snapshot()
    try:
        rows, after = 0, None
        while True:
            page = snapshot.page(after, _PAGE_BYTES, 1 << 62)
            rows, after = rows + page.rows, page.position
            if not page.has_more:
                return rows
    finally:
        snapshot.close()


def _open_seconds(bucket: put_steps.LocalBucket) -> float:
    """Seconds to open the engine's files again after closing them."""
    bucket.engine.close()
    began = time.perf_counter()
    bucket.open_engine("db")
    return time.perf_counter() - began
