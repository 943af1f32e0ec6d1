"""The bytes of a journal's objects (docs/format/journal.md). Encodes and decodes; no I/O.

Nouns: an *entry* is one thing that the server did; its *payload* is the bytes that belong to it. An object has entries
in the order in which they happened. Its *footer* names the store, the epoch and the writer, and chains it to the object
before it.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from forebay.base.errors import CorruptData, UnsupportedOperation
from forebay.codec.crc import crc32c
from forebay.metadata.table import TableBucket

if TYPE_CHECKING:
    from typing_extensions import Buffer

FORMAT_VERSION = 1

_MAGIC = b"FBJOURN1"
_FOOTER = struct.Struct("<qIII16sq16sqI8s")
_CRC = struct.Struct("<I")
FOOTER_BYTES = _FOOTER.size + _CRC.size

_NO_PARTITION = -1
_SAMPLE_BYTES = 32 << 10
_WORTH_COMPRESSING = 0.9
"""A payload is compressed if a part of it shrinks below this share: most log batches are compressed already."""

_INDEX_BYTES_MAX = 256 << 20


class EntryKind(StrEnum):
    """What an entry says; the words of the index."""

    EPOCH = "epoch"
    END = "end"
    CHECKPOINT = "checkpoint"
    LOG = "log"
    CUT = "cut"
    IMAGE = "image"
    METADATA = "metadata"
    FILE = "file"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class EpochBegan:
    """A server has taken over. Another one may do so automatically after `lease_ms` without an object; 0: never.

    `is_awaited`: it acknowledges nothing before the store has it.
    """

    holder: str
    reason: str
    lease_ms: int = 0
    is_awaited: bool = False


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """The server writes nothing more in this epoch: another one need not wait for its lease."""

    reason: str


@dataclass(frozen=True, slots=True)
class JournalCheckpoint:
    """From where on the journal has to be read: the object `image` with an image of the metadata; for logs, what is in
    objects from `needed_from` on; what follows the image. Objects below `deleted_until` were deleted."""

    image: int
    needed_from: int
    deleted_until: int

    @property
    def first(self) -> int:
        """The lowest number that has to be read."""
        return min(self.image, self.needed_from)


@dataclass(frozen=True, slots=True)
class LogGrew:
    """A log got the batches from `first` to `end`."""

    bucket: TableBucket
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class LogCut:
    """A log was cut back to `end`."""

    bucket: TableBucket
    end: int


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The whole metadata store, a SQLite database, which replaces what was before: what every epoch begins with."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """A transaction of the metadata store; its statements are the payload (`encode_statements`)."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class FileWritten:
    """A file of the data directory got bytes at a position."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Removed:
    """A file or folder of the data directory was removed."""

    name: str


Entry = (
    EpochBegan
    | EpochEnded
    | JournalCheckpoint
    | LogGrew
    | LogCut
    | MetadataImage
    | MetadataChanged
    | FileWritten
    | Removed
)


class Payload(NamedTuple):
    """Where the bytes of an entry lie in its object."""

    position: int
    stored_bytes: int
    size_bytes: int
    crc: int


class IndexedEntry(NamedTuple):
    """An entry, and its payload if it has one."""

    entry: Entry
    payload: Payload | None


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose object it is, and its place in the journal."""

    store_id: bytes
    epoch: int
    writer: bytes
    number: int
    before: int
    """The seal of the object before; 0 in the first one."""


@dataclass(frozen=True, slots=True)
class Footer:
    """The identity of an object, and where its index lies."""

    identity: Identity
    index_position: int
    index_stored_bytes: int
    index_size_bytes: int
    index_crc: int
    seal: int
    """The checksum of the footer, which covers the whole object; the next object has it as `before`."""


@dataclass(frozen=True, slots=True)
class Index:
    """What an object has."""

    first_ms: int
    last_ms: int
    entries: Sequence[IndexedEntry]


# ---- whole objects --------------------------------------------------------------------------------------------------


def encode_object(
    identity: Identity, first_ms: int, last_ms: int, entries: Iterable[tuple[Entry, Buffer | None]]
) -> Buffer:
    """The bytes of an object. An entry has a payload if its kind has one."""
    parts: list[Buffer] = []
    position = 0
    documents = []
    for entry, payload in entries:
        document = _document(entry)
        if payload is not None:
            stored = _compressed(payload)
            size = memoryview(stored).nbytes
            document["payload"] = [position, size, memoryview(payload).nbytes, crc32c(stored)]
            parts.append(stored)
            position += size
        documents.append(document)
    plain = json.dumps(
        {"first_ms": first_ms, "last_ms": last_ms, "entries": documents}, ensure_ascii=False, separators=(",", ":")
    ).encode()
    index = _compressed(plain)
    footer = _FOOTER.pack(
        position, memoryview(index).nbytes, len(plain), crc32c(index),
        identity.store_id, identity.epoch, identity.writer, identity.number, identity.before, _MAGIC,
    )  # fmt: skip
    return joined([*parts, index, footer, _CRC.pack(crc32c(footer))])


def decode_footer(end: Buffer, name: str) -> Footer:
    """The footer of an object whose last bytes are `end`. Raises `CorruptData`."""
    view = memoryview(end)
    if view.nbytes < FOOTER_BYTES:
        raise CorruptData(f"{name} has {view.nbytes} bytes, fewer than a footer has")
    plain, crc = bytes(view[-FOOTER_BYTES : -_CRC.size]), bytes(view[-_CRC.size :])
    position, stored_bytes, size_bytes, index_crc, *identity, magic = _FOOTER.unpack(plain)
    if magic != _MAGIC:
        raise CorruptData(f"{name} is no object of a journal: its footer has {magic!r}")
    seal = crc32c(plain)
    if _CRC.pack(seal) != crc:
        raise CorruptData(f"the footer of {name} is damaged: its checksum is wrong")
    if size_bytes > _INDEX_BYTES_MAX:
        raise CorruptData(f"the index of {name} claims {size_bytes} bytes")
    return Footer(Identity(*identity), position, stored_bytes, size_bytes, index_crc, seal)


def decode_index(data: Buffer, footer: Footer, name: str) -> Index:
    """The index whose stored bytes are `data`.

    Raises `CorruptData`, and `UnsupportedOperation` for an entry of a kind that only newer versions know.
    """
    sizes = footer.index_stored_bytes, footer.index_size_bytes
    plain = _decompressed(data, *sizes, footer.index_crc, f"the index of {name}")
    try:
        document = json.loads(plain)
        entries = [_indexed(each, name) for each in document["entries"]]
        return Index(document["first_ms"], document["last_ms"], entries)
    except (ValueError, KeyError, TypeError) as e:
        raise CorruptData(f"the index of {name} cannot be read: {e!r}") from e


def decode_payload(data: Buffer, payload: Payload, name: str) -> bytes:
    """The bytes of an entry, from its stored ones. Raises `CorruptData`."""
    what = f"a payload of {name}, at byte {payload.position}"
    return _decompressed(data, payload.stored_bytes, payload.size_bytes, payload.crc, what)


# ---- statements of the metadata store -------------------------------------------------------------------------------

Statement = tuple[str, Sequence[Any]]
"""The text of a SQL statement, and its parameters: texts, whole numbers, bytes, None."""


def encode_statements(statements: Iterable[Statement]) -> bytes:
    """The payload of `MetadataChanged`."""
    return json.dumps(
        [[text, list(parameters)] for text, parameters in statements], default=_bytes_document, separators=(",", ":")
    ).encode()


def decode_statements(data: Buffer) -> list[Statement]:
    """The statements of a payload. Raises `CorruptData`."""
    try:
        return [(text, [_parameter(each) for each in parameters]) for text, parameters in json.loads(bytes(data))]
    except (ValueError, TypeError, KeyError) as e:
        raise CorruptData(f"the statements of a journal's entry cannot be read: {e!r}") from e


def _bytes_document(value: object) -> Mapping[str, str]:
    if not isinstance(value, bytes):
        raise TypeError(f"a statement has the parameter {value!r}, which a journal cannot keep")
    return {"base64": base64.b64encode(value).decode()}


def _parameter(value: Any) -> Any:
    return base64.b64decode(value["base64"], validate=True) if isinstance(value, dict) else value


# ---- entries of the index -------------------------------------------------------------------------------------------


def _document(entry: Entry) -> dict[str, Any]:
    match entry:
        case EpochBegan(holder, reason, lease_ms, is_awaited):
            return {
                "kind": EntryKind.EPOCH, "holder": holder, "reason": reason, "lease_ms": lease_ms,
                "awaited": is_awaited,
            }  # fmt: skip
        case EpochEnded(reason):
            return {"kind": EntryKind.END, "reason": reason}
        case JournalCheckpoint(image, needed_from, deleted_until):
            return {
                "kind": EntryKind.CHECKPOINT, "image": image, "needed_from": needed_from,
                "deleted_until": deleted_until,
            }  # fmt: skip
        case LogGrew(bucket, first, end):
            return {"kind": EntryKind.LOG, "bucket": _bucket_document(bucket), "offsets": [first, end]}
        case LogCut(bucket, end):
            return {"kind": EntryKind.CUT, "bucket": _bucket_document(bucket), "end": end}
        case MetadataImage(at_ms):
            return {"kind": EntryKind.IMAGE, "at_ms": at_ms}
        case MetadataChanged(at_ms):
            return {"kind": EntryKind.METADATA, "at_ms": at_ms}
        case FileWritten(name, position):
            return {"kind": EntryKind.FILE, "name": name, "position": position}
        case Removed(name):
            return {"kind": EntryKind.REMOVED, "name": name}


def _indexed(document: Mapping[str, Any], name: str) -> IndexedEntry:
    payload = document.get("payload")
    return IndexedEntry(_entry(document, name), None if payload is None else Payload(*payload))


def _entry(document: Mapping[str, Any], name: str) -> Entry:
    match document["kind"]:
        case EntryKind.EPOCH:
            return EpochBegan(document["holder"], document["reason"], document["lease_ms"], document["awaited"])
        case EntryKind.END:
            return EpochEnded(document["reason"])
        case EntryKind.CHECKPOINT:
            return JournalCheckpoint(document["image"], document["needed_from"], document["deleted_until"])
        case EntryKind.LOG:
            first, end = document["offsets"]
            return LogGrew(_bucket(document["bucket"]), first, end)
        case EntryKind.CUT:
            return LogCut(_bucket(document["bucket"]), document["end"])
        case EntryKind.IMAGE:
            return MetadataImage(document["at_ms"])
        case EntryKind.METADATA:
            return MetadataChanged(document["at_ms"])
        case EntryKind.FILE:
            return FileWritten(document["name"], document["position"])
        case EntryKind.REMOVED:
            return Removed(document["name"])
        case other:
            raise UnsupportedOperation(
                f"{name} has an entry of the kind {other!r}, which this version of Forebay does not know; use the "
                "version that wrote it, or a newer one"
            )


def _bucket_document(bucket: TableBucket) -> list[int]:
    partition = _NO_PARTITION if bucket.partition_id is None else bucket.partition_id
    return [bucket.table_id, partition, bucket.bucket]


def _bucket(numbers: Sequence[int]) -> TableBucket:
    table, partition, bucket = numbers
    return TableBucket(table, bucket, None if partition == _NO_PARTITION else partition)


# ---- checksums and compression --------------------------------------------------------------------------------------


def joined(parts: Iterable[Buffer]) -> Buffer:
    """All parts in one buffer. Other threads run while they are copied, unlike by `bytes.join`."""
    views = [memoryview(part).cast("B") for part in parts]
    whole = pa.allocate_buffer(sum(view.nbytes for view in views))
    writer = pa.FixedSizeBufferWriter(whole)
    for view in views:
        writer.write(view)
    return memoryview(whole).cast("B")


def _compressed(data: Buffer) -> Buffer:
    """`data`, or fewer bytes: a size that differs is what tells readers that it is compressed."""
    view = memoryview(data)
    sample = view[:_SAMPLE_BYTES]
    if len(pa.compress(sample, codec="zstd", asbytes=True)) < _WORTH_COMPRESSING * sample.nbytes:
        compressed: bytes = pa.compress(view, codec="zstd", asbytes=True)
        if len(compressed) < view.nbytes:
            return compressed
    return view


def _decompressed(data: Buffer, stored_bytes: int, size_bytes: int, crc: int, what: str) -> bytes:
    view = memoryview(data)
    if view.nbytes != stored_bytes:
        raise CorruptData(f"{what} has {view.nbytes} bytes in place of {stored_bytes}")
    if crc32c(view) != crc:
        raise CorruptData(f"{what} is damaged: its checksum is wrong")
    if stored_bytes == size_bytes:
        return bytes(view)
    try:
        return bytes(pa.decompress(view, size_bytes, codec="zstd", asbytes=True))
    except (OSError, ValueError) as e:
        raise CorruptData(f"{what} cannot be decompressed: {e}") from e
