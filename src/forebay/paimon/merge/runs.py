"""Merging sorted runs, window by window.

A window is a range of keys that all runs have loaded: up to the smallest of the last keys of the loaded batches. Its
rows are merged, and then the run that ended loads its next batch. So memory holds one batch of each run and one
window, whatever the size of the runs. A range in which only one run has rows passes as it is, without a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import CorruptData
from forebay.paimon.format.schema import SEQUENCE_NUMBER, VALUE_KIND
from forebay.paimon.merge._order import SortKey, group_starts, merge_sorted, sort_rows
from forebay.paimon.merge.engines import SortedRows, merge_sorted_rows
from forebay.paimon.merge.order import concat_keys, fixed_values, sort_key
from forebay.paimon.merge.spec import MergeSpec


class _Run:
    """One sorted run: the batch that is loaded, its keys, and how far it has been merged."""

    def __init__(self, batches: Iterable[pa.RecordBatch], key_columns: Sequence[str]) -> None:
        self._batches = iter(batches)
        self._key_columns = key_columns
        self._ahead: tuple[pa.RecordBatch, SortKey] | None = None
        self.batch: pa.RecordBatch | None = None
        self.key: SortKey | None = None
        self.start = 0

    def advance(self, stop: int) -> None:
        """Rows up to `stop` are merged; loads the next batch if these were all."""
        self.start = stop
        if self.batch is None or stop < self.batch.num_rows:
            return
        self.load()

    def load(self) -> None:
        """The next batch that has rows, or None."""
        self.start = 0
        loaded = self._ahead if self._ahead is not None else self._next()
        self._ahead = None
        self.batch, self.key = loaded if loaded is not None else (None, None)

    def extend(self) -> bool:
        """Appends the next batch if it begins with the key with which this one ends; whether it did."""
        if self.batch is None or self.key is None:
            return False
        if self._ahead is None:
            self._ahead = self._next()
        if self._ahead is None:
            return False
        batch, key = self._ahead
        if key.compare(0, self.key, len(self.key) - 1) != 0:
            return False
        rest = len(self.key)
        self.batch = _concatenated([self.batch.slice(self.start), batch])
        self.key = concat_keys([self.key.slice(self.start, rest), key])
        self.start = 0
        self._ahead = None
        return True

    def _next(self) -> tuple[pa.RecordBatch, SortKey] | None:
        for batch in self._batches:
            if batch.num_rows:
                return batch, key_of(batch, self._key_columns)
        return None


def key_of(batch: pa.RecordBatch, key_columns: Sequence[str]) -> SortKey:
    """The keys of a batch. Raises `CorruptData` for nulls, which keys cannot have."""
    columns = [batch.column(name) for name in key_columns]
    for name, column in zip(key_columns, columns):
        if column.null_count:
            raise CorruptData(f"key column '{name}' holds {column.null_count} nulls")
    return sort_key(columns)


def merge_runs(
    runs: Sequence[Iterable[pa.RecordBatch]],
    spec: MergeSpec,
    *,
    columns: Sequence[str] | None = None,
    keep_deletes: bool = True,
    unique_keys: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Merges runs into one, ascending by key, with one row for each key.

    Each run is sorted by key, and where it repeats a key (`unique_keys=False`) by sequence fields and number. All have
    the same columns: key columns, sequence number, kind, and value columns, among them those that
    `spec.required_columns` asks for. `columns` are those that come out (None: all). A reader of the state says
    `keep_deletes=False`; a compaction that leaves older levels behind must keep deletes. Of rows that are equal in
    everything that orders them, that of the later run counts as later.
    """
    cursors = [_Run(run, spec.key_columns) for run in runs]
    for cursor in cursors:
        cursor.load()
    while True:
        active = [cursor for cursor in cursors if cursor.batch is not None]
        if not active:
            return
        ends = _window(active, unique_keys)
        pieces = [(c, c.start, end) for c, end in zip(active, ends) if end > c.start]
        merged = _merge_pieces(pieces, spec, columns, keep_deletes, unique_keys)
        for cursor, _, end in pieces:
            cursor.advance(end)
        if merged.num_rows:
            yield merged


def _window(active: Sequence[_Run], unique_keys: bool) -> list[int]:
    """How far each run goes into the next window."""
    while True:
        keys = [cursor.key for cursor in active if cursor.key is not None]
        bound = keys[0]
        for key in keys[1:]:
            if key.compare(len(key) - 1, bound, len(bound) - 1) < 0:
                bound = key
        ends = [key.first_above(bound, len(bound) - 1) for key in keys]
        if unique_keys or not any(c.extend() for c, key, end in zip(active, keys, ends) if end == len(key)):
            return ends


def _slices(pieces: Sequence[tuple[_Run, int, int]]) -> tuple[list[pa.RecordBatch], list[SortKey]]:
    """The rows that each piece names, and their keys."""
    batches: list[pa.RecordBatch] = []
    keys: list[SortKey] = []
    for cursor, start, end in pieces:
        if cursor.batch is not None and cursor.key is not None:
            batches.append(cursor.batch.slice(start, end - start))
            keys.append(cursor.key.slice(start, end))
    return batches, keys


def _merge_pieces(
    pieces: Sequence[tuple[_Run, int, int]],
    spec: MergeSpec,
    columns: Sequence[str] | None,
    keep_deletes: bool,
    unique_keys: bool,
) -> pa.RecordBatch:
    batches, keys = _slices(pieces)
    names = columns if columns is not None else batches[0].schema.names
    if len(batches) == 1 and unique_keys:
        return _unmerged(batches[0], names, keep_deletes)
    needed = _needed(batches[0].schema, spec, names)
    whole = {name: pa.concat_arrays([batch.column(name) for batch in batches]) for name in needed}
    key = concat_keys(keys)
    bounds = np.cumsum([0, *(batch.num_rows for batch in batches)]).tolist()
    order = merge_sorted(key, _sequence_key(whole, spec), _numbers(whole), _kinds(whole), bounds)
    rows = SortedRows(whole, order, group_starts(key, order))
    # Arrow cannot make a batch without columns that has rows, but can take all columns of one away.
    gathered = list(names) or [VALUE_KIND]
    schema = pa.schema([batches[0].schema.field(name) for name in gathered])
    arrays = merge_sorted_rows(rows, spec, gathered, keep_deletes=keep_deletes)
    merged = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return merged if names else merged.select([])


def _unmerged(batch: pa.RecordBatch, names: Sequence[str], keep_deletes: bool) -> pa.RecordBatch:
    chosen = batch if list(names) == batch.schema.names else batch.select(list(names))
    if keep_deletes:
        return chosen
    retracting = (fixed_values(batch.column(VALUE_KIND), np.dtype(np.int8)).astype(np.int8, copy=False) & 1) == 1
    return chosen.filter(pc.invert(pa.array(retracting))) if retracting.any() else chosen


def _needed(schema: pa.Schema, spec: MergeSpec, names: Sequence[str]) -> list[str]:
    """The columns that take part: those that come out, and those that decide."""
    deciding = {SEQUENCE_NUMBER, VALUE_KIND, *names, *spec.sequence_fields}
    for group in spec.sequence_groups:
        deciding.update(group.sequence_fields)
    return [name for name in schema.names if name in deciding]


def _numbers(columns: dict[str, pa.Array]) -> npt.NDArray[np.int64]:
    return fixed_values(columns[SEQUENCE_NUMBER], np.dtype(np.int64)).astype(np.int64, copy=False)


def _kinds(columns: dict[str, pa.Array]) -> npt.NDArray[np.int8]:
    return fixed_values(columns[VALUE_KIND], np.dtype(np.int8)).astype(np.int8, copy=False)


def _sequence_key(columns: dict[str, pa.Array], spec: MergeSpec) -> SortKey | None:
    if not spec.sequence_fields:
        return None
    return sort_key([columns[name] for name in spec.sequence_fields], descending=spec.sequence_descending)


def _concatenated(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    schema = batches[0].schema
    arrays = [pa.concat_arrays([batch.column(i) for batch in batches]) for i in range(len(schema))]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def sort_buffer(batches: Sequence[pa.RecordBatch], spec: MergeSpec) -> pa.RecordBatch:
    """All rows of a write buffer, sorted by key, sequence fields and sequence number; nothing is merged."""
    batch, _, order = _sorted(batches, spec)
    return batch.take(pa.array(order))


def sort_and_merge_buffer(batches: Sequence[pa.RecordBatch], spec: MergeSpec) -> pa.RecordBatch:
    """A write buffer as a sorted run with unique keys, deletes included. The rows have their sequence numbers already.

    There must be at least one batch (its schema is that of the result); it may be empty.
    """
    batch, key, order = _sorted(batches, spec)
    columns = dict(zip(batch.schema.names, batch.columns))
    rows = SortedRows(columns, order, group_starts(key, order))
    if len(rows.starts) == batch.num_rows + 1 and bool((order[1:] > order[:-1]).all()):
        return batch
    return pa.RecordBatch.from_arrays(merge_sorted_rows(rows, spec, batch.schema.names), schema=batch.schema)


def _sorted(
    batches: Sequence[pa.RecordBatch], spec: MergeSpec
) -> tuple[pa.RecordBatch, SortKey, npt.NDArray[np.int64]]:
    batch = _concatenated(batches)
    key = key_of(batch, spec.key_columns)
    columns = dict(zip(batch.schema.names, batch.columns))
    sequence = _sequence_key(columns, spec)
    number = sort_key([columns[SEQUENCE_NUMBER]])
    return batch, key, sort_rows([key, number] if sequence is None else [key, sequence, number])
