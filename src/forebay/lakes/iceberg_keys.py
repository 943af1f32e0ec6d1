"""Locating rows by key in a lake table, and applying equality deletes: keys as bytes, in a hash table.

The bytes are the stream's compacted keys (`forebay.codec.rows.keys`). They are recomputed whenever files are read, and
never stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import And, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from forebay.base.errors import UnsupportedOperation
from forebay.codec.arrow.arrow_types import storage_schema
from forebay.codec.kv.key_index import KeyIndex, distinct_numbers
from forebay.codec.rows.keys import KeyEncoder
from forebay.lakes.iceberg_conditions import between
from forebay.lakes.iceberg_files import Positions, live_rows, read_positions, read_rows
from forebay.lakes.iceberg_layout import DeleteFile, LiveFile
from forebay.lakes.iceberg_types import stream_type
from forebay.metadata import types
from forebay.metadata.table import Column

_BOUNDED = ("int", "long", "string", "date", "time", "timestamp", "timestamptz")
"""The types of key columns whose range in a file is compared with that of the wanted keys."""


class KeyColumns:
    """Encodes columns of a lake table as keys. Nulls are equal to nulls, as in equality deletes."""

    def __init__(self, fields: Sequence[NestedField]) -> None:
        self.fields = tuple(fields)
        columns = [Column(f"k{i}", stream_type(f.field_type)) for i, f in enumerate(self.fields)]
        self._nullable = [i for i, f in enumerate(self.fields) if not f.required]
        flags = [Column(f"n{i}", types.boolean()) for i in self._nullable]
        self._schema = storage_schema([*columns, *flags])
        self._encoder = KeyEncoder((*columns, *flags), "compacted")

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """The key of each row. `rows` has the columns in order, in any types that can be cast to the lake's."""
        columns = [rows.column(i) for i in range(len(self.fields))]
        flags = [pc.is_null(columns[i]) for i in self._nullable]
        for i in self._nullable:
            columns[i] = _filled(columns[i].cast(self._schema.field(i).type))
        cast = [c.cast(f.type) for c, f in zip([*columns, *flags], self._schema, strict=True)]
        return self._encoder.encode(pa.RecordBatch.from_arrays(cast, names=self._schema.names))


def _filled(column: pa.Array) -> pa.Array:
    """The column with nulls replaced by a value that is the same in every batch."""
    if not column.null_count:
        return column
    t = column.type
    value: Any = 0
    if pa.types.is_string(t):
        value = ""
    elif pa.types.is_fixed_size_binary(t) and not pa.types.is_decimal(t):
        value = bytes(t.byte_width)
    elif pa.types.is_binary(t):
        value = b""
    elif pa.types.is_boolean(t):
        value = False
    return column.fill_null(pa.scalar(value, t))


# ---- looking keys up ------------------------------------------------------------------------------------------------


@dataclass
class KeyRange:
    """The minimum and maximum of each key column among rows, for skipping files outside this range."""

    fields: tuple[NestedField, ...]
    _ranges: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows of the key columns, in order."""
        for i, f in enumerate(self.fields):
            if str(f.field_type) not in _BOUNDED or not rows.num_rows:
                continue
            bounds = pc.min_max(rows.column(i)).as_py()
            low, high = self._ranges.get(f.name, (bounds["min"], bounds["max"]))
            self._ranges[f.name] = min(low, bounds["min"]), max(high, bounds["max"])

    def condition(self) -> BooleanExpression | None:
        """An expression that holds for every added row; None if nothing is known."""
        expression: BooleanExpression | None = None
        for name, (low, high) in self._ranges.items():
            within = between(name, low, high)
            expression = within if expression is None else And(expression, within)
        return expression


def locate(
    io: FileIO, files: Iterable[LiveFile], keys: KeyColumns, index: KeyIndex, schema: Schema
) -> dict[str, Positions]:
    """The positions of the live rows of `files` whose key is in `index`, by data file. Reads only key columns."""
    listed = list(files)
    deletes = Deletes(io, {f.file.file_path: f.deletes for f in listed}, schema)
    by_path: dict[str, Positions] = {}
    for live in listed:
        path = live.file.file_path
        deleted, parts = deletes.positions(path), []
        deleted_keys = deletes.deleted_keys(path)
        read = [*keys.fields, *deleted_keys.fields]
        for start, batch in read_rows(io, path, read, form=live.file.file_format.value):
            hit = index.contains(keys.encode(batch))
            if not hit.true_count:
                continue
            live_mask = live_rows(start, batch.num_rows, deleted)
            hit = hit if live_mask is None else pc.and_(hit, live_mask)
            hit = deleted_keys.without_deleted(hit, batch, len(keys.fields))
            parts.append(np.flatnonzero(np.asarray(hit)) + start)
        if parts and sum(map(len, parts)):
            by_path[path] = np.concatenate(parts)
    return by_path


# ---- deletes of data files ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeletedKeys:
    """The keys that equality deletes remove from one data file. `fields` are the columns needed to apply them."""

    fields: tuple[NestedField, ...]
    indexes: tuple[tuple[KeyColumns, tuple[int, ...], KeyIndex], ...]

    def without_deleted(self, mask: pa.BooleanArray, batch: pa.RecordBatch, first: int) -> pa.BooleanArray:
        """`mask`, without the deleted rows of `batch`; the columns `fields` begin at column `first`."""
        for columns, places, index in self.indexes:
            keys = batch.select([first + i for i in places])
            mask = pc.and_(mask, pc.invert(index.contains(columns.encode(keys))))
        return mask


class Deletes:
    """The deletes of some data files; each delete file is read once. Memory grows with the deletes of these files."""

    def __init__(self, io: FileIO, files: Mapping[str, tuple[DeleteFile, ...]], schema: Schema) -> None:
        self._io, self._files, self._schema = io, files, schema
        self._positions: dict[str, list[Positions]] | None = None
        self._indexes: dict[tuple[DeleteFile, ...], KeyIndex] = {}

    def positions(self, path: str) -> Positions:
        """The positions removed from a data file by position deletes, ascending."""
        if self._positions is None:
            self._positions = self._read_positions()
        parts = self._positions.get(path, [])
        return distinct_numbers(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def _read_positions(self) -> dict[str, list[Positions]]:
        data_files: dict[DeleteFile, set[str]] = {}
        for path, deletes in self._files.items():
            for delete in deletes:
                if not delete.equality_ids:
                    data_files.setdefault(delete, set()).add(path)
        positions: dict[str, list[Positions]] = {}
        for delete, paths in data_files.items():
            for path, rows in read_positions(self._io, delete.path, delete.form, frozenset(paths)).items():
                positions.setdefault(path, []).append(rows)
        return positions

    def deleted_keys(self, path: str) -> DeletedKeys:
        """The keys that equality deletes remove from a data file."""
        groups: dict[tuple[int, ...], list[DeleteFile]] = {}
        for delete in self._files.get(path, ()):
            if delete.equality_ids:
                groups.setdefault(delete.equality_ids, []).append(delete)
        ids = sorted({i for group in groups for i in group})
        fields = tuple(self._field(i) for i in ids)
        indexes = []
        for group, deletes in groups.items():
            columns = KeyColumns([self._field(i) for i in group])
            indexes.append((columns, tuple(ids.index(i) for i in group), self._index(columns, tuple(deletes))))
        return DeletedKeys(fields, tuple(indexes))

    def _field(self, field_id: int) -> NestedField:
        try:
            return self._schema.find_field(field_id)
        except ValueError as e:
            raise UnsupportedOperation(
                f"equality deletes refer to column {field_id}, which the table no longer has; compact it with the "
                "engine that dropped the column"
            ) from e

    def _index(self, columns: KeyColumns, deletes: tuple[DeleteFile, ...]) -> KeyIndex:
        if deletes not in self._indexes:
            index = KeyIndex()
            for delete in deletes:
                for _, batch in read_rows(self._io, delete.path, columns.fields, form=delete.form):
                    index.add(columns.encode(batch))
            self._indexes[deletes] = index
        return self._indexes[deletes]
