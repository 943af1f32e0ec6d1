"""Writing one bucket of a round into files of an Iceberg table.

Rows of a table with a key replace older ones, which are marked by position deletes, because every Iceberg reader
supports these: the writer looks up the round's keys in the key columns of the bucket's files and, for keys that change
twice in the round, in its own files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import Record

from forebay.base.ambient import SYSTEM_IDS, IdSource
from forebay.base.errors import InvalidRequest
from forebay.codec.kv.key_index import KeyIndex
from forebay.codec.log.log_batch import ChangeType
from forebay.lake.records import ChangeRows
from forebay.lake.source import BUCKET_COLUMN
from forebay.lake.tiering import LakeWriter, WriterContext
from forebay.lake.writing import LakeRows, check_appended, check_partition
from forebay.lakes.iceberg_errors import lake_errors
from forebay.lakes.iceberg_files import FileWriter, Positions, WrittenFile, remove_files, write_positions
from forebay.lakes.iceberg_keys import KeyColumns, KeyRange, locate
from forebay.lakes.iceberg_layout import live_files
from forebay.lakes.iceberg_types import arrow_schema, internal_value

BUFFER_BYTES = 32 << 20
BUFFER_ROWS = 1 << 20
_TARGET_BYTES, _TARGET_BYTES_DEFAULT = "write.target-file-size-bytes", 512 << 20


@dataclass(frozen=True, slots=True)
class IcebergWriteResult:
    """The files of one writer.

    `deletes` has positions in files of `snapshot` (None: there was none); `referenced` are those files.
    """

    table_uuid: str
    spec_id: int
    partition: tuple[object, ...]
    files: tuple[WrittenFile, ...] = ()
    deletes: WrittenFile | None = None
    snapshot: int | None = None
    referenced: tuple[str, ...] = ()

    @property
    def paths(self) -> list[str]:
        """All files that were written."""
        return [f.path for f in (*self.files, self.deletes) if f is not None]


class _InternalKey(PartitionKey):
    """A partition with values as stored in manifests: microseconds, days, bucket numbers.

    pyiceberg's own class expects a `datetime.time` for every field on a TIME column, even for its bucket number.
    """

    @cached_property
    def partition(self) -> Record:
        return Record(*(field.value for field in self.field_values))


class FilePlace:
    """The location of the files of one partition and bucket."""

    def __init__(self, table: Table, partition: tuple[object, ...], ids: IdSource = SYSTEM_IDS) -> None:
        spec = table.metadata.spec()
        values = [PartitionFieldValue(f, value) for f, value in zip(spec.fields, partition, strict=True)]
        self._key = _InternalKey(values, spec, table.metadata.schema())
        self._provider = load_location_provider(table.location(), table.properties)
        self._ids = ids
        self.partition = partition
        self.record = Record(*partition)

    def new_path(self, kind: str = "data") -> str:
        """The path of a new file."""
        return self._provider.new_data_location(f"{self._ids.token_hex()}-{kind}.parquet", self._key)


class RowFiles:
    """Writes rows into files of about the table's target size, and tracks the position of each row."""

    def __init__(self, io: FileIO, table: Table, place: FilePlace) -> None:
        self._io, self._place, self._schema = io, place, table.metadata.schema()
        self._properties = table.properties
        self._order = table.sort_order().order_id
        self._target = int(table.properties.get(_TARGET_BYTES, _TARGET_BYTES_DEFAULT))
        self._open: FileWriter | None = None
        self._numbers: dict[str, list[Positions]] = {}
        self.files: list[WrittenFile] = []

    def write(self, rows: pa.RecordBatch, numbers: Positions | None = None) -> None:
        """Write rows of the table's schema; `numbers` are the caller's row numbers, ascending."""
        if rows.num_rows == 0:
            return
        if self._open is None:
            self._open = FileWriter(self._io, self._place.new_path(), self._schema, self._properties)
        self._open.write(rows)
        if numbers is not None:
            self._numbers.setdefault(self._open.path, []).append(numbers)
        if self._open.size >= self._target:
            self._roll()

    def _roll(self) -> None:
        if self._open is not None:
            closing, self._open = self._open, None
            self.files.append(closing.close(self._place.partition, sort_order=self._order))

    def close(self) -> list[WrittenFile]:
        """Finish the last file; return all files."""
        self._roll()
        return self.files

    def outdated(self, newest: Positions) -> dict[str, Positions]:
        """The positions of the rows whose numbers are not in `newest` (ascending), by file."""
        by_path = {}
        for path, parts in self._numbers.items():
            old_rows = np.flatnonzero(~np.isin(np.concatenate(parts), newest, assume_unique=True))
            if len(old_rows):
                by_path[path] = old_rows
        return by_path

    def abort(self) -> None:
        """Delete all files."""
        if self._open is not None:
            self._open.abort()
            self._open = None
        remove_files(self._io, [f.path for f in self.files])
        self.files = []


class IcebergLakeWriter(LakeWriter):
    """Writes one bucket."""

    def __init__(self, load: Callable[[], Table], context: WriterContext) -> None:
        """`load` loads the current lake table."""
        table = load()
        count = context.info.descriptor.bucket_count
        if count is not None and not 0 <= context.bucket < count:
            raise InvalidRequest(f"bucket {context.bucket} is none of the {count} that {context.info.path} has")
        self._load, self._table, self._context = load, table, context
        self._rows = LakeRows(context, arrow_schema(table.metadata.schema().fields), has_system_columns=True)
        self._partition = _Partition(table, context)
        self._keyed = context.info.descriptor.has_primary_key
        self._buffer: list[ChangeRows] = []
        self._buffered_bytes = self._buffered_rows = self._numbered = 0
        self._completed = False
        self._place: FilePlace | None = None
        self._files: RowFiles | None = None
        self._index = KeyIndex()
        if self._keyed:
            schema, partitions = table.metadata.schema(), context.info.descriptor.partition_keys
            names = [n for n in context.info.schema.primary_key if n not in partitions]
            self._keys = KeyColumns([schema.find_field(name) for name in names])
            self._range = KeyRange(self._keys.fields)

    @lake_errors("a file of the lake")
    def write(self, records: ChangeRows) -> None:
        """See `LakeWriter.write`. Buffers up to `BUFFER_BYTES` or `BUFFER_ROWS`. Raises `InvalidRequest` after
        `complete`."""
        if self._completed:
            raise InvalidRequest("the writer is complete; make another one")
        if not self._keyed:
            check_appended(self._context.info, records)
        changes = records.without_update_before() if self._keyed else records
        if len(changes) == 0:
            return
        self._buffer.append(changes)
        self._buffered_rows += len(changes)
        self._buffered_bytes += changes.rows.nbytes
        if self._buffered_bytes >= BUFFER_BYTES or self._buffered_rows >= BUFFER_ROWS:
            self._flush()

    def _flush(self) -> None:
        """Write the buffered rows, only the newest one of each key."""
        if not self._buffer:
            return
        batch = _joined([self._rows.lake_batch(changes) for changes in self._buffer])
        types = np.concatenate([changes.kinds for changes in self._buffer])
        self._buffer, self._buffered_rows, self._buffered_bytes = [], 0, 0
        if self._files is None:
            self._place = FilePlace(self._table, self._partition.values_of(batch))
            self._files = RowFiles(self._table.io, self._table, self._place)
        self._partition.check(batch)
        if not self._keyed:
            self._files.write(batch)
            return
        key_columns = batch.select([f.name for f in self._keys.fields])
        keys = self._keys.encode(key_columns)
        self._index.add(keys)
        self._range.add(key_columns)
        here = KeyIndex()
        here.add(keys)
        newest = here.newest_rows()
        newest = newest[types[newest] != ChangeType.DELETE]
        self._files.write(batch.take(pa.array(newest)), newest + self._numbered)
        self._numbered += batch.num_rows

    @lake_errors("a file of the lake")
    def complete(self) -> IcebergWriteResult:
        """The data files and, in a table with a key, the position deletes of rows that the round replaces or deletes.

        The deletes are based on the table's current snapshot, which the result names. Files are deleted on failure.
        """
        self._flush()
        self._completed = True
        uuid, spec_id = str(self._table.metadata.table_uuid), self._table.metadata.default_spec_id
        if self._files is None or self._place is None:
            return IcebergWriteResult(uuid, spec_id, ())
        partition = self._place.partition
        try:
            files = tuple(self._files.close())
            if not self._keyed:
                return IcebergWriteResult(uuid, spec_id, partition, files)
            table = self._load()
            head = table.current_snapshot()
            old = self._older_rows(table)
            deleted_rows = {**old, **self._files.outdated(self._index.newest_rows())}
            deletes = None
            if deleted_rows:
                path = self._place.new_path("deletes")
                deletes = write_positions(table.io, path, partition, deleted_rows, table.properties)
            snapshot = head.snapshot_id if head is not None else None
            return IcebergWriteResult(uuid, spec_id, partition, files, deletes, snapshot, tuple(old))
        except BaseException:
            self._files.abort()
            raise

    def _older_rows(self, table: Table) -> dict[str, Positions]:
        """The positions of the rows in the lake that the round replaces or deletes."""
        assert self._place is not None
        condition = self._range.condition()
        files = live_files(
            table.metadata, table.current_snapshot(), table.io, partition=self._place.record, condition=condition
        )
        return locate(table.io, files, self._keys, self._index, table.metadata.schema())

    @lake_errors("a file of the lake")
    def abort(self) -> None:
        if not self._completed:
            self._completed = True
            self._buffer = []
            if self._files is not None:
                self._files.abort()


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    columns = [pa.concat_arrays([b.column(i) for b in batches]) for i in range(batches[0].num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)


class _Partition:
    """The partition of a writer's rows."""

    def __init__(self, table: Table, context: WriterContext) -> None:
        self._context = context
        self._schema: Schema = table.metadata.schema()
        self._spec = table.metadata.spec()
        self._values: Mapping[str, pa.Scalar] = {}

    def values_of(self, batch: pa.RecordBatch) -> tuple[object, ...]:
        """The lake partition's values: those of the first row, and the bucket.

        Raises `InvalidRequest` if they are not those of this writer.
        """
        first = {key: batch.column(key)[0] for key in self._context.info.descriptor.partition_keys}
        check_partition(self._context, first)
        self._values = first
        values = []
        for f in self._spec.fields:
            name = self._schema.find_column_name(f.source_id)
            is_key = name in first and name != BUCKET_COLUMN and str(f.transform) == "identity"
            values.append(internal_value(first[name].as_py()) if is_key and name else self._context.bucket)
        return tuple(values)

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise `InvalidRequest` if a row is in another partition than the first one."""
        for key, value in self._values.items():
            if not pc.all(pc.equal(batch.column(key), value)).as_py():
                raise InvalidRequest(
                    f"rows of several partitions came to one writer of {self._context.info.path}: see '{key}'"
                )
