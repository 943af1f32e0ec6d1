"""Random tables of error-prone values, random filters on them, and the rows that a filter accepts.

`matches` is the reference in Python, row by row, by the rules of SQL and of Spark's order of floats. It shares no code
with the filters that it tests.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from forebay.metadata import types
from forebay.metadata.predicate import Compound, CompoundFunction, Leaf, LeafFunction, Predicate
from forebay.metadata.table import Column
from forebay.metadata.types import DataType, TypeRoot

NAN_PATTERNS = [struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (0x7FF8 << 48, 0xFFF8 << 48 | 0xDEAD << 29)]
FLOATS = [0.0, -0.0, *NAN_PATTERNS, math.inf, -math.inf, 1.5, -1.5, 2.0**-149, 3.4028234663852886e38, 16777216.0]
DOUBLES = [*FLOATS, 1e300, -1e300, 5e-324, 0.1, 1.7976931348623157e308]
TEXTS = [
    "",
    " ",
    "a",
    "a ",
    "ab",
    "A",
    "b",
    "aZ",
    "é",
    "e\u0301",
    "\uffff",
    "\U0001f642",
    "\U0001f642a",
    "x'y",
    "%",
    "_",
]
DATES = [dt.date(*d) for d in ((1, 1, 1), (1500, 2, 28), (1582, 10, 4), (1582, 10, 15), (1969, 12, 31), (1970, 1, 1),
                               (2024, 2, 29), (9999, 12, 31))]  # fmt: skip
MOMENTS = [dt.datetime(*m) for m in ((1, 1, 2), (1500, 2, 28, 1, 2, 3, 4567), (1969, 12, 31, 23, 59, 59, 999999),
           (1969, 12, 31, 23, 59, 59, 999000), (1970, 1, 1), (2024, 2, 29, 12), (2024, 2, 29, 12, 0, 0, 123000),
           (2024, 2, 29, 12, 0, 0, 123456), (2024, 10, 27, 1, 30))]  # fmt: skip
_MILLIS = [m.replace(microsecond=m.microsecond // 1000 * 1000) for m in MOMENTS]


def _zoned(moments: Sequence[dt.datetime]) -> list[dt.datetime]:
    return [m.replace(tzinfo=dt.UTC) for m in moments]


def _decimals(*texts: str) -> list[Decimal]:
    return [Decimal(text) for text in texts]


KINDS: dict[str, tuple[DataType, list[Any]]] = {
    "bool": (types.boolean(), [True, False]),
    "tiny": (types.tinyint(), [-128, -1, 0, 1, 127]),
    "small": (types.smallint(), [-(2**15), 0, 1, 2**15 - 1]),
    "int": (types.int_(), [-(2**31), -1, 0, 1, 2**31 - 1]),
    "big": (types.bigint(), [-(2**63), -1, 0, 1, 2**53 + 1, 2**63 - 1]),
    "float": (types.float_(), FLOATS),
    "double": (types.double(), DOUBLES),
    "dec4": (types.decimal(4, 2), _decimals("-99.99", "-0.01", "0.00", "0.01", "1.50", "99.99")),
    "dec18": (types.decimal(18, 4), _decimals("-99999999999999.9999", "0.0000", "0.0001", "12345678901234.5678")),
    "dec38": (types.decimal(38, 10), _decimals("-" + "9" * 28 + ".9999999999", "0", "0.0000000001", "9" * 28)),
    "text": (types.string(), TEXTS),
    "char": (types.char(3), ["a", "ab", "abc", "é", "\U0001f642"]),
    "bytes": (types.bytes_(), [b"", b"\0", b"a", b"\x7f", b"\x80", b"\xff", b"\xff\xff"]),
    "date": (types.date(), DATES),
    "micros": (types.timestamp(6), MOMENTS),
    "millis": (types.timestamp(3), _MILLIS),
    "instant": (types.timestamp_ltz(6), _zoned(MOMENTS)),
    "instant3": (types.timestamp_ltz(3), _zoned(_MILLIS)),
}
COLUMNS = (Column("id", types.bigint().not_null()), *(Column(name, kind[0]) for name, kind in KINDS.items()))
TEXT_KINDS = ("text", "char")
FINE = {"millis": MOMENTS, "instant3": _zoned(MOMENTS)}
"""Literals for columns of milliseconds that lie between their values, too."""

Row = dict[str, Any]


def random_rows(rng: random.Random, count: int, first_id: int = 0) -> list[Row]:
    """Rows with ids from `first_id` on. Often all rows have few values in a column, so that ranges are narrow."""
    chosen = {name: rng.sample(values, min(len(values), rng.choice([1, 1, 2, len(values)])))
              for name, (_, values) in KINDS.items()}  # fmt: skip
    nulls = {name: rng.choice([0.0, 0.0, 0.3, 1.0]) for name in KINDS}
    return [
        {"id": first_id + i, **{n: None if rng.random() < nulls[n] else rng.choice(v) for n, v in chosen.items()}}
        for i in range(count)
    ]


# ---- conditions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Test:
    """`column operator values`."""

    operator: str
    column: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Join:
    """AND or OR of the parts."""

    operator: str
    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Not:
    """The opposite; unknown stays unknown."""

    part: Condition


Condition = Test | Join | Not

_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
_PREDICATES = {
    "=": LeafFunction.EQUAL,
    "<>": LeafFunction.NOT_EQUAL,
    "<": LeafFunction.LESS_THAN,
    "<=": LeafFunction.LESS_OR_EQUAL,
    ">": LeafFunction.GREATER_THAN,
    ">=": LeafFunction.GREATER_OR_EQUAL,
    "IN": LeafFunction.IN,
    "NOT IN": LeafFunction.NOT_IN,
    "IS NULL": LeafFunction.IS_NULL,
    "IS NOT NULL": LeafFunction.IS_NOT_NULL,
    "STARTS": LeafFunction.STARTS_WITH,
    "ENDS": LeafFunction.ENDS_WITH,
    "CONTAINS": LeafFunction.CONTAINS,
}


def random_condition(
    rng: random.Random, *, sql: bool, columns: Sequence[str] = tuple(KINDS), depth: int = 2
) -> Condition:
    """A filter; with `sql` also with NOT and `<=>`, which predicates do not have."""
    if depth and rng.random() < 0.4:
        parts = [random_condition(rng, sql=sql, columns=columns, depth=depth - 1) for _ in range(rng.randint(2, 3))]
        return Join(rng.choice(["AND", "OR"]), tuple(parts))
    if sql and depth and rng.random() < 0.2:
        return Not(random_condition(rng, sql=sql, columns=columns, depth=depth - 1))
    column = rng.choice(list(columns))
    operators = [*_COMPARISONS, *_COMPARISONS, "IN", "IN", "NOT IN", "IS NULL", "IS NOT NULL"]
    operators += ["<=>", "<=>"] if sql else []
    operators += ["STARTS", "ENDS", "CONTAINS"] * 2 if column in TEXT_KINDS else []
    operator = rng.choice(operators)
    pool = FINE.get(column, KINDS[column][1])
    if operator.startswith("IS"):
        return Test(operator, column)
    if operator.endswith("IN"):
        values = [rng.choice([*pool, None] if sql else pool) for _ in range(rng.randint(1, 4))]
        return Test(operator, column, tuple(values))
    if operator in ("STARTS", "ENDS", "CONTAINS"):
        return Test(operator, column, (rng.choice([t for t in TEXTS if t not in ("%", "_")]),))
    return Test(operator, column, (rng.choice(pool),))


def predicate(condition: Condition) -> Predicate:
    """The filter as forebay's predicate."""
    match condition:
        case Join(operator, parts):
            return Compound(CompoundFunction[operator], tuple(predicate(part) for part in parts))
        case Test(operator, column, values):
            return Leaf(_PREDICATES[operator], column, values)
    raise AssertionError(f"{condition} has no predicate")


def matches(condition: Condition, row: Row) -> bool | None:
    """Whether the filter lets `row` through; None is unknown, and lets nothing through."""
    match condition:
        case Not(part):
            inner = matches(part, row)
            return None if inner is None else not inner
        case Join(operator, parts):
            found = [matches(part, row) for part in parts]
            decisive = operator == "OR"
            if decisive in found:
                return decisive
            return None if None in found else not decisive
        case Test(operator, column, values):
            return _test(operator, row[column], values)
    raise AssertionError(condition)


def _test(operator: str, value: Any, values: tuple[Any, ...]) -> bool | None:
    if operator in ("IS NULL", "IS NOT NULL"):
        return (value is None) == (operator == "IS NULL")
    if operator == "<=>":
        return (value is None and values[0] is None) or (
            None not in (value, values[0]) and _key(value) == _key(values[0])
        )
    if value is None:
        return None
    if operator in ("IN", "NOT IN"):
        found = any(v is not None and _key(v) == _key(value) for v in values)
        if not found and None in values:
            return None
        return found == (operator == "IN")
    if operator == "STARTS":
        return bool(value.startswith(values[0]))
    if operator == "ENDS":
        return bool(value.endswith(values[0]))
    if operator == "CONTAINS":
        return values[0] in value
    left, right = _key(value), _key(values[0])
    outcomes = {"=": left == right, "<>": left != right, "<": left < right, "<=": left <= right, ">": left > right,
                ">=": left >= right}  # fmt: skip
    return bool(outcomes[operator])


def _key(value: Any) -> Any:
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


# ---- as SQL ---------------------------------------------------------------------------------------------------------


def sql_of(condition: Condition) -> str:
    """The filter in Spark's SQL."""
    match condition:
        case Not(part):
            return f"(NOT {sql_of(part)})"
        case Join(operator, parts):
            return "(" + f" {operator} ".join(sql_of(part) for part in parts) + ")"
        case Test("IS NULL" | "IS NOT NULL", column, _):
            return f"({column} {condition.operator})"
        case Test("IN" | "NOT IN", column, values):
            return f"({column} {condition.operator} ({', '.join(_literal(column, v) for v in values)}))"
        case Test("STARTS" | "ENDS" | "CONTAINS", column, values):
            before = "" if condition.operator == "STARTS" else "%"
            after = "" if condition.operator == "ENDS" else "%"
            return f"({column} LIKE {_quoted(before + values[0] + after)})"
        case Test(operator, column, values):
            return f"({column} {operator} {_literal(column, values[0])})"
    raise AssertionError(condition)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _literal(column: str, value: Any) -> str:
    if value is None:
        return "NULL"
    t = KINDS[column][0]
    match t.root:
        case TypeRoot.FLOAT | TypeRoot.DOUBLE:
            return f"CAST('{value!r}' AS {t.root.name})".replace("nan", "NaN").replace("inf", "Infinity")
        case TypeRoot.DECIMAL:
            return f"CAST('{value}' AS DECIMAL({t.precision}, {t.scale}))"
        case TypeRoot.BYTES:
            return f"X'{value.hex()}'"
        case TypeRoot.DATE:
            return f"DATE'{value.isoformat()}'"
        case TypeRoot.TIMESTAMP:
            return f"TIMESTAMP_NTZ'{value.isoformat(' ')}'"
        case TypeRoot.TIMESTAMP_LTZ:
            return f"TIMESTAMP_LTZ'{value.replace(tzinfo=None).isoformat(' ')} UTC'"
        case TypeRoot.CHAR | TypeRoot.STRING:
            return _quoted(value)
        case TypeRoot.BIGINT:
            return f"CAST('{value}' AS BIGINT)"
    return str(value)


CASTS = (
    "CAST(int AS DOUBLE) > 0.5", "CAST(float AS DOUBLE) = 0.0", "CAST(double AS FLOAT) >= 1.5", "double + 0 = 0",
    "CAST(micros AS DATE) = DATE'1969-12-31'", "CAST(instant AS DATE) <= DATE'1970-01-01'", "tiny = 300", "tiny < 300",
    "int = 0.5", "int > 0.5", "float = 0.1", "float > 1e300", "double = 0", "double = 0.0", "double <=> 0.0",
    "double IN (0, 1.5)", "NOT double > 0", "double BETWEEN -0.0 AND 0.0", "float IN (0.0, 1.5)", "-double = 0.0",
    "dec4 = 1.5", "dec4 > 0.005", "dec18 < 1e3", "dec38 = 0", "char = 'a'", "char = 'a  '", "text = 'a'", "text < 'b'",
    "text LIKE 'a_'", "text LIKE '%'", "trim(text) = 'a'", "length(text) = 1", "upper(text) = 'A'", "isnan(double)",
    "NOT isnan(float)", "double <> double", "double = float", "coalesce(double, 0) = 0", "bool", "NOT bool",
    "bool = false", "millis < TIMESTAMP_NTZ'2024-02-29 12:00:00.1235'",
    "instant3 >= TIMESTAMP'1969-12-31 23:59:59.9995Z'",
    "year(date) = 1500", "date < '1582-10-15'", "double > 1e300", "double = CAST('NaN' AS DOUBLE)",
    "double >= CAST('Infinity' AS DOUBLE)", "float <> 0", "double NOT IN (0.0)", "double < CAST('NaN' AS DOUBLE)",
)  # fmt: skip
"""Filters with casts and functions, by Spark's own rules."""
