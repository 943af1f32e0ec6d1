"""Drivers of streaming queries are killed while their table is written to, tiered, compacted and its lake expired.

Two queries read a primary-key table from a lake snapshot on: the table itself, and its changelog. Whatever is killed
when, each of their batches must finally agree with the full changelog.

    STREAM_KILLS=20 pytest tests/spark/test_streaming_kills.py -m slow -s
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forebay.client.table import Table
from forebay.tiering.now import tier_table
from forebay.tiering.service import TieringService
from tests.invariants.upkeep import UPKEEP
from tests.process_groups import ProcessGroup
from tests.spark.releases import SPARK
from tests.spark.stream_histories import SCHEMA, Records, check
from tests.spark.streaming_driver import QUERIES
from tests.unionread.world import ICEBERG, PAIMON, world

KILLS = int(os.environ.get("STREAM_KILLS", "4"))
SEED = int(os.environ.get("STREAM_FIRST_SEED", "0"))
KEYS = 300
PATIENCE_SECONDS = 300

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout((KILLS + 4) * PATIENCE_SECONDS),
    pytest.mark.skipif(SPARK < (4, 2), reason="streams written in Python have limits from Spark 4.2 on"),
]

PROPERTIES = {
    "table.datalake.freshness": "1 s",
    "table.datalake.auto-compaction": "true",
    "table.datalake.auto-expire-snapshot": "true",
}


@contextmanager
def writing(table: Table, rng: random.Random) -> Iterator[Callable[[], None]]:
    """Random upserts and deletes in a thread, until the end of the block; gives what raises the thread's error."""
    done, failures = threading.Event(), list[BaseException]()

    def write() -> None:
        number = KEYS
        try:
            while not done.wait(rng.uniform(0, 0.4)):
                keys = [{"id": rng.randrange(KEYS)} for _ in range(rng.randint(1, 40))]
                table.upsert([{**key, "part": "p", "n": number + i} for i, key in enumerate(keys)])
                number += len(keys)
                if rng.random() < 0.5:
                    table.delete(keys[: len(keys) // 2])
        except BaseException as e:  # noqa: BLE001 - `check_alive` raises it
            failures.append(e)

    def check_alive() -> None:
        if failures:
            raise failures[0]

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield check_alive
    finally:
        done.set()
        thread.join(PATIENCE_SECONDS)
    check_alive()


class Driver(ProcessGroup):
    def __init__(self, servers: str, table: Table, folder: Path, *arguments: str) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.spark.streaming_driver",
            servers,
            str(table.path),
            str(folder),
            *arguments,
        ]
        super().__init__(command, folder / "driver.log")

    def run_until(self, condition: Callable[[], bool], check_alive: Callable[[], None]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            check_alive()
            assert self.is_alive, self.said()[-6000:]
            assert time.monotonic() < deadline, self.said()[-6000:]
            time.sleep(0.02)


def kill_again_and_again(start: Callable[..., Driver], folder: Path, rng: random.Random) -> None:
    """In turn at a random moment, and where a batch is logged or delivered."""
    for kill in range(KILLS):
        there = batches(folder, "changelog")
        if kill % 2:
            driver = start("--die", f"{rng.choice(['entered', 'delivered'])}:{there + rng.randrange(3)}")
            assert driver.wait(PATIENCE_SECONDS) == -signal.SIGKILL, driver.said()[-6000:]
            continue
        enough = there + rng.randint(1, 3)
        driver = start()
        driver.run_until(lambda: batches(folder, "changelog") >= enough, lambda: None)  # noqa: B023 - called at once
        time.sleep(rng.random())
        driver.kill()


@pytest.mark.parametrize("lake", [PAIMON, ICEBERG])
def test_no_change_is_lost_or_doubled_however_often_a_driver_is_killed(tmp_path: Path, lake: str) -> None:
    rng = random.Random(SEED)
    with world(tmp_path / "world", lake) as running:
        properties = {**PROPERTIES, "table.datalake.enabled": "true"}
        running.connection.create_table(
            "fluss.t", SCHEMA, primary_key=["id"], buckets=2, options={**properties, **UPKEEP[lake]}
        )
        table = running.connection.table("fluss.t")
        table.upsert([{"id": i, "part": "p", "n": i} for i in range(KEYS)])
        tier_table(running.connection, "fluss.t")
        folder = tmp_path / "sink"
        folder.mkdir()
        address = running.connection.settings.bootstrap_servers[0]
        servers = f"{address.host}:{address.port}"
        with writing(table, rng) as check_writer:
            for point in ("entered:0", "delivered:0"):
                driver = Driver(servers, table, folder, "--rows", "100", "--die", point)
                assert driver.wait(PATIENCE_SECONDS) == -signal.SIGKILL, driver.said()[-6000:]
            driver = Driver(servers, table, folder, "--rows", "100")
            driver.run_until(lambda: all(is_behind_the_snapshot(folder, name) for name in QUERIES), check_writer)
            driver.kill()
            # From now on the lake snapshot is not needed, and it may expire.
            with TieringService(running.connection, poll_seconds=0.1) as service:
                kill_again_and_again(lambda *arguments: Driver(servers, table, folder, *arguments), folder, rng)
                check_writer()
                rounds = service.status().tables[0].rounds
        driver = Driver(servers, table, folder, "--rows", "1000000", "--up-to-now")
        assert driver.wait(PATIENCE_SECONDS) == 0, driver.said()[-6000:]
        print(f"{lake}: {KILLS + 3} kills, {rounds} rounds of tiering")
        history = Records(table, is_tiered=True)
        for name in QUERIES:
            logged = logged_by_spark(folder / f"{name}-checkpoint")
            sink = {int(path.stem): Counter(json.loads(path.read_text())) for path in (folder / name).glob("*.json")}
            print(f"{name}: {len(logged)} batches, {sum(map(Counter.total, sink.values())):,} rows")
            assert not list((folder / name).glob("*.conflict")), "a batch that was run again had other rows"
            assert "full" in logged[0]["start"]
            check(history, logged, sink, changelog=name == "changelog")


def batches(folder: Path, query: str) -> int:
    return len(list((folder / query).glob("*.json")))


def is_behind_the_snapshot(folder: Path, query: str) -> bool:
    """Whether a batch behind the full read has been delivered."""
    logged = logged_by_spark(folder / f"{query}-checkpoint")
    return any("full" not in start for start in logged[: batches(folder, query) - 1])


def logged_by_spark(checkpoint: Path) -> list[dict[str, Any]]:
    """The offsets at which a query's batches ended."""
    if not (checkpoint / "offsets").exists():
        return []
    files = sorted(
        (path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    return [json.loads(path.read_text().splitlines()[2]) for path in files]
