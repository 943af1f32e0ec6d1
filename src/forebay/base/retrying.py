"""Retries: which errors are transient, how long to wait between attempts, and what is logged in the meantime."""

from __future__ import annotations

import logging

from forebay.base.ambient import Clock, IdSource
from forebay.base.errors import CorruptData, ErrorCode, ForebayError


def backoff(failures: int, first: float, most: float) -> float:
    """The pause after this many consecutive failures: `first` after one, doubled after each further one, at most
    `most`.

    In the unit of `first` and `most`.
    """
    return float(min(first * 2.0 ** min(failures - 1, 64), most))


_LOGGER = logging.getLogger("forebay")

BACKOFF_FIRST_SECONDS = 0.02
BACKOFF_MAX_SECONDS = 1.0
"""The wait before the first retry; it doubles with each failure, up to the maximum. Each wait varies by a fifth."""

NOTICE_SECONDS = 2.0
"""How long a call waits before it logs a notice."""

_NOTICE_FACTOR = 4.0
"""Notices of one wait come after 2, 8, 32 ... seconds."""


def may_repeat(error: ForebayError) -> bool:
    """Whether the same request may succeed later, possibly on another server."""
    return error.retriable or error.code in (
        ErrorCode.NOT_COORDINATOR_LEADER_EXCEPTION,
        ErrorCode.FENCED_LEADER_EPOCH_EXCEPTION,
    )


def may_read_again(error: ForebayError) -> bool:
    """Whether a read-only request may succeed later. Corrupt data is permanent."""
    return may_repeat(error) and not isinstance(error, CorruptData)


class BackOff:
    """Exponential backoff between attempts: 20 ms, 40 ms, ... 1 s, each with jitter."""

    def __init__(self, ids: IdSource) -> None:
        self._ids = ids
        self._failures = 0

    def next_seconds(self) -> float:
        """The next pause."""
        self._failures += 1
        return self._ids.uniform(0.8, 1.2) * backoff(self._failures, BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS)


class WaitNotice:
    """Logs a warning when a wait takes too long, and again at growing intervals.

    Python prints warnings to standard error in programs without logging setup, so users of notebooks and scripts see
    them. One object serves one wait at a time; `over` ends it.
    """

    def __init__(self, clock: Clock, since: float | None = None) -> None:
        """The wait started at `since`, a monotonic time; None: it starts with the first call."""
        self._clock = clock
        self._since = since
        self._next_seconds = NOTICE_SECONDS

    @property
    def seconds_left(self) -> float:
        """The seconds until the next notice is due; 0 if it is due now. Starts the wait if necessary."""
        return max(self._next_seconds - self._waited(), 0.0)

    def tell(self, what: str) -> None:
        """Log that `what` is being waited for, if due. The first call starts the wait."""
        waited = self._waited()
        if waited >= self._next_seconds:
            self._next_seconds = _NOTICE_FACTOR * waited
            _LOGGER.warning("forebay: waiting for %.0f s: %s", waited, what)

    def over(self) -> None:
        """End the wait, successful or not."""
        if self._since is not None and self._next_seconds > NOTICE_SECONDS:
            _LOGGER.warning("forebay: no longer waiting, after %.0f s", self._waited())
        self._since, self._next_seconds = None, NOTICE_SECONDS

    def _waited(self) -> float:
        now = self._clock.monotonic()
        if self._since is None:
            self._since = now
        return now - self._since
