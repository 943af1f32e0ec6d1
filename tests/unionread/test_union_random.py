"""Union read == replay of the full changelog: random histories, rounds, cuts, filters and projections."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay import col
from forebay.client.table import Table
from forebay.metadata.predicate import Compound, Leaf, Predicate
from tests.unionread.world import World, replayed

SCHEMA = pa.schema(
    [
        pa.field("p", pa.string(), nullable=False),
        pa.field("k", pa.int32(), nullable=False),
        pa.field("s", pa.string(), nullable=False),
        ("v", pa.int64()),
        ("d", pa.float64()),
    ]
)
PARTITIONS = ("x", "y")
PARTITION_KEYS: list[tuple[pa.DataType, dict[str, Any]]] = [
    (pa.string(), {"x": "x", "y": "y", "z": "z"}),
    (pa.int32(), {"x": -5, "y": 12, "z": 13}),
    (pa.date32(), {"x": dt.date(1969, 12, 31), "y": dt.date(2024, 2, 29), "z": dt.date(2030, 1, 1)}),
]
"""Types of the partition key, with the values of each that stand for those in histories and filters."""

NAMES = tuple(SCHEMA.names)

keys = st.builds(
    lambda p, k, s: {"p": p, "k": k, "s": s},
    st.sampled_from(PARTITIONS),
    st.integers(-3, 3),
    st.sampled_from(["", "a", "ab", "é"]),
)
values = st.fixed_dictionaries(
    {
        "v": st.none() | st.integers(-2, 2),
        "d": st.none() | st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")]),
    }
)
upserts = st.tuples(st.just("upsert"), st.lists(st.builds(lambda k, v: {**k, **v}, keys, values), max_size=6))
deletes = st.tuples(st.just("delete"), st.lists(keys, min_size=1, max_size=4))
rounds = st.tuples(st.just("tier"), st.sampled_from([None, 1, 2, 5]), st.integers(0, 15))
histories = st.lists(st.one_of(upserts, upserts, deletes, rounds), max_size=12)

leaves: st.SearchStrategy[Predicate] = st.one_of(
    st.builds(lambda n: col("k") >= n, st.integers(-3, 3)),
    st.builds(lambda n: col("v") == n, st.integers(-2, 2)),
    st.builds(lambda n: col("v") != n, st.integers(-2, 2)),
    st.builds(lambda n: col("v") < n, st.integers(-2, 2)),
    st.builds(lambda n: col("d") >= n, st.sampled_from([0.0, 1.5, float("nan")])),
    st.builds(lambda t: col("s").starts_with(t), st.sampled_from(["", "a", "b"])),
    st.builds(lambda p: col("p") == p, st.sampled_from(["x", "y", "z"])),
    st.just(col("v").is_null()),
    st.just(col("d").is_not_null()),
    st.builds(lambda a, b: col("v").is_in([a, b]), st.integers(-2, 2), st.none() | st.integers(-2, 2)),
)
filters = st.none() | st.recursive(
    leaves,
    lambda part: st.builds(lambda a, b: a & b, part, part) | st.builds(lambda a, b: a | b, part, part),
    max_leaves=4,
)
projections = st.none() | st.lists(st.sampled_from(NAMES), unique=True, max_size=5)
reads = st.lists(st.tuples(projections, filters, st.booleans()), min_size=1, max_size=3)


def play(world: World, table: Table, history: list[tuple[Any, ...]]) -> None:
    """Writes as they come; rounds take some buckets, and of these some records."""
    for step in history:
        match step:
            case ("upsert", []):
                pass
            case ("upsert", rows) if not table.has_primary_key:
                table.append(pa.Table.from_pylist(rows, schema=table.arrow_schema))
            case ("upsert", rows):
                table.upsert(pa.Table.from_pylist(rows, schema=table.arrow_schema))
            case ("delete", rows) if table.has_primary_key:
                table.delete(rows)
            case ("tier", records, chosen):
                buckets = [b for i, b in enumerate(table.buckets()) if chosen >> i & 1]
                world.tier(table, buckets, records=records)


def translated(part: Any, values: dict[str, Any]) -> Any:
    """A history or reads, or a part of these, with other values of `p`."""
    match part:
        case Compound():
            return replace(part, children=translated(part.children, values))
        case Leaf(column="p"):
            return replace(part, literals=tuple(values[v] for v in part.literals))
        case {"p": p}:
            return {**part, "p": values[p]}
        case list() | tuple():
            return type(part)(translated(inner, values) for inner in part)
    return part


def check(world: World, table: Table, wanted: list[tuple[Any, ...]]) -> None:
    for columns, predicate, ordered in wanted:
        got = world.rows(table, columns=columns, filter=predicate, ordered=ordered)
        assert got == replayed(table, columns, predicate)


EXAMPLES = int(os.environ.get("UNION_EXAMPLES", "8"))
"""Histories of each test: an Iceberg round takes a quarter of a second. Let it have some hundred now and then."""

relaxed = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=EXAMPLES,
)


@relaxed
@given(history=histories, wanted=reads, key=st.sampled_from(PARTITION_KEYS))
def test_a_partitioned_primary_key_table_reads_as_its_changelog_replays(
    both: World, history: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]], key: tuple[pa.DataType, dict[str, Any]]
) -> None:
    data_type, values = key
    schema = SCHEMA.set(0, pa.field("p", data_type, nullable=False))
    table = both.create(schema, primary_key=["p", "k", "s"], partition_keys=["p"], bucket_keys=["k"], buckets=2)
    for name in PARTITIONS:
        table.create_partition({"p": str(values[name])})
    play(both, table, translated(history, values))
    check(both, table, translated(wanted, values))
    both.connection.drop_table(table.path)


@relaxed
@given(history=histories, wanted=reads)
def test_a_log_table_reads_as_its_log_replays(
    both: World, history: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]]
) -> None:
    table = both.create(SCHEMA, buckets=2)
    play(both, table, history)
    check(both, table, wanted)
    both.connection.drop_table(table.path)
