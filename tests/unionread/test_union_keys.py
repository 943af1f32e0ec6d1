"""Union reads whose filter fixes keys: rows come from the servers, and from partitions that only the lake has."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from forebay import col
from forebay.client.cluster.offsets import list_offsets
from forebay.client.table import Table
from forebay.testing.memory_lake import MemoryLakeStorage
from forebay.unionread.splits import KeyLookupSplit, LakeSnapshotAndLogSplit, LakeSnapshotSplit
from tests.unionread.world import World, bag

ID = pa.field("id", pa.int64(), nullable=False)


def tiered(world: World, ids: range = range(40), *, buckets: int = 8) -> Table:
    """A table with a row for each of `ids`, all of them in the lake."""
    table = world.create(pa.schema([ID, ("v", pa.string())]), primary_key=["id"], buckets=buckets)
    table.upsert([{"id": i, "v": "lake"} for i in ids])
    world.tier(table)
    return table


def test_keys_are_looked_up_and_the_lake_is_not_planned(both: World, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tiered(both)
    table.upsert([{"id": 1, "v": "stream"}, {"id": 100, "v": "stream"}])
    table.delete([2])
    monkeypatch.setattr("forebay.unionread.planning._Planning._lake_splits", _refuse)
    keys = col("id").is_in([1, 2, 3, 100, 101])
    plan = both.plan(table, filter=keys, look_up=True)
    assert [type(split) for split in plan.splits] == [KeyLookupSplit]
    assert "lookups on the servers" in plan.explain()
    expected = [{"id": 1, "v": "stream"}, {"id": 3, "v": "lake"}, {"id": 100, "v": "stream"}]
    assert both.rows(table, filter=keys, look_up=True) == bag(expected)
    assert both.read(table, columns=[], filter=keys, look_up=True).num_rows == 3


def _refuse(*_: Any) -> Any:
    raise AssertionError("the lake was planned")


def test_without_lookups_only_the_buckets_of_the_keys_are_read(both: World) -> None:
    table = tiered(both)
    table.upsert([{"id": i, "v": "stream"} for i in range(20)])
    plan = both.plan(table, filter=col("id") == 1)
    [split] = plan.splits
    assert isinstance(split, LakeSnapshotAndLogSplit)
    assert list(plan.log_offsets) == [split.bucket]
    assert "chosen by the filter: 1 of 8 buckets" in plan.explain()
    assert both.rows(table, filter=col("id") == 1) == bag([{"id": 1, "v": "stream"}])


def test_a_contradiction_is_planned_without_a_request(both: World, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tiered(both, range(3))
    monkeypatch.setattr("forebay.unionread.planning.readable_snapshot", _refuse)
    plan = both.plan(table, filter=(col("id") == 1) & (col("id") == 2))
    assert plan.splits == ()
    assert "nothing, as no row can match" in plan.explain()


def test_the_lake_has_the_keys_of_partitions_that_the_stream_has_dropped(both: World) -> None:
    schema = pa.schema([pa.field("p", pa.string(), nullable=False), ID, ("v", pa.string())])
    table = both.create(schema, primary_key=["p", "id"], partition_keys=["p"], buckets=2)
    for name in ("old", "new", "again"):
        table.create_partition({"p": name})
        table.upsert([{"p": name, "id": i, "v": "lake"} for i in range(6)])
    both.tier(table)
    for name in ("old", "again"):
        table.drop_partition({"p": name})
    table.create_partition({"p": "again"})
    table.upsert([{"p": "again", "id": 1, "v": "stream"}, {"p": "new", "id": 2, "v": "stream"}])
    id_, p = pc.field("id"), pc.field("p")
    for keys, same in (
        (col("id") == 1, id_ == 1),
        (col("id").is_in([1, 2, 5]), id_.isin([1, 2, 5])),
        ((col("id") == 3) & (col("p") == "again"), (id_ == 3) & (p == "again")),
    ):
        expected = bag(both.read(table).filter(same))
        assert both.rows(table, filter=keys, look_up=True) == expected
        assert both.rows(table, filter=keys) == expected
    kinds = {type(split) for split in both.plan(table, filter=col("id") == 1, look_up=True).splits}
    assert kinds >= {KeyLookupSplit, LakeSnapshotSplit}


def test_a_bucket_key_of_a_log_chooses_its_files_and_its_log(both: World) -> None:
    schema = pa.schema([pa.field("user", pa.string(), nullable=False), ("n", pa.int64())])
    table = both.create(schema, bucket_keys=["user"], buckets=4)
    rows = [{"user": f"u{i % 9}", "n": i} for i in range(90)]
    table.append(rows[:50])
    both.tier(table)
    table.append(rows[50:])
    everything, one = both.plan(table), both.plan(table, filter=col("user") == "u3")
    assert len(one.log_offsets) == 1
    if not isinstance(both.storage, MemoryLakeStorage):  # which does not say how many buckets its files are of
        assert len(one.splits) <= len(everything.splits)
    assert both.rows(table, filter=col("user") == "u3") == bag([row for row in rows if row["user"] == "u3"])


def test_a_scan_looks_keys_up_and_its_reader_knows_the_offsets(both: World) -> None:
    table = both.connection.create_table("fluss.keys_live_only", {"id": "BIGINT", "v": "STRING"}, primary_key="id")
    table.upsert([{"id": i, "v": "x"} for i in range(5)])
    scan = table.scan(filter="id IN (1, 2, 9)", source="union")
    assert (scan.count(), scan.to_arrow().num_rows, scan.head(1).num_rows) == (2, 2, 1)
    assert [type(split) for split in scan.plan()] == [KeyLookupSplit]
    assert "lookups on the servers" in scan.explain()
    with scan.reader() as reader:
        assert reader.read_all().num_rows == 2
        ends = list_offsets(both.connection.cluster, table.info, table.buckets(), "latest")
        assert dict(reader.log_offsets).items() <= ends.items()
        assert reader.log_offsets
    both.connection.drop_table(table.path)
