"""The HTTP server of metrics and health: names that it answers to, and clients that send half a request."""

from __future__ import annotations

import errno
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import pairwise
from typing import Any
from wsgiref.simple_server import WSGIServer

import pytest

from forebay.base import monitoring
from forebay.base.http_names import name_of
from forebay.base.monitoring import Monitoring
from tests.patience import PATIENCE


@pytest.fixture
def port() -> Iterator[int]:
    pytest.importorskip("prometheus_client")
    server = Monitoring([], list, list)
    try:
        yield server.start("127.0.0.1", range(1), ["Metrics.example"])[1]
    finally:
        server.stop()


def status(port: int, host: str = "127.0.0.1") -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/healthz", headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as e:
        return e.code


def half_request(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
    sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: loc")
    return sock


def test_clients_that_send_half_a_request_do_not_shut_out_others(port: int) -> None:
    with ExitStack() as stack:
        for _ in range(monitoring._OPEN_MAX + 8):
            stack.enter_context(closing(half_request(port)))
            assert status(port) == 200


def test_a_request_has_to_come_in_whole_in_time(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "_REQUEST_SECONDS", 1e-6)
    with closing(half_request(request.getfixturevalue("port"))) as slow:
        assert slow.recv(1) == b""


def test_without_descriptors_it_waits_and_goes_on_later(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    accept, attempts = WSGIServer.get_request, list[float]()

    def refused(server: WSGIServer) -> Any:
        if len(attempts) < 3:
            attempts.append(time.monotonic())
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(server)

    monkeypatch.setattr(WSGIServer, "get_request", refused)
    assert status(port) == 200
    pauses = [later - earlier for earlier, later in pairwise(attempts)]
    assert min(pauses) >= monitoring._USED_UP_SECONDS, "it does not try all the time"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", 200), ("localhost:9249", 200), ("[::1]:9249", 200), ("metrics.example", 200),
        ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("[::1].evil.example", 403), ("[::1", 403),
        ("localhost:80.evil.example", 403), ("10.0.0.1", 403), ("localhost:", 403), ("a@localhost", 403),
    ],
)  # fmt: skip
def test_it_answers_to_names_that_it_knows(port: int, host: str, expected: int) -> None:
    assert status(port, host) == expected


def test_the_name_in_a_malformed_host_is_none() -> None:
    assert name_of("[::1].evil.example") == name_of("[evil]") == name_of("[::1]x") == name_of("") == ""
    assert name_of("[FE80::1]:80") == "fe80::1"
    assert name_of("Shop.Example:80") == "shop.example"
