"""Linearizability: whether the clients' observations of one key are possible for an atomic register.

This shares no code with the server or the client: it only uses times and values. The search is that of Wing and Gong
with Lowe's memory of visited states. A write whose outcome is unknown may happen at any time after it was requested, or
never.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NEVER = float("inf")
STATES_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Op:
    """A write of `value`, or a read that found it; asked for and answered at these times (`NEVER` for unknown)."""

    is_write: bool
    value: Any
    asked: float
    answered: float
    who: str = ""

    def __str__(self) -> str:
        what = "write" if self.is_write else "read"
        return f"{what} {self.value!r} [{self.asked:.4f}, {self.answered:.4f}] {self.who}"


class TooHard(Exception):
    """The search was given up: too many states."""


def is_linearizable(ops: list[Op], initial: Any = None, states_max: int = STATES_MAX) -> bool:
    """Whether one order of `ops` explains all reads. Raises `TooHard`."""
    seen = {op.value for op in ops if not op.is_write}
    # An unknown write that no read has found, of a value that only it writes, may as well never have happened.
    kept = [op for op in ops if not (op.is_write and op.answered == NEVER and op.value not in seen)]
    kept = [op for op in kept if op.is_write or op.answered != NEVER]
    kept.sort(key=lambda op: (op.asked, op.answered))
    count = len(kept)
    required = sum(1 << i for i, op in enumerate(kept) if op.answered != NEVER)
    visited: set[tuple[int, Any]] = set()
    stack: list[tuple[int, Any]] = [(0, initial)]
    while stack:
        done, value = stack.pop()
        if done & required == required:
            return True
        if (done, value) in visited:
            continue
        visited.add((done, value))
        if len(visited) > states_max:
            raise TooHard(f"{count} operations, {len(visited)} states")
        horizon = NEVER
        for i in range(count):
            if done >> i & 1:
                continue
            op = kept[i]
            if op.asked > horizon:
                break
            horizon = min(horizon, op.answered)
        for i in range(count - 1, -1, -1):
            op = kept[i]
            if done >> i & 1 or op.asked > horizon:
                continue
            if op.is_write:
                stack.append((done | 1 << i, op.value))
            elif op.value == value:
                stack.append((done | 1 << i, value))
    return False
