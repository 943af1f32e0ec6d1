"""Snapshots, tags, branches and consumers of a table."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import AlreadyExists, CorruptData, InvalidRequest, NotFound, StorageFailure
from forebay.paimon.format.snapshot import CommitKind
from forebay.paimon.io.file_io import FileStatus
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.branches import BranchManager
from forebay.paimon.store.consumers import ConsumerManager
from forebay.paimon.store.paths import DataFileNames, PathFactory
from forebay.paimon.store.schema_changes import UpdateComment
from forebay.paimon.store.schemas import SchemaManager
from forebay.paimon.store.snapshots import SnapshotManager
from forebay.paimon.store.tags import TagManager
from tests.paimon.commit.tables import FAST, Table, append

BASE_MS = 1_000_000


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Six snapshots, ten seconds apart, by two users in turn, with watermarks from the third on."""
    table = Table.create(tmp_path / "t")
    clock = ManualClock(BASE_MS)
    for i in range(1, 7):
        clock.advance(10)
        mark = None if i < 3 else 100 * i
        table.commit(f"user{i % 2}", clock=clock).commit([append(f"f{i}")], watermark=mark)
    return table


def _id(snapshot: object) -> int | None:
    return getattr(snapshot, "id", None)


def test_the_latest_and_the_earliest_are_found_with_right_wrong_and_no_hints(table: Table) -> None:
    snapshots = table.snapshots
    for hint in (b"6", b"3", b"99", b"junk", b"", None):
        path = table.paths.snapshot_directory + "/LATEST"
        FAST.delete(path) if hint is None else FAST.write(path, hint)
        assert snapshots.latest_id() == 6, hint
        assert _id(snapshots.latest()) == 6
    snapshots.delete(1)
    snapshots.delete(2)
    for hint in (b"3", b"1", b"junk"):
        FAST.write(table.paths.snapshot_directory + "/EARLIEST", hint)
        assert snapshots.earliest_id() == 3, hint
    assert [s.id for s in snapshots.snapshots()] == [3, 4, 5, 6]
    with pytest.raises(NotFound, match=r"snapshot 2 .* there are 3 to 6"):
        snapshots.snapshot(2)


def test_an_empty_table_has_no_snapshots(tmp_path: Path) -> None:
    snapshots = Table.create(tmp_path / "t").snapshots
    assert (snapshots.latest_id(), snapshots.latest(), snapshots.earliest_id(), snapshots.ids()) == (
        None,
        None,
        None,
        [],
    )
    assert snapshots.at_or_before(10**15) is None
    assert snapshots.at_watermark(0) is None
    assert snapshots.latest_of_user("u") is None


def test_snapshots_are_found_by_time(table: Table) -> None:
    def at(seconds: int, milliseconds: int = 0) -> int:
        return BASE_MS + 1000 * seconds + milliseconds

    s = table.snapshots
    assert [_id(s.at_or_before(at(t))) for t in (9, 10, 19, 20, 60, 99)] == [None, 1, 1, 2, 6, 6]
    assert [_id(s.before(at(t))) for t in (10, 11, 60, 61)] == [None, 1, 5, 6]
    assert [_id(s.after(at(t))) for t in (0, 10, 11, 60, 61)] == [1, 1, 2, 6, None]


def test_snapshots_are_found_by_watermark_user_and_kind(table: Table) -> None:
    s = table.snapshots
    assert [_id(s.at_watermark(w)) for w in (0, 300, 301, 600, 601)] == [3, 3, 4, 6, None]
    assert [_id(s.latest_of_user(u)) for u in ("user0", "user1", "nobody")] == [6, 5, None]
    assert _id(s.latest_of_user("user1", from_id=6)) is None
    assert _id(s.latest_of_user("user1", from_id=5)) == 5
    assert _id(s.latest_of_kind(CommitKind.APPEND)) == 6
    assert s.latest_of_kind(CommitKind.COMPACT) is None


class Meanwhile(LocalFileIO):
    """Just before the first snapshot is read, `act` is done. Notes which snapshots are read."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__(sync=False)
        self.act: Callable[[], object] | None = act
        self.read_ids: list[int] = []

    def read(self, path: str) -> bytes:
        name = path.rpartition("/")[2]
        if name.startswith("snapshot-"):
            self.read_ids.append(int(name.removeprefix("snapshot-")))
            if self.act is not None:
                act, self.act = self.act, None
                act()
        return super().read(path)


def test_a_users_last_snapshot_is_found_while_the_latest_is_rolled_back(table: Table) -> None:
    io = Meanwhile(lambda: table.snapshots.delete(6))
    assert _id(SnapshotManager(io, table.paths).latest_of_user("user1")) == 5


def test_the_search_for_a_users_snapshot_ends_where_others_have_expired_meanwhile(table: Table) -> None:
    io = Meanwhile(lambda: [table.snapshots.delete(i) for i in range(1, 6)])
    assert SnapshotManager(io, table.paths).latest_of_user("user1") is None
    assert io.read_ids == [6, 5]
    assert SnapshotManager(io, table.paths).latest_of_user("user1") is None
    assert io.read_ids == [6, 5, 6]


def test_where_all_snapshots_have_watermarks_the_earliest_may_be_the_one(table: Table) -> None:
    for i in (1, 2):
        table.snapshots.delete(i)
    assert [_id(table.snapshots.at_watermark(w)) for w in (0, 300, 301)] == [3, 3, 4]


def test_changelogs_may_outlive_their_snapshots(table: Table) -> None:
    s = table.snapshots
    s.write_changelog(s.snapshot(1))
    s.delete(1)
    assert s.changelog(1).id == 1
    assert (s.changelogs.latest(), s.changelogs.earliest()) == (1, 1)


# ---- tags -----------------------------------------------------------------------------------------------------------


def test_tags_keep_snapshots_under_names(table: Table) -> None:
    tags = TagManager(FAST, table.paths)
    two = table.snapshots.snapshot(2)
    tags.create("b", two)
    tags.create("a", two)
    tags.create("old", table.snapshots.snapshot(1))
    with pytest.raises(AlreadyExists):
        tags.create("a", two)
    for name in ("", " ", "../tag/a"):
        for act in (tags.find, tags.tag, tags.delete, lambda name: tags.create(name, two)):
            with pytest.raises(InvalidRequest, match="cannot name a tag"):
                act(name)
    tags.create("a", two, ignore_existing=True)
    assert [(t.name, t.snapshot) for t in tags.tags()][1:] == [("a", two), ("b", two)]
    assert [s.id for s in tags.tagged_snapshots()] == [1, 2]
    tags.replace("a", table.snapshots.snapshot(3))
    tags.rename("a", "c")
    with pytest.raises(AlreadyExists):
        tags.rename("c", "b")
    with pytest.raises(NotFound, match="tags are b, c, old"):
        tags.tag("a")
    assert tags.tag("c").snapshot.id == 3
    assert tags.delete("c") is not None
    assert tags.delete("c") is None
    for name in ("", " ", "a/b"):
        with pytest.raises(InvalidRequest):
            tags.create(name, two)


def test_tags_expire_after_their_time(table: Table) -> None:
    clock = ManualClock()
    tags = TagManager(FAST, table.paths, clock)
    tags.create("short", table.snapshots.snapshot(1), retained_ms=60_000)
    tags.create("forever", table.snapshots.snapshot(1))
    assert tags.tag("short").retained == datetime.timedelta(minutes=1)
    assert tags.expired() == []
    clock.advance(60)
    assert tags.expired() == []
    clock.advance(1)
    assert [t.name for t in tags.expired()] == ["short"]


def test_times_in_tags_are_read_in_all_forms_that_are_written(table: Table) -> None:
    tags = TagManager(FAST, table.paths)
    tags.create("t", table.snapshots.snapshot(1))
    node = json.loads(FAST.read(table.paths.tag("t")))
    for created, retained, expected in (
        ([2024, 1, 2, 3, 4], 86400.0, (datetime.datetime(2024, 1, 2, 3, 4), datetime.timedelta(days=1))),
        (
            [2024, 1, 2, 3, 4, 5, 6000],
            1.5,
            (datetime.datetime(2024, 1, 2, 3, 4, 5, 6), datetime.timedelta(seconds=1.5)),
        ),
        ("2024-01-02T03:04:05", "PT1H30M", (datetime.datetime(2024, 1, 2, 3, 4, 5), datetime.timedelta(minutes=90))),
    ):
        FAST.write(
            table.paths.tag("t"), json.dumps({**node, "tagCreateTime": created, "tagTimeRetained": retained}).encode()
        )
        tag = tags.tag("t")
        assert (tag.created, tag.retained) == expected
    FAST.write(table.paths.tag("t"), b"{}")
    with pytest.raises(CorruptData, match="tag 't'"):
        tags.tag("t")


# ---- branches -------------------------------------------------------------------------------------------------------


def _on(table: Table, branch: str) -> Table:
    other = Table(table.paths.root)
    other.paths = table.paths.on_branch(branch)
    other.snapshots = SnapshotManager(FAST, other.paths)
    return other


def test_a_branch_is_written_apart_and_becomes_main_by_fast_forward(table: Table) -> None:
    branches = BranchManager(FAST, table.paths)
    tags = TagManager(FAST, table.paths)
    tags.create("t3", table.snapshots.snapshot(3))
    tags.create("t5", table.snapshots.snapshot(5))
    branches.create("dev", "t3")
    dev = _on(table, "dev")
    dev.commit().commit([append("d1")])
    SchemaManager(FAST, dev.paths).change([UpdateComment("dev")])
    dev.commit().commit([append("d2")])
    assert dev.files() == ["d1", "d2", "f1", "f2", "f3"]
    assert table.files() == [f"f{i}" for i in range(1, 7)]

    branches.fast_forward("dev")
    assert FAST.read(table.paths.snapshot_directory + "/LATEST") == b"5"
    assert table.snapshots.ids() == [1, 2, 3, 4, 5], "main's 6 is gone: it was not in the branch"
    assert table.snapshots.latest_id() == 5
    assert table.files() == ["d1", "d2", "f1", "f2", "f3"]
    assert tags.names() == ["t3"], "a tag of a dropped snapshot went with it"
    assert SchemaManager(FAST, table.paths).latest().comment == "dev"
    table.commit().commit([append("m1")])
    assert table.files() == ["d1", "d2", "f1", "f2", "f3", "m1"]
    table.check()


def test_a_branch_without_a_tag_is_empty(table: Table) -> None:
    branches = BranchManager(FAST, table.paths)
    branches.create("dev")
    branches.create("dev", ignore_existing=True)
    dev = _on(table, "dev")
    assert dev.snapshots.latest() is None
    with pytest.raises(InvalidRequest, match="no snapshots"):
        branches.fast_forward("dev")
    (made,) = dev.commit().commit([append("d1")])
    assert made.id == 1
    assert dev.files() == ["d1"]


def test_branches_are_listed_renamed_and_dropped(table: Table) -> None:
    branches = BranchManager(FAST, table.paths)
    for name in ("b", "a"):
        branches.create(name)
    assert branches.names() == ["a", "b"]
    with pytest.raises(AlreadyExists):
        branches.create("a")
    branches.rename("a", "c")
    branches.drop("b")
    assert branches.names() == ["c"]
    with pytest.raises(NotFound, match="branches are c"):
        branches.drop("b")
    for name in ("main", "12", "a/b", " "):
        with pytest.raises(InvalidRequest, match="cannot name a branch"):
            branches.create(name)
    with pytest.raises(NotFound):
        branches.create("d", "no such tag")


# ---- consumers ------------------------------------------------------------------------------------------------------


def test_consumers_remember_how_far_they_are(table: Table) -> None:
    consumers = ConsumerManager(FAST, table.paths)
    assert consumers.least_next_snapshot() is None
    consumers.record("a", 5)
    consumers.record("b", 3)
    consumers.record("a", 6)
    assert consumers.all() == {"a": 6, "b": 3}
    assert consumers.least_next_snapshot() == 3
    assert (consumers.next_snapshot("a"), consumers.next_snapshot("c")) == (6, None)
    assert consumers.expire(before_ms=1000) == []
    assert consumers.expire(before_ms=10**15) == ["a", "b"]
    assert consumers.delete("a") is False
    FAST.write(table.paths.consumer("x"), b"?")
    with pytest.raises(CorruptData, match="consumer 'x'"):
        consumers.next_snapshot("x")


def test_a_consumer_is_forgotten_only_if_it_is_known_to_be_old(table: Table) -> None:
    class Timeless(LocalFileIO):
        def list(self, path: str) -> list[FileStatus]:
            return [replace(status, modified_ms=None) for status in super().list(path)]

    consumers = ConsumerManager(FAST, table.paths)
    consumers.record("a", 5)
    FAST.write(table.paths.consumer_directory + "/README", b"mine")
    os.utime(table.paths.consumer("a"), (1_000, 1_000))
    assert ConsumerManager(Timeless(sync=False), table.paths).expire(before_ms=10**15) == []
    assert consumers.expire(before_ms=1_000_000) == []
    assert consumers.expire(before_ms=1_000_001) == ["a"]
    for name in ("", " ", "../b", "a/b"):
        for act in (consumers.next_snapshot, consumers.delete, lambda name: consumers.record(name, 1)):
            with pytest.raises(InvalidRequest, match="cannot name a consumer"):
                act(name)


def test_files_of_others_are_no_snapshots_tags_or_branches(table: Table) -> None:
    for name in ("snapshot-x", "snapshot-7.tmp", "other-9", ".snapshot-8.tmp"):
        FAST.write(f"{table.paths.snapshot_directory}/{name}", b"{}")
    FAST.write(f"{table.paths.tag_directory}/mine", b"{}")
    for name in ("branch-file", "other/schema/schema-0"):
        FAST.write(f"{table.paths.branches_directory}/{name}", b"{}")
    for name in ("schema-x", "mine-9"):
        FAST.write(f"{table.paths.schema_directory}/{name}", b"{}")
    assert table.snapshots.ids() == [1, 2, 3, 4, 5, 6]
    assert TagManager(FAST, table.paths).names() == []
    assert BranchManager(FAST, table.paths).names() == []
    assert SchemaManager(FAST, table.paths).ids() == [0]


def test_snapshots_that_hints_name_are_found_without_a_listing(table: Table) -> None:
    class Unlistable(LocalFileIO):
        def list(self, path: str) -> list[FileStatus]:
            raise StorageFailure(f"{path} is too long to list")

    table.snapshots.write_earliest_hint(1)
    snapshots = SnapshotManager(Unlistable(sync=False), table.paths)
    for hint in (6, 4):
        table.snapshots.write_latest_hint(hint)
        assert (snapshots.earliest_id(), snapshots.latest_id()) == (1, 6)
    table.snapshots.files.delete_hint("LATEST")
    with pytest.raises(StorageFailure, match="too long to list"):
        snapshots.latest_id()


def test_a_hint_far_behind_is_not_followed_file_by_file(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t")
    table.commit().commit([append("f1")])
    first = FAST.read(table.paths.snapshot(1))
    for i in range(2, 71):
        FAST.write(table.paths.snapshot(i), first)
    FAST.write(table.paths.snapshot_directory + "/LATEST", b"1")
    assert table.snapshots.latest_id() == 70


def test_snapshots_that_go_while_all_are_read_are_left_out(table: Table) -> None:
    io = Meanwhile(lambda: [table.snapshots.delete(i) for i in (1, 2)])
    assert [s.id for s in SnapshotManager(io, table.paths).snapshots()] == [3, 4, 5, 6]
    table.snapshots.write_earliest_hint(3)
    io = Meanwhile(lambda: table.snapshots.delete(6))
    assert _id(SnapshotManager(io, table.paths).latest_of_kind(CommitKind.APPEND)) == 5
    io = Meanwhile(lambda: table.snapshots.delete(5))
    assert _id(SnapshotManager(io, table.paths).latest()) == 4


def test_a_renamed_or_replaced_branch_must_not_take_the_place_of_another(table: Table) -> None:
    branches = BranchManager(FAST, table.paths)
    for name in ("a", "b"):
        branches.create(name)
    with pytest.raises(AlreadyExists, match="'b'"):
        branches.rename("a", "b")
    with pytest.raises(InvalidRequest, match="cannot name a branch"):
        branches.rename("a", "main")
    for act in (branches.drop, branches.fast_forward, lambda name: branches.rename(name, "c")):
        with pytest.raises(NotFound, match="there is no branch 'main'; branches are a, b"):
            act("main")


@pytest.mark.parametrize(
    ("options", "data", "changelog"),
    [
        ({}, ".parquet", ".parquet"),
        ({"file.compression": "snappy"}, ".parquet", ".parquet"),
        (
            {"file.suffix.include.compression": "true", "file.compression": "snappy"},
            ".snappy.parquet",
            ".snappy.parquet",
        ),
        ({"file.suffix.include.compression": "true", "file.compression": "none"}, ".parquet", ".parquet"),
        ({"file.format": "csv", "file.compression": "gzip"}, ".csv.gz", ".csv.gz"),
        ({"file.format": "csv", "file.compression": "none"}, ".csv", ".csv"),
        ({"changelog-file.format": "json", "changelog-file.compression": "zstd"}, ".parquet", ".json.zst"),
    ],
)
def test_names_of_files_tell_format_and_compression(options: dict[str, str], data: str, changelog: str) -> None:
    names = DataFileNames(CoreOptions(options), "uuid")
    assert (names.data(), names.changelog()) == (f"data-uuid-0{data}", f"changelog-uuid-1{changelog}")


def test_paths_of_names_are_unique_and_external_files_stay_where_they_are(table: Table) -> None:
    names = PathFactory.of("/t", table.schema).data_file_names()
    made = [names.data(), names.data(), names.changelog()]
    assert len({name.partition("-")[2] for name in made}) == 3
    assert made[2].startswith("changelog-")
    assert made[0].endswith("-0.parquet")
    entry = table.commit().manifests.live_files(table.snapshots.snapshot(1))[0]
    outside = replace(entry.file, external_path="s3://b/f")
    assert table.paths.data_file(entry.partition, entry.bucket, outside) == "s3://b/f"
