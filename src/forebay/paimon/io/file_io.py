"""The file operations of the engine: whole-file reads and writes, listing, and creation that cannot overwrite.

Paths are absolute: a plain path on the local disk, or a URI whose scheme selects the implementation. Nothing in them is
decoded. One with an empty step, `.` or `..` raises `InvalidRequest`: a name from data must not leave its folder.

All methods are thread-safe. A `FileIO` can be pickled, so that workers of a distributed engine can open the same files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol


@dataclass(frozen=True, slots=True)
class FileStatus:
    """A file or directory in a listing. `path` is absolute; `modified_ms` is since the epoch, or None."""

    path: str
    size: int
    is_directory: bool
    modified_ms: int | None


class FileIO(Protocol):
    """A file system. Its errors are raised as `StorageFailure`, missing files as `NotFound`."""

    @property
    def supports_atomic_create(self) -> bool:
        """Whether `create` is atomic across processes and machines. If not, commits need a catalog lock."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether reads wait for a network, so that files are read ahead."""
        ...

    def read(self, path: str) -> bytes:
        """The contents of a file. Raises `NotFound`."""
        ...

    def open_input(self, path: str) -> BinaryIO:
        """The file, opened for random access (pyarrow accepts it). Raises `NotFound`."""
        ...

    def open_output(self, path: str) -> BinaryIO:
        """A new file, opened for writing; parents are created. Visible and durable once closed without an error."""
        ...

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file without concurrent writers, or replace one (hints); parents are created. Atomic and durable.

        Without `durable`, a power failure may lose it or leave it empty: for hints, which are verified before use.
        """
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Create a file with `data`, atomically and durably; return False if it already exists, leaving it unchanged.

        Commits depend on this. It raises if the outcome is unknown.
        """
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[FileStatus]:
        """Files and directories directly in `path`; empty if it does not exist."""
        ...

    def walk(self, path: str) -> Iterator[FileStatus]:
        """All files below `path`, recursively."""
        ...

    def delete(self, path: str) -> bool:
        """Delete a file; return False if there was none."""
        ...

    def delete_directory(self, path: str) -> None:
        """Delete a directory recursively; does nothing if there is none."""
        ...

    def delete_empty_directory(self, path: str) -> bool:
        """Delete a directory unless something is in it, then return False. Not atomic on object stores.

        A file that another process writes there at the same moment is never lost with it on the local disk.
        """
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents (does nothing on object stores, which have none)."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory. Raises `Conflict` if the target exists. Not atomic on object stores."""
        ...
