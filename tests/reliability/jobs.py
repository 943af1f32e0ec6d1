"""Jobs that write versions in transactions while their server fails, and the check that each is there once, whole.

A job stages rows of two tables from several tasks, and commits them. Whenever the server fails, and now and then for no
reason, the job is begun again at the version it was at, as a scheduler does, with other rows.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Sequence
from typing import Protocol

import forebay
from forebay.base.errors import Conflict, ErrorCode, ForebayError
from forebay.client.transaction import Transaction
from tests.patience import PATIENCE

SEED = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(1 << 32)))
TASKS, KEYS, BUCKETS = 3, 20, 3
SETTINGS = {"log.segment.file-size": "64kb", "kv.checkpoint.records": "500", "kv.snapshot.interval": "500 ms"}


class Killable(Protocol):
    """A server, or what takes its place."""

    def kill(self) -> None:
        """It fails."""
        ...

    def start(self, keep_ports: bool = False) -> object:
        """It serves again when this returns."""
        ...


class Job:
    """Writes versions 1, 2, 3, ... of an application; `committed` are the tokens of those that are in the tables."""

    def __init__(self, connection: forebay.Connection, number: int, versions_min: int) -> None:
        """It ends when it is told to, and has committed so many versions."""
        self.connection = connection
        self.versions_min = versions_min
        self.number = number
        self.rng = random.Random(SEED + number)
        self.committed: dict[int, int] = {}
        self.tokens: dict[int, list[int]] = {}
        self.error: BaseException | None = None

    def run(self, stop: threading.Event) -> None:
        version = 1
        try:
            while not stop.is_set() or len(self.committed) < self.versions_min:
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
        except Conflict as e:
            if e.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION:  # rows that were not finished are lost
                raise
            return False
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

    def __init__(self, connection: forebay.Connection, number: int, versions_min: int, twins: Twins, seed: int) -> None:
        super().__init__(connection, number, versions_min)
        self.rng = random.Random(seed)
        self.twins = twins

    def run(self, stop: threading.Event) -> None:
        try:
            pause = 0.02
            while not stop.is_set() or len(self.twins.told) < self.versions_min:
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


def run_under_kills(server: Killable, jobs: Sequence[Job], rounds: int) -> None:
    """All jobs at work while the server is killed and started again."""
    stop = threading.Event()
    running = [threading.Thread(target=job.run, args=[stop]) for job in jobs]
    for thread in running:
        thread.start()
    rng = random.Random(SEED)
    for _ in range(rounds):
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


def check_versions_of_jobs(server: Killable, connection: forebay.Connection, rounds: int) -> int:
    """Two jobs write while the server is killed; return how many versions they have committed."""
    columns = ("job", "version", "token", "n")
    connection.create_table("fluss.log", dict.fromkeys(columns, "BIGINT"), buckets=BUCKETS)
    keys = connection.create_table(
        "fluss.keys", dict.fromkeys(("k", "version", "token"), "BIGINT"), primary_key="k", buckets=BUCKETS
    )
    jobs = [Job(connection, number, rounds // 2 + 1) for number in range(2)]
    run_under_kills(server, jobs, rounds)
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
    return sum(len(job.committed) for job in jobs)
