"""Who writes short requests."""

from __future__ import annotations

import pytest

from forebay.server.flow import write_queue


@pytest.fixture(params=["loop", "queues"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who writes: the event loop, as on a disk with quick syncs, or write queues, as on a disk without."""
    monkeypatch.setattr(write_queue, "QUICK_SYNC_SECONDS", 10.0 if request.param == "loop" else -1.0)
    monkeypatch.setattr(write_queue, "LONE_SYNC_SECONDS", 10.0 if request.param == "loop" else -1.0)
    monkeypatch.setattr(write_queue, "LONG_SECONDS", 10.0)
    monkeypatch.setattr(write_queue, "QUICK_SYNCS_MIN", 0 if request.param == "loop" else 1)
    return str(request.param)
