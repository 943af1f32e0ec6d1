"""Files of an Iceberg table: Parquet by field ids, row positions, and position deletes.

A row's *position* is its index in its file. Columns are found by id, so that a file that was written before a column
was added, renamed or widened is read with the requested schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, LongType, NestedField, StringType, StructType

from forebay.base.errors import InvalidRequest, NotFound, UnsupportedOperation
from forebay.codec.arrow.parquet_dictionaries import worth_a_dictionary
from forebay.codec.kv.key_index import distinct_numbers
from forebay.lakes.iceberg_types import FIELD_ID, arrow_field, arrow_schema, arrow_type

BATCH_ROWS = 64 * 1024
PATH_FIELD = NestedField(2147483546, "file_path", StringType(), required=True)
POSITION_FIELD = NestedField(2147483545, "pos", LongType(), required=True)
"""The columns of position delete files; the format reserves their ids."""

POSITION_DELETE_SCHEMA = Schema(PATH_FIELD, POSITION_FIELD)
Positions = npt.NDArray[np.int64]
NO_POSITIONS: Positions = np.empty(0, np.int64)


# ---- reading --------------------------------------------------------------------------------------------------------


def open_file(io: FileIO, path: str) -> Any:
    """A seekable stream of a file. Raises `NotFound`."""
    try:
        return io.new_input(path).open()
    except FileNotFoundError as e:
        raise NotFound(f"file {path} does not exist: the snapshots that have it have expired") from e


def read_rows(
    io: FileIO,
    path: str,
    fields: Sequence[NestedField],
    *,
    form: str = "PARQUET",
    batch_rows: int = BATCH_ROWS,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The columns `fields` of all rows of a data file: batches with the position of their first row.

    Columns that the file lacks are null. Memory is bounded by a row group. Raises `NotFound`, and
    `UnsupportedOperation` for formats other than Parquet.
    """
    if form != "PARQUET":
        raise UnsupportedOperation(f"file {path} is {form}; files of Iceberg tables are read as Parquet only")
    with open_file(io, path) as stream, pq.ParquetFile(stream) as parquet:
        projection = _Projection(parquet.schema_arrow, fields)
        if not projection.paths:  # no columns to read, but rows to count
            for first in range(0, parquet.metadata.num_rows, batch_rows):
                yield first, projection.nulls(min(batch_rows, parquet.metadata.num_rows - first))
            return
        start = 0
        for batch in parquet.iter_batches(batch_rows, columns=projection.paths, use_threads=False):
            yield start, projection.convert(batch)
            start += batch.num_rows


class _Projection:
    """The columns of a file to read, and their conversion to the requested ones."""

    def __init__(self, file_schema: pa.Schema, fields: Sequence[NestedField]) -> None:
        self._fields = fields
        self._schema = arrow_schema(fields)
        by_id = {_id_of(file_schema.field(i)): i for i in range(len(file_schema))}
        places = [by_id.get(f.field_id) for f in fields]
        self._files = [None if i is None else file_schema.field(i) for i in places]
        self.paths = [p for f, want in zip(self._files, fields, strict=True) if f is not None for p in _paths(f, want)]

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The requested columns, converted from a batch read from the file."""
        columns = []
        for f, target in zip(self._files, self._fields, strict=True):
            if f is None:
                columns.append(pa.nulls(batch.num_rows, arrow_type(target.field_type)))
            else:
                columns.append(_convert(batch.column(batch.schema.get_field_index(f.name)), batch, f.name, target))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def nulls(self, rows: int) -> pa.RecordBatch:
        """`rows` rows of columns that the file lacks."""
        columns = [pa.nulls(rows, f.type) for f in self._schema]
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _id_of(f: pa.Field) -> int | None:
    text = (f.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


def _paths(file_field: pa.Field, target: NestedField) -> list[str]:
    """The paths of the leaves to read. Fields of structs are selected; lists and maps are read whole."""
    if not (pa.types.is_struct(file_field.type) and isinstance(target.field_type, StructType)):
        return [file_field.name]
    by_id = {_id_of(file_field.type.field(i)): file_field.type.field(i) for i in range(file_field.type.num_fields)}
    inner = [by_id[f.field_id] for f in target.field_type.fields if f.field_id in by_id]
    wants = {f.field_id: f for f in target.field_type.fields}
    if not inner:
        return [file_field.name]  # any field of the struct shows in which rows it is null
    return [f"{file_field.name}.{path}" for f in inner for path in _paths(f, wants[_id_of(f) or 0])]


def _convert(array: pa.Array, batch: pa.RecordBatch, name: str, target: NestedField) -> pa.Array:
    return _as_type(array, batch.schema.field(name), target.field_type)


def _as_type(array: pa.Array, file_field: pa.Field, target_type: IcebergType) -> pa.Array:
    target = arrow_type(target_type)
    if isinstance(target_type, StructType) and pa.types.is_struct(file_field.type):
        places = {_id_of(file_field.type.field(i)): i for i in range(file_field.type.num_fields)}
        children = []
        for f in target_type.fields:
            place = places.get(f.field_id)
            if place is None:
                children.append(pa.nulls(len(array), arrow_type(f.field_type)))
            else:
                children.append(_as_type(array.field(place), file_field.type.field(place), f.field_type))
        return pa.StructArray.from_arrays(
            children, fields=[arrow_field(f) for f in target_type.fields], mask=array.is_null()
        )
    if array.type.equals(target):
        return array
    if array.type.num_fields:
        return _rebuilt(array, file_field, target_type, target)
    return array.cast(target)


def _rebuilt(array: pa.Array, file_field: pa.Field, target_type: IcebergType, target: pa.DataType) -> pa.Array:
    """A list or map whose elements are converted to the requested fields."""
    copied = array.take(pa.array(np.arange(len(array))))  # so that its offsets start at 0
    if pa.types.is_map(target):
        keys = _as_type(copied.keys, file_field.type.key_field, target_type.key_type)  # type: ignore[attr-defined]
        items = _as_type(copied.items, file_field.type.item_field, target_type.value_type)  # type: ignore[attr-defined]
        return pa.MapArray.from_arrays(copied.offsets, keys, items, type=target, mask=copied.is_null())
    values = _as_type(copied.values, file_field.type.value_field, target_type.element_type)  # type: ignore[attr-defined]
    return pa.ListArray.from_arrays(copied.offsets, values, type=target, mask=copied.is_null())


# ---- position deletes -----------------------------------------------------------------------------------------------


def read_positions(io: FileIO, path: str, form: str, files: frozenset[str]) -> dict[str, Positions]:
    """The deleted positions in data files among `files`, from a file of position deletes or deletion vectors."""
    if form == "PUFFIN":
        with open_file(io, path) as stream:
            vectors = deletion_vectors_from_puffin_file(PuffinFile(stream.read()))
        return {
            v.referenced_data_file: np.asarray(v.to_vector().combine_chunks(), np.int64)
            for v in vectors
            if v.referenced_data_file in files
        }
    by_path: dict[str, list[Positions]] = {}
    names = pa.array(sorted(files), pa.string())
    for _, batch in read_rows(io, path, [PATH_FIELD, POSITION_FIELD], form=form):
        matches = batch.filter(pc.is_in(batch.column(0), names))
        paths = matches.column(0).dictionary_encode()
        codes, positions = np.asarray(paths.indices), np.asarray(matches.column(1))
        for code, name in enumerate(paths.dictionary.to_pylist()):
            by_path.setdefault(name, []).append(positions[codes == code])
    return {name: np.concatenate(parts) for name, parts in by_path.items()}


def live_rows(start: int, rows: int, deleted: Positions) -> pa.BooleanArray | None:
    """Whether each of `rows` rows from position `start` on is not in `deleted` (ascending); None if all are."""
    first, last = np.searchsorted(deleted, [start, start + rows])
    if first == last:
        return None
    mask = np.ones(rows, np.bool_)
    mask[deleted[first:last] - start] = False
    return pa.array(mask)


# ---- writing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that was written and not committed yet. Picklable and small."""

    path: str
    partition: tuple[Any, ...]
    size: int
    statistics: Mapping[str, Any]
    is_delete: bool = False
    sort_order: int | None = None

    @property
    def records(self) -> int:
        """The number of rows."""
        return int(self.statistics["record_count"])

    def data_file(self, spec_id: int) -> DataFile:
        """The file as a manifest entry."""
        file = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES if self.is_delete else DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat.PARQUET,
            partition=Record(*self.partition),
            file_size_in_bytes=self.size,
            sort_order_id=self.sort_order,
            equality_ids=None,
            key_metadata=None,
            **self.statistics,
        )
        file.spec_id = spec_id
        return file


class FileWriter:
    """Writes one Parquet file of an Iceberg schema."""

    def __init__(self, io: FileIO, path: str, schema: Schema, properties: Mapping[str, str]) -> None:
        self.path, self.rows = path, 0
        self._io, self._schema, self._properties = io, schema, dict(properties)
        self._arrow = arrow_schema(schema.fields, with_ids=True)
        self._compression = _compression(properties)  # before a file is created that would be left behind
        self._stream = io.new_output(path).create(overwrite=False)
        self._parquet: pq.ParquetWriter | None = None  # until there are rows to choose dictionaries by

    @property
    def size(self) -> int:
        """The bytes written so far."""
        return int(self._stream.tell())

    def write(self, batch: pa.RecordBatch) -> None:
        """Write one row group; `batch` has the schema's columns."""
        rows = batch.cast(self._arrow)
        if self._parquet is None:
            self._parquet = self._begin(worth_a_dictionary(pa.Table.from_batches([rows]), frozenset()))
        self._parquet.write_batch(rows, row_group_size=max(1, rows.num_rows))
        self.rows += rows.num_rows

    def _begin(self, dictionaries: list[str]) -> pq.ParquetWriter:
        return pq.ParquetWriter(
            self._stream,
            self._arrow,
            compression=self._compression,
            use_dictionary=dictionaries,
            store_decimal_as_integer=True,
            store_schema=False,
        )

    def close(
        self, partition: tuple[Any, ...], *, is_delete: bool = False, sort_order: int | None = None
    ) -> WrittenFile:
        """Finish the file."""
        parquet = self._parquet or self._begin([])
        parquet.close()
        size = self.size
        self._stream.close()
        statistics = data_file_statistics_from_parquet_metadata(
            parquet.writer.metadata,
            compute_statistics_plan(self._schema, self._properties),
            parquet_path_to_id_mapping(self._schema),
        ).to_serialized_dict()
        return WrittenFile(self.path, partition, size, statistics, is_delete, sort_order)

    def abort(self) -> None:
        """Delete the file."""
        try:
            if self._parquet is not None:
                self._parquet.close()
            self._stream.close()
        finally:
            remove_files(self._io, [self.path])


def _compression(properties: Mapping[str, str]) -> str:
    codec = properties.get("write.parquet.compression-codec", "zstd").lower()
    if codec not in ("zstd", "snappy", "gzip", "lz4", "brotli", "uncompressed"):
        raise InvalidRequest(
            f"property 'write.parquet.compression-codec' is {codec!r}, which is not a codec of Parquet"
        )
    return "none" if codec == "uncompressed" else codec


def write_positions(
    io: FileIO, path: str, partition: tuple[Any, ...], positions: Mapping[str, Positions], properties: Mapping[str, str]
) -> WrittenFile:
    """A position delete file: for each data file, the positions of its deleted rows."""
    paths = sorted(name for name, rows in positions.items() if len(rows))
    plain = {k: v for k, v in properties.items() if k == "write.parquet.compression-codec"}
    # Readers find the deletes of a data file by the bounds of its path, which must not be truncated.
    plain["write.metadata.metrics.default"] = "full"
    writer = FileWriter(io, path, POSITION_DELETE_SCHEMA, plain)
    try:
        for name in paths:
            ascending = distinct_numbers(positions[name])
            names = pa.repeat(pa.scalar(name, pa.string()), len(ascending))
            writer.write(
                pa.RecordBatch.from_arrays(
                    [names, pa.array(ascending)], schema=arrow_schema([PATH_FIELD, POSITION_FIELD])
                )
            )
        return writer.close(partition, is_delete=True)
    except BaseException:
        writer.abort()
        raise


def remove_files(io: FileIO, paths: Sequence[str]) -> None:
    """Delete files; missing ones are no error."""
    for path in paths:
        try:
            io.delete(path)
        except FileNotFoundError:
            pass
