"""Servers of one store on several machines, of which one serves and another one stands by: it can be used as a server.

Machines are processes with addresses of their own, and a new data directory for each time that they begin.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.testing.server import ServerProcess
from tests.patience import PATIENCE, until

LEASE_SECONDS = 2.0
MACHINES = 3


class Failover:
    """`kill` lets the serving machine fail in some way, `start` waits until another one serves."""

    def __init__(self, folder: Path, seed: int, settings: Mapping[str, str] | None = None) -> None:
        self._folder, self._rng = folder, random.Random(seed)
        self.store = folder / "store"
        self._directories = 0
        self._settings = {**(settings or {}), "store.interval": "50 ms", "store.lease": f"{LEASE_SECONDS:g} s"}
        self._settings.setdefault("store.durability", "store")
        # A machine that begins leaves out what remote logs have: they have much, soon.
        self._settings |= {"remote.log.task-interval-duration": "300 ms", "log.segment.file-size": "16kb"}
        self._machines = [self._machine(number) for number in range(MACHINES)]
        self._serving, self._standby = self._machines[0], self._machines[1]
        self._failed: ServerProcess | None = None
        self.failures: Counter[str] = Counter()
        """How often the serving machine has failed in which way."""

    def _machine(self, number: int) -> ServerProcess:
        # A way to the store of its own, which can be cut off.
        way = self._folder / f"way-{number}"
        way.symlink_to(self.store)
        return ServerProcess(self._folder / "none", settings={**self._settings, "store": str(way)})

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all machines."""
        return ",".join(machine.address for machine in self._machines)

    @property
    def data_dir(self) -> Path:
        """The data directory of the machine that serves."""
        return self._serving.data_dir

    def __enter__(self) -> Failover:
        self.store.mkdir()
        for machine in self._machines:  # for their addresses
            self._launch(machine, standby=machine is not self._serving, keep_ports=False)
            if machine is self._serving:
                machine.wait_until_ready(PATIENCE)
        self._end(self._machines[2])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for machine in self._machines:
            if machine.is_running:
                machine.kill()

    def _launch(self, machine: ServerProcess, *, standby: bool, keep_ports: bool = True) -> None:
        self._directories += 1
        machine.data_dir = self._folder / f"data-{self._directories}"
        machine.launch(keep_ports, ["--standby"] if standby else [])

    def _end(self, machine: ServerProcess) -> None:
        """The machine is gone, with its disk."""
        machine.kill()
        shutil.rmtree(machine.data_dir)

    def _way(self, machine: ServerProcess) -> Path:
        return self._folder / f"way-{self._machines.index(machine)}"

    # ---- failures ---------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Let the serving machine fail: it is lost, suspended, cut off from the store, stopped or asked to end."""
        self._failed = self._serving
        failure = self._rng.choice(("lost", "suspended", "cut off", "stopped", "asked"))
        self.failures[failure] += 1
        match failure:
            case "lost":
                self._end(self._failed)
            case "suspended":
                os.kill(self._failed.pid, signal.SIGSTOP)
            case "cut off":
                self._cut(self._failed)
            case "stopped":
                self._failed.stop()
            case "asked":
                words = [sys.executable, "-m", "forebay", "takeover", str(self.store), "--timeout", str(PATIENCE)]
                subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE)

    def _cut(self, machine: ServerProcess) -> None:
        way, nowhere = self._way(machine), self._folder / "nowhere"
        nowhere.touch()
        way.with_suffix(".new").symlink_to(nowhere / "store")
        way.with_suffix(".new").replace(way)

    def _mend(self, machine: ServerProcess) -> None:
        way = self._way(machine)
        way.with_suffix(".new").symlink_to(self.store)
        way.with_suffix(".new").replace(way)

    def start(self, keep_ports: bool = True) -> None:
        """Wait until the standby serves, and let another machine stand by. What had failed has to end by itself."""
        assert keep_ports, "clients know the addresses"
        self._standby.wait_until_ready(PATIENCE)
        failed, self._serving = self._failed, self._standby
        assert failed is not None
        SYSTEM_CLOCK.sleep(self._rng.choice((0.0, self._rng.uniform(0, LEASE_SECONDS))))
        if failed.is_running:
            os.kill(failed.pid, signal.SIGCONT)
            self._mend(failed)
            failed.wait(PATIENCE)
        self._standby = self._rng.choice([machine for machine in self._machines if machine is not self._serving])
        self._launch(self._standby, standby=True)
        if self._rng.random() < 0.7:
            until(lambda: "standing by for" in self._standby.log_path.read_text(), "it follows")
