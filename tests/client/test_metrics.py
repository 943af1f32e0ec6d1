"""What a connection counts, as a dict and for Prometheus: against what the test has done."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import forebay
from forebay.base.ambient import ManualClock
from forebay.base.errors import ErrorCode, NotFound, OutcomeUnknown, Unavailable
from forebay.client.writing.accumulator import Accumulator, Batch, WriteTarget, WriteTracker
from forebay.metadata.table import TableBucket, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from tests.client.conftest import MakeTable, Through, own_server
from tests.client.proxy import CLOSE, DROP, PASS, Proxy, answered, only
from tests.patience import PATIENCE

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def rows(count: int) -> pa.Table:
    return pa.table({"id": range(count), "name": ["x"] * count}, SCHEMA)


def scraped(*connections: forebay.Connection) -> dict[str, dict[tuple[str, ...], float]]:
    """By sample name and values of labels."""
    registry = CollectorRegistry()
    registry.register(forebay.metrics.collector(*connections))
    return samples(registry)


def samples(registry: CollectorRegistry) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_a_connection_counts_what_it_does(bootstrap: str, make_table: MakeTable) -> None:
    keyed, log = make_table(SCHEMA, primary_key="id", buckets=2), make_table(SCHEMA)
    with forebay.connect(bootstrap, client_id="loader") as connection:
        connection.table(log.path).append(rows(30))
        connection.table(log.path).append(rows(1))
        table = connection.table(keyed.path)
        table.upsert(rows(100))
        assert table.lookup([{"id": 3}, {"id": 5}, {"id": 1000}]).num_rows == 3
        with connection.table(log.path).changes(stop="latest") as changes:
            assert changes.to_arrow().num_rows == 31
        with pytest.raises(NotFound):
            connection.table("client_tests.absent")
        found = connection.metrics()
        exported = scraped(connection)
        shown = connection._repr_html_()
    assert found["client_id"] == "loader"
    writer = found["writer"]
    assert (writer["rows"], writer["batches"]) == (131, 4)  # two buckets
    assert writer["bytes"] > 131 * 8
    assert (writer["retries"], writer["failures"], writer["buffered_bytes"]) == ({}, {}, 0)
    assert writer["seconds"] >= writer["queue_seconds"] > 0
    requests = found["requests"]
    assert requests["produceLog"]["requests"] == requests["produceLog"]["responses"] == 2
    assert requests["produceLog"]["bytes_out"] > requests["produceLog"]["bytes_in"] > 0
    assert requests["produceLog"]["seconds"] > 0
    assert sum(requests["getMetadata"]["errors"].values()) >= 1
    assert found["lookups"] == {"keys": 3, "found": 2}
    reads = found["readers"][str(log.path)]
    assert reads["rows"] == 31
    assert reads["fetches"] == requests["fetchLog"]["responses"] >= 1
    assert reads["bytes"] > 31 * 8
    assert found["requests_in_flight"] == 0
    assert found["channels"] >= 1
    assert exported["forebay_client_written_rows_total"] == {("loader",): 131}
    assert exported["forebay_client_request_seconds_count"]["produceLog", "loader"] == 2
    assert exported["forebay_client_read_rows_total"] == {("loader", "client_tests", log.path.table): 31}
    assert exported["fluss_client_writer_recordsPerBatch_sum"] == {("loader",): 131}
    assert exported["fluss_client_writer_bufferAvailableBytes"] == {("loader",): 64 << 20}
    assert exported["forebay_client_lookup_found_total"] == {("loader",): 2}
    assert ">131<" in shown
    assert connection.metrics()["writer"]["rows"] == 131, "a closed connection still knows"
    assert connection.metrics()["requests"]["produceLog"]["requests"] == 2
    assert connection.metrics()["channels"] == 0


def test_retries_and_failures_are_counted_by_their_reason(
    make_table: MakeTable, through: Through, proxy: Proxy
) -> None:
    response = pb.ProduceLogResponse()
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    response.buckets_resp.add(bucket_id=0, error_code=code, error_message="for a test")
    proxy.on_request = only(ApiKey.PRODUCE_LOG, answered(response), answered(response))
    table = through(make_table(SCHEMA))
    table.append(rows(10))
    found = table.connection.metrics()
    assert found["writer"]["retries"] == {"NOT_LEADER_OR_FOLLOWER": 2}
    assert (found["writer"]["retried_rows"], found["writer"]["rows"]) == (20, 10)
    assert found["requests"]["produceLog"]["errors"] == {}, "the requests as a whole did not fail"
    too_large = pb.ProduceLogResponse()
    too_large.buckets_resp.add(bucket_id=0, error_code=ErrorCode.RECORD_TOO_LARGE_EXCEPTION, error_message="for a test")
    count = proxy.count(ApiKey.PRODUCE_LOG)
    proxy.on_request = lambda f: answered(too_large) if f.key is ApiKey.PRODUCE_LOG and f.number == count else PASS
    with pytest.raises(forebay.errors.ForebayError):
        table.append(rows(1))
    assert table.connection.metrics()["writer"]["failures"] == {"RECORD_TOO_LARGE_EXCEPTION": 1}
    exported = scraped(table.connection)
    name = table.connection.client_id
    assert exported["forebay_client_batch_retries_total"] == {(name, "NOT_LEADER_OR_FOLLOWER"): 2}
    assert exported["fluss_client_writer_recordsRetryPerSecond"] == {(name,): 0}, "none since the collector exists"


def test_requests_without_an_answer_are_errors_and_outlive_their_channel(
    make_table: MakeTable, through: Through, proxy: Proxy
) -> None:
    table = through(make_table(SCHEMA, primary_key="id"), request_timeout="1 s")
    table.upsert(rows(3))
    proxy.on_request = only(ApiKey.LOOKUP, CLOSE, DROP)
    assert table.lookup({"id": 1}).num_rows == 1
    lookups = table.connection.metrics()["requests"]["lookup"]
    assert lookups["errors"] == {"NETWORK_EXCEPTION": 1, "REQUEST_TIME_OUT": 1}
    assert (lookups["requests"], lookups["responses"]) == (3, 1)
    assert table.connection.metrics()["requests"]["putKv"]["requests"] == 1, "of the channel that was closed"


def test_rates_begin_with_the_collector(bootstrap: str, make_table: MakeTable) -> None:
    path = make_table(SCHEMA).path
    with forebay.connect(bootstrap) as connection, forebay.connect(bootstrap) as other:
        connection.table(path).append(rows(1000))
        registry = CollectorRegistry()
        registry.register(forebay.metrics.collector(connection, other))
        assert samples(registry)["fluss_client_writer_recordSendPerSecond"][connection.client_id,] == 0
        connection.table(path).append(rows(10))
        rates = samples(registry)["fluss_client_writer_recordSendPerSecond"]
    assert rates[connection.client_id,] > 0
    assert rates[other.client_id,] == 0


def test_a_collector_without_connections_shows_those_that_are_open(bootstrap: str, conn: forebay.Connection) -> None:
    registry = CollectorRegistry()
    registry.register(forebay.metrics.collector())
    with forebay.connect(bootstrap, client_id="twice") as one, forebay.connect(bootstrap, client_id="twice") as two:
        names = {name for (name,) in samples(registry)["forebay_client_channels"]}
        assert {"twice", f"twice-{two.number}", conn.client_id} <= names
        assert one.number < two.number
    assert not {"twice"} & {name for (name,) in samples(registry)["forebay_client_channels"]}


def test_waiting_for_memory_is_counted() -> None:
    clock = ManualClock()
    accumulator = Accumulator(
        clock,
        None,
        memory_bytes=10,
        wait_seconds=60.0,
        in_flight_max=5,
        delivery_seconds=60.0,
        throttle_seconds_max=1.0,
    )
    bucket, target = TableBucket(1, 0), WriteTarget(1, TablePath("d", "t"), False)

    def batch() -> Batch:
        return Batch(target, bucket, bytearray(8), 1, WriteTracker())

    first = batch()
    accumulator.add(first)
    waiting = threading.Thread(target=accumulator.add, args=(batch(),))
    waiting.start()
    while not accumulator.counters.waiting_threads:
        pass
    with accumulator.lock:
        clock.advance(3)
        accumulator.fail_queued([first], Unavailable("for a test"))
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert accumulator.counters.waiting_threads == 0
    assert accumulator.counters.waited_seconds == 3
    assert accumulator.counters.failures == {ErrorCode.NETWORK_EXCEPTION: 1}


@own_server
def test_the_page_about_metrics_names_all_of_the_client(make_table: MakeTable, through: Through, proxy: Proxy) -> None:
    section = PAGE.read_text().partition("\n## Clients\n")[2].partition("\n## ")[0]
    documented = {
        name
        for line in section.splitlines()
        if line.startswith("| `f")
        for name in re.findall(r"\b(?:forebay|fluss)_client_\w+", line)
    }
    table = through(make_table(SCHEMA))
    refused: Any = pb.ProduceLogResponse()
    refused.buckets_resp.add(bucket_id=0, error_code=ErrorCode.RECORD_TOO_LARGE_EXCEPTION, error_message="for a test")
    moved: Any = pb.ProduceLogResponse()
    moved.buckets_resp.add(bucket_id=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, error_message="for a test")
    proxy.on_request = only(ApiKey.PRODUCE_LOG, answered(moved), PASS, CLOSE, answered(refused))
    table.append(rows(1))
    with pytest.raises(OutcomeUnknown):
        table.append(rows(1))
    with table.changes(stop="latest") as changes:
        changes.to_arrow()
    registry = CollectorRegistry()
    registry.register(forebay.metrics.collector(table.connection))
    exported = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(generate_latest(registry).decode())
    }
    assert documented == exported
