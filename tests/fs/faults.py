"""Failures injected into `tests.fs.faulty_fs`: which calls they affect, and their effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Operation = Literal[
    "open", "append", "sync", "truncate", "read", "write_atomic", "publish", "make_directories", "list", "remove",
    "rename", "sync_directory", "free_bytes", "lock",
]  # fmt: skip

FaultEffect = Literal["before", "after", "partial", "drop"]


@dataclass
class Fault:
    """A failure that affects matching calls. Created by `FaultyFileSystem.inject`."""

    operation: Operation | Literal["any"]
    path_prefix: str
    path_suffix: str
    on_call: int
    times: int
    errno: int
    effect: FaultEffect
    calls: int = 0
    fired: int = 0

    def strikes(self, operation: Operation, path: str) -> bool:
        """Count this call if it matches; return whether it fails."""
        if (
            self.operation not in (operation, "any")
            or not path.startswith(self.path_prefix)
            or not path.endswith(self.path_suffix)
        ):
            return False
        self.calls += 1
        if self.calls < self.on_call or self.fired >= self.times:
            return False
        self.fired += 1
        return True


@dataclass
class Flip:
    """A byte that reads see changed."""

    path: str
    position: int
    mask: int
