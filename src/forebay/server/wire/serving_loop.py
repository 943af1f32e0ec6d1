"""The event loop of a server, which serves connections while it waits for events.

An iteration of an asyncio loop costs as much CPU as a short request and its answer. So the loop waits in the `select`
of an event source (`forebay.server.wire._poller.Poller`), which serves requests there. `select` returns, and an
iteration begins, when the loop has a callback, a timer or another event to handle.
"""

from __future__ import annotations

import asyncio
import select
import selectors
from collections.abc import Callable
from contextvars import Context
from typing import Protocol, TypeVarTuple

Args = TypeVarTuple("Args")


class EventSource(Protocol):
    """Waits for events in place of the loop's selector."""

    is_interrupted: bool
    """Set to make `select` return after its current round."""

    def select(self, timeout: float | None) -> list[tuple[int, int]]:
        """Return file descriptors of the selector and their epoll events. `timeout` is in seconds; None: no limit."""
        ...


class _Selector(selectors.DefaultSelector):
    """The system's selector, which waits in an event source once one is attached."""

    source: EventSource | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        source = self.source
        if source is None:
            return super().select(timeout)
        ready = []
        keys = self.get_map()
        for fd, events in source.select(timeout):
            key = keys.get(fd)
            if key is not None:
                mask = (selectors.EVENT_READ if events & ~select.EPOLLOUT else 0) | (
                    selectors.EVENT_WRITE if events & ~select.EPOLLIN else 0
                )
                ready.append((key, mask & key.events))
        return ready


class ServingLoop(asyncio.SelectorEventLoop):
    """An event loop that waits in an event source. Without one it works as any other loop."""

    def __init__(self) -> None:
        self.selector = _Selector()
        super().__init__(self.selector)

    def attach(self, source: EventSource | None) -> None:
        """Wait for events in `source` from now on; None: in the system's selector."""
        self.selector.source = source

    def call_soon(
        self, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        self._interrupt()
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._interrupt()
        return super().call_at(when, callback, *args, context=context)

    def stop(self) -> None:
        self._interrupt()
        super().stop()

    def _interrupt(self) -> None:
        """Begin an iteration of the loop after the current round."""
        source = self.selector.source
        if source is not None:
            source.is_interrupted = True
