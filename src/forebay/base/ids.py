"""Randomness and identifiers, injected for the same reason as time: a seeded run must be exactly reproducible."""

from __future__ import annotations

import os
import random
from typing import Protocol


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
