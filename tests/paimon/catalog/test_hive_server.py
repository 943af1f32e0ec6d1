"""The Hive catalog in a real metastore: its locks, and connections that break."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import (
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    StorageFailure,
    Unavailable,
    UnsupportedOperation,
)
from forebay.hive import metastore as metastore_module
from forebay.hive.commits import HiveLock
from forebay.hive.metastore import Metastore
from forebay.paimon.catalog.catalog import Catalog
from tests.paimon.catalog.metastore_server import Cutter, MetastoreServer
from tests.paimon.lake import put, rows_of
from tests.patience import PATIENCE

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string())])
PAIMON_INPUT = "org.apache.paimon.hive.mapred.PaimonInputFormat"


# ---- locks ----------------------------------------------------------------------------------------------------------


def _lock(options: dict[str, str], **given: Any) -> HiveLock:
    settings = {"wait_ms": 300, "max_sleep_ms": 50, "clock": ManualClock(), **given}
    return HiveLock(Metastore(options), "db", "t", **settings)


def test_a_lock_keeps_others_out_until_it_is_free(hive_options: dict[str, str]) -> None:
    lock, other = _lock(hive_options), pickle.loads(pickle.dumps(_lock(hive_options)))
    with lock.hold(), pytest.raises(Unavailable, match="was not free"), other.hold():
        pass
    with other.hold():
        pass
    with pytest.raises(ValueError, match="inside"), lock.hold():
        raise ValueError("inside")
    with lock.hold():
        pass


def test_the_holder_of_a_lock_that_was_dropped_is_told(hive_options: dict[str, str]) -> None:
    lock = _lock(hive_options)

    def work() -> None:
        with lock.hold():
            client = Metastore(hive_options)
            for lock_id in range(1, 500):
                try:
                    client.call("unlock", client.new("UnlockRequest", lockid=lock_id))
                except NotFound:
                    continue

    with pytest.raises(OutcomeUnknown, match=r"dropped the lock on 'db\.t'"):
        work()


def test_a_held_lock_shows_signs_of_life(hive_options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    beats = threading.Semaphore(0)
    call = Metastore.call

    def counted(self: Metastore, method: str, *arguments: Any) -> Any:
        answer = call(self, method, *arguments)
        if method == "heartbeat":
            beats.release()
        return answer

    monkeypatch.setattr(Metastore, "call", counted)
    with _lock(hive_options, heartbeat_seconds=0.01).hold():
        assert [beats.acquire(timeout=PATIENCE) for _ in range(2)] == [True, True]
    assert "hive-lock-heartbeat" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(ValueError, match="inside"), _lock(hive_options).hold():
        raise ValueError("inside")
    assert "hive-lock-heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_a_wait_for_a_lock_that_breaks_off_leaves_nothing_in_the_queue(
    hive_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Metastore.call

    def failing(self: Metastore, method: str, *arguments: Any) -> Any:
        if method == "check_lock":
            raise Unavailable("no answer")
        return call(self, method, *arguments)

    with _lock(hive_options).hold():
        monkeypatch.setattr(Metastore, "call", failing)
        with pytest.raises(Unavailable, match="no answer"), _lock(hive_options).hold():
            pass
        monkeypatch.undo()
    with _lock(hive_options, wait_ms=0).hold():  # behind one that waits it would not be free
        pass


def test_writers_under_the_lock_lose_nothing(hive_catalog: Catalog, hive_options: dict[str, str]) -> None:
    locked = {**hive_options, "lock.enabled": "true", "lock-check-max-sleep": "20 ms"}
    hive_catalog.create_table("db.t", COLUMNS, options={"commit.max-retries": "100", "commit.max-retry-wait": "20 ms"})
    failures: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            table = Catalog.open(locked).table("db.t")
            for i in range(3):
                put(table, [{"id": writer * 10 + i, "v": "x"}])
        except Exception as e:  # noqa: BLE001 - whatever it is, the test shows it
            failures.append(e)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [row[0] for row in rows_of(hive_catalog.table("db.t"), ["id"])] == [0, 1, 10, 11, 12, 2]


# ---- connections ----------------------------------------------------------------------------------------------------


@pytest.fixture
def cutter(metastore: MetastoreServer) -> Iterator[Cutter]:
    made = Cutter(metastore.port)
    yield made
    made.close()


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The clients whose connections were closed."""
    found: list[Any] = []
    close = metastore_module._close

    def noting(client: Any) -> None:
        found.append(client)
        close(client)

    monkeypatch.setattr(metastore_module, "_close", noting)
    return found


def test_connections_are_kept_and_those_that_were_closed_are_replaced(
    hive_catalog: Catalog, hive_options: dict[str, str], cutter: Cutter, closed: list[Any]
) -> None:
    behind = Catalog.open({**hive_options, "uri": f"thrift://127.0.0.1:{cutter.port}"})
    for _ in range(3):
        assert "db" in behind.list_databases()
        with pytest.raises(NotFound):
            behind.list_tables("none")
    assert (cutter.connections, closed) == (1, [])
    cutter.cut_all()
    behind.create_database("made")
    assert (cutter.connections, behind.list_databases()) == (2, ["db", "default", "made"])
    assert len(closed) == 1


@pytest.mark.parametrize("timeout", ["7 s", "7"])
def test_connections_wait_as_long_as_they_are_told_and_are_closed_with_the_catalog(
    hive_options: dict[str, str], closed: list[Any], timeout: str
) -> None:
    gc.collect()
    before = len(closed)
    metastore = Metastore({**hive_options, "hive.metastore.client.socket.timeout": timeout})
    for _ in range(2):
        metastore.call("get_all_databases")
        (client,) = metastore._idle
        assert client.forebay_socket.sock.gettimeout() == 7.0
    assert len(closed) == before, "the second call went over the first one's connection"
    del metastore
    gc.collect()
    assert client in closed
    assert client.forebay_socket.sock is None


def test_a_server_is_told_who_asks(hive_options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """So that directories that it makes are theirs."""
    client_class = pytest.importorskip("thriftpy2.thrift").TClient
    request, asked = client_class._req, []

    def noted(self: Any, method: str, *arguments: Any, **named: Any) -> Any:
        asked.append((method, *arguments))
        return request(self, method, *arguments, **named)

    monkeypatch.setattr(client_class, "_req", noted)
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")
    Metastore(hive_options).call("get_all_databases")
    assert asked == [("set_ugi", "somebody", []), ("get_all_databases",)]


def test_a_call_that_only_reads_is_repeated_when_its_connection_breaks_and_one_that_changes_is_not(
    hive_catalog: Catalog, hive_options: dict[str, str], cutter: Cutter, closed: list[Any]
) -> None:
    behind = Catalog.open({**hive_options, "uri": f"thrift://127.0.0.1:{cutter.port}"})
    behind.list_databases()
    cutter.cut_requests = 1
    assert "db" in behind.list_databases()
    assert len(closed) == 1
    cutter.cut_requests = 1
    with pytest.raises(OutcomeUnknown, match="may have done it or not"):
        behind.create_database("made")
    assert "made" in hive_catalog.list_databases()


@pytest.mark.parametrize(
    ("code", "error", "says"), [(1, UnsupportedOperation, "older than Hive 2.3"), (6, StorageFailure, "broken inside")]
)
def test_a_server_that_does_not_know_a_call_is_too_old(
    hive_options: dict[str, str], monkeypatch: pytest.MonkeyPatch, code: int, error: type, says: str
) -> None:
    refusal = pytest.importorskip("thriftpy2.thrift").TApplicationException

    class Client:
        def get_all_databases(self) -> None:
            raise refusal(code, "broken inside")

    monkeypatch.setattr(Metastore, "_take", lambda self: Client())
    monkeypatch.setattr(Metastore, "_give_back", lambda self, client: None)
    with pytest.raises(error, match=says) as told:
        Metastore(hive_options).call("get_all_databases")
    assert type(told.value) is error


def test_a_connection_is_closed_when_its_answer_is_not_awaited(
    hive_options: dict[str, str], cutter: Cutter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer would be taken for that of the next call."""
    behind = Metastore({**hive_options, "uri": f"thrift://127.0.0.1:{cutter.port}", "client-pool-size": "1"})
    take, closed = Metastore._take, []

    class Interrupted:
        def __init__(self, client: Any) -> None:
            self._client = client

        def get_all_databases(self) -> None:
            raise KeyboardInterrupt

        def close(self) -> None:
            self._client.close()
            closed.append(self._client)

    monkeypatch.setattr(Metastore, "_take", lambda self: Interrupted(take(self)))
    with pytest.raises(KeyboardInterrupt):
        behind.call("get_all_databases")
    monkeypatch.undo()
    assert len(closed) == 1
    assert "default" in behind.call("get_all_databases")
    assert cutter.connections == 2


def test_a_connection_that_cannot_be_introduced_is_closed(
    hive_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def unknown() -> str:
        raise OSError("no such user")

    monkeypatch.setattr(metastore_module, "current_user", unknown)
    monkeypatch.setattr(metastore_module, "_close", closed.append)
    with pytest.raises(Unavailable, match="no such user"):
        Metastore(hive_options, ManualClock()).call("get_all_databases")
    assert len(closed) == 3, "one of each round"
    for client in closed:
        client.close()


@pytest.mark.parametrize(
    ("given", "says"),
    [({"message": "broken inside"}, "MetaException: broken inside$"), ({}, r"MetaException: MetaException\(")],
)
def test_a_refusal_is_told_in_the_servers_words(
    hive_options: dict[str, str], monkeypatch: pytest.MonkeyPatch, given: dict[str, str], says: str
) -> None:
    refusal = Metastore(hive_options).new("MetaException", **given)

    class Client:
        def get_all_databases(self) -> None:
            raise refusal

    monkeypatch.setattr(Metastore, "_take", lambda self: Client())
    monkeypatch.setattr(Metastore, "_give_back", lambda self, client: None)
    with pytest.raises(StorageFailure, match=says):
        Metastore(hive_options).call("get_all_databases")


def test_a_package_that_is_missing_is_named_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metastore_module, "_thrift", metastore_module._thrift.__wrapped__)
    monkeypatch.setitem(sys.modules, "thriftpy2", None)
    with pytest.raises(UnsupportedOperation, match=r"pip install 'forebay\[paimon,hive\]'"):
        Metastore({"uri": "thrift://host"})


def test_a_uri_without_a_port_means_the_usual_one() -> None:
    pytest.importorskip("thriftpy2", reason="needs the package thriftpy2")
    assert str(Metastore({"uri": "thrift://host, thrift://other:1"})) == "thrift://host:9083,other:1"


def test_another_server_is_asked_when_the_first_is_gone(
    metastore: MetastoreServer, hive_options: dict[str, str]
) -> None:
    both = Catalog.open({**hive_options, "uri": f"thrift://127.0.0.1:1, {metastore.uri}"})
    assert "default" in both.list_databases()
    clock = ManualClock()
    began = clock.monotonic()
    none = Metastore({**hive_options, "uri": "thrift://127.0.0.1:1"}, clock)
    with pytest.raises(Unavailable, match=r"no Hive Metastore can be reached: 127\.0\.0\.1:1") as told:
        none.call("get_all_databases")
    assert str(told.value).count("127.0.0.1:1") == 1, "of three rounds the last is told"
    assert clock.monotonic() - began == 2.0


def test_a_forked_process_makes_connections_of_its_own(
    hive_options: dict[str, str], cutter: Cutter, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = Catalog.open({**hive_options, "uri": f"thrift://127.0.0.1:{cutter.port}", "client-pool-size": "1"})
    behind.list_databases()
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert "default" in behind.list_databases()
    assert cutter.connections == 2


def test_threads_share_a_few_connections(hive_options: dict[str, str], cutter: Cutter) -> None:
    behind = Catalog.open({**hive_options, "uri": f"thrift://127.0.0.1:{cutter.port}", "client-pool-size": "2"})
    threads = [threading.Thread(target=behind.list_databases) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cutter.connections in (1, 2)


def test_options_may_stand_in_hive_site_xml(metastore: MetastoreServer, tmp_path: Path) -> None:
    given = {"hive.metastore.uris": metastore.uri, "hive.metastore.warehouse.dir": str(tmp_path / "lake")}
    properties = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in given.items())
    (tmp_path / "hive-site.xml").write_text(f"<configuration>{properties}</configuration>")
    assert Catalog.open({"metastore": "hive", "hive-conf-dir": str(tmp_path)}).list_databases() == ["default"]
    (tmp_path / "hive-site.xml").write_text("<configuration>")
    with pytest.raises(InvalidRequest, match="hive-conf-dir"):
        Catalog.open({"metastore": "hive", "hive-conf-dir": str(tmp_path)})


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"uri": ""}, InvalidRequest, "needs option 'uri'"),
        ({"uri": "http://host:1"}, InvalidRequest, "thrift://host:9083"),
        ({"warehouse": ""}, InvalidRequest, "needs option 'warehouse'"),
        ({"client-pool-size": "0"}, InvalidRequest, "at least 1"),
        ({"hive.metastore.sasl.enabled": "true"}, UnsupportedOperation, "Kerberos"),
        ({"hive.metastore.use.SSL": "true"}, UnsupportedOperation, "TLS"),
        ({"lock.type": "zookeeper"}, UnsupportedOperation, "'zookeeper'"),
    ],
)
def test_a_catalog_that_cannot_be_opened_says_why(given: dict[str, str], error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        Catalog.open({"metastore": "hive", "uri": "thrift://127.0.0.1:1", "warehouse": "/lake", **given})
