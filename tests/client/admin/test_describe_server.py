"""`Admin.describe_server`: counters, pages of lists, what operators end; and clusters that describe nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base.ambient import ManualClock
from forebay.base.errors import Conflict, InvalidRequest, NotFound, UnsupportedOperation
from forebay.client.admin.server_description import ApiLoad, Timings
from forebay.client.cluster.rpc import SOFTWARE
from forebay.client.connection import Connection
from forebay.metadata.table import TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, NegotiatedVersions
from forebay.server.embedded import EmbeddedServer
from forebay.server.lake.lake_tiering import TieringManager, TieringState

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("described") / "data") as running:
        yield running


@pytest.fixture
def connection(server: EmbeddedServer) -> Iterator[Connection]:
    with forebay.connect(server.bootstrap_servers) as opened:
        yield opened


def rows(count: int) -> pa.Table:
    return pa.table({"id": range(count), "name": ["x"] * count}, SCHEMA)


def test_counters_grow_with_what_clients_do(connection: Connection) -> None:
    before = connection.admin.describe_server()
    table = connection.create_table("fluss.counted", SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(rows(100))
    assert table.lookup({"id": 3}) is not None
    with pytest.raises(NotFound):
        connection.table("fluss.absent")
    after = connection.admin.describe_server()
    assert (after.tables, after.buckets) == (before.tables + 1, before.buckets + 2)
    assert after.records_in - before.records_in == 100
    assert after.version == forebay.__version__
    assert after.started == before.started < before.now <= after.now
    assert after.disk_bytes is not None
    assert after.disk_free_bytes is not None
    assert 0 < after.disk_free_bytes < after.disk_bytes
    assert (after.resident_bytes or 0) > 1 << 20
    assert after.accepts_writes
    assert after.syncs.count > 0
    load = after.since(before)
    assert load.apis["lookup"].times.count == 1
    assert load.apis["getMetadata"].errors >= 1
    assert load.apis["putKv"].bytes_in > 100
    assert 0 < (load.apis["lookup"].times.quantile(0.99) or 0) < 60
    assert load.seconds > 0
    assert load.requests > 0
    assert load.records_in == pytest.approx(100 / load.seconds)
    assert after.since(None).seconds == pytest.approx((after.now - after.started).total_seconds())
    assert (after.total, list(after.items)) == (None, [])


def test_connections_have_their_clients_and_come_in_pages(connection: Connection, server: EmbeddedServer) -> None:
    with forebay.connect(server.bootstrap_servers) as other:
        other.create_table("fluss.pages", SCHEMA, buckets=1).append(rows(1))
        found = connection.admin.describe_server("connections", limit=1000)
        assert found.total == len(found.items) == found.connections >= 3
        assert {each.role for each in found.items} == {"coordinator", "tablet server"}
        assert {(each.client, each.client_version) for each in found.items} == {SOFTWARE}
        assert {each.address for each in found.items} == {"127.0.0.1"}
        assert all(each.opened <= found.now and each.user is None for each in found.items)
        assert sum(each.open_requests for each in found.items) >= 1  # the one that asks
        paged: list[Any] = []
        for skip in range(found.total):
            paged += connection.admin.describe_server("connections", skip=skip, limit=1).items
        assert [(each.role, each.listener) for each in paged] == [(each.role, each.listener) for each in found.items]
        assert [each.opened for each in found.items] == sorted(each.opened for each in found.items)


@pytest.mark.parametrize("keys", [(), ("id",)])
def test_the_bytes_of_a_transaction_are_counted(connection: Connection, keys: tuple[str, ...]) -> None:
    table = connection.create_table(f"fluss.transacted_{len(keys)}", SCHEMA, primary_key=keys)
    before = connection.admin.describe_server()
    with connection.transaction() as running:
        if keys:
            running.upsert(table, rows(1000))
        else:
            running.append(table, rows(1000))
    after = connection.admin.describe_server()
    assert after.records_in - before.records_in == 1000
    assert after.bytes_in - before.bytes_in > 1000


def test_scans_snapshots_and_transactions_are_listed_and_ended(connection: Connection) -> None:
    admin = connection.admin
    table = connection.create_table("fluss.listed", SCHEMA, primary_key=["id"], buckets=1)
    table.upsert(rows(5000))
    snapshot = table.snapshot(name="of a test")
    [shown] = admin.describe_server("table_snapshots").items
    assert (shown.name, shown.table_id, shown.bucket_count) == ("of a test", table.info.table_id, 1)
    admin.release_table_snapshot(shown.snapshot_id)
    admin.release_table_snapshot(shown.snapshot_id)
    assert admin.describe_server("table_snapshots").total == 0
    with pytest.raises(NotFound):
        snapshot.scan().to_arrow()

    scan = pb.ScanKvRequest(batch_size_bytes=100, call_seq_id=0)
    scan.bucket_scan_req.table_id, scan.bucket_scan_req.bucket_id = table.info.table_id, 0
    node = next(iter(connection.cluster.refresh().tablet_servers.values()))
    opened = connection.cluster.call(node, ApiKey.SCAN_KV, scan, pb.ScanKvResponse)
    [running] = admin.describe_server("scans").items
    assert (running.bucket.table_id, running.bucket.bucket, running.log_offset) == (table.info.table_id, 0, 5000)
    assert running.pages == 1
    assert str(admin.describe_server("scans").paths[table.info.table_id]) == "fluss.listed"
    close = pb.ScanKvRequest(scanner_id=opened.scanner_id, call_seq_id=1, close_scanner=True)
    connection.cluster.call(node, ApiKey.SCAN_KV, close, pb.ScanKvResponse)
    assert admin.describe_server().scans == 0

    with connection.transaction("nightly", 1) as done:
        done.upsert(table, rows(1))
    open_one = connection.transaction("nightly", 2).begin()
    open_one.upsert(table, rows(2))
    found = admin.describe_server("transactions")
    assert [(each.application, each.version, each.state) for each in found.items] == [
        ("nightly", 2, "open"),
        ("nightly", 1, "committed"),
    ]
    assert (found.open_transactions, found.decided_transactions) == (1, 0)
    under_way, committed = found.items
    admin.abort_transaction(under_way.transaction_id)
    admin.abort_transaction(under_way.transaction_id)
    with pytest.raises(Conflict, match="it is committed"):
        admin.abort_transaction(committed.transaction_id)
    with pytest.raises(Conflict):
        open_one.commit()
    assert admin.describe_server("transactions").total == 1


def test_tables_with_a_lake_have_their_tiering(tmp_path: Path) -> None:
    settings = {"datalake.enabled": "true", "datalake.format": "paimon", "datalake.paimon.warehouse": str(tmp_path)}
    with (
        EmbeddedServer(tmp_path / "data", settings=settings) as server,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        for name in ("a", "b", "c"):
            options = {"table.datalake.enabled": "true", "table.datalake.freshness": "1 h"}
            connection.create_table(f"fluss.{name}", SCHEMA, buckets=1, options=options).append(rows(10))
        found = connection.admin.describe_server("tiering", skip=1, limit=1)
        assert (found.total, found.tiered_tables, found.pending_tables) == (3, 3, 0)
        [info] = found.items
        assert (str(info.path), info.state, info.untiered, info.failures) == ("fluss.b", "Scheduled", 10, 0)
        assert info.freshness.total_seconds() == 3600
        assert info.round_time is None


@pytest.mark.parametrize(("skip", "limit"), [(-1, 1), (0, 1001), (0, -1)])
def test_impossible_pages_are_refused(connection: Connection, skip: int, limit: int) -> None:
    with pytest.raises(InvalidRequest, match=f"no page of {limit} items after {skip} others"):
        connection.admin.describe_server("scans", skip=skip, limit=limit)


@pytest.mark.parametrize("items", ["connections", "scans", "table_snapshots", "transactions", "tiering"])
def test_a_page_behind_the_end_of_a_list_is_empty(connection: Connection, items: Any) -> None:
    assert list(connection.admin.describe_server(items, skip=2**63 - 1).items) == []


def test_lists_that_do_not_exist_are_refused_on_both_sides(connection: Connection) -> None:
    with pytest.raises(InvalidRequest, match="'leases' is not a list of a server: there are connections, scans"):
        connection.admin.describe_server("leases")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="there is no list 6"):
        connection.cluster.coordinator_call(
            ApiKey.DESCRIBE_SERVER, pb.DescribeServerRequest(list=6), pb.DescribeServerResponse, repeatable=True
        )


def test_a_cluster_that_does_not_describe_itself_says_so(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = NegotiatedVersions.__init__

    def as_of_fluss(self: NegotiatedVersions, response: Any) -> None:
        begin(self, response)
        for known in (self.newest, self._server):
            known.pop(ApiKey.DESCRIBE_SERVER, None)

    monkeypatch.setattr(NegotiatedVersions, "__init__", as_of_fluss)
    with (
        forebay.connect(server.bootstrap_servers) as connection,
        pytest.raises(UnsupportedOperation, match="DESCRIBE_SERVER is not possible here: the server does not offer it"),
    ):
        connection.admin.describe_server()


def test_a_long_or_strange_greeting_is_shown_as_none(server: EmbeddedServer, connection: Connection) -> None:
    with forebay.connect(server.bootstrap_servers) as other:
        other.admin.server_nodes()
        context = server.server.context
        assert context.connections is not None
        for each in list(context.connections):
            each._greeting = b"\xff\xff"  # type: ignore[attr-defined]
        found = connection.admin.describe_server("connections")
        assert {(each.client, each.client_version) for each in found.items} == {(None, None)}


def test_quantiles_and_differences() -> None:
    bounds = (0.1, 1.0)
    earlier, later = Timings(1.0, (10, 0, 0), bounds), Timings(6.0, (10, 10, 1), bounds)
    between = later.since(earlier)
    assert (between.count, between.seconds, between.counts) == (11, 5.0, (0, 10, 1))
    assert 0.1 < (between.quantile(0.5) or 0) < 1.0
    assert between.quantile(0.99) == 1.0
    assert earlier.since(later).count == 0  # a counter that fell is none
    assert Timings(0.0, (0, 0, 0), bounds).quantile(0.5) is None
    assert ApiLoad(later, 7, 3).since(ApiLoad(earlier, 5, 3)) == ApiLoad(between, 2, 0)


def test_all_statuses_are_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time, each would sort all tables again."""
    manager = TieringManager(ManualClock())
    for table_id in range(100):
        manager.add(table_id, TablePath("fluss", f"t{table_id}"), 1000)
    advance, calls = manager._advance, list[None]()

    def counted() -> None:
        calls.append(None)
        advance()

    monkeypatch.setattr(manager, "_advance", counted)
    assert len(manager.statuses(list(manager.table_ids))) == manager.state_counts()[TieringState.SCHEDULED] == 100
    assert len(calls) == 2
