"""What a standby has repeated at the end of an object of the journal, for those who read it there."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

from forebay.metadata.table import TableBucket


class Boundary(NamedTuple):
    """The state of all tables between two objects of the journal."""

    number: int
    """Of the last object that was repeated."""
    at_ms: int
    """When the running server began to create it, by that one's clock."""
    ends: Mapping[TableBucket, int]
    metadata: bytes | None
    """The metadata store, as a file of SQLite; None if it is that of the boundary before."""
    cut: frozenset[TableBucket] = frozenset()
    """Buckets whose logs have become shorter since the boundary before."""

    def after(self, earlier: Boundary | None) -> Boundary:
        """This boundary for those who have not seen an earlier one either."""
        if earlier is None:
            return self
        metadata = earlier.metadata if self.metadata is None else self.metadata
        return self._replace(metadata=metadata, cut=self.cut | earlier.cut)


class MemoryDatabase:
    """A database in memory, for a `MetadataStore` that shows what another one has (`DatabaseFile`)."""

    path = "the copy of the metadata in memory"

    def is_empty(self) -> bool:
        return True

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)

    def disk(self) -> str:
        return "no disk: it is in memory"
