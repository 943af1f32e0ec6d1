"""Reads according to a table's options, and streams, as `forebay.paimon.table.Table` offers them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from forebay.base.errors import UnsupportedOperation
from forebay.metadata.predicate import Predicate
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.read.batch_modes import BatchScan, chooses_snapshot
from forebay.paimon.read.change_reader import ChangeReader
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.startup import (
    FROM_CREATION_TIMESTAMP,
    FROM_FILE_CREATION_TIME,
    INCREMENTAL,
    LATEST_DELTA,
    Startup,
)
from forebay.paimon.read.stream import Accept, StreamScan
from forebay.paimon.read.table_stream import TableStream
from forebay.paimon.store.context import TableContext

_TRAVELLING = ("from-snapshot", "from-timestamp", "from-snapshot-full", "from-creation-timestamp")
_OF_CHANGES = (INCREMENTAL, LATEST_DELTA, FROM_FILE_CREATION_TIME, FROM_CREATION_TIMESTAMP)


def travelled(table: TableContext) -> TableContext:
    """The table with the columns of the snapshot that its scan options name; unchanged if they name none."""
    if not chooses_snapshot(table.options):
        return table
    scan = BatchScan(table)
    snapshot = scan.snapshot() if scan.mode in _TRAVELLING else None
    if snapshot is None:
        return table
    return table.with_schema(table.schemas.schema(snapshot.schema_id).with_options(table.schema.options))


def is_of_changes(table: TableContext) -> bool:
    """Whether the scan options choose changes, or only some files, instead of a snapshot."""
    return Startup(table).mode in _OF_CHANGES


def snapshot_by_options(table: TableContext) -> Snapshot | None:
    """The snapshot that the table's scan options name; None in a table without snapshots.

    Raises `UnsupportedOperation` if they choose changes, or only some files, which no snapshot represents.
    """
    scan = BatchScan(table)
    if scan.mode in _OF_CHANGES:
        raise UnsupportedOperation(f"scan.mode {scan.mode} chooses files or changes, and not a snapshot")
    return scan.snapshot()


def open_stream(
    table: TableContext,
    *,
    columns: Sequence[str] | None = None,
    predicate: Predicate | None = None,
    buckets: Collection[int] | None = None,
    state: Mapping[str, Any] | None = None,
    follow: bool = True,
    accept: Accept | None = None,
) -> TableStream:
    """A stream of a table's changes, starting where its options say or from `state`; see `TableStream`."""
    scan_filter = ScanFilter.of(table.schema, predicate)
    scan = StreamScan(table, scan_filter, buckets)
    reader = ChangeReader(table, columns, scan_filter)
    interval = table.options.continuous_discovery_interval_ms
    stream = TableStream(scan, reader, follow=follow, interval_ms=interval, clock=table.clock, accept=accept)
    if state is not None:
        stream.restore(state)
    return stream
