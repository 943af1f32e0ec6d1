"""How much of the data disk stays free, so that what frees space can still be written when it is full.

Clients' writes stop while less than the reserve is free; metadata, checkpoints and retention may use it. Dropping a
table, or removing expired log segments, therefore works on a disk that clients have filled.
"""

from __future__ import annotations

from forebay.base.errors import ErrorCode
from forebay.fs.interface import DiskFull, FileSystem

RESERVE_BYTES = 64 << 20
_RESERVE_SHARE_OF_DISK = 20
"""Small disks keep this part (one twentieth) free instead."""


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

    def kept_free(self) -> int:
        """Bytes that clients' writes leave free."""
        total = self._fs.total_bytes(self._path)
        return max(
            min(self._reserve_bytes, total // _RESERVE_SHARE_OF_DISK), round(total * (1.0 - self._used_share_max))
        )

    def is_free(self) -> bool:
        """Whether at least the reserve is free."""
        return self._fs.free_bytes(self._path) >= self.kept_free()

    def require(self, size: int) -> None:
        """Raise `DiskFull` (DISK_WRITE_LOCKED) unless `size` bytes can be written and the reserve stays free."""
        free = self._fs.free_bytes(self._path)
        if free - size < (kept := self.kept_free()):
            raise DiskFull(
                f"the disk of {self._path} has {free} bytes free, of which {kept} are reserved "
                "('server.data-disk.reserve', 'server.data-disk.write-limit-ratio'); "
                f"{size} bytes were not written. Free some space on it; writes go on then",
                ErrorCode.DISK_WRITE_LOCKED,
            )
