"""Decoding: fetched log bytes -> the record batches that readers return.

Nouns: a *chunk* is the data of one bucket in one response: a sequence of log batches, the last of which may be
truncated. A `ChunkDecoder` belongs to one reader: it knows the columns, the filter, and the metadata columns that
precede them.

Rules: each log batch is decoded with the schema it was written with and then mapped to the reader's columns by column
id; batches projected by the server have exactly the requested columns. The checksum covers whole batches, so it is not
checked for projected ones. Filters are applied to every row, even if the server filtered already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.api import changes
from forebay.api.changes import BUCKET_COLUMN, COMMIT_TIMESTAMP_COLUMN, LOG_OFFSET_COLUMN
from forebay.base.errors import InvalidRequest
from forebay.client.arrays import array_of, integers, rows_without_columns
from forebay.client.row_view import RowView
from forebay.codec.arrow.small_arrays import text_array
from forebay.codec.filters import mask
from forebay.codec.kv.value_batch import ValueDecoder
from forebay.codec.log.header import LogBatchHeader, iter_headers, verify_crc
from forebay.codec.log.log_batch import align_batch, change_types, decode_arrow_batch, decode_row_batch
from forebay.codec.rows._slices import RowSlices
from forebay.codec.rows.row_format import RowFormat
from forebay.metadata.table import Schema, TableBucket
from forebay.metadata.table_options import LogFormat

CHANGE_TYPES = text_array(*changes.CHANGE_TYPES)
"""The change types, in the order of the row kinds +I, -U, +U, -D. Rows of log tables are inserts."""
_CHANGE_TYPE_INDEX = np.array([0, 0, 1, 2, 3], np.int8)

NO_OFFSET = -1
"""`_log_offset` of a row of a snapshot: before every record of the log, as in Fluss's readers."""

_METADATA: dict[str, pa.Field] = {
    "change_type": pa.field(changes.CHANGE_TYPE_COLUMN, pa.dictionary(pa.int8(), pa.string()), nullable=False),
    "offset": pa.field(LOG_OFFSET_COLUMN, pa.int64(), nullable=False),
    "timestamp": pa.field(COMMIT_TIMESTAMP_COLUMN, pa.timestamp("ms", tz="UTC"), nullable=False),
    "bucket": pa.field(BUCKET_COLUMN, pa.int32(), nullable=False),
}

_ROWS_GATHERED = 1 << 15
"""Small log batches are merged up to this many rows."""


class ChunkDecoder:
    """Decodes the chunks of one reader."""

    def __init__(
        self,
        view: RowView,
        include: Sequence[str],
        schema_by_id: Callable[[int], Schema],
        check_crc: bool,
        *,
        after_rows: bool = False,
    ) -> None:
        """`after_rows`: rows of a snapshot precede the changes, without a timestamp."""
        unknown = [name for name in include if name not in _METADATA]
        if unknown or len(set(include)) != len(include):
            raise InvalidRequest(f"include={list(include)!r}: choose from {', '.join(_METADATA)}, each once")
        clashes = [_METADATA[n].name for n in include if _METADATA[n].name in view.schema.names]
        if clashes:
            raise InvalidRequest(
                f"the table has columns named {clashes} itself: leave them out by 'columns', or "
                "the metadata by 'include'"
            )
        self._view = view
        self._include = tuple(name for name in _METADATA if name in include)
        self._schema_by_id = schema_by_id
        self._check_crc = check_crc
        self._log_format = view.info.descriptor.log_format
        self._rows: ValueDecoder | None = None
        if self._log_format is not LogFormat.ARROW:
            self._rows = ValueDecoder(view.read, RowFormat(self._log_format.value), schema_by_id)
        metadata = [_METADATA[name].with_nullable(after_rows and name == "timestamp") for name in self._include]
        self.schema = pa.schema([*metadata, *view.schema])

    def decode(
        self, data: Any, bucket: TableBucket, first: int, stop: int | None, projected: bool
    ) -> Iterator[tuple[pa.RecordBatch | None, int]]:
        """Pairs of (rows or None, offset reached) from a chunk; rows before `first` and from `stop` on are omitted.

        `data` must not change afterwards. Raises `CorruptData`.
        """
        gathered: list[pa.RecordBatch] = []
        rows = 0
        reached = first
        for position, header in iter_headers(data, allow_truncated=True):
            if header.next_offset <= first:
                continue
            if stop is not None and header.base_offset >= stop:
                break
            batch = self._decode_batch(data, position, header, bucket, first, stop, projected)
            reached = header.next_offset if stop is None else min(header.next_offset, stop)
            if batch is not None and batch.num_rows:
                gathered.append(batch)
                rows += batch.num_rows
            if rows >= _ROWS_GATHERED:
                yield self._joined(gathered), reached
                gathered, rows = [], 0
        yield (self._joined(gathered) if gathered else None), reached

    def _decode_batch(
        self,
        data: Any,
        position: int,
        header: LogBatchHeader,
        bucket: TableBucket,
        first: int,
        stop: int | None,
        projected: bool,
    ) -> pa.RecordBatch | None:
        if self._check_crc and not projected:
            verify_crc(data, position, header)
        if header.record_count == 0:
            return None
        types: pa.UInt8Array | None
        if self._rows is not None:
            encoded, types = decode_row_batch(data, position, header)
            rows = self._rows.decode(np.full(len(encoded), header.schema_id, np.int16), RowSlices.from_arrow(encoded))
            types = None if header.append_only else types
        elif projected:
            rows = decode_arrow_batch(data, position, header, self._view.read)
            types = change_types(data, position, header)
        else:
            source = self._schema_by_id(header.schema_id)
            rows = align_batch(decode_arrow_batch(data, position, header, source), source, self._view.read)
            types = change_types(data, position, header)
        begin = max(first - header.base_offset, 0)
        end = header.record_count if stop is None else min(stop - header.base_offset, header.record_count)
        return self._dressed(rows, types, header, bucket, begin, end)

    def _dressed(
        self,
        rows: pa.RecordBatch,
        types: pa.UInt8Array | None,
        header: LogBatchHeader,
        bucket: TableBucket,
        begin: int,
        end: int,
    ) -> pa.RecordBatch:
        """The rows from `begin` to `end` that match the filter, preceded by their metadata columns."""
        if begin > 0 or end < rows.num_rows:
            rows = rows.slice(begin, end - begin)
            types = None if types is None else types.slice(begin, end - begin)
        count = rows.num_rows
        arrays = [self._metadata(name, types, header, bucket, begin, count) for name in self._include]
        arrays += self._view.pick(rows)
        if not arrays:
            match_count = count if self._view.bound is None else mask(self._view.bound, rows).true_count
            return rows_without_columns(match_count)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return batch if self._view.bound is None else batch.filter(mask(self._view.bound, rows))

    @staticmethod
    def _metadata(
        name: str, types: pa.UInt8Array | None, header: LogBatchHeader, bucket: TableBucket, begin: int, count: int
    ) -> pa.Array:
        if name == "change_type":
            index = np.zeros(count, np.int8) if types is None else _CHANGE_TYPE_INDEX[integers(types)]
            return pa.DictionaryArray.from_arrays(array_of(index), CHANGE_TYPES)
        if name == "offset":
            first = header.base_offset + begin
            return array_of(np.arange(first, first + count))
        if name == "timestamp":
            return array_of(np.full(count, header.commit_timestamp_ms)).view(_METADATA[name].type)
        return array_of(np.full(count, bucket.bucket, np.int32))

    def snapshot_rows(self, rows: pa.RecordBatch, bucket: TableBucket) -> pa.RecordBatch:
        """Rows of a snapshot, in the columns of the view, as inserts before the log's first record."""
        count = rows.num_rows
        metadata: dict[str, pa.Array] = {
            "change_type": pa.DictionaryArray.from_arrays(array_of(np.zeros(count, np.int8)), CHANGE_TYPES),
            "offset": array_of(np.full(count, NO_OFFSET)),
            "timestamp": pa.nulls(count, _METADATA["timestamp"].type),
            "bucket": array_of(np.full(count, bucket.bucket, np.int32)),
        }
        arrays = [*(metadata[name] for name in self._include), *rows.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema) if arrays else rows

    def _joined(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        if len(batches) == 1:
            return batches[0]
        if not self.schema.names:
            return rows_without_columns(sum(batch.num_rows for batch in batches))
        joined: pa.RecordBatch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        return joined
