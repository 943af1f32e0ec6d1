"""The metrics of what this process does to lake tables, in Prometheus' form (docs/metrics.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forebay.base import threads
from forebay.base.lake_events import LakeCommit, LakeCompaction, LakeEvent, LakeLevels, LakeRemoval, listen

_TABLE = ("database", "table")
_PREFIX = "forebay_lake_"
_TOTALS = {
    "commit_retries": "attempts that lost against another commit",
    "commit_seconds": "how long commits took, with their retries",
    "compactions": "committed compactions",
    "compaction_seconds": "how long files were rewritten",
    "compaction_read_files": "files that compactions replaced",
    "compaction_read_bytes": "bytes of these",
    "compaction_written_files": "files that compactions wrote",
    "compaction_written_bytes": "bytes of these",
    "expired_snapshots": "expired snapshots",
    "expired_files": "files that only these needed",
    "removed_orphans": "removed files that nothing refers to",
    "removed_orphan_bytes": "bytes of these",
}


class LakeMetrics(Collector):
    """Counts from when it is made until `close`."""

    def __init__(self) -> None:
        self._lock = threads.lock()
        self._totals: dict[str, Counter[str]] = {name: Counter() for name in _TOTALS}
        self._commits: Counter[tuple[str, str]] = Counter()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._files: dict[str, int] = {}
        self._levels: dict[str, LakeLevels] = {}
        self.close: Callable[[], None] = listen(self._take)

    def _take(self, event: LakeEvent) -> None:
        with self._lock:
            match event:
                case LakeCommit():
                    self._take_commit(event)
                case LakeCompaction():
                    self._totals["compaction_seconds"][event.table] += event.seconds  # type: ignore[assignment]
                case LakeLevels():
                    self._levels[event.table] = event
                case LakeRemoval():
                    self._count(
                        event.table,
                        expired_snapshots=event.snapshots,
                        expired_files=event.files,
                        removed_orphans=event.orphans,
                        removed_orphan_bytes=event.orphan_bytes,
                    )

    def _take_commit(self, event: LakeCommit) -> None:
        self._count(event.table, commit_retries=event.retries, commit_seconds=event.seconds)
        if event.outcome != "committed":
            self._failures[event.table, event.outcome] += 1
            return
        self._commits[event.table, event.kind] += 1
        if event.table_files is not None:
            self._files[event.table] = event.table_files
        if event.kind == "compact":
            self._count(
                event.table,
                compactions=1,
                compaction_read_files=event.removed_files,
                compaction_read_bytes=event.removed_bytes,
                compaction_written_files=event.added_files,
                compaction_written_bytes=event.added_bytes,
            )

    def _count(self, table: str, **counts: float) -> None:
        for name, count in counts.items():
            if count:
                self._totals[name][table] += count  # type: ignore[assignment] # a Counter adds floats, too

    def collect(self) -> Iterator[Metric]:
        """The metric families, as the Prometheus client requests them."""
        with self._lock:
            totals = {name: dict(counts) for name, counts in self._totals.items()}
            commits, failures, files = dict(self._commits), dict(self._failures), dict(self._files)
            levels = dict(self._levels)
        for name, about in _TOTALS.items():
            family = CounterMetricFamily(_PREFIX + name, about, labels=_TABLE)
            for table, count in totals[name].items():
                family.add_metric(_names(table), count)
            yield family
        for name, about, label, counts in (
            ("commits", "commits by kind", "kind", commits),
            ("commit_failures", "commits that failed, by error", "error", failures),
        ):
            family = CounterMetricFamily(_PREFIX + name, about, labels=(*_TABLE, label))
            for (table, value), count in counts.items():
                family.add_metric((*_names(table), value), count)
            yield family
        here = GaugeMetricFamily(_PREFIX + "files", "data files of a table, after the last commit", labels=_TABLE)
        for table, count in files.items():
            here.add_metric(_names(table), count)
        by_level = GaugeMetricFamily(
            _PREFIX + "level_files", "files by level, when a compaction was planned", labels=(*_TABLE, "level")
        )
        sizes = GaugeMetricFamily(_PREFIX + "level_bytes", "bytes of these files", labels=(*_TABLE, "level"))
        for table, state in levels.items():
            for level, (count, size) in sorted(state.files.items()):
                by_level.add_metric((*_names(table), str(level)), count)
                sizes.add_metric((*_names(table), str(level)), size)
        yield from (here, by_level, sizes)


def _names(table: str) -> tuple[str, str]:
    database, _, name = table.rpartition(".")
    return database, name
