"""The processes that work on the tables, and their faults. Used by one thread."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from forebay.paimon.format.snapshot import CommitKind
from tests.pipelines.actors import Delivery, done_by_reader, done_by_writer
from tests.pipelines.lake import DATABASE, TABLES, open_table
from tests.process_groups import ProcessGroup

READERS = ("one", "two")
RETAINED = 10
"""Snapshots that expiry leaves. A writer finds its last commit among them after a restart: no other process makes
so many meanwhile, because there is nothing to compact without writes."""


MOMENTS, MOMENT_SECONDS_MAX = 0.8, 5.0

_TOO_SLOW = "Timed out while waiting for the Python worker to connect back"
"""Spark waits 10 s for it, which no setting changes; where that is too little, a supervisor starts the driver again."""
SLOW_STARTS_MAX = 5


class Actor(ProcessGroup):
    """A program that goes on until it is killed."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name, self.slow_starts = name, 0
        super().__init__([sys.executable, *command], log)

    def check_alive(self) -> None:
        """Raises where it has ended. One whose Spark could not start a Python process in time is started again."""
        if self.is_alive:
            return
        said = self.said()
        assert _TOO_SLOW in said, f"{self.name} has ended:\n{said[-6000:]}"
        assert self.slow_starts < SLOW_STARTS_MAX, f"this machine is too busy to start {self.name}"
        self.kill()
        self.slow_starts += 1
        self.start()


class Faults:
    """A writer, two readers and a compaction job; kills, and expiry of snapshots."""

    def __init__(self, warehouse: Path, folder: Path, *, spark: bool, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._warehouse, self._folder, self._rng = warehouse, folder, random.Random(seed)
        self._next: list[Callable[[], None]] = []
        actors = ["-m", "tests.pipelines.actors"]
        where = [str(warehouse), str(folder)]
        driver = ["--spark"] if spark else ["--seed", str(seed)]
        tables = [f"--table={DATABASE}.{name}" for name in TABLES]
        job = ["compact", "-w", str(warehouse), *tables, "--watch", "--interval", "500 ms", "--threads", "1"]
        self.writer = self._actor("writer", [*actors, "write", *where, *driver])
        self.readers = [  # the second one needs no Spark in any run
            self._actor(name, [*actors, "read", *where, "--name", name, *(driver if i == 0 else ["--seed", str(seed)])])
            for i, name in enumerate(READERS)
        ]
        self.job = self._actor("job", ["-m", "forebay", *job])

    def _actor(self, name: str, command: Sequence[str]) -> Actor:
        return Actor(name, command, self._folder / f"{name}.log")

    @property
    def actors(self) -> list[Actor]:
        return [self.writer, *self.readers, self.job]

    def check_alive(self) -> None:
        for actor in self.actors:
            actor.check_alive()

    def check_others(self) -> None:
        """All but the writer."""
        for actor in (*self.readers, self.job):
            actor.check_alive()

    def happen(self) -> None:
        """One of them; each comes once before any comes again."""
        if not self._next:
            self._next = [self.kill_writer, self.kill_reader_one, self.kill_reader_two, self.kill_job, self.kill_all]
            self._rng.shuffle(self._next)
        fault = self._next.pop()
        fault()
        self.counts[fault.__name__] += 1

    def kill_writer(self) -> None:
        self._again(self.writer, at=self._writer_is_between)

    def kill_reader_one(self) -> None:
        self._again(self.readers[0], at=partial(self._reader_is_between, READERS[0]))

    def kill_reader_two(self) -> None:
        self._again(self.readers[1], at=partial(self._reader_is_between, READERS[1]))

    def _writer_is_between(self) -> bool:
        """Whether a micro-batch is in its table, and the query has not marked it as done."""
        for name, batches in self.done().items():
            latest = [s.commit_identifier for s in open_table(self._warehouse, name).context.snapshots.snapshots()
                      if s.commit_kind == CommitKind.APPEND]  # fmt: skip
            if latest and latest[-1] >= batches:
                return True
        return False

    def _reader_is_between(self, reader: str) -> bool:
        """Whether a micro-batch is delivered, and the query has not marked it as done."""
        return any(
            len(Delivery(self._folder, reader, name).journal) > done_by_reader(self._folder, reader, name)
            for name in TABLES
        )

    def kill_job(self) -> None:
        self._again(self.job)

    def kill_all(self) -> None:
        self._again(*self.actors)

    def _again(self, *actors: Actor, at: Callable[[], bool] | None = None) -> None:
        """Kill and start again; now and then at the moment at which `at` holds, when a query must repeat its work."""
        until = time.monotonic() + (MOMENT_SECONDS_MAX if at is not None and self._rng.random() < MOMENTS else 0)
        while at is not None and time.monotonic() < until and not at():
            time.sleep(0.001)
        for actor in actors:
            actor.check_alive()
            actor.kill()
        if at is not None and at():
            self.counts[f"{actors[0].name} repeats"] += 1
        for actor in actors:
            actor.start()

    def expire(self) -> None:
        """Of each table, all snapshots but the newest, and those that readers still need."""
        for name in TABLES:
            table = open_table(self._warehouse, name)
            before = table.context.snapshots.earliest_id()
            table.expire_snapshots(retain_min=RETAINED, retain_max=RETAINED)
            if table.context.snapshots.earliest_id() != before:
                self.counts["expire"] += 1

    def end(self) -> None:
        """No traces of processes."""
        for actor in self.actors:
            actor.kill()

    def done(self) -> dict[str, int]:
        """Micro-batches that the writer has committed, by table."""
        return {name: done_by_writer(self._folder, name) for name in TABLES}


def wait_until(condition: Callable[[], bool], what: str, seconds: float, check_alive: Callable[[], None]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        check_alive()
        assert time.monotonic() < deadline, f"after {seconds:g} s: {what}"
        time.sleep(0.1)
