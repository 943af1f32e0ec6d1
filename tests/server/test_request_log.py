"""One request can be followed through the logs of client and server; slow ones and failures are logged."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import InternalError, NotFound, StorageFailure
from forebay.cli.logs import JsonLines
from forebay.protocol.api import ApiKey
from forebay.server.context import HANDLERS
from forebay.server.embedded import EmbeddedServer
from tests.patience import until

CLIENT, SERVER = "forebay.client.cluster.rpc", "forebay.server.counters"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
ROWS = pa.table({"id": [1, 2], "name": ["a", "b"]}, SCHEMA)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path / "data") as running:
        yield running


def lines(caplog: pytest.LogCaptureFixture, logger: str, level: int = logging.NOTSET) -> list[dict[str, Any]]:
    records = [record for record in caplog.records if record.name == logger and record.levelno >= level]
    return [json.loads(JsonLines().format(record)) for record in records]


def the_line(caplog: pytest.LogCaptureFixture, logger: str, level: int) -> dict[str, Any]:
    """The only line of this level; the server logs after it has answered."""
    [line] = until(lambda: lines(caplog, logger, level), "the line of the log")
    return line


def failing(error: Exception) -> Any:
    def handler(*_: object) -> None:
        raise error

    return handler


def test_client_and_server_log_the_same_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, CLIENT)
    caplog.set_level(logging.DEBUG, SERVER)  # from before the server starts
    with EmbeddedServer(tmp_path / "data") as server, forebay.connect(server.bootstrap_servers) as connection:
        table = connection.create_table("fluss.t", SCHEMA, primary_key="id", buckets=1)
        log = connection.create_table("fluss.l", SCHEMA, buckets=1)
        caplog.clear()
        table.upsert(ROWS)
        log.append(ROWS)
        assert table.lookup({"id": 1}).num_rows == 1
        with pytest.raises(NotFound) as refused:
            connection.table("fluss.absent")
    sent, served = lines(caplog, CLIENT), lines(caplog, SERVER)  # of a server that has stopped
    assert {"putKv", "produceLog", "lookup"} <= {line["api"] for line in sent}
    assert sorted((line["request"], line["api"]) for line in sent) == sorted(
        (line["request"], line["api"]) for line in served
    )
    assert len({line["request"] for line in sent}) == len(sent)
    assert {line["level"] for line in (*sent, *served)} == {"DEBUG"}
    assert all(line["milliseconds"] >= 0 for line in (*sent, *served))
    [absent] = [line for line in served if "error_code" in line]
    assert absent["error_code"] == "TABLE_NOT_EXIST"
    assert "request" not in str(refused.value), "of a mistake of the caller's the server knows no more"


def test_slow_requests_are_warned_of_on_both_sides(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"server.request.slow-log-threshold": "1 ms"}
    with (
        EmbeddedServer(tmp_path / "data", settings=settings) as server,
        forebay.connect(server.bootstrap_servers, request_slow_log_threshold="0 ms") as connection,
    ):
        counters = server.server.context.counters
        connection.create_table("fluss.t", SCHEMA, buckets=1).append(ROWS)
        caplog.clear()
        connection.list_databases()
        counters.count_requests(ApiKey.FETCH_LOG, 1, 100, 2.5, 0, ("127.0.0.1:1", 7))
        counters.count_requests(ApiKey.LOOKUP, 1, 100, 0.0005)
        counters.count_requests(ApiKey.CREATE_TABLE, 1, 100, 2.5, 0, ("127.0.0.1:1", 8))
        with connection.table("fluss.t").changes(stop="latest") as changes:
            assert changes.to_arrow().num_rows == 2
    slow = [line["message"] for line in lines(caplog, SERVER, logging.WARNING)]
    assert "slow: request 127.0.0.1:1/8, createTable of 100 bytes: 2500.0 ms" in slow
    assert not [message for message in slow if "fetchLog" in message or "lookup" in message]
    warned = {line["api"] for line in lines(caplog, CLIENT, logging.WARNING)}
    assert "listDatabases" in warned
    assert "fetchLog" not in warned


def test_slow_requests_of_a_group_have_their_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, CLIENT)
    settings = {"server.request.slow-log-threshold": "0 ms"}
    with (
        EmbeddedServer(tmp_path / "data", settings=settings) as server,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        table = connection.create_table("fluss.t", SCHEMA, primary_key="id", buckets=1)
        log = connection.create_table("fluss.log", SCHEMA, buckets=1)
        caplog.clear()
        table.upsert(ROWS)
        log.append(ROWS)
        table.lookup({"id": 1})
        log.append(ROWS)
    wanted = {"putKv", "produceLog", "lookup"}
    sent = {(line["request"], line["api"]) for line in lines(caplog, CLIENT) if line["api"] in wanted}
    slow = {(line["request"], line["api"]) for line in lines(caplog, SERVER, logging.WARNING) if line["api"] in wanted}
    assert len(sent) == 4
    assert slow == sent


def test_nothing_is_logged_of_requests_that_are_served(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    with forebay.connect(server.bootstrap_servers) as connection:
        connection.create_table("fluss.t", SCHEMA, buckets=1).append(ROWS)
        with pytest.raises(NotFound):
            connection.table("fluss.absent")
    assert lines(caplog, SERVER) == []
    assert lines(caplog, CLIENT) == []


def test_failures_of_the_server_are_named_in_its_log_and_in_the_error(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with forebay.connect(server.bootstrap_servers, retry_timeout="1 ms") as connection:
        monkeypatch.setitem(HANDLERS, ApiKey.LIST_DATABASES, failing(StorageFailure("the disk is gone")))
        with pytest.raises(StorageFailure) as failed:
            connection.list_databases()
        line = the_line(caplog, SERVER, logging.WARNING)
        assert (line["api"], line["error_code"]) == ("listDatabases", "STORAGE_EXCEPTION")
        assert f"the disk is gone (request {line['request']})" in str(failed.value)
        monkeypatch.setitem(HANDLERS, ApiKey.LIST_DATABASES, failing(ZeroDivisionError("a bug")))
        with pytest.raises(InternalError) as broken:
            connection.list_databases()
        trace = the_line(caplog, "forebay.server.wire.rpc", logging.ERROR)
        assert "ZeroDivisionError: a bug" in trace["error"]
        assert f"(request {trace['request']})" in str(broken.value)
