"""Files as the engine needs them: whole-file reads and writes, listing, and creation that cannot overwrite.

Paths are absolute: a plain path on the local disk, or a URI whose scheme chooses the implementation. All methods are
thread-safe. A `FileIO` pickles, so that workers of a distributed engine can open the same files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol


@dataclass(frozen=True, slots=True)
class FileStatus:
    """A file or directory found by listing. `path` is absolute; `modified_ms` milliseconds since the epoch, or None."""

    path: str
    size: int
    is_directory: bool
    modified_ms: int | None


class FileIO(Protocol):
    """A file system. Errors of the system are raised as `StorageFailure`, missing files as `NotFound`."""

    @property
    def supports_atomic_create(self) -> bool:
        """Whether `create` is atomic between processes and machines. If not, commits need a catalog lock."""
        ...

    def read(self, path: str) -> bytes:
        """The whole file. Raises `NotFound`."""
        ...

    def open_input(self, path: str) -> BinaryIO:
        """The file for random reading (pyarrow accepts it). Raises `NotFound`."""
        ...

    def open_output(self, path: str) -> BinaryIO:
        """A new file for writing; parents are made. Visible, and durable, when closed without an error."""
        ...

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file without concurrent writers, or replace one (hints); parents are created. Atomic and durable.

        Without `durable` a power cut may lose it, or leave it empty: for hints, which are verified before use.
        """
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Create a file with all of `data`, atomically and durably; False if there is one already, untouched.

        This is what commits stand on. It raises if the outcome is unknown.
        """
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[FileStatus]:
        """Files and directories directly in `path`; empty if it does not exist."""
        ...

    def walk(self, path: str) -> Iterator[FileStatus]:
        """All files below `path`, in all directories."""
        ...

    def delete(self, path: str) -> bool:
        """Delete a file; False if there was none."""
        ...

    def delete_directory(self, path: str) -> None:
        """Delete a directory and all in it; nothing happens if there is none."""
        ...

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents (object stores have none: then nothing happens)."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory. Raises `Conflict` if there is a target. Not atomic on object stores."""
        ...
