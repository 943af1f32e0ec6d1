"""What a round is told from outside while it runs, and what it tells: cut it short, give it up, how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from forebay.base import threads
from forebay.base.clock import SYSTEM_CLOCK, Clock
from forebay.base.errors import ForebayError
from forebay.base.progress import OnProgress, no_progress

Reached: TypeAlias = Callable[[str], None]
"""Called with the name of each step of a round that is done (`forebay.tiering.round.STEPS`): tests die there."""


def nothing_happens(_step: str) -> None:
    """For rounds that nobody kills."""


class RoundControl:
    """One round's reins. Safe to use from any thread."""

    def __init__(
        self,
        *,
        limit_to_freshness: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        reached: Reached = nothing_happens,
        check_still_mine: Callable[[], None] | None = None,
        on_progress: OnProgress = no_progress,
        on_phase: Callable[[str], None] = nothing_happens,
    ) -> None:
        """`limit_to_freshness`: logs are read no longer than the table's freshness; what was read is committed then.

        `check_still_mine` raises where the table is another worker's by now; it is called before the lake commit.
        `on_progress` is told how many splits are written, of how many; `on_phase` what the round is at.
        """
        self.limit_to_freshness = limit_to_freshness
        self.deadline_ms: int | None = None
        self.reached = reached
        self.on_progress = on_progress
        self.on_phase = on_phase
        self._clock = clock
        self._check_still_mine = check_still_mine
        self._cut = threads.event()
        self._error: ForebayError | None = None
        self._listeners: list[Callable[[], None]] = []
        self._lock = threads.lock()

    # ---- cutting: what is there is committed ------------------------------------------------------------------------

    def cut(self) -> None:
        """Read logs no further; what has been read is committed."""
        self._cut.set()

    @property
    def should_cut(self) -> bool:
        return self._cut.is_set() or (self.deadline_ms is not None and self._clock.now_ms() >= self.deadline_ms)

    def begin(self, freshness_ms: int) -> None:
        """The round begins now, of a table with this freshness."""
        if self.limit_to_freshness:
            self.deadline_ms = self._clock.now_ms() + freshness_ms

    # ---- giving up: nothing is committed ----------------------------------------------------------------------------

    def cancel(self, error: ForebayError) -> None:
        """Give the round up as soon as possible; `error` is what it fails with. The first one counts."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()

    def when_cancelled(self, listener: Callable[[], None]) -> None:
        """Have `listener` called at `cancel`, or now if that was before."""
        with self._lock:
            if self._error is None:
                self._listeners.append(listener)
                return
        listener()

    def check(self) -> None:
        """Raise the error of `cancel`."""
        if self._error is not None:
            raise self._error

    def check_still_mine(self) -> None:
        """Raise where the table is not this worker's any more."""
        self.check()
        if self._check_still_mine is not None:
            self._check_still_mine()
