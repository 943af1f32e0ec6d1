"""All buckets of this server: opened on first use, checkpointed, parked when too many are open, closed, dropped.

Opening a bucket may mean recovering its log and replaying changelog into its key-value state. It happens in a thread,
once, and all callers that need the bucket wait for that one opening. Callers that need a bucket that is being parked
wait, too, and open it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from forebay.base import threads
from forebay.base.ambient import Clock
from forebay.base.errors import CorruptData, ErrorCode, ForebayError, Unavailable
from forebay.base.thread_rules import any_thread, blocking
from forebay.base.threads import Executor, Future
from forebay.codec.log.header import HEADER_SIZE_MAX, parse_header
from forebay.fs import names
from forebay.fs.interface import FileSystem
from forebay.kv.checkpoint import KvFolder, PageCacheWitnesses
from forebay.kv.engine import EngineFactory, KvEngine, KvSnapshot
from forebay.kv.engines import TableEngine
from forebay.kv.hlog.hlog_engine import HlogEngine
from forebay.kv.lmdb.lmdb_engine import LmdbEngine
from forebay.kv.rocksdb_state import has_rocksdb_state, refusal
from forebay.kv.scanner import ScannerManager
from forebay.kv.table_snapshots import TableSnapshotManager
from forebay.kv.tablet import KvTablet
from forebay.log.checkpoints import DataDirectory
from forebay.log.config import LogConfig
from forebay.log.log_ends import EndMarks, LogEnds, StoredMarks
from forebay.log.recovery import has_segments
from forebay.log.tablet import LogTablet
from forebay.metadata.table import PhysicalTablePath, TableBucket, TableInfo
from forebay.server.counters import ServerCounters
from forebay.server.flow.disk_reserve import DiskReserve
from forebay.server.flow.write_queue import WriteScheduler
from forebay.server.metadata.catalog import LiveTable, TableCatalog, buckets_of
from forebay.server.metadata_store import MetadataStore
from forebay.server.storage.log_epochs import LogEpochs
from forebay.server.storage.log_store import LogStore, NoLogStore
from forebay.server.storage.open_buckets import OpenBuckets
from forebay.server.storage.replica import BucketReplica, ParkedBucket
from forebay.server.storage.slow_progress import SlowProgress

_LOGGER = logging.getLogger(__name__)

_CLOSING_THREADS = 8
"""Buckets that are closed at a time when the server stops."""

_DAMAGE_SECONDS = 30.0
"""How long an error of damage answers for a bucket, before its files are read again."""

_COMMIT_SECONDS = 2.0
"""How long a table snapshot waits, in a thread, for a transaction that is writing to its table."""


class WrittenAndRead(NamedTuple):
    """Records appended to logs, bytes of appends and puts, and bytes read from logs."""

    records: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    def plus(self, replica: BucketReplica) -> WrittenAndRead:
        """Return these totals plus what `replica` has counted since it was opened."""
        counters = replica.counters
        return WrittenAndRead(
            self.records + replica.log.log_end_offset - counters.first_offset,
            self.bytes_in + counters.bytes_in,
            self.bytes_out + counters.bytes_out,
        )


_NOTHING = WrittenAndRead()


class DecidedWork(Protocol):
    """The writes that decided transactions still have to make. Called in any thread."""

    unfinished: frozenset[int]
    """The ids of tables of which such a transaction has written some rows, or none yet."""

    def writers(self, bucket: TableBucket) -> Collection[int]:
        """Return the writer ids of the transactions that may still write to a bucket."""
        ...

    def write(self, replica: BucketReplica) -> None:
        """Write all rows that are missing in a bucket that is being opened, before any request uses it."""
        ...


class NoDecidedWork:
    """For servers without transactions."""

    unfinished: frozenset[int] = frozenset()

    def writers(self, bucket: TableBucket) -> Collection[int]:
        return ()

    def write(self, replica: BucketReplica) -> None:
        return


class ReplicaManager:
    """Owns the open buckets. Methods may be called from any thread; `begin` may take long."""

    def __init__(
        self,
        fs: FileSystem,
        data_directory: DataDirectory,
        catalog: TableCatalog,
        store: MetadataStore,
        scanners: ScannerManager,
        table_snapshots: TableSnapshotManager,
        *,
        epochs: LogEpochs,
        log_config: LogConfig,
        reserve: DiskReserve,
        engine: str,
        witnesses: PageCacheWitnesses,
        clock: Clock,
        writers: Executor,
        on_progress: Callable[[TableBucket], None],
        open_max: int,
        checkpoint_records: int,
        engine_factory: EngineFactory | None = None,
        counters: ServerCounters | None = None,
        log_store: LogStore | None = None,
    ) -> None:
        """`open_max`: buckets that stay open while unused. `checkpoint_records`: changelog records that trigger a
        checkpoint. `engine_factory` replaces the library engines (for tests)."""
        self._fs = fs
        self._directory = data_directory
        self._catalog = catalog
        self._store = store
        self._scanners = scanners
        self._table_snapshots = table_snapshots
        self._epochs = epochs
        self._log_config = log_config
        self._reserve = reserve
        self._engine = engine
        self._engine_factory = engine_factory
        self._log_store: LogStore = log_store or NoLogStore()
        self._witnesses = witnesses
        self._clock = clock
        self._write_scheduler = WriteScheduler(writers, clock, counters)
        self._on_progress = on_progress
        self._lock = threads.lock()
        self._checkpoint_records = checkpoint_records
        self._moving: dict[TableBucket, Future[None]] = {}
        """Buckets that are being opened or parked."""
        self._open = OpenBuckets(open_max, self._is_read)
        self.begin_if_open, self.end = self._open.begin, self._open.end
        self._parked: dict[TableBucket, ParkedBucket] = {}
        self._closed_counts: dict[int, WrittenAndRead] = {}
        """By table id, the counts of its buckets that were closed since the start."""
        self._saved: tuple[Mapping[TableBucket, int], Mapping[TableBucket, int]] | None = None
        self._closed = False
        self.decided: DecidedWork = NoDecidedWork()
        """Set once, before the first bucket is opened."""
        self.showing = threads.lock()
        """Held, briefly, while a transaction becomes visible in several logs, and to read the ends of several."""
        self._clean = data_directory.take_clean_shutdown()
        self._recovery_points = data_directory.recovery_points.read()
        self._high_watermarks = data_directory.high_watermarks.read()
        # Buckets that were open at a crash, and have not been opened since: closing does not vouch for them.
        self._unchecked = set(data_directory.not_closed if self._clean else self._recovery_points)
        self._ends = LogEnds.open(fs, data_directory.path, witnesses(data_directory.path), self._needs_its_end, clock)
        for _, problem in self._ends.problems:
            _LOGGER.warning("%s; the recovery points of logs are used instead", problem)
        self._damaged: dict[TableBucket, tuple[CorruptData, float]] = {}
        """Buckets that could not be opened because of damage, with the error and its time."""

    def _needs_its_end(self, bucket: TableBucket) -> bool:
        """Whether the bucket exists, and was not closed by the last server."""
        try:
            self.table_of(bucket)
        except Unavailable:
            return False
        return not self._was_closed(bucket)

    # ---- finding and opening ----------------------------------------------------------------------------------------

    def opened(self, bucket: TableBucket) -> BucketReplica | None:
        """Return the replica if it is open. It may be closed at any time: see `begin_if_open`."""
        return self._open.get(bucket)

    def parked(self, bucket: TableBucket) -> ParkedBucket | None:
        """Return the known state of a bucket that was closed because too many were open, and not opened since."""
        return self._parked.get(bucket)

    @contextmanager
    def using(self, bucket: TableBucket, *, counts: bool = True) -> Iterator[BucketReplica]:
        """Yield the replica, opened if necessary, which stays open inside the block. `counts`: whether for a client."""
        replica = self.begin(bucket, counts=counts)
        try:
            yield replica
        finally:
            self.end(replica)

    def each_open(self) -> Iterator[BucketReplica]:
        """Yield the open replicas, for maintenance: each stays open while it is processed."""
        for replica in self._open.all():
            if self._open.begin(replica.bucket, counts=False) is not replica:
                continue
            try:
                yield replica
            finally:
                self.end(replica)

    def find_table(self, bucket: TableBucket) -> LiveTable | None:
        """Return the table of a bucket; None unless the table and the partition exist and have it."""
        table = self._catalog.table_by_id(bucket.table_id)
        if table is None or not 0 <= bucket.bucket < table.info.bucket_count:
            return None
        partitions = table.current.partitions_by_id
        has_it = (bucket.partition_id in partitions) if table.info.is_partitioned else bucket.partition_id is None
        return table if has_it else None

    def table_of(self, bucket: TableBucket) -> LiveTable:
        """Return the table of a bucket. Raises `Unavailable` (UNKNOWN_TABLE_OR_BUCKET) unless it exists."""
        table = self.find_table(bucket)
        if table is not None:
            return table
        raise _unknown(bucket)

    def begin(self, bucket: TableBucket, *, counts: bool = True) -> BucketReplica:
        """Return the replica of `bucket`, opened if necessary; it stays open until `end`.

        Raises the error of opening, at every attempt.
        """
        while (replica := self._open.begin(bucket, counts=counts)) is None:
            self.table_of(bucket)
            with self._lock:
                if self._closed:
                    raise Unavailable("the server is shutting down", ErrorCode.NOT_LEADER_OR_FOLLOWER)
                moving = self._moving.get(bucket)
                if moving is None:
                    mine = self._moving[bucket] = threads.future()
            if moving is not None:
                moving.result()
                continue
            # From now on no other thread opens or parks the bucket, but one may have just done so.
            if (replica := self._open.begin(bucket)) is None:
                replica = self._begin_opened(bucket, mine)
            else:
                self._moved(bucket, mine)
            self.close_idle()
            break
        return replica

    def _begin_opened(self, bucket: TableBucket, moving: Future[None]) -> BucketReplica:
        try:
            # Checked again, now that `drop` sees this opening: files of a dropped bucket must not come back.
            table = self.table_of(bucket)
            self._require_undamaged(bucket)
            replica = self._open_replica(bucket, table, self._parked.pop(bucket, None))
            self._open.add(replica)
            self._show(replica)
        except BaseException as e:
            with self._lock:
                if isinstance(e, CorruptData) and bucket not in self._damaged:
                    self._damaged[bucket] = CorruptData(e.message, e.code), self._clock.monotonic()
                    _LOGGER.error("bucket %s of table %s is offline: %s", bucket, table.info.path, e.message)
                del self._moving[bucket]
            moving.set_exception(e)
            raise
        self._moved(bucket, moving)
        return replica

    def _show(self, replica: BucketReplica) -> None:
        """Let clients read what was stored, or repeated, while the bucket was opened. On an error it is closed."""
        visible = self._log_store.visible_end(replica.bucket)
        if visible is None:
            return
        try:
            if replica.is_log_borrowed:
                replica.follow(visible)
            replica.stored(visible)
        except BaseException:
            self._open.remove(replica.bucket)
            replica.abandon()
            raise

    def _require_undamaged(self, bucket: TableBucket) -> None:
        """Raise the error again with which a bucket could not be opened just now: to look again may take long."""
        with self._lock:
            error, since = self._damaged.get(bucket, (None, 0.0))
            if error is not None and self._clock.monotonic() - since < _DAMAGE_SECONDS:
                raise CorruptData(error.message, error.code)
            self._damaged.pop(bucket, None)

    def damaged(self) -> dict[TableBucket, CorruptData]:
        """The buckets that are offline because their files are damaged, with the errors, as far as that is known."""
        with self._lock:
            return {bucket: error for bucket, (error, _) in self._damaged.items()}

    @property
    def offline_count(self) -> int:
        """How many buckets are offline, because of a failed disk or of damage."""
        return sum(replica.log.is_offline for replica in self.replicas()) + len(self._damaged)

    def _moved(self, bucket: TableBucket, moving: Future[None]) -> None:
        with self._lock:
            del self._moving[bucket]
        moving.set_result(None)

    # ---- parking ----------------------------------------------------------------------------------------------------

    def _is_read(self, bucket: TableBucket) -> bool:
        return self._scanners.bucket_session_count(bucket) > 0 or self._table_snapshots.has_pinned(bucket)

    def close_idle(self) -> None:
        """Park the least recently used buckets while more are open than allowed.

        Parking writes, so it waits while the disk is full: open buckets can at least be read.
        """
        while self._open.are_too_many and self._reserve.is_free() and self._park_one(self._open.take_idle):
            pass

    @blocking
    def close_offline(self) -> None:
        """Close the buckets that a storage failure took offline, so that they are checked on demand as after a crash
        and accept writes again if the disk does; and those whose table names another engine than they have, so that
        they are moved when they are opened. Return memory of closed buckets to the system."""
        while self._reserve.is_free() and self._park_one(partial(self._open.take_unused, self._must_reopen)):
            pass
        self._open.return_memory()

    def _must_reopen(self, replica: BucketReplica) -> bool:
        if replica.log.is_offline or not replica.has_kv or self._engine_factory is not None:
            return replica.log.is_offline
        engine = self._engine_of(replica.table.info)
        return engine.is_other_than(replica.kv.engine, Path(self._directory.path))

    def _park_one(self, take: Callable[[Callable[[TableBucket], bool]], BucketReplica | None]) -> bool:
        def begin_parking(bucket: TableBucket) -> bool:
            with self._lock:
                if self._closed or bucket in self._moving:
                    return False
                self._moving[bucket] = threads.future()
                return True

        replica = take(begin_parking)
        if replica is None:
            return False
        try:
            self._park(replica)
        finally:
            self._moved(replica.bucket, self._moving[replica.bucket])
        return True

    def _park(self, replica: BucketReplica) -> None:
        bucket = replica.bucket
        try:
            if not replica.log.is_offline:
                replica.checkpoint_if_grown(self._checkpoint_records)
        except ForebayError as e:
            _LOGGER.error("checkpoint of %s failed: %s", bucket, e)
        try:
            parked: ParkedBucket | None = replica.park()
        except ForebayError as e:
            _LOGGER.error("bucket %s could not be closed, and will be checked when it is opened again: %s", bucket, e)
            self._unchecked.add(bucket)
            parked = None
        with self._lock:
            if parked is not None:
                self._parked[bucket] = parked
            # Even if closing failed: damage of acknowledged data must not look like the torn tail of a file.
            self._recovery_points[bucket] = replica.log.synced_offset
            self._high_watermarks[bucket] = replica.log.high_watermark
            self._closed_counts[bucket.table_id] = self._counts(bucket.table_id).plus(replica)

    def _open_replica(self, bucket: TableBucket, table: LiveTable, parked: ParkedBucket | None) -> BucketReplica:
        path, log_folder = self._log_folder(bucket, table)
        loan = self._log_store.borrow(bucket)
        log = self._open_log(bucket, path, log_folder, is_parked=parked is not None) if loan is None else loan.log
        kv: KvTablet | None = None
        folder: KvFolder | None = None
        try:
            self._attach_remote(log, bucket, path)
            is_unsaved = self._epochs.opened(bucket, log.log_end_offset, self._high_watermarks.get(bucket, 0))
            if table.info.has_primary_key:
                path_of_state = _kv_folder(self._directory.path, bucket, table)
                folder = KvFolder(self._fs, path_of_state)
                # A standby may have left an older copy, behind which the changelog has expired.
                is_fetched = False
                if folder.is_new or folder.retained_offset < log.log_start_offset:
                    is_fetched = self._fetch_state(bucket, path_of_state)
                if is_fetched:  # an engine's files are what the last attempt has left, without a fetched state
                    folder.discard_engine()
                until = None if loan is None else self._log_store.visible_end(bucket)
                is_parked = parked is not None and not is_fetched
                kv = self._open_kv(bucket, table, log, folder, is_parked=is_parked, until=until)
        except BaseException:
            (log.close if loan is None else loan.give_back)()
            raise
        self._unchecked.discard(bucket)
        # All that is in the log after opening it is durable (LogTablet.open).
        end = log.log_end_offset if kv is None else kv.applied_offset
        visible = self._log_store.visible_end(bucket)
        if visible is None:
            log.high_watermark = end
        else:
            log.watermark_limit = max(visible, log.local_start_offset)
            log.raise_high_watermark(end)
        before_write = self._epochs.save if is_unsaved else None
        replica = BucketReplica(
            bucket, table, log, kv, folder, self._write_scheduler, self._on_progress, self._reserve, before_write, loan
        )
        if loan is None and bucket.table_id in self.decided.unfinished:
            try:
                self.decided.write(replica)
            except BaseException:
                with suppress(ForebayError):
                    replica.close()
                raise
        return replica

    def _open_log(self, bucket: TableBucket, path: PhysicalTablePath, folder: str, *, is_parked: bool) -> LogTablet:
        recovery_point, known_end = self._recovery_points.get(bucket), self._known_end(bucket, folder)
        log = LogTablet.open(
            self._fs,
            folder,
            config=self._log_config,
            clock=self._clock,
            recovery_point=recovery_point,
            known_end=known_end,
            marks=self._marks(bucket),
            high_watermark=self._high_watermarks.get(bucket, 0),
            clean_shutdown=is_parked or self._was_closed(bucket),
            start_offset=self._log_store.remote_end(bucket),
            start_writers=partial(self._log_store.writers_at_end, bucket, path),
            kept_writers=self.decided.writers(bucket) if self.decided.unfinished else (),
            progress=SlowProgress(self._clock, f"checking the log of {path}, bytes"),
        )
        self._ends.opened(bucket)
        _log_recovery(log, path, max(recovery_point or 0, 0 if known_end is None else known_end.synced))
        return log

    def _attach_remote(self, log: LogTablet, bucket: TableBucket, path: PhysicalTablePath) -> None:
        log.remote = self._log_store.remote(bucket, path)
        if log.remote is not None:
            log.copied_end = self._log_store.remote_end(bucket)
        if (end := self._log_store.stored_end(bucket)) > log.log_end_offset:
            raise CorruptData(
                f"{log.folder} ends at offset {log.log_end_offset}, and the store has its records up to offset "
                f"{end}: the disk has lost some. Start with a new data directory, which is made from the store",
                ErrorCode.LOG_STORAGE_EXCEPTION,
            )

    def _fetch_state(self, bucket: TableBucket, path: str) -> bool:
        """Fetch the state that the store has, if it has one; return whether it is here now."""
        try:
            is_fetched = self._log_store.fetch_state(bucket, path)
        except CorruptData as e:
            _LOGGER.warning("%s; restoring the state of bucket %s from its changelog alone", e.message, bucket)
            return False
        if is_fetched:
            _LOGGER.info("fetched %s from the store", path)
        return is_fetched

    def physical_path(self, bucket: TableBucket) -> PhysicalTablePath:
        """The names of a bucket's table and partition. Raises as `table_of` does."""
        return _physical_path(bucket, self.table_of(bucket))

    def _known_end(self, bucket: TableBucket, log_folder: str) -> StoredMarks | None:
        """Return the marks of a log's end that an earlier process stored, without those that prove nothing now."""
        marks = self._ends.stored_marks(bucket)
        if marks is None or marks.written is None or self._was_closed(bucket):
            return marks
        is_same_cache = not self._ends.witnesses.isdisjoint(self._witnesses(log_folder))
        return marks if is_same_cache else marks._replace(written=None)

    def _was_closed(self, bucket: TableBucket) -> bool:
        """Return whether a bucket that is opened for the first time was closed cleanly before the start."""
        return self._clean and bucket in self._recovery_points and bucket not in self._unchecked

    def _open_kv(
        self, bucket: TableBucket, table: LiveTable, log: LogTablet, folder: KvFolder, *, is_parked: bool,
        until: int | None,
    ) -> KvTablet:  # fmt: skip
        factory = self._factory_for(table.info)
        engine = folder.open_engine(factory, self._witnesses, is_parked=is_parked)
        if engine.state.applied_offset > log.log_end_offset:
            # The state has changes that the log has lost, so it does not belong to this log: rebuild it.
            _LOGGER.warning("rebuilding the key-value state of %s, which is ahead of its log", bucket)
            engine.close()
            folder.discard_engine()
            engine = folder.open_engine(factory, self._witnesses)
        counter = f"auto-increment-{table.info.table_id}"
        tablet = KvTablet(table, log, engine, lambda count: self._store.take(counter, count))
        self._let_engine_close_scans(engine, bucket)
        try:
            replayed = tablet.recover(SlowProgress(self._clock, f"restoring the state of {bucket}, offsets"), until)
        except BaseException:
            engine.close()
            raise
        if replayed:
            _LOGGER.info("restored the state of %s from %s batches of its changelog", bucket, replayed)
        return tablet

    def _factory_for(self, info: TableInfo) -> EngineFactory:
        if self._engine_factory is not None:
            return self._engine_factory
        return self._engine_of(info)

    def _engine_of(self, info: TableInfo) -> TableEngine:
        return TableEngine(info.descriptor, self._engine, self._reserve.kept_free)

    def _let_engine_close_scans(self, engine: KvEngine, bucket: TableBucket) -> None:
        if isinstance(engine, LmdbEngine | HlogEngine):
            engine.close_snapshots = lambda: self._close_readers(bucket)

    def _close_readers(self, bucket: TableBucket) -> None:
        self._scanners.close_bucket(bucket)
        self._table_snapshots.close_bucket(bucket)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def pin(self, replicas: Sequence[BucketReplica], *, are_all: bool = False) -> dict[TableBucket, KvSnapshot]:
        """Return snapshots of open buckets of one primary-key table at one point in time: no write lies between two of
        them, and of a transaction they have all rows or none. `are_all`: they are to be those of all its partitions.

        Raises the error of taking a snapshot, with none left open, and `Unavailable` while a transaction takes long to
        write its rows, and if the table has got or lost a partition since its buckets were listed.
        """
        snapshots: dict[TableBucket, KvSnapshot] = {}
        if not replicas:
            return snapshots
        table = replicas[0].table
        try:
            with table.commit_gate.closed(_COMMIT_SECONDS) as is_quiet:
                self._require_whole_transactions(table, is_quiet=is_quiet)
                with table.write_gate.closed():
                    self._require_whole_transactions(table)  # a standby goes on while the gate is awaited
                    # A partition that is not there now has no write that one of the others could have come after.
                    there = table.current.partitions_by_id
                    if are_all and there.keys() != {replica.bucket.partition_id for replica in replicas}:
                        raise Unavailable(
                            f"table {table.info.path} has got or lost a partition while a snapshot of all of them was "
                            "opened; open it again",
                            ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
                        )
                    for replica in replicas:
                        if replica.is_log_borrowed:
                            replica.follow(self._log_store.visible_end(replica.bucket) or 0)
                        snapshots[replica.bucket] = replica.kv.snapshot()
        except BaseException:
            for snapshot in snapshots.values():
                snapshot.close()
            raise
        return snapshots

    def _require_whole_transactions(self, table: LiveTable, *, is_quiet: bool = True) -> None:
        if not is_quiet or table.info.table_id in self.decided.unfinished:
            raise Unavailable(
                f"the rows of a transaction are being written to table {table.info.path}: a snapshot of it can be "
                "taken as soon as they are all there",
                ErrorCode.REQUEST_TIME_OUT,
            )

    # ---- for metrics ------------------------------------------------------------------------------------------------

    def written_and_read(self) -> dict[int, WrittenAndRead]:
        """Return the records and bytes written to each table and read from its log since the start, by table id."""
        with self._lock:
            totals = dict(self._closed_counts)
        # Outside of the lock, for which `OpenBuckets.take_idle` waits with its own: each would wait for the other.
        for replica in self._open.all():
            table_id = replica.bucket.table_id
            totals[table_id] = totals.get(table_id, _NOTHING).plus(replica)
        return totals

    def _counts(self, table_id: int) -> WrittenAndRead:
        return self._closed_counts.get(table_id, _NOTHING)

    def known_ends(self, table: LiveTable) -> dict[TableBucket, int]:
        """Return the offsets up to which clients read a table's buckets, without buckets that were never opened."""
        partitions = table.current.partitions_by_id
        ends: dict[TableBucket, int] = {}
        for bucket in buckets_of(table.info, list(partitions)):
            replica = self._open.get(bucket)
            end = self._high_watermarks.get(bucket) if replica is None else replica.log.high_watermark
            if end is not None:
                ends[bucket] = end
        return ends

    def row_counts(self) -> dict[int, int]:
        """Return the number of rows in open buckets of primary-key tables, by table id, where it is known."""
        counts: dict[int, int] = {}
        for replica in self._open.all():
            if replica.has_kv and not replica.closed and (count := replica.kv.row_count) is not None:
                counts[replica.bucket.table_id] = counts.get(replica.bucket.table_id, 0) + count
        return counts

    @property
    def accepts_writes(self) -> bool:
        """Whether the reserve of the disk is free."""
        return self._reserve.is_free()

    def disk_bytes(self) -> tuple[int, int]:
        """Return the size of the data disk and its free space, in bytes."""
        return self._reserve.size_and_free()

    @property
    def waiting_write_queues(self) -> int:
        """Return how many write queues wait for a thread."""
        return len(self._write_scheduler)

    # ---- upkeep -----------------------------------------------------------------------------------------------------

    def replicas(self) -> list[BucketReplica]:
        """Return the open replicas. They may be closed at any time: see `each_open`."""
        return self._open.all()

    def segment_offsets(self, bucket: TableBucket) -> list[int]:
        """Return the base offsets of the log segments of a closed bucket; empty if it has no log yet."""
        folder = self._log_folder(bucket, self.table_of(bucket))[1]
        if not self._fs.exists(folder):
            return []
        parsed = [names.parse_offset_file(entry.name) for entry in self._fs.list_directory(folder)]
        return sorted(kind[0] for kind in parsed if kind is not None and kind[1] == names.LOG_SUFFIX)

    def changelog_needed_from(self, bucket: TableBucket) -> int | None:
        """Return from which offset a closed bucket's key-value state needs the changelog; None for a log table.

        Accesses files. Raises as `table_of` does.
        """
        table = self.table_of(bucket)
        if not table.info.has_primary_key:
            return None
        return KvFolder(self._fs, _kv_folder(self._directory.path, bucket, table)).retained_offset

    def first_record_ms(self, bucket: TableBucket) -> int | None:
        """Return when the first record of a closed bucket was appended; None if its log has none."""
        offsets = self.segment_offsets(bucket)
        if not offsets:
            return None
        reader = self._fs.open_reader(names.log_file(self._log_folder(bucket, self.table_of(bucket))[1], offsets[0]))
        try:
            head = reader.pread(0, HEADER_SIZE_MAX)
            return parse_header(head, 0, reader.size()).commit_timestamp_ms if head else None
        finally:
            reader.close()

    def is_unwritten(self, bucket: TableBucket) -> bool:
        """Return whether a closed bucket was never written. Raises as `table_of` does."""
        is_noted = bucket in self._recovery_points or self._ends.stored_marks(bucket) is not None
        return not is_noted and not self._log_store.has_records(bucket) and not self.segment_offsets(bucket)

    def begins_from_store(self, bucket: TableBucket) -> bool:
        """Return whether opening a bucket reads the store, because its log or its state is not on this machine. Looks
        at files."""
        table = self.find_table(bucket)
        if table is None or self.opened(bucket) is not None or bucket in self._parked:
            return False
        if not self._log_store.stored_end(bucket):
            return False
        if not has_segments(self._fs, self._log_folder(bucket, table)[1]):
            return self._log_store.remote_end(bucket) > 0
        return table.info.has_primary_key and KvFolder(self._fs, _kv_folder(self._directory.path, bucket, table)).is_new

    def _log_folder(self, bucket: TableBucket, table: LiveTable) -> tuple[PhysicalTablePath, str]:
        path = _physical_path(bucket, table)
        return path, names.join(self._directory.path, names.tablet_folder("log", path, bucket))

    @blocking
    def save_offsets(self) -> None:
        """Checkpoint recovery points and high watermarks of all buckets, including those not opened since the start."""
        for replica in self.each_open():
            with self._lock:
                if self.opened(replica.bucket) is replica:  # `drop` forgets it after removing it
                    self._recovery_points[replica.bucket] = replica.log.synced_offset
                    self._high_watermarks[replica.bucket] = replica.log.high_watermark
        self._write_offsets()

    def _write_offsets(self) -> None:
        with self._lock:
            points, watermarks = dict(self._recovery_points), dict(self._high_watermarks)
        if self._saved == (points, watermarks):
            return
        self._directory.recovery_points.write(points)
        self._directory.high_watermarks.write(watermarks)
        self._saved = (points, watermarks)

    def _marks(self, bucket: TableBucket) -> EndMarks:
        return self._log_store.marks(bucket, self._ends.marks(bucket))

    def ends_beyond(self, offset: Callable[[TableBucket], int]) -> list[TableBucket]:
        """The closed buckets whose logs may go beyond an offset."""
        ends = dict(self._recovery_points)
        for bucket, marks in self._ends.all_stored().items():
            ends[bucket] = max(ends.get(bucket, 0), marks.synced, marks.written or 0)
        return [bucket for bucket, end in ends.items() if end > offset(bucket) and self.opened(bucket) is None]

    @any_thread
    def stored(self, ends: Mapping[TableBucket, int]) -> None:
        """Let clients read logs up to these ends, which are in the store: all at once, as of a transaction."""
        with self.showing:
            for bucket, end in ends.items():
                replica = self.opened(bucket)
                if replica is not None:
                    replica.stored(end)

    @blocking
    def touch(self, bucket: TableBucket) -> None:
        """Open a bucket, which is closed again when too many are open; one that was dropped is ignored."""
        with suppress(Unavailable), self.using(bucket, counts=False):
            pass

    def has_new_ends(self) -> bool:
        """Whether `sync_ends` has something to do."""
        return self._ends.is_sync_due

    @blocking
    def sync_ends(self) -> None:
        """Make the known ends of logs durable if they have changed."""
        self._ends.sync_if_due()

    @blocking
    def sync_idle(self) -> None:
        """Sync the writes with acks=1 and 0. A failure takes only its own bucket offline."""
        for replica in self.each_open():
            try:
                replica.sync_idle()
            except ForebayError as e:
                _LOGGER.error("bucket %s: %s", replica.bucket, e)

    @blocking
    def checkpoint_grown(self, records_min: int | None = None) -> None:
        """Write checkpoints of states whose changelog has grown by `records_min` records since the last one."""
        for replica in self.each_open():
            try:
                if replica.checkpoint_if_grown(self._checkpoint_records if records_min is None else records_min):
                    _LOGGER.info("wrote a checkpoint of the state of %s", replica.bucket)
            except ForebayError as e:
                _LOGGER.error("checkpoint of %s failed: %s", replica.bucket, e)

    def expire_writers(self) -> None:
        for replica in self.each_open():
            replica.log.expire_writers()

    # ---- closing and dropping ---------------------------------------------------------------------------------------

    @blocking
    def drop(self, buckets: Iterable[TableBucket]) -> None:
        """Close buckets whose table or partition is gone from the catalog; waiting readers are woken."""
        for bucket in buckets:
            moving = self._begin_dropping(bucket)
            replica = self._open.remove(bucket)
            with self._lock:
                self._parked.pop(bucket, None)
                self._recovery_points.pop(bucket, None)
                self._high_watermarks.pop(bucket, None)
                self._unchecked.discard(bucket)
                self._damaged.pop(bucket, None)
            self._close_readers(bucket)
            try:
                if replica is not None:
                    with self._lock:  # for the table, if only a partition goes
                        self._closed_counts[bucket.table_id] = self._counts(bucket.table_id).plus(replica)
                    replica.abandon()
            finally:
                self._moved(bucket, moving)
            self._ends.drop(bucket)
            self._on_progress(bucket)
            if self._catalog.table_by_id(bucket.table_id) is None:
                self._closed_counts.pop(bucket.table_id, None)

    def _begin_dropping(self, bucket: TableBucket) -> Future[None]:
        """Wait until the bucket is neither being opened nor parked, and prevent that from now on."""
        while True:
            with self._lock:
                moving = self._moving.get(bucket)
                if moving is None:
                    mine = self._moving[bucket] = threads.future()
                    return mine
            moving.exception()

    def doomed_folders(self) -> list[str]:
        """Return the directories of tables and partitions dropped before the last stop that could not be removed."""
        return self._store.doomed_folders()

    @blocking
    def remove_folders(self, folders: Iterable[str]) -> None:
        """Remove directories of dropped objects, closed by `drop`; failures are retried at the next start."""
        for folder in folders:
            try:
                self._fs.remove_tree(names.join(self._directory.path, folder))
            except ForebayError as e:
                _LOGGER.warning("cannot remove %s yet: %s", folder, e)
                continue
            self._store.folder_removed(folder)

    def close(self) -> Mapping[TableBucket, ForebayError]:
        """Close all buckets gracefully and mark the shutdown clean unless one failed; return the failures."""
        with self._lock:
            self._closed = True
            moving = list(self._moving.values())
        for future in moving:
            future.exception()
        self._write_scheduler.close()
        # Closing mostly waits for the disk, so several are closed at a time.
        with threads.executor(_CLOSING_THREADS, "forebay-close") as pool:
            closings = [(replica, pool.submit(_error_of, replica.close)) for replica in self.replicas()]
            folders = [(bucket, parked.kv_folder) for bucket, parked in self._parked.items()]
            markings = [(bucket, pool.submit(_error_of, folder.mark_clean)) for bucket, folder in folders if folder]
        failures: dict[TableBucket, ForebayError] = {}
        for replica, closing in closings:
            error = closing.result()
            if error is not None:
                _LOGGER.error("closing bucket %s failed: %s", replica.bucket, error)
                failures[replica.bucket] = error
                continue
            self._recovery_points[replica.bucket] = replica.log.synced_offset
            self._high_watermarks[replica.bucket] = replica.log.high_watermark
        for bucket, marking in markings:
            error = marking.result()
            if error is not None:  # its log is closed, and its state is checked as after a crash
                _LOGGER.warning("the key-value state of bucket %s is not marked as clean: %s", bucket, error)
        self._write_offsets()
        if not failures:
            self._directory.mark_clean_shutdown(self._unchecked)
        return failures


def _unknown(bucket: TableBucket) -> Unavailable:
    return Unavailable(
        f"there is no bucket {bucket} here: the table or partition was dropped, or never had it",
        ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
    )


def _physical_path(bucket: TableBucket, table: LiveTable) -> PhysicalTablePath:
    if bucket.partition_id is None:
        return PhysicalTablePath(table.info.path, None)
    partition = table.current.partitions_by_id.get(bucket.partition_id)
    if partition is None:  # it was dropped since the table was found
        raise _unknown(bucket)
    return PhysicalTablePath(table.info.path, partition.name)


def _kv_folder(directory: str, bucket: TableBucket, table: LiveTable) -> str:
    return names.join(directory, names.tablet_folder("kv", _physical_path(bucket, table), bucket))


def refuse_rocksdb(fs: FileSystem, directory: str, tables: Iterable[LiveTable]) -> None:
    """Raise `UnsupportedOperation` if the state of a bucket is in RocksDB, which no engine opens."""
    for table in tables:
        if not table.info.has_primary_key:
            continue
        for bucket in buckets_of(table.info, table.current.partitions_by_id):
            folder = _kv_folder(directory, bucket, table)
            if has_rocksdb_state(fs, folder):
                raise refusal(folder)


def _log_recovery(log: LogTablet, path: PhysicalTablePath, synced: int) -> None:
    """Log a warning with what opening a log has removed."""
    recovery = log.recovery
    if recovery.cut_bytes and recovery.is_cut_exact:
        _LOGGER.warning(
            "truncated %d bytes at the end of the log of %s, of writes that were not acknowledged (%s)",
            recovery.cut_bytes, path, recovery.cut_reason,
        )  # fmt: skip
    elif recovery.cut_bytes:
        _LOGGER.warning(
            "truncated %d bytes at the end of the log of %s, which a failure of the machine or its disk has left "
            "behind offset %d. The log is known to have been synced up to offset %d (%s)",
            recovery.cut_bytes, path, log.log_end_offset, synced, recovery.cut_reason,
        )  # fmt: skip
    for snapshot in recovery.unusable_writer_snapshots:
        _LOGGER.warning("removed the damaged writer snapshot %s: the log was read instead", snapshot)


def _error_of(work: Callable[[], None]) -> ForebayError | None:
    try:
        work()
    except ForebayError as e:
        return e
    return None
