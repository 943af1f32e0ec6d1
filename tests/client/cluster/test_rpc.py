"""Channels: requests of many parts, logins, broken sockets, and behaviour after a fork."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest

from forebay.base.ambient import ManualClock, SystemClock
from forebay.base.errors import AccessDenied, ErrorCode, ForebayError, InternalError, Unavailable
from forebay.client import session as session_module
from forebay.client.cluster import rpc
from forebay.client.connection import Connection, connect
from forebay.client.settings import Address, make_settings, parse_addresses
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, ServerRole
from tests.client.conftest import DATABASE, MakeTable, own_server
from tests.patience import PATIENCE


@pytest.mark.parametrize(
    "parts",
    [[b"alone"], [b"a", b"", b"bc"], [bytes([i % 256]) * 300_000 for i in range(5)], [b"x"] * 5000, [b""], [b"", b""]],
    ids=["one", "few", "large", "many", "empty", "empties"],
)
def test_every_byte_of_every_part_is_sent_once_and_in_order(parts: list[bytes]) -> None:
    ours, theirs = socket.socketpair()
    received = bytearray()

    def read() -> None:
        while piece := theirs.recv(1 << 16):
            received.extend(piece)

    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        reader = threading.Thread(target=read)
        reader.start()
        rpc._send_all(ours, parts)
        ours.shutdown(socket.SHUT_WR)
        reader.join(PATIENCE)
    assert bytes(received) == b"".join(parts)


def test_a_connection_that_is_not_taken_is_tried_until_its_time_is_over_and_a_refused_one_is_not() -> None:
    address, clock, asked = Address("example.test", 1), ManualClock(), []

    def silent(_: Address, seconds: float) -> socket.socket:
        asked.append(seconds)
        clock.advance(seconds)
        raise TimeoutError("timed out")

    with pytest.raises(Unavailable, match=r"cannot connect to example\.test:1: timed out"):
        rpc._connect(address, 7.0, clock, silent)
    assert sum(asked) == pytest.approx(7.0)
    assert len(asked) > 1
    asked.clear()

    def refused(_: Address, seconds: float) -> socket.socket:
        asked.append(seconds)
        raise ConnectionRefusedError(111, "Connection refused")

    with pytest.raises(Unavailable, match="Connection refused"):
        rpc._connect(address, 7.0, clock, refused)
    assert len(asked) == 1


class FakeHandshake:
    """One that the server refuses so many times before it lets the client in."""

    def __init__(self, refusals: int, code: ErrorCode) -> None:
        self.refusals, self.code, self.done = refusals, code, False
        self.tries = 1

    def start(self) -> list[bytes]:
        return [b"hello"]

    def receive(self, _: object) -> list[bytes]:
        if self.refusals:
            self.refusals -= 1
            raise AccessDenied("not now", self.code)
        self.done = True
        return [b"thanks"]

    def retry(self) -> list[bytes]:
        self.tries += 1
        return [b"hello"]


@pytest.mark.parametrize(
    ("refusals", "code", "tries", "enters"),
    [
        (0, ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION, 1, True),
        (6, ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION, 7, True),
        (7, ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION, 7, False),  # the next pause would end after 9 s
        (1, ErrorCode.AUTHENTICATE_EXCEPTION, 1, False),
    ],
)
def test_a_login_that_the_server_puts_off_is_repeated_in_time_and_one_that_it_refuses_is_not(
    refusals: int, code: ErrorCode, tries: int, enters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "_next_response", lambda *_: None)
    handshake, clock = FakeHandshake(refusals, code), ManualClock()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        shake: Callable[..., None] = rpc._shake_hands
        arguments = (ours, Address("example.test", 1), None, handshake, clock, 9.0)
        if enters:
            shake(*arguments)
        else:
            with pytest.raises(AccessDenied, match="not now"):
                shake(*arguments)
        assert theirs.recv(1000) == b"hello" * tries + (b"thanks" if enters else b"")
    assert (handshake.tries, handshake.done) == (tries, enters)
    assert clock.monotonic() == pytest.approx(sum(0.1 * 2**n for n in range(tries - 1)))


class SilentSocket:
    """One on which nothing ever comes; waiting for it takes the time of a clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.timeout, self.closed = clock, 0.0, False
        self.sent: list[bytes] = []

    def setsockopt(self, *_: object) -> None:
        pass

    def settimeout(self, seconds: float) -> None:
        self.timeout = seconds

    def sendall(self, data: bytes) -> None:
        self.sent.append(bytes(data))

    def sendmsg(self, buffers: list[memoryview]) -> int:
        self.sent.append(b"".join(buffers))
        return len(self.sent[-1])

    def recv_into(self, _: object) -> int:
        self.clock.advance(self.timeout)
        raise TimeoutError("timed out")

    def close(self) -> None:
        self.closed = True


def test_a_server_that_takes_the_connection_and_says_nothing_is_told_of_and_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    sock, began = SilentSocket(clock), clock.monotonic()
    with pytest.raises(Unavailable, match=r"the handshake with example\.test:1 failed: timed out"):
        rpc.Channel.open(
            Address("example.test", 1),
            clock=clock,
            connect_seconds=8.0,
            request_seconds=10.0,
            dial=lambda *_: cast(Any, sock),
        )
    assert clock.monotonic() - began == pytest.approx(8.0)
    assert (len(sock.sent), sock.closed) == (1, True)
    (record,) = caplog.records
    assert "example.test:1 accepted the connection but has not responded; is it a Fluss" in record.getMessage()


def test_a_silent_server_is_not_waited_for_once_the_connection_was_given_up() -> None:
    clock = ManualClock()

    def silent(_: Address, seconds: float) -> socket.socket:
        clock.advance(seconds)
        raise TimeoutError("timed out")

    for dial in (silent, lambda *_: cast(Any, SilentSocket(clock))):
        began = clock.monotonic()
        with pytest.raises(Unavailable, match="timed out"):
            rpc.Channel.open(
                Address("example.test", 1),
                clock=clock,
                connect_seconds=120.0,
                request_seconds=10.0,
                dial=dial,
                given_up=lambda: True,
            )
        assert clock.monotonic() - began <= 2.0


# ---- sockets that break ---------------------------------------------------------------------------------------------


class Breakable(socket.socket):
    """A socket that fails, or loses what is sent, as a test wants."""

    send_fails: Callable[[], None] | None = None
    receive_error: BaseException | None = None
    loses = False

    def _before_sending(self) -> None:
        if self.send_fails is not None:
            self.send_fails()

    def sendall(self, data: Any, *rest: Any) -> None:
        self._before_sending()
        return None if self.loses else super().sendall(data, *rest)

    def sendmsg(self, buffers: Any, *rest: Any) -> int:
        self._before_sending()
        return sum(map(len, buffers)) if self.loses else super().sendmsg(buffers, *rest)

    def recv_into(self, *arguments: Any) -> int:
        received = super().recv_into(*arguments)
        if self.receive_error is not None:
            raise self.receive_error
        return received


def breakable(made: list[Breakable]) -> rpc.Dial:
    def dial(address: Address, seconds: float) -> socket.socket:
        sock = Breakable(fileno=rpc.dial_tcp(address, seconds).detach())
        sock.settimeout(seconds)
        made.append(sock)
        return sock

    return dial


def opened(bootstrap: str) -> tuple[rpc.Channel, Breakable]:
    made: list[Breakable] = []
    (address,) = parse_addresses(bootstrap)
    channel = rpc.Channel.open(
        address, clock=SystemClock(), connect_seconds=10.0, request_seconds=10.0, dial=breakable(made)
    )
    return channel, made[0]


def ask(channel: rpc.Channel) -> rpc.Call:
    return channel.send(ApiKey.GET_METADATA, pb.MetadataRequest())


def test_a_request_that_cannot_be_sent_fails_and_ends_the_channel(bootstrap: str) -> None:
    channel, sock = opened(bootstrap)
    assert ask(channel).result(PATIENCE)

    def full() -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    sock.send_fails = full
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"sending GET_METADATA to .* failed: the server does not read"):
            ask(channel)
        assert channel.closed
    channel.join(PATIENCE)


def test_a_request_on_a_channel_that_breaks_meanwhile_has_the_error_of_the_break(bootstrap: str) -> None:
    channel, sock = opened(bootstrap)

    def broken() -> None:
        channel.close(Unavailable("the reader saw it first"))
        raise ConnectionResetError(104, "Connection reset by peer")

    sock.send_fails = broken
    with pytest.raises(Unavailable, match="the reader saw it first"):
        ask(channel).result(PATIENCE)
    channel.join(PATIENCE)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ConnectionResetError(104, "Connection reset by peer"), Unavailable, "broke: Connection reset by peer"),
        (ValueError("a bug"), InternalError, "the reader of .* failed: ValueError: a bug"),
    ],
)
def test_calls_end_with_the_reason_for_which_nothing_more_is_read(
    bootstrap: str, error: BaseException, kind: type[ForebayError], message: str
) -> None:
    channel, sock = opened(bootstrap)
    sock.receive_error = error
    with pytest.raises(kind, match=message):
        ask(channel).result(PATIENCE)
    assert channel.closed
    channel.join(PATIENCE)


def test_one_channel_to_each_server_stays_open(bootstrap: str) -> None:
    made: list[Breakable] = []
    with Connection(make_settings(bootstrap)) as first:
        nodes = first.admin.server_nodes()
    dial = breakable(made)
    asked: list[Address] = []

    def counted(address: Address, seconds: float) -> socket.socket:
        asked.append(address)
        return dial(address, seconds)

    (tablet, *_) = [node for node in nodes if node.role is ServerRole.TABLET]
    with Connection(make_settings(f"{tablet.host}:{tablet.port}"), dial=counted) as connection:
        for _ in range(3):
            connection.create_database(DATABASE, ignore_if_exists=True)  # of the coordinator
            connection.cluster.refresh()
    assert sorted(address.port for address in asked) == sorted({node.port for node in nodes})


def test_the_channel_to_a_server_that_has_left_the_cluster_is_closed(bootstrap: str) -> None:
    channel, _ = opened(bootstrap)
    with Connection(make_settings(bootstrap)) as connection:
        connection.admin.server_nodes()
        others = dict(connection.cluster._channels)
        connection.cluster._channels[Address("left.test", 1)] = channel
        connection.cluster.refresh()
        assert channel.closed
        assert Address("left.test", 1) not in connection.cluster._channels
        assert others.items() <= connection.cluster._channels.items()
        assert not any(other.closed for other in others.values())
    channel.join(PATIENCE)


def test_a_channel_that_is_opened_while_its_connection_closes_is_closed_too(bootstrap: str) -> None:
    made: list[Breakable] = []
    dial = breakable(made)

    def late(address: Address, seconds: float) -> socket.socket:
        connection.cluster.close()
        return dial(address, seconds)

    connection = Connection(make_settings(bootstrap), dial=late)
    with pytest.raises(Unavailable, match="this connection is closed"):
        connection.admin.server_nodes()
    (sock,) = made
    for _ in range(1000):
        if sock.fileno() < 0:
            break
        threading.Event().wait(0.01)  # its reader closes it
    assert sock.fileno() < 0


# ---- after a fork, and at the end of the process --------------------------------------------------------------------


def test_calls_of_a_forgotten_channel_end_without_a_word_to_the_server(bootstrap: str) -> None:
    channel, sock = opened(bootstrap)
    sock.loses = True
    call = ask(channel)
    parents = sock.dup()
    channel.forget()
    assert (channel.forgotten, channel.closed, sock.fileno()) == (True, True, -1)
    assert call.done
    with pytest.raises(Unavailable, match="belongs to another process"):
        call.response()
    with pytest.raises(Unavailable, match="belongs to another process"):
        ask(channel)
    assert parents.getpeername()  # still connected: for the server nothing has happened
    with parents:
        parents.shutdown(socket.SHUT_RDWR)
        channel.join(PATIENCE)


def test_a_forked_connection_has_its_own_sockets_and_locks_and_knows_what_its_parent_knew(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Breakable] = []
    connection = Connection(make_settings(bootstrap), dial=breakable(made))
    monkeypatch.setattr(session_module, "_live", [connection])
    nodes = connection.admin.server_nodes()
    parents = [sock.dup() for sock in made]
    with connection.cluster._lock:  # as a thread of the parent may, which the child does not have
        session_module._after_fork_in_child()
        assert [sock.fileno() for sock in made] == [-1] * len(parents)
        assert set(connection.cluster.view.nodes) == set(nodes)
        before = len(made)
        assert set(connection.admin.server_nodes()) == set(nodes)
    assert len(made) > before
    connection.close()
    connection._after_fork()
    assert connection.closed
    for sock in parents:
        with sock:
            sock.shutdown(socket.SHUT_RDWR)


@own_server
def test_at_the_end_of_the_process_each_connection_sends_what_it_holds_and_the_first_error_is_told(
    make_table: MakeTable, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table({"id": pa.int32()}, primary_key=["id"], options={"table.delete.behavior": "DISABLE"})
    closed, bad, good = (connect(bootstrap, writer_batch_timeout="1 h") for _ in range(3))
    closed.close()
    writers = [each.table(table.path).writer() for each in (bad, good)]
    writers[0].delete({"id": 1})
    writers[1].upsert({"id": 2})
    monkeypatch.setattr(session_module, "_live", [closed, bad, good])
    with pytest.raises(ForebayError, match=r"delete\.behavior"):
        session_module._close_all()
    assert (bad.closed, good.closed) == (True, True)
    assert table.scan().to_arrow()["id"].to_pylist() == [2]
    session_module._close_all()


def test_whether_a_server_answers_is_asked_once_on_a_connection_of_its_own(bootstrap: str) -> None:
    with connect(bootstrap) as connection:
        assert connection.cluster.is_answered(30.0)
        before = connection.cluster.calls()[1:]
        assert connection.cluster.is_answered(30.0)
        assert connection.cluster.calls()[1:] == before
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nowhere = Connection(make_settings(f"127.0.0.1:{silent.getsockname()[1]}"))
        assert not nowhere.cluster.is_answered(0.05)
    assert not nowhere.cluster.is_answered(30.0)
