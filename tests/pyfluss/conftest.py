"""One server for all tests here, and asynchronous test functions: pyfluss is an asyncio library.

`session` is what a test works with: a connection, its admin, and tables with unique names.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from forebay.testing.server import EmbeddedServer

fluss = pytest.importorskip("fluss")

_numbers = itertools.count()
DATABASE = "strangers"
USERS = {"admin": "open sesame", "alice": "s:e'c,ret"}


class Session:
    """A connection and what tests do with it all the time."""

    def __init__(self, address: str, connection: Any) -> None:
        self.address = address
        self.connection = connection
        self.admin = connection.get_admin()

    def path(self, name: str | None = None) -> Any:
        return fluss.TablePath(DATABASE, name or f"t{next(_numbers)}")

    async def create(self, schema: Any, primary_key: Sequence[str] = (), **descriptor: Any) -> Any:
        """A new table of an Arrow schema, opened."""
        path = self.path()
        auto_increment = descriptor.pop("auto_increment_column", None)
        their_schema = fluss.Schema(schema, list(primary_key) or None, auto_increment_column=auto_increment)
        descriptor.setdefault("bucket_count", 1)
        await self.admin.create_table(path, fluss.TableDescriptor(their_schema, **descriptor))
        return await self.connection.get_table(path)

    async def partition_ids(self, table: Any) -> dict[str, int]:
        infos = await self.admin.list_partition_infos(table.get_table_path())
        return {info.partition_name: info.partition_id for info in infos}


async def connect(address: str, **settings: Any) -> Any:
    properties = {"bootstrap.servers": address, **{k.replace("_", "."): v for k, v in settings.items()}}
    return await fluss.FlussConnection.create(fluss.Config(properties))


async def error_code(awaitable: Any) -> int:
    """The code with which a call fails; 0 when it succeeds."""
    try:
        await awaitable
    except fluss.FlussError as e:
        return int(e.error_code)
    return 0


async def records(scanner: Any, count: int) -> list[Any]:
    """The next `count` records, in the order in which they come."""
    found: list[Any] = []
    while len(found) < count:
        polled = await scanner.poll(500)
        assert polled.count() or len(found) < count
        found.extend(polled)
    return found


async def all_rows(table: Any, count: int, buckets: int = 1, **options: Any) -> list[dict[str, Any]]:
    """`count` rows of a table without partitions, from the beginning."""
    scan = table.new_scan()
    for name, value in options.items():
        scan = getattr(scan, name)(value)
    scanner = await scan.create_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(buckets), fluss.EARLIEST_OFFSET))
    return [record.row for record in await records(scanner, count)]


def changes(found: Sequence[Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(record.change_type.short_string(), record.row) for record in found]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    credentials = ",".join(f"{name}:'{password}'" if "," in password else f"{name}:{password}" for name, password in
                           {"admin": USERS["admin"]}.items())  # fmt: skip
    with EmbeddedServer(
        tmp_path_factory.mktemp("pyfluss") / "data",
        sasl=True,
        plain=True,
        settings={"security.sasl.plain.credentials": credentials, "max.partition.num": "20"},
    ) as started:
        yield started


@pytest.fixture
def address(server: EmbeddedServer) -> str:
    return server.bootstrap_servers


@pytest.fixture
def session(server: EmbeddedServer) -> Callable[[], Any]:
    """Replaced by a `Session` inside the event loop of the test."""
    return lambda: _open_session(server.bootstrap_servers)


async def _open_session(address: str) -> Session:
    opened = Session(address, await connect(address))
    await opened.admin.create_database(DATABASE, ignore_if_exists=True)
    return opened


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an asynchronous test in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def run() -> None:
        if "session" in arguments:
            arguments["session"] = await arguments["session"]()
        try:
            await pyfuncitem.obj(**arguments)
        finally:
            if "session" in arguments:
                await arguments["session"].connection.close()

    asyncio.run(run())
    return True
