"""Splits of a round, and a worker's task for one: from one bucket's log, or its current rows, into lake files.

A *log split* is the range [start, stop) of a bucket's log. A *snapshot split* is all current rows of a bucket of a
primary-key table at one log offset: the first round of such a bucket. They are those of a table snapshot, if the round
has one; otherwise the bucket is read in its current state, whose offset is known only then.

Rules:
- A split's `TableInfo` is at least as new as every row in its range, so no column is lost (see `plan_round`). A
  snapshot split without a table snapshot checks that after reading, and restarts if a column was added.
- The end offset of a log split is the reader's position, not the last row's offset: a range that ends in batches
  without rows is done, too, and is not read again.
- A split that is cut short (`should_cut`) ends at a batch of the log. It always takes at least one, so that rounds
  which are always cut still advance, unless the log returns nothing for a while: a bucket without a leader must hold up
  neither the other buckets nor the end of the service. Snapshot splits cannot be cut.
- A bucket whose partition is dropped in the meantime is no failure: its files are removed, and the round continues
  without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import ErrorCode, ForebayError, InternalError, NotFound, Unavailable
from forebay.client.arrays import array_of, integers
from forebay.client.cluster.partitions import list_partitions
from forebay.client.connection import Connection
from forebay.client.reading.live_cursor import bucket_scan
from forebay.client.reading.table_snapshot import TableSnapshot
from forebay.codec.log.log_batch import ChangeType
from forebay.lake.records import ChangeRows
from forebay.lake.tiering import LakeTieringFactory, LakeWriter, WriterContext
from forebay.metadata.table import TableBucket, TableInfo

ATTEMPTS_MAX = 3
"""Maximum attempts at a split on one worker before its round fails."""

_POLL_SECONDS = 0.5
"""How long one poll of the log waits; between polls, the round may be cancelled or cut."""

_QUIET_SECONDS = 3.0
"""A log that returns nothing for this long may belong to a dropped partition, so the cluster is asked, and rounds that
are cut do not wait for it."""

_MAY_BE_GONE = (
    ErrorCode.PARTITION_NOT_EXISTS,
    ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
    ErrorCode.TABLE_NOT_EXIST,
)
_SNAPSHOT_LOST = (ErrorCode.SCANNER_EXPIRED, ErrorCode.UNKNOWN_SCANNER_ID)
_METADATA = ("change_type", "offset", "timestamp")


@dataclass(frozen=True, slots=True)
class TieringSplit:
    """The work of one worker in one round: see the module. `start` and `stop` are None for snapshots.

    `partition` are the values by partition key.
    """

    bucket: TableBucket
    partition: Mapping[str, str] | None = None
    start: int | None = None
    stop: int | None = None

    @property
    def is_snapshot(self) -> bool:
        return self.start is None

    @property
    def records(self) -> int:
        """The number of log offsets that the split covers; 0 for snapshots, where it is unknown."""
        return 0 if self.start is None or self.stop is None else self.stop - self.start


@dataclass(frozen=True, slots=True)
class SplitTask:
    """A split with everything that a worker needs except a connection. Picklable.

    `pinned` is the table snapshot that a snapshot split is read from; without one the current rows are read.
    """

    info: TableInfo
    factory: LakeTieringFactory
    split: TieringSplit
    attempt: str
    deadline_ms: int | None = None
    pinned: TableSnapshot | None = None


@dataclass(frozen=True, slots=True)
class SplitResult:
    """The result of a split. Picklable.

    `end_offset` is the end offset of the written records; None if the partition is `gone`. `written` is the writer's
    result, None without rows. `read_bytes` are Arrow bytes; timestamps are the oldest and the newest commit time of a
    log's records in milliseconds. `was_cut`: there are more records below the split's stop offset.
    """

    bucket: TableBucket
    end_offset: int | None
    written: Any = None
    rows: int = 0
    read_bytes: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    was_cut: bool = False

    @property
    def gone(self) -> bool:
        return self.end_offset is None


def never() -> bool:
    """Return False: the split is never cut."""
    return False


def write_split(
    task: SplitTask,
    connection: Connection,
    should_cut: Callable[[], bool] = never,
    check: Callable[[], None] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> SplitResult:
    """Write a split's rows into lake files; return the result. `check` is called now and then; its errors end the work.

    Transient failures, and scans that the server has ended, are retried a few times. A table snapshot whose lease has
    expired, or whose server has restarted, does not come back: the current rows are then read, with the log
    offset that belongs to them. After an error, no files of this call are left behind.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        writing = _Writing(task, f"{task.attempt}-{attempt}", connection, should_cut, check, clock)
        try:
            return writing.run()
        except ForebayError as e:
            writing.abort()
            if e.code in _MAY_BE_GONE and _is_gone(connection, task):
                return SplitResult(task.split.bucket, None)
            if attempt == ATTEMPTS_MAX or not (isinstance(e, Unavailable) or e.code in _SNAPSHOT_LOST):
                raise
            if e.code in _SNAPSHOT_LOST:
                task = replace(task, pinned=None)
        except BaseException:
            writing.abort()
            raise
    raise InternalError("a split was neither written nor failed")


def _is_gone(connection: Connection, task: SplitTask) -> bool:
    """Return whether the split's partition was dropped. Raises `NotFound` if the whole table was."""
    info, bucket = task.info, task.split.bucket
    current = connection.cluster.table_info(info.path)
    if current.table_id != info.table_id:
        raise _table_recreated(current)
    if bucket.partition_id is None:
        return False
    return bucket.partition_id not in {p.partition_id for p in list_partitions(connection.cluster, info.path)}


def _table_recreated(current: TableInfo) -> NotFound:
    return NotFound(f"table {current.path} was dropped and recreated while it was tiered", ErrorCode.TABLE_NOT_EXIST)


@dataclass
class _Writing:
    """One attempt at a split."""

    task: SplitTask
    attempt: str
    connection: Connection
    cut: Callable[[], bool]
    check: Callable[[], None] | None
    clock: Clock
    writer: LakeWriter | None = None
    rows: int = 0
    read_bytes: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    was_cut: bool = field(default=False)

    def run(self) -> SplitResult:
        split = self.task.split
        if not split.is_snapshot:
            end = self._copy_log(split.start or 0, split.stop or 0)
        else:
            end = self._copy_current() if self.task.pinned is None else self._copy_pinned(self.task.pinned)
        written = None if self.writer is None else self.writer.complete()
        return SplitResult(
            split.bucket, end, written, self.rows, self.read_bytes, self.oldest_ms, self.newest_ms, self.was_cut
        )

    def abort(self) -> None:
        """Remove the written files."""
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.abort()

    def _should_cut(self) -> bool:
        deadline = self.task.deadline_ms
        return self.cut() or (deadline is not None and self.clock.now_ms() >= deadline)

    def _checked(self) -> None:
        if self.check is not None:
            self.check()

    def _write(self, info: TableInfo, records: ChangeRows) -> None:
        if self.writer is None:
            split = self.task.split
            context = WriterContext(info, split.bucket.bucket, split.partition, self.attempt)
            self.writer = self.task.factory.create_writer(context)
        self.writer.write(records)
        self.rows += len(records)
        self.read_bytes += records.rows.nbytes

    # ---- logs -------------------------------------------------------------------------------------------------------

    def _copy_log(self, start: int, stop: int) -> int:
        """Write a range of the log; return the offset after it."""
        info, bucket = self.task.info, self.task.split.bucket
        table = self.connection.table(info)
        heard = self.clock.monotonic()
        with table.changes({bucket: start}, {bucket: stop}, include=_METADATA) as reader:
            while not reader.finished:
                self._checked()
                batch = reader.poll(_POLL_SECONDS)
                now = self.clock.monotonic()
                if batch is None:
                    if now - heard > _QUIET_SECONDS:
                        self._raise_if_gone()
                        if self._should_cut():
                            break
                        heard = now
                    continue
                heard = now
                self._write(info, self._records(batch))
                if self._should_cut():
                    break
            end = reader.position[bucket]
        self.was_cut = end < stop
        return end

    def _records(self, batch: pa.RecordBatch) -> ChangeRows:
        """Return a reader's batch (change type, offset, timestamp, then the rows) as records."""
        types, offsets, timestamps = (batch.column(i) for i in range(len(_METADATA)))
        times = timestamps.view(pa.int64())
        oldest, newest = (bound.as_py() for bound in pc.min_max(times).values())
        self.oldest_ms = oldest if self.oldest_ms is None else min(oldest, self.oldest_ms)
        self.newest_ms = newest if self.newest_ms is None else max(newest, self.newest_ms)
        names = batch.schema.names[len(_METADATA) :]
        rows = pa.RecordBatch.from_arrays(
            batch.columns[len(_METADATA) :],
            schema=pa.schema([batch.schema.field(i + len(_METADATA)) for i in range(len(names))]),
        )
        kinds = None
        if self.task.info.has_primary_key:
            # A reader's kinds are those of a changelog: 0 is an insert, and the rest follows the order of ChangeType.
            kinds = array_of((integers(types.indices) + ChangeType.INSERT).astype("uint8"))
        return ChangeRows(rows, offsets, times, kinds)

    def _raise_if_gone(self) -> None:
        if _is_gone(self.connection, self.task):
            raise NotFound("the partition was dropped", ErrorCode.PARTITION_NOT_EXISTS)

    # ---- current rows -----------------------------------------------------------------------------------------------

    def _copy_pinned(self, snapshot: TableSnapshot) -> int:
        """Write the rows of the bucket in the table snapshot; return their log offset."""
        bucket = self.task.split.bucket
        log_offset = snapshot.log_offsets[bucket]
        for batch in snapshot.on(self.connection).scan_bucket(bucket):
            self._write_current(self.task.info, batch, log_offset)
        return log_offset

    def _write_current(self, info: TableInfo, batch: pa.RecordBatch, log_offset: int) -> None:
        """Write rows as inserted by the last change below `log_offset`."""
        self._checked()
        for part in _parts(batch):
            count = part.num_rows
            self._write(
                info,
                ChangeRows(
                    part,
                    pa.repeat(pa.scalar(log_offset - 1, pa.int64()), count),
                    pa.repeat(pa.scalar(self.clock.now_ms(), pa.int64()), count),
                    pa.repeat(pa.scalar(int(ChangeType.INSERT), pa.uint8()), count),
                ),
            )

    def _copy_current(self) -> int:
        """Write all current rows of the bucket; return their log offset."""
        info = self.task.info
        while True:
            scan = bucket_scan(self.connection, info, self.task.split.bucket)
            for batch in scan:
                self._write_current(info, batch, scan.log_offset or 0)
            if scan.log_offset is None:
                raise InternalError(f"a scan of bucket {self.task.split.bucket} of {info.path} returned no log offset")
            current = self.connection.cluster.table_info(info.path)
            if current.table_id == info.table_id and current.schema_id == info.schema_id:
                return scan.log_offset
            # Rows may have been written with a column that `info` does not know: read them again with it.
            self.abort()
            self.rows = self.read_bytes = 0
            info = self._same_table(current)

    def _same_table(self, current: TableInfo) -> TableInfo:
        if current.table_id != self.task.info.table_id:
            raise _table_recreated(current)
        return current


_ROWS_AT_ONCE = 1 << 15


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return (batch.slice(start, _ROWS_AT_ONCE) for start in range(0, batch.num_rows, _ROWS_AT_ONCE))
