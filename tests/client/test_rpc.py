"""Requests of many parts, through a socket that takes only some of them at a time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from forebay.base.clock import ManualClock
from forebay.base.errors import AccessDenied, ErrorCode, Unavailable
from forebay.client import rpc
from forebay.client.options import Address


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
        reader.join(10)
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
        (5, ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION, 6, True),
        (6, ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION, 6, False),
        (1, ErrorCode.AUTHENTICATE_EXCEPTION, 1, False),
    ],
)
def test_a_login_that_the_server_puts_off_is_repeated_five_times_and_one_that_it_refuses_is_not(
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
