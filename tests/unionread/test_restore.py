"""A table gets the rows that it had: `Connection.restore`, with and without a lake."""

from __future__ import annotations

import datetime as dt
import random
import time
from typing import Any

import pytest

from forebay.base.errors import Conflict, NotFound, UnsupportedOperation
from forebay.client import restore as module
from forebay.client.table import Table
from tests.unionread.world import MEMORY, World, bag

COLUMNS = {"id": "BIGINT", "d": "DOUBLE", "tags": "ARRAY<ROW<a INT, b STRING>>"}


def changed(table: Table, chance: random.Random) -> None:
    """A transaction that writes some rows, and deletes others."""
    rows = [
        {"id": chance.randrange(40), "d": chance.choice([0.0, -0.0, float("nan"), None, 1.5]),
         "tags": chance.choice([None, [], [{"a": 1, "b": None}]])}
        for _ in range(chance.randrange(12))
    ]  # fmt: skip
    with table.connection.transaction() as tx:  # type: ignore[attr-defined]
        tx.upsert(table, list({row["id"]: row for row in rows}.values()))
        tx.delete(table, chance.sample(range(40), 5))


def test_a_table_has_the_rows_of_an_earlier_commit_again_and_no_other_was_written(memory: World) -> None:
    chance = random.Random(7)
    table = memory.connection.create_table("fluss.restored", COLUMNS, primary_key="id", buckets=3)
    states = []
    for _ in range(8):
        changed(table, chance)
        states.append(bag(table.scan().to_arrow()))
    for number in (3, 8, 1):
        before = bag(table.scan().to_arrow())
        ends = memory.connection.admin.list_offsets(table.info)
        found = memory.connection.restore(table.path, number, dry_run=True)
        assert bag(table.scan().to_arrow()) == before
        assert memory.connection.restore(table.path, number) == found
        assert bag(table.scan().to_arrow()) == states[number - 1]
        same = sum((before & states[number - 1]).values())
        assert found.written == sum(states[number - 1].values()) - same
        records = sum(memory.connection.admin.list_offsets(table.info).values()) - sum(ends.values())
        updated = sum(before.values()) - same - found.deleted
        assert records == found.written + updated + found.deleted  # an update is two records
        last = table.history().to_pylist()[-1]
        assert (last["operation"], last["rows"]) == ("RESTORE", found.written + found.deleted)
    commits = table.history().num_rows
    assert memory.connection.restore(table.path, 1) == (0, 0)
    assert table.history().num_rows == commits
    with pytest.raises(NotFound, match="has no commit 99"):
        memory.connection.restore(table.path, 99)
    assert memory.connection.admin.transactions() == []


def test_partitions_and_columns_that_came_later(memory: World) -> None:
    table = memory.connection.create_table(
        "fluss.restored_parts", {"id": "BIGINT", "day": "STRING"}, primary_key=["id", "day"], partition_keys="day",
    )  # fmt: skip
    with memory.connection.transaction() as tx:
        tx.upsert(table, [{"id": 1, "day": "mon"}])
    wider = table.alter(add_columns={"v": "INT"})
    wider.upsert([{"id": 1, "day": "mon", "v": 5}, {"id": 2, "day": "tue", "v": 5}])
    assert memory.connection.restore(table.path, 1) == (1, 1)
    assert wider.scan().to_arrow().to_pylist() == [{"id": 1, "day": "mon", "v": None}]


def test_a_table_with_a_lake_is_restored_as_of_a_time_and_a_snapshot(both: World) -> None:
    if both.lake == MEMORY:
        pytest.skip("scans open the lake by its options, and this one has none")
    table = both.create({"id": "BIGINT", "v": "BIGINT"}, buckets=2, primary_key=["id"])
    table.upsert([{"id": i, "v": 1} for i in range(6)])
    snapshot = both.tier(table)
    table.upsert([{"id": 1, "v": 2}, {"id": 9, "v": 2}])
    time.sleep(0.003)
    then = dt.datetime.now(dt.UTC)
    time.sleep(0.003)
    table.delete([0, 1, 2])
    assert both.connection.restore(table.path, then) == (3, 0)
    assert bag(table.scan().to_arrow()) == bag([{"id": i, "v": 1} for i in (0, 2, 3, 4, 5)] + [
        {"id": 1, "v": 2}, {"id": 9, "v": 2},
    ])  # fmt: skip
    assert both.connection.restore(table.path, snapshot) == (1, 1)
    assert bag(table.scan().to_arrow()) == bag([{"id": i, "v": 1} for i in range(6)])


def test_rows_of_a_dropped_partition_come_back_from_the_lake(both: World) -> None:
    if both.lake == MEMORY:
        pytest.skip("scans open the lake by its options, and this one has none")
    table = both.create({"id": "BIGINT", "day": "STRING"}, buckets=1, primary_key=["id", "day"], partition_keys="day")
    table.upsert([{"id": 1, "day": "mon"}, {"id": 2, "day": "tue"}])
    snapshot = both.tier(table)
    table.drop_partition({"day": "mon"})
    assert both.connection.restore(table.path, snapshot) == (1, 0)
    assert bag(table.scan().to_arrow()) == bag([{"id": 1, "day": "mon"}, {"id": 2, "day": "tue"}])


def test_a_row_that_another_writer_changes_meanwhile_refuses_the_restore(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = memory.connection.create_table("fluss.restored_late", {"id": "BIGINT", "v": "INT"}, primary_key="id")
    with memory.connection.transaction() as tx:
        tx.upsert(table, [{"id": 1, "v": 1}])
    table.upsert([{"id": 1, "v": 2}])
    encoded = module._encoded

    def late(*arguments: Any) -> Any:
        table.upsert([{"id": 1, "v": 3}])
        return encoded(*arguments)

    monkeypatch.setattr(module, "_encoded", late)
    with pytest.raises(Conflict):
        memory.connection.restore(table.path, 1)
    assert table.scan().to_arrow()["v"].to_pylist() == [3]
    assert memory.connection.admin.transactions() == []


def test_a_table_that_does_not_take_rows_as_they_were_is_refused(memory: World) -> None:
    conn, columns = memory.connection, {"id": "BIGINT", "v": "BIGINT"}
    log = conn.create_table("fluss.restored_log", columns)
    with pytest.raises(UnsupportedOperation, match="cannot be restored: a log grows"):
        conn.restore(log.path, dt.datetime.now(dt.UTC))
    for name, options in (
        ("sums", {"table.merge-engine": "aggregation"}), ("kept", {"table.delete.behavior": "ignore"}),
    ):  # fmt: skip
        table = conn.create_table(f"fluss.restored_{name}", columns, primary_key="id", options=options)
        with pytest.raises(UnsupportedOperation, match="takes no rows as they were"):
            memory.connection.restore(table.path, 1)
