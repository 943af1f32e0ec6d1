"""What a store costs: `python -m benchmarks.stores [ROWS] [MILLISECONDS]`.

Three servers in turns: without a store, with one that it follows (`store.durability` = `local`), and with one that
answers wait for (`store`). The store is a directory, of which each request takes 10 ms more, as of an object store
nearby. Rows in bulk, and one row again and again by 64 connections, each of which awaits its answer.
"""

from __future__ import annotations

import math
import multiprocessing
import select
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import psutil  # type: ignore[import-untyped]
import pyarrow as pa

import forebay
from benchmarks import data
from benchmarks.peers_work import request_of
from forebay.protocol.frames import FrameType
from forebay.server.embedded import EmbeddedServer
from forebay.server.server import Injected
from forebay.store.objects import ObjectEntry, ObjectStore
from forebay.store.opening import open_store
from tests.server.raw_client import RawClient

if TYPE_CHECKING:
    from typing_extensions import Buffer

TURNS = 5
CONNECTIONS = 64
SECONDS = 3.0
"""How long one row is appended again and again."""
SIDES: dict[str, Mapping[str, str]] = {
    "no store": {},
    "local": {"store.durability": "local"},
    "store": {"store.durability": "store"},
}


class SlowStore:
    """A store of which each request takes longer, passes not more than `bandwidth` bytes a second, and is counted."""

    def __init__(self, store: ObjectStore, seconds: float, counts: Any, bandwidth: float = math.inf) -> None:
        self._store, self._seconds, self._counts, self._bandwidth = store, seconds, counts, bandwidth
        self.location = store.location

    def _wait(self, kind: int) -> None:
        self._counts[kind] += 1
        time.sleep(self._seconds)

    def _pass(self, size: int) -> None:
        time.sleep(size / self._bandwidth)

    def create(self, name: str, data: Buffer) -> bool:
        self._wait(0)
        self._pass(memoryview(data).nbytes)
        return self._store.create(name, data)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        self._wait(1)
        found = self._store.read(name, start, end)
        self._pass(len(found))
        return found

    def upload(self, name: str, parts: Iterable[Buffer]) -> None:
        def slowly() -> Iterator[Buffer]:
            for part in parts:
                self._pass(memoryview(part).nbytes)
                yield part

        self._wait(0)
        self._store.upload(name, slowly())

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectEntry]:
        return self._store.list(prefix, after)

    def delete(self, names: Iterable[str]) -> None:
        self._store.delete(names)


def serve(folder: str, settings: Mapping[str, str], seconds: float, bandwidth: float, counts: Any, pipe: Any) -> None:
    """A server in a process of its own, until the pipe says so."""
    injected = Injected(
        open_store=lambda where, options: SlowStore(open_store(where, options), seconds, counts, bandwidth)
    )
    with EmbeddedServer(folder, settings=settings, injected=injected) as server:
        pipe.send((server.bootstrap_servers, server.addresses.tablet_servers))
        pipe.recv()


class ServerWithStore:
    """A server in a process of its own whose store is slow; without a store, if there is none."""

    def __init__(
        self,
        folder: Path,
        store: Path | None,
        seconds: float,
        settings: Mapping[str, str],
        *,
        bandwidth: float = math.inf,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._counts = context.Array("q", [0, 0])
        self._seconds, self._bandwidth = seconds, bandwidth
        self._pipe, other = context.Pipe()
        all_settings = {**settings} if store is None else {**settings, "store": str(store)}
        arguments = (str(folder), all_settings, seconds, bandwidth, self._counts, other)
        self._process = context.Process(target=serve, args=arguments)
        self._process.start()
        self.bootstrap_servers, self.tablet_server = self._pipe.recv()
        self._times = psutil.Process(self._process.pid)

    def __enter__(self) -> ServerWithStore:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.is_alive():
            self._pipe.send(None)
        self._process.join()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def slow(self, store: ObjectStore) -> SlowStore:
        """Another store as slow as that of this server."""
        return SlowStore(store, self._seconds, [0, 0], self._bandwidth)

    @property
    def puts(self) -> int:
        return int(self._counts[0])

    def cpu_seconds(self) -> float:
        times = self._times.cpu_times()
        return float(times.user + times.system)


class Measured(NamedTuple):
    """Of one turn."""

    appended: float
    """Rows a second."""
    upserted: float
    requests: float
    """A second."""
    cpu_us: float
    """Of the server, for each request."""
    p50_ms: float
    p99_ms: float
    puts: float
    """A second, while there are requests."""


class Side:
    """A server, and the work that it is measured by."""

    def __init__(self, name: str, folder: Path, seconds: float, stack: ExitStack) -> None:
        self.name = name
        store = folder / f"{name} store" if SIDES[name] else None
        self._server = stack.enter_context(ServerWithStore(folder / name, store, seconds, SIDES[name]))
        self._connection = stack.enter_context(forebay.connect(self._server.bootstrap_servers))
        self._turn = 0

    def measure(self, rows: int) -> Measured:
        self._turn += 1
        name = f"fluss.t{self._turn}"
        log = self._connection.create_table(f"{name}l", data.SCHEMA, buckets=4)
        keyed = self._connection.create_table(f"{name}k", data.SCHEMA, primary_key=[data.KEY], buckets=4)
        table = data.table(rows)
        half = table.slice(0, rows // 2)
        appended = len(table) / seconds_of(lambda: log.append(table))
        upserted = len(half) / seconds_of(lambda: keyed.upsert(half))
        single = self._connection.create_table(f"{name}s", data.SCHEMA, buckets=1)
        before, puts, began = self._server.cpu_seconds(), self._server.puts, time.perf_counter()
        latencies = drive(single, self._server.tablet_server)
        seconds, count = time.perf_counter() - began, len(latencies)
        return Measured(
            appended, upserted, count / seconds, (self._server.cpu_seconds() - before) / count * 1e6,
            1000 * float(np.percentile(latencies, 50)), 1000 * float(np.percentile(latencies, 99)),
            (self._server.puts - puts) / seconds,
        )  # fmt: skip


def seconds_of(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def drive(table: forebay.Table, tablet: str) -> list[float]:
    """Append one row by many connections, each again when its answer is there; return how long each answer took."""
    batch = data.batch_of(np.array([7]), 7)
    table.append(pa.Table.from_batches([batch]))
    key, message = request_of(table, "append", batch)
    latencies: list[float] = []
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(tablet)) for _ in range(CONNECTIONS)]
        frame = b"".join(bytes(part) for part in clients[0].connection.send_request(key, message, (), None).buffers)
        sockets = {client.socket.fileno(): client.socket for client in clients}
        sent_at: dict[int, float] = {}
        poll = stack.enter_context(select.epoll())
        for number, each in sockets.items():
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            poll.register(number, select.EPOLLIN)
            sent_at[number] = time.perf_counter()
            each.sendall(frame)
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            for number, _ in poll.poll():
                answer = sockets[number].recv(1 << 16)
                if len(answer) < 5 or answer[4] != FrameType.SUCCESS:
                    raise AssertionError(f"an append is refused: {answer!r}")
                now = time.perf_counter()
                latencies.append(now - sent_at[number])
                sent_at[number] = now
                sockets[number].sendall(frame)
    return latencies


def median(measured: Sequence[Measured]) -> Measured:
    return Measured(*(statistics.median(values) for values in zip(*measured, strict=True)))


def main(rows: int = 1_000_000, milliseconds: float = 10.0) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        sides = [Side(name, Path(folder), milliseconds / 1000, stack) for name in SIDES]
        for side in sides:
            side.measure(rows)
        measured: dict[str, list[Measured]] = {side.name: [] for side in sides}
        for turn in range(TURNS):
            for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
                measured[side.name].append(side.measure(rows))
        base = median(measured["no store"])
        print(f"a store that answers in {milliseconds:g} ms, medians of {TURNS} turns")
        for name, each in measured.items():
            now = median(each)
            print(
                f"{name:<9} append {now.appended:>11,.0f} rows/s ({now.appended / base.appended:.0%})   "
                f"upsert {now.upserted:>11,.0f} rows/s ({now.upserted / base.upserted:.0%})   "
                f"one row, {CONNECTIONS} connections {now.requests:>7,.0f}/s, {now.cpu_us:.0f} us of CPU "
                f"({now.cpu_us / base.cpu_us:.0%}), median {now.p50_ms:.1f} ms, p99 {now.p99_ms:.1f} ms, "
                f"{now.puts:.1f} puts/s"
            )


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((int, float), sys.argv[1:], strict=False)))
