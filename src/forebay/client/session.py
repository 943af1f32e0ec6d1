"""The state that all parts of the client share: a connection's settings, its cluster, and its lifecycle.

A `Connection` is a session with the user-facing methods. The parts below it (scans, readers, writers, lookups, the
admin) take a `Session`, so that they do not depend on these.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from forebay.base import threads
from forebay.base.ambient import SYSTEM_CLOCK, SYSTEM_IDS, Clock, IdSource
from forebay.base.errors import ForebayError
from forebay.base.quantity import Span, span_seconds
from forebay.client.cluster.cluster import ClusterClient, connection_closed
from forebay.client.settings import Settings

if TYPE_CHECKING:
    from forebay.api.scan import RowReader
    from forebay.client.cluster.rpc import Dial
    from forebay.client.writing.sender import Sender

A = TypeVar("A")
T = TypeVar("T")

_live: weakref.WeakSet[Session] = weakref.WeakSet()
_numbers = itertools.count(1)


class Session:
    """Settings, servers and in-flight writes of one connection. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        ids: IdSource = SYSTEM_IDS,
        dial: Dial | None = None,
    ) -> None:
        """Nothing is sent before the first use. `dial` opens the connections to servers (default: TCP)."""
        self.settings = settings
        self.clock = clock
        self.ids = ids
        self._dial = dial
        self.number = next(_numbers)
        """The number of this connection in its process, from 1."""
        self._begin()
        _live.add(self)

    def _begin(self) -> None:
        self.cluster = ClusterClient(self.settings, self.clock, self.ids, self._dial)
        self._lock = threads.lock()
        self._attached: dict[type[Any], Any] = {}
        self._sender: Sender | None = None
        self.__dict__.pop("sender", None)
        self._sender_finalizer: weakref.finalize[..., Session] | None = None
        self._closing = False
        self._close_lock = threads.rlock()
        self._standby: Session | None = None
        self._finalizer = weakref.finalize(self, ClusterClient.close, self.cluster)
        self._finalizer.atexit = False

    @property
    def closed(self) -> bool:
        return self.cluster.closed

    @property
    def client_id(self) -> str:
        """The name of this connection in metrics: `client.id`, or its number."""
        return self.settings["client.id"] or f"forebay-{self.number}"

    @property
    def buffered_bytes(self) -> int:
        """Bytes of batches that are not acknowledged."""
        sender = self._sender
        return 0 if sender is None else sender.accumulator.used_bytes

    def attached(self, kind: type[T]) -> T:
        """The object of class `kind` that belongs to this connection: created on first use, without arguments.

        Packages above the client keep their state of a connection in such objects. A forked child has its own.
        """
        with self._lock:
            part: T | None = self._attached.get(kind)
            if part is None:
                part = self._attached[kind] = kind()
            return part

    @cached_property
    def sender(self) -> Sender:
        """The sender of batches, started on first use."""
        from forebay.client.writing.sender import Sender

        with self._lock:
            if self._closing or self.cluster.closed:
                raise connection_closed()
            if self._sender is None:
                self._sender = Sender(self.cluster)
                self._sender_finalizer = weakref.finalize(self, Sender.stop, self._sender, join=False)
                self._sender_finalizer.atexit = False
            return self._sender

    @property
    def reads(self) -> Session:
        """Whom to ask for rows as they are now, by `answer` and `reading`."""
        return self

    def answer(self, call: Callable[[Session], A]) -> A:
        """The result of a call, which is given the connection to ask."""
        return call(self)

    def reading(self, open_reader: Callable[[Session], RowReader]) -> RowReader:
        """The reader that `open_reader` opens, which is given the connection to read from."""
        return open_reader(self)

    def close(self, timeout: Span | None = None) -> None:
        """Send what buffered writers hold, wait for the acknowledgements, and close. A second call does nothing, or
        waits for the first one.

        `timeout` bounds the wait (default: as long as batches may take). After everything is closed, raises the first
        batch error that was not reported to any caller.
        """
        seconds = span_seconds(timeout, "timeout")
        with self._close_lock:
            with self._lock:
                self._closing = True
                sender, self._sender = self._sender, None
                self.__dict__.pop("sender", None)
            error: ForebayError | None = None
            try:
                if sender is not None:
                    error = sender.close(seconds)
            finally:
                self.cluster.close()
                if self._standby is not None:
                    self._standby.cluster.close()
                self._finalizer.detach()
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ForebayError:
            if kind is None:
                raise

    def _after_fork(self) -> None:
        """Reset after a fork: sockets and threads belong to the parent, so the child starts with new ones."""
        for finalizer in (self._finalizer, self._sender_finalizer):
            if finalizer is not None:
                finalizer.detach()
        cluster, view = self.cluster, self.cluster.view
        cluster.forget_channels()
        self._begin()
        self._closing = cluster.closed
        self.cluster.adopt(view, closed=cluster.closed)


def _close_all() -> None:
    """Close all connections at process exit. What writers still hold is sent if that completes quickly."""
    errors = []
    for session in list(_live):
        if session.closed:
            continue
        try:
            session.close(timeout=_EXIT_SECONDS)
        except ForebayError as e:
            errors.append(e)  # the other connections have rows to send, too
    if errors:
        raise errors[0]


def live_sessions() -> list[Session]:
    """The open connections of this process, oldest first."""
    return sorted((session for session in list(_live) if not session.closed), key=lambda session: session.number)


_EXIT_SECONDS = 10.0
"""How long a connection may take to send its rows at process exit."""


def _after_fork_in_child() -> None:
    for session in list(_live):
        session._after_fork()


# Before the process joins its threads: closing may have to open a connection, and so start a thread.
threads.register_atexit(_close_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
