"""A stand-in for a server: files that its notes are about."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from forebay.base.errors import InvalidRequest
from forebay.codec.log.header import iter_headers
from forebay.log.log_ends import NoMarks
from forebay.log.tablet import LogTablet
from forebay.metadata.table import TableBucket
from forebay.server.journal.feed import JournalFeed
from tests.fs.faulty_fs import FaultyFileSystem


@dataclass
class Server:
    """Logs and files whose changes are noted."""

    feed: JournalFeed = field(default_factory=JournalFeed)
    fs: FaultyFileSystem = field(default_factory=lambda: FaultyFileSystem(random.Random(1)))
    logs: dict[TableBucket, LogTablet] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def open_log(self, number: int) -> LogTablet:
        bucket = TableBucket(number, 0)
        log = LogTablet.open(self.fs, f"/data/log-{number}", marks=self.feed.marks(bucket, NoMarks()))
        self.logs[bucket] = log
        return log

    def log_batches(self, bucket: TableBucket, first: int, end: int) -> Iterator[memoryview] | None:
        log = self.logs.get(bucket)
        return None if log is None else self._batches(log, first, end)

    @staticmethod
    def _batches(log: LogTablet, first: int, end: int) -> Iterator[memoryview]:
        while first < end:
            piece = log.read(first, 200, end)
            if piece.base_offset != first or piece.next_offset == first:
                raise InvalidRequest(f"no batch from {first} to {end}")
            yield piece.data
            first = piece.next_offset

    def log_bytes(self, bucket: TableBucket, first: int, end: int) -> int:
        try:
            return sum(piece.nbytes for piece in self.log_batches(bucket, first, end) or ())
        except InvalidRequest:
            return 0

    def part_end(self, bucket: TableBucket, first: int, end: int, size_bytes: int) -> int:
        for piece in self.log_batches(bucket, first, end) or ():
            if size_bytes <= 0:
                break
            size_bytes -= piece.nbytes
            first = max(header.next_offset for _, header in iter_headers(piece))
        return first

    def file_part(self, name: str, position: int, end: int) -> bytes | None:
        content = self.files.get(name)
        return None if content is None else content[position:end]


def content_of(log: LogTablet, end: int) -> bytes:
    return b"".join(Server._batches(log, 0, end))
