"""Notes of everything that a server makes durable, in one order, until they are in the journal.

A note is made when its change is durable in the server's files, and before it is acknowledged as durable. So if a
client makes a change after another was acknowledged, they are noted in this order, and every prefix of the notes is a
state that could be seen (docs/design/0020-the-store-is-the-home.md). A note has no rows: the
uploader reads them from the files.

Threads: notes are made in any thread, under the locks of what they are about; one thread takes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from forebay.base import threads
from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.thread_rules import any_thread
from forebay.log.log_ends import EndMarks
from forebay.metadata.table import TableBucket
from forebay.server.metadata_store import ChangingStatement

_PART_BYTES = 8 << 20
"""A file is noted in parts of this size: the rows that a transaction has staged may be many objects."""


class LogEnd(NamedTuple):
    """A log is synced up to `end`."""

    bucket: TableBucket
    end: int


class LogTruncation(NamedTuple):
    """A log was cut back to `end`. It cannot be read between the cut and its note."""

    bucket: TableBucket
    end: int


class MetadataCommit(NamedTuple):
    """A transaction of the metadata store."""

    changes: Sequence[ChangingStatement]


class FilePart(NamedTuple):
    """Bytes of a file of the data directory, from `position` to `end`."""

    name: str
    position: int
    end: int


class FileRemoval(NamedTuple):
    """A file or folder of the data directory is gone."""

    name: str


class ImageTaken(NamedTuple):
    """The metadata store as it was between the commits that were noted before and after."""

    image: bytes


Note = LogEnd | LogTruncation | MetadataCommit | FilePart | FileRemoval | ImageTaken


class TimedNote(NamedTuple):
    """A note with the wall-clock time at which it was made, in ms."""

    at_ms: int
    note: Note


@any_thread
class JournalFeed:
    """The notes that are not in the journal yet."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threads.lock()
        self._notes: deque[TimedNote] = deque()
        self.noted = 0
        """How many notes were ever made. What happened before now is in the journal when that many are."""
        self._cuts: dict[TableBucket, int] = {}
        self._calls: deque[tuple[int, Callable[[], None]]] = deque()

    def add(self, note: Note) -> None:
        """Note a change."""
        with self._lock:
            if type(note) is LogTruncation:
                self._cuts[note.bucket] = self._cuts.get(note.bucket, 0) + 1
            self._notes.append(TimedNote(self._clock.now_ms(), note))
            self.noted += 1

    def metadata_committed(self, changes: Sequence[ChangingStatement]) -> None:
        """Note a transaction of the metadata store: its `on_commit`."""
        self.add(MetadataCommit(changes))

    def file_grew(self, name: str, position: int, end: int) -> None:
        """Note bytes of a file of the data directory, which are durable."""
        while position + _PART_BYTES < end:
            self.add(FilePart(name, position, position + _PART_BYTES))
            position += _PART_BYTES
        self.add(FilePart(name, position, end))

    def when_stored(self, call: Callable[[], None]) -> None:
        """Make a call, in the uploading thread, when the journal has all that is noted by now.

        To remove files that the notes are about: an object that lacked one would end in a state that never was.
        """
        with self._lock:
            self._calls.append((self.noted, call))

    def stored(self, count: int) -> None:
        """The journal has so many notes."""
        while self._calls and self._calls[0][0] <= count:
            self._calls.popleft()[1]()

    def file_removed(self, name: str) -> None:
        """Note that a file or folder of the data directory is gone."""
        self.add(FileRemoval(name))

    def first(self) -> TimedNote | None:
        """The oldest note, which stays until `take`; None if there is none."""
        return self._notes[0] if self._notes else None

    def take(self) -> TimedNote:
        """Remove the oldest note, and return it."""
        return self._notes.popleft()

    def cuts(self, bucket: TableBucket) -> int:
        """How many cuts of a log were ever noted."""
        return self._cuts.get(bucket, 0)

    def __len__(self) -> int:
        return len(self._notes)

    def marks(self, bucket: TableBucket, marks: EndMarks) -> EndMarks:
        """The marks of a bucket's log that are noted as well."""
        return _NotedMarks(self, bucket, marks)


class _NotedMarks:
    """Marks of a log's end. Synced ends are also noted: what a power failure could take back is not in the journal."""

    __slots__ = ("_bucket", "_feed", "_is_being_cut", "_marks", "written")

    def __init__(self, feed: JournalFeed, bucket: TableBucket, marks: EndMarks) -> None:
        self._feed, self._bucket, self._marks = feed, bucket, marks
        self._is_being_cut = False
        self.written = marks.written

    def begin(self, end: int) -> None:
        self._marks.begin(end)
        self._feed.add((LogTruncation if self._is_being_cut else LogEnd)(self._bucket, end))
        self._is_being_cut = False

    def synced(self, end: int) -> None:
        self._marks.synced(end)
        self._feed.add(LogEnd(self._bucket, end))

    def lower(self, end: int) -> None:
        self._is_being_cut = True
        self._marks.lower(end)
