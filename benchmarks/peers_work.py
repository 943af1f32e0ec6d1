"""The work of the section `peers`, on one side at a time."""

from __future__ import annotations

import select
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import data, peer
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.codec.kv.kv_batch import encode_kv_batch
from forebay.codec.log.log_batch import build_arrow_batch
from forebay.codec.rows.keys import primary_key_encoder
from forebay.codec.rows.row_codec import row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.protocol.frames import FrameType
from tests.server.raw_client import ApiKey, RawClient, pb

APPEND, READ, SCAN = "append to a log", "read a log", "scan a primary-key table"
UPSERT = "upsert, half updates, {} bucket{}"
ONE, MANY, KEYS = "{} one row and wait", "{} one row, 64 connections", "look {:,} keys up in a call"
ONE_IN_MEMORY = f"{ONE}, ours on a RAM disk"
CREATE, RESTART = "create a table", "restart, until a row is read"

_ROWS_AT_FIRST = 100_000
_SMALL = 1000
"""Calls of one row or key in a turn."""

FRAMES = 4000
CONNECTIONS = 64
_LOOKUPS = 20
_KEYS = (100, 10_000)
_CREATED = 5
_ACKS_ALL = -1
_LEADER_SECONDS = 5.0
"""The longest time that a new table may take until it can be written to."""


@dataclass
class Side:
    """One of the two servers."""

    name: str
    bootstrap: str
    tablet: str
    connection: Connection
    pid: Callable[[], int]
    stop: Callable[[], Any]
    """Shut the server down gracefully."""
    start: Callable[[], Any]
    """Start it again, with its data."""
    missed: int = 0
    """The number of tables that got no leader."""
    opened: ExitStack = field(default_factory=ExitStack)
    """What is closed after a kind of work."""

    _numbers: Iterator[int] = field(default_factory=count)

    def cpu_seconds(self) -> dict[str, float]:
        """The CPU time of each thread of the server, which the kernel counts in nanoseconds here."""
        found = {}
        for thread in Path(f"/proc/{self.pid()}/task").iterdir():
            with suppress(OSError):  # it has just ended
                found[thread.name] = int((thread / "schedstat").read_text().split()[0]) / 1e9
        return found

    def created(self, primary_key: bool, buckets: int = 1) -> Table:
        name = f"fluss.t{next(self._numbers)}"
        return self.connection.create_table(
            name, data.SCHEMA, primary_key=[data.KEY] if primary_key else (), buckets=buckets
        )

    def create(self, primary_key: bool, buckets: int = 1) -> Table:
        """A new table that can be written to, until the end of the kind of work; a restart would have to open it.

        Java Fluss 0.9.1 never gives some of its tables a leader.
        """
        for _ in range(3):
            table = self.created(primary_key, buckets)
            deadline = time.monotonic() + _LEADER_SECONDS
            while time.monotonic() < deadline:
                view = self.connection.cluster.refresh([table.path])
                if all(view.leader(table.bucket(number)) is not None for number in range(buckets)):
                    self.opened.callback(self.connection.drop_table, table.path)
                    return table
                time.sleep(0.02)
            self.missed += 1
        raise AssertionError(f"three new tables of {self.name} got no leader")


@dataclass(frozen=True)
class Work:
    """One kind of work. `begin` prepares a side and returns what does `units` of it and returns the seconds taken.

    `what` is a line of the first page, for the best of several clients. Work that is cold is not done once before it
    counts.
    """

    what: str
    client: str
    unit: str
    units: int
    begin: Callable[[Side], Callable[[], float]]
    is_cold: bool = False
    in_memory: bool = False
    """Whether our server's files are in memory: it has to sync, and Java Fluss does not."""


def all_work(rows: int, in_memory: bool) -> Iterator[Work]:
    """`in_memory`: whether there is a server of ours whose files are in memory."""
    batches = list(data.batches(rows))
    changed = max(rows // 2, 2)
    yield Work(APPEND, "forebay", "rows", rows, lambda side: _appending(side, batches))
    if peer.available():
        yield Work(APPEND, "pyfluss", "rows", rows, lambda side: _their_appending(side, batches))
    for buckets in (1, 4):
        what = UPSERT.format(buckets, "s" * (buckets > 1))
        yield Work(what, "forebay", "rows", changed, lambda side, n=buckets: _upserting(side, changed, n))  # type: ignore[misc]
    if peer.available():
        some = max(changed // 2, 2)
        yield Work(UPSERT.format(1, ""), "pyfluss", "rows", some, lambda side: _their_upserting(side, some))
    yield Work(READ, "forebay", "rows", rows, lambda side: _reading(side, batches))
    if peer.available():
        yield Work(READ, "pyfluss", "rows", rows, lambda side: _their_reading(side, batches))
    yield Work(SCAN, "forebay", "rows", rows, lambda side: _scanning(side, rows))
    for keys in _KEYS:
        calls = _LOOKUPS * (10 if keys == _KEYS[0] else 1)
        yield Work(
            KEYS.format(keys), "forebay", "keys", keys * calls,
            lambda side, keys=keys, calls=calls: _looking_up(side, keys, calls),  # type: ignore[misc]
        )  # fmt: skip
    for what in ("append", "upsert", "look up"):
        yield from _small_work(what, False)
    for what in ("append", "upsert", "look up"):
        many = MANY.format(what)
        yield Work(many, "frames", "requests", FRAMES, lambda side, what=what: _frames(side, what, CONNECTIONS))  # type: ignore[misc]
    for what in ("append", "upsert") if in_memory else ():
        yield from _small_work(what, True)
    yield Work(CREATE, "forebay", "tables", _CREATED, _creating)
    yield Work(RESTART, "forebay", "restarts", 1, _restarting, is_cold=True)


def _small_work(what: str, in_memory: bool) -> Iterator[Work]:
    named = (ONE_IN_MEMORY if in_memory else ONE).format(what)
    yield Work(named, "forebay", "calls", _SMALL, lambda side: _small_calls(side, what), in_memory=in_memory)
    yield Work(named, "frames", "calls", FRAMES, lambda side: _frames(side, what, 1), in_memory=in_memory)


def tablet_of(bootstrap: str) -> str:
    """The address of the tablet server of a cluster that has one."""
    with RawClient(bootstrap) as client:
        node = client.call(ApiKey.GET_METADATA, pb.MetadataRequest()).tablet_servers[0]
    if node.HasField("listeners"):
        address = str(node.listeners).split(",", maxsplit=1)[0].rpartition("/")[2]
        return address if ":" in address else f"{node.host}:{node.port}"
    return f"{node.host}:{node.port}"


def half_updates(rows: int, seed: int) -> pa.Table:
    """As many rows as a table has, half of which have a key that is there already."""
    rng = np.random.default_rng(seed)
    old = rng.choice(rows, rows // 2, replace=False).astype(np.int64)
    new = np.arange(rows - rows // 2, dtype=np.int64) + rows * (seed + 1)
    ids = rng.permutation(np.concatenate([old, new]))
    return pa.Table.from_batches([data.batch_of(ids, seed)])


def _timed(work: Callable[[], Any]) -> Callable[[], float]:
    def timed() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return timed


# ---- many rows ------------------------------------------------------------------------------------------------------


def _appending(side: Side, batches: Sequence[pa.RecordBatch]) -> Callable[[], float]:
    table = side.create(False, 4)
    return _timed(lambda: table.append(pa.Table.from_batches(batches)))


def _their_appending(side: Side, batches: Sequence[pa.RecordBatch]) -> Callable[[], float]:
    table = side.create(False, 4)
    return lambda: peer.append_seconds(side.bootstrap, table, batches, whole=False)


def _upserting(side: Side, rows: int, buckets: int) -> Callable[[], float]:
    table = side.create(True, buckets)
    table.upsert(data.table(rows))
    seeds = count(100)

    def upsert() -> float:
        changes = half_updates(rows, next(seeds))
        return _timed(lambda: table.upsert(changes))()

    return upsert


def _their_upserting(side: Side, rows: int) -> Callable[[], float]:
    table = side.create(True)
    table.upsert(data.table(rows))
    seeds = count(100)

    def upsert() -> float:
        changes = peer.python_rows(half_updates(rows, next(seeds)).to_batches())
        return peer.upsert_seconds(side.bootstrap, table, changes)

    return upsert


def _reading(side: Side, batches: Sequence[pa.RecordBatch]) -> Callable[[], float]:
    table = side.create(False)
    table.append(pa.Table.from_batches(batches))
    return _counted(side, sum(batch.num_rows for batch in batches), table)


def _scanning(side: Side, rows: int) -> Callable[[], float]:
    table = side.create(True)
    table.upsert(data.table(rows))
    return _counted(side, rows, table)


def _counted(side: Side, rows: int, table: Table) -> Callable[[], float]:
    def read() -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "this cluster has no ScanKv API")  # the report says so
            found = sum(batch.num_rows for batch in table.scan())
        if found != rows:
            raise AssertionError(f"{side.name}: read {found} of {rows} rows")

    return _timed(read)


def _their_reading(side: Side, batches: Sequence[pa.RecordBatch]) -> Callable[[], float]:
    table = side.create(False)
    table.append(pa.Table.from_batches(batches))
    return lambda: peer.read_seconds(side.bootstrap, table, sum(batch.num_rows for batch in batches))


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


# ---- one row, a table, a server -------------------------------------------------------------------------------------


def _small_calls(side: Side, what: str) -> Callable[[], float]:
    table = side.create(what != "append")
    rows = [pa.Table.from_batches([data.batch_of(np.array([key]), key)]) for key in range(_SMALL)]
    if what == "look up":
        table.upsert(pa.concat_tables(rows))
    calls: dict[str, Callable[[int], Any]] = {
        "append": lambda key: table.append(rows[key]),
        "upsert": lambda key: table.upsert(rows[key]),
        "look up": lambda key: table.lookup(key),
    }
    call = calls[what]

    def every() -> None:
        for key in range(_SMALL):
            call(key)

    return _timed(every)


def _creating(side: Side) -> Callable[[], float]:
    def create() -> None:
        for _ in range(_CREATED):
            side.created(False)

    return _timed(create)


def _restarting(side: Side) -> Callable[[], float]:
    table = side.create(True)
    table.upsert(data.table(_ROWS_AT_FIRST))

    def restart() -> float:
        side.stop()

        def start() -> None:
            side.start()
            if table.lookup(5) is None:
                raise AssertionError(f"{side.name} has lost a row")

        return _timed(start)()

    return restart


# ---- requests as frames ---------------------------------------------------------------------------------------------


def _frames(side: Side, what: str, connections: int) -> Callable[[], float]:
    """One request, encoded once, sent again and again by so many connections, each of which awaits each answer."""
    table = side.create(what != "append")
    batch = data.batch_of(np.array([7]), 7)
    (table.append if what == "append" else table.upsert)(pa.Table.from_batches([batch]))
    key, message = request_of(table, what, batch)
    clients = [side.opened.enter_context(RawClient(side.tablet)) for _ in range(connections)]
    for client in clients:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    (answer,) = clients[0].call(key, message).buckets_resp
    if answer.HasField("error_code") and answer.error_code:
        raise AssertionError(f"{side.name} refuses {what}: {answer}")
    frame = b"".join(bytes(part) for part in clients[0].connection.send_request(key, message, (), None).buffers)
    sockets = [client.socket for client in clients]

    def checked(answer: bytes) -> None:
        if answer[4] != FrameType.SUCCESS:
            raise AssertionError(f"{side.name} refuses {what}: {answer!r}")

    return _timed(lambda: drive(sockets, frame, FRAMES, checked))


def drive(sockets: Sequence[socket.socket], frame: bytes, times: int, checked: Callable[[bytes], None]) -> None:
    """Send a frame so many times in all, by each connection again as soon as its answer, a frame too, is there."""
    of_file = {one.fileno(): one for one in sockets}
    sent = done = 0
    parts: dict[int, bytes] = {}
    with select.epoll() as poll:
        for number, one in of_file.items():
            poll.register(number, select.EPOLLIN)
            one.sendall(frame)
            sent += 1
        while done < times:
            for number, _ in poll.poll():
                received = of_file[number].recv(1 << 16)
                if not received:
                    raise ConnectionError("the server has closed a connection")
                answer = parts.pop(number, b"") + received
                if len(answer) < 5 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
                    parts[number] = answer
                    continue
                checked(answer)
                done += 1
                if sent < times:
                    of_file[number].sendall(frame)
                    sent += 1


def request_of(table: Table, what: str, batch: pa.RecordBatch) -> tuple[ApiKey, Any]:
    info = table.info
    if what == "append":
        records = bytes(build_arrow_batch(batch, schema_id=info.schema_id, compression="zstd", level=3))
        message: Any = pb.ProduceLogRequest(acks=_ACKS_ALL, table_id=info.table_id, timeout_ms=30_000)
        message.buckets_req.add(bucket_id=0, records=records)
        return ApiKey.PRODUCE_LOG, message
    keys = pa.array(primary_key_encoder(info.descriptor).encode(batch), pa.binary())
    if what == "look up":
        message = pb.LookupRequest(table_id=info.table_id)
        message.buckets_req.add(bucket_id=0, keys=[keys[0].as_py()])
        return ApiKey.LOOKUP, message
    rows = row_codec(info.schema.columns, RowFormat.COMPACTED).encode(batch)
    message = pb.PutKvRequest(acks=_ACKS_ALL, table_id=info.table_id, timeout_ms=30_000)
    message.buckets_req.add(bucket_id=0, records=bytes(encode_kv_batch(keys, rows, info.schema_id)))
    return ApiKey.PUT_KV, message
