"""KV record batches and value batches: golden bytes, round trips, sizes, hostile input, schema evolution."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import CorruptData
from forebay.codec.crc import crc32c
from forebay.codec.kv._records import join_value_batch
from forebay.codec.kv.kv_batch import HEADER_BYTES, KvRecordsBuilder, encode_kv_batch, parse_kv_batch, seal_kv_batch
from forebay.codec.kv.value_batch import (
    ValueDecoder,
    encode_value_batch,
    parse_value_batch,
    parse_values,
    stored_schema_id,
    stored_value,
)
from forebay.codec.rows.row_codec import row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.metadata import types
from forebay.metadata.table import Column, Schema

records = st.lists(st.tuples(st.binary(max_size=30), st.none() | st.binary(min_size=1, max_size=40)), max_size=20)


def arrays(pairs: list[tuple[bytes, bytes | None]]) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    return pa.array([k for k, _ in pairs], pa.binary()), pa.array([v for _, v in pairs], pa.binary())


def test_two_rows_encode_to_the_bytes_of_pyfluss():
    """Golden (reference 2.5): rows (1, "xx") and (300, null with int 300), as pyfluss sent them."""
    keys = pa.array([b"\x01", b"\xac\x02"], pa.binary())
    rows = pa.array([bytes.fromhex("0001027878"), bytes.fromhex("02ac02")], pa.binary())
    batch = encode_kv_batch(keys, rows, 1, 0, 0)
    golden_records = bytes.fromhex("07000000 01 01 0001027878 06000000 02 ac02 02ac02")
    assert batch[:5].hex() == "2d00000000" or len(batch) - 4 == struct.unpack("<i", batch[:4])[0]
    assert batch[HEADER_BYTES:] == golden_records


def test_a_delete_encodes_to_the_bytes_of_pyfluss():
    """Golden (reference appendix D): delete of key 7, writer 77, sequence 2."""
    batch = encode_kv_batch(pa.array([b"\x07"], pa.binary()), pa.array([None], pa.binary()), 1, 77, 2)
    assert batch.hex() == "1e000000007bc1d9cc0100004d00000000000000020000000100000002000000" + "0107"


@given(pairs=records, schema_id=st.integers(-(2**15), 2**15 - 1), writer=st.integers(-1, 2**63 - 1))
def test_kv_batches_parse_back(pairs, schema_id, writer):
    batch = parse_kv_batch(encode_kv_batch(*arrays(pairs), schema_id, writer, 5))
    assert (batch.schema_id, batch.writer_id, batch.sequence) == (schema_id, writer, 5)
    assert batch.keys == [k for k, _ in pairs]
    assert [batch.rows[i] for i in range(len(pairs))] == [v for _, v in pairs]


@given(pairs=records, bytes_max=st.integers(1, 300))
def test_batches_keep_to_their_size_and_order(pairs, bytes_max):
    built = list(KvRecordsBuilder(*arrays(pairs), 1).batches(bytes_max))
    seen = []
    for batch, count in built:
        assert len(batch) <= bytes_max or count == 1
        seal_kv_batch(batch, 1, 2)
        parsed = parse_kv_batch(bytes(batch))
        assert len(parsed.keys) == count
        seen += [(k, parsed.rows[i]) for i, k in enumerate(parsed.keys)]
    assert seen == pairs


def test_records_of_sliced_arrays_are_read_at_their_offsets():
    keys, rows = arrays([(b"a", b"1"), (b"b", None), (b"c", b"3")])
    parsed = parse_kv_batch(encode_kv_batch(keys.slice(1), rows.slice(1), 1))
    assert (parsed.keys, [parsed.rows[0], parsed.rows[1]]) == ([b"b", b"c"], [None, b"3"])


@given(pairs=records, position=st.integers(0, 400), value=st.integers(0, 255))
def test_a_flipped_byte_is_noticed_or_harmless(pairs, position, value):
    batch = bytearray(encode_kv_batch(*arrays(pairs), 1, 2, 3))
    if position >= len(batch) or batch[position] == value:
        return
    batch[position] = value
    with pytest.raises(CorruptData, match="record batch is malformed"):
        parse_kv_batch(bytes(batch))


@given(data=st.binary(max_size=80), count=st.integers(-5, 40))
def test_hostile_records_behind_a_right_checksum_are_refused_or_parsed(data, count):
    batch = bytearray(HEADER_BYTES) + data
    struct.pack_into("<ibIhbqii", batch, 0, len(batch) - 4, 0, 0, 1, 0, -1, -1, count)
    struct.pack_into("<I", batch, 5, crc32c(batch, 9, len(batch)))
    try:
        parsed = parse_kv_batch(bytes(batch))
    except CorruptData:
        return
    assert len(parsed.keys) == len(parsed.rows) == count


@given(values=st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=30)), max_size=20))
def test_value_batches_parse_back(values):
    stored = [stored_value(i, row) for i, row in values]
    assert [stored_schema_id(s) for s in stored] == [i for i, _ in values]
    ids, rows = parse_value_batch(encode_value_batch(stored))
    assert list(zip(ids.tolist(), [rows[i] for i in range(len(rows))])) == values


@given(data=st.binary(max_size=60))
def test_hostile_value_batches_are_refused_or_parsed(data):
    try:
        ids, rows = parse_value_batch(data)
    except CorruptData:
        return
    assert len(ids) == len(rows)


def test_a_value_shorter_than_its_schema_id_is_corrupt():
    with pytest.raises(CorruptData, match="shorter than its schema id"):
        parse_values([b"\x01"])


def test_rows_of_several_schema_versions_decode_to_one_schema():
    a, b, c = (
        Column("a", types.int_(), column_id=0),
        Column("b", types.string(), column_id=1),
        Column("c", types.bigint(), column_id=2),
    )
    versions = {1: Schema((a,)), 2: Schema((a, b)), 3: Schema((a, b, c))}
    encode = {i: row_codec(s.columns, RowFormat.COMPACTED) for i, s in versions.items()}

    def row(version: int, **values: object) -> bytes:
        return encode[version].encode(pa.RecordBatch.from_pylist([values], schema=encode[version].schema))[0].as_py()

    values = [
        (1).to_bytes(2, "little") + row(1, a=1),
        (3).to_bytes(2, "little") + row(3, a=3, b="x", c=9),
        (2).to_bytes(2, "little") + row(2, a=2, b=None),
        (1).to_bytes(2, "little") + row(1, a=4),
    ]
    decoder = ValueDecoder((c, a), RowFormat.COMPACTED, versions.__getitem__)
    decoded = decoder.decode(*parse_values(values))
    assert decoded.to_pylist() == [{"c": None, "a": 1}, {"c": 9, "a": 3}, {"c": None, "a": 2}, {"c": None, "a": 4}]
    assert decoder.decode(*parse_values([])).num_rows == 0
    assert decoder.decode(*parse_values(values[:1])).to_pylist() == [{"c": None, "a": 1}]


@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=30),
    bytes_max=st.integers(-1, 60),
    rows_max=st.integers(0, 10),
)
def test_a_page_takes_at_least_one_value_and_stops_at_its_limits(sizes, bytes_max, rows_max):
    source = [bytes([number]) * size for number, size in enumerate(sizes)]
    iterator = iter(source[1:])
    batch, rows, ended = join_value_batch(source[0], iterator, bytes_max, rows_max)
    assert batch == encode_value_batch(source[:rows])
    assert 1 <= rows <= max(rows_max, 1)
    assert sum(sizes[: rows - 1]) < bytes_max or rows == 1
    if ended:
        assert rows == len(source)
    else:
        assert list(iterator) == source[rows:]
        assert sum(sizes[:rows]) >= bytes_max or rows >= rows_max


def test_a_page_grows_for_a_value_beyond_its_limit():
    batch, rows, _ = join_value_batch(b"small", iter([b"x" * 100_000]), 10, 5)
    assert (batch, rows) == (encode_value_batch([b"small", b"x" * 100_000]), 2)


def test_a_page_of_anything_but_bytes_is_refused():
    with pytest.raises(TypeError, match="not int"):
        join_value_batch(b"a", iter([1]), 10, 5)


def test_taking_positions_shares_the_rows():
    ids, rows = parse_values([b"\1\0a", b"\1\0b", b"\1\0c"])
    assert [rows.take(np.array([2, 0]))[i] for i in range(2)] == [b"c", b"a"]
    with pytest.raises(IndexError):
        rows.take(np.array([3]))
    assert ids.tolist() == [1, 1, 1]
