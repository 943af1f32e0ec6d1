"""Pipelines that end in live tables, while driver and server are killed: at each hop exactly the rows of the source.

PIPELINE_KILLS=40 pytest tests/pipelines/test_live_pipelines.py -m slow -s
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import forebay
from forebay.testing.server import ServerProcess
from tests.pipelines.live_driver import EVENTS, STATES, SUMS
from tests.spark.releases import SPARK

KILLS = int(os.environ.get("PIPELINE_KILLS", "4"))
SEED = int(os.environ.get("PIPELINE_KILLS_SEED", random.SystemRandom().randrange(1 << 32)))
KEYS, ROWS_PER_FILE = 40, 60
PATIENCE_SECONDS = 300

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout((KILLS + 4) * PATIENCE_SECONDS),
    pytest.mark.skipif(SPARK < (4, 2), reason="streams of tables need Spark 4.2"),
]


class Source:
    """Files of JSON rows, and what must come of them."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder, self._rng = folder, rng
        folder.mkdir()
        self.rows: list[dict[str, int]] = []

    def add_file(self) -> None:
        rows = [
            {
                "n": len(self.rows) + i,
                "key": self._rng.randrange(KEYS),
                "amount": self._rng.randrange(1000),
                "is_end": self._rng.random() < 0.2,
            }
            for i in range(ROWS_PER_FILE)
        ]
        self.rows += rows
        written = self._folder.parent / "next.json"
        written.write_text("\n".join(map(json.dumps, rows)))
        written.rename(self._folder / f"{len(self.rows):08}.json")


class Driver:
    """A Spark driver in a group of processes that die together."""

    def __init__(self, servers: str, folder: Path, *arguments: str) -> None:
        self._log = folder / "driver.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.pipelines.live_driver", servers, str(folder), *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()

    def wait(self) -> None:
        assert self._process.wait(PATIENCE_SECONDS) == 0, self._log.read_text()[-6000:]


def done(folder: Path) -> Counter[str]:
    """The micro-batches of each query that are done."""
    return Counter(path.parts[-3] for path in folder.glob("*-checkpoint/commits/[0-9]*"))


def test_each_hop_has_exactly_the_rows_of_the_source_whatever_is_killed(tmp_path: Path) -> None:
    print(f"PIPELINE_KILLS_SEED={SEED}")
    rng = random.Random(SEED)
    source = Source(tmp_path / "in", rng)
    with (
        ServerProcess(tmp_path / "data") as server,
        forebay.connect(server.bootstrap_servers, retry_timeout="60 s") as connection,
    ):
        events = connection.create_table("fluss.events", EVENTS, buckets=2, bucket_keys=["key"])
        sums = connection.create_table("fluss.sums", SUMS, primary_key="key", buckets=2)
        states = connection.create_table("fluss.states", STATES, primary_key="key", buckets=2)
        driver = Driver(server.bootstrap_servers, tmp_path)
        kills = Counter[str]()
        try:
            while kills.total() < KILLS:
                before, slowest = done(tmp_path), f"{rng.choice(['events', 'sums', 'states'])}-checkpoint"
                enough = before[slowest] + rng.randint(1, 2)
                deadline = time.monotonic() + PATIENCE_SECONDS
                while done(tmp_path)[slowest] < enough and driver.is_alive:
                    assert time.monotonic() < deadline, "the pipeline does not go on"
                    source.add_file()
                    time.sleep(0.8)
                time.sleep(rng.random() * 0.5)
                if driver.is_alive and rng.random() < 0.4:
                    kills["server"] += 1
                    server.kill()
                    server.start(keep_ports=True)
                else:
                    kills["driver"] += driver.is_alive  # else a server that was away for too long has ended it
                    driver.kill()
                    driver = Driver(server.bootstrap_servers, tmp_path)
        finally:
            driver.kill()
        repeat_last_batches(tmp_path)
        Driver(server.bootstrap_servers, tmp_path, "--up-to-now").wait()
        print(f"{dict(kills)}, micro-batches: {dict(done(tmp_path))}, {len(source.rows):,} rows")

        names = list(EVENTS)
        found = events.scan().to_arrow().sort_by("n").select(names).to_pylist()
        assert found == source.rows
        totals, counts, last = Counter[int](), Counter[int](), dict[int, int]()
        for row in source.rows:
            totals[row["key"]] += row["amount"]
            counts[row["key"]] += 1
            if row["is_end"]:
                last.pop(row["key"], None)
            else:
                last[row["key"]] = row["n"]
        assert {r["key"]: (r["total"], r["events"]) for r in sums.scan().to_arrow().to_pylist()} == {
            key: (totals[key], counts[key]) for key in counts
        }
        assert {row["key"]: row["n"] for row in states.scan().to_arrow().to_pylist()} == last
        changes = states.changes(stop="latest").to_arrow().select(["_change_type", "key", "n"]).to_pylist()
        assert_each_key_in_order(changes, source.rows)
        server.stop()


def repeat_last_batches(folder: Path) -> None:
    """As if Spark had died before it noted the last batch of each query, which has written its rows."""
    for commits in folder.glob("*-checkpoint/commits"):
        numbers = [int(path.name) for path in commits.iterdir() if path.name.isdigit()]
        if numbers:
            (commits / f"{max(numbers)}").unlink()
            (commits / f".{max(numbers)}.crc").unlink(missing_ok=True)


def assert_each_key_in_order(changes: list[dict[str, object]], rows: list[dict[str, int]]) -> None:
    """Every upsert of a key is in the changelog once, in order; deletes where there was a row."""
    expected: dict[int, list[tuple[str, int]]] = {}
    there: dict[int, int] = {}
    for row in rows:
        key, n = row["key"], row["n"]
        steps = expected.setdefault(key, [])
        if row["is_end"]:
            if key in there:
                steps.append(("delete", there.pop(key)))
        else:
            steps += [("update_before", there[key]), ("update_after", n)] if key in there else [("insert", n)]
            there[key] = n
    found: dict[int, list[tuple[object, object]]] = {}
    for change in changes:
        found.setdefault(change["key"], []).append((change["_change_type"], change["n"]))  # type: ignore[arg-type]
    assert found == {key: steps for key, steps in expected.items() if steps}
