"""A server in a thread of this process, with an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from forebay.base import threads
from forebay.server.server import Addresses, ForebayServer
from forebay.server.wire.serving_loop import ServingLoop

T = TypeVar("T")


class ServerThread:
    """A running server, from its creation to `stop`."""

    def __init__(self, server: ForebayServer, name: str) -> None:
        """Start the server in a thread called `name`. Raises the error that prevents it; nothing is left then."""
        self.server = server
        """Lives on the thread's loop."""
        self.loop = ServingLoop()
        self._thread = threads.thread(self.loop.run_forever, name=name)
        self._thread.start()
        try:
            self.addresses: Addresses = self._run(server.start())
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """Shut down gracefully. Raises the error of closing; the thread has ended in any case."""
        try:
            self._run(self.server.stop())
        finally:
            self._end()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def _end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
