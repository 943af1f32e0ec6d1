"""Staged rows on disk: what the attempts of a transaction's tasks have sent, until its driver commits it.

Nouns: a *stage* is one attempt's file; a *request* is what one StageRows call brought, one batch for each of some
buckets; an *entry* is one such batch in the file.

A stage grows by whole requests, in the order of their numbers, and ends with a mark that says how many there were. What
a crash has cut off is cut away when the stage is opened again, so an attempt either goes on where the file ends, or
learns that a request is missing. A stage is durable once its end is there. docs/format/stage.md has the bytes.

Threads: one for each stage at a time, which the caller makes sure of; different stages in any threads.
"""

from __future__ import annotations

import logging
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from forebay.base import threads
from forebay.base.errors import Conflict, CorruptData, ErrorCode, ForebayError, LimitExceeded
from forebay.codec.crc import crc32c
from forebay.fs import names
from forebay.fs.interface import AppendFile, FileMissing, FileSystem, PositionalReader
from forebay.metadata.table import TableBucket

_LOGGER = logging.getLogger(__name__)

STAGE_SUFFIX = ".stage"
ENTRIES_MAX = 1_000_000
"""Batches of one attempt: a driver keeps the place of each while it commits."""

_OPEN_FILES_MAX = 64
"""Stage files that stay open for appends; the least recently used ones are closed."""
_MAGIC = b"FBSTAGE1"
_ENTRY = struct.Struct("<IIIqqqiHBx")
"""CRC-32C of all that follows with the target columns, bytes of the batch, its CRC-32C, request, table, partition (-1:
none), bucket, number of target columns, whether the request ends here."""
_CRC_BYTES = 4
_NO_PARTITION = -1
_END_TABLE = -1
"""The table of the mark at the end, whose request is the number of requests."""


class StagedBatch(NamedTuple):
    """The batch of an entry: where it is in which stage, and what it is for."""

    path: str
    position: int
    size_bytes: int
    crc: int
    bucket: TableBucket
    target_columns: tuple[int, ...]


CountRows = Callable[[TableBucket, bytes], None]
"""Gets the bucket of a batch, and its first bytes, which hold its header."""

_HEADER_BYTES_MAX = 64


class Stage:
    """The state of one attempt's file."""

    __slots__ = ("entries", "is_finished", "path", "requests", "size_bytes")

    def __init__(self, path: str, requests: int = 0, entries: int = 0, size_bytes: int = 0) -> None:
        self.path = path
        self.requests = requests
        self.entries = entries
        self.size_bytes = size_bytes
        self.is_finished = False


class StageFiles:
    """The files of all stages, below one folder. A few of those that grow are kept open."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        grew: Callable[[str, int, int], None] | None = None,
        removed: Callable[[str], None] | None = None,
        when_stored: Callable[[Callable[[], None]], None] = lambda call: call(),
    ) -> None:
        """`grew` is called with each finished stage: its path relative to the data directory, 0 and its size; `removed`
        with the folder of each transaction whose stages were removed. `when_stored` makes a call when the journal has
        all that was finished before."""
        self._fs = fs
        self._folder = folder
        self._grew, self._removed, self._when_stored = grew, removed, when_stored
        self._lock = threads.lock()
        self._open: OrderedDict[str, AppendFile] = OrderedDict()

    def folder_of(self, transaction_id: int) -> str:
        return names.join(self._folder, str(transaction_id))

    def path_of(self, transaction_id: int, attempt: str) -> str:
        return names.join(self.folder_of(transaction_id), attempt + STAGE_SUFFIX)

    def transactions(self) -> list[int]:
        """The ids of transactions that have a folder."""
        with suppress(FileMissing):
            return [int(e.name) for e in self._fs.list_directory(self._folder) if e.is_directory and e.name.isdigit()]
        return []

    def sizes(self, transaction_id: int) -> list[int]:
        """The bytes of each stage of a transaction, whatever is in them."""
        with suppress(FileMissing):
            entries = self._fs.list_directory(self.folder_of(transaction_id))
            return [entry.size_bytes for entry in entries if entry.name.endswith(STAGE_SUFFIX)]
        return []

    def stages(self, transaction_id: int, *, settles: bool = True) -> dict[str, Stage]:
        """The stages of a transaction by their attempts, as a crash has left them.

        `settles`: what the page cache holds of them is written to the disk first.
        """
        folder, by_name = self.folder_of(transaction_id), dict[str, Stage]()
        with suppress(FileMissing):
            for entry in self._fs.list_directory(folder):
                if entry.name.endswith(STAGE_SUFFIX):
                    path = names.join(folder, entry.name)
                    if settles:
                        self._settle(path)
                    by_name[entry.name.removesuffix(STAGE_SUFFIX)] = self._recovered(path)
        return by_name

    def begin(self, transaction_id: int, attempt: str) -> Stage:
        """A new, empty stage. `attempt` is a file name."""
        self._fs.make_directories(self.folder_of(transaction_id))
        return Stage(self.path_of(transaction_id, attempt))

    # ---- writing ----------------------------------------------------------------------------------------------------

    def append(
        self,
        stage: Stage,
        request: int,
        batches: Sequence[tuple[TableBucket, memoryview]],
        target_columns: Sequence[int] = (),
    ) -> int:
        """Add a request to a stage; returns the bytes that this takes, 0 for one that is there already.

        Raises `Conflict` for a request that is missing before it, and once the stage has ended, `LimitExceeded`,
        `StorageFailure`.
        """
        if request < stage.requests and not stage.is_finished:
            return 0
        if request != stage.requests or stage.is_finished:
            state = "has ended" if stage.is_finished else f"has {stage.requests} requests"
            raise Conflict(
                f"request {request} of attempt {_attempt_of(stage)} cannot be staged: the attempt {state} here. Rows "
                "that were not finished may be lost when the server stops; begin another attempt",
                ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION,
            )
        if stage.entries + len(batches) > ENTRIES_MAX:
            raise LimitExceeded(
                f"attempt {_attempt_of(stage)} has staged {stage.entries} batches, and can stage {ENTRIES_MAX}: write "
                "larger batches, or use more attempts",
                ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
            )
        buffers: list[bytes | memoryview] = [] if stage.size_bytes else [_MAGIC]
        for place, (bucket, records) in enumerate(batches):
            partition_id = _NO_PARTITION if bucket.partition_id is None else bucket.partition_id
            head = _Head(
                len(records), crc32c(records), request, bucket.table_id, partition_id, bucket.bucket,
                tuple(target_columns), place == len(batches) - 1,
            )  # fmt: skip
            buffers += [head.to_bytes(), records]
        size = sum(len(buffer) for buffer in buffers)
        self._append(stage, buffers)
        stage.requests = request + 1
        stage.entries += len(batches)
        stage.size_bytes += size
        return size

    def finish(self, stage: Stage, requests: int) -> None:
        """End a stage that has so many requests; it is durable afterwards. A second call does nothing.

        Raises `Conflict` if requests are missing, `StorageFailure`.
        """
        if requests != stage.requests:
            raise Conflict(
                f"attempt {_attempt_of(stage)} cannot be finished: it has sent {requests} requests, of which "
                f"{stage.requests} are here. Begin another attempt",
                ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION,
            )
        if not stage.is_finished:
            start: list[bytes | memoryview] = [] if stage.size_bytes else [_MAGIC]
            end = [*start, _Head(0, 0, requests, _END_TABLE, _NO_PARTITION, 0, (), True).to_bytes()]
            self._append(stage, end, syncs=True)
            stage.size_bytes += sum(len(buffer) for buffer in end)
            stage.is_finished = True
            if self._grew is not None:
                self._grew(self._relative(stage.path), 0, stage.size_bytes)
        self.close(stage)

    def _append(self, stage: Stage, buffers: Sequence[bytes | memoryview], *, syncs: bool = False) -> None:
        with self._lock:
            file = self._open.pop(stage.path, None)  # no other thread closes it while it is written
        if file is None:
            file = self._fs.open_append(stage.path)
        try:
            if file.size != stage.size_bytes:
                file.truncate(stage.size_bytes)  # an append that failed has left a part
            file.append(buffers)
            if syncs:
                file.sync()
        except BaseException:
            file.close()
            raise
        with self._lock:
            self._open[stage.path] = file
            closed = [self._open.popitem(last=False)[1] for _ in range(len(self._open) - _OPEN_FILES_MAX)]
        for each in closed:
            each.close()

    def close(self, stage: Stage) -> None:
        """Let go of the file of a stage."""
        with self._lock:
            file = self._open.pop(stage.path, None)
        if file is not None:
            file.close()

    def close_all(self) -> None:
        with self._lock:
            files, self._open = list(self._open.values()), OrderedDict()
        for file in files:
            file.close()

    # ---- reading ----------------------------------------------------------------------------------------------------

    def entries(self, stage: Stage, count_rows: CountRows | None = None) -> Iterator[StagedBatch]:
        """The batches of a finished stage in order, without their bytes. Raises `CorruptData`, `StorageFailure`."""
        reader = self._fs.open_reader(stage.path)
        try:
            position = len(_MAGIC)
            while position < stage.size_bytes:
                head = _read_head(reader, position)
                if head is None:
                    raise _damaged(stage.path, position)
                if head.table_id == _END_TABLE:
                    return
                place = TableBucket(
                    head.table_id, head.bucket, None if head.partition_id == _NO_PARTITION else head.partition_id
                )
                start = position + head.size_bytes
                if count_rows is not None:
                    count_rows(place, reader.pread(start, min(_HEADER_BYTES_MAX, head.records_bytes)))
                yield StagedBatch(stage.path, start, head.records_bytes, head.records_crc, place, head.target_columns)
                position = start + head.records_bytes
        finally:
            reader.close()

    def batch(self, entry: StagedBatch) -> bytearray:
        """The bytes of a batch. Raises `CorruptData` if they are damaged, `StorageFailure`."""
        reader = self._fs.open_reader(entry.path)
        try:
            data = reader.pread(entry.position, entry.size_bytes)
        finally:
            reader.close()
        if len(data) != entry.size_bytes or crc32c(data) != entry.crc:
            raise _damaged(entry.path, entry.position)
        return bytearray(data)

    def _settle(self, path: str) -> None:
        """Write back and drop the pages of the page cache, which may be on the disk or not, so that later reads come
        from the disk.
        """
        file = self._fs.open_append(path)
        file.sync()
        file.close()
        self._fs.forget_cached(path)

    def _recovered(self, path: str) -> Stage:
        """A stage as a crash has left it, without what is incomplete at its end."""
        reader = self._fs.open_reader(path)
        stage = Stage(path)
        entries = 0
        try:
            position = len(_MAGIC)
            if reader.pread(0, position) != _MAGIC:
                return stage
            while (head := _read_head(reader, position)) is not None:
                records = reader.pread(position + head.size_bytes, head.records_bytes)
                if len(records) < head.records_bytes or crc32c(records) != head.records_crc:
                    break
                position += head.size_bytes + head.records_bytes
                if head.table_id == _END_TABLE:
                    stage.is_finished, stage.size_bytes = True, position
                    break
                entries += 1
                if head.ends_request:
                    stage.requests, stage.entries, stage.size_bytes = head.request + 1, entries, position
            return stage
        finally:
            reader.close()

    # ---- removing ---------------------------------------------------------------------------------------------------

    def remove(self, transaction_id: int, stages: Sequence[Stage] = ()) -> None:
        """Remove all that a transaction has staged, once the journal has what was finished of it."""
        for stage in stages:
            self.close(stage)
        self._when_stored(partial(self._remove, self.folder_of(transaction_id)))

    def _remove(self, folder: str) -> None:
        try:
            if not self._fs.exists(folder):
                return
            self._fs.remove_tree(folder)
        except ForebayError as e:
            _LOGGER.warning("staged rows in %s are removed at the next start: %s", folder, e)
            return
        if self._removed is not None:
            self._removed(self._relative(folder))

    def _relative(self, path: str) -> str:
        """A path, relative to the data directory."""
        return path.removeprefix(f"{self._folder.rpartition('/')[0]}/")


class _Head(NamedTuple):
    """An entry without its batch, which follows."""

    records_bytes: int
    records_crc: int
    request: int
    table_id: int
    partition_id: int
    bucket: int
    target_columns: tuple[int, ...]
    ends_request: bool

    @property
    def size_bytes(self) -> int:
        return _ENTRY.size + 2 * len(self.target_columns)

    def to_bytes(self) -> bytes:
        *fields, targets, ends_request = self
        rest = _ENTRY.pack(0, *fields, len(targets), ends_request)[_CRC_BYTES:] + struct.pack(
            f"<{len(targets)}H", *targets
        )
        return struct.pack("<I", crc32c(rest)) + rest


def _read_head(reader: PositionalReader, position: int) -> _Head | None:
    """The head of the entry at `position`; None if there is no whole one."""
    fixed = reader.pread(position, _ENTRY.size)
    if len(fixed) < _ENTRY.size:
        return None
    crc, *fields, columns, ends_request = _ENTRY.unpack(fixed)
    targets = reader.pread(position + _ENTRY.size, 2 * columns) if columns else b""
    if len(targets) < 2 * columns or crc32c(fixed[_CRC_BYTES:] + targets) != crc:
        return None
    size, records_crc, request, table_id, partition_id, bucket = fields
    columns_set = struct.unpack(f"<{columns}H", targets)
    return _Head(size, records_crc, request, table_id, partition_id, bucket, columns_set, bool(ends_request))


def _attempt_of(stage: Stage) -> str:
    return repr(stage.path.rpartition("/")[2].removesuffix(STAGE_SUFFIX))


def _damaged(path: str, position: int) -> CorruptData:
    return CorruptData(
        f"{path} is damaged at position {position}: staged rows of a transaction that is decided cannot be read. "
        "Restore the file from a copy, and start the server again",
        ErrorCode.CORRUPT_RECORD_EXCEPTION,
    )
