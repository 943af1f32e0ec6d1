"""The server inside this process, in a thread with its own event loop.

For notebooks, scripts and tests. It is the same server, on ports of 127.0.0.1 that the system picks, so that other
processes (Spark workers, pyfluss) can connect as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from forebay.server.config import ServerConfig, server_config
from forebay.server.server import Addresses, ForebayServer, Injected
from forebay.server.server_thread import ServerThread


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
        self._running: ServerThread | None = None

    @property
    def addresses(self) -> Addresses:
        """The addresses of the running server. Raises `RuntimeError` if it is not running."""
        return self._require_running().addresses

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` to connect to."""
        return self.addresses.bootstrap_servers

    @property
    def server(self) -> ForebayServer:
        """The server itself, which lives on the background thread's loop."""
        return self._require_running().server

    def _require_running(self) -> ServerThread:
        if self._running is None:
            raise RuntimeError("the embedded server is not running; call start(), or use it in a 'with' statement")
        return self._running

    def start(self) -> EmbeddedServer:
        """Start serving. Raises the error that prevents the start; the data directory is then unlocked again."""
        self._running = ServerThread(ForebayServer(self.config, self._injected), "forebay-server")
        return self

    def stop(self) -> None:
        """Shut down gracefully. A second call does nothing."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def __enter__(self) -> EmbeddedServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"serving on {self.bootstrap_servers}" if self._running else "stopped"
        return f"<EmbeddedServer {self.config.data_dir} {state}>"
