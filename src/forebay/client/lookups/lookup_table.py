"""`table.lookup_table()`: rows of a live table by their keys, and joins with them.

Each lookup sends requests to the servers, so it sees the current rows; or, with a maximum age, those of a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from forebay.api.data import Missing, Rows
from forebay.api.joins import KeyJoin
from forebay.client.arrays import array_of
from forebay.client.lookups.lookup import Lookup
from forebay.client.lookups.lookup_cache import CachedLookup
from forebay.client.session import Session
from forebay.metadata.table import TableInfo

ROWS_KEPT = 100_000
"""Rows that a lookup with a cache keeps, where the user does not say otherwise."""


class LookupTable:
    """Lookups and joins by primary key. Thread-safe."""

    def __init__(
        self,
        session: Session,
        info: TableInfo,
        columns: Sequence[str] | None,
        max_age: float | None = None,
        rows_max: int = ROWS_KEPT,
    ) -> None:
        """With `max_age` (seconds), up to `rows_max` rows are kept for so long."""
        self._info = info
        self._keys = info.schema.primary_key
        lookup = Lookup(session, info, columns)
        self._names = list(lookup.names)
        self.schema: pa.Schema = lookup.schema
        """The schema of `lookup` results in which every key has a row."""
        column_names = self._names if self._keys[0] in self._names else [self._keys[0], *self._names]
        self._lookup: Lookup | CachedLookup = Lookup(session, info, column_names)
        self._cache: CachedLookup | None = None
        if max_age is not None:
            self._lookup = self._cache = CachedLookup(self._lookup, info, session.clock, max_age, rows_max)

    def lookup(self, keys: Any, *, missing: Missing = "null") -> pa.Table:
        """One row per key, in order; `keys` and `missing` are as in `Table.lookup`."""
        return self._lookup.find(keys, missing).select(self._names)

    def join(self, data: Rows, on: Sequence[str] | str | None = None, how: str = "left") -> pa.Table:
        """The rows of `data` joined with the table's columns; these are null where there is no match, or with
        how="inner" such rows are omitted.

        `data` is Arrow data, a data frame or a list of dicts. `on`: its columns that hold the primary key, in the key's
        order; by default those of the same names, which then appear once in the result. A key with a null matches no
        row. Raises `InvalidRequest` if both sides have a column of the same name.
        """
        join = KeyJoin.of(data, on, how, self._keys, self._names)
        whole = np.ones(join.keys.num_rows, np.bool_)
        for column in join.keys.columns:
            whole &= np.asarray(column.is_valid())
        matches = self._lookup.find(join.keys.filter(pa.array(whole)))
        is_found = np.zeros(join.keys.num_rows, np.bool_)
        is_found[whole] = np.asarray(matches.column(self._keys[0]).is_valid())
        return join.rows(matches, array_of(np.cumsum(whole) - 1, is_found))

    def refresh(self) -> bool:
        """Forget cached rows; return whether there is a cache. Without one, each lookup reads the current rows."""
        if self._cache is None:
            return False
        self._cache.clear()
        return True

    def close(self) -> None:
        """Forget cached rows; the connection stays open."""
        self.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<forebay.LookupTable of {self._info.path}, key ({', '.join(self._keys)})>"
