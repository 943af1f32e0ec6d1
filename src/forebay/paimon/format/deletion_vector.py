"""Deletion vectors: the deleted rows of a data file, as roaring bitmaps in an index file.

    version 1:  length:i32 magic:i32 (big-endian) bitmap crc:i32     rows below 2^32
    version 2:  length:i32 (big-endian) magic:i32 (little-endian) count:i64 (key:i32 bitmap)* crc:i32

`length` covers magic and bitmap; the checksum is their CRC-32. Bitmaps have the portable roaring format.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

from forebay.base.errors import CorruptData

Positions = npt.NDArray[np.int64]

OVERHEAD_BYTES = 8
"""The size of length and checksum.

The `length` of a version-1 range in an index manifest excludes it, so read this many more bytes.
"""

_MAGIC_32 = 1581511376
_MAGIC_64 = 1681511377
"""The magic numbers of vectors with 32-bit and 64-bit positions."""

_NO_RUNS, _WITH_RUNS = 12346, 12347
"""The cookies of roaring bitmaps without and with run containers (RoaringFormatSpec)."""

_OFFSETS_FROM = 4
"""The number of containers from which a bitmap with runs has an offset header."""

_ARRAY_MAX = 4096
"""Maximum number of values in an array container; larger containers are bit sets."""

_BITSET_BYTES = 8192


def read_deletion_vector(data: bytes) -> Positions:
    """The deleted row positions, ascending, of the deletion vector at the start of `data`. Raises `CorruptData`."""
    try:
        length, magic = struct.unpack_from(">ii", data)
        if length < 4 or 8 + length > len(data):
            raise CorruptData(f"a deletion vector of {length} bytes in {len(data)} bytes")
        body = data[4 : 4 + length]
        (checksum,) = struct.unpack_from(">I", data, 4 + length)
        if zlib.crc32(body) != checksum:
            raise CorruptData("a deletion vector's checksum does not agree with its content")
        if magic == _MAGIC_32:
            return _read_bitmap(body, 4)[0]
        if struct.unpack_from("<i", data, 4)[0] == _MAGIC_64:
            return _read_bitmap_64(body)
    except (struct.error, ValueError, IndexError) as e:
        raise CorruptData(f"a deletion vector is malformed: {e}") from e
    raise CorruptData(f"a deletion vector begins with an unknown number {magic}")


def _read_bitmap_64(body: bytes) -> Positions:
    (count,) = struct.unpack_from("<q", body, 4)
    at = 12
    parts = []
    for _ in range(count):
        (key,) = struct.unpack_from("<i", body, at)
        values, at = _read_bitmap(body, at + 4)
        parts.append(values + (key << 32))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _read_bitmap(body: bytes, at: int) -> tuple[Positions, int]:
    """The values of the 32-bit roaring bitmap at `at`, and its end position."""
    (cookie,) = struct.unpack_from("<I", body, at)
    at += 4
    runs = b""
    if cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        runs = body[at : at + (count + 7) // 8]
        at += len(runs)
    elif cookie == _NO_RUNS:
        (count,) = struct.unpack_from("<I", body, at)
        at += 4
    else:
        raise CorruptData(f"a roaring bitmap begins with an unknown number {cookie}")
    header = np.frombuffer(body, "<u2", 2 * count, at).astype(np.int64)
    at += 4 * count
    if not runs or count >= _OFFSETS_FROM:
        at += 4 * count
    parts = []
    for i in range(count):
        key, cardinality = int(header[2 * i]), int(header[2 * i + 1]) + 1
        is_run = bool(runs) and bool(runs[i // 8] >> i % 8 & 1)
        values, at = _read_container(body, at, cardinality, is_run)
        parts.append(values + (key << 16))
    return (np.concatenate(parts) if parts else np.empty(0, np.int64)), at


def _read_container(body: bytes, at: int, cardinality: int, is_run: bool) -> tuple[Positions, int]:
    if is_run:
        (count,) = struct.unpack_from("<H", body, at)
        pairs = np.frombuffer(body, "<u2", 2 * count, at + 2).astype(np.int64).reshape(-1, 2)
        starts, lengths = pairs[:, 0], pairs[:, 1] + 1
        before = np.cumsum(lengths) - lengths
        values = np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(starts - before, lengths)
        return values, at + 2 + 4 * count
    if cardinality <= _ARRAY_MAX:
        return np.frombuffer(body, "<u2", cardinality, at).astype(np.int64), at + 2 * cardinality
    bits = np.unpackbits(np.frombuffer(body, np.uint8, _BITSET_BYTES, at), bitorder="little")
    return np.flatnonzero(bits).astype(np.int64), at + _BITSET_BYTES
