"""Short requests: order, errors, lateness and limits, where the event loop writes itself and where write queues do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from forebay.base.errors import ErrorCode
from forebay.codec.log.header import iter_headers
from forebay.server.flow import write_queue
from forebay.server.storage.replica import BucketReplica
from forebay.server.storage.write_command import WriteMode
from forebay.server.wire import short_requests
from tests.patience import until
from tests.server.raw_client import ApiKey, RawClient, is_closed_by_peer, pb
from tests.server.running import KV_COLUMNS, LOG_COLUMNS, Bench, kv_key, kv_records, log_records, running
from tests.server.wire.replicas import open_bytes, produce, replica_of

WRITER = 5


@pytest.fixture
def bench(tmp_path: Path, way: str) -> Iterator[Bench]:
    with running(tmp_path, log_replica_high__watermark_checkpoint__interval="1 h") as bench:  # upkeep writes as well
        yield bench


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """The size of each group of short writes, and whether the loop has written it."""
    found: list[tuple[int, bool]] = []
    submit = BucketReplica.submit

    def noted(self: BucketReplica, command: Any, receiver: Any, mode: WriteMode = WriteMode.QUEUED) -> Any:
        results = submit(self, command, receiver, mode)
        if mode is not WriteMode.QUEUED:  # else it is no short request
            found.append((len(command.requests), results is not None))
        return results

    monkeypatch.setattr(BucketReplica, "submit", noted)
    return found


def numbered(sequence: int, rows: int = 1) -> bytes:
    return log_records(range(rows), writer_id=WRITER, batch_sequence=sequence)


def wait_until_all_is_released(bench: Bench, table_id: int) -> None:
    until(lambda: not (open_bytes(bench) or replica_of(bench, table_id).uses), "memory and bucket are released")


def test_writes_of_one_connection_keep_their_order_whatever_their_length(bench: Bench) -> None:
    table_id = bench.create("log", LOG_COLUMNS)
    bench.append(table_id, numbered(0))
    rows = [1, 1, 10_000, 1, 1, 1, 10_000, 1, 30_000, 1]
    sent = [
        bench.tablet.send(ApiKey.PRODUCE_LOG, produce(table_id, numbered(sequence, count)))
        for sequence, count in enumerate(rows, 1)
    ]
    answers = [bench.tablet.receive(request_id).buckets_resp[0] for request_id in sent]
    assert [answer.error_code for answer in answers] == [0] * len(rows)
    assert [answer.base_offset for answer in answers] == list(accumulate(rows[:-1], initial=1))
    stored = [header for _, header in iter_headers(bench.fetch(table_id, 0, bytes_max=16 << 20).records)]
    assert [(batch.batch_sequence, batch.record_count) for batch in stored] == list(enumerate([1, *rows]))


def test_a_write_that_fails_says_why_and_others_of_its_group_are_written(bench: Bench) -> None:
    table_id = bench.create("log", LOG_COLUMNS)
    bench.append(table_id, numbered(0))
    damaged = bytearray(numbered(2))
    damaged[-1] ^= 1
    batches = [numbered(1), numbered(7), bytes(damaged), numbered(2), numbered(1)]
    sent = [bench.tablet.send(ApiKey.PRODUCE_LOG, produce(table_id, batch)) for batch in batches]
    answers = [bench.tablet.receive(request_id).buckets_resp[0] for request_id in sent]
    assert [answer.error_code for answer in answers] == [
        0, ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION, ErrorCode.CORRUPT_RECORD_EXCEPTION, 0, 0,
    ]  # fmt: skip
    assert "batch sequence 7 of writer 5 is out of order" in answers[1].error_message
    assert [answers[place].base_offset for place in (0, 3, 4)] == [1, 2, 1]
    wait_until_all_is_released(bench, table_id)


def test_rows_are_put_and_looked_up(bench: Bench, way: str, groups: list[tuple[int, bool]]) -> None:
    table_id = bench.create("kv", KV_COLUMNS, ["id"])
    bench.put(table_id, kv_records([{"id": 0, "name": "zero"}]))
    for number in range(1, 5):
        answer = bench.put(table_id, kv_records([{"id": number, "name": f"n{number}"}]))
        assert (answer.error_code, answer.log_end_offset) == (0, number + 1)
    assert [size for size, _ in groups] == [1] * 4
    assert way == "loop" or not any(by_loop for _, by_loop in groups)
    values = bench.lookup(table_id, [kv_key(number) for number in (3, 9, 1)]).values
    assert [value.HasField("values") for value in values] == [True, False, True]
    assert b"n3" in values[0].values
    many = [kv_key(number % 7) for number in range(200)]
    assert [v.HasField("values") for v in bench.lookup(table_id, many).values] == [n % 7 < 5 for n in range(200)]


def test_a_large_value_is_answered_by_the_handler(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    table_id = bench.create("kv", KV_COLUMNS, ["id"])
    rows = [{"id": 0, "name": "x" * 5000}, {"id": 1, "name": "y" * 100_000}, {"id": 2, "name": "z"}]
    bench.put(table_id, kv_records(rows))
    answered: list[int] = []
    monkeypatch.setattr(short_requests, "encode_values", lambda *_: answered.append(1))
    for keys in ([1], [0] * 20):
        values = bench.lookup(table_id, [kv_key(key) for key in keys]).values
        assert len(values) == len(keys)
        assert all(len(value.values) > 4000 for value in values)
    values = bench.lookup(table_id, [kv_key(key) for key in [2] * 20 + [1]]).values
    assert [len(value.values) > 4000 for value in values] == [False] * 20 + [True]
    assert not answered


def test_a_write_that_takes_too_long_is_answered_and_its_memory_kept_until_it_is_written(bench: Bench) -> None:
    table_id = bench.create("log", LOG_COLUMNS)
    bench.append(table_id, numbered(0))
    replica = replica_of(bench, table_id)
    with replica._writing:
        request_id = bench.tablet.send(ApiKey.PRODUCE_LOG, produce(table_id, numbered(1), timeout_ms=50))
        (answer,) = bench.tablet.receive(request_id).buckets_resp
        assert answer.error_code == ErrorCode.REQUEST_TIME_OUT
        assert "not acknowledged within 50 ms; it may still be written" in answer.error_message
        assert open_bytes(bench) > 0
        assert replica.uses > 0
    again = bench.append(table_id, numbered(1))
    assert (again.error_code, again.base_offset) == (0, 1)
    wait_until_all_is_released(bench, table_id)


def test_the_loop_writes_for_an_idle_bucket(bench: Bench, way: str, groups: list[tuple[int, bool]]) -> None:
    table_id = bench.create("log", LOG_COLUMNS)
    bench.append(table_id, numbered(0))
    replica = replica_of(bench, table_id)
    for sequence in range(1, 4):
        until(lambda: replica.is_idle, "the bucket is idle")
        bench.append(table_id, numbered(sequence))
    assert groups == [(1, way == "loop")] * 3


def test_the_loop_does_not_wait_for_a_table_that_is_looked_at_as_a_whole(bench: Bench) -> None:
    table_id = bench.create("kv", KV_COLUMNS, ["id"])
    bench.put(table_id, kv_records([{"id": 0, "name": "zero"}]))
    with replica_of(bench, table_id).table.write_gate.closed():
        request = pb.PutKvRequest(acks=-1, table_id=table_id, timeout_ms=10_000)
        request.buckets_req.add(bucket_id=0, records=kv_records([{"id": 1, "name": "one"}]))
        request_id = bench.tablet.send(ApiKey.PUT_KV, request)
        assert bench.lookup(table_id, [kv_key(1)]).values[0].HasField("values") is False
    assert not bench.tablet.receive(request_id).buckets_resp[0].error_code
    assert bench.lookup(table_id, [kv_key(1)]).values[0].HasField("values")


def test_more_short_writes_than_a_connection_may_have_open_are_all_answered(tmp_path: Path, way: str) -> None:
    with running(tmp_path, netty_server_max__queued__requests="3") as bench:
        table_id = bench.create("log", LOG_COLUMNS)
        bench.append(table_id, numbered(0))
        sent = [bench.tablet.send(ApiKey.PRODUCE_LOG, produce(table_id, numbered(1 + n))) for n in range(100)]
        offsets = [bench.tablet.receive(request_id).buckets_resp[0].base_offset for request_id in sent]
        assert offsets == list(range(1, 101))


@pytest.mark.parametrize("open_max", [1, 3, 5])
def test_a_connection_that_has_all_it_may_have_open_is_read_from_again(tmp_path: Path, way: str, open_max: int) -> None:
    """Exactly as many as it may have open, and more only once these have filled it."""
    with running(tmp_path, netty_server_max__queued__requests=str(open_max)) as bench:
        table_id = bench.create("log", LOG_COLUMNS)
        bench.append(table_id, numbered(0))
        for turn in range(20):
            first = 1 + turn * open_max
            requests = [produce(table_id, numbered(first + n)) for n in range(open_max)]
            connection = bench.tablet.connection
            sent = [connection.send_request(ApiKey.PRODUCE_LOG, request, (), None) for request in requests]
            bench.tablet.send_bytes(b"".join(bytes(buffer) for each in sent for buffer in each.buffers))
            offsets = [bench.tablet.receive(each.request_id).buckets_resp[0].base_offset for each in sent]
            assert offsets == list(range(first, first + open_max))


def test_a_client_that_leaves_has_its_writes_written(bench: Bench) -> None:
    table_id = bench.create("log", LOG_COLUMNS)
    bench.append(table_id, numbered(0))
    replica = replica_of(bench, table_id)
    with replica._writing:
        bench.tablet.send(ApiKey.PRODUCE_LOG, produce(table_id, numbered(1)))
        until(lambda: replica.uses, "the write is under way")
        bench.tablet.close()
    wait_until_all_is_released(bench, table_id)
    assert replica.log.log_end_offset == 2


def test_an_id_that_is_used_again_before_its_answer_ends_the_connection(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    table_id, quiet_id = bench.create("log", LOG_COLUMNS), bench.create("quiet", LOG_COLUMNS)
    bench.append(table_id, numbered(0))
    fetch = bench.fetch_request(quiet_id, 0, wait_ms=1000)
    info = pb.GetTableInfoRequest(table_path=bench.path("log"))  # no short one, so the protocol sees what follows
    refused = produce(table_id, numbered(7))
    with RawClient(bench.server.addresses.tablet_servers) as client:
        frames = [
            bytearray(b"".join(client.connection.send_request(key, message).buffers))
            for key, message in (
                (ApiKey.GET_TABLE_INFO, info),
                (ApiKey.PRODUCE_LOG, refused),
                (ApiKey.FETCH_LOG, fetch),
            )
        ]
        frames[2][8:12] = frames[1][8:12]
        client.send_bytes(b"".join(frames))
        is_closed_by_peer(client.socket)
    wait_until_all_is_released(bench, table_id)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "again before its answer" in warning
    assert replica_of(bench, table_id).log.log_end_offset == 1


def test_a_slow_sync_sends_groups_to_lanes_until_many_were_quick() -> None:
    scheduler = write_queue.WriteScheduler(executor=None)  # type: ignore[arg-type]
    quick, slow = write_queue.QUICK_SYNC_SECONDS, write_queue.QUICK_SYNC_SECONDS * 2
    for _ in range(write_queue.QUICK_SYNCS_MIN):
        assert not scheduler.may_write_now()
        scheduler.synced(quick)
    assert scheduler.may_write_now()
    scheduler.synced(slow)
    assert not scheduler.may_write_now()
    for _ in range(10 * write_queue.QUICK_SYNCS_MIN):
        scheduler.synced(quick)
    scheduler.synced(slow)
    assert scheduler.may_write_now(), "once in a while another process has the core"
    scheduler.synced(write_queue.LONG_SECONDS * 2)
    assert not scheduler.may_write_now()
    scheduler.synced(quick)
    assert not scheduler.may_write_now()


def test_a_client_that_is_alone_waits_for_slower_syncs_in_the_loop() -> None:
    scheduler = write_queue.WriteScheduler(executor=None)  # type: ignore[arg-type]
    for _ in range(write_queue.QUICK_SYNCS_MIN):
        assert not scheduler.may_write_now(is_alone=True)
        scheduler.synced(write_queue.LONE_SYNC_SECONDS)
    assert scheduler.may_write_now(is_alone=True)
    assert not scheduler.may_write_now()
    scheduler.synced(write_queue.LONG_SECONDS * 2)
    assert not scheduler.may_write_now(is_alone=True)


def test_a_group_that_takes_long_in_the_loop_is_the_last_one_there(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = write_queue.WriteScheduler(executor=None)  # type: ignore[arg-type]
    monkeypatch.setattr(write_queue, "LONG_SECONDS", 0.01)
    for _ in range(write_queue.QUICK_SYNCS_MIN):
        scheduler.synced(0.0)
    assert scheduler.write_now(lambda: 7) == 7
    assert scheduler.may_write_now()
    scheduler.write_now(lambda: threading.Event().wait(0.02))
    assert not scheduler.may_write_now()
