"""How long work tells its caller how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called now and then with how much is done, and of how much (0: not known yet); always in the caller's thread.

What is counted is said where it is asked for: rows, snapshots, files. An exception that it raises ends the work as any
error would.
"""


def no_progress(_done: int, _total: int) -> None:
    """Ignore progress: the default callback."""
