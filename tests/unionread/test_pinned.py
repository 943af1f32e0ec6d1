"""Pinned scans: the same rows however often they are read, whatever is written, tiered, compacted meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import forebay.polars
from forebay import col
from forebay.api.scan import Scan
from forebay.base.errors import NotFound
from forebay.client.table import Table
from forebay.unionread.reading import UnionReader
from tests.unionread.world import ICEBERG, PAIMON, World, bag, compact, world

ID = pa.field("id", pa.int64(), nullable=False)
SCHEMA = pa.schema([ID, ("v", pa.int64()), ("s", pa.string())])


@pytest.fixture(scope="module", params=[PAIMON, pytest.param(ICEBERG, marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp(request.param), request.param) as running:
        yield running


def some(start: int, stop: int, v: int) -> list[dict[str, Any]]:
    return [{"id": i, "v": v, "s": f"s{i % 3}"} for i in range(start, stop)]


def rows(scan: Scan) -> Counter[str]:
    return bag(scan.to_arrow())


@pytest.mark.parametrize("keyed", [True, False], ids=["primary key", "log"])
@pytest.mark.parametrize("source", ["live", "union"])
def test_a_pinned_scan_does_not_change(place: World, keyed: bool, source: str) -> None:
    table = place.create(SCHEMA, buckets=2, **({"primary_key": ["id"]} if keyed else {"bucket_keys": ["id"]}))
    write = table.upsert if keyed else table.append
    write(some(0, 10, 1))
    place.tier(table)
    write(some(5, 12, 2))
    pinned = table.scan(source=source).pinned()
    expected = rows(table.scan(source=source))
    write(some(0, 20, 3))
    if keyed:
        table.delete([3])
    place.tier(table)
    assert rows(pinned) == expected
    assert rows(pinned.pinned()) == expected
    assert pinned.count() == sum(expected.values())
    relation = pinned.to_duckdb(duckdb.connect())
    twice = relation.set_alias("a").join(relation.filter("v = 2").set_alias("b"), "a.id = b.id").count("*")
    assert twice.fetchall() == [(7 if keyed else 7 + 5,)]
    assert rows(table.scan(source=source)) != expected


def test_what_the_lake_has_of_a_partition_stays_if_one_of_its_name_is_created_later(place: World) -> None:
    table = place.create(
        pa.schema([ID, pa.field("p", pa.string(), nullable=False)]), primary_key=["id", "p"], partition_keys=["p"]
    )
    for p in "ab":
        table.create_partition({"p": p})
    table.upsert([{"id": 1, "p": "a"}, {"id": 1, "p": "b"}])
    place.tier(table)
    table.drop_partition({"p": "a"})
    pinned = table.scan(source="union").pinned()
    expected = rows(pinned)
    table.create_partition({"p": "a"})
    table.upsert([{"id": 2, "p": "a"}])
    assert rows(pinned) == expected


def test_buckets_that_the_lake_does_not_have_come_from_the_table_snapshot(place: World) -> None:
    table = place.create(
        pa.schema([ID, pa.field("p", pa.string(), nullable=False), ("v", pa.int64())]),
        primary_key=["id", "p"],
        partition_keys=["p"],
    )
    table.create_partition({"p": "a"})
    table.upsert([{"id": 1, "p": "a", "v": 1}])
    place.tier(table)
    table.create_partition({"p": "b"})
    table.upsert([{"id": 2, "p": "b", "v": 1}, {"id": 3, "p": "a", "v": 1}])
    pinned = table.scan(source="union").pinned()
    table.create_partition({"p": "c"})
    table.upsert([{"id": 2, "p": "b", "v": 2}, {"id": 1, "p": "a", "v": 2}, {"id": 4, "p": "c", "v": 2}])
    with pinned.reader() as reader:
        assert sorted(row["id"] for row in reader.read_all().to_pylist() if row["v"] == 1) == [1, 2, 3]
        assert len(reader.log_offsets) == 2
    table.drop_partition({"p": "b"})
    with pytest.raises(NotFound, match=r"pin it again: 1 partitions of table .* were dropped meanwhile"):
        pinned.to_arrow()


def test_an_expired_lake_snapshot_is_an_error_and_no_other_state(place: World) -> None:
    table = place.create(SCHEMA)
    table.append(some(0, 5, 1))
    place.tier(table)
    pinned = table.scan(source="union").pinned()
    table.append(some(5, 6, 1))
    place.tier(table)
    compact(place, table, expire=True)
    with pytest.raises(NotFound, match=r"pinned state of table .* no longer exists, pin it again"):
        pinned.count()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[str, ...], int]]:
    """The columns and the number of rows of each batch that union reads return."""
    found: list[tuple[tuple[str, ...], int]] = []
    original = UnionReader.read_each

    def counted(self: UnionReader, *arguments: Any) -> Iterator[Any]:
        for split, batch in original(self, *arguments):
            found.append((tuple(batch.schema.names), batch.num_rows))
            yield split, batch

    monkeypatch.setattr(UnionReader, "read_each", counted)
    return found


@pytest.fixture
def tiered(place: World) -> Table:
    table = place.create(SCHEMA, primary_key=["id"])
    table.upsert(some(0, 1000, 1))
    place.tier(table)
    table.upsert(some(990, 1010, 2))
    return table


def test_duckdb_reads_only_columns_and_rows_of_the_query(tiered: Table, read: list[Any]) -> None:
    relation = tiered.to_duckdb(duckdb.connect(), source="union")
    assert relation.filter("v = 2 AND id < 1000").aggregate("count(*), max(id)").fetchall() == [(10, 999)]
    assert sum(count for _, count in read) == 10
    assert {names for names, _ in read} <= {("id",), ("id", "v"), ("v", "id")}


def test_polars_reads_only_columns_and_rows_of_the_query(tiered: Table, read: list[Any]) -> None:
    frame = forebay.polars.scan(tiered)
    assert frame.filter((pl.col("v") == 2) & (pl.col("id") % 2 == 0)).select("id").collect().height == 10
    assert read == [(("id", "v"), 20)] or sum(count for _, count in read) == 20
    read.clear()
    assert frame.head(3).collect().height == 3
    assert sum(count for _, count in read) < 1010
    tiered.upsert(some(0, 1, 7))
    both = frame.filter(pl.col("id") < 2).join(frame, on="id")
    assert both.select("v", "v_right").collect().rows() == [(1, 1), (1, 1)]


def test_a_filter_of_the_scan_and_one_of_the_query_both_hold(tiered: Table) -> None:
    scan = tiered.scan(["id", "v"], col("id") >= 1000, source="union")
    assert scan.to_duckdb(duckdb.connect()).filter("id < 1003").count("*").fetchall() == [(3,)]
    assert forebay.polars.scan(scan).filter(pl.col("id") < 1003).collect().height == 3
    assert forebay.polars.scan(tiered, filter="id >= 1000", columns=["id"]).collect().columns == ["id"]
    limited = tiered.scan(limit=4, source="union").to_duckdb(duckdb.connect())
    assert limited.filter("id >= 0").count("*").fetchall() == limited.count("*").fetchall() == [(4,)]
