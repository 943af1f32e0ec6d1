"""Direct writes: append, upsert, partial update, delete; partitions, buckets, and rejected data."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay.api.changes import CHANGE_TYPES, ROW_KINDS
from forebay.base.errors import ErrorCode, InvalidRequest, LimitExceeded, NotFound
from forebay.client.connection import Connection, connect
from forebay.client.writing.encode import APPEND, WriteEncoder, partition_codes_of
from forebay.metadata.table import TableBucket
from tests.client.conftest import MakeTable, own_server
from tests.client.data import ALL_TYPES, all_types_rows, by_id
from tests.patience import PATIENCE, until


@pytest.mark.parametrize("log_format", ["ARROW", "INDEXED", "COMPACTED"])
@pytest.mark.parametrize("compression", ["NONE", "ZSTD", "LZ4_FRAME"])
def test_a_log_table_returns_rows_of_every_type_as_they_were(
    make_table: MakeTable, log_format: str, compression: str
) -> None:
    if log_format != "ARROW" and compression != "ZSTD":
        pytest.skip("compression concerns Arrow logs only")
    schema = ALL_TYPES
    if log_format == "INDEXED":
        # Fixed-length bytes lose zeros at their end in Fluss's INDEXED rows.
        schema = pa.schema([field for field in ALL_TYPES if field.name != "fixed"])
    options = {"table.log.format": log_format, "table.log.arrow.compression.type": compression}
    table = make_table(schema, options=options)
    data = all_types_rows(50).select(schema.names)
    result = table.append(data)
    assert (result.rows, result.batches) == (50, 1)
    assert result.end_offsets == {TableBucket(table.info.table_id, 0): 50}
    found = table.scan(source="log").to_arrow()
    assert found.schema.equals(table.arrow_schema)
    assert by_id(found) == by_id(data)


@pytest.mark.parametrize("kv_format", ["COMPACTED", "INDEXED"])
def test_a_primary_key_table_returns_rows_of_every_type_as_they_were(make_table: MakeTable, kv_format: str) -> None:
    names = [name for name in ALL_TYPES.names if not (name == "fixed" and kv_format == "INDEXED")]
    schema = pa.schema([ALL_TYPES.field(name) for name in names])
    table = make_table(schema, primary_key=["id"], buckets=3, options={"table.kv.format": kv_format})
    data = all_types_rows(60).select(names)
    assert table.upsert(data).rows == 60
    assert by_id(table.scan().to_arrow()) == by_id(data)
    assert by_id(table.lookup(data.select(["id"]))) == by_id(data)
    changes = table.changes(stop="latest").to_arrow()
    assert by_id(changes.select(names)) == by_id(data)


def test_data_may_come_in_many_forms(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int32(), "b": pa.string()})
    batch = pa.record_batch({"a": [1, 2], "b": ["x", "y"]})
    table.append(batch)
    table.append(pa.Table.from_batches([batch, batch]))
    table.append(pa.RecordBatchReader.from_batches(batch.schema, [batch]))
    table.append([{"a": 9}, {"b": "only b"}])
    table.append(batch.to_pandas())
    assert table.append([]).rows == 0
    assert table.append(batch.slice(0, 0)).rows == 0
    assert table.scan().to_arrow().num_rows == 12


def test_rows_that_do_not_fit_are_refused_by_name_and_row(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int8(), "b": pa.string()}, primary_key=["a"])
    for bad, message in (
        ([{"a": 1000}], "column 'a', row 0"),
        ([{"a": 1, "b": None}, {"a": None, "b": "x"}], "NOT NULL"),
        (
            [{"a": 1, "b": "x"}, {"a": 2}],
            "row 1 lacks 'b': columns=.* leaves the others as they are, and missing='null'",
        ),
        (pa.table({"a": pa.array([1], pa.int8())}), "the data lacks 'b'"),
        ([{"a": 1, "c": 2}], "column 'c'"),
        (pa.table({"a": pa.array([1, 2, 300], pa.int32()), "b": ["x"] * 3}), "row 2"),
        (5, "cannot write a int"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            table.upsert(bad)
    with pytest.raises(InvalidRequest, match="the data lacks 'b'"), table.writer() as writer:
        writer.upsert({"a": 1})
    assert table.scan().to_arrow().num_rows == 0
    table.upsert([{"a": 1}, {"a": 2, "b": "x"}], missing="null")
    assert [row["b"] for row in table.scan().to_arrow().sort_by("a").to_pylist()] == [None, "x"]
    with pytest.raises(InvalidRequest, match="missing='drop' is neither"):
        table.upsert([{"a": 1}], missing="drop")


def test_the_wrong_kind_of_write_is_refused(make_table: MakeTable) -> None:
    keyed = make_table({"a": pa.int8()}, primary_key=["a"])
    log = make_table({"a": pa.int8()})
    with pytest.raises(InvalidRequest, match="use upsert"):
        keyed.append([{"a": 1}])
    for write in (log.upsert, log.delete):
        with pytest.raises(InvalidRequest, match="use append"):
            write([{"a": 1}])
    with pytest.raises(InvalidRequest, match="use upsert"):
        keyed.writer().append({"a": 1})


def test_upserts_replace_and_deletes_remove(make_table: MakeTable) -> None:
    table = make_table({"id": pa.int32(), "v": pa.string()}, primary_key=["id"], buckets=2)
    table.upsert([{"id": i, "v": "old"} for i in range(10)])
    table.upsert([{"id": i, "v": "new"} for i in range(5)])
    table.delete([{"id": 0}, {"id": 9}, {"id": 77}])
    assert by_id(table.scan().to_arrow()) == [{"id": i, "v": "new" if i < 5 else "old"} for i in range(1, 9)]


def test_keys_to_delete_may_come_in_the_forms_of_lookups(make_table: MakeTable) -> None:
    table = make_table({"id": pa.int64()}, primary_key=["id"])
    table.upsert([{"id": i} for i in range(8)])
    for keys in (0, [1, 2], {"id": 3}, [{"id": 4}], pa.array([5]), pa.table({"id": [6]})):
        table.delete(keys)
    assert table.scan().to_arrow()["id"].to_pylist() == [7]


def test_rows_of_one_key_in_one_write_keep_their_order(make_table: MakeTable) -> None:
    table = make_table({"id": pa.int32(), "v": pa.int64()}, primary_key=["id"], buckets=4)
    count = 5000
    table.upsert(pa.table({"id": pa.array(np.arange(count) % 7, pa.int32()), "v": np.arange(count)}))
    last = {i: max(v for v in range(count) if v % 7 == i) for i in range(7)}
    assert {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()} == last


@pytest.mark.parametrize("way", ["at once", "writer", "transaction"])
def test_changes_are_upserts_and_deletes_in_order(conn: Connection, make_table: MakeTable, way: str) -> None:
    table = make_table({"id": "INT", "a": "STRING NOT NULL", "b": "INT"}, primary_key="id", buckets=3)
    chance = random.Random(7)
    model: dict[int, Any] = {}
    words = dict(zip(CHANGE_TYPES, ROW_KINDS, strict=True))
    for version in range(6):
        given = []
        for n in range(200):
            kind = chance.choice(CHANGE_TYPES)
            row = {"id": chance.randrange(30), "a": None if kind in ("delete", "update_before") else "x", "b": n}
            given.append({"_change_type": words[kind] if chance.random() < 0.5 else kind, **row})
            if kind == "delete":
                model.pop(row["id"], None)
            elif kind != "update_before":
                model[row["id"]] = row
        data = pa.Table.from_pylist(given) if chance.random() < 0.5 else given
        if way == "at once":
            assert table.write_changes(data).rows < 200
        elif way == "writer":
            with table.writer() as writer:
                writer.write_changes(data)
        else:
            with conn.transaction(f"changes of {table.path}", version) as transaction:
                transaction.write_changes(table, data)
        assert {row["id"]: row for row in table.scan().to_arrow().to_pylist()} == model


def test_changes_have_columns_of_any_type(make_table: MakeTable) -> None:
    table = make_table({"id": "INT", "at": "TIMESTAMP_LTZ(6)", "past": "ARRAY<TIMESTAMP_LTZ(3)>"}, primary_key="id")
    now = dt.datetime(2024, 2, 3, tzinfo=dt.UTC)
    rows = [{"id": 1, "at": now, "past": [now]}, {"id": 2, "at": None, "past": None}]
    table.write_changes([{"_change_type": "insert", **row} for row in rows])
    table.write_changes([{"_change_type": "delete", "id": 2, "at": None, "past": None}])
    assert table.scan().to_arrow().to_pylist() == rows[:1]


def test_changes_that_say_nothing_are_refused(make_table: MakeTable) -> None:
    table = make_table({"id": "INT", "a": "STRING NOT NULL"}, primary_key="id")
    refused = [
        ([{"_change_type": "insert", "id": 1}], "'a' is NOT NULL"),
        ([{"_change_type": "delete", "id": None}], "'id' is NOT NULL"),
        ([{"_change_type": "upsert", "id": 1, "a": ""}], "_change_type='upsert', which is none of insert"),
        ([{"id": 1, "a": ""}], "lack column '_change_type'"),
        (pa.table({"_change_type": [1], "id": [1], "a": [""]}), "none of insert"),
    ]
    for rows, message in refused:
        with pytest.raises(InvalidRequest, match=message):
            table.write_changes(rows)
    with pytest.raises(InvalidRequest, match="no primary key"):
        make_table({"v": "INT"}).write_changes([{"_change_type": "insert", "v": 1}])
    assert table.scan().count() == 0


def test_a_large_write_is_cut_into_batches_and_buckets(make_table: MakeTable, bootstrap: str) -> None:
    table = make_table({"id": pa.int64(), "v": pa.string()}, primary_key=["id"], buckets=3)
    with connect(bootstrap, writer_batch_size="16kb", writer_buffer_memory_size="64kb") as other:
        result = other.table(table.path).upsert(
            pa.table({"id": np.arange(20_000), "v": [f"value {i}" for i in range(20_000)]})
        )
    assert result.rows == 20_000
    assert result.batches > 20
    assert sum(result.end_offsets.values()) == 20_000
    assert table.scan(columns=["id"]).to_arrow().num_rows == 20_000


def test_end_offsets_are_where_the_log_ends(conn: Connection, make_table: MakeTable) -> None:
    table = make_table({"id": pa.int64()}, primary_key=["id"], buckets=2)
    table.upsert([{"id": i} for i in range(100)])
    result = table.upsert([{"id": i} for i in range(100)])
    assert result.end_offsets == conn.admin.list_offsets(table.path, "latest")


# ---- partial updates and numbered rows ------------------------------------------------------------------------------


def test_a_partial_update_leaves_other_columns_alone(make_table: MakeTable) -> None:
    table = make_table({"id": pa.int32(), "a": pa.string(), "b": pa.int64()}, primary_key=["id"])
    table.upsert([{"id": 1, "a": "x", "b": 1}])
    table.upsert([{"id": 1, "b": 2}, {"id": 2, "b": 3}], columns=["id", "b"])
    assert by_id(table.scan().to_arrow()) == [{"id": 1, "a": "x", "b": 2}, {"id": 2, "a": None, "b": 3}]
    table.delete([{"id": 1}, {"id": 2}], columns=["b", "id"])
    assert by_id(table.scan().to_arrow()) == [{"id": 1, "a": "x", "b": None}]


def test_a_partial_update_that_cannot_be_is_refused(make_table: MakeTable) -> None:
    schema = pa.schema([("id", pa.int32()), pa.field("must", pa.int32(), nullable=False), ("may", pa.int32())])
    table = make_table(schema, primary_key=["id"])
    with pytest.raises(InvalidRequest, match="must include the primary key") as e:
        table.upsert([{"may": 1}], columns=["may"])
    assert e.value.code == ErrorCode.INVALID_TARGET_COLUMN
    with pytest.raises(InvalidRequest, match="'must' is NOT NULL"):
        table.upsert([{"id": 1, "may": 1}], columns=["id", "may"])
    with pytest.raises(InvalidRequest, match="no column 'nope'"):
        table.upsert([{"id": 1}], columns=["id", "nope"])


@own_server
def test_the_server_numbers_an_auto_increment_column(make_table: MakeTable) -> None:
    table = make_table(
        {"name": pa.string(), "number": pa.int64(), "v": pa.string()}, primary_key=["name"], auto_increment="number"
    )
    table.upsert([{"name": "a", "v": "x"}, {"name": "b"}], missing="null")
    table.upsert([{"name": "a", "v": "y"}])
    rows = {row["name"]: row for row in table.scan().to_arrow().to_pylist()}
    assert sorted(row["number"] for row in rows.values()) == [1, 2]
    assert rows["a"]["v"] == "y"
    assert table.lookup([{"name": "c"}], insert_missing=True).to_pylist() == [{"name": "c", "number": 3, "v": None}]
    with pytest.raises(InvalidRequest, match="numbered by the server"):
        table.upsert([{"name": "a", "number": 5}], columns=["name", "number"])


# ---- partitions and buckets -----------------------------------------------------------------------------------------


def test_writers_create_the_partitions_that_they_need(conn: Connection, make_table: MakeTable) -> None:
    schema = {"id": pa.int32(), "day": pa.date32(), "v": pa.string()}
    table = make_table(schema, primary_key=["id", "day"], partition_keys=["day"], buckets=2)
    days = [dt.date(2024, 1, 1 + i % 3) for i in range(30)]
    rows = [{"id": i, "day": day, "v": str(i)} for i, day in enumerate(days)]
    assert table.upsert(rows).rows == 30
    names = {partition.name for partition in table.partitions()}
    assert names == {"2024-01-01", "2024-01-02", "2024-01-03"}
    assert by_id(table.scan().to_arrow()) == rows
    only = table.scan(partitions=["2024-01-02"]).to_arrow()
    assert set(only["day"].to_pylist()) == {dt.date(2024, 1, 2)}
    table.delete([{"id": 1, "day": dt.date(2024, 1, 2)}])
    assert table.scan(partitions={"day": "2024-01-02"}).to_arrow().num_rows == 9


def test_partition_values_of_every_type_become_names(conn: Connection, make_table: MakeTable) -> None:
    columns = {
        "b": (pa.bool_(), True, "true"),
        "i": (pa.int8(), -3, "-3"),
        "d": (pa.date32(), dt.date(2024, 2, 29), "2024-02-29"),
        "t": (pa.time32("ms"), dt.time(1, 2, 3, 4000), "01-02-03_004"),
        "ts": (pa.timestamp("us"), dt.datetime(2024, 1, 2, 3, 4, 5, 6), "2024-01-02-03-04-05_000006"),
        "ns": (pa.timestamp("ns"), np.datetime64("2024-01-02T03:04:05.000000006", "ns"), None),
        "f": (pa.float64(), 1.5, "1_5"),
        "x": (pa.binary(), b"\x01\xff", "01ff"),
    }
    names = {"ns": "2024-01-02-03-04-05_000000006"}
    for key, (arrow_type, value, name) in columns.items():
        table = make_table({"v": pa.int32(), key: arrow_type}, partition_keys=[key])
        table.append(pa.table({"v": pa.array([1], pa.int32()), key: pa.array([value], arrow_type)}))
        assert [p.name for p in table.partitions()] == [name or names[key]]


def test_rows_of_one_partition_are_not_sorted_into_groups(make_table: MakeTable) -> None:
    info = make_table({"v": pa.int32(), "p": pa.string()}, partition_keys=["p"]).info
    batch = pa.record_batch({"v": pa.array([1, 2], pa.int32()), "p": ["a", "a"]})
    assert partition_codes_of(info, batch) == (None, ["a"])
    codes, names = partition_codes_of(info, pa.record_batch({"v": pa.array([1, 2], pa.int32()), "p": ["b", "a"]}))
    assert ([names[code] for code in codes], sorted(names)) == (["b", "a"], ["a", "b"])


def test_a_null_partition_value_is_refused(make_table: MakeTable) -> None:
    table = make_table({"v": pa.int32(), "p": pa.string()}, partition_keys=["p"])
    with pytest.raises(InvalidRequest, match="partition key 'p' is null in row 1"):
        table.append([{"v": 1, "p": "a"}, {"v": 2}])


def test_partitions_are_not_created_where_that_is_switched_off(
    conn: Connection, make_table: MakeTable, bootstrap: str
) -> None:
    table = make_table({"v": pa.int32(), "p": pa.string()}, partition_keys=["p"])
    table.create_partition({"p": "there"})
    with connect(bootstrap, writer_dynamic_create_partition_enabled=False) as other:
        strict = other.table(table.path)
        assert strict.append([{"v": 1, "p": "there"}]).rows == 1
        with pytest.raises(NotFound, match="no partition 'new'") as e:
            strict.append([{"v": 1, "p": "new"}])
        assert e.value.code == ErrorCode.PARTITION_NOT_EXISTS


@own_server
def test_a_partition_that_was_dropped_is_created_again_by_the_next_write(
    conn: Connection, make_table: MakeTable
) -> None:
    table = make_table({"v": pa.int32(), "p": pa.string()}, partition_keys=["p"])
    table.append([{"v": 1, "p": "a"}, {"v": 1, "p": "b"}])
    table.drop_partition({"p": "a"})
    result = table.append([{"v": 2, "p": "a"}, {"v": 2, "p": "b"}])
    partitions = {p.name: p.partition_id for p in table.partitions()}
    assert result.end_offsets == {
        TableBucket(table.info.table_id, 0, partitions["a"]): 1,
        TableBucket(table.info.table_id, 0, partitions["b"]): 2,
    }
    rows = [(row["p"], row["v"]) for row in table.scan().to_arrow().to_pylist()]
    assert sorted(rows) == [("a", 2), ("b", 1), ("b", 2)]


@own_server
def test_a_partition_that_was_recreated_takes_writes_lookups_and_deletes_of_clients_that_knew_the_old_one(
    conn: Connection, make_table: MakeTable, bootstrap: str
) -> None:
    table = make_table(
        {"k": pa.int32(), "p": pa.string(), "v": pa.int32()}, primary_key=["k", "p"], partition_keys=["p"]
    )
    with connect(bootstrap) as other:
        handle = other.table(table.path)
        handle.upsert([{"k": 1, "p": "a", "v": 1}])
        for act in range(3):
            table.drop_partition({"p": "a"})
            table.create_partition({"p": "a"})
            if act == 0:
                assert handle.lookup([{"k": 1, "p": "a"}]).to_pylist() == [{"k": None, "p": None, "v": None}]
            elif act == 1:
                handle.upsert([{"k": 1, "p": "a", "v": 2}])
                assert handle.lookup([{"k": 1, "p": "a"}]).to_pylist() == [{"k": 1, "p": "a", "v": 2}]
            else:
                handle.delete([{"k": 1, "p": "a"}])
        table.drop_partition({"p": "a"})
        assert handle.lookup([{"k": 1, "p": "a"}]).to_pylist() == [{"k": None, "p": None, "v": None}]


@own_server
@pytest.mark.parametrize("idempotent", [True, False])
def test_a_writer_keeps_its_order_while_its_partition_is_repeatedly_dropped_and_recreated(
    conn: Connection, make_table: MakeTable, bootstrap: str, idempotent: bool
) -> None:
    table = make_table({"v": pa.int32(), "p": pa.string()}, partition_keys=["p"])
    table.create_partition({"p": "a"})
    options: dict[str, Any] = {"writer_batch_timeout": "0 ms", "writer_batch_size": "2kb"}
    if not idempotent:
        options |= {"writer_enable_idempotence": False, "writer_max_inflight_requests_per_bucket": 1}
    with connect(bootstrap, **options) as other, other.table(table.path).writer() as writer:
        for v in range(300):
            writer.append([{"v": 10 * v + i, "p": "a"} for i in range(10)])
            if v in (50, 51, 150, 250):
                table.drop_partition({"p": "a"}, ignore_if_not_exists=True)
            if v == 150:
                table.create_partition({"p": "a"}, ignore_if_exists=True)
    rows = table.scan().to_arrow()["v"].to_pylist()
    assert rows == list(range(rows[0], 3000))


@own_server
def test_rows_of_a_dropped_partition_fail_alone_where_writers_may_not_create_it(
    conn: Connection, make_table: MakeTable, bootstrap: str
) -> None:
    table = make_table({"v": pa.int32(), "p": pa.string()}, partition_keys=["p"])
    table.append([{"v": 1, "p": "a"}, {"v": 1, "p": "b"}])
    with connect(bootstrap, writer_dynamic_create_partition_enabled=False) as other:
        strict = other.table(table.path)
        strict.append([{"v": 2, "p": "a"}, {"v": 2, "p": "b"}])
        table.drop_partition({"p": "a"})
        with pytest.raises(NotFound, match="no partition 'a'"):
            strict.append([{"v": 3, "p": "a"}, {"v": 3, "p": "b"}])
    assert sorted(table.scan().to_arrow()["v"].to_pylist()) == [1, 2, 3]


def test_a_bucket_key_keeps_equal_rows_together(make_table: MakeTable) -> None:
    table = make_table({"k": pa.string(), "v": pa.int64()}, bucket_keys=["k"], buckets=4)
    table.append(pa.table({"k": [f"k{i % 10}" for i in range(1000)], "v": np.arange(1000)}))
    homes: dict[str, set[int]] = {}
    for bucket, batch in table.scan().reader().with_buckets():
        assert bucket is not None
        for key in set(batch["k"].to_pylist()):
            homes.setdefault(key, set()).add(bucket.bucket)
    assert len(homes) == 10
    assert all(len(buckets) == 1 for buckets in homes.values())


@pytest.mark.parametrize("assigner", ["sticky", "round_robin"])
def test_batches_of_tables_without_a_key_move_on_to_other_buckets(
    make_table: MakeTable, bootstrap: str, assigner: str
) -> None:
    table = make_table({"v": pa.int64()}, buckets=3)
    with connect(bootstrap, writer_bucket_no_key_assigner=assigner) as other:
        handle = other.table(table.path)
        homes: list[int] = []

        def is_everywhere() -> bool:  # "sticky" chooses any other bucket
            homes.append(next(iter(handle.append([{"v": len(homes)}]).end_offsets)).bucket)
            return len(homes) >= 12 and set(homes) == {0, 1, 2}

        until(is_everywhere, "a batch in each bucket")
    assert all(a != b for a, b in itertools.pairwise(homes))
    if assigner == "round_robin":
        assert homes == [i % 3 for i in range(len(homes))]


@pytest.mark.parametrize("bucket_keys", [[], ["v"]])
def test_rows_without_a_bucket_key_can_be_written_to_a_chosen_bucket(
    make_table: MakeTable, bucket_keys: list[str]
) -> None:
    table = make_table({"v": pa.int64()}, buckets=3, bucket_keys=bucket_keys)
    rows = [{"v": v} for v in range(50)]
    write = WriteEncoder.of(table.connection.settings, table.info), APPEND, rows
    for _ in range(3):
        found = {place.bucket for place in table.connection.sender.write(*write, bucket=2).end_offsets}
        assert found == ({0, 1, 2} if bucket_keys else {2})


# ---- acknowledgements -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_rows_arrive_with_every_level_of_acknowledgement(make_table: MakeTable, bootstrap: str, acks: str) -> None:
    table = make_table({"v": pa.int64()})
    with connect(bootstrap, writer_acks=acks) as other:
        result = other.table(table.path).append([{"v": 1}])
    assert result.rows == 1
    if acks != "0":
        assert result.end_offsets == {TableBucket(table.info.table_id, 0): 1}
    assert table.changes().poll(PATIENCE).num_rows == 1


def test_a_writer_that_finds_no_memory_says_so(make_table: MakeTable, bootstrap: str) -> None:
    table = make_table({"v": pa.string()}, options={"table.log.arrow.compression.type": "NONE"})
    with connect(bootstrap, writer_buffer_memory_size="64kb", writer_buffer_wait_timeout="50 ms") as other:
        sender = other.sender
        with sender.accumulator.lock:
            sender.accumulator._used = 60_000
        try:
            with pytest.raises(LimitExceeded, match=r"client\.writer\.buffer\.memory-size"):
                other.table(table.path).append([{"v": "x" * 10_000}])
        finally:
            with sender.accumulator.lock:
                sender.accumulator._used = 0


@own_server
def test_a_table_that_was_dropped_and_created_again_is_another_table(conn: Connection, make_table: MakeTable) -> None:
    table = make_table({"v": pa.int64()})
    table.append([{"v": 1}])
    conn.drop_table(table.path)
    with pytest.raises(NotFound):
        table.append([{"v": 2}])
    conn.create_table(table.path, {"v": pa.int64()}, buckets=1)
    with pytest.raises(NotFound, match="created again"):
        table.append([{"v": 3}])
    conn.table(table.path).append([{"v": 4}])
    assert conn.table(table.path).scan().to_arrow().to_pylist() == [{"v": 4}]
