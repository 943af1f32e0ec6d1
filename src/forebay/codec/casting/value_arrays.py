"""Arrow arrays of Python values, made without pandas: `pa.array` and `pa.scalar` import it, which takes seconds.

The values are those that columns have (`forebay.codec.casting.literals`): bool, int, float, str, bytes, Decimal, and
integers for dates, times and timestamps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.codec.storage_values import DECIMAL_CONTEXT

_is = pa.types
_OFFSET_MAX = 2**31 - 1
_DECIMAL_BYTES = 16


def array_of_column_values(values: Sequence[Any], t: pa.DataType) -> pa.Array:
    """Column values as an array of type `t`, which is one of `arrow_type`, not nested; None is null.

    Raises `OverflowError`, `ValueError` or `TypeError` for a value that `t` does not hold.
    """
    for matches, buffers_of in _BUFFERS:
        if matches(t):
            validity, nulls = validity_of_values(values)
            return pa.Array.from_buffers(t, len(values), [validity, *buffers_of(values, t)], nulls)
    return pa.array(values, t)


def validity_of_values(values: Sequence[Any]) -> tuple[pa.Buffer | None, int]:
    """The validity bits of values, None if there are no nulls, and the number of nulls."""
    nulls = sum(value is None for value in values)
    if not nulls:
        return None, 0
    return _bits(value is not None for value in values), nulls


def _bits(flags: Any) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.fromiter(flags, np.bool_), bitorder="little"))


def _booleans(values: Sequence[Any], t: pa.DataType) -> list[pa.Buffer]:
    return [_bits(bool(value) for value in values)]


def _numbers(values: Sequence[Any], t: pa.DataType) -> list[pa.Buffer]:
    if _is.is_floating(t):
        doubles = np.fromiter((0.0 if value is None else value for value in values), np.float64, len(values))
        with np.errstate(over="ignore"):
            return [pa.py_buffer(doubles.astype(f"f{t.bit_width // 8}"))]
    width = np.dtype(f"i{t.bit_width // 8}")
    return [pa.py_buffer(np.fromiter((0 if value is None else value for value in values), width, len(values)))]


def _texts(values: Sequence[Any], t: pa.DataType) -> list[pa.Buffer]:
    return _binaries([None if value is None else value.encode() for value in values], t)


def _binaries(values: Sequence[Any], t: pa.DataType) -> list[pa.Buffer]:
    ends = np.fromiter(accumulate((0 if value is None else len(value) for value in values), initial=0), np.int64)
    if ends[-1] > _OFFSET_MAX:
        raise OverflowError("more than 2 GiB of values in one batch")
    data = b"".join(value for value in values if value is not None)
    return [pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]


def _fixed(values: Sequence[Any], t: pa.DataType) -> list[pa.Buffer]:
    null = bytes(t.byte_width)
    wrong = next((value for value in values if value is not None and len(value) != t.byte_width), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r} has {len(wrong)} bytes, not {t.byte_width}")
    return [pa.py_buffer(b"".join(null if value is None else value for value in values))]


def _decimals(values: Sequence[Any], t: pa.DataType) -> list[pa.Buffer]:
    def unscaled(value: Any) -> bytes:
        number = 0 if value is None else int(Decimal(value).scaleb(t.scale, DECIMAL_CONTEXT))
        if abs(number) >= 10**t.precision:
            raise OverflowError(f"{value} has more than {t.precision} digits")
        return number.to_bytes(_DECIMAL_BYTES, "little", signed=True)

    return [pa.py_buffer(b"".join(map(unscaled, values)))]


_BUFFERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Sequence[Any], pa.DataType], list[pa.Buffer]]], ...] = (
    (_is.is_boolean, _booleans),
    (lambda t: _is.is_signed_integer(t) or _is.is_float32(t) or _is.is_float64(t), _numbers),
    (lambda t: _is.is_date32(t) or _is.is_time(t) or _is.is_timestamp(t), _numbers),
    (_is.is_string, _texts),
    (_is.is_binary, _binaries),
    (_is.is_fixed_size_binary, _fixed),
    (_is.is_decimal128, _decimals),
)
