"""What a standby has repeated can be read at its own addresses, by every client, and nothing can be changed there."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import NotFound, StorageFailure, Unavailable, UnsupportedOperation
from forebay.client.connection import Connection
from forebay.inprocess import EmbeddedConnection
from forebay.protocol.api import ApiKey
from forebay.server.config import server_config
from forebay.server.context import HANDLERS
from forebay.server.metadata_store import MetadataStore, StoredCommit, StoredTransaction
from forebay.server.standby import standby as standby_module
from forebay.server.standby.boundary import MemoryDatabase
from forebay.server.standby.reads import serve_reads
from forebay.server.standby.standby import Standby
from forebay.server.standby.standby_server import READ_APIS, FollowedDecisions
from forebay.server.storage.replica import BucketReplica
from forebay.server.transactions.transaction import TransactionState
from forebay.store.journal import JournalCursor
from tests.patience import PATIENCE, until
from tests.server.standby.reading_standby import ReadingStandby, reading


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby_module, "POLL_SECONDS", 0.01)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    return {"store": str(tmp_path / "store"), "store.interval": "10 ms", "store.lease": "1 h"}


@pytest.fixture
def primary(tmp_path: Path, settings: dict[str, str]) -> Iterator[EmbeddedConnection]:
    with forebay.embedded(tmp_path / "primary", settings=settings) as conn:
        yield conn


@pytest.fixture
def standby(tmp_path: Path, primary: EmbeddedConnection, settings: dict[str, str]) -> Iterator[ReadingStandby]:
    with reading(tmp_path / "standby", settings) as standby:
        yield standby


def rows(first: int, count: int = 20) -> pa.Table:
    return pa.table({"id": range(first, first + count), "v": [f"row {first}"] * count})


def by_id(table: pa.Table) -> pa.Table:
    return table.sort_by("id")


def test_rows_lookups_and_changes_are_those_of_the_primary(
    primary: EmbeddedConnection, standby: ReadingStandby
) -> None:
    log = primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
    kv = primary.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id", buckets=3)
    for turn in range(5):
        log.append(rows(turn * 20))
        kv.upsert(rows(turn * 7))
        kv.delete([{"id": turn}])
        standby.await_all(primary)
        there_log, there_kv = standby.conn.table("fluss.log"), standby.conn.table("fluss.kv")
        assert by_id(there_log.scan().to_arrow()) == by_id(log.scan().to_arrow())
        assert by_id(there_kv.scan().to_arrow()) == by_id(kv.scan().to_arrow())
        keys = pa.table({"id": range(40)})
        assert by_id(there_kv.lookup(keys)) == by_id(kv.lookup(keys))
        changes = kv.changes(start="earliest", stop="latest").to_arrow()
        assert by_id(there_kv.changes(start="earliest", stop="latest").to_arrow()).equals(by_id(changes))
    shown = standby.conn.admin.describe_server()
    assert shown.staleness is not None
    assert shown.staleness.total_seconds() < 10
    assert shown.standby_as_of is not None
    assert shown.standby_as_of >= changes["_commit_timestamp"].to_pylist()[-1]
    assert primary.admin.describe_server().staleness is None


def test_tables_partitions_and_schemas_follow(primary: EmbeddedConnection, standby: ReadingStandby) -> None:
    primary.create_database("db")
    table = primary.create_table("db.t", {"id": "BIGINT", "p": "STRING"}, partition_keys="p", buckets=2)
    table.create_partition({"p": "a"})
    table.create_partition({"p": "b"})
    table.append([{"id": 1, "p": "a"}, {"id": 2, "p": "b"}])
    standby.await_all(primary)
    there = standby.conn.table("db.t")
    assert by_id(there.scan().to_arrow()).to_pylist() == [{"id": 1, "p": "a"}, {"id": 2, "p": "b"}]
    table.drop_partition({"p": "b"})
    table = table.alter(add_columns={"more": "INT"})
    table.append([{"id": 3, "p": "a", "more": 4}])
    standby.await_all(primary)
    there = there.refresh()
    assert [each.name for each in there.partitions()] == ["a"]
    assert by_id(there.scan().to_arrow()).to_pylist() == [
        {"id": 1, "p": "a", "more": None}, {"id": 3, "p": "a", "more": 4},
    ]  # fmt: skip
    primary.drop_table("db.t")
    primary.create_table("db.t", {"other": "INT"})
    standby.await_all(primary)
    assert standby.conn.table("db.t").arrow_schema.names == ["other"]
    primary.drop_database("db", cascade=True)
    standby.await_all(primary)
    assert standby.conn.list_databases() == primary.list_databases()
    with pytest.raises(NotFound):
        standby.conn.table("db.t")


def in_transaction(conn: Connection) -> None:
    with conn.transaction("app", 1) as transaction:
        transaction.upsert("fluss.kv", rows(5))


def test_no_api_changes_anything(primary: EmbeddedConnection, standby: ReadingStandby) -> None:
    kv = primary.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id")
    log = primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
    kv.upsert(rows(0))
    standby.await_all(primary)
    conn = standby.conn
    attempts: list[Callable[[], object]] = [
        lambda: conn.table("fluss.kv").upsert(rows(5)),
        lambda: conn.table("fluss.kv").delete([{"id": 1}]),
        lambda: conn.table("fluss.log").append(rows(5)),
        lambda: conn.create_table("fluss.x", {"id": "BIGINT"}),
        lambda: conn.drop_table("fluss.kv"),
        lambda: conn.table("fluss.kv").alter(set={"table.log.ttl": "1 d"}),
        lambda: conn.create_database("x"),
        lambda: in_transaction(conn),
        lambda: conn.table("fluss.kv").changes(start="2026-01-01", stop="latest").to_arrow(),
    ]
    for attempt in attempts:
        with pytest.raises(UnsupportedOperation, match="standby"):
            attempt()
    assert by_id(kv.scan().to_arrow()).to_pylist() == rows(0).to_pylist()
    assert log.scan().to_arrow().num_rows == 0


def test_what_a_standby_answers_is_a_choice_for_each_api() -> None:
    changing = (
        "CREATE", "DROP", "ALTER", "PUT", "PRODUCE", "INIT", "COMMIT", "BEGIN", "STAGE", "FINISH", "ABORT", "PREPARE",
        "REGISTER", "DELETE", "ACQUIRE",
    )  # fmt: skip
    assert not [key.name for key in READ_APIS if key.name.startswith(changing)]
    assert HANDLERS.keys() >= READ_APIS


def test_lookups_that_insert_are_refused(primary: EmbeddedConnection, standby: ReadingStandby) -> None:
    table = primary.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id")
    table.upsert(rows(0, 3))
    standby.await_all(primary)
    there = standby.conn.table("fluss.kv")
    assert there.lookup([{"id": 1}], insert_missing=True).num_rows == 1
    with pytest.raises(UnsupportedOperation, match="standby"):
        there.lookup([{"id": 1}, {"id": 77}], insert_missing=True)
    assert there.lookup([{"id": 77}], missing="drop").num_rows == 0


def test_table_snapshots_have_all_rows_of_a_transaction_or_none(
    primary: EmbeddedConnection, standby: ReadingStandby
) -> None:
    accounts, count = 40, 60
    kv = primary.create_table("fluss.kv", {"id": "BIGINT", "v": "BIGINT"}, primary_key="id", buckets=4)
    kv.upsert(pa.table({"id": range(accounts), "v": [100] * accounts}))
    standby.await_all(primary)
    ended = threading.Event()

    def transfer() -> None:
        try:
            for number in range(count):
                with primary.transaction("transfers", number) as transaction:
                    balance = [100 + (number + each) % 2 * 2 - 1 for each in range(accounts)]
                    transaction.upsert("fluss.kv", pa.table({"id": range(accounts), "v": balance}))
        finally:
            ended.set()

    thread = threading.Thread(target=transfer)
    thread.start()
    seen: set[int] = set()
    there = standby.conn.table("fluss.kv")
    while not ended.is_set() or not seen:
        with there.snapshot() as snapshot:
            values = by_id(snapshot.scan().to_arrow())["v"].to_pylist()
        assert sum(values) == 100 * accounts
        assert len(set(values[::2])) == len(set(values[1::2])) == 1
        seen.add(values[0])
    thread.join(PATIENCE)
    standby.await_all(primary)
    assert by_id(there.scan().to_arrow()) == by_id(kv.scan().to_arrow())


def test_a_state_that_cannot_go_on_is_made_again(
    primary: EmbeddedConnection, standby: ReadingStandby, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = primary.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id")
    kv.upsert(rows(0))
    standby.await_all(primary)
    there = standby.conn.table("fluss.kv")
    assert there.scan().to_arrow().num_rows == 20

    def fail(self: BucketReplica, end: int) -> None:
        raise StorageFailure("the disk does not read")

    with monkeypatch.context() as patch:
        patch.setattr(BucketReplica, "follow", fail)
        kv.upsert(rows(50))
        standby.await_all(primary)
    assert there.scan().to_arrow().num_rows == 40


def test_a_table_with_an_unfinished_transaction_is_not_pinned_before_its_logs_are_shown(tmp_path: Path) -> None:
    metadata = MetadataStore(MemoryDatabase())
    decisions = FollowedDecisions(metadata)
    decided = StoredTransaction(1, "app", 1, TransactionState.DECIDED, 0, 7)
    metadata.put_transaction(decided, commits=[StoredCommit(5, 1, 0, 1, "app", 1, "", "WRITE", 2)])
    decisions.reload()
    assert decisions.unfinished == {5}
    decisions.logs_are_shown()
    assert decisions.unfinished == {5}
    metadata.put_transaction(replace(decided, state=TransactionState.COMMITTED))
    decisions.reload()
    assert decisions.unfinished == {5}, "the logs have but a part of the rows"
    decisions.logs_are_shown()
    assert decisions.unfinished == frozenset()


def test_old_records_come_from_the_store_and_states_from_their_snapshots(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    settings = {
        **settings, "log.segment.file-size": "2kb", "remote.log.task-interval-duration": "1 d",
        "remote.log.task-max-upload-segments": "1000",
    }  # fmt: skip
    with forebay.embedded(tmp_path / "primary", settings=settings) as primary:
        log = primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
        kv = primary.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id")
        for turn in range(20):
            log.append(rows(turn * 20))
            kv.upsert(rows(turn * 7))
        server = primary.server.server
        assert server._journal is not None
        assert server._tiering is not None
        server.context.replicas.checkpoint_grown(1)
        assert server._journal.wait_until_stored(PATIENCE)
        server._tiering.run()
        kv.upsert(rows(1000))
        with reading(tmp_path / "standby", {**settings, "remote.log.task-interval-duration": "1 ms"}) as standby:
            log.append(rows(400))
            standby.await_all(primary)
            until(lambda: len(list((tmp_path / "standby").rglob("*.log"))) <= 5, "the standby has trimmed its logs")
            there = standby.conn.table("fluss.kv")
            assert by_id(there.scan().to_arrow()) == by_id(kv.scan().to_arrow())
            replica = next(iter(standby.reads.server.context.replicas.replicas()))
            assert replica.kv_folder is not None
            assert replica.kv_folder.retained_offset > 0, "the state was made from the changelog alone"
            assert by_id(standby.conn.table("fluss.log").scan().to_arrow()) == by_id(log.scan().to_arrow())


def test_few_buckets_are_open_at_a_time(tmp_path: Path, settings: dict[str, str], primary: EmbeddedConnection) -> None:
    with reading(tmp_path / "standby", {**settings, "server.open-buckets.max": "1"}) as standby:
        tables = [
            primary.create_table(f"fluss.t{number}", {"id": "BIGINT", "v": "STRING"}, primary_key="id", buckets=2)
            for number in range(3)
        ]
        for turn in range(4):
            for number, table in enumerate(tables):
                table.upsert(rows(turn * number))
            standby.await_all(primary)
            for number, table in enumerate(tables):
                there = standby.conn.table(f"fluss.t{number}")
                assert by_id(there.scan().to_arrow()) == by_id(table.scan().to_arrow())
                assert len(standby.reads.server.context.replicas.replicas()) <= 2


def test_reads_are_refused_while_the_journal_cannot_be_read(
    tmp_path: Path, primary: EmbeddedConnection, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
    table.append(rows(0))
    with reading(tmp_path / "standby", {**settings, "standby.max-staleness": "300 ms"}) as standby:
        standby.await_all(primary)
        there = standby.conn.table("fluss.log")
        assert there.scan().to_arrow().num_rows == 20

        def fail(self: JournalCursor) -> None:
            raise StorageFailure("the store is away")

        server = standby.reads.server
        with monkeypatch.context() as patch:
            patch.setattr(JournalCursor, "next", fail)
            until(lambda: server.staleness_seconds() > 0.3, "the standby sees that it is stale")
            with pytest.raises(Unavailable, match="has not seen the end of the journal"):
                forebay.connect(standby.reads.addresses.bootstrap_servers)
        until(lambda: server.staleness_seconds() < 0.3, "the standby reads the journal again")
        assert there.scan().to_arrow().num_rows == 20


def test_a_client_reads_from_the_standby_that_it_names_and_from_the_server_without(
    tmp_path: Path, primary: EmbeddedConnection, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    primary.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id").upsert(rows(0))
    primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"}).append(rows(0))
    with reading(tmp_path / "standby", settings) as standby:
        standby.await_all(primary)
        there = standby.reads.addresses.bootstrap_servers

        def asked(api: ApiKey) -> tuple[int, int]:
            servers = primary.server.server, standby.reads.server
            counts = [server.context.counters.requests.get(api) for server in servers]
            of_primary, of_standby = [0 if count is None else sum(count.times.buckets) for count in counts]
            return of_primary, of_standby

        with forebay.connect(primary.server.bootstrap_servers, read_standby=there) as conn:
            kv, log = conn.table("fluss.kv"), conn.table("fluss.log")
            assert kv.scan().to_arrow().num_rows == log.scan().to_arrow().num_rows == 20
            assert kv.lookup([3, 4]).num_rows == 2
            with kv.snapshot() as snapshot:
                assert snapshot.scan().to_arrow().num_rows == 20
            kv.upsert([{"id": 3, "v": "new"}])
            for api in (ApiKey.SCAN_KV, ApiKey.LOOKUP, ApiKey.OPEN_TABLE_SNAPSHOT, ApiKey.FETCH_LOG):
                assert asked(api)[0] == 0
                assert asked(api)[1] > 0
            standby.await_all(primary)
            assert kv.lookup([3])["v"].to_pylist() == ["new"]
            apis = (ApiKey.LOOKUP, ApiKey.SCAN_KV, ApiKey.OPEN_TABLE_SNAPSHOT)
            before = [asked(api) for api in apis]
            at_server = pickle.loads(pickle.dumps(kv)).refresh().at_server
            assert at_server.lookup([3])["v"].to_pylist() == ["new"]
            assert at_server.scan().to_arrow().num_rows == 20
            at_server.snapshot().release()
            for earlier, now in zip(before, map(asked, apis), strict=True):
                assert now[0] > earlier[0]
                assert now[1] == earlier[1]
            standby.reads.stop()
            standby.reads.join()
            assert kv.lookup([3])["v"].to_pylist() == ["new"]
            assert kv.scan().to_arrow().num_rows == log.scan().to_arrow().num_rows == 20
    with forebay.connect(primary.server.bootstrap_servers, read_standby=there) as conn:
        assert conn.table("fluss.log").scan().to_arrow().num_rows == 20


def test_after_a_takeover_the_directory_is_served_and_has_nothing_of_the_reads(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    with forebay.embedded(tmp_path / "primary", settings=settings) as primary:
        kv = primary.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id")
        kv.upsert(rows(0))
        config = server_config(tmp_path / "standby", settings=settings)
        standby = Standby.of(config)
        reads = serve_reads(standby, config, 0)
        assert reads is not None
        taken_over: list[bool] = []
        thread = threading.Thread(target=lambda: taken_over.append(standby.wait()))
        thread.start()
        with forebay.connect(reads.addresses.bootstrap_servers) as conn:
            ReadingStandby(standby, reads, conn).await_all(primary)
            assert conn.table("fluss.kv").scan().to_arrow().num_rows == 20
            primary.close()
            thread.join(PATIENCE)
        assert taken_over == [True]
        reads.join()
    assert not (tmp_path / "standby" / "standby.reads").exists()
    with forebay.embedded(tmp_path / "standby", settings=settings) as conn:
        table = conn.table("fluss.kv")
        assert by_id(table.scan().to_arrow()).to_pylist() == rows(0).to_pylist()
        table.upsert(rows(5))


def test_what_a_killed_standby_has_made_for_reads_is_removed(tmp_path: Path, settings: dict[str, str]) -> None:
    with forebay.embedded(tmp_path / "primary", settings=settings) as primary:
        primary.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id").upsert(rows(0))
    left = tmp_path / "standby" / "standby.reads" / "kv"
    standby = Standby.of(server_config(tmp_path / "standby", settings=settings))
    left.mkdir(parents=True)
    (left / "state").write_bytes(b"rows")
    assert standby.wait()
    with forebay.embedded(tmp_path / "standby", settings=settings) as conn:
        until(lambda: not left.parent.exists(), "the folder is removed")
        assert conn.table("fluss.kv").scan().to_arrow().num_rows == 20


def test_a_directory_of_a_stopped_server_serves_no_reads(tmp_path: Path, settings: dict[str, str]) -> None:
    with forebay.embedded(tmp_path / "primary", settings=settings):
        pass
    config = server_config(tmp_path / "primary", settings=settings)
    standby = Standby.of(config)
    assert serve_reads(standby, config, 0) is None
    assert standby.wait()
