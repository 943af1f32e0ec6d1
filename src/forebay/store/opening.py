"""Stores by their location: a directory of this machine, or a URI."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.base.locations import is_local, local_path, location
from forebay.fs.local import LocalFileSystem
from forebay.store.cloud import SCHEMES, CloudStore
from forebay.store.directory import DirectoryStore
from forebay.store.objects import ObjectStore


def open_store(where: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """The store at a path or URI; nothing is created yet. `options` are those of `CloudStore`.

    Raises `InvalidRequest` for what is no location, `UnsupportedOperation` for stores that cannot create an object only
    if its name is free, by name.
    """
    place = location(where, "the store")
    if is_local(place):
        if options:
            raise InvalidRequest(f"the store {place} is a directory, and has no options: {', '.join(options)}")
        return DirectoryStore(LocalFileSystem(), local_path(place))
    scheme = place.partition("://")[0]
    if scheme not in SCHEMES:
        raise UnsupportedOperation(
            f"the store {place} is in {scheme}://, of which no conditional creation is known; a store is a "
            f"directory, or in {', '.join(f'{each}://' for each in SCHEMES)}"
        )
    return CloudStore(place, options or {})
