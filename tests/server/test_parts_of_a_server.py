"""The parts of a server: its listeners, its periodic upkeep, and what it releases when it stops or cannot start."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import CorruptData, ForebayError, InvalidRequest
from forebay.kv.scanner import ScannerManager
from forebay.kv.table_snapshots import TableSnapshotManager
from forebay.protocol.api import ServerRole
from forebay.protocol.listeners import Listener, SecurityProtocol
from forebay.server import server as parts
from forebay.server.config import ServerConfig, server_config
from forebay.server.context import HANDLERS
from forebay.server.embedded import EmbeddedServer
from forebay.server.maintenance.retention import LogRetention
from forebay.server.metadata.lake_tables import LakeTables
from forebay.server.metadata_store import MetadataStore
from forebay.server.server import Injected
from forebay.server.storage.replicas import ReplicaManager
from forebay.testing.memory_lake import MemoryLakeStorage, forget_lake
from tests.noted_databases import NotedDatabases
from tests.patience import PATIENCE, until
from tests.server.raw_client import ApiKey, PlainClient, RawClient, pb
from tests.server.running import LOG_COLUMNS, log_records, running
from tests.server.tiering_worker import Worker

PLAIN, SASL = SecurityProtocol.PLAINTEXT, SecurityProtocol.SASL


# ---- upkeep ---------------------------------------------------------------------------------------------------------


def test_all_upkeep_is_done_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[str, int] = {}

    def count(owner: type, name: str) -> None:
        real = getattr(owner, name)
        key = f"{owner.__name__}.{name}"
        counts[key] = 0

        def counted(*args: Any, **options: Any) -> Any:
            counts[key] += 1
            return real(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    for owner, names in (
        (ScannerManager, ["expire"]),
        (TableSnapshotManager, ["expire"]),
        (
            ReplicaManager,
            ["sync_idle", "save_offsets", "close_idle", "close_offline", "checkpoint_grown", "expire_writers"],
        ),
        (MetadataStore, ["expire_producer_offsets"]),
        (LogRetention, ["run"]),
    ):
        for name in names:
            count(owner, name)
    monkeypatch.setattr(parts, "_PRODUCERS_SECONDS", 0.01)
    settings = dict.fromkeys(
        (
            "kv.scanner.expiration-interval",
            "log.replica.high-watermark.checkpoint-interval",
            "kv.snapshot.interval",
            "server.writer-id.expiration-check-interval",
            "remote.log.task-interval-duration",
        ),
        "10 ms",
    )
    with EmbeddedServer(tmp_path / "data", settings=settings):
        until(lambda: all(each >= 2 for each in counts.values()), f"upkeep of each kind: {counts}")


def test_what_is_written_makes_a_lake_table_due_again(tmp_path: Path) -> None:
    forget_lake("due")
    clock = ManualClock()
    injected = Injected(clock=clock, create_lake_storage=lambda name, options: MemoryLakeStorage(options))
    with running(tmp_path, injected, datalake_format="paimon", datalake_paimon_name="due") as bench:
        lake = {"table.datalake.enabled": "true", "table.datalake.freshness": "1 min"}
        table_id = bench.create("t", LOG_COLUMNS, properties=lake)
        worker = Worker(bench)
        clock.advance(60)
        worker.ask(finished_tables=[worker.of(worker.next())])
        clock.advance(60)
        assert worker.next() is None
        assert not bench.append(table_id, log_records([1])).error_code
        clock.advance(60)
        assert worker.next().table_id == table_id


# ---- listeners ------------------------------------------------------------------------------------------------------


def listeners(
    role: ServerRole, *, sasl: bool = False, plain: bool = False, settings: Mapping[str, str] | None = None
) -> list[tuple[str, SecurityProtocol, str, int, str, int]]:
    found = parts._listeners(ServerConfig(Path("data"), "h", 1, 2, sasl, plain, dict(settings or {})), role)
    return [(x.name, x.protocol, x.host, x.port, x.advertised_host, x.advertised_port) for x in found]


COORDINATOR, TABLET = ServerRole.COORDINATOR, ServerRole.TABLET
NAMED = {"bind.listeners": "A://a:10, B://b:11", "advertised.listeners": "A://x:20", "security.protocol.map": "B:SASL"}


@pytest.mark.parametrize(
    ("role", "options", "expected"),
    [
        (COORDINATOR, {}, [("CLIENT", PLAIN, "h", 1, "h", 0)]),
        (TABLET, {}, [("CLIENT", PLAIN, "h", 2, "h", 0)]),
        (COORDINATOR, {"sasl": True}, [("CLIENT_SASL", SASL, "h", 1, "h", 0)]),
        (
            TABLET,
            {"sasl": True, "plain": True},
            [("CLIENT", PLAIN, "h", 2, "h", 0), ("CLIENT_SASL", SASL, "h", 0, "h", 0)],
        ),
        (COORDINATOR, {"settings": NAMED}, [("A", PLAIN, "a", 10, "x", 20), ("B", SASL, "b", 11, "b", 11)]),
        (TABLET, {"settings": NAMED}, [("A", PLAIN, "a", 2, "x", 2), ("B", SASL, "b", 0, "b", 0)]),
        (
            TABLET,
            {"settings": {**NAMED, "tablet-server.bind.listeners": "A://a:30"}},
            [("A", PLAIN, "a", 30, "x", 2)],
        ),
        (
            COORDINATOR,
            {
                "settings": {
                    **NAMED,
                    "tablet-server.bind.listeners": "A://a:30",
                    "coordinator.bind.listeners": "A://a:31",
                }
            },
            [("A", PLAIN, "a", 31, "x", 20)],
        ),
        (COORDINATOR, {"settings": {"tablet-server.bind.listeners": "A://a:30"}}, [("CLIENT", PLAIN, "h", 1, "h", 0)]),
        (COORDINATOR, {"sasl": True, "settings": {"bind.listeners": "A://a:10"}}, [("A", SASL, "a", 10, "a", 10)]),
        (TABLET, {"sasl": True, "settings": {"bind.listeners": "A://a:10"}}, [("A", SASL, "a", 2, "a", 2)]),
        (
            COORDINATOR,
            {"sasl": True, "plain": True, "settings": NAMED},
            [("A", PLAIN, "a", 10, "x", 20), ("B", SASL, "b", 11, "b", 11)],
        ),
    ],
)
def test_each_role_has_listeners_of_its_own(
    role: ServerRole, options: dict[str, Any], expected: list[tuple[str, SecurityProtocol, str, int, str, int]]
) -> None:
    assert listeners(role, **options) == expected


@pytest.mark.parametrize(
    ("plain", "settings", "message"),
    [
        (False, {**NAMED, "security.protocol.map": "A:PLAINTEXT, B:SASL"}, "'A' as PLAINTEXT"),
        (True, {"bind.listeners": "A://a:10"}, "asks for a listener with a login, and 'bind.listeners' has none"),
    ],
)
def test_who_asks_for_logins_never_gets_listeners_without_them(
    plain: bool, settings: Mapping[str, str], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        listeners(COORDINATOR, sasl=True, plain=plain, settings=settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**NAMED, "security.protocol.map": "BB:SASL"}, r"'BB' is not one of the listeners .*did you mean 'B'"),
        (
            {"security.protocol.map": "CLIENT:SASL"},
            "asks for SASL at 'CLIENT', and only 'bind.listeners' or --sasl",
        ),
        (
            {"bind.listeners": "OUTSIDE://a:10", "security.sasl.listener.name.outsid.plain.jaas.config": "x"},
            "'outsid' is not one of the listeners .*did you mean 'outside'",
        ),
    ],
)
def test_security_settings_that_name_no_listener_are_refused(
    settings: Mapping[str, str], message: str, tmp_path: Path
) -> None:
    config = server_config(tmp_path, settings=settings)
    with pytest.raises(InvalidRequest, match=message):
        parts._bind_all(config, lambda listener: pytest.fail(f"{listener} was bound"))


def test_passwords_that_nobody_is_asked_for_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedServer(tmp_path / "data", settings={"security.sasl.plain.credentials": "a:b"}):
        assert "'security.sasl.plain.credentials' has no effect without --sasl" in caplog.text


def test_clients_are_told_the_addresses_of_the_door_by_which_they_came(tmp_path: Path) -> None:
    settings = {"security.sasl.plain.credentials": "a:b"}
    with EmbeddedServer(tmp_path / "data", sasl=True, plain=True, settings=settings) as server:
        told = {}
        for door, credentials in (
            (server.bootstrap_servers, None),
            (server.addresses.sasl_bootstrap_servers, PlainClient("a", "b")),
        ):
            assert door is not None
            with RawClient(door, credentials) as client:
                answer = client.call(ApiKey.GET_METADATA, pb.MetadataRequest())
                told[door] = f"{answer.coordinator_server.host}:{answer.coordinator_server.port}"
                (tablet,) = answer.tablet_servers
                with RawClient(f"{tablet.host}:{tablet.port}", credentials) as other:
                    exists = pb.DatabaseExistsRequest(database_name="fluss")
                    assert other.call(ApiKey.DATABASE_EXISTS, exists).exists
        assert told == {door: door for door in told}
        assert len(told) == 2
        assert server.addresses.tablet_servers == f"127.0.0.1:{_port_of(server, PLAIN)}"


def _port_of(server: EmbeddedServer, protocol: SecurityProtocol) -> int:
    (port,) = (each.port for each in server.server._bound if each.role is TABLET and each.listener.protocol is protocol)
    return int(port)


# ---- the end --------------------------------------------------------------------------------------------------------


def test_a_server_that_cannot_start_lets_go_of_its_ports(tmp_path: Path) -> None:
    bound: list[socket.socket] = []

    def bind(listener: Listener) -> socket.socket:
        bound.append(parts.bind_tcp(listener))
        return bound[-1]

    with EmbeddedServer(tmp_path / "data"):
        second = EmbeddedServer(tmp_path / "data", injected=Injected(bind=bind))
        with pytest.raises(ForebayError):
            second.start()
        assert [thread.name for thread in threading.enumerate()].count("forebay-server") == 1, "the one that runs"
    assert [each.fileno() for each in bound] == [-1, -1]


def test_a_server_that_cannot_start_lets_go_of_its_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = NotedDatabases()
    with EmbeddedServer(tmp_path / "data", injected=Injected(database_file=opened)):
        pass
    with closing(sqlite3.connect(tmp_path / "data" / "metadata.sqlite")) as sql, sql:
        sql.execute("UPDATE log_epochs SET began_ms = 1")  # a row that does not have its checksum
    with pytest.raises(CorruptData, match="a row does not have its checksum"):
        EmbeddedServer(tmp_path / "data", injected=Injected(database_file=opened)).start()

    def fails(*arguments: Any, **named: Any) -> None:
        raise InvalidRequest("this part cannot be made")

    monkeypatch.setattr(parts, "TransactionManager", fails)  # the last one
    with pytest.raises(InvalidRequest, match="this part cannot be made"):
        EmbeddedServer(tmp_path / "other", injected=Injected(database_file=opened)).start()
    assert (len(opened.all), opened.left_open()) == (3, 0)


def test_a_server_that_has_stopped_has_closed_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    for owner, name in (
        (MetadataStore, "close"),
        (LakeTables, "close"),
        (ScannerManager, "shut_down"),
        (TableSnapshotManager, "shut_down"),
        (ReplicaManager, "close"),
    ):
        real = getattr(owner, name)

        def noted(self: Any, owner: type = owner, real: Any = real) -> Any:
            closed.append(owner.__name__)
            return real(self)

        monkeypatch.setattr(owner, name, noted)
    server = EmbeddedServer(tmp_path / "data").start()
    running_server = server.server
    upkeep, executors = list(running_server._upkeep), list(running_server._executors)
    poller = running_server._poller
    assert poller is not None
    assert poller.is_listening
    assert len(executors) == 5
    assert upkeep
    where = server.bootstrap_servers
    with RawClient(where) as client:
        server.stop()
        with pytest.raises(ConnectionError):
            client.call(ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss"))
    assert sorted(closed) == ["LakeTables", "MetadataStore", "ReplicaManager", "ScannerManager", "TableSnapshotManager"]
    assert all(task.cancelled() or task.cancelling() for task in upkeep)
    assert not poller.is_listening
    assert not len(poller)
    for executor in executors:
        with pytest.raises(RuntimeError):
            executor.submit(print)
    with pytest.raises(ConnectionError):
        RawClient(where)
    for part in ("context", "connections"):
        fresh = parts.ForebayServer(server.config)
        with pytest.raises(ForebayError, match="the server is not running"):
            getattr(fresh, part)
    server.stop()


def test_a_server_that_stops_closes_the_connections_that_do_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        server = parts.ForebayServer(ServerConfig(tmp_path / "data", coordinator_port=0, tablet_port=0))
        addresses = await server.start()
        host, _, port = addresses.bootstrap_servers.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        while not len(server.connections):
            await asyncio.sleep(0.001)
        await server.stop()
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()
        await server.stop()

    asyncio.run(test())


def test_requests_that_are_being_answered_while_a_server_stops_get_their_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    async def slow(_context: Any, _call: Any) -> Any:
        begun.set()
        while not may_end.is_set():
            await asyncio.sleep(0.001)
        return pb.DatabaseExistsResponse(exists=True)

    monkeypatch.setitem(HANDLERS, ApiKey.DATABASE_EXISTS, slow)
    monkeypatch.setattr(parts, "_DRAIN_SECONDS", 60)
    server = EmbeddedServer(tmp_path / "data").start()
    connections = server.server.connections
    with RawClient(server.bootstrap_servers) as client:
        request_id = client.send(ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss"))
        assert begun.wait(PATIENCE)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        until(lambda: connections.is_closing, "the beginning of the stop")
        may_end.set()
        assert client.receive(request_id).exists
        stopping.join(PATIENCE)
    assert not stopping.is_alive()


def test_an_embedded_server_that_does_not_run_says_so(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "data")
    for _ in range(2):
        for name in ("addresses", "bootstrap_servers", "server"):
            with pytest.raises(RuntimeError, match="the embedded server is not running"):
                getattr(server, name)
        server.stop()
        with server:
            assert server.addresses.bootstrap_servers == server.bootstrap_servers
            assert server.addresses.sasl_bootstrap_servers is None
