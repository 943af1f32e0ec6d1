"""The console's HTTP server: Uvicorn with deadlines for whole requests, and a bounded number of connections.

Uvicorn waits for the rest of a request for ever, and refuses all requests while it has too many connections, of which
most may never send one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from forebay.base.http_places import HttpPlaces

OPEN_MAX = 256
REQUEST_SECONDS = 10.0
"""How long a client may take for a whole request, with its body."""

_UNREAD_SECONDS = 30.0
"""How long a client may read nothing of an answer that waits for it."""

_KEPT_SECONDS = 30
_HEAD_BYTES_MAX = 32 << 10
_CHECK_SECONDS = 0.5


class TimedProtocol(H11Protocol):
    """A connection with a place among the bounded number of them."""

    def __init__(self, places: HttpPlaces[TimedProtocol], *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._places = places
        self._is_kept = False
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._places.open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._places.remove(self)
        self._read_again()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_kept:
            self._is_kept = False
            self._places.wait(self)
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._is_kept = False
            self._places.answer(self)

    def on_response_complete(self) -> None:
        self._is_kept = True
        self._places.wait(self, _KEPT_SECONDS + REQUEST_SECONDS)  # Uvicorn ends kept connections
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(_UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._read_again()
        super().resume_writing()

    def _read_again(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def make_server(app: Any) -> uvicorn.Server:
    """Return a server of an application; run it by `serve`."""
    places = HttpPlaces[TimedProtocol](OPEN_MAX, REQUEST_SECONDS, float("inf"), lambda each: each.transport.abort())
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, date_header=False, lifespan="off", ws="none",
        timeout_graceful_shutdown=1, timeout_keep_alive=_KEPT_SECONDS, h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
        http=partial(TimedProtocol, places),  # type: ignore[arg-type]  # what makes protocols, as their classes do
    )  # fmt: skip
    return _TimedServer(config, places.cut_off_late)


class _TimedServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, check: Callable[[], object]) -> None:
        super().__init__(config)
        self._check = check

    async def main_loop(self) -> None:
        checking = asyncio.create_task(self._check_often())
        try:
            await super().main_loop()
        finally:
            checking.cancel()

    async def _check_often(self) -> None:
        while True:
            self._check()
            await asyncio.sleep(_CHECK_SECONDS)
