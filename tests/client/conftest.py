"""A server for all tests of the client, and separate tables for each.

With FOREBAY_TEST_BOOTSTRAP=host:port in the environment, the tests run against that cluster instead of our server
(test_foreign_cluster.py does this with a real Apache Fluss cluster); those that need our server are skipped.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base.ambient import SYSTEM_CLOCK, Clock, ManualClock
from forebay.client.connection import Connection
from forebay.client.reading.log_reader import LogReader
from forebay.client.settings import make_settings
from forebay.client.table import Table
from forebay.testing.server import EmbeddedServer
from tests.client.proxy import PASS, Proxy

FOREIGN_BOOTSTRAP = os.environ.get("FOREBAY_TEST_BOOTSTRAP")
DATABASE = "client_tests"

own_server = pytest.mark.skipif(FOREIGN_BOOTSTRAP is not None, reason="needs our own server")
"""For tests that restart the server, look inside it, or use what Fluss 0.9 does not have."""


def pytest_configure(config: pytest.Config) -> None:
    if FOREIGN_BOOTSTRAP is not None:
        config.addinivalue_line("filterwarnings", "ignore:this cluster has no ScanKv:RuntimeWarning")


MakeTable = Callable[..., Table]
Through = Callable[..., Table]

_numbers = itertools.count()


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer | None]:
    """Our server in this process; None when the tests run against another cluster."""
    if FOREIGN_BOOTSTRAP is not None:
        yield None
        return
    with EmbeddedServer(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def bootstrap(embedded: EmbeddedServer | None) -> str:
    return FOREIGN_BOOTSTRAP or (embedded.bootstrap_servers if embedded is not None else "")


@pytest.fixture(scope="session")
def conn(bootstrap: str) -> Iterator[Connection]:
    """Rows that its writers buffer stay there until a test has them written, however long that takes."""
    with forebay.connect(bootstrap, writer_batch_timeout="1 h") as connection:
        connection.create_database(DATABASE, ignore_if_exists=True)
        yield connection


@pytest.fixture
def make_table(conn: Connection) -> Iterator[MakeTable]:
    """Creates a table with a name of its own; the arguments are those of `create_table`. Dropped after the test."""
    paths = []

    def make(schema: Any, **options: Any) -> Table:
        path = f"{DATABASE}.t{next(_numbers)}"
        options.setdefault("buckets", 1)
        conn.create_table(path, schema, **options)
        paths.append(path)
        return conn.table(path)

    yield make
    for path in paths:
        conn.drop_table(path, ignore_if_not_exists=True)


class _ClockOfRows(ManualClock):
    """Stands still until rows have come, and runs from then on: with each look at it, by a twentieth of a second."""

    runs = False

    def monotonic(self) -> float:
        if self.runs:
            self.advance(0.05)
        return super().monotonic()


@contextmanager
def time_begins_with_rows(connection: Connection) -> Iterator[None]:
    """Inside, a reader's `timeout` begins when it has read rows: how long these take to come does not count."""
    clock = _ClockOfRows()
    next_decoded = LogReader._next_decoded

    def noted(reader: LogReader) -> pa.RecordBatch | None:
        batch = next_decoded(reader)
        clock.runs = clock.runs or batch is not None
        return batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "clock", clock)
        patch.setattr(LogReader, "_next_decoded", noted)
        yield


@pytest.fixture
def proxy(bootstrap: str) -> Iterator[Proxy]:
    with Proxy(bootstrap) as each:
        yield each


@pytest.fixture
def through(proxy: Proxy) -> Iterator[Through]:
    """Opens a table through the proxy; arguments are the clock and the options of the connection."""
    connections = []

    def open_(table: Table, clock: Clock = SYSTEM_CLOCK, **options: object) -> Table:
        connection = Connection(make_settings(proxy.bootstrap_servers, None, None, options), clock=clock)
        connections.append(connection)
        connection.cluster.bootstrap()
        return connection.table(table.path)

    yield open_
    proxy.on_request = proxy.on_response = lambda _: PASS
    for connection in connections:
        connection.close(timeout=10)
