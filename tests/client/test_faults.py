"""The client behind a network that loses, cuts and delays; and servers that answer with errors."""

from __future__ import annotations

import logging
import random
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import Conflict, CorruptData, ErrorCode, ForebayError, NotFound, OutcomeUnknown, Unavailable
from forebay.client.connection import Connection, connect
from forebay.client.reading.bucket_reader import TableReader
from forebay.client.table import Table
from forebay.codec.log.header import parse_header
from forebay.metadata.predicate import col
from forebay.metadata.table import TableBucket
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from tests.client.conftest import DATABASE, MakeTable, Through, own_server
from tests.client.data import by_id
from tests.client.proxy import CLOSE, CUT, DROP, PASS, Action, Frame, Proxy, Rule, answered, delayed, only
from tests.patience import PATIENCE, until

pytestmark = own_server


def appended(table: Table) -> list[int]:
    return sorted(table.scan().to_arrow()["a"].to_pylist())


# ---- writing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [CLOSE, CUT], ids=["lost", "cut"])
@pytest.mark.parametrize("direction", ["request", "response"])
def test_a_write_whose_connection_breaks_is_written_once(
    make_table: MakeTable, proxy: Proxy, through: Through, fault: Action, direction: str
) -> None:
    """failure-scenarios 1b: lost response, then retry: no duplicate, no loss, offsets right."""
    for kind in ("log", "kv"):
        key = ApiKey.PRODUCE_LOG if kind == "log" else ApiKey.PUT_KV
        table = make_table({"a": pa.int64()}, primary_key=["a"] if kind == "kv" else [])
        other = through(table)
        setattr(proxy, f"on_{direction}", only(key, fault, fault))
        result = other.append([{"a": 1}]) if kind == "log" else other.upsert([{"a": 1}])
        assert result.end_offsets == {table.bucket(0): 1}
        assert appended(table) == [1]
        assert list(table.connection.admin.list_offsets(table.path).values()) == [1]
        setattr(proxy, f"on_{direction}", lambda _: PASS)
        result = other.append([{"a": 2}]) if kind == "log" else other.upsert([{"a": 2}])
        assert result.end_offsets == {table.bucket(0): 2}


@pytest.mark.parametrize("direction", ["request", "response"])
def test_a_write_that_is_not_answered_in_time_is_sent_again(
    make_table: MakeTable, proxy: Proxy, through: Through, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.client.writing.sender._ANSWER_SLACK_SECONDS", 0.05)
    monkeypatch.setattr("forebay.client.writing.sender._OVERDUE_CHECK_SECONDS", 0.05)
    table = make_table({"a": pa.int64()})
    other = through(table, request_timeout="300 ms")
    setattr(proxy, f"on_{direction}", only(ApiKey.PRODUCE_LOG, DROP))
    assert other.append([{"a": 1}]).end_offsets == {table.bucket(0): 1}
    assert appended(table) == [1]


def test_several_batches_in_flight_survive_a_lost_answer_in_order(
    make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    """failure-scenarios 1b: idempotent writer: lost response while later batches succeed."""
    table = make_table({"a": pa.int64()})
    other = through(table, writer_batch_size="2kb")
    proxy.on_response = only(ApiKey.PRODUCE_LOG, PASS, PASS, CLOSE, PASS, CUT)
    result = other.append(pa.table({"a": np.arange(20_000)}))
    assert result.rows == 20_000
    assert table.changes(stop="latest").to_arrow()["a"].to_pylist() == list(range(20_000))


def test_five_batches_of_a_bucket_are_under_way_at_most(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    table = make_table({"a": pa.int64()})
    other = through(table, writer_batch_size="1kb")
    under_way, most = 0, 0
    lock = threading.Lock()

    def request(frame: Frame) -> Action:
        nonlocal under_way, most
        if frame.key is ApiKey.PRODUCE_LOG:
            with lock:
                under_way += 1
                most = max(most, under_way)
        return PASS

    def response(frame: Frame) -> Action:
        nonlocal under_way
        if frame.key is not ApiKey.PRODUCE_LOG:
            return PASS
        until(lambda: most >= 5, "five are under way")
        with lock:
            under_way -= 1
        return PASS

    proxy.on_request, proxy.on_response = request, response
    other.append(pa.table({"a": np.arange(5000)}))
    assert most == 5
    assert appended(table) == list(range(5000))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.one_in(3)
def test_random_faults_lose_nothing_and_double_nothing(
    make_table: MakeTable, proxy: Proxy, through: Through, seed: int
) -> None:
    rng = random.Random(seed)
    lock = threading.Lock()

    def flaky(frame: Frame) -> Action:
        with lock:
            dice = rng.random()
        if dice < 0.06:
            return CLOSE
        if dice < 0.10:
            return CUT
        return delayed(0.002) if dice < 0.2 else PASS

    log = make_table({"a": pa.int64(), "t": pa.int32()}, bucket_keys=["t"], buckets=3)
    kv = make_table({"a": pa.int64(), "v": pa.int64()}, primary_key=["a"], buckets=2)
    flaky_log, flaky_kv = through(log), through(kv)
    proxy.on_request = proxy.on_response = flaky
    model = {}
    with flaky_log.writer() as logs, flaky_kv.writer() as states:
        for step in range(60):
            logs.append([{"a": step * 10 + n, "t": n % 4} for n in range(10)])
            states.upsert([{"a": n, "v": step} for n in range(step % 7, 40, 7)])
            model.update(dict.fromkeys(range(step % 7, 40, 7), step))
            if step % 3 == 0:
                logs.flush()
                states.flush()
    proxy.on_request = proxy.on_response = lambda _: PASS
    assert appended(log) == list(range(600))
    for t in range(4):
        found = [row["a"] for row in log.scan().to_arrow().to_pylist() if row["t"] == t]
        assert found == sorted(found)
    assert {row["a"]: row["v"] for row in kv.scan().to_arrow().to_pylist()} == model


def put_error(code: int, bucket: int = 0) -> Action:
    response = pb.PutKvResponse()
    response.buckets_resp.add(bucket_id=bucket, error_code=code, error_message=f"error {code} for a test")
    return answered(response)


def produce_error(code: int) -> Action:
    response = pb.ProduceLogResponse()
    response.buckets_resp.add(bucket_id=0, error_code=code, error_message=f"error {code} for a test")
    return answered(response)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
        ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
        ErrorCode.REQUEST_TIME_OUT,
        ErrorCode.CORRUPT_RECORD_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_EXCEPTION,
        ErrorCode.DISK_WRITE_LOCKED,
    ],
)
def test_passing_errors_are_followed_by_another_attempt(
    make_table: MakeTable, proxy: Proxy, through: Through, code: ErrorCode
) -> None:
    table = make_table({"a": pa.int64()})
    other = through(table)
    before = proxy.count(ApiKey.GET_METADATA)
    proxy.on_request = only(ApiKey.PRODUCE_LOG, produce_error(code), produce_error(code))
    assert other.append([{"a": 1}]).rows == 1
    assert appended(table) == [1]
    asked_again = proxy.count(ApiKey.GET_METADATA) > before
    stale = code in (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
        ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
    )
    assert asked_again == stale


def test_other_errors_fail_the_write_and_leave_the_writer_in_order(
    make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    table = make_table({"a": pa.int64()})
    other = through(table)
    proxy.on_request = only(ApiKey.PRODUCE_LOG, PASS, produce_error(ErrorCode.RECORD_TOO_LARGE_EXCEPTION))
    other.append([{"a": 1}])
    with pytest.raises(ForebayError, match=r"bucket 0 of table .*error 13 for a test.*1 rows were not written") as e:
        other.append([{"a": 2}])
    assert e.value.code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    other.append([{"a": 3}])  # its sequence follows the last that was written
    assert appended(table) == [1, 3]


def test_a_failed_batch_does_not_stop_those_in_flight_behind_it(
    make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    table = make_table({"a": pa.int64()})
    other = through(table, writer_batch_size="1kb")
    refused: list[int] = []

    def rule(frame: Frame) -> Action:
        if frame.key is ApiKey.PRODUCE_LOG and frame.number == 1:
            refused.append(parse_header(frame.message().buckets_req[0].records).record_count)
            return Action("answer", 0.05, produce_error(ErrorCode.RECORD_TOO_LARGE_EXCEPTION).message)
        return PASS

    proxy.on_request = rule
    writer = other.writer()
    writer.append(pa.table({"a": np.arange(1000)}))
    with pytest.raises(ForebayError, match="error 13"):
        writer.flush()
    proxy.on_request = lambda _: PASS
    found = appended(table)
    missing = sorted(set(range(1000)) - set(found))
    assert missing == list(range(missing[0], missing[-1] + 1))
    assert [len(missing)] == refused  # exactly one batch


def test_a_duplicate_sequence_is_success(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    table = make_table({"a": pa.int64()})
    other = through(table)
    proxy.on_request = only(ApiKey.PRODUCE_LOG, produce_error(ErrorCode.DUPLICATE_SEQUENCE_EXCEPTION))
    assert other.append([{"a": 1}]).rows == 1


@pytest.mark.parametrize("code", [ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION, ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION])
def test_a_server_that_lost_the_writer_fails_the_batch_and_gives_a_new_id(
    make_table: MakeTable, proxy: Proxy, through: Through, code: ErrorCode
) -> None:
    """failure-scenarios 1b: writer id expired on one replica only."""
    table = make_table({"a": pa.int64()})
    other = through(table)
    other.append([{"a": 1}])
    assert proxy.count(ApiKey.INIT_WRITER) == 1
    proxy.on_request = lambda f: produce_error(code) if f.key is ApiKey.PRODUCE_LOG and f.number == 1 else PASS
    with pytest.raises(Conflict) as e:
        other.append([{"a": 2}])
    assert e.value.code == code
    other.append([{"a": 3}])
    assert proxy.count(ApiKey.INIT_WRITER) == 2
    assert appended(table) == [1, 3]


def test_a_late_out_of_order_answer_to_a_written_batch_is_success(
    make_table: MakeTable, proxy: Proxy, through: Through, monkeypatch: pytest.MonkeyPatch
) -> None:
    """failure-scenarios 1b: stale out-of-order reply."""
    monkeypatch.setattr("forebay.client.writing.sender._ANSWER_SLACK_SECONDS", 0.05)
    monkeypatch.setattr("forebay.client.writing.sender._OVERDUE_CHECK_SECONDS", 0.05)
    table = make_table({"a": pa.int64()})
    clock = ManualClock()
    other = through(table, clock=clock, writer_batch_size="1kb", request_timeout="2 s")
    attempts: list[int] = []
    """The ids of the requests with the first batch, whose first answer is lost."""
    others: set[int] = set()
    """The ids of the requests with later batches that have not been answered."""

    def request(frame: Frame) -> Action:
        if frame.key is not ApiKey.PRODUCE_LOG:
            return PASS
        header = parse_header(frame.message().buckets_req[0].records)
        if header.batch_sequence != 0:
            others.add(frame.request_id)
            return PASS
        attempts.append(frame.request_id)
        return PASS if len(attempts) == 1 else produce_error(ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION)

    def response(frame: Frame) -> Action:
        if frame.key is ApiKey.PRODUCE_LOG and frame.request_id in attempts[:1]:
            return DROP
        others.discard(frame.request_id)
        return PASS

    proxy.on_request, proxy.on_response = request, response
    writer = other.writer()
    writer.append(pa.table({"a": np.arange(1000)}))
    accumulator = other.connection.sender.accumulator
    until(lambda: accumulator.unfinished == 1 and not others, "all batches but the first one are acknowledged")
    until(lambda: len(attempts) == 2 or clock.advance(0.5), "the first batch is sent again")
    assert writer.flush().rows == 1000
    writer.close()
    assert len(attempts) == 2
    assert appended(table) == list(range(1000))


def test_back_pressure_of_the_server_pauses_the_bucket(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    table = make_table({"a": pa.int64()}, primary_key=["a"])
    other = through(table, writer_kv_backpressure_max_throttle="300 ms")
    proxy.on_request = only(ApiKey.PUT_KV, put_error(ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION))
    began = time.monotonic()
    other.upsert([{"a": 1}])
    assert time.monotonic() - began >= 0.29
    assert appended(table) == [1]


def test_pressure_slows_the_next_batch_down(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    table = make_table({"a": pa.int64()}, primary_key=["a"])
    other = through(table, writer_kv_backpressure_max_throttle="400 ms")
    response = pb.PutKvResponse()
    response.buckets_resp.add(bucket_id=0, log_end_offset=1, pressure=0.9)
    proxy.on_request = only(ApiKey.PUT_KV, answered(response))
    other.upsert([{"a": 1}])
    began = time.monotonic()
    with pytest.raises(ForebayError):  # the server never saw the first batch, so this one is out of order
        other.upsert([{"a": 2}])
    assert time.monotonic() - began >= 0.3


def test_an_unacknowledged_batch_fails_in_the_end(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    table = make_table({"a": pa.int64()})
    clock = ManualClock()
    other = through(table, clock=clock, writer_delivery_timeout="300 ms")

    def too_late(frame: Frame) -> Action:
        if frame.key is not ApiKey.PRODUCE_LOG:
            return PASS
        clock.advance(1)
        return produce_error(ErrorCode.NOT_ENOUGH_REPLICAS_EXCEPTION)

    proxy.on_request = too_late
    with pytest.raises(Unavailable, match=r"delivery-timeout.*error 29 for a test"):
        other.append([{"a": 1}])
    proxy.on_request = lambda _: PASS
    other.append([{"a": 2}])
    assert appended(table) == [2]


def test_retries_can_be_limited(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    table = make_table({"a": pa.int64()})
    other = through(table, writer_retries=2)
    proxy.on_request = lambda f: (
        produce_error(ErrorCode.NOT_ENOUGH_REPLICAS_EXCEPTION) if f.key is ApiKey.PRODUCE_LOG else PASS
    )
    with pytest.raises(ForebayError, match="after 3 attempts"):
        other.append([{"a": 1}])
    assert proxy.count(ApiKey.PRODUCE_LOG) == 3


def test_a_batch_that_is_always_called_corrupt_is_sent_three_times(
    make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    table = make_table({"a": pa.int64()})
    other = through(table)
    proxy.on_request = lambda f: (
        produce_error(ErrorCode.CORRUPT_RECORD_EXCEPTION) if f.key is ApiKey.PRODUCE_LOG else PASS
    )
    with pytest.raises(CorruptData, match="after 3 attempts"):
        other.append([{"a": 1}])
    assert proxy.count(ApiKey.PRODUCE_LOG) == 3


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_server_that_is_not_ready_is_asked_more_than_three_times(
    make_table: MakeTable, proxy: Proxy, through: Through, idempotent: bool
) -> None:
    table = make_table({"a": pa.int64()})
    other = through(table, writer_enable_idempotence=idempotent)
    not_ready = produce_error(ErrorCode.NOT_ENOUGH_REPLICAS_EXCEPTION)
    proxy.on_request = only(ApiKey.PRODUCE_LOG, *[not_ready] * 5)
    assert other.append([{"a": 1}]).rows == 1
    assert proxy.count(ApiKey.PRODUCE_LOG) == 6
    assert appended(table) == [1]


def test_a_batch_of_unknown_outcome_does_not_give_its_sequence_to_the_next(
    make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    """The server would take the next for a repetition of the first, and answer that it is written."""
    table = make_table({"a": pa.int64()})
    other = through(table, writer_retries=1)
    other.append([{"a": 1}])
    late = produce_error(ErrorCode.REQUEST_TIME_OUT)
    proxy.on_response = lambda f: late if f.key is ApiKey.PRODUCE_LOG and f.number in (1, 2) else PASS
    with pytest.raises(OutcomeUnknown, match="after 2 attempts"):
        other.append([{"a": 2}])  # written it is
    other.append([{"a": 3}])
    assert appended(table) == [1, 2, 3]


def test_rows_that_a_server_puts_off_are_told_of_once_in_a_while(
    make_table: MakeTable,
    proxy: Proxy,
    through: Through,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forebay.client.writing.sender.NOTICE_SECONDS", 0.0)
    table = make_table({"a": pa.int64()})
    other = through(table)
    not_ready = produce_error(ErrorCode.NOT_ENOUGH_REPLICAS_EXCEPTION)
    proxy.on_request = only(ApiKey.PRODUCE_LOG, *[not_ready] * 4)
    with caplog.at_level(logging.WARNING, logger="forebay"):
        other.append([{"a": 1}])
    told = [text for text in caplog.messages if f"rows for table {table.path} have waited" in text]
    assert all("and are retried: error 29 for a test" in text for text in told)
    assert 1 <= len(told) < 4


def test_only_rows_of_a_partition_are_sent_again_when_it_is_gone(
    make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    partitioned = through(make_table({"a": pa.int64(), "p": pa.string()}, partition_keys=["p"]))
    partitioned.append([{"a": 1, "p": "x"}])
    plain = through(make_table({"a": pa.int64()}))

    def refuse(code: ErrorCode, times: int) -> None:
        first = proxy.count(ApiKey.PRODUCE_LOG)

        def rule(frame: Frame) -> Action:
            if frame.key is not ApiKey.PRODUCE_LOG or frame.number >= first + times:
                return PASS
            (asked,) = frame.message().buckets_req
            response = pb.ProduceLogResponse()
            response.buckets_resp.add(
                bucket_id=asked.bucket_id,
                partition_id=asked.partition_id if asked.HasField("partition_id") else None,
                error_code=code,
                error_message="refused",
            )
            return answered(response)

        proxy.on_request = rule

    refuse(ErrorCode.PARTITION_NOT_EXISTS, 2)
    partitioned.append([{"a": 2, "p": "x"}])
    assert appended(partitioned) == [1, 2]
    for table, row, code in (
        (partitioned, {"a": 3, "p": "x"}, ErrorCode.RECORD_TOO_LARGE_EXCEPTION),
        (plain, {"a": 3}, ErrorCode.PARTITION_NOT_EXISTS),
    ):
        refuse(code, 1)
        with pytest.raises(ForebayError, match="refused") as e:
            table.append([row])
        assert e.value.code == code


def test_an_answer_without_the_bucket_fails_the_batch(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    table = make_table({"a": pa.int64()})
    other = through(table)
    proxy.on_request = only(ApiKey.PRODUCE_LOG, answered(pb.ProduceLogResponse()))
    with pytest.raises(OutcomeUnknown, match=r"left the bucket out.*may or may not be written"):
        other.append([{"a": 1}])


def test_writes_continue_after_all_connections_broke(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    table = make_table({"a": pa.int64()}, buckets=2)
    other = through(table)
    with other.writer() as writer:
        for step in range(30):
            writer.append([{"a": step}])
            if step % 10 == 5:
                proxy.break_all()
    assert appended(table) == list(range(30))


# ---- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [CLOSE, CUT], ids=["lost", "cut"])
def test_lookups_and_questions_are_repeated(
    make_table: MakeTable, proxy: Proxy, through: Through, fault: Action
) -> None:
    table = make_table({"id": pa.int64(), "v": pa.string()}, primary_key=["id"], buckets=2)
    table.upsert([{"id": i, "v": str(i)} for i in range(50)])
    other = through(table)
    proxy.on_response = only(ApiKey.LOOKUP, fault, fault)
    assert other.lookup(list(range(50)))["v"].to_pylist() == [str(i) for i in range(50)]
    proxy.on_response = only(ApiKey.LIST_OFFSETS, fault)
    assert sum(other.connection.admin.list_offsets(other.path).values()) == 50
    proxy.on_response = only(ApiKey.TABLE_EXISTS, fault)
    assert other.connection.table_exists(other.path)


def test_lookups_are_repeated_no_more_often_than_allowed(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    table = make_table({"a": pa.int64()}, primary_key=["a"])
    table.upsert([{"a": 1}])
    moved = pb.PbLookupRespForBucket(bucket_id=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, error_message="moved")
    rule = only(ApiKey.LOOKUP, PASS, *[answered(pb.LookupResponse(buckets_resp=[moved]))] * 3)
    other = through(table, lookup_max_retries=1)
    assert other.lookup([1]).num_rows == 1
    proxy.on_request = rule
    with pytest.raises(Unavailable, match="moved"):
        other.lookup([1])
    assert proxy.count(ApiKey.LOOKUP) == 3
    assert other.lookup([1]).num_rows == 1  # the last of the three errors is followed by an answer


def test_no_more_lookups_are_under_way_than_allowed(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    table = make_table({"id": pa.int64()}, primary_key=["id"])
    other = through(table, lookup_max_batch_size=1, lookup_max_inflight_requests=3)
    lock = threading.Lock()
    under_way, most = 0, 0

    def request(frame: Frame) -> Action:
        nonlocal under_way, most
        with lock:
            under_way += frame.key is ApiKey.LOOKUP
            most = max(most, under_way)
        return PASS

    def response(frame: Frame) -> Action:
        nonlocal under_way
        if frame.key is not ApiKey.LOOKUP:
            return PASS
        until(lambda: most >= 3, "three are under way")
        with lock:
            under_way -= 1
        return PASS

    proxy.on_request, proxy.on_response = request, response
    assert other.lookup(list(range(20))).num_rows == 20
    assert most == 3


def test_an_answer_that_leaves_a_bucket_out_is_corrupt(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    other = through(make_table({"id": pa.int64()}, primary_key=["id"]), retry_timeout="50 ms")
    answers = {ApiKey.LOOKUP: pb.LookupResponse(), ApiKey.LIST_OFFSETS: pb.ListOffsetsResponse()}
    proxy.on_request = lambda f: answered(answers[f.key]) if f.key in answers else PASS
    with pytest.raises(CorruptData, match=r"left bucket .* out of its response"):
        other.lookup([1])
    with pytest.raises(CorruptData, match=r"left bucket .* out of its response"):
        other.connection.admin.list_offsets(other.path)


def test_an_answer_with_too_few_values_is_corrupt(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    table = make_table({"a": pa.int64(), "b": pa.int64()}, primary_key=["a", "b"], bucket_keys=["a"])
    other = through(table, retry_timeout="50 ms")
    one, lists = pb.LookupResponse(), pb.PrefixLookupResponse()
    one.buckets_resp.add(bucket_id=0).values.add()
    lists.buckets_resp.add(bucket_id=0)
    answers = {ApiKey.LOOKUP: one, ApiKey.PREFIX_LOOKUP: lists}
    proxy.on_request = lambda f: answered(answers[f.key]) if f.key in answers else PASS
    with pytest.raises(CorruptData, match="returned 1 values for 2 keys"):
        other.lookup([{"a": 1, "b": 1}, {"a": 1, "b": 2}])
    with pytest.raises(CorruptData, match="returned 0 lists for 1 prefixes"):
        other.prefix_lookup([1])


def test_a_change_that_was_not_answered_is_not_repeated(make_table: MakeTable, conn: Connection, proxy: Proxy) -> None:
    with connect(proxy.bootstrap_servers) as other:
        proxy.on_response = only(ApiKey.CREATE_TABLE, CLOSE)
        with pytest.raises(OutcomeUnknown, match="may have carried out CREATE_TABLE or not"):
            other.create_table(f"{DATABASE}.uncertain", {"a": pa.int8()})
        assert proxy.count(ApiKey.CREATE_TABLE) == 1
        assert conn.table_exists(f"{DATABASE}.uncertain")
        proxy.on_response = only(ApiKey.DROP_TABLE, CLOSE)
        other.drop_table(f"{DATABASE}.uncertain", ignore_if_not_exists=True)  # this can be repeated
        assert proxy.count(ApiKey.DROP_TABLE) == 2
        assert not conn.table_exists(f"{DATABASE}.uncertain")


def scanned(make_table: MakeTable) -> Table:
    table = make_table({"id": pa.int64(), "v": pa.string()}, primary_key=["id"], buckets=2)
    table.upsert(pa.table({"id": np.arange(2000), "v": [f"value {i}" for i in range(2000)]}))
    return table


@pytest.mark.parametrize("fault", [CLOSE, CUT], ids=["lost", "cut"])
@pytest.mark.parametrize("direction", ["request", "response"])
def test_a_lost_page_is_requested_again(
    make_table: MakeTable, proxy: Proxy, through: Through, fault: Action, direction: str
) -> None:
    """failure-scenarios 1a: retry of the same page after lost response."""
    table = scanned(make_table)
    other = through(table, scanner_kv_fetch_max_bytes="2kb")
    faults = {0, 3, 4, 9, 15}

    def rule(frame: Frame) -> Action:
        return fault if frame.key is ApiKey.SCAN_KV and frame.number in faults else PASS

    setattr(proxy, f"on_{direction}", rule)
    found = other.scan().to_arrow()
    assert sorted(found["id"].to_pylist()) == list(range(2000))


def test_a_page_that_the_server_cannot_repeat_fails_the_scan_clearly(
    make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    table = scanned(make_table)
    other = through(table, scanner_kv_fetch_max_bytes="2kb", scanner_kv_max_sessions=1)
    lost = threading.Event()

    def response(frame: Frame) -> Action:
        if frame.key is ApiKey.SCAN_KV and frame.number == 4:
            lost.set()
            return CLOSE
        return PASS

    def request(frame: Frame) -> Action:
        # What a Fluss server says to a call number that it has answered already.
        if frame.key is ApiKey.SCAN_KV and lost.is_set():
            lost.clear()
            return answered(pb.ScanKvResponse(error_code=68, error_message="Out of order"))
        return PASS

    proxy.on_response, proxy.on_request = response, request
    reader = other.scan().reader()
    with pytest.raises(Unavailable, match=r"lost a page.*Scan the bucket again") as e:
        reader.read_all()
    assert e.value.retriable
    assert isinstance(reader, TableReader)
    assert len(reader.remaining) == 2


@pytest.mark.parametrize(
    ("code", "goes_on"),
    [
        (ErrorCode.SCANNER_EXPIRED, True),
        (ErrorCode.UNKNOWN_SCANNER_ID, True),
        (ErrorCode.INVALID_SCAN_REQUEST, True),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (ErrorCode.AUTHORIZATION_EXCEPTION, False),
    ],
)
def test_a_session_that_ends_before_its_first_row_is_begun_again(
    make_table: MakeTable, proxy: Proxy, through: Through, code: ErrorCode, goes_on: bool
) -> None:
    other = through(scanned(make_table), scanner_kv_max_sessions=1)
    begun = answered(pb.ScanKvResponse(scanner_id=b"a session", has_more_results=True))
    ended = answered(pb.ScanKvResponse(error_code=int(code), error_message="for a test"))
    proxy.on_request = only(ApiKey.SCAN_KV, begun, ended)
    if goes_on:
        assert sorted(other.scan().to_arrow()["id"].to_pylist()) == list(range(2000))
    else:
        with pytest.raises(ForebayError, match="for a test") as e:
            other.scan().to_arrow()
        assert e.value.code == code


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_SCANNER_ID])
def test_a_scan_that_has_returned_nothing_starts_over(
    make_table: MakeTable, proxy: Proxy, through: Through, code: ErrorCode
) -> None:
    table = scanned(make_table)
    other = through(table, scanner_kv_fetch_max_bytes="2kb")
    error = answered(pb.ScanKvResponse(error_code=int(code), error_message="for a test"))
    if code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        proxy.on_request = only(ApiKey.SCAN_KV, error, error)
        assert sorted(other.scan().to_arrow()["id"].to_pylist()) == list(range(2000))
    else:
        proxy.on_request = only(ApiKey.SCAN_KV, error)
        with pytest.raises(NotFound):  # no session, and yet unknown: nonsense that is reported
            other.scan().to_arrow()


def test_a_scan_whose_bucket_moves_says_so(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    """failure-scenarios 1a: leader change: the client gets a retriable error."""
    table = scanned(make_table)
    other = through(table, scanner_kv_fetch_max_bytes="2kb", scanner_kv_max_sessions=1)
    moved = answered(pb.ScanKvResponse(error_code=12, error_message="moved"))
    proxy.on_request = lambda f: moved if f.key is ApiKey.SCAN_KV and f.number == 5 else PASS
    with pytest.raises(Unavailable, match="bucket has moved") as e:
        other.scan().to_arrow()
    assert e.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("fault", [CLOSE, CUT], ids=["lost", "cut"])
def test_a_log_reader_continues_after_broken_connections(
    make_table: MakeTable, proxy: Proxy, through: Through, fault: Action
) -> None:
    table = make_table({"a": pa.int64()}, buckets=2)
    for first in range(0, 200, 20):
        table.append([{"a": i} for i in range(first, first + 20)])
    other = through(table, scanner_log_fetch_max_bytes_for_bucket="300b")
    faults = {1, 3, 4}
    proxy.on_response = lambda f: fault if f.key is ApiKey.FETCH_LOG and f.number in faults else PASS
    assert sorted(other.changes(stop="latest").to_arrow()["a"].to_pylist()) == list(range(200))


def test_a_log_reader_looks_for_a_leader_that_moved(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    table = make_table({"a": pa.int64()})
    table.append([{"a": 1}])
    other = through(table)
    response = pb.FetchLogResponse()
    response.tables_resp.add(table_id=table.info.table_id).buckets_resp.add(bucket_id=0, error_code=12)
    proxy.on_request = only(ApiKey.FETCH_LOG, answered(response), answered(response))
    before = proxy.count(ApiKey.GET_METADATA)
    assert other.changes(stop="latest").to_arrow().num_rows == 1
    assert proxy.count(ApiKey.GET_METADATA) > before


def test_a_leader_that_the_servers_no_longer_name_is_forgotten(
    make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    table = through(make_table({"a": pa.int64()}, primary_key=["a"]))
    table.upsert([{"a": 1}])
    cluster, bucket = table.connection.cluster, TableBucket(table.info.table_id, 0)
    assert cluster.view.leader(bucket) is not None

    def without_buckets(frame: Frame) -> Action:
        if frame.key is not ApiKey.GET_METADATA:
            return PASS
        message = frame.message()
        for each in message.table_metadata:
            each.ClearField("bucket_metadata")
        return answered(message)

    proxy.on_response = without_buckets
    assert cluster.refresh_bucket(table.path, bucket).leader(bucket) is None
    proxy.on_response = lambda _: PASS
    assert table.lookup([1]).num_rows == 1


@pytest.mark.parametrize(("log_format", "told"), [("ARROW", True), ("INDEXED", False)])
def test_servers_are_told_which_columns_and_rows_of_arrow_logs_are_wanted(
    make_table: MakeTable, proxy: Proxy, through: Through, log_format: str, told: bool
) -> None:
    columns = {"a": pa.int64(), "b": pa.string(), "c": pa.int64()}
    table = make_table(columns, options={"table.log.format": log_format})
    table.append([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
    asked: list[pb.FetchLogRequest] = []

    def rule(frame: Frame) -> Action:
        if frame.key is ApiKey.FETCH_LOG:
            asked.append(frame.message())
        return PASS

    proxy.on_request = rule
    reader = through(table).changes(stop="latest", columns=["b"], filter=col("a") == 2, include=())
    assert reader.to_arrow().to_pylist() == [{"b": "y"}]
    (of_table,) = asked[0].tables_req
    assert of_table.projection_pushdown_enabled == told
    assert of_table.HasField("filter_predicate") == told
    assert of_table.HasField("filter_schema_id") == told
    asked.clear()
    assert through(table).changes(stop="latest").to_arrow().num_rows == 2
    assert not asked[0].tables_req[0].projection_pushdown_enabled


def test_a_projection_that_the_server_refuses_is_done_here(
    make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    """Fluss cannot project batches that were written before a column was added."""
    table = make_table({"a": pa.int64(), "b": pa.string()})
    table.append([{"a": 1, "b": "x"}])
    other = through(table)
    response = pb.FetchLogResponse()
    response.tables_resp.add(table_id=table.info.table_id).buckets_resp.add(bucket_id=0, error_code=34)
    proxy.on_request = only(ApiKey.FETCH_LOG, answered(response))
    assert other.changes(stop="latest", columns=["b"], include=()).to_arrow().to_pylist() == [{"b": "x"}]


def test_answers_may_come_in_any_order_of_buckets(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    """As Fluss's servers do it."""
    table = make_table({"id": pa.int64(), "v": pa.string()}, primary_key=["id"], buckets=4)
    table.upsert([{"id": i, "v": str(i)} for i in range(100)])
    other = through(table)
    other.lookup([1])
    node = other.connection.cluster.view.tablet_servers[0]

    def shuffle(frame: Frame) -> Action:
        if frame.key is not ApiKey.LOOKUP:
            return PASS
        answer = table.connection.cluster.call(
            table.connection.cluster.view.tablet_servers[node.node_id],
            ApiKey.LOOKUP,
            frame.message(),
            pb.LookupResponse,
        )
        buckets = list(answer.buckets_resp)[::-1]
        return answered(pb.LookupResponse(buckets_resp=buckets))

    proxy.on_request = shuffle
    assert other.lookup(list(range(100)))["v"].to_pylist() == [str(i) for i in range(100)]


def test_an_operation_gives_up_when_servers_stay_away(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    table = make_table({"id": pa.int64()}, primary_key=["id"])
    other = through(table, retry_timeout="300 ms", connect_timeout="1 s")
    always: Rule = lambda _: CLOSE  # noqa: E731 - a rule
    proxy.on_request = always
    for operation in (
        lambda: other.lookup([1]),
        lambda: other.scan(buckets=[0]).to_arrow(),
        lambda: other.changes({0: 0}, {0: 1}).to_arrow(),
    ):
        with pytest.raises(Unavailable):
            operation()


def test_rows_survive_whatever_happens_between_upserts(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    table = make_table({"id": pa.int64(), "v": pa.int64()}, primary_key=["id"], buckets=3)
    other = through(table)
    for step in range(10):
        proxy.on_response = only(ApiKey.PUT_KV, *([PASS] * (proxy.count(ApiKey.PUT_KV, False) + step % 3)), CLOSE)
        other.upsert([{"id": i, "v": step} for i in range(30)])
    assert by_id(table.scan().to_arrow()) == [{"id": i, "v": 9} for i in range(30)]


def test_closing_waits_for_what_other_threads_are_writing(proxy: Proxy, make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()})
    connection = connect(proxy.bootstrap_servers)
    handle = connection.table(table.path)
    sent = threading.Event()

    def slow(frame: Frame) -> Action:
        if frame.key is not ApiKey.PRODUCE_LOG:
            return PASS
        sent.set()
        return delayed(0.5)

    proxy.on_request = slow
    results: list[int] = []
    writing = threading.Thread(target=lambda: results.append(handle.append([{"a": 1}]).rows))
    writing.start()
    assert sent.wait(PATIENCE)
    connection.close()
    writing.join(PATIENCE)
    assert results == [1]
    assert appended(table) == [1]


# ---- batches that are larger than a fetch, as Fluss cuts them -------------------------------------------------------


def cutting(asked: list[int], *, longest: int, filtered_end: int | None = None) -> Rule:
    """A server that cuts its records at the size that was asked for, or at `longest` bytes."""

    def rule(frame: Frame) -> Action:
        if frame.key is not ApiKey.FETCH_LOG:
            return PASS
        if frame.is_request:
            asked.append(frame.message().tables_req[0].buckets_req[0].max_fetch_bytes)
            return PASS
        message = frame.message()
        (answer,) = message.tables_resp[0].buckets_resp
        answer.records = answer.records[: min(asked[-1], longest)]
        if filtered_end is not None:
            answer.filtered_end_offset = filtered_end
        return answered(message)

    return rule


@pytest.fixture
def cut_batch(proxy: Proxy, make_table: MakeTable, through: Through) -> Table:
    """One batch of 100 kB in a table that is read 5,000 bytes at a time."""
    table = make_table({"s": pa.string()}, options={"table.log.arrow.compression.type": "NONE"})
    table.append([{"s": "x" * 100_000}])
    return through(table, scanner_log_fetch_max_bytes_for_bucket="5000b")


def test_a_batch_that_is_cut_is_requested_again_with_more_room(proxy: Proxy, cut_batch: Table) -> None:
    asked: list[int] = []
    proxy.on_request = proxy.on_response = cutting(asked, longest=1 << 30)
    assert cut_batch.changes(stop="latest").to_arrow()["s"].to_pylist() == ["x" * 100_000]
    assert asked == [5000 * 2**i for i in range(6)]


@pytest.mark.parametrize("longest", [4999, 5000, 5001])
def test_a_server_that_never_sends_a_whole_batch_is_found_out(proxy: Proxy, cut_batch: Table, longest: int) -> None:
    asked: list[int] = []
    proxy.on_request = proxy.on_response = cutting(asked, longest=longest)
    with pytest.raises(CorruptData, match=f"a response of {longest} bytes for offset 0 holds no record from there on"):
        cut_batch.changes(stop="latest").to_arrow()
    assert asked == ([5000] if longest == 4999 else [5000, 10000])


def test_no_more_room_is_requested_than_a_batch_may_have(
    proxy: Proxy, cut_batch: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.client.reading.log_reader._BATCH_BYTES_MAX", 10_000)
    asked: list[int] = []
    proxy.on_request = proxy.on_response = cutting(asked, longest=1 << 30)
    with pytest.raises(CorruptData, match="a response of 20000 bytes for offset 0 holds no record from there on"):
        cut_batch.changes(stop="latest").to_arrow()
    assert asked == [5000, 10_000, 20_000]


def test_a_cut_batch_moves_the_position_as_far_as_the_server_has_looked(proxy: Proxy, cut_batch: Table) -> None:
    asked: list[int] = []
    proxy.on_request = proxy.on_response = cutting(asked, longest=100, filtered_end=1)
    reader = cut_batch.changes(stop="latest")
    assert reader.to_arrow().num_rows == 0
    assert list(reader.position.values()) == [1]
    assert asked == [5000]
