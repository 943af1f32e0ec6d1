"""Arrow data whose empty lists and strings have no offsets, made whole.

Writers may leave the offsets of an array without values out, where others store one zero. Java's Arrow does so in
older releases (Spark 4.0), and pyarrow takes such data for valid. But it then reads an offset that is not there, in
`RecordBatch.nbytes` for one, and the process dies if that is the offset of a list in a list. So data from outside
passes through here before anything looks into it.
"""

from __future__ import annotations

import pyarrow as pa


def with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` itself, or, where offsets are missing inside a nested column, with a copy of this column."""
    columns = batch.columns
    lacking = [index for index, column in enumerate(columns) if _lacks_offsets(column)]
    if not lacking:
        return batch
    for index in lacking:
        columns[index] = pa.concat_arrays([columns[index]])  # concatenation writes all offsets
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _lacks_offsets(array: pa.Array) -> bool:
    """Whether a list, map or string inside the nested `array` has no value and no offset either."""
    return any(_is_bare(child) or _lacks_offsets(child) for child in _children(array))


def _children(array: pa.Array) -> list[pa.Array]:
    t = array.type
    if pa.types.is_struct(t):
        return [array.field(index) for index in range(t.num_fields)]
    if pa.types.is_map(t):
        return [array.keys, array.items]
    if pa.types.is_list(t) or pa.types.is_large_list(t):
        return [array.values]
    return []


def _is_bare(array: pa.Array) -> bool:
    t = array.type
    if len(array) or not (
        pa.types.is_list(t)
        or pa.types.is_large_list(t)
        or pa.types.is_map(t)
        or pa.types.is_string(t)
        or pa.types.is_binary(t)
        or pa.types.is_large_string(t)
        or pa.types.is_large_binary(t)
    ):
        return False
    offsets = array.buffers()[1]
    return offsets is None or offsets.size == 0
