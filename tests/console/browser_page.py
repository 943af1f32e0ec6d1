"""The console in a browser, with a server in another process."""

from __future__ import annotations

import threading
from pathlib import Path

import uvicorn

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.cli.console import _listening
from forebay.console.app import make_app
from forebay.console.session import Console
from forebay.console.visitors import Doors, Visitors
from forebay.testing.server import ServerProcess
from tests.console.browser import Browser


class Shown:
    """A console in this process, its server in another one, and a browser."""

    def __init__(self, folder: Path, page: Browser, *, allow_changes: bool = False) -> None:
        lake = {"datalake.format": "paimon", "datalake.paimon.warehouse": str(folder / "lake")}
        self.server = ServerProcess(folder / "data", settings=lake).start()
        self.page = page
        self.console = Console.open(self.server.bootstrap_servers, allow_changes=allow_changes)
        listening = _listening("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        app = make_app(Visitors(SYSTEM_CLOCK, self.console), Doors.of("127.0.0.1"), allow_changes=allow_changes)
        self._web = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._web.run, kwargs={"sockets": [listening]})
        self._thread.start()
        self.conn = self.console.conn

    def open(self, path: str) -> None:
        self.page.open(self.url + path)
        self.page.until_settled()

    def close(self) -> None:
        self._web.should_exit = True
        self._thread.join()
        self.console.close()
        self.server.kill()
