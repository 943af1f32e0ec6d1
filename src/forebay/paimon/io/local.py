"""The local disk: every file appears complete and synced, or not at all.

A file is written beside its target under a hidden name, synced, and then linked (`create`, which fails if the target
exists: link(2) is atomic across processes) or renamed over the target (`write`, `open_output`). The directory is synced
after that, so that the name survives a power failure.

Paths are absolute; `forebay.base.locations` refuses those with `..` and the like, by which a name from data would leave
its folder.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import BinaryIO, TypeVar, cast

from forebay.base.ambient import SYSTEM_IDS, IdSource
from forebay.base.errors import Conflict, NotFound, StorageFailure
from forebay.base.locations import local_path
from forebay.paimon.io.file_io import FileStatus

_T = TypeVar("_T")

TEMPORARY_SUFFIX = ".tmp"
"""The suffix of hidden files (with a leading dot) that are being written, or were when their writer crashed."""

_PARENT_ATTEMPTS_MAX = 3

_BUFFER_BYTES = 1 << 16
"""What an open file collects before it is written; a larger buffer would be mapped and unmapped for each file."""


class _Output(io.BufferedWriter):
    """A hidden file that is renamed to its target when closed, and deleted if the `with` block fails."""

    def __init__(self, owner: LocalFileIO, temporary: str, target: str) -> None:
        super().__init__(io.FileIO(temporary, "xb"), _BUFFER_BYTES)
        self._owner, self._temporary, self._target = owner, temporary, target
        self._state = "open"

    def close(self) -> None:
        if self._state != "open":
            return
        try:
            self.flush()
            self._owner._sync(self.fileno())
            self._state = "closed"
            super().close()
            os.replace(self._temporary, self._target)
            self._owner._sync_directory(os.path.dirname(self._target))
        except OSError as e:
            self.abort()
            raise _failure("write", self._target, e) from e

    def abort(self) -> None:
        """Abandon and delete the file."""
        self._state = "aborted"
        with contextlib.suppress(OSError):
            super().close()
        with contextlib.suppress(OSError):
            os.unlink(self._temporary)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        if getattr(self, "_state", None) == "open":
            self.abort()


class LocalFileIO:
    """The local file system. Stateless; `sync=False` disables durability (for benchmarks of everything else)."""

    supports_atomic_create = True
    is_remote = False

    def __init__(self, ids: IdSource = SYSTEM_IDS, sync: bool = True) -> None:
        self._ids = ids
        self._syncs = sync

    def read(self, path: str) -> bytes:
        """The contents of a file. Raises `NotFound`, `StorageFailure`."""
        path = local_path(path)
        try:
            with open(path, "rb") as f:
                return f.read()
        except OSError as e:
            raise _failure("read", path, e) from e

    def open_input(self, path: str) -> BinaryIO:
        path = local_path(path)
        try:
            return open(path, "rb")
        except OSError as e:
            raise _failure("open", path, e) from e

    def open_output(self, path: str) -> BinaryIO:
        path = local_path(path)
        try:
            return cast(BinaryIO, self._retry_without_parent(path, lambda t: _Output(self, t, path)))
        except OSError as e:
            raise _failure("write", path, e) from e

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """See `FileIO.write`: a synced temporary file replaces the target. Raises `StorageFailure`."""
        path = local_path(path)
        try:
            temporary = self._write_temporary(path, data, durable=durable)
            try:
                os.replace(temporary, path)
            except OSError:
                _unlink_quietly(temporary)
                raise
            if durable:
                self._sync_directory(os.path.dirname(path))
        except OSError as e:
            raise _failure("write", path, e) from e

    def create(self, path: str, data: bytes) -> bool:
        """See `FileIO.create`: a synced temporary file is linked under the name, which fails if the name exists."""
        path = local_path(path)
        try:
            if os.path.lexists(path):
                return False
            temporary = self._write_temporary(path, data)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            finally:
                _unlink_quietly(temporary)
            self._sync_directory(os.path.dirname(path))
            return True
        except OSError as e:
            raise _failure("create", path, e) from e

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory. Raises `StorageFailure` if it cannot be examined."""
        path = local_path(path)
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as e:
            raise _failure("look for", path, e) from e
        return True

    def list(self, path: str) -> list[FileStatus]:
        """The entries of a directory, unsorted; empty if there is none. Entries deleted meanwhile are left out."""
        path = local_path(path)
        try:
            with os.scandir(path) as entries:
                return [status for entry in entries if (status := _status(entry)) is not None]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as e:
            raise _failure("list", path, e) from e

    def walk(self, path: str) -> Iterator[FileStatus]:
        for status in self.list(path):
            if status.is_directory:
                yield from self.walk(status.path)
            else:
                yield status

    def delete(self, path: str) -> bool:
        """Delete a file; return False if there was none. The directory is not synced."""
        path = local_path(path)
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as e:
            raise _failure("delete", path, e) from e
        return True

    def delete_directory(self, path: str) -> None:
        """Delete a directory recursively; does nothing if there is none. Starts over if entries disappear."""
        path = local_path(path)
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            if os.path.isdir(path):  # an entry disappeared during the deletion: start over
                self.delete_directory(path)
        except OSError as e:
            raise _failure("delete", path, e) from e

    def delete_empty_directory(self, path: str) -> bool:
        """Delete a directory unless something is in it; return whether it is gone. Atomic."""
        path = local_path(path)
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return True
        except OSError as e:
            if e.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise _failure("delete", path, e) from e
        return True

    def make_directory(self, path: str) -> None:
        path = local_path(path)
        try:
            self._make_directories(path)
        except OSError as e:
            raise _failure("make the directory", path, e) from e

    def rename(self, source: str, target: str) -> None:
        """See `FileIO.rename`. A file has both names for a moment: linking, unlike renaming, cannot overwrite the
        target."""
        source, target = local_path(source), local_path(target)
        try:
            self._make_directories(os.path.dirname(target))
            if os.path.isdir(source):
                if os.path.lexists(target):
                    raise Conflict(f"cannot rename {source} to {target}: the target exists")
                os.rename(source, target)
            else:
                os.link(source, target)
                os.unlink(source)
            self._sync_directory(os.path.dirname(target))
        except (FileExistsError, IsADirectoryError) as e:
            raise Conflict(f"cannot rename {source} to {target}: the target exists") from e
        except OSError as e:
            raise _failure("rename", source, e) from e

    def _write_temporary(self, path: str, data: bytes, *, durable: bool = True) -> str:
        """Write a hidden file beside `path` with all of `data`, synced if `durable`, and return its path."""

        def write(temporary: str) -> str:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                if durable:
                    self._sync(descriptor)
            except BaseException:
                _unlink_quietly(temporary)
                raise
            finally:
                os.close(descriptor)
            return temporary

        return self._retry_without_parent(path, write)

    def _retry_without_parent(self, path: str, make: Callable[[str], _T]) -> _T:
        """`make(hidden name beside path)`; if the directory does not exist, it is created first.

        Again if another process has deleted it meanwhile, because it was empty.
        """
        directory, name = os.path.split(path)
        temporary = os.path.join(directory, f".{name}.{self._ids.token_hex()}{TEMPORARY_SUFFIX}")
        for _ in range(_PARENT_ATTEMPTS_MAX):
            try:
                return make(temporary)
            except FileNotFoundError:
                self._make_directories(directory)
        return make(temporary)

    def _make_directories(self, path: str) -> None:
        missing = []
        while path and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory)
            self._sync_directory(os.path.dirname(directory))

    def _sync(self, descriptor: int) -> None:
        if self._syncs:
            os.fsync(descriptor)

    def _sync_directory(self, path: str) -> None:
        if not self._syncs:
            return
        descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _status(entry: os.DirEntry[str]) -> FileStatus | None:
    """The status of `entry`; None if it has disappeared since the directory was read."""
    try:
        details = entry.stat()
    except FileNotFoundError:
        return None
    is_directory = stat.S_ISDIR(details.st_mode)
    return FileStatus(
        entry.path, 0 if is_directory else details.st_size, is_directory, details.st_mtime_ns // 1_000_000
    )


def _unlink_quietly(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _failure(action: str, path: str, e: OSError) -> Exception:
    if isinstance(e, FileNotFoundError | NotADirectoryError):
        return NotFound(f"cannot {action} {path}: there is no such file")
    if e.errno in (errno.EPERM, errno.EOPNOTSUPP) and action == "create":
        return StorageFailure(f"cannot create {path}: {e}; the file system must support hard links")
    return StorageFailure(f"cannot {action} {path}: {e}")
