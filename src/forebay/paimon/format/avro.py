"""Avro container files, the format of manifests: a header with schema and codec, then compressed blocks of records.

Here records are dictionaries (manifests are decoded to columns instead: `avro_columns`). Logical types remain the
numbers that are stored. A block is decoded as one Avro array, which needs one call into fastavro instead of one per
record.
"""

from __future__ import annotations

import bz2
import contextlib
import hashlib
import io
import json
import lzma
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from forebay.base.errors import CorruptData, InvalidRequest, UnsupportedOperation

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
BLOCK_RECORDS = 4096
_CODECS = {"zstd": "zstandard", "none": "null", "uncompressed": "null", "gzip": "deflate"}
_ZSTD_LEVEL = 1


def read_records(data: bytes) -> list[dict[str, Any]]:
    """All records of a container file. Raises `CorruptData` for malformed files."""
    records: list[dict[str, Any]] = []
    for block in read_blocks(data):
        records.extend(block)
    return records


def read_blocks(data: bytes) -> Iterator[list[dict[str, Any]]]:
    """The records of a container file, block by block. Raises `CorruptData` for malformed files."""
    with _corrupt_if_unsound():
        yield from _read_blocks(data)


def _fastavro() -> Any:
    """The fastavro module, imported on first use: manifests do not need it."""
    try:
        import fastavro  # importing it takes as long as a small commit
    except ImportError as e:  # pragma: no cover - an installation without the extra
        raise UnsupportedOperation("Avro data files need fastavro: pip install 'forebay[paimon]'") from e
    return fastavro


@contextlib.contextmanager
def _corrupt_if_unsound() -> Iterator[None]:
    try:
        yield
    except (CorruptData, UnsupportedOperation):
        raise
    except (ValueError, KeyError, EOFError, IndexError, TypeError, OSError, zlib.error, lzma.LZMAError) as e:
        raise CorruptData(f"this is not a sound Avro file: {type(e).__name__} {e}") from e


@dataclass(frozen=True, slots=True)
class Container:
    """A decompressed container file: the schema as JSON, and the records of all blocks, concatenated.

    `blocks` are (number of records, start in `body`, end in `body`).
    """

    schema: bytes
    body: bytes
    blocks: list[tuple[int, int, int]]


def read_container(data: bytes) -> Container:
    """The parts of a container file, with undecoded records. Raises `CorruptData`."""
    with _corrupt_if_unsound():
        schema, bodies = _open(data)
        blocks, parts, at = [], [], 0
        for count, body in bodies:
            blocks.append((count, at, at + len(body)))
            parts.append(body)
            at += len(body)
        return Container(schema, parts[0] if len(parts) == 1 else b"".join(parts), blocks)


def _read_blocks(data: bytes) -> Iterator[list[dict[str, Any]]]:
    schema, bodies = _open(data)
    block_schema = _block_schema(schema)
    for count, body in bodies:
        array: Any = _fastavro().schemaless_reader(io.BytesIO(_zigzag(count) + body + b"\0"), block_schema, None)
        if len(array) != count:
            raise CorruptData(f"an Avro block of {count} records holds {len(array)}")
        yield array


def _open(data: bytes) -> tuple[bytes, Iterator[tuple[int, bytes]]]:
    """The schema of a container file, and its blocks: number of records, and their decompressed bytes."""
    if data[:4] != _MAGIC:
        raise CorruptData(f"an Avro file begins with {_MAGIC!r}, not {data[:4]!r}")
    meta, at = _header(memoryview(data), len(_MAGIC))
    sync = data[at : at + _SYNC_BYTES]
    if len(sync) < _SYNC_BYTES:
        raise CorruptData("an Avro file ends within its header")
    codec = bytes(meta.get("avro.codec", b"null")).decode()
    return bytes(meta["avro.schema"]), _bodies(data, at + _SYNC_BYTES, codec, sync)


def _header(view: memoryview, at: int) -> tuple[dict[str, bytes], int]:
    """The metadata map at the start of a file, and its end position."""
    meta: dict[str, bytes] = {}
    while True:
        count, at = _long(view, at)
        if count == 0:
            return meta, at
        if count < 0:  # the byte size of the block follows
            count, (_, at) = -count, _long(view, at)
        for _ in range(count):
            key, at = _sized(view, at)
            meta[key.decode()], at = _sized(view, at)


def _sized(view: memoryview, at: int) -> tuple[bytes, int]:
    size, at = _long(view, at)
    if not 0 <= size <= len(view) - at:
        raise CorruptData("a length in the header of an Avro file is wrong")
    return bytes(view[at : at + size]), at + size


def _bodies(data: bytes, at: int, codec: str, sync: bytes) -> Iterator[tuple[int, bytes]]:
    view = memoryview(data)
    while at < len(data):
        count, at = _long(view, at)
        size, at = _long(view, at)
        if count < 0 or size < 0 or at + size + _SYNC_BYTES > len(data):
            raise CorruptData("an Avro block is longer than its file")
        body = _decompress(codec, bytes(view[at : at + size]))
        at += size
        if view[at : at + _SYNC_BYTES] != sync:
            raise CorruptData("an Avro block does not end with the file's sync marker")
        at += _SYNC_BYTES
        yield count, body


def write_records(schema: dict[str, Any], records: Sequence[dict[str, Any]], compression: str = "zstd") -> bytes:
    """A container file of `records`. `compression` is Paimon's name: zstd, none, gzip, snappy."""
    schema_json = json.dumps(schema).encode()
    block_schema = _block_schema(schema_json)
    blocks = []
    for start in range(0, len(records), BLOCK_RECORDS):
        chunk = records[start : start + BLOCK_RECORDS]
        encoded = io.BytesIO()
        try:
            _fastavro().schemaless_writer(encoded, block_schema, chunk)
        except (ValueError, TypeError, KeyError, OverflowError) as e:
            raise InvalidRequest(f"a record does not fit its Avro schema: {e}") from e
        whole = encoded.getvalue()
        blocks.append((len(chunk), whole[len(_zigzag(len(chunk))) : -1]))
    return write_container(schema_json, blocks, compression)


def write_container(schema_json: bytes, blocks: Iterable[tuple[int, bytes]], compression: str = "zstd") -> bytes:
    """A container file of already encoded records; `blocks` are the number of records and their bytes."""
    codec = _CODECS.get(compression.lower(), compression.lower())
    out = io.BytesIO()
    out.write(_MAGIC)
    out.write(_zigzag(2))
    for item in (b"avro.schema", schema_json, b"avro.codec", codec.encode()):
        out.write(_zigzag(len(item)) + item)
    out.write(_zigzag(0))
    bodies = [(_zigzag(count), _compress(codec, body)) for count, body in blocks]
    # The marker need only be unlikely to occur in the blocks; derived from them, equal content gives equal bytes.
    sync = hashlib.md5(schema_json + b"".join(body for _, body in bodies), usedforsecurity=False).digest()
    out.write(sync)
    for count, body in bodies:
        out.write(count + _zigzag(len(body)) + body + sync)
    return out.getvalue()


@lru_cache(maxsize=256)
def _block_schema(schema_json: bytes) -> Any:
    """The schema of an array of the file's records, parsed for fastavro."""
    return _fastavro().parse_schema({"type": "array", "items": _without_logical_types(json.loads(schema_json))})


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: value for key, value in schema.items() if key != "logicalType"}
    for key in ("type", "items", "values"):
        if key in plain:
            plain[key] = _without_logical_types(plain[key])
    if "fields" in plain:
        plain["fields"] = [_without_logical_types(f) for f in plain["fields"]]
    return plain


def _zigzag(value: int) -> bytes:
    encoded = value << 1
    out = bytearray()
    while encoded > 0x7F:
        out.append(encoded & 0x7F | 0x80)
        encoded >>= 7
    out.append(encoded)
    return bytes(out)


def _long(view: memoryview, at: int) -> tuple[int, int]:
    """The zigzag varint at `at`, and its end position."""
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise CorruptData("a number in an Avro file is longer than 64 bits")


def _decompress(codec: str, data: bytes) -> bytes:
    match codec:
        case "null":
            return data
        case "zstandard":
            return bytes(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read())
        case "deflate":
            return zlib.decompress(data, -zlib.MAX_WBITS)
        case "snappy":
            return bytes(pa.Codec("snappy").decompress(data[:-4], _snappy_size(data), asbytes=True))
        case "bzip2":
            return bz2.decompress(data)
        case "xz":
            return lzma.decompress(data)
    raise UnsupportedOperation(f"the Avro codec '{codec}' is not supported; use zstd, gzip, snappy or none")


def _compress(codec: str, data: bytes) -> bytes:
    match codec:
        case "null":
            return data
        case "zstandard":
            return bytes(pa.Codec("zstd", _ZSTD_LEVEL).compress(data, asbytes=True))
        case "deflate":
            compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
            return compressor.compress(data) + compressor.flush()
        case "snappy":
            return bytes(pa.Codec("snappy").compress(data, asbytes=True)) + zlib.crc32(data).to_bytes(4, "big")
    raise UnsupportedOperation(f"manifest compression '{codec}' is not supported; use zstd, gzip, snappy or none")


def _snappy_size(data: bytes) -> int:
    """The length of the decompressed data, stored at the start of a snappy block."""
    value = shift = at = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
        if shift > 35:
            raise CorruptData("a snappy block has no length")
