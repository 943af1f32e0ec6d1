"""Filters on columns, as values.

One small language serves every place that filters: the client sends it to the server (which prunes log batches by their
statistics), the client and Spark apply it to Arrow data, and the lake side prunes files with it. Column names are
resolved where the predicate is applied. Build predicates with `col("a") > 5`, combine them with `&` and `|`.

SQL's three-valued logic holds: a comparison with a null value is not true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from forebay.base.errors import InvalidRequest


class LeafFunction(IntEnum):
    """The test of a leaf; the numbers are those of the Fluss protocol."""

    EQUAL = 0
    NOT_EQUAL = 1
    LESS_THAN = 2
    LESS_OR_EQUAL = 3
    GREATER_THAN = 4
    GREATER_OR_EQUAL = 5
    IS_NULL = 6
    IS_NOT_NULL = 7
    STARTS_WITH = 8
    CONTAINS = 9
    ENDS_WITH = 10
    IN = 11
    NOT_IN = 12


class CompoundFunction(IntEnum):
    """How a compound joins its children; the numbers are those of the Fluss protocol."""

    AND = 0
    OR = 1


@dataclass(frozen=True, slots=True)
class Predicate:
    """A filter: either a `Leaf` or a `Compound`."""

    def __and__(self, other: Predicate) -> Predicate:
        return Compound(CompoundFunction.AND, (self, other))

    def __or__(self, other: Predicate) -> Predicate:
        return Compound(CompoundFunction.OR, (self, other))

    def __bool__(self) -> bool:
        """Raise: Python's `and`, `or` and `not` would silently drop a part of the filter."""
        raise InvalidRequest("filters are joined by & and |, with each part in parentheses, not by 'and', 'or', 'not'")

    def __invert__(self) -> Predicate:
        raise InvalidRequest("a filter cannot be turned around by ~; write its opposite, such as != or not_in")

    def columns(self) -> frozenset[str]:
        """Names of all columns that the predicate reads."""
        raise NotImplementedError(type(self).__name__)


@dataclass(frozen=True, slots=True)
class Leaf(Predicate):
    """`function(column, literals...)`; literals are Python values as pyarrow's `as_py()` gives them."""

    function: LeafFunction
    column: str
    literals: tuple[Any, ...] = ()

    def columns(self) -> frozenset[str]:
        return frozenset({self.column})


@dataclass(frozen=True, slots=True)
class Compound(Predicate):
    """The conjunction or disjunction of at least one child."""

    function: CompoundFunction
    children: tuple[Predicate, ...]

    def columns(self) -> frozenset[str]:
        return frozenset().union(*(c.columns() for c in self.children))


@dataclass(frozen=True, slots=True, eq=False)
class ColumnRef:
    """A column in an expression: `col("age") >= 18`."""

    name: str

    __hash__ = None  # type: ignore[assignment]

    def _leaf(self, function: LeafFunction, *literals: Any) -> Leaf:
        return Leaf(function, self.name, literals)

    def __eq__(self, value: object) -> Leaf:  # type: ignore[override]
        return self._leaf(LeafFunction.EQUAL, value)

    def __ne__(self, value: object) -> Leaf:  # type: ignore[override]
        return self._leaf(LeafFunction.NOT_EQUAL, value)

    def __lt__(self, value: Any) -> Leaf:
        return self._leaf(LeafFunction.LESS_THAN, value)

    def __le__(self, value: Any) -> Leaf:
        return self._leaf(LeafFunction.LESS_OR_EQUAL, value)

    def __gt__(self, value: Any) -> Leaf:
        return self._leaf(LeafFunction.GREATER_THAN, value)

    def __ge__(self, value: Any) -> Leaf:
        return self._leaf(LeafFunction.GREATER_OR_EQUAL, value)

    def is_null(self) -> Leaf:
        return self._leaf(LeafFunction.IS_NULL)

    def is_not_null(self) -> Leaf:
        return self._leaf(LeafFunction.IS_NOT_NULL)

    def starts_with(self, prefix: str) -> Leaf:
        return self._leaf(LeafFunction.STARTS_WITH, prefix)

    def contains(self, part: str) -> Leaf:
        return self._leaf(LeafFunction.CONTAINS, part)

    def ends_with(self, suffix: str) -> Leaf:
        return self._leaf(LeafFunction.ENDS_WITH, suffix)

    def is_in(self, values: Iterable[Any]) -> Leaf:
        return self._leaf(LeafFunction.IN, *values)

    def not_in(self, values: Iterable[Any]) -> Leaf:
        return self._leaf(LeafFunction.NOT_IN, *values)


def col(name: str) -> ColumnRef:
    """The column `name`, to compare with values."""
    return ColumnRef(name)


def all_of(predicates: Iterable[Predicate]) -> Predicate | None:
    """The conjunction of `predicates`; None where there are none."""
    children = tuple(predicates)
    if not children:
        return None
    return children[0] if len(children) == 1 else Compound(CompoundFunction.AND, children)


_SIGNS = {
    LeafFunction.EQUAL: "=",
    LeafFunction.NOT_EQUAL: "!=",
    LeafFunction.LESS_THAN: "<",
    LeafFunction.LESS_OR_EQUAL: "<=",
    LeafFunction.GREATER_THAN: ">",
    LeafFunction.GREATER_OR_EQUAL: ">=",
}


_SHOWN_MAX = 10
"""Values of a list that are shown."""


def conjuncts(predicate: Predicate | None) -> tuple[Predicate, ...]:
    """The conjuncts of a filter, none of which is itself a conjunction; none for None."""
    if predicate is None:
        return ()
    found: list[Predicate] = []
    pending = [predicate]
    while pending:
        part = pending.pop()
        if isinstance(part, Compound) and part.function is CompoundFunction.AND:
            pending.extend(reversed(part.children))
        else:
            found.append(part)
    return tuple(found)


def predicate_text(predicate: Predicate) -> str:
    """Return a filter approximately as SQL text."""
    if isinstance(predicate, Compound):
        return "(" + f" {predicate.function.name} ".join(map(predicate_text, predicate.children)) + ")"
    if not isinstance(predicate, Leaf):
        return repr(predicate)
    sign = _SIGNS.get(predicate.function, predicate.function.name.replace("_", " "))
    values = [*map(repr, predicate.literals[:_SHOWN_MAX]), *(["..."] if len(predicate.literals) > _SHOWN_MAX else [])]
    return " ".join([predicate.column, sign, ", ".join(values)]).rstrip()
