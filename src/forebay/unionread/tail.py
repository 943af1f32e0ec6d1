"""A range of a bucket's changelog, folded to the newest change of each key.

The last change of a key decides, whatever came before it in the range: an update and then a delete is a delete, and
removes the key's row in the lake, too. Old images (UPDATE_BEFORE) are ignored.

Memory: while folding, at most about twice the distinct keys' rows (and `_FOLD_ROWS_MIN`), so it is bounded by the keys
that changed, not by how often they did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.api.changes import CHANGE_TYPE_COLUMN, DELETE, UPDATE_BEFORE
from forebay.base.errors import InternalError
from forebay.client.arrays import array_of, integers
from forebay.client.reading.log_reader import LogReader
from forebay.client.row_view import RowView
from forebay.codec.arrow.arrow_types import storage_schema
from forebay.codec.casting.conform import conform_array
from forebay.codec.kv.key_index import KeyIndex
from forebay.codec.rows.keys import KeyEncoder, primary_key_encoder
from forebay.metadata.table import Column, TableBucket, TableInfo

if TYPE_CHECKING:
    from forebay.client.session import Session

_FOLD_ROWS_MIN = 1 << 18
"""Changes are folded when there are twice as many as keys, but not before this number."""


@dataclass(frozen=True)
class Tail:
    """The outcome of a changelog range. `changed` has every key in it; `batches` the remaining rows.

    `deletes` are the deletes of the other keys, with the rows as they were, if these were asked for.
    """

    changed: KeyIndex
    batches: Sequence[pa.RecordBatch]
    deletes: Sequence[pa.RecordBatch] = ()

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


class TailFolder:
    """Takes changes in order (`add`), and returns their outcome (`finish`)."""

    def __init__(self, encoder: KeyEncoder, fold_rows_min: int = _FOLD_ROWS_MIN) -> None:
        self._encoder = encoder
        self._fold_rows_min = fold_rows_min
        self._index = KeyIndex()
        self._batches: list[pa.RecordBatch] = []
        self._deleted: list[npt.NDArray[np.bool_]] = []
        self._rows = 0

    def add(self, rows: pa.RecordBatch, deleted: npt.NDArray[np.bool_]) -> None:
        """Add changes without old images: rows in the storage schema, and which of them are deletes."""
        if not rows.num_rows:
            return
        self._append(rows, deleted)
        if self._rows >= max(self._fold_rows_min, 2 * len(self._index)):
            self._fold()

    def _append(self, rows: pa.RecordBatch, deleted: npt.NDArray[np.bool_]) -> None:
        self._index.add(self._encoder.encode(rows))
        self._batches.append(rows)
        self._deleted.append(deleted)
        self._rows += rows.num_rows

    def _newest(self) -> list[npt.NDArray[np.bool_]]:
        """Return, for each batch, which of its rows are the newest of their keys."""
        newest = np.zeros(self._rows, np.bool_)
        newest[self._index.newest_rows()] = True
        ends = np.cumsum([batch.num_rows for batch in self._batches])
        return np.split(newest, ends[:-1])

    def _fold(self) -> None:
        """Drop overridden rows."""
        newest = self._newest()
        batches, deletes = self._batches, self._deleted
        self._index, self._batches, self._deleted, self._rows = KeyIndex(), [], [], 0
        for batch, deleted, mask in zip(batches, deletes, newest, strict=True):
            if mask.any():
                self._append(batch.filter(_booleans(mask)), deleted[mask])

    def finish(self, *, keep_deletes: bool = False) -> Tail:
        """Return the outcome of the changes. The folder must not be used afterwards."""
        found, deletes = [], []
        if self._batches:
            for batch, deleted, newest in zip(self._batches, self._deleted, self._newest(), strict=True):
                kept = newest & ~deleted
                if kept.any():
                    found.append(batch if kept.all() else batch.filter(_booleans(kept)))
                gone = newest & deleted
                if keep_deletes and gone.any():
                    deletes.append(batch.filter(_booleans(gone)))
        self._batches, self._deleted = [], []
        return Tail(self._index, found, deletes)


def read_tail(
    session: Session,
    info: TableInfo,
    bucket: TableBucket,
    start: int,
    stop: int,
    columns: Sequence[Column],
    *,
    keep_deletes: bool = False,
) -> Tail:
    """Return the changelog of `bucket` in [`start`, `stop`), folded; `columns` include the primary key."""
    ranges = {bucket: (start, stop)}
    return read_tails(session, info, ranges, columns, keep_deletes=keep_deletes)[bucket]


def read_tails(
    session: Session,
    info: TableInfo,
    ranges: Mapping[TableBucket, tuple[int, int]],
    columns: Sequence[Column],
    *,
    keep_deletes: bool = False,
) -> dict[TableBucket, Tail]:
    """Return the changelog of several buckets, each in [start, stop) and folded, by one reader: one request to each
    server fetches the changes of all its buckets, if there are few."""
    encoder = primary_key_encoder(info.descriptor)
    folders = {bucket: TailFolder(encoder) for bucket in ranges}
    for bucket, rows, deleted in _changes_of(session, info, ranges, columns):
        folders[bucket].add(rows, deleted)
    return {bucket: folder.finish(keep_deletes=keep_deletes) for bucket, folder in folders.items()}


def changes(
    session: Session, info: TableInfo, bucket: TableBucket, start: int, stop: int, columns: Sequence[Column]
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.bool_]]]:
    """Yield the changes in a changelog range, in order and without old images: rows, and which of them are deletes."""
    for _, rows, deleted in _changes_of(session, info, {bucket: (start, stop)}, columns):
        yield rows, deleted


def _changes_of(
    session: Session, info: TableInfo, ranges: Mapping[TableBucket, tuple[int, int]], columns: Sequence[Column]
) -> Iterator[tuple[TableBucket, pa.RecordBatch, npt.NDArray[np.bool_]]]:
    schema = storage_schema(columns)
    view = RowView(info, [column.name for column in columns])
    starts = {bucket: start for bucket, (start, _) in ranges.items()}
    stops = {bucket: stop for bucket, (_, stop) in ranges.items()}
    with LogReader(session, info, starts, stops, view, ("change_type",)) as reader:
        for batch in reader:
            assert reader.last_bucket is not None
            yield reader.last_bucket, *_changes(batch, schema)
        check_read_to_the_end(info, reader, stops)


def check_read_to_the_end(info: TableInfo, reader: LogReader, stops: dict[TableBucket, int]) -> None:
    """Raise `InternalError` for a reader that ended early: a read must never be silently short."""
    positions = reader.position
    for bucket, stop in stops.items():
        if positions[bucket] < stop:
            raise InternalError(
                f"the log of bucket {bucket} of table {info.path} ended at offset {positions[bucket]} instead of {stop}"
            )


def _changes(batch: pa.RecordBatch, schema: pa.Schema) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
    """Return rows of a log reader without old images, in the storage schema, and which of them are deletes."""
    kinds = batch.column(batch.schema.get_field_index(CHANGE_TYPE_COLUMN))
    names = kinds.dictionary.to_pylist()
    codes = integers(kinds.indices)
    is_old = np.array([name == UPDATE_BEFORE for name in names], np.bool_)[codes]
    deleted = np.array([name == DELETE for name in names], np.bool_)[codes]
    arrays = [
        conform_array(batch.column(batch.schema.get_field_index(f.name)), f.type, f.name, truncate=False)
        for f in schema
    ]
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    if not is_old.any():
        return rows, deleted
    return rows.filter(_booleans(~is_old)), deleted[~is_old]


def _booleans(values: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    return array_of(values.view(np.uint8)).cast(pa.bool_())
