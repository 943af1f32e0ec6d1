"""Avro container files, as manifests are: a header with schema and codec, then compressed blocks of records.

Records are dictionaries. Logical types are left as the numbers they are stored as. A block is decoded as one Avro
array, which costs one call into fastavro instead of one for each record.
"""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import lzma
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from forebay.base.errors import CorruptData, InvalidRequest, UnsupportedOperation

try:
    import fastavro
except ImportError as e:  # pragma: no cover - an installation without the extra
    raise UnsupportedOperation("Paimon tables need fastavro: pip install 'forebay[paimon]'") from e

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_BLOCK_RECORDS = 4096
_CODECS = {"zstd": "zstandard", "none": "null", "uncompressed": "null", "gzip": "deflate"}
_ZSTD_LEVEL = 1
_META = {"type": "map", "values": "bytes"}


def read_records(data: bytes) -> list[dict[str, Any]]:
    """All records of a container file. Raises `CorruptData` for bytes that are no such file."""
    records: list[dict[str, Any]] = []
    for block in read_blocks(data):
        records.extend(block)
    return records


def read_blocks(data: bytes) -> Iterator[list[dict[str, Any]]]:
    """The records of a container file, block by block. Raises `CorruptData` for bytes that are no such file."""
    try:
        yield from _read_blocks(data)
    except (CorruptData, UnsupportedOperation):
        raise
    except (ValueError, KeyError, EOFError, IndexError, TypeError, OSError, zlib.error, lzma.LZMAError) as e:
        raise CorruptData(f"this is not a sound Avro file: {type(e).__name__} {e}") from e


def _read_blocks(data: bytes) -> Iterator[list[dict[str, Any]]]:
    if data[:4] != _MAGIC:
        raise CorruptData(f"an Avro file begins with {_MAGIC!r}, not {data[:4]!r}")
    stream = io.BytesIO(data)
    stream.seek(4)
    meta: Any = fastavro.schemaless_reader(stream, _META, None)
    sync = stream.read(_SYNC_BYTES)
    block_schema = _block_schema(bytes(meta["avro.schema"]))
    codec = bytes(meta.get("avro.codec", b"null")).decode()
    at = stream.tell()
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
        array: Any = fastavro.schemaless_reader(io.BytesIO(_zigzag(count) + body + b"\0"), block_schema, None)
        if len(array) != count:
            raise CorruptData(f"an Avro block of {count} records holds {len(array)}")
        yield array


def write_records(schema: dict[str, Any], records: Sequence[dict[str, Any]], compression: str = "zstd") -> bytes:
    """A container file of `records`. `compression` is Paimon's name: zstd, none, gzip, snappy."""
    codec = _CODECS.get(compression.lower(), compression.lower())
    schema_json = json.dumps(schema).encode()
    block_schema = _block_schema(schema_json)
    out = io.BytesIO()
    out.write(_MAGIC)
    fastavro.schemaless_writer(out, _META, {"avro.schema": schema_json, "avro.codec": codec.encode()})
    bodies = []
    for start in range(0, len(records), _BLOCK_RECORDS):
        chunk = records[start : start + _BLOCK_RECORDS]
        encoded = io.BytesIO()
        try:
            fastavro.schemaless_writer(encoded, block_schema, chunk)
        except (ValueError, TypeError, KeyError, OverflowError) as e:
            raise InvalidRequest(f"a record does not fit its Avro schema: {e}") from e
        whole = encoded.getvalue()
        count = _zigzag(len(chunk))
        bodies.append((count, _compress(codec, whole[len(count) : -1])))
    # The marker only has to be unlikely inside the blocks; made of them, equal content gives equal bytes.
    sync = hashlib.md5(schema_json + b"".join(body for _, body in bodies), usedforsecurity=False).digest()
    out.write(sync)
    for count, body in bodies:
        out.write(count + _zigzag(len(body)) + body + sync)
    return out.getvalue()


@lru_cache(maxsize=256)
def _block_schema(schema_json: bytes) -> Any:
    """The schema of an array of the file's records, prepared for fastavro."""
    return fastavro.parse_schema({"type": "array", "items": _without_logical_types(json.loads(schema_json))})


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "logicalType"}
    for key in ("type", "items", "values"):
        if key in kept:
            kept[key] = _without_logical_types(kept[key])
    if "fields" in kept:
        kept["fields"] = [_without_logical_types(f) for f in kept["fields"]]
    return kept


def _zigzag(value: int) -> bytes:
    encoded = value << 1
    out = bytearray()
    while encoded > 0x7F:
        out.append(encoded & 0x7F | 0x80)
        encoded >>= 7
    out.append(encoded)
    return bytes(out)


def _long(view: memoryview, at: int) -> tuple[int, int]:
    """A zigzag varint at `at`, and where it ends."""
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
    """The length of the decompressed data, which a snappy block begins with."""
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
