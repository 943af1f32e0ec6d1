"""The order of keys: Arrow columns as one comparable `SortKey` per row.

Paimon compares column values like Java's `Double.compare` (-0.0 before +0.0, NaN last and equal to itself), but keys
and sequence fields by `<`, for which -0.0 and +0.0 are equal (`zeros_equal`); there, too, NaN is last and a single key,
whatever its bits. Strings are compared by their UTF-8 bytes, binary values as unsigned bytes, false before true, and
nulls come first, also in descending order. Each value is encoded as an unsigned number or a byte string that sorts in
this order. Keys of up to eight bytes in total, which are most, are one uint64; others are byte strings with their first
eight bytes beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.base.errors import UnsupportedOperation
from forebay.codec.rows.floats import canonical_floats
from forebay.paimon.merge._order import SortKey, encode_parts, key_of_bytes

_FixedPart = tuple[npt.NDArray[np.uint64], int, bool]
_BytesPart = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8], bool]
_Part = _FixedPart | _BytesPart

_DECIMAL_COMPACT_PRECISION_MAX = 18


def sort_key(columns: Sequence[pa.Array], *, descending: bool = False, zeros_equal: bool = False) -> SortKey:
    """The keys of rows, comparing the columns in order. Raises `UnsupportedOperation` for nested types.

    `zeros_equal`: -0.0 and 0.0 are equal, as in the key of a table. Keys are comparable only if they were created in
    one call, or from columns that either all have nulls or all have none.
    """
    rows = len(columns[0])
    parts: list[_Part] = []
    for column in columns:
        parts += _parts(canonical_floats(column) if zeros_equal else column, descending)
    if len(parts) == 1 and not isinstance(parts[0][1], int) and not descending:
        return key_of_bytes(parts[0][0].astype(np.int64, copy=False), parts[0][1])
    fixed = [part for part in parts if isinstance(part[1], int)]
    if len(fixed) == len(parts) and sum(_width(part) for part in fixed) <= 8:
        return SortKey(_packed(fixed))
    return encode_parts(parts, rows)


def key_bytes(columns: Sequence[pa.Array], rows: int) -> pa.LargeBinaryArray:
    """The keys of the first `rows` rows as byte strings, which sort (as unsigned bytes) like the rows.

    -0.0 and 0.0 are equal. The restriction of `sort_key` about nulls applies here, too.
    """
    key = sort_key(columns, zeros_equal=True)
    if key.offsets is None or key.data is None:
        return words_as_bytes(key.prefix[:rows])
    offsets = key.offsets[: rows + 1]
    data = key.data[offsets[0] : offsets[-1]]
    borders = pa.py_buffer(np.ascontiguousarray(offsets - offsets[0]))
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), rows, [None, borders, pa.py_buffer(np.ascontiguousarray(data))]
    )


def words_as_bytes(words: npt.NDArray[np.uint64]) -> pa.LargeBinaryArray:
    """Numbers as eight big-endian bytes each."""
    data = np.ascontiguousarray(words.astype(">u8"))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(words), [None, pa.py_buffer(data)]).cast(
        pa.large_binary()
    )


def concat_keys(parts: Sequence[SortKey]) -> SortKey:
    """The keys of all parts, concatenated; all must have the same form."""
    if len(parts) == 1:
        return parts[0]
    prefix = np.concatenate([part.prefix for part in parts])
    offsets: list[npt.NDArray[np.int64]] = []
    data: list[npt.NDArray[np.uint8]] = []
    base = 0
    for part in parts:
        if part.offsets is None or part.data is None:
            return SortKey(prefix)
        first, last = int(part.offsets[0]), int(part.offsets[-1])
        offsets.append(part.offsets[:-1] + (base - first))
        data.append(part.data[first:last])
        base += last - first
    offsets.append(np.array([base], np.int64))
    return SortKey(prefix, np.concatenate(offsets), np.concatenate(data))


def is_sortable(data_type: pa.DataType) -> bool:
    """Whether columns of this Arrow type can be keys and sequence fields, and have a maximum."""
    return not (pa.types.is_nested(data_type) or pa.types.is_null(data_type))


def _width(part: _Part) -> int:
    return part[1] if isinstance(part[1], int) else 0


def _packed(parts: Sequence[_Part]) -> npt.NDArray[np.uint64]:
    packed: npt.NDArray[np.uint64] | None = None
    for part in parts:
        width = _width(part)
        values = part[0].astype(np.uint64, copy=False)
        if part[2]:
            values = ~values & np.uint64((1 << 8 * width) - 1)
        packed = values if packed is None else (packed << np.uint64(8 * width)) | values
    if packed is None:
        raise UnsupportedOperation("a key needs at least one column")
    return np.ascontiguousarray(packed)


def _parts(column: pa.Array, descending: bool) -> list[_Part]:
    """The parts of one column; if there are nulls, the first part flags them."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count == 0:
        return _value_parts(column, descending)
    present = column.is_valid()
    flags = flag_values(present).astype(np.uint64)
    parts: list[_Part] = [(flags, 1, False)]
    for part in _value_parts(column, descending):
        if isinstance(part[1], int):
            parts.append((part[0] * flags, part[1], part[2]))
        else:
            parts.append(part)
    return parts


def _value_parts(column: pa.Array, descending: bool) -> list[_Part]:
    t = column.type
    if _is_bytes(t):
        offsets, data = _bytes_of(column)
        return [(offsets, data, descending)]
    if pa.types.is_boolean(t):
        return [(flag_values(column).astype(np.uint64), 1, descending)]
    if pa.types.is_decimal(t):
        return [(values, 8, descending) for values in _decimal_values(column)]
    if pa.types.is_floating(t) and t.bit_width in (32, 64):
        return [(_float_values(column), t.bit_width // 8, descending)]
    if pa.types.is_signed_integer(t) or pa.types.is_temporal(t):
        width = t.bit_width // 8
        signed = fixed_values(column, np.dtype(f"i{width}"))
        unsigned = signed.view(f"u{width}") ^ np.dtype(f"u{width}").type(1 << (8 * width - 1))
        return [(unsigned.astype(np.uint64), width, descending)]
    raise UnsupportedOperation(
        f"columns of type {t} have no order, so they cannot be keys, sequence fields or extremes"
    )


def fixed_values(column: pa.Array, dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
    """The values of a fixed-width column as stored in memory; undefined where the column is null."""
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column), dtype)
    return np.frombuffer(data, dtype)[column.offset : column.offset + len(column)]


def flag_values(column: pa.BooleanArray) -> npt.NDArray[np.uint8]:
    """Booleans as 0 and 1."""
    whole = column.cast(pa.uint8())
    return fixed_values(whole, np.dtype(np.uint8)).astype(np.uint8, copy=False)


def validity(column: pa.Array) -> npt.NDArray[np.uint8] | None:
    """1 for each value, 0 for each null; None if there are no nulls."""
    return None if column.null_count == 0 else flag_values(column.is_valid())


def decimal_words(column: pa.Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """The low and high half of the unscaled values of a decimal column."""
    if not pa.types.is_decimal128(column.type):
        column = column.cast(pa.decimal128(column.type.precision, column.type.scale))
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column), np.uint64), np.zeros(len(column), np.int64)
    words = np.frombuffer(data, np.uint64)[2 * column.offset : 2 * (column.offset + len(column))]
    return np.ascontiguousarray(words[0::2]), np.ascontiguousarray(words[1::2]).view(np.int64)


def _decimal_values(column: pa.Array) -> list[npt.NDArray[np.uint64]]:
    low, high = decimal_words(column)
    sign = np.uint64(1 << 63)
    if column.type.precision <= _DECIMAL_COMPACT_PRECISION_MAX:
        return [low ^ sign]
    return [high.view(np.uint64) ^ sign, low]


def _float_values(column: pa.Array) -> npt.NDArray[np.uint64]:
    bits = column.type.bit_width
    values = fixed_values(column, np.dtype(f"f{bits // 8}"))
    canonical = np.where(np.isnan(values), np.abs(values.dtype.type(np.nan)), values)
    raw = canonical.view(f"u{bits // 8}")
    sign = raw.dtype.type(1 << (bits - 1))
    ordered = np.where(raw & sign, ~raw, raw | sign)
    return ordered.astype(np.uint64)


def _is_bytes(t: pa.DataType) -> bool:
    return (
        pa.types.is_string(t)
        or pa.types.is_binary(t)
        or pa.types.is_large_string(t)
        or pa.types.is_large_binary(t)
        or pa.types.is_string_view(t)
        or pa.types.is_binary_view(t)
        or pa.types.is_fixed_size_binary(t)
    ) and not pa.types.is_decimal(t)


def _bytes_of(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """The offsets and bytes of a string or binary column; nulls are empty."""
    t = column.type
    if pa.types.is_string_view(t) or pa.types.is_binary_view(t) or pa.types.is_fixed_size_binary(t):
        column = column.cast(pa.large_binary())
        t = column.type
    if column.null_count:
        column = column.fill_null("" if pa.types.is_string(t) or pa.types.is_large_string(t) else b"")
    large = pa.types.is_large_string(t) or pa.types.is_large_binary(t)
    _, offsets, data = column.buffers()
    dtype = np.dtype(np.int64 if large else np.int32)
    if offsets is None or len(column) == 0:
        return np.zeros(len(column) + 1, np.int64), np.empty(0, np.uint8)
    ends = np.frombuffer(offsets, dtype)[column.offset : column.offset + len(column) + 1]
    data = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return ends.astype(np.int64), data
