"""A table with a column of each type, and a row of it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import duckdb

TYPES = {
    "id": "BIGINT NOT NULL",
    "flag": "BOOLEAN",
    "tiny": "TINYINT",
    "real": "FLOAT",
    "money": "DECIMAL(38, 18)",
    "day": "DATE",
    "clock": "TIME(3)",
    "local": "TIMESTAMP(6)",
    "nanos": "TIMESTAMP(9)",
    "instant": "TIMESTAMP_LTZ(3)",
    "exact": "TIMESTAMP_LTZ(9)",
    "code": "CHAR(3)",
    "fixed": "BINARY(2)",
    "bytes": "BYTES",
    "list": "ARRAY<INT>",
    "map": "MAP<STRING, INT>",
    "row": "ROW<a INT, b ARRAY<STRING>>",
}
VALUES: dict[str, Any] = {
    "id": 1,
    "flag": True,
    "tiny": -128,
    "real": 0.5,
    "money": Decimal("12345678901234567890.000000000000000001"),
    "day": dt.date(1969, 12, 31),
    "clock": dt.time(23, 59, 59, 123000),
    "local": dt.datetime(1900, 1, 1, 0, 0, 0, 1),
    "nanos": dt.datetime(2026, 1, 31, 12, 0, 0, 123456),
    "instant": dt.datetime(2026, 1, 31, 12, 0, tzinfo=dt.UTC),
    "exact": dt.datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=dt.UTC),
    "code": "abc",
    "fixed": b"\x00\xff",
    "bytes": b"",
    "list": [1, None, 3],
    "map": [("k", 1)],
    "row": {"a": 1, "b": ["x", None]},
}


if tuple(map(int, duckdb.__version__.split(".")[:2])) < (2, 0):  # it has no nanoseconds with a zone
    TYPES["exact"] = "TIMESTAMP_LTZ(6)"
