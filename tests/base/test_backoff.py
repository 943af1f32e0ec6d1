"""Pauses between attempts."""

from __future__ import annotations

import pytest

from forebay.base.retrying import backoff


def test_each_failure_doubles_the_pause_up_to_the_most() -> None:
    assert [backoff(failures, 0.5, 3.0) for failures in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("failures", [1000, 10**9])
def test_very_many_failures_pause_no_longer_than_the_most(failures: int) -> None:
    assert backoff(failures, 0.02, 60.0) == 60.0
