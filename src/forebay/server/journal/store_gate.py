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

Release = Callable[[ForebayError | None], None]
"""Gives an answer, or the error in its place."""


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

    def hold(self, release: Release) -> None:
        """Call `release` when an answer that is made now may be given, or with the error if it must not be given."""
        ...

    def stored(self, count: int) -> None:
        """So many notes are in the store. Called in any thread."""
        ...

    def fail(self, error: ForebayError) -> None:
        """Let no answer pass any more. Called in any thread."""
        ...


async def passed(gate: AnswerGate) -> None:
    """Return when an answer that is made now may be given. Raises the error that is to be given in its place."""
    future = asyncio.get_running_loop().create_future()

    def release(error: ForebayError | None) -> None:
        if future.done():
            return  # its connection was closed
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    gate.hold(release)
    await future


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
        refusal = self._refusal()
        if refusal is not None:
            raise refusal

    def _refusal(self) -> ForebayError | None:
        if self._error is not None or self._is_leased():
            return self._error
        return Unavailable(
            f"the server in {self._name} cannot reach its store, and another one may have taken over",
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )

    @property
    def is_open(self) -> bool:
        """See `AnswerGate.is_open`."""
        return self.has_lease

    def hold(self, release: Release) -> None:
        """See `AnswerGate.hold`."""
        release(self._refusal())

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
        self._waiting: deque[tuple[int, Release]] = deque()

    @property
    def is_open(self) -> bool:
        """See `AnswerGate.is_open`."""
        return self._stored >= self._feed.noted and self.has_lease

    def hold(self, release: Release) -> None:
        """See `AnswerGate.hold`."""
        noted, refusal = self._feed.noted, self._refusal()
        if refusal is not None or self._stored >= noted:
            release(refusal)
        else:
            self._waiting.append((noted, release))
            self._wake()

    @any_thread
    def stored(self, count: int) -> None:
        """See `AnswerGate.stored`."""
        self._loop.call_soon_threadsafe(self._release, count)

    def _release(self, count: int) -> None:
        self._stored = count
        while self._waiting and self._waiting[0][0] <= count:
            self._waiting.popleft()[1](self._refusal())

    def _end(self, error: ForebayError) -> None:
        super()._end(error)
        while self._waiting:
            self._waiting.popleft()[1](error)
