"""Filters in words."""

from __future__ import annotations

from forebay.metadata.predicate import Compound, Leaf, LeafFunction, Predicate

_SIGNS = {
    LeafFunction.EQUAL: "=",
    LeafFunction.NOT_EQUAL: "!=",
    LeafFunction.LESS_THAN: "<",
    LeafFunction.LESS_OR_EQUAL: "<=",
    LeafFunction.GREATER_THAN: ">",
    LeafFunction.GREATER_OR_EQUAL: ">=",
}


def predicate_text(predicate: Predicate) -> str:
    """Return a filter approximately as SQL text."""
    if isinstance(predicate, Compound):
        return "(" + f" {predicate.function.name} ".join(map(predicate_text, predicate.children)) + ")"
    if not isinstance(predicate, Leaf):
        return repr(predicate)
    sign = _SIGNS.get(predicate.function, predicate.function.name.replace("_", " "))
    return " ".join([predicate.column, sign, ", ".join(map(repr, predicate.literals))]).rstrip()
