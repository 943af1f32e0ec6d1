"""One segment of a bucket's log: a file of batches with the indexes that lead into it.

Nouns: the *view* of a segment is what readers may see of it: how many bytes, up to which offset. An append writes the
file, then the index, and publishes a new view last; readers take the view once and never look beyond it.

Flow of a read: nearest index entry at or before the wanted offset, one `pread` of the budget plus the index interval,
a few header steps to the first wanted batch, a jump by the index to near the end of the budget, a few more steps. So
its cost does not grow with the number of batches that it returns, and the bytes are returned without a copy.

Threads: `sync` and the readers' part may run in any thread; all else belongs to the tablet's appender.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from forebay.base import threads
from forebay.base.errors import StorageFailure, check
from forebay.codec.log_batch import HEADER_SIZE_MAX, LogBatchHeader
from forebay.fs import names
from forebay.fs.interface import AppendFile, FileSystem, PositionalReader
from forebay.log.config import SEGMENT_BYTES_LIMIT, LogConfig
from forebay.log.index import SegmentIndex
from forebay.log.scan import CorruptBatch, corrupt_batch, parse_at, scan_batches, scan_headers

if TYPE_CHECKING:
    from typing_extensions import Buffer

_RELATIVE_OFFSET_MAX = 2**31 - 1

ProgressCallback = Callable[[int], None]
"""Called with the number of bytes scanned since the last call."""


class SegmentView(NamedTuple):
    """What of a segment is published: its first `size` bytes, which hold the offsets below `next_offset`."""

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


class BatchToAppend(NamedTuple):
    """The place of a batch of an append: its offset, and its distance from the start of the append."""

    base_offset: int
    distance: int


class LogSegment:
    """A segment. Create one with `create` (new, to append to) or with the constructor (an existing file)."""

    def __init__(self, fs: FileSystem, folder: str, base_offset: int, config: LogConfig, view: SegmentView) -> None:
        self.base_offset = base_offset
        self.path = names.log_file(folder, base_offset)
        self.view = view
        self._fs = fs
        self._folder = folder
        self._config = config
        self._index = SegmentIndex(fs, folder, base_offset, config.index_interval_bytes)
        self._index_is_loaded = False
        self._index_is_from_log = False
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
        segment._index.remove_files()
        fs.sync_directory(folder)
        segment._index_is_loaded = segment._index_is_from_log = True
        return segment

    # ---- the appender's part

    def open_for_append(self) -> int:
        """Open the file for appending after the view; cut off, durably, what it holds beyond. Returns the bytes cut."""
        file = self._fs.open_append(self.path)
        beyond = file.size - self.view.size
        check(beyond >= 0, f"{self.path} has {file.size} bytes, fewer than {self.view.size}")
        if beyond:
            file.truncate(self.view.size)
            file.sync()
        self._file = file
        self._reader = file.reader()
        return beyond

    def has_room(self, size: int, last_offset: int) -> bool:
        """Whether an append of `size` bytes up to `last_offset` belongs here. Any append may be alone in a segment."""
        if last_offset - self.base_offset > _RELATIVE_OFFSET_MAX:
            return False
        if self.view.size == 0:
            return True
        return self.view.size + size <= min(self._config.segment_bytes, SEGMENT_BYTES_LIMIT)

    def append(
        self,
        buffers: Sequence[Buffer],
        size: int,
        batches: Sequence[BatchToAppend],
        next_offset: int,
        timestamp_ms: int,
    ) -> None:
        """Write `buffers`, `size` bytes in all, that hold `batches`, and publish them.

        Raises `StorageFailure` with nothing published; then `undo_append` before anything else.
        """
        file = self._append_file()
        start = file.append(buffers)
        check(start == self.view.size, f"{self.path}: appended at {start}, published up to {self.view.size}")
        with self._mutex:  # A reader may be about to replace the index by one made from the log.
            for batch in batches:
                self._index.note(batch.base_offset, start + batch.distance, timestamp_ms)
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
            return problem
        finally:
            progress(size - reported)
        return None

    # ---- readers' part

    def read(self, from_offset: int, max_bytes: int, upper_offset: int, min_one_batch: bool) -> LogSlice:
        """Whole batches from the one that holds `from_offset` on, all below `upper_offset`.

        At most `max_bytes`, unless `min_one_batch` and the first is larger. Raises `CorruptBatch` where the file is
        not as it should be; bodies and checksums are not looked at.
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

        end = max(start + max_bytes, header_end)
        if upper_offset >= view.next_offset and end >= view.size:
            return LogSlice(window.part(start, view.size), base_offset, view.next_offset, self.path, start)
        end = min(end, view.size)
        # Near the end of the budget by the index; if it is wrong, the next step notices. An entry where the view ends
        # would name a batch that is not published yet.
        jump_offset, jump_position = min(index.floor_position(end - 1), index.floor(upper_offset))
        if jump_position > header_end:
            position, offset = jump_position, jump_offset
        else:
            position, offset = header_end, next_offset
        while position < view.size:
            header_end, next_offset = window.step(position, offset)
            if header_end > end or next_offset > upper_offset:
                break
            position, offset = header_end, next_offset
        return LogSlice(window.part(start, position), base_offset, offset, self.path, start)

    def bytes_from(self, offset: int) -> int:
        """How many bytes a reader may find from `offset` on, at most: all of them before the index has been used."""
        view = self.view
        return max(view.size - self._index.floor(offset)[1], 0) if self._index_is_loaded else view.size

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
                index.load(self.view.size)
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
