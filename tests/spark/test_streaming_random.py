"""Streams through random histories: restarts at every step of a batch, limits, dynamic partitions, tiering.

The expected rows come from the full changelog, which the history keeps, also of dropped partitions. STREAM_SEEDS=100
STREAM_FIRST_SEED=0 tries more histories.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.every_run import every_run
from tests.spark.stream_histories import SCHEMA, Records, check
from tests.spark.streams import Offset, Stream, through_json
from tests.unionread.world import PAIMON, World, world

pytest.importorskip("pyspark.sql.streaming.datasource", reason="comes with Spark 4.2")

FIRST_SEED = int(os.environ.get("STREAM_FIRST_SEED", "0"))
SEEDS = every_run(
    range(FIRST_SEED, FIRST_SEED + int(os.environ.get("STREAM_SEEDS", "8"))),
    lambda seed: seed < FIRST_SEED + 3 or "STREAM_SEEDS" in os.environ,
)
STEPS = 30
KEYS, PARTITIONS = 25, ("a", "b", "c")
KILLED = ("planned", "delivered", "committed")
"""Where a query dies: its batch is logged; the sink has its rows; it is committed, and the source does not know."""


class History(Records):
    """A table that changes at random, and what its logs have had."""

    def __init__(self, rng: random.Random, lake: World, *, keyed: bool) -> None:
        self.rng, self.lake, self.keyed = rng, lake, keyed
        self.is_partitioned, is_tiered = rng.random() < 0.5, rng.random() < 0.6
        options: dict[str, Any] = {"primary_key": ["id", "part"]} if keyed else {}
        if self.is_partitioned:
            options["partition_keys"] = ["part"]
        if not is_tiered:
            options["options"] = {"table.datalake.enabled": "false"}
        super().__init__(lake.create(SCHEMA, buckets=rng.randint(1, 3), **options), is_tiered=is_tiered)
        self._number = 0

    def happen(self) -> None:
        """Something, mostly writes."""
        kind = self.rng.random()
        if kind < 0.75:
            self._write()
        elif kind < 0.9 and self.is_tiered:
            self.lake.tier(self.table, records=self.rng.choice([None, 5]))
        elif self.is_partitioned:
            self._drop_partition()

    def _write(self) -> None:
        rows = []
        for _ in range(self.rng.randint(1, 20)):
            self._number += 1
            rows.append({"id": self.rng.randrange(KEYS), "part": self.rng.choice(PARTITIONS), "n": self._number})
        if not self.keyed:
            self.table.append(rows)
            return
        self.table.upsert(rows)
        if self.rng.random() < 0.5:
            self.table.delete(
                [{"id": row["id"], "part": row["part"]} for row in rows[: self.rng.randint(1, len(rows))]]
            )

    def _drop_partition(self) -> None:
        there = self.table.partitions()
        if there:
            gone = self.rng.choice(there)
            self.remember()
            self.dropped.add(gone.partition_id)
            self.table.drop_partition(dict(gone.spec))


class Query:
    """What Spark does with a source: the end of a batch is logged before it runs, and its commit afterwards."""

    def __init__(self, history: History, **options: str) -> None:
        changelog = "$changelog" if options.pop("of", "") == "changelog" else ""
        self.stream = Stream(history.lake.connection, f"{history.table.path}{changelog}", **options)
        self.logged: list[Offset] = []
        self.committed = 0
        self.sink: dict[int, Counter[str]] = {}
        self.repeated: list[tuple[Counter[str], Counter[str]]] = []

    def batch(self, killed: str | None = None, *, up_to_now: bool = False) -> bool:
        """One batch, or less of it where the query is killed. Whether there was anything new."""
        stream = self.stream
        if self.committed == len(self.logged):
            start = stream.start if stream.offset is None else stream.offset
            end = through_json(stream.reader.latestOffset(start, stream.reader.getDefaultReadLimit()))
            if end == start and self.logged:
                return False
            self.logged.append(end)
            if killed == "planned":
                return self._restart(up_to_now)
        number = self.committed
        start = self.logged[number - 1] if number else stream.start
        rows = Counter(repr(row) for batch in stream.read(start, self.logged[number]) for row in batch.to_pylist())
        if number in self.sink and self.sink[number] != rows:
            self.repeated.append((self.sink[number], rows))
        self.sink[number] = rows
        if killed == "delivered":
            return self._restart(up_to_now)
        self.committed += 1
        stream.offset = self.logged[number]
        if killed == "committed":
            return self._restart(up_to_now)
        stream.reader.commit(self.logged[number])
        return True

    def _restart(self, up_to_now: bool) -> bool:
        self.stream.restart()
        if up_to_now:
            self.stream.reader.prepareForTriggerAvailableNow()
        return True

    def run_up_to_now(self, rng: random.Random) -> None:
        """`Trigger.AvailableNow`: to the end, whatever happens on the way."""
        self.stream.restart()
        self.stream.reader.prepareForTriggerAvailableNow()
        while self.batch(_sometimes(rng), up_to_now=True):
            pass


def _sometimes(rng: random.Random) -> str | None:
    return rng.choice(KILLED) if rng.random() < 0.3 else None


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("lakehouse"), PAIMON) as running:
        yield running


@pytest.mark.parametrize("of", ["log", "keys", "changelog"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.one_in(2)
def test_a_stream_delivers_every_change_once_whenever_it_is_killed(lake: World, seed: int, of: str) -> None:
    rng = random.Random(f"{seed} {of}")
    history = History(rng, lake, keyed=of != "log")
    for _ in range(rng.randrange(6)):
        history.happen()
    options = {
        "scan_startup_mode": rng.choice(["full", "full", "earliest", "latest"]),
        "scan_partition_discovery_interval": "1 ms",
    }
    if rng.random() < 0.7:
        options["maxRowsPerTrigger"] = str(rng.choice([1, 7, 30]))
    query = Query(history, of=of, **options)
    for _ in range(STEPS):
        if rng.random() < 0.5:
            history.happen()
        elif rng.random() < 0.1:
            query.run_up_to_now(rng)
        else:
            query.batch(_sometimes(rng))
    query.stream.restart()
    while query.batch():
        pass
    check(history, query.logged, query.sink, changelog=of == "changelog")
    for one, other in query.repeated:
        assert history.dropped, f"a batch that was run again had other rows: {one - other} {other - one}"
