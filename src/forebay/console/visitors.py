"""Who may use a console: hosts and origins, the token, logins to the server, and sessions.

Three things keep strangers out. A page of another site, also one whose name was made to resolve to this machine (DNS
rebinding), is refused by the headers Host, Origin and Sec-Fetch-Site. Whoever reaches the port needs a token if the
console listens elsewhere than on loopback, or has a login of its own to the server. And where the server asks for a
login and the console has none, each visitor gives theirs, and sees what that user may see.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from forebay.base import threads
from forebay.base.ambient import SYSTEM_IDS, Clock, IdSource
from forebay.base.errors import AccessDenied, ErrorCode, InvalidRequest, Unavailable
from forebay.base.http_names import answers_to, name_of, own_names
from forebay.console.session import Console

TOKEN, PASSWORD = "token", "password"
"""What a visitor has to give: the console's token, or name and password of a user of the server."""

_LOGINS_MAX = 32
_SESSIONS_MAX = 100
_IDLE_SECONDS = 12 * 3600.0


@dataclass(frozen=True)
class Doors:
    """The names under which a console answers.

    A page that rebinds its own name to this machine sends that name. So a console answers to names that it knows, and
    to addresses, if it listens elsewhere than on loopback.
    """

    host: str
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, host: str, also: tuple[str, ...] = ()) -> Doors:
        """The doors of a console that listens on `host`; `also` are further names, such as that of a proxy."""
        return cls(host, own_names(host) | {name.lower() for name in also})

    def refusal(self, method: str, headers: Mapping[str, str]) -> str | None:
        """Why a request is refused; None if it is welcome."""
        netloc = headers.get("host", "")
        name = name_of(netloc)
        if not answers_to(name, self.names, self.host):
            return (
                f"this console does not answer to the name {name!r}: open it by the address that it printed, or name "
                "it with --allow-host"
            )
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != netloc.lower():
            return f"a page of {origin} may not use this console"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            # Another site may lead to the console by a link, which shows its page, and nothing else.
            is_link = headers.get("sec-fetch-mode") == "navigate" and method == "GET"
            if not is_link or headers.get("sec-fetch-dest") not in (None, "document"):
                return "another site may not use this console"
        if method not in ("GET", "HEAD") and (origin is None or headers.get("x-forebay-console") != "1"):
            return "only the console's own page may send this: it needs the headers Origin and X-Forebay-Console"
        return None


@dataclass
class _Visit:
    console: Console
    user: str | None
    last_used: float


@dataclass
class Visitors:
    """The visitors of a console. Thread-safe.

    `shared` is the console that all see; None if each visitor logs in to the server, for which `open` makes a console
    from name and password. `token` is what visitors of a shared console give first; None if they need none.
    """

    clock: Clock
    shared: Console | None = None
    token: str | None = None
    open: Callable[[str, str], Console] | None = None
    ids: IdSource = SYSTEM_IDS
    _visits: OrderedDict[str, _Visit] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.logins = threads.executor(_LOGINS_MAX, "forebay-console-login")
        """The threads of logins, which wait while the server delays its answers to wrong passwords."""
        self._lock = threads.lock()
        self._is_closed = False

    @property
    def needs(self) -> str | None:
        """The secret that a visitor has to give: `TOKEN`, `PASSWORD`, or None."""
        if self.shared is None:
            return PASSWORD
        return None if self.token is None else TOKEN

    def console(self, session: str | None, bearer: str | None = None) -> Console | None:
        """The console of a request, by its session, or by the token that a program sends; None for strangers."""
        if self.needs is None:
            return self.shared
        if self.needs == TOKEN and bearer is not None and self._is_token(bearer):
            return self.shared
        visit = self._session(session)
        return None if visit is None else visit.console

    def user(self, session: str | None) -> str | None:
        """The user that a visitor has logged in as."""
        visit = self._session(session)
        return None if visit is None else visit.user

    def _session(self, session: str | None) -> _Visit | None:
        now = self.clock.monotonic()
        with self._lock:
            visit = None if session is None else self._visits.get(session)
            if visit is None or session is None:
                return None
            if now - visit.last_used <= _IDLE_SECONDS:
                visit.last_used = now
                self._visits.move_to_end(session)
                return visit
            del self._visits[session]
        self._end(visit)
        return None

    def log_in(self, token: str | None = None, user: str | None = None, password: str | None = None) -> str:
        """A new session. Raises `AccessDenied` for a wrong token, user or password."""
        if self.needs == TOKEN:
            if token is None or not self._is_token(token):
                raise AccessDenied("this is not the token that the console printed", ErrorCode.AUTHENTICATE_EXCEPTION)
            assert self.shared is not None
            return self._begin(_Visit(self.shared, None, self.clock.monotonic()))
        if self.needs == PASSWORD:
            if not user or password is None:
                raise InvalidRequest("give the name of a user of the server, and the password")
            assert self.open is not None
            return self._begin(_Visit(self.open(user, password), user, self.clock.monotonic()))
        raise InvalidRequest("this console requires no login")

    def log_out(self, session: str | None) -> None:
        """End a session."""
        with self._lock:
            visit = None if session is None else self._visits.pop(session, None)
        if visit is not None:
            self._end(visit)

    def close(self) -> None:
        """End all sessions, and close the shared console."""
        with self._lock:
            self._is_closed = True
            visits = list(self._visits.values())
            self._visits.clear()
        self.logins.shutdown(wait=False, cancel_futures=True)
        for visit in visits:
            self._end(visit)
        if self.shared is not None:
            self.shared.close()

    def _begin(self, session: _Visit) -> str:
        name = self.ids.token_hex()
        dropped = None
        with self._lock:
            is_closed = self._is_closed  # while the server was asked whether it knows the user
            if is_closed:
                dropped = session
            else:
                self._visits[name] = session
                if len(self._visits) > _SESSIONS_MAX:
                    dropped = self._visits.popitem(last=False)[1]
        if dropped is not None:
            self._end(dropped)
        if is_closed:
            raise Unavailable("this console is stopping")
        return name

    def _end(self, session: _Visit) -> None:
        if session.console is not self.shared:
            session.console.close()

    def _is_token(self, text: str) -> bool:
        return self.token is not None and hmac.compare_digest(text.encode(), self.token.encode())
