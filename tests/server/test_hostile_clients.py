"""Hostile clients, at a small scale: limits are set so low that a few connections reach them.

`make hostile-clients` does the same at full scale against a server process, and measures
(tests/reliability/hostile_clients.py).
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pyarrow as pa
import pytest

import forebay
from forebay.base.ambient import ManualClock
from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest, Unavailable
from forebay.codec.log.log_batch import build_arrow_batch
from forebay.kv.tablet import KvTablet
from forebay.log.tablet import LogTablet
from forebay.metadata import json_serde
from forebay.metadata.table import TableBucket
from forebay.server import server
from forebay.server.connections import FIRST_FRAME_BYTES_MAX
from forebay.server.embedded import EmbeddedServer
from forebay.server.handlers import fetch
from forebay.server.metadata.table_rules import COLUMNS_MAX
from forebay.server.server import Injected
from forebay.server.wire import rpc
from tests.patience import PATIENCE, until
from tests.server.raw_client import ApiKey, PlainClient, RawClient, address, is_closed_by_peer, pb
from tests.server.running import KV_COLUMNS, LOG_COLUMNS, LOG_SCHEMA, Bench, kv_key, kv_records, log_records, running

MEGABYTE = 1 << 20


def frame(key: int, request_id: int, body: bytes, length: int | None = None) -> bytes:
    """A request as bytes; `length` announces another length of its body than it has."""
    return struct.pack(">ihhi", 8 + (len(body) if length is None else length), key, 0, request_id) + body


def receiving(bench: Bench):
    return bench.server.server.connections.memory_pools.requests


def answering(bench: Bench):
    return bench.server.server.connections.memory_pools.responses


def stored_log(bench: Bench, name: str, megabytes: int) -> int:
    created = bench.create(name, LOG_COLUMNS)
    for number in range(megabytes):
        text = os.urandom(MEGABYTE // 2).hex()
        batch = pa.RecordBatch.from_pydict({"a": [number], "s": [text]}, schema=LOG_SCHEMA)
        bench.append(created, bytes(build_arrow_batch(batch, schema_id=1)))
    return created


@contextmanager
def unfinished_puts(bench: Bench, count: int, announced: int, sent: int) -> Iterator[list[RawClient]]:
    """Clients that have begun a large request and do not go on."""
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(bench.server.addresses.tablet_servers)) for _ in range(count)]
        for client in clients:
            client.socket.setblocking(False)
            data = frame(ApiKey.PUT_KV, 77, bytes(sent), length=announced)
            try:
                while data:
                    data = data[client.socket.send(data) :]
            except BlockingIOError:
                pass  # the server has stopped reading
            client.socket.settimeout(PATIENCE)
        yield clients


# ---- memory ---------------------------------------------------------------------------------------------------------


def put_patiently(bench: Bench, table: int, records: bytes) -> None:
    """A put as clients do it: it is sent again if the server had no memory for it, which a busy machine may cause."""

    def is_put() -> bool:
        try:
            return not bench.put(table, records).error_code
        except Unavailable:
            return False

    until(is_put, "an honest client is served")


def is_fetched(bench: Bench, request: pb.FetchLogRequest) -> bool:
    """Whether the megabytes of a fetch come; not if the server had no memory for them in time."""
    try:
        (answer,) = bench.tablet.call(ApiKey.FETCH_LOG, request).tables_resp[0].buckets_resp
    except Unavailable:
        return False
    return len(answer.records) > 5 * MEGABYTE


def test_unfinished_requests_of_all_clients_share_one_budget_and_others_are_served(tmp_path, caplog):
    with running(tmp_path / "data", server_connections_memory="4mb", server_connections_memory__wait="100 ms") as bench:
        table = bench.create("t", KV_COLUMNS, ["id"])
        with caplog.at_level(logging.WARNING), unfinished_puts(bench, 20, 1900_000, 1_000_000) as hoarders:
            until(lambda: receiving(bench).used > MEGABYTE, "nothing was received")
            for i in range(5):
                put_patiently(bench, table, kv_records([{"id": i, "name": "x" * 500_000}]))
                assert receiving(bench).used <= receiving(bench).limit + MEGABYTE  # the one being handed over
            assert bench.lookup(table, [kv_key(1)]).values[0].HasField("values")
            assert "abandoning an unfinished request" in caplog.text
            until(lambda: any(_answer_code(each.socket) is not None for each in hoarders), "no client was told")
        until(lambda: receiving(bench).used == 0, "memory of clients that are gone is not given back")


def _answer_code(sock: socket.socket) -> int | None:
    """The error code that has come on a connection; None if nothing has."""
    sock.settimeout(0.05)
    try:
        data = sock.recv(1 << 16)
    except TimeoutError:
        return None
    assert data[4] == 1  # an error frame, for the request that was begun
    assert struct.unpack_from(">i", data, 5)[0] == 77
    error = pb.ErrorResponse.FromString(data[9:])
    assert "server.connections.memory" in error.error_message
    assert error.error_code == ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION
    return int(error.error_code)


def test_a_request_that_was_given_up_leaves_its_connection_usable(tmp_path):
    with running(tmp_path / "data", server_connections_memory="4mb", server_connections_memory__wait="50 ms") as bench:
        table = bench.create("t", KV_COLUMNS, ["id"])
        with unfinished_puts(bench, 1, 1_900_000, 1_500_000) as (hoarder,):
            until(lambda: receiving(bench).used > 1_500_000, "nothing was received")
            put_patiently(bench, table, kv_records([{"id": 1, "name": "x" * 900_000}]))
            until(lambda: _answer_code(hoarder.socket) is not None, "the client is told")
            hoarder.socket.settimeout(PATIENCE)
            hoarder.send_bytes(bytes(400_000))  # the rest of what was given up
            assert hoarder.call(ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss")).exists


def test_a_request_as_long_as_its_half_of_the_budget_is_served(tmp_path):
    with running(tmp_path / "data", server_connections_memory="4mb") as bench:
        table = bench.create("t", KV_COLUMNS, ["id"])
        records = kv_records([{"id": 1, "name": "x" * (2 * MEGABYTE - 1000)}])
        assert not bench.put(table, records).error_code
        too_long = kv_records([{"id": 1, "name": "x" * (2 * MEGABYTE + 1000)}])
        with pytest.raises((ForebayError, ConnectionError)):
            bench.put(table, too_long)


def test_answers_that_are_not_taken_share_one_budget_and_the_slowest_clients_are_closed(tmp_path, caplog):
    with running(
        tmp_path / "data", server_connections_memory="32mb", server_connections_memory__wait="200 ms"
    ) as bench:
        table = stored_log(bench, "t", 6)
        request = bench.fetch_request(table, 0, bytes_max=6 * MEGABYTE)
        with ExitStack() as stack, caplog.at_level(logging.WARNING):
            slow = [stack.enter_context(RawClient(bench.server.addresses.tablet_servers)) for _ in range(12)]
            for client in slow:
                for _ in range(3):
                    client.send(ApiKey.FETCH_LOG, request)
            until(lambda: answering(bench).used > 8 * MEGABYTE, "no answers wait")
            for _ in range(3):
                until(lambda: is_fetched(bench, request), "an honest client is served")
                # The pools, and what the one answer in the making may have been underestimated by.
                assert answering(bench).used < answering(bench).limit + 8 * MEGABYTE
            assert "does not read its responses" in caplog.text
        until(lambda: answering(bench).used == 0, "memory of clients that are gone is not given back")


def test_of_large_answers_that_are_not_taken_two_are_made_and_the_others_wait(tmp_path):
    with running(tmp_path / "data", server_connections_memory="512mb") as bench:
        request = bench.fetch_request(stored_log(bench, "t", 6), 0, bytes_max=6 * MEGABYTE)
        with RawClient(bench.server.addresses.tablet_servers) as slow:
            polls = [slow.connection.send_request(ApiKey.FETCH_LOG, request, (), None) for _ in range(8)]
            slow.send_bytes(b"".join(bytes(buffer) for sent in polls for buffer in sent.buffers))
            until(lambda: answering(bench).used > 0, "no answer waits")
            for _ in range(8):  # others are served meanwhile
                assert bench.tablet.call(ApiKey.FETCH_LOG, request).tables_resp[0].buckets_resp[0].records
            assert max(each.unsent_bytes for each in bench.server.server.connections) < 13 * MEGABYTE
            until(lambda: answering(bench).used < 13 * MEGABYTE, "answers are counted while they wait and as made")
            for poll in polls:
                assert len(slow.receive(poll.request_id).tables_resp[0].buckets_resp[0].records) > 5 * MEGABYTE


def test_requests_without_records_may_not_be_as_long_as_others_and_the_connection_continues(tmp_path):
    with (
        running(tmp_path / "data", server_request_max__control__size="100kb") as bench,
        RawClient(bench.server.addresses.tablet_servers) as client,
    ):
        before = receiving(bench).used
        for size in (20_000, 60_000, 100_000):  # small, in a buffer of its own, dropped while it comes
            names = [pb.PbTablePath(database_name="fluss", table_name="x" * 100)] * (size // 100)
            request_id = client.send(ApiKey.GET_METADATA, pb.MetadataRequest(table_path=names))
            with pytest.raises(ForebayError) as refused:
                client.receive(request_id)
            if size == 100_000:
                assert refused.value.code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
                assert "server.request.max-control-size" in str(refused.value)
            else:
                assert refused.value.code == ErrorCode.TABLE_NOT_EXIST
        assert client.call(ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss")).exists
        assert receiving(bench).used == before


@pytest.mark.parametrize("api", [ApiKey.PUT_KV, ApiKey.PRODUCE_LOG])
def test_a_request_of_very_many_tiny_writes_is_refused_before_it_is_parsed(tmp_path, api):
    with running(tmp_path / "data", server_request_max__items="1000") as bench:
        entry = b"\x22\0" if api is ApiKey.PRODUCE_LOG else b"\x2a\0"
        body = pb.PutKvRequest(acks=-1, table_id=1, timeout_ms=1).SerializeToString() + entry * 50_000
        bench.tablet.send_bytes(frame(api, 0, body))
        bench.tablet.connection._in_flight[0] = _in_flight(api)
        with pytest.raises(ForebayError) as refused:
            bench.tablet.receive(0)
        assert refused.value.code == ErrorCode.BUCKET_MAX_NUM_EXCEPTION
        assert "1000" in str(refused.value)


def _in_flight(api: ApiKey):
    from forebay.protocol.api import APIS
    from forebay.protocol.connection import InFlight

    return InFlight(APIS[api], 0)


# ---- turns ----------------------------------------------------------------------------------------------------------


def test_a_client_that_pipelines_and_never_reads_is_served_no_more_than_its_buffers_hold(tmp_path):
    with running(tmp_path / "data") as bench:
        flood = frame(ApiKey.DATABASE_EXISTS, 0, pb.DatabaseExistsRequest(database_name="f").SerializeToString())
        with ExitStack() as stack:
            greedy = [stack.enter_context(RawClient(bench.server.addresses.tablet_servers)) for _ in range(3)]
            for client in greedy:
                client.socket.setblocking(False)
                for first in range(0, 50_000, 5000):
                    batch = b"".join(flood[:8] + struct.pack(">i", 10 + first + i) + flood[12:] for i in range(5000))
                    try:
                        client.socket.sendall(batch)
                    except BlockingIOError:
                        break
            for _ in range(10):
                with RawClient(bench.server.addresses.tablet_servers) as modest:
                    assert modest.call(ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss")).exists
            for each in list(bench.server.server.connections):
                assert each.unsent_bytes < MEGABYTE


def test_a_client_that_pipelines_and_never_reads_is_not_read_from_without_end(tmp_path):
    question = pb.ApiVersionsRequest(client_software_name="f" * 1000, client_software_version="1")
    flood = frame(ApiKey.API_VERSIONS, 0, question.SerializeToString())
    with running(tmp_path / "data") as bench, RawClient(bench.server.addresses.tablet_servers) as greedy:
        greedy.socket.settimeout(2)

        def send_on() -> None:
            for number in range(200_000):
                greedy.send_bytes(flood[:8] + struct.pack(">i", 10 + number) + flood[12:])

        with pytest.raises(TimeoutError):
            send_on()


def test_pipelined_requests_are_all_answered_in_the_end_in_order(tmp_path):
    with running(tmp_path / "data") as bench, RawClient(bench.server.addresses.tablet_servers) as client:
        request = pb.DatabaseExistsRequest(database_name="fluss")
        ids = [client.send(ApiKey.DATABASE_EXISTS, request) for _ in range(1500)]
        assert all(client.receive(request_id).exists for request_id in ids)


def test_a_connection_with_too_many_open_requests_continues_when_they_have_ended(tmp_path):
    with (
        running(tmp_path / "data", netty_server_max__queued__requests="4") as bench,
        RawClient(bench.server.addresses.tablet_servers) as client,
    ):
        table = bench.create("t", LOG_COLUMNS)
        polls = [client.send(ApiKey.FETCH_LOG, bench.fetch_request(table, 0, wait_ms=100)) for _ in range(4)]
        question = client.send(ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss"))
        assert client.receive(question).exists
        for poll in polls:
            assert not client.receive(poll).tables_resp[0].buckets_resp[0].error_code


def test_writes_that_were_answered_before_they_were_made_do_not_count_as_open_requests(tmp_path, monkeypatch):
    may_write = threading.Event()
    append = LogTablet.append_as_leader

    def append_later(tablet, records):
        assert may_write.wait(PATIENCE)
        return append(tablet, records)

    monkeypatch.setattr(LogTablet, "append_as_leader", append_later)
    with (
        running(tmp_path / "data", netty_server_max__queued__requests="4") as bench,
        RawClient(bench.server.addresses.tablet_servers, timeout=PATIENCE) as client,
    ):
        write = pb.ProduceLogRequest(acks=0, table_id=bench.create("t", LOG_COLUMNS), timeout_ms=10_000)
        write.buckets_req.add(bucket_id=0, records=log_records([1]))
        key, exists = ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss")
        sent = [client.connection.send_request(ApiKey.PRODUCE_LOG, write, (), None) for _ in range(6)]
        sent.append(client.connection.send_request(key, exists, (), None))
        client.send_bytes(b"".join(bytes(buffer) for each in sent for buffer in each.buffers))
        try:
            assert client.receive(sent[-1].request_id).exists
        finally:
            may_write.set()


def test_requests_that_wait_for_their_turn_when_the_stream_ends_are_served(tmp_path):
    with running(tmp_path / "data") as bench, RawClient(bench.server.addresses.tablet_servers) as client:
        request = pb.DatabaseExistsRequest(database_name="fluss")
        ids = [client.connection.send_request(ApiKey.DATABASE_EXISTS, request, (), None) for _ in range(500)]
        client.send_bytes(b"".join(bytes(buffer) for sent in ids for buffer in sent.buffers))
        client.socket.shutdown(socket.SHUT_WR)
        assert all(client.receive(sent.request_id).exists for sent in ids)


# ---- connections ----------------------------------------------------------------------------------------------------


def test_connections_beyond_the_limit_are_refused_with_an_error_that_clients_show(tmp_path, caplog):
    with (
        caplog.at_level(logging.WARNING),
        running(tmp_path / "data", server_connections_max="6") as bench,
        ExitStack() as stack,
    ):
        where = bench.server.addresses.tablet_servers
        clients = [stack.enter_context(RawClient(where)) for _ in range(4)]
        for _ in range(3):
            with pytest.raises(ConnectionError, match=r"server\.connections\.max"):
                RawClient(where)
        assert caplog.text.count("refusing a connection") == 1  # not a line for each
        with pytest.raises(ForebayError, match=r"server\.connections\.max"):
            forebay.connect(bench.server.bootstrap_servers, retry_timeout="300 ms").list_databases()
        clients.pop().close()
        until(lambda: len(bench.server.server.connections) < 6, "a closed connection is still counted")
        stack.enter_context(RawClient(where))


@pytest.mark.parametrize("sasl", [False, True])
def test_silent_connections_make_room_for_new_ones_and_known_ones_stay(tmp_path, sasl):
    settings = {"security.sasl.plain.credentials": "a:b", "server.connections.max": "6"}
    with EmbeddedServer(tmp_path / "data", sasl=sasl, settings=settings) as server, ExitStack() as stack:
        where = server.addresses.sasl_bootstrap_servers if sasl else server.bootstrap_servers
        credentials = PlainClient("a", "b") if sasl else None
        known = [stack.enter_context(RawClient(where, credentials)) for _ in range(2)]
        silent = [stack.enter_context(socket.create_connection(address(where), PATIENCE)) for _ in range(4)]
        until(lambda: len(server.server.connections) == 6, "the silent connections are not let in")
        known += [stack.enter_context(RawClient(where, credentials)) for _ in range(2)]
        assert all(is_closed_by_peer(sock) for sock in silent[:2])
        exists = pb.DatabaseExistsRequest(database_name="fluss")
        assert all(client.call(ApiKey.DATABASE_EXISTS, exists).exists for client in known)
        assert len(server.server.connections) == 6
        known += [stack.enter_context(RawClient(where, credentials)) for _ in range(2)]
        with pytest.raises(ConnectionError, match=r"server\.connections\.max"):
            RawClient(where, credentials)
        assert all(client.call(ApiKey.DATABASE_EXISTS, exists).exists for client in known)


def test_one_address_may_have_fewer_connections_than_all_together(tmp_path):
    with (
        running(tmp_path / "data", server_connections_max__per__address="3") as bench,
        RawClient(bench.server.addresses.tablet_servers),
        pytest.raises(ConnectionError, match=r"from 127\.0\.0\.1"),
    ):
        RawClient(bench.server.addresses.tablet_servers)


def test_refused_connections_are_let_go_of_although_the_client_keeps_them(tmp_path):
    with running(tmp_path / "data", server_connections_max="2") as bench, ExitStack() as stack:
        where = address(bench.server.addresses.tablet_servers)
        refused = [stack.enter_context(socket.create_connection(where)) for _ in range(100)]
        for each in refused:
            each.settimeout(PATIENCE)
            assert is_closed_by_peer(each)


def test_a_server_that_stops_closes_refused_connections_too(tmp_path):
    with running(tmp_path / "data", server_connections_max="2") as bench:
        transports = bench.server.server._connections.refused
        with ExitStack() as stack:
            where = address(bench.server.addresses.tablet_servers)
            refused = [stack.enter_context(socket.create_connection(where)) for _ in range(4)]
            for each in refused:
                each.settimeout(PATIENCE)
                assert is_closed_by_peer(each)
            until(lambda: bool(transports), "a connection that was refused and is open still")
            held = list(transports)
            bench.server.stop()
            assert all(transport.is_closing() and transport.fd < 0 for transport in held)


def test_a_server_that_stops_closes_a_connection_whose_client_does_not_take_small_responses(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_DRAIN_SECONDS", 0.05)
    with running(tmp_path / "data") as bench:
        table = bench.create("t", LOG_COLUMNS)
        batch = pa.RecordBatch.from_pydict({"a": [1], "s": [os.urandom(50_000).hex()]}, schema=LOG_SCHEMA)
        bench.append(table, bytes(build_arrow_batch(batch, schema_id=1)))
        request = bench.fetch_request(table, 0, bytes_max=MEGABYTE)
        with RawClient(bench.server.addresses.tablet_servers) as slow:
            slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer = slow.socket.getsockname()
            transport, connection = next(
                (each._transport, each)
                for each in bench.server.server.connections
                if each._transport.get_extra_info("peername") == peer
            )
            transport.set_write_buffer_limits(high=8 * MEGABYTE)  # for such a transport the responses are small
            with socket.socket(fileno=os.dup(transport.fd)) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            for _ in range(10):
                slow.send(ApiKey.FETCH_LOG, request)
            until(lambda: transport.get_write_buffer_size() > 0, "all responses were taken")
            assert not connection.unsent_bytes
            bench.server.stop()
            assert transport.fd < 0


def test_a_refused_connection_ends_although_its_client_continues_sending(tmp_path, monkeypatch):
    monkeypatch.setattr(rpc, "_REFUSAL_SECONDS", 0.01)
    with (
        running(tmp_path / "data", server_connections_max="2") as bench,
        socket.create_connection(address(bench.server.addresses.tablet_servers)) as refused,
    ):
        refused.settimeout(PATIENCE)
        assert is_closed_by_peer(refused)

        def is_gone() -> bool:
            try:
                refused.sendall(b"x")
            except OSError:
                return True
            return False

        until(is_gone, "the end of the refused connection")
        assert bench.server.server.connections.refused == set()


@pytest.mark.parametrize("sasl", [False, True])
def test_a_first_request_is_short_and_longer_ones_end_the_connection(tmp_path, sasl):
    settings = {"security.sasl.plain.credentials": "admin:secret"} if sasl else {}
    with EmbeddedServer(tmp_path / "data", sasl=sasl, settings=settings) as server:
        where = server.addresses.sasl_bootstrap_servers or server.bootstrap_servers
        with socket.create_connection(address(where)) as client:
            client.sendall(frame(ApiKey.AUTHENTICATE, 0, b"", length=FIRST_FRAME_BYTES_MAX))
            assert is_closed_by_peer(client)
        credentials = PlainClient("admin", "secret") if sasl else None
        with RawClient(where, credentials) as client:  # afterwards they may be longer
            descriptor = pb.CreateTableRequest(
                table_path=pb.PbTablePath(database_name="fluss", table_name="t"),
                table_json=b" " * FIRST_FRAME_BYTES_MAX,
                ignore_if_exists=False,
            )
            with pytest.raises(ForebayError, match="JSON"):
                client.call(ApiKey.CREATE_TABLE, descriptor)


def test_a_client_that_does_not_log_in_is_closed(tmp_path):
    clock = ManualClock()
    settings = {"security.sasl.plain.credentials": "a:b", "server.connections.login-timeout": "10 ms"}
    with EmbeddedServer(tmp_path / "data", sasl=True, settings=settings, injected=Injected(clock=clock)) as server:
        where = server.addresses.sasl_bootstrap_servers
        assert where
        with RawClient(where) as idle, RawClient(where, PlainClient("a", "b")) as known:
            until(lambda: len(list(server.server.connections)) == 2, "a connection is not accepted")
            clock.advance(1)
            idle.socket.settimeout(PATIENCE)
            assert is_closed_by_peer(idle.socket)
            assert known.call(ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss")).exists


# ---- lists ----------------------------------------------------------------------------------------------------------


def test_what_a_list_names_twice_is_answered_once(tmp_path):
    with running(tmp_path / "data") as bench:
        log = bench.create("l", LOG_COLUMNS, buckets=3)
        keyed = bench.create("k", KV_COLUMNS, ["id"], buckets=3)
        other = bench.create("o", LOG_COLUMNS)
        bench.append(log, log_records([1, 2]), bucket=2)
        bench.append(other, log_records([3]))

        paths = [bench.path("l"), bench.path("k")] * 2000
        metadata = bench.tablet.call(ApiKey.GET_METADATA, pb.MetadataRequest(table_path=paths))
        assert [table.table_id for table in metadata.table_metadata] == [log, keyed]
        assert [len(table.bucket_metadata) for table in metadata.table_metadata] == [3, 3]

        offsets = pb.ListOffsetsRequest(follower_server_id=-1, offset_type=1, table_id=log, bucket_id=[2, 0, 9] * 999)
        answers = bench.tablet.call(ApiKey.LIST_OFFSETS, offsets).buckets_resp
        assert [(each.bucket_id, each.offset, each.error_code) for each in answers] == [
            (2, 2, 0),
            (0, 0, 0),
            (9, 0, ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION),
        ]

        statistics = pb.GetTableStatsRequest(table_id=log)
        for _ in range(500):
            statistics.buckets_req.add(bucket_id=2)
        assert [each.row_count for each in bench.tablet.call(ApiKey.GET_TABLE_STATS, statistics).buckets_resp] == [2]

        fetch = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1 << 20, max_wait_ms=0)
        for _ in range(200):  # tables take turns: answers still belong to their tables
            for table_id, bucket in ((log, 2), (other, 0), (log, 0)):
                table = fetch.tables_req.add(table_id=table_id, projection_pushdown_enabled=False)
                table.buckets_req.add(bucket_id=bucket, fetch_offset=0, max_fetch_bytes=1 << 20)
        tables = bench.tablet.call(ApiKey.FETCH_LOG, fetch).tables_resp
        assert [table.table_id for table in tables] == [log, other]
        assert [[each.high_watermark for each in table.buckets_resp] for table in tables] == [[2, 0], [1]]
        one = bench.fetch(log, 0, bucket=2)
        assert [len(each.records) for table in tables for each in table.buckets_resp] == [
            len(one.records),
            0,
            len(bench.fetch(other, 0).records),
        ]


def test_keys_that_a_lookup_names_twice_are_answered_at_each_place_and_read_once(tmp_path, monkeypatch):
    with running(tmp_path / "data") as bench:
        table = bench.create("k", KV_COLUMNS, ["id"])
        for i in range(3):
            assert not bench.put(table, kv_records([{"id": i, "name": "x" * 10}])).error_code
        asked: list[int] = []
        real = KvTablet.lookup
        monkeypatch.setattr(KvTablet, "lookup", lambda self, keys: asked.append(len(keys)) or real(self, keys))
        keys = [kv_key(i) for i in (0, 7, 2)] * 1000
        values = bench.lookup(table, keys).values
        assert [value.HasField("values") for value in values] == [True, False, True] * 1000
        assert values[0].values == values[3].values != values[2].values
        assert sum(asked) == 3


def test_lists_beyond_the_limit_are_refused_whatever_they_name(tmp_path):
    with running(tmp_path / "data", server_request_max__items="1000") as bench:
        table = bench.create("l", LOG_COLUMNS, buckets=600)
        keyed = bench.create("k", KV_COLUMNS, ["id"])
        day = bench.create("p", {**LOG_COLUMNS, "day": LOG_COLUMNS["s"]}, partition_keys=["day"], buckets=3)
        assert bench.create("m", LOG_COLUMNS, buckets=600)
        fetch = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1 << 20)
        of_table = fetch.tables_req.add(table_id=table, projection_pushdown_enabled=False)
        lookup, prefixes = pb.LookupRequest(table_id=keyed), pb.PrefixLookupRequest(table_id=keyed)
        statistics = pb.GetTableStatsRequest(table_id=table)
        heartbeat = pb.LakeTieringHeartbeatRequest()
        prepare = pb.PrepareLakeTableSnapshotRequest()
        commit = pb.CommitLakeTableSnapshotRequest()
        lookup.buckets_req.add(bucket_id=0, keys=[kv_key(1)] * 1001)
        prefixes.buckets_req.add(bucket_id=0, keys=[b"x"] * 1001)
        for number in range(1001):
            of_table.buckets_req.add(bucket_id=number, fetch_offset=0, max_fetch_bytes=1)
            statistics.buckets_req.add(bucket_id=number)
            heartbeat.failed_tables.add(table_id=number, coordinator_epoch=1, tiering_epoch=1)
            prepare.bucket_offsets.add(table_id=number, table_path=bench.path("x"))
            commit.lake_table_snapshot_metadata.add(table_id=number, snapshot_id=1, tiered_bucket_offsets_file_path="x")
        buckets = list(range(1001))
        for role, api, request in (
            (bench.tablet, ApiKey.GET_METADATA, pb.MetadataRequest(table_path=[bench.path("l")] * 1001)),
            (bench.tablet, ApiKey.GET_METADATA, pb.MetadataRequest(table_path=[bench.path("l"), bench.path("m")])),
            (bench.tablet, ApiKey.GET_METADATA, pb.MetadataRequest(partitions_id=buckets)),
            (bench.tablet, ApiKey.FETCH_LOG, fetch),
            (bench.tablet, ApiKey.LOOKUP, lookup),
            (bench.tablet, ApiKey.PREFIX_LOOKUP, prefixes),
            (bench.tablet, ApiKey.GET_TABLE_STATS, statistics),
            (bench.tablet, ApiKey.OPEN_TABLE_SNAPSHOT, pb.OpenTableSnapshotRequest(table_id=day, partition_id=buckets)),
            (
                bench.tablet,
                ApiKey.LIST_OFFSETS,
                pb.ListOffsetsRequest(follower_server_id=-1, offset_type=1, table_id=table, bucket_id=buckets),
            ),
            (bench.coordinator, ApiKey.LAKE_TIERING_HEARTBEAT, heartbeat),
            (bench.coordinator, ApiKey.PREPARE_LAKE_TABLE_SNAPSHOT, prepare),
            (bench.coordinator, ApiKey.COMMIT_LAKE_TABLE_SNAPSHOT, commit),
        ):
            with pytest.raises(ForebayError, match=r"server\.request\.max-items") as refused:
                role.call(api, request)
            assert refused.value.code == ErrorCode.BUCKET_MAX_NUM_EXCEPTION


def test_answers_beyond_their_size_are_refused(tmp_path):
    with running(tmp_path / "data", server_request_max__answer__size="100kb") as bench:
        table = bench.create("k", KV_COLUMNS, ["id"], engine="lmdb")
        for i in range(4):
            assert not bench.put(table, kv_records([{"id": i, "name": os.urandom(30_000).hex()}])).error_code
        assert bench.lookup(table, [kv_key(0)]).values[0].HasField("values")
        refused = [bench.lookup(table, [kv_key(0), kv_key(1)]), bench.lookup(table, [kv_key(0)] * 1000)]
        prefixes = pb.PrefixLookupRequest(table_id=table)
        prefixes.buckets_req.add(bucket_id=0, keys=[b""])
        refused.append(bench.tablet.call(ApiKey.PREFIX_LOOKUP, prefixes).buckets_resp[0])
        for limit in (2, (1 << 31) - 1):
            scan = pb.LimitScanRequest(table_id=table, bucket_id=0, limit=limit)
            refused.append(bench.tablet.call(ApiKey.LIMIT_SCAN, scan))
        for answer in refused:
            assert answer.error_code, answer
            assert "server.request.max-answer-size" in answer.error_message
            assert answer.ByteSize() < 1000, "a part of the answer comes with the error"
        fetched = bench.fetch(table, 0, bytes_max=(1 << 31) - 1)  # has to go on: what fits, one batch at least
        assert 60_000 < len(fetched.records) < 130_000


def test_a_write_of_very_many_buckets_is_answered_bucket_by_bucket_and_not_overtaken(tmp_path):
    with running(tmp_path / "data") as bench:
        table = bench.create("l", LOG_COLUMNS, buckets=2)
        named = [0, *range(5000, 6000), 1]
        request = pb.ProduceLogRequest(acks=1, table_id=table, timeout_ms=10_000)
        for bucket in named:
            request.buckets_req.add(bucket_id=bucket, records=log_records([1]))
        first = bench.tablet.send(ApiKey.PRODUCE_LOG, request)
        later = pb.ProduceLogRequest(acks=1, table_id=table, timeout_ms=10_000)
        later.buckets_req.add(bucket_id=1, records=log_records([2]))
        second = bench.tablet.send(ApiKey.PRODUCE_LOG, later)
        assert bench.tablet.receive(second).buckets_resp[0].base_offset == 1
        answers = bench.tablet.receive(first).buckets_resp
        assert [each.bucket_id for each in answers] == named
        assert (answers[0].error_code, answers[-1].error_code) == (0, 0)
        assert {each.error_code for each in answers[1:-1]} == {ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION}


def test_open_long_polls_cannot_keep_others_out(tmp_path, caplog):
    """Their memory is counted; the connection that has the most loses it when others have to wait for too long."""
    with running(tmp_path / "data", server_connections_memory="4mb", server_connections_memory__wait="100 ms") as bench:
        table = bench.create("l", LOG_COLUMNS)
        request = bench.fetch_request(table, 0, wait_ms=600_000)
        request.tables_req[0].filter_predicate.CopyFrom(pb.PbPredicate(type=9))
        request.tables_req[0].filter_predicate.leaf.CopyFrom(
            pb.PbLeafPredicate(
                function=0,
                field_id=0,
                literals=[pb.PbLiteralValue(literal_type=0, is_null=False, string_value="x" * 50_000)],
            )
        )
        with caplog.at_level(logging.WARNING), RawClient(bench.server.addresses.tablet_servers) as greedy:
            greedy.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionError):
                for _ in range(100):
                    greedy.send(ApiKey.FETCH_LOG, request)
            until(lambda: receiving(bench).is_overfull, "the polls are not counted")
            assert bench.tablet.call(ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss")).exists
            until(lambda: "with many open requests" in caplog.text, "the polls are never closed")
        until(lambda: receiving(bench).used == 0, "memory of clients that are gone is not given back")


def test_far_too_many_columns_are_refused_before_anything_is_made_of_them(tmp_path):
    with running(tmp_path / "data") as bench:
        columns = [{"name": "not even", "data_type": "a type"}] * (COLUMNS_MAX + 1)
        with pytest.raises(InvalidRequest, match=f"a table may have {COLUMNS_MAX}"):
            bench.create_from_json("w", {"version": 1, "schema": {"version": 1, "columns": columns}})
        bench.create("t", {"a": LOG_COLUMNS["a"]})
        kind = json_serde.dumps(json_serde.data_type_to_json(LOG_COLUMNS["a"]))
        alter = pb.AlterTableRequest(table_path=bench.path("t"), ignore_if_not_exists=False)
        for number in range(COLUMNS_MAX):
            alter.add_columns.add(column_name=f"c{number}", data_type_json=kind, column_position_type=0)
        with pytest.raises(InvalidRequest, match=f"{COLUMNS_MAX + 1} columns"):
            bench.coordinator.call(ApiKey.ALTER_TABLE, alter)


@contextmanager
def writes_held_up(bench: Bench, table: int) -> Iterator[None]:
    """Nothing is written to bucket 0 of `table` inside the block; it must be open."""
    replica = bench.server.server.context.replicas.opened(TableBucket(table, 0))
    assert replica is not None
    with replica._writing:
        yield


@pytest.mark.parametrize(("acks", "timeout_ms"), [(0, 60_000), (-1, 1)])
def test_a_write_that_is_answered_before_it_is_written_takes_memory_until_then(tmp_path, acks, timeout_ms):
    with running(tmp_path / "data") as bench:
        table = bench.create("k", KV_COLUMNS, ["id"])
        bench.put(table, kv_records([{"id": 0, "name": "opened"}]))
        request = pb.PutKvRequest(acks=acks, table_id=table, timeout_ms=timeout_ms)
        request.buckets_req.add(bucket_id=0, records=kv_records([{"id": 1, "name": "x" * 50_000}]))
        with writes_held_up(bench, table):
            with RawClient(bench.server.addresses.tablet_servers) as client:
                for _ in range(10):
                    (answer,) = client.call(ApiKey.PUT_KV, request).buckets_resp
                    assert answer.error_code == (ErrorCode.REQUEST_TIME_OUT if acks else 0)
            until(lambda: len(bench.server.server.connections) == 2, "the connection is not closed")
            assert receiving(bench).used > 500_000
        until(lambda: receiving(bench).used == 0, "memory of writes is not given back")
        assert bench.lookup(table, [kv_key(1)]).values[0].HasField("values")


def test_requests_count_for_what_they_take_beside_their_bytes(tmp_path):
    with running(tmp_path / "data") as bench:
        table = bench.create("l", LOG_COLUMNS)
        before = receiving(bench).used
        with RawClient(bench.server.addresses.tablet_servers) as client:
            for _ in range(100):
                client.send(ApiKey.FETCH_LOG, bench.fetch_request(table, 0, wait_ms=3_600_000))
            until(lambda: receiving(bench).used - before > 100 * 8192, "small requests count for their bytes only")
        until(lambda: receiving(bench).used == 0, "memory of clients that are gone is not given back")


def test_no_request_waits_for_news_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "_WAIT_MAX_MS", 50)
    with running(tmp_path / "data") as bench:
        table = bench.create("l", LOG_COLUMNS)
        answer = bench.fetch(table, 0, wait_ms=(1 << 31) - 1)
        assert (answer.error_code, answer.high_watermark) == (0, 0)


# ---- an honest client beside them -----------------------------------------------------------------------------------


def test_a_short_answer_never_waits_behind_large_ones_that_are_not_taken(tmp_path):
    with running(tmp_path / "data", server_connections_memory="32mb", server_connections_memory__wait="1 h") as bench:
        table = stored_log(bench, "t", 6)
        keyed = bench.create("k", KV_COLUMNS, ["id"])
        bench.put(keyed, kv_records([{"id": 1, "name": "one"}]))
        request = bench.fetch_request(table, 0, bytes_max=6 * MEGABYTE)
        with ExitStack() as stack:
            slow = [stack.enter_context(RawClient(bench.server.addresses.tablet_servers)) for _ in range(6)]
            for client in slow:
                for _ in range(3):
                    client.send(ApiKey.FETCH_LOG, request)
            until(lambda: bool(answering(bench)._waiting), "there is memory for all answers")
            for _ in range(20):
                assert bench.lookup(keyed, [kv_key(1)]).values[0].HasField("values")
                # Of much that is asked for, memory is taken for what is there.
                tail = bench.fetch_request(keyed, 0, bytes_max=16 * MEGABYTE)
                assert bench.tablet.call(ApiKey.FETCH_LOG, tail).tables_resp[0].buckets_resp[0].records
        until(lambda: answering(bench).used == 0, "memory of clients that are gone is not given back")
        assert bench.server.server.connections.memory_pools.short_responses.used == 0


def test_a_client_with_nothing_under_way_is_served_while_others_take_all_memory_for_requests(tmp_path):
    with running(tmp_path / "data", server_connections_memory="4mb", server_connections_memory__wait="1 h") as bench:
        table = bench.create("l", LOG_COLUMNS)
        request = bench.fetch_request(table, 0, wait_ms=3_600_000)
        with ExitStack() as stack:
            greedy = [stack.enter_context(RawClient(bench.server.addresses.tablet_servers)) for _ in range(2)]
            body = request.SerializeToString() + b"\xfa\x7f" + struct.pack("<BB", 0xD0, 0x0F) + bytes(2000)
            for client in greedy:
                client.socket.setblocking(False)
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    for number in range(10, 110):
                        client.socket.sendall(frame(ApiKey.FETCH_LOG, number, body))
            until(lambda: receiving(bench).is_overfull, "the polls are not counted")
            assert bench.tablet.call(ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss")).exists
            assert receiving(bench).is_overfull


def long_fetch(bench: Bench, table: int, **options: int):
    """A fetch of more than 64 KB: its filter is long."""
    request = bench.fetch_request(table, 0, **options)
    request.tables_req[0].filter_predicate.CopyFrom(pb.PbPredicate(type=9))
    leaf = pb.PbLeafPredicate(function=0, field_id=0)
    leaf.literals.add(literal_type=0, is_null=False, string_value="x" * 90_000)
    request.tables_req[0].filter_predicate.leaf.CopyFrom(leaf)
    return request


def test_long_requests_do_not_wait_behind_those_of_a_client_that_takes_no_answers(tmp_path):
    with running(tmp_path / "data") as bench, ExitStack() as stack:
        table = stored_log(bench, "l", 16)
        admission = bench.server.server.context.limits.admission
        admission.limit = 150_000
        slow, honest = (stack.enter_context(RawClient(bench.server.addresses.tablet_servers)) for _ in range(2))
        for _ in range(2):
            slow.send(ApiKey.FETCH_LOG, bench.fetch_request(table, 0, bytes_max=16 * MEGABYTE))
        # What the system takes of 32 MB for a client that does not read is some megabytes.
        until(lambda: answering(bench).used > 4 * MEGABYTE, "the answers are not made")
        slow.send(ApiKey.FETCH_LOG, long_fetch(bench, table, bytes_max=16 * MEGABYTE))
        for _ in range(3):
            asked = long_fetch(bench, table, bytes_max=1000, wait_ms=0)
            assert honest.call(ApiKey.FETCH_LOG, asked).tables_resp[0].buckets_resp[0].high_watermark == 16
        assert admission.inside == 0


@pytest.mark.slow
def test_two_long_lookups_of_one_connection_do_not_wait_for_each_other(tmp_path):
    with running(tmp_path / "data") as bench:
        table = bench.create("k", KV_COLUMNS, ["id"])
        bench.put(table, kv_records([{"id": 1, "name": "one"}]))
        lookup = pb.LookupRequest(table_id=table)
        lookup.buckets_req.add(bucket_id=0, keys=[kv_key(number) for number in range(50_000)])
        assert lookup.ByteSize() > 100_000  # so that it passes the admission
        ids = [bench.tablet.send(ApiKey.LOOKUP, lookup) for _ in range(4)]
        for request_id in ids:
            values = bench.tablet.receive(request_id).buckets_resp[0].values
            assert [n for n, value in enumerate(values) if value.HasField("values")] == [1]


def test_long_requests_are_let_in_a_few_at_a_time_and_wait_for_no_news(tmp_path):
    with running(tmp_path / "data") as bench:
        table = bench.create("l", LOG_COLUMNS)
        admission = bench.server.server.context.limits.admission
        admission.limit = 200_000
        most = 0
        request = long_fetch(bench, table, wait_ms=600_000)
        with ExitStack() as stack:
            clients = [stack.enter_context(RawClient(bench.server.addresses.tablet_servers)) for _ in range(7)]
            sent = [(client, client.send(ApiKey.FETCH_LOG, request)) for client in clients]
            gone = clients.pop()
            until(lambda: admission.inside, "no request is inside")
            gone.close()
            for client, request_id in sent[:-1]:
                most = max(most, admission.inside)
                assert client.receive(request_id).tables_resp[0].buckets_resp[0].high_watermark == 0
        assert 150_000 < most <= 200_000
        until(lambda: not admission.inside, "requests that are answered stay inside")


# ---- what is left of connections ------------------------------------------------------------------------------------


@contextmanager
def without_collector() -> Iterator[None]:
    """No round of the garbage collector inside."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_the_memory_of_a_connection_goes_with_it_and_not_with_the_next_round_of_the_collector(tmp_path):
    with running(tmp_path / "data") as bench:
        table = stored_log(bench, "log", 8)
        wait = bench.fetch_request(table, 8, bytes_max=MEGABYTE)
        wait.max_wait_ms, wait.min_bytes = 3_600_000, 1
        exists = pb.DatabaseExistsRequest(database_name="fluss")
        connections = bench.server.server.connections
        before = set(connections)
        with without_collector():
            with ExitStack() as stack:
                clients = [stack.enter_context(RawClient(bench.server.addresses.tablet_servers)) for _ in range(5)]
                _silent, answered, unfinished, waiting, greedy = clients
                assert answered.call(ApiKey.DATABASE_EXISTS, exists).exists
                unfinished.socket.sendall(frame(ApiKey.PUT_KV, 9, bytes(3 * MEGABYTE), length=8 * MEGABYTE))
                waiting.send(ApiKey.FETCH_LOG, wait)
                for _ in range(2):
                    greedy.send(ApiKey.FETCH_LOG, bench.fetch_request(table, 0, bytes_max=8 * MEGABYTE))
                until(
                    lambda: any(each.unsent_bytes > MEGABYTE for each in list(connections)), "nothing waits to be sent"
                )
                left = [weakref.ref(each) for each in set(connections) - before]
                assert len(left) == 5
            until(lambda: all(each() is None for each in left), "connections are left")
