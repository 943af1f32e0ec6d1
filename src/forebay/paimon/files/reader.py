"""Reading data files of any schema version and any of three formats, as batches of the requested columns.

`DataFileReader.read(file, path)` yields record batches of `fields`. A file is read with the schema it was written with;
columns are found by id, converted to the reader's types (`casts`), and are null if the file lacks them. Key columns
that a thin file omits, or whose values are read anyway, are copied from the table's columns. Row groups and deleted
rows are pruned before any conversion. One row group, or a part of a very large one, is in memory at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from forebay.base.errors import Conflict, CorruptData, NotFound, UnsupportedOperation
from forebay.codec.filters import BoundPredicate, columns_of, filter_rows, mask
from forebay.metadata.table import Column
from forebay.metadata.types import DataType, TypeRoot, bigint
from forebay.paimon.files.casts import evolve, evolve_exactly, same_type
from forebay.paimon.files.column_stats import UNKNOWN, footer_ranges
from forebay.paimon.files.parquet_pages import read_rows
from forebay.paimon.files.pruning import field_for, may_match
from forebay.paimon.files.row_formats import avro_tables, orc_tables
from forebay.paimon.files.writer import key_value_fields
from forebay.paimon.format.arrow import arrow_type
from forebay.paimon.format.file_meta import DataFileMeta
from forebay.paimon.format.schema import KEY_FIELD_ID_START, KEY_PREFIX, DataField, TableSchema
from forebay.paimon.format.stats import ColumnStats
from forebay.paimon.io.file_io import FileIO

GROUP_BYTES_MAX = 160 << 20
"""The default size above which row groups are read in parts."""

FETCH_BYTES_MIN, FETCH_BYTES_MAX = 1 << 16, 8 << 20
"""The number of bytes of a column that are fetched at a time when a row group is read in parts."""

WHOLE_BYTES_MAX = 1 << 16
"""Files of at most this size are read at once: each further look into a file costs more than its bytes."""

THREADS_BYTES_MIN = 1 << 18
"""Row groups of fewer bytes are decoded by the thread that reads. To give their columns to Arrow's other threads
costs 0.2 ms of CPU and as much waiting, more than that saves."""

BATCH_ROWS = 1 << 17
"""Maximum number of rows in a batch."""

FEW_ROWS = 1 << 13
"""Adjacent rows that match a filter are read on their own if there are at most this many."""

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}
"""The minimum size of a value in memory, by physical type: dictionaries make columns small only in the file."""

_NEAR = (pa.OSFile, pa.BufferReader)
"""The sources that are read without a request to a store."""

Positions = npt.NDArray[np.int64]

_Part = tuple[int, pa.Table | pa.RecordBatch]
"""The position of the first of some rows in their file, and the rows."""

ROW_INDEX = "__paimon_row_index"
ROW_INDEX_FIELD = DataField(2147483547, ROW_INDEX, bigint().not_null())
"""The position of a row in its data file, from 0 on: no file holds it, and every reader may ask for it."""


@dataclass(frozen=True, slots=True)
class _Source:
    """The source of a requested column: the file's field, projected to the requested parts; None means nulls."""

    target: DataField
    field: DataField | None
    is_newer: bool = False
    """Whether the file has another type because it is newer than the reader's schema."""


class DataFileReader:
    """Reads columns `fields` of a table's data files. Thread-safe.

    `schemas` returns the table's schema for an id. `prune` is a filter on `fields` (and other columns) for pruning row
    groups; it is not applied to rows. `keep` is a filter on `fields` alone that is applied to rows. `schema_id` is the
    schema id of `fields`: values of newer files must fit their types, otherwise reading raises `Conflict`. Without it,
    as in Paimon, they are truncated.
    """

    def __init__(
        self,
        io: FileIO,
        schemas: Callable[[int], TableSchema],
        fields: Sequence[DataField],
        prune: BoundPredicate | None = None,
        keep: BoundPredicate | None = None,
        schema_id: int | None = None,
    ) -> None:
        self._io, self._schema_id = io, schema_id
        self._schemas = schemas
        self._fields = tuple(fields)
        self._prune = prune if prune is not None else keep
        self._has_row_index = ROW_INDEX_FIELD in self._fields
        self._keep = keep
        self._keep_names = columns_of(keep) if keep is not None else set()
        self._plans: dict[tuple[int, tuple[str, ...] | None], tuple[_Source, ...]] = {}
        self.schema = pa.schema([pa.field(f.name, arrow_type(f.type), f.type.nullable) for f in fields])

    def read(
        self,
        file: DataFileMeta,
        path: str,
        deleted: Positions | None = None,
        part_bytes: int = GROUP_BYTES_MAX,
    ) -> Generator[pa.RecordBatch]:
        """The rows of `file` at `path` in order, except those at the positions `deleted`.

        About `part_bytes` are in memory at a time. If you do not read to the end, close the generator, which closes the
        file.
        """
        sources = self._plan(file)
        extension = path.rpartition(".")[2].lower()
        if extension == "parquet":
            parts = self._parquet(file, path, sources, part_bytes)
        elif extension == "orc":
            parts = _with_all_keys(orc_tables(self._io, path, partial(_stored_fields, sources)), sources)
        elif extension == "avro":
            parts = _with_all_keys(avro_tables(self._io, path, partial(_stored_fields, sources)), sources)
        else:
            raise UnsupportedOperation(f"data file {path} is neither Parquet nor ORC nor Avro")
        deleted_rows = None if deleted is None or len(deleted) == 0 else np.sort(np.asarray(deleted, np.int64))
        with contextlib.closing(parts):
            for first_row, table in parts:
                if self._has_row_index:
                    table = _with_row_index(table, first_row)
                live = table if deleted_rows is None else _without(table, first_row, deleted_rows)
                for batch in _batches(live):
                    evolved = self._evolved(batch, sources)
                    if self._keep is not None:
                        evolved = filter_rows(evolved, self._keep)
                    if evolved.num_rows:
                        yield evolved

    # -- columns ------------------------------------------------------------------------------------------------------

    def _plan(self, file: DataFileMeta) -> tuple[_Source, ...]:
        key = (file.schema_id, file.write_cols)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = tuple(self._make_plan(file))
        return plan

    def _make_plan(self, file: DataFileMeta) -> Iterator[_Source]:
        file_fields = self._file_fields(file)
        is_newer = self._schema_id is not None and file.schema_id > self._schema_id
        for target in self._fields:
            source = file_fields.get(target.id)
            if source is not None:
                source = DataField(source.id, source.name, _cut(source.type, target.type))
            yield _Source(target, source, is_newer and source is not None and not same_type(source.type, target.type))

    def _file_fields(self, file: DataFileMeta) -> dict[int, DataField]:
        schema = self._schemas(file.schema_id)
        fields = key_value_fields(schema) if schema.has_primary_key else schema.fields
        if file.write_cols is not None:
            fields = tuple(f for f in fields if f.name in file.write_cols or f.id >= KEY_FIELD_ID_START)
        return {f.id: f for f in fields}

    def _evolved(self, batch: pa.RecordBatch, sources: Sequence[_Source]) -> pa.RecordBatch:
        columns = []
        for source in sources:
            index = -1 if source.field is None else batch.schema.get_field_index(source.field.name)
            if source.target is ROW_INDEX_FIELD:
                columns.append(batch.column(ROW_INDEX))
            elif source.field is None or index < 0:
                columns.append(pa.nulls(batch.num_rows, arrow_type(source.target.type)))
            elif source.is_newer:
                columns.append(_fitting(batch.column(index), source.field, source.target))
            else:
                columns.append(evolve(batch.column(index), source.field.type, source.target.type))
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), batch.num_rows, [None]))
        if len(columns) == len(self._fields):
            return pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return pa.RecordBatch.from_arrays(
            columns, schema=pa.schema([self.schema.field(s.target.name) for s in sources])
        )

    # -- Parquet ------------------------------------------------------------------------------------------------------

    def _parquet(self, file: DataFileMeta, path: str, sources: Sequence[_Source], part_bytes: int) -> Generator[_Part]:
        with contextlib.ExitStack() as opened:
            source = opened.enter_context(self._opened(file, path))
            # Local files are not fetched ahead: the fetched bytes would stay in memory as long as the rows.
            try:
                parquet = pq.ParquetFile(source, pre_buffer=not isinstance(source, _NEAR))
            except pa.ArrowInvalid as e:
                raise CorruptData(f"data file {path} is no Parquet file: {e}") from e
            present = set(parquet.schema_arrow.names)
            columns = [path for f in _stored_fields(sources, present) for path in _leaves(f.name, f.type)]
            part_rows = _part_rows(parquet.metadata, columns, part_bytes)
            if any(part_rows):
                parquet = _fetching_parts(source, parquet.metadata, columns, part_bytes)
            groups = self._row_groups(source, parquet, file, columns, sources, part_rows, opened)
            yield from _with_all_keys(groups, sources)

    def _opened(self, file: DataFileMeta, path: str) -> Any:
        source = self._io.open_input(path)
        if not 0 < file.file_size <= WHOLE_BYTES_MAX:
            return _fast(source)
        with source:
            return pa.BufferReader(source.read())

    def _row_groups(
        self, source: Any, parquet: pq.ParquetFile, file: DataFileMeta, columns: list[str], sources: Sequence[_Source],
        part_rows: Sequence[int | None], opened: contextlib.ExitStack,
    ) -> Generator[_Part]:  # fmt: skip
        footer = parquet.metadata
        last = footer.num_row_groups - 1
        first_row = 0
        for i in range(footer.num_row_groups):
            group = footer.row_group(i)
            if self._group_may_match(file, footer, i):
                first = self._filter_columns(parquet, i, columns, sources)
                matches = range(group.num_rows) if first is None else self._matches(first, sources)
                if matches:
                    for offset, table in _group_tables(source, parquet, i, columns, first, matches, part_rows[i]):
                        if i == last and isinstance(table, pa.Table):
                            opened.close()  # a merge reads many files at once, so small ones must not stay open
                        yield first_row + offset, table
            first_row += group.num_rows

    def _filter_columns(
        self, parquet: pq.ParquetFile, index: int, columns: list[str], sources: Sequence[_Source]
    ) -> pa.Table | None:
        """The columns of a row group that the filter reads; None if these are all, or some are not plain columns."""
        filter_names = [s.field.name for s in sources if s.field is not None and s.target.name in self._keep_names]
        if not filter_names or len(filter_names) == len(columns) or not set(filter_names) <= set(columns):
            return None
        return _read_group(parquet, index, filter_names)

    def _matches(self, table: pa.Table, sources: Sequence[_Source]) -> range:
        """From the first to the last row that the filter keeps."""
        assert self._keep is not None
        filter_sources = [s for s in sources if s.target.name in self._keep_names]
        first, stop, offset = table.num_rows, 0, 0
        for batch in _batches(table):
            hits = pc.indices_nonzero(mask(self._keep, self._evolved(batch, filter_sources)))
            if len(hits):
                first, stop = min(first, offset + hits[0].as_py()), offset + hits[-1].as_py() + 1
            offset += batch.num_rows
        return range(first, stop)

    def _group_may_match(self, file: DataFileMeta, footer: pq.FileMetaData, index: int) -> bool:
        if self._prune is None:
            return True
        file_fields = self._file_fields(file)
        group = footer.row_group(index)

        def range_of(column: Column) -> ColumnStats:
            f = field_for(column, file_fields)
            return UNKNOWN if f is None else footer_ranges(footer, [f], set(), [index])[f.name]

        return may_match(self._prune, range_of, group.num_rows)


def _fitting(array: pa.Array, source: DataField, target: DataField) -> pa.Array:
    converted = evolve_exactly(array, source.type, target.type)
    if converted is None:
        raise Conflict(
            f"column '{target.name}' is {source.type} since the table was opened, and has values that are no "
            f"{target.type}: reopen the table (restart a streaming query: it continues where it was)"
        )
    return converted


def _fast(source: Any) -> Any:
    """`source`, opened by Arrow if it is a local file, to read it without the GIL; other sources unchanged."""
    name = getattr(source, "name", None)
    if hasattr(source, "fileno") and isinstance(name, str):
        with source:
            try:
                return pa.OSFile(name)
            except OSError as e:
                raise NotFound(f"cannot open {name}: {e}") from e
    return source


def _part_rows(footer: pq.FileMetaData, columns: list[str], part_bytes: int) -> list[int | None]:
    """For each row group the number of its rows that fit into `part_bytes`; None if all do."""
    wanted = set(columns)
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    sizes = [_memory(group, wanted) for group in groups]
    return [
        None if size <= part_bytes else max(1024, group.num_rows * part_bytes // size)
        for group, size in zip(groups, sizes, strict=True)
    ]


def _fetching_parts(source: Any, footer: pq.FileMetaData, columns: list[str], part_bytes: int) -> pq.ParquetFile:
    """The file, fetching a part of each column at a time."""
    share = part_bytes // (4 * max(1, len(columns)))
    fetched = min(FETCH_BYTES_MAX, max(FETCH_BYTES_MIN, share))
    return pq.ParquetFile(source, metadata=footer, pre_buffer=False, buffer_size=fetched)


def _group_tables(
    source: Any,
    parquet: pq.ParquetFile,
    index: int,
    columns: list[str],
    filter_table: pa.Table | None,
    span: range,
    part_rows: int | None,
) -> Iterator[_Part]:
    """The rows of a row group in parts of `part_rows`, with the position of each part's first row within the group.

    `filter_table` are columns that have already been read. Rows outside `span` may be missing.
    """
    if not columns:
        yield 0, _rows_without_columns(parquet.metadata.row_group(index).num_rows)
        return
    if filter_table is not None and len(span) <= FEW_ROWS:
        yield from _few_rows(source, parquet, index, columns, filter_table, span)
        return
    if part_rows is None:
        rest = [c for c in columns if filter_table is None or c not in filter_table.schema.names]
        table = _read_group(parquet, index, rest)
        if filter_table is not None:
            for name in filter_table.schema.names:
                table = table.append_column(filter_table.schema.field(name), filter_table.column(name))
        yield 0, table
        return
    offset = 0
    for batch in parquet.iter_batches(batch_size=part_rows, row_groups=[index], columns=columns, use_threads=True):
        yield offset, batch
        offset += batch.num_rows


def _few_rows(
    source: Any, parquet: pq.ParquetFile, index: int, columns: list[str], filter_table: pa.Table, span: range
) -> Iterator[tuple[int, pa.Table]]:
    """The rows `span` of a row group, from their pages alone; or else the group is decoded up to the last of them."""
    rest = [c for c in columns if c not in filter_table.schema.names]
    if isinstance(source, _NEAR):  # elsewhere each look at a page is a request
        table = read_rows(source, parquet.metadata, index, rest, span)
        if table is not None:
            for field, column in zip(filter_table.schema, filter_table.columns):
                table = table.append_column(field, column.slice(span.start, len(span)))
            yield span.start, table
            return
    offset = 0
    for batch in parquet.iter_batches(batch_size=FEW_ROWS, row_groups=[index], columns=rest, use_threads=False):
        start, stop = max(span.start, offset), min(span.stop, offset + batch.num_rows)
        if start < stop:
            table = pa.Table.from_batches([batch.slice(start - offset, stop - start)])
            for name in filter_table.schema.names:
                table = table.append_column(
                    filter_table.schema.field(name), filter_table.column(name).slice(start, stop - start)
                )
            yield start, table
        offset += batch.num_rows
        if offset >= span.stop:
            return


def _read_group(parquet: pq.ParquetFile, index: int, columns: list[str]) -> pa.Table:
    threads = len(columns) > 1 and parquet.metadata.row_group(index).total_byte_size >= THREADS_BYTES_MIN
    return parquet.read_row_group(index, columns=columns, use_threads=threads)


def _memory(group: pq.RowGroupMetaData, columns: set[str]) -> int:
    """The approximate size of a row group as Arrow data, for `columns` and their nested parts."""
    total = 0
    for c in (group.column(j) for j in range(group.num_columns)):
        path = c.path_in_schema
        if path in columns or any(path.startswith(w + ".") for w in columns):
            total += max(c.total_uncompressed_size, c.num_values * _WIDTHS.get(c.physical_type, 16))
    return total


def _batches(data: pa.Table | pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Parts of at most `BATCH_ROWS` rows, none of them empty."""
    for batch in [data] if isinstance(data, pa.RecordBatch) else data.to_batches():
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(start, BATCH_ROWS)


def _rows_without_columns(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), rows, [None]))


def _stored_fields(sources: Sequence[_Source], present: Collection[str]) -> list[DataField]:
    """The fields to read of a file that has the columns `present`.

    A key column that a thin file lacks, or whose values are read anyway, is read as the table's column.
    """
    read = {s.field.name for s in sources if s.field is not None and s.field.name in present}
    fields: dict[str, DataField] = {}
    for field in (s.field for s in sources if s.field is not None):
        name = _column_of(field)
        if name != field.name and (name in read or field.name not in present):
            field = replace(field, name=name)
        if field.name in present:
            fields.setdefault(field.name, field)
    return list(fields.values())


def _column_of(field: DataField) -> str:
    """The name of the table's column that a key column copies; the name of any other field."""
    return field.name.removeprefix(KEY_PREFIX) if field.id >= KEY_FIELD_ID_START else field.name


def _with_all_keys(parts: Generator[_Part], sources: Sequence[_Source]) -> Generator[_Part]:
    """`parts` of a file, with the key columns that were read as columns of the table (`_stored_fields`)."""
    keys = [s.field for s in sources if s.field is not None and _column_of(s.field) != s.field.name]
    with contextlib.closing(parts):
        for first_row, table in parts:
            for key in keys:
                if key.name not in table.schema.names and _column_of(key) in table.schema.names:
                    table = table.append_column(key.name, table.column(_column_of(key)))
            yield first_row, table


def _with_row_index(table: pa.Table | pa.RecordBatch, first_row: int) -> pa.Table | pa.RecordBatch:
    index = pa.array(np.arange(first_row, first_row + table.num_rows))
    if not table.num_columns:
        return pa.RecordBatch.from_arrays([index], [ROW_INDEX])
    return table.append_column(ROW_INDEX, index)


def _without(table: pa.Table | pa.RecordBatch, first_row: int, deleted: Positions) -> Any:
    start, stop = np.searchsorted(deleted, [first_row, first_row + table.num_rows])
    if start == stop:
        return table
    keep = np.ones(table.num_rows, bool)
    keep[deleted[start:stop] - first_row] = False
    return table.filter(pa.array(keep))


def _leaves(path: str, t: DataType) -> list[str]:
    if t.root is not TypeRoot.ROW or not t.fields:
        return [path]
    return [leaf for f in t.fields for leaf in _leaves(f"{path}.{f.name}", f.data_type)]


def _cut(file_type: DataType, target: DataType) -> DataType:
    """The type of the file without the nested fields that are not requested."""
    if file_type.root is not TypeRoot.ROW or target.root is not TypeRoot.ROW:
        return file_type
    by_id = {f.field_id: f.data_type for f in target.fields}
    fields = [
        replace(f, data_type=_cut(f.data_type, by_id[f.field_id])) for f in file_type.fields if f.field_id in by_id
    ]
    return replace(file_type, fields=tuple(fields)) if fields else file_type
