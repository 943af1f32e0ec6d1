"""Aligned rows in plain Python: rows whose fields lie in 8-byte slots, as in batch statistics and Paimon keys.

    row:    1 byte row kind (0), null bits from bit 8 on, padded to whole words; one 8-byte slot a field; variable part
    array:  int32 count, null bits in whole 4-byte words, elements of fixed width, padding to 8; variable part
    map:    int32 bytes of the key array, key array, value array

A number lies in its slot. Text and bytes up to 7 bytes lie in the slot too, with 0x80 + length in its last byte;
longer ones lie in the variable part, padded to 8 bytes, and the slot holds offset << 32 | length, counted from the
beginning of the row or array. Decimals of more than 18 digits take 16 bytes there, timestamps finer than milliseconds
8 bytes (milliseconds), with the nanoseconds of the millisecond in place of a length.

Values are what `to_pylist()` returns, but dates, times and timestamps are integers in the unit of the storage type, and
maps are lists of pairs.

The layout is Flink's and Paimon's BinaryRow, which Fluss calls AlignedRow. Hot paths use the kernels of
codec.rows.row_codec (RowFormat.ALIGNED); this module is their oracle, and reads the single rows of statistics.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest
from forebay.codec.arrow.arrow_types import time_unit
from forebay.codec.storage_values import DECIMAL_CONTEXT, big_endian, split_timestamp, time_millis, unscaled
from forebay.metadata.types import (
    DECIMAL_COMPACT_PRECISION_MAX,
    TIMESTAMP_COMPACT_PRECISION_MAX,
    DataType,
    TypeRoot,
    child,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

INLINE_BYTES_MAX = 7
"""Text and bytes up to this length lie in their slot."""

_DECIMAL_BYTES = 16
_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
PLAIN_SLOTS = {
    TypeRoot.BOOLEAN: struct.Struct("<?"),
    TypeRoot.TINYINT: struct.Struct("<b"),
    TypeRoot.SMALLINT: struct.Struct("<h"),
    TypeRoot.INT: struct.Struct("<i"),
    TypeRoot.BIGINT: struct.Struct("<q"),
    TypeRoot.FLOAT: struct.Struct("<f"),
    TypeRoot.DOUBLE: struct.Struct("<d"),
    TypeRoot.DATE: struct.Struct("<i"),
}
"""How the types are packed that lie in their slots as they are."""

_INT32 = struct.Struct("<i")
_INT64 = struct.Struct("<q")
_SLOT = struct.Struct("<Q")
_TEXT = (TypeRoot.STRING, TypeRoot.CHAR)
_BYTES = (TypeRoot.BYTES, TypeRoot.BINARY)
_TIMESTAMPS = (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)


def null_bits_size(field_count: int) -> int:
    """Bytes before the first slot of a row: row kind and null bits."""
    return (field_count + 8 + 63) // 64 * 8


def element_width(t: DataType) -> int:
    """Bytes of an element of an array: its own width where that is fixed and below 8, else a slot."""
    if t.root is TypeRoot.TIME:
        return _INT32.size
    return PLAIN_SLOTS[t.root].size if t.root in PLAIN_SLOTS else 8


# ---- encoding -------------------------------------------------------------------------------------------------------


def encode_row(types: Sequence[DataType], values: Sequence[Any]) -> bytes:
    """The aligned row of `values`, one of each of `types`; None is null.

    Raises `InvalidRequest` naming the field for a value that its type cannot hold.
    """
    head = null_bits_size(len(types))
    out = bytearray(head + 8 * len(types))
    for i, (t, value) in enumerate(zip(types, values, strict=True)):
        if value is None:
            out[(i + 8) // 8] |= 1 << i % 8
            continue
        try:
            slot = _slot(t, value, out)
        except (struct.error, TypeError, ValueError, OverflowError, AttributeError) as e:
            raise InvalidRequest(f"field {i}: {value!r} is not a {t}: {e}") from e
        out[head + 8 * i : head + 8 * i + len(slot)] = slot
    return bytes(out)


def encode_array(element: DataType, values: Sequence[Any]) -> bytes:
    """The array section of `values` of type `element`."""
    width = element_width(element)
    head = 4 + (len(values) + 31) // 32 * 4
    out = bytearray((head + width * len(values) + 7) // 8 * 8)
    _INT32.pack_into(out, 0, len(values))
    for i, value in enumerate(values):
        if value is None:
            out[4 + i // 8] |= 1 << i % 8
            continue
        slot = _slot(element, _one_nan(value), out)
        out[head + width * i : head + width * i + len(slot)] = slot
    return bytes(out)


def _one_nan(value: Any) -> Any:
    """Java writes every NaN in an array as the same bits (not so in a row)."""
    return float("nan") if isinstance(value, float) and value != value else value


def _slot(t: DataType, value: Any, out: bytearray) -> bytes:
    """The slot of a value; what does not fit into it is appended to `out`."""
    if t.root is TypeRoot.TIME:
        return _INT32.pack(time_millis(t, value))
    if t.root in PLAIN_SLOTS:
        return PLAIN_SLOTS[t.root].pack(value)
    start = len(out)
    if t.root in _TIMESTAMPS:
        millis, nanos = split_timestamp(t, value)
        if (t.precision or 0) <= TIMESTAMP_COMPACT_PRECISION_MAX:
            return _INT64.pack(millis)
        out += _INT64.pack(millis)
        return _SLOT.pack(start << 32 | nanos)
    if t.root is TypeRoot.DECIMAL:
        if (t.precision or 0) <= DECIMAL_COMPACT_PRECISION_MAX:
            return _INT64.pack(unscaled(t, value))
        raw = big_endian(unscaled(t, value))
        out += raw.ljust(_DECIMAL_BYTES, b"\0")
        return _SLOT.pack(start << 32 | len(raw))
    raw = _section(t, value)
    if t.root in (*_TEXT, *_BYTES) and len(raw) <= INLINE_BYTES_MAX:
        return raw.ljust(INLINE_BYTES_MAX, b"\0") + bytes([0x80 | len(raw)])
    out += raw + bytes(-len(raw) % 8)
    return _SLOT.pack(start << 32 | len(raw))


def _section(t: DataType, value: Any) -> bytes:
    """The bytes of a value of variable length."""
    if t.root in _TEXT:
        return str(value).encode()
    if t.root in _BYTES:
        return bytes(value)
    if t.root is TypeRoot.ARRAY:
        return encode_array(child(t.element), value)
    if t.root is TypeRoot.MAP:
        keys = encode_array(child(t.key), [key for key, _ in value])
        return _INT32.pack(len(keys)) + keys + encode_array(child(t.value), [item for _, item in value])
    return encode_row([f.data_type for f in t.fields], [value[f.name] for f in t.fields])


# ---- decoding -------------------------------------------------------------------------------------------------------


class _Budget:
    """Bytes of sections that may still be visited.

    Honest values visit each byte once for each level of nesting; a liar could point many slots at the same section.
    """

    __slots__ = ("left",)

    def __init__(self, types: Sequence[DataType], size: int) -> None:
        self.left = size * max((_depth(t) for t in types), default=1)

    def take(self, size: int) -> None:
        self.left -= size
        _require(self.left >= 0, "nested values overlap")


def _depth(t: DataType) -> int:
    return 1 + max((_depth(inner) for inner in t.children()), default=0) + (t.root is TypeRoot.MAP)


def decode_row(types: Sequence[DataType], data: Buffer) -> list[Any]:
    """The values of the aligned row that fills `data`. Raises `CorruptData` for bytes that are no such row."""
    view = memoryview(data).cast("B")
    return _row(types, view, _Budget(types, len(view)))


def slot_reader(t: DataType) -> Callable[[memoryview, int], Any]:
    """A function of (row, where a slot begins in it) that reads one value of type `t`, which is not nested.

    The slot must lie inside the row, and the value not be null; the rest is checked (`CorruptData`).
    """
    if t.is_nested:
        raise InvalidRequest(f"a {t.root.name} cannot be read alone")
    return lambda view, at: _value(t, view, at, _Budget([], len(view)))


def _row(types: Sequence[DataType], view: memoryview, budget: _Budget) -> list[Any]:
    head = null_bits_size(len(types))
    _require(len(view) >= head + 8 * len(types), f"{len(view)} bytes are too few for {len(types)} fields")
    return [
        None if view[(i + 8) // 8] >> i % 8 & 1 else _value(t, view, head + 8 * i, budget) for i, t in enumerate(types)
    ]


def _array(element: DataType, view: memoryview, budget: _Budget) -> list[Any]:
    _require(len(view) >= 4, "an array without a count")
    count = _INT32.unpack_from(view)[0]
    width = element_width(element)
    head = 4 + (count + 31) // 32 * 4
    _require(count >= 0 and head + width * count <= len(view), f"an array of {count} elements in {len(view)} bytes")
    return [
        None if view[4 + i // 8] >> i % 8 & 1 else _value(element, view, head + width * i, budget) for i in range(count)
    ]


def _value(t: DataType, view: memoryview, at: int, budget: _Budget) -> Any:
    """The value whose slot lies at `at`; offsets in it count from the beginning of `view`."""
    if t.root is TypeRoot.TIME:
        return _INT32.unpack_from(view, at)[0] * _TICKS[time_unit(t.precision)] // 1_000
    if t.root in PLAIN_SLOTS:
        return PLAIN_SLOTS[t.root].unpack_from(view, at)[0]
    slot = _SLOT.unpack_from(view, at)[0]
    if t.root in _TIMESTAMPS:
        return _timestamp(t, slot, view)
    if t.root is TypeRoot.DECIMAL:
        return _decimal(t, slot, view)
    inline = t.root in (*_TEXT, *_BYTES) and slot >> 63
    size = slot >> 56 & 0x7F if inline else slot & 0xFFFFFFFF
    start = at if inline else slot >> 32
    _require(size <= INLINE_BYTES_MAX or not inline, f"{size} bytes inside a slot")
    _require(start + size <= len(view), f"{size} bytes at {start} of {len(view)}")
    budget.take(size)
    section = view[start : start + size]
    if t.root in _BYTES:
        return bytes(section)
    if t.root in _TEXT:
        try:
            return str(section, "utf-8")
        except UnicodeDecodeError as e:
            raise _corrupt(f"text that is not UTF-8: {e}") from e
    if t.root is TypeRoot.ARRAY:
        return _array(child(t.element), section, budget)
    if t.root is TypeRoot.MAP:
        return _map(t, section, budget)
    values = _row([f.data_type for f in t.fields], section, budget)
    return {f.name: value for f, value in zip(t.fields, values, strict=True)}


def _timestamp(t: DataType, slot: int, view: memoryview) -> int:
    """A timestamp in the unit of its storage type."""
    nanos = 0
    if (t.precision or 0) <= TIMESTAMP_COMPACT_PRECISION_MAX:
        millis = slot - (slot >> 63 << 64)
    else:
        start, nanos = slot >> 32, slot & 0xFFFFFFFF
        _require(start + 8 <= len(view) and nanos < 1_000_000, f"a timestamp at {start} of {len(view)}")
        millis = _INT64.unpack_from(view, start)[0]
    ticks = _TICKS[time_unit(t.precision)]
    return (millis * 1_000_000 + nanos) * ticks // 1_000_000_000


def _decimal(t: DataType, slot: int, view: memoryview) -> Decimal:
    if (t.precision or 0) <= DECIMAL_COMPACT_PRECISION_MAX:
        number = slot - (slot >> 63 << 64)
    else:
        start, size = slot >> 32, slot & 0xFFFFFFFF
        _require(1 <= size <= _DECIMAL_BYTES and start + size <= len(view), f"a decimal at {start} of {len(view)}")
        number = int.from_bytes(view[start : start + size], "big", signed=True)
    return Decimal(number).scaleb(-(t.scale or 0), DECIMAL_CONTEXT)


def _map(t: DataType, section: memoryview, budget: _Budget) -> list[tuple[Any, Any]]:
    _require(len(section) >= 4, "a map without a length")
    key_bytes = _INT32.unpack_from(section)[0]
    _require(0 <= key_bytes <= len(section) - 4, f"a map with {key_bytes} bytes of keys")
    keys = _array(child(t.key), section[4 : 4 + key_bytes], budget)
    items = _array(child(t.value), section[4 + key_bytes :], budget)
    _require(len(keys) == len(items), f"a map of {len(keys)} keys and {len(items)} values")
    return list(zip(keys, items, strict=True))


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise _corrupt(what)


def _corrupt(what: str) -> CorruptData:
    return CorruptData(f"an aligned row is malformed: {what}", ErrorCode.CORRUPT_RECORD_EXCEPTION)
