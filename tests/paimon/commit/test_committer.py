"""Commits by one committer: the effect of messages, and what is rejected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.base.errors import Conflict, InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata import types
from forebay.paimon.commit.committer import Committable
from forebay.paimon.commit.index_files import combine_index_files
from forebay.paimon.commit.partition_filter import partition_filter
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.commit_message import CommitMessage, CompactIncrement, DataIncrement
from forebay.paimon.format.file_meta import (
    DataFileMeta,
    DeletionVectorMeta,
    FileKind,
    IndexFileMeta,
    IndexManifestEntry,
)
from forebay.paimon.format.schema import DataField, TableSchema
from forebay.paimon.format.snapshot import BATCH_COMMIT_IDENTIFIER, CommitKind, Snapshot
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.store.manifests import ManifestStore
from forebay.paimon.store.schema_changes import SetOption
from forebay.paimon.store.schemas import SchemaManager
from tests.paimon.commit.tables import FAST, ROWS_EACH, SCHEMA, Table, append, compact, data_file, partition


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "t")


def test_new_files_become_one_append_snapshot(table: Table) -> None:
    (made,) = table.commit("ann").commit([append("f1"), append("f2", bucket=1)], watermark=7, properties={"k": "v"})
    assert (made.id, made.commit_kind, made.commit_user) == (1, CommitKind.APPEND, "ann")
    assert (made.total_record_count, made.delta_record_count) == (2 * ROWS_EACH, 2 * ROWS_EACH)
    assert (made.watermark, made.properties, made.commit_identifier) == (7, {"k": "v"}, BATCH_COMMIT_IDENTIFIER)
    assert table.snapshots.latest() == made
    assert table.files() == ["f1", "f2"]
    assert FAST.read(table.paths.snapshot_directory + "/LATEST") == b"1"
    (bare,) = table.commit().commit([append("f3")])
    assert (bare.changelog_manifest_list, bare.changelog_record_count, bare.properties) == (None, None, None)
    assert (bare.index_manifest, bare.statistics) == (None, None)


def test_a_partition_is_not_replaced_by_files_of_two_bucket_counts(table: Table) -> None:
    commit = table.commit()
    (base,) = commit.commit([append("f1")])
    one = append("g1", buckets=2)
    with pytest.raises(Conflict, match="has 2 buckets, and the new files were written for 3"):
        commit.replace_exactly(base, {one.partition}, [one, append("g2", buckets=3)])
    assert table.files() == ["f1"]


def test_compaction_becomes_a_snapshot_of_its_own_after_the_new_rows(table: Table) -> None:
    commit = table.commit()
    commit.commit([append("f1")])
    message = replace(compact([data_file("f1")], [data_file("big", level=5)]), data=append("f2").data)
    kinds = [(s.id, s.commit_kind) for s in commit.commit([message])]
    assert kinds == [(2, CommitKind.APPEND), (3, CommitKind.COMPACT)]
    assert table.files(2) == ["f1", "f2"]
    assert table.files(3) == ["big", "f2"]
    table.check()


def test_the_watermark_never_goes_back(table: Table) -> None:
    commit = table.commit()
    marks = [commit.commit([append(f"f{i}")], watermark=w)[0].watermark for i, w in enumerate([5, 3, None, 9])]
    assert marks == [5, 5, 5, 9]


def test_a_commit_without_changes_makes_a_snapshot_only_if_it_is_asked_to(table: Table) -> None:
    commit = table.commit()
    assert commit.commit([]) == []
    commit.ignore_empty = False
    (made,) = commit.commit([], identifier=3)
    assert (made.commit_identifier, made.delta_record_count) == (3, 0)


def test_changelog_files_are_listed_apart_from_data_files(table: Table) -> None:
    message = CommitMessage(partition(), 0, 2, DataIncrement((data_file("f"),), changelog_files=(data_file("c"),)))
    (made,) = table.commit().commit([message])
    store = ManifestStore(FAST, table.paths, table.schema)
    assert [e.file.file_name for e in store.entries(store.changelog_manifests(made))] == ["c"]
    assert made.changelog_record_count == ROWS_EACH
    assert table.files() == ["f"]
    changes = CommitMessage(partition(), 0, 2, DataIncrement(changelog_files=(data_file("c2"),)))
    (only,) = table.commit().commit([changes])
    assert (only.commit_kind, only.delta_record_count, only.changelog_record_count) == (CommitKind.APPEND, 0, ROWS_EACH)


def test_the_snapshot_names_the_latest_schema(table: Table) -> None:
    commit = table.commit()
    commit.commit([append("f1")])
    SchemaManager(FAST, table.paths).change([SetOption("write-buffer-size", "1 mb")])
    assert [s.schema_id for s in (*table.snapshots.snapshots(), *commit.commit([append("f2")]))] == [0, 1]


def test_a_second_compaction_of_the_same_files_conflicts(table: Table) -> None:
    commit = table.commit()
    commit.commit([append("f1", "f2")])
    commit.commit([compact([data_file("f1"), data_file("f2")], [data_file("big", level=5)])])
    before = table.manifest_files()
    with pytest.raises(Conflict, match=r"1 files to delete are gone already \(f1\)"):
        table.commit("other").commit([compact([data_file("f1")], [data_file("big2", 100, 110, level=5)])])
    assert table.files() == ["big"]
    assert table.manifest_files() == before, "a refused commit leaves no manifests"


@pytest.mark.parametrize(("count", "shown"), [(5, r"\(f0, f1, f2, f3, f4\)"), (6, r"\(f0, f1, f2, f3, f4, \.\.\.\)")])
def test_no_more_than_five_missing_files_are_named(table: Table, count: int, shown: str) -> None:
    table.commit().commit([append("other")])
    gone = compact([data_file(f"f{i}") for i in range(count)], [data_file("big", level=5)])
    with pytest.raises(Conflict, match=f"{count} files to delete are gone already {shown}.*by user user, this commit"):
        table.commit("late").commit([gone])


def test_two_messages_of_a_commit_must_not_compact_the_same_file(table: Table) -> None:
    commit = table.commit()
    commit.commit([append("f1")])
    twice = [compact([data_file("f1")], [data_file(f"big{i}", 100 * i, 100 * i + 9, level=5)]) for i in range(2)]
    with pytest.raises(Conflict, match="file f1 of bucket 0 is deleted twice"):
        commit.commit(twice)
    assert table.files() == ["f1"]


def test_the_lowest_level_of_sorted_runs_must_not_overlap_either(table: Table) -> None:
    commit = table.commit()
    commit.commit([append("f1"), append("f2")])
    commit.commit([compact([data_file("f1")], [data_file("big", level=1)])])
    with pytest.raises(Conflict, match="files big and big2 of level 1, bucket 0 of partition dt=a would overlap"):
        commit.commit([compact([data_file("f2")], [data_file("big2", level=1)])])
    commit.commit([compact([data_file("f2")], [data_file("big2", level=2)])])
    assert table.files() == ["big", "big2"]


def test_key_ranges_of_one_level_must_not_overlap(table: Table) -> None:
    commit = table.commit()
    commit.commit([append("f1"), append("f2")])
    commit.commit([compact([data_file("f1")], [data_file("big", 0, 9, level=5)])])
    commit.commit([append("f3")])
    with pytest.raises(Conflict, match="would overlap in their keys"):
        commit.commit([compact([data_file("f2")], [data_file("big2", 9, 20, level=5)])])
    commit.commit([compact([data_file("f2")], [data_file("big2", 10, 20, level=5)])])
    assert table.files() == ["big", "big2", "f3"]


def test_files_for_another_bucket_count_are_refused_until_the_partition_is_overwritten(table: Table) -> None:
    commit = table.commit()
    commit.commit([append("f1")])
    with pytest.raises(Conflict, match=r"partition dt=a has 2 buckets.*written for 4.*rescale"):
        commit.commit([append("f2", buckets=4)])
    with pytest.raises(Conflict, match="has 2 buckets"):
        commit.commit([append("f2", buckets=4)], check_conflicts=True)
    with pytest.raises(Conflict, match=r"dt=c has 2 buckets.*written for 4"):
        commit.commit([append("h1", dt="c"), append("h2", dt="c", buckets=4)])
    commit.commit([append("g1", dt="b", buckets=4)])
    commit.overwrite([append("f2", buckets=4)])
    commit.commit([append("f3", buckets=4)])
    with pytest.raises(Conflict, match="has 4 buckets"):
        commit.commit([append("f4", buckets=2)])
    assert table.files() == ["f2", "f3", "g1"]


def test_an_emptied_partition_may_get_a_new_bucket_count(table: Table) -> None:
    commit = table.commit()
    commit.commit([append("f1")])
    commit.truncate()
    commit.commit([append("f2", buckets=8)])
    assert table.files() == ["f2"]


def test_deleting_files_makes_the_snapshot_an_overwrite(table: Table) -> None:
    commit = table.commit()
    commit.commit([append("f1", "f2")])
    message = CommitMessage(partition(), 0, 2, DataIncrement((), deleted_files=(data_file("f1"),)))
    assert commit.commit([message])[0].commit_kind is CommitKind.OVERWRITE
    with pytest.raises(Conflict):
        commit.commit([message])
    assert table.files() == ["f2"]


def test_dynamic_overwrite_replaces_the_partitions_that_are_written(table: Table) -> None:
    commit = table.commit()
    commit.commit([append("a1"), append("a2", bucket=1), append("b1", dt="b")])
    (made,) = commit.overwrite([append("a3")])
    assert made.commit_kind is CommitKind.OVERWRITE
    assert table.files() == ["a3", "b1"]
    assert commit.overwrite([]) == []
    table.check()


def test_static_overwrite_replaces_what_the_partition_spec_describes(table: Table) -> None:
    commit = table.commit()
    commit.commit([append("a1"), append("b1", dt="b")])
    with pytest.raises(InvalidRequest, match="not in the partition"):
        commit.overwrite([append("a2")], {"dt": "b"}, dynamic=False)
    commit.overwrite([append("b2", dt="b")], {"dt": "b"}, dynamic=False)
    assert table.files() == ["a1", "b2"]
    commit.overwrite([append("c1", dt="c")], dynamic=False)
    assert table.files() == ["c1"]
    with pytest.raises(InvalidRequest, match="'id' is not a partition key; the partition keys are dt"):
        commit.overwrite([append("c1", dt="c")], {"id": 1}, dynamic=False)


def test_overwriting_with_files_that_do_not_overlap_puts_them_on_the_top_level(table: Table) -> None:
    files = (data_file("x", 0, 4), data_file("y", 5, 9))
    table.commit().overwrite([CommitMessage(partition(), 0, 2, DataIncrement(files)), append("z1", "z2", bucket=1)])
    store = ManifestStore(FAST, table.paths, table.schema)
    latest = table.snapshots.latest()
    assert latest is not None
    assert {e.file.file_name: e.file.level for e in store.live_files(latest)} == {"x": 5, "y": 5, "z1": 0, "z2": 0}


@pytest.mark.parametrize(
    ("files", "options"),
    [
        ((data_file("x", level=1),), {}),
        ((replace(data_file("x"), delete_row_count=1),), {}),
        ((data_file("x"),), {"overwrite-upgrade": "false"}),
    ],
)
def test_files_that_must_be_compacted_stay_on_their_level_when_they_overwrite(
    tmp_path: Path, files: tuple[DataFileMeta, ...], options: dict[str, str]
) -> None:
    table = Table.create(tmp_path / "t", options=options)
    (made,) = table.commit().overwrite([CommitMessage(partition(), 0, 2, DataIncrement(files))])
    store = ManifestStore(FAST, table.paths, table.schema)
    assert [e.file.level for e in store.live_files(made)] == [files[0].level]


def test_changelogs_of_an_overwrite_are_deleted(table: Table) -> None:
    directory = table.paths.bucket_directory(partition(), 0)
    for name in ("f", "c", "d"):
        FAST.write(f"{directory}/{name}", b"x")
    message = CommitMessage(
        partition(), 0, 2, DataIncrement((data_file("f"),), changelog_files=(data_file("c"),)),
        CompactIncrement(changelog_files=(data_file("d"),)),
    )  # fmt: skip
    (made,) = table.commit().overwrite([message])
    assert made.changelog_manifest_list is None
    assert [s.path.rpartition("/")[2] for s in FAST.list(directory)] == ["f"]


def test_a_partition_without_a_value_is_chosen_by_null_or_by_its_name_on_disk(tmp_path: Path) -> None:
    schema = replace(SCHEMA, fields=(DataField(0, "dt", types.string()), *SCHEMA.fields[1:]), primary_keys=())
    null, other = (row_layout(schema.partition_fields).encode_one([value]) for value in (None, "a"))
    for value in (None, "__DEFAULT_PARTITION__"):
        matches = partition_filter(schema, {"dt": value})
        assert matches is not None
        assert (matches(null), matches(other), matches(null)) == (True, False, True)
    numbers = replace(schema, fields=(DataField(0, "dt", types.bigint()), *SCHEMA.fields[1:]))
    seven = row_layout(numbers.partition_fields).encode_one([7])
    for number in (7, "7"):
        chosen = partition_filter(numbers, {"dt": number})
        assert chosen is not None
        assert chosen(seven)
    with pytest.raises(InvalidRequest, match="'dt' is not a partition key; the partition keys are none"):
        partition_filter(replace(schema, partition_keys=()), {"dt": "a"})


def test_partitions_are_dropped_and_tables_truncated(table: Table) -> None:
    commit = table.commit()
    commit.commit([append("a1"), append("b1", dt="b"), append("c1", dt="c")])
    commit.drop_partitions([{"dt": "a"}, {"dt": "c"}])
    assert table.files() == ["b1"]
    for wrong, why in (([{}], "has no values"), ([], "name at least one")):
        with pytest.raises(InvalidRequest, match=why):
            commit.drop_partitions(wrong)
    commit.truncate()
    assert table.files() == []
    table.check()


def test_a_stream_that_replays_commits_commits_nothing_twice(table: Table) -> None:
    work = [Committable(i, (append(f"f{i}"),)) for i in range(1, 4)]
    first = table.commit("stream")
    assert [s.commit_identifier for s in first.filter_and_commit(work[:2])] == [1, 2]
    table.commit("other").commit([append("g")])
    restarted = table.commit("stream")
    assert [s.commit_identifier for s in restarted.filter_and_commit(work)] == [3]
    assert restarted.filter_and_commit(work) == []
    assert table.files() == ["f1", "f2", "f3", "g"]
    for wrong in (work[::-1], [work[0], work[0]]):
        with pytest.raises(InvalidRequest, match="ordered"):
            restarted.filter_and_commit(wrong)


def test_abort_deletes_the_files_of_the_work_but_not_files_that_only_moved_up(table: Table) -> None:
    moved = data_file("old")
    message = CommitMessage(
        partition(),
        0,
        2,
        DataIncrement((data_file("new"),), changelog_files=(data_file("log"),)),
        CompactIncrement((moved, data_file("in")), (moved.upgrade(5), data_file("out", level=5))),
    )
    directory = table.paths.bucket_directory(partition(), 0)
    for name in ("new", "log", "old", "in", "out"):
        FAST.write(f"{directory}/{name}", b"x")
    table.commit().abort([message])
    assert sorted(s.path.rpartition("/")[2] for s in FAST.list(directory)) == ["in", "old"]


def test_a_compaction_that_conflicts_is_dropped_and_its_new_rows_are_committed(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    commit = table.commit()
    gone = compact([data_file("gone")], [data_file("big", level=5)])
    message = replace(gone, data=append("new").data)
    directory = table.paths.bucket_directory(partition(), 0)
    for name in ("new", "big"):
        FAST.write(f"{directory}/{name}", b"x")
    assert [s.commit_kind for s in commit.commit([message])] == [CommitKind.APPEND]
    assert "1 files to delete are gone already (gone)" in caplog.text
    assert table.files() == ["new"]
    commit.abort([message])
    assert [s.path.rpartition("/")[2] for s in FAST.list(directory)] == ["new"]
    with pytest.raises(Conflict, match="are gone already"):
        commit.commit([gone])


def test_a_new_index_file_takes_the_place_of_the_buckets_old_one(table: Table) -> None:
    def indexed(name: str, bucket: int, data: str) -> CommitMessage:
        index = IndexFileMeta("HASH", name, 8, 2)
        return CommitMessage(partition(), bucket, 2, DataIncrement((data_file(data),), new_index_files=(index,)))

    commit = table.commit()
    commit.commit([indexed("i0", 0, "f0"), indexed("i1", 1, "f1")])
    commit.commit([indexed("i2", 0, "f2")])
    (latest,) = commit.commit([append("f3")])
    names = sorted(e.index_file.file_name for e in commit.manifests.read_index(latest.index_manifest))
    assert names == ["i1", "i2"]
    commit.truncate()
    latest_now = table.snapshots.latest()
    assert latest_now is not None
    assert commit.manifests.read_index(latest_now.index_manifest) == []


def test_index_files_of_a_bucket_replace_each_other_and_those_without_are_known_by_name() -> None:
    def entry(name: str, kind: FileKind = FileKind.ADD, index_type: str = "DELETION_VECTORS") -> IndexManifestEntry:
        return IndexManifestEntry(kind, partition(), 0, IndexFileMeta(index_type, name, 8, 2))

    def names(schema: TableSchema, *changed: IndexManifestEntry) -> list[str]:
        before = [entry("v1"), entry("h1", index_type="HASH"), entry("b1", index_type="BTREE")]
        return sorted(e.index_file.file_name for e in combine_index_files(schema, before, changed))

    log = replace(SCHEMA, primary_keys=())
    unaware = log.with_options({"bucket": " -1 "})
    dynamic = SCHEMA.with_options({"bucket": "-1"})
    for schema in (SCHEMA, log, dynamic):
        assert names(schema, entry("v2")) == ["b1", "h1", "v2"]
        assert names(schema, entry("v9", FileKind.DELETE)) == ["b1", "h1"]
    assert names(unaware, entry("v2")) == ["b1", "h1", "v1", "v2"]
    assert names(unaware, entry("v2"), entry("v1", FileKind.DELETE)) == ["b1", "h1", "v2"]
    assert names(unaware, entry("v1"), entry("v1", FileKind.DELETE)) == ["b1", "h1", "v1"]
    with pytest.raises(Conflict, match="the index file v9 is gone already"):
        names(unaware, entry("v9", FileKind.DELETE))
    for schema in (SCHEMA, unaware):
        assert names(schema, entry("h2", index_type="HASH")) == ["b1", "h2", "v1"]
        with pytest.raises(Conflict, match="the index file b1 was added before"):
            names(schema, entry("b1", index_type="BTREE"))


def test_a_deletion_vector_for_a_file_that_is_gone_conflicts(table: Table) -> None:
    def vector(name: str, data: str) -> CommitMessage:
        index = IndexFileMeta("DELETION_VECTORS", name, 40, 1, (DeletionVectorMeta(data, 1, 30, 2),))
        return CommitMessage(partition(), 0, 2, DataIncrement(new_index_files=(index,)))

    commit = table.commit()
    commit.commit([append("f1")])
    assert commit.commit([vector("v1", "f1")])[0].commit_kind is CommitKind.OVERWRITE
    with pytest.raises(Conflict, match="f9, which is gone"):
        commit.commit([vector("v2", "f9")])
    with pytest.raises(Conflict, match="another deletion vector"):
        commit.commit([vector("v2", "f1")])
    (before,) = vector("v1", "f1").data.new_index_files
    new = vector("v2", "f1")
    replaced = replace(new, data=replace(new.data, deleted_index_files=(before,)))
    assert len(commit.commit([replaced])) == 1, "the old vector goes in the same commit"
    with pytest.raises(Conflict, match="the index file v1 is gone already"):
        commit.commit([replaced])


def test_manifests_are_merged_when_there_are_many_and_old_snapshots_stay_readable(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", options={"manifest.merge-min-count": "5"})
    commit = table.commit()
    for i in range(23):
        commit.commit([append(f"f{i:02}")])
        if i % 3 == 2:
            commit.commit([compact([data_file(f"f{i:02}")], [data_file(f"g{i:02}", 100 * i, 100 * i + 9, level=5)])])
    latest = table.snapshots.latest()
    assert latest is not None
    assert len(commit.manifests.data_manifests(latest)) <= 5
    table.check()
    assert len(table.files(4)) == 3
    assert len(table.files()) == 23


def test_an_empty_table_has_nothing_to_compact(table: Table) -> None:
    for after in ([], [data_file("big", level=5)]):
        with pytest.raises(Conflict, match=r"gone already \(f0\)"):
            table.commit().commit([compact([data_file("f0")], after)])
    assert table.snapshots.latest() is None
    assert table.manifest_files() == set()


def test_files_that_are_there_are_committed_once_if_wanted(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", options={"commit.discard-duplicate-files": "true"})
    commit = table.commit()
    commit.commit([append("f0", "f1")])
    commit.commit([append("f1", "f2")])
    assert table.files() == ["f0", "f1", "f2"]
    table.check()
    commit.commit([compact([data_file("f0"), data_file("f1")], [data_file("big", level=5)])])
    assert table.files() == ["big", "f2"]
    with pytest.raises(Conflict, match="gone already"):
        commit.commit([compact([data_file("f9")], [])])


def test_what_may_not_follow_is_not_committed(table: Table) -> None:
    asked: list[int | None] = []

    def may_follow(latest: Snapshot | None) -> None:
        asked.append(None if latest is None else latest.id)
        if latest is not None:
            raise Conflict("a row is there already")

    commit = table.commit()
    assert len(commit.commit_if(may_follow, Committable(0, (append("f0"),)))) == 1
    with pytest.raises(Conflict, match="a row is there already"):
        commit.commit_if(may_follow, Committable(1, (append("f1"),)))
    assert (asked, table.files()) == ([None, 1], ["f0"])
    assert table.manifest_files() == table.referenced_manifests()


def test_an_overwrite_has_its_properties_in_both_snapshots(table: Table) -> None:
    messages = [append("a1"), compact([data_file("a1")], [data_file("a2", level=5)])]
    made = table.commit().overwrite(messages, properties={"why": "test"})
    assert [(s.commit_kind, s.properties) for s in made] == [
        (CommitKind.OVERWRITE, {"why": "test"}), (CommitKind.COMPACT, {"why": "test"})
    ]  # fmt: skip


def test_index_files_of_work_that_is_given_up_go_too(table: Table) -> None:
    new, merged = (IndexFileMeta("HASH", name, 4, 1) for name in ("i1", "i2"))
    message = CommitMessage(
        partition(), 0, 2, DataIncrement(new_index_files=(new,)), CompactIncrement(new_index_files=(merged,))
    )
    paths = [Path(table.paths.index_file(index, partition(), 0)) for index in (new, merged)]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"hash")
    table.commit().abort([message])
    assert [path.exists() for path in paths] == [False, False]


class OvertakenAtTheEnd(LocalFileIO):
    """Just before the first snapshot is created, `act` is done."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__(sync=False)
        self.act: Callable[[], object] | None = act

    def create(self, path: str, data: bytes) -> bool:
        if "snapshot-" in path and self.act is not None:
            act, self.act = self.act, None
            act()
        return super().create(path, data)


@pytest.mark.parametrize("theirs", ["30", "3"])
def test_merged_manifests_of_a_lost_race_are_used_if_they_still_fit_and_deleted_if_not(
    tmp_path: Path, theirs: str
) -> None:
    """We merge the first three manifests; the faster one leaves them, or merges them too."""
    ours = Table.create(tmp_path / "t", options={"manifest.merge-min-count": "3"})
    other = Table(tmp_path / "t", options={"manifest.merge-min-count": theirs})
    for i in range(3):
        ours.commit().commit([append(f"f{i}")])
    io = OvertakenAtTheEnd(lambda: other.commit("other").commit([append("theirs")]))
    (made,) = ours.commit("ours", io).commit([append("ours")])
    assert (made.id, ours.files()) == (5, ["f0", "f1", "f2", "ours", "theirs"])
    assert len(ours.commit().manifests.data_manifests(made)) == 3
    assert ours.manifest_files() == ours.referenced_manifests()
    ours.check()


def test_small_manifests_are_merged_as_soon_as_there_are_enough(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", options={"manifest.merge-min-count": "3"})
    commit = table.commit()
    counts = []
    for i in range(8):
        (made,) = commit.commit([append(f"f{i}")])
        counts.append(len(commit.manifests.data_manifests(made)))
    assert counts == [1, 2, 3, 2, 3, 2, 3, 2], "three become one, and the new one is beside it"


def test_a_snapshot_that_expires_under_a_commit_is_followed_by_the_next(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t")
    table.commit().commit([append("f0")])

    class Overtaken(LocalFileIO):
        """While the first manifest list is read, others commit, and the snapshot that it is of expires."""

        overtaken = False

        def read(self, path: str) -> bytes:
            if "manifest-list" in path and not self.overtaken:
                self.overtaken = True
                table.commit("other").commit([append("theirs")])
                table.snapshots.delete(1)
                raise NotFound(f"there is no file {path}")
            return super().read(path)

    io = Overtaken(sync=False)
    (made,) = table.commit("ours", io).commit([append("ours")])
    assert (io.overtaken, made.id) == (True, 3)
    assert table.files() == ["f0", "ours", "theirs"]


def test_a_full_manifest_merge_leaves_only_live_files(tmp_path: Path) -> None:
    options = {"manifest.full-compaction-threshold-size": "1 b", "manifest.target-file-size": "1 kb"}
    table = Table.create(tmp_path / "t", options=options)
    commit = table.commit()
    commit.commit([append(*(f"f{i}" for i in range(200)))])
    commit.commit([compact([data_file("f7")], [data_file("big", level=5)])])
    commit.commit([append("last")])
    latest = table.snapshots.latest()
    assert latest is not None
    base = commit.manifests.read_list(latest.base_manifest_list)
    assert sum(m.num_deleted_files for m in base) == 0
    assert sum(m.num_added_files for m in base) == 200
    assert len(base) > 1, "manifests are cut at the target size"
    assert len(table.files()) == 201
    table.check()


def test_merging_manifests_on_request_changes_no_data(table: Table) -> None:
    commit = table.commit()
    for i in range(4):
        commit.commit([append(f"f{i}")])
    made = commit.compact_manifests()
    assert made is not None
    assert (made.commit_kind, made.delta_record_count, made.total_record_count) == (CommitKind.COMPACT, 0, 40)
    assert len(commit.manifests.data_manifests(made)) == 1
    assert commit.compact_manifests() is None
    assert table.files() == ["f0", "f1", "f2", "f3"]


def test_a_table_with_a_feature_that_is_not_built_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperation, match=r"row-tracking\.enabled"):
        Table(tmp_path, options={"row-tracking.enabled": "true"}).commit()


@pytest.mark.parametrize("content", [None, b"?"])
def test_statistics_that_cannot_be_read_are_not_inherited(table: Table, content: bytes | None) -> None:
    commit = table.commit()
    commit.commit([append("f1")])
    if content is not None:
        FAST.write(table.paths.statistics("stat-1"), content)
    assert commit.commit_statistics("stat-1").statistics == "stat-1"
    assert commit.commit([append("f2")])[0].statistics is None


def test_statistics_are_inherited_until_the_schema_changes(table: Table) -> None:
    commit = table.commit()
    commit.commit([append("f1")])
    FAST.write(table.paths.statistics("stat-1"), b'{"snapshotId": 1, "schemaId": 0}')
    assert commit.commit_statistics("stat-1").commit_kind is CommitKind.ANALYZE
    assert commit.commit([append("f2")])[0].statistics == "stat-1"
    SchemaManager(FAST, table.paths).change([SetOption("write-buffer-size", "1 mb")])
    assert commit.commit([append("f3")])[0].statistics is None
