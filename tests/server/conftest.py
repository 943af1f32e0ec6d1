"""A fresh server for each test module that does not need one of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.running import Bench, running


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with running(tmp_path_factory.mktemp("server") / "data") as each:
        yield each
