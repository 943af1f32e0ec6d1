"""Commit messages at a level of choice, and deletion vectors as bytes."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import pyarrow as pa

from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.table import Table


def prepared(table: Table, data: pa.Table) -> CommitMessage:
    """The message of rows that are written but not committed yet: one bucket."""
    with table.with_options({"write-only": "true"}).new_write() as writer:
        writer.write(data)
        (message,) = writer.prepare_commit()
    return message


def at_level(message: CommitMessage, level: int) -> CommitMessage:
    """The same files, as if a compaction had written them."""
    files = tuple(f.upgrade(level) for f in message.data.new_files)
    return replace(message, data=replace(message.data, new_files=files))


def deletion_vector(positions: list[int]) -> bytes:
    """Paimon's first kind of deletion vector with a 32-bit roaring bitmap of one array container."""
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(positions) - 1, 16)
    bitmap += b"".join(struct.pack("<H", p) for p in sorted(positions))
    body = struct.pack(">i", 1581511376) + bitmap
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))
