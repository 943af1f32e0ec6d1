"""V2 expressions of Spark as Python values, which workers can use without a JVM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.spark.jvm.gateway import JavaObject

_PREDICATES = frozenset({"Predicate", "And", "Or", "Not", "AlwaysTrue", "AlwaysFalse"})
"""Classes of V2 expressions with a name and children that can be converted."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A column, or a field inside one, by the parts of its name."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A value: Spark's text of it, and the JSON of its type."""

    text: str
    type_json: str


@dataclass(frozen=True, slots=True)
class Literals:
    """The values of an IN list: Spark's text of the list ("1, 2"), and the JSON of their type."""

    text: str
    type_json: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function of expressions. An unsupported expression is a `Function` with the name of its class."""

    name: str
    children: tuple[Expression, ...] = ()


Expression = Reference | Literal | Literals | Function

ALWAYS_TRUE, ALWAYS_FALSE = Function("ALWAYS_TRUE"), Function("ALWAYS_FALSE")
"""Filters that do not depend on rows."""


def read_expression(expression: JavaObject) -> Expression:
    """The value of a V2 expression. An unsupported expression is a `Function` with the name of its class."""
    kind = str(expression.getClass().getSimpleName())
    if kind == "FieldReference":
        return Reference(tuple(str(part) for part in expression.fieldNames()))
    if kind == "LiteralValue":
        return Literal(str(expression.toString()), str(expression.dataType().json()))
    if kind not in _PREDICATES:
        return Function(kind)
    name, children = str(expression.name()), expression.children()
    if name == "IN":
        return _in_list(expression, children)
    return Function(name, tuple(read_expression(child) for child in children))


def _in_list(expression: JavaObject, children: JavaObject) -> Expression:
    """The value of `column IN (values)`, read from its text: thousands of values would take thousands of calls."""
    if len(children) == 1:  # the other side of a join has no rows
        return Function("IN", (read_expression(children[0]), Literals("", '"string"')))
    before, text = f"{children[0].toString()} IN (", str(expression.toString())
    if str(children[1].getClass().getSimpleName()) != "LiteralValue" or not text.startswith(before):
        return Function("IN")
    values = Literals(text[len(before) : -1], str(children[1].dataType().json()))
    return Function("IN", (read_expression(children[0]), values))
