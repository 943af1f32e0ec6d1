"""The gate through which all writes of one primary-key table go, so that all its buckets can be seen at one moment.

A group of writes of one bucket passes the gate as a whole, from its changelog to its acknowledgement
(`BucketReplica.put`). To see the buckets at one moment, a caller closes the gate: groups inside finish, new ones wait,
and the visible state is one between two groups. So, of any two groups, the state never holds one that began after
another had ended without holding that other one, whichever buckets they belong to.

Taking snapshots of buckets costs microseconds each; the gate is closed that long, and while the groups inside finish.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forebay.base import threads


class WriteGate:
    """Many writers pass at a time, or one holder keeps it closed. A closer goes before later writers."""

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
        """Wait until no writer is inside, and keep all writers out of the gate during the block."""
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
