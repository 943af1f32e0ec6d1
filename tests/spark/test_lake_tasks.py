"""Plans of lake tables as tasks, without Spark: distribution, task sizes, limits."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from forebay.client.table import Table
from forebay.metadata.table import TableBucket
from forebay.spark.reading.live_plan import lake_tasks
from forebay.spark.reading.live_read import BoundUnionSplit
from forebay.unionread.plan import UnionPlan
from forebay.unionread.splits import KvBucketSplit, LakeSnapshotAndLogSplit, LakeSnapshotSplit, LogSplit
from tests.spark.tables import ROWS_SCHEMA, rows
from tests.unionread.world import PAIMON, World, world


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("tasks"), PAIMON) as running:
        yield running


def tasks(plan: UnionPlan, table: Table, cores: int = 2, limit: int | None = None, **options: Any) -> list[Any]:
    covered = options.pop("covered", frozenset(table.buckets()))
    return lake_tasks(plan, covered, lambda buckets: dict.fromkeys(buckets, 7), cores, limit, options.pop("most", None))


def keyed(lake: World) -> Table:
    """Of four buckets the first two are in the lake, and one of these has moved on since."""
    table = lake.create(ROWS_SCHEMA, primary_key=["id"], buckets=4)
    table.upsert(rows(0, 40))
    lake.tier(table, table.buckets()[:2])
    log = table.changes("earliest", "latest", buckets=[0], include=()).to_arrow()
    table.upsert(log.slice(0, 1))
    return table


def test_lake_parts_know_their_rows_and_the_rest_goes_the_ways_of_tables_without_a_lake(lake: World) -> None:
    table = keyed(lake)
    plan = lake.plan(table)
    (task,) = tasks(plan, table)
    parts = {type(s.split): s for s in task if isinstance(s, BoundUnionSplit)}
    assert set(parts) == {LakeSnapshotAndLogSplit, LakeSnapshotSplit}
    alone = parts[LakeSnapshotSplit]
    assert alone.rows == sum(b.num_rows for b in alone.reader.read(alone.split, lake.connection))
    merged = parts[LakeSnapshotAndLogSplit]
    changes = merged.split.stop - merged.split.start
    assert merged.rows == sum(lake.rows() for lake in merged.split.lake) + changes > changes
    assert [(s.bucket.bucket, s.rows) for s in task if isinstance(s, KvBucketSplit)] == [(2, 7), (3, 7)]


def test_logs_are_cut_into_tasks_of_their_own(lake: World) -> None:
    table = lake.create(ROWS_SCHEMA, buckets=2)
    table.append(rows(0, 10))
    lake.tier(table)
    table.append(rows(10, 30))
    plan = lake.plan(table)
    found = tasks(plan, table, most=5)
    logs = [split for task in found for split in task if isinstance(split, LogSplit)]
    assert sum(split.rows for split in logs) == 20
    assert all(sum(split.rows for split in task if isinstance(split, LogSplit)) <= 5 for task in found)
    assert tasks(plan, table, covered=frozenset[TableBucket]())[-1] == found[0]


def test_one_task_meets_a_small_limit(lake: World) -> None:
    table = keyed(lake)
    plan = lake.plan(table, limit=3)
    (task,) = tasks(plan, table, cores=8, limit=3)
    assert len(task) == 4
    empty = lake.create(ROWS_SCHEMA)
    lake.tier(empty)
    assert tasks(lake.plan(empty, limit=3), empty, limit=3) == []
    assert tasks(lake.plan(empty), empty) == []


def test_the_parts_of_a_task_share_their_reader_when_they_travel(lake: World) -> None:
    plan = lake.plan(keyed(lake))
    parts = tuple(BoundUnionSplit(plan.reader, split) for split in plan.splits[:2])
    moved = pickle.loads(pickle.dumps(parts))
    assert [part.split for part in moved] == [part.split for part in parts]
    assert moved[0].reader is moved[1].reader
    assert len(pickle.dumps(parts * 5)) < len(pickle.dumps(parts)) + 500
    assert "BoundUnionSplit(" in repr(moved)
    assert len(repr(moved)) < 200
