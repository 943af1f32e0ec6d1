"""Arrow arrays without what only some of Arrow's own functions take: encodings, and views of text, bytes and lists.

Polars makes views and dictionaries of views, pandas and DuckDB dictionaries. For views, `take`, `filter` and decoding
have no kernels.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_is = pa.types


def decoded(array: pa.Array) -> pa.Array:
    """`array` without an encoding (dictionary, run ends, extension type) around its values.

    Values of the extension type `arrow.bool8` become booleans; those of others are what Arrow stores for them.
    """
    t = array.type
    if isinstance(array, pa.ExtensionArray):
        is_boolean = getattr(t, "extension_name", "") == "arrow.bool8"
        return pc.not_equal(array.storage, pa.scalar(0, pa.int8())) if is_boolean else decoded(array.storage)
    if _is.is_dictionary(t):
        return plain(array.dictionary).take(array.indices)
    return _run_ends_decoded(array) if _is.is_run_end_encoded(t) else array


def plain(array: pa.Array) -> pa.Array:
    """`array` without encodings and views, at any depth; the same object if it has none."""
    t = array.type
    if is_plain(t):
        return array
    if isinstance(array, pa.ExtensionArray) or _is.is_dictionary(t) or _is.is_run_end_encoded(t):
        return plain(decoded(array))
    if _is.is_string_view(t) or _is.is_binary_view(t):
        return without_view(array, pa.large_string() if _is.is_string_view(t) else pa.large_binary())
    if _is.is_struct(t):
        children = [plain(array.field(i)) for i in range(t.num_fields)]
        fields = [t.field(i).with_type(child.type) for i, child in enumerate(children)]
        mask = pc.is_null(array) if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    if _is.is_map(t):
        return _plain_map(array)
    return _list_of(array, t.value_field, plain(pc.list_flatten(array)))


def takeable(table: pa.Table) -> pa.Table:
    """`table` with columns that `take` and `filter` work on: dictionaries stay, other encodings and views do not."""
    for position, field in enumerate(table.schema):
        if not is_plain(field.type) and not _is.is_dictionary(field.type):
            chunks = [plain(chunk) for chunk in table.column(position).chunks]
            column = pa.chunked_array(chunks, None if chunks else plain(pa.nulls(0, field.type)).type)
            table = table.set_column(position, field.with_type(column.type), column)
    return table


def without_view(array: pa.Array, target: pa.DataType) -> pa.Array:
    """A view of text or bytes as an array of type `target`."""
    try:
        return array.cast(target)
    except pa.ArrowNotImplementedError:  # older versions of pyarrow
        return pa.array(array.to_pylist(), target)


def _plain_map(array: pa.MapArray) -> pa.Array:
    t = array.type
    keys, items = plain(array.keys), plain(array.items)
    kind = pa.map_(t.key_field.with_type(keys.type), t.item_field.with_type(items.type))
    entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, array.offset, [entries])


def _list_of(array: pa.Array, field: pa.Field, values: pa.Array) -> pa.Array:
    """The lists of `array`, whose flattened values are `values`."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    validity = pc.is_valid(array).buffers()[1] if array.null_count else None
    kind = pa.large_list(field.with_type(values.type))
    return pa.Array.from_buffers(kind, len(array), [validity, pa.py_buffer(offsets)], array.null_count, 0, [values])


@lru_cache(maxsize=1024)
def is_plain(t: pa.DataType) -> bool:
    """Whether arrays of this type have no encodings and no views."""
    if isinstance(t, pa.BaseExtensionType) or _is.is_dictionary(t) or _is.is_run_end_encoded(t):
        return False
    if _is.is_string_view(t) or _is.is_binary_view(t) or _is.is_list_view(t) or _is.is_large_list_view(t):
        return False
    if _is.is_map(t):
        return is_plain(t.key_type) and is_plain(t.item_type)
    return _is.is_union(t) or all(is_plain(t.field(i).type) for i in range(t.num_fields))


def _run_ends_decoded(array: pa.RunEndEncodedArray) -> pa.Array:
    """The values of each run, repeated. Arrow decodes only values of some types, so positions are decoded here."""
    count = len(array.values)
    positions = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(np.arange(count, dtype=np.int64))])
    runs = pa.RunEndEncodedArray.from_arrays(array.run_ends, positions).slice(array.offset, len(array))
    return plain(array.values).take(pc.run_end_decode(runs))
