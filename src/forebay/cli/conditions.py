"""What users type about columns: values, lists of columns, and conditions such as `amount >= 100`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_

import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.metadata.predicate import Leaf, LeafFunction, Predicate

_OPERATORS = {
    "=": LeafFunction.EQUAL,
    "!=": LeafFunction.NOT_EQUAL,
    "<": LeafFunction.LESS_THAN,
    "<=": LeafFunction.LESS_OR_EQUAL,
    ">": LeafFunction.GREATER_THAN,
    ">=": LeafFunction.GREATER_OR_EQUAL,
}
_CONDITION = re.compile(r"\s*(\w+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*$", re.DOTALL)


def typed_values(table: str, column: str, data_type: pa.DataType, texts: Sequence[str]) -> pa.Array:
    """Text -> values of a column's type. Raises `InvalidRequest`, which names the column and the text."""
    try:
        if pa.types.is_timestamp(data_type) and data_type.tz:
            return pa.array(texts).cast(pa.timestamp(data_type.unit)).cast(data_type)
        if pa.types.is_binary(data_type) or pa.types.is_fixed_size_binary(data_type):
            return pa.array([bytes.fromhex(text) for text in texts], data_type)
        return pa.array(texts).cast(data_type)
    except (pa.ArrowException, ValueError) as e:
        raise InvalidRequest(f"column {column} of {table} is {data_type}; {', '.join(texts)} is not: {e}") from e


def column_names(text: str | None) -> list[str] | None:
    """`"a, b"` -> its names; None for None, which means all."""
    return None if text is None else [name.strip() for name in text.split(",")]


def conjunction(table: str, type_of: Callable[[str], pa.DataType], conditions: Sequence[str]) -> Predicate | None:
    """All of `conditions` (COLUMN OP VALUE) together; None if there are none. `type_of` raises for unknown columns."""
    leaves: list[Predicate] = []
    for condition in conditions:
        match = _CONDITION.match(condition)
        if match is None:
            raise InvalidRequest(f"--where {condition!r} is not COLUMN OP VALUE, with OP one of {' '.join(_OPERATORS)}")
        name, operator, text = match.groups()
        if len(text) >= 2 and text[0] == text[-1] == "'":
            text = text[1:-1]
        value = typed_values(table, name, type_of(name), [text])[0].as_py()
        leaves.append(Leaf(_OPERATORS[operator], name, (value,)))
    return reduce(and_, leaves) if leaves else None
