"""The faults during transfers: servers and tiering workers are killed, restarted, replaced."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forebay.testing.server import ServerProcess
from tests.patience import PATIENCE
from tests.reliability.second_server import check_refused

_START_SECONDS_MAX, _END_SECONDS_MAX = PATIENCE, PATIENCE


class TieringProcess:
    """`forebay tiering` as a child process, which writes in threads of its own. It is made when it is connected."""

    def __init__(self, bootstrap_servers: str, log_path: Path) -> None:
        self.log_path = log_path
        command = [
            sys.executable, "-X", "faulthandler", "-m", "forebay", "tiering", "-b", bootstrap_servers,
            "--without-spark", "--threads", "1", "--poll-seconds", "0.1", "--log-level", "INFO",
        ]  # fmt: skip
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + _START_SECONDS_MAX
        while "stop it with Ctrl-C" not in log_path.read_text():
            self.check_alive()
            assert time.monotonic() < deadline, "a tiering worker does not start"
            time.sleep(0.02)

    def check_alive(self) -> None:
        """Fails where it has ended by itself."""
        assert self._process.poll() is None, f"a tiering worker ended:\n{self.log_path.read_text()[-4000:]}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it as an operator does: what it has read is committed."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # it writes down what each of its threads is at
            self._process.wait()
            told = self.log_path.read_text()[-12_000:]
            raise AssertionError(f"a tiering worker did not end within {_END_SECONDS_MAX} s:\n{told}") from None


class Faults:
    """A server and a tiering worker, and the things that happen to them. One thread uses it."""

    def __init__(self, server: ServerProcess, directory: Path, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._server, self._directory, self._rng = server, directory, random.Random(seed)
        self.failure: BaseException | None = None
        self._workers = 0
        self._worker = self._new_worker()
        self._next: list[Callable[[], None]] = []

    def check_alive(self) -> None:
        """Raises what went wrong with the thread in which faults happen."""
        if self.failure is not None:
            raise self.failure

    def happen(self) -> None:
        """One of them; each comes once before any comes again."""
        self._worker.check_alive()
        if not self._next:
            self._next = [self.kill_server, self.restart_server, self.kill_worker, self.replace_worker, self.kill_both,
                          self.second_server]  # fmt: skip
            self._rng.shuffle(self._next)
        fault = self._next.pop()
        fault()
        self.counts[fault.__name__] += 1

    def kill_server(self) -> None:
        self._server.kill()
        self._server.start(keep_ports=True)

    def restart_server(self) -> None:
        self._server.stop()
        self._server.start(keep_ports=True)

    def kill_worker(self) -> None:
        """Its tables are free again when the server restarts: a worker only counts as dead after two minutes."""
        self._worker.kill()
        self._worker = self._new_worker()
        self.restart_server()

    def kill_both(self) -> None:
        self._server.kill()
        self._worker.kill()
        self._server.start(keep_ports=True)
        self._worker = self._new_worker()

    def replace_worker(self) -> None:
        """The new one is there before the old one has ended."""
        old, self._worker = self._worker, self._new_worker()
        old.stop()

    def second_server(self) -> None:
        """It is refused, and the first one serves on."""
        check_refused(self._server.data_dir)

    def end(self) -> None:
        """Stop the worker and restart the server, so that no table is assigned to a worker."""
        self._worker.stop()
        self.restart_server()

    def abandon(self) -> None:
        """End what is still running, after a failure."""
        self._worker.kill()

    def _new_worker(self) -> TieringProcess:
        self._workers += 1
        return TieringProcess(self._server.bootstrap_servers, self._directory / f"tiering-{self._workers}.log")


@contextmanager
def happening(faults: Faults, rng: random.Random, seconds: tuple[float, float]) -> Iterator[None]:
    """Faults at random times, in a thread, until the end of the block. `check_alive` raises what goes wrong with it."""
    done = threading.Event()

    def run() -> None:
        try:
            while not done.wait(rng.uniform(*seconds)):
                faults.happen()
        except BaseException as e:  # noqa: BLE001 - `check_alive` raises it
            faults.failure = e

    thread = threading.Thread(target=run, name="faults", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(3 * _END_SECONDS_MAX)
    faults.check_alive()
    assert not thread.is_alive(), "a server or worker neither ended nor started"
