"""Tags: named snapshots (`tag/tag-<name>`), which expiry keeps.

A tag file is the snapshot's JSON, plus creation time and retention for tags with a time limit.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from typing import Any

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import AlreadyExists, CorruptData, InvalidRequest, NotFound
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.format.snapshot_json import snapshot_from_json, snapshot_to_json
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.store.paths import PathFactory

TAG_PREFIX = "tag-"


@dataclass(frozen=True, slots=True)
class Tag:
    """A named snapshot. `created` is local wall-clock time, as in Java; the tag expires at `created + retained`."""

    name: str
    snapshot: Snapshot
    created: datetime.datetime | None = None
    retained: datetime.timedelta | None = None

    def is_expired(self, now: datetime.datetime) -> bool:
        """Whether the tag has expired at the local time `now`."""
        return self.created is not None and self.retained is not None and self.created + self.retained < now


class TagManager:
    """The tags of one branch. Thread-safe."""

    def __init__(self, io: FileIO, paths: PathFactory, clock: Clock = SYSTEM_CLOCK) -> None:
        self._io, self._paths, self._clock = io, paths, clock

    def names(self) -> list[str]:
        names = (status.path.rpartition("/")[2] for status in self._io.list(self._paths.tag_directory))
        return sorted(name[len(TAG_PREFIX) :] for name in names if name.startswith(TAG_PREFIX))

    def tag(self, name: str) -> Tag:
        """The tag `name`. Raises `NotFound`, with the existing names."""
        entry = self.find(name)
        if entry is None:
            raise NotFound(f"there is no tag '{name}'; tags are {', '.join(self.names()) or 'none'}")
        return entry

    def find(self, name: str) -> Tag | None:
        """The tag `name`, or None."""
        _check_name(name)
        try:
            return _parse(name, self._io.read(self._paths.tag(name)))
        except NotFound:
            return None

    def tags(self) -> list[Tag]:
        """All tags, by snapshot and name."""
        entries = [tag for tag in map(self.find, self.names()) if tag is not None]
        return sorted(entries, key=lambda tag: (tag.snapshot.id, tag.name))

    def tagged_snapshots(self) -> list[Snapshot]:
        """The tagged snapshots, without duplicates, oldest first."""
        return list({tag.snapshot.id: tag.snapshot for tag in self.tags()}.values())

    def create(
        self, name: str, snapshot: Snapshot, retained_ms: int | None = None, ignore_existing: bool = False
    ) -> None:
        """Tag `snapshot`, for `retained_ms` milliseconds or permanently. Raises `AlreadyExists`."""
        _check_name(name)
        if self._io.create(self._paths.tag(name), self._format(snapshot, retained_ms)):
            return
        if not ignore_existing:
            raise AlreadyExists(f"there is a tag '{name}' already; replace it, or choose another name")

    def replace(self, name: str, snapshot: Snapshot, retained_ms: int | None = None) -> None:
        """Move the tag `name` to `snapshot`. Raises `NotFound`."""
        self.tag(name)
        self._io.write(self._paths.tag(name), self._format(snapshot, retained_ms))

    def rename(self, name: str, new_name: str) -> None:
        """Rename a tag. Raises `NotFound`, or `AlreadyExists` if `new_name` is taken."""
        _check_name(new_name)
        self.tag(name)
        if not self._io.create(self._paths.tag(new_name), self._io.read(self._paths.tag(name))):
            raise AlreadyExists(f"there is a tag '{new_name}' already")
        self._io.delete(self._paths.tag(name))

    def delete(self, name: str) -> Tag | None:
        """Delete the tag file; return the tag, or None if it did not exist.

        The files that only the tag needed remain; `forebay.paimon.maintain` deletes them.
        """
        entry = self.find(name)
        if entry is not None:
            self._io.delete(self._paths.tag(name))
        return entry

    def expired(self) -> list[Tag]:
        """The tags that have expired."""
        now = local_time(self._clock)
        return [tag for tag in self.tags() if tag.is_expired(now)]

    def created_before(self, before_ms: int) -> list[str]:
        """The names of tags created before `before_ms` (since the epoch); without a creation time, file time counts."""
        before = datetime.datetime.fromtimestamp(before_ms / 1000)
        modified = {
            status.path.rpartition("/")[2]: status.modified_ms for status in self._io.list(self._paths.tag_directory)
        }
        names = []
        for tag in self.tags():
            made_ms = modified.get(TAG_PREFIX + tag.name)
            old = tag.created < before if tag.created else made_ms is not None and made_ms < before_ms
            names += [tag.name] if old else []
        return names

    def _format(self, snapshot: Snapshot, retained_ms: int | None) -> bytes:
        node = snapshot_to_json(snapshot)
        if retained_ms is not None:
            created = local_time(self._clock)
            parts = [created.year, created.month, created.day, created.hour, created.minute, created.second]
            node["tagCreateTime"] = [*parts, created.microsecond * 1000]
            node["tagTimeRetained"] = retained_ms / 1000
        return json.dumps(node, indent=2, ensure_ascii=False).encode()


def local_time(clock: Clock) -> datetime.datetime:
    """The local wall-clock time, without a zone, like Java's LocalDateTime."""
    return datetime.datetime.fromtimestamp(clock.now_ms() / 1000)


def _check_name(name: str) -> None:
    if not name.strip() or "/" in name:
        raise InvalidRequest(f"{name!r} cannot name a tag: it must not be blank, nor hold a slash")


def _parse(name: str, data: bytes) -> Tag:
    try:
        node = json.loads(data)
        return Tag(name, snapshot_from_json(node), _time(node.get("tagCreateTime")), _span(node.get("tagTimeRetained")))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CorruptData(f"the file of tag '{name}' is malformed: {type(e).__name__} {e}") from e


def _time(value: Any) -> datetime.datetime | None:
    """A LocalDateTime in Jackson's form or ISO 8601.

    Jackson's form is [year, month, day, hour, minute, second, nanosecond], of which the last ones are absent when 0.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return datetime.datetime.fromisoformat(value).replace(tzinfo=None)
    year, month, day, hour, minute, second, nanos = [*value, 0, 0, 0, 0][:7]
    return datetime.datetime(year, month, day, hour, minute, second, nanos // 1000)


def _span(value: Any) -> datetime.timedelta | None:
    """A Duration in Jackson's form (seconds), or ISO 8601 ("PT24H")."""
    if value is None:
        return None
    if not isinstance(value, str):
        return datetime.timedelta(seconds=value)
    days, _, rest = value.removeprefix("P").partition("T")
    seconds = float(days.removesuffix("D") or 0) * 86_400
    number = ""
    for letter in rest:
        if letter in "HMS":
            seconds += float(number) * {"H": 3600, "M": 60, "S": 1}[letter]
            number = ""
        else:
            number += letter
    return datetime.timedelta(seconds=seconds)
