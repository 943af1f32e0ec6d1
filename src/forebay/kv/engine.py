"""The contract of a key-value engine: an ordered map of bytes that a changelog is applied to.

The log is the source of truth and the engine is an index on it (docs/design/0005-the-log-is-the-truth.md). An engine
therefore needs no log of its own: it stores, in one atomic step, the rows of a batch and the changelog offset up to
which it has seen everything. After a crash, whatever state it returns with is right for the offset that it reports, and
the rest is replayed.

Stored values are `length i32 | schema id i16 | row` (codec.kv.value_batch), so that a scan page is plain concatenation.

Disk space is allocated before an engine writes (`MapSpace`). A store into a mapped page without a block on a full disk
kills the process with SIGBUS: there is no error to catch. So blocks are allocated (`posix_fallocate`) before a
transaction begins, for as many pages as it can take, and a disk without space is an error before anything is written.
The *used* part of a data file holds pages of some transaction; after it comes *room*, the beginning of which is
allocated, up to the end of the map. Whether allocation is a guarantee depends on the file system. ext4 and XFS write
into allocated extents without needing more space; tmpfs allocates memory pages; overlayfs passes the call on to the
underlying file system. Copy-on-write file systems (btrfs, ZFS, bcachefs) need new blocks for every page, allocated or
not, and network file systems allocate when they please. There LMDB writes its pages by system calls, which report a
full disk (`forebay.fs.local_words.allocates_in_place`).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from forebay.base.errors import ErrorCode
from forebay.codec.kv._records import join_value_batch
from forebay.codec.kv.value_batch import EMPTY_VALUE_BATCH, parse_value_batch
from forebay.codec.rows._slices import RowSlices
from forebay.fs.interface import DiskFull, storage_failure
from forebay.fs.local import local_failure
from forebay.kv._digest import added
from forebay.kv._digest import change as digest_change
from forebay.kv._merge import MergePlan
from forebay.kv.auto_increment import AutoIncrementSequence

PAGE_BYTES = 4096
"""LMDB takes the page size of the system; larger pages only make the bounds below safer."""

_NODE_HEAD_BYTES = 10
_SMALL_NODE_BYTES = 1024
_STEP_BYTES_MIN = 128 << 10
_STEP_BYTES_MAX = 64 << 20
_ROOM_KEPT_BYTES = 4 << 20
_BRANCH_KEYS_MIN = 3
"""Keys of half a branch page, if they are as long as LMDB allows."""
_FIXED_PAGES = 64
"""Pages of the small tables (state, long keys, table of tables, list of free pages), including rebalancing."""


@dataclass(frozen=True, slots=True)
class TreeSize:
    """The pages of a B-tree before the transaction, and of the whole file."""

    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    file_pages: int


def pages_at_most(write: WriteSize, tree: TreeSize) -> int:
    """Return an upper bound of the pages that a transaction takes after the used part, if it can reuse no free page.

    LMDB copies every page that it changes, once per transaction: with random keys, one leaf for each key and the
    branches above it, and a neighbour if a delete merges pages. Keys are written in their order, so a page is split
    once when it is found full, and again only when about half a page of new rows has gone into one of the halves.
    """
    touched = write.keys + write.deletes
    leaves = min(touched, tree.leaf_pages)
    branches = min(touched * max(tree.depth - 1, 0), tree.branch_pages)
    rows = max(write.keys - write.deletes - write.large_values, 0)
    longest = write.longest + _NODE_HEAD_BYTES
    if longest <= _SMALL_NODE_BYTES:
        row_bytes = max(write.total_bytes - write.large_bytes, 0) + rows * _NODE_HEAD_BYTES
        rows = min(rows, leaves + row_bytes // (PAGE_BYTES // 2 - longest) + 1)
    splits = rows + write.large_values
    large = write.large_bytes // PAGE_BYTES + 2 * write.large_values
    taken = leaves + branches + splits + splits // _BRANCH_KEYS_MIN + large + 2 * tree.depth
    freed = leaves + branches + min(tree.overflow_pages, tree.file_pages)
    free_list = (freed + tree.file_pages) // (PAGE_BYTES // 8) * 2
    return taken + free_list + _FIXED_PAGES


class MapSpace:
    """The allocated beginning of one open data file. Not thread-safe."""

    def __init__(self, path: Path, reserve_bytes: Callable[[], int]) -> None:
        """`reserve_bytes`: how much of the disk must stay free."""
        self.path = path
        self._reserve_bytes = reserve_bytes
        self._end = 0

    @property
    def allocated(self) -> int:
        """Return how many bytes at the beginning of the file have blocks."""
        return self._end

    def begin(self, end: int, file_bytes: int) -> None:
        """Allocate blocks for the first `end` bytes of the file, and release those after them.

        The file has `file_bytes` afterwards. The reserve is ignored: a full disk must not prevent opening existing
        data.
        """
        try:
            os.truncate(self.path, end)
            os.truncate(self.path, file_bytes)
        except OSError as e:
            raise storage_failure("cut", str(self.path), e) from e
        allocate_file(self.path, 0, end)
        self._end = end

    def allocate(self, end: int, limit: int) -> None:
        """Ensure that the first `end` bytes of the file have blocks, and some more up to `limit` if there is space.

        Raises `DiskFull` (DISK_WRITE_LOCKED): nothing was written.
        """
        if end <= self._end:
            return
        step = min(max(end // 8, _STEP_BYTES_MIN), _STEP_BYTES_MAX)
        wanted = min(max(end, self._end + step), max(limit, end))
        free = self._free_bytes()
        if free - (end - self._end) < self._reserve_bytes():
            raise self._full(end - self._end, free)
        if free - (wanted - self._end) < self._reserve_bytes():
            wanted = end
        allocate_file(self.path, self._end, wanted - self._end)
        self._end = wanted

    def release(self, used: int, file_bytes: int) -> None:
        """Release blocks allocated far after the first `used` bytes; the file keeps its size, `file_bytes`.

        The bound is far above what most transactions take. There must be no concurrent write.
        """
        keep = used + min(max(used // 4, _ROOM_KEPT_BYTES), _STEP_BYTES_MAX)
        if self._end <= 2 * keep - used:
            return
        try:
            os.truncate(self.path, keep)
            os.truncate(self.path, file_bytes)
        except OSError as e:
            raise storage_failure("cut", str(self.path), e) from e
        self._end = keep

    def require_free(self, size: int, *, may_use_reserve: bool = False) -> None:
        """Raise `DiskFull` (DISK_WRITE_LOCKED) unless `size` bytes can be written and the reserve stays free.

        Writes that allow the log to be truncated (checkpoints) may use the reserve.
        """
        free = self._free_bytes()
        if free - size < (0 if may_use_reserve else self._reserve_bytes()):
            raise self._full(size, free)

    def _free_bytes(self) -> int:
        try:
            status = os.statvfs(self.path.parent)
        except OSError as e:
            raise storage_failure("look up the free space of", str(self.path.parent), e) from e
        return status.f_bavail * status.f_frsize

    def _full(self, size: int, free: int) -> DiskFull:
        return DiskFull(
            f"the disk of {self.path} has {free} bytes free, of which {self._reserve_bytes()} are reserved "
            f"('server.data-disk.reserve'); a write that may need {size} bytes was refused. Free some space on it: "
            "writes continue then",
            ErrorCode.DISK_WRITE_LOCKED,
        )


def allocate_file(path: Path, start: int, size: int) -> None:
    """Allocate blocks for `size` bytes of a file from `start` on; the file is created if it does not exist.

    Raises `DiskFull` and `StorageFailure`.
    """
    if size <= 0:
        return
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, start, size)
        finally:
            os.close(descriptor)
    except OSError as e:
        failure = local_failure(f"allocate {size} bytes of", str(path), e)
        if isinstance(failure, DiskFull):
            failure = DiskFull(failure.message, ErrorCode.DISK_WRITE_LOCKED)
        raise failure from e


UNBOUNDED = (1 << 63) - 1

LARGE_VALUE_BYTES = 1500
"""Engines may store values from this size on separately."""

_STATE = struct.Struct("<BqqqqQ")
_STATE_VERSION = 2
_STATE_WITHOUT_DIGEST = struct.Struct("<Bqqqq")
_STATE_VERSION_WITHOUT_DIGEST = 1


@dataclass(frozen=True, slots=True)
class EngineState:
    """The metadata that an engine stores beside its rows, changed together with them.

    `applied_offset` is exclusive: the changelog below it is contained. `row_count` is -1 where rows are not counted.
    `next_id` up to `last_id` (inclusive) is the rest of the auto-increment segment; empty when next > last. `digest` is
    that of the rows (`kv._digest`), updated from the writes and not from the files, so that it reveals damage to these;
    None if it is not kept.
    """

    applied_offset: int = 0
    row_count: int = 0
    next_id: int = 1
    last_id: int = 0
    digest: int | None = None

    def to_bytes(self) -> bytes:
        """Return the state as bytes, to be stored under the engine's own key."""
        numbers = self.applied_offset, self.row_count, self.next_id, self.last_id
        if self.digest is None:
            return _STATE_WITHOUT_DIGEST.pack(_STATE_VERSION_WITHOUT_DIGEST, *numbers)
        return _STATE.pack(_STATE_VERSION, *numbers, self.digest)

    @classmethod
    def from_bytes(cls, data: bytes) -> EngineState:
        """Return the state from bytes. Raises `ValueError` for anything that `to_bytes` did not write."""
        if len(data) == _STATE.size and data[0] == _STATE_VERSION:
            return cls(*_STATE.unpack(data)[1:])
        if len(data) == _STATE_WITHOUT_DIGEST.size and data[0] == _STATE_VERSION_WITHOUT_DIGEST:
            return cls(*_STATE_WITHOUT_DIGEST.unpack(data)[1:])
        raise ValueError(f"{data!r} is not the state of a key-value engine")

    def advanced(self, applied_offset: int, rows: int, digest_change: int | None) -> EngineState:
        """Return this state `rows` rows later, at `applied_offset`; `digest_change` is None if unknown."""
        count = self.row_count if self.row_count < 0 else self.row_count + rows
        before = 0 if self.applied_offset == 0 else self.digest
        digest = None if before is None or digest_change is None else added(before, digest_change)
        return EngineState(applied_offset, count, self.next_id, self.last_id, digest)


@dataclass(frozen=True, slots=True)
class KvPage:
    """Rows of a snapshot: a value batch of `rows` rows, the position after the last one (None: there are no rows), and
    whether there are more.
    """

    records: bytes
    rows: int
    position: bytes | None
    has_more: bool


NO_ROWS = KvPage(EMPTY_VALUE_BATCH, 0, None, False)


def page_of(values: Iterator[bytes], position: Callable[[], bytes], bytes_max: int, rows_max: int) -> KvPage:
    """Return a page of `values`; `position` returns that after the value that was taken last."""
    first = next(values, None)
    if first is None:
        return NO_ROWS
    records, rows, ended = join_value_batch(first, values, bytes_max, rows_max)
    after = position()
    return KvPage(records, rows, after, not ended and next(values, None) is not None)


@dataclass(frozen=True, slots=True)
class KvRows:
    """The same rows for those who decode them: schema ids and rows, which may lie where the engine has them."""

    schema_ids: npt.NDArray[np.int16]
    rows: RowSlices
    position: bytes | None
    has_more: bool


def rows_of(page: KvPage) -> KvRows:
    """Return the rows in a page."""
    schema_ids, rows = parse_value_batch(page.records)
    return KvRows(schema_ids, rows, page.position, page.has_more)


@dataclass(frozen=True, slots=True)
class WriteSize:
    """How much one `apply` writes. Deletes are among the keys.

    `longest` is the longest key and value together, of values below `LARGE_VALUE_BYTES`; the others are counted by
    `large_values` and `large_bytes`. `longest_key` is that of all keys.
    """

    keys: int = 0
    deletes: int = 0
    total_bytes: int = 0
    longest: int = 0
    large_values: int = 0
    large_bytes: int = 0
    longest_key: int = 0

    def __add__(self, other: WriteSize) -> WriteSize:
        return WriteSize(
            self.keys + other.keys,
            self.deletes + other.deletes,
            self.total_bytes + other.total_bytes,
            max(self.longest, other.longest),
            self.large_values + other.large_values,
            self.large_bytes + other.large_bytes,
            max(self.longest_key, other.longest_key),
        )


def size_of(writes: Mapping[bytes, bytes | None]) -> WriteSize:
    """Return the size of an `apply` of these writes."""
    deletes = 0
    if None in writes.values():
        lengths = [-1 if value is None else len(value) for value in writes.values()]
        deletes = lengths.count(-1)
    else:
        lengths = list(map(len, cast("Iterable[bytes]", writes.values())))
    key_lengths = np.fromiter(map(len, writes), np.int64, len(writes))
    value_lengths = np.maximum(np.array(lengths, np.int64), 0)
    is_large = value_lengths >= LARGE_VALUE_BYTES
    large = value_lengths[is_large]
    pairs = key_lengths + value_lengths
    return WriteSize(
        len(pairs),
        deletes,
        int(pairs.sum()),
        int(pairs[~is_large].max(initial=0)),
        len(large),
        int(large.sum()),
        int(key_lengths.max(initial=0)),
    )


def just_longer_than(bytes_max: int, values: Iterable[bytes]) -> list[bytes]:
    """Return the first of `values` that together exceed `bytes_max`; all of them if they do not."""
    found: list[bytes] = []
    left = bytes_max
    for value in values:
        found.append(value)
        left -= len(value)
        if left < 0:
            break
    return found


class KvSnapshot(Protocol):
    """An immutable view of an engine. Not thread-safe; `close` releases its resources."""

    @property
    def state(self) -> EngineState:
        """Return the state that belongs to exactly these rows."""
        ...

    def values(self) -> Iterator[bytes]:
        """Return all stored values in the engine's order."""
        ...

    def page(self, after: bytes | None, bytes_max: int, rows_max: int) -> KvPage:
        """Return rows from the first one on, or after a position that a page of this snapshot told.

        At least one row, if there is one; then no more once they hold `bytes_max` bytes or are `rows_max`. Raises
        `InvalidRequest` for an invalid position.
        """
        ...

    def rows(self, after: bytes | None, bytes_max: int, rows_max: int) -> KvRows:
        """Return the same as `page`. The rows stay good when the snapshot is closed."""
        ...

    def close(self) -> None: ...


MergedPut = tuple[bytes, RowSlices, RowSlices, int]
"""The changelog of a put: its change types, rows, and keys; and the number of rows that it added to the state."""


class GroupWrites(Protocol):
    """What a group of writes has written, seen by the group alone, until `apply`. One thread uses it, and ends it by
    `apply` or `abandon` before the next one begins.
    """

    def get(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes | None]:
        """Return the stored values of (at least) these keys as the group has left them, None where there is none."""
        ...

    def put(self, touched: Mapping[bytes, bytes | None]) -> None:
        """Write (value) and delete (None) keys, of which `get` was asked if their old values matter.

        Raises `DiskFull` (DISK_WRITE_LOCKED), and has no effect then.
        """
        ...

    def put_records(
        self,
        records: bytes | memoryview,
        start: int,
        count: int,
        plan: MergePlan,
        sequence: AutoIncrementSequence | None,
    ) -> MergedPut | None:
        """Merge and put the `count` KvRecords from `start` on, of the latest schema, in one piece, if the engine can.

        None if it cannot, or cannot with these records: then nothing is written, and they have to be merged and `put`.
        Raises `DiskFull` (DISK_WRITE_LOCKED) and what drawing an auto-increment id raises, without any effect.
        """
        ...

    def take_back(self) -> None:
        """Take back what the last `put` or `put_records` has written."""
        ...

    def digest_change(self) -> int | None:
        """Return what the group adds to the digest of the rows; None if that is not kept with the state."""
        ...

    def apply(self, state: EngineState) -> None:
        """Make all of it visible and set the state, in one atomic step.

        Raises `StorageFailure` without any effect when the engine cannot write.
        """
        ...

    def abandon(self) -> None:
        """Forget all of it."""
        ...


class KvEngine(Protocol):
    """A persistent map. One thread applies; any thread can read at any time, and sees whole groups only."""

    name: str

    @property
    def state(self) -> EngineState: ...

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the stored value of each key, None if there is none. Keys may repeat."""
        ...

    def begin(self, keeps_digest: bool) -> GroupWrites:
        """Begin a group of writes. `keeps_digest`: whether the digest of the rows is wanted."""
        ...

    def apply(self, writes: Mapping[bytes, bytes | None], state: EngineState) -> None:
        """Put (value) and delete (None) all keys and set the state, in one atomic step.

        Raises `StorageFailure` without any effect when the engine cannot write.
        """
        ...

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, stored value) of all rows at one point in time."""
        ...

    def prefix(self, prefix: bytes, bytes_max: int = UNBOUNDED) -> list[bytes]:
        """Return the stored values of all keys that begin with `prefix`, in key order.

        If these together exceed `bytes_max`, only the first ones that do are returned. Raises `UnsupportedOperation`
        if the engine does not keep keys in order.
        """
        ...

    def first(self, limit: int, bytes_max: int = UNBOUNDED) -> list[bytes]:
        """Return the first `limit` stored values in the engine's order; `bytes_max` as in `prefix`."""
        ...

    def snapshot(self) -> KvSnapshot: ...

    def checkpoint(self, directory: Path, previous: Path | None = None) -> None:
        """Write a complete copy into the new folder `directory`, durable when this returns.

        `previous` is the newest checkpoint, of which an engine may link files that have not changed.
        """
        ...

    def sync(self) -> None:
        """Make the engine's own files durable, as for a clean shutdown."""
        ...

    def close(self) -> None: ...


class BufferedEngine(KvEngine, Protocol):
    """An engine that takes the writes of a group at its end (`BufferedWrites`)."""

    def make_room(self, size: WriteSize) -> None:
        """Reserve disk space for an `apply` of this size, before anything is written for it.

        Raises `DiskFull` (DISK_WRITE_LOCKED).
        """
        ...


class BufferedWrites:
    """The writes of a group, in memory, until the engine takes them in one step."""

    def __init__(self, engine: BufferedEngine, keeps_digest: bool) -> None:
        self._engine = engine
        self._keeps_digest = keeps_digest
        self._values: dict[bytes, bytes | None] = {}
        self._changed: dict[bytes, bytes | None] = {}
        self._size = WriteSize()
        self._digest_change = 0
        self._last: Mapping[bytes, bytes | None] = {}

    def get(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes | None]:
        self._settle()
        values = self._values
        missing = [key for key in dict.fromkeys(keys) if key not in values]
        values.update(zip(missing, self._engine.multi_get(missing)))
        return values

    def put(self, touched: Mapping[bytes, bytes | None]) -> None:
        self._settle()
        self._engine.make_room(self._size + size_of(touched))
        self._last = touched

    def put_records(
        self,
        records: bytes | memoryview,
        start: int,
        count: int,
        plan: MergePlan,
        sequence: AutoIncrementSequence | None,
    ) -> None:
        """Such an engine takes nothing before the group ends."""

    def _settle(self) -> None:
        """Take over the last `put`, which can no longer be taken back."""
        last, self._last = self._last, {}
        if not last:
            return
        self._size += size_of(last)
        if self._keeps_digest:
            self._digest_change = added(self._digest_change, digest_change(last, self._values))
        self._values.update(last)
        self._changed.update(last)

    def take_back(self) -> None:
        self._last = {}

    def digest_change(self) -> int | None:
        self._settle()
        return self._digest_change if self._keeps_digest else None

    def apply(self, state: EngineState) -> None:
        self._settle()
        self._engine.apply(self._changed, state)

    def abandon(self) -> None:
        """Nothing of it is anywhere but here."""


class EngineFactory(Protocol):
    """Opens (or creates) the engine whose files are in a folder."""

    def __call__(self, directory: Path) -> KvEngine: ...
