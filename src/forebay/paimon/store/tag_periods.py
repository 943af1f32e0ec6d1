"""The periods of automatic tags, and their names."""

from __future__ import annotations

import datetime

from forebay.base.errors import InvalidRequest
from forebay.paimon.options import CoreOptions

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
    """Periods of one length, and their tag names."""

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
        """The start of the period of an automatic tag; None for other tags."""
        try:
            start = datetime.datetime.strptime(name, self._format)
        except ValueError:
            return None
        return start if self.name(start) == name else None

    def last_before(self, moment: datetime.datetime) -> datetime.datetime:
        """The start of the last period that has ended at `moment`."""
        return moment - (moment - _EPOCH) % self.length - self.length
