"""Which of Spark's filters its own Parquet reader may skip row groups and pages by.

Spark tests each row of a file once more, so a filter that is kept from the Parquet reader costs time and no rows. One
that is handed over must not rule out rows that Spark's own test would let through. Spark's Parquet reader does so:

- **FLOAT and DOUBLE.** For Spark 0.0 equals -0.0, and NaN equals NaN and is greater than everything. For Parquet's
  dictionaries the zeros are different values, and statistics leave NaN out. So only comparisons that neither a NaN nor
  a zero can satisfy are handed over: `=`, `<`, `<=` and IN, not negated, with numbers other than 0 and NaN.
- **TIMESTAMP in milliseconds.** A literal with microseconds is cut off, which turns `v < 00:00:00.1234` into
  `v < 00:00:00.123`.

Anything that is not known to be safe is not handed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from forebay.metadata.table import Column
from forebay.metadata.types import TypeRoot
from forebay.spark.filters import literal_values
from forebay.spark.jvm.expressions import Expression, Function, Literal, Literals, Reference

_FLOATS = (TypeRoot.FLOAT, TypeRoot.DOUBLE)
_TIMESTAMPS = (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)
_SAFE_FOR_FLOATS = frozenset({"=", "<=>", "<", "<=", "IN"})
_NULL_TESTS = frozenset({"IS_NULL", "IS_NOT_NULL"})
_MILLISECOND_DIGITS = 3


def may_skip_by(expression: Expression, columns: Sequence[Column]) -> bool:
    """Whether Spark's Parquet reader may skip rows by the filter `expression` on `columns`."""
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
    if name in _NULL_TESTS:
        return True
    root = column.data_type.root
    if root in _FLOATS:
        return not negated and name in _SAFE_FOR_FLOATS and all(map(_is_plain_number, _values(children[1:])))
    if root in _TIMESTAMPS and (column.data_type.precision or 0) <= _MILLISECOND_DIGITS:
        return all(map(_is_whole_milliseconds, _values(children[1:])))
    return True


def _values(expressions: Iterable[Expression]) -> list[Any]:
    """The values of literals; one that is none stands for an expression that cannot be judged."""
    found: list[Any] = []
    for expression in expressions:
        found += literal_values(expression) if isinstance(expression, Literal | Literals) else [expression]
    return found


def _is_plain_number(value: Any) -> bool:
    return isinstance(value, float) and value != 0 and not math.isnan(value)


def _is_whole_milliseconds(value: Any) -> bool:
    return hasattr(value, "microsecond") and value.microsecond % 1000 == 0
