"""Keys of a piece of changelog: the same set, whether integers are tracked by flags or as bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import InvalidRequest
from forebay.client.table import Table
from forebay.codec.rows.keys import primary_key_encoder
from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableDescriptor
from forebay.metadata.types import DataType
from forebay.unionread import changed_keys
from forebay.unionread.changed_keys import FLAGS_MAX, read_changed_keys
from tests.unionread.world import PAIMON, World, world

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
NEAR = st.integers(-40, 40)
ENCODED = TableDescriptor(Schema((Column("k", types.bigint()),), ("k",)), bucket_count=1)
ENCODER = primary_key_encoder(ENCODED)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("changed"), PAIMON) as running:
        yield running


def table_of(stream: World, key: DataType) -> Table:
    return stream.create(Schema((Column("k", key), Column("v", types.int_()))), buckets=1, primary_key=["k"])


def found(table: Table, asked: pa.RecordBatch, start: int, stop: int, flags_max: int = FLAGS_MAX) -> list[bool]:
    (bucket,) = table.buckets()
    keys = read_changed_keys(table.connection, table.info, bucket, start, stop, flags_max)
    return [bool(value) for value in keys.contains(asked)]


def asked_for(values: list[int], key: pa.DataType) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, key)], schema=pa.schema([pa.field("k", key, nullable=False)]))


@pytest.mark.parametrize(
    ("key", "arrow"),
    [
        (types.bigint(), pa.int64()),
        (types.int_(), pa.int32()),
        (types.smallint(), pa.int16()),
        (types.tinyint(), pa.int8()),
    ],
)
def test_whole_numbers_of_every_width_up_to_their_ends(stream: World, key: DataType, arrow: pa.DataType) -> None:
    table = table_of(stream, key)
    least, greatest = -(1 << (arrow.bit_width - 1)), (1 << (arrow.bit_width - 1)) - 1
    table.upsert([{"k": k, "v": 1} for k in (least, -1, 7, greatest)])
    values = [least, least + 1, -2, -1, 0, 6, 7, 8, greatest - 1, greatest]
    expected = [value in (least, -1, 7, greatest) for value in values]
    for flags_max in (0, FLAGS_MAX):
        assert found(table, asked_for(values, arrow), 0, 4, flags_max) == expected


def test_numbers_next_to_an_end_are_told_by_flags_without_an_overflow(stream: World) -> None:
    for first in (-(1 << 63), (1 << 63) - 5):
        table = table_of(stream, types.bigint())
        table.upsert([{"k": first + i, "v": 1} for i in (0, 2, 4)])
        ends = [-(1 << 63), (1 << 63) - 1]
        assert found(table, asked_for([first + i for i in range(5)] + ends, pa.int64()), 0, 3)[:5] == [
            True, False, True, False, True
        ]  # fmt: skip
        assert found(table, asked_for(ends, pa.int64()), 0, 3) == [first == ends[0], first != ends[0]]


def test_an_old_image_alone_changes_nothing(stream: World) -> None:
    """Where a piece ends between the old and the new image of a row, the row that the lake has still counts."""
    table = table_of(stream, types.bigint())
    table.upsert([{"k": 1, "v": 1}, {"k": 2, "v": 1}])
    table.upsert([{"k": 1, "v": 2}])  # offsets 2 and 3
    asked = asked_for([1, 2], pa.int64())
    assert found(table, asked, 2, 3) == [False, False]
    assert found(table, asked, 2, 4) == [True, False]
    table.delete([{"k": 2}])
    assert found(table, asked, 4, 5) == [False, True]
    assert found(table, asked, 5, 5) == [False, False]


@given(st.data())
def test_both_ways_know_the_same_keys(data: st.DataObject) -> None:
    values = st.one_of(NEAR, LONGS) if data.draw(st.booleans()) else NEAR
    batches = data.draw(st.lists(st.lists(values, max_size=30), max_size=6))
    asked = asked_for(data.draw(st.lists(st.one_of(values, NEAR), max_size=40)), pa.int64())
    known = {value for batch in batches for value in batch}
    expected = [value.as_py() in known for value in asked.column(0)]
    numbers = changed_keys._distinct([asked_for(batch, pa.int64()) for batch in batches], ENCODER, keys_min=8)
    assert numbers.tolist() == sorted(known)
    if not known or max(known) - min(known) < 1 << 20:
        assert changed_keys._NearNumbers(numbers, ENCODER).contains(asked).tolist() == expected
    by_bytes = changed_keys._EncodedKeys(ENCODER, [asked_for(batch, pa.int64()) for batch in batches])
    assert by_bytes.contains(asked).tolist() == expected


def test_the_numbers_are_those_of_all_batches_when_there_are_many() -> None:
    batches = [asked_for(list(range(i, i + 1000)), pa.int64()) for i in range(0, 5000, 500)]
    assert changed_keys._distinct(batches, ENCODER, keys_min=100).tolist() == list(range(5500))


def test_a_null_key_in_a_file_is_an_error_also_where_numbers_are_told_by_flags(stream: World) -> None:
    table = table_of(stream, types.bigint())
    table.upsert([{"k": 1, "v": 1}])
    broken = pa.RecordBatch.from_pydict({"k": pa.array([1, None], pa.int64())})
    for flags_max in (0, FLAGS_MAX):
        with pytest.raises(InvalidRequest, match="key column 'k' is null in row 1"):
            found(table, broken, 0, 1, flags_max)
