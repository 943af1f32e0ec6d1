"""Cases of a test that run every time, and those that are left to `make nightly`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def every_run(cases: Iterable[Any], chosen: Callable[[Any], bool]) -> list[Any]:
    """All cases, for `parametrize`: those that are not chosen are slow, so `make nightly` runs them."""
    return [
        case if chosen(case) else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]


def examples(number: int) -> int:
    """How many examples a property test has that needs more than others: `make test` tries a third of the number."""
    profile = os.environ.get("HYPOTHESIS_PROFILE", "repeatable")
    return {"repeatable": max(number // 3, 15), "mutants": number}.get(profile, 10 * number)
