"""All maintenance of a table in one place, used by the methods of `forebay.paimon.table.Table`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from forebay.base.arguments import name_list
from forebay.base.errors import ForebayError, InvalidRequest
from forebay.base.progress import OnProgress, no_progress
from forebay.base.quantity import Moment, Past, moment_ms, past_ms
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.format.split import DataSplit
from forebay.paimon.maintain.analyze import Statistics, collect, format_statistics
from forebay.paimon.maintain.auto_tags import AutoTags
from forebay.paimon.maintain.deletion import Deleted
from forebay.paimon.maintain.expire import ChangelogExpiry, Expired, Retention, SnapshotExpiry
from forebay.paimon.maintain.orphans import OrphanRemoval, Orphans
from forebay.paimon.maintain.partition_expiry import ExpirySchedule, PartitionExpiry
from forebay.paimon.maintain.purge import Purgeable, clear_consumers, purge, purgeable
from forebay.paimon.maintain.rollback import Rollback
from forebay.paimon.maintain.tag_deletion import TagDeletion
from forebay.paimon.options import CoreOptions
from forebay.paimon.read.snapshot_planner import SnapshotPlanner
from forebay.paimon.read.split_reader import SplitReader
from forebay.paimon.store.context import TableContext

_LOGGER = logging.getLogger(__name__)


class Maintenance:
    """Maintenance of one branch of a table. Not thread-safe."""

    def __init__(
        self,
        table: TableContext,
        commit: Callable[[], FileStoreCommit],
        schedule: ExpirySchedule | None = None,
    ) -> None:
        """`commit` creates a committer for the table; `schedule` decides which commits trigger partition expiry."""
        self._table, self._commit = table, commit
        self._schedule = schedule
        self._options: CoreOptions = table.options

    # -- expiry -------------------------------------------------------------------------------------------------------

    def expire_snapshots(
        self,
        retain_min: int | None = None,
        retain_max: int | None = None,
        older_than: Past | None = None,
        max_deletes: int | None = None,
        progress: OnProgress = no_progress,
        *,
        keep_from: int | None = None,
        dry_run: bool = False,
    ) -> Expired:
        """Expire snapshots, by default according to the table's options, and return the counts.

        `older_than` is a time, or a timedelta before now. Snapshots from `keep_from` on are kept. `progress` is in
        snapshots. With `dry_run` they are only counted.
        """
        expiry = SnapshotExpiry(self._table, progress)
        retention = Retention.of_snapshots(self._options)
        retention = self._retention(retention, retain_min, retain_max, older_than, max_deletes)
        return Expired(len(expiry.due(retention, keep_from) or ())) if dry_run else expiry.expire(retention, keep_from)

    def expire_changelogs(
        self,
        retain_min: int | None = None,
        retain_max: int | None = None,
        older_than: Past | None = None,
        max_deletes: int | None = None,
    ) -> Expired:
        """Expire long-lived changelogs and return the counts; the arguments are those of `expire_snapshots`."""
        return ChangelogExpiry(self._table).expire(
            self._retention(Retention.of_changelogs(self._options), retain_min, retain_max, older_than, max_deletes)
        )

    def _retention(
        self, base: Retention, least: int | None, most: int | None, older_than: Past | None, limit: int | None
    ) -> Retention:
        for name, count in (("retain_min", least), ("retain_max", most)):
            if count is not None and count < 1:
                raise InvalidRequest(f"{name} must be at least 1, as the latest snapshot is always kept; got {count}")
        retention = replace(base, least=least if least is not None else min(base.least, most or base.least))
        retention = replace(retention, most=most if most is not None else max(base.most, retention.least))
        if older_than is not None:
            now = self._table.clock.now_ms()
            retention = replace(retention, time_ms=now - past_ms(older_than, now, "older_than"))
        return retention if limit is None else replace(retention, limit=limit)

    def expire_partitions(self, at: Past | None = None, *, dry_run: bool = False) -> list[dict[str, Any]]:
        """Drop partitions older than `at` and return their values; with `dry_run`, only return them.

        The default age is the table's option.
        """
        now = self._table.clock.now_ms()
        age_ms = None if at is None else now - past_ms(at, now, "at")
        return PartitionExpiry(self._table, self._commit).expire(age_ms, dry_run=dry_run)

    def expire_tags(self, older_than: Past | None = None, *, dry_run: bool = False) -> list[str]:
        """Delete expired tags and those created before `older_than`; return their names.

        With `dry_run`, only return them.
        """
        return TagDeletion(self._table).expire(self._past_ms(older_than), dry_run=dry_run)

    def _past_ms(self, older_than: Past | None) -> int | None:
        return None if older_than is None else past_ms(older_than, self._table.clock.now_ms(), "older_than")

    def create_auto_tags(self, *, batch: bool = False) -> list[str]:
        """Create tags according to option `tag.automatic-creation`, and return their names.

        `batch`: the latest snapshot was written by a batch job, which mode batch tags.
        """
        mode = self._options.tag_automatic_creation
        if mode == "none" or (mode == "batch" and not batch):
            return []
        tags = AutoTags(self._table)
        return tags.create_of_batch() if mode == "batch" else tags.create()

    def delete_tag(self, name: str) -> Deleted:
        """Delete a tag and the files that only it needs."""
        return TagDeletion(self._table).delete(name)

    def after_commit(self, *, dedicated: bool = False, batch: bool = False, keep_from: int | None = None) -> None:
        """Run the maintenance due after each commit unless the table is `write-only`: expire old snapshots.

        `dedicated`: the commit was made by the dedicated job that maintains a `write-only` table. `batch`: it was a
        batch commit. Snapshots from `keep_from` on are kept. As the commit is already done, a failure is logged and not
        raised; the next commit retries.
        """
        if self._options.write_only and not dedicated:
            return
        try:
            self.create_auto_tags(batch=batch)
            if self._schedule is not None and self._schedule.is_due(self._options, batch):
                self.expire_partitions()
            self.expire_snapshots(keep_from=keep_from)
            if self._options.changelog_decoupled:
                self.expire_changelogs()
            if self._options.tag_time_expire_enabled:
                self.expire_tags()
        except ForebayError as e:
            _LOGGER.warning("upkeep of %s after a commit failed: %s", self._table.paths.root, e)

    # -- repair -------------------------------------------------------------------------------------------------------

    def remove_orphan_files(
        self, *, older_than: Past | None = None, dry_run: bool = False, progress: OnProgress = no_progress
    ) -> Orphans:
        """Delete unreferenced files older than a day, and return them; with `dry_run`, only return them.

        `older_than` is another time, or a timedelta before now. `progress` is in scanned snapshots and tags, and files.
        """
        removal = OrphanRemoval(self._table, progress)
        return removal.remove(older_than_ms=self._past_ms(older_than), dry_run=dry_run)

    def purge(self) -> Orphans:
        """Delete all rows and all history, and return the left-over files. See `forebay.paimon.maintain.purge`."""
        return purge(self._table, self._commit)

    def purgeable(self) -> Purgeable:
        """The counts of what `purge` would delete."""
        return purgeable(self._table)

    def clear_consumers(
        self, including: str | None = None, excluding: str | None = None, *, dry_run: bool = False
    ) -> list[str]:
        """Delete consumers whose whole id matches the regex `including`, not `excluding`; return their ids."""
        return clear_consumers(self._table, including, excluding, dry_run=dry_run)

    def rollback_to(
        self,
        *,
        snapshot: int | None = None,
        tag: str | None = None,
        timestamp: Moment | None = None,
        dry_run: bool = False,
    ) -> Snapshot:
        """Roll back to a snapshot, a tag or a time, deleting everything after it; return the new latest snapshot.

        With `dry_run`, nothing is deleted.
        """
        rollback = Rollback(self._table, dry_run=dry_run)
        if (snapshot is not None) + (tag is not None) + (timestamp is not None) != 1:
            raise InvalidRequest("say one of snapshot, tag and timestamp to roll back to")
        if snapshot is not None:
            return rollback.to_snapshot(snapshot)
        if tag is not None:
            return rollback.to_tag(tag)
        assert timestamp is not None
        return rollback.to_timestamp(moment_ms(timestamp, "timestamp"))

    # -- statistics ---------------------------------------------------------------------------------------------------

    def analyze(self, columns: Sequence[str] = (), progress: OnProgress = no_progress) -> Statistics | None:
        """Collect statistics of all rows, and of `columns`, and commit them; None for a table without snapshots.

        `progress` is in rows, before merging.
        """
        columns = name_list(columns, "columns")
        snapshot = self._table.snapshots.latest()
        if snapshot is None:
            return None
        fields = self._table.schema.fields_named(columns)
        plan = SnapshotPlanner(self._table).plan(snapshot)
        reader = SplitReader(self._table, list(columns))
        statistics = collect(_all_rows(reader, plan.splits, progress), fields, snapshot.id, self._table.schema.id)
        size = sum(e.file.file_size for e in self._table.manifests.live_files(snapshot))
        total = snapshot.total_record_count
        merged = statistics.merged_record_count or 0
        statistics = replace(statistics, merged_record_size=size * merged // total if total else 0)
        name = self._table.paths.new_statistics_name()
        self._table.io.write(self._table.paths.statistics(name), format_statistics(statistics))
        self._commit().commit_statistics(name)
        return statistics


def _all_rows(reader: SplitReader, splits: Sequence[DataSplit], progress: OnProgress) -> Iterator[pa.RecordBatch]:
    done, total = 0, sum(s.row_count for s in splits)
    for split in splits:
        progress(done, total)
        yield from reader.read(split)
        done += split.row_count
    progress(done, total)
