"""Filters as pyiceberg expressions, for skipping manifests and files only.

Rows are filtered exactly by `forebay.codec.filters`, whose rules for nulls and NaN are Spark's. So an expression may
match more rows than its filter, but not fewer.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotNull,
    Or,
    StartsWith,
    UnboundPredicate,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, FloatType

from forebay.metadata.predicate import Compound, CompoundFunction, Leaf, LeafFunction, Predicate

_IN_MAX = 200
_COMPARISONS: dict[LeafFunction, Any] = {
    LeafFunction.EQUAL: EqualTo,
    LeafFunction.LESS_THAN: LessThan,
    LeafFunction.LESS_OR_EQUAL: LessThanOrEqual,
    LeafFunction.GREATER_THAN: GreaterThan,
    LeafFunction.GREATER_OR_EQUAL: GreaterThanOrEqual,
    LeafFunction.STARTS_WITH: StartsWith,
}
_AT_LEAST: Any = GreaterThanOrEqual
_AT_MOST: Any = LessThanOrEqual
_IS_NULL: Any = IsNull
_NOT_NULL: Any = NotNull


def between(name: str, low: Any, high: Any) -> BooleanExpression:
    """An expression: column `name` is in [low, high]."""
    return And(_AT_LEAST(name, low), _AT_MOST(name, high))


def partition_condition(spec: PartitionSpec, partition: Record) -> BooleanExpression:
    """An expression: the partition, in terms of the partition spec's fields, is `partition`."""
    condition: BooleanExpression = AlwaysTrue()
    for i, f in enumerate(spec.fields):
        value = partition[i]
        condition = And(
            condition, _IS_NULL(f.name) if value is None else _COMPARISONS[LeafFunction.EQUAL](f.name, value)
        )
    return condition


def condition_of(predicate: Predicate | None, schema: Schema) -> BooleanExpression:
    """An expression that is true for every row of `schema` that matches `predicate`, which must be normalized."""
    if predicate is None:
        return AlwaysTrue()
    if isinstance(predicate, Compound):
        join = And if predicate.function is CompoundFunction.AND else Or
        children = [condition_of(child, schema) for child in predicate.children]
        return children[0] if len(children) == 1 else join(*children)
    assert isinstance(predicate, Leaf)
    expression: BooleanExpression = _leaf(predicate, schema)
    try:
        if isinstance(expression, UnboundPredicate):
            expression.bind(schema, case_sensitive=True)
    except (ValueError, TypeError, NotImplementedError):
        return AlwaysTrue()  # a literal that pyiceberg does not accept for this type
    return expression


def _leaf(leaf: Leaf, schema: Schema) -> Any:
    function, name = leaf.function, leaf.column
    if function is LeafFunction.IS_NULL:
        return _IS_NULL(name)
    if function is LeafFunction.IS_NOT_NULL:
        return _NOT_NULL(name)
    if function is LeafFunction.IN and not leaf.literals:
        return AlwaysFalse()
    if isinstance(schema.find_type(name), FloatType | DoubleType):
        return AlwaysTrue()  # file bounds ignore NaN, which is the largest value here
    if function is LeafFunction.IN and len(leaf.literals) <= _IN_MAX:
        return _comparison(In, name, leaf.literals)
    if function in _COMPARISONS:
        return _comparison(_COMPARISONS[function], name, leaf.literals[0])
    return AlwaysTrue()


def _comparison(kind: Any, name: str, literal: Any) -> Any:
    try:
        return kind(name, literal)
    except (ValueError, TypeError):
        return AlwaysTrue()
