"""System tables by name: `table.system("snapshots").read()`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from forebay.base.arguments import did_you_mean, name_list
from forebay.base.errors import InvalidRequest, NotFound, UnsupportedOperation
from forebay.paimon.read.change_reader import ChangeReader
from forebay.paimon.read.stream import StreamScan
from forebay.paimon.read.table_stream import SplitChanges, TableStream
from forebay.paimon.store.context import TableContext
from forebay.paimon.system_tables import files, metadata, row_views

_METADATA: dict[str, tuple[pa.Schema, Callable[[TableContext], pa.Table]]] = {
    "snapshots": (metadata.SNAPSHOTS, metadata.snapshots),
    "schemas": (metadata.SCHEMAS, metadata.schemas),
    "options": (metadata.OPTIONS, metadata.options),
    "manifests": (metadata.MANIFESTS, metadata.manifests),
    "files": (files.FILES, files.files),
    "partitions": (files.PARTITIONS, files.partitions),
    "buckets": (files.BUCKETS, files.buckets),
    "tags": (metadata.TAGS, metadata.tags),
    "branches": (metadata.BRANCHES, metadata.branches),
    "consumers": (metadata.CONSUMERS, metadata.consumers),
    "statistics": (metadata.STATISTICS, metadata.statistics),
    "aggregation_fields": (metadata.AGGREGATION_FIELDS, metadata.aggregation_fields),
}
_ROWS: dict[str, Callable[[TableContext], pa.RecordBatchReader]] = {
    "audit_log": row_views.audit_log,
    "binlog": row_views.binlog,
    "ro": row_views.read_optimized,
}

METADATA_NAMES = tuple(_METADATA)
"""The system tables about metadata; the others show the table's rows, and are as large."""

NAMES = (*METADATA_NAMES, *_ROWS)
"""All system tables."""


class SystemTable:
    """One system table of one table. Columns and types are those of Java Paimon."""

    def __init__(self, name: str, table: TableContext) -> None:
        if name not in NAMES:
            raise NotFound(f"there is no system table '{name}'; there are {', '.join(NAMES)}")
        self.name = name
        self._table = table

    @property
    def schema(self) -> pa.Schema:
        """The schema of `read` without `columns`; known without reading anything."""
        entry = _METADATA.get(self.name)
        return row_views.schema_of(self.name, self._table) if entry is None else entry[0]

    def read(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """The rows, with these columns or all."""
        if self.name in _METADATA:
            reader: pa.RecordBatchReader = _METADATA[self.name][1](self._table).to_reader()
        else:
            reader = _ROWS[self.name](self._table)
        if columns is None:
            return reader
        names = reader.schema.names
        for column in name_list(columns, "columns"):
            if column not in names:
                hint = did_you_mean(column, names)
                raise InvalidRequest(f"'{self.name}' has no column '{column}'; it has {', '.join(names)}{hint}")
        schema = pa.schema([reader.schema.field(c) for c in columns])
        return pa.RecordBatchReader.from_batches(schema, (b.select(list(columns)) for b in reader))

    def stream(self, state: Mapping[str, Any] | None = None, follow: bool = True) -> TableStream:
        """The stream of committed changes; only for `audit_log` and `binlog`."""
        if self.name not in ("audit_log", "binlog"):
            raise UnsupportedOperation(f"system table '{self.name}' cannot be streamed; 'audit_log' and 'binlog' can")
        scan = StreamScan(self._table)
        reader: SplitChanges = row_views.BinlogRows(self._table)
        if self.name == "audit_log":
            reader = ChangeReader(self._table, kind_column=row_views.ROW_KIND, kind_first=True)
        interval = self._table.options.continuous_discovery_interval_ms
        stream = TableStream(
            scan, reader, follow=follow, interval_ms=interval, clock=self._table.clock, keep_deletes=True
        )
        if state is not None:
            stream.restore(state)
        return stream
