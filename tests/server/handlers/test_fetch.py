"""FetchLog and ListOffsets on the wire: limits, long polling, projection, filters, time."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.codec.log.header import iter_headers
from forebay.codec.log.log_batch import decode_arrow_batch
from forebay.log.tablet import LogTablet
from forebay.metadata import types
from forebay.metadata.predicate import col
from forebay.metadata.table import Column, Schema, TableBucket
from forebay.protocol.predicates import predicate_to_pb
from forebay.server.handlers import fetch, request_filters
from forebay.server.handlers import offsets as offset_handlers
from tests.log.log_batches import make_batch
from tests.patience import until
from tests.server.raw_client import ApiKey, RawClient, pb
from tests.server.running import KV_COLUMNS, Bench, kv_records, log_records, running

COLUMNS = {"a": types.int_(), "s": types.string()}
SCHEMA = Schema.of([Column(name, t) for name, t in COLUMNS.items()])


def new_table(bench: Bench, name: str, batches: int = 0, **options: object) -> int:
    created = bench.create(name, COLUMNS, **options)  # type: ignore[arg-type]
    for i in range(batches):
        assert not bench.append(created, log_records([10 * i + j for j in range(10)])).error_code
    return created


def numbers(records: bytes, schema: Schema = SCHEMA) -> list[int]:
    found = []
    for position, header in iter_headers(records):
        found += decode_arrow_batch(records, position, header, schema).column("a").to_pylist()
    return found


def test_batches_come_back_with_server_offsets_and_monotonic_timestamps(bench):
    created = new_table(bench, "roundtrip", 3)
    answer = bench.fetch(created)
    headers = [header for _, header in iter_headers(answer.records)]
    assert [h.base_offset for h in headers] == [0, 10, 20]
    times = [h.commit_timestamp_ms for h in headers]
    assert times == sorted(times)
    assert times[0] > 1_600_000_000_000
    assert numbers(answer.records) == list(range(30))
    assert (answer.high_watermark, answer.log_start_offset, answer.HasField("log_start_offset")) == (30, 0, True)


def test_a_fetch_begins_with_the_batch_that_holds_the_offset(bench):
    created = new_table(bench, "offsets", 3)
    assert numbers(bench.fetch(created, 15).records) == list(range(10, 30))
    assert numbers(bench.fetch(created, -2).records) == list(range(30))
    assert numbers(bench.fetch(created, 30).records) == []


@pytest.mark.parametrize("offset", [31, -1, -3, 2**60])
def test_offsets_outside_the_log_are_an_error(bench, offset):
    created = new_table(bench, f"range{offset}".replace("-", "m"), 3)
    assert bench.fetch(created, offset).error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION


def test_at_least_one_batch_is_returned_whatever_the_limit(bench):
    created = new_table(bench, "limits", 3)
    assert numbers(bench.fetch(created, 0, bytes_max=1).records) == list(range(10))
    projected = bench.fetch(created, 0, bytes_max=1, projected_fields=[0])
    assert numbers(projected.records, Schema(SCHEMA.columns[:1])) == list(range(10))


def test_the_request_limit_is_shared_and_only_the_first_bucket_may_exceed_it(bench):
    created = bench.create("shared", COLUMNS, buckets=3)
    for bucket in range(3):
        bench.append(created, log_records(list(range(10))), bucket=bucket)
    request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1)
    table = request.tables_req.add(table_id=created, projection_pushdown_enabled=False)
    for bucket in range(3):
        table.buckets_req.add(bucket_id=bucket, fetch_offset=0, max_fetch_bytes=1 << 20)
    answers = bench.tablet.call(ApiKey.FETCH_LOG, request).tables_resp[0].buckets_resp
    assert [len(numbers(a.records)) for a in answers] == [10, 0, 0]
    assert [a.bucket_id for a in answers] == [0, 1, 2]


def test_a_long_poll_waits_and_wakes_when_records_arrive(bench):
    created = new_table(bench, "polled")
    with RawClient(bench.server.addresses.tablet_servers) as reader:
        request_id = reader.send(ApiKey.FETCH_LOG, bench.fetch_request(created, 0, wait_ms=600_000))
        until(lambda: bench.server.server.context.notifier._waiters, "the poll waits")
        bench.append(created, log_records([1]))
        answer = reader.receive(request_id).tables_resp[0].buckets_resp[0]
        assert numbers(answer.records) == [1]


def test_a_long_poll_without_news_ends_empty_after_its_time(bench):
    created = new_table(bench, "silent")
    started = time.monotonic()
    answer = bench.fetch(created, 0, wait_ms=300)
    assert time.monotonic() - started >= 0.25
    assert (answer.error_code, answer.records, answer.high_watermark) == (0, b"", 0)


def test_a_long_poll_on_a_table_that_is_dropped_ends_with_its_time_and_says_so(bench):
    created = new_table(bench, "going")
    with RawClient(bench.server.addresses.tablet_servers) as reader:
        bench.fetch(created)
        request_id = reader.send(ApiKey.FETCH_LOG, bench.fetch_request(created, 0, wait_ms=1000))
        bench.coordinator.call(
            ApiKey.DROP_TABLE, pb.DropTableRequest(table_path=bench.path("going"), ignore_if_not_exists=False)
        )
        answer = reader.receive(request_id).tables_resp[0].buckets_resp[0]
    if not answer.error_code:  # its time was over before the table was gone
        answer = bench.fetch(created)
    assert answer.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


# ---- projection and filters -----------------------------------------------------------------------------------------


def test_projection_returns_just_these_columns(bench):
    created = new_table(bench, "projected", 2)
    only_a = Schema(SCHEMA.columns[:1])
    assert numbers(bench.fetch(created, 0, projected_fields=[0]).records, only_a) == list(range(20))


@pytest.mark.parametrize("fields", [[], [1, 0], [0, 0], [2], [-1]])
def test_impossible_projections_are_refused(bench, fields):
    created = new_table(bench, "p" + "".join(str(f).replace("-", "m") for f in fields), 1)
    request = bench.fetch_request(created, 0, projected_fields=fields)
    answer = bench.tablet.call(ApiKey.FETCH_LOG, request).tables_resp[0].buckets_resp[0]
    assert answer.error_code == ErrorCode.INVALID_COLUMN_PROJECTION


def test_only_arrow_logs_can_be_projected(bench):
    created = bench.create("row_wise", COLUMNS, properties={"table.log.format": "INDEXED"})
    assert bench.fetch(created, 0, projected_fields=[0]).error_code == ErrorCode.INVALID_COLUMN_PROJECTION


def test_filters_drop_batches_by_their_statistics_and_say_how_far_they_looked(bench):
    created = new_table(bench, "filtered", properties={"table.statistics.columns": "*"})
    for i in range(4):
        bench.append(created, log_records([10 * i + j for j in range(10)], statistics_columns=[0, 1]))

    def fetch(predicate, offset=0, **options):
        return bench.fetch(
            created, offset, filter_predicate=predicate_to_pb(predicate, SCHEMA), filter_schema_id=1, **options
        )

    answer = fetch((col("a") >= 12) & (col("a") < 14))
    assert numbers(answer.records) == list(range(10, 20))
    assert numbers(fetch((col("a") == 5) | (col("a") == 35)).records) == [*range(10), *range(30, 40)]
    nothing = fetch(col("a") > 1000)
    assert (nothing.records, nothing.filtered_end_offset) == (b"", 40)
    projected = fetch(col("a") == 25, projected_fields=[0])
    assert numbers(projected.records, Schema(SCHEMA.columns[:1])) == list(range(20, 30))


@pytest.mark.parametrize(("field_id", "schema_id"), [(99, 1), (0, 7)])
def test_a_filter_that_does_not_fit_the_schema_is_left_to_the_client(bench, field_id, schema_id):
    created = new_table(bench, f"misfit{schema_id}", 1)
    predicate = predicate_to_pb(col("a") == 5, SCHEMA)
    predicate.leaf.field_id = field_id
    answer = bench.fetch(created, 0, filter_predicate=predicate, filter_schema_id=schema_id)
    assert numbers(answer.records) == list(range(10))


def test_a_filter_without_a_schema_is_one_of_the_latest(bench):
    created = new_table(bench, "unversioned", properties={"table.statistics.columns": "*"})
    bench.append(created, log_records(list(range(10)), statistics_columns=[0, 1]))
    predicate = predicate_to_pb(col("a") > 1000, SCHEMA)
    nothing = bench.fetch(created, 0, filter_predicate=predicate)
    assert (nothing.records, nothing.filtered_end_offset) == (b"", 10)


def test_all_columns_may_be_requested_and_not_one_more(bench):
    created = new_table(bench, "projected_whole", 1)
    assert numbers(bench.fetch(created, 0, projected_fields=[0, 1]).records) == list(range(10))
    request = bench.fetch_request(created, 0, projected_fields=[0, 1, 0])
    answer = bench.tablet.call(ApiKey.FETCH_LOG, request).tables_resp[0].buckets_resp[0]
    assert answer.error_code == ErrorCode.INVALID_COLUMN_PROJECTION
    assert "3 columns are requested" in answer.error_message


def test_of_a_bucket_that_is_named_twice_the_last_word_counts(bench):
    created = new_table(bench, "twice", 3)
    request = bench.fetch_request(created, 0)
    request.tables_req[0].buckets_req.add(bucket_id=0, fetch_offset=20, max_fetch_bytes=1 << 20)
    (answer,) = bench.tablet.call(ApiKey.FETCH_LOG, request).tables_resp[0].buckets_resp
    assert numbers(answer.records) == list(range(20, 30))


def test_a_long_poll_waits_for_as_many_bytes_as_are_requested(bench):
    created = new_table(bench, "patient", 1)
    size = len(bench.fetch(created).records)
    with RawClient(bench.server.addresses.tablet_servers) as reader:
        request = bench.fetch_request(created, 0, wait_ms=600_000)
        request.min_bytes = size
        enough = reader.call(ApiKey.FETCH_LOG, request).tables_resp[0].buckets_resp[0]
        assert numbers(enough.records) == list(range(10))
        request.min_bytes = size + 1
        request_id = reader.send(ApiKey.FETCH_LOG, request)
        threading.Timer(0.2, lambda: bench.append(created, log_records([1]))).start()
        answer = reader.receive(request_id).tables_resp[0].buckets_resp[0]
        assert numbers(answer.records) == [*range(10), 1]


def found(size: int = 0, *, error: BaseException | None = None, filtered: int | None = None) -> fetch._BucketFetch:
    table = fetch._TableFetch(None, None, 0)
    return fetch._BucketFetch(TableBucket(1, 0), 0, 1, table, size=size, error=error, filtered_end_offset=filtered)


def test_what_ends_a_long_poll():
    assert fetch._is_answerable([found(60), found(40)], 100)
    assert not fetch._is_answerable([found(60), found(39)], 100)
    assert fetch._is_answerable([found(), found(filtered=0)], 100)
    assert fetch._is_answerable([found(), found(error=ValueError("a fault"))], 100)
    assert fetch._is_answerable([found(error=InvalidRequest("gone", ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION))], 100)
    for code in fetch._RETRIABLE_WITHOUT_HURRY:
        assert not fetch._is_answerable([found(error=InvalidRequest("soon", code))], 1)
        assert fetch._is_answerable([found(error=InvalidRequest("soon", code)), found(1)], 1)


def test_batches_side_by_side_are_sent_in_one_piece():
    batches = [make_batch(1, bytes(size)) for size in (1, 2, 3, 4, 5)]
    data = memoryview(b"".join(batches))
    starts = [sum(map(len, batches[:i])) for i in range(5)]
    for chosen in ([0], [4], [0, 1], [3, 4], [0, 2, 4], [0, 1, 3, 4], [1, 2, 3], [0, 1, 2, 3, 4]):
        pieces = fetch._pieces(data, [starts[i] for i in chosen])
        assert b"".join(pieces) == b"".join(batches[i] for i in chosen), chosen
        assert len(pieces) == sum(i - 1 not in chosen for i in chosen), chosen


# ---- how much, and how long -----------------------------------------------------------------------------------------


def test_without_a_word_about_waiting_an_answer_waits_only_for_bytes_that_are_requested(bench, monkeypatch):
    monkeypatch.setattr(fetch, "_MIN_BYTES_WAIT_MS", 60_000)
    created = new_table(bench, "wordless")
    request = bench.fetch_request(created, 0)
    request.ClearField("max_wait_ms")
    request.ClearField("min_bytes")
    with RawClient(bench.server.addresses.tablet_servers) as reader:
        assert not reader.call(ApiKey.FETCH_LOG, request).tables_resp[0].buckets_resp[0].records
        request.min_bytes = 0
        assert not reader.call(ApiKey.FETCH_LOG, request).tables_resp[0].buckets_resp[0].records
        request.min_bytes = 1
        request_id = reader.send(ApiKey.FETCH_LOG, request)
        writing = threading.Timer(0.1, lambda: bench.append(created, log_records([1])))
        writing.start()
        assert numbers(reader.receive(request_id).tables_resp[0].buckets_resp[0].records) == [1]
        writing.join()


@pytest.mark.parametrize(("count", "waits"), [(3, True), (4, False)])
def test_a_request_about_very_many_buckets_does_not_wait_for_news(bench, monkeypatch, count, waits):
    monkeypatch.setattr(fetch, "SHORT_LIST", 3)
    monkeypatch.setattr(fetch, "_LONG_REQUEST_WAIT_MS", 0)
    created = new_table(bench, f"many{count}", buckets=4)
    request = bench.fetch_request(created, 0, wait_ms=600_000)
    for bucket in range(1, count):
        request.tables_req[0].buckets_req.add(bucket_id=bucket, fetch_offset=0, max_fetch_bytes=1 << 20)
    with RawClient(bench.server.addresses.tablet_servers) as reader:
        request_id = reader.send(ApiKey.FETCH_LOG, request)
        writing = threading.Timer(0.2, lambda: bench.append(created, log_records([1])))
        if waits:
            writing.start()
        answers = reader.receive(request_id).tables_resp[0].buckets_resp
        if waits:
            writing.join()
    assert [bool(each.records) for each in answers] == [waits, *[False] * (count - 1)]


def test_a_fetch_that_is_over_watches_no_bucket_and_one_that_waits_holds_no_memory(bench):
    created = new_table(bench, "watched")
    context, pools = bench.server.server.context, bench.server.server.connections.memory_pools
    with RawClient(bench.server.addresses.tablet_servers) as reader:
        request_id = reader.send(ApiKey.FETCH_LOG, bench.fetch_request(created, 0, wait_ms=600_000))
        until(lambda: TableBucket(created, 0) in context.notifier._waiters, "the beginning of the wait")
        until(lambda: pools.responses.used == pools.short_responses.used == 0, "the end of its memory")
        bench.append(created, log_records([1]))
        assert reader.receive(request_id).tables_resp[0].buckets_resp[0].records
    until(lambda: TableBucket(created, 0) not in context.notifier._waiters, "the end of the wait")


def test_a_long_poll_looks_again_only_when_there_is_news(bench, monkeypatch):
    created = new_table(bench, "patient_news")
    looks, read_all = [], fetch._read_all

    async def counted(*args):
        looks.append(1)
        await read_all(*args)

    monkeypatch.setattr(fetch, "_read_all", counted)
    request = bench.fetch_request(created, 0, wait_ms=600_000)
    request.min_bytes = 10_000
    with RawClient(bench.server.addresses.tablet_servers) as reader:
        request_id = reader.send(ApiKey.FETCH_LOG, request)
        until(lambda: len(looks) == 1, "the first look")
        bench.append(created, log_records([1]))
        until(lambda: len(looks) > 1, "the second look")
        writing = threading.Timer(0.2, lambda: bench.append(created, log_records(list(range(5000)))))
        writing.start()
        assert reader.receive(request_id).tables_resp[0].buckets_resp[0].records
    writing.join()
    assert len(looks) < 10


def test_an_answer_is_as_long_as_is_requested_with_all_columns_and_without(bench):
    created = new_table(bench, "measured")
    for _ in range(20):
        bench.append(created, log_records(list(range(10))))
    one = len(bench.fetch(created, 190).records)
    for batches in (1, 2, 3):
        assert len(bench.fetch(created, 0, bytes_max=batches * one).records) == batches * one
        assert len(bench.fetch(created, 0, bytes_max=batches * one - 1).records) == max(batches - 1, 1) * one
    narrow = len(bench.fetch(created, 190, projected_fields=[0]).records)
    for batches in (1, 2, 20):
        projected = bench.fetch(created, 0, bytes_max=batches * narrow, projected_fields=[0])
        assert len(projected.records) == batches * narrow


def test_an_offset_that_is_not_there_is_told_although_there_is_no_room_for_records(bench):
    created = new_table(bench, "crowded", buckets=2)
    bench.append(created, log_records([1]))
    request = bench.fetch_request(created, 0)
    request.max_bytes = 1
    request.tables_req[0].buckets_req.add(bucket_id=1, fetch_offset=7, max_fetch_bytes=1 << 20)
    first, second = bench.tablet.call(ApiKey.FETCH_LOG, request).tables_resp[0].buckets_resp
    assert numbers(first.records) == [1]
    assert second.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION


def test_a_filter_that_is_too_long_is_left_to_the_client(bench, monkeypatch):
    created = new_table(bench, "long_filter", properties={"table.statistics.columns": "*"})
    bench.append(created, log_records(list(range(10)), statistics_columns=[0, 1]))
    predicate = predicate_to_pb(col("a") > 1000, SCHEMA)
    for longest, count in ((predicate.ByteSize(), 0), (predicate.ByteSize() - 1, 10)):
        monkeypatch.setattr(request_filters, "_FILTER_BYTES_MAX", longest)
        answer = bench.fetch(created, 0, filter_predicate=predicate, filter_schema_id=1)
        assert len(numbers(answer.records)) == count


def test_what_a_bucket_holds_is_read_at_once_also_where_it_has_to_be_opened_first(tmp_path):
    with running(tmp_path / "data") as bench:
        created = new_table(bench, "t", 300)
        whole = bytes(bench.fetch(created, 0).records)
    assert len(whole) > fetch._ROOM_BYTES_MIN
    with running(tmp_path / "data") as bench:
        assert bytes(bench.fetch(created, 0).records) == whole
        assert bytes(bench.fetch(created, 0).records) == whole


# ---- offsets --------------------------------------------------------------------------------------------------------


def offsets(bench: Bench, table_id: int, kind: int, timestamp: int | None = None):
    request = pb.ListOffsetsRequest(
        follower_server_id=-1, offset_type=kind, table_id=table_id, bucket_id=[0], startTimestamp=timestamp
    )
    return bench.tablet.call(ApiKey.LIST_OFFSETS, request).buckets_resp[0]


def test_offsets_by_place_and_by_time(bench):
    created = new_table(bench, "timed")
    before = int(time.time() * 1000)
    time.sleep(0.01)
    bench.append(created, log_records([1, 2]))
    time.sleep(0.02)
    middle = int(time.time() * 1000)
    time.sleep(0.01)
    bench.append(created, log_records([3]))
    time.sleep(0.02)
    after = int(time.time() * 1000)
    assert (offsets(bench, created, 0).offset, offsets(bench, created, 1).offset) == (0, 3)
    assert [offsets(bench, created, 2, t).offset for t in (0, before, middle, after)] == [0, 0, 2, 3]
    late = offsets(bench, created, 2, after + 3_600_000)
    assert (late.error_code, late.HasField("offset")) == (ErrorCode.INVALID_TIMESTAMP_EXCEPTION, False)


@pytest.mark.parametrize("looks", [3, 7])
def test_offsets_by_time_wait_for_rows_of_transactions_with_growing_pauses(bench, monkeypatch, looks: int):
    created = new_table(bench, f"settling_{looks}", 1)
    at, pauses, left = int(time.time() * 1000) - 60_000, [], [looks]

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    def settle(log: LogTablet, timestamp_ms: int) -> bool:
        left[0] -= 1
        return left[0] < 0

    monkeypatch.setattr(LogTablet, "settle_time", settle)
    monkeypatch.setattr(offset_handlers, "asyncio", SimpleNamespace(sleep=sleep))
    assert offsets(bench, created, 2, at).offset == 0
    assert pauses == [0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05][:looks]


def test_rows_are_shown_while_a_time_is_searched(bench, monkeypatch):
    """A search may read the store: who shows rows does not wait for it."""
    created = new_table(bench, "searched", 1)
    search, free = LogTablet.offset_for_timestamp, []

    def searched(log: LogTablet, *arguments: Any) -> int | None:
        showing = bench.server.server.context.replicas.showing
        free.append(showing.acquire(blocking=False))
        showing.release()
        return search(log, *arguments)

    monkeypatch.setattr(LogTablet, "offset_for_timestamp", searched)
    assert offsets(bench, created, 2, 0).offset == 0
    assert free == [True]


def test_offsets_by_time_do_not_wait_for_ever(bench, monkeypatch):
    created = new_table(bench, "unsettled", 1)
    monkeypatch.setattr(LogTablet, "settle_time", lambda *_: False)
    monkeypatch.setattr(offset_handlers, "_SETTLE_SECONDS", 0.01)
    answer = offsets(bench, created, 2, int(time.time() * 1000) - 60_000)
    assert answer.error_code == ErrorCode.REQUEST_TIME_OUT
    assert "the rows of a transaction are being written to table fluss.unsettled" in answer.error_message


def test_table_stats_count_rows(bench):
    log_table, kv_table = new_table(bench, "counted", 2), bench.create("counted_kv", KV_COLUMNS, ["id"])
    bench.put(kv_table, kv_records([{"id": 1}, {"id": 2}, {"id": 1}]))
    wal = bench.create("uncounted", KV_COLUMNS, ["id"], properties={"table.changelog.image": "WAL"})
    bench.put(wal, kv_records([{"id": 1}]))

    def count(table_id: int):
        request = pb.GetTableStatsRequest(table_id=table_id)
        request.buckets_req.add(bucket_id=0)
        return bench.tablet.call(ApiKey.GET_TABLE_STATS, request).buckets_resp[0]

    assert (count(log_table).row_count, count(kv_table).row_count) == (20, 2)
    assert count(wal).error_code == ErrorCode.INVALID_TABLE_EXCEPTION
