"""A disk that another program fills between the check for free space and the write."""

from __future__ import annotations

import pytest

from forebay.server.flow.disk_reserve import DiskReserve


def met_by_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program takes the space between the look at it and the write."""
    monkeypatch.setattr(DiskReserve, "require", lambda self, size: None)
    monkeypatch.setattr(DiskReserve, "kept_free", lambda self: 0)
