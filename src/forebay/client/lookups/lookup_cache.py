"""Rows of recent lookups, for programs that look up the same keys over and over: bounded in number and in age.

Rows are kept in two generations, a young and an old one. The young one becomes old when it holds half of the rows that
may be kept, or after half of the age that a row may have; the old one before it is dropped. So no row is older than it
may be, and nothing has to be done for single rows. Keys without a row are kept, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.api.data import Missing
from forebay.api.keys import check_missing, key_rows
from forebay.base import threads
from forebay.base.ambient import Clock
from forebay.base.errors import ErrorCode, NotFound
from forebay.client.arrays import array_of
from forebay.client.lookups.lookup import KEYS_AT_ONCE, Lookup
from forebay.codec.casting.batches import iter_record_batches
from forebay.codec.kv.key_index import KeyIndex
from forebay.codec.rows.keys import key_encoder
from forebay.metadata.table import TableInfo

_BATCHES_MAX = 32
"""Batches of a generation from which on they are joined to one."""


class _Generation:
    """Rows by the bytes of their keys, the oldest of them from `born` on."""

    def __init__(self, born: float, schema: pa.Schema) -> None:
        self.born = born
        self._index = KeyIndex()
        self._rows = schema.empty_table()

    def __len__(self) -> int:
        rows: int = self._rows.num_rows
        return rows

    def places(self, keys: pa.BinaryArray) -> npt.NDArray[np.int64]:
        return self._index.rows_of(keys)

    def take(self, places: npt.NDArray[np.int64]) -> pa.Table:
        return self._rows.take(array_of(places))

    def add(self, keys: pa.BinaryArray, rows: pa.Table) -> None:
        self._index.add(keys)
        self._rows = pa.concat_tables([self._rows, rows])
        if len(self._rows.columns[0].chunks) >= _BATCHES_MAX:
            self._rows = self._rows.combine_chunks()


class CachedLookup:
    """`lookup`, by a cache of at most `rows_max` rows, none of which is older than `max_age` seconds. Thread-safe."""

    def __init__(self, lookup: Lookup, info: TableInfo, clock: Clock, max_age: float, rows_max: int) -> None:
        """`lookup` has at least one column of the primary key, by which it shows which keys have a row."""
        self._lookup, self._info, self._clock = lookup, info, clock
        self._max_age, self._rows_max = max_age, rows_max
        self._keys = info.schema.primary_key
        self._encoder = key_encoder(info.descriptor, self._keys, "compacted")
        self._probe_column = next(name for name in lookup.names if name in self._keys)
        self._guard = threads.lock()
        self._old: _Generation | None = None
        self._young: _Generation | None = None
        self._clears = 0

    @property
    def schema(self) -> pa.Schema:
        """The schema of rows that are found."""
        return self._lookup.schema

    @property
    def names(self) -> list[str]:
        """The columns of the rows."""
        return self._lookup.names

    def __len__(self) -> int:
        with self._guard:
            return sum(map(len, self._generations()))

    def clear(self) -> None:
        """Forget all rows."""
        with self._guard:
            self._old = self._young = None
            self._clears += 1

    def find(self, keys: Any, missing: Missing = "null") -> pa.Table:
        """Return the rows; see `Lookup.find`."""
        check_missing(missing)
        key_table = key_rows(keys, self._keys, str(self._info.path))
        schema = self._info.schema
        batches = list(iter_record_batches(key_table, schema, columns=self._keys, max_rows=KEYS_AT_ONCE))
        rows = pa.concat_tables([self._lookup.nullable.empty_table(), *map(self._rows, batches)])
        if missing == "null":
            return rows
        probe = rows.column(self._probe_column)
        is_found = probe.is_valid()
        if missing == "error" and probe.null_count:
            first = is_found.index(False).as_py()
            row = pa.Table.from_batches(batches).slice(first, 1).to_pylist()[0]
            raise NotFound(
                f"table {self._info.path} has no row for {probe.null_count} of {len(probe)} keys; the first is key "
                f"{first}: {row}",
                ErrorCode.CLIENT_ERROR,
            )
        return rows.filter(is_found).cast(self.schema)

    def _rows(self, keys: pa.RecordBatch) -> pa.Table:
        """The row of each key, or nulls."""
        encoded = self._encoder.encode(keys)
        parts: list[pa.Table] = []
        place = np.full(len(encoded), -1, np.int64)
        rows = 0
        with self._guard:
            generations = self._generations()
            for generation in generations:
                at = np.where(place < 0, generation.places(encoded), -1)
                is_here = at >= 0
                parts.append(generation.take(at[is_here]))
                place[is_here] = np.arange(rows, rows + len(parts[-1]))
                rows += len(parts[-1])
        is_left = place < 0
        if is_left.any():
            left = np.flatnonzero(is_left)
            fetched, of_each = self._fetched(keys.take(array_of(left)), encoded.take(array_of(left)))
            parts.append(fetched)
            place[left] = rows + of_each
        return pa.concat_tables(parts).take(array_of(place))

    def _generations(self) -> Sequence[_Generation]:
        """The generations that are young enough, under the lock."""
        now = self._clock.monotonic()
        if self._young is not None and now - self._young.born >= self._max_age / 2:
            self._old, self._young = self._young, None
        if self._old is not None and now - self._old.born >= self._max_age:
            self._old = None
        return [generation for generation in (self._young, self._old) if generation is not None]

    def _fetched(self, keys: pa.RecordBatch, encoded: pa.BinaryArray) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """The rows of distinct keys from the servers, and the place among them of the row of each key."""
        distinct = KeyIndex()
        distinct.add(encoded)
        positions = distinct.newest_rows()
        born, clears = self._clock.monotonic(), self._clears
        rows = self._lookup.find(keys.take(array_of(positions)))
        with self._guard:
            self._generations()
            if self._clears != clears:  # what was read before may be what was to be forgotten
                return rows, np.searchsorted(positions, distinct.rows_of(encoded))
            cached_count = min(len(rows), self._rows_max // 2)
            if self._young is None or len(self._young) + cached_count > self._rows_max // 2:
                self._old = self._young or self._old
                self._young = _Generation(born, rows.schema)
            self._young.born = min(self._young.born, born)  # another thread may have begun it after our rows were read
            self._young.add(encoded.take(array_of(positions[:cached_count])), rows.slice(0, cached_count))
        return rows, np.searchsorted(positions, distinct.rows_of(encoded))
