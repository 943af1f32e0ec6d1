"""Wakes long polls: notifies waiters of a bucket, on the event loop, when its high watermark moves."""

from __future__ import annotations

import asyncio

from forebay.base.thread_rules import any_thread, loop_only
from forebay.metadata.table import TableBucket
from forebay.server.lake.lake_tiering import TieringManager


@loop_only
class ProgressNotifier:
    """Waiters by bucket. `progressed` may be called from any thread; everything else belongs to the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tiering: TieringManager) -> None:
        self._loop = loop
        self._waiters: dict[TableBucket, set[asyncio.Event]] = {}
        self._tiering = tiering

    @any_thread
    def progressed(self, bucket: TableBucket) -> None:
        """Wake the waiters of `bucket`, which has new records or was dropped; notify tiering of a lake table's rows."""
        if bucket in self._waiters:  # a stale read is harmless: a waiter checks once more after it has registered
            self._loop.call_soon_threadsafe(self._wake, bucket)
        if bucket.table_id in self._tiering.table_ids:
            self._tiering.changed(bucket.table_id)

    def _wake(self, bucket: TableBucket) -> None:
        for event in self._waiters.get(bucket, ()):
            event.set()

    @property
    def waiting(self) -> int:
        """Return the number of waits: one for each bucket of a fetch."""
        return sum(map(len, list(self._waiters.values())))

    def watch(self, event: asyncio.Event, bucket: TableBucket) -> None:
        """Set `event` whenever `bucket` moves, until `unwatch`."""
        self._waiters.setdefault(bucket, set()).add(event)

    def unwatch(self, event: asyncio.Event, bucket: TableBucket) -> None:
        """End a `watch`, if there is one."""
        waiting = self._waiters.get(bucket)
        if waiting is not None:
            waiting.discard(event)
            if not waiting:
                del self._waiters[bucket]
