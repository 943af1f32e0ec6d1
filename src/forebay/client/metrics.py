"""The metrics of connections: as a dict (`Connection.metrics`), and for Prometheus.

    prometheus_client.REGISTRY.register(forebay.metrics.collector(conn))

Names: what Apache Fluss's Java client measures has Fluss's name (`fluss_client_...`), kind and unit, so its dashboards
work. Rates there are of the last minute, or of the time since an earlier scrape. Everything else begins with
`forebay_client_`. docs/metrics.md lists all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from forebay.base import threads
from forebay.base.counting import Histogram, add_histogram, per_second
from forebay.base.errors import error_name
from forebay.client.counters import CallCounter, ReadCounters
from forebay.client.session import Session, live_sessions
from forebay.metadata.table import TablePath
from forebay.protocol.api import ApiKey

_WINDOW_SECONDS = 60.0
"""Rates are means over at least this time, once a connection is as old."""
_FLUSS, _OURS = "fluss_client_", "forebay_client_"
_CLIENT = ("client_id",)
_TABLE = ("client_id", "database", "table")


def metrics_of(session: Session) -> dict[str, Any]:
    """Return the counters of a connection as plain values: see `Connection.metrics`."""
    calls, in_flight, channels = session.cluster.calls()
    counters, now = session.cluster.counters, session.clock.monotonic()
    writes = counters.writes
    requests = {
        key.fluss_name: {
            "requests": counter.sent,
            "responses": counter.times.count,
            "errors": _by_name(counter.errors),
            "bytes_out": counter.bytes_out,
            "bytes_in": counter.bytes_in,
            "seconds": counter.times.seconds,
        }
        for key, counter in sorted(calls.items())
    }
    return {
        "client_id": session.client_id,
        "channels": channels,
        "requests_in_flight": in_flight,
        "requests": requests,
        "writer": {
            "batches": writes.batches,
            "rows": writes.rows,
            "bytes": writes.bytes,
            "seconds": writes.times.seconds,
            "queue_seconds": writes.queue_times.seconds,
            "retries": _by_name(writes.retries),
            "retried_rows": writes.retried_rows,
            "failures": _by_name(writes.failures),
            "buffered_bytes": session.buffered_bytes,
            "buffer_bytes": session.settings["client.writer.buffer.memory-size"],
            "waiting_threads": writes.waiting_threads,
            "waited_seconds": writes.waited_seconds,
        },
        "readers": {
            str(path): {
                "fetches": reads.fetches,
                "bytes": reads.bytes,
                "rows": reads.rows,
                "remote_segments": reads.remote_segments,
                "remote_bytes": reads.remote_bytes,
                "remote_errors": reads.remote_errors,
                "seconds_since_poll": None if reads.last_poll is None else now - reads.last_poll,
            }
            for path, reads in counters.reads.copy().items()
        },
        "lookups": {"keys": counters.looked_up_keys, "found": counters.found_keys},
    }


def _by_name(counts: dict[int, int]) -> dict[str, int]:
    return {error_name(code): count for code, count in sorted(counts.copy().items())}


def collector(*connections: Session) -> Collector:
    """The metrics of these connections for `prometheus_client`: register it where the program serves its own.

    Without connections it is those of the process that are open when it is asked. Each has the label `client_id`: its
    option `client.id`, or a number. One registry takes one such collector.
    """
    return ClientMetrics(connections)


class ClientMetrics(Collector):
    """See `collector`."""

    def __init__(self, connections: Sequence[Session]) -> None:
        self._connections = connections
        self._samples = {session.number: deque([_Counts(session)]) for session in connections}
        self._lock = threads.lock()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of each connection. A repeated `client.id` gets the connection's number as a suffix."""
        with self._lock:
            families = _Families()
            sessions = self._connections or live_sessions()
            self._samples = {session.number: self._samples.get(session.number, deque()) for session in sessions}
            names: set[str] = set()
            for session in sessions:
                name = session.client_id
                if name in names:
                    name = f"{name}-{session.number}"
                names.add(name)
                now = _Counts(session)
                families.add(name, session, now, _earlier(self._samples[session.number], now))
        yield from families.all()


class _Counts:
    """The counters of a connection at one moment."""

    def __init__(self, session: Session) -> None:
        counters = session.cluster.counters
        self.at = session.clock.monotonic()
        self.calls, self.in_flight, self.channels = session.cluster.calls()
        self.rows, self.bytes = counters.writes.rows, counters.writes.bytes
        self.retried_rows = counters.writes.retried_rows
        self.reads = {
            path: (reads.fetches, reads.remote_bytes, reads.remote_segments, reads.remote_errors)
            for path, reads in counters.reads.copy().items()
        }

    def total(self, value: Callable[[CallCounter], int]) -> int:
        return sum(map(value, self.calls.values()))


def _earlier(samples: deque[_Counts], now: _Counts) -> _Counts:
    """The sample that rates begin at: the newest one that is a minute old, or else the oldest one; keeps `now`."""
    samples.append(now)
    while len(samples) > 2 and samples[1].at <= now.at - _WINDOW_SECONDS:
        samples.popleft()
    return samples[0]


_RATES: dict[str, tuple[str, Callable[[CallCounter], int]]] = {
    "requestsPerSecond_total": ("requests a second", lambda counter: counter.sent),
    "responsesPerSecond_total": ("responses a second", lambda counter: counter.times.count),
    "bytesOutPerSecond_total": ("bytes of requests a second", lambda counter: counter.bytes_out),
    "bytesInPerSecond_total": ("bytes of responses a second", lambda counter: counter.bytes_in),
}


class _Families:
    """The families of all metrics, to which connections are added."""

    def __init__(self) -> None:
        self._by_name: dict[str, Any] = {}

    def all(self) -> Iterator[Metric]:
        yield from self._by_name.values()

    def _gauge(self, name: str, about: str, labels: Sequence[str], values: Sequence[str], value: float) -> None:
        family = self._by_name.get(name)
        if family is None:
            family = self._by_name[name] = GaugeMetricFamily(name, about, labels=labels)
        family.add_metric(values, value)

    def _counter(self, name: str, about: str, labels: Sequence[str], values: Sequence[str], value: float) -> None:
        family = self._by_name.get(name)
        if family is None:
            family = self._by_name[name] = CounterMetricFamily(name, about, labels=labels)
        family.add_metric(values, value)

    def _summary(
        self, name: str, about: str, labels: Sequence[str], values: Sequence[str], of: tuple[int, int]
    ) -> None:
        family = self._by_name.get(name)
        if family is None:
            family = self._by_name[name] = SummaryMetricFamily(name, about, labels=labels)
        family.add_metric(values, *of)

    def _histogram(self, name: str, about: str, labels: Sequence[str], values: Sequence[str], of: Histogram) -> None:
        family = self._by_name.get(name)
        if family is None:
            family = self._by_name[name] = HistogramMetricFamily(name, about, labels=labels)
        add_histogram(family, values, of)

    # ---- one connection ---------------------------------------------------------------------------------------------

    def add(self, name: str, session: Session, now: _Counts, before: _Counts) -> None:
        counters = session.cluster.counters
        self._requests(name, now, before)
        self._writes(name, session, now, before)
        for path in now.reads:
            self._reads(name, path, counters.reads[path], now, before)
        self._counter(_OURS + "lookup_keys", "keys looked up", _CLIENT, [name], counters.looked_up_keys)
        self._counter(_OURS + "lookup_found", "those that have a row", _CLIENT, [name], counters.found_keys)

    def _requests(self, name: str, now: _Counts, before: _Counts) -> None:
        for metric, (about, value) in _RATES.items():
            self._gauge(
                _FLUSS + metric,
                about,
                _CLIENT,
                [name],
                per_second(now.total(value) - before.total(value), now.at - before.at),
            )
        answered = [counter.times for counter in now.calls.values() if counter.times.count]
        seconds, count = sum(each.seconds for each in answered), sum(each.count for each in answered)
        mean = 1000 * seconds / count if count else 0.0
        self._gauge(_FLUSS + "requestLatencyMs_avg", "mean time of a request since the start", _CLIENT, [name], mean)
        self._gauge(_FLUSS + "requestsInFlight_total", "unanswered requests", _CLIENT, [name], now.in_flight)
        self._gauge(_OURS + "channels", "open connections to servers", _CLIENT, [name], now.channels)
        labels = ("client_id", "api")
        for key, counter in sorted(now.calls.items()):
            values = (name, ApiKey(key).fluss_name)
            self._counter(_OURS + "requests", "sent requests", labels, values, counter.sent)
            self._counter(_OURS + "request_bytes", "bytes of requests", labels, values, counter.bytes_out)
            self._counter(_OURS + "response_bytes", "bytes of responses", labels, values, counter.bytes_in)
            self._histogram(_OURS + "request_seconds", "from a request to its response", labels, values, counter.times)
            for error, count in _by_name(counter.errors).items():
                self._counter(
                    _OURS + "request_errors",
                    "requests that failed as a whole",
                    (*labels, "error"),
                    (*values, error),
                    count,
                )

    def _writes(self, name: str, session: Session, now: _Counts, before: _Counts) -> None:
        writes, label = session.cluster.counters.writes, [name]
        limit, used = session.settings["client.writer.buffer.memory-size"], session.buffered_bytes
        prefix = _FLUSS + "writer_"
        for metric, about, value in (
            ("bufferTotalBytes", "memory for batches that are not acknowledged", limit),
            ("bufferAvailableBytes", "what is free of it", max(limit - used, 0)),
            ("bufferWaitingThreads", "threads that wait for it", writes.waiting_threads),
            ("batchQueueTimeMs", "how long the last batch waited before it was sent", 1000 * writes.last_queue_seconds),
            ("sendLatencyMs", "from queue to acknowledgement, of the last batch", 1000 * writes.last_seconds),
            (
                "recordSendPerSecond",
                "acknowledged rows a second",
                per_second(now.rows - before.rows, now.at - before.at),
            ),
            ("bytesSendPerSecond", "their bytes a second", per_second(now.bytes - before.bytes, now.at - before.at)),
            (
                "recordsRetryPerSecond",
                "rows of repeated batches a second",
                per_second(now.retried_rows - before.retried_rows, now.at - before.at),
            ),
        ):
            self._gauge(prefix + metric, about, _CLIENT, label, value)
        self._summary(prefix + "bytesPerBatch", "bytes of batches", _CLIENT, label, (writes.batches, writes.bytes))
        self._summary(prefix + "recordsPerBatch", "rows of batches", _CLIENT, label, (writes.batches, writes.rows))
        for metric, about, total in (
            ("written_batches", "acknowledged batches", writes.batches),
            ("written_rows", "their rows", writes.rows),
            ("written_bytes", "their bytes", writes.bytes),
            ("buffer_wait_seconds", "how long writers have waited for memory", writes.waited_seconds),
        ):
            self._counter(_OURS + metric, about, _CLIENT, label, total)
        self._histogram(
            _OURS + "batch_queue_seconds", "from queue to the first send", _CLIENT, label, writes.queue_times
        )
        self._histogram(_OURS + "batch_seconds", "from queue to acknowledgement", _CLIENT, label, writes.times)
        for metric, about, counts in (
            ("batch_retries", "repeated batches, by error", writes.retries),
            ("batch_failures", "batches that failed for good", writes.failures),
        ):
            for error, count in _by_name(counts).items():
                self._counter(_OURS + metric, about, (*_CLIENT, "error"), (name, error), count)

    def _reads(self, name: str, path: TablePath, reads: ReadCounters, now: _Counts, before: _Counts) -> None:
        values = (name, path.database, path.table)
        fetches, remote_bytes, segments, errors = (
            per_second(value - earlier, now.at - before.at)
            for value, earlier in zip(now.reads[path], before.reads.get(path, (0, 0, 0, 0)), strict=True)
        )
        prefix = _FLUSS + "scanner_"
        for metric, about, value in (
            ("timeMsBetweenPoll", "between the last two polls", 1000 * reads.seconds_between_polls),
            ("lastPollSecondsAgo", "since the last poll", 0.0 if reads.last_poll is None else now.at - reads.last_poll),
            ("fetchLatencyMs", "how long the last fetch took", 1000 * reads.last_fetch_seconds),
            ("fetchRequestsPerSecond", "fetches a second", fetches),
            ("remoteFetchBytesPerSecond", "bytes from remote storage a second", remote_bytes),
            ("remoteFetchRequestsPerSecond", "segments from remote storage a second", segments),
            ("remoteFetchErrorPerSecond", "failures of these a second", errors),
        ):
            self._gauge(prefix + metric, about, _TABLE, values, value)
        self._summary(
            prefix + "bytesPerRequest", "bytes of records in fetches", _TABLE, values, (reads.fetches, reads.bytes)
        )
        for metric, about, total in (
            ("fetches", "fetches of logs", reads.fetches),
            ("fetched_bytes", "bytes of records in them", reads.bytes),
            ("read_rows", "rows that readers of logs returned", reads.rows),
            ("remote_bytes", "bytes read from remote storage", reads.remote_bytes),
        ):
            self._counter(_OURS + metric, about, _TABLE, values, total)
