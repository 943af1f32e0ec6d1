"""A plugin of pytest: a server and an endpoint for the suite, in its own process, and a file of outcomes."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy.dialects import registry

import forebay
from forebay.flight.server import FlightSqlServer
from tests.flight.sqlalchemy_suite.dialect import SuiteDialect

_OPEN = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    registry.register("forebay", "forebay.sqlalchemy", "ForebayDialect")
    registry.register("forebay.suite", "tests.flight.sqlalchemy_suite.dialect", "SuiteDialect")
    client = _OPEN.enter_context(forebay.embedded(_OPEN.enter_context(TemporaryDirectory())))
    for database in ("test", "test_schema", "test_schema_2"):
        client.create_database(database)
    endpoint = FlightSqlServer(client, {}, allow_changes=True)
    _OPEN.callback(endpoint.stop)
    SuiteDialect.client = client
    config.option.dburi = [f"forebay+suite://127.0.0.1:{endpoint.port}/test"]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write how a test ended, as a line of JSON."""
    if report.when != "call" and report.outcome == "passed":
        return
    path = os.environ.get("FOREBAY_SUITE_OUTCOMES")
    if path is None:
        return
    test = report.nodeid.partition("::")[2].replace("_forebay+suite", "")
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({"test": test, "outcome": report.outcome, "reason": reason}) + "\n")


def pytest_unconfigure() -> None:
    _OPEN.close()
