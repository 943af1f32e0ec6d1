"""The server's own sockets: they behave as asyncio's transports do, and short requests of many clients form groups."""

from __future__ import annotations

import asyncio
import fcntl
import random
import socket
import struct
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from forebay.metadata.table import TableBucket
from forebay.server import server as server_module
from forebay.server.context import ServerContext
from forebay.server.flow import write_queue
from forebay.server.storage.replica import BucketReplica
from forebay.server.wire import _poller
from tests.patience import PATIENCE, until
from tests.server.raw_client import ApiKey, RawClient, address, pb
from tests.server.running import KV_COLUMNS, LOG_COLUMNS, Bench, kv_key, kv_records, log_records, running
from tests.server.wire.replicas import replica_of


@pytest.fixture(params=["sockets", "asyncio"])
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Bench]:
    monkeypatch.setattr(server_module, "HAS_POLLER", request.param == "sockets")
    for name, value in (("QUICK_SYNC_SECONDS", 10.0), ("LONG_SECONDS", 10.0), ("QUICK_SYNCS_MIN", 0)):
        monkeypatch.setattr(write_queue, name, value)
    with running(tmp_path, log_replica_high__watermark_checkpoint__interval="1 h") as bench:  # upkeep writes as well
        yield bench


def produce(table_id: int, records: bytes) -> pb.ProduceLogRequest:
    request = pb.ProduceLogRequest(acks=-1, table_id=table_id, timeout_ms=10_000)
    request.buckets_req.add(bucket_id=0, records=records)
    return request


def lookup(table_id: int, *keys: int) -> pb.LookupRequest:
    request = pb.LookupRequest(table_id=table_id)
    request.buckets_req.add(bucket_id=0, keys=[kv_key(key) for key in keys])
    return request


def held(bench: Bench) -> tuple[threading.Event, threading.Event]:
    """Keeps the event loop busy from the first event on, which is set then, until the second one is."""
    busy, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        busy.set()
        go_on.wait(PATIENCE)

    bench.server._running.loop.call_soon_threadsafe(wait)
    busy.wait(PATIENCE)
    return busy, go_on


def until_all_has_come(*senders: RawClient) -> None:
    """Wait until what was sent lies in the server's sockets."""

    def has_come() -> bool:
        left = [fcntl.ioctl(each.socket, termios.TIOCOUTQ, struct.pack("i", 0)) for each in senders]
        return not any(struct.unpack("i", each)[0] for each in left)

    until(has_come, "what was sent has come")


def clients(bench: Bench, count: int, stack: ExitStack) -> list[RawClient]:
    return [stack.enter_context(RawClient(bench.server.addresses.tablet_servers)) for _ in range(count)]


def test_what_many_clients_send_at_once_is_one_group_for_each_bucket(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_table, kv_table = bench.create("log", LOG_COLUMNS), bench.create("kv", KV_COLUMNS, ["id"])
    bench.append(log_table, log_records([0]))
    bench.put(kv_table, kv_records([{"id": n, "name": f"n{n}"} for n in range(5)]))
    groups: list[int] = []
    submit = BucketReplica.submit

    def noted(self: BucketReplica, command: Any, *how: Any) -> Any:
        groups.append(len(command.requests))
        return submit(self, command, *how)

    with ExitStack() as stack:
        appending, looking = clients(bench, 20, stack), clients(bench, 10, stack)
        for client in (*appending, *looking):  # each has sent a first request
            client.call(ApiKey.LOOKUP, lookup(kv_table, 1))
        monkeypatch.setattr(BucketReplica, "submit", noted)
        _, go_on = held(bench)
        appends = [client.send(ApiKey.PRODUCE_LOG, produce(log_table, log_records([1, 2]))) for client in appending]
        lookups = [client.send(ApiKey.LOOKUP, lookup(kv_table, n % 7, 0)) for n, client in enumerate(looking)]
        until_all_has_come(*appending, *looking)
        go_on.set()
        offsets = [c.receive(n).buckets_resp[0].base_offset for c, n in zip(appending, appends, strict=True)]
        assert sorted(offsets) == list(range(1, 41, 2))
        for number, (client, request_id) in enumerate(zip(looking, lookups, strict=True)):
            found, zero = client.receive(request_id).buckets_resp[0].values
            assert found.HasField("values") is (number % 7 < 5)
            if number % 7 < 5:
                assert b"n%d" % (number % 7) in found.values
            assert b"n0" in zero.values
    assert sum(groups) == 20
    assert len(groups) < 10  # asyncio accepts that a loop sees some of them later


def test_on_a_disk_without_quick_syncs_the_loop_writes_for_a_client_that_is_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("QUICK_SYNC_SECONDS", -1.0), ("LONE_SYNC_SECONDS", 10.0), ("QUICK_SYNCS_MIN", 1)):
        monkeypatch.setattr(write_queue, name, value)
    table_id = bench.create("log", LOG_COLUMNS)
    submit = BucketReplica.submit
    by_loop: list[bool] = []

    def noted(self: BucketReplica, command: Any, *how: Any) -> Any:
        results = submit(self, command, *how)
        by_loop.append(results is not None)
        return results

    monkeypatch.setattr(BucketReplica, "submit", noted)
    where = bench.server.addresses.tablet_servers
    with RawClient(where) as client, RawClient(where) as other:

        def append_until_the_loop_writes() -> None:
            monkeypatch.setattr(_poller, "_LONE_SECONDS", 0.01)
            by_loop.append(False)
            deadline = time.monotonic() + (PATIENCE if server_module.HAS_POLLER else 0.2)
            while not by_loop[-1] and time.monotonic() < deadline:
                client.call(ApiKey.PRODUCE_LOG, produce(table_id, log_records([1])))
            monkeypatch.setattr(_poller, "_LONE_SECONDS", 3600)

        append_until_the_loop_writes()
        assert by_loop[-1] is server_module.HAS_POLLER
        other.call(ApiKey.PRODUCE_LOG, produce(table_id, log_records([2])))
        assert not by_loop[-1], "another client would have waited"
        client.call(ApiKey.PRODUCE_LOG, produce(table_id, log_records([3])))
        assert not by_loop[-1]
        append_until_the_loop_writes()
        assert by_loop[-1] is server_module.HAS_POLLER


def test_frames_may_be_cut_anywhere_and_mixed_with_longer_ones(bench: Bench) -> None:
    rng = random.Random(5)
    kv_table = bench.create("kv", KV_COLUMNS, ["id"])
    bench.put(kv_table, kv_records([{"id": n, "name": f"n{n}"} for n in range(100)]))
    with RawClient(bench.server.addresses.tablet_servers) as client:
        for _ in range(6):
            expected, stream = [], b""
            for _ in range(rng.randrange(1, 40)):
                keys = [rng.randrange(120) for _ in range(rng.choice([1, 2, 300]))]
                sent = client.connection.send_request(ApiKey.LOOKUP, lookup(kv_table, *keys), (), None)
                stream += b"".join(bytes(part) for part in sent.buffers)
                expected.append((sent.request_id, keys))
            while stream:
                size = rng.choice([1, 7, 100, 5000, len(stream)])
                client.send_bytes(stream[:size])
                stream = stream[size:]
            for request_id, keys in expected:
                values = client.receive(request_id).buckets_resp[0].values
                assert [value.HasField("values") for value in values] == [key < 100 for key in keys]


def test_a_bucket_that_opens_during_a_round_takes_no_write_before_those_that_wait_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opened_in_a_moment(self: ServerContext, bucket: TableBucket) -> BucketReplica:
        replica = self.replicas.begin(bucket)
        await asyncio.sleep(0)
        return replica

    table_id = bench.create("log", LOG_COLUMNS, buckets=2)
    client = bench.tablet
    client.call(ApiKey.API_VERSIONS, pb.ApiVersionsRequest(client_software_name="t", client_software_version="1"))
    monkeypatch.setattr(ServerContext, "_begin_opened", opened_in_a_moment)
    both = produce(table_id, log_records([1]))
    both.buckets_req.add(bucket_id=1, records=log_records([1]))
    requests = [both, *[produce(table_id, log_records([2, 3])) for _ in range(3)]]
    sent = [client.connection.send_request(ApiKey.PRODUCE_LOG, request, (), None) for request in requests]
    client.send_bytes(b"".join(bytes(part) for each in sent for part in each.buffers))
    assert [client.receive(each.request_id).buckets_resp[0].base_offset for each in sent] == [0, 1, 3, 5]


def test_a_key_that_is_none_is_refused_and_others_of_its_group_are_served(bench: Bench) -> None:
    from forebay.metadata import types

    table_id = bench.create("floats", {"k": types.double().not_null(), "v": types.string()}, ["k"])
    bench.lookup(table_id, [struct.pack("<d", 1.0)])
    with ExitStack() as stack:
        good, bad = clients(bench, 2, stack)
        requests = []
        for key in (struct.pack("<d", -0.0), b"x"):
            request = pb.LookupRequest(table_id=table_id)
            request.buckets_req.add(bucket_id=0, keys=[key])
            requests.append(request)
        for client in (good, bad):
            client.call(ApiKey.LOOKUP, requests[0])
        _, go_on = held(bench)
        sent = [good.send(ApiKey.LOOKUP, requests[0]), bad.send(ApiKey.LOOKUP, requests[1])]
        until_all_has_come(good, bad)
        go_on.set()
        (answer,) = good.receive(sent[0]).buckets_resp
        assert not answer.error_code
        assert [value.HasField("values") for value in answer.values] == [False]
        (refused,) = bad.receive(sent[1]).buckets_resp
        assert refused.error_code


def test_a_client_that_has_said_all_gets_every_answer_and_the_end(bench: Bench) -> None:
    table_id = bench.create("log", LOG_COLUMNS)
    bench.append(table_id, log_records([0]))
    while not replica_of(
        bench, table_id
    ).is_idle:  # what waits for a write queue when a client ends is written, not answered
        time.sleep(0.001)
    with RawClient(bench.server.addresses.tablet_servers) as client:
        sent = [client.send(ApiKey.PRODUCE_LOG, produce(table_id, log_records([n]))) for n in range(50)]
        client.socket.shutdown(socket.SHUT_WR)
        assert [client.receive(each).buckets_resp[0].base_offset for each in sent] == list(range(1, 51))
        assert client.socket.recv(10) == b""


def test_a_client_that_does_not_read_is_not_read_from_and_loses_nothing(bench: Bench) -> None:
    table_id = bench.create("log", LOG_COLUMNS)
    for _ in range(8):
        bench.append(table_id, log_records(range(20_000)))
    with RawClient(bench.server.addresses.tablet_servers, timeout=PATIENCE) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        requests = [
            client.send(ApiKey.FETCH_LOG, bench.fetch_request(table_id, 20_000 * n, bytes_max=1 << 20))
            for n in range(8)
        ]
        small = client.send(ApiKey.PRODUCE_LOG, produce(table_id, log_records([7])))
        sizes = [len(client.receive(each).tables_resp[0].buckets_resp[0].records) for each in requests]
        assert len(sizes) == 8
        assert min(sizes) > 10_000
        assert client.receive(small).buckets_resp[0].base_offset == 160_000


def test_a_connection_that_is_reset_is_forgotten(bench: Bench) -> None:
    table_id = bench.create("log", LOG_COLUMNS)
    before = len(bench.server.server.connections)
    for _ in range(5):
        client = RawClient(bench.server.addresses.tablet_servers)
        for n in range(20):
            client.send(ApiKey.PRODUCE_LOG, produce(table_id, log_records([n])))
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    connections = bench.server.server.connections
    until(
        lambda: len(connections) == before and not connections.memory_pools.requests.used,
        "the connections are forgotten",
    )
    assert bench.append(table_id, log_records([1])).error_code == 0


def test_many_large_answers_of_a_round_are_sent_before_it_ends(bench: Bench) -> None:
    table_id = bench.create("kv", KV_COLUMNS, ["id"])
    names = {n: f"{n}" * 15_000 for n in range(10)}
    bench.put(table_id, kv_records([{"id": n, "name": name} for n, name in names.items()]))
    with ExitStack() as stack:
        looking = clients(bench, 8, stack)
        for client in looking:
            client.call(ApiKey.LOOKUP, lookup(table_id, 1))
        _, go_on = held(bench)
        sent = [
            (client, [client.send(ApiKey.LOOKUP, lookup(table_id, n % 10)) for n in range(60)]) for client in looking
        ]
        go_on.set()
        for client, request_ids in sent:
            for number, request_id in enumerate(request_ids):
                (value,) = client.receive(request_id).buckets_resp[0].values
                assert names[number % 10].encode() in value.values


def test_a_request_id_that_is_used_again_before_its_answer_ends_the_connection(bench: Bench) -> None:
    table_id = bench.create("log", LOG_COLUMNS)
    with RawClient(bench.server.addresses.tablet_servers) as client:
        client.call(ApiKey.LIST_DATABASES, pb.ListDatabasesRequest())
        poll = client.connection.send_request(
            ApiKey.FETCH_LOG, bench.fetch_request(table_id, 0, wait_ms=60_000), (), None
        )
        again = client.connection.send_request(ApiKey.PRODUCE_LOG, produce(table_id, log_records([1])), (), None)
        first = b"".join(bytes(part) for part in poll.buffers)
        second = bytearray(b"".join(bytes(part) for part in again.buffers))
        second[8:12] = poll.request_id.to_bytes(4, "big")
        client.send_bytes(first)
        client.send_bytes(bytes(second))
        assert client.socket.recv(100) == b""


def test_the_loop_is_told_when_a_protocol_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forebay.server.wire.rpc import RpcProtocol

    class _Bug(Exception):
        pass

    def fails(self: RpcProtocol, nbytes: int) -> None:
        raise _Bug

    with running(tmp_path) as bench:
        contexts: list[dict[str, Any]] = []
        bench.server._running.loop.call_soon_threadsafe(
            bench.server._running.loop.set_exception_handler, lambda loop, context: contexts.append(context)
        )
        monkeypatch.setattr(RpcProtocol, "buffer_updated", fails)
        with socket.create_connection(address(bench.server.addresses.tablet_servers)) as client:
            client.settimeout(PATIENCE)
            client.sendall(b"12345678")
            try:
                assert client.recv(10) == b""
            except ConnectionResetError:
                pass
        monkeypatch.undo()
        assert [type(context["exception"]) for context in contexts] == [_Bug]
