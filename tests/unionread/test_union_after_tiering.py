"""Union reads of tables that the tiering job has written: first rounds of table snapshots, later ones of the log."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from forebay import col
from forebay.tiering.now import tier_now
from forebay.unionread.reading import LakeSnapshotAndLogSplit, LogSplit
from tests.unionread.world import MEMORY, World, bag, replayed

SCHEMA = pa.schema(
    [pa.field("p", pa.string(), nullable=False), pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())]
)


@pytest.mark.parametrize("keyed", [True, False], ids=["primary key", "log"])
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
