"""A log and a state that are larger than the machine's disk: `python -m benchmarks.stores_growth [GIGABYTES] [FOLDER]`.

A server with a store is filled with so many GB of log, and with a primary-key table; how much of it the data directory
keeps is shown. Its log is read from the beginning, beside the store's own speed: the
objects of its segments, read one after the other without a server. Then the machine is lost. On a new one, it is
measured when the first rows and a key are answered, and how fast the whole log is read there.

The store is a directory in FOLDER (`TMPDIR` without), each request of which takes `MILLISECONDS` more and passes
`BANDWIDTH` bytes a second at most, as one connection to an object store does.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
from benchmarks import data
from benchmarks.running import disk_bytes
from benchmarks.stores import ServerWithStore
from forebay.store.opening import open_store

MILLISECONDS = 10.0
BANDWIDTH = 200e6
KEYS = 2_000_000
SETTINGS = {
    "store.interval": "1 s",
    "log.segment.file-size": "64mb",
    "remote.log.task-interval-duration": "2 s",
    "remote.log.task-max-upload-segments": "16",
}
_SETTLE_SECONDS = 600.0


def main(gigabytes: float = 2.0, folder: str | None = None) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as where:
        measure(Path(where), gigabytes * 1e9)


def measure(folder: Path, wanted: float) -> None:
    store = folder / "store"
    with ServerWithStore(folder / "first", store, MILLISECONDS / 1000, SETTINGS, bandwidth=BANDWIDTH) as server:
        with forebay.connect(server.bootstrap_servers) as conn:
            options = {"table.log.tiered.local-segments": "1"}
            log = conn.create_table("fluss.log", data.SCHEMA, buckets=4, options=options)
            keyed = conn.create_table("fluss.keyed", data.SCHEMA, primary_key=[data.KEY], buckets=4)
            keyed.upsert(data.table(KEYS))
            rows, seconds = fill(log, folder / "first", wanted)
            until(
                lambda: local_segments(folder / "first") <= 8 and segment_bytes(store) > wanted / 2,
                "closed segments move to the store",
            )
            size = segment_bytes(store)
            print(
                f"{rows:,} rows, {gb(disk_bytes(store))} in the store and {gb(disk_bytes(folder / 'first'))} on the "
                f"machine, written in {seconds:.0f} s"
            )
            alone = size / seconds_of(lambda: read_objects(store, server))
            print(f"the store alone, one request at a time: {alone / 1e6:,.0f} MB/s")
            seconds = seconds_of(lambda: read_log(log, rows))
            show("its log read from the beginning", size, seconds, alone)
        server.kill()
    began = time.perf_counter()
    with (
        ServerWithStore(folder / "second", store, MILLISECONDS / 1000, SETTINGS, bandwidth=BANDWIDTH) as server,
        forebay.connect(server.bootstrap_servers) as conn,
    ):
        print(f"a new machine: connected after {time.perf_counter() - began:.1f} s")
        log = conn.table("fluss.log")
        log.scan(source="log", limit=10).to_arrow()
        print(f"  first rows of the log after {time.perf_counter() - began:.1f} s")
        found = conn.table("fluss.keyed").lookup([KEYS // 2])
        assert found.column(data.KEY).to_pylist() == [KEYS // 2]
        print(f"  a key after {time.perf_counter() - began:.1f} s")
        log.append(data.table(1000))
        print(f"  a write after {time.perf_counter() - began:.1f} s")
        seconds = seconds_of(lambda: read_log(log, rows + 1000))
        show("  its log read from the beginning", size, seconds, alone)
        assert conn.table("fluss.keyed").scan(columns=[data.KEY]).to_arrow().num_rows == KEYS


def fill(log: forebay.Table, data_dir: Path, wanted: float) -> tuple[int, float]:
    """Append rows until the log has so many bytes; return the rows and seconds."""
    batch = data.table(1_000_000)
    before, began = disk_bytes(data_dir), time.perf_counter()
    log.append(batch)
    rows = batch.num_rows
    bytes_per_row = (disk_bytes(data_dir) - before) / rows
    while rows * bytes_per_row < wanted:
        log.append(batch)
        rows += batch.num_rows
    return rows, time.perf_counter() - began


def local_segments(data_dir: Path) -> int:
    """How many segments of the log the machine has."""
    return len(list((data_dir / "fluss").glob("log-*/log-*/*.log")))


def segments(store: Path) -> list[Path]:
    return sorted(path for path in (store / "log").rglob("*.log"))


def segment_bytes(store: Path) -> int:
    return sum(path.stat().st_size for path in segments(store))


def read_objects(store: Path, server: ServerWithStore) -> None:
    objects = server.slow(open_store(str(store), {}))
    for path in segments(store):
        objects.read(str(path.relative_to(store)))


def read_log(log: forebay.Table, rows: int) -> None:
    with log.scan(source="log").reader() as reader:
        read = sum(batch.num_rows for batch in reader)
    assert read == rows, f"{read} of {rows} rows"


def show(what: str, size: float, seconds: float, alone: float) -> None:
    print(f"{what}: {size / seconds / 1e6:,.0f} MB/s, {size / seconds / alone:.0%} of the store alone")


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _SETTLE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not after {_SETTLE_SECONDS:g} s: {what}")
        time.sleep(1)


def seconds_of(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((float, str), sys.argv[1:], strict=False)))
