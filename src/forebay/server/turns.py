"""Turns: connections with many requests waiting are served in rotation, and leave time for everybody else.

A connection serves a few requests when their bytes come. If more are waiting, or others wait for their turn already, it
goes to the end of the queue, and the queue is worked on for a few milliseconds in each round of the event loop. So in
each round new connections are accepted, bytes are read and answers sent, whatever a client pipelines.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from forebay.base.clock import Clock

REQUESTS_PER_TURN = 8
"""Requests of one connection that are begun before others have their turn."""

_ROUND_SECONDS = 0.005
_ROUND_TURNS = 64
"""A round ends after so many turns also where the clock stands still, as in a simulation."""


class TakesTurns(Protocol):
    """A connection, as the queue sees it."""

    def take_turn(self) -> bool:
        """Serve a few requests. Returns whether more are waiting."""
        ...


class Turns:
    """The queue of connections that wait for their turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._queue: deque[TakesTurns] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether no connection waits."""
        return not self._queue

    def join(self, connection: TakesTurns) -> None:
        """Put a connection at the end of the queue. It must not be in it already."""
        self._queue.append(connection)
        if len(self._queue) == 1:
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        queue, deadline = self._queue, self._clock.monotonic() + _ROUND_SECONDS
        for _ in range(_ROUND_TURNS):
            connection = queue[0]
            more = connection.take_turn()
            # It stays in the queue while it is served, so that whatever comes meanwhile waits behind it.
            queue.popleft()
            if more:
                queue.append(connection)
            if not queue:
                return
            if self._clock.monotonic() >= deadline:
                break
        self._loop.call_soon(self._round)
