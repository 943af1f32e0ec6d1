"""Locks for commits on file systems that cannot create a file atomically.

A catalog with a central service (a database, a metastore) provides such a lock. The local disk and object stores with
conditional writes need none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from forebay.base.errors import UnsupportedOperation
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.store.schema_changes import SchemaChange

Check = Callable[[], None]


class CommitLock(Protocol):
    """Excludes all other committers of one table, on all machines, while it is held."""

    def hold(self) -> AbstractContextManager[None]:
        """Wait for the lock, and hold it inside the `with` block. Raises `Unavailable` if waiting takes too long."""
        ...


@runtime_checkable
class CatalogCommits(Protocol):
    """A catalog that takes part in creating the snapshots and schemas of its tables, including any locking."""

    owns_snapshots: bool
    """Whether only the catalog's server creates and deletes snapshots."""

    def create(self, io: FileIO, path: str, data: bytes, check: Check | None = None) -> bool:
        """Create a file through the catalog: see `FileIO.create`. Raises `UnsupportedOperation` for other files.

        `check` is called right before, once nothing is waited for any more.
        """
        ...

    def change_schema(self, changes: Sequence[SchemaChange]) -> bool:
        """Whether the catalog's server has changed the schema of the main branch; False if files must be written."""
        ...


CommitGuard = CommitLock | CatalogCommits
"""Excludes concurrent committers of a table where the file system alone does not."""


def create_exclusively(
    io: FileIO, path: str, data: bytes, lock: CommitGuard | None, check: Check | None = None
) -> bool:
    """`FileIO.create`, under `lock` if there is one, or by the catalog; False if the file exists.

    `check` raises if the file must not be created any more; it is called when the lock is held. Raises
    `UnsupportedOperation` if neither the file system nor a lock makes this safe.
    """
    if lock is None:
        if not io.supports_atomic_create:
            raise UnsupportedOperation(
                f"{path}: this file system cannot create a file atomically, so two commits could overwrite each other; "
                "use a catalog with a lock (metastore 'jdbc' or 'hive'), or a store with conditional writes"
            )
        return _create(io, path, data, check)
    if isinstance(lock, CatalogCommits):
        return lock.create(io, path, data, check)
    with lock.hold():
        return _create(io, path, data, check)


def _create(io: FileIO, path: str, data: bytes, check: Check | None) -> bool:
    if check is not None:
        check()
    return io.create(path, data)
