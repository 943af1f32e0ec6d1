"""The metrics of a server, in Prometheus' form: computed when it is asked, from what it knows anyway.

Names: what Apache Fluss measures has Fluss's name (`fluss_coordinator_...`, `fluss_tabletserver_...`), kind and unit:
its dashboards show a Forebay server. Rates and quantiles there are of the last minute. Everything else, and counters
from which Prometheus computes rates of any range, begin with `forebay_`. docs/metrics.md lists all.

Cost: a scrape takes time in proportion to tables and open buckets. What lies on the disk is counted again once a minute
at most, and takes no more than a hundredth of the time.

Threads: `collect` runs in the threads of `forebay.base.monitoring`. What it reads belongs to others, so it takes
copies, and sums may be of slightly different moments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from forebay.base import threads
from forebay.base.counting import QUANTILES, Histogram, add_histogram, per_second, quantile
from forebay.base.errors import error_name
from forebay.fs import names
from forebay.fs.interface import FileMissing, FileSystem
from forebay.metadata.table import TablePath
from forebay.protocol.api import ApiKey
from forebay.server.connections import Connections
from forebay.server.context import ServerContext
from forebay.server.lake.lake_tiering import TieringState
from forebay.server.metadata.catalog import LiveTable
from forebay.server.storage.replicas import WrittenAndRead

_WINDOW_SECONDS = 60.0
"""Rates are means over this time."""

SAMPLE_SECONDS = 5.0
"""How often rates are sampled; Fluss's meters do the same."""

_DISK_SECONDS_MIN = 60.0
_DISK_SHARE = 100
"""The files in the data directory are counted again after a hundred times the time that counting them took, and not
before the minimum."""

_COORDINATOR, _TABLET = "fluss_coordinator_", "fluss_tabletserver_"
_TABLE_LABELS = ("database", "table")


@dataclass(slots=True)
class _Sample:
    """Counters at one moment."""

    at: float
    requests: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By API: requests, and those that failed."""
    times: dict[str, list[int]] = field(default_factory=dict)
    """By API, how many requests took how long: see `Histogram.buckets`."""
    tables: dict[int, WrittenAndRead] = field(default_factory=dict)
    syncs: list[int] = field(default_factory=list)


class ServerMetrics(Collector):
    """The metrics of a running server. `sample` is to be called every `SAMPLE_SECONDS`."""

    def __init__(self, context: ServerContext, connections: Connections, fs: FileSystem, data_dir: str) -> None:
        self._context = context
        self._connections = connections
        self._samples: deque[_Sample] = deque(maxlen=int(_WINDOW_SECONDS / SAMPLE_SECONDS) + 1)
        self._disk = _DiskUse(fs, data_dir, context.clock.monotonic)
        self._fs = fs
        self._data_dir = data_dir
        self.sample()

    # ---- rates ------------------------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Remember the counters of now."""
        self._samples.append(self._now())

    def _now(self) -> _Sample:
        counters = self._context.counters
        sample = _Sample(
            self._context.clock.monotonic(),
            tables=self._context.replicas.written_and_read(),
            syncs=list(counters.syncs.buckets),
        )
        for key, counter in list(counters.requests.items()):
            api = ApiKey(key).fluss_name
            sample.requests[api] = counter.times.count, sum(counter.errors.values())
            sample.times[api] = list(counter.times.buckets)
        return sample

    # ---- collecting -------------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics. Rates are means over the last `_WINDOW_SECONDS`, or since the server was started."""
        now, before = self._now(), self._samples[0]
        tables = {table.info.table_id: table for table in self._context.catalog.tables()}
        yield from self._cluster(tables)
        yield from self._tiering(tables)
        yield from self._requests(now, before)
        yield from self._storage(tables, now, before)
        yield from self._work()
        yield from self._store()

    def _store(self) -> Iterator[Metric]:
        journal = self._context.journal
        if journal is None:
            return
        yield _gauge(
            "forebay_store_behind_seconds", "age of the oldest change that the store lacks", journal.behind_seconds
        )
        yield _counter("forebay_store_journal_objects", "objects of the journal that were created", journal.objects)
        copied = self._context.remote_logs
        if copied is not None:
            yield _gauge("forebay_store_log_buckets", "buckets with log segments in the store", len(copied.known()))

    def _cluster(self, tables: Mapping[int, LiveTable]) -> Iterator[Metric]:
        context = self._context
        partitions = sum(len(table.current.partitions_by_id) for table in tables.values())
        buckets = sum(_bucket_count(table) for table in tables.values())
        open_replicas = context.replicas.replicas()
        offline = context.replicas.offline_count
        snapshots = context.table_snapshots.describe()
        yield _gauge(_COORDINATOR + "activeTabletServerCount", "tablet servers: this one", 1)
        yield _gauge(_COORDINATOR + "tableCount", "tables", len(tables))
        yield _gauge(_COORDINATOR + "lakeTableCount", "tables with a lake", len(context.lake.tiering.table_ids))
        yield _gauge(_COORDINATOR + "partitionCount", "partitions of all tables", partitions)
        yield _gauge(_COORDINATOR + "bucketCount", "buckets of all tables", buckets)
        why = "buckets that a failed disk, or damage, has taken offline"
        yield _gauge(_COORDINATOR + "offlineBucketCount", why, offline)
        yield _gauge(_COORDINATOR + "kvSnapshotLeaseCount", "open table snapshots", len(snapshots))
        pins = sum(snapshot.bucket_count for snapshot in snapshots)
        yield _gauge(_COORDINATOR + "leasedKvSnapshotCount", "bucket snapshots that table snapshots hold", pins)
        yield _gauge(_TABLET + "leaderCount", "buckets that this server leads: all", buckets)
        yield _gauge(_TABLET + "replicaCount", "replicas of buckets on this server", buckets)
        writers = sum(len(replica.log.writer_states()) for replica in open_replicas)
        yield _gauge(_TABLET + "writerIdCount", "writers that open buckets remember", writers)
        yield _gauge("forebay_open_buckets", "buckets that are open", len(open_replicas))

    def _tiering(self, tables: Mapping[int, LiveTable]) -> Iterator[Metric]:
        manager, states = self._context.lake.tiering, dict.fromkeys(TieringState, 0)
        prefix = _COORDINATOR + "lakeTiering_"
        lag = GaugeMetricFamily(prefix + "table_tierLag", "ms since the last tiering round", labels=_TABLE_LABELS)
        took = GaugeMetricFamily(prefix + "table_tierDuration", "ms that the last round took", labels=_TABLE_LABELS)
        failures = CounterMetricFamily(prefix + "table_failures", "failed tiering rounds", labels=_TABLE_LABELS)
        pending = GaugeMetricFamily(
            "forebay_table_untiered_records", "log records that the lake does not have yet", labels=_TABLE_LABELS
        )
        for table_id, status in manager.statuses(list(manager.table_ids)).items():
            table = tables.get(table_id)
            states[status.state] += 1
            if table is None:
                continue
            labels = _labels(table.info.path)
            lag.add_metric(labels, 1000 * status.since_last_round_seconds)
            if status.last_duration_seconds is not None:
                took.add_metric(labels, 1000 * status.last_duration_seconds)
            failures.add_metric(labels, status.failures)
            pending.add_metric(labels, self._context.untiered(table))
        yield _gauge(prefix + "pendingTablesCount", "tables that wait for a worker", states[TieringState.PENDING])
        yield _gauge(prefix + "runningTablesCount", "tables that a worker tiers now", states[TieringState.TIERING])
        yield from (lag, took, failures, pending)

    def _requests(self, now: _Sample, before: _Sample) -> Iterator[Metric]:
        counters = self._context.counters
        label = ("request",)
        rate = GaugeMetricFamily(_TABLET + "request_requestsPerSecond", "requests a second", labels=label)
        failed = GaugeMetricFamily(_TABLET + "request_errorsPerSecond", "failed requests a second", labels=label)
        times = SummaryMetricFamily(_TABLET + "request_totalTimeMs", "from a request to its answer", labels=label)
        for api, (count, errors) in sorted(now.requests.items()):
            count_before, errors_before = before.requests.get(api, (0, 0))
            rate.add_metric([api], per_second(count - count_before, now.at - before.at))
            failed.add_metric([api], per_second(errors - errors_before, now.at - before.at))
        requests = CounterMetricFamily("forebay_requests", "answered requests", labels=("api",))
        size = CounterMetricFamily("forebay_request_bytes", "bytes of requests", labels=("api",))
        errors_total = CounterMetricFamily(
            "forebay_request_errors", "requests that failed as a whole, by error", labels=("api", "error")
        )
        seconds = HistogramMetricFamily("forebay_request_seconds", "from a request to its answer", labels=("api",))
        for key, counter in sorted(counters.requests.items()):
            api = ApiKey(key).fluss_name
            requests.add_metric([api], counter.times.count)
            size.add_metric([api], counter.bytes_in)
            for code, count in sorted(counter.errors.items()):
                errors_total.add_metric([api, error_name(code)], count)
            add_histogram(seconds, [api], counter.times)
            _add_summary(times, {"request": api}, counter.times, now.times[api], before.times.get(api))
        yield from (rate, failed, times, requests, size, errors_total, seconds)

    def _storage(self, tables: Mapping[int, LiveTable], now: _Sample, before: _Sample) -> Iterator[Metric]:
        nothing = WrittenAndRead()
        meters = {
            name: GaugeMetricFamily(f"{_TABLET}table_{name}PerSecond", about, labels=_TABLE_LABELS)
            for name, about in _METERS.items()
        }
        totals = {
            name: CounterMetricFamily(f"forebay_table_{name}", about, labels=_TABLE_LABELS)
            for name, about in _TOTALS.items()
        }
        sums = dict.fromkeys(_METERS, 0.0)
        for table_id, table in tables.items():
            labels = _labels(table.info.path)
            done, done_before = now.tables.get(table_id, nothing), before.tables.get(table_id, nothing)
            for name, value, earlier in zip(_METERS, done, done_before, strict=True):
                rate = per_second(value - earlier, now.at - before.at)
                sums[name] += rate
                if value:
                    meters[name].add_metric(labels, rate)
            for name, value in zip(_TOTALS, done, strict=True):
                if value:
                    totals[name].add_metric(labels, value)
        for name, about in _METERS.items():
            yield _gauge(f"{_TABLET}{name}PerSecond", about, sums[name])
        yield from (*meters.values(), *totals.values())
        yield from self._files(tables)
        syncs, lately = self._context.counters.syncs, sum(now.syncs) - sum(before.syncs)
        yield _gauge(_TABLET + "logFlushPerSecond", "syncs a second", per_second(lately, now.at - before.at))
        latency = SummaryMetricFamily(_TABLET + "logFlushLatencyMs", "syncs of logs that writers waited for")
        _add_summary(latency, {}, syncs, now.syncs, before.syncs)
        seconds = HistogramMetricFamily("forebay_sync_seconds", "syncs of logs that writers waited for")
        add_histogram(seconds, [], syncs)
        yield from (latency, seconds)

    def _files(self, tables: Mapping[int, LiveTable]) -> Iterator[Metric]:
        used = self._disk.by_table(tables)
        log = GaugeMetricFamily("forebay_table_log_bytes", "bytes of log segments", labels=_TABLE_LABELS)
        kv = GaugeMetricFamily("forebay_table_kv_bytes", "bytes of key-value state", labels=_TABLE_LABELS)
        for table_id, (log_bytes, kv_bytes) in used.items():
            table = tables.get(table_id)
            if table is not None:
                labels = _labels(table.info.path)
                log.add_metric(labels, log_bytes)
                if table.info.has_primary_key:
                    kv.add_metric(labels, kv_bytes)
        rows = GaugeMetricFamily(
            "forebay_table_rows", "rows in open buckets of primary-key tables", labels=_TABLE_LABELS
        )
        for table_id, count in self._context.replicas.row_counts().items():
            if table_id in tables:
                rows.add_metric(_labels(tables[table_id].info.path), count)
        log_sum, kv_sum = (sum(sizes[part] for sizes in used.values()) for part in (0, 1))
        yield _gauge(_TABLET + "logicalStorage_logSize", "bytes of all logs", log_sum)
        yield _gauge(_TABLET + "logicalStorage_kvSize", "bytes of all key-value states", kv_sum)
        yield _gauge(_TABLET + "physicalStorage_localSize", "bytes of tables on the disk", log_sum + kv_sum)
        total, free = self._fs.total_bytes(self._data_dir), self._fs.free_bytes(self._data_dir)
        yield _gauge("forebay_disk_bytes", "size of the data disk", total)
        yield _gauge("forebay_disk_free_bytes", "what is free of it", free)
        yield _gauge(_TABLET + "diskUsageRatio", "used share of the data disk", 1 - free / total if total else 0)
        locked = not self._context.replicas.accepts_writes
        yield _gauge(_TABLET + "diskWriteLocked", "1: writes are refused, the disk is full", int(locked))
        yield from (log, kv, rows)

    def _work(self) -> Iterator[Metric]:
        context, connections = self._context, self._connections
        counters = context.counters
        yield _counter("forebay_write_groups", "groups of writes", counters.groups)
        yield _counter("forebay_grouped_writes", "writes in these groups", counters.group_writes)
        yield _gauge("forebay_connections", "open connections", len(connections))
        yield _counter("forebay_refused_connections", "connections over a limit", counters.refused_connections)
        yield _counter("forebay_failed_logins", "logins with a wrong password", counters.failed_logins)
        waiting = context.notifier.waiting
        yield _gauge(_TABLET + "delayedFetchCount", "fetches that wait for new records", waiting)
        memory = GaugeMetricFamily("forebay_connection_memory_bytes", "memory of requests and answers", labels=("of",))
        limits = GaugeMetricFamily("forebay_connection_memory_max_bytes", "what they may take", labels=("of",))
        for pool in (connections.memory_pools.requests, connections.memory_pools.responses):
            memory.add_metric([pool.name], pool.used)
            limits.add_metric([pool.name], pool.limit)
        queued = GaugeMetricFamily("forebay_queued_work", "what waits for a thread", labels=("pool",))
        queued.add_metric(["reads"], context.queued_jobs)
        queued.add_metric(["writes"], context.replicas.waiting_write_queues)
        yield from (memory, limits, queued)
        yield _gauge("forebay_scans", "open full scans", context.scanners.session_count)
        transactions = GaugeMetricFamily("forebay_transactions", "transactions by state", labels=("state",))
        totals = context.transactions.totals()
        for state, count, _ in totals:
            transactions.add_metric([state.name.lower()], count)
        yield transactions
        staged = sum(size for _, _, size in totals)
        yield _gauge("forebay_staged_bytes", "rows that transactions have staged", staged)


_METERS = {
    "messagesIn": "records written a second",
    "bytesIn": "bytes written a second",
    "bytesOut": "bytes read from logs a second",
}
_TOTALS = {
    "records": "records appended to logs",
    "bytes_in": "bytes of appends and puts",
    "bytes_out": "bytes read from logs",
}
"""In the order of `WrittenAndRead`."""


class _DiskUse:
    """The bytes of each table's logs and states on the disk, counted once in a while."""

    def __init__(self, fs: FileSystem, data_dir: str, monotonic: Callable[[], float]) -> None:
        self._fs = fs
        self._data_dir = data_dir
        self._monotonic = monotonic
        self._lock = threads.lock()
        self._known: dict[int, tuple[int, int]] = {}
        self._due = float("-inf")

    def by_table(self, tables: Mapping[int, LiveTable]) -> Mapping[int, tuple[int, int]]:
        """Bytes of log and state by table id; of tables created since the last count nothing is known."""
        with self._lock:
            began = self._monotonic()
            if began >= self._due:
                self._known = {table_id: self._of(table) for table_id, table in tables.items()}
                now = self._monotonic()
                self._due = now + max(_DISK_SECONDS_MIN, _DISK_SHARE * (now - began))
            return self._known

    def _of(self, table: LiveTable) -> tuple[int, int]:
        folder = names.join(self._data_dir, names.table_folder(table.info.path, table.info.table_id))
        sizes = {"log": 0, "kv": 0}
        pending = [(folder, "")]
        while pending:
            path, part = pending.pop()
            try:
                entries = self._fs.list_directory(path)
            except FileMissing:  # dropped meanwhile
                continue
            for entry in entries:
                # A tablet's folder is log-N or kv-N, below the table's or a partition's.
                kind = part or next((kind for kind in sizes if entry.name.startswith(kind + "-")), "")
                if entry.is_directory:
                    pending.append((names.join(path, entry.name), kind))
                elif kind:
                    sizes[kind] += entry.size_bytes
        return sizes["log"], sizes["kv"]


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value)


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(name, about, value)


def _labels(path: TablePath) -> tuple[str, str]:
    return path.database, path.table


def _bucket_count(table: LiveTable) -> int:
    return table.info.bucket_count * (len(table.current.partitions_by_id) if table.info.is_partitioned else 1)


def _add_summary(
    family: SummaryMetricFamily,
    labels: Mapping[str, str],
    times: Histogram,
    now: Sequence[int],
    before: Sequence[int] | None,
) -> None:
    """Count and sum since the start; quantiles of what lies between two samples of the buckets."""
    family.add_metric(list(labels.values()), times.count, 1000 * times.seconds)
    lately = [count - earlier for count, earlier in zip(now, before or [0] * len(now), strict=True)]
    for share in QUANTILES:
        family.add_sample(family.name, {**labels, "quantile": repr(share)}, 1000 * quantile(share, lately))
