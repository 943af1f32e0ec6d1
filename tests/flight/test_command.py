"""`forebay flight` as a command."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import adbc_driver_flightsql.dbapi as flightsql
import pytest

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import Unavailable
from forebay.cli.main import main
from forebay.flight.server import FlightSqlServer
from forebay.inprocess import EmbeddedConnection
from tests.patience import PATIENCE, until


def test_options_that_do_not_belong_together_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flight", "--tls-key", "key.pem"]) == 1
    assert "--tls-certificate and --tls-key belong together" in capsys.readouterr().err
    assert main(["flight", "--queries-max", "0"]) == 1
    assert "--queries-max is 0: it must be at least 1" in capsys.readouterr().err


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Unavailable, match="cannot listen on 127"):
        FlightSqlServer(None, {}, port=taken.getsockname()[1])


@pytest.fixture
def signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_it_says_where_it_serves(flight_lake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ready = tmp_path / "ready"

    def stop() -> None:
        until(ready.exists, "it serves")
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    try:
        assert main(["flight", "-w", flight_lake, "--port", "0", "--ready-file", str(ready)]) == 0
    finally:
        stopping.join()  # its signal would end this process once the handlers are those of before
    printed = capsys.readouterr().out
    assert ready.read_text() in printed
    assert "read only" in printed


@pytest.mark.slow
def test_it_serves_until_it_is_told_to_stop(live: EmbeddedConnection, flight_lake: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    command = [sys.executable, "-m", "forebay", "flight", "-b", live.bootstrap_servers, "-w", flight_lake]
    with subprocess.Popen([*command, "--port", "0", "--ready-file", str(ready)], stdout=subprocess.PIPE) as process:
        while not ready.exists() and process.poll() is None:
            SYSTEM_CLOCK.sleep(0.05)
        with closing(flightsql.connect(ready.read_text(), autocommit=True)) as client, client.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM lake.shop.items WHERE item < 3")
            assert cursor.fetchone() == (2,)
        process.terminate()
        printed = process.communicate(timeout=PATIENCE)[0].decode()
    assert process.returncode == 0
    assert "read only" in printed
