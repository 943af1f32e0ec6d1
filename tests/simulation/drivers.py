"""Two drivers of one job in a history, as of a job that was started twice, or of two runs of one Spark query."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from forebay.base.errors import Conflict, ForebayError
from forebay.client.connection import Connection
from tests.simulation.scheduler import Process, SimEvent

if TYPE_CHECKING:
    from tests.simulation.workload import Workload

_VERSIONS = 6
_TRIES = 2 * 6 * _VERSIONS
_COMMIT_SECONDS_MAX = 0.05


class Drivers:
    """Two drivers of one application, which write the same versions at the same time, each with rows of its own.

    They begin, join, stage, commit and abort in every order; one often begins in the moment in which the other one
    commits.
    """

    def __init__(self, load: Workload) -> None:
        self.load, self.sched, self.rng = load, load.sched, load.rng
        self._working: list[Process] = []
        self._started = 0
        self._tries_left = _TRIES
        """Of the job: each driver that is lost is replaced, and damage may keep a version from its end for ever."""
        self._version = 1
        self._committing = SimEvent(load.sched)
        self._commit_began = 0.0
        self._commit_seconds = _COMMIT_SECONDS_MAX
        """How long the last commit took."""
        self._users: Counter[int] = Counter()
        """How many drivers take part in a transaction, by its id."""

    def begin(self) -> None:
        self.load.actors_left += 2
        for _ in range(2):
            self.start()

    def start(self) -> None:
        """One more driver, which ends when all versions are committed, or the job has tried often enough."""
        process = self.load.process(f"driver-{self._started}")
        self._started += 1
        self._working.append(process)
        self.sched.spawn(process, self._drive, process, name="driver")

    def lose_one(self) -> None:
        """Kill one that is at work; its scheduler starts another one."""
        if not self._working:
            return
        process = self.rng.choice(self._working)
        self._working.remove(process)
        self.load.world.network.process_ended(process, silently=self.rng.random() < 0.3)
        self.sched.kill(process)
        self.start()

    def _drive(self, process: Process) -> None:
        while not self.load.ready:
            self.sched.sleep(0.1)
        connection = self.load.world.connect(process)
        number = 0
        while self._version <= _VERSIONS and self._tries_left > 0:
            self._tries_left -= 1
            self._await_the_other()
            self.load.world.count("drive")
            try:
                self._run(connection, f"{process.name}.{number}")
            except ForebayError as e:
                self.load.judge(e, f"{process.name}.{number} drive")
            number += 1
        try:
            connection.close(timeout=5)  # with it end the threads beside, before the checks begin
        except ForebayError as e:
            self.load.judge(e, f"{process.name} close")
        self._working.remove(process)
        self.load.actors_left -= 1
        self.load.world.note(f"{process.name} done")

    def _await_the_other(self) -> None:
        """Until the other driver is in the middle of a commit, or some time has passed."""
        if self.rng.random() < 0.5 and self._committing.wait(2 * self.rng.random()):
            self.sched.sleep(self.rng.random() * self._commit_seconds)
        else:
            self.sched.sleep(self.rng.random() ** 2 * 0.3)

    def _run(self, connection: Connection, who: str) -> None:
        """Write the version that is due, unless it is committed."""
        job = ("twice", self._version)
        try:
            tx = connection.transaction(*job).begin(join=self.rng.random() < 0.3)
        except Conflict:
            return  # the other driver has committed it, and has gone on to the next one
        if tx.committed is None:
            begun_id = tx.begun_id or 0
            self._users[begun_id] += 1
            self.load.stage_and_commit(
                connection, tx, who, is_shared=lambda: self._users[begun_id] > 1, before_commit=self._commits
            )
            if tx.committed is not None:
                self._commit_seconds = min(self.sched.now - self._commit_began, _COMMIT_SECONDS_MAX)
        if tx.committed is not None:
            self.load.seen.committed.add(job)
            self._version = max(self._version, job[1] + 1)

    def _commits(self) -> None:
        self._commit_began = self.sched.now
        self._committing.set()
        self._committing.clear()
