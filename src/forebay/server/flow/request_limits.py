"""What one request may cost: its items, the memory of its answer, and the event loop's time.

A request that names more things than `server.request.max-items`, or whose response would describe more of them, is
refused.

Long requests are admitted a few at a time, the next one when an earlier one is answered (`Gate`): their parsed form
takes memory, and every full round of the garbage collector, which stops everything else, takes time for each of these
objects.

Work on a long list is done in *pieces* of a few milliseconds. Of all requests with such work only one runs a piece in
each round of the event loop, in rotation. So others wait for one piece, however many there are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TypeVar

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import ErrorCode, LimitExceeded

T = TypeVar("T")

ITEMS_MAX = 100_000
ANSWER_BYTES_MAX = 64 << 20

ITEM_BYTES = 256
"""Memory of the response about one thing, or of an error for it, while it is built."""

SHORT_LIST = 256
"""Lists of up to this many things are processed in one go."""

H = TypeVar("H", bound=Hashable)

_PIECE_SECONDS = 0.005
_PIECE_ITEMS = 4096
"""A piece ends after this many things even if the clock stands still, as in a simulation."""


_GATE_BYTES = 2 << 20
"""Total length of the requests inside the gate: one of the longest, or many of a few thousand items."""


class Gate:
    """Admits as much as fits at a time, in order of arrival; an item larger than the limit is admitted alone.

    Belongs to the event loop's thread. There is no limit of time: whatever is inside ends in bounded time.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.inside = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def passing(self, size: int) -> AsyncIterator[None]:
        """Wait for room for `size`, and take it until the block ends."""
        if self._waiting or not self._fits(size):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._leave(size)
                elif (size, turn) in self._waiting:
                    self._waiting.remove((size, turn))
                    self._let_in()
                raise
        else:
            self.inside += size
        try:
            yield
        finally:
            self._leave(size)

    def _fits(self, size: int) -> bool:
        return not self.inside or self.inside + size <= self.limit

    def _leave(self, size: int) -> None:
        self.inside -= size
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if turn.cancelled():
                continue
            self.inside += size
            turn.set_result(None)


class RequestCosts:
    """The limits of one server, and the rotation of its long work."""

    def __init__(
        self, clock: Clock = SYSTEM_CLOCK, items_max: int = ITEMS_MAX, answer_bytes_max: int = ANSWER_BYTES_MAX
    ) -> None:
        self.clock = clock
        self.items_max = items_max
        self.answer_bytes_max = answer_bytes_max
        self.gate = Gate(_GATE_BYTES)
        """The gate for long requests while they are parsed and answered, by length."""
        self._rotation = asyncio.Lock()

    def check_items(self, count: int, what: str) -> None:
        """Raise `LimitExceeded` if a request names, or asks to describe, too many things."""
        if count > self.items_max:
            raise LimitExceeded(
                f"the request names {count} {what}; one request may name {self.items_max} "
                "(server.request.max-items): ask for fewer at a time",
                ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
            )

    def check_answer_bytes(self, size: int, what: str) -> None:
        """Raise `LimitExceeded` if a response becomes too large."""
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
        """Return the distinct ones of `count` items, in order of first appearance; in pieces if they are many."""
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
        """Count `items` things as done; return whether the piece has taken long enough."""
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
