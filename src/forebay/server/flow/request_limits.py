"""Limits of one request: the number of its items, the memory of its response, and its time on the event loop.

A request that names more items than `server.request.max-items`, or whose response would describe more of them, is
refused.

Long requests are admitted a few at a time (`RequestAdmission`); the next one follows when an earlier one is answered.
Their parsed form takes memory, and every full garbage collection, which stops all other work, takes time for each of
its objects.

Work on a long list is done in *time slices* of a few milliseconds. Of all requests with such work, only one runs a
slice in each iteration of the event loop, and they take turns. So other work waits for one slice, no matter how many of
these requests there are.

Threads: everything here belongs to the event loop's thread.
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
from forebay.base.quantity import format_bytes
from forebay.base.thread_rules import loop_only

T = TypeVar("T")

ITEMS_MAX = 100_000
ANSWER_BYTES_MAX = 64 << 20
"""Maximum number of items in one request, and maximum size of its response."""

ITEM_BYTES = 256
"""Memory of the response about one item, or of an error for it, while it is built."""

SHORT_LIST = 256
"""Lists of up to this many items are processed without time slices."""

H = TypeVar("H", bound=Hashable)

_SLICE_SECONDS = 0.005
_SLICE_ITEMS = 4096
"""A time slice ends after this time, or after this many items: in a simulation the clock stands still."""

_ADMITTED_BYTES_MAX = 32 << 20
"""Memory of the admitted requests once they are parsed: one of the longest, or many of a few thousand items."""


@loop_only
class RequestAdmission:
    """Admits requests in order of arrival while their total size fits; one larger than the limit is admitted alone.

    The wait has no limit of its own, because admitted requests end in bounded time.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.inside = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def admitted(self, size: int) -> AsyncIterator[None]:
        """Wait until a request of `size` bytes fits, and count it until the block ends."""
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


@loop_only
class RequestLimits:
    """The limits of one server, the admission of its long requests, and the turns of its long work."""

    def __init__(
        self, clock: Clock = SYSTEM_CLOCK, items_max: int = ITEMS_MAX, answer_bytes_max: int = ANSWER_BYTES_MAX
    ) -> None:
        self.clock = clock
        self.items_max = items_max
        self.answer_bytes_max = answer_bytes_max
        self.admission = RequestAdmission(_ADMITTED_BYTES_MAX)
        """The admission of long requests, by the memory of their parsed form, while they are parsed and answered."""
        self._turn = asyncio.Lock()

    def check_items(self, count: int, what: str) -> None:
        """Raise `LimitExceeded` if a request names, or asks to describe, too many items."""
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
                f"the answer is larger than {format_bytes(self.answer_bytes_max)} ({what}; "
                "server.request.max-answer-size): ask for fewer at a time",
                ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
            )

    async def each(self, items: Iterable[T], count: int, work: Callable[[T], None]) -> None:
        """Call `work`, which raises nothing, with each of `count` items; in time slices if they are many."""
        if count <= SHORT_LIST:
            for item in items:
                work(item)
            return
        async with self.time_slices() as slices:
            for item in items:
                work(item)
                if slices.is_over():
                    await slices.next()

    async def distinct(self, items: Iterable[H], count: int) -> list[H]:
        """Return the distinct ones of `count` items, in order of first appearance; in time slices if they are many."""
        seen: dict[H, None] = {}
        await self.each(items, count, lambda item: seen.setdefault(item))
        return list(seen)

    def time_slices(self) -> TimeSlices:
        """Return the slices for long work: `async with limits.time_slices() as slices`, and in the loop of the work
        `if slices.is_over(): await slices.next()`."""
        return TimeSlices(self._turn, self.clock)


@loop_only
class TimeSlices:
    """The time slices of one request's long work. A slice must not wait for anything else."""

    def __init__(self, turn: asyncio.Lock, clock: Clock) -> None:
        self._turn = turn
        self._clock = clock
        self._items = 0
        self._end = 0.0

    async def __aenter__(self) -> TimeSlices:
        await self._turn.acquire()
        self._begin()
        return self

    def _begin(self) -> None:
        self._items = 0
        self._end = self._clock.monotonic() + _SLICE_SECONDS

    def is_over(self, items: int = 1) -> bool:
        """Count `items` items as processed; return whether the slice has taken its time."""
        self._items += items
        return self._items >= _SLICE_ITEMS or self._clock.monotonic() >= self._end

    async def next(self) -> None:
        """End the slice; return when it is this request's turn again."""
        self._turn.release()
        try:
            await asyncio.sleep(0)
        finally:
            await self._turn.acquire()
        self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turn.release()
