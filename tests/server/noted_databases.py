"""Metadata files whose connections are noted, to know which of them were left open."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from forebay.server.metadata_store import DatabaseFile, LocalDatabaseFile


class NotedDatabases:
    """Opens database files of this machine, as `Injected.database_file` does."""

    def __init__(self) -> None:
        self.connections: list[sqlite3.Connection] = []

    def __call__(self, path: str) -> DatabaseFile:
        return _Noted(path, self.connections.append)

    def left_open(self) -> int:
        """How many connections are open. They are referred to, so that none was closed by garbage collection."""
        return sum(map(_is_open, self.connections))


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
