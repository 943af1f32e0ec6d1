"""Checksums of the files in a folder: whether a key-value engine's files are still the ones that it left behind.

Nouns: a *listing* is one line `<crc32c> <size> <name>` for each file, sorted by name, and a last line
`<crc32c> listing` with the checksum of the lines before. Engines such as LMDB keep no checksums of their own, so a
flipped byte in a file would be served as a row; the log knows better.
"""

from __future__ import annotations

import os
from pathlib import Path

import google_crc32c

from forebay.base.errors import ErrorCode, StorageFailure
from forebay.codec.crc import crc32c

_CHUNK_BYTES = 4 << 20
_LISTING = "listing"
_NO_CONTENT = ("LOCK", "LOG", "lock.mdb", "checksums")
"""Files (and beginnings of their names) that hold nothing of the rows: locks, RocksDB's own diary, the listing."""


def list_files(folder: Path) -> str:
    """The listing of `folder`, whose files are durable when this returns. Raises `StorageFailure`."""
    try:
        lines = "".join(f"{_checksum(path):08x} {path.stat().st_size} {path.name}\n" for path in _files(folder))
    except OSError as e:
        raise StorageFailure(f"cannot read the files in {folder}: {e}", ErrorCode.KV_STORAGE_EXCEPTION) from e
    return lines + _last_line(lines)


def first_difference(folder: Path, listing: str) -> str | None:
    """What is wrong with the first file that is not as listed, or None. Raises `StorageFailure` when reading fails."""
    lines = listing.splitlines(keepends=True)
    if not lines or lines[-1] != _last_line("".join(lines[:-1])):
        return f"the listing of the files in {folder} is damaged"
    found = {line.split(" ", 2)[2]: line for line in list_files(folder).splitlines()[:-1]}
    for line in listing.splitlines()[:-1]:
        checksum, size, name = line.split(" ", 2)
        if name not in found:
            return f"{folder / name} is missing"
        if found[name] != line:
            now = found[name].split(" ")
            return f"{folder / name} has {now[1]} bytes with checksum {now[0]}, and had {size} with {checksum}"
    return None


def _last_line(lines: str) -> str:
    return f"{crc32c(lines.encode()):08x} {_LISTING}\n"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(_NO_CONTENT))


def _checksum(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        checksum = 0
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            checksum = google_crc32c.extend(checksum, chunk)
        return checksum
    finally:
        os.close(descriptor)
