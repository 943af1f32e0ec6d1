"""A real Prometheus (Debian: `apt install prometheus`) with the files of deploy/: it scrapes, its alerts are sound."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base.monitoring import Monitoring
from forebay.client.metrics import collector
from forebay.lake.metrics import LakeMetrics
from forebay.server.embedded import EmbeddedServer
from tests.patience import PATIENCE

DEPLOY = Path(__file__).parents[2] / "deploy"

pytestmark = [
    pytest.mark.foreign,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no Prometheus: apt install prometheus"),
]


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus that scrapes a server of ours twice a second."""
    settings = {"metrics.reporters": "prometheus", "metrics.reporter.prometheus.port": "0"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    lake = LakeMetrics()
    tiering = Monitoring([lake, collector()], list, list)  # what else the port of a tiering service has
    _, port = tiering.start("127.0.0.1", range(1))
    with EmbeddedServer(tmp_path / "data", settings=settings) as server:
        config = (DEPLOY / "prometheus.yml").read_text()
        for ours, theirs in (("9249", str(server.addresses.monitoring)), ("9250", f"127.0.0.1:{port}")):
            config = config.replace(f"127.0.0.1:{ours}", theirs)
        config = config.replace("15s", "500ms")
        (tmp_path / "prometheus.yml").write_text(config)
        shutil.copy(DEPLOY / "alerts.yml", tmp_path)
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                f"--web.listen-address={address}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with forebay.connect(server.bootstrap_servers) as connection:
                table = connection.create_table("fluss.t", pa.schema([("id", pa.int64())]), buckets=1)
                table.append(pa.table({"id": range(100)}))
                yield address
        finally:
            process.terminate()
            process.wait(PATIENCE)
            tiering.stop()
            lake.close()


def ask(address: str, path: str, **parameters: str) -> Any:
    with urllib.request.urlopen(
        f"http://{address}{path}?{urllib.parse.urlencode(parameters)}", timeout=PATIENCE
    ) as answer:
        found = json.loads(answer.read())
    assert found["status"] == "success"
    return found["data"]


def test_it_scrapes_and_evaluates_all_that_deploy_has(prometheus: str) -> None:
    query = 'forebay_table_records_total{table="t"}'
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            result = ask(prometheus, "/api/v1/query", query=query)["result"]
        except OSError:  # it does not listen yet
            result = []
        if result or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    assert [found["value"][1] for found in result] == ["100"]
    rows = 'forebay_client_written_rows_total{job="forebay-tiering"}'
    while True:  # it may have been scraped before the rows were written
        written = [found["value"][1] for found in ask(prometheus, "/api/v1/query", query=rows)["result"]]
        if "100" in written or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    assert "100" in written
    targets = ask(prometheus, "/api/v1/targets")["activeTargets"]
    assert sorted(target["labels"]["job"] for target in targets) == ["forebay", "forebay-tiering"]
    assert {(target["health"], target["lastError"]) for target in targets} == {("up", "")}
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    for expression in expressions:
        expression = expression.replace("$__rate_interval", "1m")
        ask(prometheus, "/api/v1/query", query=re.sub(r'"\$instance"', '".*"', expression))
    deadline = time.monotonic() + PATIENCE
    while True:
        rules = ask(prometheus, "/api/v1/rules")["groups"][0]["rules"]
        if all(rule["health"] != "unknown" for rule in rules) or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    assert {rule["health"] for rule in rules} == {"ok"}
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_a_disk_that_fills_up_is_an_alert_once_there_is_an_hour_of_data(tmp_path: Path) -> None:
    """The same loss of a gigabyte a minute: of a server that has just started, and of one that has run for long."""
    labels = 'job="forebay", instance="{}"'
    found = {"job": "forebay", "instance": "old", "severity": "ticket"}
    summary = "the disk of old is full in four hours if it goes on like this"
    rules = {
        "rule_files": [str(DEPLOY / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": f"forebay_disk_free_bytes{{{labels.format('new')}}}", "values": "_x140 100e9-1e9x40"},
                    {"series": f"forebay_disk_free_bytes{{{labels.format('old')}}}", "values": "250e9-1e9x180"},
                ],
                "alert_rule_test": [
                    {
                        "eval_time": "180m",
                        "alertname": "ForebayDiskFillsUp",
                        "exp_alerts": [{"exp_labels": found, "exp_annotations": {"summary": summary}}],
                    }
                ],
            }
        ],
    }
    (tmp_path / "rules.yml").write_text(json.dumps(rules))
    done = subprocess.run(["promtool", "test", "rules", tmp_path / "rules.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
