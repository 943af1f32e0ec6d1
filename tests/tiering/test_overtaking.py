"""Rounds that overtake each other, or whose table is dropped: one commits, the others leave nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest

from forebay.base.errors import Conflict, ErrorCode, NotFound, Unavailable
from forebay.client.admin.lake import LakeTieringClient
from forebay.lake.tiering import (
    KEEP_ALL_PREVIOUS,
    CommitterContext,
    LakeCommitResult,
    LakeCommitter,
    LakeTieringFactory,
    LakeWriter,
    WriterContext,
)
from forebay.metadata.table import TableBucket, TableInfo
from forebay.testing.memory_lake import MemoryLakeStorage
from forebay.tiering.control import RoundControl
from forebay.tiering.round import TieringLake, commit_round, plan_round
from forebay.tiering.splits import SplitTask, write_split
from forebay.tiering.steps import RoundStep
from tests.patience import PATIENCE
from tests.tiering.overtaken_rounds import SCHEMA, commit, fill, handed_out, written
from tests.tiering.running import LakeCluster


@pytest.mark.parametrize("zombie_epoch", [1, 3], ids=["older epoch", "newer epoch"])
def test_of_two_rounds_at_once_the_first_to_commit_wins_and_the_other_is_refused(
    any_lake: LakeCluster, zombie_epoch: int
) -> None:
    table = any_lake.create("t", SCHEMA, bucket_keys=["k"])
    fill(table, 1, 2, 3)
    zombie = written(any_lake, table, zombie_epoch)
    fill(table, 4)
    commit(any_lake, *written(any_lake, table, 2))
    with pytest.raises(Conflict) as refused:
        commit(any_lake, *zombie)
    assert refused.value.code == ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION
    assert len(any_lake.check_complete(table)) == 4
    any_lake.tier(table)
    assert len(any_lake.check_complete(table)) == 4


def test_a_worker_of_an_older_epoch_is_refused_even_where_it_has_seen_the_newest_snapshot(
    any_lake: LakeCluster,
) -> None:
    table = any_lake.create("t", SCHEMA)
    fill(table, 1)
    commit(any_lake, *written(any_lake, table, 2))
    fill(table, 2)
    with pytest.raises(Conflict, match="epoch"):
        commit(any_lake, *written(any_lake, table, 1))
    commit(any_lake, *written(any_lake, table, 2))
    assert len(any_lake.check_complete(table)) == 2


def test_a_zombie_that_committed_to_the_lake_is_carried_on_from_and_cannot_undo_it_later(
    any_lake: LakeCluster,
) -> None:
    table = any_lake.create("t", SCHEMA, primary_key=["k"])
    fill(table, 1, 2)
    ready, results = written(any_lake, table, 1)
    asleep, awake = threading.Event(), threading.Event()

    def sleep_before_the_cluster_is_told(step: str) -> None:
        if step == RoundStep.COMMIT:
            asleep.set()
            assert awake.wait(PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        control = RoundControl(reached=sleep_before_the_cluster_is_told)
        zombie = pool.submit(commit_round, any_lake.connection, ready, results, control)
        assert asleep.wait(PATIENCE)
        table.delete([{"k": 1}])
        commit(any_lake, *written(any_lake, table, 2))
        newest = any_lake.connection.admin.lake_snapshot(table.path).snapshot_id
        awake.set()
        zombie.result(PATIENCE)  # what it reports is known already, and changes nothing
    assert any_lake.connection.admin.lake_snapshot(table.path).snapshot_id == newest
    assert [row["k"] for row in any_lake.check_complete(table)] == [2]


def test_rounds_that_all_run_at_the_same_time_write_every_row_once(any_lake: LakeCluster) -> None:
    table = any_lake.create("t", SCHEMA, bucket_keys=["k"])
    with ThreadPoolExecutor(4) as pool:
        for i in range(3):
            fill(table, *range(10 * i, 10 * i + 10))
            for done in [pool.submit(any_lake.tier, table) for _ in range(3)]:
                done.result(PATIENCE)
    assert len(any_lake.check_complete(table)) == 30


@pytest.mark.parametrize("step", [RoundStep.PLAN, RoundStep.WRITE, RoundStep.SAVE])
def test_a_table_that_is_recreated_during_a_round_gets_none_of_its_rows(memory_lake: LakeCluster, step: str) -> None:
    table = memory_lake.create("t", SCHEMA)
    fill(table, 1, 2)
    storage = memory_lake.storage
    assert isinstance(storage, MemoryLakeStorage)

    def make_anew(reached: str) -> None:
        if reached == step:
            memory_lake.connection.drop_table(table.path)
            del storage.lake.tables[table.path]
            fill(memory_lake.create("t", SCHEMA), 7)

    with pytest.raises(NotFound) as gone:
        memory_lake.tier(table, RoundControl(reached=make_anew))
    assert gone.value.code == ErrorCode.TABLE_NOT_EXIST
    new = memory_lake.connection.table(table.path)
    assert storage.table(table.path).files == {}
    memory_lake.tier(new)
    assert [row["k"] for row in memory_lake.check_complete(new)] == [7]


def test_rows_of_a_dropped_table_in_the_lake_are_never_mixed_with_those_of_a_new_one(memory_lake: LakeCluster) -> None:
    """The lake table belongs to the stream table that its newest snapshot names."""
    table = memory_lake.create("t", SCHEMA)
    fill(table, 1)
    memory_lake.tier(table)
    storage = memory_lake.storage
    assert isinstance(storage, MemoryLakeStorage)
    memory_lake.connection.drop_table(table.path)
    kept = storage.lake.tables.pop(table.path)
    new = memory_lake.create("t", SCHEMA)
    storage.lake.tables[table.path] = kept
    fill(new, 2)
    with pytest.raises(Conflict, match="drop the lake table"):
        memory_lake.tier(new)
    assert len(kept.snapshots) == 1


def test_of_several_attempts_at_a_split_the_rows_of_one_are_committed(any_lake: LakeCluster) -> None:
    """As when Spark runs a task again because it lost the first one's process, or found it slow."""
    table = any_lake.create("t", SCHEMA, buckets=1)
    fill(table, 1, 2, 3)
    ready = plan_round(any_lake.connection, handed_out(table, 1), any_lake.lake)
    task = SplitTask(ready.info, ready.factory, ready.splits[0], "first")
    write_split(task, any_lake.connection)
    again = write_split(replace(task, attempt="second"), any_lake.connection)
    commit(any_lake, ready, [again])
    assert len(any_lake.check_complete(table)) == 3


# ---- answers that get lost ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Meddling(LakeTieringFactory):
    """A factory whose committers do something else at commit."""

    inner: LakeTieringFactory
    at_commit: Callable[[LakeCommitter, Sequence[Any], Mapping[str, str]], LakeCommitResult]

    def validate(self, info: TableInfo) -> None:
        self.inner.validate(info)

    def create_writer(self, context: WriterContext) -> LakeWriter:
        return self.inner.create_writer(context)

    def create_committer(self, context: CommitterContext) -> LakeCommitter:
        return _MeddlingCommitter(self.inner.create_committer(context), self.at_commit)


class _MeddlingCommitter(LakeCommitter):
    def __init__(self, inner: LakeCommitter, at_commit: Any) -> None:
        self._inner, self._at_commit = inner, at_commit

    def commit(self, results: Sequence[Any], properties: Mapping[str, str]) -> LakeCommitResult:
        return self._at_commit(self._inner, results, properties)  # type: ignore[no-any-return]

    def abort(self, results: Sequence[Any]) -> None:
        self._inner.abort(results)

    def get_missing_lake_snapshot(self, latest_known: int | None) -> Any:
        return self._inner.get_missing_lake_snapshot(latest_known)


class _MeddlingStorage(MemoryLakeStorage):
    at_commit: Any = None

    def create_tiering_factory(self) -> LakeTieringFactory:
        return Meddling(super().create_tiering_factory(), self.at_commit)


def meddling(cluster: LakeCluster, at_commit: Any) -> LakeCluster:
    def create(_name: str, options: Mapping[str, str]) -> MemoryLakeStorage:
        storage = _MeddlingStorage(options)
        storage.at_commit = at_commit
        return storage

    return LakeCluster(cluster.server, cluster.connection, TieringLake(create_storage=create), cluster.lake_options)


def test_a_lake_commit_whose_answer_was_lost_counts(memory_lake: LakeCluster) -> None:
    def lose_the_answer(inner: LakeCommitter, results: Sequence[Any], properties: Mapping[str, str]) -> Any:
        inner.commit(results, properties)
        raise Unavailable("the answer was lost")

    table = memory_lake.create("t", SCHEMA)
    fill(table, 1, 2)
    assert meddling(memory_lake, lose_the_answer).tier(table).rows == 2
    assert len(memory_lake.check_complete(table)) == 2
    fill(table, 3)
    memory_lake.tier(table)
    assert len(memory_lake.check_complete(table)) == 3


def test_a_lake_commit_that_failed_leaves_no_files(memory_lake: LakeCluster) -> None:
    def fail(_inner: LakeCommitter, _results: Sequence[Any], _properties: Mapping[str, str]) -> Any:
        raise OSError("the lake is full")

    table = memory_lake.create("t", SCHEMA)
    fill(table, 1, 2)
    with pytest.raises(OSError, match="the lake is full"):
        meddling(memory_lake, fail).tier(table)
    storage = memory_lake.storage
    assert isinstance(storage, MemoryLakeStorage)
    assert storage.table(table.path).files == {}
    memory_lake.tier(table)
    assert len(memory_lake.check_complete(table)) == 2


def test_a_snapshot_that_becomes_readable_later_is_told_with_its_own_offsets(memory_lake: LakeCluster) -> None:
    made: list[int] = []

    def readable_one_round_later(inner: LakeCommitter, results: Sequence[Any], properties: Mapping[str, str]) -> Any:
        made.append(inner.commit(results, properties).snapshot_id)
        return LakeCommitResult(made[-1], made[-2] if len(made) > 1 else None, KEEP_ALL_PREVIOUS)

    table = memory_lake.create("t", SCHEMA, buckets=1)
    slow, admin, bucket = meddling(memory_lake, readable_one_round_later), memory_lake.connection.admin, None
    fill(table, 1, 2)
    slow.tier(table)
    with pytest.raises(NotFound):
        admin.lake_snapshot(table.path, readable=True)
    fill(table, 3)
    slow.tier(table)
    bucket = TableBucket(table.info.table_id, 0)
    readable = admin.lake_snapshot(table.path, readable=True)
    assert (readable.snapshot_id, readable.log_offsets) == (made[0], {bucket: 2})
    newest = admin.lake_snapshot(table.path)
    assert (newest.snapshot_id, newest.log_offsets) == (made[1], {bucket: 3})


def test_a_snapshot_that_a_dead_worker_left_is_readable_after_the_next_round_even_without_new_rows(
    memory_lake: LakeCluster,
) -> None:
    table = memory_lake.create("t", SCHEMA, buckets=1)
    fill(table, 1)
    ready, results = written(memory_lake, table, 1)
    path = LakeTieringClient(memory_lake.connection).prepare(table.info, {TableBucket(table.info.table_id, 0): 1})
    ready.committer().commit([result.written for result in results], {"fluss-offsets": path})
    assert memory_lake.tier(table).rows == 0
    readable = memory_lake.connection.admin.lake_snapshot(table.path, readable=True)
    assert readable.log_offsets == {TableBucket(table.info.table_id, 0): 1}
    assert len(memory_lake.check_complete(table)) == 1
