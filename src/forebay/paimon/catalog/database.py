"""The SQL databases of a JDBC catalog: SQLite, through the standard library, and PostgreSQL, through pg8000.

Every operation opens and closes a connection: catalog operations are rare, and so no connection stays open or is shared
between threads or after a fork.
"""

from __future__ import annotations

import contextlib
import getpass
import importlib
import sqlite3
import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from forebay.base.errors import (
    AccessDenied,
    AlreadyExists,
    ForebayError,
    InvalidRequest,
    OutcomeUnknown,
    StorageFailure,
    Unavailable,
    UnsupportedOperation,
)
from forebay.base.locations import location

_SQLITE_WAIT_SECONDS = 30
_POSTGRESQL_WAIT_SECONDS = 30
_POSTGRESQL_PORT = 5432
_URI_PARAMETERS = frozenset({"host", "user", "password", "ssl", "sslmode"})
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_UNIQUE_VIOLATION = "23505"
_ACCESS_CODES = ("28000", "28P01", "42501")


class Database(ABC):
    """A SQL database. Statements use `?` for values. Thread-safe; it can be pickled."""

    lock_is_old: str
    """SQL: whether a row of the lock table has expired."""

    @staticmethod
    def open(uri: str, options: Mapping[str, str]) -> Database:
        """The database of a JDBC URI, with or without `jdbc:`.

        `options`: `jdbc.user` and `jdbc.password`. Raises `InvalidRequest` for an invalid URI.
        """
        plain = uri.removeprefix("jdbc:")
        if plain.startswith("sqlite:"):
            path = plain.removeprefix("sqlite:").partition("?")[0]
            if path.startswith("file:"):  # SQLite's own URIs are the only ones that are encoded
                path = "file:" + unquote(path.removeprefix("file:"))
            if path in ("", "file:", ":memory:", "file::memory:"):
                raise InvalidRequest(f"option 'uri' is {uri!r}; name a file: jdbc:sqlite:/path/of/catalog.db")
            return SQLite(_sqlite_file(path))
        if plain.startswith(("postgresql://", "postgres://")):
            return PostgreSQL(plain, options.get("jdbc.user"), options.get("jdbc.password"))
        raise UnsupportedOperation(
            f"option 'uri' is {uri!r}; the JDBC catalog supports jdbc:sqlite:/path and jdbc:postgresql://host/database"
        )

    @abstractmethod
    def run(self, statement: str, values: Sequence[Any] = ()) -> tuple[list[tuple[Any, ...]], int]:
        """Run one statement in a separate transaction; return the rows, and the number of rows changed.

        Raises `AlreadyExists` for a primary key violation, `Unavailable` if the database cannot be reached,
        `StorageFailure` for all other errors.
        """

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.run(statement, values)[0]

    def change(self, statement: str, *values: Any) -> int:
        """Run a statement; return the number of rows changed."""
        return self.run(statement, values)[1]


def _sqlite_file(path: str) -> str:
    """The absolute path of a database; that of a `file:` URI may be relative, in SQLite."""
    inside = path.removeprefix("file:")
    return location(inside if inside[:1] not in ("", "/") else path, "the file in option 'uri'")


class SQLite(Database):
    """A file on this machine."""

    lock_is_old = "strftime('%s', 'now') - strftime('%s', acquired_at) > expire_time_seconds"

    def __init__(self, path: str) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"SQLite({self.path!r})"

    def run(self, statement: str, values: Sequence[Any] = ()) -> tuple[list[tuple[Any, ...]], int]:
        """See `Database.run`. Waits up to `_SQLITE_WAIT_SECONDS` for the lock of another writer."""
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
    """A PostgreSQL server. Needs the package pg8000.

    The URI parameters `user`, `password`, `ssl`, `sslmode` and `host` (the directory of a socket) are supported.
    """

    lock_is_old = "EXTRACT(EPOCH FROM AGE(NOW(), acquired_at)) > expire_time_seconds"

    def __init__(self, url: str, user: str | None = None, password: str | None = None) -> None:
        parts = urlsplit(url)
        parameters = dict(parse_qsl(parts.query))
        unknown = sorted(parameters.keys() - _URI_PARAMETERS)
        if unknown:
            raise UnsupportedOperation(
                f"option 'uri' has parameter '{unknown[0]}'; supported are {', '.join(sorted(_URI_PARAMETERS))}"
            )
        self._where: dict[str, Any] = {"host": parts.hostname or "localhost", "port": parts.port or _POSTGRESQL_PORT}
        if "host" in parameters:
            self._where = {"unix_sock": f"{parameters['host']}/.s.PGSQL.{parts.port or _POSTGRESQL_PORT}"}
        self._user = user or parameters.get("user") or unquote(parts.username or "") or getpass.getuser()
        self._password = password or parameters.get("password") or (unquote(parts.password) if parts.password else None)
        self._database = unquote(parts.path.lstrip("/")) or self._user
        self._encryption = parameters.get("sslmode", "require" if parameters.get("ssl") == "true" else "disable")
        if self._encryption not in _SSL_MODES:
            raise InvalidRequest(f"sslmode '{self._encryption}' in option 'uri' is none of {', '.join(_SSL_MODES)}")
        self._name = f"{parameters.get('host') or parts.hostname or 'localhost'}/{self._database}"
        _pg8000()

    def __repr__(self) -> str:
        return f"PostgreSQL({self._name!r})"

    def run(self, statement: str, values: Sequence[Any] = ()) -> tuple[list[tuple[Any, ...]], int]:
        """See `Database.run`. Raises `OutcomeUnknown` if the connection breaks during a change."""
        pg8000 = _pg8000()
        with self._errors(pg8000, Unavailable):
            connection = pg8000.connect(
                user=self._user, password=self._password, database=self._database, timeout=_POSTGRESQL_WAIT_SECONDS,
                ssl_context=self._ssl_context(), **self._where,
            )  # fmt: skip
        # Each statement commits separately: a change may have been made even if the response is lost.
        is_query = statement.lstrip().upper().startswith("SELECT")
        with contextlib.closing(connection), self._errors(pg8000, Unavailable if is_query else OutcomeUnknown):
            connection.autocommit = True
            cursor = connection.cursor()
            cursor.execute(statement.replace("?", "%s"), tuple(values))
            rows = [tuple(row) for row in cursor.fetchall()] if cursor.description is not None else []
            return rows, cursor.rowcount

    def _ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context, as in libpq: `require` encrypts, and only the `verify-` modes verify the server."""
        if self._encryption in ("disable", "allow", "prefer"):
            return None
        context = ssl.create_default_context()
        context.check_hostname = self._encryption == "verify-full"
        if self._encryption == "require":
            context.verify_mode = ssl.CERT_NONE
        return context

    @contextlib.contextmanager
    def _errors(self, pg8000: Any, broken: type[ForebayError]) -> Iterator[None]:
        """Translate errors; connection errors become `broken`."""
        try:
            yield
        except pg8000.DatabaseError as e:
            fields = e.args[0] if e.args and isinstance(e.args[0], dict) else {}
            code, message = str(fields.get("C", "")), fields.get("M", str(e))
            raise _kind_of(code)(f"{self._name}: {message} ({code or type(e).__name__})") from e
        except (pg8000.InterfaceError, OSError) as e:
            raise broken(f"{self._name}: {e}") from e


def _kind_of(code: str) -> type[ForebayError]:
    """The error class for an SQLSTATE, whose first two characters are its class."""
    if code == _UNIQUE_VIOLATION:
        return AlreadyExists
    if code in _ACCESS_CODES:
        return AccessDenied
    return Unavailable if code[:2] in ("08", "53", "57") else StorageFailure


def _pg8000() -> Any:
    try:
        return importlib.import_module("pg8000.dbapi")
    except ImportError as e:
        raise UnsupportedOperation(
            "a JDBC catalog in PostgreSQL needs the package pg8000: pip install 'forebay[postgresql]'"
        ) from e
