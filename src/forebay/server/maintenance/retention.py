"""Log retention: which segments have expired (`table.log.ttl`) and may be deleted.

A segment is deleted as a whole when its newest record is older than the table's time to live. The active segment ends
when its oldest record is: so a record goes within twice the time to live, and a log that is no longer written becomes
empty. An expired segment is kept while it is needed by:

- readers of a lake table, until the lake has its records in a readable snapshot;
- the key-value state, until a checkpoint covers its records: one is written then;
- clients without ScanKv: they rebuild a primary-key table's rows from the whole changelog, because there are no KV
  snapshots to download. So the changelog expires only if the table sets `table.log.ttl`, or has its rows in a lake;
- the store, if there is one, until its journal has the records;
- the log itself, which first makes sure that it knows its writers without the segment
  (`LogTablet.delete_segments_before`).

Rows that were deleted or replaced lie in the files of the key-value state, too, until the engine happens to compact
them. These are removed when segments expire, at most once in a time to live.

The log starts where its first segment begins, so no other state is stored, and a crash in between leaves a log that
begins at one segment or the next. Readers below it get LOG_OFFSET_OUT_OF_RANGE.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from forebay.base.ambient import Clock
from forebay.base.errors import ForebayError
from forebay.log.tablet import SegmentInfo
from forebay.metadata.table import TableBucket, TableInfo
from forebay.server.lake.lake_snapshots import LakeSnapshots
from forebay.server.metadata.catalog import TableCatalog, buckets_of
from forebay.server.storage.replica import BucketReplica
from forebay.server.storage.replicas import ReplicaManager

_LOGGER = logging.getLogger(__name__)

_TTL = "table.log.ttl"
_NO_LIMIT = (1 << 63) - 1


def first_unexpired_offset(segments: Sequence[SegmentInfo], horizon_ms: int) -> int:
    """Return the base offset of the first segment that has a record from `horizon_ms` or later, or is active."""
    for segment in segments[:-1]:
        if segment.last_timestamp_ms >= horizon_ms:
            return segment.base_offset
    return segments[-1].base_offset


class LogRetention:
    """Deletes expired segments. Call `run` from one thread at a time."""

    def __init__(
        self,
        replicas: ReplicaManager,
        catalog: TableCatalog,
        snapshots: LakeSnapshots,
        clock: Clock,
        stored_end: Callable[[TableBucket], int] = lambda _: _NO_LIMIT,
    ) -> None:
        """`stored_end`: what is behind it stays, because the store has yet to get it."""
        self._stored_end = stored_end
        self._replicas = replicas
        self._catalog = catalog
        self._snapshots = snapshots
        self._clock = clock
        self._closed: dict[TableBucket, int | None] = {}
        """When the first record of a closed bucket was appended; None without records."""
        self._cleaned: dict[TableBucket, int] = {}
        """When the key-value state of a bucket was cleaned."""

    def run(self) -> int:
        """Remove the expired segments of all buckets; return how many. A failure affects only its own bucket."""
        count = 0
        closed: dict[TableBucket, int | None] = {}
        existing: set[TableBucket] = set()
        for table in self._catalog.tables():
            for bucket in buckets_of(table.info, table.current.partitions_by_id):
                existing.add(bucket)
                try:
                    if self._is_worth_a_look(table.info, bucket):
                        with self._replicas.using(bucket, counts=False) as replica:
                            expired = self._expire(replica)
                            count += expired
                            if expired:
                                self._clean(replica)
                    elif bucket in self._closed:
                        closed[bucket] = self._closed[bucket]
                except ForebayError as e:
                    _LOGGER.error("expired records of bucket %s are kept for now: %s", bucket, e)
        self._closed = closed
        self._cleaned = {bucket: ms for bucket, ms in self._cleaned.items() if bucket in existing}
        return count

    def _clean(self, replica: BucketReplica) -> None:
        """Remove deleted rows from the state's files, too, at most once in a time to live, because all rows are moved.

        What is deleted after that is still in the log, and goes after it.
        """
        if self._cleaned.get(replica.bucket, -1) < self._horizon_ms(replica.table.info):
            now_ms = self._clock.now_ms()
            if replica.clean_state():
                self._cleaned[replica.bucket] = now_ms

    def _is_worth_a_look(self, info: TableInfo, bucket: TableBucket) -> bool:
        """Return whether a segment may have expired. A closed bucket does not grow, so it is not opened needlessly."""
        if not info.log_expires:
            return False
        if self._replicas.opened(bucket) is not None:
            return True
        parked = self._replicas.parked(bucket)
        if parked is not None:
            return parked.expirable_ms is not None and parked.expirable_ms < self._horizon_ms(info)
        if bucket not in self._closed:
            self._closed[bucket] = self._replicas.first_record_ms(bucket)
        first_ms = self._closed[bucket]
        return first_ms is not None and first_ms < self._horizon_ms(info)

    def _horizon_ms(self, info: TableInfo) -> int:
        ttl_ms: int = info.descriptor.option(_TTL)
        return self._clock.now_ms() - ttl_ms

    def _expire(self, replica: BucketReplica) -> int:
        log = replica.log
        self._end_old_segment(replica)
        start = self._expired_until(replica)
        if start <= log.local_start_offset:
            return 0
        needed_from = replica.release_changelog(start)
        # That may take long, and the table may have been altered meanwhile: to keep its records longer, or for a lake.
        count = log.delete_segments_before(min(start, needed_from, self._expired_until(replica)))
        if count:
            _LOGGER.info(
                "removed %d segments of %s (bucket %s) that are older than 'table.log.ttl'; the log begins at %d now",
                count,
                replica.table.info.path,
                replica.bucket,
                log.local_start_offset,
            )
        return count

    def _end_old_segment(self, replica: BucketReplica) -> None:
        """Let the next append begin a segment if the active one has a record that is older than the time to live."""
        if replica.log.has_old_active(self._horizon_ms(replica.table.info)):
            replica.log.roll()

    def _expired_until(self, replica: BucketReplica) -> int:
        """The beginning of the first segment that has to stay, as the table is now."""
        log, info = replica.log, replica.table.info
        segments = log.segments()
        limit = first_unexpired_offset(segments, self._horizon_ms(info))
        limit = min(limit, log.high_watermark, self._needed_by_lake(info, replica.bucket))
        limit = min(limit, self._stored_end(replica.bucket))
        return max((s.base_offset for s in segments if s.base_offset <= limit), default=0)

    def _needed_by_lake(self, info: TableInfo, bucket: TableBucket) -> int:
        return self._snapshots.log_needed_from(info, bucket) if info.lake_enabled else _NO_LIMIT
