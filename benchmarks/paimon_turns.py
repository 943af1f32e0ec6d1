"""Stopwatches for the lake engine's benchmark: contenders in turns, with all their turns kept, not only the median."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cost:
    """What a piece of work took, in seconds: by the clock, and of CPU time, all threads of its process."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Turns:
    """The costs of one contender, a turn each."""

    costs: Sequence[Cost]

    @property
    def wall(self) -> float:
        """Median seconds by the clock."""
        return statistics.median(c.wall for c in self.costs)

    @property
    def cpu(self) -> float:
        """Median seconds of CPU time."""
        return statistics.median(c.cpu for c in self.costs)

    @property
    def spread(self) -> tuple[float, float]:
        """Fastest and slowest turn, seconds by the clock."""
        walls = [c.wall for c in self.costs]
        return min(walls), max(walls)


Contender = Callable[[], Cost]


def cost_of(work: Callable[[], Any]) -> Cost:
    """Do it once, in this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def take_turns(
    contenders: Mapping[str, Contender], repeat: int, say: Callable[[str], None], *, rehearse: bool = True
) -> dict[str, Turns]:
    """Each contender runs once in every turn. A first turn, in which modules are loaded and so on, does not count."""
    found: dict[str, list[Cost]] = {name: [] for name in contenders}
    for turn in range(-1 if rehearse else 0, repeat):
        for name, contender in contenders.items():
            cost = contender()
            if turn >= 0:
                found[name].append(cost)
    done = {name: Turns(costs) for name, costs in found.items()}
    for name, turns in done.items():
        low, high = turns.spread
        say(f"  {name}: {turns.wall:.4f} s ({low:.4f} to {high:.4f}), CPU {turns.cpu:.4f} s")
    return done
