"""One segment of a bucket's log: a file of batches with the indexes that lead into it.

Nouns: the *view* of a segment is the part that readers may see: a number of bytes, and the offset where they end. An
append writes the file, then the index, and publishes a new view last. Readers take the view once and never look beyond
it.

Flow of a read: nearest index entry at or before the requested offset, one `pread` of the budget plus the index
interval, a few header steps to the first requested batch, a jump by the index to near the end of the budget, a few more
steps. So its cost does not grow with the number of batches that it returns, and the bytes are returned without a copy.

An *entry* of an index names a batch. The offset index has (base offset relative to the segment's, position), 4 + 4
bytes; the time index has (commit timestamp in ms, base offset relative to the segment's), 8 + 4 bytes; both big-endian,
as in Fluss. In either, both columns grow strictly. The first batch has no entry; another batch gets one when it begins
more than the index interval after the last batch that has one, in the time index only if its timestamp is new.

Rule: **an index is a hint, the log is the truth.** Index files are never synced. They are read once, cut at the first
entry that breaks the order, and extended to the segment's end from the log. Every use of an entry compares it with the
batch that it names, and rebuilds the index if they differ. So a lost, short, stale or damaged index file costs time and
never gives a wrong answer. Prior art: Kafka's `OffsetIndex` and `TimeIndex`, which are memory-mapped and trusted.

Threads: `sync` and the readers' part may run in any thread; all else belongs to the tablet's appender. Any number of
threads look up in an index at the same time: its arrays only grow, or are replaced whole.
"""

from __future__ import annotations

import contextlib
import traceback
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from forebay.base import threads
from forebay.base.errors import CorruptData, InternalError, StorageFailure, check
from forebay.codec.log._batch_chain import consecutive_batches
from forebay.codec.log.header import HEADER_SIZE_MAX, LogBatchHeader, iter_headers, verify_crc
from forebay.fs import names
from forebay.fs.interface import AppendFile, FileMissing, FileSystem, PositionalReader
from forebay.log.config import SEGMENT_BYTES_LIMIT, LogConfig
from forebay.log.damage import Gap, Segment, find_gap, may_be_torn
from forebay.log.scan import CorruptBatch, corrupt_batch, parse_at, scan_batches, scan_headers

if TYPE_CHECKING:
    from typing_extensions import Buffer


_FLUSH_ENTRIES = 128
"""The number of entries buffered in memory before they are appended to the file."""

_RELATIVE_MAX = 2**31 - 1
"""The maximum distance of an offset from its segment's base: index entries have 4 bytes for it. A segment is full
long before, unless batches claim more records than they have."""


class SparseIndex:
    """One index file: pairs of a key and a value, both strictly increasing."""

    def __init__(self, fs: FileSystem, path: str, key_code: str) -> None:
        """`key_code` is the `array` type code of the keys: "i" for 4 bytes, "q" for 8."""
        self._fs = fs
        self._path = path
        self._key_code = key_code
        key_type = ">i4" if key_code == "i" else ">i8"
        self._entry = np.dtype([("key", key_type), ("value", ">i4")])
        self._columns: tuple[array[int], array[int]] = (array(key_code), array("i"))
        self._stored = 0
        self._file_is_longer = False

    def __len__(self) -> int:
        return len(self._columns[0])

    def append(self, key: int, value: int) -> None:
        """Add an entry above all others. It reaches the file later: see `flush`."""
        keys, values = self._columns
        values.append(value)
        keys.append(key)  # Last, because lookups take the number of entries from the keys.
        if len(keys) - self._stored >= _FLUSH_ENTRIES:
            self.flush()

    def floor(self, key: int) -> tuple[int, int] | None:
        """The last entry whose key is at most `key`."""
        keys, values = self._columns
        index = bisect_right(keys, key, 0, len(keys)) - 1
        return (keys[index], values[index]) if index >= 0 else None

    def ceiling(self, key: int) -> tuple[int, int] | None:
        """The first entry whose key is at least `key`."""
        keys, values = self._columns
        count = len(keys)
        index = bisect_left(keys, key, 0, count)
        return (keys[index], values[index]) if index < count else None

    def last(self) -> tuple[int, int] | None:
        """The last entry."""
        keys, values = self._columns
        count = len(keys)
        return (keys[count - 1], values[count - 1]) if count else None

    def values(self) -> list[int]:
        """The values of all entries."""
        return self._columns[1].tolist()

    def load(self, value_end: int, *, is_remote: bool = False) -> None:
        """Take the entries from the file, up to the first that breaks the order or has a value of `value_end` or more.

        A missing file gives none, and so does an unreadable one, unless it `is_remote`: then this raises
        `StorageFailure`.
        """
        try:
            data = self._fs.read_bytes(self._path)
        except StorageFailure as e:
            if is_remote and not isinstance(e, FileMissing):
                raise
            data = b""
        count = len(data) // self._entry.itemsize
        entries = np.frombuffer(data, self._entry, count)
        keys = entries["key"].astype(np.int64)
        values = entries["value"].astype(np.int64)
        bad = (values <= 0) | (values >= value_end) | (keys < 0)
        bad[1:] |= (np.diff(keys) <= 0) | (np.diff(values) <= 0)
        if bad.any():
            count = int(bad.argmax())
        self._columns = (
            array(self._key_code, keys[:count].astype(self._key_code).tobytes()),
            array("i", values[:count].astype("i").tobytes()),
        )
        self._stored = count
        self._file_is_longer = len(data) > count * self._entry.itemsize

    def truncate(self, count: int) -> None:
        """Keep the first `count` entries."""
        keys, values = self._columns
        if count < len(keys):
            self._columns = (keys[:count], values[:count])
            self._file_is_longer = self._file_is_longer or count < self._stored
            self._stored = min(self._stored, count)

    def truncate_values(self, value_end: int) -> None:
        """Keep the entries whose value is below `value_end`."""
        self.truncate(bisect_left(self._columns[1], value_end))

    def flush(self) -> None:
        """Append to the file what it does not hold yet. A failure leaves it short, which a later load makes good."""
        keys = self._columns[0]
        if self._stored == len(keys) and not self._file_is_longer:
            return
        with contextlib.suppress(StorageFailure):
            file = self._fs.open_append(self._path)
            try:
                if file.size != self._stored * self._entry.itemsize:
                    # Bytes of an append that failed half-way, or entries that were cut off since.
                    file.truncate(self._stored * self._entry.itemsize)
                file.append([self.as_bytes(self._stored)])
                self._stored = len(keys)
                self._file_is_longer = False
            finally:
                file.close()

    def as_bytes(self, first: int = 0) -> bytes:
        """The entries from number `first` on, as they are in the file."""
        keys, values = self._columns
        count = len(keys)
        entries = np.empty(count - first, self._entry)
        entries["key"] = keys[first:count]
        entries["value"] = values[first:count]
        return entries.tobytes()

    def after(self, value: int, key: int) -> bytes:
        """The entries above `value`, as in the file of a segment that begins there, and whose keys begin at `key`."""
        entries = np.frombuffer(self.as_bytes(bisect_right(self._columns[1], value)), self._entry).copy()
        entries["key"] -= key
        entries["value"] -= value
        return entries.tobytes()

    def remove_file(self) -> None:
        """Remove the file, if there is one; the next flush rewrites it. One that cannot be removed is merely stale."""
        self._stored = 0
        self._file_is_longer = False
        with contextlib.suppress(StorageFailure):
            self._fs.remove(self._path)


class SegmentIndex:
    """The offset index and the time index of the segment that begins at `base_offset`."""

    def __init__(self, fs: FileSystem, folder: str, base_offset: int, interval_bytes: int) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._offsets = SparseIndex(fs, names.offset_index_file(folder, base_offset), "i")
        self._times = SparseIndex(fs, names.time_index_file(folder, base_offset), "q")
        self._last_position = 0
        self._last_time = -1

    @property
    def entry_count(self) -> int:
        """Entries of the offset index."""
        return len(self._offsets)

    @property
    def next_position(self) -> int:
        """A batch that begins before this position gets no entry."""
        return self._last_position + self._interval_bytes

    def note(self, offset: int, position: int, timestamp_ms: int) -> None:
        """Record the batch at `position`, which follows the last recorded one; it gets an entry if one is due."""
        if position - self._last_position <= self._interval_bytes or offset - self._base_offset > _RELATIVE_MAX:
            return
        self._offsets.append(offset - self._base_offset, position)
        self._last_position = position
        if timestamp_ms > self._last_time:
            self._times.append(timestamp_ms, offset - self._base_offset)
            self._last_time = timestamp_ms

    def floor(self, offset: int) -> tuple[int, int]:
        """(base offset, position) of a batch that begins at or before `offset`: the nearest with an entry."""
        entry = self._offsets.floor(offset - self._base_offset)
        return (entry[0] + self._base_offset, entry[1]) if entry else (self._base_offset, 0)

    def ceiling_position(self, offset: int) -> int | None:
        """Position of the first batch with an entry that begins at or after `offset`, if there is one."""
        entry = self._offsets.ceiling(offset - self._base_offset)
        return entry[1] if entry else None

    def last(self) -> tuple[int, int]:
        """(base offset, position) of the last batch with an entry, or of the first batch."""
        entry = self._offsets.last()
        return (entry[0] + self._base_offset, entry[1]) if entry else (self._base_offset, 0)

    def floor_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(timestamp, base offset) of the last batch with a time entry below `timestamp_ms`."""
        entry = self._times.floor(timestamp_ms - 1)
        return (entry[0], entry[1] + self._base_offset) if entry else None

    def load(self, size: int, *, is_remote: bool = False) -> None:
        """Take the entries from the files, as far as they can belong to a segment of `size` bytes.

        `is_remote`: see `SparseIndex.load`.
        """
        self._offsets.load(size, is_remote=is_remote)
        last = self._offsets.last()
        self._times.load(last[0] + 1 if last else 0, is_remote=is_remote)
        self._after_change()

    def truncate(self, offset: int, position: int) -> None:
        """Drop the entries of batches at or after `offset`, which begins at `position`."""
        self._offsets.truncate_values(position)
        self._times.truncate_values(offset - self._base_offset)
        self._after_change()

    def clear(self) -> None:
        """Drop all entries; the next flush drops them from the files."""
        self.truncate(self._base_offset, 0)

    def _after_change(self) -> None:
        last, last_time = self._offsets.last(), self._times.last()
        self._last_position = last[1] if last else 0
        self._last_time = last_time[0] if last_time else -1

    def flush(self) -> None:
        """Write pending changes to the files."""
        self._offsets.flush()
        self._times.flush()

    def after(self, offset: int, position: int) -> tuple[bytes, bytes]:
        """The content of index files of a segment that begins at the batch of `offset`: (offset index, time index)."""
        relative = offset - self._base_offset
        return self._offsets.after(position, relative), self._times.after(relative, 0)

    def remove_files(self) -> None:
        """Remove both files."""
        self._offsets.remove_file()
        self._times.remove_file()


def indexed_positions(fs: FileSystem, folder: str, base_offset: int, size: int) -> list[int]:
    """The positions below `size` at which batches begin, according to the offset index of a segment, in order."""
    index = SparseIndex(fs, names.offset_index_file(folder, base_offset), "i")
    index.load(size)
    return index.values()


ProgressCallback = Callable[[int], None]
"""Called with the number of bytes scanned since the last call."""


class SegmentView(NamedTuple):
    """The published part of a segment: its first `size` bytes, which hold the offsets below `next_offset`."""

    size: int
    next_offset: int


class LogSlice(NamedTuple):
    """Whole batches from one segment, or none.

    `data` holds the batches, one after the other; the first begins with `base_offset`, and reading goes on at
    `next_offset`. `data` is at `position` of the file `path`, should the caller want to send it from there.
    """

    data: memoryview
    base_offset: int
    next_offset: int
    path: str
    position: int

    def verified(self) -> Iterator[tuple[int, LogBatchHeader]]:
        """Yield (position in the slice, header) of each batch; raise `CorruptData` at one whose checksum is wrong."""
        for position, header in iter_headers(self.data):
            try:
                verify_crc(self.data, position, header)
            except CorruptData as error:
                reason = error.message.partition(": ")[2]
                raise corrupt_batch(self.path, self.position + position, header.base_offset, reason) from error
            yield position, header


class SegmentPart(NamedTuple):
    """A segment, or its end: offsets (end exclusive), bytes, time of the last batch, and complete index files."""

    start_offset: int
    end_offset: int
    size_bytes: int
    last_timestamp_ms: int
    offset_index: bytes
    time_index: bytes


BatchPlace = tuple[int, int]
"""The place of a batch of an append: its offset, and its distance from the start of the append."""


class LogSegment:
    """A segment. Create one with `create` (new, to append to) or with the constructor (an existing file)."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        base_offset: int,
        config: LogConfig,
        view: SegmentView,
        *,
        is_remote: bool = False,
    ) -> None:
        """`is_remote`: the files are in a store. An index that cannot be read fails a read there, which may be tried
        again: to make it from the log would read the whole segment."""
        self.base_offset = base_offset
        self.path = names.log_file(folder, base_offset)
        self.view = view
        self._fs = fs
        self._folder = folder
        self._config = config
        self._index = SegmentIndex(fs, folder, base_offset, config.index_interval_bytes)
        self._index_is_loaded = False
        self._index_is_from_log = False
        self._is_remote = is_remote
        self._last_timestamp_ms = -1
        self._file: AppendFile | None = None
        self._reader: PositionalReader | None = None
        self._mutex = threads.lock()
        self._closed = False

    @classmethod
    def create(cls, fs: FileSystem, folder: str, base_offset: int, config: LogConfig) -> LogSegment:
        """A new, empty segment that is open for appending. What lay under its names is dropped.

        Its name is durable, so that no power loss can take it and leave a later segment: a log must not lose its
        beginning. Raises `StorageFailure`; the file may then be there.
        """
        segment = cls(fs, folder, base_offset, config, SegmentView(0, base_offset))
        segment.open_for_append()
        try:
            segment._index.remove_files()
            fs.sync_directory(folder)
        except BaseException:
            segment.close()
            raise
        segment._index_is_loaded = segment._index_is_from_log = True
        return segment

    # ---- the appender's part

    def open_for_append(self) -> int:
        """Open the file for appending after the view; cut off, durably, what it holds beyond. Returns the bytes cut."""
        file = self._fs.open_append(self.path)
        try:
            beyond = file.size - self.view.size
            check(beyond >= 0, f"{self.path} has {file.size} bytes, fewer than {self.view.size}")
            if beyond:
                file.truncate(self.view.size)
                file.sync()
        except BaseException:
            file.close()
            raise
        self._file = file
        self._reader = file.reader()
        return beyond

    def has_room(self, size: int, last_offset: int) -> bool:
        """Whether an append of `size` bytes up to `last_offset` belongs here. Any append may be alone in a segment."""
        if last_offset - self.base_offset > _RELATIVE_MAX:
            return False
        if self.view.size == 0:
            return True
        return self.view.size + size <= min(self._config.segment_bytes, SEGMENT_BYTES_LIMIT)

    def append(
        self,
        buffers: Sequence[Buffer],
        size: int,
        batches: Sequence[BatchPlace],
        next_offset: int,
        timestamp_ms: int,
    ) -> None:
        """Write `buffers`, `size` bytes in all, that hold `batches`, and publish them.

        Raises `StorageFailure` with nothing published; then `undo_append` before anything else.
        """
        file = self._append_file()
        start = file.append(buffers)
        if start != self.view.size:
            raise InternalError(f"{self.path}: appended at {start}, published up to {self.view.size}")
        with self._mutex:  # A reader may be about to replace the index by one made from the log.
            due = self._index.next_position - start
            for base_offset, distance in batches:
                if distance >= due:
                    self._index.note(base_offset, start + distance, timestamp_ms)
                    due = self._index.next_position - start
            self._last_timestamp_ms = timestamp_ms
            self.view = SegmentView(start + size, next_offset)

    def undo_append(self) -> None:
        """Durably truncate what a failed append may have left: a later, shorter append must not make it reappear."""
        file = self._append_file()
        file.truncate(self.view.size)
        file.sync()

    def cut(self, offset: int) -> None:
        """Drop the batch that holds `offset` and all after it, durably. The segment must be open for appending."""
        if offset >= self.view.next_offset:
            return
        start, next_offset = self._position_of(offset)
        reader = self._open_reader()
        with self._mutex:
            self.view = SegmentView(start, next_offset)
            self._index.truncate(next_offset, start)
            self._complete_index(self._index, reader)
        self.undo_append()

    def sync(self) -> None:
        """Make durable what is published. May run beside `append`."""
        self._append_file().sync()

    @property
    def is_open_for_append(self) -> bool:
        """Whether there may be bytes that no sync has made durable."""
        return self._file is not None

    def _append_file(self) -> AppendFile:
        if self._file is None:
            raise StorageFailure(f"{self.path} is not open for appending")
        return self._file

    def flush_index(self) -> None:
        """Update the index files to what is published."""
        if self._index_is_loaded:
            self._index.flush()

    def close_append(self) -> None:
        """Stop appending. Reads continue."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Stop appending and refuse further reads; reads in progress complete undisturbed."""
        self.close_append()
        with self._mutex:
            self._closed = True
            if self._reader is not None:
                self._reader.close()

    def delete_files(self) -> None:
        """Remove the files; the log first, so that leftovers of an interrupted removal are recognised as such.

        The folder is not synced.
        """
        self._fs.remove(self.path)
        self._index.remove_files()

    # ---- recovery

    def recover(self, check_from: int, progress: ProgressCallback, *, distrust_cache: bool) -> CorruptBatch | None:
        """Check every batch from the one that holds `check_from` on; set the view to what is good.

        Returns what is wrong with the first bad batch, or None. The file stays as it is. The index is made complete.
        `distrust_cache` lets the bytes come from the disk.
        """
        if distrust_cache:
            self._fs.forget_cached(self.path)
        size = self._open_reader().size()
        self._index.load(size)
        offset, position = self._index.floor(check_from)
        problem = self._scan(offset, position, size, progress)
        if problem is not None and problem.position == position and position > 0:
            # The entry that led there may be wrong. The log decides.
            offset, position = self.base_offset, 0
            problem = self._scan(offset, position, size, progress)
        self._index_is_loaded = True
        self._index_is_from_log = position == 0
        return problem

    def damage_at(self, problem: CorruptBatch, next_base: int | None) -> tuple[Gap, bool]:
        """The gap that `recover` has found, and whether a power failure can have torn its first batch.

        `next_base`: where the next segment begins, if there is one.
        """
        reader = self._open_reader()
        size = reader.size()
        hints = indexed_positions(self._fs, self._folder, self.base_offset, size)
        segment = Segment(reader, size, self.base_offset, next_base, hints)
        gap = find_gap(segment, problem)
        return gap, may_be_torn(segment, gap)

    def _scan(self, offset: int, position: int, size: int, progress: ProgressCallback) -> CorruptBatch | None:
        """Check the batches from `position` on; set the view behind the last good one."""
        self._index.truncate(offset + 1, position + 1)
        self.view = SegmentView(position, offset)
        self._last_timestamp_ms = -1
        reported = position
        try:
            for at, header in scan_batches(self._open_reader(), position, size, offset, self._config.scan_bytes):
                self._index.note(header.base_offset, at, header.commit_timestamp_ms)
                self.view = SegmentView(at + header.size_bytes, header.next_offset)
                self._last_timestamp_ms = header.commit_timestamp_ms
                if self.view.size - reported >= self._config.scan_bytes:
                    progress(self.view.size - reported)
                    reported = self.view.size
        except CorruptBatch as problem:
            traceback.clear_frames(problem.__traceback__)  # they have the file
            return problem
        finally:
            progress(size - reported)
        return None

    # ---- readers' part

    def read(self, from_offset: int, max_bytes: int, upper_offset: int, min_one_batch: bool) -> LogSlice:
        """Whole batches from the one that holds `from_offset` on, all below `upper_offset`.

        At most `max_bytes`, unless `min_one_batch` and the first is larger. Raises `CorruptBatch` unless each batch
        begins where the one before ends, with the offset behind it; bodies and checksums are not looked at.
        """
        try:
            return self._read(from_offset, max_bytes, upper_offset, min_one_batch)
        except CorruptBatch:
            if not self._rebuild_index():
                raise
            return self._read(from_offset, max_bytes, upper_offset, min_one_batch)

    def _read(self, from_offset: int, max_bytes: int, upper_offset: int, min_one_batch: bool) -> LogSlice:
        index = self._loaded_index()
        view = self.view
        reader = self._open_reader()
        offset, position = index.floor(from_offset)
        limit = view.size
        if upper_offset < view.next_offset:
            limit = min(index.ceiling_position(upper_offset) or limit, limit)
        window = _Window(reader, view.size)
        window.fill(position, max(min(max_bytes + self._config.index_interval_bytes, limit - position), 0))

        header_end, next_offset = window.step(position, offset)
        while next_offset <= from_offset:
            position, offset = header_end, next_offset
            header_end, next_offset = window.step(position, offset)
        start, base_offset = position, offset
        if next_offset > upper_offset or (header_end - start > max_bytes and not min_one_batch):
            return LogSlice(memoryview(b""), from_offset, from_offset, self.path, start)

        end = max(min(start + max_bytes, limit), header_end)
        data = window.part(start, end)
        size, offset = consecutive_batches(data, base_offset, upper_offset)
        position = start + size
        if position < view.size:
            header_end, next_offset = window.step(position, offset)
            if header_end <= end and next_offset <= upper_offset:
                raise corrupt_batch(self.path, position, offset, "two reads of it give different bytes")
        elif offset != view.next_offset:
            reason = f"the batches before end there, and the segment should end with offset {view.next_offset}"
            raise corrupt_batch(self.path, position, offset, reason)
        return LogSlice(data[:size], base_offset, offset, self.path, start)

    def position_of(self, offset: int) -> int:
        """Where the batch that holds `offset` begins in the file. `offset` must be in the segment."""
        return self._position_of(offset)[0]

    def part_from(self, offset: int) -> SegmentPart:
        """The batches from the one that begins at `offset` to the end, as a segment of its own."""
        position = self.position_of(offset)
        offset_index, time_index = self._loaded_index().after(offset, position)
        size, end = self.view
        return SegmentPart(offset, end, size - position, self.last_timestamp_ms(), offset_index, time_index)

    def bytes_from(self, offset: int) -> int:
        """How many bytes a reader may find from `offset` on, at most: all of them before the index has been used."""
        view = self.view
        return max(view.size - self._index.floor(offset)[1], 0) if self._index_is_loaded else view.size

    def bytes_between(self, first: int, end: int) -> int:
        """About how many bytes the records have from offset `first` to before `end`, by the index; all of a segment
        that is damaged."""
        view = self.view
        try:
            index = self._loaded_index()
        except CorruptBatch:
            return view.size
        stop = view.size if end >= view.next_offset else index.floor(end)[1]
        return max(stop - index.floor(first)[1], 0)

    def _position_of(self, offset: int) -> tuple[int, int]:
        """(position, base offset) of the batch that holds `offset`, which must be below the end."""
        slice_ = self.read(offset, 0, self.view.next_offset, min_one_batch=True)
        return slice_.position, slice_.base_offset

    def find_timestamp(self, timestamp_ms: int, upper_offset: int) -> int | None:
        """Base offset of the first batch below `upper_offset` with a commit timestamp of at least `timestamp_ms`."""
        try:
            return self._find_timestamp(timestamp_ms, upper_offset)
        except CorruptBatch:
            if not self._rebuild_index():
                raise
            return self._find_timestamp(timestamp_ms, upper_offset)

    def _find_timestamp(self, timestamp_ms: int, upper_offset: int) -> int | None:
        index = self._loaded_index()
        view = self.view
        entry = index.floor_time(timestamp_ms)
        offset, position = index.floor(entry[1] if entry else self.base_offset)
        if entry is not None and entry[1] != offset:
            raise corrupt_batch(self.path, position, offset, "the time index names a batch that the offset index lacks")
        for at, header in scan_headers(self._open_reader(), position, view.size, offset):
            if at == position and entry is not None and header.commit_timestamp_ms != entry[0]:
                raise corrupt_batch(self.path, position, offset, f"the time index says that its time is {entry[0]}")
            if header.next_offset > upper_offset:
                return None
            if header.commit_timestamp_ms >= timestamp_ms:
                return header.base_offset
        return None

    def headers_from(self, offset: int) -> Iterator[tuple[int, LogBatchHeader]]:
        """Yield (position, header) of the batches from the one that holds `offset` to the end."""
        size, next_offset = self.view
        if offset < next_offset:
            position, base_offset = self._position_of(offset)
            yield from scan_headers(self._open_reader(), position, size, base_offset)

    def first_header(self) -> list[LogBatchHeader]:
        """The header of the first batch; none if the segment is empty."""
        headers = self.headers_from(self.base_offset)
        return [header for _, header in islice(headers, 1)]

    def last_timestamp_ms(self) -> int:
        """Commit timestamp of the last batch, or -1 when there is none."""
        self._loaded_index()
        return self._last_timestamp_ms

    def _open_reader(self) -> PositionalReader:
        reader = self._reader
        if reader is None or self._closed:
            with self._mutex:
                if self._closed:
                    raise StorageFailure(f"{self.path} is closed")
                if self._reader is None:
                    self._reader = self._fs.open_reader(self.path)
                reader = self._reader
        return reader

    # ---- the index on first use

    def _loaded_index(self) -> SegmentIndex:
        """The index, complete up to the view."""
        if not self._index_is_loaded:
            self._load_index(rebuild=False)
        return self._index

    def _rebuild_index(self) -> bool:
        """Rebuild the index from the log alone; return False if it was already, and is not to blame."""
        if self._index_is_from_log:
            return False
        self._load_index(rebuild=True)
        return True

    def _load_index(self, rebuild: bool) -> None:
        """Load the index files and extend them from the log; or make them from the log alone.

        Raises `CorruptBatch` when the log itself is damaged, or does not end with the offset that it should.
        """
        reader = self._open_reader()
        with self._mutex:
            if self._index_is_from_log if rebuild else self._index_is_loaded:
                return
            index = self._index
            if rebuild:
                index = SegmentIndex(self._fs, self._folder, self.base_offset, self._config.index_interval_bytes)
            else:
                index.load(self.view.size, is_remote=self._is_remote)
            from_log = self._complete_index(index, reader)
            self._index = index
            self._index_is_loaded = True
            self._index_is_from_log = rebuild or from_log

    def _complete_index(self, index: SegmentIndex, reader: PositionalReader) -> bool:
        """Extend `index` up to the view; rebuild it if its last entry is wrong. Return whether it was rebuilt."""
        try:
            self._extend(index, reader)
        except CorruptBatch:
            if index.entry_count == 0:
                raise
            index.clear()
            self._extend(index, reader)
            return True
        return False

    def _extend(self, index: SegmentIndex, reader: PositionalReader) -> None:
        offset, position = index.last()
        timestamp = -1
        for at, header in scan_headers(reader, position, self.view.size, offset):
            index.note(header.base_offset, at, header.commit_timestamp_ms)
            timestamp, offset = header.commit_timestamp_ms, header.next_offset
        if offset != self.view.next_offset:
            reason = f"the segment should end with offset {self.view.next_offset}"
            raise corrupt_batch(self.path, self.view.size, offset, reason)
        self._last_timestamp_ms = timestamp


class _Window:
    """The bytes around which one read moves; reads more of the file only when a step leaves it."""

    def __init__(self, reader: PositionalReader, size: int) -> None:
        self._reader = reader
        self._size = size
        self._data = b""
        self._start = 0

    def fill(self, position: int, length: int) -> None:
        """Read `length` bytes, and the header that may follow them."""
        self._data = self._reader.pread(position, length + HEADER_SIZE_MAX)
        self._start = position

    def step(self, position: int, offset: int) -> tuple[int, int]:
        """(end, next offset) of the batch at `position`, which must begin with `offset`."""
        at = position - self._start
        if at + HEADER_SIZE_MAX <= len(self._data):
            header = parse_at(self._reader.path, self._data, at, position, self._size, offset)
        else:
            head = self._reader.pread(position, min(HEADER_SIZE_MAX, self._size - position))
            header = parse_at(self._reader.path, head, 0, position, self._size, offset)
        return position + header.size_bytes, header.next_offset

    def part(self, start: int, end: int) -> memoryview:
        at = start - self._start
        if end - self._start <= len(self._data):
            return memoryview(self._data)[at : at + end - start]
        data = self._reader.pread(start, end - start)
        if len(data) < end - start:
            raise corrupt_batch(self._reader.path, start, -1, f"the file ends {end - start - len(data)} bytes too soon")
        return memoryview(data)
