"""Memory for the response that a request builds: a place among the connection's responses, and bytes of a memory pool.

Flow: a request enters before it builds its response (`enter`), asks for more if the response outgrows its reservation
(`grow_to`), gives the reservation back once the response is built (`settle`), and leaves when the client has read it.

Threads: all methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from forebay.base.thread_rules import loop_only
from forebay.base.threads import Future
from forebay.server.flow.memory_pool import Consumer, MemoryPool, MemoryPools
from forebay.server.flow.request_limits import ITEM_BYTES, SHORT_LIST

_LOGGER = logging.getLogger(__name__)


_SHARE_OF_ONE_RESPONSE = 2
"""The reservation for one response is at most this part of all memory for responses."""


@loop_only
class ResponseMemory:
    """Memory for the response to one call, if the response may be large."""

    def __init__(self, places: asyncio.Semaphore, pools: MemoryPools, consumer: Consumer) -> None:
        self._places = places
        self._pools = pools
        self._pool: MemoryPool = pools.responses
        self._consumer = consumer
        self.reserved = 0
        self.is_held = False
        self._has_place = False
        self._unwritten: list[Future[Any]] = []

    async def take_place(self) -> None:
        """Wait until the client has read enough of its earlier responses, and keep the place until `close`.

        For long requests, before they are admitted: others would wait for an admitted one that waits.
        """
        if not self.is_held:
            await self._places.acquire()
        self._has_place = True

    async def enter(self, size: int) -> None:
        """Wait until the client has read enough of its earlier responses, and there is memory for one of `size` bytes.

        Raises `Unavailable` if there is none in bounded time.
        """
        if self.is_held:
            return
        if not self._has_place:
            await self._places.acquire()
        try:
            await self._reserve(min(size, self._pools.responses.limit // _SHARE_OF_ONE_RESPONSE))
        except BaseException:
            self._give_place()
            raise
        self.is_held = True

    async def _reserve(self, size: int) -> None:
        pools = self._pools
        if size <= pools.short_response_bytes and pools.short_responses.try_take(size):
            self._pool = pools.short_responses
        else:
            self._pool = pools.responses
            await self._pool.reserve(self._consumer, size)
        self.reserved = size

    async def enter_for(self, items: int) -> None:
        """Enter with memory for a response about `items` items; a short one needs no reservation."""
        if items > SHORT_LIST:
            await self.enter(items * ITEM_BYTES)

    async def change_to(self, size: int) -> None:
        """Reserve memory for another attempt at the response, of `size` bytes; the earlier one must be released.

        Raises as `enter` does.
        """
        if self.is_held:
            self.settle()
            await self._reserve(min(size, self._pools.responses.limit))

    async def grow_to(self, size: int) -> None:
        """Reserve more memory for a response that is larger than its reservation. Raises as `enter` does."""
        responses = self._pools.responses
        size = min(size, responses.limit)
        missing = size - self.reserved
        if not self.is_held or missing <= 0:
            return
        if self._pool is responses:
            await responses.reserve(self._consumer, missing)
        else:
            await responses.reserve(self._consumer, size)
            self.settle()
            self._pool = responses
        self.reserved = size

    def settle(self) -> None:
        """Release the reservation: the response is built, and its unsent part is counted elsewhere."""
        self._pool.give(self.reserved)
        self.reserved = 0

    def leave(self) -> None:
        """Release the place and memory, if any are held."""
        if self.is_held:
            self.is_held = False
            self.settle()
            self._give_place()

    def close(self) -> None:
        """Leave, and give the place back that `take_place` has taken."""
        self.leave()
        if self._has_place:
            self._has_place = False
            self._give_place()

    # ---- the request of a write -------------------------------------------------------------------------------------

    def keep_until(self, written: Future[Any]) -> None:
        """Keep the request's bytes until its queued write is done, even if its response is no longer awaited."""
        self._unwritten.append(written)

    def when_written(self, call: Callable[[], object]) -> None:
        """Call `call` once none of the writes is queued any more; immediately if they are done."""
        queued = [asyncio.wrap_future(written) for written in self._unwritten if not written.done()]
        self._unwritten.clear()
        if not queued:
            call()
            return
        ended = asyncio.gather(*queued, return_exceptions=True)
        ended.add_done_callback(lambda _: call())

    # ---- places -----------------------------------------------------------------------------------------------------

    def _give_place(self) -> None:
        if not self._has_place:
            self._places.release()
