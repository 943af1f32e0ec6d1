"""The entry point: `table.scan(source="union")`, its limit, a snapshot that expires during it, and `explain`."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pyarrow as pa
import pytest

import forebay.unionread.open_lakes as open_lakes
import forebay.unionread.planning as planning
import forebay.unionread.scan as scan_module
from forebay import col
from forebay.base.errors import Conflict, CorruptData, ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.client.table import Table
from forebay.lakes.paimon import PaimonLakeStorage
from forebay.metadata.table import TableBucket
from forebay.paimon.catalog.catalog import Catalog
from forebay.testing.memory_lake import MemoryLakeStorage, expire_all_but_the_newest
from forebay.unionread.scan import UnionRowReader
from forebay.unionread.splits import (
    KvBucketSplit,
    LakeRecordsSplit,
    LakeSnapshotAndLogSplit,
    LakeSnapshotSplit,
    LogSplit,
    SplitCodec,
)
from tests.paimon.lake import at_ms
from tests.unionread.world import ICEBERG, World, bag, compact, replayed

KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


def rows(*ids: int, name: str = "a") -> list[dict[str, Any]]:
    return [{"id": i, "name": name} for i in ids]


@pytest.fixture
def lake(memory: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose tables name the lake in memory as theirs."""
    monkeypatch.setattr(open_lakes, "create_lake_storage", lambda _format, options: MemoryLakeStorage(options))
    return memory


def tiered(world: World, **options: Any) -> Table:
    """A table with rows 0 to 9 in the lake, and 8 to 11 changed since."""
    table = world.create(KEYED, primary_key=["id"], **options)
    table.upsert(rows(*range(10)))
    world.tier(table)
    table.upsert(rows(*range(8, 12), name="b"))
    return table


def test_a_union_scan_finds_the_lake_that_the_table_names(both: World, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(both.storage, MemoryLakeStorage):
        monkeypatch.setattr(open_lakes, "create_lake_storage", lambda _format, options: MemoryLakeStorage(options))
    table = tiered(both, buckets=2)
    scan = table.scan(source="union")
    parts = scan.plan()
    assert any(isinstance(split, LakeSnapshotAndLogSplit) for split in parts)
    assert bag(scan.to_arrow()) == replayed(table)
    sent, splits = pickle.loads(pickle.dumps((scan, parts)))
    assert bag(pa.concat_tables([sent.read_split(split).read_all() for split in splits])) == replayed(table)
    other = table.scan(source="union")  # one that has no plan of its own yet
    assert bag(pa.concat_tables([other.read_split(split).read_all() for split in parts])) == replayed(table)
    assert scan.count() == len(replayed(table))
    few = table.scan(["name"], "id > 8", source="union")
    assert bag(few.to_arrow()) == replayed(table, ["name"], col("id") > 8)
    assert bag(table.scan(source="union").reader().read_all()) == replayed(table)
    assert [table.scan(limit=limit, source="union").to_arrow().num_rows for limit in (0, 1, 5, 100)] == [0, 1, 5, 12]


def test_a_table_without_a_lake_is_read_from_the_stream(memory: World) -> None:
    table = memory.create(KEYED, primary_key=["id"], options={"table.datalake.enabled": "false"}, buckets=2)
    table.upsert(rows(*range(5)))
    reader = table.scan(filter=col("id") < 3, source="union").reader()
    assert bag(reader.read_all()) == bag(rows(0, 1, 2))
    assert reader.log_offsets == table.changes("earliest", "latest").stop_offsets


def test_log_offsets_of_a_scan_are_where_the_log_continues(lake: World) -> None:
    table = lake.create(KEYED, primary_key=["id"], buckets=2)
    table.upsert(rows(*range(20)))
    lake.tier(table, table.buckets()[:1])
    reader = table.scan(source="union").reader()
    before = bag(reader.read_all())
    table.upsert(rows(100))
    later = [r["id"] for b in table.changes(dict(reader.log_offsets), "latest", include=()) for r in b.to_pylist()]
    assert (later, before) == ([100], bag(rows(*range(20))))


def test_a_limit_is_met_without_reading_what_it_does_not_need(lake: World) -> None:
    table = lake.create(KEYED, buckets=1)
    table.append(rows(*range(30)))
    lake.tier(table)
    table.append(rows(*range(30, 40)))
    assert table.scan(limit=4, source="union").to_arrow().num_rows == 4
    assert table.scan(filter=col("id") >= 5, limit=30, source="union").to_arrow().num_rows == 30
    read = [b.num_rows for s in lake.plan(table, limit=2).splits[:1] for b in lake.plan(table, limit=2).reader.read(s)]
    assert read == [2]


def test_a_snapshot_that_expires_before_the_first_row_makes_the_scan_replan(lake: World) -> None:
    table = tiered(lake)
    reader = table.scan(source="union").reader()
    lake.tier(table)
    expire_all_but_the_newest(lake.storage, table.path)  # type: ignore[arg-type]
    assert bag(reader.read_all()) == replayed(table)


def test_a_snapshot_that_expires_while_it_is_read_is_an_error_that_says_so(
    lake: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.create(KEYED)
    table.append(rows(*range(10)))
    lake.tier(table)
    batches = iter(table.scan(source="union"))
    next(batches)
    lake.tier(table)
    expire_all_but_the_newest(lake.storage, table.path)  # type: ignore[arg-type]
    with pytest.raises(NotFound) as gone:
        list(batches)
    assert gone.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST


def test_a_snapshot_that_expires_while_it_is_planned_is_replanned(lake: World, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tiered(lake)
    ask, told = planning.readable_snapshot, []

    def outdated(asked: Table) -> Any:
        found = ask(asked)
        if not told:
            told.append(found)
            lake.tier(table)
            expire_all_but_the_newest(lake.storage, table.path)  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(planning, "readable_snapshot", outdated)
    assert bag(table.scan(source="union").to_arrow()) == replayed(table)
    assert len(told) == 1


def lose_the_snapshot(lake: World, table: Table) -> int:
    """The newest snapshot that the server knows has expired in the lake, and nothing is behind it; returns its id."""
    assert isinstance(lake.storage, MemoryLakeStorage)
    there = lake.storage.table(table.path)
    there.expired |= {snapshot.snapshot_id for snapshot in there.snapshots}
    there.snapshots = []
    return lake.admin.lake_snapshot(table.path).snapshot_id


@pytest.mark.parametrize("keyed", [True, False])
def test_the_stream_stands_in_for_an_expired_snapshot_where_it_has_everything(lake: World, keyed: bool) -> None:
    table = lake.create(KEYED, primary_key=["id"] if keyed else [], buckets=2)
    write = table.upsert if keyed else table.append
    write(rows(*range(10)))
    lake.tier(table)
    write(rows(*range(8, 12), name="b"))
    lost = lose_the_snapshot(lake, table)
    scan = table.scan(source="union")
    assert f"snapshot {lost} was expired by another process, so only the stream is read" in scan.explain()
    reader = scan.reader()
    assert bag(reader.read_all()) == replayed(table)
    stop = dict(reader.log_offsets) or table.changes("earliest", "latest").stop_offsets
    write(rows(50))
    assert lake.rows(table, stop=stop) == replayed(table, stop=stop)
    with pytest.raises(NotFound, match=str(lost)):
        lake.plan(table, lake_only=True)


def test_an_expired_snapshot_with_rows_that_the_stream_has_not_got_is_an_error_until_the_next_round(
    lake: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.create(pa.schema([("p", pa.string()), ("v", pa.int64())]), partition_keys=["p"])
    table.append([{"p": "a", "v": 1}, {"p": "b", "v": 1}])
    lake.tier(table)
    lose_the_snapshot(lake, table)
    assert bag(table.scan(source="union").to_arrow()) == replayed(table)
    asked = planning.list_offsets

    def trimmed(cluster: Any, info: Any, buckets: Any, which: Any) -> Any:
        return {b: 1 if which == planning.EARLIEST else o for b, o in asked(cluster, info, buckets, which).items()}

    with monkeypatch.context() as patched:
        patched.setattr(planning, "list_offsets", trimmed)
        with pytest.raises(NotFound, match=r"no longer begins at 0.*tiering --once") as gone:
            table.scan(source="union").reader()
        assert gone.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
    table.drop_partition({"p": "a"})
    with pytest.raises(NotFound, match="1 partitions that only the lake had") as gone:
        table.scan(source="union").reader()
    assert gone.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST


def test_a_compaction_whose_maker_expires_all_else_does_not_end_union_reads(both: World) -> None:
    keyed, log = (both.create(KEYED, primary_key=key) for key in (["id"], []))
    for table, write in ((keyed, keyed.upsert), (log, log.append)):
        for i in range(3):
            write(rows(*range(5 * i, 5 * i + 6)))
            both.tier(table)
        known = both.admin.lake_snapshot(table.path)
        write(rows(*range(8, 12), name="b"))
        before = replayed(table)
        compact(both, table, expire=True)
        plan = both.plan(table)
        if both.lake != ICEBERG:  # there, the newest snapshot of a round has a name, and does not expire
            assert plan.facts.expired_snapshot_id == known.snapshot_id
            assert plan.facts.snapshot_id not in (known.snapshot_id, None)
            assert f"snapshot {known.snapshot_id} was expired by another process, so snapshot" in plan.explain()
        assert both.rows(table) == before
        assert both.rows(table, filter=col("name") == "b") == replayed(table, None, col("name") == "b")
        in_lake = replayed(table, stop=known.log_offsets)
        assert both.rows(table, stop=known.log_offsets) == in_lake
        assert both.rows(table, lake_only=True) == in_lake
        both.tier(table)
        assert both.plan(table).facts.expired_snapshot_id is None
        assert both.rows(table) == before


def test_a_lake_table_that_is_compacted_while_it_is_read_gives_the_same_rows(both: World) -> None:
    table = both.create(KEYED, primary_key=["id"], buckets=2)
    for i in range(4):
        table.upsert(rows(*range(5 * i, 5 * i + 8), name=f"round {i}"))
        both.tier(table)
    table.upsert(rows(3, 40, name="tail"))
    plan, expected = both.plan(table), replayed(table)
    found = []
    for split in plan.splits:
        for batch in plan.reader.read(split, both.connection):
            found += batch.to_pylist()
            compact(both, table)
            table.upsert(rows(3, 41, name="later"))
    assert bag(found) == expected


def test_a_lake_table_whose_buckets_were_changed_is_refused_by_name(both: World) -> None:
    if not isinstance(both.storage, PaimonLakeStorage):
        pytest.skip("buckets of Paimon tables can be changed")
    table = both.create(KEYED, primary_key=["id"], buckets=4)
    table.upsert(rows(*range(20)))
    both.tier(table)
    table.upsert(rows(*range(10, 30), name="b"))
    before = replayed(table)
    lake_table = Catalog.open(both.storage.options).table(str(table.path))
    lake_table.rescale(2)
    assert both.rows(table) == before  # the snapshot that tiering made is still there
    with pytest.raises(InvalidRequest, match="'bucket'"):
        both.storage.create_tiering_factory().validate(table.info)
    lake_table.expire_snapshots(retain_min=1, retain_max=1, older_than=at_ms(0))
    with pytest.raises(UnsupportedOperation, match=r"bucket \d of 2.*0 to 3.*change it back to 4"):
        both.plan(table)


def test_a_newer_snapshot_stands_in_for_an_expired_one_only_where_the_log_decides(lake: World) -> None:
    keyed, log = (lake.create(KEYED, primary_key=key) for key in (["id"], []))
    for table, write in ((keyed, keyed.upsert), (log, log.append)):
        write(rows(*range(6)))
        lake.tier(table)
        write(rows(*range(4, 9), name="b"))
        lake.commit_to_lake(table)
        newest = lake.storage.lake.tables[table.path].snapshots[-1].snapshot_id  # type: ignore[attr-defined]
        expire_all_but_the_newest(lake.storage, table.path)  # type: ignore[arg-type]
        write(rows(8, name="c"))
        assert lake.plan(table).facts.snapshot_id == (newest if table is keyed else None)
        assert lake.rows(table) == replayed(table)
        stop = {table.bucket(0): 7}
        assert lake.plan(table, stop=stop).facts.snapshot_id is None
        assert lake.rows(table, stop=stop) == replayed(table, stop=stop)


def test_the_readable_snapshot_and_its_own_offsets_are_used_not_the_newest(lake: World) -> None:
    table = tiered(lake)
    readable = lake.plan(table).facts.snapshot_id
    snapshot_id, path = lake.commit_to_lake(table)
    lake.worker.commit(table.info, snapshot_id, path, earliest_to_keep=-1)
    plan = lake.plan(table)
    assert plan.facts.snapshot_id == readable != snapshot_id
    assert [(s.start, s.stop) for s in plan.splits if isinstance(s, LakeSnapshotAndLogSplit)] == [(10, 16)]
    assert bag(table.scan(source="union").to_arrow()) == replayed(table)


def test_a_handle_of_a_table_that_was_recreated_is_refused(lake: World) -> None:
    table = tiered(lake)
    lake.connection.drop_table(table.path)
    with pytest.raises(NotFound):
        table.scan(source="union").reader()
    lake.storage.lake.tables.pop(table.path)  # type: ignore[attr-defined]
    lake.connection.create_table(
        table.path, KEYED, primary_key=["id"], buckets=1, options={"table.datalake.enabled": "true"}
    )
    again = lake.connection.table(table.path)
    again.upsert(rows(1))
    lake.tier(again)
    with pytest.raises(Conflict, match="recreated"):
        table.scan(source="union").reader()
    assert bag(again.scan(source="union").to_arrow()) == bag(rows(1))


def test_what_a_union_scan_cannot_do_is_refused(lake: World) -> None:
    table = tiered(lake)
    with pytest.raises(InvalidRequest, match="whole partitions"):
        table.scan(source="union", buckets=[0]).reader()
    with pytest.raises(InvalidRequest, match="no column 'nope'"):
        table.scan(["nope"], source="union")
    with pytest.raises(InvalidRequest, match="no column 'nope'"):
        table.scan(filter=col("nope") == 1, source="union")
    with pytest.raises(InvalidRequest, match="-1"):
        table.scan(limit=-1, source="union")


def test_a_log_range_that_is_gone_makes_the_scan_replan(lake: World, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tiered(lake)
    reader = table.scan(source="union").reader()
    assert isinstance(reader, UnionRowReader)
    read, failed = type(reader.plan.reader).read, []

    def losing(self: Any, split: Any, connection: Any = None) -> Any:
        if not failed:
            failed.append(split)
            raise InvalidRequest("gone", ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION)
        return read(self, split, connection)

    monkeypatch.setattr(type(reader.plan.reader), "read", losing)
    assert bag(reader.read_all()) == replayed(table)
    assert scan_module._PLANNINGS > len(failed) == 1


# ---- splits ---------------------------------------------------------------------------------------------------------


def test_splits_come_back_from_their_bytes(lake: World) -> None:
    table = tiered(lake)
    plan = lake.plan(table)
    codec = plan.reader.codec
    (lake_split, *_) = next(s for s in plan.splits if isinstance(s, LakeSnapshotAndLogSplit)).lake
    bucket, parted = TableBucket(1, 2), TableBucket(1, 2, 3)
    for split in (
        LakeSnapshotSplit(lake_split),
        LakeSnapshotAndLogSplit(bucket, (lake_split, lake_split), 5, 6),
        LakeSnapshotAndLogSplit(parted, (), 0, 1 << 60),
        LogSplit(parted, 0, 9),
        LakeRecordsSplit(parted, (lake_split,), 3, 9),
        KvBucketSplit(bucket),
    ):
        data = codec.encode(split)
        assert codec.decode(data) == split
        assert len(data) < 400


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"version":1}', b'{"version":1,"kind":"what","bucket":[0,1,null],"range":[0,1]}']
)
def test_bytes_that_are_no_split_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptData):
        SplitCodec(None).decode(data)
    with pytest.raises(UnsupportedOperation, match="version 4"):
        SplitCodec(None).decode(b'{"version":4}')


# ---- explain --------------------------------------------------------------------------------------------------------


def test_explain_says_what_is_read_and_why(lake: World) -> None:
    table = tiered(lake, buckets=1)
    scan = table.scan(["name"], (col("id") >= 3) & (col("name") != "x"), 5, source="union")
    snapshot = str(lake.plan(table).facts.snapshot_id)
    text = re.sub(r"\d+ lake splits?", "N lake splits", scan.explain().replace(snapshot, "S"))
    assert text.splitlines() == [
        f"union read of {table.path}, primary key (id), 1 buckets",
        "columns: name",
        "limit: 5 rows; splits are read one after the other until it is reached",
        "lake: paimon, snapshot S, the newest that a union read may start from",
        "filter: id >= 3 AND name != 'x'",
        "  the lake skips rows by: id >= 3",
        "  the lake skips rows by: name != 'x'",
        "  log ranges are read whole: a change that does not match may override a lake row that does",
        "lake overridden by the changelog behind it:",
        "  bucket 0: N lake splits, then log 10 to 16 (6 records), because the snapshot holds the log up to 10",
    ]


def test_explain_of_partitions_names_those_left_out_and_those_that_only_the_lake_has(lake: World) -> None:
    schema = pa.schema([("p", pa.string()), ("v", pa.int64())])
    table = lake.create(schema, partition_keys=["p"])
    for name in ("a", "b", "c"):
        table.create_partition({"p": name})
        table.append([{"p": name, "v": 1}])
    lake.tier(table)
    table.append([{"p": "b", "v": 2}])
    table.drop_partition({"p": "c"})
    text = lake.plan(table, filter=col("p") != "a").explain()
    assert "partitions of the stream that are left out: a" in text
    assert "partitions that only the lake has: c" in text
    assert "partition b, bucket 0: log 1 to 2 (1 record), behind what the lake holds" in text
    untiered = lake.create(schema, partition_keys=["p"])
    assert lake.plan(untiered).explain().endswith("nothing is read")
    assert "no readable snapshot yet" in lake.plan(untiered).explain()
