"""Where a read starts: option `scan.mode` and related options, for streams and batch reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forebay.base.errors import InvalidRequest, NotFound
from forebay.paimon.format.file_meta import ManifestEntry
from forebay.paimon.format.local_time import epoch_millis, parse_local_time
from forebay.paimon.format.snapshot import BATCH_COMMIT_IDENTIFIER, FIRST_SNAPSHOT_ID, CommitKind, Snapshot
from forebay.paimon.options import CoreOptions
from forebay.paimon.read.change_planner import EntryFilter
from forebay.paimon.store.context import TableContext

LATEST_FULL, LATEST, COMPACTED_FULL = "latest-full", "latest", "compacted-full"
FROM_TIMESTAMP, FROM_SNAPSHOT, FROM_SNAPSHOT_FULL = "from-timestamp", "from-snapshot", "from-snapshot-full"
FROM_FILE_CREATION_TIME, FROM_CREATION_TIMESTAMP = "from-file-creation-time", "from-creation-timestamp"
INCREMENTAL, LATEST_DELTA = "incremental", "latest-delta"

_STARTS: dict[str, tuple[str, ...]] = {
    FROM_TIMESTAMP: ("scan.timestamp-millis", "scan.timestamp"),
    FROM_SNAPSHOT: ("scan.snapshot-id", "scan.tag-name", "scan.watermark", "scan.version"),
    FROM_SNAPSHOT_FULL: ("scan.snapshot-id",),
    FROM_FILE_CREATION_TIME: ("scan.file-creation-time-millis",),
    FROM_CREATION_TIMESTAMP: ("scan.creation-time-millis",),
    INCREMENTAL: ("incremental-between", "incremental-between-timestamp", "incremental-to-auto-tag"),
}
"""The options that set the starting point, by scan mode. Other modes take none."""


def startup_mode(options: CoreOptions) -> str:
    """The scan mode; if not set, the mode implied by the other options."""
    mode = options.scan_mode
    if mode == "full":
        return LATEST_FULL
    if mode != "default":
        return mode
    if options.scan_timestamp_millis is not None or options.scan_timestamp is not None:
        return FROM_TIMESTAMP
    if (
        options.scan_snapshot_id is not None
        or options.scan_tag_name is not None
        or options.scan_watermark is not None
        or options.scan_version is not None
    ):
        return FROM_SNAPSHOT
    if options.scan_file_creation_time_millis is not None:
        return FROM_FILE_CREATION_TIME
    if options.scan_creation_time_millis is not None:
        return FROM_CREATION_TIMESTAMP
    if (
        options.incremental_between is not None
        or options.incremental_between_timestamp is not None
        or options.incremental_to_auto_tag is not None
    ):
        return INCREMENTAL
    return LATEST_FULL


@dataclass(frozen=True)
class Start:
    """Exactly one of: a snapshot to read in full first, or the first snapshot to read changes from."""

    full: Snapshot | None = None
    next_id: int | None = None


class Startup:
    """Resolves the starting point of a read. Thread-safe."""

    def __init__(self, table: TableContext) -> None:
        self._options, self._snapshots = table.options, table.snapshots
        self.mode = startup_mode(table.options)
        self._check_companions()

    def _check_companions(self) -> None:
        """Raise `InvalidRequest` for options of another scan mode, and for two that contradict each other."""
        own = _STARTS.get(self.mode, ())
        every = dict.fromkeys(option for options in _STARTS.values() for option in options)
        present = [option for option in every if self._options.mapping.get(option) is not None]
        strange = [option for option in present if option not in own]
        if strange:
            raise InvalidRequest(
                f"option '{strange[0]}' contradicts scan.mode {self.mode}"
                + (f", which takes {' or '.join(own)}" if own else ", which takes no such option")
                + "; leave one of the two out"
            )
        if len(present) > 1:
            raise InvalidRequest(f"options {' and '.join(present)} each say where to begin; leave out all but one")

    # -- what both kinds of read share --------------------------------------------------------------------------------

    def timestamp(self) -> int:
        """The time of `scan.timestamp-millis` or `scan.timestamp`, in milliseconds since the epoch."""
        if self._options.scan_timestamp_millis is not None:
            return self._options.scan_timestamp_millis
        if self._options.scan_timestamp is None:
            raise InvalidRequest(f"scan.mode {self.mode} needs option 'scan.timestamp-millis' or 'scan.timestamp'")
        return parse_local_time(self._options.scan_timestamp, "option 'scan.timestamp'")

    def snapshot_id(self) -> int:
        return self._needed("scan.snapshot-id", self._options.scan_snapshot_id)

    def entry_filter(self, *, reads_in_full: bool = False) -> EntryFilter | None:
        """A filter for the files of a full read, those created since the given time; None for all.

        `reads_in_full`: mode from-creation-timestamp is known to have started with a full read.
        """
        if self.mode == FROM_FILE_CREATION_TIME:
            option = "scan.file-creation-time-millis"
            return created_since(self._needed(option, self._options.scan_file_creation_time_millis))
        if self.mode == FROM_CREATION_TIMESTAMP and (reads_in_full or self._since_creation() is None):
            return created_since(self._creation_time())
        return None

    def compacted(self) -> Snapshot | None:
        """The snapshot of the latest compaction (a full one, if these are scheduled), otherwise the latest."""
        latest = self._snapshots.latest()
        commits = self._options.full_compaction_delta_commits
        if self._options.changelog_producer != "full-compaction" and commits is None:
            return self._snapshots.latest_of_kind(CommitKind.COMPACT) or latest
        every = commits or 1
        earliest = self._snapshots.earliest_id()
        if latest is None or earliest is None:
            return latest
        for snapshot_id in range(latest.id, earliest - 1, -1):
            snapshot = self._snapshots.find(snapshot_id)
            if snapshot is not None and snapshot.commit_kind is CommitKind.COMPACT:
                identifier = snapshot.commit_identifier
                if identifier % every == 0 or identifier == BATCH_COMMIT_IDENTIFIER:
                    return snapshot
        return latest

    # -- streams ------------------------------------------------------------------------------------------------------

    def of_stream(self, began_empty: bool) -> Start | None:
        """Where a stream starts; None if that cannot be determined yet.

        `began_empty`: the table had no snapshot when the stream was created.
        """
        snapshots, mode = self._snapshots, self.mode
        match mode:
            case "latest":
                latest = snapshots.latest_id()
                if latest is None:
                    return None
                return Start(next_id=FIRST_SNAPSHOT_ID if began_empty else latest + 1)
            case "latest-full" | "from-file-creation-time":
                return _full(snapshots.latest())
            case "compacted-full":
                return _full(self.compacted())
            case "from-timestamp":
                before = self.last_before(self.timestamp())
                return None if before is None else Start(next_id=before + 1)
            case "from-creation-timestamp":
                since = self._since_creation()
                return _full(snapshots.latest()) if since is None else self._from(since)
            case "from-snapshot":
                return self._from_snapshot(self._stream_snapshot_id())
            case "from-snapshot-full":
                return self._from_full(self.snapshot_id())
        raise InvalidRequest(f"scan.mode {mode} is for batch reads; a stream cannot begin so")

    def _stream_snapshot_id(self) -> int:
        for option in ("scan.tag-name", "scan.watermark", "scan.version"):
            if self._options.scan_snapshot_id is None and self._options.mapping.get(option) is not None:
                raise InvalidRequest(f"option '{option}' is for batch reads; a stream begins at a 'scan.snapshot-id'")
        return self.snapshot_id()

    def _from_snapshot(self, snapshot_id: int) -> Start | None:
        start = self._from(snapshot_id)
        self._check_not_ahead(snapshot_id)
        return start

    def _check_not_ahead(self, snapshot_id: int) -> None:
        """Raise `NotFound` for the id of a snapshot that is neither there nor the next one to come."""
        latest = self._snapshots.latest_id()
        if latest is not None and snapshot_id > latest + 1:
            raise NotFound(
                f"option 'scan.snapshot-id' is {snapshot_id}, but the latest snapshot of {self._snapshots.paths.root} "
                f"is {latest}; {latest + 1} is the next one to come"
            )

    def _from(self, snapshot_id: int) -> Start | None:
        earliest = self.earliest_readable()
        if earliest is None:
            return None
        self._check_not_expired(snapshot_id, earliest)
        return Start(next_id=max(snapshot_id, earliest))

    def _check_not_expired(self, snapshot_id: int, earliest: int) -> None:
        """Raise `NotFound` if the snapshot has expired. Java silently starts at the earliest one, skipping changes."""
        if FIRST_SNAPSHOT_ID <= snapshot_id < earliest:
            raise NotFound(
                f"snapshot {snapshot_id} of {self._snapshots.paths.root}, with which the stream is to begin, has "
                f"expired; the earliest is {earliest}. Begin there and miss what lies between ('scan.snapshot-id' = "
                "'0' is always the earliest), or begin with all rows ('scan.mode' = 'latest-full'); a consumer also "
                "needs 'consumer.ignore-progress' = 'true' for it"
            )

    def from_consumer(self, next_snapshot: int) -> Start | None:
        """The start of a consumer whose next snapshot is `next_snapshot`. Raises `NotFound` if that has expired."""
        return self._from(next_snapshot)

    def _from_full(self, snapshot_id: int) -> Start | None:
        earliest = self._snapshots.earliest_id()
        if earliest is None:
            return None
        self._check_not_expired(snapshot_id, earliest)
        start_id = max(snapshot_id, earliest)
        latest = self._snapshots.latest_id()
        if latest is not None and start_id > latest:
            self._check_not_ahead(start_id)
            return None  # the next one to come
        return Start(full=self._snapshots.snapshot(start_id))

    def earliest_readable(self) -> int | None:
        """The earliest snapshot, or long-lived changelog if the table keeps them, whose changes can be read."""
        if self._options.changelog_decoupled:
            earliest = self._snapshots.changelogs.earliest()
            if earliest is not None:
                return earliest
        return self._snapshots.earliest_id()

    def last_before(self, millis: int, none_if_too_early: bool = False) -> int | None:
        """The id of the last snapshot created before `millis`; if there is none, the id before the earliest one."""
        latest, earliest = self._snapshots.latest_id(), self.earliest_readable()
        if latest is None:
            return None
        if earliest is None:
            return latest - 1
        first = self.readable(earliest)
        if first is None:
            return latest - 1
        if first.time_millis >= millis:
            return None if none_if_too_early else first.id - 1
        low, high = earliest, latest
        while low < high:
            middle = (low + high + 1) // 2
            snapshot = self.readable(middle)
            if snapshot is None or snapshot.time_millis < millis:
                low = middle
            else:
                high = middle - 1
        return low

    def readable(self, snapshot_id: int) -> Snapshot | None:
        """The snapshot, or its remaining long-lived changelog; None if neither exists."""
        snapshot = self._snapshots.find(snapshot_id)
        if snapshot is None and self._options.changelog_decoupled:
            try:
                return self._snapshots.changelog(snapshot_id)
            except NotFound:
                return None
        return snapshot

    def _creation_time(self) -> int:
        return self._needed("scan.creation-time-millis", self._options.scan_creation_time_millis)

    def _since_creation(self) -> int | None:
        """The first snapshot at or after the creation time; None if it may have expired or does not exist yet."""
        before = self.last_before(self._creation_time(), none_if_too_early=True)
        if before is None or self.readable(before + 1) is None:
            return None
        return before + 1

    def since_creation(self) -> Snapshot | None:
        """The first snapshot since the creation time, for batch reads in mode from-creation-timestamp; or None."""
        snapshot_id = self._since_creation()
        return None if snapshot_id is None else self._snapshots.find(snapshot_id)

    def _needed(self, option: str, value: int | None) -> int:
        if value is None:
            raise InvalidRequest(f"scan.mode {self.mode} needs option '{option}'")
        return value


def created_since(millis: int) -> Callable[[ManifestEntry], bool]:
    """A filter for files created at or after `millis` since the epoch. Files without a creation time count as older."""

    def test(entry: ManifestEntry) -> bool:
        created = entry.file.creation_time
        return created is not None and epoch_millis(created) >= millis

    return test


def _full(snapshot: Snapshot | None) -> Start | None:
    return None if snapshot is None else Start(full=snapshot)
