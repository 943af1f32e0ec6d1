"""V2 expressions of Spark as values, which need no JVM."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reference:
    """A column, or a field inside one: its name parts."""

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
    """A function of expressions. One that is not supported has a name that is in no table here."""

    name: str
    children: tuple[Expression, ...] = ()


Expression = Reference | Literal | Literals | Function

ALWAYS_TRUE, ALWAYS_FALSE = Function("ALWAYS_TRUE"), Function("ALWAYS_FALSE")
"""What is left of a filter that does not depend on rows."""
