"""Records written between two times: from the log alone, exactly by commit timestamps."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from forebay import col
from forebay.base.errors import InvalidRequest
from forebay.client.table import Table
from forebay.unionread.splits import LakeSnapshotAndLogSplit, LogSplit
from forebay.unionread.time_range import plan_time_range
from tests.unionread.world import World, bag

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


def records(table: Table) -> list[dict[str, Any]]:
    """All records with their times in milliseconds, those of a bucket in order."""
    log = table.changes("earliest", "latest", include=("change_type", "timestamp", "bucket"))
    found = [row for batch in log for row in batch.to_pylist()]
    for row in found:
        row["at"] = round(row.pop("_commit_timestamp").timestamp() * 1000)
    return found


def expected(table: Table, start: int, end: int | None) -> Counter[str]:
    """The outcome of the records in the window, one after the other."""
    state: dict[Any, Any] = {}
    for number, row in enumerate(records(table)):
        kind, bucket, at = row.pop("_change_type"), row.pop("__bucket"), row.pop("at")
        if at < start or (end is not None and at >= end):
            continue
        key = row["id"] if table.has_primary_key else (bucket, number)
        if kind == "delete":
            state.pop(key, None)
        elif kind != "update_before":
            state[key] = row
    return bag(list(state.values()))


def read(world: World, table: Table, *window: int | None, **options: Any) -> Counter[str]:
    plan = plan_time_range(table, *window, **options)  # type: ignore[arg-type]
    assert {type(split) for split in plan.splits} <= {LogSplit, LakeSnapshotAndLogSplit}
    assert not any(split.lake for split in plan.splits if isinstance(split, LakeSnapshotAndLogSplit))
    batches = [b for split in plan.splits for b in plan.reader.read(split, world.connection)]
    return bag(pa.Table.from_batches(batches, plan.reader.schema))


@pytest.mark.parametrize("keyed", [True, False], ids=["primary key", "log"])
def test_every_window_has_what_was_written_in_it_and_the_lake_has_no_part(memory: World, keyed: bool) -> None:
    table = memory.create(SCHEMA, buckets=2, **({"primary_key": ["id"]} if keyed else {}))
    write = table.upsert if keyed else table.append
    for step in range(8):
        write([{"id": i, "v": step} for i in range(step, step + 4)])
        if keyed and step % 3 == 0:
            table.delete([{"id": step + 1}])
        if step == 4:
            memory.tier(table)
    times = sorted({row["at"] for row in records(table)})
    for i, start in enumerate(times):
        for end in [*times[i + 1 :: 3], None, times[-1] + 10_000_000]:
            assert read(memory, table, start, end) == expected(table, start, end)
    assert read(memory, table, 0, times[0]) == Counter()
    assert read(memory, table, 0) == expected(table, 0, None)
    only = read(memory, table, times[0], columns=["v"], filter=col("v") == 7)
    assert only == Counter({"{'v': 7}": 4})


def test_a_window_that_is_empty_or_lies_ahead(memory: World) -> None:
    table = memory.create(SCHEMA)
    table.append([{"id": 1, "v": 1}])
    for window in ((5, 5), (5, 4)):
        with pytest.raises(InvalidRequest, match="has to be after"):
            plan_time_range(table, *window)
    assert plan_time_range(table, 1 << 45, None).splits == ()


def test_partitions_that_a_filter_rules_out_are_not_read(memory: World) -> None:
    table = memory.create(pa.schema([("p", pa.string()), ("v", pa.int64())]), partition_keys=["p"])
    for name in ("a", "b"):
        table.create_partition({"p": name})
        table.append([{"p": name, "v": 1}])
    plan = plan_time_range(table, 0, filter=col("p") == "b")
    assert len(plan.splits) == 1
    assert read(memory, table, 0, filter=col("p") == "b") == bag([{"p": "b", "v": 1}])
