"""Stopwatches for the lake engine's benchmark: contenders in turns, with all their turns kept, not only the median."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from resource import RUSAGE_SELF, getrusage
from typing import Any


@dataclass(frozen=True)
class Cost:
    """The cost of a piece of work in seconds: wall time, CPU time of all threads of its process, and the part of that
    in the kernel (page faults, copies, system calls), if it was measured."""

    wall: float
    cpu: float
    kernel: float = 0.0


@dataclass(frozen=True)
class Turns:
    """The costs of one contender, one per turn."""

    costs: Sequence[Cost]

    @property
    def wall(self) -> float:
        """The median wall time in seconds."""
        return statistics.median(c.wall for c in self.costs)

    @property
    def cpu(self) -> float:
        """The median CPU time in seconds."""
        return statistics.median(c.cpu for c in self.costs)

    @property
    def kernel(self) -> float:
        """The median CPU time in the kernel, in seconds."""
        return statistics.median(c.kernel for c in self.costs)

    @property
    def spread(self) -> tuple[float, float]:
        """The wall time of the fastest and the slowest turn, in seconds."""
        walls = [c.wall for c in self.costs]
        return min(walls), max(walls)


Contender = Callable[[], Cost]


def cost_of(work: Callable[[], Any]) -> Cost:
    """The cost of running `work` once, in this process."""
    wall, cpu, kernel = time.perf_counter(), time.process_time(), getrusage(RUSAGE_SELF).ru_stime
    work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu, getrusage(RUSAGE_SELF).ru_stime - kernel)


def take_turns(
    contenders: Mapping[str, Contender], repeat: int, say: Callable[[str], None], *, rehearsals: int = 1
) -> dict[str, Turns]:
    """The turns of each contender, which runs once in every turn. The first `rehearsals`, for imports etc., do not
    count."""
    found: dict[str, list[Cost]] = {name: [] for name in contenders}
    for turn in range(-rehearsals, repeat):
        for name, contender in contenders.items():
            cost = contender()
            if turn >= 0:
                found[name].append(cost)
    done = {name: Turns(costs) for name, costs in found.items()}
    for name, turns in done.items():
        low, high = turns.spread
        say(
            f"  {name}: {turns.wall:.4f} s ({low:.4f} to {high:.4f}), CPU {turns.cpu:.4f} s, "
            f"kernel {turns.kernel:.2f} s"
        )
    return done
