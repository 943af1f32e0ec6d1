"""Checksums of the files in a folder, to detect whether a key-value engine's files have changed since it closed.

Nouns: a *listing* is one line `<crc32c> <size> <name>` for each file, sorted by name, and a last line
`<crc32c> listing` with the checksum of the lines before. Engines such as LMDB keep no checksums of their own, so a
flipped byte in a file would be served as a row, although the log has the right one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import google_crc32c

from forebay.base.errors import CorruptData
from forebay.codec.crc import crc32c
from forebay.fs import names
from forebay.fs.interface import FileSystem

_CHUNK_BYTES = 4 << 20
_LISTING = "listing"
_NO_CONTENT = ("LOCK", "LOG", "lock.mdb", "checksums")
"""Files (and name prefixes) that hold no rows: locks, the text log of RocksDB (`kv.rocksdb_state`), the listing."""


class ListedFile(NamedTuple):
    """A line of a listing."""

    name: str
    size_bytes: int
    crc: int

    @staticmethod
    def extend(crc: int, chunk: bytes) -> int:
        """The checksum of bytes with this checksum and a `chunk` behind them."""
        extended: int = google_crc32c.extend(crc, chunk)
        return extended

    def check(self, where: str, size_bytes: int, crc: int) -> None:
        """Raise `CorruptData` unless this many bytes with this checksum are those of the file."""
        if (size_bytes, crc) != (self.size_bytes, self.crc):
            raise CorruptData(
                f"{self.name} ({where}) has {size_bytes} bytes with checksum {crc:08x}, and should have "
                f"{self.size_bytes} with {self.crc:08x}"
            )


def listed_files(listing: str) -> list[ListedFile]:
    """The files of a listing. Raises `CorruptData` if it is damaged."""
    lines = listing.splitlines(keepends=True)
    if not lines or lines[-1] != _last_line("".join(lines[:-1])):
        raise CorruptData("the listing of a checkpoint's files is damaged")
    fields = (line.rstrip("\n").split(" ", 2) for line in lines[:-1])
    return [ListedFile(name, int(size), int(checksum, 16)) for checksum, size, name in fields]


def listing_of(files: Iterable[ListedFile]) -> str:
    """The listing that has these files."""
    lines = "".join(f"{each.crc:08x} {each.size_bytes} {each.name}\n" for each in files)
    return lines + _last_line(lines)


def sync_files(fs: FileSystem, folder: str) -> None:
    """Make the files in `folder`, and their names, durable. Raises `StorageFailure`."""
    for name in _files(fs, folder):
        file = fs.open_append(names.join(folder, name))
        try:
            file.sync()
        finally:
            file.close()


def list_files(fs: FileSystem, folder: str) -> str:
    """Return the current listing of `folder`. Raises `StorageFailure`."""
    lines = "".join(_line(fs, folder, name) for name in _files(fs, folder))
    return lines + _last_line(lines)


def first_difference(fs: FileSystem, folder: str, listing: str) -> str | None:
    """Return how the first changed file differs from the listing, or None. Raises `StorageFailure` if reading fails."""
    try:
        listed = listed_files(listing)
    except CorruptData:
        return f"the listing of the files in {folder} is damaged"
    actual = {each.name: each for each in listed_files(list_files(fs, folder))}
    for was in listed:
        path, now = names.join(folder, was.name), actual.get(was.name)
        if now is None:
            return f"{path} is missing"
        if now != was:
            return (
                f"{path} has {now.size_bytes} bytes with checksum {now.crc:08x}, and had {was.size_bytes} with "
                f"{was.crc:08x}"
            )
    return None


def _last_line(lines: str) -> str:
    return f"{crc32c(lines.encode()):08x} {_LISTING}\n"


def _files(fs: FileSystem, folder: str) -> list[str]:
    """Return the names of the files that hold rows, sorted."""
    entries = fs.list_directory(folder)
    return [entry.name for entry in entries if not entry.is_directory and not entry.name.startswith(_NO_CONTENT)]


def _line(fs: FileSystem, folder: str, name: str) -> str:
    reader = fs.open_reader(names.join(folder, name))
    try:
        checksum = size = 0
        while chunk := reader.pread(size, _CHUNK_BYTES):
            checksum = google_crc32c.extend(checksum, chunk)
            size += len(chunk)
    finally:
        reader.close()
    return f"{checksum:08x} {size} {name}\n"
