"""The machine's own file system, with the fsync discipline of `forebay.fs.interface`.

Flow of an append: `pwritev` at the tracked end, repeated while the kernel writes less than asked; `fdatasync` at
`sync`, with the folder the first time. Flow of an atomic replacement: temporary name in the same folder, write, fsync,
rename, fsync of the folder.

File descriptors are shared between a file's append handle and its readers and close themselves when the last user
lets go. So a reader in another thread never reads from a number that meanwhile belongs to another file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from forebay.base.ambient import SYSTEM_IDS, IdSource
from forebay.base.errors import StorageFailure
from forebay.base.locations import check_steps
from forebay.base.quantity import format_bytes
from forebay.fs import names
from forebay.fs.interface import FileEntry, FileLock, SharedWords, storage_failure
from forebay.fs.local_words import LocalSharedWords

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BUFFERS_PER_CALL_MAX = 512
"""Below Linux's IOV_MAX of 1024, the most that one `pwritev` takes."""

_sync_data = getattr(os, "fdatasync", os.fsync)


class _Translating:
    """Turns an `OSError` of the block into a `StorageFailure`; refuses a path that names could lead astray.

    A class, because contextlib's frames kept such an error, and with it what its callers were at work on, until the
    next full garbage collection (Python 3.13.0).
    """

    __slots__ = ("_operation", "_path")

    def __init__(self, operation: str, path: str) -> None:
        self._operation = operation
        self._path = path

    def __enter__(self) -> None:
        check_steps(self._path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise local_failure(self._operation, self._path, error) from error


def local_failure(operation: str, path: str, error: OSError) -> StorageFailure:
    """The error of `storage_failure`, extended for a full disk with the folder and the free space."""
    return storage_failure(operation, path, error, disk_of(path))


def disk_of(path: str) -> str:
    """Words for the disk that holds, or would hold, `path`: its folder, and how much of it is free."""
    folder = os.path.dirname(path) or "."
    try:
        figures = os.statvfs(folder)
    except OSError:
        return "this disk"
    return f"the disk of {folder}, which has {format_bytes(figures.f_bavail * figures.f_frsize)} free"


class _Descriptor:
    """An open file descriptor that closes when nothing refers to it any more."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        with contextlib.suppress(
            OSError
        ):  # No caller is left to get the error; what matters was synced through this descriptor.
            os.close(self.number)


def _open(path: str, flags: int) -> _Descriptor:
    return _Descriptor(os.open(path, flags | os.O_CLOEXEC, names.FILE_MODE))


class LocalReader:
    """A `PositionalReader` on a file descriptor."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: str, descriptor: _Descriptor) -> None:
        self._path = path
        self._descriptor: _Descriptor | None = descriptor

    @property
    def path(self) -> str:
        return self._path

    def _open_descriptor(self) -> _Descriptor:
        descriptor = self._descriptor
        if descriptor is None:
            raise StorageFailure(f"cannot read {self._path}: this reader is closed")
        return descriptor

    def pread(self, offset: int, length: int) -> bytes:
        """Read until `length` bytes or the end of the file: one system call may return fewer."""
        descriptor = self._open_descriptor()
        try:
            parts = []
            while length:
                data = os.pread(descriptor.number, length, offset)
                if not data:
                    break
                parts.append(data)
                offset += len(data)
                length -= len(data)
            return b"".join(parts)
        except OSError as error:
            raise storage_failure(f"read {length} bytes at {offset} of", self._path, error) from error

    def size(self) -> int:
        descriptor = self._open_descriptor()
        with _Translating("look up the size of", self._path):
            return os.fstat(descriptor.number).st_size

    def close(self) -> None:
        self._descriptor = None


class LocalAppendFile:
    """An `AppendFile` on a file descriptor."""

    def __init__(self, path: str) -> None:
        self._path = path
        with _Translating("open", path):
            self._descriptor: _Descriptor | None = _open(path, os.O_RDWR | os.O_CREAT)
            self._size = os.fstat(self._descriptor.number).st_size
        self._name_is_durable = False
        self._distrusted: str | None = None

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    def _usable(self) -> _Descriptor:
        descriptor = self._descriptor
        if self._distrusted is not None:
            raise StorageFailure(f"{self._path} is not used any more: {self._distrusted}")
        if descriptor is None:
            raise StorageFailure(f"cannot use {self._path}: this file is closed")
        return descriptor

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write the buffers with as few system calls as the system allows."""
        number = self._usable().number
        start = self._size
        total = 0
        try:
            for first in range(0, len(buffers), _BUFFERS_PER_CALL_MAX):
                group = [memoryview(buffer).cast("B") for buffer in buffers[first : first + _BUFFERS_PER_CALL_MAX]]
                total += _write_fully(number, group, start + total)
        except OSError as error:
            raise local_failure("append to", self._path, error) from error
        self._size = start + total
        return start

    def sync(self) -> None:
        """Sync the data, and before the first success also the file's folder. A failure makes the handle unusable."""
        number = self._usable().number
        try:
            _sync_data(number)
            if not self._name_is_durable:
                _sync_folder(os.path.dirname(self._path))
                self._name_is_durable = True
        except OSError as error:
            failure = local_failure("sync", self._path, error)
            self._distrusted = failure.message
            raise failure from error

    def truncate(self, size: int) -> None:
        number = self._usable().number
        with _Translating(f"truncate to {size} bytes", self._path):
            os.ftruncate(number, size)
        self._size = size

    def reader(self) -> LocalReader:
        return LocalReader(self._path, self._usable())

    def close(self) -> None:
        self._descriptor = None


def _write_fully(number: int, buffers: list[memoryview], position: int) -> int:
    """Write `buffers` at `position`, going on where the kernel stopped short; return the bytes written."""
    total = sum(buffer.nbytes for buffer in buffers)
    written = os.pwritev(number, buffers, position)
    done = written
    while done < total:
        if written == 0:
            raise OSError(0, "the system accepts no more bytes")
        rest = []
        skip = done
        for buffer in buffers:
            if skip < buffer.nbytes:
                rest.append(buffer[skip:])
            skip = max(skip - buffer.nbytes, 0)
        written = os.pwritev(number, rest, position + done)
        done += written
    return total


def _sync_folder(path: str) -> None:
    descriptor = _open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor.number)


class LocalFileLock:
    """A lock by `flock`: it belongs to the open file, so two holders inside one process exclude each other too."""

    def __init__(self, descriptor: _Descriptor) -> None:
        self._descriptor: _Descriptor | None = descriptor

    def release(self) -> None:
        self._descriptor = None


class LocalFileSystem:
    """`FileSystem` on the machine's own disks. `ids` makes the names of temporary files."""

    def __init__(self, ids: IdSource = SYSTEM_IDS) -> None:
        self._ids = ids

    def open_append(self, path: str) -> LocalAppendFile:
        return LocalAppendFile(path)

    def open_reader(self, path: str) -> LocalReader:
        with _Translating("open", path):
            return LocalReader(path, _open(path, os.O_RDONLY))

    def read_bytes(self, path: str) -> bytes:
        with _Translating("read", path), open(path, "rb") as file:
            return file.read()

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Write and sync a temporary file, rename it to `path`, and sync the folder."""
        temporary = self._write_temporary(check_steps(path), data)
        with _Translating("replace", path):
            try:
                os.rename(temporary, path)
            except OSError:
                _remove_quietly(temporary)
                raise
            _sync_folder(os.path.dirname(path))

    def publish_if_absent(self, path: str, data: Buffer) -> bool:
        """Write and sync a temporary file, and link it to `path`, which fails if the name exists."""
        temporary = self._write_temporary(check_steps(path), data)
        with _Translating("create", path):
            try:
                os.link(temporary, path)
                created = True
            except FileExistsError:
                created = False
            finally:
                _remove_quietly(temporary)
            # Also if another process was first: the caller will build on that file, so its name must be durable.
            _sync_folder(os.path.dirname(path))
        return created

    def _write_temporary(self, path: str, data: Buffer) -> str:
        """Write `data` durably under a temporary name beside `path`; return that name."""
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, names.temporary_name(name, self._ids.token_hex()))
        with _Translating("write", temporary):
            try:
                descriptor = _open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                _write_fully(descriptor.number, [memoryview(data).cast("B")], 0)
                os.fsync(descriptor.number)
            except OSError:
                _remove_quietly(temporary)
                raise
        return temporary

    def share_words(self, path: str) -> SharedWords:
        with _Translating("open", path):
            return LocalSharedWords(path)

    def make_directories(self, path: str) -> None:
        """Create the missing folders from the top down, and sync each one's parent."""
        with _Translating("create the folder", path):
            missing = []
            while path and not os.path.isdir(path):
                missing.append(path)
                path = os.path.dirname(path)
            # A process killed right after its mkdir leaves a folder whose own name is not durable yet.
            _sync_folder(os.path.dirname(path))
            for folder in reversed(missing):
                try:
                    os.mkdir(folder, names.FOLDER_MODE)
                except FileExistsError:
                    if not os.path.isdir(folder):  # Where it is a folder, another thread was faster.
                        raise
                _sync_folder(os.path.dirname(folder))

    def list_directory(self, path: str) -> list[FileEntry]:
        """Return the entries by name. Files that are removed during the listing are left out; links are followed."""
        listing = []
        with _Translating("list", path), os.scandir(path) as entries:
            for entry in entries:
                try:
                    details = entry.stat(follow_symlinks=True)
                except FileNotFoundError:
                    continue
                is_directory = stat.S_ISDIR(details.st_mode)
                listing.append(FileEntry(entry.name, is_directory, 0 if is_directory else details.st_size))
        return sorted(listing)

    def exists(self, path: str) -> bool:
        return os.path.exists(check_steps(path))

    def remove(self, path: str) -> None:
        with _Translating("remove", path):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        """Remove files and folders from the bottom up. Links are removed, not followed."""
        with _Translating("remove the folder", path):
            if not os.path.isdir(path):
                return
            for folder, folders, files in os.walk(path, topdown=False, onerror=_raise):
                for name in files:
                    os.unlink(os.path.join(folder, name))
                for name in folders:
                    below = os.path.join(folder, name)
                    if os.path.islink(below):
                        os.unlink(below)
                    else:
                        os.rmdir(below)
            os.rmdir(path)

    def rename(self, source: str, target: str) -> None:
        with _Translating(f"rename to {target} the file", source):
            os.rename(source, check_steps(target))

    def sync_directory(self, path: str) -> None:
        with _Translating("sync the folder", path):
            _sync_folder(path)

    def forget_cached(self, path: str) -> None:
        if not hasattr(os, "posix_fadvise"):
            return
        with _Translating("drop the cache of", path):
            descriptor = _open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor.number, 0, 0, os.POSIX_FADV_DONTNEED)

    def free_bytes(self, path: str) -> int:
        with _Translating("look up the free space of", path):
            figures = os.statvfs(path)
            return figures.f_bavail * figures.f_frsize

    def total_bytes(self, path: str) -> int:
        with _Translating("look up the size of the disk of", path):
            figures = os.statvfs(path)
            return figures.f_blocks * figures.f_frsize

    def lock(self, path: str) -> FileLock | None:
        """Lock `path` by `flock`, which the system releases when the process ends."""
        with _Translating("lock", path):
            descriptor = _open(path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(descriptor.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            return LocalFileLock(descriptor)


def _raise(error: OSError) -> None:
    raise error


def _remove_quietly(path: str) -> None:
    """Remove a temporary file; one that stays is found by its name and removed at the next start."""
    with contextlib.suppress(OSError):
        os.unlink(path)
