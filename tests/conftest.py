"""Settings for the whole test suite."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

# Runs are repeatable everywhere; `HYPOTHESIS_PROFILE=explore` looks for new examples, many more of them.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
# For tools/mutants.py, to whom a failure is enough: to look for its smallest example takes minutes.
settings.register_profile(
    "mutants", settings.get_profile("repeatable"), phases=(Phase.explicit, Phase.generate), database=None
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

SLOWEST_FILES = (
    "cli/test_quickstart.py",
    "tiering/test_crashes.py",
    "lake/test_iceberg_lake_failures.py",
    "spark/test_spark_native.py",
    "reliability/test_corruption.py",
    "spark/test_spark_filters_random.py",
    "server/test_lake_tables.py",
    "spark/test_examples.py",
    "spark/paimon/test_catalog.py",
    "spark/test_spark_ddl.py",
    "spark/test_spark_formats.py",
    "filters/test_filters_random.py",
    "spark/paimon/test_spark_read.py",
    "spark/test_spark_streaming.py",
    "spark/test_pages.py",
    "spark/test_snapshots.py",
    "spark/test_spark_lake.py",
    "benchmarks/test_sections.py",
    "simulation/test_whole_server.py",
    "house/test_readme.py",
    "invariants/test_transfers.py",
    "docs/test_pages.py",
    "lake/test_iceberg_lake.py",
    "tiering/test_histories.py",
    "cli/test_quickstart_checks.py",
    "moving/test_moving.py",
    "reliability/test_kill_under_load.py",
    "reliability/test_hostile_trial.py",
    "pipelines/test_pipelines.py",
    "reliability/test_kill_pyfluss.py",
    "cli/test_flights.py",
)
"""The files that take longest, the longest first, by a run of `make test`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest files are tested first: at the end no process waits for another that has begun a long one."""
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(SLOWEST_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
