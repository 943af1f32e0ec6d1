"""Automatic tags: the last state of each day, hour or other period is kept under the period's name.

The first snapshot made when a period is over (by its commit time, or by its watermark) is tagged with that period's
beginning: it holds all that the period brought, and perhaps a little more. Names are those of Java Paimon
(`2024-01-31`, `2024-01-31 07`), which is also how old tags are told from tags that people made.
"""

from __future__ import annotations

import datetime
from zoneinfo import ZoneInfo

from forebay.base.clock import SYSTEM_CLOCK, Clock
from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.paimon.format.snapshot import FIRST_SNAPSHOT_ID, Snapshot
from forebay.paimon.maintain.references import BranchView
from forebay.paimon.maintain.tags import TagDeletion
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.manifests import ManifestStore
from forebay.paimon.store.tags import TagManager

_EPOCH = datetime.datetime(1970, 1, 1)
_FORMATS = {
    ("daily", "with-dashes"): "%Y-%m-%d",
    ("daily", "without-dashes"): "%Y%m%d",
    ("daily", "without-dashes-and-spaces"): "%Y%m%d",
    ("hourly", "with-dashes"): "%Y-%m-%d %H",
    ("hourly", "without-dashes"): "%Y%m%d %H",
    ("hourly", "without-dashes-and-spaces"): "%Y%m%d%H",
}
_HOURS, _MINUTES = "%Y-%m-%d %H", "%Y-%m-%d %H%M"


class Periods:
    """Periods of one length, and the names of their tags."""

    def __init__(self, options: CoreOptions) -> None:
        duration = options.tag_creation_period_duration_ms
        period = options.tag_creation_period
        hours = {"daily": 24, "hourly": 1, "two-hours": 2}[period]
        self.length = datetime.timedelta(hours=hours) if duration is None else datetime.timedelta(milliseconds=duration)
        if duration is not None:
            self._format = _MINUTES
        else:
            self._format = _FORMATS.get((period, options.tag_period_formatter), _HOURS)
        self.delay = datetime.timedelta(milliseconds=options.tag_creation_delay_ms)
        if self.delay >= self.length:
            raise InvalidRequest(f"option 'tag.creation-delay' ({self.delay}) must be shorter than a period")

    def name(self, start: datetime.datetime) -> str:
        return start.strftime(self._format)

    def start_of(self, name: str) -> datetime.datetime | None:
        """When the period of an automatic tag begins; None for other tags."""
        try:
            start = datetime.datetime.strptime(name, self._format)
        except ValueError:
            return None
        return start if self.name(start) == name else None

    def last_before(self, moment: datetime.datetime) -> datetime.datetime:
        """The beginning of the last period that is over at `moment`."""
        return moment - (moment - _EPOCH) % self.length - self.length


class AutoTags:
    """Creates the automatic tags of one branch. Not thread-safe."""

    def __init__(self, branch: BranchView, manifests: ManifestStore, clock: Clock = SYSTEM_CLOCK) -> None:
        """Raises `UnsupportedOperation` for a mode that is not built."""
        self._options = CoreOptions(branch.schema.options)
        if self._options.tag_automatic_creation == "batch":
            raise UnsupportedOperation(
                "option 'tag.automatic-creation' is 'batch'; process-time and watermark are built"
            )
        self._branch, self._snapshots = branch, branch.snapshots
        self._tags = TagManager(branch.io, branch.paths, clock)
        self._deletion = TagDeletion(branch, manifests, clock)
        self._periods = Periods(self._options)

    def create(self) -> list[str]:
        """Tag all snapshots since the last automatic tag that close a period; the names of the new tags."""
        starts = sorted(start for name in self._tags.names() if (start := self._periods.start_of(name)) is not None)
        last = starts[-1] if starts else None
        earliest = self._snapshots.earliest_id() or FIRST_SNAPSHOT_ID
        snapshot_id = earliest
        if last is not None:
            snapshot_id = max(earliest, self._tags.tag(self._periods.name(last)).snapshot.id + 1)
        created = []
        while (snapshot := self._snapshots.find(snapshot_id)) is not None:
            start = self._closed_by(snapshot, last)
            if start is not None:
                last = start
                name = self._periods.name(start)
                self._tags.create(name, snapshot, self._options.tag_default_time_retained_ms, ignore_existing=True)
                created.append(name)
            snapshot_id += 1
        if created:
            self._delete_surplus()
        return created

    def _closed_by(self, snapshot: Snapshot, last: datetime.datetime | None) -> datetime.datetime | None:
        """The period that `snapshot` is the first to come behind, if it is later than `last`."""
        moment = self._moment(snapshot)
        if moment is None:
            return None
        length = self._periods.length
        if last is None:
            return self._periods.last_before(moment)
        if moment - self._periods.delay < last + 2 * length:
            return None
        return last + length if self._options.tag_automatic_completion else self._periods.last_before(moment)

    def _moment(self, snapshot: Snapshot) -> datetime.datetime | None:
        o = self._options
        if o.tag_automatic_creation == "process-time":
            zone = None if o.sink_process_time_zone is None else ZoneInfo(o.sink_process_time_zone)
            return datetime.datetime.fromtimestamp(snapshot.time_millis / 1000, zone).replace(tzinfo=None)
        if snapshot.watermark is None or snapshot.watermark == -(1 << 63):
            return None
        zone = ZoneInfo(o.sink_watermark_time_zone)
        return datetime.datetime.fromtimestamp(snapshot.watermark / 1000, zone).replace(tzinfo=None)

    def _delete_surplus(self) -> None:
        """Delete the oldest automatic tags beyond `tag.num-retained-max`."""
        most = self._options.tag_num_retained_max
        if most is None:
            return
        automatic = [tag.name for tag in self._tags.tags() if self._periods.start_of(tag.name) is not None]
        for name in automatic[: max(0, len(automatic) - most)]:
            self._deletion.delete(name)
