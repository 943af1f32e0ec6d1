"""The logs in a data directory that repeats a journal: they grow as those of the server do, and others may read them.

One thread changes them. Any thread may borrow a log to read it: it stays open meanwhile, and the thread that changes it
appends to the same `LogTablet`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from forebay.base import threads
from forebay.base.ambient import Clock
from forebay.base.errors import StorageFailure, Unavailable
from forebay.base.thread_rules import any_thread
from forebay.codec.log.header import iter_headers
from forebay.fs import names
from forebay.fs.interface import FileSystem
from forebay.log.checkpoints import DataDirectory
from forebay.log.config import LogConfig
from forebay.log.remote import RemoteLogSegment
from forebay.log.tablet import LogTablet
from forebay.metadata.table import PhysicalTablePath, TableBucket
from forebay.server.journal.followed_metadata import FollowedMetadata
from forebay.server.remote_log.manifest import tablet_name
from forebay.server.remote_log.remote_log import read_writers
from forebay.store.objects import ObjectStore

_OPEN_MAX = 256
"""Logs that stay open without a reader."""

_LOCAL_SEGMENTS = 2
"""The newest segments of a log, which `FollowedLogs.trim` leaves."""


class FollowedLogs:
    """The logs of a follower. One thread, except for what says otherwise."""

    def __init__(
        self, fs: FileSystem, directory: DataDirectory, metadata: FollowedMetadata, store: ObjectStore,
        config: LogConfig, clock: Clock,
    ) -> None:  # fmt: skip
        self._fs, self._directory, self._metadata, self._store = fs, directory, metadata, store
        self._config, self._clock = config, clock
        self._lock = threads.lock()
        """Held to open and close logs, and to count who reads them."""
        self._logs: OrderedDict[TableBucket, LogTablet] = OrderedDict()
        self._readers: Counter[TableBucket] = Counter()
        self.ends: dict[TableBucket, int] = directory.recovery_points.read()
        """The end of each log that the journal has."""
        self.copied: Mapping[TableBucket, RemoteLogSegment] = {}
        """The newest segments of remote logs at a later place of the journal: logs begin behind them."""
        self._is_closed = False
        self._trimmed: dict[TableBucket, int] = {}
        """Up to which offset logs were trimmed."""

    # ---- repeating --------------------------------------------------------------------------------------------------

    @any_thread
    def is_copied(self, bucket: TableBucket, end: int) -> bool:
        """Whether the remote log of a bucket has everything up to an offset, at the later place."""
        segment = self.copied.get(bucket)
        return segment is not None and end <= segment.end_offset

    def skip(self, bucket: TableBucket, end: int) -> bool:
        """Let a log begin behind an offset if the remote log has everything up to there, and return whether it does."""
        if not self.is_copied(bucket, end):
            return False
        if bucket not in self.ends and self._metadata.path(bucket) is not None:
            self.ends[bucket] = self.copied[bucket].end_offset
        return True

    def grow(self, bucket: TableBucket, first: int, batches: memoryview, *, is_repeated: bool = False) -> None:
        """Append batches from offset `first` on, but for those that the log has.

        `is_repeated`: an earlier process may have appended them, and may have cut the log after that.
        """
        log = self._open(bucket, first)
        if log is None:
            return
        for position, header in iter_headers(batches):
            if header.base_offset >= log.log_end_offset:
                if header.base_offset == log.log_end_offset or not is_repeated:
                    log.append_as_follower(batches[position:])
                break
        self.ends[bucket] = log.log_end_offset

    def cut(self, bucket: TableBucket, end: int) -> None:
        """Drop what is behind an offset."""
        if self.is_copied(bucket, end):
            self._drop(bucket)
            return
        log = self._open(bucket, 0)
        if log is None or log.log_end_offset <= end:
            return
        self.ends[bucket] = min(end, self.ends.get(bucket, 0))
        self.sync()  # a log that ends below its recovery point would look damaged after a crash
        self.ends[bucket] = log.truncate_to(end)

    def _drop(self, bucket: TableBucket) -> None:
        """Drop all of a log, which begins behind its remote log again when it grows."""
        path = self._metadata.path(bucket)
        if path is not None:
            folder = names.join(self._directory.path, names.tablet_folder("log", path, bucket))
            with self._lock:
                if (log := self._logs.pop(bucket, None)) is not None:
                    log.close()
            self._fs.remove_tree(folder)
            self.ends[bucket] = self.copied[bucket].end_offset

    def _open(self, bucket: TableBucket, start: int) -> LogTablet | None:
        """The log of a bucket, new from offset `start`; None if its table was dropped by now."""
        with self._lock:
            log = self._opened(bucket, start)
        if log is None:
            self.ends.pop(bucket, None)
        return log

    def _opened(self, bucket: TableBucket, start: int) -> LogTablet | None:
        log = self._logs.get(bucket)
        if log is not None and log.is_offline:  # what it lacks since its disk failed is cut off when it is opened again
            self._logs.pop(bucket).close()
            log = None
        if log is None:
            path = self._metadata.path(bucket)
            if path is None:
                return None
            folder = names.join(self._directory.path, names.tablet_folder("log", path, bucket))
            segment = self.copied.get(bucket)
            copied = self._metadata.copied_end(bucket) if segment is None else segment.end_offset
            log = self._logs[bucket] = LogTablet.open(
                self._fs, folder, config=self._config, clock=self._clock, start_offset=max(start, copied),
                start_writers=lambda: self._writers_at(bucket, copied) if copied >= start else None,
                recovery_point=self.ends.get(bucket),
            )  # fmt: skip
            unread = (each for each in self._logs if each != bucket and not self._readers[each])
            if len(self._logs) > _OPEN_MAX and (oldest := next(unread, None)) is not None:
                closed = self._logs.pop(oldest)
                closed.sync()
                closed.close()
        self._logs.move_to_end(bucket)
        return log

    def _writers_at(self, bucket: TableBucket, offset: int) -> bytes | None:
        """What writers had done before the end of the remote log."""
        path, segment = self._metadata.path(bucket), self.copied.get(bucket)
        if segment is None:
            segment = self._metadata.segment_ending_at(bucket, offset)
        if segment is None or path is None:
            return None
        return read_writers(self._store, tablet_name(path, bucket), segment)

    # ---- reading ----------------------------------------------------------------------------------------------------

    @any_thread
    def borrow(self, bucket: TableBucket) -> LogTablet | None:
        """The log of a bucket, which stays open until `give_back`; None if its table was dropped.

        Raises `Unavailable` after `close`: the files may belong to a server by then.
        """
        with self._lock:
            if self._is_closed:
                raise Unavailable("this standby ends, or takes over: read from the server")
            log = self._opened(bucket, 0)
            if log is not None:
                self._readers[bucket] += 1
            return log

    @any_thread
    def give_back(self, bucket: TableBucket) -> None:
        """End a `borrow`."""
        with self._lock:
            self._readers[bucket] -= 1
            if self._readers[bucket] <= 0:
                del self._readers[bucket]

    @any_thread
    def path(self, bucket: TableBucket) -> PhysicalTablePath | None:
        """The names of a bucket's table and partition; None if it was dropped."""
        return self._metadata.path(bucket)

    # ---- room -------------------------------------------------------------------------------------------------------

    def trim(self, copied_ends: Mapping[TableBucket, int]) -> int:
        """Delete segments that the remote logs have (`FollowedMetadata.copied_ends`); return how many.

        Those stay that bring a snapshot of key-value state up to date, and the newest: after a takeover they are read
        from the disk, and all others from the store.
        """
        count = 0
        self._forget_dropped()
        for bucket, until in copied_ends.items():
            if self._trimmed.get(bucket) == until or bucket not in self.ends:
                continue
            log = self._open(bucket, 0)
            if log is not None:
                newest = log.segments()[-_LOCAL_SEGMENTS:]
                count += log.delete_segments_before(min(until, newest[0].base_offset))
                self._trimmed[bucket] = until
        return count

    def _forget_dropped(self) -> None:
        """Forget the ends of logs whose table or partition is gone."""
        tables, partitions = self._metadata.ids()
        for bucket in list(self.ends):
            if bucket.table_id not in tables or bucket.partition_id not in partitions:
                self.ends.pop(bucket)
                self._trimmed.pop(bucket, None)

    def close_in(self, path: str) -> None:
        """Close the logs in a folder, which is removed next."""
        with self._lock:
            for bucket in [bucket for bucket, log in self._logs.items() if log.folder.startswith(f"{path}/")]:
                with suppress(StorageFailure):
                    self._logs.pop(bucket).close()

    # ---- the end ----------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make all logs durable, and note how far they are: there a follower goes on after a crash."""
        with self._each() as logs:
            for log in logs:
                log.sync()
        self._directory.recovery_points.write(self.ends)

    def close(self) -> None:
        """Close all logs. Whoever still reads one gets an error."""
        with self._each() as logs:
            self._is_closed = True
            for log in logs:
                log.close()
            self._logs.clear()

    @contextmanager
    def _each(self) -> Iterator[list[LogTablet]]:
        with self._lock:
            yield list(self._logs.values())
