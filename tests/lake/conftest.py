"""Checks that nothing stays open after a test of lakes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lake.iceberg_tables import CATALOGS_IN_USE


@pytest.fixture(autouse=True)
def _catalogs_are_closed_again() -> Iterator[None]:
    """A table of pyiceberg connects to its catalog again when it is used after that was closed."""
    yield
    while CATALOGS_IN_USE:
        CATALOGS_IN_USE.pop().close()
