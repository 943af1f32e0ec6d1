"""Requests of many parts, through a socket that takes only some of them at a time."""

from __future__ import annotations

import socket
import threading

import pytest

from forebay.base.clock import ManualClock
from forebay.base.errors import Unavailable
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
