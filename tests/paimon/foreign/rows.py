"""Columns and rows of every supported type of Paimon, with boundary and ordinary values."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from forebay.metadata import types
from forebay.metadata.types import DataType, RowField
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.format.types_json import parse_type

_TEXTS = ["", "a", "é", "日本語 text", "x" * 40, "under_score %", "1.50"]


def every_type(digits: int = 9) -> dict[str, DataType]:
    """Types by column name; `id` is the key. Timestamps have up to `digits` digits."""
    columns: dict[str, DataType] = {"id": types.bigint().not_null(), "flag": types.boolean()}
    columns |= {"tiny": types.tinyint(), "small": types.smallint(), "whole": types.int_(), "big": types.bigint()}
    columns |= {"single": types.float_(), "double": types.double(), "text": types.string(), "raw": types.bytes_()}
    columns |= {"letters": types.char(3), "words": parse_type("VARCHAR(60)"), "day": types.date()}
    columns |= {"fixed": types.binary(4), "bytes9": parse_type("VARBINARY(9)"), "clock": types.time(3)}
    columns |= {f"d{p}_{s}": types.decimal(p, s) for p, s in [(1, 0), (9, 2), (10, 0), (18, 4), (19, 19), (38, 6)]}
    columns |= {f"ts{p}": types.timestamp(p) for p in range(digits + 1)}
    columns |= {f"ltz{p}": types.timestamp_ltz(p) for p in (0, 3, 6, 9) if p <= digits}
    columns |= {"numbers": types.array(types.int_()), "texts": types.array(types.string())}
    columns |= {"matrix": types.array(types.array(types.double()))}
    columns |= {"pairs": types.map_(types.string().not_null(), types.int_())}
    columns |= {"counted": parse_type({"type": "MULTISET", "element": "STRING NOT NULL"})}
    inner = types.row(RowField("u", types.decimal(20, 3), None, 3), RowField("v", types.timestamp(6), None, 4))
    fields = [("x", types.int_()), ("y", types.string()), ("z", types.array(types.bigint())), ("in", inner)]
    columns["nested"] = types.row(*(RowField(n, t, None, 10 + i) for i, (n, t) in enumerate(fields)))
    pair = types.row(RowField("k", types.string(), None, 20), RowField("n", types.int_(), None, 21))
    columns["rows"] = types.array(pair)
    return columns


def every_row(schema: TableSchema, count: int = 24) -> pa.Table:
    """`count` rows for a table with the columns of `every_type`; every sixth has nothing but its id."""
    rows = [_row(i) if i % 6 != 5 else {"id": i} for i in range(count)]
    return pa.Table.from_pylist(rows, schema=arrow_schema(schema.fields))


def _row(i: int) -> dict[str, Any]:
    sign = -1 if i % 2 else 1
    moment = datetime.datetime(1890 + 13 * i, 1 + i % 12, 1 + i % 28, i % 24, i % 60, 59 - i % 60, 999_999 - i * 1111)
    # Nanoseconds of a Timestamp reach from 1678 to 2261; these stay inside.
    nanos = sign * (i * 10**17 + 123_456_789)
    row: dict[str, Any] = {
        "id": i,
        "flag": i % 2 == 0,
        "tiny": (-128, 127, 0)[i % 3],
        "small": (-(2**15), 2**15 - 1, 7)[i % 3],
        "whole": (-(2**31), 2**31 - 1, i)[i % 3],
        "big": (-(2**63), 2**63 - 1, i)[i % 3],
        "single": (float("inf"), -0.0, 0.1, float("-inf"), float("nan"))[i % 5],
        "double": (float("nan"), -0.0, 1e308, 5e-324, i / 3)[i % 5],
        "text": _TEXTS[i % len(_TEXTS)] + str(i),
        "raw": bytes(range(i)),
        "letters": ("abc", "é12", "日本語")[i % 3],
        "words": _TEXTS[i % len(_TEXTS)],
        "fixed": bytes([i, 0, 255, 128]),
        "bytes9": bytes([255] * (i % 10)),
        "day": moment.date(),
        "clock": (datetime.datetime.min + datetime.timedelta(milliseconds=3_600_000 * (i % 24) + i)).time(),
        "d1_0": Decimal(sign * (i % 10)),
        "d9_2": Decimal(sign * 999_999_999).scaleb(-2),
        "d10_0": Decimal(sign * 9_999_999_999),
        "d18_4": Decimal(sign * (10**18 - 1 - i)).scaleb(-4),
        "d19_19": Decimal(sign * (10**19 - 1 - i)).scaleb(-19),
        "d38_6": _widest(sign, i),
        "numbers": [i, None, -i],
        "texts": [] if i % 4 == 0 else ["", None, _TEXTS[i % len(_TEXTS)]],
        "matrix": [[0.5, None], None, []],
        "pairs": [("a", i), ("b", None)],
        "counted": [("one", 1), ("many", i + 2)],
        "nested": {"x": i, "y": None, "z": [2**40, None], "in": {"u": Decimal("12345678901234567.125"), "v": moment}},
        "rows": [{"k": "k", "n": i}, None, {"k": None, "n": None}],
    }
    if i % 4 == 1:
        row["nested"] = {"x": None, "y": "é" * 20, "z": None, "in": None}
    for p in range(10):
        cut = 10 ** (9 - p)
        row[f"ts{p}"] = _stamp(nanos // cut * cut, p)
    for p in (0, 3, 6, 9):
        cut = 10 ** (9 - p)
        row[f"ltz{p}"] = _stamp(nanos // cut * cut, p)
    return row


def _widest(sign: int, i: int) -> Decimal:
    from decimal import localcontext

    with localcontext(prec=40):
        return Decimal(sign * (10**38 - 1 - i)).scaleb(-6)


def _stamp(nanos: int, precision: int) -> int:
    """Nanoseconds in the unit of Arrow's column for TIMESTAMP(precision)."""
    return nanos // (10**6 if precision <= 3 else 10**3 if precision <= 6 else 1)
