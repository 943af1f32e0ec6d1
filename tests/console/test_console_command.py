"""`forebay console` and `forebay server --console` as processes."""

from __future__ import annotations

import json
import os
import re
import signal
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
from forebay.testing.server import ServerProcess


@contextmanager
def started(*arguments: str, environment: Any = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command that prints the console's address, and that address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "forebay", *arguments], stdout=subprocess.PIPE, text=True,
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
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
        return json.load(answer)


def test_it_prints_its_address_tails_a_table_and_stops_when_it_is_told_to(forebay_server: Any) -> None:
    address = forebay_server.bootstrap_servers
    with forebay.connect(address) as connection, started("console", "-b", address, "--port", "0") as (process, url):
        table = connection.create_table("fluss.events", {"n": "INT"})
        assert url.startswith("http://127.0.0.1:")
        session = got(f"{url}api/session")
        assert (session["needs"], session["bootstrap_servers"]) == (None, address)
        with urllib.request.urlopen(f"{url}api/tail/fluss/events", timeout=60) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert stream.readline() == b"event: columns\n"
            table.append([{"n": 7}])
            while b"7]" not in stream.readline():
                pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


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
