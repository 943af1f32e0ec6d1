"""Schemas and rows of all types that pyfluss supports."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa

SCALARS = pa.schema(
    [
        ("bool", pa.bool_()), ("i8", pa.int8()), ("i16", pa.int16()), ("i32", pa.int32()), ("i64", pa.int64()),
        ("f32", pa.float32()), ("f64", pa.float64()), ("text", pa.string()), ("bytes", pa.binary()),
        ("fixed", pa.binary(3)), ("small", pa.decimal128(9, 4)), ("big", pa.decimal128(38, 10)), ("day", pa.date32()),
        ("at", pa.time32("ms")), ("ntz", pa.timestamp("us")), ("ltz", pa.timestamp("us", tz="UTC")),
    ]
)  # fmt: skip

UTC = dt.UTC

EXTREMES = [
    {
        "bool": True, "i8": -128, "i16": 32767, "i32": -(2**31), "i64": 2**63 - 1, "f32": -0.0, "f64": float("inf"),
        "text": "ünïcode 🦀\x00 end", "bytes": b"\x00\xff", "fixed": b"abc", "small": Decimal("-99999.9999"),
        "big": Decimal("9" * 28 + "." + "9" * 10), "day": dt.date(1, 1, 1), "at": dt.time(23, 59, 59, 999_000),
        "ntz": dt.datetime(1583, 1, 1), "ltz": dt.datetime(2262, 4, 11, 1, 2, 3, 4, tzinfo=UTC),
    },
    {
        "bool": False, "i8": 127, "i16": -32768, "i32": 2**31 - 1, "i64": -(2**63), "f32": 1.5, "f64": -0.0, "text": "",
        "bytes": b"", "fixed": b"\x00\x00\x00", "small": Decimal("0.0001"), "big": Decimal("-0.0000000001"),
        "day": dt.date(9999, 12, 31), "at": dt.time(0), "ntz": dt.datetime(1970, 1, 1),
        "ltz": dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    },
    dict.fromkeys(SCALARS.names),
]  # fmt: skip

NESTED = pa.schema(
    [
        ("id", pa.int32()),
        ("tags", pa.list_(pa.string())),
        ("grid", pa.list_(pa.list_(pa.int32()))),
        ("attrs", pa.map_(pa.string(), pa.float64())),
        ("who", pa.struct([("name", pa.string()), ("age", pa.int16()), ("mail", pa.list_(pa.string()))])),
        ("deep", pa.map_(pa.int32(), pa.list_(pa.struct([("x", pa.decimal128(20, 3)), ("y", pa.date32())])))),
    ]
)

NESTED_ROWS = [
    {
        "id": 1, "tags": ["a", None, ""], "grid": [[1, 2], [], None], "attrs": [("k", 1.5), ("none", None)],
        "who": {"name": "Ada", "age": 36, "mail": ["a@b"]},
        "deep": [(7, [{"x": Decimal("1.000"), "y": dt.date(2026, 1, 1)}, {"x": None, "y": None}]), (8, [])],
    },
    {"id": 2, "tags": [], "grid": [], "attrs": [], "who": {"name": None, "age": None, "mail": None}, "deep": []},
    {"id": 3, **dict.fromkeys(NESTED.names[1:])},
]  # fmt: skip
