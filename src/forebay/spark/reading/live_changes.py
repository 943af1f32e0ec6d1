"""Changes of live tables in other forms than `t$changelog`: `t$binlog`, Spark's CHANGES, streams with deletes.

In the log an update is a pair of records, and a range of the log (a task or a micro-batch) may end between the two. In
a `WholeUpdatesRead` the pair belongs to the range with its first record, which reads one record more; the next range
omits the second record. A binlog returns the pair as one row, with the old and the new row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from forebay.api.changes import (
    AFTER,
    BEFORE,
    CHANGE_TYPES,
    DELETE,
    SPARK_CHANGE_TYPES,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    change_numbers,
)
from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.client.arrays import array_of, integers
from forebay.client.connection import Connection
from forebay.codec.arrow.small_arrays import text_array
from forebay.metadata.table import TableBucket, TableInfo
from forebay.spark.options import DELETE_BEHAVIOR, FAIL, IGNORE, INCLUDE, ReadOptions
from forebay.spark.reading.live_plan import (
    BINLOG,
    CHANGELOG,
    CHANGELOG_FIELDS,
    LAKE,
    ClusterScan,
    cut_logs,
    log_ranges,
)
from forebay.spark.reading.live_read import BoundUnionSplit, LiveRead, Split
from forebay.spark.reading.plan import SYSTEM_SEPARATOR, ChangesRange, Pushdown, SplitsPartition
from forebay.spark.schemas import spark_arrow_schema, to_spark_schema
from forebay.unionread.lake_side import merge_columns
from forebay.unionread.splits import LakeSnapshotAndLogSplit, LogSplit
from forebay.unionread.tail import read_tail
from forebay.unionread.time_range import offsets_at, offsets_now

_KIND, *_PLACE = CHANGELOG_FIELDS
_METADATA = ("change_type", "offset", "timestamp")

_UPDATE_AFTER = CHANGE_TYPES.index(UPDATE_AFTER)


def scan_of(
    info: TableInfo,
    options: ReadOptions,
    system: str = "",
    deletes: str = IGNORE,
    changes: ChangesRange | None = None,
) -> ClusterScan:
    """The scan of a table, of its system table `system`, or of its `changes` in a range.

    `deletes` is the handling of deleted keys in a stream of the table. Raises `UnsupportedOperation` if the table
    supports no binlog, changes or stream with deletes.
    """
    if changes is not None:
        from forebay.client.reading.binlog import require_old_rows

        require_old_rows(info, "CHANGES")
        return ChangesScan(info, options, is_changelog=True, range=changes)
    scan = ClusterScan(info, options, system in (CHANGELOG, BINLOG), system == LAKE)
    if system == BINLOG:
        return BinlogScan.of(scan)
    return scan if deletes == IGNORE else NewestScan.of(scan, deletes)


# ---- t$binlog -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BinlogScan(ClusterScan):
    """The scan of a table's changelog as `t$binlog`."""

    @classmethod
    def of(cls, scan: ClusterScan) -> BinlogScan:
        """Raises `UnsupportedOperation` for tables whose rows never change, or whose logs have no old rows."""
        from forebay.client.reading.binlog import check_has_binlog

        info = scan.info
        check_has_binlog(info)
        return cls(info, scan.options, is_changelog=True)

    @property
    def schema(self) -> StructType:
        row = to_spark_schema(self.info.schema.columns)
        return StructType([*CHANGELOG_FIELDS, StructField(BEFORE, row, True), StructField(AFTER, row, True)])

    def read_function(self, pushdown: Pushdown, schema: StructType) -> BinlogRead:
        rows = [field.dataType for field in schema if field.name in (BEFORE, AFTER)]
        names = {name for row in rows if isinstance(row, StructType) for name in row.names}
        columns = tuple(name for name in self.info.schema.names if name in names)
        settings, arrow = self.options.settings, spark_arrow_schema(schema)
        return BinlogRead(settings, self.info, columns, arrow, limit=pushdown.limit, include=_METADATA)


@dataclass(frozen=True)
class WholeUpdatesRead(LiveRead):
    """Reads splits of a log with whole updates. `include` is all of `_METADATA`, and there is no filter."""

    def _whole_updates(self, connection: Connection, split: LogSplit) -> Iterator[pa.RecordBatch]:
        """The changes in a range of a log, with both records of each update that begins in it."""
        last = None
        for batch in self._log_rows(connection, [split]):
            is_cut = last is None and batch.column(0)[0].as_py() == UPDATE_AFTER
            last = batch
            if not is_cut:
                yield batch
            elif len(batch) > 1:
                yield batch.slice(1)
        if last is not None and last.column(0)[-1].as_py() == UPDATE_BEFORE:
            yield from self._log_rows(connection, [LogSplit(split.bucket, split.stop, split.stop + 1)])


@dataclass(frozen=True)
class BinlogRead(WholeUpdatesRead):
    """Reads the splits of a binlog."""

    def _rows(self, connection: Connection, partition: SplitsPartition) -> Iterator[pa.RecordBatch]:
        from forebay.client.reading.binlog import binlog

        logs = [split for split in partition.splits if isinstance(split, LogSplit)]
        for split in logs:
            yield from binlog(self._whole_updates(connection, split))
        of_snapshots = tuple(split for split in partition.splits if not isinstance(split, LogSplit))
        if of_snapshots:
            yield from binlog(super()._rows(connection, SplitsPartition(of_snapshots, partition.snapshot)))


# ---- CHANGES --------------------------------------------------------------------------------------------------------

_COMMIT_VERSION = "_commit_version"
_SPARK_TYPES = text_array(*SPARK_CHANGE_TYPES)


@dataclass(frozen=True)
class ChangesScan(ClusterScan):
    """The changes of a table in a range, as Spark's `CHANGES` shows them.

    Versions are log offsets, so a range of versions needs a table with a single bucket, or begins with 0. The version
    of a change is the offset of its record; that of an update is the offset of its first record.
    """

    range: ChangesRange = field(default_factory=ChangesRange)

    @property
    def schema(self) -> StructType:
        version = StructField(_COMMIT_VERSION, _PLACE[0].dataType, False)
        return StructType([*to_spark_schema(self.info.schema.columns).fields, _KIND, version, _PLACE[1]])

    def read_function(self, pushdown: Pushdown, schema: StructType) -> ChangesRead:
        columns = tuple(name for name in self.info.schema.names if name in schema.names)
        settings, arrow = self.options.settings, spark_arrow_schema(schema)
        return ChangesRead(settings, self.info, columns, arrow, limit=pushdown.limit, include=_METADATA)

    def _tasks_of(
        self, connection: Connection, cores: int, pushdown: Pushdown, buckets: Sequence[TableBucket]
    ) -> list[tuple[Split, ...]]:
        """Raises `InvalidRequest` if the log no longer has the beginning of the range."""
        return cut_logs(self._bounds(connection, buckets), cores)

    def starts(self, connection: Connection, buckets: Sequence[TableBucket]) -> dict[TableBucket, int]:
        """The starting offsets of a stream. Raises `InvalidRequest` if they have expired or lie in the future."""
        now = connection.clock.now_ms()
        if self.range.is_of_times and self.range.start > now:
            raise InvalidRequest(
                f"CHANGES of table {self.info.path} begin at {self.range.start} ms, and it is {now} ms now: a stream "
                "cannot begin in the future"
            )
        bounds = self._bounds(connection, buckets)
        for bucket, (start, stop) in bounds.items():
            if start > stop:
                raise InvalidRequest(
                    f"CHANGES of table {self.info.path} begin with version {start}, and the next one of bucket "
                    f"{bucket.bucket} is {stop}: begin there or earlier"
                )
        return {bucket: start for bucket, (start, _) in bounds.items()}

    def _bounds(self, connection: Connection, buckets: Sequence[TableBucket]) -> dict[TableBucket, tuple[int, int]]:
        """The current start and stop offsets of the range."""
        changes, ranges = self.range, log_ranges(connection, self.info, buckets)
        ends = {bucket: stop for bucket, (_, stop) in ranges.items()}
        starts = dict.fromkeys(buckets, changes.start)
        stops = ends if changes.stop is None else dict.fromkeys(buckets, changes.stop)
        if changes.is_of_times and buckets:
            table = connection.table(self.info)
            starts = offsets_at(table, buckets, changes.start)
            stops = offsets_now(table, buckets) if changes.stop is None else offsets_at(table, buckets, changes.stop)
            ends = stops  # earlier ends would cut transactions
        for bucket, (earliest, _) in ranges.items():
            # If the range includes the beginning of the log, earlier changes of the range may have expired.
            is_known = starts[bucket] > earliest or (not changes.is_of_times and starts[bucket] == earliest)
            if earliest and not is_known:
                raise InvalidRequest(
                    f"the log of bucket {bucket} of table {self.info.path} begins at offset {earliest}: changes of "
                    "this range may have expired ('table.log.ttl'); begin the range later",
                    ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
                )
        return {bucket: (starts[bucket], min(stops[bucket], ends[bucket])) for bucket in buckets}


@dataclass(frozen=True)
class ChangesRead(WholeUpdatesRead):
    """Reads the splits of `CHANGES`."""

    def _rows(self, connection: Connection, partition: SplitsPartition) -> Iterator[pa.RecordBatch]:
        has_pairs = self.info.has_primary_key
        logs = [split for split in partition.splits if isinstance(split, LogSplit)]
        for split in logs:
            whole = self._whole_updates(connection, split) if has_pairs else self._log_rows(connection, [split])
            for batch in whole:
                kinds, versions = change_numbers(batch.column(0)), integers(batch.column(1))
                if has_pairs:
                    versions = versions - (kinds == _UPDATE_AFTER)
                arrays = [_SPARK_TYPES.take(array_of(kinds)), array_of(versions), *batch.columns[2:]]
                names = [_KIND.name, _COMMIT_VERSION, *batch.schema.names[2:]]
                yield pa.RecordBatch.from_arrays(arrays, names)


# ---- streams with deletes -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NewestScan(ClusterScan):
    """The scan of a primary-key table as a stream with `scan.delete.behavior` = fail or include."""

    deletes: str = IGNORE

    @classmethod
    def of(cls, scan: ClusterScan, deletes: str) -> NewestScan:
        """Raises `UnsupportedOperation` unless it is a table with a primary key."""
        info = scan.info
        if scan.is_changelog or not info.has_primary_key:
            what = f"table {info.path} is a log" if not info.has_primary_key else "a changelog has all deletes"
            raise UnsupportedOperation(
                f"read option '{DELETE_BEHAVIOR}' = '{deletes}' is for tables with a primary key: {what}"
            )
        return cls(info, scan.options, deletes=deletes)

    @property
    def schema(self) -> StructType:
        fields = super().schema.fields
        return StructType([_KIND, *fields] if self.deletes == INCLUDE else fields)

    def read_function(self, pushdown: Pushdown, schema: StructType) -> NewestRead:
        """Raises `UnsupportedOperation` for a filter that a change may make a row leave."""
        has_kind = self.deletes == INCLUDE and _KIND.name in pushdown.columns
        columns = tuple(name for name in pushdown.columns if not (has_kind and name == _KIND.name))
        keys = set(self.info.schema.primary_key)
        if self.deletes == INCLUDE and pushdown.filter is not None and not pushdown.filter.columns() <= keys:
            raise UnsupportedOperation(
                f"a stream with '{DELETE_BEHAVIOR}' = '{INCLUDE}' takes no option 'filter' on other columns than the "
                "primary key: whether a row that does not match has matched before is not known. Filter the DataFrame"
            )
        arrow, include = spark_arrow_schema(schema), ("change_type",) if has_kind else ()
        how = (pushdown.row_filter, pushdown.limit, self.options.strategy, include, self.deletes)
        return NewestRead(self.options.settings, self.info, columns, arrow, *how)


@dataclass(frozen=True)
class NewestRead(LiveRead):
    """Reads the splits of such a stream: rows of snapshots are inserts, those of the log the newest changes."""

    deletes: str = IGNORE

    def _rows(self, connection: Connection, partition: SplitsPartition) -> Iterator[pa.RecordBatch]:
        others = []
        for split in partition.splits:
            if isinstance(split, BoundUnionSplit) and isinstance(split.split, LakeSnapshotAndLogSplit):
                yield from self._newest(connection, split.split)
            else:
                others.append(split)
        if others:
            yield from super()._rows(connection, SplitsPartition(tuple(others), partition.snapshot))

    def _newest(self, connection: Connection, split: LakeSnapshotAndLogSplit) -> Iterator[pa.RecordBatch]:
        """The newest change of each key in a range of a log."""
        view = self.view
        read = partial(read_tail, connection, self.info, split.bucket, split.start, split.stop)
        tail = read(merge_columns(self.info, view), keep_deletes=True)
        if self.deletes == FAIL and tail.deletes:
            count = sum(batch.num_rows for batch in tail.deletes)
            raise UnsupportedOperation(
                f"{count} keys of bucket {split.bucket.bucket} were deleted between the log offsets {split.start} and "
                f"{split.stop}, and the stream has '{DELETE_BEHAVIOR}' = '{FAIL}': give '{IGNORE}' to leave such keys "
                f"out, '{INCLUDE}' to have them reported, or stream {self.info.path}{SYSTEM_SEPARATOR}changelog"
            )
        names = [column.name for column in view.read]
        for kind, batches in ((DELETE, tail.deletes), (UPDATE_AFTER, tail.batches)):
            for batch in batches:
                shown = view.show(batch.select(names))
                if not self.include:
                    yield shown
                    continue
                kinds = pa.repeat(pa.scalar(kind, pa.string()), shown.num_rows)
                yield pa.RecordBatch.from_arrays([kinds, *shown.columns], [_KIND.name, *shown.schema.names])
