"""Administration: databases, tables, partitions, offsets, the cluster."""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import (
    AccessDenied,
    AlreadyExists,
    ErrorCode,
    InvalidRequest,
    NotFound,
    UnsupportedOperation,
)
from forebay.client.cluster import cluster as cluster_module
from forebay.client.connection import Connection
from forebay.client.results import HealthStatus
from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableBucket
from forebay.protocol.api import ApiKey, ServerRole
from tests.client.conftest import DATABASE, MakeTable, own_server


def test_databases_are_created_described_altered_and_dropped(conn: Connection) -> None:
    admin = conn.admin
    conn.create_database("admin_db", comment="for tests", options={"owner": "me"})
    with pytest.raises(AlreadyExists, match="admin_db"):
        conn.create_database("admin_db")
    conn.create_database("admin_db", ignore_if_exists=True)
    assert conn.database_exists("admin_db")
    assert "admin_db" in conn.list_databases()
    info = admin.database_info("admin_db")
    assert (info.comment, dict(info.custom_properties)) == ("for tests", {"owner": "me"})
    assert info.created_ms > 0
    conn.create_table("admin_db.t", {"a": pa.int32()})
    with pytest.raises(InvalidRequest) as e:
        conn.drop_database("admin_db")
    assert e.value.code == ErrorCode.DATABASE_NOT_EMPTY
    conn.drop_database("admin_db", cascade=True)
    assert not conn.database_exists("admin_db")
    with pytest.raises(NotFound):
        conn.drop_database("admin_db")
    conn.drop_database("admin_db", ignore_if_not_exists=True)
    with pytest.raises(NotFound):
        admin.database_info("admin_db")


@own_server
def test_databases_have_summaries_and_can_be_altered(conn: Connection) -> None:
    admin = conn.admin
    conn.create_database("summed")
    conn.create_table("summed.t", {"a": pa.int32()})
    summary = next(info for info in admin.database_summaries() if info.name == "summed")
    assert summary.table_count == 1
    assert summary.created_ms > 0
    admin.alter_database("summed", set={"k": "v"}, comment="new")
    info = admin.database_info("summed")
    assert (info.comment, dict(info.custom_properties)) == ("new", {"k": "v"})
    admin.alter_database("summed", reset=["k"])
    assert dict(admin.database_info("summed").custom_properties) == {}
    conn.drop_database("summed", cascade=True)


def test_a_table_comes_back_as_it_was_created(conn: Connection) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), metadata={b"comment": b"the key"}),
            ("day", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
            ("tags", pa.list_(pa.string())),
        ]
    )
    path = f"{DATABASE}.described"
    conn.create_table(
        path,
        schema,
        primary_key=["id", "day"],
        partition_keys=["day"],
        buckets=3,
        options={"table.kv.format": "COMPACTED", "team": "a"},
        comment="a table",
    )
    try:
        with pytest.raises(AlreadyExists):
            conn.create_table(path, schema)
        conn.create_table(path, schema, ignore_if_exists=True)
        info = conn.admin.table_info(path)
        assert info.schema.primary_key == ("id", "day")
        assert info.schema.column("id").comment == "the key"
        assert info.schema.column("at").data_type == types.timestamp_ltz(6)
        assert info.descriptor.partition_keys == ("day",)
        assert info.descriptor.bucket_keys == ("id",)
        assert info.bucket_count == 3
        assert info.descriptor.comment == "a table"
        assert info.descriptor.custom_properties["team"] == "a"
        assert conn.table_exists(path)
        assert "described" in conn.list_tables(DATABASE)
        assert conn.admin.table_schema(path)[1].names == ("id", "day", "at", "tags")
    finally:
        conn.drop_table(path)
    assert not conn.table_exists(path)
    with pytest.raises(NotFound) as e:
        conn.table(path)
    assert e.value.code == ErrorCode.TABLE_NOT_EXIST


def test_a_schema_may_be_given_in_three_forms(make_table: MakeTable) -> None:
    by_arrow = make_table(pa.schema([("a", pa.int32()), ("b", pa.string())]), primary_key=["a"])
    by_dict = make_table({"a": types.int_(), "b": pa.string()}, primary_key=["a"])
    whole = Schema.of([Column("a", types.int_()), Column("b", types.string())], ["a"])
    by_schema = make_table(whole)
    assert by_arrow.schema.columns == by_dict.schema.columns == by_schema.schema.columns
    assert by_schema.schema.primary_key == ("a",)


def test_what_makes_a_table_returns_it(conn: Connection) -> None:
    path = f"{DATABASE}.returned"
    table = conn.create_table(path, [("id", "BIGINT NOT NULL"), ("v", "STRING")], primary_key="id", buckets=1)
    try:
        table.upsert([{"id": 1, "v": "a"}])
        again = conn.create_table(path, {"other": "INT"}, ignore_if_exists=True)
        assert (again.info.table_id, again.schema.names) == (table.info.table_id, ("id", "v"))
        assert again.lookup(1).to_pylist() == [{"id": 1, "v": "a"}]
    finally:
        conn.drop_table(path)


def test_one_name_is_a_key_and_not_its_letters(conn: Connection) -> None:
    path = f"{DATABASE}.plain_names"
    columns = {"day": "STRING", "id": "BIGINT", "v": "INT"}
    table = conn.create_table(path, columns, primary_key=["day", "id"], partition_keys="day", bucket_keys="id")
    try:
        assert table.info.descriptor.partition_keys == ("day",)
        assert table.info.descriptor.bucket_keys == ("id",)
    finally:
        conn.drop_table(path)
    with pytest.raises(InvalidRequest, match=r"primary_key=\['id', 3\]: 3 is not a name"):
        conn.create_table(path, columns, primary_key=["id", 3])  # type: ignore[list-item]


def test_options_of_the_server_and_others_are_distinguished_by_their_names(make_table: MakeTable) -> None:
    descriptor = make_table(
        {"a": "INT"}, options={"table.log.ttl": "1 d", "owner": "ann", "n": 3, "on": True}
    ).info.descriptor
    assert descriptor.properties["table.log.ttl"] == "1 d"
    assert dict(descriptor.custom_properties) == {"owner": "ann", "n": "3", "on": "true"}


def test_a_data_frame_says_which_columns_a_table_has(make_table: MakeTable) -> None:
    frame = pa.table({"id": pa.array([1], pa.int64()), "v": ["a"]}).to_pandas()
    table = make_table(frame, primary_key="id")
    table.upsert(frame)
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "v": "a"}]


def test_a_live_table_cannot_be_renamed(conn: Connection, make_table: MakeTable) -> None:
    table = make_table({"a": "INT"})
    with pytest.raises(UnsupportedOperation, match=f"table {table.path} cannot be renamed to client_tests.other"):
        conn.rename_table(table.path, "client_tests.other")


@pytest.mark.parametrize(
    "change",
    [{"drop_columns": "a"}, {"rename_columns": {"a": "b"}}, {"change_types": {"a": "BIGINT"}}, {"comment": ""}],
    ids=lambda change: next(iter(change)),
)
def test_changes_that_servers_do_not_make_are_refused_by_name(make_table: MakeTable, change: dict[str, Any]) -> None:
    table = make_table({"a": "INT"})
    with pytest.raises(UnsupportedOperation, match=f"alter table {table.path}: {next(iter(change))}="):
        table.alter(**change)


def test_altering_returns_the_table_under_its_new_schema(make_table: MakeTable) -> None:
    table = make_table({"a": "INT"})
    wider = table.alter(add_columns={"b": "STRING"})
    assert (table.schema.names, wider.schema.names) == (("a",), ("a", "b"))
    wider.append([{"a": 1, "b": "x"}])
    assert wider.scan().to_arrow().to_pylist() == [{"a": 1, "b": "x"}]
    assert table.refresh().schema.names == ("a", "b")


def test_a_table_that_cannot_be_is_refused(conn: Connection) -> None:
    with pytest.raises(InvalidRequest, match="no_such"):
        conn.create_table(f"{DATABASE}.x", {"a": pa.int32()}, primary_key=["no_such"])
    with pytest.raises(NotFound):
        conn.create_table("no_such_db.x", {"a": pa.int32()})
    with pytest.raises(InvalidRequest, match=r"write .database\.table."):
        conn.create_table("x", {"a": pa.int32()})
    with pytest.raises(InvalidRequest):
        conn.create_table(f"{DATABASE}.x", {"a": pa.int32()}, options={"table.no-such": "1"})
    with pytest.raises(InvalidRequest, match="has no Fluss type"):
        conn.create_table(f"{DATABASE}.x", {"a": pa.duration("s")})


def test_earlier_schemas_are_remembered_up_to_a_number(
    conn: Connection, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "_SCHEMAS_MAX", 2)
    monkeypatch.setattr(conn.cluster, "_schemas", {})
    tables = [make_table({"a": pa.int32(), name: pa.string()}) for name in ("x", "y", "z")]
    for table in tables:
        table.alter(add_columns={"b": pa.int8()})
    cluster, asked = conn.cluster, list[str]()
    ask = cluster.any_call

    def any_call(key: ApiKey, request: Any, answer: Any) -> Any:
        asked.append(request.table_path.table_name)
        return ask(key, request, answer)

    monkeypatch.setattr(cluster, "any_call", any_call)
    for table in (*tables, *tables[1:], tables[0]):
        info = replace(table.info, schema_id=table.info.schema_id + 1)
        assert cluster.schema(info, table.info.schema_id).names == table.info.schema.names
    assert asked == [table.path.table for table in (*tables, tables[0])]


@own_server
def test_columns_are_added_and_options_are_set(conn: Connection, make_table: MakeTable) -> None:
    table = make_table({"a": pa.int32()}, primary_key=["a"])
    table.alter(add_columns={"b": pa.string(), "c": types.decimal(10, 2)})
    table.alter(add_columns=pa.schema([pa.field("d", pa.struct([("x", pa.int8())]))]))
    info = conn.admin.table_info(table.path)
    assert info.schema.names == ("a", "b", "c", "d")
    assert info.schema_id == table.info.schema_id + 2
    assert conn.admin.table_schema(table.path, table.info.schema_id)[1].names == ("a",)
    table.alter(set={"owner": "x", "flag": True})
    properties = conn.admin.table_info(table.path).descriptor.custom_properties
    assert (properties["owner"], properties["flag"]) == ("x", "true")
    table.alter(reset=["owner"])
    assert "owner" not in conn.admin.table_info(table.path).descriptor.custom_properties
    with pytest.raises(InvalidRequest, match="either options to set or reset, or columns"):
        table.alter(set={"k": "v"}, add_columns={"e": pa.int8()})
    with pytest.raises(InvalidRequest, match="either"):
        table.alter()


def test_partitions_are_created_listed_and_dropped(conn: Connection, make_table: MakeTable) -> None:
    table = make_table({"id": pa.int32(), "day": pa.string(), "region": pa.string()}, partition_keys=["day", "region"])
    table.create_partition({"day": "d1", "region": "eu"})
    table.create_partition({"region": "us", "day": "d1"})
    table.create_partition({"day": "d2", "region": "eu"})
    with pytest.raises(AlreadyExists) as e:
        table.create_partition({"day": "d1", "region": "eu"})
    assert e.value.code == ErrorCode.PARTITION_ALREADY_EXISTS
    table.create_partition({"day": "d1", "region": "eu"}, ignore_if_exists=True)
    assert {p.name for p in table.partitions()} == {"d1$eu", "d1$us", "d2$eu"}
    assert {p.name for p in table.partitions({"day": "d1"})} == {"d1$eu", "d1$us"}
    assert [p.name for p in table.partitions({"region": "us", "day": "d1"})] == ["d1$us"]
    assert table.partitions({"day": "d2", "region": "us"}) == []
    table.drop_partition({"day": "d1", "region": "us"})
    with pytest.raises(NotFound) as missing:
        table.drop_partition({"day": "d1", "region": "us"})
    assert missing.value.code == ErrorCode.PARTITION_NOT_EXISTS
    table.drop_partition({"day": "d1", "region": "us"}, ignore_if_not_exists=True)
    assert {p.name for p in table.partitions()} == {"d1$eu", "d2$eu"}
    with pytest.raises(InvalidRequest):
        table.create_partition({"day": "d1"})
    for change in (table.create_partition, table.drop_partition, table.partitions):
        with pytest.raises(
            InvalidRequest, match=r"'d1' is not a partition of table .*values of its keys \(day, region\)"
        ):
            change("d1")  # type: ignore[arg-type]


def test_offsets_by_place_and_time(conn: Connection, make_table: MakeTable) -> None:
    table = make_table({"a": pa.int32()}, buckets=2)
    before = dt.datetime.now(dt.UTC)
    time.sleep(0.01)
    table.append([{"a": i} for i in range(5)])
    time.sleep(0.02)
    after = dt.datetime.now(dt.UTC) - dt.timedelta(milliseconds=5)
    earliest = conn.admin.list_offsets(table.path, "earliest")
    assert list(earliest.values()) == [0, 0]
    latest = conn.admin.list_offsets(table.path, "latest")
    assert sorted(latest.values()) == [0, 5]
    assert conn.admin.list_offsets(table.path, before) == earliest
    assert conn.admin.list_offsets(table.path, after) == latest
    assert conn.admin.list_offsets(table.path, after.isoformat()) == latest
    written = next(bucket for bucket, offset in latest.items() if offset == 5)
    assert conn.admin.list_offsets(table.info, "latest", buckets=[written]) == {written: 5}
    with pytest.raises(InvalidRequest) as e:
        conn.admin.list_offsets(table.path, after + dt.timedelta(hours=1))
    assert e.value.code == ErrorCode.INVALID_TIMESTAMP_EXCEPTION
    for nowhere in ("yesterday", 1_700_000_000_000):
        with pytest.raises(InvalidRequest, match="not a place in a log"):
            conn.admin.list_offsets(table.path, nowhere)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="has no bucket 7"):
        conn.admin.list_offsets(table.path, buckets=[7])


def test_offsets_of_partitions(conn: Connection, make_table: MakeTable) -> None:
    table = make_table({"a": pa.int32(), "p": pa.string()}, partition_keys=["p"], buckets=2)
    table.append([{"a": 1, "p": "x"}, {"a": 2, "p": "y"}])
    ids = {partition.name: partition.partition_id for partition in table.partitions()}
    offsets = conn.admin.list_offsets(table.path, partitions=["x"])
    assert {bucket.partition_id for bucket in offsets} == {ids["x"]}
    assert sum(offsets.values()) == 1
    assert len(conn.admin.list_offsets(table.path, partitions=[{"p": "x"}, "y"])) == 4
    one = TableBucket(table.info.table_id, 0, ids["y"])
    assert list(conn.admin.list_offsets(table.path, buckets=[one])) == [one]
    with pytest.raises(NotFound, match="no partition 'z'"):
        conn.admin.list_offsets(table.path, partitions=["z"])
    with pytest.raises(InvalidRequest, match="partitioned by"):
        conn.admin.list_offsets(table.path, partitions={"q": "x"})


@own_server
def test_row_counts(conn: Connection, make_table: MakeTable) -> None:
    table = make_table({"a": pa.int32()}, primary_key=["a"], buckets=3)
    assert conn.admin.table_stats(table.path).row_count == 0
    table.upsert([{"a": i} for i in range(10)])
    table.delete([{"a": 3}])
    stats = conn.admin.table_stats(table.path)
    assert stats.row_count == 9
    assert len(stats.row_counts) == len(stats.log_sizes) == 3
    written = [time for time in stats.last_writes.values() if time is not None]
    assert (max(written) - dt.datetime.now(dt.UTC)).total_seconds() < 60
    one = make_table({"a": pa.int32()}, primary_key=["a"], buckets=1)
    empty = conn.admin.table_stats(one.path)
    assert (list(empty.log_sizes.values()), list(empty.last_writes.values())) == ([0], [None])
    one.upsert([{"a": 1}])
    assert min(conn.admin.table_stats(one.path).log_sizes.values()) > 0
    uncounted = make_table({"a": pa.int32()}, primary_key=["a"], options={"table.changelog.image": "WAL"})
    uncounted.upsert([{"a": 1}])
    assert conn.admin.table_stats(uncounted.path).row_count is None


def test_the_nodes_of_the_cluster(conn: Connection) -> None:
    nodes = conn.admin.server_nodes()
    assert nodes[0].role is ServerRole.COORDINATOR
    assert {node.role for node in nodes[1:]} == {ServerRole.TABLET}


@own_server
def test_health_settings_and_access_rules(conn: Connection) -> None:
    assert conn.admin.cluster_health().status is HealthStatus.GREEN
    configs = {entry.key: entry for entry in conn.admin.describe_configs()}
    assert configs["kv.scanner.max-per-bucket"].value == "8"
    with pytest.raises(AccessDenied) as e:
        conn.admin.list_acls()
    assert e.value.code == ErrorCode.SECURITY_DISABLED_EXCEPTION
    with pytest.raises(UnsupportedOperation, match="ALTER_CLUSTER_CONFIGS"):
        conn.admin.alter_configs({"k": "v"})


@own_server
def test_snapshots_leases_and_producer_offsets(conn: Connection, make_table: MakeTable) -> None:
    table = make_table({"a": pa.int32()}, primary_key=["a"], buckets=2)
    snapshots = conn.admin.latest_kv_snapshots(table.path)
    assert list(snapshots.values()) == [None, None]
    bucket = next(iter(snapshots))
    with pytest.raises(NotFound) as e:
        conn.admin.kv_snapshot_files(bucket, 1)
    assert e.value.code == ErrorCode.KV_SNAPSHOT_NOT_EXIST
    with pytest.raises(NotFound) as no_lake:
        conn.admin.lake_snapshot(table.path)
    assert no_lake.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
    gone = conn.admin.acquire_kv_snapshot_lease("lease", {bucket: 5}, dt.timedelta(minutes=1))
    assert gone == {bucket: 5}
    conn.admin.release_kv_snapshot_lease("lease", [bucket])
    conn.admin.release_kv_snapshot_lease("lease")
    assert conn.admin.producer_offsets("job-1") is None
    assert conn.admin.register_producer_offsets("job-1", {bucket: 7}, "1 h")
    assert not conn.admin.register_producer_offsets("job-1", {bucket: 9})
    found = conn.admin.producer_offsets("job-1")
    assert found is not None
    assert found.offsets == {bucket: 7}
    assert found.expires > dt.datetime.now(dt.UTC)
    conn.admin.delete_producer_offsets("job-1")
    assert conn.admin.producer_offsets("job-1") is None
