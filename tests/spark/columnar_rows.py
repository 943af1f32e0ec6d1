"""A table of all types, its rows, and queries in each way of reading."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

COLUMNS = {
    "id": "BIGINT NOT NULL",
    "flag": "BOOLEAN",
    "tiny": "TINYINT",
    "small": "SMALLINT",
    "number": "INT",
    "single": "FLOAT",
    "double": "DOUBLE",
    "short_decimal": "DECIMAL(10, 2)",
    "long_decimal": "DECIMAL(38, 9)",
    "text": "STRING",
    "padded": "CHAR(4)",
    "data": "BYTES",
    "day": "DATE",
    "moment": "TIMESTAMP(9)",
    "instant": "TIMESTAMP_LTZ(9)",
    "numbers": "ARRAY<INT>",
    "nested": "ARRAY<ARRAY<STRING>>",
    "by_name": "MAP<STRING, DECIMAL(20, 1)>",
    "part": "ROW<a INT, b STRING, c ROW<d DOUBLE, e ARRAY<BIGINT>>>",
    "parts": "ARRAY<ROW<a INT, b TIMESTAMP(6)>>",
}


def row_of(i: int) -> dict[str, Any]:
    """A row of `COLUMNS`. Every column but the first has nulls."""
    values: dict[str, Any] = {
        "flag": i % 3 == 0,
        "tiny": i % 256 - 128,
        "small": i * 61 % 65_536 - 32_768,
        "number": i * 4_294_967 - 2_147_483_000,
        "single": i / 7,
        "double": -i / 3,
        "short_decimal": Decimal(i * 99_999 - 49_999_999).scaleb(-2),
        "long_decimal": Decimal((-1) ** i * (10**37 + i)).scaleb(-9),
        "text": "ä" * (i % 5) + f"text {i}",
        "padded": f"{i % 10_000:04}",
        "data": bytes([i % 256]) * (i % 4),
        "day": date(1890, 1, 1) + timedelta(days=i * 50),
        "moment": datetime(1902, 3, 4) + timedelta(days=i, microseconds=i),
        "instant": datetime(1902, 3, 4, tzinfo=UTC) + timedelta(days=i * 30, microseconds=i),
        "numbers": [None if n % 2 else n for n in range(i % 4)],
        "nested": [None if n == 1 else [f"{i}.{n}"] * n for n in range(i % 4)],
        "by_name": {f"k{n}": None if n == 1 else Decimal(i * n) for n in range(i % 3)},
        "part": {"a": i, "b": None if i % 2 else f"b{i}", "c": {"d": i / 2, "e": [i] * (i % 3)} if i % 4 else None},
        "parts": [{"a": n, "b": datetime(2020, 1, 1) + timedelta(hours=i)} if n else None for n in range(i % 3)],
    }
    return {"id": i, **{name: None if (i + at) % 11 == 0 else value for at, (name, value) in enumerate(values.items())}}


WAYS = {
    "without Python": {"read.columnar": "true", "read.direct": "true"},
    "by columns": {"read.columnar": "true", "read.direct": "false"},
    "by rows: read.columnar is false": {"read.columnar": "false", "read.direct": "true"},
}


def both(spark: Any, query: str, *, direct: bool = False) -> list[tuple[Any, ...]]:
    """The rows of `query` by columns, which are those by rows and (`direct`) those that the JVM reads itself."""
    found = []
    for said, options in WAYS.items():
        if said == "without Python" and not direct:
            continue
        for name, value in options.items():
            spark.conf.set(f"spark.sql.forebay.{name}", value)
        try:
            frame = spark.sql(query)
            assert said in frame._jdf.queryExecution().executedPlan().toString()
            found.append([tuple(row) for row in frame.collect()])
        finally:
            for name in options:
                spark.conf.unset(f"spark.sql.forebay.{name}")
    assert all(rows == found[0] for rows in found[1:])
    return found[0]
