"""Splitting rows by partition and bucket; dynamic buckets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.paimon.catalog.definition import new_schema
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import EMPTY_ROW
from forebay.paimon.table import Table
from forebay.paimon.write.bucketing import FixedBuckets, PartitionSplitter, java_row_hash, parts_of
from tests.paimon.lake import new_catalog, put, rows_of

COLUMNS = pa.schema([("id", pa.int64()), ("dt", pa.string()), ("v", pa.int32())])


def test_rows_keep_their_order_within_a_partition_and_bucket() -> None:
    schema = new_schema(COLUMNS, ["id", "dt"], ["dt"], {"bucket": "3"})
    batch = pa.RecordBatch.from_pydict(
        {"id": list(range(100)), "dt": ["ab"[i % 2] for i in range(100)], "v": list(range(100))}, schema=COLUMNS
    )
    partitions, partition_of = PartitionSplitter(schema).split(batch)
    buckets = FixedBuckets(schema).of(batch)
    seen = []
    for part in parts_of(partitions, partition_of, buckets):
        assert part.rows is not None
        rows = part.rows.to_pylist()
        assert rows == sorted(rows)
        assert {partitions[partition_of[r]] for r in rows} == {part.partition}
        assert {int(buckets[r]) for r in rows} == {part.bucket}
        seen += rows
    assert sorted(seen) == list(range(100))


def test_rows_of_one_bucket_are_passed_on_as_they_are() -> None:
    parts = list(parts_of([EMPTY_ROW], np.zeros(5, np.int64), np.full(5, 2, np.int32)))
    assert [(p.partition, p.bucket, p.rows) for p in parts] == [(EMPTY_ROW, 2, None)]


def test_a_table_may_have_more_buckets_than_memory_has_room_for() -> None:
    partitions, partition_of = [b"a", b"b"], np.array([0, 1, 1, 0, 1])
    last = (1 << 31) - 2
    parts = parts_of(partitions, partition_of, np.array([7, last, 7, last, last], np.int32))
    found = [(p.partition, p.bucket, p.rows.to_pylist()) for p in parts if p.rows is not None]
    assert found == [(b"a", 7, [0]), (b"a", last, [3]), (b"b", 7, [2]), (b"b", last, [1, 4])]


def test_the_row_hash_is_the_one_that_decides_on_buckets() -> None:
    """The bucket is the hash's remainder, so the compiled kernel, which Java's own buckets were tested with, judges."""
    from forebay.codec.rows.buckets import bucket_ids

    fields = new_schema(COLUMNS).fields
    batch = pa.RecordBatch.from_pydict(
        {"id": [0, 1, -5, None], "dt": ["", "short", "a longer text than that", "ü"], "v": [None, 7, -7, 0]},
        schema=COLUMNS,
    )
    rows = row_layout(fields).encode(batch)
    hashes = java_row_hash(rows)
    for count in (3, 1 << 15, (1 << 31) - 1):
        assert [abs(int(np.fmod(int(h), count))) for h in hashes] == bucket_ids(rows, count, "paimon").tolist()
    assert java_row_hash(rows.slice(2)).tolist() == hashes[2:].tolist()


def dynamic(folder: Path, **options: str) -> Table:
    return new_catalog(folder).create_table(
        "db.t", pa.schema([("id", pa.int64()), ("v", pa.int32())]), primary_key=["id"], options=options
    )


def rows(ids: range, v: int) -> pa.Table:
    return pa.table({"id": list(ids), "v": pa.array([v] * len(ids), pa.int32())})


def test_keys_stay_in_the_bucket_they_first_went_to(tmp_path: Path) -> None:
    table = dynamic(tmp_path, **{"dynamic-bucket.target-row-num": "100"})
    put(table, rows(range(250), 0))
    assert {s.bucket for s in table.scan().plan()} == {0, 1, 2}
    put(table, rows(range(200, 330), 1))
    assert rows_of(table) == sorted([(i, int(i >= 200)) for i in range(330)], key=repr)
    held = {s.bucket: sum(f.row_count for f in s.files) for s in table.scan().plan()}
    assert set(held) == {0, 1, 2, 3}


def test_with_a_limit_of_buckets_the_rest_is_spread(tmp_path: Path) -> None:
    table = dynamic(tmp_path, **{"dynamic-bucket.target-row-num": "10", "dynamic-bucket.max-buckets": "3"})
    put(table, rows(range(100), 0))
    put(table, rows(range(50, 150), 1))
    assert {s.bucket for s in table.scan().plan()} == {0, 1, 2}
    assert rows_of(table) == sorted([(i, int(i >= 50)) for i in range(150)], key=repr)


def test_keys_beyond_the_limit_are_found_by_the_next_writer(tmp_path: Path) -> None:
    """A key whose bucket was not noted would get another one, and be there twice."""
    table = dynamic(tmp_path, **{"dynamic-bucket.target-row-num": "10", "dynamic-bucket.max-buckets": "3"})
    put(table, rows(range(30), 0))  # all buckets are full
    for first in range(30, 60, 5):
        put(table, rows(range(first, first + 5), 0))
    put(table, rows(range(60), 1))
    assert rows_of(table) == sorted([(i, 1) for i in range(60)], key=repr)


def test_a_writer_that_continues_after_a_commit_knows_its_buckets(tmp_path: Path) -> None:
    table = dynamic(tmp_path, **{"dynamic-bucket.target-row-num": "100"})
    commit = table.new_commit("stream")
    with table.new_write() as writer:
        for step in range(3):
            writer.write(rows(range(step * 80, step * 80 + 120), step))
            commit.commit(writer.prepare_commit(), step)
    assert rows_of(table) == sorted([(i, min(i // 80, 2)) for i in range(280)], key=repr)


def test_keys_across_partitions_and_postponed_buckets_are_refused(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], partition_keys=["dt"])
    with pytest.raises(UnsupportedOperation, match=r"does not have the partition columns \['dt'\]"):
        table.new_write()
    postponed = catalog.create_table("db.p", COLUMNS, primary_key=["id"], options={"bucket": "-2"})
    with pytest.raises(UnsupportedOperation, match="postponed buckets"):
        postponed.new_write()
    with pytest.raises(InvalidRequest, match="'bucket' is 0"):
        catalog.create_table("db.q", COLUMNS, primary_key=["id"], options={"bucket": "0"})
