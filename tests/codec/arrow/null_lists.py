"""Null lists without offsets, as Arrow streams deliver them."""

from __future__ import annotations

import pyarrow as pa

_NOTHING = pa.py_buffer(b"")


def without_offsets(t: pa.DataType) -> pa.Array:
    """An array of type `t` without values, in which every list and string lacks even its first offset."""
    if pa.types.is_string(t):
        return pa.Array.from_buffers(t, 0, [None, _NOTHING, _NOTHING])
    children = [without_offsets(t.field(index).type) for index in range(t.num_fields)]
    buffers = [None] if pa.types.is_struct(t) else [None, _NOTHING]
    return pa.Array.from_buffers(t, 0, buffers if t.num_fields else [None, _NOTHING], children=children)


def one_null(t: pa.DataType) -> pa.RecordBatch:
    """A batch of one row, a null list of `t`, as it comes out of a stream."""
    offsets = pa.array([0, 0], pa.int32()).buffers()[1]
    array = pa.Array.from_buffers(pa.list_(t), 1, [pa.py_buffer(b"\0"), offsets], children=[without_offsets(t)])
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([pa.array([7], pa.int64()), array], ["id", "c"])
    with pa.ipc.new_stream(sink, batch.schema) as out:
        out.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()
