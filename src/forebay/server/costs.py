"""What one request may cost, and how long work leaves time for others.

A request names things in lists: tables, partitions, buckets, keys. Each list is worked through once for each distinct
thing, and a request that names more things than `server.request.max-items`, or whose answer would describe more of
them, is refused.

Work on a long list is done in *pieces* of a few milliseconds. Of all requests with such work only one does a piece in
each round of the event loop, in rotation; so others wait for one piece, however many there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from types import TracebackType
from typing import TypeVar

from forebay.base.clock import SYSTEM_CLOCK, Clock
from forebay.base.errors import ErrorCode, LimitExceeded

ITEMS_MAX = 100_000
ANSWER_BYTES_MAX = 64 << 20

ITEM_BYTES = 256
"""What the answer about one thing takes in memory, or an error for it, while it is made."""

SHORT_LIST = 256
"""Lists of up to so many things are worked through in one go."""

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)

_PIECE_SECONDS = 0.005
_PIECE_ITEMS = 4096
"""A piece ends after so many things also where the clock stands still, as in a simulation."""


class RequestCosts:
    """The limits of one server, and the rotation of its long work."""

    def __init__(
        self, clock: Clock = SYSTEM_CLOCK, items_max: int = ITEMS_MAX, answer_bytes_max: int = ANSWER_BYTES_MAX
    ) -> None:
        self.clock = clock
        self.items_max = items_max
        self.answer_bytes_max = answer_bytes_max
        self._rotation = asyncio.Lock()

    def check_items(self, count: int, what: str) -> None:
        """Raise `LimitExceeded` if a request names, or asks to describe, more things than one may."""
        if count > self.items_max:
            raise LimitExceeded(
                f"the request is about {count} {what}; one request may be about {self.items_max} "
                "(server.request.max-items): ask for fewer at a time",
                ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
            )

    def check_answer_bytes(self, size: int, what: str) -> None:
        """Raise `LimitExceeded` if an answer becomes larger than one may be."""
        if size > self.answer_bytes_max:
            raise LimitExceeded(
                f"the answer is larger than {self.answer_bytes_max} bytes ({what}; server.request.max-answer-size): "
                "ask for fewer at a time",
                ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
            )

    async def each(self, items: Iterable[T], count: int, work: Callable[[T], None]) -> None:
        """Do `work`, which raises nothing, with each of `count` items; in pieces if they are many."""
        if count <= SHORT_LIST:
            for item in items:
                work(item)
            return
        async with self.pieces() as pieces:
            for item in items:
                work(item)
                if pieces.is_over():
                    await pieces.next()

    async def distinct(self, items: Iterable[H], count: int) -> list[H]:
        """The different ones of `count` items, in the order in which they come first; in pieces if they are many."""
        found: dict[H, None] = {}
        await self.each(items, count, lambda item: found.setdefault(item))
        return list(found)

    def pieces(self) -> Pieces:
        """Long work: `async with costs.pieces() as pieces`; in its loop, `if pieces.is_over(): await pieces.next()`."""
        return Pieces(self._rotation, self.clock)


class Pieces:
    """The pieces of one request's long work. Do not wait for anything else inside of one."""

    def __init__(self, rotation: asyncio.Lock, clock: Clock) -> None:
        self._rotation = rotation
        self._clock = clock
        self._items = 0
        self._end = 0.0

    async def __aenter__(self) -> Pieces:
        await self._rotation.acquire()
        self._begin()
        return self

    def _begin(self) -> None:
        self._items = 0
        self._end = self._clock.monotonic() + _PIECE_SECONDS

    def is_over(self, items: int = 1) -> bool:
        """Count `items` things as done; whether the piece has taken long enough."""
        self._items += items
        return self._items >= _PIECE_ITEMS or self._clock.monotonic() >= self._end

    async def next(self) -> None:
        """End the piece; return when it is this request's turn again."""
        self._rotation.release()
        try:
            await asyncio.sleep(0)
        finally:
            await self._rotation.acquire()
        self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rotation.release()
