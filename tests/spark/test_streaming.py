"""Streams without Spark: the reader is called like Spark calls it, and every value goes through JSON or pickle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import Conflict, CorruptData, InvalidRequest, NotFound, UnsupportedOperation
from forebay.client.connection import Connection
from forebay.client.reading.binlog import binlog as packed_binlog
from forebay.client.settings import make_settings
from forebay.client.table import Table
from forebay.spark.options import is_for_streams, stream_options
from tests.spark.streams import Stream, changes, named, release
from tests.spark.tables import ROWS_SCHEMA, ids_of, make_table, rows
from tests.unionread.world import ICEBERG, PAIMON, World, world

limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="comes with Spark 4.2")

# ---- logs -----------------------------------------------------------------------------------------------------------


def test_a_log_is_delivered_from_its_beginning_and_then_what_comes(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t")
    table.append(rows(0, 20))
    stream = Stream(connection, table)
    assert stream.ids() == list(range(20))
    assert stream.ids() == []
    table.append(rows(20, 25))
    assert stream.ids() == list(range(20, 25))


def test_latest_leaves_out_what_was_there_and_is_the_same_instant_whenever_it_is_asked(
    connection: Connection, database: str
) -> None:
    table = make_table(connection, f"{database}.t")
    table.append(rows(0, 20))
    stream = Stream(connection, table, scan_startup_mode="latest")
    first = stream.start
    table.append(rows(20, 25))
    assert stream.start == first
    assert stream.ids() == list(range(20, 25))


def test_a_first_batch_that_is_run_again_after_a_crash_is_the_same(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t")
    table.append(rows(0, 20))
    stream = Stream(connection, table, scan_startup_mode="latest")
    assert stream.start
    table.append(rows(20, 25))
    _, logged = stream.plan()
    table.append(rows(25, 30))
    stream.restart()
    # Spark asks where the stream begins, and runs the batch up to the end that it had logged.
    assert ids_of(stream.read(stream.start, logged)) == list(range(20, 25))
    stream.offset = logged
    assert stream.ids() == list(range(25, 30))


def test_a_stream_continues_after_a_restart_where_it_was(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t")
    table.append(rows(0, 20))
    stream = Stream(connection, table)
    assert stream.ids() == list(range(20))
    table.append(rows(20, 30))
    stream.restart()
    assert stream.ids() == list(range(20, 30))


def test_a_timestamp_begins_with_what_was_written_then_or_later(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t", buckets=1)
    table.append(rows(0, 5))
    while True:  # until the clock has moved on
        table.append(rows(5, 6))
        log = table.changes("earliest", "latest").to_arrow()
        stamps = [round(moment.timestamp() * 1000) for moment in log["_commit_timestamp"].to_pylist()]
        if stamps[-1] > stamps[0]:
            break
    later = sum(stamp >= stamps[-1] for stamp in stamps)
    for start, expected in ((stamps[-1], later), (0, len(stamps)), (stamps[-1] + 10**9, 0)):
        stream = Stream(connection, table, scan_startup_mode="timestamp", scan_startup_timestamp=str(start))
        assert len(stream.ids()) == expected


def test_a_limit_is_kept_and_in_the_end_all_has_been_read_once(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t")
    table.append(rows(0, 100))
    stream = Stream(connection, table, maxRowsPerTrigger="30")
    found = []
    for batches in stream.batches():
        ids = ids_of(batches)
        assert 0 < len(ids) <= 30
        found += ids
    assert sorted(found) == list(range(100))
    table.append(rows(100, 200))
    assert stream.ids() != []
    assert len(ids_of(stream.batch(limits.ReadAllAvailable()))) > 30, "Spark may ask for everything"


def test_up_to_now_ends_although_rows_keep_coming(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t")
    table.append(rows(0, 50))
    stream = Stream(connection, table, maxRowsPerTrigger="20")
    stream.reader.prepareForTriggerAvailableNow()
    found, number = list[int](), 50
    for batches in stream.batches():
        found += ids_of(batches)
        table.append(rows(number, number + 30))
        number += 30
    assert sorted(found) == list(range(50))
    stream.restart()
    stream.reader.prepareForTriggerAvailableNow()
    found += [i for batches in stream.batches() for i in ids_of(batches)]
    assert sorted(found) == list(range(number))


def test_few_rows_wait_for_more_or_for_their_time(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t")
    table.append(rows(0, 5))
    options = {"read.stream.minRowsPerTrigger": "10", "maxTriggerDelayMs": "3600000", "maxOffsetsPerTrigger": "20"}
    stream = Stream(connection, table, **options)
    assert stream.ids() == list(range(5)), "the first batch waits for nothing"
    table.append(rows(5, 9))
    assert stream.ids() == []
    table.append(rows(9, 40))
    assert len(stream.ids()) == 20
    assert len(stream.ids()) == 15
    table.append(rows(40, 41))
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.ids() == [40], "a stream that ends now waits for nothing"


def test_columns_and_a_filter_of_a_stream(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t")
    table.append(rows(0, 20))
    stream = Stream(connection, table, columns="name", filter="id >= 18")
    found = pa.Table.from_batches(stream.batch())
    assert found.column_names == ["name"]
    assert sorted(found["name"].to_pylist()) == ["n18", "n19"]


# ---- primary-key tables ---------------------------------------------------------------------------------------------


def test_a_key_table_begins_with_its_rows_and_continues_with_the_newest_row_of_each_key(
    connection: Connection, database: str
) -> None:
    table = make_table(connection, f"{database}.t", ["id"])
    table.upsert(named(0, 20, "old"))
    table.delete([{"id": 3}])
    stream = Stream(connection, table)
    start = stream.start
    table.upsert(named(0, 2, "between"))
    first = pa.Table.from_batches(stream.batch())
    assert stream.reader.initialOffset() == start
    assert sorted(first["id"].to_pylist()) == [i for i in range(20) if i != 3]
    assert set(first["name"].to_pylist()) == {"old"}, "the table as it was when the stream began"
    table.upsert(named(1, 3, "new"))
    table.upsert(named(2, 5, "newer"))
    table.delete([{"id": 4}])
    second = {row["id"]: row["name"] for batch in stream.batch() for row in batch.to_pylist()}
    assert second == {0: "between", 1: "new", 2: "newer", 3: "newer"}
    assert stream.ids() == []


def test_a_key_comes_once_in_a_batch_however_often_it_changed(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t", ["id"], buckets=2)
    stream = Stream(connection, table, scan_startup_mode="earliest")
    for version in range(5):
        table.upsert(named(0, 10, str(version)))
    found = pa.Table.from_batches(stream.batch())
    assert sorted(found["id"].to_pylist()) == list(range(10))
    assert set(found["name"].to_pylist()) == {"4"}


def test_a_stream_may_tell_of_deleted_keys(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t", ["id"])
    table.upsert(rows(0, 4))
    stream = Stream(connection, table, scan_delete_behavior="include")
    assert sorted(changes(stream.batch())) == [("insert", i, f"n{i}") for i in range(4)]
    table.upsert(named(1, 3, "new"))
    table.delete([{"id": 2}, {"id": 3}])
    table.upsert(named(3, 5, "again"))
    table.upsert(named(9, 10, "passing"))
    table.delete([{"id": 9}])
    assert sorted(changes(stream.batch())) == [
        ("delete", 2, "new"),
        ("delete", 9, "passing"),
        ("update_after", 1, "new"),
        ("update_after", 3, "again"),
        ("update_after", 4, "again"),
    ]
    assert Stream(connection, table, scan_delete_behavior="include", columns="id").ids() == [0, 1, 3, 4]


def test_a_stream_may_end_at_a_deleted_key(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t", ["id"])
    table.upsert(rows(0, 4))
    stream, plain = Stream(connection, table, scan_delete_behavior="fail"), Stream(connection, table)
    assert stream.ids() == plain.ids() == [0, 1, 2, 3]
    table.upsert(rows(4, 5))
    assert stream.ids() == plain.ids() == [4]
    table.delete([{"id": 1}])
    assert plain.ids() == []
    with pytest.raises(UnsupportedOperation, match=r"1 keys of bucket \d were deleted .*give 'ignore'.*t\$changelog"):
        stream.batch()


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("keyed", {"filter": "name = 'x'"}, "takes no option 'filter' on other columns than the primary key"),
        ("keyed$changelog", {}, "a changelog has all deletes"),
        ("log", {}, r"table \S+ is a log"),
        ("keyed", {"scan_delete_behavior": "sometimes"}, "not one of ignore, fail, include"),
    ],
)
def test_deletes_that_a_stream_cannot_tell_of_are_refused_by_name(
    connection: Connection, database: str, name: str, options: dict[str, str], reason: str
) -> None:
    make_table(connection, f"{database}.keyed", ["id"])
    make_table(connection, f"{database}.log")
    with pytest.raises((UnsupportedOperation, InvalidRequest), match=reason):
        Stream(connection, f"{database}.{name}", **{"scan_delete_behavior": "include", **options})


# ---- binlogs --------------------------------------------------------------------------------------------------------


def binlog(batches: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    found = [row for batch in batches for row in batch.to_pylist()]
    names = [[row[side] and row[side]["name"] for side in ("before", "after")] for row in found]
    return [(row["_change_type"], row["_log_offset"], *both) for row, both in zip(found, names, strict=True)]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_a_binlog_has_each_update_once_wherever_batches_are_cut(
    connection: Connection, database: str, limit: int
) -> None:
    table = make_table(connection, f"{database}.t", ["id"], buckets=1)
    table.upsert(rows(0, 2))
    table.upsert(named(0, 2, "x"))
    table.delete([{"id": 1}])
    table.upsert(named(0, 1, "y"))
    stream = Stream(connection, f"{database}.t$binlog", maxRowsPerTrigger=str(limit))
    found = [row for batches in stream.batches() for row in binlog(batches)]
    assert found == [
        ("insert", 0, None, "n0"),
        ("insert", 1, None, "n1"),
        ("update", 2, "n0", "x"),
        ("update", 4, "n1", "x"),
        ("delete", 6, "x", None),
        ("update", 7, "x", "y"),
    ]
    assert stream.reader.latestOffset(stream.start, limits.ReadAllAvailable())["log"] == {"0": 9}


def test_a_binlog_may_begin_with_all_rows_and_show_parts_of_them(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t", ["id"], buckets=1)
    table.upsert(rows(0, 2))
    stream = Stream(connection, f"{database}.t$binlog", scan_startup_mode="full", columns="after, _change_type")
    (batch,) = stream.batch()
    assert batch.schema.names == ["after", "_change_type"]
    assert sorted(row["after"]["name"] for row in batch.to_pylist()) == ["n0", "n1"]
    table.upsert(named(0, 1, "x"))
    assert [(row["_change_type"], row["after"]["name"]) for b in stream.batch() for row in b.to_pylist()] == [
        ("update", "x")
    ]
    assert [b.to_pylist() for b in Stream(connection, f"{database}.t$binlog", columns="_log_offset").batch()] == [
        [{"_log_offset": 0}, {"_log_offset": 1}, {"_log_offset": 2}]
    ]


@pytest.mark.parametrize(
    ("changed", "lost"),
    [(["update_before"], 0), (["insert", "update_before", "delete"], 1), (["insert", "update_after"], 1)],
)
def test_half_an_update_is_an_error_that_names_its_offset(changed: list[str], lost: int) -> None:
    columns = [pa.array(changed), pa.array(range(len(changed))), pa.nulls(len(changed), pa.timestamp("ms", "UTC"))]
    found = pa.RecordBatch.from_arrays(columns, ["_change_type", "_log_offset", "_commit_timestamp"])
    with pytest.raises(CorruptData, match=f"update at offset {lost}"):
        list(packed_binlog([found]))


def test_a_stream_of_a_log_tells_the_places_of_its_records_if_they_are_asked_for(
    connection: Connection, database: str
) -> None:
    table = make_table(connection, f"{database}.t", buckets=2)
    table.append(rows(0, 10))
    told = Stream(connection, table, columns="id,_log_offset,__bucket,_commit_timestamp").batch()
    want = table.changes("earliest", "latest", columns=["id"], include=("offset", "bucket", "timestamp")).to_arrow()
    found = pa.Table.from_batches(told).select(want.column_names)
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, want.to_pylist()))
    key = make_table(connection, f"{database}.key", ["id"])
    with pytest.raises(NotFound, match="has no column '_log_offset'; it has id, name, amount"):
        Stream(connection, key, columns="id,_log_offset")


@pytest.mark.parametrize(
    ("keys", "options", "reason"),
    [([], {}, "is a log"), (["id"], {"table.changelog.image": "wal"}, "'table.changelog.image' = 'wal'")],
)
def test_a_table_without_old_rows_has_no_binlog(
    connection: Connection, database: str, keys: list[str], options: dict[str, str], reason: str
) -> None:
    connection.create_table(f"{database}.t", ROWS_SCHEMA, primary_key=keys, options=options)
    with pytest.raises(UnsupportedOperation, match=reason):
        Stream(connection, f"{database}.t$binlog")


@pytest.mark.parametrize("lost", ["nothing", "lease"])
def test_a_full_read_continues_after_a_restart_in_its_middle(connection: Connection, database: str, lost: str) -> None:
    table = make_table(connection, f"{database}.t", ["id"], buckets=4)
    table.upsert(named(0, 40, "old"))
    stream = Stream(connection, table, maxRowsPerTrigger="15", scan_kv_snapshot_lease_id="mine")
    found = ids_of(stream.batch())
    assert 0 < len(found) < 40
    table.upsert(named(0, 40, "new"))
    open_ones = connection.admin.list_table_snapshots(table.path)
    assert [snapshot.name for snapshot in open_ones] == ["mine"]
    if lost == "lease":
        release(connection, table, open_ones[0].snapshot_id)
    stream.restart()
    rest: list[Any] = []
    while "full" in (stream.offset or {}):
        rest += stream.batch()
    assert sorted(found + ids_of(rest)) == list(range(40)), "every row of the beginning, once"
    assert {name for batch in rest for name in batch.column("name").to_pylist()} == {"old"}
    assert connection.admin.list_table_snapshots(table.path) == [], "nobody needs it any more"
    changed = [row for batches in stream.batches() for batch in batches for row in batch.to_pylist()]
    assert Counter(row["id"] for row in changed).keys() == set(range(40))
    assert {row["name"] for row in changed} == {"new"}


def test_without_table_snapshots_the_whole_changelog_comes_to_the_same_rows(
    connection: Connection, database: str
) -> None:
    table = make_table(connection, f"{database}.t", ["id"])
    table.upsert(named(0, 20, "old"))
    table.delete([{"id": 3}])
    stream = Stream(connection, table, **{"client.scanner.kv.batch-strategy": "snapshot_merge"})
    assert "full" not in stream.start
    assert stream.ids() == [i for i in range(20) if i != 3]


def test_an_empty_key_table_pins_nothing(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t", ["id"])
    stream = Stream(connection, table)
    assert "full" not in stream.start
    assert connection.admin.list_table_snapshots(table.path) == []
    table.upsert(rows(0, 3))
    assert stream.ids() == [0, 1, 2]


def test_a_changelog_delivers_old_images_and_deletes_with_their_offsets(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t", ["id"], buckets=1)
    table.upsert(named(1, 2, "a"))
    stream = Stream(connection, f"{table.path}$changelog")
    table.upsert(named(1, 2, "b"))
    table.delete([{"id": 1}])
    batches = stream.batch()
    assert changes(batches) == [
        ("insert", 1, "a"),
        ("update_before", 1, "a"),
        ("update_after", 1, "b"),
        ("delete", 1, "b"),
    ]
    assert [offset for batch in batches for offset in batch.column("_log_offset").to_pylist()] == [0, 1, 2, 3]
    assert all(moment is not None for batch in batches for moment in batch.column("_commit_timestamp").to_pylist())


def test_a_changelog_may_begin_with_all_rows_as_inserts_and_continues_exactly_after_them(
    connection: Connection, database: str
) -> None:
    table = make_table(connection, f"{database}.t", ["id"], buckets=1)
    table.upsert(named(1, 4, "a"))
    table.delete([{"id": 3}])
    table.upsert(named(1, 2, "b"))
    stream = Stream(connection, f"{table.path}$changelog", scan_startup_mode="full")
    start = stream.start
    table.delete([{"id": 2}])
    batches = stream.batch()
    assert sorted(changes(batches)) == [("insert", 1, "b"), ("insert", 2, "a")]
    assert {offset for batch in batches for offset in batch.column("_log_offset").to_pylist()} == {-1}
    assert {moment for batch in batches for moment in batch.column("_commit_timestamp").to_pylist()} == {None}
    stream.restart()
    batches = stream.batch()
    assert changes(batches) == [("delete", 2, "a")]
    assert [offset for batch in batches for offset in batch.column("_log_offset").to_pylist()] == [start["log"]["0"]]


@pytest.mark.parametrize("columns", ["id, _change_type", "_change_type", "_commit_timestamp, _log_offset", "name"])
def test_a_changelog_that_begins_with_all_rows_gives_the_columns_that_are_wanted(
    connection: Connection, database: str, columns: str
) -> None:
    table = make_table(connection, f"{database}.t", ["id"], buckets=1)
    table.upsert(named(1, 2, "a"))
    stream = Stream(connection, f"{table.path}$changelog", scan_startup_mode="full", columns=columns)
    found = pa.Table.from_batches(stream.batch()).to_pylist()
    row = {"id": 1, "name": "a", "_change_type": "insert", "_log_offset": -1, "_commit_timestamp": None}
    assert found == [{name: row[name] for name in columns.split(", ")}]


# ---- partitions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["full", "latest"])
def test_new_partitions_are_found_and_dropped_ones_let_go(connection: Connection, database: str, mode: str) -> None:
    connection.create_table(f"{database}.t", ROWS_SCHEMA, partition_keys=["name"], buckets=2)
    table = connection.table(f"{database}.t")
    table.create_partition({"name": "a"})
    stream = Stream(connection, table, scan_startup_mode=mode, scan_partition_discovery_interval="1 ms")
    assert stream.start["log"].keys() == {f"{p.partition_id}/{n}" for p in table_partitions(table) for n in (0, 1)}
    table.append(named(0, 4, "a") + named(4, 8, "b"))
    assert stream.ids() == list(range(8))
    table.append(named(8, 10, "a") + named(10, 12, "b"))
    start, end = stream.plan()
    table.drop_partition({"name": "a"})
    assert ids_of(stream.read(start, end)) == [10, 11], "a logged batch can be run although a partition has gone"
    assert stream.ids() == [10, 11]
    stream.restart()
    table.append(named(12, 13, "b"))
    assert stream.ids() == [12]


def table_partitions(table: Table) -> list[Any]:
    return table.partitions()


def test_a_partition_that_goes_while_a_task_reads_it_ends_there(connection: Connection, database: str) -> None:
    connection.create_table(f"{database}.t", ROWS_SCHEMA, partition_keys=["name"], buckets=1)
    table = connection.table(f"{database}.t")
    table.append(named(0, 4, "a") + named(4, 8, "b"))
    stream = Stream(connection, table)
    tasks = stream.reader.partitions(*stream.plan())
    table.drop_partition({"name": "a"})
    assert ids_of(batch for task in tasks for batch in stream.reader.read(task)) == [4, 5, 6, 7]


def test_partitions_are_looked_for_at_intervals(connection: Connection, database: str) -> None:
    connection.create_table(f"{database}.t", ROWS_SCHEMA, partition_keys=["name"], buckets=1)
    table = connection.table(f"{database}.t")
    stream = Stream(connection, table, scan_partition_discovery_interval="1 h")
    assert stream.start["log"] == {}
    table.append(named(0, 4, "a"))
    assert stream.ids() == []
    stream.restart()
    assert stream.ids() == [0, 1, 2, 3]


# ---- lakes ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[PAIMON, ICEBERG])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("lakehouse"), request.param) as running:
        yield running


@pytest.mark.parametrize("limit", [None, "7"])
@pytest.mark.parametrize("keyed", [True, False], ids=["primary key", "log"])
def test_a_lake_table_begins_with_its_lake_snapshot_and_continues_after_it(
    lake: World, keyed: bool, limit: str | None
) -> None:
    table = lake.create(ROWS_SCHEMA, buckets=3, **({"primary_key": ["id"]} if keyed else {}))
    write = table.upsert if keyed else table.append
    write(rows(0, 30))
    lake.tier(table)
    write(rows(30, 40))
    if keyed:
        table.upsert(named(5, 10, "changed"))
    stream = Stream(lake.connection, table, **({} if limit is None else {"maxRowsPerTrigger": limit}))
    assert stream.start["full"]["lake"] is not None
    early: list[Any] = []
    while "full" in stream.start:
        early += stream.batch()
        lake.tier(table)  # what goes to the lake meanwhile is read from the log
        stream.restart()
    assert ids_of(early) == list(range(30))
    assert "changed" not in {name for batch in early for name in batch.column("name").to_pylist()}
    late = [batch for batches in stream.batches() for batch in batches]
    assert ids_of(late) == sorted([*range(30, 40), *(range(5, 10) if keyed else ())])


def test_buckets_that_the_lake_does_not_have_come_from_a_table_snapshot(lake: World) -> None:
    table = lake.create(ROWS_SCHEMA, primary_key=["id"], buckets=4)
    table.upsert(rows(0, 30))
    lake.tier(table, table.buckets()[:2])
    table.upsert(rows(30, 40))
    stream = Stream(lake.connection, table)
    assert len(stream.start["full"]["buckets"]) == 2
    found = [batch for batches in stream.batches() for batch in batches]
    assert ids_of(found) == list(range(40))


@pytest.mark.parametrize("keyed", [True, False], ids=["primary key", "log"])
def test_a_changelog_may_begin_with_the_rows_of_the_lake(lake: World, keyed: bool) -> None:
    table = lake.create(ROWS_SCHEMA, buckets=2, **({"primary_key": ["id"]} if keyed else {}))
    write = table.upsert if keyed else table.append
    write(rows(0, 10))
    lake.tier(table)
    write(rows(10, 12))
    if keyed:
        table.delete([{"id": 3}])
    stream = Stream(lake.connection, f"{table.path}$changelog", scan_startup_mode="full")
    early, late = stream.batch(), stream.batch()
    assert sorted(changes(early)) == [("insert", i, f"n{i}") for i in range(10)]
    deleted = [("delete", 3, "n3")] if keyed else []
    assert sorted(changes(late)) == [*deleted, ("insert", 10, "n10"), ("insert", 11, "n11")]
    assert {offset for batch in early for offset in batch.column("_log_offset").to_pylist()} == {-1}
    assert min(offset for batch in late for offset in batch.column("_log_offset").to_pylist()) >= 0


def test_earliest_leaves_the_lake_out(lake: World) -> None:
    table = lake.create(ROWS_SCHEMA, buckets=1)
    table.append(rows(0, 30))
    lake.tier(table)
    stream = Stream(lake.connection, table, scan_startup_mode="earliest")
    assert "full" not in stream.start
    assert stream.ids() == list(range(30))


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_the_checkpoint_of_a_table_that_was_recreated_is_refused(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t")
    stream = Stream(connection, table)
    table.append(rows(0, 3))
    stream.batch()
    connection.drop_table(table.path)
    make_table(connection, f"{database}.t")
    stream.restart()
    with pytest.raises(Conflict, match="was dropped and recreated"):
        stream.plan()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"scan.startup.mode": "sometimes"}, InvalidRequest, "it can be full, earliest, latest, timestamp"),
        ({"scan.startup.mode": "timestamp"}, InvalidRequest, "belong together"),
        ({"scan.startup.timestamp": "5"}, InvalidRequest, "belong together"),
        ({"read.optimized": "true"}, UnsupportedOperation, "is for batch reads"),
        ({"scan.maxRecordsPerPartition": "5"}, UnsupportedOperation, "is for batch reads"),
        ({"maxRowsPerTrigger": "0"}, InvalidRequest, "'maxRowsPerTrigger': '0' is not a positive whole number"),
        ({"scan.partition.discovery.interval": "soon"}, InvalidRequest, "scan.partition.discovery.interval"),
        ({"scan.partition.discovery.interval": "0 s"}, InvalidRequest, "'0 s' is not a span of time above 0"),
        ({"maxRowPerTrigger": "5"}, InvalidRequest, "no read option"),
    ],
)
def test_options_that_a_stream_cannot_have_are_refused_by_name(
    options: dict[str, str], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        stream_options(make_settings("localhost"), None, options)


def test_a_changelog_begins_at_the_earliest_offset_and_a_table_with_all_its_rows() -> None:
    settings = make_settings("localhost")
    assert stream_options(settings, None, {}, is_changelog=True).mode == "earliest"
    assert stream_options(settings, None, {}).mode == "full"


def test_a_timestamp_is_milliseconds_or_a_time_in_the_sessions_zone() -> None:
    given = {"scan.startup.mode": "timestamp", "scan.startup.timestamp": "1970-01-01 01:00:01"}
    settings = make_settings("localhost")
    assert stream_options(settings, None, given, zone="Europe/Berlin").timestamp_ms == 1000
    assert stream_options(settings, None, {**given, "scan.startup.timestamp": "12"}).timestamp_ms == 12


def test_options_tell_whether_they_are_a_streams() -> None:
    assert is_for_streams({"MAXROWSPERTRIGGER": "5"})
    assert is_for_streams({"scan.startup.mode": "Latest"})
    assert not is_for_streams({"scan.startup.mode": "earliest", "scan.kv.snapshot.lease.id": "x"})
