"""The log of one table bucket: append, sync, read, recover.

Nouns: a `LogTablet` is a sequence of segments; the last one is active. Older segments may be in a store only: the
remote log. `local_start_offset` is the first offset in local segments, `log_start_offset` the first one here or in the
remote log, and `log_end_offset` the offset of the next record. Records below `synced_offset` are durable. Clients may
read below `high_watermark`, which the caller sets.

Flow of an append: check lengths, checksums and sequences of all batches; give them offsets and one commit timestamp;
write them with one vectored write, in which only the first bytes of each batch are new; publish. The batches are not
copied, except by `append_together`, which copies the short requests of many clients into one buffer. `sync` makes all
earlier appends durable; the server calls it once for a group of writes, in the thread that has written the group.

Rules:
- An append is complete or absent. A failed write is cut off again, and the cut is synced; if that fails, the tablet
  goes offline.
- After a failed sync the tablet is offline for good: the content of the file is unknown. Every later call raises
  `StorageFailure`. A restart checks what is on the disk.
- Offsets have no gaps, commit timestamps never go back, and batches are never split.
- Reads take no lock (`forebay.log.reads`).

Threads: one appender at a time (`append_as_leader`, `append_together`, `roll`, `truncate_to`,
`delete_segments_before`, `expire_writers`, `snapshot_writers`, `close`, `delete`), which a lock ensures. `sync` may
run in another thread while appends go on; only cuts and `close` wait for it. Everything else may run in any thread.

Prior art: Apache Kafka's log, by way of Apache Fluss's `LogTablet`; fsync rules after PostgreSQL's "fsyncgate".
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from forebay.base import threads
from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import (
    Conflict,
    CorruptData,
    ErrorCode,
    InternalError,
    InvalidRequest,
    StorageFailure,
    check,
)
from forebay.codec.log._plain_batches import PlainBatch, stamp_together
from forebay.codec.log.header import CRC_OFFSETS, MAGIC_V2, NO_LEADER_EPOCH, LogBatchHeader, iter_headers, verify_crc
from forebay.fs import names
from forebay.fs.interface import DiskFull, FileMissing, FileSystem
from forebay.log.commit_times import CommitTimes, HeldTime
from forebay.log.config import SEGMENT_BYTES_LIMIT, LogConfig
from forebay.log.log_ends import EndMarks, LogEndEvidence, NoMarks, StoredMarks
from forebay.log.reads import EARLIEST_OFFSET, LogReads, SegmentInfo
from forebay.log.recovery import (
    Progress,
    RecoveryReport,
    close_all,
    has_segments,
    load_segments,
    note_start,
    noted_starts,
    rebuild_writer_states,
    remove_writer_snapshots,
    take_writer_snapshot,
)
from forebay.log.segment import BatchPlace, LogSegment, LogSlice
from forebay.log.writer_state import WriterBatch, WriterStates

if TYPE_CHECKING:
    from typing_extensions import Buffer


# Appending the bytes of a request: check them, then assign offsets, without copying them.

_PREFIX = struct.Struct("<qiBq").pack
_PREFIX_V2 = struct.Struct("<qiBqi").pack


class AppendInfo(NamedTuple):
    """The result of an append: the offsets of its records, and their commit timestamp.

    `duplicate` says that nothing was appended, because the request repeats a batch, which the other fields describe.
    """

    base_offset: int
    last_offset: int
    commit_timestamp_ms: int
    duplicate: bool

    @property
    def next_offset(self) -> int:
        """The end of the log after the appended records."""
        return self.last_offset + 1


def parse_request(
    records: Buffer, batch_bytes_max: int, batches: Sequence[tuple[int, LogBatchHeader]] | None = None
) -> list[LogBatchHeader]:
    """The headers of the batches in `records`, which must be one or more whole batches with right checksums.

    Raises `CorruptData`, and `InvalidRequest` with RECORD_TOO_LARGE_EXCEPTION for a batch above `batch_bytes_max`.
    """
    headers = []
    for position, header in iter_headers(records) if batches is None else batches:
        if header.size_bytes > batch_bytes_max:
            raise InvalidRequest(
                f"a log batch of {header.size_bytes} bytes is larger than the limit of {batch_bytes_max}: "
                "send smaller batches",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        verify_crc(records, position, header)
        headers.append(header)
    if not headers:
        raise CorruptData("a request to append holds no log batch", ErrorCode.CORRUPT_RECORD_EXCEPTION)
    if len(headers) > 1 and memoryview(records).nbytes > SEGMENT_BYTES_LIMIT:
        raise InvalidRequest(
            f"a request to append holds {memoryview(records).nbytes} bytes, more than a segment can",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )
    return headers


def stamped(
    records: memoryview, headers: list[LogBatchHeader], base_offset: int, timestamp_ms: int, leader_epoch: int
) -> tuple[list[Buffer], list[BatchPlace], int]:
    """Return buffers that together are `records` with offsets from `base_offset` on, each batch's position, and the
    next offset.

    Only the part of each header before the checksum is rewritten; the checksum does not cover it.
    """
    buffers: list[Buffer] = []
    batches: list[BatchPlace] = []
    position = 0
    for header in headers:
        size = header.size_bytes
        if header.magic == MAGIC_V2:
            buffers.append(_PREFIX_V2(base_offset, header.length, header.magic, timestamp_ms, leader_epoch))
        else:
            buffers.append(_PREFIX(base_offset, header.length, header.magic, timestamp_ms))
        buffers.append(records[position + CRC_OFFSETS[header.magic] : position + size])
        batches.append((base_offset, position))
        position += size
        base_offset += header.last_offset_delta + 1
    return buffers, batches, base_offset


__all__ = [
    "EARLIEST_OFFSET",
    "AppendInfo",
    "LogSlice",
    "LogTablet",
    "Progress",
    "RecoveryReport",
    "SegmentInfo",
    "WriterBatch",
]

_REPLAYED_BATCHES_WORTH_A_SNAPSHOT = 10_000
"""After a recovery that replayed this many batches, the writer state is saved, so that the next one replays fewer."""


class LogTablet(LogReads):
    """One bucket's log. Open one with `open`; see the module's docstring for rules and threads."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        config: LogConfig,
        clock: Clock,
        segments: list[LogSegment],
        recovery: RecoveryReport,
        marks: EndMarks,
    ) -> None:
        """For `open` only."""
        super().__init__(folder, config, segments)
        self._marks = marks
        self.recovery = recovery
        """The results of opening the log."""
        self._fs = fs
        self._clock = clock
        self._synced_offset = self._log_end_offset
        self._high_watermark = self.local_start_offset
        self._watermark_lock = threads.lock()
        self.watermark_limit: int | None = None
        """Clients do not read beyond this offset, whatever is in the log. Never lowered below the high watermark."""
        self._writers = WriterStates(config.writer_expiry_ms, config.writers_max)
        self._times = CommitTimes()
        self._writer_snapshots: list[int] = []
        self.copied_end: int | None = None
        """Up to which offset a remote log has the log; None without one."""
        self._sync_lock = threads.lock()
        self._sync_seconds = 0.0
        self._closed = False

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        folder: str,
        *,
        config: LogConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        recovery_point: int | None = None,
        known_end: StoredMarks | None = None,
        marks: EndMarks | None = None,
        high_watermark: int = 0,
        clean_shutdown: bool = False,
        start_offset: int = 0,
        start_writers: Callable[[], bytes | None] = lambda: None,
        kept_writers: Collection[int] = (),
        progress: Progress | None = None,
    ) -> LogTablet:
        """Open the log in `folder`, or create an empty one that begins at `start_offset`.

        `start_writers` gives the writer snapshot at the start of a new log, if there is one.

        `recovery_point` (from the checkpoint; None: never checkpointed) is the offset up to which the log was synced;
        `clean_shutdown` says that it was closed gracefully. Otherwise every batch from the recovery point on is
        checked, and the log is truncated at the first bad one that was never acknowledged; `recovery` reports it.
        `known_end`: the marks that an earlier process left (`forebay.log.log_ends`); `marks` keep from now on where the
        log ends. `high_watermark` is the checkpointed one; it is lowered to the end of the log. `kept_writers`: see
        `keep_writers`. `progress` receives the progress of long checks.

        Everything in the log is durable when this returns. Raises `CorruptData` for damage of what was acknowledged and
        `StorageFailure`.
        """
        config = config or LogConfig()
        evidence = LogEndEvidence(clean_shutdown, recovery_point, known_end)
        if start_offset and not has_segments(fs, folder) and (writers := start_writers()) is not None:
            fs.make_directories(folder)
            fs.write_atomic(names.writer_snapshot_file(folder, start_offset), writers)
        segments, report = load_segments(fs, folder, config, evidence, start_offset, progress)
        try:
            tablet = cls(fs, folder, config, clock, segments, report, marks or NoMarks())
            tablet._marks.begin(tablet._log_end_offset)
            tablet.keep_writers(kept_writers)
            tablet._rebuild_writers(report)
            tablet._high_watermark = min(max(high_watermark, tablet.local_start_offset), tablet._log_end_offset)
            if report.replayed_batches >= _REPLAYED_BATCHES_WORTH_A_SNAPSHOT:
                tablet.snapshot_writers()
        except BaseException:
            close_all(segments)
            raise
        return tablet

    # ---- state

    @property
    def synced_offset(self) -> int:
        """Records below this offset survive a power loss. The recovery point to checkpoint."""
        return self._synced_offset

    @property
    def high_watermark(self) -> int:
        """Clients may read below this offset. Set by the caller; never beyond `log_end_offset`."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        if not self.local_start_offset <= offset <= self._log_end_offset:
            raise InternalError(
                f"high watermark {offset} is outside {self.folder}: {self.local_start_offset} to {self._log_end_offset}"
            )
        self._high_watermark = offset

    def raise_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark to `offset`, or to the end of the log; return whether it was lower.

        Any threads may call this at a time: the watermark never goes back, so what was visible stays so.
        """
        if offset <= self._high_watermark:
            return False
        with self._watermark_lock:
            raised = min(offset, self._log_end_offset)
            if self.watermark_limit is not None:
                raised = min(raised, self.watermark_limit)
            if raised <= self._high_watermark:
                return False
            self._high_watermark = raised
            return True

    def writer_states(self) -> Mapping[int, tuple[WriterBatch, ...]]:
        """The remembered batches of each writer id, oldest first."""
        with self._append_lock:
            return self._writers.as_mapping()

    def find_duplicate(self, writer_id: int, batch_sequence: int) -> WriterBatch | None:
        """Return the remembered batch of this writer and sequence, so that callers can skip work for a duplicate."""
        with self._append_lock:
            self._require_usable()
            return self._writers.find_duplicate(writer_id, batch_sequence)

    # ---- appending

    def append_as_leader(
        self,
        records: Buffer,
        *,
        leader_epoch: int = NO_LEADER_EPOCH,
        batches: Sequence[tuple[int, LogBatchHeader]] | None = None,
        committed_ms: int | None = None,
    ) -> AppendInfo:
        """Append the batches that a client sent, one after the other in `records`.

        Their base offsets, commit timestamps and leader epochs are set here; `records` is not changed. If a batch
        repeats one that its writer appended recently, nothing is appended, and the answer describes that batch.
        `batches` is the result of `iter_headers` for `records`, if the caller has it already. `committed_ms`: the time
        of the decision, for rows of a decided transaction, at which the log's time is held (`hold_time`).

        All or nothing. Raises `CorruptData` (CORRUPT_RECORD_EXCEPTION: bytes, lengths or checksum), `InvalidRequest`
        (RECORD_TOO_LARGE_EXCEPTION), `Conflict` (OUT_OF_ORDER_SEQUENCE_EXCEPTION) and `StorageFailure`.
        """
        headers = parse_request(records, self.config.batch_bytes_max, batches)
        with self._append_lock:
            self._require_usable()
            now_ms = self._clock.now_ms()
            timestamp_ms = self._timestamp(now_ms, committed_ms)
            duplicate = self._writers.check(headers, timestamp_ms, now_ms)
            if duplicate is not None:
                return AppendInfo(duplicate.base_offset, duplicate.last_offset, duplicate.timestamp_ms, True)
            return self._append(memoryview(records), headers, timestamp_ms, leader_epoch)

    def append_together(
        self, requests: list[bytes], batches: Sequence[PlainBatch]
    ) -> Sequence[tuple[int, int] | Conflict]:
        """Append the requests of several clients, of one batch each, with one write; `batches` is from `read_plain`.

        The first offset and the end of each request, or its error, as if `append_as_leader` had been called for one
        after the other. If they cannot be written together, nothing is appended, and the error is raised.
        """
        with self._append_lock:
            self._require_usable()
            now_ms = self._clock.now_ms()
            timestamp_ms = self._timestamp(now_ms)
            if not any(batch.has_writer_id for batch in batches):
                return self._write_together(requests, batches, timestamp_ms)
            # A full segment's end is where the states of writers are saved: without batches that are not written yet.
            end = self._log_end_offset + sum([batch.last_offset_delta + 1 for batch in batches])
            self._segment_with_room(sum([batch.size_bytes for batch in batches]), end)
            results: list[tuple[int, int] | Conflict] = []
            written: list[int] = []
            before: dict[int, tuple[WriterBatch, ...]] = {}
            offset = self._log_end_offset
            for place, batch in enumerate(batches):
                if batch.has_writer_id:
                    try:
                        duplicate = self._writers.check((batch,), timestamp_ms, now_ms)
                    except Conflict as e:
                        results.append(e)
                        continue
                    if duplicate is not None:
                        results.append((duplicate.base_offset, duplicate.last_offset + 1))
                        continue
                    before.setdefault(batch.writer_id, self._writers.remembered(batch.writer_id))
                    self._writers.record(batch, offset, timestamp_ms)
                end = offset + batch.last_offset_delta + 1
                results.append((offset, end))
                written.append(place)
                offset = end
            if not written:
                return results
            if len(written) < len(requests):
                requests, batches = [requests[i] for i in written], [batches[i] for i in written]
            try:
                self._write_together(requests, batches, timestamp_ms)
            except BaseException:
                self._writers.restore(before)
                raise
            return results

    def append_as_follower(self, records: Buffer) -> int:
        """Append batches of another copy of this log, with their offsets and times; return the end of the log then.

        Raises `CorruptData`, with nothing appended, for batches that are damaged or do not continue the log, and
        `StorageFailure`, with the first ones appended or none.
        """
        view = memoryview(records)
        headers = list(iter_headers(view))
        with self._append_lock:
            self._require_usable()
            end = self._log_end_offset
            for position, header in headers:
                if header.base_offset != end:
                    raise CorruptData(
                        f"a batch for {self.folder} begins at offset {header.base_offset} in place of {end}",
                        ErrorCode.CORRUPT_RECORD_EXCEPTION,
                    )
                verify_crc(view, position, header)
                end = header.next_offset
            for timestamp_ms, run in groupby(headers, lambda each: each[1].commit_timestamp_ms):
                self._append_stamped(view, list(run), timestamp_ms)
            return self._log_end_offset

    def _append_stamped(self, view: memoryview, run: Sequence[tuple[int, LogBatchHeader]], timestamp_ms: int) -> None:
        start, (last_position, last) = run[0][0], run[-1]
        size = last_position + last.size_bytes - start
        places = [(header.base_offset, position - start) for position, header in run]
        self._write([view[start : start + size]], size, places, last.next_offset, timestamp_ms)
        for _, header in run:
            self._writers.record(header, header.base_offset, timestamp_ms)

    def _timestamp(self, now_ms: int, committed_ms: int | None = None) -> int:
        if committed_ms is not None:
            return max(committed_ms, self._last_timestamp_ms)
        return self._times.next(now_ms, self._last_timestamp_ms)

    def _write_together(
        self, requests: list[bytes], batches: Sequence[PlainBatch], timestamp_ms: int
    ) -> list[tuple[int, int]]:
        data, places, ranges = stamp_together(requests, batches, self._log_end_offset, timestamp_ms, NO_LEADER_EPOCH)
        self._write([data], len(data), places, ranges[-1][1], timestamp_ms)
        return ranges

    def _append(
        self, records: memoryview, headers: list[LogBatchHeader], timestamp_ms: int, leader_epoch: int
    ) -> AppendInfo:
        base_offset = self._log_end_offset
        buffers, places, next_offset = stamped(records, headers, base_offset, timestamp_ms, leader_epoch)
        self._write(buffers, records.nbytes, places, next_offset, timestamp_ms)
        for header, (offset, _) in zip(headers, places, strict=True):
            self._writers.record(header, offset, timestamp_ms)
        return AppendInfo(base_offset, next_offset - 1, timestamp_ms, False)

    def _write(
        self, buffers: Sequence[Buffer], size: int, places: Sequence[BatchPlace], next_offset: int, timestamp_ms: int
    ) -> None:
        try:
            segment = self._segment_with_room(size, next_offset)
            try:
                segment.append(buffers, size, places, next_offset, timestamp_ms)
            except BaseException:
                self._undo_append(segment)
                raise
        except DiskFull as e:
            self._require_usable()
            raise DiskFull(f"{e.message}. {size} bytes were not written", ErrorCode.DISK_WRITE_LOCKED) from e
        self._last_timestamp_ms = timestamp_ms
        self._log_end_offset = next_offset
        self._marks.written(next_offset)

    def _segment_with_room(self, size: int, next_offset: int) -> LogSegment:
        """The active segment, a new one if the other has no room for an append of `size` bytes up to `next_offset`."""
        active = self._segments[-1]
        return active if active.has_room(size, next_offset - 1) else self._roll()

    def _undo_append(self, segment: LogSegment) -> None:
        try:
            check(segment.view.next_offset == self._log_end_offset, f"{segment.path} published a failed append")
            segment.undo_append()
        except BaseException as failure:
            self.take_offline(failure)
            if not isinstance(failure, StorageFailure):
                raise

    def roll(self) -> None:
        """Let the next append begin a new segment. Without effect if the active one is empty."""
        with self._append_lock:
            self._require_usable()
            if self._segments[-1].view.size > 0:
                self._roll()

    def _roll(self) -> LogSegment:
        """Begin a new segment. The active one must not be empty."""
        # Before another thread sees that the segment is closed, and copies it: to a remote log goes its snapshot, too.
        self._segments[-1].flush_index()
        self.snapshot_writers()
        try:
            segment = LogSegment.create(self._fs, self.folder, self._log_end_offset, self.config)
        except StorageFailure:
            self._undo_roll(self._log_end_offset)
            raise
        self._segments = (*self._segments, segment)
        return segment

    def _undo_roll(self, base_offset: int) -> None:
        """Remove the file of a segment that was not to be: the active one may still grow past its offset."""
        try:
            with contextlib.suppress(FileMissing):
                self._fs.remove(names.log_file(self.folder, base_offset))
            self._fs.sync_directory(self.folder)
        except StorageFailure as failure:
            self.take_offline(failure)

    # ---- time

    def hold_time(self, held: HeldTime) -> int:
        """Let time stand still until `release_time`: batches get the commit timestamp `held.at_ms`.

        Return the earliest timestamp that the log may still give. Only appends with `committed_ms` have another one.
        """
        with self._append_lock:
            return self._times.hold(held, self._last_timestamp_ms)

    def release_time(self, held: HeldTime) -> None:
        """Let time go on after `hold_time`."""
        with self._append_lock:
            self._times.release(held)

    def settle_time(self, timestamp_ms: int) -> bool:
        """Return whether all records from before `timestamp_ms` are in the log. No later one is then from before it."""
        with self._append_lock:
            return self._times.settle(timestamp_ms)

    # ---- durability

    def take_offline(self, cause: BaseException) -> None:
        """Refuse everything from now on, because of a failure."""
        if not self._offline:
            super().take_offline(cause)
            # A disk that fails may lose what was written and not synced, as a power failure does.
            self._marks.begin(self._synced_offset)

    def sync(self) -> int:
        """Make durable what was appended before this call; return the new `synced_offset`.

        May run in any thread while appends go on; calls run one after the other. Raises `StorageFailure`, and the
        tablet is then offline for good.
        """
        target = self._log_end_offset
        with self._sync_lock:
            self._require_usable()
            if target > self._synced_offset:  # Else another thread's sync, which began later, has done it.
                self._sync()
            return self._synced_offset

    def _sync(self) -> None:
        target = self._log_end_offset
        segments = self._segments
        began = self._clock.monotonic()
        try:
            for segment in segments:
                if segment.is_open_for_append:
                    segment.sync()
                    if segment is not segments[-1]:
                        segment.close_append()
        except BaseException as failure:
            self.take_offline(failure)
            raise
        self._synced_offset = synced = max(self._synced_offset, target)
        self._marks.synced(synced)
        self._sync_seconds = self._clock.monotonic() - began

    @property
    def sync_seconds(self) -> float:
        """How long the last sync took."""
        return self._sync_seconds

    # ---- cutting

    def truncate_to(self, offset: int) -> int:
        """Drop, durably, the batch that holds `offset` and all after it; return the new end of the log.

        An `offset` before the start of the log leaves it empty, to begin there. The recovery point checkpointed for
        this bucket must be lowered to the result, or less, before: otherwise a crash looks like the loss of durable
        batches. (`read` tells where the batch that holds `offset` begins.) What writers did in segments that retention
        has removed is forgotten, unless a snapshot below the cut tells.
        """
        with self._append_lock, self._sync_lock:
            self._require_usable()
            if offset < self.local_start_offset:
                self._cut(lambda: self._restart_at(offset), lowers_end=True)
            elif offset < self._log_end_offset:
                self._cut(lambda: self._truncate(offset), lowers_end=True)
            return self._log_end_offset

    def delete_segments_before(self, offset: int) -> int:
        """Drop the segments, never the active one, that hold only offsets below `offset`; return how many.

        The caller keeps `offset` at or below all that readers, recovery of the key-value state and tiering still need.
        """
        with self._append_lock, self._sync_lock:
            self._require_usable()
            count = sum(segment.base_offset <= offset for segment in self._segments[1:])
            if count == 0 or not self._snapshot_covers(self._segments[count].base_offset):
                return 0
            note_start(self._fs, self.folder, self._segments[count].base_offset)
            self._fs.sync_directory(self.folder)
            self._cut(lambda: self._drop(self._segments[:count], self._segments[count:]))
            for start in noted_starts(self._fs, self.folder)[:-1]:
                self._fs.remove(names.offset_file(self.folder, start, names.LOG_START_SUFFIX))
            self.raise_high_watermark(self.local_start_offset)
            return count

    def _snapshot_covers(self, offset: int) -> bool:
        """Whether some snapshot has what writers did below `offset`, and no power loss can make it void.

        Takes a new one if need be.
        """
        if any(offset <= snapshot <= self._synced_offset for snapshot in self._writer_snapshots):
            return True
        if self._synced_offset < self._log_end_offset:
            self._sync()
        return self.snapshot_writers()

    def _cut(self, change: Callable[[], None], *, lowers_end: bool = False) -> None:
        """Run `change`, which takes batches away, so that no reader sees it half done.

        `lowers_end`: the newest ones, so that the log's marks must not hold meanwhile.
        """
        self._version += 1
        try:
            if lowers_end:
                self._marks.lower(0)
            change()
            if lowers_end:
                self._marks.begin(self._synced_offset)
                self._marks.written(self._log_end_offset)
        except BaseException as failure:
            self.take_offline(failure)
            raise
        finally:
            self._version += 1

    def _truncate(self, offset: int) -> None:
        keep = max(bisect_right([segment.base_offset for segment in self._segments], offset), 1)
        self._drop(self._segments[keep:], self._segments[:keep], newest_first=True)
        active = self._segments[-1]
        if not active.is_open_for_append:
            active.open_for_append()
        active.cut(offset)
        self._after_cut()

    def _restart_at(self, offset: int) -> None:
        # Each step leaves a log that recovery accepts: see docs/format/log_segment.md.
        remove_writer_snapshots(self._fs, self.folder)
        self._truncate(self.local_start_offset)
        only = self._segments[-1]
        if only.base_offset == offset:
            return
        note_start(self._fs, self.folder, offset)
        segment = LogSegment.create(self._fs, self.folder, offset, self.config)
        self._drop((only,), (segment,))
        self._after_cut()
        self._synced_offset = offset

    def _drop(
        self, dropped: tuple[LogSegment, ...], retained: tuple[LogSegment, ...], *, newest_first: bool = False
    ) -> None:
        """Remove segments, each durably before the next, so that no crash leaves a hole."""
        self._segments = retained
        for segment in reversed(dropped) if newest_first else dropped:
            segment.close()
            segment.delete_files()
            self._fs.sync_directory(self.folder)

    def _after_cut(self) -> None:
        end = self._segments[-1].view.next_offset
        self._log_end_offset = end
        self._synced_offset = min(self._synced_offset, end)
        with self._watermark_lock:
            self._high_watermark = min(max(self._high_watermark, self.local_start_offset), end)
        self._last_timestamp_ms = self._find_last_timestamp()
        self._rebuild_writers(RecoveryReport(clean=True))

    # ---- writers

    def _rebuild_writers(self, report: RecoveryReport) -> None:
        self._writer_snapshots = rebuild_writer_states(self._fs, self.folder, self._segments, self._writers, report)
        self._writers.expire(self._clock.now_ms())

    def snapshot_writers(self) -> bool:
        """Write the state of the writers to a file, so that a restart need not read the log before this point.

        Returns False when storage refuses; the log has it all.
        """
        with self._append_lock:
            self._require_usable()
            return take_writer_snapshot(
                self._fs,
                self.folder,
                self._writers,
                self._log_end_offset,
                self._writer_snapshots,
                self.config.writer_snapshots_retained,
                self._synced_offset,
                self.copied_end,
            )

    def writer_snapshot(self, end_offset: int) -> bytes | None:
        """The file with the state of the writers behind `end_offset`; None if there is none."""
        with contextlib.suppress(FileMissing):
            return self._fs.read_bytes(names.writer_snapshot_file(self.folder, end_offset))
        return None

    def keep_writers(self, writer_ids: Collection[int]) -> None:
        """Never forget these writers, instead of any set before: their sequences show how far a transaction came."""
        self._writers.retained_ids = frozenset(writer_ids)

    def last_sequence(self, writer_id: int) -> int:
        """The sequence of a writer's last batch in this log; -1 if it has none, or was forgotten."""
        with self._append_lock:
            return self._writers.last_sequence(writer_id)

    def expire_writers(self) -> int:
        """Forget writers that were silent for longer than the expiry; return how many. Call it every few minutes."""
        with self._append_lock:
            return self._writers.expire(self._clock.now_ms())

    # ---- the end

    def close(self) -> None:
        """Make everything durable, write indexes and a writer snapshot, and refuse further work.

        Reads in other threads end undisturbed or raise `StorageFailure`. Raises `StorageFailure` if the last sync fails
        or the tablet is offline: the log was then not closed gracefully, and its next start must check it. It is closed
        all the same; a second call does nothing.
        """
        with self._append_lock, self._sync_lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._require_usable()
                self._sync()
                self.snapshot_writers()
                for segment in self._segments:
                    segment.flush_index()
            finally:
                self._unusable = self._unusable or f"the log {self.folder} is closed"
                for segment in self._segments:
                    segment.close()

    def delete(self) -> None:
        """Remove the log with all its files, durably, and refuse further work.

        A crash in the middle leaves the log, or a folder that `names.is_deleted` recognises.
        """
        with self._append_lock, self._sync_lock:
            self._closed = True
            self._unusable = self._unusable or f"the log {self.folder} was deleted"
            for segment in self._segments:
                segment.close()
            dying = names.deleted_folder(self.folder)
            parent = self.folder.rpartition("/")[0]
            self._fs.remove_tree(dying)
            if self._fs.exists(self.folder):
                self._fs.rename(self.folder, dying)
                self._fs.sync_directory(parent)
                self._fs.remove_tree(dying)
            self._fs.sync_directory(parent)
