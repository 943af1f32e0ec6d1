"""Arrow arrays from NumPy arrays, and back, without importing pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def rows_without_columns(rows: int) -> pa.RecordBatch:
    """A batch with rows but no columns, for counting."""
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), rows, [None]))


def integers(array: pa.Array) -> npt.NDArray[Any]:
    """The values of an integer array without nulls, sharing its memory.

    `to_numpy` would import pandas, and so does `to_pandas_dtype` of pyarrow 23.
    """
    width = np.dtype(f"{'u' if pa.types.is_unsigned_integer(array.type) else 'i'}{array.type.bit_width // 8}")
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(0, width)
    return np.frombuffer(buffer, width, len(array), array.offset * width.itemsize)


def array_of(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """An Arrow array of numbers, sharing their memory; null where not `valid` (`pa.array` would import pandas)."""
    values = np.ascontiguousarray(values)
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [bits, pa.py_buffer(values)])
