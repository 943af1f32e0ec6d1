"""Who calls: logins by user and password, tokens for what follows, and the options of a session.

A client logs in by HTTP's Basic header, in a handshake or in any call, and gets a token in the answer's headers, which
its further calls carry as Bearer. User and password are those of the Forebay server (SASL/PLAIN), which checks them;
calls with the token then use a connection as that user. An endpoint without logins gives a token to any user, for the
options of its session; clients that keep cookies need no token for these.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow.flight as fl

from forebay.base import threads
from forebay.base.ambient import Clock, IdSource
from forebay.base.errors import AccessDenied, ForebayError, LimitExceeded, Unavailable
from forebay.client.connection import Connection
from forebay.query.run import SqlDatabase
from forebay.query.statement import Namespace, TableName

V = TypeVar("V")

MIDDLEWARE = "session"
"""The name under which a call finds its session."""

_COOKIE = "arrow_flight_session_id"


class Expiring(Generic[V]):
    """Values by unguessable keys, which are dropped if they are not used for some time. Thread-safe.

    `what` and `option` are for the error of too many: what they are, and which option allows more.
    """

    def __init__(self, clock: Clock, seconds: float, count_max: int, what: str, option: str) -> None:
        self._clock, self._seconds, self._count_max, self._what, self._option = clock, seconds, count_max, what, option
        self._lock = threads.lock()
        self._entries: dict[str, tuple[float, V]] = {}

    def put(self, key: str, value: V) -> None:
        """Keep a value. Raises `LimitExceeded`."""
        with self._lock:
            if key not in self._entries and len(self._entries) >= self._count_max:
                raise LimitExceeded(
                    f"there are {self._count_max:,} {self._what}, the maximum: close some, or start the endpoint with "
                    f"a higher {self._option}"
                )
            self._entries[key] = self._clock.monotonic(), value

    def get(self, key: str) -> V | None:
        """The value, whose time begins again."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry[0] + self._seconds < self._clock.monotonic():
                return None
            self._entries[key] = self._clock.monotonic(), entry[1]
            return entry[1]

    def pop(self, key: str) -> V | None:
        """Remove a value and return it."""
        with self._lock:
            entry = self._entries.pop(key, None)
            return None if entry is None else entry[1]

    def expired(self) -> list[V]:
        """Remove the values that were not used, and return them."""
        with self._lock:
            now = self._clock.monotonic()
            late = [key for key, (used, _) in self._entries.items() if used + self._seconds < now]
            return [self._entries.pop(key)[1] for key in late]

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def __iter__(self) -> Iterator[V]:
        with self._lock:
            return iter([value for _, value in self._entries.values()])


class Login(NamedTuple):
    """A user whose password the server has accepted, for the sessions that use the same connection."""

    connection: Connection
    digest: bytes
    sessions: set[str]


@dataclass
class ClientSession:
    """A caller: what it may query, and its options."""

    key: str
    database: SqlDatabase
    user: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    login: Login | None = None
    is_kept: bool = False

    @property
    def owner(self) -> str:
        """To whom statements belong: a user. Without logins all callers are one."""
        return self.user or ""

    @property
    def namespace(self) -> Namespace:
        """The catalog and the database of names that have none."""
        return self.options.get("catalog"), self.options.get("schema")

    def qualified(self, name: TableName) -> TableName:
        """A name with the session's catalog and database, where it has none."""
        return name.within(self.namespace)


class Sessions:
    """All sessions. `connect` opens a connection as a user; None for an endpoint without logins."""

    def __init__(
        self,
        database: SqlDatabase | None,
        lakes: Mapping[str, Any],
        connect: Callable[[str, str], Connection] | None,
        sessions: Expiring[ClientSession],
        ids: IdSource,
        token: str | None = None,
    ) -> None:
        """`database` is that of callers who need no login. With `token` they need that, as a password or as Bearer."""
        self._token = token
        self._database, self._lakes, self._connect, self._sessions, self._ids = database, lakes, connect, sessions, ids
        self._salt = ids.token_hex().encode()
        self._lock, self._options_lock = threads.lock(), threads.lock()
        self._logins: dict[str, Login] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._sessions)

    def of_headers(self, headers: Mapping[str, list[Any]]) -> tuple[ClientSession, dict[str, str]]:
        """The session of a call, and the headers of its answer. Raises `AccessDenied`."""
        kind, _, value = _first(headers, "authorization").partition(" ")
        if kind.lower() == "basic":
            session = self._log_in(*_credentials(value))
            return session, {"authorization": f"Bearer {session.key}"}
        if kind.lower() == "bearer" and not self._is_token(value.strip()):
            bearer_session = self._sessions.get(value.strip())
            if bearer_session is None:
                raise AccessDenied("this login has expired, or the endpoint was restarted: connect again")
            return bearer_session, {}
        if self._database is None:
            raise AccessDenied("user and password are missing: this endpoint is for users of the Forebay server")
        if self._token is not None and kind.lower() != "bearer":  # one that gets here carries the token
            raise AccessDenied(
                "the token is missing: give the one that `forebay flight` printed as the password, of any user"
            )
        cookies = dict(part.strip().partition("=")[::2] for part in _first(headers, "cookie").split(";"))
        key = cookies.get(_COOKIE)
        if key is not None:
            return self._sessions.get(key) or ClientSession(key, self._database), {}
        key = self._ids.token_hex()
        return ClientSession(key, self._database), {"set-cookie": f"{_COOKIE}={key}"}

    def keep(self, session: ClientSession) -> None:
        """Have further calls find this session, which has options now. Raises `LimitExceeded`."""
        if not session.is_kept:
            self._sessions.put(session.key, session)
            session.is_kept = True

    def change_options(self, session: ClientSession, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Change the options of a session, one call at a time, and keep it for further calls. Raises `LimitExceeded`.

        A call with a cookie that no session is kept for has a session of its own, until there is one.
        """
        with self._options_lock:
            current = self._sessions.get(session.key) or session
            session.options = current.options = change(dict(current.options))
            if current.options:
                self.keep(current)

    def close(self, session: ClientSession) -> None:
        """End a session, and the connection that only it has used."""
        self._sessions.pop(session.key)
        self._end(session)

    def close_expired(self) -> None:
        """End the sessions that were not used for long."""
        for session in self._sessions.expired():
            self._end(session)

    def close_all(self) -> None:
        """End all sessions. A login that is under way is refused at its end."""
        with self._lock:
            self._is_closed = True
        for session in self._sessions:
            self.close(session)

    def _log_in(self, user: str, password: str) -> ClientSession:
        key = self._ids.token_hex()
        if self._connect is None:
            assert self._database is not None
            if self._token is not None and not self._is_token(password):
                raise AccessDenied("the password is not the token that `forebay flight` printed")
            session = ClientSession(key, self._database)
            self.keep(session)
            return session
        # The server is asked at each login: a password that was changed there does not work here any longer.
        connection = self._connect(user, password)
        digest = hashlib.sha256(self._salt + password.encode()).digest()
        with self._lock:
            login = self._logins.get(user)
            if login is None or not hmac.compare_digest(login.digest, digest):
                login = self._logins[user] = Login(connection, digest, set())
            login.sessions.add(key)
        if login.connection is not connection:
            connection.close()
        session = ClientSession(key, SqlDatabase(login.connection, self._lakes), user, login=login)
        try:
            self.keep(session)
        except LimitExceeded:
            self._end(session)
            raise
        with self._lock:
            is_closed = self._is_closed
        if is_closed:  # while the server was asked
            self.close(session)
            raise Unavailable("the endpoint is stopping")
        return session

    def _is_token(self, text: str) -> bool:
        return self._token is not None and hmac.compare_digest(text.encode(), self._token.encode())

    def _end(self, session: ClientSession) -> None:
        session.is_kept, login = False, session.login
        if login is None or session.user is None:
            return
        with self._lock:
            login.sessions.discard(session.key)
            if login.sessions:
                return
            if self._logins.get(session.user) is login:
                del self._logins[session.user]
        login.connection.close()


def _first(headers: Mapping[str, list[Any]], name: str) -> str:
    value = (headers.get(name) or [""])[0]
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _credentials(value: str) -> tuple[str, str]:
    text = value.strip()
    with suppress(binascii.Error, UnicodeDecodeError):
        # ADBC's driver leaves the padding out.
        decoded = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        user, colon, password = decoded.decode().partition(":")
        if colon:
            return user, password
    raise AccessDenied("the header 'authorization: Basic' does not have the form user:password")


class SessionFactory(fl.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow is not typed
    """Finds the session of each call."""

    def __init__(self, sessions: Sessions, raised: Callable[[ForebayError], Exception]) -> None:
        super().__init__()
        self._sessions, self._raised = sessions, raised

    def start_call(self, info: Any, headers: Mapping[str, list[Any]]) -> CallSession:
        try:
            return CallSession(*self._sessions.of_headers(headers))
        except ForebayError as e:
            raise self._raised(e) from None


class CallSession(fl.ServerMiddleware):  # type: ignore[misc]  # pyarrow is not typed
    """The session of one call."""

    def __init__(self, session: ClientSession, headers: dict[str, str]) -> None:
        super().__init__()
        self.session, self._headers = session, headers

    def sending_headers(self) -> dict[str, str]:
        return self._headers


class NoHandshake(fl.ServerAuthHandler):  # type: ignore[misc]  # pyarrow is not typed
    """Lets a handshake pass: headers log in, which the session has seen before."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        return

    def is_valid(self, token: Any) -> str:
        return ""
