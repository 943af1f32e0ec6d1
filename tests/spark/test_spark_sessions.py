"""Sessions: threads, catalogs, derived sessions, a server that restarts, workers that are no longer needed."""

from __future__ import annotations

import gc
import itertools
import socket
import sys
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import forebay
import forebay.spark
from forebay.base.errors import InvalidRequest, Unavailable
from forebay.client.cluster.cluster import ClusterClient
from forebay.client.connection import Connection
from forebay.server.embedded import EmbeddedServer
from forebay.spark import daemon, derived_sessions
from forebay.spark.jvm.gateway import Jvm
from forebay.spark.jvm.session_state import stream_is_active
from tests.patience import PATIENCE
from tests.spark.tables import make_table, rows

pytestmark = pytest.mark.spark

Sql = Callable[[str], list[tuple[Any, ...]]]


def test_threads_share_a_session(sql: Sql, connection: Connection, database: str) -> None:
    make_table(connection, f"{database}.t", ["id"]).upsert(rows(0, 100))

    def work(number: int) -> list[Any]:
        answers: list[Any] = []
        for turn in range(3):
            answers += sql(f"SELECT count(*) FROM {{db}}.t WHERE id BETWEEN 0 AND {number * 10 + turn}")
            sql(f"INSERT INTO {{db}}.t VALUES ({1000 + number * 10 + turn}, 'x', 1)")
            sql(f"CREATE TABLE {{db}}.t{number}_{turn} (id INT)")
        return answers

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(work, range(4)))
    assert answers == [[(number * 10 + turn + 1,) for turn in range(3)] for number in range(4)]
    assert sql("SELECT count(*) FROM {db}.t") == [(112,)]
    assert len(sql("SHOW TABLES IN {db}")) == 13


def test_catalogs_of_several_servers_live_in_one_session(
    sql: Sql, spark: Any, connection: Connection, database: str, tmp_path: Path
) -> None:
    make_table(connection, f"{database}.t", ["id"]).upsert(rows(0, 10))
    with forebay.embedded(tmp_path / "data") as other:
        forebay.spark.attach(spark, "other", other.bootstrap_servers, **{"client.retry-timeout": "1s"})
        sql("CREATE DATABASE other.db")
        sql("CREATE TABLE other.db.t AS SELECT id, 'theirs' AS owner FROM {db}.t WHERE id < 3")
        joined = sql("SELECT a.id, a.name, b.owner FROM {db}.t a JOIN other.db.t b ON a.id = b.id ORDER BY a.id")
        assert joined == [(i, f"n{i}", "theirs") for i in range(3)]
        sql("INSERT INTO {db}.t SELECT id + 100, owner, 0 FROM other.db.t")
        assert sql("SELECT count(*) FROM {db}.t") == [(13,)]
    with pytest.raises(Exception, match=r"cannot connect to 127.0.0.1|no bootstrap server responds"):
        sql("SHOW DATABASES IN other")
    assert sql("SELECT count(*) FROM {db}.t") == [(13,)]


def test_derived_sessions_have_the_catalogs_of_theirs(spark: Any, connection: Connection, database: str) -> None:
    make_table(connection, f"{database}.t", ["id"]).upsert(rows(0, 5))
    servers = ",".join(map(str, connection.settings.bootstrap_servers))
    forebay.spark.attach(spark, bootstrap_servers=servers)  # a test may have attached this name to another session
    derived = spark.newSession()
    name = f"forebay.{database}.t"
    assert derived.sql(f"SELECT count(*) FROM {name}").collect()[0][0] == 5
    derived.sql(f"INSERT INTO {name} VALUES (7, 'x', 1)")
    derived.sql(f"DELETE FROM {name} WHERE id = 0")
    assert derived.newSession().table(name).count() == 5
    assert "forebay" in [found.name for found in derived.catalog.listCatalogs()]
    derived.sql(f"CREATE TABLE forebay.{database}.made AS SELECT * FROM {name}")
    assert derived.sql(f"DROP TABLE forebay.{database}.made").collect() == []
    assert len(derived.sql("CALL forebay.sys.get_cluster_configs()").collect()) > 3
    with pytest.raises(Exception, match="nowhere"):
        derived.sql("SHOW TABLES IN forebay.nowhere")


def test_the_running_streams_are_known_when_the_session_that_asks_is_gone(spark: Any) -> None:
    """A stream could not start any more when the session of one that had ended was collected."""
    jvm = Jvm.of(spark)
    query = spark.readStream.format("rate").load().writeStream.format("noop").start()
    for session in (spark._jsparkSession, None):
        assert stream_is_active(jvm, session, query.id)
        assert not stream_is_active(jvm, session, str(uuid.uuid4()))
    query.stop()
    for session in (spark._jsparkSession, None):
        assert not stream_is_active(jvm, session, query.id)


def test_a_derived_session_has_the_catalog_of_its_own_parent(
    spark: Any, connection: Connection, tmp_path: Path
) -> None:
    with forebay.embedded(tmp_path / "data") as other:
        other.create_database("only_there")
        for parent, server in ((spark.newSession(), other), (spark.newSession(), connection)):
            servers = ",".join(map(str, server.settings.bootstrap_servers))
            forebay.spark.attach(parent, "shared_name", servers)
            clone = parent._jsparkSession.cloneSession()
            found = {row.getString(0) for row in clone.sql("SHOW DATABASES IN shared_name").collectAsList()}
            assert ("only_there" in found) == (server is other)


def test_each_batch_of_a_stream_is_written_by_foreach_batch(
    spark: Any, connection: Connection, database: str, tmp_path: Path
) -> None:
    make_table(connection, f"{database}.t", ["id"])
    spark.range(30).selectExpr("id", "concat('n', id) AS name", "id / 2 AS amount").write.parquet(str(tmp_path / "in"))
    counts = []

    def write(frame: Any, batch: int) -> None:
        frame.writeTo(f"forebay.{database}.t").append()
        counts.append(frame.sparkSession.sql(f"SELECT count(*) FROM forebay.{database}.t").collect()[0][0])

    files = spark.readStream.schema("id LONG, name STRING, amount DOUBLE").parquet(str(tmp_path / "in"))
    options = {"checkpointLocation": str(tmp_path / "checkpoint")}
    query = files.writeStream.foreachBatch(write).options(**options).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE)
    assert counts[-1] == spark.table(f"forebay.{database}.t").count() == 30


def test_a_spark_that_cannot_load_the_class_is_warned(
    spark: Any, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(jvm: Any) -> Any:
        raise jvm.unknown_layout("class loader of catalogs", LookupError("none"))

    monkeypatch.delitem(Jvm.of(spark)._cache, "catalog opener", raising=False)
    monkeypatch.setattr(derived_sessions, "loaded_class", refuse)
    forebay.spark.attach(spark, "alone", server.bootstrap_servers)
    assert "derives have no catalog alone" in caplog.text
    assert spark.sql("SHOW DATABASES IN alone").count() > 0


def test_a_server_may_restart_between_planning_and_reading(spark: Any, tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "data").start()
    port = server.bootstrap_servers.rpartition(":")[2]
    with forebay.connect(server.bootstrap_servers) as connection:
        connection.create_database("db")
        make_table(connection, "db.l").append(rows(0, 50))
        make_table(connection, "db.k", ["id"]).upsert(rows(0, 50))
        forebay.spark.attach(spark, "restarted", server.bootstrap_servers)
        frames = [spark.table(f"restarted.db.{name}").select("id") for name in ("l", "k")]
        for frame in frames:
            assert frame.rdd.getNumPartitions() == 1  # planned, and kept by the frame
        server.stop()
        server = EmbeddedServer(tmp_path / "data", coordinator_port=int(port)).start()
        try:
            connection.table("db.l").append(rows(50, 60))
            connection.table("db.k").upsert(rows(50, 60))
            connection.table("db.k").delete([{"id": 7}])
            assert sorted(row.id for row in frames[0].rdd.collect()) == list(range(50))
            assert sorted(row.id for row in frames[1].rdd.collect()) == list(range(50))
            assert spark.table("restarted.db.l").count() == 60
            assert spark.table("restarted.db.k").count() == 59
        finally:
            server.stop()


def test_attach_waits_for_a_server_that_restarts(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = socket.socket()  # keeps the port until the server has it; nothing listens
    kept.bind(("127.0.0.1", 0))
    port: int = kept.getsockname()[1]
    bootstrap, servers, attempts = ClusterClient.bootstrap, ExitStack(), itertools.count(1)

    def attempt(cluster: ClusterClient) -> None:
        if next(attempts) == 2:
            kept.close()
            servers.enter_context(EmbeddedServer(tmp_path / "data", coordinator_port=port))
        bootstrap(cluster)

    monkeypatch.setattr(ClusterClient, "bootstrap", attempt)
    with servers:
        forebay.spark.attach(spark, "late", f"127.0.0.1:{port}")
        assert spark.sql("SHOW DATABASES IN late").count() > 0


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"catalog": "bad-name", "bootstrap_servers": "127.0.0.1:1"}, InvalidRequest, "'bad-name' cannot be the name"),
        ({"catalog": "127.0.0.1:1"}, InvalidRequest, "address of a server is bootstrap_servers='host:port'"),
        ({"catalog": object()}, InvalidRequest, "object .* cannot be the name of a catalog"),
        ({"bootstrap_servers": None}, InvalidRequest, "no bootstrap server was given"),
        ({"bootstrap_servers": "127.0.0.1:1", "retry_timeout": "1 s"}, Unavailable, "no bootstrap server responds"),
        ({"bootstrap_servers": "127.0.0.1:1", "nope": 1}, InvalidRequest, "there is no client option 'nope'"),
    ],
)
def test_what_attach_cannot_use_it_refuses_and_changes_nothing(
    sql: Sql, spark: Any, arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        forebay.spark.attach(spark, **arguments)
    assert sql("SHOW TABLES IN {db}") == []


# ---- the daemon of Python workers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "code"), [(None, 0), (BrokenPipeError(), 1), (ConnectionResetError(), 1)])
def test_a_worker_without_a_listener_ends_quietly(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, code: int
) -> None:
    def start(sock: socket.socket, authenticated: bool) -> int:
        if error is not None:
            raise error
        return 0

    monkeypatch.setattr(daemon, "_start_worker", start)
    monkeypatch.setattr(daemon, "_freeze_modules", lambda: None)
    with socket.socket() as sock:
        assert daemon.quiet_worker(sock, True) == code


def test_modules_that_a_task_imported_are_no_work_for_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark collects garbage after each task, which else takes longer than the task."""
    garbage = weakref.WeakSet[Cycle]()

    def task(imported: str | None = None) -> int:
        def run(sock: socket.socket, authenticated: bool) -> int:
            garbage.add(Cycle())
            if imported is not None:
                monkeypatch.setitem(sys.modules, imported, ModuleType(imported))
            return 0

        monkeypatch.setattr(daemon, "_start_worker", run)
        with socket.socket() as sock:
            assert daemon.quiet_worker(sock, True) == 0
        return gc.get_freeze_count()

    monkeypatch.setattr(daemon, "_frozen_modules", 0)
    gc.unfreeze()
    try:
        first = task()
        assert first > len(sys.modules)
        assert not garbage, "what a task leaves is not frozen"
        assert task() <= first
        assert task("imported_by_a_task") > len(sys.modules)
        assert sys.modules["imported_by_a_task"] not in gc.get_objects()
        gc.collect()
        assert not garbage
    finally:
        gc.unfreeze()


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.me = self
