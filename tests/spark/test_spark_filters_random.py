"""Spark's filters return the same rows by Spark's own Parquet reader, by Python tasks, and by both.

The reference is Spark itself, which evaluates the same filters on the same rows in memory, without push-down, and
`matches`. `FILTER_SEEDS=50 make filter-fuzz` runs many tables of each kind, `make test` one of some kinds; a failure
names its seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from forebay.metadata.table import Schema
from forebay.paimon import Catalog
from forebay.spark.reading import native_files
from forebay.spark.schemas import spark_arrow_schema
from tests.every_run import every_run
from tests.filters.conditions import CASTS, COLUMNS, Condition, Row, matches, random_condition, random_rows, sql_of
from tests.filters.random_pieces import PARTITION_KINDS, pieces
from tests.paimon.lake import put
from tests.unionread.world import ICEBERG, PAIMON, World, compact, world

pytestmark = pytest.mark.spark

SEEDS = range(int(os.environ.get("FILTER_FIRST", "0")), int(os.environ.get("FILTER_SEEDS", "1")))
CASTS_OF_A_TABLE, RANDOM_OF_A_TABLE = (len(CASTS), 40) if "FILTER_SEEDS" in os.environ else (8, 6)
AT_ONCE = 20
"""Filters that are evaluated by one query."""

NATIVE = "spark.sql.forebay.read.native"


@pytest.fixture(autouse=True)
def small_tables_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ROWS_MIN", 1), ("MARKED_ROWS_MIN", 1), ("MARKED_SHARE_MAX", 10)):
        monkeypatch.setattr(native_files, name, value)


def told_by_spark(spark: Any, frame: Any, filters: Sequence[str]) -> list[list[int]]:
    """For each filter the ids that it lets through, where nothing can be pushed down."""
    found: list[list[int]] = []
    for start in range(0, len(filters), AT_ONCE):
        part = filters[start : start + AT_ONCE]
        answers = frame.selectExpr("id", *(f"({text}) AS q{i}" for i, text in enumerate(part))).collect()
        found += [sorted(row[0] for row in answers if row[i + 1]) for i in range(len(part))]
    return found


def read(spark: Any, name: str, filters: Sequence[str]) -> list[list[int]]:
    """For each filter the ids of the rows that it finds in a table."""
    found: list[list[int]] = []
    for start in range(0, len(filters), AT_ONCE):
        part = filters[start : start + AT_ONCE]
        query = " UNION ALL ".join(f"SELECT {i}, id FROM {name} WHERE {text}" for i, text in enumerate(part))
        ids: list[list[int]] = [[] for _ in part]
        for number, row_id in spark.sql(query).collect():
            ids[number].append(row_id)
        found += [sorted(of_one) for of_one in ids]
    return found


def check(spark: Any, rng: random.Random, name: str, rows: Sequence[Row], *, native: bool = True) -> None:
    conditions: list[Condition] = [random_condition(rng, sql=True) for _ in range(RANDOM_OF_A_TABLE)]
    filters = [*rng.sample(CASTS, CASTS_OF_A_TABLE), *map(sql_of, conditions)]
    schema = spark.table(name).schema
    data = pa.Table.from_pylist(list(rows), schema=spark_arrow_schema(schema))
    expected = told_by_spark(spark, spark.createDataFrame(data, schema), filters)
    by_hand = [sorted(row["id"] for row in rows if matches(one, row)) for one in conditions]
    assert expected[CASTS_OF_A_TABLE:] == by_hand, conditions
    for value in ("true", "false") if native else ("true",):
        spark.conf.set(NATIVE, value)
        try:
            found = read(spark, name, filters)
        finally:
            spark.conf.unset(NATIVE)
        wrong = [(text, got, want) for text, got, want in zip(filters, found, expected) if got != want]
        assert not wrong, f"read.native={value}: {wrong}"


@pytest.fixture(scope="module")
def catalog(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """A lake, attached to the session as catalog `filtered`, with database `filters`."""
    import forebay.spark

    warehouse = str(tmp_path_factory.mktemp("lake"))
    forebay.spark.attach(spark, "filtered", warehouse=warehouse)
    made = Catalog.open(warehouse)
    made.create_database("filters")
    return made


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", every_run(["append", "primary key", "partitions"], lambda kind: kind == "primary key"))
def test_a_lake_table_filters_as_spark_does(spark: Any, catalog: Catalog, kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    arrow = {column.name: column.data_type for column in COLUMNS}
    name = f"filters.{kind.replace(' ', '_')}{seed}"
    options = {"bucket": "2"} if kind == "primary key" else {}
    keys = rng.sample([k for k in PARTITION_KINDS if k not in ("text", "bytes")], 1) if kind == "partitions" else []
    primary = ["id"] if kind == "primary key" else []
    table = catalog.create_table(name, arrow, primary_key=primary, partition_keys=keys, options=options)
    rows: dict[int, Row] = {}
    for piece in pieces(rng):
        put(table, pa.Table.from_pylist(piece, schema=table.arrow_schema))
        rows |= {row["id"]: row for row in piece}
    if kind == "primary key":
        table.compact(full=True)
    check(spark, rng, f"filtered.{name}", list(rows.values()))
    catalog.drop_table(name)


@pytest.fixture(scope="module", params=[PAIMON, ICEBERG])
def tiered(request: pytest.FixtureRequest, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server with a lake, attached to the session as catalog `filters`."""
    import forebay.spark

    with world(tmp_path_factory.mktemp("filters"), request.param) as running:
        server = running.connection.settings.bootstrap_servers[0]
        forebay.spark.attach(spark, "filters", bootstrap_servers=f"{server.host}:{server.port}")
        yield running


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("tiered", "kind"),
    every_run(
        [(PAIMON, "log"), (PAIMON, "primary key"), (PAIMON, "live"), (ICEBERG, "log"), (ICEBERG, "primary key")],
        {(PAIMON, "live")}.__contains__,
    ),
    indirect=["tiered"],
)
@pytest.mark.one_in(2)
def test_live_tables_and_union_reads_filter_as_spark_does(spark: Any, tiered: World, kind: str, seed: int) -> None:
    rng = random.Random(f"{tiered.lake} {kind} {seed}")
    keyed = kind == "primary key" or (kind == "live" and rng.random() < 0.5)
    options: dict[str, Any] = {} if keyed else {"options": {"table.statistics.columns": "*"}}
    table = tiered.create(Schema.of(COLUMNS, ["id"] if keyed else []), buckets=rng.randint(1, 2), **options)
    rows: dict[int, Row] = {}
    written = [*pieces(rng), random_rows(rng, 2, 0 if keyed else 900)]
    for number, piece in enumerate(written):
        data = pa.Table.from_pylist(piece, schema=table.arrow_schema)
        (table.upsert if keyed else table.append)(data)
        rows |= {row["id"]: row for row in piece}
        if kind != "live" and number < len(written) - 1:
            tiered.tier(table)
    if kind == "primary key":
        compact(tiered, table)
    check(spark, rng, f"filters.{table.path}", list(rows.values()), native=kind != "live")
    tiered.connection.drop_table(table.path)
