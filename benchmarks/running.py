"""Shared parts of sections: a server process, tables, stopwatches, and resource usage of processes."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

import forebay
from benchmarks import data
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.testing.server import ServerProcess

BUCKETS = 4
"""Buckets of every table, unless a section says otherwise."""

SHARED_BUCKETS = 1
"""Buckets of primary-key tables that pyfluss uses as well.

pyfluss 1.0.0 hashes keys whose last bytes are above 127 (integers from 128 on) to other buckets than Java Fluss and we
do, so with more buckets it would update other rows.
"""

_SAMPLE_SECONDS = 0.005


@dataclass(frozen=True)
class Run:
    """The command line's settings: rows (None: each section's own number), number of turns, directory for files.

    `batches` is the number of micro-batches that a stream writes, if that is measured (None: the section's own number).
    `only` is the part of a section to run, of those that have parts (None: all).
    """

    rows: int | None
    repeat: int
    directory: Path
    say: Callable[[str], None]
    batches: int | None = None
    only: str | None = None

    def rows_or(self, standard: int) -> int:
        return standard if self.rows is None else self.rows


@contextmanager
def scratch(run: Run, name: str) -> Iterator[Path]:
    """An empty directory that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=run.directory))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Bench:
    """A server in a separate process, and a connection to it."""

    def __init__(self, server: ServerProcess, connection: Connection) -> None:
        self.server = server
        self.connection = connection
        self.process = psutil.Process(server.pid)

    @property
    def bootstrap(self) -> str:
        return self.server.bootstrap_servers

    def create(
        self,
        name: str,
        primary_key: bool,
        *,
        buckets: int = BUCKETS,
        options: Mapping[str, str] | None = None,
    ) -> Table:
        """An empty table `fluss.<name>` of `data.SCHEMA` rows."""
        path = f"fluss.{name}"
        return self.connection.create_table(
            path,
            data.SCHEMA,
            primary_key=[data.KEY] if primary_key else (),
            buckets=buckets,
            options=options,
        )

    def cpu_seconds(self) -> float:
        """CPU time of the server so far, of all its threads, in user and kernel mode."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def cpu_seconds_of(self, work: Callable[[], Any]) -> float:
        """CPU time that the server uses while `work` runs, also for what it does of its own accord meanwhile."""
        before = self.cpu_seconds()
        work()
        return self.cpu_seconds() - before


@contextmanager
def bench(run: Run, name: str, settings: Mapping[str, str] | None = None) -> Iterator[Bench]:
    """A fresh server that is removed afterwards, with its files."""
    with (
        scratch(run, name) as folder,
        ServerProcess(folder / "data", settings=settings) as server,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        yield Bench(server, connection)


def seconds_of(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turns(
    contenders: Mapping[str, Callable[[], float]], repeat: int, say: Callable[[str], None]
) -> dict[str, float]:
    """The median of each contender's results (usually seconds); each runs once in every turn."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeat):
        for name, contender in contenders.items():
            found[name].append(contender())
            say(f"  {turn + 1}/{repeat} {name}: {found[name][-1]:.3f}")
    return {name: statistics.median(values) for name, values in found.items()}


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` percent of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def disk_bytes(folder: Path) -> int:
    """The disk space that the files in a directory really use: holes of sparse files do not count."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def anonymous_bytes(pid: int) -> int:
    """The private memory of a process: without mapped files, which belong to the kernel's page cache."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"the kernel does not report RssAnon of process {pid}")


@contextmanager
def highest_memory(pid: int) -> Iterator[list[int]]:
    """Watch a process's private memory; afterwards the list holds its maximum growth, in bytes (sampled)."""
    before = anonymous_bytes(pid)
    highest = before
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(_SAMPLE_SECONDS):
            highest = max(highest, anonymous_bytes(pid))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    growth: list[int] = []
    try:
        yield growth
    finally:
        done.set()
        watcher.join()
        growth.append(highest - before)
