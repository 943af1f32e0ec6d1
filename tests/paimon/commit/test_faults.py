"""Commits on a file system that fails, or under a process that dies, at every single operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.base.ambient import ManualClock, SeededIds
from forebay.base.errors import (
    Conflict,
    ForebayError,
    NotFound,
    OutcomeUnknown,
    StorageFailure,
    UnsupportedOperation,
)
from forebay.paimon.commit.committer import Committable, FileStoreCommit
from forebay.paimon.format.snapshot_json import format_snapshot
from forebay.paimon.store.lock import CommitLock
from forebay.paimon.store.schemas import SchemaManager
from tests.every_run import every_run
from tests.paimon.commit.tables import FAST, Table, append, compact, data_file
from tests.paimon.failing import FailingFileIO, SimulatedCrash

SEEDS = every_run(range(40), lambda seed: seed < 10)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "t", options={"manifest.merge-min-count": "3"})


def _work(commit: FileStoreCommit, i: int) -> list[Committable]:
    return [Committable(i, (append(f"f{i}"),))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_that_repeats_after_random_failures_commits_everything_once(table: Table, seed: int) -> None:
    io = FailingFileIO(FAST, seed=seed, rate=0.03)
    clock, ids = ManualClock(), SeededIds(seed)
    for i in range(12):
        for _ in range(200):
            try:
                table.commit("stream", io, clock, ids).filter_and_commit(_work(table.commit(), i))
                break
            except ForebayError:
                continue
        else:
            pytest.fail(f"commit {i} did not get through")
    assert io.failures > 0
    assert table.files() == sorted(f"f{i}" for i in range(12))
    assert [s.commit_identifier for s in table.snapshots.snapshots()] == list(range(12))
    table.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_failed_commit_says_is_true(table: Table, seed: int) -> None:
    """`Conflict`, or a failure of a known outcome: nothing was committed. Success: it was."""
    io = FailingFileIO(FAST, seed=seed, rate=0.05)
    commit = table.commit("u", io, ManualClock(), SeededIds(seed))
    committed, unknown = set(), set()
    for i in range(30):
        try:
            commit.commit([append(f"f{i}")])
            committed.add(f"f{i}")
        except OutcomeUnknown:
            unknown.add(f"f{i}")
        except StorageFailure:
            continue
    there = set(table.files())
    assert committed <= there
    assert there <= committed | unknown
    table.check()


def _count_operations(table: Table, act: Callable[[FileStoreCommit], object]) -> int:
    io = FailingFileIO(FAST)
    act(table.commit("u", io))
    return io.count


def _acts() -> dict[str, Callable[[FileStoreCommit], object]]:
    return {
        "append": lambda c: c.commit([append("new")], identifier=7),
        "append and compact": lambda c: c.commit(
            [append("new"), compact([data_file("f0")], [data_file("big", level=5)])], identifier=7
        ),
        "overwrite": lambda c: c.overwrite([append("new")], identifier=7),
        "merge manifests": lambda c: c.compact_manifests(),
    }


@pytest.mark.parametrize("act", _acts())
def test_a_commit_that_fails_leaves_no_manifest(tmp_path: Path, act: str) -> None:
    def prepared(name: str) -> Table:
        table = Table.create(tmp_path / name, options={"manifest.merge-min-count": "3"})
        for i in range(4):
            table.commit().commit([append(f"f{i}")])
        return table

    failed = 0
    for number in range(_count_operations(prepared("counted"), _acts()[act])):
        table = prepared(f"failing{number}")
        io = FailingFileIO(FAST, fail_number=number, operations=frozenset())
        try:
            _acts()[act](table.commit("u", io))
        except OutcomeUnknown:
            continue
        except StorageFailure:
            failed += 1
            assert table.manifest_files() == table.referenced_manifests(), f"operation {number} failed"
    assert failed > 5


@pytest.mark.parametrize("act", _acts())
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.one_in(2)
def test_a_crash_at_any_operation_leaves_the_old_or_a_new_snapshot(tmp_path: Path, act: str, after: bool) -> None:
    def prepared(name: str) -> Table:
        table = Table.create(tmp_path / name, options={"manifest.merge-min-count": "3"})
        commit = table.commit()
        for i in range(4):
            commit.commit([append(f"f{i}")])
        return table

    work = _acts()[act]
    reference = prepared("reference")
    states = [reference.files()]
    operations = _count_operations(reference, work)
    states += [reference.files(i) for i in range(5, (reference.snapshots.latest_id() or 0) + 1)]
    seen = set()
    for number in range(operations):
        table = prepared(f"crash-{number}")
        io = FailingFileIO(FAST, crash_at=number, crash_after=after)
        with pytest.raises(SimulatedCrash):
            work(table.commit("u", io))
        files = table.files()
        assert files in states, f"crash at operation {number}"
        seen.add(states.index(files))
        table.check()
        table.commit("next").commit([append("next")])
        assert table.files() == sorted([*files, "next"])
        table.check()
    assert 0 in seen
    assert states.index(states[-1]) in seen, "a crash after the last write comes too late to prevent the commit"


def test_a_lost_response_is_recognised_as_our_own_success(table: Table) -> None:
    io = FailingFileIO(FAST)
    io.fail_at("create", "snapshot-1", after=True)
    (made,) = table.commit("u", io, ManualClock()).commit([append("f1")])
    assert (made.id, table.snapshots.ids()) == (1, [1])
    assert table.files() == ["f1"]


def test_a_failed_creation_is_tried_again_with_the_same_snapshot(table: Table) -> None:
    io = FailingFileIO(FAST)
    io.fail_at("create", "snapshot-1", times=3)
    (made,) = table.commit("u", io, ManualClock()).commit([append("f1")])
    assert table.snapshots.latest() == made
    assert table.manifest_files() == table.referenced_manifests()


def test_an_unknown_outcome_deletes_nothing_and_says_so(table: Table) -> None:
    io = FailingFileIO(FAST)
    commit = table.commit("stream", io, ManualClock())
    io.fail_at("create", "snapshot-1", after=True)
    io.fail_at("create", "snapshot-1", times=1000)
    io.fail_at("read", "snapshot-1", times=1000)
    with pytest.raises(OutcomeUnknown, match="unknown"):
        commit.filter_and_commit([Committable(1, (append("f1"),))])
    assert table.files() == ["f1"], "in truth it was committed"
    assert table.commit("stream").filter_and_commit([Committable(1, (append("f1"),))]) == []


def test_a_failure_while_preparing_leaves_no_manifests(table: Table) -> None:
    for number, part in enumerate(("manifest-", "manifest-list-")):
        io = FailingFileIO(FAST)
        io.fail_at("write", part, after=bool(number))
        with pytest.raises(StorageFailure):
            table.commit("u", io).commit([append("f1")])
    assert table.snapshots.latest() is None
    assert table.manifest_files() == set()


def test_who_loses_every_race_gives_up_and_cleans_up(table: Table) -> None:
    other = table.commit("fast")

    class Unlucky(FailingFileIO):
        def create(self, path: str, data: bytes) -> bool:
            other.commit([append(f"x{path.rpartition('-')[2]}")])
            return super().create(path, data)

    slow = Table(table.paths.root, options={**table.schema.options, "commit.max-retries": "3"})
    with pytest.raises(Conflict, match="4 tries"):
        slow.commit("slow", Unlucky(FAST), ManualClock()).commit([append("f1")])
    assert "f1" not in table.files()
    assert table.manifest_files() == table.referenced_manifests()


def test_who_loses_for_too_long_gives_up(table: Table) -> None:
    other = table.commit("fast")

    class Unlucky(FailingFileIO):
        def create(self, path: str, data: bytes) -> bool:
            other.commit([append(f"x{path.rpartition('-')[2]}")])
            return super().create(path, data)

    clock = ManualClock()
    options = {"commit.max-retries": "1000", "commit.timeout": "1 s", "commit.min-retry-wait": "100 ms"}
    slow = Table(table.paths.root, options={**table.schema.options, **options})
    before = clock.monotonic()
    with pytest.raises(Conflict, match=r"gave up committing to .* after \d tries"):
        slow.commit("slow", Unlucky(FAST), clock).commit([append("f1")])
    assert 1 < clock.monotonic() - before < 4
    assert table.manifest_files() == table.referenced_manifests()


def raced_by(other: FileStoreCommit) -> FailingFileIO:
    """Files of which the first is made a moment too late: `other` has committed file "x" just before."""
    races = iter([True])

    class Raced(FailingFileIO):
        def create(self, path: str, data: bytes) -> bool:
            if next(races, False):
                other.commit([append("x")])
            return super().create(path, data)

    return Raced(FAST)


def test_a_lost_race_writes_no_changelog_twice(table: Table) -> None:
    other = table.commit("fast")
    work = append("f1")
    work = replace(work, data=replace(work.data, changelog_files=(data_file("c1"),)))
    (made,) = table.commit("slow", raced_by(other), ManualClock()).commit([work])
    assert (made.id, made.changelog_record_count) == (2, 10)
    assert table.manifest_files() == table.referenced_manifests()


def test_a_manifest_that_is_missing_is_an_error_as_long_as_its_snapshot_is_there(table: Table) -> None:
    (made,) = table.commit().commit([append("f0")])
    FAST.delete(table.paths.manifest(made.delta_manifest_list))
    left = table.manifest_files()
    with pytest.raises(NotFound, match=made.delta_manifest_list):
        table.commit("u", clock=ManualClock()).commit([append("f1")])
    assert table.manifest_files() == left


def test_a_committer_that_slept_while_its_snapshot_id_came_and_went_does_not_commit_into_the_past(
    table: Table,
) -> None:
    other = table.commit("fast")
    other.commit([append("x0")])
    asleep = iter([True])

    class Sleepy(FailingFileIO):
        def create(self, path: str, data: bytes) -> bool:
            if next(asleep, False):
                for i in range(1, 6):
                    other.commit([append(f"x{i}")])
                for old in range(1, 5):
                    table.snapshots.delete(old)
                table.snapshots.write_earliest_hint(5)
            return super().create(path, data)

    (made,) = table.commit("slow", Sleepy(FAST), ManualClock()).commit([append("late")])
    assert made.id == 7
    assert table.snapshots.ids() == [5, 6, 7]
    assert table.files() == ["late", *(f"x{i}" for i in range(6))]


@pytest.mark.parametrize("lost_response", [False, True])
def test_a_committer_that_slept_until_one_later_snapshot_was_left_follows_on_it(
    table: Table, lost_response: bool
) -> None:
    """Its id is free again, and the only later snapshot seems to follow on it."""
    other = table.commit("fast")
    other.commit([append("x0")])
    asleep = iter([True])

    class Sleepy(FailingFileIO):
        def create(self, path: str, data: bytes) -> bool:
            if next(asleep, False):
                other.commit([append("x1")])
                other.commit([append("x2")])
                for old in (1, 2):
                    table.snapshots.delete(old)
                table.snapshots.write_earliest_hint(3)
            return super().create(path, data)

    io = Sleepy(FAST)
    if lost_response:
        io.fail_at("create", "snapshot-2", after=True)
    (made,) = table.commit("slow", io, ManualClock()).commit([append("late")])
    assert made.id == 4
    assert table.snapshots.ids() == [3, 4]
    assert table.files() == ["late", "x0", "x1", "x2"]


def test_a_commit_that_others_followed_on_before_it_expired_is_not_repeated(table: Table) -> None:
    """The answer to the creation is lost; meanwhile a commit follows, and all before that expires."""
    other = table.commit("fast")
    other.commit([append("x0")])

    class Sleepy(FailingFileIO):
        def create(self, path: str, data: bytes) -> bool:
            first = not self.inner.exists(path)
            made = super().create(path, data)
            if first:
                other.commit([append("x1")])
                table.snapshots.delete(1)
                table.snapshots.write_earliest_hint(2)
            return made

    (made,) = table.commit("slow", Sleepy(FAST), ManualClock()).commit([append("late")])
    assert made.id == 2
    assert table.snapshots.ids() == [2, 3]
    assert table.files() == ["late", "x0", "x1"]


def test_a_commit_that_expired_before_its_outcome_was_known_is_not_repeated(table: Table) -> None:
    """As above, but the second try still meets the first one's snapshot, which is gone when it is read back."""
    other = table.commit("fast")
    other.commit([append("x0")])

    class Sleepy(FailingFileIO):
        creations = 0

        def create(self, path: str, data: bytes) -> bool:
            self.creations += 1
            made = super().create(path, data)
            if self.creations == 2:
                other.commit([append("x1")])
                for old in (1, 2):
                    table.snapshots.delete(old)
                table.snapshots.write_earliest_hint(3)
            return made

    io = Sleepy(FAST)
    io.fail_at("create", "snapshot-2", after=True)
    (made,) = table.commit("slow", io, ManualClock()).commit([append("late")])
    assert (made.id, io.creations) == (2, 3)
    assert table.files() == ["late", "x0", "x1"]


class _ThreadLock:
    """A lock that says how often it was held."""

    def __init__(self) -> None:
        self.held = 0

    def hold(self) -> AbstractContextManager[None]:
        @contextmanager
        def holding() -> Iterator[None]:
            self.held += 1
            yield

        return holding()


class _WithoutAtomicCreate(FailingFileIO):
    supports_atomic_create = False  # type: ignore[assignment]


def test_a_store_without_atomic_create_is_written_only_under_a_lock(table: Table) -> None:
    io = _WithoutAtomicCreate(FAST)
    with pytest.raises(UnsupportedOperation, match="catalog with a lock"):
        table.commit("u", io).commit([append("f1")])
    assert table.manifest_files() == set()
    lock = _ThreadLock()
    protocol: CommitLock = lock
    FileStoreCommit(table.context(io), "u", lock=protocol).commit([append("f1")])
    assert (lock.held, table.files()) == (1, ["f1"])


def _recreated(table: Table) -> None:
    FAST.delete_directory(table.paths.root)
    SchemaManager(FAST, table.paths).create(replace(table.schema, time_millis=table.schema.time_millis + 1))


def test_a_commit_that_is_tried_again_does_not_go_into_another_table_of_that_name(table: Table) -> None:
    class Later(ManualClock):
        def sleep(self, seconds: float) -> None:
            _recreated(table)

    io = FailingFileIO(FAST)
    io.fail_at("create", "snapshot-1")
    with pytest.raises(Conflict, match="it was dropped, and perhaps recreated"):
        table.commit("u", io, Later()).commit([append("f1")])
    assert table.snapshots.latest() is None
    assert table.manifest_files() == set()


def test_a_commit_that_waits_for_a_lock_does_not_go_into_another_table_of_that_name(table: Table) -> None:
    class Busy(_ThreadLock):
        def hold(self) -> AbstractContextManager[None]:
            _recreated(table)
            return super().hold()

    with pytest.raises(Conflict, match="it was dropped, and perhaps recreated"):
        FileStoreCommit(table.context(FAST), "u", lock=Busy()).commit([append("f1")])
    assert table.snapshots.latest() is None


def test_a_commit_that_waits_for_a_lock_does_not_build_on_a_snapshot_that_is_rolled_back_meanwhile(
    table: Table,
) -> None:
    other, ours = table.commit("other"), iter([True])
    other.commit([append("x0")])
    other.commit([append("undone")])

    class Busy(_ThreadLock):
        def hold(self) -> AbstractContextManager[None]:
            if next(ours, False):
                table.snapshots.delete(2)
                table.snapshots.write_latest_hint(1)
                table.commit("other").commit([append("x1")])
            return super().hold()

    FileStoreCommit(table.context(FAST, ManualClock()), "u", lock=Busy()).commit([append("late")])
    assert table.files() == ["late", "x0", "x1"]


def test_a_snapshot_of_another_commit_under_our_id_is_not_taken_for_ours(table: Table) -> None:
    other = table.commit("fast")
    (made,) = table.commit("slow", raced_by(other), ManualClock()).commit([append("f1")])
    assert made.id == 2
    assert format_snapshot(made) == FAST.read(table.snapshots.files.path(2))
    assert table.files() == ["f1", "x"]
