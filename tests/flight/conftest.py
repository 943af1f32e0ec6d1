"""An endpoint over a live server and a lake, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pytest

import forebay
import forebay.paimon
from forebay.flight.server import FlightSqlServer
from forebay.flight.statements import Limits
from forebay.inprocess import EmbeddedConnection
from tests.patience import PATIENCE

EVENTS = 300_000


@pytest.fixture(scope="session")
def flight_lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    warehouse = str(tmp_path_factory.mktemp("lake"))
    catalog = forebay.paimon.Catalog.open(warehouse)
    catalog.create_database("shop")
    items = catalog.create_table("shop.items", {"item": "INT", "name": "STRING"}, primary_key="item")
    items.upsert([{"item": 1, "name": "tea"}, {"item": 2, "name": "rum"}])
    return warehouse


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedConnection]:
    with forebay.embedded(tmp_path_factory.mktemp("data")) as connection:
        orders = connection.create_table(
            "fluss.orders",
            {"id": "BIGINT", "item": "INT", "amount": "DECIMAL(10, 2)", "at": "TIMESTAMP_LTZ(3)", "note": "STRING"},
            primary_key="id",
        )
        orders.upsert(
            [
                {"id": 1, "item": 1, "amount": Decimal("3.50"), "at": None, "note": "a"},
                {"id": 2, "item": 2, "amount": Decimal("19.90"), "at": None, "note": None},
                {"id": 3, "item": 1, "amount": 7, "at": None, "note": "c"},
            ]
        )
        events = connection.create_table("fluss.events", {"id": "BIGINT", "what": "STRING"})
        events.append(pa.table({"id": range(EVENTS), "what": ["x" * 20] * EVENTS}))
        yield connection


@pytest.fixture(scope="session")
def endpoint(live: EmbeddedConnection, flight_lake: str) -> Iterator[FlightSqlServer]:
    """An endpoint that allows changes."""
    limits = Limits(queries_max=3, wait_seconds=PATIENCE)
    server = FlightSqlServer(live, {"lake": flight_lake}, allow_changes=True, limits=limits)
    yield server
    server.stop()
