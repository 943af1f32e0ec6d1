"""The part of a bucket's log that is in a store, as the log sees it (docs/format/remote_log.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from forebay.codec.log.header import LogBatchHeader
from forebay.fs import names
from forebay.log.segment import LogSlice


class RemoteLogSegment(NamedTuple):
    """A segment in the store: its offsets (end exclusive), the time of its newest batch, and its size."""

    segment_id: str
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    size_bytes: int

    def folder(self, tablet: str) -> str:
        """The folder of its objects."""
        return f"{tablet}/{self.segment_id}"

    def objects(self, tablet: str) -> tuple[str, str, str, str]:
        """The names of its log, offset index, time index and writer snapshot."""
        folder = self.folder(tablet)
        return (
            names.log_file(folder, self.start_offset),
            names.offset_index_file(folder, self.start_offset),
            names.time_index_file(folder, self.start_offset),
            names.writer_snapshot_file(folder, self.end_offset),
        )


class RemoteFetch(NamedTuple):
    """What a client has to read in the store: consecutive segments in a folder, given by path or URI."""

    folder: str
    segments: Sequence[RemoteLogSegment]
    first_position: int
    """Where in the first segment the batch begins that has the offset."""


class RemoteReads(Protocol):
    """The part of a log that is in a store: consecutive segments. Any thread may use it at any time.

    Methods raise `StorageFailure` if the store cannot be read, `CorruptData` if its content is damaged.
    """

    @property
    def offsets(self) -> tuple[int, int] | None:
        """The first offset and the end; None without segments."""
        ...

    @property
    def last_timestamp_ms(self) -> int:
        """Commit timestamp of the last batch; -1 without segments."""
        ...

    def fetch(self, offset: int) -> RemoteFetch | None:
        """What a client has to read from `offset` on; None if the store does not have it."""
        ...

    def readable_bytes(self, from_offset: int) -> int:
        """An upper bound of the bytes that `read` finds, without a request to the store; 0 if it has not the offset."""
        ...

    def read(self, from_offset: int, max_bytes: int, upper_offset: int, *, min_one_batch: bool = True) -> LogSlice:
        """Whole batches from the one that holds `from_offset` on, as `LogReads.read` returns them; checksums are
        verified. Raises `InvalidRequest` with LOG_OFFSET_OUT_OF_RANGE_EXCEPTION if the store has not the offset."""
        ...

    def iterate_batches(self, from_offset: int, to_offset: int) -> Iterator[tuple[LogBatchHeader, memoryview]]:
        """Yield (header, bytes) of each batch from the one that holds `from_offset` on, all below `to_offset`."""
        ...

    def offset_for_timestamp(self, timestamp_ms: int, upper_offset: int) -> int | None:
        """Base offset of the first batch below `upper_offset` committed at `timestamp_ms` or later, if there is one."""
        ...


def first_offset(remote: RemoteReads | None, local_start_offset: int) -> int:
    """The first offset that clients find in a remote log or behind it.

    A remote log that ends before the local one begins has only what has expired.
    """
    offsets = None if remote is None else remote.offsets
    if offsets is None or not offsets[0] < local_start_offset <= offsets[1]:
        return local_start_offset
    return offsets[0]
