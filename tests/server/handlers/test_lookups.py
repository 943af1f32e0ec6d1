"""Lookups and limit scans on the wire: each key's value, in order, for any number of keys."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.base.errors import ErrorCode, LimitExceeded
from forebay.codec.kv.value_batch import parse_value_batch
from forebay.codec.log.header import iter_headers
from forebay.server.flow.request_limits import RequestLimits
from forebay.server.handlers import lookups
from tests.server.raw_client import ApiKey, pb
from tests.server.running import KV_COLUMNS, Bench, kv_key, kv_records, log_records

ROWS = 700


@pytest.fixture(scope="module")
def table_id(bench: Bench) -> int:
    created = bench.create("looked_up", KV_COLUMNS, ["id"])
    rows = [{"id": i, "name": f"name {i}" + "x" * 4000 * (i % 50 == 0)} for i in range(0, 2 * ROWS, 2)]
    assert not bench.put(created, kv_records(rows)).error_code
    return created


def values_of(bench: Bench, table_id: int, ids: list[int]) -> list[bytes | None]:
    answer = bench.lookup(table_id, [kv_key(i) for i in ids])
    assert not answer.error_code, answer
    return [value.values if value.HasField("values") else None for value in answer.values]


@pytest.mark.parametrize("count", [0, 1, 16, 17, 80, 256, 257, 2 * ROWS])
def test_each_key_gets_its_value_in_the_order_of_the_request(bench: Bench, table_id: int, count: int) -> None:
    ids = [(7 * i) % (2 * ROWS) for i in range(count)]
    values = values_of(bench, table_id, ids)
    assert len(values) == count
    for key, value in zip(ids, values, strict=True):
        assert (value is None) == (key % 2 == 1)
        assert value is None or f"name {key}".encode() in value


def test_a_key_that_repeats_gets_its_value_each_time(bench: Bench, table_id: int) -> None:
    for ids in ([4] * 40, [4, 5, 6] * 30, [*range(300), *range(300)]):
        values = values_of(bench, table_id, ids)
        assert [value is not None for value in values] == [key % 2 == 0 for key in ids]
        assert len({values[i] for i, key in enumerate(ids) if key == 4}) == 1


def test_missing_keys_are_inserted_where_that_is_requested_and_found_later(bench: Bench) -> None:
    created = bench.create("inserted", KV_COLUMNS, ["id"])
    bench.put(created, kv_records([{"id": 1, "name": "here"}]))
    end = bench.log_end(created)

    def ask(ids: list[int], insert: bool) -> list[bool]:
        request = pb.LookupRequest(table_id=created, insert_if_not_exists=insert)
        request.buckets_req.add(bucket_id=0, keys=[kv_key(i) for i in ids])
        answer = bench.tablet.call(ApiKey.LOOKUP, request).buckets_resp[0]
        assert not answer.error_code, answer
        return [value.HasField("values") for value in answer.values]

    assert ask([1, 2, 2, 3], insert=False) == [True, False, False, False]
    assert ask([1], insert=True) == [True]
    assert bench.log_end(created) == end
    assert ask([1, 2, 2, 3], insert=True) == [True] * 4
    assert bench.log_end(created) == end + 2
    assert ask([2, 3, 4], insert=False) == [True, True, False]


def test_a_bucket_that_is_named_twice_is_answered_twice_and_a_failure_stays_with_its_bucket(
    bench: Bench, table_id: int
) -> None:
    request = pb.LookupRequest(table_id=table_id)
    for bucket, key in ((0, 2), (9, 2), (0, 4)):
        request.buckets_req.add(bucket_id=bucket, keys=[kv_key(key)])
    first, wrong, second = bench.tablet.call(ApiKey.LOOKUP, request).buckets_resp
    assert b"name 2" in first.values[0].values
    assert b"name 4" in second.values[0].values
    assert wrong.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


def limited(bench: Bench, table_id: int, limit: int):
    return bench.tablet.call(ApiKey.LIMIT_SCAN, pb.LimitScanRequest(table_id=table_id, bucket_id=0, limit=limit))


def test_a_limit_scan_gives_the_first_rows_of_a_state(bench: Bench, table_id: int) -> None:
    for limit in (0, 1, 10, ROWS, ROWS + 1):
        answer = limited(bench, table_id, limit)
        assert (answer.error_code, answer.is_log_table) == (0, False)
        _, rows = parse_value_batch(answer.records)
        assert len(rows) == min(limit, ROWS)
    assert "at least 0, not -1" in limited(bench, table_id, -1).error_message


def test_a_limit_scan_gives_the_last_batches_of_a_log(bench: Bench) -> None:
    created = bench.create("tail", {name: KV_COLUMNS[column] for name, column in (("a", "id"), ("s", "name"))})
    assert limited(bench, created, 5).records == b""
    for i in range(4):
        assert not bench.append(created, log_records([10 * i + j for j in range(10)])).error_code
    for limit, bases in ((0, []), (1, [30]), (10, [30]), (11, [20, 30]), (40, [0, 10, 20, 30]), (99, [0, 10, 20, 30])):
        answer = limited(bench, created, limit)
        assert (answer.error_code, answer.is_log_table) == (0, True)
        assert [header.base_offset for _, header in iter_headers(answer.records)] == bases


# ---- prefixes -------------------------------------------------------------------------------------------------------


def test_a_prefix_gets_the_rows_whose_keys_begin_with_it_at_each_place_where_it_is_named(bench: Bench) -> None:
    created = bench.create("prefixed", KV_COLUMNS, ["id"], engine="lmdb")
    bench.put(created, kv_records([{"id": i, "name": f"name {i}"} for i in range(3)]))
    rows = values_of(bench, created, [0, 1, 2])
    request = pb.PrefixLookupRequest(table_id=created)
    keys = [kv_key(1), b"", kv_key(7), kv_key(1), *[kv_key(2)] * 20]
    request.buckets_req.add(bucket_id=0, keys=keys)
    (answer,) = bench.tablet.call(ApiKey.PREFIX_LOOKUP, request).buckets_resp
    assert not answer.error_code, answer
    found = [list(each.values) for each in answer.value_lists]
    assert found == [[rows[1]], rows, [], [rows[1]], *[[rows[2]]] * 20]


# ---- how much memory an answer of unknown length takes --------------------------------------------------------------


class FakeRoom:
    """The memory that a call has, and what it asked for."""

    def __init__(self, reserved: int) -> None:
        self.reserved = reserved
        self.asked: list[tuple[str, int]] = []

    async def grow_to(self, size: int) -> None:
        self.asked.append(("more", size))

    async def change_to(self, size: int) -> None:
        self.asked.append(("instead", size))


class Reading:
    """The response of a call, in a server whose answers are bounded, and the attempts to read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer_bytes_max: int, reserved: int = 400) -> None:
        monkeypatch.setattr(lookups, "_GROUP_BYTES", 100)
        self.memory = FakeRoom(reserved)
        self.attempts: list[int] = []
        context = SimpleNamespace(limits=RequestLimits(answer_bytes_max=answer_bytes_max), in_io=self._in_io)
        self.response_size = lookups._ResponseSize(context, SimpleNamespace(memory=self.memory))  # type: ignore[arg-type]

    async def _in_io(self, work: Any, *args: Any) -> Any:
        return work(*args)

    def read(self, size: int) -> int:
        """How many bytes are found of so many, in pieces of 100, by a reader that stops as soon as it has too much."""

        def pieces(bytes_max: int) -> list[bytes]:
            self.attempts.append(bytes_max)
            return [bytes(100)] * min(bytes_max // 100 + 1, size // 100)

        return sum(map(len, asyncio.run(self.response_size.read(pieces))))


def test_a_read_of_unknown_length_is_tried_with_the_memory_that_there_is_and_then_with_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading = Reading(monkeypatch, 10_000)
    assert reading.read(200) == 200
    assert (reading.attempts, reading.memory.asked) == ([200], [])
    reading = Reading(monkeypatch, 10_000)
    assert reading.read(1000) == 1000
    assert reading.attempts == [200, 800, 3200]
    assert reading.memory.asked == [("instead", 1600), ("instead", 6400)]


def test_behind_what_an_answer_holds_already_a_read_takes_memory_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch, 10_000)
    asyncio.run(reading.response_size.take(150, 2))
    assert (reading.response_size.left, reading.memory.asked) == (9850, [("more", 300)])
    assert reading.read(300) == 300
    assert reading.attempts == [100, 400]  # of the memory, 50 bytes are left; the least that is tried is more
    assert reading.memory.asked == [("more", 300), ("more", 1100)]


def test_no_more_is_read_than_an_answer_may_hold_and_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch, 500)
    assert reading.read(10_000) == 600
    assert reading.attempts == [200, 500]
    asyncio.run(reading.response_size.take(500, 1))
    with pytest.raises(LimitExceeded, match="larger than 500 B"):
        asyncio.run(reading.response_size.take(1, 1))
