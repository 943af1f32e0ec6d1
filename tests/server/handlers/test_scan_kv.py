"""ScanKv on the wire: the rules of FIP-17 in the order in which a Fluss server checks them."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.base.errors import ErrorCode
from tests.kv.tables import FakeTable
from tests.server.handlers.kv_scans import go_on, open_request, scan
from tests.server.raw_client import ApiKey, RawClient, pb
from tests.server.running import KV_COLUMNS, Bench, kv_key, kv_records, running

TABLE = FakeTable()


@pytest.fixture(scope="module")
def table_id(bench: Bench) -> int:
    """A table of 100 rows."""
    created = bench.create("scanned", KV_COLUMNS, ["id"])
    bench.put(created, kv_records([{"id": i, "name": f"n{i}", "score": i} for i in range(100)]))
    return created


def close(client: RawClient, scanner_id: bytes) -> Any:
    return scan(client, pb.ScanKvRequest(scanner_id=scanner_id, close_scanner=True))


def scan_all(client: RawClient, request: pb.ScanKvRequest) -> list[Any]:
    answers = [scan(client, request)]
    while answers[-1].has_more_results:
        answers.append(go_on(client, answers[0].scanner_id, len(answers), request.batch_size_bytes))
    return answers


def rows_of(answers: list[Any]) -> list[dict[str, Any]]:
    return [row for answer in answers for row in TABLE.rows_of_page(answer.records)]


def test_a_scan_in_pages_gives_every_row_once(bench, table_id):
    answers = scan_all(bench.tablet, open_request(table_id))
    assert len(answers) > 5
    assert sorted(row["id"] for row in rows_of(answers)) == list(range(100))
    assert answers[0].log_offset == 100
    assert not any(answer.HasField("log_offset") for answer in answers[1:])
    assert {answer.scanner_id for answer in answers} == {answers[0].scanner_id}
    assert len(answers[0].scanner_id) == 32


def test_open_and_all_rows_in_one_request(bench, table_id):
    (answer,) = scan_all(bench.tablet, open_request(table_id, size=1 << 20))
    assert len(rows_of([answer])) == 100
    assert go_on(bench.tablet, answer.scanner_id, 1).error_code == ErrorCode.UNKNOWN_SCANNER_ID


@pytest.mark.parametrize(("limit", "rows"), [(1, 1), (7, 7), (100, 100), (1000, 100), (0, 100), (-3, 100)])
def test_the_limit_counts_over_all_pages(bench, table_id, limit, rows):
    assert len(rows_of(scan_all(bench.tablet, open_request(table_id, limit=limit)))) == rows


@pytest.mark.parametrize("size", [1, 2**31 - 1])
def test_batch_sizes_from_one_byte_to_the_greatest(bench, table_id, size):
    answers = scan_all(bench.tablet, open_request(table_id, size=size))
    assert len(answers) == (100 if size == 1 else 1)
    assert len(rows_of(answers)) == 100


def test_an_oversize_batch_size_is_clamped(tmp_path):
    with running(tmp_path / "data", kv_scanner_max__batch__size="300b") as own:
        created = own.create("t", KV_COLUMNS, ["id"])
        own.put(created, kv_records([{"id": i} for i in range(200)]))
        answer = scan(own.tablet, open_request(created, size=1 << 30))
        assert answer.has_more_results
        assert len(answer.records) < 400


def test_an_empty_bucket_answers_at_once_with_its_offset(bench):
    created = bench.create("empty", KV_COLUMNS, ["id"])
    answer = scan(bench.tablet, open_request(created, call=None))
    assert (answer.has_more_results, answer.log_offset, answer.error_code) == (False, 0, 0)
    assert not answer.HasField("scanner_id")
    assert not answer.HasField("records")


@pytest.mark.parametrize(
    "request_",
    [
        pb.ScanKvRequest(),
        pb.ScanKvRequest(batch_size_bytes=100, call_seq_id=0),
        pb.ScanKvRequest(scanner_id=b"x", call_seq_id=1),
        pb.ScanKvRequest(scanner_id=b"x", call_seq_id=1, batch_size_bytes=0),
        pb.ScanKvRequest(scanner_id=b"x", call_seq_id=1, batch_size_bytes=-5),
    ],
)
def test_requests_without_target_or_size_are_invalid(bench, request_):
    assert scan(bench.tablet, request_).error_code == ErrorCode.INVALID_SCAN_REQUEST


def test_opening_and_continuing_or_closing_at_once_is_invalid(bench, table_id):
    both = open_request(table_id)
    both.scanner_id = b"x"
    closing = open_request(table_id)
    closing.close_scanner = True
    for request in (both, closing):
        assert scan(bench.tablet, request).error_code == ErrorCode.INVALID_SCAN_REQUEST


@pytest.mark.parametrize("call", [None, 1, 5, -1])
def test_a_scan_must_begin_with_call_zero(bench, table_id, call):
    before = bench.server.server.context.scanners.session_count
    assert scan(bench.tablet, open_request(table_id, call=call)).error_code == ErrorCode.INVALID_SCAN_REQUEST
    assert bench.server.server.context.scanners.session_count == before


@pytest.mark.parametrize("call", [None, 2, 5, -1])
def test_a_call_out_of_order_fails_and_ends_the_scan(bench, table_id, call):
    scanner_id = scan(bench.tablet, open_request(table_id)).scanner_id
    answer = go_on(bench.tablet, scanner_id, call)
    assert answer.error_code == ErrorCode.INVALID_SCAN_REQUEST
    assert "Out-of-order" in answer.error_message
    assert go_on(bench.tablet, scanner_id, 1).error_code == ErrorCode.UNKNOWN_SCANNER_ID


def test_a_lost_page_can_be_requested_again(bench, table_id):
    first = scan(bench.tablet, open_request(table_id))
    second = go_on(bench.tablet, first.scanner_id, 1)
    assert go_on(bench.tablet, first.scanner_id, 1) == second
    with RawClient(bench.server.addresses.tablet_servers) as another_connection:
        assert go_on(another_connection, first.scanner_id, 1) == second
    close(bench.tablet, first.scanner_id)


def test_close_is_idempotent_and_unknown_ids_are_fine(bench, table_id):
    scanner_id = scan(bench.tablet, open_request(table_id)).scanner_id
    for _ in range(2):
        answer = close(bench.tablet, scanner_id)
        assert (answer.error_code, answer.has_more_results) == (0, False)
        assert not answer.HasField("records")
    assert go_on(bench.tablet, scanner_id, 1).error_code == ErrorCode.UNKNOWN_SCANNER_ID
    assert close(bench.tablet, b"never was").error_code == 0


def test_a_scan_does_not_see_writes_that_came_after_it(bench):
    """1a: writer moves values, deletes and reinserts keys during a scan: each key once, value as of log_offset."""
    created = bench.create("isolated", KV_COLUMNS, ["id"])
    bench.put(created, kv_records([{"id": i, "name": "old"} for i in range(50)]))
    first = scan(bench.tablet, open_request(created))
    bench.put(created, kv_records([{"id": i, "name": "new"} for i in range(0, 80, 2)]))
    bench.put(created, kv_records([{"id": i} for i in range(50)], [i % 3 == 0 for i in range(50)]))
    answers = [first]
    while answers[-1].has_more_results:
        answers.append(go_on(bench.tablet, first.scanner_id, len(answers)))
    assert sorted((row["id"], row["name"]) for row in rows_of(answers)) == [(i, "old") for i in range(50)]
    assert first.log_offset == 50


def test_errors_travel_in_the_answer_not_as_frames(bench, table_id):
    log_table = bench.create("a_log", {"a": KV_COLUMNS["id"]})
    assert scan(bench.tablet, open_request(log_table)).error_code == ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION
    for target in (open_request(999_999), open_request(table_id, bucket=7), open_request(table_id, partition_id=3)):
        assert scan(bench.tablet, target).error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


def test_too_many_scans_of_one_bucket(bench, table_id):
    open_ids = [scan(bench.tablet, open_request(table_id)).scanner_id for _ in range(8)]
    assert scan(bench.tablet, open_request(table_id)).error_code == ErrorCode.TOO_MANY_SCANNERS
    for scanner_id in open_ids:
        close(bench.tablet, scanner_id)
    assert not scan(bench.tablet, open_request(table_id, size=1 << 20)).error_code


def test_500_buckets_50_concurrent_scans_get_a_clear_error_and_no_starvation(tmp_path):
    with running(tmp_path / "data", kv_scanner_max__per__server="30") as own:
        created = own.create("wide", KV_COLUMNS, ["id"], buckets=40)
        for bucket in range(40):
            own.put(created, kv_records([{"id": i} for i in range(3)]), bucket=bucket)
        ids = [own.tablet.send(ApiKey.SCAN_KV, open_request(created, bucket=b, size=1)) for b in range(40)]
        answers = [own.tablet.receive(i) for i in ids]
        refused = [a for a in answers if a.error_code]
        assert len(refused) == 10
        assert {a.error_code for a in refused} == {ErrorCode.TOO_MANY_SCANNERS}
        for answer in answers:
            if not answer.error_code:
                rows = [answer]
                while rows[-1].has_more_results:
                    rows.append(go_on(own.tablet, answer.scanner_id, len(rows)))
                assert len(rows_of(rows)) == 3
        assert own.server.server.context.scanners.session_count == 0


def test_a_scan_that_idles_too_long_expires_and_is_told_so(tmp_path):
    with running(tmp_path / "data", kv_scanner_ttl="50ms", kv_scanner_expiration__interval="20ms") as own:
        created = own.create("t", KV_COLUMNS, ["id"])
        own.put(created, kv_records([{"id": i} for i in range(100)]))
        scanner_id = scan(own.tablet, open_request(created)).scanner_id
        manager = own.server.server.context.scanners
        while manager.session_count:
            pass
        assert go_on(own.tablet, scanner_id, 1).error_code == ErrorCode.SCANNER_EXPIRED


def test_dropping_the_table_ends_its_scans(bench):
    created = bench.create("dropped", KV_COLUMNS, ["id"])
    bench.put(created, kv_records([{"id": i} for i in range(100)]))
    scanner_id = scan(bench.tablet, open_request(created)).scanner_id
    bench.coordinator.call(
        ApiKey.DROP_TABLE, pb.DropTableRequest(table_path=bench.path("dropped"), ignore_if_not_exists=False)
    )
    assert go_on(bench.tablet, scanner_id, 1).error_code == ErrorCode.SCANNER_EXPIRED
    assert scan(bench.tablet, open_request(created)).error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


def test_rows_of_older_schemas_keep_their_schema_id_in_the_page(bench):
    created = bench.create("evolving", KV_COLUMNS, ["id"])
    bench.put(created, kv_records([{"id": 1, "name": "a"}]))
    change = pb.AlterTableRequest(table_path=bench.path("evolving"), ignore_if_not_exists=False)
    change.add_columns.add(column_name="extra", data_type_json=b'{"type":"INTEGER"}', column_position_type=0)
    bench.coordinator.call(ApiKey.ALTER_TABLE, change)
    evolved = FakeTable()
    evolved.add_column(type(evolved.info.schema.columns[0])("extra", KV_COLUMNS["id"].as_nullable()))
    bench.put(created, bytes(evolved.request([{"id": 2, "name": "b", "extra": 5}]).records))
    (answer,) = scan_all(bench.tablet, open_request(created, size=1 << 20))
    assert evolved.rows_of_page(answer.records) == [
        {"id": 1, "name": "a", "score": None, "extra": None},
        {"id": 2, "name": "b", "score": None, "extra": 5},
    ]


def test_read_your_writes_after_ack_for_each_acks_level(bench):
    """1a (F#3852)."""
    created = bench.create("acked", KV_COLUMNS, ["id"])
    for number, acks in enumerate((1, -1)):
        bench.put(created, kv_records([{"id": number}]), acks=acks)
        assert bench.lookup(created, [kv_key(number)]).values[0].HasField("values")
        assert len(rows_of(scan_all(bench.tablet, open_request(created)))) == number + 1
        assert bench.log_end(created) == number + 1
