"""The lake's half of a union read: its columns, the filters it accepts, and its batches in the stream's types.

Columns are matched by name. A column that the lake table does not have yet (it was added to the stream since) is null;
columns that only the lake has (its system columns, or newer ones) are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import ErrorCode, InternalError, NotFound
from forebay.client.arrays import rows_without_columns
from forebay.client.row_view import RowView
from forebay.codec.arrow.arrow_types import arrow_type, storage_schema
from forebay.codec.casting.conform import conform_array
from forebay.lake.source import BUCKET_COLUMN, OFFSET_COLUMN, LakeSource, LakeSplit, SortedRecordReader
from forebay.metadata.plain_types import is_plain
from forebay.metadata.predicate import Predicate, all_of, col, conjuncts
from forebay.metadata.table import Column, TableInfo
from forebay.metadata.types import TypeRoot


@dataclass(frozen=True)
class LakeSide:
    """A scan of the lake table for some columns of the stream table. Picklable.

    `columns` are those of the batches, in order; `accepted` are the filters by which the lake skips rows. `is_exact`:
    returned rows match the whole filter.
    """

    source: LakeSource
    columns: tuple[Column, ...]
    accepted: tuple[Predicate, ...] = ()
    is_exact: bool = True

    @classmethod
    def of(cls, source: LakeSource, columns: Sequence[Column], predicate: Predicate | None) -> LakeSide:
        """Return a scan of `columns` (none: rows are only counted) that skips rows by `predicate` where it can."""
        indices = {name: index for index, name in enumerate(source.schema.names)}
        projected = source.with_project([[indices[c.name]] for c in columns if c.name in indices])
        parts = conjuncts(predicate)
        offered = [part for part in parts if part.columns() <= indices.keys()]
        if not offered:
            return cls(projected, tuple(columns), (), not parts)
        result = projected.with_filters(offered)
        exact = len(offered) == len(parts) and not result.remaining
        return cls(result.source, tuple(columns), result.accepted, exact)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches: the stream table's types as stored."""
        return storage_schema(self.columns)

    def plan(self, snapshot_id: int) -> list[LakeSplit]:
        """Return the splits of a snapshot. Raises `NotFound` (LAKE_SNAPSHOT_NOT_EXIST)."""
        return self.source.create_planner(snapshot_id).plan()

    def read(self, split: LakeSplit, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split, in any order; about `limit` of them are enough."""
        source = self.source if limit is None or not self.is_exact else self.source.with_limit(limit)
        with source.create_record_reader(split) as reader:
            for batch in reader.read():
                yield self.stored(batch)

    def plain_files(self, split: LakeSplit) -> tuple[str, ...] | None:
        """Return the paths of Parquet files that any reader can read instead of `read`; None if there are none for this
        split.

        Their columns have the names and values of the stream's. Rows that the filter rules out are included.
        """
        there = self.source.schema
        for column in self.columns:
            place = there.get_field_index(column.name)
            if place < 0 or not is_plain(column.data_type) or not _holds(there.field(place).type, column):
                return None
        return self.source.plain_files(split)

    def sorted_reader(self, splits: Sequence[LakeSplit]) -> SortedRecordReader | None:
        """Return a reader of all rows of a bucket in key order, in the lake's types; None if the lake has none."""
        return self.source.create_sorted_reader(splits)

    def stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of the lake with the columns and types of `schema`."""
        schema = self.schema
        if not schema.names:
            return rows_without_columns(batch.num_rows)
        if batch.schema.equals(schema):
            return batch
        arrays = []
        for field in schema:
            place = batch.schema.get_field_index(field.name)
            if place < 0:
                arrays.append(pa.nulls(batch.num_rows, field.type))
            else:
                arrays.append(conform_array(batch.column(place), field.type, field.name, truncate=False))
        if any(len(array) != batch.num_rows for array in arrays):
            raise InternalError("a batch of the lake has columns of different lengths")
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True)
class RecordSide(LakeSide):
    """A scan of records: the source also has the bucket and the log offset of each row."""

    @classmethod
    def of_records(cls, source: LakeSource, columns: Sequence[Column]) -> RecordSide:
        """Return a scan of `columns` of a lake table that has `BUCKET_COLUMN` and `OFFSET_COLUMN`."""
        names = source.schema.names
        projected = [name for name in (*(c.name for c in columns), BUCKET_COLUMN, OFFSET_COLUMN) if name in names]
        return cls(source.with_project([[names.index(name)] for name in projected]), tuple(columns))

    def records(self, bucket: int, splits: Sequence[LakeSplit], start: int, stop: int) -> list[pa.RecordBatch]:
        """Return the records of a bucket from offset `start` to before `stop`, in order.

        Raises `NotFound` unless `splits` have each of them once.
        """
        source = self.source.with_filters(in_range(bucket, start, stop)).source
        parts, offsets = list[pa.RecordBatch](), list[pa.Array]()
        for split in splits:
            with source.create_record_reader(split) as reader:
                for batch in reader.read():
                    at, of = batch.column(OFFSET_COLUMN), batch.column(BUCKET_COLUMN)
                    mask = pc.and_(pc.equal(of, bucket), pc.and_(pc.greater_equal(at, start), pc.less(at, stop)))
                    offsets.append(at.filter(mask))
                    rows = self.stored(batch).filter(mask) if self.columns else rows_without_columns(len(offsets[-1]))
                    parts.append(rows)
        numbers = np.concatenate([np.asarray(part) for part in offsets]) if offsets else np.empty(0, np.int64)
        order = np.argsort(numbers, kind="stable")
        if not np.array_equal(numbers[order], np.arange(start, stop)):
            raise NotFound(
                f"the log has no record of bucket {bucket} from offset {start} to {stop} any more, and the lake does "
                f"not have each of them once, but {len(numbers)}: rows were deleted there, or their partition was "
                "dropped and created again. Start the stream with another checkpoint",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            )
        if not self.columns:
            return parts
        batches: list[pa.RecordBatch] = pa.Table.from_batches(parts, self.schema).take(pa.array(order)).to_batches()
        return batches


def in_range(bucket: int, start: int, stop: int) -> list[Predicate]:
    """Return the filters of the records of a bucket from offset `start` to before `stop`."""
    return [col(BUCKET_COLUMN) == bucket, col(OFFSET_COLUMN) >= start, col(OFFSET_COLUMN) < stop]


def _holds(lake: pa.DataType, column: Column) -> bool:
    """Return whether a lake's type represents a stream column's values unchanged."""
    stream = arrow_type(column.data_type)
    if pa.types.is_integer(lake) and pa.types.is_integer(stream):
        return bool(lake.bit_width <= 32 if stream.bit_width <= 32 else lake.bit_width == stream.bit_width)
    if pa.types.is_timestamp(lake) and pa.types.is_timestamp(stream):
        return (lake.tz is not None) == (column.data_type.root is TypeRoot.TIMESTAMP_LTZ)
    if pa.types.is_fixed_size_binary(stream):
        return bool(pa.types.is_binary(lake) or lake.equals(stream))
    return bool(lake.equals(stream))


def on_columns(predicate: Predicate | None, names: Sequence[str]) -> Predicate | None:
    """Return the part of `predicate` that only refers to the columns `names`; None if there is none."""
    return all_of(part for part in conjuncts(predicate) if part.columns() <= set(names))


def merge_columns(info: TableInfo, view: RowView) -> tuple[Column, ...]:
    """Return the columns to read for merging a bucket: those of the view and the key, in the table's order."""
    names = {column.name for column in view.read} | set(info.descriptor.physical_primary_key)
    return tuple(column for column in info.schema.columns if column.name in names)
