"""A fresh server for each test module that does not create its own.

OPEN_BUCKETS=1 runs all tests on servers of this process that keep so few buckets open, unless a test sets the number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from forebay.server import config
from tests.server.running import Bench, running


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with running(tmp_path_factory.mktemp("server") / "data") as each:
        yield each


@pytest.fixture(scope="session", autouse=True)
def open_buckets() -> Iterator[None]:
    wanted = os.environ.get("OPEN_BUCKETS")
    with pytest.MonkeyPatch.context() as patch:
        if wanted is not None:
            patch.setattr(config, "_OPEN_BUCKETS_MIN", 1)
            patch.setattr(config, "_OPEN_BUCKETS_MAX", int(wanted))
        yield
