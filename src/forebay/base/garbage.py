"""Short pauses of Python's garbage collector in a process that keeps many objects.

A full collection stops all threads while it traverses every object: 0.2 s and more with thousands of open buckets,
several times a minute under load. But it need not traverse survivors again (`gc.freeze`): such objects are still freed
when nothing refers to them, only cycles among them are not found. So a complete collection runs occasionally, and
whenever the number of frozen objects has doubled.
"""

from __future__ import annotations

import gc
from typing import Any

from forebay.base.ambient import SYSTEM_CLOCK, Clock

_OLDEST = 2
"""The collector's oldest generation: its collection is a full one."""

_WHOLE_SECONDS = 600.0
"""Minimum time between two complete collections, unless the number of frozen objects doubles before."""

_GROWTH_ALLOWED = 200_000
"""Frozen objects beyond twice those of the last complete collection that trigger the next one."""


class GcFreezer:
    """Freezes the survivors of full collections, from `install` to `remove`. One per process."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._is_whole = True
        self._last_whole = clock.monotonic()
        self._frozen_max = 0

    def install(self) -> None:
        """Start by freezing the existing objects."""
        self._freeze(is_whole=True)
        gc.callbacks.append(self._in_round)

    def remove(self) -> None:
        """Restore the collector's previous state."""
        gc.callbacks.remove(self._in_round)
        gc.unfreeze()

    def _in_round(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] < _OLDEST:
            return
        if phase == "stop":
            self._freeze(self._is_whole)
            return
        is_due = self._clock.monotonic() - self._last_whole >= _WHOLE_SECONDS
        self._is_whole = is_due or gc.get_freeze_count() > self._frozen_max
        if self._is_whole:
            gc.unfreeze()

    def _freeze(self, is_whole: bool) -> None:
        gc.freeze()
        if is_whole:
            self._last_whole = self._clock.monotonic()
            self._frozen_max = 2 * gc.get_freeze_count() + _GROWTH_ALLOWED
