"""The ends of all logs of a data directory, stored at every write, to distinguish damage from a torn write.

Nouns: the *synced end* of a log is the offset below which everything was synced. The *written end* is the offset below
which every append was complete: every acknowledged write is below it, with any acks. Both are *marks* of the bucket,
in a *slot* of a file that is shared memory with the kernel (`FileSystem.share_words`). A mark is stored after the write
or the sync, and before its acknowledgement.

What a mark proves later:
- The synced end always holds: it is stored after the sync, so the log reaches at least so far. `kill -9` loses no mark.
  After a power failure the file may have older marks; while marks change, it is synced a few times a second
  (`sync_if_due`).
- The written end only holds while the page cache is the same (`base.host.page_cache_witnesses`): after a power failure,
  writes that were not synced may be gone.

A log that lacks anything below its marks is damaged. Nothing above them was acknowledged.

Files: `ends-of-logs-0`, and more if there are more buckets than slots in it. They are replaced at every start, with
the marks of the buckets that are still to be opened. Words of 8 bytes in the machine's byte order:

    head    1024 bytes: text, zeros. "forebay log ends 1", the byte order, a line for each witness, "crc32c" of these
    slot    16 words: table id, partition id or -1, bucket, CRC-32C of these three;
            written end, its complement; the same again; synced end, its complement; the same again; four of 0

A mark is stored into its two copies in turn, so a process that dies between two stores leaves the previous mark. A copy
whose words are not complements is ignored.

Threads: marks of a bucket are stored under the locks of its log; all else may be called in any thread.
"""

from __future__ import annotations

import logging
import struct
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from forebay.base import threads
from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import StorageFailure
from forebay.codec.crc import crc32c
from forebay.fs import names
from forebay.fs.interface import WORD_BYTES, FileSystem, SharedWords, Words
from forebay.metadata.table import TableBucket

_LOGGER = logging.getLogger(__name__)

# The sizes of the file's parts, in bytes and in words (docs/format/log_segment.md).
HEAD_BYTES = 1024
SLOT_BYTES = 16 * WORD_BYTES
_HEAD = "forebay log ends 1"
_SLOT_WORDS = 16
_HEAD_WORDS = HEAD_BYTES // WORD_BYTES
_IDENTITY = struct.Struct("<qqq")
_SLOT = struct.Struct("=16q")
_WRITTEN, _SYNCED = 4, 8
"""The place of a mark in a slot; its second copy is two words further: the same number with bit 1 set."""
_SPARE_SLOTS = 248
"""Empty slots of a new file: it then has 32 KiB."""
SYNC_SHARE = 20
"""Syncing the marks takes at most this part (a twentieth) of the time."""


class StoredMarks(NamedTuple):
    """The marks of a bucket that an earlier process left. `written` is None where it proves nothing."""

    synced: int
    written: int | None


class LogEndEvidence(NamedTuple):
    """The evidence of where one log ends: how it was closed, its checkpoint and its marks.

    As text it is the predicate of a sentence about the log.
    """

    clean: bool
    """Whether it was closed gracefully."""
    recovery_point: int | None
    """The checkpointed offset up to which it was synced, and from which it is checked; None: never checkpointed."""
    marks: StoredMarks | None = None
    """Its marks, if there are any."""

    @property
    def synced(self) -> int:
        """The offset up to which it is known to be synced."""
        return max(self.recovery_point or 0, 0 if self.marks is None else self.marks.synced)

    @property
    def written(self) -> int | None:
        """The end of its last complete append, if that is known."""
        return None if self.marks is None else self.marks.written

    @property
    def end(self) -> int:
        """The log has all below this offset, or it is damaged."""
        return max(self.synced, self.written or 0)

    def allows(self, end: int) -> bool:
        """Whether a sound log can end at `end`."""
        if self.clean and self.recovery_point is not None:
            return end == self.recovery_point
        return end >= self.end

    def __str__(self) -> str:
        if self.clean:
            return f"was closed gracefully at offset {self.synced}"
        if self.end > self.synced:
            return f"was written up to offset {self.end}"
        return f"was durable up to offset {self.synced}"


class EndMarks(Protocol):
    """The marks of one log, as its tablet sets them."""

    def begin(self, end: int) -> None:
        """The log ends at `end`, and all of it is synced. Marks may go back."""
        ...

    def written(self, end: int) -> None:
        """Appends below `end` are complete."""
        ...

    def synced(self, end: int) -> None:
        """The log is synced up to `end`."""
        ...

    def lower(self, end: int) -> None:
        """Lower the end durably, before the log is cut to `end`. Raises `StorageFailure`."""
        ...


class NoMarks:
    """For a log whose ends are not kept."""

    def begin(self, end: int) -> None:
        return

    written = synced = lower = begin


class BucketMarks:
    """The `EndMarks` in one slot."""

    __slots__ = ("_ends", "_synced", "_words", "_written")

    def __init__(self, ends: LogEnds, words: Words, slot: int) -> None:
        self._ends = ends
        self._words = words
        self._written = slot + _WRITTEN
        self._synced = slot + _SYNCED

    def begin(self, end: int) -> None:
        for _ in range(2):
            self.written(end)
            self.synced(end)

    def written(self, end: int) -> None:
        words, at = self._words, self._written
        words[at] = end
        words[at + 1] = ~end
        self._written = at ^ 2

    def synced(self, end: int) -> None:
        words, at = self._words, self._synced
        words[at] = end
        words[at + 1] = ~end
        self._synced = at ^ 2
        self._ends.changes += 1

    def lower(self, end: int) -> None:
        self.begin(end)
        self._ends.sync()


class WaitingMarks:
    """The `EndMarks` of a bucket that was opened when no slot was free and no file could be begun.

    They are kept in memory until the next file is begun, then in a slot of that file.
    """

    def __init__(self, ends: LogEnds, lock: threads.Lock) -> None:
        self._ends = ends
        self._lock = lock
        self._slot: BucketMarks | None = None
        self.marks: StoredMarks | None = None
        """None until the log is open."""

    def begin(self, end: int) -> None:
        with self._lock:
            self.marks = StoredMarks(end, end)
            if self._slot is not None:
                self._slot.begin(end)

    def written(self, end: int) -> None:
        with self._lock:
            self.marks = StoredMarks(self.marks.synced if self.marks else 0, end)
            if self._slot is not None:
                self._slot.written(end)

    def synced(self, end: int) -> None:
        with self._lock:
            self.marks = StoredMarks(end, self.marks and self.marks.written)
            if self._slot is not None:
                self._slot.synced(end)

    def lower(self, end: int) -> None:
        # An earlier process's file may have a higher mark of this bucket, which must not outlive the cut.
        self._ends.place_waiting()
        self.begin(end)
        self._ends.sync()

    def move_to(self, slot: BucketMarks) -> None:
        """Store the marks in `slot` from now on. For `LogEnds`, which holds the lock."""
        self._slot = slot
        if self.marks is not None:
            slot.begin(self.marks.synced)
            slot.written(self.marks.written or 0)


class StoredEnds(NamedTuple):
    """The content of the files of a data directory."""

    marks: dict[TableBucket, StoredMarks]
    problems: list[tuple[str, str]]
    """Damage: the file, and what is wrong with it."""
    same_cache: list[str]
    """The files whose page cache is the same as when they were written."""


def read_log_ends(fs: FileSystem, folder: str, witnesses: frozenset[str]) -> StoredEnds:
    """Read the marks in the data directory `folder`; `witnesses` are those of its page cache now."""
    stored = StoredEnds({}, [], [])
    for entry in fs.list_directory(folder):
        if names.is_log_ends_file(entry.name):
            path = names.join(folder, entry.name)
            _read_file(path, fs.read_bytes(path), witnesses, stored)
    return stored


def _read_file(path: str, data: bytes, witnesses: frozenset[str], stored: StoredEnds) -> None:
    head, _, checksum = data[:HEAD_BYTES].rstrip(b"\0").rpartition(b"crc32c ")
    lines = head.decode("utf-8", "replace").splitlines()
    is_whole = checksum == b"%08x\n" % crc32c(head) and lines[:1] == [_HEAD]
    if not is_whole:
        stored.problems.append((path, f"{path} is damaged at byte 0: its head does not have its checksum"))
    elif lines[1] != f"byte order {sys.byteorder}":
        stored.problems.append((path, f"{path} was written by a machine with another byte order, and is not used"))
        return
    same_cache = is_whole and not witnesses.isdisjoint(lines[2:])
    if same_cache:
        stored.same_cache.append(path)
    for at in range(HEAD_BYTES, len(data) - SLOT_BYTES + 1, SLOT_BYTES):
        slot = _SLOT.unpack_from(data, at)
        if not any(slot):
            continue
        table_id, partition_id, number = slot[:3]
        if not slot[3]:
            continue  # a bucket was just getting the slot, or giving it back
        if slot[3] != _identity(table_id, partition_id, number):
            stored.problems.append((path, f"{path} is damaged at byte {at}: a slot names no bucket"))
            continue
        written, synced = _mark(slot, _WRITTEN), _mark(slot, _SYNCED)
        for mark, name, place in ((written, "written", _WRITTEN), (synced, "synced", _SYNCED)):
            if mark.damaged:
                byte = at + place * WORD_BYTES
                text = f"{path} is damaged at byte {byte}: the {name} end of bucket {number} of table {table_id}"
                stored.problems.append((path, text))
        bucket = TableBucket(table_id, number, None if partition_id < 0 else partition_id)
        before = stored.marks.get(bucket, StoredMarks(0, None))
        ends = [end for end in (before.written, written.end if same_cache else None) if end is not None]
        stored.marks[bucket] = StoredMarks(max(before.synced, synced.end or 0), max(ends, default=None))


class _Mark(NamedTuple):
    end: int | None
    damaged: bool
    """Whether both copies are; one may just have been stored by half when the process died."""


def _mark(slot: tuple[int, ...], place: int) -> _Mark:
    copies = [slot[at] for at in (place, place + 2) if slot[at] >= 0 and slot[at + 1] == ~slot[at]]
    return _Mark(max(copies, default=None), not copies and any(slot[place : place + 4]))


def _identity(table_id: int, partition_id: int, bucket: int) -> int:
    return crc32c(_IDENTITY.pack(table_id, partition_id, bucket)) or 1


class LogEnds:
    """The marks of all logs of a data directory. Create one with `open`."""

    def __init__(
        self, fs: FileSystem, folder: str, witnesses: frozenset[str], stored: StoredEnds, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """For `open` only."""
        self.problems = stored.problems
        self.witnesses = witnesses
        self.changes = 0
        """Counts stores of synced ends."""
        self._stored = stored.marks
        self._waiting: dict[TableBucket, WaitingMarks] = {}
        self._fs = fs
        self._folder = folder
        self._clock = clock
        self._lock = threads.lock()
        self._files: list[SharedWords] = []
        self._slots: dict[TableBucket, tuple[Words, int]] = {}
        self._free: list[tuple[Words, int]] = []
        self._synced_changes = 0
        self._next_sync = 0.0

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        folder: str,
        witnesses: frozenset[str],
        is_needed: Callable[[TableBucket], bool],
        clock: Clock = SYSTEM_CLOCK,
    ) -> LogEnds:
        """Read the marks that earlier processes left, and begin new files with those of buckets that are needed: that
        exist, and were not closed gracefully.
        """
        stored = read_log_ends(fs, folder, witnesses)
        for bucket in [bucket for bucket in stored.marks if not is_needed(bucket)]:
            del stored.marks[bucket]
        ends = cls(fs, folder, witnesses, stored, clock)
        try:
            ends._begin_files()
        except StorageFailure as e:
            # What earlier processes left stays true, and is read again at the next start.
            _LOGGER.warning("the ends of logs are not kept, only their recovery points: %s", e.message)
        return ends

    def _begin_files(self) -> None:
        """Begin the first file, with the marks of all buckets that have any: it replaces that of an earlier process.

        Raises `StorageFailure`.
        """
        self._add_file(self._stored)
        for entry in self._fs.list_directory(self._folder):
            if names.is_log_ends_file(entry.name) and entry.name != names.log_ends_file(0):
                self._fs.remove(names.join(self._folder, entry.name))

    def _add_file(self, stored: Mapping[TableBucket, StoredMarks]) -> None:
        """Begin a file with slots for these and the waiting buckets, and empty ones. Raises `StorageFailure`."""
        marks = {bucket: waiting.marks or StoredMarks(0, None) for bucket, waiting in self._waiting.items()}
        marks.update(stored)  # of a bucket that could not be opened, too
        path = names.join(self._folder, names.log_ends_file(len(self._files)))
        slots = [_packed(bucket, end) for bucket, end in marks.items()]
        self._fs.write_atomic(path, b"".join([self._head(), *slots, bytes(_SPARE_SLOTS * SLOT_BYTES)]))
        file = self._fs.share_words(path)
        words = file.words
        self._files.append(file)
        places = [(words, at) for at in range(_HEAD_WORDS, len(words) - _SLOT_WORDS + 1, _SLOT_WORDS)]
        self._slots.update(zip(marks, places))
        self._free += reversed(places[len(slots) :])
        for bucket, waiting in self._waiting.items():
            waiting.move_to(BucketMarks(self, *self._slots[bucket]))
        self._waiting.clear()

    def _head(self) -> bytes:
        lines = [_HEAD, f"byte order {sys.byteorder}", *sorted(self.witnesses)]
        head = "".join(f"{line}\n" for line in lines).encode()
        return (head + b"crc32c %08x\n" % crc32c(head)).ljust(HEAD_BYTES, b"\0")

    def stored_marks(self, bucket: TableBucket) -> StoredMarks | None:
        """The marks that an earlier process left, of a bucket that this one has not opened yet."""
        return self._stored.get(bucket)

    def all_stored(self) -> dict[TableBucket, StoredMarks]:
        """The marks of all buckets that an earlier process left, and this one has not opened yet."""
        return dict(self._stored)

    def opened(self, bucket: TableBucket) -> None:
        """From now on the bucket's log itself tells where it ends."""
        self._stored.pop(bucket, None)

    def marks(self, bucket: TableBucket) -> EndMarks:
        """The marks of a bucket, which stay as they are until its log sets them."""
        with self._lock:
            place = self._slots.get(bucket)
            if place is None and not self._free:
                try:
                    self._add_slots()
                except StorageFailure as e:
                    _LOGGER.warning("no new file for the ends of logs, needed for %s: %s", bucket, e.message)
                place = self._slots.get(bucket)
            if place is None and not self._free:
                return self._waiting.setdefault(bucket, WaitingMarks(self, self._lock))
            if place is None:
                place = self._slots[bucket] = self._free.pop()
                words, at = place
                # The marks of a bucket that had the slot before would be taken for its own.
                BucketMarks(self, words, at).begin(0)
                for number, value in enumerate(_named(bucket)):
                    words[at + number] = value
        return BucketMarks(self, *place)

    def _add_slots(self) -> None:
        """Begin another file. Raises `StorageFailure`."""
        if self._files:
            self._add_file({})
        else:
            self._begin_files()  # which has failed before

    def place_waiting(self) -> None:
        """Give a slot to each bucket whose marks are only in memory. Raises `StorageFailure`."""
        with self._lock:
            if self._waiting:
                self._add_slots()

    def drop(self, bucket: TableBucket) -> None:
        """Forget a bucket that is gone."""
        with self._lock:
            self._stored.pop(bucket, None)
            self._waiting.pop(bucket, None)
            place = self._slots.pop(bucket, None)
            if place is not None:
                words, at = place
                for number in (3, *range(_SLOT_WORDS)):
                    words[at + number] = 0
                self._free.append(place)

    def sync(self) -> None:
        """Make all marks durable. Raises `StorageFailure`."""
        changes = self.changes
        for file in list(self._files):
            file.sync()
        self._synced_changes = changes

    @property
    def is_sync_due(self) -> bool:
        """Whether synced ends have changed that are not durable. For a while after a slow sync it is False."""
        return self.changes != self._synced_changes and self._clock.monotonic() >= self._next_sync

    def sync_if_due(self) -> None:
        """Make synced ends durable. Call it a few times a second. Raises `StorageFailure`."""
        if not self.is_sync_due:
            return
        began = self._clock.monotonic()
        try:
            self.sync()
        finally:
            now = self._clock.monotonic()
            self._next_sync = now + (now - began) * SYNC_SHARE


def _named(bucket: TableBucket) -> tuple[int, int, int, int]:
    partition_id = -1 if bucket.partition_id is None else bucket.partition_id
    return (
        bucket.table_id,
        partition_id,
        bucket.bucket,
        _identity(bucket.table_id, partition_id, bucket.bucket),
    )


def _packed(bucket: TableBucket, end: StoredMarks) -> bytes:
    marks = [value for mark in (end.written, end.synced) for value in ((0, 0) if mark is None else (mark, ~mark)) * 2]
    return _SLOT.pack(*_named(bucket), *marks, 0, 0, 0, 0)
