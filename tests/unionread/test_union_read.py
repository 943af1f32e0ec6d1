"""Lake and stream read as one, for both kinds of tables, over a lake in memory and over Paimon."""

from __future__ import annotations

import pyarrow as pa

from forebay import col
from forebay.client.reading.live_cursor import bucket_scan
from forebay.metadata.table import TableBucket
from forebay.unionread.splits import KvBucketSplit, LakeSnapshotAndLogSplit, LakeSnapshotSplit, LogSplit
from tests.unionread.world import ICEBERG, World, bag, replayed

KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("amount", pa.float64())])
LOGGED = pa.schema([("id", pa.int64()), ("name", pa.string())])


def rows(*ids: int, name: str = "a") -> list[dict[str, object]]:
    return [{"id": i, "name": f"{name}{i}", "amount": float(i)} for i in ids]


def log_rows(*ids: int) -> list[dict[str, object]]:
    return [{"id": i, "name": f"n{i}"} for i in ids]


def kinds(world: World, table: object, **options: object) -> dict[str, int]:
    found: dict[str, int] = {}
    for split in world.plan(table, **options).splits:  # type: ignore[arg-type]
        found[type(split).__name__] = found.get(type(split).__name__, 0) + 1
    return found


# ---- log tables -----------------------------------------------------------------------------------------------------


def test_a_log_table_is_lake_rows_and_then_log_rows_each_once(both: World) -> None:
    table = both.create(LOGGED, buckets=2)
    table.append(log_rows(*range(10)))
    both.tier(table)
    table.append(log_rows(*range(10, 15)))
    assert both.rows(table) == bag(log_rows(*range(15)))
    found = kinds(both, table)
    assert found["LogSplit"] >= 1
    assert found["LakeSnapshotSplit"] >= 1


def test_a_log_table_that_was_never_tiered_is_its_log(both: World) -> None:
    table = both.create(LOGGED)
    assert both.rows(table) == bag([])
    table.append(log_rows(1, 2))
    assert both.rows(table) == bag(log_rows(1, 2))
    assert kinds(both, table) == {"LogSplit": 1}


def test_the_record_at_the_end_of_the_lake_snapshot_is_counted_once(both: World) -> None:
    table = both.create(LOGGED)
    for cut in range(1, 4):
        table.append(log_rows(*range(5 * cut)))
        both.tier(table, records=7)
    assert both.rows(table) == replayed(table)


def test_a_lake_snapshot_that_the_server_was_not_told_of_is_not_read(both: World) -> None:
    table = both.create(LOGGED)
    table.append(log_rows(1, 2))
    both.tier(table)
    table.append(log_rows(3))
    both.commit_to_lake(table)
    table.append(log_rows(4))
    assert both.rows(table) == bag(log_rows(1, 2, 3, 4))


def test_filters_and_projections_of_a_log_table_reach_both_sides(both: World) -> None:
    table = both.create(LOGGED, buckets=3, bucket_keys=["id"])
    table.append(log_rows(*range(20)))
    both.tier(table)
    table.append(log_rows(*range(15, 30)))
    predicate = (col("id") >= 12) & (col("id") < 22) & col("name").is_not_null()
    assert both.rows(table, columns=["name"], filter=predicate) == replayed(table, ["name"], predicate)
    assert both.rows(table, columns=[], filter=predicate) == replayed(table, [], predicate)
    assert both.rows(table, columns=[]) == replayed(table, [])
    assert both.read(table, columns=["name", "id"]).column_names == ["name", "id"]


# ---- primary-key tables ---------------------------------------------------------------------------------------------


def test_the_tail_overrides_the_lake_and_its_deletes_remove(both: World) -> None:
    table = both.create(KEYED, primary_key=["id"], buckets=2)
    table.upsert(rows(*range(10)))
    both.tier(table)
    table.upsert(rows(3, 4, 20, name="b"))
    table.delete([{"id": 5}, {"id": 99}])
    table.upsert(rows(6, name="c"))
    table.delete([{"id": 6}])
    expected = rows(0, 1, 2, 7, 8, 9) + rows(3, 4, 20, name="b")
    assert both.rows(table) == bag(expected) == replayed(table)
    assert both.rows(table, ordered=True) == bag(expected)


def test_buckets_come_from_lake_and_log_from_the_lake_alone_or_from_the_server(both: World) -> None:
    table = both.create(KEYED, primary_key=["id"], buckets=8)
    table.upsert(rows(*range(40)))
    tiered = table.buckets()[:6]
    both.tier(table, tiered)
    changed = next(i for i in range(40) if _bucket_of(both, table, i) == tiered[0])
    table.upsert(rows(changed, name="new"))
    plan = both.plan(table)
    merged = [s for s in plan.splits if isinstance(s, LakeSnapshotAndLogSplit)]
    alone = [s for s in plan.splits if isinstance(s, LakeSnapshotSplit)]
    assert [s.bucket for s in merged] == [tiered[0]]
    assert {s.lake.bucket() for s in alone} == {1, 2, 3, 4, 5}
    assert [s.bucket.bucket for s in plan.splits if isinstance(s, KvBucketSplit)] == [6, 7]
    assert both.rows(table) == replayed(table)
    assert len(both.read(table)) == 40


def _bucket_of(world: World, table: object, key: int) -> TableBucket:
    for batch in table.changes("earliest", "latest"):  # type: ignore[attr-defined]
        for row in batch.to_pylist():
            if row["id"] == key:
                return table.bucket(row["__bucket"])  # type: ignore[attr-defined,no-any-return]
    raise AssertionError(f"no row {key}")


def test_nothing_is_read_of_an_empty_table_with_and_without_a_lake_snapshot(both: World) -> None:
    table = both.create(KEYED, primary_key=["id"], buckets=2)
    assert both.plan(table).splits == ()
    both.tier(table)
    assert both.plan(table).splits == ()
    assert both.rows(table) == bag([])


def test_a_tail_that_deletes_every_key_leaves_nothing(both: World) -> None:
    table = both.create(KEYED, primary_key=["id"])
    table.upsert(rows(*range(5)))
    both.tier(table)
    table.delete([{"id": i} for i in range(5)])
    assert both.rows(table) == bag([])
    table.upsert(rows(2, name="back"))
    assert both.rows(table) == bag(rows(2, name="back"))


def test_keys_below_between_and_above_those_of_the_lake_come_too(both: World) -> None:
    table = both.create(KEYED, primary_key=["id"])
    table.upsert(rows(10, 20, 30))
    both.tier(table)
    table.upsert(rows(1, 15, 20, 99, name="t"))
    expected = rows(10, 30) + rows(1, 15, 20, 99, name="t")
    assert both.rows(table) == bag(expected)
    merged = both.read(table, ordered=True).column("id").to_pylist()
    assert both.lake == ICEBERG or merged in (sorted(merged), sorted(merged, reverse=True))
    assert len(merged) == 6


def test_buckets_of_which_nothing_is_left_in_the_lake_stand_between_others_that_have_rows(both: World) -> None:
    table = both.create(KEYED, primary_key=["id"], buckets=5)
    table.upsert(rows(*range(60)))
    both.tier(table)
    (middle,) = [b for b in table.buckets() if b.bucket == 2]
    gone = [row["id"] for batch in bucket_scan(table.connection, table.info, middle) for row in batch.to_pylist()]
    assert 0 < len(gone) < 60
    table.delete([{"id": i} for i in gone])
    both.tier(table)
    assert both.rows(table) == replayed(table)
    table.upsert(rows(gone[0], *range(58, 62), name="later"))
    assert both.rows(table) == replayed(table)
    assert both.rows(table, ordered=True) == replayed(table)
    assert both.rows(table, columns=[]) == replayed(table, [])


def test_a_range_that_ends_in_empty_log_batches_comes_to_its_end(both: World) -> None:
    table = both.create(KEYED, primary_key=["id"])
    table.upsert(rows(1))
    both.tier(table)
    table.delete([{"id": 77}])
    table.delete([{"id": 78}])
    assert both.rows(table) == bag(rows(1))
    table.upsert(rows(1, name="u"))
    table.delete([{"id": 79}])
    assert both.rows(table) == bag(rows(1, name="u"))


def test_a_filter_on_a_value_never_brings_an_old_version_back(both: World) -> None:
    table = both.create(KEYED, primary_key=["id"], buckets=2)
    table.upsert(rows(*range(8)))
    both.tier(table)
    table.upsert([{"id": i, "name": "gone", "amount": -1.0} for i in range(4)])
    for predicate in (col("amount") >= 0.0, col("name") == "a1", col("name").is_in(["a2", "a6"]), col("amount") < 0.0):
        assert both.rows(table, filter=predicate) == replayed(table, None, predicate)
        assert both.rows(table, filter=predicate, ordered=True) == replayed(table, None, predicate)


def test_a_filter_that_rules_out_all_of_the_lake_does_not_move_where_the_log_begins(both: World) -> None:
    table = both.create(KEYED, primary_key=["id"])
    table.upsert(rows(*range(5)))
    both.tier(table)
    table.upsert(rows(50, name="n"))
    predicate = col("name") == "n50"
    (split,) = both.plan(table, filter=predicate).splits
    assert isinstance(split, LakeSnapshotAndLogSplit)
    assert (split.start, split.stop) == (5, 6)
    assert both.rows(table, filter=predicate) == bag(rows(50, name="n"))
    logged = both.create(LOGGED)
    logged.append(log_rows(*range(5)))
    both.tier(logged)
    logged.append(log_rows(9))
    starts = [s.start for s in both.plan(logged, filter=col("id") == 9).splits if isinstance(s, LogSplit)]
    assert starts == [5]


def test_columns_without_the_key_and_no_columns_at_all(both: World) -> None:
    table = both.create(KEYED, primary_key=["id"], buckets=2)
    table.upsert(rows(*range(6)))
    both.tier(table)
    table.upsert(rows(1, 7, name="b"))
    table.delete([{"id": 0}])
    assert both.rows(table, columns=["name"]) == replayed(table, ["name"])
    assert both.rows(table, columns=["amount", "name"]) == replayed(table, ["amount", "name"])
    assert len(both.read(table, columns=[])) == 6
    assert both.rows(table, columns=[], filter=col("name") == "b7") == bag([{}])
    assert both.rows(table, columns=["amount"], filter=col("name") == "b7") == bag([{"amount": 7.0}])


def test_stop_offsets_read_a_table_as_it_was(both: World) -> None:
    table = both.create(KEYED, primary_key=["id"])
    bucket = table.bucket(0)
    table.upsert(rows(1, 2))
    both.tier(table)
    table.upsert(rows(2, name="b"))
    stop = dict(table.changes("earliest", "latest").stop_offsets or {})
    table.delete([{"id": 1}, {"id": 2}])
    assert both.rows(table, stop=stop) == bag(rows(1) + rows(2, name="b"))
    assert both.plan(table, stop={bucket: 0}).log_offsets == {bucket: 2}
    untiered = both.create(KEYED, primary_key=["id"])
    untiered.upsert(rows(1, 2))
    untiered.delete([{"id": 1}])
    assert both.rows(untiered, stop={untiered.bucket(0): 2}) == bag(rows(1, 2))


def test_the_lake_alone_is_the_readable_snapshot(both: World) -> None:
    table = both.create(KEYED, primary_key=["id"])
    table.upsert(rows(1, 2))
    assert both.rows(table, lake_only=True) == bag([])
    both.tier(table)
    table.upsert(rows(2, 3, name="b"))
    assert both.rows(table, lake_only=True) == bag(rows(1, 2))
    assert both.rows(table, lake_only=True, columns=[]) == bag([{}, {}])


def test_log_offsets_say_where_to_continue(both: World) -> None:
    table = both.create(KEYED, primary_key=["id"], buckets=2)
    table.upsert(rows(*range(6)))
    both.tier(table)
    table.upsert(rows(1, name="b"))
    plan = both.plan(table)
    table.upsert(rows(2, name="c"))
    later = [b.to_pylist() for b in table.changes(dict(plan.log_offsets), "latest", include=("change_type",))]
    assert [r["name"] for batch in later for r in batch] == ["a2", "c2"]
