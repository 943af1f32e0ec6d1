"""Predicates on Arrow data: checked against a schema, applied to batches, turned into dataset expressions.

Nouns: a *predicate* (metadata.predicate) names columns and holds Python values. `bind` resolves it against a schema
into a *bound predicate*, whose literals are column values (codec.casting.literals) of exactly the columns' types.
Everything that evaluates works on bound predicates: `mask` here, the pruning of batches in codec.log.statistics, the
wire.

Rules: SQL's three-valued logic, so a comparison with null is never true; there is no NOT node, so unknown may count
as false. Floating-point columns have Spark's order: NaN equals NaN and is greater than everything, -0.0 equals 0.0
(Arrow's own kernels say otherwise about NaN). A literal between two values of its column, or beyond the column's
range, does not fail: the leaf is rewritten to one that holds for the same rows (`a < 3.5` becomes `a <= 3`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import InvalidRequest
from forebay.codec.arrow.arrow_types import arrow_type
from forebay.codec.casting.literals import is_floating, place, to_python, to_scalar, value_range
from forebay.codec.casting.value_arrays import array_of_column_values
from forebay.metadata.predicate import Compound, CompoundFunction, Leaf, LeafFunction, Predicate
from forebay.metadata.table import Column, Schema
from forebay.metadata.types import TypeRoot

_F = LeafFunction
_TEXT_FUNCTIONS = (_F.STARTS_WITH, _F.CONTAINS, _F.ENDS_WITH)
_TEXT_ROOTS = (TypeRoot.CHAR, TypeRoot.STRING)
_BELOW = (_F.LESS_THAN, _F.LESS_OR_EQUAL)
_ABOVE = (_F.GREATER_THAN, _F.GREATER_OR_EQUAL)

Operand = Any
"""A pa.Array, pa.ChunkedArray or pc.Expression: pyarrow's functions take them all."""


@dataclass(frozen=True, slots=True)
class BoundLeaf:
    """`function(column, literals...)`, with literals that are column values of the column's type, never None.

    A leaf that nothing matches is IN with no literals.
    """

    function: LeafFunction
    column: Column
    literals: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class BoundCompound:
    """The conjunction or disjunction of its children."""

    function: CompoundFunction
    children: tuple[BoundPredicate, ...]


BoundPredicate = BoundLeaf | BoundCompound


# ---- binding --------------------------------------------------------------------------------------------------------


def bind(predicate: Predicate, schema: Schema | Sequence[Column]) -> BoundPredicate:
    """`predicate` with columns and literals of `schema`.

    Raises `InvalidRequest` for an unknown column, a literal of another kind than its column (naming both), a function
    that its column does not have, and a wrong number of literals.
    """
    columns = schema.columns if isinstance(schema, Schema) else tuple(schema)
    return _bind(predicate, {column.name: column for column in columns})


def normalize(predicate: Predicate, schema: Schema | Sequence[Column]) -> Predicate:
    """`predicate` after `bind`, with its literals as Python values again (`literals.to_python`)."""
    return unbind(bind(predicate, schema))


def _bind(predicate: Predicate, columns: dict[str, Column]) -> BoundPredicate:
    if isinstance(predicate, Compound):
        if not predicate.children:
            raise InvalidRequest(f"{predicate.function.name} without any operand is not a filter")
        return BoundCompound(predicate.function, tuple(_bind(child, columns) for child in _flat(predicate)))
    if not isinstance(predicate, Leaf):
        raise InvalidRequest(f"{predicate!r} is not a filter; build one with col(...)")
    column = columns.get(predicate.column)
    if column is None:
        raise InvalidRequest(f"there is no column '{predicate.column}' to filter on; the columns are {list(columns)}")
    return _bind_leaf(predicate.function, column, predicate.literals)


def _flat(compound: Compound) -> Iterator[Predicate]:
    """The children of `compound`, with those of the same function replaced by their children.

    `a | b | c | ...` builds a tree as deep as it is long, which recursion would not survive.
    """
    pending = [iter(compound.children)]
    while pending:
        child = next(pending[-1], None)
        if child is None:
            pending.pop()
        elif isinstance(child, Compound) and child.function is compound.function and child.children:
            pending.append(iter(child.children))
        else:
            yield child


def _bind_leaf(function: LeafFunction, column: Column, literals: tuple[Any, ...]) -> BoundLeaf:
    if function in (_F.IS_NULL, _F.IS_NOT_NULL):
        _require_count(function, column, literals, 0)
        return BoundLeaf(function, column)
    if function in _TEXT_FUNCTIONS and column.data_type.root not in _TEXT_ROOTS:
        raise InvalidRequest(
            f"{function.name} needs a text column, but column '{column.name}' has type {column.data_type}"
        )
    placed = [_place(column, literal) for literal in literals]
    if function in (_F.IN, _F.NOT_IN):
        if function is _F.NOT_IN and None in placed:
            return _never(column)
        return BoundLeaf(function, column, tuple(p[0] for p in placed if p is not None and _is_possible(column, p)))
    _require_count(function, column, literals, 1)
    if placed[0] is None:
        return _never(column)
    return _rewrite(function, column, *placed[0])


def _place(column: Column, literal: Any) -> tuple[Any, bool] | None:
    """The place of a literal among the column's values; None for null."""
    if literal is None or (isinstance(literal, pa.Scalar) and not literal.is_valid):
        return None
    try:
        return place(literal, column.data_type)
    except InvalidRequest as e:
        raise InvalidRequest(f"filter on column '{column.name}': {e.message}") from e


def _is_possible(column: Column, placed: tuple[Any, bool]) -> bool:
    """Whether a value of the column can equal the literal."""
    limits = value_range(column.data_type)
    return placed[1] and (limits is None or limits[0] <= placed[0] <= limits[1])


def _rewrite(function: LeafFunction, column: Column, value: Any, is_exact: bool) -> BoundLeaf:
    """The comparison with a literal whose next lower column value is `value`."""
    if not is_exact:
        if function in (_F.EQUAL, _F.NOT_EQUAL):
            return _never(column) if function is _F.EQUAL else BoundLeaf(_F.IS_NOT_NULL, column)
        function = _F.LESS_OR_EQUAL if function in _BELOW else _F.GREATER_THAN
    limits = value_range(column.data_type)
    if limits is not None and not limits[0] <= value <= limits[1]:
        always = _ABOVE if value < limits[0] else _BELOW
        holds = function is _F.NOT_EQUAL or function in always
        return BoundLeaf(_F.IS_NOT_NULL, column) if holds else _never(column)
    return BoundLeaf(function, column, (value,))


def _never(column: Column) -> BoundLeaf:
    return BoundLeaf(_F.IN, column)


def _require_count(function: LeafFunction, column: Column, literals: tuple[Any, ...], count: int) -> None:
    if len(literals) != count:
        raise InvalidRequest(
            f"{function.name} on column '{column.name}' takes {count} value{'s' * (count != 1)}, got {len(literals)}"
        )


def unbind(bound: BoundPredicate) -> Predicate:
    """The predicate that `bound` stands for, with its literals as Python values (`literals.to_python`)."""
    if isinstance(bound, BoundCompound):
        return Compound(bound.function, tuple(unbind(child) for child in bound.children))
    literals = tuple(to_python(value, bound.column.data_type) for value in bound.literals)
    return Leaf(bound.function, bound.column.name, literals)


# ---- applying -------------------------------------------------------------------------------------------------------


def mask(bound: BoundPredicate, data: pa.RecordBatch | pa.Table) -> pa.BooleanArray | pa.ChunkedArray:
    """One boolean a row of `data`, never null: whether the row matches.

    Columns are found by name; `data` may hold TIMESTAMP_LTZ with or without a zone.
    """

    def evaluate(leaf: BoundLeaf) -> Operand:
        index = data.schema.get_field_index(leaf.column.name)
        if index < 0:
            raise InvalidRequest(
                f"the data has no column '{leaf.column.name}' to filter on; it has {data.schema.names}"
            )
        column = data.column(index)
        target_type = arrow_type(leaf.column.data_type, getattr(column.type, "tz", None))
        if not column.type.equals(target_type):
            column = pc.cast(column, target_type)
        return _leaf(leaf, column, target_type)

    return pc.fill_null(_combine(bound, evaluate), to_scalar(False, pa.bool_()))


def filter_rows(data: Any, bound: BoundPredicate) -> Any:
    """The rows of `data` (pa.RecordBatch or pa.Table) that match."""
    return data.filter(mask(bound, data))


def leaves(bound: BoundPredicate) -> Iterator[BoundLeaf]:
    """The leaves of a bound predicate."""
    if isinstance(bound, BoundLeaf):
        yield bound
    else:
        for child in bound.children:
            yield from leaves(child)


def columns_of(bound: BoundPredicate) -> frozenset[str]:
    """The names of the columns that a bound predicate reads."""
    return frozenset(leaf.column.name for leaf in leaves(bound))


def bound_conjuncts(bound: BoundPredicate | None) -> list[BoundPredicate]:
    """The conjuncts of `bound`, none of which is itself a conjunction."""
    if bound is None:
        return []
    if isinstance(bound, BoundCompound) and bound.function is CompoundFunction.AND:
        return [part for child in bound.children for part in bound_conjuncts(child)]
    return [bound]


def join(parts: Sequence[BoundPredicate]) -> BoundPredicate | None:
    """The conjunction of `parts`; None if there are none."""
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else BoundCompound(CompoundFunction.AND, tuple(parts))


def _combine(bound: BoundPredicate, evaluate: Callable[[BoundLeaf], Operand]) -> Operand:
    if isinstance(bound, BoundLeaf):
        return evaluate(bound)
    join = pc.and_kleene if bound.function is CompoundFunction.AND else pc.or_kleene
    result = _combine(bound.children[0], evaluate)
    for child in bound.children[1:]:
        result = join(result, _combine(child, evaluate))
    return result


def _leaf(leaf: BoundLeaf, operand: Operand, t: pa.DataType) -> Operand:
    """The result of a leaf for `operand`, of Arrow type `t`; null or false where a row does not match."""
    function = leaf.function
    if function is _F.IS_NULL:
        return pc.is_null(operand)
    if function is _F.IS_NOT_NULL:
        return pc.is_valid(operand)
    if function in _TEXT_FUNCTIONS:
        return _TEXT_KERNELS[function](operand, leaf.literals[0])
    if pa.types.is_fixed_size_binary(t):  # literals may be of any length
        operand, t = operand.cast(pa.binary()), pa.binary()
    if function in (_F.IN, _F.NOT_IN):
        matches = _is_in(leaf, operand, t)
        return matches if function is _F.IN else pc.and_kleene(pc.invert(matches), pc.is_valid(operand))
    if is_floating(leaf.column.data_type):
        return _compare_floats(function, operand, leaf.literals[0])
    if pa.types.is_boolean(t):
        return _KERNELS[function](operand.cast(pa.uint8()), int(leaf.literals[0]))
    return _KERNELS[function](operand, to_scalar(leaf.literals[0], t))


_KERNELS: dict[LeafFunction, Callable[..., Operand]] = {
    _F.EQUAL: pc.equal,
    _F.NOT_EQUAL: pc.not_equal,
    _F.LESS_THAN: pc.less,
    _F.LESS_OR_EQUAL: pc.less_equal,
    _F.GREATER_THAN: pc.greater,
    _F.GREATER_OR_EQUAL: pc.greater_equal,
}
_TEXT_KERNELS: dict[LeafFunction, Callable[..., Operand]] = {
    _F.STARTS_WITH: pc.starts_with,
    _F.CONTAINS: pc.match_substring,
    _F.ENDS_WITH: pc.ends_with,
}


def _compare_floats(function: LeafFunction, operand: Operand, value: float) -> Operand:
    """A comparison in the order of `sort_key`."""
    if not math.isnan(value):
        result = _KERNELS[function](operand, to_scalar(value, pa.float64()))
        return pc.or_kleene(result, pc.is_nan(operand)) if function in _ABOVE else result
    match function:
        case _F.EQUAL | _F.GREATER_OR_EQUAL:
            return pc.is_nan(operand)
        case _F.NOT_EQUAL | _F.LESS_THAN:
            return pc.invert(pc.is_nan(operand))
        case _F.LESS_OR_EQUAL:
            return pc.is_valid(operand)
        case _:
            return _nothing(operand)


def _is_in(leaf: BoundLeaf, operand: Operand, t: pa.DataType) -> Operand:
    if is_floating(leaf.column.data_type):  # is_in treats -0.0 and 0.0 as different values
        result = _nothing(operand)
        for value in leaf.literals:
            result = pc.or_kleene(result, _compare_floats(_F.EQUAL, operand, value))
        return result
    return pc.is_in(operand, value_set=array_of_column_values(leaf.literals, t))


def _nothing(operand: Operand) -> Operand:
    """False for each row."""
    return pc.and_kleene(pc.is_null(operand), False)
