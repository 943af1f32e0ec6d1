"""Appending to a log table: our client, pyfluss, and the disk alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from benchmarks import data, peer
from benchmarks.report import Figure, FigureTable, Section
from benchmarks.running import Bench, Run, bench, disk_bytes, in_turns, scratch, seconds_of
from forebay.client.table import Table

ROWS = 2_000_000
_FILE_ROWS = 25_000
"""Rows between two syncs of the file: about the 2 MiB batches that clients send."""

_FILE = "Arrow IPC file, zstd 1, fdatasync every 2 MiB"
_BYTES = "the same bytes, encoded before (the disk's limit)"


def _explanation(rows: int, bytes_per_row: dict[str, float]) -> str:
    measured = ", ".join(f"{name} {size:.0f}" for name, size in bytes_per_row.items())
    return (
        f"{rows:,} rows, acks=all, from Arrow data in memory until everything is acknowledged; ratios are against the "
        "first row of pyfluss. The table sets no compression: ours is zstd of level 1, pyfluss's of level 3. Bytes on "
        f"disk for each row: {measured}. The last two rows write a file without any server, in one thread: once "
        "compressing as they go, which other threads may beat, and once with the compressed bytes at hand, "
        "which is what the disk allows."
    )


def run(options: Run) -> Section:
    rows = options.rows_or(ROWS)
    batches = list(data.batches(rows))
    sizes: dict[str, float] = {}
    with bench(options, "append") as server, scratch(options, "append-file") as folder:
        contenders = _contenders(server, batches, folder, sizes)
        seconds = in_turns(contenders, options.repeat, options.say)
        server.connection.close()
    base = next((s for name, s in seconds.items() if name.startswith("pyfluss")), None)
    table = FigureTable("Append (acks=all)", _explanation(rows, sizes))
    for name, taken in seconds.items():
        table.add(Figure(name, rows / taken, ratio=None if base is None else base / taken))
    return Section("append", "Appending to a log table", [table])


def _contenders(
    server: Bench, batches: Sequence[pa.RecordBatch], folder: Path, sizes: dict[str, float]
) -> dict[str, Callable[[], float]]:
    """The contenders, each with a separate table that is recreated for every turn."""
    whole = pa.Table.from_batches(batches)
    turns = 0

    def fresh(name: str) -> Table:
        nonlocal turns
        turns += 1
        return server.create(f"{name}_{turns}", primary_key=False)

    def into(name: str, work: Callable[[Table], float]) -> Callable[[], float]:
        def once() -> float:
            table = fresh(name)
            seconds = work(table)
            _check_complete(table, whole.num_rows)
            sizes[name] = _table_bytes(server, table) / whole.num_rows
            server.connection.drop_table(table.path)
            return seconds

        return once

    contenders = {
        "forebay table.append(table)": into("ours", lambda table: seconds_of(lambda: table.append(whole))),
        "forebay table.writer(), 50,000 rows a call": into("writer", lambda table: _through_writer(table, batches)),
    }
    if peer.available():
        for whole_table, call in ((True, "write_arrow"), (False, "write_arrow_batch")):
            contenders[f"pyfluss {call} + flush"] = into(
                "pyfluss",
                lambda table, w=whole_table: peer.append_seconds(server.bootstrap, table, batches, w),  # type: ignore[misc]
            )
    encoded: list[bytes] = []
    contenders[_FILE] = lambda: _write_file(folder / "encoded", batches, encoded)
    contenders[_BYTES] = lambda: _write_bytes(folder / "bytes", encoded)
    return contenders


def _through_writer(table: Table, batches: Sequence[pa.RecordBatch]) -> float:
    def work() -> None:
        with table.writer() as writer:
            for batch in batches:
                writer.append(batch)

    return seconds_of(work)


def _check_complete(table: Table, rows: int) -> None:
    found = sum(table.connection.admin.list_offsets(table.path, "latest").values())
    if found != rows:
        raise AssertionError(f"{table.path} has {found} rows after {rows} were acknowledged")


def _table_bytes(server: Bench, table: Table) -> int:
    return sum(disk_bytes(folder) for folder in server.server.data_dir.rglob(f"{table.path.table}-*"))


def _write_file(path: Path, batches: Sequence[pa.RecordBatch], encoded: list[bytes]) -> float:
    """Encode and write, with a sync for each batch; keeps the bytes for `_write_bytes`."""
    encoded.clear()
    compression = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))

    def work() -> None:
        with path.open("wb") as file:
            for batch in batches:
                for start in range(0, batch.num_rows, _FILE_ROWS):
                    sink = pa.BufferOutputStream()
                    with pa.ipc.new_stream(sink, batch.schema, options=compression) as stream:
                        stream.write_batch(batch.slice(start, _FILE_ROWS))
                    encoded.append(sink.getvalue().to_pybytes())
                    file.write(encoded[-1])
                    file.flush()
                    os.fdatasync(file.fileno())

    seconds = seconds_of(work)
    path.unlink()
    return seconds


def _write_bytes(path: Path, encoded: Sequence[bytes]) -> float:
    def work() -> None:
        with path.open("wb", buffering=0) as file:
            for part in encoded:
                file.write(part)
                os.fdatasync(file.fileno())

    seconds = seconds_of(work)
    path.unlink()
    return seconds
