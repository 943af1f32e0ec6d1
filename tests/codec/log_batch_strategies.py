"""Hypothesis strategies for schemas and record batches of them."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from forebay.codec.arrow.arrow_types import storage_schema
from forebay.codec.casting.literals import to_python
from forebay.metadata.predicate import Compound, CompoundFunction, Leaf, LeafFunction, Predicate
from forebay.metadata.table import Column, Schema
from forebay.metadata.types import DataType, TypeRoot
from tests.codec.row_strategies import data_types, nullable_values, scalar_types, to_array, values


def schema_of(*data_types_: DataType) -> Schema:
    return Schema.of([Column(f"c{i}", t) for i, t in enumerate(data_types_)])


def batch_of(schema: Schema, rows: list[list[Any]]) -> pa.RecordBatch:
    arrays = [to_array(t, [row[i] for row in rows]) for i, t in enumerate(schema.types)]
    return pa.RecordBatch.from_arrays(arrays, schema=storage_schema(schema.columns))


@st.composite
def schemas(draw: st.DrawFn, max_columns: int = 5) -> Schema:
    drawn = draw(st.lists(st.tuples(data_types(), st.booleans()), min_size=1, max_size=max_columns))
    return schema_of(*(t.not_null() if strict else t for t, strict in drawn))


def rows_of(schema: Schema, max_rows: int = 6, min_rows: int = 0) -> st.SearchStrategy[list[list[Any]]]:
    fields = [nullable_values(t) if t.nullable else values(t) for t in schema.types]
    return st.lists(st.tuples(*fields).map(list), min_size=min_rows, max_size=max_rows)


@st.composite
def tables(
    draw: st.DrawFn, max_columns: int = 5, max_rows: int = 6, min_rows: int = 0
) -> tuple[Schema, pa.RecordBatch]:
    """A schema and a record batch of it."""
    schema = draw(schemas(max_columns))
    return schema, batch_of(schema, draw(rows_of(schema, max_rows, min_rows)))


compressions = st.sampled_from(["none", "lz4", "zstd"])


def values_and_nan(t: DataType) -> st.SearchStrategy[Any]:
    if t.root in (TypeRoot.FLOAT, TypeRoot.DOUBLE):
        return values(t) | st.sampled_from([math.nan, 0.0, -0.0, math.inf, -math.inf])
    return values(t)


@st.composite
def filtered_batches(draw: st.DrawFn) -> tuple[Schema, list[list[Any]], Predicate]:
    """A schema of scalar columns, a batch, and a predicate whose literals are near the batch's values."""
    schema = schema_of(*draw(st.lists(scalar_types(), min_size=1, max_size=3)))
    rows = draw(st.lists(st.tuples(*(st.none() | values_and_nan(t) for t in schema.types)).map(list), min_size=1,
                         max_size=5))  # fmt: skip

    def literal(position: int) -> Any:
        t = schema.types[position]
        near = [row[position] for row in rows if row[position] is not None]
        value = draw(st.sampled_from(near) | values_and_nan(t) if near else values_and_nan(t))
        if isinstance(value, int) and not isinstance(value, bool) and t.root in (TypeRoot.BIGINT, TypeRoot.INT):
            return value + draw(st.sampled_from([0, 1, -1, 0.5])) if abs(value) < 2**50 else value
        return to_python(value, t)

    def leaf() -> Leaf:
        position = draw(st.integers(0, len(schema.columns) - 1))
        function = draw(st.sampled_from(list(LeafFunction)))
        text = schema.types[position].root in (TypeRoot.CHAR, TypeRoot.STRING)
        if function in (LeafFunction.STARTS_WITH, LeafFunction.CONTAINS, LeafFunction.ENDS_WITH):
            function = function if text else LeafFunction.IS_NOT_NULL
        if function in (LeafFunction.IS_NULL, LeafFunction.IS_NOT_NULL):
            return Leaf(function, f"c{position}")
        count = draw(st.integers(0, 3)) if function in (LeafFunction.IN, LeafFunction.NOT_IN) else 1
        literals = tuple(literal(position) for _ in range(count))
        if function is LeafFunction.STARTS_WITH:
            literals = (literals[0][: draw(st.integers(0, 3))],)
        return Leaf(function, f"c{position}", literals)

    predicate: Predicate = leaf()
    for _ in range(draw(st.integers(0, 2))):
        predicate = Compound(draw(st.sampled_from(list(CompoundFunction))), (predicate, leaf()))
    return schema, rows, predicate
