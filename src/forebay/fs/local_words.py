"""Numbers in a file of the machine's own disk that outlive the process: `forebay.fs.interface.SharedWords`.

The file is mapped, so a store is a store into memory (a tenth of a microsecond) and needs no system call. The kernel
has it from then on, whatever becomes of the process. A store for which the disk has no block would end the process
(SIGBUS); therefore a file is mapped only if all its blocks were written before, on a file system that writes them in
place. On others (btrfs, ZFS, network file systems) each store is a `pwrite`; one that fails is logged.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from pathlib import Path

from forebay.base.host import file_system_type
from forebay.fs.interface import WORD_BYTES, Words, storage_failure

_LOGGER = logging.getLogger(__name__)
_sync_data = getattr(os, "fdatasync", os.fsync)
_ALLOCATING = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs", "overlay"})
_WORD = struct.Struct("=q")


def allocates_in_place(directory: Path) -> bool:
    """Return whether blocks allocated in files of `directory` can be written without further space."""
    return hasattr(os, "posix_fallocate") and file_system_type(directory) in _ALLOCATING


class LocalSharedWords:
    """A `SharedWords` on a file, mapped if the file system allows it. The file closes with its last user."""

    def __init__(self, path: str) -> None:
        """Raises `OSError`."""
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._mapped: Words | None = None
        if allocates_in_place(Path(path).parent):
            # Never closed: a thread may still store. The mapping ends when nothing refers to it any more.
            self._mapped = memoryview(mmap.mmap(self.descriptor, 0)).cast("q")

    @property
    def words(self) -> Words:
        return WrittenWords(self) if self._mapped is None else self._mapped

    def sync(self) -> None:
        try:
            _sync_data(self.descriptor)
        except OSError as error:
            raise storage_failure("sync", self.path, error) from error

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class WrittenWords:
    """The words of an open file, each store a system call."""

    def __init__(self, file: LocalSharedWords) -> None:
        self._file = file

    def __len__(self) -> int:
        return os.fstat(self._file.descriptor).st_size // WORD_BYTES

    def __getitem__(self, index: int) -> int:
        try:
            value: int = _WORD.unpack(os.pread(self._file.descriptor, WORD_BYTES, index * WORD_BYTES))[0]
        except OSError as error:
            raise storage_failure("read", self._file.path, error) from error
        return value

    def __setitem__(self, index: int, value: int) -> None:
        try:
            os.pwrite(self._file.descriptor, _WORD.pack(value), index * WORD_BYTES)
        except OSError as error:
            _LOGGER.warning("%s", storage_failure("write", self._file.path, error).message)
