"""The aligned-row codec in plain Python: golden vectors, the compiled kernel, hostile bytes."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.base.errors import CorruptData, InvalidRequest
from forebay.codec.rows.aligned_row import _array, _Budget, decode_row, encode_array, encode_row, slot_reader
from forebay.codec.rows.row_codec import row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.metadata import types
from forebay.metadata.types import DataType
from tests.codec.log_batch_strategies import batch_of, rows_of, schemas
from tests.codec.row_strategies import data_types, nullable_values
from tests.every_run import examples


@pytest.mark.parametrize(
    ("data_types_", "values", "expected"),
    [
        ([types.int_()], [42], "00000000000000002a00000000000000"),
        ([types.int_(), types.string()], [7, "hi"], "000000000000000007000000000000006869000000000082"),
        ([types.string()], ["1234567"], "000000000000000031323334353637" + "87"),
        ([types.string()], ["12345678"], "0000000000000000" + "0800000010000000" + "3132333435363738"),
        ([types.string()], [None], "0001000000000000" + "00" * 8),
        ([types.timestamp(6)], [123_456], "0000000000000000" + "40f5060010000000" + "7b00000000000000"),
        ([types.timestamp(3)], [-1], "0000000000000000" + "ff" * 8),
        ([types.decimal(4, 2)], [Decimal("0.05")], "0000000000000000" + "0500000000000000"),
        ([types.decimal(25, 5)], [Decimal("-0.00001")], "0000000000000000" + "0100000010000000" + "ff" + "00" * 15),
        ([types.boolean(), types.tinyint()], [True, -1], "0000000000000000" + "01" + "00" * 7 + "ff" + "00" * 7),
    ],
)
def test_rows_have_the_bytes_of_flusses_aligned_row(data_types_, values, expected):
    assert encode_row(data_types_, values).hex() == expected
    assert decode_row(data_types_, bytes.fromhex(expected)) == values


def elements_of(element: DataType, data: bytes) -> list[Any]:
    """The elements of an array, as a row with one array column decodes them."""
    return _array(element, memoryview(data), _Budget([element], len(data)))


def test_a_57th_field_takes_a_second_word_of_null_bits():
    encoded = encode_row([types.int_()] * 60, [None if i == 56 else i for i in range(60)])
    assert (encoded[:16].hex(), struct.unpack_from("<i", encoded, 16 + 8 * 59)) == ("00" * 8 + "01" + "00" * 7, (59,))


def test_nan_is_the_same_bits_in_arrays_but_kept_in_rows():
    negative_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000000))[0]
    assert encode_array(types.double(), [negative_nan])[8:16] == struct.pack("<Q", 0x7FF8000000000000)
    assert encode_row([types.double()], [negative_nan])[8:16] == struct.pack("<Q", 0xFFF8000000000000)


@settings(max_examples=examples(60))
@given(data=st.data(), schema=schemas())
def test_the_compiled_kernel_writes_what_this_codec_writes(data, schema):
    rows = data.draw(rows_of(schema))
    encoded = [encode_row(schema.types, row) for row in rows]
    assert [decode_row(schema.types, row) for row in encoded] == rows
    assert row_codec(schema.columns, RowFormat.ALIGNED).encode(batch_of(schema, rows)).to_pylist() == encoded


@settings(max_examples=examples(150))
@given(data=st.data(), t=data_types())
def test_mutated_rows_give_corrupt_data_or_values(data, t):
    encoded = bytearray(encode_row([t], [data.draw(nullable_values(t))]))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del encoded[data.draw(st.integers(0, len(encoded))) :]
    try:
        values = decode_row([t], encoded)
    except CorruptData:
        return
    assert len(values) == 1


def test_overlapping_nested_values_do_not_blow_up():
    t = types.array(types.array(types.array(types.array(types.array(types.tinyint())))))
    bomb = struct.pack("<ii", 40, 0) + struct.pack("<i", 0) + struct.pack("<Q", 0 << 32 | 332) * 40
    with pytest.raises(CorruptData):
        elements_of(t, bomb)


def test_values_that_do_not_fit_name_their_field():
    with pytest.raises(InvalidRequest, match="field 1: 300 is not a TINYINT"):
        encode_row([types.int_(), types.tinyint()], [1, 300])
    with pytest.raises(InvalidRequest, match="field 0: 'x' is not a INT"):
        encode_row([types.int_()], ["x"])
    with pytest.raises(InvalidRequest, match="cannot be read alone"):
        slot_reader(types.array(types.int_()))


def _row_with_slot(slot: int, more: bytes = b"") -> bytes:
    """A row of one field whose slot holds `slot`, with `more` bytes behind."""
    return bytes(8) + struct.pack("<Q", slot) + more


def test_a_section_may_end_where_its_row_ends_and_no_byte_later():
    wide, fine = types.decimal(25, 0), types.timestamp(6)
    assert decode_row([wide], _row_with_slot(16 << 32 | 16, bytes(15) + b"\7")) == [Decimal(7)]
    assert decode_row([fine], _row_with_slot(16 << 32 | 999_999, struct.pack("<q", 1))) == [1_999]
    assert decode_row([types.string()], _row_with_slot(16 << 32 | 8, b"12345678")) == ["12345678"]
    for t, slot, more, match in (
        (wide, 16 << 32 | 17, bytes(32), "a decimal at 16"),
        (wide, 16 << 32 | 0, bytes(16), "a decimal at 16"),
        (wide, 17 << 32 | 16, bytes(16), "a decimal at 17"),
        (fine, 17 << 32 | 0, bytes(8), "a timestamp at 17"),
        (fine, 16 << 32 | 1_000_000, bytes(8), "a timestamp at 16"),
        (types.string(), 17 << 32 | 8, b"12345678", "8 bytes at 17 of 24"),
        (types.string(), 0x88 << 56, b"", "8 bytes inside a slot"),
    ):
        with pytest.raises(CorruptData, match=match):
            decode_row([t], _row_with_slot(slot, more))


def test_arrays_and_maps_may_be_as_short_as_their_counts():
    assert elements_of(types.int_(), bytes(4)) == []
    counts = types.map_(types.int_(), types.int_())
    empty = struct.pack("<i", 4) + bytes(4) + bytes(4)
    assert decode_row([counts], _row_with_slot(16 << 32 | 12, empty)) == [[]]
    for data, match in ((bytes(3), "without a count"), (struct.pack("<i", -1), "an array of -1"),
                        (struct.pack("<ii", 1, 0), "an array of 1 elements in 8 bytes")):  # fmt: skip
        with pytest.raises(CorruptData, match=match):
            elements_of(types.int_(), data)
    for data, match in ((bytes(3), "without a length"), (struct.pack("<i", -1), "-1 bytes of keys"),
                        (struct.pack("<i", 1), "1 bytes of keys")):  # fmt: skip
        with pytest.raises(CorruptData, match=match):
            decode_row([counts], _row_with_slot(16 << 32 | len(data), data))
    one_key = encode_array(types.int_(), [1])
    section = struct.pack("<i", len(one_key)) + one_key + bytes(4)
    with pytest.raises(CorruptData, match="a map of 1 keys and 0 values"):
        decode_row([counts], _row_with_slot(16 << 32 | len(section), section))
    with pytest.raises(CorruptData, match="15 bytes are too few for 1 fields"):
        decode_row([types.int_()], bytes(15))
