"""Ids for writers, taken from the metadata store many at a time, so that a client that needs very many costs little.

Ids are unique, even after a crash: those of a batch that was taken and not used are never used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from forebay.server.metadata_store import WRITER_COUNTER, MetadataStore

TAKEN_AT_ONCE = 1000

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
