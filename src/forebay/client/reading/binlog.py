"""Binlogs: the changes of a primary-key table with each update in one row, with the rows before and after.

In the log an update is a pair of records. Whoever reads a range of the log has the pair if the range has its first
record: it then reads one record more, and leaves the second record of an earlier pair out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.api.changes import AFTER, BEFORE, CHANGE_TYPES, DELETE, INSERT, UPDATE, change_numbers
from forebay.base.errors import CorruptData, ErrorCode, UnsupportedOperation
from forebay.base.quantity import Span, span_ms
from forebay.client.arrays import array_of
from forebay.client.cluster.offsets import LATEST, list_offsets
from forebay.client.reading.log_reader import LogReader
from forebay.client.row_view import RowView
from forebay.codec.arrow.small_arrays import text_array
from forebay.metadata.log_offset import LogPosition, epoch_of, with_epoch
from forebay.metadata.table import TableBucket, TableInfo

if TYPE_CHECKING:
    from forebay.client.session import Session

METADATA = ("change_type", "offset", "timestamp")
"""What changes say of themselves, in front of their rows, where they are to become a binlog."""

_INSERT, _UPDATE_BEFORE, _UPDATE_AFTER, _DELETE = range(len(CHANGE_TYPES))
_TYPES = text_array(INSERT, UPDATE, DELETE)
_TYPE_OF_KIND = np.array([0, 1, 1, 2], np.int8)
_TYPE = pa.dictionary(pa.int8(), pa.string())


def require_old_rows(info: TableInfo, what: str) -> None:
    """Raise `UnsupportedOperation` for a primary-key table whose log lacks the rows before a change."""
    if info.has_primary_key and not info.descriptor.has_full_changelog:
        raise UnsupportedOperation(
            f"table {info.path} has 'table.changelog.image' = 'wal': its log does not hold the rows before a change, "
            f"which {what} shows. Read `$changelog`"
        )


def check_has_binlog(info: TableInfo) -> None:
    """Raise `UnsupportedOperation` for tables whose rows never change, or whose logs have no old rows."""
    if not info.has_primary_key:
        raise UnsupportedOperation(
            f"table {info.path} is a log, whose rows never change: `$binlog` is for tables with a primary key, "
            "`$changelog` for both",
            ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
        )
    require_old_rows(info, "`$binlog`")


class BinlogReader(LogReader):
    """A reader of a binlog; open one with `Table.binlog`. Not thread-safe."""

    def __init__(
        self,
        session: Session,
        info: TableInfo,
        starts: Mapping[TableBucket, int],
        stops: Mapping[TableBucket, int] | None,
        view: RowView,
        include: Sequence[str],
        *others: Any,
    ) -> None:
        super().__init__(session, info, starts, stops, view, include, *others)
        metadata = [self._decoder.schema.field(i) for i in range(1, len(include))]
        row = pa.struct([pa.field(column.name, column.type) for column in view.schema])
        self._schema = pa.schema(
            [pa.field("_change_type", _TYPE, False), *metadata, pa.field(BEFORE, row), pa.field(AFTER, row)]
        )
        self._metadata_count = len(include)
        self._halves: dict[TableBucket, pa.RecordBatch] = {}
        self._begun: set[TableBucket] = set()
        self._passed: set[TableBucket] = set()
        self._stops = None if stops is None else dict(stops)
        if stops:
            ends = list_offsets(session.cluster, info, list(stops), LATEST)
            for bucket, stop in stops.items():
                self._buckets[bucket].stop = min(stop + 1, max(stop, ends[bucket]))

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches: metadata columns, and the rows `before` and `after`."""
        return self._schema

    @property
    def position(self) -> LogPosition:
        halves = {bucket: int(half.column(1)[0].as_py()) for bucket, half in self._halves.items()}
        ends = {bucket: int(stop) for bucket, stop in (self._stops or {}).items() if bucket in self._passed}
        read = super().position
        before = {bucket: with_epoch(at, epoch_of(read[bucket])) for bucket, at in (halves | ends).items()}
        return LogPosition({**read, **before})

    @property
    def stop_offsets(self) -> dict[TableBucket, int] | None:
        return self._stops

    @property
    def finished(self) -> bool:
        return super().finished and (self._closed or not self._halves)

    def poll(self, timeout: Span = 0.0) -> pa.RecordBatch | None:
        """The next rows, after waiting at most `timeout` (a span of time); None if there are none, or at the end."""
        clock = self._session.clock
        deadline = clock.monotonic() + span_ms(timeout, "timeout") / 1000
        while True:
            batch = super().poll(max(0.0, deadline - clock.monotonic()))
            if batch is None:
                if super().finished and not self._closed:
                    for half in self._halves.values():
                        raise _half_an_update(half, 0)
                return None
            assert self.last_bucket is not None
            rows = self._whole_updates(batch, self.last_bucket)
            if rows is not None:
                return pa.RecordBatch.from_arrays(rows.columns, schema=self._schema)

    def _whole_updates(self, batch: pa.RecordBatch, bucket: TableBucket) -> pa.RecordBatch | None:
        is_behind = self._stops is not None and batch.column(1)[-1].as_py() >= self._stops[bucket]
        if is_behind and change_numbers(batch.column(0))[-1] != _UPDATE_AFTER:  # nothing that ends an update
            self._passed.add(bucket)
            batch = batch.slice(0, len(batch) - 1)
        if not len(batch):
            return None
        rows, kinds, half = _without_half(self._halves.pop(bucket, None), batch)
        if half is not None:
            self._halves[bucket] = half
        if bucket not in self._begun and len(kinds) and kinds[0] == _UPDATE_AFTER:
            rows, kinds = rows.slice(1), kinds[1:]
        self._begun.add(bucket)
        return _paired(rows, kinds, self._metadata_count) if len(kinds) else None


def binlog(changes: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The changes of one bucket's log as rows of a binlog, with the offset and time of an update's first record.

    `changes` begin with the columns of `METADATA`. Raises `CorruptData` for an update of which a record is missing.
    """
    half: pa.RecordBatch | None = None
    for batch in changes:
        rows, kinds, half = _without_half(half, batch)
        if len(kinds):
            yield _paired(rows, kinds, len(METADATA))
    if half is not None:
        raise _half_an_update(half, 0)


def _without_half(
    half: pa.RecordBatch | None, batch: pa.RecordBatch
) -> tuple[pa.RecordBatch, npt.NDArray[np.int8], pa.RecordBatch | None]:
    """`batch` behind the first record of an update that waits, with its kinds, and the record that waits now."""
    rows = batch if half is None else pa.concat_batches([half, batch])
    kinds = change_numbers(rows.column(0))
    if kinds[-1] != _UPDATE_BEFORE:
        return rows, kinds, None
    return rows.slice(0, len(kinds) - 1), kinds[:-1], rows.slice(len(kinds) - 1)


def _paired(changes: pa.RecordBatch, kinds: npt.NDArray[np.int8], metadata: int) -> pa.RecordBatch:
    """Rows of a binlog for changes with whole updates, which begin with `metadata` columns that are not the table's."""
    is_first_half, is_second_half = kinds == _UPDATE_BEFORE, kinds == _UPDATE_AFTER
    is_half = np.append(is_second_half, False) != np.append(False, is_first_half)  # a second record, or one before
    if is_half.any():
        row = int(np.argmax(is_half))
        raise _half_an_update(changes, row if is_second_half[row : row + 1].any() else row - 1)
    at = np.flatnonzero(~is_second_half)
    kinds = kinds[at]
    types = pa.DictionaryArray.from_arrays(array_of(_TYPE_OF_KIND[kinds]), _TYPES)
    arrays = [types, *changes.select(range(1, metadata)).take(array_of(at)).columns]
    names = changes.schema.names[:metadata]
    rows = changes.select(range(metadata, changes.num_columns))
    if rows.num_columns:
        arrays.append(_rows_or_null(rows, at, (kinds == _UPDATE_BEFORE) | (kinds == _DELETE)))
        arrays.append(_rows_or_null(rows, at + (kinds == _UPDATE_BEFORE), kinds != _DELETE))
        names = [*names, BEFORE, AFTER]
    return pa.RecordBatch.from_arrays(arrays, names)


def _rows_or_null(rows: pa.RecordBatch, at: npt.NDArray[np.int64], is_there: npt.NDArray[np.bool_]) -> pa.StructArray:
    """A struct for each place in `at`; null where it is not there."""
    taken = [column.take(array_of(at, is_there)) for column in rows.columns]
    fields = [pa.field(field.name, field.type) for field in rows.schema]
    is_null = array_of((~is_there).view(np.uint8)).cast(pa.bool_())
    return pa.StructArray.from_arrays(taken, fields=fields, mask=is_null)


def _half_an_update(changes: pa.RecordBatch, row: int) -> CorruptData:
    """The error for a row that is one record of an update, without the other."""
    offset = changes.column(1)[row].as_py()
    return CorruptData(f"the log has one of the two records of the update at offset {offset}, and not the other")
