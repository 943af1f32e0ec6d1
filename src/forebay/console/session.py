"""The state of a running console: the connection, the lakes, workers for requests that wait, and cached answers."""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from forebay.base import threads
from forebay.base.ambient import Clock
from forebay.base.errors import InvalidRequest, LimitExceeded
from forebay.client.admin.server_description import ServerDescription
from forebay.client.connection import Connection, connect
from forebay.console.background import Tasks
from forebay.lake.lru_cache import LruCache
from forebay.query.isolated import StatementLimits, StatementProcesses
from forebay.query.run import SqlDatabase

R = TypeVar("R")
T = TypeVar("T")

LIMIT_MAX = 1000
"""The most items of one page."""

TAILS_MAX = 10
"""The most live tails at a time."""

STATEMENTS_MAX = 4
"""The most statements of the SQL box at a time."""

_ANSWER_SECONDS = 0.5
_WORKERS = 12
_PARTS_AT_ONCE = 8
_WAITING_MAX = 200
_REMEMBERED_MAX = 20_000
_TABLES_OF_FILES = 8
_CURSOR_SECONDS = 900.0
_SAMPLES_MAX = 300
_GAP_SECONDS = 60.0

CLIENT_OPTIONS = {"connect-timeout": "5 s", "request-timeout": "15 s", "retry-timeout": "4 s"}
"""A page rather shows that the server does not respond than wait a minute for it, as programs do."""


@dataclass
class Console:
    """A console: its connection to a cluster, opened lakes by name, and whether visitors may change anything.

    Functions of screens wait for servers and disks, so they run in a bounded number of threads: `run`. `each` divides
    the work of one function; statements run in `processes`. `remembered` keeps answers for seconds, which many visitors
    and repeated requests share.
    """

    conn: Connection
    bootstrap_servers: str
    warehouses: Mapping[str, Any] = field(default_factory=dict)
    allow_changes: bool = False
    shared_processes: StatementProcesses | None = None

    def __post_init__(self) -> None:
        self.processes = self.shared_processes or StatementProcesses(StatementLimits(STATEMENTS_MAX))
        self.clock: Clock = self.conn.clock
        self._workers = threads.executor(_WORKERS, "forebay-console")
        self._parts = threads.executor(_PARTS_AT_ONCE, "forebay-console-part")
        self._tails = threads.executor(TAILS_MAX, "forebay-console-tail")
        self._waiting = 0
        self._rooms: dict[str, int] = {}
        self._lock = threads.lock()
        self._samples: deque[ServerDescription] = deque(maxlen=_SAMPLES_MAX)
        self._sampled = 0.0
        self._answers: OrderedDict[Any, tuple[float, Any]] = OrderedDict()
        self._changes = 0
        self.tasks = Tasks(self.clock)
        self._files: LruCache[Any, threads.Future[Any]] = LruCache(_TABLES_OF_FILES)

    @classmethod
    def open(
        cls,
        bootstrap_servers: str,
        user: str | None = None,
        password: str | None = None,
        *,
        warehouses: Mapping[str, Any] | None = None,
        lake_options: Mapping[str, str] | None = None,
        allow_changes: bool = False,
        processes: StatementProcesses | None = None,
    ) -> Console:
        """A console with a connection of its own. Raises as `forebay.connect` does.

        Statements run in `processes`, which several consoles may share; without them, in processes of its own.
        """
        conn = connect(bootstrap_servers, user, password, lake_options=lake_options, **CLIENT_OPTIONS)
        return cls(conn, bootstrap_servers, warehouses or {}, allow_changes, processes)

    @cached_property
    def database(self) -> SqlDatabase:
        """The tables of the SQL box. Raises `UnsupportedOperation` without DuckDB."""
        return SqlDatabase(self.conn, self.warehouses)

    def submit_tail(self, function: Callable[[], R]) -> threads.Future[R]:
        """Have a thread call a function that waits for what is written: it has none of the workers."""
        return self._tails.submit(function)

    def submit(self, function: Callable[..., R], *arguments: Any, **keywords: Any) -> threads.Future[R]:
        """Have a worker call a function. Raises `LimitExceeded` if too much waits already."""
        with self._lock:
            if self._waiting >= _WAITING_MAX:
                raise LimitExceeded(f"{_WAITING_MAX} requests already wait in this console; try again in a moment")
            self._waiting += 1
        future = self._workers.submit(function, *arguments, **keywords)
        future.add_done_callback(lambda _: self._done())
        return future

    def _done(self) -> None:
        with self._lock:
            self._waiting -= 1

    @contextmanager
    def room(self, what: str, most: int) -> Iterator[None]:
        """Do something that at most `most` do at a time. Raises `LimitExceeded`."""
        with self._lock:
            if self._rooms.get(what, 0) >= most:
                raise LimitExceeded(f"{most} of these already run in this console ({what}): try again in a moment")
            self._rooms[what] = self._rooms.get(what, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._rooms[what] -= 1

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """The results of a function for all items, several at a time, in their order."""
        return list(self._parts.map(function, items))

    def remembered(self, key: Any, seconds: float, make: Callable[[], R]) -> R:
        """Return the result that `make` returned for `key` at most `seconds` ago; otherwise call it."""
        now = self.clock.monotonic()
        with self._lock:
            made_at, value = self._answers.get(key, (float("-inf"), None))
            changes = self._changes
        if now - made_at <= seconds:
            return value  # type: ignore[no-any-return]
        value = make()
        with self._lock:
            # Something that was changed meanwhile may be answered as it was before, and so may an older question.
            if self._changes == changes and now >= self._answers.get(key, (now, None))[0]:
                self._remember(key, now, value)
        return value

    def _remember(self, key: Any, now: float, value: Any) -> None:
        """With the lock held."""
        self._answers[key] = (now, value)
        self._answers.move_to_end(key)
        while len(self._answers) > _REMEMBERED_MAX:
            self._answers.popitem(last=False)

    def new_cursor(self, value: Any) -> str:
        """Store the position at which a next page begins; return the token for `cursor`."""
        token = self.conn.ids.token_hex()
        with self._lock:
            self._remember(("cursor", token), self.clock.monotonic(), value)
        return token

    def cursor(self, token: str) -> Any:
        """The stored position. Raises `InvalidRequest` if the token is unknown or has expired."""
        return self.remembered(("cursor", token), _CURSOR_SECONDS, _no_cursor)

    def sampled(self, seconds: float, describe: Callable[[], ServerDescription]) -> ServerDescription:
        """Return the server's state, at most `seconds` old; earlier ones are kept for rates (`samples`)."""
        with self._lock:
            newest, sampled_at = (self._samples[-1], self._sampled) if self._samples else (None, float("-inf"))
        now = self.clock.monotonic()
        if newest is not None and now - sampled_at < seconds:
            return newest
        description = describe()
        with self._lock:
            if self._samples and self._samples[-1] is not newest:
                return description  # another request was faster, and samples are in the order of their times
            if newest is not None and (newest.started != description.started or now - sampled_at > _GAP_SECONDS):
                self._samples.clear()  # another process serves, whose counters begin again; or this was not asked for
            self._samples.append(description)
            self._sampled = now
        return description

    def samples(self) -> list[ServerDescription]:
        """Return the server's states of the last minutes in which they were requested, the oldest first."""
        with self._lock:
            return list(self._samples)

    def read_once(self, key: Any, read: Callable[[], R]) -> R:
        """Return the result of `read` for `key`, which is cached as long as there is room. Requests at the same time
        read once, together.

        For a few large values that never change: the files of a snapshot.
        """
        with self._lock:
            future: threads.Future[R] | None = self._files.get(key)
            is_first = future is None
            if future is None:
                future = threads.future()
                self._files.put(key, future)
        if is_first:
            try:
                future.set_result(read())
            except BaseException as e:  # noqa: BLE001 - handed to all who wait
                self._files.pop(key)
                future.set_exception(e)
        return future.result()

    def forget(self, key: Any) -> None:
        """Forget an answer, because something was changed."""
        with self._lock:
            self._answers.pop(key, None)
            self._changes += 1

    def close(self) -> None:
        """Close the connection, which ends what waits for the server, and let workers end."""
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._parts.shutdown(wait=False, cancel_futures=True)
        self.tasks.close()
        self._tails.shutdown(wait=False, cancel_futures=True)
        if self.shared_processes is None:
            self.processes.close()
        if not self.conn.cluster.is_answered(_ANSWER_SECONDS):
            self.conn.cluster.close()  # first: to close the connection waits for what it writes
        self.conn.close(timeout=5)


def _no_cursor() -> Any:
    raise InvalidRequest("this page has expired: start again from the first page")


def time_text(milliseconds: int | None) -> str | None:
    """A time in ISO 8601, in UTC; None for none."""
    if milliseconds is None or milliseconds < 0:
        return None
    return iso_text(dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC))


def iso_text(time: dt.datetime | None) -> str | None:
    """The same of a time with a zone."""
    return None if time is None else time.astimezone(dt.UTC).isoformat(timespec="milliseconds")


def page_of(items: Sequence[T], page_token: str | None, limit: int) -> tuple[Sequence[T], str | None]:
    """The items of a page of a list that is in memory, and the token of the next page, None at the end.

    Raises `InvalidRequest` for a limit or token that cannot be.
    """
    first = first_of(page_token, limit)
    return items[first : first + limit], token_after(first, limit, len(items))


def token_after(first: int, limit: int, total: int) -> str | None:
    """The token of the page behind one that begins after `first` of `total` items, None at the end."""
    return str(first + limit) if first + limit < total else None


def first_of(page_token: str | None, limit: int) -> int:
    """How many items come before a page. Raises `InvalidRequest` for a limit or token that cannot be."""
    check_limit(limit)
    text = page_token or "0"
    if not (text.isascii() and text.isdecimal()) or len(text) > 12:
        raise InvalidRequest(f"page_token {page_token!r} is not a page token of this list")
    return int(text)


def check_limit(limit: int) -> None:
    """Raise `InvalidRequest` for a page of no or too many items."""
    if not 1 <= limit <= LIMIT_MAX:
        raise InvalidRequest(f"limit={limit} is not between 1 and {LIMIT_MAX}")
