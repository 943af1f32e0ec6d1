"""Short requests whose answers wait for the store (`store.durability` = `store`), in groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay.base.errors import ErrorCode, Unavailable
from forebay.server.server import Injected
from forebay.server.wire import short_requests
from tests.patience import PATIENCE, until
from tests.server.journal.held_store import HeldStore
from tests.server.raw_client import ApiKey, RawClient, pb
from tests.server.running import KV_COLUMNS, LOG_COLUMNS, Bench, kv_key, kv_records, log_records, running
from tests.server.wire.replicas import open_bytes, produce, replica_of

if TYPE_CHECKING:
    pass


@pytest.fixture
def held() -> HeldStore:
    return HeldStore()


@pytest.fixture
def bench(tmp_path: Path, held: HeldStore, way: str) -> Iterator[Bench]:
    settings = {"store": str(tmp_path / "store"), "store_durability": "store", "store_lease": "1 h"}
    try:
        with running(tmp_path / "data", Injected(open_store=held.open), **settings) as bench:
            yield bench
            held.may_create.set()
    finally:
        held.may_create.set()


def gate_of(bench: Bench) -> Any:
    return bench.server.server.context.gate


def wait_until_held(bench: Bench, count: int) -> None:
    """Wait until so many groups of answers are held by the gate."""
    until(lambda: len(gate_of(bench)._waiting) >= count, "answers are held")


def released(bench: Bench, table_id: int) -> bool:
    return not (open_bytes(bench) or replica_of(bench, table_id).uses or gate_of(bench)._waiting)


def put(number: int, timeout_ms: int = 10_000) -> pb.PutKvRequest:
    request = pb.PutKvRequest(acks=-1, table_id=0, timeout_ms=timeout_ms)
    request.buckets_req.add(bucket_id=0, records=kv_records([{"id": number, "name": f"n{number}"}]))
    return request


def test_writes_are_answered_once_the_store_has_them(bench: Bench, held: HeldStore) -> None:
    table_id = bench.create("log", LOG_COLUMNS)
    bench.append(table_id, log_records([0]))
    held.may_create.clear()
    sent = [bench.tablet.send(ApiKey.PRODUCE_LOG, produce(table_id, log_records([n]))) for n in range(1, 20)]
    wait_until_held(bench, 1)
    until(lambda: replica_of(bench, table_id).log.log_end_offset == 20, "all are written")
    assert bench.log_end(table_id) == 1, "readers see no row that the store has not"
    assert open_bytes(bench) > 0
    held.may_create.set()
    answers = [bench.tablet.receive(request_id).buckets_resp[0] for request_id in sent]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, n) for n in range(1, 20)]
    until(lambda: released(bench, table_id), "all is released")


def test_no_handler_serves_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    table_id = bench.create("kv", KV_COLUMNS, ["id"])
    bench.put(table_id, kv_records([{"id": 0, "name": "zero"}]))
    bench.lookup(table_id, [kv_key(0)])
    apart: list[Any] = []
    serve_apart = short_requests.ShortRequests._leave_to_handler
    monkeypatch.setattr(
        short_requests.ShortRequests, "_leave_to_handler",
        lambda self, request: (apart.append(request), serve_apart(self, request)),
    )  # fmt: skip
    served = bench.server.server.context.counters
    groups: list[int] = []
    count = served.count_requests

    def noted(*arguments: Any, group: Any = None) -> None:
        groups.append(len(group or ()))
        count(*arguments, group=group)

    monkeypatch.setattr(served, "count_requests", noted)
    for number in range(1, 6):
        assert bench.put(table_id, kv_records([{"id": number, "name": "n"}])).log_end_offset == number + 1
        assert bench.lookup(table_id, [kv_key(number)]).values[0].HasField("values")
    assert groups == [1] * 10
    assert not apart


def test_a_lookup_waits_with_the_write_that_it_has_seen(bench: Bench, held: HeldStore) -> None:
    table_id = bench.create("kv", KV_COLUMNS, ["id"])
    bench.put(table_id, kv_records([{"id": 0, "name": "zero"}]))
    held.may_create.clear()
    write = put(1)
    write.table_id = table_id
    written = bench.tablet.send(ApiKey.PUT_KV, write)
    until(lambda: replica_of(bench, table_id).log.log_end_offset == 2, "the row is written")
    wait_until_held(bench, 1)
    with RawClient(bench.server.addresses.tablet_servers) as other:
        lookups = []
        for key in (1, 0, 7):
            request = pb.LookupRequest(table_id=table_id)
            request.buckets_req.add(bucket_id=0, keys=[kv_key(key)])
            lookups.append(other.send(ApiKey.LOOKUP, request))
        wait_until_held(bench, 2)
        other.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            other.socket.recv(1)
        other.socket.settimeout(PATIENCE)
        held.may_create.set()
        values = [other.receive(request_id).buckets_resp[0].values[0] for request_id in lookups]
    assert [value.HasField("values") for value in values] == [True, True, False]
    assert not bench.tablet.receive(written).buckets_resp[0].error_code
    until(lambda: released(bench, table_id), "all is released")


def test_a_write_that_the_store_does_not_get_in_time_is_answered_and_its_memory_kept(
    bench: Bench, held: HeldStore
) -> None:
    table_id = bench.create("log", LOG_COLUMNS)
    bench.append(table_id, log_records([0]))
    held.may_create.clear()
    request_id = bench.tablet.send(ApiKey.PRODUCE_LOG, produce(table_id, log_records([1]), timeout_ms=50))
    (answer,) = bench.tablet.receive(request_id).buckets_resp
    assert answer.error_code == ErrorCode.REQUEST_TIME_OUT
    assert "not acknowledged within 50 ms; it may still be written" in answer.error_message
    assert open_bytes(bench) > 0
    held.may_create.set()
    until(lambda: released(bench, table_id), "all is released")
    assert bench.append(table_id, log_records([2])).base_offset == 2


def test_all_that_wait_are_refused_when_the_journal_ends(bench: Bench, held: HeldStore) -> None:
    table_id = bench.create("kv", KV_COLUMNS, ["id"])
    bench.put(table_id, kv_records([{"id": 0, "name": "zero"}]))
    held.may_create.clear()
    write = put(1)
    write.table_id = table_id
    sent = [bench.tablet.send(ApiKey.PUT_KV, write)]
    wait_until_held(bench, 1)
    lookup = pb.LookupRequest(table_id=table_id)
    lookup.buckets_req.add(bucket_id=0, keys=[kv_key(1)])
    sent.append(bench.tablet.send(ApiKey.LOOKUP, lookup))
    wait_until_held(bench, 2)
    gate_of(bench).fail(Unavailable("another server has taken over", ErrorCode.NOT_LEADER_OR_FOLLOWER))
    # Rows that are written here may be there later, so the answer does not say that they are not.
    expected = [
        (ErrorCode.REQUEST_TIME_OUT, "another server has taken over. The rows may be written or not"),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, "another server has taken over"),
    ]
    for request_id, code_and_text in zip(sent, expected, strict=True):
        (answer,) = bench.tablet.receive(request_id).buckets_resp
        assert (answer.error_code, answer.error_message) == code_and_text
    until(lambda: released(bench, table_id), "all is released")


def test_a_client_that_leaves_while_its_answers_wait_leaves_nothing(bench: Bench, held: HeldStore) -> None:
    table_id = bench.create("log", LOG_COLUMNS)
    bench.append(table_id, log_records([0]))
    held.may_create.clear()
    with RawClient(bench.server.addresses.tablet_servers) as other:
        other.send(ApiKey.PRODUCE_LOG, produce(table_id, log_records([1])))
        wait_until_held(bench, 1)
    held.may_create.set()
    until(lambda: released(bench, table_id), "all is released")
    assert bench.log_end(table_id) == 2
