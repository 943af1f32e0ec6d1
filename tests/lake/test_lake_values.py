"""The SPI's values: offsets and their file, runs of records, formats by name."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import Conflict, CorruptData, ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.codec.arrow.arrow_types import arrow_type
from forebay.lake.formats import create_lake_storage, datalake_options, lake_formats
from forebay.lake.offsets import BucketOffsets
from forebay.lake.records import ChangeRows
from forebay.lake.shared_options import lake_options
from forebay.lake.tiering import (
    CREATED_PROPERTY,
    EPOCH_PROPERTY,
    TABLE_PROPERTY,
    CommittedLakeSnapshot,
    CommitterContext,
    LakeCommitResult,
    WriterContext,
    belongs_to,
    check_base,
)
from forebay.lake.writing import LakeRows, check_appended, check_partition
from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableBucket, TableDescriptor, TableInfo, TablePath
from forebay.metadata.types import DataType


def bucket_offsets(table: int, **offsets: int) -> BucketOffsets:
    """Offsets by names like `b3` and `p7b3`."""
    found = {}
    for name, offset in offsets.items():
        partition, _, bucket = name.removeprefix("p").rpartition("b")
        found[TableBucket(table, int(bucket), int(partition) if partition else None)] = offset
    return BucketOffsets(table, found)


def test_the_file_of_offsets_is_the_one_of_fluss() -> None:
    plain = bucket_offsets(7, b0=10, b2=0)
    assert json.loads(plain.to_json()) == {"version": 1, "table_id": 7, "bucket_offsets": [10, -1, 0]}
    parts = bucket_offsets(7, p5b1=3, p2b0=9)
    assert json.loads(parts.to_json()) == {
        "version": 1,
        "table_id": 7,
        "partition_offsets": [
            {"partition_id": 2, "bucket_offsets": [9]},
            {"partition_id": 5, "bucket_offsets": [-1, 3]},
        ],
    }


@given(st.dictionaries(st.integers(0, 40), st.integers(0, 1 << 60)), st.booleans())
def test_offsets_come_back_from_their_file(offsets: dict[int, int], partitioned: bool) -> None:
    given_ones = {TableBucket(3, b % 8, b // 8 if partitioned else None): o for b, o in offsets.items()}
    made = BucketOffsets(3, given_ones)
    assert BucketOffsets.from_json(made.to_json()) == made


def test_newer_offsets_replace_older_ones_and_others_stay() -> None:
    merged = bucket_offsets(1, b0=5, b1=6).merged(bucket_offsets(1, b1=9, b2=2))
    assert merged == bucket_offsets(1, b0=5, b1=9, b2=2)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version": 2, "table_id": 1}', b'{"version": 1}'])
def test_what_is_no_file_of_offsets_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptData):
        BucketOffsets.from_json(data)


def test_offsets_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        BucketOffsets(1, {TableBucket(2, 0): 1})
    with pytest.raises(InvalidRequest):
        bucket_offsets(1, b0=-1)
    with pytest.raises(InvalidRequest):
        bucket_offsets(1, b0=1, p1b0=1).to_json()


def records(kinds: list[int] | None, count: int = 5) -> ChangeRows:
    numbers = pa.array(range(count), pa.int64())
    rows = pa.RecordBatch.from_pydict({"id": numbers})
    return ChangeRows(rows, numbers, numbers, None if kinds is None else pa.array(kinds, pa.uint8()))


def test_records_are_cut_without_losing_any() -> None:
    whole = records([0, 1, 2, 3, 4])
    parts = list(whole.slices(2))
    assert [len(p) for p in parts] == [2, 2, 1]
    assert [k for p in parts if p.change_types is not None for k in p.change_types.to_pylist()] == [0, 1, 2, 3, 4]
    assert [o for p in parts for o in p.offsets.to_pylist()] == [0, 1, 2, 3, 4]


def test_old_images_are_left_out_with_their_offsets() -> None:
    kept = records([1, 2, 3, 2, 4]).without_update_before()
    assert (kept.rows["id"].to_pylist(), kept.offsets.to_pylist()) == ([0, 2, 4], [0, 2, 4])
    for all_of_them in (records([1, 1, 3, 3, 4]), records(None)):
        assert all_of_them.without_update_before() is all_of_them


def test_arrays_of_another_length_than_the_rows_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="change_types"):
        records([1, 2])


def lake_rows(*lake: tuple[str, pa.DataType], system: bool = False) -> LakeRows:
    """Makes rows of a stream table for the third bucket into those of a lake table with these columns."""
    info = TableInfo(
        TablePath("db", "t"), 7, 1, TableDescriptor(Schema((Column("id", types.bigint()),)), bucket_count=3)
    )
    return LakeRows(WriterContext(info, 2), pa.schema(lake), has_system_columns=system)


def test_rows_get_the_types_of_the_lake_and_nulls_for_columns_that_the_stream_lacks() -> None:
    made = lake_rows(("id", pa.decimal128(20, 0)), ("later", pa.string())).lake_batch(records(None, 2))
    assert made.schema.types == [pa.decimal128(20, 0), pa.string()]
    assert made.to_pylist() == [{"id": 0, "later": None}, {"id": 1, "later": None}]


def test_rows_get_their_bucket_offset_and_time_where_the_lake_has_columns_for_them() -> None:
    system = (("b", pa.int32()), ("o", pa.int64()), ("t", pa.timestamp("us", "UTC")))
    made = lake_rows(("id", pa.int64()), *system, system=True).lake_batch(records(None, 2))
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    later = moment + dt.timedelta(milliseconds=1)
    assert made.to_pylist() == [{"id": 0, "b": 2, "o": 0, "t": moment}, {"id": 1, "b": 2, "o": 1, "t": later}]


def test_rows_that_the_lake_table_cannot_have_are_refused_with_the_column() -> None:
    with pytest.raises(InvalidRequest, match=r"column 'id' is BIGINT, .* fit the lake's TINYINT: ") as refused:
        lake_rows(("id", pa.int8())).lake_batch(records(None, 200))
    assert refused.value.code == ErrorCode.INVALID_TABLE_EXCEPTION
    with pytest.raises(
        InvalidRequest, match=r"records of db.t have the columns \['id'\], but its lake table has \['x'\]"
    ):
        lake_rows(("x", pa.int64())).lake_batch(records(None))
    (needed,) = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    with pytest.raises(InvalidRequest, match=r"column 'n' of db.t is NOT NULL in the lake, and a row has a null"):
        lake_rows(("id", pa.int64()), needed).lake_batch(records(None))
    assert len(lake_rows(("id", pa.int64()), needed).lake_batch(records(None, 0))) == 0


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [(types.string(), "a", "a"), (types.int_(), 5, "5"), (types.bigint(), 5, "5"), (types.boolean(), True, "true")],
    ids=str,
)
def test_a_row_of_another_partition_than_the_writer_s_is_refused(key: DataType, value: object, text: str) -> None:
    descriptor = TableDescriptor(Schema((Column("p", key),)), ("p",), bucket_count=1)
    info = TableInfo(TablePath("db", "t"), 7, 1, descriptor)
    row = {"p": pa.scalar(value, arrow_type(key))}
    check_partition(WriterContext(info, 0, {"p": text}), row)
    check_partition(WriterContext(info, 0), row)
    with pytest.raises(InvalidRequest, match=f"p = {value} came to the writer of partition 'other' of db.t"):
        check_partition(WriterContext(info, 0, {"p": "other"}), row)


def test_partitions_by_values_that_have_several_texts_are_not_compared() -> None:
    descriptor = TableDescriptor(Schema((Column("p", types.timestamp(3)),)), ("p",), bucket_count=1)
    context = WriterContext(TableInfo(TablePath("db", "t"), 7, 1, descriptor), 0, {"p": "some text"})
    check_partition(context, {"p": pa.scalar(5, pa.timestamp("ms"))})


def test_changes_of_a_table_without_a_key_are_refused() -> None:
    info = TableInfo(
        TablePath("db", "t"), 7, 1, TableDescriptor(Schema((Column("id", types.bigint()),)), bucket_count=1)
    )
    check_appended(info, records(None))
    check_appended(info, records([0] * 5))
    with pytest.raises(InvalidRequest, match=r"table db\.t has no primary key"):
        check_appended(info, records([0, 0, 0, 0, 1]))


@pytest.mark.parametrize("kinds", [None, [0, 1, 2, 3, 4]])
def test_a_choice_of_records_keeps_their_kinds(kinds: list[int] | None) -> None:
    chosen = records(kinds).filter(pa.array([True, False, False, True, False]))
    assert chosen.offsets.to_pylist() == [0, 3]
    assert (None if chosen.change_types is None else chosen.change_types.to_pylist()) == (kinds and [0, 3])


# ---- rounds ---------------------------------------------------------------------------------------------------------


def table_info(table_id: int = 7, created_ms: int = -1) -> TableInfo:
    descriptor = TableDescriptor(Schema((Column("id", types.bigint()),)), bucket_count=1)
    return TableInfo(TablePath("db", "t"), table_id, 1, descriptor, created_ms)


def test_snapshots_say_their_table_and_epoch_and_when_the_table_was_created_where_that_is_known() -> None:
    own = {EPOCH_PROPERTY: "3", TABLE_PROPERTY: "7"}
    assert CommitterContext(table_info(), 3, None).properties == own
    for created in (0, 55):
        known = CommitterContext(table_info(created_ms=created), 3, None)
        assert known.properties == {**own, CREATED_PROPERTY: str(created)}


@pytest.mark.parametrize(
    ("properties", "with_time", "without"),
    [
        ({}, True, True),
        ({TABLE_PROPERTY: "7"}, True, True),
        ({TABLE_PROPERTY: "8"}, False, False),
        ({TABLE_PROPERTY: "7", CREATED_PROPERTY: "0"}, True, True),
        ({TABLE_PROPERTY: "7", CREATED_PROPERTY: "9"}, False, True),
        ({TABLE_PROPERTY: "8", CREATED_PROPERTY: "0"}, False, False),
        ({CREATED_PROPERTY: "9"}, False, True),
    ],
)
def test_a_snapshot_belongs_to_a_table_unless_it_says_otherwise(
    properties: dict[str, str], with_time: bool, without: bool
) -> None:
    assert belongs_to(properties, table_info(created_ms=0)) == with_time
    assert belongs_to(properties, table_info()) == without


def test_a_round_is_fenced_off_by_another_base_a_newer_epoch_and_another_table() -> None:
    mine = CommitterContext(table_info(created_ms=5), 3, 10)
    newest = CommittedLakeSnapshot(10, mine.properties)
    for fine in (newest, CommittedLakeSnapshot(10), CommittedLakeSnapshot(10, {EPOCH_PROPERTY: "2"})):
        check_base(mine, 10, fine)
    check_base(mine, None, None)
    for base, found, problem in (
        (None, newest, "it started from lake snapshot None, and the newest one is 10"),
        (10, None, "it started from lake snapshot 10, and the newest one is None"),
        (9, newest, "it started from lake snapshot 9, and the newest one is 10"),
        (10, CommittedLakeSnapshot(10, {EPOCH_PROPERTY: "4"}), "its epoch is 3, and lake snapshot 10 is of epoch 4"),
        (
            10,
            CommittedLakeSnapshot(10, {TABLE_PROPERTY: "8"}),
            "it is for table 7, and lake snapshot 10 is of table 8;",
        ),
        (
            10,
            CommittedLakeSnapshot(10, {TABLE_PROPERTY: "7", CREATED_PROPERTY: "6"}),
            r"it is for table 7, and lake snapshot 10 is of table 7 \(created 6\);",
        ),
    ):
        with pytest.raises(Conflict, match=rf"the tiering round of db\.t is fenced off: {problem}") as fenced:
            check_base(mine, base, found)
        assert fenced.value.code == ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION
    takes_over = replace(mine, takes_over=True)
    check_base(takes_over, 10, CommittedLakeSnapshot(10, {EPOCH_PROPERTY: "4", TABLE_PROPERTY: "8"}))
    with pytest.raises(Conflict, match="fenced off"):
        check_base(takes_over, 9, newest)


def test_a_snapshot_is_readable_unless_another_one_is() -> None:
    assert [LakeCommitResult(5, readable).is_readable for readable in (5, 4, None)] == [True, False, False]


def test_options_that_follow_from_others_cannot_be_set() -> None:
    descriptor = replace(table_info().descriptor, properties={"a": "1"}, custom_properties={"x.b": "2"})
    assert lake_options(descriptor, "x.", {"c"}, "keys") == {"a": "1", "x.b": "2"}
    with pytest.raises(
        InvalidRequest, match=r"option 'x\.b' follows from the table's keys, and cannot be set"
    ) as refused:
        lake_options(descriptor, "x.", {"b"}, "keys")
    assert refused.value.code == ErrorCode.INVALID_CONFIG_EXCEPTION


def test_a_format_is_found_by_its_name_in_any_case(tmp_path: object) -> None:
    assert "paimon" in lake_formats()
    assert create_lake_storage("Paimon", {"warehouse": str(tmp_path)}).format == "paimon"
    with pytest.raises(UnsupportedOperation, match="paimon"):
        create_lake_storage("atlantis", {})


def test_options_of_a_format_are_the_settings_below_its_name() -> None:
    settings = {
        "datalake.format": "paimon",
        "datalake.paimon.warehouse": "/lake",
        "datalake.paimon.s3.endpoint": "http://x",
        "datalake.paimonia.warehouse": "/no",
    }
    assert datalake_options(settings, "PAIMON") == {"warehouse": "/lake", "s3.endpoint": "http://x"}
