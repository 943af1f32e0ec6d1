"""Small arrays that are made when a module is imported, without importing pandas."""

from __future__ import annotations

import itertools
import struct

import pyarrow as pa

# ---- arrays that modules are born with ------------------------------------------------------------------------------

# `pa.array` imports pandas where that is installed, which takes a fifth of a second: too long for an import.


def int8_array(*values: int) -> pa.Int8Array:
    """An int8 array of these numbers, made without pandas."""
    return pa.Array.from_buffers(pa.int8(), len(values), [None, pa.py_buffer(struct.pack(f"{len(values)}b", *values))])


def text_array(*values: str) -> pa.StringArray:
    """A string array of these texts, made without pandas."""
    texts = [value.encode() for value in values]
    ends = list(itertools.accumulate(map(len, texts)))
    offsets, data = struct.pack(f"<{len(texts) + 1}i", 0, *ends), b"".join(texts)
    return pa.Array.from_buffers(pa.string(), len(texts), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
