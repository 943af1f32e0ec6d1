"""Union reads beside a writer and a tiering worker: each one sees a state that existed at some time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import forebay
from forebay import col
from forebay.client.table import Table
from forebay.unionread.planning import plan_union
from tests.unionread.world import World, bag, compact, replayed

ACCOUNTS = 20
EACH = 100
TRANSFERS = 120
SCHEMA = pa.schema(
    [
        pa.field("account", pa.int32(), nullable=False),
        pa.field("amount", pa.int64(), nullable=False),
        ("note", pa.string()),
    ]
)


class Beside(threading.Thread):
    """Does something again and again until it is told to stop, or once through; keeps its failure."""

    def __init__(self, work: Callable[[], None], done: threading.Event | None = None) -> None:
        super().__init__(daemon=True)
        self._work, self._done = work, done
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while True:
                self._work()
                if self._done is None or self._done.is_set():
                    return
        except BaseException as e:  # noqa: BLE001 - the test raises it
            self.failure = e


def transfers(table: Table) -> None:
    """Moves amounts between accounts; each move is one write into one bucket, and so happens at once."""
    chance = random.Random(7)
    amounts = dict.fromkeys(range(ACCOUNTS), EACH)
    for number in range(TRANSFERS):
        a, b = chance.sample(range(ACCOUNTS), 2)
        moved = chance.randrange(1, 50)
        amounts[a] -= moved
        amounts[b] += moved
        table.upsert([{"account": i, "amount": amounts[i], "note": f"move {number}"} for i in (a, b)])
        if number % 10 == 0:
            table.delete([{"account": 1000 + number}])  # an empty log batch


@pytest.mark.one_in(2)
def test_no_union_read_sees_half_a_transfer_while_rounds_of_tiering_run(both: World) -> None:
    table = both.create(SCHEMA, primary_key=["account"])
    table.upsert([{"account": i, "amount": EACH, "note": "opened"} for i in range(ACCOUNTS)])
    done = threading.Event()
    writer = Beside(lambda: transfers(table))
    tiering = Beside(lambda: both.tier(table) and None, done)
    seen = {both.plan(table).facts.snapshot_id}
    writer.start()
    tiering.start()
    reads = 0
    try:
        while writer.is_alive() or reads < 5 or len(seen) < 2:
            plan = both.plan(table, columns=["amount"])
            batches = [b for split in plan.splits for b in plan.reader.read(split, both.connection)]
            read = pa.Table.from_batches(batches, plan.reader.schema)
            assert (read.num_rows, pc.sum(read["amount"]).as_py()) == (ACCOUNTS, ACCOUNTS * EACH)
            seen.add(plan.facts.snapshot_id)
            reads += 1
    finally:
        done.set()
        writer.join()
        tiering.join()
    assert (writer.failure, tiering.failure) == (None, None)
    assert both.rows(table) == replayed(table)
    assert len(seen) > 1


@pytest.mark.slow
def test_every_count_is_that_of_a_model_while_rounds_and_compactions_run(both: World) -> None:
    """One writer that counts after each of its writes, every 100 ms or so; everything else runs beside it."""
    table = both.create(SCHEMA, primary_key=["account"], buckets=3)
    done = threading.Event()

    def compacts() -> None:
        compact(both, table)
        done.wait(0.05)

    beside = [Beside(lambda: both.tier(table) and None, done), Beside(compacts, done)]
    chance, model, seen = random.Random(11), set[int](), set[int | None]()
    for thread in beside:
        thread.start()
    try:
        for step in range(30):
            added = {chance.randrange(200) for _ in range(12)}
            table.upsert([{"account": i, "amount": step, "note": "x"} for i in sorted(added)])
            model |= added
            removed = set(chance.sample(sorted(model), 5))
            table.delete([{"account": i} for i in sorted(removed)])
            model -= removed
            plan = both.plan(table, columns=[])
            counted = sum(b.num_rows for split in plan.splits for b in plan.reader.read(split, both.connection))
            assert counted == len(model), f"after step {step}"
            seen.add(plan.facts.snapshot_id)
    finally:
        done.set()
        for thread in beside:
            thread.join()
    assert [thread.failure for thread in beside] == [None, None]
    assert len(seen) > 2
    assert {row["account"] for row in both.read(table).to_pylist()} == model


@pytest.mark.one_in(2)
def test_the_size_of_fetches_and_batches_changes_nothing(both: World) -> None:
    table = both.create(SCHEMA, primary_key=["account"], buckets=2)
    transfers(table)
    both.tier(table, records=60)
    server = both.connection.settings.bootstrap_servers[0]
    expected: Any = None
    for size in ("1b", "300b", "1mb"):
        options = {"client.scanner.log.fetch.max-bytes-for-bucket": size, "client.scanner.log.fetch.max-bytes": size}
        with forebay.connect(f"{server.host}:{server.port}", **options) as connection:
            plan = plan_union(connection.table(table.path), filter=col("amount") > 90, storage=both.storage)
            batches = [b for split in plan.splits for b in plan.reader.read(split, connection)]
            found = bag(pa.Table.from_batches(batches, plan.reader.schema))
        expected = expected or replayed(table, None, col("amount") > 90)
        assert found == expected
