"""The compiled row codecs against the plain-Python reference, golden vectors and hostile bytes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import CorruptData, InvalidRequest
from forebay.codec.rows._slices import RowSlices
from forebay.codec.rows.row_codec import row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.metadata import types
from forebay.metadata.table import Column
from forebay.metadata.types import DataType
from tests.codec import reference
from tests.codec.row_strategies import data_types, nullable_values, to_array

# Text that is not UTF-8, decimals with too many digits, times beyond the day: the rows are well formed all the same.
VALUES_OUT_OF_RANGE = ("UTF8", "recision", "fit", "not within the acceptable range")
VALUE_FORMATS = [RowFormat.COMPACTED, RowFormat.INDEXED]


def columns_of(*data_types_: DataType) -> tuple[Column, ...]:
    return tuple(Column(f"c{i}", t, column_id=i) for i, t in enumerate(data_types_))


def batch_of(columns: tuple[Column, ...], rows: list[list[Any]]) -> pa.RecordBatch:
    schema = row_codec(columns, RowFormat.COMPACTED).schema
    arrays = [to_array(column.data_type, [row[i] for row in rows]) for i, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@st.composite
def tables(draw: st.DrawFn) -> tuple[tuple[Column, ...], list[list[Any]]]:
    columns = columns_of(*draw(st.lists(data_types(), min_size=1, max_size=5)))
    row = st.tuples(*(nullable_values(c.data_type) for c in columns)).map(list)
    return columns, draw(st.lists(row, max_size=6))


@pytest.mark.parametrize("row_format", VALUE_FORMATS)
@given(table=tables())
def test_rows_encode_to_the_bytes_of_the_reference_and_decode_to_themselves(table, row_format):
    columns, rows = table
    batch = batch_of(columns, rows)
    codec = row_codec(columns, row_format)
    encoded = codec.encode(batch)
    assert encoded.to_pylist() == [
        reference.encode_row([c.data_type for c in columns], row, row_format) for row in rows
    ]
    decoded = codec.decode(encoded)
    decoded.validate(full=True)
    assert decoded.equals(batch)


@given(table=tables())
def test_aligned_rows_decode_to_themselves(table):
    columns, rows = table
    batch = batch_of(columns, rows)
    codec = row_codec(columns, RowFormat.ALIGNED)
    assert codec.decode(codec.encode(batch)).equals(batch)


@pytest.mark.parametrize("row_format", VALUE_FORMATS)
@given(table=tables(), data=st.data())
def test_decoding_some_columns_gives_what_decoding_all_gives(table, row_format, data):
    columns, rows = table
    wanted = tuple(sorted(data.draw(st.sets(st.integers(0, len(columns) - 1)))))
    encoded = row_codec(columns, row_format).encode(batch_of(columns, rows))
    whole = row_codec(columns, row_format).decode(encoded)
    some = row_codec(columns, row_format, wanted).decode(encoded)
    assert some.num_rows == whole.num_rows
    assert some.equals(whole.select(list(wanted)))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_numbers_of_any_length_are_read_and_walked_over_wherever_a_row_ends(wanted):
    """Eight bytes at once are read of a number if the row has them, and a number may have up to ten."""
    ends = [1 << 7 * length for length in range(1, 10)]
    numbers = [None, -1, 0, *(end - 1 for end in ends), *ends[:-1]]
    columns = columns_of(types.bigint(), types.bigint(), types.string())
    rows = [[first, second, text] for first in numbers for second in numbers for text in (None, "", "a", "12345678")]
    encoded = row_codec(columns, RowFormat.COMPACTED).encode(batch_of(columns, rows))
    decoded = row_codec(columns, RowFormat.COMPACTED, wanted).decode(encoded)
    assert decoded.equals(batch_of(columns, rows).select(list(wanted)))


@pytest.mark.parametrize("row_format", [*VALUE_FORMATS, RowFormat.ALIGNED])
@given(table=tables(), data=st.data())
def test_hostile_bytes_are_refused_or_decode_to_valid_arrays(table, row_format, data):
    columns, rows = table
    encoded = row_codec(columns, row_format).encode(batch_of(columns, rows)).to_pylist()
    victims = encoded or [b""]
    mutated = bytearray(data.draw(st.sampled_from(victims)))
    for position, value in data.draw(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4)):
        if position < len(mutated):
            mutated[position] = value
    cut = data.draw(st.integers(0, len(mutated)))
    raw = bytes(mutated[:cut]) + data.draw(st.binary(max_size=4))
    try:
        decoded = row_codec(columns, row_format).decode([raw])
    except CorruptData:
        return
    assert decoded.num_rows == 1
    for column in decoded.columns:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as e:  # values that their type does not hold are the caller's: see VALUES_OUT_OF_RANGE
            assert any(reason in str(e) for reason in VALUES_OUT_OF_RANGE)  # noqa: PT017


@given(data=st.binary(max_size=60), t=data_types())
def test_random_bytes_never_crash_the_decoder(data, t):
    columns = columns_of(t, types.int_())
    for row_format in (*VALUE_FORMATS, RowFormat.ALIGNED):
        try:
            row_codec(columns, row_format).decode([data])
        except CorruptData as e:
            assert "row 0 is malformed" in e.message  # noqa: PT017


def test_nested_values_that_point_at_the_same_bytes_are_refused():
    """Eight levels of arrays whose slots all name one child would otherwise expand to 64 to the power of eight."""
    t = types.array(types.int_())
    level = reference.encode_array(types.int_(), [1], RowFormat.COMPACTED)
    for _ in range(8):
        t = types.array(t)
        count, header = 64, 4 + 8
        fixed = header + 8 * count + (-(header + 8 * count)) % 8
        slot = (fixed << 32 | len(level)).to_bytes(8, "little")
        body = count.to_bytes(4, "little") + bytes(8) + slot * count
        level = body.ljust(fixed, b"\0") + level
    row = b"\0" + reference.varint(len(level), 32) + level
    with pytest.raises(CorruptData, match="overlap"):
        row_codec(columns_of(t), RowFormat.COMPACTED).decode([row])


@pytest.mark.parametrize("row_format", [*VALUE_FORMATS, RowFormat.ALIGNED])
def test_a_map_with_a_null_for_a_key_is_refused(row_format):
    columns = columns_of(types.map_(types.string(), types.bigint()))
    [row] = row_codec(columns, row_format).encode(batch_of(columns, [[[("key", 7)]]])).to_pylist()
    keys = row.index((1).to_bytes(4, "little") + bytes(4) + b"key")  # count, nulls, the first key
    malformed = bytearray(row)
    malformed[keys + 4] = 1
    with pytest.raises(CorruptData, match="a nested value is malformed"):
        row_codec(columns, row_format).decode([row, bytes(malformed)])


def test_all_types_row_of_pyfluss_encodes_to_its_bytes():
    """Golden: the PutKv record that pyfluss 1.0.0 sent."""
    columns = (
        Column("id", types.int_()), Column("b", types.boolean()), Column("i8", types.tinyint()),
        Column("i16", types.smallint()), Column("i64", types.bigint()), Column("f32", types.float_()),
        Column("f64", types.double()), Column("s", types.string()), Column("by", types.bytes_()),
        Column("fb", types.binary(4)), Column("d1", types.decimal(10, 2)), Column("d2", types.decimal(30, 4)),
        Column("dt", types.date()), Column("tm", types.time(3)), Column("ts3", types.timestamp(3)),
        Column("ts6", types.timestamp(6)), Column("ltz6", types.timestamp_ltz(6)),
        Column("ar", types.array(types.int_())), Column("mp", types.map_(types.string(), types.int_())),
        Column("st", types.row(types.field("x", types.int_()), types.field("y", types.string()))),
        Column("n", types.int_()),
    )  # fmt: skip
    moment = dt.datetime(2024, 1, 15, 10, 11, 12, 345678)
    row = {
        "id": 7, "b": True, "i8": -2, "i16": -300, "i64": -1, "f32": 1.5, "f64": -2.25, "s": "héllo",
        "by": b"\0\1", "fb": b"abcd", "d1": Decimal("-123.45"), "d2": Decimal("-12345678901234567890.1234"),
        "dt": dt.date(2024, 1, 15), "tm": dt.time(10, 11, 12, 345000), "ts3": moment.replace(microsecond=345000),
        "ts6": moment, "ltz6": moment, "ar": [1, None, 3], "mp": [("k", 5)], "st": {"x": 9, "y": "yy"}, "n": None,
    }  # fmt: skip
    codec = row_codec(columns, RowFormat.COMPACTED)
    batch = pa.RecordBatch.from_pylist([row], schema=codec.schema)
    golden = bytes.fromhex(
        "000010 07 01 fe d4fe ffffffffffffffffff01 0000c03f 00000000000002c0 0668c3a96c6c6f 020001 0461626364"
        "c79fffffffffffffff01 0ae5db64e0ef5f9369500e 999a01 d9a6be11 d99eeae4d031 d99eeae4d031f0b029"
        "d99eeae4d031f0b029 18 03000000 02000000 01000000 00000000 03000000 00000000"
        "24 10000000 01000000 00000000 6b00000000000081 01000000 00000000 05000000 00000000 05 0009027979"
    )
    assert codec.encode(batch).to_pylist() == [golden]
    assert codec.decode([golden]).equals(batch)


@pytest.mark.parametrize(
    ("data_type", "value", "golden"),
    [
        (types.smallint(), 10, "0a00"),
        (types.int_(), 100, "64"),
        (types.int_(), -1, "ffffffff0f"),
        (types.bigint(), -6101065172474983726, "d295fcd8ceb1aaaaab01"),
        (types.float_(), 13.2, "33335341"),
        (types.double(), 15.21, "ec51b81e856b2e40"),
        (types.date(), 19655, "c79901"),
        (types.time(3), 34_200_000, "c0b3a710"),
        (types.string(), "hello", "0568656c6c6f"),
        (types.char(2), "1", "0131"),
        (types.bytes_(), b"20", "023230"),
        (types.decimal(5, 2), Decimal("0.09"), "09"),
        (types.decimal(20, 0), Decimal(10), "010a"),
        (types.timestamp(1), 1698235273182, "de9fd7b5b631"),
        (types.timestamp_ltz(5), 1698235273182000, "de9fd7b5b63100"),
        (
            types.array(types.int_()),
            [1, 2, 3, 4, 5, -11, None, 444, 102234],
            "30 09000000 40000000 01000000 02000000 03000000 04000000 05000000 f5ffffff 00000000 bc010000 5a8f0100"
            "00000000",
        ),
    ],
)
def test_compacted_fields_match_upstreams_golden_vectors(data_type, value, golden):
    columns = columns_of(data_type)
    assert row_codec(columns, RowFormat.KEY).encode(batch_of(columns, [[value]])).to_pylist() == [bytes.fromhex(golden)]


def test_a_null_in_a_key_is_refused_with_its_row():
    columns = columns_of(types.int_())
    with pytest.raises(InvalidRequest, match="row 1 cannot be stored: a key column is null"):
        row_codec(columns, RowFormat.KEY).encode(batch_of(columns, [[1], [None]]))


def test_a_char_longer_than_an_indexed_row_can_hold_is_refused():
    columns = columns_of(types.char(2))
    with pytest.raises(InvalidRequest, match="CHAR"):
        row_codec(columns, RowFormat.INDEXED).encode(batch_of(columns, [["abc"]]))


def test_a_timestamp_beyond_64_bit_nanoseconds_is_corrupt_data():
    row = reference.encode_row([types.timestamp(3)], [2**60], RowFormat.COMPACTED) + b"\0"
    with pytest.raises(CorruptData, match="timestamp"):
        row_codec(columns_of(types.timestamp(9)), RowFormat.COMPACTED).decode([row])


def test_a_batch_of_another_schema_is_refused():
    codec = row_codec(columns_of(types.int_()), RowFormat.COMPACTED)
    with pytest.raises(InvalidRequest, match="expected a batch of schema"):
        codec.encode(pa.RecordBatch.from_pydict({"c0": pa.array([1], pa.int64())}))


def test_sliced_and_nested_arrays_are_read_at_their_offsets():
    nested = types.row(types.field("a", types.int_()), types.field("b", types.array(types.string())))
    columns = columns_of(types.int_(), nested, types.map_(types.string(), types.bigint()))
    rows = [[i, {"a": i, "b": [f"s{i}", None]}, [(f"k{i}", i)]] for i in range(10)]
    rows[4][1] = None
    codec = row_codec(columns, RowFormat.COMPACTED)
    whole = codec.encode(batch_of(columns, rows)).to_pylist()
    for start in range(10):
        assert codec.encode(batch_of(columns, rows).slice(start, 3)).to_pylist() == whole[start : start + 3]
    as_struct = batch_of(columns, rows).to_struct_array().slice(3, 4)
    assert codec.encode(pa.RecordBatch.from_struct_array(as_struct)).to_pylist() == whole[3:7]


def test_slices_give_back_the_values_they_were_made_of():
    slices = RowSlices.from_values([b"xxab", None, b"xx"], 2)
    assert [slices[i] for i in range(3)] == [b"ab", None, b""]
    assert slices.total_bytes == 2
    sliced = RowSlices.from_arrow(pa.array([b"a", None, b"bc", b""], pa.binary()).slice(1))
    assert [sliced[i] for i in range(3)] == [None, b"bc", b""]
    with pytest.raises(ValueError, match="at least 2"):
        RowSlices.from_values([b"x"], 2)


def test_an_empty_batch_encodes_and_decodes_to_nothing():
    columns = columns_of(types.string(), types.array(types.int_()))
    codec = row_codec(columns, RowFormat.COMPACTED)
    encoded = codec.encode(batch_of(columns, []))
    assert len(encoded) == 0
    assert codec.decode(encoded).equals(batch_of(columns, []))
