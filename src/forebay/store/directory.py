"""A directory as an object store: for a network file system or a second disk, and for tests.

An object is a file. It is created under a temporary name, synced, and linked to its name, which fails if the name is
taken (`FileSystem.publish_if_absent`). The file system must do that atomically for all machines that share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, TypeVar

from forebay.base.errors import StorageFailure
from forebay.base.locations import below
from forebay.fs.interface import FileMissing, FileSystem
from forebay.fs.names import TEMPORARY_SUFFIX
from forebay.store.objects import ObjectEntry, ObjectMissing

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

_FOLDERS_MAX = 10_000


class DirectoryStore:
    """The objects in the folder `location`, which is created with the first one."""

    def __init__(self, file_system: FileSystem, location: str) -> None:
        self.location = location
        self._files = file_system
        self._durable: set[str] = set()
        """Folders whose names are known to be durable; another process may have made them just now."""
        self._seen = ""
        """The path of an object that was read and is never deleted: one beside the folders."""

    def __repr__(self) -> str:
        return f"DirectoryStore({self.location!r})"

    def create(self, name: str, data: Buffer) -> bool:
        """See `ObjectStore.create`."""
        path = below(self.location, name)
        return self._in_folder(path, lambda: self._files.publish_if_absent(path, data))

    def _in_folder(self, path: str, write: Callable[[], T]) -> T:
        """Write a file whose folder may be missing."""
        self._require_same_directory()
        folder = path.rpartition("/")[0]
        try:
            if folder in self._durable:
                with suppress(FileMissing):  # it was removed as an empty one
                    return write()
            self._files.make_directories(folder)
            if len(self._durable) >= _FOLDERS_MAX:
                self._durable.clear()
            self._durable.add(folder)
            return write()
        finally:
            self._require_same_directory()

    def _require_same_directory(self) -> None:
        """Raise `StorageFailure` if the directory is another one now.

        A file system that is not mounted any more leaves an empty directory. It has no object that a reader asks for,
        and would take some that nobody finds again.
        """
        if self._seen and not self._files.exists(self._seen):
            raise StorageFailure(
                f"{self._seen} was there and is not any more: is the file system of the store {self.location} still "
                "mounted?"
            )

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """See `ObjectStore.read`."""
        try:
            file = self._files.open_reader(below(self.location, name))
        except FileMissing as e:
            self._require_same_directory()
            raise ObjectMissing(f"there is no object {name} in {self.location}") from e
        with closing(file):
            if "/" not in name:
                self._seen = file.path
            size = file.size()
            first = max(size + start, 0) if start < 0 else start
            return file.pread(first, max((size if end is None else min(end, size)) - first, 0))

    def upload(self, name: str, parts: Iterable[Buffer]) -> None:
        """See `ObjectStore.upload`."""
        path = below(self.location, name)
        temporary = path + TEMPORARY_SUFFIX
        with closing(self._in_folder(temporary, lambda: self._files.open_append(temporary))) as file:
            file.truncate(0)  # what an attempt that failed has left
            for part in parts:
                file.append([part])
            file.sync()
        self._files.rename(temporary, path)
        self._files.sync_directory(path.rpartition("/")[0])

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectEntry]:
        """See `ObjectStore.list`."""
        folder = prefix.rpartition("/")[0]
        for entry in sorted(self._below(folder)):
            if entry.name.startswith(prefix) and entry.name > after:
                yield entry

    def _below(self, folder: str) -> Iterator[ObjectEntry]:
        path = below(self.location, folder) if folder else self.location
        with suppress(FileMissing):  # nothing was created in it, or it is being deleted
            for entry in self._files.list_directory(path):
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_directory:
                    yield from self._below(name)
                elif not name.endswith(TEMPORARY_SUFFIX):
                    yield ObjectEntry(name, entry.size_bytes)

    def delete(self, names: Iterable[str]) -> None:
        """See `ObjectStore.delete`."""
        for name in names:
            with suppress(FileMissing):
                self._files.remove(below(self.location, name))
