"""Settings for the whole test suite."""

from __future__ import annotations

import os
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

SLOWEST_FILES = (
    "cli/test_quickstart.py",
    "spark/test_spark_native.py",
    "spark/paimon/test_spark_read.py",
    "spark/test_pages.py",
    "spark/test_spark_filters_random.py",
    "spark/test_spark_streaming.py",
    "spark/test_spark_reading.py",
    "paimon/compact/test_model.py",
    "spark/test_spark_formats.py",
    "invariants/test_transfers.py",
    "tiering/test_crashes.py",
    "spark/test_spark_ddl.py",
    "spark/test_spark_sessions.py",
    "spark/test_spark_lake.py",
    "spark/paimon/test_stream_write.py",
    "spark/test_spark_writing.py",
    "paimon/maintain/test_expire.py",
    "simulation/test_whole_server.py",
    "paimon/maintain/test_kills.py",
    "reliability/test_corruption.py",
    "docs/test_pages.py",
    "paimon/maintain/test_each_failure.py",
    "filters/test_filters_random.py",
    "lake/test_iceberg_lake_failures.py",
    "paimon/stream/test_streams.py",
    "server/test_odd_clients.py",
    "benchmarks/test_sections.py",
    "spark/test_snapshots.py",
    "paimon/test_random_histories.py",
    "moving/test_moving.py",
    "lake/test_iceberg_lake.py",
    "spark/paimon/test_write.py",
    "tiering/test_histories.py",
    "codec/test_rows.py",
    "spark/test_examples.py",
    "server/test_lake_tables.py",
    "spark/paimon/test_catalog.py",
    "pipelines/test_pipelines.py",
    "foreign/test_foreign_ours.py",
    "reliability/test_kill_under_load.py",
)
"""The files that take longest, the longest first, by a run of `make test`."""

SPARK_SESSIONS = (
    (
        "spark/test_spark_native.py",
        "spark/test_spark_filters_random.py",
        "spark/test_spark_streaming.py",
        "spark/test_spark_ddl.py",
        "spark/test_spark_sessions.py",
        "spark/test_spark_writing.py",
        "spark/test_snapshots.py",
        "spark/test_examples.py",
        "spark/test_spark_tiering.py",
        "spark/paimon/test_ddl.py",
        "spark/paimon/test_mixed_catalog.py",
        "spark/paimon/test_procedures_rewriting.py",
    ),
    (
        "spark/paimon/test_spark_read.py",
        "spark/test_pages.py",
        "spark/test_spark_reading.py",
        "spark/test_spark_lake.py",
        "spark/paimon/test_stream_write.py",
        "spark/paimon/test_write.py",
        "spark/paimon/test_catalog.py",
        "spark/paimon/test_jobs.py",
        "spark/paimon/test_procedures_history.py",
        "spark/paimon/test_upkeep_kills.py",
        "spark/test_spark_lake_options.py",
    ),
)
"""The files that use the Spark session of tests/spark, in two halves that take equally long. Each half is tested in one
process: starting a JVM, and the first run of everything in it, take 30 CPU seconds in each process that uses Spark."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest files are tested first: at the end no process waits for another that has begun a long one."""
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
