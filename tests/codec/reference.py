"""The row formats in plain Python: slow, obvious, and the oracle that the compiled kernels are tested against.

Values are those of `pa.Array.to_pylist()`, except that DATE, TIME and timestamps are given as integers in the unit of
the storage type (days; s, ms, us or ns), so that nothing is rounded. Maps are lists of (key, value) pairs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from forebay.codec.rows.row_format import RowFormat
from forebay.codec.storage_values import big_endian, split_timestamp, time_millis, unscaled
from forebay.metadata.types import DataType, TypeRoot, child

_FIXED = {
    TypeRoot.BOOLEAN: "<b",
    TypeRoot.TINYINT: "<b",
    TypeRoot.SMALLINT: "<h",
    TypeRoot.FLOAT: "<f",
    TypeRoot.DOUBLE: "<d",
    TypeRoot.INT: "<i",
    TypeRoot.DATE: "<i",
    TypeRoot.TIME: "<i",
    TypeRoot.BIGINT: "<q",
}
_TIMESTAMPS = (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)
_TEXT = (TypeRoot.STRING, TypeRoot.CHAR)
_BINARY = (TypeRoot.BYTES, TypeRoot.BINARY)
_NESTED = (TypeRoot.ARRAY, TypeRoot.MAP, TypeRoot.ROW)


def varint(value: int, bits: int) -> bytes:
    """Unsigned LEB128 of the two's complement of `value` at `bits` bits."""
    value &= (1 << bits) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_row(types: Sequence[DataType], values: Sequence[Any], row_format: RowFormat) -> bytes:
    """One row in COMPACTED, INDEXED or KEY format."""
    nulls = bytearray(0 if row_format is RowFormat.KEY else (len(types) + 7) // 8)
    lengths: list[int] = []
    body = bytearray()
    for position, (t, value) in enumerate(zip(types, values, strict=True)):
        if value is None:
            if row_format is RowFormat.KEY:
                raise ValueError("a key column is null")
            nulls[position // 8] |= 1 << position % 8
        elif row_format is RowFormat.INDEXED:
            body += _indexed_field(t, value, lengths)
        else:
            body += _compacted_field(t, value, row_format)
    if row_format is not RowFormat.INDEXED:
        return bytes(nulls + body)
    slots = sum(_in_length_list(t) for t in types)
    return bytes(nulls) + struct.pack(f"<{slots}i", *lengths, *[0] * (slots - len(lengths))) + bytes(body)


def _in_length_list(t: DataType) -> bool:
    big_decimal = t.root is TypeRoot.DECIMAL and (t.precision or 0) > 18
    return t.root in (TypeRoot.STRING, TypeRoot.BYTES, *_NESTED) or big_decimal


def _raw(t: DataType, value: Any, row_format: RowFormat) -> bytes:
    """A variable-length value without its length."""
    if t.root in _TEXT:
        return str(value).encode()
    if t.root in _BINARY:
        return bytes(value)
    if t.root is TypeRoot.DECIMAL:
        return big_endian(unscaled(t, value))
    if t.root is TypeRoot.ARRAY:
        return encode_array(child(t.element), value, row_format)
    if t.root is TypeRoot.MAP:
        keys = encode_array(child(t.key), [k for k, _ in value], row_format)
        return struct.pack("<i", len(keys)) + keys + encode_array(child(t.value), [v for _, v in value], row_format)
    return encode_row([f.data_type for f in t.fields], [value[f.name] for f in t.fields], row_format)


def _compacted_field(t: DataType, value: Any, row_format: RowFormat) -> bytes:
    if t.root in (TypeRoot.INT, TypeRoot.DATE):
        return varint(value, 32)
    if t.root is TypeRoot.TIME:
        return varint(time_millis(t, value), 32)
    if t.root is TypeRoot.BIGINT:
        return varint(value, 64)
    if t.root in _FIXED:
        return struct.pack(_FIXED[t.root], value)
    if t.root in _TIMESTAMPS:
        millis, nanos = split_timestamp(t, value)
        return varint(millis, 64) + (varint(nanos, 32) if (t.precision or 0) > 3 else b"")
    if t.root is TypeRoot.DECIMAL and (t.precision or 0) <= 18:
        return varint(unscaled(t, value), 64)
    raw = _raw(t, value, row_format)
    return varint(len(raw), 32) + raw


def _indexed_field(t: DataType, value: Any, lengths: list[int]) -> bytes:
    if t.root is TypeRoot.TIME:
        return struct.pack("<i", time_millis(t, value))
    if t.root in _FIXED:
        return struct.pack(_FIXED[t.root], value)
    if t.root in _TIMESTAMPS:
        millis, nanos = split_timestamp(t, value)
        return struct.pack("<q", millis) + (struct.pack("<i", nanos) if (t.precision or 0) > 3 else b"")
    if t.root is TypeRoot.DECIMAL and (t.precision or 0) <= 18:
        return struct.pack("<q", unscaled(t, value))
    raw = _raw(t, value, RowFormat.INDEXED)
    if t.root in (TypeRoot.CHAR, TypeRoot.BINARY):
        length = t.length or 0
        if len(raw) > length:
            raise ValueError("a CHAR or BINARY value is longer than its column")
        return raw.ljust(length, b"\0")
    lengths.append(len(raw))
    return raw


_ELEMENT_WIDTH = {
    TypeRoot.BOOLEAN: 1,
    TypeRoot.TINYINT: 1,
    TypeRoot.SMALLINT: 2,
    TypeRoot.INT: 4,
    TypeRoot.FLOAT: 4,
    TypeRoot.DATE: 4,
    TypeRoot.TIME: 4,
}


def encode_array(element: DataType, values: Sequence[Any], row_format: RowFormat) -> bytes:
    """A BinaryArray: count, null bits in whole words, elements of fixed width, then whatever does not fit there."""
    width = _ELEMENT_WIDTH.get(element.root, 8)
    header = 4 + (len(values) + 31) // 32 * 4
    fixed = (header + len(values) * width + 7) // 8 * 8
    out = bytearray(fixed)
    struct.pack_into("<i", out, 0, len(values))
    for i, value in enumerate(values):
        if value is None:
            out[4 + i // 8] |= 1 << i % 8
        else:
            slot = _element_slot(element, value, out, row_format)
            out[header + i * width : header + (i + 1) * width] = slot
    return bytes(out)


def _element_slot(t: DataType, value: Any, out: bytearray, row_format: RowFormat) -> bytes:
    """The slot of one element; what does not fit into it is appended to `out`, padded to eight bytes."""
    if t.root is TypeRoot.TIME:
        return struct.pack("<i", time_millis(t, value))
    if t.root in _FIXED:
        return struct.pack(_FIXED[t.root], value)
    if t.root is TypeRoot.DECIMAL and (t.precision or 0) <= 18:
        return struct.pack("<q", unscaled(t, value))
    start = len(out)
    if t.root in _TIMESTAMPS:
        millis, nanos = split_timestamp(t, value)
        if (t.precision or 0) <= 3:
            return struct.pack("<q", millis)
        out += struct.pack("<q", millis)
        return struct.pack("<Q", start << 32 | nanos)
    raw = _raw(t, value, row_format)
    if t.root in (*_TEXT, *_BINARY) and len(raw) <= 7:
        return raw.ljust(7, b"\0") + bytes([0x80 | len(raw)])
    out += raw.ljust(16, b"\0") if t.root is TypeRoot.DECIMAL else raw + bytes(-len(raw) % 8)
    return struct.pack("<Q", start << 32 | len(raw))
