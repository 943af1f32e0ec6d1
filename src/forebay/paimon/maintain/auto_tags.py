"""Automatic tags: the last state of each day, hour or other period is kept under the period's name.

The first snapshot after the end of a period (by its commit time, or by its watermark) is tagged with the start of that
period: it contains all rows of the period, and perhaps a few later ones. Names are those of Java Paimon (`2024-01-31`,
`2024-01-31 07`), which also distinguish automatic tags from tags that users created.

In mode `batch`, each batch commit moves the tag of its day, `batch-write-2024-01-31` (or the one named by
`tag.batch.customized-name`), to its snapshot.
"""

from __future__ import annotations

import datetime
import re
from contextlib import suppress
from zoneinfo import ZoneInfo

from forebay.base.errors import AlreadyExists
from forebay.paimon.format.snapshot import FIRST_SNAPSHOT_ID, Snapshot
from forebay.paimon.maintain.tag_deletion import TagDeletion
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.tag_periods import Periods

_BATCH_PREFIX = "batch-write-"
_BATCH_NAME = re.compile(_BATCH_PREFIX + r"\d{4}-\d\d-\d\d")


class AutoTags:
    """Creates the automatic tags of one branch. Not thread-safe."""

    def __init__(self, table: TableContext) -> None:
        self._options, self._snapshots, self._tags = table.options, table.snapshots, table.tags
        self._deletion = TagDeletion(table)
        self._periods = Periods(self._options)

    def create(self) -> list[str]:
        """Tag all snapshots since the last automatic tag that complete a period; return the names of the new tags."""
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

    def create_of_batch(self) -> list[str]:
        """Move the tag of the day, or the one named by the table's option, to the latest snapshot; return its name."""
        latest = self._snapshots.latest()
        if latest is None:
            return []
        day = self._process_time(latest).strftime("%Y-%m-%d")
        name = self._options.tag_batch_customized_name or _BATCH_PREFIX + day
        self._move(name, latest)
        self._delete_surplus()
        return [name]

    def _move(self, name: str, latest: Snapshot) -> None:
        """Have tag `name` at the latest snapshot, which is `latest`, or one that another process has committed since.

        That process moves the tag, too: a tag that is there is never moved back.
        """
        while (there := self._tags.find(name)) is None or there.snapshot.id <= latest.id:
            if there is not None:
                self._deletion.delete_unchanged(there)
            with suppress(AlreadyExists):
                self._tags.create(name, latest, self._options.tag_default_time_retained_ms)
                return

    def _process_time(self, snapshot: Snapshot) -> datetime.datetime:
        zone = self._options.sink_process_time_zone
        moment = datetime.datetime.fromtimestamp(snapshot.time_millis / 1000, None if zone is None else ZoneInfo(zone))
        return moment.replace(tzinfo=None)

    def _is_automatic(self, name: str) -> bool:
        if self._options.tag_automatic_creation == "batch":
            return _BATCH_NAME.fullmatch(name) is not None
        return self._periods.start_of(name) is not None

    def _closed_by(self, snapshot: Snapshot, last: datetime.datetime | None) -> datetime.datetime | None:
        """The period that `snapshot` completes, if it is later than `last`; otherwise None."""
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
            return self._process_time(snapshot)
        if snapshot.watermark is None or snapshot.watermark == -(1 << 63):
            return None
        zone = ZoneInfo(o.sink_watermark_time_zone)
        return datetime.datetime.fromtimestamp(snapshot.watermark / 1000, zone).replace(tzinfo=None)

    def _delete_surplus(self) -> None:
        """Delete the oldest automatic tags beyond `tag.num-retained-max`."""
        most = self._options.tag_num_retained_max
        if most is None:
            return
        automatic = [tag for tag in self._tags.tags() if self._is_automatic(tag.name)]
        for tag in automatic[: max(0, len(automatic) - most)]:
            self._deletion.delete_unchanged(tag)
