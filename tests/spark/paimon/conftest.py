"""A lake beside the cluster: catalog `lake` in the shared Spark session, and a separate database for each test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.paimon import Catalog

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the lake."""
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="session")
def lake_session(spark: Any, warehouse: Path) -> Any:
    """The shared Spark session, with catalog `lake` over `warehouse`."""
    import forebay.spark

    return forebay.spark.attach(spark, "lake", warehouse=str(warehouse))


@pytest.fixture(scope="session")
def lake_catalog(warehouse: Path) -> Catalog:
    """The same lake without Spark."""
    return Catalog.open(str(warehouse))


@pytest.fixture
def lake(lake_session: Any, lake_catalog: Catalog) -> Iterator[str]:
    """The name of an empty database of catalog `lake`, dropped at the end."""
    name = f"db{next(_numbers)}"
    lake_catalog.create_database(name)
    yield name
    lake_catalog.drop_database(name, ignore_if_not_exists=True, cascade=True)


@pytest.fixture
def lake_sql(lake_session: Any, lake: str) -> Callable[[str], list[tuple[Any, ...]]]:
    """Run a statement; `{db}` in it is the test's database. Returns the rows as tuples."""

    def run(statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in lake_session.sql(statement.replace("{db}", f"lake.{lake}")).collect()]

    return run
