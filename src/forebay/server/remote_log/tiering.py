"""Moves closed log segments to the store, and deletes what is not needed any more, here and there.

One round looks at all buckets with something to do. For each of them, in this order:

1. The active segment is closed if its first record is older than `store.segment-age`: so the store gets slow logs, too.
   The largest ones are closed if all together have more than `TAIL_BYTES`: a new machine reads them from the journal
   before it serves.
2. Closed segments that clients may read are copied, a few in a round, and listed.
3. Segments in the store that are older than `table.log.ttl` leave the list, unless the lake still needs them.
4. Local segments are deleted that the store has: all but the newest `table.log.tiered.local-segments`, and those older
   than `table.log.local-ttl`; not what the journal lacks, or the key-value state needs. A closed bucket is opened for
   it.

Then objects are deleted that have not been needed for an hour, if the journal has the transaction that says so: a
server from which another one took over might otherwise delete what the other still lists.

Prior art: `RemoteLogManager` and `LogTieringTask` of Apache Fluss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import NamedTuple

from forebay.base.ambient import Clock
from forebay.base.errors import ErrorCode, ForebayError, Unavailable
from forebay.base.thread_rules import any_thread
from forebay.log.segment import SegmentPart
from forebay.log.tablet import LogTablet
from forebay.metadata.table import PhysicalTablePath, TableBucket, TableInfo
from forebay.server.lake.lake_snapshots import LakeSnapshots
from forebay.server.remote_log.remote_logs import RemoteLogs, SegmentUpload
from forebay.server.storage.replica import BucketReplica
from forebay.server.storage.replicas import ReplicaManager

_LOGGER = logging.getLogger(__name__)

_READ_BYTES = 4 << 20
TAIL_BYTES = 256 << 20
_CLOSED_BYTES_MIN = 4 << 20
"""Smaller segments are not closed for `TAIL_BYTES`: each of them would be an object."""


class TieringSettings(NamedTuple):
    """When segments are moved."""

    segment_age_ms: int
    """A segment is closed when its first record is older."""
    uploads_max: int
    """Segments of a bucket that are copied in a round."""
    tail_bytes: int = TAIL_BYTES


def _longest(sizes: Mapping[TableBucket, int], bytes_max: int) -> set[TableBucket]:
    """The largest of these active segments, without which the others have at most `bytes_max` together."""
    longest, total = set[TableBucket](), sum(sizes.values())
    for bucket in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if total <= bytes_max or sizes[bucket] < _CLOSED_BYTES_MIN:
            break
        longest.add(bucket)
        total -= sizes[bucket]
    return longest


class LogTiering:
    """Copies and deletes log segments. Call `run` from one thread at a time."""

    def __init__(
        self,
        logs: RemoteLogs,
        replicas: ReplicaManager,
        snapshots: LakeSnapshots,
        settings: TieringSettings,
        *,
        stored_end: Callable[[TableBucket], int],
        wait_until_stored: Callable[[], bool],
        state_end: Callable[[TableBucket], int],
        put_state: Callable[[BucketReplica, PhysicalTablePath], None],
        forget: Callable[[], None],
        clock: Clock,
    ) -> None:
        """`stored_end`: the end of a log in the journal. `wait_until_stored`: wait until the journal has all metadata,
        and return whether it does. `state_end`: up to which offset of its changelog the store has the state of a
        bucket. `put_state`: puts the newest state there, if there is one. `forget` is called when a round begins."""
        self._logs, self._replicas, self._snapshots = logs, replicas, snapshots
        self._settings, self._clock = settings, clock
        self._stored_end, self._wait_until_stored = stored_end, wait_until_stored
        self._state_end, self._put_state = state_end, put_state
        self._forget_more = forget
        self._checked_ms: dict[TableBucket, int] = {}
        """When closed buckets were looked at, and opened where there was something to do."""
        self._is_stopping = False

    @any_thread
    def stop(self) -> None:
        """Let the round that is running end soon, without what it is copying."""
        self._is_stopping = True

    def run(self) -> None:
        """Do a round. A failure concerns only its own bucket, and is logged."""
        self._forget_dropped()
        self._forget_more()
        sizes = {replica.bucket: replica.log.active_bytes for replica in self._replicas.each_open()}
        long = _longest(sizes, self._settings.tail_bytes)
        for replica in self._replicas.each_open():
            self._attempt(replica.bucket, partial(self._tier, replica, is_long=replica.bucket in long))
        for bucket in self._closed_with_more():
            self._attempt(bucket, partial(self._tier_closed, bucket))
        for bucket, manifest in self._logs.known().items():
            if manifest and self._replicas.opened(bucket) is None:
                self._attempt(bucket, partial(self._expire_closed, bucket))
        self._delete_doomed()

    def _attempt(self, bucket: TableBucket, work: Callable[[], None]) -> None:
        if self._is_stopping:
            return
        try:
            work()
        except ForebayError as e:
            if not self._is_stopping and not (isinstance(e, Unavailable) and self._replicas.find_table(bucket) is None):
                _LOGGER.error("the log of bucket %s is not moved to the store for now: %s", bucket, e)

    # ---- one bucket -------------------------------------------------------------------------------------------------

    def _tier(self, replica: BucketReplica, *, is_long: bool = False) -> None:
        if replica.log.is_offline:
            return
        if is_long or replica.log.has_old_active(self._clock.now_ms() - self._settings.segment_age_ms):
            replica.log.roll()
        path = self._replicas.physical_path(replica.bucket)
        self._copy(replica, path)
        self._expire(replica.bucket, replica.table.info, path)
        self._delete_local(replica)
        self._put_state(replica, path)

    def _copy(self, replica: BucketReplica, path: PhysicalTablePath) -> None:
        log = replica.log
        if log.local_start_offset > self._logs.end(replica.bucket):  # `table.log.ttl` was faster
            if replica.has_kv and self._state_end(replica.bucket) < log.local_start_offset:
                self._put_state(replica, path)  # the one that is there needs what has expired
            self._logs.skip_to(replica.bucket, path, log.local_start_offset)
        first = self._logs.end(replica.bucket)
        closed = log.closed_parts(first, min(log.high_watermark, log.synced_offset))
        parts = list(islice(closed, self._settings.uploads_max))
        if not parts:
            return
        uploads = [
            SegmentUpload(part, self._batches(log, part), log.writer_snapshot(part.end_offset)) for part in parts
        ]
        self._logs.add(replica.bucket, path, uploads)
        log.copied_end = parts[-1].end_offset
        _LOGGER.info(
            "copied %d log segments of %s (bucket %s) to the store, up to offset %d",
            len(parts), replica.table.info.path, replica.bucket, parts[-1].end_offset,
        )  # fmt: skip

    def _batches(self, log: LogTablet, part: SegmentPart) -> Iterator[memoryview]:
        offset = part.start_offset
        while offset < part.end_offset:
            if self._is_stopping:
                raise Unavailable("the server is shutting down", ErrorCode.NOT_LEADER_OR_FOLLOWER)
            piece = log.read(offset, _READ_BYTES, part.end_offset)
            yield piece.data
            offset = piece.next_offset

    def _expire(self, bucket: TableBucket, info: TableInfo, path: PhysicalTablePath) -> None:
        if not info.log_expires:
            return
        remote = self._logs.log(bucket, path)
        horizon_ms = self._clock.now_ms() - info.descriptor.option("table.log.ttl")
        needed = self._snapshots.log_needed_from(info, bucket) if info.lake_enabled else None
        if info.has_primary_key:  # a new machine brings the state up to date by what follows
            state_end = self._state_end(bucket)
            needed = state_end if needed is None else min(needed, state_end)
        until = 0
        for segment in remote.segments:
            if segment.max_timestamp_ms >= horizon_ms or (needed is not None and segment.end_offset > needed):
                break
            until = segment.end_offset
        if until and (count := self._logs.remove_until(bucket, path, until)):
            _LOGGER.info("%d segments of %s in the store are older than 'table.log.ttl'", count, info.path)

    def _delete_local(self, replica: BucketReplica) -> None:
        log, descriptor = replica.log, replica.table.info.descriptor
        copied = self._logs.end(replica.bucket)
        segments = log.segments()
        kept = segments[-descriptor.option("table.log.tiered.local-segments") :]
        end = kept[0].base_offset
        local_ttl_ms = descriptor.option("table.log.local-ttl")
        if local_ttl_ms is not None and local_ttl_ms > 0:
            horizon_ms = self._clock.now_ms() - local_ttl_ms
            for segment in segments[:-1]:
                if segment.last_timestamp_ms >= horizon_ms:
                    break
                end = max(end, segment.next_offset)
        end = min(end, copied, self._stored_end(replica.bucket), replica.changelog_needed_from())
        count = log.delete_segments_before(end)
        if count:
            _LOGGER.info(
                "removed %d local log segments of %s (bucket %s) that the store has; local ones begin at %d now",
                count, replica.table.info.path, replica.bucket, log.local_start_offset,
            )  # fmt: skip

    # ---- buckets that are closed, or gone ---------------------------------------------------------------------------

    def _closed_with_more(self) -> Iterator[TableBucket]:
        """Closed buckets that may have records the store's segments lack, each once in the age of a segment."""
        ends = self._logs.ends()
        for bucket in self._replicas.ends_beyond(lambda bucket: ends.get(bucket, 0)):
            if self._is_look_due(bucket):
                yield bucket

    def _is_look_due(self, bucket: TableBucket) -> bool:
        """Whether a closed bucket was not looked at for the age of a segment, as it is now."""
        now_ms = self._clock.now_ms()
        if now_ms - self._checked_ms.get(bucket, 0) <= self._settings.segment_age_ms:
            return False
        self._checked_ms[bucket] = now_ms
        return True

    def _tier_closed(self, bucket: TableBucket) -> None:
        with self._replicas.using(bucket, counts=False) as replica:
            self._tier(replica)

    def _expire_closed(self, bucket: TableBucket) -> None:
        table = self._replicas.table_of(bucket)
        path = self._replicas.physical_path(bucket)
        self._expire(bucket, table.info, path)
        if self._is_look_due(bucket) and self._has_old_files(bucket, table.info, path):
            self._tier_closed(bucket)

    def _has_old_files(self, bucket: TableBucket, info: TableInfo, path: PhysicalTablePath) -> bool:
        """Whether a closed bucket may have local segments that are to be deleted: the store has them now, or their time
        has come."""
        bases = self._replicas.segment_offsets(bucket)
        if len(bases) < 2 or bases[1] > min(self._logs.end(bucket), self._stored_end(bucket)):
            return False
        needed = self._replicas.changelog_needed_from(bucket)
        if needed is not None and bases[1] > needed:
            return False
        if len(bases) > info.descriptor.option("table.log.tiered.local-segments"):
            return True
        local_ttl_ms = info.descriptor.option("table.log.local-ttl")
        if local_ttl_ms is None or local_ttl_ms <= 0:
            return False
        first = self._logs.log(bucket, path).segments_from(bases[0], 1)
        return not first or first[0].max_timestamp_ms < self._clock.now_ms() - local_ttl_ms

    def _forget_dropped(self) -> None:
        for bucket in self._logs.known():
            if self._replicas.find_table(bucket) is None:
                self._attempt(bucket, partial(self._logs.forget, bucket))
        self._checked_ms = {b: ms for b, ms in self._checked_ms.items() if self._replicas.find_table(b) is not None}

    def _delete_doomed(self) -> None:
        doomed = self._logs.doomed()
        if doomed and not self._is_stopping and self._wait_until_stored():
            self._logs.delete(doomed)
