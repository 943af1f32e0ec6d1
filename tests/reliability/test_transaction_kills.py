"""`kill -9` while jobs write in transactions: each version of each job is there once, whole.

A job stages rows of two tables from several tasks, and commits them. Whenever the server is killed, and now and then
for no reason, the job is begun again at the version it was at, as a scheduler does, with other rows. In the second test
each job has two drivers, which write the same versions at the same time. KILL_ROUNDS sets the number of kills (`make
kill-trials`: 100).
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import forebay
from forebay.base.errors import Conflict, ForebayError
from forebay.client.transaction import Transaction
from forebay.testing.server import ServerProcess
from forebay.verify import verify_directory
from tests import results
from tests.patience import PATIENCE

ROUNDS = int(os.environ.get("KILL_ROUNDS", "4"))
SEED = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(1 << 32)))
TASKS, KEYS, BUCKETS = 3, 20, 3
SETTINGS = {"log.segment.file-size": "64kb", "kv.checkpoint.records": "500", "kv.snapshot.interval": "500 ms"}


class Job:
    """Writes versions 1, 2, 3, ... of an application; `committed` are the tokens of those that are in the tables."""

    def __init__(self, connection: forebay.Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.rng = random.Random(SEED + number)
        self.committed: dict[int, int] = {}
        self.tokens: dict[int, list[int]] = {}
        self.error: BaseException | None = None

    def run(self, stop: threading.Event) -> None:
        version = 1
        try:
            while not stop.is_set() or len(self.committed) <= ROUNDS // 2:
                if self.attempt(version):
                    version += 1
        except BaseException as e:  # noqa: BLE001 - raised by the test
            self.error = e

    def attempt(self, version: int) -> bool:
        """Whether the version is committed: by this attempt, or by an earlier one that was not told so."""
        try:
            tx = self.connection.transaction(f"job-{self.number}", version).begin()
            if tx.committed is not None:
                self.committed[version] = self.tokens[version][-1]
                return True
            token = self.rng.randrange(1 << 40)
            self.tokens.setdefault(version, []).append(token)
            attempts = [self.task(tx, task, version, token) for task in range(TASKS)]
            if self.rng.random() < 0.1:
                return False  # the driver dies
            tx.commit(attempts)
        except Conflict:
            raise
        except ForebayError:
            return False
        self.committed[version] = token
        return True

    def task(self, tx: Transaction, task: int, version: int, token: int) -> str:
        if self.rng.random() < 0.1:  # an attempt that fails halfway
            tx.staged_writer(f"{task}").append("fluss.log", self.rows(task, version, -1))
        writer = tx.staged_writer(f"{task}")
        writer.append("fluss.log", self.rows(task, version, token))
        keyed = [{"k": self.number * 1000 + n, "version": version, "token": token} for n in range(task, KEYS, TASKS)]
        writer.upsert("fluss.keys", keyed)
        writer.finish()
        return writer.attempt

    def rows(self, task: int, version: int, token: int) -> list[dict[str, int]]:
        return [{"job": self.number, "version": version, "token": token, "n": task * 10 + n} for n in range(10)]


class Twins:
    """What two drivers of one job share: the version that is due, and what either was told."""

    def __init__(self) -> None:
        self.version = 1
        self.told: dict[int, set[int]] = {}
        """By version, the tokens whose commit was acknowledged; none of a version that was found committed."""

    def commit(self, version: int, *tokens: int) -> None:
        self.told.setdefault(version, set()).update(tokens)
        self.version = max(self.version, version + 1)


class Driver(Job):
    """One of two drivers of a job. It is told by `Conflict` that the other one was faster."""

    def __init__(self, connection: forebay.Connection, number: int, twins: Twins, seed: int) -> None:
        super().__init__(connection, number)
        self.rng = random.Random(seed)
        self.twins = twins

    def run(self, stop: threading.Event) -> None:
        try:
            pause = 0.02
            while not stop.is_set() or len(self.twins.told) <= ROUNDS // 2:
                # Each that begins ends the other one's: who was replaced waits longer, or neither comes to an end.
                pause = 0.02 if self.attempt(self.twins.version) else min(2 * pause, 5.0)
                time.sleep(self.rng.random() * pause)
        except BaseException as e:  # noqa: BLE001 - raised by the test
            self.error = e

    def attempt(self, version: int) -> bool:
        try:
            tx = self.connection.transaction(f"job-{self.number}", version).begin()
            if tx.committed is not None:
                self.twins.commit(version)
                return True
            token = self.rng.randrange(1 << 40)
            attempts = [self.task(tx, task, version, token) for task in range(TASKS)]
            tx.commit(attempts)
        except ForebayError:  # also that the other driver has begun it since
            return False
        self.twins.commit(version, token)
        return True


def test_versions_that_two_drivers_write_at_once_are_there_once_after_kill_9(tmp_path: Path) -> None:
    print(f"KILL_SEED={SEED}")
    with (
        ServerProcess(tmp_path / "data", settings=SETTINGS) as server,
        forebay.connect(server.bootstrap_servers, retry_timeout="5 s") as connection,
        forebay.connect(server.bootstrap_servers, retry_timeout="5 s") as other,
    ):
        columns = ("job", "version", "token", "n")
        log = connection.create_table("fluss.log", dict.fromkeys(columns, "BIGINT"), buckets=BUCKETS)
        connection.create_table(
            "fluss.keys", dict.fromkeys(("k", "version", "token"), "BIGINT"), primary_key="k", buckets=BUCKETS
        )
        twins = [Twins(), Twins()]
        drivers = [
            Driver(each, number, twins[number], SEED + 10 * number + place)
            for number in range(2)
            for place, each in enumerate((connection, other))
        ]
        run_under_kills(server, drivers)
        found = log.scan().to_arrow().to_pylist()
    numbers = sorted(task * 10 + n for task in range(TASKS) for n in range(10))
    for number, told in enumerate(twins):
        by_version: dict[int, dict[int, list[int]]] = {}
        for row in (row for row in found if row["job"] == number):
            by_version.setdefault(row["version"], {}).setdefault(row["token"], []).append(row["n"])
        for version, tokens in by_version.items():
            assert len(tokens) == 1, f"version {version} is there {len(tokens)} times"
            [(token, rows)] = tokens.items()
            assert sorted(rows) == numbers
            assert told.told.get(version, set()) <= {token}, f"another attempt at {version} was told committed"
        assert told.told.keys() <= by_version.keys(), "a version that was told committed is lost"
    versions = sum(len(told.told) for told in twins)
    figures = {"kills": ROUNDS, "versions": versions, "lost_or_doubled": 0, "seed": SEED}
    results.write_if_wanted("kill-trials.drivers", figures)


def run_under_kills(server: ServerProcess, jobs: Sequence[Job]) -> None:
    """All jobs at work while the server is killed and started again, ROUNDS times."""
    stop = threading.Event()
    running = [threading.Thread(target=job.run, args=[stop]) for job in jobs]
    for thread in running:
        thread.start()
    rng = random.Random(SEED)
    for _ in range(ROUNDS):
        time.sleep(0.2 + rng.random())
        server.kill()
        server.start(keep_ports=True)
    stop.set()
    for thread in running:
        thread.join(PATIENCE)
    for job in jobs:
        if job.error is not None:
            raise job.error
    assert not any(thread.is_alive() for thread in running)


def test_versions_of_jobs_are_there_once_and_whole_after_kill_9(tmp_path: Path) -> None:
    print(f"KILL_SEED={SEED}")
    with (
        ServerProcess(tmp_path / "data", settings=SETTINGS) as server,
        forebay.connect(server.bootstrap_servers, retry_timeout="5 s") as connection,
    ):
        columns = ("job", "version", "token", "n")
        connection.create_table("fluss.log", dict.fromkeys(columns, "BIGINT"), buckets=BUCKETS)
        keys = connection.create_table(
            "fluss.keys", dict.fromkeys(("k", "version", "token"), "BIGINT"), primary_key="k", buckets=BUCKETS
        )
        jobs = [Job(connection, number) for number in range(2)]
        run_under_kills(server, jobs)
        found = connection.table("fluss.log").scan().to_arrow().to_pylist()
        for job in jobs:
            own = [(row["version"], row["token"], row["n"]) for row in found if row["job"] == job.number]
            numbers = [task * 10 + n for task in range(TASKS) for n in range(10)]
            assert sorted(own) == sorted((v, token, n) for v, token in job.committed.items() for n in numbers)
            last = max(job.committed)
            mine = {row["k"]: row for row in keys.scan().to_arrow().to_pylist() if row["k"] // 1000 == job.number}
            wanted = (last, job.committed[last])
            assert {(row["version"], row["token"]) for row in mine.values()} == {wanted}
            assert len(mine) == KEYS
        server.stop()
        assert not verify_directory(tmp_path / "data").findings
    versions = sum(len(job.committed) for job in jobs)
    figures = {"kills": ROUNDS, "versions": versions, "lost_or_doubled": 0, "seed": SEED}
    results.write_if_wanted("kill-trials.transactions", figures)
