"""All aggregate functions with values for their types, and random rows of such a table."""

from __future__ import annotations

import datetime as dt
import math
import operator
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from pyroaring import BitMap

from forebay.metadata import types
from forebay.metadata.table import AggregateFunction, Column
from tests.kv.engine_model import (
    GREATEST,
    LEAST,
    Function,
    first_not_null,
    last,
    last_not_null,
    of_two,
    rounded,
    single,
    wrapped,
)
from tests.kv.tables import Row

NOON = dt.datetime(2026, 1, 31, 12)

VALUES: dict[str, tuple[types.DataType, Sequence[Any]]] = {
    "tinyint": (types.tinyint(), [0, 1, 3, -7, 127, -128]),
    "smallint": (types.smallint(), [0, 1, 3, -7, 2**15 - 1, -(2**15)]),
    "int": (types.int_(), [0, 1, 3, -7, 2**31 - 1, -(2**31)]),
    "bigint": (types.bigint(), [0, 1, 3, -7, 2**63 - 1, -(2**63)]),
    "float": (types.float_(), [0.0, -0.0, 1.5, -2.25, 2.0**127, math.inf, -math.inf, math.nan]),
    "double": (types.double(), [0.0, -0.0, 1.1, -2.2, 1.7e308, math.inf, -math.inf, math.nan]),
    "small": (types.decimal(18, 3), [Decimal(text) for text in ("0.000", "1.500", "-2.345", "999999.999", "-0.001")]),
    "five": (types.decimal(5, 2), [Decimal(text) for text in ("0.00", "1.50", "-2.34", "0.05")]),
    "large": (types.decimal(38, 10), [Decimal(text) for text in ("0", "1.5", "-2.0000000005", f"{10**28 - 1}", "-7")]),
    "whole": (types.decimal(38, 0), [Decimal(10**38 - 1), Decimal(-(10**38) + 1), Decimal(3), Decimal(-1), Decimal(0)]),
    "text": (types.string(), ["", "a", "b", "aa", "ä", "\U0001f600", "x" * 130]),
    "char": (types.char(4), ["a", "b", "aa", "zzzz"]),
    "date": (types.date(), [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2026, 1, 31)]),
    "time": (types.time(3), [dt.time(0), dt.time(12, 0, 0, 5000), dt.time(23, 59)]),
    "instant": (types.timestamp(3), [NOON, NOON.replace(year=1960), NOON.replace(microsecond=1000)]),
    "exact": (types.timestamp(6), [NOON, NOON.replace(year=1960, microsecond=1), NOON.replace(microsecond=1)]),
    "utc": (types.timestamp_ltz(6), [NOON, NOON.replace(year=1960, microsecond=1), NOON.replace(microsecond=1)]),
    "flag": (types.boolean(), [True, False]),
    "raw": (types.bytes_(), [b"", b"a", b"\x00"]),
    "list": (types.array(types.int_()), [[], [1, None], [2]]),
    "bitmap": (
        types.bytes_(),
        [
            BitMap(values).serialize()
            for values in ((), (1, 2, 70_000), (2**32 - 1,), range(5000), range(1, 9000, 2), range(60_000, 140_000))
        ],
    ),
}

NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "small", "five", "large", "whole")

BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}

DIGITS = {"small": (18, 3), "five": (5, 2), "large": (38, 10), "whole": (38, 0)}

UNORDERED = ("flag", "raw", "list", "bitmap")


def united(old: bytes, new: bytes) -> bytes:
    both = BitMap.deserialize(old) | BitMap.deserialize(new)
    both.run_optimize()
    return both.serialize()


def arithmetic(kind: str, function: Function) -> Function:
    if kind in BITS:
        return wrapped(BITS[kind], function)
    if kind in DIGITS:
        return rounded(*DIGITS[kind], function)
    return single(function) if kind == "float" else of_two(function)


def cases() -> dict[str, tuple[str, AggregateFunction, Function]]:
    """(kind, function, the model's function) for each column; a column is named by both."""
    found: dict[str, tuple[str, AggregateFunction, Function]] = {}
    for kind in VALUES:
        functions: dict[str, Function] = {
            "last_value": last,
            "last_value_ignore_nulls": last_not_null,
            "first_value": first_not_null,
            "first_value_ignore_nulls": first_not_null,
        }
        if kind in NUMBERS:
            functions |= {"sum": arithmetic(kind, operator.add), "product": arithmetic(kind, operator.mul)}
        if kind not in UNORDERED:
            functions |= {"max": GREATEST, "min": LEAST}
        if kind == "text":
            functions |= {"listagg": of_two(lambda old, new: f"{old},{new}")}
        if kind == "flag":
            functions |= {"bool_and": of_two(lambda a, b: a and b), "bool_or": of_two(lambda a, b: a or b)}
        if kind == "bitmap":
            functions |= {"rbm32": of_two(united)}
        found |= {f"{kind}_{name}": (kind, AggregateFunction(name), function) for name, function in functions.items()}
    joined = AggregateFunction("string_agg", (("delimiter", "; "),))
    return found | {"text_string_agg": ("text", joined, of_two(lambda old, new: f"{old}; {new}"))}


CASES = cases()

COLUMNS = [Column("id", types.int_())] + [
    Column(name, VALUES[kind][0], aggregate=function) for name, (kind, function, _) in CASES.items()
]

NAMES = [column.name for column in COLUMNS]


def random_row(rng: random.Random) -> Row:
    row: Row = {"id": rng.randrange(3)}
    for name, (kind, _, _) in CASES.items():
        row[name] = None if rng.random() < 0.2 else rng.choice(VALUES[kind][1])
    return row
