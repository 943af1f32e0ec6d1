"""The SPI's values: offsets and their file, runs of records, formats by name."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import CorruptData, InvalidRequest, UnsupportedOperation
from forebay.lake.offsets import BucketOffsets
from forebay.lake.records import ChangeRows
from forebay.lake.registry import create_lake_storage, datalake_options, lake_formats
from forebay.metadata.table import TableBucket


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
