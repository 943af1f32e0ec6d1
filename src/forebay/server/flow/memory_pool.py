"""Memory for requests and responses: pools that all connections share.

Nouns: `MemoryPools` are the pools of one server. The pool of *requests* holds the buffers of large incoming requests
and the bodies of unanswered ones. The pool of *responses* holds reservations for large responses while they are built,
and bytes that clients have not read. The pools are separate, so that requests that wait for memory cannot prevent the
responses that free it. The pool of *short responses* is a part of the memory for responses. It keeps a lookup from
waiting behind large responses that other clients do not read. A *consumer* is a connection that holds memory.

The rule: memory is counted when it is taken. Callers that can wait ask first and are served in order. A caller that
cannot wait (a small request that has already arrived) is counted anyway, and its connection waits before it takes more.

Every wait is bounded. Once the first waiter has waited for `wait_seconds`, the largest consumers lose their memory
(`Consumer.give_back`), stalled ones first, until the waiter is served. If no consumer has enough to lose, the waiters
are refused.

Threads: all methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from forebay.base.errors import ErrorCode, Unavailable
from forebay.base.quantity import format_bytes
from forebay.base.thread_rules import loop_only

_LOGGER = logging.getLogger(__name__)

_SHORT_RESPONSES_SHARE = 8
"""One eighth of the memory for responses is reserved for short ones; one short response may take an eighth of that."""
_GRACE_SECONDS = 0.05
"""Seconds that a consumer has to release the memory that it lost, before the next one loses its own."""

_HELD_SHARE = 4
"""Consumers that together hold less than this part of a pool (one fourth) did not exhaust it, and lose nothing."""

_STILL = 4
"""The factor by which a stalled consumer counts as larger."""


class Consumer(Protocol):
    """The part of a connection that a memory pool uses."""

    def held_bytes(self, pool: MemoryPool) -> int:
        """Return how much of `pool` it could be made to give back: unfinished requests, or unread responses."""
        ...

    def stands_still(self, pool: MemoryPool) -> bool:
        """Return whether its peer has neither sent nor read anything recently."""
        ...

    def give_back(self, pool: MemoryPool, reason: str) -> None:
        """Free what `held_bytes` returned."""
        ...


@dataclass(slots=True)
class _Waiting:
    """A waiter for memory: what to call when it is available, and when it is refused."""

    consumer: Consumer
    size: int
    granted: Callable[[], None]
    refused: Callable[[Unavailable], None]


@loop_only
class MemoryPool:
    """Memory of one purpose. All methods belong to the event loop's thread."""

    def __init__(self, name: str, limit: int, consumers: Callable[[], Iterable[Consumer]], wait_seconds: float) -> None:
        """`consumers` returns the current connections."""
        self.name = name
        self.limit = limit
        self.used = 0
        self._consumers = consumers
        self._wait_seconds = wait_seconds
        self._waiting: deque[_Waiting] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._blocked: dict[Consumer, Callable[[], None]] = {}
        self._relief: asyncio.TimerHandle | None = None

    @property
    def is_overfull(self) -> bool:
        """Return whether uncounted requests exceed the limit so far that they have to wait, too."""
        return 4 * self.used >= 5 * self.limit

    @property
    def is_twice_full(self) -> bool:
        """Return whether everything has to wait."""
        return self.used >= 2 * self.limit

    def try_take(self, size: int) -> bool:
        """Take memory if it is available and there are no waiters; return whether it was taken."""
        if self._waiting or (self.used and self.used + size > self.limit):
            return False
        self.used += size
        return True

    def take(self, size: int) -> None:
        """Count memory that is taken unconditionally."""
        self.used += size

    def give(self, size: int) -> None:
        """Release memory."""
        self.used -= size
        if self._waiting and self._grant():
            self._watch_out(again=True)
        if self._blocked and not self.is_overfull:
            blocked, self._blocked = self._blocked, {}
            for proceed in blocked.values():
                asyncio.get_running_loop().call_soon(proceed)

    def wait(
        self, consumer: Consumer, size: int, granted: Callable[[], None], refused: Callable[[Unavailable], None]
    ) -> None:
        """Take memory as soon as it is available; then call `granted`, or else `refused`."""
        self._waiting.append(_Waiting(consumer, size, granted, refused))
        self._watch_out()

    async def reserve(self, consumer: Consumer, size: int) -> None:
        """Take memory, waiting if necessary. Raises `Unavailable` if none is available in bounded time."""
        if self.try_take(size):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        is_granted = False

        def granted() -> None:
            nonlocal is_granted
            is_granted = True
            if not future.done():
                future.set_result(None)

        def refused(error: Unavailable) -> None:
            if not future.done():
                future.set_exception(error)

        self.wait(consumer, size, granted, refused)
        try:
            await future
        except asyncio.CancelledError:
            if is_granted:
                self.give(size)
            else:
                self._waiting = deque(each for each in self._waiting if each.granted is not granted)
            raise

    def forget(self, consumer: Consumer) -> None:
        """Remove a closed connection from the waiters."""
        self._blocked.pop(consumer, None)
        if self._waiting:
            self._waiting = deque(each for each in self._waiting if each.consumer is not consumer)

    def wait_for_relief(self, consumer: Consumer, proceed: Callable[[], None]) -> None:
        """Call `proceed` once the pool is no longer overfull, which takes bounded time."""
        self._blocked[consumer] = proceed
        if self._relief is None:
            self._relief = asyncio.get_running_loop().call_later(self._wait_seconds, self._relieve_overfull)

    def _relieve_overfull(self) -> None:
        """Take memory from the largest consumer if the pool is still overfull, and check again soon."""
        self._relief = None
        if self.is_overfull and self._take_from_largest():
            self._relief = asyncio.get_running_loop().call_later(_GRACE_SECONDS, self._relieve_overfull)

    def close(self) -> None:
        for timer in (self._watch, self._relief):
            if timer is not None:
                timer.cancel()
        self._watch = self._relief = None

    # ---- waiters -------------------------------------------------------------------------------------------------

    def _grant(self) -> bool:
        """Give available memory to the waiters in order. Return whether any of them got it."""
        any_granted = False
        while self._waiting:
            first = self._waiting[0]
            if self.used and self.used + first.size > self.limit:
                break
            self._waiting.popleft()
            self.used += first.size
            any_granted = True
            first.granted()
        return any_granted

    def _watch_out(self, again: bool = False, seconds: float | None = None) -> None:
        """Start the timer of the first waiter; `again` restarts it, for a new first waiter."""
        if self._watch is not None:
            if not again:
                return
            self._watch.cancel()
            self._watch = None
        if self._waiting:
            self._watch = asyncio.get_running_loop().call_later(
                self._wait_seconds if seconds is None else seconds, self._relieve
            )

    def _relieve(self) -> None:
        """Take memory from the largest consumers, or refuse the waiters: the first one has waited long enough."""
        self._watch = None
        if self._waiting and not self._grant():
            if not self._take_from_largest():
                self._refuse()
                return
            if self._waiting and not self._grant():
                # Its requests' reservations are released shortly; if that is not enough, the next one loses.
                self._watch_out(again=True, seconds=_GRACE_SECONDS)
                return
        self._watch_out(again=True)

    def _take_from_largest(self) -> bool:
        """Make the largest consumer lose its memory, stalled ones first. Return whether there is one whose loss
        helps."""
        holding = [(held, each) for each in list(self._consumers()) if (held := each.held_bytes(self))]
        if _HELD_SHARE * sum(held for held, _ in holding) < self.limit:
            return False  # it is used by work that ends without that, such as queued writes
        held, victim = max(holding, key=lambda each: each[0] * (_STILL if each[1].stands_still(self) else 1))
        victim.give_back(
            self,
            f"the server has {format_bytes(self.limit)} for {self.name} of all connections, and they are used up; this "
            f"connection held {format_bytes(held)} of them (server.connections.memory, docs/server.md)",
        )
        return True

    def _refuse(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        _LOGGER.warning(
            "%d requests wait for unavailable memory: %d of %d bytes for %s are used "
            "(server.connections.memory)", len(waiting), self.used, self.limit, self.name
        )  # fmt: skip
        for each in waiting:
            each.refused(
                Unavailable(
                    f"the server's memory for {self.name} of all connections is used up ({self.limit} bytes, "
                    "server.connections.memory); try again later",
                    ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
                )
            )


@loop_only
class MemoryPools:
    """The memory pools of one server."""

    def __init__(self, limit: int, consumers: Callable[[], Iterable[Consumer]], wait_seconds: float) -> None:
        self.limit = limit
        self.requests = MemoryPool("requests", limit // 2, consumers, wait_seconds)
        short = limit // 2 // _SHORT_RESPONSES_SHARE
        self.responses = MemoryPool("answers", limit // 2 - short, consumers, wait_seconds)
        self.short_responses = MemoryPool("short answers", short, consumers, wait_seconds)
        self.short_response_bytes = short // _SHORT_RESPONSES_SHARE
        """The maximum length of a short response."""

    def forget(self, consumer: Consumer) -> None:
        """Forget a closed connection."""
        self.requests.forget(consumer)
        self.responses.forget(consumer)

    def close(self) -> None:
        self.requests.close()
        self.responses.close()
