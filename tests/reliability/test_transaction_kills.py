"""`kill -9` while jobs write in transactions: each version of each job is there once, whole.

In one of the tests each job has two drivers, which write the same versions at the same time. KILL_ROUNDS sets the
number of kills (`make kill-trials`: 100).
"""

from __future__ import annotations

import os
from pathlib import Path

import forebay
from forebay.testing.server import ServerProcess
from forebay.verify import verify_directory
from tests import results
from tests.reliability.jobs import (
    BUCKETS,
    SEED,
    SETTINGS,
    TASKS,
    Driver,
    Twins,
    check_versions_of_jobs,
    run_under_kills,
)

ROUNDS = int(os.environ.get("KILL_ROUNDS", "4"))


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
            Driver(each, number, ROUNDS // 2 + 1, twins[number], SEED + 10 * number + place)
            for number in range(2)
            for place, each in enumerate((connection, other))
        ]
        run_under_kills(server, drivers, ROUNDS)
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


def test_versions_of_jobs_are_there_once_and_whole_after_kill_9(tmp_path: Path) -> None:
    print(f"KILL_SEED={SEED}")
    with (
        ServerProcess(tmp_path / "data", settings=SETTINGS) as server,
        forebay.connect(server.bootstrap_servers, retry_timeout="5 s") as connection,
    ):
        versions = check_versions_of_jobs(server, connection, ROUNDS)
        server.stop()
        assert not verify_directory(tmp_path / "data").findings
    figures = {"kills": ROUNDS, "versions": versions, "lost_or_doubled": 0, "seed": SEED}
    results.write_if_wanted("kill-trials.transactions", figures)
