"""The scan of the changelog of a live table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import pyarrow as pa

from forebay.api.scan import BatchRowReader, RowReader, Scan, ScanRequest
from forebay.base.errors import InvalidRequest
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.metadata.table import TableBucket

_CHANGE_COLUMNS = ("change_type", "offset", "timestamp", "bucket")


class ChangelogScan(Scan):
    """The changes of a live table that its servers have: from the beginning of the logs to their ends now."""

    def __init__(
        self,
        table: Table,
        starts: Mapping[TableBucket, int],
        stops: Mapping[TableBucket, int],
        request: ScanRequest | None = None,
    ) -> None:
        super().__init__(request or ScanRequest())
        if self._request.predicate is not None:
            raise InvalidRequest("changes are filtered after they are read: a change may override another one")
        self._table, self._starts, self._stops = table, starts, stops
        with self._changes() as changes:
            whole = changes.schema
        names = self._request.columns
        self._schema = whole if names is None else pa.schema([whole.field(name) for name in names])

    @classmethod
    def now(cls, connection: Connection, table: Table) -> ChangelogScan:
        """The scan of all changes that the servers have now."""
        starts, stops = (connection.admin.list_offsets(table.info, place) for place in ("earliest", "latest"))
        return cls(table, starts, stops)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def _changes(self) -> Any:
        names = self._request.columns
        columns = None if names is None else [name for name in self._table.schema.names if name in names]
        return self._table.changes(dict(self._starts), dict(self._stops), columns=columns, include=_CHANGE_COLUMNS)

    def reader(self) -> RowReader:
        return BatchRowReader(self._schema, self._read(), self._request.limit)

    def _read(self) -> Iterator[pa.RecordBatch]:
        with self._changes() as changes:
            for batch in changes:
                yield batch.select(self._schema.names)

    def pinned(self) -> Scan:
        return self

    def explain(self) -> str:
        return f"changes of table {self._table.path}, {len(self._starts)} buckets"

    def plan(self) -> Sequence[Any]:
        return [None]

    def read_split(self, split: Any) -> RowReader:
        return self.reader()

    def _with(self, request: ScanRequest) -> Self:
        return type(self)(self._table, self._starts, self._stops, request)

    def _described(self) -> str:
        return f" of the changes of {self._table.path}"
