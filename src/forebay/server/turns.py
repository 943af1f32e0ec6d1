"""Turns: connections with many requests waiting are served in rotation, and leave time for everybody else.

A connection serves a few requests when their bytes come. If more are waiting, or others wait for their turn already, it
goes to the end of a queue, and the queues are worked on for a few milliseconds in each round of the event loop. So in
each round new connections are accepted, bytes are read and answers sent, whatever a client pipelines.

There are two queues: of connections that have something new, and of those that had a turn since and are not done. The
first goes before the second, but not always. So a client that asks for one thing at a time waits for others like it,
and not for a turn of each that has sent hundreds of requests. (Prior art: the new and old flows of fq_codel, RFC 8290.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from forebay.base.clock import Clock

REQUESTS_PER_TURN = 8
"""Requests of one connection that are begun before others have their turn; one alone of a new one in the queue, so that
who comes last waits for as many requests as there are connections before it, and not for eight times as many."""

NEW_IN_A_ROW = 8
"""After so many turns of new ones it is the turn of one that had one before, if any waits."""

_ROUND_SECONDS = 0.005
_ROUND_TURNS = 64
"""A round ends after so many turns also where the clock stands still, as in a simulation."""


class TakesTurns(Protocol):
    """A connection, as the queue sees it."""

    def take_turn(self, requests_max: int) -> bool:
        """Serve a few requests. Returns whether more are waiting."""
        ...


class Turns:
    """The queues of connections that wait for their turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._new: deque[TakesTurns] = deque()
        self._old: deque[TakesTurns] = deque()
        self._new_in_a_row = 0

    @property
    def is_idle(self) -> bool:
        """Whether no connection waits."""
        return not self._new and not self._old

    def join(self, connection: TakesTurns, *, is_new: bool = True) -> None:
        """Put a connection at the end of a queue. It must not be in one already."""
        if self.is_idle:
            self._loop.call_soon(self._round)
        (self._new if is_new else self._old).append(connection)

    def _round(self) -> None:
        deadline = self._clock.monotonic() + _ROUND_SECONDS
        for _ in range(_ROUND_TURNS):
            queue = self._next_queue()
            more = queue[0].take_turn(1 if queue is self._new else REQUESTS_PER_TURN)
            # It stays in the queue while it is served, so that whatever comes meanwhile waits behind it.
            connection = queue.popleft()
            if more:
                self._old.append(connection)
            if self.is_idle:
                return
            if self._clock.monotonic() >= deadline:
                break
        self._loop.call_soon(self._round)

    def _next_queue(self) -> deque[TakesTurns]:
        if self._new and not (self._old and self._new_in_a_row >= NEW_IN_A_ROW):
            self._new_in_a_row += 1
            return self._new
        self._new_in_a_row = 0
        return self._old or self._new
