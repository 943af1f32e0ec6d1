"""Log lines caused by clients do not fill a disk."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from forebay.cli import log_limit
from forebay.cli.log_limit import LINES_MAX, PERIOD_SECONDS, LogLimit
from forebay.testing.server import ServerProcess
from tests.patience import PATIENCE
from tests.server.raw_client import address, is_closed_by_peer


def line(
    text: str, *arguments: object, at: float = 0.0, logger: str = "forebay", level: int = logging.WARNING
) -> logging.LogRecord:
    record = logging.LogRecord(logger, level, __file__, 1, text, arguments, None)
    record.created = 1000.0 + at
    return record


def test_lines_of_one_kind_are_counted_apart_from_others_and_again_after_a_while() -> None:
    limit = LogLimit()
    assert all(limit.filter(line("closing %s", number)) for number in range(LINES_MAX))
    assert not limit.filter(line("closing %s", "one more"))
    assert limit.filter(line("opening %s", 1))
    assert limit.filter(line("closing %s", 1, logger="another"))
    assert not limit.filter(line("closing %s", 1, at=PERIOD_SECONDS - 0.1))
    later = line("closing %s", "100 %", at=PERIOD_SECONDS)
    assert limit.filter(later)
    assert later.getMessage() == "closing 100 % (2 more like this since the last one)"
    again = line("closing %s", 1, at=PERIOD_SECONDS)
    assert limit.filter(again)
    assert again.getMessage() == "closing 1"


def test_lines_at_debug_are_all_logged_and_leave_room_for_warnings() -> None:
    limit = LogLimit()
    assert all(limit.filter(line("request %s", number, level=logging.DEBUG)) for number in range(3 * LINES_MAX))
    assert all(limit.filter(line("request %s", number, level=logging.INFO)) for number in range(LINES_MAX))
    assert limit.filter(line("request %s", "slow"))


def test_few_kinds_of_lines_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_limit, "_KINDS_MAX", 3)
    limit = LogLimit()
    for number in range(10):
        assert limit.filter(line(f"kind {number}"))
        assert len(limit._kinds) <= 3


def test_a_clock_that_is_set_back_does_not_silence_the_log() -> None:
    limit = LogLimit()
    assert [limit.filter(line("full", at=3600)) for _ in range(LINES_MAX + 1)].count(True) == LINES_MAX
    assert limit.filter(line("full"))


def test_a_server_tells_of_connections_with_junk_now_and_then(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        for _ in range(5 * LINES_MAX):
            with socket.create_connection(address(server.ready["tablet.servers"]), PATIENCE) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert is_closed_by_peer(sock)
        server.stop()
        told = server.log_path.read_text().count("the peer speaks HTTP")
    assert LINES_MAX <= told < 5 * LINES_MAX
