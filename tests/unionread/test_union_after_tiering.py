"""Union reads of tables that the tiering job has written: first rounds of table snapshots, later ones of the log."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from forebay import col
from forebay.tiering.now import tier_now
from forebay.unionread.splits import LakeSnapshotAndLogSplit, LogSplit
from tests.unionread.world import MEMORY, World, bag, replayed

SCHEMA = pa.schema(
    [pa.field("p", pa.string(), nullable=False), pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())]
)


@pytest.mark.parametrize("keyed", [True, False], ids=["primary key", "log"])
@pytest.mark.one_in(2)
def test_a_table_reads_the_same_before_and_after_every_round_of_the_job(both: World, keyed: bool) -> None:
    if both.lake == MEMORY:
        pytest.skip("the job finds lakes by the options of their tables")
    chance = random.Random(11)
    options = {"primary_key": ["p", "id"]} if keyed else {}
    table = both.create(SCHEMA, partition_keys=["p"], buckets=2, **options)
    for step in range(4):
        table.create_partition({"p": f"p{step}"})
        for _ in range(3):
            rows = [{"p": f"p{chance.randrange(step + 1)}", "id": chance.randrange(20), "v": step} for _ in range(9)]
            (table.upsert if keyed else table.append)(rows)
            if keyed:
                table.delete([{"p": "p0", "id": chance.randrange(20)}])
        expected = replayed(table)
        assert bag(table.scan(source="union").to_arrow()) == expected
        if step < 3:
            list(tier_now(both.connection, [table.path]))
            assert bag(table.scan(source="union").to_arrow()) == expected
            found = table.scan(filter=f"v = {step}", source="union").to_arrow()
            assert bag(found) == replayed(table, None, col("v") == step)
    kind = LakeSnapshotAndLogSplit if keyed else LogSplit
    assert any(isinstance(split, kind) for split in both.plan(table).splits)


@pytest.mark.parametrize(
    "engine",
    [
        {"table.merge-engine": "first_row"},
        {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "v"},
        {"table.merge-engine": "aggregation", "table.delete.behavior": "allow", "fields.v.agg": "sum"},
    ],
    ids=lambda engine: engine["table.merge-engine"],
)
def test_rows_that_a_merge_engine_has_merged_are_not_merged_again_in_the_lake(
    both: World, engine: dict[str, str]
) -> None:
    if both.lake == MEMORY:
        pytest.skip("the job finds lakes by the options of their tables")
    chance = random.Random(5)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
    table = both.create(schema, buckets=2, primary_key=["id"], options=engine)
    sums: dict[int, int] = {}
    for step in range(3):
        for _ in range(3):
            rows = [{"id": chance.randrange(9), "v": chance.randrange(100)} for _ in range(6)]
            table.upsert(rows)
            for row in rows:
                sums[row["id"]] = sums.get(row["id"], 0) + row["v"]
            gone = chance.randrange(9)
            table.delete([{"id": gone}])
            sums.pop(gone, None)
        expected = replayed(table)
        assert bag(table.scan().to_arrow()) == bag(table.scan(source="union").to_arrow()) == expected
        if step < 2:  # the last step stays in the log
            list(tier_now(both.connection, [table.path]))
            assert bag(table.scan(source="union").to_arrow()) == expected
    if "fields.v.agg" in engine:
        assert {row["id"]: row["v"] for row in table.scan(source="union").to_arrow().to_pylist()} == sums
    assert any(isinstance(split, LakeSnapshotAndLogSplit) for split in both.plan(table).splits)
