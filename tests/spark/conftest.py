"""One server and one Spark session for all tests of this directory; a separate database for each test."""

from __future__ import annotations

import itertools
import os
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.client.connection import Connection
from forebay.server.embedded import EmbeddedServer
from tests.jvm import QUICK
from tests.spark.forking_python import ForkingPython
from tests.spark.liars import Change, Liar
from tests.spark.releases import SPARK

SESSIONS_MAX = 6
"""Scan sessions that the server allows, few enough for a careless reader to hit the limit."""

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before 4.2 PySpark itself leaves the sockets open by which results come; Python says so when it collects them."""
    if SPARK < (4, 2):
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    settings = {"kv.scanner.max-per-server": str(SESSIONS_MAX), "max.bucket.num": "1000"}
    with EmbeddedServer(tmp_path_factory.mktemp("forebay"), settings=settings) as running:
        yield running


@pytest.fixture(scope="session")
def connection(server: EmbeddedServer) -> Iterator[Connection]:
    with forebay.connect(server.bootstrap_servers) as conn:
        yield conn


@pytest.fixture
def database(connection: Connection) -> Iterator[str]:
    """The name of an empty database, dropped at the end."""
    name = f"db{next(_numbers)}"
    connection.create_database(name)
    yield name
    connection.drop_database(name, ignore_if_not_exists=True, cascade=True)


@pytest.fixture(scope="session")
def forking_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The `python` of the shared session's workers."""
    forking = ForkingPython(tmp_path_factory.mktemp("python"))
    yield str(forking.executable)
    forking.close()


@pytest.fixture(scope="session")
def spark(server: EmbeddedServer, forking_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The shared session: two cores, three attempts for each task, catalog `forebay`."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    warehouse = tmp_path_factory.mktemp("warehouse")
    conf = {
        "spark.ui.enabled": False,
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": 2,
        "spark.default.parallelism": 2,
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.driver.extraJavaOptions": f"{QUICK} -Xms1g -Xmn400m",
        "spark.log.level": "OFF",
        "spark.python.daemon.module": "tests.spark.preloaded",
        "spark.sql.session.timeZone": "UTC",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import forebay.spark

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYSPARK_PYTHON", forking_python)
            session = forebay.spark.session(
                "tests", "local[2,3]", conf, catalog="forebay", bootstrap_servers=server.bootstrap_servers
            )
    yield session
    session.stop()


@pytest.fixture
def derived_session(spark: Any) -> Iterator[Any]:
    """A session without catalogs in the same JVM, for programs that attach catalogs of their own names."""
    yield spark.newSession()
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)


@pytest.fixture
def sql(spark: Any, database: str) -> Callable[[str], list[tuple[Any, ...]]]:
    """Run a statement; `{db}` in it is the test's database. Returns the rows as tuples."""

    def run(statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(statement.replace("{db}", f"forebay.{database}")).collect()]

    return run


@pytest.fixture
def lie(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], Any]:
    """Lets executors (and no Python) read from a server that changes answers, in a `with`."""

    from forebay.spark.reading import direct

    @contextmanager
    def lying(change: Change) -> Iterator[Liar]:
        with forebay.connect(server.bootstrap_servers) as conn:
            conn.cluster.refresh()
            port = next(iter(conn.cluster.view.tablet_servers.values())).port
        liar = Liar(port, change)
        address = struct.pack(">i9si", 9, b"127.0.0.1", liar.port)
        monkeypatch.setattr(direct, "_address", lambda *_: address)
        try:
            yield liar
        finally:
            liar.close()

    return lying
