"""Progress callbacks of long-running operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called periodically with the amount done and the total (0: not known yet); always in the caller's thread.

The operation documents the unit: rows, snapshots, files. An exception that it raises ends the operation like any other
error.
"""


def no_progress(_done: int, _total: int) -> None:
    """Ignore progress: the default callback."""
