"""Expiry of snapshots, changelogs and tags: what is deleted, what is kept, and the state after a crash.

Each act that deletes crashes at a few of its operations, `PAIMON_KILLS=20` at twenty (`make lake-trials`: 30).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import ForebayError, InvalidRequest, NotFound
from forebay.paimon.maintain.expire import Expired, SnapshotExpiry
from forebay.paimon.store.branches import BranchManager
from forebay.paimon.store.consumers import ConsumerManager
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.tags import Tag, TagManager
from forebay.paimon.table import Table
from tests.every_run import every_run
from tests.paimon.failing import FailingFileIO, SimulatedCrash
from tests.paimon.lake import at_ms, put, stream_of
from tests.paimon.maintain.lakes import FAST, NOW, copied, files_of, make_table, open_table, referenced, rows
from tests.paimon.stream.model import COLUMNS as MODEL_COLUMNS
from tests.paimon.stream.model import compact_fully, drain

CRASHES = os.environ.get("PAIMON_KILLS", "7")


def filled(root: Path, commits: int = 8, **options: str) -> Table:
    """A table whose every third snapshot is a compaction, and which overwrote itself once."""
    table = make_table(root, options)
    for i in range(commits):
        if i % 3 == 2:
            compact_keyed(table)
        elif i == 4:
            table.overwrite([{"id": 100, "v": i}])
        else:
            put(table, [{"id": i % 4, "v": i}, {"id": i + 10, "v": i}])
    return table


def compact_keyed(table: Table) -> None:
    compact_fully(table)


def ids(table: Table) -> list[int]:
    return table.context.snapshots.ids()


def test_as_many_snapshots_as_wanted_stay(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    before = {i: rows(table, as_of=i) for i in ids(table)}
    done = table.expire_snapshots(retain_min=3, retain_max=3)
    assert done.count == 5
    assert done.files.data_files > 0
    assert ids(table) == [6, 7, 8]
    assert {i: rows(open_table(tmp_path / "t"), as_of=i) for i in ids(table)} == {i: before[i] for i in (6, 7, 8)}
    assert files_of(tmp_path / "t") == referenced(tmp_path / "t")
    assert table.context.snapshots.earliest_id() == 6
    assert Path(table.context.paths.snapshot_directory, "EARLIEST").read_text() == "6"


def test_an_expiry_tells_how_far_it_is(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    filled(tmp_path / "t").maintenance().expire_snapshots(3, 3, progress=lambda *at: told.append(at))
    assert told == [(done, 5) for done in range(6)]


def test_what_is_not_there_up_to_the_end_does_not_expire(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    before = files_of(tmp_path / "t")
    expiry = SnapshotExpiry(replace(table.context, io=FAST))
    for earliest, end in ((1, 9), (3, 2), (20, 22)):
        assert expiry.expire_until(earliest, end) == Expired()
    assert files_of(tmp_path / "t") == before


def test_young_snapshots_stay_whatever_their_number(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    table = make_table(tmp_path / "t", {"snapshot.num-retained.min": "1", "snapshot.time-retained": "1 h"}, clock=clock)
    for i in range(5):
        put(table, [{"id": i}])
        clock.advance(1200)  # at the end: 100, 80, 60, 40, 20 minutes old
    assert table.expire_snapshots().count == 1  # 2 took over from 1 more than an hour ago; 3 from 2 just an hour ago
    assert ids(table) == [2, 3, 4, 5]
    clock.advance(36_000)
    assert table.expire_snapshots().count == 3
    assert ids(table) == [5]
    assert table.expire_snapshots().count == 0


def test_numbers_beyond_the_most_go_even_if_young(tmp_path: Path) -> None:
    table = filled(tmp_path / "t", **{"snapshot.num-retained.min": "2", "snapshot.num-retained.max": "5"})
    assert table.expire_snapshots().count == 3
    assert ids(table) == [4, 5, 6, 7, 8]


def test_no_more_go_at_once_than_the_limit(tmp_path: Path) -> None:
    table = filled(tmp_path / "t", **{"snapshot.expire.limit": "2"})
    assert [table.expire_snapshots(1, 1).count for _ in range(5)] == [2, 2, 2, 1, 0]
    assert files_of(tmp_path / "t") == referenced(tmp_path / "t")


def test_the_least_must_not_be_above_the_most(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="at least 1"):
        filled(tmp_path / "t", 1).expire_snapshots(retain_min=0)
    with pytest.raises(InvalidRequest, match=r"at least 5 .* at most 3"):
        open_table(tmp_path / "t").expire_snapshots(retain_min=5, retain_max=3)


def test_a_consumer_keeps_what_it_has_not_read(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    table = filled(tmp_path / "t", **{"consumer.expiration-time": "1 d"})
    table = open_table(tmp_path / "t", clock=clock)
    ConsumerManager(FAST, table.context.paths).record("job", 4)
    clock = ManualClock(_modified(table) + 1000)
    table = open_table(tmp_path / "t", clock=clock)
    table.expire_snapshots(1, 1)
    assert ids(table)[0] == 4
    clock.advance(90_000)  # the consumer was not heard of for a day
    table.expire_snapshots(1, 1)
    assert ids(table) == [8]
    assert ConsumerManager(FAST, table.context.paths).all() == {}


def _modified(table: Table) -> int:
    return max(s.modified_ms or 0 for s in FAST.list(table.context.paths.consumer_directory))


@pytest.mark.parametrize("bucket", ["1", "-1"])
def test_tags_keep_their_files_and_free_them_when_deleted(tmp_path: Path, bucket: str) -> None:
    """With dynamic buckets there are index files, too."""
    root = tmp_path / "t"
    table = filled(root, bucket=bucket)
    before = {i: rows(table, as_of=i) for i in ids(table)}
    for name, i in (("a", 2), ("b", 4), ("c", 4), ("d", 8)):
        table.context.tags.create(name, table.context.snapshots.snapshot(i))
    table.expire_snapshots(1, 1)
    for name, i in (("a", 2), ("b", 4), ("d", 8)):
        assert rows(open_table(root), as_of=name) == before[i]
    assert files_of(root) == referenced(root)
    for name in ("b", "a", "c", "d"):
        table.delete_tag(name)
        for left in table.context.tags.names():
            assert rows(open_table(root), as_of=left) == before[table.context.tags.tag(left).snapshot.id]
        assert files_of(root) == referenced(root)
    assert rows(open_table(root)) == before[8]
    with pytest.raises(NotFound, match="no tag 'a'"):
        table.delete_tag("a")


def test_tags_of_neighbours_keep_what_each_of_them_needs(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = filled(root)
    before = {i: rows(table, as_of=i) for i in ids(table)}
    for i in ids(table)[:-1]:
        table.context.tags.create(f"t{i}", table.context.snapshots.snapshot(i))
    table.expire_snapshots(1, 1)
    for i in range(1, 8):
        assert rows(open_table(root), as_of=f"t{i}") == before[i]
    assert files_of(root) == referenced(root)


def test_what_is_told_of_an_expiry_is_what_went(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = make_table(root, {"bucket": "-1", "changelog-producer": "input"})
    for i in range(6):
        put(table, [{"id": i % 4, "v": i}])
        if i in (1, 3):
            table.analyze(["id"])
    table.overwrite([{"id": 9, "v": 9}])
    table.context.tags.create("t", table.context.snapshots.snapshot(5))

    def gone(before: set[str]) -> tuple[int, int]:
        names = before - files_of(root)
        of = [name.partition("/")[0].partition("-")[0] for name in names]
        return of.count("bucket"), sum(of.count(kind) for kind in ("manifest", "index", "statistics"))

    before = files_of(root)
    done = table.expire_snapshots(1, 1)
    assert (done.files.data_files, done.files.metadata_files) == gone(before)
    before = files_of(root)
    deleted = table.maintenance().delete_tag("t")
    assert (deleted.data_files, deleted.metadata_files) == gone(before)
    assert deleted.metadata_files > 3
    assert files_of(root) == referenced(root)


def test_a_manifest_that_several_expired_snapshots_share_is_deleted_and_counted_once(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = make_table(root, {"bucket": "-1"})
    for i in range(4):
        put(table, [{"id": i, "v": i}])
    before = files_of(root)
    merged = table.with_options({"manifest.full-compaction-threshold-size": "1 b", "manifest.merge-min-count": "1"})
    merged.overwrite([{"id": 9, "v": 9}])
    made = files_of(root) - before
    done = table.expire_snapshots(1, 1)
    gone = before - files_of(root)
    assert sum(name.startswith(("manifest/", "index/")) for name in gone) == done.files.metadata_files > 4
    assert files_of(root) == referenced(root)
    assert made <= files_of(root)


def test_tags_expire_by_their_own_time(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    table = filled(tmp_path / "t")
    table = open_table(tmp_path / "t", clock=clock)
    table.context.tags.create("short", table.context.snapshots.snapshot(1), retained_ms=1000)
    table.context.tags.create("long", table.context.snapshots.snapshot(2), retained_ms=1_000_000)
    table.context.tags.create("ever", table.context.snapshots.snapshot(2))
    clock.advance(2)
    assert table.maintenance().expire_tags() == ["short"]
    clock.advance(2000)
    assert table.maintenance().expire_tags() == ["long"]
    assert table.context.tags.names() == ["ever"]


def test_tags_expire_by_when_they_were_made_if_told_so(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    table = filled(tmp_path / "t")
    table = open_table(tmp_path / "t", clock=clock)
    table.context.tags.create("timed", table.context.snapshots.snapshot(1), retained_ms=10**9)
    clock.advance(10)
    table.context.tags.create("young", table.context.snapshots.snapshot(2), retained_ms=10**9)
    table.context.tags.create("untimed", table.context.snapshots.snapshot(2))  # its file tells when it was made
    upkeep = table.maintenance()
    modified = {s.path.rpartition("/")[2]: s.modified_ms or 0 for s in FAST.list(table.context.paths.tag_directory)}
    made = modified["tag-untimed"]
    assert made < NOW
    assert upkeep.expire_tags(at_ms(made), dry_run=True) == []
    assert upkeep.expire_tags(at_ms(made + 1), dry_run=True) == ["untimed"]
    assert upkeep.expire_tags(at_ms(NOW), dry_run=True) == ["untimed"]
    assert upkeep.expire_tags(at_ms(NOW + 1), dry_run=True) == ["timed", "untimed"]
    assert upkeep.expire_tags(at_ms(NOW + 1)) == ["timed", "untimed"]
    assert table.context.tags.names() == ["young"]
    clock.advance(2 * 10**6)
    assert upkeep.expire_tags(dt.timedelta(0)) == ["young"], "its time is over, and it is old: told once"


def test_a_branch_keeps_its_files_when_its_tag_on_main_is_gone(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = filled(root)
    before = rows(table, as_of=2)
    table.context.tags.create("base", table.context.snapshots.snapshot(2))
    BranchManager(FAST, table.context.paths).create("b", "base")
    table.delete_tag("base")
    table.expire_snapshots(1, 1)
    branch = open_table(root).on_branch("b")
    assert rows(branch) == before
    branch.context.tags.delete("base")
    branch.overwrite([{"id": 7, "v": 7}])
    branch.expire_snapshots(1, 1)
    assert rows(open_table(root).on_branch("b")) == [(7, 7)]
    assert rows(open_table(root)) == rows(open_table(root), as_of=8)


def test_main_keeps_what_it_shares_with_a_branch_that_expires(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = make_table(root)
    put(table, [{"id": 1, "v": 1}])
    table.context.tags.create("base", table.context.snapshots.snapshot(1))
    BranchManager(FAST, table.context.paths).create("b", "base")
    branch = table.on_branch("b")
    branch.context.tags.delete("base")
    branch.overwrite([{"id": 2, "v": 2}])
    branch.expire_snapshots(1, 1)
    assert rows(open_table(root)) == [(1, 1)]


def test_a_reader_of_an_expired_snapshot_is_told_so(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    stream = stream_of(table.with_options({"scan.snapshot-id": "1"}), follow=False)
    state = stream.state()
    stream.poll()
    table.expire_snapshots(1, 1)
    with pytest.raises(NotFound, match="expired"):
        drain(stream)
    with pytest.raises(NotFound, match="there are 8 to 8"):
        table.scan(as_of=1)
    assert state["scan"]["next"] is None


def test_empty_directories_go_if_wanted(tmp_path: Path) -> None:
    root = tmp_path / "t"
    columns = pa.schema([("p", pa.string()), ("id", pa.int64())])
    options = {"snapshot.clean-empty-directories": "true", "bucket": "1"}
    table = make_table(root, options, columns, ("p", "id"), ("p",))
    put(table, [{"p": "a", "id": 1}, {"p": "b", "id": 1}])
    table.new_commit().drop_partitions([{"p": "a"}])
    assert (root / "p=a" / "bucket-0").is_dir()
    table.context.tags.create("last", table.context.snapshots.snapshot(1))
    table.expire_snapshots(1, 1)
    assert (root / "p=a" / "bucket-0").is_dir()
    table.delete_tag("last")
    assert not (root / "p=a").exists()
    assert rows(open_table(root)) == [("b", 1)]


def test_a_file_that_is_written_into_an_empty_directory_is_not_deleted_with_it(tmp_path: Path) -> None:
    root = tmp_path / "t"
    columns = pa.schema([("p", pa.string()), ("id", pa.int64())])
    options = {"snapshot.clean-empty-directories": "true", "bucket": "1"}
    table = make_table(root, options, columns, ("p", "id"), ("p",))
    put(table, [{"p": "a", "id": 1}])
    table.new_commit().drop_partitions([{"p": "a"}])
    written: list[str] = []

    class Meanwhile(FailingFileIO):
        def _run(self, operation: str, path: str, action: Any) -> Any:
            if operation in ("delete_directory", "delete_empty_directory") and not written:
                written.append(path)
                put(open_table(root), [{"p": "a", "id": 2}])
            return super()._run(operation, path, action)

    open_table(root, Meanwhile(FAST)).expire_snapshots(1, 1)
    assert written
    assert rows(open_table(root)) == [("a", 2)]


def test_a_directory_with_other_buckets_stays(tmp_path: Path) -> None:
    root = tmp_path / "t"
    columns = pa.schema([("p", pa.string()), ("id", pa.int64())])
    options = {"snapshot.clean-empty-directories": "true", "bucket": "2"}
    table = make_table(root, options, columns, ("p", "id"), ("p",))
    put(table, [{"p": "a", "id": i} for i in range(8)])
    buckets = sorted(p.name for p in (root / "p=a").iterdir())
    gone = next(e for e in table.context.manifests.live_files(table.context.snapshots.snapshot(1)) if e.bucket == 0)
    path = table.context.paths.data_file(gone.partition, gone.bucket, gone.file)
    table.delete(pq.read_table(path, columns=["p", "id"], partitioning=None).to_pylist())
    table.compact(full=True)
    table.expire_snapshots(1, 1)
    assert (buckets, [p.name for p in (root / "p=a").iterdir()]) == (["bucket-0", "bucket-1"], ["bucket-1"])
    assert len(rows(open_table(root))) == 8 - gone.file.row_count


def test_a_tag_that_is_replaced_while_old_tags_expire_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(tmp_path / "t", 3)
    table.create_tag("daily", 1, "1 s")
    table.context.clock.advance(10)  # type: ignore[attr-defined]
    expired = TagManager.expired

    def replaced(self: TagManager) -> list[Tag]:
        found = expired(self)
        table.context.tags.replace("daily", table.context.snapshots.snapshot(3))
        return found

    monkeypatch.setattr(TagManager, "expired", replaced)
    assert table.maintenance().expire_tags() == []
    assert [tag.snapshot.id for tag in table.context.tags.tags()] == [3]


def test_a_tag_that_is_created_while_expiry_reads_other_branches_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path / "t")
    right = rows(table, as_of=4)

    def others(of: TableContext) -> list[TableContext]:
        table.create_tag("kept", 4)
        return []

    monkeypatch.setattr("forebay.paimon.maintain.expire.other_branches", others)
    table.expire_snapshots(1, 1)
    assert rows(open_table(tmp_path / "t"), as_of="kept") == right


def test_a_snapshot_that_expires_while_it_is_tagged_has_no_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(tmp_path / "t")
    create = TagManager.create

    def too_late(self: TagManager, *given: Any) -> None:
        open_table(tmp_path / "t").expire_snapshots(1, 1)
        create(self, *given)

    monkeypatch.setattr(TagManager, "create", too_late)
    with pytest.raises(NotFound, match=r"snapshot 4 of .* expired while it was tagged"):
        table.create_tag("late", 4)
    assert table.context.tags.names() == []


# -- changelogs -------------------------------------------------------------------------------------------------------

LONG = {"changelog.num-retained.min": "6", "changelog.num-retained.max": "6", "snapshot.num-retained.min": "2"}


@pytest.mark.parametrize("producer", ["none", "input"])
def test_changelogs_outlive_their_snapshots(tmp_path: Path, producer: str) -> None:
    root = tmp_path / "t"
    options = {**LONG, "snapshot.num-retained.max": "2", "changelog-producer": producer}
    table = filled(root, 12, **options)
    all_changes = drain(stream_of(table.with_options({"scan.snapshot-id": "1"}), follow=False))
    late = drain(stream_of(table.with_options({"scan.snapshot-id": "7"}), follow=False))
    assert table.expire_snapshots().count == 10
    assert ids(table) == [11, 12]
    assert table.context.snapshots.changelogs.ids() == list(range(1, 11))
    assert Path(table.context.paths.changelog_directory, "LATEST").read_text() == "10"
    table = open_table(root)
    assert drain(stream_of(table.with_options({"scan.snapshot-id": "1"}), follow=False)) == all_changes
    assert table.maintenance().expire_changelogs().count == 6
    assert table.context.snapshots.changelogs.ids() == [7, 8, 9, 10]
    assert Path(table.context.paths.changelog_directory, "EARLIEST").read_text() == "7"
    table = open_table(root)
    assert drain(stream_of(table.with_options({"scan.snapshot-id": "0"}), follow=False)) == late
    with pytest.raises(NotFound, match=r"snapshot 1 of .* has expired; the earliest is 7"):
        stream_of(table.with_options({"scan.snapshot-id": "1"}), follow=False).poll()
    assert rows(table) == rows(table, as_of=12)


def test_writers_let_changelogs_go_after_their_commits(tmp_path: Path) -> None:
    options = {**LONG, "snapshot.num-retained.max": "2", "changelog-producer": "input", "write-only": "false"}
    table = make_table(tmp_path / "t", options)
    for i in range(12):
        put(table, [{"id": i}])
    assert len(ids(table)) == 2
    kept = [*table.context.snapshots.changelogs.ids(), *ids(table)]
    assert (len(kept), kept[-1]) == (6, table.context.snapshots.latest_id())


def test_changelogs_stay_for_their_time(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    options = {"snapshot.num-retained.min": "1", "snapshot.time-retained": "1 h"}
    options |= {"changelog.num-retained.min": "1", "changelog.time-retained": "2 h", "changelog-producer": "input"}
    table = make_table(tmp_path / "t", options, clock=clock)
    for i in range(10):
        put(table, [{"id": i}])
        clock.advance(1200)
    table.expire_snapshots()
    assert (ids(table), table.context.snapshots.changelogs.ids()) == ([7, 8, 9, 10], [1, 2, 3, 4, 5, 6])
    table.maintenance().expire_changelogs()
    assert table.context.snapshots.changelogs.ids() == [5, 6], "the fifth was made just two hours ago"


@pytest.mark.parametrize("only", [False, True])
def test_a_consumer_may_keep_no_more_than_changelogs(tmp_path: Path, only: bool) -> None:
    options = {**LONG, "changelog-producer": "input", "consumer.changelog-only": str(only).lower()}
    table = filled(tmp_path / "t", **options)
    ConsumerManager(FAST, table.context.paths).record("job", 4)
    table.expire_snapshots(1, 1)
    assert ids(table) == ([8] if only else [4, 5, 6, 7, 8])
    table.maintenance().expire_changelogs(1, 1)
    assert table.context.snapshots.changelogs.ids() == ([4, 5, 6, 7] if only else [3])


@pytest.mark.parametrize("clean", [False, True])
def test_directories_that_held_only_changelogs_go_if_wanted(tmp_path: Path, clean: bool) -> None:
    root = tmp_path / "t"
    columns = pa.schema([("p", pa.string()), ("id", pa.int64())])
    options = {**LONG, "snapshot.num-retained.max": "2", "changelog-producer": "input", "bucket": "1"}
    options["snapshot.clean-empty-directories"] = str(clean).lower()
    table = make_table(root, options, columns, ("p", "id"), ("p",))
    put(table, [{"p": "a", "id": 1}])
    table.new_commit().drop_partitions([{"p": "a"}])
    for i in range(8):
        put(table, [{"p": "b", "id": i}])
    table.expire_snapshots()
    assert (root / "p=a" / "bucket-0").is_dir(), "the changelog of snapshot 1 is there"
    table.maintenance().expire_changelogs()
    assert (root / "p=a").exists() is not clean
    assert (root / "p=b" / "bucket-0").is_dir()


# -- crashes ----------------------------------------------------------------------------------------------------------


def _expire(table: Table) -> object:
    return table.expire_snapshots(2, 2)


def _drop_tag(table: Table) -> object:
    return table.delete_tag("gone")


def _expire_changelogs(table: Table) -> object:
    return table.maintenance().expire_changelogs(retain_min=3, retain_max=3)


def _rollback(table: Table) -> object:
    return table.rollback_to(4)


ACTS: dict[str, Callable[[Table], object]] = {
    "expire snapshots": _expire,
    "delete a tag": _drop_tag,
    "expire changelogs": _expire_changelogs,
    "roll back": _rollback,
}


def _prepared(root: Path, act: str) -> Table:
    options = {"changelog-producer": "input"}
    if act == "expire changelogs":
        options |= {**LONG, "changelog.num-retained.min": "8", "changelog.num-retained.max": "8"}
        options |= {"snapshot.num-retained.max": "2"}
    table = filled(root, 8, **options)
    table.context.tags.create("kept", table.context.snapshots.snapshot(2))
    table.context.tags.create("gone", table.context.snapshots.snapshot(3))
    if act in ("delete a tag", "expire changelogs"):
        table.expire_snapshots(1, 2)
    return table


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.one_in(2)
def test_after_a_crash_anywhere_all_that_is_kept_is_read_and_a_second_run_cleans_up(
    tmp_path: Path, act: str, after: bool
) -> None:
    table = _prepared(tmp_path / "origin", act)
    before = {i: rows(table, as_of=i) for i in ids(table)}
    tagged = rows(table, as_of="kept")
    io = FailingFileIO(FAST)
    done = copied(table, tmp_path / "done")
    ACTS[act](open_table(done, io))
    kept = ids(open_table(done))
    operations = io.count
    assert operations > 10
    step = 1 if CRASHES == "all" else max(1, operations // int(CRASHES))
    for number in range(0, operations, step):
        root = copied(table, tmp_path / f"crash-{number}")
        crashing = FailingFileIO(FAST, crash_at=number, crash_after=after)
        with contextlib.suppress(SimulatedCrash):  # an operation that fails by itself has no "after"
            ACTS[act](open_table(root, crashing))
        for i in kept:
            assert rows(open_table(root), as_of=i) == before[i], f"crash at {number}"
        assert rows(open_table(root), as_of="kept") == tagged
        again = open_table(root)
        if act != "delete a tag" or "gone" in again.context.tags.names():
            ACTS[act](again)
        assert ids(again) == kept
        open_table(root).remove_orphan_files(older_than=at_ms(NOW))
        for i in kept:
            assert rows(open_table(root), as_of=i) == before[i]
        assert rows(open_table(root), as_of="kept") == tagged
        open_table(done).remove_orphan_files(older_than=at_ms(NOW))
        if act == "delete a tag":  # it cannot be repeated; what a manifest still names is no orphan
            assert referenced(root) <= files_of(root)
        else:
            assert files_of(root) == files_of(done), f"crash at {number}"


@pytest.mark.parametrize("seed", every_run(range(10), lambda seed: seed < 3))
def test_deletions_that_fail_leave_orphans_and_nothing_worse(tmp_path: Path, seed: int) -> None:
    table = _prepared(tmp_path / "t", "expire snapshots")
    before = {i: rows(table, as_of=i) for i in ids(table)}
    io = FailingFileIO(FAST, seed=seed, rate=0.3, operations=frozenset({"delete"}))
    with contextlib.suppress(ForebayError):  # any failure is allowed, a wrong result is not
        open_table(tmp_path / "t", io).expire_snapshots(2, 2)
    for i in (7, 8):
        assert rows(open_table(tmp_path / "t"), as_of=i) == before[i]
    table = open_table(tmp_path / "t")
    table.expire_snapshots(2, 2)
    assert referenced(tmp_path / "t") <= files_of(tmp_path / "t")
    # What a manifest names, if only to say that it is deleted, is no orphan: so merge the manifests first.
    table.new_commit().compact_manifests()
    table.delete_tag("kept")
    table.delete_tag("gone")
    table.expire_snapshots(1, 1)
    open_table(tmp_path / "t").remove_orphan_files(older_than=at_ms(NOW))
    assert rows(open_table(tmp_path / "t")) == before[8]
    assert files_of(tmp_path / "t") == referenced(tmp_path / "t")


@pytest.mark.parametrize("seed", every_run(range(8), lambda seed: seed < 2))
def test_random_histories_expire_to_exactly_what_is_referred_to(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    root = tmp_path / "t"
    table = make_table(root, {"changelog-producer": "input", "manifest.merge-min-count": "3"}, MODEL_COLUMNS)
    states: dict[int, list[tuple[object, ...]]] = {}
    for i in range(30):
        match rng.integers(0, 8):
            case 0 if states:
                compact_fully(table)
            case 1:
                table.overwrite([{"id": i}])
            case 2 if states:
                table.context.tags.create(f"t{i}", table.context.snapshots.snapshot(ids(table)[-1]))
            case 3 if table.context.tags.names():
                table.delete_tag(str(rng.choice(table.context.tags.names())))
            case 4 if len(states) > 3:
                table.expire_snapshots(int(rng.integers(1, 4)), 3)
            case _:
                put(table, [{"id": int(k), "v": i} for k in rng.integers(0, 9, 3)])
        latest = table.context.snapshots.latest_id()
        if latest is not None:
            states.setdefault(latest, rows(table))
        fresh = open_table(root)
        for s in ids(fresh):
            assert rows(fresh, as_of=s) == states[s]
        for tag in fresh.context.tags.tags():
            assert rows(fresh, as_of=tag.name) == states[tag.snapshot.id]
        assert files_of(root) == referenced(root)
