"""The metrics and health of a standby, where the server that takes over has its own (docs/metrics.md)."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forebay.base.monitoring import Monitoring
from forebay.server.config import MonitoringSettings, ServerConfig
from forebay.server.standby.standby import Standby

_LOGGER = logging.getLogger(__name__)

_STUCK_SECONDS = 300.0
_STOP_SECONDS = 0.1
"""A takeover waits so long for the address, at most."""


class StandbyMetrics(Collector):
    """What a standby is at."""

    def __init__(self, standby: Standby, staleness_max: float) -> None:
        """`staleness_max`: the seconds after which it is not ready."""
        self._standby, self._staleness_max = standby, staleness_max

    def collect(self) -> Iterator[Metric]:
        """The metrics, as they are now."""
        standby = self._standby
        gauges = (
            ("staleness_seconds", "for how long the end of the journal was not seen", standby.staleness_seconds),
            ("as_of_timestamp_seconds", "when the last object of the journal was created", standby.as_of_ms / 1000),
            ("lease_seconds", "after this time without an object it takes over", standby.lease_seconds),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"forebay_standby_{name}", text, value=value)
        text = "the number of the last object of the journal that was repeated"
        yield CounterMetricFamily("forebay_standby_journal_objects", text, value=standby.number)

    def faults(self) -> list[str]:
        """Why the process has to be restarted."""
        seconds = self._standby.stuck_seconds
        return [f"the standby has been at one step for {seconds:.0f} s"] if seconds > _STUCK_SECONDS else []

    def problems(self) -> list[str]:
        """Why it could not take over at once with all that the store has."""
        seconds = self._standby.staleness_seconds
        if seconds <= self._staleness_max:
            return []
        text = f"for {seconds:.0f} s" if math.isfinite(seconds) else "since it was started"
        return [f"the standby has not seen the end of the journal {text}"]


@contextmanager
def monitored(standby: Standby, config: ServerConfig, settings: MonitoringSettings) -> Iterator[str]:
    """Serve metrics and health of a standby where the server has them after a takeover; the address.

    The address is free at the end, for the server that takes over. Raises `InvalidRequest` if no port is free.
    """
    metrics = StandbyMetrics(standby, config.seconds("standby.max-staleness"))
    monitoring = Monitoring([metrics], metrics.faults, metrics.problems, stop_seconds=_STOP_SECONDS)
    host, port = monitoring.start(settings.host, settings.ports, settings.allowed_hosts)
    _LOGGER.info("metrics on http://%s:%d/metrics", host, port)
    try:
        yield f"{host}:{port}"
    finally:
        monitoring.stop()
