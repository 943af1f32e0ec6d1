"""Data files read back: parts of them, deleted rows, thin files, ORC and Avro."""

from __future__ import annotations

import datetime
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from forebay.base.errors import CorruptData, NotFound
from forebay.metadata.predicate import Predicate, col
from forebay.paimon.catalog.definition import new_schema
from forebay.paimon.files import reader as reader_module
from forebay.paimon.files.pruning import bind_filter
from forebay.paimon.files.reader import ROW_INDEX, ROW_INDEX_FIELD, DataFileReader
from forebay.paimon.files.writer import FileSettings, RollingWriter
from forebay.paimon.format.avro import write_records
from forebay.paimon.format.file_meta import DataFileMeta
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.paths import PathFactory
from tests.paimon.lake import ALL_TYPES, TrackedIO, all_types_rows

IO = LocalFileIO(sync=False)
COLUMNS = pa.schema([("id", pa.int64()), ("text", pa.string())])
SCHEMA = new_schema(COLUMNS)
ROWS = pa.table({"id": list(range(5000)), "text": [f"t{i}" for i in range(5000)]})


def written(folder: Path, schema: TableSchema, data: pa.Table, **options: str) -> tuple[DataFileMeta, str]:
    settings = FileSettings.of(schema, CoreOptions({**schema.options, **options}))
    names = PathFactory.of(str(folder), schema).data_file_names()
    writer = RollingWriter(IO, str(folder), settings, names)
    writer.write(data)
    (meta,) = writer.close()
    return meta, str(folder / meta.file_name)


def read(
    meta: DataFileMeta, path: str, schema: TableSchema = SCHEMA, where: Predicate | None = None, **more: Any
) -> pa.Table:
    keep = None if where is None else bind_filter(where, schema.fields)
    reader = DataFileReader(IO, lambda _: schema, schema.fields, keep=keep)
    return pa.Table.from_batches(reader.read(meta, path, **more), reader.schema)


def test_deleted_positions_are_left_out_also_when_row_groups_are_skipped(tmp_path: Path) -> None:
    meta, path = written(tmp_path, SCHEMA, ROWS, **{"file.block-size": "20 kb"})
    assert pq.ParquetFile(path).num_row_groups > 2
    gone = np.array([4999, 0, 2500, 2501])
    assert read(meta, path, deleted=gone)["id"].to_pylist() == [i for i in range(5000) if i not in gone]
    kept = read(meta, path, where=col("id") >= 2499, deleted=gone)
    assert kept["id"].to_pylist() == [2499, *range(2502, 4999)]


def test_the_positions_of_rows_in_their_file_can_be_read(tmp_path: Path) -> None:
    meta, path = written(tmp_path, SCHEMA, ROWS, **{"file.block-size": "20 kb"})
    gone, keep = np.array([2500, 4998]), bind_filter(col("id") >= 2499, SCHEMA.fields)
    with_index = DataFileReader(IO, lambda _: SCHEMA, (*SCHEMA.fields, ROW_INDEX_FIELD), keep=keep)
    for part_bytes in (1 << 12, 1 << 20):
        found = pa.Table.from_batches(with_index.read(meta, path, gone, part_bytes), with_index.schema)
        assert found[ROW_INDEX].to_pylist() == found["id"].to_pylist() == [2499, *range(2501, 4998), 4999]
    alone = DataFileReader(IO, lambda _: SCHEMA, (ROW_INDEX_FIELD,))
    found = pa.Table.from_batches(alone.read(meta, path, gone), alone.schema)
    assert found[ROW_INDEX].to_pylist() == [i for i in range(5000) if i not in gone]
    path = str(tmp_path / "data-0.orc")
    orc.write_table(ROWS, path)
    found = pa.Table.from_batches(with_index.read(meta, path, gone), with_index.schema)
    assert found[ROW_INDEX].to_pylist() == found["id"].to_pylist() == [2499, *range(2501, 4998), 4999]


def test_row_groups_that_cannot_match_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meta, path = written(tmp_path, SCHEMA, ROWS, **{"file.block-size": "20 kb"})
    read_groups: list[int] = []
    original = reader_module._group_tables

    def spy(parquet: Any, index: int, *rest: Any) -> Any:
        read_groups.append(index)
        return original(parquet, index, *rest)

    monkeypatch.setattr(reader_module, "_group_tables", spy)
    assert read(meta, path, where=col("id") == 4321)["text"].to_pylist() == ["t4321"]
    assert len(read_groups) == 1
    read_groups.clear()
    assert read(meta, path, where=col("text") == "t10x").num_rows == 0
    assert read_groups == []  # within the bounds of some, but in none


def test_a_row_group_that_is_too_large_is_read_in_parts(tmp_path: Path) -> None:
    meta, path = written(tmp_path, SCHEMA, ROWS)
    reader = DataFileReader(IO, lambda _: SCHEMA, SCHEMA.fields)
    batches = list(reader.read(meta, path, np.array([1, 4000]), 20_000))
    assert len(batches) > 1
    assert pa.Table.from_batches(batches)["id"].to_pylist() == [i for i in range(5000) if i not in (1, 4000)]


def test_parts_are_as_large_as_the_caller_wants(tmp_path: Path) -> None:
    meta, path = written(tmp_path, SCHEMA, ROWS, **{"file.block-size": "60 kb"})
    reader = DataFileReader(IO, lambda _: SCHEMA, SCHEMA.fields)
    whole, parts = list(reader.read(meta, path)), list(reader.read(meta, path, part_bytes=30_000))
    assert pq.read_metadata(path).num_row_groups == len(whole) < len(parts)
    assert max(b.num_rows for b in parts) < 1500
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches(whole))


def test_small_row_groups_are_decoded_by_the_thread_that_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = new_schema(pa.schema([*COLUMNS, ("size", pa.int32())]))
    meta, path = written(tmp_path, schema, ROWS.append_column("size", pa.array(range(5000), pa.int32())))
    monkeypatch.setattr(reader_module, "FEW_ROWS", 0)
    threads: list[bool] = []
    original = pq.ParquetFile.read_row_group

    def spy(self: pq.ParquetFile, i: int, columns: list[str], use_threads: bool) -> pa.Table:
        threads.append(use_threads)
        assert not (use_threads and len(columns) == 1)  # there is nothing to share out
        return original(self, i, columns, use_threads)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", spy)
    size = pq.read_metadata(path).row_group(0).total_byte_size
    monkeypatch.setattr(reader_module, "THREADS_BYTES_MIN", size + 1)
    by_one = read(meta, path, schema, where=col("id") >= 10)
    assert set(threads) == {False}
    threads.clear()
    monkeypatch.setattr(reader_module, "THREADS_BYTES_MIN", size)
    assert read(meta, path, schema, where=col("id") >= 10).equals(by_one)
    assert threads == [False, True]  # the column of the filter, and the rest


@pytest.mark.parametrize("part_bytes", [1 << 20, 3_000])
@pytest.mark.parametrize(("first", "last"), [(0, 0), (7, 19), (2047, 2049), (4999, 4999), (100, 4200), (0, 4999)])
def test_of_rows_close_to_each_other_no_more_is_decoded_than_up_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, last: int, part_bytes: int
) -> None:
    columns = pa.schema([("id", pa.int64()), ("made", pa.struct([("x", pa.int64()), ("y", pa.string())]))])
    schema = new_schema(columns)
    made = [{"x": i, "y": f"t{i}"} for i in range(5000)]
    data = pa.table({"id": list(range(5000)), "made": pa.array(made, columns.field("made").type)})
    meta, path = written(tmp_path, schema, data)
    monkeypatch.setattr(reader_module, "FEW_ROWS", 512)
    decoded: list[int] = []
    original = pq.ParquetFile.iter_batches

    def spy(self: pq.ParquetFile, *rows: int, **how: Any) -> Any:
        for batch in original(self, *rows, **how):
            decoded.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    where, gone = (col("id") >= first) & (col("id") <= last) & (col("id") != first + 3), np.array([first + 5])
    found = read(meta, path, schema, where, deleted=gone, part_bytes=part_bytes)
    assert found["id"].to_pylist() == [i for i in range(first, last + 1) if i not in (first + 3, first + 5)]
    assert found["made"].to_pylist() == [made[i] for i in found["id"].to_pylist()]
    if last - first < 512:
        assert last < sum(decoded) < last + 1 + 512


@pytest.mark.parametrize("part_bytes", [1 << 20, 30_000])
def test_a_file_is_closed_when_no_more_of_it_is_wanted(
    tmp_path: Path, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "WHOLE_BYTES_MAX", 0)
    meta, path = written(tmp_path, SCHEMA, ROWS, **{"file.block-size": "60 kb"})
    io = TrackedIO()
    reader = DataFileReader(io, lambda _: SCHEMA, SCHEMA.fields)
    reading = reader.read(meta, path, part_bytes=part_bytes)
    next(reading)
    assert io.open_inputs == 1
    reading.close()
    assert io.open_inputs == 0
    assert sum(batch.num_rows for batch in reader.read(meta, path, part_bytes=part_bytes)) == 5000
    assert io.open_inputs == 0


def test_a_file_of_one_row_group_is_closed_before_its_rows_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "WHOLE_BYTES_MAX", 0)
    meta, path = written(tmp_path, SCHEMA, ROWS)
    io = TrackedIO()
    reading = DataFileReader(io, lambda _: SCHEMA, SCHEMA.fields).read(meta, path)
    assert next(reading).num_rows == 5000
    assert (len(io.inputs), io.open_inputs) == (1, 0)


def test_key_columns_of_thin_files_are_made_of_the_tables_columns(tmp_path: Path) -> None:
    schema = new_schema(COLUMNS, primary_keys=["id"], options={"bucket": "1", "data-file.thin-mode": "true"})
    kinds = pa.array([0] * 5000, pa.int8())
    data = ROWS.add_column(0, "_VALUE_KIND", kinds).add_column(0, "_SEQUENCE_NUMBER", ROWS["id"])
    meta, path = written(tmp_path, schema, data.add_column(0, "_KEY_id", ROWS["id"]))
    assert "_KEY_id" not in pq.ParquetFile(path).schema_arrow.names
    fields = (*schema.key_fields, schema.fields[1])
    reader = DataFileReader(IO, lambda _: schema, fields, keep=bind_filter(col("_KEY_id") == 7, fields))
    assert pa.Table.from_batches(reader.read(meta, path)).to_pylist() == [{"_KEY_id": 7, "text": "t7"}]


def test_columns_that_were_not_written_are_null(tmp_path: Path) -> None:
    meta, path = written(tmp_path, SCHEMA, ROWS.slice(0, 2))
    assert read(replace(meta, write_cols=("id",)), path).to_pylist() == [
        {"id": 0, "text": None},
        {"id": 1, "text": None},
    ]


def test_key_columns_are_there_whatever_columns_were_written(tmp_path: Path) -> None:
    schema = new_schema(COLUMNS, primary_keys=["id"], options={"bucket": "1"})
    data = ROWS.slice(0, 2).add_column(0, "_VALUE_KIND", pa.array([0] * 2, pa.int8()))
    data = data.add_column(0, "_SEQUENCE_NUMBER", data["id"]).add_column(0, "_KEY_id", data["id"])
    meta, path = written(tmp_path, schema, data)
    fields = (*schema.key_fields, *schema.fields)
    reader = DataFileReader(IO, lambda _: schema, fields)
    assert pa.Table.from_batches(reader.read(replace(meta, write_cols=("text",)), path)).to_pylist() == [
        {"_KEY_id": 0, "id": None, "text": "t0"},
        {"_KEY_id": 1, "id": None, "text": "t1"},
    ]


def test_orc_files_are_read(tmp_path: Path) -> None:
    names = [n for n in ALL_TYPES.names if n not in ("clock",)]  # Arrow writes no TIME to ORC
    data = all_types_rows().select(names)
    schema = new_schema(data.schema)
    meta, _ = written(tmp_path, schema, data)
    path = str(tmp_path / "data-0.orc")
    orc.write_table(data, path)
    assert read(meta, path, schema).to_pylist() == data.to_pylist()
    assert read(meta, path, schema, col("id") == 3).num_rows == 1


def test_avro_files_are_read(tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("text", pa.string()), ("m", pa.map_(pa.int32(), pa.string()))])
    schema = new_schema(columns)
    data = pa.Table.from_pylist([{"id": 1, "text": "a", "m": [(1, "x")]}, {"id": 2, "text": None, "m": None}], columns)
    meta, _ = written(tmp_path, schema, data)
    parts = [{"name": "key", "type": "int"}, {"name": "value", "type": ["null", "string"]}]
    entry = {"type": "record", "name": "entry", "fields": parts}
    fields = [
        {"name": "id", "type": ["null", "long"]},
        {"name": "text", "type": ["null", "string"]},
        {"name": "m", "type": ["null", {"type": "array", "items": entry}]},
    ]
    path = tmp_path / "data-0.avro"
    records = [{"id": 1, "text": "a", "m": [{"key": 1, "value": "x"}]}, {"id": 2, "text": None, "m": None}]
    with path.open("wb") as out:
        fastavro.writer(out, {"type": "record", "name": "row", "fields": fields}, records)
    assert read(meta, str(path), schema).to_pylist() == data.to_pylist()


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "none"])
def test_avro_files_hold_decimals_as_bytes_and_moments_as_numbers(tmp_path: Path, compression: str) -> None:
    columns = pa.schema([("d", pa.decimal128(20, 2)), ("day", pa.date32()), ("at", pa.timestamp("us"))])
    schema = new_schema(columns)
    rows = [{"d": Decimal("-1.05"), "day": datetime.date(1960, 1, 2), "at": datetime.datetime(9999, 1, 1)}, {}]
    data = pa.Table.from_pylist(rows, columns)
    meta, _ = written(tmp_path, schema, data)
    fields = [
        {"name": "d", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}]},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    ]
    micros = data["at"].cast(pa.int64())[0].as_py()
    records = [{"d": b"\xff\x97", "day": -3652, "at": micros}, {"d": None, "day": None, "at": None}]
    path = tmp_path / "data-0.avro"
    path.write_bytes(write_records({"type": "record", "name": "row", "fields": fields}, records, compression))
    assert read(meta, str(path), schema).to_pylist() == data.to_pylist()


def test_a_damaged_or_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    meta, path = written(tmp_path, SCHEMA, ROWS)
    Path(path).write_bytes(b"PAR1 this is not Parquet")
    with pytest.raises(CorruptData, match=meta.file_name):
        read(meta, path)
    Path(path).unlink()
    with pytest.raises(NotFound, match=meta.file_name):
        read(meta, path)
