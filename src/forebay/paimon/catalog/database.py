"""The SQL databases that a JDBC catalog lives in: SQLite, by the standard library, and PostgreSQL, by psycopg.

Every operation opens a connection and closes it: operations of a catalog are few, and so nothing is left open and
nothing is shared between threads or after a fork.
"""

from __future__ import annotations

import contextlib
import importlib
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from forebay.base.errors import AlreadyExists, InvalidRequest, StorageFailure, Unavailable, UnsupportedOperation

_SQLITE_WAIT_SECONDS = 30
_POSTGRESQL_WAIT_SECONDS = 30


class Database(ABC):
    """Statements are written with `?` for values. Thread-safe; it pickles."""

    lock_is_old: str
    """SQL: whether a row of the table of locks is older than its expiry allows."""

    @staticmethod
    def open(uri: str, options: Mapping[str, str]) -> Database:
        """The database of a JDBC URI, or of one without its `jdbc:`.

        `options`: `jdbc.user` and `jdbc.password`. Raises `InvalidRequest` for what is not a URI of the two databases.
        """
        plain = uri.removeprefix("jdbc:")
        if plain.startswith("sqlite:"):
            path = plain.removeprefix("sqlite:").removeprefix("file:").partition("?")[0]
            if path.startswith("//"):
                path = urlsplit(f"file:{path}").path
            if not path or path == ":memory:":
                raise InvalidRequest(f"option 'uri' is {uri!r}; name a file: jdbc:sqlite:/path/of/catalog.db")
            return SQLite(path)
        if plain.startswith(("postgresql://", "postgres://")):
            return PostgreSQL(plain, options.get("jdbc.user"), options.get("jdbc.password"))
        raise UnsupportedOperation(
            f"option 'uri' is {uri!r}; the JDBC catalog supports jdbc:sqlite:/path and jdbc:postgresql://host/database"
        )

    @abstractmethod
    def run(self, statement: str, values: Sequence[Any] = ()) -> tuple[list[tuple[Any, ...]], int]:
        """Run one statement in a transaction of its own: the rows it gives, and how many it changed.

        Raises `AlreadyExists` if it breaks a primary key, `Unavailable` if the database cannot be reached,
        `StorageFailure` for all else.
        """

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.run(statement, values)[0]

    def change(self, statement: str, *values: Any) -> int:
        """How many rows the statement changed."""
        return self.run(statement, values)[1]


class SQLite(Database):
    """A file on this machine."""

    lock_is_old = "strftime('%s', 'now') - strftime('%s', acquired_at) > expire_time_seconds"

    def __init__(self, path: str) -> None:
        self.path = unquote(path)

    def __repr__(self) -> str:
        return f"SQLite({self.path!r})"

    def run(self, statement: str, values: Sequence[Any] = ()) -> tuple[list[tuple[Any, ...]], int]:
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=_SQLITE_WAIT_SECONDS)) as connection, connection:
                cursor = connection.execute(statement, values)
                return cursor.fetchall(), cursor.rowcount
        except sqlite3.IntegrityError as e:
            raise AlreadyExists(f"{self.path}: {e}") from e
        except sqlite3.OperationalError as e:
            raise Unavailable(f"{self.path}: {e}") from e
        except sqlite3.Error as e:
            raise StorageFailure(f"{self.path}: {e}") from e


class PostgreSQL(Database):
    """A server. Needs the package psycopg."""

    lock_is_old = "EXTRACT(EPOCH FROM AGE(NOW(), acquired_at)) > expire_time_seconds"

    def __init__(self, url: str, user: str | None = None, password: str | None = None) -> None:
        self._url, self._user, self._password = url, user, password
        parts = urlsplit(url)
        self._name = f"{parts.hostname or 'localhost'}{parts.path}"
        _psycopg()

    def __repr__(self) -> str:
        return f"PostgreSQL({self._name!r})"

    def run(self, statement: str, values: Sequence[Any] = ()) -> tuple[list[tuple[Any, ...]], int]:
        psycopg = _psycopg()
        with self._errors(psycopg), self._connect(psycopg) as connection:
            cursor = connection.execute(statement.replace("?", "%s"), values)
            return (cursor.fetchall() if cursor.description is not None else []), cursor.rowcount

    def _connect(self, psycopg: Any) -> Any:
        given = {"user": self._user, "password": self._password}
        known = {name: value for name, value in given.items() if value is not None}
        return psycopg.connect(self._url, connect_timeout=_POSTGRESQL_WAIT_SECONDS, **known)

    @contextlib.contextmanager
    def _errors(self, psycopg: Any) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.UniqueViolation as e:
            raise AlreadyExists(f"{self._name}: {e}") from e
        except psycopg.OperationalError as e:
            raise Unavailable(f"{self._name}: {e}") from e
        except psycopg.Error as e:
            raise StorageFailure(f"{self._name}: {e}") from e


def _psycopg() -> Any:
    try:
        return importlib.import_module("psycopg")
    except ImportError as e:
        raise UnsupportedOperation(
            "a JDBC catalog in PostgreSQL needs the package psycopg: pip install 'forebay[postgresql]'"
        ) from e
