"""Disk blocks for the pages that an LMDB transaction writes through its memory map.

A store into a mapped page without a block on a full disk kills the process with SIGBUS: there is no error to catch. So
blocks are allocated (`posix_fallocate`) before a transaction begins, for as many pages as it can take, and a disk
without space is an error before anything is written.

Nouns: the *used* part of a data file holds pages of some transaction; after it comes *room*, the beginning of which is
allocated, up to the end of the map.

Whether allocation is a guarantee depends on the file system. ext4 and XFS write into allocated extents without needing
more space; tmpfs allocates memory pages; overlayfs passes the call on to the underlying file system. Copy-on-write file
systems (btrfs, ZFS, bcachefs) need new blocks for every page, allocated or not, and network file systems allocate when
they please. There LMDB writes its pages by system calls, which report a full disk (`allocates_in_place`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forebay.base.errors import ErrorCode
from forebay.base.host import file_system_type
from forebay.fs.interface import DiskFull, storage_failure
from forebay.fs.local import local_failure
from forebay.kv.engine import WriteSize

PAGE_BYTES = 4096
"""LMDB takes the page size of the system; larger pages only make the bounds below safer."""

_ALLOCATING = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs", "overlay"})
_NODE_HEAD_BYTES = 10
_SMALL_NODE_BYTES = 1024
_STEP_BYTES_MIN = 128 << 10
_STEP_BYTES_MAX = 64 << 20
_ROOM_KEPT_BYTES = 4 << 20
_BRANCH_KEYS_MIN = 3
"""Keys of half a branch page, if they are as long as LMDB allows."""
_FIXED_PAGES = 64
"""Pages of the small tables (state, long keys, table of tables, list of free pages), including rebalancing."""


def allocates_in_place(directory: Path) -> bool:
    """Return whether blocks allocated in files of `directory` can be written without further space."""
    return hasattr(os, "posix_fallocate") and file_system_type(directory) in _ALLOCATING


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
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._end = 0

    def begin(self, end: int, file_bytes: int) -> None:
        """Allocate blocks for the first `end` bytes of the file, and release those after them.

        The file has `file_bytes` afterwards. The reserve is ignored: a full disk must not prevent opening existing
        data.
        """
        try:
            os.truncate(self._path, end)
            os.truncate(self._path, file_bytes)
        except OSError as e:
            raise storage_failure("cut", str(self._path), e) from e
        allocate_file(self._path, 0, end)
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
        allocate_file(self._path, self._end, wanted - self._end)
        self._end = wanted

    def release(self, used: int, file_bytes: int) -> None:
        """Release blocks allocated far after the first `used` bytes; the file keeps its size, `file_bytes`.

        The bound is far above what most transactions take. There must be no concurrent write.
        """
        keep = used + min(max(used // 4, _ROOM_KEPT_BYTES), _STEP_BYTES_MAX)
        if self._end <= 2 * keep - used:
            return
        try:
            os.truncate(self._path, keep)
            os.truncate(self._path, file_bytes)
        except OSError as e:
            raise storage_failure("cut", str(self._path), e) from e
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
            status = os.statvfs(self._path.parent)
        except OSError as e:
            raise storage_failure("look up the free space of", str(self._path.parent), e) from e
        return status.f_bavail * status.f_frsize

    def _full(self, size: int, free: int) -> DiskFull:
        return DiskFull(
            f"the disk of {self._path} has {free} bytes free, of which {self._reserve_bytes()} are reserved "
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
