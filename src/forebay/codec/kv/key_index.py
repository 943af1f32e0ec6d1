"""The newest row of each key among rows in order, for folding a changelog and merging with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.codec.kv._key_index import KeyTable

_EMPTY = np.empty(0, np.uint8)


class KeyIndex:
    """An index from key bytes (see codec.keys) to the number of their newest row. Memory is proportional to distinct
    keys.

    Rows are numbered from 0 in the order in which they are added.
    """

    def __init__(self) -> None:
        self._table = KeyTable()
        self._rows = 0

    def __len__(self) -> int:
        return len(self._table)

    @property
    def nbytes(self) -> int:
        """The memory usage of the index in bytes."""
        return self._table.nbytes

    def add(self, keys: pa.BinaryArray) -> None:
        """Add the keys of the next rows, none of which is null."""
        self._table.add(*_parts(keys), self._rows)
        self._rows += len(keys)

    def contains(self, keys: pa.BinaryArray) -> pa.BooleanArray:
        """For each key, whether a row with it was added."""
        return pa.array(self.has(keys))

    def has(self, keys: pa.BinaryArray) -> npt.NDArray[np.bool_]:
        """The same as a numpy array."""
        presence: npt.NDArray[np.bool_] = self._table.contains(*_parts(keys)).view(np.bool_)
        return presence

    def rows_of(self, keys: pa.BinaryArray) -> npt.NDArray[np.int64]:
        """For each key the number of its newest row, or -1."""
        return self._table.rows_of(*_parts(keys))

    def newest_rows(self) -> npt.NDArray[np.int64]:
        """The number of the newest row of each key, ascending."""
        return np.sort(self._table.newest_rows())


def _parts(keys: pa.BinaryArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    if not len(keys):
        return np.zeros(1, np.int32), _EMPTY
    _, offsets, data = keys.buffers()
    places = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    return places, _EMPTY if data is None else np.frombuffer(data, np.uint8)


def distinct_numbers(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The distinct `numbers`, ascending. (`np.unique` hashes them from NumPy 2.3 on: 60 times the time of sorting.)"""
    ordered = np.sort(numbers)
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]
