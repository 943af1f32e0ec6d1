"""Untrusted bytes: malformed batches raise `CorruptData`, and never crash or read something else."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.base.errors import CorruptData
from forebay.codec.arrow.arrow_message import Projection
from forebay.codec.filters import bind
from forebay.codec.log.header import LENGTH_OVERHEAD, parse_header
from forebay.codec.log.log_batch import (
    build_arrow_batch,
    build_row_batch,
    change_types,
    decode_arrow_batch,
    decode_row_batch,
    validate_arrow_body,
)
from forebay.codec.log.statistics import StatisticsFilter, parse_statistics
from forebay.metadata import types
from forebay.metadata.predicate import col
from tests.codec.log.log_batch_samples import ROWS, SCHEMA
from tests.codec.log_batch_strategies import batch_of, schema_of
from tests.codec.log_batch_text import golden_bytes, golden_schema
from tests.every_run import examples

# Where things lie in a message that this package wrote without compression, from the beginning of the batch.
MESSAGE = 48
ROWS_AT = MESSAGE + 8 + 56
NODES_AT = MESSAGE + 8 + 80
BUFFERS_AT = NODES_AT + 16 * 7 + 8


def built(compression: str = "none", **kwargs) -> bytearray:
    return build_arrow_batch(batch_of(SCHEMA, ROWS), schema_id=1, compression=compression, **kwargs)


def refused(data: bytes | bytearray, match: str) -> None:
    """Check that both the server's check and the reader refuse `data`."""
    header = parse_header(data)
    with pytest.raises(CorruptData, match=match):
        validate_arrow_body(data, 0, header, SCHEMA)
    with pytest.raises(CorruptData, match=match):
        decode_arrow_batch(data, 0, header, SCHEMA)


def patched(at: int, number: int, layout: str = "<q") -> bytearray:
    data = built()
    struct.pack_into(layout, data, at, number)
    return data


def test_the_places_that_these_tests_patch_are_right():
    data = built()
    assert struct.unpack_from("<q", data, ROWS_AT) == (3,)
    nodes = [struct.unpack_from("<qq", data, NODES_AT + 16 * i) for i in range(7)]
    assert nodes == [(3, 0), (3, 1), (3, 1), (2, 1), (3, 1), (3, 1), (3, 1)]
    assert struct.unpack_from("<qq", data, BUFFERS_AT + 16) == (0, 12)


def test_another_number_of_rows_than_the_header_says():
    refused(patched(ROWS_AT, 2), "it has 2 rows")
    refused(patched(ROWS_AT, -1), "it has -1 rows")


def test_nodes_of_impossible_length():
    refused(patched(NODES_AT, 4), "column 'c0': a node has length 4")
    refused(patched(NODES_AT + 16 * 3, 2**31), "column 'c2': a node has length 2147483648")
    refused(patched(NODES_AT + 16 * 3, -1), "column 'c2': the offsets of row 0")
    refused(patched(NODES_AT + 16 * 6, -1), "column 'c4': a node has length -1")
    refused(patched(NODES_AT + 16 * 5, 2), "column 'c3': a node has length 2")


def test_null_counts_that_lie():
    refused(patched(NODES_AT + 16 + 8, 4), "column 'c1': a node has null count 4")
    refused(patched(NODES_AT + 16 + 8, -1), "column 'c1': a node has null count -1")
    refused(patched(NODES_AT + 16 + 8, 0), "column 'c1': the validity bits do not have 0 nulls")
    refused(patched(NODES_AT + 8, 1), "column 'c0': 1 nulls, but the column is NOT NULL")


def test_nulls_in_a_not_null_column_do_not_pass_the_server():
    nullable = schema_of(types.int_(), *SCHEMA.types[1:])
    refused(build_arrow_batch(batch_of(nullable, [[None, *ROWS[0][1:]]]), schema_id=1), "is NOT NULL")


@pytest.mark.parametrize("offset", [-8, 4, 1 << 40, 2**63 - 8])
def test_buffers_outside_the_body_or_not_aligned(offset):
    refused(patched(BUFFERS_AT + 16, offset), "lies outside the body or is not aligned")


@pytest.mark.parametrize("length", [-1, 1 << 40, 2**63 - 1])
def test_buffers_longer_than_the_body(length):
    refused(patched(BUFFERS_AT + 24, length), "lies outside the body")


def test_buffers_too_short_for_the_rows():
    refused(patched(BUFFERS_AT + 24, 11), "column 'c0': a buffer has 11 bytes")
    refused(patched(BUFFERS_AT + 16 * 2 + 8, 0), "column 'c1': a buffer has 0 bytes")
    refused(patched(BUFFERS_AT + 16 * 3 + 8, 12), "column 'c1': a buffer has 12 bytes")


@pytest.mark.parametrize(("at", "value"), [(0, -1), (4, 100), (8, 1), (12, 9), (12, 2**31 - 1)])
def test_offsets_that_decrease_or_point_outside(at, value):
    data = built()
    body = MESSAGE + 8 + struct.unpack_from("<i", data, MESSAGE + 4)[0]
    offsets = body + struct.unpack_from("<q", data, BUFFERS_AT + 16 * 3)[0]
    assert struct.unpack_from("<4i", data, offsets) == (0, 3, 3, 8)
    struct.pack_into("<i", data, offsets + at, value)
    refused(data, "column 'c1': the offsets of row")


def test_offsets_of_lists_that_point_outside_their_elements():
    data = built()
    body = MESSAGE + 8 + struct.unpack_from("<i", data, MESSAGE + 4)[0]
    offsets = body + struct.unpack_from("<q", data, BUFFERS_AT + 16 * 6)[0]
    assert struct.unpack_from("<4i", data, offsets) == (0, 2, 2, 2)
    struct.pack_into("<4i", data, offsets, 0, 2, 2, 3)
    refused(data, "column 'c2': the offsets of row")


def test_text_that_is_not_utf8_is_not_read():
    data = built()
    data[data.index(b"onethree")] = 0xFF
    with pytest.raises(CorruptData, match="UTF8"):
        decode_arrow_batch(data, 0, parse_header(data), SCHEMA)


def test_more_columns_or_fewer_than_the_schema():
    batch = batch_of(SCHEMA, ROWS)
    refused(build_arrow_batch(batch.select([0, 1]), schema_id=1), "it has 2 field nodes")
    refused(build_arrow_batch(batch.select([0, 0, 2, 3, 4]), schema_id=1), "it has 14 buffers")


def test_messages_that_are_no_record_batch():
    refused(patched(MESSAGE, 0, "<i"), "does not begin with the marker")
    refused(patched(MESSAGE + 4, -8, "<i"), "metadata is malformed")
    refused(patched(MESSAGE + 4, 1 << 27, "<i"), "cut off")
    refused(patched(MESSAGE + 8, 1 << 20, "<i"), "metadata is malformed")
    refused(patched(MESSAGE + 8 + 32, 2, "<h"), "metadata is malformed")
    refused(patched(MESSAGE + 8 + 34, 1, "<b"), "not a record batch")
    refused(patched(MESSAGE + 8 + 24, 1 << 40), "body has 1099511627776 bytes")


def test_a_body_that_is_cut_off():
    data = built()
    for size in range(49, len(data), 7):
        torn = data[:size]
        struct.pack_into("<i", torn, 8, size - LENGTH_OVERHEAD)
        header = parse_header(torn)
        with pytest.raises(CorruptData):
            validate_arrow_body(torn, 0, header, SCHEMA)
        with pytest.raises(CorruptData):
            decode_arrow_batch(torn, 0, header, SCHEMA)


def test_change_types_that_do_not_exist_or_are_missing():
    data = built(change_types=b"\1\2\3")
    data[49] = 5
    header = parse_header(data)
    with pytest.raises(CorruptData, match="record 1 has change type 5"):
        change_types(data, 0, header)
    with pytest.raises(CorruptData, match="record 1 has change type 5"):
        validate_arrow_body(data, 0, header, SCHEMA)
    short = bytearray(50)
    short[:48] = data[:48]
    struct.pack_into("<i", short, 8, 50 - LENGTH_OVERHEAD)
    for read in (change_types, lambda *a: decode_arrow_batch(*a, SCHEMA), lambda *a: validate_arrow_body(*a, SCHEMA)):
        with pytest.raises(CorruptData, match="3 change types in a body of 2 bytes"):
            read(short, 0, parse_header(short))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("rows", [100, 60_000])
def test_compressed_buffers_that_lie_about_their_size(compression, rows):
    schema = schema_of(types.bigint())
    batch = pa.record_batch({"c0": pa.array(np.arange(rows) // 7)})
    data = build_arrow_batch(batch, schema_id=1, compression=compression)
    at = data.index(struct.pack("<q", 8 * rows))
    for claimed in (8 * rows + 8, 8 * rows - 8, 0, -2, 2**62, 2**63 - 1):
        lie = bytearray(data)
        struct.pack_into("<q", lie, at, claimed)
        with pytest.raises(CorruptData):
            decode_arrow_batch(lie, 0, parse_header(lie), schema)


def test_a_decompression_bomb_is_not_unpacked():
    schema = schema_of(types.bytes_())
    batch = pa.record_batch({"c0": pa.array([bytes(1 << 20)] * 8)})
    data = build_arrow_batch(batch, schema_id=1, compression="zstd")
    header = parse_header(data)
    assert len(data) < 2000
    assert decode_arrow_batch(data, 0, header, schema).equals(batch)
    with pytest.raises(CorruptData, match="more than the limit"):
        decode_arrow_batch(data, 0, header, schema, decoded_bytes_max=1 << 22)


@pytest.mark.parametrize(
    ("records", "match"),
    [
        (b"\x01\0\0\0\0\x01\0\0\0", "claims 2 records"),
        (struct.pack("<ib", 6, 0) + bytes(5), "record 0 has an impossible length"),
        (struct.pack("<ib", 0, 0) + struct.pack("<ib", 1, 0), "record 0 has an impossible length"),
        (struct.pack("<ib", 1, 9) + struct.pack("<ib", 1, 0), "record 0 has a change type above 4"),
        (struct.pack("<ib", 1, 0) + struct.pack("<ib", 3, 0), "record 1 has an impossible length"),
        (struct.pack("<ib", 1, 0) * 2 + b"?", "bytes follow"),
        (struct.pack("<ib", -1, 0) * 2, "record 0 has an impossible length"),
    ],
)
def test_row_records_that_do_not_fill_the_body_exactly(records, match):
    data = build_row_batch(pa.array([b"", b""]), schema_id=1)[:48] + records
    struct.pack_into("<i", data, 8, len(data) - LENGTH_OVERHEAD)
    with pytest.raises(CorruptData, match=match):
        decode_row_batch(data, 0, parse_header(data))


# ---- everything at once ---------------------------------------------------------------------------------------------

VICTIMS = [
    (bytes(built(compression, change_types=kinds, statistics_columns=statistics)), SCHEMA)
    for compression in ("none", "lz4", "zstd")
    for kinds in (None, b"\1\2\3")
    for statistics in (None, (0, 1, 4))
] + [
    (golden_bytes(f"{name}.hex"), golden_schema(f"{writer}_schema.json"))
    for name, writer in (("java_arrow_zstd_changelog_statistics", "java"), ("pyfluss_all_types_statistics", "pyfluss"))
]
PROJECTIONS = {id(s): Projection(s, range(1, len(s.columns), 2), lambda _, s=s: s) for _, s in VICTIMS}
FILTERS = {
    id(s): StatisticsFilter(bind((col(s.names[0]) == v) | (col(s.names[1]).is_null()), s), s)
    for (_, s), v in zip([VICTIMS[0], VICTIMS[-2], VICTIMS[-1]], [5, True, True], strict=True)
}
NUMBERS = [0, 1, 8, -1, -8, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63)]


@st.composite
def mutated(draw: st.DrawFn) -> tuple[bytes, object]:
    original, schema = draw(st.sampled_from(VICTIMS))
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(8, min(len(data), draw(st.sampled_from([64, 400, 1500, 1 << 20]))) - 1))
        match draw(st.integers(0, 4)):
            case 0:
                data[at] = draw(st.integers(0, 255))
            case 1:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 2:
                data[at : at + 8] = struct.pack("<q", draw(st.sampled_from(NUMBERS)))
            case 3:
                del data[at : at + draw(st.integers(1, 30))]
            case _:
                data[at:at] = draw(st.binary(min_size=1, max_size=12))
    if draw(st.booleans()) and len(data) > 60:
        struct.pack_into("<i", data, 8, len(data) - LENGTH_OVERHEAD)
    return bytes(data), schema


def _attempt(action) -> object:
    """The result of `action`, or None for the one error that hostile bytes may give."""
    try:
        return action()
    except CorruptData:
        return None


@settings(max_examples=examples(800))
@given(victim=mutated())
def test_mutated_batches_give_corrupt_data_or_a_sound_read(victim):
    data, schema = victim
    header = _attempt(lambda: parse_header(data))
    if header is None:
        return
    _attempt(lambda: validate_arrow_body(data, 0, header, schema))
    batch = _attempt(lambda: decode_arrow_batch(data, 0, header, schema, decoded_bytes_max=1 << 24))
    if batch is not None:
        assert batch.num_rows == header.record_count
        batch.validate()
    read = _attempt(lambda: change_types(data, 0, header))
    assert read is None or len(read) == header.record_count
    _attempt(lambda: decode_row_batch(data, 0, header))
    projection = PROJECTIONS[id(schema)]
    projected = _attempt(lambda: projection.project(data))
    if projected is not None and projected.batch_count:
        projected_header = parse_header(projected.data)
        _attempt(lambda: decode_arrow_batch(projected.data, 0, projected_header, projection.columns,
                                            decoded_bytes_max=1 << 24))  # fmt: skip
    statistics = data[header.statistics_start : header.body_start]
    _attempt(lambda: parse_statistics(statistics, schema))
    assert FILTERS[id(schema)].may_match(statistics, header.record_count) in (True, False)


@settings(max_examples=examples(500))
@given(noise=st.binary(max_size=300), magic=st.integers(0, 2), count=st.integers(0, 50), append_only=st.booleans())
def test_random_bodies_give_corrupt_data(noise, magic, count, append_only):
    data = bytearray(56) + noise
    struct.pack_into("<iB", data, 8, len(data) - LENGTH_OVERHEAD, magic)
    data[27 if magic < 2 else 31] = append_only
    struct.pack_into("<i", data, 28 if magic < 2 else 32, max(count - 1, 0))
    struct.pack_into("<i", data, 44 if magic < 2 else 48, count)
    header = _attempt(lambda: parse_header(data))
    if header is None:
        return
    for action in (
        lambda: decode_arrow_batch(data, 0, header, SCHEMA),
        lambda: validate_arrow_body(data, 0, header, SCHEMA),
        lambda: PROJECTIONS[id(SCHEMA)].project(data),
        lambda: decode_row_batch(data, 0, header),
        lambda: change_types(data, 0, header),
    ):
        _attempt(action)
