"""Servers with lakes for the tests of tiering."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiering.running import (
    LAKES,
    LakeCluster,
    Storage,
    iceberg_storage,
    lake_cluster,
    memory_storage,
    paimon_storage,
)


@pytest.fixture(params=list(LAKES))
def any_lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LakeCluster]:
    """A server with each of the lakes in turn."""
    create: Storage = LAKES[request.param]
    with lake_cluster(tmp_path, create) as running:
        yield running


@pytest.fixture
def memory_lake(tmp_path: Path) -> Iterator[LakeCluster]:
    with lake_cluster(tmp_path, memory_storage) as running:
        yield running


@pytest.fixture
def paimon_lake(tmp_path: Path) -> Iterator[LakeCluster]:
    with lake_cluster(tmp_path, paimon_storage) as running:
        yield running


@pytest.fixture
def iceberg_lake(tmp_path: Path) -> Iterator[LakeCluster]:
    with lake_cluster(tmp_path, iceberg_storage) as running:
        yield running
