"""Partitions that follow the clock: `table.auto-partition.*`.

One partition key holds a time as text, such as `20260131`, by a unit (year, quarter, month, day, hour) and a format in
which earlier times sort before later ones. The clock, the number of partitions to create ahead and the number of past
ones to keep determine the partitions of the table; `forebay.server.maintenance.auto_partitions` creates and drops them.

Rules, formats and messages of errors follow Fluss (`PartitionUtils`, `AutoPartitionStrategy`,
`TableDescriptorValidation`), except that the zone is UTC where a table names none: there it is that of the machine.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.metadata.names import check_partition_value
from forebay.metadata.table import TableDescriptor
from forebay.metadata.types import TypeRoot

DEFAULT_ZONE = "UTC"
_PREFIX = "table.auto-partition."
_DATE_FORMAT = "yyyy-MM-dd"
_FORMATS = {"year": "yyyy", "quarter": "yyyyQ", "month": "yyyyMM", "day": "yyyyMMdd", "hour": "yyyyMMddHH"}
_FIELDS = {
    "y": "year",
    "u": "year",
    "Q": "quarter",
    "q": "quarter",
    "M": "month",
    "L": "month",
    "d": "day",
    "H": "hour",
}
_WIDTHS = {"year": 4, "quarter": 1, "month": 2, "day": 2, "hour": 2}
_RANGES = {"year": (0, 9999), "quarter": (1, 4), "month": (1, 12), "day": (1, 31), "hour": (0, 23)}
_FIELDS_OF = {
    "year": ["year"],
    "quarter": ["year", "quarter"],
    "month": ["year", "month"],
    "day": ["year", "month", "day"],
    "hour": ["year", "month", "day", "hour"],
}
_OFFSET = re.compile(r"(?:GMT|UTC|UT)?([+-])(\d{1,2})(?::?(\d{2}))?")


@dataclass(frozen=True)
class TimeFormat:
    """A format of partition times: fields and the text between them, in order. All values are equally long."""

    pattern: str
    parts: tuple[tuple[str, bool], ...]
    """(name of a field, True) or (text, False)."""

    @classmethod
    def of(cls, pattern: str, unit: str) -> TimeFormat:
        """Of a pattern of Java's DateTimeFormatter. Raises `InvalidRequest` (INVALID_TABLE) unless it sorts by time."""
        parts = list(_parts(pattern))
        fields = [name for name, is_field in parts if is_field]
        if fields != _FIELDS_OF[unit]:
            raise _bad_format(pattern, f"it must have the fields {_FIELDS_OF[unit]} in this order, and has {fields}")
        time_format = cls(pattern, tuple(parts))
        try:
            check_partition_value("time", time_format.text(dt.datetime(2024, 11, 11, 11)), creating=True)
        except InvalidRequest as e:
            raise _bad_format(pattern, e.message) from e
        return time_format

    def text(self, moment: dt.datetime) -> str:
        """The partition value of a point in time in the table's zone."""
        values = {
            "year": moment.year, "quarter": (moment.month + 2) // 3, "month": moment.month, "day": moment.day,
            "hour": moment.hour,
        }  # fmt: skip
        return "".join(f"{values[part]:0{_WIDTHS[part]}d}" if is_field else part for part, is_field in self.parts)

    def matches(self, value: str) -> bool:
        """Whether a partition value is a time in this format."""
        pattern = "".join(
            rf"(?P<{part}>[0-9]{{{_WIDTHS[part]}}})" if is_field else re.escape(part) for part, is_field in self.parts
        )
        match = re.fullmatch(pattern, value)
        if match is None:
            return False
        return all(
            low <= int(match[name]) <= high for name, (low, high) in _RANGES.items() if name in match.groupdict()
        )


def _parts(pattern: str) -> list[tuple[str, bool]]:
    parts: list[tuple[str, bool]] = []
    at, quoted = 0, False
    while at < len(pattern):
        letter = pattern[at]
        if letter == "'":
            if pattern[at : at + 2] == "''":
                parts.append(("'", False))
                at += 2
                continue
            quoted = not quoted
            at += 1
            continue
        if quoted or not (letter.isascii() and letter.isalpha()):
            if not quoted and letter in "[]{}#":
                raise _bad_format(pattern, f"'{letter}' is not supported")
            parts.append((letter, False))
            at += 1
            continue
        width = len(re.match(f"{letter}+", pattern[at:])[0])  # type: ignore[index]  # it begins with that letter
        field = _FIELDS.get(letter)
        if field is None or width != _WIDTHS[field]:
            raise _bad_format(pattern, f"'{letter * width}' is not one of yyyy, Q, MM, dd, HH")
        parts.append((field, True))
        at += width
    if quoted:
        raise _bad_format(pattern, "a quotation is not closed")
    return parts


def _bad_format(pattern: str, why: str) -> InvalidRequest:
    return _invalid(f"time format '{pattern}' ('{_PREFIX}time-format') cannot be used: {why}")


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, ErrorCode.INVALID_TABLE_EXCEPTION)


def time_zone(text: str) -> dt.tzinfo:
    """A zone by its name (Asia/Shanghai, UTC) or its distance from UTC (GMT+8, +05:30). Raises `InvalidRequest`."""
    offset = _OFFSET.fullmatch(text)
    if offset is not None and int(offset[2]) < 24 and int(offset[3] or 0) < 60:
        distance = dt.timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
        return dt.timezone(-distance if offset[1] == "-" else distance)
    try:
        return ZoneInfo(text)
    except (KeyError, ValueError, OSError) as e:
        raise InvalidRequest(
            f"'{text}' ('{_PREFIX}time-zone') is no time zone: write a name such as Asia/Shanghai, or GMT+8",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        ) from e


@dataclass(frozen=True)
class AutoPartitioning:
    """The rules by which the partitions of a table follow the clock. `key` is the partition key with the time.

    `precreate`: the number of partitions to keep ready, from the current one on. `retention`: the number of past ones
    to keep; a negative number keeps all.
    """

    key: str
    unit: str
    format: TimeFormat
    zone: dt.tzinfo
    precreate: int
    retention: int
    enabled: bool = True

    @classmethod
    def of(cls, descriptor: TableDescriptor) -> AutoPartitioning | None:
        """Return a table's rules, or None if it has none. Raises `InvalidRequest` for invalid combinations of options.

        With a time format but not `enabled`, values are checked and no partition is created or dropped automatically.
        """
        enabled = bool(descriptor.option(_PREFIX + "enabled"))
        pattern = descriptor.option(_PREFIX + "time-format")
        if not descriptor.is_partitioned or not (enabled or pattern is not None):
            return None
        keys = descriptor.partition_keys
        key = descriptor.option(_PREFIX + "key") or keys[0]
        unit: str = descriptor.option(_PREFIX + "time-unit").lower()
        rules = cls(
            key,
            unit,
            TimeFormat.of(_FORMATS[unit] if pattern is None else pattern, unit),
            time_zone(descriptor.option(_PREFIX + "time-zone") or DEFAULT_ZONE),
            descriptor.option(_PREFIX + "num-precreate"),
            descriptor.option(_PREFIX + "num-retention"),
            enabled,
        )
        if enabled:
            rules._check(descriptor)
        return rules

    def _check(self, descriptor: TableDescriptor) -> None:
        keys = descriptor.partition_keys
        if len(keys) > 1 and _PREFIX + "key" not in descriptor.properties:
            raise _invalid(f"a table with several partition keys needs '{_PREFIX}key', the one that holds the time")
        if self.key not in keys:
            raise _invalid(f"'{_PREFIX}key' is '{self.key}', which is not one of the partition keys {list(keys)}")
        if len(keys) > 1 and self.precreate > 0:
            raise _invalid(
                f"'{_PREFIX}num-precreate' must be 0 for a table with several partition keys, not {self.precreate}: "
                "the values of the other keys are unknown"
            )
        if descriptor.schema.column(self.key).data_type.root is TypeRoot.DATE and (
            self.unit != "day" or self.format.pattern != _DATE_FORMAT
        ):
            raise _invalid(
                f"partition key '{self.key}' is a DATE, so '{_PREFIX}time-unit' must be DAY and "
                f"'{_PREFIX}time-format' must be '{_DATE_FORMAT}'"
            )

    # ---- what there should be ---------------------------------------------------------------------------------------

    def value(self, now_ms: int, offset: int = 0) -> str:
        """The partition value of the unit `offset` units after the current one."""
        moment = dt.datetime.fromtimestamp(now_ms / 1000, self.zone)
        try:
            return self.format.text(_shifted(moment, self.unit, offset))
        except (OverflowError, ValueError):  # before the year 1, or after 9999
            return self.format.text(dt.datetime.min if offset < 0 else dt.datetime.max)

    def values_to_create(self, now_ms: int) -> list[str]:
        """Return the values for which partitions should exist."""
        return [self.value(now_ms, offset) for offset in range(self.precreate)]

    def has_expired(self, value: str, now_ms: int) -> bool:
        """Return whether a partition with this value has expired."""
        if not self.enabled or self.retention < 0 or not self.format.matches(value):
            return False
        return value < self.value(now_ms, -self.retention)

    def check_new(self, value: str, now_ms: int) -> None:
        """Raise `InvalidRequest` (PARTITION_SPEC_INVALID) for a new partition whose value is invalid or expired."""
        if not self.format.matches(value):
            raise InvalidRequest(
                f"partition value '{value}' of '{self.key}' is no {self.unit} in the format '{self.format.pattern}'",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            )
        if self.has_expired(value, now_ms):
            raise InvalidRequest(
                f"partition value '{value}' of '{self.key}' is out of date: partitions are kept from "
                f"'{self.value(now_ms, -self.retention)}' on ('{_PREFIX}num-retention' = {self.retention})",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            )


def _shifted(moment: dt.datetime, unit: str, count: int) -> dt.datetime:
    """`count` units later, at a time of day that no change of summer time takes to another day."""
    if unit == "hour":
        return (moment.astimezone(dt.UTC) + dt.timedelta(hours=count)).astimezone(moment.tzinfo)
    plain = moment.replace(tzinfo=None, hour=12)
    if unit == "day":
        return plain + dt.timedelta(days=count)
    months = plain.year * 12 + plain.month - 1 + count * {"year": 12, "quarter": 3, "month": 1}[unit]
    return plain.replace(year=months // 12, month=months % 12 + 1, day=1)
