"""Spark's filters -> `forebay.metadata.predicate`.

Spark passes filters as trees of V2 expressions. `forebay.spark.jvm.expressions` reads such a tree into values, and
`to_predicate` converts it, or returns None: then only Spark filters.

Rule: a converted filter accepts at least the rows that Spark's filter accepts. So a filter is converted exactly or not
at all: no collations, no nested fields, no columns of a higher precision than Spark's. NOT is pushed down to the
leaves, where three-valued logic allows it. Literals are text in Spark's internal form (dates are days, timestamps are
microseconds), which does not depend on time zones as Java's objects do.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from forebay.api.filters import as_predicate
from forebay.base.errors import InvalidRequest
from forebay.codec import filters
from forebay.codec.arrow.arrow_types import arrow_type, user_schema
from forebay.metadata.partitions import partition_value
from forebay.metadata.predicate import Compound, CompoundFunction, Leaf, LeafFunction, Predicate
from forebay.metadata.table import Column, PartitionInfo
from forebay.metadata.types import NESTED_ROOTS, TypeRoot
from forebay.spark.jvm.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    Expression,
    Function,
    Literal,
    Literals,
    Reference,
    read_expression,
)
from forebay.spark.schemas import MICROSECOND_DIGITS

if TYPE_CHECKING:
    from forebay.spark.jvm.gateway import JavaObject

_F = LeafFunction
_C = CompoundFunction


_COMPARISONS = {
    "=": _F.EQUAL,
    "<>": _F.NOT_EQUAL,
    "<": _F.LESS_THAN,
    "<=": _F.LESS_OR_EQUAL,
    ">": _F.GREATER_THAN,
    ">=": _F.GREATER_OR_EQUAL,
}
_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TEXT = {"STARTS_WITH": _F.STARTS_WITH, "ENDS_WITH": _F.ENDS_WITH, "CONTAINS": _F.CONTAINS}
_NEGATED = {
    _F.EQUAL: _F.NOT_EQUAL,
    _F.NOT_EQUAL: _F.EQUAL,
    _F.LESS_THAN: _F.GREATER_OR_EQUAL,
    _F.LESS_OR_EQUAL: _F.GREATER_THAN,
    _F.GREATER_THAN: _F.LESS_OR_EQUAL,
    _F.GREATER_OR_EQUAL: _F.LESS_THAN,
    _F.IS_NULL: _F.IS_NOT_NULL,
    _F.IS_NOT_NULL: _F.IS_NULL,
    _F.IN: _F.NOT_IN,
    _F.NOT_IN: _F.IN,
}


class _NotConvertible(Exception):
    """Only Spark can evaluate this filter."""


def predicate_of(text: str, columns: Sequence[Column]) -> Predicate:
    """The filter of an SQL text (option `filter`), for readers without a Spark session that could parse it.

    Raises `InvalidRequest` if it is no filter on `columns`, and for columns of a higher precision than Spark's.
    """
    parsed = as_predicate(text, user_schema(columns))
    assert parsed is not None  # it is None only for None
    predicate = filters.normalize(parsed, columns)
    _require_comparable(text, predicate, {column.name: column for column in columns})
    return predicate


def _require_comparable(text: str, predicate: Predicate, columns: Mapping[str, Column]) -> None:
    if isinstance(predicate, Compound):
        for child in predicate.children:
            _require_comparable(text, child, columns)
    elif isinstance(predicate, Leaf) and predicate.function not in (_F.IS_NULL, _F.IS_NOT_NULL):
        column = columns[predicate.column]
        if not _is_comparable(column):
            raise InvalidRequest(
                f"filter {text!r}: column '{column.name}' of type {column.data_type} can only be tested by IS NULL"
            )


def to_predicate(expression: Expression, columns: Sequence[Column]) -> Predicate | None:
    """The same filter on `columns`, or None if it cannot be expressed exactly."""
    try:
        predicate = _convert(expression, {column.name: column for column in columns}, negated=False)
        return filters.normalize(predicate, columns)
    except (_NotConvertible, InvalidRequest):
        return None


def _convert(expression: Expression, columns: Mapping[str, Column], negated: bool) -> Predicate:
    if not isinstance(expression, Function):
        raise _NotConvertible
    name, children = expression.name, expression.children
    if name == "NOT" and len(children) == 1:
        return _convert(children[0], columns, not negated)
    if name in ("AND", "OR") and len(children) >= 2:
        # De Morgan; it holds in three-valued logic too.
        function = _C.AND if (name == "AND") != negated else _C.OR
        return Compound(function, tuple(_convert(child, columns, negated) for child in children))
    if name == "<=>":
        return _null_safe_equal(children, columns, negated)
    leaf = _leaf(name, children, columns)
    if not negated:
        return leaf
    opposite = _NEGATED.get(leaf.function)
    if opposite is None:
        raise _NotConvertible
    return Leaf(opposite, leaf.column, leaf.literals)


def _leaf(name: str, children: Sequence[Expression], columns: Mapping[str, Column]) -> Leaf:
    if name in ("IS_NULL", "IS_NOT_NULL") and len(children) == 1:
        return Leaf(LeafFunction[name], _column(children[0], columns).name)
    if len(children) != 2:
        raise _NotConvertible
    left, right = children
    if name in _COMPARISONS and isinstance(left, Literal):
        left, right, name = right, left, _MIRRORED[name]
    column = _comparable_column(left, columns)
    if name == "IN" and isinstance(right, Literals):
        return Leaf(_F.IN, column.name, tuple(literal_values(right)))
    function = _COMPARISONS.get(name, _TEXT.get(name))
    if function is None:
        raise _NotConvertible
    return Leaf(function, column.name, (_value(right),))


def _null_safe_equal(children: Sequence[Expression], columns: Mapping[str, Column], negated: bool) -> Predicate:
    if len(children) != 2:
        raise _NotConvertible
    left, right = reversed(children) if isinstance(children[0], Literal) else children
    column, value = _comparable_column(left, columns), _value(right)
    if value is None:
        return Leaf(_F.IS_NOT_NULL if negated else _F.IS_NULL, column.name)
    if not negated:
        return Leaf(_F.EQUAL, column.name, (value,))
    return Compound(_C.OR, (Leaf(_F.IS_NULL, column.name), Leaf(_F.NOT_EQUAL, column.name, (value,))))


def _column(expression: Expression, columns: Mapping[str, Column]) -> Column:
    if not isinstance(expression, Reference) or len(expression.parts) != 1:
        raise _NotConvertible
    column = columns.get(expression.parts[0])
    if column is None:
        raise InvalidRequest(f"there is no column '{expression.parts[0]}' to filter on; there are {', '.join(columns)}")
    return column


def _comparable_column(expression: Expression, columns: Mapping[str, Column]) -> Column:
    column = _column(expression, columns)
    if not _is_comparable(column):
        raise _NotConvertible
    return column


def _is_comparable(column: Column) -> bool:
    t = column.data_type
    finer = t.root in (TypeRoot.TIME, TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)
    return t.root not in NESTED_ROOTS and not (finer and (t.precision or 0) > MICROSECOND_DIGITS)


def _value(expression: Expression) -> Any:
    if not isinstance(expression, Literal):
        raise _NotConvertible
    return literal_values(expression)[0]


# ---- literals -------------------------------------------------------------------------------------------------------

_EPOCH = dt.datetime(1970, 1, 1)
_DECIMAL = re.compile(r"decimal\(\d+,-?\d+\)")
_TIME = re.compile(r"time\(\d\)")
_QUOTED = re.compile(r"'((?:[^']|'')*)'|null")


def literal_values(literal: Literal | Literals) -> list[Any]:
    """The Python values of a literal or an IN list, as pyarrow would give them."""
    name = json.loads(literal.type_json)
    if not isinstance(name, str):
        raise _NotConvertible
    read = _READERS.get(name)
    if read is None and _DECIMAL.fullmatch(name):
        read = Decimal
    if read is None and _TIME.fullmatch(name):
        read = _time
    if read is None:
        raise _NotConvertible
    texts = _listed(literal.text, name) if isinstance(literal, Literals) else [literal.text]
    try:
        return [None if text == "null" else read(text) for text in texts]
    except (KeyError, ValueError, ArithmeticError) as e:
        raise _NotConvertible from e


def _listed(text: str, type_name: str) -> list[str]:
    """The items of an IN list."""
    if type_name != "string":
        return text.split(", ") if text else []
    texts, position = [], 0
    while position < len(text):
        quoted = _QUOTED.match(text, position)
        if quoted is None or text[quoted.end() : quoted.end() + 2] not in (", ", ""):
            raise _NotConvertible
        texts.append(quoted.group())
        position = quoted.end() + 2
    return texts


def _string(text: str) -> str:
    quoted = _QUOTED.fullmatch(text)
    if quoted is None or quoted.group(1) is None:
        raise _NotConvertible
    return quoted.group(1).replace("''", "'")


def _binary(text: str) -> bytes:
    if not text.startswith("0x"):
        raise _NotConvertible
    return bytes.fromhex(text[2:])


def _time(text: str) -> dt.time:
    microseconds, nanoseconds = divmod(int(text), 1000)
    if nanoseconds:
        raise _NotConvertible
    return (_EPOCH + dt.timedelta(microseconds=microseconds)).time()


_READERS: dict[str, Any] = {
    "boolean": lambda text: {"true": True, "false": False}[text.lower()],
    "byte": int,
    "short": int,
    "integer": int,
    "long": int,
    "float": lambda text: float(np.float32(text)),
    "double": float,
    "string": _string,
    "binary": _binary,
    "date": lambda text: (_EPOCH + dt.timedelta(days=int(text))).date(),
    "timestamp": lambda text: (_EPOCH + dt.timedelta(microseconds=int(text))).replace(tzinfo=dt.UTC),
    "timestamp_ntz": lambda text: _EPOCH + dt.timedelta(microseconds=int(text)),
}


# ---- what filters say -----------------------------------------------------------------------------------------------

_SIGNS = {function: sign for sign, function in _COMPARISONS.items()}


def to_text(predicate: Predicate) -> str:
    """A readable form of a predicate, as shown by EXPLAIN."""
    if isinstance(predicate, Compound):
        return "(" + f" {predicate.function.name} ".join(to_text(child) for child in predicate.children) + ")"
    if not isinstance(predicate, Leaf):
        return repr(predicate)
    sign = _SIGNS.get(predicate.function, predicate.function.name.replace("_", " "))
    values = [str(value) if isinstance(value, dt.date) else repr(value) for value in predicate.literals[:10]]
    more = ", ..." if len(predicate.literals) > 10 else ""
    if predicate.function in (_F.IN, _F.NOT_IN):
        return f"{predicate.column} {sign} ({', '.join(values)}{more})"
    return " ".join([predicate.column, sign, *values])


def matching_partitions(
    partitions: Sequence[PartitionInfo], keys: Sequence[Column], predicates: Iterable[Predicate]
) -> list[PartitionInfo]:
    """The partitions whose values match all `predicates`, which refer to partition keys only."""
    conditions = list(predicates)
    if not conditions or not partitions:
        return list(partitions)
    arrays = []
    for position, key in enumerate(keys):
        values = [partition_value(key.data_type, partition.spec[position][1]) for partition in partitions]
        arrays.append(pa.array(values, arrow_type(key.data_type, "UTC")))
    table = pa.table(arrays, names=[key.name for key in keys])
    for condition in conditions:
        matches = filters.mask(filters.bind(condition, keys), table)
        partitions = [partition for partition, match in zip(partitions, matches.to_pylist()) if match]
        table = table.filter(matches)
    return list(partitions)


def key_values(
    predicates: Sequence[Predicate], key: Sequence[str], keys_max: int
) -> tuple[list[tuple[Any, ...]], list[Predicate]] | None:
    """The keys that `predicates` allow and the other predicates; None unless they fix every column of `key`.

    Also None for more than `keys_max` keys. Keys are tuples in the order of `key`, without duplicates.
    """
    allowed: dict[str, list[Any]] = {}
    rest: list[Predicate] = []
    for predicate in predicates:
        if not isinstance(predicate, Leaf) or predicate.column not in key:
            rest.append(predicate)
        elif predicate.function in (_F.EQUAL, _F.IN):
            previous = allowed.get(predicate.column)
            distinct = list(dict.fromkeys(value for value in predicate.literals if value is not None))
            allowed[predicate.column] = distinct if previous is None else [v for v in previous if v in distinct]
        elif predicate.function is not _F.IS_NOT_NULL:
            rest.append(predicate)
    if any(name not in allowed for name in key):
        return None
    if math.prod(len(allowed[name]) for name in key) > keys_max:
        return None
    return list(itertools.product(*(allowed[name] for name in key))), rest


_FLOATS = (TypeRoot.FLOAT, TypeRoot.DOUBLE)
_TIMESTAMPS = (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)
_SAFE_FOR_FLOATS = frozenset({"=", "<=>", "<", "<=", "IN"})
_MILLISECOND_DIGITS = 3


def may_skip_by(expression: Expression, columns: Sequence[Column]) -> bool:
    """Whether Spark's Parquet reader can safely skip rows by the filter `expression` on `columns`."""
    return _is_safe(expression, {column.name: column for column in columns}, negated=False)


def _is_safe(expression: Expression, columns: Mapping[str, Column], negated: bool) -> bool:
    if not isinstance(expression, Function):
        return False
    name, children = expression.name, expression.children
    if name == "NOT":
        return all(_is_safe(child, columns, not negated) for child in children)
    if name in ("AND", "OR"):
        return all(_is_safe(child, columns, negated) for child in children)
    if not children or not isinstance(children[0], Reference) or len(children[0].parts) != 1:
        return False
    column = columns.get(children[0].parts[0])
    if column is None:
        return False
    if name in ("IS_NULL", "IS_NOT_NULL"):
        return True
    root = column.data_type.root
    if root in _FLOATS:
        plain = (isinstance(v, float) and v != 0 and not math.isnan(v) for v in _values(children[1:]))
        return not negated and name in _SAFE_FOR_FLOATS and all(plain)
    if root in _TIMESTAMPS and (column.data_type.precision or 0) <= _MILLISECOND_DIGITS:
        return all(hasattr(v, "microsecond") and v.microsecond % 1000 == 0 for v in _values(children[1:]))
    return True


def _values(expressions: Iterable[Expression]) -> list[Any]:
    """The values of literals. Other expressions are returned as they are; their values are unknown."""
    values: list[Any] = []
    for expression in expressions:
        values += literal_values(expression) if isinstance(expression, Literal | Literals) else [expression]
    return values


def predicates_of(predicates: Iterable[JavaObject], columns: Sequence[Column]) -> tuple[list[Predicate] | None, bool]:
    """The conditions of these predicates of the JVM (None: no row can match), and whether they are complete.

    They are incomplete if there are predicates that only Spark can evaluate.
    """
    conditions = []
    is_whole = True
    for java in predicates:
        expression = read_expression(java)
        if expression == ALWAYS_TRUE:
            continue
        if expression == ALWAYS_FALSE:
            return None, True
        predicate = to_predicate(expression, columns)
        if predicate is None:
            is_whole = False
        else:
            conditions.append(predicate)
    return conditions, is_whole
