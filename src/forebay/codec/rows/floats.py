"""Floating-point numbers in keys: -0.0 is 0.0, and there is one NaN.

SQL, Spark and the lake take the two zeros for equal, and all NaNs. Key bytes are compared as bytes, so keys hold one
pattern for each: 0.0, and the NaN that Java writes (`Double.NaN`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def canonical_floats(column: pa.Array) -> pa.Array:
    """`column` with 0.0 for -0.0 and one NaN for all, if it holds FLOAT or DOUBLE; else `column`."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not pa.types.is_floating(column.type) or column.type.bit_width < 32:
        return column
    values = column.to_numpy(zero_copy_only=False)  # nulls are NaN in it
    plain = np.where(np.isnan(values), values.dtype.type(np.nan), values) + values.dtype.type(0.0)
    return pa.array(plain, mask=None if column.null_count == 0 else column.is_null().to_numpy(zero_copy_only=False))
