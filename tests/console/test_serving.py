"""The console's HTTP server: clients that send half requests beside those that ask properly."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from forebay.base import threads
from tests.patience import PATIENCE

serving = pytest.importorskip("forebay.console.serving")


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the length of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
    await send({"type": "http.response.body", "body": b"%03d" % size})


@pytest.fixture
def port() -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = serving.make_server(app)
    running = threads.thread(lambda: asyncio.run(server.serve(sockets=[listening])), name="serving")
    running.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    running.join(PATIENCE)
    listening.close()


def ask(port: int, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", body, timeout=PATIENCE) as answer:
        return bytes(answer.read())


def begun(port: int, data: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
    sock.sendall(data)
    return sock


HALF_HEAD = b"GET / HTTP/1.1\r\nHost: loc"
HALF_BODY = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc"
KEPT = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_half_requests_do_not_shut_the_console(port: int) -> None:
    with ExitStack() as stack:
        for i in range(serving.OPEN_MAX + 20):
            stack.enter_context(closing(begun(port, (b"", HALF_HEAD, HALF_BODY)[i % 3])))
            if i % 10 == 0:
                assert ask(port) == b"000"
        assert ask(port, b"x" * 77) == b"077"


@pytest.mark.parametrize("data", [b"", HALF_HEAD, HALF_BODY])
def test_a_request_has_to_come_in_whole_in_time(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 1e-6)
    with closing(begun(request.getfixturevalue("port"), data)) as slow:
        try:
            assert slow.recv(1) == b""
        except ConnectionResetError:
            pass


def test_a_connection_is_kept_for_more_requests(port: int) -> None:
    with closing(begun(port, KEPT)) as kept:
        assert answered(kept).endswith(b"000")
        kept.sendall(HALF_BODY)
        kept.sendall(b"x" * 97)
        assert answered(kept).endswith(b"100")
        kept.sendall(KEPT + KEPT)
        assert answered(kept, 2).endswith(b"000")


def answered(sock: socket.socket, count: int = 1) -> bytes:
    """The next answers, each of which has three bytes behind its head."""
    data = b""
    while data.count(b"\r\n\r\n") < count or data[-7:-3] != b"\r\n\r\n":
        data += sock.recv(1000)
    return data
