"""Lake tables: created and altered before their stream tables; the lake options that clients see."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import AlreadyExists, ErrorCode, ForebayError, InvalidRequest, NotFound, StorageFailure
from forebay.client.connection import Connection
from forebay.metadata.table import TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import table_path_to_pb
from forebay.server.embedded import EmbeddedServer
from forebay.server.server import Injected
from forebay.testing.memory_lake import MemoryLakeStorage, forget_lake
from tests.patience import PATIENCE
from tests.server.raw_client import RawClient

LAKE = "tests of lake tables"
PATH = TablePath("fluss", "t")
ENABLED = {"table.datalake.enabled": "true"}
SCHEMA = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("name", pa.string())])
SETTINGS = {
    "datalake.format": "paimon",
    "datalake.paimon.name": LAKE,
    "datalake.paimon.s3.access-key": "open sesame",
    "datalake.paimon.s3.endpoint": "http://s3",
}


@pytest.fixture
def lake() -> Iterator[MemoryLakeStorage]:
    """The lake of the servers below: in memory, under the name of Paimon."""
    forget_lake(LAKE)
    yield MemoryLakeStorage({"name": LAKE})
    forget_lake(LAKE)


@contextmanager
def connected(directory: Path, settings: dict[str, str] | None = None) -> Iterator[tuple[EmbeddedServer, Connection]]:
    injected = Injected(create_lake_storage=lambda name, options: MemoryLakeStorage(options))
    settings = SETTINGS if settings is None else settings
    with (
        EmbeddedServer(directory / "data", settings=settings, injected=injected) as server,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        yield server, connection


def test_a_lake_table_is_made_with_its_stream_table_and_stays_when_that_is_dropped(tmp_path, lake):
    with connected(tmp_path) as (_, connection):
        connection.create_table(PATH, SCHEMA, primary_key=["id"], options=ENABLED)
        info = connection.admin.table_info(PATH)
        assert info.lake_enabled
        assert info.descriptor.lake_format == "paimon"
        assert [c.name for c in lake.table(PATH).columns] == ["id", "name"]
        connection.drop_table(PATH)
        assert [c.name for c in lake.table(PATH).columns] == ["id", "name"]
        connection.create_table(PATH, SCHEMA, primary_key=["id"], options=ENABLED)


@pytest.mark.parametrize(
    ("bucket_keys", "has_lake", "served"), [(["id"], True, False), (["id", "name"], True, True), (["id"], False, True)]
)
def test_clients_that_encode_keys_in_the_old_way_are_refused_where_that_makes_a_difference(
    tmp_path, lake, bucket_keys, has_lake, served
):
    with connected(tmp_path, None if has_lake else {}) as (server, connection):
        connection.create_table(PATH, SCHEMA, primary_key=["id", "name"], bucket_keys=bucket_keys, buckets=1)
        table_id = connection.admin.table_info(PATH).table_id
        with RawClient(server.addresses.tablet_servers) as client:
            for key, request in (
                (ApiKey.PUT_KV, pb.PutKvRequest(acks=-1, table_id=table_id, timeout_ms=10_000)),
                (ApiKey.LOOKUP, pb.LookupRequest(table_id=table_id)),
                (ApiKey.PREFIX_LOOKUP, pb.PrefixLookupRequest(table_id=table_id)),
            ):
                if key is ApiKey.PUT_KV:
                    request.buckets_req.add(bucket_id=0, records=b"no batch")
                else:
                    request.buckets_req.add(bucket_id=0, keys=[b"a key"])
                for version in (0, 1):
                    (answer,) = client.call(key, request, version).buckets_resp
                    refused = "does not know; use a newer client" in answer.error_message
                    assert refused == (version == 0 and not served), (key, version, answer)


def test_clients_of_a_lake_table_are_told_the_options_of_the_lake_without_its_secrets(tmp_path, lake):
    with connected(tmp_path) as (_, connection):
        connection.create_table(PATH, SCHEMA, options=ENABLED)
        connection.create_table("fluss.stream", SCHEMA)
        info = connection.admin.table_info(PATH)
        assert info.lake_options() == {"name": LAKE, "s3.endpoint": "http://s3"}
        assert connection.admin.table_info("fluss.stream").lake_options() == {}
        shown = {entry.key: entry.value for entry in connection.admin.describe_configs()}
        assert shown["datalake.paimon.name"] == LAKE
        assert shown["datalake.paimon.s3.access-key"] == "******"


SECRETS = {
    "token": "5ecret-token",
    "credential": "5ecret-credential",
    "s3.session-token": "5ecret-session",
    "header.Authorization": "5ecret-header",
    "dlf.security-token": "5ecret-dlf",
    "jdbc.password": "5ecret-password",
}
URI = "jdbc:mysql://root:5ecret-address@db:3306/lake?password=5ecret-parameter&sslMode=VERIFY"


def test_no_secret_of_the_lake_reaches_a_client(tmp_path, lake):
    settings = SETTINGS | {f"datalake.paimon.{key}": value for key, value in SECRETS.items()}
    settings |= {
        "datalake.paimon.uri": URI,
        "security.sasl.plain.credentials": "me:5ecret-sasl",
        "datalake.paimon.extra": "told",
        "datalake.public-options": "Extra",
    }
    with connected(tmp_path, settings) as (_, connection):
        connection.create_table(PATH, SCHEMA, options=ENABLED)
        assert connection.admin.table_info(PATH).lake_options() == {
            "name": LAKE,
            "s3.endpoint": "http://s3",
            "uri": "jdbc:mysql://db:3306/lake?sslMode=VERIFY",
            "extra": "told",
        }
        shown = {entry.key: entry.value for entry in connection.admin.describe_configs()}
        answers = repr(connection.admin.table_info(PATH)) + repr(shown)
        cluster = connection.cluster
        message = pb.MetadataRequest(table_path=[table_path_to_pb(PATH)])
        answers += str(cluster.coordinator_call(ApiKey.GET_METADATA, message, pb.MetadataResponse, repeatable=True))
        assert "5ecret" not in answers
        assert shown["datalake.paimon.token"] == shown["security.sasl.plain.credentials"] == "******"
        assert shown["kv.scanner.ttl"] == "10 min"


def test_an_error_of_the_lake_reaches_the_client_without_the_secrets_in_it(tmp_path, lake, caplog):
    def create(name: str, options: Mapping[str, str]) -> MemoryLakeStorage:
        raise StorageFailure(f"cannot log in with {options['token']} at {options['uri']}")

    settings = SETTINGS | {"datalake.paimon.token": "5ecret-token", "datalake.paimon.uri": URI}
    with (
        EmbeddedServer(tmp_path / "data", settings=settings, injected=Injected(create_lake_storage=create)) as server,
        forebay.connect(server.bootstrap_servers, retry_timeout="1 s") as connection,
        pytest.raises(StorageFailure, match=r"cannot log in with \*\*\*\*\*\* at"),
    ):
        connection.create_table(PATH, SCHEMA, options=ENABLED)
    assert "5ecret-token" not in caplog.text
    assert "5ecret-address" not in caplog.text


def test_a_table_that_is_no_lake_table_has_the_format_recorded_and_no_table_in_the_lake(tmp_path, lake):
    with connected(tmp_path) as (_, connection):
        connection.create_table(PATH, SCHEMA, primary_key=["id"])
        assert connection.admin.table_info(PATH).descriptor.lake_format == "paimon"
        with pytest.raises(NotFound):
            lake.table(PATH)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({}, ErrorCode.INVALID_TABLE_EXCEPTION),
        ({**SETTINGS, "datalake.enabled": "false"}, ErrorCode.INVALID_TABLE_EXCEPTION),
        ({"datalake.format": "iceberg"}, ErrorCode.INVALID_CONFIG_EXCEPTION),
    ],
)
def test_a_lake_table_that_the_lake_cannot_hold_is_refused_as_fluss_refuses_it(tmp_path, settings, code):
    with connected(tmp_path, settings) as (_, connection):
        with pytest.raises(InvalidRequest, match="datalake") as refused:
            connection.create_table(PATH, SCHEMA, options={**ENABLED, "table.datalake.format": "paimon"})
        assert refused.value.code == code
        assert not connection.table_exists(PATH)


@pytest.mark.parametrize(
    ("columns", "keys"),
    [
        ({"id": pa.bool_()}, {"primary_key": ["id"]}),
        ({"id": pa.int8()}, {"bucket_keys": ["id"]}),
        ({"id": pa.timestamp("us", "UTC")}, {"primary_key": ["id"]}),
        ({"id": pa.timestamp("ns")}, {"primary_key": ["id"]}),
        ({"id": pa.int32(), "part": pa.int32()}, {"primary_key": ["id", "part"]}),
    ],
)
def test_a_table_whose_keys_the_lake_format_cannot_hash_is_refused_before_rows_come(tmp_path, columns, keys):
    with connected(tmp_path, {"datalake.format": "iceberg"}) as (_, connection):
        with pytest.raises(InvalidRequest, match="Iceberg") as refused:
            connection.create_table(PATH, {**columns, "v": pa.string()}, **keys)
        assert refused.value.code == ErrorCode.INVALID_TABLE_EXCEPTION
        assert not connection.table_exists(PATH)


def test_a_lake_table_that_is_in_the_way_keeps_the_stream_table_from_being_made(tmp_path, lake):
    with connected(tmp_path) as (_, connection):
        connection.create_table(PATH, SCHEMA, options=ENABLED)
        connection.drop_table(PATH)
        lake.table(PATH).add({}, {}, tiered=True)
        with pytest.raises(AlreadyExists, match="not empty") as refused:
            connection.create_table(PATH, SCHEMA, options=ENABLED)
        assert refused.value.code == ErrorCode.LAKE_TABLE_ALREADY_EXIST
        assert not connection.table_exists(PATH)


def test_tiering_is_switched_on_and_off_and_the_lake_table_keeps_up_in_between(tmp_path, lake):
    with connected(tmp_path) as (_, connection):
        admin = connection.admin
        connection.create_table(PATH, SCHEMA, primary_key=["id"])
        connection.table(PATH).alter(set=ENABLED)
        assert admin.table_info(PATH).lake_enabled
        assert len(lake.table(PATH).columns) == 2
        lake.table(PATH).add({}, {}, tiered=True)
        connection.table(PATH).alter(set={"table.datalake.enabled": "false"})
        connection.table(PATH).alter(add_columns=pa.schema([("more", pa.int64())]))
        assert [c.name for c in lake.table(PATH).columns] == ["id", "name", "more"]
        connection.table(PATH).alter(set=ENABLED)
        assert admin.table_info(PATH).lake_enabled


def test_options_of_the_lake_format_reach_the_lake_table(tmp_path, lake):
    with connected(tmp_path) as (_, connection):
        connection.create_table(PATH, SCHEMA, options={**ENABLED, "memory.size": "1"})
        connection.table(PATH).alter(set={"memory.size": "2", "table.datalake.freshness": "10 s"})
        assert lake.table(PATH).options["size"] == "2"
        assert lake.table(PATH).options["fluss.table.datalake.freshness"] == "10 s"


def test_a_change_that_reached_the_lake_and_not_the_store_can_be_sent_again(tmp_path, lake, monkeypatch):
    with connected(tmp_path) as (server, connection):
        store = server.server.context.store
        admin = connection.admin

        def fail_once(name: str) -> None:
            real = getattr(store, name)

            def fail(*_: object) -> None:
                monkeypatch.setattr(store, name, real)
                raise StorageFailure("the disk is full", ErrorCode.UNKNOWN_SERVER_ERROR)

            monkeypatch.setattr(store, name, fail)

        fail_once("create_table")
        with pytest.raises(ForebayError, match="the disk is full"):
            connection.create_table(PATH, SCHEMA, options=ENABLED)
        assert len(lake.table(PATH).columns) == 2
        connection.create_table(PATH, SCHEMA, options=ENABLED)
        fail_once("update_table")
        with pytest.raises(ForebayError, match="the disk is full"):
            connection.table(PATH).alter(add_columns=pa.schema([("more", pa.int64())]))
        assert len(lake.table(PATH).columns) == 3
        assert len(admin.table_info(PATH).schema.columns) == 2
        connection.table(PATH).alter(add_columns=pa.schema([("more", pa.int64())]))
        assert len(admin.table_info(PATH).schema.columns) == 3


def test_tables_from_before_the_server_had_a_lake_are_tiered_only_where_buckets_do_not_matter(tmp_path, lake):
    with connected(tmp_path, {}) as (_, connection):
        connection.create_table("fluss.keyed", SCHEMA, primary_key=["id"])
        connection.create_table("fluss.log", SCHEMA)
        with pytest.raises(InvalidRequest, match="has no lake") as refused:
            connection.table("fluss.log").alter(set=ENABLED)
        assert refused.value.code == ErrorCode.INVALID_ALTER_TABLE_EXCEPTION
    with connected(tmp_path) as (_, connection):
        with pytest.raises(InvalidRequest, match="copy it into a new table") as refused:
            connection.table("fluss.keyed").alter(set=ENABLED)
        assert refused.value.code == ErrorCode.INVALID_ALTER_TABLE_EXCEPTION
        connection.table("fluss.log").alter(set=ENABLED)
        assert connection.admin.table_info("fluss.log").descriptor.lake_format == "paimon"
        assert lake.table(TablePath("fluss", "log")).columns


def test_a_lake_table_of_a_server_that_lost_its_lake_is_served_and_can_be_switched_off(tmp_path, lake):
    with connected(tmp_path) as (_, connection):
        connection.create_table(PATH, SCHEMA, options=ENABLED)
    with connected(tmp_path, {}) as (_, connection):
        connection.table(PATH).append(pa.table({"id": pa.array([1], pa.int32()), "name": ["a"]}))
        with pytest.raises(InvalidRequest, match="has no lake any more"):
            connection.table(PATH).alter(add_columns=pa.schema([("more", pa.int64())]))
        connection.table(PATH).alter(set={"table.datalake.enabled": "false"})
        connection.table(PATH).alter(add_columns=pa.schema([("more", pa.int64())]))


def test_a_lake_table_that_was_dropped_by_hand_is_missed_and_can_be_recreated(tmp_path, lake):
    with connected(tmp_path) as (_, connection):
        connection.create_table(PATH, SCHEMA, options=ENABLED)
        del lake.lake.tables[PATH]
        with pytest.raises(ForebayError, match=r"the lake table of fluss\.t is gone"):
            connection.table(PATH).alter(set={"table.datalake.freshness": "1 s"})
        connection.table(PATH).alter(set={"table.datalake.enabled": "false"})
        connection.table(PATH).alter(set=ENABLED)
        assert lake.table(PATH).columns


def run_program(program: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return done.stdout.split()


def test_a_server_without_a_lake_imports_none(tmp_path):
    program = """
import sys
import pyarrow as pa
import forebay
from forebay.server.embedded import EmbeddedServer

with EmbeddedServer(sys.argv[1]) as server, forebay.connect(server.bootstrap_servers) as connection:
    connection.create_table("fluss.stream", pa.schema([("id", pa.int32())]))
print(sum(name.startswith(("forebay.paimon", "forebay.lakes")) for name in sys.modules))
"""
    assert run_program(program, str(tmp_path)) == ["0"]


def test_a_server_with_a_lake_imports_it_before_the_first_request_needs_it(tmp_path):
    program = """
import sys
import time
import pyarrow as pa
import forebay
from forebay.server.embedded import EmbeddedServer

settings = {"datalake.format": "paimon", "datalake.paimon.warehouse": sys.argv[1] + "/lake"}
with EmbeddedServer(sys.argv[1] + "/data", settings=settings) as server:
    with forebay.connect(server.bootstrap_servers) as connection:
        connection.create_table("fluss.stream", pa.schema([("id", pa.int32())]))
        tables = server.server.context.lake.tables
        while tables._opened is None:
            time.sleep(0.01)
        before = set(sys.modules)
        properties = {"table.datalake.enabled": "true"}
        connection.create_table("fluss.lake", pa.schema([("id", pa.int32())]), options=properties)
        connection.table("fluss.lake").alter(set={"table.datalake.freshness": "1 s"})
        print("loaded", *(set(sys.modules) - before))
"""
    assert run_program(program, str(tmp_path)) == ["loaded"]
    assert (tmp_path / "lake" / "fluss.db" / "lake" / "schema" / "schema-0").exists()


def test_a_lake_that_cannot_be_opened_keeps_no_server_from_starting(tmp_path, caplog):
    def create(name: str, options: Mapping[str, str]) -> MemoryLakeStorage:
        raise StorageFailure(f"no way to log in with {options['token']}")

    settings = SETTINGS | {"datalake.paimon.token": "5ecret-token"}
    with (
        EmbeddedServer(tmp_path / "data", settings=settings, injected=Injected(create_lake_storage=create)) as server,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        connection.create_table(PATH, SCHEMA)
    assert "the lake cannot be opened; requests for lake tables will retry: no way to log in" in caplog.text
    assert "5ecret-token" not in caplog.text
