"""Partitions of lake and stream: of every type, on one side or both, new, dropped and recreated, pruned."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from forebay import col
from forebay.base.errors import InvalidRequest
from forebay.client.cluster.cluster import ClusterClient
from forebay.client.table import Table
from forebay.lakes.iceberg import IcebergLakeStorage
from forebay.lakes.iceberg_tables import opened
from forebay.lakes.paimon import PaimonLakeStorage
from forebay.metadata.partitions import partition_text
from forebay.metadata.table import TableBucket
from forebay.paimon.catalog.catalog import Catalog
from forebay.protocol.api import ApiKey, ServerNode
from forebay.testing.memory_lake import MemoryLakeStorage
from forebay.unionread.splits import KvBucketSplit, LakeSnapshotSplit
from tests.every_run import every_run
from tests.paimon.lake import put
from tests.unionread.world import World, bag, replayed

TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), ["a", "b-1", "C_2"]),
    "int": (pa.int32(), [-5, 0, 2024]),
    "bigint": (pa.int64(), [-(1 << 40), 7, 1 << 50]),
    "date": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(2026, 1, 1)]),
    "boolean": (pa.bool_(), [True, False]),
    "timestamp": (
        pa.timestamp("us"),
        [dt.datetime(2024, 1, 15, 10, 11, 12, 345678), dt.datetime(1999, 1, 1), dt.datetime(1960, 5, 6, 7, 8, 9)],
    ),
}


def make(world: World, data_type: pa.DataType, values: list[Any], *, keyed: bool, buckets: int = 2) -> Table:
    """A table partitioned by `p` with these partitions."""
    schema = pa.schema(
        [pa.field("p", data_type, nullable=False), pa.field("id", pa.int64(), nullable=False), ("v", pa.string())]
    )
    options: dict[str, Any] = {"primary_key": ["p", "id"]} if keyed else {}
    table = world.create(schema, partition_keys=["p"], buckets=buckets, **options)
    for value in values:
        add(world, table, value)
    return table


def add(world: World, table: Table, value: Any) -> None:
    text = partition_text(table.schema.column("p").data_type, value)
    table.create_partition({"p": text})


def drop(world: World, table: Table, text: str) -> None:
    table.drop_partition({"p": text})


def write(table: Table, values: list[Any], ids: range, v: str) -> None:
    data = pa.Table.from_pylist([{"p": p, "id": i, "v": v} for p in values for i in ids], schema=table.arrow_schema)
    (table.upsert if table.has_primary_key else table.append)(data)


@pytest.mark.parametrize(
    ("kind", "keyed"),
    every_run(
        [(kind, keyed) for kind in TYPES for keyed in (True, False)],
        lambda case: case[1] == bool(tuple(TYPES).index(case[0]) % 2),
    ),
)
@pytest.mark.one_in(2)
def test_partitions_of_every_type_are_matched_by_their_values(both: World, kind: str, keyed: bool) -> None:
    data_type, values = TYPES[kind]
    table = make(both, data_type, values, keyed=keyed)
    write(table, values, range(4), "old")
    both.tier(table)
    write(table, values[:1], range(2, 6), "new")
    assert both.rows(table) == replayed(table)
    assert not both.plan(table).facts.lake_only_partitions
    for predicate in (col("p") == values[0], col("p") != values[0], (col("p") == values[1]) & (col("id") > 1)):
        assert both.rows(table, filter=predicate) == replayed(table, None, predicate)
        assert both.rows(table, columns=["v"], filter=predicate) == replayed(table, ["v"], predicate)


@pytest.mark.parametrize("keyed", [True, False], ids=["primary key", "log"])
def test_a_partition_that_the_stream_has_dropped_is_read_from_the_lake(both: World, keyed: bool) -> None:
    table = make(both, pa.string(), ["a", "b"], keyed=keyed)
    write(table, ["a", "b"], range(3), "old")
    both.tier(table)
    before = both.rows(table)
    drop(both, table, "a")
    plan = both.plan(table)
    assert plan.facts.lake_only_partitions == ("a",)
    assert both.rows(table) == before
    assert both.rows(table, filter=col("p") == "a") == bag([{"p": "a", "id": i, "v": "old"} for i in range(3)])


def test_a_partition_that_only_the_stream_has_is_read_from_the_stream(both: World) -> None:
    for keyed in (True, False):
        table = make(both, pa.string(), ["a"], keyed=keyed)
        write(table, ["a"], range(3), "old")
        both.tier(table)
        add(both, table, "new")
        write(table, ["new"], range(4), "x")
        assert both.rows(table) == replayed(table)
        if keyed:
            assert any(isinstance(split, KvBucketSplit) for split in both.plan(table).splits)


def test_a_recreated_partition_overrides_what_the_lake_has_of_its_name(both: World) -> None:
    table = make(both, pa.string(), ["a"], keyed=True, buckets=1)
    write(table, ["a"], range(3), "old")
    both.tier(table)
    drop(both, table, "a")
    add(both, table, "a")
    write(table, ["a"], range(2, 4), "again")
    expected = [{"p": "a", "id": i, "v": "old"} for i in (0, 1)] + [{"p": "a", "id": i, "v": "again"} for i in (2, 3)]
    assert both.rows(table) == bag(expected)


def test_a_filter_on_partitions_leaves_out_those_of_both_sides(both: World) -> None:
    table = make(both, pa.date32(), [dt.date(2026, 1, d) for d in range(1, 6)], keyed=True, buckets=1)
    write(table, [dt.date(2026, 1, d) for d in range(1, 6)], range(2), "old")
    both.tier(table)
    write(table, [dt.date(2026, 1, d) for d in (2, 4)], range(1), "new")
    plan = both.plan(table, filter=(col("p") >= dt.date(2026, 1, 4)) & (col("id") >= 0))
    assert plan.facts.pruned_partitions == ("2026-01-01", "2026-01-02", "2026-01-03")
    lake = [s.lake.partition() for s in plan.splits if isinstance(s, LakeSnapshotSplit)]
    assert set(lake) == {("2026-01-05",)}
    names = {plan.facts.partition_names[bucket.partition_id] for bucket in plan.log_offsets if bucket.partition_id}
    assert names == {"2026-01-04", "2026-01-05"}
    assert both.plan(table, filter=col("p") == dt.date(2030, 1, 1)).splits == ()


@pytest.mark.parametrize("data_type", [pa.string(), pa.int32()], ids=str)
def test_rows_of_null_partitions_which_only_a_lake_has_are_read_and_filtered(
    both: World, data_type: pa.DataType
) -> None:
    world = both
    values = ["a", "b"] if data_type == pa.string() else [1, 2]
    table = world.create(pa.schema([("p", data_type), ("id", pa.int64())]), partition_keys=["p"])
    rows = [{"p": p, "id": i} for i, p in enumerate(values)]
    table.append(pa.Table.from_pylist(rows, table.arrow_schema))
    nulls = [{"p": None, "id": 10}, {"p": None, "id": 11}]
    add_to_lake(world, table, nulls)
    world.tier(table)
    table.append(pa.Table.from_pylist([{"p": values[0], "id": 20}], table.arrow_schema))
    rows += [*nulls, {"p": values[0], "id": 20}]
    assert world.rows(table) == bag(rows)
    for predicate, wanted in (
        (col("p").is_null(), nulls),
        (col("p").is_not_null(), [r for r in rows if r["p"] is not None]),
        ((col("p") == values[1]) | col("p").is_null(), [rows[1], *nulls]),
        (col("p") == values[0], [rows[0], rows[-1]]),
        (col("p").is_null() & (col("id") > 10), nulls[1:]),
    ):
        assert world.rows(table, filter=predicate) == bag(wanted), predicate


def add_to_lake(world: World, table: Table, rows: list[dict[str, Any]]) -> None:
    """Rows that another writer has written into the lake table."""
    storage = world.storage
    if isinstance(storage, MemoryLakeStorage):
        lake = storage.table(table.path)
        lake.add({(("__NULL__",), 0): tuple(rows)}, {}, tiered=False)
    elif isinstance(storage, IcebergLakeStorage):
        with opened(storage.options) as catalog:
            lake_table = catalog.load_table(str(table.path))
            times = [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * len(rows)
            system = {"__bucket": [0] * len(rows), "__offset": [0] * len(rows), "__timestamp": times}
            columns = {name: [row[name] for row in rows] for name in table.schema.names} | system
            lake_table.append(pa.Table.from_pydict(columns, lake_table.schema().as_arrow()))
    else:
        assert isinstance(storage, PaimonLakeStorage)
        put(Catalog.open(storage.options).table(str(table.path)), rows)


def test_partitions_can_be_chosen_by_name_and_by_value(both: World) -> None:
    table = make(both, pa.int32(), [1, 2, 3], keyed=False, buckets=1)
    write(table, [1, 2, 3], range(2), "old")
    both.tier(table)
    drop(both, table, "3")
    write(table, [1], range(5, 6), "new")
    for chosen in ("1", {"p": 1}, [{"p": "1"}]):
        assert both.rows(table, partitions=chosen) == replayed(table, None, col("p") == 1)
    assert len(both.read(table, partitions=["3"])) == 2
    with pytest.raises(InvalidRequest, match="not by"):
        both.plan(table, partitions={"q": 1})
    plain = both.create({"a": pa.int32()})
    with pytest.raises(InvalidRequest, match="not partitioned"):
        both.plan(plain, partitions="1")


def test_a_partition_whose_text_is_not_the_usual_one_is_still_one_partition(memory: World) -> None:
    """The stream takes 007 for a partition of a number; rows of 7 go to partition 7, and a lake knows only 7."""
    table = make(memory, pa.int32(), [], keyed=False, buckets=1)
    table.create_partition({"p": "007"})
    table.create_partition({"p": "7"})
    write(table, [7], range(3), "old")
    memory.tier(table)
    write(table, [7], range(3, 4), "new")
    assert memory.rows(table) == replayed(table)
    assert memory.rows(table, filter=col("p") == 7) == replayed(table)


def test_two_partition_keys_and_a_bucket_key_that_is_not_the_whole_key(both: World) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("region", pa.string(), nullable=False),
            pa.field("day", pa.date32(), nullable=False),
            pa.field("sub", pa.int32(), nullable=False),
            ("v", pa.string()),
        ]
    )
    table = both.create(
        schema,
        primary_key=["day", "region", "id", "sub"],
        partition_keys=["region", "day"],
        bucket_keys=["id"],
        buckets=3,
    )
    days = [dt.date(2026, 1, 1), dt.date(2026, 1, 2)]
    for region in ("eu", "us"):
        for day in days:
            table.create_partition({"region": region, "day": day.isoformat()})

    def batch(ids: range, v: str) -> pa.Table:
        made = [{"id": i, "region": r, "day": d, "sub": i % 2, "v": v} for i in ids for r in ("eu", "us") for d in days]
        return pa.Table.from_pylist(made, schema=table.arrow_schema)

    table.upsert(batch(range(6), "old"))
    both.tier(table)
    table.upsert(batch(range(4, 8), "new"))
    table.delete(batch(range(2), "").select(["id", "region", "day", "sub"]))
    assert both.rows(table) == replayed(table)
    predicate = (col("day") == days[1]) & (col("v") == "old")
    assert both.rows(table, columns=["sub"], filter=predicate) == replayed(table, ["sub"], predicate)
    buckets = {b for b in both.plan(table, filter=predicate).log_offsets if isinstance(b, TableBucket)}
    assert len(buckets) == 6


@pytest.mark.parametrize("keyed", [True, False])
def test_short_changelogs_of_many_partitions_are_fetched_together(
    memory: World, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    names = [f"p{i}" for i in range(20)]
    table = make(memory, pa.string(), names, keyed=keyed)
    write(table, names, range(4), "old")
    memory.tier(table)
    write(table, names[:19], range(2, 8), "new")
    fetches: list[int] = []
    send = ClusterClient.send

    def counted(self: ClusterClient, node: ServerNode, api: ApiKey, *given: Any, **more: Any) -> Any:
        fetches.append(api is ApiKey.FETCH_LOG)
        return send(self, node, api, *given, **more)

    monkeypatch.setattr(ClusterClient, "send", counted)
    expected = replayed(table)
    for together in (1 << 16, 0):
        monkeypatch.setattr("forebay.unionread.reading._TOGETHER_RECORDS_MAX", together)
        plan = memory.plan(table)
        changed = {split.bucket: split for split in plan.splits if not isinstance(split, LakeSnapshotSplit)}
        assert len(changed) >= 19
        fetches.clear()
        read = list(plan.reader.read_each(plan.splits, memory.connection))
        assert bag(pa.Table.from_batches([batch for _, batch in read])) == expected
        assert sum(fetches) == (1 if together else len(changed))
        for split, batch in read:
            if split in changed.values() and keyed:
                alone = pa.Table.from_batches(plan.reader.read(split, memory.connection))
                assert set(batch["id"].to_pylist()) <= set(alone["id"].to_pylist())
                assert set(batch["p"].to_pylist()) == set(alone["p"].to_pylist())
