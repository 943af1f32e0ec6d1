"""The queue of connections with pending requests, which leaves time for all other work of the event loop.

A connection serves a few requests when their bytes arrive. If it has more pending requests, or if other connections
already wait, it goes to the end of a queue. Each iteration of the event loop serves the queues for a few milliseconds.
So every iteration also accepts connections, reads bytes and sends responses, no matter how many requests one client
pipelines.

There are two queues: *new* for connections with new requests, and *old* for connections that have had a turn and still
have pending requests. New ones go first, but after some turns of new ones an old one has its turn. So a client that
sends one request at a time waits for other clients like it, and not for a turn of each client that has sent hundreds.
(Prior art: the new and old flows of fq_codel, RFC 8290.)

Threads: all methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from forebay.base.ambient import Clock
from forebay.base.thread_rules import loop_only

REQUESTS_PER_TURN = 8
"""Requests of one connection that start in one turn. A new connection starts only one, so that the last connection in
the queue waits for one request of each connection ahead of it, and not for eight."""

NEW_IN_A_ROW = 8
"""After this many turns of new connections in a row, an old one has its turn."""

_ROUND_SECONDS = 0.005
_ROUND_TURNS = 64
"""A round of turns in one iteration of the event loop ends after this time, or after this many turns: in a simulation
the clock stands still."""


class ReadyConnection(Protocol):
    """The part of a connection that the queue uses."""

    def take_turn(self, requests_max: int) -> bool:
        """Serve a few requests. Return whether more are pending."""
        ...


@loop_only
class FairQueue:
    """Connections that wait for their turn, in two queues."""

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
