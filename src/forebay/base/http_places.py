"""The open connections of a small HTTP server: a bounded number, each with a deadline for its whole request.

Connections that have not sent their request make room first, the oldest of them before all others. So clients that send
half requests, or nothing, keep none out that asks properly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from forebay.base import threads
from forebay.base.ambient import SYSTEM_CLOCK, Clock

C = TypeVar("C", bound=Hashable)


class HttpPlaces(Generic[C]):
    """Connections by what they do: they wait for a request, or are answered. Thread-safe."""

    def __init__(
        self,
        count_max: int,
        request_seconds: float,
        answer_seconds: float,
        cut_off: Callable[[C], object],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`request_seconds` are for a whole request, `answer_seconds` for its whole answer. `cut_off` ends a
        connection; it is called with the lock held.
        """
        self._count_max, self._request_seconds, self._answer_seconds = count_max, request_seconds, answer_seconds
        self._cut_off, self._clock = cut_off, clock
        self._lock = threads.lock()
        self._waiting: dict[C, float] = {}
        """Those that have not sent their request, the oldest first, with their deadlines."""
        self._answering: dict[C, float] = {}

    def open(self, connection: C) -> None:
        """Add a connection; the oldest one that has not sent its request, or else the oldest, makes room for it."""
        with self._lock:
            if len(self._waiting) + len(self._answering) >= self._count_max:
                self._end(next(iter(self._waiting or self._answering)))
        self.wait(connection)

    def wait(self, connection: C, seconds: float | None = None) -> None:
        """Note that a request of a connection is awaited from now on, at most `seconds` (default: those of a whole
        request).
        """
        with self._lock:
            self._answering.pop(connection, None)
            self._waiting.pop(connection, None)
            self._waiting[connection] = self._clock.monotonic() + (seconds or self._request_seconds)

    def answer(self, connection: C) -> None:
        """Note that a connection has sent its request."""
        with self._lock:
            if self._waiting.pop(connection, None) is not None:
                self._answering[connection] = self._clock.monotonic() + self._answer_seconds

    def remove(self, connection: C) -> None:
        """Forget a connection that has ended."""
        with self._lock:
            self._waiting.pop(connection, None)
            self._answering.pop(connection, None)

    def cut_off_late(self) -> None:
        """End the connections whose deadline is over."""
        now = self._clock.monotonic()
        with self._lock:
            for connections in (self._waiting, self._answering):
                for each in [connection for connection, deadline in connections.items() if deadline < now]:
                    self._end(each)

    def cut_off_stranger(self) -> None:
        """End the oldest connection that has not sent its request, if there is one."""
        with self._lock:
            if self._waiting:
                self._end(next(iter(self._waiting)))

    def _end(self, connection: C) -> None:
        self._waiting.pop(connection, None)
        self._answering.pop(connection, None)
        self._cut_off(connection)
