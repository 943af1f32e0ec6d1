"""Stream writers: numbered commits, each once, through failures, restarts, lost compactions and rescaling."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import Conflict, ForebayError, InvalidRequest, NotFound, OutcomeUnknown, StorageFailure
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.format.snapshot import CommitKind
from forebay.paimon.store.schema_changes import SetOption
from forebay.paimon.stream_writer import StreamWriter
from forebay.paimon.table import Table
from tests.every_run import every_run
from tests.paimon.failing import FailingFileIO
from tests.paimon.kills import start_process
from tests.paimon.lake import altered, at_ms, put
from tests.paimon.maintain.lakes import FAST, NOW, files_of, make_table, open_table, referenced, rows
from tests.patience import PATIENCE

APPEND: dict[str, Any] = {"primary_keys": ()}
KINDS: dict[str, dict[str, Any]] = {
    "keyed": {"options": {"write-only": "false", "num-sorted-run.compaction-trigger": "2"}},
    "dynamic buckets": {"options": {"bucket": "-1", "dynamic-bucket.target-row-num": "3"}},
    "first row": {"options": {"write-only": "false", "merge-engine": "first-row"}},
    "append": APPEND,
    "precommit": {"primary_keys": (), "options": {"precommit-compact": "true"}},
    "append, buckets": {"primary_keys": (), "options": {"bucket": "2", "bucket-key": "id", "write-only": "false"}},
}


def batch(number: int) -> list[dict[str, int]]:
    return [{"id": 10 * number + i, "v": number} for i in range(5)]


def expected(numbers: range) -> list[tuple[int, int]]:
    return [(10 * n + i, n) for n in numbers for i in range(5)]


def left_over(root: Path) -> set[str]:
    return files_of(root) - referenced(root)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_replayed_adds_nothing_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "t"
    table = make_table(root, **KINDS[kind])
    with table.stream_writer("job") as writer:
        assert writer.last_committed is None
        for number in range(4):
            put(writer, batch(number))
            assert writer.commit(number)[0].commit_identifier == number
    assert left_over(root) == set()
    before = files_of(root)
    with open_table(root).stream_writer("job") as writer:
        for number in range(2, 4):
            put(writer, batch(number))
            assert writer.commit(number) == []
        assert files_of(root) == before, "what the replay wrote is deleted again"
        for number in range(4, 8):
            put(writer, batch(number))
            assert writer.commit(number)
        assert writer.last_committed == 7
    assert rows(open_table(root)) == expected(range(8))
    assert left_over(root) == set()


def test_rows_are_upserted_and_deleted_in_order(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    with table.stream_writer("job") as writer:
        writer.upsert(batch(0))
        assert writer.delete([{"id": 1}, {"id": 2}]) == 2
        put(writer, [{"id": 3, "v": 9}, {"id": 4, "v": 9}], ["+U", "-D"])
        assert rows(open_table(tmp_path / "t")) == []
        writer.commit(1, watermark=77, properties={"source": "a:1"})
    assert rows(table) == [(0, 0), (3, 9)]
    latest = table.context.snapshots.latest()
    assert latest is not None
    assert (latest.watermark, latest.properties, latest.commit_user) == (77, {"source": "a:1"}, "job")
    with (
        pytest.raises(InvalidRequest, match="no primary key"),
        make_table(tmp_path / "a", **APPEND).stream_writer("job") as writer,
    ):
        writer.upsert(batch(0))


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_prepared_before_a_restart_is_committed_once_after_it(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "t"
    kept: dict[int, bytes] = {}
    with make_table(root, **KINDS[kind]).stream_writer("job") as writer:
        for number in range(3):
            put(writer, batch(number))
            kept[number] = pickle.dumps(writer.prepare())
            assert len(kept[number]) < 10_000
            put(writer, batch(9))  # of the commit that comes later, or never
            if number == 0:
                writer.commit(0)
            writer.abort() if number == 0 else None
    saved = {number: pickle.loads(messages) for number, messages in kept.items()}
    assert rows(open_table(root)) == expected(range(1))
    for _ in range(2):
        with open_table(root).stream_writer("job") as writer:
            writer.restore(saved)
            assert writer.last_committed == 2
    again = open_table(root)
    there = rows(again)
    assert [r for r in there if r[1] != 9] == expected(range(3))
    with again.stream_writer("job") as writer:
        put(writer, batch(3))
        writer.commit(3)
    assert [r for r in rows(again) if r[1] != 9] == expected(range(4))
    assert referenced(root) <= files_of(root)


def test_uncommitted_files_are_deleted_on_closing_except_those_handed_out(tmp_path: Path) -> None:
    root = tmp_path / "t"
    before = files_of(root)
    with make_table(root).stream_writer("job") as writer:
        before = files_of(root)
        put(writer, batch(0))
        messages = writer.prepare()
        put(writer, batch(1))
    assert len(files_of(root) - before) == 1, "the prepared file"
    orphans = open_table(root).remove_orphan_files(older_than=at_ms(NOW), dry_run=True)
    assert {p.removeprefix(f"{root}/") for p in orphans.files} == left_over(root)
    open_table(root).remove_orphan_files(older_than=at_ms(NOW))
    with pytest.raises(NotFound, match="cannot be restored"), open_table(root).stream_writer("job") as writer:
        writer.restore({1: messages})
    with open_table(root).stream_writer("job") as writer:
        put(writer, batch(0))
        writer.prepare()
        writer.abort()
        assert left_over(root) == set()
        put(writer, batch(2))
        writer.commit(1)
    assert rows(open_table(root)) == expected(range(2, 3))


def test_workers_write_and_one_of_them_commits(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", {"bucket": "4", "bucket-key": "id"}, primary_keys=())
    for number in range(3):
        messages = []
        for part in range(3):
            with open_table(tmp_path / "t").stream_writer("job") as worker:
                put(worker, [r for r in batch(number) if r["id"] % 3 == part])
                messages += pickle.loads(pickle.dumps(worker.prepare(hand_over=True)))
                worker.abort()
        with open_table(tmp_path / "t").stream_writer("job") as committer:
            assert len(committer.commit(number, messages)) == 1
            assert committer.commit(number, messages) == []
    assert rows(table) == expected(range(3))
    assert left_over(tmp_path / "t") == set()


def test_of_two_attempts_of_a_task_one_is_committed_and_the_other_is_an_orphan(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make_table(root)
    attempts = []
    for _ in range(2):
        with open_table(root).stream_writer("job") as task:
            put(task, batch(0))
            attempts.append(task.prepare(hand_over=True))
    with open_table(root).stream_writer("job") as committer:
        committer.commit(0, attempts[1])
    assert rows(open_table(root)) == expected(range(1))
    lost = {f"bucket-0/{f.file_name}" for m in attempts[0] for f in m.data.new_files}
    assert left_over(root) == lost
    orphans = open_table(root).remove_orphan_files(older_than=at_ms(NOW))
    assert {p.removeprefix(f"{root}/") for p in orphans.files} == lost


def test_giving_up_never_deletes_what_another_has_committed(tmp_path: Path) -> None:
    writer = make_table(tmp_path / "t").stream_writer("job")
    put(writer, batch(0))
    messages = writer.prepare()
    with open_table(tmp_path / "t").stream_writer("job") as other:
        other.restore({3: messages})
    writer.abort()
    assert rows(open_table(tmp_path / "t")) == expected(range(1))


@pytest.mark.parametrize("hand_over", [False, True])
def test_rows_keep_their_order_when_a_compaction_is_lost_between_two_prepared_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hand_over: bool
) -> None:
    """What comes later has the greater sequence numbers, though nothing in between is committed yet."""
    root = tmp_path / "t"
    make_table(root, {"write-only": "false", "num-sorted-run.compaction-trigger": "2"})
    before_commit(monkeypatch, lambda: open_table(root).compact(full=True), compaction=True)
    with open_table(root).stream_writer("job") as writer:
        prepared = {}
        for number in range(6):
            writer.upsert([{"id": i, "v": number} for i in range(3)])
            prepared[number] = writer.prepare(hand_over=hand_over)
            if number > 1:
                writer.commit(number - 2, prepared[number - 2])
        for number in (4, 5):
            writer.commit(number, prepared[number])
    assert rows(open_table(root)) == [(i, 5) for i in range(3)]


@pytest.mark.parametrize("evolved", [False, True])
def test_a_table_that_was_dropped_or_recreated_takes_no_commit_of_before(tmp_path: Path, evolved: bool) -> None:
    root = tmp_path / "t"
    table = make_table(root)
    if evolved:
        table = altered(table, [SetOption("snapshot.num-retained.max", "20")])
    writer = table.stream_writer("job")
    put(writer, batch(0))
    writer.prepare()
    shutil.rmtree(root)
    with pytest.raises(Conflict, match="dropped"):
        writer.commit(0)
    shutil.rmtree(root)
    time.sleep(0.005)  # tables are told apart by the millisecond in which they were made
    make_table(root)
    for later in (1, 2) if evolved else ():
        again = open_table(root, clock=ManualClock(NOW + later))
        altered(again, [SetOption("snapshot.num-retained.max", str(30 + later))])
    with pytest.raises(Conflict, match="perhaps recreated"):
        writer.commit(0)
    writer.close()
    assert open_table(root).context.snapshots.latest() is None
    with open_table(root).stream_writer("job") as fresh:
        put(fresh, batch(1))
        fresh.commit(0)
    assert rows(open_table(root)) == expected(range(1, 2))


def test_numbers_must_grow(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    with pytest.raises(InvalidRequest, match="needs a user"):
        table.stream_writer("")
    with table.stream_writer("job") as writer:
        for wrong in (-1, 2**63 - 1):
            with pytest.raises(InvalidRequest, match="numbered from 0"):
                writer.commit(wrong)
        put(writer, batch(0))
        writer.commit(5)
        assert writer.commit(5) == []
        assert writer.commit(6) == [], "without rows there is no snapshot"
        put(writer, batch(1))
        with pytest.raises(InvalidRequest, match="must grow: got 5, 6"):
            writer.commit(5)
        writer.commit(7)
        with pytest.raises(InvalidRequest, match="before anything is written"):
            writer.restore({8: []})
    assert rows(table) == expected(range(2))


def killed_before_its_compaction(root: Path) -> None:
    table = make_table(root, {"write-only": "false", "changelog-producer": "lookup"})
    with table.with_options({"write-only": "true"}).stream_writer("job") as killed:
        put(killed, batch(0))
        killed.commit(0)


def test_a_commit_that_was_killed_before_its_compaction_is_compacted_when_it_is_repeated(tmp_path: Path) -> None:
    root = tmp_path / "t"
    killed_before_its_compaction(root)

    def changes() -> list[int]:
        ids: list[int] = open_table(root).changes(start="earliest", stop="latest").to_arrow()["id"].to_pylist()
        return sorted(ids)

    assert changes() == []
    for _ in range(2):
        with open_table(root).stream_writer("job") as writer:
            put(writer, batch(0))
            writer.commit(0)
        assert changes() == [0, 1, 2, 3, 4]
    assert rows(open_table(root)) == expected(range(1))


def test_a_repeated_commit_whose_compaction_fails_commits_no_file_that_it_has_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "t"
    killed_before_its_compaction(root)

    def fail(*_: object, **__: object) -> None:
        raise StorageFailure("the disk is away")

    with open_table(root).stream_writer("job") as writer:
        put(writer, batch(0))
        with monkeypatch.context() as patch:
            patch.setattr(Table, "compact", fail)
            with pytest.raises(StorageFailure):
                writer.commit(0)
        writer.commit(0)
        put(writer, batch(1))
        writer.commit(1)
    assert rows(open_table(root)) == expected(range(2))
    assert referenced(root) <= files_of(root)


def failing_table(root: Path) -> tuple[FailingFileIO, Table]:
    make_table(root, {"commit.max-retries": "2"})
    io = FailingFileIO(FAST)
    return io, open_table(root, io, ManualClock(NOW))


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_of_unknown_outcome_is_repeated_before_any_other(tmp_path: Path, landed: bool) -> None:
    io, table = failing_table(tmp_path / "t")
    with table.stream_writer("job") as writer:
        put(writer, batch(0))
        io.fail_at("create", "snapshot-1", after=landed)
        io.fail_at("create", "snapshot-1", times=9)
        with pytest.raises(OutcomeUnknown, match="unknown"):
            writer.commit(0)
        io.points.clear()
        put(writer, batch(1))
        with pytest.raises(InvalidRequest, match="commit 0 failed, and must be repeated"):
            writer.commit(1)
        assert len(writer.commit(0)) == (0 if landed else 1)
        writer.commit(1)
    assert rows(open_table(tmp_path / "t")) == expected(range(2))
    assert referenced(tmp_path / "t") <= files_of(tmp_path / "t")


def test_files_of_an_unknown_outcome_are_never_deleted(tmp_path: Path) -> None:
    io, table = failing_table(tmp_path / "t")
    writer = table.stream_writer("job")
    put(writer, batch(0))
    io.fail_at("create", "snapshot-1", after=True)
    io.fail_at("create", "snapshot-1", times=9)
    with pytest.raises(OutcomeUnknown, match="unknown"):
        writer.commit(0)
    writer.abort()
    assert rows(open_table(tmp_path / "t")) == expected(range(1))


def test_after_a_write_that_failed_the_writer_asks_to_be_aborted(tmp_path: Path) -> None:
    io, table = failing_table(tmp_path / "t")
    with table.stream_writer("job") as writer:
        put(writer, batch(0))
        writer.commit(0)
        put(writer, batch(1))
        io.fail_at("open_output", "data-")
        with pytest.raises(StorageFailure):
            writer.commit(1)
        given = (lambda: writer.commit(1, messages=[]), lambda: writer.commit(0))
        for refused in (lambda: put(writer, batch(1)), lambda: writer.commit(1), writer.prepare, *given):
            with pytest.raises(InvalidRequest, match="abort it"):
                refused()
        writer.abort()
        put(writer, batch(1))
        writer.commit(1)
    assert rows(open_table(tmp_path / "t")) == expected(range(2))
    assert left_over(tmp_path / "t") == set()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", every_run(range(4), lambda seed: seed < 1))
def test_a_stream_on_a_failing_file_system_writes_every_row_once(tmp_path: Path, seed: int, kind: str) -> None:
    """Failures are repeated by the same writer once; then the next one goes on behind the last commit."""
    root = tmp_path / "t"
    make_table(root, **KINDS[kind])
    io = FailingFileIO(FAST, seed=seed, rate=0.0)
    number = failures = 0
    while number < 12:
        io.rate = 0.0
        writer = open_table(root, io, ManualClock(NOW), **{"commit.max-retries": "3"}).stream_writer("job")
        done = writer.last_committed
        number = 0 if done is None else done + 1
        io.rate = 0.02
        try:
            while number < 12:
                put(writer, batch(number))
                try:
                    writer.commit(number)
                except ForebayError:
                    failures += 1
                    writer.commit(number)
                number += 1
        except ForebayError:
            failures += 1
        if seed % 2:
            writer.close()
    io.rate = 0.0
    table = open_table(root)
    table.compact(full=True)  # first rows are seen after a compaction, and the last one may have failed
    assert failures > 0
    assert rows(table) == expected(range(12))
    assert [
        s.commit_identifier for s in table.context.snapshots.snapshots() if s.commit_kind is CommitKind.APPEND
    ] == list(range(12))
    orphans = table.remove_orphan_files(older_than=at_ms(NOW))
    assert rows(open_table(root)) == expected(range(12))
    assert files_of(root) >= referenced(root)
    assert not {p.removeprefix(f"{root}/") for p in orphans.files} & referenced(root)


def before_commit(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], compaction: bool) -> None:
    """Let `act` happen once, right before rows (or a compaction) are committed."""
    real = FileStoreCommit._commit
    waiting = [act]

    def raced(self: FileStoreCommit, work: Any, *args: Any) -> Any:
        if waiting and any((m.data if not compaction else m.compact).is_empty is False for m in work.messages):
            waiting.pop()()
        return real(self, work, *args)

    monkeypatch.setattr(FileStoreCommit, "_commit", raced)


@contextmanager
def losing_a_compaction(root: Path, monkeypatch: pytest.MonkeyPatch, producer: str = "none") -> Iterator[StreamWriter]:
    """A writer with three commits, whose next compaction is that of another job, too."""
    table = make_table(
        root, {"write-only": "false", "num-sorted-run.compaction-trigger": "2", "changelog-producer": producer}
    )
    with table.stream_writer("job") as writer:
        for number in range(3):
            put(writer, batch(number))
            writer.commit(number)
        before_commit(monkeypatch, lambda: open_table(root).compact(full=True), compaction=True)
        yield writer


@pytest.mark.parametrize("producer", ["none", "lookup"])
def test_a_stream_continues_after_its_compaction_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, producer: str
) -> None:
    root = tmp_path / "t"
    with losing_a_compaction(root, monkeypatch, producer) as writer:
        put(writer, batch(3))
        writer.prepare()
        put(writer, batch(4))
        writer.commit(3)
        writer.commit(4)
        for number in range(5, 10):
            put(writer, batch(number))
            writer.commit(number)
    assert rows(open_table(root)) == expected(range(10))
    open_table(root).expire_snapshots(1, 1)
    put(open_table(root), batch(10))
    assert open_table(root).compact(full=True) is not None
    assert rows(open_table(root)) == expected(range(11))


def test_a_writer_whose_compaction_lost_compacts_nothing_more_until_all_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would compact files that are gone."""
    root = tmp_path / "t"
    with losing_a_compaction(root, monkeypatch) as writer:
        prepared = {}
        for number in (3, 4):
            put(writer, batch(number))
            prepared[number] = writer.prepare()
        assert not all(message.compact.is_empty for message in prepared[3])
        writer.commit(3, prepared[3])
        put(writer, batch(5))
        prepared[5] = writer.prepare()  # every second one is compacted
        assert all(message.compact.is_empty for message in prepared[5])
        for number in (4, 5):
            writer.commit(number, prepared[number])
    assert rows(open_table(root)) == expected(range(6))


def test_a_compaction_that_lost_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "t"
    with losing_a_compaction(root, monkeypatch) as writer:
        put(writer, batch(3))
        writer.commit(3)
    assert rows(open_table(root)) == expected(range(4))
    assert left_over(root) == set()


def test_a_second_process_of_the_same_stream_commits_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it commits between the first one's look at what is committed, and its commit."""
    root = tmp_path / "t"
    make_table(root)
    zombie, heir = (open_table(root).stream_writer("job") for _ in range(2))
    put(zombie, batch(0))
    put(heir, batch(0))
    before_commit(monkeypatch, lambda: heir.commit(0), compaction=False)
    assert zombie.commit(0) == []
    zombie.close()
    heir.close()
    assert [s.commit_identifier for s in open_table(root).context.snapshots.snapshots()] == [0]
    assert rows(open_table(root)) == expected(range(1))
    assert left_over(root) == set()


@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_table_that_is_rescaled_while_a_stream_writes_loses_no_row(tmp_path: Path, end: str) -> None:
    """The stream gets an error, and continues with a reopened table."""
    root = tmp_path / "t"
    make_table(root, {"bucket": "2", "write-only": "false"})
    writer = open_table(root).stream_writer("job")
    for number in range(3):
        put(writer, batch(number))
        writer.commit(number)
    put(writer, batch(3))
    open_table(root).rescale(3)
    with pytest.raises(Conflict, match="3 buckets"):
        writer.commit(3)
    getattr(writer, end)()
    assert left_over(root) == set()
    with open_table(root).stream_writer("job") as writer:
        assert writer.last_committed == 2
        for number in range(3, 6):
            put(writer, batch(number))
            writer.commit(number)
    table = open_table(root)
    assert rows(table) == expected(range(6))
    latest = table.context.snapshots.latest()
    assert latest is not None
    assert {e.total_buckets for e in table.context.manifests.live_files(latest)} == {3}
    assert referenced(root) <= files_of(root)


KILLED_AT = int(os.environ.get("PAIMON_STREAM_KILLS", "3"))


def stream_until_killed(root: str, acknowledged: str, total: int) -> None:
    """Writes batches, half of them in two steps; what is committed is noted in the file `acknowledged`."""
    kept = Path(root + ".kept")
    with Table(FAST, root).stream_writer("job") as writer:
        if kept.exists():
            writer.restore(pickle.loads(kept.read_bytes()))
        done = writer.last_committed
        for number in range(0 if done is None else done + 1, total):
            put(writer, batch(number))
            if number % 2:
                temporary = Path(root + ".half")
                temporary.write_bytes(pickle.dumps({number: writer.prepare()}))
                temporary.replace(kept)
            writer.commit(number)
            with open(acknowledged, "a", encoding="utf-8") as f:
                f.write(f"{number}\n")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", every_run(["keyed", "append, buckets"], lambda kind: kind != "keyed"))
def test_a_stream_that_is_killed_again_and_again_writes_every_row_once(tmp_path: Path, kind: str) -> None:
    """By `kill -9`, at random moments; `PAIMON_STREAM_KILLS` times."""
    root, acknowledged = tmp_path / "t", tmp_path / "acknowledged"
    make_table(root, **KINDS[kind])
    acknowledged.touch()
    rng = np.random.default_rng(len(kind))
    total = 10 * KILLED_AT
    kills = 0
    while True:
        process = start_process(stream_until_killed, str(root), str(acknowledged), total)
        if kills < KILLED_AT:  # some commits later, wherever it is then
            until = len(acknowledged.read_text().splitlines()) + int(rng.integers(1, 10))
            while process.is_alive() and len(acknowledged.read_text().splitlines()) < until:
                time.sleep(0.001)
            time.sleep(float(rng.uniform(0, 0.03)))
            process.kill()
        process.join(PATIENCE)
        kills += process.exitcode == -signal.SIGKILL
        there = {n for _, n in rows(open_table(root))}
        assert {int(line) for line in acknowledged.read_text().splitlines()} <= there
        if process.exitcode == 0:
            break
    table = open_table(root)
    assert kills > 0
    assert rows(table) == expected(range(total))
    kinds = [s.commit_identifier for s in table.context.snapshots.snapshots() if s.commit_kind is CommitKind.APPEND]
    assert kinds == list(range(total))
    table.remove_orphan_files(older_than=at_ms(NOW))
    assert rows(open_table(root)) == expected(range(total))
