"""`forebay.embedded(directory)`: a server inside this process, and a connection to it, in one object."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay.base import threads
from forebay.base.quantity import Span
from forebay.client.connection import Connection
from forebay.client.settings import LAKE_OPTIONS, make_settings
from forebay.server.embedded import EmbeddedServer


class EmbeddedConnection(Connection):
    """A connection whose server lives as long as it does; `close` ends both.

    Other processes can connect to `bootstrap_servers` meanwhile. Pickled, it becomes a plain `Connection` there.
    """

    def __init__(self, server: EmbeddedServer, options: Mapping[str, Any]) -> None:
        self.server = server
        self._owner = os.getpid()
        # Whoever runs the server knows the secrets of its lake.
        lake = {**server.config.lake.options, **(options.get(LAKE_OPTIONS) or {})}
        super().__init__(make_settings(server.bootstrap_servers, None, None, {**options, LAKE_OPTIONS: lake}))

    @property
    def bootstrap_servers(self) -> str:
        """Where others connect to: "host:port"."""
        return self.server.bootstrap_servers

    def __enter__(self) -> EmbeddedConnection:
        return self

    def close(self, timeout: Span | None = None) -> None:
        """Close the connection as `Connection.close` does, then stop the server. A second call does nothing."""
        try:
            super().close(timeout)
        finally:
            if os.getpid() == self._owner:  # a forked child has the connection, but the server is its parent's
                self.server.stop()


def embedded(
    data_dir: str | Path, *, port: int = 0, settings: Mapping[str, str] | None = None, **options: Any
) -> EmbeddedConnection:
    """Start a server on `data_dir` inside this process, and connect to it.

    It is the server that `forebay server` runs, on 127.0.0.1 and `port` (0: a free port); `settings` are those of
    `forebay server -D key=value`, `options` those of `forebay.connect`. A directory serves one process at a time:
    raises `Conflict` if another one has it. Close the connection to stop the server; at the latest it is closed
    when the process ends.
    """
    server = EmbeddedServer(data_dir, coordinator_port=port, settings=settings).start()
    try:
        connection = EmbeddedConnection(server, options)
        connection.cluster.bootstrap()
    except BaseException:
        server.stop()
        raise
    # Registered after the server's threads have begun: so it runs before they are refused work.
    threads.register_atexit(_close_at_exit, weakref.ref(connection))
    return connection


_EXIT_SECONDS = 10.0


def _close_at_exit(reference: weakref.ref[EmbeddedConnection]) -> None:
    """At the end of the process: send what writers hold, and stop the server."""
    connection = reference()
    if connection is not None and not connection.closed:
        connection.close(_EXIT_SECONDS)
