"""Pushed-down filters return exactly the matching rows: random tables, random filters, every reader.

`FILTER_SEEDS=2000 make filter-fuzz` runs many; a failure names its seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.metadata.predicate import Predicate
from forebay.metadata.table import Schema
from forebay.paimon.table import Table as LakeTable
from tests.filters.conditions import COLUMNS, Condition, Row, matches, predicate, random_condition, random_rows
from tests.filters.random_pieces import PARTITION_KINDS, pieces
from tests.paimon.lake import new_catalog, put
from tests.unionread.world import ICEBERG, PAIMON, World, world

SEEDS = range(int(os.environ.get("FILTER_FIRST", "0")), int(os.environ.get("FILTER_SEEDS", "1")))
FILTERS = 60
"""Filters of each table."""

Read = Callable[[Predicate], pa.Table]


def check(rng: random.Random, rows: Sequence[Row], read: Read) -> None:
    for _ in range(FILTERS):
        condition: Condition = random_condition(rng, sql=False)
        expected = sorted(row["id"] for row in rows if matches(condition, row))
        found = sorted(read(predicate(condition)).column("id").to_pylist())
        assert found == expected, condition


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["append", "bucketed", "primary key", "compacted"])
@pytest.mark.one_in(2)
def test_a_lake_table_filters_as_the_filter_says(tmp_path: Path, kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    keyed = kind in ("primary key", "compacted")
    options = {"bucket": "2", "bucket-key": "id"} if kind != "append" else {}
    if kind == "bucketed":
        options["bucket-key"] = rng.choice(["double", "float,text", "text", "dec4", "date", "bytes", "millis"])
    catalog = new_catalog(tmp_path)
    arrow = {column.name: column.data_type for column in COLUMNS}
    table: LakeTable = catalog.create_table("db.t", arrow, primary_key=["id"] if keyed else [], options=options)
    rows: dict[int, Row] = {}
    for piece in pieces(rng):
        if keyed and rng.random() < 0.5:
            piece += random_rows(rng, 2, rng.choice([0, 100]))
        unique = {row["id"]: row for row in piece}
        put(table, pa.Table.from_pylist(list(unique.values()), schema=table.arrow_schema))
        rows |= unique
    if kind == "compacted":
        table.compact(full=True)
    check(rng, list(rows.values()), lambda p: table.scan(["id"], p).to_arrow())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lake_table_with_partitions_filters_as_the_filter_says(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    keys = rng.sample(PARTITION_KINDS, rng.randint(1, 2))
    arrow = {column.name: column.data_type for column in COLUMNS}
    table = new_catalog(tmp_path).create_table("db.t", arrow, partition_keys=keys)
    rows = [row for piece in pieces(rng) for row in piece]
    for row in rows:
        row.update({key: row[key] or None for key in keys if key in ("text", "bytes")})
    put(table, pa.Table.from_pylist(rows, schema=table.arrow_schema))
    check(rng, rows, lambda p: table.scan(["id"], p).to_arrow())


# ---- tables of a server ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[PAIMON, ICEBERG])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("filters"), request.param) as running:
        yield running


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("keyed", [True, False], ids=["primary key", "log"])
@pytest.mark.one_in(2)
def test_live_tables_and_union_reads_filter_as_the_filter_says(lake: World, keyed: bool, seed: int) -> None:
    rng = random.Random(f"{lake.lake} {keyed} {seed}")
    schema = Schema.of(COLUMNS, ["id"] if keyed else [])
    options: dict[str, Any] = {} if keyed else {"options": {"table.statistics.columns": "*"}}
    table = lake.create(schema, buckets=rng.randint(1, 2), **options)
    rows: dict[int, Row] = {}
    written = pieces(rng)
    tiered = rng.randint(0, len(written))
    for number, piece in enumerate(written):
        data = pa.Table.from_pylist(piece, schema=table.arrow_schema)
        (table.upsert if keyed else table.append)(data)
        rows |= {row["id"]: row for row in piece}
        if number < tiered:
            lake.tier(table)
    check(rng, list(rows.values()), lambda p: table.scan(columns=["id"], filter=p).to_arrow())
    check(rng, list(rows.values()), lambda p: lake.read(table, columns=["id"], filter=p))
    lake.connection.drop_table(table.path)
