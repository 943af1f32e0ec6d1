"""Requests that our client would never send, derived from recorded requests by a seeded generator.

Terms: a `Recorded` request was sent by a client; a *mutant* is the frame derived from it, with a description of the
changes. Half of the changes know the format (fields of messages, headers of batches, documents in JSON), and repair
what precedes the changed place, such as checksums: otherwise no mutant would pass the first check of the server.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from forebay.codec.crc import crc32c
from forebay.codec.log.header import CRC_OFFSETS, SCHEMA_ID_OFFSETS
from forebay.protocol.api import APIS, ApiKey

NUMBERS = (0, 1, 2, 3, 7, -1, -2, 255, 1 << 15, 65_536, 1 << 20, (1 << 31) - 1, -(1 << 31), 1 << 40, (1 << 63) - 1,
           -(1 << 63))  # fmt: skip
TEXTS = ("", " ", ".", "..", "../../x", "a/b", "\0", "é" * 200, "x" * 255, "x" * 5000, "__internal", "a$b", "%s", "NaN",
         "-1", "9" * 40, "1e400", "true", "2026-02-30", "\u202e", "𝔘")  # fmt: skip
DOCUMENTS = (None, True, -1, 0, 1 << 70, 1.5, "", "x" * 3000, [], {}, [[]], [None], {"": None}, "BIGINT", ["a", "a"])

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), 1 << 31),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), 1 << 63),
    FieldDescriptor.CPPTYPE_UINT32: (0, 1 << 32),
    FieldDescriptor.CPPTYPE_UINT64: (0, 1 << 64),
}


@dataclass(frozen=True)
class Recorded:
    """A request of a real session."""

    key: ApiKey
    version: int
    body: bytes

    def message(self) -> Any:
        return APIS[self.key].request.FromString(self.body)


@dataclass(frozen=True)
class Mutant:
    """A frame with its length field. `breaks`: nothing behind it on its connection can be understood."""

    data: bytes
    story: str
    breaks: bool = False

    @property
    def key(self) -> int:
        return int(struct.unpack_from(">h", self.data, 4)[0]) if len(self.data) >= 6 else -1


def frame(key: int, version: int, request_id: int, body: bytes) -> bytes:
    return struct.pack(">ihhi", 8 + len(body), key, version, request_id) + body


class Mutator:
    """Makes mutants of recorded requests; the same seed makes the same of the same."""

    def __init__(self, rng: random.Random, recorded: list[Recorded]) -> None:
        self._rng = rng
        self._by_key: dict[ApiKey, list[Recorded]] = {}
        for each in recorded:
            self._by_key.setdefault(each.key, []).append(each)
        self._keys = sorted(self._by_key)
        self._writes = [key for key in (ApiKey.PRODUCE_LOG, ApiKey.PUT_KV) if key in self._by_key]
        self._documents = [key for key in (ApiKey.CREATE_TABLE, ApiKey.CREATE_DATABASE) if key in self._by_key]

    def mutant(self, request_id: int) -> Mutant:
        """One more. Its request id may have been changed, too."""
        way = self._rng.choices(_WAYS, _WEIGHTS)[0]
        return way(self, request_id)

    def _any(self, keys: list[ApiKey] | None = None) -> Recorded:
        return self._rng.choice(self._by_key[self._rng.choice(keys or self._keys)])

    def _mutant(self, of: Recorded, request_id: int, body: bytes, story: str) -> Mutant:
        return Mutant(frame(of.key, of.version, request_id, body), f"{of.key.name} {story}")

    # ---- bytes ------------------------------------------------------------------------------------------------------

    def flipped(self, data: bytes, first: int = 0) -> tuple[bytes, str]:
        """`data` with one to eight bits flipped behind `first`."""
        changed, places = bytearray(data), []
        for _ in range(self._rng.randint(1, 8) if len(data) > first else 0):
            at = self._rng.randrange(first, len(data))
            changed[at] ^= 1 << self._rng.randrange(8)
            places.append(at)
        return bytes(changed), f"bits flipped at {places}"

    def bits(self, request_id: int) -> Mutant:
        of = self._any()
        return self._mutant(of, request_id, *self.flipped(of.body))

    def header(self, request_id: int) -> Mutant:
        of = self._any()
        data = frame(of.key, of.version, request_id, of.body)
        head, story = self.flipped(data[4:12])
        return Mutant(data[:4] + head + data[12:], f"{of.key.name} header: {story}")

    def version(self, request_id: int) -> Mutant:
        of, version = self._any(), self._rng.choice((-1, 1, 2, 3, 4, 32_767, -32_768))
        return Mutant(frame(of.key, version, request_id, of.body), f"{of.key.name} as version {version}")

    def swapped(self, request_id: int) -> Mutant:
        of, key = self._any(), self._rng.choice((*self._keys, self._rng.randint(-32_768, 32_767)))
        return Mutant(frame(key, of.version, request_id, of.body), f"{of.key.name} under key {int(key)}")

    def length(self, request_id: int) -> Mutant:
        of = self._any()
        data = frame(of.key, of.version, request_id, of.body)
        right = len(data) - 4
        wrong = self._rng.choice(
            (0, -1, 7, 8, right - 1, right + 1, right // 2, (1 << 31) - 1, -(1 << 31), 100 << 20, 50 << 20)
        )
        return Mutant(struct.pack(">i", wrong) + data[4:], f"{of.key.name} length {wrong} for {right}", True)

    def cut(self, request_id: int) -> Mutant:
        of = self._any()
        data = frame(of.key, of.version, request_id, of.body)
        size = self._rng.randrange(1, len(data))
        return Mutant(data[:size], f"{of.key.name} ends after {size} of {len(data)} bytes", True)

    def shortened(self, request_id: int) -> Mutant:
        of = self._any()
        size = self._rng.randint(0, max(len(of.body) - 1, 0))
        return self._mutant(of, request_id, of.body[:size], f"body of {size} of {len(of.body)} bytes")

    def lengthened(self, request_id: int) -> Mutant:
        of = self._any()
        more = self._rng.choice((b"\0", b"\xff" * 20, b"\x0b" * 200, self._rng.randbytes(30), of.body, of.body * 50))
        return self._mutant(of, request_id, of.body + more, f"{len(more)} bytes behind it")

    # ---- messages ---------------------------------------------------------------------------------------------------

    def chunks(self, request_id: int) -> Mutant:
        """Outermost fields in another order, twice, or left out, as bytes."""
        of = self._any()
        parts = list(outermost(of.body))
        what = self._rng.choice(("shuffled", "doubled", "left out"))
        if parts and what == "doubled":
            parts.insert(self._rng.randrange(len(parts) + 1), self._rng.choice(parts))
        elif parts and what == "left out":
            parts.pop(self._rng.randrange(len(parts)))
        else:
            self._rng.shuffle(parts)
        return self._mutant(of, request_id, b"".join(parts), f"fields {what}")

    def fields(self, request_id: int) -> Mutant:
        """One to three fields of the message, however deep, with another value, twice, or left out."""
        of = self._any()
        message, stories = of.message(), []
        for _ in range(self._rng.choice((1, 1, 2, 3))):
            places = list(fields_of(message))
            if places:
                stories.append(self._change_field(*self._rng.choice(places)))
        return self._mutant(of, request_id, message.SerializePartialToString(), "; ".join(stories))

    def _change_field(self, message: Any, field: FieldDescriptor) -> str:
        if self._rng.random() < 0.15:
            message.ClearField(field.name)
            return f"{field.name} left out"
        values = getattr(message, field.name)
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            if not is_list(field):
                values.SetInParent()
                return f"{field.name} set"
            if not values:
                values.add()
                return f"an empty {field.name}"
            times = self._rng.choice((1, 2, 50))
            values.extend([self._rng.choice(values)] * times)
            self._rng.shuffle(indexes := list(range(len(values))))
            copies = [values[index] for index in indexes]
            message.ClearField(field.name)
            getattr(message, field.name).extend(copies)
            return f"{field.name} {times} times more, shuffled"
        if is_list(field):
            new = [self._value(field) for _ in range(self._rng.choice((0, 1, 2, 40)))]
            old = list(values)
            message.ClearField(field.name)
            getattr(message, field.name).extend([*old, *new])
            return f"{field.name} and {new!r:.60}"
        value = self._value(field)
        setattr(message, field.name, value)
        return f"{field.name}={value!r:.60}"

    def _value(self, field: FieldDescriptor) -> Any:
        kind = field.cpp_type
        if kind in _INTEGERS:
            low, high = _INTEGERS[kind]
            return self._rng.choice([n for n in NUMBERS if low <= n < high])
        if kind == FieldDescriptor.CPPTYPE_STRING:
            if field.type == FieldDescriptor.TYPE_BYTES:
                return self._rng.choice((b"", b"\0", b"{}", self._rng.randbytes(16), b"[" * 3000, bytes(70_000)))
            return self._rng.choice(TEXTS)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self._rng.random() < 0.5
        return self._rng.choice((0.0, -0.0, float("nan"), float("inf"), 1e30))

    def documents(self, request_id: int) -> Mutant:
        """A place in a document (JSON) of a table or database with another value."""
        of = self._any(self._documents or None)
        message = of.message()
        found = [(m, f) for m, f in fields_of(message) if f.name.endswith("_json") and m.HasField(f.name)]
        if not found:
            return self.fields(request_id)
        holder, field = self._rng.choice(found)
        document = json.loads(getattr(holder, field.name))
        nodes = list(nodes_of(document))
        node, at = self._rng.choice(nodes) if nodes else (document, "x")
        value = self._rng.choice((*DOCUMENTS, *NUMBERS))
        if self._rng.random() < 0.2 and isinstance(node, dict):
            node.pop(at, None)
            story = f"{at!r} left out"
        else:
            node[at] = value
            story = f"{at!r} = {value!r:.60}"
        setattr(holder, field.name, json.dumps(document).encode())
        # Created, or refused for its document, and not because the name is taken.
        for path, name in ((m, f.name) for m, f in fields_of(message) if f.name in ("table_name",)):
            setattr(path, name, f"m{self._rng.randrange(1 << 30)}")
        return self._mutant(of, request_id, message.SerializePartialToString(), f"{field.name}: {story}")

    # ---- batches ----------------------------------------------------------------------------------------------------

    def batches(self, request_id: int) -> Mutant:
        """A request to write whose batch is changed; most have the right checksum again."""
        if not self._writes:
            return self.bits(request_id)
        of = self._any(self._writes)
        message = of.message()
        bucket = self._rng.choice(message.buckets_req)
        is_kv = of.key is ApiKey.PUT_KV
        layout = _KV_FIELDS if is_kv else _LOG_FIELDS
        batch, story = bytearray(bucket.records), ""
        start = 28 if is_kv else 52
        for _ in range(self._rng.choice((1, 1, 2))):
            way = self._rng.randrange(5)
            if way <= 1:
                name, at, code = self._rng.choice(layout)
                low, high = {"b": (-128, 128), "h": (-32_768, 32_768), "i": _I32, "I": (0, 1 << 32), "q": _I64}[code]
                value = self._rng.choice([n for n in NUMBERS if low <= n < high])
                if at + struct.calcsize(code) <= len(batch):
                    struct.pack_into(f"<{code}", batch, at, value)
                story += f" {name}={value}"
            elif way == 2 and batch:
                changed, where = self.flipped(bytes(batch), min(start, len(batch) - 1))
                batch[:] = changed
                story += f" body {where}"
            elif way == 3:
                at, size = self._rng.randint(0, len(batch)), self._rng.randint(1, 40)
                if self._rng.random() < 0.5:
                    batch[at:at] = self._rng.choice((bytes(size), b"\xff" * size, batch[at : at + size]))
                    story += f" {size} bytes into {at}"
                else:
                    del batch[max(at, start) : max(at, start) + size]
                    story += f" {size} bytes out of {at}"
                if self._rng.random() < 0.8:
                    _set_length(batch, is_kv)
            else:
                batch += bytes(batch)
                story += " twice"
        if self._rng.random() < 0.85:
            _seal(batch, is_kv)
            story += ", right checksum"
        bucket.records = bytes(batch)
        return self._mutant(of, request_id, message.SerializePartialToString(), f"batch:{story}")


_I32, _I64 = _INTEGERS[FieldDescriptor.CPPTYPE_INT32], _INTEGERS[FieldDescriptor.CPPTYPE_INT64]
_KV_FIELDS = (
    ("length", 0, "i"), ("magic", 4, "b"), ("crc", 5, "I"), ("schema", 9, "h"), ("attributes", 11, "b"),
    ("writer", 12, "q"), ("sequence", 20, "i"), ("count", 24, "i"), ("record length", 28, "i"),
)  # fmt: skip
_LOG_FIELDS = (  # magic 0 and 1: what a client sends
    ("base offset", 0, "q"), ("length", 8, "i"), ("magic", 12, "b"), ("timestamp", 13, "q"), ("crc", 21, "I"),
    ("schema", 25, "h"), ("attributes", 27, "b"), ("last delta", 28, "i"), ("writer", 32, "q"), ("sequence", 40, "i"),
    ("count", 44, "i"), ("statistics or body", 48, "i"), ("body", 52, "i"),
)  # fmt: skip


def _set_length(batch: bytearray, is_kv: bool) -> None:
    if is_kv and len(batch) >= 4:
        struct.pack_into("<i", batch, 0, len(batch) - 4)
    elif not is_kv and len(batch) >= 12:
        struct.pack_into("<i", batch, 8, len(batch) - 12)


def _seal(batch: bytearray, is_kv: bool) -> None:
    """Give the (first) batch the checksum that its length and version ask for."""
    if len(batch) < (28 if is_kv else 60):
        return
    if is_kv:
        struct.pack_into("<I", batch, 5, crc32c(batch, 9, len(batch)))
        return
    magic = batch[12] if batch[12] < len(CRC_OFFSETS) else 0
    end = min(len(batch), max(struct.unpack_from("<i", batch, 8)[0] + 12, 60))
    struct.pack_into("<I", batch, CRC_OFFSETS[magic], crc32c(batch, SCHEMA_ID_OFFSETS[magic], end))


_WEIGHED: tuple[tuple[Callable[[Mutator, int], Mutant], int], ...] = (
    (Mutator.bits, 12), (Mutator.header, 3), (Mutator.version, 3), (Mutator.swapped, 6), (Mutator.length, 2),
    (Mutator.cut, 1), (Mutator.shortened, 4), (Mutator.lengthened, 4), (Mutator.chunks, 10), (Mutator.fields, 35),
    (Mutator.documents, 6), (Mutator.batches, 24),
)  # fmt: skip
_WAYS = [way for way, _ in _WEIGHED]
_WEIGHTS = [weight for _, weight in _WEIGHED]


# ---- what messages and documents are made of ------------------------------------------------------------------------


def is_list(field: FieldDescriptor) -> bool:
    """Whether a field is repeated; runtimes of protobuf name this in two ways."""
    repeated: bool | None = getattr(field, "is_repeated", None)
    return field.label == FieldDescriptor.LABEL_REPEATED if repeated is None else repeated


def fields_of(message: Any) -> Iterator[tuple[Any, FieldDescriptor]]:
    """All fields of a message and of those inside of it, with the message that they belong to."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            if is_list(field):
                for each in getattr(message, field.name)[:3]:
                    yield from fields_of(each)
            elif message.HasField(field.name):
                yield from fields_of(getattr(message, field.name))


def nodes_of(document: Any) -> Iterator[tuple[Any, Any]]:
    """All places in a document: the object or list, and the key or index."""
    if isinstance(document, dict | list):
        for at in document if isinstance(document, dict) else range(len(document)):
            yield document, at
            yield from nodes_of(document[at])


def outermost(body: bytes) -> Iterator[bytes]:
    """The outermost fields of a message that was written by protobuf."""
    at = 0
    while at < len(body):
        start = at
        tag, at = _varint(body, at)
        if tag & 7 == 2:
            length, at = _varint(body, at)
            at += length
        elif tag & 7 == 0:
            _, at = _varint(body, at)
        else:
            at += 8 if tag & 7 == 1 else 4
        yield body[start:at]


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (body[at] & 0x7F) << shift
        at += 1
        if body[at - 1] < 0x80:
            return value, at
        shift += 7


def writes_to(data: bytes) -> int | None:
    """The table that a frame would write rows into, were it accepted; None if it is no such request."""
    if len(data) < 12:
        return None
    api = APIS.get(struct.unpack_from(">h", data, 4)[0])
    if api is None or api.key not in (ApiKey.PRODUCE_LOG, ApiKey.PUT_KV, ApiKey.LOOKUP):
        return None
    message: Any = api.request()
    try:
        message.ParseFromString(data[12:])
    except (DecodeError, UnicodeDecodeError):
        return None
    table: int = message.table_id
    return table
