"""`/metrics`, `/healthz` and `/readyz` over HTTP, of servers that work, are full, hang, and have stopped."""

from __future__ import annotations

import http.client
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

import forebay
from forebay.base import monitoring as monitoring_module
from forebay.base.counting import SECONDS, Histogram, quantile
from forebay.base.errors import InvalidRequest, NotFound
from forebay.server import server as server_module
from forebay.server.embedded import EmbeddedServer
from forebay.server.flow.disk_reserve import DiskReserve

Samples = dict[str, list[tuple[dict[str, str], float]]]
PATH = "fluss.orders"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path / "data", settings=_settings()) as running:
        yield running


def _settings(**more: str) -> dict[str, str]:
    return {"metrics.reporters": "prometheus", "metrics.reporter.prometheus.port": "0", **more}


def ask(server: EmbeddedServer, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(str(server.addresses.monitoring), timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def metrics(server: EmbeddedServer) -> Samples:
    status, text = ask(server, "/metrics")
    assert status == 200
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    [found] = [value for given, value in samples.get(name, []) if given == labels]
    return found


def rows(count: int) -> pa.Table:
    return pa.table({"id": range(count), "name": ["x"] * count}, SCHEMA)


def test_what_clients_do_is_in_the_metrics(server: EmbeddedServer) -> None:
    of = {"database": "fluss", "table": "orders"}
    with forebay.connect(server.bootstrap_servers) as connection:
        table = connection.create_table(PATH, SCHEMA, primary_key=["id"], buckets=2)
        log = connection.create_table("fluss.clicks", SCHEMA, buckets=1)
        table.upsert(rows(100))
        table.upsert(rows(50))
        log.append(rows(30))
        log.append(rows(1))
        assert table.lookup({"id": 3}) is not None
        assert log.scan().to_arrow().num_rows == 31
        with pytest.raises(NotFound):
            connection.table("fluss.absent")
        found = metrics(server)
    assert value(found, "fluss_coordinator_tableCount") == 2
    assert value(found, "fluss_coordinator_bucketCount") == 3
    assert value(found, "forebay_open_buckets") == 3
    assert value(found, "forebay_table_rows", **of) == 100
    assert value(found, "forebay_table_records_total", **of) == 200  # an update is two records
    assert value(found, "forebay_table_records_total", database="fluss", table="clicks") == 31
    assert value(found, "forebay_table_bytes_in_total", **of) > 100
    assert value(found, "forebay_table_bytes_out_total", database="fluss", table="clicks") > 100
    assert value(found, "forebay_table_log_bytes", **of) > 100
    assert value(found, "forebay_table_kv_bytes", **of) > 100
    assert value(found, "fluss_tabletserver_logicalStorage_kvSize") == value(found, "forebay_table_kv_bytes", **of)
    assert value(found, "forebay_requests_total", api="lookup") == 1
    assert value(found, "forebay_requests_total", api="produceLog") == 2
    assert value(found, "forebay_request_seconds_count", api="produceLog") == 2
    assert value(found, "forebay_request_seconds_bucket", api="produceLog", le="+Inf") == 2
    assert value(found, "forebay_request_errors_total", api="getMetadata", error="TABLE_NOT_EXIST") == 1
    assert value(found, "forebay_grouped_writes_total") >= value(found, "forebay_write_groups_total") >= 4
    assert value(found, "forebay_sync_seconds_count") >= 4
    assert value(found, "forebay_connections") >= 1
    assert value(found, "process_resident_memory_bytes") > 1 << 20
    assert value(found, "fluss_tabletserver_request_totalTimeMs", request="lookup", quantile="0.99") > 0
    assert value(found, "fluss_tabletserver_request_requestsPerSecond", request="lookup") > 0
    assert value(found, "fluss_tabletserver_messagesInPerSecond") > 0


def test_counts_of_buckets_stay_when_they_are_parked_and_go_with_their_table(tmp_path: Path) -> None:
    with (
        EmbeddedServer(tmp_path / "data", settings=_settings(**{"server.open-buckets.max": "1"})) as server,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        for name in ("a", "b", "c"):
            connection.create_table(f"fluss.{name}", SCHEMA, buckets=1).append(rows(10))
        found = metrics(server)
        assert value(found, "forebay_open_buckets") < 3
        for name in ("a", "b", "c"):
            assert value(found, "forebay_table_records_total", database="fluss", table=name) == 10
        connection.drop_table("fluss.b")
        left = metrics(server)["forebay_table_records_total"]
        assert sorted(labels["table"] for labels, _ in left) == ["a", "c"]


def test_paths_and_methods(server: EmbeddedServer) -> None:
    assert ask(server, "/healthz") == (200, "ok\n")
    assert ask(server, "/readyz") == (200, "ok\n")
    assert ask(server, "/")[0] == 200
    status, text = ask(server, "/metric")
    assert status == 404
    assert "/metrics" in text
    assert ask(server, "/metrics", "POST")[0] == 405


def test_a_full_disk_is_not_ready_but_healthy(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskReserve, "is_free", lambda self: False)
    status, text = ask(server, "/readyz")
    assert status == 503
    assert "disk is full" in text
    assert ask(server, "/healthz") == (200, "ok\n")
    assert value(metrics(server), "fluss_tabletserver_diskWriteLocked") == 1


def test_an_event_loop_that_hangs_is_not_healthy(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LOOP_SECONDS", 0.1)
    assert server._running is not None
    server._running.loop.call_soon_threadsafe(time.sleep, 1.5)
    status, text = ask(server, "/healthz")
    assert status == 503
    assert "event loop" in text


def test_clients_that_send_nothing_do_not_keep_others_waiting_for_good(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring_module._Handler, "timeout", 0.3)
    host, _, port = str(server.addresses.monitoring).rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(3 * monitoring_module._AT_ONCE)]
    try:
        assert ask(server, "/healthz") == (200, "ok\n")
    finally:
        for each in silent:
            each.close()


def test_many_scrapes_at_once(server: EmbeddedServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(server, "/metrics")[0], range(24)))
    assert answers == [200] * 24


def test_a_port_that_is_taken_is_told_and_the_next_of_a_range_used(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = _settings(**{"metrics.reporter.prometheus.port": str(port)})
        with pytest.raises(InvalidRequest, match=f"at port {port}: .*range such as"):
            EmbeddedServer(tmp_path / "data", settings=settings).start()
        settings = _settings(**{"metrics.reporter.prometheus.port": f"{port}-{port + 50}"})
        with EmbeddedServer(tmp_path / "data", settings=settings) as server:
            assert ask(server, "/healthz")[0] == 200


def test_nothing_listens_where_no_reporter_is_set(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data") as server:
        assert server.addresses.monitoring is None


def test_quantiles_are_inside_of_their_bucket() -> None:
    times = Histogram()
    assert quantile(0.5, times.buckets) != quantile(0.5, times.buckets)  # NaN
    for seconds in (0.0003, 0.0003, 0.003, 0.3, 100.0):
        times.observe(seconds)
    assert times.count == 5
    assert times.seconds == pytest.approx(100.3036)
    assert 0.00025 <= quantile(0.4, times.buckets) <= 0.0005
    assert 0.0025 <= quantile(0.6, times.buckets) <= 0.005
    assert 0.25 <= quantile(0.8, times.buckets) <= 0.5
    assert quantile(0.999, times.buckets) == SECONDS[-1]


# ---- what is written about them -------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
DOCUMENTED = re.compile(r"\b(?:forebay|fluss)_\w+")


def exported(server: EmbeddedServer) -> set[str]:
    """The names of all metrics, as they are written in docs/metrics.md: histograms and summaries without suffix."""
    found = set()
    for family in text_string_to_metric_families(ask(server, "/metrics")[1]):
        if family.name.startswith(("forebay_", "fluss_")):
            found.add(family.name + ("_total" if family.type == "counter" else ""))
    return found


def test_the_page_about_metrics_names_all_of_them_and_no_others(server: EmbeddedServer) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text().partition("\n## What there is\n")[2].partition("\n## ")[0]
    rows_of_table = "\n".join(line for line in page.splitlines() if line.startswith("| `f"))
    assert set(DOCUMENTED.findall(rows_of_table)) == exported(server)


@pytest.mark.parametrize("name", ["alerts.yml", "grafana-dashboard.json"])
def test_alerts_and_dashboard_use_only_what_is_exported(name: str, server: EmbeddedServer) -> None:
    used = set(DOCUMENTED.findall((ROOT / "deploy" / name).read_text()))
    page = (ROOT / "docs" / "metrics.md").read_text()  # of which each table is compared with what is exported
    names = exported(server) | set(re.findall(r"forebay_(?:client|lake|tiering)_\w+", page))
    histograms = {f"{name}_bucket" for name in names}
    assert len(used) >= 9
    assert used <= names | histograms
