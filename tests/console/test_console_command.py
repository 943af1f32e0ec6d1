"""`forebay console` and `forebay server --console` as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.cli.main import main
from forebay.console.session import Console
from forebay.testing.server import ServerProcess
from tests.patience import PATIENCE


@contextmanager
def started(
    *arguments: str, environment: Any = None, stderr: Any = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command that prints the console's address, and that address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "forebay", *arguments], stdout=subprocess.PIPE, stderr=stderr, text=True,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        found = None
        for line in process.stdout:
            found = re.search(r"http://\S+", line.partition("console of")[2])
            if found is not None:
                break
        assert found is not None, "it ended without an address"
        yield process, found[0]
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def got(url: str, **headers: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE) as answer:
        return json.load(answer)


def test_it_prints_its_address_tails_a_table_and_stops_when_it_is_told_to(forebay_server: Any, tmp_path: Path) -> None:
    address, errors = forebay_server.bootstrap_servers, tmp_path / "stderr"
    command = ("console", "-b", address, "--port", "0")
    with (
        forebay.connect(address) as connection,
        errors.open("w") as stderr,
        started(*command, stderr=stderr) as (process, url),
    ):
        table = connection.create_table("fluss.events", {"n": "INT"})
        assert url.startswith("http://127.0.0.1:")
        session = got(f"{url}api/session")
        assert (session["needs"], session["bootstrap_servers"]) == (None, address)
        with urllib.request.urlopen(f"{url}api/tail/fluss/events", timeout=PATIENCE) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert stream.readline() == b"event: columns\n"
            table.append([{"n": 7}])
            while b"7]" not in stream.readline():
                pass
            process.send_signal(signal.SIGTERM)  # while the tail goes on
            assert process.wait(PATIENCE) == 0
        assert errors.read_text() == ""


def test_a_console_that_cannot_listen_closes_its_connection(
    forebay_server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Console] = []
    close = Console.close

    def noted(console: Console) -> None:
        closed.append(console)
        close(console)

    monkeypatch.setattr(Console, "close", noted)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["console", "-b", forebay_server.bootstrap_servers, "--port", port]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
    assert [console.conn.cluster.closed for console in closed] == [True]


@pytest.mark.slow
def test_it_stops_while_a_statement_runs_and_while_its_server_does_not_answer(tmp_path: Path) -> None:
    endless = {"statement": "SELECT count(*) FROM range(10000000) a, range(100000) b WHERE a.range + b.range = 7"}
    with ServerProcess(tmp_path / "data") as server:
        for request in (b"POST /api/sql", b"GET /api/tables"):
            with started("console", "-b", server.bootstrap_servers, "--port", "0") as (process, url):
                place = url.removeprefix("http://").rstrip("/")
                body = json.dumps(endless).encode() if request.startswith(b"POST") else b""
                head = f" HTTP/1.1\r\nHost: {place}\r\nOrigin: http://{place}\r\nX-Forebay-Console: 1\r\n"
                head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                host, _, port = place.partition(":")
                with socket.create_connection((host, int(port))) as client:
                    if not body:
                        os.kill(server.pid, signal.SIGSTOP)
                    client.sendall(request + head.encode() + body)
                    client.settimeout(1.0)
                    with pytest.raises(TimeoutError):  # under way
                        client.recv(1)
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(PATIENCE) == 0
        os.kill(server.pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_server_has_a_console_beside_it_that_ends_with_it(tmp_path: Path) -> None:
    ports = ("--coordinator-port", "0", "--tablet-port", "0", "--console", "0")
    with started("server", "--data-dir", str(tmp_path / "data"), *ports) as (process, url):
        assert got(f"{url}api/tables")["items"] == []
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = threading.Event()
        while True:
            try:
                got(f"{url}api/session")
            except OSError:
                break
            deadline.wait(0.1)


@pytest.mark.slow
def test_with_a_user_the_console_asks_for_its_token(tmp_path: Path) -> None:
    users = {
        "security.sasl.plain.jaas.config": "org.apache.fluss.security.auth.sasl.plain.PlainLoginModule required "
        'user_ann="swordfish";'
    }
    server = ServerProcess(tmp_path / "data", sasl=True, settings=users).start()
    try:
        address = server.bootstrap_servers
        own = ("console", "-b", address, "--port", "0", "--user", "ann")
        with started(*own, environment={"FOREBAY_PASSWORD": "swordfish"}) as (_, url):
            page, _, token = url.partition("#token=")
            assert got(f"{page}api/session")["needs"] == "token"
            assert got(f"{page}api/tables", Authorization=f"Bearer {token}")["items"] == []
        with started("console", "-b", address, "--port", "0") as (_, url):
            assert got(f"{url}api/session")["needs"] == "password"
    finally:
        server.kill()
