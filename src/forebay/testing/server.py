"""A server for tests: in this process, or in a separate process that can be killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.server.embedded import EmbeddedServer

__all__ = ["EmbeddedServer", "ServerProcess"]


class ServerProcess:
    """`forebay server` as a child process on ports that the system picks; `kill` ends it like `kill -9`."""

    def __init__(
        self,
        data_dir: str | Path,
        *,
        sasl: bool = False,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        start_seconds_max: float = 60.0,
    ) -> None:
        self.data_dir = Path(data_dir)
        self._sasl = sasl
        self._settings = dict(settings or {})
        self._arguments = list(arguments)
        self._environment = dict(environment or {})
        self._start_seconds_max = start_seconds_max
        self._process: subprocess.Popen[bytes] | None = None
        self._held: list[socket.socket] = []
        self._ports = (0, 0)
        self.ready: dict[str, str] = {}

    @property
    def bootstrap_servers(self) -> str:
        return self.ready["bootstrap.servers"]

    @property
    def address(self) -> str:
        """Where clients find it, also while it is down, once it was launched."""
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def log_path(self) -> Path:
        """The file with the server's output."""
        return self.data_dir.parent / f"{self.data_dir.name}.log"

    def start(self, keep_ports: bool = False) -> ServerProcess:
        """Start (again) and wait until the server is ready. `keep_ports` reuses the previous addresses."""
        self.launch(keep_ports)
        self.wait_until_ready(self._start_seconds_max)
        return self

    def launch(self, keep_ports: bool = False, arguments: Sequence[str] = ()) -> None:
        """Start (again), with more arguments such as `--standby`, and do not wait."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        if not keep_ports:
            self._ports = self._hold_ports()
        coordinator_port, tablet_port = self._ports
        command = [
            sys.executable, "-m", "forebay", "server", "--data-dir", str(self.data_dir), "--ready-file",
            str(self._ready_file), "--coordinator-port", str(coordinator_port), "--tablet-port", str(tablet_port),
            *(["--sasl"] if self._sasl else []), *self._arguments, *arguments,
        ]  # fmt: skip
        for key, value in self._settings.items():
            command += ["-D", f"{key}={value}"]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **self._environment}
            )

    @property
    def _ready_file(self) -> Path:
        return self.data_dir.parent / f"{self.data_dir.name}.ready.json"

    def _hold_ports(self) -> tuple[int, int]:
        """Two new ports, reserved while this object lives: no other process gets them while the server is down.

        A socket that is bound with SO_REUSEADDR but does not listen reserves a port, and a server can still listen
        there.
        """
        while self._held:
            self._held.pop().close()
        for _ in range(2):
            sock = socket.socket()
            weakref.finalize(self, sock.close)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", 0))
            self._held.append(sock)
        first, second = (sock.getsockname()[1] for sock in self._held)
        return first, second

    @property
    def is_running(self) -> bool:
        """Whether the process was launched, and has not ended as far as this object has been told."""
        return self._process is not None

    @property
    def is_ready(self) -> bool:
        """Whether the process that was launched serves."""
        return self._ready_file.exists()

    def wait_until_ready(self, seconds_max: float) -> None:
        """Wait until the server serves. Raises `RuntimeError` with its output if it ends or takes too long."""
        deadline = SYSTEM_CLOCK.monotonic() + seconds_max
        while not self.is_ready:
            if self._running().poll() is not None or SYSTEM_CLOCK.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the server did not start; its output:\n{self.log_path.read_text()[-4000:]}")
            SYSTEM_CLOCK.sleep(0.01)
        self.ready = json.loads(self._ready_file.read_text())

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process

    def stop(self) -> int:
        """Stop the server by SIGTERM; return its exit code."""
        process, self._process = self._running(), None
        process.send_signal(signal.SIGTERM)
        return process.wait(60)

    def wait(self, seconds_max: float) -> int:
        """Wait until the server has ended, of which no method here is the reason; return its exit code.

        Raises `subprocess.TimeoutExpired`.
        """
        code = self._running().wait(seconds_max)
        self._process = None
        return code

    def kill(self) -> None:
        """Stop the server by SIGKILL, like a crash."""
        process, self._process = self._running(), None
        process.kill()
        process.wait()

    def __enter__(self) -> ServerProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.stop()
