"""Pruning of files and row groups that cannot contain a matching row: predicates are evaluated on column ranges.

Predicates are bound (`codec.filters`) to columns of storage types, whose `column_id` is the field's id, so that a file
with an older schema is evaluated by its own names. In doubt, the result is "may match".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from forebay.codec.casting.literals import is_floating, sort_key
from forebay.codec.filters import BoundCompound, BoundLeaf, BoundPredicate, bind
from forebay.codec.log.statistics import RANGE_DECISIONS
from forebay.metadata.predicate import CompoundFunction, LeafFunction, Predicate
from forebay.metadata.table import Column
from forebay.paimon.files.casts import same_type
from forebay.paimon.format.arrow import storage_type
from forebay.paimon.format.schema import DataField
from forebay.paimon.format.stats import ColumnStats

_F = LeafFunction

RangeOf = Callable[[Column], ColumnStats | None]


def filter_columns(fields: Iterable[DataField]) -> tuple[Column, ...]:
    """`fields` as columns for filters."""
    return tuple(Column(f.name, storage_type(f.type), column_id=f.id) for f in fields)


def bind_filter(predicate: Predicate, fields: Iterable[DataField]) -> BoundPredicate:
    """`predicate` bound to columns `fields`. Raises `InvalidRequest` like `codec.filters.bind`."""
    return bind(predicate, filter_columns(fields))


def may_match(bound: BoundPredicate, range_of: RangeOf, row_count: int) -> bool:
    """Whether one of `row_count` rows, whose columns have the ranges `range_of(column)`, may match."""
    if isinstance(bound, BoundCompound):
        test = all if bound.function is CompoundFunction.AND else any
        return test(may_match(child, range_of, row_count) for child in bound.children)
    stats = range_of(bound.column)
    return True if stats is None else _leaf_may_match(bound, stats, row_count)


def _leaf_may_match(leaf: BoundLeaf, stats: ColumnStats, row_count: int) -> bool:
    nulls = stats.null_count
    if leaf.function is _F.IS_NULL:
        return nulls is None or nulls > 0
    if nulls is not None and nulls >= row_count:
        return False
    if leaf.function is _F.IN and not leaf.literals:
        return False
    decide = RANGE_DECISIONS.get(leaf.function)
    if decide is None or stats.min is None or stats.max is None:
        return True
    low, high, literals = stats.min, stats.max, list(leaf.literals)
    if is_floating(leaf.column.data_type):
        # Bounds ignore NaN, which filters treat as the largest value: upper bounds cannot be trusted.
        if leaf.function in (_F.GREATER_THAN, _F.GREATER_OR_EQUAL, _F.NOT_EQUAL, _F.NOT_IN):
            return True
        if any(v != v for v in literals):
            return True
        low, high, literals = sort_key(low), sort_key(high), [sort_key(v) for v in literals]
    return bool(decide(low, high, literals))


def field_for(column: Column, fields: dict[int, DataField]) -> DataField | None:
    """The file's field with `column`'s values unchanged; None if there is none, or its type changed."""
    field = fields.get(-1 if column.column_id is None else column.column_id)
    if field is None or not same_type(storage_type(field.type), column.data_type):
        return None
    return field


def column_values(array: pa.Array) -> list[Any]:
    """The column values (`codec.casting.literals`) of an Arrow column; None for each value of a nested type."""
    t = array.type
    if pa.types.is_timestamp(t):
        array = array.cast(pa.int64())
    elif pa.types.is_date32(t) or pa.types.is_time32(t):
        array = array.cast(pa.int32())
    values: list[Any] = array.to_pylist() if not pa.types.is_nested(t) else [None] * len(array)
    return values
