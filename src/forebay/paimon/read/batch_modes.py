"""Batch reads by options: `scan.mode` and related options choose a snapshot, or the changes between two.

Without these options, the latest snapshot is read. `incremental-between` takes two snapshot ids or tags; the first is
exclusive. Between ids, the changes are the appended files, or the changelog if the table has one
(`incremental-between-scan-mode`). Between tags (or with mode `diff`), the two states are compared.
`incremental-to-auto-tag` names an automatic tag and compares it with the previous one.

Where compaction decides the effect of a row of level 0 (merge engine `first-row`, deletion vectors), batch reads of
rows and of changes leave out level 0: such a row may never become visible in the table.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forebay.base.errors import InvalidRequest, NotFound
from forebay.paimon.format.local_time import parse_local_time
from forebay.paimon.format.snapshot import FIRST_SNAPSHOT_ID, CommitKind, Snapshot
from forebay.paimon.options import CoreOptions
from forebay.paimon.read.change_planner import ChangePlanner, ChangeSplit
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.startup import INCREMENTAL, LATEST_DELTA, Startup
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.tag_periods import Periods

SCAN_OPTIONS = (
    "scan.mode",
    "log.scan",
    "scan.timestamp-millis",
    "scan.timestamp",
    "scan.snapshot-id",
    "scan.tag-name",
    "scan.watermark",
    "scan.version",
    "scan.file-creation-time-millis",
    "scan.creation-time-millis",
    "incremental-between",
    "incremental-between-timestamp",
    "incremental-to-auto-tag",
)
"""The options that choose what is read, or where a stream starts."""


def chooses_snapshot(options: CoreOptions) -> bool:
    """Whether the options choose the snapshot or the changes of a batch read."""
    return any(options.mapping.get(key) is not None for key in SCAN_OPTIONS)


@dataclass(frozen=True)
class BatchPlan:
    """The result of planning a batch read. `snapshot` is None if there is nothing to read.

    `is_incremental`: the splits are changes; a reader of rows drops their deletions.
    """

    snapshot: Snapshot | None
    splits: tuple[ChangeSplit, ...]
    is_incremental: bool = False


class BatchScan:
    """Plans batch reads according to the table's options. Thread-safe."""

    def __init__(self, table: TableContext) -> None:
        self._table, self._snapshots, self._tags = table, table.snapshots, table.tags
        self._options = table.options
        self._startup = Startup(table)
        self.mode = self._startup.mode
        self._planner = ChangePlanner(table, only_visible=True)
        self._created = ChangePlanner(table, self._startup.entry_filter())

    def plan(self, scan_filter: ScanFilter) -> BatchPlan:
        """The splits to read.

        Raises `NotFound` if a snapshot or tag does not exist, `InvalidRequest` if the options contradict each other.
        """
        if self.mode == INCREMENTAL:
            return self._incremental(scan_filter)
        snapshot = self.snapshot()
        if snapshot is None:
            return BatchPlan(None, ())
        if self.mode == LATEST_DELTA:
            appended = [snapshot] if snapshot.commit_kind is CommitKind.APPEND else []
            return BatchPlan(snapshot, tuple(self._each(appended, self._planner.delta, scan_filter)), True)
        return BatchPlan(snapshot, tuple(self._created.full(snapshot, scan_filter)))

    def snapshot(self) -> Snapshot | None:
        """The snapshot that a full read uses; None if the table has none."""
        match self.mode:
            case "compacted-full":
                return self._startup.compacted()
            case "from-timestamp":
                return self._planner.at_timestamp(self._startup.timestamp())
            case "from-snapshot-full":
                return self._snapshots.snapshot(self._startup.snapshot_id())
            case "from-snapshot":
                return self._named()
            case "from-creation-timestamp":
                return self._startup.since_creation() or self._snapshots.latest()
        return self._snapshots.latest()

    def _named(self) -> Snapshot:
        o = self._options
        if o.scan_snapshot_id is not None:
            return self._snapshots.snapshot(o.scan_snapshot_id)
        if o.scan_watermark is not None:
            return self._planner.at_watermark(o.scan_watermark)
        if o.scan_tag_name is not None:
            return self._tags.tag(o.scan_tag_name).snapshot
        if o.scan_version is None:
            raise InvalidRequest(
                "scan.mode from-snapshot needs option 'scan.snapshot-id', 'scan.tag-name', 'scan.watermark' or "
                "'scan.version'"
            )
        tag = self._tags.find(o.scan_version)
        if tag is not None:
            return tag.snapshot
        if not o.scan_version.isdigit():
            raise NotFound(f"'{o.scan_version}' (option 'scan.version') is neither a tag nor the id of a snapshot")
        return self._snapshots.snapshot(int(o.scan_version))

    # -- incremental --------------------------------------------------------------------------------------------------

    def _incremental(self, scan_filter: ScanFilter) -> BatchPlan:
        if self._options.incremental_between is not None:
            return self._between(_pair("incremental-between", self._options.incremental_between), scan_filter)
        if self._options.incremental_between_timestamp is not None:
            option = "incremental-between-timestamp"
            pair = _pair(option, self._options.incremental_between_timestamp)
            return self._between_times(_time(pair[0], option), _time(pair[1], option), scan_filter)
        if self._options.incremental_to_auto_tag is not None:
            return self._to_auto_tag(self._options.incremental_to_auto_tag, scan_filter)
        raise InvalidRequest(
            "scan.mode incremental needs option 'incremental-between', 'incremental-between-timestamp' or "
            "'incremental-to-auto-tag'"
        )

    def _between(self, pair: tuple[str, str], scan_filter: ScanFilter) -> BatchPlan:
        tags = self._tags.find(pair[0]), self._tags.find(pair[1])
        if tags[0] is not None and tags[1] is not None:
            start, end = tags[0].snapshot, tags[1].snapshot
            if end.id < start.id:
                raise InvalidRequest(f"tag '{pair[1]}' is of snapshot {end.id}, before '{pair[0]}' of {start.id}")
            if self._options.incremental_between_tag_to_snapshot:
                return self._changes(start.id, end.id, scan_filter)
            return self._difference(start, end, scan_filter)
        if not (pair[0].isdigit() and pair[1].isdigit()):
            raise NotFound(f"'{pair[0]}' and '{pair[1]}' (option 'incremental-between') are not two tags, nor two ids")
        first, last = int(pair[0]), int(pair[1])
        if last < first:
            raise InvalidRequest(f"option 'incremental-between': {last} is before {first}")
        earliest, latest = self._snapshots.earliest_id(), self._snapshots.latest_id()
        if earliest is None or latest is None or first == last:
            return BatchPlan(self._snapshots.latest(), (), is_incremental=True)
        if self._options.incremental_between_scan_mode == "diff":
            return self._difference(self._snapshots.snapshot(first), self._snapshots.snapshot(last), scan_filter)
        if first < earliest - 1 or last > latest:
            raise NotFound(f"snapshots {first + 1} to {last} are not all there; there are {earliest} to {latest}")
        return self._changes(first, last, scan_filter)

    def _to_auto_tag(self, name: str, scan_filter: ScanFilter) -> BatchPlan:
        """The changes between an automatic tag and the previous one; empty if either does not exist."""
        periods = Periods(self._options)
        end_time, end = periods.start_of(name), self._tags.find(name)
        if end_time is None:
            raise InvalidRequest(
                f"option 'incremental-to-auto-tag' is '{name}', which is not a valid automatic tag name of this table; "
                f"an example is '{periods.name(periods.last_before(datetime.datetime(2024, 1, 31, 12)))}'"
            )
        starts = [start for other in self._tags.names() if (start := periods.start_of(other)) is not None]
        earlier = [start for start in starts if start < end_time]
        begin = self._tags.find(periods.name(max(earlier))) if earlier else None
        if begin is None or end is None:
            return BatchPlan(self._snapshots.latest(), (), is_incremental=True)
        return self._difference(begin.snapshot, end.snapshot, scan_filter)

    def _between_times(self, start: int, end: int, scan_filter: ScanFilter) -> BatchPlan:
        if end < start:
            raise InvalidRequest(f"option 'incremental-between-timestamp': {end} is before {start}")
        earliest_id, latest = self._snapshots.earliest_id(), self._snapshots.latest()
        earliest = None if earliest_id is None else self._snapshots.find(earliest_id)
        if earliest is None or latest is None or start == end:
            return BatchPlan(latest, (), is_incremental=True)
        if start > latest.time_millis or end < earliest.time_millis:
            return BatchPlan(latest, (), is_incremental=True)
        first, last = self._snapshots.at_or_before(start), self._snapshots.at_or_before(end) or latest
        if self._options.incremental_between_scan_mode != "diff":
            return self._changes(earliest.id - 1 if first is None else first.id, last.id, scan_filter)
        if first is None and earliest.id == FIRST_SNAPSHOT_ID:
            return BatchPlan(last, tuple(self._planner.full(last, scan_filter)))
        return self._difference(first or earliest, last, scan_filter)

    def _changes(self, first: int, last: int, scan_filter: ScanFilter) -> BatchPlan:
        """The changes of the snapshots after `first`, up to and including `last`."""
        mode = self._options.incremental_between_scan_mode
        deltas = mode == "delta" or (mode == "auto" and self._options.changelog_producer == "none")
        snapshots: list[Snapshot] = []
        for snapshot_id in range(first + 1, last + 1):
            snapshot = self._snapshots.snapshot(snapshot_id)
            kind = snapshot.commit_kind
            if kind is CommitKind.APPEND or (not deltas and kind is not CommitKind.OVERWRITE):
                snapshots.append(snapshot)
        splits = self._each(snapshots, self._planner.delta if deltas else self._planner.changelog, scan_filter)
        return BatchPlan(self._snapshots.snapshot(last), tuple(splits), is_incremental=True)

    @staticmethod
    def _each(
        snapshots: Sequence[Snapshot],
        plan: Callable[[Snapshot, ScanFilter], Sequence[ChangeSplit]],
        scan_filter: ScanFilter,
    ) -> list[ChangeSplit]:
        """The splits of all `snapshots` in order, so that the changes of a key keep their order."""
        return [split for snapshot in snapshots for split in plan(snapshot, scan_filter)]

    def _difference(self, start: Snapshot, end: Snapshot, scan_filter: ScanFilter) -> BatchPlan:
        if start.id == end.id:
            return BatchPlan(end, (), is_incremental=True)
        return BatchPlan(end, tuple(self._planner.difference(start, end, scan_filter)), is_incremental=True)


def _pair(option: str, text: str) -> tuple[str, str]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts):
        raise InvalidRequest(f"option '{option}' is {text!r}; write a start (exclusive) and an end: 'start,end'")
    return parts[0], parts[1]


def _time(text: str, option: str) -> int:
    return int(text) if text.removeprefix("-").isdigit() else parse_local_time(text, f"option '{option}'")
