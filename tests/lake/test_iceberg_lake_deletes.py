"""Live rows after deletes of all kinds: positions, deletion vectors, equality with nulls and of every type."""

from __future__ import annotations

import datetime as dt
import gc
import struct
import zlib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)
from pyroaring import BitMap

from forebay.base.errors import InvalidRequest, NotFound, UnsupportedOperation
from forebay.codec.kv.key_index import KeyIndex
from forebay.lakes.iceberg_files import PATH_FIELD, FileWriter, live_rows, read_positions, read_rows, write_positions
from forebay.lakes.iceberg_keys import Deletes, KeyColumns
from forebay.lakes.iceberg_layout import DeleteFile, _Deletes
from forebay.lakes.iceberg_rows import live_batches
from forebay.lakes.iceberg_types import arrow_schema
from tests.open_files import open_files

IO = PyArrowFileIO({})
VALUES: list[tuple[IcebergType, Any, Any]] = [
    (BooleanType(), False, True),
    (IntegerType(), 0, -5),
    (LongType(), 0, 1 << 40),
    (DoubleType(), 0.0, 1.5),
    (StringType(), "", "a"),
    (BinaryType(), b"", b"\x00"),
    (FixedType(3), b"\x00\x00\x00", b"abc"),
    (DecimalType(38, 10), Decimal(0), Decimal("1.5")),
    (DateType(), dt.date(1970, 1, 1), dt.date(1969, 12, 31)),
    (TimeType(), dt.time(0), dt.time(1, 2, 3, 4)),
    (TimestampType(), dt.datetime(1970, 1, 1), dt.datetime(1900, 1, 1, 0, 0, 0, 1)),
    (TimestamptzType(), dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
]


def put(path: Path, schema: Schema, rows: list[dict[str, Any]]) -> str:
    """A Parquet file of an Iceberg schema, one row group for each row."""
    writer = FileWriter(IO, str(path), schema, {})
    for row in rows:
        writer.write(pa.RecordBatch.from_pylist([row], schema=arrow_schema(schema.fields)))
    return writer.close(()).path


@pytest.mark.parametrize(("t", "zero", "other"), VALUES, ids=[str(t) for t, _, _ in VALUES])
def test_equality_deletes_tell_null_from_every_value(tmp_path: Path, t: IcebergType, zero: Any, other: Any) -> None:
    schema = Schema(NestedField(1, "n", IntegerType(), True), NestedField(2, "k", t), NestedField(3, "l", StringType()))
    rows = [
        {"n": i, "k": k, "l": x} for i, (k, x) in enumerate([(zero, "x"), (None, "x"), (other, None), (other, "x")])
    ]
    data = put(tmp_path / "data.parquet", schema, rows)
    keys = schema.select("k", "l")
    for gone, left in (
        ([{"k": None, "l": "x"}], [0, 2, 3]),
        ([{"k": zero, "l": "x"}], [1, 2, 3]),
        ([{"k": other, "l": None}, {"k": None, "l": None}], [0, 1, 3]),
    ):
        path = put(tmp_path / f"delete{left}.parquet", keys, gone)
        deletes = Deletes(IO, {data: (DeleteFile(path, "PARQUET", 2, (2, 3)),)}, schema)
        batches = list(live_batches(IO, data, [schema.find_field("n")], deletes))
        assert [r["n"] for b in batches for r in b.to_pylist()] == left
        assert all(b.schema.names == ["n"] for b in batches)


def test_equality_deletes_by_a_column_that_was_dropped_are_refused(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "n", IntegerType(), True))
    data = put(tmp_path / "data.parquet", schema, [{"n": 1}])
    deletes = Deletes(IO, {data: (DeleteFile("nowhere", "PARQUET", 2, (7,)),)}, schema)
    with pytest.raises(UnsupportedOperation, match="column 7"):
        list(live_batches(IO, data, schema.fields, deletes))


def test_a_data_file_has_the_position_deletes_that_may_be_of_it_and_are_not_older() -> None:
    def delete_file(name: str, sequence: int, low: bytes | None, high: bytes | None) -> tuple[DeleteFile, Any]:
        field = PATH_FIELD.field_id
        bounds = {"lower_bounds": low and {field: low}, "upper_bounds": high and {field: high}}
        return DeleteFile(name, "PARQUET", sequence, ()), SimpleNamespace(**bounds)

    entries = [
        delete_file("older", 4, b"file:///a", b"file:///c"),
        delete_file("same", 5, b"file:///a", b"file:///c"),
        delete_file("newer", 6, b"file:///b", b"file:///b"),
        delete_file("without bounds", 6, None, None),
        delete_file("of files before", 6, b"file:///a", b"file:///a"),
        delete_file("of files behind", 6, b"file:///c", b"file:///c"),
        delete_file("cut bounds", 6, b"file:///a", b"file"),
    ]
    data = SimpleNamespace(sequence_number=5, data_file=SimpleNamespace(file_path="file:///b"))
    found = [each.path for each in _Deletes(entries).applying_to(data)]
    assert found == ["same", "newer", "without bounds", "cut bounds"]


def test_keys_of_nulls_are_the_same_in_every_batch() -> None:
    keys = KeyColumns([NestedField(1, "k", IntegerType())])
    index = KeyIndex()
    index.add(keys.encode(pa.RecordBatch.from_pydict({"k": pa.array([7, None], pa.int32())})))
    for batch in ([None], [5, None], [None, 9]):
        found = index.contains(keys.encode(pa.RecordBatch.from_pydict({"k": pa.array(batch, pa.int32())})))
        assert found.to_pylist() == [value is None for value in batch]


def test_positions_are_kept_for_each_data_file_and_read_for_those_requested(tmp_path: Path) -> None:
    gone = {"file:///b": np.array([5, 1, 5]), "file:///a": np.array([0]), "file:///c": np.empty(0, np.int64)}
    written = write_positions(IO, str(tmp_path / "d.parquet"), ("x", 1), gone, {})
    assert (written.records, written.is_delete, written.partition) == (3, True, ("x", 1))
    found = read_positions(IO, written.path, "PARQUET", frozenset({"file:///b", "file:///z"}))
    assert {k: v.tolist() for k, v in found.items()} == {"file:///b": [1, 5]}
    made = written.data_file(0)
    assert (made.lower_bounds[2147483546], made.upper_bounds[2147483546]) == (b"file:///a", b"file:///b")


@pytest.mark.parametrize("codec", ["gzip", "UNCOMPRESSED"])
def test_files_of_deletes_have_the_codec_of_the_table_and_the_bounds_of_long_paths(tmp_path: Path, codec: str) -> None:
    properties = {"write.parquet.compression-codec": codec, "write.metadata.metrics.default": "none"}
    name = "file:///" + 50 * "long"
    written = write_positions(IO, str(tmp_path / "d.parquet"), (), {name: np.array([1])}, properties)
    assert pq.read_metadata(written.path).row_group(0).column(0).compression == codec.upper()
    assert written.data_file(0).upper_bounds[2147483546] == name.encode()


def test_a_codec_that_parquet_does_not_have_is_refused_before_there_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"'write\.parquet\.compression-codec' is 'rar', which is not a codec"):
        write_positions(IO, str(tmp_path / "d.parquet"), (), {}, {"write.parquet.compression-codec": "rar"})
    assert list(tmp_path.iterdir()) == []


def test_deletion_vectors_of_others_are_read(tmp_path: Path) -> None:
    bits = BitMap([0, 3, 70_000]).serialize()
    blob = struct.pack("<QI", 1, 0) + bits
    body = struct.pack("<I", 1681511377) + blob
    framed = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    footer = (
        b'{"blobs":[{"type":"deletion-vector-v1","fields":[],"snapshot-id":-1,"sequence-number":-1,"offset":4,'
        b'"length":%d,"properties":{"referenced-data-file":"file:///a","cardinality":"3"}}]}' % len(framed)
    )
    puffin = b"PFA1" + framed + b"PFA1" + footer + struct.pack("<I", len(footer)) + b"\0\0\0\0PFA1"
    (tmp_path / "dv.puffin").write_bytes(puffin)
    path = str(tmp_path / "dv.puffin")
    found = read_positions(IO, path, "PUFFIN", frozenset({"file:///a"}))
    assert found["file:///a"].tolist() == [0, 3, 70_000]
    assert read_positions(IO, path, "PUFFIN", frozenset({"file:///b"})) == {}


def test_rows_are_left_out_by_position_across_batches(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "n", IntegerType(), True))
    path = put(tmp_path / "data.parquet", schema, [{"n": i} for i in range(10)])
    deleted = np.array([0, 3, 4, 9])
    left = []
    for start, batch in read_rows(IO, path, schema.fields, batch_rows=2):
        kept = live_rows(start, batch.num_rows, deleted)
        left += (batch if kept is None else batch.filter(kept)).column(0).to_pylist()
    assert left == [1, 2, 5, 6, 7, 8]


def test_a_file_that_lacks_all_requested_columns_has_rows_of_nulls(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "n", IntegerType(), True))
    path = put(tmp_path / "data.parquet", schema, [{"n": i} for i in range(5)])
    batches = list(read_rows(IO, path, [NestedField(9, "later", StringType())], batch_rows=2))
    assert [start for start, _ in batches] == [0, 2, 4]
    assert [v for _, b in batches for v in b.column(0).to_pylist()] == [None] * 5
    assert [b.num_rows for _, b in read_rows(IO, path, [], batch_rows=4)] == [4, 1]


@pytest.mark.parametrize(
    ("wrap", "of"),
    [
        (lambda t: t, lambda x: x),
        (lambda t: ListType(7, t, False), lambda x: [x, None]),
        (lambda t: MapType(8, StringType(), 9, t, False), lambda x: [("k", x), ("l", None)]),
        (lambda t: ListType(7, MapType(8, StringType(), 9, t, False), False), lambda x: [[("k", x)], None]),
    ],
    ids=["struct", "list", "map", "list of maps"],
)
def test_structs_within_lists_and_maps_are_read_with_the_fields_that_they_have_now(
    tmp_path: Path, wrap: Callable[[IcebergType], IcebergType], of: Callable[[Any], Any]
) -> None:
    x, y, z = (NestedField(20 + i, name, IntegerType()) for i, name in enumerate("xyz"))
    held, wanted = (Schema(NestedField(1, "c", wrap(StructType(*fields)))) for fields in ((x, y), (z, y)))
    path = put(tmp_path / "data.parquet", held, [{"c": of({"x": 1, "y": 2})}, {"c": None}])
    rows = [row for _, batch in read_rows(IO, path, wanted.fields, batch_rows=1) for row in batch.to_pylist()]
    assert rows == [{"c": of({"z": None, "y": 2})}, {"c": None}]


def test_a_file_of_deletes_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = FileWriter.write

    def half(self: FileWriter, batch: pa.RecordBatch) -> None:
        write(self, batch)
        raise OSError(28, "no space left")

    monkeypatch.setattr(FileWriter, "write", half)
    with pytest.raises(OSError, match="no space left"):
        write_positions(IO, str(tmp_path / "d.parquet"), (), {"file:///a": np.array([0])}, {})
    assert (list(tmp_path.iterdir()), open_files(tmp_path)) == ([], [])


def test_columns_have_dictionaries_where_these_make_them_smaller(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "n", LongType(), True), NestedField(2, "few", StringType()))
    path, empty = tmp_path / "data.parquet", tmp_path / "empty.parquet"
    writer = FileWriter(IO, str(path), schema, {})
    for first in (0, 5000):
        rows = [{"n": n * 7919, "few": f"status {n % 5}"} for n in range(first, first + 5000)]
        writer.write(pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema.fields)))
    assert writer.close(()).records == 10_000
    found = pq.ParquetFile(path)
    assert [[found.metadata.row_group(g).column(c).has_dictionary_page for c in (0, 1)] for g in (0, 1)] == [
        [False, True]
    ] * 2
    assert found.read()["few"].to_pylist() == [f"status {n % 5}" for n in range(10_000)]
    assert FileWriter(IO, str(empty), schema, {}).close(()).records == 0
    assert pq.read_table(empty).num_rows == 0


def test_a_file_that_is_given_up_is_closed_and_removed(tmp_path: Path) -> None:
    writer = FileWriter(IO, str(tmp_path / "data.parquet"), Schema(NestedField(1, "n", IntegerType(), True)), {})
    writer.write(pa.RecordBatch.from_pylist([{"n": 1}], schema=arrow_schema(writer._schema.fields)))
    assert (len(list(tmp_path.iterdir())), len(open_files(tmp_path))) == (1, 1)
    writer.abort()
    assert (list(tmp_path.iterdir()), open_files(tmp_path)) == ([], [])
    del writer
    gc.collect()


def test_files_that_cannot_be_read_are_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"gone\.parquet"):
        list(read_rows(IO, str(tmp_path / "gone.parquet"), []))
    with pytest.raises(UnsupportedOperation, match="ORC"):
        list(read_rows(IO, str(tmp_path / "x.orc"), [], form="ORC"))
