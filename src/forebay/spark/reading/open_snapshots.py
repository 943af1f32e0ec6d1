"""The table snapshots that a driver keeps open for its queries, and when it asks the JVM to let go of old ones.

A snapshot is released when Python collects it, which waits for the JVM to collect the plan of its query.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

OPEN_BEFORE_COLLECTING = 64
"""Snapshots of one driver beyond which the JVM is asked to collect the plans of old queries."""


class OpenSnapshots:
    """The snapshots and other resources that a driver keeps open for its queries. Thread-safe.

    The JVM may take its time to collect plans. So a driver that has many snapshots open asks it to.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[object] = weakref.WeakSet()
        self._collect_at = OPEN_BEFORE_COLLECTING

    def __len__(self) -> int:
        with self._lock:
            return len(self._open)

    def add(self, snapshot: object, collect: Callable[[], object]) -> None:
        """Remember one; `collect` makes the JVM collect garbage, if there are many.

        Plans that are in use after all do not make every further query collect: then more have to come first.
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
