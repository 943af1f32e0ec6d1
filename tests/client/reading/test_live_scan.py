"""Live scans of primary-key tables, and scans of log tables."""

from __future__ import annotations

import datetime as dt
import gc
import pickle
import threading
import time
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import duckdb
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import forebay
from forebay.api.scan import RowReader, ScanRequest
from forebay.base.ambient import ManualClock
from forebay.base.errors import ErrorCode, InvalidRequest, LimitExceeded, NotFound, Unavailable
from forebay.client.cluster.cluster import ClusterClient
from forebay.client.cluster.rpc import Call
from forebay.client.connection import Connection, connect
from forebay.client.reading.bucket_reader import BucketReader, TableReader
from forebay.client.reading.live_cursor import bucket_scan
from forebay.client.reading.sources import register_source
from forebay.client.session import Session
from forebay.client.table import Table
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol.api import ApiKey, ServerNode
from forebay.server.server import Injected
from forebay.testing.server import EmbeddedServer
from tests.client.conftest import DATABASE, MakeTable, Through, own_server
from tests.patience import until


def numbered(make_table: MakeTable, rows: int = 2000, buckets: int = 4) -> Table:
    table = make_table({"id": pa.int64(), "v": pa.string()}, primary_key=["id"], buckets=buckets)
    if rows:
        table.upsert(pa.table({"id": np.arange(rows), "v": [f"value {i}" for i in range(rows)]}))
    return table


def sessions(server: EmbeddedServer | None) -> int:
    assert server is not None
    return server.server.context.scanners.session_count


def test_a_scan_returns_every_row_once(make_table: MakeTable) -> None:
    table = numbered(make_table)
    reader = table.scan().reader()
    found = reader.read_all()
    assert sorted(found["id"].to_pylist()) == list(range(2000))
    assert found.schema.equals(table.arrow_schema)
    assert isinstance(reader, TableReader)
    assert reader.remaining == []
    for again in (reader.read_all, lambda: list(reader), lambda: list(reader.with_buckets())):
        with pytest.raises(InvalidRequest, match="a reader reads once"):
            again()


def test_a_scan_reads_the_rows_as_they_are_each_time_it_is_asked(make_table: MakeTable) -> None:
    table = numbered(make_table, 10)
    scan = table.scan(filter="id >= 5")
    assert scan.count() == len(scan.to_arrow()) == 5
    table.upsert([{"id": 10, "v": "new"}])
    assert scan.count() == len(scan.to_pandas()) == sum(batch.num_rows for batch in scan) == 6
    assert scan.head(2).num_rows == 2
    assert table.scan(limit=1).head(3).num_rows == 1
    assert scan.schema.equals(table.arrow_schema)


def test_nothing_is_asked_of_a_server_before_rows_are_wanted(make_table: MakeTable, through: Through) -> None:
    table = numbered(make_table, 10)
    other = through(table)
    calls = other.connection.cluster
    sent: list[Any] = []
    send = calls.send
    calls.send = lambda *args, **more: sent.append(args) or send(*args, **more)  # type: ignore[method-assign, func-returns-value]
    scan = other.scan(["v"], "id < 3")
    assert "source live" in repr(scan)
    assert scan.schema.names == ["v"]
    assert sent == []
    assert scan.to_arrow().num_rows == 3
    assert sent != []


def test_filters_are_sql_text_or_expressions_of_forebay_or_pyarrow(make_table: MakeTable) -> None:
    table = numbered(make_table, 20)
    ours, theirs = (forebay.col("id") >= 5) & (forebay.col("id") <= 7), pc.field("id").isin([5, 6, 7])
    for same in ("id BETWEEN 5 AND 7", ours, theirs):
        assert sorted(table.scan(filter=same).to_arrow()["id"].to_pylist()) == [5, 6, 7]
    with pytest.raises(InvalidRequest, match="is not a filter"):
        table.scan(filter=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="is not SQL"):
        table.scan(filter="id >")


def test_the_parts_of_a_scan_are_its_buckets_and_travel(make_table: MakeTable) -> None:
    table = numbered(make_table, 300, buckets=3)
    scan = table.scan(["id"], "id < 200")
    parts = scan.plan()
    assert parts == table.buckets()
    sent, splits = pickle.loads(pickle.dumps((scan, parts)))
    found = []
    for split in splits:
        with sent.read_split(split) as rows:
            found += rows.read_all()["id"].to_pylist()
            assert list(rows.log_offsets) == [split]
    sent._session.close()
    assert sorted(found) == list(range(200))
    rows = make_table({"a": "INT"}, buckets=2)
    rows.append([{"a": 1}])
    assert sum(rows.scan().read_split(split).read_all().num_rows for split in rows.scan().plan()) == 1


def test_a_scan_says_what_it_reads(make_table: MakeTable) -> None:
    table = numbered(make_table, 1, buckets=3)
    assert table.scan(["v"], "id > 5", 7, buckets=[0, 2]).explain().splitlines() == [
        f"table {table.path}, source live, as of each reading",
        "buckets: 2",
        "columns: v",
        "filter: id > 5",
        "limit: 7 rows, of one bucket after the other",
    ]
    assert "columns: all" in table.scan().explain()


def test_libraries_take_a_table_as_a_stream_of_arrow_data(make_table: MakeTable) -> None:
    live = numbered(make_table, 20)
    assert pa.table(live).num_rows == 20
    assert pa.schema(live).equals(live.arrow_schema)
    assert duckdb.sql("SELECT max(id) FROM live").fetchall() == [(19,)]
    copy = make_table(live, primary_key="id")  # its columns, without reading a row
    copy.upsert(live)
    assert copy.scan().count() == 20
    for refused, given in ((np.asarray, live), (np.asarray, live.scan()), (pandas.DataFrame, live.scan())):
        with pytest.raises(InvalidRequest, match=r"Call to_pandas\(\) or to_arrow\(\)"):
            refused(given)


def test_a_scan_can_be_taken_in_many_forms(make_table: MakeTable) -> None:
    table = numbered(make_table, 50)
    assert sum(batch.num_rows for batch in table.scan()) == 50
    assert table.scan().reader().read_all().num_rows == 50
    assert len(table.scan().to_pandas()) == 50
    assert pa.table(table.scan()).num_rows == 50  # by __arrow_c_stream__
    with table.scan().reader() as rows:
        assert sum(batch.num_rows for _, batch in rows.with_buckets()) == 50
    assert table.scan().to_duckdb().count("*").fetchall() == [(50,)]


def test_an_empty_table_has_a_schema_and_offsets(conn: Connection, make_table: MakeTable) -> None:
    table = numbered(make_table, 0, buckets=3)
    reader = table.scan().reader()
    found = reader.read_all()
    assert found.num_rows == 0
    assert found.schema.equals(table.arrow_schema)
    assert reader.log_offsets == dict.fromkeys(table.buckets(), 0)


def test_columns_and_filters_are_applied(make_table: MakeTable) -> None:
    table = numbered(make_table, 100)
    assert table.scan(columns=["v", "id"]).to_arrow().column_names == ["v", "id"]
    few = table.scan(columns=["v"], filter=(forebay.col("id") >= 5) & (forebay.col("id") < 7)).to_arrow()
    assert sorted(few["v"].to_pylist()) == ["value 5", "value 6"]
    assert table.scan(columns=[]).to_arrow().num_rows == 100
    with pytest.raises(InvalidRequest, match="no column 'x'"):
        table.scan(columns=["x"])
    with pytest.raises(InvalidRequest, match="asked for twice"):
        table.scan(columns=["v", "v"])
    with pytest.raises(InvalidRequest, match="list of names"):
        table.scan(columns="v")
    with pytest.raises(InvalidRequest, match="'y'"):
        table.scan(filter=forebay.col("y") == 1)


@pytest.mark.parametrize("limit", [0, 1, 7, 100, 1000])
def test_a_limit_bounds_the_rows(make_table: MakeTable, limit: int) -> None:
    table = numbered(make_table, 100)
    assert table.scan(limit=limit).to_arrow().num_rows == min(limit, 100)
    even = table.scan(limit=limit, filter=forebay.col("id").is_in(range(0, 100, 2))).to_arrow()
    assert even.num_rows == min(limit, 50)
    assert all(i % 2 == 0 for i in even["id"].to_pylist())


def test_a_negative_limit_is_refused(make_table: MakeTable) -> None:
    with pytest.raises(InvalidRequest, match="limit=-1 is not a number of rows"):
        numbered(make_table, 0).scan(limit=-1)


@own_server
def test_a_limit_reads_no_more_pages_than_it_needs(
    make_table: MakeTable, embedded: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = numbered(make_table, 1000, buckets=4)
    opened = []
    original = BucketReader.ask

    def ask(self: BucketReader) -> None:
        opened.append((self.bucket.bucket, self.rows_handed_out))
        original(self)

    monkeypatch.setattr(BucketReader, "ask", ask)
    assert table.scan(limit=5).to_arrow().num_rows == 5
    assert opened == [(0, 0)]
    assert sessions(embedded) == 0


@pytest.mark.parametrize("page", ["1b", "300b", "10mb"])
def test_pages_of_any_size_make_the_same_rows(make_table: MakeTable, bootstrap: str, page: str) -> None:
    table = numbered(make_table, 200, buckets=2)
    with connect(bootstrap, scanner_kv_fetch_max_bytes=page) as other:
        found = other.table(table.path).scan().to_arrow()
    assert sorted(found["id"].to_pylist()) == list(range(200))


@own_server
def test_rows_written_after_a_bucket_was_opened_are_not_seen(make_table: MakeTable, bootstrap: str) -> None:
    """failure-scenarios 1a: snapshot isolation."""
    table = numbered(make_table, 500, buckets=1)
    with connect(bootstrap, scanner_kv_fetch_max_bytes="200b") as other:
        scan = other.table(table.path).scan()
        batches = iter(scan)
        first = next(batches)
        table.upsert([{"id": i, "v": "new"} for i in range(1000)])
        table.delete([{"id": 3}])
        rest = list(batches)
        seen = pa.Table.from_batches([first, *rest])
    assert sorted(seen["id"].to_pylist()) == list(range(500))
    assert "new" not in seen["v"].to_pylist()


def test_a_scan_and_the_log_from_its_offsets_make_the_final_state(make_table: MakeTable) -> None:
    """failure-scenarios 1a: scan rows + log replay from log_offset == final state."""
    table = numbered(make_table, 300, buckets=3)
    stop = threading.Event()

    def write() -> None:
        round_ = 0
        while not stop.is_set():
            round_ += 1
            table.upsert([{"id": i, "v": f"round {round_}"} for i in range(round_ % 7, 400, 7)])
            table.delete([{"id": (round_ * 13) % 400}])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        time.sleep(0.05)
        reader = table.scan().reader()
        state = {row["id"]: row["v"] for row in reader.read_all().to_pylist()}
    finally:
        stop.set()
        writer.join()
    for change in table.changes(reader.log_offsets, "latest").to_arrow().to_pylist():
        if change["_change_type"] == "delete":
            state.pop(change["id"], None)
        elif change["_change_type"] != "update_before":
            state[change["id"]] = change["v"]
    final = {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}
    assert state == final


def test_partitions_and_buckets_can_be_chosen(make_table: MakeTable) -> None:
    table = make_table({"id": pa.int32(), "p": pa.string()}, primary_key=["id", "p"], partition_keys=["p"], buckets=2)
    table.upsert([{"id": i, "p": "abc"[i % 3]} for i in range(30)])
    assert table.scan().to_arrow().num_rows == 30
    assert set(table.scan(partitions="a").to_arrow()["p"].to_pylist()) == {"a"}
    assert table.scan(partitions=["a", {"p": "b"}]).to_arrow().num_rows == 20
    halves = [table.scan(buckets=[bucket]).to_arrow().num_rows for bucket in (0, 1)]
    assert sum(halves) == 30
    one = table.buckets(partitions=["c"], buckets=[1])
    assert len(one) == 1
    assert set(table.scan(buckets=one).to_arrow()["p"].to_pylist()) <= {"c"}
    with pytest.raises(NotFound, match="no partition 'z'"):
        table.scan(partitions=["z"]).to_arrow()


def test_rows_can_be_rebuilt_from_the_changelog_where_that_is_wanted(
    make_table: MakeTable, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table({"id": pa.int64(), "v": pa.string()}, primary_key=["id"], buckets=3)
    table.upsert([{"id": i, "v": "old"} for i in range(50)])
    table.upsert([{"id": i, "v": "new"} for i in range(0, 50, 2)])
    table.delete(list(range(0, 50, 5)))
    with connect(bootstrap, scanner_kv_batch_strategy="snapshot_merge") as other:
        sent: list[ApiKey] = []
        send = ClusterClient.send

        def noted(cluster: ClusterClient, node: ServerNode, key: ApiKey, *rest: Any, **options: Any) -> Call:
            sent.append(key)
            return send(cluster, node, key, *rest, **options)

        monkeypatch.setattr(ClusterClient, "send", noted)
        rebuilt = other.table(table.path).scan().to_arrow()
    assert ApiKey.SCAN_KV not in sent
    assert ApiKey.FETCH_LOG in sent
    assert rebuilt.sort_by("id").equals(table.scan().to_arrow().sort_by("id"))
    assert rebuilt.num_rows == 40


def test_partitions_are_chosen_by_values_of_the_key_s_type(make_table: MakeTable, conn: Connection) -> None:
    columns = {"flag": pa.bool_(), "at": pa.timestamp("us"), "v": pa.int64()}
    table = make_table(columns, partition_keys=["flag", "at"])
    noon = dt.datetime(2024, 1, 2, 12)
    table.append([{"flag": True, "at": noon, "v": 1}])
    table.create_partition({"flag": False, "at": noon})
    assert len(table.partitions({"at": noon})) == 2
    assert len(table.partitions({"flag": True})) == 1
    assert table.scan(partitions={"flag": True}).to_arrow()["v"].to_pylist() == [1]
    assert table.changes(stop="latest", partitions=[{"at": noon}]).to_arrow()["v"].to_pylist() == [1]
    assert table.scan(partitions={"flag": False}).to_arrow().num_rows == 0
    with pytest.raises(InvalidRequest, match=r"3 is not a value of partition key 'at'.*TIMESTAMP"):
        table.scan(partitions={"at": 3}).to_arrow()
    table.drop_partition({"flag": False, "at": noon})
    assert len(table.partitions()) == 1


def test_one_bucket_can_be_read_alone(conn: Connection, make_table: MakeTable) -> None:
    table = numbered(make_table, 100, buckets=2)
    scans = [bucket_scan(conn, table.info, 0), bucket_scan(conn, table.info, table.buckets()[1], ["id"])]
    rows = [pa.Table.from_batches(list(scan), schema=scan.schema) for scan in scans]
    assert rows[0].num_rows + rows[1].num_rows == 100
    assert rows[1].column_names == ["id"]
    assert [scan.log_offset for scan in scans] == [rows[0].num_rows, rows[1].num_rows]
    assert sum(batch.num_rows for batch in bucket_scan(table.connection, table.info, 0, limit=3)) == 3
    assert list(bucket_scan(table.connection, table.info, 0, limit=0)) == []
    with pytest.raises(InvalidRequest, match="has no bucket 2"):
        bucket_scan(table.connection, table.info, 2)
    with pytest.raises(InvalidRequest, match="does not belong"):
        bucket_scan(table.connection, table.info, TableBucket(99999, 0))


@own_server
def test_rows_of_all_schema_versions_are_read_together(conn: Connection, make_table: MakeTable) -> None:
    old = make_table({"id": pa.int32(), "v": pa.string()}, primary_key=["id"])
    old.upsert([{"id": i, "v": "old"} for i in range(4)])
    old.alter(add_columns={"w": pa.int64()})
    new = old.refresh()
    new.upsert([{"id": i, "v": "new", "w": i} for i in range(2, 6)])
    rows = sorted(new.scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    assert [row["w"] for row in rows] == [None, None, 2, 3, 4, 5]
    assert old.scan().to_arrow().column_names == ["id", "v"]
    assert old.scan().to_arrow().num_rows == 6


# ---- sessions and limits --------------------------------------------------------------------------------------------


@own_server
def test_no_more_sessions_are_open_than_allowed_and_none_is_left(
    make_table: MakeTable, bootstrap: str, embedded: EmbeddedServer
) -> None:
    table = numbered(make_table, 5000, buckets=12)
    with connect(bootstrap, scanner_kv_fetch_max_bytes="500b", scanner_kv_max_sessions=3) as other:
        most = 0
        for _ in other.table(table.path).scan():
            most = max(most, sessions(embedded))
    assert 0 < most <= 3
    assert sessions(embedded) == 0


@own_server
@pytest.mark.parametrize("how", ["close", "break", "with", "forget"])
def test_a_scan_that_is_not_read_to_its_end_closes_its_sessions(
    make_table: MakeTable, bootstrap: str, embedded: EmbeddedServer, how: str
) -> None:
    table = numbered(make_table, 5000, buckets=4)
    with connect(bootstrap, scanner_kv_fetch_max_bytes="500b") as other:
        scan = other.table(table.path).scan()
        reader = scan.reader()
        if how == "with":
            with reader:
                next(iter(reader))
        elif how == "break":
            for _ in scan:
                break
        else:
            next(iter(reader))
            if how == "close":
                reader.close()
            else:
                del reader
                gc.collect()
        until(lambda: sessions(embedded) == 0, "the session has ended")


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> EmbeddedServer:
    settings = {"kv.scanner.max-per-server": "2", "kv.scanner.max-per-bucket": "2"}
    with EmbeddedServer(tmp_path_factory.mktemp("small") / "data", settings=settings) as server:
        yield server  # type: ignore[misc]


@own_server
def test_a_scan_makes_do_with_the_sessions_that_the_server_gives(small_server: EmbeddedServer) -> None:
    with connect(small_server.bootstrap_servers, scanner_kv_max_sessions=8, scanner_kv_fetch_max_bytes="500b") as conn:
        conn.create_database(DATABASE, ignore_if_exists=True)
        conn.create_table(f"{DATABASE}.many", {"id": pa.int64()}, primary_key=["id"], buckets=10)
        table = conn.table(f"{DATABASE}.many")
        table.upsert(pa.table({"id": np.arange(3000)}))
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(3000))
        assert sessions(small_server) == 0


@own_server
def test_too_many_scanners_are_waited_for_and_then_reported(small_server: EmbeddedServer) -> None:
    with connect(
        small_server.bootstrap_servers, scanner_kv_open_timeout="300 ms", scanner_kv_fetch_max_bytes="500b"
    ) as conn:
        conn.create_database(DATABASE, ignore_if_exists=True)
        conn.create_table(f"{DATABASE}.full", {"id": pa.int64()}, primary_key=["id"])
        table = conn.table(f"{DATABASE}.full")
        table.upsert(pa.table({"id": np.arange(3000)}))
        held = [table.scan().reader(), table.scan().reader()]
        for reader in held:
            next(iter(reader))
        for refused in (table.scan(), bucket_scan(table.connection, table.info, 0)):
            with pytest.raises(LimitExceeded, match=r"'client\.scanner\.kv\.open-timeout'.*Close scans") as e:
                list(refused)
            assert e.value.code == ErrorCode.TOO_MANY_SCANNERS
        later = threading.Timer(0.1, held[0].close)
        later.start()
        with connect(small_server.bootstrap_servers, scanner_kv_open_timeout="1 h") as patient:
            assert patient.table(table.path).scan().to_arrow().num_rows == 3000
        later.join()
        held[1].close()


@own_server
def test_a_session_that_expired_says_what_to_do(tmp_path_factory: pytest.TempPathFactory) -> None:
    """failure-scenarios 1a: slow consumer longer than TTL."""
    settings, clock = {"kv.scanner.ttl": "100 ms", "kv.scanner.expiration-interval": "20 ms"}, ManualClock()
    folder, injected = tmp_path_factory.mktemp("ttl") / "data", Injected(clock=clock)
    with (
        EmbeddedServer(folder, settings=settings, injected=injected) as server,
        connect(server.bootstrap_servers, scanner_kv_fetch_max_bytes="500b") as conn,
    ):
        conn.create_table("fluss.t", {"id": pa.int64()}, primary_key=["id"])
        table = conn.table("fluss.t")
        table.upsert(pa.table({"id": np.arange(3000)}))
        reader = table.scan().reader()
        batches = iter(reader)
        next(batches)

        def has_expired() -> bool:  # the reader may just be asking for the next page
            clock.advance(0.3)
            return sessions(server) == 0

        until(has_expired, "the session has expired")
        with pytest.raises(NotFound, match=r"kv\.scanner\.ttl.*scan the bucket again") as e:
            list(batches)
        # Servers remember for a while which sessions have expired.
        assert e.value.code in (ErrorCode.SCANNER_EXPIRED, ErrorCode.UNKNOWN_SCANNER_ID)
        assert isinstance(reader, TableReader)
        assert reader.remaining == list(table.buckets())
        assert table.scan(buckets=reader.remaining).to_arrow().num_rows == 3000


@own_server
def test_a_bucket_that_is_dropped_while_it_is_scanned_fails_the_scan(conn: Connection, bootstrap: str) -> None:
    path = f"{DATABASE}.dropped_in_scan"
    conn.create_table(path, {"id": pa.int64()}, primary_key=["id"])
    conn.table(path).upsert(pa.table({"id": np.arange(3000)}))
    with connect(bootstrap, scanner_kv_fetch_max_bytes="500b") as other:
        batches = iter(other.table(path).scan())
        next(batches)
        conn.drop_table(path)
        with pytest.raises((NotFound, Unavailable), match="bucket 0"):
            list(batches)


# ---- sources --------------------------------------------------------------------------------------------------------


def test_an_unknown_source_is_refused_with_those_there_are(make_table: MakeTable) -> None:
    with pytest.raises(InvalidRequest, match=r"no scan source 'lake'; there are .*'live', 'log', .*'union'"):
        numbered(make_table, 0).scan(source="lake")


def test_rows_come_once_and_continue_after_a_pause(make_table: MakeTable, bootstrap: str) -> None:
    table = numbered(make_table, 200, buckets=2)
    with connect(bootstrap, scanner_kv_fetch_max_bytes="300b") as other:
        reader = other.table(table.path).scan().reader()
        first = next(iter(reader))["id"].to_pylist()
        rest = [value for batch in reader for value in batch["id"].to_pylist()]
        assert sorted([*first, *rest]) == list(range(200))
        with pytest.raises(InvalidRequest, match="this reader is exhausted: a reader reads once"):
            reader.read_all()
    for limit in (True, False):
        with pytest.raises(InvalidRequest, match="is not a number of rows"):
            table.scan(limit=limit)


def test_a_source_is_found_by_its_entry_point(make_table: MakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table = numbered(make_table, 1)
    entries = [
        EntryPoint("else", "nothing.there:at_all", "forebay.scan_sources"),
        EntryPoint("entered", "forebay.client.reading.table_scan:LiveTableScan", "forebay.scan_sources"),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: EntryPoints(entries).select(group=group))
    assert table.scan(source="entered").to_arrow().num_rows == 1


def test_other_packages_can_bring_sources(make_table: MakeTable) -> None:
    table = numbered(make_table, 0)
    seen: list[ScanRequest] = []

    class Constant(RowReader):
        def _read(self):  # type: ignore[no-untyped-def]
            yield None, pa.record_batch({"id": [1, 2, 3]})

    def open_constant(_session: Session, _info: TableInfo, request: ScanRequest) -> RowReader:
        seen.append(request)
        return Constant(pa.schema([("id", pa.int64())]), request.limit)

    register_source("constant", open_constant)
    assert table.scan(source="constant", limit=2).to_arrow().to_pylist() == [{"id": 1}, {"id": 2}]
    assert seen[0].limit == 2


def test_the_log_of_a_primary_key_table_is_not_its_rows(make_table: MakeTable) -> None:
    with pytest.raises(InvalidRequest, match="changes, not rows"):
        numbered(make_table, 0).scan(source="log").to_arrow()


def test_a_log_table_is_scanned_up_to_now(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()}, buckets=3)
    for i in range(10):
        table.append([{"a": i * 10 + j} for j in range(10)])
    reader = table.scan().reader()
    assert sum(reader.log_offsets.values()) == 100
    table.append([{"a": 1000}])
    assert sorted(reader.read_all()["a"].to_pylist()) == list(range(100))
    assert table.scan(limit=15).to_arrow().num_rows == 15
    assert table.scan(limit=0).to_arrow().num_rows == 0
    assert table.scan(columns=[]).to_arrow().num_rows == 101
    assert table.scan(filter=forebay.col("a") > 90).to_arrow().num_rows == 10
    broken_off = table.scan().reader()
    next(iter(broken_off))
    log = broken_off._log  # type: ignore[attr-defined]
    assert not log.finished
    broken_off.close()
    assert log.finished


def test_clocks_are_injected(bootstrap: str) -> None:
    """failure-scenarios 1a: use monotonic time only."""
    clock = ManualClock()
    connection = Connection(connect(bootstrap).settings, clock=clock)
    connection.admin.server_nodes()
    clock.jump_wall_clock(-10_000_000)
    connection.admin.server_nodes()
    connection.close()
