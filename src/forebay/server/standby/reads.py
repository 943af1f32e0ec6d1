"""Reads beside a standby: a `StandbyServer` in a thread, and a thread that lets it go on with what is repeated."""

from __future__ import annotations

import logging
import math

from forebay.base import threads
from forebay.base.errors import ForebayError
from forebay.base.thread_rules import any_thread
from forebay.server.config import ServerConfig
from forebay.server.server_thread import ServerThread
from forebay.server.standby.boundary import Boundary
from forebay.server.standby.standby import Standby
from forebay.server.standby.standby_server import StandbyServer, read_config

_LOGGER = logging.getLogger(__name__)


class ReadsInThread:
    """The reads of a standby that is a process: `forebay.server.standby.standby.Reads`."""

    def __init__(self, server: StandbyServer) -> None:
        """Start the server, with nothing to read yet. Raises what `ForebayServer.start` raises."""
        self._changed = threads.condition()
        self._offered: Boundary | None = None
        self._current_at = -math.inf
        self._is_stopping = self._has_news = False
        self._running = ServerThread(server, "forebay-standby-reads")
        self.addresses = self._running.addresses
        self.server = server
        self._thread = threads.thread(self._advance, name="forebay-standby-follow")
        self._thread.start()

    @any_thread
    def offer(self, boundary: Boundary | None, current_at: float) -> None:
        with self._changed:
            if boundary is not None:
                self._offered = boundary.after(self._offered)
            self._current_at, self._has_news = current_at, True
            self._changed.notify_all()

    @property
    def number(self) -> int:
        """The last object of the journal that is read."""
        return 0 if self.server.boundary is None else self.server.boundary.number

    def _advance(self) -> None:
        try:
            self._go_on()
        finally:  # also of a fault of ours: who reads here goes to the server, then
            try:
                self._running.stop()
            except ForebayError as e:
                _LOGGER.warning("reads did not end as they should: %s", e)

    def _go_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopping or self._has_news)
                if self._is_stopping:
                    return
                boundary, self._offered, self._has_news = self._offered, None, False
                current_at = self._current_at
            try:
                if boundary is not None:
                    self.server.advance(boundary)
                self.server.current_at = current_at
            except ForebayError as e:
                _LOGGER.error("reads do not go on for now: %s", e)
                with self._changed:  # once more with the next offer, which comes with the next look at the journal
                    self._offered = boundary if self._offered is None else self._offered.after(boundary)

    @any_thread
    def stop(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the end after `stop`."""
        self._thread.join()


def serve_reads(standby: Standby, config: ServerConfig, port: int) -> ReadsInThread | None:
    """Serve reads of what a standby with these settings repeats, at `port` and the next one; 0: the system picks both.

    Return None for the directory of a server that was stopped: the standby goes on as one, and repeats nothing. Raises
    what `ForebayServer.start` raises, and `UnsupportedOperation` for named listeners.
    """
    reading = read_config(config, port)
    return standby.serve_reads(lambda logs: ReadsInThread(StandbyServer(reading, standby.store, logs)))
