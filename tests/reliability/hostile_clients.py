"""Hostile and slow clients against a server process, and their effect on a concurrent honest client.

For each attack: the maximum anonymous memory of the server, and the duration of each call of an honest client, which
puts a row, looks it up, and reconnects now and then, in a separate process.

    python -m tests.reliability.hostile_clients             (`make hostile-clients`; --write keeps the figures)
    python -m tests.reliability.hostile_clients --scale 0.01 --only metadata
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import resource
import selectors
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from forebay.base.errors import ForebayError, Unavailable
from forebay.codec.log.log_batch import build_arrow_batch
from forebay.testing.server import ServerProcess
from tests import results
from tests.server.raw_client import ApiKey, RawClient, pb
from tests.server.running import KV_COLUMNS, LOG_COLUMNS, LOG_SCHEMA, Bench, kv_key, kv_records, log_records

BUDGET_BYTES = 256 << 20
WAIT_MAX_SECONDS = 1.0
"""What an honest client may wait at most while others attack."""

OVERHEAD_BYTES = 256 << 20
"""What a server takes beside its budget: interpreter, libraries, threads, arenas of the allocator."""

SECONDS_EACH = 12.0


# ---- the honest client ----------------------------------------------------------------------------------------------


def _be_honest(coordinator: str, tablet: str, table_id: int, stop: Any, told: Any) -> None:
    """Work like a client until `stop` is set, and tell how long each call took."""
    waits: list[float] = []

    def timed(call: Callable[[], Any]) -> Any:
        started = time.monotonic()
        try:
            return call()
        finally:
            waits.append(time.monotonic() - started)

    bench = Bench(coordinator, tablet)
    bench.put(table_id, kv_records([{"id": 0, "name": "honest"}]))
    told.send("ready")
    for number in range(1 << 40):
        key = number % 1000
        answer = timed(lambda key=key: bench.put(table_id, kv_records([{"id": key, "name": "honest"}])))
        assert not answer.error_code, answer
        answer = timed(lambda key=key: bench.lookup(table_id, [kv_key(key)]))
        assert answer.values[0].HasField("values"), answer
        if not number % 10:
            timed(lambda: RawClient(tablet).close())
        if stop.wait(0.005):
            break
    told.send(waits)


@dataclass
class Outcome:
    """What one attack cost."""

    attack: str
    told: str
    waits: list[float]
    memory_bytes: int
    memory_before: int
    seconds: float

    def figures(self) -> dict[str, Any]:
        ordered = sorted(self.waits)

        def milliseconds(share: float) -> float:
            return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1000, 1)

        return {
            "server_mb": round(self.memory_bytes / 1e6),
            "server_mb_before": round(self.memory_before / 1e6),
            "honest_calls": len(ordered),
            "p50_ms": milliseconds(0.5),
            "p99_ms": milliseconds(0.99),
            "max_ms": milliseconds(1.0),
            "seconds": round(self.seconds, 1),
            "told": self.told,
        }


def anonymous_bytes(pid: int) -> int:
    """Memory of a process without its mapped files, whose pages the kernel takes back as it likes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/{pid}/status has no RssAnon")


@contextmanager
def _watched(pid: int) -> Iterator[list[int]]:
    """A list of one number: the most memory that the process had inside of the block."""
    most, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            most[0] = max(most[0], anonymous_bytes(pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()


# ---- attacks --------------------------------------------------------------------------------------------------------


@dataclass
class Target:
    """The server, tables in it, and how large the attacks are (1.0: as in issue 10)."""

    coordinator: str
    tablet: str
    wide: int
    keyed: int
    log: int
    buckets: int
    scale: float

    def many(self, count: int, least: int = 1) -> int:
        return max(int(count * self.scale), least)


def _told(call: Callable[[], Any]) -> str:
    try:
        call()
    except (ForebayError, ConnectionError) as e:
        return f"refused: {str(e)[:60]}"
    return "answered"


def _frame(key: int, request_id: int, body: bytes, length: int | None = None) -> bytes:
    return struct.pack(">ihhi", 8 + (len(body) if length is None else length), key, 0, request_id) + body


def _push(streams: dict[socket.socket, Iterator[bytes]], seconds: float) -> int:
    """Send each stream as fast as the server takes it, without reading. Returns the bytes that it took."""
    until, sent = time.monotonic() + seconds, 0
    rest = dict.fromkeys(streams, b"")
    with selectors.DefaultSelector() as selector:
        for sock in streams:
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_WRITE)
        while selector.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(min(left, 0.2)):
                sock: Any = key.fileobj
                data = rest[sock] or next(streams[sock], b"")
                try:
                    count = sock.send(data) if data else 0
                except BlockingIOError:
                    rest[sock] = data
                    continue
                except OSError:
                    data, count = b"", 0  # the server has closed it
                rest[sock] = data[count:]
                sent += count
                if not data:
                    selector.unregister(sock)
    return sent


def metadata(target: Target) -> str:
    """GetMetadata that names a table of 4,096 buckets 3,000 times, on five connections, again and again."""
    path = pb.PbTablePath(database_name="fluss", table_name="wide")
    request = pb.MetadataRequest(table_path=[path] * target.many(3000, 30))
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(target.tablet)) for _ in range(5)]
        for _ in range(5):
            ids = [client.send(ApiKey.GET_METADATA, request) for client in clients]
            answers = [client.receive(each) for client, each in zip(clients, ids, strict=True)]
        assert [len(each.table_metadata) for each in answers] == [1] * 5
        return f"answered with {len(answers[0].table_metadata[0].bucket_metadata)} buckets"


def _fetch(target: Target, table_id: int, buckets: int) -> Any:
    request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1 << 30, max_wait_ms=60_000, min_bytes=1 << 20)
    table = request.tables_req.add(table_id=table_id, projection_pushdown_enabled=False)
    for bucket in range(buckets):
        table.buckets_req.add(bucket_id=bucket, fetch_offset=0, max_fetch_bytes=1 << 20)
    return request


def fetch(target: Target) -> str:
    """FetchLog with 300,000 buckets, then as many as are let in, on five connections, again and again."""
    with RawClient(target.tablet, timeout=60) as client:
        many = _fetch(target, target.wide, target.many(300_000, 3000))
        told = _told(lambda: client.call(ApiKey.FETCH_LOG, many))
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(target.tablet, timeout=120)) for _ in range(5)]
        request = _fetch(target, target.wide, target.many(90_000, 900))
        ids = [(client, client.send(ApiKey.FETCH_LOG, request)) for client in clients for _ in range(2)]
        for client, request_id in ids:
            assert len(client.receive(request_id).tables_resp[0].buckets_resp) == target.many(90_000, 900)
    return told


def lists(target: Target) -> str:
    """The same thing named 90,000 times in each request that has a list, and huge answers wanted."""
    count = target.many(90_000, 900)
    lookup, prefixes = pb.LookupRequest(table_id=target.keyed), pb.PrefixLookupRequest(table_id=target.keyed)
    lookup.buckets_req.add(bucket_id=0, keys=[kv_key(5000)] * count)  # a value of 1 MB
    prefixes.buckets_req.add(bucket_id=0, keys=[b""] * count)
    statistics = pb.GetTableStatsRequest(table_id=target.wide)
    for number in range(count):
        statistics.buckets_req.add(bucket_id=number)
    offsets = pb.ListOffsetsRequest(
        follower_server_id=-1, offset_type=1, table_id=target.wide, bucket_id=list(range(count))
    )
    write = pb.PutKvRequest(acks=-1, table_id=target.wide, timeout_ms=1000)
    for number in range(count // 3):
        write.buckets_req.add(bucket_id=number, records=b"x")
    heartbeat = pb.LakeTieringHeartbeatRequest()
    for number in range(count):
        heartbeat.failed_tables.add(table_id=number, coordinator_epoch=1, tiering_epoch=1)
    scan = pb.LimitScanRequest(table_id=target.keyed, bucket_id=0, limit=(1 << 31) - 1)
    snapshot = pb.OpenTableSnapshotRequest(table_id=target.keyed, partition_id=list(range(count)))
    refused = 0
    with ExitStack() as stack:
        for api, request, server in (
            (ApiKey.LOOKUP, lookup, target.tablet),
            (ApiKey.PREFIX_LOOKUP, prefixes, target.tablet),
            (ApiKey.GET_TABLE_STATS, statistics, target.tablet),
            (ApiKey.LIST_OFFSETS, offsets, target.tablet),
            (ApiKey.PUT_KV, write, target.tablet),
            (ApiKey.LIMIT_SCAN, scan, target.tablet),
            (ApiKey.OPEN_TABLE_SNAPSHOT, snapshot, target.tablet),
            (ApiKey.LAKE_TIERING_HEARTBEAT, heartbeat, target.coordinator),
        ):
            clients = [stack.enter_context(RawClient(server, timeout=120)) for _ in range(3)]
            ids = [(client, client.send(api, request)) for client in clients for _ in range(2)]
            for client, request_id in ids:
                refused += _told(lambda client=client, request_id=request_id: client.receive(request_id)) != "answered"
    return f"{refused} of 48 refused as a whole"


def pipelining(target: Target) -> str:
    """20 connections pipeline 1.4 million ApiVersions and never read."""
    body = pb.ApiVersionsRequest(client_software_name="hostile", client_software_version="1").SerializeToString()
    each = target.many(70_000, 700)

    def stream() -> Iterator[bytes]:
        for first in range(10, each, 500):
            yield b"".join(_frame(ApiKey.API_VERSIONS, number, body) for number in range(first, first + 500))

    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(target.tablet)) for _ in range(20)]
        sent = _push({client.socket: stream() for client in clients}, SECONDS_EACH * min(1, target.scale * 10))
    return f"{sent:,} bytes were taken"


def unfinished(target: Target) -> str:
    """3,000 connections from another address that begin a frame of 80 MB and send no more than 40 kB of it."""
    count, opened = target.many(3000, 30), 0
    with ExitStack() as stack:
        streams: dict[socket.socket, Iterator[bytes]] = {}
        for _ in range(count):
            try:
                client = stack.enter_context(RawClient(target.tablet, source="127.0.0.2"))
            except (ConnectionError, OSError):
                continue  # as many as one address may have
            opened += 1
            streams[client.socket] = iter([_frame(ApiKey.PUT_KV, 9, bytes(40_000), length=80 << 20)])
        _push(streams, SECONDS_EACH / 4)
        time.sleep(SECONDS_EACH / 2 * min(1, target.scale * 10))
    return f"{opened} of {count} connections were let in"


def large(target: Target) -> str:
    """20 connections that send frames of 80 MB but for the last byte."""
    size = target.many(80 << 20, 1 << 20)

    def stream() -> Iterator[bytes]:
        yield _frame(ApiKey.PUT_KV, 9, b"", length=size)
        for _ in range(size // (1 << 18) - 1):
            yield bytes(1 << 18)

    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(target.tablet)) for _ in range(20)]
        sent = _push({client.socket: stream() for client in clients}, SECONDS_EACH * min(1, target.scale * 10))
    return f"{sent:,} bytes were taken"


def slow_readers(target: Target) -> str:
    """60 connections that ask for 16 MB of log ten times each and take nothing."""
    request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=16 << 20, max_wait_ms=0)
    table = request.tables_req.add(table_id=target.log, projection_pushdown_enabled=False)
    table.buckets_req.add(bucket_id=0, fetch_offset=0, max_fetch_bytes=16 << 20)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(target.tablet)) for _ in range(target.many(60, 6))]
        for client in clients:
            with contextlib.suppress(ConnectionError, OSError):
                for _ in range(10):
                    client.send(ApiKey.FETCH_LOG, request)
        time.sleep(SECONDS_EACH * min(1, target.scale * 10))
    return f"{len(clients)} connections"


def long_polls(target: Target) -> str:
    """1,500 connections that wait for news of an empty bucket, 500 times each, and hang up."""
    request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1 << 20, max_wait_ms=600_000, min_bytes=1)
    table = request.tables_req.add(table_id=target.wide, projection_pushdown_enabled=False)
    table.buckets_req.add(bucket_id=1, fetch_offset=0, max_fetch_bytes=1 << 20)
    body, each = request.SerializeToString(), target.many(500, 50)

    def stream() -> Iterator[bytes]:
        yield b"".join(_frame(ApiKey.FETCH_LOG, number, body) for number in range(10, 10 + each))

    with ExitStack() as stack:
        streams: dict[socket.socket, Iterator[bytes]] = {}
        for _ in range(target.many(1500, 15)):
            with contextlib.suppress(ConnectionError, OSError):  # as many as one address may have
                streams[stack.enter_context(RawClient(target.tablet, source="127.0.0.3")).socket] = stream()
        sent = _push(streams, SECONDS_EACH * min(1, target.scale * 10))
    return f"{len(streams)} connections, {sent // (len(body) + 12):,} requests were taken"


def new_writers(target: Target) -> str:
    """20 connections that ask for 3,000 writer ids each, again and again, each in a request of its own.

    The server may close some: what `long_polls` has left behind counts until its polls end, because a server that has
    paused a connection does not see it hang up, and it makes room by closing the connection that holds most.
    """
    request = pb.InitWriterRequest(table_path=[pb.PbTablePath(database_name="fluss", table_name="wide")])
    closed = 0
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(target.tablet, timeout=120)) for _ in range(20)]
        for _ in range(3):
            ids: list[tuple[RawClient, int]] = []
            for number in range(len(clients) * target.many(3000, 30)):
                client = clients[number % len(clients)]
                try:
                    ids.append((client, client.send(ApiKey.INIT_WRITER, request)))
                except (ConnectionError, Unavailable):
                    closed += 1
                    clients[number % len(clients)] = stack.enter_context(RawClient(target.tablet, timeout=120))
            for client, request_id in ids:
                try:
                    client.receive(request_id)
                except (ConnectionError, Unavailable):
                    closed += 1
    return f"{closed:,} were not answered: closed by the server" if closed else "all were answered"


ATTACKS = (metadata, fetch, lists, pipelining, unfinished, large, slow_readers, long_polls, new_writers)


# ---- the trial ------------------------------------------------------------------------------------------------------


def _make_target(server: ServerProcess, scale: float) -> tuple[Target, int]:
    coordinator, tablet = server.bootstrap_servers, server.ready["tablet.servers"]
    bench = Bench(coordinator, tablet)
    buckets = 4096 if scale >= 0.1 else 64
    wide = bench.create("wide", LOG_COLUMNS, buckets=buckets)
    keyed = bench.create("keyed", KV_COLUMNS, ["id"])
    for number in range(max(int(64 * scale), 4)):
        name = os.urandom(500_000).hex()
        assert not bench.put(keyed, kv_records([{"id": 5000 + number, "name": name}])).error_code
    log = bench.create("log", LOG_COLUMNS)
    for number in range(max(int(20 * scale), 2)):
        batch = pa.RecordBatch.from_pydict({"a": [number], "s": [os.urandom(500_000).hex()]}, schema=LOG_SCHEMA)
        assert not bench.append(log, bytes(build_arrow_batch(batch, schema_id=1))).error_code
    assert not bench.append(wide, log_records([1])).error_code
    honest = bench.create("honest", KV_COLUMNS, ["id"])
    bench.close()
    return Target(coordinator, tablet, wide, keyed, log, buckets, scale), honest


def run(folder: Path, scale: float, only: str | None = None, tell: Callable[[Outcome], object] = id) -> list[Outcome]:
    """Run the attacks, one after the other, against one server; check that it still serves, and stops clean.

    `tell` gets each outcome as soon as it is there.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    context = multiprocessing.get_context("spawn")
    outcomes: list[Outcome] = []
    wanted = [attack for attack in ATTACKS if only in (None, attack.__name__)]
    settings = {"server.connections.memory": f"{BUDGET_BYTES}b"}
    with ServerProcess(folder / "data", settings=settings) as server:
        target, honest_table = _make_target(server, scale)
        for attack in wanted:
            stop, (here, there) = context.Event(), context.Pipe()
            honest = context.Process(
                target=_be_honest, args=(target.coordinator, target.tablet, honest_table, stop, there), daemon=True
            )
            honest.start()
            there.close()  # so that its death is noticed
            assert here.recv() == "ready"
            time.sleep(0.3)
            before, started = anonymous_bytes(server.pid), time.monotonic()
            with _watched(server.pid) as most:
                told = attack(target)
            seconds = time.monotonic() - started
            stop.set()
            assert here.poll(120), f"the honest client is stuck after {attack.__name__}"
            try:
                waits = here.recv()
            except EOFError:
                raise AssertionError(f"the honest client died beside {attack.__name__}: see its trace above") from None
            outcomes.append(Outcome(attack.__name__, told, waits, most[0], before, seconds))
            tell(outcomes[-1])
            honest.join()
        assert server.stop() == 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description="Hostile clients: memory of the server, waiting time of others.")
    parser.add_argument("--scale", type=float, default=1.0, help="1.0: as many and as large as in issue 10")
    parser.add_argument("--only", choices=[attack.__name__ for attack in ATTACKS])
    parser.add_argument("--write", action="store_true", help="keep the figures in docs/results/hostile-clients.json")
    options = parser.parse_args()
    print(
        f"{'attack':14} {'server MB':>10} {'calls':>7} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'seconds':>8}  told",
        flush=True,
    )

    def tell(outcome: Outcome) -> None:
        f = outcome.figures()
        print(
            f"{outcome.attack:14} {f['server_mb']:>10} {f['honest_calls']:>7} {f['p50_ms']:>8} {f['p99_ms']:>8} "
            f"{f['max_ms']:>8} {f['seconds']:>8} {f['told']}",
            flush=True,
        )

    with tempfile.TemporaryDirectory() as folder:
        outcomes = run(Path(folder), options.scale, options.only, tell)
    bad = sum(
        outcome.figures()["max_ms"] > WAIT_MAX_SECONDS * 1000 or outcome.memory_bytes > BUDGET_BYTES + OVERHEAD_BYTES
        for outcome in outcomes
    )
    if options.write:
        figures = [outcome.figures() for outcome in outcomes]
        results.write(
            "hostile-clients",
            {
                "attacks": len(outcomes),
                "budget_mb": BUDGET_BYTES >> 20,
                "server_mb_at_most": max(f["server_mb"] for f in figures),
                "honest_p99_ms_at_most": max(f["p99_ms"] for f in figures),
                "honest_max_ms": max(f["max_ms"] for f in figures),
                "each": {outcome.attack: outcome.figures() for outcome in outcomes},
            },
        )
    print(f"{bad} attacks cost an honest client more than {WAIT_MAX_SECONDS:g} s, or more memory than the budget")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
