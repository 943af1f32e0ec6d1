"""The interface of an object store, as far as a journal needs it.

Names are relative to the store, with "/" between their steps. An object is created once, and is then there whole or
not at all. Creations are the only arbiter between servers (docs/design/0020-the-store-is-the-home.md), so `create` is
exact; listings are not: they may lack new objects and have deleted ones, and no caller relies on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from forebay.base.errors import StorageFailure

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ObjectMissing(StorageFailure):
    """There is no object of this name."""


class ObjectEntry(NamedTuple):
    """An object in a listing."""

    name: str
    size_bytes: int


class ObjectStore(Protocol):
    """Objects below one location. Any number of threads may use it at once.

    All methods raise `StorageFailure`. A failed `create` or `delete` may have happened, or may happen later.
    """

    @property
    def location(self) -> str:
        """The path or URI of the store."""
        ...

    def create(self, name: str, data: Buffer) -> bool:
        """Create the object, durably, unless the name is taken. Of all callers that ever try, one gets True.

        A caller whose attempt failed gets False from the next one if the failed one has happened: see `create_once`.
        """
        ...

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes from `start` to `end` (None: the object's end), fewer where it ends.

        A negative `start` counts from the end. Raises `ObjectMissing`.
        """
        ...

    def upload(self, name: str, parts: Iterable[Buffer]) -> None:
        """Create a large object from its parts, durably; one with this name is replaced.

        For names that no other caller has. At most some parts are held in memory.
        """
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectEntry]:
        """The objects whose names begin with `prefix` and are greater than `after`, in order of names. A hint."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete the objects; those that are missing are ignored."""
        ...


def create_once(store: ObjectStore, name: str, data: Buffer) -> bool:
    """Create the object, or learn that this very object is there; False if the name has another content.

    For contents that no other caller has. So an attempt whose answer was lost, and that did happen, counts as done.
    """
    return store.create(name, data) or store.read(name) == memoryview(data)
