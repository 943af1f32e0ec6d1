"""Planning a scan: partitions, buckets, offsets and row counts -> tasks. Needs a connection and no JVM.

The plan determines all that a scan reads; its input partitions contain it. forebay.unionread plans tables with a lake,
this module all others. Logs are read from the earliest to the latest offset at planning time, primary-key tables at a
table snapshot.

The driver opens a snapshot when it creates a query's tasks, and each task reads its buckets of that snapshot. So tasks
that are retried, or run twice (speculation), return the same rows. The snapshot lives as long as the query's plan: when
the JVM collects the plan, Python collects its scan, which releases the snapshot. If that does not happen, for instance
because the driver died, its lease expires. Tasks that run after the snapshot has ended rebuild the same rows from the
changelog (`LiveRead`), if the changelog is complete.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from forebay.base.errors import UnsupportedOperation
from forebay.client.connection import Connection, shared_connection
from forebay.client.reading.key_check import may_fix_keys
from forebay.client.reading.table_snapshot import TableSnapshot, open_snapshot_of, open_snapshot_with
from forebay.client.row_view import RowView
from forebay.metadata.log_offset import epoch_of, with_epoch
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import TableBucket, TableInfo
from forebay.spark.filters import matching_partitions
from forebay.spark.options import SERVER_SCAN, START, ReadOptions, SnapshotLease
from forebay.spark.read_modes import DEFAULT_MODES, ReadMode, switch_of
from forebay.spark.reading.live_read import BoundUnionSplit, LiveRead, Split
from forebay.spark.reading.native_files import native_share
from forebay.spark.reading.plan import (
    LIMIT_ONE_TASK_MAX,
    DirectReading,
    OpenedScan,
    Pushdown,
    ScanPlan,
    Serves,
    SplitsPartition,
    deal_out,
    keeping_limit,
    only_local,
    task_count,
)
from forebay.spark.schemas import spark_arrow_schema, to_spark_schema
from forebay.unionread.plan import UnionPlan
from forebay.unionread.planning import plan_view
from forebay.unionread.splits import KeyLookupSplit, KvBucketSplit, LogSplit
from forebay.unionread.time_range import plan_time_range

AsOf = int | str | dt.datetime

FindBuckets = Callable[[], Sequence[TableBucket]]
"""Lists the buckets that a scan has to read."""

CHANGELOG, BINLOG, LAKE = "changelog", "binlog", "lake"

CHANGELOG_FIELDS = (
    StructField("_change_type", StringType(), False),
    StructField("_log_offset", LongType(), False),
    StructField("_commit_timestamp", TimestampType(), True),
)
"""Metadata columns of a changelog, before the table's columns. Rows of a snapshot, with which a stream may begin, have
no timestamp; records of the log always have one."""

METADATA_FIELDS = (
    CHANGELOG_FIELDS[1],
    StructField("_commit_timestamp", TimestampType(), False),
    StructField("__bucket", IntegerType(), False),
)
"""The metadata columns of a log table: the offset and timestamp of a record. A primary-key table has only the last one,
because a row may result from several records, and so has a changelog, which has the others among its columns."""

LEASE_SECONDS = 1800.0
"""The default lease of a snapshot: how long it lives without a read of one of its tasks."""

_INCLUDE = {"_change_type": "change_type", "_log_offset": "offset", "_commit_timestamp": "timestamp"}
_INCLUDE["__bucket"] = "bucket"
"""The names of these columns in the client."""


def metadata_fields(info: TableInfo, system: str = "") -> tuple[StructField, ...]:
    """The metadata columns of a table or its system table, without those whose names its own columns have."""
    if system not in ("", CHANGELOG):
        return ()
    fields = METADATA_FIELDS[-1:] if info.has_primary_key or system == CHANGELOG else METADATA_FIELDS
    return tuple(field for field in fields if field.name not in info.schema.names)


@dataclass(frozen=True)
class ClusterScan:
    """The scan of a table, its changelog, or its rows in the lake (`is_lake`).

    `as_of` is a lake snapshot (a number, or a tag's name) or a time to read the table as of; None: now.
    """

    info: TableInfo
    options: ReadOptions
    is_changelog: bool = False
    is_lake: bool = False
    as_of: AsOf | None = None

    @property
    def schema(self) -> StructType:
        """The schema that Spark sees."""
        fields = to_spark_schema(self.info.schema.columns).fields
        return StructType([*CHANGELOG_FIELDS, *fields] if self.is_changelog else fields)

    @property
    def strategy(self) -> str | None:
        """The strategy for reading a primary-key table; None for log tables."""
        return None if self.is_changelog or not self.info.has_primary_key else self.options.strategy

    @property
    def reads_lake(self) -> bool:
        """Whether the scan includes the lake's rows."""
        if self.is_changelog or self.options.window is not None:
            return False
        return self.is_lake or (self.info.lake_enabled and self.options.from_the_lake_on)

    @property
    def way(self) -> str | None:
        """A readable description of how rows are read."""
        if self.as_of is not None:
            return f"lake and stream as of {self.as_of}"
        if self.options.window is not None:
            return "log alone"
        if not self.reads_lake:
            return self.strategy
        return "lake alone" if self.is_lake or self.options.read_optimized else "lake and stream"

    @property
    def lookup_key(self) -> tuple[str, ...]:
        """The columns by whose values rows are looked up; () if the table has no lookups."""
        if self.is_lake or self.options.read_optimized or self.as_of is not None or self.options.window is not None:
            return ()
        return self.info.descriptor.physical_primary_key if self.strategy == SERVER_SCAN else ()

    def read_function(self, pushdown: Pushdown, schema: StructType) -> LiveRead:
        """The function that reads each task; `schema` is Spark's schema of the requested columns."""
        metadata_names = self._metadata_names
        include = [_INCLUDE[name] for name in pushdown.columns if name in metadata_names]
        return LiveRead(
            self.options.settings,
            self.info,
            tuple(name for name in pushdown.columns if name not in metadata_names),
            spark_arrow_schema(schema),
            pushdown.row_filter,
            pushdown.limit,
            self.strategy or SERVER_SCAN,
            tuple(include),
        )

    @property
    def _metadata_names(self) -> frozenset[str]:
        """The names of the metadata columns."""
        own = CHANGELOG_FIELDS if self.is_changelog else ()
        return frozenset(field.name for field in (*own, *metadata_fields(self.info, CHANGELOG if own else "")))

    def refuse_metadata(self, columns: Sequence[str]) -> None:
        """Raise `UnsupportedOperation` for metadata columns of a log table: its rows in a lake do not have them."""
        metadata = () if self.info.has_primary_key else [name for name in columns if name in self._metadata_names]
        if metadata:
            raise UnsupportedOperation(
                f"table {self.info.path} is read from its lake, too, whose rows have no {', '.join(metadata)}: set the "
                f"read option 'scan.startup.mode' = 'earliest', or read {self.info.path}$changelog, for what is in the "
                "log"
            )

    def _stream_tasks(
        self, connection: Connection, cores: int, pushdown: Pushdown, view: RowView, look_up: bool
    ) -> tuple[list[tuple[Split, ...]], str | None]:
        """The tasks of a table without rows in a lake, and a description of the keys or buckets that filters select.

        `view` has the columns and all filters of `pushdown`.
        """
        info, selection = self.info, None
        if may_fix_keys(view):
            from forebay.spark.reading.key_lookups import selected_buckets

            selection = selected_buckets(connection, view, pushdown)
        if selection is None:
            buckets: Sequence[TableBucket] = matching_buckets(connection, info, pushdown.partition_filters)
            return self._tasks_of(connection, cores, pushdown, buckets), None
        if selection.keys is not None and self.strategy == SERVER_SCAN and look_up:
            keys = tuple((bucket, tuple(of_bucket)) for bucket, of_bucket in selection.keys.items())
            return [(KeyLookupSplit(keys),)] if keys else [], str(selection)
        tasks = self._tasks_of(connection, cores, pushdown, selection.buckets)
        if selection.buckets:
            selection = replace(selection, keys=None)
        return tasks, str(selection) if selection.is_narrow else None

    def _tasks_of(
        self, connection: Connection, cores: int, pushdown: Pushdown, buckets: Sequence[TableBucket]
    ) -> list[tuple[Split, ...]]:
        info = self.info
        if self.strategy is not None:
            return plan_kv(row_counts(connection, info, buckets), cores, pushdown.limit)
        offsets = log_ranges(connection, info, buckets)
        limit = pushdown.limit
        # An offset of a primary-key table's log may hold no change, so there a limit cannot be turned into offsets.
        every_offset_is_a_row = not info.has_primary_key and pushdown.row_filter is None
        if limit is not None and limit <= LIMIT_ONE_TASK_MAX and every_offset_is_a_row:
            return cut_logs_for_limit(offsets, limit)
        return cut_logs(offsets, cores, self.options.records_per_partition)

    def _union_plan(self, connection: Connection, pushdown: Pushdown, view: RowView, look_up: bool) -> UnionPlan | None:
        """The plan of a table with a lake, or of a time range; None if only the stream is read.

        Also None if the lake has no rows yet.
        """
        info, window = self.info, self.options.window
        if self.as_of is not None:
            from forebay.unionread.time_travel import plan_view_as_of

            return plan_view_as_of(connection.table(info), self.as_of, view, pushdown.limit)
        if window is not None:
            if self.is_changelog or self.is_lake:
                raise UnsupportedOperation(f"'{START}' is for tables, not for what stands beside them ({info.path})")
            return plan_time_range(connection.table(info), *window, pushdown.columns, pushdown.filter, pushdown.limit)
        if not self.reads_lake:
            return None
        alone = self.is_lake or self.options.read_optimized
        look_up = look_up and self.strategy == SERVER_SCAN
        plan = plan_view(connection.table(info), view, pushdown.limit, lake_only=alone, look_up=look_up)
        return None if plan.facts.snapshot_id is None and not alone else plan

    def open_snapshot(
        self, connection: Connection, tasks: Sequence[tuple[Split, ...]], find_buckets: FindBuckets | None = None
    ) -> tuple[Sequence[tuple[Split, ...]], TableSnapshot | None]:
        """Tasks, and the table snapshot that they read; None if they read logs, or if the cluster has no snapshots.

        The tasks are `tasks`, and tasks for buckets that `find_buckets` lists and the snapshot contains, but the plan
        does not: those of partitions that were created since.
        """
        buckets = [split.bucket for task in tasks for split in task if isinstance(split, KvBucketSplit)]
        if not buckets or self.strategy != SERVER_SCAN:
            return tasks, None
        snapshot = open_for_query(connection, self.info, buckets, self.options.lease, find_buckets)
        planned = frozenset(buckets)
        new = [] if snapshot is None else [bucket for bucket in snapshot.buckets if bucket not in planned]
        return [*tasks, *((KvBucketSplit(bucket),) for bucket in new)], snapshot

    def partitions(self, cores: int, pushdown: Pushdown, schema: StructType) -> list[SplitsPartition]:
        """The input partitions of a batch of the format: a single one with a limit, which holds per task."""
        connection = shared_connection(self.options.settings)
        look_up = not self.options.lease.is_requested
        plan = self.plan(connection, cores, pushdown, schema, look_up=look_up, modes=ReadMode.ROWS)
        tasks = keeping_limit(plan.tasks, pushdown.limit)
        snapshot = None
        if self.options.lease.is_requested:
            # This process ends before the tasks begin, and is not notified when the last one has ended.
            view = RowView(self.info, (), pushdown.filter)
            find_buckets = None if self.reads_lake else self._bucket_finder(connection, pushdown, view)
            tasks, opened = self.open_snapshot(connection, tasks, find_buckets)
            tasks = keeping_limit(tasks, pushdown.limit)
            snapshot = None if opened is None else opened.keep()
        return task_partitions(tasks, snapshot)

    def plan(
        self,
        connection: Connection,
        cores: int,
        pushdown: Pushdown,
        schema: StructType,
        *,
        look_up: bool = True,
        modes: ReadMode = DEFAULT_MODES,
        serves: Serves = only_local,
    ) -> ScanPlan:
        """Return what tasks read and, for a table with a lake, the part that Spark can read directly: local
        files, and those of stores that it `serves`.

        Keys that the filters fix are looked up (`look_up`) when the plan is opened, or when a task reads. A query that
        selects the bucket column scans each bucket instead. `modes` are restricted to those that the options allow.
        """
        modes &= self.options.modes
        if self.reads_lake:
            self.refuse_metadata(pushdown.columns)
        read = self.read_function(pushdown, schema)
        pushdown = replace(pushdown, columns=read.columns)
        if self.strategy is not None and read.include:
            modes, look_up = modes & ~ReadMode.FILES, False
        view = RowView(self.info, pushdown.columns, pushdown.filter)
        union = self._union_plan(connection, pushdown, view, look_up)
        native, beside = None, list[tuple[Split, ...]]()
        if union is None:
            tasks, selection = self._stream_tasks(connection, cores, pushdown, view, look_up)
        else:
            selection = union.selection
            covered = frozenset(matching_buckets(connection, self.info, pushdown.partition_filters))
            count = partial(row_counts, connection, self.info)
            how = (covered, count, cores, pushdown.limit, self.options.records_per_partition)
            tasks = lake_tasks(union, *how)
            share = native_share(union, covered, pushdown.limit, serves) if ReadMode.FILES in modes else None
            if share is not None:
                native = share.native_files()
                beside = lake_tasks(share.rest, *how)

        def open_tasks(tasks: Sequence[tuple[Split, ...]], find_buckets: FindBuckets | None = None) -> OpenedScan:
            """Pins the table snapshot that the tasks read, if any. It is released when it is collected."""
            if any(isinstance(split, KeyLookupSplit) for task in tasks for split in task):
                from forebay.spark.reading.key_lookups import with_inline_rows

                pin = partial(open_for_query, connection, self.info, lease=self.options.lease)
                tasks, snapshot = with_inline_rows(connection, view, tasks, pin)
            else:
                tasks, snapshot = self.open_snapshot(connection, tasks, find_buckets)
            return OpenedScan(task_partitions(tasks, snapshot), snapshot)

        direct = self._direct(connection, read, tasks, modes)
        rows = estimated_rows(tasks, pushdown.limit)
        find_current = None if union is not None else self._bucket_finder(connection, pushdown, view)
        open_current = None if find_current is None else partial(open_tasks, find_buckets=find_current)
        return ScanPlan(read, tasks, rows, open_tasks, native, beside, selection, direct, open_current)

    def _bucket_finder(self, connection: Connection, pushdown: Pushdown, view: RowView) -> FindBuckets | None:
        """A function that lists the table's current buckets that `pushdown` selects; None if it is not needed.

        It is not needed for tables without partitions, nor for logs, which are read up to the time of the plan.
        """
        info = self.info
        if not info.is_partitioned or self.strategy != SERVER_SCAN:
            return None

        def find_buckets() -> Sequence[TableBucket]:
            if may_fix_keys(view):
                from forebay.spark.reading.key_lookups import selected_buckets

                selection = selected_buckets(connection, view, pushdown)
                if selection is not None:
                    return selection.buckets
            return matching_buckets(connection, info, pushdown.partition_filters)

        return find_buckets

    def _direct(
        self, connection: Connection, read: LiveRead, tasks: Sequence[tuple[Split, ...]], modes: ReadMode
    ) -> DirectReading | str | None:
        """How the JVM reads the logs of a log table, or buckets, itself; or the reason why it does not."""
        buckets = [split.bucket for task in tasks for split in task if isinstance(split, KvBucketSplit)]
        if self.is_changelog or (self.info.has_primary_key and not buckets) or read.strategy != SERVER_SCAN:
            return None
        if ReadMode.DIRECT not in modes:
            return f"{switch_of(ReadMode.DIRECT)} is false"
        from forebay.spark.reading.direct import direct_buckets, direct_logs

        return direct_buckets(connection, read, buckets) if buckets else direct_logs(connection, read)


def open_for_query(
    connection: Connection,
    info: TableInfo,
    buckets: Sequence[TableBucket],
    lease: SnapshotLease,
    find_buckets: FindBuckets | None = None,
) -> TableSnapshot | None:
    """A snapshot of these buckets; None if the cluster has no table snapshots, or there is nothing to read.

    It includes the buckets that `find_buckets` lists (`forebay.client.reading.table_snapshot.open_snapshot_with`).

    It is released when this process collects it. Raises `LimitExceeded` if the server has too many snapshots open.
    """
    cluster = connection.cluster
    duration = round((LEASE_SECONDS if lease.seconds is None else lease.seconds) * 1000)
    name = lease.lease_id or f"spark {info.path}"

    def attempt() -> TableSnapshot:
        if find_buckets is None:
            return open_snapshot_of(connection, info, buckets, duration, name)
        return open_snapshot_with(connection, info, buckets, find_buckets, duration, name)

    snapshot = cluster.retrying(attempt, stale=lambda: cluster.refresh([info.path]))
    if snapshot.snapshot_id is None:
        return None
    snapshot.release_when_collected()
    return snapshot


def task_partitions(tasks: Sequence[tuple[Split, ...]], snapshot: TableSnapshot | None) -> list[SplitsPartition]:
    """The input partition of each task: its splits, and the part of the snapshot that it needs."""
    partitions = []
    for task in tasks:
        buckets = [split.bucket for split in task if isinstance(split, KvBucketSplit)]
        partitions.append(
            SplitsPartition(task, None if snapshot is None or not buckets else snapshot.of_buckets(buckets))
        )
    return partitions


def matching_buckets(
    connection: Connection, info: TableInfo, partition_filters: Sequence[Predicate] = ()
) -> list[TableBucket]:
    """The buckets of the partitions that the filters select."""
    if not info.is_partitioned:
        return [TableBucket(info.table_id, number) for number in range(info.bucket_count)]
    keys = [info.schema.column(name) for name in info.descriptor.partition_keys]
    existing = connection.table(info).partitions()
    return [
        TableBucket(info.table_id, number, partition.partition_id)
        for partition in matching_partitions(existing, keys, partition_filters)
        for number in range(info.bucket_count)
    ]


def log_ranges(
    connection: Connection, info: TableInfo, buckets: Sequence[TableBucket]
) -> dict[TableBucket, tuple[int, int]]:
    """The current (earliest, latest) offsets of each bucket. Sends no request if there are no buckets."""
    if not buckets:
        return {}
    stops = connection.admin.list_offsets(info, "latest", buckets=buckets)
    starts = connection.admin.list_offsets(info, "earliest", buckets=buckets)
    return {bucket: (min(starts[bucket], stops[bucket]), stops[bucket]) for bucket in buckets}


def row_counts(
    connection: Connection, info: TableInfo, buckets: Sequence[TableBucket]
) -> dict[TableBucket, int | None]:
    """The row count of each bucket; None if the cluster does not count rows."""
    if not buckets:
        return {}
    partitions = None
    if info.is_partitioned:
        partition_ids = {bucket.partition_id for bucket in buckets}
        partitions = [p.name for p in connection.table(info).partitions() if p.partition_id in partition_ids]
    try:
        counts = connection.admin.table_stats(info, partitions).row_counts
    except UnsupportedOperation:
        return dict.fromkeys(buckets)
    return {bucket: counts.get(bucket) for bucket in buckets}


# ---- splits -> tasks: pure functions of counts and offsets ----------------------------------------------------------


def lake_tasks(
    plan: UnionPlan,
    covered: Collection[TableBucket],
    count_rows: Callable[[Sequence[TableBucket]], Mapping[TableBucket, int | None]],
    cores: int,
    limit: int | None,
    rows_per_task_max: int | None,
) -> list[tuple[Split, ...]]:
    """The splits of each task of a union read. `covered` are the buckets that filters on partitions select.

    Splits with lake rows are read by forebay.unionread: one for each piece of the lake, or for each bucket whose
    lake rows a log range overrides. Logs and buckets that only the servers have are read as in tables without a lake.
    For a small limit there is one task, which reads the splits one after the other.
    """
    logs = {s.bucket: (s.start, s.stop) for s in plan.splits if isinstance(s, LogSplit) and s.bucket in covered}
    kv = [s.bucket for s in plan.splits if isinstance(s, KvBucketSplit) and s.bucket in covered]
    counts = count_rows(kv)
    pieces: list[Split] = [split for split in plan.splits if isinstance(split, KeyLookupSplit)]
    pieces += [
        BoundUnionSplit(plan.reader, split)
        for split in plan.splits
        if not isinstance(split, LogSplit | KvBucketSplit | KeyLookupSplit)
    ]
    pieces += [KvBucketSplit(bucket, counts.get(bucket)) for bucket in kv]
    log_tasks = cut_logs(logs, cores, rows_per_task_max)
    if limit is not None and limit <= LIMIT_ONE_TASK_MAX:
        together = (*pieces, *(split for task in log_tasks for split in task))
        return [together] if together else []
    return [*deal_out(pieces, cores), *log_tasks]


def cut_logs(
    offsets: Mapping[TableBucket, tuple[int, int]], cores: int, rows_per_task_max: int | None = None
) -> list[tuple[Split, ...]]:
    """The logs between (start, stop) offsets, cut into tasks of the same number of records, in order.

    `rows_per_task_max` (`scan.maxRecordsPerPartition`) limits the records of a task.
    """
    total = sum(max(0, stop - start) for start, stop in offsets.values())
    tasks = task_count(total, cores)
    if rows_per_task_max is not None:
        tasks = max(tasks, -(-total // rows_per_task_max))
    share = max(1, -(-total // tasks))
    planned: list[tuple[Split, ...]] = []
    current: list[Split] = []
    room = share
    for bucket, (first, stop) in offsets.items():
        start = first
        while start < stop:
            end = min(stop, with_epoch(start + room, epoch_of(stop)))
            current.append(LogSplit(bucket, start, end))
            room -= end - start
            start = end
            if room == 0:
                planned.append(tuple(current))
                current, room = [], share
    if current:
        planned.append(tuple(current))
    return planned


def cut_logs_for_limit(offsets: Mapping[TableBucket, tuple[int, int]], limit: int) -> list[tuple[Split, ...]]:
    """The first records of as many logs as `limit` rows need, for one task. Every record counts as a row."""
    splits: list[Split] = []
    remaining = limit
    for bucket, (start, stop) in offsets.items():
        if remaining <= 0:
            break
        if start < stop:
            end = min(stop, with_epoch(start + remaining, epoch_of(stop)))
            splits.append(LogSplit(bucket, start, end))
            remaining -= end - start
    return [tuple(splits)] if splits else []


def plan_kv(counts: Mapping[TableBucket, int | None], cores: int, limit: int | None = None) -> list[tuple[Split, ...]]:
    """Scans of buckets with these row counts (None: unknown), as tasks.

    Buckets that were empty when they were counted are read too, because they may have rows by now.
    """
    splits: list[Split] = [KvBucketSplit(bucket, rows) for bucket, rows in counts.items()]
    if splits and limit is not None and limit <= LIMIT_ONE_TASK_MAX:
        return [tuple(splits)]
    return deal_out(splits, cores)


def estimated_rows(tasks: Sequence[Sequence[Split]], limit: int | None = None) -> int | None:
    """The rows of the tasks before filters; None if any bucket is not counted."""
    total = 0
    for split in (split for task in tasks for split in task):
        if split.rows is None:
            return None
        total += split.rows
    return total if limit is None else min(total, limit)
