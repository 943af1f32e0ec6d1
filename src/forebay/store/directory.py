"""A directory as an object store: for a network file system or a second disk, and for tests.

An object is a file. It is created under a temporary name, synced, and linked to its name, which fails if the name is
taken (`FileSystem.publish_if_absent`). The file system must do that atomically for all machines that share it. What
attempts of killed processes have left is deleted with the objects that they were to become.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, TypeVar

from forebay.base.ambient import SYSTEM_IDS, IdSource
from forebay.base.errors import StorageFailure
from forebay.base.locations import below
from forebay.fs.interface import FileMissing, FileSystem
from forebay.fs.names import is_temporary, temporary_name
from forebay.store.objects import ObjectEntry, ObjectMissing

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

_FOLDERS_MAX = 10_000


class DirectoryStore:
    """The objects in the folder `location`, which is created with the first one."""

    def __init__(self, file_system: FileSystem, location: str, ids: IdSource = SYSTEM_IDS) -> None:
        self.location = location
        self._files, self._ids = file_system, ids
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
        and would take some that no reader finds again.
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
        folder, _, base = path.rpartition("/")
        temporary = f"{folder}/{temporary_name(base, self._ids.token_hex())}"  # two copies may bring the same object
        try:
            with closing(self._in_folder(temporary, lambda: self._files.open_append(temporary))) as file:
                for part in parts:
                    file.append([part])
                file.sync()
            self._files.rename(temporary, path)
        except BaseException:
            with suppress(StorageFailure):
                self._files.remove(temporary)
            raise
        self._files.sync_directory(folder)

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
                elif not is_temporary(entry.name):
                    yield ObjectEntry(name, entry.size_bytes)

    def delete(self, names: Iterable[str]) -> None:
        """See `ObjectStore.delete`."""
        self._require_same_directory()
        deleted: dict[str, set[str]] = {}
        for name in names:
            path = below(self.location, name)
            with suppress(FileMissing):
                self._files.remove(path)
            folder, _, base = path.rpartition("/")
            deleted.setdefault(folder, set()).add(base)
        for folder, bases in deleted.items():
            self._delete_attempts(folder, bases)
        self._require_same_directory()

    def _delete_attempts(self, folder: str, bases: set[str]) -> None:
        """Delete what attempts to create objects with these last steps of their names have left."""
        with suppress(FileMissing):
            for entry in list(self._files.list_directory(folder)):
                if is_temporary(entry.name) and entry.name[1:].rsplit(".", 2)[0] in bases:
                    self._files.remove(f"{folder}/{entry.name}")
