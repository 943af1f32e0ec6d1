"""A standby serves metrics and health where the server that takes over has its own."""

from __future__ import annotations

import http.client
import threading
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import forebay
from forebay.server.config import server_config
from forebay.server.embedded import EmbeddedServer
from forebay.server.standby import standby as standby_module
from forebay.server.standby import standby_metrics as metrics_module
from forebay.server.standby.standby import Standby
from forebay.server.standby.standby_metrics import monitored
from tests.patience import PATIENCE, until

ROOT = Path(__file__).parents[3]


def ask(address: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def values(address: str) -> dict[str, float]:
    status, text = ask(address, "/metrics")
    assert status == 200
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return {each.name: each.value for each in samples if each.name.startswith("forebay_")}


def test_a_standby_shows_how_it_follows_until_the_server_has_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby_module, "POLL_SECONDS", 0.01)
    mounted, away = tmp_path / "store", tmp_path / "away"
    settings = {
        "store": str(mounted), "store.interval": "10 ms", "store.lease": "1 h",
        "metrics.reporters": "prometheus", "metrics.reporter.prometheus.port": "0",
        "standby.max-staleness": "300 ms",
    }  # fmt: skip
    with forebay.embedded(tmp_path / "data", settings=settings) as conn:
        conn.create_table("fluss.log", {"id": "BIGINT"}).append([{"id": 1}])
        config = server_config(tmp_path / "standby", settings=settings)
        assert config.monitoring is not None
        standby = Standby.of(config)
        with monitored(standby, config, config.monitoring) as address:
            thread = threading.Thread(target=standby.wait)
            thread.start()
            until(lambda: standby.number > 0 and ask(address, "/readyz")[0] == 200, "it has seen the journal")
            found = values(address)
            assert found["forebay_standby_lease_seconds"] == 3600
            assert found["forebay_standby_journal_objects_total"] > 0
            assert found["forebay_standby_as_of_timestamp_seconds"] > 1_700_000_000
            assert found["forebay_standby_staleness_seconds"] >= 0
            page = (ROOT / "docs" / "metrics.md").read_text()
            assert set(found) == {name for name in found if f"| `{name}`" in page}
            mounted.rename(away)
            until(lambda: ask(address, "/readyz")[0] == 503, "the store is away")
            assert "has not seen the end of the journal for" in ask(address, "/readyz")[1]
            assert ask(address, "/healthz")[0] == 200
            away.rename(mounted)
            until(lambda: ask(address, "/readyz")[0] == 200, "the store is back")
            conn.close()
            thread.join(PATIENCE)
        same = {**settings, "metrics.reporter.prometheus.port": address.rpartition(":")[2]}
        with EmbeddedServer(tmp_path / "standby", settings=same) as server:
            assert server.addresses.monitoring == address
            assert ask(address, "/readyz")[0] == 200


def test_a_standby_that_is_stuck_is_to_be_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "_STUCK_SECONDS", -1.0)
    settings = {"store": str(tmp_path / "store")}
    standby = Standby.of(server_config(tmp_path / "standby", settings=settings))
    try:
        (fault,) = metrics_module.StandbyMetrics(standby, 10).faults()
        assert fault.startswith("the standby has been at one step for")
    finally:
        standby.stop()
        assert not standby.wait()
