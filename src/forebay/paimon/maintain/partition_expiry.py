"""Partition expiry (`partition.expiration-time`): a commit drops whole partitions once they are old.

Strategy `values-time` uses the time in the partition values, `update-time` the creation time of the newest file.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import Any

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import InvalidRequest
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import ManifestEntry
from forebay.paimon.format.local_time import epoch_millis
from forebay.paimon.format.partition_path import value_text
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.maintain.partition_time import PartitionTime
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.tags import local_time

VALUES_TIME, UPDATE_TIME = "values-time", "update-time"


class ExpirySchedule:
    """When a writer checks for old partitions: every `partition.expiration-check-interval`, not on each commit.

    A writer that commits only once never does, unless the interval is 0 or `end-input.check-partition-expire`, which
    exists for this case, is set.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._last_ms = clock.now_ms()

    def is_due(self, options: CoreOptions, batch: bool) -> bool:
        """Whether to check now, after a commit (`batch`: of a batch). The next check is an interval later."""
        if options.partition_expiration_time_ms is None:
            return False
        now = self._clock.now_ms()
        interval = options.partition_expiration_check_interval_ms
        if now >= self._last_ms + interval or (batch and options.end_input_check_partition_expire):
            self._last_ms = now
            return True
        return False


def newest_files(entries: Iterable[ManifestEntry]) -> dict[bytes, int | None]:
    """The creation time of the newest file of each partition; None if the files do not record it."""
    newest: dict[bytes, int | None] = {}
    for entry in entries:
        created = entry.file.creation_time
        before = newest.get(entry.partition)
        newest[entry.partition] = created if before is None or (created is not None and created > before) else before
    return newest


def idle_partitions(entries: Iterable[ManifestEntry], before_ms: int) -> frozenset[bytes]:
    """The partitions with no file created since `before_ms` (since the epoch)."""
    newest = newest_files(entries)
    return frozenset(p for p, created in newest.items() if created is not None and epoch_millis(created) < before_ms)


class PartitionExpiry:
    """Expires the partitions of one branch. Not thread-safe."""

    def __init__(
        self,
        table: TableContext,
        commit: Callable[[], FileStoreCommit],
    ) -> None:
        """`commit` creates a committer for the table."""
        self._table, self._schema, self._options = table, table.schema, table.options
        self._commit, self._clock = commit, table.clock
        self._layout = row_layout(table.schema.partition_fields)

    def expire(self, time_ms: int | None = None, *, dry_run: bool = False) -> list[dict[str, Any]]:
        """Drop the partitions older than `time_ms` (default: the table's option) and return their values.

        With `dry_run` they are only returned. At most `partition.expiration-max-num` partitions are dropped, in order
        of their values. Raises `InvalidRequest` for tables without partitions, or if no age is set.
        """
        age_ms = self._options.partition_expiration_time_ms if time_ms is None else time_ms
        if not self._schema.partition_keys:
            raise InvalidRequest("the table has no partitions that could expire")
        if age_ms is None:
            raise InvalidRequest("say how old partitions may become: option 'partition.expiration-time' is not set")
        latest = self._table.snapshots.latest()
        expired = [] if latest is None else self._expired(latest, age_ms)
        if expired and not dry_run:
            reported = frozenset(expired)
            expired = []

            def still_expired(built_on: Snapshot) -> list[bytes]:
                # By update time, a partition that was written to since is no longer old.
                expired[:] = [p for p in self._expired(built_on, age_ms) if p in reported]
                return expired

            self._commit().drop_selected(still_expired)
        names = self._schema.partition_keys
        return [dict(zip(names, self._layout.decode(p), strict=True)) for p in expired]

    def _expired(self, snapshot: Snapshot, age_ms: int) -> list[bytes]:
        """The partitions of a snapshot to drop, in order, and not too many at once."""
        partitions = self._older_than(newest_files(self._table.manifests.live_files(snapshot)), age_ms)
        partitions.sort(key=lambda p: ",".join(str(text) for text in self._texts(p).values()))
        return partitions[: self._options.partition_expiration_max_num]

    def _older_than(self, newest: dict[bytes, int | None], age_ms: int) -> list[bytes]:
        strategy = self._options.partition_expiration_strategy
        if strategy == VALUES_TIME:
            o = self._options
            time = PartitionTime(o.partition_timestamp_pattern, o.partition_timestamp_formatter)
            oldest = local_time(self._clock) - datetime.timedelta(milliseconds=age_ms)
            times = {p: time.of(self._texts(p)) for p in newest}
            return [p for p, t in times.items() if t is not None and t < oldest]
        if strategy == UPDATE_TIME:
            before = self._clock.now_ms() - age_ms
            return [p for p, created in newest.items() if created is not None and epoch_millis(created) < before]
        raise InvalidRequest(
            f"option 'partition.expiration-strategy' is {strategy!r}; write {VALUES_TIME} or {UPDATE_TIME}"
        )

    def _texts(self, partition: bytes) -> dict[str, str | None]:
        """The values of a partition as SQL text."""
        fields = self._schema.partition_fields
        return {
            f.name: None if value is None else value_text(f.type, value, legacy=False)
            for f, value in zip(fields, self._layout.decode(partition), strict=True)
        }
