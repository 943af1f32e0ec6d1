"""Cases of a test that run every time, and those that are left to `make nightly`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def every_run(cases: Iterable[Any], chosen: Callable[[Any], bool]) -> list[Any]:
    """All cases, for `parametrize`: those that are not chosen are slow, so `make nightly` runs them."""
    return [
        case if chosen(case) else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
