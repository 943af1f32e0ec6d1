"""The splits that any Parquet reader reads like ours, and those with a known number of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.metadata import types
from forebay.paimon.format.file_meta import LEVEL_0, DataFileMeta
from forebay.paimon.format.split import DataSplit, DeletionFile
from forebay.paimon.read import plain_files as module
from forebay.paimon.read.plain_files import plain_files
from forebay.paimon.read.snapshot_planner import exact_rows
from forebay.paimon.store.schema_changes import (
    AddColumn,
    DropColumn,
    RenameColumn,
    SchemaChange,
    UpdateColumnNullability,
    UpdateColumnType,
)
from forebay.paimon.table import Table
from tests.paimon.lake import TrackedIO, altered, new_catalog, put

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int32()), ("s", pa.string())])
ROWS = [{"id": 1, "n": 2, "s": "a"}, {"id": 3, "n": None, "s": "b"}]
VECTOR = DeletionFile("index/a", 1, 2, 1)


def made(folder: Path, *, keyed: bool, columns: pa.Schema = COLUMNS, rows: Sequence[Mapping[str, Any]] = ROWS) -> Table:
    table = new_catalog(folder).create_table(
        "db.t", columns, primary_key=["id"] if keyed else [], options={"bucket": "1"} if keyed else {}
    )
    put(table.with_options({"write-only": "true"}), pa.Table.from_pylist(rows, columns))
    return table


def split_of(table: Table) -> DataSplit:
    split: DataSplit
    (split,) = table.scan().plan()
    return split


def with_file(split: DataSplit, **changes: Any) -> DataSplit:
    return replace(split, files=tuple(replace(f, **changes) for f in split.files))


def paths(table: Table, split: DataSplit, columns: Sequence[str] | None = None) -> tuple[str, ...] | None:
    fields = table.schema.fields if columns is None else table.schema.fields_named(columns)
    return plain_files(table.context, split, fields)


def is_plain(table: Table, split: DataSplit, columns: Sequence[str] | None = None) -> bool:
    return paths(table, split, columns) is not None


@pytest.mark.parametrize("keyed", [True, False])
def test_the_files_of_a_plain_split_have_its_rows(tmp_path: Path, keyed: bool) -> None:
    table = made(tmp_path, keyed=keyed)
    found = paths(table, split_of(table))
    assert found is not None
    assert [len(found), pq.read_table(found[0], columns=COLUMNS.names).to_pylist()] == [1, ROWS]


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize(
    ("changes", "plain"),
    [
        ({"is_streaming": True}, False),
        ({"before_files": "files"}, False),
        ({"deletion_files": (VECTOR,)}, False),
        ({"deletion_files": (None,)}, True),
    ],
)
def test_changes_and_deletion_vectors_need_our_reader(
    tmp_path: Path, keyed: bool, changes: dict[str, Any], plain: bool
) -> None:
    table = made(tmp_path, keyed=keyed)
    split = split_of(table)
    changes = {name: split.files if value == "files" else value for name, value in changes.items()}
    assert is_plain(table, replace(split, **changes)) is plain


@pytest.mark.parametrize("keyed", [True, False])
def test_only_keyed_tables_have_files_to_merge(tmp_path: Path, keyed: bool) -> None:
    table = made(tmp_path, keyed=keyed)
    assert is_plain(table, replace(split_of(table), raw_convertible=False)) is not keyed


@pytest.mark.parametrize(
    ("more", "plain"),
    [
        (("c", pa.list_(pa.int32())), {"id": True, "c": True}),
        (("c", pa.list_(pa.struct([("x", pa.int32()), ("y", pa.map_(pa.string(), pa.int64()))]))), {"c": True}),
        (("c", pa.struct([("x", pa.int32()), ("X", pa.int32())])), {"id": True, "c": False}),
        (("c", pa.struct([("x", pa.time32("ms"))])), {"id": True, "c": False}),
        (("c", pa.list_(pa.timestamp("ns"))), {"id": True, "c": False}),
        (("c", pa.time32("ms")), {"id": True, "c": False}),
        (("c", pa.timestamp("us")), {"id": True, "c": True}),
        (("c", pa.timestamp("ns")), {"id": True, "c": False}),
        (("N", pa.int32()), {"id": False, "n": False}),
    ],
)
def test_columns_that_readers_find_in_several_ways_need_our_reader(
    tmp_path: Path, more: tuple[str, pa.DataType], plain: dict[str, bool]
) -> None:
    table = made(tmp_path, keyed=False, columns=COLUMNS.append(pa.field(*more)), rows=[{"id": 1}])
    assert {name: is_plain(table, split_of(table), [name]) for name in plain} == plain


def test_a_timestamp_beside_one_of_nanoseconds_is_written_otherwise(tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("us", pa.timestamp("us")), ("ns", pa.timestamp("ns"))])
    table = made(tmp_path, keyed=False, columns=columns, rows=[{"id": 1}])
    assert [is_plain(table, split_of(table), [name]) for name in columns.names] == [True, False, False]


def test_so_is_one_beside_one_inside_of_another_column(tmp_path: Path) -> None:
    nested = pa.struct([("ns", pa.timestamp("ns"))])
    columns = pa.schema([("id", pa.int64()), ("us", pa.timestamp("us")), ("row", nested)])
    table = made(tmp_path, keyed=False, columns=columns, rows=[{"id": 1}])
    assert [is_plain(table, split_of(table), [name]) for name in columns.names] == [True, False, False]


@pytest.mark.parametrize(
    ("changes", "plain"),
    [
        ({"write_cols": ("id", "n")}, False),
        ({"file_name": "data-1.orc"}, False),
        ({"file_name": "data-1.PARQUET"}, True),
    ],
)
def test_files_in_part_and_in_other_formats_need_our_reader(
    tmp_path: Path, changes: dict[str, Any], plain: bool
) -> None:
    table = made(tmp_path, keyed=False)
    assert is_plain(table, with_file(split_of(table), **changes)) is plain


@pytest.mark.parametrize(
    ("changes", "plain"),
    [
        ([AddColumn(("later",), types.int_())], True),
        ([RenameColumn(("n",), "m")], False),
        ([UpdateColumnType(("n",), types.bigint())], True),
        ([UpdateColumnType(("n",), types.double())], False),
        ([UpdateColumnNullability(("id",), True)], True),
        ([DropColumn(("n",))], True),
        ([DropColumn(("n",)), AddColumn(("n",), types.int_())], False),
        ([DropColumn(("n",)), AddColumn(("N",), types.int_())], False),
    ],
)
def test_files_of_older_schemas_are_plain_if_each_column_is_itself_or_absent(
    tmp_path: Path, changes: list[SchemaChange], plain: bool
) -> None:
    table = made(tmp_path, keyed=False)
    for change in changes:
        table = altered(table, [change])
    assert is_plain(table, split_of(table)) is plain
    assert is_plain(table, split_of(table), ["id"])


@pytest.mark.parametrize(
    ("kinds", "plain"),
    [(["+I", "+I"], True), (["+U", "+U"], True), (["+I", "+U"], False), (["+I", "-D"], False), (["-D", "-D"], False)],
)
@pytest.mark.parametrize("level", [LEVEL_0, 5])
def test_footers_tell_of_deletes_where_they_are_not_counted(
    tmp_path: Path, kinds: list[str], plain: bool, level: int
) -> None:
    table = made(tmp_path, keyed=True, rows=[])
    put(table.with_options({"write-only": "true"}), pa.Table.from_pylist(ROWS, COLUMNS), kinds)
    split = replace(split_of(table), raw_convertible=True)
    assert is_plain(table, with_file(split, level=level, delete_row_count=None)) is plain
    if level == LEVEL_0:
        assert is_plain(table, with_file(split, delete_row_count=0)) is plain, "a writer is known to say 0 in any case"


@pytest.mark.parametrize("how", ["no column of row kinds", "no statistics", "a second group of rows with a delete"])
def test_a_footer_without_word_of_row_kinds_may_have_deletes(tmp_path: Path, how: str) -> None:
    table = made(tmp_path, keyed=True)
    (path,) = paths(table, split_of(table)) or ()
    rows = pq.read_table(path)
    other = str(Path(path).with_name("data-other.parquet"))
    if how == "no column of row kinds":
        pq.write_table(rows.drop_columns(["_VALUE_KIND"]), other)
    elif how == "no statistics":
        pq.write_table(rows, other, write_statistics=False)
    else:
        kinds = pa.array([0, 3], rows["_VALUE_KIND"].type)
        place = rows.schema.get_field_index("_VALUE_KIND")
        pq.write_table(rows.set_column(place, "_VALUE_KIND", kinds), other, row_group_size=1)
    assert not is_plain(table, with_file(split_of(table), file_name=Path(other).name))


def test_counts_of_higher_levels_are_believed_without_a_look_into_the_file(tmp_path: Path) -> None:
    table = made(tmp_path, keyed=True)
    split = with_file(split_of(table), level=5, file_name="data-gone.parquet")
    assert [is_plain(table, with_file(split, delete_row_count=count)) for count in (0, 1)] == [True, False]


def test_footers_are_read_once_until_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FOOTERS_MAX", 2)
    monkeypatch.setattr(module, "_footers", {})
    table = made(tmp_path, keyed=True)
    (file,) = split_of(table).files
    folder = Path(table.context.paths.data_file(split_of(table).partition, 0, file)).parent
    for name in ("a", "b", "c"):
        (folder / f"{name}.parquet").write_bytes((folder / file.file_name).read_bytes())
    io = TrackedIO()
    context = replace(table.context, io=io)
    opened = []
    for name in ("a", "a", "b", "a", "c", "c", "a"):
        split = with_file(split_of(table), file_name=f"{name}.parquet")
        assert plain_files(context, split, table.schema.fields) is not None
        opened.append(len(io.inputs))
    assert opened == [1, 1, 2, 2, 3, 3, 4]
    assert io.open_inputs == 0


def counted(
    table: Table, files: Sequence[DataFileMeta], deletions: tuple[DeletionFile | None, ...] | None = None
) -> int | None:
    return exact_rows(table.schema, replace(split_of(table), files=tuple(files), deletion_files=deletions))


@pytest.mark.parametrize("keyed", [True, False])
def test_rows_are_counted_from_metadata_where_it_can_be_trusted(tmp_path: Path, keyed: bool) -> None:
    table = made(tmp_path, keyed=keyed)
    (file,) = split_of(table).files
    old = replace(file, level=5, delete_row_count=0)
    assert exact_rows(table.schema, replace(split_of(table), files=(old,), raw_convertible=False)) is None
    assert counted(table, [old]) == 2
    assert counted(table, [old, replace(old, delete_row_count=1)]) == 3
    assert counted(table, [old, old], (None, VECTOR)) == 3
    assert counted(table, [old, old], (VECTOR, replace(VECTOR, cardinality=None))) is None
    # Deletes among the rows of level 0, or of a file that did not count them, are found by reading.
    for doubtful in (replace(old, level=LEVEL_0), replace(old, delete_row_count=None)):
        assert counted(table, [old, doubtful]) == (None if keyed else 4)
