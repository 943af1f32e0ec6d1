"""Key encoders, hashes and buckets against upstream's golden vectors and the plain-Python reference."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import CorruptData, InvalidRequest, UnsupportedOperation
from forebay.codec._hash import fluss_hash32, iceberg_hash32
from forebay.codec.arrow.arrow_types import storage_schema
from forebay.codec.rows import murmur
from forebay.codec.rows.buckets import bucket_ids, bucket_of, split_by_group
from forebay.codec.rows.floats import canonical_floats
from forebay.codec.rows.keys import bucket_key_encoder, key_encoder, prefix_encoder, primary_key_encoder
from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableDescriptor
from forebay.metadata.types import DataType

FOX = b"The quick brown fox jumps over the lazy dog"


def descriptor(columns: dict[str, DataType], primary_key: tuple[str, ...], **options: object) -> TableDescriptor:
    schema = Schema.of([Column(name, t) for name, t in columns.items()], primary_key)
    return TableDescriptor(schema, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "count", "fluss", "paimon", "iceberg"),
    [
        (bytes.fromhex("000a"), 7, 1, 1, 3),
        (bytes.fromhex("000a0a0a"), 12, 0, 11, 4),
        (b"2bb87d68-baf9-4e64-90f9-f80910419fa6", 16, 6, 12, 12),
        (FOX, 8, 6, 0, 3),
    ],
)
def test_buckets_match_upstreams_golden_vectors(key, count, fluss, paimon, iceberg):
    assert bucket_of(key, count) == fluss == murmur.fluss_bucket(key, count)
    assert bucket_of(key, count, "lance") == fluss
    assert bucket_of(key, count, "paimon") == paimon
    assert bucket_of(key, count, "iceberg") == iceberg


@pytest.mark.parametrize(
    ("data", "seed", "expected"), [(b"", 42, 0x087FCD5C), (FOX, 42, 0x1BC6F880), (FOX, 0, 0x5FD20A20)]
)
def test_fluss_hash_matches_golden_vectors(data, seed, expected):
    assert fluss_hash32(data, seed) == expected == murmur.fluss_hash32(data, seed)


def test_second_pass_matches_golden_vectors():
    assert [murmur.integer_murmur(v) for v in (0, 42, -77)] == [0x2362F9DE, 0x43A46E1D, 0x2EEB27DE]


@given(key=st.binary(max_size=40), count=st.integers(1, 4096))
def test_every_key_hashes_and_buckets_as_the_reference_does(key, count):
    assert fluss_hash32(key, 42) == murmur.fluss_hash32(key, 42)
    assert bucket_of(key, count) == murmur.fluss_bucket(key, count)


@pytest.mark.parametrize(
    ("data_type", "value", "expected"),
    [
        (types.int_(), 34, 2017239379),
        (types.bigint(), 34, 2017239379),
        (types.string(), "iceberg", 1210000089),
        (types.decimal(4, 2), Decimal("14.20"), -500754589),
        (types.date(), dt.date(2017, 11, 16), -653330422),
        (types.time(3), dt.time(22, 31, 8), -662762989),
        (types.timestamp(6), dt.datetime(2017, 11, 16, 22, 31, 8), -2047944441),
        (types.timestamp(6), dt.datetime(2017, 11, 16, 22, 31, 8, 1), -1207196810),
        (types.bytes_(), b"\0\1\2\3", -188683207),
    ],
)
def test_iceberg_keys_hash_as_iceberg_says(data_type, value, expected):
    table = descriptor({"k": data_type}, ("k",))
    batch = pa.RecordBatch.from_pylist([{"k": value}], schema=storage_schema(table.schema.columns))
    key = key_encoder(table, ("k",), "iceberg").encode(batch)[0].as_py()
    assert iceberg_hash32(key) == expected % (1 << 32)


@pytest.mark.parametrize(
    ("value", "key", "of_3", "of_16"), [(1, "01", 0, 12), (128, "8001", 1, 2), (-1, "ffffffff0f", 0, 10)]
)
def test_int_keys_reach_the_buckets_that_pyfluss_uses(value, key, of_3, of_16):
    table = descriptor({"k": types.int_()}, ("k",))
    encoded = primary_key_encoder(table).encode(
        pa.RecordBatch.from_pylist([{"k": value}], schema=storage_schema(table.schema.columns))
    )
    assert encoded[0].as_py().hex() == key
    assert bucket_ids(encoded, 3).tolist() == [of_3]
    assert bucket_ids(encoded, 16).tolist() == [of_16]


def test_paimon_keys_are_binary_rows():
    table = descriptor({"a": types.int_(), "b": types.string()}, ("a", "b"))
    batch = pa.RecordBatch.from_pylist([{"a": 7, "b": "hi"}], schema=storage_schema(table.schema.columns))
    key = key_encoder(table, ("a", "b"), "paimon").encode(batch)[0].as_py()
    assert (len(key), key[0], key[8:12], key[16:18], key[23]) == (24, 0, b"\7\0\0\0", b"hi", 0x82)
    single = key_encoder(table, ("a",), "paimon").encode(batch)[0].as_py()
    assert (len(single), single[8:12]) == (16, b"\7\0\0\0")


def test_keys_follow_the_order_of_the_key_not_of_the_table():
    columns = {"region": types.string(), "score": types.bigint(), "user": types.int_()}
    table = descriptor(columns, ("user", "region"))
    batch = pa.RecordBatch.from_pylist(
        [{"region": "US", "score": 5, "user": 1}], schema=storage_schema(table.schema.columns)
    )
    assert primary_key_encoder(table).encode(batch)[0].as_py() == b"\x01\x02US"


def test_bucket_key_bytes_are_a_prefix_of_primary_key_bytes():
    columns = {"a": types.int_(), "b": types.string(), "c": types.bigint()}
    table = descriptor(columns, ("a", "b", "c"), bucket_keys=("a", "b"))
    batch = pa.RecordBatch.from_pylist([{"a": 300, "b": "x", "c": 9}], schema=storage_schema(table.schema.columns))
    bucket_encoder = bucket_key_encoder(table)
    assert bucket_encoder is not None
    prefix = bucket_encoder.encode(batch)[0].as_py()
    assert primary_key_encoder(table).encode(batch)[0].as_py().startswith(prefix)


@pytest.mark.parametrize(
    ("lake", "version", "bucket_keys", "first_byte"),
    [
        (None, "2", ("a", "b"), 7),  # compacted
        ("paimon", "1", ("a",), 0),  # version 1: always the lake's encoder
        ("paimon", "2", ("a", "b"), 0),  # default bucket key: the lake's
        ("paimon", "2", ("a",), 7),  # a prefix may be asked for: compacted
        ("hudi", "1", ("a", "b"), 7),  # lossy bucket hash: never for primary keys
    ],
)
def test_the_primary_key_encoder_follows_lake_format_and_version(lake, version, bucket_keys, first_byte):
    properties = {"table.kv.format-version": version} | ({"table.datalake.format": lake} if lake else {})
    table = descriptor(
        {"a": types.int_(), "b": types.int_()}, ("a", "b"), bucket_keys=bucket_keys, properties=properties
    )
    batch = pa.RecordBatch.from_pylist([{"a": 7, "b": 8}], schema=storage_schema(table.schema.columns))
    assert primary_key_encoder(table).encode(batch)[0].as_py()[0] == first_byte


def test_a_null_key_is_refused_with_column_row_and_count():
    table = descriptor({"a": types.int_(), "v": types.int_()}, ("a",))
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("v", pa.int32())])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1, None, None], pa.int32()), pa.array([1, 2, 3], pa.int32())], schema=schema
    )
    with pytest.raises(InvalidRequest, match=r"key column 'a' is null in row 1 \(and 1 more\)"):
        primary_key_encoder(table).encode(batch)


def test_unknown_lake_formats_and_bad_iceberg_keys_are_refused():
    table = descriptor({"a": types.boolean(), "b": types.int_()}, ("a", "b"))
    with pytest.raises(UnsupportedOperation, match="'delta'"):
        key_encoder(table, ("a",), "delta")
    with pytest.raises(UnsupportedOperation, match="'delta'"):
        bucket_of(b"x", 3, "delta")
    with pytest.raises(InvalidRequest, match="exactly one key column"):
        key_encoder(table, ("a", "b"), "iceberg")
    with pytest.raises(InvalidRequest, match="BOOLEAN"):
        key_encoder(table, ("a",), "iceberg")


def test_a_log_table_without_bucket_key_has_no_bucket_encoder():
    assert bucket_key_encoder(descriptor({"a": types.int_()}, ())) is None


@given(groups=st.lists(st.integers(0, 9), max_size=50))
def test_splitting_by_group_keeps_the_order_within_groups(groups):
    ids = np.array(groups, np.int32)
    order, borders = split_by_group(ids, 10)
    for group in range(10):
        members = order[borders[group] : borders[group + 1]].tolist()
        assert members == [i for i, g in enumerate(groups) if g == group]


@given(groups=st.lists(st.integers(0, 80_000), max_size=20))
def test_more_groups_than_16_bits_can_number_are_split_as_well(groups):
    order, borders = split_by_group(np.array(groups, np.int32), 80_001)
    for group in {0, 80_000, *groups}:
        assert order[borders[group] : borders[group + 1]].tolist() == [i for i, g in enumerate(groups) if g == group]


# ---- floating-point keys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrow", [pa.float32(), pa.float64()])
def test_both_zeros_are_one_and_all_nans_are_one(arrow):
    dtype = np.dtype(arrow.to_pandas_dtype())
    bits = dtype.str.replace("f", "u")
    negative_nan = (np.array([np.nan], dtype).view(bits) | np.array(1 << (8 * dtype.itemsize - 1), bits)).view(dtype)
    values = pa.array(np.concatenate([np.array([-0.0, 0.0, 1.5, np.nan], dtype), negative_nan]))
    with_null = pa.concat_arrays([values, pa.nulls(1, arrow)])
    java_nan = np.array([np.nan], dtype).view(bits)[0]
    for column in (values, with_null, pa.chunked_array([with_null, values])):
        canonical = canonical_floats(column)
        assert isinstance(canonical, pa.Array)
        assert canonical.type == arrow
        assert canonical.is_valid().to_pylist() == column.is_valid().to_pylist()
        assert canonical.drop_null().to_numpy().view(bits)[:5].tolist() == [
            0, 0, np.array(1.5, dtype).view(bits), java_nan, java_nan,
        ]  # fmt: skip


@pytest.mark.parametrize("column", [pa.array([1, None]), pa.array(["a"]), pa.array([np.float16(-0.0)], pa.float16())])
def test_columns_of_other_types_stay_as_they_are(column):
    assert canonical_floats(column) is column


@pytest.mark.parametrize("t", [types.float_(), types.double()])
@pytest.mark.parametrize("encoding", [None, "paimon", "iceberg"])
def test_keys_of_other_clients_are_brought_to_one_form(t, encoding):
    table = descriptor({"k": t}, ("k",))
    encoder = key_encoder(table, ("k",), encoding)
    arrow = storage_schema(table.schema.columns).field("k").type
    good = encoder.encode(pa.record_batch({"k": pa.array([0.0, 2.5], arrow)})).to_pylist()
    assert encoder.canonical(good) is good
    theirs = encoder._encode(pa.record_batch({"k": pa.array([-0.0, 2.5], arrow)})).to_pylist()
    assert theirs != good
    assert encoder.canonical(theirs) == good
    none: list[bytes] = []
    assert encoder.canonical(none) is none
    with pytest.raises(CorruptData):
        encoder.canonical([b"123"])


def test_keys_without_floats_are_not_decoded():
    keys = [b"no key of this encoding"]
    assert key_encoder(descriptor({"k": types.bigint()}, ("k",)), ("k",), None).canonical(keys) is keys


# ---- prefixes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bucket_keys", "has_prefix"), [(("a",), True), (("a", "b"), True), (("b",), False), (("a", "b", "c"), False)]
)
def test_what_prefix_lookups_ask_for_is_the_first_part_of_the_key(bucket_keys, has_prefix):
    columns = {"a": types.int_(), "b": types.string(), "c": types.bigint()}
    row = {"a": 7, "b": "x", "c": 9}
    for properties in ({}, {"table.datalake.format": "paimon"},
                       {"table.datalake.format": "paimon", "table.kv.format-version": "2"}):  # fmt: skip
        table = descriptor(columns, ("a", "b", "c"), bucket_keys=bucket_keys, properties=properties)
        encoder = prefix_encoder(table)
        if not has_prefix:
            assert encoder is None
            continue
        assert encoder is not None
        assert encoder.names == list(bucket_keys)
        batch = pa.RecordBatch.from_pylist([row], schema=storage_schema(table.schema.columns))
        prefix, key = encoder.encode(batch)[0].as_py(), primary_key_encoder(table).encode(batch)[0].as_py()
        if primary_key_encoder(table) is key_encoder(table, ("a", "b", "c"), "compacted"):
            assert key.startswith(prefix)
        else:
            assert prefix == bucket_key_encoder(table).encode(batch)[0].as_py()
