"""Compaction of primary-key tables by file: what moves, what is rewritten, what is dropped."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import StorageFailure, UnsupportedOperation
from forebay.metadata import types
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.compact.rewrite import MergeTreeRewriter
from forebay.paimon.compact.tasks import run_task
from forebay.paimon.compact.tree import TreePolicy
from forebay.paimon.compact.universal import CompactUnit
from forebay.paimon.files import reader as reader_module
from forebay.paimon.files.writer import RollingWriter
from forebay.paimon.format.commit_message import DataIncrement
from forebay.paimon.format.file_meta import DataFileMeta, FileSource
from forebay.paimon.format.snapshot import CommitKind
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.merge.spec import MergeSpec
from forebay.paimon.store.schema_changes import AddColumn, RenameColumn
from forebay.paimon.table import Table
from forebay.paimon.write import writers
from tests.paimon.compact.trees import TINY_FILES, changelog
from tests.paimon.failing import FailingFileIO
from tests.paimon.lake import ALL_TYPES, TrackedIO, all_types_rows, altered, live_files, new_catalog, put, rows_of

PLAIN = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def catalog(tmp_path: Path) -> FileSystemCatalog:
    return new_catalog(tmp_path)


def one_bucket(catalog: FileSystemCatalog, **options: str) -> Table:
    settings = {"bucket": "1", "write-only": "true", **options}
    return catalog.create_table("db.t", PLAIN, primary_key=["id"], options=settings)


def write(table: Table, *ids: int, name: str = "n") -> None:
    put(table, [{"id": i, "name": name} for i in ids])


def data_files_on_disk(table: Table) -> set[str]:
    return {p.name for p in Path(table.context.paths.root).rglob("data-*.parquet")}


def test_large_files_that_overlap_nothing_only_move_up(catalog: FileSystemCatalog) -> None:
    table = one_bucket(catalog, **TINY_FILES)
    write(table, 1, 2)
    write(table, 3, 4)
    before = {f.file_name for f in live_files(table)}
    snapshot = table.compact(full=True)
    assert snapshot is not None
    assert snapshot.commit_kind is CommitKind.COMPACT
    assert {f.file_name for f in live_files(table)} == before
    assert [f.level for f in live_files(table)] == [5, 5]
    assert rows_of(table, ["id"]) == [(1,), (2,), (3,), (4,)]
    assert table.compact(full=True) is None


def test_small_files_are_merged_though_they_overlap_nothing(catalog: FileSystemCatalog) -> None:
    table = one_bucket(catalog)
    write(table, 1, 2)
    write(table, 3, 4)
    table.compact(full=True)
    (merged,) = live_files(table)
    assert (merged.level, merged.row_count, merged.file_source) == (5, 4, FileSource.COMPACT)
    assert (merged.min_sequence_number, merged.max_sequence_number) == (0, 3)


def test_a_file_with_deletes_never_moves_to_the_top(catalog: FileSystemCatalog) -> None:
    table = one_bucket(catalog, **TINY_FILES)
    write(table, 1, 2)
    put(table, [{"id": 7, "name": "x"}, {"id": 8, "name": "y"}], kinds=["+I", "-D"])
    table.compact(full=True)
    assert [f.delete_row_count for f in live_files(table)] == [0, 0]
    assert rows_of(table, ["id"]) == [(1,), (2,), (7,)]


@pytest.mark.parametrize("kinds", [["+I", "+I"], ["+I", "-D"], ["-D", "-D"]])
def test_deletes_that_a_writer_did_not_count_are_found_before_a_file_moves_up(
    catalog: FileSystemCatalog, kinds: list[str]
) -> None:
    """pypaimon says of each file that it has none."""
    table = one_bucket(catalog, **TINY_FILES)
    with table.new_write() as writer:
        writer.write([{"id": 7, "name": "x"}, {"id": 8, "name": "y"}], kinds)
        (message,) = writer.prepare_commit()
    files = tuple(replace(f, delete_row_count=0) for f in message.data.new_files)
    table.new_commit().commit([replace(message, data=DataIncrement(files))])
    table.compact(full=True)
    left = [(i,) for i, kind in zip((7, 8), kinds, strict=True) if kind == "+I"]
    assert rows_of(table, ["id"]) == left
    assert sum(f.row_count for f in live_files(table)) == len(left)
    assert ({f.file_name for f in live_files(table)} == {f.file_name for f in files}) is (len(left) == 2)


def test_deletes_stay_while_older_rows_may_lie_below(catalog: FileSystemCatalog) -> None:
    table = one_bucket(catalog)
    write(table, 1, 2, 3)
    table.compact(full=True)
    table.delete([{"id": 1}])
    table.delete([{"id": 2}])
    levels = TreePolicy.of(table.context.options).levels(live_files(table))
    new = tuple(f for f in levels.files if f.level == 0)
    rewriter = MergeTreeRewriter(table.context, live_partition(table), 0)
    done = rewriter.compact(CompactUnit(4, new), levels)
    assert [(f.level, f.delete_row_count) for f in done.compact_after] == [(4, 2)]
    levels.update(done.compact_before, done.compact_after)
    full = rewriter.compact(CompactUnit(5, tuple(levels.files)), levels)
    assert [(f.row_count, f.delete_row_count) for f in full.compact_after] == [(1, 0)]


@pytest.mark.parametrize(
    ("options", "level", "is_moved"),
    [
        ({}, 4, True),  # the newest row is the row, whatever lies below
        ({"merge-engine": "aggregation", "changelog-producer": "none"}, 4, True),  # merged with them by who reads
        ({"merge-engine": "aggregation"}, 4, False),
        ({"sequence.field": "name"}, 4, False),
        ({"merge-engine": "aggregation"}, 5, True),  # there is nothing below
    ],
)
def test_a_new_file_is_rewritten_if_older_rows_are_to_be_merged_into_its_rows(
    catalog: FileSystemCatalog, options: dict[str, str], level: int, is_moved: bool
) -> None:
    table = one_bucket(catalog, **TINY_FILES, **{"changelog-producer": "lookup", **options})
    write(table, 1, 2)
    levels = TreePolicy.of(table.context.options).levels(live_files(table))
    rewriter = MergeTreeRewriter(table.context, live_partition(table), 0)
    done = rewriter.compact(CompactUnit(level, tuple(levels.files)), levels)
    assert [f.level for f in done.compact_after] == [level]
    assert ([f.file_name for f in done.compact_after] == [f.file_name for f in live_files(table)]) is is_moved


def test_a_file_of_a_higher_level_only_moves_up(catalog: FileSystemCatalog) -> None:
    table = one_bucket(catalog, **TINY_FILES, **{"merge-engine": "aggregation", "changelog-producer": "lookup"})
    write(table, 1, 2)
    levels = TreePolicy.of(table.context.options).levels(live_files(table))
    rewriter = MergeTreeRewriter(table.context, live_partition(table), 0)
    first = rewriter.compact(CompactUnit(3, tuple(levels.files)), levels)
    levels.update(first.compact_before, first.compact_after)
    second = rewriter.compact(CompactUnit(4, tuple(levels.files)), levels)
    assert [f.file_name for f in second.compact_after] == [f.file_name for f in first.compact_after]
    assert [f.level for f in second.compact_after] == [4]


def live_partition(table: Table) -> bytes:
    snapshot = table.context.snapshots.latest()
    assert snapshot is not None
    return table.context.manifests.live_files(snapshot)[0].partition


def test_a_bucket_of_nothing_but_deletes_becomes_empty(catalog: FileSystemCatalog) -> None:
    table = one_bucket(catalog)
    write(table, 1)
    table.delete([{"id": 1}])
    table.compact(full=True)
    assert live_files(table) == []
    assert rows_of(table) == []


def test_writers_compact_on_their_own_unless_the_table_is_write_only(catalog: FileSystemCatalog) -> None:
    table = one_bucket(catalog, **{"write-only": "false", "num-sorted-run.compaction-trigger": "3"})
    for i in range(9):
        write(table, 1, i)
    assert len(live_files(table)) < 4
    kinds = [s.commit_kind for s in table.context.snapshots.snapshots()]
    assert CommitKind.COMPACT in kinds
    assert kinds.count(CommitKind.APPEND) == 9
    idle = table.with_options({"write-only": "true"})
    count = len(live_files(table))
    for i in range(9):
        write(idle, i)
    assert len(live_files(table)) == count + 9
    assert rows_of(table, ["id"]) == [(i,) for i in range(9)]


def test_a_stream_writer_continues_from_what_it_compacted(catalog: FileSystemCatalog) -> None:
    table = one_bucket(catalog, **{"write-only": "false", "num-sorted-run.compaction-trigger": "2"})
    with table.new_write() as writer:
        commit = table.new_commit("stream")
        for i in range(12):
            writer.write([{"id": i % 5, "name": f"v{i}"}])
            commit.commit(writer.prepare_commit(), identifier=i)
    assert rows_of(table) == [(0, "v10"), (1, "v11"), (2, "v7"), (3, "v8"), (4, "v9")]
    assert len(live_files(table)) <= 3


def test_a_full_compaction_comes_every_so_many_commits_of_any_writer(catalog: FileSystemCatalog) -> None:
    table = one_bucket(catalog, **{"write-only": "false", "full-compaction.delta-commits": "3"})
    levels = []
    for i in range(7):
        write(table, i)
        levels.append(sorted(f.level for f in live_files(table)))
    assert levels == [[0], [0, 0], [5], [0, 5], [0, 0, 5], [5], [0, 5]]


def test_the_target_file_size_divides_the_output(catalog: FileSystemCatalog) -> None:
    table = one_bucket(catalog, **{"target-file-size": "20 kb"})
    for start in (0, 1):
        ids = list(range(start, 40_000, 2))
        put(table, pa.table({"id": ids, "name": [f"{i * 7919:x}" for i in ids]}))
    table.compact(full=True)
    files = live_files(table)
    assert len(files) > 5
    assert sum(f.row_count for f in files) == 40_000
    assert all(f.file_size < 60_000 for f in files)
    assert table.scan().to_arrow()["id"].to_pylist() == list(range(40_000))


def test_rows_of_old_schemas_are_rewritten_under_the_new_one(catalog: FileSystemCatalog) -> None:
    table = one_bucket(catalog)
    write(table, 1, 2)
    table = altered(table, [RenameColumn(("name",), "title"), AddColumn(("extra",), types.int_())])
    put(table, [{"id": 2, "title": "new", "extra": 5}])
    table.compact(full=True)
    assert rows_of(table) == [(1, "n", None), (2, "new", 5)]
    assert [f.schema_id for f in live_files(table)] == [table.schema.id]


@pytest.mark.parametrize("thin", ["false", "true"])
def test_all_types_survive_compaction(catalog: FileSystemCatalog, thin: str) -> None:
    options = {"bucket": "2", "data-file.thin-mode": thin}
    table = catalog.create_table("db.t", ALL_TYPES, primary_key=["id"], options=options)
    data = all_types_rows()
    put(table, data)
    put(table, data.slice(3, 9))
    table.compact(full=True)
    assert table.scan().to_arrow().sort_by("id").to_pylist() == data.to_pylist()


def test_tasks_travel_to_workers_and_come_back_as_messages(catalog: FileSystemCatalog) -> None:
    columns = pa.schema([("id", pa.int64()), ("dt", pa.string())])
    table = catalog.create_table(
        "db.t", columns, primary_key=["id", "dt"], partition_keys=["dt"], options={"bucket": "2", "write-only": "true"}
    )
    for _ in range(2):
        put(table, [{"id": i, "dt": "ab"[i % 2]} for i in range(20)])
    assert table.plan_compaction() == []
    assert len(table.plan_compaction(full=True)) == 4
    tasks = table.plan_compaction(full=True, partitions=[{"dt": "a"}])
    assert len(tasks) == 2
    messages = [run_task(table.context, pickle.loads(pickle.dumps(task))) for task in tasks]
    made = table.new_commit().commit(pickle.loads(pickle.dumps(messages)))
    assert [s.commit_kind for s in made] == [CommitKind.COMPACT]
    assert len(live_files(table)) == 2 + 4
    assert rows_of(table, ["id"]) == sorted(((i,) for i in range(20)), key=repr)
    assert table.compact(full=True, partitions=[]) is None


def test_a_compaction_that_fails_leaves_no_files(catalog: FileSystemCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = one_bucket(catalog)
    write(table, 1, 2)
    write(table, 2, 3)
    there = data_files_on_disk(table)
    (task,) = table.plan_compaction(full=True)
    real = MergeTreeRewriter.batches

    def broken(self: MergeTreeRewriter, files: list[DataFileMeta], *more: Any) -> Any:
        yield from real(self, files, *more)
        raise StorageFailure("the disk is gone")

    monkeypatch.setattr(MergeTreeRewriter, "batches", broken)
    with pytest.raises(StorageFailure, match="the disk is gone"):
        table.run_compaction(task)
    assert data_files_on_disk(table) == there


@pytest.mark.parametrize("producer", ["none", "full-compaction"])
def test_a_compaction_that_fails_anywhere_leaves_what_was_there(tmp_path: Path, producer: str) -> None:
    """One file moves up as it is, and others are rewritten."""
    table = one_bucket(new_catalog(tmp_path), **TINY_FILES, **{"changelog-producer": producer})
    write(table, 1, 2)
    for _ in range(2):
        write(table, 5, 6)
    write(table, 8, 9)
    (task,) = table.plan_compaction(full=True)
    there = {p.name for p in Path(table.context.paths.bucket_directory(task.partition, 0)).iterdir()}
    for number in range(1000):
        io = FailingFileIO(LocalFileIO(sync=False), fail_number=number, operations=frozenset())
        try:
            message = run_task(replace(table.context, io=io), task)
            break
        except StorageFailure:
            left = {p.name for p in Path(table.context.paths.bucket_directory(task.partition, 0)).iterdir()}
            assert left == there, f"operation {number} failed"
    table.new_commit().commit([message])
    assert rows_of(table, ["id"]) == [(1,), (2,), (5,), (6,), (8,), (9,)]
    assert number >= 5


@pytest.mark.parametrize("options", [{}, {"changelog-producer": "full-compaction"}, {"changelog-producer": "lookup"}])
def test_a_compaction_that_fails_closes_the_files_it_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    io = TrackedIO()
    catalog = FileSystemCatalog(io, str(tmp_path / "lake"))
    catalog.create_database("db")
    table = one_bucket(catalog, **options)
    for start in range(3):
        write(table, *range(start, 9000, 3))

    def failing(*_: Any) -> None:
        assert io.open_inputs > 0
        raise ZeroDivisionError

    monkeypatch.setattr(RollingWriter, "write", failing)
    monkeypatch.setattr(reader_module, "WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr(MergeSpec, "part_bytes", lambda *_: 1)  # parts of 1,024 rows: no file is read at once
    with pytest.raises(ZeroDivisionError) as failure:  # its traceback keeps what was being read
        table.compact(full=True)
    assert failure.value is not None
    assert io.open_inputs == 0


def test_a_write_whose_compaction_fails_leaves_no_files(
    catalog: FileSystemCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = one_bucket(catalog, **{"write-only": "false", "full-compaction.delta-commits": "1"})

    def broken(self: MergeTreeRewriter, unit: object, levels: object) -> Any:
        raise StorageFailure("the disk is gone")

    monkeypatch.setattr(MergeTreeRewriter, "compact", broken)
    with pytest.raises(StorageFailure, match="the disk is gone"):
        write(table, 1)
    assert data_files_on_disk(table) == set()
    assert table.context.snapshots.latest() is None


def test_first_rows_are_seen_once_a_compaction_took_them_up(catalog: FileSystemCatalog) -> None:
    table = one_bucket(catalog, **{"merge-engine": "first-row", "changelog-producer": "lookup"})
    write(table, 1, name="first")
    write(table, 1, 2, name="second")
    assert rows_of(table) == []
    table.compact()
    assert rows_of(table) == [(1, "first"), (2, "second")]
    write(table, 2, 3, name="third")
    table.compact()
    assert rows_of(table) == [(1, "first"), (2, "second"), (3, "third")]
    assert sorted((kind, row["id"]) for kind, row in changelog(table)) == [(0, 1), (0, 2), (0, 3)]


def test_an_overwrite_of_first_rows_is_seen_at_once(catalog: FileSystemCatalog) -> None:
    table = one_bucket(catalog, **{"merge-engine": "first-row", "write-only": "false"})
    write(table, 1, 2)
    table.overwrite([{"id": 9, "name": "z"}])
    assert rows_of(table) == [(9, "z")]


def test_a_table_with_a_primary_key_cannot_be_sorted_otherwise(catalog: FileSystemCatalog) -> None:
    table = one_bucket(catalog)
    write(table, 1)
    with pytest.raises(UnsupportedOperation, match="only append tables without buckets"):
        table.compact(order_by=["id"])


def test_rows_of_kinds_that_the_table_ignores_are_not_even_written(catalog: FileSystemCatalog) -> None:
    table = one_bucket(catalog, **{"merge-engine": "first-row", "ignore-delete": "true", "write-only": "false"})
    put(table, [{"id": i, "name": "n"} for i in range(4)], kinds=["+I", "-U", "+U", "-D"])
    assert rows_of(table, ["id"]) == [(0,), (2,)]
    with pytest.raises(UnsupportedOperation, match="first-row keeps rows"):
        table.delete([{"id": 0}])
    other = {"merge-engine": "deduplicate", "ignore-delete": "false", "ignore-update-before": "true"}
    updates = table.with_options(other)
    put(updates, [{"id": 5, "name": "n"}, {"id": 5, "name": "n"}], kinds=["+I", "-U"])
    assert rows_of(updates, ["id"]) == [(0,), (2,), (5,)]


def test_rows_that_are_still_in_memory_are_merged_like_those_of_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for limit in (-1, 1 << 20):
        monkeypatch.setattr(writers, "FRESH_BYTES_MAX", limit)
        catalog = new_catalog(tmp_path / str(limit))
        table = catalog.create_table(
            "db.t", ALL_TYPES, primary_key=["id"], options={"bucket": "1", "changelog-producer": "lookup"}
        )
        put(table, all_types_rows(20))
        put(table, all_types_rows(30).slice(10))
        table.delete([{"id": i} for i in range(15, 40)])
        files = [(f.level, f.row_count, f.delete_row_count, f.value_stats) for f in live_files(table)]
        found.append((changelog(table), rows_of(table), files))
    assert found[0] == found[1]
    assert len(found[0][0]) == 20 + 2 * 10 + 10 + 15
