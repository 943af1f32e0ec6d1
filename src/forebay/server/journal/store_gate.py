"""Holds answers back until everything that they may tell of is in the store.

With `store.durability` = `store`, no answer leaves the server before all that was noted when it was made is in the
journal: not the answer to a write, and not that to a lookup that has seen it. So a client never knows more than a
server that takes over. Reads of logs are not held back: they end at the high watermark, which is the stored end.

Threads: the event loop's, but for `stored` and `fail`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from forebay.base.errors import ErrorCode, ForebayError, Unavailable
from forebay.base.thread_rules import any_thread
from forebay.server.journal.feed import JournalFeed


class AnswerGate(Protocol):
    """Holds answers back."""

    @property
    def is_open(self) -> bool:
        """Whether an answer that is made now need not wait."""
        ...

    @property
    def holds_writes(self) -> bool:
        """Whether an answer to a write has to wait, or cannot be given."""
        ...

    async def passed(self) -> None:
        """Return when an answer that is made now may be given. Raises if it may not."""
        ...

    def stored(self, count: int) -> None:
        """So many notes are in the store. Called in any thread."""
        ...

    def fail(self, error: ForebayError) -> None:
        """Let no answer pass any more. Called in any thread."""
        ...


class LeaseGate:
    """Gives no answers while a standby may have taken over."""

    def __init__(self, has_lease: Callable[[], bool], name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._has_lease, self._name, self._loop = has_lease, name, loop
        self._error: ForebayError | None = None

    @property
    def is_open(self) -> bool:
        """See `AnswerGate.is_open`."""
        return self._error is None and self._has_lease()

    @property
    def holds_writes(self) -> bool:
        """See `AnswerGate.holds_writes`."""
        return not self.is_open

    async def passed(self) -> None:
        """Raises `Unavailable` without the lease."""
        if self._error is not None:
            raise self._error
        if not self._has_lease():
            raise Unavailable(
                f"the server in {self._name} cannot reach its store, and another one may have taken over",
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
            )

    @any_thread
    def stored(self, count: int) -> None:
        """Nothing waits for it."""

    @any_thread
    def fail(self, error: ForebayError) -> None:
        """See `AnswerGate.fail`."""
        self._error = error


class StoreGate:
    """The answers that wait for the store. `wake` tells the uploader that one does."""

    def __init__(self, feed: JournalFeed, wake: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self._feed, self._wake, self._loop = feed, wake, loop
        self._stored = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._error: ForebayError | None = None

    @property
    def is_open(self) -> bool:
        """Whether an answer that is made now need not wait."""
        return self._stored >= self._feed.noted and self._error is None

    @property
    def holds_writes(self) -> bool:
        """See `AnswerGate.holds_writes`."""
        return True

    async def passed(self) -> None:
        """Return when all that is noted by now is stored. Raises the error that ended the journal."""
        noted = self._feed.noted
        if self._error is not None:
            raise self._error
        if self._stored >= noted:
            return
        future = self._loop.create_future()
        self._waiting.append((noted, future))
        self._wake()
        await future

    @any_thread
    def stored(self, count: int) -> None:
        """Let answers pass that wait for so many notes."""
        self._loop.call_soon_threadsafe(self._release, count)

    def _release(self, count: int) -> None:
        self._stored = count
        while self._waiting and self._waiting[0][0] <= count:
            _, future = self._waiting.popleft()
            if not future.done():  # else its connection was closed
                future.set_result(None)

    @any_thread
    def fail(self, error: ForebayError) -> None:
        """Let no answer pass any more."""
        self._loop.call_soon_threadsafe(self._end, error)

    def _end(self, error: ForebayError) -> None:
        self._error = error
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)
