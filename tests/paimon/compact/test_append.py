"""Compaction of append tables: planning, order, precommit, sorting."""

from __future__ import annotations

import itertools
import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pytest

from forebay.base.errors import InvalidRequest, StorageFailure
from forebay.metadata.predicate import col
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.compact.append import (
    DROPPED_AGE,
    FORCED_AGE,
    AppendCompaction,
    AppendCoordinator,
    AppendRules,
    pack,
    pick_all_neighbours,
    pick_neighbours,
)
from forebay.paimon.compact.clustering import SortOrder, hilbert_transposed, interleaved, sorted_batches
from forebay.paimon.compact.precommit import plan_precommit, precommit, run_precommit
from forebay.paimon.format.commit_message import CommitMessage, DataIncrement
from forebay.paimon.format.file_meta import DataFileMeta, FileSource
from forebay.paimon.format.snapshot import CommitKind
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.table import Table
from tests.paimon.compact.trees import changelog, data_file
from tests.paimon.lake import live_files, new_catalog, planned_files, put, rows_of

RULES = AppendRules(target_size=100, small_size=70, open_cost=0, files_min=5)
PLAIN = pa.schema([("id", pa.int64()), ("x", pa.int64())])


@pytest.fixture
def catalog(tmp_path: Path) -> FileSystemCatalog:
    return new_catalog(tmp_path)


def files_of(*sizes: int) -> list[DataFileMeta]:
    return [data_file(f"f{i}", size, sequence=i) for i, size in enumerate(sizes)]


def names(files: list[DataFileMeta]) -> list[str]:
    return [f.file_name for f in files]


def test_small_files_are_packed_up_to_twice_the_target() -> None:
    assert pack(files_of(10, 10, 10, 10), RULES) == []
    assert [len(p) for p in pack(files_of(10, 10, 10, 10, 10), RULES)] == [5]
    assert [len(p) for p in pack(files_of(60, 60, 60, 60), RULES)] == [4]
    assert [names(p) for p in pack(files_of(69, 5, 69, 69, 70, 500), RULES)] == [["f1", "f0", "f2", "f3"]]
    assert [len(p) for p in pack(files_of(*[50] * 10), RULES)] == [4, 4]
    assert [len(p) for p in pack(files_of(*[50] * 10), RULES, full=True)] == [4, 4, 2]
    assert pack(files_of(10), RULES, full=True) == []
    assert pack(files_of(69, 70), RULES, full=True) == []
    costly = AppendRules(target_size=100, small_size=70, open_cost=90, files_min=5)
    assert [len(p) for p in pack(files_of(10, 10, 10), costly)] == [2]


def test_few_files_wait_and_are_compacted_in_the_end_or_forgotten() -> None:
    coordinator = AppendCoordinator(RULES)
    assert coordinator.plan({b"p": files_of(10, 10, 99), b"q": files_of(10)}) == []
    assert {k: len(v) for k, v in coordinator.waiting.items()} == {b"p": 2, b"q": 1}
    rounds = [coordinator.plan({}) for _ in range(DROPPED_AGE)]
    assert [len(r) for r in rounds] == [0] * (FORCED_AGE - 1) + [1] + [0] * (DROPPED_AGE - FORCED_AGE)
    assert names(rounds[FORCED_AGE - 1][0][1]) == ["f0", "f1"]
    assert coordinator.waiting == {}


def test_neighbours_are_taken_in_order_and_large_ones_slide_out() -> None:
    assert names(pick_neighbours(reversed(files_of(10, 10, 10, 10, 10, 10)), RULES)) == ["f0", "f1", "f2", "f3", "f4"]
    assert names(pick_neighbours(files_of(199, 10, 10, 10, 10, 10), RULES)) == ["f1", "f2", "f3", "f4", "f5"]
    assert pick_neighbours(files_of(150, 150, 150, 150, 150, 150), RULES) == []
    assert pick_neighbours(files_of(10, 10), RULES) == []


def test_a_full_compaction_of_a_bucket_starts_at_the_first_small_file() -> None:
    assert names(pick_all_neighbours(files_of(100, 10, 10, 90, 10), RULES)) == ["f1", "f2", "f3", "f4"]
    assert pick_all_neighbours(files_of(10, 10), RULES) == []
    assert pick_all_neighbours(files_of(10, 90, 90), RULES) == []
    assert names(pick_all_neighbours(files_of(90, 90), RULES, rewrite_all=True)) == ["f0", "f1"]


def written(catalog: FileSystemCatalog, commits: int = 6, **options: str) -> Table:
    table = catalog.create_table("db.t", PLAIN, options=options)
    for i in range(commits):
        put(table, [{"id": 10 * i + j, "x": -j} for j in range(10)])
    return table


def test_a_table_without_buckets_is_compacted_by_tasks_and_one_commit(catalog: FileSystemCatalog) -> None:
    table = written(catalog)
    rows = rows_of(table)
    (task,) = table.plan_compaction()
    table.new_commit().commit([table.run_compaction(pickle.loads(pickle.dumps(task)))])
    (file,) = live_files(table)
    assert (file.row_count, file.file_source, file.min_sequence_number) == (60, FileSource.COMPACT, 0)
    assert rows_of(table) == rows
    latest = table.context.snapshots.latest()
    assert latest is not None
    assert (latest.commit_kind, latest.delta_record_count) == (CommitKind.COMPACT, 0)
    assert table.compact() is None
    assert table.compact(full=True) is None


def test_two_small_files_are_left_alone_until_all_is_wanted(catalog: FileSystemCatalog) -> None:
    table = written(catalog, 2)
    assert table.compact() is None
    assert table.compact(full=True) is not None
    assert len(live_files(table)) == 1


def test_buckets_keep_their_order_while_they_are_compacted(catalog: FileSystemCatalog) -> None:
    table = written(catalog, 23, bucket="1", **{"bucket-key": "id"})
    assert table.scan().to_arrow()["id"].to_pylist() == list(range(230))
    assert len(live_files(table)) < 10
    put(table, [{"id": 1000, "x": 1}])
    table.compact(full=True)
    assert table.scan().to_arrow()["id"].to_pylist() == [*range(230), 1000]
    ranges = sorted((f.min_sequence_number, f.max_sequence_number) for f in live_files(table))
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 230
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(ranges))


def test_what_a_compaction_wrote_is_compacted_again_with_later_files(catalog: FileSystemCatalog) -> None:
    table = written(catalog, 3, bucket="1", **{"bucket-key": "id", "write-only": "true"})
    (split,) = table.scan().plan()
    compaction = AppendCompaction(table.context, split.partition, 0, live_files(table))
    first = compaction.compact([], {}, full=True)
    assert [len(first.compact_before), len(first.compact_after)] == [3, 1]
    for number in (100, 101):
        put(table, [{"id": number, "x": 1}])
    new = [file for file in live_files(table) if file.max_sequence_number >= 30]
    second = compaction.compact(new, {}, full=True)
    assert {file.file_name for file in second.compact_before} == {f.file_name for f in [*first.compact_after, *new]}
    assert sum(file.row_count for file in second.compact_after) == 32


def test_write_only_tables_with_buckets_are_not_compacted_by_writers(catalog: FileSystemCatalog) -> None:
    table = written(catalog, 12, bucket="1", **{"bucket-key": "id", "write-only": "true"})
    assert len(live_files(table)) == 12
    table.compact(full=True)
    assert len(live_files(table)) == 1


@pytest.mark.parametrize("bucketed", [False, True])
def test_small_files_of_one_commit_are_put_together_before_it(catalog: FileSystemCatalog, bucketed: bool) -> None:
    options = {"bucket": "1", "bucket-key": "id", "write-only": "true"} if bucketed else {}
    table = catalog.create_table("db.t", PLAIN, options={**options, "precommit-compact": "true"})
    many = table.with_options({"target-file-row-num": "10"})
    with many.new_write() as writer:
        writer.write(pa.table({"id": list(range(95)), "x": [0] * 95}))
        messages = writer.prepare_commit()
    assert len(messages[0].data.new_files) == 10
    tasks = plan_precommit(table.context, messages)
    assert [len(pickle.loads(pickle.dumps(t)).files) for t in tasks] == [10]
    table.new_commit().commit(precommit(table.context, messages))
    (file,) = live_files(table)
    assert (file.row_count, file.file_source) == (95, FileSource.APPEND)
    assert table.scan().to_arrow()["id"].to_pylist() == list(range(95))
    assert [s.commit_kind for s in table.context.snapshots.snapshots()] == [CommitKind.APPEND]
    assert [p.name for p in Path(table.context.paths.root).rglob("data-*")] == [file.file_name]


@pytest.mark.parametrize(("buckets", "packs"), [(-1, [["f0", "f2"], ["f3", "f4"]]), (1, [["f2", "f3"], ["f4", "f5"]])])
def test_precommit_packs_small_files_up_to_the_target(
    catalog: FileSystemCatalog, buckets: int, packs: list[list[str]]
) -> None:
    """With buckets, only neighbours: a large file stands between."""
    options = {"target-file-size": "100 b"} | ({"bucket": "1", "bucket-key": "id"} if buckets == 1 else {})
    table = catalog.create_table("db.t", PLAIN, options=options)
    files = tuple(files_of(60, 90, 60, 60, 60, 10))
    message = CommitMessage(b"", 0, buckets, DataIncrement(files))
    assert [names(list(t.files)) for t in plan_precommit(table.context, [message])] == packs


def test_precommit_of_keyed_tables_takes_all_new_files_of_a_bucket_or_none(catalog: FileSystemCatalog) -> None:
    options = {"bucket": "2", "target-file-size": "100 b"}
    table = catalog.create_table("db.k", PLAIN, primary_key=["id"], options=options)

    def planned(*sizes: int, level: int = 0, changes: tuple[int, ...] = ()) -> list[tuple[int, list[str], bool]]:
        files = [replace(f, level=level) for f in files_of(*sizes)]
        logs = [replace(f, file_name=f"c{i}") for i, f in enumerate(files_of(*changes))]
        messages = [CommitMessage(b"", 0, 2, DataIncrement((f,))) for f in files]
        messages += [CommitMessage(b"", 0, 2, DataIncrement((), changelog_files=tuple(logs)))]
        messages += [CommitMessage(b"", 1, 2, DataIncrement(tuple(files_of(1))))]
        return [(t.bucket, names(list(t.files)), t.is_changelog) for t in plan_precommit(table.context, messages)]

    assert planned(50, 50) == [(0, ["f0", "f1"], False)]
    assert planned(50, 51) == []
    assert planned(50) == []
    assert planned(10, 10, level=1) == []
    assert planned(50, changes=(20, 30)) == [(0, ["c0", "c1"], True)]
    assert planned(1, 1, changes=(70, 31)) == [(0, ["f0", "f1"], False)]


def test_precommit_of_keyed_tables_merges_rows_and_keeps_all_changes(catalog: FileSystemCatalog) -> None:
    options = {"bucket": "1", "changelog-producer": "input", "write-only": "true"}
    table = catalog.create_table("db.k", PLAIN, primary_key=["id"], options=options)
    with table.new_write() as writer:
        messages = []
        for x in range(3):
            writer.write(pa.table({"id": [x, 9], "x": [x, x]}))
            messages += writer.prepare_commit()
        failing = replace(table.context, io=_NoNewFiles(sync=False))
        (task, log) = plan_precommit(table.context, messages)
        there = {p.name for p in Path(table.context.paths.root).rglob("*.parquet*")}
        for each in (task, log):
            with pytest.raises(StorageFailure, match="no room"):
                run_precommit(failing, each)
        assert {p.name for p in Path(table.context.paths.root).rglob("*.parquet*")} == there
        table.new_commit().commit(precommit(table.context, messages))
    (file,) = live_files(table)
    assert (file.level, file.row_count, file.file_source) == (0, 4, FileSource.APPEND)
    assert rows_of(table) == [(0, 0), (1, 1), (2, 2), (9, 2)]
    assert sorted((row["id"], row["x"]) for _, row in changelog(table)) == [
        (0, 0),
        (1, 1),
        (2, 2),
        (9, 0),
        (9, 1),
        (9, 2),
    ]
    assert len(list(Path(table.context.paths.root).rglob("*.parquet"))) == 2


class _NoNewFiles(LocalFileIO):
    """A disk that is full when a file is closed."""

    def open_output(self, path: str) -> BinaryIO:
        output = super().open_output(path)

        def close() -> None:
            raise StorageFailure("no room")

        output.close = close  # type: ignore[method-assign]
        return output


def test_precommit_compaction_is_an_option_of_the_table(catalog: FileSystemCatalog) -> None:
    options = {"precommit-compact": "true", "target-file-row-num": "10"}
    table = catalog.create_table("db.t", PLAIN, options=options)
    put(table, pa.table({"id": list(range(30)), "x": [0] * 30}))
    assert rows_of(table, ["id"]) == sorted(((i,) for i in range(30)), key=repr)
    assert {p.name for p in Path(table.context.paths.root).rglob("data-*")} == {f.file_name for f in live_files(table)}


# ---- sorting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["order", "zorder", "hilbert"])
def test_nulls_come_first_where_rows_are_sorted(catalog: FileSystemCatalog, strategy: str) -> None:
    table = catalog.create_table("db.t", PLAIN)
    values = [5, None, -3, 8, None, 0, 2**40, -(2**40)]
    for start in (0, 4):
        put(table, pa.table({"id": range(start, start + 4), "x": values[start : start + 4]}, schema=PLAIN))
    table.compact(order_by=["x"], strategy=strategy)
    known = sorted(value for value in values if value is not None)
    assert table.scan(["x"]).to_arrow()["x"].to_pylist() == [None, None, *known]


@pytest.mark.parametrize("strategy", ["order", "zorder", "hilbert"])
def test_sorting_clusters_rows_so_that_filters_skip_files(catalog: FileSystemCatalog, strategy: str) -> None:
    rng = np.random.default_rng(1)
    options = {"target-file-row-num": "500", "compaction.min.file-num": "50"}
    table = catalog.create_table("db.t", PLAIN, options=options)
    for _ in range(4):
        put(table, pa.table({"id": rng.integers(0, 1000, 2000), "x": rng.integers(0, 10**9, 2000)}))
    rows = rows_of(table)
    where = (col("id") >= 100) & (col("id") < 150)
    both = where & (col("x") < 10**8)
    found = rows_of(table, None, where)
    table.compact(order_by=["id", "x"], strategy=strategy)
    assert rows_of(table) == rows
    assert rows_of(table, None, where) == found
    assert len(live_files(table)) == 16
    assert len(planned_files(table, where)) <= (3 if strategy == "order" else 8)
    assert len(planned_files(table, both)) <= 4


@pytest.mark.parametrize("spilled", [False, True])
def test_rows_come_out_in_order_however_many_parts_are_sorted(spilled: bool) -> None:
    rng = random.Random(2)
    numbers, texts = [None, 1, 2, -3], [None, "", "x", "xy", "é"]
    data = [{"a": rng.choice(numbers), "b": rng.choice(texts), "n": i} for i in range(500)]
    batches = [pa.RecordBatch.from_pylist(data[i : i + 50]) for i in range(0, 500, 50)]
    order = SortOrder(("a", "b"))
    out = sorted_batches(batches, order, 2000 if spilled else 1 << 30)
    found = [row for batch in out for row in batch.to_pylist()]

    def key(row: dict[str, object]) -> tuple[object, ...]:
        a, b = row["a"], row["b"]
        return (a is not None, a or 0), (b is not None, str(b or "").encode())

    assert [key(row) for row in found] == [key(row) for row in sorted(data, key=key)]
    assert sorted(row["n"] for row in found) == list(range(500))


def test_the_hilbert_curve_visits_every_place_once_and_never_jumps() -> None:
    side = 16
    x, y = np.meshgrid(np.arange(side, dtype=np.uint64), np.arange(side, dtype=np.uint64))
    points = [x.ravel(), y.ravel()]
    place = interleaved(hilbert_transposed(points, 4), 4)
    assert sorted(place.tolist()) == list(range(side * side))
    walk = np.argsort(place)
    steps = sum(np.abs(np.diff(axis[walk].astype(np.int64))) for axis in points)
    assert set(steps.tolist()) == {1}


def test_the_z_curve_interleaves_bits_with_the_first_column_on_top() -> None:
    axes = [np.array([0b10, 0b01], np.uint64), np.array([0b01, 0b11], np.uint64)]
    assert interleaved(axes, 2).tolist() == [0b1001, 0b0111]


def test_a_wrong_order_is_refused_by_name(catalog: FileSystemCatalog) -> None:
    table = written(catalog, 1)
    with pytest.raises(InvalidRequest, match="'random' is no way to sort"):
        table.compact(order_by=["id"], strategy="random")
    with pytest.raises(InvalidRequest, match="named twice"):
        table.compact(order_by=["id", "id"])
    with pytest.raises(InvalidRequest, match="zzz"):
        table.compact(order_by=["zzz"])
