"""Filters as users write them: `forebay.col("a") > 5`, SQL text, or a pyarrow expression; all become a `Predicate`.

SQL text is parsed by sqlglot in Spark's dialect. A pyarrow expression is read from its serialized form (that of its
pickles: `arrow::compute::Serialize`): a record batch of the literals, whose metadata is the tree in prefix order.
Column names are resolved later, when the predicate is applied. A string compared with a column of another type is cast
to that type, as in Spark.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from forebay.api.data import ArrowExpression
from forebay.base.arguments import did_you_mean
from forebay.base.errors import InvalidRequest
from forebay.metadata.predicate import Compound, CompoundFunction, Leaf, LeafFunction, Predicate, all_of

FilterLike: TypeAlias = Predicate | str | ArrowExpression
"""A filter: `forebay.col("amount") > 5`, SQL text such as "amount > 5", or a pyarrow expression."""

SQL_LENGTH_MAX = 1 << 16

_NEGATED = {
    LeafFunction.EQUAL: LeafFunction.NOT_EQUAL,
    LeafFunction.LESS_THAN: LeafFunction.GREATER_OR_EQUAL,
    LeafFunction.LESS_OR_EQUAL: LeafFunction.GREATER_THAN,
    LeafFunction.IS_NULL: LeafFunction.IS_NOT_NULL,
    LeafFunction.IN: LeafFunction.NOT_IN,
}
_NEGATED |= {opposite: function for function, opposite in _NEGATED.items()}
_PARTS = frozenset({"this", "expression", "expressions", "low", "high", "negate"})
"""The supported arguments of sqlglot's nodes."""

_KEYWORDS = ("AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL", "TRUE", "FALSE", "DATE", "TIMESTAMP")

_MIRRORED = {
    LeafFunction.EQUAL: LeafFunction.EQUAL,
    LeafFunction.NOT_EQUAL: LeafFunction.NOT_EQUAL,
    LeafFunction.LESS_THAN: LeafFunction.GREATER_THAN,
    LeafFunction.LESS_OR_EQUAL: LeafFunction.GREATER_OR_EQUAL,
    LeafFunction.GREATER_THAN: LeafFunction.LESS_THAN,
    LeafFunction.GREATER_OR_EQUAL: LeafFunction.LESS_OR_EQUAL,
}
"""The same comparison with its sides swapped."""


def as_predicate(condition: Any, schema: pa.Schema) -> Predicate | None:
    """`condition` as a predicate on rows of `schema`; None for None.

    Raises `InvalidRequest` for anything else, naming the part that is not supported.
    """
    if condition is None or isinstance(condition, Predicate):
        return condition
    if isinstance(condition, str):
        return _Sql(condition, schema).predicate()
    if isinstance(condition, pc.Expression):
        return _Serialized(condition).predicate()
    raise InvalidRequest(
        f"filter={condition!r} is not a filter: write forebay.col('amount') > 5, SQL text such as \"amount > 5\", or a "
        "pyarrow expression"
    )


def negated(predicate: Predicate) -> Predicate:
    """The rows for which `predicate` is false (neither true nor unknown). Raises `InvalidRequest` for text searches."""
    if isinstance(predicate, Compound):
        function = CompoundFunction.OR if predicate.function is CompoundFunction.AND else CompoundFunction.AND
        return Compound(function, tuple(map(negated, predicate.children)))
    assert isinstance(predicate, Leaf)
    if predicate.function not in _NEGATED:
        raise InvalidRequest(f"filter: NOT {predicate.function.name} on column '{predicate.column}' is not supported")
    return Leaf(_NEGATED[predicate.function], predicate.column, predicate.literals)


# ---- SQL ------------------------------------------------------------------------------------------------------------


class _Sql:
    """A parser of one SQL filter. Every method takes nodes of sqlglot's tree."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text, self._schema = text, schema

    def predicate(self) -> Predicate:
        from sqlglot import exp, parse
        from sqlglot.errors import ParseError, SqlglotError

        if len(self._text) > SQL_LENGTH_MAX:
            raise InvalidRequest(f"a filter of {len(self._text)} characters is too long; use forebay.col(...).is_in")
        self._exp = exp
        self._comparisons: dict[Any, LeafFunction] = {
            exp.EQ: LeafFunction.EQUAL,
            exp.NEQ: LeafFunction.NOT_EQUAL,
            exp.LT: LeafFunction.LESS_THAN,
            exp.LTE: LeafFunction.LESS_OR_EQUAL,
            exp.GT: LeafFunction.GREATER_THAN,
            exp.GTE: LeafFunction.GREATER_OR_EQUAL,
        }
        try:
            statements = parse(self._text, dialect="spark")
            if len(statements) != 1 or statements[0] is None:
                raise InvalidRequest(f"filter {self._text!r} is not one condition")
            return self._condition(statements[0])
        except SqlglotError as e:
            reason = self._pointed_at(e.errors[0]) if isinstance(e, ParseError) and e.errors else str(e)
            raise InvalidRequest(f"filter {self._text!r} is not SQL: {reason}") from e
        except RecursionError as e:
            raise InvalidRequest("the filter is nested too deeply; use forebay.col(...).is_in for long lists") from e

    def _pointed_at(self, error: dict[str, Any]) -> str:
        """Return the fault and the word where it is. The typo is often the word before that one."""
        at, why = error["highlight"] or "", error["description"]
        if why.startswith("Required keyword"):  # and the name of a class of sqlglot's
            why = "a value is missing"
        hint, columns = "", {name.upper() for name in self._schema.names}
        for word in re.findall(r"[A-Za-z_]\w*", f"{error['start_context']} {at}")[-2:]:
            if word.upper() not in columns and word.upper() not in _KEYWORDS:
                hint = hint or did_you_mean(word, _KEYWORDS).replace("did you mean", f"'{word}': did you mean")
        return f"{why}, at {at!r} in column {error['col'] - len(at) + 1}{hint}"

    def _condition(self, node: Any) -> Predicate:
        exp = self._exp
        if any(value for name, value in node.args.items() if name not in _PARTS):
            raise self._unsupported(node)  # an unknown modifier, such as SYMMETRIC, may change the meaning
        if isinstance(node, exp.Paren):
            return self._condition(node.this)
        if isinstance(node, exp.And | exp.Or):
            # Flat: nested pairs would be as deep as there are conditions, which hundreds of them make too deep.
            function = CompoundFunction.AND if isinstance(node, exp.And) else CompoundFunction.OR
            return Compound(function, tuple(map(self._condition, node.flatten())))
        if isinstance(node, exp.Not):
            return negated(self._condition(node.this))
        if isinstance(node, exp.Column):
            return Leaf(LeafFunction.EQUAL, self._column(node), (True,))
        if type(node) in self._comparisons:
            return self._comparison(self._comparisons[type(node)], node.this, node.expression)
        if isinstance(node, exp.NullSafeEQ | exp.Is):
            if isinstance(node.expression, exp.Null):
                return Leaf(LeafFunction.IS_NULL, self._column(node.this))
            return self._comparison(LeafFunction.EQUAL, node.this, node.expression) & Leaf(
                LeafFunction.IS_NOT_NULL, self._column(node.this)
            )
        if isinstance(node, exp.Between):
            return self._comparison(LeafFunction.GREATER_OR_EQUAL, node.this, node.args["low"]) & self._comparison(
                LeafFunction.LESS_OR_EQUAL, node.this, node.args["high"]
            )
        if isinstance(node, exp.In) and node.expressions:
            name = self._column(node.this)
            return Leaf(LeafFunction.IN, name, tuple(self._literal(v, name) for v in node.expressions))
        if isinstance(node, exp.Like):
            return self._like(node)
        raise self._unsupported(node)

    def _comparison(self, function: LeafFunction, left: Any, right: Any) -> Leaf:
        if not isinstance(_bare(left, self._exp), self._exp.Column):
            left, right, function = right, left, _MIRRORED[function]
        name = self._column(left)
        return Leaf(function, name, (self._literal(right, name),))

    def _column(self, node: Any) -> str:
        node = _bare(node, self._exp)
        if not isinstance(node, self._exp.Column):
            raise self._unsupported(node)
        return ".".join(part.name for part in node.parts)

    def _literal(self, node: Any, column: str) -> Any:
        exp, node = self._exp, _bare(node, self._exp)
        if isinstance(node, exp.Null):
            return None
        if isinstance(node, exp.Boolean):
            return bool(node.this)
        if isinstance(node, exp.HexString):
            return _value(node.name, pa.binary(), column)
        if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
            return -self._number(node.this.name, column)
        if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal):
            return self._cast(node, column)
        if not isinstance(node, exp.Literal):
            raise self._unsupported(node)
        return self._typed(node.name, column) if node.is_string else self._number(node.name, column)

    def _number(self, text: str, column: str) -> int | float | Decimal:
        if text.isdigit():
            return int(text)
        t = self._type_of(column)
        return float(text) if t is not None and pa.types.is_floating(t) else Decimal(text)

    def _cast(self, node: Any, column: str) -> Any:
        kinds = {"DATE": pa.date32(), "TIME": pa.time64("us"), "TIMESTAMPNTZ": pa.timestamp("us")}
        kind, text = node.to.this.name, node.this.name
        if kind in ("TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ"):  # the column decides what Spark's TIMESTAMP means
            t = self._type_of(column)
            return _value(text, t if t is not None and pa.types.is_timestamp(t) else pa.timestamp("us"), column)
        if kind == "DECIMAL":
            return self._number(text, column)
        if kind not in kinds:
            raise self._unsupported(node)
        return _value(text, kinds[kind], column)

    def _typed(self, text: str, column: str) -> Any:
        """A quoted string as a value of the column's type."""
        t = self._type_of(column)
        if t is None or pa.types.is_nested(t) or _is_text(t):
            return text
        return text.encode() if _is_binary(t) else _value(text, t, column)

    def _type_of(self, column: str) -> pa.DataType | None:
        place = self._schema.get_field_index(column)
        return None if place < 0 else self._schema.field(place).type

    def _like(self, node: Any) -> Predicate:
        name, pattern = self._column(node.this), node.expression
        if not (isinstance(pattern, self._exp.Literal) and pattern.is_string):
            raise self._unsupported(node)
        text = pattern.name
        part = text.strip("%")
        if any(mark in part for mark in "%_\\") or (text and not part):
            raise InvalidRequest(f"filter {self._text!r}: LIKE takes 'a', 'a%', '%a' and '%a%' here, not {text!r}")
        starts, ends = text.startswith("%"), text.endswith("%")
        function = {
            (False, False): LeafFunction.EQUAL,
            (False, True): LeafFunction.STARTS_WITH,
            (True, False): LeafFunction.ENDS_WITH,
            (True, True): LeafFunction.CONTAINS,
        }[starts, ends]
        leaf = Leaf(function, name, (part,))
        return negated(leaf) if node.args.get("negate") else leaf

    def _unsupported(self, node: Any) -> InvalidRequest:
        return InvalidRequest(
            f"filter {self._text!r}: {node.sql(dialect='spark')!r} cannot be part of it. Compare columns with values "
            "by =, !=, <, <=, >, >=, IN, BETWEEN, LIKE or IS NULL, joined by AND, OR and NOT; texts, dates and times "
            "stand in single quotes"
        )


def _bare(node: Any, exp: Any) -> Any:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _is_text(t: pa.DataType) -> bool:
    return bool(pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t))


def _is_binary(t: pa.DataType) -> bool:
    return bool(pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_fixed_size_binary(t))


def _value(text: str, t: pa.DataType, column: str) -> Any:
    """`text` as a value of type `t`, as `as_py()` returns it. Raises `InvalidRequest`."""
    try:
        if pa.types.is_time(t):
            return dt.time.fromisoformat(text)
        if pa.types.is_timestamp(t):
            return _timestamp(text, t)
        return bytes.fromhex(text) if _is_binary(t) else pa.scalar(text).cast(t).as_py()
    except (pa.ArrowException, ValueError) as e:
        from forebay.codec.arrow.arrow_types import sql_fault, sql_name

        fault = sql_fault(e, t)
        raise InvalidRequest(f"filter: column '{column}' is {sql_name(t)}, and {text!r} is not: {fault}") from e


def _timestamp(text: str, t: pa.DataType) -> Any:
    """A time of the column's unit, or of a finer one: comparisons take a time between two values of the column.

    Raises the `pa.ArrowException` of the column's unit if the text is no time.
    """
    has_no_offset = t.tz and not re.search(r"(Z|[+-]\d\d:?\d\d)$", text)  # it is in UTC

    def parsed(unit: str) -> pa.Scalar:
        finer = pa.timestamp(unit, t.tz)
        return pa.scalar(text).cast(pa.timestamp(unit)).cast(finer) if has_no_offset else pa.scalar(text).cast(finer)

    try:
        return parsed(t.unit).as_py()
    except pa.ArrowInvalid:
        with suppress(pa.ArrowInvalid):
            return parsed("us").as_py()
        with suppress(pa.ArrowInvalid):
            return parsed("ns")  # a scalar: datetime has no nanoseconds
        raise


# ---- pyarrow --------------------------------------------------------------------------------------------------------

_CALLS = {
    "equal": LeafFunction.EQUAL,
    "not_equal": LeafFunction.NOT_EQUAL,
    "less": LeafFunction.LESS_THAN,
    "less_equal": LeafFunction.LESS_OR_EQUAL,
    "greater": LeafFunction.GREATER_THAN,
    "greater_equal": LeafFunction.GREATER_OR_EQUAL,
}
_SEARCHES = {
    "starts_with": LeafFunction.STARTS_WITH,
    "ends_with": LeafFunction.ENDS_WITH,
    "match_substring": LeafFunction.CONTAINS,
}
_ENTRY = re.compile(r"^(call|field_ref|nested_field_ref|literal|options|end): '(.*)'$")
_MATCHES_NULL = 0


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of a pyarrow expression: a call (with children), or a "field_ref", "nested_field_ref" or "literal"."""

    kind: str
    name: str
    children: tuple[_Node, ...] = ()
    value: Any = None
    """The value of a literal, the options of a call."""


class _Serialized:
    """A parser of one pyarrow expression in its serialized form."""

    def __init__(self, expression: pc.Expression) -> None:
        self._expression = expression
        with pa.ipc.open_file(expression.__reduce__()[1][0]) as file:
            self._literals = file.get_batch(0)
        # `schema.metadata` is a dict and keeps one entry for each key; the text has all of them, in order.
        text = self._literals.schema.to_string(truncate_metadata=False).partition("-- schema metadata --\n")[2]
        entries = [_ENTRY.match(line) for line in text.splitlines()]
        if not entries or None in entries:
            raise self._unsupported("it")
        self._entries: Iterator[tuple[str, str]] = iter([(e[1], e[2]) for e in entries if e is not None])
        self._tree = self._node(*next(self._entries))

    def _node(self, kind: str, name: str) -> _Node:
        if kind == "literal":
            return _Node(kind, name, value=python_value(self._literals.column(int(name))[0]))
        if kind == "nested_field_ref":
            return _Node(kind, ".".join(next(self._entries)[1] for _ in range(int(name))))
        if kind != "call":
            return _Node(kind, name)
        children, options = list[_Node](), dict[str, Any]()
        for entry, value in self._entries:
            if entry == "end":
                return _Node(kind, name, tuple(children), options)
            if entry == "options":
                scalar = self._literals.column(int(value))[0]
                options = {key: scalar[key] for key in scalar}
            else:
                children.append(self._node(entry, value))
        raise self._unsupported(f"{name}(...)")

    def predicate(self) -> Predicate:
        return self._predicate(self._tree)

    def implied(self) -> tuple[Predicate | None, bool]:
        """See `implied_by`."""
        parts, is_all, pending = list[Predicate](), True, [self._tree]
        while pending:
            node = pending.pop()
            if node.kind == "call" and node.name == "and_kleene":
                pending += reversed(node.children)
                continue
            try:
                parts.append(self._predicate(node))
            except InvalidRequest:
                is_all = False
        return all_of(parts), is_all

    def _predicate(self, node: _Node) -> Predicate:
        kind, name, arguments, options = node.kind, node.name, node.children, node.value
        if kind == "field_ref":
            return Leaf(LeafFunction.EQUAL, name, (True,))
        if kind != "call":
            raise self._unsupported(f"a {kind.replace('_', ' ')} in place of a condition")
        if name in ("and_kleene", "or_kleene"):
            function = CompoundFunction.AND if name == "and_kleene" else CompoundFunction.OR
            return Compound(function, tuple(map(self._predicate, arguments)))
        if name == "invert":
            return negated(self._predicate(arguments[0]))
        if name in _CALLS:
            return self._comparison(_CALLS[name], *arguments)
        if name == "if_else":
            return self._unless_null(*arguments)
        column = self._column(arguments[0])
        if name in ("is_null", "is_valid") and not (options and options["nan_is_null"].as_py()):
            return Leaf(LeafFunction.IS_NULL if name == "is_null" else LeafFunction.IS_NOT_NULL, column)
        if name in _SEARCHES and not options["ignore_case"].as_py():
            pattern = options["pattern"].as_py()
            return Leaf(_SEARCHES[name], column, (pattern.decode() if isinstance(pattern, bytes) else pattern,))
        if name == "is_in":
            return self._is_in(column, options)
        raise self._unsupported(f"{name}(...)")

    def _unless_null(self, condition: _Node, then: _Node, otherwise: _Node) -> Predicate:
        """`if_else(is_valid(a), a IN (...), null)`, as DuckDB writes it: a leaf is null for a null anyway."""
        predicate, tested = self._predicate(then), self._predicate(condition)
        if (
            isinstance(predicate, Leaf)
            and tested == Leaf(LeafFunction.IS_NOT_NULL, predicate.column)
            and otherwise.kind == "literal"
            and otherwise.value is None
        ):
            return predicate
        raise self._unsupported("if_else(...)")

    def _comparison(self, function: LeafFunction, left: _Node, right: _Node) -> Leaf:
        if left.kind == "literal":
            left, right, function = right, left, _MIRRORED[function]
        if right.kind != "literal":
            raise self._unsupported("a comparison of two columns")
        return Leaf(function, self._column(left), (right.value,))

    def _column(self, argument: _Node) -> str:
        if argument.kind != "field_ref":
            raise self._unsupported("a value computed from columns")
        return argument.name

    def _is_in(self, column: str, options: dict[str, Any]) -> Predicate:
        values = [python_value(value) for value in options["value_set"].values]
        predicate: Predicate = Leaf(LeafFunction.IN, column, tuple(v for v in values if v is not None))
        if None in values and options["null_matching_behavior"].as_py() == _MATCHES_NULL:
            predicate = predicate | Leaf(LeafFunction.IS_NULL, column)
        return predicate

    def _unsupported(self, what: str) -> InvalidRequest:
        return InvalidRequest(
            f"filter {self._expression}: {what} cannot be pushed down; compare columns with values, or filter the rows "
            "that come back"
        )


def python_value(scalar: pa.Scalar) -> Any:
    """The value of a scalar as Python has it; the scalar where Python has no such value (nanoseconds, year 10000)."""
    t = scalar.type
    if scalar.is_valid and pa.types.is_temporal(t) and getattr(t, "unit", "") == "ns":
        return scalar
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return scalar


def implied_by(expression: pc.Expression) -> tuple[Predicate | None, bool]:
    """The conjuncts of a pyarrow expression that a predicate can express, and whether these are all of it.

    Where they are not, more rows may match the predicate (None: all rows) than the expression.
    """
    try:
        return _Serialized(expression).implied()
    except InvalidRequest:
        return None, False
