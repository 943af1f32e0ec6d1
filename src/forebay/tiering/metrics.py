"""The metrics of a tiering service, in Prometheus' form, from its status (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forebay.tiering.service import TieringService
from forebay.tiering.steps import RoundStep

_LABELS = ("database", "table")
_PHASES = (*dict.fromkeys(step.phase for step in RoundStep), "pausing", "waiting")


class TieringMetrics(Collector):
    """The metrics of a service that runs."""

    def __init__(self, service: TieringService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """The metric families, as the Prometheus client requests them."""
        status = self._service.status()
        rounds = CounterMetricFamily("forebay_tiering_rounds", "finished rounds", labels=_LABELS)
        failures = CounterMetricFamily("forebay_tiering_failures", "failed rounds", labels=_LABELS)
        rows = CounterMetricFamily("forebay_tiering_rows", "rows written into lakes", labels=_LABELS)
        size = CounterMetricFamily("forebay_tiering_read_bytes", "bytes of these rows in Arrow", labels=_LABELS)
        seconds = GaugeMetricFamily("forebay_tiering_round_seconds", "duration of the last round", labels=_LABELS)
        behind = GaugeMetricFamily(
            "forebay_tiering_lag_records", "log records that the lake lacked after the last round", labels=_LABELS
        )
        age = GaugeMetricFamily(
            "forebay_tiering_lag_seconds", "age of the lake's newest record after the last round", labels=_LABELS
        )
        for table in status.tables:
            labels = (table.path.database, table.path.table)
            rounds.add_metric(labels, table.rounds)
            failures.add_metric(labels, table.failures)
            rows.add_metric(labels, table.rows)
            size.add_metric(labels, table.read_bytes)
            report = table.last_report
            if report is not None:
                seconds.add_metric(labels, report.seconds)
                for family, value in ((behind, report.lag_records), (age, report.lag_seconds)):
                    if value is not None:
                        family.add_metric(labels, value)
        phases = GaugeMetricFamily("forebay_tiering_tables", "tables by the phase of their round", labels=("phase",))
        for phase in _PHASES:
            phases.add_metric([phase], sum(table.phase == phase for table in status.tables))
        yield from (rounds, failures, rows, size, seconds, behind, age, phases)
        answers = int(status.cluster_error is None)
        yield GaugeMetricFamily("forebay_tiering_cluster_answers", "1: the last heartbeat was answered", answers)


def faults(service: TieringService) -> list[str]:
    """Why the service should be restarted."""
    return [] if service.running else ["the tiering service has stopped"]


def problems(service: TieringService) -> list[str]:
    """Why the service tiers nothing."""
    error = service.status().cluster_error
    return [] if error is None else [f"the cluster does not answer heartbeats: {error}"]
