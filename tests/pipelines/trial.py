"""The trial of a pipeline: everything that it consists of is killed at random moments while its source goes on."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.checkpoints import forget_last_batch
from tests.jvm import QUICK_JVM
from tests.pipelines.live_pipelines import ROWS_PER_FILE, Pipeline
from tests.process_groups import ProcessGroup

PATIENCE_SECONDS = 300
PAUSE_SECONDS = 0.8
ENDED_MAX = 20
"""How often a driver may end by itself: a server that is killed may be away for too long on a busy machine."""


@dataclass(frozen=True)
class Site:
    """Where a pipeline runs."""

    bootstrap_servers: str
    kill_server: Callable[[], None]
    """Kills a server, and starts it again."""
    masters: Mapping[str, str]
    """What each of Spark's masters has in the command lines of the processes that run its tasks."""
    workers: Sequence[ProcessGroup] = ()
    """Spark's workers, which those processes belong to; without them they belong to the driver."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Options of the servers' lake that they do not publish."""


class Trial:
    """The processes of a pipeline, and their kills. `kills` counts them by what was killed."""

    def __init__(self, pipeline: Pipeline, site: Site, rng: random.Random) -> None:
        self._pipeline, self._site, self._rng = pipeline, site, rng
        self._folder = pipeline.folder
        self.kills, self.repeated, self._ended = Counter[str](), 0, 0
        self._next_kills: list[str] = []
        self._next_masters: list[str] = []

    def _start(self, *arguments: str) -> ProcessGroup:
        self._master = self._next_of(self._next_masters, self._site.masters)
        of_pipeline = [type(self._pipeline).__name__, self._site.bootstrap_servers, str(self._folder)]
        command = [sys.executable, "-m", "tests.pipelines.live_driver", *of_pipeline, "--master", self._master]
        command += [
            "--lake",
            json.dumps(self._pipeline.lake_options),
            "--secrets",
            json.dumps(dict(self._site.secrets)),
        ]
        environment = {**QUICK_JVM, "SPARK_LOCAL_IP": "127.0.0.1"}
        return ProcessGroup([*command, *arguments], self._folder / "driver.log", environment)

    def done(self) -> Counter[str]:
        """The micro-batches of each query that are done."""
        done = Counter[str]()
        for path in self._folder.glob("*-checkpoint/commits/[0-9]*"):
            query = path.parts[-3].removesuffix("-checkpoint")
            done[query] = max(done[query], int(path.name) + 1)
        return done

    def run(self, kills: int) -> None:
        """Until everything has been written, and the last batch of each query once more."""
        tiering = ["tiering", "--bootstrap-servers", self._site.bootstrap_servers, "--without-spark"]
        for name, value in self._site.secrets.items():
            tiering += ["--lake-option", f"{name}={value}"]
        self._tiering = ProcessGroup(
            [sys.executable, "-m", "forebay", *tiering, "--poll-seconds", "0.5"], self._folder / "tiering.log"
        )
        self._driver = self._start()
        try:
            while self.kills.total() < kills:
                self._go_on()
                self._kill()
            self._driver.kill()
            self.run_up_to_now()
            self._repeat_last_batches()
            self.run_up_to_now()
            assert self._tiering.is_alive, self._tiering.said()[-6000:]
            tiered = self._pipeline.connection.admin.lake_snapshot(f"fluss.{self._pipeline.tiered}")
        finally:
            self._driver.kill()
            self._tiering.kill()
        name = type(self._pipeline).__name__
        print(f"{name}: {len(self._pipeline.rows):,} rows, killed: {dict(self.kills)}, repeated: {self.repeated}")
        print(f"micro-batches: {dict(self.done())}, lake snapshot {tiered.snapshot_id}")

    def run_up_to_now(self) -> None:
        """Until every query has read what there is."""
        driver = self._start("--up-to-now")
        assert driver.wait(PATIENCE_SECONDS) == 0, driver.said()[-6000:]

    def _go_on(self) -> None:
        """Until some more batches are done, or the driver has ended, because servers were away for too long."""
        enough = self.done().total() + self._rng.randint(1, 8)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._driver.is_alive and self.done().total() < enough:
            assert time.monotonic() < deadline, f"the pipeline does not go on:\n{self._driver.said()[-6000:]}"
            # One file after the other: a driver that dies before it has logged a batch reads two files in the next one
            # if there are two, in an order of Spark's own.
            done, files = self.done(), len(self._pipeline.rows) // ROWS_PER_FILE
            if all(done[query] >= files for query in self._pipeline.readers):
                self._pipeline.add_file()
            time.sleep(PAUSE_SECONDS)
        time.sleep(self._rng.random() * 0.5)

    def _kill(self) -> None:
        if not self._driver.is_alive:
            self._ended += 1
            assert self._ended <= ENDED_MAX, f"the driver ends again and again:\n{self._driver.said()[-6000:]}"
            self._driver = self._start()
            return
        killed = self._next_of(self._next_kills, ["driver", "driver", "task", "task", "server", "tiering"])
        if killed == "driver":
            self._driver.kill()
            if self._rng.random() < 0.5:
                self._repeat_last_batches()
            self._driver = self._start()
        elif killed == "task":
            killed = self._site.masters[self._master]
            if not self._rng.choice(self._site.workers or [self._driver]).kill_one_of(killed, self._rng):
                return  # none was at work
        elif killed == "server":
            self._site.kill_server()
        else:
            assert self._tiering.is_alive, self._tiering.said()[-6000:]
            self._tiering.kill()
            self._tiering.start()
        self.kills[killed] += 1

    def _next_of(self, left: list[str], given: Iterable[str]) -> str:
        """One of `given` at random; each comes once before any comes again."""
        if not left:
            left += self._rng.sample(list(given), len(list(given)))
        return left.pop()

    def _repeat_last_batches(self) -> None:
        """As if Spark had died before it noted the last batch of each query, which has written its rows.

        A query that has begun another batch repeats that one anyway.
        """
        for checkpoint in self._folder.glob("*-checkpoint"):
            logged, done = (
                max((int(path.name) for path in (checkpoint / part).glob("[0-9]*")), default=-1)
                for part in ("offsets", "commits")
            )
            if logged == done >= 0:
                forget_last_batch(checkpoint)
                self.repeated += 1
