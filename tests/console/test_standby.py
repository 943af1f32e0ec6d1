"""The console of a standby: every screen reads, as of a time that the overview shows, and nothing can be changed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.base.ambient import SYSTEM_CLOCK
from forebay.console.app import SCREENS, make_app
from forebay.console.session import Console
from forebay.console.visitors import Doors, Visitors
from tests.console.asking import ask
from tests.server.standby.reading_standby import reading

PARAMETERS = {"/api/completions": {"word": "o"}, "/api/key/{database}/{table}": {"key": '{"id": "1"}'}}


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Any]:
    settings = {"store": str(tmp_path / "store"), "store.interval": "10 ms", "store.lease": "1 h"}
    with (
        forebay.embedded(tmp_path / "data", settings=settings) as primary,
        reading(tmp_path / "standby", settings) as standby,
    ):
        primary.create_database("shop")
        table = primary.create_table("shop.orders", {"id": "BIGINT", "v": "STRING"}, primary_key="id")
        table.upsert([{"id": number, "v": "x"} for number in range(10)])
        standby.await_all(primary)
        console = Console(standby.conn, standby.reads.addresses.bootstrap_servers)
        try:
            yield make_app(Visitors(SYSTEM_CLOCK, console), Doors.of("127.0.0.1"), allow_changes=True)
        finally:
            console.close()


def test_all_screens_read(app: Any) -> None:
    for path in SCREENS:
        if "lake" not in path:
            url = path.replace("{database}", "shop").replace("{table}", "orders")
            answer = ask(app, "GET", url, **PARAMETERS.get(path, {}))
            assert answer.status == 200, (url, answer.body)
    shown = ask(app, "GET", "/api/overview").json["server"]["standby"]
    assert 0 <= shown["staleness"] < 3600
    assert dt.datetime.fromisoformat(shown["as_of"]) <= dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    assert len(ask(app, "GET", "/api/peek/shop/orders").json["rows"]) == 10


def test_what_would_change_something_is_refused(app: Any) -> None:
    answer = ask(app, "POST", "/api/transactions/abort", {"transaction_id": 1})
    status, kind, message = answer.error
    assert (status, kind) == (501, "unsupported")
    assert "standby" in message
