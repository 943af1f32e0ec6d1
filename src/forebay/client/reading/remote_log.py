"""Log segments that a Fluss cluster has moved to remote storage.

Instead of records, a server may respond to a fetch with the locations of segment files: `<folder>/<segment id>/<20
digits of its first offset>.log`, which contain a sequence of log batches. The client reads them directly, block by
block, through `pyarrow.fs` (local paths, s3://, gs://, hdfs:// and whatever else it supports). Prior art:
RemoteLogDownloader of Fluss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from forebay.base.errors import CorruptData, ErrorCode, StorageFailure
from forebay.base.locations import check_path, is_local, local_path, split_uri
from forebay.codec.log.header import LENGTH_OFFSET, LENGTH_OVERHEAD
from forebay.protocol import fluss_pb2 as pb

_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class RemoteSegment:
    """One segment file: its offsets (end exclusive), and the position to start reading at."""

    path: str
    start_offset: int
    end_offset: int
    start_position: int


@dataclass(frozen=True, slots=True)
class RemoteLog:
    """A sequence of consecutive segments."""

    segments: tuple[RemoteSegment, ...]

    @classmethod
    def from_pb(cls, info: pb.PbRemoteLogFetchInfo) -> RemoteLog:
        """Return the segments that a fetch response names; only the first one may have to be read from its middle."""
        folder = info.remote_log_tablet_dir.rstrip("/")
        segments = []
        for place, message in enumerate(info.remote_log_segments):
            path = f"{folder}/{message.remote_log_segment_id}/{message.remote_log_start_offset:020d}.log"
            position = info.first_start_pos if place == 0 else 0
            segments.append(
                RemoteSegment(path, message.remote_log_start_offset, message.remote_log_end_offset, position)
            )
        return cls(tuple(segments))

    @property
    def end_offset(self) -> int:
        return max((segment.end_offset for segment in self.segments), default=0)


def read_remote(remote: RemoteLog, first: int) -> Iterator[memoryview]:
    """Blocks of whole log batches, in order, of the segments that extend beyond offset `first`.

    Raises `StorageFailure` for unreadable files, `CorruptData` for files that end within a batch.
    """
    for segment in remote.segments:
        if segment.end_offset > first:
            yield from _read_segment(segment)


def _read_segment(segment: RemoteSegment) -> Iterator[memoryview]:
    try:
        file = _open(segment.path)
    except (OSError, ValueError) as e:
        raise _failure(segment, e) from e
    with file:
        position = segment.start_position
        read_bytes = _BLOCK_BYTES
        while True:
            try:
                block = memoryview(file.read_at(read_bytes, position))
            except (OSError, ValueError) as e:
                raise _failure(segment, e) from e
            whole, batch_bytes = _whole_batches(block)
            if whole:
                yield block[:whole]
                position += whole
                read_bytes = _BLOCK_BYTES
            elif len(block) == 0:
                return
            elif len(block) < read_bytes:
                raise CorruptData(
                    f"remote log segment {segment.path} ends in the middle of a batch, at byte {position + len(block)}",
                    ErrorCode.CORRUPT_RECORD_EXCEPTION,
                )
            else:
                read_bytes = max(batch_bytes, 2 * read_bytes)


def _open(path: str) -> Any:
    from pyarrow import fs

    if is_local(path):
        return fs.LocalFileSystem().open_input_file(local_path(path))
    root, inner = split_uri(check_path(path))
    # Of the URI pyarrow sees the store alone: it would decode the rest, which is a path and not encoded.
    file_system, top = fs.FileSystem.from_uri(f"{root}/")
    return file_system.open_input_file(top.rstrip("/") + inner)


def _whole_batches(block: memoryview) -> tuple[int, int]:
    """(bytes of whole batches at the start of a block, size in bytes of the batch after them)."""
    end = 0
    while len(block) - end >= LENGTH_OVERHEAD:
        length = int.from_bytes(block[end + LENGTH_OFFSET : end + LENGTH_OVERHEAD], "little", signed=True)
        size = length + LENGTH_OVERHEAD
        if length <= 0:
            raise CorruptData(f"a remote log batch claims {length} bytes", ErrorCode.CORRUPT_RECORD_EXCEPTION)
        if size > len(block) - end:
            return end, size
        end += size
    return end, LENGTH_OVERHEAD


def _failure(segment: RemoteSegment, error: BaseException) -> StorageFailure:
    return StorageFailure(
        f"remote log segment {segment.path} (offsets {segment.start_offset} to {segment.end_offset}) cannot be read: "
        f"{error}. The client reads remote storage itself, so it needs access to it",
        ErrorCode.STORAGE_EXCEPTION,
    )
