"""The gate through which all writes of one primary-key table go, so that all its buckets can be seen at one instant.

A group of writes of one bucket passes the gate as a whole, from its changelog to its acknowledgement
(`BucketReplica.put`). Whoever wants to see the buckets at one instant closes the gate: groups that are inside end,
those that come wait, and what is seen meanwhile is a state between two groups. So, of any two groups, the state never
holds one that began after another had ended without holding that other one, whichever buckets they belong to.

Taking snapshots of buckets costs microseconds each; the gate is closed that long, and while the groups inside end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forebay.base import threads


class WriteGate:
    """Many pass at a time, or one holds it closed. Whoever closes it goes before those that come later."""

    def __init__(self) -> None:
        self._changed = threads.condition(threads.lock())
        self._inside = 0
        self._is_closed = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Be inside; waits while the gate is closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if not self._inside:
                    self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Keep everybody out; waits until nobody is inside."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._is_closed = True
            self._changed.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._changed:
                self._is_closed = False
                self._changed.notify_all()
