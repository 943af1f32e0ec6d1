"""Disk space that is allocated before an engine writes into a mapped file.

A store into a mapped page without a block on a full disk kills the process with SIGBUS: there is no error to catch. So
blocks are allocated (`posix_fallocate`) before a transaction begins, for as many pages as it can take, and a disk
without space is an error before anything is written. The *used* part of a data file holds pages of some transaction;
after it comes *room*, the beginning of which is allocated, up to the end of the map.

Whether allocation is a guarantee depends on the file system. ext4 and XFS write into allocated extents without needing
more space; tmpfs allocates memory pages; overlayfs passes the call on to the underlying file system. Copy-on-write file
systems (btrfs, ZFS, bcachefs) need new blocks for every page, allocated or not, and network file systems allocate when
they please. There LMDB writes its pages by system calls, which report a full disk
(`forebay.fs.local_words.allocates_in_place`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from forebay.base.errors import ErrorCode
from forebay.base.quantity import format_bytes
from forebay.fs.interface import DiskFull, storage_failure
from forebay.fs.local import local_failure

_STEP_BYTES_MIN = 128 << 10
_STEP_BYTES_MAX = 64 << 20
"""The allocated part grows by an eighth, but by no less and no more than this."""

_ROOM_KEPT_BYTES = 4 << 20
"""Minimum space that stays allocated after the used part when the rest is released."""


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
        target = min(max(end, self._end + step), max(limit, end))
        free = self._free_bytes()
        if free - (end - self._end) < self._reserve_bytes():
            raise self._full(end - self._end, free)
        if free - (target - self._end) < self._reserve_bytes():
            target = end
        allocate_file(self.path, self._end, target - self._end)
        self._end = target

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
            f"the disk of {self.path} has {format_bytes(free)} free, of which "
            f"{format_bytes(self._reserve_bytes())} are reserved ('server.data-disk.reserve'); a write that may need "
            f"{format_bytes(size)} was refused. Free some space on it: "
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
