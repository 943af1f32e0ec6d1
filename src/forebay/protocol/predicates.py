"""Filters: `forebay.metadata.predicate.Predicate` <-> `PbPredicate`.

On the wire a filter names columns by their ids in one schema, which travels with it (`filter_schema_id`), and types
each literal like its column (`forebay.protocol.literals`). So both directions need the schema, and check everything
against it: a filter that came through them can be evaluated without surprises.

A server that cannot use a filter (an `InvalidRequest` from here) reads without it: filters only spare work, and whoever
sent one applies it again to what comes. Fluss's own server does so too.

Nested conjunctions of conjunctions (and disjunctions of disjunctions) are made flat on their way out, because readers
of protobuf stop at a depth of 100 messages, and `a & b & c & ...` builds a tree as deep as it is long. Flat predicates
come back as they went.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from forebay.base.errors import InvalidRequest
from forebay.metadata.predicate import Compound, CompoundFunction, Leaf, LeafFunction, Predicate
from forebay.metadata.table import Column, Schema
from forebay.metadata.types import TypeRoot
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.literals import literal_from_pb, literal_to_pb

PREDICATE_DEPTH_MAX = 40
"""How deep AND and OR may alternate; each level is two messages, and readers of protobuf stop at 100."""

_LEAF, _COMPOUND = 0, 1
_WITHOUT_LITERAL = frozenset({LeafFunction.IS_NULL, LeafFunction.IS_NOT_NULL})
_WITH_LIST = frozenset({LeafFunction.IN, LeafFunction.NOT_IN})
_ON_TEXT = frozenset({LeafFunction.STARTS_WITH, LeafFunction.CONTAINS, LeafFunction.ENDS_WITH})


def predicate_to_pb(predicate: Predicate, schema: Schema) -> pb.PbPredicate:
    """`predicate` for a table of `schema`, which is the whole schema, not a projection.

    Raises `InvalidRequest` for a column that is not there, a literal that does not fit its column exactly, a wrong
    number of literals, an empty compound, or nesting deeper than PREDICATE_DEPTH_MAX.
    """
    return _to_pb(predicate, schema, 1)


def predicate_from_pb(message: pb.PbPredicate, schema: Schema) -> Predicate:
    """The filter that a peer sent for `schema`. Raises `InvalidRequest` if it is not one that can be evaluated."""
    if message.type == _LEAF and message.HasField("leaf"):
        return _leaf_from_pb(message.leaf, schema)
    if message.type == _COMPOUND and message.HasField("compound"):
        if message.compound.function not in (0, 1):
            raise InvalidRequest(
                f"a filter joins by function {message.compound.function}; there are 0 (AND) and 1 (OR)"
            )
        children = tuple(predicate_from_pb(child, schema) for child in message.compound.children)
        if not children:
            raise InvalidRequest("a filter joins no conditions at all")
        return Compound(CompoundFunction(message.compound.function), children)
    raise InvalidRequest(
        f"a filter of type {message.type} is neither a leaf (0) nor a compound (1), or lacks its content"
    )


def _to_pb(predicate: Predicate, schema: Schema, depth: int) -> pb.PbPredicate:
    if depth > PREDICATE_DEPTH_MAX:
        raise InvalidRequest(f"a filter alternates AND and OR more than {PREDICATE_DEPTH_MAX} levels deep")
    if isinstance(predicate, Leaf):
        return pb.PbPredicate(type=_LEAF, leaf=_leaf_to_pb(predicate, schema))
    if not isinstance(predicate, Compound):
        raise InvalidRequest(f"a filter is a Leaf or a Compound, not a {type(predicate).__name__}")
    if not predicate.children:
        raise InvalidRequest("a filter joins no conditions at all")
    children = [_to_pb(child, schema, depth + 1) for child in _flat(predicate)]
    compound = pb.PbCompoundPredicate(function=int(predicate.function), children=children)
    return pb.PbPredicate(type=_COMPOUND, compound=compound)


def _flat(compound: Compound) -> Iterator[Predicate]:
    """The children of `compound`, with children of the same function replaced by theirs; of any depth."""
    pending = [iter(compound.children)]
    while pending:
        child = next(pending[-1], None)
        if child is None:
            pending.pop()
        elif isinstance(child, Compound) and child.function is compound.function and child.children:
            pending.append(iter(child.children))
        else:
            yield child


def _leaf_to_pb(leaf: Leaf, schema: Schema) -> pb.PbLeafPredicate:
    column = schema.column(leaf.column)
    if column.column_id is None:
        raise InvalidRequest(f"column '{column.name}' has no id yet; use the schema that the server gave out")
    _check_literals(leaf.function, leaf.literals, column)
    literals = [literal_to_pb(value, column.data_type, column.name) for value in leaf.literals]
    return pb.PbLeafPredicate(function=int(leaf.function), field_id=column.column_id, literals=literals)


def _leaf_from_pb(message: pb.PbLeafPredicate, schema: Schema) -> Leaf:
    column = next((column for column in schema.columns if column.column_id == message.field_id), None)
    if column is None:
        raise InvalidRequest(f"a filter names column id {message.field_id}, which its schema does not have")
    try:
        function = LeafFunction(message.function)
    except ValueError:
        raise InvalidRequest(
            f"a filter on column '{column.name}' has the unknown function {message.function}"
        ) from None
    literals = tuple(literal_from_pb(literal, column.data_type, column.name) for literal in message.literals)
    _check_literals(function, literals, column)
    return Leaf(function, column.name, literals)


def _check_literals(function: LeafFunction, literals: Sequence[Any], column: Column) -> None:
    what = f"{function.name} on column '{column.name}'"
    if function in _ON_TEXT and column.data_type.root not in (TypeRoot.CHAR, TypeRoot.STRING):
        raise InvalidRequest(f"{what} needs a text column, but it is {column.data_type}")
    if function in _WITH_LIST:
        return
    expected = 0 if function in _WITHOUT_LITERAL else 1
    if len(literals) != expected:
        raise InvalidRequest(f"{what} takes {expected} value(s), not {len(literals)}")
    if expected and literals[0] is None:
        raise InvalidRequest(f"{what} cannot compare with null; use is_null() or is_not_null()")
