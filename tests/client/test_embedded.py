"""`forebay.embedded`: what is closed with the connection, after a failed start, and with the process."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base import threads
from forebay.base.errors import InvalidRequest
from forebay.inprocess import EmbeddedConnection
from tests.patience import PATIENCE


def is_served(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What is registered for the end of the process."""
    registered: list[Callable[[], None]] = []

    def register(call: Callable[..., None], *arguments: Any) -> None:
        registered.append(lambda: call(*arguments))

    monkeypatch.setattr(threads, "register_atexit", register)
    return registered


def test_the_end_of_the_process_sends_what_writers_hold_and_stops_the_server(
    tmp_path: Path, at_exit: list[Callable[[], None]]
) -> None:
    connection = forebay.embedded(tmp_path / "data", writer_batch_timeout="1 h")
    connection.create_table("fluss.t", {"a": pa.int64()}, buckets=1)
    writer = connection.table("fluss.t").writer()
    writer.append({"a": 7})
    address = connection.bootstrap_servers
    at_exit[-1]()
    assert connection.closed
    assert not is_served(address)
    with forebay.embedded(tmp_path / "data") as again:
        assert again.table("fluss.t").scan().to_arrow().to_pylist() == [{"a": 7}]


def test_at_the_end_of_the_process_nothing_is_closed_that_is_closed_or_gone(
    tmp_path: Path, at_exit: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = forebay.embedded(tmp_path / "data")
    connection.close()
    closed: list[Any] = []
    monkeypatch.setattr(EmbeddedConnection, "close", lambda *arguments: closed.append(arguments))
    at_exit[-1]()
    del connection
    at_exit[-1]()
    assert closed == []


def test_a_directory_is_free_again_when_the_connection_to_its_server_fails(tmp_path: Path) -> None:
    with pytest.raises((InvalidRequest, TypeError), match="no_such_option"):
        forebay.embedded(tmp_path / "data", no_such_option=1)
    with forebay.embedded(tmp_path / "data") as connection:
        address = connection.bootstrap_servers
        assert is_served(address)
    assert not is_served(address)
