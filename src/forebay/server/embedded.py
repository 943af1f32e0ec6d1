"""The server inside this process, in a thread with its own event loop.

For notebooks, scripts and tests. It is the same server, on ports of 127.0.0.1 that the system picks, so that other
processes (Spark workers, pyfluss) can connect as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from forebay.base import threads
from forebay.server.config import ServerConfig, server_config
from forebay.server.server import Addresses, ForebayServer, Injected
from forebay.server.wire.serving_loop import ServingLoop

T = TypeVar("T")


class EmbeddedServer:
    """A server in a background thread. Use it as a context manager, or call `start` and `stop`."""

    def __init__(
        self,
        data_dir: str | Path,
        *,
        host: str = "127.0.0.1",
        coordinator_port: int = 0,
        tablet_port: int = 0,
        sasl: bool = False,
        plain: bool = False,
        settings: Mapping[str, str] | None = None,
        injected: Injected | None = None,
    ) -> None:
        """`settings` are those of `forebay server -D key=value` (docs/server.md); port 0 lets the system choose.

        With `sasl` clients need a password, unless they come by the plain listeners, which `plain` keeps.
        """
        self.config: ServerConfig = server_config(
            data_dir,
            host=host,
            coordinator_port=coordinator_port,
            tablet_port=tablet_port,
            sasl=sasl,
            plain=plain,
            settings=settings,
        )
        self._injected = injected
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threads.Thread | None = None
        self._server: ForebayServer | None = None
        self._addresses: Addresses | None = None

    @property
    def addresses(self) -> Addresses:
        """The addresses of the running server. Raises `RuntimeError` if it is not running."""
        if self._addresses is None:
            raise RuntimeError("the embedded server is not running; call start(), or use it in a 'with' statement")
        return self._addresses

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` to connect to."""
        return self.addresses.bootstrap_servers

    @property
    def server(self) -> ForebayServer:
        """The server itself, which lives on the background thread's loop."""
        if self._server is None:
            raise RuntimeError("the embedded server is not running; call start(), or use it in a 'with' statement")
        return self._server

    def start(self) -> EmbeddedServer:
        """Start serving. Raises the error that prevents the start; the data directory is then unlocked again."""
        loop = self._loop = ServingLoop()
        self._thread = threads.thread(loop.run_forever, name="forebay-server")
        self._thread.start()
        server = ForebayServer(self.config, self._injected)
        try:
            self._addresses = self._run(server.start())
        except BaseException:
            self._end_loop()
            raise
        self._server = server
        return self

    def stop(self) -> None:
        """Shut down gracefully. A second call does nothing."""
        server, self._server = self._server, None
        if server is None:
            return
        self._addresses = None
        try:
            self._run(server.stop())
        finally:
            self._end_loop()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            raise RuntimeError("the embedded server has no event loop")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _end_loop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        if self._thread is not None:
            self._thread.join()
        loop.close()

    def __enter__(self) -> EmbeddedServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"serving on {self.bootstrap_servers}" if self._addresses else "stopped"
        return f"<EmbeddedServer {self.config.data_dir} {state}>"
