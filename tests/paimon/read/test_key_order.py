"""Sorted reads of a bucket, and their order."""

from __future__ import annotations

import datetime
import functools
import itertools
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import InvalidRequest
from forebay.paimon.table import Table
from tests.paimon.lake import new_catalog, put

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [-128, -1, 0, 1, 127]),
    "big": (pa.int64(), [-(1 << 63), -1, 0, 1, (1 << 63) - 1]),
    "text": (pa.string(), ["", "a", "a\0", "aa", "b", "é", "\U0001f600"]),
    "raw": (pa.binary(), [b"", b"\0", b"\0\0", b"\x7f", b"\x80", b"\xff"]),
    "price": (pa.decimal128(10, 2), [Decimal("-1.50"), Decimal(0), Decimal("0.01"), Decimal(7)]),
    "day": (pa.date32(), [datetime.date(1960, 1, 1), datetime.date(1970, 1, 1), datetime.date(2030, 1, 1)]),
    "flag": (pa.bool_(), [False, True]),
}


def filled(folder: Path, names: tuple[str, ...], **options: str) -> tuple[Table, list[tuple[Any, ...]]]:
    """A table of one bucket with all combinations of the key's values, written in three shuffled, overlapping parts."""
    columns = pa.schema([*((name, KEYS[name][0]) for name in names), ("part", pa.int32())])
    given = {"bucket": "1", "write-only": "true", "source.split.target-size": "1 b", **options}
    table = new_catalog(folder).create_table("db.t", columns, primary_key=list(names), options=given)
    keys = list(itertools.product(*(KEYS[name][1] for name in names)))
    for part in range(3):
        chosen = random.Random(part).sample(keys, len(keys) * 2 // 3) if part else keys
        put(table, [{**dict(zip(names, key, strict=True)), "part": part} for key in chosen])
    return table, keys


@pytest.mark.parametrize("names", [*((name,) for name in KEYS), ("text", "big"), ("big", "text"), ("raw", "text")])
def test_a_buckets_rows_come_in_the_order_that_the_reader_names(tmp_path: Path, names: tuple[str, ...]) -> None:
    table, keys = filled(tmp_path, names)
    reader = table.split_reader()
    order = reader.order
    assert order is not None
    assert order.columns == names
    batches = list(reader.read_bucket(table.scan().plan()))
    found = [tuple(row[name] for name in names) for batch in batches for row in batch.to_pylist()]
    assert found == sorted(keys, key=functools.cmp_to_key(_compare))
    strings = [s for batch in batches for s in order.comparable(batch).to_pylist()]
    assert strings == sorted(set(strings))
    rows = [row for batch in batches for row in batch.to_pylist()]
    for left, right in itertools.product(range(0, len(rows), 3), repeat=2):
        assert order.compare(rows[left], rows[right]) == (left > right) - (left < right)


def _compare(left: tuple[Any, ...], right: tuple[Any, ...]) -> int:
    """Value by value; text by its bytes."""
    a, b = ([v.encode() if isinstance(v, str) else v for v in key] for key in (left, right))
    return (a > b) - (a < b)


def test_splits_of_several_levels_make_one_sorted_read(tmp_path: Path) -> None:
    table, keys = filled(tmp_path, ("big", "text"))
    table.compact(full=True)
    put(table, [{"big": 1, "text": "zz", "part": 9}, {"big": -(1 << 63), "text": "", "part": 9}])
    reader = table.split_reader()
    rows = [row for batch in reader.read_bucket(table.scan().plan()) for row in batch.to_pylist()]
    wanted = sorted([*keys, (1, "zz")], key=lambda key: (key[0], key[1].encode()))
    assert [(row["big"], row["text"]) for row in rows] == wanted
    assert [(row["big"], row["text"]) for row in rows if row["part"] == 9] == [(-(1 << 63), ""), (1, "zz")]


def test_several_buckets_are_not_one_order(tmp_path: Path) -> None:
    table = new_catalog(tmp_path).create_table(
        "db.t", pa.schema([("id", pa.int64())]), primary_key=["id"], options={"bucket": "4"}
    )
    put(table, [{"id": i} for i in range(50)])
    reader = table.split_reader()
    with pytest.raises(InvalidRequest, match="of several buckets"):
        reader.read_bucket(table.scan().plan())
    assert list(reader.read_bucket([])) == []


def test_append_tables_have_no_order_but_that_of_writing(tmp_path: Path) -> None:
    table = new_catalog(tmp_path).create_table("db.t", pa.schema([("id", pa.int64())]))
    for i in (3, 1, 2):
        put(table, [{"id": i}])
    reader = table.split_reader()
    assert reader.order is None
    assert [r["id"] for b in reader.read_bucket(table.scan().plan()) for r in b.to_pylist()] == [3, 1, 2]


def test_nulls_have_no_place_in_the_order(tmp_path: Path) -> None:
    order = filled(tmp_path, ("big",))[0].split_reader().order
    assert order is not None
    with pytest.raises(InvalidRequest, match="column 'big' of the key has nulls"):
        order.comparable(pa.record_batch({"big": pa.array([1, None], pa.int64())}))
