"""The remote log of one bucket: which segments the store has, and what they contain.

A segment of the store is read like a local one, by ranges: the index leads to a block, and no object is read as a whole
except for indexes, which are cached.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import cast

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.codec.log.header import LogBatchHeader, iter_headers
from forebay.fs.interface import FileSystem
from forebay.lake.lru_cache import LruCache
from forebay.log.config import LogConfig
from forebay.log.remote import RemoteFetch, RemoteLogSegment
from forebay.log.segment import LogSegment, LogSlice, SegmentView
from forebay.store.objects import ObjectMissing, ObjectStore
from forebay.store.store_files import StoreFiles

_FETCHED_MAX = 32
"""Segments that are named to a client at once. It asks again behind them."""

_INDEX_ENTRY_BYTES = 20
"""Of one batch in the arrays of both indexes."""


class SegmentReaders:
    """Readers of the store's segments, with their indexes; the least recently used ones are dropped."""

    def __init__(self, store: ObjectStore, config: LogConfig, cache_bytes: int) -> None:
        """`cache_bytes`: maximum size of all indexes in memory."""
        self.store = store
        self.config = config
        self._files = StoreFiles(store)
        self._cache: LruCache[str, LogSegment] = LruCache(size=cache_bytes)

    def open(self, tablet: str, segment: RemoteLogSegment) -> LogSegment:
        """A reader of a segment in the folder `tablet`. Reads nothing yet."""
        reader = self._cache.get(segment.segment_id)
        if reader is None:
            # A segment that is only read needs no more of a file system than that.
            files = cast(FileSystem, self._files)
            view = SegmentView(segment.size_bytes, segment.end_offset)
            folder = self._files.path(segment.folder(tablet))
            reader = LogSegment(files, folder, segment.start_offset, self.config, view, is_remote=True)
            entries = segment.size_bytes // self.config.index_interval_bytes + 1
            self._cache.put(segment.segment_id, reader, entries * _INDEX_ENTRY_BYTES)
        return reader


def read_writers(store: ObjectStore, tablet: str, segment: RemoteLogSegment) -> bytes | None:
    """The writer snapshot at the end of a segment; None if it has none. Raises `StorageFailure`."""
    try:
        return store.read(segment.objects(tablet)[3])
    except ObjectMissing:
        return None


class RemoteLogTablet:
    """The segments of a bucket in the store: consecutive, oldest first. Any thread may read; one changes the list."""

    def __init__(self, tablet: str, segments: Sequence[RemoteLogSegment], readers: SegmentReaders) -> None:
        """`tablet`: the folder of the objects, relative to the store."""
        self.tablet = tablet
        self.segments = tuple(segments)
        """Replaced as a whole."""
        self._readers = readers

    @property
    def offsets(self) -> tuple[int, int] | None:
        """The first offset and the end; None without segments."""
        segments = self.segments
        return (segments[0].start_offset, segments[-1].end_offset) if segments else None

    @property
    def last_timestamp_ms(self) -> int:
        """See `RemoteReads.last_timestamp_ms`."""
        segments = self.segments
        return segments[-1].max_timestamp_ms if segments else -1

    def segments_from(self, offset: int, count: int) -> Sequence[RemoteLogSegment]:
        """The segment that has `offset`, and those after it, at most `count`; none if none has it."""
        segments = self.segments
        first = bisect_right(segments, offset, key=attrgetter("start_offset")) - 1
        if first < 0 or offset >= segments[-1].end_offset:
            return ()
        return segments[first : first + count]

    def fetch(self, offset: int) -> RemoteFetch | None:
        """See `RemoteReads.fetch`."""
        segments = self.segments_from(offset, _FETCHED_MAX)
        if not segments:
            return None
        is_start = offset == segments[0].start_offset
        position = 0 if is_start else self._readers.open(self.tablet, segments[0]).position_of(offset)
        return RemoteFetch(f"{self._readers.store.location}/{self.tablet}", segments, position)

    def readable_bytes(self, from_offset: int) -> int:
        """See `RemoteReads.readable_bytes`."""
        return sum(segment.size_bytes for segment in self.segments_from(from_offset, 1))

    def read(self, from_offset: int, max_bytes: int, upper_offset: int, *, min_one_batch: bool = True) -> LogSlice:
        """See `RemoteReads.read`."""
        segments = self.segments_from(from_offset, 1)
        if not segments:
            raise InvalidRequest(
                f"the store has not offset {from_offset} of {self.tablet} any more",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            )
        segment = self._readers.open(self.tablet, segments[0])
        piece = segment.read(from_offset, max_bytes, min(upper_offset, segments[0].end_offset), min_one_batch)
        for _ in piece.verified():
            pass
        return piece

    def iterate_batches(self, from_offset: int, to_offset: int) -> Iterator[tuple[LogBatchHeader, memoryview]]:
        """See `RemoteReads.iterate_batches`."""
        while self.readable_bytes(from_offset):
            piece = self.read(from_offset, self._readers.config.scan_bytes, to_offset)
            if piece.next_offset == from_offset:
                return
            for position, header in iter_headers(piece.data):
                yield header, piece.data[position : position + header.size_bytes]
            from_offset = piece.next_offset

    def offset_for_timestamp(self, timestamp_ms: int, upper_offset: int) -> int | None:
        """See `RemoteReads.offset_for_timestamp`."""
        for segment in self.segments:
            if segment.max_timestamp_ms >= timestamp_ms:
                return self._readers.open(self.tablet, segment).find_timestamp(timestamp_ms, upper_offset)
        return None
