"""The interface of a file system, and its failures.

Nouns: an `AppendFile` grows at its end and can be cut there; a `PositionalReader` reads any place of a file; a
`FileSystem` makes both and keeps the names. Paths are strings with "/" between their parts.

Rules that every implementation keeps (`tests/fs/file_system_contract.py` checks them):

- **Content is durable after `AppendFile.sync`**, and so is then the file's name in its folder. Nothing else makes
  appended bytes durable: they may be lost, in part and out of order, when the machine loses power.
- **Names are durable after `sync_directory`** of their folder: creations, removals and renames may be lost before.
  `write_atomic`, `publish_if_absent` and `make_directories` do that themselves.
- **After a failed `sync` a file is never trusted again**: its handle refuses all work. The kernel may have thrown the
  unwritten pages away and report success the next time (PostgreSQL's "fsyncgate", 2018).
- **A path with an empty step, `.` or `..` is refused** (`InvalidRequest`): names from data must not leave their folder.
- Failures are `StorageFailure`, with the path and the system's own words; a full disk is `DiskFull`.

The local file system is in `forebay.fs.local`; one that loses power on request in `tests/fs/faulty_fs.py`.
Prior art: LevelDB's `Env` and its fault-injecting test double.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from forebay.base.errors import StorageFailure

if TYPE_CHECKING:
    from typing_extensions import Buffer


RESERVE_BYTES = 64 << 20
"""Default free space of the data disk that clients' writes do not use; metadata, checkpoints and retention may."""


class DiskFull(StorageFailure):
    """No space (or quota) is left. Free some; what was being written is not stored."""


class FileMissing(StorageFailure):
    """The file or folder is not there."""


_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_MISSING = {errno.ENOENT, errno.ENOTDIR}


def storage_failure(operation: str, path: str, error: OSError, disk: str = "this disk") -> StorageFailure:
    """The `StorageFailure` (or `DiskFull`, `FileMissing`) for an `OSError`.

    `operation` completes the sentence "cannot ... <path>", `disk` the one that asks for space on it. Raise it
    `from error`.
    """
    code = error.errno or 0
    words = os.strerror(code) if code else str(error)
    text = f"cannot {operation} {path}: {words} ({errno.errorcode.get(code, code)})"
    if code in _NO_SPACE:
        return DiskFull(f"{text}; free space on {disk}, then try again")
    return FileMissing(text) if code in _MISSING else StorageFailure(text)


class FileEntry(NamedTuple):
    """One name in a folder. `size_bytes` is 0 for folders."""

    name: str
    is_directory: bool
    size_bytes: int


class PositionalReader(Protocol):
    """Reads at any place of one file. Any number of threads may use it at once: it has no cursor."""

    @property
    def path(self) -> str: ...

    def pread(self, offset: int, length: int) -> bytes:
        """The `length` bytes at `offset`; fewer only where the file ends. Raises `StorageFailure`, also when closed."""
        ...

    def size(self) -> int:
        """Bytes in the file now."""
        ...

    def close(self) -> None:
        """Refuse further reads. Reads that have begun in other threads end undisturbed."""
        ...


class AppendFile(Protocol):
    """A file that grows at its end. One thread appends and truncates; `sync` may run in another at the same time."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int:
        """Where the next append begins: all bytes of completed appends, whatever else the file holds beyond."""
        ...

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write `buffers` one after the other at the end; return the position where they begin.

        Atomic with respect to `size`. After a failure the file may hold a part of the bytes beyond `size`:
        `truncate(size)` before the next append. Raises `StorageFailure`.
        """
        ...

    def sync(self) -> None:
        """Make durable the bytes of every append and truncation that completed before this call, and the file's name.

        Raises `StorageFailure`; the handle then refuses all further work.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes. Durable only after `sync`."""
        ...

    def reader(self) -> PositionalReader:
        """A reader of the same open file. It stays valid when this handle is closed."""
        ...

    def close(self) -> None:
        """Release the file. Does not sync. A second call does nothing."""
        ...


WORD_BYTES = 8


class Words(Protocol):
    """A row of signed 64-bit numbers."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


class SharedWords(Protocol):
    """The content of a file as numbers that outlive the process. See `FileSystem.share_words`."""

    @property
    def words(self) -> Words:
        """The numbers. A store raises nothing, and every later process finds it, also after `kill -9`.

        After a power failure each number may be any of those that were stored since the last `sync`. A store that the
        disk refuses is logged, and the number does not change.
        """
        ...

    def sync(self) -> None:
        """Make durable what was stored before this call. May run beside stores. Raises `StorageFailure`."""
        ...


class FileLock(Protocol):
    """A held lock; see `FileSystem.lock`."""

    def release(self) -> None:
        """Give the lock up. A second call does nothing."""
        ...


class FileSystem(Protocol):
    """Files and names. All methods may run in any thread and raise `StorageFailure`."""

    def open_append(self, path: str) -> AppendFile:
        """Open the file `path` for appending at its end; create it when it is missing."""
        ...

    def open_reader(self, path: str) -> PositionalReader:
        """Open the file `path` for reading; `FileMissing` when it is not there."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """The whole content of the file `path`; `FileMissing` when it is not there. For small files."""
        ...

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replace the content of `path` by `data`, all or nothing and durably. A crash may leave a temporary file."""
        ...

    def publish_if_absent(self, path: str, data: Buffer) -> bool:
        """Create `path` with the content `data`, all or nothing and durably, unless the name is taken.

        Returns whether it was created. Of several callers, in several processes, exactly one gets True.
        """
        ...

    def share_words(self, path: str) -> SharedWords:
        """The file `path`, written by `write_atomic` with whole words (in the machine's byte order), as numbers."""
        ...

    def make_directories(self, path: str) -> None:
        """Create the folder `path` and the missing ones above it, durably. An existing folder is fine."""
        ...

    def list_directory(self, path: str) -> list[FileEntry]:
        """The names in the folder `path`, sorted. `FileMissing` when it is not there."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or folder has this name."""
        ...

    def remove(self, path: str) -> None:
        """Remove the file `path`; `FileMissing` when it is not there. Durable after `sync_directory`."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove the folder `path` with all that it holds; nothing when it is not there.

        Durable after `sync_directory` of its parent. A crash in the middle may leave a part.
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Give a file or folder another name, atomically; a file `target` is replaced.

        Durable after `sync_directory` of the parents of both.
        """
        ...

    def sync_directory(self, path: str) -> None:
        """Make durable the names that the folder `path` holds now."""
        ...

    def forget_cached(self, path: str) -> None:
        """Ask the system to drop what it caches of the file `path` and need not write back any more.

        Later reads come from the disk. Recovery calls this: after a failed sync, cached bytes may look
        written and not be. A hint, where the system cannot do it.
        """
        ...

    def free_bytes(self, path: str) -> int:
        """Bytes that may still be written below the folder `path`."""
        ...

    def total_bytes(self, path: str) -> int:
        """Size of the disk that holds the folder `path`."""
        ...

    def lock(self, path: str) -> FileLock | None:
        """Lock the file `path` (created when missing) against all other holders, in this process and others.

        Returns None when another holder has it. The lock ends with the process that holds it.
        """
        ...
