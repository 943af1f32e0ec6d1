"""Encoding of rows to write: Arrow batches -> encoded batches, one bucket each.

Nouns: a `Piece` is an encoded log or KV batch for one bucket, complete but for writer id, sequence and checksum, which
are set when it is sent (`seal`). A *group* is a (partition, bucket) pair.

Flow: storage-schema batch (codec.casting.batches) -> groups of its rows -> rows in the order of groups -> one slice a
group -> pieces of at most `batch_bytes`. Rows of one group keep their order. Nothing here is processed row by row, and
a batch that belongs to one group is not copied.

Encoders are created once per table; they hold no state of a write and are shared by all threads.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.client.arrays import array_of, integers, rows_without_columns
from forebay.client.writing.accumulator import WriteTarget
from forebay.codec.arrow.arrow_types import storage_schema
from forebay.codec.casting.batches import check_not_null, iter_record_batches
from forebay.codec.kv.kv_batch import KvRecordsBuilder, seal_kv_batch
from forebay.codec.log.header import seal_as
from forebay.codec.log.log_batch import build_arrow_batch, build_row_batch
from forebay.codec.log.statistics import statistics_columns
from forebay.codec.rows.buckets import bucket_ids, split_by_group
from forebay.codec.rows.keys import bucket_key_encoder, primary_key_encoder
from forebay.codec.rows.row_codec import row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.metadata.merge_engines import FIRST_ROW, VERSIONED
from forebay.metadata.partitions import partition_name, partition_text
from forebay.metadata.table import Schema, TableInfo
from forebay.metadata.table_options import LogFormat
from forebay.metadata.types import DataType, TypeRoot
from forebay.protocol.frames import FRAME_BYTES_MAX

if TYPE_CHECKING:
    from forebay.client.settings import Settings

MergeMode: TypeAlias = Literal["default", "overwrite"]
"""What a write does under a merge engine: it is merged, or it replaces rows and deletes them (Fluss's `MergeMode`)."""

_FRAME_SLACK = 4096
"""Bytes of a request besides the batch."""

_ROWS_MIN, _ROWS_MAX = 1 << 16, 1 << 18
_ROW_BYTES_GUESS = 64
"""The limits of `rows_at_once`, and the size of a row that it assumes."""


class Piece(NamedTuple):
    """An encoded batch for one bucket. `bucket` is None if any bucket of the partition will do."""

    partition: str | None
    bucket: int | None
    data: bytearray
    rows: int


def rows_at_once(info: TableInfo, batch_bytes: int) -> int:
    """Return how many rows to encode at a time, so that the batches of all buckets fill well and memory stays small."""
    return min(max(batch_bytes * info.bucket_count // _ROW_BYTES_GUESS, _ROWS_MIN), _ROWS_MAX)


# ---- partitions and buckets -----------------------------------------------------------------------------------------


class RowGroups(NamedTuple):
    """The rows of a batch by group: row positions in group order (None: unchanged), and the rows of each group."""

    order: npt.NDArray[np.int64] | None
    parts: list[tuple[str | None, int | None, int, int]]
    """(partition, bucket, first, last): rows `first` to `last` (exclusive) in group order."""


def group_rows(info: TableInfo, batch: pa.RecordBatch, buckets: npt.NDArray[np.int32] | None) -> RowGroups:
    """The groups of `batch`, whose rows belong to `buckets` (None: to any)."""
    rows = batch.num_rows
    partition_codes, names = partition_codes_of(info, batch)
    count = 1 if buckets is None else info.bucket_count
    codes: npt.NDArray[Any] | None = buckets
    if partition_codes is not None:
        codes = partition_codes if buckets is None else partition_codes * count + buckets
    if codes is None or rows == 0 or len(names) * count == 1:
        return RowGroups(None, [(names[0], None if buckets is None else 0, 0, rows)] if rows else [])
    order, borders = split_by_group(codes, len(names) * count)
    filled = np.flatnonzero(np.diff(borders))
    parts = [
        (
            names[group // count],
            None if buckets is None else int(group % count),
            int(borders[group]),
            int(borders[group + 1]),
        )
        for group in filled.tolist()
    ]
    return RowGroups(None if len(parts) == 1 else order, parts)


def partition_codes_of(info: TableInfo, batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int64] | None, list[Any]]:
    """The position of each row's partition name in the list; no array if there is only one name.

    A table without partitions has the single name None. Raises `InvalidRequest` for a null partition value.
    """
    keys = info.descriptor.partition_keys
    if not keys:
        return None, [None]
    codes = np.zeros(batch.num_rows, np.int64)
    texts: list[list[str]] = []
    for key in keys:
        column = batch.column(batch.schema.get_field_index(key))
        if column.null_count:
            row = column.is_null().index(True).as_py()
            raise InvalidRequest(
                f"partition key '{key}' is null in row {row}; rows of table {info.path} need its value",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            )
        encoded = column.dictionary_encode()
        data_type = info.schema.column(key).data_type
        texts.append([partition_text(data_type, _python_value(data_type, value)) for value in encoded.dictionary])
        codes = codes * max(len(texts[-1]), 1) + integers(encoded.indices)
    unique, inverse = np.unique(codes, return_inverse=True)
    names = [_name_of(int(code), texts) for code in unique]
    if len(names) <= 1:
        return None, names
    # Two values may have the same text (times that differ below a millisecond): they are one partition.
    positions = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return np.array([positions[name] for name in names], np.int64)[inverse], list(positions)


def _name_of(code: int, texts: Sequence[Sequence[str]]) -> str:
    values = []
    for options in reversed(texts):
        code, place = divmod(code, len(options))
        values.append(options[place])
    return partition_name(values[::-1])


class _NanosecondDatetime(dt.datetime):
    """A datetime with the nanoseconds that `dt.datetime` cannot hold (pandas' Timestamp would import pandas)."""

    nanosecond = 0


def _python_value(t: DataType, value: pa.Scalar) -> Any:
    if t.root in (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ) and value.type.unit == "ns":
        microseconds, nanos = divmod(value.value, 1000)
        plain = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=microseconds)
        moment = _NanosecondDatetime(
            plain.year, plain.month, plain.day, plain.hour, plain.minute, plain.second, plain.microsecond
        )
        moment.nanosecond = nanos
        return moment
    if t.root is TypeRoot.TIME and value.type.unit == "ns":
        return (dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=value.value // 1000)).time()
    return value.as_py()


# ---- log tables -----------------------------------------------------------------------------------------------------


class LogEncoder:
    """Encodes rows for a log table."""

    def __init__(self, info: TableInfo, batch_bytes: int) -> None:
        descriptor = info.descriptor
        self._info = info
        self._batch_bytes = batch_bytes
        self._bucket_key = bucket_key_encoder(descriptor)
        self._compression = descriptor.arrow_compression
        option = descriptor.properties.get("table.statistics.columns")
        self._statistics = statistics_columns(info.schema, option)
        self._row_codec = None
        if descriptor.log_format is not LogFormat.ARROW:
            self._row_codec = row_codec(info.schema.columns, RowFormat(descriptor.log_format.value))

    def pieces(self, batch: pa.RecordBatch) -> Iterator[Piece]:
        """The pieces of a storage-schema batch. Raises `InvalidRequest` for null keys and rows that are too large."""
        info = self._info
        buckets = None
        if self._bucket_key is not None:
            buckets = bucket_ids(self._bucket_key.encode(batch), info.bucket_count, info.descriptor.lake_format)
        groups = group_rows(info, batch, buckets)
        ordered = batch if groups.order is None else batch.take(array_of(groups.order))
        for partition, bucket, first, last in groups.parts:
            for part in self._sized(ordered.slice(first, last - first)):
                yield Piece(partition, bucket, _checked(self._encode(part)), part.num_rows)

    def _sized(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        rows = batch.num_rows
        count = min(-(-batch.nbytes // self._batch_bytes), rows)
        for index in range(count or 1):
            first = rows * index // max(count, 1)
            yield batch.slice(first, rows * (index + 1) // max(count, 1) - first)

    def _encode(self, batch: pa.RecordBatch) -> bytearray:
        if self._row_codec is not None:
            return build_row_batch(self._row_codec.encode(batch), schema_id=self._info.schema_id)
        return build_arrow_batch(
            batch,
            schema_id=self._info.schema_id,
            compression=self._compression.codec,
            level=self._compression.level,
            statistics_columns=self._statistics,
        )


# ---- primary-key tables ---------------------------------------------------------------------------------------------


class KeyedRows(NamedTuple):
    """Encoded keys and rows (null: delete the key), with the batch columns that determine partition and bucket."""

    keys: pa.BinaryArray
    rows: pa.BinaryArray
    buckets: npt.NDArray[np.int32]
    partitions: pa.RecordBatch
    """The partition key columns."""


class KeyRouter:
    """Key bytes and buckets of rows or keys of a primary-key table."""

    def __init__(self, info: TableInfo) -> None:
        self._info = info
        self.primary_key = primary_key_encoder(info.descriptor)
        bucket_key = bucket_key_encoder(info.descriptor)
        if bucket_key is None:
            raise InvalidRequest(f"table {info.path} has a primary key but no bucket key")
        self._bucket_key = None if bucket_key is self.primary_key else bucket_key

    def route(self, batch: pa.RecordBatch) -> tuple[pa.BinaryArray, npt.NDArray[np.int32]]:
        """(keys, buckets) of a batch that contains the key columns."""
        keys = self.primary_key.encode(batch)
        bucket_keys = keys if self._bucket_key is None else self._bucket_key.encode(batch)
        return keys, bucket_ids(bucket_keys, self._info.bucket_count, self._info.descriptor.lake_format)


class KvEncoder:
    """Encodes rows and deletes for a primary-key table."""

    def __init__(self, info: TableInfo, batch_bytes: int) -> None:
        self._info = info
        self._batch_bytes = batch_bytes
        self._router = KeyRouter(info)
        self._codec = row_codec(info.schema.columns, RowFormat(info.descriptor.kv_format.value))
        self._schema = storage_schema(info.schema.columns)

    def upserts(self, batch: pa.RecordBatch) -> KeyedRows:
        """The encoded rows of a storage-schema batch. Missing columns (partial update) are null."""
        keys, buckets = self._router.route(batch)
        batch = self._router.primary_key.canonical_columns(batch)  # rows encode the same values as their keys
        return KeyedRows(keys, self._codec.encode(self._widened(batch)), buckets, self._partitions(batch))

    def deletes(self, batch: pa.RecordBatch) -> KeyedRows:
        """The encoded deletes of the keys in a batch that contains the primary key columns."""
        keys, buckets = self._router.route(batch)
        return KeyedRows(keys, pa.nulls(len(keys), pa.binary()), buckets, self._partitions(batch))

    def changes(self, batch: pa.RecordBatch, deletes: npt.NDArray[np.bool_]) -> KeyedRows:
        """Return the encoded rows of a storage-schema batch; rows flagged in `deletes` become deletes of their keys."""
        keys, buckets = self._router.route(batch)
        upserts = self._router.primary_key.canonical_columns(batch).filter(pa.array(~deletes))
        places = pa.array(np.cumsum(~deletes) - 1, pa.int64(), mask=deletes)
        rows = self._codec.encode(self._widened(upserts)).take(places)
        return KeyedRows(keys, rows, buckets, self._partitions(batch))

    def pieces(self, parts: Sequence[KeyedRows]) -> Iterator[Piece]:
        """The pieces of `parts`, in the order they were written."""
        part = parts[0] if len(parts) == 1 else _joined(parts)
        groups = group_rows(self._info, part.partitions, part.buckets)
        keys, rows = part.keys, part.rows
        if groups.order is not None:
            order = array_of(groups.order)
            keys, rows = keys.take(order), rows.take(order)
        for partition, bucket, first, last in groups.parts:
            builder = KvRecordsBuilder(
                keys.slice(first, last - first), rows.slice(first, last - first), self._info.schema_id
            )
            for data, count in builder.batches(self._batch_bytes):
                yield Piece(partition, bucket, _checked(data), count)

    def _partitions(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(list(self._info.descriptor.partition_keys))

    def _widened(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_columns == len(self._schema):
            return batch
        arrays = []
        for field in self._schema:
            place = batch.schema.get_field_index(field.name)
            arrays.append(pa.nulls(batch.num_rows, field.type) if place < 0 else batch.column(place))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _joined(parts: Sequence[KeyedRows]) -> KeyedRows:
    return KeyedRows(
        pa.concat_arrays([part.keys for part in parts]),
        pa.concat_arrays([part.rows for part in parts]),
        np.concatenate([part.buckets for part in parts]),
        _concat_batches([part.partitions for part in parts]),
    )


def _concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if batches[0].num_columns == 0:
        return rows_without_columns(sum(batch.num_rows for batch in batches))
    return pa.concat_batches(batches)


# ---- the last touch -------------------------------------------------------------------------------------------------


def seal(data: bytearray, is_kv: bool, writer_id: int, sequence: int) -> None:
    """Set the writer id and sequence of an encoded batch, and compute its checksum."""
    (seal_kv_batch if is_kv else seal_as)(data, writer_id, sequence)


def _checked(data: bytearray) -> bytearray:
    if len(data) > FRAME_BYTES_MAX - _FRAME_SLACK:
        raise InvalidRequest(
            f"a row of {len(data)} bytes is larger than servers accept ({FRAME_BYTES_MAX} bytes in one request)",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )
    return data


APPEND, UPSERT, DELETE, CHANGES = "append", "upsert", "delete", "write_changes"

NULLING_UPSERT = "upsert(missing='null')"
"""An upsert that sets the columns that the data lacks to null."""

_LOGGER = logging.getLogger("forebay")
_TABLES_WARNED_MAX = 1000
_IS_DELETE = "_is_delete"
"""Behind the columns of a batch of changes: whether a row is a delete."""


@lru_cache(_TABLES_WARNED_MAX)
def _warn_of_ignored_deletes(table: str) -> None:
    """Warn once of each table."""
    _LOGGER.warning("forebay: table %s ignores deletes ('table.delete.behavior'): its rows stay as they are", table)


class WriteEncoder:
    """Encodes the rows of one table as batches; created once per table handle."""

    def __init__(self, info: TableInfo, batch_bytes: int) -> None:
        self.info = info
        self.batch_bytes = batch_bytes
        self.rows_at_once = rows_at_once(info, batch_bytes)
        self._log = None if info.has_primary_key else LogEncoder(info, batch_bytes)
        self._kv = KvEncoder(info, batch_bytes) if info.has_primary_key else None

    @classmethod
    def of(cls, settings: Settings, info: TableInfo) -> WriteEncoder:
        """The encoder for writes through a connection with `settings`."""
        return cls(info, settings["client.writer.batch-size"])

    def columns_of(
        self, operation: str, columns: Sequence[str] | None, merge_mode: MergeMode = "default"
    ) -> tuple[tuple[str, ...] | None, WriteTarget]:
        """(columns of the rows, or None for all; the target) of an operation.

        Raises `InvalidRequest` for operations that the table does not support and invalid partial updates, and
        `UnsupportedOperation` for partial updates where the merge engine takes whole rows.
        """
        info = self.info
        if operation == APPEND:
            if info.has_primary_key:
                raise InvalidRequest(
                    f"table {info.path} has a primary key: use upsert() and delete(), not append()",
                    ErrorCode.INVALID_TABLE_EXCEPTION,
                )
            return None, WriteTarget(info.path, info.table_id, is_kv=False)
        if not info.has_primary_key:
            raise InvalidRequest(
                f"table {info.path} has no primary key: use append(), not {operation.partition('(')[0]}()",
                ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
            )
        positions = self._target_positions(columns)
        overwrite = self._overwrites(merge_mode)
        engine = info.descriptor.merge_engine
        if positions and not overwrite and engine in (FIRST_ROW, VERSIONED):
            raise UnsupportedOperation(
                f"table {info.path} cannot be written in part: its merge engine '{engine}' takes whole rows"
            )
        target = WriteTarget(info.path, info.table_id, is_kv=True, columns=positions, overwrite=overwrite)
        if operation == DELETE:
            return info.schema.primary_key, target
        return (None if not positions else tuple(info.schema.names[p] for p in positions)), target

    def _overwrites(self, merge_mode: MergeMode) -> bool:
        if merge_mode not in ("default", "overwrite"):
            raise InvalidRequest(f"merge_mode is {merge_mode!r}; it can be 'default' or 'overwrite'")
        if merge_mode == "overwrite" and self.info.descriptor.merge_engine is None:
            raise InvalidRequest(
                f"table {self.info.path} has no merge engine: its rows are always overwritten, so leave merge_mode out"
            )
        return merge_mode == "overwrite"

    def _target_positions(self, columns: Sequence[str] | None) -> tuple[int, ...]:
        """The positions of the columns that a partial update writes; empty for whole rows."""
        schema, path = self.info.schema, self.info.path
        automatic = schema.auto_increment_column
        if columns is None:
            if automatic is None:
                return ()
            # The server numbers the rows, so whole rows have all columns but that one.
            columns = [name for name in schema.names if name != automatic]
        positions = set(schema.indexes(columns))
        missing = [name for name in schema.primary_key if schema.index(name) not in positions]
        if missing:
            raise _bad_columns(f"the columns to write to {path} must include the primary key; {missing} are missing")
        if automatic is not None and schema.index(automatic) in positions:
            raise _bad_columns(f"column '{automatic}' of {path} is numbered by the server and cannot be written")
        if len(positions) == len(schema.columns):
            return ()
        for position, column in enumerate(schema.columns):
            fixed = not column.data_type.nullable and column.name not in (*schema.primary_key, automatic)
            if fixed and position not in positions:
                raise _bad_columns(
                    f"rows of {path} cannot be written in part, because column '{column.name}' is NOT NULL"
                )
        return tuple(sorted(positions))

    def batches(self, operation: str, data: Any, names: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """`data` in storage form, with the columns `names` (None: all), for `keyed` or `log_pieces`."""
        if operation == CHANGES:
            return self._batches_of_changes(data, names)
        return iter_record_batches(
            data, self.info.schema, columns=names, max_rows=self.rows_at_once, is_whole=operation == UPSERT
        )

    def _batches_of_changes(self, data: Any, names: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield batches of changes, without the old rows of updates. Deletes need no more than their keys."""
        from forebay.api.changes import CHANGE_TYPES, split_changes
        from forebay.api.changes import DELETE as DELETED
        from forebay.api.changes import UPDATE_BEFORE as OLD

        schema = self.info.schema
        loose = Schema(
            tuple(
                c if c.name in schema.primary_key else replace(c, data_type=replace(c.data_type, nullable=True))
                for c in schema.columns
            )
        )
        old, deleted = CHANGE_TYPES.index(OLD), CHANGE_TYPES.index(DELETED)
        for rows, kinds in split_changes(data):
            done = 0
            for batch in iter_record_batches(rows, loose, columns=names, max_rows=self.rows_at_once):
                part = kinds[done : done + batch.num_rows]
                done += batch.num_rows
                if (part == old).any():
                    batch, part = batch.filter(pa.array(part != old)), part[part != old]
                deletes = part == deleted
                upserts = batch.filter(pa.array(~deletes)) if deletes.any() else batch
                check_not_null(upserts, [c for c in schema.columns if c.name in upserts.schema.names])
                yield batch.append_column(_IS_DELETE, pa.array(deletes))

    def keyed(self, operation: str, batch: pa.RecordBatch, target: WriteTarget) -> KeyedRows:
        """Return the keys, and the rows if needed, of `batch` for upserts, deletes, or a mix of both (`CHANGES`).

        The last column of a batch of changes says which rows are deletes. Raises `InvalidRequest` for a log table.
        """
        kv = self._kv
        if kv is None:
            raise InvalidRequest(f"table {self.info.path} has no primary key")
        if operation == CHANGES:
            deletes = batch.column(batch.num_columns - 1).to_numpy(zero_copy_only=False)
            if deletes.any():
                self._tell_of_ignored_deletes(target)
            return kv.changes(batch.drop_columns([_IS_DELETE]), deletes)
        if operation == DELETE:
            self._tell_of_ignored_deletes(target)
            return kv.deletes(batch)
        return kv.upserts(batch)

    def _tell_of_ignored_deletes(self, target: WriteTarget) -> None:
        if self.info.descriptor.delete_behavior == "ignore" and not target.overwrite:
            _warn_of_ignored_deletes(str(self.info.path))

    def log_pieces(self, batch: pa.RecordBatch) -> Iterable[Piece]:
        if self._log is None:
            raise InvalidRequest(f"table {self.info.path} has a primary key")
        return self._log.pieces(batch)

    def kv_pieces(self, parts: Sequence[KeyedRows]) -> Iterable[Piece]:
        if self._kv is None:
            raise InvalidRequest(f"table {self.info.path} has no primary key")
        return self._kv.pieces(parts)


def upsert_operation(missing: str) -> str:
    """The operation of upserts whose data may lack columns ("null") or not ("error")."""
    if missing not in ("error", "null"):
        raise InvalidRequest(f"missing={missing!r} is neither 'error' nor 'null'")
    return UPSERT if missing == "error" else NULLING_UPSERT


def _bad_columns(message: str) -> InvalidRequest:
    return InvalidRequest(message, ErrorCode.INVALID_TARGET_COLUMN)
