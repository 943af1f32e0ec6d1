"""Reading a bucket's log, in any thread at any time: by offset, by time, batch by batch.

Reads take no lock. A cut of the log makes `_version` odd while it runs; a reader that sees it change begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from forebay.base import threads
from forebay.base.errors import CorruptData, ErrorCode, ForebayError, InvalidRequest, StorageFailure
from forebay.codec.log.header import LogBatchHeader
from forebay.log.config import LogConfig
from forebay.log.remote import RemoteReads, first_offset
from forebay.log.segment import LogSegment, LogSlice, SegmentPart

EARLIEST_OFFSET = -2
"""In place of an offset: where the log starts."""

_T = TypeVar("_T")


class SegmentInfo(NamedTuple):
    """A segment, as retention and metrics see it. `last_timestamp_ms` is -1 when it is empty."""

    base_offset: int
    next_offset: int
    size_bytes: int
    last_timestamp_ms: int


class LogReads:
    """The operations on a log that any thread may call at any time."""

    def __init__(self, folder: str, config: LogConfig, segments: list[LogSegment]) -> None:
        self.folder = folder
        self.config = config
        self._segments = tuple(segments)
        self._log_end_offset = segments[-1].view.next_offset
        self._found_end = self._log_end_offset
        self._append_lock = threads.rlock()
        self._version = 0
        self._unusable: str | None = None
        self._offline = False
        self._last_timestamp_ms = self._find_last_timestamp()
        self.remote: RemoteReads | None = None
        """The remote log, if there is one."""

    def _find_last_timestamp(self) -> int:
        for segment in reversed(self._segments):
            if segment.view.size:
                return segment.last_timestamp_ms()
        return -1

    @property
    def local_start_offset(self) -> int:
        """The first offset in local segments."""
        return self._segments[0].base_offset

    @property
    def log_start_offset(self) -> int:
        """The first offset that clients find, here or in the remote log."""
        return first_offset(self.remote, self.local_start_offset)

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._log_end_offset

    @property
    def last_timestamp_ms(self) -> int:
        """Commit timestamp of the last batch, -1 for an empty log."""
        return self._last_timestamp_ms

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(segment.view.size for segment in self._segments)

    @property
    def is_offline(self) -> bool:
        """Whether a storage failure has closed the tablet for good. Another one may be opened on its folder."""
        return self._offline

    def segments(self) -> list[SegmentInfo]:
        """All segments, oldest first."""
        return [
            SegmentInfo(segment.base_offset, segment.view.next_offset, segment.view.size, segment.last_timestamp_ms())
            for segment in self._segments
        ]

    @property
    def active_bytes(self) -> int:
        """The size of the active segment."""
        return self._segments[-1].view.size

    def closed_parts(self, from_offset: int, upper_offset: int) -> Iterator[SegmentPart]:
        """Yield the segments behind `from_offset`, where a batch begins, that end at or before `upper_offset`, oldest
        first; each follows the one before.

        Without the active one; of the first, only what is not below `from_offset`. Each is read, with its indexes, when
        it is asked for. Raises as `read` does.
        """
        end: int | None = None
        while True:
            part = self._consistently(partial(self._closed_part, from_offset if end is None else end, upper_offset))
            if part is None or (end is not None and part.start_offset != end):  # the next one has been deleted
                return
            yield part
            end = part.end_offset

    def _closed_part(self, from_offset: int, upper_offset: int) -> SegmentPart | None:
        for segment in self._segments[:-1]:
            if from_offset < segment.view.next_offset <= upper_offset:
                return segment.part_from(max(segment.base_offset, from_offset))
        return None

    def _require_usable(self) -> None:
        if self._unusable is not None:
            raise StorageFailure(self._unusable, ErrorCode.LOG_STORAGE_EXCEPTION)

    def take_offline(self, cause: BaseException) -> None:
        """Refuse everything from now on, because of a failure."""
        if not self._offline:
            self._offline = True
            words = cause.message if isinstance(cause, ForebayError) else repr(cause)
            self._unusable = (
                f"the log {self.folder} is offline since a storage failure ({words}); "
                "what its file holds is unknown until it is opened again and checked: the server does that in some "
                "seconds. If it fails again, look at the disk"
            )

    def read(
        self, from_offset: int, max_bytes: int, upper_offset: int | None = None, *, min_one_batch: bool = True
    ) -> LogSlice:
        """Return whole batches from the one that holds `from_offset` on, all below `upper_offset` (None: the log's
        end).

        The first batch may begin before `from_offset`; `EARLIEST_OFFSET` stands for the start of the log. Returns at
        most `max_bytes`, unless `min_one_batch` and the first batch is larger. The slice ends with its segment, so
        continue at `next_offset` until that no longer advances. Raises `InvalidRequest` with
        LOG_OFFSET_OUT_OF_RANGE_EXCEPTION outside the log, `CorruptData` if a batch does not follow the one before, and
        `StorageFailure`. Checksums are verified for batches that existed when the log was opened: they may have been
        damaged since they were written, some clients do not check, and a projection recomputes a batch's checksum.
        """
        piece = self._consistently(lambda: self._read(from_offset, max(max_bytes, 0), upper_offset, min_one_batch))
        if piece.base_offset < self._found_end:
            for _ in piece.verified():
                pass
        return piece

    def _read(self, from_offset: int, max_bytes: int, upper_offset: int | None, min_one_batch: bool) -> LogSlice:
        end = self._log_end_offset
        segments = self._segments
        start = segments[0].base_offset
        if from_offset == EARLIEST_OFFSET:
            from_offset = start
        if not start <= from_offset <= end:
            raise InvalidRequest(
                f"offset {from_offset} is not in {self.folder}, which has {start} to {end}",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            )
        upper = end if upper_offset is None else min(upper_offset, end)
        if from_offset >= upper:
            return LogSlice(memoryview(b""), from_offset, from_offset, segments[-1].path, 0)
        return _segment_of(segments, from_offset).read(from_offset, max_bytes, upper, min_one_batch)

    def readable_bytes(self, from_offset: int, upper_offset: int) -> int:
        """Return an upper bound of the bytes that `read` finds, without reading files."""
        segments = self._segments
        from_offset = segments[0].base_offset if from_offset == EARLIEST_OFFSET else from_offset
        if not segments[0].base_offset <= from_offset < min(upper_offset, self._log_end_offset):
            return 0
        return _segment_of(segments, from_offset).bytes_from(from_offset)

    def bytes_between(self, first: int, end: int) -> int:
        """About how many bytes the records here have from offset `first` to before `end`."""
        size = 0
        for segment in reversed(self._segments):
            if segment.base_offset < end:
                size += segment.bytes_between(max(first, segment.base_offset), end)
            if segment.base_offset <= first:
                break
        return size

    def offset_for_timestamp(self, timestamp_ms: int, upper_offset: int | None = None) -> int | None:
        """Base offset of the first batch committed at `timestamp_ms` or later, here or in the remote log; None when
        there is none.

        Only batches that end below `upper_offset` count (None: all). Raises as `RemoteReads` does.
        """
        while True:
            start = self.local_start_offset
            if self.remote is not None and self.log_start_offset < start:
                upper = start if upper_offset is None else min(start, upper_offset)
                found = self.remote.offset_for_timestamp(timestamp_ms, upper)
                if found is not None:
                    return found
            found = self._consistently(lambda: self._offset_for_timestamp(timestamp_ms, upper_offset))
            if self.local_start_offset == start:  # else there are segments that neither search has seen
                return found

    def has_remotely(self, timestamp_ms: int) -> bool:
        """Whether `offset_for_timestamp` finds this time in the remote log, which it reads for it."""
        remote = self.remote
        if remote is None or self.log_start_offset == self.local_start_offset:
            return False
        return remote.last_timestamp_ms >= timestamp_ms

    def _offset_for_timestamp(self, timestamp_ms: int, upper_offset: int | None) -> int | None:
        end = self._log_end_offset
        upper = end if upper_offset is None else min(upper_offset, end)
        segments = self._segments
        low, high = 0, len(segments) - 1
        while low < high:
            middle = (low + high) // 2
            if segments[middle].last_timestamp_ms() >= timestamp_ms:
                high = middle
            else:
                low = middle + 1
        return segments[low].find_timestamp(timestamp_ms, upper)

    def has_old_active(self, horizon_ms: int) -> bool:
        """Return whether the active segment has a record that was committed before `horizon_ms`."""
        active = self._segments[-1]
        return self._consistently(lambda: any(h.commit_timestamp_ms < horizon_ms for h in active.first_header()))

    def iterate_batches(
        self, from_offset: int, to_offset: int | None = None
    ) -> Iterator[tuple[LogBatchHeader, memoryview]]:
        """Yield (header, bytes) of each batch from the one that holds `from_offset` on, all below `to_offset`.

        Begins in the remote log if local segments begin later. Memory is bounded by `LogConfig.scan_bytes` or the
        largest batch. Checksums are verified. `to_offset` None means the end of the log at the time of the call. Raises
        as `read` and `RemoteReads` do.
        """
        end = self._log_end_offset if to_offset is None else to_offset
        while True:
            start, begun = self.local_start_offset, from_offset
            if self.remote is not None and self.log_start_offset <= from_offset < start:
                for header, data in self.remote.iterate_batches(from_offset, min(start, end)):
                    yield header, data
                    from_offset = header.next_offset
            try:
                piece = self._consistently(partial(self._read, from_offset, self.config.scan_bytes, end, True))
            except InvalidRequest:
                if from_offset < self.local_start_offset and (from_offset > begun or start < self.local_start_offset):
                    continue  # the segment has left the machine meanwhile
                raise
            if piece.next_offset == from_offset:
                return
            for position, header in piece.verified():
                yield header, piece.data[position : position + header.size_bytes]
            from_offset = piece.next_offset

    def _consistently(self, look: Callable[[], _T]) -> _T:
        """Return the result of `look`, called again until no cut of the log has happened meanwhile."""
        while True:
            self._require_usable()
            version = self._version
            if version & 1:
                with self._append_lock:  # Wait for the cut to end.
                    continue
            try:
                result = look()
            except (CorruptData, StorageFailure, InvalidRequest):
                self._require_usable()
                if version == self._version:
                    raise
                continue
            if version == self._version:
                return result


def _segment_of(segments: tuple[LogSegment, ...], offset: int) -> LogSegment:
    """The last segment that begins at or before `offset`."""
    low, high = 0, len(segments) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if segments[middle].base_offset <= offset:
            low = middle
        else:
            high = middle - 1
    return segments[low]
