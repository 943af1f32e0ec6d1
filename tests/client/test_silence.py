"""Servers that do not respond, lack an API, or fail midway: the reaction of scans, readers and the sender."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay.base.ambient import SystemClock
from forebay.base.errors import (
    AccessDenied,
    Conflict,
    ErrorCode,
    ForebayError,
    InternalError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from forebay.client.cluster.cluster import ClusterClient
from forebay.client.cluster.partitions import list_partitions
from forebay.client.cluster.rpc import Call
from forebay.client.connection import Connection, connect
from forebay.client.reading import live_cursor, replay
from forebay.client.reading.bucket_reader import TableReader
from forebay.client.reading.live_cursor import bucket_scan
from forebay.client.results import AccessRule, AclOperation, AclResourceType
from forebay.client.row_view import RowView
from forebay.client.settings import make_settings
from forebay.client.table import Table
from forebay.client.writing.sender import Sender
from forebay.metadata import types
from forebay.metadata.predicate import col
from forebay.metadata.table import AggregateFunction, Column, TableBucket, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, ServerNode
from tests.client.conftest import MakeTable, Through, own_server
from tests.client.proxy import DROP, PASS, Action, Frame, Proxy, answered, only
from tests.patience import PATIENCE

pytestmark = own_server


def keyed(make_table: MakeTable, rows: int = 300, buckets: int = 1) -> Table:
    table = make_table({"id": pa.int64(), "v": pa.string()}, primary_key=["id"], buckets=buckets)
    table.upsert(pa.table({"id": np.arange(rows), "v": [f"value {i}" for i in range(rows)]}))
    return table


# ---- reading --------------------------------------------------------------------------------------------------------


def test_a_first_page_that_never_comes_is_requested_again(
    make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    table = keyed(make_table)
    other = through(table, request_timeout="200 ms")
    for read in (
        lambda: other.scan().to_arrow(),
        lambda: pa.Table.from_batches(list(bucket_scan(other.connection, other.info, 0))),
        lambda: other.snapshot().scan().to_arrow(),
    ):
        seen = proxy.count(ApiKey.SCAN_KV)
        proxy.on_request = lambda f, seen=seen: DROP if f.key is ApiKey.SCAN_KV and f.number == seen else PASS
        assert sorted(read()["id"].to_pylist()) == list(range(300))
        assert proxy.count(ApiKey.SCAN_KV) > seen + 1


def test_a_fetch_that_is_never_answered_is_sent_again(make_table: MakeTable, proxy: Proxy, through: Through) -> None:
    table = make_table({"a": pa.int64()})
    table.append([{"a": 1}])
    other = through(table, request_timeout="200 ms", scanner_log_fetch_wait_max_time="10 ms")
    proxy.on_request = only(ApiKey.FETCH_LOG, DROP)
    assert other.changes(stop="latest").to_arrow()["a"].to_pylist() == [1]


@pytest.mark.parametrize("how", ["log", "live", "snapshot"])
def test_a_read_whose_request_cannot_be_sent_continues(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    table = keyed(make_table, rows=10)
    send, failed = ClusterClient.send, []

    def flaky(cluster: ClusterClient, node: ServerNode, key: ApiKey, *rest: Any, **options: Any) -> Call:
        if key in (ApiKey.FETCH_LOG, ApiKey.SCAN_KV) and len(failed) < 2:
            failed.append(key)
            raise Unavailable("the connection broke", ErrorCode.NETWORK_EXCEPTION)
        return send(cluster, node, key, *rest, **options)

    with table.snapshot() as snapshot:
        monkeypatch.setattr(ClusterClient, "send", flaky)
        read = {"log": lambda: table.changes(stop="latest"), "live": table.scan, "snapshot": snapshot.scan}[how]()
        assert sorted(read.to_arrow()["id"].to_pylist()) == list(range(10))
    assert len(failed) == 2


@pytest.mark.parametrize("how", ["log", "live", "snapshot"])
def test_a_read_whose_requests_can_never_be_sent_fails(
    make_table: MakeTable, bootstrap: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    table = keyed(make_table, rows=10)
    send = ClusterClient.send

    def broken(cluster: ClusterClient, node: ServerNode, key: ApiKey, *rest: Any, **options: Any) -> Call:
        if key in (ApiKey.FETCH_LOG, ApiKey.SCAN_KV):
            raise Unavailable("the connection broke", ErrorCode.NETWORK_EXCEPTION)
        return send(cluster, node, key, *rest, **options)

    with connect(bootstrap, retry_timeout="100 ms") as connection:
        table = connection.table(table.path)
        with table.snapshot() as snapshot:
            log = table.changes(timeout=PATIENCE)
            monkeypatch.setattr(ClusterClient, "send", broken)
            read: Any = {"log": log, "live": table.scan(), "snapshot": snapshot.scan()}[how]
            with pytest.raises(Unavailable, match="the connection broke"):
                read.to_arrow()


def test_a_lease_is_renewed_where_the_bucket_has_moved(make_table: MakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table = keyed(make_table, rows=1)
    call, asked = ClusterClient.call, []

    def moved(cluster: ClusterClient, node: ServerNode, key: ApiKey, *rest: Any, **options: Any) -> Any:
        asked.append(key)
        if asked == [ApiKey.RENEW_TABLE_SNAPSHOT]:
            raise Unavailable("moved", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return call(cluster, node, key, *rest, **options)

    with table.snapshot() as snapshot:
        monkeypatch.setattr(ClusterClient, "call", moved)
        snapshot.renew("2 h")
        assert snapshot.lease_seconds == 7200
        assert asked == [ApiKey.RENEW_TABLE_SNAPSHOT, ApiKey.GET_METADATA, ApiKey.RENEW_TABLE_SNAPSHOT]


def test_a_scan_whose_bucket_moves_before_its_first_row_ends_the_session_and_begins_again(
    make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    table = keyed(make_table)
    other = through(table)
    asked: list[pb.ScanKvRequest] = []

    def rule(frame: Frame) -> Action:
        if frame.key is not ApiKey.SCAN_KV:
            return PASS
        asked.append(frame.message())
        if len(asked) == 1:  # a session, and no row yet
            return answered(pb.ScanKvResponse(scanner_id=b"elsewhere", has_more_results=True))
        moved = pb.ScanKvResponse(error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER), error_message="moved")
        return answered(moved) if asked[-1].scanner_id == b"elsewhere" else PASS

    proxy.on_request = rule
    assert other.scan().to_arrow().num_rows == 300
    assert any(request.close_scanner and request.scanner_id == b"elsewhere" for request in asked)


def without_scans(frame: Frame) -> Action:
    """The answer of a server as old as Fluss 0.9, which has no ScanKv."""
    if frame.key is not ApiKey.API_VERSIONS:
        return PASS
    message = frame.message()
    kept = [version for version in message.api_versions if version.api_key != ApiKey.SCAN_KV]
    del message.api_versions[:]
    message.api_versions.extend(kept)
    return answered(message)


def test_a_cluster_without_scans_gives_the_rows_and_is_warned_of_once(
    make_table: MakeTable, proxy: Proxy, through: Through, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed(make_table, buckets=2)
    proxy.on_response = without_scans
    monkeypatch.setattr(live_cursor, "_warned", set())
    other = through(table)
    with pytest.warns(RuntimeWarning, match="no ScanKv API"):
        assert other.scan().to_arrow().num_rows == 300
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert other.scan().to_arrow().num_rows == 300
    assert proxy.count(ApiKey.SCAN_KV) == 0
    # Where the beginning of the changelog is gone, the server is asked for all rows at once.
    earlier = replay.list_offsets

    def trimmed(*arguments: object) -> dict[TableBucket, int]:
        found = earlier(*arguments)  # type: ignore[arg-type]
        return dict.fromkeys(found, 1) if arguments[-1] == replay.EARLIEST else found

    monkeypatch.setattr(replay, "list_offsets", trimmed)
    fetched = proxy.count(ApiKey.FETCH_LOG)
    scanned = other.scan().to_arrow()
    assert sorted(scanned["id"].to_pylist()) == list(range(300))
    assert (proxy.count(ApiKey.LIMIT_SCAN), proxy.count(ApiKey.FETCH_LOG)) == (2, fetched)
    assert other.scan(limit=7).to_arrow().num_rows == 7
    for wrong, code in (
        (pb.LimitScanResponse(error_code=int(ErrorCode.AUTHORIZATION_EXCEPTION)), ErrorCode.AUTHORIZATION_EXCEPTION),
        (pb.LimitScanResponse(is_log_table=True), ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION),
    ):
        proxy.on_request = lambda f, wrong=wrong: answered(wrong) if f.key is ApiKey.LIMIT_SCAN else PASS
        with pytest.raises(ForebayError) as e:
            other.scan().to_arrow()
        assert e.value.code == code
    proxy.on_request = lambda f: answered(pb.LimitScanResponse()) if f.key is ApiKey.LIMIT_SCAN else PASS
    assert other.scan().to_arrow().num_rows == 0


def test_rows_at_an_offset_are_none_where_the_changelog_has_lost_its_beginning(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed(make_table, rows=10)
    table.delete([3])
    view = RowView(table.info)

    def at(offset: int) -> list[int] | None:
        batches = replay.rows_at(table.connection, view, table.bucket(0), offset)
        return None if batches is None else sorted(v for b in batches for v in b.column("id").to_pylist())

    assert (at(0), at(4), at(10)) == ([], [0, 1, 2, 3], list(range(10)))
    assert at(11) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    monkeypatch.setattr(replay, "list_offsets", lambda *_: {table.bucket(0): 1})
    assert at(11) is None


def test_a_snapshot_scan_tells_which_buckets_it_has_begun_and_which_not(make_table: MakeTable, bootstrap: str) -> None:
    table = make_table({"id": pa.int64()}, primary_key=["id"], buckets=3)
    table.upsert([{"id": i} for i in range(100)])
    with connect(bootstrap, scanner_kv_fetch_max_bytes="1b", scanner_kv_max_sessions=1) as other:
        snapshot = other.table(table.path).snapshot()
        reader = snapshot.scan().reader()
        assert isinstance(reader, TableReader)
        assert (reader.unread, reader.partly_read) == (list(reader.buckets), [])
        rows = reader.with_buckets()
        bucket, _ = next(rows)
        assert bucket is not None
        assert reader.partly_read == [bucket]
        assert reader.unread == [b for b in reader.buckets if b != bucket]
        for _ in rows:
            pass
        assert (reader.unread, reader.partly_read) == ([], [])


# ---- writing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (Unavailable("away for a moment"), None),
        (InvalidRequest("not to be repeated"), "not to be repeated"),
        (ValueError("a bug"), "the sender failed: ValueError: a bug"),
    ],
    ids=["passing", "final", "bug"],
)
def test_a_sender_that_fails_itself_fails_its_batches_or_continues(
    make_table: MakeTable, bootstrap: str, monkeypatch: pytest.MonkeyPatch, error: Exception, ends: str | None
) -> None:
    table = make_table({"a": pa.int64()})
    with connect(bootstrap) as connection:
        other = connection.table(table.path)
        original, left = Sender._get_writer_id, [error]

        def failing(sender: Sender) -> None:
            if left and sender.accumulator.unfinished:
                raise left.pop()
            original(sender)

        monkeypatch.setattr(Sender, "_get_writer_id", failing)
        if ends is None:
            assert other.append([{"a": 1}]).rows == 1
        else:
            with pytest.raises(InternalError if type(error) is ValueError else type(error), match=ends):
                other.append([{"a": 1}])
        assert not left
        assert other.append([{"a": 2}]).rows == 1


def test_batches_of_a_writer_id_that_is_gone_are_not_sent_again(
    make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    table = make_table({"a": pa.int64()})
    other = through(table, writer_batch_size="1kb")
    errors = [ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION, *[ErrorCode.NOT_ENOUGH_REPLICAS_EXCEPTION] * 4]

    def rule(frame: Frame) -> Action:
        if frame.key is not ApiKey.PRODUCE_LOG or frame.number >= len(errors):
            return PASS
        response = pb.ProduceLogResponse()
        response.buckets_resp.add(bucket_id=0, error_code=int(errors[frame.number]), error_message="for a test")
        return Action("answer", 0.05, response)

    proxy.on_request = rule
    with connect(proxy.bootstrap_servers, writer_batch_size="1kb") as connection:
        first, second = (connection.table(table.path).writer() for _ in range(2))
        for writer in (first, second):
            writer.append(pa.table({"a": np.arange(200)}))
        with pytest.raises(Conflict, match="for a test"):
            first.flush()
        with pytest.raises(Conflict, match=r"cannot be retried: the writer id changed from \d+ to (none|\d+)"):
            second.flush()
        for writer in (first, second):
            with pytest.raises(Conflict):
                writer.close()
    assert other.append([{"a": -1}]).rows == 1


def test_a_channel_on_which_nothing_came_is_closed_and_one_that_works_is_kept(
    make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    other = through(keyed(make_table, rows=1))
    cluster = other.connection.cluster
    channel = cluster.channel(cluster.leader(other.path, other.bucket(0)))
    proxy.on_request = only(ApiKey.LIST_DATABASES, DROP, PASS, DROP)
    silent = channel.send(ApiKey.LIST_DATABASES, pb.ListDatabasesRequest())
    assert channel.send(ApiKey.LIST_DATABASES, pb.ListDatabasesRequest()).result(PATIENCE).error is None
    with pytest.raises(Unavailable, match=r"did not respond to LIST_DATABASES within 0\.05 s"):
        silent.result(0.05)
    assert not channel.closed
    with pytest.raises(Unavailable, match=r"within 0\.05 s"):
        channel.send(ApiKey.LIST_DATABASES, pb.ListDatabasesRequest()).result(0.05)
    assert channel.closed


def test_the_next_page_of_a_snapshot_is_requested_ahead_unless_a_limit_may_be_reached(
    make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    other = through(keyed(make_table), scanner_kv_fetch_max_bytes="1b")
    with other.snapshot() as snapshot:
        for limit, condition, asked in ((None, None, 2), (5, None, 2), (1, None, 1), (5, col("id") >= 0, 1)):
            before = proxy.count(ApiKey.SCAN_KV)
            scan = snapshot.scan_bucket(0, filter=condition, limit=limit)
            scan.wait()
            assert scan.take() is not None
            if scan._call is not None:
                scan._call.wait(PATIENCE)
            assert proxy.count(ApiKey.SCAN_KV) - before == asked


def test_servers_are_told_how_many_rows_a_snapshot_scan_still_wants(
    make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    other = through(keyed(make_table, rows=4, buckets=3))
    wanted: list[int | None] = []

    def rule(frame: Frame) -> Action:
        if frame.key is ApiKey.SCAN_KV:
            request = frame.message().bucket_scan_req
            wanted.append(request.limit if request.HasField("limit") else None)
        return PASS

    proxy.on_request = rule
    with other.snapshot() as snapshot:
        for condition, limits in ((None, True), (col("id") >= 0, False)):
            wanted.clear()
            assert snapshot.scan(filter=condition, limit=4).to_arrow().num_rows == 4
            if limits:
                assert wanted[0] == 4
                assert wanted == sorted(wanted, reverse=True)  # type: ignore[type-var]
            else:
                assert set(wanted) == {None}


# ---- metadata -------------------------------------------------------------------------------------------------------


def test_a_bucket_without_leader_is_waited_for_and_one_of_an_older_table_is_not(
    make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    table = keyed(make_table)
    other = through(table)
    cluster, path = other.connection.cluster, TablePath.parse(str(table.path))
    with pytest.raises(NotFound, match=rf"its id was 999999 and is {table.info.table_id} now"):
        cluster.leader(path, TableBucket(999_999, 0))
    with pytest.raises(Unavailable, match=f"bucket 77 of {table.path} has no leader at the moment"):
        cluster.leader(path, TableBucket(table.info.table_id, 77))
    assert cluster.leader(path, table.bucket(0)) is not None

    leaderless = pb.MetadataResponse()
    leaderless.CopyFrom(cluster._metadata(cluster._nodes()[0], pb.MetadataRequest(table_path=[_pb_path(path)])))
    for bucket in leaderless.table_metadata[0].bucket_metadata:
        bucket.ClearField("leader_id")
    cluster._take(leaderless)
    assert cluster.view.leader(table.bucket(0)) is None


def _pb_path(path: TablePath) -> pb.PbTablePath:
    return pb.PbTablePath(database_name=path.database, table_name=path.table)


def test_a_server_that_fails_over_a_table_that_does_not_exist_is_understood(
    make_table: MakeTable, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fluss 0.9 answers UNKNOWN_SERVER_ERROR for it."""
    table = make_table({"a": pa.int64()})
    call = ClusterClient.call

    def failing(cluster: ClusterClient, node: ServerNode, key: ApiKey, message: Any, *rest: Any) -> Any:
        if key is ApiKey.GET_METADATA and message.table_path:
            raise InternalError("the server failed")
        return call(cluster, node, key, message, *rest)

    monkeypatch.setattr(ClusterClient, "call", failing)
    with pytest.raises(NotFound, match=r"there is no table client_tests\.nowhere"):
        conn.table("client_tests.nowhere")
    with pytest.raises(InternalError, match="the server failed"):
        conn.table(table.path)


def test_what_is_known_of_other_tables_stays_when_one_is_forgotten(make_table: MakeTable, bootstrap: str) -> None:
    paths = [make_table({"a": pa.int64(), "p": pa.string()}, partition_keys=["p"]).path for _ in range(2)]
    with connect(bootstrap) as connection:
        one, other = (connection.table(path) for path in paths)
        for table in (one, other):
            table.append([{"a": 1, "p": "x"}])
        cluster = connection.cluster
        before = cluster.view
        assert {p.table for p in before.partitions} == {one.path, other.path}
        cluster.forget_table(one.path)
        assert set(cluster.view.tables) == {other.path}
        assert {p.table for p in cluster.view.partitions} == {other.path}
        assert {b.table_id for b in cluster.view.leaders} == {other.info.table_id}
        cluster.forget_table(one.path)
        assert set(cluster.view.tables) == {other.path}


class PausesNoted(SystemClock):
    """Notes each pause."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        super().sleep(seconds)


def test_a_bucket_that_cannot_be_scanned_yet_is_requested_after_pauses(make_table: MakeTable, proxy: Proxy) -> None:
    table, clock = keyed(make_table, rows=3), PausesNoted()
    refused = answered(pb.ScanKvResponse(error_code=int(ErrorCode.TOO_MANY_SCANNERS), error_message="full"))
    proxy.on_request = only(ApiKey.SCAN_KV, refused, refused)
    with Connection(make_settings(proxy.bootstrap_servers), clock=clock) as connection:
        scan = bucket_scan(connection, table.info, 0)
        clock.pauses.clear()
        assert sum(batch.num_rows for batch in scan) == 3
    assert len([pause for pause in clock.pauses if pause > 0]) == 2


def test_a_connection_asks_for_servers_when_it_has_to(make_table: MakeTable, bootstrap: str) -> None:
    table = make_table({"a": pa.int64(), "p": pa.string()}, partition_keys=["p"])
    with Connection(make_settings(bootstrap)) as connection:
        assert list_partitions(connection.cluster, table.path) == []


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_table_that_is_recreated_takes_nothing_over_from_the_older_one(
    conn: Connection, bootstrap: str, elsewhere: bool
) -> None:
    path = "client_tests.made_again"
    other_path = "client_tests.stays"
    for each in (path, other_path):
        conn.create_table(each, {"a": pa.int64(), "p": pa.string()}, partition_keys=["p"], buckets=1)
        conn.table(each).append([{"a": 1, "p": "x"}])
    cluster = conn.cluster
    older = conn.table(path).info.table_id
    stays = conn.table(other_path).info.table_id
    assert {b.table_id for b in cluster.view.leaders} >= {older, stays}
    with connect(bootstrap) as other:
        where = other if elsewhere else conn
        where.drop_table(path)
        where.create_table(path, {"a": pa.int64(), "p": pa.string()}, partition_keys=["p"], buckets=1)
    cluster.refresh([TablePath.parse(path)])
    ids = {b.table_id for b in cluster.view.leaders}
    assert stays in ids
    assert older not in ids
    assert {str(p.table) for p in cluster.view.partitions} >= {other_path}
    assert path not in {str(p.table) for p in cluster.view.partitions}
    for each in (path, other_path):
        conn.drop_table(each)


# ---- admin ----------------------------------------------------------------------------------------------------------


def test_settings_and_access_rules_go_over_the_wire_as_they_were_requested(proxy: Proxy) -> None:
    """Our server has neither; a cluster of Fluss has both."""
    rule = AccessRule(AclResourceType.TABLE, "d.t", "u", AclOperation.READ)
    requests: list[object] = []
    answers: dict[ApiKey, object] = {}

    def answer(frame: Frame) -> Action:
        if frame.key not in answers:
            return PASS
        requests.append(frame.message())
        return answered(answers[frame.key])  # type: ignore[arg-type]

    def offering(frame: Frame) -> Action:
        if frame.key is not ApiKey.API_VERSIONS:
            return PASS
        message = frame.message()
        message.api_versions.add(api_key=int(ApiKey.ALTER_CLUSTER_CONFIGS), min_version=0, max_version=0)
        return answered(message)

    proxy.on_request, proxy.on_response = answer, offering
    with connect(proxy.bootstrap_servers) as connection:
        admin = connection.admin
        answers[ApiKey.ALTER_CLUSTER_CONFIGS] = pb.AlterClusterConfigsResponse()
        admin.alter_configs({"a": 1}, reset=["b"], append={"c": "x"}, subtract={"d": "y"})
        sent = [(c.config_key, c.config_value, c.op_type) for c in requests[-1].alter_configs]  # type: ignore[attr-defined]
        assert sent == [("a", "1", 0), ("c", "x", 2), ("d", "y", 3), ("b", "", 1)]
        answers[ApiKey.CREATE_ACLS] = created = pb.CreateAclsResponse()
        admin.create_acls([rule])
        message = requests[-1].acl[0]  # type: ignore[attr-defined]
        created.aclRes.add(acl=message)
        admin.create_acls([rule])
        created.aclRes.add(acl=message, error_code=int(ErrorCode.AUTHORIZATION_EXCEPTION), error_message="not you")
        with pytest.raises(AccessDenied, match="not you"):
            admin.create_acls([rule])
        answers[ApiKey.DROP_ACLS] = dropped = pb.DropAclsResponse()
        dropped.filter_results.add().matching_acls.add(acl=message)
        assert admin.drop_acls(resource_type=AclResourceType.TABLE) == [rule]
        dropped.filter_results[0].matching_acls[0].error_code = int(ErrorCode.AUTHORIZATION_EXCEPTION)
        with pytest.raises(AccessDenied):
            admin.drop_acls()
        dropped.filter_results[0].matching_acls[0].ClearField("error_code")
        dropped.filter_results[0].error_code = int(ErrorCode.AUTHORIZATION_EXCEPTION)
        with pytest.raises(AccessDenied):
            admin.drop_acls()


def test_leaving_a_connection_raises_what_closing_found_unless_something_else_went_wrong(bootstrap: str) -> None:
    class Failing(Connection):
        def close(self, timeout: float | None = None) -> None:
            super().close(timeout)
            raise Unavailable("rows were not written")

    def leave(error: Exception | None) -> None:
        with Failing(connect(bootstrap).settings):
            if error is not None:
                raise error

    with pytest.raises(Unavailable, match="rows were not written"):
        leave(None)
    with pytest.raises(KeyError, match="mine"):
        leave(KeyError("mine"))


def test_a_column_that_is_merged_by_a_function_with_parameters_can_be_added(
    make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    """Our server has no merge engines; a cluster of Fluss has."""
    table = keyed(make_table, rows=1)
    other = through(table)
    asked: list[pb.AlterTableRequest] = []

    def rule(frame: Frame) -> Action:
        if frame.key is not ApiKey.ALTER_TABLE:
            return PASS
        asked.append(frame.message())
        return answered(pb.AlterTableResponse())

    proxy.on_request = rule
    names = AggregateFunction("listagg", (("delimiter", ";"), ("x", "y")))
    other.alter(add_columns=[Column("names", types.string(), aggregate=names), Column("plain", types.int_())])
    merged, plain = asked[0].add_columns
    assert (merged.agg_function_type, [(p.key, p.value) for p in merged.agg_function_params]) == (
        "listagg",
        [("delimiter", ";"), ("x", "y")],
    )
    assert not plain.HasField("agg_function_type")
