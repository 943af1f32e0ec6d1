"""Turns: connections with many pending requests are served in rotation, and leave time for all others.

A connection serves a few requests when their bytes arrive. If more are pending, or others are already waiting for
their turn, it goes to the end of a queue, and the queues are processed for a few milliseconds in each round of the
event loop. So in each round new connections are accepted, bytes are read and responses sent, whatever a client
pipelines.

There are two queues: connections with something new, and connections that have had a turn since and are not done.
The first goes before the second, but not always. So a client that sends one request at a time waits for others like
it, and not for a turn of each that has sent hundreds. (Prior art: the new and old flows of fq_codel, RFC 8290.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from forebay.base.ambient import Clock

REQUESTS_PER_TURN = 8
"""Requests of one connection that are started before others have their turn; only one for a new connection, so that the
last one to arrive waits for one request of each connection before it, and not for eight."""

NEW_IN_A_ROW = 8
"""After this many turns of new connections it is the turn of a waiting old one."""

_ROUND_SECONDS = 0.005
_ROUND_TURNS = 64
"""A round ends after this many turns even if the clock stands still, as in a simulation."""


class ReadyConnection(Protocol):
    """The part of a connection that the queue uses."""

    def take_turn(self, requests_max: int) -> bool:
        """Serve a few requests. Return whether more are pending."""
        ...


class RoundRobin:
    """The queues of connections that wait for their turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._new: deque[ReadyConnection] = deque()
        self._old: deque[ReadyConnection] = deque()
        self._new_in_a_row = 0

    @property
    def is_idle(self) -> bool:
        """Whether no connection waits."""
        return not self._new and not self._old

    def join(self, connection: ReadyConnection, *, is_new: bool = True) -> None:
        """Put a connection at the end of a queue. It must not be in one already."""
        if self.is_idle:
            self._loop.call_soon(self._round)
        (self._new if is_new else self._old).append(connection)

    def _round(self) -> None:
        deadline = self._clock.monotonic() + _ROUND_SECONDS
        for _ in range(_ROUND_TURNS):
            queue = self._next_queue()
            more = queue[0].take_turn(1 if queue is self._new else REQUESTS_PER_TURN)
            # It stays in the queue while it is served, so that later arrivals wait behind it.
            connection = queue.popleft()
            if more:
                self._old.append(connection)
            if self.is_idle:
                return
            if self._clock.monotonic() >= deadline:
                break
        self._loop.call_soon(self._round)

    def _next_queue(self) -> deque[ReadyConnection]:
        if self._new and not (self._old and self._new_in_a_row >= NEW_IN_A_ROW):
            self._new_in_a_row += 1
            return self._new
        self._new_in_a_row = 0
        return self._old or self._new
