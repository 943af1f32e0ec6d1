"""Log lines about work on a bucket that takes long."""

from __future__ import annotations

import logging

from forebay.base.ambient import Clock

_LOGGER = logging.getLogger(__name__)

_PROGRESS_SECONDS = 2.0


class SlowProgress:
    """Logs the progress of a long step: nothing in the first two seconds, then every two seconds."""

    def __init__(self, clock: Clock, what: str) -> None:
        self._clock = clock
        self._what = what
        self._next = clock.monotonic() + _PROGRESS_SECONDS

    def __call__(self, done: int, total: int) -> None:
        now = self._clock.monotonic()
        if now >= self._next:
            self._next = now + _PROGRESS_SECONDS
            _LOGGER.info("%s: %s of %s", self._what, done, total)
