"""The pytest fixture `forebay_server`: a server for one test, in this process, with a fresh directory.

It is installed with the package. A project that tests against Forebay writes:

    def test_orders(forebay_server):
        conn = forebay.connect(forebay_server.bootstrap_servers)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from forebay.server.embedded import EmbeddedServer


@pytest.fixture
def forebay_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A running embedded server; `forebay_server.bootstrap_servers` has its address."""
    from forebay.server.embedded import EmbeddedServer

    with EmbeddedServer(tmp_path / "forebay") as server:
        yield server
