"""Folding a changelog and overriding lake rows by it: the result does not depend on how batches are cut."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import CorruptData, InternalError
from forebay.codec.arrow.arrow_types import storage_schema, user_schema
from forebay.codec.rows.keys import primary_key_encoder
from forebay.lake.records import ChangeRows
from forebay.lake.tiering import CommitterContext, WriterContext
from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableBucket, TableDescriptor, TableInfo, TablePath
from forebay.testing.memory_lake import MemoryLakeStorage, forget_lake
from forebay.testing.memory_lake_source import MemorySplit
from forebay.unionread.lake_side import LakeSide
from forebay.unionread.merging import merge_sorted, override
from forebay.unionread.splits import LakeSnapshotSplit, SplitCodec
from forebay.unionread.tail import Tail, TailFolder, check_read_to_the_end

if TYPE_CHECKING:
    from forebay.client.reading.log_reader import LogReader

COLUMNS = (Column("k", types.string().not_null()), Column("v", types.int_()))
INFO = TableInfo(
    TablePath("db", "t"),
    1,
    1,
    TableDescriptor(Schema.of(COLUMNS, ["k"]), bucket_keys=("k",), bucket_count=1),
)
ENCODER = primary_key_encoder(INFO.descriptor)
SCHEMA = storage_schema(INFO.schema.columns)

Changes = list[tuple[str, int | None]]
"""Keys, and new values; None deletes."""

keys = st.sampled_from(["", "a", "aa", "ab", "b", "zz"])
changes = st.lists(st.tuples(keys, st.none() | st.integers(0, 9)), max_size=30)
cuts = st.integers(1, 7)


def folded(listed: Changes, cut: int, fold_rows_min: int = 1 << 18) -> Tail:
    folder = TailFolder(ENCODER, fold_rows_min)
    for start in range(0, len(listed), cut):
        part = listed[start : start + cut]
        rows = pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in part], schema=SCHEMA)
        folder.add(rows, np.array([v is None for _, v in part], np.bool_))
    return folder.finish()


def pairs(batches: Any) -> list[tuple[str, int]]:
    return [(row["k"], row["v"]) for batch in batches for row in batch.to_pylist()]


@given(changes, cuts, st.sampled_from([1, 3, 1 << 18]))
def test_the_last_change_of_each_key_decides_however_changes_are_cut(listed: Changes, cut: int, fold: int) -> None:
    tail = folded(listed, cut, fold)
    expected = dict(listed)
    assert sorted(pairs(tail.batches)) == sorted((k, v) for k, v in expected.items() if v is not None)
    asked = pa.array(["", "a", "aa", "ab", "b", "zz", "other"], pa.string())
    found = tail.changed.contains(ENCODER.encode(pa.RecordBatch.from_arrays([asked], names=["k"])))
    assert dict(zip(asked.to_pylist(), found.to_pylist(), strict=True)) == {k: k in expected for k in asked.to_pylist()}


def test_deletes_are_kept_only_where_they_are_asked_for() -> None:
    def deletes(*changes: str, keep: bool) -> list[list[tuple[str, int]]]:
        """Each text is a batch: upper case letters are deleted."""
        folder = TailFolder(ENCODER)
        for keys in changes:
            rows = pa.RecordBatch.from_pylist([{"k": key.lower(), "v": 7} for key in keys], schema=SCHEMA)
            folder.add(rows, np.array([key.isupper() for key in keys], np.bool_))
        return [pairs([batch]) for batch in folder.finish(keep_deletes=keep).deletes]

    assert deletes("aB", "cd", "D", keep=True) == [[("b", 7)], [("d", 7)]]
    assert deletes("aB", "cd", "D", keep=False) == []


def test_folding_keeps_as_much_as_there_are_keys_not_as_there_are_changes() -> None:
    folder = TailFolder(ENCODER, fold_rows_min=10)
    batch = pa.RecordBatch.from_pylist([{"k": str(i), "v": i} for i in range(5)], schema=SCHEMA)
    most = 0
    for _ in range(1000):
        folder.add(batch, np.zeros(5, np.bool_))
        most = max(most, folder._rows)
    assert most <= 15
    assert folder.finish().rows == 5


@pytest.fixture
def lake() -> Any:
    name = "merging"
    forget_lake(name)
    storage = MemoryLakeStorage({"name": name})
    with storage.create_catalog() as catalog:
        catalog.create_table(INFO.path, INFO.descriptor, creating=True)
    yield storage
    forget_lake(name)


def tiered(storage: MemoryLakeStorage, rows: dict[str, int]) -> tuple[LakeSide, list[Any]]:
    """The lake's half, and the splits of a snapshot with these rows alone."""
    factory = storage.create_tiering_factory()
    newest = storage.table(INFO.path).newest_tiered()
    old = [] if newest is None else [r["k"] for r in storage.table(INFO.path).snapshots[-1].parts.get(((), 0), ())]
    changed = [*((4, k, None) for k in old), *((3, k, v) for k, v in rows.items())]
    random.Random(len(changed)).shuffle(changed[len(old) :])
    batch = pa.RecordBatch.from_pylist([{"k": k, "v": v} for _, k, v in changed], schema=SCHEMA)
    numbers = pa.array(range(len(changed)), pa.int64())
    writer = factory.create_writer(WriterContext(INFO, 0))
    writer.write(ChangeRows(batch, numbers, numbers, pa.array([kind for kind, _, _ in changed], pa.uint8())))
    base = None if newest is None else newest.snapshot_id
    made = factory.create_committer(CommitterContext(INFO, 1, base)).commit([writer.complete()], {})
    side = LakeSide.of(storage.create_source(INFO.path), INFO.schema.columns, None)
    return side, side.plan(made.snapshot_id)


@given(st.dictionaries(keys, st.integers(10, 19)), changes, cuts)
def test_both_ways_of_merging_give_the_lake_overridden_by_the_tail(
    rows: dict[str, int], listed: Changes, cut: int
) -> None:
    forget_lake("merging random")
    storage = MemoryLakeStorage({"name": "merging random"})
    with storage.create_catalog() as catalog:
        catalog.create_table(INFO.path, INFO.descriptor, creating=True)
    side, splits = tiered(storage, rows)
    expected = {k: v for k, v in {**rows, **dict(listed)}.items() if v is not None}
    tail = folded(listed, cut)
    by_hash = pairs(override((batch for split in splits for batch in side.read(split)), tail, ENCODER))
    assert sorted(by_hash) == sorted(expected.items())
    reader = side.sorted_reader(splits)
    assert reader is not None
    in_order = pairs(merge_sorted(reader, side.stored, tail, ENCODER))
    assert in_order == sorted(expected.items(), reverse=True)  # the order of the lake in memory


def test_the_lake_is_read_one_batch_at_a_time(lake: MemoryLakeStorage) -> None:
    tail = folded([("b", 1)], 1)
    taken = 0

    def batches() -> Any:
        nonlocal taken
        for i in range(100):
            taken += 1
            yield pa.RecordBatch.from_pylist([{"k": f"x{i}", "v": i}], schema=SCHEMA)

    merged = override(batches(), tail, ENCODER)
    assert pairs([next(merged)]) == [("b", 1)]
    assert taken == 1
    next(merged)
    assert taken == 1
    next(merged)
    assert taken == 2


def test_batches_of_a_lake_get_the_types_of_the_stream_and_nulls_for_columns_it_lacks(lake: MemoryLakeStorage) -> None:
    tiered(lake, {"a": 1})
    wider = (*INFO.schema.columns, Column("new", types.timestamp_ltz()))
    side = LakeSide.of(lake.create_source(INFO.path), wider, None)
    batch = pa.RecordBatch.from_pylist([{"v": 1, "k": "a"}], schema=user_schema(COLUMNS))
    assert side.stored(batch).to_pylist() == [{"k": "a", "v": 1, "new": None}]
    assert side.stored(batch).schema.equals(storage_schema(wider))


def test_a_log_that_ends_before_its_end_is_an_error() -> None:
    bucket = TableBucket(1, 0)
    reader = cast("LogReader", SimpleNamespace(position={bucket: 7}))
    check_read_to_the_end(INFO, reader, {bucket: 7})
    check_read_to_the_end(INFO, reader, {bucket: 6})
    with pytest.raises(InternalError, match=r"of table db\.t ended at offset 7 instead of 8"):
        check_read_to_the_end(INFO, reader, {bucket: 8})


def test_splits_with_lake_rows_need_a_lake() -> None:
    codec = SplitCodec(None)
    with pytest.raises(InternalError, match="a plan without a lake has a split with lake rows"):
        codec.encode(LakeSnapshotSplit(MemorySplit(1, "", ((), 0), 0, 1)))
    with pytest.raises(CorruptData, match="the plan it came with has no lake"):
        codec.decode(b'{"version":1,"kind":"lake","lake":[1,"AA=="]}')
    for document in (b'{"version":1,"kind":"lake","lake":[]}', b'{"version":1,"kind":"log","bucket":[0,1,null]}'):
        with pytest.raises(CorruptData, match="these bytes are no split of a union read"):
            codec.decode(document)


def test_batches_of_which_nothing_is_left_are_left_out() -> None:
    keys = ("ab", "", "b", "c")
    lake = [pa.RecordBatch.from_pylist([{"k": k, "v": 1} for k in some], schema=SCHEMA) for some in keys]
    tail = folded([("a", 5), ("b", None)], 1)
    merged = list(override(lake, tail, ENCODER))
    assert [pairs([batch]) for batch in merged] == [[("a", 5)], [("c", 1)]]
    assert [batch.num_rows for batch in override(lake, folded([], 1), ENCODER)] == [2, 1, 1]
    assert folded([("a", None)], 1).rows == 0
