"""To any input, the server responds with the protocol's error or closes that connection, and nothing changes."""

from __future__ import annotations

import copy
import random
import socket
import struct

import pyarrow as pa
import pytest

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest
from forebay.codec.crc import crc32c
from forebay.codec.kv.kv_batch import HEADER_BYTES
from forebay.codec.log.log_batch import build_row_batch
from forebay.codec.rows.row_codec import row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.metadata import types
from forebay.metadata.table import Column, Schema
from forebay.protocol.listeners import SecurityProtocol
from forebay.server import metadata_store
from forebay.server.embedded import EmbeddedServer
from tests.patience import PATIENCE
from tests.server.raw_client import ApiKey, PlainClient, RawClient, address, is_closed_by_peer, pb
from tests.server.running import KV_COLUMNS, Bench, kv_key, kv_records, log_records, running

LOG_COLUMNS = {"a": types.int_(), "s": types.string()}


@pytest.fixture(scope="module")
def log_table(bench: Bench) -> int:
    created = bench.create("log", LOG_COLUMNS)
    bench.append(created, log_records([1, 2, 3]))
    return created


@pytest.fixture(scope="module")
def kv_table(bench: Bench) -> int:
    created = bench.create("kv", KV_COLUMNS, ["id"])
    bench.put(created, kv_records([{"id": 1, "name": "kept"}]))
    return created


def raw_socket(bench: Bench) -> socket.socket:
    return socket.create_connection(address(bench.server.addresses.tablet_servers), PATIENCE)


def assert_others_are_served(bench: Bench) -> None:
    assert bench.tablet.call(ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss")).exists


# ---- frames ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1) + b"xxxxxxxx",
        struct.pack(">i", 0),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">i", 2**31 - 1) + b"x" * 100,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    ],
)
def test_a_stream_that_is_no_fluss_protocol_is_closed_and_affects_no_other_client(bench, data):
    with raw_socket(bench) as sock:
        sock.sendall(data)
        assert is_closed_by_peer(sock)
    assert_others_are_served(bench)


def test_truncated_frames_and_sudden_ends_affect_no_other_client(bench):
    frame = struct.pack(">ihhi", 100, 1012, 0, 1) + bytes(10)
    for cut in range(len(frame)):
        with raw_socket(bench) as sock:
            sock.sendall(frame[:cut])
    assert_others_are_served(bench)


def test_random_bytes_affect_no_other_client(bench):
    rng = random.Random(7)
    for _ in range(60):
        with raw_socket(bench) as sock:
            sock.sendall(rng.randbytes(rng.randrange(1, 4000)))
    assert_others_are_served(bench)


def test_unknown_apis_and_versions_are_answered_at_once(bench):
    with RawClient(bench.server.addresses.tablet_servers) as client:
        for key, version in ((1999, 0), (1, 0), (-5, 0), (1012, 99), (1014, -1), (1049, 0)):
            client.send_bytes(struct.pack(">ihhi", 8, key, version, 77))
            client.connection._in_flight[77] = client.connection.in_flight.get(77) or _in_flight()
            with pytest.raises(ForebayError) as refused:
                client.receive(77)
            assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
        assert client.call(ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss")).exists


def _in_flight():
    from forebay.protocol.api import APIS
    from forebay.protocol.connection import InFlight

    return InFlight(APIS[1004], 0)


def test_a_body_that_is_not_protobuf_fails_its_request_only(bench):
    with RawClient(bench.server.addresses.tablet_servers) as client:
        client.connection._in_flight[5] = _in_flight()
        client.send_bytes(struct.pack(">ihhi", 8 + 4, 1004, 0, 5) + b"\xff\xff\xff\xff")
        with pytest.raises(ForebayError) as refused:
            client.receive(5)
        assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
        assert client.call(ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss")).exists


def test_coordinator_requests_are_not_served_by_the_tablet_role(bench):
    with RawClient(bench.server.addresses.tablet_servers) as client, pytest.raises(ForebayError) as refused:
        client.call(ApiKey.CREATE_DATABASE, pb.CreateDatabaseRequest(database_name="x", ignore_if_exists=False))
    assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION


TABLE_DOCUMENT = {
    "version": 1,
    "schema": {
        "columns": [{"name": "id", "data_type": {"type": "INTEGER"}}, {"name": "s", "data_type": {"type": "STRING"}}]
    },
    "partition_key": [],
    "bucket_key": [],
    "bucket_count": 1,
    "properties": {},
    "custom_properties": {},
}
DEEP_TYPE = {"type": "INTEGER"}
for _ in range(200):
    DEEP_TYPE = {"type": "ARRAY", "element_type": DEEP_TYPE}


@pytest.mark.parametrize(
    ("places", "value", "match"),
    [
        (("schema", "columns", 0, "name"), 7, "'name' must be a string, got 7"),
        (("schema", "columns", 0, "name"), [None], "'name' must be a string"),
        (("schema", "columns", 0, "comment"), {}, "'comment' must be a string"),
        (("schema", "columns", 0, "id"), 1.5, "'id' must be an integer"),
        (
            ("schema", "columns", 0, "data_type"),
            {"type": "DECIMAL", "precision": 2.5},
            "'precision' must be an integer",
        ),
        (("schema", "columns", 0, "data_type"), DEEP_TYPE, "nested deeper than 100 levels"),
        (("schema", "primary_key"), "id", "'primary_key' must be a list of names"),
        (("schema", "primary_key"), [["id"]], "'primary_key' must be a list of names"),
        (("schema", "auto_increment_column"), [7], "'auto_increment_column' must be a list of names"),
        (("bucket_key",), "s", "'bucket_key' must be a list of names"),
        (("partition_key",), [None], "'partition_key' must be a list of names"),
        (("bucket_count",), True, "'bucket_count' must be an integer"),
        (("comment",), 1, "'comment' must be a string"),
    ],
)
def test_a_table_document_with_values_of_the_wrong_kind_is_refused_by_name(bench, places, value, match):
    document = copy.deepcopy(TABLE_DOCUMENT)
    at = document
    for place in places[:-1]:
        at = at[place]
    at[places[-1]] = value
    with pytest.raises(InvalidRequest, match=match):
        bench.create_from_json("strange", document)


def test_a_database_document_that_is_nested_without_end_is_refused(bench):
    request = pb.CreateDatabaseRequest(database_name="deep", ignore_if_exists=False, database_json=b"[" * 200_000)
    with pytest.raises(ForebayError, match="nested deeper than 100 levels"):
        bench.coordinator.call(ApiKey.CREATE_DATABASE, request)


def test_a_lake_snapshot_of_a_bucket_that_no_table_has_is_refused_and_costs_no_memory(bench, log_table):
    request = pb.PrepareLakeTableSnapshotRequest()
    table = request.bucket_offsets.add(table_id=log_table, table_path=bench.path("log"))
    table.bucket_offsets.add(bucket_id=2**31 - 1, log_end_offset=1)
    [answer] = bench.coordinator.call(ApiKey.PREPARE_LAKE_TABLE_SNAPSHOT, request).prepare_lake_table_resp
    assert "has no bucket 2147483647: its buckets are 0 to 0" in answer.error_message


# ---- batches --------------------------------------------------------------------------------------------------------


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0x40]) + data[position + 1 :]


@pytest.mark.parametrize("position", [16, 22, 26, 30, 44, 60, 200, -1])
def test_wrong_crc_in_a_log_batch_is_refused_and_changes_nothing(bench, log_table, position):
    end = bench.log_end(log_table)
    good = log_records([9])
    answer = bench.append(log_table, flipped(good, position % len(good)))
    # Byte 16 is the commit timestamp, which the server sets and the checksum does not cover.
    assert answer.error_code == (0 if position == 16 else ErrorCode.CORRUPT_RECORD_EXCEPTION)
    assert bench.log_end(log_table) == end + (position == 16)


@pytest.mark.parametrize("position", [0, 4, 5, 9, 24, HEADER_BYTES, HEADER_BYTES + 5, -1])
def test_wrong_bytes_in_a_kv_batch_are_refused_and_change_nothing(bench, kv_table, position):
    end = bench.log_end(kv_table)
    good = kv_records([{"id": 2, "name": "no"}])
    assert bench.put(kv_table, flipped(good, position % len(good))).error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION
    assert bench.log_end(kv_table) == end
    assert not bench.lookup(kv_table, [kv_key(2)]).values[0].HasField("values")


@pytest.mark.parametrize("records", [b"", b"x", bytes(47), bytes(200)])
def test_records_that_are_no_batch_are_refused(bench, log_table, kv_table, records):
    assert bench.append(log_table, records).error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION
    assert bench.put(kv_table, records).error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION


def test_a_batch_of_another_schema_than_it_names_is_refused(bench, log_table):
    other = bench.create("other_columns", {"x": types.double(), "y": types.bigint(), "z": types.string()})
    end = bench.log_end(other)
    assert bench.append(other, log_records([1, 2])).error_code == ErrorCode.INVALID_TABLE_EXCEPTION
    assert bench.append(log_table, log_records([1], schema_id=5)).error_code == ErrorCode.SCHEMA_NOT_EXIST
    assert bench.log_end(other) == end


@pytest.mark.parametrize("log_format", ["INDEXED", "COMPACTED"])
def test_rows_that_are_cut_off_are_refused_by_a_table_that_has_its_log_in_rows(bench, log_format):
    columns = {"a": types.int_(), "s": types.string()}
    table = bench.create(f"rows_{log_format.lower()}", columns, properties={"table.log.format": log_format})
    codec = row_codec(Schema.of([Column(name, t) for name, t in columns.items()]).columns, RowFormat(log_format))
    rows = codec.encode(pa.record_batch([pa.array([1], pa.int32()), pa.array(["text"])], names=["a", "s"]))
    whole = rows[0].as_py()
    assert not bench.append(table, bytes(build_row_batch(rows, schema_id=1))).error_code
    cut = build_row_batch(pa.array([whole[:-2]], pa.binary()), schema_id=1)
    answer = bench.append(table, bytes(cut))
    assert answer.error_code == ErrorCode.INVALID_TABLE_EXCEPTION
    assert f"whose log format is {log_format}" in answer.error_message
    assert bench.log_end(table) == 1


def test_a_batch_with_change_types_is_refused_by_a_log_table(bench, log_table):
    answer = bench.append(log_table, log_records([1], change_types=b"\x01"))
    assert answer.error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION


def test_unknown_tables_and_buckets_get_their_error_per_bucket(bench, log_table, kv_table):
    unknown = ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
    assert bench.append(424242, log_records([1])).error_code == unknown
    assert bench.append(log_table, log_records([1]), bucket=5).error_code == unknown
    assert bench.append(log_table, log_records([1]), bucket=-1).error_code == unknown
    assert bench.put(kv_table, kv_records([{"id": 1}]), bucket=9).error_code == unknown
    assert bench.lookup(kv_table, [b"x"], bucket=9).error_code == unknown
    assert bench.fetch(log_table, 0, bucket=3).error_code == unknown


def test_the_wrong_kind_of_table_gets_its_error(bench, log_table, kv_table):
    assert bench.put(log_table, kv_records([{"id": 1}])).error_code == ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION
    assert bench.append(kv_table, log_records([1])).error_code == ErrorCode.INVALID_TABLE_EXCEPTION
    assert bench.lookup(log_table, [b"x"]).error_code == ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_impossible_acks_fail_the_whole_request(bench, log_table, acks):
    with pytest.raises(ForebayError) as refused:
        bench.append(log_table, log_records([1]), acks=acks)
    assert refused.value.code == ErrorCode.INVALID_REQUIRED_ACKS


def test_too_large_requests_and_records_are_refused(tmp_path):
    with running(tmp_path / "data", netty_server_max__request__size="200kb") as own:
        created = own.create("t", LOG_COLUMNS)
        own.append(created, log_records([1]))
        with RawClient(own.server.addresses.tablet_servers) as client:
            client.send_bytes(struct.pack(">i", 300 << 10) + bytes(4096))
            assert is_closed_by_peer(client.socket)
        assert own.log_end(created) == 1


def test_hostile_kv_requests_in_bulk_leave_the_state_as_it_was(bench, kv_table):
    rng = random.Random(3)
    good = kv_records([{"id": i, "name": f"x{i}"} for i in range(5)])
    end = bench.log_end(kv_table)
    for _ in range(200):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        answer = bench.put(kv_table, bytes(data[: rng.randrange(len(data) + 1)]) if rng.random() < 0.3 else bytes(data))
        assert answer.error_code in (ErrorCode.CORRUPT_RECORD_EXCEPTION, ErrorCode.SCHEMA_NOT_EXIST)
    assert bench.log_end(kv_table) == end


# ---- security -------------------------------------------------------------------------------------------------------


def test_sasl_leaves_no_port_open_to_clients_without_a_password_unless_asked_to(tmp_path):
    settings = {"security.sasl.plain.credentials": "admin:secret"}
    request = pb.DatabaseExistsRequest(database_name="fluss")
    with EmbeddedServer(tmp_path / "data", sasl=True, settings=settings) as server:
        addresses = server.addresses
        assert addresses.bootstrap_servers == addresses.sasl_bootstrap_servers
        assert {bound.listener.protocol for bound in server.server._bound} == {SecurityProtocol.SASL}
        for where in (addresses.bootstrap_servers, addresses.tablet_servers):
            with RawClient(where) as client, pytest.raises(ForebayError) as refused:
                client.call(ApiKey.DATABASE_EXISTS, request)
            assert refused.value.code == ErrorCode.AUTHENTICATE_EXCEPTION
            with RawClient(where, PlainClient("admin", "secret")) as client:
                assert client.call(ApiKey.DATABASE_EXISTS, request).exists
    with EmbeddedServer(tmp_path / "data", sasl=True, plain=True, settings=settings) as server:
        assert server.addresses.bootstrap_servers != server.addresses.sasl_bootstrap_servers
        with RawClient(server.bootstrap_servers) as client:
            assert client.call(ApiKey.DATABASE_EXISTS, request).exists
    with pytest.raises(InvalidRequest, match="--plain"):
        EmbeddedServer(tmp_path / "data", plain=True)


def test_nothing_but_versions_is_served_before_authentication(tmp_path):
    settings = {"security.sasl.plain.credentials": "admin:secret,alice:secret2"}
    with EmbeddedServer(tmp_path / "data", sasl=True, plain=True, settings=settings) as server:
        where = server.addresses.sasl_bootstrap_servers
        assert where
        request = pb.DatabaseExistsRequest(database_name="fluss")
        with RawClient(where, PlainClient("admin", "secret")) as client:
            assert client.call(ApiKey.DATABASE_EXISTS, request).exists
            nodes = client.call(ApiKey.GET_METADATA, pb.MetadataRequest())
            assert f"{nodes.coordinator_server.host}:{nodes.coordinator_server.port}" == where
        with RawClient(where) as client, pytest.raises(ForebayError) as refused:
            client.call(ApiKey.DATABASE_EXISTS, request)
        assert refused.value.code == ErrorCode.AUTHENTICATE_EXCEPTION
        for user, password in (("admin", "wrong"), ("nobody", "secret")):
            with pytest.raises(ForebayError) as refused:
                RawClient(where, PlainClient(user, password))
            assert refused.value.code == ErrorCode.AUTHENTICATE_EXCEPTION
        with RawClient(server.bootstrap_servers) as plain:
            assert plain.call(ApiKey.DATABASE_EXISTS, request).exists


def test_a_text_that_is_no_utf8_is_refused_and_changes_nothing(bench, kv_table):
    end = bench.log_end(kv_table)
    records = bytearray(kv_records([{"id": 9, "name": "damaged"}]))
    records[records.index(b"damaged")] = 0xFF
    struct.pack_into("<I", records, 5, crc32c(records, 9))
    answer = bench.put(kv_table, bytes(records))
    assert answer.error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION
    assert "UTF8" in answer.error_message
    assert bench.log_end(kv_table) == end
    assert not bench.lookup(kv_table, [kv_key(9)]).values[0].HasField("values")


def test_offsets_of_a_producer_may_be_kept_for_ever(bench):
    request = pb.RegisterProducerOffsetsRequest(producer_id="for ever", ttl_ms=2**63 - 1)
    assert bench.coordinator.call(ApiKey.REGISTER_PRODUCER_OFFSETS, request).result == 0
    kept = bench.coordinator.call(ApiKey.GET_PRODUCER_OFFSETS, pb.GetProducerOffsetsRequest(producer_id="for ever"))
    assert kept.expiration_time == 2**63 - 1


def test_offsets_of_producers_are_bounded_in_number_and_in_bytes(bench, monkeypatch):
    def register(producer: str, buckets: int = 1, ttl_ms: int = 60_000) -> int:
        request = pb.RegisterProducerOffsetsRequest(producer_id=producer, ttl_ms=ttl_ms)
        table = request.table_offsets.add(table_id=1)
        for bucket in range(buckets):
            table.bucket_offsets.add(bucket_id=bucket, log_end_offset=1 << 40)
        return bench.coordinator.call(ApiKey.REGISTER_PRODUCER_OFFSETS, request).result

    def delete(*producers: str) -> None:
        for producer in producers:
            request = pb.DeleteProducerOffsetsRequest(producer_id=producer)
            bench.coordinator.call(ApiKey.DELETE_PRODUCER_OFFSETS, request)

    delete("for ever")
    monkeypatch.setattr(metadata_store, "PRODUCERS_MAX", 3)
    monkeypatch.setattr(metadata_store, "PRODUCER_BYTES_MAX", 2000)
    assert [register(f"p{number}") for number in range(3)] == [0, 0, 0]
    with pytest.raises(ForebayError, match=r"'p3'.* not kept: there are those of 3 producers.*DeleteProducerOffsets"):
        register("p3")
    assert register("p0") == 1  # what is there already is told, as ever
    delete("p0")
    with pytest.raises(ForebayError, match="at most 3 producers and 2000 bytes"):
        register("p3", buckets=200)
    assert register("p3", ttl_ms=1) == 0
    store = bench.server.server.context.store
    assert store.expire_producer_offsets(bench.server.server.context.clock.now_ms() + 1000) == 1
    assert register("p4") == 0
    delete("p1", "p2", "p4")
