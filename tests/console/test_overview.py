"""The overview: rates, lag and settings, and what a cluster of Apache Fluss does not report."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.base.errors import UnsupportedOperation
from forebay.client.admin.admin import Admin
from forebay.console import overview, session, tables
from forebay.console.session import Console


def test_rates_are_those_between_two_looks(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    console.conn.create_database("sales")
    table = console.conn.create_table("sales.orders", {"id": "BIGINT"}, primary_key="id")
    first = overview.overview(console)
    assert first["health"] == {"status": "green", "buckets": 1, "serving": 1}
    assert {"name": "sales", "tables": 1} in first["databases"]
    assert first["server"]["tables"] == 1
    assert first["missing"] == []
    assert overview.overview(console)["history"]["times"] == []  # the same sample
    table.upsert([{"id": i} for i in range(1000)])
    monkeypatch.setattr(overview, "_SAMPLE_SECONDS", 0.0)
    second = overview.overview(console)
    before, after = console.samples()
    assert after.records_in - before.records_in == 1000
    assert [round(rate) for rate in second["history"]["records_in"]] == [round(second["rates"]["records_in"])]
    assert second["rates"]["p99"] > 0
    assert "putKv" in [api["name"] for api in second["apis"]]
    assert second["lag"] == {"tables": 0, "records": 0, "worst": []}


def test_settings_are_shown_without_secrets(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {each["key"]: each["value"] for each in overview.settings(console)["items"]}
    assert len(found) > 10
    assert tables.masked("s3.secret-key", "swordfish") == tables.HIDDEN
    assert tables.masked("s3.access-key", "swordfish") == tables.HIDDEN
    assert tables.masked("uri", "http://ann:swordfish@db/x?token=swordfish") == "http://db/x"
    assert tables.masked("table.datalake.format", "paimon") == "paimon"


def test_a_cluster_that_reports_nothing_is_shown_with_what_it_answers(console: Console, monkeypatch: Any) -> None:
    """As Apache Fluss 0.9: no health, no counts of rows, no DescribeServer."""

    def refused(*_: Any, **__: Any) -> Any:
        raise UnsupportedOperation("this server does not know that request")

    for name in ("describe_server", "cluster_health", "table_stats"):
        monkeypatch.setattr(Admin, name, refused)
    console.conn.create_database("sales")
    console.conn.create_table("sales.orders", {"id": "BIGINT"}, primary_key="id", buckets=2)
    found = overview.overview(console)
    assert (found["server"], found["rates"], found["health"]) == (None, None, None)
    assert len(found["missing"]) == 2
    assert found["nodes"]
    listed = tables.tables(console)
    assert [(item["table"], item["rows"], item["bytes"]) for item in listed["items"]] == [("orders", None, None)]
    assert listed["missing"] == [tables.NO_ROW_COUNTS]
    one = tables.table(console, "sales", "orders")
    assert (one["rows"], one["last_write"], one["all_buckets"]) == (None, None, 2)
    assert [item["rows"] for item in tables.buckets(console, "sales", "orders")["items"]] == [None, None]


def test_samples_of_a_server_that_was_started_again_are_not_compared(console: Console, monkeypatch: Any) -> None:
    admin = console.conn.admin
    first = console.sampled(0.0, admin.describe_server)
    monkeypatch.setattr(session, "_GAP_SECONDS", -1.0)
    second = console.sampled(0.0, admin.describe_server)
    assert first is not second
    assert console.samples() == [second]
