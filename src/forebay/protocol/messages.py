"""Messages as values, and their serialization and parsing.

Nouns: a *message* is an object of a class of `fluss_pb2`; a *body* is its protobuf encoding; a *payload* is the bulk
`records` field inside some messages (log batches, key-value batches, pages of rows).

The rule: bytes from a peer either become a complete, well-typed message or raise `CorruptData`. protobuf alone does not
see to that: it lets required fields be missing, and hands out a proto2 string that is not UTF-8 as `bytes`.

Payloads can go around protobuf. `serialize(message, payloads)` takes a message whose `records` fields are empty and
puts the payloads in without copying them; `parse_split` is its inverse and returns views into the body. For 1 MB of
records in one bucket that costs 9 us instead of 1.8 ms, and 7 us instead of 1.3 ms, because protobuf copies the bytes
into freshly mapped memory and out again. Both work on the encoding itself: they walk down the length-delimited fields
of a fixed path and leave everything else to protobuf. A body that is unusual in any way, or cut into many small
payloads, is parsed by protobuf as a whole.

Values of `forebay.metadata` become messages and back by pairs of functions, each the inverse of the other: `x_to_pb`
and `x_from_pb`. They check nothing that a message class has not checked already: whether a name is allowed or a table
exists is for the caller to check. Filters have a module of their own (`forebay.protocol.predicates`).

This module also gives type checkers the shape of protobuf's classes, so that no stubs of protobuf are needed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]

from forebay.base.errors import (
    CorruptData,
    ErrorCode,
    ForebayError,
    InternalError,
    LimitExceeded,
    check,
    error_from_wire,
    wire_code,
)
from forebay.metadata.table import PartitionInfo, PhysicalTablePath, TableBucket, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol._entries import (
    BYTES_LIST,
    MESSAGE,
    NUMBERS,
    NUMBERS_32,
    NUMBERS_64,
    PLAIN,
    TEXT,
    TEXTS,
    entries,
)

if TYPE_CHECKING:
    T = TypeVar("T")

    class Message:
        """The interface of every message of `fluss_pb2` (the part of protobuf's `Message` that Forebay uses)."""

        DESCRIPTOR: Any

        def HasField(self, field_name: str) -> bool: ...
        def ClearField(self, field_name: str) -> None: ...
        def CopyFrom(self, other_msg: Any) -> None: ...
        def IsInitialized(self) -> bool: ...
        def FindInitializationErrors(self) -> list[str]: ...
        def ByteSize(self) -> int: ...
        def SerializeToString(self) -> bytes: ...
        def ParseFromString(self, serialized: Any) -> int: ...
        def ListFields(self) -> list[tuple[Any, Any]]: ...

    class RepeatedScalars(MutableSequence[T]):
        """A repeated field of numbers, strings or bytes."""

    class RepeatedMessages(MutableSequence[T]):
        """A repeated field of messages. `add` appends a new one and returns it."""

        def add(self, **kwargs: Any) -> T: ...
        def extend(self, values: Iterable[T]) -> None: ...
else:
    from google.protobuf.message import Message


PartitionSpec = tuple[tuple[str, str], ...]
"""Partition keys with their values, in key order; in filters only some of the keys."""


class PerBucketAnswer(Protocol):
    """A message with an error pair of its own: every `Pb...RespForBucket`, LimitScanResponse, ScanKvResponse."""

    error_code: int
    error_message: str

    def HasField(self, field_name: str) -> bool: ...


def table_path_to_pb(path: TablePath) -> pb.PbTablePath:
    return pb.PbTablePath(database_name=path.database, table_name=path.table)


def table_path_from_pb(message: pb.PbTablePath) -> TablePath:
    return TablePath(message.database_name, message.table_name)


def physical_path_to_pb(path: PhysicalTablePath) -> pb.PbPhysicalTablePath:
    return pb.PbPhysicalTablePath(
        database_name=path.table.database, table_name=path.table.table, partition_name=path.partition
    )


def physical_path_from_pb(message: pb.PbPhysicalTablePath) -> PhysicalTablePath:
    partition = message.partition_name if message.HasField("partition_name") else None
    return PhysicalTablePath(TablePath(message.database_name, message.table_name), partition)


def table_bucket_to_pb(bucket: TableBucket) -> pb.PbTableBucket:
    return pb.PbTableBucket(table_id=bucket.table_id, partition_id=bucket.partition_id, bucket_id=bucket.bucket)


class _HasPartitionId(Protocol):
    partition_id: int

    def HasField(self, field_name: str) -> bool: ...


def partition_id_of(message: _HasPartitionId) -> int | None:
    """The partition id in any message that may have one; None if absent."""
    return message.partition_id if message.HasField("partition_id") else None


def partition_spec_to_pb(spec: Iterable[tuple[str, str]]) -> pb.PbPartitionSpec:
    return pb.PbPartitionSpec(partition_key_values=[pb.PbKeyValue(key=key, value=value) for key, value in spec])


def partition_spec_from_pb(message: pb.PbPartitionSpec) -> PartitionSpec:
    return tuple((entry.key, entry.value) for entry in message.partition_key_values)


def partition_info_to_pb(partition: PartitionInfo) -> pb.PbPartitionInfo:
    return pb.PbPartitionInfo(partition_id=partition.partition_id, partition_spec=partition_spec_to_pb(partition.spec))


def partition_info_from_pb(message: pb.PbPartitionInfo) -> PartitionInfo:
    return PartitionInfo(message.partition_id, partition_spec_from_pb(message.partition_spec))


def error_of(answer: PerBucketAnswer) -> ForebayError | None:
    """The error in a per-bucket response; None for success (code absent or 0)."""
    if not answer.HasField("error_code") or answer.error_code == 0:
        return None
    return error_from_wire(answer.error_code, answer.error_message)


def error_to_wire(error: BaseException) -> tuple[int, str]:
    """The code and text of `error` on the wire, in an error frame or in a per-bucket response."""
    text = error.message if isinstance(error, ForebayError) else f"{type(error).__name__}: {error}"
    return wire_code(error), sendable_text(text)


Buffer = bytes | bytearray | memoryview
"""Bytes in any of the types that this package accepts and returns."""

M = TypeVar("M", bound="Message")

PAYLOAD_SPLIT_MIN = 32 * 1024
"""Bodies below this size go through protobuf as a whole: copying them costs less than looking for the payloads."""

ERROR_TEXT_CHARS_MAX = 2048
"""Error texts are cut to this length before they are sent (Fluss cuts its own at the same length)."""

_NAMED_ENTRIES_MAX = 1024
"""The fields that a message lacks are named unless it has more entries than this."""

_SAMPLE_LEAVES = 4
_SAMPLE_BYTES_PER_LEAF = 32 * 1024
"""A body whose first payloads are smaller than this on average is parsed by protobuf as a whole."""

_VARINT_BYTES_MAX = 10
"""The length of the longest varint: 64 bits."""

_PAYLOAD_PATHS: dict[str, tuple[int, ...]] = {
    "ProduceLogRequest": (4, 3),
    "PutKvRequest": (5, 3),
    "StageRowsRequest": (6, 3),
    "FetchLogResponse": (1, 2, 8),
    "LimitScanResponse": (4,),
    "ScanKvResponse": (5,),
}
"""The location of the payloads: field numbers from the message down to `records`."""


class _Unusual(Exception):
    """The body does not have the plain form that the payload splitter knows; protobuf shall judge it."""


def parse(message_class: type[M], body: Buffer) -> M:
    """The message that `body` encodes.

    Raises `CorruptData` (CORRUPT_MESSAGE) where the encoding is broken, a required field is missing or a text is not
    UTF-8.
    """
    message = message_class()
    try:
        # Runtimes before 5 refuse a bytearray; they take a memoryview, and copy it.
        message.ParseFromString(body if isinstance(body, bytes) else memoryview(body))
    except (DecodeError, UnicodeDecodeError) as error:
        raise CorruptData(
            f"a {message_class.__name__} of {len(body)} bytes is not valid protobuf: {error}",
            ErrorCode.CORRUPT_MESSAGE,
        ) from error
    if not message.IsInitialized():
        # One name for each field that is missing anywhere: of a long list that would be a text of 100 MB.
        is_short = entries_of(message_class, body, _NAMED_ENTRIES_MAX) <= _NAMED_ENTRIES_MAX
        missing = ", ".join(message.FindInitializationErrors()) if is_short else "in its many entries"
        raise CorruptData(
            f"a {message_class.__name__} lacks required fields: {sendable_text(missing)}", ErrorCode.CORRUPT_MESSAGE
        )
    if not (isinstance(body, bytes | bytearray) and body.isascii()) and not _are_texts_whole(message_class, body):
        broken = _broken_text(message)
        if broken is not None:
            raise CorruptData(
                f"text '{broken}' in a {message_class.__name__} is not valid UTF-8", ErrorCode.CORRUPT_MESSAGE
            )
    return message


def entries_of(message_class: type[Message], body: Buffer, count_max: int) -> int:
    """Return how many entries the message in `body` has, without parsing it; a number above `count_max` if more.

    Entries are messages in the message, elements of its lists, unknown fields, and values that replace another value of
    the same field. Protobuf makes an object of most of them, and may need 300 bytes for what is two bytes on the wire.
    """
    layout = _layout(message_class.DESCRIPTOR.file)
    return entries(body, layout.fields, layout.begins, layout.types[message_class.DESCRIPTOR.full_name], count_max)[0]


def check_entries(message_class: type[Message], body: Buffer, count: int, count_max: int) -> None:
    """Raise `LimitExceeded` if `count`, the entries of the message in `body`, is more than `count_max`."""
    if count > count_max:
        raise LimitExceeded(
            f"a {message_class.__name__} of {len(body)} bytes has more than {count_max} entries, twice "
            "server.request.max-items: send fewer at a time",
            ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
        )


def parse_split(message_class: type[M], body: Buffer) -> tuple[M, list[memoryview]]:
    """The message that `body` encodes, with its payloads apart.

    In the message every `records` field that the peer sent is there but empty. The payloads come in the order of
    the fields; they are views, of `body` itself where it is large. For a class without payloads the list is empty.
    Raises `CorruptData` as `parse` does.
    """
    path = _PAYLOAD_PATHS.get(message_class.__name__)
    if path is None:
        return parse(message_class, body), []
    if len(body) >= PAYLOAD_SPLIT_MIN:
        try:
            skeleton, payloads = _cut(memoryview(body), path)
        except _Unusual:
            pass
        else:
            return parse(message_class, skeleton), payloads
    message = parse(message_class, body)
    payloads = []
    for leaf in _leaves(message, path):
        if leaf.HasField("records"):
            payloads.append(memoryview(leaf.records))
            leaf.records = b""
    return message, payloads


def serialize(message: Message, payloads: Sequence[Buffer] = ()) -> list[Buffer]:
    """The body of `message`, as buffers to send in order.

    Without payloads that is one buffer. With payloads, `message` must have exactly one empty `records` field for each
    of them, in that order; the payloads are not copied and must not change before they are sent. A message that
    lacks a required field is our own bug and raises `InternalError`.
    """
    try:
        skeleton = message.SerializeToString()
    except EncodeError as error:
        raise InternalError(f"a message to be sent is not complete: {error}") from error
    if not payloads:
        return [skeleton]
    name = type(message).__name__
    check(name in _PAYLOAD_PATHS, f"a {name} carries no payloads")
    remaining = list(reversed(payloads))
    try:
        parts, _ = _splice(memoryview(skeleton), 0, len(skeleton), _PAYLOAD_PATHS[name], remaining)
    except (_Unusual, IndexError):
        raise InternalError(f"a {name} lacks an empty 'records' field for each of {len(payloads)} payloads") from None
    check(not remaining, f"a {name} has no 'records' fields for the last {len(remaining)} of its payloads")
    return _merge_small(parts)


def sendable_text(text: str) -> str:
    """`text` as an error message may be sent: valid UTF-8, and not longer than ERROR_TEXT_CHARS_MAX."""
    return text[:ERROR_TEXT_CHARS_MAX].encode("utf-8", "replace").decode("utf-8")


def _merge_small(parts: Sequence[Buffer]) -> list[Buffer]:
    merged: list[Buffer] = []
    small = bytearray()
    for part in parts:
        if len(part) < 1024:
            small += part
            continue
        if small:
            merged.append(bytes(small))
            small = bytearray()
        merged.append(part)
    if small:
        merged.append(bytes(small))
    return merged


def _leaves(message: Any, path: tuple[int, ...]) -> Iterable[Any]:
    if len(path) == 1:
        yield message
        return
    for child in getattr(message, message.DESCRIPTOR.fields_by_number[path[0]].name):
        yield from _leaves(child, path[1:])


# --- the encoding: walk, cut, splice ---------------------------------------------------------------------------


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """The varint at `at` and the position behind it; longer ones than tags and lengths need are unusual."""
    value = shift = 0
    while at < end and shift < 35:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _Unusual


def _behind_varint(data: memoryview, at: int, end: int) -> int:
    """The position behind the varint at `at`."""
    for behind in range(at + 1, min(at + _VARINT_BYTES_MAX, end) + 1):
        if data[behind - 1] < 0x80:
            return behind
    raise _Unusual


def _write_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _next_delimited(data: memoryview, at: int, end: int, field_tag: int) -> tuple[int, int, int] | None:
    """The next field with tag `field_tag` (its start, start and end of its content); None if there is none."""
    while at < end:
        start = at
        tag, at = _varint(data, at, end)
        kind = tag & 7
        if kind == 2:
            length, at = _varint(data, at, end)
            if length > end - at:
                raise _Unusual
            if tag == field_tag:
                return start, at, at + length
            at += length
        elif kind == 0:
            at = _behind_varint(data, at, end)
        elif kind == 1:
            at += 8
        elif kind == 5:
            at += 4
        else:
            raise _Unusual
        if at > end:
            raise _Unusual
    return None


def _cut(body: memoryview, path: tuple[int, ...]) -> tuple[bytes, list[memoryview]]:
    payloads: list[memoryview] = []
    skeleton, _ = _cut_level(body, 0, len(body), path, payloads)
    return skeleton, payloads


def _cut_level(
    data: memoryview, at: int, end: int, path: tuple[int, ...], payloads: list[memoryview]
) -> tuple[bytes, int]:
    field_tag = path[0] << 3 | 2
    is_leaf = len(path) == 1
    pieces: list[Buffer] = []
    found_here = 0
    copy_start = at
    while (field := _next_delimited(data, at, end, field_tag)) is not None:
        start, content, at = field
        pieces.append(data[copy_start:start])
        copy_start = at
        if is_leaf:
            found_here += 1
            if found_here > 1:
                raise _Unusual
            payloads.append(data[content:at])
            if len(payloads) == _SAMPLE_LEAVES and at < _SAMPLE_LEAVES * _SAMPLE_BYTES_PER_LEAF:
                raise _Unusual
            pieces.append(_write_varint(field_tag) + b"\0")
        else:
            inner, _ = _cut_level(data, content, at, path[1:], payloads)
            pieces.append(_write_varint(field_tag) + _write_varint(len(inner)) + inner)
    pieces.append(data[copy_start:end])
    return b"".join(pieces), found_here


def _splice(
    data: memoryview, at: int, end: int, path: tuple[int, ...], payloads: list[Buffer]
) -> tuple[list[Buffer], int]:
    """The parts of data[at:end] with payloads put in, and their total length. Takes payloads from the list's end."""
    field_tag = path[0] << 3 | 2
    tag = _write_varint(field_tag)
    parts: list[Buffer] = []
    copy_start = at
    while (field := _next_delimited(data, at, end, field_tag)) is not None:
        start, content, at = field
        inner: list[Buffer]
        if len(path) == 1:
            if content != at:
                raise _Unusual
            payload = payloads.pop()
            inner, size = [payload], _size(payload)
        else:
            inner, size = _splice(data, content, at, path[1:], payloads)
        parts += (data[copy_start:start], tag + _write_varint(size), *inner)
        copy_start = at
    parts.append(data[copy_start:end])
    return parts, sum(map(_size, parts))


def _size(part: Buffer) -> int:
    return part.nbytes if isinstance(part, memoryview) else len(part)


# --- entries and texts -----------------------------------------------------------------------------------------


class _Layout(NamedTuple):
    """The fields of all message types of a file, for `forebay.protocol._entries`, and the number of each type."""

    fields: array[int]
    begins: array[int]
    types: dict[str, int]


@cache
def _layout(file: Any) -> _Layout:
    """The layout of the messages of a .proto file: Fluss's, or Flight SQL's."""
    descriptors = list(_with_nested(file.message_types_by_name.values()))
    types = {descriptor.full_name: number for number, descriptor in enumerate(descriptors)}
    fields, begins = array("i"), array("i", [0])
    for descriptor in descriptors:
        repeated = _repeated_fields(descriptor._concrete_class())
        for field in descriptor.fields:
            is_list = field.name in repeated
            if field.message_type is not None:
                kind = MESSAGE + types[field.message_type.full_name]
            elif field.type == field.TYPE_STRING:
                kind = TEXTS if is_list else TEXT
            elif not is_list:
                kind = PLAIN
            elif field.type == field.TYPE_BYTES:
                kind = BYTES_LIST
            elif field.type in (field.TYPE_DOUBLE, field.TYPE_FIXED64, field.TYPE_SFIXED64):
                kind = NUMBERS_64
            elif field.type in (field.TYPE_FLOAT, field.TYPE_FIXED32, field.TYPE_SFIXED32):
                kind = NUMBERS_32
            else:
                kind = NUMBERS
            fields.extend((field.number, kind))
        begins.append(len(fields))
    return _Layout(fields, begins, types)


def _with_nested(descriptors: Iterable[Any]) -> Iterator[Any]:
    for descriptor in descriptors:
        yield descriptor
        yield from _with_nested(descriptor.nested_types)


def _repeated_fields(empty: Message) -> set[str]:
    """The names of fields that are lists. Runtimes disagree on how a descriptor says so; an unset field shows it."""
    return {field.name for field in empty.DESCRIPTOR.fields if hasattr(getattr(empty, field.name), "append")}


def _are_texts_whole(message_class: type[Message], body: Buffer) -> bool:
    """Whether all texts of the message in `body` are UTF-8, including those that a later one of its field replaces."""
    layout = _layout(message_class.DESCRIPTOR.file)
    return entries(body, layout.fields, layout.begins, layout.types[message_class.DESCRIPTOR.full_name], len(body))[1]


class _TextFields(NamedTuple):
    """The fields of one message type that are texts, and those that hold messages with texts in them."""

    texts: tuple[str, ...]
    repeated_texts: tuple[str, ...]
    holders: tuple[str, ...]
    repeated_holders: tuple[str, ...]


_TEXT_FIELDS: dict[str, _TextFields] = {}


def _text_fields(message: Message) -> _TextFields:
    descriptor = message.DESCRIPTOR
    fields = _TEXT_FIELDS.get(descriptor.full_name)
    if fields is None:
        repeated = _repeated_fields(type(message)())
        texts = [f.name for f in descriptor.fields if f.type == f.TYPE_STRING]
        holders = [f.name for f in descriptor.fields if _holds_text(f.message_type, frozenset())]
        fields = _TEXT_FIELDS[descriptor.full_name] = _TextFields(
            texts=tuple(name for name in texts if name not in repeated),
            repeated_texts=tuple(name for name in texts if name in repeated),
            holders=tuple(name for name in holders if name not in repeated),
            repeated_holders=tuple(name for name in holders if name in repeated),
        )
    return fields


def _holds_text(descriptor: Any, ancestors: frozenset[str]) -> bool:
    if descriptor is None or descriptor.full_name in ancestors:
        return False
    ancestors |= {descriptor.full_name}
    return any(f.type == f.TYPE_STRING or _holds_text(f.message_type, ancestors) for f in descriptor.fields)


def _broken_text(message: Any) -> str | None:
    """The path of a text field that is not UTF-8 (protobuf shows it as bytes), or None."""
    fields = _text_fields(message)
    for name in fields.texts:
        if not isinstance(getattr(message, name), str):
            return name
    for name in fields.repeated_texts:
        if not all(isinstance(value, str) for value in getattr(message, name)):
            return name
    for name in fields.holders:
        if message.HasField(name) and (inner := _broken_text(getattr(message, name))) is not None:
            return f"{name}.{inner}"
    for name in fields.repeated_holders:
        for child in getattr(message, name):
            if (inner := _broken_text(child)) is not None:
                return f"{name}.{inner}"
    return None
