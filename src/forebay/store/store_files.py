"""Objects of a store, read as files: for code that reads files at any place, such as log segments."""

from __future__ import annotations

from collections.abc import Callable

from forebay.base.errors import StorageFailure
from forebay.fs.interface import FileMissing, PositionalReader
from forebay.store.objects import ObjectMissing, ObjectStore


class StoreFiles:
    """The reading half of a file system; paths are the store's location and an object's name.

    Objects are never replaced, so what was read once may be cached.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def path(self, name: str) -> str:
        """The path of an object."""
        return f"{self._store.location}/{name}"

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self._store.location}/")

    def read_bytes(self, path: str) -> bytes:
        """The whole object; raises `FileMissing` and `StorageFailure`."""
        return _as_file(path, lambda: self._store.read(self._name(path)))

    def open_reader(self, path: str) -> PositionalReader:
        """A reader of the object. Nothing is read yet: whether it is there shows in the first read."""
        return _ObjectReader(self._store, self._name(path), path)


class _ObjectReader:
    def __init__(self, store: ObjectStore, name: str, path: str) -> None:
        self.path = path
        self._store, self._name = store, name
        self._closed = False

    def pread(self, offset: int, length: int) -> bytes:
        if self._closed:
            raise StorageFailure(f"{self.path} is closed")
        if length == 0:
            return b""
        return _as_file(self.path, lambda: self._store.read(self._name, offset, offset + length))

    def size(self) -> int:
        raise NotImplementedError("an object's size is asked of who has named it")

    def close(self) -> None:
        self._closed = True


def _as_file(path: str, read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except ObjectMissing as e:
        raise FileMissing(f"there is no object {path}") from e
