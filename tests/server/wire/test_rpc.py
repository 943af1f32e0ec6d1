"""One connection of a client, without a socket: when requests start, what is counted, and what ends it."""

from __future__ import annotations

import asyncio
import errno
import functools
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.base import threads
from forebay.base.ambient import ManualClock
from forebay.base.eager_task import begun
from forebay.base.errors import AccessDenied, ErrorCode, InvalidRequest
from forebay.base.threads import Future
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, ServerRole, offered
from forebay.protocol.connection import RequestReceived
from forebay.protocol.frames import FrameDecoder, FrameType, encode_request
from forebay.protocol.messages import parse
from forebay.protocol.sasl import PlaintextAuthenticator, SaslAuthenticator, credential_verifier
from forebay.server import connections
from forebay.server.config import ServerConfig
from forebay.server.connections import Connections
from forebay.server.context import HANDLERS, ServerCall
from forebay.server.counters import ServerCounters
from forebay.server.flow.fair_queue import REQUESTS_PER_TURN
from forebay.server.flow.request_limits import RequestLimits
from forebay.server.wire import rpc
from forebay.server.wire.rpc import RpcProtocol

APIS = offered(ApiKey, ServerRole.TABLET)
EXISTS = pb.DatabaseExistsRequest(database_name="shop").SerializeToString()
APPEND = pb.ProduceLogRequest(acks=1, table_id=1, timeout_ms=1).SerializeToString()
SIZE = 3 * len(EXISTS) + 8192
"""What an open request without records counts for."""


class Wire(asyncio.Transport):
    """A transport whose peer takes what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.peer: Any = ("127.0.0.1", 5)
        self.sent = bytearray()
        self.unsent = 0
        self.is_reading_now, self.can_end, self.ended, self.aborted, self.closed = True, True, False, False, False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.peer

    def write(self, data: Any) -> None:
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def can_write_eof(self) -> bool:
        return self.can_end

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        assert self.is_reading_now
        self.is_reading_now = False

    def resume_reading(self) -> None:
        assert not self.is_reading_now
        self.is_reading_now = True


NO_SHORT_REQUESTS: Any = SimpleNamespace(take=lambda *_: False, flush=lambda: None)


class Client:
    """The peer of one connection."""

    def __init__(
        self, authenticator: Any = None, wire: Wire | None = None, beside: Client | None = None, **settings: str
    ) -> None:
        """`beside`: another one of the same server."""
        self.clock = ManualClock()
        self.limits = RequestLimits(self.clock)
        self.connections = (
            Connections(asyncio.get_running_loop(), self.clock, ServerConfig(Path("data"), settings=settings))
            if beside is None
            else beside.connections
        )
        context: Any = SimpleNamespace(
            clock=self.clock, limits=self.limits, in_io=self.in_io, counters=ServerCounters(), gate=None,
            handlers=HANDLERS,
        )  # fmt: skip
        self.may_parse = asyncio.Event()
        self.may_parse.set()
        self.wire = wire or Wire()
        self.protocol = RpcProtocol(
            context,
            ServerRole.TABLET,
            "CLIENT",
            APIS,
            PlaintextAuthenticator() if authenticator is None else authenticator,
            self.connections,
            NO_SHORT_REQUESTS,
        )
        self.decoder = FrameDecoder(5, 1)

    async def in_io(self, work: Callable[..., Any], *args: Any) -> Any:
        await self.may_parse.wait()
        return work(*args)

    def connect(self) -> Client:
        self.protocol.connection_made(self.wire)
        return self

    async def send(self, *requests: tuple[int, ApiKey, bytes]) -> None:
        for request in requests:
            self.arrive(frames(request))
        await settle()

    def arrive(self, data: bytes) -> None:
        """Bytes come, as many at a time as there is room for."""
        while data:
            room = self.protocol.get_buffer(-1)
            taken = min(len(room), len(data))
            room[:taken] = data[:taken]
            self.protocol.buffer_updated(taken)
            data = data[taken:]

    def answers(self) -> list[tuple[int, ErrorCode | None]]:
        """(request id, error) of the answers since the last look."""
        self.decoder.receive_data(bytes(self.wire.sent))
        self.wire.sent.clear()
        found: list[tuple[int, ErrorCode | None]] = []
        while (frame := self.decoder.next_frame()) is not None:
            kind, request_id = struct.unpack(">bi", frame.header)
            error = None
            if kind == FrameType.ERROR:
                error = ErrorCode(parse(pb.ErrorResponse, bytes(frame.body)).error_code)
            found.append((request_id, error))
        return found


def frames(*requests: tuple[int, ApiKey, bytes]) -> bytes:
    return b"".join(bytes(part) for number, key, body in requests for part in encode_request(key, 0, number, [body]))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **options: Any) -> None:
        asyncio.run(test(*args, **options))

    return run


class Work:
    """Handlers that answer when they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[ServerCall] = []
        self.futures: list[asyncio.Future[Any]] = []
        monkeypatch.setitem(HANDLERS, ApiKey.DATABASE_EXISTS, self._handle)
        monkeypatch.setitem(HANDLERS, ApiKey.PRODUCE_LOG, self._handle)

    def _handle(self, _context: Any, call: ServerCall) -> Any:
        self.calls.append(call)
        self.futures.append(asyncio.get_running_loop().create_future())
        return self._answer(self.futures[-1])

    async def _answer(self, future: asyncio.Future[Any]) -> Any:
        return await future

    async def finish(self, *numbers: int) -> None:
        for number in numbers:
            append = isinstance(self.calls[number].message, pb.ProduceLogRequest)
            answer = pb.ProduceLogResponse() if append else pb.DatabaseExistsResponse(exists=True)
            self.futures[number].set_result(answer)
        await settle()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


def exists(*ids: int) -> list[tuple[int, ApiKey, bytes]]:
    return [(each, ApiKey.DATABASE_EXISTS, EXISTS) for each in ids]


# ---- how much is under way ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["requests", "bytes"])
@in_loop
async def test_a_connection_with_too_much_under_way_continues_when_half_of_it_has_ended(
    work: Work, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    settings = {"netty.server.max-queued-requests": "4"} if limit == "requests" else {}
    if limit == "bytes":
        monkeypatch.setattr(rpc, "_OPEN_BYTES_MAX", 4 * SIZE)
    client = Client(**settings).connect()
    await client.send(*exists(0, 1, 2))
    assert (len(work.calls), client.wire.is_reading_now) == (3, True)
    await client.send(*exists(3))
    assert (len(work.calls), client.wire.is_reading_now) == (4, False)
    await client.send(*exists(4, 5))
    assert len(work.calls) == 4
    await work.finish(0)
    assert (len(work.calls), client.wire.is_reading_now) == (4, False)
    await work.finish(1)
    assert (len(work.calls), client.wire.is_reading_now) == (6, False)
    await work.finish(2)
    assert not client.wire.is_reading_now
    await work.finish(3)
    assert client.wire.is_reading_now
    await work.finish(4, 5)
    assert client.answers() == [(each, None) for each in range(6)]
    assert client.protocol.is_idle


@pytest.mark.parametrize("limit", ["requests", "bytes"])
@in_loop
async def test_a_connection_is_not_read_from_once_a_turn_has_filled_it(
    work: Work, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    settings = {"netty.server.max-queued-requests": f"{REQUESTS_PER_TURN}"} if limit == "requests" else {}
    if limit == "bytes":
        monkeypatch.setattr(rpc, "_OPEN_BYTES_MAX", REQUESTS_PER_TURN * SIZE)
    client = Client(**settings).connect()
    client.arrive(frames(*exists(*range(REQUESTS_PER_TURN))))
    assert (len(work.calls), client.wire.is_reading_now) == (REQUESTS_PER_TURN, False)
    await work.finish(0)
    assert client.wire.is_reading_now


@in_loop
async def test_what_open_requests_take_is_counted_until_they_are_answered(work: Work) -> None:
    client = Client().connect()
    receiving, memory = client.connections.memory_pools.requests, client.protocol.memory
    await client.send(*exists(0, 1))
    assert (receiving.used, memory.open_control_bytes) == (2 * SIZE, 2 * SIZE)
    await client.send((2, ApiKey.PRODUCE_LOG, APPEND))
    assert (receiving.used, memory.open_control_bytes) == (2 * SIZE + len(APPEND) + 8192, 2 * SIZE)
    assert not client.protocol.is_idle
    await work.finish(2)
    assert (receiving.used, memory.open_control_bytes) == (2 * SIZE, 2 * SIZE)
    await work.finish(0, 1)
    assert (receiving.used, memory.open_control_bytes, client.protocol.open_bytes) == (0, 0, 0)
    assert not client.protocol._tasks


@in_loop
async def test_requests_that_came_before_the_end_of_the_stream_are_served(work: Work) -> None:
    client = Client(**{"netty.server.max-queued-requests": "2"}).connect()
    assert Client().connect().protocol.eof_received() is False
    await client.send(*exists(0, 1, 2, 3))
    assert client.protocol.eof_received() is True
    await settle()
    assert len(work.calls) == 2
    await work.finish(0, 1)
    assert len(work.calls) == 4
    await work.finish(2, 3)
    assert client.answers() == [(each, None) for each in range(4)]
    assert client.wire.closed
    assert not client.wire.is_reading_now  # there is nothing more to read


@in_loop
async def test_of_many_requests_at_once_some_are_begun_and_nothing_more_is_read_until_it_is_their_turn(
    work: Work,
) -> None:
    client = Client().connect()
    client.arrive(frames(*exists(*range(20))))
    assert (len(work.calls), client.wire.is_reading_now) == (REQUESTS_PER_TURN, True)
    client.arrive(frames(*exists(20)))
    assert (len(work.calls), client.wire.is_reading_now) == (REQUESTS_PER_TURN, False)
    await settle()
    assert (len(work.calls), client.wire.is_reading_now) == (21, True)
    await work.finish(*range(21))
    assert client.answers() == [(each, None) for each in range(21)]


@in_loop
async def test_requests_that_wait_for_their_turn_are_answered_after_the_end_of_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(HANDLERS, ApiKey.DATABASE_EXISTS, lambda *_: pb.DatabaseExistsResponse(exists=True))
    client = Client().connect()
    client.arrive(frames(*exists(*range(20))))
    assert client.protocol.eof_received() is True
    assert not client.wire.closed
    await settle()
    assert client.answers() == [(each, None) for each in range(20)]
    assert client.wire.closed


@in_loop
async def test_a_large_request_is_counted_as_it_comes(work: Work) -> None:
    client = Client().connect()
    receiving, body = client.connections.memory_pools.requests, appends(1, bytes(100_000))
    data = frames((0, ApiKey.PRODUCE_LOG, body))
    client.arrive(frames(*exists(9)))  # who has sent nothing yet may not send much
    await settle()
    client.arrive(data[:50_000])
    assert receiving.used - SIZE == client.protocol._connection.large_bytes > 40_000
    client.arrive(data[50_000:])
    await settle()
    assert len(work.calls) == 2
    assert receiving.used == SIZE + len(body) + 8192 + 384  # of one bucket
    await work.finish(0, 1)
    assert receiving.used == 0


# ---- requests that others wait for ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("longer", "is_long"), [(0, True), (1, False)])
@in_loop
async def test_a_long_request_is_parsed_apart_and_those_behind_it_wait(
    work: Work, monkeypatch: pytest.MonkeyPatch, longer: int, is_long: bool
) -> None:
    monkeypatch.setattr(rpc, "_PARSED_APART_BYTES", len(EXISTS) + longer)
    client = Client().connect()
    client.may_parse.clear()
    await client.send(*exists(0))
    await client.send((1, ApiKey.PRODUCE_LOG, APPEND))
    assert len(work.calls) == (0 if is_long else 2)
    assert client.wire.is_reading_now is not is_long
    if is_long:  # counted as what it takes once it is parsed, and let in by that, too
        assert (client.connections.memory_pools.requests.used, client.limits.admission.inside) == (
            SIZE,
            2 * len(EXISTS),
        )
    client.may_parse.set()
    await settle()
    assert [call.is_long for call in work.calls][:1] == [is_long]
    assert len(work.calls) == 2
    assert client.wire.is_reading_now
    await work.finish(0, 1)
    assert client.answers() == [(0, None), (1, None)]
    assert (client.connections.memory_pools.requests.used, client.limits.admission.inside) == (0, 0)


@in_loop
async def test_what_comes_while_the_last_request_of_a_turn_is_parsed_is_served_behind_it(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = pb.DatabaseExistsRequest(database_name="x" * 100).SerializeToString()
    monkeypatch.setattr(rpc, "_PARSED_APART_BYTES", len(long))
    client = Client().connect()
    client.may_parse.clear()
    short = exists(*range(REQUESTS_PER_TURN - 1))
    client.arrive(frames(*short, (20, ApiKey.DATABASE_EXISTS, long)))
    client.arrive(frames(*exists(30)))
    await settle()
    assert (len(work.calls), client.wire.is_reading_now) == (REQUESTS_PER_TURN - 1, False)
    client.may_parse.set()
    await settle()
    assert (len(work.calls), client.wire.is_reading_now) == (REQUESTS_PER_TURN + 1, True)
    assert work.calls[-2].is_long


def appends(count: int, records: bytes = b"x") -> bytes:
    """A write of so many buckets."""
    request = pb.ProduceLogRequest(acks=1, table_id=1, timeout_ms=1)
    for bucket in range(count):
        request.buckets_req.add(bucket_id=bucket, records=records)
    return request.SerializeToString()


@pytest.mark.parametrize(("buckets", "alone"), [(2, False), (3, True)])
@in_loop
async def test_nothing_overtakes_a_write_of_very_many_buckets(
    work: Work, monkeypatch: pytest.MonkeyPatch, buckets: int, alone: bool
) -> None:
    monkeypatch.setattr(rpc, "SHORT_LIST", 2)
    client = Client().connect()
    await client.send((0, ApiKey.PRODUCE_LOG, appends(buckets)), *exists(1))
    assert [len(work.calls[0].payloads), len(work.calls)] == [buckets, 1 if alone else 2]
    assert client.wire.is_reading_now is not alone
    await work.finish(0)
    assert (len(work.calls), client.wire.is_reading_now) == (2, True)
    await work.finish(1)
    assert client.answers() == [(0, None), (1, None)]


EMPTY_PATHS = b"\x0a\x00"


@pytest.mark.parametrize(
    ("key", "body"),
    [(ApiKey.PRODUCE_LOG, appends(8)), (ApiKey.GET_METADATA, EMPTY_PATHS * 8), (ApiKey.PUT_KV, b"\x08\x00" * 9)],
)
@pytest.mark.parametrize(("items_max", "refused"), [(4, False), (3, True)])
@in_loop
async def test_a_request_with_too_many_entries_is_refused_before_it_is_parsed(
    work: Work, monkeypatch: pytest.MonkeyPatch, items_max: int, refused: bool, key: ApiKey, body: bytes
) -> None:
    monkeypatch.setattr(rpc, "_COUNTED_BYTES", 1)
    monkeypatch.setattr(rpc, "_PARSED_APART_ENTRIES", 2)
    parsed = []
    monkeypatch.setattr(RequestReceived, "parse_split", lambda *_: parsed.append(1))
    client = Client().connect()
    client.limits.items_max = items_max
    await client.send((0, key, body))
    assert bool(parsed) is not refused
    assert (client.answers()[0][1] == ErrorCode.BUCKET_MAX_NUM_EXCEPTION) is refused
    assert client.limits.admission.inside == 0


# ---- answers that may be large --------------------------------------------------------------------------------------


@in_loop
async def test_of_answers_that_may_be_large_two_are_made_until_the_client_takes_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[asyncio.Future[None]] = []

    async def look_up(_context: Any, _call: ServerCall) -> Any:
        started.append(asyncio.get_running_loop().create_future())
        await started[-1]
        return pb.LookupResponse()

    monkeypatch.setitem(HANDLERS, ApiKey.LOOKUP, look_up)
    client = Client().connect()
    pools, body = client.connections.memory_pools, pb.LookupRequest(table_id=1).SerializeToString()
    await client.send(*((number, ApiKey.LOOKUP, body) for number in range(4)))
    assert len(started) == 2
    assert pools.responses.used + pools.short_responses.used == 2 * (64 << 10)
    started[0].set_result(None)
    await settle()
    assert (client.answers(), len(started)) == ([(0, None)], 3)
    client.protocol.pause_writing()
    started[1].set_result(None)
    await settle()
    assert (client.answers(), len(started)) == ([(1, None)], 3)  # it has not been taken yet
    assert pools.responses.used + pools.short_responses.used == 64 << 10  # but it is made
    client.protocol.resume_writing()
    await settle()
    assert len(started) == 4
    for future in started[2:]:
        future.set_result(None)
    await settle()
    assert pools.responses.used + pools.short_responses.used == 0


# ---- when memory for requests is short ------------------------------------------------------------------------------


@in_loop
async def test_when_memory_is_short_those_wait_who_have_more_than_their_share(work: Work) -> None:
    client = Client().connect()
    receiving = client.connections.memory_pools.requests
    receiving.limit = connections._LATE_SHARE * SIZE  # the share of one connection is one request
    receiving.take(2 * receiving.limit - 3 * SIZE)
    assert receiving.is_overfull
    await client.send(*exists(0, 1, 2, 3))
    assert len(work.calls) == 2  # the second is begun with no more than the share under way
    assert not client.wire.is_reading_now
    receiving.give(2 * receiving.limit - 3 * SIZE)
    await settle()
    assert (len(work.calls), client.wire.is_reading_now) == (4, True)
    receiving.take(2 * receiving.limit)
    other = Client().connect()
    other.connections.memory_pools.requests.limit = receiving.limit
    other.connections.memory_pools.requests.take(2 * receiving.limit)
    await other.send(*exists(0))
    assert len(work.calls) == 4  # twice full: everything waits
    other.connections.memory_pools.requests.give(2 * receiving.limit)
    await settle()
    assert len(work.calls) == 5
    for each in (client, other):
        each.connections.memory_pools.close()


@in_loop
async def test_those_who_wait_for_memory_continue_when_others_have_been_answered(work: Work) -> None:
    one = Client().connect()
    other = Client(beside=one).connect()
    receiving = one.connections.memory_pools.requests
    receiving.limit = connections._LATE_SHARE * SIZE  # the share of each is half of a request
    await one.send(*exists(0, 1, 2))
    await other.send(*exists(0))
    receiving.take(SIZE)
    assert receiving.is_overfull
    await other.send(*exists(1))
    assert (len(work.calls), other.wire.is_reading_now) == (4, False)
    await work.finish(0)
    assert len(work.calls) == 5
    receiving.close()


@in_loop
async def test_a_write_that_is_answered_before_it_is_written_counts_until_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: Future[None] = threads.future()

    async def write_later(_context: Any, call: ServerCall) -> Any:
        call.memory.keep_until(written)
        return pb.ProduceLogResponse()

    monkeypatch.setitem(HANDLERS, ApiKey.PRODUCE_LOG, write_later)
    size = len(APPEND) + 8192
    monkeypatch.setattr(rpc, "_OPEN_BYTES_MAX", size)
    client = Client().connect()
    await client.send((0, ApiKey.PRODUCE_LOG, APPEND))
    assert client.answers() == [(0, None)]
    assert (client.protocol.open_bytes, client.wire.is_reading_now) == (size, False)
    written.set_result(None)
    await settle()
    assert (client.protocol.open_bytes, client.wire.is_reading_now) == (0, True)


# ---- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("no", ErrorCode.INVALID_TABLE_EXCEPTION), ErrorCode.INVALID_TABLE_EXCEPTION),
        (ZeroDivisionError("a bug"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
@in_loop
async def test_a_request_that_fails_is_answered_and_others_continue(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: ErrorCode, at_once: bool
) -> None:
    def fail(*_: object) -> Any:
        raise error

    async def fail_later(*_: object) -> Any:
        raise error

    monkeypatch.setitem(HANDLERS, ApiKey.DATABASE_EXISTS, fail if at_once else fail_later)
    monkeypatch.setitem(HANDLERS, ApiKey.TABLE_EXISTS, lambda *_: pb.TableExistsResponse(exists=True))
    client = Client().connect()
    path = pb.TableExistsRequest(table_path=pb.PbTablePath(database_name="d", table_name="t"))
    await client.send(*exists(0), (1, ApiKey.TABLE_EXISTS, path.SerializeToString()))
    assert sorted(client.answers()) == [(0, code), (1, None)]
    assert not client.wire.is_closing()
    assert client.connections.memory_pools.requests.used == 0


@in_loop
async def test_a_stream_of_another_protocol_ends_the_connection_and_an_unknown_request_does_not(work: Work) -> None:
    client = Client().connect()
    client.arrive(struct.pack(">ihhi", 8, 9999, 0, 1) + frames(*exists(2)))
    await work.finish(0)
    assert client.answers() == [(1, ErrorCode.UNSUPPORTED_VERSION), (2, None)]
    assert not client.wire.closed
    client.arrive(b"GET / HTTP/1.1\r\n\r\n")
    assert client.wire.closed


@in_loop
async def test_a_client_that_has_not_logged_in_is_closed_with_its_first_mistake(work: Work) -> None:
    authenticator = SaslAuthenticator(["PLAIN"], credential_verifier({"a": "b"}))

    def token(text: bytes) -> bytes:
        return pb.AuthenticateRequest(protocol="PLAIN", token=text).SerializeToString()

    for request in (exists(0)[0], (0, ApiKey.AUTHENTICATE, token(b"\0a\0wrong"))):
        client = Client(SaslAuthenticator(["PLAIN"], credential_verifier({"a": "b"}))).connect()
        assert not client.protocol.is_known
        await client.send(request)
        assert client.answers() == [(0, ErrorCode.AUTHENTICATE_EXCEPTION)]
        assert client.wire.closed
    client = Client(authenticator).connect()
    await client.send((0, ApiKey.AUTHENTICATE, token(b"\0a\0b")), *exists(1))
    assert client.protocol.is_known
    work.futures[0].set_exception(AccessDenied("not you", ErrorCode.AUTHENTICATE_EXCEPTION))
    await settle()
    assert client.answers() == [(0, None), (1, ErrorCode.AUTHENTICATE_EXCEPTION)]
    assert not client.wire.is_closing()
    assert work.calls[0].principal == "a"


@in_loop
async def test_a_wrong_password_is_answered_later_and_the_right_one_at_once(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept, may_go_on, sleep = list[float](), asyncio.Event(), asyncio.sleep
    loop = asyncio.get_running_loop()

    async def sleep_as_told(seconds: float) -> None:
        if asyncio.get_running_loop() is not loop:  # a server of another test that has not ended
            await sleep(seconds)
            return
        if seconds:
            slept.append(seconds)
            await may_go_on.wait()
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", sleep_as_told)
    client = Client(SaslAuthenticator(["PLAIN"], credential_verifier({"a": "b"}))).connect()
    logins = client.connections.login_throttle
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(logins, "failed", lambda address, user: 7.0)
    monkeypatch.setattr(logins, "succeeded", lambda address, user: told.append((address, user)))

    def login(number: int, password: bytes) -> tuple[int, ApiKey, bytes]:
        token = pb.AuthenticateRequest(protocol="PLAIN", token=b"\0a\0" + password).SerializeToString()
        return number, ApiKey.AUTHENTICATE, token

    await client.send(login(0, b"b"), *exists(1))
    assert (client.answers(), len(work.calls), slept, told) == ([(0, None)], 1, [], [("127.0.0.1", "a")])
    await work.finish(0)
    guesser = Client(SaslAuthenticator(["PLAIN"], credential_verifier({"a": "b"}))).connect()
    monkeypatch.setattr(guesser.connections.login_throttle, "failed", lambda address, user: 7.0)
    times: list[float] = []
    counters = guesser.protocol._context.counters
    monkeypatch.setattr(counters, "count_requests", lambda *given: times.append(given[3]))
    await guesser.send(login(0, b"c"))
    assert (guesser.answers(), slept) == ([], [7.0])
    may_go_on.set()
    await settle()
    assert guesser.answers() == [(0, ErrorCode.AUTHENTICATE_EXCEPTION)]
    assert times == [0.0], "to wait is no work: it is not a slow request"


@in_loop
async def test_a_connection_that_is_gone_leaves_nothing_under_way(work: Work) -> None:
    client = Client().connect()
    assert len(client.connections) == 1
    await client.send(*exists(0, 1))
    client.protocol.pause_writing()
    client.wire.unsent = 100
    client.protocol._send_queue.send([bytes(1 << 20)])
    client.protocol._unsent_changed()
    assert client.connections.memory_pools.responses.used == 100 + (1 << 20)
    client.protocol.connection_lost(None)
    assert (client.protocol.is_idle, client.protocol._send_queue.unsent_bytes) == (True, 100)
    await settle()
    assert all(future.cancelled() for future in work.futures)
    pools = client.connections.memory_pools
    assert (len(client.connections), pools.requests.used, pools.responses.used) == (0, 0, 0)
    assert client.answers() == []


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("can_end", [True, False])
@in_loop
async def test_a_refused_client_is_told_why_and_heard_no_more(
    work: Work, monkeypatch: pytest.MonkeyPatch, can_end: bool
) -> None:
    monkeypatch.setattr(rpc, "_REFUSAL_SECONDS", 0)
    client = Client()
    client.connections.is_closing = True
    client.wire.can_end = can_end
    client.connect()
    assert client.wire.ended is can_end
    assert b"shutting down" in bytes(client.wire.sent)
    assert len(client.connections.refused) == 1
    await client.send(*exists(0))
    assert work.calls == []
    assert (client.wire.aborted, len(client.connections.refused), len(client.connections)) == (True, 0, 0)
    client.protocol.connection_lost(None)
    for told in (True, False):
        more = Client()
        more.connections.is_closing = True
        more.connections.refused.update(Wire() for _ in range(rpc._REFUSALS_MAX - told))
        more.connect()
        assert (bool(more.wire.sent), more.wire.aborted) == (told, not told)
    await settle()


@in_loop
async def test_a_refused_client_that_has_gone_is_forgotten_at_once() -> None:
    class Gone(Wire):
        def write_eof(self) -> None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    client = Client(wire=Gone())
    client.connections.is_closing = True
    client.connect()
    assert (client.wire.aborted, len(client.connections.refused), len(client.connections)) == (True, 0, 0)


@pytest.mark.parametrize(
    ("peer", "address"),
    [(("::1", 5, 0, 0), "::1"), ((), "an unknown address"), ("", "an unknown address"), (None, "an unknown address")],
)
@in_loop
async def test_an_address_is_that_of_the_peer_or_unknown(peer: Any, address: str) -> None:
    wire = Wire()
    wire.peer = peer
    assert Client(wire=wire).connect().protocol.address == address


# ---- a peer that takes nothing, and the end -------------------------------------------------------------------------


@in_loop
async def test_a_client_that_takes_no_answers_is_served_no_more_until_it_does(work: Work) -> None:
    client = Client().connect()
    await client.send(*exists(0))
    client.wire.unsent = 100
    assert client.protocol.unsent_bytes == 0
    client.protocol.pause_writing()
    assert (client.protocol.unsent_bytes, client.wire.is_reading_now) == (100, False)
    assert client.connections.memory_pools.responses.used == 100
    await client.send(*exists(1))
    assert len(work.calls) == 1
    client.wire.unsent = 150
    await work.finish(0)
    assert client.answers() == [(0, None)]
    assert client.connections.memory_pools.responses.used == 150
    client.clock.advance(5)
    client.wire.unsent = 0
    client.protocol.resume_writing()
    await settle()
    assert client.protocol.last_active == client.clock.monotonic()
    assert (len(work.calls), client.wire.is_reading_now, client.connections.memory_pools.responses.used) == (2, True, 0)
    client.protocol.close()
    assert (client.wire.closed, client.wire.aborted) == (True, False)


@in_loop
async def test_a_peer_that_takes_something_is_active_and_one_that_takes_nothing_is_not() -> None:
    client = Client().connect()
    began = client.clock.monotonic()
    client.clock.advance(1)
    assert not client.protocol.is_stalled
    assert client.protocol.last_active == began  # there is nothing to take
    client.wire.unsent = 100
    client.protocol.pause_writing()
    assert not client.protocol.is_stalled  # the first look
    client.clock.advance(1)
    assert client.protocol.is_stalled
    assert client.protocol.last_active == began + 1
    client.wire.unsent = 50
    assert not client.protocol.is_stalled
    assert client.protocol.last_active == began + 2
    client.protocol.close()
    assert (client.wire.closed, client.wire.aborted) == (False, True)


@in_loop
async def test_a_server_that_stops_answers_what_is_under_way_and_begins_nothing(work: Work) -> None:
    client = Client().connect()
    await client.send(*exists(0))
    client.protocol.stop_reading()
    assert not client.wire.is_reading_now
    await client.send(*exists(1))
    await work.finish(0)
    assert (len(work.calls), client.answers(), client.wire.is_reading_now) == (1, [(0, None)], False)
    client.protocol.abort()
    assert client.wire.aborted


@in_loop
async def test_an_answer_for_a_connection_that_closes_is_not_sent(work: Work) -> None:
    client = Client().connect()
    await client.send(*exists(0, 1))
    client.wire.close()
    await work.finish(0)
    work.futures[1].set_exception(InvalidRequest("too late"))
    await settle()
    assert bytes(client.wire.sent) == b""


@in_loop
async def test_what_has_begun_is_closed_with_its_task_in_any_order() -> None:
    async def waiting(future: asyncio.Future[None]) -> None:
        try:
            await future
        finally:
            ended.append(future)

    ended: list[asyncio.Future[None]] = []
    for closes_first in (True, False):
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        coroutine = waiting(future)
        task = begun(coroutine)
        assert task is not None
        await settle()
        rest: Any = task.get_coro()
        if closes_first:
            coroutine.close()
        rest.close()
        assert ended.pop() is future
        task.cancel()
        await asyncio.wait([task])


@in_loop
async def test_nothing_happens_to_a_connection_that_was_never_made() -> None:
    client = Client()
    client.protocol.close()
    client.protocol.abort()
    client.protocol.balance()
    assert (client.wire.closed, client.wire.aborted, client.wire.is_reading_now) == (False, False, True)
