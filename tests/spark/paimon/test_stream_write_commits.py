"""Commits of a streaming query and the compaction beside it, without Spark: tasks are done by threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from forebay.base.errors import Conflict, StorageFailure
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.compact.running import TaskRunner, TaskThreads
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.table import Table
from forebay.spark.lake_options import write_options
from forebay.spark.writing import committing
from forebay.spark.writing.background import BackgroundCompaction, LimitedRunner, PackRounds
from forebay.spark.writing.committing import Overwrite, commit_batch
from forebay.spark.writing.stream_commits import Epoch, StreamCommits, must_wait
from tests.paimon.lake import put, stream_of
from tests.patience import PATIENCE
from tests.spark.paimon.write_lanes import Rows, make, rows_of, threads, write_in_lanes


def commits_of(
    table: Table,
    query: str = "q",
    *,
    beside: bool = True,
    is_active: Callable[[], bool] = lambda: False,
    **options: str,
) -> StreamCommits:
    """One run of query `query`. It counts as ended, so that its thread stops as soon as it has nothing to do."""
    chosen = write_options("t", table, options)
    return StreamCommits("t", table, query, chosen, threads, is_active, 2, table, beside=beside)


def epoch(table: Table, number: int, rows: Rows, *, tasks: int = 1, overwrite: Overwrite | None = None) -> Epoch:
    """A micro-batch of rows, as `tasks` tasks have written it."""
    dealt = [[rows[i::tasks]] for i in range(tasks)]
    return Epoch(number, write_in_lanes(table, dealt), len(rows), overwrite)


def some(*ids: int) -> Rows:
    return [{"id": i, "name": f"n{i}"} for i in ids]


def kinds_of(table: Table) -> list[str]:
    ids = range(1, (table.context.snapshots.latest_id() or 0) + 1)
    return [table.context.snapshots.snapshot(i).commit_kind.value for i in ids]


def settled(commits: StreamCommits) -> None:
    assert commits.background is not None
    assert commits.background.wait_idle(PATIENCE)


# ---- once -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"key": "id", "bucket": "1"}], ids=["append", "key"])
def test_a_micro_batch_that_comes_again_adds_nothing_and_leaves_no_file(
    tmp_path: Path, options: dict[str, str]
) -> None:
    table = make(tmp_path, **options)
    first = commits_of(table)
    first.commit(epoch(table, 0, some(1)))
    first.commit(epoch(table, 1, some(2)))
    files = set(tmp_path.rglob("data-*"))
    restarted = commits_of(table.refresh())
    assert restarted.commit(epoch(table, 1, some(2))) == []
    assert set(tmp_path.rglob("data-*")) == files
    assert restarted.metrics()["repeatedBatches"] == "1"
    restarted.commit(epoch(table, 2, some(3)))
    assert rows_of(table) == some(1, 2, 3)


LOOKUP = {"key": "id", "bucket": "1", "changelog-producer": "lookup"}


def changes_of(table: Table) -> list[tuple[str, int]]:
    found = table.refresh().changes(start="earliest", stop="latest").to_arrow()
    return list(zip(found["_change_type"].to_pylist(), found["id"].to_pylist(), strict=True))


@pytest.mark.parametrize("wait", ["true", "false"])
def test_a_micro_batch_that_was_killed_before_its_compaction_is_compacted_when_it_comes_again(
    tmp_path: Path, wait: str
) -> None:
    table = make(tmp_path, **LOOKUP, lookup_wait=wait)
    killed = commits_of(table)
    killed.rounds = killed.background = None
    killed.commit(epoch(table, 0, some(1, 2)))
    assert changes_of(table) == []
    restarted = commits_of(table.refresh())
    assert restarted.commit(epoch(table, 0, some(1, 2))) == []
    if restarted.background is not None:
        settled(restarted)
    assert changes_of(table) == [("insert", 1), ("insert", 2)]
    assert commits_of(table.refresh()).commit(epoch(table, 0, some(1, 2))) == []
    assert changes_of(table) == [("insert", 1), ("insert", 2)]


def test_a_run_of_a_job_that_was_killed_before_its_compaction_is_compacted_when_it_is_repeated(tmp_path: Path) -> None:
    table = make(tmp_path, **LOOKUP)
    write_only = table.with_options({"write-only": "true"})
    rows = some(1, 2)
    commit_batch(write_only, write_in_lanes(write_only, [[rows]]), None, threads, ("job", 7))
    assert changes_of(table) == []
    assert commit_batch(table, write_in_lanes(table, [[rows]]), None, threads, ("job", 7)) == []
    assert changes_of(table) == [("insert", 1), ("insert", 2)]


def test_a_query_with_a_new_checkpoint_writes_on(tmp_path: Path) -> None:
    table = make(tmp_path)
    commits_of(table, "one").commit(epoch(table, 0, some(1)))
    commits_of(table, "two").commit(epoch(table, 0, some(2)))
    assert rows_of(table) == some(1, 2)


def test_in_mode_complete_each_micro_batch_replaces_the_table_once(tmp_path: Path) -> None:
    table = make(tmp_path, key="id", bucket="1")
    commits = commits_of(table)
    for number in range(3):
        commits.commit(epoch(table, number, some(number, 7), overwrite=Overwrite()))
    assert commits_of(table).commit(epoch(table, 2, some(8), overwrite=Overwrite())) == []
    assert rows_of(table) == some(2, 7)


def test_an_empty_micro_batch_makes_no_snapshot(tmp_path: Path) -> None:
    table = make(tmp_path)
    assert commits_of(table).commit(epoch(table, 0, [])) == []
    assert table.context.snapshots.latest_id() is None


def test_a_commit_whose_outcome_is_unknown_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(tmp_path)
    commits = commits_of(table)
    work = epoch(table, 0, some(1))

    def lost(*_: object, **__: object) -> list[Snapshot]:
        raise StorageFailure("no answer")

    with monkeypatch.context() as patch:
        patch.setattr("forebay.paimon.commit.committer.FileStoreCommit.filter_and_commit", lost)
        with pytest.raises(StorageFailure):
            commits.commit(work)
    assert len(list(tmp_path.rglob("data-*"))) == 1


def test_a_query_whose_snapshots_have_all_expired_is_warned_when_it_is_restarted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = make(tmp_path, write_only="true")
    commits_of(table).commit(epoch(table, 0, some(1)))
    put(table, some(2))
    table.expire_snapshots(retain_min=1, retain_max=1)
    with caplog.at_level(logging.WARNING):
        commits_of(table).commit(epoch(table, 1, some(3)))
    assert "all snapshots that it made have expired" in caplog.text


def test_a_commit_that_is_refused_leaves_no_file(tmp_path: Path) -> None:
    table = make(tmp_path, key="id", bucket="1", write_only="true")
    commits = commits_of(table)
    commits.commit(epoch(table, 0, some(1)))
    work = epoch(table, 1, some(2))
    table.rescale(2)
    with pytest.raises(Conflict, match="rescale"):
        commits.commit(work)
    assert rows_of(table) == some(1)
    assert not [path for m in work.messages for f in m.data.new_files for path in tmp_path.rglob(f.file_name)]


@pytest.mark.parametrize("by_driver", [True, False])
def test_a_commit_that_cannot_be_prepared_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_driver: bool
) -> None:
    def fails(*_: object, **__: object) -> list[Any]:
        raise StorageFailure("disk on fire")

    class Broken(TaskThreads):
        def run(self, function: Any, tasks: Sequence[Any], **how: Any) -> list[Any]:
            return fails()

    if by_driver:
        monkeypatch.setattr(committing, "_precompact", fails)
    else:
        monkeypatch.setattr(committing, "DRIVER_ROWS_MAX", 0)
    table = make(tmp_path, precommit_compact="true")
    runner = threads if by_driver else lambda _what: Broken(1)
    failing = StreamCommits("t", table, "q", write_options("t", table, {}), runner, lambda: False, 2, table)
    with pytest.raises(StorageFailure):
        failing.commit(epoch(table, 0, some(1, 2), tasks=2))
    assert list(tmp_path.rglob("data-*")) == []


# ---- compaction -----------------------------------------------------------------------------------------------------


def test_small_files_are_packed_beside_the_query(tmp_path: Path) -> None:
    table = make(tmp_path)
    commits = commits_of(table)
    for number in range(12):
        commits.commit(epoch(table, number, some(number)))
        settled(commits)
    users = {
        table.context.snapshots.snapshot(i).commit_user
        for i in range(1, (table.context.snapshots.latest_id() or 0) + 1)
    }
    assert kinds_of(table).count("COMPACT") >= 2
    assert len(users) > 2, "compaction commits by users of its own"
    assert sum(len(s.files) for s in table.scan().plan()) <= 6
    assert rows_of(table) == sorted(some(*range(12)), key=str)
    assert int(commits.metrics()["filesCompacted"]) >= 10


def test_packed_files_that_are_small_are_packed_again_each_row_a_few_times_only(tmp_path: Path) -> None:
    table = make(tmp_path, compaction__min__file_num="3")
    commits = commits_of(table)
    for number in range(27):
        commits.commit(epoch(table, number, some(number)))
        settled(commits)
    assert sum(len(s.files) for s in table.scan().plan()) == 1
    assert rows_of(table) == sorted(some(*range(27)), key=str)
    assert commits.metrics()["filesCompacted"] == str(27 + 9 + 3)


def test_files_from_before_the_query_are_packed_too(tmp_path: Path) -> None:
    table = make(tmp_path)
    for i in range(6):
        put(table, some(i))
    commits = commits_of(table)
    commits.commit(epoch(table, 0, some(6)))
    settled(commits)
    assert sum(len(s.files) for s in table.scan().plan()) == 1


@pytest.mark.parametrize("options", [{}, {"key": "id", "bucket": "1"}], ids=["append", "key"])
def test_write_only_switches_all_compaction_off(tmp_path: Path, options: dict[str, str]) -> None:
    table = make(tmp_path, **options)
    commits = commits_of(table.with_options({"write-only": "true"}))
    for number in range(12):
        commits.commit(epoch(table, number, some(number)))
    assert commits.background is None
    assert set(kinds_of(table)) == {"APPEND"}


def test_buckets_are_compacted_beside_the_query_unless_readers_need_it_at_once(tmp_path: Path) -> None:
    beside = make(tmp_path / "a", key="id", bucket="1", num_sorted_run__compaction_trigger="3")
    commits = commits_of(beside)
    for number in range(8):
        commits.commit(epoch(beside, number, some(1, number)))
        settled(commits)
    assert kinds_of(beside).count("COMPACT") >= 2
    assert rows_of(beside) == some(*range(8))

    at_once = make(tmp_path / "b", key="id", bucket="1", merge_engine="first-row")
    commits = commits_of(at_once)
    assert commits.background is None
    for number in range(3):
        commits.commit(epoch(at_once, number, [{"id": 1, "name": f"{number}"}, {"id": 10 + number, "name": "x"}]))
        assert {"id": 10 + number, "name": "x"} in rows_of(at_once), "what is committed can be read"
    assert {"id": 1, "name": "0"} in rows_of(at_once)


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        ({}, False),
        ({"changelog_producer": "lookup"}, True),
        ({"changelog_producer": "lookup", "lookup_wait": "false"}, False),
        ({"changelog_producer": "full-compaction"}, True),
        ({"commit__force-compact": "true"}, True),
        ({"commit__force-compact": "true", "write_only": "true"}, False),
    ],
)
def test_a_commit_waits_for_compaction_where_it_is_not_complete_without(
    tmp_path: Path, options: dict[str, str], waits: bool
) -> None:
    assert must_wait(make(tmp_path, key="id", bucket="1", **options)) is waits


def test_every_commit_has_its_changelog_when_full_compaction_makes_it(tmp_path: Path) -> None:
    table = make(tmp_path, key="id", bucket="1", changelog_producer="full-compaction")
    commits = commits_of(table)
    commits.commit(epoch(table, 0, [{"id": 1, "name": "a"}]))
    commits.commit(epoch(table, 1, [{"id": 1, "name": "b"}]))
    reread = table.with_options({"scan.snapshot-id": "1"})
    changes = [r for b in stream_of(reread, scan_mode="from-snapshot", follow=False) for r in b.to_pylist()]
    assert [(r["_row_kind"], r["name"]) for r in changes][-2:] == [("-U", "a"), ("+U", "b")]


def test_a_lost_race_is_run_again_and_loses_no_row(tmp_path: Path) -> None:
    table = make(tmp_path)
    for i in range(6):
        put(table, some(i))

    class Overtaken(TaskThreads):
        """Others compact the same files before this compaction can be committed, once."""

        times = 0

        def run(self, function: Any, tasks: Sequence[Any], **how: Any) -> list[Any]:
            done = super().run(function, tasks, **how)
            if self.times == 0:
                table.compact(full=True)
            self.times += 1
            return done

    runner = Overtaken(2)
    rounds = PackRounds(table, runner)
    before = set(tmp_path.rglob("data-*"))
    assert rounds.run({}) == 0
    assert len(set(tmp_path.rglob("data-*")) - before) == 1, "only what the others wrote is there"
    for i in range(6, 12):
        put(table, some(i))
    assert rounds.run({}) == 7, "planned anew from what is there"
    assert runner.times == 2
    assert rows_of(table) == sorted(some(*range(12)), key=str)


def test_a_round_that_fails_is_logged_and_the_next_one_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = make(tmp_path)

    class Broken(TaskThreads):
        times = 0

        def run(self, function: Any, tasks: Sequence[Any], **how: Any) -> list[Any]:
            self.times += 1
            if self.times == 1:
                raise StorageFailure("disk on fire")
            return super().run(function, tasks, **how)

    background = BackgroundCompaction("t", PackRounds(table, Broken(1)), lambda: True)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            for i in range(6):
                put(table, some(10 * number + i))
            messages = epoch(table, number, some(10 * number + 9)).messages
            table.new_commit().commit(messages)
            background.committed(messages)
            assert background.wait_idle(PATIENCE)
    assert "disk on fire" in caplog.text
    assert "COMPACT" in kinds_of(table)


def test_an_overwrite_that_comes_late_does_not_undo_those_of_the_driver_that_took_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(tmp_path)
    late = epoch(table, 0, some(0), overwrite=Overwrite())
    filter_committed, taken_over = FileStoreCommit.filter_committed, list[bool]()

    def looked(self: FileStoreCommit, work: Sequence[Any]) -> Sequence[Any]:
        found = filter_committed(self, work)
        if not taken_over:  # the first driver stands still here, and another one takes the query over
            taken_over.append(True)
            other = commits_of(table)
            for number in range(2):
                assert other.commit(epoch(table, number, some(10 + number), overwrite=Overwrite()))
        return found

    monkeypatch.setattr(FileStoreCommit, "filter_committed", looked)
    assert commits_of(table).commit(late) == []
    assert rows_of(table) == some(11)


def test_the_end_of_a_thread_leaves_the_one_that_was_started_since(tmp_path: Path) -> None:
    background = BackgroundCompaction("t", PackRounds(make(tmp_path), TaskThreads(1)), lambda: False)
    newer = threading.Thread(target=lambda: None)

    def ended() -> None:  # the query seemed to be over; then it commits once more, which starts a thread
        background._thread, background._is_working = newer, True

    background._next = ended  # type: ignore[method-assign, assignment]
    background._work()
    assert (background._thread, background._is_working) == (newer, True)


def test_a_stream_waits_when_compaction_falls_behind(tmp_path: Path) -> None:
    table = make(
        tmp_path, key="id", bucket="1", num_sorted_run__compaction_trigger="2", num_sorted_run__stop_trigger="3"
    )
    gate = threading.Event()

    def slow(_what: str) -> TaskRunner:
        class Slow(TaskThreads):
            def run(self, function: Any, tasks: Sequence[Any], **how: Any) -> list[Any]:
                assert gate.wait(PATIENCE)
                return super().run(function, tasks, **how)

        return Slow(1)

    commits = StreamCommits("t", table, "q", write_options("t", table, {}), slow, lambda: False, 2, table)
    done: list[int] = []

    def write() -> None:
        for number in range(6):
            commits.commit(epoch(table, number, some(number)))
            done.append(number)

    writer = threading.Thread(target=write)
    writer.start()
    writer.join(1)
    assert writer.is_alive()
    assert len(done) < 6
    gate.set()
    writer.join(PATIENCE)
    assert not writer.is_alive()
    settled(commits)
    assert rows_of(table) == some(*range(6))


def test_a_few_tasks_run_at_a_time_and_all_is_discarded_when_one_fails() -> None:
    sizes: list[int] = []

    class Counted(TaskThreads):
        def run(self, function: Any, tasks: Sequence[Any], **how: Any) -> list[Any]:
            sizes.append(len(tasks))
            return super().run(function, tasks, **how)

    few = LimitedRunner(Counted(4), 2)
    assert few.run(abs, [-1, -2, -3], rows=[1, 1, 1]) == [1, 2, 3]
    assert sizes == [2, 1]
    gone: list[Any] = []
    with pytest.raises(TypeError):
        few.run(abs, [-1, -2, "x"], rows=[1, 1, 1], discard=gone.extend)
    assert sorted(gone) == [1, 2]


def test_progress_is_printed_if_the_write_asks_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = make(tmp_path)
    commits_of(table, **{"sink.progress": "true"}).commit(epoch(table, 3, some(1, 2)))
    assert "t: micro-batch 3: 2 rows in 1 files, snapshot 1, " in capsys.readouterr().err
    commits_of(table, "other").commit(epoch(table, 0, some(3)))
    assert capsys.readouterr().err == ""
