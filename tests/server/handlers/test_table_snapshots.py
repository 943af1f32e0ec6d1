"""Table snapshots on the wire: one point in time for all buckets, pages of ScanKv, ends, and what plain clients see."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest, LimitExceeded, NotFound, Unavailable
from forebay.base.threads import WriteGate
from forebay.kv.engine import KvSnapshot
from forebay.kv.tablet import KvTablet, PutRequest
from forebay.metadata.table import TableBucket
from forebay.server.flow.write_queue import FutureReceiver
from forebay.server.server import Injected
from forebay.server.storage.write_command import PutCommand
from tests.kv.tables import FakeTable
from tests.patience import PATIENCE
from tests.server.handlers.snapshot_pages import open_snapshot, page_request
from tests.server.raw_client import ApiKey, pb
from tests.server.running import KV_COLUMNS, LOG_SCHEMA, Bench, kv_records, running

TABLE = FakeTable()


def table_of(bench: Bench, name: str, buckets: int = 2, rows: int = 20, **options: Any) -> int:
    """A table with `rows` rows in each bucket (whatever the keys' own buckets are)."""
    created = bench.create(name, KV_COLUMNS, ["id"], buckets=buckets, **options)
    for bucket in range(buckets):
        if rows:
            records = kv_records([{"id": 1000 * bucket + i, "name": f"n{i}", "score": 0} for i in range(rows)])
            bench.put(created, records, bucket=bucket)
    return created


def page(bench: Bench, *args: Any, **fields: Any) -> Any:
    return bench.tablet.call(ApiKey.SCAN_KV, page_request(*args, **fields))


def rows_in(bench: Bench, opened: Any, table_id: int, bucket: int = 0, size: int = 200) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    answer = page(bench, opened, table_id, bucket, size)
    while True:
        assert not answer.error_code, answer
        rows += TABLE.rows_of_page(answer.records)
        if not answer.has_more_results:
            return rows
        answer = page(bench, opened, table_id, bucket, size, resume_after=answer.position)


def test_all_buckets_are_pinned_with_the_offsets_that_belong_to_them(bench):
    created = table_of(bench, "pinned", buckets=3)
    opened = open_snapshot(bench, created, lease_ms=30_000)
    assert opened.lease_ms == 30_000
    assert [(b.bucket_id, b.log_offset, b.row_count) for b in opened.buckets] == [(0, 20, 20), (1, 20, 20), (2, 20, 20)]
    bench.put(created, kv_records([{"id": i, "name": "later", "score": 1} for i in range(10, 30)]))
    for bucket in range(3):
        for _ in range(2):
            rows = rows_in(bench, opened, created, bucket)
            assert [row["id"] for row in rows] == [1000 * bucket + i for i in range(20)]
            assert {row["score"] for row in rows} == {0}
    bench.tablet.call(
        ApiKey.RELEASE_TABLE_SNAPSHOT, pb.ReleaseTableSnapshotRequest(table_snapshot_id=opened.table_snapshot_id)
    )
    assert page(bench, opened, created).error_code == ErrorCode.SCANNER_EXPIRED


def test_a_page_of_a_snapshot_has_no_scanner_and_counts_against_no_limit_of_scanners(tmp_path):
    with running(tmp_path / "data", kv_scanner_max__per__bucket="1", kv_scanner_max__per__server="1") as own:
        created = table_of(own, "t", buckets=1)
        opened = open_snapshot(own, created)
        ids = [own.tablet.send(ApiKey.SCAN_KV, page_request(opened, created, size=1)) for _ in range(20)]
        answers = [own.tablet.receive(number) for number in ids]
        assert {answer.error_code for answer in answers} == {0}
        assert not any(answer.HasField("scanner_id") or answer.HasField("log_offset") for answer in answers)
        assert {bytes(answer.records) for answer in answers} == {bytes(answers[0].records)}
        assert own.server.server.context.scanners.session_count == 0


@pytest.mark.parametrize(
    "fields",
    [{"call_seq_id": 0}, {"scanner_id": b"x"}, {"close_scanner": True}, {"size": 0}],
)
def test_a_page_request_that_is_half_a_scan_request_is_invalid(bench, fields):
    created = table_of(bench, f"half{next(iter(fields))}", buckets=1, rows=1)
    opened = open_snapshot(bench, created)
    assert page(bench, opened, created, **fields).error_code == ErrorCode.INVALID_SCAN_REQUEST


def test_a_position_needs_a_snapshot_and_a_snapshot_needs_a_bucket(bench):
    created = table_of(bench, "alone", buckets=1, rows=1)
    request = page_request(open_snapshot(bench, created), created, resume_after=b"x")
    request.ClearField("table_snapshot_id")
    assert bench.tablet.call(ApiKey.SCAN_KV, request).error_code == ErrorCode.INVALID_SCAN_REQUEST
    no_bucket = pb.ScanKvRequest(table_snapshot_id=b"x", batch_size_bytes=10)
    assert bench.tablet.call(ApiKey.SCAN_KV, no_bucket).error_code == ErrorCode.INVALID_SCAN_REQUEST


@pytest.mark.parametrize("position", [b"", bytes(600)])
def test_nonsense_as_a_position_is_refused(bench, position):
    created = table_of(bench, f"nonsense{len(position)}", buckets=1, rows=1)
    answer = page(bench, open_snapshot(bench, created), created, resume_after=position)
    assert "position" in answer.error_message


def test_what_cannot_be_pinned_is_refused(bench):
    log = bench.create("log", {f.name: KV_COLUMNS["id"] if f.name == "a" else KV_COLUMNS["name"] for f in LOG_SCHEMA})
    with pytest.raises(InvalidRequest, match="no primary key"):
        open_snapshot(bench, log)
    with pytest.raises(Unavailable, match="no table with id"):
        open_snapshot(bench, 10**6)
    created = table_of(bench, "plain", buckets=1, rows=1)
    with pytest.raises(InvalidRequest, match="not partitioned"):
        open_snapshot(bench, created, partition_id=[7])
    with pytest.raises(InvalidRequest, match="lease"):
        open_snapshot(bench, created, lease_ms=0)


def test_a_limit_counts_the_rows_of_one_page(bench):
    created = table_of(bench, "limited", buckets=1)
    request = page_request(open_snapshot(bench, created), created, size=1 << 20)
    request.bucket_scan_req.limit = 7
    answer = bench.tablet.call(ApiKey.SCAN_KV, request)
    assert len(TABLE.rows_of_page(answer.records)) == 7
    assert answer.has_more_results


def test_a_dropped_table_takes_its_snapshots_along(bench):
    created = table_of(bench, "dropped")
    opened = open_snapshot(bench, created)
    bench.coordinator.call(
        ApiKey.DROP_TABLE, pb.DropTableRequest(table_path=bench.path("dropped"), ignore_if_not_exists=False)
    )
    answer = page(bench, opened, created)
    assert answer.error_code == ErrorCode.SCANNER_EXPIRED
    assert "open another" in answer.error_message
    assert listed(bench, created) == []


def listed(bench: Bench, table_id: int) -> list[Any]:
    answer = bench.tablet.call(ApiKey.LIST_TABLE_SNAPSHOTS, pb.ListTableSnapshotsRequest(table_id=table_id))
    return list(answer.table_snapshots)


def test_a_server_that_was_stopped_gracefully_or_not_knows_no_snapshots(tmp_path):
    with running(tmp_path / "data") as own:
        created = table_of(own, "t")
        opened = open_snapshot(own, created)
    with running(tmp_path / "data") as own:
        answer = page(own, opened, created)
        assert answer.error_code == ErrorCode.UNKNOWN_SCANNER_ID
        assert "open another one" in answer.error_message
        renew = pb.RenewTableSnapshotRequest(table_snapshot_id=opened.table_snapshot_id)
        with pytest.raises(NotFound, match="restarted"):
            own.tablet.call(ApiKey.RENEW_TABLE_SNAPSHOT, renew)
        assert rows_in(own, open_snapshot(own, created), created, 1)


def test_settings_bound_number_lease_and_age(tmp_path):
    clock = ManualClock()
    settings = {
        "kv_snapshot-handle_max__count": "1",
        "kv_snapshot-handle_max__lease": "20 s",
        "kv_snapshot-handle_max__age": "25 s",
    }
    with running(tmp_path / "data", Injected(clock=clock), **settings) as own:
        created = table_of(own, "t")
        opened = open_snapshot(own, created, lease_ms=10**9, name="me")
        assert opened.lease_ms == 20_000
        with pytest.raises(LimitExceeded, match=r"kv\.snapshot-handle\.max-count"):
            open_snapshot(own, created)
        clock.advance(15)
        assert rows_in(own, opened, created)
        (shown,) = listed(own, created)
        assert (shown.name, shown.age_ms, shown.lease_left_ms, shown.bucket_count) == ("me", 15_000, 10_000, 2)
        assert shown.pages > 0
        assert shown.read_bytes > 0
        clock.advance(11)
        assert page(own, opened, created).error_code == ErrorCode.SCANNER_EXPIRED
        assert open_snapshot(own, created)


# ---- one instant ----------------------------------------------------------------------------------------------------


def test_snapshots_are_listed_of_one_table_or_of_all(bench):
    ids = {}
    for name in ("listed_one", "listed_other"):
        created = table_of(bench, name, rows=1)
        ids[created] = open_snapshot(bench, created, lease_ms=30_000, name=f"of {name}").table_snapshot_id

    def listed(table_id: int | None = None) -> list[Any]:
        request = pb.ListTableSnapshotsRequest(table_id=table_id)
        return list(bench.tablet.call(ApiKey.LIST_TABLE_SNAPSHOTS, request).table_snapshots)

    assert set(ids.values()) <= {each.table_snapshot_id for each in listed()}
    for created, snapshot_id in ids.items():
        (one,) = listed(created)
        assert (one.table_snapshot_id, one.table_id, one.bucket_count) == (snapshot_id, created, 2)
        assert one.name.startswith("of listed_")
        assert 0 < one.lease_left_ms <= 30_000
    assert listed(1 << 40) == []
    for snapshot_id in ids.values():
        request = pb.ReleaseTableSnapshotRequest(table_snapshot_id=snapshot_id)
        bench.tablet.call(ApiKey.RELEASE_TABLE_SNAPSHOT, request)
    assert not {each.table_snapshot_id for each in listed()} & set(ids.values())


def test_no_write_lies_between_the_pins_of_two_buckets(bench, monkeypatch):
    """A write that comes while the first bucket is pinned waits, and is in no bucket of the snapshot."""
    created = table_of(bench, "instant", rows=1)
    context = bench.server.server.context
    last = context.replicas.begin(TableBucket(created, 1))
    put: list[Future[Any]] = []
    overtaken: list[Any] = []
    take = KvTablet.snapshot

    def snapshot(tablet: KvTablet) -> KvSnapshot:
        taken = take(tablet)
        if not put:
            records = kv_records([{"id": 5000, "name": "between", "score": 1}])
            written = FutureReceiver[Any]()
            last.submit(PutCommand.of(PutRequest(records)), written)
            put.append(written.future)
            with contextlib.suppress(TimeoutError):
                overtaken.append(put[0].result(0.3))
        return taken

    monkeypatch.setattr(KvTablet, "snapshot", snapshot)
    opened = open_snapshot(bench, created)
    assert overtaken == []
    assert put[0].result(PATIENCE).error is None
    assert [bucket.log_offset for bucket in opened.buckets] == [1, 1]
    assert [row["id"] for row in rows_in(bench, opened, created, 1)] == [1000]
    later = rows_in(bench, open_snapshot(bench, created), created, 1)
    assert {row["id"] for row in later} == {1000, 5000}


@pytest.mark.parametrize("names_partitions", [False, True])
def test_a_snapshot_of_all_partitions_misses_none_that_was_created_while_it_was_opened(
    bench, monkeypatch, names_partitions
):
    """A row in the new partition may have been acknowledged before one that the snapshot has."""
    created = bench.create(f"grown{names_partitions}", KV_COLUMNS, ["id", "name"], partition_keys=["name"])
    context = bench.server.server.context
    path = context.catalog.table_by_id(created).info.path
    context.catalog.create_partition(path, {"name": "a"}, False)
    [first] = context.catalog.table_by_id(created).current.partitions_by_id
    pin = context.replicas.pin

    def late(*args: Any, **named: Any) -> Any:
        context.catalog.create_partition(path, {"name": "b"}, True)
        return pin(*args, **named)

    monkeypatch.setattr(context.replicas, "pin", late)
    if names_partitions:
        assert [b.partition_id for b in open_snapshot(bench, created, partition_id=[first]).buckets] == [first]
        return
    with pytest.raises(Unavailable, match="has got or lost a partition"):
        open_snapshot(bench, created)
    assert len(open_snapshot(bench, created).buckets) == 2


def test_a_pin_that_fails_leaves_nothing_pinned_and_the_gate_open(bench, monkeypatch):
    created = table_of(bench, "failing", rows=1)
    taken: list[KvSnapshot] = []
    take = KvTablet.snapshot

    def snapshot(tablet: KvTablet) -> KvSnapshot:
        if taken:
            raise ForebayError("no snapshot today")
        taken.append(take(tablet))
        return taken[0]

    with monkeypatch.context() as patch:
        patch.setattr(KvTablet, "snapshot", snapshot)
        with pytest.raises(ForebayError, match="no snapshot today"):
            open_snapshot(bench, created)
    with pytest.raises(ForebayError, match="closed KV snapshot"):
        taken[0].values()
    assert not bench.put(created, kv_records([{"id": 1, "name": "x", "score": 1}])).error_code


def test_the_thread_that_closes_the_gate_waits_for_those_inside_and_keeps_later_ones_out():
    gate = WriteGate()
    events: list[str] = []
    inside, leave, reached = threading.Event(), threading.Event(), threading.Event()

    def write(name: str) -> None:
        with gate.passing():
            inside.set()
            assert leave.wait(PATIENCE)
            events.append(name)

    def close() -> None:
        reached.set()
        with gate.closed():
            events.append("closed")

    first = threading.Thread(target=write, args=("first",))
    first.start()
    assert inside.wait(PATIENCE)
    closing = threading.Thread(target=close)
    closing.start()
    assert reached.wait(PATIENCE)
    while not gate._is_closed:
        time.sleep(0.001)
    later = threading.Thread(target=write, args=("later",))
    later.start()
    leave.set()
    for thread in (first, closing, later):
        thread.join(PATIENCE)
    assert events == ["first", "closed", "later"]


def test_a_failure_inside_or_while_closed_opens_the_gate_again():
    gate = WriteGate()
    for way in (gate.passing, gate.closed):
        with pytest.raises(ValueError, match="no"), way():
            raise ValueError("no")
    with gate.closed():
        pass
    with gate.passing(), gate.passing():
        pass


# ---- other clients --------------------------------------------------------------------------------------------------


def test_each_role_lists_its_additions_and_their_numbers_are_not_those_of_fluss(bench):
    for client, expected in ((bench.tablet, 8), (bench.coordinator, 5)):
        answer = client.call(
            ApiKey.API_VERSIONS, pb.ApiVersionsRequest(client_software_name="fluss", client_software_version="1")
        )
        assert sum(version.api_key >= 20_000 for version in answer.api_versions) == expected
