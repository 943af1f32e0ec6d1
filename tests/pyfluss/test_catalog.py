"""pyfluss's administration: configuration, connections, databases, tables, partitions, offsets, servers."""

from __future__ import annotations

import datetime as dt
import socket
import time

import pyarrow as pa
import pytest

import forebay
from forebay.client.admin.lake import LakeTieringClient
from forebay.metadata.table import TableBucket
from forebay.server.server import Injected
from forebay.testing.memory_lake import MemoryLakeStorage, forget_lake
from forebay.testing.server import EmbeddedServer
from tests.pyfluss.conftest import USERS, connect, error_code, fluss

pytestmark = pytest.mark.foreign

EVENTS = pa.schema([("id", pa.int64()), ("text", pa.string())])

SETTINGS = {
    "bootstrap_servers": "127.0.0.1:1",
    "writer_request_max_size": 2_000_000,
    "writer_acks": "all",
    "writer_retries": 3,
    "writer_batch_size": 100_000,
    "writer_dynamic_batch_size_enabled": False,
    "writer_dynamic_batch_size_min": 10_000,
    "writer_bucket_no_key_assigner": "round_robin",
    "writer_batch_timeout_ms": 5,
    "writer_enable_idempotence": True,
    "writer_max_inflight_requests_per_bucket": 3,
    "writer_buffer_memory_size": 8_000_000,
    "writer_buffer_wait_timeout_ms": 4_000,
    "writer_kv_backpressure_max_throttle_ms": 100,
    "scanner_remote_log_prefetch_num": 2,
    "remote_file_download_thread_num": 2,
    "scanner_remote_log_read_concurrency": 2,
    "scanner_log_max_poll_records": 77,
    "scanner_log_fetch_max_bytes": 1_000_000,
    "scanner_log_fetch_min_bytes": 1,
    "scanner_log_fetch_wait_max_time_ms": 50,
    "scanner_log_fetch_max_bytes_for_bucket": 500_000,
    "connect_timeout_ms": 3_000,
}


async def test_every_setting_can_be_read_back_and_a_client_with_all_of_them_works(address):
    config = fluss.Config()
    for name, value in SETTINGS.items():
        setattr(config, name, value)
        assert getattr(config, name) == value
    config.bootstrap_servers = address
    connection = await fluss.FlussConnection.create(config)
    admin = connection.get_admin()
    path = fluss.TablePath("fluss", "all_settings")
    await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(EVENTS), bucket_count=2))
    table = await connection.get_table(path)
    writer = table.new_append().create_writer()
    for i in range(200):
        writer.append([i, "x"])
    await writer.flush()
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET, 1: fluss.EARLIEST_OFFSET})
    seen = 0
    while seen < 200:
        polled = await scanner.poll(500)
        assert polled.count() <= 77
        seen += polled.count()
    await admin.drop_table(path)
    await connection.close()


async def test_connections_and_handles_are_context_managers_and_describe_themselves(address):
    async with await connect(address) as connection:
        assert "Fluss" in repr(connection)
        admin = connection.get_admin()
        assert repr(admin)
        assert "fluss" in await admin.list_databases()
    with await connect(address) as connection:
        assert await connection.get_admin().database_exists("fluss")


async def test_a_missing_server_is_an_error_of_the_client():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(fluss.FlussError) as failed:
        await connect(f"127.0.0.1:{port}")
    assert failed.value.is_retriable in (True, False)


async def test_only_users_with_their_password_are_let_in(server):
    sasl = server.addresses.sasl_bootstrap_servers

    async def log_in(name: str, password: str):
        config = fluss.Config({"bootstrap.servers": sasl})
        config.security_protocol = "sasl"
        config.security_sasl_mechanism = "PLAIN"
        config.security_sasl_username = name
        config.security_sasl_password = password
        assert (config.security_protocol, config.security_sasl_mechanism) == ("sasl", "PLAIN")
        assert (config.security_sasl_username, config.security_sasl_password) == (name, password)
        return await fluss.FlussConnection.create(config)

    connection = await log_in("admin", USERS["admin"])
    path = fluss.TablePath("fluss", "behind_sasl")
    await connection.get_admin().create_table(path, fluss.TableDescriptor(fluss.Schema(EVENTS), bucket_count=1))
    writer = (await connection.get_table(path)).new_append().create_writer()
    await writer.append({"id": 1, "text": "in"}).wait()  # the tablet server asks for the password too
    await connection.get_admin().drop_table(path)
    await connection.close()
    for name, password in (("admin", "guess"), ("nobody", USERS["admin"]), ("ADMIN", USERS["admin"])):
        assert await error_code(log_in(name, password)) == fluss.ErrorCode.AUTHENTICATE_EXCEPTION
    assert await error_code(connect(sasl)) == fluss.ErrorCode.AUTHENTICATE_EXCEPTION


async def test_databases_come_and_go_with_their_descriptions(session):
    admin = session.admin
    before = dt.datetime.now().timestamp() * 1000
    descriptor = fluss.DatabaseDescriptor("books and prices", {"owner": "läden"})
    assert (descriptor.comment, descriptor.get_custom_properties()) == ("books and prices", {"owner": "läden"})
    await admin.create_database("shop", descriptor)
    assert await error_code(admin.create_database("shop")) == fluss.ErrorCode.DATABASE_ALREADY_EXIST
    await admin.create_database("shop", ignore_if_exists=True)
    assert await admin.database_exists("shop")
    info = await admin.get_database_info("shop")
    assert info.database_name == "shop"
    assert before - 60_000 < info.created_time <= info.modified_time < before + 60_000
    assert info.get_database_descriptor().comment == "books and prices"
    assert info.get_database_descriptor().get_custom_properties() == {"owner": "läden"}
    assert "shop" in repr(info)
    await admin.create_table(fluss.TablePath("shop", "orders"), fluss.TableDescriptor(fluss.Schema(EVENTS)))
    assert await error_code(admin.drop_database("shop", cascade=False)) == fluss.ErrorCode.DATABASE_NOT_EMPTY
    await admin.drop_database("shop")
    assert not await admin.database_exists("shop")
    assert "shop" not in await admin.list_databases()
    not_there = fluss.ErrorCode.DATABASE_NOT_EXIST
    assert await error_code(admin.drop_database("shop")) == not_there
    await admin.drop_database("shop", ignore_if_not_exists=True)
    assert await error_code(admin.get_database_info("shop")) == not_there
    assert await error_code(admin.list_tables("shop")) == not_there


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "x" * 201, "näme", "__internal"])
async def test_names_that_cannot_be_are_refused(session, name):
    code = await error_code(session.admin.create_database(name))
    assert code == fluss.ErrorCode.INVALID_DATABASE_EXCEPTION
    path = fluss.TablePath("fluss", name)
    code = await error_code(session.admin.create_table(path, fluss.TableDescriptor(fluss.Schema(EVENTS))))
    assert code == fluss.ErrorCode.INVALID_TABLE_EXCEPTION


async def test_a_table_is_described_as_it_was_created(session):
    schema = fluss.Schema(
        pa.schema(
            [pa.field("day", pa.string()), pa.field("user", pa.string()), ("n", pa.int64()), ("v", pa.float64())]
        ),
        ["day", "user", "n"],
    )
    assert schema.get_column_names() == ["day", "user", "n", "v"]
    assert schema.get_column_types() == ["string NOT NULL", "string NOT NULL", "bigint NOT NULL", "double"]
    assert schema.get_columns()[3] == ("v", "double")
    assert schema.get_primary_keys() == ["day", "user", "n"]
    assert schema.get_auto_increment_columns() == []
    assert "day" in str(schema)
    descriptor = fluss.TableDescriptor(
        schema,
        partition_keys=["day"],
        bucket_count=4,
        bucket_keys=["user"],
        comment="who did what — täglich",
        log_format="arrow",
        kv_format="indexed",
        properties={"table.log.arrow.compression.type": "LZ4_FRAME"},
        custom_properties={"team": "red"},
    )
    assert descriptor.get_schema().get_column_names() == schema.get_column_names()
    path = session.path("described")
    assert (path.database_name, path.table_name) == ("strangers", "described")
    assert path.table_path_str() == str(path) == "strangers.described"
    assert path == fluss.TablePath("strangers", "described")
    assert hash(path) == hash(fluss.TablePath("strangers", "described"))
    assert "described" in repr(path)
    await session.admin.create_table(path, descriptor)
    code = await error_code(session.admin.create_table(path, descriptor))
    assert code == fluss.ErrorCode.TABLE_ALREADY_EXIST
    await session.admin.create_table(path, descriptor, ignore_if_exists=True)
    info = await session.admin.get_table_info(path)
    assert info.table_path == path
    assert (info.num_buckets, info.comment, info.schema_id) == (4, "who did what — täglich", 1)
    assert info.table_id > 0
    assert abs(info.created_time - time.time() * 1000) < 60_000
    assert info.modified_time >= info.created_time
    assert info.get_primary_keys() == ["day", "user", "n"]
    assert info.get_bucket_keys() == ["user"]
    assert info.get_partition_keys() == ["day"]
    assert info.has_primary_key()
    assert info.is_partitioned()
    assert info.get_properties()["table.log.arrow.compression.type"] == "LZ4_FRAME"
    assert info.get_custom_properties() == {"team": "red"}
    assert info.get_schema().get_columns() == schema.get_columns()
    assert info.get_column_names() == ["day", "user", "n", "v"]
    assert info.get_column_count() == 4
    table = await session.connection.get_table(path)
    assert table.has_primary_key()
    assert table.get_table_path() == path
    assert table.get_table_info().table_id == info.table_id
    assert table.arrow_schema.names == ["day", "user", "n", "v"]
    assert "described" in repr(table)
    assert "described" in await session.admin.list_tables("strangers")
    assert await session.admin.table_exists(path)
    await session.admin.drop_table(path)
    assert not await session.admin.table_exists(path)
    not_there = fluss.ErrorCode.TABLE_NOT_EXIST
    assert await error_code(session.admin.drop_table(path)) == not_there
    await session.admin.drop_table(path, ignore_if_not_exists=True)
    assert await error_code(session.admin.get_table_info(path)) == not_there
    assert await error_code(session.connection.get_table(path)) == not_there


@pytest.mark.parametrize(
    ("descriptor", "key", "code"),
    [
        ({"bucket_count": 100_000}, None, "BUCKET_MAX_NUM_EXCEPTION"),
        ({"partition_keys": ["nix"]}, None, "INVALID_TABLE_EXCEPTION"),
        ({"properties": {"table.replication.factor": "3"}}, None, "INVALID_REPLICATION_FACTOR"),
        ({"properties": {"table.nix": "1"}}, None, "INVALID_CONFIG_EXCEPTION"),
        ({"properties": {"table.log.arrow.compression.type": "BZIP2"}}, None, "INVALID_CONFIG_EXCEPTION"),
    ],
)
async def test_tables_that_cannot_be_are_refused_with_fluss_s_code(session, descriptor, key, code):
    wanted = getattr(fluss.ErrorCode, code)

    async def create():
        await session.create(EVENTS, key or (), **descriptor)

    assert await error_code(create()) in (wanted, fluss.ErrorCode.CLIENT_ERROR)


async def test_a_table_of_a_missing_database_is_refused(session):
    path = fluss.TablePath("nowhere", "t")
    code = await error_code(session.admin.create_table(path, fluss.TableDescriptor(fluss.Schema(EVENTS))))
    assert code == fluss.ErrorCode.DATABASE_NOT_EXIST


async def test_partitions_are_created_listed_filtered_and_dropped(session):
    admin = session.admin
    schema = pa.schema([("year", pa.int32()), ("country", pa.string()), ("n", pa.int64())])
    table = await session.create(schema, partition_keys=["year", "country"])
    path = table.get_table_path()
    for year in ("2025", "2026"):
        for country in ("DE", "FR"):
            await admin.create_partition(path, {"year": year, "country": country})
    again = {"year": "2025", "country": "DE"}
    assert await error_code(admin.create_partition(path, again)) == fluss.ErrorCode.PARTITION_ALREADY_EXISTS
    await admin.create_partition(path, again, ignore_if_exists=True)
    assert set(await session.partition_ids(table)) == {"2025$DE", "2025$FR", "2026$DE", "2026$FR"}
    some = await admin.list_partition_infos(path, {"country": "FR"})
    assert sorted(info.partition_name for info in some) == ["2025$FR", "2026$FR"]
    assert len({info.partition_id for info in some}) == 2
    assert "2025$FR" in repr(sorted(some, key=lambda info: info.partition_name)[0])
    bad = fluss.ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION
    for spec in ({"year": "2025"}, {"year": "2025", "land": "DE"}, {"n": "1", "year": "2025", "country": "DE"}):
        assert await error_code(admin.create_partition(path, spec)) == bad
    await admin.drop_partition(path, again)
    assert await error_code(admin.drop_partition(path, again)) == fluss.ErrorCode.PARTITION_NOT_EXISTS
    await admin.drop_partition(path, again, ignore_if_not_exists=True)
    assert len(await session.partition_ids(table)) == 3
    plain = await session.create(EVENTS)
    not_partitioned = fluss.ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION
    assert await error_code(admin.create_partition(plain.get_table_path(), {"id": "1"})) == not_partitioned
    assert await error_code(admin.list_partition_infos(plain.get_table_path())) == not_partitioned
    missing = session.path("missing")
    assert await error_code(admin.list_partition_infos(missing)) == fluss.ErrorCode.TABLE_NOT_EXIST


async def test_there_is_a_most_number_of_partitions(session):
    table = await session.create(pa.schema([("p", pa.string()), ("n", pa.int64())]), partition_keys=["p"])
    path = table.get_table_path()
    for number in range(20):
        await session.admin.create_partition(path, {"p": f"p{number}"})
    code = await error_code(session.admin.create_partition(path, {"p": "onemore"}))
    assert code == fluss.ErrorCode.PARTITION_MAX_NUM_EXCEPTION


async def test_offsets_are_found_by_place_and_by_time(session):
    table = await session.create(EVENTS, bucket_count=2, bucket_keys=["id"])
    path = table.get_table_path()
    writer = table.new_append().create_writer()
    times = []
    for round_ in range(3):
        times.append(int(time.time() * 1000))
        for i in range(10):
            writer.append([10 * round_ + i, "x"])
        await writer.flush()
        time.sleep(0.005)
    times.append(int(time.time() * 1000))
    earliest, latest = fluss.OffsetSpec.earliest(), fluss.OffsetSpec.latest()
    assert repr(earliest)
    assert await session.admin.list_offsets(path, [0, 1], earliest) == {0: 0, 1: 0}
    ends = await session.admin.list_offsets(path, [0, 1], latest)
    assert sum(ends.values()) == 30
    by_time = [await session.admin.list_offsets(path, [0, 1], fluss.OffsetSpec.timestamp(each)) for each in times]
    assert [sum(found.values()) for found in by_time] == [0, 10, 20, 30]
    assert await session.admin.list_offsets(path, [1], latest) == {1: ends[1]}
    future = fluss.OffsetSpec.timestamp(times[-1] + 3_600_000)
    assert (
        await error_code(session.admin.list_offsets(path, [0], future)) == fluss.ErrorCode.INVALID_TIMESTAMP_EXCEPTION
    )
    assert await error_code(session.admin.list_offsets(path, [7], latest)) != 0


async def test_offsets_of_partitions(session):
    table = await session.create(pa.schema([("p", pa.string()), ("n", pa.int64())]), partition_keys=["p"])
    path = table.get_table_path()
    for name in "ab":
        await session.admin.create_partition(path, {"p": name})
    writer = table.new_append().create_writer()
    for n in range(6):
        writer.append({"p": "ab"[n % 2], "n": n})
    await writer.flush()
    for name in "ab":
        assert await session.admin.list_partition_offsets(path, name, [0], fluss.OffsetSpec.latest()) == {0: 3}
        assert await session.admin.list_partition_offsets(path, name, [0], fluss.OffsetSpec.earliest()) == {0: 0}
    code = await error_code(session.admin.list_partition_offsets(path, "z", [0], fluss.OffsetSpec.latest()))
    assert code == fluss.ErrorCode.PARTITION_NOT_EXISTS


async def test_servers_of_both_roles_are_listed(session, server):
    nodes = {node.server_type: node for node in await session.admin.get_server_nodes()}
    assert set(nodes) == {"CoordinatorServer", "TabletServer"}
    assert nodes["CoordinatorServer"].uid == "cs-0"
    assert nodes["TabletServer"].uid == f"ts-{nodes['TabletServer'].id}"
    port = int(server.addresses.tablet_servers.rpartition(":")[2])
    assert (nodes["TabletServer"].host, nodes["TabletServer"].port) == ("127.0.0.1", port)
    assert "TabletServer" in repr(nodes["TabletServer"])


async def test_a_table_without_a_lake_has_no_lake_snapshot(session):
    table = await session.create(EVENTS)
    code = await error_code(session.admin.get_latest_lake_snapshot(table.get_table_path()))
    assert code == fluss.ErrorCode.LAKE_SNAPSHOT_NOT_EXIST


async def test_the_newest_lake_snapshot_is_told_with_its_offsets(tmp_path):
    forget_lake("pyfluss")
    injected = Injected(create_lake_storage=lambda name, options: MemoryLakeStorage(options))
    settings = {"datalake.format": "paimon", "datalake.paimon.name": "pyfluss"}
    with (
        EmbeddedServer(tmp_path / "data", settings=settings, injected=injected) as server,
        forebay.connect(server.bootstrap_servers) as ours,
    ):
        options = {"table.datalake.enabled": "true"}
        info = ours.create_table("fluss.tiered", {"a": pa.int32()}, buckets=2, options=options).info
        while min(ours.admin.list_offsets(info).values()) < 5:  # no lake snapshot has more than a log
            ours.table(info).append([{"a": n} for n in range(5)])
        worker = LakeTieringClient(ours)
        offsets = {TableBucket(info.table_id, 0): 3, TableBucket(info.table_id, 1): 5}
        path = worker.prepare(info, offsets)
        worker.commit(info, 77, path, readable_path=path)
        theirs = await connect(server.bootstrap_servers)
        snapshot = await theirs.get_admin().get_latest_lake_snapshot(fluss.TablePath("fluss", "tiered"))
        assert snapshot.snapshot_id == 77
        assert {b.bucket_id: o for b, o in snapshot.table_buckets_offset.items()} == {0: 3, 1: 5}
        assert (await theirs.get_admin().get_table_info(fluss.TablePath("fluss", "tiered"))).table_id == info.table_id
        await theirs.close()
    forget_lake("pyfluss")


def test_buckets_and_lake_snapshots_are_values():
    bucket = fluss.TableBucket.with_partition(5, 7, 1)
    assert (bucket.table_id, bucket.partition_id, bucket.bucket_id) == (5, 7, 1)
    assert fluss.TableBucket(5, 1).partition_id is None
    assert len({bucket, fluss.TableBucket.with_partition(5, 7, 1), fluss.TableBucket(5, 1)}) == 2
    assert str(bucket)
    assert repr(bucket)
    snapshot = fluss.LakeSnapshot(9)
    assert (snapshot.snapshot_id, snapshot.table_buckets_offset, snapshot.get_table_buckets()) == (9, {}, [])
    assert snapshot.get_bucket_offset(bucket) is None
    assert str(snapshot)
    assert repr(snapshot)


async def test_errors_carry_code_and_text_and_know_whether_to_try_again(session):
    with pytest.raises(fluss.FlussError) as failed:
        await session.admin.get_table_info(fluss.TablePath("fluss", "nix"))
    error = failed.value
    assert (error.error_code, error.is_retriable) == (fluss.ErrorCode.TABLE_NOT_EXIST, False)
    assert "fluss.nix" in error.message
    assert "fluss.nix" in str(error)
    assert fluss.FlussError("busy", fluss.ErrorCode.REQUEST_TIME_OUT).is_retriable
    assert fluss.FlussError("mine").error_code == fluss.ErrorCode.CLIENT_ERROR
