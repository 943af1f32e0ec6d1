"""A stream writes lake tables while compaction, expiry and two streaming readers run, and all processes are killed.

Every reader sees every row once, in order within a bucket, and the changelog of a primary-key table adds up to the
table. Compaction runs in the query and in a dedicated job, both at the same time. PIPELINE_SECONDS sets the duration
(`make pipeline-invariants`: 10 minutes), PIPELINE_SEED repeats the random choices, though not the timing.

The run that is not marked slow has no Spark: its writer and readers do what Spark does in small processes, which start
in a second. In the slow one the writer and one reader are drivers of Spark.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.paimon.format.snapshot import CommitKind
from tests import results
from tests.paimon.foreign.java_paimon import ExamUnavailable, JavaPaimon, JavaTable
from tests.paimon.oracle import find_python
from tests.paimon.pypaimon_tables import read_by_pypaimon
from tests.pipelines.actors import Delivery
from tests.pipelines.faults import READERS, Faults, wait_until
from tests.pipelines.lake import (
    AFTER,
    BATCH_ROWS,
    DATABASE,
    INSERT,
    KEYED,
    ORDERED,
    TABLES,
    Change,
    check_once,
    check_order,
    check_table,
    fold,
    make_tables,
    newest,
    open_catalog,
    open_table,
)

pytest.importorskip("pyspark.sql.streaming.datasource", reason="streams that Python reads come with Spark 4.2")

SECONDS = float(os.environ.get("PIPELINE_SECONDS", "60"))
SHORT_SECONDS = 8.0
SEED = int(os.environ.get("PIPELINE_SEED", random.SystemRandom().randrange(1 << 32)))
PATIENCE_SECONDS = 400
"""How much longer a run may take until it has seen all that it is there for, on a busy machine."""

BEGUN = 2
"""Micro-batches that a reader must have of each table before anything expires: a first, full read is not protected."""


class Seen:
    """What a reader has delivered so far: files, rows, and the newest number of each key."""

    def __init__(self) -> None:
        self.files = self.rows = 0
        self.newest: dict[int, int] = {}

    def take(self, deliveries: Iterable[Sequence[Change]]) -> None:
        for changes in deliveries:
            self.files += 1
            self.rows += len(changes)
            self.newest.update((key, number) for kind, key, number in changes if kind in (INSERT, AFTER))


class Run:
    """One run: who is at work, and what they must have done."""

    def __init__(self, folder: Path, *, spark: bool, seconds: float, pauses: tuple[float, float]) -> None:
        self.warehouse, self._folder, self._seconds, self._pauses = folder / "lake", folder, seconds, pauses
        make_tables(self.warehouse)
        self._rng = random.Random(SEED)
        self.faults = Faults(self.warehouse, folder, spark=spark, seed=SEED)
        self.compactions: Counter[str] = Counter()
        self._seen: dict[tuple[str, str], Seen] = {}

    def delivered(self, reader: str, name: str) -> int:
        return len(Delivery(self._folder, reader, name).journal)

    def wreck(self) -> None:
        """Until the time is up and everything has happened."""
        alive = self.faults.check_alive
        wait_until(self._has_begun, "readers have not begun", PATIENCE_SECONDS, alive)
        began = time.monotonic()
        while time.monotonic() - began < self._seconds or not self._has_happened():
            assert time.monotonic() - began < self._seconds + PATIENCE_SECONDS, f"not seen: {self.faults.counts}"
            pause = time.monotonic() + self._rng.uniform(*self._pauses)
            while time.monotonic() < pause:
                alive()
                time.sleep(0.1)
            self.faults.happen()
            self.faults.expire()
            self._count_compactions()

    def _has_begun(self) -> bool:
        return all(self.delivered(reader, name) >= BEGUN for reader in READERS for name in TABLES)

    def _has_happened(self) -> bool:
        kills = {"kill_writer", "kill_reader_one", "kill_reader_two", "kill_job", "kill_all"}
        return all(self.faults.counts[each] for each in (*kills, "writer repeats", "expire")) and all(
            self.compactions[name] for name in TABLES
        )

    def _count_compactions(self) -> None:
        for name in TABLES:
            kinds = [s.commit_kind for s in open_table(self.warehouse, name).context.snapshots.snapshots()]
            self.compactions[name] = max(self.compactions[name], kinds.count(CommitKind.COMPACT))

    def settle(self) -> dict[str, int]:
        """Let the writer go on after the last fault, then stop it, and wait for the readers; batches by table."""
        alive, before = self.faults.check_alive, self.faults.done()
        wait_until(
            lambda: all(done > before[name] for name, done in self.faults.done().items()),
            "the writer does not go on", PATIENCE_SECONDS, alive,
        )  # fmt: skip
        done = self.faults.done()
        self.faults.writer.kill()
        written = {}
        for name in TABLES:
            rows = open_table(self.warehouse, name).scan().to_arrow().to_pylist()
            written[name] = check_table(name, rows, done[name])
        for reader in READERS:
            for name, batches in written.items():
                wait_until(
                    lambda r=reader, n=name, b=batches: self._has_all(r, n, b),  # type: ignore[misc]
                    f"reader {reader} has not all {batches} batches of {name}", PATIENCE_SECONDS,
                    self.faults.check_others,
                )  # fmt: skip
        return written

    def _has_all(self, reader: str, name: str, batches: int) -> bool:
        """Whether as many rows have come, or, of the table with a key, the newest of each; what has come is kept."""
        seen = self._seen.setdefault((reader, name), Seen())
        journal = Delivery(self._folder, reader, name).journal
        seen.take(journal.get(at) for at in range(seen.files, len(journal)))
        count = batches * BATCH_ROWS
        return seen.newest == newest(count) if name == KEYED else seen.rows >= count

    def check_readers(self, written: dict[str, int]) -> None:
        for reader in READERS:
            for name, batches in written.items():
                what = f"reader {reader} of {name}"
                changes = Delivery(self._folder, reader, name).changes()
                if name == KEYED:
                    rows = open_table(self.warehouse, name).scan().to_arrow()
                    assert fold(what, changes) == dict(zip(*(rows[c].to_pylist() for c in ("k", "id")), strict=True))
                    continue
                check_once(what, [number for _, _, number in changes], batches * BATCH_ROWS)
                if name == ORDERED:
                    check_order(what, changes, buckets_of(self.warehouse))

    def report(self, written: dict[str, int]) -> None:
        slow = {actor.name: actor.slow_starts for actor in self.faults.actors if actor.slow_starts}
        if slow:
            print(f"drivers that were started again because their Python processes were too slow to start: {slow}")
        print(f"{written} micro-batches; {dict(self.faults.counts)}; compactions at a time: {dict(self.compactions)}")


def buckets_of(warehouse: Path) -> dict[int, int]:
    """The bucket of each key of the ordered table."""
    table = open_table(warehouse, ORDERED)
    reader = table.split_reader(["k"])
    return {
        key: split.bucket
        for split in table.scan().plan()
        for batch in reader.read(split)
        for key in batch.column(0).to_pylist()
    }


def run(folder: Path, *, spark: bool, seconds: float, pauses: tuple[float, float]) -> Run:
    print(f"seed {SEED}, {seconds:g} s")
    made = Run(folder, spark=spark, seconds=seconds, pauses=pauses)
    try:
        made.wreck()
        written = made.settle()
    finally:
        made.faults.end()
    made.report(written)
    made.check_readers(written)
    figures = {"seconds": seconds, "seed": SEED, "micro_batches": sum(written.values())}
    part = "spark" if spark else "python"
    results.write_if_wanted(f"pipeline-invariants.{part}", {**figures, "faults": made.faults.counts.total()})
    return made


@pytest.mark.timeout(SHORT_SECONDS + 3 * PATIENCE_SECONDS)
@pytest.mark.slow
def test_every_reader_sees_every_row_once_whichever_process_is_killed(tmp_path: Path) -> None:
    run(tmp_path, spark=False, seconds=SHORT_SECONDS, pauses=(0.5, 2.0))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.foreign
@pytest.mark.timeout(SECONDS + 5 * PATIENCE_SECONDS)
def test_drivers_of_spark_that_are_killed_lose_and_repeat_nothing_and_others_read_the_tables(tmp_path: Path) -> None:
    made = run(tmp_path, spark=True, seconds=SECONDS, pauses=(5.0, 25.0))
    for what in check_foreign_readers(made.warehouse, tmp_path):
        print(what)


def check_foreign_readers(warehouse: Path, scratch: Path) -> Iterator[str]:
    """pypaimon and Java Paimon read the rows that we read; says so, or why one of them is not here."""
    catalog = open_catalog(warehouse)
    ours = {name: numbers(open_table(warehouse, name).scan().to_arrow()) for name in TABLES}
    python, reason = find_python()
    for name in TABLES if python is not None else ():
        rows = read_by_pypaimon(catalog, f"{DATABASE}.{name}", scratch / "out.arrow", "python")
        assert [(row["k"], row["id"]) for row in rows] == ours[name]
    yield "pypaimon: " + (reason or "the same rows")
    try:
        java = JavaPaimon()
    except ExamUnavailable as e:
        yield f"no Java Paimon here: {e}"
        return
    try:
        for name in TABLES:
            answer = JavaTable(java, catalog.warehouse, f"{DATABASE}.{name}").ask("read")
            key, number = (answer["columns"].index(column) + 1 for column in ("k", "id"))
            found = [(int(row[key]), int(row[number])) for row in answer["rows"]]
            assert sorted(found, key=lambda row: row[1]) == ours[name]
    finally:
        java.close()
    yield "Java Paimon: the same rows"


def numbers(rows: pa.Table) -> list[tuple[int, int]]:
    """(key, number) in the order of numbers."""
    return sorted(zip(rows["k"].to_pylist(), rows["id"].to_pylist(), strict=True), key=lambda row: row[1])
