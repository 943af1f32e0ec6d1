"""BinaryRows of columns, Avro containers, manifests of newer and older writers, deletion vectors."""

from __future__ import annotations

import datetime
import io
import runpy
import struct
import zlib
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import CorruptData, InvalidRequest, UnsupportedOperation
from forebay.metadata import types
from forebay.metadata.types import DataType, RowField, TypeRoot
from forebay.paimon.format import avro, avro_schemas
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.format.avro_schemas import INDEX_ENTRY, MANIFEST_ENTRY, MANIFEST_FILE
from forebay.paimon.format.binary_row import row_layout, with_arity, without_arity
from forebay.paimon.format.deletion_vector import read_deletion_vector
from forebay.paimon.format.file_meta import (
    EMPTY_ROW,
    DeletionVectorMeta,
    FileKind,
    GlobalIndexMeta,
    IndexFileMeta,
    IndexManifestEntry,
)
from forebay.paimon.format.index_manifest import read_index_manifest, write_index_manifest
from forebay.paimon.format.manifest_codec import parse_data_file
from forebay.paimon.format.schema import DataField

FIELDS = tuple(
    DataField(i, f"c{i}", t)
    for i, t in enumerate(
        [
            types.int_(),
            DataType(TypeRoot.STRING, length=30),
            types.timestamp_ltz(6),
            types.timestamp(0),
            types.timestamp(9),
            types.time(0),
            types.binary(2),
            types.decimal(30, 2),
            types.array(types.timestamp_ltz(3)),
            DataType(TypeRoot.MAP, key=types.string(), value=types.int_().not_null(), length=-1),
            DataType(TypeRoot.ROW, fields=(RowField("x", types.date(), None, 20),)),
        ]
    )
)
ROW = {
    "c0": 1,
    "c1": "more than seven bytes",
    "c2": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    "c3": datetime.datetime(2024, 1, 1),
    "c4": datetime.datetime(2024, 1, 1),
    "c5": datetime.time(1, 2, 3),
    "c6": b"ab",
    "c7": Decimal("12.34"),
    "c8": [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), None],
    "c9": [("k", 2)],
    "c10": {"x": datetime.date(2024, 1, 2)},
}


def test_rows_of_columns_read_back_as_values_and_as_columns() -> None:
    layout = row_layout(FIELDS)
    batch = pa.RecordBatch.from_pylist([ROW, dict.fromkeys(ROW)], schema=arrow_schema(FIELDS))
    rows = layout.encode(batch)
    values = layout.decode(rows[0].as_py())
    midnight = 1_704_067_200
    assert values == (
        1, "more than seven bytes", midnight * 10**6, midnight * 10**3, midnight * 10**9, 3_723_000, b"ab",
        Decimal("12.34"), [midnight * 1000, None], [("k", 2)], {"x": 19724},
    )  # fmt: skip
    assert layout.encode_one(values) == rows[0].as_py()
    assert layout.decode(rows[1].as_py()) == (None,) * len(FIELDS)
    assert layout.decode_all(rows).to_pylist() == batch.to_pylist()


def test_columns_are_taken_by_name_from_tables_with_others() -> None:
    layout = row_layout(FIELDS[1:2])
    table = pa.table({"x": [1, 2], "c1": pa.chunked_array([["a"], ["b"]])})
    assert layout.encode(table).to_pylist() == [layout.encode_one(["a"]), layout.encode_one(["b"])]
    assert row_layout(()).encode(table).to_pylist() == [EMPTY_ROW] * 2
    assert row_layout(()).decode(EMPTY_ROW) == ()


def test_a_column_of_another_type_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="'c0'"):
        row_layout(FIELDS[:1]).encode(pa.table({"c0": ["x"]}))


def test_the_number_of_fields_stands_in_front_in_manifests() -> None:
    assert without_arity(with_arity(b"12345678", 1)) == b"12345678"
    assert without_arity(b"") == EMPTY_ROW
    with pytest.raises(CorruptData):
        without_arity(b"123")


RECORD = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "a", "type": "long"}, {"name": "s", "type": ["null", "string"]}],
}
RECORDS = [{"a": i, "s": None if i % 3 else f"text {i}"} for i in range(10_000)]


@pytest.mark.parametrize("compression", ["zstd", "none", "gzip", "snappy"])
def test_container_files_read_back_in_all_codecs(compression: str) -> None:
    assert avro.read_records(avro.write_records(RECORD, RECORDS, compression)) == RECORDS
    assert avro.read_records(avro.write_records(RECORD, [], compression)) == []


@pytest.mark.parametrize(
    ("theirs", "ours"), [("null", "none"), ("deflate", "gzip"), ("snappy", "snappy"), ("bzip2", "")]
)
def test_container_files_are_those_of_the_avro_library(theirs: str, ours: str) -> None:
    out = io.BytesIO()
    if theirs != "snappy":  # the library needs a package of its own for snappy
        fastavro.writer(out, RECORD, RECORDS, codec=theirs)
        assert avro.read_records(out.getvalue()) == RECORDS
    if ours and theirs != "snappy":
        assert list(fastavro.reader(io.BytesIO(avro.write_records(RECORD, RECORDS, ours)))) == RECORDS


def test_a_header_may_hold_empty_values_and_a_block_no_records_or_no_bytes() -> None:
    out = io.BytesIO()
    fastavro.writer(out, RECORD, RECORDS[:3], metadata={"note": ""})
    assert avro.read_records(out.getvalue()) == RECORDS[:3]
    empty = b'{"type": "record", "name": "r", "fields": []}'
    assert avro.read_records(avro.write_container(empty, [(2, b""), (0, b""), (1, b"")], "none")) == [{}] * 3


def test_logical_types_stay_numbers() -> None:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
    }
    assert avro.read_records(avro.write_records(schema, [{"t": 5}])) == [{"t": 5}]


def test_damaged_files_are_corrupt() -> None:
    sound = avro.write_records(RECORD, RECORDS[:50])
    for at in range(0, len(sound), 7):
        for damaged in (sound[:at], sound[:at] + bytes([sound[at] ^ 0xFF]) + sound[at + 1 :]):
            try:
                records = avro.read_records(damaged)
            except (CorruptData, UnsupportedOperation):
                continue
            assert len(records) in (0, 50), "what is accepted is at least whole"


SCHEMAS = [MANIFEST_ENTRY, MANIFEST_FILE, INDEX_ENTRY]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_our_schemas_are_valid_avro(schema: dict[str, object]) -> None:
    fastavro.parse_schema(schema)


def test_in_our_schemas_what_may_be_null_and_nothing_else_has_the_default_null() -> None:
    """As Java's converter makes them: a reader with a newer schema fills in what an older file lacks."""
    made = runpy.run_path(avro_schemas.__file__)
    assert [made[name] for name in ("MANIFEST_ENTRY", "MANIFEST_FILE", "INDEX_ENTRY")] == SCHEMAS
    told = [field for schema in SCHEMAS for field in _fields_of(schema)]
    assert {(isinstance(f["type"], list), f.get("default", "none")) for f in told} == {(True, None), (False, "none")}


def _fields_of(schema: Any) -> Iterator[dict[str, Any]]:
    """The fields of all records in an Avro schema."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _fields_of(branch)
    elif isinstance(schema, dict):
        for field in schema.get("fields", []):
            yield field
            yield from _fields_of(field["type"])
        yield from _fields_of(schema.get("items"))


def test_index_manifests_read_back() -> None:
    partition = row_layout([DataField(0, "p", types.int_())]).encode_one([3])
    entries = [
        IndexManifestEntry(FileKind.ADD, partition, 2, IndexFileMeta("HASH", "i1", 8, 2)),
        IndexManifestEntry(
            FileKind.DELETE,
            partition,
            0,
            IndexFileMeta("DELETION_VECTORS", "i2", 9, 1, (DeletionVectorMeta("f", 1, 22, 4),), "ext"),
        ),
        IndexManifestEntry(
            FileKind.ADD,
            partition,
            0,
            IndexFileMeta("btree", "i3", 1, 1, None, None, GlobalIndexMeta(0, 9, 3, (1, 2), b"m", None)),
        ),
    ]
    assert read_index_manifest(write_index_manifest(entries, 1)) == entries


def test_data_files_of_older_writers_lack_the_newer_fields() -> None:
    stats = {"_MIN_VALUES": b"\0" * 12, "_MAX_VALUES": b"\0" * 12, "_NULL_COUNTS": None}
    record = {
        "_FILE_NAME": "f", "_FILE_SIZE": 1, "_ROW_COUNT": 2, "_MIN_KEY": b"\0" * 12, "_MAX_KEY": b"",
        "_KEY_STATS": stats, "_VALUE_STATS": stats, "_MIN_SEQUENCE_NUMBER": 0, "_MAX_SEQUENCE_NUMBER": 1,
        "_SCHEMA_ID": 0, "_LEVEL": 3, "_EXTRA_FILES": [],
    }  # fmt: skip
    parsed = parse_data_file(record)
    assert (parsed.level, parsed.delete_row_count, parsed.file_source) == (3, None, None)
    assert (parsed.max_key, parsed.key_stats.null_counts) == (EMPTY_ROW, ())


# ---- deletion vectors -----------------------------------------------------------------------------------------------


def _bitmap(positions: list[int]) -> bytes:
    """A roaring bitmap without runs, written plainly by its specification."""
    groups: dict[int, list[int]] = {}
    for position in sorted(set(positions)):
        groups.setdefault(position >> 16, []).append(position & 0xFFFF)
    head = struct.pack("<II", 12346, len(groups))
    bodies = []
    for key, values in groups.items():
        head += struct.pack("<HH", key, len(values) - 1)
        if len(values) <= 4096:
            bodies.append(struct.pack(f"<{len(values)}H", *values))
        else:
            bits = bytearray(8192)
            for value in values:
                bits[value // 8] |= 1 << value % 8
            bodies.append(bytes(bits))
    at = len(head) + 4 * len(groups)
    for body in bodies:
        head += struct.pack("<I", at)
        at += len(body)
    return head + b"".join(bodies)


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_deletion_vectors_of_version_1_are_read(positions: list[int]) -> None:
    data = _framed(struct.pack(">i", 1581511376) + _bitmap(positions))
    assert read_deletion_vector(data + b"more").tolist() == sorted(set(positions))


@pytest.mark.parametrize("count", [4095, 4096, 4097])
def test_containers_are_lists_up_to_4096_positions(count: int) -> None:
    positions = list(range(0, 3 * count, 3))
    assert read_deletion_vector(_framed(struct.pack(">i", 1581511376) + _bitmap(positions))).tolist() == positions


def test_dense_containers_and_runs_are_read() -> None:
    dense = [*range(0, 20_000, 2), 70_000]
    assert read_deletion_vector(_framed(struct.pack(">i", 1581511376) + _bitmap(dense))).tolist() == dense
    runs = (
        struct.pack("<I", 12347 | (1 - 1) << 16)
        + b"\1"
        + struct.pack("<HH", 1, 14)
        + struct.pack("<HHHHH", 2, 3, 9, 100, 4)
    )
    expected = [65536 + v for v in (*range(3, 13), *range(100, 105))]
    assert read_deletion_vector(_framed(struct.pack(">i", 1581511376) + runs)).tolist() == expected


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9])
def test_runs_come_with_offsets_from_four_containers_on(count: int) -> None:
    """The last container is an array, the others are runs."""
    marks = bytearray((count + 7) // 8)
    for i in range(count - 1):
        marks[i // 8] |= 1 << i % 8
    containers = [struct.pack("<HHH", 1, 10 * i, 2) for i in range(count - 1)] + [struct.pack("<H", 77)]
    head = struct.pack("<I", 12347 | (count - 1) << 16) + bytes(marks)
    head += b"".join(struct.pack("<HH", i, 2 if i < count - 1 else 0) for i in range(count))
    at = len(head) + 4 * count
    if count >= 4:
        for container in containers:
            head += struct.pack("<I", at)
            at += len(container)
    data = _framed(struct.pack(">i", 1581511376) + head + b"".join(containers))
    expected = [(i << 16) + 10 * i + step for i in range(count - 1) for step in range(3)] + [((count - 1) << 16) + 77]
    assert read_deletion_vector(data).tolist() == expected


def test_deletion_vectors_of_version_2_reach_beyond_32_bits() -> None:
    body = (
        struct.pack("<iq", 1681511377, 2) + struct.pack("<i", 0) + _bitmap([1, 5]) + struct.pack("<i", 3) + _bitmap([7])
    )
    assert read_deletion_vector(_framed(body)).tolist() == [1, 5, (3 << 32) + 7]
    assert read_deletion_vector(_framed(struct.pack("<iq", 1681511377, 0))).tolist() == []


def test_damaged_deletion_vectors_are_corrupt() -> None:
    data = _framed(struct.pack(">i", 1581511376) + _bitmap([1, 2, 3]))
    for at in range(len(data)):
        with pytest.raises(CorruptData):
            read_deletion_vector(data[:at])
        with pytest.raises(CorruptData):
            read_deletion_vector(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert read_deletion_vector(data).dtype == np.int64
