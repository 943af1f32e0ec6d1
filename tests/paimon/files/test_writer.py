"""Written data files: sizes, statistics, sequence numbers, and what a Parquet reader finds in them."""

from __future__ import annotations

import gc
import pickle
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from forebay.base.ambient import ManualClock
from forebay.base.errors import InvalidRequest
from forebay.metadata import types
from forebay.paimon.catalog.definition import new_schema
from forebay.paimon.files import writer as writing
from forebay.paimon.files.reader import DataFileReader
from forebay.paimon.files.writer import FileSettings, RollingWriter, key_value_fields, local_millis
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.format.file_meta import EMPTY_ROW, DataFileMeta, FileSource
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.format.stats import ColumnStats, unpack_stats
from forebay.paimon.io.arrow_file_io import ArrowFileIO
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.paths import PathFactory
from tests.codec.arrow.null_lists import one_null
from tests.paimon.files.writers import IO, writer_for
from tests.paimon.lake import ALL_TYPES, all_types_rows

COLUMNS = pa.schema([("id", pa.int64()), ("text", pa.string()), ("x", pa.float64())])


def append_files(folder: Path, data: pa.Table, **options: str) -> list[DataFileMeta]:
    writer = writer_for(folder, new_schema(COLUMNS), {k.replace("_", "-"): v for k, v in options.items()})
    writer.write(data)
    return writer.close()


def random_rows(count: int) -> pa.Table:
    rng = np.random.default_rng(7)
    text = pa.array(rng.integers(0, 1 << 60, count).astype("S20").astype(str))
    return pa.table({"id": np.arange(count), "text": text, "x": rng.random(count)})


def stats_of(meta: DataFileMeta, schema: TableSchema) -> dict[str, ColumnStats]:
    return unpack_stats(meta.value_stats, schema.fields, meta.value_stats_cols)


def test_files_are_as_large_as_the_target_in_bytes_that_are_written(tmp_path: Path) -> None:
    files = append_files(tmp_path, random_rows(200_000), target_file_size="1 mb")
    sizes = [(tmp_path / "bucket-0" / f.file_name).stat().st_size for f in files]
    assert sizes == [f.file_size for f in files]
    assert len(files) > 3
    assert all(0.9 * 2**20 < size < 1.4 * 2**20 for size in sizes[:-1])
    assert sum(f.row_count for f in files) == 200_000


def test_sequence_numbers_count_the_rows_of_append_tables_through_all_files(tmp_path: Path) -> None:
    writer = writer_for(tmp_path, new_schema(COLUMNS), {"target-file-row-num": "40"}, next_sequence=1000)
    writer.write(random_rows(100))
    files = writer.close()
    assert [(f.min_sequence_number, f.max_sequence_number) for f in files] == [(1000, 1039), (1040, 1079), (1080, 1099)]
    assert writer.next_sequence == 1100
    assert {(f.min_key, f.level, f.delete_row_count, f.file_source) for f in files} == {
        (EMPTY_ROW, 0, 0, FileSource.APPEND)
    }


def test_bounds_are_cut_to_sixteen_characters_unless_told_otherwise(tmp_path: Path) -> None:
    schema = new_schema(COLUMNS)
    data = pa.table({"id": [1, 2, None], "text": ["a" * 20, "b" * 20, None], "x": [None, None, None]}, schema=COLUMNS)
    (cut,) = append_files(tmp_path, data)
    assert stats_of(cut, schema) == {
        "id": ColumnStats(1, 2, 1),
        "text": ColumnStats("a" * 16, "b" * 15 + "c", 1),
        "x": ColumnStats(None, None, 3),
    }
    (full,) = append_files(tmp_path, data, **{"metadata.stats_mode": "full"})
    assert stats_of(full, schema)["text"] == ColumnStats("a" * 20, "b" * 20, 1)


def test_columns_without_statistics_take_no_room_in_the_metadata(tmp_path: Path) -> None:
    schema = new_schema(COLUMNS)
    options = {"metadata.stats_mode": "none", "fields.x.stats_mode": "counts"}
    (dense,) = append_files(tmp_path, random_rows(10), **options)
    assert dense.value_stats_cols == ("x",)
    assert stats_of(dense, schema) == {"x": ColumnStats(None, None, 0)}
    (sparse,) = append_files(tmp_path, random_rows(10), **options, **{"metadata.stats_dense_store": "false"})
    assert sparse.value_stats_cols is None
    assert stats_of(sparse, schema)["id"] == ColumnStats()


def test_a_nan_leaves_a_column_without_bounds_and_a_zero_has_both_signs(tmp_path: Path) -> None:
    schema = new_schema(COLUMNS)
    (nan,) = append_files(tmp_path, pa.table({"id": [1, 2], "text": ["", ""], "x": [1.0, float("nan")]}))
    assert stats_of(nan, schema)["x"] == ColumnStats(None, None, 0)
    (zero,) = append_files(tmp_path, pa.table({"id": [1, 2], "text": ["", ""], "x": [0.0, 0.0]}))
    bounds = stats_of(zero, schema)["x"]
    assert (str(bounds.min), str(bounds.max)) == ("-0.0", "0.0")


@pytest.mark.parametrize(
    ("groups", "low", "high"),
    [
        ([None, None], None, None),
        ([None, 7, 5, None], 5, 7),
        ([7, 9, 3], 3, 9),
        ([5, 5], 5, 5),
    ],
)
def test_timestamps_of_nanoseconds_have_bounds_though_parquet_has_none(
    tmp_path: Path, groups: list[int | None], low: int | None, high: int | None
) -> None:
    """Each of `groups` is a group of rows with one value."""
    schema = new_schema({"ts": types.timestamp(9), "us": types.timestamp(6)})
    writer = writer_for(tmp_path, schema, {"file.block-size": "1 b"})
    for value in groups:
        stamps = pa.array([value] * 2048, pa.timestamp("ns"))
        writer.write(pa.table({"ts": stamps, "us": pa.nulls(2048, pa.timestamp("us"))}))
    (meta,) = writer.close()
    assert pq.ParquetFile(tmp_path / "bucket-0" / meta.file_name).metadata.num_row_groups >= len(groups)
    assert stats_of(meta, schema)["ts"] == ColumnStats(low, high, 2048 * groups.count(None))


def test_groups_of_rows_without_a_value_take_no_bounds_from_the_others(tmp_path: Path) -> None:
    schema = new_schema({"n": types.int_()})
    writer = writer_for(tmp_path, schema, {"file.block-size": "1 b"})
    for value in (None, 7, None, 5):
        writer.write(pa.table({"n": pa.array([value] * 2048, pa.int32())}))
    (meta,) = writer.close()
    assert stats_of(meta, schema)["n"] == ColumnStats(5, 7, 2 * 2048)


@pytest.mark.parametrize(("zone", "hours"), [("UTC", 0), ("America/New_York", -5), ("Asia/Tokyo", 9)])
def test_files_are_made_at_the_local_time_as_java_has_it(
    monkeypatch: pytest.MonkeyPatch, zone: str, hours: int
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert local_millis(ManualClock(1_700_000_000_000)) == 1_700_000_000_000 + hours * 3_600_000
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_file_that_is_given_up_is_deleted_where_it_is_visible_at_once(tmp_path: Path) -> None:
    """As on stores of pyarrow, whose outputs cannot be aborted."""
    schema = new_schema(COLUMNS)
    settings = FileSettings.of(schema, CoreOptions({"file.block-size": "1 b"}), 0, FileSource.APPEND)
    names = PathFactory.of(str(tmp_path), schema).data_file_names()
    (tmp_path / "bucket-0").mkdir()
    io = ArrowFileIO(fs.LocalFileSystem())
    writer = RollingWriter(io, str(tmp_path / "bucket-0"), settings, names, 0, ManualClock())
    writer.write(random_rows(5000))
    assert len(list((tmp_path / "bucket-0").iterdir())) == 1
    writer.abort()
    assert list((tmp_path / "bucket-0").iterdir()) == []


def test_parquet_columns_carry_the_ids_and_physical_types_that_java_writes(tmp_path: Path) -> None:
    schema = new_schema(
        {
            "d": types.decimal(9, 2),
            "e": types.decimal(38, 2),
            "t": types.timestamp(3),
            "l": types.array(types.row(types.field("x", types.int_()))),
            "m": types.map_(types.string(), types.array(types.int_())),
            "c": types.time(3),
        }
    )
    writer = writer_for(tmp_path, schema, {})
    writer.write(pa.table({f.name: pa.nulls(1, t) for f, t in zip(schema.fields, _arrow(schema), strict=True)}))
    (meta,) = writer.close()
    parquet = pq.ParquetFile(tmp_path / "bucket-0" / meta.file_name)
    text = str(parquet.schema)
    base = ((1 << 31) - 1) // 4
    assert "optional int32 field_id=0 d (Decimal(precision=9, scale=2))" in text
    assert "optional fixed_len_byte_array(16) field_id=1 e" in text
    assert "optional int64 field_id=2 t (Timestamp(isAdjustedToUTC=false, timeUnit=milliseconds" in text
    assert f"group field_id={base + 3 * 1024 + 1} element" in text
    assert "optional int32 field_id=4 x" in text
    assert f"required binary field_id={base - 5 * 1024 - 1} key (String)" in text
    assert f"group field_id={base + 5 * 1024 + 1} value (List)" in text
    assert f"optional int32 field_id={base + 5 * 1024 + 2} element" in text
    assert "c (Time(isAdjustedToUTC=true, timeUnit=milliseconds" in text
    assert parquet.metadata.row_group(0).column(0).compression == "ZSTD"


def _arrow(schema: TableSchema) -> list[pa.DataType]:
    from forebay.paimon.format.arrow import arrow_type

    return [arrow_type(f.type) for f in schema.fields]


def test_timestamps_of_nine_digits_are_int96_and_leave_the_others_int64(tmp_path: Path) -> None:
    columns = {"id": types.bigint(), "ms": types.timestamp(3), "in": types.array(types.timestamp_ltz(6))}
    columns["ns"] = types.timestamp(9)
    schema = new_schema(columns)
    writer = writer_for(tmp_path, schema, {})
    rows = [{"id": i, "ms": 1000 - i, "in": [i], "ns": i * 10**9 + 1} for i in range(3)]
    writer.write(pa.Table.from_pylist(rows, schema=arrow_schema(schema.fields)))
    writer.write(pa.Table.from_pylist([{"id": 9}], schema=arrow_schema(schema.fields)))
    (meta,) = writer.close()
    footer = pq.ParquetFile(tmp_path / "bucket-0" / meta.file_name)
    physical = {footer.schema.column(i).path: footer.schema.column(i).physical_type for i in range(4)}
    assert physical == {"id": "INT64", "ms": "INT64", "in.list.element": "INT64", "ns": "INT96"}
    stats = stats_of(meta, schema)
    assert stats["ms"] == ColumnStats(998, 1000, 1)
    assert stats["ns"] == ColumnStats(1, 2 * 10**9 + 1, 1)
    read = DataFileReader(IO, lambda _: schema, schema.fields)
    found = pa.Table.from_batches(read.read(meta, str(tmp_path / "bucket-0" / meta.file_name)))
    assert found["ms"].cast(pa.int64()).to_pylist() == [1000, 999, 998, None]
    assert found["ns"].cast(pa.int64()).to_pylist() == [1, 10**9 + 1, 2 * 10**9 + 1, None]
    assert found.schema == arrow_schema(schema.fields)


@pytest.mark.parametrize("thin", [False, True])
def test_files_of_primary_key_tables_know_their_keys_deletes_and_sequence_numbers(tmp_path: Path, thin: bool) -> None:
    schema = new_schema(COLUMNS, primary_keys=["id"], options={"bucket": "1"})
    writer = writer_for(tmp_path, schema, {"data-file.thin-mode": str(thin)}, level=5)
    rows = {
        "_KEY_id": [1, 5, 9],
        "_SEQUENCE_NUMBER": [7, 3, 5],
        "_VALUE_KIND": pa.array([0, 3, 1], pa.int8()),
        "id": [1, 5, 9],
        "text": ["a", "b", "c"],
        "x": [0.5, None, 1.5],
    }
    writer.write(pa.table(rows))
    (meta,) = writer.close()
    assert (meta.min_key[8:16], meta.max_key[8:16]) == ((1).to_bytes(8, "little"), (9).to_bytes(8, "little"))
    assert unpack_stats(meta.key_stats, schema.fields[:1]) == {"id": ColumnStats(1, 9, 0)}
    assert (meta.min_sequence_number, meta.max_sequence_number, meta.delete_row_count) == (3, 7, 2)
    assert (meta.level, meta.file_source) == (5, FileSource.COMPACT)
    names = pq.ParquetFile(tmp_path / "bucket-0" / meta.file_name).schema_arrow.names
    assert names == [f.name for f in key_value_fields(schema, thin)]


def test_rows_of_a_whole_row_group_do_not_wait_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "KEYED_GROUP_ROWS", 100)
    schema = new_schema(pa.schema([("id", pa.int64())]), primary_keys=["id"], options={"bucket": "1"})
    writer = writer_for(tmp_path, schema, {})
    for start in range(0, 250, 50):
        ids = np.arange(start, start + 50)
        kinds = pa.array(np.zeros(50), pa.int8())
        writer.write(pa.table({"_KEY_id": ids, "_SEQUENCE_NUMBER": ids, "_VALUE_KIND": kinds, "id": ids}))
        assert (writer.buffered_bytes > 0) == (start % 100 == 0)
    (meta,) = writer.close()
    footer = pq.ParquetFile(tmp_path / "bucket-0" / meta.file_name).metadata
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [100, 100, 50]


def test_aborting_deletes_every_file(tmp_path: Path) -> None:
    writer = writer_for(tmp_path, new_schema(COLUMNS), {"target-file-row-num": "10"})
    writer.write(random_rows(10))
    writer.flush()
    writer.write(random_rows(5))
    writer.flush()
    assert list((tmp_path / "bucket-0").iterdir()) != []
    writer.abort()
    assert list((tmp_path / "bucket-0").iterdir()) == []


def test_lists_without_offsets_are_written_as_they_are_meant(tmp_path: Path) -> None:
    batch = one_null(pa.list_(pa.list_(pa.int32())))  # its size in bytes cannot be asked for: the process would die
    writer = writer_for(tmp_path, new_schema(batch.schema), {})
    writer.write(batch)
    (meta,) = writer.close()
    found = pq.read_table(tmp_path / "bucket-0" / meta.file_name)
    assert found.to_pylist() == [{"id": 7, "c": None}]


def test_unknown_compressions_and_statistics_modes_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"file.compression 'best'"):
        append_files(tmp_path, random_rows(1), **{"file.compression": "best"})
    with pytest.raises(InvalidRequest, match="'most'"):
        append_files(tmp_path, random_rows(1), **{"metadata.stats_mode": "most"})


def test_a_file_that_its_writer_leaves_open_does_not_appear(tmp_path: Path) -> None:
    writer = writer_for(tmp_path, new_schema(COLUMNS), {})
    writer.write(random_rows(100))
    writer.flush()
    del writer
    gc.collect()
    assert list((tmp_path / "bucket-0").iterdir()) == []


def test_the_positions_of_columns_are_those_in_the_footer(tmp_path: Path) -> None:
    schema = new_schema(pa.schema([*reversed(ALL_TYPES)]))  # nested columns first
    settings = FileSettings.of(schema, CoreOptions(schema.options))
    writer = writer_for(tmp_path, schema, {})
    writer.write(all_types_rows().select(schema.names))
    (meta,) = writer.close()
    footer = pq.read_metadata(tmp_path / "bucket-0" / meta.file_name)
    paths = [footer.schema.column(j).path for j in range(footer.num_columns)]
    assert settings.leaves == {path: j for j, path in enumerate(paths) if "." not in path}
    assert settings.leaves["id"] == footer.num_columns - 1


def test_settings_that_were_used_can_be_pickled(tmp_path: Path) -> None:
    schema = new_schema(COLUMNS, primary_keys=["id"], options={"bucket": "1"})
    settings = FileSettings.of(schema, CoreOptions(schema.options))
    row = settings.key_layout.encode(pa.table({"id": [7]}))
    received = pickle.loads(pickle.dumps(settings))
    assert received == settings
    assert received.key_layout.encode(pa.table({"id": [7]})) == row


@pytest.mark.parametrize(
    ("keys", "level", "compression"), [(["id"], 0, "lz4"), (["id"], 1, "zstd"), (["id"], 5, "snappy"), ([], 0, "zstd")]
)
def test_options_by_level_are_those_of_tables_with_a_key(keys: list[str], level: int, compression: str) -> None:
    options = {"bucket": "1", "bucket-key": "id", "file.compression.per.level": "0:lz4,5:snappy"}
    schema = new_schema(COLUMNS, primary_keys=keys, options=options)
    assert FileSettings.of(schema, CoreOptions(schema.options), level).compression == compression
