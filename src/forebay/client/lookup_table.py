"""`table.lookup_table()`: rows of a live table by their keys, and joins with them.

Each lookup sends requests to the servers, so it sees the current rows; nothing is cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from forebay.api.data import Missing, Rows
from forebay.api.joins import KeyJoin
from forebay.client.lookup import Lookup
from forebay.client.session import Session
from forebay.client.views import array_of
from forebay.metadata.table import TableInfo


class LookupTable:
    """Lookups and joins by primary key. Thread-safe."""

    def __init__(self, session: Session, info: TableInfo, columns: Sequence[str] | None) -> None:
        self._info = info
        self._lookup = Lookup(session, info, columns)
        self._keys = info.schema.primary_key
        self._names = list(self._lookup.names)
        held = self._names if self._keys[0] in self._names else [self._keys[0], *self._names]
        self._for_joins = Lookup(session, info, held)

    @property
    def schema(self) -> pa.Schema:
        """The schema of `lookup` results in which every key has a row."""
        return self._lookup.schema

    def lookup(self, keys: Any, *, missing: Missing = "null") -> pa.Table:
        """One row per key, in order; `keys` and `missing` are as in `Table.lookup`."""
        return self._lookup.find(keys, missing)

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
        found = self._for_joins.find(join.keys.filter(pa.array(whole)))
        is_found = np.zeros(join.keys.num_rows, np.bool_)
        is_found[whole] = np.asarray(found.column(self._keys[0]).is_valid())
        return join.rows(found, array_of(np.cumsum(whole) - 1, is_found))

    def refresh(self) -> bool:
        """False: there is nothing to refresh, because each lookup reads the current rows from the servers."""
        return False

    def close(self) -> None:
        """Release nothing: no resources are held, and the connection stays open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<forebay.LookupTable of {self._info.path}, key ({', '.join(self._keys)})>"
