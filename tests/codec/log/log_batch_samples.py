"""A schema and three rows of it, with nulls and nested values."""

from __future__ import annotations

from forebay.metadata import types
from tests.codec.log_batch_strategies import schema_of

SCHEMA = schema_of(
    types.int_().not_null(),
    types.string(),
    types.array(types.string()),
    types.row(types.field("x", types.bigint())),
    types.boolean(),
)

ROWS = [[1, "one", ["a", None], {"x": 1}, True], [2, None, None, None, None], [3, "three", [], {"x": None}, False]]
