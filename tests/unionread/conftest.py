from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unionread.world import ICEBERG, MEMORY, PAIMON, World, world


@pytest.fixture(scope="session", params=[MEMORY, PAIMON, ICEBERG])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server with a lake, once for each lake."""
    with world(tmp_path_factory.mktemp(request.param), request.param) as running:
        yield running


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server with a lake in memory."""
    with world(tmp_path_factory.mktemp("memory"), MEMORY) as running:
        yield running
