"""Batches built here and read back: every type, every layout, every position in a buffer."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.base.errors import CorruptData, InvalidRequest, UnsupportedOperation
from forebay.codec.log.header import iter_headers, parse_header, verify_crc
from forebay.codec.log.log_batch import (
    ChangeType,
    align_batch,
    build_arrow_batch,
    build_empty_batch,
    build_row_batch,
    change_types,
    decode_arrow_batch,
    decode_row_batch,
    validate_arrow_body,
)
from forebay.metadata import types
from forebay.metadata.table import Column, Schema
from tests.codec.log_batch_strategies import batch_of, compressions, schema_of, tables
from tests.every_run import examples


@settings(max_examples=examples(100))
@given(
    table=tables(),
    compression=compressions,
    kinds=st.none() | st.binary(min_size=6, max_size=6),
    with_statistics=st.booleans(),
    padding=st.integers(0, 9),
)
def test_arrow_batches_decode_to_what_they_were_built_from(table, compression, kinds, with_statistics, padding):
    schema, batch = table
    kinds = None if kinds is None else bytes(kind % 5 for kind in kinds[: batch.num_rows])
    built = build_arrow_batch(
        batch,
        schema_id=7,
        change_types=kinds,
        writer_id=3,
        batch_sequence=5,
        compression=compression,
        statistics_columns=range(batch.num_columns) if with_statistics else None,
    )
    data = bytes(padding) + built
    header = parse_header(data, padding)
    assert header.size_bytes == len(built)
    assert (header.magic, header.schema_id, header.writer_id, header.batch_sequence, header.record_count) == (
        int(with_statistics), 7, 3, 5, batch.num_rows,
    )  # fmt: skip
    verify_crc(data, padding, header)
    validate_arrow_body(data, padding, header, schema)
    decoded = decode_arrow_batch(data, padding, header, schema)
    decoded.validate(full=True)
    assert decoded.equals(batch)
    read = change_types(data, padding, header)
    assert (None if read is None else bytes(read.to_pylist())) == kinds


@settings(max_examples=examples(50))
@given(table=tables(max_rows=20), compression=compressions, cut=st.tuples(st.integers(0, 20), st.integers(0, 20)))
def test_slices_are_written_as_if_they_were_whole(table, compression, cut):
    schema, batch = table
    part = batch.slice(*cut)
    copied = pa.RecordBatch.from_arrays([pa.concat_arrays([c]) for c in part.columns], schema=part.schema)
    built = build_arrow_batch(part, schema_id=1, compression=compression)
    if compression == "none":
        assert built == build_arrow_batch(copied, schema_id=1)
    assert decode_arrow_batch(built, 0, parse_header(built), schema).equals(part)


def test_an_uncompressed_aligned_batch_is_decoded_without_a_copy():
    schema = schema_of(types.bigint())
    built = bytes(build_arrow_batch(batch_of(schema, [[1], [2]]), schema_id=1))
    decoded = decode_arrow_batch(built, 0, parse_header(built), schema)
    start = np.frombuffer(built, np.uint8).ctypes.data
    assert start <= decoded.column(0).buffers()[1].address < start + len(built)


def test_a_badly_placed_batch_is_decoded_into_aligned_memory():
    schema = schema_of(types.bigint(), types.string())
    data = b"?" + build_arrow_batch(batch_of(schema, [[1, "a"], [2, None]]), schema_id=1)
    decoded = decode_arrow_batch(data, 1, parse_header(data, 1), schema)
    assert decoded.column(0).buffers()[1].address % 8 == 0
    assert decoded.to_pylist() == [{"c0": 1, "c1": "a"}, {"c0": 2, "c1": None}]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_large_batches_round_trip(compression):
    schema = schema_of(types.bigint(), types.string(), types.boolean())
    count = 50_000
    batch = pa.record_batch(
        [
            pa.array(np.arange(count)),
            pa.array([f"value {i % 100}" for i in range(count)]),
            pa.array([i % 3 == 0 for i in range(count)]),
        ],
        names=list(schema.names),
    )
    data = b"???" + build_arrow_batch(batch, schema_id=1, compression=compression)
    assert decode_arrow_batch(data, 3, parse_header(data, 3), schema).to_pydict() == batch.to_pydict()


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_times_beyond_the_day_and_too_many_digits_do_not_make_a_batch_unreadable(compression):
    # Other writers check neither: Java's TIME is an int that is not validated.
    schema = schema_of(types.time(0), types.array(types.decimal(3, 0)), types.map_(types.string(), types.time(9)))
    times = pa.array([100_663, -1], pa.int32()).view(pa.time32("s"))
    digits = pa.array([Decimal(10**20)], pa.decimal128(38, 0)).view(pa.binary(16)).view(pa.decimal128(3, 0))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1], pa.int32()), digits)
    late = pa.array([10**15], pa.int64()).view(pa.time64("ns"))
    maps = pa.MapArray.from_arrays(pa.array([0, 0, 1], pa.int32()), pa.array(["k"]), late)
    batch = pa.record_batch([times, lists, maps], names=list(schema.names))
    built = build_arrow_batch(batch, schema_id=1, compression=compression)
    decoded = decode_arrow_batch(built, 0, parse_header(built), schema)
    assert decoded.column(0).view(pa.int32()).to_pylist() == [100_663, -1]
    assert decoded.column(1).values.to_pylist() == [Decimal(10**20)]
    assert decoded.column(2).items.view(pa.int64()).to_pylist() == [10**15]
    broken = bytearray(build_arrow_batch(batch.set_column(2, "c2", pa.array([[("k\u00e9", None)]] * 2, maps.type)),
                                         schema_id=1))  # fmt: skip
    broken[broken.index("é".encode())] = 0xFF
    with pytest.raises(CorruptData, match="UTF8"):
        decode_arrow_batch(broken, 0, parse_header(broken), schema)


def test_a_batch_without_rows_is_a_header_that_takes_one_offset():
    schema = schema_of(types.int_())
    for built in (
        build_empty_batch(schema_id=1, writer_id=4, batch_sequence=2),
        build_arrow_batch(batch_of(schema, []), schema_id=1, change_types=b"", writer_id=4, batch_sequence=2),
        build_row_batch(pa.array([], pa.binary()), schema_id=1, change_types=b"", writer_id=4, batch_sequence=2),
    ):
        header = parse_header(built)
        verify_crc(built, 0, header)
        assert (len(built), header.record_count, header.last_offset_delta, header.next_offset) == (48, 0, 0, 1)
        validate_arrow_body(built, 0, header, schema)
        decoded = decode_arrow_batch(built, 0, header, schema)
        assert (decoded.num_rows, decoded.schema.names) == (0, ["c0"])
        assert change_types(built, 0, header).to_pylist() == []
        assert decode_row_batch(built, 0, header)[0].to_pylist() == []


def test_no_statistics_columns_still_make_a_batch_of_magic_one():
    built = build_arrow_batch(batch_of(schema_of(types.int_()), [[1]]), schema_id=1, statistics_columns=[])
    assert (parse_header(built).magic, parse_header(built).statistics_length) == (1, 0)


def test_batches_follow_each_other_in_one_buffer():
    schema = schema_of(types.int_(), types.string())
    batches = [batch_of(schema, [[i, "x" * i]] * (i + 1)) for i in range(5)]
    data = b"".join(build_arrow_batch(b, schema_id=1, change_types=bytes([1] * b.num_rows)) for b in batches)
    decoded = [decode_arrow_batch(data, position, header, schema) for position, header in iter_headers(data)]
    assert [d.to_pylist() for d in decoded] == [b.to_pylist() for b in batches]


@settings(max_examples=examples(100))
@given(rows=st.lists(st.binary(max_size=20), max_size=10), kinds=st.none() | st.binary(min_size=10, max_size=10))
def test_row_batches_decode_to_what_they_were_built_from(rows, kinds):
    kinds = None if kinds is None else bytes(kind % 5 for kind in kinds[: len(rows)])
    array = pa.array([b"skipped", *rows], pa.binary()).slice(1)
    built = build_row_batch(array, schema_id=2, change_types=kinds)
    header = parse_header(built)
    verify_crc(built, 0, header)
    decoded, read = decode_row_batch(built, 0, header)
    decoded.validate(full=True)
    assert decoded.to_pylist() == rows
    assert read.to_pylist() == list(kinds or bytes(len(rows)))
    assert header.append_only is (kinds is None)


def test_batches_that_cannot_be_are_refused_with_the_column_named():
    column = pa.array([1, None])
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    with pytest.raises(InvalidRequest, match="'id' is NOT NULL, but has 1 null"):
        build_arrow_batch(pa.RecordBatch.from_arrays([column], schema=strict), schema_id=1)
    with pytest.raises(InvalidRequest, match="'big' has Arrow format 'U'"):
        build_arrow_batch(pa.record_batch({"big": pa.array(["a"], pa.large_string())}), schema_id=1)
    with pytest.raises(InvalidRequest, match="'d' has Arrow format"):
        build_arrow_batch(pa.record_batch({"d": pa.array(["a"]).dictionary_encode()}), schema_id=1)
    with pytest.raises(InvalidRequest, match="3 change types for 2 rows"):
        build_arrow_batch(pa.record_batch({"id": column}), schema_id=1, change_types=b"\1\1\1")
    with pytest.raises(InvalidRequest, match="change type 5 does not exist"):
        build_arrow_batch(pa.record_batch({"id": column}), schema_id=1, change_types=b"\1\5")
    with pytest.raises(InvalidRequest, match="schema id 40000"):
        build_arrow_batch(pa.record_batch({"id": column}), schema_id=40_000)
    with pytest.raises(InvalidRequest, match="compression 'brotli'"):
        build_arrow_batch(pa.record_batch({"id": column}), schema_id=1, compression="brotli")
    with pytest.raises(InvalidRequest, match="level 99"):
        build_arrow_batch(pa.record_batch({"id": column}), schema_id=1, compression="zstd", level=99)
    with pytest.raises(InvalidRequest, match="1 of 2 encoded rows are null"):
        build_row_batch(pa.array([b"a", None]), schema_id=1)
    with pytest.raises(InvalidRequest, match="must be a Binary array"):
        build_row_batch(pa.array(["a"]), schema_id=1)


def test_change_types_have_the_numbers_of_the_format():
    assert [(c.name, int(c)) for c in ChangeType] == [
        ("APPEND_ONLY", 0), ("INSERT", 1), ("UPDATE_BEFORE", 2), ("UPDATE_AFTER", 3), ("DELETE", 4),
    ]  # fmt: skip


# ---- schema evolution -----------------------------------------------------------------------------------------------


def _columns(*specs: tuple[str, types.DataType, int]) -> tuple[Column, ...]:
    return tuple(Column(name, t, None, column_id) for name, t, column_id in specs)


def test_a_batch_of_an_older_schema_is_mapped_by_column_id():
    old = _columns(("a", types.int_(), 0), ("b", types.string(), 1), ("gone", types.int_(), 2))
    new = _columns(("B", types.string(), 1), ("c", types.array(types.string()), 3), ("a", types.int_(), 0))
    batch = pa.record_batch([pa.array([1, 2], pa.int32()), pa.array(["x", None]), pa.array([0, 0], pa.int32())],
                            names=["a", "b", "gone"])  # fmt: skip
    aligned = align_batch(batch, old, new)
    assert aligned.to_pylist() == [{"B": "x", "c": None, "a": 1}, {"B": None, "c": None, "a": 2}]
    assert aligned.column(0).buffers()[2].address == batch.column(1).buffers()[2].address
    assert align_batch(batch, old, old) is batch
    assert align_batch(batch, Schema.of(old), Schema.of(list(old))) is batch


def test_a_column_that_changed_its_type_cannot_be_mapped():
    old, new = _columns(("a", types.int_(), 0)), _columns(("a", types.bigint(), 0))
    with pytest.raises(UnsupportedOperation, match="'a' changed from INT to BIGINT"):
        align_batch(pa.record_batch({"a": pa.array([1], pa.int32())}), old, new)


def test_the_least_and_the_greatest_schema_id_are_written_and_read():
    for schema_id in (0, 32_767):
        assert parse_header(build_empty_batch(schema_id=schema_id)).schema_id == schema_id
    for schema_id in (-1, 32_768):
        with pytest.raises(InvalidRequest, match=f"schema id {schema_id}"):
            build_empty_batch(schema_id=schema_id)
