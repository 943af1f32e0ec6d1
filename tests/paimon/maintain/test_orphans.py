"""Orphan files: old unreferenced files are deleted, and no others ever."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import ForebayError, InvalidRequest, StorageFailure
from forebay.paimon.io.file_io import FileStatus
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.store.branches import BranchManager
from forebay.paimon.table import Table
from tests.every_run import every_run
from tests.paimon.failing import FailingFileIO, SimulatedCrash
from tests.paimon.lake import at_ms, put
from tests.paimon.maintain.lakes import FAST, NOW, copied, files_of, make_table, open_table, referenced, rows

OLD_S = 1_800_000_000


def lake(root: Path) -> Table:
    """A table with a history, a tag, a branch, an index, statistics, and all files old."""
    table = make_table(root, {"changelog-producer": "input", "bucket": "-1"})
    for i in range(4):
        put(table, [{"id": i, "v": i}])
    table.context.tags.create("two", table.context.snapshots.snapshot(2))
    BranchManager(FAST, table.context.paths).create("b", "two")
    put(table.on_branch("b"), [{"id": 50, "v": 50}])
    table.expire_snapshots(2, 2)
    table.analyze(["id"])
    age(root)
    return table


def age(root: Path) -> None:
    for path in root.rglob("*"):
        os.utime(path, (OLD_S, OLD_S))


def add_orphans(root: Path) -> set[str]:
    """Files of all kinds that nothing refers to."""
    names = {
        "bucket-0/data-lost-0.parquet",
        "bucket-9/data-lost-1.parquet",
        "bucket-0/changelog-lost-0.parquet",
        "bucket-0/.data-half.parquet.tmp",
        "manifest/manifest-lost-0",
        "manifest/manifest-list-lost-1",
        "index/index-lost-0",
        "statistics/stat-lost-0",
        "snapshot/.snapshot-9.tmp",
        "branch/branch-b/snapshot/.snapshot-9.tmp",
    }
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"lost")
        os.utime(root / name, (OLD_S, OLD_S))
    return names


def test_all_orphans_go_and_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = lake(root)
    before = files_of(root)
    orphans = add_orphans(root)
    (root / "README").write_text("mine")
    for folder in ("manifest", "index", "statistics", "bucket-0", "snapshot"):
        (root / folder / "of-others").mkdir()
        os.utime(root / folder / "of-others", (OLD_S, OLD_S))
    dry = table.remove_orphan_files(dry_run=True)
    assert {os.path.relpath(p, root) for p in dry.files} == orphans
    assert dry.bytes == 4 * len(orphans)
    assert files_of(root) == before | orphans | {"README"}
    done = table.remove_orphan_files()
    assert (sorted(done.files), done.dry_run) == (sorted(dry.files), False)
    assert files_of(root) == before | {"README"}
    assert table.remove_orphan_files().files == []
    assert rows(open_table(root)) == [(i, i) for i in range(4)]
    assert rows(open_table(root).on_branch("b")) == [(0, 0), (1, 1), (50, 50)]


def test_young_files_may_belong_to_a_commit_that_is_under_way(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = lake(root)
    (root / "bucket-0" / "data-new-0.parquet").write_bytes(b"x")
    now = ManualClock(int((root / "bucket-0" / "data-new-0.parquet").stat().st_mtime * 1000) + 3_600_000)
    assert open_table(root, clock=now).remove_orphan_files().files == []
    now.advance(86_400)
    assert len(open_table(root, clock=now).remove_orphan_files().files) == 1
    with pytest.raises(InvalidRequest, match="older than now"):
        table.remove_orphan_files(older_than=at_ms(NOW + 1))


def test_files_are_orphans_only_if_their_age_is_known_and_enough(tmp_path: Path) -> None:
    root = tmp_path / "t"
    lake(root)
    add_orphans(root)

    class Timeless(LocalFileIO):
        def list(self, path: str) -> list[FileStatus]:
            return [replace(status, modified_ms=None) for status in super().list(path)]

    assert open_table(root, Timeless(sync=False)).remove_orphan_files().files == []
    assert open_table(root).remove_orphan_files(older_than=at_ms(1000 * OLD_S), dry_run=True).files == []
    assert len(open_table(root).remove_orphan_files(older_than=at_ms(1000 * OLD_S + 1), dry_run=True).files) == 10


def test_the_search_for_orphans_tells_how_far_it_is(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = lake(root)
    add_orphans(root)
    told: list[tuple[int, int]] = []
    table.remove_orphan_files(progress=lambda *at: told.append(at))
    listed = [done for done, total in told if total == 0]
    searched = [at for at in told if at[1] > 0]
    assert listed == list(range(1, len(listed) + 1))
    # What is looked through: three snapshots of main, two of the branch, the tag on either side.
    assert searched == [(done, 7 + len(listed)) for done in range(7 + len(listed))]


def test_partitions_are_searched_to_their_depth(tmp_path: Path) -> None:
    import pyarrow as pa

    root = tmp_path / "t"
    columns = pa.schema([("p", pa.string()), ("q", pa.int32()), ("id", pa.int64())])
    table = make_table(root, None, columns, ("p", "q", "id"), ("p", "q"))
    put(table, [{"p": "a", "q": 1, "id": 1}])
    lost = ["p=a/q=1/bucket-0/data-lost.parquet", "p=z/q=9/bucket-3/data-lost.parquet"]
    elsewhere = ("", "p=a/", "p=a/q=1/r=1/", "other/p=a/", "p=a/other/")
    for name in (*lost, *(f"{folder}bucket-0/data-elsewhere.parquet" for folder in elsewhere)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    age(root)
    assert sorted(os.path.relpath(p, root) for p in table.remove_orphan_files().files) == lost


class ForgetfulIO(LocalFileIO):
    """Listings of one directory come back empty, the first so many times."""

    def __init__(self, directory: str, times: int) -> None:
        super().__init__(sync=False)
        self.directory, self.times = directory, times

    def list(self, path: str) -> list[FileStatus]:
        if path.endswith(self.directory) and self.times > 0:
            self.times -= 1
            return []
        return super().list(path)


@pytest.mark.parametrize(
    ("directory", "times"),
    [
        *((d, 1) for d in ("t/snapshot", "t/tag", "branch", "branch-b/snapshot", "branch-b/schema", "branch-b/tag")),
        *(("t/snapshot", n) for n in (2, 100)),  # the hint LATEST tells what must be listed
        *(("branch-b/snapshot", n) for n in (2, 100)),
    ],
)
def test_listings_that_come_back_empty_cost_no_file(tmp_path: Path, directory: str, times: int) -> None:
    root = tmp_path / "t"
    lake(root)
    kept = files_of(root)
    add_orphans(root)
    with contextlib.suppress(StorageFailure):
        open_table(root, ForgetfulIO(directory, times)).remove_orphan_files()
    assert kept <= files_of(root)


class GappyIO(LocalFileIO):
    """Listings leave out one file."""

    def __init__(self, name: str) -> None:
        super().__init__(sync=False)
        self.name = name

    def list(self, path: str) -> list[FileStatus]:
        return [status for status in super().list(path) if not status.path.endswith(self.name)]


@pytest.mark.parametrize(("missing", "hint"), [(4, None), (5, b"5"), (4, b"junk")])
def test_a_snapshot_that_is_there_and_was_not_listed_ends_the_run(
    tmp_path: Path, missing: int, hint: bytes | None
) -> None:
    root = tmp_path / "t"
    table = lake(root)
    assert table.context.snapshots.ids() == [3, 4, 5]
    if hint is not None:
        (root / "snapshot/LATEST").write_bytes(hint)
    orphans = add_orphans(root)
    with pytest.raises(StorageFailure, match=f"main.*snapshot {missing} is there, but was not listed"):
        open_table(root, GappyIO(f"t/snapshot/snapshot-{missing}")).remove_orphan_files()
    assert orphans <= files_of(root)


def test_a_first_snapshot_that_was_not_listed_ends_the_run(tmp_path: Path) -> None:
    root = tmp_path / "t"
    put(make_table(root), [{"id": 1}])
    (root / "snapshot/LATEST").unlink()
    age(root)
    before = files_of(root)
    with pytest.raises(StorageFailure, match="snapshot 1 is there, but was not listed"):
        open_table(root, ForgetfulIO("t/snapshot", 100)).remove_orphan_files()
    assert files_of(root) == before


@pytest.mark.parametrize("call", [0, 1])
def test_tags_are_listed_twice_and_either_listing_counts(tmp_path: Path, call: int) -> None:
    class Once(LocalFileIO):
        calls = 0

        def list(self, path: str) -> list[FileStatus]:
            if path.endswith("/tag"):
                self.calls += 1
                if self.calls == call + 1:
                    return []
            return super().list(path)

    root = tmp_path / "t"
    table = lake(root)
    BranchManager(FAST, table.context.paths).drop("b")
    open_table(root).remove_orphan_files()
    kept = files_of(root)
    assert open_table(root, Once(sync=False)).remove_orphan_files().files == []
    assert files_of(root) == kept


def test_a_branch_may_begin_with_a_tag_whose_changelog_has_expired(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = lake(root)
    BranchManager(FAST, table.context.paths).create("c", "two")
    before = rows(open_table(root).on_branch("c"))
    age(root)
    assert table.remove_orphan_files().files == []
    assert rows(open_table(root).on_branch("c")) == before


def test_files_that_belong_to_a_data_file_are_no_orphans(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = make_table(root)
    with table.new_write() as writer:
        writer.write([{"id": 1}])
        (message,) = writer.prepare_commit()
    (file,) = message.data.new_files
    named = replace(message.data, new_files=(replace(file, extra_files=("data-1.index",)),))
    (root / "bucket-0/data-1.index").write_bytes(b"index")
    table.new_commit().commit([replace(message, data=named)])
    age(root)
    assert table.remove_orphan_files().files == []


@pytest.mark.parametrize("what", ["list", "manifest", "changelog"])
def test_a_missing_manifest_ends_the_run(tmp_path: Path, what: str) -> None:
    root = tmp_path / "t"
    table = lake(root)
    put(table, [{"id": 7}])
    age(root)
    latest = table.context.snapshots.latest()
    assert latest is not None
    names = {
        "list": latest.delta_manifest_list,
        "manifest": table.context.manifests.delta_manifests(latest)[0].file_name,
        "changelog": str(latest.changelog_manifest_list),
    }
    os.unlink(root / "manifest" / names[what])
    orphans = add_orphans(root)
    with pytest.raises(StorageFailure, match="nothing was deleted"):
        open_table(root).remove_orphan_files()
    assert orphans <= files_of(root)


@pytest.mark.parametrize("of_index", [False, True])
def test_a_missing_manifest_of_a_tag_ends_the_run(tmp_path: Path, of_index: bool) -> None:
    root = tmp_path / "t"
    table = lake(root)
    tagged = table.context.tags.tag("two").snapshot
    assert not table.context.snapshots.exists(tagged.id)
    BranchManager(FAST, table.context.paths).drop("b")
    os.unlink(root / "manifest" / (str(tagged.index_manifest) if of_index else tagged.base_manifest_list))
    orphans = add_orphans(root)
    with pytest.raises(StorageFailure, match="a manifest of tag 'two' is missing"):
        open_table(root).remove_orphan_files()
    assert orphans <= files_of(root)


@pytest.mark.parametrize("seed", every_run(range(15), lambda seed: seed < 5))
def test_failing_operations_cost_no_file(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "t"
    lake(root)
    kept = files_of(root)
    add_orphans(root)
    with contextlib.suppress(ForebayError):
        open_table(root, FailingFileIO(FAST, seed=seed, rate=0.05)).remove_orphan_files()
    assert kept <= files_of(root)


def test_a_crash_anywhere_leaves_all_that_is_needed(tmp_path: Path) -> None:
    origin = lake(tmp_path / "t")
    kept = files_of(tmp_path / "t")
    add_orphans(tmp_path / "t")
    counting = FailingFileIO(FAST)
    opened = open_table(copied(origin, tmp_path / "counted"), counting)
    opened.remove_orphan_files()
    for number in range(0, counting.count, 4):
        root = copied(origin, tmp_path / f"c{number}")
        age(root)
        with pytest.raises(SimulatedCrash):
            open_table(root, FailingFileIO(FAST, crash_at=number)).remove_orphan_files()
        assert kept <= files_of(root)
        open_table(root).remove_orphan_files()
        assert files_of(root) == kept
        assert referenced(root) <= kept


def test_rolled_back_data_is_orphaned(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = lake(root)
    table.rollback_to(3)
    age(root)
    done: Any = open_table(root).remove_orphan_files()
    assert any("/data-" in p for p in done.files)
    assert rows(open_table(root)) == [(i, i) for i in range(3)]
    assert files_of(root) >= referenced(root)


def test_orphans_come_in_the_order_of_their_paths_whatever_the_order_of_a_listing(tmp_path: Path) -> None:
    lake(tmp_path / "t")
    lost = {str(tmp_path / "t" / name) for name in add_orphans(tmp_path / "t")}
    age(tmp_path / "t")

    class Shuffled(LocalFileIO):
        def list(self, path: str) -> list[FileStatus]:
            return sorted(super().list(path), key=lambda status: status.path, reverse=True)

    for dry_run in (True, False):
        io = Shuffled() if dry_run else FAST
        assert open_table(tmp_path / "t", io).remove_orphan_files(dry_run=dry_run).files == sorted(lost)
