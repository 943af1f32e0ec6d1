"""Tables with columns of every data type, and rows for them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

ALL_TYPES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("bool", pa.bool_()),
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("fixed", pa.binary(4)),
        ("small", pa.decimal128(10, 2)),
        ("big", pa.decimal128(38, 10)),
        ("day", pa.date32()),
        ("time", pa.time32("ms")),
        ("ts_ms", pa.timestamp("ms")),
        ("ts_us", pa.timestamp("us")),
        ("ts_ns", pa.timestamp("ns")),
        ("ltz_s", pa.timestamp("s", "UTC")),
        ("ltz_us", pa.timestamp("us", "UTC")),
        ("list", pa.list_(pa.field("element", pa.int32()))),
        ("texts", pa.list_(pa.field("element", pa.string()))),
        ("map", pa.map_(pa.string(), pa.field("value", pa.int64()))),
        ("row", pa.struct([("a", pa.int32()), ("b", pa.string()), ("at", pa.timestamp("us", "UTC"))])),
        ("deep", pa.list_(pa.field("element", pa.struct([("x", pa.list_(pa.field("element", pa.float64())))])))),
    ]
)


def all_types_rows(count: int, first: int = 0) -> pa.Table:
    """`count` rows with ids from `first` on; every third value of a column is null, in turns."""
    rows = []
    for i in range(first, first + count):
        at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=i, microseconds=i)
        row: dict[str, Any] = {
            "id": i,
            "bool": i % 2 == 0,
            "i8": i % 256 - 128,
            "i16": -i,
            "i32": i * 1000,
            "f32": i / 4,
            "f64": -i / 3,
            "text": f"text {i} äöü€😀",
            "bytes": bytes([i % 256]) * (i % 20),
            "fixed": i.to_bytes(4, "big"),
            "small": Decimal(i) / 100,
            "big": Decimal(-i) * 10**20 + Decimal("0.0000000001"),
            "day": dt.date(1960, 1, 1) + dt.timedelta(days=i * 17),
            "time": dt.time(i % 24, i % 60, 1, 234000),
            "ts_ms": dt.datetime(1969, 1, 1) + dt.timedelta(milliseconds=i * 12345678),
            "ts_us": dt.datetime(2000, 1, 1) + dt.timedelta(microseconds=i),
            "ts_ns": np.datetime64("2001-02-03T04:05:06.000000007", "ns") + np.timedelta64(i, "ns"),
            "ltz_s": at.replace(microsecond=0),
            "ltz_us": at,
            "list": [i, None, -i],
            "texts": ["", "a" * (i % 12), None],
            "map": [(f"k{n}", n or None) for n in range(i % 4)],
            "row": {"a": i, "b": None, "at": at},
            "deep": [{"x": [float(i)]}, None, {"x": None}],
        }
        for place, name in enumerate(ALL_TYPES.names):
            if name != "id" and (i + place) % 3 == 0:
                row[name] = None
        rows.append(row)
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in ALL_TYPES]
    return pa.Table.from_arrays(arrays, schema=ALL_TYPES)


def by_id(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as dicts, in the order of their ids; nanoseconds as integers, so that they compare without pandas."""
    columns = []
    for column in table.columns:
        is_nanos = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
        columns.append(column.cast(pa.int64()) if is_nanos else column)
    rows = pa.Table.from_arrays(columns, names=table.column_names).sort_by("id").to_pylist()
    return list(rows)
