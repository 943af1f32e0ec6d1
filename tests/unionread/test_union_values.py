"""Values from the lake equal those from the log: every type, and columns added on either side."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from forebay import col
from tests.unionread.world import ICEBERG, World, bag, replayed

UTC = dt.UTC
NESTED = pa.struct([pa.field("a", pa.int32()), pa.field("at", pa.timestamp("us", "UTC"))])
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [-128, 127]),
    "small": (pa.int16(), [-(1 << 15), 1]),
    "big": (pa.int64(), [-(1 << 63), (1 << 63) - 1]),
    "real": (pa.float32(), [float("nan"), -0.0]),
    "double": (pa.float64(), [float("-inf"), 1e300]),
    "flag": (pa.bool_(), [True, False]),
    "text": (pa.string(), ["", "žluť 🐎"]),
    "bytes": (pa.binary(), [b"", b"\0\xff"]),
    "fixed": (pa.binary(3), [b"abc", b"\0\0\0"]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "clock": (pa.time32("ms"), [dt.time(0, 0), dt.time(23, 59, 59, 999000)]),
    "seconds": (pa.timestamp("s"), [dt.datetime(1969, 12, 31), dt.datetime(2100, 1, 1)]),
    "millis": (pa.timestamp("ms"), [dt.datetime(1969, 12, 31, 23, 59, 59, 999000), dt.datetime(2026, 1, 1)]),
    "micros": (pa.timestamp("us"), [dt.datetime(1, 1, 1, 0, 0, 0, 1), dt.datetime(2026, 1, 1, 1, 2, 3, 456789)]),
    "instant": (pa.timestamp("us", "UTC"), [dt.datetime(1960, 1, 1, 0, 0, 0, 1, tzinfo=UTC), None]),
    "instant_ms": (pa.timestamp("ms", "UTC"), [dt.datetime(1960, 1, 1, tzinfo=UTC), None]),
    "small_decimal": (pa.decimal128(5, 2), [Decimal("-999.99"), Decimal("0.01")]),
    "large_decimal": (pa.decimal128(38, 10), [Decimal("-" + "9" * 28 + "." + "9" * 10), Decimal("0E-10")]),
    "list": (pa.list_(pa.int32()), [[1, None, 3], []]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)], []]),
    "row": (NESTED, [{"a": 1, "at": dt.datetime(2026, 1, 1, tzinfo=UTC)}, {"a": None, "at": None}]),
    "rows": (pa.list_(NESTED), [[{"a": 1, "at": None}], None]),
}


@pytest.mark.parametrize("keyed", [True, False], ids=["primary key", "log"])
def test_values_of_every_type_are_the_same_from_lake_and_log(both: World, keyed: bool) -> None:
    fields = [pa.field("id", pa.int64(), nullable=False), *(pa.field(n, t) for n, (t, _) in VALUES.items())]
    table = both.create(pa.schema(fields), **({"primary_key": ["id"]} if keyed else {}))
    made: list[dict[str, Any]] = [{"id": 0}]
    for i in range(2):
        made.append({"id": i + 1, **{name: values[i] for name, (_, values) in VALUES.items()}})
    data = pa.Table.from_pylist(made, schema=table.arrow_schema)
    (table.upsert if keyed else table.append)(data)
    from_stream = both.rows(table)
    assert from_stream == replayed(table)
    both.tier(table)
    assert both.rows(table) == from_stream
    assert both.rows(table, lake_only=True) == from_stream
    one = data.slice(1, 1)
    (table.upsert if keyed else table.append)(one)
    assert both.rows(table) == replayed(table)


def test_nanoseconds_are_the_same_from_lake_and_log(both: World) -> None:
    if both.lake == ICEBERG:
        pytest.skip("timestamps of Iceberg tables of format 2 end at microseconds")
    schema = pa.schema([("at", pa.timestamp("ns")), ("instant", pa.timestamp("ns", "UTC"))])
    table = both.create(schema)
    instants = pa.array([1_700_000_000_123_456_789, -1, None], pa.int64())
    data = pa.Table.from_arrays([instants.cast(f.type) for f in schema], schema=schema)
    table.append(data)
    both.tier(table)
    read = both.read(table)
    for name in schema.names:
        assert set(read.column(name).cast(pa.int64()).to_pylist()) == set(instants.to_pylist())


@pytest.mark.parametrize(
    ("data_type", "values"),
    [
        (pa.int32(), [3, -1, 0, 9]),
        (pa.string(), ["b", "", "a\0", "a"]),
        (pa.decimal128(20, 3), [Decimal("1.5"), Decimal("-2"), Decimal(0), Decimal("99999999999999999")]),
        (pa.timestamp("us", "UTC"), [dt.datetime(2026, 1, d, tzinfo=UTC) for d in (3, 1, 2, 4)]),
        (pa.timestamp("ms"), [dt.datetime(1950, 1, d) for d in (3, 1, 2, 4)]),
        (pa.date32(), [dt.date(1950, 1, d) for d in (3, 1, 2, 4)]),
        (pa.bool_(), [True, False]),
        (pa.binary(), [b"b", b"", b"\xff", b"a"]),
    ],
    ids=str,
)
@pytest.mark.one_in(2)
def test_keys_of_every_type_meet_their_changes(both: World, data_type: pa.DataType, values: list[Any]) -> None:
    if both.lake == ICEBERG:
        if data_type in (pa.bool_(), pa.timestamp("us", "UTC")):
            pytest.skip("Fluss has no key encoding of this type for Iceberg tables")
        values = [k for k in values if k not in ("", b"")]  # docs/limits.md
    schema = pa.schema([pa.field("k", data_type, nullable=False), ("v", pa.int64())])
    table = both.create(schema, primary_key=["k"])
    table.upsert(pa.Table.from_pylist([{"k": k, "v": 1} for k in values], schema=table.arrow_schema))
    both.tier(table)
    table.upsert(pa.Table.from_pylist([{"k": k, "v": 2} for k in values[1:]], schema=table.arrow_schema))
    table.delete(pa.Table.from_pylist([{"k": values[-1]}], schema=table.arrow_schema.remove(1)))
    for ordered in (False, True):
        assert both.rows(table, ordered=ordered) == replayed(table)
        assert both.rows(table, ordered=ordered, columns=["v"]) == replayed(table, ["v"])


@pytest.mark.parametrize("keyed", [True, False], ids=["primary key", "log"])
def test_columns_added_after_and_between_rounds_are_null_in_older_rows(both: World, keyed: bool) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.string())])
    table = both.create(schema, **({"primary_key": ["id"]} if keyed else {}))
    write = (lambda t: t.upsert) if keyed else (lambda t: t.append)
    write(table)([{"id": 1, "a": "x"}, {"id": 2, "a": "y"}])
    both.tier(table)
    before = table
    table.alter(add_columns={"b": pa.int32()})
    table = table.refresh()
    assert both.rows(table) == replayed(table)
    write(table)([{"id": 3, "a": "z", "b": 7}])
    assert both.rows(table) == replayed(table)
    assert both.rows(table, filter=col("b").is_null()) == replayed(table, None, col("b").is_null())
    assert both.rows(table, filter=col("b") == 7) == replayed(table, None, col("b") == 7)
    both.tier(table)
    write(table)([{"id": 2, "a": "w", "b": 8}])
    assert both.rows(table) == replayed(table)
    assert both.rows(table, columns=["b"]) == replayed(table, ["b"])
    assert both.rows(before) == replayed(before)


def test_a_lake_that_has_not_got_a_new_column_yet_gives_nulls(memory: World) -> None:
    table = memory.create(
        pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.string())]), primary_key=["id"]
    )
    table.upsert([{"id": 1, "a": "x"}, {"id": 2, "a": "y"}])
    memory.tier(table)
    table.alter(add_columns={"b": pa.int32()})
    newer = table.refresh()
    lake_table = memory.storage.table(table.path)  # type: ignore[attr-defined]
    lake_table.columns = lake_table.columns[:2]
    newer.upsert([{"id": 2, "a": "w", "b": 8}])
    assert memory.rows(newer) == bag([{"id": 1, "a": "x", "b": None}, {"id": 2, "a": "w", "b": 8}])
    assert memory.rows(newer, filter=col("b") == 8) == bag([{"id": 2, "a": "w", "b": 8}])
    assert memory.rows(newer, columns=["b"], filter=col("b").is_null()) == bag([{"b": None}])
