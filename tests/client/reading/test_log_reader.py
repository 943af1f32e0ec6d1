"""Reading logs: bounded and unbounded, from any position, with everything that a log can contain."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import threading
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import forebay
from forebay.api.changes import BUCKET_COLUMN, CHANGE_TYPE_COLUMN, COMMIT_TIMESTAMP_COLUMN, LOG_OFFSET_COLUMN
from forebay.base.errors import ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.client.connection import Connection, connect
from forebay.client.reading.log_reader import LogReader
from forebay.metadata.table import TableBucket
from tests.client.conftest import MakeTable, Through, own_server, time_begins_with_rows
from tests.patience import PATIENCE, until


def test_a_changelog_tells_every_change(make_table: MakeTable) -> None:
    table = make_table({"id": pa.int32(), "v": pa.string()}, primary_key=["id"])
    began = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=5)
    table.upsert([{"id": 1, "v": "a"}])
    table.upsert([{"id": 1, "v": "b"}])
    table.delete([{"id": 1}])
    table.delete([{"id": 1}])  # nothing there: an empty batch, which takes an offset
    table.upsert([{"id": 2, "v": "c"}])
    reader = table.changes(stop="latest")
    found = reader.to_arrow()
    assert found.column_names == [
        CHANGE_TYPE_COLUMN,
        LOG_OFFSET_COLUMN,
        COMMIT_TIMESTAMP_COLUMN,
        BUCKET_COLUMN,
        "id",
        "v",
    ]
    rows = found.to_pylist()
    assert [(row[CHANGE_TYPE_COLUMN], row[LOG_OFFSET_COLUMN], row["id"], row["v"]) for row in rows] == [
        ("insert", 0, 1, "a"),
        ("update_before", 1, 1, "a"),
        ("update_after", 2, 1, "b"),
        ("delete", 3, 1, "b"),
        ("insert", 5, 2, "c"),
    ]
    assert all(row[BUCKET_COLUMN] == 0 for row in rows)
    assert all(
        began < row[COMMIT_TIMESTAMP_COLUMN] <= dt.datetime.now(dt.UTC) + dt.timedelta(seconds=5) for row in rows
    )
    assert reader.finished
    assert reader.position == {TableBucket(table.info.table_id, 0): 6}
    assert reader.poll(0.0) is None


def test_a_log_table_has_inserts_only(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int32()})
    table.append([{"a": 1}, {"a": 2}])
    found = table.changes(stop="latest").to_arrow()
    assert found[CHANGE_TYPE_COLUMN].to_pylist() == ["insert", "insert"]
    assert found.schema.field(CHANGE_TYPE_COLUMN).type == pa.dictionary(pa.int8(), pa.string())


def test_metadata_columns_can_be_chosen(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int32(), "b": pa.int32()})
    table.append([{"a": 1, "b": 2}])
    only = table.changes(stop="latest", include=("offset",), columns=["b"]).to_arrow()
    assert only.to_pylist() == [{LOG_OFFSET_COLUMN: 0, "b": 2}]
    assert table.changes(stop="latest", include=()).to_arrow().column_names == ["a", "b"]
    assert table.changes(stop="latest", include=("bucket", "change_type"), columns=[]).to_arrow().column_names == [
        CHANGE_TYPE_COLUMN,
        BUCKET_COLUMN,
    ]
    assert table.changes(stop="latest", include=(), columns=[]).to_arrow().num_rows == 1
    with pytest.raises(InvalidRequest, match="include="):
        table.changes(include=("offsets",))


@pytest.mark.parametrize("log_format", ["ARROW", "INDEXED", "COMPACTED"])
def test_bounds_may_fall_inside_batches(make_table: MakeTable, log_format: str) -> None:
    table = make_table({"a": pa.int64()}, options={"table.log.format": log_format})
    for first in range(0, 40, 10):
        table.append([{"a": i} for i in range(first, first + 10)])
    for start, stop in itertools.product((0, 3, 10, 39, 40), (0, 5, 10, 25, 40)):
        reader = table.changes({0: start}, {0: stop})
        assert reader.to_arrow()["a"].to_pylist() == list(range(start, stop))
        assert reader.position[table.bucket(0)] == max(start, stop)


def packed(changes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The rows of a binlog of the changes of one bucket, where each update that begins among them ends among them."""
    rows: list[tuple[Any, ...]] = []
    for change in changes:
        kind, offset, value = change["_change_type"], change["_log_offset"], {"v": change["v"], "id": change["id"]}
        if kind == "update_after":
            if rows and rows[-1][0] == "update_before":
                rows[-1] = ("update", rows[-1][1], rows[-1][2], value)
            continue
        rows.append((kind, offset, None if kind == "insert" else value, None if kind == "delete" else value))
    return rows


def test_a_binlog_has_each_update_in_one_row_wherever_it_is_cut(make_table: MakeTable) -> None:
    table = make_table({"id": pa.int32(), "v": pa.string()}, primary_key=["id"])
    for name in "ab":
        table.upsert([{"id": i, "v": name} for i in range(3)])
    table.delete([{"id": 1}, {"id": 1}])
    table.upsert([{"id": 0, "v": "c"}, {"id": 1, "v": "c"}])
    bucket = TableBucket(table.info.table_id, 0)
    every = table.changes(stop="latest").to_arrow().to_pylist()
    end = table.changes(stop="latest").stop_offsets[bucket]  # type: ignore[index]
    for start, stop in itertools.combinations_with_replacement(range(end + 1), 2):
        reader = table.binlog({0: start}, {0: stop}, columns=["v", "id"])
        found = reader.to_arrow()
        assert found.column_names == ["_change_type", "_log_offset", "_commit_timestamp", "__bucket", "before", "after"]
        begun = [c for c in every if start <= c["_log_offset"] < stop]
        if begun and begun[-1]["_change_type"] == "update_before":
            begun += [c for c in every if c["_log_offset"] == stop]
        rows = [(r["_change_type"], r["_log_offset"], r["before"], r["after"]) for r in found.to_pylist()]
        assert rows == packed(begun)
        assert reader.finished
        rest = table.binlog(reader.position, "latest", columns=["v", "id"]).to_arrow().to_pylist()
        told = [r["_log_offset"] for r in [*found.to_pylist(), *rest]]
        assert told == [row[1] for row in packed([c for c in every if c["_log_offset"] >= start])]


def test_a_binlog_follows_the_log_of_many_buckets_and_begins_with_the_current_rows(make_table: MakeTable) -> None:
    table = make_table({"id": pa.int32(), "v": pa.string()}, primary_key=["id"], buckets=3)
    table.upsert([{"id": i, "v": "a"} for i in range(20)])
    reader = table.binlog("full", timeout=5)
    found = []
    while len(found) < 20:
        found += reader.poll(PATIENCE).to_pylist()  # type: ignore[union-attr]
    assert all(r["_log_offset"] == -1 and r["before"] is None and r["_change_type"] == "insert" for r in found)
    table.upsert([{"id": i, "v": "b"} for i in range(20)])
    table.delete([3])
    while len(found) < 41:
        found += reader.poll(PATIENCE).to_pylist()  # type: ignore[union-attr]
    updates = {r["after"]["id"]: r for r in found[20:] if r["_change_type"] == "update"}
    assert {(r["before"]["v"], r["after"]["v"]) for r in updates.values()} == {("a", "b")}
    assert sorted(updates) == list(range(20))
    assert [r["before"]["id"] for r in found if r["_change_type"] == "delete"] == [3]
    assert reader.poll(0.0) is None
    log = make_table({"id": pa.int32()})
    with pytest.raises(UnsupportedOperation, match="is a log, whose rows never change"):
        log.binlog()


def test_reading_can_continue_from_stored_positions(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()}, buckets=3)
    for i in range(20):
        table.append([{"a": i}])
    reader = table.changes(stop="latest")
    seen = [next(reader)["a"].to_pylist()]
    positions = reader.position
    reader.close()
    assert list(reader) == []
    rest = table.changes(positions, "latest").to_arrow()["a"].to_pylist()
    assert sorted([*itertools.chain(*seen), *rest]) == list(range(20))


def test_reading_can_begin_at_a_time_or_at_the_end(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()})
    table.append([{"a": 1}])
    time.sleep(0.05)
    between = dt.datetime.now(dt.UTC)
    time.sleep(0.05)
    table.append([{"a": 2}])
    time.sleep(0.05)
    assert table.changes(between, "latest").to_arrow()["a"].to_pylist() == [2]
    assert table.changes(between.isoformat(), "latest").to_arrow()["a"].to_pylist() == [2]
    assert table.changes("earliest", between).to_arrow()["a"].to_pylist() == [1]
    assert table.changes({0: between}, {0: "latest"}).to_arrow()["a"].to_pylist() == [2]
    reader = table.changes("latest")
    assert reader.poll(0.05) is None
    table.append([{"a": 3}])
    batch = reader.poll(PATIENCE)
    assert batch is not None
    assert batch["a"].to_pylist() == [3]
    reader.close()


def test_changes_with_an_end_can_be_taken_in_many_forms(make_table: MakeTable) -> None:
    table = make_table({"a": "INT"})
    table.append([{"a": 1}, {"a": 2}])

    def upto_now() -> LogReader:
        return table.changes(stop="latest", columns=["a"], filter="a > 1", include=["change_type"])

    row = {"_change_type": "insert", "a": 2}
    assert upto_now().to_arrow().to_pylist() == pa.table(upto_now()).to_pylist() == [row]
    assert upto_now().to_pandas()["a"].to_list() == [2]
    assert upto_now().reader().read_all().num_rows == 1
    assert [batch.num_rows for batch in upto_now()] == [1]


def test_changes_without_an_end_are_not_taken_all_at_once(make_table: MakeTable) -> None:
    table = make_table({"a": "INT"})
    table.append([{"a": 1}])
    with table.changes() as endless:
        for take in (endless.to_arrow, endless.to_pandas, endless.reader, lambda: pa.table(endless)):
            with pytest.raises(InvalidRequest, match=r"has no end.*give stop='latest'"):
                take()
    for timeout in (dt.timedelta(milliseconds=200), "200 ms"):
        with time_begins_with_rows(table.connection):
            assert table.changes(timeout=timeout).to_arrow().num_rows == 1


@own_server  # a table snapshot holds the rows at one instant; without one each bucket has its own
def test_a_reader_can_begin_with_the_current_rows(make_table: MakeTable) -> None:
    table = make_table({"id": "BIGINT", "v": "STRING"}, primary_key="id", buckets=3)
    table.upsert([{"id": i, "v": "old"} for i in range(100)])
    table.upsert([{"id": i, "v": "new"} for i in range(50)])
    table.delete([{"id": 99}])
    reader = table.changes("full")
    table.upsert([{"id": 0, "v": "later"}, {"id": 1000, "v": "later"}])
    assert reader.schema.field(COMMIT_TIMESTAMP_COLUMN).nullable
    assert not table.changes().schema.field(COMMIT_TIMESTAMP_COLUMN).nullable
    first = reader.poll()
    assert first is not None
    assert first.schema == reader.schema
    with pytest.raises(InvalidRequest, match=r"has not returned all of the current rows.*is no longer -1"):
        _ = reader.position
    rows = first.to_pylist()
    while len(rows) < 102:
        batch = reader.poll(PATIENCE)
        assert batch is not None
        rows += batch.to_pylist()
    now, changes = rows[:99], rows[99:]
    assert {(row[CHANGE_TYPE_COLUMN], row[LOG_OFFSET_COLUMN], row[COMMIT_TIMESTAMP_COLUMN]) for row in now} == {
        ("insert", -1, None)
    }
    assert {row["id"]: row["v"] for row in now} == {i: "new" if i < 50 else "old" for i in range(99)}
    assert {row[BUCKET_COLUMN] for row in now} == {0, 1, 2}
    assert sorted((row["id"], row[CHANGE_TYPE_COLUMN], row["v"]) for row in changes) == [
        (0, "update_after", "later"),
        (0, "update_before", "new"),
        (1000, "insert", "later"),
    ]
    assert all(row[LOG_OFFSET_COLUMN] >= 0 and row[COMMIT_TIMESTAMP_COLUMN] is not None for row in changes)
    assert reader.position == table.connection.admin.list_offsets(table.info)
    assert table.connection.admin.list_table_snapshots() == []
    reader.close()


def test_the_current_rows_have_an_end_columns_filters_and_buckets(make_table: MakeTable) -> None:
    table = make_table({"id": "BIGINT", "v": "STRING"}, primary_key="id", buckets=3)
    assert table.changes("full", "latest").to_arrow().num_rows == 0
    table.upsert([{"id": i, "v": "a" if i % 2 else "b"} for i in range(30)])
    reader = table.changes("full", "latest", columns=["id"], filter="v = 'a'", include=["bucket"])
    assert sorted(reader.to_arrow()["id"].to_pylist()) == list(range(1, 30, 2))
    assert reader.finished
    assert reader.position == table.connection.admin.list_offsets(table.info)
    assert table.changes("full", "latest", columns=[], include=()).to_arrow().num_rows == 30
    assert {
        bucket: rows.num_rows for bucket, rows in by_bucket(table.changes("full", "latest", buckets=[1])).items()
    } == {1: by_bucket(table.changes("full", "latest"))[1].num_rows}


def by_bucket(reader: LogReader) -> dict[int, pa.Table]:
    table = reader.to_arrow()
    return {b: table.filter(pa.compute.field(BUCKET_COLUMN) == b) for b in table[BUCKET_COLUMN].unique().to_pylist()}


def test_the_current_rows_of_a_log_table_are_its_log(make_table: MakeTable) -> None:
    table = make_table({"a": "INT"})
    table.append([{"a": 1}, {"a": 2}])
    reader = table.changes("full", "latest")
    assert reader.to_arrow() == table.changes("earliest", "latest").to_arrow()
    assert reader.position == table.connection.admin.list_offsets(table.info)


@own_server  # a table snapshot holds the rows at one instant; without one each bucket has its own
def test_a_reader_that_is_closed_among_the_current_rows_releases_them(make_table: MakeTable) -> None:
    table = make_table({"id": "BIGINT"}, primary_key="id", buckets=2)
    table.upsert([{"id": i} for i in range(10)])
    with table.changes("full") as reader:
        assert reader.poll() is not None
        assert len(table.connection.admin.list_table_snapshots()) == 1
    assert table.connection.admin.list_table_snapshots() == []
    assert reader.poll() is None
    with pytest.raises(InvalidRequest, match="has not returned all of the current rows"):
        _ = reader.position


@own_server  # a table snapshot holds the rows at one instant; without one each bucket has its own
def test_a_reader_that_lost_its_current_rows_does_not_continue_with_the_changes(make_table: MakeTable) -> None:
    table = make_table({"id": "BIGINT"}, primary_key="id", buckets=4)
    table.upsert([{"id": i} for i in range(10)])
    with table.changes("full") as reader:
        assert reader._release is not None
        reader._release()
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="was released"):
                reader.poll(PATIENCE)


def test_new_partitions_follow_the_current_rows(make_table: MakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.client.reading.log_reader._DISCOVERY_SECONDS", 0.05)
    table = make_table({"day": "STRING", "id": "INT"}, primary_key=["day", "id"], partition_keys="day")
    table.upsert([{"day": "a", "id": 1}])
    with table.changes("full") as reader:
        table.upsert([{"day": "b", "id": 2}])
        found: list[Any] = []
        while len(found) < 2:
            batch = reader.poll(PATIENCE)
            assert batch is not None
            found += [(row["day"], row[LOG_OFFSET_COLUMN]) for row in batch.to_pylist()]
    assert found == [("a", -1), ("b", 0)]


@pytest.mark.parametrize(
    ("start", "stop", "message"),
    [
        ("now", None, "not a place in a log"),
        ("earliest", "full", "stop='full' is not a place in a log"),
        ({0: -5}, None, "cannot be read at offset -5"),
        ({7: 0}, None, "has no bucket 7"),
        ({0: 0}, {}, "no stop offset is given"),
        ({0: 0}, {0: -1}, "cannot be read at offset -1"),
        (2.5, None, "not a place in a log"),
        (1_700_000_000_000, None, "start=1700000000000 is not a place in a log.*a datetime"),
        ("earliest", 1_700_000_000_000, "stop=1700000000000 is not a place in a log.*a datetime"),
        (True, None, "not a place in a log"),
        ({0: True}, None, "not a place in a log"),
    ],
)
def test_places_that_make_no_sense_are_refused(
    make_table: MakeTable, start: object, stop: object, message: str
) -> None:
    table = make_table({"a": pa.int64()})
    with pytest.raises(InvalidRequest, match=message):
        table.changes(start, stop)


def test_the_buckets_of_a_reading_are_named_once(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64(), "p": pa.string()}, partition_keys=["p"], buckets=1)
    table.append([{"a": 1, "p": "x"}])
    (bucket,) = table.connection.admin.list_offsets(table.path)
    for twice in ({"partitions": ["x"]}, {"buckets": [bucket]}, {"partitions": ["x"], "buckets": [bucket]}):
        with pytest.raises(InvalidRequest, match="given by start already"):
            table.changes({bucket: 0}, **twice)
    assert table.changes({bucket: 0}, {bucket: 1}).to_arrow().num_rows == 1


def test_offsets_that_are_not_there_are_reported(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()})
    table.append([{"a": 1}])
    with pytest.raises(InvalidRequest, match="start from 'earliest'") as e:
        table.changes({0: 1000}, {0: 1001}).to_arrow()
    assert e.value.code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION


def test_a_reader_without_an_end_follows_the_log(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()}, buckets=2)
    seen: list[int] = []

    def follow() -> None:
        for batch in table.changes("earliest"):
            seen.extend(batch["a"].to_pylist())
            if len(seen) >= 50:
                return

    reader = threading.Thread(target=follow)
    reader.start()
    for i in range(50):
        table.append([{"a": i}])
    reader.join(PATIENCE)
    assert sorted(seen) == list(range(50))


def test_a_timeout_ends_the_iteration(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()})
    table.append([{"a": 1}])
    with time_begins_with_rows(table.connection):
        assert [batch["a"].to_pylist() for batch in table.changes(timeout=0.2)] == [[1]]
    with time_begins_with_rows(table.connection):
        assert table.changes(timeout=0.1).to_arrow().num_rows == 1
    with pytest.raises(InvalidRequest, match="has no end"):
        table.changes().to_arrow()


def test_a_range_that_ends_in_an_empty_batch_finishes(make_table: MakeTable) -> None:
    """failure-scenarios 1b: range ending in an empty batch."""
    table = make_table({"id": pa.int32()}, primary_key=["id"])
    table.upsert([{"id": 1}])
    for _ in range(3):
        table.delete([{"id": 99}])
    reader = table.changes(stop="latest")
    assert reader.to_arrow().num_rows == 1
    assert list(reader.position.values()) == [4]
    empty = table.changes({0: 1}, {0: 4})
    assert list(empty) == []
    assert list(empty.position.values()) == [4]


def test_filters_hold_for_every_row_whatever_the_server_does(make_table: MakeTable) -> None:
    columns = {"a": pa.int64(), "b": pa.string(), "c": pa.float64()}
    plain = make_table(columns, buckets=2)
    for first in range(0, 300, 100):
        plain.append([{"a": i, "b": f"b{i % 3}", "c": i / 2} for i in range(first, first + 100)])
    found = plain.changes(stop="latest", columns=["c"], filter=(forebay.col("a") < 20) | (forebay.col("a") == 250))
    assert sorted(found.to_arrow()["c"].to_pylist()) == [*(i / 2 for i in range(20)), 125.0]
    texts = plain.changes(stop="latest", filter=forebay.col("b").starts_with("b1") & (forebay.col("a") < 10)).to_arrow()
    assert sorted(texts["a"].to_pylist()) == [1, 4, 7]
    rows = make_table(columns, options={"table.log.format": "INDEXED"})
    rows.append([{"a": i, "b": "x", "c": 1.0} for i in range(10)])
    assert rows.changes(stop="latest", columns=["b"], filter=forebay.col("a") == 4).to_arrow()["b"].to_pylist() == ["x"]


@own_server
def test_batches_that_the_server_leaves_out_still_move_the_position(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()}, options={"table.statistics.columns": "*"})
    for first in range(0, 500, 100):
        table.append([{"a": i} for i in range(first, first + 100)])
    reader = table.changes(stop="latest", filter=forebay.col("a") < 10)
    assert reader.to_arrow().num_rows == 10
    assert list(reader.position.values()) == [500]
    nothing = table.changes(stop="latest", filter=forebay.col("a") > 10_000)
    assert nothing.to_arrow().num_rows == 0
    assert list(nothing.position.values()) == [500]


@own_server
@pytest.mark.parametrize("log_format", ["ARROW", "COMPACTED"])
def test_a_log_is_read_through_changes_of_the_schema(conn: Connection, make_table: MakeTable, log_format: str) -> None:
    old = make_table({"a": pa.int64(), "b": pa.string()}, options={"table.log.format": log_format})
    old.append([{"a": 1, "b": "x"}])
    old.alter(add_columns={"c": pa.float64()})
    new = old.refresh()
    new.append([{"a": 2, "b": "y", "c": 2.5}])
    old.append([{"a": 3, "b": "z"}])
    assert new.changes(stop="latest", include=()).to_arrow().to_pylist() == [
        {"a": 1, "b": "x", "c": None},
        {"a": 2, "b": "y", "c": 2.5},
        {"a": 3, "b": "z", "c": None},
    ]
    assert new.changes(stop="latest", include=(), columns=["c"]).to_arrow()["c"].to_pylist() == [None, 2.5, None]
    assert old.changes(stop="latest", include=()).to_arrow().to_pylist()[1] == {"a": 2, "b": "y"}
    assert old.changes(stop="latest", include=(), columns=["b"]).to_arrow()["b"].to_pylist() == ["x", "y", "z"]


def test_a_small_fetch_size_changes_nothing_but_the_number_of_fetches(make_table: MakeTable, bootstrap: str) -> None:
    table = make_table({"a": pa.int64(), "s": pa.string()}, buckets=2)
    for i in range(30):
        table.append([{"a": i * 10 + j, "s": "x" * 50} for j in range(10)])
    with connect(
        bootstrap,
        scanner_log_fetch_max_bytes="1kb",
        scanner_log_fetch_max_bytes_for_bucket="100b",
    ) as other:
        found = other.table(table.path).changes(stop="latest").to_arrow()
    assert sorted(found["a"].to_pylist()) == list(range(300))
    by_bucket: dict[int, list[int]] = {}
    for row in found.to_pylist():
        by_bucket.setdefault(row[BUCKET_COLUMN], []).append(row[LOG_OFFSET_COLUMN])
    assert all(offsets == list(range(len(offsets))) for offsets in by_bucket.values())


def test_large_logs_come_in_large_batches(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()})
    with table.writer() as writer:
        for first in range(0, 50_000, 500):
            writer.append(pa.table({"a": np.arange(first, first + 500)}))
            if first % 5000 == 0:
                writer.flush()
    batches = list(table.changes(stop="latest", include=("offset",)))
    joined = pa.Table.from_batches(batches)
    assert joined["a"].to_numpy().tolist() == list(range(50_000))
    assert joined[LOG_OFFSET_COLUMN].to_numpy().tolist() == list(range(50_000))
    assert len(batches) <= 5


def test_partitions_are_read_and_new_ones_are_found(
    conn: Connection, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.client.reading.log_reader._DISCOVERY_SECONDS", 0.05)
    table = make_table({"a": pa.int64(), "p": pa.string()}, partition_keys=["p"], buckets=2)
    table.append([{"a": 1, "p": "x"}, {"a": 2, "p": "y"}])
    assert table.changes(stop="latest", partitions="x").to_arrow()["a"].to_pylist() == [1]
    reader = table.changes("earliest")
    seen: set[int] = set()

    def read_on() -> None:
        batch = reader.poll(0.05)
        if batch is not None:
            seen.update(batch["a"].to_pylist())

    until(lambda: read_on() or seen == {1, 2}, "the rows of both partitions")
    table.append([{"a": 3, "p": "new"}])
    until(lambda: read_on() or seen == {1, 2, 3}, "the row of the new partition")
    assert len(reader.position) == 6
    reader.close()


@pytest.mark.parametrize(
    ("chosen", "follows"),
    [
        ({}, True),
        ({"new_partitions": False}, False),
        ({"partitions": "x"}, False),
        ({"buckets": [0]}, False),
        ({"partitions": "x", "new_partitions": True}, True),
        ("start", False),
    ],
    ids=str,
)
def test_a_reader_looks_for_new_partitions_unless_it_was_told_what_to_read(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, chosen: Any, follows: bool
) -> None:
    monkeypatch.setattr("forebay.client.reading.log_reader._DISCOVERY_SECONDS", 0.01)
    table = make_table({"a": pa.int64(), "p": pa.string()}, partition_keys=["p"])
    table.append([{"a": 1, "p": "x"}])
    options = {"start": dict.fromkeys(table.buckets(), "earliest")} if chosen == "start" else chosen
    with table.changes(**options) as reader:
        batch = reader.poll(PATIENCE)
        assert batch is not None
        table.append([{"a": 2, "p": "new"}])
        batch = reader.poll(10.0 if follows else 0.1)
        assert (batch is not None) == follows
        if not follows:
            assert len(reader.position) == 1
    with pytest.raises(InvalidRequest, match="a reader with an end does not look for new partitions"):
        table.changes(stop="latest", new_partitions=True)


def test_places_and_offsets_may_be_mixed(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()}, buckets=2, bucket_keys=["a"])
    table.append([{"a": v} for v in range(20)])
    ends = table.changes(stop="latest").stop_offsets
    assert ends is not None
    reader = table.changes({1: "earliest", 0: 2}, {0: "latest", 1: 1})
    assert reader.position == {table.bucket(1): 0, table.bucket(0): 2}
    assert reader.stop_offsets == {table.bucket(1): 1, table.bucket(0): ends[table.bucket(0)]}
    assert reader.to_arrow().num_rows == ends[table.bucket(0)] - 2 + 1


def test_one_bucket_can_be_read_alone(conn: Connection, make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()}, buckets=2)
    table.append([{"a": 1}])
    table.append([{"a": 2}])
    found = []
    for bucket, end in conn.admin.list_offsets(table.path).items():
        reader = table.changes({bucket: 0}, {bucket: end}, columns=["a"], include=("offset",))
        found += reader.to_arrow().to_pylist()
    assert sorted(row["a"] for row in found) == [1, 2]
    assert table.changes({0: "earliest"}, {0: "latest"}).to_arrow().num_rows == 1


def test_a_table_that_is_dropped_ends_the_reading_with_an_error(conn: Connection, make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()})
    table.append([{"a": 1}])
    reader = table.changes("earliest")
    assert reader.poll(PATIENCE) is not None
    conn.drop_table(table.path)
    with pytest.raises(NotFound):
        next(reader)


def test_a_reader_that_waits_sleeps(make_table: MakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table({"a": pa.int64()})
    with contextlib.closing(table.changes("earliest")) as reader:
        assert reader.poll(0.05) is None
        looked = []
        send = reader._send_fetches
        monkeypatch.setattr(reader, "_send_fetches", lambda: (looked.append(1), send()))
        assert reader.poll(0.5) is None
        assert len(looked) < 50, "it looks when something has happened, and not all the time"


def test_reading_costs_no_thread_and_closing_waits_for_no_answer(make_table: MakeTable, through: Through) -> None:
    made = make_table({"a": pa.int64()})
    made.append([{"a": 1}])
    table = through(made, scanner_log_fetch_wait_max_time="1 h")
    before = threading.active_count()
    readers = [table.changes("earliest") for _ in range(20)]
    for reader in readers:
        assert reader.poll(PATIENCE) is not None
    assert threading.active_count() == before
    for reader in readers:
        reader.close()
