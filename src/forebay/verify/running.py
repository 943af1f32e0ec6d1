"""Verifies a running server through the client: all ways to read the data must agree.

For each bucket: the log has no gap and no record out of order; the full scan of a table snapshot is the fold of the
changelog up to the snapshot's offset; lookups return the rows of the scan. For lake tables: the newest lake snapshot
holds no more of the log than there is, and the union read returns the servers' rows. Writes may continue: changes after
the snapshot are excluded from the comparisons. Memory: the rows of one bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from forebay.base.errors import CorruptData, ForebayError, OutcomeUnknown, StorageFailure, UnsupportedOperation
from forebay.client.admin.admin import Admin
from forebay.client.connection import Connection
from forebay.client.reading.replay import rows_at
from forebay.client.reading.table_snapshot import TableSnapshot
from forebay.client.row_view import RowView
from forebay.client.table import Table
from forebay.metadata.table import TableBucket, TablePath
from forebay.moving.checksum import checksum_of, live_checksum, union_checksum
from forebay.tiering.lag import newest_lake_snapshot
from forebay.verify.report import OnStep, Report, no_steps

_KEYS_AT_ONCE = 2000
_DIFFERENCES_SHOWN = 3
_DAMAGE = (CorruptData, StorageFailure)


def verify_server(
    connection: Connection, tables: Sequence[str | TablePath] = (), *, on_step: OnStep = no_steps
) -> Report:
    """Check these tables of a running server, or all. Raises errors of requests, except damage, which is reported."""
    report = Report()
    paths = [TablePath.parse(table) for table in tables] or [
        TablePath(database, name)
        for database in connection.list_databases()
        for name in connection.list_tables(database)
    ]
    for number, path in enumerate(paths):
        on_step("tables", number, len(paths))
        _TableCheck(connection.table(path).at_server, report, on_step).check()
    return report


class _TableCheck:
    def __init__(self, table: Table, report: Report, on_step: OnStep) -> None:
        self._table = table
        self._report = report
        self._on_step = on_step
        self._admin = Admin(table.connection)
        self._ends: dict[TableBucket, int] = {}

    def check(self) -> None:
        report, info = self._report, self._table.info
        report.count("tables")
        buckets = self._served_buckets()
        starts = self._admin.list_offsets(info, "earliest", buckets=buckets)
        self._ends = self._admin.list_offsets(info, "latest", buckets=buckets)
        for bucket, end in self._ends.items():
            report.count("buckets")
            self._guarded(bucket, partial(self._check_log, bucket, starts[bucket], end))
        if buckets is not None:
            report.note(str(self._table.path), "states and lake were not checked, because some buckets are offline")
            return
        if self._table.has_primary_key and self._ends:
            with self._table.snapshot(name="forebay verify") as snapshot:
                for bucket in snapshot.buckets:
                    self._guarded(bucket, partial(self._check_state, snapshot, bucket))
        if info.descriptor.properties.get("table.datalake.enabled", "false").lower() == "true":
            self._check_lake()

    def _served_buckets(self) -> list[TableBucket] | None:
        """The buckets that are not offline because of damage, which is reported; None: none is."""
        try:
            self._admin.list_offsets(self._table.info, "latest")
            return None
        except _DAMAGE:
            pass  # asked again for each bucket, to name all that are damaged
        served = []
        for bucket in self._table.buckets():
            try:
                self._admin.list_offsets(self._table.info, "latest", buckets=[bucket])
            except _DAMAGE as e:
                self._report.fault(self._place(bucket), e.message)
            else:
                served.append(bucket)
        return served

    def _guarded(self, bucket: TableBucket, check: Callable[[], None]) -> None:
        """Run `check`; damage of one bucket does not end the checks of others."""
        try:
            check()
        except _DAMAGE as e:
            self._report.fault(self._place(bucket), e.message)

    def _place(self, bucket: TableBucket) -> str:
        return f"{self._table.path} {bucket}"

    # ---- the log ----------------------------------------------------------------------------------------------------

    def _check_log(self, bucket: TableBucket, start: int, end: int) -> None:
        """Check that records are in order. Offsets without a record are those of empty batches: in a changelog of puts
        without a change, in a log table of rows that were given up."""
        if start >= end:
            return
        next_offset, last_time = start, -1
        place = self._place(bucket)
        with self._table.changes({bucket: start}, {bucket: end}, include=("offset", "timestamp")) as log:
            for batch in log:
                offsets = batch["_log_offset"].to_numpy(zero_copy_only=False)
                times = batch["_commit_timestamp"].cast(pa.int64()).to_numpy(zero_copy_only=False)
                steps = np.diff(offsets, prepend=next_offset - 1)
                wrong = np.flatnonzero(steps < 1)
                if len(wrong):
                    self._report.fault(
                        place, f"offset {offsets[wrong[0]]} follows {offsets[wrong[0]] - steps[wrong[0]]} in the log"
                    )
                    return
                if np.any(np.diff(times, prepend=last_time) < 0):
                    self._report.fault(place, f"commit times go back between offsets {next_offset} and {offsets[-1]}")
                if not self._table.has_primary_key:
                    for at in np.flatnonzero(steps > 1).tolist():
                        self._note_empty(place, int(offsets[at] - steps[at]) + 1, int(offsets[at]))
                next_offset, last_time = int(offsets[-1]) + 1, int(times[-1])
                self._report.count("records", len(offsets))
                self._on_step(f"log of {place}, offsets", next_offset - start, end - start)
        if next_offset > end:
            self._report.fault(place, f"the log ends with offset {next_offset}, and should with {end}")
        elif next_offset < end and not self._table.has_primary_key:
            self._note_empty(place, next_offset, end)

    def _note_empty(self, place: str, start: int, end: int) -> None:
        what = f"offset {start} has no row" if end - start == 1 else f"offsets {start} to {end - 1} have no rows"
        self._report.note(place, f"{what}: `forebay repair` has given them up, or a client has written empty batches")

    # ---- the state --------------------------------------------------------------------------------------------------

    def _check_state(self, snapshot: TableSnapshot, bucket: TableBucket) -> None:
        table, schema, place = self._table, self._table.schema, self._place(bucket)
        offset = snapshot.log_offsets[bucket]
        rows = snapshot.scan(buckets=[bucket]).to_arrow()
        self._report.count("rows", rows.num_rows)
        self._on_step(f"rows of {place}", rows.num_rows, 0)
        folded = rows_at(table.connection, RowView(table.info), bucket, offset)
        if folded is None:
            self._report.note(place, "the changelog's beginning has expired: the scan was not compared with its fold")
        else:
            fold = pa.Table.from_batches(list(folded), rows.schema) if offset else rows.schema.empty_table()
            scanned, expected = checksum_of(schema, rows), checksum_of(schema, fold)
            if scanned != expected:
                self._report.fault(
                    place, f"the full scan at offset {offset} has {scanned}, and the fold of the changelog {expected}"
                )
        self._check_lookups(bucket, rows, offset)

    def _check_lookups(self, bucket: TableBucket, rows: pa.Table, offset: int) -> None:
        names = list(self._table.schema.primary_key)
        different: list[pa.Table] = []
        for first in range(0, rows.num_rows, _KEYS_AT_ONCE):
            chunk = rows.slice(first, _KEYS_AT_ONCE)
            result = self._table.lookup(chunk.select(names))
            self._report.count("lookups", chunk.num_rows)
            if not result.equals(chunk):
                rows_of = [(result.slice(i, 1), chunk.slice(i, 1)) for i in range(chunk.num_rows)]
                different += [row for other, row in rows_of if not self._same(other, row)]
        if not different:
            return
        changed = self._changed_since(bucket, offset, names)
        wrong = [key for row in different if (key := tuple(row.select(names).to_pylist()[0].values())) not in changed]
        if wrong:
            self._report.fault(
                self._place(bucket),
                f"{len(wrong)} lookups give other rows than the full scan: {wrong[:_DIFFERENCES_SHOWN]}",
            )

    def _same(self, result: pa.Table, row: pa.Table) -> bool:
        """Whether two rows are equal, with NaN equal to NaN; a missing row has a key of nulls."""
        if result.equals(row):
            return True
        if any(result[name].null_count for name in self._table.schema.primary_key):
            return False
        return checksum_of(self._table.schema, result) == checksum_of(self._table.schema, row)

    def _changed_since(self, bucket: TableBucket, offset: int, names: list[str]) -> set[tuple[object, ...]]:
        """The keys changed since the snapshot."""
        end = self._admin.list_offsets(self._table.info, "latest", buckets=[bucket])[bucket]
        if end <= offset:
            return set()
        with self._table.changes({bucket: offset}, {bucket: end}, columns=names, include=()) as log:
            return {tuple(row.values()) for batch in log for row in batch.select(names).to_pylist()}

    # ---- the lake ---------------------------------------------------------------------------------------------------

    def _check_lake(self) -> None:
        table, report, place = self._table, self._report, str(self._table.path)
        snapshot = newest_lake_snapshot(self._admin, table.info)
        if snapshot is None:
            return
        ends = self._admin.list_offsets(table.info, "latest")
        for bucket, offset in snapshot.log_offsets.items():
            if bucket in ends and offset > ends[bucket]:
                text = f"lake snapshot {snapshot.snapshot_id} holds the log up to offset {offset}, and it ends at"
                report.fault(self._place(bucket), f"{text} {ends[bucket]}")
        report.count("lake snapshots")
        if not table.has_primary_key:
            return
        try:
            union, live = union_checksum(table), live_checksum(table)
        except (UnsupportedOperation, OutcomeUnknown) as e:
            report.note(place, f"the lake was not read: {e.message}")
        except ForebayError as e:
            report.fault(place, f"the union read fails: {e.message}")
        else:
            if self._admin.list_offsets(table.info, "latest") != ends:
                report.note(place, "the union read was not compared with the live rows: writes continued")
            elif union != live:
                report.fault(place, f"the union read has {union}, and the servers have {live}")
