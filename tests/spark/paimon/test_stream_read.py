"""Streams of Paimon tables without Spark: starting points, batch sizes, and that restarts change nothing."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import Conflict, InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata import types
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.store.consumers import ConsumerManager
from forebay.paimon.store.schema_changes import AddColumn, DropColumn, RenameColumn
from forebay.paimon.table import Table
from forebay.spark.lake_datasource import PaimonDataSource
from forebay.spark.options import StreamLimits
from forebay.spark.reading.lake_plan import PaimonScan
from forebay.spark.reading.plan import Pushdown
from forebay.spark.streaming.lake_planner import LakeStreamPlanner
from tests.paimon.lake import altered, new_catalog, put
from tests.paimon.stream.model import COLUMNS
from tests.paimon.stream.scan_modes import STREAMS, filled
from tests.spark.paimon.streams import PaimonStream

limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="comes with Spark 4.2")
streaming = pytest.importorskip("forebay.spark.streaming.reader", reason="uses the same module of Spark")

KEYED = {"bucket": "2", "changelog-producer": "lookup"}


@pytest.fixture
def catalog(tmp_path: Path) -> FileSystemCatalog:
    return new_catalog(tmp_path)


@pytest.fixture
def table(catalog: FileSystemCatalog) -> Table:
    """An append table."""
    return catalog.create_table("db.t", COLUMNS)


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in rows]


def write(table: Table, *numbers: int) -> None:
    """One commit with rows of these ids."""
    put(table, [{"id": number} for number in numbers])


def consumers(table: Table) -> dict[str, int]:
    return ConsumerManager(table.context.io, table.context.paths).all()


# ---- where a stream begins ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", STREAMS)
def test_every_scan_mode_begins_where_the_engine_s_stream_does(tmp_path: Path, mode: str) -> None:
    clock = ManualClock(1_700_000_000_000)
    catalog = FileSystemCatalog(new_catalog(tmp_path).io, str(tmp_path / "lake"), clock=clock)
    options, first = STREAMS[mode]
    table = filled(catalog, clock)
    stream = PaimonStream(table, **options, maxFilesPerTrigger="1")
    found = []
    for more in ([], [100], [101]):
        if more:
            write(table, *more)
        for batches in stream.batches():
            found += [row["id"] for batch in batches for row in batch.to_pylist()]
            stream.restart()
    assert found == [*first, 100, 101]


@pytest.mark.parametrize("mode", ["latest-full", "latest", "compacted-full", "from-timestamp", "from-snapshot"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_stream_of_an_empty_table_waits_and_misses_nothing(table: Table, mode: str, restarts: bool) -> None:
    needed = {"from-timestamp": {"scan.timestamp-millis": "1"}, "from-snapshot": {"scan.snapshot-id": "1"}}
    stream = PaimonStream(table, **{"scan.mode": mode, **needed.get(mode, {})})
    assert stream.rest() == []
    found: list[int] = []
    for number in (1, 2):
        write(table, number)
        if restarts and (mode != "latest" or found):  # "latest" is when a query is started that has read nothing yet
            stream.restart()
        found += ids(stream.rest())
    assert found == [1, 2]


def test_the_beginning_is_settled_before_anything_is_read(table: Table) -> None:
    stream = PaimonStream(table)
    start = stream.start
    write(table, 1)
    end = stream.plan()[1]
    write(table, 2)
    assert stream.read(start, end) == [], "a batch that is planned anew later must not begin at another snapshot"
    stream.offset = end
    stream.restart()
    assert ids(stream.rest()) == [1, 2]


@pytest.mark.parametrize("mode", ["latest-full", "latest", "from-timestamp"])
@pytest.mark.parametrize("is_empty", [False, True])
def test_a_first_batch_that_is_read_again_begins_where_it_began(table: Table, mode: str, is_empty: bool) -> None:
    """Spark asks a restarted query for its beginning again, and knows only where the first batch ended."""
    if not is_empty:
        write(table, 1)
    stream = PaimonStream(table, scan_mode=mode, **({"scan.timestamp-millis": "5"} if mode == "from-timestamp" else {}))
    start = stream.start
    write(table, 2)
    end = stream.plan()[1]
    first = [row["id"] for batch in stream.read(start, end) for row in batch.to_pylist()]
    write(table, 3)
    table.compact(full=True)
    stream.restart()
    assert stream.start["is_first"]
    assert [row["id"] for batch in stream.read(stream.start, end) for row in batch.to_pylist()] == first
    stream.offset = end
    rest = ids(stream.rest())
    assert first + rest == ([2, 3] if is_empty or mode == "latest" else [1, 2, 3])


def test_latest_stays_where_it_was_when_the_query_asked_first(table: Table) -> None:
    write(table, 1)
    stream = PaimonStream(table, scan_mode="latest")
    assert stream.start == stream.start
    write(table, 2)
    assert ids(stream.rest()) == [2]


def test_options_for_batches_and_unknown_ones_are_refused(table: Table) -> None:
    write(table, 1)
    for options, word in (
        ({"incremental-between": "0,1"}, "batch reads"),
        ({"limit": "3"}, "maxRowsPerTrigger"),
        ({"scan.mod": "latest"}, r"did you mean 'scan\.mode'"),
        ({"merge-engine": "first-row"}, "belongs to tables"),
        ({"minRowsPerTrigger": "3"}, "belong together"),
        ({"maxBytesPerTrigger": "0"}, "not a size above 0"),
    ):
        with pytest.raises((InvalidRequest, UnsupportedOperation), match=word):
            PaimonStream(table, **options).rest()


def test_a_watermark_ends_a_stream(table: Table) -> None:
    for number, watermark in enumerate([10, 20, 30]):
        with table.new_write() as writer:
            writer.write([{"id": number}])
            table.new_commit().commit(writer.prepare_commit(), watermark=watermark)
    stream = PaimonStream(table, **{"scan.bounded.watermark": "20", "scan.snapshot-id": "1"})
    assert ids(stream.rest()) == [0, 1]
    stream.restart()
    write(table, 9)
    assert stream.rest() == []


# ---- how batches are cut --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [
        ({"maxFilesPerTrigger": "2"}, [4, 4, 2]),
        ({"read.stream.maxfilespertrigger": "3"}, [6, 4]),
        ({"maxRowsPerTrigger": "5"}, [4, 4, 2]),
        ({"maxRowsPerTrigger": "1"}, [2, 2, 2, 2, 2]),
        ({"read.stream.maxBytesPerTrigger": "1"}, [2, 2, 2, 2, 2]),
        ({"maxBytesPerTrigger": "1 gb", "maxRowsPerTrigger": "6"}, [6, 4]),
        ({}, [10]),
    ],
)
def test_a_full_snapshot_is_cut_into_batches_by_whole_files(
    table: Table, limit: dict[str, str], sizes: list[int]
) -> None:
    for i in range(5):
        write(table, 2 * i, 2 * i + 1)
    stream = PaimonStream(table, **limit)
    found, lengths = [], []
    for batches in stream.batches():
        rows = [row["id"] for batch in batches for row in batch.to_pylist()]
        found += rows
        lengths.append(len(rows))
        stream.restart()
    assert found == list(range(10))
    assert lengths == sizes


def test_limits_hold_across_snapshots(table: Table) -> None:
    write(table, 0)
    stream = PaimonStream(table, maxFilesPerTrigger="2")
    assert ids(stream.rest()) == [0]
    for i in range(1, 6):
        write(table, i)
    assert [ids([row for batch in batches for row in batch.to_pylist()]) for batches in stream.batches()] == [
        [1, 2],
        [3, 4],
        [5],
    ]


def test_a_cut_snapshot_is_read_to_its_end_whatever_happens_to_the_table(table: Table) -> None:
    for i in range(4):
        write(table, i)
    stream = PaimonStream(table, maxFilesPerTrigger="1")
    found = ids(stream.rows())
    write(table, 4)
    table.compact(full=True)
    table.overwrite([{"id": 99}])
    stream.restart()
    found += ids(stream.rest())
    assert found == [0, 1, 2, 3, 4]


def test_a_batch_that_is_read_again_has_the_same_rows(table: Table) -> None:
    for i in range(6):
        write(table, i)
    stream = PaimonStream(table, maxFilesPerTrigger="4")
    start, end = stream.plan()
    first = [batch.to_pylist() for batch in stream.read(start, end)]
    write(table, 6)
    table.compact(full=True)
    stream.restart()
    assert [batch.to_pylist() for batch in stream.read(start, end)] == first


def test_a_filter_that_changes_in_the_middle_of_a_snapshot_is_refused(table: Table) -> None:
    for i in range(4):
        write(table, i)
    stream = PaimonStream(table, maxFilesPerTrigger="2")
    stream.batch()
    stream.restart(filter="id > 2")
    with pytest.raises(InvalidRequest, match="options, filter and buckets that it had"):
        stream.batch()


def test_trigger_available_now_ends_while_others_commit(table: Table) -> None:
    for i in range(3):
        write(table, i)
    stream = PaimonStream(table, maxFilesPerTrigger="1")
    stream.reader.prepareForTriggerAvailableNow()
    found = []
    for number, batches in enumerate(stream.batches()):
        found += [row["id"] for batch in batches for row in batch.to_pylist()]
        write(table, 100 + number)
        table.compact(full=True)
        assert number < 10
    assert found == [0, 1, 2]
    stream.restart()
    assert ids(stream.rest()) == [100, 101, 102]


def test_trigger_available_now_on_an_empty_table_ends(table: Table) -> None:
    stream = PaimonStream(table)
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.rest() == []


def test_few_rows_wait_for_more_until_the_delay_has_passed(table: Table) -> None:
    write(table, 0)
    clock = ManualClock()
    scan = PaimonScan.of(table, "t")
    few = StreamLimits(min_rows=3, max_delay_ms=1000)
    reader = streaming.StreamReader(LakeStreamPlanner(scan, Pushdown(("id",)), scan.schema, few, 2, clock))
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    write(table, 1)
    assert reader.latestOffset(start, limits.ReadAllAvailable()) == start
    write(table, 2, 3)
    after = reader.latestOffset(start, limits.ReadAllAvailable())
    assert after != start
    write(table, 4)
    assert reader.latestOffset(after, limits.ReadAllAvailable()) == after
    clock.advance(1.1)
    assert reader.latestOffset(after, limits.ReadAllAvailable()) != after


# ---- order ----------------------------------------------------------------------------------------------------------


def test_a_bucket_of_an_append_table_is_read_in_order_by_one_task(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", COLUMNS, options={"bucket": "3", "bucket-key": "name"})
    put(table, [{"id": 0, "name": "n0"}])
    stream = PaimonStream(table, scan_mode="latest")
    stream.offset = stream.start
    number = 0
    for _ in range(4):
        rows = [{"id": (number := number + 1), "name": f"n{i}"} for i in range(8)]
        put(table, rows)
    table.compact(full=True)
    start, end = stream.plan()
    tasks = stream.reader.partitions(start, end)
    places = [{(split.partition, split.bucket) for split in task.splits} for task in tasks]
    assert sum(map(len, places)) == len(set().union(*places)) == 3, "no bucket is in two tasks"
    assert_in_order(stream.read(start, end), 32)
    assert_in_order([batch for found in PaimonStream(table).batches() for batch in found], 33)


def assert_in_order(batches: list[Any], count: int) -> None:
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert len(rows) == count
    for name in {row["name"] for row in rows}:  # a name is in one bucket
        of_name = [row["id"] for row in rows if row["name"] == name]
        assert of_name == sorted(of_name)


def test_rows_without_an_order_are_dealt_out_to_several_tasks(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.spark.reading.plan.ROWS_PER_TASK_MIN", 1)
    for i in range(8):
        write(table, i)
    stream = PaimonStream(table)
    start, end = stream.plan()
    assert len(stream.reader.partitions(start, end)) == 4  # two cores, two tasks for each
    assert sorted(row["id"] for batch in stream.read(start, end) for row in batch.to_pylist()) == list(range(8))


def test_changes_of_a_key_come_after_the_rows_in_full(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.k", COLUMNS, primary_key=["id"], options=KEYED)
    write(table, 1, 2)
    stream = PaimonStream(table, read_changelog="true")
    start = stream.start
    table.delete([{"id": 1}])
    kinds = [[row["_change_type"] for batch in found for row in batch.to_pylist()] for found in stream.batches()]
    assert kinds == [["insert", "insert"], ["delete"]]
    assert start["full"] is not None


# ---- what a stream delivers -----------------------------------------------------------------------------------------


def test_a_keyed_table_gives_new_rows_and_with_read_changelog_every_change(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.k", COLUMNS, primary_key=["id"], options=KEYED)
    put(table, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    streams = PaimonStream(table), PaimonStream(table, read_changelog="true"), PaimonStream(table, "$audit_log")
    binlog = PaimonStream(table, "$binlog")
    for stream in (*streams, binlog):
        assert len(stream.rest()) == 2
    put(table, [{"id": 1, "name": "c"}, {"id": 3, "name": "d"}])
    table.delete([{"id": 2}])
    plain, changelog, audit = (stream.rest() for stream in streams)
    assert sorted((row["id"], row["name"]) for row in plain) == [(1, "c"), (3, "d")]
    assert sorted((row["_change_type"], row["id"], row["name"]) for row in changelog) == [
        ("delete", 2, "b"),
        ("insert", 3, "d"),
        ("update_after", 1, "c"),
        ("update_before", 1, "a"),
    ]
    assert sorted((row["rowkind"], row["id"]) for row in audit) == [("+I", 3), ("+U", 1), ("-D", 2), ("-U", 1)]
    assert ("+U", ["a", "c"]) in [(row["rowkind"], row["name"]) for row in binlog.rest()]


def test_columns_and_filters_are_options(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", COLUMNS, partition_keys=["name"])
    for name in ("a", "b"):
        put(table, [{"id": i, "name": name, "v": i} for i in range(4)])
    stream = PaimonStream(table, columns="v, id", filter="name = 'b' AND id >= 2")
    assert stream.rest() == [{"v": 2, "id": 2}, {"v": 3, "id": 3}]
    start, end = PaimonStream(table, filter="name = 'b'", maxFilesPerTrigger="1").plan()
    assert end["next"] == 3, "the other partition's file does not count"
    assert start != end
    with pytest.raises(NotFound, match="no column 'w'"):
        PaimonStream(table, columns="w")


def test_a_stream_that_could_not_be_right_is_refused_at_its_start(catalog: FileSystemCatalog) -> None:
    plain = catalog.create_table("db.k", COLUMNS, primary_key=["id"], options={"bucket": "1"})
    write(plain, 1)
    with pytest.raises(UnsupportedOperation, match="changelog-producer"):
        PaimonStream(plain, filter="v > 1")
    assert ids(PaimonStream(plain, filter="id > 0").rest()) == [1]
    merged = catalog.create_table(
        "db.m", COLUMNS, primary_key=["id"], options={"bucket": "1", "merge-engine": "partial-update"}
    )
    with pytest.raises(UnsupportedOperation, match="records its input"):
        PaimonStream(merged)
    with pytest.raises(UnsupportedOperation, match=r"\$ro cannot be read as a stream"):
        PaimonStream(plain, "$ro")


def test_overwrites_are_left_out_unless_they_are_requested(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", COLUMNS)
    write(table, 1)
    plain, telling = PaimonStream(table), PaimonStream(table, **{"streaming-read-append-overwrite": "true"})
    assert ids(plain.rest()) == ids(telling.rest()) == [1]
    table.overwrite([{"id": 2}])
    write(table, 3)
    assert ids(plain.rest()) == [3]
    assert ids(telling.rest()) == [2, 3]


def test_an_overwrite_of_a_keyed_table_deletes_and_inserts(catalog: FileSystemCatalog) -> None:
    options = {"bucket": "2", "streaming-read-overwrite": "true"}
    table = catalog.create_table("db.k", COLUMNS, primary_key=["id"], options=options)
    write(table, 1)
    stream = PaimonStream(table, read_changelog="true", maxFilesPerTrigger="1")
    stream.rest()
    table.overwrite([{"id": 2}])
    stream.restart()
    assert sorted((row["_change_type"], row["id"]) for row in stream.rest()) == [("delete", 1), ("insert", 2)]


# ---- while the table changes ----------------------------------------------------------------------------------------


def test_compactions_add_nothing_but_move_the_stream_on(table: Table) -> None:
    write(table, 1)
    stream = PaimonStream(table)
    stream.rest()
    for i in range(2, 8):
        write(table, i)
    found = stream.rest()
    before = stream.offset
    table.compact(full=True)
    assert stream.rest() == []
    assert ids(found) == [2, 3, 4, 5, 6, 7]
    assert before is not None
    assert stream.offset is not None
    assert stream.offset["next"] == before["next"] + 1, "else expiry would overtake a stream that has missed nothing"


def test_a_query_keeps_its_columns_and_its_restart_has_the_new_ones(table: Table) -> None:
    write(table, 1)
    stream = PaimonStream(table)
    stream.rest()
    table = altered(table, [AddColumn(("w",), types.int_()), DropColumn(("v",)), RenameColumn(("name",), "title")])
    put(table, [{"id": 2, "title": "x", "w": 7}])
    start, end = stream.plan()
    assert [row for batch in stream.read(start, end) for row in batch.to_pylist()] == [
        {"id": 2, "name": "x", "v": None}
    ]
    stream.restart()
    assert stream.rest() == [{"id": 2, "title": "x", "w": 7}]


def test_a_stream_continues_across_a_rescale(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.k", COLUMNS, primary_key=["id"], options=KEYED)
    write(table, *range(8))
    stream = PaimonStream(table, read_changelog="true")
    assert len(stream.rest()) == 8
    table = table.rescale(5)
    write(table, 100)
    assert ids(stream.rest()) == [100]
    stream.restart()
    write(table, 101)
    assert [(row["_change_type"], row["id"]) for row in stream.rest()] == [("insert", 101)]


def test_a_snapshot_that_expired_before_it_was_read_is_an_error_that_says_so(table: Table) -> None:
    write(table, 1)
    stream = PaimonStream(table)
    stream.rest()
    for i in range(2, 6):
        write(table, i)
    table.expire_snapshots(retain_max=1, retain_min=1)
    stream.restart()
    with pytest.raises(NotFound, match=r"snapshot 2 .* has expired .*consumer-id"):
        stream.batch()


def test_a_full_snapshot_that_expires_between_two_batches_is_an_error(table: Table) -> None:
    for i in range(3):
        write(table, i)
    stream = PaimonStream(table, maxFilesPerTrigger="1")
    stream.batch()
    table.compact(full=True)
    write(table, 9)
    table.expire_snapshots(retain_max=1, retain_min=1)
    with pytest.raises(NotFound, match="expired"):
        list(stream.batches())
    stream.restart()
    with pytest.raises(NotFound, match="expired"):
        list(stream.batches())


def test_a_table_that_was_recreated_is_not_taken_for_the_old_one(catalog: FileSystemCatalog, table: Table) -> None:
    write(table, 1)
    stream = PaimonStream(table)
    stream.rest()
    catalog.drop_table("db.t")
    with pytest.raises(NotFound):
        stream.batch()
    table = catalog.create_table("db.t", COLUMNS)
    for i in range(4):
        write(table, i)
    for _ in range(2):
        with pytest.raises((Conflict, NotFound), match=r"made anew|recreated|rolled back"):
            stream.batch()
        stream.restart()


def test_a_table_that_was_rolled_back_and_written_again_leaves_no_gap(table: Table) -> None:
    for i in range(4):
        write(table, i)
    stream = PaimonStream(table)
    assert len(stream.rest()) == 4
    table.rollback_to(1)
    for i in range(10, 15):
        write(table, i)
    for _ in range(2):
        with pytest.raises(NotFound, match="another one than the stream has read"):
            stream.batch()
        stream.restart()


def test_a_batch_that_was_planned_before_a_rollback_is_not_read_from_other_snapshots(table: Table) -> None:
    write(table, 1)
    stream = PaimonStream(table)
    stream.rest()
    write(table, 2)
    start, end = stream.plan()
    table.rollback_to(1)
    write(table, 3)
    stream.restart()
    with pytest.raises(NotFound, match=r"cannot be read again: the table was rolled back"):
        stream.read(start, end)


# ---- consumers ------------------------------------------------------------------------------------------------------


def test_a_consumer_keeps_what_is_not_read_and_is_where_the_next_query_begins(table: Table) -> None:
    write(table, 1)
    stream = PaimonStream(table, consumer__id="c", scan_mode="latest")
    assert stream.rest() == []
    assert consumers(table) == {"c": 2}
    for i in range(2, 6):
        write(table, i)
    table.expire_snapshots(retain_max=1, retain_min=1)
    start, end = stream.plan()
    assert [row["id"] for batch in stream.read(start, end) for row in batch.to_pylist()] == [2, 3, 4, 5]
    assert consumers(table) == {"c": 2}, "a batch that is not finished yet may have to be read again"
    stream.offset = end
    assert stream.rest() == []
    assert consumers(table) == {"c": 6}
    table.expire_snapshots(retain_max=1, retain_min=1)
    write(table, 6)
    assert ids(PaimonStream(table, consumer__id="c").rest()) == [6], "without a checkpoint, and not all rows"


def test_a_full_read_is_not_recorded_before_its_end(table: Table) -> None:
    for i in range(3):
        write(table, i)
    stream = PaimonStream(table, consumer__id="c", maxFilesPerTrigger="2")
    stream.batch()
    assert consumers(table) == {}
    stream.batch()
    stream.rest()
    assert consumers(table) == {"c": 4}


def test_a_stream_that_waits_keeps_its_consumer_from_expiring(table: Table) -> None:
    write(table, 1)
    clock = ManualClock()
    scan = PaimonScan.of(table, "t").with_options({"consumer-id": "c", "consumer.expiration-time": "1 h"})
    reader = streaming.StreamReader(LakeStreamPlanner(scan, Pushdown(("id",)), scan.schema, StreamLimits(), 2, clock))
    offset = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    reader.latestOffset(offset, reader.getDefaultReadLimit())
    manager = ConsumerManager(table.context.io, table.context.paths)
    assert manager.delete("c")
    clock.advance(10 * 60)
    reader.latestOffset(offset, reader.getDefaultReadLimit())
    assert manager.all() == {}
    clock.advance(10 * 60)
    reader.latestOffset(offset, reader.getDefaultReadLimit())
    assert manager.all() == {"c": 2}


# ---- what Spark does with readers -----------------------------------------------------------------------------------


def test_readers_and_tasks_pickle_small(table: Table) -> None:
    for i in range(20):
        write(table, i)
    stream = PaimonStream(table)
    start, end = stream.plan()
    (task,) = stream.reader.partitions(start, end)
    assert len(pickle.dumps(task)) < 5000
    assert len(pickle.dumps(PaimonDataSource(stream._options).streamReader(PaimonDataSource(stream._options).schema())))


def test_offsets_of_other_sources_are_refused(table: Table) -> None:
    stream = PaimonStream(table)
    for offset in ({}, {"snapshotId": 3, "index": 1}, {"table": 3}):
        with pytest.raises(InvalidRequest, match="no offset"):
            stream.reader.latestOffset(offset, stream.reader.getDefaultReadLimit())
