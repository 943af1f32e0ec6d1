"""How the files of a bucket are divided into splits."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.metadata import types
from forebay.metadata.predicate import col
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import EMPTY_STATS, DataFileMeta
from forebay.paimon.format.schema import DataField
from forebay.paimon.format.split import DataSplit, DeletionFile
from forebay.paimon.read.split_reader import SplitReader
from forebay.paimon.read.splits import SplitRules, append_splits, merge_tree_splits, pack_in_order
from tests.paimon.lake import new_catalog, put

KEYS = row_layout((DataField(0, "id", types.int_().not_null()),))


def file(
    low: int, high: int, *, size: int = 10, level: int = 0, deletes: int | None = 0, sequence: int = 0
) -> DataFileMeta:
    return DataFileMeta(
        f"{low}-{high}-{level}",
        size,
        1,
        KEYS.encode_one([low]),
        KEYS.encode_one([high]),
        EMPTY_STATS,
        EMPTY_STATS,
        sequence,
        sequence,
        0,
        level,
        delete_row_count=deletes,
    )


def splits(
    files: Sequence[DataFileMeta], target: int = 20, *, one_file_is_enough: bool = False
) -> list[tuple[list[str], bool]]:
    groups = merge_tree_splits(files, SplitRules(target, 1), KEYS, one_file_is_enough)
    return [(sorted(f.file_name for f in g.files), g.raw_convertible) for g in groups]


def test_items_are_packed_in_order_and_a_large_one_is_alone() -> None:
    assert pack_in_order([5, 5, 11, 30, 1, 1], lambda n: n, 20) == [[5, 5], [11], [30], [1, 1]]


def test_append_files_are_read_in_the_order_of_their_rows() -> None:
    files = [file(0, 0, sequence=s, size=size) for s, size in ((20, 5), (0, 5), (10, 15))]
    groups = append_splits(files, SplitRules(20, 4))
    assert [[f.min_sequence_number for f in g.files] for g in groups] == [[0, 10], [20]]
    assert all(g.raw_convertible for g in groups)


def test_small_files_weigh_what_opening_them_costs() -> None:
    groups = append_splits([file(0, 0, sequence=i, size=1) for i in range(10)], SplitRules(20, 5))
    assert [len(g.files) for g in groups] == [4, 4, 2]


def test_files_with_common_keys_stay_together() -> None:
    files = [file(1, 2), file(3, 4), file(5, 180), file(5, 190), file(200, 600), file(210, 700)]
    assert splits(files) == [
        (["1-2-0", "3-4-0"], False),
        (["5-180-0", "5-190-0"], False),
        (["200-600-0", "210-700-0"], False),
    ]


def test_a_file_alone_needs_no_merging_unless_it_may_hold_deletes() -> None:
    assert splits([file(1, 2)], 1) == [(["1-2-0"], True)]
    assert splits([file(1, 2, deletes=1)], 1) == [(["1-2-0"], False)]
    assert splits([file(1, 2, deletes=None)], 1) == [(["1-2-0"], False)]
    assert splits([file(1, 2, deletes=None, level=5)], 1) == [(["1-2-5"], True)]


def test_one_level_above_zero_is_read_file_by_file() -> None:
    top = [file(1, 9, level=5), file(10, 19, level=5)]
    assert splits(top) == [(["1-9-5", "10-19-5"], True)] or splits(top) == [(["10-19-5", "1-9-5"], True)]
    assert splits([replace(top[0], delete_row_count=1), top[1]]) == [(["1-9-5", "10-19-5"], False)]
    two_levels = [file(1, 9, level=5), file(5, 19, level=4)]
    assert [raw for _, raw in splits(two_levels)] == [False]
    assert [raw for _, raw in splits(two_levels, one_file_is_enough=True)] == [True]


@pytest.mark.parametrize("keyed", [True, False])
def test_splits_are_small_values_that_other_workers_read(tmp_path: Path, keyed: bool) -> None:
    columns = pa.schema([("id", pa.int64()), ("s", pa.string())])
    options = {"primary_key": ["id"], "options": {"bucket": "1"}} if keyed else {}
    table = new_catalog(tmp_path).create_table("db.t", columns, **options)
    put(table, [{"id": 1, "s": "a"}])
    (split,) = table.scan(filter=col("id") == 1).plan()
    sent = pickle.dumps(split)
    assert len(sent) < 300
    elsewhere, received = pickle.loads(pickle.dumps(table.context)), pickle.loads(sent)
    assert [b.to_pylist() for b in SplitReader(elsewhere).read(received)] == [[{"id": 1, "s": "a"}]]
    assert pickle.dumps(received) == sent
    assert received.files[0].value_stats == EMPTY_STATS, "planners need statistics, readers do not"
    assert replace(received, files=split.files) == split
    assert [f.file_name for f in received.files] == [f.file_name for f in split.files]


def test_a_split_of_many_files_still_travels_in_less_than_a_kilobyte(tmp_path: Path) -> None:
    table = new_catalog(tmp_path).create_table("db.t", pa.schema([("id", pa.int64()), ("s", pa.string())]))
    for i in range(20):
        put(table.with_options({"write-only": "true"}), [{"id": i, "s": "a" * i}])
    (split,) = table.scan().plan()
    assert (len(split.files), len(pickle.dumps(split)) < 1000) == (20, True)
    received = pickle.loads(pickle.dumps(split))
    assert [b.to_pylist() for b in table.split_reader().read(received)] == [
        b.to_pylist() for b in table.split_reader().read(split)
    ]


def test_deletion_files_travel_with_their_split() -> None:
    deletions = (None, DeletionFile("index/a", 1, 2, None), DeletionFile("index/b", 3, 4, 5))
    files = tuple(file(i, i) for i in range(3))
    split = DataSplit(7, b"p", 1, 2, files, False, True, files[:1], deletions)
    assert pickle.loads(pickle.dumps(split)) == split
