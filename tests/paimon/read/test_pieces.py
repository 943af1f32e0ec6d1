"""Splits cut into files and joined again, and streams that return such pieces by any rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.base.errors import InvalidRequest
from forebay.paimon.format.split import DataSplit
from forebay.paimon.read.pieces import by_file, byte_count, file_count, joined
from forebay.paimon.read.stream import StreamScan
from tests.paimon.compact.deleted_rows import with_deleted
from tests.paimon.lake import live_files, new_catalog, put
from tests.paimon.read.commit_messages import at_level, prepared
from tests.paimon.stream.model import COLUMNS


def test_files_that_stand_alone_are_cut_apart_and_joined_in_their_order(tmp_path: Path) -> None:
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS)
    for i in range(4):
        put(table, [{"id": i}])
    (whole,) = table.scan().plan()
    pieces = by_file([whole])
    assert [file_count(piece) for piece in pieces] == [1, 1, 1, 1]
    assert sum(map(byte_count, pieces)) == sum(file.file_size for file in live_files(table))
    assert joined(pieces) == [whole]
    assert by_file(joined(pieces[:2])) == pieces[:2]
    assert joined([]) == []


def test_splits_that_must_be_merged_stay_whole(tmp_path: Path) -> None:
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key=["id"], options={"bucket": "2"})
    for _ in range(3):
        put(table, [{"id": i} for i in range(10)])
    splits = list(table.scan().plan())
    assert by_file(splits) == splits
    assert joined(splits) == splits


def test_deletion_vectors_stay_with_their_files(tmp_path: Path) -> None:
    options = {"bucket": "1", "deletion-vectors.enabled": "true"}
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    put(table, [{"id": i, "v": 0} for i in range(6)])
    table.compact(full=True)
    put(table, [{"id": 2, "v": 1}])
    table.compact()
    reader = table.split_reader()
    pieces = by_file(table.scan().plan())
    rows = [row["id"] for split in joined(reversed(pieces)) for b in reader.read(split) for row in b.to_pylist()]
    assert sorted(rows) == list(range(6))


def test_all_splits_of_a_bucket_are_one_sorted_read_without_deleted_rows(tmp_path: Path) -> None:
    options = {"bucket": "1", "deletion-vectors.enabled": "true", "source.split.target-size": "1 b"}
    columns = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    table = new_catalog(tmp_path).create_table("db.t", columns, primary_key=["id"], options=options)
    table.new_commit().commit([at_level(prepared(table, pa.table({"id": [1, 2, 3]})), 5)])
    with_deleted(table, [4, 5, 6], [1], level=5)
    splits = table.scan().plan()
    assert [split.row_count for split in splits] == [3, 3]
    reader = table.split_reader()

    def ids(of: Sequence[DataSplit]) -> list[int]:
        return [row["id"] for batch in reader.read_bucket(of) for row in batch.to_pylist()]

    assert ids(splits) == [1, 2, 3, 4, 6]
    assert [ids([split]) for split in splits] == [[1, 2, 3], [4, 6]]
    assert ids([replace(split, deletion_files=None) for split in splits]) == [1, 2, 3, 4, 5, 6]
    assert ids([]) == []
    with pytest.raises(InvalidRequest, match="several buckets"):
        ids([splits[0], replace(splits[1], bucket=1)])


def test_a_scan_hands_out_what_is_accepted_and_continues_after_it(tmp_path: Path) -> None:
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS)
    for i in range(5):
        put(table, [{"id": i}])
    scan = StreamScan(table.context, cut_by_file=True)
    assert scan.begin()
    assert scan.state()["full"] == 5
    refused = scan.plan(accept=lambda place, split: False)
    assert refused is not None
    assert not refused.splits
    assert not refused.is_last
    first = scan.plan(accept=lambda place, split: place < 2)
    state = scan.state()
    rest = scan.plan()
    assert first is not None
    assert rest is not None
    assert [len(first.splits), len(rest.splits), rest.is_last] == [2, 3, True]
    scan.restore(state)
    again = scan.plan(accept=lambda place, split: place < 4)
    assert again is not None
    assert again.splits == rest.splits[:2]
