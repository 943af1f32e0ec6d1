"""Control of a running round: cut it short, abandon it, follow its progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from forebay.base import threads
from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import ForebayError
from forebay.base.progress import OnProgress, no_progress
from forebay.tiering.steps import RoundStep

Reached: TypeAlias = Callable[[RoundStep], None]
"""Called with each completed step of a round: tests crash there."""


def nothing_happens(_step: str) -> None:
    """Do nothing: the default of `reached`."""


class RoundControl:
    """The control of one round. Thread-safe."""

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
        """`limit_to_freshness`: stop reading logs after the table's freshness, and commit what was read.

        `check_still_mine` raises if the table is now another worker's; it is called before the lake commit.
        `on_progress` is called with the number of written splits and of all splits, `on_phase` with the round's phase
        (`RoundStep.phase`).
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

    # ---- cutting: the rows read so far are committed ----------------------------------------------------------------

    def cut(self) -> None:
        """Stop reading logs; what has been read is committed."""
        self._cut.set()

    @property
    def should_cut(self) -> bool:
        return self._cut.is_set() or (self.deadline_ms is not None and self._clock.now_ms() >= self.deadline_ms)

    def begin(self, freshness_ms: int) -> None:
        """Start the clock of a round of a table with this freshness."""
        if self.limit_to_freshness:
            self.deadline_ms = self._clock.now_ms() + freshness_ms

    # ---- cancelling: nothing is committed ---------------------------------------------------------------------------

    def cancel(self, error: ForebayError) -> None:
        """Abandon the round as soon as possible; it fails with `error`. The first call counts."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()

    def when_cancelled(self, listener: Callable[[], None]) -> None:
        """Call `listener` at `cancel`, or immediately if that has already happened."""
        with self._lock:
            if self._error is None:
                self._listeners.append(listener)
                return
        listener()

    def check(self) -> None:
        """Raise the error of `cancel`, if it was called."""
        if self._error is not None:
            raise self._error

    def check_still_mine(self) -> None:
        """Raise if the table is no longer this worker's."""
        self.check()
        if self._check_still_mine is not None:
            self._check_still_mine()
