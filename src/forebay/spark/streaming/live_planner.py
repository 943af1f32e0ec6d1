"""Plans the micro-batches of a stream of a cluster's table: the beginning, the end of each batch, and its tasks.

A stream of a log table has the appended rows. A stream of a primary-key table has, in each micro-batch, the newest row
of every key that was written and not deleted, each key once; with `scan.delete.behavior` = include it also has the
deleted keys. A stream of `t$changelog` has every change, deletes and old images included, with `_change_type`,
`_log_offset` and `_commit_timestamp`; `t$binlog` has each update in one row; CHANGES has Spark's columns. With
`scan.startup.mode` full (the default for tables) the stream begins with all rows of the table; in a changelog these are
inserts with the offset -1 and no time.

`forebay.unionread.streaming` computes offsets; this module calls servers and lake for it. A `LiveStreamPlanner` lives
in the Python process that Spark runs for a query, and caches what is expensive to request. A restart needs nothing of
the cache: offsets have all state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.types import StructType

from forebay.base.ambient import Clock
from forebay.base.errors import CorruptData, ErrorCode, ForebayError, NotFound, UnsupportedOperation
from forebay.client.cluster.offsets import EARLIEST, LATEST, list_offsets
from forebay.client.cluster.partitions import list_partitions
from forebay.client.connection import Connection, shared_connection
from forebay.client.reading.log_epochs import check_offsets
from forebay.client.reading.table_snapshot import TableSnapshot
from forebay.client.row_view import RowView
from forebay.metadata.log_offset import LogOffset, epoch_of
from forebay.metadata.table import TableBucket
from forebay.spark import options
from forebay.spark.options import FULL, SERVER_SCAN, StreamLimits, StreamOptions
from forebay.spark.reading.live_changes import ChangesScan
from forebay.spark.reading.live_plan import ClusterScan, cut_logs, open_for_query, row_counts, task_partitions
from forebay.spark.reading.live_read import BoundUnionSplit, Split
from forebay.spark.reading.plan import Pushdown, SplitsPartition, deal_out
from forebay.spark.streaming.planner import StreamPlanner
from forebay.unionread.expired_records import lake_records
from forebay.unionread.reading import UnionReader
from forebay.unionread.splits import KvBucketSplit, LakeSnapshotAndLogSplit, LogSplit
from forebay.unionread.streaming import (
    FullRead,
    MicroBatch,
    StreamOffset,
    capped,
    lake_pieces,
    lake_snapshot_to_begin_with,
    micro_batch,
    next_offset,
)
from forebay.unionread.time_range import offsets_at

T = TypeVar("T")

GONE = (ErrorCode.PARTITION_NOT_EXISTS, ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION)
"""The codes with which servers answer for a partition that was dropped."""

_OF_BUCKET = (KvBucketSplit, LakeSnapshotAndLogSplit, LogSplit)

_BEHIND_SECONDS = 10.0
"""How long the end of a log may be behind the stream's offset, because a snapshot can be ahead of the log's end."""


class LiveStreamPlanner(StreamPlanner[StreamOffset]):
    """Plans the micro-batches of one stream of a cluster's table."""

    def __init__(
        self, scan: ClusterScan, options: StreamOptions, pushdown: Pushdown, schema: StructType, cores: int
    ) -> None:
        if options.mode == FULL and scan.info.lake_enabled and not scan.is_changelog:
            scan.refuse_metadata(pushdown.columns)
        super().__init__(str(scan.info.path), options.limits)
        self._scan, self._options, self._pushdown, self._cores = scan, options, pushdown, cores
        self._info = scan.info
        self._function = scan.read_function(pushdown, schema)
        self._columns = self._function.columns
        self._partitions: list[int] | None = None
        self._listed_at = 0.0
        self._target: dict[TableBucket, int] | None = None
        self._snapshots: dict[str, TableSnapshot] = {}
        self._pieces: tuple[FullRead, list[Split]] | None = None

    @property
    def _connection(self) -> Connection:
        return shared_connection(self._options.read.settings)

    def offset(self, values: Mapping[str, Any]) -> StreamOffset:
        return StreamOffset.from_json(values)

    # ---- beginning --------------------------------------------------------------------------------------------------

    def _beginning(self) -> StreamOffset:
        log, full = self._known_partitions(self._begin)
        return StreamOffset(self._info.table_id, log, full, is_first=True)

    def _begin(self) -> tuple[dict[TableBucket, int], FullRead | None]:
        buckets = self._buckets()
        if isinstance(self._scan, ChangesScan):
            return self._scan.starts(self._connection, buckets), None
        match self._options.mode:
            case options.LATEST:
                return self._ask(buckets, LATEST), None
            case options.TIMESTAMP:
                return self._at_time(buckets, self._options.timestamp_ms or 0), None
            case options.FULL if self._info.has_primary_key or self._info.lake_enabled:
                return self._begin_full(buckets)
            case _:
                return self._ask(buckets, EARLIEST), None

    def _at_time(self, buckets: Sequence[TableBucket], time_ms: int) -> dict[TableBucket, int]:
        """The first offsets written at `time_ms` or later; the ends of the logs for a time in the future."""
        offsets = offsets_at(self._connection.table(self._info), buckets, time_ms) if buckets else {}
        earliest = self._ask(buckets, EARLIEST)
        return {bucket: max(offsets[bucket], earliest[bucket]) for bucket in buckets}

    def _begin_full(self, buckets: Sequence[TableBucket]) -> tuple[dict[TableBucket, int], FullRead | None]:
        table = self._connection.table(self._info)
        first_snapshot = lake_snapshot_to_begin_with(table, buckets, lambda missing: self._ask(missing, EARLIEST))
        snapshot, identity = (None, None) if first_snapshot is None else first_snapshot
        offsets = {} if snapshot is None else snapshot.log_offsets
        log = {bucket: offsets[bucket] for bucket in buckets if bucket in offsets}
        rest = [bucket for bucket in buckets if bucket not in offsets]
        pinned = None
        if not self._info.has_primary_key:
            log |= self._ask(rest, EARLIEST)
        elif rest:
            read_options = self._options.read
            if read_options.strategy == SERVER_SCAN:  # None if the cluster has no table snapshots
                pinned = open_for_query(self._connection, self._info, rest, read_options.lease)
            if pinned is not None:
                pinned.keep()  # it outlives this process
            log |= self._from_the_beginning(rest) if pinned is None else pinned.log_offsets
        read = () if pinned is None else tuple(bucket for bucket in rest if log[bucket] > 0)
        if pinned is not None and not read:
            pinned.release()
        if snapshot is None and not read:
            return log, None
        lake_id = None if snapshot is None else snapshot.snapshot_id
        if pinned is None or pinned.snapshot_id is None or not read:
            return log, FullRead(lake_id, lake_identity=identity)
        self._snapshots[pinned.snapshot_id] = pinned
        return log, FullRead(lake_id, pinned.snapshot_id, read, lake_identity=identity)

    def _from_the_beginning(self, buckets: Sequence[TableBucket]) -> dict[TableBucket, int]:
        """Where there is no table snapshot the whole changelog comes to the same rows, if it is all there."""
        starts = self._ask(buckets, EARLIEST)
        truncated = [bucket for bucket, start in starts.items() if start > 0]
        if truncated:
            raise UnsupportedOperation(
                f"a stream cannot begin with all rows of table {self._info.path}: this cluster has no table snapshots, "
                f"and the beginning of the changelog of bucket {truncated[0]} is gone. Begin at 'latest' or 'earliest'"
            )
        return starts

    # ---- end of a batch ---------------------------------------------------------------------------------------------

    @property
    def _planner_clock(self) -> Clock:
        return self._connection.clock

    def _advance(self, start: StreamOffset, limits: StreamLimits) -> tuple[StreamOffset, int | None]:
        pieces: list[int | None] = [] if start.full is None else [piece.rows for piece in self.pieces(start)]
        ends = self._ends(start)
        self.newest = StreamOffset(self._info.table_id, ends)
        if self._target is not None:
            ends = capped(start, ends, self._target)
        end = next_offset(start, ends, pieces, limits.rows)
        may_wait = start.full is None and self._target is None
        return end, sum(stop - start.log.get(bucket, 0) for bucket, stop in end.log.items()) if may_wait else None

    def stop_at_now(self) -> None:
        self._partitions = None
        self._target = self._known_partitions(lambda: self._ask(self._buckets(), LATEST))

    def _ends(self, start: StreamOffset) -> dict[TableBucket, int]:
        clock = self._connection.clock
        deadline = clock.monotonic() + _BEHIND_SECONDS
        while True:
            ends = self._known_partitions(lambda: self._ask(self._buckets(), LATEST))
            self._check_epochs(start, ends)
            behind = [bucket for bucket, end in ends.items() if end < start.log.get(bucket, 0)]
            if not behind:
                return ends
            if clock.monotonic() > deadline:
                raise CorruptData(
                    f"the log of bucket {behind[0]} of table {self._info.path} ends at offset {ends[behind[0]]}, and "
                    f"the stream is at {start.log[behind[0]]}: records were lost, or the checkpoint is another table's"
                )
            clock.sleep(_BEHIND_SECONDS / 50)

    def _check_epochs(self, start: StreamOffset, ends: Mapping[TableBucket, int]) -> None:
        """Raise `InvalidRequest` if the stream has read records that the servers never had, or have lost."""
        doubtful = {
            bucket: LogOffset(offset, epoch)
            for bucket, offset in start.log.items()
            if bucket in ends
            and (epoch := epoch_of(offset)) is not None
            and (epoch != epoch_of(ends[bucket]) or offset > ends[bucket])
        }
        check_offsets(self._connection, self._info, doubtful)

    def _check(self, offset: StreamOffset) -> None:
        if offset.table_id != self._info.table_id:
            raise self.recreated()

    # ---- tasks of a batch -------------------------------------------------------------------------------------------

    def pieces(self, start: StreamOffset) -> list[Split]:
        """All pieces of the full read of which `start` is a part, in the order of their numbers."""
        full = start.full
        if full is None:
            return []
        key = replace(full, done=0)
        if self._pieces is None or self._pieces[0] != key:
            self._pieces = (key, self._make_pieces(key))
        return self._pieces[1]

    def _make_pieces(self, full: FullRead) -> list[Split]:
        pieces: list[Split] = []
        connection = self._connection
        if full.lake_snapshot is not None:
            table = connection.table(self._info)
            reader, splits = lake_pieces(
                table, full.lake_snapshot, self._columns, self._pushdown.row_filter, identity=full.lake_identity
            )
            pieces += [BoundUnionSplit(reader, split) for split in splits]
        if full.buckets:
            present = [bucket for bucket in full.buckets if self._exists(bucket)]
            counts = row_counts(connection, self._info, present)
            pieces += [KvBucketSplit(bucket, counts.get(bucket)) for bucket in full.buckets]
        return pieces

    def tasks(self, start: StreamOffset, end: StreamOffset) -> list[SplitsPartition]:
        """The tasks of a batch. The same offsets always give the same rows.

        Partitions that were dropped meanwhile are left out.
        """
        batch = micro_batch(start, end)
        self._check(batch.start)
        if self._info.is_partitioned and (batch.logs or batch.full is not None):
            self._partitions = None
        pieces: list[Split] = self.pieces(batch.start)[batch.first_piece : batch.stop_piece]
        pieces = [p for p in pieces if not isinstance(p, KvBucketSplit) or self._exists(p.bucket)]
        logs = {bucket: span for bucket, span in batch.logs.items() if self._exists(bucket)}
        expired, logs = self._from_the_lake(logs)
        pieces += expired
        if self._info.has_primary_key and not self._scan.is_changelog:  # merged rows rather than changes
            read = self._options.read.settings
            reader = UnionReader(read, RowView(self._info, self._columns, self._pushdown.row_filter))
            for bucket, (first, stop) in logs.items():
                # One split for a bucket: what is known of a key must not come to two tasks.
                pieces.append(BoundUnionSplit(reader, LakeSnapshotAndLogSplit(bucket, (), first, stop)))
            logs = {}
        tasks = cut_logs(logs, self._cores)
        tasks += deal_out(pieces, self._cores)
        return task_partitions(tasks, self._snapshot(batch))

    def _from_the_lake(
        self, logs: dict[TableBucket, tuple[int, int]]
    ) -> tuple[list[Split], dict[TableBucket, tuple[int, int]]]:
        """The records of a batch that are no longer in the log, from the lake, and what is to be read from the log.

        Raises `NotFound` if the lake does not have them. A task could not say what to do in Spark.
        """
        try:
            starts = self._ask(list(logs), EARLIEST)
        except ForebayError as e:
            if e.code not in GONE or not self._info.is_partitioned:
                raise
            return [], logs  # a partition was dropped just now; tasks find out which
        expired = {
            bucket: (first, min(stop, starts[bucket]))
            for bucket, (first, stop) in logs.items()
            if first < starts[bucket]
        }
        if not expired:
            return [], logs
        try:
            if self._function.include:
                raise NotFound("its lake cannot stand in: rows there have no metadata columns")
            table, row_filter = self._connection.table(self._info), self._pushdown.row_filter
            reader, splits = lake_records(table, expired, starts, self._columns, row_filter)
        except NotFound as e:
            raise self._expired(expired, starts, e) from None
        rest = {b: (max(first, starts[b]), stop) for b, (first, stop) in logs.items() if starts[b] < stop}
        return [BoundUnionSplit(reader, split) for split in splits], rest

    def _expired(
        self, expired: Mapping[TableBucket, tuple[int, int]], starts: Mapping[TableBucket, int], why: NotFound
    ) -> NotFound:
        bucket, (first, _) = next(iter(expired.items()))
        where = f" of partition {bucket.partition_id}" if bucket.partition_id is not None else ""
        return NotFound(
            f"the stream of table {self.name} goes on at offset {first} of bucket {bucket.bucket}{where}, "
            f"but the records before offset {starts[bucket]} have expired ('table.log.ttl'): {starts[bucket] - first} "
            f"records were removed before the query has read them, and {why.message}. Start it with another "
            "checkpoint; 'scan.startup.mode' says where it begins",
            ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
        )

    def _snapshot(self, batch: MicroBatch) -> TableSnapshot | None:
        """The table snapshot that a batch reads, possibly opened by another process."""
        full = batch.full
        if full is None or full.table_snapshot is None:
            return None
        snapshot = self._snapshots.get(full.table_snapshot)
        if snapshot is None:
            offsets = {bucket: batch.start.log[bucket] for bucket in full.buckets}
            snapshot = TableSnapshot(
                self._connection, self._info, full.table_snapshot, offsets, dict.fromkeys(full.buckets)
            )
            self._snapshots[full.table_snapshot] = snapshot
        return snapshot

    def read_until(self, offset: StreamOffset) -> None:
        """Release the snapshots that are no longer needed."""
        if offset.full is not None:
            return
        while self._snapshots:
            self._snapshots.popitem()[1].release()
        self._pieces = None

    # ---- in tasks ---------------------------------------------------------------------------------------------------

    def read(self, partition: SplitsPartition) -> Iterator[pa.RecordBatch]:
        if not self._info.is_partitioned:
            yield from self._function.read(partition)
            return
        for split in partition.splits:
            yield from self._read_while_it_exists(split, partition)

    def _read_while_it_exists(self, split: Split, partition: SplitsPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split, or those that were read before its partition was dropped."""
        try:
            yield from self._function.read(SplitsPartition((split,), partition.snapshot))
        except ForebayError as e:
            inner = split.split if isinstance(split, BoundUnionSplit) else split
            # A split that is only in the lake has no partition to drop. (Streams do not look up keys.)
            partition_id = inner.bucket.partition_id if isinstance(inner, _OF_BUCKET) else None
            if e.code not in GONE or partition_id is None:
                raise
            existing = shared_connection(self._options.read.settings).table(self._info).partitions()
            if any(p.partition_id == partition_id for p in existing):
                raise

    # ---- partitions and offsets -------------------------------------------------------------------------------------

    def _ask(self, buckets: Sequence[TableBucket], place: str | int) -> dict[TableBucket, int]:
        return list_offsets(self._connection.cluster, self._info, buckets, place) if buckets else {}

    def _buckets(self) -> list[TableBucket]:
        """The current buckets. Partitions are looked up again after the discovery interval."""
        info = self._info
        numbers = range(info.bucket_count)
        if not info.is_partitioned:
            return [TableBucket(info.table_id, number) for number in numbers]
        now = self._connection.clock.monotonic()
        if self._partitions is None or now - self._listed_at >= self._options.discovery_seconds:
            self._partitions = sorted(p.partition_id for p in list_partitions(self._connection.cluster, info.path))
            self._listed_at = now
        return [TableBucket(info.table_id, number, partition) for partition in self._partitions for number in numbers]

    def _exists(self, bucket: TableBucket) -> bool:
        if bucket.partition_id is None:
            return True
        self._buckets()
        return bucket.partition_id in (self._partitions or ())

    def _known_partitions(self, ask: Callable[[], T]) -> T:
        """The result of `ask()`, which is repeated with the current partitions if one of them has been dropped."""
        try:
            return ask()
        except ForebayError as e:
            if e.code not in GONE or not self._info.is_partitioned:
                raise
        self._partitions = None
        return ask()
