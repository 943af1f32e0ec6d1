"""Programs that tests kill, with all their children at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil


class ProcessGroup:
    """A program in a group of processes of its own."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._command, self._log, self._environment = command, log, {**os.environ, **(environment or {})}
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._said = log.tell()
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=self._environment
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """With SIGKILL: nothing of it gets a chance to tidy up."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()

    def kill_one_of(self, command: str, rng: random.Random) -> bool:
        """Kill a process of the program, or of a program that it started, whose command line has `command` in it.

        Returns False if there is none.
        """
        try:
            found = psutil.Process(self._process.pid).children(recursive=True)
            chosen = rng.choice([process for process in found if command in " ".join(process.cmdline())])
            chosen.kill()
        except (IndexError, psutil.NoSuchProcess):
            return False
        return True

    def wait(self, seconds: float) -> int:
        """Its exit code. What is left of it then is killed."""
        try:
            return self._process.wait(seconds)
        finally:
            self.kill()

    def said(self) -> str:
        """Its output since it was started."""
        with self._log.open("rb") as log:
            log.seek(self._said)
            return log.read().decode(errors="replace")
