"""A console over a server in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import forebay
from forebay.base.ambient import SYSTEM_CLOCK
from forebay.console.app import make_app
from forebay.console.session import Console
from forebay.console.visitors import Doors, Visitors


@pytest.fixture
def console(forebay_server: Any) -> Iterator[Console]:
    with forebay.connect(forebay_server.bootstrap_servers) as connection:
        made = Console(connection, forebay_server.bootstrap_servers)
        yield made
        made.close()


@pytest.fixture
def app(console: Console) -> Any:
    return make_app(Visitors(SYSTEM_CLOCK, console), Doors.of("127.0.0.1"))
