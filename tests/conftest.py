"""Settings for the whole test suite."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

# Runs are repeatable everywhere; `make properties` (profile "explore") looks for new examples, many more of them.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
# For tools/mutants.py, to whom a failure is enough: to look for its smallest example takes minutes.
settings.register_profile(
    "mutants",
    settings.get_profile("repeatable"),
    max_examples=100,
    phases=(Phase.explicit, Phase.generate),
    database=None,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """A command that runs in the tests' process settles where its log goes: for that test, and for none after it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)
    root.setLevel(level)


SLOWEST_FILES = (
    "spark/paimon/test_spark_read.py",
    "spark/test_spark_streaming.py",
    "spark/test_spark_native.py",
    "spark/test_pages.py",
    "cli/test_quickstart.py",
    "spark/test_spark_reading.py",
    "tiering/test_crashes.py",
    "server/test_odd_clients.py",
    "spark/test_spark_writing.py",
    "server/test_hostile_clients.py",
    "paimon/maintain/test_kills.py",
    "spark/paimon/test_stream_write.py",
    "lake/test_iceberg_lake.py",
    "paimon/maintain/test_expiry_races.py",
    "lake/test_paimon_lake.py",
    "spark/paimon/test_catalog.py",
    "spark/test_spark_filters_random.py",
    "simulation/test_whole_server.py",
    "spark/test_spark_lake.py",
    "invariants/test_transfers.py",
    "reliability/test_corruption.py",
    "spark/paimon/test_write.py",
    "spark/test_spark_ddl.py",
    "spark/paimon/test_ddl.py",
    "client/test_pyfluss.py",
    "unionread/test_union_random.py",
    "tiering/test_rounds.py",
    "server/test_open_buckets.py",
    "docs/test_pages.py",
    "moving/test_moving.py",
    "paimon/stream/test_streams.py",
    "client/test_faults.py",
    "reliability/test_kill_under_load.py",
    "unionread/test_union_concurrent.py",
    "lake/test_iceberg_lake_failures.py",
    "paimon/maintain/test_expire.py",
    "paimon/catalog/test_jdbc.py",
    "benchmarks/test_sections.py",
    "paimon/compact/test_model.py",
    "foreign/test_foreign_ours.py",
    "paimon/catalog/test_hive.py",
    "paimon/catalog/test_hive_server.py",
    "paimon/commit/test_faults.py",
    "paimon/lookup/test_lookup.py",
)
"""The files that take longest, the longest first, by a run of `make test`."""

SPARK_SESSIONS = (
    (
        "spark/paimon/test_spark_read.py",
        "spark/test_pages.py",
        "spark/test_spark_writing.py",
        "spark/paimon/test_catalog.py",
        "spark/test_spark_filters_random.py",
        "spark/test_spark_ddl.py",
        "spark/paimon/test_ddl.py",
        "spark/paimon/test_views.py",
        "spark/paimon/test_procedures_history.py",
        "spark/paimon/test_bucket_functions.py",
        "spark/test_spark_lake_options.py",
        "spark/test_examples.py",
        "spark/test_spark_tiering.py",
        "spark/test_spark_transactions.py",
        "spark/test_debezium.py",
        "spark/test_spark_keys.py",
        "spark/test_spark_setup.py",
        "spark/test_spark_time_travel.py",
        "spark/test_columnar.py",
        "spark/test_direct_logs.py",
        "spark/test_direct_buckets.py",
        "spark/test_scan_metrics.py",
    ),
    (
        "spark/test_spark_streaming.py",
        "spark/test_spark_native.py",
        "spark/test_spark_reading.py",
        "spark/paimon/test_stream_write.py",
        "spark/test_spark_lake.py",
        "spark/paimon/test_write.py",
        "spark/test_snapshots.py",
        "spark/paimon/test_procedures_rewriting.py",
        "spark/test_spark_sessions.py",
        "spark/paimon/test_mixed_catalog.py",
        "spark/paimon/test_upkeep_kills.py",
        "spark/paimon/test_jobs.py",
        "spark/paimon/test_lake_row_level.py",
        "spark/paimon/test_row_level_random.py",
        "spark/paimon/test_statements.py",
        "spark/test_row_level.py",
        "spark/test_live_streams_written.py",
    ),
)
"""The files that use the Spark session of tests/spark, in two halves that take equally long. Each half is tested in one
process: starting a JVM, and the first run of everything in it, take 30 CPU seconds in each process that uses Spark."""


class _Cases:
    """Numbers of the cases of tests: the sum of the places that a case's values have among those of their parameters.

    So each n-th number has as many cases of each value.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[Path, str, str], dict[int, int]] = {}

    def number(self, item: Any) -> int:
        test = item.nodeid.partition("[")[0]
        params = dict(item.callspec.params)
        for mark in item.iter_markers("parametrize"):
            names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
            for name in names[1:]:  # they have their values together
                del params[name.strip()]
        total = 0
        for name, value in params.items():
            places = self._values.setdefault((item.path, test, name), {})
            total += places.setdefault(id(value), len(places))
        return total


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest files are tested first: at the end no process waits for another that has begun a long one.

    Of a test that is `one_in(n)`, some cases run each time, and all others are slow.
    """
    cases = _Cases()
    for item in items:
        mark = item.get_closest_marker("one_in")
        if mark is not None and cases.number(item) % mark.args[0]:
            item.add_marker(pytest.mark.slow)
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(SLOWEST_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, each half of SPARK_SESSIONS goes to one process, as any other file does."""
    from xdist.scheduler import LoadFileScheduling

    halves = {f"tests/{name}": f"Spark {half}" for half, names in enumerate(SPARK_SESSIONS) for name in names}

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return halves.get(file, file)

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None
