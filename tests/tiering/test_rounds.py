"""Consecutive rounds: the lake contains exactly the log up to the tiered offsets."""

from __future__ import annotations

import datetime as dt
import pickle
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import ErrorCode, InvalidRequest, NotFound, Unavailable
from forebay.client.admin.lake import TieringTable
from forebay.client.table import Table
from forebay.lake.tiering import CommitterContext, LakeCommitter
from forebay.metadata.table import TableBucket
from forebay.testing import memory_lake as memory_lake_module
from forebay.tiering import round as round_module
from forebay.tiering import splits as splits_module
from forebay.tiering.control import RoundControl
from forebay.tiering.report import RoundReport
from forebay.tiering.round import TieringRound, commit_round, plan_round, write_round
from forebay.tiering.runner import ThreadRunner
from forebay.tiering.splits import SplitTask, TieringSplit, write_split
from forebay.tiering.steps import RoundStep
from tests.every_run import every_run
from tests.tiering.running import LakeCluster, lake_cluster, memory_storage

SCHEMA = {"k": pa.int32(), "v": pa.string()}


def rows(*pairs: tuple[int, str]) -> list[dict[str, object]]:
    return [{"k": k, "v": v} for k, v in pairs]


def planned(cluster: LakeCluster, table: Table, epoch: int = 1) -> TieringRound:
    return plan_round(cluster.connection, TieringTable(table.info.table_id, table.path, 0, epoch), cluster.lake)


def test_a_log_table_is_tiered_round_by_round(any_lake: LakeCluster) -> None:
    table = any_lake.create("t", SCHEMA, bucket_keys=["k"])
    table.append(rows((1, "a"), (2, "b"), (3, "c")))
    first = any_lake.tier(table)
    assert (first.rows, first.lag_records, first.lag_seconds) == (3, 0, 0.0)
    assert len(any_lake.check_complete(table)) == 3
    table.append(rows((1, "a"), (4, "d")))
    second = any_lake.tier(table)
    assert second.rows == 2
    assert second.snapshot_id != first.snapshot_id
    assert len(any_lake.check_complete(table)) == 5


def test_a_primary_key_table_begins_with_its_current_rows_and_continues_with_its_changes(any_lake: LakeCluster) -> None:
    table = any_lake.create("t", SCHEMA, primary_key=["k"])
    table.upsert(rows((1, "a"), (2, "b"), (3, "c")))
    table.upsert(rows((1, "A")))
    table.delete([{"k": 2}])
    first = planned(any_lake, table)
    assert {split.is_snapshot for split in first.splits} == {True}
    assert any_lake.tier(table).rows == 2
    assert any_lake.check_complete(table) == rows((1, "A"), (3, "c"))
    table.upsert(rows((3, "C"), (5, "e")))
    table.delete([{"k": 1}])
    assert not any(split.is_snapshot for split in planned(any_lake, table).splits)
    any_lake.tier(table)
    assert any_lake.check_complete(table) == rows((3, "C"), (5, "e"))


def test_where_there_is_nothing_new_there_is_no_snapshot(memory_lake: LakeCluster) -> None:
    table = memory_lake.create("t", SCHEMA)
    assert memory_lake.tier(table).snapshot_id is None
    with pytest.raises(NotFound):
        memory_lake.connection.admin.lake_snapshot(table.path)
    table.append(rows((1, "a")))
    snapshot = memory_lake.tier(table).snapshot_id
    assert memory_lake.tier(table).snapshot_id is None
    assert memory_lake.connection.admin.lake_snapshot(table.path, readable=True).snapshot_id == snapshot


def test_a_range_that_ends_in_changes_without_rows_is_done_once(any_lake: LakeCluster) -> None:
    """Deleting a key that does not exist moves the log on by a batch without records."""
    table = any_lake.create("t", SCHEMA, primary_key=["k"], buckets=1)
    table.upsert(rows((1, "a")))
    any_lake.tier(table)
    table.upsert(rows((1, "a")))
    table.delete([{"k": 9}])
    any_lake.tier(table)
    assert planned(any_lake, table).splits == ()
    table.delete([{"k": 9}])
    assert len(planned(any_lake, table).splits) == 1
    empty = any_lake.tier(table)
    assert empty.rows == 0
    assert empty.snapshot_id is not None
    assert planned(any_lake, table).splits == ()
    assert any_lake.check_complete(table) == rows((1, "a"))


def test_all_types_and_nulls_arrive_unchanged(any_lake: LakeCluster) -> None:
    moment = dt.datetime(2024, 2, 29, 12, 30, 15, 123456)
    schema = pa.schema(
        [
            ("i", pa.int64()), ("small", pa.int16()), ("f", pa.float64()), ("s", pa.string()), ("b", pa.binary()),
            ("d", pa.date32()), ("dec", pa.decimal128(38, 9)), ("ts", pa.timestamp("us")),
            ("ltz", pa.timestamp("us", "UTC")), ("flag", pa.bool_()), ("list", pa.list_(pa.int32())),
            ("map", pa.map_(pa.string(), pa.int64())), ("row", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ]
    )  # fmt: skip
    table = any_lake.create("t", schema, buckets=1)
    full = (
        7, 3, 1.5, "text", b"\x00\xff", dt.date(2024, 1, 2), Decimal("12345678901234567890.123456789"), moment,
        moment.replace(tzinfo=dt.UTC), True, [1, None, 3], [("a", 1)], {"x": 1, "y": None},
    )  # fmt: skip
    table.append([dict(zip(schema.names, full, strict=True)), dict.fromkeys(schema.names)])
    any_lake.tier(table)
    assert len(any_lake.check_complete(table)) == 2


def test_each_partition_is_tiered_new_ones_as_they_come_and_dropped_ones_stay(any_lake: LakeCluster) -> None:
    table = any_lake.create("t", {**SCHEMA, "p": pa.string()}, primary_key=["k", "p"], partition_keys=["p"])
    for name in ("x", "y"):
        table.create_partition({"p": name})
        table.upsert([{"k": 1, "v": name, "p": name}])
    any_lake.tier(table)
    table.create_partition({"p": "z"})
    table.upsert([{"k": 2, "v": "new", "p": "z"}, {"k": 3, "v": "more", "p": "x"}])
    table.drop_partition({"p": "y"})
    any_lake.tier(table)
    assert {(row["k"], row["p"]) for row in any_lake.lake_rows(table)} == {(1, "x"), (1, "y"), (2, "z"), (3, "x")}


def test_a_partition_that_is_dropped_during_a_round_is_left_out_of_it(any_lake: LakeCluster) -> None:
    table = any_lake.create("t", {**SCHEMA, "p": pa.string()}, partition_keys=["p"], buckets=1)
    for name in ("x", "y"):
        table.create_partition({"p": name})
        table.append([{"k": 1, "v": name, "p": name}])

    def drop(step: str) -> None:
        if step == RoundStep.PLAN:
            table.drop_partition({"p": "x"})

    report = any_lake.tier(table, RoundControl(reached=drop))
    assert (report.rows, report.dropped_buckets) == (1, 1)
    assert [row["p"] for row in any_lake.lake_rows(table)] == ["y"]


@pytest.mark.parametrize("keyed", [False, True])
def test_columns_that_are_added_between_and_during_rounds_lose_no_value(any_lake: LakeCluster, keyed: bool) -> None:
    table = any_lake.create("t", SCHEMA, primary_key=["k"] if keyed else [], buckets=1)

    def write(*new: dict[str, object]) -> None:
        handle = any_lake.connection.table(table.path)
        (handle.upsert if keyed else handle.append)(list(new))

    def add_column(name: str) -> None:
        table.alter(add_columns={name: pa.int64()})

    write({"k": 1, "v": "a"})

    def meanwhile(step: str) -> None:
        if step == RoundStep.PLAN:  # a snapshot split reads rows with a column that the plan did not know
            add_column("w")
            write({"k": 2, "v": "b", "w": 20})

    any_lake.tier(table, RoundControl(reached=meanwhile))
    any_lake.check(table)
    add_column("x")
    write({"k": 3, "v": "c", "w": 30, "x": 300})
    any_lake.tier(table)
    found = any_lake.check_complete(any_lake.connection.table(table.path))
    assert {row["k"]: (row["w"], row["x"]) for row in found} == {1: (None, None), 2: (20, None), 3: (30, 300)}


def test_a_column_that_is_added_while_a_round_is_planned_is_in_it(
    memory_lake: LakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = memory_lake.create("t", SCHEMA, buckets=1)
    plain = round_module.list_offsets

    def ask_after_an_alter(*arguments: Any) -> Any:
        monkeypatch.setattr(round_module, "list_offsets", plain)
        table.alter(add_columns={"w": pa.int64()})
        memory_lake.connection.table(table.path).append([{"k": 1, "v": "a", "w": 10}])
        return plain(*arguments)

    monkeypatch.setattr(round_module, "list_offsets", ask_after_an_alter)
    assert memory_lake.tier(table).rows == 1
    assert memory_lake.check(table) == [{"k": 1, "v": "a", "w": 10}]


@pytest.mark.one_in(2)
def test_a_round_that_is_cut_commits_what_it_has_and_the_next_one_continues(any_lake: LakeCluster) -> None:
    table = any_lake.create("t", SCHEMA, buckets=1)
    for i in range(3):  # more than a reader joins into one batch
        table.append(pa.table({"k": pa.array(range(40_000), pa.int32()), "v": [f"{i}"] * 40_000}))
    control = RoundControl()
    control.cut()
    reports = []
    while not reports or reports[-1].was_cut:
        reports.append(any_lake.tier(table, control))
        assert reports[-1].rows > 0
    assert len(reports) > 1
    assert reports[0].lag_records == 120_000 - reports[0].rows
    assert reports[0].lag_seconds is not None
    assert len(any_lake.lake_rows(table)) == 120_000


def test_a_round_that_is_cut_does_not_wait_for_a_bucket_that_gives_nothing(
    memory_lake: LakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a bucket has lost its leader: the others are committed, and a snapshot with nothing new is not made."""
    monkeypatch.setattr(splits_module, "_QUIET_SECONDS", 0.1)
    table = memory_lake.create("t", SCHEMA, bucket_keys=["k"], buckets=2)
    table.append(rows(*[(k, "a") for k in range(20)]))
    round_of_all = planned(memory_lake, table)
    assert len(round_of_all.splits) == 2
    silent = round_of_all.splits[0]
    end = silent.stop
    assert end is not None
    waiting = replace(silent, start=end, stop=end + 1)
    control = RoundControl()
    control.cut()

    def committed(splits: tuple[TieringSplit, ...]) -> RoundReport:
        cut = replace(round_of_all, splits=splits)
        results = write_round(memory_lake.connection, cut, ThreadRunner(), control)
        return commit_round(memory_lake.connection, cut, results, control)

    alone = committed((waiting,))
    assert (alone.snapshot_id, alone.rows, alone.was_cut) == (None, 0, True)
    both = committed((waiting, round_of_all.splits[1]))
    assert both.snapshot_id is not None
    assert (both.rows, both.was_cut) == (round_of_all.splits[1].records, True)
    assert silent.bucket not in memory_lake.connection.admin.lake_snapshot(table.path).log_offsets
    assert memory_lake.tier(table).rows == silent.records
    assert len(memory_lake.check_complete(table)) == 20


def test_the_time_of_a_round_is_the_freshness_of_its_table(memory_lake: LakeCluster) -> None:
    table = memory_lake.create("t", SCHEMA, buckets=1, options={"table.datalake.freshness": "0 s"})
    for _ in range(2):
        table.append(pa.table({"k": pa.array(range(40_000), pa.int32()), "v": ["v"] * 40_000}))
    assert memory_lake.tier(table, RoundControl(limit_to_freshness=True)).was_cut
    assert not memory_lake.tier(table, RoundControl()).was_cut


def test_a_log_that_was_trimmed_before_it_was_tiered_is_told_of(memory_lake: LakeCluster) -> None:
    table = memory_lake.create("t", SCHEMA, buckets=1)
    keyed = memory_lake.create("keyed", SCHEMA, primary_key=["k"], buckets=1)
    for each in (table, keyed):
        (each.upsert if each.has_primary_key else each.append)(rows((1, "a"), (2, "b")))
        memory_lake.tier(each)
    earliest = {TableBucket(each.info.table_id, 0): 4 for each in (table, keyed)}
    stops = dict.fromkeys(earliest, 6)
    starts = dict.fromkeys(earliest, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            round_module, "list_offsets", lambda _cluster, _info, buckets, _spec: {b: earliest[b] for b in buckets}
        )
        bucket = TableBucket(table.info.table_id, 0)
        splits, lost = round_module._splits(memory_lake.connection, table.info, {bucket: None}, starts, stops)
        assert (splits, lost) == ((TieringSplit(bucket, None, 4, 6),), 2)
        other = TableBucket(keyed.info.table_id, 0)
        with pytest.raises(InvalidRequest, match="cannot be brought up to date") as refused:
            round_module._splits(memory_lake.connection, keyed.info, {other: None}, starts, stops)
    assert refused.value.code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION


def test_tasks_and_results_travel_between_processes(paimon_lake: LakeCluster) -> None:
    table = paimon_lake.create("t", SCHEMA, primary_key=["k"])
    table.upsert(rows((1, "a"), (2, "b"), (3, "c")))
    ready = planned(paimon_lake, table)
    results = []
    for split in ready.splits:
        task = pickle.loads(pickle.dumps(SplitTask(ready.info, ready.factory, split, "a")))
        results.append(pickle.loads(pickle.dumps(write_split(task, paimon_lake.connection))))
    commit_round(paimon_lake.connection, ready, results, RoundControl())
    assert len(paimon_lake.check_complete(table)) == 3


def test_a_split_tells_what_it_has_read_when_that_was_written_and_whether_it_was_cut(tmp_path: Path) -> None:
    clock = ManualClock()
    with lake_cluster(tmp_path, memory_storage, clock=clock) as cluster:
        table = cluster.create("t", SCHEMA, buckets=1)
        first_ms = clock.now_ms()
        for i in range(3):  # more than a reader joins into one batch
            table.append(pa.table({"k": pa.array(range(40_000), pa.int32()), "v": [f"{i}"] * 40_000}))
            clock.advance(5)
        ready = planned(cluster, table)
        (split,) = ready.splits
        task = SplitTask(ready.info, ready.factory, split, "a")
        whole = write_split(task, cluster.connection)
        assert (whole.rows, whole.end_offset, whole.was_cut, whole.gone) == (120_000, 120_000, False, False)
        assert (whole.oldest_ms, whole.newest_ms) == (first_ms, first_ms + 10_000)
        assert whole.read_bytes > 120_000 * 4
        now = clock.now_ms()
        for deadline, is_cut in ((now, True), (now + 1, False), (None, False)):
            result = write_split(replace(task, deadline_ms=deadline), cluster.connection, clock=clock)
            assert result.was_cut is is_cut
            assert result.end_offset == result.rows
            assert result.rows > 0
            assert (result.rows < 120_000) is is_cut
            assert result.oldest_ms == first_ms
            assert (result.newest_ms == whole.newest_ms) is not is_cut


@pytest.mark.parametrize("failure", [KeyboardInterrupt, MemoryError, NotFound])
def test_a_split_that_ends_early_leaves_no_files(memory_lake: LakeCluster, failure: type[BaseException]) -> None:
    table = memory_lake.create("t", SCHEMA, buckets=1)
    table.append([{"k": k, "v": "v"} for k in range(10)])
    ready = planned(memory_lake, table)
    files = memory_lake.storage.table(table.path).files  # type: ignore[attr-defined]
    task = SplitTask(ready.info, ready.factory, ready.splits[0], "a")
    held = []

    def fail() -> bool:
        held.append(len(files))
        raise failure("now")

    with pytest.raises(failure, match="now"):
        write_split(task, memory_lake.connection, fail)
    assert (held, files) == ([1], {})


def test_a_table_that_is_not_tiered_is_refused(memory_lake: LakeCluster) -> None:
    table = memory_lake.create("t", SCHEMA, options={"table.datalake.enabled": "false"})
    with pytest.raises(InvalidRequest, match="is not tiered"):
        memory_lake.tier(table)


def test_results_of_a_round_that_is_given_up_leave_no_files(memory_lake: LakeCluster) -> None:
    table = memory_lake.create("t", SCHEMA, buckets=4, bucket_keys=["k"])
    table.append([{"k": k, "v": "v"} for k in range(100)])
    control = RoundControl()
    control.when_cancelled(lambda: None)
    steps = []

    def give_up(step: str) -> None:
        steps.append(step)
        if step == RoundStep.WRITE:
            control.cancel(NotFound("gone"))

    control.reached = give_up
    ready = planned(memory_lake, table)
    results = write_round(memory_lake.connection, ready, ThreadRunner(2), control)
    assert sum(result.rows for result in results) == 100
    with pytest.raises(NotFound, match="gone"):
        commit_round(memory_lake.connection, ready, results, control)
    assert steps == [RoundStep.WRITE]  # nor is the server asked to save offsets
    assert memory_lake.storage.table(table.path).files == {}  # type: ignore[attr-defined]
    assert memory_lake.tier(table).rows == 100


# ---- what a round tells, and leaves behind --------------------------------------------------------------------------


@pytest.fixture
def open_committers(monkeypatch: pytest.MonkeyPatch) -> list[LakeCommitter]:
    """The committers of the lake in memory that were made and not closed."""
    found: list[LakeCommitter] = []
    make = memory_lake_module._TieringFactory.create_committer

    def create(self: Any, context: CommitterContext) -> LakeCommitter:
        found.append(make(self, context))
        return found[-1]

    monkeypatch.setattr(memory_lake_module._TieringFactory, "create_committer", create)
    monkeypatch.setattr(memory_lake_module._Committer, "close", lambda self: found.remove(self), raising=False)
    return found


def test_a_round_tells_how_far_it_is_and_closes_what_it_opens(
    memory_lake: LakeCluster, open_committers: list[LakeCommitter]
) -> None:
    table = memory_lake.create("t", SCHEMA, buckets=2, bucket_keys=["k"])
    table.append([{"k": k, "v": "v"} for k in range(20)])
    told: list[Any] = []
    control = RoundControl(
        reached=lambda step: told.append(f"done: {step}"),
        on_phase=told.append,
        on_progress=lambda *counts: told.append(counts),
    )
    report = memory_lake.tier(table, control)
    assert told == [
        "planning", "done: plan", "writing", (0, 2), (1, 2), (2, 2), "done: write", "committing",
        "done: save", "done: commit", "done: report", "maintaining", "done: maintain",
    ]  # fmt: skip
    assert report.seconds > 0
    assert open_committers == []
    told.clear()
    assert memory_lake.tier(table, control).snapshot_id is None
    assert told == ["planning", "done: plan", "writing", (0, 0), "done: write"]
    assert open_committers == []


@pytest.mark.parametrize("step", [RoundStep.WRITE, RoundStep.SAVE, RoundStep.COMMIT, RoundStep.REPORT])
def test_a_round_that_fails_closes_what_it_opened(
    memory_lake: LakeCluster, open_committers: list[LakeCommitter], step: str
) -> None:
    table = memory_lake.create("t", SCHEMA)
    table.append(rows((1, "a")))

    def fail(at: str) -> None:
        if at == step:
            raise RuntimeError("not now")

    with pytest.raises(RuntimeError, match="not now"):
        memory_lake.tier(table, RoundControl(reached=fail))
    assert open_committers == []


def test_files_that_cannot_be_removed_do_not_hide_why_a_round_failed(
    memory_lake: LakeCluster,
    open_committers: list[LakeCommitter],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = memory_lake.create("t", SCHEMA)
    table.append(rows((1, "a")))
    ready = planned(memory_lake, table)
    results = write_round(memory_lake.connection, ready, ThreadRunner(), RoundControl())

    def broken(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(memory_lake_module._Committer, "abort", broken)
    control = RoundControl()
    control.cancel(NotFound("given up"))
    with pytest.raises(NotFound, match="given up"):
        commit_round(memory_lake.connection, ready, results, control)
    assert f"table {table.path}: files of a failed round are left behind: the disk is gone" in caplog.text
    assert open_committers == []


def test_upkeep_that_fails_is_told_with_the_round_which_counts(
    memory_lake: LakeCluster, open_committers: list[LakeCommitter], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = memory_lake.create("t", SCHEMA)
    table.append(rows((1, "a")))

    def broken(_: LakeCommitter) -> None:
        raise OSError("no room to compact")

    monkeypatch.setattr(memory_lake_module._Committer, "maintain", broken)
    report = memory_lake.tier(table)
    assert (report.maintenance_error, report.lag_records) == ("no room to compact", 0)
    assert len(memory_lake.check_complete(table)) == 1
    assert open_committers == []


def test_the_lag_counts_what_was_written_meanwhile_and_is_not_known_without_servers(
    memory_lake: LakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = memory_lake.create("t", SCHEMA, buckets=1)
    for asked in (True, False):
        table.append(rows((1, "a"), (2, "b")))
        ready = planned(memory_lake, table)
        results = write_round(memory_lake.connection, ready, ThreadRunner(), RoundControl())
        table.append(rows((3, "c")))
        if not asked:

            def away(*_: object) -> None:
                raise Unavailable("away")

            monkeypatch.setattr(round_module, "list_offsets", away)
        report = commit_round(memory_lake.connection, ready, results, RoundControl())
        assert report.lag_records == (1 if asked else None)
        assert report.finished_ms is not None
        assert report.snapshot_id is not None


@pytest.mark.parametrize(
    "engine",
    every_run(
        [{"table.merge-engine": "first_row"}, {"table.merge-engine": "aggregation", "fields.v.agg": "listagg"}],
        lambda engine: engine["table.merge-engine"] == "aggregation",
    ),
    ids=lambda engine: engine["table.merge-engine"],
)
def test_the_lake_table_of_a_table_with_a_merge_engine_takes_rows_as_they_are(
    any_lake: LakeCluster, engine: dict[str, str]
) -> None:
    table = any_lake.create("t", SCHEMA, primary_key=["k"], options=engine)
    for pairs in ([(1, "a"), (2, "b"), (1, "c")], [(2, "d"), (3, "e")], [(3, "f"), (1, "g")]):
        table.upsert(rows(*pairs))
        any_lake.tier(table)
        any_lake.check_complete(table)
