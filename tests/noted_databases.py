"""Connections to SQLite that are noted, to know which of them were left open."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from forebay.server.metadata_store import DatabaseFile, LocalDatabaseFile


class NotedConnections:
    """Connections; they are referred to, so that none was closed by garbage collection."""

    def __init__(self) -> None:
        self.all: list[sqlite3.Connection] = []

    def left_open(self) -> int:
        """How many of them are open."""
        return sum(map(_is_open, self.all))


def noted_connections(monkeypatch: pytest.MonkeyPatch) -> NotedConnections:
    """Note the connections of SQLAlchemy, and of whoever else looks `sqlite3.connect` up."""
    noted, connect = NotedConnections(), sqlite3.connect

    def noting(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **named)
        noted.all.append(connection)
        return connection

    for module in (sqlite3, sqlite3.dbapi2):
        monkeypatch.setattr(module, "connect", noting)
    return noted


class NotedDatabases(NotedConnections):
    """Opens database files of this machine, as `Injected.database_file` does."""

    def __call__(self, path: str) -> DatabaseFile:
        return _Noted(path, self.all.append)


class _Noted(LocalDatabaseFile):
    def __init__(self, path: str, note: Callable[[sqlite3.Connection], None]) -> None:
        super().__init__(path)
        self._note = note

    def connect(self) -> sqlite3.Connection:
        connection = super().connect()
        self._note(connection)
        return connection


def _is_open(connection: sqlite3.Connection) -> bool:
    try:
        connection.total_changes  # noqa: B018 - a closed connection raises
    except sqlite3.ProgrammingError:
        return False
    return True
