"""The snapshots of one branch of a table, and lookups by id and time.

Snapshot ids are dense: from the earliest, which expiry advances, to the latest. The files LATEST and EARLIEST are only
hints. A hint is used if its snapshot exists; from LATEST, the next ids are tried, too. Otherwise the directory is
listed. Long-lived changelogs (directory `changelog`) have the form of snapshots and are found in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from forebay.base.errors import ForebayError, NotFound
from forebay.paimon.format.snapshot import FIRST_SNAPSHOT_ID, CommitKind, Snapshot
from forebay.paimon.format.snapshot_json import format_snapshot, parse_snapshot
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.store.paths import EARLIEST, LATEST, PathFactory

SNAPSHOT_PREFIX = "snapshot-"
CHANGELOG_PREFIX = "changelog-"

_LOOK_AHEAD = 64
"""The number of ids after a hint that are tried before the directory is listed."""


class NumberedFiles:
    """Files `<prefix><id>` in one directory, with hints for the smallest and largest id. Thread-safe."""

    def __init__(self, io: FileIO, directory: str, prefix: str) -> None:
        self._io, self.directory, self._prefix = io, directory, prefix

    def path(self, file_id: int) -> str:
        return f"{self.directory}/{self._prefix}{file_id}"

    def exists(self, file_id: int) -> bool:
        return self._io.exists(self.path(file_id))

    def ids(self) -> list[int]:
        """All ids, ascending, by listing the directory."""
        names = (status.path.rpartition("/")[2] for status in self._io.list(self.directory))
        numbers = (name[len(self._prefix) :] for name in names if name.startswith(self._prefix))
        return sorted(int(number) for number in numbers if number.isdigit())

    def latest(self) -> int | None:
        """The largest number; None if there are no files."""
        hint = self._hint(LATEST)
        if hint is not None and self.exists(hint):
            # Ids are dense, and hints are at most a few commits behind: looking ahead is cheaper than listing
            # thousands.
            for latest in range(hint, hint + _LOOK_AHEAD):
                if not self.exists(latest + 1):
                    return latest
        ids = self.ids()
        return ids[-1] if ids else None

    def earliest(self) -> int | None:
        hint = self._hint(EARLIEST)
        if hint is not None and self.exists(hint):
            return hint
        ids = self.ids()
        return ids[0] if ids else None

    def hinted_latest(self) -> int | None:
        """The content of the hint LATEST, which may be stale; None if there is no hint."""
        return self._hint(LATEST)

    def write_hint(self, name: str, file_id: int) -> None:
        """Replace a hint. A failure to write it is no error: readers list the directory instead."""
        with contextlib.suppress(ForebayError):
            self._io.write(f"{self.directory}/{name}", str(file_id).encode(), durable=False)

    def delete_hint(self, name: str) -> None:
        self._io.delete(f"{self.directory}/{name}")

    def _hint(self, name: str) -> int | None:
        try:
            text = self._io.read(f"{self.directory}/{name}").strip()
        except ForebayError:
            return None
        return int(text) if text.isdigit() else None


class SnapshotManager:
    """Finds and reads the snapshots of a branch. Files are read each time: a rollback may replace a snapshot's file."""

    def __init__(self, io: FileIO, paths: PathFactory) -> None:
        self.io, self.paths = io, paths
        self.files = NumberedFiles(io, paths.snapshot_directory, SNAPSHOT_PREFIX)
        self.changelogs = NumberedFiles(io, paths.changelog_directory, CHANGELOG_PREFIX)
        self._parsed: tuple[bytes, Snapshot] | None = None

    # ---- by id -----------------------------------------------------------------------------------------------------

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """Snapshot `snapshot_id`. Raises `NotFound`, with the existing ids, if it has expired or does not exist yet."""
        try:
            return self._read(snapshot_id)
        except NotFound as e:
            earliest, latest = self.earliest_id(), self.latest_id()
            range_text = "the table has none" if latest is None else f"there are {earliest} to {latest}"
            raise NotFound(f"snapshot {snapshot_id} of {self.paths.root} does not exist; {range_text}") from e

    def find(self, snapshot_id: int) -> Snapshot | None:
        """Snapshot `snapshot_id`, or None if it does not exist."""
        try:
            return self._read(snapshot_id)
        except NotFound:
            return None

    def _read(self, snapshot_id: int) -> Snapshot:
        data, parsed = self.io.read(self.files.path(snapshot_id)), self._parsed
        if parsed is None or parsed[0] != data:  # most reads are of the latest snapshot, again and again
            parsed = self._parsed = data, parse_snapshot(data)
        return parsed[1]

    def exists(self, snapshot_id: int) -> bool:
        return self.files.exists(snapshot_id)

    def latest_id(self) -> int | None:
        return self.files.latest()

    def earliest_id(self) -> int | None:
        return self.files.earliest()

    def latest(self) -> Snapshot | None:
        """The latest snapshot; None in a table without snapshots."""
        while True:
            latest_id = self.latest_id()
            if latest_id is None:
                return None
            snapshot = self.find(latest_id)
            if snapshot is not None:
                return snapshot

    def ids(self) -> list[int]:
        return self.files.ids()

    def snapshots(self) -> Iterator[Snapshot]:
        """All snapshots, oldest first. Those that expire meanwhile are skipped."""
        for snapshot_id in self.ids():
            snapshot = self.find(snapshot_id)
            if snapshot is not None:
                yield snapshot

    # ---- writing ---------------------------------------------------------------------------------------------------

    def write_latest_hint(self, snapshot_id: int) -> None:
        self.files.write_hint(LATEST, snapshot_id)

    def write_earliest_hint(self, snapshot_id: int) -> None:
        self.files.write_hint(EARLIEST, snapshot_id)

    def delete(self, snapshot_id: int) -> bool:
        return self.io.delete(self.files.path(snapshot_id))

    # ---- long-lived changelogs -------------------------------------------------------------------------------------

    def changelog(self, snapshot_id: int) -> Snapshot:
        """The changelog that outlived snapshot `snapshot_id`. Raises `NotFound`."""
        return parse_snapshot(self.io.read(self.changelogs.path(snapshot_id)))

    def write_changelog(self, snapshot: Snapshot) -> None:
        """Store `snapshot` as a changelog."""
        self.io.write(self.changelogs.path(snapshot.id), format_snapshot(snapshot))

    # ---- by time, watermark, user ----------------------------------------------------------------------------------

    def at_or_before(self, time_millis: int) -> Snapshot | None:
        """The latest snapshot created at or before `time_millis` (since the epoch); None if there is none."""
        return self._last_where(lambda s: s.time_millis <= time_millis)

    def before(self, time_millis: int) -> Snapshot | None:
        """The latest snapshot created before `time_millis`; None if there is none."""
        return self._last_where(lambda s: s.time_millis < time_millis)

    def after(self, time_millis: int) -> Snapshot | None:
        """The earliest snapshot created at or after `time_millis`; None if there is none."""
        earlier = self.before(time_millis)
        if earlier is not None:
            return self.find(earlier.id + 1)
        earliest = self.earliest_id()
        return None if earliest is None else self.find(earliest)

    def at_watermark(self, watermark: int) -> Snapshot | None:
        """The earliest snapshot whose watermark is at least `watermark`; None if there is none.

        Snapshots without a watermark precede all that have one, because watermarks never decrease.
        """
        unfinished = self._last_where(lambda s: s.watermark is None or s.watermark < watermark)
        if unfinished is not None:
            return self.find(unfinished.id + 1)
        earliest = self.earliest_id()
        return None if earliest is None else self.find(earliest)

    def latest_of_user(self, user: str, from_id: int | None = None) -> Snapshot | None:
        """The latest snapshot of `user` with an id of at least `from_id`; None if there is none."""
        latest = self.latest_id()
        if latest is None:
            return None
        lowest = max(from_id or FIRST_SNAPSHOT_ID, self.earliest_id() or FIRST_SNAPSHOT_ID)
        for snapshot_id in range(latest, lowest - 1, -1):
            snapshot = self.find(snapshot_id)
            if snapshot is None:
                earliest = self.earliest_id()
                if earliest is not None and snapshot_id < earliest:
                    return None  # expired meanwhile
                continue
            if snapshot.commit_user == user:
                return snapshot
        return None

    def latest_of_kind(self, kind: CommitKind) -> Snapshot | None:
        """The latest snapshot of `kind`; None if there is none."""
        latest, earliest = self.latest_id(), self.earliest_id()
        if latest is None or earliest is None:
            return None
        for snapshot_id in range(latest, earliest - 1, -1):
            snapshot = self.find(snapshot_id)
            if snapshot is not None and snapshot.commit_kind is kind:
                return snapshot
        return None

    def _last_where(self, holds: Callable[[Snapshot], bool]) -> Snapshot | None:
        """The latest snapshot for which `holds` is true; if it is true for one, it must be for all earlier ones."""
        low, high = self.earliest_id(), self.latest_id()
        if low is None or high is None:
            return None
        last = None
        while low <= high:
            middle = (low + high) // 2
            snapshot = self.find(middle)
            if snapshot is None:  # expired meanwhile
                low = middle + 1
            elif holds(snapshot):
                last, low = snapshot, middle + 1
            else:
                high = middle - 1
        return last
