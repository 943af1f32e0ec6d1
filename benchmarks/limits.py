"""What this machine allows for the work of the first page: its disk, one core, its memory, its loopback.

A `Limit` is measured without any server: it does the part of the work that no server can do without, and nothing else.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import data
from benchmarks.peers_work import (
    APPEND,
    CONNECTIONS,
    CREATE,
    FRAMES,
    KEYS,
    MANY,
    ONE,
    ONE_IN_MEMORY,
    READ,
    RESTART,
    SCAN,
    UPSERT,
    drive,
    half_updates,
)
from benchmarks.report import Limit
from benchmarks.running import Run

_BATCH_ROWS = 25_000
"""About the 2 MiB batches that clients send: each is synced."""

_CALLS = 500
_ZSTD = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
_ECHO = """
import select, socket
server = socket.create_server(("127.0.0.1", 0), backlog=128)
print(server.getsockname()[1], flush=True)
poll, found = select.epoll(), {}
poll.register(server, select.EPOLLIN)
while True:
    for number, _ in poll.poll():
        if number == server.fileno():
            one, _ = server.accept()
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found[one.fileno()] = one
            poll.register(one, select.EPOLLIN)
        elif sent := found[number].recv(4096):
            found[number].sendall(sent)
        else:
            raise SystemExit
"""
_FRAME = (196).to_bytes(4, "big") + b"x" * 196


def of_server(folder: Path, rows: int, options: Run) -> dict[str, Limit]:
    """The limits of the work of the section `peers`, by kind."""
    options.say("  the limits of this machine")
    plain = list(data.batches(rows))
    changed = max(rows // 2, 2)
    changelog = _changelog(changed)
    one = "one core: Arrow IPC, zstd 1, synced every 2 MiB"
    upserts = Limit(f"{one}, of the changelog", changed / _middle(options, lambda: write(folder / "c", changelog)))
    synced = Limit("a round trip and one sync of the disk", _trips(folder / "t"))
    many = Limit("the same driver, and a process that does nothing", _echoed())
    trip = Limit("a round trip over a socket", _trips(None))
    return {
        APPEND: Limit(one, rows / _middle(options, lambda: write(folder / "a", plain))),
        UPSERT.format(1, ""): upserts,
        UPSERT.format(4, "s"): Limit(f"{upserts.what}; each core", upserts.value),
        READ: Limit("one core: the same as an Arrow IPC file", rows / _middle(options, lambda: _read(folder / "a"))),
        SCAN: Limit("the rows, uncompressed, over a socket", rows / _middle(options, lambda: _send(plain))),
        **{KEYS.format(keys): Limit("one core: take of an Arrow table", _taken(plain, keys)) for keys in (100, 10_000)},
        ONE.format("look up"): trip,
        **{ONE_IN_MEMORY.format(what): trip for what in ("append", "upsert")},
        ONE.format("append"): synced,
        ONE.format("upsert"): synced,
        **{MANY.format(what): many for what in ("append", "upsert", "look up")},
        CREATE: Limit("a directory and two small files, synced", _created(folder)),
        RESTART: Limit("Python starts and imports pyarrow", 1 / _middle(options, _python)),
    }


def parquet_read(files: Path, rows: int, options: Run) -> Limit:
    """Rows for a second that pyarrow reads from a directory of Parquet files, with all cores."""

    def read() -> float:
        began = time.perf_counter()
        found = sum(pq.read_table(path).num_rows for path in files.glob("*.parquet"))
        if found != rows:
            raise AssertionError(f"pyarrow read {found} of {rows} rows")
        return time.perf_counter() - began

    return Limit("pyarrow reads the Parquet files, all cores", rows / _middle(options, read))


def parquet_write(files: Path, target: Path, options: Run) -> Limit:
    """Rows for a second that pyarrow writes into one Parquet file, synced."""
    rows = pa.concat_tables(pq.read_table(path) for path in files.glob("*.parquet"))

    def write_file() -> float:
        began = time.perf_counter()
        with target.open("wb") as file:
            pq.write_table(rows, file, compression="zstd", compression_level=1)
            file.flush()
            os.fsync(file.fileno())
        return time.perf_counter() - began

    return Limit("pyarrow writes a Parquet file, synced", rows.num_rows / _middle(options, write_file))


def as_time(limit: Limit, rows: int) -> Limit:
    """A limit in rows a second, as milliseconds for so many rows."""
    return Limit(limit.what, 1000 * rows / limit.value)


def _middle(options: Run, work: Callable[[], float]) -> float:
    return median(work() for _ in range(options.repeat))


def _changelog(rows: int) -> list[pa.RecordBatch]:
    """As many changes as `rows` upserts make, half of which are updates, with the row before and the row after."""
    changes = half_updates(rows, 1).to_batches()
    return [*changes, *(batch.slice(0, batch.num_rows // 2) for batch in changes)]


def write(path: Path, batches: Sequence[pa.RecordBatch]) -> float:
    """Seconds in which one thread writes a compressed file, synced every 2 MiB."""
    began = time.perf_counter()
    with path.open("wb") as file, pa.ipc.new_stream(file, batches[0].schema, options=_ZSTD) as stream:
        for batch in batches:
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                stream.write_batch(batch.slice(start, _BATCH_ROWS))
                file.flush()
                os.fdatasync(file.fileno())
    return time.perf_counter() - began


def _read(path: Path) -> float:
    began = time.perf_counter()
    with pa.OSFile(str(path)) as file:
        pa.ipc.open_stream(file, options=pa.ipc.IpcReadOptions(use_threads=False)).read_all()
    return time.perf_counter() - began


def _send(batches: Sequence[pa.RecordBatch]) -> float:
    """Seconds in which the rows arrive as Arrow data from another thread, by a socket."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    encoded = sink.getvalue()
    ours, theirs = socket.socketpair()
    sender = threading.Thread(target=lambda: (theirs.sendall(encoded), theirs.close()), daemon=True)
    began = time.perf_counter()
    sender.start()
    with ours, ours.makefile("rb", buffering=1 << 20) as received:
        pa.ipc.open_stream(received).read_all()
    return time.perf_counter() - began


def _taken(batches: Sequence[pa.RecordBatch], keys: int) -> float:
    """Rows for a second."""
    table = pa.Table.from_batches(batches).combine_chunks()
    chosen = pa.array(np.random.default_rng(7).integers(0, table.num_rows, keys))
    began = time.perf_counter()
    for _ in range(20):
        table.take(chosen)
    return 20 * keys / (time.perf_counter() - began)


@contextmanager
def _echo(connections: int) -> Iterator[list[socket.socket]]:
    """Connections to a process that answers everything with itself."""
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", _ECHO], stdout=subprocess.PIPE, text=True)
        )
        assert process.stdout is not None
        address = ("127.0.0.1", int(process.stdout.readline()))
        sockets = [stack.enter_context(socket.create_connection(address)) for _ in range(connections)]
        for one in sockets:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sockets  # it ends with the first connection that is closed


def _trips(path: Path | None) -> float:
    """Round trips for a second to a process that does nothing, each with a synced write to a file if there is one."""
    with ExitStack() as stack:
        (one,) = stack.enter_context(_echo(1))
        file: Any = None if path is None else stack.enter_context(path.open("wb", buffering=0))
        began = time.perf_counter()
        for _ in range(_CALLS):
            one.sendall(_FRAME)
            one.recv(4096)
            if file is not None:
                file.write(_FRAME)
                os.fdatasync(file.fileno())
        return _CALLS / (time.perf_counter() - began)


def sync_alone(path: Path) -> tuple[float, float]:
    """Seconds of wall time and of CPU of a thread for one small write at the end of a file and its sync."""
    with path.open("wb", buffering=0) as file:
        began, cpu = time.perf_counter(), time.thread_time()
        for _ in range(_CALLS):
            file.write(_FRAME)
            os.fdatasync(file.fileno())
        return (time.perf_counter() - began) / _CALLS, (time.thread_time() - cpu) / _CALLS


def _echoed() -> float:
    """Requests for a second."""
    with _echo(CONNECTIONS) as sockets:
        began = time.perf_counter()
        drive(sockets, _FRAME, FRAMES, lambda _: None)
        return FRAMES / (time.perf_counter() - began)


def _created(folder: Path) -> float:
    """Directories for a second, each with two files."""
    began = time.perf_counter()
    for number in range(10):
        made = folder / f"table-{number}"
        made.mkdir()
        for name in ("table", "schema"):
            with (made / name).open("wb") as file:
                file.write(_FRAME)
                file.flush()
                os.fsync(file.fileno())
        for place in (made, folder):
            handle = os.open(place, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
    return 10 / (time.perf_counter() - began)


def _python() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import pyarrow"], check=True)
    return time.perf_counter() - began
