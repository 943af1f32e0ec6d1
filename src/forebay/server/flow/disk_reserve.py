"""The part of the data disk that stays free for the writes by which a full disk is freed.

Clients' writes stop while less than the reserve is free; metadata, checkpoints and retention may use it. Dropping a
table, or removing expired log segments, therefore works on a disk that clients have filled.
"""

from __future__ import annotations

from forebay.base.errors import ErrorCode
from forebay.base.quantity import format_bytes
from forebay.base.thread_rules import any_thread
from forebay.fs.interface import RESERVE_BYTES, DiskFull, FileSystem

_UNMEASURED_SHARE = 1024
_UNMEASURED_CALLS = 64
"""Free space is measured again after this many writes, or when they have used this part of what was free to them,
because other programs write to the disk, too."""

_RESERVE_SHARE_OF_DISK = 20
"""The reserve is at most this part (one twentieth) of the disk."""


@any_thread
class DiskReserve:
    """The reserve of the disk that holds the folder `path`."""

    def __init__(
        self, fs: FileSystem, path: str, reserve_bytes: int = RESERVE_BYTES, used_share_max: float = 1.0
    ) -> None:
        """`used_share_max`: the share of the disk that may be in use before writes stop."""
        self._fs = fs
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._used_share_max = used_share_max

        self._unmeasured_bytes = self._unmeasured_calls = 0
        """How much may be written before the disk is measured again."""

    def kept_free(self) -> int:
        """Bytes that clients' writes leave free."""
        total = self._fs.total_bytes(self._path)
        return max(
            min(self._reserve_bytes, total // _RESERVE_SHARE_OF_DISK), round(total * (1.0 - self._used_share_max))
        )

    def size_and_free(self) -> tuple[int, int]:
        """Bytes of the disk, and how many of them are free."""
        return self._fs.total_bytes(self._path), self._fs.free_bytes(self._path)

    def is_free(self) -> bool:
        """Whether at least the reserve is free."""
        return self._fs.free_bytes(self._path) >= self.kept_free()

    def require(self, size: int) -> None:
        """Raise `DiskFull` (DISK_WRITE_LOCKED) unless `size` bytes can be written and the reserve stays free."""
        if size < self._unmeasured_bytes and self._unmeasured_calls:
            self._unmeasured_bytes -= size
            self._unmeasured_calls -= 1
            return
        free = self._fs.free_bytes(self._path)
        reserve = self.kept_free()
        self._unmeasured_bytes = (free - size - reserve) // _UNMEASURED_SHARE
        self._unmeasured_calls = _UNMEASURED_CALLS
        if free - size < reserve:
            raise DiskFull(
                f"the disk of {self._path} has {format_bytes(free)} free, of which "
                f"{format_bytes(reserve)} are reserved ('server.data-disk.reserve', "
                f"'server.data-disk.write-limit-ratio'); {format_bytes(size)} were not written. "
                "Free some space on it; writes go on then",
                ErrorCode.DISK_WRITE_LOCKED,
            )
