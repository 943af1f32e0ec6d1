"""Filters on keys find the same rows as a full scan: random keys and buckets, random filters, live and union reads."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from forebay.client.reading import key_filter
from forebay.client.reading.key_filter import KeyFilter
from forebay.client.row_view import RowView
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import Column, Schema
from tests.filters.conditions import COLUMNS, KINDS, Join, Row, matches, predicate, random_condition, random_rows
from tests.filters.conditions import Test as Comparison
from tests.unionread.world import PAIMON, World, world

SEEDS = range(int(os.environ.get("FILTER_FIRST", "0")), int(os.environ.get("FILTER_SEEDS", "1")))
FILTERS = 25 if "FILTER_SEEDS" in os.environ else 6

KEY_KINDS = [kind for kind in KINDS if kind != "dec38"]  # a bucket key of 38 digits is one of Paimon's too, but slow
PARTITION_KINDS = ("bool", "int", "big", "text", "date", "double", "micros")


@pytest.fixture(scope="module", params=[PAIMON])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("keys"), request.param) as running:
        yield running


def condition_on(rng: random.Random, rows: list[Row], keys: list[str]) -> Any:
    """A filter that mostly compares all of `keys` with values that are there, or nearly so, and something else."""

    def value(key: str) -> Any:
        return rng.choice(rows)[key] if rows and rng.random() < 0.8 else rng.choice(KINDS[key][1])

    def test(key: str) -> Comparison:
        if rng.random() < 0.5:
            return Comparison("=", key, (value(key),))
        return Comparison("IN", key, tuple(value(key) for _ in range(rng.randint(1, 4))))

    def whole() -> Join:
        parts: list[Any] = [test(key) for key in keys if rng.random() < 0.9]
        if rng.random() < 0.4 or not parts:
            parts.append(random_condition(rng, sql=False, columns=[*keys, *KINDS], depth=1))
        rng.shuffle(parts)
        return Join("AND", tuple(parts))

    return whole() if rng.random() < 0.5 else Join("OR", tuple(whole() for _ in range(rng.randint(1, 3))))


def unique(rows: list[Row], keys: list[str], partition: list[str]) -> list[Row]:
    """The last row of each key. -0.0 and 0.0 are one key, but name two partitions."""

    def plain(key: str, value: Any) -> Any:
        if value != value:
            return ("nan",)
        if not isinstance(value, float):
            return value
        return repr(value) if key in partition else value + 0.0

    return list({tuple(plain(key, row[key]) for key in keys): row for row in rows}.values())


def filled(rng: random.Random, rows: list[Row], keys: list[str], partition: list[str]) -> list[Row]:
    """The rows with values in all key columns, and with such as may name a partition in those of `partition`."""
    for row in rows:
        for key in keys:
            if row[key] is None or row[key] in ("", b""):
                row[key] = rng.choice([v for v in KINDS[key][1] if v not in ("", b"")])
        for key in partition:
            if not _names_a_partition(row[key]):
                row[key] = rng.choice([v for v in KINDS[key][1] if _names_a_partition(v)])
    return rows


def _loose(row: Row, keys: list[str]) -> bool:
    """Whether no filter fixes the key of `row`: it has a 0.0 or NaN, which have several bit patterns."""
    return any(isinstance(row[key], float) and (row[key] == 0 or row[key] != row[key]) for key in keys)


def _names_a_partition(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, str) or (value.isascii() and value.isalnum())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["primary key", "bucket key", "partitions", "log"])
def test_filters_on_keys_find_what_a_full_scan_does(
    lake: World, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(f"{lake.lake} {kind} {seed}")
    keys = rng.sample(KEY_KINDS, rng.randint(2 if kind == "bucket key" else 1, 3))
    partition = [rng.choice([k for k in PARTITION_KINDS if k not in keys])] if kind == "partitions" else []
    named = [*keys, *partition]
    columns = [Column(c.name, c.data_type.not_null()) if c.name in named else c for c in COLUMNS]
    schema = Schema.of(columns, [] if kind == "log" else named)
    bucket_keys = {"bucket key": keys[:1], "log": keys[:1]}.get(kind, [])
    table = lake.create(schema, buckets=rng.choice([1, 3, 5]), bucket_keys=bucket_keys, partition_keys=partition)
    rows: list[Row] = []
    for step in range(3):
        new = unique(filled(rng, random_rows(rng, rng.randint(3, 15), 100 * step), named, partition), named, partition)
        data = pa.Table.from_pylist(new, schema=table.arrow_schema)
        if kind == "log":
            table.append(data)
            rows += new
        else:
            table.upsert(data)
            rows = unique([*rows, *new], named, partition)
        if step == 0 or (step == 1 and rng.random() < 0.5):
            lake.tier(table)
    for number in range(FILTERS):
        condition = condition_on(rng, rows, named)
        monkeypatch.setattr(key_filter, "KEYS_MAX", 4096 if number % 4 else 3)
        wanted: Predicate = predicate(condition)
        expected = sorted(row["id"] for row in rows if matches(condition, row))
        for source in ("live", "union"):
            scan = table.scan(["id"], wanted, source=source)
            found = sorted(scan.to_arrow()["id"].to_pylist())
            assert found == expected, (source, condition)
            with scan.reader() as reader:
                assert sorted(reader.read_all()["id"].to_pylist()) == expected, (source, condition)
            parts = [part for split in scan.plan() for part in scan.read_split(split).read_all()["id"].to_pylist()]
            assert sorted(parts) == expected, (source, condition)
            assert scan.count() == len(expected)
    for row in rows if kind != "log" else []:  # of logs, a table may have a single bucket
        whole = predicate(Join("AND", tuple(Comparison("=", name, (row[name],)) for name in named)))
        is_fixed = KeyFilter.of(RowView(table.info, (), whole)) is not None
        assert is_fixed or _loose(row, keys)
        assert not (is_fixed and kind == "primary key" and _loose(row, keys))
    lake.connection.drop_table(table.path)
