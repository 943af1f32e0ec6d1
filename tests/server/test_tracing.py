"""OpenTelemetry spans of writes, scans and rounds: which there are, how they hang together, and none where none are
wanted."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import NotFound, UnsupportedOperation
from forebay.base.tracing import TRACE_FIELD, Tracing
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.messages import parse
from forebay.server.embedded import EmbeddedServer
from tests.client.proxy import PASS, Frame, Proxy
from tests.patience import PATIENCE

sdk = pytest.importorskip("opentelemetry.sdk.trace")

AWAITED = {"fluss.createTable", "fluss.produceLog", "fluss.putKv", "fluss.lookup", "fluss.scanKv"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


def rows(count: int) -> pa.Table:
    return pa.table({"id": range(count), "name": ["x" * 20] * count}, SCHEMA)


@pytest.fixture(scope="module")
def exporter() -> Any:
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    if not isinstance(trace.get_tracer_provider(), sdk.TracerProvider):  # there is one for a process
        trace.set_tracer_provider(sdk.TracerProvider())
    made = InMemorySpanExporter()
    trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(made))
    return made


@pytest.fixture
def spans(exporter: Any) -> Callable[[], list[Any]]:
    """The spans that have ended since the test began, once servers have ended theirs: they do so after the answer."""
    exporter.clear()

    def ended() -> list[Any]:
        deadline = time.monotonic() + PATIENCE
        while True:
            found = list(exporter.get_finished_spans())
            served = {span.parent.span_id for span in found if span.kind.name == "SERVER" and span.parent is not None}
            asked = {s.context.span_id for s in found if s.kind.name == "CLIENT" and s.name in AWAITED}
            if asked <= served or time.monotonic() > deadline or not served:
                return found
            time.sleep(0.01)

    return ended


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    settings = {"tracing.enabled": "true"}
    with EmbeddedServer(tmp_path_factory.mktemp("traced") / "data", settings=settings) as running:
        yield running


@pytest.fixture
def connection(server: EmbeddedServer) -> Iterator[forebay.Connection]:
    with forebay.connect(server.bootstrap_servers, tracing_enabled=True) as connected:
        yield connected
        for name in connected.list_tables("fluss"):
            connected.drop_table(f"fluss.{name}")


def children(spans: list[Any], parent: Any) -> list[str]:
    return sorted(
        f"{span.kind.name.lower()} {span.name}"
        for span in spans
        if span.parent is not None and span.parent.span_id == parent.context.span_id
    )


def named(spans: list[Any], name: str, kind: str = "INTERNAL") -> Any:
    [found] = [span for span in spans if span.name == name and span.kind.name == kind]
    return found


@pytest.mark.parametrize("count", [1, 20_000])
def test_a_write_is_one_trace_from_the_call_to_the_server(connection: Any, spans: Any, count: int) -> None:
    connection.create_table("fluss.t", SCHEMA, buckets=1).append(rows(1))
    table = connection.table("fluss.t")
    before = len(spans())
    table.append(rows(count))
    made = spans()[before:]
    write, sent = named(made, "table.append"), named(made, "fluss.produceLog", "CLIENT")
    assert children(made, write) == ["client fluss.produceLog", "internal write.buffer"]
    assert children(made, sent) == ["server fluss.produceLog"]
    served = named(made, "fluss.produceLog", "SERVER")
    assert {span.context.trace_id for span in (write, sent, served)} == {write.context.trace_id}
    assert served.attributes["forebay.request"] == sent.attributes["forebay.request"]
    assert write.attributes["db.collection.name"] == "fluss.t"
    assert named(made, "write.buffer").attributes["forebay.rows"] == count
    assert write.start_time <= sent.start_time <= served.start_time <= served.end_time
    assert sent.end_time <= write.end_time
    assert table.scan().to_arrow().num_rows == count + 1, "the field is no part of the rows"


def test_requests_are_children_of_what_the_program_does(connection: Any, spans: Any) -> None:
    from opentelemetry import trace

    table = connection.create_table("fluss.t", SCHEMA, primary_key="id", buckets=2)
    with trace.get_tracer("program").start_as_current_span("job"):
        table.upsert(rows(100))
        assert table.lookup({"id": 1}).num_rows == 1
        with pytest.raises(NotFound):
            connection.table("fluss.absent")
    made = spans()
    job = named(made, "job")
    assert "internal table.upsert" in children(made, job)
    assert children(made, named(made, "fluss.createTable", "CLIENT")) == ["server fluss.createTable"]
    lookup = named(made, "fluss.lookup", "CLIENT")
    assert lookup.parent.span_id == job.context.span_id
    assert named(made, "fluss.lookup", "SERVER").parent.span_id == lookup.context.span_id
    failed = [span for span in made if span.kind.name == "CLIENT" and not span.status.is_ok and span.events]
    assert [span.name for span in failed][:1] == ["fluss.getMetadata"]
    assert {span.status.description for span in made if span.kind.name == "SERVER"} >= {"TABLE_NOT_EXIST"}


def test_a_scan_has_a_span_while_it_reads(connection: Any, spans: Any) -> None:
    from opentelemetry import trace

    table = connection.create_table("fluss.t", SCHEMA, primary_key="id", buckets=2)
    table.upsert(rows(5000))
    before = len(spans())
    for _ in table.scan(filter="id > 100"):
        assert not trace.get_current_span().get_span_context().is_valid, "the caller is outside of it"
    made = spans()[before:]
    scan = named(made, "table.scan")
    assert scan.attributes["forebay.batches"] >= 1
    assert "client fluss.scanKv" in children(made, scan)
    with table.scan().reader() as reader:
        next(iter(reader))
    assert len([span for span in spans() if span.name == "table.scan"]) == 2, "a scan that is left has ended, too"


@pytest.mark.slow
def test_a_round_of_tiering_has_its_phases(tmp_path: Path, spans: Any) -> None:
    from forebay.tiering.round import TieringLake
    from forebay.tiering.service import TieringService

    lake = {"datalake.format": "paimon", "datalake.paimon.warehouse": str(tmp_path / "lake")}
    with (
        EmbeddedServer(tmp_path / "data", settings=lake) as server,
        forebay.connect(server.bootstrap_servers, tracing_enabled=True) as connection,
    ):
        options = {"table.datalake.enabled": "true", "table.datalake.freshness": "20 ms"}
        connection.create_table("fluss.t", SCHEMA, buckets=1, options=options).append(rows(10))
        with TieringService(connection, lake=TieringLake({}), poll_seconds=0.02) as service:
            while not any(table.rows for table in service.status().tables):
                service.wait(0.05)
    made = spans()
    whole = next(
        span for span in made if span.name == "tiering.round" and "internal tiering.committing" in children(made, span)
    )
    steps = children(made, whole)
    assert steps[:1] == ["internal tiering.committing"]
    assert {"internal tiering.planning", "internal tiering.writing"} <= set(steps)
    assert whole.attributes["db.collection.name"] == "fluss.t"
    planning = [span for span in made if span.name == "tiering.planning" and children(made, span)]
    assert planning, "requests of a phase are its children"


def test_without_the_option_nothing_is_sent_nor_made(server: EmbeddedServer, spans: Any) -> None:
    bodies: list[bytes] = []

    def seen(frame: Frame) -> Any:
        bodies.append(frame.body)
        return PASS

    for enabled in (False, True):
        with (
            Proxy(server.bootstrap_servers, on_request=seen) as proxy,
            forebay.connect(proxy.bootstrap_servers, tracing_enabled=enabled) as connection,
        ):
            connection.list_databases()
            connection.create_table(f"fluss.t{enabled}", SCHEMA, buckets=1).append(rows(1))
        has_field = [body for body in bodies if b"\x00-"[1:] in body and b"00-" in body[-55:-52]]
        assert bool(has_field) == enabled
        if not enabled:
            assert {span.kind.name for span in spans()} <= {"SERVER"}
            assert all(span.parent is None for span in spans())
        bodies.clear()


def test_the_field_is_found_at_the_end_and_is_passed_over_by_those_who_do_not_know_it(exporter: Any) -> None:
    tracing = Tracing()
    span = tracing.begin("test")
    field = tracing.field_of(span)
    request = pb.ListTablesRequest(database_name="d")
    body = request.SerializeToString() + field
    assert TRACE_FIELD >= 20000
    assert parse(pb.ListTablesRequest, body).database_name == "d"
    parent = tracing.parent_in(body)
    assert parent is not None
    child = tracing.begin("child", parent)
    assert child.parent.span_id == span.get_span_context().span_id  # type: ignore[attr-defined]
    for other in (b"", body[:-1], body + b"\0", field.replace(b"00-", b"01-"), field[:10]):
        assert tracing.parent_in(other) is None
    zero = tracing.field_of(span)[:5] + b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"
    assert tracing.parent_in(zero) is None


def test_without_opentelemetry_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(UnsupportedOperation, match=r"forebay\[otel\]"):
        forebay.connect("127.0.0.1:1", tracing_enabled=True)


@pytest.mark.slow
def test_opentelemetry_is_not_imported_where_it_is_not_wanted() -> None:
    code = "import sys, forebay.client.connection, forebay.server.wire.rpc; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
