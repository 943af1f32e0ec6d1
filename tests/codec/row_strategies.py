"""Hypothesis strategies for data types and for rows of them (values as `tests/codec/reference.py` takes them)."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from forebay.codec.arrow.arrow_types import arrow_type, time_unit
from forebay.codec.storage_values import DECIMAL_CONTEXT
from forebay.metadata import types
from forebay.metadata.types import DataType, TypeRoot, child

_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def scalar_types() -> st.SearchStrategy[DataType]:
    return st.one_of(
        st.sampled_from(
            [
                types.boolean(), types.tinyint(), types.smallint(), types.int_(), types.bigint(), types.float_(),
                types.double(), types.string(), types.bytes_(), types.date(),
            ]
        ),
        st.integers(1, 12).map(types.binary),
        st.integers(1, 12).map(types.char),
        st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: types.decimal(p, s))),
        st.integers(0, 9).map(types.time),
        st.integers(0, 9).map(types.timestamp),
        st.integers(0, 9).map(types.timestamp_ltz),
    )  # fmt: skip


def _nested(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    keys = st.sampled_from([types.int_(), types.string(), types.bigint()])
    rows = st.lists(inner, min_size=1, max_size=4).map(
        lambda ts: types.row(*(types.field(f"f{i}", t) for i, t in enumerate(ts)))
    )
    return st.one_of(inner.map(types.array), st.builds(types.map_, keys, inner), rows)


def data_types() -> st.SearchStrategy[DataType]:
    return st.recursive(scalar_types(), _nested, max_leaves=6)


def _timestamp_values(t: DataType) -> st.SearchStrategy[int]:
    ticks = _TICKS[time_unit(t.precision)]
    limit = min(2**62, 9_000_000_000_000 * ticks)
    return st.integers(-limit, limit)


def values(t: DataType) -> st.SearchStrategy[Any]:
    """Non-null values of type `t`."""
    match t.root:
        case TypeRoot.BOOLEAN:
            return st.booleans()
        case TypeRoot.TINYINT:
            return st.integers(-(2**7), 2**7 - 1)
        case TypeRoot.SMALLINT:
            return st.integers(-(2**15), 2**15 - 1)
        case TypeRoot.INT | TypeRoot.DATE:
            return st.integers(-(2**31), 2**31 - 1)
        case TypeRoot.BIGINT:
            return st.integers(-(2**63), 2**63 - 1)
        case TypeRoot.FLOAT:
            return st.floats(width=32, allow_nan=False)
        case TypeRoot.DOUBLE:
            return st.floats(allow_nan=False)
        case TypeRoot.STRING:
            return st.text(max_size=20)
        case TypeRoot.CHAR:
            return st.text(st.sampled_from("abcxyz"), max_size=t.length)
        case TypeRoot.BYTES:
            return st.binary(max_size=20)
        case TypeRoot.BINARY:
            return st.binary(min_size=t.length or 0, max_size=t.length)
        case TypeRoot.DECIMAL:
            bound = 10 ** (t.precision or 0) - 1
            return st.integers(-bound, bound).map(lambda u: Decimal(u).scaleb(-(t.scale or 0), DECIMAL_CONTEXT))
        case TypeRoot.TIME:
            ticks = _TICKS[time_unit(t.precision)]
            per_milli = max(ticks // 1_000, 1)
            return st.integers(0, 86_400 * ticks // per_milli - 1).map(lambda v: v * per_milli)
        case TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            return _timestamp_values(t)
        case TypeRoot.ARRAY:
            return st.lists(nullable_values(child(t.element)), max_size=5)
        case TypeRoot.MAP:
            pairs = st.tuples(values(child(t.key)), nullable_values(child(t.value)))
            return st.lists(pairs, max_size=4)
        case _:
            return st.fixed_dictionaries({f.name: nullable_values(f.data_type) for f in t.fields})


def nullable_values(t: DataType) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values(t)) if t.nullable else values(t)


def _integer_backed(t: pa.DataType) -> pa.DataType:
    """`t` with dates, times and timestamps as the integers that back them."""
    if pa.types.is_date32(t) or pa.types.is_time32(t):
        return pa.int32()
    if pa.types.is_time64(t) or pa.types.is_timestamp(t):
        return pa.int64()
    if pa.types.is_map(t):
        return pa.map_(_integer_backed(t.key_type), t.item_field.with_type(_integer_backed(t.item_type)))
    if pa.types.is_list(t):
        return pa.list_(t.value_field.with_type(_integer_backed(t.value_type)))
    if pa.types.is_struct(t):
        return pa.struct([f.with_type(_integer_backed(f.type)) for f in t])
    return t


def _same_bits(array: pa.Array, t: pa.DataType) -> pa.Array:
    """`array` (integer-backed) seen as type `t`: the buffers are the same."""
    if array.type.equals(t):
        return array
    if isinstance(array, pa.MapArray):
        offsets = array.offsets
        keys = _same_bits(array.keys, t.key_type)
        items = _same_bits(array.items, t.item_type)
        rebuilt = pa.MapArray.from_arrays(offsets, keys, items, type=t)
        return pa.Array.from_buffers(t, len(array), array.buffers()[:2], children=[rebuilt_entries(rebuilt)])
    if isinstance(array, pa.ListArray):
        return pa.Array.from_buffers(
            t, len(array), array.buffers()[:2], children=[_same_bits(array.values, t.value_type)]
        )
    if isinstance(array, pa.StructArray):
        children = [_same_bits(array.field(i), t.field(i).type) for i in range(t.num_fields)]
        return pa.Array.from_buffers(t, len(array), array.buffers()[:1], children=children)
    return array.view(t)


def rebuilt_entries(array: pa.MapArray) -> pa.Array:
    """The entries struct of a map array."""
    return pa.StructArray.from_arrays([array.keys, array.items], fields=[array.type.key_field, array.type.item_field])


def to_array(t: DataType, column: list[Any]) -> pa.Array:
    """An Arrow array of the storage type of `t` from values in the form of the reference codec."""
    storage = arrow_type(t)
    return _same_bits(pa.array(column, _integer_backed(storage)), storage)
