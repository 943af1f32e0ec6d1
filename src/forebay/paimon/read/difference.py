"""The difference between two states of a bucket, computed columnwise and in windows.

As in Paimon, rows are compared in their binary form, which also covers nested values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.paimon.format.binary_row import RowLayout
from forebay.paimon.merge._order import SortKey, group_starts, sort_rows
from forebay.paimon.merge.order import concat_keys, sort_key

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = range(4)

Changes = tuple[pa.RecordBatch, npt.NDArray[np.int8]]
"""Rows and their kinds."""


class _Cursor:
    """A sorted stream of batches, and the current position in it."""

    def __init__(self, batches: Iterable[pa.RecordBatch], keys: Sequence[str]) -> None:
        self._batches, self._names = iter(batches), keys
        self.batch: pa.RecordBatch | None = None
        self.key: SortKey | None = None
        self.start = 0
        self.load()

    def load(self) -> None:
        self.batch, self.key, self.start = None, None, 0
        for batch in self._batches:
            if batch.num_rows:
                self.batch, self.key = batch, sort_key([batch.column(name) for name in self._names], zeros_equal=True)
                return

    def take(self, stop: int) -> tuple[pa.RecordBatch, SortKey] | None:
        """The rows up to `stop`; loads the next batch when the current one is used up."""
        if self.batch is None or self.key is None or stop == self.start:
            return None
        rows = self.batch.slice(self.start, stop - self.start), self.key.slice(self.start, stop)
        self.start = stop
        if stop == self.batch.num_rows:
            self.load()
        return rows


def keyed_difference(
    before: Iterable[pa.RecordBatch], after: Iterable[pa.RecordBatch], keys: Sequence[str], rows: RowLayout
) -> Iterator[Changes]:
    """The changes between two states with the same columns, each sorted by `keys`, which are unique.

    A new row is +I, a changed one +U (with its new values), a removed one -D (with its old values).
    """
    old, new = _Cursor(before, keys), _Cursor(after, keys)
    while old.key is not None or new.key is not None:
        ends = _window(old, new)
        changes = _compared(old.take(ends[0]), new.take(ends[1]), rows)
        if changes is not None:
            yield changes


def _window(old: _Cursor, new: _Cursor) -> tuple[int, int]:
    """The end of the next step of both cursors: the smaller of their last loaded keys."""
    if old.key is None or new.key is None:
        return (len(old.key) if old.key is not None else 0, len(new.key) if new.key is not None else 0)
    bound = old.key if old.key.compare(len(old.key) - 1, new.key, len(new.key) - 1) <= 0 else new.key
    return old.key.first_above(bound, len(bound) - 1), new.key.first_above(bound, len(bound) - 1)


def _compared(
    old: tuple[pa.RecordBatch, SortKey] | None, new: tuple[pa.RecordBatch, SortKey] | None, rows: RowLayout
) -> Changes | None:
    if old is None and new is None:
        return None
    if old is None or new is None:
        present, kind = (new, INSERT) if new is not None else (old, DELETE)
        assert present is not None
        return present[0], np.full(present[0].num_rows, kind, np.int8)
    count = old[0].num_rows
    keys = concat_keys([old[1], new[1]])
    order = sort_rows([keys])
    starts = group_starts(keys, order)
    first = order[starts[:-1]]
    paired = np.diff(starts) == 2
    a, b = order[starts[:-1][paired]], order[starts[:-1][paired] + 1]
    olds, news = np.minimum(a, b), np.maximum(a, b) - count
    changed = _unequal(rows.encode(old[0].take(pa.array(olds))), rows.encode(new[0].take(pa.array(news))))
    # Positions in old + new, in the order of keys.
    positions = np.where(paired, 0, first)
    positions[paired] = news + count
    kinds = np.where(positions < count, DELETE, INSERT).astype(np.int8)
    kinds[paired] = UPDATE_AFTER
    keep = np.ones(len(positions), bool)
    keep[paired] = changed
    if not keep.any():
        return None
    return _concatenated(old[0], new[0]).take(pa.array(positions[keep])), kinds[keep]


def _unequal(a: pa.Array, b: pa.Array) -> npt.NDArray[np.bool_]:
    import pyarrow.compute as pc

    differs: npt.NDArray[np.bool_] = pc.not_equal(a, b).to_numpy(zero_copy_only=False).astype(bool)
    return differs


def multiset_difference(before: pa.RecordBatch, after: pa.RecordBatch, rows: RowLayout) -> Changes:
    """Rows of `after` that are not in `before` (+I) and vice versa (-D); duplicates are counted."""
    both = _concatenated(before, after)
    if both.num_rows == 0:
        return both, np.empty(0, np.int8)
    keys = sort_key([rows.encode(both)])
    order = sort_rows([keys])
    starts = group_starts(keys, order)
    count = before.num_rows
    is_new = (order >= count).astype(np.int64)
    sizes = np.diff(starts)
    new = np.add.reduceat(is_new, starts[:-1])
    surplus = new - (sizes - new)
    group = np.repeat(np.arange(len(sizes)), sizes)
    # The rank of a row among the old or new rows of its group: surplus rows of the larger side are changes.
    running = np.cumsum(is_new)
    rank_new = running - np.repeat(running[starts[:-1]] - is_new[starts[:-1]], sizes)
    rank_old = np.arange(len(order)) - starts[:-1][group] + 1 - rank_new
    keep = np.where(is_new == 1, rank_new <= surplus[group], rank_old <= -surplus[group])
    positions = np.sort(order[keep])
    return both.take(pa.array(positions)), np.where(positions < count, DELETE, INSERT).astype(np.int8)


def _concatenated(a: pa.RecordBatch, b: pa.RecordBatch) -> pa.RecordBatch:
    arrays = [pa.concat_arrays([a.column(i), b.column(i)]) for i in range(a.num_columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=a.schema)
