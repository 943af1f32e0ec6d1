"""Uploads what was noted: notes become entries of the journal's objects, with the rows that the files have.

Nouns: the *stored count* is the number of notes that are in the journal; the *stored end* of a log is the offset up to
which its rows are.

An object has a prefix of the notes that are left. Notes of one log are one entry. A note of more rows than an object
takes, as of a log whose server was stopped while the store was away, becomes several objects.

Threads: one uploads; `stored_end` and `wait` may be called in any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from forebay.base import threads
from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import CorruptData, ForebayError, InvalidRequest
from forebay.base.thread_rules import any_thread
from forebay.metadata.table import TableBucket
from forebay.server.journal.checkpoints import JournalCheckpoints
from forebay.server.journal.feed import (
    FilePart,
    FileRemoval,
    ImageTaken,
    JournalFeed,
    LogEnd,
    LogTruncation,
    MetadataCommit,
)
from forebay.store import journal_format as format_
from forebay.store.journal import JournalWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LOGGER = logging.getLogger(__name__)

OBJECT_BYTES = 32 << 20
"""An object gets no further note when its payloads have this size; the last note may exceed it, by as much."""


class NotedFiles(Protocol):
    """What the notes are about. Called by the uploading thread."""

    def log_batches(self, bucket: TableBucket, first: int, end: int) -> Iterator[memoryview] | None:
        """Whole batches of a log, from `first` to `end`; None if the bucket was dropped.

        Raises `InvalidRequest` if the log has no batches that begin and end there.
        """
        ...

    def log_bytes(self, bucket: TableBucket, first: int, end: int) -> int:
        """About how many bytes these batches have; 0 if there are none (any more)."""
        ...

    def part_end(self, bucket: TableBucket, first: int, end: int, size_bytes: int) -> int:
        """The end of a batch of a log, by `end`, up to which there are at least so many bytes from `first` on."""
        ...

    def file_part(self, name: str, position: int, end: int) -> bytes | None:
        """Bytes of a file of the data directory; None if it was removed."""
        ...


@dataclass(slots=True)
class _LogRange:
    """What the notes of one object say about one log."""

    low: int
    """The lowest offset that it was cut to, or its stored end."""
    end: int


@dataclass(slots=True)
class _Object:
    """The notes that go into one object."""

    count: int = 0
    first_ms: int | None = None
    size_bytes: int = 0
    logs: dict[TableBucket, _LogRange] = field(default_factory=dict)
    others: list[tuple[format_.Entry, Buffer | None]] = field(default_factory=list)
    has_image: bool = False
    is_anchor: bool = False
    is_part: bool = False
    """Whether it has a part of a note, which is not counted yet."""


class JournalUploader:
    """Puts the notes of one feed into the journal."""

    def __init__(
        self,
        feed: JournalFeed,
        writer: JournalWriter,
        files: NotedFiles,
        stored_ends: dict[TableBucket, int] | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        object_bytes: int = OBJECT_BYTES,
        on_stored: Callable[[Mapping[TableBucket, int]], None] | None = None,
    ) -> None:
        """`stored_ends`: the end of each log in the journal so far. `on_stored` is called with the new
        ones of each object."""
        self._on_stored = on_stored
        self._feed, self._writer, self._files, self._clock = feed, writer, files, clock
        self._object_bytes = object_bytes
        self._ends = dict(stored_ends or {})
        self._changed = threads.condition()
        self._next: _Object | None = None
        """The notes of the object that is being made."""
        self._is_sent = False
        """Whether its creation has begun, and is not known to have happened."""
        self._cuts: dict[TableBucket, int] = {}
        """How many cuts of a log were among the notes that were taken."""
        self.stored_count = 0
        self.objects = 0
        """How many objects were created."""
        self.was_full = False
        """Whether the last object could not take all notes."""
        self.checkpoints: JournalCheckpoints | None = None
        """Gives anchors their checkpoints; without, they are objects like others."""
        self._failure: ForebayError | None = None

    @any_thread
    def stored_end(self, bucket: TableBucket) -> int:
        """The stored end of a log."""
        return self._ends.get(bucket, 0)

    @any_thread
    def oldest_ms(self) -> int | None:
        """When the oldest change happened that is not stored; None if all are."""
        taken, first = self._next, self._feed.first()
        if taken is not None and taken.first_ms is not None:
            return taken.first_ms
        return None if first is None else first.at_ms

    @property
    def is_unsure(self) -> bool:
        """Whether the creation of an object has failed, so that it is not known to have happened."""
        return self._is_sent

    def stored_ends(self) -> dict[TableBucket, int]:
        """The stored end of each log that has one."""
        return dict(self._ends)

    @any_thread
    def wait(self, count: int, timeout: float | None = None) -> bool:
        """Wait until this many notes are stored; return whether they are. Raises the error that ended the uploading."""
        with self._changed:
            self._changed.wait_for(lambda: self.stored_count >= count or self._failure is not None, timeout)
            if self.stored_count < count and self._failure is not None:
                raise self._failure
            return self.stored_count >= count

    def fail(self, error: ForebayError) -> None:
        """Let all who wait fail: nothing more is uploaded."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    # ---- uploading --------------------------------------------------------------------------------------------------

    def upload(self, *, even_if_empty: bool = False) -> bool:
        """Upload an object with the oldest notes, if they say anything new; return whether there were any notes.

        `even_if_empty`: upload one in any case, and return True.

        Raises `Fenced` if another server has taken over, and `StorageFailure` if it is not known whether the object is
        there: the next call finds out.
        """
        if self._next is None and self.checkpoints is not None:
            self.checkpoints.prepare(self._writer.number)
        stored = self._next or self._take_anchor(even_if_empty=even_if_empty) or self._take_notes()
        self._next = stored
        number = self._writer.number
        if self._is_sent:
            self._writer.retry()
        else:
            entries = self._entries(stored)
            if entries or even_if_empty or stored.is_anchor:
                self._is_sent = True
                self._writer.write(entries, stored.first_ms)
        if self._writer.number > number:
            self.objects += 1
        self._next, self._is_sent = None, False
        self.was_full = stored.is_anchor or stored.is_part or stored.size_bytes >= self._object_bytes
        ends = {bucket: range_.end for bucket, range_ in stored.logs.items()}
        self._ends |= ends
        if self._on_stored is not None and ends:
            self._on_stored(ends)
        with self._changed:
            self.stored_count += stored.count
            self._changed.notify_all()
        self._feed.stored(self.stored_count)
        if self.checkpoints is not None:
            if stored.has_image:
                self.checkpoints.image_stored(self._writer.number)
            if stored.is_anchor:
                self.checkpoints.anchor_stored(self._writer.number, self._ends)
        return bool(stored.count) or even_if_empty or stored.is_anchor or stored.is_part

    def _take_anchor(self, *, even_if_empty: bool) -> _Object | None:
        """The object for an anchor, if the next one is: it has the checkpoint alone, because it stays for ever."""
        if self.checkpoints is None or not self._writer.is_anchor_next:
            return None
        if self._feed.first() is None and not even_if_empty:
            return None
        first = self._feed.first()
        return _Object(
            first_ms=None if first is None else first.at_ms,  # what waits is older than the anchor
            is_anchor=True,
            others=[(self.checkpoints.checkpoint(self.stored_count), None)],
        )

    def _take_notes(self) -> _Object:
        taken = self._next = _Object()  # at once: a failure to read a file loses no note that was taken before
        while taken.size_bytes < self._object_bytes and (first := self._feed.first()) is not None:
            if type(first.note) is LogEnd:
                size = self._size_of(taken, first.note)
                if size >= 2 * self._object_bytes and (taken.count or self._take_part(taken, first.note, first.at_ms)):
                    break
                taken.size_bytes += size
            self._take_note(taken)
        return taken

    def _size_of(self, taken: _Object, note: LogEnd) -> int:
        """About how many bytes a note adds to an object."""
        range_ = taken.logs.get(note.bucket)
        end = self.stored_end(note.bucket) if range_ is None else range_.end
        return self._files.log_bytes(note.bucket, end, note.end) if note.end > end else 0

    def _take_part(self, taken: _Object, note: LogEnd, at_ms: int) -> bool:
        """Take the first rows of a note, which stays, unless it has one batch; return whether they are taken."""
        stored = self.stored_end(note.bucket)
        end = self._files.part_end(note.bucket, stored, note.end, self._object_bytes)
        if stored < end < note.end:
            taken.logs[note.bucket] = _LogRange(stored, end)
            taken.first_ms, taken.is_part = at_ms, True
        return taken.is_part

    def _take_note(self, taken: _Object) -> None:
        """Take the oldest note, which stays in the feed if this fails."""
        first = self._feed.first()
        assert first is not None
        at_ms, note = first
        match note:
            case LogEnd(bucket, end):
                self._take_end(taken, bucket, end)
            case LogTruncation(bucket, end):
                self._cuts[bucket] = self._cuts.get(bucket, 0) + 1
                range_ = self._range(taken, bucket)
                range_.low, range_.end = min(range_.low, end), min(range_.end, end)
            case MetadataCommit(changes):
                payload = format_.encode_statements(changes)
                taken.size_bytes += len(payload)
                taken.others.append((format_.MetadataChanged(at_ms), payload))
            case FilePart(name, position, end):
                part = self._files.file_part(name, position, end)
                if part is not None and len(part) == end - position:  # else it was removed, and perhaps created again
                    taken.size_bytes += len(part)
                    taken.others.append((format_.FileWritten(name, position), part))
            case ImageTaken(image):
                taken.size_bytes += len(image)
                taken.has_image = True
                taken.others.append((format_.MetadataImage(at_ms), image))
            case FileRemoval(name):
                taken.others.append((format_.Removed(name), None))
        taken.count += 1
        taken.first_ms = at_ms if taken.first_ms is None else min(taken.first_ms, at_ms)
        self._feed.take()

    def _range(self, taken: _Object, bucket: TableBucket) -> _LogRange:
        stored = self.stored_end(bucket)
        return taken.logs.setdefault(bucket, _LogRange(stored, stored))

    def _take_end(self, taken: _Object, bucket: TableBucket, end: int) -> None:
        range_ = self._range(taken, bucket)
        if end < range_.end:
            raise CorruptData(
                f"the log of bucket {bucket} ends at offset {end}, and the journal has its records up to {range_.end}: "
                "the disk has lost records; restore this server from its store"
            )
        range_.end = end

    def _entries(self, taken: _Object) -> list[tuple[format_.Entry, Buffer | None]]:
        """The entries of an object, which gets further notes if a log was cut after those that it has.

        Such a log may have other records at the same offsets already.
        """
        while True:
            try:
                logs = [entry for bucket in taken.logs for entry in self._entries_of_log(taken, bucket)]
            except InvalidRequest:
                if not self._cut_meanwhile(taken):
                    raise
            else:
                if not self._cut_meanwhile(taken):
                    return [*taken.others, *logs]  # logs may belong to tables that the metadata before them creates
            self._take_note(taken)

    def _cut_meanwhile(self, taken: _Object) -> bool:
        return any(self._feed.cuts(bucket) > self._cuts.get(bucket, 0) for bucket in taken.logs)

    def _entries_of_log(self, taken: _Object, bucket: TableBucket) -> Iterator[tuple[format_.Entry, Buffer | None]]:
        range_ = taken.logs[bucket]
        if range_.low < self.stored_end(bucket):
            yield format_.LogCut(bucket, range_.low), None
        if range_.low < range_.end:
            batches = self._files.log_batches(bucket, range_.low, range_.end)
            if batches is not None:
                yield format_.LogGrew(bucket, range_.low, range_.end), format_.joined(batches)
