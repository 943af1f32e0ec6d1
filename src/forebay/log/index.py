"""Sparse indexes of a segment: from an offset to a position in the file, and from a time to an offset.

Nouns: an *entry* names a batch. The offset index has (base offset relative to the segment's, position), 4 + 4 bytes;
the time index has (commit timestamp in ms, base offset relative to the segment's), 8 + 4 bytes; both big-endian, as in
Fluss. In either, both columns grow strictly. The first batch has no entry; another batch gets one when it begins more
than the index interval after the last batch that has one, in the time index only if its timestamp is new.

Rule: **an index is a hint, the log is the truth.** Index files are never synced. They are read once, cut at the first
entry that breaks the order, and extended to the segment's end from the log. Whoever uses an entry compares it with the
batch that it names, and rebuilds the index if they differ. So a lost, short, stale or damaged index file costs time and
never gives a wrong answer. Prior art: Kafka's `OffsetIndex` and `TimeIndex`, which are memory-mapped and trusted.

Threads: one thread appends and truncates; any number of threads look up at the same time. Arrays only grow, or are
replaced whole.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left, bisect_right

import numpy as np

from forebay.base.errors import StorageFailure
from forebay.fs import names
from forebay.fs.interface import FileSystem

_FLUSH_ENTRIES = 128
"""The number of entries buffered in memory before they are appended to the file."""

_RELATIVE_MAX = 2**31 - 1
"""What 4 bytes hold. Only batches that claim records in vain can get there before their segment is full."""


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

    def floor_by_value(self, value: int) -> tuple[int, int] | None:
        """The last entry whose value is at most `value`."""
        keys, values = self._columns
        index = bisect_right(values, value, 0, len(keys)) - 1
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

    def load(self, value_end: int) -> None:
        """Take the entries from the file, up to the first that breaks the order or has a value of `value_end` or more.

        A missing or unreadable file gives none.
        """
        try:
            data = self._fs.read_bytes(self._path)
        except StorageFailure:
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
        keys, values = self._columns
        if self._stored == len(keys) and not self._file_is_longer:
            return
        entries = np.empty(len(keys) - self._stored, self._entry)
        entries["key"] = keys[self._stored :]
        entries["value"] = values[self._stored :]
        with contextlib.suppress(StorageFailure):
            file = self._fs.open_append(self._path)
            try:
                if file.size != self._stored * self._entry.itemsize:
                    # Bytes of an append that failed half-way, or entries that were cut off since.
                    file.truncate(self._stored * self._entry.itemsize)
                file.append([entries.tobytes()])
                self._stored = len(keys)
                self._file_is_longer = False
            finally:
                file.close()

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

    def floor_position(self, position: int) -> tuple[int, int]:
        """(base offset, position) of a batch that begins at or before `position`: the nearest with an entry."""
        entry = self._offsets.floor_by_value(position)
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

    def load(self, size: int) -> None:
        """Take the entries from the files, as far as they can belong to a segment of `size` bytes."""
        self._offsets.load(size)
        last = self._offsets.last()
        self._times.load(last[0] + 1 if last else 0)
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

    def remove_files(self) -> None:
        """Remove both files."""
        self._offsets.remove_file()
        self._times.remove_file()
