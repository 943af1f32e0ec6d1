"""Reads of a table as its options say, and streams: what `forebay.paimon.table.Table` puts in front of users."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from forebay.base.clock import SYSTEM_CLOCK, Clock
from forebay.base.errors import UnsupportedOperation
from forebay.metadata.predicate import Predicate
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.read.batch_modes import BatchPlan, BatchScan, chooses_snapshot
from forebay.paimon.read.change_reader import ROW_KIND, ChangeReader, without_deletes
from forebay.paimon.read.expired import telling_expiry
from forebay.paimon.read.planner import check_limit
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.startup import FROM_CREATION_TIMESTAMP, FROM_FILE_CREATION_TIME, INCREMENTAL, LATEST_DELTA
from forebay.paimon.read.stream import StreamScan
from forebay.paimon.read.table_stream import TableStream
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import ManifestStore
from forebay.paimon.store.snapshots import SnapshotManager
from forebay.paimon.store.tags import TagManager

_TRAVELLING = ("from-snapshot", "from-timestamp", "from-snapshot-full", "from-creation-timestamp")


def read_by_options(
    table: TableContext,
    snapshots: SnapshotManager,
    manifests: ManifestStore,
    tags: TagManager,
    columns: Sequence[str] | None,
    predicate: Predicate | None,
    limit: int | None,
) -> pa.RecordBatchReader:
    """The rows that the table's scan options ask for. Changes that delete rows are left out (see `audit_log`)."""
    check_limit(limit)
    table = travelled(table, snapshots, manifests, tags)
    scan = BatchScan(table, snapshots, manifests, tags)
    scan_filter = ScanFilter.of(table.schema, predicate)
    with telling_expiry(snapshots, None):
        plan = scan.plan(scan_filter)
    reader = ChangeReader(table, columns, scan_filter)
    schema = reader.schema.remove(reader.schema.get_field_index(ROW_KIND))
    return pa.RecordBatchReader.from_batches(schema, limited(_rows(reader, plan), limit))


def travelled(
    table: TableContext, snapshots: SnapshotManager, manifests: ManifestStore, tags: TagManager
) -> TableContext:
    """The table with the columns that it had in the snapshot which its scan options name; as it is without any."""
    if not chooses_snapshot(table.options):
        return table
    scan = BatchScan(table, snapshots, manifests, tags)
    chosen = scan.snapshot() if scan.mode in _TRAVELLING else None
    if chosen is None:
        return table
    return table.with_schema(table.schemas(chosen.schema_id).with_options(table.schema.options))


def snapshot_by_options(
    table: TableContext, snapshots: SnapshotManager, manifests: ManifestStore, tags: TagManager
) -> Snapshot | None:
    """The snapshot that the table's scan options name; None in a table without any.

    Raises `UnsupportedOperation` if they ask for changes, or for some files only: those are no plain plan.
    """
    scan = BatchScan(table, snapshots, manifests, tags)
    if scan.mode in (INCREMENTAL, LATEST_DELTA, FROM_FILE_CREATION_TIME, FROM_CREATION_TIMESTAMP):
        raise UnsupportedOperation(f"scan.mode {scan.mode} chooses files or changes, and is for `read`, not for `scan`")
    return scan.snapshot()


def _rows(reader: ChangeReader, plan: BatchPlan) -> Iterator[pa.RecordBatch]:
    for split in plan.splits:
        for batch in reader.read(split):
            rows = without_deletes(batch, batch.column(ROW_KIND))
            if rows.num_rows:
                yield rows.drop_columns([ROW_KIND])


def limited(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The first `limit` rows of `batches`; all if that is None."""
    left = limit
    for batch in batches:
        if left is not None:
            batch = batch.slice(0, left)
            left -= batch.num_rows
        if batch.num_rows:
            yield batch
        if left == 0:
            return


def open_stream(
    table: TableContext,
    snapshots: SnapshotManager,
    manifests: ManifestStore,
    *,
    columns: Sequence[str] | None = None,
    predicate: Predicate | None = None,
    buckets: Collection[int] | None = None,
    state: Mapping[str, Any] | None = None,
    follow: bool = True,
    clock: Clock = SYSTEM_CLOCK,
) -> TableStream:
    """A stream of a table's changes, from where its options say or where `state` was taken."""
    scan_filter = ScanFilter.of(table.schema, predicate)
    scan = StreamScan(table, snapshots, manifests, scan_filter, buckets, clock)
    reader = ChangeReader(table, columns, scan_filter)
    interval = table.options.continuous_discovery_interval_ms
    stream = TableStream(scan, reader, follow=follow, interval_ms=interval, clock=clock)
    if state is not None:
        stream.restore(state)
    return stream
