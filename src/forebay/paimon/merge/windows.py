"""Reading sorted runs side by side in windows.

A window is a range of keys that all runs have loaded: up to the smallest of the last keys of the loaded batches. After
each window, the run that ended loads its next batch. So memory holds one batch of each run and one window, regardless
of the size of the runs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.base.errors import CorruptData
from forebay.paimon.format.schema import SEQUENCE_NUMBER, VALUE_KIND
from forebay.paimon.io.closing import close_sources
from forebay.paimon.merge._order import SortKey, merge_sorted
from forebay.paimon.merge.order import concat_keys, fixed_values, sort_key
from forebay.paimon.merge.spec import MergeSpec

Window = tuple[list[pa.RecordBatch], list[SortKey]]
"""The rows, and their keys, of each run that has rows in the window."""


def windows(
    runs: Sequence[Iterable[pa.RecordBatch]], key_columns: Sequence[str], unique_keys: bool
) -> Generator[Window]:
    """The windows of sorted runs, ascending by key: all rows of a key are in one window.

    `unique_keys`: no run repeats a key. Runs that have a `close` are closed at the end.
    """
    cursors = [_MergedRun(run, key_columns) for run in runs]
    try:
        for cursor in cursors:
            cursor.load()
        while active := [cursor for cursor in cursors if cursor.batch is not None]:
            ends = _window(active, unique_keys)
            pieces = [(c, c.start, end) for c, end in zip(active, ends, strict=True) if end > c.start]
            yield _slices(pieces)
            for cursor, _, end in pieces:
                cursor.advance(end)
    finally:
        close_sources(cursors)


class _MergedRun:
    """One sorted run: the loaded batch, its keys, and the position up to which it has been merged."""

    def __init__(self, batches: Iterable[pa.RecordBatch], key_columns: Sequence[str]) -> None:
        self._source = batches
        self._batches = iter(batches)
        self._key_columns = key_columns
        self._ahead: tuple[pa.RecordBatch, SortKey] | None = None
        self.batch: pa.RecordBatch | None = None
        self.key: SortKey | None = None
        self.start = 0

    def advance(self, stop: int) -> None:
        """Mark rows up to `stop` as merged; load the next batch when the current one is used up."""
        self.start = stop
        if self.batch is None or stop < self.batch.num_rows:
            return
        self.load()

    def load(self) -> None:
        """Load the next batch that has rows, or None."""
        self.start = 0
        self.batch, self.key = None, None
        loaded = self._ahead if self._ahead is not None else self._next()
        self._ahead = None
        self.batch, self.key = loaded if loaded is not None else (None, None)

    def close(self) -> None:
        """Discard the rest of the run."""
        close_sources([self._source])

    def extend(self) -> bool:
        """Append the next batch if it begins with the last key of this one; return whether it did."""
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
        self.batch = concatenated([self.batch.slice(self.start), batch])
        self.key = concat_keys([self.key.slice(self.start, rest), key])
        self.start = 0
        self._ahead = None
        return True

    def _next(self) -> tuple[pa.RecordBatch, SortKey] | None:
        for batch in self._batches:
            if batch.num_rows:
                return batch, key_of(batch, self._key_columns)
        return None


def _window(active: Sequence[_MergedRun], unique_keys: bool) -> list[int]:
    """The end position in each run of the next window."""
    while True:
        keys = [cursor.key for cursor in active if cursor.key is not None]
        bound = keys[0]
        for key in keys[1:]:
            if key.compare(len(key) - 1, bound, len(bound) - 1) < 0:
                bound = key
        ends = [key.first_above(bound, len(bound) - 1) for key in keys]
        if unique_keys or not any(c.extend() for c, key, end in zip(active, keys, ends) if end == len(key)):
            return ends


def _slices(pieces: Sequence[tuple[_MergedRun, int, int]]) -> Window:
    """The rows selected by each piece, and their keys."""
    batches: list[pa.RecordBatch] = []
    keys: list[SortKey] = []
    for cursor, start, end in pieces:
        if cursor.batch is not None and cursor.key is not None:
            batches.append(cursor.batch.slice(start, end - start))
            keys.append(cursor.key.slice(start, end))
    return batches, keys


# -- the rows of a window ---------------------------------------------------------------------------------------------


def key_of(batch: pa.RecordBatch, key_columns: Sequence[str]) -> SortKey:
    """The keys of a batch. Raises `CorruptData` for nulls, which keys cannot have."""
    columns = [batch.column(name) for name in key_columns]
    for name, column in zip(key_columns, columns):
        if column.null_count:
            raise CorruptData(f"key column '{name}' holds {column.null_count} nulls")
    return sort_key(columns, zeros_equal=True)


def ordered(
    columns: dict[str, pa.Array], keys: Sequence[SortKey], sizes: Sequence[int], spec: MergeSpec
) -> tuple[npt.NDArray[np.int64], SortKey]:
    """The order of rows of several runs by key, sequence fields and sequence number, and their keys.

    `columns` holds the rows of all runs, one run after the other; `sizes` are their numbers of rows. Of rows that are
    equal in all sort columns, the one from the later run comes later.
    """
    key = concat_keys(keys)
    bounds = np.cumsum([0, *sizes]).tolist()
    return merge_sorted(key, sequence_key(columns, spec), numbers(columns), kinds(columns), bounds), key


def numbers(columns: dict[str, pa.Array]) -> npt.NDArray[np.int64]:
    """The sequence numbers."""
    return fixed_values(columns[SEQUENCE_NUMBER], np.dtype(np.int64)).astype(np.int64, copy=False)


def kinds(columns: dict[str, pa.Array]) -> npt.NDArray[np.int8]:
    """The row kinds."""
    return fixed_values(columns[VALUE_KIND], np.dtype(np.int8)).astype(np.int8, copy=False)


def sequence_key(columns: dict[str, pa.Array], spec: MergeSpec) -> SortKey | None:
    """The sort key of the sequence fields; None if the table has none."""
    if not spec.sequence_fields:
        return None
    fields = [columns[name] for name in spec.sequence_fields]
    return sort_key(fields, descending=spec.sequence_descending, zeros_equal=True)


def concatenated(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """All batches, concatenated into one."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
