"""Splits that any Parquet reader can read: the rows of the files are the rows of the split, with the same names.

A file does not qualify if our reader would have to process it: merging, a deletion vector, delete rows, or a column
that had another name when the file was written, or a type from which readers do not widen its values. If in doubt, the
file does not qualify.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.parquet as pq

from forebay.metadata.plain_types import has_nanoseconds, is_plain, is_timestamp
from forebay.metadata.types import DataType, TypeRoot, child, walk
from forebay.paimon.format.file_meta import LEVEL_0, DataFileMeta
from forebay.paimon.format.schema import VALUE_KIND, DataField, TableSchema
from forebay.paimon.format.split import DataSplit
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.store.context import TableContext

_INSERT, _UPDATE_AFTER = 0, 2

_FOOTERS_MAX = 8192
_footers: dict[str, bool] = {}
"""Whether a file's footer allows deletes in it, by path. Files never change, and their names are never reused."""


def plain_files(table: TableContext, split: DataSplit, fields: Sequence[DataField]) -> tuple[str, ...] | None:
    """The paths of Parquet files that hold the rows of `split`; None if only `SplitReader` can read them.

    `fields` are the requested columns of the table's schema. A file may lack a column that was added later; its values
    are null. The files also contain rows that a filter excludes. The footers of some files are read, once per process.
    """
    keyed = table.schema.has_primary_key
    if split.is_streaming or split.before_files or any(split.deletion_files or ()):
        return None
    if (keyed and not split.raw_convertible) or not all(_is_read_alike(f.type) for f in fields):
        return None
    paths = []
    for file in split.files:
        path = table.paths.data_file(split.partition, split.bucket, file)
        if not path.lower().endswith(".parquet") or file.write_cols is not None:
            return None
        if file.schema_id != table.schema.id and not _reads_alike(table.schemas.schema(file.schema_id), fields):
            return None
        if not _names_are_clear(table.schemas.schema(file.schema_id), fields):
            return None
        if keyed and _may_have_deletes(table.io, path, file):
            return None
        paths.append(path)
    return tuple(paths)


_WHOLE = (TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INT, TypeRoot.BIGINT)


def _is_read_alike(t: DataType) -> bool:
    """Whether all readers find the values of a type alike: plain ones, and nested ones of these with clear names."""
    if t.root is TypeRoot.ROW:
        names = {f.name.lower() for f in t.fields}
        return 0 < len(names) == len(t.fields) and all(_is_read_alike(f.data_type) for f in t.fields)
    if t.root is TypeRoot.ARRAY:
        return _is_read_alike(child(t.element))
    if t.root is TypeRoot.MAP:
        return _is_read_alike(child(t.key)) and _is_read_alike(child(t.value))
    return is_plain(t)


def _widens(file_type: DataType, target: DataType) -> bool:
    """Whether readers of Parquet give values of a narrower type as those of the requested one."""
    if file_type.root in _WHOLE and target.root in _WHOLE:
        return _WHOLE.index(file_type.root) <= _WHOLE.index(target.root)
    if file_type.root is TypeRoot.FLOAT and target.root is TypeRoot.DOUBLE:
        return True
    return file_type.as_nullable() == target.as_nullable()


def _reads_alike(schema: TableSchema, fields: Sequence[DataField]) -> bool:
    """Whether a file of `schema` has `fields` under the same names, in types that widen to them, or lacks
    them."""
    by_id = {f.id: f for f in schema.fields}
    names = {f.name.lower() for f in schema.fields}
    for target in fields:
        source = by_id.get(target.id)
        if source is None:
            if target.name.lower() in names:
                return False
        elif source.name != target.name or not _widens(source.type, target.type):
            return False
    return True


def _names_are_clear(schema: TableSchema, fields: Sequence[DataField]) -> bool:
    """Whether names are unique ignoring case, and no timestamp is written differently because of another."""
    names = [f.name.lower() for f in schema.fields]
    if len(set(names)) != len(names):
        return False
    mixed = any(has_nanoseconds(t) for f in schema.fields for t in walk(f.type))
    return not (mixed and any(is_timestamp(t) for f in fields for t in walk(f.type)))


def _may_have_deletes(io: FileIO, path: str, file: DataFileMeta) -> bool:
    """Whether a file may hold deletes. Old files have no counts, and one known writer's level 0 a wrong one (0)."""
    if file.level != LEVEL_0 and file.delete_row_count is not None:
        return file.delete_row_count > 0
    allows = _footers.get(path)
    if allows is None:
        if len(_footers) >= _FOOTERS_MAX:
            _footers.clear()
        allows = _footers[path] = _footer_allows_deletes(io, path)
    return allows


def _footer_allows_deletes(io: FileIO, path: str) -> bool:
    """Whether the statistics of a file's row kinds allow deletes."""
    with io.open_input(path) as source:
        footer = pq.read_metadata(source)
    columns = [footer.schema.column(i).path for i in range(footer.num_columns)]
    if VALUE_KIND not in columns:
        return True
    place = columns.index(VALUE_KIND)
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(place).statistics
        if statistics is None or not statistics.has_min_max or statistics.min != statistics.max:
            return True
        if statistics.min not in (_INSERT, _UPDATE_AFTER):
            return True
    return False
