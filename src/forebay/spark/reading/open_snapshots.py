"""The table snapshots that a driver keeps open for its queries, and the release of old ones.

A snapshot is released when Python collects it. That happens after the JVM has collected the plan of its query.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

OPEN_BEFORE_COLLECTING = 64
"""The number of open snapshots from which the driver asks the JVM to collect the plans of old queries."""


class OpenSnapshots:
    """The snapshots and other resources that a driver keeps open for its queries. Thread-safe.

    The JVM may collect plans late, so a driver with many open snapshots requests a garbage collection.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[object] = weakref.WeakSet()
        self._collect_at = OPEN_BEFORE_COLLECTING

    def __len__(self) -> int:
        with self._lock:
            return len(self._open)

    def add(self, snapshot: object, collect: Callable[[], object]) -> None:
        """Register a snapshot; with many open ones, run `collect`, which makes the JVM collect garbage.

        If the plans are still in use, the threshold rises, so that not every further query runs `collect`.
        """
        with self._lock:
            self._open.add(snapshot)
            is_due = len(self._open) >= self._collect_at
            if is_due:
                self._collect_at = len(self._open) * 2
        if is_due:
            collect()
        else:
            with self._lock:
                if len(self._open) < OPEN_BEFORE_COLLECTING // 2:
                    self._collect_at = OPEN_BEFORE_COLLECTING


open_snapshots = OpenSnapshots()
"""The open snapshots of this process."""
