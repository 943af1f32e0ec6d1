"""Time, randomness and identifiers, injected.

Nothing outside `forebay.base` reads an ambient clock or an ambient source of randomness (enforced by a lint rule), so
that a seeded run is exactly reproducible.
"""

from __future__ import annotations

import os
import random
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now_ms(self) -> int:
        """The wall-clock time in milliseconds since the epoch. May jump; use it for timestamps only."""
        ...

    def monotonic(self) -> float:
        """The seconds since an arbitrary start, which never decrease. Use it for timeouts, leases and rates."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for `seconds`."""
        ...


class SystemClock:
    """The clocks of the machine."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that is advanced explicitly: for tests and simulation."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance both clocks by `seconds`."""
        self._monotonic += seconds
        self._now_ms += round(seconds * 1000)

    def jump_wall_clock(self, milliseconds: int) -> None:
        """Step the wall clock, as an operator or NTP does, without changing monotonic time."""
        self._now_ms += milliseconds


SYSTEM_CLOCK: Clock = SystemClock()


class IdSource(Protocol):
    """A source of unguessable identifiers and of jitter."""

    def token_hex(self) -> str:
        """128 random bits as 32 lower-case hexadecimal digits (the form of a Fluss scanner id)."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """A float in [low, high], for back-off jitter."""
        ...


class SystemIds:
    """Identifiers from the operating system's generator."""

    def token_hex(self) -> str:
        return os.urandom(16).hex()

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)


class SeededIds:
    """Identifiers from a seed: for tests and simulation."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token_hex(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


SYSTEM_IDS: IdSource = SystemIds()
