"""The known lake snapshots: prepared, committed, kept, dropped, and found again after a restart."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from forebay.base.ambient import ManualClock, SeededIds
from forebay.base.errors import Conflict, CorruptData, ErrorCode, InvalidRequest, NotFound, StorageFailure
from forebay.fs.interface import FileSystem
from forebay.fs.local import LocalFileSystem
from forebay.lake.offsets import BucketOffsets
from forebay.lake.tiering import KEEP_ALL_PREVIOUS
from forebay.metadata.table import Column, Schema, TableBucket, TableDescriptor, TableInfo, TablePath
from forebay.metadata.types import int_
from forebay.server.lake import lake_snapshots
from forebay.server.lake.lake_snapshots import LakeSnapshotCommit, LakeSnapshots
from forebay.server.metadata_store import LocalDatabaseFile, MetadataStore
from tests.fs.faults import FaultEffect
from tests.fs.faulty_fs import FaultyFileSystem

TABLE = 7
INFO = TableInfo(TablePath("db", "t"), TABLE, 1, TableDescriptor(Schema((Column("a", int_()),)), bucket_count=2))


def at(*offsets: int) -> dict[TableBucket, int]:
    """Offsets of buckets 0, 1, ...; -1 leaves one out."""
    return {TableBucket(TABLE, bucket): offset for bucket, offset in enumerate(offsets) if offset >= 0}


class Lake:
    """Snapshots on a data directory, which may be opened again, also at another place."""

    def __init__(self, directory: Path, fs: FileSystem | None = None) -> None:
        self.clock = ManualClock()
        self.ids = SeededIds(1)
        self.fs = fs or LocalFileSystem()
        self.open(directory)

    def open(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.store = MetadataStore(LocalDatabaseFile(str(directory / "metadata.sqlite")))
        self.told: list[str] = []
        self.snapshots = LakeSnapshots(
            self.fs, str(directory), self.store, self.clock, self.ids, lambda path, *_: self.told.append(path)
        )

    def prepare(self, *offsets: int, merge: bool = True) -> str:
        return self.snapshots.prepare(INFO, at(*offsets), merge=merge)

    def commit(self, snapshot_id: int, *offsets: int, keep: int | None = None, readable: bool = True) -> str:
        path = self.prepare(*offsets)
        self.commit_paths(snapshot_id, path, path if readable else None, keep)
        return path

    def commit_paths(
        self,
        snapshot_id: int,
        tiered: str,
        readable: str | None = None,
        keep: int | None = None,
        replaces: str | None = None,
    ) -> None:
        self.snapshots.commit(INFO, LakeSnapshotCommit(snapshot_id, tiered, readable, keep, replaces))

    def newest(self) -> tuple[int, Mapping[TableBucket, int]]:
        found = self.snapshots.newest(INFO)
        return found.snapshot_id, found.offsets.offsets

    def known(self) -> list[int]:
        return [snapshot.snapshot_id for snapshot in self.store.lake_snapshots().get(TABLE, ())]

    def files(self) -> set[str]:
        return {str(path) for path in self.directory.rglob("*.offsets")}


@pytest.fixture(autouse=True)
def no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what workers ask for stays known, but where a test is about the history."""
    monkeypatch.setattr(lake_snapshots, "HISTORY_KEPT", 0)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(tmp_path / "data")
    yield lake
    lake.store.close()


def test_a_prepared_file_holds_the_offsets_as_fluss_writes_them(lake: Lake) -> None:
    path = lake.prepare(10, -1)
    assert Path(path).is_absolute()
    assert Path(path).read_bytes() == b'{"version":1,"table_id":7,"bucket_offsets":[10]}'
    with pytest.raises(NotFound) as nothing:
        lake.newest()
    assert nothing.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST


@pytest.mark.parametrize("bucket", [-1, 2, 1_000_000_000])
def test_buckets_that_the_table_does_not_have_are_refused(lake: Lake, bucket: int) -> None:
    with pytest.raises(InvalidRequest, match="its buckets are 0 to 1"):
        lake.snapshots.prepare(INFO, {TableBucket(TABLE, bucket): 1})
    assert not lake.files()


def test_buckets_that_a_round_leaves_out_keep_the_offsets_of_the_newest_snapshot(lake: Lake) -> None:
    lake.commit(1, 10, 20)
    lake.commit(2, 15)
    assert lake.newest() == (2, at(15, 20))
    alone = lake.prepare(30, merge=False)
    assert BucketOffsets.from_json(Path(alone).read_bytes()).offsets == at(30)


@pytest.mark.parametrize(
    ("keep", "known"),
    [(None, [4]), (KEEP_ALL_PREVIOUS, [9, 2, 5, 4]), (2, [2, 5, 4]), (5, [5, 4]), (77, [9, 2, 5, 4])],
)
def test_the_earliest_snapshot_to_keep_is_found_by_its_place_not_by_its_number(
    lake: Lake, keep: int | None, known: list[int]
) -> None:
    for offset, snapshot_id in enumerate((9, 2, 5)):
        lake.commit(snapshot_id, offset, keep=KEEP_ALL_PREVIOUS)
    lake.commit(4, 10, keep=keep)
    assert lake.known() == known
    assert len(lake.files()) == len(known)
    assert lake.snapshots.by_id(INFO, known[0])[0] == known[0]


def test_no_more_snapshots_are_known_than_the_limit_and_readers_keep_theirs(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_snapshots, "SNAPSHOTS_MAX", 3)
    lake.commit(1, 10, keep=KEEP_ALL_PREVIOUS)
    for snapshot_id in range(2, 7):
        lake.commit(snapshot_id, 10 * snapshot_id, readable=False, keep=KEEP_ALL_PREVIOUS)
    assert lake.known() == [1, 5, 6]
    assert lake.snapshots.newest_readable(INFO)[0] == 1
    lake.commit(7, 70, keep=KEEP_ALL_PREVIOUS)
    assert lake.known() == [5, 6, 7]
    assert lake.snapshots.newest_readable(INFO)[0] == 7
    assert len(lake.files()) == 3


def test_rounds_that_never_come_to_their_commit_leave_a_bounded_number_of_files(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_snapshots, "PREPARED_MAX", 3)
    needed = lake.commit(1, 10)
    prepared = [lake.prepare(20 + number) for number in range(10)]
    assert lake.files() == {needed, *prepared[-3:]}
    lake.commit_paths(2, prepared[-1], prepared[-1])
    assert lake.newest() == (2, at(29))
    with pytest.raises(Conflict, match="this worker was overtaken"):
        lake.commit_paths(3, prepared[0], prepared[0])


def test_snapshots_are_known_after_a_restart_and_after_the_directory_has_moved(lake: Lake, tmp_path: Path) -> None:
    lake.commit(1, 10, 20)
    in_the_lake = lake.prepare(11, 21)
    lake.store.close()
    shutil.move(lake.directory, tmp_path / "moved")
    lake.open(tmp_path / "moved")
    assert lake.newest() == (1, at(10, 20))
    assert lake.snapshots.last_rounds_ms() == {TABLE: lake.clock.now_ms()}
    lake.commit_paths(2, in_the_lake)  # what a lake snapshot remembers, and the cluster was never told
    assert lake.newest() == (2, at(11, 21))


def test_which_snapshots_are_readable_is_known_after_a_restart(lake: Lake) -> None:
    lake.commit(1, 10, 20)
    lake.commit(2, 15, 25, keep=KEEP_ALL_PREVIOUS, readable=False)
    before = lake.store.lake_snapshots()
    assert [snapshot.readable is not None for snapshot in before[TABLE]] == [True, False]
    lake.store.close()
    lake.open(lake.directory)
    assert lake.store.lake_snapshots() == before
    assert lake.newest() == (2, at(15, 25))


def test_a_commit_that_is_sent_again_changes_nothing(lake: Lake) -> None:
    lake.commit(1, 10, keep=KEEP_ALL_PREVIOUS)
    path = lake.commit(2, 20, keep=KEEP_ALL_PREVIOUS)
    lake.commit_paths(2, path, path, KEEP_ALL_PREVIOUS)
    assert lake.known() == [1, 2]
    lake.commit_paths(2, path, None)
    assert lake.known() == [2]
    assert lake.files() == {path}
    assert lake.snapshots.newest_readable(INFO)[0] == 2


def test_the_late_commit_of_an_overtaken_worker_is_refused(lake: Lake) -> None:
    late = lake.prepare(10, 15)
    lake.commit(2, 20, 15)
    with pytest.raises(Conflict, match="overtaken") as refused:
        lake.commit_paths(1, late, late)
    assert refused.value.code == ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION
    assert lake.newest() == (2, at(20, 15))
    lacking = lake.prepare(30, merge=False)
    with pytest.raises(Conflict, match="overtaken"):
        lake.commit_paths(3, lacking, lacking)


def test_a_worker_that_was_overtaken_long_ago_is_told_so_although_its_file_is_gone(lake: Lake) -> None:
    late = lake.prepare(10, 15)
    for snapshot_id in range(2, 5):
        lake.commit(snapshot_id, 10 * snapshot_id, 15)
    assert not Path(late).exists()
    with pytest.raises(Conflict, match="overtaken") as refused:
        lake.commit_paths(1, late, late)
    assert refused.value.code == ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION
    assert lake.newest() == (4, at(40, 15))


def test_files_of_rounds_that_never_ended_are_removed_by_the_second_commit_after_them(lake: Lake) -> None:
    abandoned = {lake.prepare(10), lake.prepare(11)}
    first = lake.commit(1, 10)
    assert lake.files() == {*abandoned, first}
    lake.commit_paths(1, first, first)  # the same commit again tells nothing of what came after it
    between = lake.prepare(20)
    assert lake.files() == {*abandoned, first, between}
    second = lake.commit(2, 20)
    assert lake.files() == {between, second}
    lake.store.close()
    lake.open(lake.directory)
    third = lake.commit(3, 30)
    assert lake.files() == {between, third}
    fourth = lake.commit(4, 40)
    assert lake.files() == {fourth}


def test_the_file_of_an_unreported_lake_snapshot_is_kept_for_the_worker_that_finds_it(lake: Lake) -> None:
    lake.commit(1, 10)
    in_the_lake = lake.prepare(20)
    lake.prepare(20)  # of a worker that the lake will refuse
    lake.commit_paths(2, in_the_lake)
    assert lake.newest() == (2, at(20))
    lake.commit(3, 30)
    assert len(lake.files()) == 1


def test_a_snapshot_that_becomes_readable_later_stands_before_the_newest_one(lake: Lake) -> None:
    lake.commit(1, 10, readable=False, keep=KEEP_ALL_PREVIOUS)
    lake.commit(2, 20, readable=False, keep=KEEP_ALL_PREVIOUS)
    with pytest.raises(NotFound, match="no readable lake snapshot"):
        lake.snapshots.newest_readable(INFO)
    tiered, readable = lake.prepare(15), lake.prepare(12)
    lake.commit_paths(3, tiered, readable, KEEP_ALL_PREVIOUS)
    assert lake.known() == [1, 3, 2]
    assert lake.newest() == (2, at(20))
    found = lake.snapshots.newest_readable(INFO)
    assert (found.snapshot_id, found.offsets.offsets) == (3, at(12))


# ---- a lake table that others have rolled back ----------------------------------------------------------------------


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


@pytest.fixture
def with_history(no_history: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_snapshots, "HISTORY_KEPT", 3)


@pytest.mark.usefixtures("with_history")
def test_the_last_snapshots_stay_known_although_no_worker_asks_for_them(lake: Lake) -> None:
    paths = [lake.commit(snapshot_id, 10 * snapshot_id) for snapshot_id in range(1, 7)]
    assert lake.known() == [3, 4, 5, 6]
    assert lake.files() == set(paths[2:])
    found = lake.snapshots.by_id(INFO, 4)
    assert (found.offsets.offsets, found.offsets_name) == (at(40), name_of(paths[3]))


@pytest.mark.usefixtures("with_history")
def test_a_snapshot_from_before_the_newest_one_replaces_it_after_a_rollback(lake: Lake) -> None:
    paths = [lake.commit(snapshot_id, 10 * snapshot_id) for snapshot_id in range(1, 4)]
    lake.commit_paths(2, paths[1], None, replaces=name_of(paths[2]))
    assert lake.known() == [1, 2]
    assert lake.newest() == (2, at(20))
    assert lake.snapshots.newest_readable(INFO).snapshot_id == 2
    assert lake.snapshots.log_needed_from(INFO, TableBucket(TABLE, 0)) == 20
    again = lake.commit(3, 25)  # its number is used again
    assert lake.newest() == (3, at(25))
    assert lake.snapshots.newest(INFO).offsets_name == name_of(again)
    assert not Path(paths[2]).exists()


@pytest.mark.usefixtures("with_history")
def test_a_compaction_that_was_rolled_back_leaves_the_snapshot_with_the_same_offsets(lake: Lake) -> None:
    lake.commit(1, 10)
    path = lake.commit(3, 20)  # what a worker has committed as 2 and compacted as 3
    lake.commit_paths(2, path, None, replaces=name_of(path))
    assert lake.known() == [1, 2]
    assert lake.snapshots.newest_readable(INFO).snapshot_id == 2
    assert lake.newest() == (2, at(20))


@pytest.mark.usefixtures("with_history")
def test_a_round_after_a_rollback_that_died_before_it_was_told_replaces_what_was_undone(lake: Lake) -> None:
    undone = [lake.commit(snapshot_id, 10 * snapshot_id) for snapshot_id in (1, 2, 3)][-1]
    made = lake.prepare(15, merge=False)
    lake.commit_paths(2, made, made, replaces=name_of(undone))
    assert lake.known() == [1, 2]
    assert lake.newest() == (2, at(15))


@pytest.mark.usefixtures("with_history")
def test_a_worker_cannot_replace_a_snapshot_that_is_not_the_newest_one_any_more(lake: Lake) -> None:
    paths = [lake.commit(snapshot_id, 10 * snapshot_id) for snapshot_id in (1, 2, 3)]
    lake.commit(4, 40)
    with pytest.raises(Conflict, match="overtaken") as refused:
        lake.commit_paths(2, paths[1], None, replaces=name_of(paths[2]))
    assert refused.value.code == ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION
    assert lake.newest() == (4, at(40))


@pytest.mark.usefixtures("with_history")
def test_a_replacement_that_is_sent_again_changes_nothing(lake: Lake) -> None:
    paths = [lake.commit(snapshot_id, 10 * snapshot_id) for snapshot_id in (1, 2, 3)]
    for _ in range(2):
        lake.commit_paths(2, paths[1], None, replaces=name_of(paths[2]))
        assert lake.known() == [1, 2]


@pytest.mark.usefixtures("with_history")
def test_a_snapshot_that_is_told_readable_later_keeps_the_name_that_the_lake_has(lake: Lake) -> None:
    first = lake.commit(1, 10, readable=False)
    lake.commit(2, 20, readable=False, keep=KEEP_ALL_PREVIOUS)
    equal = lake.prepare(10, merge=False)
    lake.commit_paths(1, equal, equal, KEEP_ALL_PREVIOUS)
    assert lake.snapshots.newest_readable(INFO).offsets_name == name_of(first)


def test_the_stream_keeps_what_the_lake_does_not_have_readable(lake: Lake) -> None:
    first, second = TableBucket(TABLE, 0), TableBucket(TABLE, 1)
    assert lake.snapshots.log_needed_from(INFO, first) == 0
    lake.commit(1, 10, readable=False, keep=KEEP_ALL_PREVIOUS)
    assert lake.snapshots.log_needed_from(INFO, first) == 0
    lake.commit(2, 20, keep=KEEP_ALL_PREVIOUS)
    assert lake.snapshots.log_needed_from(INFO, first) == 20
    assert lake.snapshots.log_needed_from(INFO, second) == 0
    lake.commit(3, 30, 5, readable=False, keep=KEEP_ALL_PREVIOUS)
    assert lake.snapshots.log_needed_from(INFO, first) == 20


def test_only_files_that_were_prepared_for_the_table_are_taken(lake: Lake, tmp_path: Path) -> None:
    path = Path(lake.prepare(10))
    elsewhere = tmp_path / path.name
    elsewhere.write_bytes(path.read_bytes())
    for wrong in (str(elsewhere), str(path.parent / "x.offsets"), str(path.with_name("0" * 32 + ".offsets")), ""):
        with pytest.raises(InvalidRequest, match="offsets"):
            lake.commit_paths(1, wrong)
    path.write_bytes(path.read_bytes().replace(b'"table_id":7', b'"table_id":8'))
    with pytest.raises(CorruptData, match="those of table 8, not 7"):
        lake.commit_paths(1, str(path))
    assert lake.known() == []


def test_a_file_of_offsets_that_was_changed_is_not_believed(lake: Lake) -> None:
    path = Path(lake.commit(1, 10))
    path.write_bytes(path.read_bytes().replace(b"10", b"99"))
    with pytest.raises(CorruptData, match="checksum"):
        lake.newest()
    with pytest.raises(CorruptData, match="checksum"):
        lake.snapshots.log_needed_from(INFO, TableBucket(TABLE, 0))


@pytest.mark.parametrize("effect", ["before", "after", "partial"])
def test_a_round_that_fails_or_loses_power_at_any_step_leaves_the_snapshot_of_before_or_after(
    tmp_path: Path, effect: FaultEffect
) -> None:
    seen = set()
    for call in range(1, 12):
        fs = FaultyFileSystem(random.Random(call))
        lake = Lake(tmp_path / f"{call}", fs)
        lake.commit(1, 10)
        fs.inject("any", on_call=call, times=1000, effect=effect)
        with contextlib.suppress(StorageFailure):
            lake.commit(2, 20)
        lake.store.close()
        lake.fs = fs.crash()
        lake.open(lake.directory)
        found = lake.newest()
        assert found in ((1, at(10)), (2, at(20)))
        seen.add(found[0])
        lake.commit(3, 30)
        assert lake.newest() == (3, at(30))
        lake.store.close()
    assert seen == {1, 2}


def test_a_prepared_file_survives_the_power_loss_after_the_lake_commit(tmp_path: Path) -> None:
    fs = FaultyFileSystem(random.Random(1))
    lake = Lake(tmp_path / "data", fs)
    path = lake.prepare(10)
    lake.store.close()
    lake.fs = fs.crash()
    lake.open(lake.directory)
    lake.commit_paths(1, path, path)
    assert lake.newest() == (1, at(10))
    lake.store.close()


def test_a_journal_is_told_of_each_file_before_a_snapshot_names_it(lake: Lake) -> None:
    path = lake.prepare(10)
    name = path.removeprefix(f"{lake.directory}/")
    assert lake.told == lake.snapshots.paths() == [name]
    lake.commit_paths(1, path, path)
    assert lake.told == lake.snapshots.paths() == [name]
    other = lake.prepare(20)
    lake.store.close()
    lake.open(lake.directory)  # the process before may have ended between the file and what it told
    assert lake.snapshots.paths() == [name]
    lake.commit_paths(2, other, other)
    assert set(lake.told) == {other.removeprefix(f"{lake.directory}/")}


def test_a_dropped_table_is_forgotten(lake: Lake) -> None:
    lake.commit(1, 10)
    assert lake.snapshots.log_needed_from(INFO, TableBucket(TABLE, 0)) == 10
    lake.snapshots.forget(TABLE)
    with pytest.raises(NotFound):
        lake.newest()
    assert lake.snapshots.log_needed_from(INFO, TableBucket(TABLE, 0)) == 0
    of_tables = ("_snapshots", "_in_lake", "_unclaimed", "_prepared")
    assert [dict(getattr(lake.snapshots, name)) for name in of_tables] == [{}, {}, {}, {}]


def test_a_metadata_file_from_before_lake_snapshots_opens(lake: Lake) -> None:
    lake.store.close()
    with contextlib.closing(sqlite3.connect(lake.directory / "metadata.sqlite")) as connection, connection:
        connection.execute("DROP TABLE lake_snapshots")
    lake.open(lake.directory)
    lake.commit(1, 10)
    assert lake.known() == [1]
