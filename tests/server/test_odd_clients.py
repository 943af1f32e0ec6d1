"""Odd but valid clients: they do not read responses, vanish, come in crowds, or request everything."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack

import pyarrow as pa
import pytest

import forebay
from forebay.base.ambient import ManualClock
from forebay.base.errors import ErrorCode, ForebayError
from forebay.codec.log.log_batch import build_arrow_batch
from forebay.server.server import Injected
from forebay.testing.server import ServerProcess
from tests.kv.tables import FakeTable
from tests.patience import PATIENCE, until
from tests.server.raw_client import ApiKey, RawClient, pb
from tests.server.running import KV_COLUMNS, LOG_COLUMNS, LOG_SCHEMA, kv_key, kv_records, log_records, running

MEGABYTE = 1 << 20
KEYED = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


def big_log(bench, name: str, batches: int) -> int:
    """A log of batches of a megabyte each."""
    created = bench.create(name, LOG_COLUMNS)
    for number in range(batches):
        text = os.urandom(MEGABYTE // 2).hex()
        batch = pa.RecordBatch.from_pydict({"a": [number], "s": [text]}, schema=LOG_SCHEMA)
        bench.append(created, bytes(build_arrow_batch(batch, schema_id=1)))
    return created


def unsent_bytes(bench) -> int:
    return sum(c.unsent_bytes for c in list(bench.server.server._connections))


def test_a_client_that_takes_no_answers_costs_memory_for_two_and_blocks_no_other(bench):
    table = big_log(bench, "hoarded", 8)
    request = bench.fetch_request(table, 0, bytes_max=8 * MEGABYTE)
    with RawClient(bench.server.addresses.tablet_servers, timeout=PATIENCE) as greedy:
        ids = [greedy.send(ApiKey.FETCH_LOG, request) for _ in range(60)]
        for _ in range(200):
            assert bench.log_end(table) == 8
            assert unsent_bytes(bench) < 3 * 8 * MEGABYTE
        for request_id in ids:  # all are answered in the end, and rightly
            answer = greedy.receive(request_id).tables_resp[0].buckets_resp[0]
            assert len(answer.records) > 7 * MEGABYTE


@pytest.mark.parametrize("kind", ["lookup", "limit scan"])
def test_answers_from_the_key_value_state_wait_for_their_client_too(bench, kind):
    table = bench.create("hoarded_" + kind.replace(" ", "_"), KV_COLUMNS, ["id"])
    for i in range(8):
        bench.put(table, kv_records([{"id": i, "name": "x" * MEGABYTE}]))
    if kind == "lookup":
        request = pb.LookupRequest(table_id=table)
        request.buckets_req.add(bucket_id=0, keys=[kv_key(i) for i in range(8)])
        key = ApiKey.LOOKUP
    else:
        request, key = pb.LimitScanRequest(table_id=table, bucket_id=0, limit=8), ApiKey.LIMIT_SCAN
    with RawClient(bench.server.addresses.tablet_servers, timeout=PATIENCE) as greedy:
        ids = [greedy.send(key, request) for _ in range(40)]
        for _ in range(100):
            assert bench.log_end(table) == 8
            assert unsent_bytes(bench) < 3 * 9 * MEGABYTE
        for request_id in ids:
            assert greedy.receive(request_id).ByteSize() > 8 * MEGABYTE


def test_a_peer_that_takes_nothing_for_long_is_given_up(tmp_path):
    clock = ManualClock()
    with running(tmp_path / "data", Injected(clock=clock), netty_connection_max__idle__time="20 ms") as bench:
        table = big_log(bench, "log", 8)
        request = bench.fetch_request(table, 0, bytes_max=8 * MEGABYTE)
        address = bench.server.addresses.tablet_servers
        stuck = RawClient(address)
        for _ in range(5):
            stuck.send(ApiKey.FETCH_LOG, request)

        def is_given_up() -> bool:
            clock.advance(1)
            return not bench.server.server._connections

        until(is_given_up, "the peer is given up")
        stuck.close()
        with RawClient(address) as other:
            answer = other.call(ApiKey.FETCH_LOG, request)
            assert len(answer.tables_resp[0].buckets_resp[0].records) > 7 * MEGABYTE


def test_a_server_stops_although_a_client_does_not_take_its_answers(tmp_path):
    with running(tmp_path / "data") as bench:
        request = bench.fetch_request(big_log(bench, "log", 8), 0, bytes_max=8 * MEGABYTE)
        stuck = RawClient(bench.server.addresses.tablet_servers)
        for _ in range(20):
            stuck.send(ApiKey.FETCH_LOG, request)
        assert bench.log_end(1) == 8
    stuck.close()


def test_clients_that_vanish_in_the_middle_of_anything_leave_nothing_behind(bench):
    table = big_log(bench, "vanishing", 3)
    connections = bench.server.server._connections
    before = len(connections)
    for cut in range(60):
        client = RawClient(bench.server.addresses.tablet_servers)
        message = bench.fetch_request(table, cut % 5, wait_ms=600_000, bytes_max=4 * MEGABYTE)
        sent = client.connection.send_request(ApiKey.FETCH_LOG, message, (), None)
        whole = b"".join(map(bytes, sent.buffers))
        client.send_bytes(whole[: len(whole) * (cut % 4 + 1) // 4])
        client.close()
    waiters = bench.server.server.context.notifier._waiters
    until(lambda: len(connections) == before and not waiters, "all that vanished clients left is gone")
    assert bench.log_end(table) == 3


def test_hundreds_of_connections_are_served_at_once(bench):
    table = bench.create("crowded", LOG_COLUMNS)
    with ExitStack() as open_ones:
        clients = [
            open_ones.enter_context(RawClient(bench.server.addresses.tablet_servers, timeout=PATIENCE))
            for _ in range(300)
        ]
        waiting = [c.send(ApiKey.FETCH_LOG, bench.fetch_request(table, 0, wait_ms=600_000)) for c in clients]
        bench.append(table, log_records([7]))
        for client, request_id in zip(clients, waiting):
            assert client.receive(request_id).tables_resp[0].buckets_resp[0].high_watermark == 1


def test_many_large_requests_in_flight_are_all_written_in_order(bench):
    table = bench.create("pumped", KV_COLUMNS, ["id"])
    with RawClient(bench.server.addresses.tablet_servers, timeout=PATIENCE) as pump:
        ids = []
        for i in range(40):
            request = pb.PutKvRequest(acks=-1, table_id=table, timeout_ms=60_000)
            request.buckets_req.add(bucket_id=0, records=kv_records([{"id": i % 4, "name": f"{i}" * (2 * MEGABYTE)}]))
            ids.append(pump.send(ApiKey.PUT_KV, request))
        ends = [pump.receive(request_id).buckets_resp[0].log_end_offset for request_id in ids]
    assert ends == [1, 2, 3, 4, *range(6, 77, 2)]


def test_writes_of_one_connection_keep_their_order_while_their_bucket_opens(tmp_path):
    with running(tmp_path / "data") as bench:
        tables = [bench.create(f"t{number}", KV_COLUMNS, ["id"], buckets=2) for number in range(10)]
        for table in tables:
            ids = []
            for sequence in range(30):
                request = pb.PutKvRequest(acks=1, table_id=table, timeout_ms=60_000)
                for bucket in (0, 1) if sequence % 3 == 0 else (0,):
                    request.buckets_req.add(bucket_id=bucket, records=kv_records([{"id": 1, "name": f"{sequence}"}]))
                ids.append(bench.tablet.send(ApiKey.PUT_KV, request))
            ends = [bench.tablet.receive(request_id).buckets_resp[0].log_end_offset for request_id in ids]
            assert ends == [1, *range(3, 60, 2)]


def test_rows_of_ten_megabytes_go_every_way(bench):
    text = "x" * (10 * MEGABYTE)
    with forebay.connect(bench.server.bootstrap_servers) as connection:
        connection.create_table("fluss.huge", KEYED, primary_key=["k"], buckets=1)
        table = connection.table("fluss.huge")
        for k in range(3):
            table.upsert([{"k": k, "v": f"{k}{text}"}])
        table.upsert([{"k": 0, "v": f"new{text}"}])
        assert table.lookup([{"k": 0}])["v"].to_pylist() == [f"new{text}"]
        assert sorted(len(v) for v in table.scan().to_arrow()["v"].to_pylist()) == [len(text) + n for n in (1, 1, 3)]
        changes = table.changes("earliest", "latest").to_arrow()
        assert changes["_change_type"].to_pylist() == [*["insert"] * 3, "update_before", "update_after"]


def test_tables_with_hundreds_of_buckets_and_partitions_survive_a_restart(tmp_path):
    schema = pa.schema([("p", pa.int32()), ("n", pa.int64())])
    with running(tmp_path / "data") as bench, forebay.connect(bench.server.bootstrap_servers) as connection:
        connection.create_table("fluss.wide", pa.schema([("n", pa.int64())]), buckets=200, bucket_keys=["n"])
        connection.table("fluss.wide").append(pa.table({"n": range(2000)}))
        connection.create_table("fluss.many", schema, partition_keys=["p"], buckets=1)
        connection.table("fluss.many").append(pa.table({"p": pa.array(range(100), pa.int32()), "n": range(100)}))
        for number in range(40):
            bench.create(f"t{number}", LOG_COLUMNS)
    with running(tmp_path / "data") as bench, forebay.connect(bench.server.bootstrap_servers) as connection:
        found = connection.table("fluss.wide").scan()
        assert sorted(found.to_arrow()["n"].to_pylist()) == list(range(2000))
        assert len(connection.table("fluss.many").partitions()) == 100
        assert sorted(connection.table("fluss.many").scan().to_arrow()["n"].to_pylist()) == list(range(100))
        assert len(connection.list_tables("fluss")) == 42
        connection.drop_table("fluss.many")
        connection.drop_table("fluss.wide")
    left = {path.name.rpartition("-")[0] for path in (tmp_path / "data" / "fluss").iterdir()}
    assert not left & {"many", "wide"}


def test_more_partitions_than_allowed_are_refused_whichever_client_creates_them(tmp_path):
    schema = pa.schema([("p", pa.string()), ("n", pa.int64())])
    with (
        running(tmp_path / "data", max_partition_num="3") as bench,
        forebay.connect(bench.server.bootstrap_servers, retry_timeout="1 s") as connection,
    ):
        connection.create_table("fluss.t", schema, partition_keys=["p"], buckets=1)
        connection.table("fluss.t").append([{"p": p, "n": 1} for p in "abc"])
        with pytest.raises(ForebayError) as refused:
            connection.table("fluss.t").append([{"p": "d", "n": 1}])
        assert refused.value.code == ErrorCode.PARTITION_MAX_NUM_EXCEPTION
        assert len(connection.table("fluss.t").partitions()) == 3


def test_a_partition_that_is_there_or_not_is_an_error_unless_that_is_allowed(tmp_path):
    schema = pa.schema([("p", pa.string()), ("n", pa.int64())])
    with (
        running(tmp_path / "data") as bench,
        forebay.connect(bench.server.bootstrap_servers, retry_timeout="1 s") as connection,
    ):
        connection.create_table("fluss.t", schema, partition_keys=["p"], buckets=1)
        for ignore in (False, True):
            connection.table("fluss.t").create_partition({"p": "a"}, ignore_if_exists=ignore)
        with pytest.raises(ForebayError, match="has a partition 'a' already") as there:
            connection.table("fluss.t").create_partition({"p": "a"}, ignore_if_exists=False)
        assert there.value.code == ErrorCode.PARTITION_ALREADY_EXISTS
        assert len(connection.table("fluss.t").partitions()) == 1
        for ignore in (False, True):
            connection.table("fluss.t").drop_partition({"p": "a"}, ignore_if_not_exists=ignore)
        with pytest.raises(ForebayError) as missing:
            connection.table("fluss.t").drop_partition({"p": "a"}, ignore_if_not_exists=False)
        assert missing.value.code == ErrorCode.PARTITION_NOT_EXISTS
        assert connection.table("fluss.t").partitions() == []


def test_partitions_may_have_as_many_buckets_together_as_a_table_may(tmp_path):
    schema = pa.schema([("p", pa.string()), ("n", pa.int64())])
    with (
        running(tmp_path / "data", max_bucket_num="4") as bench,
        forebay.connect(bench.server.bootstrap_servers, retry_timeout="1 s") as connection,
    ):
        connection.create_table("fluss.t", schema, partition_keys=["p"], buckets=2)
        for value in "ab":
            connection.table("fluss.t").create_partition({"p": value})
        with pytest.raises(ForebayError, match="3 partitions of 2 buckets are more buckets than the 4") as refused:
            connection.table("fluss.t").create_partition({"p": "c"})
        assert refused.value.code == ErrorCode.BUCKET_MAX_NUM_EXCEPTION
        assert sorted(partition.name for partition in connection.table("fluss.t").partitions()) == ["a", "b"]


def test_clients_that_fight_over_one_key_leave_an_unbroken_chain_of_changes(bench):
    with forebay.connect(bench.server.bootstrap_servers) as first:
        first.create_table("fluss.fought", KEYED, primary_key=["k"], buckets=1)

        def fight(number: int) -> None:
            with forebay.connect(bench.server.bootstrap_servers) as own:
                for i in range(30):
                    table = own.table("fluss.fought")
                    if i % 5 == 4:
                        table.delete([{"k": 1}])
                    else:
                        table.upsert([{"k": 1, "v": f"{number}.{i}"}])

        fighters = [threading.Thread(target=fight, args=(number,)) for number in range(6)]
        for fighter in fighters:
            fighter.start()
        for fighter in fighters:
            fighter.join()
        state = None
        for change in first.table("fluss.fought").changes("earliest", "latest").to_arrow().to_pylist():
            match change["_change_type"]:
                case "insert":
                    assert state is None
                    state = change["v"]
                case "update_before" | "delete":
                    assert state == change["v"]
                    state = state if change["_change_type"] == "update_before" else None
                case "update_after":
                    state = change["v"]
        found = first.table("fluss.fought").lookup([{"k": 1}])["v"].to_pylist()
        assert found == [state]


@pytest.mark.slow
def test_a_server_that_restarts_between_any_two_calls_is_not_noticed(tmp_path):
    server = ServerProcess(tmp_path / "data").start()
    try:
        with forebay.connect(server.bootstrap_servers) as connection:
            connection.create_table("fluss.t", KEYED, primary_key=["k"], buckets=2)
            table = connection.table("fluss.t")
            for round_ in range(2):
                steps = [
                    lambda r=round_: table.upsert([{"k": r, "v": "first"}, {"k": 100, "v": f"{r}"}]),
                    lambda r=round_: table.upsert([{"k": r, "v": "second"}]),
                    lambda r=round_: table.lookup([{"k": r}])["v"].to_pylist() == ["second"],
                    lambda r=round_: len(table.scan().to_arrow()) == r + 2,
                ]
                for step in steps:
                    assert step() is not False
                    _ = server.stop() if round_ % 2 else server.kill()
                    server.start(keep_ports=True)
            changes = table.changes("earliest", "latest").to_arrow()
            assert changes.num_rows == 2 + 2 * 2 + 1 + 2 * 1
    finally:
        server.stop()


def test_a_table_dropped_under_its_readers_and_writers_tells_all_of_them(bench):
    table = bench.create("doomed", KV_COLUMNS, ["id"])
    bench.put(table, kv_records([{"id": 1}]))
    address = bench.server.addresses.tablet_servers
    with RawClient(address) as reader, RawClient(address) as writer:
        waiting = reader.send(ApiKey.FETCH_LOG, bench.fetch_request(table, 1, wait_ms=30_000))
        bench.coordinator.call(
            ApiKey.DROP_TABLE, pb.DropTableRequest(table_path=bench.path("doomed"), ignore_if_not_exists=False)
        )
        put = pb.PutKvRequest(acks=-1, table_id=table, timeout_ms=1000)
        put.buckets_req.add(bucket_id=0, records=kv_records([{"id": 2}]))
        gone = ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        assert writer.call(ApiKey.PUT_KV, put).buckets_resp[0].error_code == gone
        assert bench.lookup(table, [FakeTable().key(1)]).error_code == gone
        again = bench.create("doomed", KV_COLUMNS, ["id"])
        assert again != table
        assert not bench.lookup(again, [kv_key(1)]).values[0].HasField("values")
        del waiting  # a long poll on what is gone ends with its time, or when its client leaves
