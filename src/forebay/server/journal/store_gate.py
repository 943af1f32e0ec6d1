"""Holds answers back until everything that they may tell of is in the store.

With `store.durability` = `store`, no answer leaves the server before all that was noted when it was made is in the
journal: not the answer to a write, and not that to a lookup that has seen it. So a client never knows more than a
server that takes over. Reads of logs are not held back: they end at the high watermark, which is the stored end.
Without the lease no answer leaves the server: another one may have taken over, and know more.

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
    def has_lease(self) -> bool:
        """Whether this server is the only one, as far as it knows."""
        ...

    def require_lease(self) -> None:
        """Raises `Unavailable` without the lease, and the error that ended the journal."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether an answer that is made now need not wait."""
        ...

    @property
    def holds_writes(self) -> bool:
        """Whether an answer to a write has to wait, or cannot be given."""
        ...

    async def passed(self) -> None:
        """Return when an answer that is made now may be given. Raises as `require_lease` does."""
        ...

    def stored(self, count: int) -> None:
        """So many notes are in the store. Called in any thread."""
        ...

    def fail(self, error: ForebayError) -> None:
        """Let no answer pass any more. Called in any thread."""
        ...


class LeaseGate:
    """Gives no answers while another server may have taken over."""

    def __init__(self, has_lease: Callable[[], bool], name: str, loop: asyncio.AbstractEventLoop) -> None:
        """`name`: the server's directory, for its messages."""
        self._is_leased, self._name, self._loop = has_lease, name, loop
        self._error: ForebayError | None = None

    @property
    def has_lease(self) -> bool:
        """See `AnswerGate.has_lease`."""
        return self._error is None and self._is_leased()

    def require_lease(self) -> None:
        """See `AnswerGate.require_lease`."""
        if self._error is not None:
            raise self._error
        if not self._is_leased():
            raise Unavailable(
                f"the server in {self._name} cannot reach its store, and another one may have taken over",
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
            )

    @property
    def is_open(self) -> bool:
        """See `AnswerGate.is_open`."""
        return self.has_lease

    @property
    def holds_writes(self) -> bool:
        """See `AnswerGate.holds_writes`."""
        return not self.is_open

    async def passed(self) -> None:
        """See `AnswerGate.passed`."""
        self.require_lease()

    @any_thread
    def stored(self, count: int) -> None:
        """Nothing waits for it."""

    @any_thread
    def fail(self, error: ForebayError) -> None:
        """See `AnswerGate.fail`."""
        self._loop.call_soon_threadsafe(self._end, error)

    def _end(self, error: ForebayError) -> None:
        self._error = error


class StoreGate(LeaseGate):
    """Holds answers back until the store has what they may tell of."""

    def __init__(
        self,
        has_lease: Callable[[], bool],
        name: str,
        loop: asyncio.AbstractEventLoop,
        *,
        feed: JournalFeed,
        wake: Callable[[], None],
    ) -> None:
        """`wake` tells the uploader that an answer waits."""
        super().__init__(has_lease, name, loop)
        self._feed, self._wake = feed, wake
        self._stored = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def is_open(self) -> bool:
        """See `AnswerGate.is_open`."""
        return self._stored >= self._feed.noted and self.has_lease

    @property
    def holds_writes(self) -> bool:
        """See `AnswerGate.holds_writes`."""
        return True

    async def passed(self) -> None:
        """See `AnswerGate.passed`."""
        noted = self._feed.noted
        self.require_lease()
        if self._stored < noted:
            future = self._loop.create_future()
            self._waiting.append((noted, future))
            self._wake()
            await future
            self.require_lease()

    @any_thread
    def stored(self, count: int) -> None:
        """See `AnswerGate.stored`."""
        self._loop.call_soon_threadsafe(self._release, count)

    def _release(self, count: int) -> None:
        self._stored = count
        while self._waiting and self._waiting[0][0] <= count:
            _, future = self._waiting.popleft()
            if not future.done():  # else its connection was closed
                future.set_result(None)

    def _end(self, error: ForebayError) -> None:
        super()._end(error)
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)
