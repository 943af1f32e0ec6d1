"""Ids for writers. They are reserved in the metadata store many at a time, so that each costs little.

Ids are unique, even after a crash: ids that were reserved and not handed out are never used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from forebay.server.metadata_store import WRITER_COUNTER, MetadataStore

TAKEN_AT_ONCE = 1000
"""Ids that one transaction of the metadata store reserves."""

RunChange = Callable[[Callable[[str, int], int], str, int], Awaitable[int]]


class WriterIds:
    """The ids of one server. For the event loop's thread."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = self._end = 0
        self._taking = asyncio.Lock()
        self._waiting = 0

    async def take(self, run_change: RunChange) -> int:
        """Return a new id. `run_change` runs a change of metadata in its thread.

        Waiting callers are served in order, and together.
        """
        if self._next < self._end and not self._waiting:
            return self._give()
        self._waiting += 1
        try:
            async with self._taking:
                if self._next == self._end:
                    count = TAKEN_AT_ONCE + self._waiting
                    first = await run_change(self._store.take, WRITER_COUNTER, count)
                    self._next, self._end = first, first + count
                return self._give()
        finally:
            self._waiting -= 1

    def _give(self) -> int:
        given = self._next
        self._next += 1
        return given
