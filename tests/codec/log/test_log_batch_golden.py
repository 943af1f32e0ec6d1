"""Log batches that pyfluss 1.0.0 and Apache Fluss's Java builders wrote: we read them, and write the same or better."""

from __future__ import annotations

import pyarrow as pa
import pytest

from forebay.codec.log.header import parse_header, verify_crc
from forebay.codec.log.log_batch import (
    build_arrow_batch,
    build_row_batch,
    change_types,
    decode_arrow_batch,
    decode_row_batch,
    validate_arrow_body,
)
from forebay.codec.log.statistics import encode_statistics, parse_statistics
from forebay.codec.rows.row_codec import row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.metadata import types
from forebay.metadata.table import Column, Schema
from tests.codec.log_batch_text import golden_bytes, golden_rows, golden_schema, rows_as_text

ARROW = [
    ("pyfluss_all_types_statistics", "pyfluss", None),
    ("java_arrow", "java", None),
    ("java_arrow_lz4_changelog", "java", [1, 2, 3, 4, 1, 2]),
    ("java_arrow_zstd_changelog_statistics", "java", [1, 2, 3, 4, 1, 2]),
]


@pytest.mark.parametrize(("name", "writer", "types_expected"), ARROW)
def test_arrow_batches_of_others_decode_to_the_rows_that_went_in(name, writer, types_expected):
    data, schema = golden_bytes(f"{name}.hex"), golden_schema(f"{writer}_schema.json")
    header = parse_header(data)
    verify_crc(data, 0, header)
    validate_arrow_body(data, 0, header, schema)
    assert rows_as_text(decode_arrow_batch(data, 0, header, schema), schema) == golden_rows(f"{writer}_rows.txt")
    read = change_types(data, 0, header)
    assert (None if read is None else read.to_pylist()) == types_expected


def test_the_624_byte_batch_of_the_reference_decodes_and_has_its_crc():
    data = golden_bytes("pyfluss_append_only.hex")
    schema = Schema.of([Column("id", types.int_()), Column("name", types.string())])
    header = parse_header(data)
    assert (len(data), header.crc, header.writer_id, header.schema_id) == (624, 0x6FD99073, 77, 1)
    verify_crc(data, 0, header)
    validate_arrow_body(data, 0, header, schema)
    batch = decode_arrow_batch(data, 0, header, schema)
    assert batch.to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_batches_of_pyfluss_decode(codec):
    data = golden_bytes(f"pyfluss_{codec}.hex")
    schema = Schema.of([Column("i", types.bigint()), Column("s", types.string())])
    header = parse_header(data)
    verify_crc(data, 0, header)
    validate_arrow_body(data, 0, header, schema)
    expected = [{"i": i, "s": f"value {i // 25}" if i % 7 else None} for i in range(300)]
    assert decode_arrow_batch(data, 0, header, schema).to_pylist() == expected


@pytest.mark.parametrize(
    ("name", "row_format", "types_expected"),
    [
        ("java_indexed_changelog", RowFormat.INDEXED, [1, 2, 3, 4, 1, 2]),
        ("java_compacted", RowFormat.COMPACTED, [0] * 6),
    ],
)
def test_row_batches_of_java_decode_and_are_rebuilt_byte_for_byte(name, row_format, types_expected):
    data, schema = golden_bytes(f"{name}.hex"), golden_schema("java_schema.json")
    header = parse_header(data)
    verify_crc(data, 0, header)
    rows, read = decode_row_batch(data, 0, header)
    assert read.to_pylist() == types_expected
    codec = row_codec(schema.columns, row_format)
    batch = codec.decode(rows)
    assert rows_as_text(batch, schema) == golden_rows("java_rows.txt")
    rebuilt = build_row_batch(
        codec.encode(batch),
        schema_id=1,
        change_types=None if header.append_only else bytes(types_expected),
        writer_id=9,
        batch_sequence=4,
    )
    assert rebuilt == data


@pytest.mark.parametrize(
    ("name", "writer"),
    [("pyfluss_all_types_statistics", "pyfluss"), ("java_arrow_zstd_changelog_statistics", "java")],
)
def test_statistics_of_others_are_reproduced_byte_for_byte(name, writer):
    data, schema = golden_bytes(f"{name}.hex"), golden_schema(f"{writer}_schema.json")
    header = parse_header(data)
    block = data[header.statistics_start : header.body_start]
    parsed = parse_statistics(block, schema)
    assert parsed is not None
    assert encode_statistics(decode_arrow_batch(data, 0, header, schema), parsed.positions) == block


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_what_we_build_from_golden_rows_reads_back_the_same(compression):
    data, schema = golden_bytes("java_arrow.hex"), golden_schema("java_schema.json")
    batch = decode_arrow_batch(data, 0, parse_header(data), schema)
    ours = build_arrow_batch(
        batch, schema_id=1, change_types=bytes([1, 2, 3, 4, 1, 2]), compression=compression, statistics_columns=[3, 8]
    )
    header = parse_header(ours)
    verify_crc(ours, 0, header)
    validate_arrow_body(ours, 0, header, schema)
    assert rows_as_text(decode_arrow_batch(ours, 0, header, schema), schema) == golden_rows("java_rows.txt")
    assert pa.array([1, 2, 3, 4, 1, 2], pa.uint8()).equals(change_types(ours, 0, header))
