"""Checkpoints of a journal: from where on it has to be read, and which of its objects are deleted.

A *cut* is prepared some objects before an anchor: first it is found out up to which object everything that logs got
is in remote logs; then the metadata are taken, with the lists of these remote logs; then all files are noted again.
When all that is in the journal, the cut is complete, and the anchor has a checkpoint that names it.

A *generation* is an anchor and the ends that logs had in the journal there. When remote logs have reached these ends,
no reader needs the objects up to the anchor for logs any more.

Threads: the uploading thread alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from forebay.base.ambient import Clock
from forebay.metadata.table import TableBucket
from forebay.server.journal.feed import ImageTaken, JournalFeed
from forebay.server.metadata_store import MetadataStore
from forebay.store.journal import anchor_from, is_anchor, object_name
from forebay.store.journal_format import JournalCheckpoint
from forebay.store.objects import ObjectStore

_PREPARED_BEFORE = 16
"""So many objects before an anchor a cut is prepared; one that is not complete then waits for the next anchor."""
_DELETED_AT_ONCE = 20
"""Between two uploads, which wait: a directory takes a request for each."""


class _Cut(NamedTuple):
    needed_from: int
    noted: int
    """How many notes have to be in the journal."""


class _AnchorEnds(NamedTuple):
    number: int
    ends: Mapping[TableBucket, int]


class JournalCheckpoints:
    """The checkpoints that one server writes."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataStore,
        feed: JournalFeed,
        begun: JournalCheckpoint,
        *,
        retention_seconds: float,
        note_files: Callable[[], None],
        copied_ends: Callable[[], Mapping[TableBucket, int]],
        exists: Callable[[TableBucket], bool],
        clock: Clock,
    ) -> None:
        """`begun`: the checkpoint as it is when this server begins. `retention_seconds`: how long objects stay that are
        not needed any more. `note_files`: notes all files of the data directory that the journal has to have.
        `copied_ends`: the end of each remote log. `exists`: whether a bucket was not dropped."""
        self._store, self._metadata, self._feed, self._clock = store, metadata, feed, clock
        self._note_files, self._copied_ends, self._exists = note_files, copied_ends, exists
        self._retention_seconds = retention_seconds
        self.current = begun
        """The newest complete one; what it says may be in the journal already or not."""
        self._prepared_for = 0
        self._cut: _Cut | None = None
        self._cut_image: int | None = None
        self._generations: deque[_AnchorEnds] = deque()
        self._doomed: deque[tuple[float, int]] = deque()
        """(time from which on they are deleted, number) of objects below which none is needed."""

    def begin(self, number: int, ends: Mapping[TableBucket, int]) -> None:
        """The journal is at object `number`, with these ends of logs."""
        self._generations.append(_AnchorEnds(number, dict(ends)))

    def prepare(self, number: int) -> None:
        """Prepare a cut if the next anchor is near. `number`: the last object of the journal."""
        anchor = anchor_from(number + 1)
        if anchor - number > _PREPARED_BEFORE or anchor == self._prepared_for:
            return
        self._prepared_for = anchor
        needed_from = self._needed_from()
        self._cut = self._cut_image = None  # the image that is taken now is not that of an earlier cut
        self._metadata.pass_image(lambda image: self._feed.add(ImageTaken(image)))
        self._note_files()
        self._cut = _Cut(needed_from, self._feed.noted)

    def _needed_from(self) -> int:
        """The lowest number of an object that has what logs got and remote logs lack."""
        needed_from, copied = self.current.needed_from, self._copied_ends()
        while self._generations and self._is_copied(self._generations[0], copied):
            needed_from = self._generations.popleft().number + 1
        return needed_from

    def _is_copied(self, generation: _AnchorEnds, copied: Mapping[TableBucket, int]) -> bool:
        return all(copied.get(bucket, 0) >= end or not self._exists(bucket) for bucket, end in generation.ends.items())

    def image_stored(self, number: int) -> None:
        """The object with the image that was taken last is in the journal."""
        self._cut_image = number

    def checkpoint(self, stored: int) -> JournalCheckpoint:
        """The checkpoint for the anchor that comes next; `stored`: how many notes the journal has."""
        cut, image = self._cut, self._cut_image
        if cut is not None and image is not None and stored >= cut.noted:
            self.current = JournalCheckpoint(image, cut.needed_from, self.current.deleted_until)
            self._cut = self._cut_image = None
        return self.current

    def anchor_stored(self, number: int, ends: Mapping[TableBucket, int]) -> None:
        """The anchor `number` is in the journal, with the checkpoint of before, and logs have these ends there."""
        self._generations.append(_AnchorEnds(number, dict(ends)))
        due = self._clock.monotonic() + self._retention_seconds
        if self.current.first > (self._doomed[-1][1] if self._doomed else self.current.deleted_until):
            self._doomed.append((due, self.current.first))

    def delete_due(self) -> bool:
        """Delete some objects that are not needed; return whether there may be more. Raises `StorageFailure`."""
        if not self._doomed or self._doomed[0][0] > self._clock.monotonic():
            return False
        limit = self._doomed[0][1]
        first = self.current.deleted_until
        end = min(limit, first + _DELETED_AT_ONCE)
        self._store.delete([object_name(number) for number in _deletable(first, end, self._metadata.journal_fences())])
        self.current = replace(self.current, deleted_until=end)
        if end == limit:
            self._doomed.popleft()
        return True


def _deletable(first: int, end: int, fences: Collection[int]) -> Iterator[int]:
    return (number for number in range(max(first, 1), end) if not is_anchor(number) and number not in fences)
