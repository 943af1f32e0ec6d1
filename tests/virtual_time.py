"""An event loop whose time passes only where nothing else is left to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


class _VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock stands still while something can run, and jumps to the next timer when nothing can.

    For what lives in the loop alone: sockets and threads would come late, or never.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seconds = 0.0

    def time(self) -> float:
        return self._seconds

    def _run_once(self) -> None:
        if not self._ready:  # type: ignore[attr-defined]
            timers = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
            self._seconds = max(self._seconds, min(timers, default=self._seconds))
        super()._run_once()  # type: ignore[misc]


def run(test: Callable[[], Awaitable[Any]]) -> Any:
    """The outcome of `test` in virtual time: it takes none, and how fast the machine is makes no difference to it."""
    loop = _VirtualLoop()
    try:
        return loop.run_until_complete(_bounded(test()))
    finally:
        loop.close()


async def _bounded(work: Awaitable[Any]) -> Any:
    async with asyncio.timeout(24 * 3600):
        return await work
