"""Scans of a lake table: immutable descriptions of what to read, which can be read repeatedly.

The snapshot is resolved on each read: the latest, that of `as_of`, or the one chosen by the table's scan options
(`scan.mode`, `incremental-between`, ...). With `as_of`, the columns are those of that snapshot.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from forebay.api.scan import RowReader, Scan, ScanRequest
from forebay.base.errors import InvalidRequest, NotFound
from forebay.base.markup import abbreviated
from forebay.base.quantity import format_bytes, moment_ms
from forebay.metadata.predicate import predicate_text
from forebay.metadata.table import TableBucket
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.format.split import DataSplit
from forebay.paimon.read.batch_modes import BatchScan, chooses_snapshot
from forebay.paimon.read.change_planner import ChangeSplit
from forebay.paimon.read.change_reader import ROW_KIND, ChangeReader, without_deletes
from forebay.paimon.read.expired import expiry_errors, with_expiry_errors
from forebay.paimon.read.facade import is_of_changes, snapshot_by_options, travelled
from forebay.paimon.read.lake_partitions import selected
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.snapshot_planner import SnapshotPlanner, exact_rows
from forebay.paimon.read.split_reader import SplitReader
from forebay.paimon.store.context import TableContext

AsOf: TypeAlias = int | str | dt.datetime
"""A point in a table's history: a snapshot id, a tag name, or a time (datetime or ISO text)."""


def snapshot_as_of(table: TableContext, as_of: AsOf, what: str = "as_of") -> Snapshot:
    """The snapshot at `as_of`. A text is the name of a tag if one exists, otherwise a time.

    Raises `NotFound` for a snapshot or tag that does not exist, `InvalidRequest` for an invalid value.
    """
    if isinstance(as_of, bool) or not isinstance(as_of, int | str | dt.datetime):
        raise InvalidRequest(
            f"{what}={as_of!r} means no snapshot: give a snapshot's number, a tag's name, or a datetime or ISO text"
        )
    if isinstance(as_of, int):
        return table.snapshots.snapshot(as_of)
    if isinstance(as_of, str):
        tag = table.tags.find(as_of)
        if tag is not None:
            return tag.snapshot
    try:
        moment = moment_ms(as_of, what)
    except InvalidRequest as e:
        tags = ", ".join(table.tags.names()) or "none"
        raise NotFound(
            f"{what}={as_of!r} is neither a tag of {table.paths.root} (tags: {tags}) nor a time such as "
            "'2026-01-31T12:00:00+01:00'; a snapshot's number is an int"
        ) from e
    return SnapshotPlanner(table).at_timestamp(moment)


class LakeReader(RowReader):
    """A single read of the rows of a lake table."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], limit: int | None, what: str) -> None:
        super().__init__(schema, limit)
        self._rows, self._what = batches, what

    def _read(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        with closing(self._rows):  # type: ignore[type-var]
            for batch in self._rows:
                yield None, batch

    def _described(self) -> str:
        return f" of {self._what}"


@dataclass(frozen=True)
class _Work:
    """The resolved plan of a scan: the splits of a snapshot, and how to read each."""

    context: TableContext
    snapshot: Snapshot | None
    splits: tuple[ChangeSplit, ...]
    schema: pa.Schema
    read: Callable[[Any], Iterator[pa.RecordBatch]]
    scan_filter: ScanFilter
    is_of_changes: bool = False


@dataclass(frozen=True)
class _Fixed:
    """The state that a pinned scan reads: a table, and its snapshot (None: it had none)."""

    context: TableContext
    snapshot: Snapshot | None


class LakeScan(Scan):
    """Rows of a lake table. It can be pickled, for engines with several workers."""

    def __init__(
        self,
        table: TableContext,
        name: str,
        request: ScanRequest,
        as_of: AsOf | None = None,
        fixed: _Fixed | None = None,
    ) -> None:
        super().__init__(request)
        self._table, self._name, self._as_of, self._fixed = table, name, as_of, fixed
        self._in_bucket = _bucket_test(request.buckets)
        _ = self.schema  # rejects unknown columns, and an `as_of` that does not exist

    def _with(self, request: ScanRequest) -> LakeScan:
        return LakeScan(self._table, self._name, request, self._as_of, self._fixed)

    def pinned(self) -> Scan:
        """The scan, fixed to the snapshot that is current now; later commits do not change it.

        A scan of changes or with a limit is fixed by reading its rows into memory.
        """
        if self._fixed is not None:
            return self
        if self._request.limit is not None or self._reads_changes(self._table):
            return super().pinned()
        table, find = self._resolved()
        return LakeScan(self._table, self._name, self._request, self._as_of, _Fixed(table, find()))

    # -- schema and splits --------------------------------------------------------------------------------------------

    def _resolved(self) -> tuple[TableContext, Callable[[], Snapshot | None]]:
        """The table as of the snapshot to read, and a function that resolves that snapshot; None for changes."""
        table, fixed = self._table, self._fixed
        if fixed is not None:
            return fixed.context, lambda: fixed.snapshot
        if self._as_of is not None:
            snapshot = snapshot_as_of(table, self._as_of)
            schema_then = table.schemas.schema(snapshot.schema_id)
            return table.with_schema(schema_then.with_options(table.schema.options)), lambda: snapshot
        if not chooses_snapshot(table.options):
            return table, table.snapshots.latest
        table = travelled(table)
        return table, lambda: None if self._reads_changes(table) else snapshot_by_options(table)

    def _readers(self, table: TableContext, scan_filter: ScanFilter) -> tuple[pa.Schema, Callable[[Any], Any]]:
        """The schema of the rows, and a function that reads splits."""
        if self._reads_changes(table):
            changes = ChangeReader(table, self._request.columns, scan_filter)
            schema = changes.schema.remove(changes.schema.get_field_index(ROW_KIND))
            return schema, partial(_added, changes)
        reader = SplitReader(table, self._request.columns, scan_filter)
        return reader.schema, reader.read_all

    def _reads_changes(self, table: TableContext) -> bool:
        return self._as_of is None and self._fixed is None and chooses_snapshot(table.options) and is_of_changes(table)

    def _work(self) -> _Work:
        table, find = self._resolved()
        snapshot, request = find(), self._request
        scan_filter = ScanFilter.of(table.schema, request.predicate)
        schema, read = self._readers(table, scan_filter)
        in_partition, in_bucket = selected(table, snapshot, request.partitions), self._in_bucket
        splits: tuple[ChangeSplit, ...]
        with expiry_errors(table.snapshots, None if snapshot is None else snapshot.id):
            if self._reads_changes(table):
                planned = BatchScan(table).plan(scan_filter)
                splits = tuple(
                    split
                    for split in planned.splits
                    if (in_partition is None or in_partition(split.partition))
                    and (in_bucket is None or in_bucket(split.bucket))
                )
                return _Work(table, planned.snapshot, splits, schema, read, scan_filter, is_of_changes=True)
            planner = SnapshotPlanner(table)
            splits = planner.plan(snapshot, scan_filter, request.limit, in_bucket, in_partition).splits
        return _Work(table, snapshot, splits, schema, read, scan_filter)

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        table, _ = self._resolved()
        return self._readers(table, ScanFilter.of(table.schema, self._request.predicate))[0]

    def reader(self) -> LakeReader:
        """A reader of the current rows. Close it, or use it in a `with` block."""
        work = self._work()
        snapshot_id = None if work.snapshot is None or work.is_of_changes else work.snapshot.id
        batches = work.read(work.splits)
        checked = with_expiry_errors(batches, work.context.snapshots, snapshot_id)
        return LakeReader(work.schema, checked, self._request.limit, f"lake table {self._name}")

    def plan(self) -> Sequence[Any]:
        """The splits of this scan, which can be pickled. See `read_split`."""
        return self._work().splits

    def read_split(self, split: Any) -> LakeReader:
        """A reader of one split returned by `plan`. The limit applies to each split separately."""
        table, _ = self._resolved()
        schema, read = self._readers(table, ScanFilter.of(table.schema, self._request.predicate))
        snapshot_id = split.snapshot_id if isinstance(split, DataSplit) else None
        checked = with_expiry_errors(read([split]), table.snapshots, snapshot_id)
        return LakeReader(schema, checked, self._request.limit, f"a split of lake table {self._name}")

    def count(self) -> int:
        """The number of rows, from metadata alone where possible."""
        work = self._work()
        rows = None if work.scan_filter.remaining or work.is_of_changes else _sure_count(work)
        if rows is None:
            return super().count()
        return rows if self._request.limit is None else min(rows, self._request.limit)

    def explain(self) -> str:
        """A description of the plan: the snapshot, splits and files, and how the filter is applied."""
        work, request = self._work(), self._request
        files = [file for split in work.splits if isinstance(split, DataSplit) for file in split.files]
        which = "no snapshot yet" if work.snapshot is None else f"snapshot {work.snapshot.id}"
        lines = [
            f"lake table {self._name}, {which}, schema {work.context.schema.id}"
            + (" (changes, by the table's scan options)" if work.is_of_changes else ""),
            f"columns: {abbreviated(work.schema.names)}",
        ]
        if request.predicate is not None:
            lines += [
                f"settled by the choice of partitions: {_listed(work.scan_filter.accepted)}",
                f"tested row by row: {_listed(work.scan_filter.remaining)}",
            ]
        rows = None if work.is_of_changes else _sure_count(work)
        lines.append(
            f"{len(work.splits)} splits, {len(files)} files, {format_bytes(sum(f.file_size for f in files))}, "
            + (f"{sum(f.row_count for f in files)} rows before merging" if rows is None else f"{rows} rows")
        )
        if any(isinstance(s, DataSplit) and not s.raw_convertible for s in work.splits):
            merged = sum(isinstance(s, DataSplit) and not s.raw_convertible for s in work.splits)
            lines.append(f"{merged} splits are merged by key; compaction makes that needless")
        if request.limit is not None:
            lines.append(f"limit: {request.limit}")
        return "\n".join(lines)

    def _described(self) -> str:
        when = "" if self._as_of is None else f" as of {self._as_of!r}"
        return f" of lake table {self._name}{when}"


def _added(reader: ChangeReader, splits: Sequence[ChangeSplit]) -> Iterator[pa.RecordBatch]:
    """The rows that changes added; deletes are left out (system table `audit_log` has them)."""
    for batch in (batch for split in splits for batch in reader.read(split)):
        rows = without_deletes(batch, batch.column(ROW_KIND))
        if rows.num_rows:
            yield rows.drop_columns([ROW_KIND])


def _sure_count(work: _Work) -> int | None:
    """The number of rows in the splits, if metadata alone determine it; otherwise None."""
    total = 0
    for split in work.splits:
        rows = exact_rows(work.context.schema, split) if isinstance(split, DataSplit) else None
        if rows is None:
            return None
        total += rows
    return total


def _bucket_test(buckets: Any) -> Callable[[int], bool] | None:
    if buckets is None:
        return None
    if isinstance(buckets, str) or any(isinstance(b, bool) or not isinstance(b, int) or b < 0 for b in buckets):
        raise InvalidRequest(f"buckets={buckets!r}: buckets are whole numbers, 0 or more")
    return frozenset(buckets).__contains__


def _listed(parts: Sequence[Any]) -> str:
    return " and ".join(map(predicate_text, parts)) or "nothing"
