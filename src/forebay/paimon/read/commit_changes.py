"""The row changes of each snapshot in a range, including those of overwrites, which streams skip.

A table with a primary key records changes in changelog files. No file has the rows that an overwrite removed, so a
range with an overwrite is refused. An append table has no updates: rows that a snapshot rewrote are compared, and
those that differ are deletes and inserts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.paimon.format.file_meta import FileKind
from forebay.paimon.format.snapshot import FIRST_SNAPSHOT_ID, CommitKind, Snapshot
from forebay.paimon.options import CoreOptions
from forebay.paimon.read.change_planner import ChangeSplit
from forebay.paimon.read.expired import expiry_errors
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.stream import StreamScan
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import merge_entries


def check_has_changes(table: TableContext) -> None:
    """Raise `UnsupportedOperation` for a table whose snapshots do not record all changes."""
    if table.schema.has_primary_key and table.options.changelog_producer == "none":
        raise UnsupportedOperation(
            "a table with changelog-producer none records what was written, and not what was there before: set "
            "'changelog-producer' to 'lookup' or 'full-compaction' for the changes from then on"
        )


class CommitScan(StreamScan):
    """Plans the changes of the snapshots from `start` on: the first one's id, or milliseconds (`is_time`)."""

    def __init__(
        self,
        table: TableContext,
        scan_filter: ScanFilter,
        start: int,
        *,
        is_time: bool = False,
        cut_by_file: bool = False,
    ) -> None:
        """Raises `UnsupportedOperation` as `check_has_changes`."""
        check_has_changes(table)
        super().__init__(table, scan_filter, cut_by_file=cut_by_file)
        self._from, self._is_time = start, is_time

    def splits(self, stop: int | None) -> list[ChangeSplit]:
        """The splits of all snapshots before `stop` (None: up to the latest), in order.

        Raises `InvalidRequest` if changes of the range may have expired, `UnsupportedOperation` for an overwrite of a
        table with a primary key.
        """
        first, latest = self._first_id(), self._snapshots.latest_id()
        if first is None or latest is None:
            return []
        last = latest
        if stop is not None:
            last = min(latest, (self._startup.last_before(stop) or 0) if self._is_time else stop - 1)
        change_splits: list[ChangeSplit] = []
        for snapshot_id in range(first, last + 1):
            snapshot = self._startup.readable(snapshot_id)
            if snapshot is None:
                raise self._expired(snapshot_id)
            with expiry_errors(self._snapshots, snapshot_id):
                change_splits += self._changes_of(snapshot)
        return change_splits

    def _first_id(self) -> int | None:
        """The first snapshot of the range, which may not exist yet; None in a table without snapshots."""
        earliest = self._startup.earliest_readable()
        if earliest is None:
            return None
        first = (
            (self._startup.last_before(self._from) or 0) + 1 if self._is_time else max(FIRST_SNAPSHOT_ID, self._from)
        )
        # Snapshots of a time range before the earliest one may have expired.
        if first < earliest or (self._is_time and first == earliest > FIRST_SNAPSHOT_ID):
            raise InvalidRequest(
                f"changes of this range may have expired: the earliest snapshot of {self._table.paths.root} is "
                f"{earliest}. Begin the range later; 'snapshot.time-retained' and 'changelog.time-retained' keep more"
            )
        return first

    def _start(self) -> bool:
        now = self._table.clock.now_ms()
        if self._is_time and self._from > now:
            raise InvalidRequest(f"the changes begin at {self._from} ms, and it is {now} ms: no stream begins later")
        first, latest = self._first_id(), self._snapshots.latest_id()
        if first is None:
            return False
        if latest is not None and first > latest + 1:
            raise InvalidRequest(
                f"the changes begin with snapshot {first}, and the next one of {self._table.paths.root} is "
                f"{latest + 1}: begin there or earlier"
            )
        self._begin_with(first)
        return True

    def _changes_of(self, snapshot: Snapshot) -> Sequence[ChangeSplit]:
        removes = snapshot.commit_kind is CommitKind.OVERWRITE and self._removes(snapshot)
        if self._table.schema.has_primary_key:
            self._check_changes_exist(snapshot, removes)
            if snapshot.changelog_manifest_list is None:
                return ()
            return self._changes.changelog(snapshot, self._filter, self._buckets)
        if snapshot.commit_kind not in (CommitKind.APPEND, CommitKind.OVERWRITE):
            return ()
        before = self._snapshots.find(snapshot.id - 1)
        if before is None and (removes or (snapshot.index_manifest and snapshot.id > FIRST_SNAPSHOT_ID)):
            raise InvalidRequest(
                f"snapshot {snapshot.id - 1} of {self._table.paths.root} has expired, and with it the rows that "
                f"snapshot {snapshot.id} removed: begin the range later"
            )
        # Rows are also removed by deletion vectors of files that stay.
        if before is not None and before.index_manifest != snapshot.index_manifest:
            return self._changes.difference(before, snapshot, self._filter, self._buckets)
        if removes:
            halves = self._changes.overwritten(snapshot, self._filter, self._buckets)
            return [replace(split, is_streaming=False) for split in halves]
        return self._changes.delta(snapshot, self._filter, self._buckets)

    def _removes(self, snapshot: Snapshot) -> bool:
        manifests = self._table.manifests
        entries = merge_entries(manifests.entries(manifests.delta_manifests(snapshot)))
        return any(entry.kind is FileKind.DELETE and entry.file.row_count for entry in entries)

    def _check_changes_exist(self, snapshot: Snapshot, removes: bool) -> None:
        """Raise `UnsupportedOperation` for a snapshot of a primary-key table whose changes are in no file."""
        where = f"snapshot {snapshot.id} of {self._table.paths.root}"
        if removes:
            raise UnsupportedOperation(
                f"{where} is an overwrite, and the table does not record the rows that it removed: read the changes "
                f"before it and from snapshot {snapshot.id + 1} on, and the table in between"
            )
        then = CoreOptions(self._table.schemas.schema(snapshot.schema_id).options)
        if snapshot.commit_kind is CommitKind.APPEND and then.changelog_producer == "none":
            raise UnsupportedOperation(f"{where} was written when the table had no changelog-producer: begin later")
