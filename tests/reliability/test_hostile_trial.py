"""The trial of `make hostile-clients` at a hundredth of its size: it runs, and the honest client is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability.hostile_clients import BUDGET_BYTES, OVERHEAD_BYTES, run


@pytest.mark.slow
def test_an_honest_client_is_served_beside_requests_with_long_lists(tmp_path: Path) -> None:
    [outcome] = run(tmp_path, 0.01, "lists")
    figures = outcome.figures()
    assert figures["honest_calls"] > 0
    assert figures["max_ms"] < 10_000
    assert outcome.memory_bytes < BUDGET_BYTES + OVERHEAD_BYTES
    assert outcome.told == "6 of 48 refused as a whole"  # partitions of a table that has none
