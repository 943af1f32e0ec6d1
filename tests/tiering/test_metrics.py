"""The metrics of a tiering service, and what its server says about the same tables."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from forebay.base.monitoring import Monitoring
from forebay.client.metrics import collector
from forebay.lake.metrics import LakeMetrics
from forebay.tiering.metrics import TieringMetrics, faults, problems
from forebay.tiering.service import TieringService
from tests.patience import PATIENCE
from tests.tiering.running import LakeCluster

SCHEMA = {"k": pa.int32(), "v": pa.string()}


def ask(address: tuple[str, int], path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen("http://{}:{}{}".format(*address, path), timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def samples(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def refused(*_: object, **__: object) -> None:
    raise ConnectionError("gone")


def test_a_service_shows_its_rounds_and_how_far_its_lakes_are_behind(paimon_lake: LakeCluster) -> None:
    table = paimon_lake.create("t", SCHEMA, options={"table.datalake.freshness": "20 ms"})
    table.append([{"k": 1, "v": "a"}, {"k": 2, "v": "b"}])
    service = TieringService(paimon_lake.connection, lake=paimon_lake.lake, poll_seconds=0.02)
    lake = LakeMetrics()
    metrics = [TieringMetrics(service), lake, collector(paimon_lake.connection)]  # as `forebay tiering` serves them
    monitoring = Monitoring(metrics, lambda: faults(service), lambda: problems(service))
    address = monitoring.start("127.0.0.1", range(1))
    try:
        assert ask(address, "/healthz") == (503, "the tiering service has stopped\n")
        with service:
            deadline = time.monotonic() + PATIENCE
            while not (rows := samples(ask(address, "/metrics")[1]).get("forebay_tiering_rows_total")) or not any(
                rows.values()
            ):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            found = samples(ask(address, "/metrics")[1])
            assert ask(address, "/readyz") == (200, "ok\n")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(service._tiering, "heartbeat", refused)
                while (answer := ask(address, "/readyz"))[0] == 200:
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            assert answer == (503, "the cluster does not answer heartbeats: gone\n")
    finally:
        monitoring.stop()
        lake.close()
    of = ("fluss", "t")
    assert found["forebay_tiering_rows_total"][of] == 2
    assert found["forebay_lake_commits_total"]["fluss", "append", "t"] >= 1
    assert found["forebay_lake_files"][of] >= 1
    assert found["forebay_client_written_rows_total"][paimon_lake.connection.client_id,] == 2
    assert found["forebay_tiering_rounds_total"][of] >= 1
    assert found["forebay_tiering_failures_total"][of] == 0
    assert found["forebay_tiering_lag_records"][of] == 0
    assert found["forebay_tiering_read_bytes_total"][of] > 0
    assert found["forebay_tiering_cluster_answers"][()] == 1
    assert sum(found["forebay_tiering_tables"].values()) == 1
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    assert set(re.findall(r"forebay_tiering_\w+", page)) == {n for n in found if n.startswith("forebay_tiering_")}
