"""Our server beside Java Fluss: the same clients, rows and requests, in turns, with the CPU time of each server.

A *side* is a server with everything that drives it. Each kind of work runs on both sides in every turn, after a turn
that only warms up. The clients are ours and pyfluss; small requests are also sent as frames that were encoded before,
by one connection or 64, so that the client costs next to nothing.
"""

from __future__ import annotations

import select
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

import forebay
from benchmarks import data, peer
from benchmarks.report import Grid, Section, number
from benchmarks.running import Run, scratch
from forebay.base.errors import Unavailable
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.codec.log_batch import build_arrow_batch
from forebay.codec.reference import RowFormat
from forebay.codec.rows import encode_kv_batch, primary_key_encoder, row_codec
from forebay.protocol.frames import FrameType
from forebay.testing.server import ServerProcess
from tests.server.raw_client import ApiKey, RawClient, pb

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "foreign"))  # whose modules are programs, too
from fluss_cluster import FLUSS_VERSION, RealFluss

T = TypeVar("T")

ROWS = 500_000
_ROWS_AT_FIRST = 100_000
_SMALL = 1000
"""Calls of one row or key in a turn."""

_FRAMES = 4000
_CONNECTIONS = 64
_LOOKUPS = 20
_KEYS = (100, 10_000)
_CREATED = 5
_ACKS_ALL = -1
_ATTEMPTS = 3
_DELIVERY_TIMEOUT = "30 s"

_JAVA = ("-XX:+UseG1GC",)
_SETTINGS = {
    "netty.server.num-network-threads": "3",
    "netty.server.num-worker-threads": "8",
    "server.io-pool.size": "10",
    "log.segment.file-size": "1gb",
    "kv.rocksdb.writebuffer.size": "64mb",
    "kv.rocksdb.block.cache-size": "8mb",
}
"""Fluss's own defaults, where the cluster of the tests has others."""


@dataclass
class Side:
    """One of the two servers."""

    name: str
    bootstrap: str
    tablet: str
    connection: Connection
    pid: Callable[[], int]
    restart: Callable[[], None]
    """Kill it and start it again."""
    numbers: Iterator[int] = field(default_factory=count)

    def cpu_seconds(self) -> dict[str, float]:
        """The CPU time of each thread of the server, which the kernel counts in nanoseconds here."""
        found = {}
        for thread in Path(f"/proc/{self.pid()}/task").iterdir():
            with suppress(OSError):  # it has just ended
                found[thread.name] = int((thread / "schedstat").read_text().split()[0]) / 1e9
        return found

    def create(self, primary_key: bool, buckets: int = 1, **options: str) -> Table:
        name = f"fluss.t{next(self.numbers)}"
        key = [data.KEY] if primary_key else ()
        return self.connection.create_table(name, data.SCHEMA, primary_key=key, buckets=buckets, options=options)


@dataclass(frozen=True)
class Work:
    """One kind of work. `begin` prepares a side and returns what does `units` of it and returns the seconds taken."""

    what: str
    client: str
    unit: str
    units: int
    begin: Callable[[Side], Callable[[], float]]


@dataclass(frozen=True)
class Cost:
    """The medians of one side: seconds of wall time and of the server's CPU, for each unit."""

    wall: float
    cpu: float


def run(options: Run) -> Section:
    rows = options.rows_or(ROWS)
    cells = []
    with _sides(options) as sides:
        for work in _all_work(rows):
            ours, java = _measured(work, sides, options)
            cells.append(
                [
                    work.what,
                    work.client,
                    f"{number(1 / ours.wall)} {work.unit}/s",
                    f"{number(1 / java.wall)}",
                    f"{java.wall / ours.wall:.2f} x",
                    f"{number(ours.cpu * 1e6)} us",
                    f"{number(java.cpu * 1e6)} us",
                    f"{java.cpu / ours.cpu:.2f} x" if ours.cpu else "",
                ]
            )
    grid = Grid(
        "Forebay's server and Java Fluss's",
        f"Fluss {FLUSS_VERSION} with its own defaults, in a JVM for the tablet server alone (G1, C2, 1 GiB heap), on "
        f"the same disk. It does not sync its log to the disk; ours does before it answers. {rows:,} rows, acks=all. "
        f"Medians of {options.repeat} turns after one to warm up, in which both sides take turns. The ratios are ours "
        "against Java's: above 1 we are faster, or use less CPU time. CPU time is that of the server, for each row, "
        "call or request.",
        ["work", "client", "ours", "Java's", "ratio", "server CPU, ours", "Java's", "ratio"],
        cells,
    )
    return Section("peers", "The server beside Java Fluss", [grid])


def _measured(work: Work, sides: Sequence[Side], options: Run) -> list[Cost]:
    begun = [_answered(side, work, options, lambda side=side: work.begin(side)) for side in sides]  # type: ignore[misc]
    taken: list[list[tuple[float, float]]] = [[] for _ in sides]
    for turn in range(options.repeat + 1):
        for side, does, costs in zip(sides, begun, taken, strict=True):
            wall, cpu = _answered(side, work, options, lambda side=side, does=does: _costs(side, does))  # type: ignore[misc]
            if turn:
                costs.append((wall / work.units, cpu / work.units))
                options.say(
                    f"  {turn}/{options.repeat} {work.what}, {work.client}, {side.name}: {work.units / wall:,.0f} "
                    f"{work.unit}/s, {cpu / work.units * 1e6:,.2f} us of CPU"
                )
    return [Cost(*(statistics.median(values) for values in zip(*costs, strict=True))) for costs in taken]


def _costs(side: Side, does: Callable[[], float]) -> tuple[float, float]:
    """Seconds of wall time and of the server's CPU."""
    before = side.cpu_seconds()
    wall = does()
    return wall, sum(seconds - before.get(thread, 0.0) for thread, seconds in side.cpu_seconds().items())


def _answered(side: Side, work: Work, options: Run, call: Callable[[], T]) -> T:
    """The result of `call`; once more if a write gets no answer, which Java Fluss 0.9.1 leaves out now and then."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return call()
        except Unavailable as error:
            options.say(f"  {work.what}, {work.client}, {side.name}: once more after {error}")
    return call()


# ---- the two sides --------------------------------------------------------------------------------------------------


@contextmanager
def _sides(options: Run) -> Iterator[list[Side]]:
    with ExitStack() as stack:
        folder = stack.enter_context(scratch(options, "peers"))
        server = stack.enter_context(ServerProcess(folder / "data"))
        cluster = stack.enter_context(
            RealFluss(settings=_SETTINGS, heap_mib=1024, is_apart=True, jvm=_JAVA, parent=folder, start_seconds=120)
        )

        def ours_again() -> None:
            server.kill()
            server.start(keep_ports=True)

        sides = []
        for name, bootstrap, pid, again in (
            ("Forebay", server.bootstrap_servers, lambda: server.pid, ours_again),
            (
                "Java Fluss",
                cluster.bootstrap_servers,
                lambda: cluster.pid_of_tablet_server(0),
                lambda: cluster.kill_tablet_server(0),
            ),
        ):
            connection = stack.enter_context(forebay.connect(bootstrap, writer_delivery_timeout=_DELIVERY_TIMEOUT))
            sides.append(Side(name, bootstrap, _tablet_of(bootstrap), connection, pid, again))
        yield sides


def _tablet_of(bootstrap: str) -> str:
    with RawClient(bootstrap) as client:
        node = client.call(ApiKey.GET_METADATA, pb.MetadataRequest()).tablet_servers[0]
    if node.HasField("listeners"):
        address = str(node.listeners).split(",", maxsplit=1)[0].rpartition("/")[2]
        return address if ":" in address else f"{node.host}:{node.port}"
    return f"{node.host}:{node.port}"


# ---- the work -------------------------------------------------------------------------------------------------------


def _all_work(rows: int) -> Iterator[Work]:
    batches = list(data.batches(rows))
    yield Work("append", "forebay", "rows", rows, lambda side: _appending(side.create(False, 4), batches))
    if peer.available():
        yield Work("append", "pyfluss", "rows", rows, lambda side: _their_appending(side, batches))
    for buckets in (1, 4):
        what = f"upsert, half updates, {buckets} bucket{'s' * (buckets > 1)}"
        yield Work(what, "forebay", "rows", rows, lambda side, buckets=buckets: _upserting(side, rows, buckets))  # type: ignore[misc]
    if peer.available():
        some = rows // 5
        their = "upsert, half updates, 1 bucket"
        yield Work(their, "pyfluss", "rows", some, lambda side: _their_upserting(side, some))
    yield Work("log read from its start", "forebay", "rows", rows, lambda side: _reading(side, batches))
    for keys in _KEYS:
        calls = _LOOKUPS * (10 if keys == _KEYS[0] else 1)
        yield Work(
            f"lookup, {keys:,} keys a call", "forebay", "keys", keys * calls,
            lambda side, keys=keys, calls=calls: _looking_up(side, keys, calls),  # type: ignore[misc]
        )  # fmt: skip
    for what in ("append", "upsert", "lookup"):
        yield Work(
            f"{what} of one row, one call at a time", "forebay", "calls", _SMALL,
            lambda side, what=what: _small_calls(side, what),  # type: ignore[misc]
        )  # fmt: skip
    for connections in (1, _CONNECTIONS):
        for what in ("append", "upsert", "lookup"):
            yield Work(
                f"{what} of one row, {connections} connection{'s' * (connections > 1)}", "frames", "requests", _FRAMES,
                lambda side, what=what, n=connections: _frames(side, what, n),  # type: ignore[misc]
            )  # fmt: skip
    yield Work("create a table", "forebay", "tables", _CREATED, _creating)
    yield Work("restart after kill -9, until a row is read", "forebay", "restarts", 1, lambda side: _restarting(side))


def _timed(work: Callable[[], Any]) -> Callable[[], float]:
    def timed() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return timed


def _appending(table: Table, batches: Sequence[pa.RecordBatch]) -> Callable[[], float]:
    return _timed(lambda: table.append(pa.Table.from_batches(batches)))


def _their_appending(side: Side, batches: Sequence[pa.RecordBatch]) -> Callable[[], float]:
    table = side.create(False, 4)
    return lambda: peer.append_seconds(side.bootstrap, table, batches, whole=False)


def _upserting(side: Side, rows: int, buckets: int) -> Callable[[], float]:
    table = side.create(True, buckets)
    table.upsert(data.table(rows))
    seeds = count(100)
    return lambda: _timed(lambda: table.upsert(rewritten))() if (rewritten := _half(rows, next(seeds))) else 0.0


def _half(rows: int, seed: int) -> pa.Table:
    """As many rows, half of which have a key that is there already."""
    rng = np.random.default_rng(seed)
    old = rng.choice(rows, rows // 2, replace=False).astype(np.int64)
    new = np.arange(rows - rows // 2, dtype=np.int64) + rows * (seed + 1)
    ids = rng.permutation(np.concatenate([old, new]))
    return pa.Table.from_batches([data.batch_of(ids, seed)])


def _their_upserting(side: Side, rows: int) -> Callable[[], float]:
    table = side.create(True)
    table.upsert(data.table(rows))
    seeds = count(100)
    return lambda: peer.upsert_seconds(side.bootstrap, table, peer.python_rows(_half(rows, next(seeds)).to_batches()))


def _reading(side: Side, batches: Sequence[pa.RecordBatch]) -> Callable[[], float]:
    table = side.create(False)
    table.append(pa.Table.from_batches(batches))
    rows = sum(batch.num_rows for batch in batches)

    def read() -> None:
        found = sum(batch.num_rows for batch in table.scan())
        if found != rows:
            raise AssertionError(f"{side.name}: read {found} of {rows} rows")

    return _timed(read)


def _looking_up(side: Side, keys: int, calls: int) -> Callable[[], float]:
    table = side.create(True)
    table.upsert(data.table(_ROWS_AT_FIRST))
    rng = np.random.default_rng(7)

    def look_up() -> None:
        for _ in range(calls):
            found = table.lookup(pa.table({data.KEY: rng.choice(_ROWS_AT_FIRST, keys, replace=False)}))
            if found.num_rows != keys:
                raise AssertionError(f"{side.name}: found {found.num_rows} of {keys} keys")

    return _timed(look_up)


def _small_calls(side: Side, what: str) -> Callable[[], float]:
    table = side.create(what != "append")
    rows = [pa.Table.from_batches([data.batch_of(np.array([key]), key)]) for key in range(_SMALL)]
    if what == "lookup":
        table.upsert(pa.concat_tables(rows))
    calls: dict[str, Callable[[int], Any]] = {
        "append": lambda key: table.append(rows[key]),
        "upsert": lambda key: table.upsert(rows[key]),
        "lookup": lambda key: table.lookup(key),
    }
    call = calls[what]

    def every() -> None:
        for key in range(_SMALL):
            call(key)

    return _timed(every)


def _creating(side: Side) -> Callable[[], float]:
    def create() -> None:
        for _ in range(_CREATED):
            side.create(False)

    return _timed(create)


def _restarting(side: Side) -> Callable[[], float]:
    table = side.create(True)
    table.upsert(data.table(_ROWS_AT_FIRST))

    def restart() -> None:
        side.restart()
        if table.lookup(5) is None:
            raise AssertionError(f"{side.name} has lost a row")

    return _timed(restart)


# ---- requests as frames ---------------------------------------------------------------------------------------------


def _frames(side: Side, what: str, connections: int) -> Callable[[], float]:
    """One request, encoded once, sent again and again by so many connections, each of which awaits each answer."""
    table = side.create(what != "append")
    batch = data.batch_of(np.array([7]), 7)
    (table.append if what == "append" else table.upsert)(pa.Table.from_batches([batch]))
    key, message = _request(table, what, batch)
    clients = [RawClient(side.tablet) for _ in range(connections)]
    for client in clients:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    (answer,) = clients[0].call(key, message).buckets_resp
    if answer.HasField("error_code") and answer.error_code:
        raise AssertionError(f"{side.name} refuses {what}: {answer}")
    frame = b"".join(bytes(part) for part in clients[0].connection.send_request(key, message, (), None).buffers)
    sockets = {client.socket.fileno(): client.socket for client in clients}
    poll = select.epoll()
    for number_of_file in sockets:
        poll.register(number_of_file, select.EPOLLIN)

    def drive(_keeps: Any = clients) -> None:
        sent = done = 0
        parts: dict[int, bytes] = {}
        for one in sockets.values():
            one.sendall(frame)
            sent += 1
        while done < _FRAMES:
            for number_of_file, _ in poll.poll():
                one = sockets[number_of_file]
                received = one.recv(1 << 16)
                if not received:
                    raise ConnectionError(f"{side.name} has closed a connection")
                answer = parts.pop(number_of_file, b"") + received
                if len(answer) < 5 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
                    parts[number_of_file] = answer
                    continue
                if answer[4] != FrameType.SUCCESS:
                    raise AssertionError(f"{side.name} refuses {what}: {answer!r}")
                done += 1
                if sent < _FRAMES:
                    one.sendall(frame)
                    sent += 1

    return _timed(drive)


def _request(table: Table, what: str, batch: pa.RecordBatch) -> tuple[ApiKey, Any]:
    info = table.info
    if what == "append":
        records = bytes(build_arrow_batch(batch, schema_id=info.schema_id, compression="zstd", level=3))
        message: Any = pb.ProduceLogRequest(acks=_ACKS_ALL, table_id=info.table_id, timeout_ms=30_000)
        message.buckets_req.add(bucket_id=0, records=records)
        return ApiKey.PRODUCE_LOG, message
    keys = pa.array(primary_key_encoder(info.descriptor).encode(batch), pa.binary())
    if what == "lookup":
        message = pb.LookupRequest(table_id=info.table_id)
        message.buckets_req.add(bucket_id=0, keys=[keys[0].as_py()])
        return ApiKey.LOOKUP, message
    rows = row_codec(info.schema.columns, RowFormat.COMPACTED).encode(batch)
    message = pb.PutKvRequest(acks=_ACKS_ALL, table_id=info.table_id, timeout_ms=30_000)
    message.buckets_req.add(bucket_id=0, records=bytes(encode_kv_batch(keys, rows, info.schema_id)))
    return ApiKey.PUT_KV, message
