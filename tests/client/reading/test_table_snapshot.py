"""Table snapshots: the same rows for all readers, any number of times, and the changelog that continues after them."""

from __future__ import annotations

import datetime as dt
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import forebay
from forebay.base.errors import ErrorCode, InvalidRequest, LimitExceeded, NotFound
from forebay.client.connection import connect
from forebay.client.reading.table_snapshot import TableSnapshot
from forebay.kv.engine import KvSnapshot
from forebay.kv.tablet import KvTablet
from forebay.protocol.api import ApiKey
from forebay.testing.server import EmbeddedServer, ServerProcess
from tests.client.conftest import MakeTable, own_server
from tests.client.proxy import CLOSE, CUT, DROP, PASS, Action, Frame, Proxy, only
from tests.client.reading.numbered_rows import numbered, replayed, rows_of, upsert
from tests.every_run import examples
from tests.patience import PATIENCE, until

pytestmark = own_server


def handles(server: EmbeddedServer | None) -> int:
    assert server is not None
    return len(server.server.context.table_snapshots.describe())


# ---- rows -----------------------------------------------------------------------------------------------------------


def test_a_bucket_scan_with_a_filter_asks_for_no_page_behind_its_limit(make_table, bootstrap):
    table = numbered(make_table, 2000, buckets=1, value=7)
    asked = []

    def count(frame: Frame) -> Action:
        if frame.key is ApiKey.SCAN_KV:
            asked.append(frame)
        return PASS

    options = {"scanner_kv_fetch_max_bytes": "4kb"}
    with Proxy(bootstrap) as proxy, connect(proxy.bootstrap_servers, **options) as other:
        proxy.on_request = count
        with other.table(table.path).snapshot() as snapshot:
            scan = snapshot.scan_bucket(0, filter=forebay.col("v") == 7, limit=2000)
            page = next(iter(scan)).num_rows
            place = scan.position
            for limit, position in ((page, place), (page - 1, None)):
                asked.clear()
                scan = snapshot.scan_bucket(0, filter=forebay.col("v") == 7, limit=limit)
                assert [batch.num_rows for batch in scan] == [limit]
                assert (len(asked), scan.position) == (1, position)
            asked.clear()
            assert list(snapshot.scan_bucket(0, filter=forebay.col("v") == 8, limit=1)) == []
            pages = len(asked)
            asked.clear()
            assert sum(b.num_rows for b in snapshot.scan_bucket(0, filter=forebay.col("v") == 7, limit=2001)) == 2000
            assert len(asked) == pages > 2


def test_a_snapshot_gives_the_rows_of_its_instant_any_number_of_times(make_table, embedded):
    table = numbered(make_table)
    before = handles(embedded)
    with table.snapshot(lease="30 s", name="test") as snapshot:
        assert snapshot.is_exact
        assert handles(embedded) == before + 1
        upsert(table, range(500), 1)
        table.delete([{"id": i} for i in range(900, 1000)])
        for _ in range(2):
            assert rows_of(snapshot.scan()) == dict.fromkeys(range(1000), 0)
        assert snapshot.scan().to_arrow().schema.equals(table.arrow_schema)
        assert rows_of(table.scan()) == {**dict.fromkeys(range(500), 1), **dict.fromkeys(range(500, 900), 0)}
        assert sum(count or 0 for count in snapshot.row_counts.values()) == 1000
        assert snapshot.buckets == table.buckets()
    assert handles(embedded) == before


def test_columns_filters_limits_and_buckets_choose_rows_of_a_snapshot(make_table):
    table = numbered(make_table)
    with table.snapshot() as snapshot:
        upsert(table, range(1000), 7)
        assert snapshot.scan(columns=["v"], limit=5).to_arrow().to_pydict() == {"v": [0] * 5}
        assert rows_of(snapshot.scan(filter=forebay.col("id") < 10)) == dict.fromkeys(range(10), 0)
        assert len(rows_of(snapshot.scan(filter=forebay.col("id") < 10, limit=3))) == 3
        assert snapshot.scan(columns=[]).to_arrow().num_rows == 1000
        assert snapshot.scan(limit=0).to_arrow().num_rows == 0
        parts = [rows_of(snapshot.scan(buckets=[bucket])) for bucket in range(4)]
        assert sum(map(len, parts)) == 1000
        assert parts[2] == rows_of(snapshot.scan_bucket(2))
        assert len(rows_of(snapshot.scan_bucket(2, limit=9))) == 9
        assert len(rows_of(snapshot.scan_bucket(2, filter=forebay.col("id") >= 0, limit=9))) == 9
        assert rows_of(snapshot.scan_bucket(2, limit=0)) == {}
        assert snapshot.scan_bucket(2).log_offset == snapshot.log_offsets[table.bucket(2)]


def test_a_filter_on_the_bucket_key_reads_its_buckets_only_and_tells_of_all(make_table: MakeTable) -> None:
    table = numbered(make_table, 100)
    with table.snapshot() as snapshot, snapshot.scan(filter="id = 7").reader() as reader:
        assert len(reader.buckets) == 1  # type: ignore[attr-defined]
        assert reader.log_offsets == snapshot.log_offsets
        upsert(table, [7], 1)
        assert rows_of(reader) == {7: 0}


def test_a_table_can_be_scanned_as_of_a_snapshot_of_it(make_table):
    table, other = numbered(make_table), numbered(make_table, 1)
    with table.snapshot() as snapshot, other.snapshot() as another:
        upsert(table, range(1000), 7)
        scan = table.scan(["v"], "id < 10", as_of=snapshot)
        assert scan.to_arrow()["v"].to_pylist() == [0] * 10
        assert scan.count() == 10
        assert rows_of(table.scan(as_of=snapshot, buckets=[2])) == rows_of(snapshot.scan_bucket(2, filter="id >= 0"))
        assert pa.table(snapshot).num_rows == 1000
        lines = scan.explain().splitlines()
        assert lines == [repr(snapshot), "buckets: 4", "columns: v", "filter: id < 10"]
        with pytest.raises(InvalidRequest, match="a snapshot of another table"):
            table.scan(as_of=another)
        with pytest.raises(InvalidRequest, match="source='union' has no snapshots"):
            table.scan(as_of=snapshot, source="union")
    assert table.scan(as_of=dt.datetime.now(dt.UTC)).count() == 1000  # by its log, which has its beginning
    with pytest.raises(NotFound, match="has no commit 3: its history has none"):
        table.scan(as_of=3).count()
    with pytest.raises(NotFound, match="neither a tag of the lake"):
        table.scan(as_of="a tag").count()


def test_the_parts_of_a_scan_of_a_snapshot_travel(make_table):
    table = numbered(make_table)
    with table.snapshot() as snapshot:
        scan, parts = pickle.loads(pickle.dumps((snapshot.scan(["id"]), snapshot.scan().plan())))
        upsert(table, range(2000), 7)
        assert parts == table.buckets()
        found = [value for part in parts for value in scan.read_split(part).read_all()["id"].to_pylist()]
        assert sorted(found) == list(range(1000))


def test_partitions_of_a_snapshot_can_be_chosen(make_table):
    table = make_table({"id": "BIGINT", "p": "STRING"}, primary_key=["id", "p"], partition_keys="p")
    table.upsert([{"id": i, "p": "abc"[i % 3]} for i in range(9)])
    with table.snapshot() as snapshot:
        assert set(table.scan(as_of=snapshot, partitions="b").to_arrow()["p"].to_pylist()) == {"b"}


def test_a_bucket_of_another_table_or_of_no_table_is_refused(make_table):
    table, other = numbered(make_table, 1), numbered(make_table, 1)
    with table.snapshot() as snapshot:
        for wrong in (4, other.bucket(0), "x"):
            with pytest.raises(InvalidRequest):
                snapshot.scan_bucket(wrong)
        with pytest.raises(InvalidRequest, match="limit"):
            snapshot.scan_bucket(0, limit=-1)
    with pytest.raises(InvalidRequest, match="no primary key"):
        make_table({"a": pa.int64()}).snapshot()
    for wrong in (0, -1, True, "soon", dt.timedelta(0)):
        with pytest.raises(InvalidRequest, match=r"lease|duration"):
            table.snapshot(lease=wrong)
    for lease in (20, "20 s", dt.timedelta(seconds=20)):
        with table.snapshot(lease=lease) as snapshot:
            assert snapshot.lease_seconds == 20


def test_an_empty_table_has_offsets_and_no_rows(make_table):
    table = numbered(make_table, rows=0)
    with table.snapshot() as snapshot:
        upsert(table, range(10), 1)
        assert rows_of(snapshot.scan()) == {}
        assert set(snapshot.log_offsets.values()) == {0}
        assert replayed(table, {}, snapshot.log_offsets) == dict.fromkeys(range(10), 1)


def test_partitions_can_be_chosen_and_a_table_without_any_has_an_empty_snapshot(make_table):
    table = make_table(
        {"p": pa.string(), "id": pa.int64(), "v": pa.int64()}, primary_key=["p", "id"], partition_keys=["p"], buckets=2
    )
    with table.snapshot() as empty:
        assert (empty.snapshot_id, empty.expires, empty.log_offsets, empty.is_exact) == (None, None, {}, True)
        assert repr(empty) == f"<forebay.TableSnapshot of {table.path}, empty, 0 buckets>"
        assert empty.scan().to_arrow().num_rows == 0
        empty.renew()
    table.upsert(pa.table({"p": ["a", "b"] * 50, "id": np.arange(100), "v": np.zeros(100, np.int64)}))
    with table.snapshot(partitions=["b"]) as one, table.snapshot() as both:
        assert (len(one.buckets), len(both.buckets)) == (2, 4)
        assert set(one.scan().to_arrow()["p"].to_pylist()) == {"b"}
        assert both.scan().to_arrow().num_rows == 100
        assert repr(both) == f"<forebay.TableSnapshot of {table.path}, {both.snapshot_id}, 4 buckets>"
        with pytest.raises(InvalidRequest, match="does not hold"):
            one.scan_bucket(next(bucket for bucket in both.buckets if bucket not in one.buckets))
        table.drop_partition({"p": "a"})
        assert one.scan().to_arrow().num_rows == 50
        with pytest.raises(NotFound, match="no longer in table snapshot"):
            both.scan().to_arrow()
        with pytest.raises(NotFound, match="no partition"):
            table.snapshot(partitions=["a"])
    assert repr(both).endswith(", 4 buckets, released>")


def test_columns_that_are_added_later_are_not_in_the_way(make_table):
    table = numbered(make_table, 10, buckets=1)
    with table.snapshot() as snapshot:
        table.alter(add_columns={"w": pa.int32()})
        newer = table.refresh()
        newer.upsert([{"id": 3, "v": 5, "w": 9}])
        assert rows_of(snapshot.scan()) == dict.fromkeys(range(10), 0)
        with newer.snapshot() as later:
            assert later.scan(filter=forebay.col("id") == 3).to_arrow().to_pylist() == [{"id": 3, "v": 5, "w": 9}]


# ---- resuming, losing, repeating ------------------------------------------------------------------------------------


def test_a_scan_is_resumed_behind_the_last_rows_that_were_taken(make_table, bootstrap):
    table = numbered(make_table, 800, buckets=1)
    with connect(bootstrap, scanner_kv_fetch_max_bytes="1kb") as conn, conn.table(table.path).snapshot() as snapshot:
        whole = rows_of(snapshot.scan_bucket(0))
        seen: dict[int, int] = {}
        position: bytes | None = None
        while True:  # a worker that takes two batches and dies, again and again
            upsert(table, range(800), len(seen))
            scan = snapshot.scan_bucket(0, resume_after=position)
            for number, batch in enumerate(scan):
                fresh = rows_of([batch])
                assert not fresh.keys() & seen.keys()
                seen.update(fresh)
                position = scan.position
                if number == 1:
                    break
            else:
                break
        assert seen == whole == dict.fromkeys(range(800), 0)
        assert rows_of(snapshot.scan_bucket(0, resume_after=position)) == {}


def test_a_limit_is_read_from_one_bucket_after_the_other(make_table, bootstrap):
    table = numbered(make_table)
    asked: list[int] = []

    def rule(frame: Frame) -> Action:
        """Holds the first page back until four have been asked for, or for a while."""
        deadline = time.monotonic() + 2
        while frame.key is ApiKey.SCAN_KV and not asked and proxy.count(ApiKey.SCAN_KV) < 5:
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
        if frame.key is ApiKey.SCAN_KV:
            asked.append(proxy.count(ApiKey.SCAN_KV))
        return PASS

    with (
        Proxy(bootstrap) as proxy,
        connect(proxy.bootstrap_servers) as conn,
        conn.table(table.path).snapshot() as snapshot,
    ):
        assert snapshot.scan(limit=5).to_arrow().num_rows == 5
        assert proxy.count(ApiKey.SCAN_KV) == 1
        proxy.on_response = rule
        assert snapshot.scan().to_arrow().num_rows == 1000
        assert asked[0] == 5  # without a limit four buckets at the same time


def test_a_reading_of_a_bucket_shows_how_far_it_is(make_table, bootstrap):
    table = numbered(make_table, 200, buckets=1)
    with connect(bootstrap, scanner_kv_fetch_max_bytes="1kb") as conn, conn.table(table.path).snapshot() as snapshot:
        scan = snapshot.scan_bucket(0)
        assert repr(scan).endswith(", 0 rows read>")
        first = next(batches := iter(scan))
        assert repr(scan).endswith(f", {first.num_rows} rows read>")
        list(batches)
        assert repr(scan) == f"<forebay.BucketReader of {table.path}, {table.bucket(0)}, finished>"


@pytest.mark.parametrize("fault", [DROP, CLOSE, CUT], ids=lambda a: a.kind)
@pytest.mark.parametrize("direction", ["request", "response"])
def test_a_lost_page_is_requested_again(make_table, bootstrap, fault: Action, direction: str):
    """failure-scenarios 1a: retry of the same page after a lost response."""
    table = numbered(make_table, 500, buckets=2)
    options = {"scanner_kv_fetch_max_bytes": "1kb", "request_timeout": 500, "retry_timeout": "30 s"}
    with (
        Proxy(bootstrap) as proxy,
        connect(proxy.bootstrap_servers, **options) as conn,
        conn.table(table.path).snapshot() as snapshot,
    ):
        upsert(table, range(500), 1)
        setattr(proxy, f"on_{direction}", only(ApiKey.SCAN_KV, PASS, fault, PASS, fault))
        assert rows_of(snapshot.scan()) == dict.fromkeys(range(500), 0)
        setattr(proxy, f"on_{direction}", lambda _: PASS)


def test_many_readers_at_once_see_the_same(make_table):
    table = numbered(make_table, 2000, buckets=2)
    results: list[dict[int, int]] = []
    with table.snapshot() as snapshot:
        readers = [threading.Thread(target=lambda: results.append(rows_of(snapshot.scan()))) for _ in range(6)]
        for number, reader in enumerate(readers):
            upsert(table, range(2000), number + 1)
            reader.start()
        for reader in readers:
            reader.join(PATIENCE)
    assert results == [dict.fromkeys(range(2000), 0)] * 6


# ---- other processes ------------------------------------------------------------------------------------------------


def test_a_snapshot_pickles_to_what_other_processes_read(make_table, embedded):
    table = numbered(make_table, 300)
    with table.snapshot() as snapshot:
        upsert(table, range(300), 1)
        code = (
            "import pickle, sys; snapshot = pickle.loads(sys.stdin.buffer.read()); "
            "print(sum(sum(batch['v'].to_pylist()) for batch in snapshot.scan()), snapshot.scan().to_arrow().num_rows)"
        )
        for _ in range(2):  # a worker that is run again gets the same
            out = subprocess.run(
                [sys.executable, "-c", code], input=pickle.dumps(snapshot), capture_output=True, check=True
            )
            assert out.stdout.split() == [b"0", b"300"]
        part = pickle.loads(pickle.dumps(snapshot.of_buckets([table.bucket(1)])))
        assert part.buckets == [table.bucket(1)]
        rows = rows_of(part.scan())
        part.connection.close()
        del part
        gc.collect()
        assert rows == rows_of(snapshot.scan_bucket(1)), "a copy ended the snapshot"


def _read_in_child(snapshot: TableSnapshot, results: Any) -> None:
    results.put(len(rows_of(snapshot.scan())))
    del snapshot
    gc.collect()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_reads_the_snapshot_and_does_not_end_it(make_table):
    table = numbered(make_table, 300)
    context = multiprocessing.get_context("fork")
    with table.snapshot() as snapshot:
        results = context.Queue()
        child = context.Process(target=_read_in_child, args=(snapshot, results))
        child.start()
        assert results.get(timeout=PATIENCE) == 300
        child.join(PATIENCE)
        assert child.exitcode == 0
        assert len(rows_of(snapshot.scan())) == 300


# ---- leases and ends ------------------------------------------------------------------------------------------------


def wait_for_handles(server: EmbeddedServer, count: int) -> None:
    until(lambda: handles(server) == count, "the handles")


def test_a_snapshot_that_is_forgotten_is_released(make_table, embedded):
    table = numbered(make_table, 10)
    before = handles(embedded)
    kept = table.snapshot().keep()
    table.snapshot()
    gc.collect()
    wait_for_handles(embedded, before + 1)
    kept.release()
    kept.release()
    assert handles(embedded) == before
    with pytest.raises(InvalidRequest, match="released"):
        kept.scan().to_arrow()


def test_a_snapshot_that_is_kept_outlives_its_object(make_table, embedded):
    table = numbered(make_table, 10)
    before = handles(embedded)
    kept = table.snapshot()
    again = pickle.loads(pickle.dumps(kept.keep()))
    assert again.keep() is again  # another process has it for its rows alone; there is nothing to give up
    del kept
    table.snapshot()  # this one is released when it is collected, after the other would have been
    gc.collect()
    wait_for_handles(embedded, before + 1)
    assert again.scan().to_arrow().num_rows == 10
    again.release()
    assert handles(embedded) == before


def test_what_has_ended_says_so_and_what_to_do(make_table, embedded):
    table = numbered(make_table, 10)
    with table.snapshot() as snapshot:
        pickle.loads(pickle.dumps(snapshot)).release()
        for use in (snapshot.renew, lambda: snapshot.scan().to_arrow(), lambda: list(snapshot.scan_bucket(0))):
            with pytest.raises(NotFound, match=r"has ended: it was released; open another one") as error:
                use()
            assert error.value.code == ErrorCode.SCANNER_EXPIRED


def test_a_lease_can_be_told_in_many_ways_and_be_renewed(make_table):
    table = numbered(make_table, 10)
    now = dt.datetime.now(dt.UTC)
    for lease in (90, 90.0, "90 s", dt.timedelta(seconds=90)):
        with table.snapshot(lease) as snapshot:
            assert snapshot.lease_seconds == 90
            assert snapshot.expires is not None
            assert snapshot.expires >= now + dt.timedelta(seconds=89)
            snapshot.renew("1 h")
            assert snapshot.expires >= now + dt.timedelta(seconds=3599)


def test_a_server_with_too_many_snapshots_is_waited_for_and_then_reported(tmp_path: Path):
    settings = {"kv.snapshot-handle.max-count": "1"}
    with (
        EmbeddedServer(tmp_path / "data", settings=settings) as server,
        connect(server.bootstrap_servers, scanner_kv_open_timeout="200 ms") as conn,
    ):
        conn.create_table("fluss.t", {"id": pa.int64(), "v": pa.int64()}, primary_key=["id"])
        table = conn.table("fluss.t")
        with table.snapshot(), pytest.raises(LimitExceeded, match=r"open-timeout.*kv\.snapshot-handle\.max-count"):
            table.snapshot()
        table.snapshot().release()


def test_after_kill_9_a_snapshot_is_unknown_and_another_one_can_be_opened(tmp_path: Path):
    """failure-scenarios 1a: kill -9 server mid-scan: the client fails cleanly, never silently short."""
    with ServerProcess(tmp_path / "data") as server, connect(server.bootstrap_servers) as conn:
        conn.create_table("fluss.t", {"id": pa.int64(), "v": pa.int64()}, primary_key=["id"], buckets=2)
        table = conn.table("fluss.t")
        upsert(table, range(100), 0)
        snapshot = table.snapshot()
        assert len(rows_of(snapshot.scan())) == 100
        server.kill()
        server.start(keep_ports=True)
        with pytest.raises(NotFound, match=r"restarted since.*open another one") as error:
            rows_of(snapshot.scan())
        assert error.value.code == ErrorCode.UNKNOWN_SCANNER_ID
        with pytest.raises(NotFound, match="open another one"):
            snapshot.renew()
        snapshot.release()
        with table.snapshot() as again:
            assert len(rows_of(again.scan())) == 100


def test_snapshots_can_be_listed(make_table):
    table = numbered(make_table, 10)
    admin = table.connection.admin
    with table.snapshot(lease="1 min", name="for the report") as snapshot:
        snapshot.scan().to_arrow()
        (shown,) = admin.list_table_snapshots(table.path)
        assert (shown.snapshot_id, shown.name, shown.bucket_count) == (snapshot.snapshot_id, "for the report", 4)
        assert shown.pages >= 4
        assert shown.age <= dt.timedelta(minutes=1)
        assert shown.snapshot_id in [each.snapshot_id for each in admin.list_table_snapshots()]
    assert admin.list_table_snapshots(table.path) == []


# ---- one instant ----------------------------------------------------------------------------------------------------

KEYS = 8
BUCKETS = 3

_writes = st.one_of(
    st.tuples(st.just("upsert"), st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=4, unique=True)),
    st.tuples(st.just("delete"), st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=3, unique=True)),
    st.tuples(st.just("snapshot"), st.just([])),
    st.tuples(st.just("read"), st.integers(0, 3).map(lambda n: [n])),
    st.tuples(st.just("release"), st.integers(0, 3).map(lambda n: [n])),
)


@given(operations=st.lists(_writes, min_size=1, max_size=14))
@settings(deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_snapshots_equal_the_model_at_their_instant_and_their_offsets_lead_to_the_end(make_table, operations):
    """failure-scenarios 1a: scan rows + log replay from log_offset == final state, for every interleaving."""
    table = numbered(make_table, rows=0, buckets=BUCKETS)
    model: dict[int, int] = {}
    opened: list[tuple[TableSnapshot, dict[int, int]]] = []
    for number, (kind, arguments) in enumerate(operations):
        if kind == "upsert":
            upsert(table, arguments, number)
            model.update(dict.fromkeys(arguments, number))
        elif kind == "delete":
            table.delete([{"id": key} for key in arguments])
            for key in arguments:
                model.pop(key, None)
        elif kind == "snapshot":
            opened.append((table.snapshot(), dict(model)))
        elif opened:
            snapshot, then = opened[arguments[0] % len(opened)]
            if kind == "read":
                assert rows_of(snapshot.scan()) == then
            else:
                snapshot.release()
                opened.remove((snapshot, then))
    for snapshot, then in opened:
        assert rows_of(snapshot.scan()) == then
        assert replayed(table, then, snapshot.log_offsets) == model
        snapshot.release()


@pytest.fixture
def slow_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinning takes its time, so that many writes would fit between two pins if they were let in."""
    take = KvTablet.snapshot

    def snapshot(tablet: KvTablet) -> KvSnapshot:
        taken = take(tablet)
        time.sleep(0.004)
        return taken

    monkeypatch.setattr(KvTablet, "snapshot", snapshot)


@pytest.mark.usefixtures("slow_pins")
def test_a_snapshot_holds_what_was_acknowledged_before_and_no_effect_without_its_cause(make_table):
    """Each writer counts up one key after another, in different buckets, and waits for each acknowledgement.

    So at any instant its counters fall from the first to the last by one at most, and none is behind what had been
    acknowledged before the snapshot was asked for. Pins of different instants would show an effect without its cause.
    """
    table = numbered(make_table, rows=0, buckets=8)
    chains = 3
    length = 5
    upsert(table, range(chains * length), 0)
    stop = threading.Event()
    acknowledged = [[0] * length for _ in range(chains)]
    errors: list[BaseException] = []

    def write(chain: int) -> None:
        try:
            value = 0
            while not stop.is_set():
                value += 1
                for link in range(length):
                    upsert(table, [chain * length + link], value)
                    acknowledged[chain][link] = value
        except BaseException as e:  # noqa: BLE001 - told below
            errors.append(e)

    writers = [threading.Thread(target=write, args=(chain,)) for chain in range(chains)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(20):
            before = [list(values) for values in acknowledged]
            with table.snapshot() as snapshot:
                rows = rows_of(snapshot.scan())
            for chain in range(chains):
                values = [rows[chain * length + link] for link in range(length)]
                assert values == sorted(values, reverse=True)
                assert values[0] - values[-1] <= 1
                assert all(value >= old for value, old in zip(values, before[chain], strict=True))
    finally:
        stop.set()
        for writer in writers:
            writer.join(PATIENCE)
    assert not errors


@pytest.mark.usefixtures("slow_pins")
def test_transfers_inside_a_bucket_never_change_the_sum_of_a_snapshot(make_table):
    """Rows that one call writes into one bucket are seen together, so transfers between them keep the sum.

    A call that writes several buckets ends bucket by bucket: while it is under way, a snapshot may hold a part of it.
    """
    table = numbered(make_table, rows=400, buckets=4, value=100)
    accounts = [list(rows_of(table.scan(buckets=[bucket]))) for bucket in range(4)]
    stop = threading.Event()
    errors: list[BaseException] = []

    def transfer(bucket: int) -> None:
        try:
            mine = dict.fromkeys(accounts[bucket], 100)
            rng = np.random.default_rng(bucket)
            while not stop.is_set():
                source, target = rng.choice(list(mine), 2, replace=False).tolist()
                amount = int(rng.integers(1, 50))
                mine[source] -= amount
                mine[target] += amount
                table.upsert([{"id": key, "v": mine[key]} for key in (source, target)])
        except BaseException as e:  # noqa: BLE001 - told below
            errors.append(e)

    writers = [threading.Thread(target=transfer, args=(bucket,)) for bucket in range(4)]
    for writer in writers:
        writer.start()
    sums = []
    try:
        for _ in range(20):
            with table.snapshot() as snapshot:
                rows = rows_of(snapshot.scan())
                sums += [sum(rows[key] for key in each) for each in accounts]
    finally:
        stop.set()
        for writer in writers:
            writer.join(PATIENCE)
    assert not errors
    assert sums == [100 * len(each) for each in accounts] * 20
